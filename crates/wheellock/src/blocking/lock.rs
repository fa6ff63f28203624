//! Locks and guards for threads.
//!
//! This module has each method once, for all kinds of locks, and the owners of threads.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::served::Served;
use crate::base::owner::FIRST_THREAD;
use crate::lock::verbs::AsyncLock;
use crate::request::context::Context;
use crate::{
    AskedHolders, Attempt, Backoff, BootInstant, Error, Holder, Holders, Owner, ReleaseRequest, Ticket,
    Waiter,
};

/// A reentrant lock by name for threads, like [`crate::Lock`].
///
/// Locks of other types have the same methods. `L` is the asynchronous lock behind this one, as in
/// [`MultiLock`](super::MultiLock), [`RedLock`](super::RedLock), [`FencedLock`](super::FencedLock) and
/// [`PermitSemaphore`](super::PermitSemaphore).
///
/// ```no_run
/// use std::time::Duration;
///
/// # fn example(locks: wheellock::blocking::LockManager) -> Result<(), wheellock::Error> {
/// let orders = locks.lock("orders:42");
/// let outer = orders.acquire()?;
/// let inner = orders.acquire()?; // at once: the thread holds it already
/// drop((inner, outer));
/// let guard = orders.try_acquire_for(Duration::from_secs(5))?.or_held()?; // an error if it is held after 5 s
/// guard.release()?; // an error if the lock was lost meanwhile
/// # Ok(())
/// # }
/// ```
#[must_use = "this is only a handle: call `acquire()` to take the lock"]
#[derive(Clone)]
pub struct Lock<L = crate::Lock> {
    pub(super) inner: L,
    pub(super) runtime: Arc<Served>,
}

impl<L: AsyncLock> Lock<L> {
    pub(super) fn new(inner: L, runtime: &Arc<Served>) -> Self {
        Self { inner, runtime: Arc::clone(runtime) }
    }

    /// Returns the same lock with a fixed lease. The watchdog does not renew it, so the hold ends `lease` after the grant unless
    /// it is released before. In a [`MultiLock`](super::MultiLock), each member has this lease. In a
    /// [`PermitSemaphore`](super::PermitSemaphore), each permit has it.
    pub fn with_lease(&self, lease: Duration) -> Self {
        Self::new(self.inner.with_lease(lease), &self.runtime)
    }

    /// Returns the same lock with a maximum time for each hold. See [`crate::Lock::with_max_hold`]. A thread has one maximum for all
    /// its holds of a lock.
    pub fn with_max_hold(&self, max: Duration) -> Self {
        Self::new(self.inner.with_max_hold(max), &self.runtime)
    }

    /// Waits until the lock is free and takes it. Returns at once if the calling thread holds the lock already.
    ///
    /// A [`MultiLock`](super::MultiLock) is free when all its members are free at the same time. A [`RedLock`](super::RedLock) is
    /// free when a majority of the servers grants it. A [`PermitSemaphore`](super::PermitSemaphore) is free when it has a free
    /// permit. A thread that has a permit gets a second one.
    ///
    /// # Errors
    ///
    /// Returns the errors of the asynchronous lock: [`crate::Lock::acquire`], [`crate::MultiLock::acquire`],
    /// [`crate::RedLock::acquire`], [`crate::FencedLock::acquire`] or [`crate::PermitSemaphore::acquire`].
    #[track_caller]
    pub fn acquire(&self) -> Result<Guard<L>, Error> {
        let guard = self.runtime.block_on(self.for_this_thread().acquire())?;
        Ok(self.guard(guard))
    }

    /// Takes the lock if it is free or the calling thread holds it. Costs one round trip.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`acquire`](Self::acquire).
    #[track_caller]
    pub fn try_acquire(&self) -> Result<Attempt<Guard<L>>, Error> {
        let guard = self.runtime.block_on(self.for_this_thread().try_acquire())?;
        Ok(guard.map(|guard| self.guard(guard)))
    }

