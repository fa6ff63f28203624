//! Tests of `wishes`.

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
fn told(end: Fulfilled) -> String {
    format!("{end:?}")
}

/// Returns the result for a caller that began to wait just before the events of `later`.
fn expected(want: Want, later: &[Event]) -> Option<String> {
    let mut asked = false;
    for event in later {
        match event {
            Asked(what) => asked |= want <= *what,
            InVain => asked = false,
            Done(what) if asked && want <= *what => return Some(told(Ok(None))),
            FellShort if asked => return Some(told(Ok(Some(SHORTFALL)))),
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
    let (mut wishes, mut woken) = (PendingRenewals::default(), 0);
    let until = BootInstant::now() + Duration::from_secs(1);
    let mut callers: Vec<(u64, Want, usize)> = Vec::new();
    for (at, event) in path.iter().enumerate() {
        let wake = |_waker| woken += 1;
        match *event {
            Begin(want) => callers.push((wishes.begin(HOLD, want, until, Waker::noop()), want, at)),
            Asked(what) => wishes.asked(HOLD, what),
            Done(what) => wishes.fulfilled(HOLD, what, wake),
            FellShort => wishes.fell_short(HOLD, SHORTFALL, wake),
            InVain => wishes.in_vain(HOLD),
            Fails => wishes.failed(HOLD, &Failed::Unexpected("x"), wake),
            Overdue => {
                wishes.overdue(until, |_| true, wake);
                assert!(wishes.earliest().is_none() && wishes.most(HOLD).is_none());
            }
            Forget => {
                let Some((number, want, began)) = callers.pop() else { return false };
                let waits = expected(want, &path[began + 1..at]).is_none();
                assert_eq!(wishes.forget(HOLD, number).is_some(), waits, "{path:?}");
            }
        }
    }
    let waits = |(_, want, began): &&(u64, Want, usize)| expected(*want, &path[began + 1..]).is_none();
    let most = callers.iter().filter(waits).map(|(_, want, _)| *want).max();
    assert_eq!(wishes.most(HOLD), most, "{path:?}");
    let mut ended = 0;
    for (number, want, began) in &callers {
        let heard = wishes.take(HOLD, *number, Waker::noop()).map(told);
        assert_eq!(heard, expected(*want, &path[began + 1..]), "{path:?}");
        ended += usize::from(heard.is_some());
    }
    assert!(woken >= ended, "somebody sleeps on: {path:?}");
    assert_eq!(wishes.is_empty(), most.is_none(), "{path:?}");
    true
}

/// Every order of up to five events, compared with a backward reading of the same order.
#[test]
fn each_caller_gets_renewal_outcome_once() {
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
