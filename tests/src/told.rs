//! What the library tells its callers, in the words of histories, which do not know the library.

use wheellock::{Error, LostReason};

use crate::history::{Outcome, Reason};

/// Whether a call that failed may have taken effect.
pub(crate) fn outcome(error: &Error) -> Outcome {
    match error.outcome() {
        wheellock::Outcome::NotSent => Outcome::NotSent,
        wheellock::Outcome::Rejected => Outcome::Rejected,
        wheellock::Outcome::MaybeExecuted => Outcome::MaybeExecuted,
    }
}

/// Why a lock was lost.
pub(crate) fn reason(reason: LostReason) -> Reason {
    match reason {
        LostReason::NotOwner => Reason::NotOwner,
        _ => Reason::Expired,
    }
}
