//! Semaphores, permits with leases and latches against real servers. The tests cover the wire contract, the order of waiters, lost messages
//! and bad input.

use std::num::NonZeroU32;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use wheellock::testing::server::Which;
use wheellock::{CountDownLatch, Error, LockManager, LostReason, PermitId, Semaphore};
use wheellock_tests::fault::{At, Direction, Fault, Proxy, Rule, cancel_at};
use wheellock_tests::locks::{PATIENCE, RENEWED, WOKEN, at_rest, brisk, clock, gone, lost, manager, renewed};
use wheellock_tests::worker::{Outcome, Request, Worker, monotonic};
use wheellock_tests::{RedisServer, eventually, poll_until};

const NAME: &str = "pool";
/// Channel of the latch of that name.
const CHANNEL: &str = "redisson_countdownlatch__channel__{pool}";

async fn server_and_manager() -> (RedisServer, LockManager) {
    let server = RedisServer::start();
    let locks = manager(&server.url()).await;
    (server, locks)
}

async fn semaphore_of(locks: &LockManager, permits: u32) -> Semaphore {
    let semaphore = locks.semaphore(NAME);
    assert!(semaphore.try_set_permits(permits).await.unwrap());
    semaphore
}

async fn waiting(locks: &LockManager, count: u64) -> bool {
    eventually(PATIENCE, async || locks.metrics().waiting == count).await
}

async fn available(semaphore: &Semaphore, permits: i64) -> bool {
    eventually(PATIENCE, async || semaphore.available().await.unwrap() == permits).await
}

fn set(server: &RedisServer, command: &[&str]) {
    let _answer = server.cli(command);
}

/// Returns the server's records of permits that callers hold.
fn books(server: &RedisServer) -> Vec<String> {
    let keys = server.cli(&["KEYS", "*wheellock_permits*"]);
    let has_some = |key: &&str| !key.is_empty() && !["0", ""].contains(&&*server.cli(&["GET", key]));
    keys.lines().filter(has_some).map(str::to_owned).collect()
}

#[tokio::test]
async fn the_wire_contract_of_a_semaphore() {
    let (server, locks) = server_and_manager().await;
    let semaphore = semaphore_of(&locks, 10).await;
    assert!(!semaphore.try_set_permits(20).await.unwrap());
    assert_eq!(server.cli(&["GET", NAME]), "10");
    let mut permits = semaphore.acquire(4).await.unwrap();
    assert_eq!((permits.count(), server.cli(&["GET", NAME])), (4, "6".to_owned()));
    assert_eq!(books(&server).len(), 1);
    assert!(!semaphore.try_acquire(7).await.unwrap().is_acquired(), "all or none");
    let part = permits.split(1).unwrap();
    assert!(permits.split(4).is_none());
    assert_eq!((part.count(), permits.count()), (1, 3));
    part.release().await.unwrap();
    assert_eq!(server.cli(&["GET", NAME]), "7");
    permits.split(1).unwrap().forget();
    drop(permits);
    assert!(available(&semaphore, 9).await, "one is forgotten");
    semaphore.release(1).await.unwrap();
    assert_eq!(semaphore.add_permits(-3).await.unwrap(), 7);
    assert_eq!(semaphore.drain().await.unwrap(), 7);
    assert_eq!((semaphore.drain().await.unwrap(), semaphore.available().await.unwrap()), (0, 0));
    assert_eq!(semaphore.add_permits(-2).await.unwrap(), -2);
    assert!(!semaphore.try_acquire(1).await.unwrap().is_acquired());
    let none = semaphore.acquire(0).await.unwrap();
    assert_eq!((none.count(), none.release().await.unwrap()), (0, ()));
    assert!(semaphore.delete().await.unwrap() && !semaphore.delete().await.unwrap());
    assert_eq!(semaphore.available().await.unwrap(), 0);
}

/// A permit whose semaphore became data of another type is neither released nor removed.
#[tokio::test]
async fn overwritten_semaphore_keeps_permit() {
    let (server, locks) = server_and_manager().await;
    let permits = locks.permit_semaphore(NAME);
    permits.set_permits(1).await.unwrap();
    let permit = permits.acquire().await.unwrap();
    set(&server, &["SET", NAME, "no number"]);
    let error = permits.release(permit.id()).await.unwrap_err();
    assert!(matches!(error, Error::OtherData { .. }), "{error}");
    assert_eq!(server.cli(&["ZCARD", "{pool}:timeout"]), "1", "nothing was changed");
}

#[tokio::test]
async fn permits_do_not_recreate_deleted_semaphore() {
    let (server, locks) = server_and_manager().await;
    let semaphore = semaphore_of(&locks, 2).await;
    let permits = semaphore.acquire(2).await.unwrap();
    semaphore.delete().await.unwrap();
    assert!(matches!(permits.release().await, Err(Error::Lost { .. })));
    assert_eq!((server.cli(&["EXISTS", NAME]), books(&server).len()), ("0".to_owned(), 0));
}

