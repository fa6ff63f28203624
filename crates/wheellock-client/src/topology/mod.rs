//! Which server is responsible, and how to notice that it is another one now. Owns redirections, discovery and the map of
//! slots; the connection itself belongs to its siblings.

mod slots;

pub use slots::{SlotSet, slot_of};
