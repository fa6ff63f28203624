//! Which server is responsible, and how to notice that it is another one now. Owns redirections, discovery and the map of
//! slots; the connection itself belongs to its siblings.

pub(crate) mod cluster;
mod discovery;
mod endpoints;
pub(crate) mod finder;
#[cfg(fuzzing)]
pub mod fuzzing;
mod nodes;
mod pace;
pub(crate) mod scouts;
mod slot_map;
