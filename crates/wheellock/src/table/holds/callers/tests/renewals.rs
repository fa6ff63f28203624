//! Tests of callers that wait for a renewal or a check.

use std::time::Duration;

use super::*;

#[derive(Clone, Copy, PartialEq, Debug)]
enum Event {
    Begin(Want),
    /// A renewal begins that can fulfil this wish.
    Asked(Want),
    Done(Want),
    FellShort,
    InVain,
    Fails,
    Overdue,
    Forget,
}

use Event::*;

const EVENTS: [Event; 11] = [
    Begin(Want::Check),
    Begin(Want::Renew),
    Asked(Want::Check),
    Asked(Want::Renew),
    Done(Want::Check),
    Done(Want::Renew),
    FellShort,
    InVain,
    Fails,
    Overdue,
    Forget,
];

const SHORTFALL: Shortfall = Shortfall { acked: 0, wanted: 1 };

#[expect(clippy::needless_pass_by_value, reason = "made to be told")]
fn told(end: Ended) -> String {
    format!("{end:?}")
}

/// Returns the result for a caller that began to wait just before the events of `later`.
fn expected(want: Want, later: &[Event]) -> Option<String> {
    let mut asked = false;
    for event in later {
        match event {
            Asked(what) => asked |= want <= *what,
            InVain => asked = false,
            Done(what) if asked && want <= *what => return Some(told(Ok(Confirmation::Held))),
            FellShort if asked => return Some(told(Ok(Confirmation::FellShort(SHORTFALL)))),
            Fails => return Some(told(Err(Failed::Unexpected("x")))),
            Overdue => {
                return Some(told(Err(Failed::TimedOut { ambiguous: asked, reason: None })));
            }
            _ => {}
        }
    }
    None
}

/// Follows one path from the beginning. Returns false if its last event cannot happen.
fn follow(path: &[Event]) -> bool {
    const HOLD: HoldIndex = 7;
    let (mut table, mut waiting, mut woken) = (Callers::default(), Waiting::default(), 0);
    let until = BootInstant::now() + Duration::from_secs(1);
    let mut callers: Vec<(CallerIndex, Want, usize)> = Vec::new();
    for (at, event) in path.iter().enumerate() {
        let wake = |_waker| woken += 1;
        match *event {
            Begin(want) => {
                let index = table.begin((HOLD, &mut waiting), (want, true), until, Waker::noop());
                callers.push((index, want, at));
            }
            Asked(what) => table.asked(waiting, what),
            Done(what) => table.answered(&mut waiting, what, true, wake),
            FellShort => table.fell_short(&mut waiting, SHORTFALL, wake),
            InVain => table.in_vain(waiting, Want::Renew),
            Fails => table.failed(&mut waiting, Want::Renew, &Failed::Unexpected("x"), wake),
            Overdue => {
                table.overdue(&mut waiting, |_| true, until, wake);
                assert!(table.earliest().is_none() && table.renewal(waiting).is_none());
            }
            Forget => {
                let Some((index, want, began)) = callers.pop() else { return false };
                let waits = expected(want, &path[began + 1..at]).is_none();
                assert_eq!(table.hold_of(index), waits.then_some(HOLD), "{path:?}");
                assert_eq!(table.leave(index, waits.then_some(&mut waiting)).is_some(), waits, "{path:?}");
            }
        }
    }
    let waits =
        |(_, want, began): &&(CallerIndex, Want, usize)| expected(*want, &path[began + 1..]).is_none();
    let most = callers.iter().filter(waits).map(|(_, want, _)| *want).max();
    assert_eq!(table.renewal(waiting), most, "{path:?}");
    let mut ended = 0;
    for (index, want, began) in &callers {
        let heard = table.take(*index, Waker::noop()).map(told);
        assert_eq!(heard, expected(*want, &path[began + 1..]), "{path:?}");
        ended += usize::from(heard.is_some());
    }
    assert!(woken >= ended, "somebody sleeps on: {path:?}");
    assert_eq!(waiting.is_empty(), most.is_none(), "{path:?}");
    true
}

/// Every order of up to five events, compared with a backward reading of the same order.
#[test]
fn each_caller_gets_renewal_outcome_once() {
    explore(&EVENTS, &mut Vec::new(), 5, &follow);
}
