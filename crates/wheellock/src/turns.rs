//! Turns between processes: one that has had a lock for its time gives it back, and stands back until the others that want it have
//! had theirs. Pure: it is told who heard of the release, and what is heard after it.

use std::time::{Duration, Instant};

/// What one process knows of the others' turns at one lock.
#[derive(Default)]
pub(crate) struct Turns {
    /// This process gave the lock back because its time was over, and does not know yet whether others heard of it.
    gave_back: Option<Instant>,
    /// How many others heard of it the time before,
    heard_before: u32,
    /// how many did the last time,
    others: u32,
    /// how many of them are still to have a turn before this process asks at once,
    left: u32,
    /// and how long each may take for it before this process looks.
    stand_back: Duration,
    /// Since when the turn of one of the others lasts, for all that is known,
    began: Option<Instant>,
    /// and how long the longest one took since this process gave the lock back; `None` if nobody has had one.
    took: Option<Duration>,
    /// Until when a message is taken for that of this process' own release, which comes after its answer since Redis 7.2.
    own_until: Option<Instant>,
}

/// What a message says.
pub(crate) enum Message {
    /// This process' own release.
    Own,
    /// One of the others has had its turn, and the next one has until then.
    NextTurn(Instant),
    /// The lock may be free for this process.
    Free,
}

impl Turns {
    /// The lock is given back; `out_of_time` if only to let others have it.
    pub(crate) fn give_back(&mut self, out_of_time: bool, now: Instant) {
        self.gave_back = out_of_time.then_some(now);
    }

    /// Whether it is not known yet whether others heard that the lock was given back.
    pub(crate) fn is_unanswered(&self) -> bool {
        self.gave_back.is_some()
    }

    /// Nobody waits any more for whether others heard of it.
    pub(crate) fn give_up(&mut self) {
        self.gave_back = None;
    }

    /// This process has the lock, or does not want it any more: nobody stands back.
    pub(crate) fn end(&mut self) {
        self.gave_back = None;
        self.left = 0;
    }

    /// So many heard that the lock was given back, this process among them if it `listens`; `has_come` tells whether it has heard its
    /// own message, if that is to come. Until when this process stands back, if there are others.
    pub(crate) fn others_heard(
        &mut self,
        heard: u32,
        listens: bool,
        has_come: Option<bool>,
        now: Instant,
    ) -> Option<Instant> {
        let since = self.gave_back.take()?;
        let others = heard.saturating_sub(listens.into());
        self.heard_before = std::mem::replace(&mut self.others, others);
        self.left = self.others.saturating_sub(1);
        let round_trip = now.saturating_duration_since(since);
        if let Some(has_come) = has_come {
            self.own_until = (!has_come).then(|| now + round_trip.max(STAND_BACK_AT_LEAST));
        }
        if self.others == 0 {
            return None;
        }
        // Of several others, who looks in the middle of one's turn may find the lock free just when the next one is about to ask. Where
        // nobody has come the last time, nobody has to be waited for long.
        self.began = Some(now);
        let took = self.took.take();
        let at_least = if took.is_some() { STAND_BACK_FOR_WHO_CAME } else { STAND_BACK_AT_LEAST };
        let turn = took.filter(|_| self.others > 1).unwrap_or_default();
        self.stand_back = (turn + 2 * round_trip).clamp(at_least, STAND_BACK_AT_MOST);
        Some(now + self.stand_back)
    }

