//! Overload, wrong clocks, and concurrent cancellations.
//!
//! Covers rows L16 to L18, C12 and O of the failure catalogue, as far as the lock layer is responsible. docs/reliability/faults.md maps rows to
//! tests. O3 and O6 belong to the connection (`faults_client`); O7, O8 and L15 are campaigns.

use std::future::Future;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::task::JoinSet;
use wheellock::{BootInstant, Error, Guard, LockManager, LostReason};
use wheellock_tests::campaign::Shim;
use wheellock_tests::fault::{Direction, Fault, Proxy, Random};
use wheellock_tests::worker::connect;
use wheellock_tests::{RedisServer, eventually};

/// A bound on hangs. All waits end much earlier.
const PATIENCE: Duration = Duration::from_secs(30);

async fn manager(server: &RedisServer) -> LockManager {
    LockManager::connect(&server.url()).await.expect("the server is up")
}

async fn empty(server: &RedisServer) -> bool {
    eventually(PATIENCE, async || server.cli(&["DBSIZE"]) == "0").await
}

/// Returns the number of scripts that the server has run.
fn scripts_run(server: &RedisServer) -> u64 {
    let stats = server.cli(&["INFO", "commandstats"]);
    let of = |command: &str| {
        let line = stats.lines().find(|line| line.starts_with(&format!("cmdstat_{command}:")))?;
        line.split_once("calls=")?.1.split(',').next()?.parse::<u64>().ok()
    };
    of("evalsha").unwrap_or(0) + of("eval").unwrap_or(0)
}

/// Acquires locks `0..count`, many at the same time.
async fn hold_many(locks: &LockManager, count: u32) -> Vec<Guard> {
    let mut tasks = JoinSet::new();
    for part in 0..PARTS {
        let locks = locks.clone();
        tasks.spawn(async move {
            let mut guards = Vec::new();
            for number in (part..count).step_by(PARTS as usize) {
                guards.push(locks.lock(&format!("many:{number}")).acquire().await.unwrap());
            }
            guards
        });
    }
    tasks.join_all().await.into_iter().flatten().collect()
}

const PARTS: u32 = 256;

#[tokio::test]
async fn l16_lease_clock_counts_suspend() {
    let reading = || BootInstant::now().since_boot().as_secs_f64();
    if std::env::var_os(L16_CHILD).is_some() {
        println!("reading {}", reading());
        return;
    }
    // A time namespace can set the two clocks apart as a suspend does. Only privileged users can make such a namespace.
    let this = std::env::current_exe().unwrap();
    let mut child = Command::new("unshare");
    child.args(["-T", "--boottime=100000"]).arg(this);
    let test = "faults_overload::l16_lease_clock_counts_suspend";
    child.args(["--exact", test, "--nocapture"]);
    let here = reading();
    match child.env(L16_CHILD, "1").output() {
        Ok(output) if output.status.success() => {
            let printed = String::from_utf8_lossy(&output.stdout);
            let there =
                printed.lines().find_map(|line| line.split_once("reading ")?.1.trim().parse::<f64>().ok());
            let apart = there.unwrap_or_else(|| panic!("{printed}")) - here;
            assert!((100_000.0..100_600.0).contains(&apart), "{apart}");
        }
        refused => println!("no time namespace here, so the clocks cannot be set apart: {refused:?}"),
    }
    let now = Duration::from_nanos(wheellock_tests::history::now()).as_secs_f64();
    assert!((now - here).abs() < 60.0, "{now} {here}");
}

const L16_CHILD: &str = "WHEELLOCK_L16_CHILD";

