//! Hand-over: what the last guard of a hold has passes to a waiter of this process without a word to the server, and readers of this
//! process join one who reads. Whether that may be; to whom a hold passes, the wait queue says.

use std::sync::Arc;
use std::time::Duration;

use super::hold::KnownBy;
use super::{Hold, HoldIndex, Holds, Share, State};
use crate::base::clock::BootInstant;
use crate::wait::name::Name;
use crate::wait::turns::Opening;
use crate::wait::wait_queue::{Handed, Time};

/// Why a hold is to be given back, and not handed over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum GiveBack {
    /// This process has had it for so long that others come first.
    OutOfTime,
    /// The server knows, or is to know, more of it than that it is held once; or it is doubted; or no waiter takes it as it is.
    Unfit,
}

impl Holds {
    /// The last guard of a hold that the watchdog keeps goes. Its share is a waiter's from now on, unless something is known or to
    /// be told about the hold, or the process' time is over.
    pub(crate) fn hand_over(
        &mut self,
        index: HoldIndex,
        share: Share,
        time: Time,
        now: BootInstant,
    ) -> Result<Handed, GiveBack> {
        let wished = !self.wishes.is_empty() && self.wishes.most(index).is_some();
        let shut = self.shut;
        let hold = self.get_mut(index).ok_or(GiveBack::Unfit)?;
        if shut || wished || !hold.is_known_as_one_guards(share, now) {
            return Err(GiveBack::Unfit);
        }
        let since = match time.last {
            Some(last) if last.serial == hold.serial => Some(last.since),
            // It was handed over so long ago that nobody remembers.
            _ if matches!(hold.known_by, KnownBy::HandedOver(_)) => None,
            _ => Some(hold.since),
        };
        let Some(since) = since.filter(|since| now < *since + time.share) else {
            hold.known_by = KnownBy::HandedOver(time.opening);
            return Err(GiveBack::OutOfTime);
        };
        hold.known_by = KnownBy::HandedOver(Opening::Not);
        let held = now.saturating_duration_since(hold.since);
        hold.since = now;
        let (serial, family) = (hold.serial, hold.name.family());
        self.tallies.of(family).handed_over(held);
        Ok(Handed::new(serial, since))
    }

    /// A reader comes, and has what the last reader of this process has who was let in no longer than `budget` ago: the server counts
    /// them as one. Returns that hold.
    pub(crate) fn join(&mut self, name: &Arc<Name>, budget: Duration, now: BootInstant) -> Option<HoldIndex> {
        let index = name.last_holder().filter(|_| !self.shut)?;
        let wished = !self.wishes.is_empty() && self.wishes.most(index).is_some();
        let hold = self.get_mut(index).filter(|hold| Arc::ptr_eq(&hold.name, name))?;
        if wished || now >= hold.since + budget || !hold.is_known_as_one(now) {
            return None;
        }
        hold.guards += 1;
        hold.renewing.want(1);
        hold.rare.get_or_insert_default().joined += 1;
        self.tallies.of(name.family()).took_over();
        Some(index)
    }

    /// Whether a guard may go without the server's hearing of it, because others have joined it.
    pub(crate) fn stays_with_others(&self, index: HoldIndex, share: Share) -> bool {
        self.get(index).is_some_and(|hold| hold.is_known_without(share))
    }

    /// A guard goes, and its hold stays with those who have joined it. If there are none, nothing happens.
    pub(crate) fn leave_to_others(&mut self, index: HoldIndex, share: Share, now: BootInstant) -> bool {
        let is_held = |hold: &Hold| hold.state == State::Held && now < hold.valid_until;
        if self.shut || !self.stays_with_others(index, share) || !self.get(index).is_some_and(is_held) {
            return false;
        }
        let request = self.release(index, share, now);
        debug_assert!(request.is_none(), "the server knows of it as one");
        true
    }

    /// A waiter takes what was handed over to it. Whether it is still held.
    pub(crate) fn take_over(&mut self, index: HoldIndex, now: BootInstant) -> bool {
        let is_held = |hold: &&Hold| hold.state == State::Held && now < hold.valid_until;
        let Some(hold) = self.holds.get(index as usize).filter(is_held) else { return false };
        self.tallies.of(hold.name.family()).took_over();
        true
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
    /// Whether the server knows of this hold exactly what its one guard wants: that it is held once, by an owner whom nobody else
    /// can present, and kept. And whether it runs for long enough, with nothing that speaks against it.
    fn is_known_as_one_guards(&self, share: Share, now: BootInstant) -> bool {
        let Share { count, renew } = share;
        (count, renew, self.guards) == (1, true, 1) && self.is_known_as_one(now)
    }

    /// Whether the server knows of this hold that it is held once, and kept, and nothing else is to be told of it.
    fn is_known_as_one(&self, now: BootInstant) -> bool {
        self.state == State::Held
            && self.guards > 0
            && self.renewing.guards() == self.guards
            && !self.is_presented()
            && self.releasing.is_at_rest()
            && self.renewing.is_at_rest()
            && self.forgotten() == 0
            && now + self.lease.duration() / 2 <= self.valid_until
    }
}
