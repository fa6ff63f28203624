//! Distributed locks on Redis and Valkey, wire-compatible with Java's Redisson.
//!
//! # Layout
//!
//! [`LockManager`] makes [`Lock`]s, [`Lock::acquire`] gives a [`Guard`]. `acquire` is the one acquire loop, `keeper` the
//! watchdog; `holds`, `waiters` and `lease` are plain values that decide; `kind` knows the wire contract.
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

mod acquire;
pub mod blocking;
mod clock;
mod diagnostics;
mod durability;
mod error;
mod events;
mod flight;
mod guard;
mod holds;
mod keeper;
mod kind;
mod lease;
mod lock;
mod manager;
mod metrics;
mod multi_lock;
mod name;
mod owner;
mod persist;
mod quorum;
mod redlock;
mod server_clock;
mod shutdown;
mod waiters;
mod work;

pub use clock::BootInstant;
pub use diagnostics::Finding;
pub use durability::Durability;
pub use error::{Error, MemberFailure, Outcome};
pub use guard::{Guard, LostReason, Released};
pub use lease::Lease;
pub use lock::Lock;
pub use manager::{LockManager, LockManagerBuilder};
pub use metrics::Metrics;
pub use multi_lock::{LostMember, MultiGuard, MultiLock, multi_lock};
pub use owner::Owner;
pub use redlock::{MemberState, QuorumGuard, QuorumLock, QuorumMember, RedLock};
pub use shutdown::{Leftover, Unreleased};
pub use wheellock_client as client;
