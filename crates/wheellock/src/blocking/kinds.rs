//! Other kinds of locks, for threads.
//!
//! This module has their constructors, and their methods beyond those of every lock.

use super::LockManager;
use super::lock::{Guard, Lock, this_thread};
use crate::lock::verbs::AsyncLock;
use crate::{Error, Fairness};

/// A read-write lock for threads, like [`crate::ReadWriteLock`]. Each side is a [`Lock`]. `W` is the asynchronous write side.
///
/// A thread that holds the write side may also take the read side, because it is the same owner. A thread that holds the read
/// side and requests the write side is refused with [`Error::Upgrade`].
///
/// ```no_run
/// # fn example(locks: wheellock::blocking::LockManager) -> Result<(), wheellock::Error> {
/// let prices = locks.read_write_lock("prices");
/// let writing = prices.write().acquire()?;
/// let reading = prices.read().acquire()?; // the same thread, so it may
/// writing.release()?;
/// reading.release()?;
/// # Ok(())
/// # }
/// ```
#[must_use = "this is only a handle: call `read().acquire()` or `write().acquire()` to take the lock"]
#[derive(Clone, Debug)]
pub struct ReadWriteLock<W = crate::Lock> {
    manager: LockManager,
    inner: crate::ReadWriteLock<W>,
}

impl<W: AsyncLock> ReadWriteLock<W> {
    /// Returns the lock's name.
    pub fn name(&self) -> &str {
        self.inner.name()
    }

    /// Works like [`crate::ReadWriteLock::with_fairness`].
    pub fn with_fairness(&self, fairness: Fairness) -> Self {
        Self { manager: self.manager.clone(), inner: self.inner.with_fairness(fairness) }
    }

    /// Returns the read side, which any number of readers may hold at once.
    pub fn read(&self) -> Lock {
        Lock::new(self.inner.read(), &self.manager.runtime)
    }

    /// Returns the write side, which a single writer may hold.
    pub fn write(&self) -> Lock<W> {
        Lock::new(self.inner.write(), &self.manager.runtime)
    }
}

/// A lock for threads with a fencing token for each grant, like [`crate::FencedLock`]. It has the methods of [`Lock`].
///
/// ```no_run
/// use wheellock::blocking::FencedLock;
///
/// # fn example(locks: wheellock::blocking::LockManager) -> Result<(), wheellock::Error> {
/// let ledger: FencedLock = locks.fenced_lock("ledger");
/// ledger.run(|guard| Ok::<_, wheellock::Error>(println!("with token {}", guard.token())))?;
/// println!("the last one was {:?}", ledger.token()?);
/// # Ok(())
/// # }
/// ```
pub type FencedLock = Lock<crate::FencedLock>;

/// One hold of a [`FencedLock`]. It has the methods of [`Guard`].
///
/// ```no_run
/// use wheellock::blocking::FencedGuard;
/// # fn write_to_the_ledger(_: &str, _: u64) {}
///
/// # fn example(locks: wheellock::blocking::LockManager) -> Result<(), wheellock::Error> {
/// let guard: FencedGuard = locks.fenced_lock("ledger").acquire()?;
/// write_to_the_ledger("a line", guard.token()); // which refuses smaller tokens
/// guard.release()?;
/// # Ok(())
/// # }
/// ```
pub type FencedGuard = Guard<crate::FencedLock>;

impl FencedLock {
    /// Works like [`Lock::is_held_by_current_thread`].
    ///
    /// # Errors
    ///
    /// [`Error::Server`], [`Error::InvalidName`].
    #[track_caller]
    pub fn is_held_by_current_thread(&self) -> Result<bool, Error> {
        let lock = self.inner.as_lock();
        self.runtime.block_on(lock.is_held_by(&this_thread(&lock.context)))
    }

    /// Works like [`crate::FencedLock::token`].
    ///
    /// # Errors
    ///
    /// [`Error::Server`], [`Error::InvalidName`].
    #[track_caller]
    pub fn token(&self) -> Result<Option<u64>, Error> {
        self.runtime.block_on(self.inner.token())
    }
}

impl FencedGuard {
    /// Works like [`crate::FencedGuard::token`].
    pub fn token(&self) -> u64 {
        self.inner.token()
    }
}

impl LockManager {
    /// Works like [`crate::LockManager::fair_lock`].
    pub fn fair_lock(&self, name: impl AsRef<str>) -> Lock {
        Lock::new(self.inner.fair_lock(name.as_ref()), &self.runtime)
    }

    /// Works like [`crate::LockManager::read_write_lock`].
    pub fn read_write_lock(&self, name: impl AsRef<str>) -> ReadWriteLock {
        ReadWriteLock { manager: self.clone(), inner: self.inner.read_write_lock(name.as_ref()) }
    }

    /// Works like [`crate::LockManager::fenced_lock`].
    pub fn fenced_lock(&self, name: impl AsRef<str>) -> FencedLock {
        Lock::new(self.inner.fenced_lock(name.as_ref()), &self.runtime)
    }

    /// Works like [`crate::LockManager::spin_lock`].
    pub fn spin_lock(&self, name: impl AsRef<str>) -> Lock {
        Lock::new(self.inner.spin_lock(name.as_ref()), &self.runtime)
    }

    /// Works like [`crate::LockManager::simple_lock`]. A thread that holds the lock and requests it again is refused with
    /// [`Error::NotReentrant`].
    pub fn simple_lock(&self, name: impl AsRef<str>) -> Lock {
        Lock::new(self.inner.simple_lock(name.as_ref()), &self.runtime)
    }

    // new-kind: constructor
}
