//! Hand-over of a hold within the process, without a request to the server.
//!
//! The last guard's share passes to a waiter of this process. That is allowed if the server's record fits, and the budget is not used
//! up. The budget counts from the server's grant. The wait queue selects the waiter.

use std::sync::Arc;
use std::time::Duration;

use super::hold::KnownBy;
use super::{Hold, HoldIndex, Holds, Share, State};
use crate::base::clock::BootInstant;
use crate::base::hold_limits::HoldLimits;
use crate::wait::name::Name;
use crate::wait::turns::{Contenders, Opening};
use crate::wait::wait_queue::{Handed, TurnLimit};

/// The reason why a hold must be released and not handed over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum GiveBack {
    /// This process has held the lock so long that other processes come first.
    OutOfTime,
    /// The server's record is not exactly one share, the hold is in doubt, or no waiter accepts the hold.
    Unfit,
}

impl Holds {
    /// Passes the share of a hold's last guard to a waiter. The watchdog keeps the hold's lease.
    ///
    /// Fails if the process' time is over. Also fails if the server's record is not exactly one kept share, or a request is still
    /// to be sent.
    pub(crate) fn hand_over(
        &mut self,
        index: HoldIndex,
        share: Share,
        limit: TurnLimit,
        now: BootInstant,
    ) -> Result<Handed, GiveBack> {
        let period = self.alarms.period();
        let hold = self.get_mut(index).ok_or(GiveBack::Unfit)?;
        if !hold.is_known_as_one_guards(share, now) || hold.must_be_released(period, now) {
            return Err(GiveBack::Unfit);
        }
        // The budget counts from the server's grant. `guard_since` is later after a hand-over.
        let granted_at = match limit.last {
            Some(last) if last.serial == hold.serial => Some(last.granted_at),
            // The last hand-over of this hold was so long ago that its start is no longer recorded.
            _ if matches!(hold.known_by, KnownBy::HandedOver(_)) => None,
            _ => Some(hold.guard_since),
        };
        let held = now.saturating_duration_since(hold.guard_since);
        // The next hold lasts about as long as this one. A process of one task has one hold in each turn, and must not be given two.
        let reserve = if limit.is_tight { held / 2 } else { Duration::ZERO };
        let Some(granted_at) = granted_at.filter(|at| now + reserve < *at + limit.budget) else {
            hold.known_by = KnownBy::HandedOver(limit.opening);
            return Err(GiveBack::OutOfTime);
        };
        hold.known_by = KnownBy::HandedOver(Opening::Not);
        // The next guard's hold begins now. `Handed` keeps the instant of the server's grant.
        hold.guard_since = now;
        let was_limited = hold.clear_limits();
        let (serial, family) = (hold.serial, hold.name.family());
        self.tallies.of(family).handed_over(held);
        if was_limited {
            self.schedule(index);
        }
        Ok(Handed::new(serial, granted_at))
    }

    /// Marks that the release of a hold lets other processes have the lock. Returns false and changes nothing if the release does not free
    /// the lock.
    pub(crate) fn let_others(&mut self, index: HoldIndex, share: Share, now: BootInstant) -> bool {
        let frees = |hold: &&mut Hold| {
            let is_last = hold.is_valid(now) && hold.guards == share.count;
            is_last && !hold.is_presented() && hold.releasing.is_at_rest()
        };
        let hold = self.get_mut(index).filter(frees);
        hold.map(|hold| hold.known_by = KnownBy::HandedOver(Opening::Not)).is_some()
    }

    /// Accepts a handed-over hold for a waiter with these limits. Returns true if the hold is still held.
    pub(crate) fn take_over(
        &mut self,
        index: HoldIndex,
        limits: Option<&HoldLimits>,
        now: BootInstant,
        new_owner: impl FnOnce() -> u64,
    ) -> bool {
        let is_held = |hold: &&Hold| hold.is_valid(now);
        // The waiter may be polled long after the hand-over.
        let Some(hold) = self.holds.get(index as usize).filter(is_held) else { return false };
        let since = hold.guard_since;
        self.tallies.of(hold.name.family()).took_over();
        if let Some(limits) = limits {
            self.limit(index, limits, (since, now), new_owner);
        }
        true
    }

    /// Returns the lock of a released hold, if its process has to leave the lock to these contenders. Also returns true if the release
    /// was planned for that.
    pub(crate) fn stands_back_after(
        &self,
        index: HoldIndex,
        contenders: Contenders,
    ) -> Option<(&Arc<Name>, bool)> {
        let hold = self.get(index).filter(|hold| hold.guards == 0)?;
        let has_listeners = hold.name.kind().stands_back() && contenders.receivers > Some(0);
        let is_planned = matches!(hold.known_by, KnownBy::HandedOver(_));
        (has_listeners || is_planned).then_some((&hold.name, is_planned))
    }

    /// Returns the lock of a hold that was handed over before its release, and how the lock is left.
    pub(crate) fn handed_over_before(&self, index: HoldIndex) -> Option<(&Arc<Name>, Opening)> {
        let hold = self.get(index).filter(|hold| hold.guards == 0)?;
        match hold.known_by {
            KnownBy::HandedOver(opening) => Some((&hold.name, opening)),
            KnownBy::Nobody | KnownBy::Others => None,
        }
    }
}

impl Hold {
    /// Returns true if the server's record matches the one guard of this hold, so that the hold can be handed over. The record
    /// must be one kept share, of an owner that no other code can present. The lease must last long enough, and no doubt may
    /// exist.
    fn is_known_as_one_guards(&self, share: Share, now: BootInstant) -> bool {
        let Share { count, renew } = share;
        // A guard's wait for an extension needs a renewal. Only semaphores forget shares, and their permits do not pass to
        // waiters.
        (count, renew, self.guards, self.renewing.guards()) == (1, true, 1, 1)
            && self.state == State::Held
            && !self.is_presented()
            && self.releasing.is_at_rest()
            && self.renewing.is_at_rest()
            && now + self.lease.duration() / 2 <= self.valid_until
    }
}
