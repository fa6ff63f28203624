//! Who is renewed when, and what a renewal changes. The watchdog's judgement; it sends nothing itself.

use std::collections::HashSet;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use super::awaited::Failed;
use super::renewing::Refused;
use super::wishes::{Fulfilled, Want};
use super::{Due, Effects, Event, Hold, HoldIndex, Holds, State, TICK_NANOS};
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
    /// Whether the lease is extended; otherwise the server only says how long it still runs.
    pub(crate) extend: bool,
    /// Brings the script's text along.
    pub(crate) with_source: bool,
    /// Has a script of its own.
    pub(crate) alone: bool,
    /// What it has in common with others that may share its script; filled in by the watchdog.
    pub(crate) slot: u16,
}

impl Renewal {
    /// The lease for the script, in milliseconds: 0 leaves it as it is.
    pub(crate) fn lease_to_set(&self) -> i64 {
        if self.extend { self.lease.millis() } else { 0 }
    }
}

/// Renewals under way in one script.
pub(super) struct Script {
    group: Vec<Renewal>,
    /// The server to which it was sent, if that is certain.
    node: Option<u32>,
    /// No earlier than the instant before.
    sent: BootInstant,
}

/// How a renewal of one hold ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Renewed {
    Extended,
    /// Not extended, for that was not asked for.
    StillHeld {
        /// How long the lease still runs by the server's clock.
        left: Duration,
    },
    NotOwner,
    /// Extended on the server, but too few others know of it.
    NotAcknowledged,
    /// Refused, or nothing is known.
    Failed,
}

/// What a server says of several locks that it was asked to renew.
pub(crate) struct RenewalReply {
    /// The server's clock, since the Unix epoch.
    pub(crate) server: Duration,
    /// What became of each, in the order in which they were asked for.
    pub(crate) locks: Vec<Renewed>,
}

impl RenewalReply {
    pub(crate) fn lock(&self, place: usize) -> Renewed {
        self.locks.get(place).copied().unwrap_or(Renewed::Failed)
    }
}

impl Holds {
    /// Everything that is due at `now`.
    pub(crate) fn due(&mut self, now: BootInstant, due: &mut Due<'_>) {
        let tick = self.since_start(now) / TICK_NANOS;
        let mut fired = Vec::new();
        self.wheel.advance(tick, |_, event| fired.push(event));
        for event in fired {
            match event {
                Event::Hold(index) => self.alarmed(index, now, due),
                Event::Backlog if self.backlog.is_empty() => {}
                Event::Backlog => self.look_at_the_backlog_again(now),
                Event::Forget => self.forget_releases(now),
                Event::Overdue => self.end_overdue(now, due),
                Event::Quiet(index) => due.quiet.extend(self.quiet.try_remove(index as usize)),
                Event::HandingOver(index) => {
                    due.handing_over.extend(self.handing_over.try_remove(index as usize));
                }
            }
        }
        self.let_newcomers_join();
        let beat = self.beat_at(now);
        let mut beating = Vec::new();
        self.beats.visit(beat, |_, group| beating.extend_from_slice(group));
        for index in beating {
            self.ask(index, now, due);
        }
        self.verify_some(now, due);
        self.repeat_some(now, due);
    }

    fn alarmed(&mut self, index: HoldIndex, now: BootInstant, due: &mut Due<'_>) {
        let Some(hold) = self.get_mut(index) else { return };
        hold.alarm = None;
        if hold.releasing.is_due(now) {
            if hold.releasing.is_busy() {
                hold.releasing.put_off(now + hold.lease.retry_after());
            } else if hold.is_to_be_released(now) {
                due.effects.request_all(self.reconcile(index));
            } else {
                hold.releasing.give_up();
                hold.open_gate(due.effects);
            }
        }
        self.settle(index, due.effects);
        let Some(hold) = self.get(index) else { return };
        if hold.state == State::Held && hold.guards > 0 && now >= hold.lost_at() {
            return self.lose(index, LostReason::Expired, now, due.effects);
        }
        if hold.renewing.is_due(now) {
            self.ask(index, now, due);
        }
        self.schedule(index);
    }

