//! Callers that wait for a release, a renewal or a check of their holds.
//!
//! The table of holds makes the requests. A release is the same that a dropped guard would leave behind. This module tracks only
//! the callers' waits and changes nothing else.
//!
//! A caller first waits until a request begins that can answer it. A renewal that was under way before answers no later caller,
//! and a release answers only if it counts without the caller's guard. The caller is then asked until a reply to such a request
//! arrives. After that its wait has ended, until it reads the result. The deadline ends a wait from outside, and the request
//! continues.

use std::task::Waker;

use slab::Slab;

use super::HoldIndex;
use crate::base::clock::BootInstant;
use crate::base::durability::Shortfall;

/// The callers of one table. Their slots are reused, so a wait allocates nothing.
#[derive(Default)]
pub(super) struct Callers {
    callers: Slab<Caller>,
}

/// Index of a caller. Valid until the caller takes its result or leaves.
pub(crate) type CallerIndex = u32;

/// Head of the list of one hold's waiting callers: the index of the first caller, plus one.
///
/// Guards, or a release under way, keep the hold while a caller waits.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Waiting(u32);

/// A request to the server, which a caller waits for or the table makes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Want {
    /// Release the share of a guard.
    Release,
    // `Callers::renewal` relies on the order of these two variants.
    /// Check whether the lease still runs.
    Check,
    /// Extend the lease. This also checks it.
    Renew,
}

struct Caller {
    hold: HoldIndex,
    /// The next waiting caller of the same hold.
    next: Waiting,
    want: Want,
    /// True if the lock was believed held when the wait began.
    believed: bool,
    /// True if an earlier request may have been executed without a reply.
    ambiguous: bool,
    until: BootInstant,
    /// The error of an earlier request.
    reason: Option<wheellock_client::Error>,
    /// True if a request whose reply answers this caller has begun.
    asked: bool,
    stage: Stage,
}

enum Stage {
    Waiting(Waker),
    Ended(Ended),
}

/// The result for a caller.
pub(crate) type Ended = Result<Confirmation, Failed>;

/// The server's reply, as a caller needs it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Confirmation {
    /// The lock is held, or was held until this release.
    Held,
    /// The lock was lost before.
    Lost,
    /// The lease was extended, while too few other servers know of the extension.
    FellShort(Shortfall),
}

/// The reason why a caller does not get the server's reply.
#[derive(Clone, Debug)]
pub(crate) enum Failed {
    /// No request that is made now can succeed.
    Error(wheellock_client::Error),
    /// The server replied with this type, which the script never returns.
    Unexpected(&'static str),
    /// No reply came in time.
    TimedOut {
        /// True if a request without a reply may have been executed.
        ambiguous: bool,
        /// The error of an earlier request.
        reason: Option<wheellock_client::Error>,
    },
}

impl Failed {
    /// Returns the error for a caller. `ambiguous` is true if an earlier request may have been executed without a reply.
    fn for_caller(&self, ambiguous: bool) -> Self {
        match self {
            // The last error alone would claim that no request had an effect.
            Self::Error(error) if ambiguous => Self::Error(error.after_an_unanswered_attempt()),
            failed => failed.clone(),
        }
    }
}

impl Want {
    /// Returns true if the reply to this request also answers a caller that waits for `want`.
    fn answers(self, want: Self) -> bool {
        self == want || (self, want) == (Self::Renew, Self::Check)
    }
}

impl Waiting {
    pub(super) fn is_empty(self) -> bool {
        self == Self::default()
    }

    fn first(self) -> Option<usize> {
        // The index is stored plus one, so the default is the empty list and takes four bytes in each hold.
        Some(self.0.checked_sub(1)? as usize)
    }

    fn at(index: usize) -> Self {
        Self(u32::try_from(index + 1).unwrap_or_default())
    }
}

impl Callers {
    /// Begins a caller's wait for `hold`, until `until` at most. The reply to the next request that is `want` ends the wait.
    pub(super) fn begin(
        &mut self,
        (hold, waiting): (HoldIndex, &mut Waiting),
        (want, believed): (Want, bool),
        until: BootInstant,
        waker: &Waker,
    ) -> CallerIndex {
        let (stage, next) = (Stage::Waiting(waker.clone()), *waiting);
        // A request under way began before this caller, so its reply does not answer the caller.
        let (ambiguous, reason, asked) = (false, None, false);
        let caller = Caller { hold, next, want, believed, ambiguous, until, reason, asked, stage };
        let index = self.callers.insert(caller);
        *waiting = Waiting::at(index);
        u32::try_from(index).unwrap_or(u32::MAX)
    }

