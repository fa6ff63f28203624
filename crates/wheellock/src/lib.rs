//! Distributed locks on Redis and Valkey, wire-compatible with Java's Redisson.
//!
//! The locks are reentrant. A held lock has a lease on the server. The watchdog, a background task, renews it, and a
//! message wakes the waiters after a release. Use Wheellock for services that run in several processes and must not do
//! one thing twice at the same time. It also suits teams that use Redisson in Java, because both sides share the same
//! locks, byte for byte.
//!
//! ```no_run
//! use std::time::Duration;
//! use wheellock::LockManager;
//!
//! # async fn example() -> Result<(), wheellock::Error> {
//! let locks = LockManager::connect("redis://127.0.0.1:6379").await?;
//! let orders = locks.lock("orders:42"); // no I/O; clone and share it as you like
//!
//! let guard = orders.acquire().await?; // waits; a watchdog keeps the lease of 30 s alive
//! println!("held until {:?}, and renewed before that", guard.valid_until());
//! guard.release().await?; // an error if the lock was lost; dropping the guard releases in the background
//!
//! // An error if another holder still has it after 5 s.
//! let guard = orders.try_acquire_for(Duration::from_secs(5)).await?.or_held()?;
//! guard.run(async { Ok::<_, wheellock::Error>(()) }).await?; // the work is dropped if the lock is lost
//! # Ok(())
//! # }
//! ```
//!
//! Start with the [`guide`]. For threads, [`blocking`] has the same names without `async`.
//!
//! # Kinds of locks
//!
//! | made by | description | shared with Redisson's |
//! |---|---|---|
//! | [`lock`](LockManager::lock) | one holder, reentrant, waiters are woken | `RLock` |
//! | [`fair_lock`](LockManager::fair_lock) | first come, first served over all processes | `RFairLock` |
//! | [`read_write_lock`](LockManager::read_write_lock) | many readers or one writer; writers do not starve | `RReadWriteLock` |
//! | [`fenced_lock`](LockManager::fenced_lock) | every grant has a token greater than all earlier tokens | `RFencedLock` |
//! | [`spin_lock`](LockManager::spin_lock) | waiters poll and do not listen | `RSpinLock` |
//! | [`simple_lock`](LockManager::simple_lock) | `SET NX PX`, shared with redsync, node-redlock, redis-py and rslock | none |
//! | [`permit_semaphore`](LockManager::permit_semaphore) | a number of permits, each with a lease | `RPermitExpirableSemaphore` |
//! | [`semaphore`](LockManager::semaphore) | a number of permits without leases | `RSemaphore` |
//! | [`count_down_latch`](LockManager::count_down_latch) | closed until its count has reached zero | `RCountDownLatch` |
//! | [`multi_lock`] | several locks, all or none | `RedissonMultiLock` |
//! | [`RedLock`] | a majority of independent servers | `RedissonRedLock` |
//! | [`election`](LockManager::election) | one of many processes leads, and others see the leader and its address | `RFencedLock` |
//!
//! # What is promised
//!
//! - **Exclusion.** At most one owner has a valid [`Guard`] of a lock at any time. This holds on one server that keeps
//!   its data and whose clock does not jump. Each acquire has an owner of its own. The validity of a guard counts from
//!   before its request was sent.
//! - **Early warning.** [`is_valid`](Guard::is_valid) turns false and [`lost`](Guard::lost) resolves before the server
//!   grants the lock to the next owner, unless force or a failover takes the lock.
//! - **Liveness.** If a holder dies, a live waiter gets the lock within one lease. A lost message only delays a waiter.
//! - **No leaks.** Drop any future or guard at any point. Its lock is released, and its lease is not renewed any more.
//! - **At most once.** A retry after a lost reply never takes a lock twice, and never changes the lock of another owner.
//! - **Failovers.** With [`keep_locks_across_failovers`](LockManagerBuilder::keep_locks_across_failovers), a lock stays
//!   held and exclusive across failovers, and a grant costs no further command.
//! - **Honest errors.** Each [`Error`] says in one line which operation failed, on which server and why. Its
//!   [`outcome`](Error::outcome) says whether the operation may have taken effect.
//!
//! A lease-based lock cannot promise that code is alone if it keeps running after its lease. Without
//! `keep_locks_across_failovers` a failover may break exclusion, unless every replica that may take over has
//! acknowledged the grant (see [`Durability`]). The page [Guarantees] has the assumptions and the limits.
//!
//! # Servers
//!
//! Redis 6 or later, or any Valkey. The URL selects a single server, a primary among its replicas, Sentinels, or a
//! cluster.
//!
//! # Features
//!
//! All are off by default.
//!
//! - `tls`: `rediss://` and `valkeys://`, by rustls.
//! - `tracing`: events for connections, losses, failed renewals and risks of the server; spans for waits and holds.
//! - `metrics`: a manager's numbers, for the recorder of your service.
//! - `testing`: a server in memory, for tests of code that uses locks. Not for production.
//!
//! # More pages
//!
//! [Guarantees]; [beside Redisson]; [tests for each failure][reliability]; [measurements beside its peers][benchmarks];
//! [changes][changelog].
//!
//! [Guarantees]: https://github.com/wheellock/wheellock/blob/main/docs/guarantees.md
//! [beside Redisson]: https://github.com/wheellock/wheellock/blob/main/docs/interop.md
//! [reliability]: https://github.com/wheellock/wheellock/blob/main/docs/reliability.md
//! [benchmarks]: https://github.com/wheellock/wheellock/blob/main/docs/benchmarks.md
//! [changelog]: https://github.com/wheellock/wheellock/blob/main/CHANGELOG.md
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

mod base;
pub mod blocking;
mod group;
pub mod guide;
mod kind;
mod kinds;
mod lock;
mod manager;
mod request;
mod table;
#[cfg(feature = "testing")]
pub mod testing;
mod wait;
mod wire;

pub use crate::table::metrics::Metrics;
pub use base::attempt::Attempt;
pub use base::backoff::Backoff;
pub use base::clock::BootInstant;
pub use base::durability::Durability;
pub use base::error::{Error, LostReason, MemberFailure, Outcome};
pub use base::fleet::{Fleet, FleetHealth};
pub use base::owner::{Owner, ParsePermitIdError, PermitId};
pub use base::ticket::{ParseTicketError, Ticket};
pub use group::multi_lock::{LostMember, MultiGuard, MultiLock, multi_lock};
pub use group::redlock::{MemberState, RedLock, RedLockGuard, RedLockManager, RedLockMember};
pub use kinds::election::{Election, Leader, Leadership, Observer};
pub use kinds::fenced::{FencedGuard, FencedLock};
pub use kinds::latch::CountDownLatch;
pub use kinds::permit::{Permit, PermitSemaphore};
pub use kinds::read_write::ReadWriteLock;
pub use kinds::semaphore::{Permits, Semaphore};
pub use lock::Lock;
pub use manager::health::Health;
pub use manager::listing::Listing;
pub use manager::shutdown::{Leftover, Unreleased};
pub use manager::{LockManager, LockManagerBuilder};
pub use request::diagnostics::Finding;
pub use request::guard::Guard;
pub use wait::sides::Fairness;
pub use wheellock_client as client;
pub use wheellock_client::{Bucket, Histogram};
pub use wire::holder::{Holder, Holders, Listed, Mode, Waiter};
pub use wire::release_request::{AskedHolders, ReleaseRequest};

/// The examples in the package's README must compile.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
