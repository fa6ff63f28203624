//! A server that dies and restarts under load.
//!
//! The library must not panic or hang, must report every failure as an error value, and must resume its service.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::timeout;
use wheellock::client::Change;
use wheellock::{Attempt, Error, LockManager, LostReason};
use wheellock_tests::locks::lost;
use wheellock_tests::worker::connect;
use wheellock_tests::{RedisServer, eventually};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_restart_costs_only_errors() {
    // Persistent, so that the server keeps all locks over a restart, and the test can check exclusion throughout.
    let mut server =
        RedisServer::builder().tcp().arg("appendonly", "yes").arg("appendfsync", "always").start();
    let locks = connect(&server.url(), LEASE).await.unwrap();
    let load = Arc::new(Load::default());
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        tasks.spawn(lock_and_unlock(locks.clone(), Arc::clone(&load), task));
    }

    for round in 0..ROUNDS {
        assert!(load.gains(&load.served, TASKS).await, "no service before kill {round}: {load:?}");
        server.kill();
        // Long enough for every task to meet the dead server, and for the first errors.
        assert!(
            load.gains(&load.ended, 2 * TASKS).await,
            "waits do not end while the server is dead: {load:?}"
        );
        assert!(load.gains(&load.errors, 1).await, "no errors while the server is dead: {load:?}");
        let served = load.served.load(SeqCst);
        server.restart();
        let mut looks = 0;
        while load.served.load(SeqCst) == served {
            // Each check is a write of another client. A cause such as a full disk's queue would also delay this write.
            assert_eq!(server.cli(&["SET", "somebody", "else"]), "OK");
            tokio::time::sleep(LOOK).await;
            looks += 1;
            assert!(looks < RESUMES_WITHIN, "no service after the server's return {round}: {load:?}");
        }
        let _none_if_it_was_back_at_once = server.cli(&["DEL", "somebody"]);
    }

    load.stop.store(true, SeqCst);
    while let Some(ended) = timeout(NO_HANG, tasks.join_next()).await.expect("a task hangs") {
        ended.expect("a task panicked");
    }
    assert_eq!(load.violations.load(SeqCst), 0, "{load:?}");
    assert_eq!(load.hangs.load(SeqCst), 0, "{load:?}");
    // Locks without a guard are released or expire. No lock may be renewed forever.
    let all_free = eventually(NO_HANG, async || server.cli(&["DBSIZE"]) == "0").await;
    assert!(all_free, "leaked: {}", server.cli(&["KEYS", "*"]));
}

#[tokio::test]
async fn forgotten_holders_are_notified_at_once() {
    let mut server = RedisServer::builder().tcp().start();
    // The lease is too long for a renewal within this test.
    let locks = connect(&server.url(), LONG_LEASE).await.unwrap();
    let kept = locks.lock("kept").acquire().await.unwrap();
    let fixed = locks.lock("fixed").with_lease(LONG_LEASE).acquire().await.unwrap();

    server.restart();
    assert_eq!(lost(&kept).await, LostReason::NotOwner);
    assert_eq!(lost(&fixed).await, LostReason::NotOwner);
    assert_eq!(server.cli(&["DBSIZE"]), "0", "nothing is created anew");
}

#[tokio::test]
async fn shortened_lease_is_adopted_after_failover() {
    let server = RedisServer::builder().tcp().start();
    let locks = connect(&server.url(), LONG_LEASE).await.unwrap();
    let kept = locks.lock("kept").acquire().await.unwrap();
    let fixed = locks.lock("fixed").with_lease(LONG_LEASE).acquire().await.unwrap();
    let before = (kept.valid_until(), fixed.valid_until());
    for lock in ["kept", "fixed"] {
        assert_eq!(server.cli(&["PEXPIRE", lock, "30000"]), "1");
    }
    tell_of_a_change(&locks);
    let verified = async || kept.valid_until() > before.0 && fixed.valid_until() < before.1;
    assert!(eventually(NO_HANG, verified).await);
    assert!(fixed.is_valid() && fixed.valid_until().remaining() < Duration::from_secs(30));
    let left = |lock| server.cli(&["PTTL", lock]).parse::<i64>().unwrap();
    assert!((30_001..=60_000).contains(&left("kept")), "the watchdog's is extended at once");
    assert!((1..=30_000).contains(&left("fixed")), "the other is only looked at");
}

/// Reports a change, as the connection does when a different server replies.
fn tell_of_a_change(locks: &LockManager) {
    let tell = locks.client().config().hooks.on_change.as_ref().expect("the manager wants to know");
    tell(&Change::everywhere());
}

