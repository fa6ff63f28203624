//! Renewals and checks of one hold while guards have it. Pure.
//!
//! It knows neither whether the hold is believed nor its lease. `renewals` does.

use std::time::Duration;

use wheellock_wheel::Member;

use crate::base::clock::BootInstant;

/// Renewals of one hold, and requests that only verify it.
///
/// Nearly all of these states can occur together.
///
/// - Another renewal may be [planned](Self::plan) while one is under way.
/// - The hold may be [doubted](Self::doubt) meanwhile, because the reply may come from a server that has been replaced.
/// - A hold that no guard [wants](Self::is_wanted) renewed is not a member of the cohorts. It leaves them when the table finds
///   that it is no longer kept alive.
#[derive(Default)]
pub(super) struct Renewing {
    /// Instant of a renewal outside of the beats: after a failure, or because the next beat comes too late.
    at: Option<BootInstant>,
    /// Membership in the cohorts that the watchdog renews at each beat. Newcomers are not members yet.
    member: Option<Member>,
    /// Number of guards that want the lease renewed.
    guards: u32,
    verifying: Verifying,
    manner: Manner,
}

/// Progress of the requests by which the server confirms a hold. Another server may reply now, or other holders may shorten the
/// lease, so the hold may be in doubt.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Verifying {
    #[default]
    NoDoubt,
    /// The server must confirm the hold.
    Doubt,
    /// The reply to the request under way resolves every doubt.
    UnderWay,
    /// The doubt is newer than the request under way, so another request must follow.
    UnderWayInDoubt,
}

/// Mode of the next renewal. Four flags in one byte, because a process may have a million holds.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
struct Manner(u8);

impl Manner {
    /// The renewal needs a script of its own, because a slot that migrates does not accept two keys at once.
    const ALONE: u8 = 1;
    /// The renewal sends the script's text, because the server may lack it.
    const WITH_SOURCE: u8 = 2;
    /// The renewal leaves the lease as it is.
    const ONLY_LOOKS: u8 = 4;
    /// The renewal writes the hold into a server that may not know it because of a failover.
    const WRITES: u8 = 8;

    fn is(self, what: u8) -> bool {
        self.0 & what != 0
    }

    fn add(&mut self, what: u8) {
        self.0 |= what;
    }
}

impl Renewing {
    /// Adds `guards` guards that want the lease renewed.
    pub(super) fn want(&mut self, guards: u32) {
        self.guards += guards;
    }

    /// Removes `guards` guards that wanted the lease renewed.
    pub(super) fn want_no_more(&mut self, guards: u32) {
        self.guards -= guards;
    }

    /// Schedules a renewal outside of the beats at `at`. Replaces an earlier schedule.
    pub(super) fn plan(&mut self, at: BootInstant) {
        self.at = Some(at);
    }

    /// Schedules a renewal outside of the beats at `at` at the latest.
    pub(super) fn plan_by(&mut self, at: BootInstant) {
        self.at = Some(self.at.map_or(at, |planned| planned.min(at)));
    }

    /// Cancels the scheduled renewal, because it is made now or is no longer useful.
    pub(super) fn unplan(&mut self) {
        self.at = None;
    }

    /// Marks the hold as unverified. The next renewal checks it even if no guard wants the lease extended.
    pub(super) fn doubt(&mut self) {
        let under_way = self.is_under_way();
        self.verifying = if under_way { Verifying::UnderWayInDoubt } else { Verifying::Doubt };
    }

    /// Marks the hold as unverified, as [`doubt`](Self::doubt) does, and schedules the check at `at`.
    pub(super) fn verify_at(&mut self, at: BootInstant) {
        // Callers pass the present instant, or find no renewal scheduled. So no earlier renewal is replaced.
        self.at = Some(at);
        self.doubt();
    }

    /// Schedules a check of the hold at `at` at the latest. It does not extend the lease: that would change the key of a shared
    /// lock, and each holder's check would cause the next holder's.
    pub(super) fn look_by(&mut self, at: BootInstant) {
        self.plan_by(at);
        self.doubt();
        self.manner.add(Manner::ONLY_LOOKS);
    }

    /// Returns true, once, if the next request only checks the hold.
    pub(super) fn take_only_looks(&mut self) -> bool {
        let only_looks = self.manner.is(Manner::ONLY_LOOKS);
        self.manner.0 &= !Manner::ONLY_LOOKS;
        only_looks
    }

    /// Makes renewals write the hold into a new server, until one of them has done so.
    pub(super) fn must_write(&mut self) {
        self.manner.add(Manner::WRITES);
    }

    /// Records that a renewal has written the hold into the present server.
    pub(super) fn written(&mut self) {
        self.manner.0 &= !Manner::WRITES;
    }

    /// Returns true if a renewal has written the hold into the present server, or there was no failover.
    pub(super) fn is_written(&self) -> bool {
        !self.manner.is(Manner::WRITES)
    }

