//! Callers that wait for a renewal or a check of their holds.
//!
//! The watchdog's machinery sends the renewal itself. This module tracks only the caller's wait: its begin, its result and its
//! end.
//!
//! A renewal that was under way before a wish does not fulfil the wish.

use std::collections::HashMap;
use std::task::Waker;

use super::HoldIndex;
use super::pending_releases::Failed;
use crate::base::clock::BootInstant;
use crate::base::durability::Shortfall;

/// The wishes of one table, by hold. A hold lives as long as its guards, and these guards wait.
#[derive(Default)]
pub(super) struct PendingRenewals {
    of: HashMap<HoldIndex, Vec<PendingRenewal>>,
    last: u64,
}

/// The caller's request to the server.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Want {
    /// Check whether the lease still runs.
    Check,
    /// Extend the lease.
    Renew,
}

/// The result for a caller. It contains the shortfall if too few other servers know of the extension. The hold itself says
/// whether the lock is held.
pub(crate) type Fulfilled = Result<Option<Shortfall>, Failed>;

struct PendingRenewal {
    number: u64,
    want: Want,
    until: BootInstant,
    /// A renewal that fulfils this wish has begun.
    asked: bool,
    /// An earlier renewal may have been executed without a reply.
    ambiguous: bool,
    /// The error of an earlier renewal.
    reason: Option<wheellock_client::Error>,
    stage: Stage,
}

enum Stage {
    Waiting(Waker),
    Ended(Fulfilled),
}

impl PendingRenewal {
    fn waits(&self) -> bool {
        matches!(self.stage, Stage::Waiting(_))
    }
}

impl PendingRenewals {
    /// Begins a wish and returns its number.
    pub(super) fn begin(&mut self, hold: HoldIndex, want: Want, until: BootInstant, waker: &Waker) -> u64 {
        self.last += 1;
        let stage = Stage::Waiting(waker.clone());
        let (asked, ambiguous, reason) = (false, false, None);
        let wish = PendingRenewal { number: self.last, want, until, asked, ambiguous, reason, stage };
        self.of.entry(hold).or_default().push(wish);
        self.last
    }

    /// Returns the strongest wish for this hold.
    pub(super) fn most(&self, hold: HoldIndex) -> Option<Want> {
        self.of.get(&hold)?.iter().filter(|wish| wish.waits()).map(|wish| wish.want).max()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.of.is_empty()
    }

    /// Marks the wishes that the renewal that begins now can fulfil.
    pub(super) fn asked(&mut self, hold: HoldIndex, what: Want) {
        self.each(hold, |wish| wish.asked |= wish.want <= what);
    }

    /// Marks the remaining wishes as unfulfilled by the renewal under way.
    pub(super) fn in_vain(&mut self, hold: HoldIndex) {
        self.each(hold, |wish| wish.asked = false);
    }

    /// Records the error of a renewal that is retried. `executed` is true if the server may have executed it.
    pub(super) fn failed_once(
        &mut self,
        hold: HoldIndex,
        why: &wheellock_client::Error,
        executed: bool,
        now: BootInstant,
    ) {
        self.each(hold, |wish| {
            wish.ambiguous |= executed && wish.asked;
            // An error at the deadline results from the timeout, so it does not explain the timeout.
            if wish.asked && now < wish.until {
                wish.reason = Some(why.clone());
            }
        });
    }

    /// Wakes the callers whose wish the server fulfilled. The server did at most `what`.
    pub(super) fn fulfilled(&mut self, hold: HoldIndex, what: Want, woken: impl FnMut(Waker)) {
        self.end(hold, |wish| wish.asked && wish.want <= what, |_| Ok(None), woken);
    }

    /// Wakes callers whose lease was extended while too few other servers know of it.
    pub(super) fn fell_short(&mut self, hold: HoldIndex, shortfall: Shortfall, woken: impl FnMut(Waker)) {
        self.end(hold, |wish| wish.asked, |_| Ok(Some(shortfall)), woken);
    }

    /// Wakes callers of a lost hold. The hold itself reports the loss.
    pub(super) fn lost(&mut self, hold: HoldIndex, woken: impl FnMut(Waker)) {
        self.end(hold, |_| true, |_| Ok(None), woken);
    }

    /// Wakes callers with an error that no request can avoid now.
    pub(super) fn failed(&mut self, hold: HoldIndex, why: &Failed, woken: impl FnMut(Waker)) {
        self.end(hold, |_| true, |wish| Err(why.for_caller(wish.ambiguous)), woken);
    }

    /// Ends wishes whose deadlines have passed. `sent` returns true for a hold whose renewal under way may be executed.
    pub(super) fn overdue(
        &mut self,
        now: BootInstant,
        sent: impl Fn(HoldIndex) -> bool,
        mut woken: impl FnMut(Waker),
    ) {
        let holds: Vec<_> = self.of.keys().copied().collect();
        for hold in holds {
            let sent = sent(hold);
            let told = |wish: &PendingRenewal| {
                let ambiguous = wish.ambiguous || (sent && wish.asked);
                Err(Failed::TimedOut { ambiguous, reason: wish.reason.clone() })
            };
            self.end(hold, |wish| now >= wish.until, told, &mut woken);
        }
    }

    /// Returns the earliest deadline of the waiting callers.
    pub(super) fn earliest(&self) -> Option<BootInstant> {
        self.of.values().flatten().filter(|wish| wish.waits()).map(|wish| wish.until).min()
    }

    /// Returns a caller's result. Stores the caller's waker if the result is not there yet.
    pub(super) fn take(&mut self, hold: HoldIndex, number: u64, waker: &Waker) -> Option<Fulfilled> {
        let wish = self.of.get_mut(&hold)?.iter_mut().find(|wish| wish.number == number)?;
        if let Stage::Waiting(known) = &mut wish.stage {
            known.clone_from(waker);
            return None;
        }
        match self.leave(hold, number)?.stage {
            Stage::Ended(end) => Some(end),
            Stage::Waiting(_) => None,
        }
    }

    /// Removes the wish of a caller that left. Drop the returned waker outside the table's lock.
    pub(super) fn forget(&mut self, hold: HoldIndex, number: u64) -> Option<Waker> {
        match self.leave(hold, number)?.stage {
            Stage::Waiting(waker) => Some(waker),
            Stage::Ended(_) => None,
        }
    }

    /// Removes a wish from its hold's list.
    fn leave(&mut self, hold: HoldIndex, number: u64) -> Option<PendingRenewal> {
        let wishes = self.of.get_mut(&hold)?;
        let place = wishes.iter().position(|wish| wish.number == number)?;
        let wish = wishes.swap_remove(place);
        if wishes.is_empty() {
            self.of.remove(&hold);
        }
        Some(wish)
    }

    fn each(&mut self, hold: HoldIndex, with: impl FnMut(&mut PendingRenewal)) {
        if let Some(wishes) = self.of.get_mut(&hold) {
            wishes.iter_mut().for_each(with);
        }
    }

    /// Ends the waiting wishes that `which` selects, and passes their wakers to `woken`.
    fn end(
        &mut self,
        hold: HoldIndex,
        which: impl Fn(&PendingRenewal) -> bool,
        told: impl Fn(&PendingRenewal) -> Fulfilled,
        mut woken: impl FnMut(Waker),
    ) {
        self.each(hold, |wish| {
            if wish.waits() && which(wish) {
                let end = Stage::Ended(told(wish));
                if let Stage::Waiting(waker) = std::mem::replace(&mut wish.stage, end) {
                    woken(waker);
                }
            }
        });
    }
}

#[cfg(test)]
mod tests;
