//! Scheduled jobs on hosts whose clocks differ, in virtual time.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use tokio::task::LocalSet;
use tokio::time::{Instant, sleep, sleep_until};
use wheellock::testing::Double;
use wheellock::{Attempt, LockManager};

const HOSTS: u64 = 20;
const TICK: Duration = Duration::from_secs(60);
/// Each clock is early or late by this at most.
const SKEW: Duration = Duration::from_secs(5);
const JOB: Duration = Duration::from_millis(100);
/// Longer than the time from the first host to the last, and their waits.
const MIN: Duration = Duration::from_secs(30);
/// The lock of a killed runner is free after this.
const LEASE: Duration = Duration::from_secs(3);
/// A host that arrives behind a killed runner waits for the end of its lease.
const WAIT: Duration = Duration::from_secs(4);
/// Share of the runners that are killed.
const KILLED_PERCENT: u64 = 5;

/// A number below `bound`, from a sequence that is the same in each run.
struct Random(Cell<u64>);

impl Random {
    fn below(&self, bound: u64) -> u64 {
        let next =
            self.0.get().wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0.set(next);
        (next >> 33) % bound
    }
}

/// The runs of each tick.
#[derive(Default, Clone, Copy)]
struct Runs {
    succeeded: u32,
    killed: u32,
    are_under_way: u32,
}

/// Runs the job of one host at each tick by its own clock.
async fn host(locks: LockManager, begins: Instant, random: Rc<Random>, ticks: Rc<RefCell<Vec<Runs>>>) {
    let late = Duration::from_millis(random.below(2 * 5000 + 1));
    let lock = locks.lock("report").with_lease(LEASE).with_min_hold(MIN);
    let count = ticks.borrow().len();
    for (tick, at) in (0..count).zip(1_u32..) {
        sleep_until(begins + TICK * at + late).await;
        let Attempt::Acquired(guard) = lock.try_acquire_for(WAIT).await.unwrap() else { continue };
        let is_killed = random.below(100) < KILLED_PERCENT;
        ticks.borrow_mut()[tick].are_under_way += 1;
        assert_eq!(ticks.borrow()[tick].are_under_way, 1, "two hosts run tick {tick}");
        sleep(JOB).await;
        let runs = &mut ticks.borrow_mut()[tick];
        runs.are_under_way -= 1;
        if is_killed {
            runs.killed += 1;
            // The process is gone, and its lock stays until the lease ends.
            std::mem::forget(guard);
        } else {
            runs.succeeded += 1;
            drop(guard);
        }
    }
}

/// `WHEELLOCK_TICKS` sets the number of ticks.
#[tokio::test(start_paused = true)]
async fn each_tick_runs_exactly_once() {
    let count = std::env::var("WHEELLOCK_TICKS").ok().and_then(|number| number.parse().ok());
    let ticks = Rc::new(RefCell::new(vec![Runs::default(); count.unwrap_or(300)]));
    let random = Rc::new(Random(Cell::new(0x5eed)));
    let double = Double::new();
    let begins = Instant::now() + SKEW;
    let hosts = LocalSet::new();
    for _ in 0..HOSTS {
        let locks = double.manager().await.unwrap();
        hosts.spawn_local(host(locks, begins, Rc::clone(&random), Rc::clone(&ticks)));
    }
    hosts.await;
    let ticks = ticks.borrow();
    let killed: u32 = ticks.iter().map(|runs| runs.killed).sum();
    println!("{} ticks, {killed} runners were killed", ticks.len());
    assert!(killed > 0);
    for (tick, runs) in ticks.iter().enumerate() {
        assert_eq!(runs.succeeded, 1, "tick {tick}: {} killed", runs.killed);
    }
}
