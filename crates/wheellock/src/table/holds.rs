//! The table of this process's holds.
//!
//! It takes instants and returns decisions: requests to send, tasks to wake and lines to log. It does not send, wake or log
//! itself.
//!
//! A hold is one (lock, owner) pair on the server. The table always *sets* the server's count to the wanted count and never
//! increments it. A repeated request therefore has the effect of one, and the next request makes up for a lost one. The wanted
//! count is the number of guards plus the attempts that are under way. For a semaphore it is a number of permits. A semaphore
//! attempt may request many permits, which one guard then holds.

mod attempts;
mod callers;
mod changes;
mod effects;
mod ending;
mod gate;
mod hand_over;
mod hold;
mod membership;
mod memberships;
#[cfg(test)]
mod model;
mod oldest;
mod recent_releases;
mod reclaiming;
mod releasing;
mod renewal_failures;
mod renewals;
mod renewing;
mod schedule;

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use slab::Slab;
use wheellock_client::layer::Retry;

use crate::base::clock::BootInstant;
use crate::base::error::LostReason;
use crate::base::hold_limits::{HoldLimits, MinHold};
use crate::base::lease::Lease;
use crate::base::request_tag::About;
use crate::base::server_clock::ServerClocks;
use crate::table::metrics::Tallies;
use crate::wait::name::Name;

pub(crate) use attempts::{GrantReply, Granted, Terms};
use callers::Callers;
pub(crate) use callers::{CallerIndex, Confirmation, Ended, Failed, Want};
use changes::Changes;
pub(crate) use effects::{Effects, Failing, Reconcile, Rest, Unreconciled};
pub(crate) use gate::GatePlace;
pub(crate) use hand_over::GiveBack;
use hold::KnownBy;
pub(crate) use hold::{Hold, State};
pub(crate) use membership::{CheckIn, Reclaim, Refresh, Refreshed};
use memberships::Memberships;
pub(crate) use oldest::Oldest;
use recent_releases::RecentReleases;
use renewal_failures::RenewalFailures;
use renewals::{Newcomers, Script};
pub(crate) use renewals::{Renewal, RenewalReply, Renewed};
pub(crate) use renewing::Refused;
use schedule::{Event, Schedule};

/// An owner and the address of a name. The address is unique while the name lives, and a hold keeps its name alive.
type Presented = (u64, usize);

fn presented_key(owner: u64, name: &Arc<Name>) -> Presented {
    (owner, Arc::as_ptr(name).addr())
}

/// Detaches a hold from its owner. The next attempt of that owner starts a new hold.
fn forget_owner(presented: &mut BTreeMap<Presented, HoldIndex>, hold: &Hold, index: HoldIndex) {
    let key = presented_key(hold.owner, &hold.name);
    // After a loss, a new hold of this owner may have the entry.
    if presented.get(&key) == Some(&index) {
        presented.remove(&key);
    }
}

/// Index of a hold. Valid while a guard, an attempt or a request refers to the hold.
pub(crate) type HoldIndex = u32;

pub(crate) struct Holds {
    holds: Slab<Hold>,
    /// Holds whose owner is known outside of the library and may be presented again.
    presented: BTreeMap<Presented, HoldIndex>,
    pub(crate) alarms: Schedule,
    newcomers: Newcomers,
    server_clocks: ServerClocks,
    changes: Changes,
    /// Memberships in a fleet whose locks survive a failover. `None` if they do not, so that a single server costs nothing.
    memberships: Option<Box<Memberships>>,
    /// Releases that a failover may lose. `None` without a possible failover, so that a single server costs nothing.
    released: Option<Box<RecentReleases>>,
    /// True after the manager was shut down.
    shut: bool,
    pub(crate) tallies: Tallies,
    pub(crate) failures: RenewalFailures,
    renewals: Slab<Script>,
    /// Holds whose release found no room in the outgoing queue, in order.
    backlog: VecDeque<HoldIndex>,
    callers: Callers,
    /// True if a check of the callers' deadlines is scheduled.
    looks_at_deadlines: bool,
    /// Reusable room for the wakers that the results of one batch wake.
    pub(crate) room: Vec<Waker>,
    next_serial: u64,
    next_watcher: u64,
}

