//! Distributed locks on Redis and Valkey, wire-compatible with Java's Redisson.
//!
//! # Layout
//!
//! [`LockManager`] makes [`Lock`]s, [`Lock::acquire`] gives a [`Guard`]. `acquire` is the one acquire loop, `watchdog` the
//! watchdog; `holds`, `waiters` and `lease` are plain values that decide; `kind` knows the wire contract.
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

mod acquire;
mod backoff;
pub mod blocking;
mod clock;
mod context;
mod diagnostics;
mod durability;
mod error;
mod events;
mod fenced;
mod guard;
mod holds;
mod join_all;
mod kind;
mod lease;
mod lock;
mod manager;
mod metrics;
mod multi_lock;
mod name;
mod owner;
mod quorum;
mod read_write;
mod redlock;
mod retry;
mod server_clock;
mod shutdown;
mod sides;
mod token;
mod wait_queue;
mod watchdog;
mod wire;
mod work;

pub use backoff::Backoff;
pub use clock::BootInstant;
pub use diagnostics::Finding;
pub use durability::Durability;
pub use error::{Error, LostReason, MemberFailure, Outcome};
pub use fenced::{FencedGuard, FencedLock};
pub use guard::{Guard, Released};
pub use lease::Lease;
pub use lock::Lock;
pub use manager::{LockManager, LockManagerBuilder};
pub use metrics::Metrics;
pub use multi_lock::{LostMember, MultiGuard, MultiLock, multi_lock};
pub use owner::Owner;
pub use read_write::ReadWriteLock;
pub use redlock::{MemberState, QuorumGuard, QuorumLock, QuorumMember, RedLock};
pub use shutdown::{Leftover, Unreleased};
pub use sides::Fairness;
pub use wheellock_client as client;