#[tokio::test]
async fn l17_forward_clock_jump_notifies_holder() {
    let (server, shim) = Shim::preloaded(RedisServer::builder()).unwrap();
    let (first, second) = (connect(&server.url(), LEASE).await.unwrap(), manager(&server).await);
    let held = first.lock("orders").acquire().await.unwrap();
    // The library detects jumps between two renewals.
    assert!(eventually(PATIENCE, async || first.metrics().renewals > 0).await);
    shim.set_clock(31_000_000).unwrap();
    assert_eq!(server.cli(&["EXISTS", "orders"]), "0", "the lease ended early");
    let other = second.lock("orders").try_acquire().await.unwrap();
    assert!(other.is_acquired(), "nothing on the server is left of the first holder");
    assert_eq!(held.lost().await, LostReason::NotOwner);
    assert!(!held.is_valid());
    assert!(matches!(held.release().await, Err(Error::Lost { .. })));
    assert_eq!(first.metrics().server_clock_jumps, 1);
    assert!(other.acquired().unwrap().is_valid(), "and the second holder is unharmed");
}

#[tokio::test]
async fn l18_backward_clock_never_lengthens_renewed_lease() {
    let (server, shim) = Shim::preloaded(RedisServer::builder()).unwrap();
    let locks = connect(&server.url(), LEASE).await.unwrap();
    let held = locks.lock("orders").acquire().await.unwrap();
    assert!(eventually(PATIENCE, async || locks.metrics().renewals > 0).await);
    shim.set_clock(-3_600_000_000).unwrap();
    let ttl = || server.cli(&["PTTL", "orders"]).parse::<u128>().unwrap();
    let longer = ttl();
    // A renewal restores the right length, and may already have happened.
    assert!(longer > 3_000_000 || longer <= LEASE.as_millis(), "{longer}");
    assert!(eventually(PATIENCE, async || ttl() <= LEASE.as_millis()).await);
    assert!(eventually(PATIENCE, async || locks.metrics().server_clock_jumps == 1).await);
    assert!(held.is_valid());
    held.release().await.unwrap();
    assert!(empty(&server).await);
}

#[tokio::test]
async fn l18_backward_clock_lengthens_no_lock_kind() {
    let (server, shim) = Shim::preloaded(RedisServer::builder()).unwrap();
    let locks = connect(&server.url(), LEASE).await.unwrap();
    let (reading, writing) = (locks.read_write_lock("reading"), locks.read_write_lock("writing"));
    let fenced = locks.fenced_lock("fenced");
    let kinds = [
        &locks.fair_lock("fair"),
        fenced.as_lock(),
        &locks.simple_lock("simple"),
        &reading.read(),
        &writing.write(),
    ];
    let mut held = Vec::new();
    for lock in kinds {
        held.push(lock.acquire().await.unwrap());
    }
    shim.set_clock(-3_600_000_000).unwrap();
    // The keys and the milliseconds until the server expires them.
    let ends = || {
        let ttl = |key: &str| server.cli(&["PTTL", key]).parse::<i64>().unwrap();
        server.cli(&["KEYS", "*"]).lines().map(|key| (key.to_owned(), ttl(key))).collect::<Vec<_>>()
    };
    let longest = i64::try_from(LEASE.as_millis()).unwrap();
    let is_short = async || ends().iter().all(|(_, left)| *left <= longest);
    assert!(eventually(PATIENCE, is_short).await, "{:?}", ends());
    for guard in held {
        guard.release().await.unwrap();
    }
}

const LEASE: Duration = Duration::from_secs(3);