    /// Returns true if a caller waits for a release.
    pub(super) fn has_release(&self, waiting: Waiting) -> bool {
        self.of(waiting).any(|caller| caller.want == Want::Release)
    }

    /// Returns the strongest request that a caller waits for, other than a release.
    pub(super) fn renewal(&self, waiting: Waiting) -> Option<Want> {
        self.of(waiting).map(|caller| caller.want).filter(|want| *want != Want::Release).max()
    }

    /// Marks the callers that the reply to the request `what`, which begins now, will answer.
    pub(super) fn asked(&mut self, waiting: Waiting, what: Want) {
        self.each(waiting, what, |caller| caller.asked = true);
    }

    /// Marks the remaining callers of the request `what` as not answered by the one that has ended.
    pub(super) fn in_vain(&mut self, waiting: Waiting, what: Want) {
        // Otherwise `unheard` and `overdue` would count the ended request as one that may still be executed.
        self.each(waiting, what, |caller| caller.asked = false);
    }

    /// Marks the request under way as possibly executed without a reply. The next reply then proves nothing about the time
    /// before.
    pub(super) fn unheard(&mut self, waiting: Waiting, what: Want) {
        // A request from before the caller's wait did not concern this caller.
        self.each(waiting, what, |caller| caller.ambiguous |= caller.asked);
    }

    /// Records the error of a request that is retried.
    pub(super) fn failed_once(
        &mut self,
        waiting: Waiting,
        what: Want,
        reason: &wheellock_client::Error,
        now: BootInstant,
    ) {
        self.each(waiting, what, |caller| {
            // An error at the deadline results from the timeout, so it does not explain the timeout.
            if caller.asked && now < caller.until {
                caller.reason = Some(reason.clone());
            }
        });
    }

    /// Ends the waits that the reply answers. `known` is true if the server knew the hold. If it did not, an earlier request
    /// without a reply may be the reason.
    pub(super) fn answered(
        &mut self,
        waiting: &mut Waiting,
        what: Want,
        known: bool,
        woken: impl FnMut(Waker),
    ) {
        let is_answered = |caller: &Caller| caller.asked && what.answers(caller.want);
        self.end(waiting, is_answered, |caller| caller.end_of_unknown(known), woken);
    }

    /// Ends the waits for an extension of which too few other servers know.
    pub(super) fn fell_short(&mut self, waiting: &mut Waiting, by: Shortfall, woken: impl FnMut(Waker)) {
        let is_answered = |caller: &Caller| caller.asked && Want::Renew.answers(caller.want);
        self.end(waiting, is_answered, |_| Ok(Confirmation::FellShort(by)), woken);
    }

    /// Ends the waits for `what` without a further request. The hold is lost, or is no longer this process's to release.
    pub(super) fn given_up(&mut self, waiting: &mut Waiting, what: Want, woken: impl FnMut(Waker)) {
        // No request follows, so callers end whether a request was made for them or not.
        self.end(waiting, |caller| what.answers(caller.want), |caller| caller.end_of_unknown(false), woken);
    }

    /// Ends the waits for `what` with an error, because the cause that stopped one request stops all of them.
    pub(super) fn failed(
        &mut self,
        waiting: &mut Waiting,
        what: Want,
        why: &Failed,
        woken: impl FnMut(Waker),
    ) {
        let told = |caller: &Caller| Err(why.for_caller(caller.ambiguous));
        self.end(waiting, |caller| what.answers(caller.want), told, woken);
    }

    /// Returns the holds with callers whose deadlines have passed.
    pub(super) fn holds_overdue(&self, now: BootInstant) -> Vec<HoldIndex> {
        self.waiting().filter(|caller| now >= caller.until).map(|caller| caller.hold).collect()
    }

    /// Ends the waits of one hold whose deadlines have passed. `sent` returns true if a request under way that a caller waits for
    /// may be executed.
    pub(super) fn overdue(
        &mut self,
        waiting: &mut Waiting,
        sent: impl Fn(Want) -> bool,
        now: BootInstant,
        woken: impl FnMut(Waker),
    ) {
        let told = |caller: &Caller| {
            let ambiguous = caller.ambiguous || (caller.asked && sent(caller.want));
            Err(Failed::TimedOut { ambiguous, reason: caller.reason.clone() })
        };
        self.end(waiting, |caller| now >= caller.until, told, woken);
    }

