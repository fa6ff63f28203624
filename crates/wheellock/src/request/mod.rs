//! Requests of one manager: acquires, renewals and releases.

pub(crate) mod acquire;
pub(crate) mod context;
pub(crate) mod diagnostics;
pub(crate) mod endangered;
pub(crate) mod events;
pub(crate) mod fleet;
pub(crate) mod guard;
pub(crate) mod hand_over;
pub(crate) mod label;
pub(crate) mod once;
pub(crate) mod requested;
pub(crate) mod retry;
pub(crate) mod watchdog;
