//! Locks on a majority of three or five real servers. Any minority may be dead, stopped, slow or cut off.

mod members;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::task::{JoinSet, spawn_blocking};
use wheellock::client::Outcome;
use wheellock::{
    Attempt, BootInstant, Error, LockManager, LostReason, MemberState, RedLockGuard, RedLockManager,
};
use wheellock_tests::beside::calls;
use wheellock_tests::fault::{Direction, Fault, Gate, Proxy, Random, cancel_at};
use wheellock_tests::history::Witness;
use wheellock_tests::locks::{PATIENCE, WOKEN, adjusted, gone, listeners, taken};
use wheellock_tests::{RedisServer, eventually};

const LEASE: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_secs(1);
/// Delay of a slow server.
const SLOW: Duration = Duration::from_secs(2);
/// A call that ends within this time did not wait for a slow server.
const FAST: Duration = Duration::from_secs(1);
/// Response timeout of the managers here.
const ANSWER: Duration = Duration::from_secs(3);

/// Independent servers, each behind a proxy.
struct Fleet {
    servers: Vec<RedisServer>,
    proxies: Vec<Proxy>,
}

impl Fleet {
    fn start(count: usize) -> Self {
        Self::of((0..count).map(|_| RedisServer::start()).collect())
    }

    /// Starts servers that keep their data when they are killed.
    fn start_durable(count: usize) -> Self {
        let durable = || RedisServer::builder().arg("appendonly", "yes").arg("appendfsync", "always").start();
        Self::of((0..count).map(|_| durable()).collect())
    }

    fn of(servers: Vec<RedisServer>) -> Self {
        let proxies = servers.iter().map(Proxy::before).collect();
        Self { servers, proxies }
    }

    /// Returns a manager that is a separate process as far as the servers can tell.
    async fn red(&self, lease: Duration, answer: Duration) -> RedLockManager {
        let mut managers = Vec::new();
        for proxy in &self.proxies {
            managers.push(adjusted(&proxy.url(), lease, |config| config.response_timeout = answer).await);
        }
        RedLockManager::new(managers).await.expect("all are up")
    }

    /// Returns true once no running server has the key.
    async fn free(&self, key: &str) -> bool {
        for server in self.servers.iter().filter(|server| server.is_up()) {
            if !gone(server, key).await {
                return false;
            }
        }
        true
    }

    /// Adds a holder that exists on this server only.
    fn hold_elsewhere(&self, place: usize, key: &str, lease: Duration) {
        assert_eq!(self.servers[place].cli(&["HSET", key, STRANGER, "1"]), "1");
        assert_eq!(self.servers[place].cli(&["PEXPIRE", key, &lease.as_millis().to_string()]), "1");
    }

    fn release_elsewhere(&self, place: usize, key: &str) {
        assert_eq!(self.servers[place].cli(&["DEL", key]), "1");
        let _heard = self.servers[place].cli(&["PUBLISH", &format!("redisson_lock__channel:{{{key}}}"), "0"]);
    }

    fn break_it(&mut self, place: usize, how: Break) {
        match how {
            Break::Kill => self.servers[place].kill(),
            Break::Stop => self.servers[place].pause(),
            Break::Slow => self.slow(place, SLOW),
            Break::Cut => {
                self.proxies[place].gate(Gate::Silent);
                // Bytes that are under way arrive when the connection is mended, as after a partition.
                self.proxies[place].strike(Direction::ToClient, Fault::Stall);
                self.proxies[place].strike(Direction::ToServer, Fault::Stall);
            }
        }
    }

    fn mend(&mut self, place: usize, how: Break) {
        match how {
            Break::Kill => self.servers[place].restart(),
            Break::Stop => self.servers[place].resume(),
            Break::Slow => self.proxies[place].heal(),
            Break::Cut => {
                self.proxies[place].heal();
                self.proxies[place].gate(Gate::Open);
            }
        }
    }

