//! Basic values of the lock layer. They do not refer to any lock.

pub(crate) mod attempt;
pub(crate) mod backoff;
pub(crate) mod clock;
pub(crate) mod durability;
pub(crate) mod error;
pub(crate) mod fleet;
pub(crate) mod fleet_key;
pub(crate) mod fleet_terms;
pub(crate) mod hold_limits;
pub(crate) mod join_all;
pub(crate) mod lease;
pub(crate) mod owner;
pub(crate) mod quorum;
pub(crate) mod request_slots;
pub(crate) mod request_tag;
pub(crate) mod server_clock;
pub(crate) mod ticket;
pub(crate) mod tickets;
pub(crate) mod work;
