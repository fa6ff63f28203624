//! What the server is asked of one hold while guards have it: whether it is still held, mostly by extending its lease. Pure, and knows
//! neither whether the hold is believed nor how long its lease is; `renewals` does.

use wheellock_wheel::Member;

use crate::base::clock::BootInstant;

/// Renewals of one hold, and questions that only verify it.
///
/// All of it can be so at once. Another renewal may be [planned](Self::plan) while one is under way, and the hold may be
/// [doubted](Self::doubt) meanwhile, for the answer may be that of a server which has been replaced. Only two things exclude each other: what
/// nobody [wants](Self::is_wanted) renewed is no member of the cohorts, and no failure of its renewals is told; both end when
/// the table finds that it is not kept alive any more.
#[derive(Default)]
pub(super) struct Renewing {
    /// A renewal out of turn: after one that failed, or because the next beat comes too late.
    at: Option<BootInstant>,
    /// Its place among those whom the watchdog renews at every beat; newcomers have none yet.
    member: Option<Member>,
    /// Guards that want the lease renewed.
    guards: u32,
    under_way: bool,
    /// The server is to be asked whether it is still held: another one than before may answer, or others may shorten it.
    unverified: bool,
    /// The last one failed.
    failing: bool,
    manner: Manner,
}

/// How the next renewal is made: two answers in one byte, because a process may have a million holds.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
struct Manner(u8);

impl Manner {
    /// It has a script of its own: a slot on its way to another node takes no two keys at once.
    const ALONE: u8 = 1;
    /// It brings the script's text along: the server may lack it.
    const WITH_SOURCE: u8 = 2;

    fn is(self, what: u8) -> bool {
        self.0 & what != 0
    }

    fn add(&mut self, what: u8) {
        self.0 |= what;
    }
}

impl Renewing {
    /// So many more guards want the lease renewed.
    pub(super) fn want(&mut self, guards: u32) {
        self.guards += guards;
    }

    /// So many of them go.
    pub(super) fn want_no_more(&mut self, guards: u32) {
        self.guards -= guards;
    }

    /// A renewal out of turn is made then, whatever was planned.
    pub(super) fn plan(&mut self, at: BootInstant) {
        self.at = Some(at);
    }

    /// A renewal out of turn is made no later than then.
    pub(super) fn plan_by(&mut self, at: BootInstant) {
        self.at = Some(self.at.map_or(at, |planned| planned.min(at)));
    }

    /// What was planned is made now, or is of no use any more.
    pub(super) fn unplan(&mut self) {
        self.at = None;
    }

    /// Whether it is still held is not certain: the next renewal asks for it though nobody wants the lease extended.
    pub(super) fn doubt(&mut self) {
        self.unverified = true;
    }

    /// As [`doubt`](Self::doubt); the server is asked then.
    pub(super) fn verify_at(&mut self, at: BootInstant) {
        (self.unverified, self.at) = (true, Some(at));
    }

    /// A renewal begins. What casts a doubt from now on is not answered by it.
    pub(super) fn begin(&mut self) {
        (self.under_way, self.unverified) = (true, false);
    }

    /// The renewal has ended, one way or another.
    pub(super) fn end(&mut self) {
        self.under_way = false;
    }

    /// The server has said that this is still held. If it was another one than the one that answers now, that one is asked too.
    pub(super) fn answer(&mut self, now: BootInstant) {
        self.manner = Manner::default();
        self.at = self.unverified.then_some(now);
    }

    /// Nothing is known of a renewal; another one is made then.
    pub(super) fn unanswered(&mut self, again: BootInstant) {
        self.at = Some(again);
        self.manner.add(Manner::WITH_SOURCE);
    }

    /// A renewal was refused before it had any effect: what that teaches about the next one.
    pub(super) fn refuse(&mut self, refused: Refused) {
        match refused {
            Refused::NoScript => self.manner.add(Manner::WITH_SOURCE),
            Refused::OnItsWay | Refused::Arrived => self.manner.add(Manner::ALONE),
            Refused::Elsewhere | Refused::Unserved => {}
        }
    }

    /// The last renewal failed. Returns whether the one before had, too.
    pub(super) fn fail(&mut self) -> bool {
        std::mem::replace(&mut self.failing, true)
    }

    /// The last renewal did not fail, or nobody wants one any more. Returns whether the one before had failed.
    pub(super) fn fail_no_more(&mut self) -> bool {
        std::mem::take(&mut self.failing)
    }

    /// The watchdog renews it at every beat from now on.
    pub(super) fn join(&mut self, member: Member) {
        self.member = Some(member);
    }

    /// The watchdog renews it no more.
    pub(super) fn leave(&mut self) -> Option<Member> {
        self.member.take()
    }

    /// Guards that want the lease renewed.
    pub(super) fn guards(&self) -> u32 {
        self.guards
    }

    /// Whether any guard wants the lease renewed.
    pub(super) fn is_wanted(&self) -> bool {
        self.guards > 0
    }

    /// Whether the server is to be asked, as soon as there is time for that.
    pub(super) fn is_to_be_asked(&self) -> bool {
        self.is_wanted() || self.unverified
    }

    pub(super) fn is_under_way(&self) -> bool {
        self.under_way
    }

    pub(super) fn is_member(&self) -> bool {
        self.member.is_some()
    }

    /// When the next renewal out of turn is made, if one is planned.
    pub(super) fn planned(&self) -> Option<BootInstant> {
        self.at
    }

    /// Whether the time of what is planned has come.
    pub(super) fn is_due(&self, now: BootInstant) -> bool {
        self.at.is_some_and(|at| now >= at)
    }

    /// Whether nothing is under way or planned but what the watchdog does at its beats.
    pub(super) fn is_in_turn(&self) -> bool {
        !self.under_way && self.at.is_none()
    }

    /// Whether, besides, nothing speaks against the hold.
    pub(super) fn is_at_rest(&self) -> bool {
        !self.unverified && !self.under_way && self.at.is_none()
    }

    /// Whether the next renewal brings the script's text along.
    pub(super) fn is_with_source(&self) -> bool {
        self.manner.is(Manner::WITH_SOURCE)
    }

    /// Whether the next renewal has a script of its own.
    pub(super) fn is_alone(&self) -> bool {
        self.manner.is(Manner::ALONE)
    }
}

/// How the server refused a script of renewals: before it had any effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refused {
    /// Another node serves the slot, or none of it was sent.
    Elsewhere,
    /// The slot is on its way to another node. Where several keys are asked for, neither node answers until all have
    /// arrived, so each is asked for alone.
    OnItsWay,
    /// As before, and it was said which node to ask for a key that has arrived there.
    Arrived,
    /// The server lacks the script.
    NoScript,
    /// The server does not serve now.
    Unserved,
}

#[cfg(test)]
mod tests;
