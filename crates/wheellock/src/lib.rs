//! Distributed locks on Redis and Valkey, wire-compatible with Java's Redisson.
//!
//! [`LockManager`] makes locks of several kinds: [`lock`](LockManager::lock), [`fair_lock`](LockManager::fair_lock),
//! [`read_write_lock`](LockManager::read_write_lock), [`fenced_lock`](LockManager::fenced_lock),
//! [`spin_lock`](LockManager::spin_lock), [`simple_lock`](LockManager::simple_lock). [`multi_lock`] takes several as one,
//! [`RedLock`] a majority of independent servers, [`election`](LockManager::election) says who leads, and [`blocking`] has the locks for
//! threads.
//!
//! # Layout
//!
//! [`LockManager`] makes [`Lock`]s, [`Lock::acquire`] gives a [`Guard`]. `acquire` is the one acquire loop, `watchdog` the
//! watchdog; `holds`, `wait_queue` and `lease` are plain values that decide; a kind of lock is a row of `kind`, and `wire` builds
//! what goes out and reads what comes back.
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
mod election;
mod error;
mod events;
mod families;
mod fenced;
mod guard;
mod hand_over;
mod health;
mod holder;
mod holds;
mod join_all;
mod kind;
mod label;
mod latch;
mod lease;
mod lock;
mod manager;
mod metrics;
mod multi_lock;
mod name;
mod once;
mod owner;
mod permit;
mod places;
mod quorum;
mod read_write;
mod redlock;
#[cfg(feature = "metrics")]
mod report;
mod retry;
mod semaphore;
mod server_clock;
mod shutdown;
mod sides;
mod spans;
#[cfg(feature = "testing")]
pub mod testing;
mod tickets;
mod token;
mod wait_queue;
mod watchdog;
mod wire;
mod work;

pub use crate::metrics::Metrics;
pub use backoff::Backoff;
pub use clock::BootInstant;
pub use diagnostics::Finding;
pub use durability::Durability;
pub use election::{Election, Leader, Leadership, Observer};
pub use error::{Error, LostReason, MemberFailure, Outcome};
pub use fenced::{FencedGuard, FencedLock};
pub use guard::{Guard, Released};
pub use health::Health;
pub use holder::{Holder, Holders, Mode};
pub use latch::CountDownLatch;
pub use lease::Lease;
pub use lock::Lock;
pub use manager::{LockManager, LockManagerBuilder};
pub use multi_lock::{LostMember, MultiGuard, MultiLock, multi_lock};
pub use owner::{Owner, PermitId};
pub use permit::{Permit, PermitSemaphore};
pub use read_write::ReadWriteLock;
pub use redlock::{MemberState, QuorumGuard, QuorumLock, QuorumMember, RedLock};
pub use semaphore::{Permits, Semaphore};
pub use shutdown::{Leftover, Unreleased};
pub use sides::Fairness;
pub use wheellock_client as client;
pub use wheellock_client::{Bucket, Histogram};
