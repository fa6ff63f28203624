//! Tests of `callers`.

mod releases;
mod renewals;

use std::time::Duration;

use super::*;

/// Returns true if the caller has its result.
fn has_ended(table: &mut Callers, caller: CallerIndex) -> bool {
    table.take(caller, Waker::noop()).is_some()
}

/// Follows every path of up to `depth` events that can happen.
fn explore<E: Copy>(events: &[E], path: &mut Vec<E>, depth: usize, follow: &impl Fn(&[E]) -> bool) {
    for event in events {
        path.push(*event);
        if follow(path) && depth > 1 {
            explore(events, path, depth - 1, follow);
        }
        path.pop();
    }
}

/// One hold may have callers of both sorts in its list.
#[test]
fn release_and_renewal_end_separately() {
    let until = BootInstant::now() + Duration::from_secs(1);
    for [ended, left] in [[Want::Release, Want::Renew], [Want::Renew, Want::Release]] {
        for way in 0..3 {
            let (mut table, mut waiting) = (Callers::default(), Waiting::default());
            let mut begin = |want| table.begin((7, &mut waiting), (want, true), until, Waker::noop());
            let (first, other, last) = (begin(ended), begin(left), begin(ended));
            table.asked(waiting, ended);
            table.unheard(waiting, ended);
            match way {
                0 => table.answered(&mut waiting, ended, true, drop),
                1 => table.failed(&mut waiting, ended, &Failed::Unexpected("x"), drop),
                _ => table.given_up(&mut waiting, ended, drop),
            }
            assert!(has_ended(&mut table, first) && has_ended(&mut table, last));
            assert!(!has_ended(&mut table, other));
            assert_eq!(table.has_release(waiting), left == Want::Release);
            assert_eq!(table.renewal(waiting), Some(left).filter(|left| *left != Want::Release));
            // The other caller was not asked for, so its timeout is not ambiguous.
            table.overdue(&mut waiting, |_| true, until, drop);
            let end = table.take(other, Waker::noop());
            assert!(matches!(end, Some(Err(Failed::TimedOut { ambiguous: false, reason: None }))));
        }
    }
}