    fn slow(&self, place: usize, by: Duration) {
        self.proxies[place].strike(Direction::ToClient, Fault::Delay(by, Duration::from_nanos(1)));
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Break {
    Kill,
    Stop,
    Slow,
    Cut,
}

const BREAKS: [Break; 4] = [Break::Kill, Break::Stop, Break::Slow, Break::Cut];

const STRANGER: &str = "00000000-0000-4000-8000-000000000000:1";

fn held(guard: &RedLockGuard) -> usize {
    guard.members().iter().filter(|member| matches!(member.state, MemberState::Held { .. })).count()
}

async fn all_joined(guard: &RedLockGuard, count: usize) -> bool {
    eventually(PATIENCE, async || held(guard) == count).await
}

#[tokio::test]
async fn majority_grants_then_others_join() {
    for count in [1, 2, 3, 5] {
        let fleet = Fleet::start(count);
        let red = fleet.red(LEASE, ANSWER).await;
        assert_eq!(red.quorum(), count / 2 + 1);
        let lock = red.lock("orders:42");
        let guard = lock.acquire().await.unwrap();
        assert!(guard.is_valid() && guard.valid_until().remaining() > LEASE.mul_f32(0.9));
        assert!(all_joined(&guard, count).await);
        for server in &fleet.servers {
            assert_eq!(server.cli(&["TYPE", "orders:42"]), "hash", "an ordinary lock");
            assert_eq!(server.cli(&["HVALS", "orders:42"]), "1");
        }
        let other = fleet.red(LEASE, ANSWER).await;
        assert!(!other.lock("orders:42").try_acquire().await.unwrap().is_acquired());
        let began = Instant::now();
        let wait = Duration::from_millis(50);
        assert!(!other.lock("orders:42").try_acquire_for(wait).await.unwrap().is_acquired());
        assert!(began.elapsed() >= wait);
        guard.release().await.unwrap();
        assert!(fleet.free("orders:42").await);
        assert!(other.lock("orders:42").run(async |guard| Ok::<_, Error>(held(guard) > 0)).await.unwrap());
        assert!(fleet.free("orders:42").await);
    }
}

/// Any minority is killed, stopped, slow or cut off.
#[test]
fn a_broken_minority_changes_nothing() {
    // Each case has its own thread. A case that starts its servers must not delay the replies that other cases wait for.
    std::thread::scope(|threads| {
        for (how, count) in BREAKS.into_iter().flat_map(|how| [3, 5].map(|count| (how, count))) {
            threads.spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(broken_minority(how, count));
            });
        }
    });
}

async fn broken_minority(how: Break, count: usize) {
    let mut fleet = Fleet::start(count);
    let red = fleet.red(LEASE, ANSWER).await;
    let lock = red.lock("l");
    let before = lock.acquire().await.unwrap();
    assert!(all_joined(&before, count).await);
    for broken in 0..count / 2 {
        fleet.break_it(broken, how);
    }
    let began = Instant::now();
    assert!(matches!(before.release().await, Ok(())), "{how:?} of {count}");
    for _ in 0..10 {
        let guard = lock.acquire().await.unwrap();
        assert!(guard.is_valid());
        assert!(!lock.try_acquire().await.unwrap().is_acquired(), "{how:?} of {count}");
        guard.release().await.unwrap();
        drop(lock.try_acquire_for(PATIENCE).await.unwrap().acquired().expect("free"));
        let took = began.elapsed();
        assert!(took < FAST, "{how:?} of {count}: {took:?}");
    }
    for broken in 0..count / 2 {
        fleet.mend(broken, how);
    }
    assert!(fleet.free("l").await, "{how:?} of {count}: something is left");
    let guard = lock.acquire().await.unwrap();
    assert!(all_joined(&guard, count).await, "{how:?} of {count}: {:?}", guard.members());
}

#[tokio::test]
async fn broken_majority_fails_in_time() {
    for how in [Break::Kill, Break::Stop, Break::Cut] {
        let mut fleet = Fleet::start(3);
        let red = fleet.red(LEASE, ANSWER / 6).await;
        let lock = red.lock("l");
        fleet.break_it(0, how);
        fleet.break_it(2, how);
        let began = Instant::now();
        for outcome in [
            lock.acquire().await.map(Attempt::Acquired),
            lock.try_acquire().await,
            lock.try_acquire_for(Duration::from_millis(100)).await,
        ] {
            let error = outcome.expect_err("nobody can know");
            let Error::NoQuorum { wanted: 2, failures, .. } = &error else { panic!("{how:?}: {error}") };
            assert_eq!(failures.len(), 2, "{how:?}: {error}");
            let line = error.to_string();
            assert!(line.contains("no quorum"), "{line}");
            assert!(failures.iter().all(|failure| line.contains(&failure.to_string())), "{line}");
        }
        assert!(began.elapsed() < ANSWER, "{how:?}: {:?}", began.elapsed());
        assert!(gone(&fleet.servers[1], "l").await, "what one has granted was given back");
        fleet.mend(0, how);
        fleet.mend(2, how);
        assert!(fleet.free("l").await, "{how:?}");
    }
}

