//! A fenced lock by name, with increasing tokens.

use std::fmt;
use std::ops::Deref;
use std::time::Duration;

use crate::base::attempt::Attempt;
use crate::base::error::{Error, LostReason};
use crate::base::owner::Owner;
use crate::base::ticket::Ticket;
use crate::lock::Lock;
use crate::lock::verbs::{self, AsyncLock, forward_verbs};
use crate::request::guard::Guard;
use crate::wire;

/// A lock whose every grant has a fencing token, shared by all users of its name: tasks, processes, and Redisson's
/// `RFencedLock` in Java. On the server it is a [`Lock`] beside a counter, `redisson_lock_token:{name}`.
///
/// A holder that was paused, or whose clock runs slow, may act after its lock has passed on. No lease prevents that,
/// but the resource can. It remembers the greatest token that it has seen, and refuses requests with a smaller token.
/// The page *Fencing tokens* of the guide shows how.
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
#[must_use = "this is only a handle: call `acquire()` to take the lock"]
#[derive(Clone)]
pub struct FencedLock {
    lock: Lock,
}

impl FencedLock {
    pub(crate) fn new(lock: Lock) -> Self {
        Self { lock }
    }

    /// As [`Lock::with_lease`].
    pub fn with_lease(&self, lease: Duration) -> Self {
        Self::new(self.lock.with_lease(lease))
    }

    /// As [`Lock::with_max_hold`].
    pub fn with_max_hold(&self, max: Duration) -> Self {
        Self::new(self.lock.with_max_hold(max))
    }

    /// As [`Lock::with_min_hold`].
    pub fn with_min_hold(&self, min: Duration) -> Self {
        Self::new(self.lock.with_min_hold(min))
    }

    /// As [`Lock::with_owner`]. An owner that holds the lock already gets the same token again.
    pub fn with_owner(&self, owner: Owner) -> Self {
        Self::new(self.lock.with_owner(owner))
    }

    /// Returns the same lock without tokens, for queries, and as a member of a [`multi_lock`](crate::multi_lock). Its
    /// grants raise the token all the same.
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
    /// As [`Lock::acquire`]. Also [`Error::OtherData`] if the token's key does not hold a number.
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
    pub async fn try_acquire(&self) -> Result<Attempt<FencedGuard>, Error> {
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
    pub async fn try_acquire_for(&self, wait: Duration) -> Result<Attempt<FencedGuard>, Error> {
        Ok(self.lock.try_acquire_for(wait).await?.map(|guard| FencedGuard { guard }))
    }

    /// Acquires, runs `work`, and releases, as [`Lock::run`], with a guard that has a token. Waits without a limit.
    ///
    /// # Cancel safety
    ///
    /// As [`Lock::run`].
    ///
    /// # Errors
    ///
    /// As [`Lock::run`].
    pub async fn run<T, E: From<Error>>(
        &self,
        work: impl AsyncFnOnce(&FencedGuard) -> Result<T, E>,
    ) -> Result<T, E> {
        verbs::run::<Self, _, _>(self.acquire().await?, work).await
    }

    /// Does the same as [`run`](Self::run), with the wait of [`try_acquire_for`](Self::try_acquire_for).
    ///
    /// # Cancel safety
    ///
    /// As [`run`](Self::run).
    ///
    /// # Errors
    ///
    /// The errors of [`run`](Self::run) and [`try_acquire_for`](Self::try_acquire_for).
    pub async fn run_for<T, E: From<Error>>(
        &self,
        wait: Duration,
        work: impl AsyncFnOnce(&FencedGuard) -> Result<T, E>,
    ) -> Result<Attempt<T>, E> {
        verbs::run_if_granted::<Self, _, _>(self.try_acquire_for(wait).await?, work).await
    }

    /// Does the same as [`run`](Self::run), without a wait, as [`try_acquire`](Self::try_acquire).
    ///
    /// # Cancel safety
    ///
    /// As [`run`](Self::run).
    ///
    /// # Errors
    ///
    /// The errors of [`run`](Self::run).
    pub async fn try_run<T, E: From<Error>>(
        &self,
        work: impl AsyncFnOnce(&FencedGuard) -> Result<T, E>,
    ) -> Result<Attempt<T>, E> {
        verbs::run_if_granted::<Self, _, _>(self.try_acquire().await?, work).await
    }

    /// Returns the token of the latest grant, even if that grant has ended. `None` if there was no grant, or the server
    /// has lost the token.
    ///
    /// # Cancel safety
    ///
    /// Safe: the call changes nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Server`], [`Error::InvalidName`].
    pub async fn token(&self) -> Result<Option<u64>, Error> {
        let key = wire::token_key(&self.lock.name);
        self.lock.query(wire::token(&key), wire::read_token).await
    }
}

impl AsyncLock for FencedLock {
    type Guard = FencedGuard;
    type Loss = LostReason;

    fn with_default_owner(&self, number: u64) -> Self {
        Self::new(self.lock.with_default_owner(number))
    }

    forward_verbs!();
}

impl fmt::Debug for FencedLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FencedLock").field(&self.lock).finish()
    }
}

/// One hold of a [`FencedLock`]: a [`Guard`] with a token.
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
    pub(crate) fn new(guard: Guard) -> Self {
        Self { guard }
    }

    /// Returns the fencing token of this grant. It is greater than the token of every earlier grant to another holder,
    /// in every process and language. The tokens of one owner's holds at one time are equal.
    ///
    /// Tokens also rise after the server has lost its data, if its clock does not go back. The next token is then the
    /// server's time in microseconds since 1970.
    pub fn token(&self) -> u64 {
        // `wire::read_acquire` rejects a grant without a token, so the 0 never shows.
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
    pub async fn release(self) -> Result<(), Error> {
        self.guard.release().await
    }

    /// As [`Guard::into_ticket`]. [`LockManager::adopt_fenced`](crate::LockManager::adopt_fenced) turns the ticket into a guard with a new
    /// token.
    ///
    /// # Cancel safety
    ///
    /// As [`Guard::into_ticket`].
    ///
    /// # Errors
    ///
    /// As [`Guard::into_ticket`].
    pub async fn into_ticket(self) -> Result<Ticket, Error> {
        self.guard.into_ticket().await
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
