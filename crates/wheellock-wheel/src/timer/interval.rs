//! Repeating sleeps.
//!
//! This module decides how to handle missed ticks. [`Sleep`] does the rest.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use super::sleep::Sleep;

/// The behaviour of an [`Interval`] that was not polled in time.
///
/// ```
/// use std::time::Duration;
/// use wheellock_wheel::{MissedTicks, Timer};
///
/// let mut heartbeat = Timer::global().interval(Duration::from_secs(1));
/// heartbeat.set_missed_ticks(MissedTicks::Skip); // after a pause: one tick, not one for each second
/// assert_eq!(heartbeat.missed_ticks(), MissedTicks::Skip);
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum MissedTicks {
    /// Deliver every missed tick at once, then continue as planned.
    #[default]
    Burst,
    /// Continue one period after the late tick.
    Delay,
    /// Skip the missed ticks and continue at the next multiple of the period.
    Skip,
}

/// Ticks at a fixed period, made by [`Timer::interval`](super::Timer::interval).
///
/// ```
/// use std::time::Duration;
/// use wheellock_wheel::Timer;
///
/// # async fn example() {
/// let mut heartbeat = Timer::global().interval(Duration::from_secs(1));
/// for _ in 0..3 {
///     let planned = heartbeat.tick().await; // the first comes at once
///     println!("due at {planned:?}");
/// }
/// # }
/// ```
#[derive(Debug)]
pub struct Interval {
    sleep: Sleep,
    period: Duration,
    missed: MissedTicks,
}

impl Interval {
    /// Creates an interval whose first tick is the end of `first`.
    pub(crate) fn new(first: Sleep, period: Duration) -> Self {
        Self {
            sleep: first,
            // With a period of zero, the interval would always be ready and its task would never rest.
            period: period.max(Duration::from_nanos(1)),
            missed: MissedTicks::default(),
        }
    }

    /// Waits for the next tick and returns the instant for which it was planned. The first tick completes at once.
    ///
    /// # Cancel safety
    /// A tick is consumed only when this method returns. Dropping the future loses no tick.
    pub async fn tick(&mut self) -> Instant {
        poll_fn(|cx| self.poll_tick(cx)).await
    }

    /// Polls for the next tick.
    pub fn poll_tick(&mut self, cx: &mut Context<'_>) -> Poll<Instant> {
        ready!(Pin::new(&mut self.sleep).poll(cx));
        let planned = self.sleep.deadline();
        self.sleep.reset(self.after(planned));
        Poll::Ready(planned)
    }

    /// Restarts the interval: the next tick is one period from now.
    pub fn reset(&mut self) {
        self.sleep.reset(add(self.sleep.now(), self.period));
    }

    /// Returns the time between ticks.
    #[must_use]
    pub fn period(&self) -> Duration {
        self.period
    }

    /// Returns how missed ticks are handled. The default is [`MissedTicks::Burst`].
    #[must_use]
    pub fn missed_ticks(&self) -> MissedTicks {
        self.missed
    }

    /// Sets how missed ticks are handled.
    pub fn set_missed_ticks(&mut self, missed: MissedTicks) {
        self.missed = missed;
    }

    fn after(&self, planned: Instant) -> Instant {
        let next = add(planned, self.period);
        let now = self.sleep.now();
        if next > now {
            return next;
        }
        match self.missed {
            MissedTicks::Burst => next,
            MissedTicks::Delay => add(now, self.period),
            MissedTicks::Skip => {
                let into = now.saturating_duration_since(planned).as_nanos() % self.period.as_nanos();
                let into = Duration::from_nanos(u64::try_from(into).unwrap_or(u64::MAX));
                add(now, self.period.saturating_sub(into))
            }
        }
    }
}

/// Adds the duration. A result beyond the range of `Instant` becomes a deadline 30 years away.
pub(crate) fn add(now: Instant, duration: Duration) -> Instant {
    now.checked_add(duration).or_else(|| now.checked_add(FAR_FUTURE)).unwrap_or(now)
}

/// Far enough to mean never, near enough for the `Instant` of every platform.
const FAR_FUTURE: Duration = Duration::from_secs(30 * 365 * 24 * 3600);