/// One wake-up lets in as many waiters as there are permits. No waiter overtakes an earlier waiter.
#[tokio::test]
async fn waiters_are_served_in_order_together() {
    let (_server, locks) = server_and_manager().await;
    let semaphore = semaphore_of(&locks, 0).await;
    let order = Arc::new(std::sync::Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for (number, permits) in [5, 1, 1, 2, 1].into_iter().enumerate() {
        let (semaphore, order) = (semaphore.clone(), Arc::clone(&order));
        tasks.push(tokio::spawn(async move {
            let permits = semaphore.acquire(permits).await.unwrap();
            order.lock().unwrap().push(number);
            permits.forget();
        }));
        assert!(waiting(&locks, number as u64 + 1).await);
    }
    semaphore.release(4).await.unwrap();
    // A waiter that wants one permit would get it, but the waiter that wants five permits came first.
    assert!(at_rest(&locks).await && order.lock().unwrap().is_empty());
    let calls = locks.client().stats().calls;
    semaphore.release(6).await.unwrap();
    for task in tasks {
        tokio::time::timeout(WOKEN, task).await.unwrap().unwrap();
    }
    let calls = locks.client().stats().calls - calls;
    assert!(calls <= 12, "{calls} calls");
    assert_eq!(order.lock().unwrap()[0], 0, "{order:?}");
    assert!(available(&semaphore, 0).await);
}

#[tokio::test]
async fn holders_never_exceed_permits() {
    let server = RedisServer::start();
    let managers = [manager(&server.url()).await, manager(&server.url()).await];
    let semaphore = semaphore_of(&managers[0], 5).await;
    let (inside, most) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let mut tasks = Vec::new();
    for task in 0..40_u32 {
        let semaphore = managers[task as usize % 2].semaphore(NAME);
        let (inside, most) = (Arc::clone(&inside), Arc::clone(&most));
        tasks.push(tokio::spawn(async move {
            for round in 0..20 {
                let count = (task + round) % 3 + 1;
                let permits = if round % 4 == 0 {
                    let permits = cancel_at(round as usize % 5, semaphore.acquire(count)).await;
                    let Some(permits) = permits else { continue };
                    permits.unwrap()
                } else {
                    semaphore.acquire(count).await.unwrap()
                };
                let now = inside.fetch_add(count, Ordering::SeqCst) + count;
                most.fetch_max(now, Ordering::SeqCst);
                tokio::task::yield_now().await;
                inside.fetch_sub(count, Ordering::SeqCst);
                drop(permits);
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert!(most.load(Ordering::SeqCst) <= 5, "{most:?}");
    assert!(available(&semaphore, 5).await);
    assert!(eventually(PATIENCE, async || books(&server).is_empty()).await, "{:?}", books(&server));
}

/// Each request counts once, even if its reply is lost.
#[tokio::test]
async fn what_gets_lost_counts_once() {
    let server = RedisServer::start();
    let proxy = Proxy::before(&server);
    let locks = brisk(&proxy.url(), Duration::from_secs(30)).await;
    let semaphore = semaphore_of(&locks, 10).await;
    let cut = || {
        proxy.rule(
            Rule::new(Direction::ToClient, At::Reply(0), Fault::Rst).only_on(proxy.counts().accepted - 1),
        );
    };
    for _ in 0..5 {
        cut();
        let permits = semaphore.acquire(3).await.unwrap();
        assert_eq!(server.cli(&["GET", NAME]), "7");
        cut();
        permits.release().await.unwrap();
        assert_eq!(server.cli(&["GET", NAME]), "10");
        cut();
        semaphore.release(1).await.unwrap();
        cut();
        assert_eq!(semaphore.add_permits(-1).await.unwrap(), 10);
        cut();
        assert_eq!(semaphore.drain().await.unwrap(), 10);
        cut();
        assert_eq!(semaphore.add_permits(10).await.unwrap(), 10);
        cut();
        assert!(!semaphore.try_set_permits(3).await.unwrap());
        semaphore.delete().await.unwrap();
        cut();
        assert!(semaphore.try_set_permits(10).await.unwrap());
        let mut permits = semaphore.acquire(5).await.unwrap();
        let part = permits.split(2).unwrap();
        cut();
        part.release().await.unwrap();
        permits.release().await.expect("they are not lost with the part");
        assert_eq!(server.cli(&["GET", NAME]), "10");
        let latch = locks.count_down_latch("latch");
        cut();
        assert!(latch.try_set_count(NonZeroU32::new(2).unwrap()).await.unwrap());
        cut();
        assert_eq!(latch.count_down().await.unwrap(), 1);
        cut();
        assert_eq!(latch.count_down().await.unwrap(), 0);
        let permits = locks.permit_semaphore("permits");
        cut();
        assert_eq!(permits.set_permits(4).await.unwrap(), 4);
        cut();
        let permit = permits.acquire().await.unwrap();
        assert_eq!(permits.available().await.unwrap(), 3);
        cut();
        assert!(permits.release(permit.id()).await.unwrap());
        let permit = permits.acquire().await.unwrap();
        cut();
        permit.release().await.unwrap();
        assert_eq!(permits.available().await.unwrap(), 4);
    }
}

/// A request that arrives after its withdrawal has no effect. Permits of a dropped call are released once.
#[tokio::test]
async fn dropped_acquire_releases_permits_once() {
    let server = RedisServer::start();
    let proxy = Proxy::before(&server);
    let locks = brisk(&proxy.url(), Duration::from_secs(30)).await;
    let semaphore = semaphore_of(&locks, 10).await;
    for round in 0..40 {
        let fault =
            if round % 2 == 0 { Fault::Rst } else { Fault::Delay(Duration::from_millis(3), Duration::ZERO) };
        proxy.strike(Direction::ToClient, fault);
        let dropped = cancel_at(1 + round % 3, semaphore.acquire(2)).await;
        drop(dropped);
        proxy.heal();
        let all = eventually(PATIENCE, async || server.cli(&["GET", NAME]) == "10").await;
        assert!(all, "{round}: {}", server.cli(&["GET", NAME]));
    }
}

/// The acquire arrives on a connection that has broken since, or that seems broken to its caller.
#[tokio::test]
async fn withdrawn_acquire_takes_nothing_late() {
    let server = RedisServer::start();
    let proxy = Proxy::before(&server);
    let locks = brisk(&proxy.url(), Duration::from_secs(30)).await;
    let semaphore = semaphore_of(&locks, 10).await;
    let monitor = server.monitor();
    semaphore.acquire(2).await.unwrap().release().await.unwrap();
    let asked = monitor.stop().unwrap();
    let mut late = asked.into_iter().find(|asked| asked.name() == "EVALSHA").unwrap().args;
    proxy.strike(Direction::ToServer, Fault::Blackhole);
    drop(cancel_at(2, semaphore.acquire(2)).await);
    proxy.heal();
    proxy.strike(Direction::ToClient, Fault::Rst);
    let taken_back = || server.cli(&["KEYS", "*wheellock_permits*"]);
    assert!(eventually(PATIENCE, async || !taken_back().is_empty()).await);
    late[5] = taken_back().trim_start_matches("{pool}:wheellock_permits:").to_owned();
    let late: Vec<_> = late.iter().map(String::as_str).collect();
    assert_eq!((server.cli(&late), server.cli(&["GET", NAME])), ("-1".to_owned(), "10".to_owned()));
}

#[tokio::test]
async fn other_data_is_left_alone() {
    let (server, locks) = server_and_manager().await;
    for setup in [&["HSET", NAME, "a", "1"][..], &["SET", NAME, "text"]] {
        set(&server, &["DEL", NAME]);
        set(&server, setup);
        let (semaphore, permits) = (locks.semaphore(NAME), locks.permit_semaphore(NAME));
        let latch = locks.count_down_latch(NAME);
        let errors = [
            semaphore.acquire(1).await.map(drop).unwrap_err(),
            semaphore.release(1).await.unwrap_err(),
            semaphore.drain().await.map(drop).unwrap_err(),
            permits.acquire().await.map(drop).unwrap_err(),
            permits.set_permits(1).await.map(drop).unwrap_err(),
            permits.available().await.map(drop).unwrap_err(),
            latch.wait().await.unwrap_err(),
            latch.count_down().await.map(drop).unwrap_err(),
        ];
        for error in errors {
            assert!(matches!(error, Error::OtherData { .. }), "{setup:?}: {error}");
        }
        assert!(!semaphore.try_set_permits(1).await.unwrap());
    }
    set(&server, &["SET", NAME, &i64::MAX.to_string()]);
    let error = locks.semaphore(NAME).release(1).await.unwrap_err();
    assert!(matches!(error, Error::Server { .. }), "{error}");
    assert_eq!(server.cli(&["GET", NAME]), i64::MAX.to_string(), "nothing was changed");
    let refused = locks.semaphore("").acquire(1).await.unwrap_err();
    assert!(matches!(refused, Error::InvalidName { .. }));
}

#[tokio::test]
async fn the_wire_contract_of_permits() {
    let (server, locks) = server_and_manager().await;
    let permits = locks.permit_semaphore(NAME);
    assert!(permits.try_set_permits(3).await.unwrap() && !permits.try_set_permits(3).await.unwrap());
    let permit = permits.with_lease(Duration::from_secs(20)).acquire().await.unwrap();
    assert_eq!(server.cli(&["GET", NAME]), "2");
    let ends: i64 = server
        .cli(&["ZRANGE", "{pool}:timeout", "0", "0", "WITHSCORES"])
        .lines()
        .last()
        .unwrap()
        .parse()
        .unwrap();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let left = ends - i64::try_from(now.as_millis()).unwrap();
    assert!((15_000..=20_000).contains(&left), "{left}");
    assert_eq!((permits.available().await.unwrap(), permits.acquired().await.unwrap()), (2, 1));
    assert_eq!(permits.permits().await.unwrap(), 3);
    assert_eq!(permit.id().to_string().len(), 32);
    assert_eq!(permit.id().to_string().parse(), Ok(permit.id()));
    assert_eq!(permits.set_permits(1).await.unwrap(), 0, "one is taken");
    assert!(!permits.try_acquire().await.unwrap().is_acquired());
    assert_eq!(permits.set_permits(2).await.unwrap(), 1);
    permit.release().await.unwrap();
    assert_eq!(server.cli(&["GET", NAME]), "2");
    assert_eq!(server.cli(&["EXISTS", "{pool}:timeout"]), "0");
    assert!(!permits.release("0".repeat(32).parse::<PermitId>().unwrap()).await.unwrap());
    let held = permits.acquire().await.unwrap();
    assert!(permits.release(held.id()).await.unwrap());
    assert!(matches!(held.release().await, Err(Error::Lost { .. })));
    assert_eq!(permits.available().await.unwrap(), 2);
    assert!(permits.delete().await.unwrap());
}

#[tokio::test]
async fn permits_together_are_all_or_none() {
    let (server, locks) = server_and_manager().await;
    let permits = locks.permit_semaphore(NAME);
    assert!(permits.try_set_permits(3).await.unwrap());
    let taken = || (server.cli(&["GET", NAME]), server.cli(&["ZCARD", "{pool}:timeout"]));
    let books = |free: &str, taken: &str| (free.to_owned(), taken.to_owned());

    assert!(permits.acquire_many(0).await.unwrap().is_empty());
    let mut two = permits.acquire_many(2).await.unwrap();
    assert_eq!((two.len(), taken()), (2, books("1", "2")));
    assert!(two.iter().all(|permit| permit.is_valid()) && two[0].id() != two[1].id());
    assert!(!permits.try_acquire_many(2).await.unwrap().is_acquired());
    let wait = Duration::from_millis(30);
    assert!(!permits.try_acquire_many_for(2, wait).await.unwrap().is_acquired());
    assert_eq!(taken(), books("1", "2"), "a part is not kept");

    // Each permit is released by itself, and a waiter that wants two permits gets two.
    let waiter = tokio::spawn({
        let permits = permits.clone();
        async move { permits.acquire_many(2).await.unwrap() }
    });
    assert!(waiting(&locks, 1).await);
    two.remove(0).release().await.unwrap();
    let others = tokio::time::timeout(WOKEN, waiter).await.expect("two are free").unwrap();
    assert_eq!((others.len(), taken()), (2, books("0", "3")));
    drop(others);
    assert!(eventually(PATIENCE, async || taken() == books("2", "1")).await);
    drop(two);
    assert!(eventually(PATIENCE, async || taken() == books("3", "0")).await);
    assert!(!permits.try_acquire_many(4).await.unwrap().is_acquired());
}

/// If each caller acquired one permit at a time, two callers could each hold one and wait for the other.
#[tokio::test]
async fn callers_of_all_permits_never_deadlock() {
    let (server, locks) = server_and_manager().await;
    let others = manager(&server.url()).await;
    assert!(locks.permit_semaphore(NAME).try_set_permits(2).await.unwrap());
    let callers = [locks.clone(), locks, others.clone(), others].map(|locks| {
        tokio::spawn(async move {
            for _ in 0..20 {
                let both = locks.permit_semaphore(NAME).acquire_many(2).await.unwrap();
                assert!(both.iter().all(|permit| permit.is_valid()));
                for permit in both {
                    permit.release().await.unwrap();
                }
            }
        })
    });
    for caller in callers {
        tokio::time::timeout(PATIENCE, caller).await.expect("no circle").unwrap();
    }
    assert_eq!(
        (server.cli(&["GET", NAME]), server.cli(&["EXISTS", "{pool}:timeout"])),
        ("2".into(), "0".into())
    );
}

/// A foreign library removes only as many expired permits as it needs, one of two here. The repeated request finds the other permit.
#[tokio::test]
async fn half_reaped_permits_are_granted_once() {
    let server = RedisServer::start();
    let (which, key, tag) = (Which::PermitAcquire, NAME, "{pool}");
    let channel = "redisson_sc:{pool}";
    let ask = |lease: &str| {
        server.cli(&["EVAL", which.text(), "1", key, lease, "permit-number-09", "2", tag, channel, "PUBLISH"])
    };
    set(&server, &["SET", NAME, "2"]);
    assert_eq!(ask("60000"), "1\n0");
    assert_eq!(ask("60000"), "2\n0", "what comes again takes nothing more");
    // One permit was released meanwhile, and the other permit belongs to its holder.
    set(&server, &["ZREM", "{pool}:timeout", "permit-number-0:"]);
    set(&server, &["INCRBY", NAME, "1"]);
    let left: i64 = ask("100").parse().unwrap();
    assert!((55_000..=60_000).contains(&left), "{left}: refused, and no lease was changed");
    assert_eq!(
        (server.cli(&["GET", NAME]), server.cli(&["ZCARD", "{pool}:timeout"])),
        ("1".into(), "1".into())
    );
    // The remaining permit has expired. Both permits are acquired anew. The sum of acquired and free permits stays two.
    set(&server, &["ZADD", "{pool}:timeout", "1", "permit-number-09"]);
    assert_eq!(ask("60000"), "1\n0");
    assert_eq!(
        (server.cli(&["GET", NAME]), server.cli(&["ZCARD", "{pool}:timeout"])),
        ("0".into(), "2".into())
    );
}

#[tokio::test]
async fn releasing_many_ids_is_atomic() {
    let (server, locks) = server_and_manager().await;
    let permits = locks.permit_semaphore(NAME);
    assert!(permits.try_set_permits(3).await.unwrap());
    let held = permits.acquire_many(3).await.unwrap();
    let ids: Vec<_> = held.iter().map(|permit| permit.id()).collect();
    let unknown = "0".repeat(32).parse::<PermitId>().unwrap();
    assert!(!permits.release_many(&[ids[0], unknown]).await.unwrap());
    assert_eq!(
        (server.cli(&["GET", NAME]), server.cli(&["ZCARD", "{pool}:timeout"])),
        ("0".into(), "3".into())
    );
    assert!(permits.release_many(&[]).await.unwrap());
    assert!(permits.release_many(&[ids[0], ids[1], ids[0]]).await.unwrap());
    assert_eq!(
        (server.cli(&["GET", NAME]), server.cli(&["ZCARD", "{pool}:timeout"])),
        ("2".into(), "1".into())
    );
    let mut released = Vec::new();
    for permit in held {
        released.push(permit.release().await);
    }
    assert!(
        matches!(released[..], [Err(Error::Lost { .. }), Err(Error::Lost { .. }), Ok(())]),
        "{released:?}"
    );
    assert_eq!(permits.permits().await.unwrap(), 3);
}

#[tokio::test]
async fn leases_are_looked_at_and_extended() {
    let (server, locks) = server_and_manager().await;
    let permits = locks.permit_semaphore(NAME);
    assert!(permits.try_set_permits(2).await.unwrap());
    let permit = permits.with_lease(Duration::from_secs(20)).acquire().await.unwrap();
    let within = |left: Option<Duration>, most: u64| {
        left.is_some_and(|left| left <= Duration::from_secs(most) && left > Duration::from_secs(most - 5))
    };
    assert!(within(permits.remaining_lease(permit.id()).await.unwrap(), 20));
    assert!(permits.extend(permit.id(), Duration::from_secs(60)).await.unwrap());
    assert!(within(permits.remaining_lease(permit.id()).await.unwrap(), 60));
    // The holder relies on its present lease, so the lease is not shortened.
    assert!(permits.extend(permit.id(), Duration::from_secs(1)).await.unwrap());
    assert!(within(permits.remaining_lease(permit.id()).await.unwrap(), 60));
    let refused = permits.extend(permit.id(), Duration::ZERO).await.unwrap_err();
    assert!(matches!(refused, Error::InvalidLease { .. }));

    // A permit of Java has no end.
    set(&server, &["ZADD", "{pool}:timeout", "922337203685477", "permit-of-java-1"]);
    let java = "7065726d69742d6f662d6a6176612d31".parse::<PermitId>().unwrap();
    assert_eq!(permits.remaining_lease(java).await.unwrap(), Some(Duration::MAX));
    assert!(permits.extend(java, Duration::from_secs(1)).await.unwrap());
    assert_eq!(permits.remaining_lease(java).await.unwrap(), Some(Duration::MAX));

    // The first permit exists although its lease has ended. The second permit never existed.
    set(&server, &["ZADD", "{pool}:timeout", "1", "permit-of-java-1"]);
    for gone in [java, "0".repeat(32).parse::<PermitId>().unwrap()] {
        assert_eq!(permits.remaining_lease(gone).await.unwrap(), None);
        assert!(!permits.extend(gone, Duration::from_secs(1)).await.unwrap());
    }
    permit.release().await.unwrap();
}

#[tokio::test]
async fn watchdog_keeps_permit_unrenewed_permit_expires() {
    let server = RedisServer::start();
    let locks = brisk(&server.url(), RENEWED).await;
    let permits = locks.permit_semaphore(NAME);
    permits.set_permits(2).await.unwrap();
    let kept = permits.acquire().await.unwrap();
    let short = permits.with_lease(Duration::from_millis(300)).acquire().await.unwrap();
    assert_eq!(lost(&short).await, LostReason::Expired);
    assert!(renewed(&kept, 4).await);
    assert_eq!(permits.acquired().await.unwrap(), 1, "its lease runs");
    // Another process had this permit and did not live to renew it.
    let others = manager(&server.url()).await.permit_semaphore(NAME);
    let dead = others.with_lease(Duration::from_millis(700)).acquire().await.unwrap();
    let began = Instant::now();
    let next = permits.try_acquire_for(WOKEN).await.unwrap().acquired().expect("its lease ends");
    assert!(began.elapsed() >= Duration::from_millis(400), "{:?}", began.elapsed());
    assert!(!dead.is_valid());
    assert!(matches!(dead.release().await, Err(Error::Lost { .. })));
    drop((kept, next));
    assert!(eventually(PATIENCE, async || permits.available().await.unwrap() == 2).await);
    assert_eq!(permits.permits().await.unwrap(), 2, "nothing is given back twice");
}

#[tokio::test]
async fn permit_released_by_id_is_lost() {
    let server = RedisServer::start();
    let locks = brisk(&server.url(), RENEWED).await;
    let permits = locks.permit_semaphore(NAME);
    permits.set_permits(1).await.unwrap();
    let permit = permits.acquire().await.unwrap();
    assert!(permits.release(permit.id()).await.unwrap());
    assert_eq!(lost(&permit).await, LostReason::NotOwner);
    let failed = permits.run(async |permit| {
        assert!(permits.release(permit.id()).await.unwrap());
        Ok(permit.lost().await)
    });
    assert!(matches!(failed.await, Err(Error::Lost { .. })));
    assert_eq!(permits.run(async |_| Ok::<_, Error>(7)).await.unwrap(), 7);
}

/// No caller has taken the permit meanwhile, and still its lease had ended. Redisson's reply is the same.
#[tokio::test]
async fn release_of_expired_permit_reports_loss() {
    let (server, locks) = server_and_manager().await;
    let permits = locks.permit_semaphore(NAME);
    permits.set_permits(1).await.unwrap();
    let permit = permits.with_lease(Duration::from_millis(100)).acquire().await.unwrap();
    let over = clock(&server) + Duration::from_millis(100);
    assert!(eventually(PATIENCE, async || !permit.is_valid() && clock(&server) > over).await);
    assert_eq!(server.cli(&["ZCARD", "{pool}:timeout"]), "1", "nobody has come");
    assert!(matches!(permit.release().await, Err(Error::Lost { .. })));
    assert_eq!(
        (server.cli(&["GET", NAME]), server.cli(&["ZCARD", "{pool}:timeout"])),
        ("1".to_owned(), "0".to_owned())
    );
}

/// A guard that has ended does not send this request, so the test calls the script itself.
#[tokio::test]
async fn late_release_of_permit_says_so() {
    let server = RedisServer::start();
    for (ends, answer) in [("1", "(nil)"), ("922337203685477", "1")] {
        set(&server, &["SET", NAME, "0"]);
        set(&server, &["ZADD", "{pool}:timeout", ends, "permit-number-09"]);
        let text = Which::PermitRelease.text();
        let release = ["redisson_sc:{pool}", "permit-number-09", "0", "PUBLISH", "{pool}"];
        let said = server.cli(&[&["EVAL", text, "1", NAME], &release[..]].concat());
        assert_eq!((said.as_str(), server.cli(&["GET", NAME])), (answer, "1".to_owned()), "{ends}");
    }
}

async fn latch_of(locks: &LockManager, count: u32) -> CountDownLatch {
    let latch = locks.count_down_latch(NAME);
    assert!(latch.try_set_count(NonZeroU32::new(count).unwrap()).await.unwrap());
    latch
}

#[tokio::test]
async fn open_latch_wakes_all_waiters() {
    let server = RedisServer::start();
    let managers = [manager(&server.url()).await, manager(&server.url()).await];
    let latch = latch_of(&managers[0], 2).await;
    assert!(!latch.try_set_count(NonZeroU32::MIN).await.unwrap());
    assert!(!latch.wait_for(Duration::from_millis(10)).await.unwrap());
    let mut tasks = Vec::new();
    for number in 0..200 {
        let latch = managers[number % 2].count_down_latch(NAME);
        tasks.push(tokio::spawn(async move { latch.wait().await.unwrap() }));
    }
    assert!(waiting(&managers[0], 100).await && waiting(&managers[1], 100).await);
    assert_eq!((latch.count_down().await.unwrap(), latch.count().await.unwrap()), (1, 1));
    assert!(at_rest(&managers[0]).await && managers[0].metrics().waiting == 100);
    let calls = managers[1].client().stats().calls;
    assert_eq!(latch.count_down().await.unwrap(), 0);
    for task in tasks {
        tokio::time::timeout(WOKEN, task).await.unwrap().unwrap();
    }
    assert_eq!(latch.count().await.unwrap(), 0);
    latch.wait().await.unwrap();
    assert_eq!(latch.count_down().await.unwrap(), 0, "it stays open");
    let calls = managers[1].client().stats().calls - calls;
    assert!(calls <= 2, "{calls}: one question for all");
    assert!(gone(&server, NAME).await);
}

/// The test prints the duration but does not judge it.
#[test]
fn one_message_wakes_waiters_everywhere() {
    let server = RedisServer::start();
    let mut opener = spawn(&server);
    let mut processes: Vec<_> = (0..10).map(|_| spawn(&server)).collect();
    for round in 0..3 {
        // For comparison, this is the time of one request from each process, all at once.
        let began = monotonic();
        for process in &mut processes {
            process.request(&Request::CountDown).unwrap();
        }
        let last = processes.iter_mut().map(|process| process.answer().unwrap().at).max().unwrap();
        let round_trip = last - began;
        set(&server, &["SET", NAME, "1"]);
        for process in &mut processes {
            process.request(&Request::Await(100)).unwrap();
        }
        for process in &mut processes {
            assert_eq!(process.answer().unwrap().what, Outcome::Waiting);
        }
        let listening = format!("{CHANNEL}\n10");
        assert!(poll_until(PATIENCE, || server.cli(&["PUBSUB", "NUMSUB", CHANNEL]) == listening));
        for process in &mut processes {
            process.request(&Request::Join).unwrap();
        }
        set(&server, &["CONFIG", "RESETSTAT"]);
        let began = monotonic();
        opener.request(&Request::CountDown).unwrap();
        let opened = opener.answer().unwrap();
        let answers: Vec<_> = processes.iter_mut().map(|process| process.answer().unwrap()).collect();
        assert!(answers.iter().all(|answer| answer.what == Outcome::Open));
        let last = answers.iter().map(|answer| answer.at).max().unwrap();
        println!(
            "round {round}: the last of 1000 went on {:?} after the count down, which took {:?}; one question of each process {round_trip:?}",
            last - began,
            opened.at - began
        );
        let calls = |command: &str| server_calls(&server, command);
        assert_eq!(calls("publish"), 1);
        // One reply lets all waiters of a process continue.
        assert!(calls("evalsha") <= 21, "{}", calls("evalsha"));
    }
}

/// Starts a process that waits for the latch.
fn spawn(server: &RedisServer) -> Worker {
    let program = Command::new(env!("CARGO_BIN_EXE_lock_worker"));
    Worker::spawn(program, &server.url(), &format!("latch@{NAME}"), Duration::from_secs(30)).unwrap()
}

fn server_calls(server: &RedisServer, command: &str) -> u64 {
    let stats = server.cli(&["INFO", "commandstats"]);
    let prefix = format!("cmdstat_{command}:calls=");
    let line = stats.lines().find_map(|line| line.strip_prefix(&prefix));
    line.and_then(|rest| rest.split(',').next()?.parse().ok()).unwrap_or_default()
}

#[tokio::test]
async fn recreated_latch_holds_only_new_waiters() {
    let (server, locks) = server_and_manager().await;
    let latch = latch_of(&locks, 1).await;
    // The server knows the script from here on.
    locks.count_down_latch("another").count_down().await.unwrap();
    // Only the first waiter sends a request before that.
    let mut waiters = Vec::new();
    for number in 1..=3 {
        let latch = latch.clone();
        waiters.push(tokio::spawn(async move { latch.wait().await.unwrap() }));
        assert!(waiting(&locks, number).await && at_rest(&locks).await);
    }
    // Both calls are in one write. The request of the waiters arrives when the latch is set again.
    let (down, set) = tokio::join!(latch.count_down(), latch.try_set_count(NonZeroU32::MIN));
    assert_eq!((down.unwrap(), set.unwrap()), (0, true));
    for waiter in waiters {
        tokio::time::timeout(WOKEN, waiter).await.unwrap().unwrap();
    }
    assert_eq!(latch.count().await.unwrap(), 1);
    assert!(!latch.wait_for(Duration::from_millis(10)).await.unwrap(), "of the new one nothing has ended");
    let waiter = tokio::spawn({
        let latch = latch.clone();
        async move { latch.wait().await.unwrap() }
    });
    assert!(waiting(&locks, 1).await);
    assert!(latch.delete().await.unwrap() && !latch.delete().await.unwrap());
    tokio::time::timeout(WOKEN, waiter).await.unwrap().unwrap();
    assert_eq!(server.cli(&["EXISTS", NAME]), "0");
}

/// A lost message costs one more read. A broken connection costs none.
#[tokio::test]
async fn waiters_poll_after_reconnect() {
    let server = RedisServer::start();
    let proxy = Proxy::before(&server);
    let locks = brisk(&proxy.url(), Duration::from_secs(30)).await;
    let (latch, semaphore) = (latch_of(&locks, 1).await, locks.semaphore("permits"));
    let waiters = tokio::spawn({
        let (latch, semaphore) = (latch.clone(), semaphore.clone());
        async move { tokio::join!(latch.wait(), semaphore.acquire(1)) }
    });
    assert!(waiting(&locks, 2).await && at_rest(&locks).await);
    proxy.strike(Direction::ToClient, Fault::Deafen);
    set(&server, &["DEL", NAME]);
    set(&server, &["SET", "permits", "1"]);
    proxy.heal();
    proxy.strike(Direction::ToClient, Fault::Rst);
    let (open, permits) = tokio::time::timeout(WOKEN, waiters).await.unwrap().unwrap();
    open.unwrap();
    drop(permits.unwrap());
}

#[tokio::test]
async fn shutdown_releases_permits_and_fails_waiters() {
    let (server, locks) = server_and_manager().await;
    let semaphore = semaphore_of(&locks, 2).await;
    let permits = semaphore.acquire(2).await.unwrap();
    let latch = locks.count_down_latch("latch");
    latch.try_set_count(NonZeroU32::MIN).await.unwrap();
    let waiters = tokio::spawn({
        let (latch, semaphore) = (latch.clone(), semaphore.clone());
        async move { tokio::join!(latch.wait(), semaphore.acquire(1)) }
    });
    assert!(waiting(&locks, 2).await);
    assert!(locks.shutdown(PATIENCE).await.is_empty());
    let (open, acquired) = waiters.await.unwrap();
    assert!(matches!(open, Err(Error::ShutDown { .. })), "{open:?}");
    assert!(matches!(acquired, Err(Error::ShutDown { .. })), "{acquired:?}");
    assert_eq!(server.cli(&["GET", NAME]), "2");
    assert!(matches!(permits.release().await, Err(Error::Lost { .. })));
}

/// The records of counted permits live for a day. The retry of a refused release must not wait for a twentieth of that.
#[tokio::test]
async fn refused_permit_release_is_retried_soon() {
    let (server, locks) = server_and_manager().await;
    let semaphore = semaphore_of(&locks, 3).await;
    let permits = semaphore.acquire(2).await.unwrap();
    assert_eq!(server.cli(&["CONFIG", "SET", "min-replicas-to-write", "1"]), "OK");
    let error = permits.release().await.unwrap_err();
    assert!(error.to_string().contains("NOREPLICAS"), "{error}");
    assert_eq!(server.cli(&["CONFIG", "SET", "min-replicas-to-write", "0"]), "OK");
    assert!(available(&semaphore, 3).await);
}

/// More leases have ended than one script releases, and more permits than that are missing. The caller does not have to wait.
#[tokio::test]
async fn acquire_does_not_await_expired_permits() {
    let (server, _locks) = server_and_manager().await;
    set(&server, &["SET", NAME, "-1500"]);
    let ended: Vec<String> =
        (0..2000).flat_map(|number| ["1".to_owned(), format!("ended:{number}")]).collect();
    let words = ["ZADD", "{pool}:timeout"].into_iter().chain(ended.iter().map(String::as_str));
    assert_eq!(server.cli(&words.collect::<Vec<_>>()), "2000");
    let args = ["30000", "permit", "1", "{pool}", "redisson_sc:{pool}", "PUBLISH"];
    let call = [&["EVAL", Which::PermitAcquire.text(), "1", NAME], &args[..]].concat();
    assert_eq!(server.cli(&call), "0", "its lease has ended");
    assert!(server.cli(&call).starts_with("1\n"), "granted");
}

/// The text is a number to the scripts' language, but not to any command of the server.
#[tokio::test]
async fn number_unknown_to_server_is_rejected() {
    let (server, locks) = server_and_manager().await;
    let semaphore = locks.semaphore(NAME);
    for text in ["1.5", "1e3", "0x10", "inf", "+5", " 5", ""] {
        set(&server, &["SET", NAME, text]);
        let error = semaphore.try_acquire(1).await.unwrap_err();
        assert!(matches!(error, Error::OtherData { .. }), "{text:?}: {error}");
        let error = locks.count_down_latch(NAME).count_down().await.unwrap_err();
        assert!(matches!(error, Error::OtherData { .. }), "{text:?}: {error}");
        assert_eq!(server.cli(&["GET", NAME]), text);
    }
}

/// Two latches of one name that end one after the other differ in the time of their end. That holds even if the clock is set back in
/// between.
#[tokio::test]
async fn recreated_latch_has_later_end() {
    let (server, locks) = server_and_manager().await;
    let latch = locks.count_down_latch(NAME);
    let far = "9000000000000000";
    set(&server, &["SET", "{pool}:wheellock_latch", far]);
    assert!(latch.try_set_count(NonZeroU32::MIN).await.unwrap());
    assert_eq!(latch.count_down().await.unwrap(), 0);
    assert_eq!(server.cli(&["GET", "{pool}:wheellock_latch"]), "9000000000000001");
    assert!(latch.try_set_count(NonZeroU32::MIN).await.unwrap() && latch.delete().await.unwrap());
    assert_eq!(server.cli(&["GET", "{pool}:wheellock_latch"]), "9000000000000002");
}
