//! Faults while a lock is acquired, held, awaited and released.
//!
//! Covers rows L and C9 to C11 of the failure catalogue. docs/reliability/faults.md maps rows to tests.

use std::collections::HashSet;
use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::runtime;
use tokio::sync::{Barrier, oneshot};
use tokio::task::{JoinError, JoinSet, yield_now};
use tokio::time::timeout;
use wheellock::client::ErrorKind;
use wheellock::{Attempt, BootInstant, Error, Guard, LockManager, LostReason, Outcome};
use wheellock_tests::fault::{At, Direction, Fault, Gate, Proxy, Rule, cancel_at};
use wheellock_tests::locks::{
    Asked, PATIENCE, WOKEN, adjusted, at_rest, brisk, gone, listeners, lost, manager, renewed,
    renewed_after_release, taken,
};
use wheellock_tests::{RedisServer, eventually};

/// The default, which does not end while a test runs.
const LEASE: Duration = Duration::from_secs(30);
/// Short enough for a test to outlive it, and long enough for a busy machine to renew it.
const SHORT: Duration = Duration::from_secs(1);

/// Strikes the `nth` reply from now on, only on the newest connection.
fn strike_reply(proxy: &Proxy, nth: u64, fault: Fault) {
    proxy.rule(Rule::new(Direction::ToClient, At::Reply(nth), fault).only_on(proxy.counts().accepted - 1));
}

fn late(by: Duration) -> Fault {
    Fault::Delay(by, Duration::from_nanos(1))
}

fn ttl(server: &RedisServer, key: &str) -> i64 {
    server.cli(&["PTTL", key]).parse().expect("a number")
}

/// Makes a holder that exists only on the server, like the hold of a dead process.
fn hold_as_stranger(server: &RedisServer, key: &str, lease: Duration) {
    assert_eq!(server.cli(&["HSET", key, STRANGER, "1"]), "1");
    assert_eq!(server.cli(&["PEXPIRE", key, &lease.as_millis().to_string()]), "1");
}

const STRANGER: &str = "00000000-0000-4000-8000-000000000000:1";

fn count(asked: &[Asked], what: impl Fn(&Asked) -> bool) -> usize {
    asked.iter().filter(|asked| what(asked)).count()
}

#[tokio::test]
async fn l01_unanswered_renewal_retries_in_time() {
    let server = RedisServer::start();
    let survives = async |name: &str, fault: Fault| {
        let proxy = Proxy::before(&server);
        // The PING between a renewal and the end of its lease detects that a reply is missing.
        let locks = adjusted(&proxy.url(), 2 * SHORT, |config| config.heartbeat = SHORT).await;
        let guard = locks.lock(name).acquire().await.unwrap();
        let first = guard.valid_until();
        strike_reply(&proxy, 0, fault);
        assert!(renewed(&guard, 1).await, "{name}");
        assert_eq!(proxy.counts().faults, 1);
        assert!(BootInstant::now() < first, "{name}: repeated before the lease that it renews had ended");
        assert!(renewed(&guard, 1).await, "{name}: and the watchdog lives on");
        guard.release().await.unwrap();
    };
    tokio::join!(
        survives("swallowed", Fault::Swallow),
        survives("cut", Fault::Rst),
        survives("refused", Fault::Replace(b"-ERR internal\r\n".to_vec())),
    );
}

#[tokio::test]
async fn l02_late_renewal_resurrects_nothing() {
    let server = RedisServer::start();
    let proxy = Proxy::before(&server);
    let locks = brisk(&proxy.url(), SHORT).await;
    let guard = locks.lock("late").acquire().await.unwrap();
    let promised = guard.valid_until();
    proxy.strike(Direction::ToClient, late(SHORT + SHORT / 2));
    assert_eq!(lost(&guard).await, LostReason::Expired);
    assert!(BootInstant::now() <= promised, "the news came after the deadline");
    assert!(ttl(&server, "late") > 0, "and before the server's expiry");
    assert!(!guard.is_valid());
    assert!(at_rest(&locks).await);
    assert!(locks.client().stats().connections == 1, "the answers arrived after all");
    assert!(!guard.is_valid() && guard.valid_until() == promised, "and change nothing");
    assert_eq!(lost(&guard).await, LostReason::Expired);
    proxy.heal();
    drop(guard);
    assert!(gone(&server, "late").await);
}

