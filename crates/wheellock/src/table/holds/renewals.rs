//! Renewals, and the changes that their replies make.
//!
//! This is the watchdog's schedule. It does not send requests itself.

use std::collections::HashMap;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use slab::Slab;

use super::callers::{CallerIndex, Want};
use super::renewing::Refused;
use super::schedule::Event;
use super::{BACKLOG_PAUSE, Due, Effects, Hold, HoldIndex, Holds, Reclaim, State};
use crate::base::clock::{BootInstant, nanos};
use crate::base::durability::Shortfall;
use crate::base::error::LostReason;
use crate::base::lease::{Lease, less_drift, plus_drift};
use crate::base::server_clock::{Jump, Sample};
use crate::wait::families::UNCLASSIFIED;
use crate::wait::name::Name;

/// One hold in a renewal.
#[derive(Clone)]
pub(crate) struct Renewal {
    pub(crate) hold: HoldIndex,
    pub(crate) serial: u64,
    pub(crate) name: Arc<Name>,
    pub(crate) owner: u64,
    pub(crate) lease: Lease,
    /// True if the lease is extended. Otherwise the server only reports how long the lease still runs.
    pub(crate) extend: bool,
    /// True if the request contains the script's text.
    pub(crate) with_source: bool,
    /// True if the renewal has a script of its own.
    pub(crate) alone: bool,
    /// True if the server is to tell of the next change of the lock's key.
    pub(crate) remembers: bool,
    /// The hold as the renewal writes it into a server that may not know it. `None` for an ordinary renewal.
    pub(crate) reclaim: Option<Reclaim>,
    /// Slot of the lock, which the renewals of one script have in common. The watchdog fills it in.
    pub(crate) slot: u16,
}

impl Renewal {
    /// Returns the lease for the script, in milliseconds. 0 leaves the server's lease unchanged.
    pub(crate) fn lease_to_set(&self) -> i64 {
        if self.extend { self.lease.millis() } else { 0 }
    }

    /// Returns the hold. Does not return a later hold at the same index.
    pub(super) fn hold_in<'a>(&self, holds: &'a mut Slab<Hold>) -> Option<&'a mut Hold> {
        holds.get_mut(self.hold as usize).filter(|hold| self.is_of(hold))
    }

    /// Returns true if this is the renewal of `hold`, and not of an earlier hold at the same index.
    fn is_of(&self, hold: &Hold) -> bool {
        hold.serial == self.serial
    }
}

/// Renewals under way in one script.
pub(super) struct Script {
    group: Vec<Renewal>,
    /// The server that the script was sent to, if that is certain.
    node: Option<u32>,
    /// Instant no later than the send.
    sent: BootInstant,
}

impl Script {
    pub(super) fn group(&self) -> &[Renewal] {
        &self.group
    }

    pub(super) fn sent(&self) -> BootInstant {
        self.sent
    }

    /// Records that an unknown server has replied.
    pub(super) fn unknown_server(&mut self) {
        self.node = None;
    }
}

/// Result of the renewal of one hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Renewed {
    Extended,
    /// The lease was not extended, because only a check was requested.
    StillHeld {
        /// Time for which the lease still runs by the server's clock.
        left: Duration,
    },
    NotOwner,
    /// A new server cannot take the hold, because it does not have the permit's semaphore.
    NoPlace,
    /// The server extended the lease, but too few other servers know of it.
    NotAcknowledged,
    /// The server rejected the renewal, or no reply came.
    Failed,
}

/// The server's reply to a renewal of several locks.
pub(crate) struct RenewalReply {
    /// The server's clock, as time since the Unix epoch.
    pub(crate) server: Duration,
    /// The result for each lock, in the order of the request.
    pub(crate) locks: Vec<Renewed>,
}

impl RenewalReply {
    pub(crate) fn lock(&self, place: usize) -> Renewed {
        self.locks.get(place).copied().unwrap_or(Renewed::Failed)
    }
}