#[tokio::test]
async fn majority_dying_during_wait_is_error() {
    let mut fleet = Fleet::start(3);
    // These waits end before any reply is overdue.
    let (red, other) = (fleet.red(LEASE, ANSWER).await, fleet.red(LEASE, SHORT).await);
    let guard = other.lock("l").acquire().await.unwrap();
    assert!(all_joined(&guard, 3).await);
    let (first, second) = (red.lock("l"), red.lock("l"));
    let waiting = tokio::spawn(async move { first.try_acquire_for(2 * SHORT).await });
    assert!(listeners(&fleet.servers[0], "l", 1).await);
    let behind = tokio::spawn(async move { second.try_acquire_for(2 * SHORT).await });
    fleet.servers[0].kill();
    fleet.servers[1].kill();
    for waiter in [waiting, behind] {
        let outcome = waiter.await.unwrap();
        assert!(matches!(outcome, Err(Error::NoQuorum { .. })), "{outcome:?}");
    }
    drop(guard);
}

/// The head leaves, and the servers stop. The waiter behind the head knows that the lock was held.
#[tokio::test]
async fn late_turn_reports_known_holder() {
    let fleet = Fleet::start(3);
    let (red, other) = (fleet.red(LEASE, ANSWER).await, fleet.red(LEASE, ANSWER).await);
    let guard = other.lock("l").acquire().await.unwrap();
    assert!(all_joined(&guard, 3).await);
    let (first, second) = (red.lock("l"), red.lock("l"));
    let head = tokio::spawn(async move { first.acquire().await.map(drop) });
    assert!(listeners(&fleet.servers[0], "l", 1).await);
    let behind = tokio::spawn(async move { second.try_acquire_for(SHORT).await });
    tokio::task::yield_now().await;
    fleet.servers.iter().for_each(RedisServer::pause);
    head.abort();
    let outcome = behind.await.unwrap();
    fleet.servers.iter().for_each(RedisServer::resume);
    assert!(matches!(outcome, Ok(Attempt::Held { .. })), "{outcome:?}");
    drop(guard);
}

/// The servers' replies to the last acquire do not answer a new request.
#[tokio::test]
async fn wait_behind_unanswered_attempt_is_error() {
    let fleet = Fleet::start(3);
    let red = fleet.red(LEASE, ANSWER).await;
    let lock = red.lock("l");
    lock.acquire().await.unwrap().release().await.unwrap();
    fleet.servers[..2].iter().for_each(RedisServer::pause);
    let first = lock.clone();
    let asking = tokio::spawn(async move { first.acquire().await });
    tokio::task::yield_now().await;
    let behind = lock.try_acquire_for(Duration::from_millis(100)).await;
    assert!(matches!(behind, Err(Error::NoQuorum { .. })), "{behind:?}");
    // The servers have 300 ms from the call on, not from the end of the wait.
    let (wait, called) = (Duration::from_secs(1), Instant::now());
    let behind = lock.try_acquire_for(wait).await;
    assert!(matches!(behind, Err(Error::NoQuorum { .. })), "{behind:?}");
    assert!(called.elapsed() < wait + Duration::from_millis(300), "{:?}", called.elapsed());
    fleet.servers[..2].iter().for_each(RedisServer::resume);
    drop(asking.await.unwrap());
}

/// These are Redisson's old cases.
#[tokio::test]
async fn only_majority_held_elsewhere_is_busy() {
    let mut fleet = Fleet::start(3);
    let red = fleet.red(LEASE, ANSWER).await;
    fleet.hold_elsewhere(0, "two", LEASE);
    fleet.hold_elsewhere(2, "two", LEASE);
    assert!(!red.lock("two").try_acquire().await.unwrap().is_acquired());
    assert!(!red.lock("two").try_acquire_for(Duration::from_millis(50)).await.unwrap().is_acquired());
    assert!(gone(&fleet.servers[1], "two").await);
    assert_eq!(fleet.servers[0].cli(&["HGETALL", "two"]), format!("{STRANGER}\n1"), "and stays theirs");

    fleet.hold_elsewhere(1, "one", LEASE);
    let guard = red.lock("one").acquire().await.unwrap();
    assert!(eventually(PATIENCE, async || matches!(guard.members()[1].state, MemberState::Refused)).await);
    guard.release().await.unwrap();
    assert_eq!(fleet.servers[1].cli(&["HGETALL", "one"]), format!("{STRANGER}\n1"));
    assert!(gone(&fleet.servers[0], "one").await && gone(&fleet.servers[2], "one").await);

    fleet.servers[0].kill();
    let guard = red.lock("down").acquire().await.unwrap();
    guard.release().await.unwrap();

    // One server is dead, and the lock is held elsewhere on one of the two others.
    fleet.hold_elsewhere(1, "both", LEASE);
    assert!(!red.lock("both").try_acquire().await.unwrap().is_acquired());
    assert!(gone(&fleet.servers[2], "both").await);
}

