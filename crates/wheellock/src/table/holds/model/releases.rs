//! Model tests of releases that are repeated after a failover.

use super::*;

/// B2: releases that were confirmed before a failover are sent to the new server, each once.
#[test]
fn recent_releases_repeat_after_failover() {
    let mut world = World::new();
    world.release(1..=3, 0);
    assert!(world.repeated().is_empty(), "not without a reason");
    world.holds.changed(&Change::everywhere(), world.now);
    assert!(world.holds.alarms.watchdog_to_wake().is_none() && world.holds.next_due().unwrap() <= world.now);
    let again = world.repeated();
    let seen: Vec<_> = again.iter().map(|settle| (settle.owner, settle.count)).collect();
    assert_eq!(seen, [(3, 0), (2, 0), (1, 0)], "the latest first");
    // The new server had missed the first release and received the other two. Its own replicas may have missed all three.
    for (settle, known) in again.iter().zip([true, false, false]) {
        world.reconciled(settle, known, 0);
    }
    assert!(world.repeated().is_empty() && world.holds.holds.is_empty());
    world.holds.changed(&Change::everywhere(), world.now);
    let again: Vec<_> = world.repeated().iter().map(|settle| settle.owner).collect();
    assert_eq!(again, [1, 2, 3], "in the reverse order of the replies");
    let metrics = world.holds.counted();
    assert_eq!((metrics.lost_not_owner, metrics.lost_expired, metrics.hold.count()), (0, 0, 3), "no loss");
}

/// B2: the release of a cancelled attempt is repeated, too.
#[test]
fn recent_cancellation_repeats_after_failover() {
    let mut world = World::new();
    let attempt = world.begin().unwrap();
    let settle = world.holds.cancel_attempt(attempt, 1, world.terms().lease, world.now).unwrap();
    world.reconciled(&settle, false, 0);
    world.holds.changed(&Change::everywhere(), world.now);
    assert_eq!(world.repeated().iter().map(|settle| settle.count).collect::<Vec<_>>(), [0]);
}

/// B2: the old server may have confirmed a release that is under way during a failover, so another release follows.
#[test]
fn release_during_failover_is_repeated() {
    let mut world = World::new();
    let hold = world.take(1, true);
    let settle = world.holds.release(hold, GUARD, world.now).unwrap();
    world.holds.changed(&Change::everywhere(), world.now);
    assert!(world.repeated().is_empty());
    let again = world.holds.reconciled(settle.hold, true, 0, world.now, &mut Effects::default()).unwrap();
    assert_eq!((again.owner, again.count), (1, 0));
    world.reconciled(&again, false, 0);
    assert!(world.holds.holds.is_empty());
}

/// B2: an owner that holds the lock again, or requests it, is not released.
#[test]
fn returning_owner_is_not_released() {
    for holds_again in [false, true] {
        let mut world = World::new();
        assert!(world.step(Event::Acquire).is_continue() && world.step(Event::Release).is_continue());
        assert!(world.step(Event::Reconciled(true)).is_continue());
        let attempt = world.begin().unwrap();
        if holds_again {
            let (terms, now) = (world.terms(), world.now);
            let _guard = world.holds.granted(attempt, terms, GrantReply::Fresh, now, &mut Effects::default());
        }
        world.holds.changed(&Change::everywhere(), world.now);
        assert!(world.repeated().is_empty(), "holds again: {holds_again}");
    }
}

/// B2: an owner that returns while its release is repeated waits for the reply, so that no release can overtake a grant.
#[test]
fn returning_owner_waits_for_release() {
    let mut world = World::new();
    assert!(world.step(Event::Acquire).is_continue() && world.step(Event::Release).is_continue());
    assert!(world.step(Event::Reconciled(true)).is_continue());
    world.holds.changed(&Change::everywhere(), world.now);
    let [settle] = &world.repeated()[..] else { panic!("one release") };
    assert!(world.begin().is_none());
    // After a redirection it is still the same release.
    let elsewhere = world.holds.reconcile_again(
        settle.hold,
        Unreconciled::Refused(Duration::ZERO),
        world.now,
        &mut Effects::default(),
    );
    assert!(world.begin().is_none());
    world.reconciled(&elsewhere.unwrap(), true, 1);
    assert!(world.begin().is_some());
}

