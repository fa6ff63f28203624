//! The properties of `cargo xtask demo`, as tests.
//!
//! Uses real servers, and real processes where they matter.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use wheellock::Error;
use wheellock_tests::worker::{Outcome, Request, Worker, connect};
use wheellock_tests::{RedisServer, poll_until};

#[test]
fn concurrent_processes_lose_no_update() {
    let server = RedisServer::builder().tcp().start();
    let file = server.directory().join("counter");
    fs::write(&file, "0").unwrap();
    let mut workers: Vec<_> = (0..4).map(|_| worker(&server, LEASE)).collect();
    for worker in &mut workers {
        worker.request(&Request::Increment(250, &file)).unwrap();
    }
    for worker in &mut workers {
        assert_eq!(worker.answer().unwrap().what, Outcome::Done);
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), "1000");
    assert_eq!(server.cli(&["EXISTS", NAME]), "0");
}

#[tokio::test]
async fn watchdog_keeps_long_hold() {
    let server = RedisServer::start();
    let mut holder = worker(&server, SHORT_LEASE);
    assert_eq!(holder.ask(&Request::Acquire).unwrap().what, Outcome::Acquired);

    // The watchdog renews after a third of the lease, so more than nine renewals span more than three leases.
    let (mut previous, mut renewals, mut lapsed) = (ttl(&server), 0, false);
    let renewed = poll_until(LONG, || {
        let now = ttl(&server);
        renewals += u32::from(now > previous);
        lapsed |= now < 0;
        previous = now;
        lapsed || renewals > 9
    });
    assert!(renewed && !lapsed, "{renewals} renewals, lapsed: {lapsed}");

    let other = connect(&server.url(), LEASE).await.unwrap().lock(NAME);
    assert!(!other.try_acquire().await.unwrap().is_acquired());
    assert_eq!(holder.ask(&Request::Release).unwrap().what, Outcome::Released);
    assert!(other.try_acquire().await.unwrap().is_acquired());
}

#[test]
fn killed_holder_is_succeeded_on_expiry() {
    let server = RedisServer::start();
    let mut holder = worker(&server, SHORT_LEASE);
    // The successor's own lease is long. If it polled by that lease, it would be too late.
    let mut successor = worker(&server, LEASE);
    assert_eq!(holder.ask(&Request::Acquire).unwrap().what, Outcome::Acquired);
    let dead = server.cli(&["HKEYS", NAME]);
    successor.request(&Request::TryAcquireFor(LEASE / 2)).unwrap();
    wait_for_a_waiter(&server);
    holder.kill().unwrap();
    assert_eq!(successor.answer().unwrap().what, Outcome::Acquired);
    assert_ne!(server.cli(&["HKEYS", NAME]), dead);
}

#[test]
fn release_wakes_sleeping_waiter() {
    let server = RedisServer::start();
    let mut holder = worker(&server, LEASE);
    let mut waiter = worker(&server, LEASE);
    assert_eq!(holder.ask(&Request::Acquire).unwrap().what, Outcome::Acquired);
    waiter.request(&Request::Acquire).unwrap();
    wait_for_a_waiter(&server);

    let monitor = server.monitor();
    assert_eq!(holder.ask(&Request::Release).unwrap().what, Outcome::Released);
    assert_eq!(waiter.answer().unwrap().what, Outcome::Acquired);
    let sent: Vec<_> = monitor.stop().unwrap().into_iter().filter(|command| !command.from_script()).collect();
    let scripts = sent.iter().filter(|command| command.name() == "EVALSHA").count();
    assert_eq!(scripts, 2, "one release and one attempt: {sent:?}");
    assert!(
        sent.iter().all(|command| ["EVALSHA", "UNSUBSCRIBE"].contains(&command.name().as_str())),
        "{sent:?}"
    );
}

#[tokio::test]
async fn redis_counts_holds_per_owner() {
    let server = RedisServer::start();
    let locks = connect(&server.url(), LEASE).await.unwrap();
    let owner = locks.owner();
    let lock = locks.lock(NAME).with_owner(owner.clone());
    let stranger = locks.lock(NAME);
    let count = || server.cli(&["HGET", NAME, &owner.to_string()]);

    let mut guards = Vec::new();
    for expected in ["1", "2", "3"] {
        guards.push(lock.try_acquire().await.unwrap().acquired().unwrap());
        assert_eq!(count(), expected);
        assert_eq!(lock.hold_count(&owner).await.unwrap().to_string(), expected);
    }
    for expected in ["2", "1"] {
        guards.pop().unwrap().release().await.unwrap();
        assert_eq!(count(), expected);
        assert!(lock.is_held_by(&owner).await.unwrap());
        assert!(!stranger.try_acquire().await.unwrap().is_acquired());
    }
    guards.pop().unwrap().release().await.unwrap();
    assert_eq!(count(), "(nil)");
    assert!(!lock.is_locked().await.unwrap());
    assert!(stranger.try_acquire().await.unwrap().is_acquired());
}

