//! Tests of `wait_queue`.

#[cfg(feature = "testing")]
mod on_channel;

use super::*;
use crate::base::clock::BootInstant;
use crate::wait::turns::{LONGEST, OPEN, OPEN_EVERY, Opening, STAND_BACK_AT_LEAST};

fn found(receivers: Option<u32>) -> Contenders {
    Contenders { receivers, poll: false }
}

/// Ends a wait with the lock, which has no other holder.
fn alone(lease: Duration) -> Ending {
    Ending::Granted { lease, room: None }
}

/// Ends a wait with a share of the lock. There is no room for another holder.
fn full(lease: Duration) -> Ending {
    Ending::Granted { lease, room: Some(0) }
}

/// Ends a wait with a share of the lock. There is `room` for more holders.
fn open(room: u32) -> Ending {
    Ending::Granted { lease: REPOLL, room: Some(room) }
}

fn ask(waiters: &mut WaitQueue, ticket: u64, now: Instant) -> bool {
    matches!(waiters.turn(ticket, false, now, &mut Context::from_waker(Waker::noop())), Turn::Ask { .. })
}

#[test]
fn shared_grant_lets_all_others_poll() {
    let (mut waiters, now) = (WaitQueue::default(), Instant::now());
    let (a, b, c) = (waiters.join(1), waiters.join(1), waiters.join(1));
    assert!(ask(&mut waiters, a, now) && !ask(&mut waiters, b, now) && !ask(&mut waiters, c, now));
    waiters.on_held(now, Some(REPOLL));
    assert_eq!(waiters.leave(a, open(u32::MAX), now).1.len(), 2, "both are woken");
    assert!(ask(&mut waiters, c, now) && ask(&mut waiters, b, now));
    assert!(!ask(&mut waiters, c, now) && !ask(&mut waiters, b, now), "once");
    assert!(ask(&mut waiters, b, now + REPOLL), "the head asks on when the lease has ended");
}

/// Each reader lets all others in again when it has been granted the lock.
#[test]
fn many_admitted_readers_are_visited_once() {
    const READERS: u64 = 1_000;
    let (mut waiters, now) = (WaitQueue::default(), Instant::now());
    let tickets: Vec<_> = (0..READERS).map(|_| waiters.join(1)).collect();
    assert!(tickets.iter().all(|ticket| ask(&mut waiters, *ticket, now) == waiters.is_head(*ticket)));
    let (mut looks, mut woken) = (0, 0);
    let mut leave = |waiters: &mut WaitQueue, ticket| {
        looks += waiters.asleep().count();
        woken += waiters.leave(ticket, open(u32::MAX), now).1.len();
    };
    leave(&mut waiters, tickets[0]);
    assert!(tickets[1..].iter().all(|ticket| ask(&mut waiters, *ticket, now)));
    // This reader was refused meanwhile and sleeps again. Another reader joins.
    assert!(!ask(&mut waiters, tickets[500], now) && waiters.asleep().count() == 500);
    let late = waiters.join(1);
    assert!(!ask(&mut waiters, late, now));
    tickets[1..].iter().for_each(|ticket| leave(&mut waiters, *ticket));
    assert!(ask(&mut waiters, late, now), "it was let in, too");
    assert_eq!(woken as u64, READERS + 1);
    assert!(looks as u64 <= 2 * READERS, "{looks} looks at {READERS} waiters");
}

/// Two callers poll from outside the queue. The first gets its reply, subscribes and polls once more. Then the second's reply arrives.
#[test]
fn leaving_while_polling_makes_head_poll() {
    let (mut waiters, now) = (WaitQueue::default(), Instant::now());
    let first = waiters.join_first(1);
    assert!(ask(&mut waiters, first, now));
    let second = waiters.join_first(1);
    waiters.on_held(now, None);
    assert!(!ask(&mut waiters, second, now), "it was answered");
    waiters.leave(first, Ending::InVain, now);
    assert!(ask(&mut waiters, second, now), "what the first asked is not known");
    // With this reply the next head has no reason to poll.
    waiters.on_held(now, None);
    waiters.was_answered(second);
    let third = waiters.join_first(1);
    waiters.leave(second, Ending::InVain, now);
    assert!(!ask(&mut waiters, third, now));
}

/// A3: tasks that retry at once never leave the queue empty. An error still ends with its cause.
#[test]
fn next_waiter_starts_fresh_after_failure() {
    let (mut waiters, start) = (WaitQueue::default(), Instant::now());
    let failed = waiters.join(1);
    assert!(ask(&mut waiters, failed, start));
    let error = Error::InvalidName { length: 0 };
    waiters.fail_all(&error);
    let next = waiters.join(1);
    waiters.leave(failed, Ending::InVain, start + REPOLL);
    let now = start + 2 * REPOLL;
    let Turn::Ask { since, .. } = turn(&mut waiters, next, now) else { panic!("nobody else asks") };
    assert_eq!(since, now, "what was not answered was another one's question");
}

