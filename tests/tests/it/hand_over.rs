//! Hand-overs of a lock between tasks of one process. The server receives no request for a hand-over. The tests cover the time limit and
//! the causes that end hand-overs.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::timeout;
use wheellock::{Durability, Error, Guard, Lock, LockManager, LostReason, multi_lock};
use wheellock_tests::beside::attempts as scripts;
use wheellock_tests::locks::{PATIENCE, WOKEN, gone, listeners, lost, manager, passing_on};
use wheellock_tests::{RedisServer, eventually};

const NAME: &str = "hot";

/// Returns a manager whose process hands locks over for up to `budget`.
async fn handing_over(server: &RedisServer, budget: Duration) -> LockManager {
    LockManager::builder(&server.url()).hand_over(budget).connect().await.unwrap()
}

/// Longer than any test takes.
const ALWAYS: Duration = Duration::from_secs(600);

fn holder(server: &RedisServer) -> String {
    server.cli(&["HKEYS", NAME])
}

fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Polls `waiter`, which waits for a held lock, until it sleeps. By then its first request was refused. The server has also replied once
/// more since the waiter subscribed.
async fn asleep<F: Future>(locks: &LockManager, mut waiter: Pin<&mut F>) {
    let (mut quiet, before) = (0, locks.client().stats());
    let waits = eventually(PATIENCE, async || {
        assert!(poll(waiter.as_mut()).is_pending(), "it is held");
        let stats = locks.client().stats();
        quiet = if stats.in_flight == 0 && stats.queued_bytes == 0 { quiet + 1 } else { 0 };
        quiet > 3
    });
    assert!(waits.await, "{before:?}");
}

/// Acquires the lock and lets `waiter` wait for it.
async fn held_and_waited_for<F: Future>(locks: &LockManager, lock: &Lock, waiter: Pin<&mut F>) -> Guard {
    let guard = lock.acquire().await.unwrap();
    asleep(locks, waiter).await;
    guard
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hand_over_keeps_order_skips_server() {
    let server = RedisServer::start();
    let locks = handing_over(&server, ALWAYS).await;
    let (inside, all) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let before = scripts(&server);
    let mut tasks = JoinSet::new();
    for task in 0..64 {
        let (lock, inside, all) = (locks.lock(NAME), Arc::clone(&inside), Arc::clone(&all));
        tasks.spawn(async move {
            for round in 0..100 {
                let guard = lock.acquire().await.unwrap();
                assert!(!inside.swap(true, Ordering::SeqCst), "somebody else is inside");
                assert!(guard.is_valid());
                if (task + round) % 3 == 0 {
                    tokio::task::yield_now().await;
                }
                all.fetch_add(1, Ordering::Relaxed);
                inside.store(false, Ordering::SeqCst);
                if round % 2 == 0 {
                    guard.release().await.unwrap();
                }
            }
        });
    }
    tasks.join_all().await;
    assert!(gone(&server, NAME).await, "the last one tells the server");
    let (sent, metrics) = (scripts(&server) - before, locks.metrics());
    assert_eq!((all.load(Ordering::Relaxed), metrics.acquires, metrics.held), (6400, 6400, 0));
    assert!(metrics.hand_overs > 6000, "{metrics:?}");
    // A grant that was not handed over costs a request, perhaps a refused request, and a release.
    assert!(
        sent <= 4 * (6400 - metrics.hand_overs) + 4,
        "{sent} scripts, {} handed over",
        metrics.hand_overs
    );
}

/// A process that hands over releases the lock when its budget ends. It does not acquire the lock again before the other processes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_take_turns() {
    let server = RedisServer::start();
    let over = Arc::new(AtomicBool::new(false));
    // Process whose turn it is.
    let turn = Arc::new(AtomicU64::new(u64::MAX));
    let mut counts = Vec::new();
    let mut tasks = JoinSet::new();
    for process in 0..2 {
        let locks = handing_over(&server, Duration::from_millis(5)).await;
        let (count, turns) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        for _ in 0..8 {
            let (lock, over, turn) = (locks.lock(NAME), Arc::clone(&over), Arc::clone(&turn));
            let (count, turns) = (Arc::clone(&count), Arc::clone(&turns));
            tasks.spawn(async move {
                while !over.load(Ordering::Relaxed) {
                    let _guard = lock.acquire().await.unwrap();
                    count.fetch_add(1, Ordering::Relaxed);
                    let was_others = turn.swap(process, Ordering::Relaxed) != process;
                    turns.fetch_add(was_others.into(), Ordering::Relaxed);
                    tokio::task::yield_now().await;
                }
            });
        }
        counts.push((locks, count, turns));
    }
    let had = |turns: u64| counts.iter().all(|(_, _, had)| had.load(Ordering::Relaxed) >= turns);
    assert!(eventually(PATIENCE, async || had(20)).await, "somebody is kept out");
    over.store(true, Ordering::Relaxed);
    tasks.join_all().await;
    for (locks, count, _) in &counts {
        let handed_over = locks.metrics().hand_overs;
        assert!(handed_over > count.load(Ordering::Relaxed) / 2, "{handed_over} of {count:?}");
    }
    assert!(gone(&server, NAME).await);
}