#[tokio::test]
async fn l03_renewal_never_recreates_expired_key() {
    let server = RedisServer::start();
    let proxy = Proxy::before(&server);
    let locks = brisk(&proxy.url(), SHORT).await;
    let guard = locks.lock("expired").acquire().await.unwrap();
    let monitor = server.monitor();
    proxy.strike(Direction::ToServer, late(SHORT));
    assert_eq!(lost(&guard).await, LostReason::Expired);
    assert!(gone(&server, "expired").await);
    assert!(at_rest(&locks).await);
    assert_eq!(server.cli(&["EXISTS", "expired"]), "0");
    let seen = monitor.stop().unwrap();
    assert!(count(&Asked::all(&seen), |asked| asked.renews("expired")) >= 1, "it has come, too late");
    assert!(
        !seen.iter().any(|line| line.from_script() && ["HSET", "PEXPIRE"].contains(&line.name().as_str()))
    );
    assert!(matches!(guard.release().await, Err(Error::Lost { .. })));
}

#[tokio::test]
async fn l04_lock_reacquired_after_loss_renews() {
    let server = RedisServer::start();
    let locks = brisk(&server.url(), SHORT).await;
    let taken_again = async |name: &str, same_owner: bool| {
        let plain = locks.lock(name);
        let first = plain.acquire().await.unwrap();
        let lock = if same_owner { plain.with_owner(first.owner()) } else { plain.clone() };
        assert!(plain.force_release().await.unwrap());
        assert_eq!(lost(&first).await, LostReason::NotOwner);
        let guard = lock.acquire().await.unwrap();
        assert!(renewed(&guard, 3).await, "for longer than a lease");
        assert!(!first.is_valid(), "the lost one stays lost");
        assert!(matches!(first.release().await, Err(Error::Lost { .. })));
        assert!(renewed(&guard, 1).await, "its end takes nothing from the new one");
        guard.release().await.unwrap();
    };
    tokio::join!(taken_again("another owner", false), taken_again("the same owner", true));
}

#[tokio::test]
async fn l05_failed_acquire_is_never_renewed() {
    let server = RedisServer::start();
    let proxy = Proxy::before(&server);
    let locks = brisk(&proxy.url(), SHORT).await;
    let clock = locks.lock("clock").acquire().await.unwrap();
    let monitor = server.monitor();
    hold_as_stranger(&server, "busy", LEASE);
    assert_eq!(server.cli(&["SET", "text", "not a lock"]), "OK");
    assert!(!locks.lock("busy").try_acquire().await.unwrap().is_acquired());
    assert!(!locks.lock("busy").try_acquire_for(Duration::from_millis(20)).await.unwrap().is_acquired());
    assert!(locks.lock("text").acquire().await.is_err());
    proxy.strike(Direction::ToClient, Fault::Stall);
    assert!(locks.lock("slow").try_acquire_for(Duration::from_millis(20)).await.is_err());
    proxy.heal();
    for pendings in 0..6 {
        drop(cancel_at(pendings, locks.lock("busy").try_acquire_for(Duration::from_millis(50))).await);
        drop(cancel_at(pendings, locks.lock("free").acquire()).await);
    }
    assert!(renewed(&clock, 3).await);
    let asked = Asked::all(&monitor.stop().unwrap());
    for lock in ["busy", "text", "slow", "free"] {
        assert!(count(&asked, |asked| asked.acquires(lock)) > 0, "{lock} was asked for");
        assert_eq!(count(&asked, |asked| asked.renews(lock)), 0, "{lock}");
    }
    assert_eq!(server.cli(&["EXISTS", "slow", "free"]), "0");
    assert_eq!(server.cli(&["HGETALL", "busy"]), format!("{STRANGER}\n1"));
}

#[tokio::test]
async fn l06_grant_slower_than_lease_is_revoked() {
    let server = RedisServer::start();
    let proxy = Proxy::before(&server);
    let locks = brisk(&proxy.url(), LEASE).await;
    let lease = Duration::from_millis(200);
    let lock = locks.lock("slow").with_lease(lease);
    let monitor = server.monitor();
    proxy.strike(Direction::ToClient, late(2 * lease));
    let outcome = lock.try_acquire_for(3 * lease).await;
    assert!(outcome.is_err(), "{outcome:?}");
    let waiting = tokio::spawn({
        let lock = lock.clone();
        async move { lock.acquire().await }
    });
    // In the middle between two requests. After a whole lease, the third grant would be valid for no time at all.
    tokio::time::sleep(4 * lease + lease / 2).await;
    assert!(!waiting.is_finished(), "a wait without a limit goes on");
    proxy.heal();
    let guard = timeout(PATIENCE, waiting).await.expect("it is fast enough").unwrap().unwrap();
    assert!(guard.is_valid());
    drop(guard);
    assert!(gone(&server, "slow").await && at_rest(&locks).await);
    let asked = Asked::all(&monitor.stop().unwrap());
    let (taken, freed) =
        (count(&asked, |asked| asked.acquires("slow")), count(&asked, |asked| asked.frees("slow")));
    assert!(taken >= 3 && freed >= taken, "each was taken back: {asked:?}");
}

