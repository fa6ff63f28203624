//! Callers that wait for the result of a release.
//!
//! The release request is the same that a dropped guard would leave behind. This module tracks only the caller's view of it and
//! changes nothing else.
//!
//! A view first waits until a request begins that counts without its guard. It is then asked until a reply to such a request
//! arrives. After that it has ended, until its caller reads the result. The deadline ends a view from outside, and the request
//! continues.

use std::task::Waker;

use slab::Slab;

use super::HoldIndex;
use crate::base::clock::BootInstant;

/// The views of one table. Their slots are reused, so an awaited release allocates nothing.
#[derive(Default)]
pub(super) struct PendingReleases {
    views: Slab<View>,
}

/// Index of a view. Valid until its caller takes the result or leaves.
pub(crate) type ViewIndex = u32;

/// Head of the list of one hold's views: the index of the first view, plus one.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Views(u32);

struct View {
    hold: HoldIndex,
    /// The next view of the same hold.
    next: Views,
    /// True if the lock was believed held when its guard was released.
    believed: bool,
    /// True if an earlier request may have been executed without a reply.
    ambiguous: bool,
    until: BootInstant,
    /// The error of an earlier request.
    reason: Option<wheellock_client::Error>,
    /// True if a request whose reply answers this view has begun.
    asked: bool,
    stage: Stage,
}

enum Stage {
    Waiting(Waker),
    Ended(End),
}

/// The result for a caller. True if this release gave the lock back, and false if the lock was lost before.
type End = Result<bool, Failed>;

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
    pub(super) fn for_caller(&self, ambiguous: bool) -> Self {
        match self {
            Self::Error(error) if ambiguous => Self::Error(error.after_an_unanswered_attempt()),
            failed => failed.clone(),
        }
    }
}

impl Views {
    pub(super) fn is_empty(self) -> bool {
        self == Self::default()
    }

    fn first(self) -> Option<usize> {
        Some(self.0.checked_sub(1)? as usize)
    }

    fn at(index: usize) -> Self {
        Self(u32::try_from(index + 1).unwrap_or_default())
    }
}

impl PendingReleases {
    /// Begins a caller's wait, until `until` at most, for the release of one guard of `hold`. The reply to the next request ends
    /// the wait.
    pub(super) fn begin(
        &mut self,
        hold: HoldIndex,
        views: &mut Views,
        (believed, until): (bool, BootInstant),
        waker: &Waker,
    ) -> ViewIndex {
        let (stage, next) = (Stage::Waiting(waker.clone()), *views);
        let view = View { hold, next, believed, ambiguous: false, until, reason: None, asked: false, stage };
        let index = self.views.insert(view);
        *views = Views::at(index);
        u32::try_from(index).unwrap_or(u32::MAX)
    }

    /// Marks the views as waiting for the reply to the request that begins now.
    pub(super) fn asked(&mut self, views: Views) {
        self.each(views, |view| view.asked = true);
    }

    /// Marks the request under way as possibly executed without a reply. The next reply then proves nothing about the time
    /// before.
    pub(super) fn unheard(&mut self, views: Views) {
        self.each(views, |view| view.ambiguous |= view.asked);
    }

    /// Records the error of a request that is retried.
    pub(super) fn failed_once(&mut self, views: Views, reason: &wheellock_client::Error, now: BootInstant) {
        self.each(views, |view| {
            // An error at the deadline results from the timeout, so it does not explain the timeout.
            if view.asked && now < view.until {
                view.reason = Some(reason.clone());
            }
        });
    }

    /// Ends the views that the reply answers. `known` is true if the server knew the hold. If it did not, an earlier request
    /// without a reply may be the reason.
    pub(super) fn answered(&mut self, views: &mut Views, known: bool, woken: impl FnMut(Waker)) {
        self.end(views, |view| view.asked, |view| view.end_of_unknown(known), woken);
    }

    /// Ends the views of a hold without a further request. The hold is no longer this process's to release.
    pub(super) fn given_up(&mut self, views: &mut Views, woken: impl FnMut(Waker)) {
        self.end(views, |_| true, |view| view.end_of_unknown(false), woken);
    }

