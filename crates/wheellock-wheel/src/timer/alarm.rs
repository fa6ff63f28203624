//! The promise between those who arm timers and the one that fires them. The only subtle code of the crate; model-checked.
//!
//! `promised` is the tick at which the driver will look again of its own accord. Whoever arms an earlier timer lowers it and
//! wakes the driver; whoever arms a later one, or cancels, does nothing at all.
//!
//! A turn of the driver is: [`Alarm::open`] (promise nothing, so that everyone tells), scan every shard under its lock,
//! [`Alarm::promise`] the earliest deadline seen, then sleep until then. If the scan of a shard missed an insert, the
//! shard's lock orders the two, so the inserter sees the open promise or the new one, and tells if it must.

use crate::sync::CachePadded;
use crate::sync::atomic::{AtomicU64, Ordering};

#[derive(Debug)]
pub(crate) struct Alarm {
    /// Read by every insert and written rarely, hence apart from everything else.
    promised: CachePadded<AtomicU64>,
}

impl Alarm {
    pub(crate) fn new() -> Self {
        Self { promised: CachePadded(AtomicU64::new(IDLE)) }
    }

    /// After an insert at `tick`, its shard unlocked again: false if the driver looks by then.
    #[inline]
    #[must_use]
    pub(crate) fn is_later_than(&self, tick: u64) -> bool {
        tick < self.promised.0.load(Ordering::Acquire)
    }

    /// Asks for a look at `tick`: true if the driver must be woken for that.
    #[must_use]
    pub(crate) fn lower(&self, tick: u64) -> bool {
        tick < self.promised.0.fetch_min(tick, Ordering::AcqRel)
    }

    /// Before a scan. Returns what was promised, which may be a wish of an inserter that the driver has not seen.
    pub(crate) fn open(&self) -> u64 {
        self.promised.0.swap(IDLE, Ordering::AcqRel)
    }

    /// After a scan. Never raises what an inserter has asked for meanwhile.
    pub(crate) fn promise(&self, tick: u64) {
        self.promised.0.fetch_min(tick, Ordering::AcqRel);
    }
}

/// The driver sleeps until woken.
const IDLE: u64 = u64::MAX;
