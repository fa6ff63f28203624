//! Attempts and reconciling requests of one hold. Pure.
//!
//! It does not know the wanted count, nor whether the hold may be released. The table of holds decides both.

use super::callers::Waiting;
use crate::base::clock::BootInstant;
use crate::base::error::LostReason;

/// Attempts and reconciling requests of one hold.
///
/// Nearly all of these states can occur together, so they are not stages of one path.
///
/// - An attempt waits neither for a retry nor for the backlog. A [planned](Self::repeat_at) or
///   [postponed](Self::join_the_backlog) request may therefore meet an attempt under way, or the request that took an attempt
///   back.
/// - After a shutdown two requests may be under way, one for an attempt and one for its grant.
/// - An [outdated](Self::outdate) hold stays outdated after a failed request, until the next request is sent.
#[derive(Default)]
pub(super) struct Releasing {
    /// Instant of the next request. Set if the server's count may differ from the wanted count.
    repeat_at: Option<BootInstant>,
    /// Number of shares that attempts under way request.
    attempts: u32,
    /// Callers that wait for a release, a renewal or a check. They are here because only here they do not make `Hold` larger.
    pub(super) callers: Waiting,
    /// Number of reconciling requests under way.
    requests: u16,
    /// True while the hold stands in the backlog.
    postponed: bool,
    /// True if the wanted count changed while a request was under way. Another request must follow it.
    outdated: bool,
    /// Loss to report if the reply to the next request shows that the server does not know the hold. Only the first reply to a
    /// release can show it. If a release is repeated, its earlier request may be the reason.
    loss: Option<LostReason>,
}

impl Releasing {
    /// Begins an attempt that requests `count` shares.
    pub(super) fn attempt(&mut self, count: u32) {
        self.attempts += count;
    }

    /// Ends an attempt, whatever its result.
    pub(super) fn end_attempt(&mut self, count: u32) {
        self.attempts -= count;
    }

    /// Records that the last guard was released. The reply to the next request is the first to show whether the guard held the
    /// lock. If it did not, the lock was lost for the reason `loss`.
    pub(super) fn give_back(&mut self, loss: LostReason) {
        self.loss = Some(loss);
    }

    /// Records that the wanted count changed. Returns true if a request must be sent now. If a request is under way, another
    /// request follows it.
    pub(super) fn change(&mut self) -> bool {
        let busy = self.is_busy();
        // A hold may be outdated after a failed request. A change of an idle hold must keep that mark.
        self.outdated |= busy;
        !busy
    }

    /// Makes another request follow the request under way.
    pub(super) fn outdate(&mut self) {
        self.outdated = true;
    }

    /// Begins a request with the count that is wanted now.
    pub(super) fn begin(&mut self) {
        self.requests += 1;
        // This request carries the latest count. `postponed` stays, because the backlog still contains this hold.
        self.repeat_at = None;
        self.outdated = false;
    }

    /// Ends a request without a useful reply.
    pub(super) fn end(&mut self) {
        self.requests -= 1;
    }

    /// Ends a request with a reply. Returns the loss to report if the server does not know the hold.
    pub(super) fn answer(&mut self) -> Option<LostReason> {
        self.requests -= 1;
        self.loss.take()
    }

    /// Marks a request as possibly executed without a reply. The next reply then proves nothing about the time before.
    pub(super) fn unheard(&mut self) {
        self.loss = None;
    }

    /// Ends a failed request, and schedules its retry at `at`.
    pub(super) fn repeat_at(&mut self, at: BootInstant) {
        self.requests -= 1;
        self.repeat_at = Some(at);
    }

    /// Postpones the scheduled request, because another request is under way.
    pub(super) fn put_off(&mut self, at: BootInstant) {
        self.repeat_at = Some(at);
    }

    /// Cancels the scheduled request.
    pub(super) fn give_up(&mut self) {
        self.repeat_at = None;
    }

    /// Puts the hold into the backlog. Returns true if it was there before.
    pub(super) fn join_the_backlog(&mut self) -> bool {
        // The backlog must not contain a hold twice.
        std::mem::replace(&mut self.postponed, true)
    }

    /// Takes the hold out of the backlog. Returns true if a request may be sent now. If a request is under way, another request
    /// follows it.
    pub(super) fn leave_the_backlog(&mut self) -> bool {
        self.postponed = false;
        self.change()
    }

    /// Returns true once if another request must follow the last one.
    pub(super) fn take_outdated(&mut self) -> bool {
        std::mem::take(&mut self.outdated)
    }

    /// Returns the number of shares that attempts under way request.
    pub(super) fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Returns true if a reconciling request is under way.
    pub(super) fn is_under_way(&self) -> bool {
        self.requests > 0
    }

    /// Returns true if an attempt or a request is under way. No other request may overtake it.
    pub(super) fn is_busy(&self) -> bool {
        // One comparison, because an uncontended acquire and release evaluates this seven times.
        self.attempts | u32::from(self.requests) > 0
    }

    /// Returns the instant of the scheduled request.
    pub(super) fn planned(&self) -> Option<BootInstant> {
        self.repeat_at
    }

    /// Returns true if the scheduled request is due.
    pub(super) fn is_due(&self, now: BootInstant) -> bool {
        self.repeat_at.is_some_and(|at| now >= at)
    }

    /// Returns true if no request is under way or to come.
    pub(super) fn is_settled(&self) -> bool {
        !self.is_busy() && self.repeat_at.is_none() && !self.postponed
    }

    /// Returns true if the hold is settled, no caller waits, and the server has the latest count.
    pub(super) fn is_at_rest(&self) -> bool {
        self.is_settled() && !self.outdated && self.callers.is_empty()
    }

    /// Returns true if a change waits for the request under way, or for room.
    pub(super) fn has_waiting(&self) -> bool {
        self.outdated || self.postponed
    }

    /// Returns true if the server has yet to reply, or to receive the wanted count. Waiting changes count only if `is_of_use`.
    ///
    /// Attempts do not count. The request that takes an attempt back does count. The server replies to it after the attempt, even
    /// if no task reads the attempt's own reply.
    pub(super) fn is_unreconciled(&self, is_of_use: bool) -> bool {
        // A waiting change of a lost lock is never sent, so a shutdown must not wait for it.
        self.is_under_way() || self.repeat_at.is_some() || is_of_use && self.has_waiting()
    }
}

#[cfg(test)]
mod tests;
