//! Several locks as one, and locks on several servers, for threads. Owns nothing but the waiting: see [`crate::MultiLock`]
//! and [`crate::RedLock`].

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::{Lock, LockManager, Served, THREAD};
use crate::{
    BootInstant, Error, Finding, Leftover, LostMember, LostReason, QuorumMember, Released,
    multi_lock as async_multi_lock,
};

/// Puts locks together into one that takes them all or none: see [`crate::multi_lock`]. As a lock's owner, a thread may
/// take it again.
///
/// # Errors
///
/// [`Error::NoMembers`], [`Error::DuplicateMember`], [`Error::NoBackgroundThread`].
pub fn multi_lock(members: impl IntoIterator<Item = Lock>) -> Result<MultiLock, Error> {
    let (members, served) = members.into_iter().map(|lock| (lock.inner, lock.runtime)).unzip();
    let members: Vec<_> = members;
    Ok(MultiLock { inner: async_multi_lock(members)?, runtime: Served::together(served)? })
}

/// Several locks that are taken together, all or none, as [`crate::MultiLock`] is.
#[derive(Clone)]
pub struct MultiLock {
    inner: crate::MultiLock,
    runtime: Arc<Served>,
}

impl MultiLock {
    /// The same locks taken with a fixed lease each, without watchdogs.
    #[must_use]
    pub fn with_lease(&self, lease: Duration) -> Self {
        Self { inner: self.inner.with_lease(lease), ..self.clone() }
    }

    /// Waits until all members are the calling thread's at the same time.
    ///
    /// # Errors
    ///
    /// As [`crate::MultiLock::acquire`].
    pub fn acquire(&self) -> Result<MultiGuard, Error> {
        let inner = self.runtime.block_on(self.as_this_thread().acquire())?;
        Ok(MultiGuard { inner, runtime: Arc::clone(&self.runtime) })
    }

    /// Takes all members if all are free or the calling thread's: the time of one round trip.
    ///
    /// # Errors
    ///
    /// As [`crate::MultiLock::acquire`].
    pub fn try_acquire(&self) -> Result<Option<MultiGuard>, Error> {
        let guard = self.runtime.block_on(self.as_this_thread().try_acquire())?;
        Ok(guard.map(|inner| MultiGuard { inner, runtime: Arc::clone(&self.runtime) }))
    }

    /// Waits up to `wait` for all members. Returns `None` if others still hold some then, and no later.
    ///
    /// # Errors
    ///
    /// As [`crate::MultiLock::try_acquire_for`].
    pub fn try_acquire_for(&self, wait: Duration) -> Result<Option<MultiGuard>, Error> {
        let guard = self.runtime.block_on(self.as_this_thread().try_acquire_for(wait))?;
        Ok(guard.map(|inner| MultiGuard { inner, runtime: Arc::clone(&self.runtime) }))
    }

    /// Acquires, runs `work` with the guard, and releases with confirmation; releases also when `work` panics.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire); [`Error::Lost`] if a member was lost before `work` had ended, which it did all the
    /// same.
    pub fn run<T>(&self, work: impl FnOnce(&MultiGuard) -> T) -> Result<T, Error> {
        let guard = self.acquire()?;
        let result = work(&guard);
        guard.inner.check()?;
        self.runtime.block_on(guard.inner.release_after_work())?;
        Ok(result)
    }

    fn as_this_thread(&self) -> crate::MultiLock {
        self.inner.map(as_this_thread)
    }
}

impl fmt::Debug for MultiLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// One hold of every member of a [`MultiLock`], as [`crate::MultiGuard`] is. Dropping it releases all of them in the
/// background.
pub struct MultiGuard {
    inner: crate::MultiGuard,
    runtime: Arc<Served>,
}

impl MultiGuard {
    /// As [`crate::MultiGuard::members`].
    pub fn members(&self) -> &[crate::Guard] {
        self.inner.members()
    }

    /// As [`crate::MultiGuard::valid_until`].
    pub fn valid_until(&self) -> BootInstant {
        self.inner.valid_until()
    }

    /// Whether all members may be believed held right now.
    pub fn is_valid(&self) -> bool {
        self.inner.is_valid()
    }

    /// Blocks until any member can no longer be believed held, and tells which.
    pub fn lost(&self) -> LostMember {
        self.runtime.block_on(self.inner.lost())
    }

    /// As [`crate::MultiGuard::renew`].
    ///
    /// # Errors
    ///
    /// As [`crate::MultiGuard::renew`].
    pub fn renew(&self) -> Result<(), Error> {
        self.runtime.block_on(self.inner.renew())
    }

    /// Gives all members back and waits for every server's word.
    ///
    /// # Errors
    ///
    /// As [`crate::MultiGuard::release`].
    pub fn release(self) -> Result<Released, Error> {
        self.runtime.block_on(self.inner.release())
    }
}

impl fmt::Debug for MultiGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// Independent servers of which a majority decides who holds a lock, as [`crate::RedLock`] is: read there when to use it.
#[derive(Clone)]
pub struct RedLock {
    inner: crate::RedLock,
    runtime: Arc<Served>,
}

impl RedLock {
    /// As [`crate::RedLock::new`].
    ///
    /// # Errors
    ///
    /// As [`crate::RedLock::new`]; [`Error::NoBackgroundThread`].
    pub fn new(managers: impl IntoIterator<Item = LockManager>) -> Result<Self, Error> {
        let (managers, served) = managers.into_iter().map(|manager| (manager.inner, manager.runtime)).unzip();
        let (managers, runtime): (Vec<_>, _) = (managers, Served::together(served)?);
        Ok(Self { inner: runtime.block_on(crate::RedLock::new(managers))?, runtime })
    }

