//! The locks and the guards of a worker, on one server or on a quorum of servers.

use std::time::Duration;

use wheellock::{Error, FencedGuard, FencedLock, Guard, Lock, LostReason, Owner, RedLock, RedLockGuard};

use super::worker::nanos;
use crate::history::Kind;

/// A lock that a worker may acquire.
#[derive(Clone)]
pub(super) struct Wanted {
    pub(super) lock: AnyLock,
    pub(super) shared: bool,
}

#[derive(Clone)]
pub(super) enum AnyLock {
    Plain(Lock),
    Fenced(FencedLock),
    Quorum(RedLock),
}

/// A hold of the lock.
pub(super) enum Held {
    Plain(Guard),
    Fenced(FencedGuard),
    Quorum(RedLockGuard),
}

/// A borrowed guard of any lock.
#[derive(Clone, Copy)]
pub(super) enum AnyGuard<'a> {
    Plain(&'a Guard),
    Fenced(&'a FencedGuard),
    Quorum(&'a RedLockGuard),
}

impl Wanted {
    pub(super) fn name(&self) -> &str {
        match &self.lock {
            AnyLock::Plain(lock) => lock.name(),
            AnyLock::Fenced(lock) => lock.as_lock().name(),
            AnyLock::Quorum(lock) => lock.name(),
        }
    }

    pub(super) fn with_lease(&self, lease: Duration) -> Self {
        let lock = match &self.lock {
            AnyLock::Plain(lock) => AnyLock::Plain(lock.with_lease(lease)),
            AnyLock::Fenced(lock) => AnyLock::Fenced(lock.with_lease(lease)),
            AnyLock::Quorum(lock) => AnyLock::Quorum(lock.with_lease(lease)),
        };
        Self { lock, ..*self }
    }

    /// Returns the same lock for this owner. A lock of a quorum has an owner for each server, and stays as it is.
    pub(super) fn with_owner(&self, owner: Owner) -> Self {
        let lock = match &self.lock {
            AnyLock::Plain(lock) => AnyLock::Plain(lock.with_owner(owner)),
            AnyLock::Fenced(lock) => AnyLock::Fenced(lock.with_owner(owner)),
            AnyLock::Quorum(lock) => AnyLock::Quorum(lock.clone()),
        };
        Self { lock, ..*self }
    }

    pub(super) async fn ask(&self, kind: Kind, wait: Option<Duration>) -> Result<Option<Held>, Error> {
        let once = matches!(kind, Kind::Try | Kind::Again);
        Ok(match (&self.lock, wait) {
            (AnyLock::Plain(lock), _) if once => lock.try_acquire().await?.map(Held::Plain).acquired(),
            (AnyLock::Plain(lock), Some(wait)) => {
                lock.try_acquire_for(wait).await?.map(Held::Plain).acquired()
            }
            (AnyLock::Plain(lock), None) => Some(Held::Plain(lock.acquire().await?)),
            (AnyLock::Fenced(lock), _) if once => lock.try_acquire().await?.map(Held::Fenced).acquired(),
            (AnyLock::Fenced(lock), Some(wait)) => {
                lock.try_acquire_for(wait).await?.map(Held::Fenced).acquired()
            }
            (AnyLock::Fenced(lock), None) => Some(Held::Fenced(lock.acquire().await?)),
            (AnyLock::Quorum(lock), _) if once => lock.try_acquire().await?.map(Held::Quorum).acquired(),
            (AnyLock::Quorum(lock), Some(wait)) => {
                lock.try_acquire_for(wait).await?.map(Held::Quorum).acquired()
            }
            (AnyLock::Quorum(lock), None) => Some(Held::Quorum(lock.acquire().await?)),
        })
    }
}

impl Held {
    pub(super) fn as_any(&self) -> AnyGuard<'_> {
        match self {
            Self::Plain(guard) => AnyGuard::Plain(guard),
            Self::Fenced(guard) => AnyGuard::Fenced(guard),
            Self::Quorum(guard) => AnyGuard::Quorum(guard),
        }
    }

    pub(super) async fn release(self) -> Result<(), Error> {
        match self {
            Self::Plain(guard) => guard.release().await,
            Self::Fenced(guard) => guard.release().await,
            Self::Quorum(guard) => guard.release().await,
        }
    }
}

impl AnyGuard<'_> {
    /// Returns the fencing token, if the lock has tokens.
    pub(super) fn token(self) -> Option<u64> {
        match self {
            Self::Fenced(guard) => Some(guard.token()),
            Self::Plain(_) | Self::Quorum(_) => None,
        }
    }

    /// Returns the owner. A guard of a quorum has an owner for each server, and does not show them.
    pub(super) fn owner(self) -> Option<Owner> {
        match self {
            Self::Plain(guard) => Some(guard.owner()),
            Self::Fenced(guard) => Some(guard.owner()),
            Self::Quorum(_) => None,
        }
    }

    pub(super) fn is_valid(self) -> bool {
        match self {
            Self::Plain(guard) => guard.is_valid(),
            Self::Fenced(guard) => guard.is_valid(),
            Self::Quorum(guard) => guard.is_valid(),
        }
    }

    /// Returns the deadline on the clock of histories.
    pub(super) fn valid_until(self) -> u64 {
        let deadline = match self {
            Self::Plain(guard) => guard.valid_until(),
            Self::Fenced(guard) => guard.valid_until(),
            Self::Quorum(guard) => guard.valid_until(),
        };
        nanos(deadline.since_boot())
    }

    pub(super) async fn lost(self) -> LostReason {
        match self {
            Self::Plain(guard) => guard.lost().await,
            Self::Fenced(guard) => guard.lost().await,
            Self::Quorum(guard) => guard.lost().await,
        }
    }

    pub(super) async fn renew(self) -> Result<(), Error> {
        match self {
            Self::Plain(guard) => guard.renew().await,
            Self::Fenced(guard) => guard.renew().await,
            Self::Quorum(guard) => guard.renew().await,
        }
    }
}