#[tokio::test]
async fn try_acquire_for_honours_wait_limit() {
    let server = RedisServer::start();
    let locks = connect(&server.url(), LEASE).await.unwrap();
    let held = locks.lock(NAME).acquire().await.unwrap();
    let wait = Duration::from_millis(200);
    let start = Instant::now();
    assert!(!locks.lock(NAME).try_acquire_for(wait).await.unwrap().is_acquired());
    // The last round trips may shorten the wait, but must not extend it.
    assert!(start.elapsed() >= wait / 2, "gave up after {:?}", start.elapsed());
    assert!(held.is_valid());
    held.release().await.unwrap();
}

#[tokio::test]
async fn fixed_lease_expires_release_reports_loss() {
    let server = RedisServer::start();
    let locks = connect(&server.url(), LEASE).await.unwrap();
    let guard = locks.lock(NAME).with_lease(Duration::from_millis(300)).acquire().await.unwrap();
    assert!(guard.is_valid());
    tokio::time::timeout(LONG, guard.lost()).await.unwrap();
    assert!(!guard.is_valid());
    assert!(poll_until(LONG, || server.cli(&["EXISTS", NAME]) == "0"));
    // Another owner has the lock now; the late release must not free it.
    let next = locks.lock(NAME).try_acquire().await.unwrap().acquired().unwrap();
    assert!(matches!(guard.release().await, Err(Error::Lost { .. })));
    assert_eq!(server.cli(&["EXISTS", NAME]), "1");
    next.release().await.unwrap();
}

#[test]
fn uncontended_lock_sends_two_evalsha() {
    let server = RedisServer::start();
    let mut worker = worker(&server, LEASE);
    // The first round may have to load the scripts.
    worker.ask(&Request::Acquire).unwrap();
    worker.ask(&Request::Release).unwrap();
    let monitor = server.monitor();
    for _ in 0..10 {
        worker.ask(&Request::Acquire).unwrap();
        worker.ask(&Request::Release).unwrap();
    }
    let sent: Vec<_> = monitor.stop().unwrap().into_iter().filter(|command| !command.from_script()).collect();
    let names: Vec<_> = sent.iter().map(wheellock_tests::Observed::name).collect();
    assert_eq!(names, ["EVALSHA"; 20], "{sent:?}");
}

fn worker(server: &RedisServer, lease: Duration) -> Worker {
    let program = Command::new(env!("CARGO_BIN_EXE_lock_worker"));
    Worker::spawn(program, &server.url(), NAME, lease).unwrap()
}

/// Returns the key's remaining milliseconds, or a negative number without a key.
fn ttl(server: &RedisServer) -> i64 {
    server.cli(&["PTTL", NAME]).parse().unwrap()
}

/// Waits until a waiter has subscribed to the release and has polled the lock since.
fn wait_for_a_waiter(server: &RedisServer) {
    // Counts both attempts before the wait. A waiter that still has to poll is not asleep yet.
    let channel = format!("redisson_lock__channel:{{{NAME}}}");
    assert!(poll_until(LONG, || server.cli(&["PUBSUB", "NUMSUB", &channel]).ends_with("\n1")));
    let refused = || server.cli(&["INFO", "commandstats"]);
    let calls = |stats: &str| -> u64 {
        let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
        line.and_then(|rest| rest.split(',').next()?.parse().ok()).unwrap_or(0)
    };
    assert!(poll_until(LONG, || calls(&refused()) >= 3), "{}", refused());
}

/// Every test has a separate server, so all tests can use the same name.
const NAME: &str = "orders:42";
/// Redisson's default.
const LEASE: Duration = Duration::from_secs(30);
/// Short enough for many renewals, and long enough for a busy machine to send them.
const SHORT_LEASE: Duration = Duration::from_millis(1500);
/// Long enough for every event of these tests.
const LONG: Duration = Duration::from_secs(30);
