//! Limits of the time for which a lock is held.

use std::time::Duration;

use crate::base::clock::BootInstant;
use crate::base::error::Error;
use crate::base::lease::Lease;

/// The limits that a caller sets for its hold. They count from the grant.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HoldLimits {
    /// Time after which the hold ends, renewed or not.
    pub(crate) max: Option<Duration>,
    /// Time until which the lock is kept, released or not.
    pub(crate) min: Option<Duration>,
}

impl HoldLimits {
    /// Returns the lease to request. A crash right after the grant must not exceed the maximum.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidLease`] if a limit is too short or too long for a lease.
    pub(crate) fn first_lease(self, lease: Lease) -> Result<Lease, Error> {
        // A spent owner keeps the lock for a lease of the minimum's length at most.
        self.min.map_or(Ok(lease), Lease::new)?;
        self.max.map_or(Ok(lease), |max| Ok(Lease::new(max)?.min(lease)))
    }
}

/// The minimum time of a hold, which a release must keep.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct MinHold {
    /// Instant no earlier than the server's grant.
    pub(crate) since: BootInstant,
    pub(crate) min: Duration,
    /// Number of the owner that keeps the lock after the release. Only this hold knows it.
    pub(crate) spent: u64,
}

impl MinHold {
    fn end(&self) -> BootInstant {
        self.since + self.min
    }

    /// Returns the minimum that ends later.
    pub(crate) fn later(self, other: Option<Self>) -> Self {
        other.filter(|other| other.end() > self.end()).unwrap_or(self)
    }

    /// Returns the remaining time at `now`. `None` if it is over.
    pub(crate) fn left(&self, now: BootInstant) -> Option<Duration> {
        let left = self.end().saturating_duration_since(now);
        (!left.is_zero()).then_some(left)
    }
}
