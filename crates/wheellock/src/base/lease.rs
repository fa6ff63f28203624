//! The arithmetic of leases: how long one lasts, and how long it may be believed. Pure; reads no clock.

use std::num::NonZeroU64;
use std::time::Duration;

use crate::base::clock::BootInstant;
use crate::base::error::Error;

/// A lease's length: whole milliseconds, enough of them to be believed, small enough for Redis.
///
/// ```
/// use std::time::Duration;
/// use wheellock::{Error, Lease};
///
/// assert_eq!(Lease::DEFAULT.duration(), Duration::from_secs(30));
/// assert_eq!(Lease::new(Duration::from_micros(9_500))?.duration(), Duration::from_millis(10));
/// assert!(matches!(Lease::new(Duration::ZERO), Err(Error::InvalidLease { .. })));
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lease(NonZeroU64);

impl Lease {
    /// Redisson's default `lockWatchdogTimeout`.
    pub const DEFAULT: Self = Self::of_millis(30_000);

    /// For how long a semaphore remembers what its holders have: longer than any process is stopped and lives on.
    pub(crate) const A_DAY: Self = Self::of_millis(86_400_000);

    /// For how long a place in the queue of a fair lock is kept for one who says nothing: it is in the way of others until then, so a
    /// release that takes it back is repeated as if this were a lease.
    pub(crate) const A_PLACE: Self = Self::of_millis(5_000);

    /// A lease of `duration`, rounded up to a whole millisecond.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidLease`] below 3 ms, of which nothing is left to believe once the clocks' differences are taken
    /// off, and above 100 years, where Redis' arithmetic on absolute times comes near overflow.
    pub fn new(duration: Duration) -> Result<Self, Error> {
        Self::at_least(Self::SHORTEST, duration)
    }

    /// A lease that the watchdog keeps.
    pub(crate) fn kept(duration: Duration) -> Result<Self, Error> {
        Self::at_least(Self::SHORTEST_KEPT, duration)
    }

    fn at_least(shortest: Self, duration: Duration) -> Result<Self, Error> {
        match u64::try_from(duration.as_nanos().div_ceil(1_000_000)) {
            Ok(whole @ ..=MAX_MILLIS) if whole >= shortest.0.get() => Ok(Self::of_millis(whole)),
            _ => Err(Error::InvalidLease { lease: duration, shortest: shortest.duration() }),
        }
    }

    /// Shorter ones are [never believed](Self::valid_until).
    const SHORTEST: Self = Self::of_millis(3);
    /// A third of it is three ticks of the watchdog's clock, and after the renewal as many are left to try again. With
    /// 15 ms one lock of forty was lost within seven leases, on a busy machine with the server beside it; with 8 ms every
    /// second one.
    const SHORTEST_KEPT: Self = Self::of_millis(20);

    /// At least one.
    const fn of_millis(whole: u64) -> Self {
        Self(NonZeroU64::MIN.saturating_add(whole.saturating_sub(1)))
    }

    /// The length.
    pub fn duration(self) -> Duration {
        Duration::from_millis(self.0.get())
    }

    /// The length in milliseconds, for `PEXPIRE`.
    pub(crate) fn millis(self) -> i64 {
        i64::try_from(self.0.get()).unwrap_or(i64::MAX)
    }

    /// Until when a grant may be believed whose request was handed to the socket no earlier than `before_send`.
    ///
    /// The server starts its TTL after that, so it cannot expire the key before the lease has run by its own clock; 1 %
    /// covers the difference in rate between the two clocks and 2 ms their granularity (the drift that Redis' Redlock
    /// page proposes).
    pub(crate) fn valid_until(self, before_send: BootInstant) -> BootInstant {
        before_send.plus_nanos(self.validity())
    }

    /// In nanoseconds, as are all lengths below: every acquire comes by, and in a `Duration` each step would cost a division.
    fn validity(self) -> u64 {
        less_drift(self.nanos())
    }