impl Holds {
    /// Collects the work that is due at `now`.
    pub(crate) fn due(&mut self, now: BootInstant, due: &mut Due<'_>) {
        for event in self.alarms.fired(now) {
            match event {
                Event::Hold(index) => self.alarmed(index, now, due),
                Event::Backlog if self.backlog.is_empty() => {}
                Event::Backlog => _ = self.alarms.at(now + BACKLOG_PAUSE, Event::Backlog),
                Event::Forget => self.forget_releases(now),
                Event::Overdue => self.end_overdue(now, due),
                Event::Quiet(name) => due.quiet.push(name),
                Event::HandingOver(name) => due.handing_over.push(name),
            }
        }
        // The first beat of a newcomer may be due already.
        self.let_newcomers_join();
        for index in self.alarms.beating(now) {
            if let Some(hold) = self.holds.get_mut(index as usize) {
                // This beat extends the lease, whatever check is planned. The next beat may come too late for that.
                hold.renewing.take_only_looks();
                if hold.renewing.is_under_way() {
                    // The request under way may be a check, so another request follows.
                    hold.renewing.doubt();
                }
            }
            self.ask(index, now, due);
        }
        self.verify_some(now, due);
        self.repeat_some(now, due);
    }

    /// Handles a hold whose alarm has fired.
    fn alarmed(&mut self, index: HoldIndex, now: BootInstant, due: &mut Due<'_>) {
        let Some(hold) = self.holds.get_mut(index as usize) else { return };
        hold.alarm = None;
        if hold.releasing.is_due(now) {
            if hold.releasing.is_busy() {
                // This request must not overtake the request under way.
                hold.releasing.put_off(now + hold.lease.retry_after());
            } else if hold.is_to_be_released(&self.callers, now) {
                due.effects.request_all(self.reconcile(index));
            } else {
                hold.releasing.give_up();
                hold.open_gate(due.effects);
            }
        }
        self.settle(index, due.effects);
        let Some(hold) = self.get(index) else { return };
        if hold.is_believed() && now >= hold.lost_at() {
            return self.lose(index, hold.reason_of_end(), now, due.effects);
        }
        if hold.renewing.is_due(now) {
            self.ask(index, now, due);
        }
        self.schedule(index);
    }

    /// Starts the renewal of a hold that the watchdog keeps. Starts a check of another hold if there is a reason for it.
    pub(super) fn ask(&mut self, index: HoldIndex, now: BootInstant, due: &mut Due<'_>) {
        let Some(hold) = self.holds.get_mut(index as usize) else { return };
        let wished = self.callers.renewal(hold.releasing.callers);
        hold.renewing.unplan();
        if !hold.is_to_be_asked_for(wished.is_some()) || hold.renewing.is_under_way() {
            return;
        }
        if now >= hold.lost_at() {
            let reason = hold.reason_of_end();
            return self.lose(index, reason, now, due.effects);
        }
        match self.start_renewal(index, wished, now) {
            Some(renewal) => due.renew.push(renewal),
            None => self.plan_reclaim(index, now),
        }
    }

    /// Starts a request to the server now, whatever is scheduled.
    fn start_renewal(&mut self, index: HoldIndex, wished: Option<Want>, now: BootInstant) -> Option<Renewal> {
        let hold = self.holds.get_mut(index as usize)?;
        let memberships = self.memberships.as_ref().filter(|_| !hold.renewing.is_written());
        let reclaim = memberships.map(|memberships| memberships.reclaim(hold));
        if reclaim == Some(None) {
            // The new server would not know the hold. The hold is written as soon as a refresh has found that server.
            return None;
        }
        let lease = hold.lease_to_renew(now);
        // A reclaim writes the lease anew, and must not exceed the hold's maximum either.
        let reclaim = reclaim.flatten().map(|it| Reclaim { lease: it.lease.min(lease.millis()), ..it });
        hold.renewing.begin();
        let only_looks = hold.renewing.take_only_looks();
        // At its maximum a hold is only checked. An extension that is late on its way would last beyond the maximum.
        let extends = hold.renewing.is_wanted() && !only_looks && !hold.is_at_limit();
        let must_write = reclaim.is_some() || hold.exceeds_limit();
        let extend = extends || wished == Some(Want::Renew) || must_write;
        self.callers.asked(hold.releasing.callers, if extend { Want::Renew } else { Want::Check });
        // A change of a shared lock is normal. So only a renewal at a beat asks the server to tell of the next change.
        let is_news = (extend || !hold.name.kind().is_shared()) && reclaim.is_none();
        let remembers = is_news && hold.name.kind().has_holders_in_one_key() && self.changes.admit(hold);
        let renewal = Renewal {
            hold: index,
            serial: hold.serial,
            name: Arc::clone(&hold.name),
            owner: hold.owner,
            lease,
            extend,
            with_source: hold.renewing.is_with_source(),
            alone: hold.renewing.is_alone(),
            remembers,
            reclaim,
            slot: 0,
        };
        // A hold with a renewal under way is not in turn. Its own alarm watches the end of the lease.
        self.schedule(index);
        Some(renewal)
    }

