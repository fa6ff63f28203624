//! The kinds of locks on the command line, and their holds.

use std::time::Duration;

use clap::ValueEnum;
use wheellock::{Error, FencedGuard, FencedLock, Guard, Lock, LockManager, Ticket};

/// A kind of lock.
#[expect(clippy::doc_markdown, reason = "it is read on terminals")]
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Kind {
    /// One holder, in no guaranteed order of waiters
    Plain,
    /// One holder; first come, first served
    Fair,
    /// The side of a read-write lock that many holders share
    Read,
    /// The exclusive side of a read-write lock
    Write,
    /// Like plain, and every grant has a number, in WHEELLOCK_TOKEN; the counter redisson_lock_token:{NAME} stays on
    /// the server
    Fenced,
    /// Like plain, but waits by polling
    Spin,
    /// The lock of redsync, node-redlock, redis-py and others
    Simple,
    // new-kind: variant
}

impl Kind {
    /// Returns the lock of this kind, with the guard of its kind.
    fn face(self, locks: &LockManager, name: &str) -> Face {
        match self {
            Self::Plain => Face::Plain(locks.lock(name)),
            Self::Fair => Face::Plain(locks.fair_lock(name)),
            Self::Read => Face::Plain(locks.read_write_lock(name).read()),
            Self::Write => Face::Plain(locks.read_write_lock(name).write()),
            Self::Fenced => Face::Fenced(locks.fenced_lock(name)),
            Self::Spin => Face::Plain(locks.spin_lock(name)),
            Self::Simple => Face::Plain(locks.simple_lock(name)),
            // new-kind: kind
        }
    }

    /// Returns the lock of this kind, for operations that all kinds share.
    pub(crate) fn lock(self, locks: &LockManager, name: &str) -> Lock {
        match self.face(locks, name) {
            Face::Plain(lock) => lock,
            Face::Fenced(lock) => lock.as_lock().clone(),
        }
    }

    /// Returns the locks whose holders a caller of this kind waits for.
    pub(crate) fn rivals(self, locks: &LockManager, name: &str) -> Vec<Lock> {
        let own = self.lock(locks, name);
        match self {
            Self::Read => vec![locks.read_write_lock(name).write()],
            Self::Write => vec![own, locks.read_write_lock(name).read()],
            _ => vec![own],
        }
    }

    /// Acquires the lock, for at most `at_most` and at least `at_least`. Waits for at most `wait`. Without a value there is no limit.
    pub(crate) async fn acquire(
        self,
        locks: &LockManager,
        name: &str,
        wait: Option<Duration>,
        (at_most, at_least): (Option<Duration>, Option<Duration>),
    ) -> Result<Option<Hold>, Error> {
        let face = self.face(locks, name).for_at_most(at_most).for_at_least(at_least);
        Ok(match (face, wait) {
            (Face::Plain(lock), None) => Some(Hold::Plain(lock.acquire().await?)),
            (Face::Plain(lock), Some(wait)) => lock.try_acquire_for(wait).await?.map(Hold::Plain).acquired(),
            (Face::Fenced(lock), None) => Some(Hold::Fenced(lock.acquire().await?)),
            (Face::Fenced(lock), Some(wait)) => {
                lock.try_acquire_for(wait).await?.map(Hold::Fenced).acquired()
            }
        })
    }
}

/// A lock by the guard that it grants.
enum Face {
    Plain(Lock),
    Fenced(FencedLock),
}

impl Face {
    fn for_at_most(self, at_most: Option<Duration>) -> Self {
        match (self, at_most) {
            (Self::Plain(lock), Some(max)) => Self::Plain(lock.with_max_hold(max)),
            (Self::Fenced(lock), Some(max)) => Self::Fenced(lock.with_max_hold(max)),
            (face, None) => face,
        }
    }

    fn for_at_least(self, at_least: Option<Duration>) -> Self {
        match (self, at_least) {
            (Self::Plain(lock), Some(min)) => Self::Plain(lock.with_min_hold(min)),
            (Self::Fenced(lock), Some(min)) => Self::Fenced(lock.with_min_hold(min)),
            (face, None) => face,
        }
    }
}

/// A lock that is held.
#[derive(Debug)]
pub(crate) enum Hold {
    Plain(Guard),
    Fenced(FencedGuard),
}

impl Hold {
    pub(crate) fn guard(&self) -> &Guard {
        match self {
            Self::Plain(guard) => guard,
            Self::Fenced(guard) => guard,
        }
    }

    pub(crate) fn token(&self) -> Option<u64> {
        match self {
            Self::Plain(_) => None,
            Self::Fenced(guard) => Some(guard.token()),
        }
    }

    /// Takes over the lock of a ticket.
    pub(crate) async fn adopt(locks: &LockManager, ticket: &Ticket) -> Result<Self, Error> {
        match locks.adopt_fenced(ticket).await {
            Ok(guard) => Ok(Self::Fenced(guard)),
            Err(Error::NoTicket { .. }) => locks.adopt(ticket).await.map(Self::Plain),
            Err(error) => Err(error),
        }
    }

    pub(crate) async fn into_ticket(self) -> Result<Ticket, Error> {
        match self {
            Self::Plain(guard) => guard.into_ticket().await,
            Self::Fenced(guard) => guard.into_ticket().await,
        }
    }

    pub(crate) async fn release(self) -> Result<(), Error> {
        match self {
            Self::Plain(guard) => guard.release().await,
            Self::Fenced(guard) => guard.release().await,
        }
    }
}
