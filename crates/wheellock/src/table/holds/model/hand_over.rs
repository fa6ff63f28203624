//! Model tests of hand-over between guards.

use super::*;

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
    assert!(world.holds.take_over(hold, world.now));
    let counted = world.holds.counted();
    assert_eq!((counted.acquires, counted.hand_overs), (before.acquires + 1, before.hand_overs + 1));
    assert_eq!(counted.hold.count(), before.hold.count() + 1);
}

#[test]
fn hold_is_taken_until_expiry() {
    let (mut world, hold) = one_hold();
    let end = world.valid_until(hold);
    assert!(world.holds.take_over(hold, end.saturating_sub(Duration::from_nanos(1))));
    assert!(!world.holds.take_over(hold, end));
    world.now = world.now + LEASE / 2;
    world.keep();
    assert!(world.step(Event::Renewed(Renewed::NotOwner)).is_continue());
    assert!(!world.holds.take_over(hold, world.now), "another owner has it");
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
    world.holds.wish(other, Want::Renew, world.now + WAIT, Waker::noop()).unwrap();
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
    world.holds.wish(hold, Want::Renew, world.now + WAIT, Waker::noop()).unwrap();
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