#[tokio::test]
async fn l07_lost_acquire_reply_retries_or_revokes() {
    let server = RedisServer::start();
    let proxy = Proxy::before(&server);
    let locks = brisk(&proxy.url(), LEASE).await;
    let lock = locks.lock("answer");

    // The library repeats the request for the same owner, which the server already knows.
    let monitor = server.monitor();
    strike_reply(&proxy, 0, Fault::Rst);
    let guard = lock.acquire().await.unwrap();
    assert_eq!(server.cli(&["HGETALL", "answer"]), format!("{}\n1", guard.owner()));
    let asked = Asked::all(&monitor.stop().unwrap());
    let owner = guard.owner().to_string();
    let same = |asked: &Asked| matches!(asked, Asked::Acquire { owner: by, .. } if *by == owner);
    assert_eq!(count(&asked, same), 2, "{asked:?}");
    guard.release().await.unwrap();

    // The caller gives up while the server is unreachable. The library takes the grant back when the server is reachable again.
    strike_reply(&proxy, 0, Fault::Rst);
    proxy.gate(Gate::Refuse);
    let outcome = lock.try_acquire_for(Duration::from_millis(100)).await;
    assert_eq!(
        outcome.unwrap_err().outcome(),
        Outcome::MaybeExecuted,
        "the last attempt never left, the first did"
    );
    assert!(ttl(&server, "answer") > 25_000, "an orphan, for now");
    proxy.gate(Gate::Open);
    assert!(gone(&server, "answer").await, "released, long before its lease ends");
}

/// The caller's own time ends the wait, and the server already has the request.
#[tokio::test]
async fn l07_unanswered_last_poll_reports_maybe_executed() {
    let server = RedisServer::start();
    let proxy = Proxy::before(&server);
    let locks = brisk(&proxy.url(), LEASE).await;
    hold_as_stranger(&server, "asked", SHORT);
    let lock = locks.lock("asked");
    let waiting = tokio::spawn(async move { lock.try_acquire_for(3 * SHORT).await });
    assert!(listeners(&server, "asked", 1).await && at_rest(&locks).await);
    // The waiter polls when the lease would have ended. No message arrives before, so the first poll finds the lock free.
    proxy.strike(Direction::ToClient, Fault::Stall);
    assert_eq!(server.cli(&["DEL", "asked"]), "1");
    let taken = eventually(PATIENCE, async || server.cli(&["HGETALL", "asked"]).contains(locks.id())).await;
    assert!(taken, "the server has granted it");
    let outcome = waiting.await.unwrap();
    assert_eq!(outcome.unwrap_err().outcome(), Outcome::MaybeExecuted);
    proxy.heal();
    assert!(gone(&server, "asked").await, "taken back, long before its lease ends");
}

#[tokio::test]
async fn l08_repeated_release_spares_next_owner() {
    let server = RedisServer::start();
    let proxy = Proxy::before(&server);
    let (locks, others) = (brisk(&proxy.url(), LEASE).await, manager(&server.url()).await);
    let guard = locks.lock("next").acquire().await.unwrap();
    strike_reply(&proxy, 0, Fault::Rst);
    proxy.gate(Gate::Refuse);
    let release = tokio::spawn(guard.release());
    assert!(gone(&server, "next").await, "executed");
    let next = others.lock("next").acquire().await.unwrap();
    let monitor = server.monitor();
    proxy.gate(Gate::Open);
    release.await.unwrap().expect("it was ours until it was released");
    let asked = Asked::all(&monitor.stop().unwrap());
    assert_eq!(count(&asked, |asked| asked.frees("next")), 1, "repeated: {asked:?}");
    assert_eq!(server.cli(&["HGETALL", "next"]), format!("{}\n1", next.owner()));
    next.release().await.unwrap();
}

#[tokio::test]
async fn l09_missed_message_delays_until_next_poll() {
    let server = RedisServer::start();
    let proxy = Proxy::before(&server);
    let (holder, locks) = (manager(&server.url()).await, brisk(&proxy.url(), LEASE).await);
    let guard = holder.lock("unheard").acquire().await.unwrap();
    let lock = locks.lock("unheard");
    let waiter = tokio::spawn(async move { lock.acquire().await });
    hold_as_stranger(&server, "leased", Duration::from_millis(500));
    let lock = locks.lock("leased");
    let second = tokio::spawn(async move { lock.try_acquire_for(WOKEN).await });
    assert!(listeners(&server, "unheard", 1).await && listeners(&server, "leased", 1).await);
    assert!(at_rest(&locks).await);
    // The message, and the news of the changed key.
    proxy.rule(Rule::new(Direction::ToClient, At::Push(0), Fault::Swallow));
    proxy.rule(Rule::new(Direction::ToClient, At::Push(1), Fault::Swallow));
    guard.release().await.unwrap();
    // The server sends no message about an expired lease.
    assert!(second.await.unwrap().unwrap().is_acquired(), "asked again when the lease had ended");
    assert!(!waiter.is_finished(), "the message was thrown away");
    let taken = timeout(PATIENCE, waiter).await.expect("asked again after 5 s");
    assert!(taken.unwrap().unwrap().is_valid());
    assert_eq!((proxy.counts().faults, locks.client().stats().connections), (2, 1));
}

