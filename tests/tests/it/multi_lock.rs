//! Several locks as one, on real servers. A caller holds all locks or none, no circle of waiters lasts, and no key is left behind.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::Barrier;
use tokio::task::{JoinHandle, JoinSet, spawn_blocking};
use wheellock::client::Outcome;
use wheellock::{Attempt, Error, Lock, LockManager, LostReason, MultiGuard, MultiLock, multi_lock};
use wheellock_tests::fault::{Direction, Fault, Gate, Proxy, cancel_at};
use wheellock_tests::locks::{PATIENCE, WOKEN, adjusted, at_rest, brisk, gone, listeners, manager, taken};
use wheellock_tests::{RedisServer, eventually};

const LEASE: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_secs(1);

fn free(server: &RedisServer, key: &str) -> bool {
    server.cli(&["EXISTS", key]) == "0"
}

fn set(members: &[&Lock]) -> MultiLock {
    multi_lock(members.iter().map(|lock| (*lock).clone())).unwrap()
}

fn waits(set: &MultiLock) -> JoinHandle<Result<MultiGuard, Error>> {
    let set = set.clone();
    tokio::spawn(async move { set.acquire().await })
}

#[tokio::test]
async fn all_or_none_on_several_servers() {
    let (here, there) = (RedisServer::start(), RedisServer::start());
    let (h, t) = (manager(&here.url()).await, manager(&there.url()).await);
    let set = set(&[&h.lock("b"), &t.lock("a"), &h.lock("a")]);
    let guard = set.try_acquire().await.unwrap().acquired().expect("all are free");
    assert!(guard.is_valid());
    let members: Vec<_> = guard.members().iter().map(wheellock::Guard::name).collect();
    assert_eq!(members, ["b", "a", "a"], "as they were given");
    assert_eq!(here.cli(&["HGET", "b", &guard.members()[0].owner().to_string()]), "1", "ordinary locks");
    assert!(guard.members().iter().all(|member| guard.valid_until() <= member.valid_until()));
    guard.release().await.unwrap();
    assert!(free(&here, "a") && free(&here, "b") && free(&there, "a"));

    let other = h.lock("b").acquire().await.unwrap();
    assert!(!set.try_acquire().await.unwrap().is_acquired());
    assert!(gone(&here, "a").await && gone(&there, "a").await, "what was granted is given back");
    let began = Instant::now();
    let wait = Duration::from_millis(80);
    assert!(!set.try_acquire_for(wait).await.unwrap().is_acquired());
    assert!(began.elapsed() >= wait);
    assert!(gone(&here, "a").await && gone(&there, "a").await);
    assert!(other.is_valid());
    drop(other);
    let sum = set.run(async |guard| Ok::<_, Error>(guard.members().len() + 1)).await.unwrap();
    assert_eq!(sum, 4);
    drop(set.acquire().await.unwrap());
    assert!(gone(&here, "a").await && gone(&here, "b").await && gone(&there, "a").await, "dropped");
}

#[tokio::test]
async fn set_reports_locked_and_holder() {
    let mut server = RedisServer::start();
    let locks = brisk(&server.url(), LEASE).await;
    let owner = locks.owner();
    let set = set(&[&locks.lock("a").with_owner(owner.clone()), &locks.lock("b").with_owner(owner.clone())]);
    assert!(!set.is_locked().await.unwrap() && !set.is_held_by(&owner).await.unwrap());
    let one = set.members()[1].acquire().await.unwrap();
    assert!(set.is_locked().await.unwrap() && !set.is_held_by(&owner).await.unwrap(), "one of two");
    let guard = set.acquire().await.unwrap();
    assert!(set.is_locked().await.unwrap() && set.is_held_by(&owner).await.unwrap());
    assert!(!set.is_held_by(&locks.owner()).await.unwrap(), "another one's");
    drop(one);
    guard.release().await.unwrap();
    assert!(!set.is_locked().await.unwrap());
    server.kill();
    let error = set.is_locked().await.unwrap_err();
    assert!(matches!(error, Error::Server { .. }), "{error}");
}

