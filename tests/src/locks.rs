//! Helpers that lock tests share.
//!
//! Provides managers with settings for faults, conditions to wait for, and the lock layer's requests as MONITOR shows them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use wheellock::client::Config;
use wheellock::{Guard, Lock, LockManager, LostReason};

use crate::monitor::Observed;
use crate::poll::eventually;
use crate::server::RedisServer;

/// A bound on hangs. All waits end much earlier.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Waiters poll after 5 s even without a message. A waiter that gets the lock within this time was woken.
pub const WOKEN: Duration = Duration::from_secs(4);

/// Connects a manager with default settings, with a watchdog lease of 30 s.
///
/// # Panics
///
/// If the manager cannot connect.
pub async fn manager(url: &str) -> LockManager {
    LockManager::connect(url).await.expect("the server is up")
}

/// Connects a manager for tests that break its connection. The manager reconnects at once. It sends no PING, which a proxy's rule could hit
/// instead of a script.
///
/// # Panics
///
/// If the manager cannot connect.
pub async fn brisk(url: &str, watchdog_lease: Duration) -> LockManager {
    adjusted(url, watchdog_lease, |_| {}).await
}

/// A lease that the watchdog renews every second. The hold survives a machine that stands still for a second.
pub const RENEWED: Duration = Duration::from_secs(3);

/// Connects a manager as [`brisk`] does, with further settings.
///
/// # Panics
///
/// If the manager cannot connect.
pub async fn adjusted(url: &str, watchdog_lease: Duration, adjust: impl FnOnce(&mut Config)) -> LockManager {
    let builder = LockManager::builder(url).watchdog_lease(watchdog_lease).configure(|config| {
        config.reconnect = (Duration::ZERO, Duration::from_millis(1));
        config.heartbeat = Duration::from_secs(60);
        adjust(config);
    });
    builder.connect().await.expect("the server is up")
}

/// Starts four tasks that pass a lock on among themselves until `over`.
#[must_use]
pub fn passing_on(lock: &Lock, over: &Arc<AtomicBool>) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    for _ in 0..4 {
        let (lock, over) = (lock.clone(), Arc::clone(over));
        tasks.spawn(async move {
            while !over.load(Ordering::Relaxed) {
                let _guard = lock.acquire().await.expect("the server is up");
                tokio::task::yield_now().await;
            }
        });
    }
    tasks
}

/// Runs `tasks` tasks, which use these handles of one lock in turn. Each task takes the lock twenty times, and never are two tasks inside.
/// The tasks release every second guard and drop the others.
///
/// # Panics
///
/// If two tasks were inside.
pub async fn exclude_each_other(handles: &[Lock], tasks: usize) {
    let (inside, entered) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut running = JoinSet::new();
    for lock in handles.iter().cycle().take(tasks) {
        let (lock, inside, entered) = (lock.clone(), Arc::clone(&inside), Arc::clone(&entered));
        running.spawn(async move {
            for _ in 0..20 {
                let guard = lock.acquire().await.expect("the server is up");
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two inside");
                tokio::task::yield_now().await;
                let number = entered.fetch_add(1, Ordering::SeqCst);
                inside.fetch_sub(1, Ordering::SeqCst);
                if number % 2 == 0 {
                    guard.release().await.expect("the server is up");
                }
            }
        });
    }
    running.join_all().await;
    assert_eq!(entered.load(Ordering::SeqCst), 20 * tasks);
}

/// Returns the server's time, since 1970.
pub fn clock(server: &RedisServer) -> Duration {
    let time = server.cli(&["TIME"]);
    let mut parts = time.split_whitespace().map(|part| part.parse().unwrap());
    let (seconds, micros) = (parts.next().unwrap(), parts.next().unwrap());
    Duration::from_secs(seconds) + Duration::from_micros(micros)
}

/// Waits until `key` does not exist.
pub async fn gone(server: &RedisServer, key: &str) -> bool {
    eventually(PATIENCE, async || server.cli(&["EXISTS", key]) == "0").await
}

/// Waits until `key` exists.
pub async fn taken(server: &RedisServer, key: &str) -> bool {
    eventually(PATIENCE, async || server.cli(&["EXISTS", key]) == "1").await
}

/// Waits until the channel of the lock `name` has `count` subscribers.
pub async fn listeners(server: &RedisServer, name: &str, count: usize) -> bool {
    let channel = format!("{CHANNEL}{{{name}}}");
    let answer = format!("{channel}\n{count}");
    eventually(PATIENCE, async || server.cli(&["PUBSUB", "NUMSUB", &channel]) == answer).await
}

