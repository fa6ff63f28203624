//! A semaphore by name whose permits have leases.
//!
//! This module owns its methods. A permit is a hold as of any lock, and the acquire loop waits for it.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use wheellock_client::{Command, Script, Value};

use crate::base::attempt::Attempt;
use crate::base::error::{Error, LostReason};
use crate::base::lease::Lease;
use crate::base::owner::PermitId;
use crate::kind::{self, lua};
use crate::lock::Lock;
use crate::lock::verbs::{self, AsyncLock, forward_verbs};
use crate::request::acquire::{Many, Over, Request, Wait, acquire};
use crate::request::context::Context;
use crate::request::guard::Guard;
use crate::request::once::{ADD_PERMITS, CHANGE_PERMITS, GIVE_BACK, GIVE_BACK_MANY, SET_PERMITS};
use crate::wire;

/// A semaphore whose permits have leases. The permits of a dead process are free again within one lease. A live process
/// never loses a permit that its watchdog renews.
///
/// A semaphore is a number of permits, shared by all users of its name: tasks, processes, and Redisson's
/// `RPermitExpirableSemaphore` in Java. A new semaphore has no permits until [`try_set_permits`](Self::try_set_permits)
/// or [`set_permits`](Self::set_permits) gives it some.
///
/// ```no_run
/// # async fn example(locks: wheellock::LockManager) -> Result<(), wheellock::Error> {
/// let licences = locks.permit_semaphore("licences");
/// licences.set_permits(10).await?;
/// let permit = licences.acquire().await?;
/// // At most ten at the same time, in the whole fleet.
/// permit.release().await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "this is only a handle: call `acquire()` to take permits"]
#[derive(Clone)]
pub struct PermitSemaphore {
    lock: Lock,
}

impl PermitSemaphore {
    pub(crate) fn new(context: &Arc<Context>, name: &str) -> Self {
        Self { lock: Lock::new(Arc::clone(context), context.name(name, &kind::PERMIT)) }
    }

    /// Returns the semaphore's name, which is also its key on the server.
    pub fn name(&self) -> &str {
        self.lock.name()
    }

    /// Returns the same semaphore for permits with a fixed lease. The watchdog does not renew it; a permit expires
    /// after `lease` unless released before. As [`Lock::with_lease`].
    pub fn with_lease(&self, lease: Duration) -> Self {
        Self { lock: self.lock.with_lease(lease) }
    }

    /// Returns the same semaphore with a maximum time for each permit, as [`Lock::with_max_hold`].
    pub fn with_max_hold(&self, max: Duration) -> Self {
        Self { lock: self.lock.with_max_hold(max) }
    }

    /// Waits until a permit is free and takes it. Without [`with_lease`](Self::with_lease) the watchdog renews its
    /// lease until the permit is released or dropped, or this process dies.
    ///
    /// Waiters of one process are served in the order of their calls. Between processes there is no order.
    ///
    /// # Cancel safety
    ///
    /// Safe at every point: any grant of the server meanwhile is released.
    ///
    /// # Errors
    ///
    /// As [`Lock::acquire`].
    pub async fn acquire(&self) -> Result<Permit, Error> {
        Ok(Permit { guard: self.lock.acquire().await? })
    }

    /// Takes a permit if one is free, in one round trip.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire).
    pub async fn try_acquire(&self) -> Result<Attempt<Permit>, Error> {
        Ok(self.lock.try_acquire().await?.map(|guard| Permit { guard }))
    }

    /// Waits up to `wait`, counted from this call, for a permit. Returns [`Attempt::Held`] if none is free then. The
    /// wait ends as in [`Lock::try_acquire_for`].
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    ///
    /// # Errors
    ///
    /// As [`Lock::try_acquire_for`].
    pub fn try_acquire_for(
        &self,
        wait: Duration,
    ) -> impl Future<Output = Result<Attempt<Permit>, Error>> + Send {
        let granted = self.lock.try_acquire_for(wait);
        async { Ok(granted.await?.map(|guard| Permit { guard })) }
    }

