//! Changes of held locks by other clients. The server tells the holder at once (`CLIENT TRACKING`), long before the next renewal.

use std::time::{Duration, Instant};

use tokio::task::JoinHandle;
use wheellock::{Guard, LockManager, LostReason};
use wheellock_tests::locks::{PATIENCE, brisk, manager};
use wheellock_tests::topology::{Cluster, Settings};
use wheellock_tests::{RedisServer, eventually};

/// The watchdog renews after a third of it, so a report within [`AT_ONCE`] has another cause.
const LEASE: Duration = Duration::from_secs(9);
const AT_ONCE: Duration = Duration::from_secs(1);

/// Returns the number of keys that the server remembers for its clients.
fn tracked(server: &RedisServer) -> usize {
    let info = server.cli(&["INFO", "stats"]);
    let line = info.lines().find_map(|line| line.strip_prefix("tracking_total_keys:"));
    line.and_then(|number| number.trim().parse().ok()).expect("the server counts them")
}

/// Returns the number of scripts that the server has run.
fn scripts(server: &RedisServer) -> u64 {
    let info = server.cli(&["INFO", "commandstats"]);
    let count =
        |line: &str| line.strip_prefix("cmdstat_evalsha:calls=")?.split(',').next()?.parse::<u64>().ok();
    info.lines().find_map(count).unwrap_or_default()
}

async fn told(loss: impl Future<Output = LostReason>, what: &str) {
    let reason = tokio::time::timeout(AT_ONCE, loss).await;
    assert_eq!(
        reason.unwrap_or_else(|_| panic!("{what} was not told at once")),
        LostReason::NotOwner,
        "{what}"
    );
}

#[tokio::test]
async fn deleted_lock_is_lost_at_once() {
    let server = RedisServer::start();
    let locks = brisk(&server.url(), LEASE).await;
    let (fixed, long) = (locks.lock("fixed").with_lease(LEASE * 4), locks.simple_lock("simple"));
    let (read_write, writer) = (locks.read_write_lock("read"), locks.read_write_lock("write"));
    let guards = [
        ("plain", locks.lock("plain").acquire().await.unwrap()),
        ("fixed", fixed.acquire().await.unwrap()),
        ("simple", long.acquire().await.unwrap()),
        ("fair", locks.fair_lock("fair").acquire().await.unwrap()),
        ("read", read_write.read().acquire().await.unwrap()),
        ("write", writer.write().acquire().await.unwrap()),
    ];
    let fenced = locks.fenced_lock("fenced").acquire().await.unwrap();
    let permits = locks.permit_semaphore("permits");
    assert!(permits.try_set_permits(2).await.unwrap());
    let permit = permits.acquire().await.unwrap();
    let keys = guards.len() + 2;
    assert!(eventually(PATIENCE, async || tracked(&server) >= keys).await, "{} keys", tracked(&server));
    for (key, guard) in &guards {
        assert_eq!(server.cli(&["DEL", key]), "1");
        told(guard.lost(), key).await;
    }
    assert_eq!(server.cli(&["DEL", "fenced"]), "1");
    told(fenced.lost(), "fenced").await;
    assert_eq!(server.cli(&["DEL", "{permits}:timeout"]), "1");
    told(permit.lost(), "permit").await;
}

#[tokio::test]
async fn flushed_locks_are_lost_at_once() {
    let server = RedisServer::start();
    let locks = brisk(&server.url(), LEASE).await;
    let mut guards = Vec::new();
    for number in 0..500 {
        guards.push(locks.lock(&format!("n{number}")).acquire().await.unwrap());
    }
    assert!(eventually(PATIENCE, async || tracked(&server) == guards.len()).await);
    assert_eq!(server.cli(&["FLUSHALL"]), "OK");
    for guard in &guards {
        told(guard.lost(), "FLUSHALL").await;
    }
}

