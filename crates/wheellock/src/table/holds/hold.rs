//! One hold, and the rules for it. Pure.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use wheellock_wheel::TimerKey;

use super::callers::Callers;
use super::releasing::Releasing;
use super::renewing::Renewing;
use super::schedule::TICK;
use super::{Effects, Share};
use crate::base::clock::BootInstant;
use crate::base::error::LostReason;
use crate::base::hold_limits::MinHold;
use crate::base::lease::Lease;
use crate::wait::name::Name;
use crate::wait::turns::Opening;

/// One (lock, owner) pair that this process holds, requests, or has held. Two state machines in it track the requests that are
/// under way.
pub(crate) struct Hold {
    pub(crate) name: Arc<Name>,
    pub(crate) owner: u64,
    /// Number that distinguishes this hold from earlier and later holds at the same index.
    pub(crate) serial: u64,
    pub(super) known_by: KnownBy,
    /// State of the hold.
    pub(crate) state: State,
    pub(super) guards: u32,
    /// When the present guard's hold began: the grant, or the last hand-over.
    pub(super) guard_since: BootInstant,
    /// Local expiry. The hold is valid before this instant.
    pub(crate) valid_until: BootInstant,
    pub(crate) lease: Lease,
    /// Instant at which the server has certainly expired the hold.
    pub(super) expired_by: BootInstant,
    /// Attempts and reconciling requests.
    pub(super) releasing: Releasing,
    /// Renewals.
    pub(super) renewing: Renewing,
    /// Number of consecutive requests, of either sort, that the server rejected before they had any effect.
    pub(super) refusals: u8,
    /// True if the server tells of changes of the lock's key.
    pub(super) is_told: bool,
    /// Rarely used fields, boxed to keep `Hold` small.
    pub(super) rare: Option<Box<Rare>>,
    pub(super) alarm: Option<TimerKey>,
}

/// The code that knows a hold's owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum KnownBy {
    /// No code outside of this hold. The owner was made for this hold.
    Nobody,
    /// As `Nobody`. The hold has also had several guards in turn, or would have had them if time had allowed it. The
    /// [`Opening`] says how the process leaves the lock on release.
    HandedOver(Opening),
    /// Code outside of the library, which may present the owner again.
    Others,
}

/// Shortest time between two checks of a hold that follow changes of its key.
const LOOKS_APART: Duration = Duration::from_millis(50);

/// Fields that few holds need.
#[derive(Default)]
pub(super) struct Rare {
    /// Count leaked by guards that were forgotten. No guard will release it.
    pub(super) forgotten: u32,
    /// Lease that the latest attempt requests, if it is longer than the hold's lease.
    asked: Option<Asked>,
    /// Local expiry of each share that the server counts, the first share first, if the server keeps a lease for each. Empty
    /// until there are several shares.
    ends: Vec<BootInstant>,
    /// True if an acquire request for this hold had no reply and may still arrive. It must then find that no share is wanted.
    may_arrive_late: bool,
    /// Tasks with the hold's owner that wait for the request under way. Two requests at once could overtake each other, and this
    /// process would not know which count the server received last.
    pub(super) gate: Vec<Waker>,
    /// Wakers of the tasks that watch for the loss.
    pub(super) watchers: Vec<(u64, Waker)>,
    /// Instant of the last check that followed a change of the key.
    looked: Option<BootInstant>,
    /// The maximum time of the hold, if it has one.
    limit: Option<Limit>,
    /// The minimum time of the hold, if it has one.
    min: Option<MinHold>,
    /// Fencing token of the latest grant, if a failover may lose the counter of the tokens.
    pub(super) token: Option<NonZeroU64>,
}

/// The maximum time of a hold.
#[derive(Clone, Copy)]
struct Limit {
    /// Instant at which the hold ends at the latest.
    end: BootInstant,
    /// True if the server's lease may end later. The next renewal shortens it.
    is_exceeded: bool,
}

