//! A counted semaphore by name. Owns the verbs; what a caller has is a hold like any other, and waiting is the acquire loop's.

use std::convert::identity;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use wheellock_client::Command;

use crate::base::error::Error;
use crate::base::lease::Lease;
use crate::kind;
use crate::lock::Lock;
use crate::request::acquire::{Limit, Request, Wait, acquire};
use crate::request::context::Context;
use crate::request::guard::{Guard, Released};
use crate::request::once::{ADD_PERMITS, DRAIN, SET_PERMITS};
use crate::table::holds::Share;
use crate::wire;

/// A semaphore without holders: **what a process had when it died is gone until somebody adds it**. Where that must not
/// happen take a [`PermitSemaphore`](crate::PermitSemaphore), whose permits have leases.
///
/// A number of permits, shared by all who use its name: tasks, processes, and Redisson's `RSemaphore` in Java. It has none until
/// [`try_set_permits`](Self::try_set_permits) or [`add_permits`](Self::add_permits) gives it some. There is no upper bound: who
/// [releases](Self::release) more than was acquired has made more of them. Java reads numbers up to 2³¹ − 1.
///
/// Every call takes effect once, whatever gets lost on the way. While it runs, this library remembers on the server what its callers
/// have, one small key for each [`Permits`]; it goes with them, or within a day of their process' death.
///
/// ```no_run
/// # async fn example(locks: wheellock::LockManager) -> Result<(), wheellock::Error> {
/// let connections = locks.semaphore("connections");
/// connections.try_set_permits(10).await?;
/// let permits = connections.acquire(2).await?;
/// // At most ten at the same time, in the whole fleet.
/// permits.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Semaphore {
    lock: Lock,
}

impl Semaphore {
    pub(crate) fn new(context: &Arc<Context>, name: &str) -> Self {
        Self { lock: Lock::new(Arc::clone(context), context.name(name, &kind::SEMAPHORE)) }
    }

    /// The semaphore's name, which is also its key on the server.
    pub fn name(&self) -> &str {
        self.lock.name()
    }

    /// Waits until so many permits are free, and takes them, all at once. Of none it is granted without being asked for.
    ///
    /// Waiters of one process are served in the order in which they came: one who wants many is not overtaken by those who want
    /// few. Between processes there is no order.
    ///
    /// # Cancel safety
    ///
    /// Safe at every point: what the server may have granted meanwhile is given back.
    ///
    /// # Errors
    ///
    /// [`Error::Server`] if the server cannot be asked for longer than the response timeout; [`Error::OtherData`] if there is no
    /// number under the name; [`Error::InvalidName`] and [`Error::NoCommonSlot`] before anything is sent;
    /// [`Error::NotReplicated`] if too few servers knew of the grant in time; [`Error::ShutDown`] once the manager is
    /// [shut down](crate::LockManager::shutdown).
    pub async fn acquire(&self, permits: u32) -> Result<Permits, Error> {
        let Ok(permits) = self.acquire_within(permits, Wait::FOREVER).await?;
        Ok(permits)
    }

    /// Takes so many permits if they are free: one round trip.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire).
    pub async fn try_acquire(&self, permits: u32) -> Result<Option<Permits>, Error> {
        Ok(self.acquire_within(permits, Wait::NO).await?.ok())
    }

    /// Waits up to `wait`, counted from this call, for so many permits. `None` if too few are free then, or if one of this process who came
    /// earlier still waits for more than are free: who waits, however short, is not let past that one, as [`try_acquire`](Self::try_acquire)
    /// is. The wait ends as that of [`Lock::try_acquire_for`] does.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire).
    pub async fn try_acquire_for(&self, permits: u32, wait: Duration) -> Result<Option<Permits>, Error> {
        let wait = Wait::up_to(wait, &self.lock.context.client.config().timer);
        Ok(self.acquire_within(permits, wait).await?.ok())
    }

    async fn acquire_within<L: Copy + Into<Limit>>(
        &self,
        permits: u32,
        wait: Wait<L>,
    ) -> Result<Result<Permits, L>, Error> {
        let request = self.lock.request()?;
        if permits == 0 {
            return Ok(Ok(Permits { guard: None }));
        }
        let share = Share { count: permits, renew: true };
        let request = Request { share, lease: Lease::A_DAY, ..request };
        let guard = acquire(Ok(request), wait, None, identity).await?;
        Ok(guard.map(|guard| Permits { guard: Some(guard) }))
    }

    /// Adds permits that need not have been acquired, and wakes waiters. What an [`acquire`](Self::acquire) gave is given back
    /// by its [`Permits`].
    ///
    /// # Cancel safety
    ///
    /// A dropped call may still take effect, once.
    ///
    /// # Errors
    ///
    /// [`Error::Server`], also if the number would leave the range of an `i64`: then nothing was changed;
    /// [`Error::OtherData`], [`Error::InvalidName`], [`Error::NoCommonSlot`].
    pub async fn release(&self, permits: u32) -> Result<(), Error> {
        if permits == 0 {
            return self.lock.check_name();
        }
        self.add_permits(permits.into()).await.map(drop)
    }

