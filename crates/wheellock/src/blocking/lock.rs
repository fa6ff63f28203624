//! Locks and guards for threads: every verb once, for all kinds. Owns the owners of threads.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::async_lock::AsyncLock;
use super::served::Served;
use crate::request::context::Context;
use crate::{Backoff, BootInstant, Error, Holder, Holders, Owner, Released};

/// A reentrant lock by name, as [`crate::Lock`] is, taken by threads.
///
/// Locks of other types have the same verbs: `L` is the asynchronous lock behind this one, as in
/// [`MultiLock`](super::MultiLock) and [`RedLock`](super::RedLock).
///
/// ```no_run
/// use std::time::Duration;
///
/// # fn example(locks: wheellock::blocking::LockManager) -> Result<(), wheellock::Error> {
/// let orders = locks.lock("orders:42");
/// let outer = orders.acquire()?;
/// let inner = orders.acquire()?; // at once: the thread holds it already
/// drop((inner, outer));
/// if let Some(guard) = orders.try_acquire_for(Duration::from_secs(5))? {
///     guard.release()?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Lock<L = crate::Lock> {
    pub(super) inner: L,
    pub(super) runtime: Arc<Served>,
}

impl<L: AsyncLock> Lock<L> {
    pub(super) fn new(inner: L, runtime: &Arc<Served>) -> Self {
        Self { inner, runtime: Arc::clone(runtime) }
    }

    /// The same lock taken with a fixed lease: no watchdog, it ends by itself after `lease` unless released before. In a
    /// [`MultiLock`](super::MultiLock), each member has this lease.
    #[must_use]
    pub fn with_lease(&self, lease: Duration) -> Self {
        Self::new(self.inner.map(|lock| lock.with_lease(lease)), &self.runtime)
    }

    /// Waits until the lock is free and takes it; at once if the calling thread holds it already.
    ///
    /// A [`MultiLock`](super::MultiLock) is free when all its members are at the same time, a
    /// [`RedLock`](super::RedLock) when a majority of the servers grants it.
    ///
    /// # Errors
    ///
    /// As [`crate::Lock::acquire`], [`crate::MultiLock::acquire`], [`crate::RedLock::acquire`].
    pub fn acquire(&self) -> Result<Guard<L>, Error> {
        let guard = self.runtime.block_on(self.as_this_thread().acquire())?;
        Ok(self.guard(guard))
    }

    /// Takes the lock if it is free or the calling thread's: one round trip.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire).
    pub fn try_acquire(&self) -> Result<Option<Guard<L>>, Error> {
        let guard = self.runtime.block_on(self.as_this_thread().try_acquire())?;
        Ok(guard.map(|guard| self.guard(guard)))
    }

    /// Waits up to `wait` for the lock. Returns `None` if another holder still has it then, and no later.
    ///
    /// # Errors
    ///
    /// As [`crate::Lock::try_acquire_for`], [`crate::MultiLock::try_acquire_for`],
    /// [`crate::RedLock::try_acquire_for`].
    pub fn try_acquire_for(&self, wait: Duration) -> Result<Option<Guard<L>>, Error> {
        let guard = self.runtime.block_on(self.as_this_thread().try_acquire_for(wait))?;
        Ok(guard.map(|guard| self.guard(guard)))
    }

    /// Acquires, runs `work` with the guard, and releases with confirmation; releases also when `work` panics.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire); [`Error::Lost`] if the lock was lost before `work` had ended. Work in a thread
    /// cannot be stopped: it has run to its end, but not under the lock.
    pub fn run<T>(&self, work: impl FnOnce(&Guard<L>) -> T) -> Result<T, Error> {
        self.run_under(self.acquire()?, work)
    }

    /// [`run`](Self::run) for work that can fail: one `Result` for both, as in [`crate::Lock::try_run`].
    ///
    /// # Errors
    ///
    /// What `work` returns, after the lock was released; and all of [`run`](Self::run).
    pub fn try_run<T, E: From<Error>>(&self, work: impl FnOnce(&Guard<L>) -> Result<T, E>) -> Result<T, E> {
        self.run(work)?
    }

    /// [`try_run`](Self::try_run) that waits for the lock up to `wait`. Returns `None` if another holder still has it then: `work`
    /// was not begun.
    ///
    /// # Errors
    ///
    /// What `work` returns, after the lock was released; and all of [`try_acquire_for`](Self::try_acquire_for) and [`run`](Self::run).
    pub fn try_run_for<T, E: From<Error>>(
        &self,
        wait: Duration,
        work: impl FnOnce(&Guard<L>) -> Result<T, E>,
    ) -> Result<Option<T>, E> {
        match self.try_acquire_for(wait)? {
            Some(guard) => self.run_under(guard, work)?.map(Some),
            None => Ok(None),
        }
    }

    /// Runs `work` under what was granted, and gives that back.
    fn run_under<T>(&self, guard: Guard<L>, work: impl FnOnce(&Guard<L>) -> T) -> Result<T, Error> {
        let result = work(&guard);
        self.runtime.block_on(L::end_work(guard.inner))?;
        Ok(result)
    }

    fn guard(&self, inner: L::Guard) -> Guard<L> {
        Guard { inner, runtime: Arc::clone(&self.runtime) }
    }