/// The longer lease that an attempt requests.
#[derive(Clone, Copy)]
enum Asked {
    /// Every renewal since the attempt began requests this lease.
    Alone(Lease),
    /// A renewal was under way when the attempt began. The renewal did not know of this lease.
    BesideRenewal(Lease),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    /// No grant has arrived yet.
    Asked,
    /// The hold was released before. It exists to repeat the release on a server that may have missed it.
    GivenBack,
    Held,
    Lost(LostReason),
}

impl Hold {
    /// Returns true if this hold may still own the key, so that a release is useful.
    pub(super) fn is_worth_releasing(&self) -> bool {
        match self.state {
            State::Asked | State::GivenBack | State::Held | State::Lost(LostReason::ShutDown) => true,
            // Our arithmetic says lost, but the key may live a moment longer, so free it. If the owner may have taken the lock
            // again in the meantime, the key belongs to that newer hold and must stay.
            State::Lost(LostReason::Expired | LostReason::HeldTooLong) => !self.is_presented(),
            State::Lost(_) => false,
        }
    }

    /// Returns true if the server may still keep something of this lost hold.
    pub(super) fn may_have_left_a_mark(&self) -> bool {
        let has_left = match self.state {
            // After a failover the server may know that this owner waits, and not know the grant.
            State::Lost(LostReason::NotOwner) => self.name.kind().queues_on_server,
            // The hash lives as long as its longest lease, so this owner's field may outlive its own lease.
            State::Lost(LostReason::Expired | LostReason::HeldTooLong) => self.is_presented(),
            _ => false,
        };
        has_left && self.guards == 0
    }

    /// Returns true if the server has yet to receive this hold's wanted count, or to reply.
    pub(super) fn is_unreconciled(&self) -> bool {
        self.releasing.is_unreconciled(self.is_worth_releasing())
    }

    /// Returns true if guards have this hold, as far as this process knows.
    pub(super) fn is_believed(&self) -> bool {
        self.state == State::Held && self.guards > 0
    }

    /// Returns true if the hold is held and its lease has not ended.
    pub(super) fn is_valid(&self, now: BootInstant) -> bool {
        self.state == State::Held && now < self.valid_until
    }

    pub(super) fn is_lost(&self) -> bool {
        matches!(self.state, State::Lost(_))
    }

    pub(crate) fn is_presented(&self) -> bool {
        self.known_by == KnownBy::Others
    }

    pub(super) fn may_arrive_late(&mut self) {
        // The leases of other kinds end by themselves, so a late acquire leaves nothing for long.
        if self.name.kind().has_release_record {
            self.rare.get_or_insert_default().may_arrive_late = true;
        }
    }

    /// Returns true if a release that gave back a share must be followed by a release that finds none. The server remembers a
    /// release that finds none.
    pub(super) fn is_released_twice(&self) -> bool {
        self.wanted() == 0 && self.rare.as_ref().is_some_and(|rare| rare.may_arrive_late)
    }

    pub(super) fn wait_at_gate(&mut self, waker: &Waker) {
        let gate = &mut self.rare.get_or_insert_default().gate;
        // The gate is emptied only when it opens, and a task may be polled often before that.
        if !gate.iter().any(|known| known.will_wake(waker)) {
            gate.push(waker.clone());
        }
    }

    pub(super) fn open_gate(&mut self, effects: &mut Effects) {
        if let Some(rare) = &mut self.rare {
            effects.wake(rare.gate.drain(..));
        }
    }

    /// Returns the pause before the retry of a request that was rejected without any effect and may succeed after `pause`.
    ///
    /// The first two redirections are followed at once. Then pauses follow, because the client may need some milliseconds to
    /// learn the new node. The node that names the new node may also be wrong for seconds. The pauses grow.
    pub(super) fn pause_after_refusal(&mut self, pause: Duration) -> Duration {
        let (round, at_once) = (self.refusals / 3, self.refusals % 3 < 2);
        self.refusals = self.refusals.wrapping_add(1);
        if pause.is_zero() && at_once {
            return Duration::ZERO;
        }
        let shortest = pause.max(REFUSAL_PAUSE);
        (shortest * (1 << round.min(3))).min(self.lease.retry_after()).max(shortest)
    }

