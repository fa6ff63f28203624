//! Locks that several callers acquire or release at once. One command serves all callers, and each caller gets its own reply.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::task::JoinSet;
use wheellock::{Error, Guard, Lock, LockManager, Outcome};
use wheellock_tests::locks::{PATIENCE, at_rest, manager};
use wheellock_tests::{RedisServer, eventually};

const MANY: usize = 32;

/// Returns `MANY` locks of one kind.
fn many(of: impl Fn(&str) -> Lock) -> Vec<Lock> {
    (0..MANY).map(|number| of(&format!("lock:{number}"))).collect()
}

/// Acquires all locks at once. Returns the results in order.
async fn acquire_all(locks: &[Lock]) -> Vec<Result<Guard, Error>> {
    let mut tasks = JoinSet::new();
    for (place, lock) in locks.iter().cloned().enumerate() {
        tasks.spawn(async move { (place, lock.acquire().await) });
    }
    let mut all = tasks.join_all().await;
    all.sort_by_key(|(place, _)| *place);
    all.into_iter().map(|(_, result)| result).collect()
}

async fn release_all(guards: Vec<Guard>) -> Vec<Result<(), Error>> {
    let mut tasks = JoinSet::new();
    guards.into_iter().for_each(|guard| _ = tasks.spawn(guard.release()));
    tasks.join_all().await
}

/// Returns the number of scripts that clients have called, and the number of these calls that failed.
fn called(server: &RedisServer) -> (u64, u64) {
    let stats = server.cli(&["INFO", "commandstats"]);
    let all = stats.lines().filter(|line| line.starts_with("cmdstat_eval"));
    let number = |line: &str, name: &str| -> u64 {
        let field = line.split([':', ',']).find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
        field.map_or(0, |number| number.trim().parse().unwrap())
    };
    all.fold((0, 0), |(calls, failed), line| {
        (
            calls + number(line, "calls"),
            failed + number(line, "failed_calls") + number(line, "rejected_calls"),
        )
    })
}

async fn server_and_manager() -> (RedisServer, LockManager) {
    let server = RedisServer::start();
    let locks = manager(&server.url()).await;
    (server, locks)
}

#[tokio::test]
async fn simultaneous_acquires_share_commands() {
    let (server, locks) = server_and_manager().await;
    let read_write = |name: &str| locks.read_write_lock(name);
    let plain = [many(|name| locks.lock(name)), many(|name| locks.simple_lock(name))];
    let others = [
        many(|name| read_write(name).read()),
        many(|name| read_write(name).write()),
        many(|name| locks.fair_lock(name)),
    ];
    for kind in plain.into_iter().chain(others) {
        let before = called(&server).0;
        let guards: Vec<_> = acquire_all(&kind).await.into_iter().map(Result::unwrap).collect();
        let held: usize = server.cli(&["KEYS", "lock:*"]).lines().count();
        assert_eq!(held, MANY);
        for (guard, lock) in guards.iter().zip(&kind) {
            assert!(guard.is_valid() && lock.is_held_by(&guard.owner()).await.unwrap());
            let left: i64 = server.cli(&["PTTL", lock.name()]).parse().unwrap();
            assert!((20_000..=30_000).contains(&left), "{left}");
        }
        let asked = called(&server).0 - before;
        assert!(asked <= MANY as u64 / 4, "{asked} commands to take {MANY} locks");
        let before = called(&server).0;
        assert!(release_all(guards).await.into_iter().all(|released| released.is_ok()));
        let asked = called(&server).0 - before;
        assert!(asked <= MANY as u64 / 4, "{asked} commands to give {MANY} locks back");
        assert_eq!(server.cli(&["DBSIZE"]), "0");
    }
    assert!(at_rest(&locks).await);
}

