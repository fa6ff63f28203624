//! Semaphores and latches for threads. Owns nothing but the waiting: see [`crate::Semaphore`], [`crate::PermitSemaphore`] and
//! [`crate::CountDownLatch`].

use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use super::LockManager;
use super::served::Served;
use crate::{BootInstant, Error, LostReason, PermitId, Released};

/// A semaphore without holders, for threads, as [`crate::Semaphore`] is. What a process had when it died is gone until somebody
/// adds it.
///
/// ```no_run
/// # fn example(locks: wheellock::blocking::LockManager) -> Result<(), wheellock::Error> {
/// let tickets = locks.semaphore("tickets");
/// tickets.try_set_permits(100)?;
/// let four = tickets.acquire(4)?; // all or none
/// println!("{} are left", tickets.available()?);
/// four.release()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Semaphore {
    inner: crate::Semaphore,
    runtime: Arc<Served>,
}

impl Semaphore {
    /// The semaphore's name, which is also its key on the server.
    pub fn name(&self) -> &str {
        self.inner.name()
    }

    /// As [`crate::Semaphore::acquire`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn acquire(&self, permits: u32) -> Result<Permits, Error> {
        self.runtime.block_on(self.inner.acquire(permits)).map(|permits| self.permits(permits))
    }

    /// As [`crate::Semaphore::try_acquire`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn try_acquire(&self, permits: u32) -> Result<Option<Permits>, Error> {
        let permits = self.runtime.block_on(self.inner.try_acquire(permits))?;
        Ok(permits.map(|permits| self.permits(permits)))
    }

    /// As [`crate::Semaphore::try_acquire_for`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn try_acquire_for(&self, permits: u32, wait: Duration) -> Result<Option<Permits>, Error> {
        let permits = self.runtime.block_on(self.inner.try_acquire_for(permits, wait))?;
        Ok(permits.map(|permits| self.permits(permits)))
    }

    /// As [`crate::Semaphore::release`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn release(&self, permits: u32) -> Result<(), Error> {
        self.runtime.block_on(self.inner.release(permits))
    }

    /// As [`crate::Semaphore::try_set_permits`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn try_set_permits(&self, permits: u32) -> Result<bool, Error> {
        self.runtime.block_on(self.inner.try_set_permits(permits))
    }

    /// As [`crate::Semaphore::add_permits`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn add_permits(&self, permits: i64) -> Result<i64, Error> {
        self.runtime.block_on(self.inner.add_permits(permits))
    }

    /// As [`crate::Semaphore::drain`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn drain(&self) -> Result<u64, Error> {
        self.runtime.block_on(self.inner.drain())
    }

    /// As [`crate::Semaphore::available`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn available(&self) -> Result<i64, Error> {
        self.runtime.block_on(self.inner.available())
    }

    /// As [`crate::Semaphore::delete`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn delete(&self) -> Result<bool, Error> {
        self.runtime.block_on(self.inner.delete())
    }

    fn permits(&self, inner: crate::Permits) -> Permits {
        Permits { inner, runtime: Arc::clone(&self.runtime) }
    }
}

impl fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// So many permits of a [`Semaphore`], as [`crate::Permits`] is. Dropping it gives them back in the background.
///
/// ```no_run
/// # fn example(locks: wheellock::blocking::LockManager) -> Result<(), wheellock::Error> {
/// let mut four = locks.semaphore("tickets").acquire(4)?;
/// let one = four.split(1).expect("there are four");
/// one.forget(); // it was sold
/// four.release()?; // the other three
/// # Ok(())
/// # }
/// ```
#[must_use = "dropped permits are given back at once"]
pub struct Permits {
    inner: crate::Permits,
    runtime: Arc<Served>,
}

impl Permits {
    /// How many these are.
    pub fn count(&self) -> u32 {
        self.inner.count()
    }

    /// As [`crate::Permits::split`].
    pub fn split(&mut self, permits: u32) -> Option<Self> {
        Some(Self { inner: self.inner.split(permits)?, runtime: Arc::clone(&self.runtime) })
    }

    /// As [`crate::Permits::forget`].
    pub fn forget(self) {
        self.inner.forget();
    }

    /// As [`crate::Permits::release`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn release(self) -> Result<Released, Error> {
        self.runtime.block_on(self.inner.release())
    }
}

impl fmt::Debug for Permits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// A semaphore whose permits have leases, for threads, as [`crate::PermitSemaphore`] is. No thread owns a permit: one that has
/// it and asks again gets another.
///
/// ```no_run
/// # fn example(locks: wheellock::blocking::LockManager) -> Result<(), wheellock::Error> {
/// let licences = locks.permit_semaphore("licences");
/// licences.set_permits(10)?;
/// let permit = licences.acquire()?;
/// println!("{} of {} are taken", licences.acquired()?, licences.permits()?);
/// permit.release()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct PermitSemaphore {
    inner: crate::PermitSemaphore,
    runtime: Arc<Served>,
}

impl PermitSemaphore {
    /// The semaphore's name, which is also its key on the server.
    pub fn name(&self) -> &str {
        self.inner.name()
    }