#[tokio::test]
async fn l09_waiter_polls_when_local_lease_expires() {
    let server = RedisServer::start();
    // The server must not tell of the expired key, because only the waiter's own poll is judged.
    let (holder, locks) = (manager(&server.url()).await, manager(&server.untracked_url()).await);
    let guard = holder.lock("line").acquire().await.unwrap();
    let lock = locks.lock("line").with_lease(Duration::from_secs(1));
    let waiters = [lock.clone(), lock].map(|lock| {
        tokio::spawn(
            async move { lock.try_acquire_for(WOKEN).await.unwrap().acquired().expect("asked in time") },
        )
    });
    assert!(listeners(&server, "line", 1).await && at_rest(&locks).await);
    guard.release().await.unwrap();
    // Kept beyond their leases, so that no release sends a message.
    let mut kept = Vec::new();
    for waiter in waiters {
        kept.push(waiter.await.unwrap());
    }
    assert!(!kept[0].is_valid());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l10_release_before_confirmed_subscription_is_noticed() {
    let server = RedisServer::start();
    let (holder, locks) = (manager(&server.url()).await, manager(&server.url()).await);
    for round in 0..300 {
        // A new name each time, so that each waiter subscribes again.
        let name = format!("raced:{round}");
        let guard = holder.lock(&name).acquire().await.unwrap();
        let lock = locks.lock(&name);
        let waiter = tokio::spawn(async move { lock.try_acquire_for(WOKEN).await.unwrap() });
        for _ in 0..round % 30 {
            yield_now().await;
        }
        drop(guard);
        let taken = waiter.await.unwrap();
        assert!(taken.is_acquired(), "round {round}: the release fell into the gap");
    }
}

#[tokio::test]
async fn l11_reconnect_polls_once_per_lock() {
    let server = RedisServer::start();
    let (holder, locks) = (manager(&server.url()).await, brisk(&server.url(), LEASE).await);
    let names = ["one", "two", "three"];
    let mut guards = Vec::new();
    let mut waiters = JoinSet::new();
    for name in names {
        guards.push(holder.lock(name).acquire().await.unwrap());
        for _ in 0..20 {
            let lock = locks.lock(name);
            waiters.spawn(async move { drop(lock.acquire().await.unwrap()) });
        }
        assert!(listeners(&server, name, 1).await);
    }
    assert!(at_rest(&locks).await);
    let monitor = server.monitor();
    assert_eq!(server.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]), "1");
    for name in names {
        assert!(eventually(PATIENCE, async || locks.client().stats().connections == 2).await);
        assert!(listeners(&server, name, 1).await);
    }
    assert!(at_rest(&locks).await);
    let seen = monitor.stop().unwrap();
    let asked = Asked::all(&seen);
    for name in names {
        let subscribed = |line: &&wheellock_tests::Observed| {
            line.name() == "SUBSCRIBE" && line.args.iter().any(|arg| arg.ends_with(&format!("{{{name}}}")))
        };
        assert_eq!(seen.iter().filter(subscribed).count(), 1, "{name}");
        assert_eq!(count(&asked, |asked| asked.acquires(name)), 1, "{name}: {asked:?}");
    }
    drop(guards);
    timeout(WOKEN, waiters.join_all()).await.expect("all are served");
}

