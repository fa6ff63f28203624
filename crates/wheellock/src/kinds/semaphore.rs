//! A counted semaphore by name, and its methods.
//!
//! The permits of a caller are a hold as of any lock, and the acquire loop waits for them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use wheellock_client::Command;

use crate::base::attempt::Attempt;
use crate::base::error::Error;
use crate::base::lease::Lease;
use crate::kind;
use crate::lock::Lock;
use crate::request::acquire::{Over, Request, Wait, acquire};
use crate::request::context::Context;
use crate::request::guard::Guard;
use crate::request::once::{ADD_PERMITS, DRAIN, SET_PERMITS};
use crate::table::holds::Share;
use crate::wire;

/// A semaphore without holders. **The permits of a process that died are gone until a caller adds them again.** If that
/// must not happen, use a [`PermitSemaphore`](crate::PermitSemaphore), whose permits have leases.
///
/// A semaphore is a number of permits, shared by all users of its name: tasks, processes, and Redisson's `RSemaphore`
/// in Java. A new semaphore has no permits until [`try_set_permits`](Self::try_set_permits) or
/// [`add_permits`](Self::add_permits) gives it some. There is no upper bound. If a caller [releases](Self::release)
/// more permits than were acquired, their number grows. Java reads numbers up to 2³¹ − 1.
///
/// Every call takes effect once, even if requests or replies get lost. While this library runs, it keeps one small key
/// on the server for each [`Permits`]. The key is deleted with the permits, or within a day of the process' death.
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
#[must_use = "this is only a handle: call `acquire()` to take permits"]
#[derive(Clone)]
pub struct Semaphore {
    lock: Lock,
}

impl Semaphore {
    pub(crate) fn new(context: &Arc<Context>, name: &str) -> Self {
        Self { lock: Lock::new(Arc::clone(context), context.name(name, &kind::SEMAPHORE)) }
    }

    /// Returns the semaphore's name, which is also its key on the server.
    pub fn name(&self) -> &str {
        self.lock.name()
    }

    /// Waits until `permits` permits are free, and takes them, all at once. A request for zero permits is granted
    /// without I/O.
    ///
    /// Waiters of one process are served in the order of their calls. A caller that wants many permits is not overtaken
    /// by callers that want few. Between processes there is no order.
    ///
    /// # Cancel safety
    ///
    /// Safe at every point: any grant of the server meanwhile is released.
    ///
    /// # Errors
    ///
    /// [`Error::Server`] if the server does not reply for longer than the response timeout; [`Error::OtherData`] if the
    /// name does not hold a number; [`Error::InvalidName`] and [`Error::NoCommonSlot`] before anything is sent;
    /// [`Error::NotReplicated`] if too few servers knew of the grant in time; [`Error::ShutDown`] once the manager is
    /// [shut down](crate::LockManager::shutdown).
    pub async fn acquire(&self, permits: u32) -> Result<Permits, Error> {
        // Only a limit ends a wait without a grant.
        self.acquire_within(permits, Wait::Forever).await?.or_held()
    }

    /// Takes `permits` permits if they are free, in one round trip.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire).
    pub async fn try_acquire(&self, permits: u32) -> Result<Attempt<Permits>, Error> {
        self.acquire_within(permits, Wait::NO).await
    }

