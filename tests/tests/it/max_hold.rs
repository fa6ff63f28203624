//! Holds with a maximum time on real servers.

use std::time::{Duration, Instant};

use wheellock::{Error, LostReason, blocking};
use wheellock_tests::locks::{PATIENCE, adjusted, manager};
use wheellock_tests::{RedisServer, eventually};

const MAX: Duration = Duration::from_secs(2);
/// Three times shorter than the maximum, so that the watchdog renews several times.
const LEASE: Duration = Duration::from_millis(700);
/// A busy machine delays a waiter by this time at most.
const LATE: Duration = Duration::from_millis(500);

/// The field, the count and the expiry are those of any holder, and the expiry never passes the maximum.
#[tokio::test]
async fn limited_hold_matches_wire_contract() {
    let server = RedisServer::start();
    let locks = adjusted(&server.url(), LEASE, |_| {}).await;
    let lock = locks.lock("n").with_max_hold(MAX);
    let before = Instant::now();
    let guard = lock.acquire().await.unwrap();
    let granted = Instant::now();
    let owner = guard.owner().to_string();
    assert_eq!(server.cli(&["HGETALL", "n"]).split_whitespace().collect::<Vec<_>>(), [owner.as_str(), "1"]);
    let mut longest = Duration::ZERO;
    loop {
        let left = server.cli(&["PTTL", "n"]);
        let Ok(left) = left.parse::<u64>() else { break };
        let ends = before.elapsed() + Duration::from_millis(left);
        longest = longest.max(ends);
        assert!(granted.elapsed() + Duration::from_millis(left) <= MAX + LATE, "{left} ms left");
        // The expiry is sampled until the key is gone.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(longest >= MAX - LEASE / 2, "it was renewed: {longest:?}");
    assert_eq!(guard.lost().await, LostReason::HeldTooLong);
}

/// The holder's thread is blocked, so it neither releases nor learns of the loss.
#[tokio::test(flavor = "multi_thread")]
async fn wedged_holder_is_succeeded_in_time() {
    let server = RedisServer::start();
    let locks = adjusted(&server.url(), LEASE, |_| {}).await;
    let others = manager(&server.url()).await;
    for kind in ["plain", "fair", "simple"] {
        let of = |locks: &wheellock::LockManager| match kind {
            "fair" => locks.fair_lock(kind),
            "simple" => locks.simple_lock(kind),
            _ => locks.lock(kind),
        };
        let guard = of(&locks).with_max_hold(MAX).acquire().await.unwrap();
        let granted = Instant::now();
        let (wakes, wedged) = std::sync::mpsc::channel::<()>();
        let work =
            tokio::spawn(
                async move { guard.run(async move { Ok::<_, Error>(wedged.recv().is_ok()) }).await },
            );
        let next = of(&others).acquire().await.unwrap();
        let held = granted.elapsed();
        assert!(held + LATE >= MAX && held <= MAX + LATE, "{kind}: {held:?}");
        drop((next, wakes));
        assert!(matches!(work.await.unwrap(), Err(Error::Lost { reason: LostReason::HeldTooLong, .. })));
    }
}

/// The watchdog of threads obeys the maximum, too.
#[tokio::test]
async fn thread_loses_lock_at_maximum() {
    let server = RedisServer::start();
    let url = server.url();
    let held = tokio::task::spawn_blocking(move || {
        let builder = blocking::LockManager::builder(&url).watchdog_lease(LEASE);
        let locks = builder.connect_blocking().unwrap();
        let lock = locks.lock("n").with_max_hold(MAX);
        let granted = Instant::now();
        let (outer, inner) = (lock.acquire().unwrap(), lock.acquire().unwrap());
        assert_eq!(inner.lost(), LostReason::HeldTooLong);
        assert!(matches!(outer.release(), Err(Error::Lost { reason: LostReason::HeldTooLong, .. })));
        granted.elapsed()
    });
    let held = held.await.unwrap();
    assert!(held + LATE >= MAX && held <= MAX + LATE, "{held:?}");
    let is_free = async || server.cli(&["EXISTS", "n"]) == "0";
    assert!(eventually(PATIENCE, is_free).await);
}