#[tokio::test]
async fn l12_waiters_poll_without_subscribe_permission() {
    let server = RedisServer::start();
    if server.redis_version() < (6, 2, 0) {
        return; // no rules for channels yet
    }
    let rules = ["ACL", "SETUSER", "deaf", "on", ">secret", "~*", "resetchannels", "+@all"];
    assert_eq!(server.cli(&rules), "OK");
    let holder = manager(&server.url()).await;
    let builder = LockManager::builder(&server.url());
    let deaf = builder.configure(|config| {
        config.username = Some("deaf".to_owned());
        config.password = Some(wheellock::client::Secret::new("secret"));
    });
    let locks = deaf.connect().await.unwrap();
    let guard = holder.lock("deaf").acquire().await.unwrap();
    let monitor = server.monitor();
    let lock = locks.lock("deaf");
    let waiter = tokio::spawn(async move { lock.try_acquire_for(PATIENCE).await });
    // Two calls for a start, and each further call is a poll.
    let asked = async || locks.client().stats().calls >= 6;
    assert!(eventually(PATIENCE, asked).await, "{:?}", locks.client().stats());
    let released = Instant::now();
    drop(guard);
    let guard = waiter.await.unwrap().unwrap().acquired().expect("it polls");
    assert!(released.elapsed() < WOKEN);
    let seen = monitor.stop().unwrap();
    let subscribed = seen.iter().filter(|line| line.name() == "SUBSCRIBE").count();
    assert!(subscribed <= 1, "what was refused is not asked for again and again: {subscribed}");
    // The server may reject the PUBLISH of our own release. The lock is free all the same.
    drop(guard);
    assert!(gone(&server, "deaf").await);
}

#[tokio::test]
async fn l14_invalid_leases_are_never_sent() {
    let server = RedisServer::start();
    let locks = manager(&server.url()).await;
    let monitor = server.monitor();
    let century = Duration::from_secs(100 * 365 * 24 * 3_600);
    let bad = [
        Duration::ZERO,
        Duration::from_nanos(1),
        Duration::from_nanos(999_999),
        Duration::from_millis(2),
        century + Duration::from_nanos(1),
        Duration::from_millis(i64::MAX.unsigned_abs()),
        Duration::from_millis(i64::MAX.unsigned_abs() + 1),
        Duration::from_millis(u64::MAX),
        Duration::from_secs(u64::MAX),
        Duration::MAX,
    ];
    for lease in bad {
        let lock = locks.lock("leased").with_lease(lease);
        for outcome in [
            lock.acquire().await.map(Attempt::Acquired),
            lock.try_acquire().await,
            lock.try_acquire_for(lease).await,
        ] {
            let error = outcome.unwrap_err();
            assert!(matches!(error, Error::InvalidLease { .. }), "{lease:?}: {error}");
            assert_eq!(error.outcome(), Outcome::NotSent);
        }
    }
    assert_eq!(Asked::all(&monitor.stop().unwrap()), [], "nothing was sent");
    // The server accepts leases up to the bounds.
    let mut lease = Duration::from_millis(100);
    while lease <= century {
        let guard = locks.lock("leased").with_lease(lease).acquire().await.unwrap();
        assert!(guard.is_valid() && ttl(&server, "leased") > 0, "{lease:?}");
        guard.release().await.unwrap();
        lease = if lease == century { break } else { (3 * lease).min(century) };
    }
    // A wait of any length does not overflow either.
    assert!(locks.lock("leased").try_acquire_for(Duration::MAX).await.unwrap().is_acquired());
}

/// No decision may depend on a clock that can be set backwards. Not reading such a clock is the only certain way.
#[test]
fn l19_wall_clock_is_never_read() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("crates");
    let mut found = Vec::new();
    let mut files = 0;
    for line in source_lines(&crates, &mut files) {
        let wall_clock = ["SystemTime", "UNIX_EPOCH", "ClockId::Realtime", "chrono::"];
        if wall_clock.iter().any(|name| line.1.contains(name)) {
            found.push(line.0);
        }
    }
    assert!(files > 40, "only {files} source files found");
    let allowed = [
        // Spreads attempts to connect where the system does not provide randomness. Any number would do.
        "wheellock-client/src/config/mod.rs",
        // Shows an instant to people, as `system_time`. No decision depends on it.
        "wheellock/src/base/clock.rs",
        // A server in memory, whose clock needs a start.
        "wheellock/src/testing/mod.rs",
        // Compares the server's clock with this machine's clock, and reports the difference.
        "wheellock-cli/src/doctor.rs",
    ];
    found.retain(|path| !allowed.iter().any(|allowed| path.ends_with(allowed)));
    assert_eq!(found, Vec::<String>::new());
}

fn source_lines(folder: &Path, files: &mut u32) -> Vec<(String, String)> {
    let mut lines = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            lines.extend(source_lines(&path, files));
        } else if path.extension().is_some_and(|extension| extension == "rs")
            && path.components().any(|part| part.as_os_str() == "src")
        {
            *files += 1;
            let text = std::fs::read_to_string(&path).unwrap();
            lines.extend(text.lines().map(|line| (path.display().to_string(), line.to_owned())));
        }
    }
    lines
}

