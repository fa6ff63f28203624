//! Clocks, and the conversion of instants to ticks.
//!
//! Only this module reads a clock. It does not know wheels.

use std::time::{Duration, Instant};

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A source of monotonic time.
#[derive(Debug, Clone)]
pub(crate) enum Clock {
    /// `Instant::now`, which stops while the machine is suspended.
    System,
    /// The runtime's own clock, which `tokio::time::pause` stops.
    #[cfg(feature = "tokio")]
    Tokio,
    /// A clock that is moved by hand.
    Manual(Arc<VirtualTime>),
}

impl Clock {
    #[inline]
    pub(crate) fn now(&self) -> Instant {
        match self {
            Self::System => Instant::now(),
            #[cfg(feature = "tokio")]
            Self::Tokio => tokio::time::Instant::now().into_std(),
            Self::Manual(time) => time.now(),
        }
    }
}

/// Time that moves only on request, and never backwards.
#[derive(Debug)]
pub(crate) struct VirtualTime {
    start: Instant,
    nanos: AtomicU64,
}

impl VirtualTime {
    pub(crate) fn new() -> Self {
        Self { start: Instant::now(), nanos: AtomicU64::new(0) }
    }

    pub(crate) fn now(&self) -> Instant {
        let nanos = Duration::from_nanos(self.nanos.load(Ordering::Acquire));
        self.start.checked_add(nanos).unwrap_or(self.start)
    }

    /// Returns the last representable moment, 584 years after the start.
    pub(crate) fn end(&self) -> Instant {
        self.start.checked_add(Duration::from_nanos(u64::MAX)).unwrap_or(self.start)
    }

    pub(crate) fn move_to(&self, instant: Instant) {
        let nanos = nanos(instant.saturating_duration_since(self.start));
        self.nanos.fetch_max(nanos, Ordering::AcqRel);
    }
}

/// Ticks of equal length, counted from an instant. The wheel counts in steps; a tick is one or two steps.
///
/// A deadline is rounded up to a tick and the present is rounded down. A timer therefore fires never early, and less than a tick late.
#[derive(Debug, Clone)]
pub(crate) struct Ticks {
    start: Instant,
    tick: Duration,
    /// The lowest bit, which is set in a step that does not begin a tick. 0 if every step begins a tick.
    odd: u64,
    nanos_per_step: u64,
    /// 2^64 / `nanos_per_step`, rounded down: a multiplication is cheaper than a division.
    reciprocal: u64,
}

impl Ticks {
    pub(crate) fn new(start: Instant, tick: Duration) -> Self {
        let nanos_per_step = nanos(tick).max(SHORTEST_TICK_NANOS);
        Self {
            start,
            tick: Duration::from_nanos(nanos_per_step),
            odd: 0,
            nanos_per_step,
            reciprocal: u64::MAX / nanos_per_step,
        }
    }

    /// Creates ticks of two steps each.
    pub(crate) fn halved(start: Instant, tick: Duration) -> Self {
        Self { tick, odd: 1, ..Self::new(start, tick / 2) }
    }

    /// Returns the first tick at or after `deadline`, or `NEVER` for a deadline too far to count.
    #[inline]
    pub(crate) fn at_or_after(&self, deadline: Instant) -> u64 {
        self.whole(self.step_at_or_after(deadline))
    }

    /// Returns the first tick at or after `now + delay`.
    #[inline]
    pub(crate) fn after(&self, now: Instant, delay: Duration) -> u64 {
        now.checked_add(delay).map_or(NEVER, |deadline| self.at_or_after(deadline))
    }

    /// Returns the step for a delay that began between `earliest` and `latest`, which must be at most a step apart. The step is not before
    /// the deadline and less than a tick after it. If both moments lead to the same tick, the result is the beginning of that tick.
    pub(crate) fn after_one_between(&self, earliest: Instant, latest: Instant, delay: Duration) -> u64 {
        let Some(deadline) = latest.checked_add(delay) else { return NEVER };
        let step = self.step_at_or_after(deadline);
        if self.after(earliest, delay) == self.whole(step) { self.whole(step) } else { step }
    }

    /// Returns the first tick that begins at or after `step`.
    #[inline]
    pub(crate) fn whole(&self, step: u64) -> u64 {
        step.saturating_add(self.odd) & !self.odd
    }

    #[inline]
    fn step_at_or_after(&self, deadline: Instant) -> u64 {
        let (steps, rest) = self.divide(deadline);
        (steps + u64::from(rest > 0)).min(NEVER)
    }

    /// Returns the last step at or before `now`.
    #[inline]
    pub(crate) fn at_or_before(&self, now: Instant) -> u64 {
        self.divide(now).0
    }