    /// Records that the server confirmed the hold.
    pub(super) fn answered(&mut self, now: BootInstant) {
        self.refusals = 0;
        self.renewing.answer(now);
    }

    /// Schedules a check of a hold with a fixed lease if other holders can shorten its lease. A reader can shorten a shared lock
    /// for all readers, as the watchdog of Redisson's readers does. A renewed hold repairs that at each renewal. A hold with a
    /// fixed lease is checked as often as it would be renewed, and at least once per watchdog period. The others' leases may be
    /// much shorter.
    pub(super) fn plan_check_of_shared_lease(&mut self, now: BootInstant, period: Duration) {
        let may_be_shortened = self.name.kind().may_be_shortened();
        if may_be_shortened && !self.renewing.is_wanted() && self.renewing.planned().is_none() {
            self.renewing.verify_at(now + self.lease.renew_after().min(period));
        }
    }

    /// Schedules the check from which on the server tells of changes of a fixed lease. A short lease is not worth it.
    pub(super) fn plan_first_look(&mut self, now: BootInstant, period: Duration) {
        let is_fixed = !self.renewing.is_wanted() && self.renewing.planned().is_none();
        if is_fixed && self.name.kind().has_holders_in_its_key() && self.valid_until > now + period {
            self.renewing.verify_at(now + period);
        }
    }

    /// Schedules a check, because another client has changed the lock's key. A key that changes all the time does not make the
    /// watchdog ask all the time.
    pub(super) fn look(&mut self, now: BootInstant) {
        // The reply under way comes after the news, so the server knew of the change. A scheduled renewal checks the hold as well, and a look in
        // its place would not extend the lease.
        if self.renewing.is_under_way() || self.is_kept_alive() && self.renewing.extends_soon() {
            return;
        }
        let rare = self.rare.get_or_insert_default();
        let at = rare.looked.map_or(now, |looked| now.max(looked + LOOKS_APART));
        rare.looked = Some(at);
        self.renewing.look_by(at);
    }

    /// Schedules a renewal at once if the next beat may come after the end of the lease. That happens after a slow reply. A hold
    /// that is renewed at beats has no alarm of its own.
    pub(super) fn plan_early_renewal(&mut self, now: BootInstant, period: Duration) {
        if self.lost_at() <= now + period {
            self.plan_extension(now);
        }
    }

    /// Schedules the next renewal after a server confirmed the hold and did not extend it. `failed` is true if the renewal was to extend it.
    pub(super) fn plan_next_extension(&mut self, failed: bool, now: BootInstant, period: Duration) {
        if !failed {
            return self.plan_early_renewal(now, period);
        }
        // Another failover may come before the next beat. In a grace, the reply to the next renewal would be the same at once. An eighth of
        // the rest makes about 50 renewals of a hold in a long grace, and leaves time for the extension after it.
        let left = self.lost_at().saturating_duration_since(now);
        self.plan_extension(now + (left / 8).max(UNEXTENDED_PAUSE));
    }

    /// Schedules a renewal at `at`, unless one is scheduled or cannot extend the hold.
    fn plan_extension(&mut self, at: BootInstant) {
        let is_planned = self.renewing.planned().is_some();
        // A renewal cannot extend a hold beyond its maximum.
        if self.is_kept_alive() && !is_planned && !self.is_at_limit() {
            self.renewing.plan(at);
        }
    }

    /// Records that a request asks the server to count `count` shares.
    pub(super) fn asks_for(&mut self, count: u32) {
        let others = count.saturating_sub(1) as usize;
        // A hold with one share needs no list. Its end is `valid_until`, and so is the first entry of a new list.
        if self.name.kind().has_a_lease_each() && (others > 0 || self.rare.is_some()) {
            let believed = self.valid_until;
            self.rare.get_or_insert_default().ends.resize(others, believed);
        }
    }

