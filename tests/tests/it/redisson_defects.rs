//! Redisson's known defects, which this library does not have.
//!
//! Each test covers one row of docs/reliability/faults.md, "Redisson's defects". The test's name begins with the row's id.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tokio::task::{JoinSet, LocalSet, yield_now};
use wheellock::{Attempt, BootInstant, Error, Lock, LostReason, Outcome};
use wheellock_tests::fault::{At, Direction, Fault, Gate, Proxy, Random, Rule};
use wheellock_tests::locks::{
    Asked, PATIENCE, RENEWED, WOKEN, adjusted, at_rest, brisk, gone, listeners, lost, manager, renewed,
    renewed_after_release, taken,
};
use wheellock_tests::{RedisServer, eventually};

/// The default lease. No lease ends by itself while a test runs.
const LEASE: Duration = Duration::from_secs(30);

/// Returns the connection that the proxy accepted last.
fn newest(proxy: &Proxy) -> u64 {
    proxy.counts().accepted - 1
}

/// Ends the connection in place of the `nth` reply from now on. The server has executed the request, and the client gets no reply.
fn cut_reply(proxy: &Proxy, nth: u64, fault: &Fault) {
    proxy.rule(Rule::new(Direction::ToClient, At::Reply(nth), fault.clone()).only_on(newest(proxy)));
}

fn count(asked: &[Asked], what: impl Fn(&Asked) -> bool) -> usize {
    asked.iter().filter(|asked| what(asked)).count()
}

fn ttl(server: &RedisServer, key: &str) -> i64 {
    server.cli(&["PTTL", key]).parse().expect("a number")
}

#[tokio::test]
async fn w01_repeated_acquire_counts_once() {
    let server = RedisServer::start();
    let proxy = Proxy::before(&server);
    let locks = brisk(&proxy.url(), LEASE).await;
    let lock = locks.lock("once");
    for fault in [Fault::Rst, Fault::Fin] {
        let monitor = server.monitor();
        cut_reply(&proxy, 0, &fault);
        let first = lock.acquire().await.unwrap();
        assert_eq!(server.cli(&["HVALS", "once"]), "1");
        cut_reply(&proxy, 0, &fault);
        let second = lock.with_owner(first.owner()).acquire().await.unwrap();
        assert_eq!(server.cli(&["HVALS", "once"]), "2", "and not 3");
        let asked = Asked::all(&monitor.stop().unwrap());
        assert_eq!(count(&asked, |asked| asked.acquires("once")), 4, "each was executed twice: {asked:?}");
        second.release().await.unwrap();
        assert_eq!(server.cli(&["HVALS", "once"]), "1");
        first.release().await.unwrap();
        assert_eq!(server.cli(&["EXISTS", "once"]), "0");
    }
}

