//! `shutdown` of a manager. From the call on, no lock is granted. All locks are released, and the server has confirmed that.

use std::pin::Pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use wheellock::{
    Error, Guard, Leftover, LockManager, LostReason, Outcome, RedLockManager, blocking, multi_lock,
};
use wheellock_client::ErrorKind;
use wheellock_tests::locks::{PATIENCE, WOKEN, listeners, lost, manager, taken};
use wheellock_tests::topology::{Cluster, SentinelSet, Settings};
use wheellock_tests::{RedisServer, eventually, poll_until};

/// Limit for the duration of a shutdown. Hardly any shutdown takes as long.
const WITHIN: Duration = Duration::from_secs(5);

fn shut_down<T>(result: Result<T, Error>) -> Outcome {
    match result {
        Err(Error::ShutDown { outcome, .. }) => outcome,
        Err(error) => panic!("another error: {error}"),
        Ok(_) => panic!("granted after the shutdown"),
    }
}

fn names(left: &Leftover) -> Vec<&str> {
    left.locks().iter().map(|unreleased| unreleased.lock.as_str()).collect()
}

async fn acquire_all(locks: &LockManager, prefix: &str, count: usize) -> Vec<Guard> {
    let mut guards = Vec::new();
    for number in 0..count {
        guards.push(locks.lock(&format!("{prefix}:{number}")).acquire().await.unwrap());
    }
    guards
}

/// Polls a future once.
async fn polled<F: Future>(mut future: Pin<&mut F>) -> Poll<F::Output> {
    std::future::poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await
}

/// B1: a shutdown releases all locks, notifies holders and waiters, and grants no lock afterwards.
#[tokio::test]
async fn shutdown_releases_locks_and_notifies_callers() {
    let server = RedisServer::start();
    let (locks, other) = (manager(&server.url()).await, manager(&server.url()).await);
    let elsewhere = other.lock("elsewhere").acquire().await.unwrap();
    let guards = acquire_all(&locks, "held", 20).await;
    let again = locks.lock("held:0").with_owner(guards[0].owner()).acquire().await.unwrap();
    let mut waiters = JoinSet::new();
    for name in ["elsewhere", "elsewhere", "held:1", "held:1"] {
        let lock = locks.lock(name);
        waiters.spawn(async move { lock.acquire().await });
    }
    assert!(eventually(PATIENCE, async || locks.metrics().waiting == 4).await);
    assert!(listeners(&server, "elsewhere", 1).await && listeners(&server, "held:1", 1).await);

    let left = locks.shutdown(WITHIN).await;
    assert!(left.is_empty(), "{left}");
    assert_eq!(server.cli(&["KEYS", "*"]), "elsewhere", "confirmed before it returned");
    while let Some(ended) = tokio::time::timeout(WOKEN, waiters.join_next()).await.expect("they are woken") {
        assert_eq!(shut_down(ended.unwrap()), Outcome::NotSent);
    }
    for guard in guards.iter().chain([&again]) {
        assert_eq!(lost(guard).await, LostReason::ShutDown);
        assert!(!guard.is_valid());
    }
    assert!(matches!(guards[1].renew().await, Err(Error::Lost { reason: LostReason::ShutDown, .. })));
    assert!(matches!(
        guards[1].run(async { Ok(()) }).await,
        Err(Error::Lost { reason: LostReason::ShutDown, .. })
    ));
    assert!(matches!(again.release().await, Err(Error::Lost { .. })));
    let lock = locks.lock("held:1");
    assert_eq!(shut_down(lock.acquire().await), Outcome::NotSent);
    assert_eq!(shut_down(lock.try_acquire().await), Outcome::NotSent);
    assert_eq!(shut_down(lock.try_acquire_for(WITHIN).await), Outcome::NotSent);
    assert_eq!(
        shut_down(multi_lock([lock.clone(), other.lock("x")]).unwrap().acquire().await),
        Outcome::NotSent
    );
    let Err(Error::Server { source, .. }) = lock.is_locked().await else { panic!("it is closed") };
    assert_eq!((source.kind(), source.outcome()), (ErrorKind::Closed, Outcome::NotSent));

    let metrics = locks.metrics();
    assert_eq!((metrics.held, metrics.waiting, metrics.lost_expired, metrics.lost_not_owner), (0, 0, 0, 0));
    assert!(locks.clone().shutdown(Duration::ZERO).await.is_empty(), "once more, by a clone");
    drop(guards);
    assert!(other.lock("held:1").try_acquire().await.unwrap().is_acquired(), "others go on");
    assert!(elsewhere.is_valid());
}

