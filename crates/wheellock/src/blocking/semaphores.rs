//! Semaphores and latches for threads.
//!
//! This module adds only the waiting. See [`crate::Semaphore`], [`crate::PermitSemaphore`] and [`crate::CountDownLatch`].

use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use super::LockManager;
use super::lock::{Guard, Lock};
use super::served::Served;
use crate::{Attempt, Error, PermitId};

/// A semaphore without holders, for threads, like [`crate::Semaphore`]. The permits of a process that dies are gone until another
/// process adds them.
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
#[must_use = "this is only a handle: call `acquire()` to take permits"]
#[derive(Clone)]
pub struct Semaphore {
    inner: crate::Semaphore,
    runtime: Arc<Served>,
}

impl Semaphore {
    /// Returns the semaphore's name, which is also its key on the server.
    pub fn name(&self) -> &str {
        self.inner.name()
    }

    /// Works like [`crate::Semaphore::acquire`].
    ///
    /// # Errors
    ///
    /// Returns the errors of [`crate::Semaphore::acquire`].
    #[track_caller]
    pub fn acquire(&self, permits: u32) -> Result<Permits, Error> {
        self.runtime.block_on(self.inner.acquire(permits)).map(|permits| self.permits(permits))
    }

    /// Works like [`crate::Semaphore::try_acquire`].
    ///
    /// # Errors
    ///
    /// Returns the errors of [`crate::Semaphore::try_acquire`].
    #[track_caller]
    pub fn try_acquire(&self, permits: u32) -> Result<Attempt<Permits>, Error> {
        let permits = self.runtime.block_on(self.inner.try_acquire(permits))?;
        Ok(permits.map(|permits| self.permits(permits)))
    }

    /// Works like [`crate::Semaphore::try_acquire_for`].
    ///
    /// # Errors
    ///
    /// Returns the errors of [`crate::Semaphore::try_acquire_for`].
    #[track_caller]
    pub fn try_acquire_for(&self, permits: u32, wait: Duration) -> Result<Attempt<Permits>, Error> {
        let permits = self.runtime.block_on(self.inner.try_acquire_for(permits, wait))?;
        Ok(permits.map(|permits| self.permits(permits)))
    }

    /// Works like [`crate::Semaphore::release`].
    ///
    /// # Errors
    ///
    /// Returns the errors of [`crate::Semaphore::release`].
    #[track_caller]
    pub fn release(&self, permits: u32) -> Result<(), Error> {
        self.runtime.block_on(self.inner.release(permits))
    }

    /// Works like [`crate::Semaphore::try_set_permits`].
    ///
    /// # Errors
    ///
    /// Returns the errors of [`crate::Semaphore::try_set_permits`].
    #[track_caller]
    pub fn try_set_permits(&self, permits: u32) -> Result<bool, Error> {
        self.runtime.block_on(self.inner.try_set_permits(permits))
    }

    /// Works like [`crate::Semaphore::add_permits`].
    ///
    /// # Errors
    ///
    /// Returns the errors of [`crate::Semaphore::add_permits`].
    #[track_caller]
    pub fn add_permits(&self, permits: i64) -> Result<i64, Error> {
        self.runtime.block_on(self.inner.add_permits(permits))
    }

    /// Works like [`crate::Semaphore::drain`].
    ///
    /// # Errors
    ///
    /// Returns the errors of [`crate::Semaphore::drain`].
    #[track_caller]
    pub fn drain(&self) -> Result<u64, Error> {
        self.runtime.block_on(self.inner.drain())
    }

    /// Works like [`crate::Semaphore::available`].
    ///
    /// # Errors
    ///
    /// Returns the errors of [`crate::Semaphore::available`].
    #[track_caller]
    pub fn available(&self) -> Result<i64, Error> {
        self.runtime.block_on(self.inner.available())
    }

    /// Works like [`crate::Semaphore::delete`].
    ///
    /// # Errors
    ///
    /// Returns the errors of [`crate::Semaphore::delete`].
    #[track_caller]
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

/// A number of permits of a [`Semaphore`], like [`crate::Permits`]. Dropping them releases them in the background.
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
    /// Returns the number of these permits.
    pub fn count(&self) -> u32 {
        self.inner.count()
    }

    /// Works like [`crate::Permits::split`].
    pub fn split(&mut self, permits: u32) -> Option<Self> {
        Some(Self { inner: self.inner.split(permits)?, runtime: Arc::clone(&self.runtime) })
    }

    /// Works like [`crate::Permits::forget`].
    pub fn forget(self) {
        self.inner.forget();
    }

    /// Works like [`crate::Permits::release`].
    ///
    /// # Errors
    ///
    /// Returns the errors of [`crate::Permits::release`].
    #[track_caller]
    pub fn release(self) -> Result<(), Error> {
        self.runtime.block_on(self.inner.release())
    }
}

