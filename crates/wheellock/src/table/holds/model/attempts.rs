//! Model tests of attempts, and of grants that concern other holds.

use super::*;
use crate::kind::Kind;

fn name(text: &str, kind: &'static Kind) -> Arc<Name> {
    Arc::new(Name::new(text, kind, false))
}

/// Takes a lock for a new owner.
fn take(world: &mut World, name: &Arc<Name>, owner: u64) -> HoldIndex {
    let hold = world.ask_for(name, owner);
    world.grant(hold, world.terms());
    hold
}

/// Returns the instants of the scheduled checks.
fn planned<const N: usize>(world: &World, holds: [HoldIndex; N]) -> [Option<BootInstant>; N] {
    holds.map(|hold| world.holds.get(hold).unwrap().renewing.planned())
}

/// The server has one count for several kinds of lock.
#[test]
fn owner_takes_one_kind_at_once() {
    let task = Arc::<Task>::default();
    let other = name("n", &kind::FAIR);
    let is_held = |world: &mut World| {
        let names = [Arc::clone(&other), Arc::clone(&world.name)];
        world.holds.is_held_otherwise(1, &names, &task.waker())
    };
    let mut world = World::new();
    assert_eq!(is_held(&mut world), Poll::Ready(false));
    let attempt = world.begin().unwrap();
    assert!(is_held(&mut world).is_pending());
    let mut effects = Effects::default();
    assert!(world.holds.refused(attempt, 1, &mut effects).is_none());
    effects.wake_all();
    assert_eq!((task.woken(), is_held(&mut world)), (1, Poll::Ready(false)));
    assert!(world.step(Event::Acquire).is_continue());
    assert_eq!(is_held(&mut world), Poll::Ready(true));
    assert!(world.step(Event::Release).is_continue());
    assert!(is_held(&mut world).is_pending(), "the release is under way");
    let (hold, mut effects) = (world.settles[0].hold, Effects::default());
    assert!(world.holds.reconciled(hold, true, 0, world.now, &mut effects).is_none());
    effects.wake_all();
    assert_eq!((task.woken(), is_held(&mut world)), (1, Poll::Ready(false)));
    let (mut world, hold) = World::with_guards(1);
    let _attempt = world.begin().unwrap();
    world.lose(hold);
    assert!(is_held(&mut world).is_pending(), "the attempt of the lost hold is under way");
}

/// A deletion and a grant may overtake each other.
#[test]
fn forced_release_loses_older_holds() {
    let mut world = World::new();
    let [old, released, lost, other] = [1, 2, 3, 4].map(|owner| world.take(owner, true));
    assert!(world.holds.release(released, GUARD, world.now).is_some());
    world.lose(lost);
    world.now = world.now + TICK;
    let (sent, same) = (world.now, world.take(5, true));
    world.now = world.now + TICK;
    let young = world.take(6, true);
    let names = [old, released, lost, same, young];
    let names = names.map(|hold| Arc::clone(&world.holds.get(hold).unwrap().name));
    let mut effects = Effects::default();
    world.holds.freed_by_force(&names, sent, world.now, &mut effects);
    assert_eq!(logged(effects), [LostReason::NotOwner]);
    assert_eq!(world.holds.lost(old), Some(LostReason::NotOwner));
    assert_eq!([released, same, young, other].map(|hold| world.holds.lost(hold)), [None; 4]);
    let verified = [old, released, lost, other, same, young].map(|hold| hold == same || hold == young);
    assert_eq!(planned(&world, [old, released, lost, other, same, young]).map(|at| at.is_some()), verified);
}

#[test]
fn doubt_concerns_every_reader() {
    let mut world = World::new();
    let (lock, other) = (name("n", &kind::READ), name("m", &kind::READ));
    let readers = [1, 2, 3, 4].map(|owner| take(&mut world, &lock, owner));
    let stranger = take(&mut world, &other, 5);
    assert!(world.holds.release(readers[2], GUARD, world.now).is_some());
    world.lose(readers[3]);
    world.holds.verify_all(&[lock], world.now);
    assert_eq!(planned(&world, readers), [Some(world.now), Some(world.now), None, None]);
    assert_eq!(planned(&world, [stranger]), [None]);
}

