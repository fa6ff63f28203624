//! The arithmetic of leases: their length and local validity. Pure: it does not read a clock.

use std::num::NonZeroU64;
use std::time::Duration;

use crate::base::clock::BootInstant;
use crate::base::error::Error;

/// The length of a lease in whole milliseconds. A lease is long enough to count as valid and small enough for Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Lease(NonZeroU64);

impl Lease {
    /// 30 s, the default of Redisson's `lockWatchdogTimeout`.
    pub(crate) const DEFAULT: Self = Self::of_millis(30_000);

    /// How long a semaphore remembers the permits of its holders. No process is stopped for longer than that and then continues.
    pub(crate) const A_DAY: Self = Self::of_millis(86_400_000);

    /// How long the queue of a fair lock keeps the entry of a silent waiter. Until then the entry blocks other waiters. A release that
    /// removes the entry is therefore retried as if this time were a lease.
    pub(crate) const A_PLACE: Self = Self::of_millis(5_000);

    /// Creates a lease of `duration`, rounded up to a whole millisecond.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidLease`] below 3 ms, because no valid time would remain after the allowance for clock drift.
    ///
    /// [`Error::InvalidLease`] above 100 years, because Redis' arithmetic on absolute times would be near overflow.
    pub(crate) fn new(duration: Duration) -> Result<Self, Error> {
        Self::at_least(Self::SHORTEST, duration)
    }

    /// Creates a lease that the watchdog renews.
    pub(crate) fn kept(duration: Duration) -> Result<Self, Error> {
        Self::at_least(Self::SHORTEST_KEPT, duration)
    }

    fn at_least(shortest: Self, duration: Duration) -> Result<Self, Error> {
        match u64::try_from(duration.as_nanos().div_ceil(1_000_000)) {
            Ok(whole @ ..=MAX_MILLIS) if whole >= shortest.0.get() => Ok(Self::of_millis(whole)),
            _ => Err(Error::InvalidLease { lease: duration, shortest: shortest.duration() }),
        }
    }

    /// Shortest lease. A shorter lease would [never be valid](Self::valid_until).
    const SHORTEST: Self = Self::of_millis(3);
    /// Shortest lease that the watchdog renews. A third of the lease is three ticks of the watchdog's clock, and three ticks remain for a
    /// retry. With 15 ms, one lock of forty was lost within seven leases, on a busy machine that also ran the server. With 8 ms, every
    /// second lock was lost.
    const SHORTEST_KEPT: Self = Self::of_millis(20);

    /// Creates a lease that ends within `left`, rounded down to a whole millisecond. The lease has at least one millisecond.
    pub(crate) fn within(left: Duration) -> Self {
        Self::of_millis(u64::try_from(left.as_millis()).unwrap_or(MAX_MILLIS).min(MAX_MILLIS))
    }

    /// Returns `left` in milliseconds, rounded up, for `PEXPIRE`.
    pub(crate) fn millis_of(left: Duration) -> i64 {
        i64::try_from(left.as_nanos().div_ceil(1_000_000)).unwrap_or(i64::MAX)
    }

    /// Creates a lease of `whole` milliseconds, and of at least one.
    const fn of_millis(whole: u64) -> Self {
        Self(NonZeroU64::MIN.saturating_add(whole.saturating_sub(1)))
    }

    /// Returns the length.
    pub(crate) fn duration(self) -> Duration {
        Duration::from_millis(self.0.get())
    }

    /// Returns the length in milliseconds, for `PEXPIRE`.
    pub(crate) fn millis(self) -> i64 {
        i64::try_from(self.0.get()).unwrap_or(i64::MAX)
    }

    /// Returns until when a grant is valid locally. The request was handed to the socket no earlier than `before_send`.
    ///
    /// The server starts its TTL after that instant. The server cannot expire the key before the lease has run out by the server's clock.
    /// An allowance of 1 % covers the difference in rate between the two clocks, and 2 ms cover their granularity. Redis' Redlock page
    /// proposes the same drift.
    pub(crate) fn valid_until(self, before_send: BootInstant) -> BootInstant {
        before_send.plus_nanos(self.validity())
    }

    /// Returns the valid time in nanoseconds. All lengths below are nanoseconds: every acquire runs this code, and each step on a
    /// `Duration` would cost a division.
    fn validity(self) -> u64 {
        less_drift(self.nanos())
    }

    /// Returns the length in nanoseconds. A `u64` could hold five times the longest lease.
    fn nanos(self) -> u64 {
        self.0.get().saturating_mul(1_000_000)
    }