/// A waiter that is dropped between its hand-over and its next poll passes the lock on to the next waiter. The last guard releases the lock
/// on the server.
#[tokio::test]
async fn dropped_waiter_passes_hand_over_on() {
    let server = RedisServer::start();
    let locks = handing_over(&server, ALWAYS).await;
    let lock = locks.lock(NAME);
    let (mut first, mut second) = (Box::pin(lock.acquire()), Box::pin(lock.acquire()));
    let guard = held_and_waited_for(&locks, &lock, first.as_mut()).await;
    assert!(poll(second.as_mut()).is_pending());
    let owner = holder(&server);
    drop(guard);
    drop(first);
    let Poll::Ready(Ok(guard)) = poll(second.as_mut()) else { panic!("it was passed on") };
    assert_eq!((holder(&server), locks.metrics().hand_overs), (owner, 1), "the server knows of nothing");
    drop(second);
    let mut third = Box::pin(lock.acquire());
    assert!(poll(third.as_mut()).is_pending());
    drop(guard);
    drop(third);
    assert!(gone(&server, NAME).await, "nobody is left to whom it could pass");
}

/// A task may keep a future without polling it. The lock must not stay with such a waiter.
#[tokio::test]
async fn unclaimed_hand_over_is_released_soon() {
    let server = RedisServer::start();
    let locks = handing_over(&server, ALWAYS).await;
    let lock = locks.lock(NAME);
    let mut sleeper = pin!(lock.acquire());
    let guard = held_and_waited_for(&locks, &lock, sleeper.as_mut()).await;
    drop(guard);
    let others = manager(&server.url()).await.lock(NAME);
    let theirs = timeout(PATIENCE, others.acquire()).await.expect("it was given back").unwrap();
    assert!(poll(sleeper.as_mut()).is_pending(), "it came too late");
    drop(theirs);
    let guard = timeout(PATIENCE, sleeper).await.expect("it is served as any other").unwrap();
    drop(guard);
    assert!(gone(&server, NAME).await);
}

/// A caller that has read a guard's owner may present that owner again. Another task's hold must not have the same owner then.
#[tokio::test]
async fn shown_owner_is_not_handed_over() {
    let server = RedisServer::start();
    let locks = handing_over(&server, ALWAYS).await;
    let lock = locks.lock(NAME);
    let mut waiter = pin!(lock.acquire());
    let guard = held_and_waited_for(&locks, &lock, waiter.as_mut()).await;
    let owner = guard.owner();
    guard.release().await.unwrap();
    let guard = waiter.await.unwrap();
    assert!(!lock.is_held_by(&owner).await.unwrap() && guard.owner() != owner);
    assert_eq!(locks.metrics().hand_overs, 0);
}