/// B2: after a failover the releases of a busy process are sent in slices, each once.
#[test]
fn many_releases_repeat_in_slices() {
    let mut world = World::new();
    world.release(1..=5000, 0);
    world.holds.changed(&Change::everywhere(), world.now);
    let (mut owners, mut most) = (Vec::new(), 0);
    while world.holds.next_due().is_some_and(|due| due <= world.now) {
        let some = world.repeated();
        most = most.max(world.holds.holds.len());
        owners.extend(some.iter().map(|settle| settle.owner));
        for settle in some {
            let moved = world.holds.reconcile_again(
                settle.hold,
                Unreconciled::Refused(Duration::ZERO),
                world.now,
                &mut Effects::default(),
            );
            world.reconciled(&moved.unwrap(), settle.owner % 2 == 0, 0);
        }
    }
    assert!(owners.iter().rev().copied().eq(1..=5000) && most == 256);
    assert!(world.holds.holds.is_empty());
}

/// B2: the first releases that a new server confirms do not end the record of the dead server's releases.
#[test]
fn successor_keeps_predecessors_releases() {
    let mut world = World::new();
    world.release([1], 0);
    world.now = world.now + Duration::from_secs(20);
    // The check of these holds takes several slices, and the new server confirms a release in between.
    (10..1510).for_each(|owner| _ = world.take(owner, false));
    world.holds.changed(&Change::everywhere(), world.now);
    assert!(world.repeated().is_empty(), "not after the first slice");
    world.release([2], 0);
    let repeated: Vec<_> = (0..3).flat_map(|_| world.repeated()).map(|settle| settle.owner).collect();
    assert_eq!(repeated, [2, 1]);
}

/// A server that is promoted again has older data and the same run id, so the client reports no change.
#[test]
fn server_promoted_again_gets_releases() {
    let mut world = World::new();
    world.release([1], 0);
    world.join_fleet();
    let repeated_after = |world: &mut World, incarnation: &str| {
        world.find_server(incarnation, 0, true);
        let repeated = world.repeated();
        repeated.iter().for_each(|settle| world.reconciled(settle, false, 0));
        repeated.iter().map(|settle| settle.owner).collect::<Vec<_>>()
    };
    assert_eq!(repeated_after(&mut world, "run:one:0"), [1], "the first server may not know it either");
    assert_eq!(repeated_after(&mut world, "run:one:0"), [0; 0]);
    assert_eq!(repeated_after(&mut world, "run:two:1"), [1]);
}

/// B2: the number of releases sent to a failing server is bounded, and so is the time for which they are retried.
#[test]
fn failing_releases_are_abandoned_in_time() {
    let mut world = World::new();
    world.release(1..=5000, 0);
    world.holds.changed(&Change::everywhere(), world.now);
    for _ in 0..3000 {
        world.now = world.now + Duration::from_millis(50);
        for settle in world.repeated() {
            world.holds.reconcile_again(
                settle.hold,
                Unreconciled::Failed,
                world.now,
                &mut Effects::default(),
            );
        }
        assert!(world.holds.holds.len() <= 256);
    }
    assert!(world.holds.holds.is_empty() && world.holds.alarms.is_empty());
}

