//! What lock tests share: managers with the settings that faults need, conditions to wait for, and what the lock
//! layer asked of the server, read from MONITOR.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use wheellock::client::Config;
use wheellock::{Guard, Lock, LockManager, LostReason, Released};

use crate::monitor::Observed;
use crate::poll::eventually;
use crate::server::RedisServer;

/// A bound on hangs; nothing takes nearly as long.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Waiters look again after 5 s even if they hear nothing. Whoever is served within this was woken.
pub const WOKEN: Duration = Duration::from_secs(4);

/// A manager with default settings: a watchdog lease of 30 s.
///
/// # Panics
///
/// If it cannot connect.
pub async fn manager(url: &str) -> LockManager {
    LockManager::connect(url).await.expect("the server is up")
}

/// A manager for tests that break its connection: it reconnects at once, and sends no PING that a proxy's rule could
/// strike instead of a script.
///
/// # Panics
///
/// If it cannot connect.
pub async fn brisk(url: &str, watchdog_lease: Duration) -> LockManager {
    adjusted(url, watchdog_lease, |_| {}).await
}

/// A lease that the watchdog renews every second, and that is not lost where a machine stands still for as long as that.
pub const RENEWED: Duration = Duration::from_secs(3);

/// The same with further settings.
///
/// # Panics
///
/// If it cannot connect.
pub async fn adjusted(url: &str, watchdog_lease: Duration, adjust: impl FnOnce(&mut Config)) -> LockManager {
    let builder = LockManager::builder(url).watchdog_lease(watchdog_lease).configure(|config| {
        config.reconnect = (Duration::ZERO, Duration::from_millis(1));
        config.heartbeat = Duration::from_secs(60);
        adjust(config);
    });
    builder.connect().await.expect("the server is up")
}

/// Four tasks that pass a lock on from one to the other until `over`.
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

/// So many tasks, each with one of these handles of one lock in turn, take the lock twenty times each, and never are two inside. Every
/// second guard is released, the others are dropped.
///
/// # Panics
///
/// If two were inside.
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
                    assert_eq!(guard.release().await.expect("the server is up"), Released::Released);
                }
            }
        });
    }
    running.join_all().await;
    assert_eq!(entered.load(Ordering::SeqCst), 20 * tasks);
}

/// The server's time, since 1970.
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

/// Waits until so many processes listen for the release of the lock `name`.
pub async fn listeners(server: &RedisServer, name: &str, count: usize) -> bool {
    let channel = format!("{CHANNEL}{{{name}}}");
    let answer = format!("{channel}\n{count}");
    eventually(PATIENCE, async || server.cli(&["PUBSUB", "NUMSUB", &channel]) == answer).await
}

/// Waits until everything `locks` has sent was answered.
pub async fn at_rest(locks: &LockManager) -> bool {
    eventually(PATIENCE, async || {
        let stats = locks.client().stats();
        (stats.in_flight, stats.queued_bytes) == (0, 0)
    })
    .await
}

/// Waits until `guard` has been renewed so many times more.
///
/// Serves as a clock, too: whatever else should have been renewed by the same watchdog has been by then.
pub async fn renewed(guard: &Guard, times: u32) -> bool {
    for _ in 0..times {
        let before = guard.valid_until();
        if !eventually(PATIENCE, async || guard.valid_until() > before).await {
            return false;
        }
    }
    guard.is_valid()
}

/// Waits for the news that `guard` is lost.
///
/// # Panics
///
/// If it does not come.
pub async fn lost(guard: &Guard) -> LostReason {
    tokio::time::timeout(PATIENCE, guard.lost()).await.expect("the loss is reported")
}

/// What the channels of locks begin with.
const CHANNEL: &str = "redisson_lock__channel:";

/// One request of the lock layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    /// One attempt to take a lock.
    Acquire {
        /// The lock.
        lock: String,
        /// Who asks.
        owner: String,
        /// The hold count asked for.
        count: String,
    },
    /// One attempt to take several locks at once.
    AcquireAll {
        /// The locks.
        locks: Vec<String>,
    },
    /// A release, or part of one.
    Release {
        /// The lock.
        lock: String,
        /// Who gives back.
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
    /// What a line of MONITOR asks for; `None` if it is no call of a script.
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

    /// What each call asks for of those that a line of MONITOR shows as one; or the one that it is.
    #[must_use]
    pub fn each(observed: &Observed) -> Vec<Self> {
        apart(observed).map_or_else(
            || Self::parse(observed).into_iter().collect(),
            |calls| calls.iter().filter_map(Self::parse).collect(),
        )
    }

    /// Everything that was asked, in the server's order.
    #[must_use]
    pub fn all(observed: &[Observed]) -> Vec<Self> {
        observed.iter().flat_map(Self::each).collect()
    }

    /// Whether it is an attempt to take `lock`.
    #[must_use]
    pub fn acquires(&self, name: &str) -> bool {
        match self {
            Self::Acquire { lock, .. } => lock == name,
            Self::AcquireAll { locks } => locks.iter().any(|lock| lock == name),
            _ => false,
        }
    }

    /// Whether it frees `lock`.
    #[must_use]
    pub fn frees(&self, name: &str) -> bool {
        matches!(self, Self::Release { lock, count, .. } if lock == name && count == "0")
    }

    /// Whether it renews `lock`.
    #[must_use]
    pub fn renews(&self, name: &str) -> bool {
        matches!(self, Self::Renew { holds } if holds.iter().any(|(lock, _)| lock == name))
    }
}

/// Holds that were renewed after the server had executed their release: there must be none.
///
/// For owners that take a lock once, as those do that nobody presented.
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

/// The calls that were sent as one, as they would have been sent alone; `None` if it was one call.
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
    fn requests_are_told_apart_by_their_shape() {
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
    fn a_renewal_after_the_release_is_found() {
        let release = "EVALSHA 0f 1 a redisson_lock__channel:{a} me:1 0 PUBLISH";
        let lines = ["EVALSHA 0f 1 a 9 me:1", release, "EVALSHA 0f 1 a 9 me:1"];
        let asked: Vec<_> = lines.iter().filter_map(|words| Asked::parse(&line("unix:", words))).collect();
        assert_eq!(renewed_after_release(&asked[..2]), []);
        assert_eq!(renewed_after_release(&asked), [("a".to_owned(), "me:1".to_owned())]);
    }
}