    /// Waits until `permits` permits are free, and takes them, all at once. Each is a [`Permit`] of its own from then
    /// on, with its own id, lease and release. A request for zero permits is granted without I/O.
    ///
    /// Two callers that take two permits of two one by one may wait for each other. With this call they cannot. Waiters
    /// of one process are served in the order of their calls. A caller that wants many permits is not overtaken by
    /// callers that want few. Between processes there is no order.
    ///
    /// ```no_run
    /// # async fn example(locks: wheellock::LockManager) -> Result<(), wheellock::Error> {
    /// let mut seats = locks.permit_semaphore("seats").acquire_many(3).await?;
    /// let first = seats.remove(0);
    /// first.release().await?;
    /// drop(seats); // the other two
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// Safe at every point: any grant of the server meanwhile is released.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire).
    pub async fn acquire_many(&self, permits: u16) -> Result<Vec<Permit>, Error> {
        // Only a limit ends a wait without a grant.
        self.acquire_within(permits, Wait::Forever).await?.or_held()
    }

    /// Takes `permits` permits if they are free, all or none, in one round trip.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire_many`](Self::acquire_many).
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire).
    pub async fn try_acquire_many(&self, permits: u16) -> Result<Attempt<Vec<Permit>>, Error> {
        self.acquire_within(permits, Wait::NO).await
    }

    /// Waits up to `wait`, counted from this call, for `permits` permits. Returns [`Attempt::Held`] if too few are free
    /// then. Also returns it if an earlier caller of this process still waits for more than are free. The wait ends as in
    /// [`Lock::try_acquire_for`].
    ///
    /// # Cancel safety
    ///
    /// As [`acquire_many`](Self::acquire_many).
    ///
    /// # Errors
    ///
    /// As [`Lock::try_acquire_for`].
    pub async fn try_acquire_many_for(
        &self,
        permits: u16,
        wait: Duration,
    ) -> Result<Attempt<Vec<Permit>>, Error> {
        let wait = Wait::up_to(wait, &self.lock.context.client.config().timer);
        self.acquire_within(permits, wait).await
    }

    async fn acquire_within(&self, permits: u16, wait: Wait) -> Result<Attempt<Vec<Permit>>, Error> {
        let request = self.lock.request()?;
        if permits == 0 {
            return Ok(Attempt::Acquired(Vec::new()));
        }
        let many = Many::new(permits);
        let owner = self.lock.context.new_owners(permits);
        let request = Request { owner, many: Some(&many), ..request };
        let granted = acquire(Ok(request), wait, None, |end| {
            let all = |first| std::iter::once(first).chain(many.take_granted()).collect::<Vec<_>>();
            Over::attempt(end).map(all)
        });
        let permits = |guards: Vec<_>| guards.into_iter().map(|guard| Permit { guard }).collect();
        Ok(granted.await?.map(permits))
    }

    /// Acquires, runs `work`, and releases, as [`Lock::run`], with a permit. Waits without a limit.
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
        work: impl AsyncFnOnce(&Permit) -> Result<T, E>,
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
        work: impl AsyncFnOnce(&Permit) -> Result<T, E>,
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
        work: impl AsyncFnOnce(&Permit) -> Result<T, E>,
    ) -> Result<Attempt<T>, E> {
        verbs::run_if_granted::<Self, _, _>(self.try_acquire().await?, work).await
    }

    /// Releases a permit by its id, and wakes waiters. Any process may have acquired it. Returns false if there is no
    /// such permit or its lease has ended. A live holder is notified by its next renewal.
    ///
    /// # Cancel safety
    ///
    /// A dropped call may still take effect.
    ///
    /// # Errors
    ///
    /// [`Error::Server`], [`Error::OtherData`], [`Error::InvalidName`], [`Error::NoCommonSlot`].
    pub async fn release(&self, permit: PermitId) -> Result<bool, Error> {
        let id = permit.to_bytes();
        Ok(self.lock.once(&GIVE_BACK, "give a permit back to", Some((&id).into())).await? == 1)
    }

    /// Releases permits by their ids, all or none in one step, and wakes waiters. Any process may have acquired them.
    /// Returns false and changes nothing if one of them does not exist or its lease has ended. Their holders are
    /// notified as with [`release`](Self::release).
    ///
    /// # Cancel safety
    ///
    /// A dropped call may still take effect.
    ///
    /// # Errors
    ///
    /// As [`release`](Self::release).
    pub async fn release_many(&self, permits: &[PermitId]) -> Result<bool, Error> {
        if permits.is_empty() {
            return self.lock.check_name().map(|()| true);
        }
        let ids: Vec<u8> = permits.iter().flat_map(|permit| permit.to_bytes()).collect();
        let ids = Some(ids.as_slice().into());
        Ok(self.lock.once(&GIVE_BACK_MANY, "give permits back to", ids).await? == 1)
    }

    /// Extends the lease of a permit by its id, so that it runs for at least `lease` from now on. Any process may have
    /// acquired the permit. Returns false if there is no such permit or its lease has ended. A longer lease stays as it
    /// is, because its holder may rely on it.
    ///
    /// The watchdog renews each [`Permit`] of this process. A permit with a fixed lease is extended by
    /// [`Guard::renew`].
    ///
    /// # Cancel safety
    ///
    /// A dropped call may still take effect.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidLease`], [`Error::Server`], [`Error::InvalidName`], [`Error::NoCommonSlot`].
    pub async fn extend(&self, permit: PermitId, lease: Duration) -> Result<bool, Error> {
        let lease = Lease::new(lease)?;
        self.lease_of(permit, Some(lease), "extend a permit of", wire::read_extended).await
    }

    /// Returns the remaining lease of a permit by the server's clock, to the millisecond. `None` if there is no such
    /// permit or its lease has ended, [`Duration::MAX`] if Java acquired it without a lease.
    ///
    /// # Cancel safety
    ///
    /// Safe: the call changes nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Server`], [`Error::InvalidName`], [`Error::NoCommonSlot`].
    pub async fn remaining_lease(&self, permit: PermitId) -> Result<Option<Duration>, Error> {
        self.lease_of(permit, None, "query", wire::read_permit_lease).await
    }

    /// Extends a permit's lease. Without `lease`, only reads the remaining lease. Retries if the reply was lost.
    async fn lease_of<T>(
        &self,
        permit: PermitId,
        lease: Option<Lease>,
        verb: &str,
        read: impl FnOnce(&Value) -> Option<T>,
    ) -> Result<T, Error> {
        let id = permit.to_bytes();
        let leases = wire::permit_leases(&self.lock.name);
        let params = wire::permit_lease(&self.lock.name, &leases, &id, lease);
        self.lock.query_with_retry(verb, &kind::RENEW_PERMITS, &params, None, read).await
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

    /// Sets the total number of permits, taken permits included, and returns the number of free permits. If more are
    /// taken than the new total, the number is negative. Then no permit is free until as many were released.
    ///
    /// # Cancel safety
    ///
    /// A dropped call may still take effect.
    ///
    /// # Errors
    ///
    /// As [`release`](Self::release).
    pub async fn set_permits(&self, permits: u32) -> Result<i64, Error> {
        self.lock.once(&CHANGE_PERMITS, "set the permits of", Some(permits.into())).await
    }

    /// Adds permits, or removes some if `permits` is negative. Returns the number of free permits, which can be
    /// negative.
    ///
    /// # Cancel safety
    ///
    /// A dropped call may still take effect, once.
    ///
    /// # Errors
    ///
    /// As [`release`](Self::release). Also [`Error::Server`] if the number would leave the range of an `i64`; then the
    /// number is unchanged.
    pub async fn add_permits(&self, permits: i64) -> Result<i64, Error> {
        self.lock.once(&ADD_PERMITS, "add permits to", Some(permits.into())).await
    }

    /// Returns the number of free permits, including permits whose leases have ended.
    ///
    /// # Cancel safety
    ///
    /// Safe: the call changes nothing.
    ///
    /// # Errors
    ///
    /// As [`release`](Self::release).
    pub async fn available(&self) -> Result<i64, Error> {
        self.count().await.map(|(free, _)| free)
    }

    /// Returns the number of taken permits.
    ///
    /// # Cancel safety
    ///
    /// Safe: the call changes nothing.
    ///
    /// # Errors
    ///
    /// As [`release`](Self::release).
    pub async fn acquired(&self) -> Result<u64, Error> {
        self.count().await.map(|(_, taken)| taken.unsigned_abs())
    }

    /// Returns the total number of permits, taken or free.
    ///
    /// # Cancel safety
    ///
    /// Safe: the call changes nothing.
    ///
    /// # Errors
    ///
    /// As [`release`](Self::release).
    pub async fn permits(&self) -> Result<i64, Error> {
        self.count().await.map(|(free, taken)| free.saturating_add(taken))
    }

    async fn count(&self) -> Result<(i64, i64), Error> {
        self.lock.check_name()?;
        self.lock.query_by_script(&COUNT, &wire::look(&self.lock.name), wire::read_count).await
    }

    /// Removes the semaphore with its permits, taken permits included, and returns true if it existed. No waiter is
    /// notified; waiters keep waiting. The holder of a permit is notified by its next renewal.
    ///
    /// # Cancel safety
    ///
    /// A dropped call may still take effect.
    ///
    /// # Errors
    ///
    /// [`Error::Server`], [`Error::InvalidName`], [`Error::NoCommonSlot`].
    pub async fn delete(&self) -> Result<bool, Error> {
        self.lock.check_name()?;
        let leases = wire::permit_leases(&self.lock.name);
        self.lock.query(Command::new("DEL").arg(self.lock.name.key()).arg(&leases), wire::read_yes).await
    }
}