    /// Renews a hold that the watchdog keeps; one that it does not keep is only verified, if there is a reason to.
    pub(super) fn ask(&mut self, index: HoldIndex, now: BootInstant, due: &mut Due<'_>) {
        let wished = self.wishes.most(index);
        let Some(hold) = self.get_mut(index) else { return };
        hold.renewing.unplan();
        if !hold.is_to_be_asked_for(wished.is_some()) || hold.renewing.is_under_way() {
            return;
        }
        if now >= hold.lost_at() {
            return self.lose(index, LostReason::Expired, now, due.effects);
        }
        due.renew.extend(self.start_renewal(index, wished));
    }

    /// The server is to be asked now, whatever is planned.
    fn start_renewal(&mut self, index: HoldIndex, wished: Option<Want>) -> Option<Renewal> {
        let hold = self.get_mut(index)?;
        hold.renewing.begin();
        let extend = hold.renewing.is_wanted() || wished == Some(Want::Extension);
        self.wishes.asked(index, if extend { Want::Extension } else { Want::Word });
        self.schedule(index);
        self.renewal(index, extend)
    }

    fn renewal(&self, index: HoldIndex, extend: bool) -> Option<Renewal> {
        let hold = self.get(index)?;
        Some(Renewal {
            hold: index,
            serial: hold.serial,
            name: Arc::clone(&hold.name),
            owner: hold.owner,
            lease: hold.longest_lease(),
            extend,
            with_source: hold.renewing.is_with_source(),
            alone: hold.renewing.is_alone(),
            slot: 0,
        })
    }

    /// A guard wants the server to be asked now, and waits until `until` at most for what it says; `None` if its hold is lost.
    /// Returns the wish's number, and what is to be asked at once: nothing if a renewal is under way, which another one
    /// follows.
    pub(crate) fn wish(
        &mut self,
        index: HoldIndex,
        want: Want,
        until: BootInstant,
        waker: &Waker,
    ) -> Option<(u64, Option<Renewal>)> {
        let under_way = self.get(index).filter(|hold| hold.state == State::Held)?.renewing.is_under_way();
        let number = self.wishes.begin(index, want, until, waker);
        self.look_at_deadlines_at(until);
        let renewal = if under_way { None } else { self.start_renewal(index, Some(want)) };
        Some((number, renewal))
    }

    /// What became of a wish, told once; leaves a waker if there is nothing yet.
    pub(crate) fn fulfilled(&mut self, index: HoldIndex, wish: u64, waker: &Waker) -> Option<Fulfilled> {
        self.wishes.take(index, wish, waker)
    }

    /// Nobody waits for a wish any more. The returned waker is to be dropped outside the table's lock.
    pub(crate) fn forget_wish(&mut self, index: HoldIndex, wish: u64) -> Option<Waker> {
        self.wishes.forget(index, wish)
    }

    /// The holds of a renewal under way, if any guard waits for what the server says.
    pub(crate) fn wishing(&self, renewal: u32) -> Vec<HoldIndex> {
        let group = if self.wishes.is_empty() { &[] } else { self.batch(renewal) };
        let is_same =
            |renewal: &Renewal| self.get(renewal.hold).is_some_and(|hold| hold.serial == renewal.serial);
        let wished = |renewal: &&Renewal| is_same(renewal) && self.wishes.most(renewal.hold).is_some();
        group.iter().filter(wished).map(|renewal| renewal.hold).collect()
    }

    /// Guards that wait are told that it failed.
    pub(crate) fn tell_wishes(&mut self, index: HoldIndex, why: &Failed, effects: &mut Effects) {
        self.wishes.failed(index, why, |waker| effects.wake_one(waker));
    }

    /// Why a renewal failed that is made again: what guards are told that do not hear of the next one in time. `executed` if it
    /// may have been.
    pub(crate) fn remember_failed_wish(
        &mut self,
        index: HoldIndex,
        why: &wheellock_client::Error,
        executed: bool,
        now: BootInstant,
    ) {
        self.wishes.failed_once(index, why, executed, now);
    }

    /// Too few servers know of an extension for which guards wait.
    pub(crate) fn wishes_fell_short(&mut self, index: HoldIndex, by: Shortfall, effects: &mut Effects) {
        self.wishes.fell_short(index, by, |waker| effects.wake_one(waker));
    }

