//! Tests of `renewing`.

use std::time::Duration;

use wheellock_wheel::Cohorts;

use super::*;

#[derive(Clone, Copy, PartialEq, Debug)]
enum Event {
    Want,
    WantNoMore,
    /// Number of seconds after the start.
    Plan(u64),
    PlanBy(u64),
    Unplan,
    Doubt,
    VerifyAt(u64),
    Begin,
    End,
    Answer,
    Unanswered,
    Refuse(Refused),
    Join,
    Leave,
}

use Event::*;

const EVENTS: [Event; 18] = [
    Want,
    WantNoMore,
    Plan(3),
    PlanBy(2),
    PlanBy(4),
    Unplan,
    Doubt,
    VerifyAt(5),
    Begin,
    End,
    Answer,
    Unanswered,
    Refuse(Refused::NoScript),
    Refuse(Refused::OnItsWay),
    Refuse(Refused::Arrived),
    Refuse(Refused::Unserved),
    Join,
    Leave,
];

/// Instants of a reply and of a retry, in seconds after the start.
const NOW: u64 = 1;
const AGAIN: u64 = 6;
const GUARDS: u32 = 2;

/// Returns true if the last deciding event of the path is one that `so` accepts.
fn is(path: &[Event], so: impl Fn(&Event) -> bool, not_so: impl Fn(&Event) -> bool) -> bool {
    path.iter().rfind(|event| so(event) || not_so(event)).is_some_and(so)
}

fn unverified(path: &[Event]) -> bool {
    is(path, |event| matches!(event, Doubt | VerifyAt(_)), |event| *event == Begin)
}

fn under_way(path: &[Event]) -> bool {
    is(path, |event| *event == Begin, |event| *event == End)
}

fn member(path: &[Event]) -> bool {
    is(path, |event| *event == Join, |event| *event == Leave)
}

fn with_source(path: &[Event]) -> bool {
    is(path, |event| matches!(event, Unanswered | Refuse(Refused::NoScript)), |event| *event == Answer)
}

fn alone(path: &[Event]) -> bool {
    let is_taught = |event: &Event| matches!(event, Refuse(Refused::OnItsWay | Refused::Arrived));
    is(path, is_taught, |event| *event == Answer)
}

fn planned(path: &[Event]) -> Option<u64> {
    let (last, before) = path.split_last()?;
    match last {
        Plan(at) | VerifyAt(at) => Some(*at),
        PlanBy(at) => planned(before).into_iter().chain([*at]).min(),
        Unplan => None,
        Answer => unverified(before).then_some(NOW),
        Unanswered => Some(AGAIN),
        _ => planned(before),
    }
}

fn guards(path: &[Event]) -> Option<u32> {
    let count = |which| path.iter().filter(|event| **event == which).count();
    Some(u32::try_from(count(Want).checked_sub(count(WantNoMore))?).unwrap() * GUARDS)
}

/// Follows one path from the beginning. Returns false if its last event cannot happen.
fn follow(path: &[Event], start: BootInstant) -> bool {
    let after = |seconds: u64| start + Duration::from_secs(seconds);
    let mut cohorts = Cohorts::new(1, 0);
    let mut renewing = Renewing::default();
    for (place, event) in path.iter().enumerate() {
        let before = &path[..place];
        match *event {
            WantNoMore if guards(before) == Some(0) => return false,
            Join if member(before) => return false,
            Want => renewing.want(GUARDS),
            WantNoMore => renewing.want_no_more(GUARDS),
            Plan(at) => renewing.plan(after(at)),
            PlanBy(at) => renewing.plan_by(after(at)),
            Unplan => renewing.unplan(),
            Doubt => renewing.doubt(),
            VerifyAt(at) => renewing.verify_at(after(at)),
            Begin => renewing.begin(),
            End => renewing.end(),
            Answer => renewing.answer(after(NOW)),
            Unanswered => renewing.unanswered(after(AGAIN)),
            Refuse(refused) => renewing.refuse(refused),
            Join => renewing.join(cohorts.join(7, 0)),
            Leave => {
                let left = renewing.leave().and_then(|member| cohorts.leave(member));
                assert_eq!(left.is_some(), member(before), "{path:?}");
            }
        }
    }
    assert_eq!(Some(renewing.guards()), guards(path), "{path:?}");
    assert_eq!(renewing.is_wanted(), guards(path) != Some(0), "{path:?}");
    let at = planned(path);
    assert_eq!(renewing.planned(), at.map(after), "{path:?}");
    for now in NOW..=AGAIN {
        assert_eq!(renewing.is_due(after(now)), at.is_some_and(|at| now >= at), "{path:?}");
    }
    let (asks, doubted) = (under_way(path), unverified(path));
    assert_eq!((renewing.is_under_way(), renewing.is_in_doubt()), (asks, doubted), "{path:?}");
    assert_eq!(renewing.is_to_be_asked(), doubted || guards(path) != Some(0), "{path:?}");
    assert_eq!(renewing.is_in_turn(), !asks && at.is_none(), "{path:?}");
    assert_eq!(renewing.is_at_rest(), !asks && at.is_none() && !doubted, "{path:?}");
    assert_eq!(renewing.is_member(), member(path), "{path:?}");
    let manner = (renewing.is_with_source(), renewing.is_alone());
    assert_eq!(manner, (with_source(path), alone(path)), "{path:?}");
    true
}

/// Every order of up to four events, compared with a backward reading of the same order.
#[test]
fn renewing_matches_model() {
    fn explore(path: &mut Vec<Event>, depth: usize, start: BootInstant) {
        for event in EVENTS {
            path.push(event);
            if follow(path, start) && depth > 1 {
                explore(path, depth - 1, start);
            }
            path.pop();
        }
    }
    explore(&mut Vec::new(), 4, BootInstant::now());
}

/// A server that knows the hold may still lack what a reclaim writes beside it.
#[test]
fn reply_to_renewal_writes_no_hold() {
    let (mut renewing, now) = (Renewing::default(), BootInstant::now());
    renewing.must_write();
    renewing.begin();
    renewing.end();
    renewing.answer(now);
    assert!(!renewing.is_written());
    renewing.written();
    assert!(renewing.is_written());
}