    /// A hundred years fit five times.
    fn nanos(self) -> u64 {
        self.0.get().saturating_mul(1_000_000)
    }

    /// By when the server has certainly expired a key whose TTL was set to this lease by a request that had been answered
    /// or given up at `after_send`.
    pub(crate) fn expired_by(self, after_send: BootInstant) -> BootInstant {
        after_send.plus_nanos(plus_drift(self.nanos()))
    }

    /// When the watchdog renews: after a third of the lease, as Redisson's does.
    pub(crate) fn renew_after(self) -> Duration {
        Duration::from_nanos(self.renew_after_nanos())
    }

    pub(crate) fn renew_after_nanos(self) -> u64 {
        self.nanos() / 3
    }

    /// When the renewal was planned of a lease that is believed until `valid_until`.
    pub(crate) fn renewal_before(self, valid_until: BootInstant) -> BootInstant {
        let spare = self.validity().saturating_sub(self.renew_after_nanos());
        valid_until.saturating_sub(Duration::from_nanos(spare))
    }

    /// How long the watchdog waits after a renewal or a release that failed; of a lease of hours, too, others wait for the release.
    pub(crate) fn retry_after(self) -> Duration {
        (self.duration() / 20).clamp(Duration::from_millis(1), LONGEST_PAUSE)
    }
}

/// Between two attempts, however long the lease is: the pause of the default one.
const LONGEST_PAUSE: Duration = Duration::from_millis(1_500);

/// How much of `left`, the time that a lease still runs by the server's clock, may be believed. Both in nanoseconds.
pub(crate) fn less_drift(left: u64) -> u64 {
    (left - left / 100).saturating_sub(GRANULARITY)
}

/// By when a lease has certainly ended that still runs for `left` by the server's clock. Both in nanoseconds.
pub(crate) fn plus_drift(left: u64) -> u64 {
    left.saturating_add(left / 100).saturating_add(GRANULARITY)
}

/// 2 ms.
const GRANULARITY: u64 = 2_000_000;

const MAX_MILLIS: u64 = 100 * 365 * 24 * 3_600 * 1_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_failed_is_tried_again_soon_however_long_the_lease() {
        let after = |seconds| Lease::new(Duration::from_secs(seconds)).unwrap().retry_after();
        assert_eq!(after(10), Duration::from_millis(500));
        assert_eq!(after(30), LONGEST_PAUSE);
        assert_eq!(after(24 * 3600), LONGEST_PAUSE);
    }

    #[test]
    fn leases_that_redis_would_misread_are_rejected() {
        for bad in [Duration::ZERO, Duration::from_nanos(1), Duration::from_micros(999), Duration::MAX] {
            assert!(matches!(Lease::new(bad), Err(Error::InvalidLease { .. })), "{bad:?}");
        }
        assert_eq!(Lease::new(Duration::from_millis(3)).unwrap().millis(), 3);
        assert_eq!(Lease::new(Duration::from_micros(3500)).unwrap().millis(), 4, "rounded up, never down");
        assert_eq!(Lease::new(Duration::from_millis(MAX_MILLIS)).unwrap().millis(), 3_153_600_000_000);
        assert!(Lease::new(Duration::from_millis(MAX_MILLIS + 1)).is_err());
    }

    #[test]
    fn a_grant_is_believed_for_less_than_the_server_keeps_it() {
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

    /// A9: the shortest lease is one that can be believed, the next shorter one is not.
    #[test]
    fn the_shortest_lease_is_the_shortest_that_is_ever_believed() {
        let sent = BootInstant::now();
        assert!(Lease::SHORTEST.valid_until(sent) > sent);
        assert_eq!(Lease::of_millis(Lease::SHORTEST.0.get() - 1).valid_until(sent), sent);
        let kept = Lease::SHORTEST_KEPT;
        assert!(kept.renewal_before(kept.valid_until(sent)) > sent + Duration::from_millis(6));
    }
}
