//! The lock of a single instance against real servers. The tests cover the protocol that many libraries share, and changes that other
//! clients make.

use std::time::{Duration, Instant};

use wheellock::{Attempt, Error, LockManager, LostReason, Outcome, RedLockManager};
use wheellock_tests::locks::{
    PATIENCE, RENEWED, WOKEN, at_rest, brisk, exclude_each_other, gone, lost, manager, renewed,
};
use wheellock_tests::{RedisServer, eventually, guide};

const NAME: &str = "backup";

async fn server_and_manager() -> (RedisServer, LockManager) {
    let server = RedisServer::start();
    let locks = manager(&server.url()).await;
    (server, locks)
}

fn set(server: &RedisServer, command: &[&str]) {
    let _answer = server.cli(command);
}

/// Acquires the lock as any other library does.
fn taken_by_another(server: &RedisServer, lease: u32) -> bool {
    server.cli(&["SET", NAME, "random", "NX", "PX", &lease.to_string()]) == "OK"
}

#[tokio::test]
async fn simple_lock_matches_wire_contract() {
    let (server, locks) = server_and_manager().await;
    let lock = locks.simple_lock(NAME);
    let guard = lock.with_lease(Duration::from_secs(20)).acquire().await.unwrap();
    let owner = guard.owner();
    assert_eq!(server.cli(&["GET", NAME]), owner.to_string());
    let left: i64 = server.cli(&["PTTL", NAME]).parse().unwrap();
    assert!((15_000..=20_000).contains(&left), "{left}");
    assert_eq!(server.cli(&["KEYS", "*"]), NAME);
    assert!(!taken_by_another(&server, 1000));
    assert!(lock.is_locked().await.unwrap() && lock.is_held_by(&owner).await.unwrap());
    assert!(!lock.is_held_by(&locks.owner()).await.unwrap());
    assert_eq!(lock.hold_count(&owner).await.unwrap(), 1);
    assert!(lock.remaining_lease().await.unwrap().is_some());
    assert!(!lock.try_acquire().await.unwrap().is_acquired());
    guard.release().await.unwrap();
    assert_eq!(server.cli(&["EXISTS", NAME]), "0");
    assert_eq!(lock.hold_count(&owner).await.unwrap(), 0);
    assert!(taken_by_another(&server, 60_000));
    assert!(!lock.try_acquire().await.unwrap().is_acquired());
}

/// Returns the number of times the server has executed `command`. Refused calls are not counted.
fn executed(server: &RedisServer, command: &str) -> u64 {
    let stats = server.cli(&["INFO", "commandstats"]);
    let line = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
    let calls = line.and_then(|line| line.split(',').next()).map(|calls| calls.parse().unwrap());
    calls.unwrap_or_default()
}

#[tokio::test]
async fn uncontended_calls_run_no_script() {
    let (server, locks) = server_and_manager().await;
    let lock = locks.simple_lock(NAME);
    for confirmed in [true, false, true] {
        let guard = lock.acquire().await.unwrap();
        if confirmed {
            guard.release().await.unwrap();
        } else {
            drop(guard);
            assert!(at_rest(&locks).await);
        }
    }
    assert_eq!(executed(&server, "set"), 3);
    let deletes = server.deletes_by();
    assert_eq!(executed(&server, "evalsha"), if deletes.is_some() { 0 } else { 3 });
    assert_eq!(deletes.map_or(3, |verb| executed(&server, verb)), 3);
    assert_eq!(executed(&server, "publish"), 3);
    assert_eq!(server.cli(&["DBSIZE"]), "0");
}