    /// Waits for the lock for at most `wait`. Returns [`Attempt::Held`] at the end of that time, and no later, if another holder
    /// still has the lock.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`crate::Lock::try_acquire_for`], [`crate::MultiLock::try_acquire_for`] or
    /// [`crate::RedLock::try_acquire_for`].
    #[track_caller]
    pub fn try_acquire_for(&self, wait: Duration) -> Result<Attempt<Guard<L>>, Error> {
        let guard = self.runtime.block_on(self.for_this_thread().try_acquire_for(wait))?;
        Ok(guard.map(|guard| self.guard(guard)))
    }

    /// Acquires the lock, runs `work` with the guard, and releases with confirmation. Waits without a limit. Releases the lock
    /// also if `work` panics.
    ///
    /// # Errors
    ///
    /// Returns the error of `work`, after the lock was released. Returns the errors of [`acquire`](Self::acquire), and
    /// [`Error::Lost`] if the lock was lost before `work` ended. Work in a thread cannot be stopped. After [`Error::Lost`] it has
    /// run to its end, but not under the lock.
    #[track_caller]
    pub fn run<T, E: From<Error>>(&self, work: impl FnOnce(&Guard<L>) -> Result<T, E>) -> Result<T, E> {
        self.run_under(self.acquire()?, work)
    }

    /// Works like [`run`](Self::run), and waits for the lock for at most `wait`. If another holder still has it at the end of that
    /// time, `work` does not start.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`run`](Self::run) and [`try_acquire_for`](Self::try_acquire_for).
    #[track_caller]
    pub fn run_for<T, E: From<Error>>(
        &self,
        wait: Duration,
        work: impl FnOnce(&Guard<L>) -> Result<T, E>,
    ) -> Result<Attempt<T>, E> {
        self.run_if_granted(self.try_acquire_for(wait)?, work)
    }

    /// Works like [`run`](Self::run), and does not wait. If another holder has the lock, `work` does not start.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`run`](Self::run).
    #[track_caller]
    pub fn try_run<T, E: From<Error>>(
        &self,
        work: impl FnOnce(&Guard<L>) -> Result<T, E>,
    ) -> Result<Attempt<T>, E> {
        self.run_if_granted(self.try_acquire()?, work)
    }

    fn run_if_granted<T, E: From<Error>>(
        &self,
        attempt: Attempt<Guard<L>>,
        work: impl FnOnce(&Guard<L>) -> Result<T, E>,
    ) -> Result<Attempt<T>, E> {
        match attempt {
            Attempt::Acquired(guard) => self.run_under(guard, work).map(Attempt::Acquired),
            Attempt::Held { lock, lease_left } => Ok(Attempt::Held { lock, lease_left }),
        }
    }

    /// Runs `work` under `guard`, and releases the guard.
    fn run_under<T, E: From<Error>>(
        &self,
        guard: Guard<L>,
        work: impl FnOnce(&Guard<L>) -> Result<T, E>,
    ) -> Result<T, E> {
        let result = work(&guard);
        L::check(&guard.inner)?;
        self.runtime.block_on(L::release_after_work(guard.inner))?;
        result
    }

    pub(super) fn guard(&self, inner: L::Guard) -> Guard<L> {
        Guard::new(inner, &self.runtime)
    }

    /// Returns the lock with the calling thread as its owner, unless it has an owner already.
    fn for_this_thread(&self) -> L {
        self.inner.with_default_owner(THREAD.with(|number| *number))
    }
}

impl Lock {
    /// Returns the lock's name, which is also its key on the server.
    pub fn name(&self) -> &str {
        self.inner.name()
    }

    /// Returns the same lock with `owner` as its owner instead of the calling thread.
    pub fn with_owner(&self, owner: Owner) -> Self {
        Self::new(self.inner.with_owner(owner), &self.runtime)
    }

    /// Works like [`crate::Lock::with_min_hold`]. The thread itself cannot take the lock again before the minimum is over.
    pub fn with_min_hold(&self, min: Duration) -> Self {
        Self::new(self.inner.with_min_hold(min), &self.runtime)
    }

