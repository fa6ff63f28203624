//! What the server is still to be told of one hold, or to answer: attempts, and requests that reconcile its count. Pure, and knows
//! neither what is wanted nor whether it may be given back; the table of holds says so.

use super::awaited::Views;
use crate::base::clock::BootInstant;

/// Attempts and reconciling requests of one hold.
///
/// Nearly everything here can be so at once with everything else, so these are no stages of one way. An attempt does not wait for a
/// repetition, nor for the backlog: what is [planned](Self::repeat_at), or [postponed](Self::join_the_backlog), may find an attempt
/// under way, or a request that took one back. After a shutdown two requests may be under way, one for an attempt and one for its
/// grant. And what is [outdated](Self::outdate) stays so when the request under way has failed, until the next one goes out.
#[derive(Default)]
pub(super) struct Releasing {
    /// The server's count may differ from the wanted one, and when to make a request that changes that.
    repeat_at: Option<BootInstant>,
    /// Holds that are asked for.
    attempts: u32,
    /// Callers that wait for their releases.
    views: Views,
    /// Reconciling requests under way.
    requests: u16,
    /// Stands in the backlog.
    postponed: bool,
    /// The wanted count changed while a request was under way; another one must follow it.
    outdated: bool,
    untold: Untold,
}

/// What a release can find out. Only the first answer tells: when a request that was not answered is repeated, the one before
/// it may be why the server no longer knows the hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Untold {
    #[default]
    Nothing,
    /// Whether the lock that was given back had been held until then. Whether it was `believed` held tells a loss by force
    /// from the end of a lease.
    Released { believed: bool },
}

impl Releasing {
    /// An attempt begins that asks for `count`.
    pub(super) fn attempt(&mut self, count: u32) {
        self.attempts += count;
    }

    /// The attempt has ended, one way or another.
    pub(super) fn end_attempt(&mut self, count: u32) {
        self.attempts -= count;
    }

    /// The last guard has gone: the answer to the next request tells for the first time whether it held the lock.
    pub(super) fn give_back(&mut self, believed: bool) {
        self.untold = Untold::Released { believed };
    }

    /// The wanted count has changed. Whether a request is to tell the server now; if one is under way, another one follows it.
    pub(super) fn change(&mut self) -> bool {
        let busy = self.is_busy();
        self.outdated |= busy;
        !busy
    }

    /// Another request is to follow the one under way.
    pub(super) fn outdate(&mut self) {
        self.outdated = true;
    }

    /// A request begins, with what is wanted now.
    pub(super) fn begin(&mut self) {
        self.requests += 1;
        self.repeat_at = None;
        self.outdated = false;
    }

    /// A request has ended, and its answer says nothing, or there is none.
    pub(super) fn end(&mut self) {
        self.requests -= 1;
    }

    /// A request was answered: what that tells for the first time.
    pub(super) fn answer(&mut self) -> Untold {
        self.requests -= 1;
        std::mem::take(&mut self.untold)
    }

    /// A request may have been executed unheard: what the next one is told proves nothing about the time before.
    pub(super) fn unheard(&mut self) {
        self.untold = Untold::Nothing;
    }

    /// A request has ended without effect, and is made again then.
    pub(super) fn repeat_at(&mut self, at: BootInstant) {
        self.requests -= 1;
        self.repeat_at = Some(at);
    }

    /// What is planned has to wait for what is under way.
    pub(super) fn put_off(&mut self, at: BootInstant) {
        self.repeat_at = Some(at);
    }

    /// What is planned is of no use any more.
    pub(super) fn give_up(&mut self) {
        self.repeat_at = None;
    }

    /// Stands in the backlog from now on. Returns whether it did before.
    pub(super) fn join_the_backlog(&mut self) -> bool {
        std::mem::replace(&mut self.postponed, true)
    }

    /// Its turn in the backlog has come. Whether a request may go now; if one is under way, another one follows it.
    pub(super) fn leave_the_backlog(&mut self) -> bool {
        self.postponed = false;
        self.change()
    }

    /// Whether another request follows the one that was the last under way; told once.
    pub(super) fn take_outdated(&mut self) -> bool {
        std::mem::take(&mut self.outdated)
    }

    pub(super) fn views(&self) -> Views {
        self.views
    }

    pub(super) fn views_mut(&mut self) -> &mut Views {
        &mut self.views
    }

    /// Whether a caller waits for a release.
    pub(super) fn is_awaited(&self) -> bool {
        !self.views.is_empty()
    }

    /// Holds that are asked for.
    pub(super) fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Whether a reconciling request is under way.
    pub(super) fn is_under_way(&self) -> bool {
        self.requests > 0
    }

    /// Whether an attempt or a request is under way: no other one may overtake it.
    pub(super) fn is_busy(&self) -> bool {
        // With one comparison, for it is asked seven times on the way of an uncontended pair.
        self.attempts | u32::from(self.requests) > 0
    }

    /// When to make the next request, if that is planned.
    pub(super) fn planned(&self) -> Option<BootInstant> {
        self.repeat_at
    }

    /// Whether the time of what is planned has come.
    pub(super) fn is_due(&self, now: BootInstant) -> bool {
        self.repeat_at.is_some_and(|at| now >= at)
    }

    /// Whether no request is under way or to come.
    pub(super) fn is_settled(&self) -> bool {
        !self.is_busy() && self.repeat_at.is_none() && !self.postponed
    }

    /// Whether, besides, nobody waits for one, and the server was told of the latest change.
    pub(super) fn is_at_rest(&self) -> bool {
        self.is_settled() && !self.outdated && !self.is_awaited()
    }

    /// Whether something is to be told that waits for what is under way, or for room.
    pub(super) fn has_waiting(&self) -> bool {
        self.outdated || self.postponed
    }

    /// Whether the server still has to answer, or to be told: of what waits only if that `is_of_use`. Attempts do not count: what takes
    /// them back does, and is answered after them, whether or not a task looks at their own answers.
    pub(super) fn is_unreconciled(&self, is_of_use: bool) -> bool {
        self.is_under_way() || self.repeat_at.is_some() || is_of_use && self.has_waiting()
    }
}

#[cfg(test)]
mod tests;
