//! The same locks for threads. Owns nothing but the waiting: every lock operation is the asynchronous one, and every kind of
//! lock has the same verbs, written once.
//!
//! All blocking managers of a process share one background thread, which is started by the first and never ends. Calls
//! block the calling thread only.
//!
//! As in Redisson, **a thread is an owner**: a thread that acquires a lock twice holds it twice, and has to release both
//! guards. Unlike there, an owner is never shared by mistake: numbers of threads are not used again when threads end.
//!
//! The background thread ends with the process. So the last handle of a manager (it, its locks, its guards) waits when it is
//! dropped until the server has answered, for a tenth of a second at most; a manager in a `static` is to be
//! [shut down](LockManager::shutdown) at the end of `main`.
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
//! Blocking calls panic in asynchronous code, where they would stop the runtime's worker (source:
//! [`tokio::runtime::Handle::block_on`]). Guards may be dropped anywhere.

mod async_lock;
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

use crate::{Error, Finding, Health, Leftover, LockManagerBuilder, Metrics, Owner};
use lock::this_thread;
use served::{Served, background};

/// Makes locks on one server, as [`crate::LockManager`] does. Cheap to clone.
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
    /// As [`crate::LockManager::connect`]; [`Error::NoBackgroundThread`].
    pub fn connect(url: &str) -> Result<Self, Error> {
        Self::builder(url).connect_blocking()
    }

    /// Starts the settings of a manager; end them with
    /// [`connect_blocking`](LockManagerBuilder::connect_blocking).
    pub fn builder(url: &str) -> LockManagerBuilder {
        crate::LockManager::builder(url)
    }

    /// A reentrant lock, shared with every process that uses this name. No I/O.
    pub fn lock(&self, name: &str) -> Lock {
        Lock::new(self.inner.lock(name), &self.runtime)
    }

    /// The owner that the calling thread is, unless it presents another: see [`Lock::with_owner`].
    pub fn this_thread(&self) -> Owner {
        this_thread(&self.inner.context)
    }

    /// A new owner that is no thread.
    pub fn owner(&self) -> Owner {
        self.inner.owner()
    }

    /// The identity of this manager on the wire: the part of its owners before the colon.
    pub fn id(&self) -> &str {
        self.inner.id()
    }

    /// As [`crate::LockManager::diagnostics`].
    pub fn diagnostics(&self) -> &[Finding] {
        self.inner.diagnostics()
    }

    /// As [`crate::LockManager::metrics`].
    pub fn metrics(&self) -> Metrics {
        self.inner.metrics()
    }

    /// As [`crate::LockManager::metrics_by_family`].
    pub fn metrics_by_family(&self) -> Vec<(&'static str, Metrics)> {
        self.inner.metrics_by_family()
    }

    /// As [`crate::LockManager::report_metrics`].
    #[cfg(feature = "metrics")]
    pub fn report_metrics(&self) {
        self.inner.report_metrics();
    }

    /// As [`crate::LockManager::health`].
    pub fn health(&self) -> Health {
        self.inner.health()
    }

    /// As [`crate::LockManager::is_healthy`].
    pub fn is_healthy(&self) -> bool {
        self.inner.is_healthy()
    }

    /// Asks the provider of credentials once more and tells every server, as [`Client::reauthenticate`](wheellock_client::Client::reauthenticate) does: for tokens that end while a
    /// connection lives. Blocks for as long as the provider and then the servers take, within
    /// [`connect_timeout`](wheellock_client::Config::connect_timeout) and [`response_timeout`](wheellock_client::Config::response_timeout).
    /// The provider is asked on this thread; when a connection is made it is on the background thread, which serves all blocking managers,
    /// and which it must not keep waiting.
    ///
    /// # Errors
    ///
    /// [`Error::Server`], whose source is what [`Client::reauthenticate`](wheellock_client::Client::reauthenticate) says.
    ///
    /// # Panics
    ///
    /// In asynchronous code; see [`blocking`](self).
    pub fn reauthenticate(&self) -> Result<(), Error> {
        let renewed = self.runtime.block_on(self.inner.client().reauthenticate());
        renewed.map_err(|source| Error::Server { operation: "reauthenticate".to_owned(), source })
    }

    /// As [`crate::LockManager::shutdown`], also for threads that wait or hold a lock.
    pub fn shutdown(&self, within: Duration) -> Leftover {
        self.runtime.block_on(self.inner.shutdown(within))
    }

    /// The asynchronous manager behind this one, for the asynchronous parts of the same process.
    pub fn to_async(&self) -> crate::LockManager {
        self.inner.clone()
    }
}

impl LockManagerBuilder {
    /// Connects, and blocks the calling thread until that is done.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect); [`Error::NoBackgroundThread`].
    ///
    /// # Panics
    ///
    /// In asynchronous code; see [`blocking`](self).
    pub fn connect_blocking(self) -> Result<LockManager, Error> {
        let runtime = background()?;
        let inner = runtime.block_on(self.for_threads().connect())?;
        Ok(LockManager { runtime: Served::new(runtime, &inner), inner })
    }

    /// [`lazy`](Self::lazy) for threads: the manager connects in the background, for one server of a [`RedLockManager`].
    ///
    /// # Errors
    ///
    /// As [`lazy`](Self::lazy); [`Error::NoBackgroundThread`].
    pub fn lazy_blocking(self) -> Result<LockManager, Error> {
        let runtime = background()?;
        let _entered = runtime.enter();
        let inner = self.for_threads().lazy()?;
        Ok(LockManager { runtime: Served::new(runtime, &inner), inner })
    }

    /// The background thread ends with the process, whatever it was about to write for others.
    fn for_threads(self) -> Self {
        self.configure(|config| config.write_at_once = true)
    }
}