fn turn(waiters: &mut WaitQueue, ticket: u64, now: Instant) -> Turn {
    waiters.turn(ticket, false, now, &mut Context::from_waker(Waker::noop()))
}

/// Creates a queue of two sleeping waiters. The head has polled and was refused.
fn two_asleep(now: Instant) -> (WaitQueue, [u64; 2]) {
    let mut waiters = WaitQueue::default();
    let tickets = [waiters.join(1), waiters.join(1)];
    for ticket in tickets {
        waiters.set_manner(ticket, Manner { takes_over: true, ..Manner::default() });
    }
    assert!(ask(&mut waiters, tickets[0], now) && !ask(&mut waiters, tickets[1], now));
    assert!(!waiters.head_takes_over(), "it has a question under way");
    waiters.on_held(now, Some(REPOLL));
    assert!(!ask(&mut waiters, tickets[0], now));
    (waiters, tickets)
}

fn handed() -> Handed {
    Handed::new(1, BootInstant::now())
}

#[test]
fn head_accepts_hand_over_next_sleeps() {
    let now = Instant::now();
    let (mut waiters, [first, second]) = two_asleep(now);
    assert!(waiters.head_takes_over() && waiters.hand_over(7, handed(), now).is_some(), "it is woken");
    assert!(!waiters.head_takes_over(), "it has not come for the last one");
    assert!(matches!(turn(&mut waiters, first, now), Turn::Take(7)));
    assert_eq!(waiters.unclaimed(first), None);
    waiters.leave(first, Ending::HandedOver, now);
    assert!(waiters.head_takes_over(), "it sleeps, though it was never told that it is the head");
    assert!(waiters.give_back(false, now).is_some(), "now it is told, for nobody else looks");
    assert!(ask(&mut waiters, second, now), "and without a subscription it hears of nothing");
}

/// A waiter that joins while the lock is handed over has nothing to do at its first turn. The queue wakes it when that changes.
#[test]
fn unsubscribed_head_polls_after_hand_over() {
    for waits_for_the_end in [false, true] {
        let now = Instant::now();
        let (mut waiters, [first, second]) = two_asleep(now);
        waiters.hand_over(7, handed(), now);
        assert!(waiters.must_plan_check() && matches!(turn(&mut waiters, first, now), Turn::Take(7)));
        waiters.leave(first, Ending::HandedOver, now);
        assert!(!ask(&mut waiters, second, now), "the lock is handed over, to it perhaps");
        let at = if waits_for_the_end { now + UNCLAIMED } else { now };
        if waits_for_the_end {
            let (unclaimed, head, again) = waiters.look_after(at);
            assert!(unclaimed.is_none() && head.is_some() && !again);
        } else {
            assert!(waiters.give_back(false, now).is_some());
        }
        assert!(ask(&mut waiters, second, at), "it hears of nothing before it asks");
        assert!(!ask(&mut waiters, second, at), "once");
    }
}

/// A hold that is not accepted is taken back. A task may have stopped polling its future without dropping it.
#[test]
fn unclaimed_hand_over_is_revoked() {
    let now = Instant::now();
    let (mut waiters, [first, second]) = two_asleep(now);
    waiters.hand_over(7, handed(), now);
    assert!(waiters.must_plan_check() && !waiters.must_plan_check(), "one looks");
    assert!(matches!(waiters.look_after(now + UNCLAIMED / 2), (None, _, true)), "it may still come");
    assert!(matches!(waiters.look_after(now + UNCLAIMED), (Some(7), _, false)));
    assert!(!waiters.head_takes_over(), "it is not offered another one");
    assert!(matches!(turn(&mut waiters, first, now), Turn::Wait(_)), "it comes too late");
    waiters.leave(first, Ending::InVain, now);
    assert!(waiters.head_takes_over() && waiters.is_head(second));
}

#[test]
fn leaving_waiter_reports_unclaimed_hold() {
    let now = Instant::now();
    let (mut waiters, [first, second]) = two_asleep(now);
    waiters.hand_over(7, handed(), now);
    assert!(waiters.is_handed(first) && !waiters.is_handed(second));
    assert_eq!(waiters.unclaimed(first), Some(7));
    waiters.leave(first, Ending::InVain, now);
    assert!(waiters.head_takes_over());
}

