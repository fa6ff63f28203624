//! Changes of held locks by other clients. The server tells the holder at once (`CLIENT TRACKING`), long before the next renewal.

use std::time::{Duration, Instant};

use wheellock::{LockManager, LostReason};
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
    let keys = guards.len() + 1;
    assert!(eventually(PATIENCE, async || tracked(&server) >= keys).await, "{} keys", tracked(&server));
    for (key, guard) in &guards {
        assert_eq!(server.cli(&["DEL", key]), "1");
        told(guard.lost(), key).await;
    }
    assert_eq!(server.cli(&["DEL", "fenced"]), "1");
    told(fenced.lost(), "fenced").await;
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
    let user = ["ACL", "SETUSER", "app", "on", ">pw", "+@all", "-client|tracking", "~*", "&*"];
    assert_eq!(server.cli(&user), "OK");
    let url = server.url().replacen("://", "://app:pw@", 1);
    let locks = LockManager::connect(&url).await.unwrap();
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