    /// The lock taken by the calling thread, unless another owner is presented.
    fn as_this_thread(&self) -> L {
        self.inner.map(|lock| {
            if lock.has_owner() { lock.clone() } else { lock.with_owner(this_thread(&lock.context)) }
        })
    }
}

impl Lock {
    /// The lock's name, which is also its key on the server.
    pub fn name(&self) -> &str {
        self.inner.name()
    }

    /// The same lock taken as `owner` instead of as the calling thread.
    #[must_use]
    pub fn with_owner(&self, owner: Owner) -> Self {
        Self::new(self.inner.with_owner(owner), &self.runtime)
    }

    /// As [`crate::Lock::with_backoff`].
    #[must_use]
    pub fn with_backoff(&self, backoff: Backoff) -> Self {
        Self::new(self.inner.with_backoff(backoff), &self.runtime)
    }

    /// As [`crate::Lock::queue_length`].
    ///
    /// # Errors
    ///
    /// [`Error::Server`], [`Error::InvalidName`].
    pub fn queue_length(&self) -> Result<Option<u64>, Error> {
        self.runtime.block_on(self.inner.queue_length())
    }

    /// As [`crate::Lock::position`].
    ///
    /// # Errors
    ///
    /// [`Error::Server`], [`Error::InvalidName`].
    pub fn position(&self, owner: &Owner) -> Result<Option<u64>, Error> {
        self.runtime.block_on(self.inner.position(owner))
    }

    /// As [`crate::Lock::holder`].
    ///
    /// # Errors
    ///
    /// As [`crate::Lock::holder`].
    pub fn holder(&self) -> Result<Option<Holder>, Error> {
        self.runtime.block_on(self.inner.holder())
    }

    /// As [`crate::Lock::holders`].
    ///
    /// # Errors
    ///
    /// As [`crate::Lock::holder`].
    pub fn holders(&self) -> Result<Holders, Error> {
        self.runtime.block_on(self.inner.holders())
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

    /// Whether the calling thread holds the lock: Redisson's `isHeldByCurrentThread`. Holds of owners that were presented by
    /// [`with_owner`](Self::with_owner) are not the thread's.
    ///
    /// # Errors
    ///
    /// [`Error::Server`], [`Error::InvalidName`].
    pub fn is_held_by_current_thread(&self) -> Result<bool, Error> {
        self.is_held_by(&this_thread(&self.inner.context))
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
}

impl<L: AsyncLock> fmt::Debug for Lock<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// Proof of holding one hold of a lock, as [`crate::Guard`] is. Dropping it releases the hold in the background.
///
/// It may be sent to another thread and released there.
///
/// ```no_run
/// # fn example(locks: wheellock::blocking::LockManager) -> Result<(), wheellock::Error> {
/// let guard = locks.lock("orders:42").acquire()?;
/// if guard.is_valid() {
///     println!("held by {} for {:?} at least", guard.owner(), guard.valid_until().remaining());
/// }
/// guard.release()?; // or drop it
/// # Ok(())
/// # }
/// ```
#[must_use = "the lock is given back at once if its guard is not kept"]
pub struct Guard<L: AsyncLock = crate::Lock> {
    pub(super) inner: L::Guard,
    runtime: Arc<Served>,
}

impl<L: AsyncLock> Guard<L> {
    /// Until when the lock may be believed held, as far as is known now: see [`crate::Guard::valid_until`].
    pub fn valid_until(&self) -> BootInstant {
        L::valid_until(&self.inner)
    }

    /// Whether the lock may be believed held right now. Ask before every step that must not happen without it.
    pub fn is_valid(&self) -> bool {
        L::is_valid(&self.inner)
    }

    /// Blocks until the lock can no longer be believed held, and tells why; of a [`MultiLock`](super::MultiLock), until any
    /// member cannot, and which.
    pub fn lost(&self) -> L::Loss {
        self.runtime.block_on(L::lost(&self.inner))
    }

    /// Extends the lease to its full length from now on: see [`crate::Guard::renew`].
    ///
    /// # Errors
    ///
    /// As [`crate::Guard::renew`], [`crate::MultiGuard::renew`], [`crate::RedLockGuard::renew`].
    pub fn renew(&self) -> Result<(), Error> {
        self.runtime.block_on(L::renew(&self.inner))
    }

    /// Gives the hold back and waits for the server's word; of several members, for every server's, or a majority's.
    ///
    /// # Errors
    ///
    /// As [`crate::Guard::release`], [`crate::MultiGuard::release`], [`crate::RedLockGuard::release`].
    pub fn release(self) -> Result<Released, Error> {
        self.runtime.block_on(L::release(self.inner))
    }
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
}

impl<L: AsyncLock> fmt::Debug for Guard<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// The owner that the calling thread is in one manager.
pub(super) fn this_thread(context: &Context) -> Owner {
    context.owner(THREAD.with(|number| *number))
}

/// Threads are numbered from here, far above the owners that managers number from 1, and still within Java's `long`.
static NEXT_THREAD: AtomicU64 = AtomicU64::new(1 << 62);

thread_local! {
    static THREAD: u64 = NEXT_THREAD.fetch_add(1, Ordering::Relaxed);
}