#[tokio::test]
async fn late_member_replaces_failed_server() {
    let mut fleet = Fleet::start(3);
    // The renewal comes only after the late server has joined.
    let red = fleet.red(3 * SHORT, ANSWER).await;
    fleet.slow(2, SHORT / 4);
    let guard = red.lock("l").acquire().await.unwrap();
    assert!(matches!(guard.members()[2].state, MemberState::Pending), "{:?}", guard.members());
    assert!(all_joined(&guard, 3).await, "{:?}", guard.members());
    fleet.proxies[2].heal();
    fleet.servers[0].kill();
    assert!(eventually(PATIENCE, async || matches!(guard.members()[0].state, MemberState::Lost(_))).await);
    assert!(guard.is_valid(), "{:?}", guard.members());
    let before = guard.valid_until();
    assert!(eventually(PATIENCE, async || guard.valid_until() > before + SHORT).await, "renewed on two");
    fleet.servers[1].kill();
    let (reason, promised) = (guard.lost().await, guard.valid_until());
    assert!(BootInstant::now() <= promised || !guard.is_valid());
    assert_eq!(reason, LostReason::Expired);
    assert!(!guard.is_valid());
    let error = guard.run(async { Ok::<_, Error>(()) }).await.unwrap_err();
    assert!(matches!(error, Error::Lost { .. }), "{error}");
    drop(guard);
    assert!(gone(&fleet.servers[2], "l").await);
}

#[tokio::test]
async fn late_member_does_not_revive_lock() {
    let fleet = Fleet::start(3);
    let red = fleet.red(SHORT, ANSWER).await;
    fleet.slow(2, SHORT);
    let guard = red.lock("l").with_lease(2 * SHORT).acquire().await.unwrap();
    let renewed = guard.renew();
    assert_eq!(fleet.servers[1].cli(&["DEL", "l"]), "1");
    let error = renewed.await.unwrap_err();
    assert!(matches!(error, Error::Lost { reason: LostReason::NotOwner, .. }), "{error}");
    assert!(taken(&fleet.servers[2], "l").await);
    assert!(!guard.is_valid());
    let answered =
        eventually(PATIENCE, async || !matches!(guard.members()[2].state, MemberState::Pending)).await;
    assert!(answered && !guard.is_valid(), "{:?}", guard.members());
    assert_eq!(guard.lost().await, LostReason::NotOwner);
    assert!(gone(&fleet.servers[2], "l").await, "it was given back");
    assert!(matches!(guard.release().await, Err(Error::Lost { .. })));
}

#[tokio::test]
async fn ended_guard_releases_late_members() {
    let fleet = Fleet::start(5);
    let red = fleet.red(LEASE, ANSWER).await;
    for release in [false, true] {
        fleet.slow(0, SHORT / 4);
        fleet.slow(3, SHORT / 4);
        let guard = red.lock("l").acquire().await.unwrap();
        assert!(taken(&fleet.servers[0], "l").await);
        if release {
            guard.release().await.unwrap();
        } else {
            drop(guard);
        }
        assert!(fleet.free("l").await);
        fleet.proxies.iter().for_each(Proxy::heal);
    }
}

#[tokio::test]
async fn grant_without_reply_is_released() {
    let fleet = Fleet::start(3);
    let red = fleet.red(LEASE, SHORT / 2).await;
    // Two servers execute the attempt, and their replies never come.
    for place in [0, 1] {
        fleet.proxies[place].strike(Direction::ToClient, Fault::Blackhole);
    }
    let error = red.lock("l").acquire().await.unwrap_err();
    assert!(matches!(error, Error::NoQuorum { .. }), "{error}");
    assert_eq!(error.outcome(), Outcome::MaybeExecuted);
    assert!(fleet.free("l").await, "also where nobody knows of the grant");
    for place in [0, 1] {
        fleet.proxies[place].heal();
        fleet.proxies[place].strike(Direction::ToServer, Fault::Rst);
    }
    drop(red.lock("l").try_acquire_for(PATIENCE).await.unwrap().acquired().expect("free"));
    assert!(fleet.free("l").await);
}

