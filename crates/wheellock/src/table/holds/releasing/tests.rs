//! Tests of `releasing`.

use std::time::Duration;

use super::*;

#[derive(Clone, Copy, PartialEq, Debug)]
enum Event {
    Attempt,
    EndAttempt,
    GiveBack(LostReason),
    Change,
    Outdate,
    Begin,
    End,
    Answer,
    Unheard,
    RepeatAt,
    PutOff,
    GiveUp,
    JoinTheBacklog,
    LeaveTheBacklog,
    TakeOutdated,
}

use Event::*;

const EVENTS: [Event; 16] = [
    Attempt,
    EndAttempt,
    GiveBack(LostReason::NotOwner),
    GiveBack(LostReason::Expired),
    Change,
    Outdate,
    Begin,
    End,
    Answer,
    Unheard,
    RepeatAt,
    PutOff,
    GiveUp,
    JoinTheBacklog,
    LeaveTheBacklog,
    TakeOutdated,
];

const COUNT: u32 = 3;

fn is_end(event: &Event) -> bool {
    matches!(event, End | Answer | RepeatAt)
}

/// Returns how many more `begins` than `ends` the path contains.
fn left(path: &[Event], begins: Event, ends: impl Fn(&Event) -> bool) -> Option<usize> {
    let began = path.iter().filter(|event| **event == begins).count();
    began.checked_sub(path.iter().filter(|event| ends(event)).count())
}

fn busy(path: &[Event]) -> bool {
    left(path, Attempt, |event| *event == EndAttempt) != Some(0) || left(path, Begin, is_end) != Some(0)
}

/// Returns the last event that decides a state, and the events before it.
fn last(path: &[Event], decides: impl Fn(&Event) -> bool) -> Option<(Event, &[Event])> {
    let at = path.iter().rposition(decides)?;
    Some((path[at], &path[..at]))
}

fn outdated(path: &[Event]) -> bool {
    let decided =
        last(path, |event| matches!(event, Change | LeaveTheBacklog | Outdate | Begin | TakeOutdated));
    match decided {
        Some((Outdate, _)) => true,
        // With no request under way, a change leaves no mark.
        Some((Change | LeaveTheBacklog, before)) => busy(before) || outdated(before),
        _ => false,
    }
}

fn postponed(path: &[Event]) -> bool {
    let decided = last(path, |event| matches!(event, JoinTheBacklog | LeaveTheBacklog));
    decided.is_some_and(|(event, _)| event == JoinTheBacklog)
}

/// Returns the event that planned the next request.
fn planned(path: &[Event]) -> Option<Event> {
    let decided = last(path, |event| matches!(event, RepeatAt | PutOff | Begin | GiveUp));
    decided.map(|(event, _)| event).filter(|event| matches!(event, RepeatAt | PutOff))
}

fn loss(path: &[Event]) -> Option<LostReason> {
    match last(path, |event| matches!(event, GiveBack(_) | Unheard | Answer)) {
        Some((GiveBack(loss), _)) => Some(loss),
        _ => None,
    }
}

/// Follows one path from the beginning. Returns false if its last event cannot happen.
fn follow(path: &[Event], start: BootInstant) -> bool {
    let (soon, later) = (start + Duration::from_secs(1), start + Duration::from_secs(2));
    let mut releasing = Releasing::default();
    for (at, event) in path.iter().enumerate() {
        let before = &path[..at];
        let idle = left(before, Begin, is_end) == Some(0);
        match *event {
            EndAttempt if left(before, Attempt, |event| *event == EndAttempt) == Some(0) => return false,
            End | Answer | RepeatAt if idle => return false,
            Attempt => releasing.attempt(COUNT),
            EndAttempt => releasing.end_attempt(COUNT),
            GiveBack(loss) => releasing.give_back(loss),
            Change => assert_eq!(releasing.change(), !busy(before), "{path:?}"),
            Outdate => releasing.outdate(),
            Begin => releasing.begin(),
            End => releasing.end(),
            Answer => assert_eq!(releasing.answer(), loss(before), "{path:?}"),
            Unheard => releasing.unheard(),
            RepeatAt => releasing.repeat_at(soon),
            PutOff => releasing.put_off(later),
            GiveUp => releasing.give_up(),
            JoinTheBacklog => assert_eq!(releasing.join_the_backlog(), postponed(before), "{path:?}"),
            LeaveTheBacklog => assert_eq!(releasing.leave_the_backlog(), !busy(before), "{path:?}"),
            TakeOutdated => assert_eq!(releasing.take_outdated(), outdated(before), "{path:?}"),
        }
    }
    let attempts = left(path, Attempt, |event| *event == EndAttempt);
    assert_eq!(Some(releasing.attempts() as usize), attempts.map(|left| left * COUNT as usize), "{path:?}");
    let at = planned(path).map(|event| if event == RepeatAt { soon } else { later });
    assert_eq!(releasing.planned(), at, "{path:?}");
    assert_eq!([soon, later].map(|now| releasing.is_due(now)), [at == Some(soon), at.is_some()], "{path:?}");
    let (under_way, waiting) = (left(path, Begin, is_end) != Some(0), outdated(path) || postponed(path));
    assert_eq!((releasing.is_busy(), releasing.is_under_way()), (busy(path), under_way), "{path:?}");
    assert_eq!(releasing.has_waiting(), waiting, "{path:?}");
    let settled = !busy(path) && at.is_none() && !postponed(path);
    assert_eq!(releasing.is_settled(), settled, "{path:?}");
    assert_eq!(releasing.is_at_rest(), settled && !outdated(path), "{path:?}");
    for is_of_use in [false, true] {
        let is_unreconciled = under_way || at.is_some() || is_of_use && waiting;
        assert_eq!(releasing.is_unreconciled(is_of_use), is_unreconciled, "{path:?}");
    }
    true
}

/// Every order of up to five events, compared with a backward reading of the same order.
#[test]
fn releasing_matches_model() {
    fn explore(path: &mut Vec<Event>, depth: usize, start: BootInstant) {
        for event in EVENTS {
            path.push(event);
            if follow(path, start) && depth > 1 {
                explore(path, depth - 1, start);
            }
            path.pop();
        }
    }
    explore(&mut Vec::new(), 5, BootInstant::now());
}