/// Once another owner has the lock, a release that is to follow another release is useless. A shutdown does not wait for it.
#[test]
fn shutdown_skips_lost_lock_release() {
    let mut world = World::new();
    let name = Arc::clone(&world.name);
    let hold = world.ask_for(&name, 1);
    world.grant(hold, world.terms());
    world.holds.present(hold);
    for _ in 0..2 {
        let (lease, now) = (Lease::new(LEASE).unwrap(), world.now);
        let again = world.holds.begin_attempt((&name, 1), true, (lease, 1), now, Waker::noop());
        assert!(matches!(again, Poll::Ready(Some((same, _))) if same == hold));
        let terms = world.terms();
        let _again = world.holds.granted(hold, terms, GrantReply::Again, now, &mut Effects::default());
    }
    let request = world.holds.release(hold, GUARD, world.now).expect("two of three are left");
    assert!(world.holds.release(hold, GUARD, world.now).is_none(), "it follows");
    world.holds.reconcile_again(request.hold, Unreconciled::Failed, world.now, &mut Effects::default());
    let (_, renewal) = world
        .holds
        .wish(hold, Want::Renew, (world.now, world.now + WAIT), Waker::noop())
        .expect("it is held");
    let script = world.holds.begin_renewal(vec![renewal.expect("nothing is under way")], None, world.now);
    world.answer(script, &[0]);
    assert_eq!(world.holds.lost(hold), Some(LostReason::NotOwner));
    assert!(world.holds.shut_down(world.now, &mut Effects::default()).is_empty());
    assert!(world.holds.poll_given_back(&mut 0, Waker::noop()).is_ready());
    assert!(world.holds.unreconciled_names().is_empty());
}

/// A task may read the reply to its attempt after the shutdown has taken the attempt back. The task then takes it back once more.
#[test]
fn shutdown_waits_for_late_cancellation() {
    let mut world = World::new();
    let (one, other) = (Arc::clone(&world.name), Arc::new(Name::new("other", &kind::REENTRANT, false)));
    let (attempt, held) = (world.ask_for(&one, 1), world.ask_for(&other, 2));
    world.grant(held, world.terms());
    let release = world.holds.release(held, GUARD, world.now).unwrap();
    let under_way = world.holds.shut_down(world.now, &mut Effects::default());
    let [taken_back] = &under_way[..] else { panic!("one attempt") };
    let mut cursor = 0;
    world.reconciled(taken_back, true, 0);
    assert!(world.holds.poll_given_back(&mut cursor, Waker::noop()).is_pending(), "for the release");
    let again = world.holds.cancel_attempt(attempt, 1, world.terms().lease, world.now).unwrap();
    world.reconciled(&release, true, 0);
    assert!(world.holds.poll_given_back(&mut cursor, Waker::noop()).is_pending());
    world.reconciled(&again, false, 0);
    assert!(world.holds.poll_given_back(&mut cursor, Waker::noop()).is_ready());
    assert!(world.holds.unreconciled_names().is_empty());
}

/// Other code knows this owner, so without the retry the server would keep the lock for another lease.
#[test]
fn release_repeats_despite_failed_renewal() {
    for awaited in [true, false] {
        let mut world = World::new();
        assert!(world.step(Event::Acquire).is_continue());
        let hold = world.guards[0];
        world.now = world.now + LEASE / 3;
        let script = world.due();
        let script = world.holds.begin_renewal(script, Some(0), world.now);
        world.now = world.valid_until(hold).saturating_sub(TICK);
        let until = world.now + WAIT;
        let (view, request) = if awaited {
            world.holds.release_awaited(hold, GUARD, (world.now, until), Waker::noop())
        } else {
            (None, world.holds.release(hold, GUARD, world.now))
        };
        assert!(request.is_some());
        // Their connection breaks, and the server has executed the renewal.
        world.now = world.now + 2 * TICK;
        let mut effects = Effects::default();
        let _none = world.holds.end_renewal(script, None, world.now, |_| 0, &mut effects);
        let again = world.holds.reconcile_again(hold, Unreconciled::Unanswered, world.now, &mut effects);
        world.reconciled(&again.expect("it is repeated"), true, 0);
        if let Some(view) = view {
            assert!(matches!(world.holds.result(view, Waker::noop()), Some(Ok(Confirmation::Held))));
        }
        assert_eq!(world.holds.counted().lost_expired, 0);
    }
}

