//! Sets of locks, and locks on several servers, for threads.
//!
//! This module adds only the waiting. See [`crate::MultiLock`] and [`crate::RedLockManager`].

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::LockManager;
use super::lock::{Guard, Lock, this_thread};
use super::served::Served;
use crate::{Error, Finding, Health, Leftover, Owner, RedLockMember, multi_lock as async_multi_lock};

/// Combines locks into one lock that takes all of them or none. See [`crate::multi_lock`]. A thread may take the lock again,
/// because a thread is an owner.
///
/// # Errors
///
/// Returns [`Error::NoMembers`], [`Error::DuplicateMember`] or [`Error::NoBackgroundThread`].
pub fn multi_lock(members: impl IntoIterator<Item = Lock>) -> Result<MultiLock, Error> {
    let (members, served) = members.into_iter().map(|lock| (lock.inner, lock.runtime)).unzip();
    let members: Vec<_> = members;
    Ok(MultiLock { inner: async_multi_lock(members)?, runtime: Served::of_members(served)? })
}

/// Several locks that are taken together, all or none, like [`crate::MultiLock`]. It has the methods of every [`Lock`].
///
/// ```no_run
/// use wheellock::blocking::{MultiLock, multi_lock};
///
/// # fn example(locks: wheellock::blocking::LockManager) -> Result<(), wheellock::Error> {
/// let transfer: MultiLock = multi_lock([locks.lock("account:1"), locks.lock("account:2")])?;
/// let guard = transfer.acquire()?;
/// // ... no other holder moves money of either account ...
/// guard.release()?;
/// # Ok(())
/// # }
/// ```
pub type MultiLock = Lock<crate::MultiLock>;

/// One hold of every member of a [`MultiLock`], like [`crate::MultiGuard`]. Dropping the guard releases all of them in the
/// background.
///
/// ```no_run
/// use wheellock::blocking::{MultiGuard, multi_lock};
///
/// # fn example(locks: wheellock::blocking::LockManager) -> Result<(), wheellock::Error> {
/// let guard: MultiGuard = multi_lock([locks.lock("account:1"), locks.lock("account:2")])?.acquire()?;
/// for member in guard.members() {
///     println!("{} until {:?}", member.name(), member.valid_until());
/// }
/// guard.release()?;
/// # Ok(())
/// # }
/// ```
pub type MultiGuard = Guard<crate::MultiLock>;

impl MultiLock {
    /// Returns the members, in the order in which they were passed.
    pub fn members(&self) -> Vec<Lock> {
        self.inner.members().iter().map(|lock| Lock::new(lock.clone(), &self.runtime)).collect()
    }

    /// Works like [`crate::MultiLock::is_locked`].
    ///
    /// # Errors
    ///
    /// Returns the errors of [`crate::MultiLock::is_locked`].
    #[track_caller]
    pub fn is_locked(&self) -> Result<bool, Error> {
        self.runtime.block_on(self.inner.is_locked())
    }

    /// Works like [`crate::MultiLock::is_held_by`].
    ///
    /// # Errors
    ///
    /// Returns the errors of [`crate::MultiLock::is_held_by`].
    #[track_caller]
    pub fn is_held_by(&self, owner: &Owner) -> Result<bool, Error> {
        self.runtime.block_on(self.inner.is_held_by(owner))
    }

    /// Works like [`crate::MultiLock::hold_count`].
    ///
    /// # Errors
    ///
    /// Returns the errors of [`crate::MultiLock::hold_count`].
    #[track_caller]
    pub fn hold_count(&self, owner: &Owner) -> Result<u64, Error> {
        self.runtime.block_on(self.inner.hold_count(owner))
    }

    /// Works like [`crate::MultiLock::remaining_lease`].
    ///
    /// # Errors
    ///
    /// Returns the errors of [`crate::MultiLock::remaining_lease`].
    #[track_caller]
    pub fn remaining_lease(&self) -> Result<Option<Duration>, Error> {
        self.runtime.block_on(self.inner.remaining_lease())
    }

    /// Works like [`crate::MultiLock::force_release`].
    ///
    /// # Errors
    ///
    /// Returns the errors of [`crate::MultiLock::force_release`].
    #[track_caller]
    pub fn force_release(&self) -> Result<bool, Error> {
        self.runtime.block_on(self.inner.force_release())
    }

    /// Returns true if the calling thread holds every member. The members may belong to several managers, in each of which the
    /// thread is a different owner.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`crate::MultiLock::is_held_by`].
    #[track_caller]
    pub fn is_held_by_current_thread(&self) -> Result<bool, Error> {
        self.runtime.block_on(self.inner.is_each_held_by(|lock| this_thread(&lock.context)))
    }
}

impl MultiGuard {
    /// Works like [`crate::MultiGuard::members`].
    pub fn members(&self) -> &[crate::Guard] {
        self.inner.members()
    }
}

