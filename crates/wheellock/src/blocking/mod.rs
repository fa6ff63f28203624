//! Blocking locks for threads.
//!
//! This module adds only the waiting. Each lock operation is the asynchronous one. Every kind of lock has the same methods.
//!
//! All blocking managers of a process share one background thread. The first manager starts it, and it never ends. A call blocks
//! the calling thread only.
//!
//! As in Redisson, **a thread is an owner**. A thread that acquires a lock twice holds it twice, and must release both guards.
//! Unlike in Redisson, two threads never share an owner by mistake, because the number of an ended thread is not reused.
//!
//! The background thread ends with the process. The last handle of a manager (the manager, a lock or a guard) therefore waits for
//! the server's replies when it is dropped. It waits for a tenth of a second at most. Statics are not dropped, so
//! [shut down](LockManager::shutdown) a manager in a `static` at the end of `main`.
//!
//! ```no_run
//! use std::time::Duration;
//! use wheellock::blocking::LockManager;
//!
//! # fn main() -> Result<(), wheellock::Error> {
//! let locks = LockManager::connect("redis://127.0.0.1:6379")?;
//! let guard = locks.lock("orders:42").acquire()?;
//! // ... alone in the whole fleet ...
//! guard.release()?;
//! # Ok(())
//! # }
//! ```
//!
//! # Panics
//!
//! A blocking call panics in asynchronous code, because it would stop the runtime's worker (source:
//! [`tokio::runtime::Handle::block_on`]). The message names the remedy: [`LockManager::to_async`] returns the asynchronous manager of the
//! same process. A guard may be dropped anywhere.

mod elections;
mod kinds;
mod lock;
mod semaphores;
mod served;
mod sets;

use std::sync::Arc;
use std::time::Duration;

pub use elections::{Election, Leadership, Observer};
pub use kinds::{FencedGuard, FencedLock, ReadWriteLock};
pub use lock::{Guard, Lock};
pub use semaphores::{CountDownLatch, Permit, PermitSemaphore, Permits, Semaphore};
pub use sets::{MultiGuard, MultiLock, RedLock, RedLockGuard, RedLockManager, multi_lock};

use crate::{Error, Finding, FleetHealth, Health, Leftover, LockManagerBuilder, Metrics, Owner, Ticket};
use lock::this_thread;
use served::{Served, background};

/// Creates blocking locks on one server, like [`crate::LockManager`]. Cheap to clone.
///
/// ```no_run
/// use std::time::Duration;
/// use wheellock::blocking::LockManager;
///
/// # fn example() -> Result<(), wheellock::Error> {
/// let locks = LockManager::builder("redis://127.0.0.1:6379")
///     .watchdog_lease(Duration::from_secs(10))
///     .connect_blocking()?;
/// let guard = locks.lock("orders:42").acquire()?;
/// guard.release()?;
/// let _left = locks.shutdown(Duration::from_secs(2));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct LockManager {
    inner: crate::LockManager,
    runtime: Arc<Served>,
}

impl LockManager {
    /// Connects to the server at `url`, with default settings.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`crate::LockManager::connect`], and [`Error::NoBackgroundThread`].
    #[track_caller]
    pub fn connect(url: impl AsRef<str>) -> Result<Self, Error> {
        Self::builder(url).connect_blocking()
    }

    /// Starts the configuration of a manager. Finish it with [`connect_blocking`](LockManagerBuilder::connect_blocking).
    pub fn builder(url: impl AsRef<str>) -> LockManagerBuilder {
        crate::LockManager::builder(url)
    }

    /// Returns a reentrant lock, shared with every process that uses this name. No I/O.
    pub fn lock(&self, name: impl AsRef<str>) -> Lock {
        Lock::new(self.inner.lock(name.as_ref()), &self.runtime)
    }

    /// Takes over the lock of a ticket, with a fresh owner. See [`crate::LockManager::adopt`].
    ///
    /// # Errors
    ///
    /// Returns the errors of [`crate::LockManager::adopt`].
    ///
    /// # Panics
    ///
    /// In asynchronous code; see [`blocking`](self).
    #[track_caller]
    pub fn adopt(&self, ticket: &Ticket) -> Result<Guard, Error> {
        self.runtime.block_on(self.inner.adopt(ticket)).map(|guard| Guard::new(guard, &self.runtime))
    }

    /// Releases the lock of a ticket. See [`crate::LockManager::release_ticket`].
    ///
    /// # Errors
    ///
    /// Returns the errors of [`crate::LockManager::release_ticket`].
    ///
    /// # Panics
    ///
    /// In asynchronous code; see [`blocking`](self).
    #[track_caller]
    pub fn release_ticket(&self, ticket: &Ticket) -> Result<bool, Error> {
        self.runtime.block_on(self.inner.release_ticket(ticket))
    }

