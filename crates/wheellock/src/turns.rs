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
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Contenders that only listen.
    fn heard(receivers: Option<u32>) -> Contenders {
        Contenders { receivers, poll: false }
    }

    /// Releases the lock at `now`. `others` other processes receive that at once; this process has received its own message.
    fn given_back(turns: &mut Turns, others: u32, now: Instant) -> Option<Instant> {
        turns.give_back(true, now);
        assert!(turns.is_unanswered());
        let then = turns.found(heard(Some(others + 1)), true, Some(true), now);
        assert!(!turns.is_unanswered());
        match then {
            Then::StandBack(until) => Some(until),
            Then::Ask => None,
        }
    }

    /// Invariant: the head polls after those for whose sake the lock was released.
    #[test]
    fn each_receiver_has_a_turn() {
        let now = Instant::now();
        for others in 0..=3 {
            let mut turns = Turns::default();
            let until = given_back(&mut turns, others, now);
            assert_eq!(until, (others > 0).then_some(now + STAND_BACK_AT_LEAST));
            let later = now + 9 * MS;
            for _ in 1..others {
                let Message::NextTurn(until) = turns.hear(later) else { panic!("there are {others}") };
                assert_eq!(until, later + STAND_BACK_AT_LEAST);
            }
            assert!(matches!(turns.hear(later), Message::Free), "all {others} have had theirs");
            if others > 0 {
                assert_eq!(turns.share_of(6 * MS), 6 * MS / (others + 1), "all of them share it");
                given_back(&mut turns, 0, now);
                assert_eq!(
                    turns.share_of(6 * MS),
                    6 * MS / (others + 1),
                    "as do others who do not listen yet"
                );
                given_back(&mut turns, 0, now);
                assert!(turns.share_of(6 * MS) > 6 * MS, "but not for long");
            }
        }
    }

    /// Several processes have their turns one after the other: a poll in the middle of a turn would take that of the next.
    #[test]
    fn head_stands_back_as_long_as_others_took() {
        for (others, has_come, at_least) in [(2, true, 5), (2, false, 1), (1, true, 2), (1, false, 1)] {
            let (mut turns, mut now) = (Turns::default(), Instant::now());
            given_back(&mut turns, others, now);
            for _ in 0..if has_come { others } else { 0 } {
                now += 5 * STAND_BACK_AT_LEAST;
                let _turn = turns.hear(now);
            }
            let until = given_back(&mut turns, others, now);
            let expected = Some(now + at_least * STAND_BACK_AT_LEAST);
            assert_eq!(until, expected, "{others} others, come: {has_come}");
        }
    }

    #[test]
    fn budget_doubles_while_no_other_receives() {
        let (mut turns, now) = (Turns::default(), Instant::now());
        for expected in [5, 10, 20, 40, 80, 100, 100] {
            assert_eq!(turns.share_of(5 * MS), expected * MS);
            assert_eq!(given_back(&mut turns, 0, now), None);
        }
        assert_eq!(turns.share_of(300 * MS), 300 * MS, "a longer one stays as it is");
        assert_eq!(turns.share_of(Duration::MAX), Duration::MAX);
    }

    #[test]
    fn another_receiver_or_unknown_count_resets_budget() {
        let now = Instant::now();
        for receivers in [Some(2), None] {
            let mut turns = Turns::default();
            (0..9).for_each(|_| _ = given_back(&mut turns, 0, now));
            turns.give_back(true, now);
            let then = turns.found(heard(receivers), true, Some(true), now);
            assert_eq!(then == Then::Ask, receivers.is_none());
            assert!(turns.share_of(6 * MS) <= 6 * MS, "{receivers:?}");
        }
    }

    #[test]
    fn costs_between_processes_count_as_their_time() {
        let (mut turns, start) = (Turns::default(), Instant::now());
        turns.give_back(true, start);
        turns.found(heard(Some(3)), true, Some(true), start + MS / 2);
        assert_eq!(turns.share_of(12 * MS), (12 * MS - 2 * MS) / 3, "two others, two trips each");
        turns.give_back(true, start);
        turns.found(heard(Some(3)), true, Some(true), start + 100 * MS);
        assert_eq!(turns.share_of(12 * MS), 12 * MS / 4, "not all of it");
        turns.give_back(true, start);
        turns.found(heard(Some(u32::MAX)), false, None, start + 100 * MS);
        assert!(turns.share_of(12 * MS) < MS, "whatever a server says");
    }

    #[test]
    fn turn_lasts_no_longer_than_those_of_others() {
        let (mut turns, start) = (Turns::default(), Instant::now());
        turns.give_back(true, start);
        turns.found(heard(Some(2)), true, Some(true), start + MS / 10);
        assert!(turns.share_of(10 * MS) > 4 * MS, "no turn of another process is known");
        assert!(matches!(turns.hear(start + MS), Message::Free));
        assert_eq!(turns.share_of(10 * MS), 8 * MS / 10, "as long, less one trip");
        given_back(&mut turns, 1, start + 2 * MS);
        assert!(turns.share_of(10 * MS) > 4 * MS, "it has not come again");
    }

    #[test]
    fn standing_back_is_bounded() {
        let (mut turns, start) = (Turns::default(), Instant::now());
        turns.give_back(true, start);
        let now = start + 10 * STAND_BACK_AT_MOST;
        assert_eq!(turns.found(heard(Some(3)), false, None, now), Then::StandBack(now + STAND_BACK_AT_MOST));
    }

    #[test]
    fn first_message_soon_after_reply_is_own() {
        let now = Instant::now();
        for (after, is_own) in [(Duration::ZERO, true), (STAND_BACK_AT_LEAST, false)] {
            let mut turns = Turns::default();
            turns.give_back(true, now);
            assert_eq!(turns.found(heard(Some(1)), true, Some(false), now), Then::Ask, "only this process");
            assert_eq!(matches!(turns.hear(now + after), Message::Own), is_own);
            assert!(matches!(turns.hear(now + after), Message::Free), "the next one is another's");
        }
    }

    #[test]
    fn holder_stands_back_from_no_process() {
        let (mut turns, now) = (Turns::default(), Instant::now());
        given_back(&mut turns, 3, now);
        turns.give_back(true, now);
        turns.end();
        assert!(!turns.is_unanswered() && matches!(turns.hear(now), Message::Free));
        turns.give_back(false, now);
        assert!(!turns.is_unanswered(), "released for another reason");
    }

    /// Hands the lock over for `time` and releases it every 100 ms. Returns when it was left free, and how.
    fn openings(turns: &mut Turns, contenders: Contenders, time: Duration) -> Vec<(Duration, Opening)> {
        let start = Instant::now();
        let (mut now, mut opened) = (start, Vec::new());
        while now < start + time {
            let opening = turns.opening(now);
            let until = turns.give_back(true, now);
            assert_eq!(until.is_some(), opening != Opening::Not);
            if turns.found(contenders, true, Some(true), now) == Then::StandBack(now + OPEN) {
                opened.push((now - start, opening));
                now += OPEN;
            }
            turns.end();
            now += 100 * MS;
        }
        opened
    }

    /// A contender that polls ten times a second finds it.
    #[test]
    fn lock_is_left_free_every_five_seconds() {
        for (receivers, opening) in [(1, Opening::Published), (2, Opening::Silent)] {
            let opened = openings(&mut Turns::default(), heard(Some(receivers)), 15_000 * MS);
            assert_eq!(opened.len(), 3, "{opened:?}");
            let mut before = Duration::ZERO;
            for (at, how) in opened {
                assert!(at - before <= 4900 * MS && how == opening, "{at:?} {how:?}");
                before = at;
            }
        }
    }

    #[test]
    fn lock_is_left_free_every_second_for_pollers() {
        let opened =
            openings(&mut Turns::default(), Contenders { receivers: Some(1), poll: true }, 10_000 * MS);
        assert!((11..=13).contains(&opened.len()), "{opened:?}");
        assert!(opened.windows(2).all(|pair| pair[1].0 - pair[0].0 <= 1000 * MS), "{opened:?}");
    }

    #[test]
    fn lock_found_free_by_callers_is_not_left_free() {
        let (mut turns, now) = (Turns::default(), Instant::now());
        given_back(&mut turns, 0, now);
        turns.was_free();
        assert_eq!(turns.opening(now + OPEN_EVERY), Opening::Not);
        given_back(&mut turns, 0, now);
        assert_eq!(turns.opening(now + OPEN_EVERY), Opening::Published);
    }

    #[test]
    fn messages_do_not_end_an_opening() {
        let (mut turns, start) = (Turns::default(), Instant::now());
        given_back(&mut turns, 1, start);
        let now = start + OPEN_EVERY;
        assert_eq!(turns.give_back(true, now), Some(now + OPEN));
        assert_eq!(turns.found(heard(Some(0)), true, Some(false), now), Then::StandBack(now + OPEN));
        assert!(matches!(turns.hear(now + OPEN / 2), Message::NextTurn(until) if until == now + OPEN));
        assert!(matches!(turns.hear(now + OPEN), Message::Free));
        assert_eq!(turns.refused(now), None, "that was an earlier poll");
        let now = now + OPEN;
        for pause in [5, 10, 20, 40, 80, 100, 100] {
            assert_eq!(turns.refused(now), Some(now + pause * MS), "no message tells of the release");
        }
        assert!(turns.give_up_lock(), "no listener knows that it is free");
        assert!(!turns.give_up_lock() && turns.refused(now).is_none());
    }

    #[test]
    fn release_starts_poll_pauses_anew() {
        let (mut turns, mut now) = (Turns::default(), Instant::now());
        given_back(&mut turns, 0, now);
        for _ in 0..2 {
            now += OPEN_EVERY;
            turns.give_back(true, now);
            assert_eq!(turns.refused(now + OPEN), Some(now + OPEN + FIRST_POLL));
            assert_eq!(turns.refused(now + OPEN), Some(now + OPEN + 2 * FIRST_POLL));
        }
    }

    #[test]
    fn release_for_other_reasons_opens_nothing() {
        let (mut turns, now) = (Turns::default(), Instant::now());
        turns.give_back(false, now);
        assert_eq!(turns.opening(now + OPEN_EVERY), Opening::Not, "callers may have found it free since");
        given_back(&mut turns, 0, now);
        assert_eq!(turns.opening(now + OPEN_EVERY), Opening::Published);
        assert_eq!(turns.give_back(false, now + OPEN_EVERY), None);
    }

    #[test]
    fn given_up_reply_is_not_awaited() {
        let (mut turns, now) = (Turns::default(), Instant::now());
        turns.give_back(true, now);
        turns.give_up();
        assert!(!turns.is_unanswered());
        assert_eq!(turns.found(heard(Some(3)), true, Some(true), now), Then::Ask, "the reply came too late");
    }

    #[test]
    fn opening_lasts_from_its_reply() {
        for others in [0, 1] {
            let (mut turns, start) = (Turns::default(), Instant::now());
            given_back(&mut turns, others, start);
            let (now, replied) = (start + OPEN_EVERY, start + OPEN_EVERY + 7 * MS);
            turns.give_back(true, now);
            let then = turns.found(heard(Some(others + 1)), true, Some(true), replied);
            assert_eq!(then, Then::StandBack(replied + OPEN));
            assert!(matches!(turns.hear(now + OPEN), Message::NextTurn(until) if until == replied + OPEN));
        }
    }

    #[test]
    fn opening_ends_turns_before_it() {
        let (mut turns, now) = (Turns::default(), Instant::now());
        given_back(&mut turns, 3, now);
        let now = now + OPEN_EVERY;
        turns.give_back(true, now);
        turns.found(heard(None), true, None, now);
        assert!(matches!(turns.hear(now + OPEN), Message::Free), "no turn is left");
    }

    /// A silent opening has no receivers: those of the release before it still count.
    #[test]
    fn only_published_opening_counts_receivers() {
        for (others, opening, counted) in [(0, Opening::Published, 2), (1, Opening::Silent, 1)] {
            let (mut turns, now) = (Turns::default(), Instant::now());
            given_back(&mut turns, others, now);
            let now = now + OPEN_EVERY;
            assert_eq!(turns.opening(now), opening);
            turns.give_back(true, now);
            turns.found(heard(Some(3)), true, Some(true), now);
            assert_eq!(turns.share_of(6 * MS), 6 * MS / (counted + 1), "{opening:?}");
        }
    }

    #[test]
    fn unwanted_lock_is_hot_no_longer() {
        let (mut turns, now) = (Turns::default(), Instant::now());
        given_back(&mut turns, 0, now);
        assert!(!turns.give_up_lock(), "the release was published");
        assert_eq!(turns.opening(now + OPEN_EVERY), Opening::Not);
    }

    #[test]
    fn releases_with_receivers_double_no_budget() {
        let (mut turns, now) = (Turns::default(), Instant::now());
        for others in [1, 1, 1, 1, 0, 0] {
            given_back(&mut turns, others, now);
        }
        assert_eq!(turns.share_of(5 * MS), 4 * 5 * MS, "two releases in a row had no other receiver");
    }
}