/// A waiter is handed a hold only if the hold matches its request. Leases, presented owners, tokens and queue entries may differ.
#[tokio::test]
async fn hand_over_needs_matching_request() {
    let server = RedisServer::start();
    let locks = handing_over(&server, ALWAYS).await;
    let (plain, fixed) = (locks.lock(NAME), locks.lock(NAME).with_lease(Duration::from_secs(20)));
    let own = plain.with_owner(locks.owner());
    for (first, second) in
        [(&plain, &fixed), (&fixed, &plain), (&plain, &own), (&own, &plain), (&fixed, &fixed)]
    {
        let mut waiter = pin!(second.acquire());
        let guard = held_and_waited_for(&locks, first, waiter.as_mut()).await;
        drop(guard);
        drop(waiter.await.unwrap());
    }
    let fair = locks.fair_lock("fair");
    let mut waiter = pin!(fair.acquire());
    let guard = held_and_waited_for(&locks, &fair, waiter.as_mut()).await;
    drop(guard);
    drop(waiter.await.unwrap());
    let fenced = locks.fenced_lock("fenced");
    let mut waiter = pin!(fenced.acquire());
    let guard = fenced.acquire().await.unwrap();
    asleep(&locks, waiter.as_mut()).await;
    let token = guard.token();
    drop(guard);
    assert!(waiter.await.unwrap().token() > token, "every grant has a token of its own");
    assert_eq!(locks.metrics().hand_overs, 0);
    // A budget of zero turns hand-overs off.
    let locks = handing_over(&server, Duration::ZERO).await;
    let lock = locks.lock(NAME);
    let mut waiter = pin!(lock.acquire());
    let guard = held_and_waited_for(&locks, &lock, waiter.as_mut()).await;
    drop(guard);
    drop(waiter.await.unwrap());
    assert_eq!(locks.metrics().hand_overs, 0);
}

/// The closure forms promise the server's reply. They release on the server even while a task waits.
#[tokio::test]
async fn closures_never_hand_over_report_loss() {
    let server = RedisServer::start();
    let locks = handing_over(&server, ALWAYS).await;
    let lock = locks.lock(NAME);
    let mut waiter = pin!(lock.acquire());
    let ran = lock.run(async |_guard| {
        asleep(&locks, waiter.as_mut()).await;
        assert_eq!(server.cli(&["DEL", NAME]), "1");
        Ok(())
    });
    assert!(matches!(ran.await, Err(Error::Lost { reason: LostReason::NotOwner, .. })));
    drop(timeout(PATIENCE, waiter).await.expect("it is free").unwrap());
    assert_eq!(locks.metrics().hand_overs, 0);
}

/// A lock is released by force while tasks hand it over. The holder learns of the loss, and the server grants the lock to the next waiter.
#[tokio::test]
async fn hot_lock_polls_after_forced_release() {
    let server = RedisServer::start();
    let locks = handing_over(&server, ALWAYS).await;
    let others = manager(&server.url()).await;
    let lock = locks.lock(NAME);
    let mut waiter = Box::pin(lock.acquire());
    let guard = held_and_waited_for(&locks, &lock, waiter.as_mut()).await;
    drop(guard);
    let Poll::Ready(Ok(guard)) = poll(waiter.as_mut()) else { panic!("it is handed over") };
    let waiting = lock.clone();
    let next = tokio::spawn(async move { waiting.acquire().await.unwrap() });
    assert!(listeners(&server, NAME, 1).await);
    assert!(others.lock(NAME).force_release().await.unwrap());
    let reason = timeout(PATIENCE, guard.lost()).await.expect("the waiter heard of it, and asked");
    assert_eq!(reason, LostReason::NotOwner);
    let next = next.await.unwrap();
    assert!(matches!(guard.release().await, Err(Error::Lost { .. })));
    assert!(next.is_valid() && next.release().await.is_ok());
    assert!(gone(&server, NAME).await);
}

/// A lock is evicted after a hand-over, and no message announces the loss. The holder and the waiter in the same process still learn of the
/// loss.
#[tokio::test]
async fn waiter_detects_loss_of_local_hold() {
    let server = RedisServer::start();
    let builder = LockManager::builder(&server.url()).hand_over(ALWAYS);
    let locks = builder.watchdog_lease(Duration::from_millis(900)).connect().await.unwrap();
    let lock = locks.lock(NAME);
    let (mut second, mut third) = (Box::pin(lock.acquire()), Box::pin(lock.acquire()));
    let first = held_and_waited_for(&locks, &lock, second.as_mut()).await;
    asleep(&locks, third.as_mut()).await;
    drop(first);
    let Poll::Ready(Ok(second)) = poll(second.as_mut()) else { panic!("it is handed over") };
    assert_eq!(server.cli(&["DEL", NAME]), "1");
    assert_eq!(lost(&second).await, LostReason::NotOwner);
    let third = timeout(WOKEN, third).await.expect("it was woken").unwrap();
    assert!(matches!(second.release().await, Err(Error::Lost { .. })));
    third.release().await.unwrap();
    assert!(gone(&server, NAME).await);
}