    /// Records a granted lease, which ends at `valid_until`.
    pub(super) fn lasts_until(&mut self, valid_until: BootInstant, lease: Lease, now: BootInstant) {
        if self.guards == 0 {
            (self.lease, self.valid_until, self.guard_since) = (lease, valid_until, now);
            self.clear_limits();
        } else {
            // The script never shortens the lease of an outer guard.
            self.lease = self.lease.max(lease);
            self.valid_until = self.valid_until.max(valid_until);
            self.apply_limit(now);
        }
    }

    /// Limits the hold to `end`. An earlier limit stays, because all guards of an owner share one lease.
    pub(super) fn limit_to(&mut self, end: BootInstant, now: BootInstant) {
        let rare = self.rare.get_or_insert_default();
        let earlier = rare.limit.filter(|limit| limit.end <= end);
        rare.limit = Some(earlier.unwrap_or(Limit { end, is_exceeded: false }));
        self.apply_limit(now);
    }

    /// Ends the belief in the hold with its maximum. If the server's lease may end later, plans a renewal that shortens it.
    fn apply_limit(&mut self, now: BootInstant) {
        let ends = self.lease.ends_by(self.valid_until);
        let Some(limit) = self.rare.as_mut().and_then(|rare| rare.limit.as_mut()) else { return };
        // The first grant of a short maximum ends with it, except for the rounding.
        if ends <= limit.end + LIMIT_ROUNDING {
            return;
        }
        limit.is_exceeded = true;
        // The renewal that shortens the lease may be executed without a reply. The lease then counts from its send at the earliest.
        let shortened = Lease::within(limit.end.saturating_duration_since(now)).valid_until(now);
        self.valid_until = self.valid_until.min(shortened);
        self.renewing.verify_at(now);
    }

    /// Removes the limits, because the hold begins anew. Returns true if there was a maximum.
    pub(super) fn clear_limits(&mut self) -> bool {
        self.rare.as_mut().is_some_and(|rare| {
            rare.min = None;
            rare.limit.take().is_some()
        })
    }

    /// Keeps the lock for a minimum time. A later end of the hold stays.
    pub(super) fn keep_for(&mut self, min: MinHold) {
        let rare = self.rare.get_or_insert_default();
        rare.min = Some(min.later(rare.min));
    }

    /// Returns the minimum time that a release keeps, if the release leaves `count` shares.
    pub(super) fn min_after_release(&self, count: u32) -> Option<Box<MinHold>> {
        self.rare.as_ref()?.min.filter(|_| count == 0).map(Box::new)
    }

    fn limit(&self) -> Option<Limit> {
        self.rare.as_ref()?.limit
    }

    /// Returns true if the lease lasts until the hold's maximum, so that renewals do not extend it.
    pub(super) fn is_at_limit(&self) -> bool {
        self.limit().is_some_and(|limit| self.lease.ends_by(self.valid_until) >= limit.end)
    }

    /// Returns true if the server's lease may last beyond the hold's maximum.
    pub(super) fn exceeds_limit(&self) -> bool {
        self.limit().is_some_and(|limit| limit.is_exceeded)
    }

    /// Records that the server's lease ends with the maximum at the latest.
    pub(super) fn fits_limit(&mut self) {
        if let Some(limit) = self.rare.as_mut().and_then(|rare| rare.limit.as_mut()) {
            limit.is_exceeded = false;
        }
    }

    /// Returns true if limits prevent a hand-over. The minimum may not be over. Or the maximum has shortened the lease below the lease
    /// that the watchdog renews after each `period`.
    pub(super) fn must_be_released(&self, period: Duration, now: BootInstant) -> bool {
        let Some(rare) = &self.rare else { return false };
        let is_shortened = rare.limit.is_some() && self.lease.renew_after() < period;
        is_shortened || rare.min.is_some_and(|min| min.left(now).is_some())
    }

