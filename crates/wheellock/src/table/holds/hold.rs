//! One hold: what is known of it, and what follows from that. Pure.

use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use wheellock_wheel::TimerKey;

use super::releasing::Releasing;
use super::renewing::Renewing;
use super::{Effects, Share, TICK};
use crate::base::clock::BootInstant;
use crate::base::error::LostReason;
use crate::base::lease::Lease;
use crate::wait::name::Name;
use crate::wait::turns::Opening;

/// One (lock, owner) pair that this process holds, asks for, or has held: who it is, as what it is held, and two machines that say
/// what is under way for it.
pub(crate) struct Hold {
    pub(crate) name: Arc<Name>,
    pub(crate) owner: u64,
    /// Tells this hold from others that have had or will have its index.
    pub(crate) serial: u64,
    pub(super) known_by: KnownBy,
    /// As what it is held,
    pub(crate) state: State,
    pub(super) guards: u32,
    /// since when the first of them has it,
    pub(super) since: BootInstant,
    /// and until when that is believed.
    pub(crate) valid_until: BootInstant,
    pub(crate) lease: Lease,
    /// When the server has certainly forgotten it.
    pub(super) expired_by: BootInstant,
    /// What the server is still to be told of it,
    pub(super) releasing: Releasing,
    /// and what it is asked,
    pub(super) renewing: Renewing,
    /// and how many requests in a row, of either sort, it refused before they had any effect.
    pub(super) refusals: u8,
    /// What hardly any hold has.
    pub(super) rare: Option<Box<Rare>>,
    pub(super) alarm: Option<TimerKey>,
}

/// Who knows a hold's owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum KnownBy {
    /// Nobody: it was made for this hold.
    Nobody,
    /// As before; and the hold has had several guards, one after the other, or would have had if there had been time. How the lock is
    /// left when it is released.
    HandedOver(Opening),
    /// Code outside of the library, which may present it again.
    Others,
}

#[derive(Default)]
pub(super) struct Rare {
    /// How many times it is held by nobody who will give it back.
    pub(super) forgotten: u32,
    /// Guards that the server does not know of, because they have joined others.
    pub(super) joined: u32,
    /// The lease that the latest attempt asks for, if that is longer than the hold's,
    asked: Option<Lease>,
    /// and whether a renewal was under way when it began, which knew nothing of it.
    was_asked_beside_a_renewal: bool,
    /// Until when each of those is believed that the server counts, the first one first, if each has a lease of its own there. Empty
    /// until there are several.
    ends: Vec<BootInstant>,
    /// A question for it may have got no answer, and may still come: it must find that nothing is wanted any more.
    may_come_late: bool,
    /// Tasks with the hold's owner that wait for the request under way: two at once could overtake each other, and then
    /// it would not be known which count the server was told last.
    pub(super) gate: Vec<Waker>,
    /// Those who want to know of the loss.
    pub(super) watchers: Vec<(u64, Waker)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    /// Nothing was granted yet.
    Asked,
    /// It was given back before, and is here to be given back once more, to a server that may not have heard of it.
    GivenBack,
    Held,
    Lost(LostReason),
}

impl Hold {
    /// Whether the key may still be this hold's to give back.
    pub(super) fn is_worth_releasing(&self) -> bool {
        match self.state {
            State::Asked | State::GivenBack | State::Held | State::Lost(LostReason::ShutDown) => true,
            // Our arithmetic says lost, but the key may stand for a moment more: free it. Not so if the owner may have
            // taken the lock again in the meantime, for the key is then that hold's.
            State::Lost(LostReason::Expired) => !self.is_presented(),
            State::Lost(_) => false,
        }
    }

    /// Returns true if the server may still keep something of this lost hold.
    pub(super) fn may_have_left_a_mark(&self) -> bool {
        let has_left = match self.state {
            // After a failover the server may know that this owner waits, and nothing of the grant.
            State::Lost(LostReason::NotOwner) => self.name.kind().leaves_mark,
            // The hash lives as long as its longest lease, so this owner's field may outlive its own.
            State::Lost(LostReason::Expired) => self.is_presented(),
            _ => false,
        };
        has_left && self.guards == 0
    }

    /// Whether the server still has to be told what is wanted of it, or to answer.
    pub(super) fn is_unreconciled(&self) -> bool {
        self.releasing.is_unreconciled(self.is_worth_releasing())
    }

    pub(super) fn is_lost(&self) -> bool {
        matches!(self.state, State::Lost(_))
    }

    pub(super) fn is_presented(&self) -> bool {
        self.known_by == KnownBy::Others
    }

    pub(super) fn may_come_late(&mut self) {
        if self.name.kind().remembers_releases() {
            self.rare.get_or_insert_default().may_come_late = true;
        }
    }