/// Work that is due for the watchdog now.
pub(crate) struct Due<'a> {
    pub(crate) renew: Vec<Renewal>,
    /// Names whose lingering subscription may end.
    pub(crate) quiet: Vec<Arc<Name>>,
    /// Names whose handed-over locks need a check.
    pub(crate) handing_over: Vec<Arc<Name>>,
    pub(crate) effects: &'a mut Effects,
    /// Returns the requests that still wait for a connection.
    unsent: &'a dyn Fn() -> Vec<About>,
}

impl<'a> Due<'a> {
    pub(crate) fn new(effects: &'a mut Effects, unsent: &'a dyn Fn() -> Vec<About>) -> Self {
        Self { renew: Vec::new(), quiet: Vec::new(), handing_over: Vec::new(), effects, unsent }
    }
}

impl Holds {
    /// Creates an empty table. `watchdog` is the lease that the watchdog keeps alive unless a caller requests a different lease.
    /// If another server `may_take_over`, the table records releases, and sends them again when it does.
    pub(crate) fn new(now: BootInstant, watchdog: Lease, may_take_over: bool) -> Self {
        Self {
            holds: Slab::new(),
            presented: BTreeMap::new(),
            alarms: Schedule::new(now, watchdog),
            newcomers: Newcomers::default(),
            server_clocks: ServerClocks::default(),
            changes: Changes::default(),
            memberships: None,
            released: may_take_over.then(Box::default),
            shut: false,
            tallies: Tallies::default(),
            failures: RenewalFailures::default(),
            renewals: Slab::new(),
            backlog: VecDeque::new(),
            callers: Callers::default(),
            looks_at_deadlines: false,
            room: Vec::new(),
            next_serial: 0,
            next_watcher: 0,
        }
    }

    pub(crate) fn get(&self, hold: HoldIndex) -> Option<&Hold> {
        self.holds.get(hold as usize)
    }

    fn get_mut(&mut self, hold: HoldIndex) -> Option<&mut Hold> {
        self.holds.get_mut(hold as usize)
    }

    /// Returns the indices of the holds that `which` selects.
    fn indices_of(&self, which: impl Fn(&Hold) -> bool) -> Vec<HoldIndex> {
        let selected = self.holds.iter().filter(|(_, hold)| which(hold));
        selected.filter_map(|(index, _)| HoldIndex::try_from(index).ok()).collect()
    }

    /// Returns true if this process believes that `owner` holds `name`.
    pub(crate) fn is_held_by(&self, name: &Arc<Name>, owner: u64) -> bool {
        let hold = self.presented.get(&presented_key(owner, name)).and_then(|hold| self.get(*hold));
        hold.is_some_and(|hold| hold.state == State::Held)
    }

    /// Returns true if this owner holds the lock again, or requests it, by this kind or by another with the same holders on the server. Then
    /// it sends the wanted count itself, and a release sent for an earlier hold would free the new one.
    fn is_back(&self, name: &Arc<Name>, owner: u64) -> bool {
        let is_same =
            |hold: &Hold| hold.name.kind().has_same_holders(name.kind()) && hold.name.text() == name.text();
        let of_owner = self.presented.range((owner, 0)..=(owner, usize::MAX));
        let mut of_owner = of_owner.filter_map(|(_, index)| self.get(*index));
        self.presented.contains_key(&presented_key(owner, name)) || of_owner.any(is_same)
    }

    /// Releases the share of one guard. If it was the hold's last guard, no renewal of the hold is sent from now on.
    ///
    /// Returns the request that reports the release to the server. Returns `None` if no request is needed now, because the lock
    /// is no longer ours. Also returns `None` if a request is under way, which another request will follow.
    pub(crate) fn release(&mut self, index: HoldIndex, share: Share, now: BootInstant) -> Option<Reconcile> {
        let shut = self.shut;
        let hold = self.get_mut(index)?;
        hold.leave(share);
        if hold.guards == 0 && hold.state == State::Held {
            let held = now.saturating_duration_since(hold.guard_since);
            // A lease that still runs does not end by itself.
            let is_over = now >= hold.valid_until;
            hold.releasing.give_back(if is_over { hold.reason_of_end() } else { LostReason::NotOwner });
            let family = hold.name.family();
            self.tallies.of(family).released(held);
        }
        self.update_cohort(index, now);
        let hold = self.get_mut(index)?;
        // A shutdown has released every hold, or will release it.
        let ours = hold.is_worth_releasing() && !shut;
        // `change` makes another request follow the one under way.
        let tell_now = ours && hold.releasing.change();
        // The server may still keep something of a lost hold. The request at the end of this function removes it.
        let waits = hold.may_have_left_a_mark() && !shut;
        let waiter = waits.then(|| (Arc::clone(&hold.name), hold.owner, hold.is_presented()));
        self.schedule(index);
        if tell_now {
            return self.reconcile(index);
        }
        self.free_if_unused(index);
        let (name, owner, presented) = waiter?;
        self.withdraw(&name, owner, presented, now)
    }