impl fmt::Debug for Permits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// A semaphore with leased permits, for threads, like [`crate::PermitSemaphore`]. A thread does not own a permit, so a thread
/// that has a permit and acquires again gets a second permit.
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
///
/// It also has the methods of every [`Lock`].
pub type PermitSemaphore = Lock<crate::PermitSemaphore>;

impl PermitSemaphore {
    /// Returns the semaphore's name, which is also its key on the server.
    pub fn name(&self) -> &str {
        self.inner.name()
    }

    /// Works like [`crate::PermitSemaphore::acquire_many`].
    ///
    /// # Errors
    ///
    /// Returns the errors of [`crate::PermitSemaphore::acquire_many`].
    #[track_caller]
    pub fn acquire_many(&self, permits: u16) -> Result<Vec<Permit>, Error> {
        self.runtime.block_on(self.inner.acquire_many(permits)).map(|permits| self.permits_of(permits))
    }

    /// Works like [`crate::PermitSemaphore::try_acquire_many`].
    ///
    /// # Errors
    ///
    /// Returns the errors of [`crate::PermitSemaphore::try_acquire_many`].
    #[track_caller]
    pub fn try_acquire_many(&self, permits: u16) -> Result<Attempt<Vec<Permit>>, Error> {
        let permits = self.runtime.block_on(self.inner.try_acquire_many(permits))?;
        Ok(permits.map(|permits| self.permits_of(permits)))
    }

    /// Works like [`crate::PermitSemaphore::try_acquire_many_for`].
    ///
    /// # Errors
    ///
    /// Returns the errors of [`crate::PermitSemaphore::try_acquire_many_for`].
    #[track_caller]
    pub fn try_acquire_many_for(&self, permits: u16, wait: Duration) -> Result<Attempt<Vec<Permit>>, Error> {
        let permits = self.runtime.block_on(self.inner.try_acquire_many_for(permits, wait))?;
        Ok(permits.map(|permits| self.permits_of(permits)))
    }

    /// Works like [`crate::PermitSemaphore::release`].
    ///
    /// # Errors
    ///
    /// Returns the errors of [`crate::PermitSemaphore::release`].
    #[track_caller]
    pub fn release(&self, permit: PermitId) -> Result<bool, Error> {
        self.runtime.block_on(self.inner.release(permit))
    }

    /// Works like [`crate::PermitSemaphore::release_many`].
    ///
    /// # Errors
    ///
    /// Returns the errors of [`crate::PermitSemaphore::release_many`].
    #[track_caller]
    pub fn release_many(&self, permits: &[PermitId]) -> Result<bool, Error> {
        self.runtime.block_on(self.inner.release_many(permits))
    }

    /// Works like [`crate::PermitSemaphore::extend`].
    ///
    /// # Errors
    ///
    /// Returns the errors of [`crate::PermitSemaphore::extend`].
    #[track_caller]
    pub fn extend(&self, permit: PermitId, lease: Duration) -> Result<bool, Error> {
        self.runtime.block_on(self.inner.extend(permit, lease))
    }

    /// Works like [`crate::PermitSemaphore::remaining_lease`].
    ///
    /// # Errors
    ///
    /// Returns the errors of [`crate::PermitSemaphore::remaining_lease`].
    #[track_caller]
    pub fn remaining_lease(&self, permit: PermitId) -> Result<Option<Duration>, Error> {
        self.runtime.block_on(self.inner.remaining_lease(permit))
    }

    /// Works like [`crate::PermitSemaphore::try_set_permits`].
    ///
    /// # Errors
    ///
    /// Returns the errors of [`crate::PermitSemaphore::try_set_permits`].
    #[track_caller]
    pub fn try_set_permits(&self, permits: u32) -> Result<bool, Error> {
        self.runtime.block_on(self.inner.try_set_permits(permits))
    }

    /// Works like [`crate::PermitSemaphore::set_permits`].
    ///
    /// # Errors
    ///
    /// Returns the errors of [`crate::PermitSemaphore::set_permits`].
    #[track_caller]
    pub fn set_permits(&self, permits: u32) -> Result<i64, Error> {
        self.runtime.block_on(self.inner.set_permits(permits))
    }

    /// Works like [`crate::PermitSemaphore::add_permits`].
    ///
    /// # Errors
    ///
    /// Returns the errors of [`crate::PermitSemaphore::add_permits`].
    #[track_caller]
    pub fn add_permits(&self, permits: i64) -> Result<i64, Error> {
        self.runtime.block_on(self.inner.add_permits(permits))
    }

    /// Works like [`crate::PermitSemaphore::available`].
    ///
    /// # Errors
    ///
    /// Returns the errors of [`crate::PermitSemaphore::available`].
    #[track_caller]
    pub fn available(&self) -> Result<i64, Error> {
        self.runtime.block_on(self.inner.available())
    }

