//! The turns of several processes at one lock.
//!
//! This module computes for how long this process may hand the lock over. The table of holds keeps that time. The module also decides when
//! the head polls again after a release that lets other processes have the lock. The module is pure: its input is instants and counts of
//! receivers, its output is decisions.

use std::time::{Duration, Instant};

/// One process' knowledge of the other processes' turns at one lock.
#[derive(Default)]
pub(crate) struct Turns {
    /// When this process released the lock to let others have it; `None` once the reply has arrived.
    released: Option<Instant>,
    /// Number of consecutive such releases that no other process received.
    alone: u32,
    /// Duration of the last reply's round trip.
    round_trip: Duration,
    /// Number of other processes that received the release before the last one.
    others_before: u32,
    /// Number of other processes that received the last release.
    others: u32,
    /// Number of turns that other processes still have before the head polls.
    left: u32,
    /// Time that each of these turns may take before the head polls anyway.
    back_off: Duration,
    /// When the present turn of another process began, as far as messages show.
    began: Option<Instant>,
    /// Longest turn of another process since the last release; `None` if no other process had a turn.
    took: Option<Duration>,
    /// Until when the next message is that of this process' own release. Since Redis 7.2 that message arrives after the reply.
    own_until: Option<Instant>,
    /// Since when this process has had the lock without leaving the lock free for a while. `None` if callers found the lock free.
    hot_since: Option<Instant>,
    /// Contenders poll for the lock, as far as the last release showed.
    poll: bool,
    /// Until when the lock is left free, and whether a message announced that.
    open: Option<(Instant, Opening)>,
    /// Refused polls since then.
    refusals: u32,
    /// Until when this process stands back at most. `None` if it hands the lock over.
    at_most: Option<Instant>,
    /// This process stood back after its last release, and no other process is known to have had a turn since.
    in_vain: bool,
    /// A message that has arrived since the last release, but for its own, shows a turn of another process. False if this process did not
    /// stand back: its own message is not known then.
    heeds: bool,
    /// Time from the last such release to the next one that stands back.
    pause: Duration,
    /// When the next release may stand back; `None` if it may in any case.
    next_at: Option<Instant>,
}

/// How a process leaves a lock that it releases to let others have it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Opening {
    /// Free for as long as the receivers of the message need.
    Not,
    /// Free for as long as polling contenders need.
    Published,
    /// As `Published`, but without a message. Subscribed processes have their turns in any case, and a message would make them take the
    /// lock at once.
    Silent,
}

/// Other contenders for a lock, as its release finds them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Contenders {
    /// Number of connections that received the message; `None` if it was not published.
    pub(crate) receivers: Option<u32>,
    /// Contenders poll.
    pub(crate) poll: bool,
}

impl Contenders {
    /// Adds `waited_for` receivers that listen on this process' own connection.
    pub(crate) fn and_beside(self, waited_for: u32) -> Self {
        Self { receivers: self.receivers.map(|receivers| receivers.saturating_add(waited_for)), ..self }
    }

    /// Returns the number of receivers in other processes. If this process `listens`, it is one of the receivers.
    fn others(self, listens: bool) -> u32 {
        self.receivers.unwrap_or_default().saturating_sub(listens.into())
    }
}

/// The head's next step once the receivers of a release are known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Then {
    /// The head polls.
    Ask,
    /// The head waits until this instant.
    StandBack(Instant),
}

/// Meaning of a message.
pub(crate) enum Message {
    /// This process' own release.
    Own,
    /// Another process has had its turn. The next process has until this instant.
    NextTurn(Instant),
    /// The lock may be free for this process.
    Free,
}

impl Turns {
    /// Records a release. `out_of_time` is true if the release lets others have the lock. If the lock is left free for polling contenders,
    /// returns until when.
    pub(crate) fn give_back(&mut self, out_of_time: bool, now: Instant) -> Option<Instant> {
        (self.released, self.at_most) = (out_of_time.then_some(now), None);
        let opening = self.opening(now);
        self.refusals = 0;
        self.open = (out_of_time && opening != Opening::Not).then_some((now + OPEN, opening));
        // The time to the next opening counts from the last opening, or from the first such release.
        if out_of_time && (self.hot_since.is_none() || self.open.is_some()) {
            self.hot_since = Some(now);
        }
        self.open.map(|(until, _)| until)
    }

    /// Returns true if a process that does not hand the lock over must let others have it. Other processes listen, and they took their
    /// turns before, or have not had a chance for a while.
    pub(crate) fn may_stand_back(&mut self, now: Instant) -> bool {
        self.heeds = self.others.max(self.others_before) > 0 && self.next_at.is_none_or(|at| now >= at);
        self.heeds
    }

    /// Returns true if a message that has arrived shows a turn of another process.
    pub(crate) fn heeds_messages(&self) -> bool {
        self.heeds
    }