    /// Begins a guard's wait, until `until` at most, for the reply to a request that is made now.
    ///
    /// Returns the guard's caller, and the renewal to send at once. If a renewal is under way, returns no renewal, because another
    /// renewal follows it. Returns `None` if the hold is lost.
    pub(crate) fn wish(
        &mut self,
        index: HoldIndex,
        want: Want,
        (now, until): (BootInstant, BootInstant),
        waker: &Waker,
    ) -> Option<(CallerIndex, Option<Renewal>)> {
        let hold = self.get(index).filter(|hold| hold.state == State::Held)?;
        let under_way = hold.renewing.is_under_way();
        let caller = self.begin_wait(index, (want, true), until, waker)?;
        let renewal = if under_way { None } else { self.start_renewal(index, Some(want), now) };
        Some((caller, renewal))
    }

    /// Returns the holds of a renewal under way for which a guard waits.
    pub(crate) fn wishing(&self, renewal: u32) -> Vec<HoldIndex> {
        let wished = |renewal: &&Renewal| {
            let hold = self.get(renewal.hold).filter(|hold| renewal.is_of(hold));
            hold.is_some_and(|hold| self.callers.renewal(hold.releasing.callers).is_some())
        };
        self.batch(renewal).iter().filter(wished).map(|renewal| renewal.hold).collect()
    }

    /// Reports to waiting guards that too few servers know of their extension.
    pub(crate) fn wishes_fell_short(&mut self, index: HoldIndex, by: Shortfall, effects: &mut Effects) {
        if let Some(hold) = self.holds.get_mut(index as usize) {
            self.callers.fell_short(&mut hold.releasing.callers, by, |waker| effects.wake_one(waker));
        }
    }

    /// Schedules the next renewal after one has ended, if a guard waits for it. It is made at `at`, or earlier if it is scheduled
    /// earlier.
    pub(crate) fn renew_for_wishes(&mut self, index: HoldIndex, at: BootInstant) {
        let Some(hold) = self.holds.get_mut(index as usize) else { return };
        if self.callers.renewal(hold.releasing.callers).is_some() && !hold.renewing.is_under_way() {
            hold.renewing.plan_by(at);
            self.schedule(index);
        }
    }

    /// Remembers renewals that are about to be sent, and returns their number. `node` is the server, if that is certain.
    pub(crate) fn begin_renewal(&mut self, group: Vec<Renewal>, node: Option<u32>, sent: BootInstant) -> u32 {
        u32::try_from(self.renewals.insert(Script { group, node, sent })).unwrap_or(u32::MAX)
    }

    /// Returns the locks of a renewal that is under way.
    pub(crate) fn batch(&self, renewal: u32) -> &[Renewal] {
        self.renewals.get(renewal as usize).map_or(&[], |script| &script.group)
    }

    /// Ends a renewal. `reply` is missing if no reply came. `node_of` returns the server that serves a lock.
    pub(crate) fn end_renewal(
        &mut self,
        renewal: u32,
        reply: Option<&RenewalReply>,
        now: BootInstant,
        node_of: impl Fn(&Name) -> u32,
        effects: &mut Effects,
    ) -> Option<Jump> {
        let Script { group, node, sent } = self.renewals.try_remove(renewal as usize)?;
        for (place, renewal) in group.iter().enumerate() {
            let how = reply.map_or(Renewed::Failed, |reply| reply.lock(place));
            self.renewed(renewal, how, sent, now, effects);
        }
        // The end of this script leaves room for checks after a failover.
        self.plan_verification(now);
        let reply = reply?;
        let told = group.iter().enumerate().map(|(place, renewal)| (renewal.serial, reply.lock(place)));
        self.heard_server_time(node?, Sample { server: reply.server, sent, received: now }, told, node_of)
    }