#[tokio::test]
async fn calls_without_server_meet_deadline() {
    let mut server = RedisServer::builder().tcp().start();
    let locks = connect(&server.url(), LEASE).await.unwrap();
    let lock = locks.lock("orders");
    let guard = lock.acquire().await.unwrap();
    server.kill();
    let refused = timeout(NO_HANG, lock.try_acquire_for(PATIENCE)).await.expect("hangs");
    assert!(!refused.unwrap_err().to_string().is_empty());
    // Renewals fail, so the guard stops claiming the lock by itself.
    timeout(NO_HANG, guard.lost()).await.expect("a guard outlives its lease");
    assert!(!guard.is_valid());
}

#[tokio::test]
async fn dead_server_is_not_reported_busy() {
    let mut server = RedisServer::builder().tcp().start();
    let locks = connect(&server.url(), LEASE).await.unwrap();
    let _guard = locks.lock("orders").acquire().await.unwrap();
    let refused = Arc::new(AtomicU64::new(0));
    // The waiters queue behind each other, so that the queue is never empty.
    let waits = (0..6_u64).map(|task| {
        let (lock, refused) = (locks.lock("orders"), Arc::clone(&refused));
        tokio::spawn(async move {
            let patience = Duration::from_millis(100 + 37 * task);
            while lock.try_acquire_for(patience).await.is_ok_and(|guard| !guard.is_acquired()) {
                refused.fetch_add(1, SeqCst);
            }
        })
    });
    let waits = waits.collect::<Vec<_>>();
    assert!(eventually(NO_HANG, async || refused.load(SeqCst) >= 12).await);
    server.kill();
    for wait in waits {
        // The first wait that begins after the server's death must end with an error.
        timeout(NO_HANG, wait)
            .await
            .expect("a dead server is reported as a busy lock, again and again")
            .unwrap();
    }
}

/// Runs a task: acquires one of a few locks, checks that it is alone inside, and releases. Repeats this until the end.
async fn lock_and_unlock(locks: LockManager, load: Arc<Load>, task: u64) {
    let place = usize::try_from(task).unwrap() % PLACES;
    let lock = locks.lock(&format!("place:{place}"));
    while !load.stop.load(SeqCst) {
        let guard = match timeout(PATIENCE + NO_HANG, lock.try_acquire_for(PATIENCE)).await {
            Ok(Ok(Attempt::Acquired(guard))) => guard,
            Ok(Ok(Attempt::Held { .. })) => {
                load.ended.fetch_add(1, SeqCst);
                continue;
            }
            Ok(Err(error)) => {
                load.count(&error);
                continue;
            }
            Err(_) => {
                load.hangs.fetch_add(1, SeqCst);
                return;
            }
        };
        if load.inside[place].swap(true, SeqCst) {
            load.violations.fetch_add(1, SeqCst);
        }
        tokio::task::yield_now().await;
        load.inside[place].store(false, SeqCst);
        match timeout(NO_HANG, guard.release()).await {
            Ok(Ok(_)) => _ = load.served.fetch_add(1, SeqCst),
            Ok(Err(error)) => load.count(&error),
            Err(_) => {
                load.hangs.fetch_add(1, SeqCst);
                return;
            }
        }
    }
}

/// The counts of all tasks.
#[derive(Debug, Default)]
struct Load {
    stop: AtomicBool,
    served: AtomicU64,
    /// Waits that ended without the lock, and failed releases.
    ended: AtomicU64,
    errors: AtomicU64,
    hangs: AtomicU64,
    violations: AtomicU64,
    inside: [AtomicBool; PLACES],
}

impl Load {
    fn count(&self, error: &Error) {
        assert!(!error.to_string().is_empty());
        self.errors.fetch_add(1, SeqCst);
        self.ended.fetch_add(1, SeqCst);
    }

    /// Waits until a counter has grown by `by`.
    async fn gains(&self, counter: &AtomicU64, by: u64) -> bool {
        let from = counter.load(SeqCst);
        eventually(NO_HANG, async || counter.load(SeqCst) >= from + by).await
    }
}

const TASKS: u64 = 32;
const PLACES: usize = 8;
const ROUNDS: u32 = 3;
/// The time that a task waits for its lock.
const PATIENCE: Duration = Duration::from_millis(500);
/// Short, so that the holds of a dead connection expire soon. Far longer than a restart takes.
const LEASE: Duration = Duration::from_secs(4);
/// A third of it is longer than any wait in this file.
const LONG_LEASE: Duration = Duration::from_secs(60);
/// The promise of one second, as a number of checks.
const RESUMES_WITHIN: u32 = 100;
const LOOK: Duration = Duration::from_millis(10);
/// Longer than every deadline of this test.
const NO_HANG: Duration = Duration::from_secs(30);
