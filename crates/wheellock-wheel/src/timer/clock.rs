//! Where a timer's time comes from, and how instants become ticks.
//!
//! The only place that reads a clock. Knows nothing of wheels.

use std::time::{Duration, Instant};

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A source of monotonic time.
#[derive(Debug, Clone)]
pub(crate) enum Clock {
    /// `Instant::now`: stops while the machine is suspended.
    System,
    /// The runtime's own clock, which `tokio::time::pause` stops.
    #[cfg(feature = "tokio")]
    Tokio,
    /// Moved by hand.
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

/// Time that only moves when told to, and never backwards.
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

    pub(crate) fn move_to(&self, instant: Instant) {
        let nanos = nanos(instant.saturating_duration_since(self.start));
        self.nanos.fetch_max(nanos, Ordering::AcqRel);
    }
}

/// Ticks of one length, counted from an instant.
///
/// A deadline is rounded up to a tick and the present down, so that nothing fires early, and less than a tick late.
#[derive(Debug, Clone)]
pub(crate) struct Ticks {
    start: Instant,
    nanos_per_tick: u64,
    /// 2^64 / `nanos_per_tick`, rounded down: a multiplication is cheaper than a division.
    reciprocal: u64,
}

impl Ticks {
    pub(crate) fn new(start: Instant, tick: Duration) -> Self {
        let nanos_per_tick = nanos(tick).max(SHORTEST_TICK_NANOS);
        Self { start, nanos_per_tick, reciprocal: u64::MAX / nanos_per_tick }
    }

    /// The first tick at or after `deadline`; `NEVER` for what is too far to count.
    #[inline]
    pub(crate) fn at_or_after(&self, deadline: Instant) -> u64 {
        let (ticks, rest) = self.divide(deadline);
        (ticks + u64::from(rest > 0)).min(NEVER)
    }

    /// The last tick at or before `now`.
    #[inline]
    pub(crate) fn at_or_before(&self, now: Instant) -> u64 {
        self.divide(now).0
    }

    /// When a tick begins; `None` beyond what an `Instant` can hold.
    pub(crate) fn start_of(&self, tick: u64) -> Option<Instant> {
        self.start.checked_add(Duration::from_nanos(tick.checked_mul(self.nanos_per_tick)?))
    }

    pub(crate) fn tick(&self) -> Duration {
        Duration::from_nanos(self.nanos_per_tick)
    }

    #[inline]
    fn divide(&self, instant: Instant) -> (u64, u64) {
        let nanos = nanos(instant.saturating_duration_since(self.start));
        // Short by at most one, because nanos * (1 / tick - reciprocal / 2^64) < 1 + nanos / 2^64.
        let ticks = ((u128::from(nanos) * u128::from(self.reciprocal)) >> 64) as u64;
        let mut rest = nanos - ticks * self.nanos_per_tick;
        let mut short = 0;
        while rest >= self.nanos_per_tick {
            rest -= self.nanos_per_tick;
            short += 1;
        }
        (ticks + short, rest)
    }
}

/// The tick of a deadline that never comes (584 years away at nanosecond ticks).
pub(crate) const NEVER: u64 = u64::MAX - 1;

/// Shorter ticks than 1 us are below what any driver can keep, and would only make the wheel turn more often.
const SHORTEST_TICK_NANOS: u64 = 1_000;

#[inline]
fn nanos(duration: Duration) -> u64 {
    duration.as_secs().saturating_mul(1_000_000_000).saturating_add(u64::from(duration.subsec_nanos()))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn deadlines_round_up_and_the_present_down() {
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
    fn what_is_out_of_range_is_clamped() {
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