#[tokio::test]
async fn c12_concurrent_cancellations_leave_nothing() {
    let server = RedisServer::start();
    let locks = manager(&server).await;
    let blocker = manager(&server).await;
    let mut random = Random::new(12);
    let pairs = (0..7).flat_map(|i| (0..7).map(move |j| vec![i, j]));
    let triples = (0..50).map(|_| (0..3).map(|_| random.below(9)).collect());
    for points in pairs.chain(triples.collect::<Vec<Vec<u64>>>()) {
        for contended in [false, true] {
            let held = if contended { Some(blocker.lock("c12").acquire().await.unwrap()) } else { None };
            let lock = locks.lock("c12");
            let mut attempts: Vec<_> = points.iter().map(|_| Some(Box::pin(lock.acquire()))).collect();
            let last = points.iter().max().copied().unwrap_or_default();
            for polls in 0..=last {
                for (attempt, point) in attempts.iter_mut().zip(&points) {
                    // If granted or at its point, drops the future and the guard.
                    let over = polls == *point;
                    if over || attempt.as_mut().is_some_and(|attempt| poll_once(attempt.as_mut()).is_ready())
                    {
                        *attempt = None;
                    }
                }
                // Lets the connection's task run between two polls.
                tokio::time::sleep(Duration::from_micros(100)).await;
            }
            drop(held);
            drop(attempts);
            assert!(empty(&server).await, "cancelled at {points:?}, contended {contended}");
            assert_eq!((locks.metrics().held, locks.metrics().waiting), (0, 0), "{points:?}");
        }
    }
    let next = locks.lock("c12").try_acquire_for(PATIENCE).await.unwrap();
    assert!(next.is_acquired(), "nobody is stuck in line");
    assert_eq!(locks.client().stats().connections, 1);
}

fn poll_once<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

#[tokio::test]
async fn o01_many_waiters_cost_little_keep_order() {
    const WAITERS: u32 = 2000;
    let server = RedisServer::start();
    let (locks, holder) = (manager(&server).await, manager(&server).await);
    let held = holder.lock("queue").acquire().await.unwrap();
    let served = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = JoinSet::new();
    for number in 0..WAITERS {
        let (lock, served) = (locks.lock("queue"), Arc::clone(&served));
        tasks.spawn(async move {
            let guard = lock.acquire().await.unwrap();
            served.lock().unwrap().push(number);
            guard.release().await
        });
        // The queue forms behind the first waiter that knows of the hold. Until then, all waiters poll.
        assert!(number > 0 || eventually(PATIENCE, async || locks.metrics().waiting == 1).await);
        tokio::task::yield_now().await;
    }
    assert!(eventually(PATIENCE, async || locks.metrics().waiting == u64::from(WAITERS)).await);
    let one_subscription = "redisson_lock__channel:{queue}\n1";
    let numsub = ["PUBSUB", "NUMSUB", "redisson_lock__channel:{queue}"];
    assert!(eventually(PATIENCE, async || server.cli(&numsub) == one_subscription).await);
    let before = scripts_run(&server);
    assert!(before < 20, "waiting costs next to nothing: {before} scripts");
    held.release().await.unwrap();
    let all = tokio::time::timeout(PATIENCE, tasks.join_all()).await.expect("all are served");
    assert!(all.iter().all(Result::is_ok), "{all:?}");
    let handoffs = scripts_run(&server) - before;
    // Each waiter acquires and releases. A release notifies only the next waiter, whose poll may precede the message of the same release.
    assert!(handoffs <= u64::from(3 * WAITERS), "a herd: {handoffs} scripts for {WAITERS} handoffs");
    assert_eq!(*served.lock().unwrap(), (0..WAITERS).collect::<Vec<_>>(), "first come, first served");
    assert!(empty(&server).await);
}

#[tokio::test]
async fn o02_held_locks_renew_in_batches() {
    const LOCKS: u32 = 20_000;
    let server = RedisServer::start();
    let locks = connect(&server.url(), Duration::from_secs(6)).await.unwrap();
    let guards = hold_many(&locks, LOCKS).await;
    let (renewals, scripts) = (locks.metrics().renewals, scripts_run(&server));
    let twice = renewals + 2 * u64::from(LOCKS);
    assert!(eventually(PATIENCE, async || locks.metrics().renewals >= twice).await);
    let (renewals, scripts) = (locks.metrics().renewals - renewals, scripts_run(&server) - scripts);
    assert!(renewals > 20 * scripts, "{scripts} scripts for {renewals} renewals");
    let metrics = locks.metrics();
    assert_eq!((metrics.held, metrics.lost_expired, metrics.lost_not_owner), (u64::from(LOCKS), 0, 0));
    assert!(guards.iter().all(Guard::is_valid));
    assert_eq!(server.cli(&["DBSIZE"]), LOCKS.to_string());
    drop(guards);
    assert!(empty(&server).await);
}