    /// Releases a guard as [`release`](Self::release) does, for a caller that waits until `until` at most for the result. Returns
    /// no caller if this hold has nothing to release.
    pub(crate) fn release_awaited(
        &mut self,
        index: HoldIndex,
        share: Share,
        (now, until): (BootInstant, BootInstant),
        waker: &Waker,
    ) -> (Option<CallerIndex>, Option<Reconcile>) {
        let hold = self.get(index).filter(|hold| hold.is_worth_releasing() && !self.shut);
        let believed = hold.map(|hold| hold.is_valid(now));
        // The caller joins before the request begins. Otherwise the reply to that request would not answer the caller.
        let caller =
            believed.and_then(|believed| self.begin_wait(index, (Want::Release, believed), until, waker));
        (caller, self.release(index, share, now))
    }

    /// Removes a guard and leaves its share on the server. No guard will release that share.
    pub(crate) fn forget(&mut self, index: HoldIndex, share: Share, now: BootInstant) {
        let Some(hold) = self.get_mut(index) else { return };
        hold.leave(share);
        hold.rare.get_or_insert_default().forgotten += share.count;
        if hold.guards == 0 && hold.state == State::Held {
            let (held, family) = (now.saturating_duration_since(hold.guard_since), hold.name.family());
            self.tallies.of(family).released(held);
        }
        self.update_cohort(index, now);
        self.schedule(index);
        self.free_if_unused(index);
    }

    /// Begins a caller's wait for this hold, and schedules a check of its deadline `until`.
    fn begin_wait(
        &mut self,
        index: HoldIndex,
        (want, believed): (Want, bool),
        until: BootInstant,
        waker: &Waker,
    ) -> Option<CallerIndex> {
        let waiting = &mut self.holds.get_mut(index as usize)?.releasing.callers;
        let caller = self.callers.begin((index, waiting), (want, believed), until, waker);
        // All callers wait for the same time, so a check that is scheduled already comes early enough.
        if !std::mem::replace(&mut self.looks_at_deadlines, true) {
            self.alarms.at(until, Event::Overdue);
        }
        Some(caller)
    }

    /// Ends the waits whose deadlines have passed. Their requests continue.
    fn end_overdue(&mut self, now: BootInstant, due: &mut Due<'_>) {
        if self.callers.earliest().is_some_and(|earliest| earliest <= now) {
            let (mut releases, mut renewals) = (HashSet::new(), HashSet::new());
            // The server cannot have executed a request that still waits for a connection, so its caller's timeout is not
            // ambiguous.
            for about in (due.unsent)() {
                match about {
                    About::Reconcile { hold } => _ = releases.insert(hold),
                    About::Renewal { batch } => {
                        renewals.extend(self.batch(batch).iter().map(|renewal| renewal.hold));
                    }
                    About::Wait { .. } | About::Nothing => {}
                }
            }
            for index in self.callers.holds_overdue(now) {
                let Some(hold) = self.holds.get_mut(index as usize) else { continue };
                let release_sent = hold.releasing.is_under_way() && !releases.contains(&index);
                let renewal_sent = hold.renewing.is_under_way() && !renewals.contains(&index);
                let sent = |want| if want == Want::Release { release_sent } else { renewal_sent };
                self.callers
                    .overdue(&mut hold.releasing.callers, sent, now, |waker| due.effects.wake_one(waker));
            }
        }
        // The alarm has fired, so waits that begin later need a new one.
        let next = self.callers.earliest();
        self.looks_at_deadlines = next.is_some();
        if let Some(next) = next {
            self.alarms.at(next, Event::Overdue);
        }
    }