    /// Records the number of receivers of a release that this process did not plan. Returns true if other processes are among them.
    pub(crate) fn finds(&mut self, contenders: Contenders, listens: bool) -> bool {
        let others = contenders.others(listens);
        self.others = others;
        others > 0
    }

    /// Records a release of a lock that was not handed over.
    pub(crate) fn release(&mut self, now: Instant) {
        (self.released, self.at_most, self.open) = (Some(now), Some(now + STAND_BACK_AT_MOST), None);
    }

    /// Returns true if a process that does not hand the lock over must leave it free for polling callers of its own.
    pub(crate) fn opens_for_pollers(&mut self, now: Instant) -> bool {
        self.poll = true;
        self.hot_since.get_or_insert(now);
        self.opening(now) != Opening::Not
    }

    /// Returns how a release that lets others have the lock leaves the lock.
    pub(crate) fn opening(&self, now: Instant) -> Opening {
        let every = if self.poll { OPEN_EVERY_POLLED } else { OPEN_EVERY };
        if self.hot_since.is_none_or(|since| now < since + every) {
            Opening::Not
        } else if self.others.max(self.others_before) == 0 {
            Opening::Published
        } else {
            Opening::Silent
        }
    }

    /// Records that the head was refused. Returns the time of the next poll if the lock was left free for contenders. They may release the
    /// lock without a message.
    pub(crate) fn refused(&mut self, now: Instant) -> Option<Instant> {
        // Otherwise a hold of this process may have been in the way.
        if self.in_vain {
            self.was_taken();
        }
        // A reply to an earlier poll does not end the opening.
        self.open.filter(|(until, _)| now >= *until)?;
        let pause = FIRST_POLL.saturating_mul(1 << self.refusals.min(16)).min(LONGEST_PAUSE);
        self.refusals = self.refusals.saturating_add(1);
        Some(now + pause)
    }

    /// Records that callers found the lock free.
    pub(crate) fn was_free(&mut self, now: Instant) {
        self.granted(now);
        self.hot_since = None;
    }

    /// Returns true while the receivers of the release are not known.
    pub(crate) fn is_unanswered(&self) -> bool {
        self.released.is_some()
    }

    /// Stops waiting for the number of receivers of the release.
    pub(crate) fn give_up(&mut self) {
        self.released = None;
    }

    /// Records that this process got the lock. If it stood back in vain, the next releases do not stand back.
    pub(crate) fn granted(&mut self, now: Instant) {
        if std::mem::take(&mut self.in_vain) {
            self.pause = (2 * self.pause).clamp(FIRST_PAUSE, LONGEST);
            self.next_at = Some(now + self.pause);
        }
        self.end();
    }

    /// Records that another process has had a turn.
    pub(crate) fn was_taken(&mut self) {
        (self.in_vain, self.pause, self.next_at) = (false, Duration::ZERO, None);
    }

    fn end(&mut self) {
        self.released = None;
        self.open = None;
        self.left = 0;
    }

    /// Records that this process does not want the lock any more. Returns true if the process left the lock free without a message. Other
    /// listeners do not know then that the lock is free.
    pub(crate) fn give_up_lock(&mut self) -> bool {
        let is_unannounced = matches!(self.open, Some((_, Opening::Silent)));
        self.end();
        self.hot_since = None;
        is_unannounced
    }

    /// Records the contenders that a release found. If this process `listens`, it is one of the receivers. `has_come` is true if this
    /// process' own message has arrived, and `None` if no such message is to arrive.
    pub(crate) fn found(
        &mut self,
        contenders: Contenders,
        listens: bool,
        has_come: Option<bool>,
        now: Instant,
    ) -> Then {
        let Contenders { receivers, poll } = contenders;
        self.poll = poll;
        let Some(released) = self.released.take() else { return Then::Ask };
        self.round_trip = now.saturating_duration_since(released);
        if let Some((until, opening)) = &mut self.open {
            // The lock may have become free only now, so its free time counts from this reply.
            *until = now + OPEN;
            self.left = 0;
            // No receiver is counted for a silent release, so the earlier counts stay.
            if *opening == Opening::Silent {
                return Then::StandBack(*until);
            }
        }
        let others = contenders.others(listens);
        self.others_before = std::mem::replace(&mut self.others, others);
        let is_alone = receivers.is_some() && others == 0;
        self.alone = if is_alone { self.alone.saturating_add(1) } else { 0 };
        if let Some((until, _)) = self.open {
            return Then::StandBack(until);
        }
        if let Some(has_come) = has_come {
            self.own_until = (!has_come).then(|| now + self.round_trip.max(STAND_BACK_AT_LEAST));
        }
        if others == 0 {
            return Then::Ask;
        }
        self.left = others - 1;
        self.in_vain = true;
        // Among several others, a poll in the middle of a turn may find the lock free just before the next process polls. The head would
        // then take that process' turn. If no process took its last turn, wait only briefly.
        self.began = Some(now);
        let took = self.took.take();
        let at_least = if took.is_some() { STAND_BACK_FOR_WHO_CAME } else { STAND_BACK_AT_LEAST };
        let turn = took.filter(|_| others > 1).unwrap_or_default();
        self.back_off = (turn + 2 * self.round_trip).clamp(at_least, STAND_BACK_AT_MOST);
        Then::StandBack(now + self.back_off)
    }

