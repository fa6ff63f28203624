//! The lock layer against real servers. The tests cover exclusion, reentrancy, leases, waiting, cancellation and ambiguity.

use std::time::{Duration, Instant};

use wheellock::{Error, LockManager, LostReason, Outcome};
use wheellock_tests::locks::exclude_each_other;
use wheellock_tests::{RedisServer, eventually};

const PATIENCE: Duration = Duration::from_secs(10);

async fn manager(server: &RedisServer) -> LockManager {
    LockManager::connect(&server.url()).await.expect("the server is up")
}

async fn gone(server: &RedisServer, key: &str) -> bool {
    eventually(PATIENCE, async || server.cli(&["EXISTS", key]) == "0").await
}

#[tokio::test]
async fn plain_lock_matches_wire_contract() {
    let server = RedisServer::start();
    let locks = manager(&server).await;
    let lock = locks.lock("orders:42");
    let guard = lock.acquire().await.unwrap();
    let owner = guard.owner().to_string();
    assert!(owner.starts_with(locks.id()) && owner.len() > 37, "{owner}");
    assert_eq!(server.cli(&["TYPE", "orders:42"]), "hash");
    assert_eq!(server.cli(&["HGETALL", "orders:42"]).split_whitespace().collect::<Vec<_>>(), [&owner, "1"]);
    let believed = guard.valid_until().remaining();
    let pttl: u64 = server.cli(&["PTTL", "orders:42"]).parse().unwrap();
    assert!((29_000..=30_000).contains(&pttl), "{pttl}");
    assert!(believed < Duration::from_millis(pttl), "believed for {believed:?}, kept for {pttl} ms");
    assert_eq!(server.cli(&["KEYS", "*"]), "orders:42", "no other key");
    assert!(lock.is_locked().await.unwrap() && lock.is_held_by(&guard.owner()).await.unwrap());
    guard.release().await.unwrap();
    assert_eq!(server.cli(&["KEYS", "*"]), "");
    assert_eq!(lock.remaining_lease().await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shared_handle_excludes_tasks() {
    let server = RedisServer::start();
    let lock = manager(&server).await.lock("shared");
    exclude_each_other(&[lock], 32).await;
    assert!(gone(&server, "shared").await);
}

#[tokio::test]
async fn reentrancy_is_counted_on_the_server() {
    let server = RedisServer::start();
    let locks = manager(&server).await;
    let lock = locks.lock("nested");
    let first = lock.acquire().await.unwrap();
    let owner = first.owner();
    let again = lock.with_owner(owner.clone());
    let count = || server.cli(&["HGET", "nested", &owner.to_string()]);
    let second = again.acquire().await.unwrap();
    let third = again.try_acquire().await.unwrap().acquired().expect("reentrant");
    assert_eq!((count().as_str(), lock.hold_count(&owner).await.unwrap()), ("3", 3));
    assert!(!lock.try_acquire().await.unwrap().is_acquired(), "another owner");
    second.release().await.unwrap();
    assert_eq!(count(), "2");
    drop(first);
    assert!(eventually(PATIENCE, async || count() == "1").await, "in any order");
    third.release().await.unwrap();
    assert_eq!(server.cli(&["EXISTS", "nested"]), "0");

    let stranger = LockManager::connect(&server.url()).await.unwrap().owner();
    let error = lock.with_owner(stranger).acquire().await.unwrap_err();
    assert!(matches!(error, Error::ForeignOwner { .. }));
    assert_eq!(error.outcome(), Outcome::NotSent);
}

/// The renewal is on its way behind the grant, and does not know of the grant yet.
#[tokio::test]
async fn renewal_never_shortens_concurrent_grant() {
    let server = RedisServer::start();
    let locks = manager(&server).await;
    let (short, long) = (Duration::from_secs(5), Duration::from_secs(60));
    let ring = locks.read_write_lock("rw");
    let kinds = [locks.lock("plain"), locks.fair_lock("fair"), ring.read(), ring.write()];
    for lock in kinds {
        let outer = lock.with_lease(short).acquire().await.unwrap();
        let again = lock.with_owner(outer.owner()).with_lease(long);
        let (inner, renewed) = tokio::join!(again.acquire(), outer.renew());
        let inner = inner.unwrap();
        renewed.unwrap();
        let left: u64 = server.cli(&["PTTL", lock.name()]).parse().unwrap();
        let believed = inner.valid_until().remaining();
        assert!(
            believed < Duration::from_millis(left),
            "{lock:?}: believed for {believed:?}, kept for {left} ms"
        );
        if lock.name() == "rw" {
            let timeouts = server.cli(&["KEYS", "{rw}:*rwlock_timeout:*"]);
            let left = |key: &str| server.cli(&["PTTL", key]).parse::<u64>().unwrap();
            let longest = timeouts.lines().filter(|key| !key.is_empty()).map(left).max();
            assert!(
                longest.is_none_or(|left| believed < Duration::from_millis(left)),
                "{timeouts}: {longest:?}"
            );
        }
        inner.release().await.unwrap();
        outer.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shared_owner_keeps_right_count() {
    let server = RedisServer::start();
    let locks = manager(&server).await;
    let lock = locks.lock("crowd").with_owner(locks.owner());
    for _ in 0..20 {
        let tasks: Vec<_> = (0..8)
            .map(|task| {
                let lock = lock.clone();
                tokio::spawn(async move {
                    let guard = lock.acquire().await.unwrap();
                    if task % 2 == 0 { Some(guard) } else { None }
                })
            })
            .collect();
        let mut kept = Vec::new();
        for task in tasks {
            kept.extend(task.await.unwrap());
        }
        let counts = async || server.cli(&["HVALS", "crowd"]) == "4";
        assert!(eventually(PATIENCE, counts).await, "{}", server.cli(&["HVALS", "crowd"]));
        for guard in kept {
            guard.release().await.unwrap();
        }
        assert!(gone(&server, "crowd").await);
    }
}

#[tokio::test]
async fn watchdog_renews_fixed_lease_expires() {
    let server = RedisServer::start();
    let lease = Duration::from_secs(2);
    let locks = LockManager::builder(&server.url()).watchdog_lease(lease).connect().await.unwrap();
    let kept = locks.lock("kept").acquire().await.unwrap();
    let fixed = locks.lock("fixed").with_lease(lease).acquire().await.unwrap();
    assert!(kept.is_valid() && fixed.is_valid());
    let (before, promised) = (wheellock::BootInstant::now(), fixed.valid_until());
    let reason = fixed.lost().await;
    assert_eq!(reason, LostReason::Expired);
    assert!(wheellock::BootInstant::now() <= promised, "the news came after the deadline");
    assert!(!fixed.is_valid());
    assert!(gone(&server, "fixed").await);
    assert!(matches!(fixed.release().await, Err(Error::Lost { .. })));
    assert!(
        eventually(PATIENCE, async || kept.valid_until() > before + 3 * lease).await,
        "renewed three leases on"
    );
    assert!(kept.is_valid());
    kept.release().await.unwrap();
}

#[tokio::test]
async fn taken_lock_is_reported_not_recreated() {
    let server = RedisServer::start();
    let lease = Duration::from_secs(2);
    let locks = LockManager::builder(&server.url()).watchdog_lease(lease).connect().await.unwrap();
    let lock = locks.lock("taken");
    let guard = lock.acquire().await.unwrap();
    assert!(lock.force_release().await.unwrap());
    assert!(!lock.force_release().await.unwrap());
    assert_eq!(guard.lost().await, LostReason::NotOwner);
    assert_eq!(server.cli(&["EXISTS", "taken"]), "0");
    let work = guard.run(std::future::pending::<Result<(), Error>>()).await;
    assert!(matches!(work, Err(Error::Lost { reason: LostReason::NotOwner, .. })));
    let other = lock.acquire().await.unwrap();
    assert!(matches!(guard.release().await, Err(Error::Lost { .. })));
    assert!(other.is_valid() && server.cli(&["EXISTS", "taken"]) == "1", "the next holder is unharmed");
}

#[tokio::test]
async fn waiter_wakes_or_times_out() {
    let server = RedisServer::start();
    let (here, there) = (manager(&server).await, manager(&server).await);
    let guard = here.lock("handed").acquire().await.unwrap();

    let before = Instant::now();
    let wait = Duration::from_millis(80);
    assert!(!there.lock("handed").try_acquire_for(wait).await.unwrap().is_acquired());
    assert!(before.elapsed() >= wait);

    let lock = there.lock("handed");
    let waiter = tokio::spawn(async move { lock.acquire().await });
    let waits = async || server.cli(&["PUBSUB", "NUMSUB", "redisson_lock__channel:{handed}"]).ends_with('1');
    assert!(eventually(PATIENCE, waits).await);
    let monitor = server.monitor();
    guard.release().await.unwrap();
    let taken = waiter.await.unwrap().unwrap();
    let seen = monitor.stop().unwrap();
    let asked = seen.iter().filter(|line| !line.from_script() && line.name() == "EVALSHA").count();
    assert_eq!(asked, 2, "one release, one acquire");
    drop(taken);
    assert!(gone(&server, "handed").await);
}

#[tokio::test]
async fn dead_holder_lock_passes_at_expiry() {
    let server = RedisServer::start();
    let locks = manager(&server).await;
    let _ok = server.cli(&["HSET", "dead", "00000000-0000-4000-8000-000000000000:7", "1"]);
    let _ok = server.cli(&["PEXPIRE", "dead", "200"]);
    let guard =
        locks.lock("dead").try_acquire_for(PATIENCE).await.unwrap().acquired().expect("free after 200 ms");
    assert!(guard.is_valid());
}

#[tokio::test]
async fn dropped_acquire_leaves_nothing() {
    let server = RedisServer::start();
    let locks = manager(&server).await;
    let blocker = manager(&server).await;
    for contended in [false, true] {
        for polls in 0..12 {
            let held = if contended { Some(blocker.lock("dropped").acquire().await.unwrap()) } else { None };
            let lock = locks.lock("dropped");
            let mut acquire = Box::pin(lock.acquire());
            let mut left = polls;
            let done = std::future::poll_fn(|cx| {
                if left == 0 {
                    return std::task::Poll::Ready(None);
                }
                left -= 1;
                acquire.as_mut().poll(cx).map(Some)
            });
            let outcome = tokio::time::timeout(Duration::from_millis(20), done).await;
            drop(acquire);
            drop(outcome);
            drop(held);
            assert!(gone(&server, "dropped").await, "contended {contended}, after {polls} polls");
        }
    }
    // A lock that was taken back is free for the next caller, and no waiter is stuck in the queue.
    let guard = locks.lock("dropped").try_acquire_for(PATIENCE).await.unwrap();
    assert!(guard.is_acquired());
}

#[tokio::test]
async fn ambiguous_acquire_is_resolved() {
    let mut server = RedisServer::builder().arg("appendonly", "yes").arg("appendfsync", "always").start();
    let locks = manager(&server).await;
    let lock = locks.lock("ambiguous");
    for round in 0..5 {
        server.pause();
        let acquiring = tokio::spawn({
            let lock = lock.clone();
            async move { lock.acquire().await }
        });
        assert!(eventually(PATIENCE, async || locks.client().stats().in_flight > 0).await);
        server.kill();
        server.restart();
        let guard = acquiring.await.unwrap().unwrap_or_else(|error| panic!("round {round}: {error}"));
        assert_eq!(server.cli(&["HVALS", "ambiguous"]), "1", "counted once");
        guard.release().await.unwrap();
    }
    assert!(gone(&server, "ambiguous").await);
}

#[tokio::test]
async fn unsent_release_is_retried() {
    let mut server = RedisServer::builder().arg("appendonly", "yes").arg("appendfsync", "always").start();
    let locks = manager(&server).await;
    let guard = locks.lock("late").acquire().await.unwrap();
    server.kill();
    drop(guard);
    server.restart();
    assert!(gone(&server, "late").await, "released after the restart, long before its lease of 30 s");
}

#[tokio::test]
async fn invalid_names_and_leases_send_nothing() {
    let server = RedisServer::start();
    let locks = manager(&server).await;
    for (name, lease) in [("", 1000), (&"x".repeat(4097), 1000), ("fine", 0)] {
        let error = locks.lock(name).with_lease(Duration::from_millis(lease)).acquire().await.unwrap_err();
        assert_eq!(error.outcome(), Outcome::NotSent, "{error}");
    }
    for name in ["a{b", "}{", "mit Leerzeichen", "\r\n$1\r\n\0", "ключ"] {
        let lock = locks.lock(name);
        let guard = lock.acquire().await.unwrap();
        let waiting = tokio::spawn({
            let lock = lock.clone();
            async move { lock.acquire().await }
        });
        assert!(
            eventually(PATIENCE, async || server.cli(&["PUBSUB", "CHANNELS"]).contains("redisson_lock"))
                .await
        );
        guard.release().await.unwrap();
        drop(waiting.await.unwrap().unwrap());
        assert!(gone(&server, name).await);
    }
}

#[tokio::test]
async fn foreign_data_is_refused_and_kept() {
    let server = RedisServer::start();
    let locks = manager(&server).await;
    let _ok = server.cli(&["SET", "theirs", "precious"]);
    let error = locks.lock("theirs").acquire().await.unwrap_err();
    assert!(error.to_string().contains("theirs") && error.to_string().contains("other data"), "{error}");
    assert_eq!(server.cli(&["GET", "theirs"]), "precious");
}

#[tokio::test]
async fn the_closure_form_releases_when_done() {
    let server = RedisServer::start();
    let lock = manager(&server).await.lock("closure");
    let sum = lock
        .run(async |guard| {
            assert!(guard.is_valid());
            tokio::task::yield_now().await;
            Ok::<_, Error>(2 + 2)
        })
        .await
        .unwrap();
    assert_eq!((sum, server.cli(&["EXISTS", "closure"]).as_str()), (4, "0"));
}
