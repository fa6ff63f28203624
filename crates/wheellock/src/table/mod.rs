//! The table of holds, and its counters.

pub(crate) mod holds;
pub(crate) mod metrics;