/// Another client writes to the lock's key again and again. The hold stays, and the watchdog does not ask again and again.
#[tokio::test]
async fn changed_lock_stays_held() {
    let server = RedisServer::start();
    let locks = brisk(&server.url(), LEASE).await;
    let guard = locks.lock("n").acquire().await.unwrap();
    assert!(eventually(PATIENCE, async || tracked(&server) == 1).await);
    let (before, start) = (scripts(&server), Instant::now());
    let mut other = server.connect().unwrap();
    for number in 0..1000 {
        other.query(&["HSET", "n", "foreign", &number.to_string()]).unwrap();
        if number % 50 == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    let most = 3 + u64::try_from(start.elapsed().as_millis() / 40).unwrap();
    let asked = scripts(&server) - before;
    assert!((1..=most).contains(&asked), "{asked} checks, at most {most} expected");
    assert!(guard.is_valid());
    assert_eq!(server.cli(&["DEL", "n"]), "1");
    told(guard.lost(), "a later deletion").await;
}

/// Each acquire and release changes the key of the leases. It must not make the holder of a permit ask each time.
#[tokio::test]
async fn changed_semaphore_is_checked_rarely() {
    let server = RedisServer::start();
    let locks = brisk(&server.url(), LEASE).await;
    let permits = locks.permit_semaphore("permits");
    assert!(permits.try_set_permits(2).await.unwrap());
    let permit = permits.acquire().await.unwrap();
    assert!(eventually(PATIENCE, async || tracked(&server) == 1).await);
    let others = manager(&server.url()).await;
    let others = others.permit_semaphore("permits");
    let before = scripts(&server);
    for _ in 0..100 {
        others.acquire().await.unwrap().release().await.unwrap();
    }
    let checks = scripts(&server) - before - 200;
    assert!((1..=3).contains(&checks), "{checks} checks");
    assert!(permit.is_valid());
}

/// Each reader's renewal changes the key that they share. It must not make the others ask, which would make the next ones ask.
#[tokio::test]
async fn readers_do_not_alarm_each_other() {
    let server = RedisServer::start();
    let lease = Duration::from_millis(900);
    let mut readers = Vec::new();
    for _ in 0..5 {
        let locks = brisk(&server.url(), lease).await;
        let guard = locks.read_write_lock("n").read().acquire().await.unwrap();
        readers.push((locks, guard));
    }
    let before = scripts(&server);
    tokio::time::sleep(lease * 4).await;
    let asked = scripts(&server) - before;
    // Twelve beats with a renewal, and at most one check after each.
    assert!(asked <= 5 * 13 * 2, "{asked} scripts");
    assert!(readers.iter().all(|(_, guard)| guard.is_valid()));
}

/// A lock that is deleted while the connection is down is found lost when the connection is up again.
#[tokio::test]
async fn deletion_during_outage_is_told_after_reconnect() {
    let server = RedisServer::start();
    let locks = brisk(&server.url(), LEASE).await;
    let guard = locks.lock("n").with_lease(LEASE * 4).acquire().await.unwrap();
    let mut other = server.connect().unwrap();
    other.query(&["MULTI"]).unwrap();
    other.query(&["DEL", "n"]).unwrap();
    other.query(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).unwrap();
    other.query(&["EXEC"]).unwrap();
    told(guard.lost(), "a deletion before the reconnect").await;
}

/// A user that may not use `CLIENT TRACKING` has its locks as before. The manager reports the missing permission.
#[tokio::test]
async fn missing_permission_is_a_finding() {
    let server = RedisServer::start();
    let locks = LockManager::connect(&server.untracked_url()).await.unwrap();
    let findings: Vec<_> = locks.diagnostics().iter().map(ToString::to_string).collect();
    assert!(findings.iter().any(|finding| finding.contains("CLIENT TRACKING")), "{findings:?}");
    let guard = locks.lock("n").acquire().await.unwrap();
    assert!(manager(&server.url()).await.lock("n").force_release().await.unwrap());
    drop(guard);
}

/// Each node tells of its own keys.
#[tokio::test]
async fn deleted_lock_in_cluster_is_lost_at_once() {
    let cluster = Cluster::start(3, 0, &Settings::default());
    let locks = brisk(&cluster.url(), LEASE).await;
    let mut guards = Vec::new();
    for key in ["a", "b", "c", "d", "e", "f"] {
        guards.push((key, locks.lock(key).acquire().await.unwrap()));
    }
    let tracked = || cluster.nodes().iter().map(tracked).sum::<usize>();
    assert!(eventually(PATIENCE, async || tracked() == guards.len()).await, "{} keys", tracked());
    for (key, guard) in &guards {
        assert_eq!(cluster.nodes()[cluster.owner_of_key(key)].cli(&["DEL", key]), "1");
        told(guard.lost(), key).await;
    }
}

/// Returns a waiter for this simple lock, which another library holds. The server remembers the key for the waiter. The waiter's pauses
/// between two polls have become long.
async fn behind_foreign_holder(locks: &LockManager, server: &RedisServer, key: &str) -> JoinHandle<Guard> {
    assert_eq!(server.cli(&["SET", key, "foreign", "NX", "PX", "30000"]), "OK");
    let (lock, before) = (locks.simple_lock(key), scripts(server));
    let waiter = tokio::spawn(async move { lock.acquire().await.unwrap() });
    let is_remembered = async || tracked(server) == 1 && scripts(server) >= before + 9;
    assert!(eventually(PATIENCE, is_remembered).await, "{key}");
    waiter
}

/// Returns the number of waits that ended with news from the server.
fn woken(locks: &LockManager) -> u64 {
    locks.metrics().message_wakes
}

/// Other libraries send no message. The server tells the waiter of the release.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreign_release_wakes_waiter() {
    let server = RedisServer::start();
    let locks = brisk(&server.url(), LEASE).await;
    for round in 0..20 {
        let waiter = behind_foreign_holder(&locks, &server, "n").await;
        assert_eq!(server.cli(&["DEL", "n"]), "1");
        waiter.await.unwrap().release().await.unwrap();
        assert!(eventually(PATIENCE, async || server.cli(&["EXISTS", "n"]) == "0").await, "round {round}");
    }
    // A poll by the schedule may be under way when the key is deleted.
    assert!(woken(&locks) >= 15, "{} of 20", woken(&locks));
}

