//! Turns between processes at one lock: for how long this process hands the lock over, and when its head polls again after a release
//! for the others' sake. Pure: instants and counts of receivers in, decisions out.

use std::time::{Duration, Instant};

/// One process' knowledge of the other processes' turns at one lock.
#[derive(Default)]
pub(crate) struct Turns {
    /// When this process released the lock for the others' sake; `None` once the reply has come.
    released: Option<Instant>,
    /// Number of such releases in a row that no other process received.
    alone: u32,
    /// How long the last reply took.
    round_trip: Duration,
    /// Number of other processes that received the release before the last one.
    others_before: u32,
    /// Number of other processes that received the last release.
    others: u32,
    /// Turns of others that are still to come before the head polls.
    left: u32,
    /// Time that each of these turns may take before the head polls anyway.
    stand_back: Duration,
    /// When the present turn of another process began, as far as messages show.
    began: Option<Instant>,
    /// Longest turn of another process since the last release; `None` if no other process had a turn.
    took: Option<Duration>,
    /// Until when the next message is that of this process' own release. Since Redis 7.2 it comes after the reply.
    own_until: Option<Instant>,
    /// Since when this process has had the lock without leaving it free for a while; `None` if callers found it free.
    hot_since: Option<Instant>,
    /// Contenders poll for the lock, as far as the last release showed.
    poll: bool,
    /// Until when the lock is left free, and whether that was published.
    open: Option<(Instant, Opening)>,
    /// Refused polls since then.
    refusals: u32,
}

/// How a process leaves a lock that it releases for the others' sake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Opening {
    /// Free for as long as the receivers of the message need.
    Not,
    /// Free for as long as contenders need that poll.
    Published,
    /// The same without a message: other listeners, who have their turns in any case, would take it at once.
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
    /// The same, with `waited_for` more that listen on this process' own connection.
    pub(crate) fn and_beside(self, waited_for: u32) -> Self {
        Self { receivers: self.receivers.map(|receivers| receivers.saturating_add(waited_for)), ..self }
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
    /// Another process has had its turn, and the next one has until this instant.
    NextTurn(Instant),
    /// The lock may be free for this process.
    Free,
}

impl Turns {
    /// Notes a release; `out_of_time` if it is for the others' sake. Returns until when the lock is left free for contenders that poll, if
    /// it is.
    pub(crate) fn give_back(&mut self, out_of_time: bool, now: Instant) -> Option<Instant> {
        self.released = out_of_time.then_some(now);
        let opening = self.opening(now);
        self.refusals = 0;
        self.open = (out_of_time && opening != Opening::Not).then_some((now + OPEN, opening));
        if out_of_time && (self.hot_since.is_none() || self.open.is_some()) {
            self.hot_since = Some(now);
        }
        self.open.map(|(until, _)| until)
    }

    /// Returns how a release for the others' sake leaves the lock.
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

    /// The head was refused. Returns when it polls again, if the lock was left free for contenders: they may release it without a message.
    pub(crate) fn refused(&mut self, now: Instant) -> Option<Instant> {
        // An answer to an earlier poll does not end the opening.
        self.open.filter(|(until, _)| now >= *until)?;
        let pause = FIRST_POLL.saturating_mul(1 << self.refusals.min(16)).min(LONGEST_PAUSE);
        self.refusals = self.refusals.saturating_add(1);
        Some(now + pause)
    }

    /// Callers found the lock free.
    pub(crate) fn was_free(&mut self) {
        self.hot_since = None;
    }

    /// Returns true while the receivers of the release are not known.
    pub(crate) fn is_unanswered(&self) -> bool {
        self.released.is_some()
    }

    /// The head waits no longer for the receivers of the release.
    pub(crate) fn give_up(&mut self) {
        self.released = None;
    }

    /// This process has the lock.
    pub(crate) fn end(&mut self) {
        self.released = None;
        self.open = None;
        self.left = 0;
    }

    /// This process does not want the lock any more. Returns true if it has left it free without a message: then other listeners do not
    /// know that.
    pub(crate) fn give_up_lock(&mut self) -> bool {
        let is_untold = matches!(self.open, Some((_, Opening::Silent)));
        self.end();
        self.hot_since = None;
        is_untold
    }