/// Many readers of one lock come at the same moment. Each of them is a reader, and all wait behind a waiting writer. When the readers with
/// the longest leases leave, the lock's lease becomes shorter.
#[tokio::test]
async fn batched_readers_behave_like_single_readers() {
    let (server, locks) = server_and_manager().await;
    let [prices, elsewhere] =
        [&locks, &manager(&server.url()).await].map(|locks| locks.read_write_lock("lock"));
    let readers = vec![prices.read(); MANY];
    let before = called(&server).0;
    let guards: Vec<_> = acquire_all(&readers).await.into_iter().map(Result::unwrap).collect();
    let asked = called(&server).0 - before;
    assert!(asked <= MANY as u64 / 4, "{asked} commands to let {MANY} readers in");
    let leases: usize = server.cli(&["KEYS", "{lock}:*:rwlock_timeout:1"]).lines().count();
    assert_eq!((leases, &*server.cli(&["HLEN", "lock"])), (MANY, "33"), "each has its own, beside the mode");

    let long = vec![prices.read().with_lease(Duration::from_mins(1)); MANY];
    let longer: Vec<_> = acquire_all(&long).await.into_iter().map(Result::unwrap).collect();
    let left = || server.cli(&["PTTL", "lock"]).parse::<i64>().unwrap();
    assert!((50_000..=60_000).contains(&left()), "{}", left());

    let write = elsewhere.write();
    let mut writing = pin!(write.acquire());
    let waits = async || server.cli(&["EXISTS", "{lock}:wheellock_writer"]) == "1";
    tokio::select! {
        _ = &mut writing => panic!("readers are in its way"),
        waits = eventually(PATIENCE, waits) => assert!(waits),
    }
    let mut coming = JoinSet::new();
    for reader in readers {
        coming.spawn(async move { reader.try_acquire().await });
    }
    for came in coming.join_all().await {
        assert!(!came.unwrap().is_acquired(), "a writer waits");
    }

    assert!(release_all(longer).await.into_iter().all(|released| released.is_ok()));
    assert!((20_000..=30_000).contains(&left()), "{}", left());
    let (kept, rest): (Vec<_>, Vec<_>) = guards.into_iter().enumerate().partition(|(place, _)| *place == 0);
    let rest = rest.into_iter().map(|(_, guard)| guard).collect();
    assert!(release_all(rest).await.into_iter().all(|released| released.is_ok()));
    assert_eq!(server.cli(&["HLEN", "lock"]), "2", "one reads still");
    assert_eq!(server.cli(&["KEYS", "{lock}:*:rwlock_timeout:*"]).lines().count(), 1);
    drop(kept);
    let writer = tokio::time::timeout(PATIENCE, writing).await.expect("the last of them tells it").unwrap();
    writer.release().await.unwrap();
    assert_eq!(server.cli(&["DBSIZE"]), "0");
}

#[tokio::test]
async fn batched_acquires_have_separate_results() {
    let (server, locks) = server_and_manager().await;
    let all = many(|name| locks.lock(name));
    assert_eq!(server.cli(&["SET", "lock:5", "text"]), "OK");
    let held = all[7].acquire().await.unwrap();
    let mut tasks = JoinSet::new();
    for (place, lock) in all.iter().cloned().enumerate() {
        tasks.spawn(async move { (place, lock.try_acquire().await) });
    }
    for (place, result) in tasks.join_all().await {
        match place {
            5 => assert!(matches!(result, Err(Error::OtherData { .. })), "{result:?}"),
            7 => assert!(!result.unwrap().is_acquired()),
            _ => assert!(result.unwrap().acquired().is_some_and(|guard| guard.is_valid())),
        }
    }
    assert_eq!(server.cli(&["GET", "lock:5"]), "text");
    assert!(held.is_valid());
    drop(held);
    assert!(eventually(PATIENCE, async || server.cli(&["DBSIZE"]) == "1").await, "all are given back");
}

/// The server refuses the command because of one of its keys. The callers of the other keys must not get that error.
#[tokio::test]
async fn forbidden_key_fails_only_own_caller() {
    let server = RedisServer::builder().tcp().start();
    let user = ["ACL", "SETUSER", "app", "on", ">sesame", "~lock:1*", "&*", "+@all"];
    assert_eq!(server.cli(&user), "OK");
    let locks = manager(&server.url().replacen("://", "://app:sesame@", 1)).await;
    let all = many(|name| locks.lock(name));
    for _ in 0..3 {
        let results = acquire_all(&all).await;
        for (lock, result) in all.iter().zip(results) {
            if lock.name().starts_with("lock:1") {
                assert!(result.unwrap().is_valid());
            } else {
                let error = result.unwrap_err();
                assert_eq!(error.outcome(), Outcome::Rejected, "{error}");
                assert!(error.to_string().contains("NOPERM"), "{error}");
            }
        }
        assert!(eventually(PATIENCE, async || server.cli(&["DBSIZE"]) == "0").await, "all are given back");
    }
    assert!(at_rest(&locks).await);
}