/// The watchdog renews a handed-over hold as it renews any other hold.
#[tokio::test]
async fn handed_over_hold_is_renewed() {
    let server = RedisServer::start();
    let builder =
        LockManager::builder(&server.url()).hand_over(ALWAYS).watchdog_lease(Duration::from_millis(1500));
    let locks = builder.connect().await.unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let mut tasks = JoinSet::new();
    for _ in 0..4 {
        let (lock, over) = (locks.lock(NAME), Arc::clone(&over));
        tasks.spawn(async move {
            while !over.load(Ordering::Relaxed) {
                let guard = lock.acquire().await.unwrap();
                tokio::time::sleep(Duration::from_millis(1)).await;
                assert!(guard.is_valid());
            }
        });
    }
    let owner = holder(&server);
    assert!(eventually(PATIENCE, async || locks.metrics().renewals > 5).await);
    over.store(true, Ordering::Relaxed);
    tasks.join_all().await;
    let metrics = locks.metrics();
    assert_eq!((metrics.lost_expired, metrics.lost_not_owner), (0, 0), "{owner}: {metrics:?}");
    assert!(gone(&server, NAME).await);
}

#[tokio::test]
async fn shutdown_ends_hand_over() {
    let server = RedisServer::start();
    for taken in [true, false] {
        let locks = handing_over(&server, ALWAYS).await;
        let lock = locks.lock(NAME);
        let (mut first, mut second) = (Box::pin(lock.acquire()), Box::pin(lock.acquire()));
        let guard = held_and_waited_for(&locks, &lock, first.as_mut()).await;
        assert!(poll(second.as_mut()).is_pending());
        drop(guard);
        let taken = if taken { Some(poll(first.as_mut())) } else { None };
        assert!(locks.shutdown(PATIENCE).await.is_empty());
        assert_eq!(server.cli(&["EXISTS", NAME]), "0");
        match taken {
            Some(Poll::Ready(Ok(guard))) => assert!(!guard.is_valid()),
            Some(other) => panic!("{other:?}"),
            None => assert!(matches!(first.await, Err(Error::ShutDown { .. }))),
        }
        assert!(matches!(second.await, Err(Error::ShutDown { .. })));
    }
}

/// A runtime that ends during a hand-over between two of its tasks releases the lock.
#[test]
fn runtime_end_during_hand_over_releases() {
    let server = RedisServer::start();
    for _ in 0..20 {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let locks = handing_over(&server, ALWAYS).await;
            let lock = locks.lock(NAME);
            let guard = lock.acquire().await.unwrap();
            for _ in 0..3 {
                let lock = lock.clone();
                tokio::spawn(async move {
                    let _guard = lock.acquire().await;
                    std::future::pending::<()>().await;
                });
            }
            tokio::task::yield_now().await;
            drop(guard);
        });
        drop(runtime);
        assert_eq!(server.cli(&["EXISTS", NAME]), "0");
    }
}