    /// Returns the beginning of a step, or `None` beyond the range of `Instant`.
    pub(crate) fn start_of(&self, step: u64) -> Option<Instant> {
        self.start.checked_add(Duration::from_nanos(step.checked_mul(self.nanos_per_step)?))
    }

    pub(crate) fn tick(&self) -> Duration {
        self.tick
    }

    /// Returns the length of a step.
    pub(crate) fn step(&self) -> Duration {
        Duration::from_nanos(self.nanos_per_step)
    }

    /// Returns true if a tick is two steps.
    pub(crate) fn are_halved(&self) -> bool {
        self.odd > 0
    }

    #[inline]
    fn divide(&self, instant: Instant) -> (u64, u64) {
        let nanos = nanos(instant.saturating_duration_since(self.start));
        // Too small by at most one, because nanos * (1 / step - reciprocal / 2^64) < 1 + nanos / 2^64.
        let steps = ((u128::from(nanos) * u128::from(self.reciprocal)) >> 64) as u64;
        let mut rest = nanos - steps * self.nanos_per_step;
        let mut short = 0;
        while rest >= self.nanos_per_step {
            rest -= self.nanos_per_step;
            short += 1;
        }
        (steps + short, rest)
    }
}

/// The tick of a deadline that never comes (584 years away at nanosecond ticks).
pub(crate) const NEVER: u64 = u64::MAX - 1;

/// The shortest tick, 1 us. A driver cannot keep shorter ticks; they would only make the wheel turn more often.
const SHORTEST_TICK_NANOS: u64 = 1_000;

#[inline]
fn nanos(duration: Duration) -> u64 {
    duration.as_secs().saturating_mul(1_000_000_000).saturating_add(u64::from(duration.subsec_nanos()))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn deadlines_round_up_now_rounds_down() {
        let start = Instant::now();
        for tick in [1_000, 1_024, 3_333, 999_983, 1_000_000, 10_000_000, 100_000_000] {
            let ticks = Ticks::new(start, Duration::from_nanos(tick));
            for count in [0, 1, 2, 3, 1_000, 1 << 20, (1 << 33) + 7, i64::MAX as u64 / tick - 1] {
                let at = |nanos: u64| start + Duration::from_nanos(nanos);
                let exact = count * tick;
                assert_eq!(ticks.at_or_after(at(exact)), count);
                assert_eq!(ticks.at_or_before(at(exact)), count);
                assert_eq!(ticks.at_or_after(at(exact + 1)), count + 1);
                assert_eq!(ticks.at_or_before(at(exact + tick - 1)), count);
                assert_eq!(ticks.start_of(count), Some(at(exact)));
            }
        }
    }

    #[test]
    fn uncertain_start_delays_less_than_tick() {
        let start = Instant::now();
        let at = |nanos: u64| start + Duration::from_nanos(nanos);
        for ticks in [
            Ticks::halved(start, Duration::from_nanos(2_000)),
            Ticks::halved(start, Duration::from_nanos(3_001)),
        ] {
            let (tick, step) = (nanos(ticks.tick()), nanos(ticks.step()));
            assert_eq!(ticks.whole(NEVER), NEVER);
            for delay in [0, 1, step - 1, step, step + 1, tick, 7 * tick, 7 * tick + 333] {
                for earliest in (0..2 * tick).step_by(97) {
                    for latest in [earliest, earliest + 1, earliest + step / 2, earliest + step] {
                        let due =
                            ticks.after_one_between(at(earliest), at(latest), Duration::from_nanos(delay));
                        let due = ticks.start_of(due).unwrap();
                        assert!(due >= at(latest + delay), "early by {:?}", at(latest + delay) - due);
                        assert!(
                            due < at(earliest + delay + tick),
                            "late by {:?}",
                            due - at(earliest + delay)
                        );
                    }
                    let known =
                        ticks.after_one_between(at(earliest), at(earliest), Duration::from_nanos(delay));
                    assert_eq!(known, ticks.after(at(earliest), Duration::from_nanos(delay)));
                    assert_eq!(known % 2, 0, "a whole tick");
                }
            }
        }
    }

    #[test]
    fn out_of_range_is_clamped() {
        let start = Instant::now() + Duration::from_secs(3600);
        let ticks = Ticks::new(start, Duration::ZERO);
        assert_eq!(ticks.tick(), Duration::from_micros(1));
        assert_eq!(ticks.at_or_after(start - Duration::from_secs(1)), 0, "before the start is the start");
        if let Some(far) = start.checked_add(Duration::from_secs(u64::MAX / 4)) {
            assert!(ticks.at_or_after(far) <= NEVER);
        }
        assert_eq!(ticks.start_of(u64::MAX), None);
    }
}