#[tokio::test]
async fn w02_abandoned_acquire_leaves_no_orphan() {
    let server = RedisServer::start();
    let proxy = Proxy::before(&server);
    let locks = brisk(&proxy.url(), Duration::from_secs(2)).await;
    let clock = locks.lock("clock").acquire().await.unwrap();
    let monitor = server.monitor();
    for direction in [Direction::ToServer, Direction::ToClient] {
        for way in ["aborted", "timed out", "wait over"] {
            proxy.strike(direction, Fault::Stall);
            let (lock, sent) = (locks.lock("orphan"), locks.client().stats().calls);
            let acquire = tokio::spawn(async move {
                match way {
                    "wait over" => lock.try_acquire_for(Duration::from_millis(30)).await.is_err(),
                    "timed out" => {
                        tokio::time::timeout(Duration::from_millis(30), lock.acquire()).await.is_err()
                    }
                    _ => lock.acquire().await.is_err(),
                }
            });
            assert!(eventually(PATIENCE, async || locks.client().stats().calls > sent).await);
            if way == "aborted" {
                // The lock is granted, and the reply is on its way.
                assert!(direction == Direction::ToServer || taken(&server, "orphan").await);
                acquire.abort();
                assert!(acquire.await.unwrap_err().is_cancelled());
            } else {
                assert!(acquire.await.unwrap(), "nobody has got the lock");
            }
            proxy.heal();
            assert!(at_rest(&locks).await);
            assert!(gone(&server, "orphan").await, "{way}, {direction:?}");
        }
    }
    assert!(renewed(&clock, 2).await, "whatever the watchdog has to renew it has renewed");
    let asked = Asked::all(&monitor.stop().unwrap());
    let acquires = count(&asked, |asked| asked.acquires("orphan"));
    assert_eq!(acquires, 6);
    assert_eq!(count(&asked, |asked| asked.frees("orphan")), acquires, "released, not expired: {asked:?}");
    assert_eq!(count(&asked, |asked| asked.renews("orphan")), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn w03_no_renewal_follows_release() {
    const TASKS: u64 = 64;
    const ROUNDS: u64 = 8;
    let server = RedisServer::start();
    // A busy machine may be late by two thirds of this lease.
    let lease = Duration::from_millis(900);
    let locks = brisk(&server.url(), lease).await;
    let clock = locks.lock("clock").acquire().await.unwrap();
    let monitor = server.monitor();
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let lock = locks.lock(&format!("raced:{task}"));
        tasks.spawn(async move {
            let mut random = Random::new(task);
            for _ in 0..ROUNDS {
                let guard = lock
                    .try_acquire_for(PATIENCE)
                    .await
                    .unwrap()
                    .acquired()
                    .expect("freed by the last round");
                // The release falls around the first renewal, which is due after a third of the lease.
                tokio::time::sleep(Duration::from_micros(290_000 + random.below(25_000))).await;
                if random.below(2) == 0 {
                    drop(guard);
                } else {
                    guard.release().await.unwrap();
                }
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
    assert!(renewed(&clock, 2).await);
    assert_eq!(server.cli(&["KEYS", "*"]), "clock", "freed, not kept alive");
    let asked = Asked::all(&monitor.stop().unwrap());
    assert_eq!(renewed_after_release(&asked), []);
    let renewed = |lock: u64| count(&asked, |asked| asked.renews(&format!("raced:{lock}")));
    let renewals: usize = (0..TASKS).map(renewed).sum();
    assert!(renewals >= 100, "only {renewals} of {} rounds met a renewal", TASKS * ROUNDS);
}

#[tokio::test]
async fn w04_every_loss_is_reported() {
    let server = RedisServer::start();
    let proxy = Proxy::before(&server);
    let locks = brisk(&proxy.url(), Duration::from_secs(2)).await;
    let lose = async |how: &str| {
        let lock = locks.lock("lost");
        let guard = lock.acquire().await.unwrap();
        match how {
            "force" => assert!(lock.force_release().await.unwrap()),
            "DEL" => assert_eq!(server.cli(&["DEL", "lost"]), "1"),
            _ => {
                proxy.strike(Direction::ToServer, Fault::Blackhole);
                proxy.strike(Direction::ToClient, Fault::Blackhole);
            }
        }
        let reason = lost(&guard).await;
        assert!(BootInstant::now() <= guard.valid_until(), "{how}: reported too late");
        assert!(!guard.is_valid(), "{how}");
        reason
    };
    assert_eq!(lose("force").await, LostReason::NotOwner);
    assert_eq!(lose("DEL").await, LostReason::NotOwner);
    assert_eq!(lose("partition").await, LostReason::Expired);
}

#[tokio::test]
async fn w06_lost_locks_stop_no_other_renewal() {
    let server = RedisServer::start();
    let locks = brisk(&server.url(), Duration::from_secs(1)).await;
    let mut guards = acquire_many(&locks, 250).await;
    let deleted = guards.remove(130);
    let replaced = guards.remove(17);
    assert_eq!(server.cli(&["DEL", deleted.name(), replaced.name()]), "2");
    assert_eq!(server.cli(&["SET", replaced.name(), "precious"]), "OK");
    assert_eq!(lost(&deleted).await, LostReason::NotOwner);
    assert_eq!(lost(&replaced).await, LostReason::NotOwner);
    let until = BootInstant::now() + Duration::from_secs(2);
    assert!(eventually(PATIENCE, async || guards.iter().all(|guard| guard.valid_until() > until)).await);
    assert!(guards.iter().all(wheellock::Guard::is_valid));
    assert_eq!(server.cli(&["GET", replaced.name()]), "precious");
}

#[tokio::test]
async fn w06_unanswered_batch_stops_no_renewal() {
    let server = RedisServer::start();
    let proxy = Proxy::before(&server);
    let locks = brisk(&proxy.url(), Duration::from_secs(1)).await;
    let guards = acquire_many(&locks, 250).await;
    // These are more renewals than one batch holds. Therefore the second reply belongs to another batch than the first.
    cut_reply(&proxy, 1, &Fault::Rst);
    assert!(eventually(PATIENCE, async || proxy.counts().faults == 1).await);
    let until = BootInstant::now() + Duration::from_secs(2);
    assert!(eventually(PATIENCE, async || guards.iter().all(|guard| guard.valid_until() > until)).await);
    assert!(guards.iter().all(wheellock::Guard::is_valid));
}

async fn acquire_many(locks: &wheellock::LockManager, count: usize) -> Vec<wheellock::Guard> {
    let mut tasks = JoinSet::new();
    for number in 0..count {
        let lock = locks.lock(&format!("many:{number:03}"));
        tasks.spawn(async move { lock.acquire().await.unwrap() });
    }
    tasks.join_all().await
}

#[tokio::test]
async fn w07_remaining_holds_are_always_renewed() {
    let server = RedisServer::start();
    let locks = brisk(&server.url(), Duration::from_millis(600)).await;
    let local = LocalSet::new();
    let mut tasks = Vec::new();
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let lock = locks.lock(&format!("{order:?}")).with_owner(locks.owner());
        tasks.push(local.spawn_local(async move {
            let mut guards = Vec::new();
            for _ in order {
                guards.push(Some(lock.acquire().await.unwrap()));
            }
            for (place, number) in order.into_iter().enumerate() {
                let guard = guards[number].take().unwrap();
                if place % 2 == 0 {
                    guard.release().await.unwrap();
                } else {
                    drop(guard);
                }
                for left in guards.iter().flatten() {
                    assert!(renewed(left, 2).await, "{order:?}, after {number}");
                }
            }
        }));
    }
    local.await;
    for task in tasks {
        task.await.unwrap();
    }
    assert!(eventually(PATIENCE, async || server.cli(&["DBSIZE"]) == "0").await);
}

#[tokio::test]
async fn w08_lease_belongs_to_one_hold() {
    let server = RedisServer::start();
    let locks = manager(&server.url()).await;
    let lock = locks.lock("leased");
    let short = lock.with_lease(Duration::from_millis(100));
    let full = 29_000..=30_000;

    let guard = lock.acquire().await.unwrap();
    assert!(!short.try_acquire().await.unwrap().is_acquired());
    assert!(full.contains(&ttl(&server, "leased")), "a failed attempt changes nothing");
    let inner = short.with_owner(guard.owner()).acquire().await.unwrap();
    assert!(full.contains(&ttl(&server, "leased")), "an inner hold does not shorten the outer one's lease");
    inner.release().await.unwrap();
    assert!(full.contains(&ttl(&server, "leased")));
    guard.release().await.unwrap();

    let expired = short.acquire().await.unwrap();
    assert!((1..=100).contains(&ttl(&server, "leased")));
    assert_eq!(lost(&expired).await, LostReason::Expired);
    let next = lock.acquire().await.unwrap();
    assert!(full.contains(&ttl(&server, "leased")), "what ran out leaves no trace");
    drop((expired, next));
}

#[tokio::test]
async fn w08_renewal_uses_lease_of_hold() {
    let server = RedisServer::start();
    let locks = brisk(&server.url(), RENEWED).await;
    let plain = locks.lock("plain").acquire().await.unwrap();
    let fixed = locks.lock("fixed").with_lease(Duration::from_secs(20)).acquire().await.unwrap();
    let outer = locks.lock("mixed").with_lease(Duration::from_secs(21)).acquire().await.unwrap();
    let inner = locks.lock("mixed").with_owner(outer.owner()).acquire().await.unwrap();
    let monitor = server.monitor();
    assert!(renewed(&plain, 4).await);
    assert!(ttl(&server, "fixed") < 18_000, "a fixed lease is not renewed");
    assert!(ttl(&server, "mixed") > 3_000, "nor is it shortened by the renewals of an inner hold");
    let seen = monitor.stop().unwrap();
    let leases = |lock: &str| {
        let of_lock = |line: &&wheellock_tests::Observed| {
            line.from_script() && line.name() == "PEXPIRE" && line.args.get(1).is_some_and(|key| key == lock)
        };
        seen.iter().filter(of_lock).map(|line| line.args[2].clone()).collect::<std::collections::HashSet<_>>()
    };
    assert_eq!(leases("plain"), ["3000".to_owned()].into());
    assert_eq!(leases("fixed"), [].into());
    assert!(leases("mixed").is_subset(&["21000".to_owned()].into()));
    drop((fixed, inner, outer));
}

#[tokio::test]
async fn w12_tiny_leases_fail_others_round_up() {
    let server = RedisServer::start();
    let locks = manager(&server.url()).await;
    let lock = locks.lock("tiny");
    let monitor = server.monitor();
    let micros = Duration::from_micros;
    for lease in [Duration::ZERO, Duration::from_nanos(1), micros(999), micros(1_000), micros(2_000)] {
        let error = lock.with_lease(lease).acquire().await.unwrap_err();
        assert!(
            matches!(error, Error::InvalidLease { .. }) && error.outcome() == Outcome::NotSent,
            "{error}"
        );
        let error = wheellock::LockManager::builder(&server.url()).watchdog_lease(lease).connect().await;
        assert!(matches!(error, Err(Error::InvalidLease { .. })));
    }
    for (micros, millis) in [(3_000, "3"), (3_500, "4"), (2_000_001, "2001")] {
        // The lock is granted, or granted so late that it is released again. Only the server's TTL counts here.
        let granted = lock.with_lease(Duration::from_micros(micros)).acquire().await;
        assert!(matches!(granted, Ok(_) | Err(Error::GrantedTooLate { .. })), "{granted:?}");
        drop(granted);
        assert!(gone(&server, "tiny").await, "{millis}");
    }
    let seen = monitor.stop().unwrap();
    let set = seen.iter().filter(|line| line.from_script() && line.name() == "PEXPIRE");
    let mut leases: Vec<_> = set.map(|line| line.args[2].as_str()).collect();
    // On a busy machine a grant of 3 ms comes too late. The caller then asks again, with the same lease.
    leases.dedup();
    assert_eq!(leases, ["3", "4", "2001"]);
}

#[tokio::test]
async fn w14_a_replica_is_asked_nothing() {
    let server = RedisServer::builder().tcp().arg("repl-diskless-sync-delay", "0").start();
    let replica = RedisServer::start();
    let (host, port) = (server.addr().ip().to_string(), server.addr().port().to_string());
    assert_eq!(replica.cli(&["REPLICAOF", &host, &port]), "OK");
    let linked = async || replica.cli(&["INFO", "replication"]).contains("master_link_status:up");
    assert!(eventually(PATIENCE, linked).await);

    let monitor = replica.monitor();
    let lock = manager(&server.url()).await.lock("asked");
    let guard = lock.acquire().await.unwrap();
    assert!(lock.is_locked().await.unwrap() && lock.is_held_by(&guard.owner()).await.unwrap());
    assert_eq!(lock.hold_count(&guard.owner()).await.unwrap(), 1);
    assert!(lock.remaining_lease().await.unwrap().is_some());
    assert!(!lock.try_acquire().await.unwrap().is_acquired());
    guard.release().await.unwrap();
    assert!(!lock.is_locked().await.unwrap(), "at once, however far behind the replica is");
    // WAIT covers only the writes of its own connection.
    let mut cli = server.connect().unwrap();
    let [_set, acknowledged] =
        [&["SET", "last", "1"][..], &["WAIT", "1", "10000"]].map(|words| cli.query(words));
    assert_eq!(acknowledged.unwrap().to_string(), "1");

    let seen: Vec<_> = monitor.stop().unwrap().iter().map(wheellock_tests::Observed::name).collect();
    assert!(["HSET", "HDEL"].iter().all(|write| seen.iter().any(|name| name == write)), "{seen:?}");
    let questions = ["EXISTS", "HEXISTS", "HGET", "PTTL", "EVALSHA", "EVAL", "HELLO", "SUBSCRIBE"];
    assert!(!seen.iter().any(|name| questions.contains(&name.as_str())), "{seen:?}");
}

#[tokio::test]
async fn w15_release_during_disconnect_wakes_waiter() {
    let server = RedisServer::start();
    let proxy = Proxy::before(&server);
    let (holder, locks) = (manager(&server.url()).await, brisk(&proxy.url(), LEASE).await);
    for way in ["refused", "killed", "killed before the release"] {
        let guard = holder.lock(way).acquire().await.unwrap();
        let lock = locks.lock(way);
        let waiter = tokio::spawn(async move { lock.acquire().await });
        assert!(listeners(&server, way, 1).await && at_rest(&locks).await);
        match way {
            "refused" => {
                proxy.gate(Gate::Refuse);
                proxy.strike(Direction::ToClient, Fault::Rst);
                assert!(eventually(PATIENCE, async || !locks.client().is_ready()).await);
                guard.release().await.unwrap();
                proxy.gate(Gate::Open);
            }
            "killed" => {
                let (released, killed) = tokio::join!(guard.release(), async {
                    server.cli(&["CLIENT", "KILL", "TYPE", "pubsub"])
                });
                assert!(released.is_ok() && killed == "1", "{released:?}, {killed}");
            }
            _ => {
                assert_eq!(server.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]), "1");
                guard.release().await.unwrap();
            }
        }
        let taken = tokio::time::timeout(WOKEN, waiter).await;
        let taken = taken.unwrap_or_else(|_| panic!("{way}: the waiter slept on")).unwrap().unwrap();
        taken.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn w16_release_racing_attempt_wakes_waiter() {
    const ROUNDS: u32 = 600;
    let server = RedisServer::start();
    let inside = Arc::new(AtomicBool::new(false));
    let mut tasks = JoinSet::new();
    for _ in 0..2 {
        // The server must not tell of the changed key, because only the messages are judged.
        let (lock, inside) = (manager(&server.untracked_url()).await.lock("handed"), Arc::clone(&inside));
        tasks.spawn(async move {
            for round in 0..ROUNDS {
                let guard = lock.try_acquire_for(WOKEN).await.unwrap();
                let guard = guard.acquired().unwrap_or_else(|| panic!("round {round}: a release was missed"));
                assert!(!inside.swap(true, Ordering::SeqCst), "two inside");
                yield_now().await;
                inside.store(false, Ordering::SeqCst);
                // After this drop, the next attempt of this task races with its own release. The other task's attempt races with that
                // release, too.
                if round % 2 == 0 {
                    drop(guard);
                } else {
                    guard.release().await.unwrap();
                }
            }
        });
    }
    let all = async {
        while let Some(ended) = tasks.join_next().await {
            ended.unwrap();
        }
    };
    tokio::time::timeout(PATIENCE, all).await.expect("far below one lease");
}

#[tokio::test]
async fn w17_leaving_head_passes_on_wakeup() {
    let server = RedisServer::start();
    let (holder, locks) = (manager(&server.url()).await, manager(&server.url()).await);
    for round in 0..24 {
        // Each round has its own name, so only these waiters are counted as subscribers.
        let name = &format!("baton:{round}");
        let guard = holder.lock(name).acquire().await.unwrap();
        let mut waiters: Vec<_> = (0..4)
            .map(|_| {
                let lock = locks.lock(name);
                tokio::spawn(async move { lock.try_acquire_for(WOKEN).await.unwrap().is_acquired() })
            })
            .collect();
        assert!(listeners(&server, name, 1).await && at_rest(&locks).await);
        let head = waiters.remove(0);
        // From round to round the head leaves a little later after the release. It is asleep, woken, waiting for a reply, or holds the
        // lock.
        let release = tokio::spawn(guard.release());
        for _ in 0..round {
            yield_now().await;
        }
        head.abort();
        let _gone_or_served = head.await;
        for (place, waiter) in waiters.into_iter().enumerate() {
            assert!(waiter.await.unwrap(), "round {round}: waiter {place} was not woken");
        }
        release.await.unwrap().unwrap();
        assert!(gone(&server, name).await);
    }
}

#[tokio::test]
async fn w17_timed_out_waiter_passes_on_wakeup() {
    let server = RedisServer::start();
    let (holder, locks) = (manager(&server.url()).await, manager(&server.url()).await);
    for round in 0..20_u64 {
        let guard = holder.lock("baton").acquire().await.unwrap();
        let first = tokio::spawn({
            let lock = locks.lock("baton");
            async move { lock.try_acquire_for(Duration::from_millis(40)).await.unwrap().is_acquired() }
        });
        let second = tokio::spawn({
            let lock = locks.lock("baton");
            async move { lock.try_acquire_for(WOKEN).await.unwrap().is_acquired() }
        });
        // The release falls around the end of the first waiter's wait.
        tokio::time::sleep(Duration::from_micros(39_000 + 100 * round)).await;
        guard.release().await.unwrap();
        assert!(second.await.unwrap(), "round {round}");
        first.await.unwrap();
        assert!(gone(&server, "baton").await);
    }
}

#[tokio::test]
async fn w19_waiters_share_requests() {
    let server = RedisServer::start();
    let (holder, locks) = (manager(&server.url()).await, manager(&server.url()).await);
    let guard = holder.lock("herd").acquire().await.unwrap();
    let joining = server.monitor();
    let (entered, leave) = (Arc::new(AtomicU32::new(0)), Arc::new(tokio::sync::Notify::new()));
    let mut waiters = JoinSet::new();
    for _ in 0..100 {
        let (lock, entered, leave) = (locks.lock("herd"), Arc::clone(&entered), Arc::clone(&leave));
        waiters.spawn(async move {
            let guard = lock.acquire().await.unwrap();
            if entered.fetch_add(1, Ordering::SeqCst) == 0 {
                leave.notified().await;
            }
            guard.release().await.unwrap();
        });
    }
    assert!(listeners(&server, "herd", 1).await && at_rest(&locks).await);
    let seen = joining.stop().unwrap();
    assert_eq!(seen.iter().filter(|line| line.name() == "SUBSCRIBE").count(), 1);
    let asked = Asked::all(&seen);
    // All waiters came at once, so each of them sent a request. A waiter that comes while others wait does not send a request.
    assert!(count(&asked, |asked| asked.acquires("herd")) <= 101, "{asked:?}");

    let release = server.monitor();
    let late = locks.lock("herd");
    waiters.spawn(async move { drop(late.acquire().await.unwrap()) });
    guard.release().await.unwrap();
    assert!(
        eventually(PATIENCE, async || entered.load(Ordering::SeqCst) == 1).await && at_rest(&locks).await
    );
    let asked = Asked::all(&release.stop().unwrap());
    assert!(count(&asked, |asked| asked.acquires("herd")) <= 2, "{asked:?}");
    leave.notify_one();
    while let Some(ended) = waiters.join_next().await {
        ended.unwrap();
    }
}

#[tokio::test]
async fn w19_simultaneous_waiters_share_requests() {
    let server = RedisServer::start();
    let (holder, locks) = (manager(&server.url()).await, manager(&server.url()).await);
    let guard = holder.lock("crowd").acquire().await.unwrap();
    let monitor = server.monitor();
    let waiters: Vec<_> = (0..1000)
        .map(|_| {
            let lock = locks.lock("crowd");
            tokio::spawn(async move { lock.acquire().await.unwrap().release().await })
        })
        .collect();
    assert!(eventually(PATIENCE, async || locks.metrics().waiting == 1000).await);
    assert!(listeners(&server, "crowd", 1).await && at_rest(&locks).await);
    let asked = Asked::all(&monitor.stop().unwrap());
    assert_eq!(
        asked.iter().filter(|asked| asked.acquires("crowd")).count(),
        2,
        "before and after subscribing: {asked:?}"
    );
    guard.release().await.unwrap();
    for waiter in waiters {
        waiter.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn w20_every_contended_name_is_notified() {
    const NAMES: usize = 300;
    let server = RedisServer::start();
    let (holder, locks) = (manager(&server.url()).await, manager(&server.url()).await);
    let guards = acquire_many(&holder, NAMES).await;
    let mut waiters = JoinSet::new();
    for number in 0..NAMES {
        let lock = locks.lock(&format!("many:{number:03}"));
        waiters.spawn(async move { lock.acquire().await.unwrap() });
    }
    let all = async || server.cli(&["PUBSUB", "CHANNELS"]).lines().count() == NAMES;
    assert!(eventually(PATIENCE, all).await && at_rest(&locks).await);
    drop(guards);
    let taken = tokio::time::timeout(WOKEN, waiters.join_all()).await.expect("somebody was not woken");
    assert_eq!(taken.len(), NAMES);
    assert_eq!(locks.client().stats().connections, 1, "on one connection");
}

#[tokio::test]
async fn w20_burst_of_contention_subscribes_once() {
    let server = RedisServer::start();
    let (holder, locks) = (manager(&server.url()).await, manager(&server.url()).await);
    let (monitor, start) = (server.monitor(), Instant::now());
    for _ in 0..50 {
        let guard = holder.lock("burst").acquire().await.unwrap();
        let (lock, calls) = (locks.lock("burst"), locks.client().stats().calls);
        let waiter = tokio::spawn(async move { drop(lock.acquire().await.unwrap()) });
        assert!(eventually(PATIENCE, async || locks.client().stats().calls > calls).await);
        assert!(listeners(&server, "burst", 1).await && at_rest(&locks).await);
        guard.release().await.unwrap();
        waiter.await.unwrap();
        // Otherwise the holder has to wait in the next round, and subscribes, too.
        assert!(gone(&server, "burst").await);
    }
    // A subscription lingers for 2 s.
    let bursts = 1 + start.elapsed().as_secs() / 2;
    let seen = monitor.stop().unwrap();
    let orders = |name: &str| seen.iter().filter(|line| line.name() == name).count() as u64;
    assert!((1..=bursts).contains(&orders("SUBSCRIBE")), "{} in {bursts}", orders("SUBSCRIBE"));
    assert!(orders("UNSUBSCRIBE") < bursts);
}

#[tokio::test]
async fn w21_ended_wait_leaves_no_subscription() {
    let server = RedisServer::start();
    let proxy = Proxy::before(&server);
    let (holder, locks) = (manager(&server.url()).await, brisk(&proxy.url(), LEASE).await);
    let wait = async |name| {
        let (guard, lock) = (holder.lock(name).acquire().await.unwrap(), locks.lock(name));
        assert!(!lock.try_acquire_for(Duration::from_millis(30)).await.unwrap().is_acquired());
        // The handle is kept as well, so that its end does not end the subscription.
        (guard, lock)
    };
    let _held = wait("busy").await;
    assert!(listeners(&server, "busy", 1).await, "it lingers");
    // The request gets its reply, and then the connection stalls. The SUBSCRIBE is still on its way when the wait ends.
    proxy.rule(Rule::new(Direction::ToServer, At::Command("SUBSCRIBE", 0), Fault::Stall));
    let _held = wait("stalled").await;
    assert!(listeners(&server, "stalled", 0).await);
    proxy.heal();
    assert!(listeners(&server, "stalled", 1).await, "it was sent after all");
    assert!(eventually(PATIENCE, async || server.cli(&["PUBSUB", "CHANNELS"]).is_empty()).await);
}

/// Delay with which a bounded wait may return. Two cores run several tests side by side, so a task may have to wait for its turn. The delay
/// is far below any timeout of the connection. A wait without its own deadline would take such a timeout.
const SLACK: Duration = Duration::from_millis(250);
/// Time that a connected server gets for its first reply, however short the wait is.
const FIRST_ANSWER: Duration = Duration::from_millis(300);

#[tokio::test]
async fn w23_bounded_wait_ends_despite_faults() {
    for held in [false, true] {
        for way in ["paused", "stopped", "partitioned", "dead", "slow"] {
            let mut server = RedisServer::start();
            let proxy = Proxy::before(&server);
            let locks = adjusted(&proxy.url(), LEASE, |config| config.response_timeout = PATIENCE).await;
            let direct = manager(&server.url()).await;
            let guard = if held { Some(direct.lock("bounded").acquire().await.unwrap()) } else { None };
            match way {
                "paused" => assert_eq!(server.cli(&["CLIENT", "PAUSE", "3000", "ALL"]), "OK"),
                "stopped" => server.pause(),
                "partitioned" => {
                    proxy.strike(Direction::ToServer, Fault::Blackhole);
                    proxy.strike(Direction::ToClient, Fault::Blackhole);
                }
                "dead" => server.kill(),
                _ => proxy.strike(
                    Direction::ToClient,
                    Fault::Delay(Duration::from_secs(1), Duration::from_millis(1)),
                ),
            }
            for wait in [0, 1, 100].map(Duration::from_millis) {
                let outcome = bounded(&locks.lock("bounded"), wait).await;
                assert!(
                    !matches!(outcome, Ok(Attempt::Acquired(_))),
                    "{way}: nobody can have heard of a grant"
                );
            }
            if way == "stopped" {
                server.resume();
            }
            drop(guard);
        }
    }
}

#[tokio::test]
async fn w23_bounded_wait_behind_own_attempt_ends() {
    let server = RedisServer::start();
    let proxy = Proxy::before(&server);
    let locks = adjusted(&proxy.url(), LEASE, |config| config.response_timeout = PATIENCE).await;
    let lock = locks.lock("gated").with_owner(locks.owner());
    proxy.strike(Direction::ToClient, Fault::Stall);
    let first = tokio::spawn({
        let lock = lock.clone();
        async move { lock.acquire().await }
    });
    assert!(taken(&server, "gated").await);
    for wait in [0, 1, 100].map(Duration::from_millis) {
        let error = bounded(&lock, wait).await.expect_err("a silent server is not a busy lock");
        assert_eq!(error.outcome(), Outcome::NotSent, "{error}");
    }
    proxy.heal();
    let first = first.await.unwrap().unwrap();
    let second = bounded(&lock, SLACK).await.unwrap().acquired().expect("nothing is in the way any more");
    assert_eq!(server.cli(&["HVALS", "gated"]), "2");
    for guard in [first, second] {
        guard.release().await.unwrap();
    }
    assert_eq!(server.cli(&["EXISTS", "gated"]), "0");
}

async fn bounded(lock: &Lock, wait: Duration) -> Result<Attempt<wheellock::Guard>, Error> {
    let start = Instant::now();
    let outcome = tokio::time::timeout(PATIENCE, lock.try_acquire_for(wait)).await.expect("a hang");
    assert!(
        start.elapsed() <= wait.max(FIRST_ANSWER) + SLACK,
        "{wait:?} took {:?}: {outcome:?}",
        start.elapsed()
    );
    outcome
}

#[tokio::test]
async fn w25_uncontended_pair_runs_two_scripts() {
    let server = RedisServer::start();
    let lock = manager(&server.url()).await.lock("quiet");
    for dropped in [false, true] {
        let monitor = server.monitor();
        let guard = lock.acquire().await.unwrap();
        let owner = guard.owner().to_string();
        if dropped {
            drop(guard);
            // This request uses the same connection, so its reply comes after the release.
            assert!(!lock.is_locked().await.unwrap());
        } else {
            guard.release().await.unwrap();
        }
        let seen = monitor.stop().unwrap();
        let words = |line: &wheellock_tests::Observed| {
            let args = line.args.iter().map(|arg| if arg.len() == 40 { "<hash>" } else { arg });
            args.collect::<Vec<_>>().join(" ")
        };
        let channel = "redisson_lock__channel:{quiet}";
        let mut expected = vec![
            format!("EVALSHA <hash> 1 quiet 30000 {owner} 1"),
            "exists quiet".to_owned(),
            format!("hset quiet {owner} 1"),
            "pexpire quiet 30000".to_owned(),
            format!("EVALSHA <hash> 1 quiet {channel} {owner} 0 PUBLISH"),
            "hlen quiet".to_owned(),
            format!("hdel quiet {owner}"),
            format!("PUBLISH {channel} 0"),
        ];
        expected.extend(dropped.then(|| "EXISTS quiet".to_owned()));
        assert_eq!(seen.iter().map(words).collect::<Vec<_>>(), expected);
    }
}

#[tokio::test]
async fn w25_unanswered_release_is_repeated_successfully() {
    let server = RedisServer::start();
    let proxy = Proxy::before(&server);
    let locks = brisk(&proxy.url(), LEASE).await;
    for fault in [Fault::Rst, Fault::Fin] {
        let guard = locks.lock("answer").acquire().await.unwrap();
        let monitor = server.monitor();
        cut_reply(&proxy, 0, &fault);
        guard.release().await.expect("it was ours until it was released");
        assert_eq!(server.cli(&["EXISTS", "answer"]), "0");
        let asked = Asked::all(&monitor.stop().unwrap());
        assert_eq!(count(&asked, |asked| asked.frees("answer")), 2, "{asked:?}");
    }
}

#[tokio::test]
async fn w27_only_presented_owner_reenters() {
    let server = RedisServer::start();
    let locks = manager(&server.url()).await;
    let lock = locks.lock("mine");
    let (inside, entered) = (AtomicU32::new(0), AtomicU32::new(0));
    let enter = async || {
        let guard = lock.acquire().await.unwrap();
        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two inside");
        yield_now().await;
        inside.fetch_sub(1, Ordering::SeqCst);
        entered.fetch_add(1, Ordering::SeqCst);
        guard.release().await
    };
    // Branches of one task.
    tokio::try_join!(enter(), enter(), enter()).unwrap();
    let guard = lock.acquire().await.unwrap();
    assert!(!lock.try_acquire().await.unwrap().is_acquired(), "not even the task that holds it");
    let again = lock.with_owner(guard.owner()).try_acquire().await.unwrap();
    assert!(again.is_acquired());
    drop((guard, again));
    assert_eq!(entered.load(Ordering::SeqCst), 3);

    // Tasks of one thread.
    let inside = Rc::new(AtomicU32::new(0));
    let local = LocalSet::new();
    let mut tasks = Vec::new();
    for _ in 0..8 {
        let (lock, inside) = (lock.clone(), Rc::clone(&inside));
        tasks.push(local.spawn_local(async move {
            for _ in 0..10 {
                let guard = lock.acquire().await.unwrap();
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two inside");
                yield_now().await;
                inside.fetch_sub(1, Ordering::SeqCst);
                guard.release().await.unwrap();
            }
        }));
    }
    local.await;
    for task in tasks {
        task.await.unwrap();
    }
    assert!(gone(&server, "mine").await);
}
