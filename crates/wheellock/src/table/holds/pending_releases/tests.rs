//! Tests of `awaited`.

use std::time::Duration;

use super::*;

#[derive(Clone, Copy, PartialEq, Debug)]
enum Event {
    Begin { believed: bool },
    Asked,
    Unheard,
    Answered { known: bool },
    GivenUp,
    Fails,
    Overdue,
    LeaveFirst,
    LeaveLast,
}

use Event::*;

const EVENTS: [Event; 11] = [
    Begin { believed: true },
    Begin { believed: false },
    Asked,
    Unheard,
    Answered { known: true },
    Answered { known: false },
    GivenUp,
    Fails,
    Overdue,
    LeaveFirst,
    LeaveLast,
];

#[expect(clippy::needless_pass_by_value, reason = "made to be told")]
fn told(end: End) -> String {
    format!("{end:?}")
}

/// Returns the result for a caller that began to wait just before the events of `later`.
fn expected(believed: bool, later: &[Event]) -> Option<String> {
    let (mut asked, mut ambiguous) = (false, false);
    for event in later {
        match event {
            Asked => asked = true,
            Unheard => ambiguous |= asked,
            Answered { known } if asked => {
                return Some(told(Ok(*known || (ambiguous && believed))));
            }
            GivenUp => return Some(told(Ok(ambiguous && believed))),
            Fails => return Some(told(Err(Failed::Unexpected("x")))),
            Overdue => {
                let ambiguous = ambiguous || asked;
                return Some(told(Err(Failed::TimedOut { ambiguous, reason: None })));
            }
            _ => {}
        }
    }
    None
}

/// Follows one path from the beginning. Returns false if its last event cannot happen.
fn follow(path: &[Event]) -> bool {
    let (mut awaited, mut views, mut woken) = (PendingReleases::default(), Views::default(), 0);
    let start = BootInstant::now();
    let until = start + Duration::from_secs(1);
    // View, belief and begin of each caller that has not left.
    let mut callers: Vec<(ViewIndex, bool, usize)> = Vec::new();
    for (at, event) in path.iter().enumerate() {
        let wake = |_waker| woken += 1;
        match *event {
            Begin { believed } => {
                let index = awaited.begin(7, &mut views, (believed, until), Waker::noop());
                callers.push((index, believed, at));
            }
            Asked => awaited.asked(views),
            Unheard => awaited.unheard(views),
            Answered { known } => awaited.answered(&mut views, known, wake),
            GivenUp => awaited.given_up(&mut views, wake),
            Fails => awaited.failed(&mut views, &Failed::Unexpected("x"), wake),
            Overdue => {
                let overdue = awaited.holds_overdue(until);
                assert_eq!(overdue.is_empty(), views.is_empty());
                awaited.overdue(&mut views, true, until, wake);
                assert!(awaited.holds_overdue(until).is_empty() && awaited.earliest().is_none());
            }
            LeaveFirst | LeaveLast if callers.is_empty() => return false,
            LeaveFirst | LeaveLast => {
                let place = if *event == LeaveFirst { 0 } else { callers.len() - 1 };
                let (index, believed, began) = callers.remove(place);
                let waits = expected(believed, &path[began + 1..at]).is_none();
                assert_eq!(awaited.hold_of(index), waits.then_some(7), "{path:?}");
                assert_eq!(awaited.leave(index, waits.then_some(&mut views)).is_some(), waits);
            }
        }
    }
    let mut ended = 0;
    for (index, believed, began) in &callers {
        let told = awaited.take(*index, Waker::noop()).map(told);
        assert_eq!(told, expected(*believed, &path[began + 1..]), "{path:?}");
        ended += usize::from(told.is_some());
    }
    assert!(woken >= ended, "somebody sleeps on: {path:?}");
    assert_eq!((awaited.views.len(), views.is_empty()), (callers.len() - ended, ended == callers.len()));
    true
}

/// Every order of up to five events, compared with a backward reading of the same order.
#[test]
fn each_caller_gets_release_outcome_once() {
    fn explore(path: &mut Vec<Event>, depth: usize) {
        for event in EVENTS {
            path.push(event);
            if follow(path) && depth > 1 {
                explore(path, depth - 1);
            }
            path.pop();
        }
    }
    explore(&mut Vec::new(), 5);
}