    /// Returns why the hold ends at `valid_until`.
    pub(super) fn reason_of_end(&self) -> LostReason {
        if self.is_at_limit() { LostReason::HeldTooLong } else { LostReason::Expired }
    }

    /// Returns the lease of a renewal that is sent at `now`. It ends with the maximum at the latest.
    pub(crate) fn lease_to_renew(&self, now: BootInstant) -> Lease {
        let lease = self.longest_lease();
        self.limit().map_or(lease, |limit| lease.min(Lease::within(limit.end.saturating_duration_since(now))))
    }

    /// Records that the server counted no share of this hold before.
    pub(super) fn counts_anew(&mut self) {
        if let Some(rare) = &mut self.rare {
            rare.ends.clear();
        }
    }

    /// Records that the server counts one more share, until `end`.
    pub(super) fn counts_one_until(&mut self, end: BootInstant) {
        if let Some(rare) = self.rare.as_mut().filter(|rare| !rare.ends.is_empty()) {
            rare.ends.push(end);
            self.apply_counts();
        }
    }

    /// Records that the server is told to count at most `count` shares. The server drops the last shares and their leases.
    /// Returns true if the hold ends earlier because of that.
    pub(super) fn keeps(&mut self, count: u32) -> bool {
        let Some(rare) = self.rare.as_mut().filter(|rare| !rare.ends.is_empty()) else { return false };
        rare.ends.truncate(count as usize);
        self.apply_counts()
    }

    fn apply_counts(&mut self) -> bool {
        let longest = self.rare.as_ref().and_then(|rare| rare.ends.iter().max());
        let Some(end) = longest.copied().filter(|end| *end < self.valid_until) else { return false };
        self.valid_until = end;
        true
    }

    /// Records that every share that the server counts lasts until `end` at least.
    pub(super) fn extended_until(&mut self, end: BootInstant) {
        self.valid_until = self.valid_until.max(end);
        self.ends_mut().for_each(|known| *known = end.max(*known));
    }

    /// Records that every share that the server counts may end `by` earlier than this process believed.
    pub(super) fn shortened(&mut self, by: Duration) {
        self.valid_until = self.valid_until.saturating_sub(by);
        self.ends_mut().for_each(|known| *known = known.saturating_sub(by));
    }

    /// Returns true if no share has an end of its own. A reply about the hold then tells the end of each share.
    pub(super) fn has_one_end(&self) -> bool {
        self.rare.as_ref().is_none_or(|rare| rare.ends.is_empty())
    }

    fn ends_mut(&mut self) -> impl Iterator<Item = &mut BootInstant> {
        self.rare.iter_mut().flat_map(|rare| &mut rare.ends)
    }

    /// Returns true if a request that was sent at `sent` or later granted or extended the lease.
    pub(super) fn was_extended_since(&self, sent: BootInstant) -> bool {
        self.valid_until >= self.validity_from(sent)
    }

    pub(super) fn was_extended_after(&self, sent: BootInstant) -> bool {
        self.valid_until > self.validity_from(sent)
    }

    /// Returns until when a request that was sent at `sent` makes the hold valid.
    fn validity_from(&self, sent: BootInstant) -> BootInstant {
        let left = self.limit().map(|limit| Lease::within(limit.end.saturating_duration_since(sent)));
        left.map_or(self.lease, |left| left.min(self.lease)).valid_until(sent)
    }

    /// Returns true if the watchdog keeps the lease alive.
    pub(super) fn is_kept_alive(&self) -> bool {
        self.state == State::Held && self.renewing.is_wanted()
    }

    /// Returns true if a request must check or extend this hold. `wished` is true if a guard waits for that.
    pub(super) fn is_to_be_asked_for(&self, wished: bool) -> bool {
        self.is_believed() && (wished || self.renewing.is_to_be_asked() || self.exceeds_limit())
    }

