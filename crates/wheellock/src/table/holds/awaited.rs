//! Releases whose callers wait for what becomes of them. What is waited for is the very request that a dropped guard would have
//! left behind: here is only a caller's view of it, which begins, looks and leaves, and changes nothing.
//!
//! A view waits until a request begins that counts without its guard, is asked until one of these is answered, and has ended
//! then until its caller looks. Its deadline ends it from outside; the request goes on.

use std::task::Waker;

use slab::Slab;

use super::HoldIndex;
use crate::base::clock::BootInstant;

/// The views of one table. Their places are used again, so a release that is waited for allocates nothing.
#[derive(Default)]
pub(super) struct Awaited {
    views: Slab<View>,
}

/// Place of a view. Valid until its caller takes the end, or leaves.
pub(crate) type ViewIndex = u32;

/// The views of one hold: the place of the first, plus one.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Views(u32);

struct View {
    hold: HoldIndex,
    /// The other views of the same hold.
    next: Views,
    /// The lock was believed held when its guard was given back.
    believed: bool,
    /// A request before may have been executed without an answer.
    ambiguous: bool,
    until: BootInstant,
    /// Why a request before failed.
    reason: Option<wheellock_client::Error>,
    /// A request has begun that answers it.
    asked: bool,
    stage: Stage,
}

enum Stage {
    Waiting(Waker),
    Ended(End),
}

/// What a caller is told: whether the lock was given back, and not lost before.
type End = Result<bool, Failed>;

/// Why a caller that waits for the server's word does not get it.
#[derive(Clone, Debug)]
pub(crate) enum Failed {
    /// No request has a chance that is made now.
    Error(wheellock_client::Error),
    /// The server answered with something of this type, which the script never returns.
    Unexpected(&'static str),
    /// No answer came in time.
    TimedOut {
        /// A request without an answer may have been executed.
        ambiguous: bool,
        /// Why an earlier one failed.
        reason: Option<wheellock_client::Error>,
    },
}

impl Failed {
    /// What a caller is told for whom a request before may have been executed without an answer.
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

impl Awaited {
    /// The release of one of the guards of `hold` is waited for, until so late; the next request for it answers.
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

    /// A request begins.
    pub(super) fn asked(&mut self, views: Views) {
        self.each(views, |view| view.asked = true);
    }

    /// The request under way may have been executed unheard: what the next one is told proves nothing about the time before.
    pub(super) fn unheard(&mut self, views: Views) {
        self.each(views, |view| view.ambiguous |= view.asked);
    }

    /// The request under way has failed, and another one follows.
    pub(super) fn failed_once(&mut self, views: Views, reason: &wheellock_client::Error, now: BootInstant) {
        self.each(views, |view| {
            // What ends with the wait is not what has ended it.
            if view.asked && now < view.until {
                view.reason = Some(reason.clone());
            }
        });
    }

    /// The request under way was answered; `known` tells whether the server knew the hold. An unanswered request before may be
    /// why it did not.
    pub(super) fn answered(&mut self, views: &mut Views, known: bool, woken: impl FnMut(Waker)) {
        self.end(views, |view| view.asked, |view| view.end_of_unknown(known), woken);
    }

    /// No request follows: the hold is no longer this process' to give back.
    pub(super) fn given_up(&mut self, views: &mut Views, woken: impl FnMut(Waker)) {
        self.end(views, |_| true, |view| view.end_of_unknown(false), woken);
    }

    /// Nothing that is asked for now has a chance: whatever stopped one request stops them all.
    pub(super) fn failed(&mut self, views: &mut Views, why: &Failed, woken: impl FnMut(Waker)) {
        self.end(views, |_| true, |view| Err(why.for_caller(view.ambiguous)), woken);
    }

    /// The holds with views whose deadlines have passed.
    pub(super) fn holds_overdue(&self, now: BootInstant) -> Vec<HoldIndex> {
        self.waiting().filter(|view| now >= view.until).map(|view| view.hold).collect()
    }

    /// The views of one hold whose deadlines have passed end; `sent` tells whether a request is under way that may be executed.
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

    /// The earliest deadline of those that wait.
    pub(super) fn earliest(&self) -> Option<BootInstant> {
        self.waiting().map(|view| view.until).min()
    }

    fn waiting(&self) -> impl Iterator<Item = &View> {
        self.views.iter().map(|(_, view)| view).filter(|view| matches!(view.stage, Stage::Waiting(_)))
    }

    /// What a caller is told; leaves its waker if there is nothing yet.
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

    /// Whose release the caller of a view does not wait for any more, and has not been told of.
    pub(super) fn hold_of(&self, index: ViewIndex) -> Option<HoldIndex> {
        let view = self.views.get(index as usize)?;
        matches!(view.stage, Stage::Waiting(_)).then_some(view.hold)
    }

    /// A caller has left. `views` are those of the hold it waited for.
    pub(super) fn leave(&mut self, index: ViewIndex, views: Option<&mut Views>) -> Option<Waker> {
        let left = Views::at(index as usize);
        if let Some(views) = views {
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

    /// Ends those views that `which` names; the others stay the hold's.
    fn end(
        &mut self,
        views: &mut Views,
        which: impl Fn(&View) -> bool,
        told: impl Fn(&View) -> End,
        mut woken: impl FnMut(Waker),
    ) {
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
    /// An unanswered request has done it, if the lock was ours when the guard was given back.
    fn end_of_unknown(&self, known: bool) -> End {
        Ok(known || (self.ambiguous && self.believed))
    }
}

#[cfg(test)]
mod tests;