    /// As [`crate::PermitSemaphore::with_lease`].
    #[must_use]
    pub fn with_lease(&self, lease: Duration) -> Self {
        Self { inner: self.inner.with_lease(lease), runtime: Arc::clone(&self.runtime) }
    }

    /// As [`crate::PermitSemaphore::acquire`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn acquire(&self) -> Result<Permit, Error> {
        self.runtime.block_on(self.inner.acquire()).map(|permit| self.permit(permit))
    }

    /// As [`crate::PermitSemaphore::try_acquire`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn try_acquire(&self) -> Result<Option<Permit>, Error> {
        let permit = self.runtime.block_on(self.inner.try_acquire())?;
        Ok(permit.map(|permit| self.permit(permit)))
    }

    /// As [`crate::PermitSemaphore::try_acquire_for`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn try_acquire_for(&self, wait: Duration) -> Result<Option<Permit>, Error> {
        let permit = self.runtime.block_on(self.inner.try_acquire_for(wait))?;
        Ok(permit.map(|permit| self.permit(permit)))
    }

    /// As [`crate::PermitSemaphore::acquire_many`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn acquire_many(&self, permits: u16) -> Result<Vec<Permit>, Error> {
        self.runtime.block_on(self.inner.acquire_many(permits)).map(|permits| self.permits_of(permits))
    }

    /// As [`crate::PermitSemaphore::try_acquire_many`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn try_acquire_many(&self, permits: u16) -> Result<Option<Vec<Permit>>, Error> {
        let permits = self.runtime.block_on(self.inner.try_acquire_many(permits))?;
        Ok(permits.map(|permits| self.permits_of(permits)))
    }

    /// As [`crate::PermitSemaphore::try_acquire_many_for`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn try_acquire_many_for(&self, permits: u16, wait: Duration) -> Result<Option<Vec<Permit>>, Error> {
        let permits = self.runtime.block_on(self.inner.try_acquire_many_for(permits, wait))?;
        Ok(permits.map(|permits| self.permits_of(permits)))
    }

    /// As [`Lock::run`](super::Lock::run), with a permit.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire), and as there.
    pub fn run<T>(&self, work: impl FnOnce(&Permit) -> T) -> Result<T, Error> {
        Self::run_under(self.acquire()?, work)
    }

    /// [`run`](Self::run) for work that can fail, as [`Lock::try_run`](super::Lock::try_run).
    ///
    /// # Errors
    ///
    /// What `work` returns, after the permit was given back; and all of [`run`](Self::run).
    pub fn try_run<T, E: From<Error>>(&self, work: impl FnOnce(&Permit) -> Result<T, E>) -> Result<T, E> {
        self.run(work)?
    }

    /// [`try_run`](Self::try_run) that waits up to `wait`, as [`Lock::try_run_for`](super::Lock::try_run_for).
    ///
    /// # Errors
    ///
    /// What `work` returns, after the permit was given back; and all of [`try_acquire_for`](Self::try_acquire_for) and [`run`](Self::run).
    pub fn try_run_for<T, E: From<Error>>(
        &self,
        wait: Duration,
        work: impl FnOnce(&Permit) -> Result<T, E>,
    ) -> Result<Option<T>, E> {
        match self.try_acquire_for(wait)? {
            Some(permit) => Self::run_under(permit, work)?.map(Some),
            None => Ok(None),
        }
    }

    /// Runs `work` under what was granted, and gives that back.
    fn run_under<T>(permit: Permit, work: impl FnOnce(&Permit) -> T) -> Result<T, Error> {
        let result = work(&permit);
        permit.runtime.block_on(permit.inner.end_work())?;
        Ok(result)
    }

    /// As [`crate::PermitSemaphore::release`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn release(&self, permit: PermitId) -> Result<bool, Error> {
        self.runtime.block_on(self.inner.release(permit))
    }

    /// As [`crate::PermitSemaphore::release_many`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn release_many(&self, permits: &[PermitId]) -> Result<bool, Error> {
        self.runtime.block_on(self.inner.release_many(permits))
    }

    /// As [`crate::PermitSemaphore::extend`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn extend(&self, permit: PermitId, lease: Duration) -> Result<bool, Error> {
        self.runtime.block_on(self.inner.extend(permit, lease))
    }

    /// As [`crate::PermitSemaphore::remaining_lease`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn remaining_lease(&self, permit: PermitId) -> Result<Option<Duration>, Error> {
        self.runtime.block_on(self.inner.remaining_lease(permit))
    }

    /// As [`crate::PermitSemaphore::try_set_permits`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn try_set_permits(&self, permits: u32) -> Result<bool, Error> {
        self.runtime.block_on(self.inner.try_set_permits(permits))
    }

    /// As [`crate::PermitSemaphore::set_permits`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn set_permits(&self, permits: u32) -> Result<i64, Error> {
        self.runtime.block_on(self.inner.set_permits(permits))
    }

    /// As [`crate::PermitSemaphore::add_permits`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn add_permits(&self, permits: i64) -> Result<i64, Error> {
        self.runtime.block_on(self.inner.add_permits(permits))
    }

    /// As [`crate::PermitSemaphore::available`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn available(&self) -> Result<i64, Error> {
        self.runtime.block_on(self.inner.available())
    }

    /// As [`crate::PermitSemaphore::acquired`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn acquired(&self) -> Result<u64, Error> {
        self.runtime.block_on(self.inner.acquired())
    }

    /// As [`crate::PermitSemaphore::permits`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn permits(&self) -> Result<i64, Error> {
        self.runtime.block_on(self.inner.permits())
    }

    /// As [`crate::PermitSemaphore::delete`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn delete(&self) -> Result<bool, Error> {
        self.runtime.block_on(self.inner.delete())
    }

    fn permit(&self, inner: crate::Permit) -> Permit {
        Permit { inner, runtime: Arc::clone(&self.runtime) }
    }

    fn permits_of(&self, permits: Vec<crate::Permit>) -> Vec<Permit> {
        permits.into_iter().map(|permit| self.permit(permit)).collect()
    }
}