    /// Ends all views with an error, because the cause that stopped one request stops all of them.
    pub(super) fn failed(&mut self, views: &mut Views, why: &Failed, woken: impl FnMut(Waker)) {
        self.end(views, |_| true, |view| Err(why.for_caller(view.ambiguous)), woken);
    }

    /// Returns the holds with views whose deadlines have passed.
    pub(super) fn holds_overdue(&self, now: BootInstant) -> Vec<HoldIndex> {
        self.waiting().filter(|view| now >= view.until).map(|view| view.hold).collect()
    }

    /// Ends the views of one hold whose deadlines have passed. `sent` is true if a request under way may be executed.
    pub(super) fn overdue(
        &mut self,
        views: &mut Views,
        sent: bool,
        now: BootInstant,
        woken: impl FnMut(Waker),
    ) {
        let told = |view: &View| {
            let ambiguous = view.ambiguous || (sent && view.asked);
            Err(Failed::TimedOut { ambiguous, reason: view.reason.clone() })
        };
        self.end(views, |view| now >= view.until, told, woken);
    }

    /// Returns the earliest deadline of the waiting views.
    pub(super) fn earliest(&self) -> Option<BootInstant> {
        self.waiting().map(|view| view.until).min()
    }

    fn waiting(&self) -> impl Iterator<Item = &View> {
        self.views.iter().map(|(_, view)| view).filter(|view| matches!(view.stage, Stage::Waiting(_)))
    }

    /// Returns a caller's result. Stores the caller's waker if the result is not there yet.
    pub(super) fn take(&mut self, index: ViewIndex, waker: &Waker) -> Option<End> {
        match &mut self.views.get_mut(index as usize)?.stage {
            Stage::Waiting(known) => {
                known.clone_from(waker);
                return None;
            }
            Stage::Ended(_) => {}
        }
        match self.views.remove(index as usize).stage {
            Stage::Ended(end) => Some(end),
            Stage::Waiting(_) => None,
        }
    }

    /// Returns the hold of a view that is still waiting.
    pub(super) fn hold_of(&self, index: ViewIndex) -> Option<HoldIndex> {
        let view = self.views.get(index as usize)?;
        matches!(view.stage, Stage::Waiting(_)).then_some(view.hold)
    }

    /// Removes the view of a caller that left. `views` are the views of its hold.
    pub(super) fn leave(&mut self, index: ViewIndex, views: Option<&mut Views>) -> Option<Waker> {
        let left = Views::at(index as usize);
        if let Some(views) = views {
            // Unlinks the view from its hold's list.
            let next = self.views.get(index as usize).map(|view| view.next).unwrap_or_default();
            if *views == left {
                *views = next;
            } else {
                self.each(*views, |view| {
                    if view.next == left {
                        view.next = next;
                    }
                });
            }
        }
        match self.views.try_remove(index as usize)?.stage {
            Stage::Waiting(waker) => Some(waker),
            Stage::Ended(_) => None,
        }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.views.is_empty()
    }

    fn each(&mut self, views: Views, mut with: impl FnMut(&mut View)) {
        let mut at = views;
        while let Some(view) = at.first().and_then(|first| self.views.get_mut(first)) {
            at = view.next;
            with(view);
        }
    }

    /// Ends the views that `which` selects. The other views stay in the hold's list.
    fn end(
        &mut self,
        views: &mut Views,
        which: impl Fn(&View) -> bool,
        told: impl Fn(&View) -> End,
        mut woken: impl FnMut(Waker),
    ) {
        // Rebuilds the list from the views that stay.
        let (mut at, mut left) = (std::mem::take(views), Views::default());
        while let Some(view) = at.first().and_then(|first| self.views.get_mut(first)) {
            let this = at;
            at = view.next;
            if which(view) {
                let end = Stage::Ended(told(view));
                if let Stage::Waiting(waker) = std::mem::replace(&mut view.stage, end) {
                    woken(waker);
                }
            } else {
                view.next = left;
                left = this;
            }
        }
        *views = left;
    }
}

impl View {
    /// Returns the result when the server does not know the hold. An earlier request without a reply has released the lock if it
    /// was ours when its guard was released.
    fn end_of_unknown(&self, known: bool) -> End {
        Ok(known || (self.ambiguous && self.believed))
    }
}

#[cfg(test)]
mod tests;