/// A writer may read as well.
#[test]
fn writer_doubts_other_readers() {
    for owner in [1, 2] {
        let mut world = World::new();
        let (read, write) = (name("n", &kind::READ), name("n", &kind::WRITE));
        let (reader, writer) = (take(&mut world, &read, 1), take(&mut world, &write, owner));
        world.holds.verify_other_side(writer, &read, world.now);
        assert_eq!(planned(&world, [reader, writer]), [(owner == 2).then_some(world.now), None]);
    }
}

#[test]
fn grant_doubts_only_believed_rival() {
    for is_released in [false, true] {
        let mut world = World::new();
        let lock = Arc::clone(&world.name);
        let first = take(&mut world, &lock, 1);
        if is_released {
            assert!(world.holds.release(first, GUARD, world.now).is_some());
        } else {
            world.lose(first);
        }
        world.now = world.now + LEASE / 10;
        let second = take(&mut world, &lock, 2);
        assert_eq!(planned(&world, [second]), [None]);
        assert_eq!(world.holds.lost(first).is_none(), is_released);
        assert_eq!(world.holds.counted().lost_not_owner, u64::from(!is_released));
    }
}

/// The grants arrive in the wrong order.
#[test]
fn remaining_owner_is_verified_again() {
    let mut world = World::new();
    let lock = Arc::clone(&world.name);
    let (first, early) = (world.ask_for(&lock, 1), world.terms());
    world.now = world.now + LEASE / 10;
    let second = take(&mut world, &lock, 2);
    world.grant(first, early);
    let renewals = world.due();
    let script = world.holds.begin_renewal(renewals, None, world.now);
    world.answer(script, &[1]);
    assert_eq!(planned(&world, [first, second]), [None, None]);
    world.holds.verify(&lock, world.now);
    assert_eq!(planned(&world, [first, second]), [None, Some(world.now)]);
}

/// The owner's tasks wait for an attempt on a lock that vanishes from the server.
#[test]
fn vanished_lock_loses_older_guards() {
    let (mut world, old) = World::with_guards(1);
    let (attempt, terms, task) = (world.begin().unwrap(), world.terms(), Arc::<Task>::default());
    let owner = (&world.name, 1);
    let waits = world.holds.begin_attempt(owner, true, (terms.lease, 1), world.now, &task.waker());
    assert!(waits.is_pending());
    let mut effects = Effects::default();
    let granted = world.holds.granted(attempt, terms, GrantReply::Fresh, world.now, &mut effects);
    let Some(Granted::Held(new, None)) = granted else { panic!("it is granted") };
    assert_eq!(logged(effects), [LostReason::NotOwner]);
    assert_eq!(task.woken(), 1);
    assert_ne!(new, old);
    assert_eq!([old, new].map(|hold| world.holds.lost(hold)), [Some(LostReason::NotOwner), None]);
    assert_eq!(world.begin(), Some(new));
    assert_eq!((world.guards_of(old), world.guards_of(new)), (1, 1));
    assert!(world.holds.release(old, GUARD, world.now).is_none());
    assert!(world.holds.get(old).is_none());
}

#[test]
fn unreplicated_grant_is_taken_back() {
    let take_back = |world: &mut World, reply| {
        let (attempt, terms) = (world.begin().unwrap(), world.terms());
        let request = world.holds.take_back(attempt, terms, reply, world.now, &mut Effects::default());
        (attempt, request.unwrap())
    };
    let mut world = World::new();
    let (attempt, request) = take_back(&mut world, GrantReply::Fresh);
    assert_eq!((request.hold, request.count), (attempt, 0));
    assert_eq!(world.holds.counted().not_replicated, 1);
    // An older guard keeps its share.
    let (mut world, hold) = World::with_guards(1);
    let (_, request) = take_back(&mut world, GrantReply::Again);
    assert_eq!((request.hold, request.count, world.holds.lost(hold)), (hold, 1, None));
    // The grant shows that the older guard has lost its share.
    let (mut world, hold) = World::with_guards(1);
    let (_, request) = take_back(&mut world, GrantReply::Fresh);
    assert!(request.hold != hold && request.count == 0);
    assert_eq!(world.holds.lost(hold), Some(LostReason::NotOwner));
    // The loss was known before.
    let (mut world, hold) = World::with_guards(1);
    let (attempt, terms) = (world.begin().unwrap(), world.terms());
    world.lose(hold);
    let mut effects = Effects::default();
    let request = world.holds.take_back(attempt, terms, GrantReply::Fresh, world.now, &mut effects);
    assert_eq!(request.map(|request| (request.hold, request.count)), Some((hold, 0)));
    assert!(logged(effects).is_empty());
}