/// A check was under way when the guard was dropped. The loss is counted and reported once, in either order of the replies.
#[test]
fn loss_during_release_counts_once() {
    for heard_before in [true, false] {
        let mut world = World::new();
        let hold = world.take(1, true);
        world.holds.verify_hold(hold, world.now);
        let script = world.due();
        let script = world.holds.begin_renewal(script, Some(0), world.now);
        let release = world.holds.release(hold, GUARD, world.now).unwrap();
        if heard_before {
            world.answer(script, &[0]);
        }
        world.reconciled(&release, false, 0);
        let metrics = world.holds.counted();
        assert_eq!((metrics.lost_not_owner, metrics.held), (1, 0), "heard before: {heard_before}");
        assert!(world.holds.holds.is_empty());
    }
}

#[test]
fn hold_ends_with_last_guard() {
    let (mut world, hold) = World::with_guards(2);
    let counts = |world: &World| {
        let counted = world.holds.counted();
        (counted.held, counted.hold.count())
    };
    let request = world.holds.release(hold, GUARD, world.now).unwrap();
    assert_eq!((request.count, counts(&world)), (1, (1, 0)));
    assert_eq!(world.holds.get(hold).unwrap().renewing.planned(), None, "the lease is the same");
    world.reconciled(&request, true, 0);
    let request = world.holds.release(hold, GUARD, world.now).unwrap();
    assert_eq!((request.count, counts(&world)), (0, (0, 1)));
    world.reconciled(&request, true, 0);
    assert!(world.holds.holds.is_empty());
}

/// A redirection is followed at once twice. A reply ends the series.
#[test]
fn reply_ends_series_of_refusals() {
    let (mut world, hold) = World::with_guards(2);
    let refused = |world: &mut World, pause| {
        let pause = Duration::from_millis(pause);
        world
            .holds
            .reconcile_again(hold, Unreconciled::Refused(pause), world.now, &mut Effects::default())
            .is_some()
    };
    let request = world.holds.release(hold, GUARD, world.now).unwrap();
    assert!(refused(&mut world, 0) && refused(&mut world, 0));
    world.reconciled(&request, true, 0);
    assert!(world.holds.release(hold, GUARD, world.now).is_some());
    assert!(refused(&mut world, 0));
    assert!(!refused(&mut world, 10));
    let at = world.now + Duration::from_millis(10);
    assert_eq!(world.holds.get(hold).unwrap().releasing.planned(), Some(at));
    assert_eq!(world.holds.next_due(), Some(at));
}

/// A loss during the first of two releases makes the second one useless.
#[test]
fn lost_lock_is_not_released_again() {
    let (mut world, hold) = World::with_guards(2);
    let request = world.holds.release(hold, GUARD, world.now).unwrap();
    assert!(world.holds.release(hold, GUARD, world.now).is_none(), "it follows");
    world.lose(hold);
    world.reconciled(&request, true, 0);
    assert!(world.holds.holds.is_empty());
}

/// No guard of a forgotten permit is left to release it.
#[test]
fn forgotten_share_stays_on_server() {
    let (mut world, hold) = World::with_guards(2);
    let counts = |world: &World| {
        let counted = world.holds.counted();
        (counted.held, counted.hold.count())
    };
    world.holds.forget(hold, GUARD, world.now);
    assert_eq!((world.guards_of(hold), counts(&world)), (1, (1, 0)));
    let request = world.holds.release(hold, GUARD, world.now).unwrap();
    assert_eq!((request.count, counts(&world)), (1, (0, 1)));
    // The last guard is forgotten.
    for renew in [true, false] {
        let mut world = World::new();
        let hold = world.take(1, renew);
        assert!(world.holds.next_due().is_some());
        world.holds.forget(hold, Share { renew, ..GUARD }, world.now);
        assert_eq!(counts(&world), (0, 1));
        assert!(world.holds.holds.is_empty() && world.holds.next_due().is_none());
    }
    // A lost guard is forgotten.
    let (mut world, hold) = World::with_guards(1);
    world.lose(hold);
    world.holds.forget(hold, GUARD, world.now);
    assert_eq!(counts(&world), (0, 1));
    assert!(world.holds.holds.is_empty());
}

