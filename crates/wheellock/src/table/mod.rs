//! The table of holds, and what is counted.

pub(crate) mod holds;
pub(crate) mod metrics;