#[tokio::test]
async fn l20_stalled_thread_expires_by_clock() {
    let server = RedisServer::start();
    let locks = brisk(&server.url(), Duration::from_millis(400)).await;
    let kept = locks.lock("kept").acquire().await.unwrap();
    let fixed = locks.lock("fixed").with_lease(Duration::from_millis(400)).acquire().await.unwrap();
    assert!(renewed(&kept, 1).await);
    let monitor = server.monitor();
    // The fault itself: the runtime's only thread sleeps for two leases.
    std::thread::sleep(Duration::from_millis(800));
    assert!(!kept.is_valid() && !fixed.is_valid(), "before any task or timer has run");
    assert_eq!((lost(&kept).await, lost(&fixed).await), (LostReason::Expired, LostReason::Expired));
    let clock = locks.lock("clock").acquire().await.unwrap();
    assert!(renewed(&clock, 3).await, "the watchdog goes on");
    let asked = Asked::all(&monitor.stop().unwrap());
    assert_eq!(count(&asked, |asked| asked.renews("kept") || asked.renews("fixed")), 0, "{asked:?}");
    assert_eq!(server.cli(&["EXISTS", "kept", "fixed"]), "0");
    for guard in [kept, fixed] {
        assert!(matches!(guard.release().await, Err(Error::Lost { .. })));
    }
}

