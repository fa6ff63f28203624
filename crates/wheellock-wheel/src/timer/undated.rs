//! Timers that were armed without reading the clock.
//!
//! Reading the clock costs as much as the rest of arming a timer. If many timers are armed, one reading serves several of them. The next
//! reading dates all timers armed before it: their delays count from that moment. A timer is therefore never early, and it is late by at
//! most the time until that reading.
//!
//! The reading happens at the sixteenth timer at the latest. If fewer timers are armed, the driver reads the clock within one step of the
//! wheel. Threads arm without a reading only while the driver has promised this and is not busy firing timers.
//!
//! This module does not read the clock; the caller passes the time in.

use std::time::{Duration, Instant};

use super::clock::{NEVER, Ticks};
use crate::TimerKey;

pub(crate) struct Undated {
    /// The undated timers and their delays, in the order of arming. Some may be cancelled by now.
    waiting: [Option<(TimerKey, Duration)>; MOST],
    count: usize,
    /// The last reading of the clock, before all of these timers were armed.
    looked_at: Instant,
    /// The step at which the driver will read the clock. `NEVER` while too few timers are armed to wake it.
    look: u64,
    /// Number of timers armed without a reading since the driver's last reading.
    armed: u32,
    /// When the last `MANY` timers had been armed, each with its own reading.
    many_at: Instant,
}

impl Undated {
    pub(crate) fn new(now: Instant) -> Self {
        Self { waiting: [None; MOST], count: 0, looked_at: now, look: NEVER, armed: 0, many_at: now }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.count == MOST
    }

    /// Returns true if the driver will read the clock soon, so that timers may be armed without a reading.
    #[inline]
    pub(crate) fn is_looked_for(&self) -> bool {
        self.look != NEVER
    }

    /// Returns the step by which the driver has to read the clock, if it has to.
    pub(crate) fn look(&self) -> Option<u64> {
        self.is_looked_for().then_some(self.look)
    }

    /// Adds a timer that was armed without a reading. The caller has checked that there is room.
    #[inline]
    pub(crate) fn push(&mut self, key: TimerKey, delay: Duration) {
        if let Some(place) = self.waiting.get_mut(self.count) {
            *place = Some((key, delay));
            self.count += 1;
            self.armed = self.armed.saturating_add(1);
        }
    }

    /// Takes all undated timers and records the reading `now`. Also returns the last reading before they were armed.
    pub(crate) fn take(
        &mut self,
        now: Instant,
    ) -> (Instant, impl Iterator<Item = (TimerKey, Duration)> + use<>) {
        let count = std::mem::take(&mut self.count);
        let earlier = std::mem::replace(&mut self.looked_at, now);
        (earlier, self.waiting.into_iter().take(count).flatten())
    }

    /// Records that `MANY` timers were armed, each with its own reading. If that took less than a step, the driver should read the clock
    /// from now on. Returns the step of its first reading; the caller must notify the driver and report the result to [`told`](Self::told).
    pub(crate) fn many_were_armed(&mut self, now: Instant, ticks: &Ticks) -> Option<u64> {
        let took = now.saturating_duration_since(std::mem::replace(&mut self.many_at, now));
        if self.is_looked_for() || took >= ticks.step() {
            return None;
        }
        self.looked_at = now;
        self.armed = 0;
        self.look = ticks.at_or_before(now) + 1;
        Some(self.look)
    }

    /// Records whether the driver could be notified.
    pub(crate) fn told(&mut self, it_will_look: bool) {
        if !it_will_look {
            self.look = NEVER;
        }
    }

    /// Records the driver's reading at `now`, in `step`; every timer has a deadline by then. Returns true if the driver continues to read
    /// the clock. It continues while at least `MANY` timers are armed between two readings.
    pub(crate) fn looked(&mut self, now: Instant, step: u64) -> bool {
        self.looked_at = self.looked_at.max(now);
        if self.is_looked_for() && self.look <= step {
            self.look = if self.armed < MANY { NEVER } else { step + 1 };
            self.armed = 0;
            self.many_at = now;
        }
        self.is_looked_for()
    }
}

/// Maximum number of timers that share a reading. A reading costs 30 ns; dating one timer costs 10 ns.
const MOST: usize = 16;

/// Timers per step from which waking the driver pays off. A wake-up costs 5 to 20 us, and each timer saves 40 ns.
#[cfg(not(loom))]
pub(crate) const MANY: u32 = 512;
#[cfg(loom)]
pub(crate) const MANY: u32 = 1;