/// Waits until the server has answered all requests of `locks`.
pub async fn at_rest(locks: &LockManager) -> bool {
    eventually(PATIENCE, async || {
        let stats = locks.client().stats();
        (stats.in_flight, stats.queued_bytes) == (0, 0)
    })
    .await
}

/// Waits until the watchdog has renewed `guard` `times` times more.
///
/// Also serves as a clock: by then, the same watchdog has renewed every other hold that was due.
pub async fn renewed(guard: &Guard, times: u32) -> bool {
    for _ in 0..times {
        let before = guard.valid_until();
        if !eventually(PATIENCE, async || guard.valid_until() > before).await {
            return false;
        }
    }
    guard.is_valid()
}

/// Waits until `guard` reports its loss.
///
/// # Panics
///
/// If the guard does not report a loss.
pub async fn lost(guard: &Guard) -> LostReason {
    tokio::time::timeout(PATIENCE, guard.lost()).await.expect("the loss is reported")
}

/// The prefix of the locks' channels.
const CHANNEL: &str = "redisson_lock__channel:";

/// A request of the lock layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    /// An attempt to take a lock.
    Acquire {
        /// The lock.
        lock: String,
        /// The owner that acquires.
        owner: String,
        /// The hold count that the request wants.
        count: String,
    },
    /// An attempt to take several locks at once.
    AcquireAll {
        /// The locks.
        locks: Vec<String>,
    },
    /// A release, or part of one.
    Release {
        /// The lock.
        lock: String,
        /// The owner that releases.
        owner: String,
        /// The hold count that remains; 0 frees the lock.
        count: String,
    },
    /// A release by force.
    ForceRelease {
        /// The lock.
        lock: String,
    },
    /// A renewal of one or more locks.
    Renew {
        /// Locks and their owners.
        holds: Vec<(String, String)>,
    },
}

impl Asked {
    /// Parses the request in a line of MONITOR. Returns `None` if the line does not show a script's call.
    #[must_use]
    pub fn parse(observed: &Observed) -> Option<Self> {
        if observed.from_script() || !["EVAL", "EVALSHA"].contains(&observed.name().as_str()) {
            return None;
        }
        let count = observed.args.get(2)?.parse().ok()?;
        let (keys, args) = observed.args.get(3..)?.split_at_checked(count)?;
        Some(match (keys, args) {
            ([lock], [channel, owner, count, _verb]) if channel.starts_with(CHANNEL) => {
                Self::Release { lock: lock.clone(), owner: owner.clone(), count: count.clone() }
            }
            ([lock], [_lease, owner, count, channel, _numsub]) if channel.starts_with(CHANNEL) => {
                Self::Acquire { lock: lock.clone(), owner: owner.clone(), count: count.clone() }
            }
            ([lock], [_lease, owner, count]) => {
                Self::Acquire { lock: lock.clone(), owner: owner.clone(), count: count.clone() }
            }
            ([lock], [channel, _verb]) if channel.starts_with(CHANNEL) => {
                Self::ForceRelease { lock: lock.clone() }
            }
            (locks @ [_, ..], args) if args.len() == 3 * locks.len() => {
                Self::AcquireAll { locks: locks.to_vec() }
            }
            (locks @ [_, ..], args) if args.len() == 2 * locks.len() => {
                let owners = args.iter().skip(1).step_by(2).cloned();
                Self::Renew { holds: locks.iter().cloned().zip(owners).collect() }
            }
            _ => return None,
        })
    }

    /// Returns all requests that a line of MONITOR shows: each member of a batch, or the single request.
    #[must_use]
    pub fn each(observed: &Observed) -> Vec<Self> {
        apart(observed).map_or_else(
            || Self::parse(observed).into_iter().collect(),
            |calls| calls.iter().filter_map(Self::parse).collect(),
        )
    }

    /// Returns all requests, in the server's order.
    #[must_use]
    pub fn all(observed: &[Observed]) -> Vec<Self> {
        observed.iter().flat_map(Self::each).collect()
    }

    /// Returns true if the request is an attempt to take `lock`.
    #[must_use]
    pub fn acquires(&self, name: &str) -> bool {
        match self {
            Self::Acquire { lock, .. } => lock == name,
            Self::AcquireAll { locks } => locks.iter().any(|lock| lock == name),
            _ => false,
        }
    }

    /// Returns true if the request frees `lock`.
    #[must_use]
    pub fn frees(&self, name: &str) -> bool {
        matches!(self, Self::Release { lock, count, .. } if lock == name && count == "0")
    }

