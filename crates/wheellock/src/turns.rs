//! Turns between processes: one that has had a lock for its time gives it back, and stands back until the others that want it have
//! had theirs. Pure: it is told who heard of the release, and what is heard after it.

use std::time::{Duration, Instant};

/// What one process knows of the others' turns at one lock.
#[derive(Default)]
pub(crate) struct Turns {
    /// This process gave the lock back because its time was over, and does not know yet whether others heard of it.
    gave_back: Option<Unanswered>,
    /// How many of its last releases in a row no other process had heard of.
    unheard: u32,
    /// How long the last answer took.
    round_trip: Duration,
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
    /// The time of this process was over, and it goes on with the lock until it knows who else listens: for which hold it has asked that,
    /// and whether it listens itself.
    asked: Option<(u32, bool)>,
    /// How many times in a row it has gone on.
    went_on: u32,
    /// Others listen, or that is not known: the next release is a real one.
    is_wanted: bool,
    /// Until when a message is taken for that of this process' own release, which comes after its answer since Redis 7.2.
    own_until: Option<Instant>,
}

/// The lock was given back, and the answer has not come.
struct Unanswered {
    since: Instant,
    /// Nobody else has wanted the lock for a while, so this process asks for it without waiting for the answer.
    goes_ahead: bool,
    /// It has the lock again, or does not want it any more.
    is_over: bool,
    /// The message of the release has come.
    heard: bool,
}

/// What the head does when it is known who heard that the lock was given back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Then {
    /// It asks, if it has not done so.
    Ask,
    /// It stands back until then.
    StandBack(Instant),
    /// This process has the lock again.
    Nothing,
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
        let goes_ahead = self.unheard >= AHEAD_AFTER;
        let unanswered = Unanswered { since: now, goes_ahead, is_over: false, heard: false };
        self.gave_back = out_of_time.then_some(unanswered);
        (self.asked, self.went_on, self.is_wanted) = (None, 0, false);
    }

    /// Whether this process, whose time is over, may go on with the lock while it asks who else listens, because no other has wanted the
    /// lock for so long. One that has come since is counted by the answer, and has its turn at the next release. Now and then a release
    /// is a real one all the same, for those who cannot be counted: Redisson can be told to listen at a replica.
    pub(crate) fn may_go_on(&self) -> bool {
        self.unheard >= AHEAD_AFTER
            && self.went_on < AHEAD_AFTER
            && self.asked.is_none()
            && self.gave_back.is_none()
    }

    /// It does so with this hold, and `listens` itself or not.
    pub(crate) fn go_on(&mut self, hold: u32, listens: bool) {
        self.asked = Some((hold, listens));
        self.went_on += 1;
    }

    /// So many listened, this process among them if it did so when it asked; `None` if that is not known, or the hold was lost.
    pub(crate) fn counted(&mut self, hold: u32, listeners: Option<u32>) {
        let Some((_, listens)) = self.asked.take_if(|(asked, _)| *asked == hold) else { return };
        if listeners.map(|listeners| listeners.saturating_sub(listens.into())) != Some(0) {
            (self.unheard, self.is_wanted) = (0, true);
        }
    }

    /// Whether the lock is to be given back at the next release, though the time of this process may not be over.
    pub(crate) fn is_wanted(&self) -> bool {
        self.is_wanted
    }

    /// Whether it is not known yet whether others heard that the lock was given back.
    pub(crate) fn is_unanswered(&self) -> bool {
        self.gave_back.is_some()
    }

    /// Whether the head asks before that is known, because no other process has wanted the lock for so long. One that has come since is
    /// counted by the answer, and has its turn after the next release.
    pub(crate) fn goes_ahead(&self) -> bool {
        self.gave_back.as_ref().is_some_and(|unanswered| unanswered.goes_ahead)
    }

    /// The head does not wait any longer for whether others heard of it.
    pub(crate) fn give_up(&mut self) {
        self.gave_back = self.gave_back.take().filter(|unanswered| unanswered.goes_ahead);
    }

    /// This process has the lock, or does not want it any more: nobody stands back.
    pub(crate) fn end(&mut self) {
        self.give_up();
        if let Some(unanswered) = &mut self.gave_back {
            unanswered.is_over = true;
        }
        self.left = 0;
    }

    /// So many heard that the lock was given back, this process among them if it `listens`; `has_come` tells whether it has heard its
    /// own message, if that is to come.
    pub(crate) fn others_heard(
        &mut self,
        heard: u32,
        listens: bool,
        has_come: Option<bool>,
        now: Instant,
    ) -> Then {
        let Some(unanswered) = self.gave_back.take() else { return Then::Nothing };
        let others = heard.saturating_sub(listens.into());
        self.heard_before = std::mem::replace(&mut self.others, others);
        self.unheard = if others == 0 { self.unheard.saturating_add(1) } else { 0 };
        self.round_trip = now.saturating_duration_since(unanswered.since);
        if let Some(has_come) = has_come {
            let has_come = has_come || unanswered.heard;
            self.own_until = (!has_come).then(|| now + self.round_trip.max(STAND_BACK_AT_LEAST));
        }
        if unanswered.is_over {
            return Then::Nothing;
        }
        if others == 0 || unanswered.goes_ahead {
            return Then::Ask;
        }
        self.left = others - 1;
        // Of several others, who looks in the middle of one's turn may find the lock free just when the next one is about to ask. Where
        // nobody has come the last time, nobody has to be waited for long.
        self.began = Some(now);
        let took = self.took.take();
        let at_least = if took.is_some() { STAND_BACK_FOR_WHO_CAME } else { STAND_BACK_AT_LEAST };
        let turn = took.filter(|_| others > 1).unwrap_or_default();
        self.stand_back = (turn + 2 * self.round_trip).clamp(at_least, STAND_BACK_AT_MOST);
        Then::StandBack(now + self.stand_back)
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
        if let Some(unanswered) = &mut self.gave_back
            && unanswered.goes_ahead
        {
            return !std::mem::replace(&mut unanswered.heard, true);
        }
        self.own_until.take().is_some_and(|until| now < until)
    }

    /// For how much of its time a process may hand a lock over: those who want it share the time, so that all of them together keep
    /// nobody waiting for longer than it, the time included in which the lock goes from one to the next. One who did not hear of the
    /// last release may have been about to listen: Redisson does so anew for each turn.
    pub(crate) fn share_of(&self, budget: Duration) -> Duration {
        let others = self.others.max(self.heard_before);
        // A trip for each one's release and one for the next one's question. On a busy machine that would be all there is.
        let between = self.round_trip.saturating_mul(others.saturating_mul(2)).min(budget / 4);
        (budget - between) / others.saturating_add(1)
    }
}