#[tokio::test]
async fn one_server_members_share_round_trip() {
    let server = RedisServer::start();
    let locks = manager(&server.url()).await;
    let names: Vec<_> = (0..20).map(|number| format!("n{number}")).collect();
    let set = multi_lock(names.iter().map(|name| locks.lock(name))).unwrap();
    let proxy = Proxy::before(&server);
    // Replies of 50 ms each would take a second if the requests came one after the other.
    let far = brisk(&proxy.url(), LEASE).await;
    let far = multi_lock(names.iter().map(|name| far.lock(name))).unwrap();
    drop(set.acquire().await.unwrap());
    assert!(eventually(PATIENCE, async || server.cli(&["DBSIZE"]) == "0").await);
    proxy.strike(Direction::ToClient, Fault::Delay(Duration::from_millis(50), Duration::from_nanos(1)));
    let began = Instant::now();
    let guard = far.acquire().await.unwrap();
    assert!(began.elapsed() < Duration::from_millis(900), "{:?}", began.elapsed());
    guard.release().await.unwrap();
}

/// D1: of ten contenders for a free set of locks, one contender wins `try_acquire` every time. This holds on one server and on several, and
/// in one process and in several.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_contender_wins_free_set() {
    let rounds =
        std::env::var("WHEELLOCK_SET_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(100);
    let (here, there) = (RedisServer::start(), RedisServer::start());
    let mut processes = Vec::new();
    for _ in 0..10 {
        processes.push((manager(&here.url()).await, manager(&there.url()).await));
    }
    for several_servers in [false, true] {
        for several_processes in [false, true] {
            for round in 0..rounds {
                let barrier = Arc::new(Barrier::new(10));
                let mut contenders = JoinSet::new();
                for contender in 0..10 {
                    let (h, t) = &processes[if several_processes { contender } else { 0 }];
                    let mut locks = vec![h.lock("a"), h.lock("c")];
                    locks.push(if several_servers { t.lock("b") } else { h.lock("b") });
                    // The contenders name the locks in different orders.
                    locks.rotate_left(contender % 3);
                    let (set, barrier) = (multi_lock(locks).unwrap(), Arc::clone(&barrier));
                    contenders.spawn(async move {
                        barrier.wait().await;
                        set.try_acquire().await.unwrap()
                    });
                }
                let guards = contenders.join_all().await;
                let winners: Vec<_> = guards.into_iter().filter_map(Attempt::acquired).collect();
                assert_eq!(winners.len(), 1, "{several_servers} {several_processes}, round {round}");
                for guard in winners {
                    guard.release().await.unwrap();
                }
                let empty = async || [&here, &there].iter().all(|server| server.cli(&["DBSIZE"]) == "0");
                assert!(eventually(PATIENCE, empty).await, "nothing is left");
            }
        }
    }
}

/// D1: this also holds for threads that send their requests at the same moment.
#[test]
fn one_thread_wins_free_set() {
    let server = RedisServer::start();
    let locks = wheellock::blocking::LockManager::connect(&server.url()).unwrap();
    for round in 0..30 {
        let barrier = std::sync::Barrier::new(10);
        let contend = || {
            let set = wheellock::blocking::multi_lock(["a", "b", "c"].map(|name| locks.lock(name))).unwrap();
            barrier.wait();
            set.try_acquire().unwrap()
        };
        let guards: Vec<_> = std::thread::scope(|threads| {
            let contenders: Vec<_> = (0..10).map(|_| threads.spawn(contend)).collect();
            contenders.into_iter().filter_map(|contender| contender.join().unwrap().acquired()).collect()
        });
        assert_eq!(guards.len(), 1, "round {round}");
        for guard in guards {
            guard.release().unwrap();
        }
    }
}

#[tokio::test]
async fn busy_member_leaves_others_free() {
    let server = RedisServer::start();
    let (locks, others) = (manager(&server.url()).await, manager(&server.url()).await);
    let busy = others.lock("b").acquire().await.unwrap();
    let waiting = waits(&set(&[&locks.lock("a"), &locks.lock("b"), &locks.lock("c")]));
    assert!(listeners(&server, "b", 1).await);
    // The waiter released these locks before it subscribed, on the same connection.
    assert!(free(&server, "a") && free(&server, "c"));
    let passing = others.lock("a").try_acquire().await.unwrap().acquired().expect("nobody keeps it");
    passing.release().await.unwrap();
    let monitor = server.monitor();
    busy.release().await.unwrap();
    let guard = tokio::time::timeout(WOKEN, waiting).await.expect("woken").unwrap().unwrap();
    let seen = monitor.stop().unwrap();
    let asked = seen.iter().filter(|line| !line.from_script() && line.name() == "EVALSHA").count();
    assert_eq!(asked, 3, "one release, the member that was waited for, and the two others at once");
    assert!(guard.is_valid());
}