    /// A renewal has ended. If a guard waits for another one, it is made at `at`, or when it is planned if that is earlier.
    pub(crate) fn renew_for_wishes(&mut self, index: HoldIndex, at: BootInstant) {
        if self.wishes.most(index).is_none() {
            return;
        }
        if let Some(hold) = self.get_mut(index).filter(|hold| !hold.renewing.is_under_way()) {
            hold.renewing.plan_by(at);
            self.schedule(index);
        }
    }

    /// Remembers renewals that are about to be sent, to `node` if that is certain; returns their number.
    pub(crate) fn begin_renewal(&mut self, group: Vec<Renewal>, node: Option<u32>, sent: BootInstant) -> u32 {
        u32::try_from(self.renewals.insert(Script { group, node, sent })).unwrap_or(u32::MAX)
    }

    /// The locks of a renewal that is under way.
    pub(crate) fn batch(&self, renewal: u32) -> &[Renewal] {
        self.renewals.get(renewal as usize).map_or(&[], |script| &script.group)
    }

    /// A renewal has ended; `reply` is missing if nothing is known. `node_of` says which server serves a lock.
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
            self.end_one(renewal, how, sent, now, effects);
        }
        if self.may_verify() {
            self.plan(now);
        }
        let reply = reply?;
        let extended = group.iter().enumerate().filter(|(place, _)| reply.lock(*place) == Renewed::Extended);
        let extended = extended.map(|(_, renewal)| renewal.serial);
        self.heard_server_time(node?, Sample { server: reply.server, sent, received: now }, extended, node_of)
    }

    /// A script of renewals was answered, and what it has extended is to be acknowledged by other servers before it counts.
    /// Everything else is reconciled. Returns whether there is anything to wait for.
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
        let mut extended = Vec::new();
        for (place, renewal) in group.into_iter().enumerate() {
            match reply.lock(place) {
                Renewed::Extended => {
                    if self.hold_of(&renewal).is_some() {
                        self.wishes.fulfilled(renewal.hold, Want::Word, |waker| effects.wake_one(waker));
                    }
                    extended.push(renewal);
                }
                how => self.end_one(&renewal, how, sent, now, effects),
            }
        }
        let any = !extended.is_empty();
        match self.renewals.get_mut(renewal as usize) {
            Some(script) if any => script.group = extended,
            _ => _ = self.renewals.try_remove(renewal as usize),
        }
        let sample = Sample { server: reply.server, sent, received: now };
        // What it has extended counts from its acknowledgement on.
        let jump = node.and_then(|node| self.heard_server_time(node, sample, None, node_of));
        (any, jump)
    }

    /// What was extended has been acknowledged as wanted, or not.
    pub(crate) fn end_wait(&mut self, renewal: u32, kept: bool, now: BootInstant, effects: &mut Effects) {
        let Some(Script { group, sent, .. }) = self.renewals.try_remove(renewal as usize) else { return };
        let how = if kept { Renewed::Extended } else { Renewed::NotAcknowledged };
        for renewal in &group {
            self.end_one(renewal, how, sent, now, effects);
        }
        if self.may_verify() {
            self.plan(now);
        }
    }

    fn end_one(
        &mut self,
        renewal: &Renewal,
        how: Renewed,
        sent: BootInstant,
        now: BootInstant,
        effects: &mut Effects,
    ) {
        if let Some(hold) = self.hold_of(renewal) {
            hold.renewing.end();
            let done = match how {
                Renewed::Extended => Some(Want::Extension),
                Renewed::StillHeld { .. } => Some(Want::Word),
                Renewed::NotOwner | Renewed::NotAcknowledged | Renewed::Failed => None,
            };
            if let Some(done) = done {
                self.wishes.fulfilled(renewal.hold, done, |waker| effects.wake_one(waker));
            }
            self.wishes.in_vain(renewal.hold);
        }
        self.renewed(renewal, how, sent, now, effects);
    }

    /// A renewal was refused before it had any effect, and has a chance after `pause`. Returns what is to be made again at
    /// once, each alone, where the reply said; the watchdog will make the rest.
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
            let wished = self.wishes.most(renewal.hold).is_some();
            let Some(hold) = self.hold_of(&renewal) else { continue };
            hold.renewing.end();
            self.wishes.in_vain(renewal.hold);
            let Some(hold) = self.get_mut(renewal.hold) else { continue };
            if !renewal.extend {
                hold.renewing.doubt();
            }
            if !hold.is_to_be_asked_for(wished) {
                continue;
            }
            // A redirection that is followed is no failure, and neither is each of many questions whether the server serves.
            let failed = refused == Refused::Unserved && hold.refusals == 0 && renewal.extend;
            hold.renewing.refuse(refused);
            let pause = hold.pause_after_refusal(pause);
            if refused == Refused::Arrived && pause.is_zero() {
                let want = if renewal.extend { Want::Extension } else { Want::Word };
                at_once.extend(self.start_renewal(renewal.hold, Some(want)));
            } else {
                hold.renewing.plan(now + pause);
                self.schedule(renewal.hold);
            }
            if failed {
                self.fails(renewal.hold, now);
            }
        }
        if self.may_verify() {
            self.plan(now);
        }
        at_once
    }

    fn hold_of(&mut self, renewal: &Renewal) -> Option<&mut Hold> {
        self.get_mut(renewal.hold).filter(|hold| hold.serial == renewal.serial)
    }

    /// The end of a renewal that was sent no earlier than `sent`. One that is too late changes nothing: what was lost
    /// stays lost.
    pub(super) fn renewed(
        &mut self,
        renewal: &Renewal,
        how: Renewed,
        sent: BootInstant,
        now: BootInstant,
        effects: &mut Effects,
    ) {
        let period = self.period();
        let clock_may_have_jumped = self.server_clocks.jumped_since(sent);
        let Some(hold) = self.hold_of(renewal) else { return };
        if how != Renewed::NotOwner && renewal.extend {
            hold.expired_by = hold.expired_by.max(renewal.lease.expired_by(now));
        }
        if hold.state != State::Held {
            return;
        }
        // Its guards may have said so already, before the watchdog could.
        if how != Renewed::NotOwner && hold.guards > 0 && now >= hold.valid_until {
            if renewal.extend {
                self.fails_at_the_end(renewal.hold);
            }
            return self.lose(renewal.hold, LostReason::Expired, now, effects);
        }
        match how {
            Renewed::Extended => {
                // The one before was sent a lease's validity before what was believed until now.
                let planned = renewal.lease.renewal_before(hold.valid_until);
                // What was asked for in addition is believed when it is heard of.
                hold.extended_until(renewal.lease.min(hold.lease).valid_until(sent));
                hold.answered(now);
                if clock_may_have_jumped {
                    hold.renewing.verify_at(now);
                }
                hold.ask_again_if_its_turn_comes_late(now, period);
                let family = hold.name.family();
                let late = (now >= planned).then(|| now.saturating_duration_since(planned));
                self.tallies.of(family).renewed(late);
                effects.renewed_again(self.fails_no_more(renewal.hold, now));
            }
            Renewed::StillHeld { left } => {
                still_held(hold, left, sent, now);
                hold.look_again_if_others_may_shorten_it(now, period);
                hold.ask_again_if_its_turn_comes_late(now, period);
                effects.renewed_again(self.fails_no_more(renewal.hold, now));
            }
            // Its release finds the same, and tells of it.
            Renewed::NotOwner if hold.guards == 0 && hold.releasing.is_under_way() => {}
            Renewed::NotOwner => return self.lose(renewal.hold, LostReason::NotOwner, now, effects),
            Renewed::NotAcknowledged => {
                hold.renewing.plan(now + renewal.lease.retry_after());
                self.fails(renewal.hold, now);
            }
            Renewed::Failed if renewal.extend => {
                hold.renewing.unanswered(now + renewal.lease.retry_after());
                self.fails(renewal.hold, now);
            }
            Renewed::Failed => {
                hold.renewing.doubt();
                hold.renewing.unanswered(now + renewal.lease.retry_after().min(VERIFY_AGAIN));
            }
        }
        self.schedule(renewal.hold);
    }

    /// A server told its time, in a script which has extended the leases of holds with these serials. If its clock has jumped ahead,
    /// every other lease there ends that much earlier than was thought.
    pub(super) fn heard_server_time(
        &mut self,
        node: u32,
        sample: Sample,
        extended: impl IntoIterator<Item = u64>,
        node_of: impl Fn(&Name) -> u32,
    ) -> Option<Jump> {
        let jump = self.server_clocks.observe(node, sample)?;
        self.tallies.of(UNCLASSIFIED).server_clock_jumps += 1;
        if let Jump::Forward(by) = jump {
            let extended: HashSet<u64> = extended.into_iter().collect();
            let held: Vec<HoldIndex> = self
                .holds
                .iter()
                .filter(|(_, hold)| hold.state == State::Held && hold.guards > 0)
                .filter(|(_, hold)| !extended.contains(&hold.serial) && node_of(&hold.name) == node)
                .filter_map(|(index, _)| u32::try_from(index).ok())
                .collect();
            for index in held {
                self.doubt(index, by, sample.sent, sample.received);
            }
        }
        Some(jump)
    }

    /// A hold whose lease may end `by` earlier than was thought, unless it was extended by a request that was sent after `sent`: one that was
    /// sent at the same instant may have been executed before.
    fn doubt(&mut self, index: HoldIndex, by: Duration, sent: BootInstant, now: BootInstant) {
        let Some(hold) = self.get_mut(index) else { return };
        if hold.was_extended_after(sent) {
            return;
        }
        let believed = hold.valid_until;
        hold.shortened(by);
        if hold.renewing.is_wanted() {
            // The server is asked at once, and is to have the time to answer; but not beyond what was believed before.
            hold.valid_until = hold.valid_until.max(now + hold.lease.duration() / 5).min(believed);
            hold.renewing.plan(now);
        }
        self.schedule(index);
    }

    /// A hold is in the watchdog's care as long as it is held and one of its guards wants that.
    pub(super) fn join_or_leave_the_beat(&mut self, index: HoldIndex, now: BootInstant) {
        let wished = !self.wishes.is_empty() && self.wishes.most(index).is_some();
        let Some(hold) = self.holds.get_mut(index as usize) else { return };
        if !hold.is_kept_alive() {
            if !hold.is_to_be_asked_for(wished) {
                hold.renewing.unplan();
            }
            if let Some(member) = hold.renewing.leave() {
                self.beats.leave(member);
            }
            // That it is given back, or lost, is no good news.
            let _told_of_the_loss = self.fails_no_more(index, now);
        } else if !hold.renewing.is_member() {
            self.came(index, self.beat_at(now));
        }
    }

    /// The watchdog is to renew a hold for the first time one period after this beat.
    fn came(&mut self, index: HoldIndex, beat: u64) {
        if beat != self.newcomers.beat || self.newcomers.holds.len() == MOST_NEWCOMERS {
            self.let_newcomers_join();
            self.newcomers.beat = beat;
        }
        self.newcomers.holds.push(index);
        self.plan(self.start_of_beat(beat + self.beats.period()));
    }

    /// Of those that came in the latest beat, those that are still held join it.
    pub(super) fn let_newcomers_join(&mut self) {
        for index in self.newcomers.holds.drain(..) {
            // It may have gone, and another may have its index.
            let hold = self.holds.get_mut(index as usize);
            if let Some(hold) = hold.filter(|hold| hold.is_kept_alive() && !hold.renewing.is_member()) {
                hold.renewing.join(self.beats.join(index, self.newcomers.beat));
            }
        }
    }
}

/// Holds that have come in one beat, and are not among those that the watchdog visits yet: most are given back before it ends, and
/// to come and go costs them nothing this way.
#[derive(Default)]
pub(super) struct Newcomers {
    beat: u64,
    pub(super) holds: Vec<HoldIndex>,
}

/// So many wait for the end of their beat, so that little memory does.
const MOST_NEWCOMERS: usize = 1024;

/// How long a lease that is not renewed may wait for its verification once more, however long it is.
const VERIFY_AGAIN: Duration = Duration::from_secs(1);

/// Shortens the hold's lease to what the server has left of it. That may be less than by the clock of the server before.
fn still_held(hold: &mut Hold, left: Duration, sent: BootInstant, now: BootInstant) {
    let until = sent.plus_nanos(less_drift(nanos(left)));
    if !hold.was_extended_since(sent) && until < hold.valid_until {
        // The question was on its way, or waited for a connection, for longer than what is left. If the present deadline fits what is
        // left from now on, the answer does not contradict it. The watchdog asks once more.
        if until <= now && hold.valid_until <= now + left {
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