impl fmt::Debug for PermitSemaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// One permit of a [`PermitSemaphore`], as [`crate::Permit`] is. Dropping it gives the permit back in the background.
///
/// ```no_run
/// # fn example(locks: wheellock::blocking::LockManager) -> Result<(), wheellock::Error> {
/// let permit = locks.permit_semaphore("licences").acquire()?;
/// println!("{} is ours: {}", permit.id(), permit.is_valid());
/// permit.release()?;
/// # Ok(())
/// # }
/// ```
#[must_use = "the permit is given back at once if it is not kept"]
pub struct Permit {
    inner: crate::Permit,
    runtime: Arc<Served>,
}

impl Permit {
    /// As [`crate::Permit::id`].
    pub fn id(&self) -> PermitId {
        self.inner.id()
    }

    /// As [`crate::Guard::valid_until`].
    pub fn valid_until(&self) -> BootInstant {
        self.inner.valid_until()
    }

    /// As [`crate::Guard::is_valid`].
    pub fn is_valid(&self) -> bool {
        self.inner.is_valid()
    }

    /// Blocks until the permit can no longer be believed held, and tells why.
    pub fn lost(&self) -> LostReason {
        self.runtime.block_on(self.inner.lost())
    }

    /// As [`crate::Guard::renew`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn renew(&self) -> Result<(), Error> {
        self.runtime.block_on(self.inner.renew())
    }

    /// As [`crate::Permit::release`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn release(self) -> Result<Released, Error> {
        self.runtime.block_on(self.inner.release())
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// A latch for threads, as [`crate::CountDownLatch`] is.
///
/// ```no_run
/// # fn example(locks: wheellock::blocking::LockManager) -> Result<(), Box<dyn std::error::Error>> {
/// let ready = locks.count_down_latch("ready");
/// ready.try_set_count(3.try_into()?)?;
/// ready.count_down()?; // each of three workers
/// ready.wait()?; // all who wait for them
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct CountDownLatch {
    inner: crate::CountDownLatch,
    runtime: Arc<Served>,
}

impl CountDownLatch {
    /// The latch's name, which is also its key on the server.
    pub fn name(&self) -> &str {
        self.inner.name()
    }

    /// As [`crate::CountDownLatch::try_set_count`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn try_set_count(&self, count: NonZeroU32) -> Result<bool, Error> {
        self.runtime.block_on(self.inner.try_set_count(count))
    }

    /// As [`crate::CountDownLatch::count_down`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn count_down(&self) -> Result<u64, Error> {
        self.runtime.block_on(self.inner.count_down())
    }

    /// As [`crate::CountDownLatch::wait`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn wait(&self) -> Result<(), Error> {
        self.runtime.block_on(self.inner.wait())
    }

    /// As [`crate::CountDownLatch::wait_for`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn wait_for(&self, wait: Duration) -> Result<bool, Error> {
        self.runtime.block_on(self.inner.wait_for(wait))
    }

    /// As [`crate::CountDownLatch::count`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn count(&self) -> Result<u64, Error> {
        self.runtime.block_on(self.inner.count())
    }

    /// As [`crate::CountDownLatch::delete`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn delete(&self) -> Result<bool, Error> {
        self.runtime.block_on(self.inner.delete())
    }
}

impl fmt::Debug for CountDownLatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl LockManager {
    /// As [`crate::LockManager::semaphore`].
    pub fn semaphore(&self, name: &str) -> Semaphore {
        Semaphore { inner: self.inner.semaphore(name), runtime: Arc::clone(&self.runtime) }
    }

    /// As [`crate::LockManager::permit_semaphore`].
    pub fn permit_semaphore(&self, name: &str) -> PermitSemaphore {
        PermitSemaphore { inner: self.inner.permit_semaphore(name), runtime: Arc::clone(&self.runtime) }
    }

    /// As [`crate::LockManager::count_down_latch`].
    pub fn count_down_latch(&self, name: &str) -> CountDownLatch {
        CountDownLatch { inner: self.inner.count_down_latch(name), runtime: Arc::clone(&self.runtime) }
    }
}
