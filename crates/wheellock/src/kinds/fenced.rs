//! A fenced lock by name: every grant has a number greater than all before.

use std::fmt;
use std::ops::Deref;
use std::time::Duration;

use crate::base::error::Error;
use crate::base::owner::Owner;
use crate::lock::Lock;
use crate::request::guard::{Guard, Released};
use crate::wire;

/// A lock whose every grant has a fencing token, shared by all who use its name: tasks, processes, and Redisson's
/// `RFencedLock` in Java. On the server it is a [`Lock`] beside a counter, `redisson_lock_token:{name}`.
///
/// No lease keeps a holder that was paused, or whose clock runs slow, from acting after its lock has passed on. What it acts
/// upon can: it remembers the greatest token it has seen and refuses what comes with a smaller one. How to do that is on the
/// page *Fencing tokens* of the guide.
///
/// ```no_run
/// # async fn write_to_the_ledger(_: &str, _: u64) {}
///
/// # async fn example(locks: wheellock::LockManager) -> Result<(), wheellock::Error> {
/// let guard = locks.fenced_lock("ledger").acquire().await?;
/// write_to_the_ledger("a line", guard.token()).await; // which refuses smaller tokens
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct FencedLock {
    lock: Lock,
}

impl FencedLock {
    pub(crate) fn new(lock: Lock) -> Self {
        Self { lock }
    }

    /// As [`Lock::with_lease`].
    #[must_use]
    pub fn with_lease(&self, lease: Duration) -> Self {
        Self::new(self.lock.with_lease(lease))
    }

    /// As [`Lock::with_owner`]. Who holds the lock already gets the same token again.
    #[must_use]
    pub fn with_owner(&self, owner: Owner) -> Self {
        Self::new(self.lock.with_owner(owner))
    }

    /// The same lock for those who do not look at tokens: for queries, and as a member of a
    /// [`multi_lock`](crate::multi_lock). Its grants raise the token all the same.
    pub fn as_lock(&self) -> &Lock {
        &self.lock
    }

    /// As [`Lock::acquire`].
    ///
    /// # Cancel safety
    ///
    /// As [`Lock::acquire`].
    ///
    /// # Errors
    ///
    /// As [`Lock::acquire`]; [`Error::OtherData`] also if what is under the token's name is no number.
    pub async fn acquire(&self) -> Result<FencedGuard, Error> {
        Ok(FencedGuard { guard: self.lock.acquire().await? })
    }

    /// As [`Lock::try_acquire`].
    ///
    /// # Cancel safety
    ///
    /// As [`Lock::acquire`].
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire).
    pub async fn try_acquire(&self) -> Result<Option<FencedGuard>, Error> {
        Ok(self.lock.try_acquire().await?.map(|guard| FencedGuard { guard }))
    }

    /// As [`Lock::try_acquire_for`].
    ///
    /// # Cancel safety
    ///
    /// As [`Lock::acquire`].
    ///
    /// # Errors
    ///
    /// As [`Lock::try_acquire_for`] and [`acquire`](Self::acquire).
    pub async fn try_acquire_for(&self, wait: Duration) -> Result<Option<FencedGuard>, Error> {
        Ok(self.lock.try_acquire_for(wait).await?.map(|guard| FencedGuard { guard }))
    }

    /// As [`Lock::run`], with a guard that has a token.
    ///
    /// # Cancel safety
    ///
    /// As [`Lock::run`].
    ///
    /// # Errors
    ///
    /// As [`Lock::run`].
    pub async fn run<T>(&self, work: impl AsyncFnOnce(&FencedGuard) -> T) -> Result<T, Error> {
        Self::run_under(self.acquire().await?, work).await
    }

    /// [`run`](Self::run) for work that can fail, as [`Lock::try_run`].
    ///
    /// # Cancel safety
    ///
    /// As [`run`](Self::run).
    ///
    /// # Errors
    ///
    /// What `work` returns, and all of [`run`](Self::run).
    pub async fn try_run<T, E: From<Error>>(
        &self,
        work: impl AsyncFnOnce(&FencedGuard) -> Result<T, E>,
    ) -> Result<T, E> {
        self.run(work).await?
    }

    /// [`try_run`](Self::try_run) that waits as long as [`try_acquire_for`](Self::try_acquire_for), as [`Lock::try_run_for`].
    ///
    /// # Cancel safety
    ///
    /// As [`run`](Self::run).
    ///
    /// # Errors
    ///
    /// What `work` returns, and all of [`try_acquire_for`](Self::try_acquire_for) and [`run`](Self::run).
    pub async fn try_run_for<T, E: From<Error>>(
        &self,
        wait: Duration,
        work: impl AsyncFnOnce(&FencedGuard) -> Result<T, E>,
    ) -> Result<Option<T>, E> {
        match self.try_acquire_for(wait).await? {
            Some(guard) => Self::run_under(guard, work).await?.map(Some),
            None => Ok(None),
        }
    }

    /// Runs `work` under what was granted, and gives that back.
    async fn run_under<T>(guard: FencedGuard, work: impl AsyncFnOnce(&FencedGuard) -> T) -> Result<T, Error> {
        let result = guard.run_unconfirmed(work(&guard)).await?;
        guard.release_after_work().await?;
        Ok(result)
    }

    /// The token of the latest grant, whether or not it still holds; `None` if there was none, or the server has lost it.
    ///
    /// # Cancel safety
    ///
    /// Safe: it changes nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Server`], [`Error::InvalidName`].
    pub async fn token(&self) -> Result<Option<u64>, Error> {
        let key = wire::token_key(&self.lock.name);
        self.lock.ask(wire::token(&key), wire::read_token).await
    }
}

impl fmt::Debug for FencedLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FencedLock").field(&self.lock).finish()
    }
}

/// One hold of a [`FencedLock`]: a [`Guard`] that has a token.
///
/// ```no_run
/// # async fn example(locks: wheellock::LockManager) -> Result<(), wheellock::Error> {
/// let guard = locks.fenced_lock("ledger").acquire().await?;
/// assert!(guard.is_valid()); // all that a `Guard` can
/// println!("greater than all before: {}", guard.token());
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "the lock is given back at once if its guard is not kept"]
#[derive(Debug)]
pub struct FencedGuard {
    guard: Guard,
}

impl FencedGuard {
    /// The fencing token of this grant. It is greater than that of every earlier grant to another holder, in whichever
    /// process and language; those of one owner's holds at one time are equal.
    ///
    /// Tokens also rise where the server has lost its data, as long as its clock does not go back: the token is then its time
    /// in microseconds since 1970.
    pub fn token(&self) -> u64 {
        // A grant without one is none; see `wire::read_acquire`.
        self.guard.token().map_or(0, u64::from)
    }

    /// As [`Guard::release`].
    ///
    /// # Cancel safety
    ///
    /// As [`Guard::release`].
    ///
    /// # Errors
    ///
    /// As [`Guard::release`].
    pub async fn release(self) -> Result<Released, Error> {
        self.guard.release().await
    }

    pub(crate) async fn release_after_work(self) -> Result<(), Error> {
        self.guard.release_after_work().await
    }
}

impl Deref for FencedGuard {
    type Target = Guard;

    fn deref(&self) -> &Guard {
        &self.guard
    }
}