#[tokio::test]
async fn release_works_without_command_permissions() {
    let server = RedisServer::builder().tcp().start();
    let (version, name) = (server.redis_version(), "orders:1");
    let rules = [guide::permissions(version), guide::kind_permissions("simple", version)].concat();
    let url = server.tcp_url().replace("redis://", "redis://locks:secret@");
    let allowed = server.deletes_by().map(|verb| format!("+{verb}"));
    for denied in [None, Some("-publish"), Some("resetchannels")] {
        if denied == Some("resetchannels") && version < (6, 2, 0) {
            continue;
        }
        for allowed in [None, allowed.as_deref()] {
            let user = ["ACL", "SETUSER", "locks", "reset", "on", ">secret"];
            let words: Vec<&str> =
                user.into_iter().chain(rules.clone()).chain(denied).chain(allowed).collect();
            assert_eq!(server.cli(&words), "OK");
            let locks = manager(&url).await;
            for _ in 0..3 {
                let guard = locks.simple_lock(name).acquire().await.unwrap();
                assert_eq!(server.cli(&["EXISTS", name]), "1");
                assert!(matches!(guard.release().await, Ok(())), "{denied:?} {allowed:?}");
                assert_eq!(server.cli(&["EXISTS", name]), "0");
            }
        }
    }
}

#[tokio::test]
async fn second_acquire_of_owner_is_refused() {
    let (server, locks) = server_and_manager().await;
    let lock = locks.simple_lock(NAME);
    let guard = lock.acquire().await.unwrap();
    let again = lock.with_owner(guard.owner());
    for refused in [again.acquire().await.map(Attempt::Acquired), again.try_acquire().await] {
        let error = refused.unwrap_err();
        assert!(matches!(error, Error::NotReentrant { .. }), "{error}");
        assert_eq!(error.outcome(), Outcome::NotSent);
    }
    assert!(at_rest(&locks).await && guard.is_valid());
    assert_eq!(server.cli(&["EXISTS", NAME]), "1");
    guard.release().await.unwrap();
    let guard = again.acquire().await.unwrap();
    guard.release().await.unwrap();
}

#[tokio::test]
async fn waiter_polls_only_for_foreign_releases() {
    let (server, locks) = server_and_manager().await;
    let lock = locks.simple_lock(NAME);
    let others = manager(&server.url()).await.simple_lock(NAME);
    let wait = || {
        let lock = lock.clone();
        tokio::spawn(async move { lock.try_acquire_for(WOKEN).await.unwrap() })
    };
    let guard = others.acquire().await.unwrap();
    let waiting = wait();
    assert!(eventually(PATIENCE, async || locks.metrics().waiting == 1).await);
    let calls = locks.client().stats().calls;
    guard.release().await.unwrap();
    drop(waiting.await.unwrap().acquired().expect("it is woken"));
    let asked = locks.client().stats().calls - calls;
    assert!(asked <= 3, "it does not poll: {asked}");
    assert!(gone(&server, NAME).await);

    assert!(taken_by_another(&server, 600_000));
    let waiting = wait();
    assert!(eventually(PATIENCE, async || locks.metrics().waiting == 1).await);
    set(&server, &["DEL", NAME]);
    drop(waiting.await.unwrap().acquired().expect("nobody tells it, so it asks"));
    assert!(gone(&server, NAME).await);

    assert!(taken_by_another(&server, 700));
    let began = Instant::now();
    drop(wait().await.unwrap().acquired().expect("the lease of another has ended"));
    assert!((Duration::from_millis(500)..WOKEN).contains(&began.elapsed()));
}

#[tokio::test]
async fn watchdog_renews_and_reports_loss() {
    let server = RedisServer::start();
    let locks = brisk(&server.url(), RENEWED).await;
    let guard = locks.simple_lock(NAME).acquire().await.unwrap();
    assert!(renewed(&guard, 4).await);
    set(&server, &["SET", NAME, "random", "PX", "600000"]);
    assert_eq!(lost(&guard).await, LostReason::NotOwner);
    assert!(matches!(guard.release().await, Err(Error::Lost { .. })));
    assert_eq!(server.cli(&["GET", NAME]), "random", "what another has taken is left alone");
    assert!(locks.simple_lock(NAME).force_release().await.unwrap());
    assert!(!locks.simple_lock(NAME).force_release().await.unwrap());
}