/// Invariant: after a release that lets others have the lock, the head polls after them.
#[test]
fn head_yields_turn_to_other_receivers() {
    let now = Instant::now();
    for others in [0, 1, 3] {
        let (mut waiters, [first, _]) = two_asleep(now);
        assert!(waiters.give_back(true, now).is_some(), "it has to look at the clock");
        assert!(!ask(&mut waiters, first, now), "the answer tells whether there are others");
        assert!(waiters.released(found(Some(others)), now).is_some());
        assert_eq!(ask(&mut waiters, first, now), others == 0);
        assert!(others == 0 || ask(&mut waiters, first, now + STAND_BACK_AT_LEAST), "nobody came");
        let budget = Duration::from_millis(6);
        let share = waiters.turn_limit(budget, now).budget;
        let expected = if others == 0 { 2 * budget } else { budget / (others + 1) };
        assert_eq!(share, expected, "all of them share it");
    }
    let (mut waiters, [first, _]) = two_asleep(now);
    waiters.give_back(true, now);
    assert!(ask(&mut waiters, first, now + POLL_UNTOLD), "an answer that never comes keeps nobody for long");
}

/// Found by simulated fleets: a reply from before the release made the head wait for the end of the lease.
#[test]
fn stale_reply_never_extends_backoff() {
    let now = Instant::now();
    let (mut waiters, [first, _]) = two_asleep(now);
    waiters.give_back(true, now);
    waiters.released(found(Some(2)), now);
    waiters.on_held(now, Some(Duration::from_secs(30)));
    assert!(ask(&mut waiters, first, now + STAND_BACK_AT_LEAST), "nobody came");
    waiters.on_held(now, Some(Duration::from_secs(30)));
    assert!(!ask(&mut waiters, first, now + POLL_UNTOLD), "this answer is a new one");
}

/// Invariant 6: a waiter that was let in and leaves before it polls passes the permission on.
#[test]
fn admitted_waiter_leaving_lets_next_poll() {
    let (mut waiters, now) = (WaitQueue::default(), Instant::now());
    let [first, let_in, next] = [waiters.join(1), waiters.join(1), waiters.join(1)];
    assert!(ask(&mut waiters, first, now));
    waiters.on_held(now, None);
    assert!(!ask(&mut waiters, let_in, now) && !ask(&mut waiters, next, now));
    assert_eq!(waiters.leave(first, open(1), now).1.len(), 1);
    assert!(waiters.leave(let_in, Ending::InVain, now).0.is_some(), "the next head is woken");
    assert!(ask(&mut waiters, next, now), "something is free, and nobody else asks for it");
    assert!(!ask(&mut waiters, next, now), "once");
}

/// Found by simulated fleets: a reader with a wait shorter than a round trip joined while an earlier reader polled. The later reader was
/// refused as if the lock were held, though the lock had not been held since this reader joined.
#[test]
fn later_reader_ignores_earlier_refusal() {
    let (mut waiters, now) = (WaitQueue::default(), Instant::now());
    let [first, early] = [waiters.join(1), waiters.join(1)];
    assert!(ask(&mut waiters, first, now));
    waiters.on_held(now, None);
    let late = waiters.join(1);
    waiters.leave(first, open(u32::MAX), now);
    assert!(matches!(waiters.known(early, true), Known::Held { .. }), "it was when that one came");
    assert!(matches!(waiters.known(late, true), Known::Nothing));
    assert!(matches!(waiters.known(late, false), Known::Held { .. }), "it has waited for long enough");
    waiters.on_held(now, None);
    assert!(matches!(waiters.known(late, true), Known::Held { .. }));
    waiters.head_polls();
    let later = waiters.join(1);
    assert!(matches!(waiters.known(late, true), Known::Held { .. }));
    assert!(matches!(waiters.known(later, true), Known::Nothing));
}

#[test]
fn small_request_never_overtakes_large() {
    let (mut waiters, now) = (WaitQueue::default(), Instant::now());
    let (a, b, c) = (waiters.join(1), waiters.join(3), waiters.join(1));
    assert!(ask(&mut waiters, a, now) && !ask(&mut waiters, b, now) && !ask(&mut waiters, c, now));
    assert!(waiters.leave(a, open(2), now).0.is_some(), "the head is woken, who wants three");
    assert!(!ask(&mut waiters, c, now), "one would be free");
    assert!(waiters.leave(b, open(1), now).1.len() == 1 && ask(&mut waiters, c, now));
}

#[test]
fn only_head_polls_in_arrival_order() {
    let (mut waiters, now) = (WaitQueue::default(), Instant::now());
    let (a, b, c) = (waiters.join(1), waiters.join(1), waiters.join(1));
    assert!(ask(&mut waiters, a, now), "nothing is known yet");
    assert!(!ask(&mut waiters, b, now) && !ask(&mut waiters, c, now));
    waiters.on_held(now, Some(Duration::from_millis(100)));
    assert!(!ask(&mut waiters, a, now));
    assert!(!ask(&mut waiters, a, now + Duration::from_millis(99)));
    assert!(ask(&mut waiters, a, now + Duration::from_millis(100)), "the lease may have ended");
    assert!(waiters.leave(a, alone(2 * REPOLL), now).0.is_some(), "the next head is woken");
    assert!(ask(&mut waiters, b, now), "nobody listens here, so nobody would hear of the release");
    assert!(!ask(&mut waiters, b, now), "it waits for the release");
    assert!(ask(&mut waiters, b, now + REPOLL), "but not for ever");
    assert!(waiters.leave(b, alone(REPOLL / 2), now).0.is_some());
    assert!(ask(&mut waiters, c, now));
    assert!(!ask(&mut waiters, c, now));
    assert!(ask(&mut waiters, c, now + REPOLL * 3 / 5), "nor beyond the lease of the one before");
    assert!(waiters.leave(c, Ending::InVain, now).0.is_none());
    assert!(waiters.is_empty());
}

