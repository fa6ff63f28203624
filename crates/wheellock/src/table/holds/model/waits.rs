//! Model tests of callers that wait for a release.

use super::*;

/// Releases a guard for a caller that waits for `wait`.
fn release(world: &mut World, hold: HoldIndex, wait: Duration) -> CallerIndex {
    let until = world.now + wait;
    let (caller, request) = world.holds.release_awaited(hold, GUARD, (world.now, until), Waker::noop());
    assert!(request.is_some());
    caller.unwrap()
}

fn result(world: &mut World, caller: CallerIndex) -> Option<Ended> {
    world.holds.result(caller, Waker::noop())
}

fn timed_out(end: Option<Ended>) -> Option<(bool, bool)> {
    match end? {
        Err(Failed::TimedOut { ambiguous, reason }) => Some((ambiguous, reason.is_some())),
        end => panic!("{end:?}"),
    }
}

fn error() -> wheellock_client::Error {
    "no URL".parse::<wheellock_client::Config>().unwrap_err()
}

/// A request without a reply may have released the lock.
#[test]
fn unanswered_release_trusts_believed_lease() {
    let (nanosecond, held, lost) = (Duration::from_nanos(1), Confirmation::Held, Confirmation::Lost);
    for (early, is_declared, expected) in
        [(nanosecond, false, held), (Duration::ZERO, false, lost), (nanosecond, true, lost)]
    {
        for has_failed in [false, true] {
            let mut world = World::of_strangers();
            let hold = world.take(1, true);
            world.now = world.valid_until(hold).saturating_sub(early);
            if is_declared {
                assert!(world.due().is_empty());
                assert_eq!(world.holds.lost(hold), Some(LostReason::Expired));
            }
            let caller = release(&mut world, hold, WAIT);
            let mut effects = Effects::default();
            let request = if has_failed {
                world.holds.reconcile_again(hold, Unreconciled::Failed, world.now, &mut effects);
                world.now = world.now + LEASE / 20 + TICK;
                world.repeated().pop()
            } else {
                world.holds.reconcile_again(hold, Unreconciled::Unanswered, world.now, &mut effects)
            };
            world.reconciled(&request.expect("a caller waits"), false, 0);
            let end = result(&mut world, caller);
            assert!(matches!(end, Some(Ok(end)) if end == expected), "{early:?} {is_declared}: {end:?}");
            let counted = world.holds.counted();
            assert_eq!(counted.lost_expired + counted.lost_not_owner, u64::from(is_declared));
        }
    }
}

#[test]
fn useless_release_is_not_repeated() {
    let (mut world, hold) = World::with_guards(1);
    assert!(world.holds.release(hold, GUARD, world.now).is_some());
    world.now = world.holds.get(hold).unwrap().expired_by;
    assert!(
        world
            .holds
            .reconcile_again(hold, Unreconciled::Unanswered, world.now, &mut Effects::default())
            .is_none()
    );
    assert!(world.holds.holds.is_empty(), "no lease is left");
}

#[test]
fn failure_ends_wait_not_retry() {
    let (mut world, hold) = World::with_guards(1);
    assert!(!world.holds.is_awaited(hold));
    let caller = release(&mut world, hold, WAIT);
    assert!(world.holds.is_awaited(hold));
    let why = Failed::Unexpected("x");
    world.holds.tell_failure(hold, Want::Renew, &why, &mut Effects::default());
    assert!(result(&mut world, caller).is_none(), "the caller wants a release");
    world.holds.tell_failure(hold, Want::Release, &why, &mut Effects::default());
    assert!(!world.holds.is_awaited(hold));
    world.holds.reconcile_again(hold, Unreconciled::Failed, world.now, &mut Effects::default());
    assert!(matches!(result(&mut world, caller), Some(Err(Failed::Unexpected("x")))));
    world.now = world.now + LEASE / 20 + TICK;
    assert_eq!(world.repeated().len(), 1);
}

/// The connection broke behind a request for which callers wait.
fn unheard(world: &mut World, hold: HoldIndex, want: Want) {
    let callers = world.holds.get(hold).unwrap().releasing.callers;
    world.holds.callers.unheard(callers, want);
}

/// The error alone would claim that no request had an effect.
#[test]
fn error_after_unanswered_request_is_ambiguous() {
    for is_ambiguous in [false, true] {
        let (mut world, hold) = World::with_guards(1);
        let caller = release(&mut world, hold, WAIT);
        if is_ambiguous {
            unheard(&mut world, hold, Want::Release);
        }
        world.holds.tell_failure(hold, Want::Release, &Failed::Error(error()), &mut Effects::default());
        let Some(Err(Failed::Error(error))) = result(&mut world, caller) else { panic!("no error") };
        assert_eq!(error.outcome() == wheellock_client::Outcome::MaybeExecuted, is_ambiguous);
    }
}