/// Independent servers that grant locks by majority, like [`crate::RedLockManager`]. Its page says when to use it.
///
/// ```no_run
/// use wheellock::blocking::RedLockManager;
///
/// # fn example() -> Result<(), wheellock::Error> {
/// let servers = RedLockManager::connect(["redis://a", "redis://b", "redis://c"])?;
/// assert_eq!(servers.quorum(), 2);
/// let guard = servers.lock("orders:42").acquire()?;
/// guard.release()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct RedLockManager {
    inner: crate::RedLockManager,
    runtime: Arc<Served>,
}

impl RedLockManager {
    /// Works like [`crate::RedLockManager::new`].
    ///
    /// # Errors
    ///
    /// Returns the errors of [`crate::RedLockManager::new`], and [`Error::NoBackgroundThread`].
    #[track_caller]
    pub fn new(managers: impl IntoIterator<Item = LockManager>) -> Result<Self, Error> {
        let (managers, served) = managers.into_iter().map(|manager| (manager.inner, manager.runtime)).unzip();
        let (managers, runtime): (Vec<_>, _) = (managers, Served::of_members(served)?);
        Ok(Self { inner: runtime.block_on(crate::RedLockManager::new(managers))?, runtime })
    }

    /// Works like [`crate::RedLockManager::connect`].
    ///
    /// # Errors
    ///
    /// Returns the errors of [`crate::RedLockManager::connect`], and [`Error::NoBackgroundThread`].
    #[track_caller]
    pub fn connect(urls: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Self, Error> {
        let lazy = |url: &str| LockManager::builder(url).lazy_blocking();
        Self::new(urls.into_iter().map(|url| lazy(url.as_ref())).collect::<Result<Vec<_>, _>>()?)
    }

    /// Returns a lock by name. No I/O. A thread may take it again, as with other locks.
    pub fn lock(&self, name: impl AsRef<str>) -> RedLock {
        Lock::new(self.inner.lock(name.as_ref()), &self.runtime)
    }

    /// Works like [`crate::RedLockManager::simple_lock`]. No I/O. A thread that holds the lock and requests it again gets
    /// [`Error::NoQuorum`], with [`Error::NotReentrant`] from each server.
    pub fn simple_lock(&self, name: impl AsRef<str>) -> RedLock {
        Lock::new(self.inner.simple_lock(name.as_ref()), &self.runtime)
    }

    /// Works like [`crate::RedLockManager::shutdown`], also for threads that wait for a lock or hold one.
    #[track_caller]
    pub fn shutdown(&self, within: Duration) -> Leftover {
        self.runtime.block_on(self.inner.shutdown(within))
    }

    /// Returns the number of servers that must grant a lock.
    pub fn quorum(&self) -> usize {
        self.inner.quorum()
    }

    /// Works like [`crate::RedLockManager::health`].
    pub fn health(&self) -> Health {
        self.inner.health()
    }

    /// Works like [`crate::RedLockManager::is_healthy`].
    pub fn is_healthy(&self) -> bool {
        self.inner.is_healthy()
    }

    /// Works like [`crate::RedLockManager::diagnostics`].
    pub fn diagnostics(&self) -> Vec<Finding> {
        self.inner.diagnostics()
    }
}

impl fmt::Debug for RedLockManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// A lock of a [`RedLockManager`], by name, like [`crate::RedLock`]. It has the methods of every [`Lock`].
///
/// ```no_run
/// use wheellock::blocking::RedLock;
///
/// # fn example(servers: wheellock::blocking::RedLockManager) -> Result<(), wheellock::Error> {
/// let orders: RedLock = servers.lock("orders:42");
/// let guard = orders.try_acquire()?.or_held()?;
/// guard.release()?;
/// # Ok(())
/// # }
/// ```
pub type RedLock = Lock<crate::RedLock>;

/// One hold of a [`RedLock`], like [`crate::RedLockGuard`]. Dropping the guard releases all members in the background.
///
/// ```no_run
/// use wheellock::blocking::RedLockGuard;
///
/// # fn example(servers: wheellock::blocking::RedLockManager) -> Result<(), wheellock::Error> {
/// let guard: RedLockGuard = servers.lock("orders:42").acquire()?;
/// println!("{:?}", guard.members()); // what became of the lock on each server
/// guard.release()?;
/// # Ok(())
/// # }
/// ```
pub type RedLockGuard = Guard<crate::RedLock>;

impl RedLock {
    /// Returns the lock's name, which is also its key on every server.
    pub fn name(&self) -> &str {
        self.inner.name()
    }
}

impl RedLockGuard {
    /// Returns the lock's name.
    pub fn name(&self) -> &str {
        self.inner.name()
    }

    /// Works like [`crate::RedLockGuard::members`].
    pub fn members(&self) -> Vec<RedLockMember> {
        self.inner.members()
    }
}
