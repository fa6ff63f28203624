//! Finding the responsible server, and noticing its replacement.
//!
//! This folder owns the queries of Sentinels and cluster nodes, and the slot map. It does not own connections; its
//! sibling `connection` does.

pub(crate) mod cluster;
mod endpoints;
#[cfg(fuzzing)]
pub mod fuzzing;
mod nodes;
pub(crate) mod sentinels;
mod slot_map;
