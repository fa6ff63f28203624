//! Reports and counts of lost locks. The tests show which guards learn of a loss, and when.

use std::time::{Duration, Instant};

use wheellock::{Error, LockManager, LostReason, blocking};
use wheellock_tests::fault::{Direction, Fault, Proxy};
use wheellock_tests::locks::{PATIENCE, adjusted, at_rest, gone, listeners, lost, manager};
use wheellock_tests::{RedisServer, eventually};

const LEASE: Duration = Duration::from_secs(30);
/// The watchdog's next check comes after a third of the lease, 10 s. A report within this time has another cause.
const AT_ONCE: Duration = Duration::from_secs(4);

/// A6: after a forced release and a grant to another task of the same process, only one guard is valid.
#[tokio::test]
async fn regrant_in_process_invalidates_first_guard() {
    let server = RedisServer::start();
    let (locks, others) = (manager(&server.url()).await, manager(&server.url()).await);
    let lock = locks.lock("n");
    for fixed in [false, true] {
        let lock = if fixed { lock.with_lease(LEASE) } else { lock.clone() };
        let first = lock.acquire().await.unwrap();
        let waiter = lock.clone();
        let waiting = tokio::spawn(async move { waiter.acquire().await.unwrap() });
        assert!(listeners(&server, "n", 1).await);
        assert!(others.lock("n").force_release().await.unwrap());
        let second = tokio::time::timeout(AT_ONCE, waiting).await.expect("woken").unwrap();
        assert!(second.is_valid() && !first.is_valid());
        assert_eq!(lost(&first).await, LostReason::NotOwner);
        assert!(matches!(first.release().await, Err(Error::Lost { .. })));
        assert!(second.is_valid(), "the first one's release is nothing to it");
        second.release().await.unwrap();
    }
    assert_eq!(locks.metrics().lost_not_owner, 2, "each loss counts once");
}

/// The server is stopped with SIGSTOP. The guard warns a third of the lease before the loss.
#[tokio::test]
async fn stopped_server_endangers_guard_before_loss() {
    let server = RedisServer::start();
    let lease = Duration::from_secs(3);
    let locks = adjusted(&server.url(), lease, |config| config.response_timeout = lease / 6).await;
    let guard = locks.lock("n").acquire().await.unwrap();
    let url = server.url();
    let threaded = tokio::task::spawn_blocking(move || {
        let builder = blocking::LockManager::builder(&url).watchdog_lease(lease);
        let locks =
            builder.configure(|config| config.response_timeout = lease / 6).connect_blocking().unwrap();
        locks.lock("of a thread").acquire().unwrap()
    });
    let threaded = threaded.await.unwrap();
    assert!(tokio::time::timeout(2 * lease, guard.endangered()).await.is_err(), "the watchdog renews it");
    assert!(!threaded.is_endangered());
    server.pause();
    tokio::time::timeout(lease, guard.endangered()).await.expect("within two thirds of the lease");
    assert!(guard.is_endangered() && guard.is_valid(), "there is time to stop in order");
    server.resume();
    assert!(eventually(PATIENCE, async || !guard.is_endangered()).await, "a renewal ends the danger");
    assert!(guard.is_valid());
    server.pause();
    let (warned, reason) = tokio::join!(
        async {
            guard.endangered().await;
            Instant::now()
        },
        guard.lost()
    );
    let before = warned.elapsed();
    // The thread's lock has beats of its own, up to a third of the lease later. A renewal after the resume may end the danger.
    assert!(eventually(lease, async || threaded.is_endangered()).await);
    server.resume();
    assert_eq!(reason, LostReason::Expired);
    assert!(before > lease / 4, "{before:?}");
    tokio::task::spawn_blocking(move || drop(threaded)).await.unwrap();
}

/// A6: a message on the channel of a held lock makes the holder's process check the hold at once.
#[tokio::test]
async fn message_on_held_lock_triggers_check() {
    let server = RedisServer::start();
    // The server must not tell of the changed key, because only the message is judged.
    let (locks, others) = (manager(&server.untracked_url()).await, manager(&server.url()).await);
    let first = locks.lock("n").acquire().await.unwrap();
    let lock = locks.lock("n");
    let waiting = tokio::spawn(async move { lock.acquire().await });
    assert!(listeners(&server, "n", 1).await);
    // Another process takes the lock in the same moment. The waiter here learns that the lock is held, but not by which owner.
    let taken = server.cli(&[
        "EVAL",
        "redis.call('del', KEYS[1]) redis.call('hset', KEYS[1], ARGV[1], 1) redis.call('pexpire', KEYS[1], 30000) \
         return redis.call('publish', ARGV[2], '0')",
        "1",
        "n",
        &others.owner().to_string(),
        "redisson_lock__channel:{n}",
    ]);
    assert_eq!(taken, "1");
    let told = tokio::time::timeout(AT_ONCE, first.lost()).await;
    assert_eq!(told.expect("asked at once"), LostReason::NotOwner);
    waiting.abort();
}