#[tokio::test]
async fn busy_remote_member_leaves_others_free() {
    let (here, there) = (RedisServer::start(), RedisServer::start());
    let (h, t) = (manager(&here.url()).await, manager(&there.url()).await);
    let busy = t.lock("b").acquire().await.unwrap();
    let waiting = waits(&set(&[&h.lock("a"), &t.lock("b"), &h.lock("c")]));
    assert!(listeners(&there, "b", 1).await);
    // These requests use the same connection, so their replies come after the releases.
    assert!(!h.lock("a").is_locked().await.unwrap() && !h.lock("c").is_locked().await.unwrap());
    busy.release().await.unwrap();
    let guard = tokio::time::timeout(WOKEN, waiting).await.expect("woken").unwrap().unwrap();
    assert!(guard.is_valid());
}

/// A waiting set keeps only the members that come before the busy member.
#[tokio::test]
async fn waiting_set_keeps_only_earlier_members() {
    let server = RedisServer::start();
    let (locks, others) = (manager(&server.url()).await, manager(&server.url()).await);
    let (a, b) = (others.lock("a").acquire().await.unwrap(), others.lock("b").acquire().await.unwrap());
    // The order of the arguments differs from the order of the members.
    let waiting = waits(&set(&[&locks.lock("c"), &locks.lock("b"), &locks.lock("a")]));
    assert!(listeners(&server, "a", 1).await, "the first in order");
    a.release().await.unwrap();
    assert!(listeners(&server, "b", 1).await);
    assert!(!free(&server, "a"), "kept");
    assert!(gone(&server, "c").await, "given back");
    b.release().await.unwrap();
    let guard = tokio::time::timeout(WOKEN, waiting).await.expect("woken").unwrap().unwrap();
    assert!(guard.is_valid());
}

/// D3: a circle with a process that takes the members in another order ends when our set lets go. That takes two seconds at most, however
/// long the other process holds on. Then both continue. A `MultiLock` of Redisson may take its members in such an order.
#[tokio::test]
async fn unordered_circle_is_broken() {
    const LETS_GO_WITHIN: Duration = Duration::from_secs(2);
    let server = RedisServer::start();
    let (locks, others) = (manager(&server.url()).await, manager(&server.url()).await);
    let mut longest = Duration::ZERO;
    for round in 0..3 {
        let [a, b] = ["a", "b"].map(|name| format!("{name}{round}"));
        let first = others.lock(&a).acquire().await.unwrap();
        let theirs = others.lock(&b).acquire().await.unwrap();
        let waiting = waits(&set(&[&locks.lock(&a), &locks.lock(&b)]));
        assert!(listeners(&server, &a, 1).await);
        first.release().await.unwrap();
        assert!(listeners(&server, &b, 1).await, "waits for b with a in hand");
        assert!(taken(&server, &a).await);
        // The circle is closed here. They hold b, wait for a, and would wait for ever.
        let began = Instant::now();
        let second =
            tokio::time::timeout(PATIENCE, others.lock(&a).acquire()).await.expect("no circle").unwrap();
        longest = longest.max(began.elapsed());
        assert!(!waiting.is_finished());
        second.release().await.unwrap();
        theirs.release().await.unwrap();
        let guard = tokio::time::timeout(WOKEN, waiting).await.expect("woken").unwrap().unwrap();
        assert!(guard.is_valid());
    }
    println!("the longest circle: {longest:?}");
    // A wake-up may take this long on a busy machine. The sum is far less than a lease.
    assert!(longest < LETS_GO_WITHIN + WOKEN / 2, "{longest:?}");
}

