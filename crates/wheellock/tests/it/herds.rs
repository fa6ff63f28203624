//! Many processes that want one lock.
//!
//! The tests check the cost of each turn for the server, and the time until each process gets the lock.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use wheellock::testing::Double;
use wheellock::{Lock, LockManager};

const NAME: &str = "orders:42";
/// One round trip. Requests arrive at once. Replies and messages take the whole time.
const TRIP: Duration = Duration::from_millis(10);

type Kind = (&'static str, fn(&LockManager) -> Lock);

/// Returns the kinds whose waiters are all notified of each release.
fn kinds() -> [Kind; 4] {
    [
        ("plain", |locks| locks.lock(NAME)),
        ("simple", |locks| locks.simple_lock(NAME)),
        ("fenced", |locks| locks.fenced_lock(NAME).as_lock().clone()),
        ("write", |locks| locks.read_write_lock(NAME).write()),
    ]
}

/// Measures the cost of a turn when each of `processes` has one turn.
struct Costs {
    commands: f64,
    /// Median time from a release to the next grant.
    hand_over: Duration,
    /// Mean time from a release to the next grant.
    mean: Duration,
}

/// Runs `processes` processes, which have one turn each and hold the lock for `hold`.
async fn herd(lock: fn(&LockManager) -> Lock, processes: u32, hold: Duration) -> Costs {
    let double = Double::new();
    let mut managers = Vec::new();
    for _ in 0..=processes {
        managers.push(double.manager().await.unwrap());
    }
    double.delay(TRIP);
    let first = lock(&managers[0]).acquire().await.unwrap();
    let before = double.commands();
    let wait_for_turn = |locks: &LockManager| {
        let lock = lock(locks);
        tokio::spawn(async move {
            let guard = lock.acquire().await.unwrap();
            let granted = Instant::now();
            sleep(hold).await;
            let released = Instant::now();
            guard.release().await.unwrap();
            (granted, released)
        })
    };
    let tasks: Vec<_> = managers[1..].iter().map(wait_for_turn).collect();
    sleep(50 * TRIP).await;
    let mut turns = vec![(Instant::now(), Instant::now())];
    first.release().await.unwrap();
    for task in tasks {
        turns.push(timeout(Duration::from_secs(600), task).await.expect("all have their turn").unwrap());
    }
    turns.sort_unstable();
    let mut between: Vec<_> = turns.windows(2).map(|pair| pair[1].0 - pair[0].1).collect();
    between.sort_unstable();
    let commands = u32::try_from(double.commands() - before).unwrap();
    Costs {
        commands: f64::from(commands) / f64::from(processes),
        hand_over: between[between.len() / 2],
        mean: between.iter().sum::<Duration>() / processes,
    }
}

#[tokio::test(start_paused = true)]
async fn turn_among_hundred_costs_nine_commands() {
    for (kind, lock) in kinds() {
        let alone = herd(lock, 2, TRIP).await.hand_over;
        for hold in [Duration::ZERO, 4 * TRIP] {
            let Costs { commands, hand_over, mean } = herd(lock, 100, hold).await;
            println!(
                "{kind}, {hold:?}: {commands:.1} commands per turn, {hand_over:?}, mean {mean:?}, among two {alone:?}"
            );
            assert!(commands <= 9.0, "{kind}, {hold:?}: {commands:.1} commands per turn");
            assert!(
                hand_over <= alone + 2 * TRIP,
                "{kind}, {hold:?}: {hand_over:?}, and {alone:?} among two"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn turn_among_thousand_costs_sixteen_commands() {
    let Costs { commands, hand_over, mean } = herd(|locks| locks.lock(NAME), 1000, TRIP).await;
    println!("{commands:.1} commands per turn, {hand_over:?}, mean {mean:?}");
    assert!(commands <= 16.0, "{commands:.1} commands per turn");
}

#[tokio::test(start_paused = true)]
async fn turn_among_two_has_no_pause() {
    for (kind, lock) in kinds() {
        let hand_over = herd(lock, 2, TRIP).await.hand_over;
        assert!(hand_over <= 2 * TRIP + Duration::from_millis(1), "{kind}: {hand_over:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn last_of_crowd_polls_soon() {
    for (kind, lock) in kinds() {
        let double = Double::new();
        let mut managers = Vec::new();
        for _ in 0..30 {
            managers.push(double.manager().await.unwrap());
        }
        double.delay(TRIP);
        let held = lock(&managers[0]).acquire().await.unwrap();
        let patient = lock(&managers[1]);
        let patient = tokio::spawn(async move { patient.acquire().await.unwrap() });
        let others = managers[2..].iter().map(|locks| {
            let lock = lock(locks);
            tokio::spawn(
                async move { !lock.try_acquire_for(Duration::from_secs(1)).await.unwrap().is_acquired() },
            )
        });
        for other in others.collect::<Vec<_>>() {
            assert!(other.await.unwrap(), "{kind}");
        }
        let start = Instant::now();
        held.release().await.unwrap();
        drop(timeout(Duration::from_secs(5), patient).await.expect("the lock is free").unwrap());
        println!("{kind}: after {:?}", start.elapsed());
    }
}
