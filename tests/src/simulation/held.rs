//! The objects that a simulated task acquires, and its guards.

use std::future::poll_fn;
use std::ops::Deref;
use std::task::Poll;
use std::time::Duration;

use wheellock::{
    BootInstant, Election, Error, FencedGuard, FencedLock, Guard, Leadership, Lock, LostReason, MultiGuard,
    MultiLock, Owner, Permit, PermitSemaphore, Permits, RedLock, RedLockGuard, Semaphore, Ticket,
};

use super::limits::Limits;
use crate::history::Kind as Asked;

/// An object that a task may acquire.
#[derive(Clone)]
pub(super) enum Wanted {
    Plain(Lock),
    Fenced(FencedLock),
    Leased(PermitSemaphore, u16),
    Permits(Semaphore, u32),
    Election(Election),
    Set(MultiLock),
    Quorum(RedLock),
}

pub(super) enum Held {
    Plain(Guard),
    Fenced(FencedGuard),
    Leased(Vec<Permit>),
    Permits(Permits),
    Leader(Leadership),
    Set(MultiGuard),
    Quorum(RedLockGuard),
}

impl Wanted {
    pub(super) fn with_lease(self, lease: Duration) -> Self {
        match self {
            Self::Plain(lock) => Self::Plain(lock.with_lease(lease)),
            Self::Fenced(lock) => Self::Fenced(lock.with_lease(lease)),
            Self::Leased(semaphore, count) => Self::Leased(semaphore.with_lease(lease), count),
            Self::Set(set) => Self::Set(set.with_lease(lease)),
            Self::Quorum(lock) => Self::Quorum(lock.with_lease(lease)),
            other @ (Self::Permits(..) | Self::Election(_)) => other,
        }
    }

    pub(super) fn with_owner(self, owner: Owner) -> Self {
        match self {
            Self::Plain(lock) => Self::Plain(lock.with_owner(owner)),
            Self::Fenced(lock) => Self::Fenced(lock.with_owner(owner)),
            pool => pool,
        }
    }

    pub(super) fn with_limits(self, limits: &Limits) -> Self {
        let Limits { min, max, .. } = limits;
        let (min, max) = (min.map(Duration::from_millis), max.map(Duration::from_millis));
        match self {
            Self::Plain(mut lock) => {
                lock = min.map_or(lock.clone(), |min| lock.with_min_hold(min));
                Self::Plain(max.map_or(lock.clone(), |max| lock.with_max_hold(max)))
            }
            Self::Fenced(mut lock) => {
                lock = min.map_or(lock.clone(), |min| lock.with_min_hold(min));
                Self::Fenced(max.map_or(lock.clone(), |max| lock.with_max_hold(max)))
            }
            other => other,
        }
    }

    pub(super) async fn ask(&self, asked: Asked, wait: Option<Duration>) -> Result<Option<Held>, Error> {
        let once = matches!(asked, Asked::Try | Asked::Again);
        Ok(match (self, wait) {
            (Self::Plain(lock), _) if once => lock.try_acquire().await?.map(Held::Plain).acquired(),
            (Self::Plain(lock), Some(wait)) => lock.try_acquire_for(wait).await?.map(Held::Plain).acquired(),
            (Self::Plain(lock), None) => Some(Held::Plain(lock.acquire().await?)),
            (Self::Fenced(lock), _) if once => lock.try_acquire().await?.map(Held::Fenced).acquired(),
            (Self::Fenced(lock), Some(wait)) => {
                lock.try_acquire_for(wait).await?.map(Held::Fenced).acquired()
            }
            (Self::Fenced(lock), None) => Some(Held::Fenced(lock.acquire().await?)),
            (Self::Leased(semaphore, count), _) => {
                ask_for_leased(semaphore, *count, once, wait).await?.map(Held::Leased)
            }
            (Self::Permits(pool, count), _) if once => {
                pool.try_acquire(*count).await?.map(Held::Permits).acquired()
            }
            (Self::Permits(pool, count), Some(wait)) => {
                pool.try_acquire_for(*count, wait).await?.map(Held::Permits).acquired()
            }
            (Self::Permits(pool, count), None) => Some(Held::Permits(pool.acquire(*count).await?)),
            (Self::Election(election), _) if once => {
                election.try_campaign().await?.map(Held::Leader).acquired()
            }
            (Self::Election(election), Some(wait)) => {
                election.try_campaign_for(wait).await?.map(Held::Leader).acquired()
            }
            (Self::Election(election), None) => Some(Held::Leader(election.campaign().await?)),
            (Self::Set(set), _) if once => set.try_acquire().await?.map(Held::Set).acquired(),
            (Self::Set(set), Some(wait)) => set.try_acquire_for(wait).await?.map(Held::Set).acquired(),
            (Self::Set(set), None) => Some(Held::Set(set.acquire().await?)),
            (Self::Quorum(lock), _) if once => lock.try_acquire().await?.map(Held::Quorum).acquired(),
            (Self::Quorum(lock), Some(wait)) => {
                lock.try_acquire_for(wait).await?.map(Held::Quorum).acquired()
            }
            (Self::Quorum(lock), None) => Some(Held::Quorum(lock.acquire().await?)),
        })
    }
}

