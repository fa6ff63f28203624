//! Which server answers for a key. The pure parts: what servers say about each other, and what to believe of it.
#![allow(dead_code, reason = "the shell that uses them comes after them")]

mod endpoint;
mod nodes;
mod slots;

pub use slots::{SlotSet, slot_of};
