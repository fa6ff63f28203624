//! Lock names and their wait queues.

pub(crate) mod families;
pub(crate) mod herd;
pub(crate) mod key_changes;
pub(crate) mod latch_state;
pub(crate) mod name;
pub(crate) mod poll_schedule;
pub(crate) mod queue;
pub(crate) mod sides;
pub(crate) mod spans;
pub(crate) mod turns;
pub(crate) mod wait_queue;
