//! Agreement between arming threads and the driver on the next wake-up.
//!
//! `promised` is the tick at which the driver will look on its own. A thread that arms an earlier timer lowers it and wakes the driver. A
//! thread that arms a later timer, or cancels a timer, does nothing.
//!
//! A turn of the driver has four steps:
//! 1. [`Alarm::open`] promises nothing, so that every arming thread notifies the driver.
//! 2. The driver scans every shard under its lock.
//! 3. [`Alarm::promise`] promises the earliest deadline that the scan has seen.
//! 4. The driver sleeps until then.
//!
//! The scan of a shard may miss an insert. The shard's lock then orders the two. The inserting thread sees the open promise or the new
//! promise, and notifies the driver if necessary. This is the most subtle code of the crate; the model checker checks it.

use crate::sync::CachePadded;
use crate::sync::atomic::{AtomicU64, Ordering};

#[derive(Debug)]
pub(crate) struct Alarm {
    /// The promised tick. Every insert reads it and few writes occur, so it has its own cache lines.
    promised: CachePadded<AtomicU64>,
}

impl Alarm {
    pub(crate) fn new() -> Self {
        Self { promised: CachePadded(AtomicU64::new(IDLE)) }
    }

    /// Returns true if the driver would look later than `tick`. Call it after an insert at `tick`, with the shard unlocked.
    #[inline]
    #[must_use]
    pub(crate) fn is_later_than(&self, tick: u64) -> bool {
        tick < self.promised.0.load(Ordering::Acquire)
    }

    /// Returns the promised tick, or the latest tick of all if no look is promised.
    pub(crate) fn promised(&self) -> u64 {
        self.promised.0.load(Ordering::Acquire)
    }

    /// Requests a look at `tick`. Returns true if the driver must be woken for it.
    #[must_use]
    pub(crate) fn lower(&self, tick: u64) -> bool {
        tick < self.promised.0.fetch_min(tick, Ordering::AcqRel)
    }

    /// Opens the promise before a scan. Returns the old promise, which may be a request that the driver has not seen.
    pub(crate) fn open(&self) -> u64 {
        self.promised.0.swap(IDLE, Ordering::AcqRel)
    }

    /// Promises `tick` after a scan. An earlier request from an arming thread remains.
    pub(crate) fn promise(&self, tick: u64) {
        self.promised.0.fetch_min(tick, Ordering::AcqRel);
    }
}

/// The promise of a driver that sleeps until it is woken.
const IDLE: u64 = u64::MAX;