#[tokio::test]
async fn fixed_lease_starts_when_complete() {
    let server = RedisServer::start();
    let (locks, others) = (manager(&server.url()).await, manager(&server.url()).await);
    let (a, b) = (others.lock("a").acquire().await.unwrap(), others.lock("b").acquire().await.unwrap());
    let lease = Duration::from_secs(3);
    let waiting = waits(&set(&[&locks.lock("a"), &locks.lock("b")]).with_lease(lease));
    assert!(listeners(&server, "a", 1).await);
    a.release().await.unwrap();
    assert!(listeners(&server, "b", 1).await);
    let left = || server.cli(&["PTTL", "a"]).parse::<u64>().unwrap_or(u64::MAX);
    assert!(eventually(PATIENCE, async || left() < 2_600).await, "held while it waits");
    let released = wheellock::BootInstant::now();
    b.release().await.unwrap();
    let guard = waiting.await.unwrap().unwrap();
    assert!(guard.valid_until() > released + lease.mul_f32(0.98), "the whole lease is left");
    let before = guard.valid_until();
    guard.renew().await.unwrap();
    assert!(guard.valid_until() > before);
    assert_eq!(guard.lost().await.reason, LostReason::Expired);
    assert!(wheellock::BootInstant::now() <= guard.valid_until() && !guard.is_valid());
    assert!(gone(&server, "a").await && gone(&server, "b").await);
    assert!(matches!(guard.release().await, Err(Error::Lost { .. })));
}

#[tokio::test]
async fn lost_member_is_reported_others_released() {
    let (here, there) = (RedisServer::start(), RedisServer::start());
    let proxy = Proxy::before(&there);
    let h = brisk(&here.url(), SHORT).await;
    let t = adjusted(&proxy.url(), SHORT, |config| config.response_timeout = SHORT / 2).await;
    let set = set(&[&t.lock("x"), &h.lock("y"), &h.lock("z")]);

    let guard = set.acquire().await.unwrap();
    let watch = guard.run(std::future::pending::<Result<(), Error>>());
    assert!(h.lock("z").force_release().await.unwrap());
    let Err(Error::Lost { lock, reason, .. }) = watch.await else { panic!("lost") };
    assert_eq!((lock.as_str(), reason), ("z", LostReason::NotOwner));
    let lost = guard.lost().await;
    assert_eq!((lost.place, lost.lock.as_str()), (2, "z"));
    assert!(!guard.is_valid() && guard.members()[0].is_valid());
    assert!(matches!(guard.release().await, Err(Error::Lost { .. })));
    assert!(free(&here, "y") && free(&there, "x"));

    let guard = set.acquire().await.unwrap();
    proxy.gate(Gate::Refuse);
    proxy.strike(Direction::ToServer, Fault::Rst);
    let error = guard.release().await.unwrap_err();
    assert!(matches!(error, Error::Server { .. }), "{error}");
    assert!(free(&here, "y") && free(&here, "z"), "the others were released all the same");
    proxy.gate(Gate::Open);
    assert!(gone(&there, "x").await, "and this one as soon as it could be");
}

#[tokio::test]
async fn dead_server_is_not_busy_lock() {
    let (here, there) = (RedisServer::start(), RedisServer::start());
    let h = brisk(&here.url(), LEASE).await;
    let t = adjusted(&there.url(), LEASE, |config| config.response_timeout = SHORT).await;
    let set = set(&[&h.lock("a"), &t.lock("b")]);
    there.pause();
    let outcome = set.try_acquire_for(Duration::from_millis(100)).await;
    assert!(matches!(outcome, Err(Error::Server { .. })), "{outcome:?}");
    assert!(set.try_acquire().await.is_err() && set.acquire().await.is_err());
    assert!(gone(&here, "a").await, "nothing is left where it was granted");
    there.resume();
    assert!(gone(&there, "b").await && at_rest(&t).await);
    // A held member is reported as held, even if another server is dead.
    let busy = h.lock("a").acquire().await.unwrap();
    there.pause();
    assert!(matches!(set.try_acquire().await, Ok(Attempt::Held { .. })));
    there.resume();
    drop(busy);
    assert!(set.acquire().await.unwrap().is_valid());
}

