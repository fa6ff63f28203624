//! A sleep that repeats.
//!
//! Owns what happens to ticks that were missed. Everything else is [`Sleep`].

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use super::sleep::Sleep;

/// What an [`Interval`] does after it was not polled in time.
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
    /// Deliver every missed tick at once, then go on as planned.
    #[default]
    Burst,
    /// Go on one period after the late tick.
    Delay,
    /// Leave missed ticks out and go on at the next multiple of the period.
    Skip,
}

/// Ticks at a fixed period; made by [`Timer::interval`](super::Timer::interval).
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
    /// `first` ends at the first tick.
    pub(crate) fn new(first: Sleep, period: Duration) -> Self {
        Self {
            sleep: first,
            // A period of zero would never let its task rest.
            period: period.max(Duration::from_nanos(1)),
            missed: MissedTicks::default(),
        }
    }

    /// Waits for the next tick and returns the instant it was planned for. The first completes at once.
    ///
    /// # Cancel safety
    /// A tick is only taken when this returns; dropping the future loses none.
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

    /// Starts over: the next tick is one period from now.
    pub fn reset(&mut self) {
        self.sleep.reset(add(self.sleep.now(), self.period));
    }

    /// The time between ticks.
    #[must_use]
    pub fn period(&self) -> Duration {
        self.period
    }

    /// What happens to missed ticks; [`MissedTicks::Burst`] unless set.
    #[must_use]
    pub fn missed_ticks(&self) -> MissedTicks {
        self.missed
    }

    /// Sets what happens to missed ticks.
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

/// A deadline that is too far for an `Instant` becomes one 30 years away.
pub(crate) fn add(now: Instant, duration: Duration) -> Instant {
    now.checked_add(duration).or_else(|| now.checked_add(FAR_FUTURE)).unwrap_or(now)
}

/// Far enough to be never, near enough for every platform's `Instant`.
const FAR_FUTURE: Duration = Duration::from_secs(30 * 365 * 24 * 3600);
