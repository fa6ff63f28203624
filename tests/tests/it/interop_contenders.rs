//! Redisson beside a busy process of this library. The tasks of that process always want the lock. Redisson's spin locks, its loops of
//! `tryLock` and its listeners at a replica all have turns. Without Java all tests are skipped.

use std::time::Duration;

use wheellock::LockManager;
use wheellock_tests::beside::both_sides;
use wheellock_tests::hot::{self, TEN_HERTZ, Working};
use wheellock_tests::interop::{self, Thread};
use wheellock_tests::locks::{PATIENCE, manager};
use wheellock_tests::topology::{SentinelSet, Settings};

const LEASE: Duration = Duration::from_secs(30);
const HOLD: Duration = Duration::from_millis(1);
const TURNS: usize = 3;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redisson_spin_lock_has_turns() {
    let Some((_server, java, locks)) = both_sides(LEASE).await else { return };
    let process = hot_process(&locks, "spun").await;
    let thread = java.thread("t");
    for _ in 0..TURNS {
        let locked = tokio::time::timeout(PATIENCE, thread.lock("spin@spun").done()).await;
        assert_eq!(locked.expect("the spin lock has no turn"), "locked");
        assert_eq!(thread.unlock("spin@spun").done().await, "unlocked");
    }
    process.end().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redisson_try_lock_has_turns() {
    let Some((_server, java, locks)) = both_sides(LEASE).await else { return };
    let process = hot_process(&locks, "tried").await;
    let thread = java.thread("t");
    for _ in 0..TURNS {
        tokio::time::timeout(PATIENCE, tries(&thread, "tried")).await.expect("tryLock has no turn");
        assert_eq!(thread.unlock("tried").done().await, "unlocked");
    }
    process.end().await.unwrap();
}

/// The primary does not count a subscriber at a replica.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redisson_listener_at_replica_has_turns() {
    let Some(peer) = interop::shared() else { return };
    let set = SentinelSet::start(&Settings::default());
    let java = peer.open_at_replicas("replica-listener", &set.url(), LEASE).await;
    let locks = manager(&set.url()).await;
    let process = hot_process(&locks, "heard").await;
    let thread = java.thread("t");
    for _ in 0..TURNS {
        let locked = tokio::time::timeout(PATIENCE, thread.lock("heard").done()).await;
        assert_eq!(locked.expect("the listener has no turn"), "locked");
        assert_eq!(thread.unlock("heard").done().await, "unlocked");
    }
    process.end().await.unwrap();
    java.close().await;
}

/// Starts four tasks that hand the lock over among themselves.
async fn hot_process(locks: &LockManager, name: &str) -> Working {
    let process = hot::hot(&locks.lock(name), 4, HOLD);
    assert!(process.reaches(20, PATIENCE).await, "{name}");
    process
}

/// Calls `tryLock` ten times a second until it succeeds.
async fn tries(thread: &Thread, name: &str) {
    while thread.try_lock(name).done().await != "true" {
        tokio::time::sleep(TEN_HERTZ).await;
    }
}