    /// Returns true if the next reconciling request is to be sent at `now`, after one without a reply or an effect. A caller that
    /// waits for the server's reply gets it even after the lease has ended.
    pub(super) fn is_to_be_released(&self, callers: &Callers, now: BootInstant) -> bool {
        self.is_worth_releasing() && (now < self.expired_by || callers.has_release(self.releasing.callers))
    }

    /// Removes a guard's share.
    pub(super) fn leave(&mut self, share: Share) {
        self.guards -= share.count;
        if share.renew {
            self.renewing.want_no_more(share.count);
        }
    }

    /// Records the lease that a new attempt requests. The server may grant the lease, and a caller may rely on it, before the
    /// table learns of the grant. This is the only attempt, because attempts of one owner are made one after the other.
    pub(super) fn asks_for_a_lease_of(&mut self, lease: Lease) {
        if self.guards > 0 && lease > self.lease {
            let asked = if self.renewing.is_under_way() { Asked::BesideRenewal } else { Asked::Alone };
            self.rare.get_or_insert_default().asked = Some(asked(lease));
        } else if let Some(rare) = &mut self.rare {
            // An earlier attempt may have been refused. A renewal with its longer lease would keep the lock for longer after
            // a crash.
            rare.asked = None;
        }
    }

    /// Returns the lease to renew with. A shorter lease would take time from the latest grant.
    pub(super) fn longest_lease(&self) -> Lease {
        match self.asked().filter(|_| self.releasing.attempts() > 0) {
            Some(Asked::Alone(asked) | Asked::BesideRenewal(asked)) => asked.max(self.lease),
            None => self.lease,
        }
    }

    /// Returns true if a renewal that did not know of the granted lease may have been executed after the grant.
    pub(super) fn may_have_been_shortened(&self) -> bool {
        matches!(self.asked(), Some(Asked::BesideRenewal(_)))
    }

    fn asked(&self) -> Option<Asked> {
        self.rare.as_ref()?.asked
    }

    /// Returns the count that the server is to have. A guard that was told of a loss wants no share.
    pub(crate) fn wanted(&self) -> u32 {
        let guards = if self.is_lost() { 0 } else { self.guards };
        guards + self.releasing.attempts() + self.forgotten()
    }

    /// Returns the count that a shutdown leaves on the server.
    pub(super) fn forgotten(&self) -> u32 {
        self.rare.as_ref().map_or(0, |rare| rare.forgotten)
    }

    /// Returns the instant at which this process declares the hold lost. It is early enough that a task that waits for the loss
    /// learns of it before `valid_until`.
    pub(super) fn lost_at(&self) -> BootInstant {
        self.lost_before(self.valid_until)
    }

    /// Returns the instant at which this process would declare the hold lost if it were valid until `valid_until`.
    pub(super) fn lost_before(&self, valid_until: BootInstant) -> BootInstant {
        // The wheel rounds up to whole ticks, so the alarm may fire a tick late.
        let early = (self.lease.duration() / 20).min(LOST_EARLY_AT_MOST) + TICK;
        valid_until.saturating_sub(early)
    }
}

/// Scheduling delay that a `lost()` may suffer and still be on time, for leases of 2 s and more. Shorter leases use a twentieth
/// of their length. The value is generous, because a busy machine delays a task by tens of milliseconds.
const LOST_EARLY_AT_MOST: Duration = Duration::from_millis(100);

/// Time by which a lease may end after its hold's maximum, because leases are whole milliseconds and `Lease::ends_by` rounds up.
const LIMIT_ROUNDING: Duration = Duration::from_millis(2);

/// Time after which a redirection is retried. The client learns within about 10 ms which node serves a slot.
const REFUSAL_PAUSE: Duration = Duration::from_millis(10);

/// Shortest pause after a renewal that found the hold and did not extend it.
pub(super) const UNEXTENDED_PAUSE: Duration = Duration::from_millis(10);
