//! Tests of callers that wait for a release.

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
fn told(end: Ended) -> String {
    format!("{end:?}")
}

fn held(held: bool) -> Confirmation {
    if held { Confirmation::Held } else { Confirmation::Lost }
}

/// Returns the result for a caller that began to wait just before the events of `later`.
fn expected(believed: bool, later: &[Event]) -> Option<String> {
    let (mut asked, mut ambiguous) = (false, false);
    for event in later {
        match event {
            Asked => asked = true,
            Unheard => ambiguous |= asked,
            Answered { known } if asked => {
                return Some(told(Ok(held(*known || (ambiguous && believed)))));
            }
            GivenUp => return Some(told(Ok(held(ambiguous && believed)))),
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
    let (mut table, mut waiting, mut woken) = (Callers::default(), Waiting::default(), 0);
    let start = BootInstant::now();
    let until = start + Duration::from_secs(1);
    // Index, belief and begin of each caller that has not left.
    let mut callers: Vec<(CallerIndex, bool, usize)> = Vec::new();
    for (at, event) in path.iter().enumerate() {
        let wake = |_waker| woken += 1;
        match *event {
            Begin { believed } => {
                let index = table.begin((7, &mut waiting), (Want::Release, believed), until, Waker::noop());
                callers.push((index, believed, at));
            }
            Asked => table.asked(waiting, Want::Release),
            Unheard => table.unheard(waiting, Want::Release),
            Answered { known } => table.answered(&mut waiting, Want::Release, known, wake),
            GivenUp => table.given_up(&mut waiting, Want::Release, wake),
            Fails => table.failed(&mut waiting, Want::Release, &Failed::Unexpected("x"), wake),
            Overdue => {
                let overdue = table.holds_overdue(until);
                assert_eq!(overdue.is_empty(), waiting.is_empty());
                table.overdue(&mut waiting, |_| true, until, wake);
                assert!(table.holds_overdue(until).is_empty() && table.earliest().is_none());
            }
            LeaveFirst | LeaveLast if callers.is_empty() => return false,
            LeaveFirst | LeaveLast => {
                let place = if *event == LeaveFirst { 0 } else { callers.len() - 1 };
                let (index, believed, began) = callers.remove(place);
                let waits = expected(believed, &path[began + 1..at]).is_none();
                assert_eq!(table.hold_of(index), waits.then_some(7), "{path:?}");
                assert_eq!(table.leave(index, waits.then_some(&mut waiting)).is_some(), waits);
            }
        }
    }
    let mut ended = 0;
    for (index, believed, began) in &callers {
        let told = table.take(*index, Waker::noop()).map(told);
        assert_eq!(told, expected(*believed, &path[began + 1..]), "{path:?}");
        ended += usize::from(told.is_some());
    }
    assert!(woken >= ended, "somebody sleeps on: {path:?}");
    assert_eq!((table.callers.len(), waiting.is_empty()), (callers.len() - ended, ended == callers.len()));
    true
}

/// Every order of up to five events, compared with a backward reading of the same order.
#[test]
fn each_caller_gets_release_outcome_once() {
    explore(&EVENTS, &mut Vec::new(), 5, &follow);
}