#[tokio::test]
async fn release_or_expiry_wakes_waiter() {
    let fleet = Fleet::start(5);
    let (here, there) = (fleet.red(LEASE, ANSWER).await, fleet.red(LEASE, ANSWER).await);
    let guard = here.lock("l").acquire().await.unwrap();
    assert!(all_joined(&guard, 5).await);
    let lock = there.lock("l");
    let waiting = tokio::spawn(async move { lock.acquire().await });
    assert!(listeners(&fleet.servers[4], "l", 1).await);
    guard.release().await.unwrap();
    let guard = tokio::time::timeout(WOKEN, waiting).await.expect("woken").unwrap().unwrap();
    drop(guard);
    assert!(fleet.free("l").await);

    // The holders on three servers have died.
    for place in [0, 2, 3] {
        fleet.hold_elsewhere(place, "dead", Duration::from_millis(300));
    }
    let guard =
        tokio::time::timeout(WOKEN, there.lock("dead").acquire()).await.expect("looked again").unwrap();
    drop(guard);

    // One release is enough, although two of the three holders remain.
    for place in [0, 2, 3] {
        fleet.hold_elsewhere(place, "some", LEASE);
    }
    let lock = there.lock("some");
    let waiting = tokio::spawn(async move { lock.acquire().await });
    assert!(listeners(&fleet.servers[3], "some", 1).await);
    fleet.release_elsewhere(3, "some");
    let guard = tokio::time::timeout(WOKEN, waiting).await.expect("woken").unwrap().unwrap();
    assert!(guard.is_valid());
}

#[tokio::test]
async fn waiters_of_process_share_requests() {
    let fleet = Fleet::start(3);
    let (here, there) = (fleet.red(LEASE, ANSWER).await, fleet.red(LEASE, ANSWER).await);
    let guard = here.lock("l").acquire().await.unwrap();
    assert!(all_joined(&guard, 3).await);
    let order = Arc::new(AtomicUsize::new(0));
    let mut waiters = JoinSet::new();
    for number in 0..64 {
        let (lock, order) = (there.lock("l"), Arc::clone(&order));
        waiters.spawn(async move {
            let guard = lock.acquire().await.unwrap();
            assert_eq!(order.fetch_add(1, Ordering::SeqCst), number, "first come, first served");
            guard.release().await.unwrap();
        });
        tokio::task::yield_now().await;
    }
    assert!(listeners(&fleet.servers[0], "l", 1).await);
    let asked = |server: &RedisServer| {
        let stats = server.cli(&["INFO", "commandstats"]);
        let calls = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
        calls.and_then(|calls| calls.split(',').next()?.parse::<usize>().ok()).unwrap_or(0)
    };
    let before = asked(&fleet.servers[0]);
    guard.release().await.unwrap();
    while let Some(waiter) = waiters.join_next().await {
        waiter.unwrap();
    }
    let asked = asked(&fleet.servers[0]) - before;
    assert!(asked <= 64 * 3 + 8, "64 acquires and releases cost {asked} calls");
    assert!(fleet.free("l").await);
    let channels = async || fleet.servers[0].cli(&["PUBSUB", "CHANNELS"]).is_empty();
    assert!(eventually(PATIENCE, channels).await, "nobody listens any more");
}

#[tokio::test]
async fn cancelled_acquire_leaves_nothing() {
    let fleet = Fleet::start(3);
    let (red, other) = (fleet.red(LEASE, ANSWER).await, fleet.red(LEASE, ANSWER).await);
    for busy in [false, true] {
        for pendings in 0..16 {
            let held = if busy { Some(other.lock("l").acquire().await.unwrap()) } else { None };
            let lock = red.lock("l");
            let acquire = cancel_at(pendings, lock.try_acquire_for(Duration::from_millis(15)));
            drop(tokio::time::timeout(Duration::from_millis(30), acquire).await);
            let whole = cancel_at(pendings, async { lock.acquire().await?.release().await });
            drop(tokio::time::timeout(Duration::from_millis(15), whole).await);
            drop(held);
            assert!(fleet.free("l").await, "busy {busy}, {pendings} pendings");
        }
    }
    assert!(red.lock("l").try_acquire_for(PATIENCE).await.unwrap().is_acquired(), "nobody is stuck in line");
}

#[tokio::test]
async fn server_losing_data_costs_one_member() {
    let mut fleet = Fleet::start(3);
    let (red, other) = (fleet.red(SHORT, ANSWER).await, fleet.red(SHORT, ANSWER).await);
    let guard = red.lock("l").acquire().await.unwrap();
    assert!(all_joined(&guard, 3).await);
    fleet.servers[0].kill();
    fleet.servers[0].restart_clean();
    let lost = async || matches!(guard.members()[0].state, MemberState::Lost(LostReason::NotOwner));
    assert!(eventually(PATIENCE, lost).await, "{:?}", guard.members());
    assert!(guard.is_valid());
    assert!(matches!(other.lock("l").try_acquire_for(SHORT / 2).await, Ok(Attempt::Held { .. })));
    assert!(guard.is_valid());
    guard.release().await.unwrap();
}