    /// A message has come.
    pub(crate) fn hear(&mut self, now: Instant) -> Message {
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

    /// Whether a message that has come is that of this process' own release. There is only one.
    pub(crate) fn is_own(&mut self, now: Instant) -> bool {
        self.own_until.take().is_some_and(|until| now < until)
    }

    /// For how much of its time a process may hand a lock over: those who want it share the time, so that all of them together keep
    /// nobody waiting for longer than it. One who did not hear of the last release may have been about to listen: Redisson does so
    /// anew for each turn.
    pub(crate) fn share_of(&self, budget: Duration) -> Duration {
        budget / (self.others.max(self.heard_before) + 1)
    }
}

/// How long others have at least to take a lock that this process gave back for their sake: a JVM needs a while to wake a thread.
pub(crate) const STAND_BACK_AT_LEAST: Duration = Duration::from_millis(1);

/// The same if one of them took it the last time: whoever wants it still comes, though its thread may have to wait for a processor.
const STAND_BACK_FOR_WHO_CAME: Duration = Duration::from_millis(2);

/// And how long at most: so much is lost if none of them comes.
const STAND_BACK_AT_MOST: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    /// The lock was given back at `now`, and so many others heard of it at once; this process has heard its own message.
    fn given_back(turns: &mut Turns, others: u32, now: Instant) -> Option<Instant> {
        turns.give_back(true, now);
        assert!(turns.is_unanswered());
        let until = turns.others_heard(others + 1, true, Some(true), now);
        assert!(!turns.is_unanswered());
        until
    }

    /// Invariant: what is given back for the sake of others is asked for after them.
    #[test]
    fn each_of_the_others_that_heard_has_a_turn() {
        let now = Instant::now();
        for others in 0..=3 {
            let mut turns = Turns::default();
            let until = given_back(&mut turns, others, now);
            assert_eq!(until, (others > 0).then_some(now + STAND_BACK_AT_LEAST), "nobody is waited for long");
            for _ in 1..others {
                let Message::NextTurn(until) = turns.hear(now) else { panic!("there are {others}") };
                assert_eq!(until, now + STAND_BACK_AT_LEAST);
            }
            assert!(matches!(turns.hear(now), Message::Free), "all {others} have had theirs");
            let budget = Duration::from_millis(6);
            assert_eq!(turns.share_of(budget), budget / (others + 1), "all of them share it");
            given_back(&mut turns, 0, now);
            assert_eq!(turns.share_of(budget), budget / (others + 1), "those who do not listen yet, too");
            given_back(&mut turns, 0, now);
            assert_eq!(turns.share_of(budget), budget, "but not for long");
        }
    }

    /// Several processes have their turns one after the other: one that looks in the middle of another's would take that of the next.
    #[test]
    fn who_stands_back_does_so_for_as_long_as_the_others_took_the_last_time() {
        for (others, has_come, at_least) in [(2, true, 5), (2, false, 1), (1, true, 2), (1, false, 1)] {
            let (mut turns, mut now) = (Turns::default(), Instant::now());
            given_back(&mut turns, others, now);
            for _ in 0..if has_come { others } else { 0 } {
                now += 5 * STAND_BACK_AT_LEAST;
                let _turn = turns.hear(now);
            }
            let until = given_back(&mut turns, others, now);
            assert_eq!(
                until,
                Some(now + at_least * STAND_BACK_AT_LEAST),
                "{others} others, come: {has_come}"
            );
        }
    }

    #[test]
    fn nobody_is_waited_for_longer_than_is_bearable() {
        let (mut turns, start) = (Turns::default(), Instant::now());
        turns.give_back(true, start);
        let now = start + 10 * STAND_BACK_AT_MOST;
        assert_eq!(turns.others_heard(3, false, None, now), Some(now + STAND_BACK_AT_MOST));
    }

    #[test]
    fn one_message_is_its_own_if_it_comes_soon() {
        let now = Instant::now();
        for (after, is_own) in [(Duration::ZERO, true), (STAND_BACK_AT_LEAST, false)] {
            let mut turns = Turns::default();
            turns.give_back(true, now);
            assert_eq!(turns.others_heard(1, true, Some(false), now), None, "only this process");
            assert_eq!(matches!(turns.hear(now + after), Message::Own), is_own);
            assert!(matches!(turns.hear(now + after), Message::Free), "the next one is another's");
        }
    }

    #[test]
    fn who_has_the_lock_stands_back_from_nobody() {
        let (mut turns, now) = (Turns::default(), Instant::now());
        given_back(&mut turns, 3, now);
        turns.give_back(true, now);
        turns.end();
        assert!(!turns.is_unanswered() && matches!(turns.hear(now), Message::Free));
        turns.give_back(false, now);
        assert!(!turns.is_unanswered(), "given back for another reason");
    }
}
