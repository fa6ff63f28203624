//! Semaphores, permits with leases and latches shared with Redisson. Each promise is tested in both directions on real servers.
//!
//! Every test has its own server and its own Redisson client. All tests share the JVM. Without Java all tests are skipped. The kind of an
//! object precedes its name.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::process::Command;
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;
use wheellock::{Error, LockManager, LostReason, Permit, PermitId, Permits};
use wheellock_tests::beside::{
    attempts, both_sides, calls, extended_permit, java_waits, key, shared_client, subscribers, we_wait,
    within,
};
use wheellock_tests::interop::{self, Thread};
use wheellock_tests::locks::{PATIENCE, WOKEN, lost, manager};
use wheellock_tests::topology::{Cluster, Settings};
use wheellock_tests::worker::{self, Outcome, Worker, monotonic};
use wheellock_tests::{RedisServer, eventually};

/// The same calls on either side get the same replies. They leave the same keys, values and TTLs after each step.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn same_calls_leave_same_state() {
    let Some((server, java, locks)) = both_sides(LEASE).await else { return };
    for (number, steps) in SAME_STATE.iter().enumerate() {
        let thread = java.thread(&format!("t{number}"));
        let (mut theirs, mut ids) = (Vec::new(), Vec::new());
        for (object, method, argument) in *steps {
            let answer = by_java(&server, &thread, &mut ids, object, method, *argument).await;
            theirs.push((answer, state(&server)));
        }
        assert_eq!(server.cli(&["FLUSHALL"]), "OK");
        let mut held = InHand::default();
        for ((object, method, argument), (answer, theirs)) in steps.iter().zip(theirs) {
            let what = format!("{object}.{method}({argument})");
            assert_eq!(by_us(&server, &locks, &mut held, object, method, *argument).await, answer, "{what}");
            let ours = state(&server);
            let what = format!("after {what}: theirs {theirs:?}, ours {ours:?}");
            assert!(ours.keys().eq(theirs.keys()), "{what}");
            for (key, (value, times)) in ours {
                let (their_value, their_times) = &theirs[&key];
                assert!(&value == their_value && times.len() == their_times.len(), "{key} {what}");
                let near = |(ours, theirs): (&i64, &i64)| ours.abs_diff(*theirs) <= TOLERANCE;
                assert!(times.iter().zip(their_times).all(near), "{key} {what}");
            }
        }
        held.forget();
        assert_eq!(server.cli(&["FLUSHALL"]), "OK");
    }
}

