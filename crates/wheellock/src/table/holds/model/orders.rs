//! Model tests of long orders of events.
//!
//! Not every such order can be tried, so these tests try the same random orders each time.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::RngSeed;

use super::*;

/// Events before a shutdown, which ends most of them.
const EARLY: usize = EVENTS.len() - 2;

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, rng_seed: RngSeed::Fixed(1), ..ProptestConfig::default() })]

    /// Events that cannot happen are skipped.
    #[test]
    fn long_event_orders_keep_invariants(
        early in vec(select(&EVENTS[..EARLY]), 1..40),
        late in vec(select(&EVENTS[..]), 0..10),
        is_of_strangers: bool,
    ) {
        let path = [early, late].concat();
        let mut world = if is_of_strangers { World::of_strangers() } else { World::new() };
        path.iter().for_each(|event| _ = world.step(*event));
        world.settle_down(&path);
    }
}