/// The server may execute a request at any instant before its reply.
#[test]
fn reply_bounds_lease_on_server() {
    for is_granted in [false, true] {
        let mut world = World::new();
        let (attempt, terms) = (world.begin().unwrap(), world.terms());
        let expired_by = |world: &World| world.holds.get(attempt).unwrap().expired_by;
        assert_eq!(expired_by(&world), terms.lease.expired_by(world.now));
        world.now = world.now + LEASE / 2;
        if is_granted {
            world.grant(attempt, terms);
        } else {
            assert!(world.holds.cancel_attempt(attempt, 1, terms.lease, world.now).is_some());
        }
        assert_eq!(expired_by(&world), terms.lease.expired_by(world.now));
    }
}

#[test]
fn slow_grant_plans_early_renewal() {
    for (slow, is_planned) in [(LEASE / 6, false), (LEASE / 6 + Duration::from_nanos(1), true)] {
        let mut world = World::new();
        let (hold, terms) = (world.begin().unwrap(), world.terms());
        world.now = world.now + slow;
        world.grant(hold, terms);
        assert_eq!(planned(&world, [hold]), [is_planned.then_some(terms.sent + LEASE / 3)]);
        assert_eq!(world.holds.counted().acquires, 1);
    }
}

/// Other readers may shorten the lease, and the watchdog does not extend it.
#[test]
fn fixed_lease_of_reader_is_checked() {
    for (kind, share, is_checked) in
        [(&*kind::READ, FIXED, true), (&*kind::READ, GUARD, false), (&*kind::REENTRANT, FIXED, false)]
    {
        let mut world = World::new();
        let hold = world.ask_for(&name("n", kind), 1);
        world.grant(hold, Terms { share, ..world.terms() });
        let first = world.now + LEASE / 3;
        assert_eq!(planned(&world, [hold]), [is_checked.then_some(first)]);
        if !is_checked {
            continue;
        }
        // An earlier check stays, and each reply plans the next check.
        let soon = world.now + LEASE / 10;
        world.holds.verify_hold(hold, soon);
        world.now = soon;
        let renewals = world.due();
        assert!(renewals.len() == 1 && !renewals[0].extend);
        let script = world.holds.begin_renewal(renewals, None, world.now);
        world.answer(script, &[400]);
        assert_eq!(planned(&world, [hold]), [Some(world.now + LEASE / 3)]);
    }
}