/// Cases that docs/interop/redisson.md lists. Redisson's own state is not worth copying there, or only this library has the state.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_redissons_state_is_not_copied() {
    let Some((server, java, locks)) = both_sides(LEASE).await else { return };
    let thread = java.thread("t");
    let ends = |key: &str| server.cli(&["PTTL", key]) != "-1";

    // A semaphore has a TTL. It still expires after permits were added or drained.
    for (method, ends_after) in [("addPermits", false), ("drainPermits", false), ("release", true)] {
        assert_eq!(server.cli(&["SET", "theirs", "5", "PX", "60000"]), "OK");
        thread.call("semaphore@theirs", method, &[&1]).done().await;
        assert_eq!(ends("theirs"), ends_after, "seen of Redisson: {method}");
    }
    let ours = locks.semaphore("ours");
    assert_eq!(server.cli(&["SET", "ours", "5", "PX", "60000"]), "OK");
    ours.add_permits(1).await.unwrap();
    assert_eq!((ours.drain().await.unwrap(), ends("ours")), (6, true));

    // A semaphore was deleted. A release of its permits does not create it again.
    thread.call("semaphore@theirs", "delete", &[]).done().await;
    thread.call("semaphore@theirs", "release", &[&2]).done().await;
    assert_eq!(server.cli(&["GET", "theirs"]), "2", "seen of Redisson");
    ours.add_permits(2).await.unwrap();
    let permits = ours.acquire(2).await.unwrap();
    thread.call("semaphore@ours", "delete", &[]).done().await;
    assert!(matches!(permits.release().await, Err(Error::Lost { .. })));
    assert_eq!(server.cli(&["EXISTS", "ours"]), "0");

    // The records of this library have their own names and a TTL. They mean nothing to Java.
    assert_eq!(server.cli(&["FLUSHALL"]), "OK");
    ours.add_permits(2).await.unwrap();
    let permits = ours.acquire(1).await.unwrap();
    let latch = locks.count_down_latch("start");
    assert!(latch.try_set_count(NonZeroU32::MIN).await.unwrap());
    latch.count_down().await.unwrap();
    let keys = server.cli(&["KEYS", "*wheellock_*"]);
    for part in ["{ours}:wheellock_permits:", "{ours}:wheellock_request:", "{start}:wheellock_latch"] {
        assert!(keys.contains(part), "{part}: {keys}");
    }
    assert!(keys.lines().all(ends), "{keys}");
    permits.release().await.unwrap();
    assert!(!server.cli(&["KEYS", "*"]).contains("wheellock_permits"));

    // Java deletes a latch. Java's own waiters sleep on, and our waiters continue.
    thread.call("latch@deleted", "trySetCount", &[&1]).done().await;
    let looked = calls(&server, "get");
    let sleeps = java.thread("sleeper").call("latch@deleted", "await", &[&1_500]);
    // The thread reads once before it subscribes, and once more before it sleeps.
    assert!(eventually(PATIENCE, async || calls(&server, "get") >= looked + 2).await);
    assert_eq!(thread.call("latch@deleted", "delete", &[]).done().await, "true");
    let answer = sleeps.answer().await;
    assert!(answer.ended - answer.began >= Duration::from_millis(1_400), "seen of Redisson: {answer:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn local_changes_wake_java_waiters() {
    let Some((server, java, locks)) = both_sides(LEASE).await else { return };
    let waits = async |object: &str, method: &str| {
        let asked = attempts(&server);
        let call = java.thread("waiter").call(object, method, &[]);
        let listens = match method {
            "await" => subscribers(&server, object, "1").await,
            _ => java_waits(&server, object, asked).await,
        };
        assert!(listens, "{object}");
        call
    };
    for how in ["release of permits", "drop of permits", "release", "add", "set"] {
        let semaphore = locks.semaphore(how);
        let permits = if how.ends_with("of permits") {
            assert!(semaphore.try_set_permits(1).await.unwrap());
            semaphore.try_acquire(1).await.unwrap().acquired()
        } else {
            None
        };
        let call = waits(&format!("semaphore@{how}"), "acquire").await;
        match (how, permits) {
            ("release of permits", Some(permits)) => {
                permits.release().await.unwrap();
            }
            (_, Some(permits)) => drop(permits),
            ("release", _) => semaphore.release(1).await.unwrap(),
            ("add", _) => assert_eq!(semaphore.add_permits(1).await.unwrap(), 1),
            _ => assert!(semaphore.try_set_permits(1).await.unwrap()),
        }
        within(WOKEN, call.done()).await;
        assert_eq!(semaphore.available().await.unwrap(), 0, "{how}");
    }
    for how in ["release of a permit", "release by its id", "change", "add", "set"] {
        let semaphore = locks.permit_semaphore(&format!("{how} of p"));
        let permit = if how.starts_with("release") {
            assert!(semaphore.try_set_permits(1).await.unwrap());
            semaphore.try_acquire().await.unwrap().acquired()
        } else {
            None
        };
        let call = waits(&format!("permits@{how} of p"), "acquire").await;
        match (how, permit) {
            ("release by its id", Some(permit)) => assert!(semaphore.release(permit.id()).await.unwrap()),
            (_, Some(permit)) => permit.release().await.unwrap(),
            ("change", _) => assert_eq!(semaphore.set_permits(1).await.unwrap(), 1),
            ("add", _) => assert_eq!(semaphore.add_permits(1).await.unwrap(), 1),
            _ => assert!(semaphore.try_set_permits(1).await.unwrap()),
        }
        within(WOKEN, call.done()).await;
        assert_eq!(semaphore.acquired().await.unwrap(), 1, "{how}");
    }
    for how in ["count down", "delete"] {
        let latch = locks.count_down_latch(how);
        assert!(latch.try_set_count(NonZeroU32::MIN).await.unwrap());
        let call = waits(&format!("latch@{how}"), "await").await;
        if how == "delete" {
            assert!(latch.delete().await.unwrap());
        } else {
            assert_eq!(latch.count_down().await.unwrap(), 0);
        }
        within(WOKEN, call.done()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn java_changes_wake_local_waiters() {
    let Some((server, java, locks)) = both_sides(LEASE).await else { return };
    let thread = java.thread("t");
    for method in ["release", "addPermits", "trySetPermits"] {
        let object = format!("semaphore@{method}");
        let semaphore = locks.semaphore(method);
        let waits = tokio::spawn(async move { semaphore.acquire(2).await.unwrap() });
        assert!(we_wait(&server, &locks, &object).await, "{method}");
        thread.call(&object, method, &[&2]).done().await;
        let permits = within(WOKEN, waits).await.unwrap();
        permits.release().await.unwrap();
        assert_eq!(thread.call(&object, "availablePermits", &[]).done().await, "2");
    }
    for method in ["release", "tryRelease", "tryRelease all", "setPermits", "addPermits", "trySetPermits"] {
        let object = format!("permits@{method} of p");
        let mut ids = Vec::new();
        if method.contains("elease") {
            thread.call(&object, "trySetPermits", &[&2]).done().await;
            for _ in 0..2 {
                ids.push(thread.call(&object, "acquire", &[]).done().await);
            }
        }
        let waits = permit_waiter(&locks, key(&object));
        assert!(we_wait(&server, &locks, &object).await, "{method}");
        let call = match (method, ids.as_slice()) {
            ("tryRelease all", [one, other]) => thread.call(&object, "tryRelease", &[one, other]),
            (_, [one, _]) => thread.call(&object, method, &[one]),
            _ => thread.call(&object, method, &[&1]),
        };
        call.done().await;
        let (_, permit) = within(WOKEN, waits).await.unwrap();
        assert!(matches!(permit.release().await, Ok(())), "{method}");
    }
    for method in ["countDown", "delete"] {
        let object = format!("latch@{method}");
        assert_eq!(thread.call(&object, "trySetCount", &[&1]).done().await, "true");
        let latch = locks.count_down_latch(method);
        assert_eq!(latch.count().await.unwrap(), 1);
        let waits = tokio::spawn(async move { latch.wait().await.unwrap() });
        assert!(we_wait(&server, &locks, &object).await, "{method}");
        thread.call(&object, method, &[]).done().await;
        within(WOKEN, waits).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_message_wakes_both_sides() {
    let Some((server, java, locks)) = both_sides(LEASE).await else { return };
    for ours_lets_in in [true, false] {
        for kind in ["semaphore", "permits"] {
            let object = format!("{kind}@{ours_lets_in} {kind}");
            let asked = attempts(&server);
            let theirs: Vec<_> = (0..3)
                .map(|number| java.thread(&format!("t{number}")).call(&object, "acquire", &[]))
                .collect();
            let ours: Vec<_> = (0..3)
                .map(|_| {
                    let (locks, object) = (locks.clone(), object.clone());
                    tokio::spawn(async move {
                        if object.starts_with("semaphore") {
                            locks.semaphore(key(&object)).acquire(1).await.unwrap().forget();
                        } else {
                            let lasting = locks.permit_semaphore(key(&object)).with_lease(LEASE);
                            std::mem::forget(lasting.acquire().await.unwrap());
                        }
                    })
                })
                .collect();
            assert!(subscribers(&server, &object, "2").await, "{object}");
            // Each thread of theirs sends two requests. Of our waiters only one sends a request.
            assert!(eventually(PATIENCE, async || attempts(&server) >= asked + 7).await, "{object}");
            assert!(eventually(PATIENCE, async || locks.metrics().waiting == 3).await, "{object}");
            let first = java.thread("first");
            match (kind, ours_lets_in) {
                ("semaphore", true) => locks.semaphore(key(&object)).release(6).await.unwrap(),
                (_, true) => {
                    assert_eq!(locks.permit_semaphore(key(&object)).add_permits(6).await.unwrap(), 6);
                }
                _ => drop(first.call(&object, "addPermits", &[&6]).done().await),
            }
            for waits in ours {
                within(WOKEN, waits).await.unwrap();
            }
            for waits in theirs {
                within(WOKEN, waits.done()).await;
            }
            assert_eq!(first.call(&object, "availablePermits", &[]).done().await, "0", "{object}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permit_ids_work_across_languages() {
    let Some((_server, java, locks)) = both_sides(SHORT_LEASE).await else { return };
    let (thread, permits) = (java.thread("t"), locks.permit_semaphore("p"));
    assert!(permits.try_set_permits(3).await.unwrap());

    // Their permit, which we release.
    let text = thread.call("permits@p", "acquire", &[]).done().await;
    let id = text.parse::<PermitId>().expect("an id of Java's");
    assert_eq!(id.to_string(), text);
    assert_eq!((permits.available().await.unwrap(), permits.acquired().await.unwrap()), (2, 1));
    assert!(permits.release(id).await.unwrap() && !permits.release(id).await.unwrap());
    assert_eq!(thread.call("permits@p", "tryRelease", &[&text]).done().await, "false");
    let thrown = thread.call("permits@p", "release", &[&text]).answer().await.result.unwrap_err();
    assert_eq!(thrown.class, NO_SUCH_PERMIT);

    // Our permit, which they know and release.
    let permit = permits.acquire().await.unwrap();
    let text = permit.id().to_string();
    let left: u128 = thread.call("permits@p", "getLeaseTime", &[&text]).done().await.parse().unwrap();
    assert!((1..=SHORT_LEASE.as_millis()).contains(&left), "{left}");
    // A renewal does not shorten a longer lease that they set.
    assert_eq!(thread.call("permits@p", "updateLeaseTime", &[&text, &60_000]).done().await, "true");
    permit.renew().await.unwrap();
    let left: u128 = thread.call("permits@p", "getLeaseTime", &[&text]).done().await.parse().unwrap();
    assert!(left > 10 * SHORT_LEASE.as_millis(), "{left}");
    for (method, count) in [("availablePermits", "2"), ("acquiredPermits", "1"), ("getPermits", "3")] {
        assert_eq!(thread.call("permits@p", method, &[]).done().await, count, "{method}");
    }
    assert_eq!(thread.call("permits@p", "tryRelease", &[&text]).done().await, "true");
    assert_eq!(lost(&permit).await, LostReason::NotOwner);
    assert!(matches!(permit.release().await, Err(Error::Lost { .. })));
    assert_eq!((permits.available().await.unwrap(), permits.permits().await.unwrap()), (3, 3));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permits_together_count_in_either_language() {
    let Some((server, java, locks)) = both_sides(LEASE).await else { return };
    let (thread, permits) = (java.thread("t"), locks.permit_semaphore("p"));
    assert!(permits.try_set_permits(5).await.unwrap());

    // Two permits of theirs and two of ours are four of five. Neither side gets two more.
    let theirs = thread.call("permits@p", "acquireMany", &[&2]).done().await;
    let theirs: Vec<_> =
        theirs.split(' ').map(|id| id.parse::<PermitId>().expect("an id of Java's")).collect();
    let ours = permits.acquire_many(2).await.unwrap();
    assert_eq!((theirs.len(), permits.acquired().await.unwrap()), (2, 4));
    for (method, count) in [("availablePermits", "1"), ("acquiredPermits", "4"), ("getPermits", "5")] {
        assert_eq!(thread.call("permits@p", method, &[]).done().await, count, "{method}");
    }
    assert_eq!(thread.call("permits@p", "tryAcquireMany", &[&2]).done().await, "");
    assert!(!permits.try_acquire_many(2).await.unwrap().is_acquired());
    assert_eq!(permits.remaining_lease(theirs[0]).await.unwrap(), Some(Duration::MAX));

    // They release our permits in one step. Their own waiter for three permits enters.
    let asked = attempts(&server);
    let waits = java.thread("waiter").call("permits@p", "acquireMany", &[&3]);
    assert!(java_waits(&server, "permits@p", asked).await);
    let ids: Vec<_> = ours.iter().map(|permit| permit.id().to_string()).collect();
    assert_eq!(thread.call("permits@p", "tryRelease", &[&ids[0], &ids[1]]).done().await, "2");
    let three = within(WOKEN, waits.done()).await;
    let three: Vec<_> = three.split(' ').filter_map(|id| id.parse::<PermitId>().ok()).collect();
    assert_eq!((three.len(), permits.available().await.unwrap()), (3, 0));
    for permit in ours {
        assert!(matches!(permit.release().await, Err(Error::Lost { .. })));
    }

    // We release their permits in one step. A waiter of ours enters.
    let waits = tokio::spawn({
        let permits = permits.clone();
        async move { permits.acquire_many(4).await.unwrap() }
    });
    assert!(we_wait(&server, &locks, "permits@p").await);
    assert!(permits.release_many(&theirs).await.unwrap() && !permits.release_many(&theirs).await.unwrap());
    assert!(permits.release_many(&three).await.unwrap());
    let four = within(WOKEN, waits).await.unwrap();
    // They read the lease of our permit, which was extended.
    let id = four[0].id().to_string();
    assert!(permits.extend(four[0].id(), 10 * LEASE).await.unwrap());
    let left: u128 = thread.call("permits@p", "getLeaseTime", &[&id]).done().await.parse().unwrap();
    assert!(left > 5 * LEASE.as_millis(), "{left}");
    drop(four);
    assert!(eventually(PATIENCE, async || permits.available().await.unwrap() == 5).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expired_permit_admits_other_side() {
    let Some((server, java, locks)) = both_sides(LEASE).await else { return };
    let (thread, permits) = (java.thread("t"), locks.permit_semaphore("p"));
    assert_eq!(thread.call("permits@p", "trySetPermits", &[&1]).done().await, "true");

    // Their lease ends.
    let id = thread.call("permits@p", "acquire", &[&BRIEF.as_millis()]).done().await;
    let permit = within(WOKEN, permits.acquire()).await.unwrap();
    let thrown = thread.call("permits@p", "release", &[&id]).answer().await.result.unwrap_err();
    assert_eq!(thrown.class, NO_SUCH_PERMIT);
    assert!(permit.is_valid() && permits.acquired().await.unwrap() == 1);
    permit.release().await.unwrap();

    // Our lease ends. A late release takes nothing away.
    let permit = permits.with_lease(BRIEF).acquire().await.unwrap();
    let asked = attempts(&server);
    let waits = thread.call("permits@p", "acquire", &[]);
    assert!(java_waits(&server, "permits@p", asked).await);
    within(WOKEN, waits.done()).await;
    assert_eq!(lost(&permit).await, LostReason::Expired);
    assert!(matches!(permit.release().await, Err(Error::Lost { .. })));
    assert_eq!((permits.acquired().await.unwrap(), permits.permits().await.unwrap()), (1, 1));

    // The server does not say when a permit without an end will be free.
    assert!(!permits.try_acquire_for(BRIEF).await.unwrap().is_acquired());
}

/// The permit comes back within one lease. Nothing of the counted semaphore comes back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_killed_process_had() {
    let Some((server, java, locks)) = both_sides(LEASE).await else { return };
    let (permits, counted) = (locks.permit_semaphore("p"), locks.semaphore("s"));
    assert!(permits.try_set_permits(1).await.unwrap() && counted.try_set_permits(5).await.unwrap());
    let thread = java.thread("t");

    // Our process dies, and their thread waits.
    let workers = ["permits@p", "semaphore@s"].map(|name| {
        let mut worker = spawn(&server, name);
        assert_eq!(worker.ask(&worker::Request::Acquire).unwrap().what, Outcome::Acquired);
        worker
    });
    let asked = attempts(&server);
    let waits = thread.call("permits@p", "acquire", &[]);
    assert!(java_waits(&server, "permits@p", asked).await && extended_permit(&server, "p").await);
    let killed = monotonic();
    for worker in workers {
        worker.kill().unwrap();
    }
    let succeeded = waits.answer().await;
    let took = succeeded.ended - killed;
    assert!(took <= SHORT_LEASE + SLACK, "Java succeeded us after {took:?}");
    let id = succeeded.result.unwrap();
    assert_eq!(thread.call("semaphore@s", "availablePermits", &[]).done().await, "3", "two are gone");
    assert_eq!(thread.call("semaphore@s", "tryAcquire", &[&4]).done().await, "false");
    assert_eq!(thread.call("permits@p", "tryRelease", &[&id]).done().await, "true");

    // Their process dies, and our task waits. No watchdog renews their permits.
    let peer = interop::start().unwrap();
    let doomed = peer.open("doomed", &server.url(), SHORT_LEASE).await.thread("t");
    doomed.call("permits@p", "acquire", &[&SHORT_LEASE.as_millis()]).done().await;
    doomed.call("semaphore@s", "acquire", &[&2]).done().await;
    let waits = permit_waiter(&locks, "p");
    assert!(eventually(PATIENCE, async || locks.metrics().waiting == 1).await);
    let killed = monotonic();
    peer.kill();
    let (succeeded, permit) = waits.await.unwrap();
    let took = succeeded.saturating_sub(killed);
    assert!(took <= SHORT_LEASE + SLACK, "we succeeded Java after {took:?}");
    assert_eq!(counted.available().await.unwrap(), 1, "two more are gone");
    assert!(!counted.try_acquire(2).await.unwrap().is_acquired());
    permit.release().await.unwrap();
    assert_eq!((permits.available().await.unwrap(), permits.permits().await.unwrap()), (1, 1));
}

/// A pool for workers of both sides. The witness is the clock that all processes share.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shared_pool_never_exceeds_permits() {
    let Some((server, java, locks)) = both_sides(LEASE).await else { return };
    let managers = [locks, manager(&server.url()).await];
    let clients = [java, shared_client("more", &server, LEASE).await];
    for object in ["semaphore@pool", "permits@leased pool"] {
        clients[0].thread("t0").call(object, "trySetPermits", &[&POOL]).done().await;
        let time = seconds();
        let theirs: Vec<_> = (0..WORKERS)
            .map(|number| clients[number % 2].thread(&format!("t{number}")))
            .map(|thread| thread.call(object, "visit", &[&time.as_millis()]))
            .collect();
        let ours: Vec<_> = (0..WORKERS)
            .map(|number| {
                let locks = managers[number % 2].clone();
                tokio::spawn(async move { visit(&locks, object, time).await })
            })
            .collect();
        let mut visits = Vec::new();
        for task in ours {
            visits.extend(task.await.unwrap());
        }
        let by_us = visits.len();
        for call in theirs {
            visits.extend(call.done().await.lines().map(Visit::parse));
        }
        let most = most_inside(&visits);
        println!("{object}: ours {by_us}, theirs {}, at most {most} inside", visits.len() - by_us);
        assert!(most <= u64::from(POOL), "{object}: {most} inside");
        assert!(most > 1 && by_us > 0 && by_us < visits.len(), "{object}: the witness has seen both");
        let free = clients[0].thread("t0").call(object, "availablePermits", &[]).done().await;
        assert_eq!(free, POOL.to_string(), "{object}");
    }
}

/// Each kind works beside Java under plain names. A latch whose name has a hash tag works among our own processes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_changes_wake_other_side() {
    let Some(peer) = interop::shared() else { return };
    let set = Cluster::start(3, 0, &Settings::default());
    let java = peer.open("cluster-semaphores", &set.url(), LEASE).await;
    let locks = manager(&set.url()).await;
    let listening = async |channel: &str| {
        let count = || -> u32 {
            let counts = set.nodes().iter().map(|node| node.cli(&["PUBSUB", "SHARDNUMSUB", channel]));
            counts.filter_map(|answer| answer.lines().last()?.parse::<u32>().ok()).sum()
        };
        assert!(eventually(PATIENCE, async || count() == 1).await, "{channel}");
    };
    let thread = java.thread("t");
    // Each round uses another name, because subscriptions linger.
    for tag in ["orders:42", "b", "x{t}y"] {
        let channel = |name: &str| {
            if tag.contains('{') { format!("redisson_sc:{name}") } else { format!("redisson_sc:{{{name}}}") }
        };
        let name = format!("{tag}:1");
        let semaphore = locks.semaphore(&name);
        let waits = tokio::spawn(async move { semaphore.acquire(2).await.unwrap() });
        listening(&channel(&name)).await;
        thread.call(&format!("semaphore@{name}"), "addPermits", &[&2]).done().await;
        let permits = within(WOKEN, waits).await.unwrap();
        permits.release().await.unwrap();
        let name = format!("{tag}:2");
        let waits = thread.call(&format!("semaphore@{name}"), "acquire", &[]);
        listening(&channel(&name)).await;
        locks.semaphore(&name).release(1).await.unwrap();
        within(WOKEN, waits.done()).await;

        let name = format!("{tag}:3");
        let waits = permit_waiter(&locks, &name);
        listening(&channel(&name)).await;
        thread.call(&format!("permits@{name}"), "trySetPermits", &[&1]).done().await;
        let (_, permit) = within(WOKEN, waits).await.unwrap();
        permit.release().await.unwrap();
        let name = format!("{tag}:4");
        let permits = locks.permit_semaphore(&name);
        assert_eq!(permits.set_permits(1).await.unwrap(), 1);
        let permit = permits.acquire().await.unwrap();
        let waits = thread.call(&format!("permits@{name}"), "acquire", &[]);
        listening(&channel(&name)).await;
        permit.release().await.unwrap();
        let id = within(WOKEN, waits.done()).await;
        assert!(permits.release(id.parse::<PermitId>().unwrap()).await.unwrap());
        assert!(permits.delete().await.unwrap());
    }
    for name in ["start:1", "start:2"] {
        let channel = format!("redisson_countdownlatch__channel__{{{name}}}");
        let (latch, object) = (locks.count_down_latch(name), format!("latch@{name}"));
        if name == "start:1" {
            assert_eq!(thread.call(&object, "trySetCount", &[&1]).done().await, "true");
            let waits = tokio::spawn(async move { latch.wait().await.unwrap() });
            listening(&channel).await;
            thread.call(&object, "countDown", &[]).done().await;
            within(WOKEN, waits).await.unwrap();
        } else {
            assert!(latch.try_set_count(NonZeroU32::MIN).await.unwrap());
            let waits = thread.call(&object, "await", &[]);
            listening(&channel).await;
            assert_eq!(latch.count_down().await.unwrap(), 0);
            within(WOKEN, waits.done()).await;
        }
    }
    // Redisson adds braces around the braces, which puts the channel into another slot.
    let thrown = thread.call("latch@x{t}y", "trySetCount", &[&1]).answer().await.result.unwrap_err();
    assert!(thrown.message.contains("CROSSSLOT"), "seen of Redisson: {thrown:?}");
    let others = manager(&set.url()).await;
    let latch = locks.count_down_latch("x{t}y");
    assert!(latch.try_set_count(NonZeroU32::MIN).await.unwrap());
    let waits = tokio::spawn({
        let latch = others.count_down_latch("x{t}y");
        async move { latch.wait().await.unwrap() }
    });
    listening("redisson_countdownlatch__channel__x{t}y").await;
    assert_eq!(latch.count_down().await.unwrap(), 0);
    within(WOKEN, waits).await.unwrap();
    java.close().await;
}

/// A visit with `permits` permits. It began after the grant and ended before the request for the release.
#[derive(Clone, Copy, Debug)]
struct Visit {
    permits: u64,
    began: u128,
    ended: u128,
}

impl Visit {
    fn parse(line: &str) -> Self {
        let words: Vec<_> = line.split(' ').collect();
        let [began, ended] = [words[1], words[2]].map(|word| word.parse().unwrap());
        Self { permits: words[0].parse().unwrap(), began, ended }
    }
}

/// Does the same as `visit` of [`Thread::call`] in a task of ours.
async fn visit(locks: &LockManager, object: &str, time: Duration) -> Vec<Visit> {
    let (semaphore, leased) = (locks.semaphore(key(object)), locks.permit_semaphore(key(object)));
    let (until, mut visits) = (Instant::now() + time, Vec::new());
    while Instant::now() < until {
        let permits = visits.len() as u64 % 3 + 1;
        let (held, permit) = if object.starts_with("semaphore") {
            (Some(semaphore.acquire(u32::try_from(permits).unwrap()).await.unwrap()), None)
        } else {
            (None, Some(leased.acquire().await.unwrap()))
        };
        let began = monotonic().as_nanos();
        tokio::time::sleep(Duration::from_millis(permits - 1)).await;
        let ended = monotonic().as_nanos();
        let permits = if held.is_some() { permits } else { 1 };
        visits.push(Visit { permits, began, ended });
        let released = match (held, permit) {
            (Some(held), _) => held.release().await,
            (_, Some(permit)) => permit.release().await,
            _ => Ok(()),
        };
        released.unwrap();
    }
    visits
}

fn most_inside(visits: &[Visit]) -> u64 {
    // A visit that ends in the moment in which another visit begins does not overlap with it.
    let mut steps: Vec<_> = visits
        .iter()
        .flat_map(|visit| [(visit.began, true, visit.permits), (visit.ended, false, visit.permits)])
        .collect();
    steps.sort_unstable();
    let (mut inside, mut most) = (0, 0);
    for (_, enters, permits) in steps {
        inside = if enters { inside + permits } else { inside - permits };
        most = most.max(inside);
    }
    most
}

/// Returns the duration for which each pool is used.
fn seconds() -> Duration {
    let seconds = std::env::var("WHEELLOCK_SOAK_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    Duration::from_secs(seconds.unwrap_or(3))
}

fn permit_waiter(locks: &LockManager, name: &str) -> JoinHandle<(Duration, Permit)> {
    let semaphore = locks.permit_semaphore(name);
    tokio::spawn(async move {
        let permit = semaphore.acquire().await.unwrap();
        (monotonic(), permit)
    })
}

/// Starts a process of ours that the test will kill.
fn spawn(server: &RedisServer, name: &str) -> Worker {
    let program = Command::new(env!("CARGO_BIN_EXE_lock_worker"));
    Worker::spawn(program, &server.url(), name, SHORT_LEASE).unwrap()
}

/// Returns each key on the server with its value and its TTL. The times that a sorted set has for scores are included. The records of this
/// library are not.
fn state(server: &RedisServer) -> BTreeMap<String, (String, Vec<i64>)> {
    let keys = server.cli(&["KEYS", "*"]);
    let shared = keys.lines().filter(|key| !key.is_empty() && !key.contains("wheellock_"));
    shared
        .map(|key| {
            let mut times = vec![server.cli(&["PTTL", key]).parse().unwrap()];
            let value = match server.cli(&["TYPE", key]).as_str() {
                "zset" => {
                    let said = server.cli(&["EVAL", MEMBERS, "1", key]);
                    let lines: Vec<_> = said.lines().collect();
                    times.extend(lines.chunks(2).map(|member| member[1].parse::<i64>().unwrap()));
                    lines.chunks(2).map(|member| member[0]).collect::<Vec<_>>().join(" ")
                }
                "string" => server.cli(&["GET", key]),
                other => panic!("{key} is of type {other}"),
            };
            (key.to_owned(), (value, times))
        })
        .collect()
}

/// Length of each member, and the distance of its score from now.
const MEMBERS: &str = "
    local time, said = redis.call('time'), {}
    local now = time[1] * 1000 + math.floor(time[2] / 1000)
    for place, word in ipairs(redis.call('zrange', KEYS[1], 0, -1, 'withscores')) do
        said[place] = place % 2 == 1 and tostring(#word) or string.format('%.0f', tonumber(word) - now)
    end
    return said";

type Step = (&'static str, &'static str, i64);

/// Performs a step in Java, which ignores an argument too many. Permits are released in the order in which they were acquired.
async fn by_java(
    server: &RedisServer,
    thread: &Thread,
    ids: &mut Vec<String>,
    object: &str,
    method: &str,
    argument: i64,
) -> String {
    match (object.split('@').next(), method) {
        (_, "ends") => ends(server, object, argument),
        (Some("permits"), "acquire") => {
            ids.push(thread.call(object, method, &[&argument]).done().await);
            "acquired".to_owned()
        }
        (Some("permits"), "release" | "tryRelease") => {
            let id = ids.remove(0);
            thread.call(object, method, &[&id]).done().await
        }
        _ => thread.call(object, method, &[&argument]).done().await,
    }
}

fn ends(server: &RedisServer, object: &str, argument: i64) -> String {
    server.cli(&["PEXPIRE", key(object), &argument.to_string()])
}

/// Permits that our steps hold.
#[derive(Default)]
struct InHand {
    permits: Vec<Permits>,
    leased: Vec<Permit>,
}

impl InHand {
    fn forget(self) {
        self.permits.into_iter().for_each(Permits::forget);
        self.leased.into_iter().for_each(std::mem::forget);
    }
}

/// Performs a step here, and returns the same reply as Java.
async fn by_us(
    server: &RedisServer,
    locks: &LockManager,
    held: &mut InHand,
    object: &str,
    method: &str,
    argument: i64,
) -> String {
    if method == "ends" {
        return ends(server, object, argument);
    }
    let count = u32::try_from(argument).unwrap_or_default();
    match object.split('@').next() {
        Some("semaphore") => {
            let semaphore = locks.semaphore(key(object));
            match method {
                "acquire" => {
                    held.permits.push(semaphore.acquire(count).await.unwrap());
                    "acquired".to_owned()
                }
                "tryAcquire" => {
                    let permits = semaphore.try_acquire(count).await.unwrap();
                    let granted = permits.is_acquired();
                    held.permits.extend(permits.acquired());
                    granted.to_string()
                }
                "release" => {
                    match held.permits.first_mut().and_then(|permits| permits.split(count)) {
                        Some(part) => part.release().await.unwrap(),
                        None => semaphore.release(count).await.unwrap(),
                    }
                    "released".to_owned()
                }
                "trySetPermits" => semaphore.try_set_permits(count).await.unwrap().to_string(),
                "addPermits" => {
                    semaphore.add_permits(argument).await.unwrap();
                    "added".to_owned()
                }
                "drainPermits" => semaphore.drain().await.unwrap().to_string(),
                "availablePermits" => semaphore.available().await.unwrap().to_string(),
                "delete" => semaphore.delete().await.unwrap().to_string(),
                other => panic!("{other}"),
            }
        }
        Some("permits") => {
            let semaphore = locks.permit_semaphore(key(object));
            match method {
                "acquire" => {
                    let lease = Duration::from_millis(argument.unsigned_abs());
                    held.leased.push(semaphore.with_lease(lease).acquire().await.unwrap());
                    "acquired".to_owned()
                }
                "release" => {
                    held.leased.remove(0).release().await.unwrap();
                    "released".to_owned()
                }
                "tryRelease" => {
                    let permit = held.leased.remove(0);
                    let released = semaphore.release(permit.id()).await.unwrap();
                    std::mem::forget(permit);
                    released.to_string()
                }
                "trySetPermits" => semaphore.try_set_permits(count).await.unwrap().to_string(),
                "setPermits" => {
                    semaphore.set_permits(count).await.unwrap();
                    "set".to_owned()
                }
                "addPermits" => {
                    semaphore.add_permits(argument).await.unwrap();
                    "added".to_owned()
                }
                "availablePermits" => semaphore.available().await.unwrap().to_string(),
                "acquiredPermits" => semaphore.acquired().await.unwrap().to_string(),
                "getPermits" => semaphore.permits().await.unwrap().to_string(),
                "delete" => semaphore.delete().await.unwrap().to_string(),
                other => panic!("{other}"),
            }
        }
        _ => {
            let latch = locks.count_down_latch(key(object));
            match method {
                "trySetCount" => {
                    latch.try_set_count(NonZeroU32::new(count).unwrap()).await.unwrap().to_string()
                }
                "countDown" => {
                    latch.count_down().await.unwrap();
                    "counted".to_owned()
                }
                "getCount" => latch.count().await.unwrap().to_string(),
                "delete" => latch.delete().await.unwrap().to_string(),
                other => panic!("{other}"),
            }
        }
    }
}

/// Calls after which Redisson's own state is correct. The other calls are in `where_redissons_state_is_not_copied`.
const SAME_STATE: &[&[Step]] = &[
    &[
        ("semaphore@s", "trySetPermits", 5),
        ("semaphore@s", "trySetPermits", 7),
        ("semaphore@s", "acquire", 2),
        ("semaphore@s", "tryAcquire", 4),
        ("semaphore@s", "tryAcquire", 3),
        ("semaphore@s", "availablePermits", 0),
        ("semaphore@s", "release", 1),
        ("semaphore@s", "addPermits", 4),
        ("semaphore@s", "drainPermits", 0),
        ("semaphore@s", "addPermits", -2),
        ("semaphore@s", "tryAcquire", 1),
        ("semaphore@s", "release", 1),
        ("semaphore@s", "availablePermits", 0),
        ("semaphore@s", "delete", 0),
        ("semaphore@s", "delete", 0),
        ("semaphore@s", "availablePermits", 0),
        ("semaphore@s", "tryAcquire", 1),
    ],
    // A release creates a missing semaphore, and a TTL stays.
    &[
        ("semaphore@x{n}y", "release", 4),
        ("semaphore@x{n}y", "ends", 60_000),
        ("semaphore@x{n}y", "acquire", 1),
        ("semaphore@x{n}y", "release", 1),
        ("semaphore@x{n}y", "trySetPermits", 4),
    ],
    &[
        ("permits@p", "trySetPermits", 3),
        ("permits@p", "trySetPermits", 5),
        ("permits@p", "acquire", 20_000),
        ("permits@p", "acquire", 40_000),
        ("permits@p", "availablePermits", 0),
        ("permits@p", "acquiredPermits", 0),
        ("permits@p", "getPermits", 0),
        ("permits@p", "setPermits", 5),
        ("permits@p", "setPermits", 1),
        ("permits@p", "setPermits", 4),
        ("permits@p", "addPermits", 2),
        ("permits@p", "addPermits", -1),
        ("permits@p", "release", 0),
        ("permits@p", "tryRelease", 0),
        ("permits@p", "getPermits", 0),
        ("permits@p", "acquire", 20_000),
        ("permits@p", "delete", 0),
        ("permits@p", "delete", 0),
        ("permits@p", "availablePermits", 0),
    ],
    &[
        ("permits@x{n}y", "addPermits", 2),
        ("permits@x{n}y", "ends", 60_000),
        ("permits@x{n}y", "acquire", 20_000),
        ("permits@x{n}y", "release", 0),
        ("permits@x{n}y", "setPermits", 2),
    ],
    &[("permits@p", "setPermits", 2), ("permits@p", "acquire", 20_000), ("permits@p", "release", 0)],
    &[
        ("latch@l", "trySetCount", 2),
        ("latch@l", "trySetCount", 3),
        ("latch@l", "getCount", 0),
        ("latch@l", "countDown", 0),
        ("latch@l", "getCount", 0),
        ("latch@l", "countDown", 0),
        ("latch@l", "getCount", 0),
        ("latch@l", "countDown", 0),
        ("latch@l", "trySetCount", 1),
        ("latch@l", "delete", 0),
        ("latch@l", "delete", 0),
    ],
    &[("latch@x{n}y", "trySetCount", 1), ("latch@x{n}y", "countDown", 0)],
];
/// In milliseconds. Time passes between the steps of the two sides.
const TOLERANCE: u64 = 2_000;

/// Redisson's exception for the release of a permit that no longer exists.
const NO_SUCH_PERMIT: &str = "org.redisson.client.RedisException";

/// Number of permits of a pool. The next constant is the number of workers of each side.
const POOL: u32 = 10;
const WORKERS: usize = 10;
/// Redisson's default.
const LEASE: Duration = Duration::from_secs(30);
/// Short enough to see many renewals, and long enough for two busy processes to renew in time.
const SHORT_LEASE: Duration = Duration::from_secs(3);
/// A lease that is to end.
const BRIEF: Duration = Duration::from_secs(1);
/// Delay that scheduling may add to the end of a lease on a busy machine.
const SLACK: Duration = Duration::from_secs(1);
