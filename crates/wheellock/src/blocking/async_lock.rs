//! Common interface of the asynchronous locks and guards.
//!
//! It lists the methods that the blocking API needs, and the types that have them.

use std::fmt::Debug;
use std::time::Duration;

use crate::{
    BootInstant, Error, FencedGuard, FencedLock, Guard, Lock, LostMember, LostReason, MultiGuard, MultiLock,
    RedLock, RedLockGuard, Released,
};

/// A lock with asynchronous methods, and its guard. Other crates cannot name this trait, so they cannot implement it.
pub trait AsyncLock: Clone + Debug {
    /// The guard that an acquire returns.
    type Guard: Debug;
    /// The description of a loss.
    type Loss;

    /// Returns the same lock with `change` applied to each lock that it consists of.
    fn map(&self, change: impl Fn(&Lock) -> Lock) -> Self;

    fn acquire(&self) -> impl Future<Output = Result<Self::Guard, Error>>;
    fn try_acquire(&self) -> impl Future<Output = Result<Option<Self::Guard>, Error>>;
    fn try_acquire_for(&self, wait: Duration) -> impl Future<Output = Result<Option<Self::Guard>, Error>>;

    fn valid_until(guard: &Self::Guard) -> BootInstant;
    fn is_valid(guard: &Self::Guard) -> bool;
    fn lost(guard: &Self::Guard) -> impl Future<Output = Self::Loss>;
    fn renew(guard: &Self::Guard) -> impl Future<Output = Result<(), Error>>;
    fn release(guard: Self::Guard) -> impl Future<Output = Result<Released, Error>>;
    /// Releases the lock after work that was done under the guard. Returns an error if the lock was lost before the work ended.
    fn end_work(guard: Self::Guard) -> impl Future<Output = Result<(), Error>>;
}

/// Implements the methods for a lock and a guard that have them under the same names. Only a macro can forward a call to a method
/// of the same name in any type.
macro_rules! verbs_by_their_names {
    () => {
        async fn acquire(&self) -> Result<Self::Guard, Error> {
            self.acquire().await
        }
        async fn try_acquire(&self) -> Result<Option<Self::Guard>, Error> {
            self.try_acquire().await
        }
        async fn try_acquire_for(&self, wait: Duration) -> Result<Option<Self::Guard>, Error> {
            self.try_acquire_for(wait).await
        }
        fn valid_until(guard: &Self::Guard) -> BootInstant {
            guard.valid_until()
        }
        fn is_valid(guard: &Self::Guard) -> bool {
            guard.is_valid()
        }
        async fn lost(guard: &Self::Guard) -> Self::Loss {
            guard.lost().await
        }
        async fn renew(guard: &Self::Guard) -> Result<(), Error> {
            guard.renew().await
        }
        async fn release(guard: Self::Guard) -> Result<Released, Error> {
            guard.release().await
        }
        async fn end_work(guard: Self::Guard) -> Result<(), Error> {
            guard.check()?;
            guard.release_after_work().await
        }
    };
}

impl AsyncLock for Lock {
    type Guard = Guard;
    type Loss = LostReason;
    fn map(&self, change: impl Fn(&Self) -> Self) -> Self {
        change(self)
    }
    verbs_by_their_names!();
}

impl AsyncLock for MultiLock {
    type Guard = MultiGuard;
    type Loss = LostMember;
    fn map(&self, change: impl Fn(&Lock) -> Lock) -> Self {
        self.map(change)
    }
    verbs_by_their_names!();
}

impl AsyncLock for RedLock {
    type Guard = RedLockGuard;
    type Loss = LostReason;
    fn map(&self, change: impl Fn(&Lock) -> Lock) -> Self {
        self.map(change)
    }
    verbs_by_their_names!();
}

impl AsyncLock for FencedLock {
    type Guard = FencedGuard;
    type Loss = LostReason;
    fn map(&self, change: impl Fn(&Lock) -> Lock) -> Self {
        Self::new(change(self.as_lock()))
    }
    verbs_by_their_names!();
}