/// The end of a foreign lease wakes the waiter, too.
#[tokio::test]
async fn foreign_expiry_wakes_waiter() {
    let server = RedisServer::start();
    let locks = brisk(&server.url(), LEASE).await;
    let waiter = behind_foreign_holder(&locks, &server, "n").await;
    assert_eq!(server.cli(&["PEXPIRE", "n", "200"]), "1");
    let guard = tokio::time::timeout(AT_ONCE, waiter).await.expect("the lease has ended").unwrap();
    assert!(guard.is_valid());
}

/// A foreign key that changes all the time makes a waiter poll 20 times a second at most, besides its schedule.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changing_foreign_lock_limits_polls() {
    let server = RedisServer::start();
    let locks = brisk(&server.url(), LEASE).await;
    let waiter = behind_foreign_holder(&locks, &server, "n").await;
    let (before, start) = (scripts(&server), Instant::now());
    let mut other = server.connect().unwrap();
    let mut changes = 0_u64;
    while start.elapsed() < Duration::from_secs(1) {
        other.query(&["SET", "n", &changes.to_string(), "XX", "PX", "30000"]).unwrap();
        changes += 1;
    }
    // The burst, 20 polls a second, and the polls of the schedule: random pauses with a mean of 64 ms.
    let most = 16 + 20 * (1 + start.elapsed().as_secs()) + 40;
    let polls = scripts(&server) - before;
    assert!(changes > 2 * most && polls <= most, "{polls} polls after {changes} changes");
    assert_eq!(server.cli(&["DEL", "n"]), "1");
    drop(tokio::time::timeout(AT_ONCE, waiter).await.expect("it was released").unwrap());
}

/// Waiters for other kinds poll 150 ms after a deletion, long before the end of the lease or the next poll of their schedule.
#[tokio::test]
async fn deletion_wakes_waiters_of_other_kinds() {
    let server = RedisServer::start();
    let (holders, locks) = (brisk(&server.url(), LEASE * 4).await, brisk(&server.url(), LEASE * 4).await);
    let (held, wanted) = (holders.read_write_lock("write"), locks.read_write_lock("write"));
    let (read, written) = (holders.read_write_lock("read"), locks.read_write_lock("read"));
    let cases = [
        ("plain", holders.lock("plain"), locks.lock("plain")),
        ("simple", holders.simple_lock("simple"), locks.simple_lock("simple")),
        ("write", held.write(), wanted.read()),
        ("read", read.read(), written.write()),
    ];
    for (key, holder, lock) in cases {
        let before = tracked(&server);
        let guard = holder.acquire().await.unwrap();
        let waiter = tokio::spawn(async move { lock.acquire().await.unwrap() });
        assert!(eventually(PATIENCE, async || tracked(&server) > before).await, "{key}");
        assert_eq!(server.cli(&["DEL", key]), "1");
        drop(tokio::time::timeout(AT_ONCE, waiter).await.unwrap_or_else(|_| panic!("{key}")).unwrap());
        drop(guard);
    }
}

/// `FLUSHALL` needs no key that the server remembers. Waiters of fair locks poll every 2 s anyway.
#[tokio::test]
async fn flush_wakes_waiters_of_subscribed_kinds() {
    let server = RedisServer::start();
    let (holders, locks) = (brisk(&server.url(), LEASE * 4).await, brisk(&server.url(), LEASE * 4).await);
    let (held, wanted) = (holders.read_write_lock("write"), locks.read_write_lock("write"));
    let cases = [
        (holders.lock("plain"), locks.lock("plain")),
        (holders.simple_lock("simple"), locks.simple_lock("simple")),
        (held.write(), wanted.read()),
    ];
    let (mut guards, mut waiters) = (Vec::new(), Vec::new());
    for (holder, lock) in cases {
        guards.push(holder.acquire().await.unwrap());
        waiters.push(tokio::spawn(async move { lock.acquire().await.unwrap() }));
    }
    let (fenced, latch) =
        (holders.fenced_lock("fenced").acquire().await.unwrap(), locks.count_down_latch("l"));
    latch.try_set_count(std::num::NonZeroU32::MIN).await.unwrap();
    let (wanted, mut others) = (locks.fenced_lock("fenced"), tokio::task::JoinSet::new());
    others.spawn(async move { drop(wanted.acquire().await.unwrap()) });
    others.spawn(async move { latch.wait().await.unwrap() });
    let are_waiting =
        async || locks.metrics().waiting == 5 && server.cli(&["PUBSUB", "CHANNELS"]).lines().count() >= 5;
    assert!(eventually(PATIENCE, are_waiting).await, "{}", server.cli(&["PUBSUB", "CHANNELS"]));
    assert_eq!(server.cli(&["FLUSHALL"]), "OK");
    for waiter in waiters {
        let guard = tokio::time::timeout(AT_ONCE, waiter).await.expect("it was told").unwrap();
        assert!(guard.is_valid());
    }
    tokio::time::timeout(AT_ONCE, others.join_all()).await.expect("both were told");
    drop((guards, fenced));
}