    /// Gives the semaphore its first permits. False, and nothing is changed, if it has some already, or had and they are all taken.
    ///
    /// # Cancel safety
    ///
    /// A dropped call may still take effect.
    ///
    /// # Errors
    ///
    /// [`Error::Server`], [`Error::InvalidName`], [`Error::NoCommonSlot`].
    pub async fn try_set_permits(&self, permits: u32) -> Result<bool, Error> {
        let set = self.lock.once(&SET_PERMITS, "set the permits of", Some(permits.into())).await?;
        Ok(set == 1)
    }

    /// Adds permits, or takes them away if the number is negative. Fewer than none may be free then: so many have to be
    /// released before any is. Returns how many are free.
    ///
    /// # Cancel safety
    ///
    /// A dropped call may still take effect, once.
    ///
    /// # Errors
    ///
    /// As [`release`](Self::release).
    pub async fn add_permits(&self, permits: i64) -> Result<i64, Error> {
        self.lock.once(&ADD_PERMITS, "add permits to", Some(permits.into())).await
    }

    /// Takes all permits that are free away, and returns how many.
    ///
    /// # Cancel safety
    ///
    /// A dropped call may still take effect, once.
    ///
    /// # Errors
    ///
    /// [`Error::Server`], [`Error::OtherData`], [`Error::InvalidName`], [`Error::NoCommonSlot`].
    pub async fn drain(&self) -> Result<u64, Error> {
        let drained = self.lock.once(&DRAIN, "drain", None).await?;
        Ok(drained.unsigned_abs())
    }

    /// How many permits are free; negative after more were taken away than were free.
    ///
    /// # Cancel safety
    ///
    /// Safe: it changes nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Server`], [`Error::OtherData`], [`Error::InvalidName`].
    pub async fn available(&self) -> Result<i64, Error> {
        self.lock.ask(wire::free_permits(&self.lock.name), wire::read_free_permits).await
    }

    /// Removes the semaphore with its permits. What callers have is not given back to one that is made under its name later.
    /// Nobody is told: who waits goes on waiting. Returns whether there was one.
    ///
    /// # Cancel safety
    ///
    /// A dropped call may still take effect.
    ///
    /// # Errors
    ///
    /// [`Error::Server`], [`Error::InvalidName`].
    pub async fn delete(&self) -> Result<bool, Error> {
        self.lock.ask(Command::new("DEL").arg(self.lock.name.key()), wire::read_yes).await
    }
}

impl fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Semaphore").field("name", &self.name()).finish_non_exhaustive()
    }
}

/// So many permits of a [`Semaphore`]. Dropping it gives them back in the background, as dropping a [`Guard`] releases a lock.
///
/// ```no_run
/// # async fn example(locks: wheellock::LockManager) -> Result<(), wheellock::Error> {
/// let mut four = locks.semaphore("tickets").acquire(4).await?;
/// let one = four.split(1).expect("there are four");
/// one.forget(); // it was sold
/// four.release().await?; // the other three
/// # Ok(())
/// # }
/// ```
#[must_use = "dropped permits are given back at once"]
pub struct Permits {
    /// None if these are no permits.
    guard: Option<Guard>,
}

impl Permits {
    /// How many these are.
    pub fn count(&self) -> u32 {
        self.guard.as_ref().map_or(0, Guard::count)
    }

    /// Takes so many of these permits apart, to be given back on their own; `None` if these are fewer. No I/O.
    pub fn split(&mut self, permits: u32) -> Option<Self> {
        if permits == 0 {
            return Some(Self { guard: None });
        }
        let rest = self.count().checked_sub(permits)?;
        let guard =
            if rest == 0 { self.guard.take() } else { self.guard.as_mut().map(|guard| guard.split(permits)) };
        Some(Self { guard })
    }

    /// Leaves these permits acquired for ever: they are gone until somebody adds them. No I/O.
    pub fn forget(mut self) {
        if let Some(guard) = self.guard.take() {
            guard.forget();
        }
    }

    /// Gives the permits back and waits for the server's word. [`Released::AlreadyLost`] if the server does not know of them any
    /// more, and has not changed anything: it has lost its data, the semaphore was deleted, or the manager was shut down and has
    /// given them back.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives them back in the background, as dropping the permits does.
    ///
    /// # Errors
    ///
    /// As [`Guard::release`].
    pub async fn release(mut self) -> Result<Released, Error> {
        match self.guard.take() {
            Some(guard) => guard.release().await,
            None => Ok(Released::Released),
        }
    }
}

impl fmt::Debug for Permits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permits").field("count", &self.count()).finish_non_exhaustive()
    }
}