#[test]
fn outside_caller_polls_then_joins_front() {
    let (mut waiters, now) = (WaitQueue::default(), Instant::now());
    let (a, b) = (waiters.join(1), waiters.join(1));
    let turn = |waiters: &mut WaitQueue, ticket, asked_for| {
        matches!(
            waiters.turn(ticket, asked_for, now, &mut Context::from_waker(Waker::noop())),
            Turn::Ask { .. }
        )
    };
    assert!(!turn(&mut waiters, a, true) && !turn(&mut waiters, b, true));
    assert!(matches!(waiters.known(a, true), Known::Nothing), "nobody has heard anything yet");
    let first = waiters.join_first(1);
    waiters.on_held(now, Some(REPOLL));
    let known = waiters.known(first, true);
    assert!(waiters.is_head(first) && matches!(known, Known::Held { unanswered_since: None }));
    assert!(!turn(&mut waiters, a, false), "it stands behind");
    assert!(waiters.leave(first, Ending::InVain, now).0.is_some());
    assert!(!turn(&mut waiters, a, false), "the one that left had its answer");
    assert!(turn(&mut waiters, a, false) || waiters.poll_now().is_some());
    assert!(turn(&mut waiters, a, false));
}

#[test]
fn leaving_head_passes_on_wakeup() {
    let (mut waiters, now) = (WaitQueue::default(), Instant::now());
    let (a, b) = (waiters.join(1), waiters.join(1));
    waiters.on_held(now, None);
    assert!(!ask(&mut waiters, a, now) && !ask(&mut waiters, b, now));
    assert!(ask(&mut waiters, a, now + REPOLL));
    waiters.questions.poll_at = None;
    waiters.on_held(now, None);
    waiters.questions.poll_now = true;
    assert!(ask(&mut waiters, a, now), "it has heard something");
    assert!(waiters.leave(a, Ending::InVain, now).0.is_some());
    assert!(ask(&mut waiters, b, now));
    assert!(!ask(&mut waiters, b, now), "once");
}

/// A2: a waiter that leaves without having polled leaves no reason to poll behind.
#[test]
fn leaving_without_poll_triggers_no_poll() {
    let (mut waiters, now) = (WaitQueue::default(), Instant::now());
    let (a, b) = (waiters.join(1), waiters.join(1));
    waiters.on_held(now, None);
    assert!(!ask(&mut waiters, a, now) && !ask(&mut waiters, b, now));
    assert!(waiters.leave(a, Ending::InVain, now).0.is_some());
    assert!(!ask(&mut waiters, b, now));
}

/// Three permits are free. A waiter was refused five permits. The waiters that want fewer have not polled yet.
#[test]
fn smaller_request_polls_after_larger_leaves() {
    let (mut waiters, now) = (WaitQueue::default(), Instant::now());
    let [many, few, as_few] = [waiters.join(5), waiters.join(1), waiters.join(1)];
    assert!(ask(&mut waiters, many, now));
    waiters.on_held(now, None);
    assert!(!ask(&mut waiters, many, now) && !ask(&mut waiters, few, now));
    assert!(waiters.leave(many, Ending::InVain, now).0.is_some());
    assert!(ask(&mut waiters, few, now), "nobody knows whether one is free");
    waiters.on_held(now, None);
    waiters.was_answered(few);
    waiters.leave(few, Ending::InVain, now);
    assert!(!ask(&mut waiters, as_few, now), "not one was free");
    assert!(waiters.leave(as_few, alone(REPOLL), now).0.is_none());
}

/// The number of free permits is known after a grant, and is too small for the head.
#[test]
fn fitting_request_polls_after_larger_leaves() {
    for room in [1, 2] {
        let (mut waiters, now) = (WaitQueue::default(), Instant::now());
        let [first, many, few] = [waiters.join(1), waiters.join(3), waiters.join(2)];
        assert!(ask(&mut waiters, first, now));
        waiters.on_held(now, None);
        assert!(!ask(&mut waiters, many, now) && !ask(&mut waiters, few, now));
        waiters.leave(first, open(room), now);
        waiters.questions.poll_now = false;
        assert!(!ask(&mut waiters, many, now), "it is not enough");
        assert!(waiters.leave(many, Ending::InVain, now).0.is_some());
        assert_eq!(ask(&mut waiters, few, now), room == 2);
    }
}