    /// Returns true if the request renews `lock`.
    #[must_use]
    pub fn renews(&self, name: &str) -> bool {
        matches!(self, Self::Renew { holds } if holds.iter().any(|(lock, _)| lock == name))
    }
}

/// Returns the holds that were renewed after the server had executed their release. There must not be such holds.
///
/// Works for owners that take a lock once, as all owners do that the library chose itself.
#[must_use]
pub fn renewed_after_release(asked: &[Asked]) -> Vec<(String, String)> {
    let mut released = std::collections::HashSet::new();
    let mut found = Vec::new();
    for request in asked {
        match request {
            Asked::Release { lock, owner, count } if count == "0" => {
                released.insert((lock.clone(), owner.clone()));
            }
            Asked::Renew { holds } => {
                found.extend(holds.iter().filter(|hold| released.contains(*hold)).cloned());
            }
            _ => {}
        }
    }
    found
}

/// Splits a batch into its calls, as if each had been sent alone. Returns `None` if the command is a single call.
fn apart(observed: &Observed) -> Option<Vec<Observed>> {
    let [verb, script, count, rest @ ..] = observed.args.as_slice() else { return None };
    if observed.from_script() || verb.to_uppercase() != "EVALSHA" {
        return None;
    }
    let (keys, mut args) = rest.split_at_checked(count.parse().ok().filter(|count| *count > 1)?)?;
    let mut calls = Vec::new();
    for key in keys {
        let (part, behind) = args.split_first()?;
        let own = match part.as_str() {
            "1" => 3,
            "2" => 4,
            _ => return None,
        };
        let (own, others) = behind.split_at_checked(own)?;
        let head = [verb, script, "1", key].map(str::to_owned);
        calls.push(Observed { client: observed.client.clone(), args: [&head, own].concat() });
        args = others;
    }
    args.is_empty().then_some(calls)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(client: &str, words: &str) -> Observed {
        Observed { client: client.into(), args: words.split(' ').map(str::to_owned).collect() }
    }

    #[test]
    fn requests_are_classified_by_shape() {
        let asked = |words: &str| Asked::parse(&line("unix:", words)).unwrap();
        assert!(asked("EVALSHA 0f 1 a 30000 me:1 1").acquires("a"));
        assert!(asked("EVAL text 1 a redisson_lock__channel:{a} me:1 0 PUBLISH").frees("a"));
        assert!(!asked("EVAL text 1 a redisson_lock__channel:{a} me:1 1 PUBLISH").frees("a"));
        let words = "EVALSHA 0f 2 a b 2 redisson_lock__channel:{a} me:1 0 PUBLISH 1 30000 me:2 1";
        let [released, acquired] = &Asked::each(&line("unix:", words))[..] else { panic!("two calls") };
        assert!(released.frees("a") && acquired.acquires("b"));
        assert!(apart(&line("unix:", "EVALSHA 0f 2 a b 30000 me:1 1 30000 me:1 1")).is_none(), "all or none");
        assert!(apart(&line("unix:", "EVALSHA 0f 2 a b 1000 me:1 1000 me:2")).is_none(), "renewals");
        let forced = asked("EVALSHA 0f 1 a redisson_lock__channel:{a} SPUBLISH");
        assert_eq!(forced, Asked::ForceRelease { lock: "a".into() });
        assert!(asked("EVALSHA 0f 1 a 30000 me:1").renews("a"));
        let two = asked("EVALSHA 0f 2 a b 30000 me:1 30000 me:2");
        let all = asked("EVALSHA 0f 2 a b 30000 me:1 1 30000 me:2 1");
        assert!(all.acquires("a") && all.acquires("b") && !all.acquires("c"));
        let holds = [("a", "me:1"), ("b", "me:2")].map(|(lock, owner)| (lock.to_owned(), owner.to_owned()));
        assert_eq!(two, Asked::Renew { holds: holds.into() });
        assert_eq!(Asked::parse(&line("lua", "EVALSHA 0f 1 a 30000 me:1 1")), None);
        assert_eq!(Asked::parse(&line("unix:", "GET a")), None);
    }

    #[test]
    fn renewal_after_release_is_found() {
        let release = "EVALSHA 0f 1 a redisson_lock__channel:{a} me:1 0 PUBLISH";
        let lines = ["EVALSHA 0f 1 a 9 me:1", release, "EVALSHA 0f 1 a 9 me:1"];
        let asked: Vec<_> = lines.iter().filter_map(|words| Asked::parse(&line("unix:", words))).collect();
        assert_eq!(renewed_after_release(&asked[..2]), []);
        assert_eq!(renewed_after_release(&asked), [("a".to_owned(), "me:1".to_owned())]);
    }
}