    /// Returns a caller's result, once. Stores the caller's waker if the result is not there yet.
    pub(crate) fn result(&mut self, caller: CallerIndex, waker: &Waker) -> Option<Ended> {
        self.callers.take(caller, waker)
    }

    /// Ends a caller's wait. Drop the returned waker outside the table's lock.
    pub(crate) fn leave(&mut self, caller: CallerIndex) -> Option<Waker> {
        let hold = self.callers.hold_of(caller).and_then(|hold| self.holds.get_mut(hold as usize));
        self.callers.leave(caller, hold.map(|hold| &mut hold.releasing.callers))
    }

    /// Returns true if a caller waits for a release of this hold.
    pub(crate) fn is_awaited(&self, index: HoldIndex) -> bool {
        self.get(index).is_some_and(|hold| self.callers.has_release(hold.releasing.callers))
    }

    /// Reports a failure to the callers that wait for `what`. The watchdog continues to retry.
    pub(crate) fn tell_failure(&mut self, index: HoldIndex, what: Want, why: &Failed, effects: &mut Effects) {
        if let Some(hold) = self.holds.get_mut(index as usize) {
            self.callers.failed(&mut hold.releasing.callers, what, why, |waker| effects.wake_one(waker));
        }
    }

    /// Records the error to report if the retry does not finish before the caller's deadline.
    pub(crate) fn remember_failure(
        &mut self,
        index: HoldIndex,
        what: Want,
        why: &wheellock_client::Error,
        now: BootInstant,
    ) {
        if let Some(hold) = self.holds.get(index as usize) {
            self.callers.failed_once(hold.releasing.callers, what, why, now);
        }
    }

    /// Marks the renewal under way that callers wait for as possibly executed without a reply.
    pub(crate) fn may_be_renewed(&mut self, index: HoldIndex) {
        if let Some(hold) = self.holds.get(index as usize) {
            self.callers.unheard(hold.releasing.callers, Want::Renew);
        }
    }

    /// Ends a reconciling request that has no useful reply. Returns the retry if it is to be sent at once. Otherwise the watchdog
    /// sends it, unless the lock is no longer this hold's to release.
    pub(crate) fn reconcile_again(
        &mut self,
        index: HoldIndex,
        why: Unreconciled,
        now: BootInstant,
        effects: &mut Effects,
    ) -> Option<Reconcile> {
        let hold = self.holds.get_mut(index as usize)?;
        let pause = match why {
            Unreconciled::Refused(pause) => hold.pause_after_refusal(pause),
            Unreconciled::Unanswered | Unreconciled::Failed => {
                // The server may have executed the request. The next reply then proves nothing about the time before.
                hold.releasing.unheard();
                self.callers.unheard(hold.releasing.callers, Want::Release);
                if why == Unreconciled::Failed { hold.lease.retry_after() } else { Duration::ZERO }
            }
        };
        if !pause.is_zero() {
            hold.releasing.repeat_at(now + pause);
            // An attempt does not wait for the retry.
            hold.open_gate(effects);
            self.schedule(index);
            return None;
        }
        hold.releasing.end();
        if hold.is_to_be_released(&self.callers, now) {
            return self.reconcile(index);
        }
        self.after_request(index, effects)
    }

    /// Returns the requests that are still to be sent when the manager is dropped. No guard, no attempt and soon no watchdog is
    /// left to send them.
    pub(crate) fn last_requests(&mut self) -> Vec<Reconcile> {
        let untold = |hold: &Hold| {
            let waits = hold.releasing.has_waiting();
            (waits && hold.is_worth_releasing()) || hold.releasing.planned().is_some()
        };
        self.indices_of(untold).into_iter().filter_map(|index| self.reconcile(index)).collect()
    }

    /// Begins a request that sets the server's count to the wanted count.
    fn reconcile(&mut self, index: HoldIndex) -> Option<Reconcile> {
        let shut = self.shut;
        let hold = self.holds.get_mut(index as usize)?;
        hold.releasing.begin();
        self.callers.asked(hold.releasing.callers, Want::Release);
        // After a shutdown guards and attempts want no share, but forgotten shares stay.
        let count = if shut { hold.forgotten() } else { hold.wanted() };
        // The server drops the leases of the shares beyond `count`, so the hold may end earlier.
        let ends_earlier = hold.keeps(count);
        if ends_earlier && hold.is_kept_alive() {
            // The earlier end needs an earlier renewal.
            hold.renewing.plan_by(hold.lease.renewal_before(hold.valid_until));
        }
        let request = Reconcile {
            hold: index,
            name: Arc::clone(&hold.name),
            owner: hold.owner,
            count,
            min: hold.min_after_release(count),
            retry: Retry::default(),
        };
        if ends_earlier {
            self.schedule(index);
        }
        Some(request)
    }

