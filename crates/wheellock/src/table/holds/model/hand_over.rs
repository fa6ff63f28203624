//! Model tests of hand-over between guards.

use super::*;
use crate::wait::turns::Contenders;

/// Time for which the process may hand a hold over.
const SHARE: Duration = Duration::from_millis(150);

fn one_hold() -> (World, HoldIndex) {
    let mut world = World::of_strangers();
    assert!(world.step(Event::Acquire).is_continue());
    let hold = world.guards[0];
    (world, hold)
}

fn hand_over(world: &mut World, hold: HoldIndex, last: Option<Handed>) -> Result<Handed, GiveBack> {
    let limit = TurnLimit { last, budget: SHARE, is_tight: false, opening: Opening::Published };
    world.holds.hand_over(hold, GUARD, limit, world.now)
}

#[test]
fn process_hands_over_for_its_share() {
    let (mut world, hold) = one_hold();
    let start = world.now;
    world.now = start + SHARE / 2;
    let other = Handed::new(u64::MAX, start.saturating_sub(LEASE));
    let handed = hand_over(&mut world, hold, Some(other)).unwrap();
    assert_eq!(handed.granted_at, start, "the time of another hold does not count");
    world.now = start + (SHARE - Duration::from_millis(1));
    assert_eq!(hand_over(&mut world, hold, Some(handed)).unwrap().granted_at, start);
    world.now = start + SHARE;
    assert_eq!(hand_over(&mut world, hold, Some(handed)).err(), Some(GiveBack::OutOfTime));
    assert!(world.holds.handed_over_before(hold).is_none(), "it has a guard");
    world.holds.release(hold, GUARD, world.now).unwrap();
    let (name, opening) = world.holds.handed_over_before(hold).unwrap();
    assert!(Arc::ptr_eq(name, &world.name) && opening == Opening::Published);
}

/// The other process had one hold in its turn.
#[test]
fn tight_share_fits_half_a_hold() {
    let (mut world, hold) = one_hold();
    let start = world.now;
    world.now = start + SHARE * 5 / 8;
    let limit = TurnLimit { last: None, budget: SHARE, is_tight: true, opening: Opening::Not };
    assert!(
        world.holds.hand_over(hold, GUARD, limit, world.now).is_ok(),
        "half of another such hold fits in"
    );
    let (mut world, hold) = one_hold();
    world.now = world.now + SHARE * 3 / 4;
    assert_eq!(world.holds.hand_over(hold, GUARD, limit, world.now).err(), Some(GiveBack::OutOfTime));
}

#[test]
fn hand_over_starts_next_hold() {
    let (mut world, hold) = one_hold();
    let start = world.now;
    world.now = start + SHARE / 2;
    let handed = hand_over(&mut world, hold, None).unwrap();
    world.now = start + SHARE * 3 / 4;
    let limit = TurnLimit { last: Some(handed), budget: SHARE, is_tight: true, opening: Opening::Not };
    let handed = world.holds.hand_over(hold, GUARD, limit, world.now);
    assert!(handed.is_ok(), "the second hold lasted for a quarter of the share");
}

#[test]
fn forgotten_hand_over_has_no_share() {
    let (mut world, hold) = one_hold();
    assert!(hand_over(&mut world, hold, None).is_ok(), "it was granted to its guard");
    assert_eq!(hand_over(&mut world, hold, None).err(), Some(GiveBack::OutOfTime));
}

#[test]
fn hand_over_counts_hold_and_acquire() {
    let (mut world, hold) = one_hold();
    let before = world.holds.counted();
    hand_over(&mut world, hold, None).unwrap();
    assert!(world.holds.take_over(hold, None, world.now, || 0));
    let counted = world.holds.counted();
    assert_eq!((counted.acquires, counted.hand_overs), (before.acquires + 1, before.hand_overs + 1));
    assert_eq!(counted.hold.count(), before.hold.count() + 1);
}

#[test]
fn hold_is_taken_until_expiry() {
    let (mut world, hold) = one_hold();
    let end = world.valid_until(hold);
    assert!(world.holds.take_over(hold, None, end.saturating_sub(Duration::from_nanos(1)), || 0));
    assert!(!world.holds.take_over(hold, None, end, || 0));
    world.now = world.now + LEASE / 2;
    world.keep();
    assert!(world.step(Event::Renewed(Renewed::NotOwner)).is_continue());
    assert!(!world.holds.take_over(hold, None, world.now, || 0), "another owner has it");
}

#[test]
fn half_lease_suffices_for_hand_over() {
    for (later, passes) in [(Duration::ZERO, true), (Duration::from_nanos(1), false)] {
        let (mut world, hold) = one_hold();
        world.now = world.valid_until(hold).saturating_sub(LEASE / 2) + later;
        let limit = TurnLimit { last: None, budget: 10 * LEASE, is_tight: false, opening: Opening::Not };
        assert_eq!(world.holds.hand_over(hold, GUARD, limit, world.now).is_ok(), passes);
    }
}

#[test]
fn other_hold_wish_stops_nothing() {
    let (mut world, hold) = one_hold();
    let other = world.take(7, true);
    world.holds.wish(other, Want::Renew, (world.now, world.now + WAIT), Waker::noop()).unwrap();
    assert!(hand_over(&mut world, hold, None).is_ok());
}