    /// Returns the owner of the calling thread. A lock uses it unless [`Lock::with_owner`] presents another owner.
    pub fn this_thread(&self) -> Owner {
        this_thread(&self.inner.context)
    }

    /// Returns a new owner that is not bound to a thread.
    pub fn owner(&self) -> Owner {
        self.inner.owner()
    }

    /// Returns the identity of this manager on the wire: the part of its owners before the colon.
    pub fn id(&self) -> &str {
        self.inner.id()
    }

    /// Works like [`crate::LockManager::diagnostics`].
    pub fn diagnostics(&self) -> &[Finding] {
        self.inner.diagnostics()
    }

    /// Works like [`crate::LockManager::metrics`].
    pub fn metrics(&self) -> Metrics {
        self.inner.metrics()
    }

    /// Works like [`crate::LockManager::metrics_by_family`].
    pub fn metrics_by_family(&self) -> Vec<(&'static str, Metrics)> {
        self.inner.metrics_by_family()
    }

    /// Works like [`crate::LockManager::report_metrics`].
    #[cfg(feature = "metrics")]
    pub fn report_metrics(&self) {
        self.inner.report_metrics();
    }

    /// Works like [`crate::LockManager::health`].
    pub fn health(&self) -> Health {
        self.inner.health()
    }

    /// Works like [`crate::LockManager::is_healthy`].
    pub fn is_healthy(&self) -> bool {
        self.inner.is_healthy()
    }

    /// Works like [`crate::LockManager::fleet_health`].
    pub fn fleet_health(&self) -> Option<FleetHealth> {
        self.inner.fleet_health()
    }

    /// Requests new credentials from the provider and sends them to every server, like
    /// [`Client::reauthenticate`](wheellock_client::Client::reauthenticate). Use it for tokens that expire while a connection
    /// lives.
    ///
    /// The call blocks while the provider and then the servers take their time, within
    /// [`connect_timeout`](wheellock_client::Config::connect_timeout) and
    /// [`response_timeout`](wheellock_client::Config::response_timeout).
    ///
    /// This call runs the provider on the calling thread. A new connection runs the provider on the background thread. That
    /// thread serves all blocking managers, so the provider must not block it.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Server`]. Its source is the error of
    /// [`Client::reauthenticate`](wheellock_client::Client::reauthenticate).
    ///
    /// # Panics
    ///
    /// In asynchronous code; see [`blocking`](self).
    #[track_caller]
    pub fn reauthenticate(&self) -> Result<(), Error> {
        let renewed = self.runtime.block_on(self.inner.client().reauthenticate());
        renewed.map_err(|source| Error::Server { operation: "reauthenticate".to_owned(), source })
    }

    /// Works like [`crate::LockManager::shutdown`], also for threads that wait for a lock or hold one.
    #[track_caller]
    pub fn shutdown(&self, within: Duration) -> Leftover {
        self.runtime.block_on(self.inner.shutdown(within))
    }

    /// Returns the asynchronous manager behind this one, for the asynchronous parts of the same process.
    pub fn to_async(&self) -> crate::LockManager {
        self.inner.clone()
    }
}

impl LockManagerBuilder {
    /// Connects to the server, and blocks the calling thread until the connection is ready.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`connect`](Self::connect), and [`Error::NoBackgroundThread`].
    ///
    /// # Panics
    ///
    /// In asynchronous code; see [`blocking`](self).
    #[track_caller]
    pub fn connect_blocking(self) -> Result<LockManager, Error> {
        let runtime = background()?;
        let inner = served::block_on(runtime, self.for_threads().connect())?;
        Ok(LockManager { runtime: Served::new(runtime, &inner), inner })
    }

    /// Creates a manager that connects in the background, for one server of a [`RedLockManager`]. It is [`lazy`](Self::lazy) for
    /// threads.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`lazy`](Self::lazy), and [`Error::NoBackgroundThread`].
    pub fn lazy_blocking(self) -> Result<LockManager, Error> {
        let runtime = background()?;
        let _entered = runtime.enter();
        let inner = self.for_threads().lazy()?;
        Ok(LockManager { runtime: Served::new(runtime, &inner), inner })
    }

    /// Makes callers write at once, because the background thread ends with the process and may leave requests of others unsent.
    fn for_threads(self) -> Self {
        self.configure(|config| config.write_at_once = true)
    }
}
