//! Several locks as one, and locks on several servers, for threads. Owns nothing but the waiting: see [`crate::MultiLock`]
//! and [`crate::RedLockManager`].

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::LockManager;
use super::lock::{Guard, Lock, this_thread};
use super::served::Served;
use crate::{Error, Finding, Health, Leftover, Owner, RedLockMember, multi_lock as async_multi_lock};

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

/// Several locks that are taken together, all or none, as [`crate::MultiLock`] is. Its verbs are those of every [`Lock`].
///
/// ```no_run
/// use wheellock::blocking::{MultiLock, multi_lock};
///
/// # fn example(locks: wheellock::blocking::LockManager) -> Result<(), wheellock::Error> {
/// let transfer: MultiLock = multi_lock([locks.lock("account:1"), locks.lock("account:2")])?;
/// transfer.run(|_guard| println!("nobody else moves money of either account"))?;
/// # Ok(())
/// # }
/// ```
pub type MultiLock = Lock<crate::MultiLock>;

/// One hold of every member of a [`MultiLock`], as [`crate::MultiGuard`] is. Dropping it releases all of them in the
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
    /// The members, as they were given.
    pub fn members(&self) -> Vec<Lock> {
        self.inner.members().iter().map(|lock| Lock::new(lock.clone(), &self.runtime)).collect()
    }

    /// As [`crate::MultiLock::is_locked`].
    ///
    /// # Errors
    ///
    /// As [`crate::MultiLock::is_locked`].
    pub fn is_locked(&self) -> Result<bool, Error> {
        self.runtime.block_on(self.inner.is_locked())
    }

    /// As [`crate::MultiLock::is_held_by`].
    ///
    /// # Errors
    ///
    /// As [`crate::MultiLock::is_held_by`].
    pub fn is_held_by(&self, owner: &Owner) -> Result<bool, Error> {
        self.runtime.block_on(self.inner.is_held_by(owner))
    }

    /// As [`crate::MultiLock::hold_count`].
    ///
    /// # Errors
    ///
    /// As [`crate::MultiLock::hold_count`].
    pub fn hold_count(&self, owner: &Owner) -> Result<u64, Error> {
        self.runtime.block_on(self.inner.hold_count(owner))
    }

    /// As [`crate::MultiLock::remaining_lease`].
    ///
    /// # Errors
    ///
    /// As [`crate::MultiLock::remaining_lease`].
    pub fn remaining_lease(&self) -> Result<Option<Duration>, Error> {
        self.runtime.block_on(self.inner.remaining_lease())
    }

    /// As [`crate::MultiLock::force_release`].
    ///
    /// # Errors
    ///
    /// As [`crate::MultiLock::force_release`].
    pub fn force_release(&self) -> Result<bool, Error> {
        self.runtime.block_on(self.inner.force_release())
    }

    /// Whether the calling thread holds every member, also if they belong to several managers, in each of which it is another
    /// owner.
    ///
    /// # Errors
    ///
    /// As [`crate::MultiLock::is_held_by`].
    pub fn is_held_by_current_thread(&self) -> Result<bool, Error> {
        self.runtime.block_on(self.inner.is_each_held_by(|lock| this_thread(&lock.context)))
    }
}

impl MultiGuard {
    /// As [`crate::MultiGuard::members`].
    pub fn members(&self) -> &[crate::Guard] {
        self.inner.members()
    }
}

/// Independent servers of which a majority decides who holds a lock, as [`crate::RedLockManager`] is: read there when to use it.
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
    /// As [`crate::RedLockManager::new`].
    ///
    /// # Errors
    ///
    /// As [`crate::RedLockManager::new`]; [`Error::NoBackgroundThread`].
    pub fn new(managers: impl IntoIterator<Item = LockManager>) -> Result<Self, Error> {
        let (managers, served) = managers.into_iter().map(|manager| (manager.inner, manager.runtime)).unzip();
        let (managers, runtime): (Vec<_>, _) = (managers, Served::together(served)?);
        Ok(Self { inner: runtime.block_on(crate::RedLockManager::new(managers))?, runtime })
    }

    /// As [`crate::RedLockManager::connect`].
    ///
    /// # Errors
    ///
    /// As [`crate::RedLockManager::connect`]; [`Error::NoBackgroundThread`].
    pub fn connect(urls: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Self, Error> {
        let lazy = |url: &str| LockManager::builder(url).lazy_blocking();
        Self::new(urls.into_iter().map(|url| lazy(url.as_ref())).collect::<Result<Vec<_>, _>>()?)
    }

    /// A lock by name. No I/O. As with other locks, a thread may take it again.
    pub fn lock(&self, name: &str) -> RedLock {
        Lock::new(self.inner.lock(name), &self.runtime)
    }

    /// As [`crate::RedLockManager::simple_lock`]. No I/O. A thread that holds it and asks again is told
    /// [`Error::NoQuorum`], with [`Error::NotReentrant`] of each server.
    pub fn simple_lock(&self, name: &str) -> RedLock {
        Lock::new(self.inner.simple_lock(name), &self.runtime)
    }

    /// As [`crate::RedLockManager::shutdown`], also for threads that wait or hold a lock.
    pub fn shutdown(&self, within: Duration) -> Leftover {
        self.runtime.block_on(self.inner.shutdown(within))
    }

    /// How many servers have to grant.
    pub fn quorum(&self) -> usize {
        self.inner.quorum()
    }

    /// As [`crate::RedLockManager::health`].
    pub fn health(&self) -> Health {
        self.inner.health()
    }

    /// As [`crate::RedLockManager::is_healthy`].
    pub fn is_healthy(&self) -> bool {
        self.inner.is_healthy()
    }

    /// As [`crate::RedLockManager::diagnostics`].
    pub fn diagnostics(&self) -> Vec<Finding> {
        self.inner.diagnostics()
    }
}

impl fmt::Debug for RedLockManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// A lock of a [`RedLockManager`], by name, as [`crate::RedLock`] is. Its verbs are those of every [`Lock`].
///
/// ```no_run
/// use wheellock::blocking::RedLock;
///
/// # fn example(servers: wheellock::blocking::RedLockManager) -> Result<(), wheellock::Error> {
/// let orders: RedLock = servers.lock("orders:42");
/// if let Some(guard) = orders.try_acquire()? {
///     guard.release()?;
/// }
/// # Ok(())
/// # }
/// ```
pub type RedLock = Lock<crate::RedLock>;

/// One hold of a [`RedLock`], as [`crate::RedLockGuard`] is. Dropping it releases all members in the background.
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
    /// The lock's name, which is also its key on every server.
    pub fn name(&self) -> &str {
        self.inner.name()
    }
}

impl RedLockGuard {
    /// The lock's name.
    pub fn name(&self) -> &str {
        self.inner.name()
    }

    /// As [`crate::RedLockGuard::members`].
    pub fn members(&self) -> Vec<RedLockMember> {
        self.inner.members()
    }
}