    /// As [`crate::RedLock::connect`].
    ///
    /// # Errors
    ///
    /// As [`crate::RedLock::connect`]; [`Error::NoBackgroundThread`].
    pub fn connect(urls: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Self, Error> {
        let lazy = |url: &str| LockManager::builder(url).lazy_blocking();
        Self::new(urls.into_iter().map(|url| lazy(url.as_ref())).collect::<Result<Vec<_>, _>>()?)
    }

    /// A lock by name. No I/O. As with other locks, a thread may take it again.
    pub fn lock(&self, name: &str) -> QuorumLock {
        QuorumLock { inner: self.inner.lock(name), runtime: Arc::clone(&self.runtime) }
    }

    /// As [`crate::RedLock::shutdown`], also for threads that wait or hold a lock.
    pub fn shutdown(&self, within: Duration) -> Leftover {
        self.runtime.block_on(self.inner.shutdown(within))
    }

    /// How many servers have to grant.
    pub fn quorum(&self) -> usize {
        self.inner.quorum()
    }

    /// As [`crate::RedLock::diagnostics`].
    pub fn diagnostics(&self) -> Vec<Finding> {
        self.inner.diagnostics()
    }
}

impl fmt::Debug for RedLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// A lock of a [`RedLock`], by name, as [`crate::QuorumLock`] is.
#[derive(Clone)]
pub struct QuorumLock {
    inner: crate::QuorumLock,
    runtime: Arc<Served>,
}

impl QuorumLock {
    /// The lock's name, which is also its key on every server.
    pub fn name(&self) -> &str {
        self.inner.name()
    }

    /// The same lock taken with a fixed lease: no watchdog, it ends by itself after `lease` unless released before.
    #[must_use]
    pub fn with_lease(&self, lease: Duration) -> Self {
        Self { inner: self.inner.with_lease(lease), ..self.clone() }
    }

    /// Waits until a majority of the servers has granted the lock; at once if the calling thread holds it already.
    ///
    /// # Errors
    ///
    /// As [`crate::QuorumLock::acquire`].
    pub fn acquire(&self) -> Result<QuorumGuard, Error> {
        let inner = self.runtime.block_on(self.as_this_thread().acquire())?;
        Ok(QuorumGuard { inner, runtime: Arc::clone(&self.runtime) })
    }

    /// Takes the lock if a majority grants it now.
    ///
    /// # Errors
    ///
    /// As [`crate::QuorumLock::acquire`].
    pub fn try_acquire(&self) -> Result<Option<QuorumGuard>, Error> {
        let guard = self.runtime.block_on(self.as_this_thread().try_acquire())?;
        Ok(guard.map(|inner| QuorumGuard { inner, runtime: Arc::clone(&self.runtime) }))
    }

    /// Waits up to `wait` for the lock. Returns `None` if another holder still has it then, and no later.
    ///
    /// # Errors
    ///
    /// As [`crate::QuorumLock::try_acquire_for`].
    pub fn try_acquire_for(&self, wait: Duration) -> Result<Option<QuorumGuard>, Error> {
        let guard = self.runtime.block_on(self.as_this_thread().try_acquire_for(wait))?;
        Ok(guard.map(|inner| QuorumGuard { inner, runtime: Arc::clone(&self.runtime) }))
    }

    /// Acquires, runs `work` with the guard, and releases with confirmation; releases also when `work` panics.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire); [`Error::Lost`] if the quorum was lost before `work` had ended, which it did all the
    /// same.
    pub fn run<T>(&self, work: impl FnOnce(&QuorumGuard) -> T) -> Result<T, Error> {
        let guard = self.acquire()?;
        let result = work(&guard);
        guard.inner.check()?;
        self.runtime.block_on(guard.inner.release_after_work())?;
        Ok(result)
    }

    fn as_this_thread(&self) -> crate::QuorumLock {
        self.inner.map(as_this_thread)
    }
}

impl fmt::Debug for QuorumLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// One hold of a [`QuorumLock`], as [`crate::QuorumGuard`] is. Dropping it releases all members in the background.
pub struct QuorumGuard {
    inner: crate::QuorumGuard,
    runtime: Arc<Served>,
}

impl QuorumGuard {
    /// The lock's name.
    pub fn name(&self) -> &str {
        self.inner.name()
    }

    /// As [`crate::QuorumGuard::members`].
    pub fn members(&self) -> Vec<QuorumMember> {
        self.inner.members()
    }

    /// As [`crate::QuorumGuard::valid_until`].
    pub fn valid_until(&self) -> BootInstant {
        self.inner.valid_until()
    }

    /// Whether a majority may be believed held right now.
    pub fn is_valid(&self) -> bool {
        self.inner.is_valid()
    }

    /// Blocks until fewer than a majority can be believed held, and tells why.
    pub fn lost(&self) -> LostReason {
        self.runtime.block_on(self.inner.lost())
    }

    /// As [`crate::QuorumGuard::renew`].
    ///
    /// # Errors
    ///
    /// As [`crate::QuorumGuard::renew`].
    pub fn renew(&self) -> Result<(), Error> {
        self.runtime.block_on(self.inner.renew())
    }

    /// Gives all members back and waits for a majority's word.
    ///
    /// # Errors
    ///
    /// As [`crate::QuorumGuard::release`].
    pub fn release(self) -> Result<Released, Error> {
        self.runtime.block_on(self.inner.release())
    }
}

impl fmt::Debug for QuorumGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// The lock taken by the calling thread, unless another owner is presented.
fn as_this_thread(lock: &crate::Lock) -> crate::Lock {
    if lock.has_owner() {
        return lock.clone();
    }
    lock.with_owner(lock.context.owner(THREAD.with(|number| *number)))
}
