//! One queue of a fair lock, shared with Redisson. The tests use real servers.
//!
//! Every test has its own server and its own Redisson client. All tests share the JVM. Without Java all tests are skipped.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::JoinHandle;
use wheellock::{Error, Guard, LockManager};
use wheellock_tests::beside::{attempts, both_sides, shared_client, within};
use wheellock_tests::campaign::Shim;
use wheellock_tests::interop::{self, Client, Thread};
use wheellock_tests::locks::{PATIENCE, WOKEN, clock, manager};
use wheellock_tests::{RedisServer, eventually};

const NAME: &str = "fair@tickets";
const KEY: &str = "tickets";
const QUEUE: &str = "redisson_lock_queue:{tickets}";
const DEADLINES: &str = "redisson_lock_timeout:{tickets}";
const LEASE: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mixed_queue_keeps_arrival_order() {
    let Some((server, java, locks)) = both_sides(LEASE).await else { return };
    for round in 0..rounds() {
        a_mixed_queue(&server, &java, &locks, round).await;
    }
}

/// Java uses its own clock, and this library uses the server's clock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mixed_queue_order_survives_clock_skew() {
    if interop::shared().is_none() {
        return;
    }
    for ahead in [-2_000_000, 2_000_000] {
        let (server, _shim) = server_with_clock(ahead);
        let java = shared_client("skewed", &server, LEASE).await;
        let locks = manager(&server.url()).await;
        for round in 0..rounds().div_ceil(4) {
            a_mixed_queue(&server, &java, &locks, round).await;
        }
        // If the server's clock is ahead, this thread's wait ends before its turn. Our waiters stay in order.
        let guard = locks.fair_lock(KEY).with_lease(Duration::from_millis(1500)).acquire().await.unwrap();
        let theirs = java.thread("hasty").try_lock_for(NAME, Duration::from_millis(300));
        assert!(queued(&server, 1).await);
        let (served, mut tasks) = (Arc::new(Mutex::new(Vec::new())), Vec::new());
        for place in 0..EACH {
            let (lock, serves) = (locks.fair_lock(KEY), Arc::clone(&served));
            tasks.push(tokio::spawn(async move {
                let guard = lock.acquire().await.unwrap();
                serves.lock().unwrap().push(place);
                guard.release().await.unwrap();
            }));
            let comes = async || {
                let waiting = server.cli(&["LRANGE", QUEUE, "0", "-1"]);
                let waiting = waiting.lines().filter(|holder| holder.starts_with(locks.id())).count();
                waiting + served.lock().unwrap().len() > place
            };
            assert!(eventually(PATIENCE, comes).await);
        }
        let theirs = theirs.done().await;
        if theirs == "true" {
            java.thread("hasty").unlock(NAME).done().await;
        }
        for task in tasks {
            within(2 * PATIENCE, task).await.unwrap();
        }
        assert_eq!(*served.lock().unwrap(), (0..EACH).collect::<Vec<_>>());
        drop(guard);
        assert!(eventually(PATIENCE, async || left(&server).is_empty()).await, "{}", left(&server));
    }
}

/// Checks that sixteen waiters of both sides are served in the order in which the server received them.
async fn a_mixed_queue(server: &RedisServer, java: &Client, locks: &LockManager, round: usize) {
    let others = manager(&server.url()).await;
    let guard = locks.fair_lock(KEY).acquire().await.unwrap();
    let served = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    // The side of each waiter differs from round to round.
    for place in 0..EACH * 2 {
        let (served, is_java) = (Arc::clone(&served), ((place * 7 + round) % 13).is_multiple_of(2));
        tasks.push(if is_java {
            let thread = java.thread(&format!("t{place}"));
            tokio::spawn(async move {
                thread.lock(NAME).done().await;
                served.lock().unwrap().push(place);
                thread.unlock(NAME).done().await;
            })
        } else {
            let lock = if place % 3 == 0 { others.fair_lock(KEY) } else { locks.fair_lock(KEY) };
            tokio::spawn(async move {
                let guard = lock.acquire().await.unwrap();
                served.lock().unwrap().push(place);
                guard.release().await.unwrap();
            })
        });
        assert!(queued(server, place + 1).await);
    }
    assert_eq!(java.thread("passer-by").try_lock(NAME).done().await, "false");
    guard.release().await.unwrap();
    for task in tasks {
        within(2 * PATIENCE, task).await.unwrap();
    }
    assert_eq!(*served.lock().unwrap(), (0..EACH * 2).collect::<Vec<_>>(), "round {round}");
    assert_eq!(left(server), "");
}