#[tokio::test]
async fn sets_writers_durable_holds_hand_over() {
    let server = RedisServer::builder().tcp().start();
    let locks = handing_over(&server, ALWAYS).await;
    let (one, other) = (locks.lock(NAME), locks.lock("other"));
    let set = multi_lock([one.clone(), other]).unwrap().acquire().await.unwrap();
    let mut waiter = pin!(one.acquire());
    asleep(&locks, waiter.as_mut()).await;
    set.release().await.unwrap();
    let Poll::Ready(Ok(guard)) = poll(waiter.as_mut()) else { panic!("it is handed over") };
    drop(guard);
    assert!(eventually(PATIENCE, async || server.cli(&["DBSIZE"]) == "0").await);

    let write = locks.read_write_lock("rw").write();
    let mut waiter = pin!(write.acquire());
    let guard = held_and_waited_for(&locks, &write, waiter.as_mut()).await;
    drop(guard);
    let Poll::Ready(Ok(guard)) = poll(waiter.as_mut()) else { panic!("it is handed over") };
    drop(guard);
    assert!(
        eventually(PATIENCE, async || server.cli(&["DBSIZE"]) == "0").await,
        "{}",
        server.cli(&["KEYS", "*"])
    );

    let builder = LockManager::builder(&server.tcp_url()).hand_over(ALWAYS).durability(Durability::Primary);
    let locks = builder.connect().await.unwrap();
    let durable = locks.lock("durable");
    let mut waiter = pin!(durable.acquire());
    let guard = held_and_waited_for(&locks, &durable, waiter.as_mut()).await;
    drop(guard);
    assert!(matches!(poll(waiter.as_mut()), Poll::Ready(Ok(_))));
}

/// A refused writer keeps readers out. A writer that is handed the lock keeps readers out only while it holds the lock.
#[tokio::test]
async fn handed_over_writer_leaves_readers_free() {
    let server = RedisServer::start();
    let locks = handing_over(&server, ALWAYS).await;
    let others = manager(&server.url()).await;
    let (write, read) = (locks.read_write_lock("rw").write(), others.read_write_lock("rw").read());
    let mut waiter = pin!(write.acquire());
    let guard = held_and_waited_for(&locks, &write, waiter.as_mut()).await;
    assert_eq!(server.cli(&["EXISTS", "{rw}:wheellock_writer"]), "1", "it was refused");
    guard.release().await.unwrap();
    let Poll::Ready(Ok(guard)) = poll(waiter.as_mut()) else { panic!("it is handed over") };
    assert_eq!(locks.metrics().hand_overs, 1);
    guard.release().await.unwrap();
    let reader = timeout(Duration::from_secs(2), read.acquire()).await.expect("nobody writes");
    drop(reader.unwrap());
}

/// Returns true once the process has kept one grant for eight times its budget. It must have handed the lock over meanwhile.
async fn kept(server: &RedisServer, locks: &LockManager) -> bool {
    eventually(PATIENCE, async || {
        let (had, passed) = (holder(server), locks.metrics().hand_overs);
        locks.client().config().timer.sleep(8 * BRIEF).await;
        had.contains(locks.id()) && holder(server) == had && locks.metrics().hand_overs > passed
    })
    .await
}

const BRIEF: Duration = Duration::from_millis(5);

/// The budget grows while no other process is subscribed. A process that subscribes later gets its turn.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lone_process_yields_to_later_subscriber() {
    let server = RedisServer::start();
    let locks = handing_over(&server, BRIEF).await;
    let over = Arc::new(AtomicBool::new(false));
    let tasks = passing_on(&locks.lock(NAME), &over);
    let lock = manager(&server.url()).await.lock(NAME);
    for _ in 0..3 {
        assert_eq!(server.cli(&["SCRIPT", "FLUSH"]), "OK");
        assert!(kept(&server, &locks).await);
        let guard = timeout(PATIENCE, lock.acquire()).await.expect("it has its turn").unwrap();
        guard.release().await.unwrap();
    }
    over.store(true, Ordering::Relaxed);
    tasks.join_all().await;
    assert!(gone(&server, NAME).await);
    assert_eq!(locks.metrics().lost_not_owner, 0);
}

/// A release notices that the lock was deleted by hand, before the watchdog does. The loss is counted once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn release_notices_deleted_hot_lock() {
    let server = RedisServer::start();
    let builder = LockManager::builder(&server.url()).hand_over(BRIEF).watchdog_lease(ALWAYS);
    let locks = builder.connect().await.unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let tasks = passing_on(&locks.lock(NAME), &over);
    let mut taken_away = 0;
    while taken_away < 20 {
        taken_away += server.cli(&["DEL", NAME]).parse::<u64>().unwrap();
        let noticed = async || locks.metrics().lost_not_owner == taken_away;
        assert!(eventually(PATIENCE, noticed).await, "{taken_away}: {:?}", locks.metrics());
    }
    over.store(true, Ordering::Relaxed);
    tasks.join_all().await;
    assert!(gone(&server, NAME).await);
}