    /// Enters the contenders that a release found. This process is among the receivers if it `listens`; `has_come` tells whether its own
    /// message has come, if that is to come.
    pub(crate) fn found(
        &mut self,
        Contenders { receivers, poll }: Contenders,
        listens: bool,
        has_come: Option<bool>,
        now: Instant,
    ) -> Then {
        self.poll = poll;
        let Some(released) = self.released.take() else { return Then::Ask };
        self.round_trip = now.saturating_duration_since(released);
        if let Some((until, opening)) = &mut self.open {
            *until = now + OPEN;
            self.left = 0;
            if *opening == Opening::Silent {
                return Then::StandBack(*until);
            }
        }
        let others = receivers.unwrap_or_default().saturating_sub(listens.into());
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
        // With several others, a poll in the middle of a turn may find the lock free just before the next process asks. If no process
        // took its last turn, wait only briefly.
        self.began = Some(now);
        let took = self.took.take();
        let at_least = if took.is_some() { STAND_BACK_FOR_WHO_CAME } else { STAND_BACK_AT_LEAST };
        let turn = took.filter(|_| others > 1).unwrap_or_default();
        self.stand_back = (turn + 2 * self.round_trip).clamp(at_least, STAND_BACK_AT_MOST);
        Then::StandBack(now + self.stand_back)
    }

    /// Enters a message.
    pub(crate) fn hear(&mut self, now: Instant) -> Message {
        if let Some((until, _)) = self.open.filter(|(until, _)| now < *until) {
            return Message::NextTurn(until);
        }
        if self.is_own(now) {
            return Message::Own;
        }
        if let Some(began) = self.began.replace(now) {
            self.took = self.took.max(Some(now.saturating_duration_since(began)));
        }
        let Some(left) = self.left.checked_sub(1) else { return Message::Free };
        self.left = left;
        Message::NextTurn(now + self.stand_back)
    }

    /// Returns true if a message that has come is that of this process' own release. There is only one.
    pub(crate) fn is_own(&mut self, now: Instant) -> bool {
        self.own_until.take().is_some_and(|until| now < until)
    }

    /// Returns for how much of `budget` this process may hand the lock over.
    ///
    /// The processes that want the lock share the budget, so that all of them together keep no process waiting for longer than it, the
    /// time included in which the lock goes from one to the next. A process that did not receive the last release may have been about to
    /// listen: Redisson does so anew for each turn. No process has the lock for longer than the others' turns took. While releases report no other receiver the budget doubles, up to [`LONGEST`].
    pub(crate) fn share_of(&self, budget: Duration) -> Duration {
        let others = self.others.max(self.others_before);
        if others == 0 {
            let doubled = budget.saturating_mul(1 << self.alone.min(16));
            return budget.max(doubled.min(LONGEST));
        }
        // One trip for the release of each process, and one for the poll of the next. On a busy machine that would be all there is.
        let between = self.round_trip.saturating_mul(others.saturating_mul(2)).min(budget / 4);
        let share = (budget - between) / others.saturating_add(1);
        // A process with one task gives the lock back after one hold. Two trips are in what its turn took. Only one of them is left out, so
        // that processes which would hand over for longer do not shorten each other's turns.
        self.took.map_or(share, |took| share.min(took.saturating_sub(self.round_trip)))
    }
}

/// Longest time for which a process without others hands a lock over. A listener that comes has its first turn within it.
pub(crate) const LONGEST: Duration = Duration::from_millis(100);

/// Time for which a lock is left free for contenders that poll. Longer than the pauses of one that polls ten times a second, and than the
/// longest of this library's spin locks and of Redisson's, 128 and 130 ms.
pub(crate) const OPEN: Duration = Duration::from_millis(135);

/// Time from one such opening to the next if no contender is known to poll: one of them in five seconds, for 3 % of the time.
pub(crate) const OPEN_EVERY: Duration = Duration::from_millis(4600);

/// The same if contenders are known to poll: more than one a second.
pub(crate) const OPEN_EVERY_POLLED: Duration = Duration::from_millis(750);

/// Pause before the first poll after a refusal behind an opening; it doubles with each.
const FIRST_POLL: Duration = Duration::from_millis(5);

/// Longest such pause.
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// Shortest time that others have to take a lock which was released for their sake: a JVM needs a while to wake a thread.
pub(crate) const STAND_BACK_AT_LEAST: Duration = Duration::from_millis(1);

/// The same if another process took its last turn: it comes if it still wants the lock, though its thread may have to wait for a
/// processor.
const STAND_BACK_FOR_WHO_CAME: Duration = Duration::from_millis(2);

/// Longest such time: the cost if no other process comes.
const STAND_BACK_AT_MOST: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests;