/// Starts a server whose clock is `ahead` microseconds ahead of Java's clock.
fn server_with_clock(ahead: i64) -> (RedisServer, Shim) {
    let (server, shim) = Shim::preloaded(RedisServer::builder().tcp()).unwrap();
    shim.set_clock(ahead).unwrap();
    let micros = |from: Duration| i64::try_from(from.as_micros()).unwrap();
    let here = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
    let apart = micros(clock(&server)) - micros(here);
    assert!((apart - ahead).abs() < 1_500_000, "the shim does not move this server's clock: {apart}");
    (server, shim)
}

/// Java deletes the queue without a message. All our waiters still find out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_survive_deletion_by_java() {
    let Some((server, java, locks)) = both_sides(LEASE).await else { return };
    let guard = locks.fair_lock(KEY).acquire().await.unwrap();
    let served = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for place in 0..EACH {
        let (lock, served) = (locks.fair_lock(KEY), Arc::clone(&served));
        tasks.push(tokio::spawn(async move {
            let guard = lock.acquire().await.unwrap();
            served.lock().unwrap().push(place);
            guard.release().await.unwrap();
        }));
        assert!(queued(&server, place + 1).await);
    }
    // No thread of Java waits here. Such a thread sleeps for as long as the server told it, five minutes for each waiter before it.
    assert_eq!(java.thread("boss").delete(NAME).done().await, "true");
    for task in tasks {
        within(2 * PATIENCE, task).await.unwrap();
    }
    assert_eq!(served.lock().unwrap().len(), EACH);
    assert!(matches!(guard.release().await, Err(Error::Lost { .. })));
    assert!(eventually(PATIENCE, async || left(&server).is_empty()).await, "{}", left(&server));
    both_may(&java, &locks).await;
}