/// The release comes before the watchdog can know of the loss.
#[tokio::test]
async fn release_spares_lock_of_new_holder() {
    let (server, locks) = server_and_manager().await;
    for confirmed in [true, false] {
        let guard = locks.simple_lock(NAME).acquire().await.unwrap();
        set(&server, &["SET", NAME, "random", "PX", "600000"]);
        if confirmed {
            assert!(matches!(guard.release().await, Err(Error::Lost { .. })));
        } else {
            drop(guard);
            assert!(at_rest(&locks).await);
        }
        assert_eq!(server.cli(&["GET", NAME]), "random");
        set(&server, &["DEL", NAME]);
    }
}

#[tokio::test]
async fn simple_lock_leaves_other_data() {
    let (server, locks) = server_and_manager().await;
    let lock = locks.simple_lock(NAME);
    set(&server, &["RPUSH", NAME, "x"]);
    let before = server.cli(&["DUMP", NAME]);
    for error in [lock.try_acquire().await.unwrap_err(), lock.acquire().await.unwrap_err()] {
        assert!(matches!(error, Error::OtherData { .. }), "{error}");
    }
    assert!(matches!(lock.force_release().await, Err(Error::OtherData { .. })));
    assert_eq!(server.cli(&["DUMP", NAME]), before);
    set(&server, &["DEL", NAME]);
    let guard = lock.acquire().await.unwrap();
    assert!(matches!(locks.lock(NAME).try_acquire().await, Err(Error::OtherData { .. })));
    assert!(matches!(locks.read_write_lock(NAME).read().try_acquire().await, Err(Error::OtherData { .. })));
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_of_two_processes_exclude() {
    let server = RedisServer::start();
    let managers = [manager(&server.url()).await, manager(&server.url()).await];
    exclude_each_other(&managers.map(|locks| locks.simple_lock(NAME)), 16).await;
    assert!(gone(&server, NAME).await);
}

#[tokio::test]
async fn majority_excludes_foreign_clients_both_ways() {
    let servers = [RedisServer::start(), RedisServer::start(), RedisServer::start()];
    let red = RedLockManager::connect(servers.iter().map(RedisServer::url)).await.unwrap();
    let lock = red.simple_lock(NAME);
    let guard = lock.acquire().await.unwrap();
    assert_eq!(servers.iter().filter(|server| taken_by_another(server, 1000)).count(), 0);
    assert!(red.lock("beside").try_acquire().await.unwrap().is_acquired());
    guard.release().await.unwrap();
    let theirs = servers.iter().take(2).filter(|server| taken_by_another(server, 600_000)).count();
    assert_eq!(theirs, 2);
    assert!(!lock.try_acquire().await.unwrap().is_acquired(), "they have the majority");
    assert!(gone(&servers[2], NAME).await, "and nothing of ours is left");
}

#[tokio::test]
async fn majority_waiter_polls_for_silent_releases() {
    let servers = [RedisServer::start(), RedisServer::start(), RedisServer::start()];
    let red = RedLockManager::connect(servers.iter().map(RedisServer::url)).await.unwrap();
    assert!(servers.iter().all(|server| taken_by_another(server, 600_000)));
    let lock = red.simple_lock(NAME);
    let scripts = |server: &RedisServer| {
        let stats = server.cli(&["INFO", "commandstats"]);
        let calls = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
        calls.and_then(|calls| calls.split(',').next()?.parse::<u32>().ok()).unwrap_or_default()
    };
    let before: Vec<_> = servers.iter().map(scripts).collect();
    let waiting = tokio::spawn(async move { lock.try_acquire_for(WOKEN).await.unwrap() });
    // Each server gets two requests, one before the subscription and one after it.
    let asked = || servers.iter().zip(&before).all(|(server, before)| scripts(server) >= before + 2);
    assert!(eventually(PATIENCE, async || asked()).await);
    servers.iter().for_each(|server| set(server, &["DEL", NAME]));
    assert!(waiting.await.unwrap().is_acquired(), "nobody tells it, so it asks");
}