    /// Handles the reply to a reconciling request from the server with the number `node`. `known` is true if that server knew
    /// this hold.
    pub(crate) fn reconciled(
        &mut self,
        index: HoldIndex,
        known: bool,
        node: u32,
        now: BootInstant,
        effects: &mut Effects,
    ) -> Option<Reconcile> {
        let hold = self.holds.get_mut(index as usize)?;
        let loss = hold.releasing.answer();
        hold.refusals = 0;
        self.callers
            .answered(&mut hold.releasing.callers, Want::Release, known, |waker| effects.wake_one(waker));
        if !known && hold.state == State::Held {
            if hold.guards > 0 {
                // The server counts no share of this owner, so the remaining guards have lost the lock, too.
                self.lose(index, LostReason::NotOwner, now, effects);
            } else if let Some(reason) = loss {
                self.tallies.of(hold.name.family()).found_lost(reason);
                effects.lost(&hold.name, reason);
            }
        }
        if self.released.is_some() {
            self.remember_release(index, node, now);
        }
        if known && self.get(index)?.is_released_twice() {
            return self.reconcile(index);
        }
        self.after_request(index, effects)
    }

    /// Puts a hold whose reconciling request found no room into the backlog. The request is sent when there is room.
    pub(crate) fn postpone(&mut self, index: HoldIndex, now: BootInstant, effects: &mut Effects) {
        let Some(hold) = self.get_mut(index) else { return };
        hold.releasing.end();
        // An attempt does not wait for room.
        hold.open_gate(effects);
        self.put_off(index, now);
    }

    /// Puts a hold at the end of the backlog, unless it stands there already.
    fn put_off(&mut self, index: HoldIndex, now: BootInstant) {
        let Some(hold) = self.get_mut(index) else { return };
        if hold.releasing.join_the_backlog() {
            return;
        }
        self.backlog.push_back(index);
        // A longer backlog has its alarm already.
        if self.backlog.len() == 1 {
            self.alarms.at(now + BACKLOG_PAUSE, Event::Backlog);
        }
    }

    /// Returns the next postponed request that is still useful.
    pub(crate) fn next_postponed(&mut self, now: BootInstant, effects: &mut Effects) -> Option<Reconcile> {
        while let Some(index) = self.backlog.pop_front() {
            let Some(hold) = self.holds.get_mut(index as usize) else { continue };
            if !hold.releasing.leave_the_backlog() {
                continue;
            }
            if hold.is_to_be_released(&self.callers, now) {
                return self.reconcile(index);
            } else {
                // No request follows, so the owner's attempts need not wait.
                hold.open_gate(effects);
                self.settle(index, effects);
            }
        }
        None
    }

    /// Returns the next request of this hold after a request has ended, if one must follow.
    fn after_request(&mut self, index: HoldIndex, effects: &mut Effects) -> Option<Reconcile> {
        let shut = self.shut;
        let hold = self.get_mut(index)?;
        if hold.releasing.is_busy() {
            // Attempts do not count for a shutdown, so it must check this hold again.
            if shut {
                hold.open_gate(effects);
            }
            return None;
        }
        if hold.releasing.take_outdated() && hold.is_worth_releasing() {
            return self.reconcile(index);
        }
        hold.open_gate(effects);
        self.settle(index, effects);
        None
    }

    /// Settles a hold if no further request follows: ends its callers' waits, and frees it if it has no guard.
    fn settle(&mut self, index: HoldIndex, effects: &mut Effects) {
        let Some(hold) = self.holds.get_mut(index as usize).filter(|hold| hold.releasing.is_settled()) else {
            return;
        };
        self.callers.given_up(&mut hold.releasing.callers, Want::Release, |waker| effects.wake_one(waker));
        self.free_if_unused(index);
    }