/// The end of the lease does not concern a hold without guards.
#[test]
fn forgotten_hold_needs_no_alarm() {
    let mut world = World::new();
    let hold = world.ask_for(&Arc::clone(&world.name), 1);
    world.grant(hold, Terms { share: FIXED, ..world.terms() });
    world.holds.get_mut(hold).unwrap().guards = 2;
    assert!(world.holds.release(hold, FIXED, world.now).is_some());
    assert!(world.holds.next_due().is_some());
    world.holds.forget(hold, FIXED, world.now);
    assert!(world.holds.get(hold).is_some(), "the release is under way");
    assert_eq!(world.holds.next_due(), None);
}

/// A reader's first share has the shorter lease.
#[test]
fn released_share_shortens_lease() {
    for renew in [true, false] {
        let mut world = World { name: Arc::new(Name::new("n", &kind::READ, false)), ..World::new() };
        let share = Share { renew, ..GUARD };
        let long = Lease::new(2 * LEASE).unwrap();
        let (hold, terms) = (world.begin().unwrap(), world.terms());
        world.grant(hold, Terms { share, ..terms });
        let (owner, lease) = ((&world.name, 1), (long, 1));
        assert!(world.holds.begin_attempt(owner, true, lease, world.now, Waker::noop()).is_ready());
        let (terms, mut effects) = (Terms { lease: long, share, ..terms }, Effects::default());
        let granted = world.holds.granted(hold, terms, GrantReply::Again, world.now, &mut effects);
        assert!(matches!(granted, Some(Granted::Held(..))));
        assert_eq!(world.valid_until(hold), long.valid_until(world.now));
        world.holds.get_mut(hold).unwrap().renewing.unplan();
        assert!(world.holds.release(hold, share, world.now).is_some());
        let valid_until = Lease::new(LEASE).unwrap().valid_until(world.now);
        assert_eq!(world.valid_until(hold), valid_until);
        let kept = world.holds.get(hold).unwrap();
        let renewal = renew.then(|| long.renewal_before(valid_until));
        assert_eq!(kept.renewing.planned(), renewal);
        let at = if renew { renewal.unwrap().max(world.now) } else { kept.lost_at() };
        assert!(world.holds.next_due().is_some_and(|due| due < at + TICK));
    }
}

/// The watchdog skips the release of an owner that holds the lock again, and repeats others instead.
#[test]
fn skipped_release_leaves_room() {
    const MOST: u64 = 256;
    let mut world = World::new();
    for owner in 1..=MOST + 1 {
        let hold = world.take(owner, true);
        let name = Arc::clone(&world.holds.get(hold).unwrap().name);
        let request = world.holds.release(hold, GUARD, world.now).unwrap();
        world.reconciled(&request, true, 0);
        if owner <= MOST {
            let (owner, lease) = ((&name, owner), (Lease::new(LEASE).unwrap(), 1));
            assert!(world.holds.begin_attempt(owner, true, lease, world.now, Waker::noop()).is_ready());
        }
    }
    world.holds.changed(&Change::everywhere(), world.now);
    assert_eq!(world.repeated().iter().map(|request| request.owner).collect::<Vec<_>>(), [MOST + 1]);
}

