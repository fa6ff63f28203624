//! Kinds with an API of their own.

pub(crate) mod election;
pub(crate) mod fenced;
pub(crate) mod latch;
pub(crate) mod permit;
pub(crate) mod read_write;
pub(crate) mod semaphore;
