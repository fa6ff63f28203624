//! The library's errors in the words of histories.
//!
//! Histories do not know the library.

use wheellock::{Error, LostReason};

use crate::history::{Outcome, Reason};

/// Returns whether a failed call may have taken effect.
pub(crate) fn outcome(error: &Error) -> Outcome {
    match error.outcome() {
        wheellock::Outcome::NotSent => Outcome::NotSent,
        wheellock::Outcome::Rejected => Outcome::Rejected,
        wheellock::Outcome::MaybeExecuted => Outcome::MaybeExecuted,
    }
}

/// Returns why a lock was lost.
pub(crate) fn reason(reason: LostReason) -> Reason {
    match reason {
        LostReason::NotOwner => Reason::NotOwner,
        LostReason::HeldTooLong => Reason::HeldTooLong,
        _ => Reason::Expired,
    }
}
