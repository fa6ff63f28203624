//! What follows from a change of servers: whether the one that answers now knows of what was granted before is to be
//! verified, and what was released lately is to be released again. Goes through both some at a time.

use wheellock_client::Change;

use super::concerns::Concerns;
use super::released::{KEPT, Release};
use super::{Due, Event, HoldIndex, Holds, State, presented_key};
use crate::base::clock::BootInstant;
use crate::base::lease::Lease;

/// Changes whose consequences are being looked at.
#[derive(Default)]
pub(super) struct Changes {
    /// What this pass through the table looks for; nothing if there is none.
    pass: Concerns,
    /// Where it goes on.
    cursor: usize,
    /// Whom the next pass looks for.
    next: Concerns,
    last: Option<BootInstant>,
}

impl Changes {
    /// Whether a request that was sent at `sent` may have been answered by a server that has been replaced since.
    pub(super) fn since(&self, sent: BootInstant) -> bool {
        self.last.is_some_and(|last| sent <= last)
    }
}

impl Holds {
    /// Another server may answer for some locks now.
    pub(crate) fn changed(&mut self, change: &Change, now: BootInstant) {
        self.changes.last = Some(now);
        self.changes.next.add(change.clone());
        if self.may_verify() {
            self.plan(now);
        }
    }

    /// Whether there is something to verify, and room for it: not everything is asked at once, or whatever else is to be
    /// sent would stand behind it.
    pub(super) fn may_verify(&self) -> bool {
        let any = !self.changes.pass.is_empty() || !self.changes.next.is_empty();
        any && self.renewals.len() < SCRIPTS
    }

    /// Renews or verifies some of the holds that the changes concern.
    pub(super) fn verify_some(&mut self, now: BootInstant, due: &mut Due<'_>) {
        if !self.may_verify() {
            return;
        }
        if self.changes.pass.is_empty() {
            self.changes.pass = std::mem::take(&mut self.changes.next);
            self.changes.cursor = 0;
        }
        let end = (self.changes.cursor + SLICE).min(self.holds.capacity());
        for index in self.changes.cursor..end {
            let Some(hold) = self.holds.get_mut(index) else { continue };
            let held = hold.state == State::Held && hold.guards > 0;
            let releasing = hold.releasing.is_under_way() && self.released.is_some();
            if !(held || releasing) || !self.changes.pass.contains(hold.name.key()) {
                continue;
            }
            if releasing {
                // It is not known which server answers it, so another one follows.
                hold.releasing.outdate();
            }
            if held {
                hold.renewing.doubt();
                self.ask(HoldIndex::try_from(index).unwrap_or(HoldIndex::MAX), now, due);
            }
        }
        self.changes.cursor = end;
        if end == self.holds.capacity() {
            let concerns = std::mem::take(&mut self.changes.pass);
            // Not earlier: releases that the server before has answered may have come in while the table was gone through.
            if let Some(released) = &mut self.released {
                released.suspect(concerns);
            }
        }
    }

    /// A request of this hold was answered by the server with the number `node`. If it was a release, and the last, that
    /// server may be replaced by one that has not heard of it.
    #[inline(never)] // It is not on a single server's way.
    pub(super) fn remember_release(&mut self, index: HoldIndex, node: u32, now: BootInstant) {
        let Some(released) = &mut self.released else { return };
        // One that was sent again, and found nothing, may still be news to whoever takes over next.
        let Some(hold) = self.holds.get(index as usize).filter(|hold| hold.wanted() == 0) else { return };
        released.remember(node, &hold.name, hold.owner, now);
        if !std::mem::replace(&mut released.will_forget, true) {
            self.forget_releases_at(now + KEPT);
        }
    }

    fn forget_releases_at(&mut self, at: BootInstant) {
        let tick = self.tick_at_or_after(at);
        self.wheel.insert(tick, Event::Forget);
        self.plan(self.start_of(tick));
    }

    pub(super) fn forget_releases(&mut self, now: BootInstant) {
        let Some(released) = &mut self.released else { return };
        let next = released.forget(now);
        released.will_forget = next.is_some();
        if let Some(next) = next {
            self.forget_releases_at(next);
        }
    }

    /// Whether there are releases to be sent again, and room for them.
    pub(super) fn may_repeat(&self) -> bool {
        self.released.as_ref().is_some_and(|released| released.may_repeat())
    }

    /// Releases once more some of what the changes concern, each as a hold of its own that has nothing but this request:
    /// its owner waits for it as for any other, should it come back.
    pub(super) fn repeat_some(&mut self, now: BootInstant, due: &mut Due<'_>) {
        let mut looks = SLICE;
        while let Some(release) = self.released.as_mut().and_then(|released| released.next(&mut looks)) {
            let Release { name, owner, .. } = release;
            // An owner that holds it again or asks for it says by itself what the server is to know.
            if self.presented.contains_key(&presented_key(owner, &name)) {
                self.end_repetition();
                continue;
            }
            let index = self.insert(&name, owner, true, Lease::DEFAULT, now);
            if let Some(hold) = self.get_mut(index) {
                (hold.state, hold.expired_by) = (State::GivenBack, Lease::DEFAULT.expired_by(now));
            }
            due.effects.request_all(self.reconcile(index));
        }
    }

    /// A hold that was there to release once more has ended, or has become an ordinary one.
    pub(super) fn end_repetition(&mut self) {
        if let Some(released) = &mut self.released {
            released.ended();
        }
        if self.may_repeat() {
            self.plan(self.start);
        }
    }
}

/// Holds looked at before others may have the table.
const SLICE: usize = 1000;
/// Scripts of renewals under way beyond which no more are made for the sake of a change.
const SCRIPTS: usize = 64;
