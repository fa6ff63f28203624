//! Which server is responsible, and how to notice that it is another one now. Owns redirections, discovery and the map of
//! slots; the connection itself belongs to its siblings.

mod cluster;
mod discovery;
mod endpoint;
mod finder;
#[cfg(fuzzing)]
pub mod fuzzing;
mod nodes;
pub(crate) mod redirect;
mod slot_map;
pub(crate) mod slots;

pub(crate) use cluster::Cluster;
pub(crate) use finder::Finder;