    /// Works like [`crate::PermitSemaphore::acquired`].
    ///
    /// # Errors
    ///
    /// Returns the errors of [`crate::PermitSemaphore::acquired`].
    #[track_caller]
    pub fn acquired(&self) -> Result<u64, Error> {
        self.runtime.block_on(self.inner.acquired())
    }

    /// Works like [`crate::PermitSemaphore::permits`].
    ///
    /// # Errors
    ///
    /// Returns the errors of [`crate::PermitSemaphore::permits`].
    #[track_caller]
    pub fn permits(&self) -> Result<i64, Error> {
        self.runtime.block_on(self.inner.permits())
    }

    /// Works like [`crate::PermitSemaphore::delete`].
    ///
    /// # Errors
    ///
    /// Returns the errors of [`crate::PermitSemaphore::delete`].
    #[track_caller]
    pub fn delete(&self) -> Result<bool, Error> {
        self.runtime.block_on(self.inner.delete())
    }

    fn permits_of(&self, permits: Vec<crate::Permit>) -> Vec<Permit> {
        permits.into_iter().map(|permit| self.guard(permit)).collect()
    }
}

/// One permit of a [`PermitSemaphore`], like [`crate::Permit`]. Dropping it releases the permit in the background.
///
/// ```no_run
/// # fn example(locks: wheellock::blocking::LockManager) -> Result<(), wheellock::Error> {
/// let permit = locks.permit_semaphore("licences").acquire()?;
/// println!("{} is ours: {}", permit.id(), permit.is_valid());
/// permit.release()?;
/// # Ok(())
/// # }
/// ```
///
/// It has the methods of every [`Guard`].
pub type Permit = Guard<crate::PermitSemaphore>;

impl Permit {
    /// Works like [`crate::Permit::id`].
    pub fn id(&self) -> PermitId {
        self.inner.id()
    }
}

/// A latch for threads, like [`crate::CountDownLatch`].
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
#[must_use = "this is only a handle: call `wait()` to wait for the latch"]
#[derive(Clone)]
pub struct CountDownLatch {
    inner: crate::CountDownLatch,
    runtime: Arc<Served>,
}

impl CountDownLatch {
    /// Returns the latch's name, which is also its key on the server.
    pub fn name(&self) -> &str {
        self.inner.name()
    }

    /// Works like [`crate::CountDownLatch::try_set_count`].
    ///
    /// # Errors
    ///
    /// Returns the errors of [`crate::CountDownLatch::try_set_count`].
    #[track_caller]
    pub fn try_set_count(&self, count: NonZeroU32) -> Result<bool, Error> {
        self.runtime.block_on(self.inner.try_set_count(count))
    }

    /// Works like [`crate::CountDownLatch::count_down`].
    ///
    /// # Errors
    ///
    /// Returns the errors of [`crate::CountDownLatch::count_down`].
    #[track_caller]
    pub fn count_down(&self) -> Result<u64, Error> {
        self.runtime.block_on(self.inner.count_down())
    }

    /// Works like [`crate::CountDownLatch::wait`].
    ///
    /// # Errors
    ///
    /// Returns the errors of [`crate::CountDownLatch::wait`].
    #[track_caller]
    pub fn wait(&self) -> Result<(), Error> {
        self.runtime.block_on(self.inner.wait())
    }

    /// Works like [`crate::CountDownLatch::wait_for`].
    ///
    /// # Errors
    ///
    /// Returns the errors of [`crate::CountDownLatch::wait_for`].
    #[track_caller]
    pub fn wait_for(&self, wait: Duration) -> Result<bool, Error> {
        self.runtime.block_on(self.inner.wait_for(wait))
    }

    /// Works like [`crate::CountDownLatch::count`].
    ///
    /// # Errors
    ///
    /// Returns the errors of [`crate::CountDownLatch::count`].
    #[track_caller]
    pub fn count(&self) -> Result<u64, Error> {
        self.runtime.block_on(self.inner.count())
    }

    /// Works like [`crate::CountDownLatch::delete`].
    ///
    /// # Errors
    ///
    /// Returns the errors of [`crate::CountDownLatch::delete`].
    #[track_caller]
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
    /// Works like [`crate::LockManager::semaphore`].
    pub fn semaphore(&self, name: impl AsRef<str>) -> Semaphore {
        Semaphore { inner: self.inner.semaphore(name.as_ref()), runtime: Arc::clone(&self.runtime) }
    }

    /// Works like [`crate::LockManager::permit_semaphore`].
    pub fn permit_semaphore(&self, name: impl AsRef<str>) -> PermitSemaphore {
        Lock::new(self.inner.permit_semaphore(name.as_ref()), &self.runtime)
    }

    /// Works like [`crate::LockManager::count_down_latch`].
    pub fn count_down_latch(&self, name: impl AsRef<str>) -> CountDownLatch {
        CountDownLatch {
            inner: self.inner.count_down_latch(name.as_ref()),
            runtime: Arc::clone(&self.runtime),
        }
    }
}