    /// Handles the reply to a script of renewals whose extensions count only after other servers have acknowledged them. Handles
    /// all other results at once. Returns true if there are extensions to wait for.
    pub(crate) fn await_acks(
        &mut self,
        renewal: u32,
        reply: &RenewalReply,
        now: BootInstant,
        node_of: impl Fn(&Name) -> u32,
        effects: &mut Effects,
    ) -> (bool, Option<Jump>) {
        let Some(Script { group, node, sent }) = self.renewals.get_mut(renewal as usize) else {
            return (false, None);
        };
        let (group, node, sent) = (std::mem::take(group), *node, *sent);
        let (mut extended, mut told) = (Vec::new(), Vec::new());
        for (place, renewal) in group.into_iter().enumerate() {
            match reply.lock(place) {
                Renewed::Extended => {
                    // A check needs no acknowledgements.
                    self.confirm(&renewal, Want::Check, effects);
                    extended.push(renewal);
                }
                how => {
                    self.renewed(&renewal, how, sent, now, effects);
                    told.push((renewal.serial, how));
                }
            }
        }
        let any = !extended.is_empty();
        match self.renewals.get_mut(renewal as usize) {
            Some(script) if any => script.group = extended,
            _ => _ = self.renewals.try_remove(renewal as usize),
        }
        let sample = Sample { server: reply.server, sent, received: now };
        // The extensions count only from their acknowledgement on, so the jump applies to their old leases as well.
        let jump = node.and_then(|node| self.heard_server_time(node, sample, told, node_of));
        (any, jump)
    }

    /// Ends the wait for acknowledgements. `kept` is true if enough servers acknowledged the extensions.
    pub(crate) fn end_wait(&mut self, renewal: u32, kept: bool, now: BootInstant, effects: &mut Effects) {
        let Some(Script { group, sent, .. }) = self.renewals.try_remove(renewal as usize) else { return };
        let how = if kept { Renewed::Extended } else { Renewed::NotAcknowledged };
        for renewal in &group {
            self.renewed(renewal, how, sent, now, effects);
        }
        self.plan_verification(now);
    }

    /// Wakes the guards for which the server did `what`.
    fn confirm(&mut self, renewal: &Renewal, what: Want, effects: &mut Effects) {
        if let Some(hold) = renewal.hold_in(&mut self.holds) {
            self.callers.answered(&mut hold.releasing.callers, what, true, |waker| effects.wake_one(waker));
        }
    }

    /// Handles a renewal that was rejected before it had any effect and may succeed after `pause`.
    ///
    /// Returns the renewals to send again at once, each in a script of its own, to the node that the reply named. The watchdog
    /// sends the others.
    pub(crate) fn renewal_refused(
        &mut self,
        renewal: u32,
        refused: Refused,
        pause: Duration,
        now: BootInstant,
    ) -> Vec<Renewal> {
        let Some(Script { group, .. }) = self.renewals.try_remove(renewal as usize) else {
            return Vec::new();
        };
        let mut at_once = Vec::new();
        for renewal in group {
            let Some(hold) = renewal.hold_in(&mut self.holds) else { continue };
            let wished = self.callers.renewal(hold.releasing.callers).is_some();
            hold.renewing.end();
            // The guards that still wait need another renewal.
            self.callers.in_vain(hold.releasing.callers, Want::Renew);
            if !renewal.extend {
                // The check has no result yet, so the doubt remains.
                hold.renewing.doubt();
            }
            if !hold.is_to_be_asked_for(wished) {
                continue;
            }
            // A redirection that is followed is not a failure. The repeated polls of a server that does not serve count as one
            // failure.
            if refused == Refused::Unserved && hold.refusals == 0 && renewal.extend {
                self.failures.record(renewal.hold, hold, self.tallies.of(hold.name.family()), now);
            }
            hold.renewing.refuse(refused);
            let pause = hold.pause_after_refusal(pause);
            if refused == Refused::Arrived && pause.is_zero() {
                let want = if renewal.extend { Want::Renew } else { Want::Check };
                at_once.extend(self.start_renewal(renewal.hold, Some(want), now));
            } else {
                hold.renewing.plan(now + pause);
                self.schedule(renewal.hold);
            }
        }
        self.plan_verification(now);
        at_once
    }