#[tokio::test]
async fn fixed_lease_renews_manually_and_expires() {
    let fleet = Fleet::start(3);
    let red = fleet.red(LEASE, ANSWER).await;
    let guard = red.lock("l").with_lease(SHORT).acquire().await.unwrap();
    assert!(all_joined(&guard, 3).await);
    let before = guard.valid_until();
    guard.renew().await.unwrap();
    assert!(guard.valid_until() > before);
    let promised = guard.valid_until();
    assert_eq!(guard.lost().await, LostReason::Expired);
    assert!(BootInstant::now() <= promised, "the news came after the deadline");
    assert!(!guard.is_valid() && guard.renew().await.is_err());
    assert!(fleet.free("l").await);
    assert!(matches!(guard.release().await, Err(Error::Lost { .. })));
    // A grant that takes longer than its lease is not a grant. A wait without a limit would send requests for ever.
    (0..2).for_each(|place| fleet.slow(place, Duration::from_millis(300)));
    let short = red.lock("late").with_lease(Duration::from_millis(100));
    let late = short.try_acquire_for(Duration::from_secs(1)).await;
    assert!(matches!(late, Err(Error::NoQuorum { .. })), "{late:?}");
    assert!(fleet.free("late").await);
    for lease in [Duration::ZERO, Duration::MAX] {
        let error = red.lock("l").with_lease(lease).acquire().await.unwrap_err();
        assert!(matches!(error, Error::InvalidLease { .. }), "{error}");
    }
    assert!(matches!(red.lock("").acquire().await, Err(Error::InvalidName { .. })));
}

#[tokio::test]
async fn threads_take_it_too_and_again() {
    let fleet = Fleet::start(3);
    let urls: Vec<_> = fleet.proxies.iter().map(Proxy::url).collect();
    let worked = spawn_blocking(move || {
        let red = wheellock::blocking::RedLockManager::connect(&urls).unwrap();
        let lock = red.lock("l");
        let outer = lock.acquire().unwrap();
        let inner = lock.acquire().unwrap();
        let other = std::thread::scope(|threads| {
            threads
                .spawn(|| !lock.try_acquire_for(Duration::from_millis(20)).unwrap().is_acquired())
                .join()
                .unwrap()
        });
        inner.renew().unwrap();
        assert!(inner.is_valid() && inner.members().len() == 3);
        inner.release().unwrap();
        assert!(outer.is_valid());
        drop(outer);
        let simple = red.simple_lock("s");
        let guard = simple.acquire().unwrap();
        match simple.try_acquire() {
            Err(Error::NoQuorum { failures, .. }) => {
                assert!(failures.iter().all(|failure| matches!(failure.error, Error::NotReentrant { .. })));
            }
            other => panic!("{other:?}"),
        }
        guard.release().unwrap();
        other && lock.run(|guard| Ok::<_, Error>(guard.is_valid())).unwrap()
    });
    assert!(worked.await.unwrap());
    assert!(fleet.free("l").await && fleet.free("s").await);
}

/// Each server is away for two leases, one server after the other. The server comes back with its data or without. Async and blocking
/// holders keep their locks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rolling_restart_keeps_hold() {
    let (kept, cleaned) = (rolling_restart(false), rolling_restart(true));
    tokio::join!(kept, cleaned);
}

async fn rolling_restart(forgets: bool) {
    let mut fleet = Fleet::start_durable(3);
    let lease = Duration::from_millis(600);
    let guard = fleet.red(lease, lease).await.lock("l").acquire().await.unwrap();
    let urls: Vec<_> = fleet.proxies.iter().map(Proxy::url).collect();
    let threaded = spawn_blocking(move || {
        let connect =
            |url: &String| LockManager::builder(url).watchdog_lease(lease).connect_blocking().unwrap();
        let red = wheellock::blocking::RedLockManager::new(urls.iter().map(connect)).unwrap();
        (red.lock("t").acquire().unwrap(), red)
    });
    let (threaded, _red) = threaded.await.unwrap();
    for place in 0..3 {
        fleet.servers[place].kill();
        tokio::time::sleep(2 * lease).await;
        if forgets {
            fleet.servers[place].restart_clean();
        } else {
            fleet.servers[place].restart();
        }
        assert!(all_joined(&guard, 3).await, "{:?}", guard.members());
        let threads = async || {
            let is_held = |state: &MemberState| matches!(state, MemberState::Held { .. });
            threaded.members().iter().all(|member| is_held(&member.state))
        };
        assert!(eventually(PATIENCE, threads).await, "{:?}", threaded.members());
        assert!(guard.is_valid() && threaded.is_valid());
    }
    guard.run(async { Ok::<_, Error>(()) }).await.unwrap();
    guard.release().await.unwrap();
    let released = spawn_blocking(move || threaded.release().unwrap());
    released.await.unwrap();
    assert!(fleet.free("l").await && fleet.free("t").await);
}

