//! Tests of `turns`.

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

/// Invariant: the head polls after the processes for which the lock was released.
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
            assert_eq!(turns.share_of(6 * MS), 6 * MS / (others + 1), "as do others who do not listen yet");
            given_back(&mut turns, 0, now);
            assert!(turns.share_of(6 * MS) > 6 * MS, "but not for long");
        }
    }
}

/// Several processes have their turns one after the other. A poll in the middle of a turn would take the next process' turn.
#[test]
fn head_backoff_matches_turns_of_others() {
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
fn possible_other_receiver_resets_budget() {
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
fn transfer_time_reduces_own_share() {
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
fn turn_lasts_no_longer_than_others() {
    let (mut turns, start) = (Turns::default(), Instant::now());
    turns.give_back(true, start);
    turns.found(heard(Some(2)), true, Some(true), start + MS / 10);
    assert!(turns.share_of(10 * MS) > 4 * MS, "no turn of another process is known");
    assert!(matches!(turns.hear(start + MS), Message::Free));
    assert_eq!(turns.share_of(10 * MS), 8 * MS / 10, "as long, less one trip");
    given_back(&mut turns, 1, start + 2 * MS);
    assert!(turns.share_of(10 * MS) > 4 * MS, "it has not come again");
}

/// Another hold of this process must not make a turn longer than the others' turns were.
#[test]
fn only_longest_turn_limits_share() {
    let (mut turns, start) = (Turns::default(), Instant::now());
    turns.give_back(true, start);
    turns.found(heard(Some(2)), true, Some(true), start + MS / 10);
    assert!(!turns.is_limit(turns.share_of(10 * MS)), "no turn of another process is known");
    assert!(matches!(turns.hear(start + MS), Message::Free));
    assert!(turns.is_limit(turns.share_of(10 * MS)));
    assert!(!turns.is_limit(turns.share_of(MS)), "the budget is shorter than that turn");
}

#[test]
fn standing_back_is_bounded() {
    let (mut turns, start) = (Turns::default(), Instant::now());
    turns.give_back(true, start);
    let now = start + 10 * STAND_BACK_AT_MOST;
    assert_eq!(turns.found(heard(Some(3)), false, None, now), Then::StandBack(now + STAND_BACK_AT_MOST));
}

#[test]
fn first_message_after_reply_is_own() {
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

/// A process that does not hand the lock over releases it at `now`, beside one listener. Returns true if the process stands back.
fn released_alone(turns: &mut Turns, now: Instant) -> bool {
    let stands_back = turns.may_stand_back(now);
    if stands_back {
        turns.release(now);
        assert!(matches!(turns.found(heard(Some(1)), false, None, now), Then::StandBack(_)));
    }
    stands_back
}

/// A listener that does not want the lock costs a process that does at most one wait in 100 ms.
#[test]
fn vain_stand_backs_become_rare() {
    let (mut turns, start) = (Turns::default(), Instant::now());
    assert!(!turns.may_stand_back(start), "no other process is known");
    assert!(turns.finds(heard(Some(1)), false) && !turns.finds(heard(Some(1)), true));
    turns.finds(heard(Some(1)), false);
    let (mut now, mut stood_back) = (start, 0);
    while now < start + 1000 * MS {
        stood_back += u32::from(released_alone(&mut turns, now));
        turns.granted(now);
        now += MS;
    }
    assert!((10..=15).contains(&stood_back), "{stood_back}");
    assert!(!turns.may_stand_back(now) && !turns.heeds_messages());
    let _own = turns.hear(now);
    turns.refused(now);
    assert!(!turns.may_stand_back(now), "its own message and its own hold show no turn of another process");
    now += LONGEST;
    assert!(released_alone(&mut turns, now) && turns.heeds_messages());
    let _turn = turns.hear(now);
    turns.granted(now);
    assert!(released_alone(&mut turns, now), "a message while it stands back shows one");
    turns.refused(now);
    turns.granted(now);
    assert!(released_alone(&mut turns, now), "as does a refusal");
    turns.granted(now);
    let _late = turns.hear(now);
    assert!(released_alone(&mut turns, now), "and a message that comes just after the grant");
}

/// A writer that has not polled yet keeps no reader out.
#[test]
fn stand_back_ends_in_time() {
    let (mut turns, start) = (Turns::default(), Instant::now());
    turns.release(start);
    turns.found(heard(Some(9)), false, None, start);
    let end = start + STAND_BACK_AT_MOST;
    assert!(matches!(turns.hear(end - MS / 2), Message::NextTurn(until) if until == end));
    assert!(matches!(turns.hear(end), Message::Free));
}

/// Hands the lock over for `time` and releases it every 100 ms. Returns when the lock was left free, and how.
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

/// A contender that polls ten times a second finds the lock free.
#[test]
fn lock_opens_every_five_seconds() {
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
fn lock_opens_every_second_for_pollers() {
    let opened = openings(&mut Turns::default(), Contenders { receivers: Some(1), poll: true }, 10_000 * MS);
    assert!((11..=13).contains(&opened.len()), "{opened:?}");
    assert!(opened.windows(2).all(|pair| pair[1].0 - pair[0].0 <= 1000 * MS), "{opened:?}");
}

/// A process that does not hand the lock over asks no release about pollers, so it learns of its own only.
#[test]
fn lock_opens_for_own_pollers() {
    let (mut turns, start) = (Turns::default(), Instant::now());
    assert!(!turns.opens_for_pollers(start), "the lock was not hot before");
    assert!(!turns.opens_for_pollers(start + OPEN_EVERY_POLLED - MS));
    let now = start + OPEN_EVERY_POLLED;
    assert!(turns.opens_for_pollers(now));
    assert_eq!(turns.give_back(true, now), Some(now + OPEN));
    assert!(!turns.opens_for_pollers(now + OPEN), "the next one comes later");
}

#[test]
fn lock_found_free_skips_opening() {
    let (mut turns, now) = (Turns::default(), Instant::now());
    given_back(&mut turns, 0, now);
    turns.was_free(now);
    assert_eq!(turns.opening(now + OPEN_EVERY), Opening::Not);
    given_back(&mut turns, 0, now);
    assert_eq!(turns.opening(now + OPEN_EVERY), Opening::Published);
}

#[test]
fn lock_found_free_ends_standing_back() {
    let (mut turns, now) = (Turns::default(), Instant::now());
    given_back(&mut turns, 1, now);
    turns.was_free(now);
    assert!(!turns.may_stand_back(now), "no other process took the lock");
    turns.release(now);
    turns.was_free(now);
    assert!(!turns.is_unanswered(), "no head waits for the reply");
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

/// A silent opening has no receivers. The receivers of the release before it still count.
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