impl AsyncLock for PermitSemaphore {
    type Guard = Permit;
    type Loss = LostReason;

    fn with_default_owner(&self, _: u64) -> Self {
        self.clone()
    }

    forward_verbs!();
}

impl fmt::Debug for PermitSemaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PermitSemaphore").field("name", &self.name()).finish_non_exhaustive()
    }
}

/// One permit of a [`PermitSemaphore`]: a [`Guard`] with an id. Dropping it releases the permit in the background.
///
/// ```no_run
/// # async fn example(locks: wheellock::LockManager) -> Result<(), wheellock::Error> {
/// let permit = locks.permit_semaphore("licences").acquire().await?;
/// assert!(permit.is_valid()); // all that a `Guard` can
/// println!("{} is ours", permit.id());
/// permit.release().await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "the permit is given back at once if it is not kept"]
#[derive(Debug)]
pub struct Permit {
    guard: Guard,
}

impl Permit {
    /// Returns the permit's id on the server. Any process that has the id can [release](PermitSemaphore::release) the
    /// permit.
    pub fn id(&self) -> PermitId {
        self.guard.permit_id()
    }

    async fn release_after_work(self) -> Result<(), Error> {
        self.guard.release_after_work().await
    }

    /// Releases the permit and waits for the server's confirmation, as [`Guard::release`].
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
}

impl Deref for Permit {
    type Target = Guard;

    fn deref(&self) -> &Guard {
        &self.guard
    }
}

/// Script that counts the free and the taken permits.
pub(crate) static COUNT: LazyLock<Script> =
    LazyLock::new(|| Script::new(lua!("number.lua", "permit/reap.lua", "permit/count.lua"), 1, 1));