/// B1: a shutdown takes back the attempts that are under way.
#[tokio::test]
async fn attempts_under_way_are_taken_back() {
    let server = RedisServer::start();
    let locks = manager(&server.url()).await;
    let held = acquire_all(&locks, "held", 3).await;
    server.pause();
    let mut asking = JoinSet::new();
    for number in 0..10 {
        let lock = locks.lock(&format!("asked:{number}"));
        asking.spawn(async move { lock.acquire().await });
    }
    // No task polls this future any more.
    let lock = locks.lock("forgotten");
    let mut forgotten = Box::pin(lock.acquire());
    assert!(eventually(PATIENCE, async || locks.client().stats().in_flight >= 10).await);
    assert!(polled(forgotten.as_mut()).await.is_pending());
    let shutdown = tokio::spawn({
        let locks = locks.clone();
        async move { locks.shutdown(WITHIN).await }
    });
    assert_eq!(lost(&held[0]).await, LostReason::ShutDown, "told before the server has heard of it");
    server.resume();
    while let Some(ended) = asking.join_next().await {
        assert_eq!(shut_down(ended.unwrap()), Outcome::MaybeExecuted);
    }
    let left = shutdown.await.unwrap();
    assert!(left.is_empty(), "{left}");
    assert_eq!(server.cli(&["DBSIZE"]), "0");
    assert_eq!(shut_down(forgotten.await), Outcome::MaybeExecuted);
}

/// B1: a shutdown ends in time and reports the releases that the server has not confirmed.
#[tokio::test]
async fn shutdown_reports_unconfirmed_releases() {
    let server = RedisServer::start();
    let locks = manager(&server.url()).await;
    let guards = acquire_all(&locks, "held", 3).await;
    locks.lock("released").acquire().await.unwrap().release().await.unwrap();
    server.pause();
    let (began, within) = (Instant::now(), Duration::from_millis(200));
    let left = locks.shutdown(within).await;
    let took = began.elapsed();
    assert!(took >= within && took < within + WOKEN, "{took:?}");
    assert_eq!(names(&left), ["held:0", "held:1", "held:2"], "{left}");
    assert!(guards.iter().all(|guard| !guard.is_valid()));
    assert_eq!(shut_down(locks.lock("new").acquire().await), Outcome::NotSent);
    server.resume();
    // The releases were written, so the server executes them when it can.
    assert!(eventually(PATIENCE, async || server.cli(&["DBSIZE"]) == "0").await);
}

/// B1: a shutdown whose future is dropped continues as far as it can.
#[tokio::test]
async fn dropped_shutdown_continues() {
    let server = RedisServer::start();
    let locks = manager(&server.url()).await;
    let guards = acquire_all(&locks, "held", 100).await;
    let mut shutdown = Box::pin(locks.shutdown(WITHIN));
    assert!(polled(shutdown.as_mut()).await.is_pending());
    drop(shutdown);
    assert!(eventually(PATIENCE, async || server.cli(&["DBSIZE"]) == "0").await);
    assert!(guards.iter().all(|guard| !guard.is_valid()));
    let closed = async || matches!(locks.client().state(), wheellock::client::ConnectionState::Closed(_));
    assert!(eventually(PATIENCE, closed).await);
}

/// B1: a shutdown releases more locks than the connection's queue holds.
#[tokio::test]
async fn shutdown_releases_more_than_queue_holds() {
    let server = RedisServer::start();
    let configure = |config: &mut wheellock::client::Config| config.max_in_flight = 64;
    let locks = LockManager::builder(&server.url()).configure(configure).connect().await.unwrap();
    let guards = acquire_all(&locks, "many", 640).await;
    let left = locks.shutdown(WITHIN).await;
    assert!(left.is_empty(), "{left}");
    assert_eq!(server.cli(&["DBSIZE"]), "0");
    drop(guards);
}

/// B1: `close` releases the locks whose guards were dropped before it. A release after `close` fails with a typed error.
#[tokio::test]
async fn close_sends_only_earlier_releases() {
    let server = RedisServer::start();
    let locks = manager(&server.url()).await;
    let mut guards = acquire_all(&locks, "held", 20).await;
    let (late, dropped_late) = (guards.pop().unwrap(), guards.pop().unwrap());
    drop(guards);
    locks.client().close().await;
    let mut left: Vec<_> = server.cli(&["KEYS", "*"]).lines().map(str::to_owned).collect();
    left.sort();
    assert_eq!(left, ["held:18", "held:19"], "those that were not dropped");
    drop(dropped_late);
    let Err(Error::Server { source, .. }) = late.release().await else { panic!("it cannot be sent") };
    assert_eq!((source.kind(), source.outcome()), (ErrorKind::Closed, Outcome::NotSent));
}