/// Three processes of four tasks each. All tasks want one lock, and record whether two tasks were inside at once.
struct Crowd {
    tasks: JoinSet<()>,
    overlaps: Arc<AtomicUsize>,
    served: Arc<AtomicU64>,
    directory: PathBuf,
    until: Instant,
}

impl Crowd {
    /// Starts the tasks. They work for `seconds`, or for the time that the environment sets.
    async fn gather(fleet: &Fleet, seconds: u64, longest_hold: Duration) -> Self {
        let asked = std::env::var("WHEELLOCK_SOAK_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
        let until = Instant::now() + Duration::from_secs(asked.unwrap_or(seconds));
        let directory = cells();
        let (overlaps, served) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicU64::new(0)));
        let mut tasks = JoinSet::new();
        for process in 0..3 {
            let red = fleet.red(SHORT, SHORT).await;
            for task in 0..4 {
                let (lock, directory) = (red.lock("l"), directory.clone());
                let (overlaps, served) = (Arc::clone(&overlaps), Arc::clone(&served));
                let mut random = Random::new(10 * process + task);
                tasks.spawn(async move {
                    let cell = Witness::new(&directory).cell("l").unwrap();
                    while Instant::now() < until {
                        let guard = match lock.try_acquire_for(Duration::from_millis(500)).await {
                            Ok(Attempt::Acquired(guard)) => guard,
                            Ok(Attempt::Held { .. })
                            | Err(Error::NoQuorum { .. } | Error::GrantedTooLate { .. }) => continue,
                            Err(error) => panic!("{error}"),
                        };
                        let Some(token) = cell.enter(|| guard.is_valid()).unwrap() else { continue };
                        // One hold in sixteen is a long hold.
                        let longest = if random.below(16) == 0 { longest_hold } else { BRIEF };
                        let hold = random.below(u64::try_from(longest.as_micros()).unwrap());
                        tokio::time::sleep(Duration::from_micros(hold)).await;
                        // The order of these steps matters: see `Witness`.
                        if cell.entered_since(token).unwrap().is_some() && guard.is_valid() {
                            overlaps.fetch_add(1, Ordering::SeqCst);
                        }
                        cell.leave(token).unwrap();
                        served.fetch_add(1, Ordering::Relaxed);
                        if random.below(2) == 0 {
                            drop(guard);
                        } else {
                            drop(guard.release().await);
                        }
                    }
                });
            }
        }
        Self { tasks, overlaps, served, directory, until }
    }

    async fn disperse(mut self, fleet: &Fleet) {
        while let Some(task) = self.tasks.join_next().await {
            task.unwrap();
        }
        let served = self.served.load(Ordering::Relaxed);
        assert_eq!(self.overlaps.load(Ordering::SeqCst), 0, "two believed at once");
        println!("{served} inside");
        assert!(served > 20, "{served}");
        assert!(fleet.free("l").await);
        std::fs::remove_dir_all(&self.directory).unwrap();
    }
}

/// Longest of the short holds of a crowd.
const BRIEF: Duration = Duration::from_millis(2);

/// A minority breaks and is mended again and again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn minority_faults_admit_no_second_holder() {
    let mut fleet = Fleet::start(5);
    let crowd = Crowd::gather(&fleet, 6, BRIEF).await;
    let mut random = Random::new(42);
    while Instant::now() + SHORT / 2 < crowd.until {
        // No server is killed here. A server that comes back empty is not a member of a quorum for one lease.
        let how = BREAKS[1 + usize::try_from(random.below(3)).unwrap()];
        let first = usize::try_from(random.below(5)).unwrap();
        for place in [first, (first + 2) % 5] {
            fleet.break_it(place, how);
        }
        tokio::time::sleep(Duration::from_millis(100 + random.below(400))).await;
        for place in [first, (first + 2) % 5] {
            fleet.mend(place, how);
        }
    }
    crowd.disperse(&fleet).await;
}

