//! Model tests of a shutdown.

use super::*;

fn shut_down(world: &mut World) -> Vec<Reconcile> {
    world.holds.shut_down(world.now, &mut Effects::default())
}

fn next(world: &mut World) -> Option<Reconcile> {
    world.holds.next_postponed(world.now, &mut Effects::default())
}

#[test]
fn shutdown_releases_held_lock() {
    let (mut world, hold) = World::with_guards(2);
    let mut effects = Effects::default();
    assert!(world.holds.shut_down(world.now, &mut effects).is_empty(), "the release waits for room");
    assert_eq!(logged(effects), [LostReason::ShutDown]);
    assert!(world.holds.is_shut());
    let task = Arc::<Task>::default();
    assert!(world.holds.poll_given_back(&mut 0, &task.waker()).is_pending());
    let names = world.holds.unreconciled_names();
    assert!(names.len() == 1 && Arc::ptr_eq(&names[0], &world.name));
    let request = next(&mut world).unwrap();
    assert_eq!(request.count, 0);
    for _ in 0..2 {
        let times = (world.now, world.now + WAIT);
        let (caller, none) = world.holds.release_awaited(hold, GUARD, times, Waker::noop());
        assert!(caller.is_none() && none.is_none(), "the shutdown has released it");
    }
    let mut effects = Effects::default();
    assert!(world.holds.reconciled(hold, true, 0, world.now, &mut effects).is_none());
    effects.wake_all();
    assert_eq!(task.woken(), 1);
    assert!(world.holds.poll_given_back(&mut 0, &task.waker()).is_ready());
    assert!(world.holds.unreconciled_names().is_empty());
}

#[test]
fn shutdown_takes_attempt_back_once() {
    let mut world = World::new();
    let attempt = world.begin().unwrap();
    let requests = shut_down(&mut world);
    assert_eq!(
        requests.iter().map(|request| (request.hold, request.count)).collect::<Vec<_>>(),
        [(attempt, 0)]
    );
    assert!(shut_down(&mut world).is_empty() && next(&mut world).is_none());
    // The server may grant the lease although the attempt has no reply.
    let again =
        world.holds.reconcile_again(attempt, Unreconciled::Unanswered, world.now, &mut Effects::default());
    assert_eq!(again.expect("the lease has not ended").count, 0);
}

/// The task of the attempt may never read its reply, so a shutdown must not wait for the attempt.
#[test]
fn reply_ends_shutdown_despite_attempt() {
    let mut world = World::new();
    let attempt = world.begin().unwrap();
    let requests = shut_down(&mut world);
    let task = Arc::<Task>::default();
    assert!(world.holds.poll_given_back(&mut 0, &task.waker()).is_pending());
    let mut effects = Effects::default();
    assert!(world.holds.reconciled(requests[0].hold, false, 0, world.now, &mut effects).is_none());
    effects.wake_all();
    assert_eq!(task.woken(), 1);
    assert!(world.holds.poll_given_back(&mut 0, &task.waker()).is_ready());
    let terms = world.terms();
    let granted = world.holds.granted(attempt, terms, GrantReply::Fresh, world.now, &mut Effects::default());
    assert!(matches!(granted, Some(Granted::ShutDown(Reconcile { count: 0, .. }))));
}

#[test]
fn shutdown_ends_waits_for_attempts() {
    let (mut world, hold) = World::with_guards(1);
    assert!(world.holds.release(hold, GUARD, world.now).is_some());
    let task = Arc::<Task>::default();
    let ask = |world: &mut World| {
        let (lease, owner) = (Lease::new(LEASE).unwrap(), (&world.name, 1));
        world.holds.begin_attempt(owner, true, (lease, 1), world.now, &task.waker())
    };
    assert!(ask(&mut world).is_pending());
    let mut effects = Effects::default();
    assert!(world.holds.shut_down(world.now, &mut effects).is_empty());
    effects.wake_all();
    assert_eq!(task.woken(), 1);
    assert!(matches!(ask(&mut world), Poll::Ready(None)));
    let names = [Arc::clone(&world.name)];
    assert_eq!(world.holds.is_held_otherwise(1, &names, Waker::noop()), Poll::Ready(false));
}

/// The reply to the release may still report the loss of the lock.
#[test]
fn shutdown_leaves_release_under_way() {
    let (mut world, hold) = World::with_guards(1);
    let request = world.holds.release(hold, GUARD, world.now).unwrap();
    assert!(shut_down(&mut world).is_empty() && world.holds.backlog.is_empty());
    world.reconciled(&request, false, 0);
    assert!(world.holds.get(hold).is_none());
    assert_eq!(world.holds.counted().lost_not_owner, 1);
}

#[test]
fn shutdown_releases_no_lost_lock() {
    for kind in [&*kind::REENTRANT, &*kind::WRITE] {
        let mut world = World::new();
        let name = Arc::new(Name::new("n", kind, false));
        let hold = world.ask_for(&name, 1);
        world.grant(hold, world.terms());
        world.lose(hold);
        assert!(shut_down(&mut world).is_empty() && world.holds.backlog.is_empty());
        assert!(world.holds.release(hold, GUARD, world.now).is_none());
        assert!(world.holds.holds.is_empty());
    }
}

/// A reply to one of two requests is not the last reply.
#[test]
fn failover_repeats_last_shutdown_request() {
    let mut world = World::new();
    let (attempt, terms) = (world.begin().unwrap(), world.terms());
    assert_eq!(shut_down(&mut world).len(), 1);
    let granted = world.holds.granted(attempt, terms, GrantReply::Fresh, world.now, &mut Effects::default());
    assert!(matches!(granted, Some(Granted::ShutDown(_))));
    world.holds.changed(&Change::everywhere(), world.now);
    assert!(world.repeated().is_empty());
    let mut reply = |known| world.holds.reconciled(attempt, known, 0, world.now, &mut Effects::default());
    assert!(reply(true).is_none(), "another request is under way");
    assert!(reply(false).is_some(), "either server may have replied");
}

/// No task is left to send these requests.
#[test]
fn last_requests_contain_unsent_changes() {
    let last = |world: &mut World| {
        let counts = world.holds.last_requests().into_iter().map(|request| request.count);
        counts.collect::<Vec<_>>()
    };
    // Nothing has changed.
    let (mut world, hold) = World::with_guards(3);
    assert!(last(&mut world).is_empty());
    // A release follows the one under way.
    assert!(world.holds.release(hold, GUARD, world.now).is_some());
    assert!(last(&mut world).is_empty());
    assert!(world.holds.release(hold, GUARD, world.now).is_none());
    assert_eq!(last(&mut world), [1]);
    // A lost lock is not released.
    let (mut world, hold) = World::with_guards(3);
    assert!(world.holds.release(hold, GUARD, world.now).is_some());
    assert!(world.holds.release(hold, GUARD, world.now).is_none());
    world.lose(hold);
    assert!(last(&mut world).is_empty());
    // A release waits for its retry, or for room.
    for is_postponed in [false, true] {
        let (mut world, hold) = World::with_guards(1);
        assert!(world.holds.release(hold, GUARD, world.now).is_some());
        let mut effects = Effects::default();
        if is_postponed {
            world.holds.postpone(hold, world.now, &mut effects);
        } else {
            world.holds.reconcile_again(hold, Unreconciled::Failed, world.now, &mut effects);
        }
        assert_eq!(last(&mut world), [0], "{is_postponed}");
    }
}