    /// Marks a hold as lost if its lease ended before the watchdog could check it.
    pub(crate) fn lose_if_expired(&mut self, index: HoldIndex, now: BootInstant, effects: &mut Effects) {
        let hold = self.get(index).filter(|hold| hold.is_believed() && now >= hold.valid_until);
        if let Some(reason) = hold.map(Hold::reason_of_end) {
            self.lose(index, reason, now, effects);
        }
    }

    /// Marks a hold as lost, and wakes every task that must learn of the loss.
    fn lose(&mut self, index: HoldIndex, reason: LostReason, now: BootInstant, effects: &mut Effects) {
        let Some(hold) = self.holds.get_mut(index as usize) else { return };
        // This comes first, because it reads the callers whose waits `given_up` ends below.
        let extends =
            hold.renewing.is_wanted() || self.callers.renewal(hold.releasing.callers) == Some(Want::Renew);
        if reason == LostReason::Expired && hold.guards > 0 && hold.renewing.is_under_way() && extends {
            // A later reply does not change that this renewal failed.
            self.failures.record_expiry(self.tallies.of(hold.name.family()));
        }
        hold.state = State::Lost(reason);
        // Without guards, `release` or `forget` has already counted the end of this hold.
        if hold.guards > 0 {
            let tally = self.tallies.of(hold.name.family());
            tally.lost(reason, now.saturating_duration_since(hold.guard_since));
            // A hold that is written but not extended ends as well, because too few replicas acknowledge this process.
            let is_closed = self.memberships.as_ref().is_some_and(|it| !it.may_acquire(&hold.name, now));
            let is_unextended = reason == LostReason::Expired && extends && is_closed;
            let is_unwritten = !hold.renewing.is_written() && reason != LostReason::ShutDown;
            tally.lost_in_failover += u64::from(is_unwritten || is_unextended);
            effects.lost(&hold.name, reason);
        }
        if !hold.is_worth_releasing() {
            // The key no longer belongs to this hold, so a planned release is useless.
            hold.releasing.give_up();
        }
        if let Some(rare) = &mut hold.rare {
            effects.wake(rare.watchers.drain(..).map(|(_, waker)| waker));
        }
        // An attempt under way requests one more share of this hold, and its own requests tell the server the wanted count.
        if hold.releasing.attempts() == 0 {
            forget_owner(&mut self.presented, hold, index);
        }
        // Callers read the loss from the hold.
        self.callers.given_up(&mut hold.releasing.callers, Want::Renew, |waker| effects.wake_one(waker));
        self.update_cohort(index, now);
        self.schedule(index);
        // `settle` may free the hold, so it comes last.
        self.settle(index, effects);
    }

    /// Marks the hold's owner as known outside of the library, and returns the owner.
    pub(crate) fn present(&mut self, index: HoldIndex) -> u64 {
        let Some(hold) = self.get_mut(index) else { return 0 };
        let (owner, key) = (hold.owner, presented_key(hold.owner, &hold.name));
        // The next attempt of this owner must not find a lost hold, whose guards were notified of the loss.
        if std::mem::replace(&mut hold.known_by, KnownBy::Others) != KnownBy::Others
            && hold.state == State::Held
        {
            self.presented.insert(key, index);
        }
        owner
    }

    /// Returns the reason why a hold was lost, if it was lost.
    pub(crate) fn lost(&self, index: HoldIndex) -> Option<LostReason> {
        match self.get(index)?.state {
            State::Lost(reason) => Some(reason),
            State::Asked | State::GivenBack | State::Held => None,
        }
    }

    /// Returns the reason why a hold is lost at `now`, if it is lost. The clock decides, too, because the watchdog may run late.
    pub(crate) fn lost_at(&self, index: HoldIndex, now: BootInstant) -> Option<LostReason> {
        let Some(hold) = self.get(index) else { return Some(LostReason::Expired) };
        let is_over = !hold.is_valid(now);
        self.lost(index).or_else(|| is_over.then(|| hold.reason_of_end()))
    }