#[test]
fn timeout_reports_earlier_error() {
    for (is_executed, late) in [(false, false), (true, false), (false, true)] {
        let (mut world, hold) = World::with_guards(1);
        let until = world.now + 2 * TICK;
        let caller = release(&mut world, hold, 2 * TICK);
        if is_executed {
            unheard(&mut world, hold, Want::Release);
        }
        let at = if late { until } else { until.saturating_sub(TICK) };
        world.holds.remember_failure(hold, Want::Release, &error(), at);
        // The server has rejected the request, so no request is under way at the deadline.
        let pause = Duration::from_millis(50);
        let refused = world.holds.reconcile_again(
            hold,
            Unreconciled::Refused(pause),
            world.now,
            &mut Effects::default(),
        );
        assert!(refused.is_none());
        world.now = until;
        assert!(world.repeated().is_empty());
        assert_eq!(timed_out(result(&mut world, caller)), Some((is_executed, !late)));
        world.now = world.now + pause;
        assert_eq!(world.repeated().len(), 1, "the request is repeated nevertheless");
    }
}

#[test]
fn each_wait_ends_at_its_deadline() {
    let mut world = World::new();
    let (start, holds) = (world.now, [1, 2, 3].map(|owner| world.take(owner, true)));
    let mut callers =
        vec![release(&mut world, holds[0], 50 * TICK), release(&mut world, holds[1], 60 * TICK)];
    for (place, ticks) in [50, 60, 80].into_iter().enumerate() {
        world.now = start + ticks * TICK;
        assert!(world.repeated().is_empty());
        if place == 0 {
            callers.push(release(&mut world, holds[2], 30 * TICK));
        }
        let ended: Vec<_> = callers.iter().map(|caller| result(&mut world, *caller).is_some()).collect();
        assert_eq!(ended, [0, 1, 2].map(|other| other == place));
    }
    assert_eq!(world.holds.next_due(), None);
}

#[test]
fn ended_wait_needs_no_alarm() {
    let mut world = World::new();
    let holds = [1, 2, 3, 4].map(|owner| world.take(owner, true));
    let first = release(&mut world, holds[0], 50 * TICK);
    let second = release(&mut world, holds[1], 60 * TICK);
    assert!(world.holds.leave(first).is_some(), "its waker is dropped by the caller");
    let end = world.now + 60 * TICK;
    world.now = world.now + 50 * TICK;
    let unsent = || -> Vec<About> { panic!("no wait has ended") };
    world.holds.due(world.now, &mut Due::new(&mut Effects::default(), &unsent));
    assert_eq!(world.holds.next_due(), Some(end));
    assert!(world.holds.leave(second).is_some());
    world.now = end;
    assert!(world.due().is_empty());
    // One alarm is enough for two waits.
    for (hold, wait) in [(holds[2], 10 * TICK), (holds[3], 11 * TICK)] {
        let caller = release(&mut world, hold, wait);
        world.holds.leave(caller);
    }
    world.now = world.now + 10 * TICK;
    assert!(world.due().is_empty());
    assert_eq!(world.holds.next_due(), None);
}

#[test]
fn lost_lock_is_not_awaited() {
    let (mut world, hold) = World::with_guards(1);
    world.lose(hold);
    let times = (world.now, world.now + WAIT);
    let (caller, request) = world.holds.release_awaited(hold, GUARD, times, Waker::noop());
    assert!(caller.is_none() && request.is_none());
    assert_eq!(world.holds.next_due(), None);
}

/// The watchdog renews a wish's failed request at a set instant, and reports the error at the deadline.
#[test]
fn failed_wish_reports_error_at_deadline() {
    for is_executed in [false, true] {
        let (mut world, hold) = World::with_guards(1);
        let until = world.now + 2 * TICK;
        let (caller, renewal) =
            world.holds.wish(hold, Want::Renew, (world.now, until), Waker::noop()).unwrap();
        let script = world.holds.begin_renewal(vec![renewal.unwrap()], Some(0), world.now);
        assert_eq!(world.holds.wishing(script), [hold]);
        if is_executed {
            unheard(&mut world, hold, Want::Renew);
        }
        world.holds.remember_failure(hold, Want::Renew, &error(), world.now);
        let _none = world.holds.end_renewal(script, None, world.now, |_| 0, &mut Effects::default());
        world.now = until;
        assert!(world.due().is_empty());
        assert_eq!(timed_out(result(&mut world, caller)), Some((is_executed, true)));
    }
}

#[test]
fn wish_learns_of_shortfall() {
    let (mut world, hold) = World::with_guards(1);
    let (caller, renewal) =
        world.holds.wish(hold, Want::Renew, (world.now, world.now + WAIT), Waker::noop()).unwrap();
    let _script = world.holds.begin_renewal(vec![renewal.unwrap()], Some(0), world.now);
    let by = crate::base::durability::Shortfall { acked: 0, wanted: 1 };
    world.holds.wishes_fell_short(hold, by, &mut Effects::default());
    assert!(matches!(result(&mut world, caller), Some(Ok(Confirmation::FellShort(told))) if told == by));
}