    /// Ends the renewal of one hold, which was sent no earlier than `sent`. Wakes the guards that waited for it, and applies its
    /// result. A late result changes nothing, because a lost hold stays lost.
    fn renewed(
        &mut self,
        renewal: &Renewal,
        how: Renewed,
        sent: BootInstant,
        now: BootInstant,
        effects: &mut Effects,
    ) {
        match how {
            Renewed::Extended => self.confirm(renewal, Want::Renew, effects),
            Renewed::StillHeld { .. } => self.confirm(renewal, Want::Check, effects),
            Renewed::NotOwner | Renewed::NotAcknowledged | Renewed::Failed | Renewed::NoPlace => {}
        }
        let Some(hold) = renewal.hold_in(&mut self.holds) else { return };
        hold.renewing.end();
        // The guards that still wait need another renewal.
        self.callers.in_vain(hold.releasing.callers, Want::Renew);
        let family = hold.name.family();
        if how != Renewed::NotOwner && renewal.extend {
            // The server may have extended the lease even if no reply came.
            hold.expired_by = hold.expired_by.max(renewal.lease.expired_by(now));
        }
        if hold.state != State::Held {
            return;
        }
        // The hold's guards may have reported the expiry already, before the watchdog could.
        if how != Renewed::NotOwner && hold.guards > 0 && now >= hold.valid_until {
            if renewal.extend {
                self.failures.record_expiry(self.tallies.of(family));
            }
            let reason = hold.reason_of_end();
            return self.lose(renewal.hold, reason, now, effects);
        }
        match how {
            Renewed::Extended => {
                let late = extended(hold, renewal.lease, sent, now);
                if self.server_clocks.jumped_since(sent) {
                    // The server may have executed the renewal before the jump.
                    hold.renewing.verify_at(now);
                }
                hold.plan_early_renewal(now, self.alarms.period());
                self.tallies.of(family).renewed(late);
                effects.renewed_again(self.failures.clear(renewal.hold, self.tallies.of(family), now));
            }
            Renewed::StillHeld { left } => {
                still_held(hold, left, sent, now);
                hold.plan_check_of_shared_lease(now, self.alarms.period());
                hold.plan_next_extension(renewal.extend, now, self.alarms.period());
                effects.renewed_again(self.failures.clear(renewal.hold, self.tallies.of(family), now));
            }
            // The release under way finds the same and reports the loss.
            Renewed::NotOwner if hold.guards == 0 && hold.releasing.is_under_way() => {}
            Renewed::NotOwner => return self.lose(renewal.hold, LostReason::NotOwner, now, effects),
            Renewed::NotAcknowledged => {
                hold.renewing.plan(now + renewal.lease.retry_after());
                self.failures.record(renewal.hold, hold, self.tallies.of(family), now);
            }
            Renewed::Failed | Renewed::NoPlace if renewal.extend => {
                hold.renewing.extension_failed(now, renewal.lease.retry_after());
                self.failures.record(renewal.hold, hold, self.tallies.of(family), now);
            }
            Renewed::Failed | Renewed::NoPlace => {
                // The check has no result, so the doubt remains.
                hold.renewing.doubt();
                hold.renewing.unanswered(now + renewal.lease.retry_after().min(VERIFY_AGAIN));
            }
        }
        self.schedule(renewal.hold);
    }

    /// Handles the server's time from the reply to a script. `told` has the script's results, by the serials of the holds.
    ///
    /// If the server's clock has jumped forward, every other lease on that server ends that much earlier.
    pub(super) fn heard_server_time(
        &mut self,
        node: u32,
        sample: Sample,
        told: impl IntoIterator<Item = (u64, Renewed)>,
        node_of: impl Fn(&Name) -> u32,
    ) -> Option<Jump> {
        let jump = self.server_clocks.observe(node, sample)?;
        self.tallies.of(UNCLASSIFIED).server_clock_jumps += 1;
        if let Jump::Forward(by) = jump {
            let told: HashMap<u64, Renewed> = told.into_iter().collect();
            // The script told the end of these leases by the clock that has jumped. The jump must not shorten them twice.
            let is_told = |hold: &Hold| match told.get(&hold.serial) {
                Some(Renewed::Extended) => true,
                Some(Renewed::StillHeld { left }) => {
                    *left < Duration::MAX && hold.has_one_end() && !hold.was_extended_since(sample.sent)
                }
                _ => false,
            };
            // A request that was sent at `sent` may have been executed before the jump.
            let is_doubtful = |hold: &Hold| {
                let is_older = !is_told(hold) && !hold.was_extended_after(sample.sent);
                hold.is_believed() && is_older && node_of(&hold.name) == node
            };
            for index in self.indices_of(is_doubtful) {
                let Some(hold) = self.get_mut(index) else { continue };
                doubted(hold, by, sample.received);
                self.schedule(index);
            }
        }
        Some(jump)
    }