    /// Records a message. Returns its meaning.
    pub(crate) fn hear(&mut self, now: Instant) -> Message {
        if let Some((until, _)) = self.open.filter(|(until, _)| now < *until) {
            return Message::NextTurn(until);
        }
        if self.is_own(now) {
            return Message::Own;
        }
        if self.heeds {
            self.was_taken();
        }
        if let Some(began) = self.began.replace(now) {
            self.took = self.took.max(Some(now.saturating_duration_since(began)));
        }
        let Some(left) = self.left.checked_sub(1) else { return Message::Free };
        self.left = left;
        let until = now + self.back_off;
        // A writer that has not polled yet keeps no reader out, so it must not wait for all others.
        match self.at_most {
            Some(at_most) if now >= at_most => Message::Free,
            at_most => Message::NextTurn(at_most.map_or(until, |at_most| until.min(at_most))),
        }
    }

    /// Returns true, once, if a message that has arrived is that of this process' own release.
    pub(crate) fn is_own(&mut self, now: Instant) -> bool {
        self.own_until.take().is_some_and(|until| now < until)
    }

    /// Returns the part of `budget` for which this process may hand the lock over.
    ///
    /// The processes that want the lock share the budget, so no process waits for longer than the budget. The time in which the lock passes
    /// between processes is part of the budget.
    ///
    /// The receivers of the release before the last one count, too. A process that did not receive the last release may have been about to
    /// subscribe, because Redisson subscribes again for each turn.
    ///
    /// No process has the lock for longer than the others' turns took. While releases report no other receiver, the budget doubles, up to
    /// [`LONGEST`].
    pub(crate) fn share_of(&self, budget: Duration) -> Duration {
        let others = self.others.max(self.others_before);
        if others == 0 {
            let doubled = budget.saturating_mul(1 << self.alone.min(16));
            return budget.max(doubled.min(LONGEST));
        }
        // Each process needs one trip for its release, and the next process one for its poll. On a busy machine these trips would use up
        // the budget.
        let between = self.round_trip.saturating_mul(others.saturating_mul(2)).min(budget / 4);
        let share = (budget - between) / others.saturating_add(1);
        self.longest_turn().map_or(share, |longest| share.min(longest))
    }

    /// Returns true if other processes' turns limit this share of the budget.
    pub(crate) fn is_limit(&self, share: Duration) -> bool {
        self.longest_turn() == Some(share)
    }

    /// Returns the longest time for which another process had the lock. The time of a turn contains two trips. Only one of them is
    /// subtracted, so that processes which would hand over for longer do not shorten each other's turns.
    fn longest_turn(&self) -> Option<Duration> {
        self.took.map(|took| took.saturating_sub(self.round_trip))
    }
}

/// Longest time for which a process without others hands a lock over. A new listener has its first turn within this time.
pub(crate) const LONGEST: Duration = Duration::from_millis(100);

/// Time for which a lock is left free for polling contenders. The time is longer than the pauses of a contender that polls ten times a
/// second. It is also longer than the longest pause of this library's spin locks and of Redisson's, 128 and 130 ms.
pub(crate) const OPEN: Duration = Duration::from_millis(135);

/// Time from one such opening to the next if no contender is known to poll. One opening in five seconds takes 3 % of the time.
pub(crate) const OPEN_EVERY: Duration = Duration::from_millis(4600);

/// Time from one opening to the next if contenders are known to poll: more than one opening a second.
pub(crate) const OPEN_EVERY_POLLED: Duration = Duration::from_millis(750);

/// Pause before the first poll after a refusal that follows an opening. The pause doubles with each refusal.
const FIRST_POLL: Duration = Duration::from_millis(5);

/// Longest such pause.
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// Time in which a process does not stand back after it stood back in vain. It doubles each time, up to [`LONGEST`].
const FIRST_PAUSE: Duration = Duration::from_millis(10);

/// Shortest time that others have to take a lock that was released for them. A JVM needs a while to wake a thread.
pub(crate) const STAND_BACK_AT_LEAST: Duration = Duration::from_millis(1);

/// Shortest such time if another process took its last turn. That process polls if it still wants the lock, but its thread may have to wait
/// for a processor.
const STAND_BACK_FOR_WHO_CAME: Duration = Duration::from_millis(2);

/// Longest such time. The lock is idle for this long if no other process takes it.
const STAND_BACK_AT_MOST: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests;
