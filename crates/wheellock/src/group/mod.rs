//! Locks of several names or servers.

pub(crate) mod multi_lock;
pub(crate) mod redlock;
