//! Limits of the time for which a lock is held.

use std::time::Duration;

use crate::base::error::Error;
use crate::base::lease::Lease;

/// The limits that a caller sets for its hold. They count from the grant.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HoldLimits {
    /// Time after which the hold ends, renewed or not.
    pub(crate) max: Option<Duration>,
}

impl HoldLimits {
    /// Returns the lease to request. A crash right after the grant must not exceed the maximum.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidLease`] if the maximum is too short or too long for a lease.
    pub(crate) fn first_lease(self, lease: Lease) -> Result<Lease, Error> {
        self.max.map_or(Ok(lease), |max| Ok(Lease::new(max)?.min(lease)))
    }
}