#[tokio::test]
async fn one_lock_is_named_once() {
    let server = RedisServer::start();
    let proxy = Proxy::before(&server);
    let (locks, same) = (manager(&server.url()).await, manager(&proxy.url()).await);
    let named_twice = [
        multi_lock([locks.lock("a"), locks.lock("b"), locks.lock("a")]),
        multi_lock([locks.lock("a"), manager(&server.url()).await.lock("a")]),
        // The address differs. The server's own identity shows that both locks are the same.
        multi_lock([locks.lock("a"), same.lock("a")]),
    ];
    for outcome in named_twice {
        let error = outcome.unwrap_err();
        assert!(matches!(&error, Error::DuplicateMember { lock, .. } if lock == "a"), "{error}");
        assert_eq!(error.outcome(), Outcome::NotSent);
    }
    assert!(matches!(multi_lock([]), Err(Error::NoMembers)));
    let other_database = manager(&format!("{}?db=1", server.unix_url())).await;
    let set = multi_lock([locks.lock("a"), other_database.lock("a"), locks.lock("b")]).unwrap();
    assert!(set.acquire().await.unwrap().is_valid());
    assert!(multi_lock([locks.lock("a"), locks.lock("")]).unwrap().acquire().await.is_err());
    assert!(gone(&server, "a").await);
}

#[tokio::test]
async fn threads_and_owners_take_sets_again() {
    let server = RedisServer::start();
    let locks = manager(&server.url()).await;
    let (a, b) = (locks.lock("a"), locks.lock("b"));
    let outer = set(&[&a, &b]).acquire().await.unwrap();
    let again = |lock: &Lock, place: usize| lock.with_owner(outer.members()[place].owner());
    let inner = set(&[&again(&a, 0), &again(&b, 1)]).acquire().await.unwrap();
    assert_eq!(server.cli(&["HVALS", "a"]), "2");
    inner.release().await.unwrap();
    assert_eq!(server.cli(&["HVALS", "a"]), "1");
    drop(outer);
    assert!(gone(&server, "a").await);

    let url = server.url();
    let counted = spawn_blocking(move || {
        let locks = wheellock::blocking::LockManager::connect(&url).unwrap();
        let set = wheellock::blocking::multi_lock([locks.lock("a"), locks.lock("b")]).unwrap();
        let outer = set.acquire().unwrap();
        let inner = set.try_acquire().unwrap().acquired().expect("this thread's");
        let count = locks.lock("b").hold_count(&locks.this_thread()).unwrap();
        assert!(inner.is_valid() && inner.valid_until() <= inner.members()[0].valid_until());
        inner.renew().unwrap();
        inner.release().unwrap();
        let other = std::thread::scope(|threads| {
            threads
                .spawn(|| !set.try_acquire_for(Duration::from_millis(20)).unwrap().is_acquired())
                .join()
                .unwrap()
        });
        drop(outer);
        (count, other, set.run(|_| Ok::<_, Error>(7)).unwrap())
    });
    assert_eq!(counted.await.unwrap(), (2, true, 7));
    assert!(gone(&server, "a").await && gone(&server, "b").await);
}

#[tokio::test]
async fn dropped_set_leaves_nothing() {
    let (here, there) = (RedisServer::start(), RedisServer::start());
    let (h, t, other) =
        (manager(&here.url()).await, manager(&there.url()).await, manager(&there.url()).await);
    let set = set(&[&h.lock("a"), &t.lock("b"), &h.lock("c")]);
    for busy in [false, true] {
        for pendings in 0..12 {
            let held = if busy { Some(other.lock("b").acquire().await.unwrap()) } else { None };
            let acquire = cancel_at(pendings, set.try_acquire_for(Duration::from_millis(20)));
            drop(tokio::time::timeout(Duration::from_millis(40), acquire).await);
            let guard = cancel_at(pendings, async { set.acquire().await?.release().await });
            drop(tokio::time::timeout(Duration::from_millis(20), guard).await);
            assert!(gone(&here, "a").await && gone(&here, "c").await, "busy {busy}, {pendings} pendings");
            drop(held);
            assert!(gone(&there, "b").await, "busy {busy}, {pendings} pendings");
        }
    }
    assert!(set.try_acquire_for(PATIENCE).await.unwrap().is_acquired(), "nobody is stuck in line");
}