    /// Whether a release that gave something back is followed by one that finds nothing, which the server remembers.
    pub(super) fn is_released_twice(&self) -> bool {
        self.wanted() == 0 && self.rare.as_ref().is_some_and(|rare| rare.may_come_late)
    }

    pub(super) fn wait_at_gate(&mut self, waker: &Waker) {
        let gate = &mut self.rare.get_or_insert_default().gate;
        if !gate.iter().any(|known| known.will_wake(waker)) {
            gate.push(waker.clone());
        }
    }

    pub(super) fn open_gate(&mut self, effects: &mut Effects) {
        if let Some(rare) = &mut self.rare {
            effects.wake(rare.gate.drain(..));
        }
    }

    /// A request was refused before it had any effect, and may be made again after `pause`. Returns the pause to make:
    /// two redirections are followed at once, then there is a pause, because the client may need some milliseconds to
    /// learn of the new place, and the node that names it may be wrong for seconds. The pauses grow.
    pub(super) fn pause_after_refusal(&mut self, pause: Duration) -> Duration {
        let (round, at_once) = (self.refusals / 3, self.refusals % 3 < 2);
        self.refusals = self.refusals.wrapping_add(1);
        if pause.is_zero() && at_once {
            return Duration::ZERO;
        }
        let shortest = pause.max(REFUSAL_PAUSE);
        (shortest * (1 << round.min(3))).min(self.lease.retry_after()).max(shortest)
    }

    /// The server has said that this is still held.
    pub(super) fn answered(&mut self, now: BootInstant) {
        self.refusals = 0;
        self.renewing.answer(now);
    }

    /// Where many hold a lock, one of them can shorten it for all (the watchdog of Redisson's readers does). A holder whose lease is
    /// renewed makes that good each time; one with a fixed lease looks as often, and no less often than the watchdog would: the
    /// others' leases may be much shorter.
    pub(super) fn look_again_if_others_may_shorten_it(&mut self, now: BootInstant, period: Duration) {
        let may_be_shortened = self.name.kind().may_be_shortened();
        if may_be_shortened && !self.renewing.is_wanted() && self.renewing.planned().is_none() {
            self.renewing.verify_at(now + self.lease.renew_after().min(period));
        }
    }

    /// What the watchdog visits in its turn has no alarm. After an answer that took so long that the next turn may come after the end,
    /// it is asked for at once.
    pub(super) fn ask_again_if_its_turn_comes_late(&mut self, now: BootInstant, period: Duration) {
        if self.is_kept_alive() && self.renewing.planned().is_none() && self.lost_at() <= now + period {
            self.renewing.plan(now);
        }
    }

    /// The server is asked to count so many.
    pub(super) fn asks_for(&mut self, count: u32) {
        let others = count.saturating_sub(1) as usize;
        if self.name.kind().has_a_lease_each() && (others > 0 || self.rare.is_some()) {
            let believed = self.valid_until;
            self.rare.get_or_insert_default().ends.resize(others, believed);
        }
    }

    /// The server counted none any more.
    pub(super) fn counts_anew(&mut self) {
        if let Some(rare) = &mut self.rare {
            rare.ends.clear();
        }
    }

    /// It counts one more, until `end`.
    pub(super) fn counts_one_until(&mut self, end: BootInstant) {
        if let Some(rare) = self.rare.as_mut().filter(|rare| !rare.ends.is_empty()) {
            rare.ends.push(end);
            self.believe_in_what_is_counted();
        }
    }

    /// The server is told to count no more than so many: it forgets the last ones, and their leases. Whether the lock may end earlier
    /// for that.
    pub(super) fn keeps(&mut self, count: u32) -> bool {
        let Some(rare) = self.rare.as_mut().filter(|rare| !rare.ends.is_empty()) else { return false };
        rare.ends.truncate(count as usize);
        self.believe_in_what_is_counted()
    }

    fn believe_in_what_is_counted(&mut self) -> bool {
        let longest = self.rare.as_ref().and_then(|rare| rare.ends.iter().max());
        let Some(end) = longest.copied().filter(|end| *end < self.valid_until) else { return false };
        self.valid_until = end;
        true
    }

    /// All that the server counts run until `end` at least.
    pub(super) fn extended_until(&mut self, end: BootInstant) {
        self.valid_until = self.valid_until.max(end);
        self.ends_mut().for_each(|known| *known = end.max(*known));
    }

    /// All that the server counts may end `by` earlier than was thought.
    pub(super) fn shortened(&mut self, by: Duration) {
        self.valid_until = self.valid_until.saturating_sub(by);
        self.ends_mut().for_each(|known| *known = known.saturating_sub(by));
    }