/// Redisson leaves the queue entry of an interrupted thread. Our waiters wait until the entry's deadline and not longer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn interrupted_java_head_blocks_until_deadline() {
    let Some((server, java, locks)) = both_sides(LEASE).await else { return };
    let guard = locks.fair_lock(KEY).with_lease(Duration::from_secs(5)).acquire().await.unwrap();
    let (thread, asked) = (java.thread("t"), attempts(&server));
    let theirs = thread.try_lock_for(NAME, Duration::from_secs(5));
    assert!(queued(&server, 1).await);
    // The thread may be interrupted while its request is in flight. The server may then grant it a lock that no thread holds.
    assert!(eventually(PATIENCE, async || attempts(&server) >= asked + 2).await);
    let ours = waiter(&locks);
    assert!(queued(&server, 2).await);
    java.thread("boss").interrupt(&thread).done().await;
    // Redisson throws the second class if the thread had no reply yet.
    let interrupted = ["java.lang.InterruptedException", "org.redisson.client.RedisException"];
    let class = theirs.answer().await.result.unwrap_err().class;
    assert!(interrupted.contains(&&*class), "{class}");
    assert_eq!(server.cli(&["LLEN", QUEUE]), "2");
    guard.release().await.unwrap();
    drop(within(2 * PATIENCE, ours).await.unwrap());
    assert!(eventually(PATIENCE, async || left(&server).is_empty()).await);
    both_may(&java, &locks).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_side_waits_for_other() {
    let Some((server, java, locks)) = both_sides(LEASE).await else { return };
    let (thread, lock) = (java.thread("t"), locks.fair_lock(KEY));
    // Their hold, re-entered. A lock that is free for a moment while a waiter is queued is refused to callers that only try.
    thread.lock(NAME).done().await;
    thread.lock(NAME).done().await;
    assert!(!lock.try_acquire().await.unwrap().is_acquired());
    let ours = waiter(&locks);
    assert!(queued(&server, 1).await);
    assert_eq!(java.thread("other").try_lock(NAME).done().await, "false");
    assert_eq!(thread.unlock(NAME).done().await, "unlocked");
    assert!(!ours.is_finished());
    assert_eq!(thread.unlock(NAME).done().await, "unlocked");
    let guard = within(WOKEN, ours).await.unwrap();
    // Our hold, re-entered.
    let again = lock.with_owner(guard.owner()).acquire().await.unwrap();
    assert_eq!(thread.try_lock(NAME).done().await, "false");
    let theirs = thread.lock(NAME);
    assert!(queued(&server, 1).await);
    again.release().await.unwrap();
    assert_eq!(lock.queue_length().await.unwrap(), Some(1));
    guard.release().await.unwrap();
    within(WOKEN, theirs.done()).await;
    // Each side releases by force while the other side waits.
    let ours = waiter(&locks);
    assert!(queued(&server, 1).await);
    assert_eq!(java.thread("boss").force_unlock(NAME).done().await, "true");
    let guard = within(WOKEN, ours).await.unwrap();
    let theirs = thread.lock(NAME);
    assert!(queued(&server, 1).await);
    assert!(lock.force_release().await.unwrap());
    within(WOKEN, theirs.done()).await;
    assert!(matches!(guard.release().await, Err(Error::Lost { .. })));
    assert_eq!(thread.unlock(NAME).done().await, "unlocked");
    assert_eq!(left(&server), "");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gone_head_delays_java_briefly() {
    let Some((server, java, locks)) = both_sides(LEASE).await else { return };
    let thread = java.thread("t");
    // Our head leaves.
    let guard = locks.fair_lock(KEY).acquire().await.unwrap();
    let head = waiter(&locks);
    assert!(queued(&server, 1).await);
    let theirs = thread.lock(NAME);
    assert!(queued(&server, 2).await);
    head.abort();
    assert!(queued(&server, 1).await);
    guard.release().await.unwrap();
    within(WOKEN, theirs.done()).await;
    thread.unlock(NAME).done().await;
    // Our head dies. Only this library notices that early, so one of its waiters is in the queue to see it.
    let guard = locks.fair_lock(KEY).acquire().await.unwrap();
    let doomed = manager(&server.url()).await;
    let head = waiter(&doomed);
    assert!(queued(&server, 1).await);
    doomed.client().close().await;
    head.abort();
    let theirs = thread.lock(NAME);
    assert!(queued(&server, 2).await);
    let ours = waiter(&locks);
    assert!(queued(&server, 3).await);
    guard.release().await.unwrap();
    within(2 * PATIENCE, theirs.done()).await;
    assert!(!ours.is_finished(), "Java came first");
    thread.unlock(NAME).done().await;
    drop(within(WOKEN, ours).await.unwrap());
    assert!(eventually(PATIENCE, async || left(&server).is_empty()).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gone_java_waiter_is_skipped() {
    let Some((server, java, locks)) = both_sides(LEASE).await else { return };
    let guard = locks.fair_lock(KEY).acquire().await.unwrap();
    let theirs = java.thread("t").try_lock_for(NAME, Duration::from_secs(2));
    assert!(queued(&server, 1).await);
    let ours = waiter(&locks);
    assert!(queued(&server, 2).await);
    assert_eq!(theirs.done().await, "false");
    assert!(queued(&server, 1).await);
    // The entry of a killed waiter stays until its deadline in five minutes. Here the deadline is set earlier.
    let doomed = interop::start().unwrap();
    let killed = doomed.open("doomed", &server.url(), LEASE).await;
    guard.release().await.unwrap();
    let guard = within(WOKEN, ours).await.unwrap();
    let _never = killed.thread("t").lock(NAME);
    assert!(queued(&server, 1).await);
    let entry = server.cli(&["LINDEX", QUEUE, "0"]);
    doomed.kill();
    let ours = waiter(&locks);
    assert!(queued(&server, 2).await);
    let soon = clock(&server) + Duration::from_secs(2);
    assert_eq!(server.cli(&["ZADD", DEADLINES, &soon.as_millis().to_string(), &entry]), "0");
    guard.release().await.unwrap();
    drop(within(PATIENCE, ours).await.unwrap());
    assert!(eventually(PATIENCE, async || left(&server).is_empty()).await);
    both_may(&java, &locks).await;
}

/// Checks that the lock is free for either side.
async fn both_may(java: &Client, locks: &LockManager) {
    let thread: Thread = java.thread("last");
    assert_eq!(thread.try_lock(NAME).done().await, "true");
    thread.unlock(NAME).done().await;
    let guard = locks.fair_lock(KEY).try_acquire().await.unwrap().acquired().expect("free");
    guard.release().await.unwrap();
}

fn waiter(locks: &LockManager) -> JoinHandle<Guard> {
    let lock = locks.fair_lock(KEY);
    tokio::spawn(async move { lock.acquire().await.unwrap() })
}

async fn queued(server: &RedisServer, count: usize) -> bool {
    eventually(PATIENCE, async || server.cli(&["LLEN", QUEUE]) == count.to_string()).await
}

/// Returns the keys on the server, except the latches that Redisson's unlocks leave for some seconds.
fn left(server: &RedisServer) -> String {
    let keys = server.cli(&["KEYS", "*"]);
    keys.lines().filter(|key| !key.starts_with("redisson_unlock_latch")).collect::<Vec<_>>().join(" ")
}

/// Returns the number of rounds. A longer campaign sets it: `WHEELLOCK_FAIR_ROUNDS=50`.
fn rounds() -> usize {
    std::env::var("WHEELLOCK_FAIR_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(ROUNDS)
}

const ROUNDS: usize = 10;
/// Approximate number of waiters of each side.
const EACH: usize = 8;
