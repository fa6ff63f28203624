//! Model tests of requests that wait for room in the outgoing queue.

use super::*;

/// Releases a lock of a new owner. The request finds no room.
fn postpone(world: &mut World, owner: u64) -> HoldIndex {
    let hold = world.take(owner, true);
    assert!(world.holds.release(hold, GUARD, world.now).is_some());
    world.holds.postpone(hold, world.now, &mut Effects::default());
    hold
}

fn next(world: &mut World) -> Option<Reconcile> {
    world.holds.next_postponed(world.now, &mut Effects::default())
}

#[test]
fn postponed_releases_keep_order() {
    let mut world = World::new();
    let start = world.now;
    let first = postpone(&mut world, 1);
    assert_eq!(world.holds.next_due(), Some(start + BACKLOG_PAUSE));
    world.now = start + BACKLOG_PAUSE / 2;
    let second = postpone(&mut world, 2);
    world.now = start + BACKLOG_PAUSE;
    assert!(world.due().is_empty());
    assert_eq!(world.holds.next_due(), Some(world.now + BACKLOG_PAUSE), "one alarm for both");
    let sent = [next(&mut world).unwrap(), next(&mut world).unwrap()];
    assert_eq!(sent.each_ref().map(|request| (request.hold, request.count)), [(first, 0), (second, 0)]);
    assert!(next(&mut world).is_none());
    world.now = world.now + BACKLOG_PAUSE;
    assert!(world.due().is_empty());
    assert_eq!(world.holds.next_due(), None, "the backlog is empty");
    sent.iter().for_each(|request| world.reconciled(request, true, 0));
    assert!(world.holds.holds.is_empty());
}

#[test]
fn backlog_contains_hold_once() {
    let (mut world, hold) = World::with_guards(2);
    for left in [1, 0] {
        let request = world.holds.release(hold, GUARD, world.now).unwrap();
        assert_eq!(request.count, left);
        world.holds.postpone(hold, world.now, &mut Effects::default());
    }
    assert_eq!(next(&mut world).unwrap().count, 0);
    assert!(next(&mut world).is_none());
    let mut effects = Effects::default();
    assert!(world.holds.reconciled(hold, true, 0, world.now, &mut effects).is_none(), "once is enough");
}

#[test]
fn attempt_overtakes_postponed_release() {
    let (mut world, hold) = World::with_guards(1);
    assert!(world.holds.release(hold, GUARD, world.now).is_some());
    let task = Arc::<Task>::default();
    let ask = |world: &mut World| {
        let (lease, owner) = (Lease::new(LEASE).unwrap(), (&world.name, 1));
        world.holds.begin_attempt(owner, true, (lease, 1), world.now, &task.waker())
    };
    assert!(ask(&mut world).is_pending());
    let mut effects = Effects::default();
    world.holds.postpone(hold, world.now, &mut effects);
    effects.wake_all();
    assert_eq!(task.woken(), 1);
    assert!(matches!(ask(&mut world), Poll::Ready(Some((same, 1))) if same == hold));
    assert!(next(&mut world).is_none(), "the release must not overtake the attempt");
    let request = world.holds.refused(hold, 1, &mut Effects::default()).expect("it follows the attempt");
    assert_eq!(request.count, 0);
    world.reconciled(&request, true, 0);
    assert!(world.holds.holds.is_empty());
}

/// After the end of the lease the server keeps nothing of the hold.
#[test]
fn useless_postponed_release_is_dropped() {
    let (mut world, hold) = World::with_guards(1);
    assert!(world.holds.release(hold, GUARD, world.now).is_some());
    world.holds.postpone(hold, world.now, &mut Effects::default());
    let (task, names) = (Arc::<Task>::default(), [Arc::clone(&world.name)]);
    assert!(world.holds.is_held_otherwise(1, &names, &task.waker()).is_pending());
    world.now = world.holds.get(hold).unwrap().expired_by;
    let mut effects = Effects::default();
    assert!(world.holds.next_postponed(world.now, &mut effects).is_none());
    effects.wake_all();
    assert_eq!(task.woken(), 1);
    assert!(world.holds.holds.is_empty());
    assert_eq!(world.holds.is_held_otherwise(1, &names, &task.waker()), Poll::Ready(false));
}