    fn ends_mut(&mut self) -> impl Iterator<Item = &mut BootInstant> {
        self.rare.iter_mut().flat_map(|rare| &mut rare.ends)
    }

    /// Whether the lease was extended, or granted, by a request that was sent no earlier than `sent`.
    pub(super) fn was_extended_since(&self, sent: BootInstant) -> bool {
        self.valid_until >= self.lease.valid_until(sent)
    }

    pub(super) fn was_extended_after(&self, sent: BootInstant) -> bool {
        self.valid_until > self.lease.valid_until(sent)
    }

    /// Whether it is in the watchdog's care.
    pub(super) fn is_kept_alive(&self) -> bool {
        self.state == State::Held && self.renewing.is_wanted()
    }

    /// Whether the server is to be asked whether this is still held, by extending it or otherwise; `wished` if a guard waits
    /// for that.
    pub(super) fn is_to_be_asked_for(&self, wished: bool) -> bool {
        let is_believed = self.state == State::Held && self.guards > 0;
        is_believed && (wished || self.renewing.is_to_be_asked())
    }

    /// Whether the next reconciling request is to be made at `now`, after one that had no answer or no effect. A caller who
    /// waits for the server's word gets it though the lease has ended.
    pub(super) fn is_to_be_released(&self, now: BootInstant) -> bool {
        self.is_worth_releasing() && (now < self.expired_by || self.releasing.is_awaited())
    }

    /// A guard goes.
    pub(super) fn leave(&mut self, share: Share) {
        self.guards -= share.count;
        if share.renew {
            self.renewing.want_no_more(share.count);
        }
        if let Some(rare) = &mut self.rare {
            // One of those who are left is the one that the server knows.
            rare.joined = rare.joined.min(self.guards.saturating_sub(1));
        }
    }

    /// An attempt begins that asks for this lease. It may be granted, and then relied upon, before that is heard of here. It is the only
    /// one: those of one owner are made one after the other.
    pub(super) fn asks_for_a_lease_of(&mut self, lease: Lease) {
        if self.guards > 0 && lease > self.lease {
            let beside_a_renewal = self.renewing.is_under_way();
            let rare = self.rare.get_or_insert_default();
            (rare.asked, rare.was_asked_beside_a_renewal) = (Some(lease), beside_a_renewal);
        } else if let Some(rare) = &mut self.rare {
            (rare.asked, rare.was_asked_beside_a_renewal) = (None, false);
        }
    }

    /// With which lease it is renewed: a shorter one would take from what was just granted.
    pub(super) fn longest_lease(&self) -> Lease {
        let asked = self.rare.as_ref().and_then(|rare| rare.asked).filter(|_| self.releasing.attempts() > 0);
        asked.map_or(self.lease, |asked| asked.max(self.lease))
    }

    /// Whether a renewal that knew nothing of what was granted may have come behind it.
    pub(super) fn may_have_been_shortened(&self) -> bool {
        self.rare.as_ref().is_some_and(|rare| rare.was_asked_beside_a_renewal)
    }

    /// What the server is to count. A guard that was told of a loss wants nothing any more.
    pub(super) fn wanted(&self) -> u32 {
        let guards = if self.is_lost() { 0 } else { self.guards - self.joined() };
        guards + self.releasing.attempts() + self.forgotten()
    }

    /// Whether what the server knows stays right when a guard goes: others have joined it.
    pub(super) fn is_known_without(&self, share: Share) -> bool {
        let left = self.guards.saturating_sub(share.count);
        self.guards - self.joined() == left - self.joined().min(left.saturating_sub(1))
    }

    /// Guards that the server does not know of.
    pub(super) fn joined(&self) -> u32 {
        self.rare.as_ref().map_or(0, |rare| rare.joined)
    }

    /// What a shutdown leaves.
    pub(super) fn forgotten(&self) -> u32 {
        self.rare.as_ref().map_or(0, |rare| rare.forgotten)
    }

    /// When to give up believing: early enough that a task that waits for the loss learns of it before `valid_until`.
    pub(super) fn lost_at(&self) -> BootInstant {
        let early = (self.lease.duration() / 20).min(LOST_EARLY_AT_MOST) + TICK;
        self.valid_until.saturating_sub(early)
    }
}

/// Scheduling delay that a `lost()` may suffer and still be on time, for leases of 2 s and more; a twentieth of shorter
/// ones. Generous, because a busy machine delays a task by tens of milliseconds.
const LOST_EARLY_AT_MOST: Duration = Duration::from_millis(100);

/// The client learns within some 10 ms which node serves a slot.
const REFUSAL_PAUSE: Duration = Duration::from_millis(10);