    /// Begins a renewal. A doubt that arises from now on is not resolved by this renewal.
    pub(super) fn begin(&mut self) {
        self.verifying = Verifying::UnderWay;
    }

    /// Ends a renewal, whatever its result.
    pub(super) fn end(&mut self) {
        // A renewal that was scheduled meanwhile stays scheduled.
        self.verifying = if self.is_in_doubt() { Verifying::Doubt } else { Verifying::NoDoubt };
    }

    /// Handles the server's confirmation of the hold. If another server may reply now, schedules a check of that server.
    pub(super) fn answer(&mut self, now: BootInstant) {
        // The next renewal may share a script again. If the slot still migrates, the server refuses that script
        // without an effect. A hold that is to be written stays so, because this server may know only a part of it.
        self.manner.0 &= Manner::WRITES;
        self.at = self.is_in_doubt().then_some(now);
    }

    /// Schedules the retry of a renewal without a reply at `again`.
    pub(super) fn unanswered(&mut self, again: BootInstant) {
        self.at = Some(again);
        self.manner.add(Manner::WITH_SOURCE);
    }

    /// Schedules the retry of an extension that failed at `now`. The retry comes after this pause, or at once if another server may reply.
    pub(super) fn extension_failed(&mut self, now: BootInstant, pause: Duration) {
        // After a failover, grants wait until the new server has every hold.
        let pause = if self.is_in_doubt() { Duration::ZERO } else { pause };
        self.unanswered(now + pause);
    }

    /// Adjusts the next renewal after the server rejected one before it had any effect.
    pub(super) fn refuse(&mut self, refused: Refused) {
        match refused {
            Refused::NoScript => self.manner.add(Manner::WITH_SOURCE),
            Refused::OnItsWay | Refused::Arrived => self.manner.add(Manner::ALONE),
            // Neither refusal concerns the form of the request.
            Refused::Elsewhere | Refused::Unserved => {}
        }
    }

    /// Joins the holds that the watchdog renews at each beat.
    pub(super) fn join(&mut self, member: Member) {
        self.member = Some(member);
    }

    /// Leaves the holds that the watchdog renews at each beat.
    pub(super) fn leave(&mut self) -> Option<Member> {
        self.member.take()
    }

    /// Returns the number of guards that want the lease renewed.
    pub(super) fn guards(&self) -> u32 {
        self.guards
    }

    /// Returns true if a guard wants the lease renewed.
    pub(super) fn is_wanted(&self) -> bool {
        self.guards > 0
    }

    /// Returns true if a request to the server is wanted as soon as possible.
    pub(super) fn is_to_be_asked(&self) -> bool {
        // An unwritten hold delays the grants of all processes, even if no guard wants its lease extended.
        self.is_wanted() || self.is_in_doubt() || !self.is_written()
    }

    pub(super) fn is_under_way(&self) -> bool {
        matches!(self.verifying, Verifying::UnderWay | Verifying::UnderWayInDoubt)
    }

    fn is_in_doubt(&self) -> bool {
        matches!(self.verifying, Verifying::Doubt | Verifying::UnderWayInDoubt)
    }

    pub(super) fn is_member(&self) -> bool {
        self.member.is_some()
    }

    /// Returns the instant of the scheduled renewal outside of the beats.
    pub(super) fn planned(&self) -> Option<BootInstant> {
        self.at
    }

    /// Returns true if a renewal that is not only a look is scheduled outside of the beats.
    pub(super) fn extends_soon(&self) -> bool {
        self.at.is_some() && !self.manner.is(Manner::ONLY_LOOKS)
    }

    /// Returns true if the scheduled renewal is due.
    pub(super) fn is_due(&self, now: BootInstant) -> bool {
        self.at.is_some_and(|at| now >= at)
    }

    /// Returns true if no renewal is under way or scheduled outside of the watchdog's beats.
    pub(super) fn is_in_turn(&self) -> bool {
        // A doubt does not count here, because its check is under way or scheduled.
        !self.is_under_way() && self.at.is_none()
    }

    /// Returns true if the hold is in turn and not in doubt.
    pub(super) fn is_at_rest(&self) -> bool {
        self.verifying == Verifying::NoDoubt && self.at.is_none()
    }

    /// Returns true if the next renewal sends the script's text.
    pub(super) fn is_with_source(&self) -> bool {
        self.manner.is(Manner::WITH_SOURCE)
    }

    /// Returns true if the next renewal has a script of its own.
    pub(super) fn is_alone(&self) -> bool {
        self.manner.is(Manner::ALONE)
    }
}

/// The way in which the server rejected a script of renewals before it had any effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refused {
    /// Another node serves the slot, or no part of the script was sent.
    Elsewhere,
    /// The slot migrates to another node. Neither node accepts a script with several keys until all keys have arrived, so each
    /// key needs a script of its own.
    OnItsWay,
    /// As `OnItsWay`, and the reply named the node for a key that has arrived there.
    Arrived,
    /// The server lacks the script.
    NoScript,
    /// The server does not serve requests now.
    Unserved,
}

#[cfg(test)]
mod tests;