/// A reply may come from a server that has been replaced, unless there is only one server.
#[test]
fn failover_repeats_only_releases_under_way() {
    for has_one_server in [false, true] {
        let (mut world, hold) = World::with_guards(1);
        if has_one_server {
            world.holds.released = None;
        }
        world.holds.changed(&Change::everywhere(), world.now);
        let renewals = world.due();
        let script = world.holds.begin_renewal(renewals, None, world.now);
        world.answer(script, &[1]);
        let attempt = world.begin().unwrap();
        assert!(world.holds.refused(attempt, 1, &mut Effects::default()).is_none());
        assert!(world.holds.release(hold, GUARD, world.now).is_some());
        world.holds.changed(&Change::everywhere(), world.now);
        assert!(world.due().is_empty());
        let again = world.holds.reconciled(hold, true, 0, world.now, &mut Effects::default());
        assert_eq!(again.is_none(), has_one_server);
    }
}

/// The server keeps the lock until the end of its lease, which is later than this process believes.
#[test]
fn release_repeats_after_believed_lease() {
    let (mut world, hold) = World::with_guards(1);
    assert!(world.holds.release(hold, GUARD, world.now).is_some());
    world.now = world.holds.get(hold).unwrap().lost_at();
    let pause = Duration::from_millis(10);
    for _ in 0..3 {
        let refused = world.holds.reconcile_again(
            hold,
            Unreconciled::Refused(pause),
            world.now,
            &mut Effects::default(),
        );
        assert!(refused.is_none());
        world.now = world.now + pause;
        assert_eq!(world.repeated().len(), 1);
    }
    // The last retry would come after the end of the lease.
    let (task, names) = (Arc::<Task>::default(), [Arc::clone(&world.name)]);
    world.holds.reconcile_again(hold, Unreconciled::Failed, world.now, &mut Effects::default());
    assert!(world.holds.is_held_otherwise(1, &names, &task.waker()).is_pending());
    world.now = world.holds.get(hold).unwrap().expired_by + LEASE / 20;
    let mut effects = Effects::default();
    world.holds.due(world.now, &mut Due::new(&mut effects, &Vec::new));
    assert!(effects.next_request().is_none());
    effects.wake_all();
    assert_eq!(task.woken(), 1);
    assert!(world.holds.holds.is_empty());
}

/// Another alarm of the hold concerns neither its renewal nor the end of its lease.
#[test]
fn retried_release_leaves_other_events() {
    for share in [GUARD, FIXED] {
        let mut world = World::new();
        for _ in 0..2 {
            let (hold, terms) = (world.begin().unwrap(), Terms { share, ..world.terms() });
            let reply = if world.guards_of(hold) == 0 { GrantReply::Fresh } else { GrantReply::Again };
            let granted = world.holds.granted(hold, terms, reply, world.now, &mut Effects::default());
            assert!(matches!(granted, Some(Granted::Held(_, None))));
        }
        let hold = 0;
        assert!(world.holds.release(hold, share, world.now).is_some());
        world.holds.reconcile_again(hold, Unreconciled::Failed, world.now, &mut Effects::default());
        world.now = world.now + LEASE / 20;
        let (renewals, requests) = world.due_and_requests();
        assert_eq!((renewals.len(), requests.len()), (0, 1));
        let next =
            if share.renew { world.start + LEASE / 3 } else { world.holds.get(hold).unwrap().lost_at() };
        assert_eq!(world.holds.next_due(), Some(next));
    }
}

/// The key of an expired hold may live a moment longer, so its releases go on.
#[test]
fn expired_hold_keeps_planned_release() {
    let mut world = World::of_strangers();
    let hold = world.take(1, false);
    world.holds.get_mut(hold).unwrap().guards = 2;
    assert!(world.holds.release(hold, FIXED, world.now).is_some());
    world.now = world.holds.get(hold).unwrap().lost_at();
    world.holds.reconcile_again(hold, Unreconciled::Failed, world.now, &mut Effects::default());
    assert!(world.repeated().is_empty());
    assert_eq!(world.holds.lost(hold), Some(LostReason::Expired), "at this very instant");
    world.now = world.now + LEASE / 20;
    assert_eq!(world.repeated().len(), 1);
    assert_eq!(world.holds.counted().lost_expired, 1);
}
