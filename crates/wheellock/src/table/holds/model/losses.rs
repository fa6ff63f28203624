//! Model tests of losses.

use super::*;

#[test]
fn loss_is_counted_once() {
    let (mut world, hold) = World::with_guards(2);
    assert_eq!(world.lose(hold), [LostReason::NotOwner]);
    assert!(world.lose(hold).is_empty(), "it is lost already");
    for left in [1, 0] {
        assert!(world.holds.release(hold, GUARD, world.now).is_none(), "another owner has the lock");
        assert_eq!(world.guards_of(hold), left);
        assert_eq!(world.holds.get(hold).is_some(), left > 0);
    }
    let counted = world.holds.counted();
    assert_eq!((counted.lost_not_owner, counted.held, counted.hold.count()), (1, 0, 1));
}

#[test]
fn loss_wakes_watchers_and_callers() {
    let (mut world, hold) = World::with_guards(1);
    let tasks: [Arc<Task>; 4] = std::array::from_fn(|_| Arc::default());
    let [first, again, other, gone] = tasks.each_ref().map(Task::waker);
    let (mut one, mut two, mut three) = (None, None, None);
    // The first task is polled twice, with different wakers.
    for (watcher, waker) in [(&mut one, &first), (&mut two, &other), (&mut three, &gone)] {
        assert_eq!(world.holds.watch(hold, watcher, waker, world.now), None);
    }
    assert_eq!(world.holds.watch(hold, &mut one, &again, world.now), None);
    world.holds.unwatch(hold, three.unwrap());
    let (caller, _) =
        world.holds.wish(hold, Want::Check, (world.now, world.now + WAIT), Waker::noop()).unwrap();
    world.lose(hold);
    assert_eq!(tasks.map(|task| task.woken()), [0, 1, 1, 0]);
    assert!(matches!(world.holds.result(caller, Waker::noop()), Some(Ok(Confirmation::Lost))));
    assert_eq!(world.holds.counted().failed_renewals, 0, "the lease had not ended");
}

#[test]
fn lost_hold_needs_no_alarm() {
    for renew in [true, false] {
        let mut world = World::new();
        let hold = world.take(1, renew);
        assert!(world.holds.next_due().is_some());
        world.lose(hold);
        assert_eq!(world.holds.next_due(), None, "{renew}");
    }
}

#[test]
fn lost_owner_begins_new_hold() {
    let (mut world, lost) = World::with_guards(1);
    let name = Arc::clone(&world.name);
    assert!(world.holds.is_held_by(&name, 1) && !world.holds.is_held_by(&name, 2));
    world.lose(lost);
    assert!(!world.holds.is_held_by(&name, 1));
    let new = world.begin().unwrap();
    assert!(new != lost && !world.holds.is_held_by(&name, 1));
    // The end of the lost hold leaves the entry of the new hold.
    assert!(world.holds.release(lost, GUARD, world.now).is_none());
    assert!(world.begin().is_none(), "the attempt is under way");
    world.grant(new, world.terms());
    assert!(world.holds.is_held_by(&name, 1));
}

#[test]
fn attempt_outlasts_loss_of_hold() {
    let (mut world, hold) = World::with_guards(1);
    let name = Arc::clone(&world.name);
    let attempt = world.begin().unwrap();
    assert_eq!(attempt, hold);
    world.lose(hold);
    assert!(!world.holds.is_held_by(&name, 1));
    assert!(world.begin().is_none(), "the attempt is under way");
    assert!(world.holds.refused(attempt, 1, &mut Effects::default()).is_none());
    assert_ne!(world.begin().unwrap(), hold);
}

#[test]
fn presented_owner_finds_only_held_lock() {
    for is_lost in [false, true] {
        let mut world = World::of_strangers();
        let hold = world.take(1, true);
        if is_lost {
            world.lose(hold);
        }
        assert_eq!(world.holds.present(hold), 1);
        assert_eq!(world.holds.presented.is_empty(), is_lost);
    }
}

#[test]
fn attempt_has_nothing_to_lose() {
    let mut world = World::new();
    let attempt = world.begin().unwrap();
    assert_eq!(world.holds.lost(attempt), None);
    assert!(world.lose(attempt).is_empty());
    world.grant(attempt, world.terms());
    assert_eq!(world.holds.lost(attempt), None);
}