/// Without the permission a waiter polls as before.
#[tokio::test]
async fn untracked_waiter_polls() {
    let server = RedisServer::start();
    let locks = manager(&server.untracked_url()).await;
    assert_eq!(server.cli(&["SET", "n", "foreign", "NX", "PX", "30000"]), "OK");
    let (lock, before) = (locks.simple_lock("n"), scripts(&server));
    let waiter = tokio::spawn(async move { lock.acquire().await.unwrap() });
    assert!(eventually(PATIENCE, async || scripts(&server) >= before + 5).await);
    assert_eq!(server.cli(&["DEL", "n"]), "1");
    drop(tokio::time::timeout(AT_ONCE, waiter).await.expect("it polls").unwrap());
    assert!(!server.cli(&["INFO", "commandstats"]).contains("cmdstat_client|caching"), "it was not allowed");
}

/// An uncontended pair, and a caller that does not wait, make the server remember nothing.
#[tokio::test]
async fn uncontended_lock_is_not_tracked() {
    let server = RedisServer::start();
    let (locks, others) = (brisk(&server.url(), LEASE).await, brisk(&server.url(), LEASE).await);
    let guard = locks.simple_lock("n").acquire().await.unwrap();
    assert!(!others.simple_lock("n").try_acquire().await.unwrap().is_acquired());
    guard.release().await.unwrap();
    locks.lock("m").acquire().await.unwrap().release().await.unwrap();
    assert!(!server.cli(&["INFO", "commandstats"]).contains("cmdstat_client|caching"));
}

/// Each node tells the waiters of its own keys.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreign_release_in_cluster_wakes_waiter() {
    let cluster = Cluster::start(3, 0, &Settings::default());
    let locks = brisk(&cluster.url(), LEASE).await;
    for key in ["a", "b", "c", "d"] {
        let node = &cluster.nodes()[cluster.owner_of_key(key)];
        let waiter = behind_foreign_holder(&locks, node, key).await;
        assert_eq!(node.cli(&["DEL", key]), "1");
        waiter.await.unwrap().release().await.unwrap();
        assert!(eventually(PATIENCE, async || tracked(node) == 0).await, "{key}");
    }
    assert!(woken(&locks) >= 3, "{} of 4", woken(&locks));
}

/// A thread that waits is woken as a task is.
#[test]
fn foreign_release_wakes_thread() {
    let server = RedisServer::start();
    assert_eq!(server.cli(&["SET", "n", "foreign", "NX", "PX", "30000"]), "OK");
    let locks = wheellock::blocking::LockManager::connect(&server.url()).unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| locks.simple_lock("n").acquire().unwrap().release().unwrap());
        // By then a pause is 64 ms long on average.
        while tracked(&server) == 0 || scripts(&server) < 9 {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(server.cli(&["DEL", "n"]), "1");
        waiter.join().unwrap();
    });
    assert_eq!(server.cli(&["EXISTS", "n"]), "0");
}

/// A server with a full table forgets keys, and tells of each as if it had changed. No hold is lost, and the checks stay few.
#[tokio::test]
async fn full_tracking_table_loses_nothing() {
    let server = RedisServer::start();
    assert_eq!(server.cli(&["CONFIG", "SET", "tracking-table-max-keys", "100"]), "OK");
    let locks = brisk(&server.url(), LEASE).await;
    let mut guards = Vec::new();
    for number in 0..1000 {
        guards.push(locks.lock(&format!("n{number}")).acquire().await.unwrap());
    }
    assert!(eventually(PATIENCE, async || tracked(&server) > 0).await);
    let (before, start) = (scripts(&server), Instant::now());
    tokio::time::sleep(LEASE).await;
    let asked = scripts(&server) - before;
    assert!(guards.iter().all(|guard| guard.is_valid()));
    assert!(asked <= 600, "{asked} scripts in {:?}", start.elapsed());
}