    /// Limits the time of a hold. The server granted it, or another guard handed it over, between `from` and `now`. `new_owner` returns
    /// an owner that no other code knows.
    pub(crate) fn limit(
        &mut self,
        index: HoldIndex,
        limits: &HoldLimits,
        (from, now): (BootInstant, BootInstant),
        new_owner: impl FnOnce() -> u64,
    ) {
        let Some(hold) = self.get_mut(index) else { return };
        if let Some(min) = limits.min {
            // `now` follows the grant, so the minimum ends late rather than early.
            hold.keep_for(MinHold { since: now, min, spent: new_owner() });
        }
        if let Some(max) = limits.max {
            hold.limit_to(from + max, now);
            self.schedule(index);
        }
    }

    /// Returns the reason why a hold is lost at `now`, if it is lost. Otherwise stores `waker` under the number of `watcher`.
    pub(crate) fn watch(
        &mut self,
        index: HoldIndex,
        watcher: &mut Option<u64>,
        waker: &Waker,
        now: BootInstant,
    ) -> Option<LostReason> {
        let hold = self.holds.get_mut(index as usize)?;
        match hold.state {
            State::Lost(reason) => return Some(reason),
            // The clock may be ahead of the watchdog, whose timer stops while the machine is suspended.
            State::Held if now >= hold.valid_until => return Some(hold.reason_of_end()),
            State::Asked | State::GivenBack | State::Held => {}
        }
        let number = *watcher.get_or_insert_with(|| {
            self.next_watcher += 1;
            self.next_watcher
        });
        let watchers = &mut hold.rare.get_or_insert_default().watchers;
        match watchers.iter_mut().find(|(known, _)| *known == number) {
            Some((_, old)) => old.clone_from(waker),
            None => watchers.push((number, waker.clone())),
        }
        None
    }

    pub(crate) fn unwatch(&mut self, index: HoldIndex, watcher: u64) {
        if let Some(rare) = self.get_mut(index).and_then(|hold| hold.rare.as_mut()) {
            rare.watchers.retain(|(known, _)| *known != watcher);
        }
    }

    /// Returns the instant of the next event.
    pub(crate) fn next_due(&mut self) -> Option<BootInstant> {
        // Newcomers have no beats yet. Without this, the watchdog would sleep beyond their first renewal.
        self.let_newcomers_join();
        let at_once = (self.may_verify() || self.may_repeat()).then(|| self.alarms.at_once());
        earlier(self.alarms.next(), at_once)
    }

    /// Sets the alarm of a hold for its next single event. A hold that the watchdog renews at its beats needs no alarm.
    fn schedule(&mut self, index: HoldIndex) {
        let Some(hold) = self.holds.get_mut(index as usize) else { return };
        // The beats do not extend a hold at its maximum, so its alarm watches its end.
        let in_turn = hold.is_kept_alive() && hold.renewing.is_in_turn() && !hold.is_at_limit();
        let lost_at = (hold.is_believed() && !in_turn).then(|| hold.lost_at());
        let at = earlier(lost_at, earlier(hold.releasing.planned(), hold.renewing.planned()));
        if let Some(old) = hold.alarm.take() {
            self.alarms.cancel(old);
        }
        hold.alarm = at.map(|at| self.alarms.at(at, Event::Hold(index)));
    }

    /// Removes a hold that has neither guards nor requests under way or to come.
    fn free_if_unused(&mut self, index: HoldIndex) {
        let unused = self.get(index).is_some_and(|hold| hold.guards == 0 && hold.releasing.is_settled());
        let Some(hold) = unused.then(|| self.holds.remove(index as usize)) else { return };
        self.changes.ended(&hold);
        if hold.state == State::GivenBack {
            self.end_repetition();
        }
        if let Some(alarm) = hold.alarm {
            self.alarms.cancel(alarm);
        }
        if hold.is_presented() {
            forget_owner(&mut self.presented, &hold, index);
        }
    }
}

/// Returns the earlier of two optional instants.
fn earlier(one: Option<BootInstant>, other: Option<BootInstant>) -> Option<BootInstant> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        _ => one.or(other),
    }
}

/// The share of a hold that a guard has, or will have.
#[derive(Clone, Copy)]
pub(crate) struct Share {
    /// Number of times that the guard holds the lock, or its permits.
    pub(crate) count: u32,
    /// True if the watchdog is to keep the lease alive.
    pub(crate) renew: bool,
}

/// Pause before the backlog is retried if no reply shows that there is room.
const BACKLOG_PAUSE: Duration = Duration::from_millis(20);
