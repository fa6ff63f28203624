//! Helpers for tests beside Redisson on one server.
//!
//! A lock's name may begin with its kind, for either side: `read@`, `write@`, `fenced@`, `fair@` or `spin@`. The names of other objects
//! begin with `semaphore@`, `permits@` or `latch@`.

use std::time::Duration;

use tokio::task::JoinHandle;
use wheellock::{Guard, LockManager};

use crate::interop::{self, Client};
use crate::locks::{PATIENCE, at_rest};
use crate::poll::eventually;
use crate::server::RedisServer;
use crate::worker::{monotonic, of_kind};

/// Starts a server, a Redisson client and a manager with this watchdog lease. Returns `None` if there is no Java.
///
/// # Panics
///
/// If a part cannot be started.
pub async fn both_sides(watchdog_lease: Duration) -> Option<(RedisServer, Client, LockManager)> {
    interop::shared()?;
    let server = RedisServer::builder().tcp().start();
    let java = shared_client("java", &server, watchdog_lease).await;
    let locks = LockManager::builder(&server.url()).watchdog_lease(watchdog_lease);
    Some((server, java, locks.connect().await.expect("the server is up")))
}

/// Opens a client of the shared peer. The server's port tells the clients of several tests apart.
///
/// # Panics
///
/// If there is no Java.
pub async fn shared_client(name: &str, server: &RedisServer, watchdog_lease: Duration) -> Client {
    let peer = interop::shared().expect("there is Java");
    peer.open(&format!("{name}-{}", server.addr().port()), &server.url(), watchdog_lease).await
}

/// Spawns a task that waits for a lock and returns the time of the grant.
#[must_use]
pub fn waiter(locks: &LockManager, name: &str) -> JoinHandle<(Duration, Guard)> {
    let lock = of_kind(locks, name);
    tokio::spawn(async move {
        let guard = lock.acquire().await.expect("the server answers");
        (monotonic(), guard)
    })
}

/// Returns the output of `work`.
///
/// # Panics
///
/// If it takes longer than `limit`.
pub async fn within<F: Future>(limit: Duration, work: F) -> F::Output {
    tokio::time::timeout(limit, work).await.expect("woken, not told by the clock")
}

/// Waits until our process is subscribed to the release of `name`, and the server has refused it once more since.
pub async fn we_wait(server: &RedisServer, locks: &LockManager, name: &str) -> bool {
    if channel(name).is_none() {
        return eventually(PATIENCE, async || locks.metrics().waiting > 0).await;
    }
    subscribers(server, name, "1").await && at_rest(locks).await
}

/// Waits until Java is subscribed to the release of `name`, and has polled twice since its `asked`th poll.
pub async fn java_waits(server: &RedisServer, name: &str, asked: u64) -> bool {
    let listens = channel(name).is_none() || subscribers(server, name, "1").await;
    listens && eventually(PATIENCE, async || attempts(server) >= asked + 2).await
}

/// Waits until the lease of `name` is extended.
pub async fn extended(server: &RedisServer, name: &str) -> bool {
    let mut before = i64::MAX;
    eventually(PATIENCE, async || {
        let ttl = server.cli(&["PTTL", key(name)]).parse().unwrap_or_default();
        std::mem::replace(&mut before, ttl) < ttl
    })
    .await
}

/// Waits until the lease of the only permit of the semaphore `key` is extended.
pub async fn extended_permit(server: &RedisServer, key: &str) -> bool {
    let mut before = f64::INFINITY;
    eventually(PATIENCE, async || {
        let leases = server.cli(&["ZRANGE", &format!("{{{key}}}:timeout"), "0", "0", "WITHSCORES"]);
        let ends = leases.lines().last().and_then(|ends| ends.parse().ok()).unwrap_or_default();
        std::mem::replace(&mut before, ends) < ends
    })
    .await
}

/// Waits until the channel of `name` has no subscriber.
pub async fn quiet(server: &RedisServer, name: &str) -> bool {
    subscribers(server, name, "0").await
}

/// Waits until the channel of `name` has `count` subscribers.
pub async fn subscribers(server: &RedisServer, name: &str, count: &str) -> bool {
    let channel = channel(name).expect("a spin lock has no channel");
    let answer = format!("{channel}\n{count}");
    eventually(PATIENCE, async || server.cli(&["PUBSUB", "NUMSUB", &channel]) == answer).await
}

/// Returns the channel as Redisson's `prefixName` builds it, in a second implementation. Returns `None` for a spin lock, which has no
/// channel.
#[must_use]
pub fn channel(name: &str) -> Option<String> {
    let prefix = match name.split_once('@') {
        Some(("spin", _)) => return None,
        Some(("latch", key)) => return Some(format!("redisson_countdownlatch__channel__{{{key}}}")),
        Some(("semaphore" | "permits", _)) => "redisson_sc",
        Some(("read" | "write", _)) => "redisson_rwlock",
        _ => "redisson_lock__channel",
    };
    let key = key(name);
    Some(if key.contains('{') { format!("{prefix}:{key}") } else { format!("{prefix}:{{{key}}}") })
}

/// Returns the lock's key, which is its name without its kind.
#[must_use]
pub fn key(name: &str) -> &str {
    match name.split_once('@') {
        Some(("read" | "write" | "fenced" | "fair" | "spin" | "semaphore" | "permits" | "latch", key)) => key,
        _ => name,
    }
}

/// Returns the number of calls of any script.
#[must_use]
pub fn attempts(server: &RedisServer) -> u64 {
    // Redisson up to version 4 loads no scripts by default.
    calls(server, "evalsha") + calls(server, "eval")
}

/// Returns how many times the server has run a command.
#[must_use]
pub fn calls(server: &RedisServer, command: &str) -> u64 {
    let (stats, name) = (server.cli(&["INFO", "commandstats"]), format!("cmdstat_{command}:calls="));
    let line = stats.lines().find_map(|line| line.trim().strip_prefix(&name));
    line.and_then(|rest| rest.split(',').next()?.parse().ok()).unwrap_or(0)
}