    /// Returns by when the server ends this lease or a shorter one at the latest, if the lease is valid until `valid_until` and no part of
    /// the time between was spent on the way to the server.
    pub(crate) fn ends_by(self, valid_until: BootInstant) -> BootInstant {
        // One more millisecond, because leases are whole milliseconds.
        valid_until.plus_nanos(self.nanos() / 100 + GRANULARITY + 1_000_000)
    }

    /// Returns by when the server has certainly expired a key whose TTL was set to this lease. The request was answered or abandoned at
    /// `after_send`.
    pub(crate) fn expired_by(self, after_send: BootInstant) -> BootInstant {
        after_send.plus_nanos(plus_drift(self.nanos()))
    }

    /// Returns when the watchdog renews: after a third of the lease, like Redisson's watchdog.
    pub(crate) fn renew_after(self) -> Duration {
        Duration::from_nanos(self.renew_after_nanos())
    }

    pub(crate) fn renew_after_nanos(self) -> u64 {
        self.nanos() / 3
    }

    /// Returns when the renewal was planned for a lease that is valid until `valid_until`.
    pub(crate) fn renewal_before(self, valid_until: BootInstant) -> BootInstant {
        let spare = self.validity().saturating_sub(self.renew_after_nanos());
        valid_until.saturating_sub(Duration::from_nanos(spare))
    }

    /// Returns the watchdog's pause after a failed renewal or release. The pause is bounded even for a lease of hours, because other
    /// waiters wait for the release.
    pub(crate) fn retry_after(self) -> Duration {
        (self.duration() / 20).clamp(Duration::from_millis(1), LONGEST_PAUSE)
    }
}

/// Longest pause between two attempts, whatever the lease: the pause of the default lease.
const LONGEST_PAUSE: Duration = Duration::from_millis(1_500);

/// Returns the valid part of `left`, the time that a lease still runs by the server's clock. Both are in nanoseconds.
pub(crate) fn less_drift(left: u64) -> u64 {
    (left - left / 100).saturating_sub(GRANULARITY)
}

/// Returns by when a lease has certainly ended that still runs for `left` by the server's clock. Both are in nanoseconds.
pub(crate) fn plus_drift(left: u64) -> u64 {
    left.saturating_add(left / 100).saturating_add(GRANULARITY)
}

/// 2 ms in nanoseconds: the granularity of the two clocks.
const GRANULARITY: u64 = 2_000_000;

const MAX_MILLIS: u64 = 100 * 365 * 24 * 3_600 * 1_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lease_keeps_retry_pause_short() {
        let after = |seconds| Lease::new(Duration::from_secs(seconds)).unwrap().retry_after();
        assert_eq!(after(10), Duration::from_millis(500));
        assert_eq!(after(30), LONGEST_PAUSE);
        assert_eq!(after(24 * 3600), LONGEST_PAUSE);
    }

    #[test]
    fn lease_outside_redis_range_is_rejected() {
        for bad in [Duration::ZERO, Duration::from_nanos(1), Duration::from_micros(999), Duration::MAX] {
            assert!(matches!(Lease::new(bad), Err(Error::InvalidLease { .. })), "{bad:?}");
        }
        assert_eq!(Lease::new(Duration::from_millis(3)).unwrap().millis(), 3);
        assert_eq!(Lease::new(Duration::from_micros(3500)).unwrap().millis(), 4, "rounded up, never down");
        assert_eq!(Lease::new(Duration::from_millis(MAX_MILLIS)).unwrap().millis(), 3_153_600_000_000);
        assert!(Lease::new(Duration::from_millis(MAX_MILLIS + 1)).is_err());
    }

    #[test]
    fn local_expiry_precedes_server_expiry() {
        let sent = BootInstant::now();
        let lease = Lease::DEFAULT;
        assert_eq!(
            lease.valid_until(sent).saturating_duration_since(sent),
            Duration::from_millis(30_000 - 300 - 2)
        );
        assert_eq!(
            lease.expired_by(sent).saturating_duration_since(sent),
            Duration::from_millis(30_000 + 300 + 2)
        );
        let tiny = Lease::of_millis(1);
        assert_eq!(tiny.valid_until(sent), sent, "no underflow; such a lease is never believed");
    }

    /// A9: the shortest lease is valid for some time. A lease that is one millisecond shorter is never valid.
    #[test]
    fn shortest_lease_is_smallest_valid() {
        let sent = BootInstant::now();
        assert!(Lease::SHORTEST.valid_until(sent) > sent);
        assert_eq!(Lease::of_millis(Lease::SHORTEST.0.get() - 1).valid_until(sent), sent);
        let kept = Lease::SHORTEST_KEPT;
        assert!(kept.renewal_before(kept.valid_until(sent)) > sent + Duration::from_millis(6));
    }
}