#[test]
fn o04_due_timers_fire_in_portions() {
    const TIMERS: usize = 1_000_000;
    // A recursion would overflow this small stack.
    let thread = std::thread::Builder::new().stack_size(64 << 10).spawn(|| {
        let mut wheel = wheellock_wheel::Wheel::new(512);
        for number in 0..TIMERS {
            wheel.insert(100, number);
        }
        let mut seen = vec![false; TIMERS];
        let mut portions = 0;
        loop {
            let mut portion = 0;
            let all = wheel.advance_within(100, 1000, |_, number| {
                portion += 1;
                assert!(!std::mem::replace(&mut seen[number], true), "twice");
            });
            assert!(portion <= 1000, "{portion} at once");
            portions += 1;
            if all {
                break;
            }
        }
        assert!(portions >= TIMERS / 1000 && seen.into_iter().all(|seen| seen) && wheel.is_empty());
    });
    thread.unwrap().join().unwrap();
}

#[tokio::test]
async fn o05_busy_server_loses_locks_without_storm() {
    const LOCKS: u32 = 200;
    let server = RedisServer::builder().arg("enable-debug-command", "local").start();
    let locks = connect(&server.url(), Duration::from_millis(500)).await.unwrap();
    let guards = hold_many(&locks, LOCKS).await;
    let before = scripts_run(&server);
    let mut cli = server.connect().unwrap();
    cli.send(&["DEBUG", "SLEEP", "1.5"]).unwrap();
    for guard in &guards {
        let reason = tokio::time::timeout(PATIENCE, guard.lost()).await.expect("told in the end");
        assert!(!guard.is_valid());
        let late = BootInstant::now().saturating_duration_since(guard.valid_until());
        assert!(late < Duration::from_secs(2), "told {late:?} after `valid_until`");
        assert_eq!(reason, LostReason::Expired, "and by its own clock, for nobody else could say so");
    }
    assert_eq!(cli.read_reply().unwrap().to_string(), "OK");
    drop(guards);
    // The requests meanwhile: batches of renewals before the leases ended, and a release for each lock.
    assert!(empty(&server).await);
    let asked = scripts_run(&server) - before;
    assert!(asked <= u64::from(LOCKS) * 6 / 5 + 100, "{asked} scripts for {LOCKS} locks");
    let again = locks.lock("many:1").try_acquire_for(PATIENCE).await.unwrap();
    assert!(again.is_acquired());
}

#[tokio::test]
async fn o10_dropped_guards_never_block_or_leak() {
    const LOCKS: u32 = 20_000;
    let server = RedisServer::start();
    let proxy = Proxy::before(&server);
    // The queue is far too small for all guards, so most releases find the queue full and are retried.
    let builder = LockManager::builder(&proxy.url()).configure(|config| config.max_in_flight = 1000);
    let locks = builder.connect().await.unwrap();
    let guards = hold_many(&locks, LOCKS).await;
    assert_eq!(server.cli(&["DBSIZE"]), LOCKS.to_string());
    // The server accepts no further bytes, and the only thread runs no other task. So a drop that waits would wait forever.
    proxy.strike(Direction::ToServer, Fault::Stall);
    drop(guards);
    assert_eq!(locks.metrics().held, 0);
    proxy.heal();
    assert!(empty(&server).await, "{} keys left", server.cli(&["DBSIZE"]));
    // The last replies may still be on their way.
    assert!(eventually(PATIENCE, async || locks.client().stats().in_flight == 0).await);
    assert!(locks.lock("many:0").acquire().await.unwrap().is_valid(), "and the queue is of use again");
}