/// B1: threads that wait for locks or hold locks learn of a shutdown.
#[test]
fn shutdown_notifies_waiting_and_holding_threads() {
    let server = RedisServer::start();
    let (locks, other) = [(); 2].map(|()| blocking::LockManager::connect(&server.url()).unwrap()).into();
    let elsewhere = other.lock("elsewhere").acquire().unwrap();
    std::thread::scope(|threads| {
        let waiting = threads.spawn(|| shut_down(locks.lock("elsewhere").acquire()));
        let holding = threads.spawn(|| locks.lock("held").acquire().unwrap().lost());
        assert!(poll_until(PATIENCE, || locks.metrics().waiting == 1 && locks.metrics().held == 1));
        let left = locks.shutdown(WITHIN);
        assert!(left.is_empty(), "{left}");
        assert_eq!(server.cli(&["KEYS", "*"]), "elsewhere");
        assert_eq!(waiting.join().unwrap(), Outcome::NotSent);
        assert_eq!(holding.join().unwrap(), LostReason::ShutDown);
    });
    assert_eq!(shut_down(locks.lock("held").try_acquire()), Outcome::NotSent);
    assert!(elsewhere.is_valid());
}

/// B1: a shutdown reaches every node of a cluster.
#[tokio::test]
async fn shutdown_reaches_every_cluster_node() {
    let cluster = Cluster::start(3, 0, &Settings::default());
    let locks = manager(&cluster.url()).await;
    let guards = acquire_all(&locks, "held", 60).await;
    let lock = locks.lock("held:7");
    let waiting = tokio::spawn(async move { lock.acquire().await });
    assert!(eventually(PATIENCE, async || locks.metrics().waiting == 1).await);
    assert!(cluster.nodes().iter().all(|node| node.cli(&["DBSIZE"]) != "0"), "all of them have some");
    let left = locks.shutdown(WITHIN).await;
    assert!(left.is_empty(), "{left}");
    assert!(cluster.nodes().iter().all(|node| node.cli(&["DBSIZE"]) == "0"));
    assert_eq!(shut_down(waiting.await.unwrap()), Outcome::NotSent);
    drop(guards);
}

/// B1: a shutdown during a failover releases the locks that the new primary knows.
#[tokio::test]
async fn shutdown_during_failover_reaches_new_primary() {
    let set = SentinelSet::start(&Settings::default());
    let locks = manager(&set.url()).await;
    let guards = acquire_all(&locks, "held", 20).await;
    set.failover();
    let left = locks.shutdown(2 * WITHIN).await;
    assert!(left.is_empty(), "{left}");
    assert!(eventually(PATIENCE, async || set.primary().cli(&["DBSIZE"]) == "0").await);
    drop(guards);
}

/// B1: all servers of a `RedLockManager` are shut down together, and its queue of waiters ends at once.
#[tokio::test]
async fn redlock_shuts_down_all_servers_together() {
    let servers: Vec<_> = (0..3).map(|_| RedisServer::start()).collect();
    let urls: Vec<_> = servers.iter().map(RedisServer::url).collect();
    let (red, other) =
        (RedLockManager::connect(&urls).await.unwrap(), RedLockManager::connect(&urls).await.unwrap());
    let elsewhere = other.lock("elsewhere").acquire().await.unwrap();
    let guard = red.lock("held").acquire().await.unwrap();
    for server in &servers {
        assert!(taken(server, "held").await);
    }
    let mut waiters = JoinSet::new();
    for _ in 0..5 {
        let lock = red.lock("elsewhere");
        waiters.spawn(async move { lock.acquire().await });
    }
    assert!(listeners(&servers[0], "elsewhere", 1).await, "the first in line listens");
    servers[2].pause();
    let shutdown = tokio::spawn({
        let red = red.clone();
        async move { red.shutdown(Duration::from_secs(1)).await }
    });
    let told = tokio::time::timeout(WOKEN, waiters.join_all()).await.expect("they are woken");
    assert!(told.into_iter().all(|ended| shut_down(ended) == Outcome::MaybeExecuted));
    assert_eq!(guard.lost().await, LostReason::ShutDown);
    let left = shutdown.await.unwrap();
    let left_on: Vec<_> =
        left.locks().iter().map(|left| (left.lock.as_str(), left.server.to_string())).collect();
    assert!(
        left_on.contains(&("held", red.managers().nth(2).unwrap().client().server_address().to_string()))
    );
    assert!(
        left.locks()
            .iter()
            .all(|left| left.server == red.managers().nth(2).unwrap().client().server_address())
    );
    assert!(servers[..2].iter().all(|server| server.cli(&["KEYS", "*"]) == "elsewhere"));
    assert_eq!(shut_down(red.lock("new").acquire().await), Outcome::NotSent);
    servers[2].resume();
    assert!(elsewhere.is_valid());
}
