//! Model tests of the instants at which the watchdog runs.

use super::super::schedule::LINGER;
use super::*;
use crate::wait::wait_queue::UNCLAIMED;

/// Ends a run of the watchdog. Returns the instant of its next run.
fn leaves(world: &mut World, task: &Arc<Task>) -> Option<BootInstant> {
    let next = world.holds.next_due();
    world.holds.alarms.watchdog_leaves(next, &task.waker());
    next
}

#[test]
fn earlier_event_wakes_watchdog_once() {
    let (mut world, task) = (World::new(), Arc::<Task>::default());
    let woken = |world: &mut World| {
        world.holds.alarms.watchdog_to_wake().into_iter().for_each(Waker::wake);
        task.woken()
    };
    assert_eq!(leaves(&mut world, &task), None);
    assert_eq!(woken(&mut world), 0);
    let _hold = world.take(1, false);
    assert_eq!((woken(&mut world), woken(&mut world)), (1, 0));
    // The watchdog will have run by then.
    let _hold = world.take(2, false);
    assert_eq!(woken(&mut world), 0);
    let next = world.holds.next_due();
    assert!(next.is_some() && leaves(&mut world, &task) == next);
    let _hold = world.take(3, false);
    assert_eq!(woken(&mut world), 0);
    // The renewal precedes the ends of the leases, and the watchdog has not run yet.
    let _hold = world.take(4, true);
    assert_eq!(woken(&mut world), 1);
    let _hold = world.take(5, true);
    assert_eq!(woken(&mut world), 0);
    assert!(world.holds.alarms.take_watchdog().is_some() && world.holds.alarms.take_watchdog().is_none());
}

#[test]
fn names_are_reported_in_time() {
    let mut world = World::new();
    let (quiet, hot) = (Arc::clone(&world.name), Arc::new(Name::new("hot", &kind::REENTRANT, false)));
    world.holds.alarms.quiet(Arc::clone(&quiet), world.now);
    world.holds.alarms.look_after(Arc::clone(&hot), world.now);
    for (after, is_quiet) in [(UNCLAIMED, false), (LINGER, true)] {
        world.now = world.start + after;
        assert_eq!(world.holds.next_due(), Some(world.now));
        let (mut effects, none) = (Effects::default(), Vec::new);
        let mut due = Due::new(&mut effects, &none);
        world.holds.due(world.now, &mut due);
        let names = if is_quiet { [&due.quiet, &due.handing_over] } else { [&due.handing_over, &due.quiet] };
        let name = if is_quiet { &quiet } else { &hot };
        assert!(names[0].len() == 1 && Arc::ptr_eq(&names[0][0], name) && names[1].is_empty());
    }
    assert_eq!(world.holds.next_due(), None);
}

/// A hold that the watchdog renews at its beats needs no alarm of its own.
#[test]
fn only_fixed_lease_has_alarm() {
    let mut world = World::new();
    for (owner, renew) in [(1, true), (2, false)] {
        let hold = world.take(owner, renew);
        assert_eq!(world.holds.get(hold).unwrap().alarm.is_none(), renew);
    }
}

/// A released hold has no event, and a new hold may have its index.
#[test]
fn released_hold_needs_no_alarm() {
    let mut world = World::new();
    world.holds.released = None;
    for renew in [true, false] {
        let hold = world.take(1, renew);
        assert!(world.holds.next_due().is_some());
        let request = world.holds.release(hold, Share { renew, ..GUARD }, world.now).unwrap();
        assert_eq!(world.holds.next_due(), None, "{renew}");
        world.reconciled(&request, true, 0);
    }
    // A cancellation is retried, and the owner's next attempt makes the retry unnecessary.
    let lease = Lease::new(LEASE).unwrap();
    for is_last in [false, true] {
        let attempt = world.begin().unwrap();
        let request = world.holds.cancel_attempt(attempt, 1, lease, world.now).unwrap();
        if is_last {
            world.reconciled(&request, true, 0);
        } else {
            world.holds.reconcile_again(attempt, Unreconciled::Failed, world.now, &mut Effects::default());
        }
    }
    assert!(world.holds.holds.is_empty());
    assert_eq!(world.holds.next_due(), None);
}