/// A waiter's entry in the queue of the server is removed, but not its hold.
#[test]
fn withdrawal_spares_own_holds() {
    let withdraws = |held: Option<(&'static Kind, &str)>, kind: &'static Kind, owner, presented| {
        let mut world = World::new();
        let name_to_leave = name("n", kind);
        let lock = held.map(|(kind, text)| {
            let lock = if std::ptr::eq(kind, name_to_leave.kind()) && text == "n" {
                Arc::clone(&name_to_leave)
            } else {
                name(text, kind)
            };
            let lease = Lease::new(LEASE).unwrap();
            let began = world.holds.begin_attempt((&lock, 1), true, (lease, 1), world.now, Waker::noop());
            assert!(began.is_ready());
            lock
        });
        let request = world.holds.withdraw(&name_to_leave, owner, presented, world.now);
        drop(lock);
        let request = request?;
        assert_eq!((request.owner, request.count), (owner, 0));
        Some(world.holds.get(request.hold).unwrap().expired_by == Lease::DEFAULT.expired_by(world.now))
    };
    let (fair, write, plain) = (&*kind::FAIR, &*kind::WRITE, &*kind::REENTRANT);
    for (held, kind, owner, presented, is_sent) in [
        (None, fair, 1, true, true),
        // The owner's other attempt sends the wanted count.
        (Some((fair, "n")), fair, 1, true, false),
        (Some((write, "n")), write, 1, true, false),
        // The owner has the same key through another kind.
        (Some((plain, "n")), fair, 1, true, false),
        (Some((plain, "n")), fair, 2, true, true),
        (Some((plain, "n")), fair, 1, false, true),
        (Some((plain, "m")), fair, 1, true, true),
        // The two sides of a read-write lock have a key of their own.
        (Some((write, "n")), fair, 1, true, true),
        (Some((plain, "n")), write, 1, true, true),
    ] {
        let label = (held.map(|(held, text)| (held.label, text)), kind.label, owner);
        assert_eq!(withdraws(held, kind, owner, presented), is_sent.then_some(true), "{label:?}");
    }
}

/// A release that finds no permit makes the server reject a late acquire.
#[test]
fn semaphore_repeats_release_after_doubt() {
    for (kind, is_repeated) in [(&*kind::SEMAPHORE, true), (&*kind::REENTRANT, false)] {
        for is_granted in [false, true] {
            let mut world = World { name: name("n", kind), ..World::new() };
            let (attempt, terms) = (world.begin().unwrap(), world.terms());
            let request = if is_granted {
                // The first request had no reply.
                world.holds.may_arrive_late(attempt);
                world.grant(attempt, terms);
                world.holds.release(attempt, GUARD, world.now)
            } else {
                world.holds.cancel_attempt(attempt, 1, terms.lease, world.now)
            };
            assert!(request.is_some());
            let mut effects = Effects::default();
            let again = world.holds.reconciled(attempt, true, 0, world.now, &mut effects);
            assert_eq!(again.is_some(), is_repeated);
            if again.is_some() {
                assert!(world.holds.reconciled(attempt, false, 0, world.now, &mut effects).is_none());
            }
            assert!(world.holds.holds.is_empty());
        }
    }
    // The owner still has a permit.
    let mut world = World { name: name("n", &kind::SEMAPHORE), ..World::new() };
    assert!(world.step(Event::Acquire).is_continue());
    assert!(world.step(Event::Cancel).is_continue());
    assert!(world.step(Event::Reconciled(true)).is_continue());
    assert!(world.settles.is_empty());
}

/// The watchdog repeats a release for an owner, and the owner returns before the retry.
#[test]
fn returning_owner_ends_repetition() {
    const MOST: usize = 256;
    let mut world = World::new();
    world.release(1..=MOST as u64 + 1, 0);
    world.holds.changed(&Change::everywhere(), world.now);
    let again = world.repeated();
    assert_eq!(again.len(), MOST);
    for request in &again {
        world.holds.reconcile_again(request.hold, Unreconciled::Failed, world.now, &mut Effects::default());
        let owner = (&request.name, request.owner);
        let lease = (Lease::new(LEASE).unwrap(), 1);
        let began = world.holds.begin_attempt(owner, true, lease, world.now, Waker::noop());
        assert!(matches!(began, Poll::Ready(Some((hold, 1))) if hold == request.hold));
        assert_eq!(world.holds.get(request.hold).unwrap().state, State::Asked);
    }
    let rest = world.repeated();
    assert_eq!(rest.iter().map(|request| request.owner).collect::<Vec<_>>(), [1], "the oldest is the last");
}

/// A hold may wait for its retry while its owner makes an attempt.
#[test]
fn retry_never_overtakes_attempt() {
    let (mut world, hold) = World::with_guards(1);
    assert!(world.holds.release(hold, GUARD, world.now).is_some());
    let task = Arc::<Task>::default();
    let ask = |world: &mut World| {
        let (lease, owner) = (Lease::new(LEASE).unwrap(), (&world.name, 1));
        world.holds.begin_attempt(owner, true, (lease, 1), world.now, &task.waker())
    };
    assert!(ask(&mut world).is_pending());
    let mut effects = Effects::default();
    world.holds.reconcile_again(hold, Unreconciled::Failed, world.now, &mut effects);
    effects.wake_all();
    assert_eq!(task.woken(), 1, "no attempt waits for a retry");
    assert!(ask(&mut world).is_ready());
    let retry_after = LEASE / 20;
    for _ in 0..2 {
        world.now = world.now + retry_after;
        assert!(world.repeated().is_empty());
        assert_eq!(world.holds.next_due(), Some(world.now + retry_after));
    }
    assert!(world.holds.refused(hold, 1, &mut Effects::default()).is_none(), "the retry is scheduled");
    world.now = world.now + retry_after;
    assert_eq!(world.repeated().len(), 1);
}
