//! The verbs of every kind of lock and guard.
//!
//! This module owns the end of the closure verbs, which work under a guard and release. The other verbs are those of each type.

use std::fmt::Debug;
use std::time::Duration;

use crate::base::attempt::Attempt;
use crate::base::clock::BootInstant;
use crate::base::error::Error;

/// Runs `work` under the guard, and releases with confirmation.
pub(crate) async fn run<L: AsyncLock, T, E: From<Error>>(
    guard: L::Guard,
    work: impl AsyncFnOnce(&L::Guard) -> Result<T, E>,
) -> Result<T, E> {
    let result = L::guarded(&guard, work(&guard)).await?;
    L::release_after_work(guard).await?;
    result
}

/// Does the same as [`run`], if the lock was granted.
pub(crate) async fn run_if_granted<L: AsyncLock, T, E: From<Error>>(
    attempt: Attempt<L::Guard>,
    work: impl AsyncFnOnce(&L::Guard) -> Result<T, E>,
) -> Result<Attempt<T>, E> {
    match attempt {
        Attempt::Acquired(guard) => run::<L, T, E>(guard, work).await.map(Attempt::Acquired),
        Attempt::Held { lock, lease_left } => Ok(Attempt::Held { lock, lease_left }),
    }
}

#[cfg(all(test, feature = "testing"))]
mod tests;

/// A lock with asynchronous verbs, and its guard. Other crates cannot name this trait, so they cannot implement it.
pub trait AsyncLock: Clone + Debug {
    /// The guard that an acquire returns.
    type Guard: Debug;
    /// The description of a loss.
    type Loss;

    /// Returns the same lock, taken as the owner `number` unless it has an owner. Permits have no owners.
    fn with_default_owner(&self, number: u64) -> Self;
    fn with_lease(&self, lease: Duration) -> Self;
    fn with_max_hold(&self, max: Duration) -> Self;

    fn acquire(&self) -> impl Future<Output = Result<Self::Guard, Error>>;
    fn try_acquire(&self) -> impl Future<Output = Result<Attempt<Self::Guard>, Error>>;
    fn try_acquire_for(&self, wait: Duration) -> impl Future<Output = Result<Attempt<Self::Guard>, Error>>;

    fn valid_until(guard: &Self::Guard) -> BootInstant;
    fn is_valid(guard: &Self::Guard) -> bool;
    fn is_endangered(guard: &Self::Guard) -> bool;
    fn lost(guard: &Self::Guard) -> impl Future<Output = Self::Loss>;
    fn renew(guard: &Self::Guard) -> impl Future<Output = Result<(), Error>>;
    fn release(guard: Self::Guard) -> impl Future<Output = Result<(), Error>>;

    /// Runs `work` while the guard is valid. Does not check the lock with the server afterwards.
    fn guarded<W: Future>(guard: &Self::Guard, work: W) -> impl Future<Output = Result<W::Output, Error>>;
    /// Returns an error if the lock is lost.
    fn check(guard: &Self::Guard) -> Result<(), Error>;
    /// Releases the lock after work that ended under it. Returns an error if the server did not know the owner any more.
    fn release_after_work(guard: Self::Guard) -> impl Future<Output = Result<(), Error>>;
}

/// Implements the verbs for a lock and a guard that have them under the same names. Only a macro can forward a call to
/// a method of the same name in any type.
macro_rules! forward_verbs {
    () => {
        fn with_lease(&self, lease: Duration) -> Self {
            self.with_lease(lease)
        }
        fn with_max_hold(&self, max: Duration) -> Self {
            self.with_max_hold(max)
        }
        async fn acquire(&self) -> Result<Self::Guard, Error> {
            self.acquire().await
        }
        async fn try_acquire(&self) -> Result<crate::Attempt<Self::Guard>, Error> {
            self.try_acquire().await
        }
        async fn try_acquire_for(&self, wait: Duration) -> Result<crate::Attempt<Self::Guard>, Error> {
            self.try_acquire_for(wait).await
        }
        fn valid_until(guard: &Self::Guard) -> crate::BootInstant {
            guard.valid_until()
        }
        fn is_valid(guard: &Self::Guard) -> bool {
            guard.is_valid()
        }
        fn is_endangered(guard: &Self::Guard) -> bool {
            guard.is_endangered()
        }
        async fn lost(guard: &Self::Guard) -> Self::Loss {
            guard.lost().await
        }
        async fn renew(guard: &Self::Guard) -> Result<(), Error> {
            guard.renew().await
        }
        async fn release(guard: Self::Guard) -> Result<(), Error> {
            guard.release().await
        }
        async fn guarded<W: Future>(guard: &Self::Guard, work: W) -> Result<W::Output, Error> {
            guard.run_unconfirmed(work).await
        }
        fn check(guard: &Self::Guard) -> Result<(), Error> {
            guard.check()
        }
        async fn release_after_work(guard: Self::Guard) -> Result<(), Error> {
            guard.release_after_work().await
        }
    };
}
pub(crate) use forward_verbs;
