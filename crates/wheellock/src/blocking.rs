//! The same locks for threads. Owns the background thread that serves the connections, and the owners of threads; every
//! lock operation is the asynchronous one.
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

mod sets;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Handle};
use wheellock_client::Client;

pub use sets::{MultiGuard, MultiLock, QuorumGuard, QuorumLock, RedLock, multi_lock};

use crate::{
    BootInstant, Error, Finding, Leftover, LockManagerBuilder, LostReason, Metrics, Owner, Released,
};

/// Makes locks on one server, as [`crate::LockManager`] does. Cheap to clone.
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
        Lock { inner: self.inner.lock(name), runtime: Arc::clone(&self.runtime), manager: self.clone() }
    }

    /// The owner that the calling thread is, unless it presents another: see [`Lock::with_owner`].
    pub fn this_thread(&self) -> Owner {
        self.inner.context.owner(THREAD.with(|number| *number))
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

    /// [`lazy`](Self::lazy) for threads: the manager connects in the background, for one server of a [`RedLock`].
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

/// A reentrant lock by name, as [`crate::Lock`] is, taken by threads.
#[derive(Clone)]
pub struct Lock {
    inner: crate::Lock,
    runtime: Arc<Served>,
    manager: LockManager,
}

impl Lock {
    /// The lock's name, which is also its key on the server.
    pub fn name(&self) -> &str {
        self.inner.name()
    }

    /// The same lock taken with a fixed lease: no watchdog, it ends by itself after `lease` unless released before.
    #[must_use]
    pub fn with_lease(&self, lease: Duration) -> Self {
        Self { inner: self.inner.with_lease(lease), ..self.clone() }
    }

    /// The same lock taken as `owner` instead of as the calling thread.
    #[must_use]
    pub fn with_owner(&self, owner: Owner) -> Self {
        Self { inner: self.inner.with_owner(owner), ..self.clone() }
    }

    /// Waits until the lock is free and takes it; at once if the calling thread holds it already.
    ///
    /// # Errors
    ///
    /// As [`crate::Lock::acquire`].
    pub fn acquire(&self) -> Result<Guard, Error> {
        let guard = self.runtime.block_on(self.as_this_thread().acquire())?;
        Ok(self.guard(guard))
    }

    /// Takes the lock if it is free or the calling thread's: one round trip.
    ///
    /// # Errors
    ///
    /// As [`crate::Lock::acquire`].
    pub fn try_acquire(&self) -> Result<Option<Guard>, Error> {
        let guard = self.runtime.block_on(self.as_this_thread().try_acquire())?;
        Ok(guard.map(|guard| self.guard(guard)))
    }

    /// Waits up to `wait` for the lock. Returns `None` if another holder still has it then, and no later.
    ///
    /// # Errors
    ///
    /// As [`crate::Lock::try_acquire_for`].
    pub fn try_acquire_for(&self, wait: Duration) -> Result<Option<Guard>, Error> {
        let guard = self.runtime.block_on(self.as_this_thread().try_acquire_for(wait))?;
        Ok(guard.map(|guard| self.guard(guard)))
    }

    /// Acquires, runs `work` with the guard, and releases with confirmation; releases also when `work` panics.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire); [`Error::Lost`] if the lock was lost before `work` had ended. Work in a thread
    /// cannot be stopped: it has run to its end, but not under the lock.
    pub fn run<T>(&self, work: impl FnOnce(&Guard) -> T) -> Result<T, Error> {
        let guard = self.acquire()?;
        let result = work(&guard);
        guard.inner.check()?;
        self.runtime.block_on(guard.inner.release_after_work())?;
        Ok(result)
    }

    /// As [`crate::Lock::is_locked`].
    ///
    /// # Errors
    ///
    /// [`Error::Server`], [`Error::InvalidName`].
    pub fn is_locked(&self) -> Result<bool, Error> {
        self.runtime.block_on(self.inner.is_locked())
    }

    /// As [`crate::Lock::hold_count`].
    ///
    /// # Errors
    ///
    /// [`Error::Server`], [`Error::InvalidName`].
    pub fn hold_count(&self, owner: &Owner) -> Result<u64, Error> {
        self.runtime.block_on(self.inner.hold_count(owner))
    }

    /// As [`crate::Lock::is_held_by`].
    ///
    /// # Errors
    ///
    /// [`Error::Server`], [`Error::InvalidName`].
    pub fn is_held_by(&self, owner: &Owner) -> Result<bool, Error> {
        self.runtime.block_on(self.inner.is_held_by(owner))
    }

    /// As [`crate::Lock::remaining_lease`].
    ///
    /// # Errors
    ///
    /// [`Error::Server`], [`Error::InvalidName`].
    pub fn remaining_lease(&self) -> Result<Option<Duration>, Error> {
        self.runtime.block_on(self.inner.remaining_lease())
    }

    /// As [`crate::Lock::force_release`].
    ///
    /// # Errors
    ///
    /// [`Error::Server`], [`Error::InvalidName`].
    pub fn force_release(&self) -> Result<bool, Error> {
        self.runtime.block_on(self.inner.force_release())
    }

    fn guard(&self, inner: crate::Guard) -> Guard {
        Guard { inner, runtime: Arc::clone(&self.runtime) }
    }

    fn as_this_thread(&self) -> crate::Lock {
        if self.inner.has_owner() {
            self.inner.clone()
        } else {
            self.inner.with_owner(self.manager.this_thread())
        }
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// Proof of holding one hold of a lock, as [`crate::Guard`] is. Dropping it releases the hold in the background.
///
/// It may be sent to another thread and released there.
pub struct Guard {
    inner: crate::Guard,
    runtime: Arc<Served>,
}

impl Guard {
    /// The lock's name.
    pub fn name(&self) -> &str {
        self.inner.name()
    }

    /// Who holds: the thread that acquired, unless it presented another owner.
    pub fn owner(&self) -> Owner {
        self.inner.owner()
    }

    /// As [`crate::Guard::valid_until`].
    pub fn valid_until(&self) -> BootInstant {
        self.inner.valid_until()
    }

    /// Whether the lock may be believed held right now. Ask before every step that must not happen without it.
    pub fn is_valid(&self) -> bool {
        self.inner.is_valid()
    }

    /// Blocks until the lock can no longer be believed held, and tells why.
    pub fn lost(&self) -> LostReason {
        self.runtime.block_on(self.inner.lost())
    }

    /// As [`crate::Guard::renew`].
    ///
    /// # Errors
    ///
    /// As [`crate::Guard::renew`].
    pub fn renew(&self) -> Result<(), Error> {
        self.runtime.block_on(self.inner.renew())
    }

    /// Gives the hold back and waits for the server's word.
    ///
    /// # Errors
    ///
    /// As [`crate::Guard::release`].
    pub fn release(self) -> Result<Released, Error> {
        self.runtime.block_on(self.inner.release())
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// What serves a manager and everything that was made with it. The last of them to go waits for the server's answers: the
/// background thread ends with the process, whatever it was about to send, and a server that cannot answer any more throws
/// away what it has not read yet.
#[derive(Debug)]
struct Served {
    runtime: &'static Handle,
    client: Option<Client>,
    #[expect(dead_code, reason = "held only to be dropped")]
    members: Vec<Arc<Self>>,
}

impl Served {
    fn new(runtime: &'static Handle, manager: &crate::LockManager) -> Arc<Self> {
        Arc::new(Self { runtime, client: Some(manager.client().clone()), members: Vec::new() })
    }

    fn together(members: Vec<Arc<Self>>) -> Result<Arc<Self>, Error> {
        Ok(Arc::new(Self { runtime: background()?, client: None, members }))
    }

    fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.runtime.block_on(future)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let Some(client) = &self.client else { return };
        let began = Instant::now();
        let unanswered = || {
            let stats = client.stats();
            client.is_ready() && (stats.in_flight, stats.queued_bytes) != (0, 0)
        };
        while unanswered() && began.elapsed() < LAST_ANSWERS {
            std::thread::sleep(LAST_LOOKS);
        }
    }
}

/// How long the last handle waits for answers, and how long between two looks.
const LAST_ANSWERS: Duration = Duration::from_millis(100);
const LAST_LOOKS: Duration = Duration::from_micros(50);

/// The runtime of the background thread.
fn background() -> Result<&'static Handle, Error> {
    static BACKGROUND: OnceLock<Result<Handle, Error>> = OnceLock::new();
    let start = || {
        let failed = |error: std::io::Error| Error::NoBackgroundThread { reason: error.to_string() };
        let runtime = Builder::new_current_thread().enable_io().build().map_err(failed)?;
        let handle = runtime.handle().clone();
        let serve = move || runtime.block_on(std::future::pending::<()>());
        std::thread::Builder::new().name("wheellock-blocking".to_owned()).spawn(serve).map_err(failed)?;
        Ok(handle)
    };
    BACKGROUND.get_or_init(start).as_ref().map_err(Clone::clone)
}

/// Threads are numbered from here, far above the owners that managers number from 1, and still within Java's `long`.
static NEXT_THREAD: AtomicU64 = AtomicU64::new(1 << 62);

thread_local! {
    static THREAD: u64 = NEXT_THREAD.fetch_add(1, Ordering::Relaxed);
}