/// A waiter that pauses is not subscribed. A reader that yields to writers is refused in favour of writers that only wait.
#[test]
fn other_manner_polls_after_head_leaves() {
    let pauses = Manner { pauses: true, ..Manner::default() };
    let yields_to_writers = Manner { yields_to_writers: true, ..Manner::default() };
    for manner in [Manner::default(), pauses, yields_to_writers] {
        let (mut waiters, now) = (WaitQueue::default(), Instant::now());
        let [first, second, third] = [waiters.join(1), waiters.join(1), waiters.join(1)];
        waiters.set_manner(first, manner);
        waiters.set_manner(second, manner);
        assert!(ask(&mut waiters, first, now));
        waiters.on_held(now, None);
        assert!(!ask(&mut waiters, first, now));
        waiters.leave(first, Ending::InVain, now);
        assert!(!ask(&mut waiters, second, now), "it would hear the same");
        waiters.leave(second, Ending::InVain, now);
        assert_eq!(ask(&mut waiters, third, now), manner.pauses || manner.yields_to_writers);
    }
}

/// Where many holders have a lease each, the first lease to end is that of another holder.
#[test]
fn exhausting_grant_never_postpones_poll() {
    let (mut waiters, now) = (WaitQueue::default(), Instant::now());
    let [first, second] = [waiters.join(1), waiters.join(1)];
    let left = REPOLL / 5;
    assert!(ask(&mut waiters, first, now));
    waiters.on_held(now, Some(left));
    assert!(!ask(&mut waiters, second, now));
    assert!(waiters.leave(first, full(2 * REPOLL), now).0.is_some(), "the next head is woken");
    assert!(ask(&mut waiters, second, now), "nobody listens here");
    assert!(!ask(&mut waiters, second, now));
    assert!(ask(&mut waiters, second, now + left), "the other one's lease may have ended");
    waiters.on_held(now, Some(REPOLL));
    let third = waiters.join(1);
    waiters.leave(second, full(left), now);
    assert!(ask(&mut waiters, third, now) && !ask(&mut waiters, third, now));
    assert!(ask(&mut waiters, third, now + left), "as may the one that was granted");
}

/// A3: an error reaches every waiter in the queue, and no waiter that joins later.
#[test]
fn later_waiter_receives_no_earlier_error() {
    let (mut waiters, now) = (WaitQueue::default(), Instant::now());
    let waiting = [waiters.join(1), waiters.join(1)];
    waiters.on_held(now, None);
    waiters.on_unanswered(&Error::NoRandomness);
    assert!(matches!(waiters.known(waiting[0], true), Known::Trouble(Error::NoRandomness)));
    waiters.fail_all(&Error::NoRandomness);
    let later = [waiters.join_first(1), waiters.join(1)];
    waiting.iter().for_each(|ticket| _ = waiters.leave(*ticket, Ending::InVain, now));
    for ticket in later {
        let turn = waiters.turn(ticket, false, now, &mut Context::from_waker(Waker::noop()));
        assert!(!matches!(turn, Turn::Failed(_)));
    }
    later.iter().for_each(|ticket| _ = waiters.leave(*ticket, Ending::InVain, now));
    assert!(!matches!(waiters.known(later[0], true), Known::Trouble(_)), "nobody is left to whom it matters");
}

#[test]
fn error_reaches_every_queued_waiter() {
    let (mut waiters, now) = (WaitQueue::default(), Instant::now());
    let tickets = [waiters.join(1), waiters.join(1)];
    waiters.on_held(now, None);
    assert!(tickets.iter().all(|ticket| !ask(&mut waiters, *ticket, now)));
    assert_eq!(waiters.fail_all(&Error::NoRandomness).len(), 2);
    for ticket in tickets {
        let turn = waiters.turn(ticket, false, now, &mut Context::from_waker(Waker::noop()));
        assert!(matches!(turn, Turn::Failed(Error::NoRandomness)));
    }
}

/// Three other processes are to have their turns. The lock is free for this process after the third message, however the messages are
/// batched.
#[test]
fn batched_messages_count_separately() {
    for together in 1..=3 {
        let (mut queue, now) = (WaitQueue::default(), Instant::now());
        queue.join(1);
        queue.give_back(true, now);
        queue.released(found(Some(3)), now);
        let mut come = 0;
        while !queue.follows(together, now) {
            come += together;
        }
        assert!((3 - together..3).contains(&come), "{come} of them came before");
    }
}

/// The head polls after a while, to see whether the others have taken their turns. The head does not poll just after a message that reports
/// a turn.
#[test]
fn turn_message_postpones_head_poll() {
    for is_heard in [false, true] {
        let (mut queue, now) = (WaitQueue::default(), Instant::now());
        let head = queue.join(1);
        queue.give_back(true, now);
        queue.released(found(Some(3)), now);
        let late = now + STAND_BACK_AT_LEAST;
        if is_heard {
            assert!(!queue.follows(1, late), "it is the next one's turn");
        }
        assert_eq!(ask(&mut queue, head, late), !is_heard);
    }
}