/// All servers restart with their data, one after the other, again and again. Some holds outlast several restarts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rolling_restarts_admit_no_second_holder() {
    let mut fleet = Fleet::start_durable(3);
    let crowd = Crowd::gather(&fleet, 5, 4 * SHORT).await;
    let mut random = Random::new(43);
    let mut place = 0;
    while Instant::now() + SHORT < crowd.until {
        place = (place + 1) % 3;
        fleet.servers[place].kill();
        tokio::time::sleep(Duration::from_millis(random.below(1_500))).await;
        fleet.servers[place].restart();
        tokio::time::sleep(Duration::from_millis(random.below(500))).await;
    }
    crowd.disperse(&fleet).await;
}

/// Two of five servers are slow, and another holder has the lock on a third server. The caller does not keep the fast servers while it
/// waits for the slow servers.
#[tokio::test]
async fn split_attempt_ignores_slow_servers() {
    let fleet = Fleet::start(5);
    let red = fleet.red(LEASE, ANSWER).await;
    fleet.slow(3, SLOW);
    fleet.slow(4, SLOW);
    fleet.hold_elsewhere(0, "l", LEASE);
    let began = Instant::now();
    let lock = red.lock("l");
    assert!(!lock.try_acquire().await.unwrap().is_acquired());
    assert!(gone(&fleet.servers[1], "l").await && gone(&fleet.servers[2], "l").await);
    assert!(began.elapsed() < FAST, "{:?}", began.elapsed());
    // A waiter reaches the point at which its majority needs a slow server.
    let guard = lock.acquire().await.unwrap();
    assert!(guard.is_valid());
}

/// One of three servers refuses, and the reply of another comes late. A single try has no second round in which that server could grant.
#[tokio::test]
async fn single_try_waits_for_slow_server() {
    let fleet = Fleet::start(3);
    let red = fleet.red(LEASE, ANSWER).await;
    fleet.proxies[2]
        .strike(Direction::ToClient, Fault::Delay(Duration::from_millis(30), Duration::from_nanos(1)));
    fleet.hold_elsewhere(0, "l", LEASE);
    let guard = red.lock("l").try_acquire().await.unwrap().acquired().expect("two of three servers are free");
    assert!(guard.is_valid());
}

/// A waiter that kept its minority until the slow servers reply would block other callers.
#[tokio::test]
async fn split_waiter_releases_before_slow_replies() {
    let fleet = Fleet::start(5);
    let red = fleet.red(LEASE, ANSWER).await;
    fleet.slow(3, SLOW);
    fleet.slow(4, SLOW);
    fleet.hold_elsewhere(0, "l", LEASE);
    let began = Instant::now();
    let lock = red.lock("l");
    let waiter = tokio::spawn(async move { lock.acquire().await.unwrap() });
    let given_back = async || calls(&fleet.servers[1], "hdel") > 0;
    assert!(eventually(PATIENCE, given_back).await);
    assert!(began.elapsed() < FAST, "{:?}", began.elapsed());
    assert!(waiter.await.unwrap().is_valid());
}

/// Nine processes request the lock at once, so the members are split between them again and again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contenders_all_reach_quorum() {
    let fleet = Fleet::start(5);
    let directory = cells();
    let mut locks = Vec::new();
    for _ in 0..9 {
        locks.push(fleet.red(LEASE, ANSWER).await.lock("l"));
    }
    let mut tasks = JoinSet::new();
    for lock in locks {
        let directory = directory.clone();
        tasks.spawn(async move {
            let cell = Witness::new(&directory).cell("l").unwrap();
            for _ in 0..20 {
                let guard = lock.acquire().await.unwrap();
                let token = cell.enter(|| guard.is_valid()).unwrap();
                tokio::task::yield_now().await;
                if let Some(token) = token {
                    assert!(cell.entered_since(token).unwrap().is_none() || !guard.is_valid());
                    cell.leave(token).unwrap();
                }
                guard.release().await.unwrap();
            }
        });
    }
    let began = Instant::now();
    let all = async {
        while let Some(task) = tasks.join_next().await {
            task.unwrap();
        }
    };
    tokio::time::timeout(3 * PATIENCE, all).await.expect("everybody gets it");
    println!("180 acquires of 9 processes in {:?}", began.elapsed());
    assert!(fleet.free("l").await);
    std::fs::remove_dir_all(&directory).unwrap();
}

fn cells() -> PathBuf {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let shared = Path::new("/dev/shm");
    let parent = if shared.is_dir() { shared.to_owned() } else { std::env::temp_dir() };
    let directory = parent.join(format!("wheellock-redlock-{}-{number}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    directory
}