#[tokio::test]
async fn flushed_scripts_are_loaded_again() {
    let (server, locks) = server_and_manager().await;
    let all = many(|name| locks.lock(name));
    for round in 0..4 {
        let _guards: Vec<_> = acquire_all(&all).await.into_iter().map(Result::unwrap).collect();
        if round < 2 {
            assert_eq!(server.cli(&["SCRIPT", "FLUSH", "SYNC"]), "OK");
        }
    }
    assert!(eventually(PATIENCE, async || server.cli(&["DBSIZE"]) == "0").await, "all are given back");
    let before = called(&server).0;
    let _guards: Vec<_> = acquire_all(&all).await.into_iter().map(Result::unwrap).collect();
    let asked = called(&server).0 - before;
    assert!(asked <= MANY as u64 / 4, "it was told the script anew, and {asked} commands were sent");
}

#[tokio::test]
async fn full_server_rejects_each_batched_acquire() {
    let (server, locks) = server_and_manager().await;
    let all = many(|name| locks.lock(name));
    assert_eq!(server.cli(&["CONFIG", "SET", "maxmemory", "1"]), "OK");
    let mut attempts = JoinSet::new();
    for lock in &all {
        let lock = lock.clone();
        attempts.spawn(async move { lock.try_acquire().await.map(drop) });
    }
    for result in attempts.join_all().await {
        let error = result.unwrap_err();
        assert_eq!(error.outcome(), Outcome::Rejected, "{error}");
        assert!(error.to_string().contains("OOM"), "{error}");
    }
    assert_eq!(server.cli(&["DBSIZE"]), "0");
    assert_eq!(server.cli(&["CONFIG", "SET", "maxmemory", "0"]), "OK");
    assert!(acquire_all(&all).await.iter().all(Result::is_ok));
    assert!(at_rest(&locks).await);
}

/// Futures are dropped while their calls are under way as one command. Each of these calls is taken back.
#[tokio::test]
async fn cancelled_batched_acquires_leave_nothing() {
    let (server, locks) = server_and_manager().await;
    let all = many(|name| locks.lock(name));
    for _ in 0..20 {
        let mut kept = Vec::new();
        {
            let mut futures: Vec<_> = all.iter().map(|lock| Box::pin(lock.acquire())).collect();
            let mut cx = Context::from_waker(Waker::noop());
            for (place, future) in futures.iter_mut().enumerate() {
                if let Poll::Ready(guard) = pin!(future).poll(&mut cx) {
                    kept.push((place, guard.unwrap()));
                }
            }
            // Every second future is dropped before it can have its reply.
            for (place, future) in futures.into_iter().enumerate() {
                if place % 2 == 0 && !kept.iter().any(|(known, _)| *known == place) {
                    kept.push((place, future.await.unwrap()));
                }
            }
        }
        let held = async || server.cli(&["DBSIZE"]).parse() == Ok(kept.len());
        assert!(eventually(PATIENCE, held).await, "only what is kept is held");
        assert!(kept.iter().all(|(_, guard)| guard.is_valid()));
    }
    assert!(eventually(PATIENCE, async || server.cli(&["DBSIZE"]) == "0").await, "all are given back");
    assert!(at_rest(&locks).await);
}

/// The connection is cut again and again while many locks are requested at once. No two callers hold the same lock, and no key stays.
#[tokio::test]
async fn connections_that_end_meanwhile_leave_nothing() {
    let (server, locks) = server_and_manager().await;
    let all = many(|name| locks.lock(name));
    for _ in 0..20 {
        let (guards, ()) = tokio::join!(acquire_all(&all), async {
            tokio::time::sleep(Duration::from_micros(300)).await;
            let _answer = server.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
        });
        let guards: Vec<_> = guards.into_iter().map(Result::unwrap).collect();
        assert!(guards.iter().all(Guard::is_valid));
        drop(guards);
    }
    assert!(eventually(PATIENCE, async || server.cli(&["DBSIZE"]) == "0").await, "all are given back");
    assert!(at_rest(&locks).await);
}