/// A6: a forced release notifies the holder in the same process at once.
#[tokio::test]
async fn forced_release_notifies_local_holder() {
    let server = RedisServer::start();
    let locks = manager(&server.url()).await;
    let guard = locks.lock("n").acquire().await.unwrap();
    assert!(locks.lock("n").force_release().await.unwrap());
    let told = tokio::time::timeout(AT_ONCE, guard.lost()).await;
    assert_eq!(told.expect("asked at once"), LostReason::NotOwner);
}

/// A8: a loss that a release finds is counted in `metrics()`, whether the release is confirmed, dropped or blocking.
#[tokio::test]
async fn release_counts_found_loss() {
    let server = RedisServer::start();
    let locks = manager(&server.url()).await;
    let counted = async |losses: u64| {
        let count = || locks.metrics().lost_not_owner;
        assert!(eventually(PATIENCE, async || count() == losses).await, "{} of {losses}", count());
    };
    let guard = locks.lock("a").acquire().await.unwrap();
    assert_eq!(server.cli(&["DEL", "a"]), "1");
    assert!(matches!(guard.release().await, Err(Error::Lost { .. })));
    counted(1).await;
    let guard = locks.lock("b").acquire().await.unwrap();
    assert_eq!(server.cli(&["DEL", "b"]), "1");
    drop(guard);
    counted(2).await;
    let outer = locks.lock("c").acquire().await.unwrap();
    let inner = locks.lock("c").with_owner(outer.owner()).acquire().await.unwrap();
    assert_eq!(server.cli(&["DEL", "c"]), "1");
    assert!(matches!(inner.release().await, Err(Error::Lost { .. })));
    counted(3).await;
    assert_eq!(lost(&outer).await, LostReason::NotOwner);
    assert!(matches!(outer.release().await, Err(Error::Lost { .. })));
    assert!(at_rest(&locks).await);
    counted(3).await;
    let metrics = locks.metrics();
    assert_eq!((metrics.held, metrics.lost_expired, metrics.acquires), (0, 0, 4));
}

/// A8: the blocking API counts these losses, too.
#[test]
fn blocking_release_counts_found_loss() {
    let server = RedisServer::start();
    let locks = blocking::LockManager::connect(&server.url()).unwrap();
    let guard = locks.lock("a").acquire().unwrap();
    assert_eq!(server.cli(&["DEL", "a"]), "1");
    assert!(matches!(guard.release(), Err(Error::Lost { .. })));
    assert_eq!(locks.metrics().lost_not_owner, 1);
}

/// A8: a release that is repeated because its reply was lost counts no loss.
#[tokio::test]
async fn a_repeated_release_counts_no_loss() {
    let server = RedisServer::start();
    let proxy = Proxy::before(&server);
    let locks = adjusted(&proxy.url(), LEASE, |config| config.response_timeout = LEASE / 10).await;
    for confirmed in [true, false] {
        let guard = locks.lock("n").acquire().await.unwrap();
        let before = proxy.counts().faults;
        proxy.strike(Direction::ToClient, Fault::Rst);
        if confirmed {
            guard.release().await.unwrap();
        } else {
            drop(guard);
        }
        assert!(gone(&server, "n").await);
        assert!(eventually(PATIENCE, async || proxy.counts().faults > before).await);
        assert!(at_rest(&locks).await);
    }
    assert_eq!(locks.metrics().lost_not_owner, 0);
}

/// B5: the server has forgotten a lock, and its holder releases it. The waiters of this process request the lock then.
#[tokio::test]
async fn release_of_forgotten_lock_wakes_waiters() {
    let server = RedisServer::start();
    let locks = LockManager::builder(&server.url()).hand_over(Duration::ZERO).connect().await.unwrap();
    for confirmed in [true, false] {
        let guard = locks.lock("n").acquire().await.unwrap();
        let lock = locks.lock("n");
        let waiting = tokio::spawn(async move { lock.acquire().await.unwrap() });
        assert!(listeners(&server, "n", 1).await);
        assert_eq!(server.cli(&["FLUSHALL"]), "OK");
        if confirmed {
            assert!(matches!(guard.release().await, Err(Error::Lost { .. })));
        } else {
            drop(guard);
        }
        let next = tokio::time::timeout(AT_ONCE, waiting).await.expect("woken").unwrap();
        next.release().await.unwrap();
    }
}