#[test]
fn refused_head_polls_soon_after_opening() {
    let start = Instant::now();
    let (mut waiters, [first, _]) = two_asleep(start);
    waiters.give_back(true, start);
    waiters.released(found(Some(0)), start);
    let now = start + OPEN_EVERY;
    waiters.give_back(true, now);
    waiters.released(found(Some(0)), now);
    assert!(!ask(&mut waiters, first, now) && ask(&mut waiters, first, now + OPEN));
    waiters.on_held(now + OPEN, Some(REPOLL));
    let soon = now + OPEN + Duration::from_millis(5);
    assert!(!ask(&mut waiters, first, now + OPEN) && ask(&mut waiters, first, soon));
}

#[test]
fn crowded_head_pauses_after_release() {
    let now = Instant::now();
    for is_granted in [false, true] {
        let (mut waiters, [first, second]) = two_asleep(now);
        waiters.refused_among(100, Duration::from_millis(1), u64::MAX);
        assert!(!waiters.take_news());
        if is_granted {
            waiters.leave(first, alone(REPOLL), now);
            assert!(ask(&mut waiters, second, now) && !ask(&mut waiters, second, now));
        }
        assert_eq!(waiters.follows(1, now), is_granted, "a grant ends the pause");
        assert_eq!((waiters.take_news(), waiters.take_news()), (!is_granted, false));
        let head = if is_granted { second } else { first };
        assert!(!ask(&mut waiters, head, now + REPOLL / 5));
        assert_eq!(ask(&mut waiters, head, now + REPOLL * 4 / 5), !is_granted, "960 trips, slowed down");
    }
}

#[test]
fn own_message_has_head_poll_soon() {
    let now = Instant::now();
    let (mut waiters, [first, _]) = two_asleep(now);
    waiters.turns.give_back(true, now);
    waiters.turns.found(found(Some(1)), true, Some(false), now);
    assert!(!waiters.follows(1, now), "it says nothing of others");
    assert!(!ask(&mut waiters, first, now));
    waiters.on_held(now, Some(REPOLL));
    assert!(ask(&mut waiters, first, now + POLL_UNTOLD), "an old answer does not postpone it");
}

#[test]
fn late_reply_wakes_no_head() {
    let now = Instant::now();
    let (mut waiters, [first, _]) = two_asleep(now);
    waiters.give_back(true, now);
    assert!(ask(&mut waiters, first, now + POLL_UNTOLD));
    waiters.on_held(now, Some(REPOLL));
    assert!(!ask(&mut waiters, first, now));
    assert!(waiters.released(found(Some(3)), now + POLL_UNTOLD).is_none(), "the head has polled since");
}

#[test]
fn failed_head_takes_no_hold() {
    let (mut waiters, _) = two_asleep(Instant::now());
    waiters.fail_all(&Error::NoRandomness);
    assert!(!waiters.head_takes_over());
}

#[test]
fn allowed_follower_asks() {
    let now = Instant::now();
    let (mut waiters, [first, second]) = two_asleep(now);
    waiters.allow_poll(second);
    assert!(ask(&mut waiters, second, now) && !ask(&mut waiters, first, now));
    waiters.leave(second, alone(REPOLL), now);
    assert!(!ask(&mut waiters, first, now), "a grant leaves no question");
}

#[test]
fn leaving_follower_passes_question_to_head() {
    let now = Instant::now();
    for may_poll in [false, true] {
        let (mut waiters, [first, second]) = two_asleep(now);
        if may_poll {
            waiters.allow_poll(second);
        }
        assert_eq!(waiters.leave(second, Ending::InVain, now).0.is_some(), may_poll);
        assert_eq!(ask(&mut waiters, first, now), may_poll);
    }
}

#[test]
fn taken_hand_over_postpones_poll() {
    let now = Instant::now();
    let (mut waiters, [first, second]) = two_asleep(now);
    waiters.on_held(now, Some(REPOLL / 5));
    assert!(ask(&mut waiters, first, now + REPOLL / 5), "this question is not answered");
    waiters.hand_over(7, handed(), now);
    assert!(matches!(turn(&mut waiters, first, now), Turn::Take(7)));
    waiters.leave(first, Ending::HandedOver, now + REPOLL / 5);
    let known = waiters.known(second, false);
    assert!(matches!(known, Known::Held { unanswered_since: None }), "the hold is the answer");
    assert!(!ask(&mut waiters, second, now + REPOLL));
    assert!(ask(&mut waiters, second, now + REPOLL * 6 / 5));
}