    /// Returns the earliest deadline of the waiting callers.
    pub(super) fn earliest(&self) -> Option<BootInstant> {
        self.waiting().map(|caller| caller.until).min()
    }

    fn waiting(&self) -> impl Iterator<Item = &Caller> {
        self.callers.iter().map(|(_, caller)| caller).filter(|caller| caller.is_waiting())
    }

    /// Returns a caller's result. Stores the caller's waker if the result is not there yet.
    pub(super) fn take(&mut self, index: CallerIndex, waker: &Waker) -> Option<Ended> {
        if let Stage::Waiting(known) = &mut self.callers.get_mut(index as usize)?.stage {
            known.clone_from(waker);
            return None;
        }
        match self.callers.remove(index as usize).stage {
            Stage::Ended(end) => Some(end),
            Stage::Waiting(_) => None,
        }
    }

    /// Returns the hold of a caller that is still waiting.
    pub(super) fn hold_of(&self, index: CallerIndex) -> Option<HoldIndex> {
        let caller = self.callers.get(index as usize)?;
        // `end` has removed a caller with a result from the list of its hold.
        caller.is_waiting().then_some(caller.hold)
    }

    /// Removes a caller that left. `waiting` are the callers of its hold, if it is still waiting.
    pub(super) fn leave(&mut self, index: CallerIndex, waiting: Option<&mut Waiting>) -> Option<Waker> {
        let left = self.callers.try_remove(index as usize)?;
        if let Some(waiting) = waiting {
            self.unlink(waiting, Waiting::at(index as usize), left.next);
        }
        // A waker may run foreign code when it is dropped, so it is dropped after unlocking.
        match left.stage {
            Stage::Waiting(waker) => Some(waker),
            Stage::Ended(_) => None,
        }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.callers.is_empty()
    }

    fn of(&self, waiting: Waiting) -> impl Iterator<Item = &Caller> {
        let at = |waiting: Waiting| self.callers.get(waiting.first()?);
        std::iter::successors(at(waiting), move |caller| at(caller.next))
    }

    /// Replaces the link to a caller by the `next` link, in the list of its hold.
    fn unlink(&mut self, waiting: &mut Waiting, left: Waiting, next: Waiting) {
        if *waiting == left {
            *waiting = next;
            return;
        }
        let mut at = *waiting;
        while let Some(caller) = at.first().and_then(|first| self.callers.get_mut(first)) {
            if caller.next == left {
                caller.next = next;
                return;
            }
            at = caller.next;
        }
    }

    /// Calls `with` on the callers that the request `what` can answer.
    fn each(&mut self, waiting: Waiting, what: Want, mut with: impl FnMut(&mut Caller)) {
        let mut at = waiting;
        while let Some(caller) = at.first().and_then(|first| self.callers.get_mut(first)) {
            at = caller.next;
            if what.answers(caller.want) {
                with(caller);
            }
        }
    }

    /// Ends the waits that `which` selects. The other callers stay in the hold's list.
    fn end(
        &mut self,
        waiting: &mut Waiting,
        which: impl Fn(&Caller) -> bool,
        told: impl Fn(&Caller) -> Ended,
        mut woken: impl FnMut(Waker),
    ) {
        // Rebuilds the list from the callers that stay.
        let (mut at, mut left) = (std::mem::take(waiting), Waiting::default());
        while let Some(caller) = at.first().and_then(|first| self.callers.get_mut(first)) {
            let this = at;
            // The link is read before it is overwritten below.
            at = caller.next;
            if which(caller) {
                let end = Stage::Ended(told(caller));
                if let Stage::Waiting(waker) = std::mem::replace(&mut caller.stage, end) {
                    woken(waker);
                }
            } else {
                caller.next = left;
                left = this;
            }
        }
        *waiting = left;
    }
}

impl Caller {
    fn is_waiting(&self) -> bool {
        matches!(self.stage, Stage::Waiting(_))
    }

    /// Returns the result when the server does not know the hold. An earlier request without a reply has released the lock if it
    /// was ours when its guard was released.
    fn end_of_unknown(&self, known: bool) -> Ended {
        let held = known || (self.ambiguous && self.believed);
        Ok(if held { Confirmation::Held } else { Confirmation::Lost })
    }
}

#[cfg(test)]
mod tests;