async fn ask_for_leased(
    semaphore: &PermitSemaphore,
    count: u16,
    once: bool,
    wait: Option<Duration>,
) -> Result<Option<Vec<Permit>>, Error> {
    let one = |permit: Permit| vec![permit];
    Ok(match (wait, count) {
        (_, 1) if once => semaphore.try_acquire().await?.map(one).acquired(),
        (Some(wait), 1) => semaphore.try_acquire_for(wait).await?.map(one).acquired(),
        (None, 1) => Some(one(semaphore.acquire().await?)),
        (_, count) if once => semaphore.try_acquire_many(count).await?.acquired(),
        (Some(wait), count) => semaphore.try_acquire_many_for(count, wait).await?.acquired(),
        (None, count) => Some(semaphore.acquire_many(count).await?),
    })
}

/// Resolves when the first permit is lost.
async fn first_loss(permits: &[Permit]) -> LostReason {
    let mut losses: Vec<_> = permits.iter().map(|permit| Box::pin(permit.lost())).collect();
    poll_fn(|cx| {
        let lost = losses.iter_mut().map(|lost| lost.as_mut().poll(cx));
        lost.into_iter().find(Poll::is_ready).unwrap_or(Poll::Pending)
    })
    .await
}

/// Releases all permits at once. Returns the first failure.
async fn release_all(permits: Vec<Permit>) -> Result<(), Error> {
    let mut releases: Vec<_> = permits.into_iter().map(|permit| Box::pin(permit.release())).collect();
    let mut result = Ok(());
    poll_fn(|context| {
        releases.retain_mut(|release| match release.as_mut().poll(context) {
            Poll::Ready(Err(failed)) if result.is_ok() => {
                result = Err(failed);
                false
            }
            Poll::Ready(_) => false,
            Poll::Pending => true,
        });
        if releases.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    result
}

impl Held {
    /// Returns the guard that can be lost. A counted permit cannot be lost.
    pub(super) fn guard(&self) -> Option<&Guard> {
        match self {
            Self::Plain(guard) => Some(guard),
            Self::Fenced(guard) => Some(guard),
            Self::Leader(leadership) => Some(leadership),
            Self::Leased(_) | Self::Permits(_) | Self::Set(_) | Self::Quorum(_) => None,
        }
    }

    pub(super) fn is_valid(&self) -> bool {
        match self {
            Self::Leased(permits) => permits.iter().all(|permit| permit.is_valid()),
            Self::Permits(_) => true,
            Self::Set(guard) => guard.is_valid(),
            Self::Quorum(guard) => guard.is_valid(),
            Self::Leader(leadership) => leadership.is_leader(),
            Self::Plain(_) | Self::Fenced(_) => self.guard().is_some_and(Guard::is_valid),
        }
    }

    pub(super) fn valid_until(&self) -> u64 {
        let until = match self {
            Self::Plain(guard) => guard.valid_until(),
            Self::Fenced(guard) => guard.deref().valid_until(),
            Self::Leased(permits) => {
                return permits.iter().map(|permit| nanos(permit.valid_until())).min().unwrap_or(FOR_EVER);
            }
            Self::Permits(_) => return FOR_EVER,
            Self::Leader(leadership) => leadership.valid_until(),
            Self::Set(guard) => guard.valid_until(),
            Self::Quorum(guard) => guard.valid_until(),
        };
        nanos(until)
    }

    /// Turns the guard into a ticket.
    pub(super) async fn into_ticket(self) -> Result<Ticket, Error> {
        match self {
            Self::Plain(guard) => guard.into_ticket().await,
            Self::Fenced(guard) => guard.into_ticket().await,
            _ => unreachable!("only locks travel"),
        }
    }

    pub(super) async fn lost(&self) -> LostReason {
        match self {
            Self::Plain(guard) => guard.lost().await,
            Self::Fenced(guard) => guard.lost().await,
            Self::Leased(permits) => first_loss(permits).await,
            Self::Permits(_) => std::future::pending().await,
            Self::Leader(leadership) => leadership.lost().await,
            Self::Set(guard) => guard.lost().await.reason,
            Self::Quorum(guard) => guard.lost().await,
        }
    }

    pub(super) fn token(&self) -> Option<u64> {
        match self {
            Self::Fenced(guard) => Some(guard.token()),
            Self::Leader(leadership) => Some(leadership.token()),
            _ => None,
        }
    }

    pub(super) async fn release(self) -> Result<(), Error> {
        match self {
            Self::Plain(guard) => guard.release().await,
            Self::Fenced(guard) => guard.release().await,
            Self::Leased(permits) => release_all(permits).await,
            Self::Permits(permits) => permits.release().await,
            Self::Leader(leadership) => leadership.resign().await,
            Self::Set(guard) => guard.release().await,
            Self::Quorum(guard) => guard.release().await,
        }
    }
}

pub(super) fn nanos(instant: BootInstant) -> u64 {
    u64::try_from(instant.since_boot().as_nanos()).unwrap_or(u64::MAX)
}

/// Later than the end of any world.
pub(super) const FOR_EVER: u64 = u64::MAX / 2;