#[test]
fn watchdog_ends_with_old_hand_over() {
    let now = Instant::now();
    let (mut waiters, _) = two_asleep(now);
    waiters.hand_over(7, handed(), now);
    assert!(waiters.must_plan_check());
    waiters.look_after(now);
    assert!(!waiters.must_plan_check(), "the watchdog comes again anyway");
    waiters.look_after(now + UNCLAIMED);
    assert!(waiters.must_plan_check(), "the watchdog does not come again");
}

#[test]
fn old_answer_postpones_no_poll() {
    let now = Instant::now();
    let (mut waiters, [first, _]) = two_asleep(now);
    waiters.give_back(true, now);
    waiters.on_held(now, Some(REPOLL));
    assert!(ask(&mut waiters, first, now + POLL_UNTOLD));
}

#[test]
fn asking_head_does_not_ask_twice() {
    let (mut waiters, now) = (WaitQueue::default(), Instant::now());
    let first = waiters.join(1);
    assert!(ask(&mut waiters, first, now));
    waiters.give_back(true, now);
    waiters.released(found(Some(0)), now);
    waiters.on_held(now, Some(REPOLL));
    assert!(!ask(&mut waiters, first, now), "the question under way found the lock after its release");
}

/// A head that leaves passes on until when this process waits for others, unless the head was granted the lock.
#[test]
fn grant_ends_standing_back() {
    let now = Instant::now();
    for ending in [Ending::InVain, alone(REPOLL)] {
        let (mut waiters, [first, second]) = two_asleep(now);
        waiters.give_back(true, now);
        waiters.released(found(Some(2)), now);
        waiters.leave(first, ending, now);
        assert_eq!(ask(&mut waiters, second, now), ending == alone(REPOLL), "without a subscription");
        waiters.on_held(now, Some(REPOLL));
        assert_eq!(ask(&mut waiters, second, now + STAND_BACK_AT_LEAST), ending == Ending::InVain);
    }
}

#[test]
fn grant_ends_wait_for_reply() {
    let now = Instant::now();
    let (mut waiters, [first, second]) = two_asleep(now);
    waiters.give_back(true, now);
    waiters.leave(first, alone(REPOLL), now);
    assert!(ask(&mut waiters, second, now), "the reply to an earlier release does not matter");
    assert!(!ask(&mut waiters, second, now) && waiters.released(found(Some(3)), now).is_none());
}

/// The next caller joins the queue, and polls once the others have had their time. Its wait does not end before its own poll.
#[test]
fn unaware_release_holds_callers_back() {
    let (mut waiters, now) = (WaitQueue::default(), Instant::now());
    assert!(waiters.released_unaware(found(Some(0)), now).is_none() && !waiters.stands_back(|| now));
    assert!(waiters.is_over(), "no other process listens");
    waiters.released_unaware(found(Some(1)), now);
    let until = now + STAND_BACK_AT_LEAST;
    assert!(waiters.stands_back(|| now) && !waiters.stands_back(|| until));
    assert!(waiters.begin_lingering() && !waiters.is_over(), "the queue stays, and its end is planned");
    let caller = waiters.join(1);
    assert!(!ask(&mut waiters, caller, now));
    assert!(matches!(waiters.known(caller, true), Known::Nothing), "the lock may be free");
    assert!(ask(&mut waiters, caller, until));
    waiters.leave(caller, alone(REPOLL), until);
    assert!(!waiters.may_let_others(until), "it stood back in vain");
    assert!(waiters.may_let_others(until + LONGEST));
}

/// The lock was left free without a message.
#[test]
fn unwanted_silent_opening_is_told_once() {
    let start = Instant::now();
    let [in_vain, granted] = [Ending::InVain, alone(REPOLL)];
    for (leaving, ending, is_told) in [(2, in_vain, true), (1, in_vain, false), (2, granted, false)] {
        let (mut waiters, tickets) = two_asleep(start);
        for now in [start, start + OPEN_EVERY] {
            waiters.give_back(true, now);
            waiters.released(found(Some(2)), now);
        }
        tickets
            .iter()
            .take(leaving)
            .for_each(|ticket| _ = waiters.leave(*ticket, ending, start + OPEN_EVERY));
        assert_eq!(
            (waiters.take_unannounced(), waiters.take_unannounced()),
            (is_told, false),
            "{leaving} {ending:?}"
        );
    }
}

#[test]
fn error_outlasts_leaving_head() {
    let now = Instant::now();
    let (mut waiters, [first, second]) = two_asleep(now);
    waiters.on_unanswered(&Error::NoRandomness);
    waiters.leave(first, Ending::InVain, now);
    assert!(matches!(waiters.known(second, false), Known::Trouble(Error::NoRandomness)));
}

