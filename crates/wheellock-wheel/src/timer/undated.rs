//! Timers that were armed without a look at the clock. Owns which of them wait for their deadline, and until when the driver has to look.
//!
//! A look at the clock costs as much as all else that arming a timer takes. Where many are armed, one look does for several: whoever looks
//! next gives those before it their deadlines, counted from that moment. So none is early; and none is late by more than the time until that
//! look. It comes after the sixteenth at the latest, and should there not be that many, the driver looks within a step of the wheel: those
//! who arm rely on it only while it has promised that, and while it is not busy with what it fires.
//!
//! Knows no clock: who looks says what it saw.

use std::time::{Duration, Instant};

use super::clock::{NEVER, Ticks};
use crate::TimerKey;

pub(crate) struct Undated {
    /// In the order in which they were armed, for how long each. Some may have left since.
    waiting: [Option<(TimerKey, Duration)>; MOST],
    count: usize,
    /// When somebody looked at the clock last, before all of those were armed.
    looked_at: Instant,
    /// The step at which the driver will look; `NEVER` while too few are armed to wake it for.
    look: u64,
    /// How many were armed without a look since the driver's last one.
    armed: u32,
    /// When `MANY` had been armed last, each with a look.
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

    /// Whether the driver will look soon, so that some may be armed without a look.
    #[inline]
    pub(crate) fn is_looked_for(&self) -> bool {
        self.look != NEVER
    }

    /// The step at which the driver has to look at the latest, if it has to.
    pub(crate) fn look(&self) -> Option<u64> {
        self.is_looked_for().then_some(self.look)
    }

    /// One was armed without a look. There is room for it.
    #[inline]
    pub(crate) fn push(&mut self, key: TimerKey, delay: Duration) {
        if let Some(place) = self.waiting.get_mut(self.count) {
            *place = Some((key, delay));
            self.count += 1;
            self.armed = self.armed.saturating_add(1);
        }
    }

    /// Hands those that wait to whoever has looked, and says when somebody had looked before they were armed.
    pub(crate) fn take(
        &mut self,
        now: Instant,
    ) -> (Instant, impl Iterator<Item = (TimerKey, Duration)> + use<>) {
        let count = std::mem::take(&mut self.count);
        let earlier = std::mem::replace(&mut self.looked_at, now);
        (earlier, self.waiting.into_iter().take(count).flatten())
    }

    /// `MANY` were armed, each with a look. If that took less than a step, the driver is to look from now on: at the step returned, which it
    /// has to be [told](Self::told).
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

    /// The driver has been told, or there is none.
    pub(crate) fn told(&mut self, it_will_look: bool) {
        if !it_will_look {
            self.look = NEVER;
        }
    }

    /// The driver has looked, at `now` and in this step; none is undated. Says whether it goes on: as long as many are armed from one look to
    /// the next.
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

/// Timers that share a look at the clock: a look costs 30 ns, and to give one timer its deadline 10.
const MOST: usize = 16;

/// Timers a step from which on it pays to wake the driver for them: to wake it takes 5 to 20 us, and each saves 40 ns.
#[cfg(not(loom))]
pub(crate) const MANY: u32 = 512;
#[cfg(loom)]
pub(crate) const MANY: u32 = 1;