    /// Waits up to `wait`, counted from this call, for `permits` permits. Returns [`Attempt::Held`] if too few are free
    /// then. Also returns it if an earlier caller of this process still waits for more than are free. Even the shortest wait
    /// does not overtake that caller, as [`try_acquire`](Self::try_acquire) does. The wait ends as in
    /// [`Lock::try_acquire_for`].
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire).
    pub async fn try_acquire_for(&self, permits: u32, wait: Duration) -> Result<Attempt<Permits>, Error> {
        let wait = Wait::up_to(wait, &self.lock.context.client.config().timer);
        self.acquire_within(permits, wait).await
    }

    async fn acquire_within(&self, permits: u32, wait: Wait) -> Result<Attempt<Permits>, Error> {
        let request = self.lock.request()?;
        if permits == 0 {
            return Ok(Attempt::Acquired(Permits { guard: None }));
        }
        let share = Share { count: permits, renew: true };
        let request = Request { share, lease: Lease::A_DAY, ..request };
        let guard = acquire(Ok(request), wait, None, Over::attempt).await?;
        Ok(guard.map(|guard| Permits { guard: Some(guard) }))
    }

    /// Adds permits that need not have been acquired, and wakes waiters. Use [`Permits::release`] for permits from
    /// [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    ///
    /// A dropped call may still take effect, once.
    ///
    /// # Errors
    ///
    /// [`Error::Server`], also if the number would leave the range of an `i64`; then the number is unchanged.
    /// [`Error::OtherData`], [`Error::InvalidName`], [`Error::NoCommonSlot`].
    pub async fn release(&self, permits: u32) -> Result<(), Error> {
        if permits == 0 {
            return self.lock.check_name();
        }
        self.add_permits(permits.into()).await.map(drop)
    }

    /// Gives the semaphore its first permits. Returns false and changes nothing if it has permits already, even if all
    /// are taken.
    ///
    /// # Cancel safety
    ///
    /// A dropped call may still take effect.
    ///
    /// # Errors
    ///
    /// [`Error::Server`], [`Error::InvalidName`], [`Error::NoCommonSlot`].
    pub async fn try_set_permits(&self, permits: u32) -> Result<bool, Error> {
        Ok(self.lock.once(&SET_PERMITS, "set the permits of", Some(permits.into())).await? == 1)
    }

    /// Adds permits, or removes some if `permits` is negative. Returns the number of free permits, which can be
    /// negative. Then as many must be released before any is free.
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

    /// Removes all free permits, and returns their number.
    ///
    /// # Cancel safety
    ///
    /// A dropped call may still take effect, once.
    ///
    /// # Errors
    ///
    /// [`Error::Server`], [`Error::OtherData`], [`Error::InvalidName`], [`Error::NoCommonSlot`].
    pub async fn drain(&self) -> Result<u64, Error> {
        self.lock.once(&DRAIN, "drain", None).await.map(i64::unsigned_abs)
    }

    /// Returns the number of free permits. The number is negative after more were removed than were free.
    ///
    /// # Cancel safety
    ///
    /// Safe: the call changes nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Server`], [`Error::OtherData`], [`Error::InvalidName`].
    pub async fn available(&self) -> Result<i64, Error> {
        self.lock.query(wire::count(&self.lock.name), wire::read_free_permits).await
    }

    /// Removes the semaphore with its permits, and returns true if it existed. Acquired permits are not given back to a
    /// later semaphore of the same name. No waiter is notified; waiters keep waiting.
    ///
    /// # Cancel safety
    ///
    /// A dropped call may still take effect.
    ///
    /// # Errors
    ///
    /// [`Error::Server`], [`Error::InvalidName`].
    pub async fn delete(&self) -> Result<bool, Error> {
        self.lock.query(Command::new("DEL").arg(self.lock.name.key()), wire::read_yes).await
    }
}

impl fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Semaphore").field("name", &self.name()).finish_non_exhaustive()
    }
}

/// A number of permits of a [`Semaphore`]. Dropping it releases them in the background, as dropping a [`Guard`]
/// releases a lock.
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
    /// `None` for zero permits.
    guard: Option<Guard>,
}

impl Permits {
    /// Returns the number of permits.
    pub fn count(&self) -> u32 {
        self.guard.as_ref().map_or(0, Guard::count)
    }

    /// Splits off `permits` of these permits, to be released on their own. Returns `None` if there are fewer. No I/O.
    pub fn split(&mut self, permits: u32) -> Option<Self> {
        if permits == 0 {
            return Some(Self { guard: None });
        }
        let rest = self.count().checked_sub(permits)?;
        let guard =
            if rest == 0 { self.guard.take() } else { self.guard.as_mut().map(|guard| guard.split(permits)) };
        Some(Self { guard })
    }

    /// Leaves these permits acquired for ever. They are gone until a caller adds them again. No I/O.
    pub fn forget(mut self) {
        if let Some(guard) = self.guard.take() {
            guard.forget();
        }
    }

    /// Releases the permits and waits for the server's confirmation.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future releases the permits in the background, as dropping the permits does.
    ///
    /// # Errors
    ///
    /// As [`Guard::release`]. [`Error::Lost`] if the server does not know of these permits any more; then it has changed
    /// nothing. The server lost its data, the semaphore was deleted, or a shutdown of the manager released the permits.
    pub async fn release(mut self) -> Result<(), Error> {
        match self.guard.take() {
            Some(guard) => guard.release().await,
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Permits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permits").field("count", &self.count()).finish_non_exhaustive()
    }
}