#[test]
fn unfit_hold_passes_to_no_guard() {
    // Code outside the library may present the owner.
    let mut world = World::new();
    assert!(world.step(Event::Acquire).is_continue());
    let hold = world.guards[0];
    assert_eq!(hand_over(&mut world, hold, None).err(), Some(GiveBack::Unfit));
    // The watchdog does not keep the hold.
    let mut world = World::of_strangers();
    let name = Arc::clone(&world.name);
    let hold = world.ask_for(&name, 1);
    world.grant(hold, Terms { share: FIXED, ..world.terms() });
    assert_eq!(hand_over(&mut world, hold, None).err(), Some(GiveBack::Unfit));
    // A guard waits for an extension.
    let (mut world, hold) = one_hold();
    world.holds.wish(hold, Want::Renew, (world.now, world.now + WAIT), Waker::noop()).unwrap();
    assert_eq!(hand_over(&mut world, hold, None).err(), Some(GiveBack::Unfit));
    // The hold is in doubt, and no guard waits.
    let (mut world, hold) = one_hold();
    world.holds.verify(&world.name, world.now);
    assert_eq!(hand_over(&mut world, hold, None).err(), Some(GiveBack::Unfit));
    // The release is under way.
    let (mut world, hold) = one_hold();
    world.holds.release(hold, GUARD, world.now).unwrap();
    assert_eq!(hand_over(&mut world, hold, None).err(), Some(GiveBack::Unfit));
    // A share that the watchdog does not keep.
    let (mut world, hold) = one_hold();
    let limit = TurnLimit { last: None, budget: SHARE, is_tight: false, opening: Opening::Not };
    assert_eq!(world.holds.hand_over(hold, FIXED, limit, world.now).err(), Some(GiveBack::Unfit));
}

/// In the shell the next renewal is scheduled at once.
#[test]
fn unanswered_wish_prevents_hand_over() {
    let (mut world, hold) = one_hold();
    let until = world.now + WAIT;
    let (_, renewal) = world.holds.wish(hold, Want::Renew, (world.now, until), Waker::noop()).unwrap();
    let script = world.holds.begin_renewal(vec![renewal.unwrap()], Some(0), world.now);
    let (_, next) = world.holds.wish(hold, Want::Renew, (world.now, until), Waker::noop()).unwrap();
    assert!(next.is_none(), "the first renewal is under way");
    world.answer(script, &[1]);
    assert_eq!(hand_over(&mut world, hold, None).err(), Some(GiveBack::Unfit));
}

#[test]
fn lost_hold_passes_to_no_guard() {
    for shuts_down in [false, true] {
        let (mut world, hold) = one_hold();
        let mut effects = Effects::default();
        if shuts_down {
            assert!(world.holds.shut_down(world.now, &mut effects).is_empty());
        } else {
            world.holds.refused_by_other(hold, world.now, &mut effects);
        }
        assert_eq!(hand_over(&mut world, hold, None).err(), Some(GiveBack::Unfit));
    }
}

/// Marks the release of a share for other processes. Returns true if the release frees the lock.
fn let_others(world: &mut World, hold: HoldIndex) -> bool {
    let frees = world.holds.let_others(hold, GUARD, world.now);
    let is_marked = world.holds.get(hold).unwrap().known_by == KnownBy::HandedOver(Opening::Not);
    assert_eq!(is_marked, frees);
    frees
}

#[test]
fn only_freeing_release_lets_others() {
    let (mut world, hold) = one_hold();
    world.now = world.valid_until(hold).saturating_sub(Duration::from_nanos(1));
    assert!(let_others(&mut world, hold));
    // The lease has ended.
    let (mut world, hold) = one_hold();
    world.now = world.valid_until(hold);
    assert!(!let_others(&mut world, hold));
    // Another owner has the lock.
    let (mut world, hold) = one_hold();
    world.holds.refused_by_other(hold, world.now, &mut Effects::default());
    assert!(!let_others(&mut world, hold));
    // Another guard keeps the lock.
    let (mut world, hold) = one_hold();
    world.holds.get_mut(hold).unwrap().guards = 2;
    assert!(!let_others(&mut world, hold));
    // Code outside the library may present the owner.
    let mut world = World::new();
    assert!(world.step(Event::Acquire).is_continue());
    let hold = world.guards[0];
    assert!(!let_others(&mut world, hold));
    // A guard waits for an extension.
    let (mut world, hold) = one_hold();
    world.holds.wish(hold, Want::Renew, (world.now, world.now + WAIT), Waker::noop()).unwrap();
    assert!(!let_others(&mut world, hold));
}

#[test]
fn released_lock_is_left_to_contenders() {
    for (kind, receivers, is_planned, is_left) in [
        (&*kind::REENTRANT, None, false, false),
        (&*kind::REENTRANT, Some(0), false, false),
        (&*kind::REENTRANT, Some(1), false, true),
        (&*kind::REENTRANT, None, true, true),
        (&*kind::READ, Some(1), false, false),
    ] {
        let mut world = World::of_strangers();
        let name = Arc::new(Name::new("n", kind, false));
        let hold = world.ask_for(&name, 1);
        world.grant(hold, world.terms());
        if is_planned {
            assert!(world.holds.let_others(hold, GUARD, world.now));
        }
        let contenders = Contenders { receivers, poll: false };
        assert!(world.holds.stands_back_after(hold, contenders).is_none(), "a guard has it");
        let _request = world.holds.release(hold, GUARD, world.now);
        let left = world.holds.stands_back_after(hold, contenders);
        assert!(left.is_none_or(|(left, _)| Arc::ptr_eq(left, &name)));
        assert_eq!(left.map(|(_, planned)| planned), is_left.then_some(is_planned), "{receivers:?}");
    }
}