    /// Works like [`crate::Lock::with_backoff`].
    pub fn with_backoff(&self, backoff: Backoff) -> Self {
        Self::new(self.inner.with_backoff(backoff), &self.runtime)
    }

    /// Works like [`crate::Lock::queue_length`].
    ///
    /// # Errors
    ///
    /// [`Error::Server`], [`Error::InvalidName`].
    #[track_caller]
    pub fn queue_length(&self) -> Result<Option<u64>, Error> {
        self.runtime.block_on(self.inner.queue_length())
    }

    /// Works like [`crate::Lock::waiters`].
    ///
    /// # Errors
    ///
    /// [`Error::Server`], [`Error::InvalidName`].
    #[track_caller]
    pub fn waiters(&self) -> Result<Option<Vec<Waiter>>, Error> {
        self.runtime.block_on(self.inner.waiters())
    }

    /// Works like [`crate::Lock::position`].
    ///
    /// # Errors
    ///
    /// [`Error::Server`], [`Error::InvalidName`].
    #[track_caller]
    pub fn position(&self, owner: &Owner) -> Result<Option<u64>, Error> {
        self.runtime.block_on(self.inner.position(owner))
    }

    /// Works like [`crate::Lock::holder`].
    ///
    /// # Errors
    ///
    /// Returns the errors of [`crate::Lock::holder`].
    #[track_caller]
    pub fn holder(&self) -> Result<Option<Holder>, Error> {
        self.runtime.block_on(self.inner.holder())
    }

    /// Works like [`crate::Lock::holders`].
    ///
    /// # Errors
    ///
    /// Returns the errors of [`crate::Lock::holder`].
    #[track_caller]
    pub fn holders(&self) -> Result<Holders, Error> {
        self.runtime.block_on(self.inner.holders())
    }

    /// Works like [`crate::Lock::ask_to_release`].
    ///
    /// # Errors
    ///
    /// Returns the errors of [`crate::Lock::ask_to_release`].
    #[track_caller]
    pub fn ask_to_release(&self, reason: impl AsRef<str>) -> Result<AskedHolders, Error> {
        self.runtime.block_on(self.inner.ask_to_release(reason))
    }

    /// Works like [`crate::Lock::is_locked`].
    ///
    /// # Errors
    ///
    /// [`Error::Server`], [`Error::InvalidName`].
    #[track_caller]
    pub fn is_locked(&self) -> Result<bool, Error> {
        self.runtime.block_on(self.inner.is_locked())
    }

    /// Works like [`crate::Lock::hold_count`].
    ///
    /// # Errors
    ///
    /// [`Error::Server`], [`Error::InvalidName`].
    #[track_caller]
    pub fn hold_count(&self, owner: &Owner) -> Result<u64, Error> {
        self.runtime.block_on(self.inner.hold_count(owner))
    }

    /// Works like [`crate::Lock::is_held_by`].
    ///
    /// # Errors
    ///
    /// [`Error::Server`], [`Error::InvalidName`].
    #[track_caller]
    pub fn is_held_by(&self, owner: &Owner) -> Result<bool, Error> {
        self.runtime.block_on(self.inner.is_held_by(owner))
    }

    /// Returns true if the calling thread holds the lock, like Redisson's `isHeldByCurrentThread`. A hold of an owner that
    /// [`with_owner`](Self::with_owner) presented is not the thread's hold.
    ///
    /// # Errors
    ///
    /// [`Error::Server`], [`Error::InvalidName`].
    pub fn is_held_by_current_thread(&self) -> Result<bool, Error> {
        self.is_held_by(&this_thread(&self.inner.context))
    }

    /// Works like [`crate::Lock::remaining_lease`].
    ///
    /// # Errors
    ///
    /// [`Error::Server`], [`Error::InvalidName`].
    #[track_caller]
    pub fn remaining_lease(&self) -> Result<Option<Duration>, Error> {
        self.runtime.block_on(self.inner.remaining_lease())
    }