/// Two holds have the same index one after the other, within one beat.
#[test]
fn reused_index_joins_beats_once() {
    let mut world = World::new();
    world.holds.released = None;
    let first = world.take(1, true);
    let request = world.holds.release(first, GUARD, world.now).unwrap();
    world.reconciled(&request, true, 0);
    assert_eq!(world.take(2, true), first);
    assert!(world.holds.next_due().is_some());
    assert!(world.holds.release(first, GUARD, world.now).is_some());
    assert_eq!(world.holds.next_due(), None);
}

#[test]
fn each_newcomer_keeps_its_beat() {
    let mut world = World::new();
    let start = world.now;
    let first = world.take(1, true);
    world.now = start + LEASE / 12;
    let second = world.take(2, true);
    for hold in [first, second] {
        world.now = world.holds.next_due().unwrap();
        let renewed: Vec<_> = world.due().iter().map(|renewal| renewal.hold).collect();
        assert_eq!(renewed, [hold]);
    }
    assert_eq!(world.now, start + LEASE / 12 + LEASE / 3);
}

#[test]
fn newcomers_are_bounded() {
    const MOST: usize = 1024;
    let mut world = World::new();
    for number in 1..=MOST {
        world.take(number as u64, true);
        assert_eq!(world.holds.newcomers.holds.len(), number);
    }
    world.take(0, true);
    assert_eq!(world.holds.newcomers.holds.len(), 1);
}

/// The watchdog sleeps while too many requests of a failover are under way.
#[test]
fn ended_script_wakes_watchdog() {
    const SCRIPTS: usize = 64;
    for way in 0..3 {
        let (mut world, task) = (World::new(), Arc::<Task>::default());
        let holds: Vec<_> = (1..=SCRIPTS as u64).map(|owner| world.take(owner, false)).collect();
        let scripts = holds.iter().map(|hold| {
            let wished = world.holds.wish(*hold, Want::Renew, (world.now, world.now + WAIT), Waker::noop());
            let (caller, renewal) = wished.unwrap();
            // Without a caller, the request is not repeated.
            world.holds.leave(caller);
            world.holds.begin_renewal(vec![renewal.unwrap()], Some(0), world.now)
        });
        let scripts: Vec<_> = scripts.collect();
        world.holds.changed(&Change::everywhere(), world.now);
        assert!(!world.holds.may_verify());
        leaves(&mut world, &task);
        let mut effects = Effects::default();
        match way {
            0 => world.answer(scripts[0], &[1]),
            1 => world.holds.end_wait(scripts[0], true, world.now, &mut effects),
            _ => {
                let pause = Duration::from_millis(10);
                let refused = Refused::Unserved;
                assert!(world.holds.renewal_refused(scripts[0], refused, pause, world.now).is_empty());
            }
        }
        assert!(world.holds.may_verify() && world.holds.alarms.watchdog_to_wake().is_some(), "{way}");
    }
}

/// Another reply leaves room for releases that a failover repeats.
#[test]
fn ended_repetition_wakes_watchdog() {
    let (mut world, task) = (World::new(), Arc::<Task>::default());
    world.release(1..=257, 0);
    world.holds.changed(&Change::everywhere(), world.now);
    let first = world.repeated();
    for is_last in [false, true] {
        leaves(&mut world, &task);
        world.reconciled(&first[usize::from(is_last)], true, 0);
        assert_eq!(world.holds.alarms.watchdog_to_wake().is_some(), !is_last);
        assert_eq!(world.repeated().len(), usize::from(!is_last));
        if !is_last {
            world.reconciled(&first[2], true, 0);
            assert!(world.repeated().is_empty());
        }
    }
}

#[test]
fn old_releases_are_forgotten_in_turn() {
    let mut world = World::new();
    let (start, second) = (world.now, Duration::from_secs(1));
    for (owner, node, at) in [(1, 0, 0), (2, 1, 1), (3, 1, 10)] {
        world.now = start + at * second;
        world.release([owner], node);
    }
    for at in [0, 1, 10] {
        world.now = start + at * second + KEPT;
        // The wheel names a slot's start for an event that is far away.
        assert!(world.holds.next_due().is_some_and(|next| next <= world.now));
        assert!(world.due().is_empty());
    }
    assert_eq!(world.holds.next_due(), None);
    world.release([4], 0);
    assert!(world.holds.next_due().is_some_and(|next| next <= world.now + KEPT));
}