/// Sets of up to four of seven locks on three servers, in random orders. Each of four managers has ten tasks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_overlapping_sets_make_progress() {
    let seconds = std::env::var("WHEELLOCK_SOAK_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    let time = Duration::from_secs(seconds.unwrap_or(3));
    let servers = [RedisServer::start(), RedisServer::start(), RedisServer::start()];
    let mut processes = Vec::new();
    for _ in 0..4 {
        let mut managers = Vec::new();
        for server in &servers {
            managers.push(manager(&server.url()).await);
        }
        processes.push(managers);
    }
    let inside: Arc<Vec<AtomicU32>> = Arc::new((0..LOCKS).map(|_| AtomicU32::new(0)).collect());
    let served: Arc<Vec<AtomicU64>> = Arc::new((0..10).map(|_| AtomicU64::new(0)).collect());
    let until = Instant::now() + time;
    let mut tasks = JoinSet::new();
    for task in 0..10 {
        let managers: Vec<LockManager> = processes[task % processes.len()].clone();
        let (inside, served) = (Arc::clone(&inside), Arc::clone(&served));
        let mut random = wheellock_tests::fault::Random::new(task as u64);
        tasks.spawn(async move {
            while Instant::now() < until {
                let mut chosen: Vec<usize> = (0..LOCKS).collect();
                for place in 0..LOCKS {
                    let with = place + usize::try_from(random.below((LOCKS - place) as u64)).unwrap();
                    chosen.swap(place, with);
                }
                chosen.truncate(1 + usize::try_from(random.below(4)).unwrap());
                let locks = chosen.iter().map(|lock| managers[lock % 3].lock(&format!("lock {lock}")));
                let set = multi_lock(locks).unwrap();
                let guard = if random.below(4) == 0 {
                    let wait = Duration::from_micros(random.below(3_000));
                    match set.try_acquire_for(wait).await {
                        Ok(Attempt::Acquired(guard)) => guard,
                        // The wait was so short that not even the first reply came in time.
                        Ok(Attempt::Held { .. }) | Err(Error::Server { .. }) => continue,
                        Err(error) => panic!("{error}"),
                    }
                } else {
                    set.acquire().await.unwrap()
                };
                for lock in &chosen {
                    assert_eq!(inside[*lock].fetch_add(1, Ordering::SeqCst), 0, "two inside");
                }
                tokio::task::yield_now().await;
                for lock in &chosen {
                    inside[*lock].fetch_sub(1, Ordering::SeqCst);
                }
                served[task].fetch_add(1, Ordering::Relaxed);
                if random.below(2) == 0 {
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
    tokio::time::timeout(time + PATIENCE, all).await.expect("nobody waits for ever");
    for server in &servers {
        assert!(
            eventually(PATIENCE, async || server.cli(&["DBSIZE"]) == "0").await,
            "left: {}",
            server.cli(&["KEYS", "*"])
        );
    }
    let served: Vec<_> = served.iter().map(|served| served.load(Ordering::Relaxed)).collect();
    println!("served in {time:?}: {served:?}");
    assert!(served.iter().all(|served| *served >= 10), "{served:?}");
}

const LOCKS: usize = 7;

/// L17: a set of locks has the same queries as a lock.
#[tokio::test]
async fn set_reports_count_and_forces_release() {
    let (here, there) = (RedisServer::start(), RedisServer::start());
    let (h, t) = (manager(&here.url()).await, manager(&there.url()).await);
    let owner = h.owner();
    let (a, b) = (h.lock("a").with_owner(owner.clone()), h.lock("b").with_owner(owner.clone()));
    let one_server = set(&[&a, &b]);
    assert_eq!(one_server.hold_count(&owner).await.unwrap(), 0);
    assert_eq!(one_server.remaining_lease().await.unwrap(), None);
    assert!(!one_server.force_release().await.unwrap());
    let guard = one_server.acquire().await.unwrap();
    let again = a.with_lease(SHORT).acquire().await.unwrap();
    assert_eq!(one_server.hold_count(&owner).await.unwrap(), 1, "of the one that is held less often");
    assert!(
        one_server.remaining_lease().await.unwrap().is_some_and(|left| left <= LEASE && left > LEASE / 2)
    );
    let elsewhere = t.lock("c").with_lease(SHORT).acquire().await.unwrap();
    let both_servers = set(&[&a, &t.lock("c")]);
    assert!(both_servers.remaining_lease().await.unwrap().is_some_and(|left| left <= SHORT));
    assert!(both_servers.force_release().await.unwrap());
    assert!(free(&here, "a") && free(&there, "c"));
    assert_eq!(both_servers.remaining_lease().await.unwrap(), None);
    assert_eq!(one_server.remaining_lease().await.unwrap(), None, "one is free");
    assert!(one_server.force_release().await.unwrap(), "the other is not");
    assert!(!guard.is_valid() && !again.is_valid() && !elsewhere.is_valid());
}