/// The head's request has ended without a reply, and may have consumed a wake-up.
#[test]
fn leaving_head_passes_lost_request_on() {
    let now = Instant::now();
    let (mut waiters, [first, second]) = two_asleep(now);
    waiters.poll_now();
    assert!(ask(&mut waiters, first, now) && !ask(&mut waiters, first, now));
    waiters.leave(first, Ending::InVain, now);
    assert!(ask(&mut waiters, second, now));
}

#[test]
fn shared_grant_answers_and_wakes() {
    let now = Instant::now();
    for room in [2, u32::MAX] {
        let mut waiters = WaitQueue::default();
        let tickets = [(); 3].map(|()| waiters.join(1));
        assert!(ask(&mut waiters, tickets[0], now));
        assert!(tickets[1..].iter().all(|ticket| !ask(&mut waiters, *ticket, now)));
        waiters.questions.on_held(now, None);
        assert!(ask(&mut waiters, tickets[0], now + REPOLL), "this question is not answered yet");
        assert_eq!(waiters.leave(tickets[0], open(room), now).1.len(), 2, "room for {room}");
        let known = waiters.known(tickets[1], false);
        assert!(matches!(known, Known::Held { unanswered_since: None }));
    }
}

/// The waiter with the reply leaves room for all others. Each of them leaves room for the next.
#[test]
fn ended_latch_wakes_sleeping_waiters() {
    let now = Instant::now();
    let (mut waiters, [first, second]) = two_asleep(now);
    assert!(ask(&mut waiters, first, now + REPOLL) && !ask(&mut waiters, second, now));
    waiters.latch.on_end(2, true, 9);
    assert_eq!(waiters.leave(first, open(u32::MAX), now).1.len(), 1, "the other one is woken");
    assert!(ask(&mut waiters, second, now) && waiters.latch.is_open_for(1, 0), "it finds the reply");
    let [third, fourth] = [waiters.join(1), waiters.join(1)];
    assert!(
        matches!(waiters.leave(second, open(1), now), (None, more) if more.is_empty()),
        "no waiter sleeps"
    );
    assert!(matches!(waiters.known(third, false), Known::Held { unanswered_since: None }));
    assert!(ask(&mut waiters, third, now) && !ask(&mut waiters, fourth, now), "only the next one polls");
}

#[test]
fn free_lock_is_hot_no_longer() {
    let now = Instant::now();
    let (mut waiters, _) = two_asleep(now);
    waiters.give_back(true, now);
    waiters.released(found(Some(0)), now);
    assert_eq!(waiters.turn_limit(REPOLL, now + OPEN_EVERY).opening, Opening::Published);
    waiters.was_free(now);
    assert_eq!(waiters.turn_limit(REPOLL, now + OPEN_EVERY).opening, Opening::Not);
}

/// Returns the head's next step: `Ok` if it polls, with whether the server then tells of the next change, or else until when it sleeps.
fn step(waiters: &mut WaitQueue, ticket: u64, now: Instant) -> Result<bool, Option<Instant>> {
    match waiters.turn(ticket, false, now, &mut Context::from_waker(Waker::noop())) {
        Turn::Ask { remembers, .. } => Ok(remembers),
        Turn::Wait(until) => Err(until),
        Turn::Failed(_) | Turn::Take(_) => panic!("neither was arranged"),
    }
}

#[test]
fn changed_key_makes_head_poll() {
    let (mut waiters, now) = (WaitQueue::default(), Instant::now());
    assert!(waiters.key_changed(now).is_none(), "no waiter is there");
    let head = waiters.join(1);
    assert_eq!(step(&mut waiters, head, now), Ok(false), "the lock may be free");
    waiters.set_silent(true);
    waiters.on_held(now, None);
    assert_eq!(step(&mut waiters, head, now), Err(Some(now + REPOLL)));
    assert!(waiters.key_changed(now).is_some());
    assert_eq!(step(&mut waiters, head, now), Ok(true), "behind a silent holder at once");
    waiters.set_silent(false);
    waiters.on_held(now, None);
    assert_eq!(step(&mut waiters, head, now), Err(Some(now + REPOLL)));
    assert!(waiters.key_changed(now).is_some());
    let Err(Some(until)) = step(&mut waiters, head, now) else { panic!("a message may follow") };
    assert!(until > now + OPEN && until < now + REPOLL, "after an opening");
    assert_eq!(step(&mut waiters, head, until), Ok(true));
}

/// A process that has just left the lock to others does not take it from them because its key has changed.
#[test]
fn changed_key_ends_no_opening() {
    let (mut waiters, now) = (WaitQueue::default(), Instant::now());
    let head = waiters.join(1);
    assert_eq!(step(&mut waiters, head, now), Ok(false));
    waiters.on_held(now, None);
    assert!(step(&mut waiters, head, now).is_err());
    waiters.stand_back(now + POLL_UNTOLD);
    assert!(waiters.key_changed(now).is_none());
    assert_eq!(step(&mut waiters, head, now), Err(Some(now + POLL_UNTOLD)));
}
