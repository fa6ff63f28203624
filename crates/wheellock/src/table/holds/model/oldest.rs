//! Model tests of the search for the oldest holds.

use super::*;

const LONG: Duration = Duration::from_secs(600);
const SHORTEST: Duration = Duration::from_secs(5);
const MS: Duration = Duration::from_millis(1);

/// Takes a hold of an own name with a long lease, a millisecond after the last.
fn take(world: &mut World, owner: u64) -> HoldIndex {
    world.now = world.now + MS;
    let name = Arc::new(Name::new(&format!("n{owner}"), &kind::REENTRANT, false));
    let hold = world.ask_for(&name, owner);
    world.grant(hold, Terms { lease: Lease::new(LONG).unwrap(), ..world.terms() });
    hold
}

/// Returns the owners that a search of the whole table finds.
fn found(world: &World) -> Vec<u64> {
    let (mut oldest, mut place) = (Oldest::default(), Some(0));
    while let Some(from) = place {
        place = world.holds.find_oldest(from, world.now, &mut oldest);
    }
    oldest.iter().map(|(_, _, owner)| owner).collect()
}

#[test]
fn search_finds_hundred_oldest_holds() {
    const HOLDS: u64 = 2500;
    let mut world = World::new();
    let holds: Vec<_> = (1..=HOLDS).map(|owner| take(&mut world, owner)).collect();
    assert!(found(&world).is_empty(), "they are young");
    for hold in &holds[..50] {
        let request = world.holds.release(*hold, GUARD, world.now);
        assert!(request.is_some());
        world.holds.reconciled(*hold, true, 0, world.now, &mut Effects::default());
    }
    // These have the places of the released holds.
    for owner in 1..=50 {
        take(&mut world, HOLDS + owner);
    }
    world.now = world.now + SHORTEST;
    assert_eq!(found(&world), (51..=150).collect::<Vec<_>>());
    world.now = world.now + LONG;
    assert!(found(&world).is_empty(), "their leases have ended");
}

#[test]
fn search_finds_hold_at_shortest_age() {
    let mut world = World::new();
    take(&mut world, 1);
    world.now = world.now + (SHORTEST - MS);
    assert!(found(&world).is_empty());
    world.now = world.now + MS;
    assert_eq!(found(&world), [1]);
}