fn single() -> runtime::Runtime {
    runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

fn acquire_in(runtime: &runtime::Runtime, locks: &LockManager, name: &str) -> Guard {
    runtime.block_on(locks.lock(name).acquire()).unwrap()
}

#[test]
fn l21_guards_outliving_runtime_expire() {
    let server = RedisServer::start();
    for background in [false, true] {
        let (home, other) = (single(), single());
        let locks = home.block_on(brisk(&server.url(), SHORT));
        let names = ["outside", "inside", "released", "kept"];
        let [outside, inside, released, kept] = names.map(|name| acquire_in(&home, &locks, name));
        if background {
            home.shutdown_background();
        } else {
            drop(home);
        }
        drop(outside);
        other.block_on(async {
            drop(inside);
            let error = timeout(PATIENCE, released.release()).await.expect("no hang").unwrap_err();
            assert!(
                matches!(&error, Error::Server { source, .. } if source.kind() == ErrorKind::Closed),
                "{error}"
            );
            let error = locks.lock("new").acquire().await.unwrap_err();
            assert_eq!(error.outcome(), Outcome::NotSent, "{error}");
            // Another process finds all locks free after a lease.
            let elsewhere = manager(&server.url()).await;
            for name in names {
                assert!(elsewhere.lock(name).try_acquire_for(WOKEN).await.unwrap().is_acquired(), "{name}");
            }
            assert!(!kept.is_valid(), "without a watchdog the clock still decides");
        });
        drop((kept, locks, other));
    }
}

#[test]
fn l21_guard_dropped_anywhere_is_released() {
    let server = RedisServer::start();
    let home = runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let other = single();
    let locks = home.block_on(manager(&server.url()));
    let free = |name: &str| other.block_on(gone(&server, name));

    drop(acquire_in(&home, &locks, "outside"));
    assert!(free("outside"));
    let guard = acquire_in(&home, &locks, "thread");
    std::thread::spawn(move || drop(guard)).join().unwrap();
    assert!(free("thread"));
    let guard = acquire_in(&home, &locks, "inside");
    other.block_on(async { drop(guard) });
    assert!(free("inside"));
    let guard = acquire_in(&home, &locks, "blocking");
    home.block_on(async { tokio::task::spawn_blocking(move || drop(guard)).await.unwrap() });
    assert!(free("blocking"));
    let guard = acquire_in(&home, &locks, "awaited");
    other.block_on(guard.release()).unwrap();
    assert_eq!(server.cli(&["DBSIZE"]), "0");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l22_owners_are_unique() {
    let server = RedisServer::start();
    let mut tasks = JoinSet::new();
    for _ in 0..10 {
        let locks = manager(&server.url()).await;
        for _ in 0..2 {
            let locks = locks.clone();
            tasks.spawn(async move { (0..500).map(|_| locks.owner().to_string()).collect::<Vec<_>>() });
        }
    }
    let owners = tasks.join_all().await.concat();
    assert_eq!(owners.iter().collect::<HashSet<_>>().len(), 10_000);
}

#[tokio::test]
async fn l23_only_owner_releases_once() {
    let server = RedisServer::start();
    let (locks, others) = (manager(&server.url()).await, manager(&server.url()).await);
    let guard = locks.lock("mine").acquire().await.unwrap();
    let owner = guard.owner();
    // Freed by another process, so that the holder does not learn of it and sends its release.
    assert!(others.lock("mine").force_release().await.unwrap());
    let next = others.lock("mine").acquire().await.unwrap();
    let state = || server.cli(&["HGETALL", "mine"]);
    let untouched = format!("{}\n1", next.owner());
    assert_eq!(state(), untouched);
    assert!(matches!(guard.release().await, Err(Error::Lost { .. })));
    assert_eq!(state(), untouched);

    let error = others.lock("mine").with_owner(owner).acquire().await.unwrap_err();
    assert!(matches!(error, Error::ForeignOwner { .. }) && error.outcome() == Outcome::NotSent, "{error}");
    let error = locks.lock("mine").with_owner(next.owner()).try_acquire().await.unwrap_err();
    assert!(matches!(error, Error::ForeignOwner { .. }), "{error}");
    assert!(next.is_valid());
    assert_eq!(state(), untouched);
    next.release().await.unwrap();
}

#[tokio::test]
async fn l24_deadline_breaks_opposite_order_deadlock() {
    let server = RedisServer::start();
    for managers in [1, 2] {
        let first = manager(&server.url()).await;
        let second = if managers == 1 { first.clone() } else { manager(&server.url()).await };
        let both = Arc::new(Barrier::new(2));
        let cross = |locks: LockManager, order: [&'static str; 2], wait: u64| {
            let both = Arc::clone(&both);
            tokio::spawn(async move {
                let outer = locks.lock(order[0]).acquire().await.unwrap();
                both.wait().await;
                let inner = locks.lock(order[1]).try_acquire_for(Duration::from_millis(wait)).await.unwrap();
                outer.release().await.unwrap();
                inner.is_acquired()
            })
        };
        let tasks = [cross(first, ["a", "b"], 50), cross(second, ["b", "a"], 4_000)];
        let mut got = Vec::new();
        for task in tasks {
            got.push(timeout(PATIENCE, task).await.expect("a deadlock").unwrap());
        }
        assert_eq!(got, [false, true], "the one with the shorter patience makes room for the other");
        assert!(gone(&server, "a").await && gone(&server, "b").await);
    }
}

#[tokio::test]
async fn c09_dropped_waiter_passes_wake_on() {
    let server = RedisServer::start();
    let (holder, locks) = (manager(&server.url()).await, manager(&server.url()).await);
    let mut served = 0;
    for pendings in 0..12 {
        // A new name, so that only these waiters count as subscribers.
        let name = &format!("baton:{pendings}");
        let guard = holder.lock(name).acquire().await.unwrap();
        let head = tokio::spawn({
            let lock = locks.lock(name);
            async move { cancel_at(pendings, lock.acquire()).await.is_some() }
        });
        let next = tokio::spawn({
            let lock = locks.lock(name);
            async move { lock.try_acquire_for(WOKEN).await.unwrap().is_acquired() }
        });
        assert!(listeners(&server, name, 1).await && at_rest(&locks).await);
        guard.release().await.unwrap();
        assert!(next.await.unwrap(), "the wake-up was lost with the head, dropped at {pendings}");
        served += u32::from(head.await.unwrap());
        assert!(gone(&server, name).await);
    }
    assert!((1..12).contains(&served), "the head was dropped at every point of its way: {served}");
}

#[tokio::test]
async fn c10_release_dropped_anywhere_completes() {
    let server = RedisServer::start();
    let proxy = Proxy::before(&server);
    let locks = brisk(&proxy.url(), SHORT).await;
    let clock = locks.lock("clock").acquire().await.unwrap();
    let monitor = server.monitor();
    let mut rounds = 0;
    // A late reply leaves time to drop the future. A lost reply has to be repeated.
    for fault in [None, Some(Fault::Rst)] {
        for pendings in 0.. {
            assert!(pendings < 20, "a release never completes");
            let guard = locks.lock("dropped").acquire().await.unwrap();
            if let Some(fault) = &fault {
                strike_reply(&proxy, 0, fault.clone());
            }
            let done = cancel_at(pendings, guard.release()).await;
            assert!(gone(&server, "dropped").await, "dropped at {pendings}");
            assert!(at_rest(&locks).await);
            proxy.heal();
            rounds += 1;
            if let Some(done) = done {
                done.unwrap();
                assert!(pendings >= 2);
                break;
            }
        }
    }
    // The request itself is lost, and then its connection.
    let guard = locks.lock("unsent").acquire().await.unwrap();
    proxy.strike(Direction::ToServer, Fault::Blackhole);
    let commands = proxy.counts().commands;
    assert!(cancel_at(1, guard.release()).await.is_none());
    // The release itself, and its repetition in the background.
    assert!(eventually(PATIENCE, async || proxy.counts().commands >= commands + 2).await);
    proxy.heal();
    proxy.strike(Direction::ToClient, Fault::Rst);
    assert!(gone(&server, "unsent").await);

    assert!(renewed(&clock, 2).await);
    let asked = Asked::all(&monitor.stop().unwrap());
    assert_eq!(count(&asked, |asked| asked.acquires("dropped")), rounds);
    assert!(count(&asked, |asked| asked.frees("dropped")) >= rounds, "released, not expired");
    assert_eq!(count(&asked, |asked| asked.frees("unsent")), 1, "released, not expired");
    assert_eq!(renewed_after_release(&asked), []);
}

/// The ways to end a future early.
const ENDS: [&str; 4] = ["timeout", "select", "abort", "panic"];

/// Lets `work` run until `begun` holds, and then ends it.
async fn end(way: &'static str, work: Work, begun: impl AsyncFnOnce() -> bool) {
    let (leave, mut told) = oneshot::channel();
    let task = tokio::spawn(async move {
        let mut work = work;
        match way {
            // A timeout that elapses right after the signal.
            "timeout" => {
                while timeout(Duration::from_millis(1), &mut work).await.is_err() && told.try_recv().is_err()
                {
                }
            }
            "select" => tokio::select! {
                () = work => {}
                _told = told => {}
            },
            "panic" => {
                let falling = async {
                    told.await.unwrap();
                    // Unwinds without the message of a panic.
                    std::panic::resume_unwind(Box::new("through the lock"))
                };
                tokio::join!(work, falling);
            }
            _ => work.await,
        }
    });
    assert!(begun().await && !task.is_finished());
    if way == "abort" {
        task.abort();
    } else {
        leave.send(()).unwrap();
    }
    let ended = timeout(PATIENCE, task).await.expect("it ends when told");
    assert_eq!(ended.as_ref().is_err_and(JoinError::is_panic), way == "panic");
    assert_eq!(ended.as_ref().is_err_and(JoinError::is_cancelled), way == "abort");
}

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

#[tokio::test]
async fn c11_ended_acquire_leaves_nothing() {
    let server = RedisServer::start();
    let proxy = Proxy::before(&server);
    let locks = brisk(&proxy.url(), 2 * SHORT).await;
    let clock = locks.lock("clock").acquire().await.unwrap();
    let monitor = server.monitor();
    for way in ENDS {
        let lock = locks.lock("ended");
        let work = Box::pin(async move { drop(lock.acquire().await) });
        proxy.strike(Direction::ToClient, Fault::Stall);
        // The server has granted the lock, and the reply is on its way.
        end(way, work, async || taken(&server, "ended").await).await;
        proxy.heal();
        assert!(gone(&server, "ended").await && at_rest(&locks).await, "{way}");

        let waited = &format!("waited:{way}");
        hold_as_stranger(&server, waited, LEASE);
        let lock = locks.lock(waited);
        let work = Box::pin(async move { drop(lock.acquire().await) });
        end(way, work, async || listeners(&server, waited, 1).await && at_rest(&locks).await).await;
        assert_eq!(server.cli(&["DEL", waited]), "1");
        assert!(
            locks.lock(waited).try_acquire().await.unwrap().is_acquired(),
            "{way}: nobody stands in line"
        );
        assert!(gone(&server, waited).await && at_rest(&locks).await, "{way}");
    }
    assert!(renewed(&clock, 2).await);
    let asked = Asked::all(&monitor.stop().unwrap());
    assert_eq!(count(&asked, |asked| asked.frees("ended")), ENDS.len(), "released, not expired: {asked:?}");
    assert_eq!(
        count(
            &asked,
            |asked| matches!(asked, Asked::Renew { holds } if holds.iter().any(|(lock, _)| lock != "clock"))
        ),
        0
    );
}

#[tokio::test]
async fn c11_ended_holder_frees_lock() {
    let server = RedisServer::start();
    let locks = brisk(&server.url(), 2 * SHORT).await;
    let clock = locks.lock("clock").acquire().await.unwrap();
    let monitor = server.monitor();
    for way in ENDS {
        for closure in [false, true] {
            let lock = locks.lock("held");
            let work: Work = Box::pin(async move {
                if closure {
                    let guard = lock.acquire().await.unwrap();
                    let _ended = guard.run(std::future::pending::<Result<(), Error>>()).await;
                } else {
                    let _guard = lock.acquire().await.unwrap();
                    std::future::pending::<()>().await;
                }
            });
            end(way, work, async || taken(&server, "held").await && at_rest(&locks).await).await;
            assert!(gone(&server, "held").await, "{way}");
        }
    }
    assert!(renewed(&clock, 2).await);
    let asked = Asked::all(&monitor.stop().unwrap());
    let rounds = 2 * ENDS.len();
    assert_eq!(count(&asked, |asked| asked.acquires("held")), rounds);
    assert_eq!(count(&asked, |asked| asked.frees("held")), rounds, "released, not expired: {asked:?}");
    assert_eq!(renewed_after_release(&asked), []);
}
