//! Finding the responsible server, and noticing its replacement.
//!
//! This folder owns redirections, discovery and the slot map. It does not own connections; its sibling `connection`
//! does.

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