/// After how many releases in a row of which no other process heard this one asks again without waiting for the answer. A process of
/// Redisson's that takes turns listens anew for each, and may miss two in a row: it would wait for one turn more. With sixteen
/// that was no longer to be seen among 3000 turns, and they are 80 ms of a process that has no others beside it.
pub(crate) const AHEAD_AFTER: u32 = 16;

/// How long others have at least to take a lock that this process gave back for their sake: a JVM needs a while to wake a thread.
pub(crate) const STAND_BACK_AT_LEAST: Duration = Duration::from_millis(1);

/// The same if one of them took it the last time: if it still wants the lock it comes, though its thread may have to wait for a processor.
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
        let then = turns.others_heard(others + 1, true, Some(true), now);
        assert!(!turns.is_unanswered());
        match then {
            Then::StandBack(until) => Some(until),
            Then::Ask => None,
            Then::Nothing => panic!("it wants the lock"),
        }
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

    /// Where nobody else has wanted the lock for a while there is no answer to wait for; but a process that has come has a turn the next time.
    #[test]
    fn who_was_alone_asks_at_once_and_stands_back_after_it_was_not() {
        let (mut turns, now) = (Turns::default(), Instant::now());
        for _ in 0..AHEAD_AFTER {
            turns.give_back(true, now);
            assert!(!turns.goes_ahead(), "who heard of it is not known");
            assert_eq!(turns.others_heard(1, true, Some(true), now), Then::Ask);
        }
        // Its question goes out behind the release. Another one heard of that.
        turns.give_back(true, now);
        assert!(turns.goes_ahead());
        assert_eq!(turns.others_heard(2, true, Some(true), now), Then::Ask, "should it have come too early");
        turns.give_back(true, now);
        assert!(!turns.goes_ahead());
        assert!(matches!(turns.others_heard(2, true, Some(true), now), Then::StandBack(_)));
    }

    /// Whoever has come since the lock was really given back is found by asking, and whoever cannot be counted is told now and then.
    #[test]
    fn who_was_alone_goes_on_with_the_lock_until_others_are_counted() {
        for (listens, others) in [(true, 0), (true, 2), (false, 0), (false, 1)] {
            let (mut turns, now) = (Turns::default(), Instant::now());
            for _ in 0..AHEAD_AFTER {
                assert!(!turns.may_go_on(), "others may have come and not listened yet");
                given_back(&mut turns, 0, now);
            }
            for _ in 0..AHEAD_AFTER {
                assert!(turns.may_go_on() && !turns.is_wanted());
                turns.go_on(7, listens);
                assert!(!turns.may_go_on(), "who listens is not known");
                turns.counted(8, Some(0));
                assert!(!turns.may_go_on(), "that was another lock's answer");
                turns.counted(7, Some(listens.into()));
            }
            assert!(!turns.may_go_on() && !turns.is_wanted(), "it is told that the lock is free");
            turns.give_back(true, now);
            assert!(turns.goes_ahead());
            turns.others_heard(u32::from(listens), listens, Some(true), now);
            assert!(turns.may_go_on());
            turns.go_on(7, listens);
            turns.counted(7, Some(others + u32::from(listens)));
            assert_eq!((turns.may_go_on(), turns.is_wanted()), (others == 0, others > 0));
            if others > 0 {
                assert!(given_back(&mut turns, others, now).is_some(), "it stands back");
                assert!(!turns.is_wanted());
            }
        }
    }

    #[test]
    fn who_does_not_know_who_listens_gives_the_lock_back() {
        for answers in [true, false] {
            let (mut turns, now) = (Turns::default(), Instant::now());
            (0..AHEAD_AFTER).for_each(|_| _ = given_back(&mut turns, 0, now));
            turns.go_on(7, true);
            if answers {
                turns.counted(7, None);
                assert!(turns.is_wanted(), "at once");
            }
            assert!(!turns.may_go_on(), "or when its time is over once more");
            given_back(&mut turns, 0, now);
            turns.counted(7, Some(5));
            assert_eq!((turns.may_go_on(), turns.is_wanted()), (!answers, false), "too late");
        }
    }

    /// On two threads, the lock may be had again before it is known who heard that it was given back.
    #[test]
    fn an_answer_counts_though_the_lock_was_had_again_before() {
        for heard in [1, 2] {
            let (mut turns, now) = (Turns::default(), Instant::now());
            (0..AHEAD_AFTER).for_each(|_| _ = given_back(&mut turns, 0, now));
            turns.give_back(true, now);
            turns.give_up();
            turns.end();
            assert!(turns.is_own(now), "the message comes, too");
            assert_eq!(turns.others_heard(heard, true, Some(false), now), Then::Nothing);
            assert!(!turns.is_own(now), "it came only once");
            turns.give_back(true, now);
            assert_eq!(turns.goes_ahead(), heard == 1);
        }
    }

    #[test]
    fn what_a_turn_costs_between_processes_is_taken_from_their_time() {
        let (mut turns, start) = (Turns::default(), Instant::now());
        let (budget, ms) = (Duration::from_millis(12), Duration::from_millis(1));
        turns.give_back(true, start);
        turns.others_heard(3, true, Some(true), start + ms / 2);
        assert_eq!(turns.share_of(budget), (budget - 2 * ms) / 3, "two others, two trips each");
        turns.give_back(true, start);
        turns.others_heard(3, true, Some(true), start + 100 * ms);
        assert_eq!(turns.share_of(budget), budget / 4, "not all of it");
        turns.give_back(true, start);
        turns.others_heard(u32::MAX, false, None, start + 100 * ms);
        assert!(turns.share_of(budget) < ms, "whatever a server says");
    }

    #[test]
    fn nobody_is_waited_for_longer_than_is_bearable() {
        let (mut turns, start) = (Turns::default(), Instant::now());
        turns.give_back(true, start);
        let now = start + 10 * STAND_BACK_AT_MOST;
        assert_eq!(turns.others_heard(3, false, None, now), Then::StandBack(now + STAND_BACK_AT_MOST));
    }

    #[test]
    fn one_message_is_its_own_if_it_comes_soon() {
        let now = Instant::now();
        for (after, is_own) in [(Duration::ZERO, true), (STAND_BACK_AT_LEAST, false)] {
            let mut turns = Turns::default();
            turns.give_back(true, now);
            assert_eq!(turns.others_heard(1, true, Some(false), now), Then::Ask, "only this process");
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