/// Each loss frees a hold that has no guard.
#[test]
fn loss_ends_planned_release() {
    let (mut world, hold) = World::with_guards(1);
    world.now = world.now + LEASE / 10;
    let times = (world.now, world.now + WAIT);
    let (caller, request) = world.holds.release_awaited(hold, GUARD, times, Waker::noop());
    assert!(request.is_some());
    world.holds.reconcile_again(hold, Unreconciled::Failed, world.now, &mut Effects::default());
    assert!(world.lose(hold).is_empty(), "no guard has lost it");
    assert!(world.holds.holds.is_empty());
    let end = world.holds.result(caller.unwrap(), Waker::noop());
    assert!(matches!(end, Some(Ok(Confirmation::Held))), "the failed request may have released it");
    let counted = world.holds.counted();
    assert_eq!((counted.lost_not_owner, counted.held, counted.hold.count()), (0, 0, 1));
}

#[test]
fn server_reply_shows_loss_once() {
    // The reply to the release of one guard shows that the other guard has no lock.
    let (mut world, hold) = World::with_guards(2);
    let request = world.holds.release(hold, GUARD, world.now).unwrap();
    assert_eq!(request.count, 1);
    let mut effects = Effects::default();
    assert!(world.holds.reconciled(hold, false, 0, world.now, &mut effects).is_none());
    assert_eq!(logged(effects), [LostReason::NotOwner]);
    assert_eq!(world.holds.lost(hold), Some(LostReason::NotOwner));
    assert_eq!(world.holds.counted().lost_not_owner, 1);
    // The loss was known before the reply.
    let (mut world, hold) = World::with_guards(2);
    let request = world.holds.release(hold, GUARD, world.now).unwrap();
    world.lose(hold);
    world.reconciled(&request, false, 0);
    assert_eq!(world.holds.counted().lost_not_owner, 1);
}

/// The end of the lease distinguishes a forced loss from an ordinary one.
#[test]
fn release_reports_reason_of_loss() {
    for (early, reason) in [(1, LostReason::NotOwner), (0, LostReason::Expired)] {
        let (mut world, hold) = World::with_guards(1);
        world.now = world.valid_until(hold).saturating_sub(Duration::from_nanos(early));
        assert!(world.holds.release(hold, GUARD, world.now).is_some());
        let mut effects = Effects::default();
        assert!(world.holds.reconciled(hold, false, 0, world.now, &mut effects).is_none());
        assert_eq!(logged(effects), [reason]);
        let counted = world.holds.counted();
        assert_eq!((counted.lost_not_owner, counted.lost_expired), (early, 1 - early));
    }
}

#[test]
fn late_grant_finds_no_second_loss() {
    for (reply, is_held) in [(GrantReply::Again, false), (GrantReply::Fresh, true)] {
        let (mut world, hold) = World::with_guards(1);
        let (attempt, terms) = (world.begin().unwrap(), world.terms());
        world.lose(hold);
        // The clock is at the end of the lost lease, and before the end of the new one.
        world.now = world.valid_until(hold);
        let terms = Terms { sent: terms.sent + Duration::from_nanos(1), ..terms };
        let granted = world.holds.granted(attempt, terms, reply, world.now, &mut Effects::default());
        match granted {
            Some(Granted::Held(new, None)) => assert!(is_held && new != hold),
            Some(Granted::TooLate(request)) => assert!(!is_held && request.hold != hold),
            _ => panic!("not granted"),
        }
        let counted = world.holds.counted();
        assert_eq!((counted.lost_not_owner, counted.lost_expired), (1, 0));
    }
}

/// The released lease has ended, and no guard has lost it.
#[test]
fn grant_revives_released_hold() {
    let (mut world, hold) = World::with_guards(1);
    world.now = world.now + LEASE / 2;
    let (attempt, terms) = (world.begin().unwrap(), world.terms());
    assert!(world.holds.release(hold, GUARD, world.now).is_none(), "it follows the attempt");
    assert!(world.holds.get(hold).is_some(), "the attempt needs it");
    world.now = world.valid_until(hold);
    let granted = world.holds.granted(attempt, terms, GrantReply::Fresh, world.now, &mut Effects::default());
    assert!(matches!(granted, Some(Granted::Held(same, Some(_))) if same == hold));
    assert_eq!(world.valid_until(hold), terms.lease.valid_until(terms.sent));
}

#[test]
fn grant_at_end_of_lease_is_late() {
    for early in [1, 0] {
        let mut world = World::new();
        let (attempt, terms) = (world.begin().unwrap(), world.terms());
        world.now = terms.lease.valid_until(terms.sent).saturating_sub(Duration::from_nanos(early));
        let granted =
            world.holds.granted(attempt, terms, GrantReply::Fresh, world.now, &mut Effects::default());
        assert_eq!(matches!(granted, Some(Granted::TooLate(_))), early == 0);
        assert_eq!(matches!(granted, Some(Granted::Held(..))), early == 1);
    }
}