    /// Works like [`crate::Lock::force_release`].
    ///
    /// # Errors
    ///
    /// [`Error::Server`], [`Error::InvalidName`].
    #[track_caller]
    pub fn force_release(&self) -> Result<bool, Error> {
        self.runtime.block_on(self.inner.force_release())
    }
}

impl<L: AsyncLock> fmt::Debug for Lock<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// Proof of one hold of a lock, like [`crate::Guard`]. Dropping the guard releases the hold in the background.
///
/// A guard may be sent to another thread and released there.
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
    pub(super) fn new(inner: L::Guard, runtime: &Arc<Served>) -> Self {
        Self { inner, runtime: Arc::clone(runtime) }
    }

    /// Returns the instant until which the lock may be believed held, as far as is known now. See [`crate::Guard::valid_until`].
    pub fn valid_until(&self) -> BootInstant {
        L::valid_until(&self.inner)
    }

    /// Returns true if the lock may be believed held right now. Call this before every step that must not happen without the
    /// lock.
    pub fn is_valid(&self) -> bool {
        L::is_valid(&self.inner)
    }

    /// Returns true if less than a third of the lease is left, or the lock is lost. See [`crate::Guard::is_endangered`].
    pub fn is_endangered(&self) -> bool {
        L::is_endangered(&self.inner)
    }

    /// Blocks until the lock can no longer be believed held, and returns the reason. For a [`MultiLock`](super::MultiLock),
    /// blocks until a member can no longer be believed held, and returns that member and the reason.
    #[track_caller]
    pub fn lost(&self) -> L::Loss {
        self.runtime.block_on(L::lost(&self.inner))
    }

    /// Extends the lease to its full length from now on. See [`crate::Guard::renew`].
    ///
    /// # Errors
    ///
    /// Returns the errors of [`crate::Guard::renew`], [`crate::MultiGuard::renew`] or [`crate::RedLockGuard::renew`].
    #[track_caller]
    pub fn renew(&self) -> Result<(), Error> {
        self.runtime.block_on(L::renew(&self.inner))
    }

    /// Releases the hold and waits for the server's reply. With several members, waits for the reply of every server, or of a
    /// majority.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`crate::Guard::release`], [`crate::MultiGuard::release`] or [`crate::RedLockGuard::release`].
    #[track_caller]
    pub fn release(self) -> Result<(), Error> {
        self.runtime.block_on(L::release(self.inner))
    }
}

impl Guard {
    /// Returns the lock's name.
    pub fn name(&self) -> &str {
        self.inner.name()
    }

    /// Returns the owner of the hold. This is the thread that acquired the lock, unless it presented another owner.
    pub fn owner(&self) -> Owner {
        self.inner.owner()
    }

    /// Blocks until a caller asks this holder to release the lock, and returns the request. See
    /// [`crate::Guard::release_requested`]. Let a thread of its own wait for it.
    #[track_caller]
    pub fn release_requested(&self) -> ReleaseRequest {
        self.runtime.block_on(self.inner.release_requested())
    }

    /// Renews the lease, and turns this guard into a ticket for another process. See [`crate::Guard::into_ticket`].
    ///
    /// # Errors
    ///
    /// Returns the errors of [`crate::Guard::into_ticket`].
    #[track_caller]
    pub fn into_ticket(self) -> Result<Ticket, Error> {
        self.runtime.block_on(self.inner.into_ticket())
    }
}

impl<L: AsyncLock> fmt::Debug for Guard<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// Returns the owner that represents the calling thread in one manager.
pub(super) fn this_thread(context: &Context) -> Owner {
    context.owner(THREAD.with(|number| *number))
}

static NEXT_THREAD: AtomicU64 = AtomicU64::new(FIRST_THREAD);

thread_local! {
    static THREAD: u64 = NEXT_THREAD.fetch_add(1, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::owner::SPENT;

    #[test]
    fn no_thread_is_spent_owner() {
        let other = std::thread::spawn(|| THREAD.with(|number| *number)).join().unwrap();
        assert!(THREAD.with(|number| *number) < SPENT && other < SPENT);
    }
}