    /// Adds a hold to the watchdog's beats, or removes it. The watchdog keeps a hold alive while it is held and one of its guards
    /// wants that.
    pub(super) fn update_cohort(&mut self, index: HoldIndex, now: BootInstant) {
        let Some(hold) = self.holds.get_mut(index as usize) else { return };
        if !hold.is_kept_alive() {
            if hold.renewing.planned().is_some() {
                let wished = self.callers.renewal(hold.releasing.callers).is_some();
                if !hold.is_to_be_asked_for(wished) {
                    hold.renewing.unplan();
                }
            }
            if let Some(member) = hold.renewing.leave() {
                self.alarms.leave(member);
            }
            // Discards the duration, because a release or a loss is not a recovery to report.
            let _told_of_the_loss = self.failures.clear(index, self.tallies.of(hold.name.family()), now);
        } else if !hold.renewing.is_member() {
            let beat = self.alarms.beat_at(now);
            if beat != self.newcomers.beat || self.newcomers.holds.len() == MOST_NEWCOMERS {
                self.let_newcomers_join();
                self.newcomers.beat = beat;
            }
            self.newcomers.holds.push(index);
            // The first renewal of the hold comes one period after this beat.
            self.alarms.plan_after_beat(beat);
        }
    }

    /// Adds the newcomers of the latest beat that are still held to that beat.
    pub(super) fn let_newcomers_join(&mut self) {
        for index in self.newcomers.holds.drain(..) {
            // The hold may be gone, and a new hold may have its index.
            let hold = self.holds.get_mut(index as usize);
            if let Some(hold) = hold.filter(|hold| hold.is_kept_alive() && !hold.renewing.is_member()) {
                hold.renewing.join(self.alarms.join(index, self.newcomers.beat));
            }
        }
    }
}

/// Holds that were granted in one beat and are not members of the cohorts yet. Most holds are released before the beat ends, so
/// they never pay for joining and leaving.
#[derive(Default)]
pub(super) struct Newcomers {
    beat: u64,
    pub(super) holds: Vec<HoldIndex>,
}

/// Largest number of newcomers that wait for the end of their beat, to bound their memory.
const MOST_NEWCOMERS: usize = 1024;

/// Longest pause before the check of a fixed lease is retried, however long the lease is.
const VERIFY_AGAIN: Duration = Duration::from_secs(1);

/// Extends the hold's lease. Returns the delay of the renewal, unless the renewal was early.
fn extended(hold: &mut Hold, lease: Lease, sent: BootInstant, now: BootInstant) -> Option<Duration> {
    // Derives the planned instant from the previous lease, whose request was sent one validity before its expiry.
    let planned = lease.renewal_before(hold.valid_until);
    // The longer lease of an attempt under way is believed only when its grant is processed.
    hold.extended_until(lease.min(hold.lease).valid_until(sent));
    hold.fits_limit();
    hold.answered(now);
    (now >= planned).then(|| now.saturating_duration_since(planned))
}

/// Shortens a lease that may end `by` earlier than believed.
fn doubted(hold: &mut Hold, by: Duration, now: BootInstant) {
    let believed = hold.valid_until;
    hold.shortened(by);
    if hold.renewing.is_wanted() {
        // The server must have time to reply to the immediate renewal. The hold must not outlast its earlier expiry, though.
        hold.valid_until = hold.valid_until.max(now + hold.lease.duration() / 5).min(believed);
        hold.renewing.plan(now);
    }
}

/// Shortens the hold's lease to the time that the server has left for it. That may be less than by the old server's clock.
fn still_held(hold: &mut Hold, left: Duration, sent: BootInstant, now: BootInstant) {
    let until = sent.plus_nanos(less_drift(nanos(left)));
    if !hold.was_extended_since(sent) && until < hold.valid_until {
        // The request was on its way, or waited for a connection, for so long that the hold would be lost at once. If the present
        // deadline fits `left` from now on, the reply does not contradict it. The watchdog then checks once more.
        if hold.lost_before(until) <= now && hold.valid_until <= now + left {
            hold.renewing.doubt();
        } else {
            hold.valid_until = until;
        }
    }
    if left < Duration::MAX {
        hold.expired_by = hold.expired_by.max(now.plus_nanos(plus_drift(nanos(left))));
    }
    hold.answered(now);
}
