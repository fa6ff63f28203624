//! Read-write, fenced and spin locks shared with Redisson. Each promise is tested in both directions on real servers.
//!
//! Every test has its own server and its own Redisson client. All tests share the JVM. Without Java all tests are skipped. The kind of a
//! lock precedes its name.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use tokio::task::yield_now;
use wheellock::{Error, Guard, LockManager, Owner};
use wheellock_tests::beside::{
    attempts, both_sides, channel, extended, java_waits, key, quiet, shared_client, subscribers, waiter,
    we_wait, within,
};
use wheellock_tests::interop::{self, Client, Thread};
use wheellock_tests::locks::{PATIENCE, WOKEN, clock, gone, lost, manager, taken};
use wheellock_tests::worker::{self, Outcome, Worker, monotonic, of_kind};
use wheellock_tests::{RedisServer, eventually};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreign_holds_exclude_and_stay_counted() {
    let Some((server, java, locks)) = both_sides(LEASE).await else { return };
    let (thread, other) = (java.thread("t"), java.thread("other"));
    let theirs = java.owner(thread.number().await);
    for (held, wanted) in PAIRS {
        let [ours, wants] = [held, wanted].map(|name| of_kind(&locks, name));
        assert!(!ours.is_locked().await.unwrap());

        // Their holds.
        for depth in 1..=3 {
            thread.lock(held).done().await;
            assert_eq!(holds(&server, held, &theirs), depth, "{held}");
            assert!(!wants.try_acquire().await.unwrap().is_acquired(), "{held}");
        }
        assert!(ours.is_locked().await.unwrap(), "{held}");
        for depth in (0..3).rev() {
            assert!(!wants.try_acquire().await.unwrap().is_acquired(), "{held}");
            thread.unlock(held).done().await;
            assert_eq!(holds(&server, held, &theirs), depth, "{held}");
        }
        release(wants.try_acquire().await.unwrap().acquired().expect("free")).await;

        // Our holds.
        assert_eq!(thread.is_locked(held).done().await, "false", "{held}");
        let owner = locks.owner();
        let mut guards = Vec::new();
        for depth in 1..=3 {
            guards.push(ours.with_owner(owner.clone()).acquire().await.unwrap());
            assert_eq!(holds(&server, held, &owner.to_string()), depth, "{held}");
            assert_eq!(thread.try_lock(wanted).done().await, "false", "{held}");
            for thread in [&thread, &other] {
                let thrown = thread.unlock(held).answer().await.result.unwrap_err();
                assert_eq!(thrown.class, NOT_THE_HOLDER, "{held}");
            }
        }
        assert_eq!(thread.is_locked(held).done().await, "true", "{held}");
        while let Some(guard) = guards.pop() {
            assert_eq!(thread.try_lock(wanted).done().await, "false", "{held}");
            release(guard).await;
            assert_eq!(holds(&server, held, &owner.to_string()), guards.len(), "{held}");
        }
        assert_eq!(thread.try_lock(wanted).done().await, "true", "{held}");
        thread.unlock(wanted).done().await;
    }
    assert_eq!(left(&server), [TOKEN]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn release_wakes_other_side() {
    let Some((server, java, locks)) = both_sides(LEASE).await else { return };
    let thread = java.thread("t");
    for (held, wanted) in PAIRS {
        let guard = of_kind(&locks, held).acquire().await.unwrap();
        let asked = attempts(&server);
        let waits = thread.lock(wanted);
        assert!(java_waits(&server, wanted, asked).await && asleep(&[&thread]).await, "{held}");
        release(guard).await;
        within(WOKEN, waits.done()).await;
        thread.unlock(wanted).done().await;

        assert!(channel(held).is_none() || quiet(&server, held).await);
        thread.lock(held).done().await;
        let waits = waiter(&locks, wanted);
        assert!(we_wait(&server, &locks, wanted).await, "{held}");
        thread.unlock(held).done().await;
        release(within(WOKEN, waits).await.unwrap().1).await;
    }
    assert_eq!(left(&server), [TOKEN]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mixed_readers_share_last_wakes_writer() {
    let Some((server, java, locks)) = both_sides(LEASE).await else { return };
    let (writer, write) = (java.thread("writer"), of_kind(&locks, "write@n"));
    for java_writes_first in [true, false] {
        let mut guard = None;
        if java_writes_first {
            writer.lock("write@n").done().await;
        } else {
            guard = Some(write.acquire().await.unwrap());
        }
        let asked = attempts(&server);
        let threads: Vec<_> = (0..3).map(|number| java.thread(&format!("reader{number}"))).collect();
        let theirs: Vec<_> = threads.iter().map(|thread| thread.lock("read@n")).collect();
        let ours: Vec<_> = (0..3).map(|_| waiter(&locks, "read@n")).collect();
        assert!(subscribers(&server, "read@n", "2").await && we_all_wait(&locks, 3).await);
        // Each thread of theirs sends two requests. Of our waiters only one sends requests.
        assert!(eventually(PATIENCE, async || attempts(&server) >= asked + 8).await);
        assert!(asleep(&threads.iter().collect::<Vec<_>>()).await);
        match guard {
            Some(guard) => release(guard).await,
            None => assert_eq!(writer.unlock("write@n").done().await, "unlocked"),
        }
        let mut guards = Vec::new();
        for waits in ours {
            guards.push(within(WOKEN, waits).await.unwrap().1);
        }
        for waits in theirs {
            within(WOKEN, waits.done()).await;
        }
        assert_eq!(server.cli(&["HLEN", "n"]), "7", "six readers and the mode");
        assert!(quiet(&server, "read@n").await);

        // The readers leave in turn. The last reader wakes the writer of the other side.
        let asked = attempts(&server);
        if java_writes_first {
            let waits = waiter(&locks, "write@n");
            assert!(we_wait(&server, &locks, "write@n").await);
            for (guard, thread) in guards.into_iter().zip(&threads) {
                assert!(!waits.is_finished());
                release(guard).await;
                thread.unlock("read@n").done().await;
            }
            release(within(WOKEN, waits).await.unwrap().1).await;
        } else {
            let waits = writer.lock("write@n");
            assert!(java_waits(&server, "write@n", asked).await);
            for (guard, thread) in guards.into_iter().zip(&threads) {
                assert!(!write.try_acquire().await.unwrap().is_acquired());
                thread.unlock("read@n").done().await;
                release(guard).await;
            }
            within(WOKEN, waits.done()).await;
            writer.unlock("write@n").done().await;
        }
        assert!(left(&server).is_empty());
        assert!(quiet(&server, "read@n").await);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn downgrade_wakes_java_readers() {
    let Some((server, java, locks)) = both_sides(LEASE).await else { return };
    let writing = of_kind(&locks, "write@n").acquire().await.unwrap();
    let reading = of_kind(&locks, "read@n").with_owner(writing.owner()).acquire().await.unwrap();
    let asked = attempts(&server);
    let threads = ["one", "two", "three"].map(|name| java.thread(name));
    let waiting = threads.each_ref().map(|thread| thread.lock("read@n"));
    assert!(java_waits(&server, "read@n", asked + 4).await && asleep(&threads.each_ref()).await);
    release(writing).await;
    for waits in waiting {
        within(WOKEN, waits.done()).await;
    }
    assert_eq!(java.thread("writer").try_lock("write@n").done().await, "false");
    for thread in &threads {
        thread.unlock("read@n").done().await;
    }
    assert_eq!(java.thread("writer").try_lock("write@n").done().await, "false", "it still reads");
    release(reading).await;
    assert!(left(&server).is_empty());
}

/// Redisson sends no message about it. A new reader is let in, and a waiting reader polls by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn java_downgrade_admits_local_readers() {
    let Some((server, java, locks)) = both_sides(LEASE).await else { return };
    let (thread, fresh) = (java.thread("t"), manager(&server.url()).await);
    thread.lock("write@n").done().await;
    thread.lock("read@n").done().await;
    assert!(!of_kind(&fresh, "read@n").try_acquire().await.unwrap().is_acquired());
    let waits = waiter(&locks, "read@n");
    assert!(we_wait(&server, &locks, "read@n").await);
    thread.unlock("write@n").done().await;
    let reading =
        of_kind(&fresh, "read@n").try_acquire().await.unwrap().acquired().expect("nobody writes any more");
    let (_, woken) = within(PATIENCE, waits).await.unwrap();
    assert!(!of_kind(&fresh, "write@n").try_acquire().await.unwrap().is_acquired());
    for guard in [reading, woken] {
        release(guard).await;
    }
    assert!(!of_kind(&fresh, "write@n").try_acquire().await.unwrap().is_acquired(), "it still reads");
    thread.unlock("read@n").done().await;
    assert!(left(&server).is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_release_spares_successor() {
    let Some((server, java, locks)) = both_sides(LEASE).await else { return };

    // Our leases end and their holds follow. Our late releases do not change their holds.
    let mut late = Vec::new();
    for (held, wanted) in PAIRS {
        let guard = of_kind(&locks, held).with_lease(BRIEF).acquire().await.unwrap();
        late.push((guard, java.thread(wanted).try_lock_for(wanted, LEASE)));
    }
    for ((guard, waits), (_, wanted)) in late.into_iter().zip(PAIRS) {
        assert_eq!(waits.done().await, "true", "{wanted}");
        lost(&guard).await;
        assert!(matches!(guard.release().await, Err(Error::Lost { .. })), "{wanted}");
        let thread = java.thread(wanted);
        assert_eq!(holds(&server, wanted, &java.owner(thread.number().await)), 1, "{wanted}");
        thread.unlock(wanted).done().await;
    }

    // Their leases end and our holds follow. Their late unlocks fail and do not change our holds.
    for (held, _) in PAIRS {
        java.thread(held).lock_with_lease(held, BRIEF).done().await;
    }
    for (held, wanted) in PAIRS {
        let guard =
            of_kind(&locks, wanted).try_acquire_for(LEASE).await.unwrap().acquired().expect("it has ended");
        let thrown = java.thread(held).unlock(held).answer().await.result.unwrap_err();
        assert_eq!(thrown.class, NOT_THE_HOLDER, "{held}");
        assert_eq!(holds(&server, wanted, &guard.owner().to_string()), 1, "{wanted}");
        release(guard).await;
    }
    assert_eq!(left(&server), [TOKEN]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forced_release_wakes_other_side() {
    let Some((server, java, locks)) = both_sides(LEASE).await else { return };
    let [thread, next, boss] = ["t", "next", "boss"].map(|name| java.thread(name));
    for (held, wanted) in PAIRS {
        // We release their lock by force.
        thread.lock(held).done().await;
        let asked = attempts(&server);
        let waits = next.lock(wanted);
        assert!(java_waits(&server, wanted, asked).await && asleep(&[&next]).await, "{held}");
        assert!(of_kind(&locks, held).force_release().await.unwrap(), "{held}");
        within(WOKEN, waits.done()).await;
        let thrown = thread.unlock(held).answer().await.result.unwrap_err();
        assert_eq!(thrown.class, NOT_THE_HOLDER, "{held}");
        next.unlock(wanted).done().await;
        assert!(!of_kind(&locks, held).force_release().await.unwrap(), "{held}");
        assert!(left(&server).iter().all(|key| key == TOKEN), "{held}: nothing of the readers stays");
    }
    for (held, wanted) in PAIRS {
        // They release our lock by force.
        assert!(channel(held).is_none() || quiet(&server, held).await);
        let robbed = of_kind(&locks, held).acquire().await.unwrap();
        let waiting = manager(&server.url()).await;
        let waits = waiter(&waiting, wanted);
        assert!(we_wait(&server, &waiting, wanted).await, "{held}");
        assert_eq!(boss.force_unlock(held).done().await, "true", "{held}");
        let (_, guard) = within(WOKEN, waits).await.unwrap();
        assert!(matches!(robbed.release().await, Err(Error::Lost { .. })), "{held}");
        assert!(guard.is_valid());
        release(guard).await;
        assert_eq!(boss.force_unlock(held).done().await, "false", "{held}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_holder_succeeded_within_lease() {
    let Some((server, java, locks)) = both_sides(LEASE).await else { return };

    // Our holders die, and their threads wait.
    let mut doomed = Vec::new();
    for (held, _) in PAIRS {
        let mut worker = spawn(&server, held);
        assert_eq!(worker.ask(&worker::Request::Acquire).unwrap().what, Outcome::Acquired);
        doomed.push(worker);
    }
    let asked = attempts(&server);
    let waiting: Vec<_> = PAIRS.iter().map(|(_, wanted)| java.thread(wanted).lock(wanted)).collect();
    for (held, wanted) in PAIRS {
        assert!(java_waits(&server, wanted, asked + 20).await && extended(&server, held).await, "{held}");
    }
    for worker in doomed {
        worker.kill().unwrap();
    }
    // Each holder may have renewed until it died.
    let killed = monotonic();
    for (waits, (held, wanted)) in waiting.into_iter().zip(PAIRS) {
        let succeeded = waits.answer().await;
        assert_eq!(succeeded.result.as_deref(), Ok("locked"));
        let took = succeeded.ended.saturating_sub(killed);
        assert!(took <= SHORT_LEASE + SLACK, "Java succeeded us in {held} after {took:?}");
        java.thread(wanted).unlock(wanted).done().await;
    }

    // Their holders die, and our tasks wait.
    let peer = interop::start().unwrap();
    let client = peer.open("doomed", &server.url(), SHORT_LEASE).await;
    for (held, _) in PAIRS {
        assert!(channel(held).is_none() || quiet(&server, held).await);
        client.thread(held).lock(held).done().await;
    }
    let waiting = PAIRS.map(|(_, wanted)| waiter(&locks, wanted));
    for (held, wanted) in PAIRS {
        assert!(we_wait(&server, &locks, wanted).await && extended(&server, held).await, "{held}");
    }
    let killed = monotonic();
    peer.kill();
    for (waits, (held, _)) in waiting.into_iter().zip(PAIRS) {
        let (succeeded, guard) = waits.await.unwrap();
        let took = succeeded - killed;
        assert!(took <= SHORT_LEASE + SLACK, "we succeeded Java in {held} after {took:?}");
        release(guard).await;
    }
    assert_eq!(left(&server), [TOKEN]);
}

/// The live reader leaves. The hold of a dead reader keeps the writer out until its lease ends and not longer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_reader_blocks_writers_one_lease() {
    let Some((server, java, locks)) = both_sides(LEASE).await else { return };
    let thread = java.thread("t");
    let peer = interop::start().unwrap();
    let client = peer.open("doomed", &server.url(), SHORT_LEASE).await;
    client.thread("t").lock("read@theirs").done().await;
    let mut worker = spawn(&server, "read@ours");
    assert_eq!(worker.ask(&worker::Request::Acquire).unwrap().what, Outcome::Acquired);
    let guard = of_kind(&locks, "read@theirs").acquire().await.unwrap();
    thread.lock("read@ours").done().await;
    let waiting = ["write@theirs", "write@ours"].map(|name| waiter(&locks, name));
    assert!(we_all_wait(&locks, 2).await);
    peer.kill();
    worker.kill().unwrap();
    release(guard).await;
    thread.unlock("read@ours").done().await;
    for waits in waiting {
        release(within(PATIENCE, waits).await.unwrap().1).await;
    }
    assert!(left(&server).is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_waiter_leaves_lock_free() {
    let Some((server, java, locks)) = both_sides(LEASE).await else { return };

    // Their waiters die.
    let peer = interop::start().unwrap();
    let client = peer.open("doomed", &server.url(), SHORT_LEASE).await;
    let mut guards = Vec::new();
    for (held, wanted) in PAIRS {
        guards.push(of_kind(&locks, held).acquire().await.unwrap());
        let asked = attempts(&server);
        let _never = client.thread(wanted).lock(wanted);
        assert!(java_waits(&server, wanted, asked).await, "{wanted}");
    }
    peer.kill();
    for guard in guards {
        release(guard).await;
    }
    both_may(&java, &locks).await;

    // Our waiters die.
    for (held, wanted) in PAIRS {
        assert!(channel(held).is_none() || quiet(&server, held).await);
        java.thread(held).lock(held).done().await;
        let asked = attempts(&server);
        let mut worker = spawn(&server, wanted);
        worker.request(&worker::Request::Acquire).unwrap();
        assert!(java_waits(&server, wanted, asked).await, "{wanted}");
        worker.kill().unwrap();
    }
    for (held, _) in PAIRS {
        java.thread(held).unlock(held).done().await;
    }
    both_may(&java, &locks).await;
}

/// Java does not read the mark of our waiting writers. Our readers wait for such a writer only as long as the mark lasts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_writer_blocks_only_local_readers() {
    let Some((server, java, locks)) = both_sides(LEASE).await else { return };
    let [first, second] = ["first", "second"].map(|name| java.thread(name));
    first.lock("read@n").done().await;
    let mut worker = spawn(&server, "write@n");
    worker.request(&worker::Request::Acquire).unwrap();
    assert!(taken(&server, "{n}:wheellock_writer").await);
    let lasts: u64 = server.cli(&["PTTL", "{n}:wheellock_writer"]).parse().unwrap();
    assert!((1..=6_000).contains(&lasts), "{lasts}");
    assert_eq!(second.try_lock("read@n").done().await, "true");
    let read = of_kind(&locks, "read@n");
    assert!(!read.try_acquire().await.unwrap().is_acquired());
    worker.kill().unwrap();
    let guard = read.try_acquire_for(PATIENCE).await.unwrap().acquired().expect("it is dead");
    assert_eq!(server.cli(&["HLEN", "n"]), "4", "beside the readers in Java");
    release(guard).await;
    for thread in [&first, &second] {
        thread.unlock("read@n").done().await;
    }
    assert!(left(&server).is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watchdog_excludes_other_side() {
    let Some((server, java, locks)) = both_sides(SHORT_LEASE).await else { return };
    let of = |side: &str, name: &str| format!("{name}:{side}");
    let wait = 3 * SHORT_LEASE;
    let (mut guards, mut refused, mut refused_here) = (Vec::new(), Vec::new(), Vec::new());
    for (held, wanted) in PAIRS {
        java.thread(held).lock(&of("theirs", held)).done().await;
        guards.push(of_kind(&locks, &of("ours", held)).acquire().await.unwrap());
        refused.push(java.thread(&of("ours", wanted)).try_lock_for(&of("ours", wanted), wait));
        let wants = of_kind(&locks, &of("theirs", wanted));
        refused_here.push(tokio::spawn(async move { wants.try_acquire_for(wait).await.unwrap() }));
    }
    // A lock that both sides read. Redisson 3.52 renews the timeout keys of only one read lock of each client.
    let one_by_one = interop::chosen_version().is_some();
    let other = if one_by_one { shared_client("other", &server, SHORT_LEASE).await } else { java.clone() };
    other.thread("both").lock("read@both").done().await;
    guards.push(of_kind(&locks, "read@both").acquire().await.unwrap());
    let refused_by_both = java.thread("neither").try_lock_for("write@both", wait);
    for ((theirs, ours), (held, _)) in refused.into_iter().zip(refused_here).zip(PAIRS) {
        assert_eq!(theirs.done().await, "false", "Java waited for our {held}");
        assert!(!ours.await.unwrap().is_acquired(), "we waited for Java's {held}");
    }
    assert_eq!(refused_by_both.done().await, "false");
    for guard in guards {
        assert!(guard.is_valid());
        release(guard).await;
    }
    for (held, _) in PAIRS {
        java.thread(held).unlock(&of("theirs", held)).done().await;
    }
    other.thread("both").unlock("read@both").done().await;
    let tokens = ["ours", "theirs"].map(|side| format!("redisson_lock_token:{{f:{side}}}"));
    assert_eq!(left(&server), tokens);
}

/// Redisson's watchdog of readers sets the lock's TTL to its own lease, whatever the leases of the other readers are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reader_lease_outlives_java_watchdog() {
    let Some((server, java, locks)) = both_sides(SHORT_LEASE).await else { return };
    let guard = of_kind(&locks, "read@n").with_lease(2 * LEASE).acquire().await.unwrap();
    let pttl = || -> u128 { server.cli(&["PTTL", "n"]).parse().unwrap_or_default() };
    let peer = interop::start().unwrap();
    peer.open("doomed", &server.url(), SHORT_LEASE).await.thread("t").lock("read@n").done().await;
    assert!(eventually(PATIENCE, async || pttl() <= SHORT_LEASE.as_millis()).await, "Java shortens it");
    peer.kill();
    if interop::chosen_version().is_some() {
        // The watchdog of 3.52 also shortens our timeout key. This is known.
        lost(&guard).await;
        return;
    }
    assert!(eventually(PATIENCE, async || pttl() > LEASE.as_millis()).await, "and we put it back");
    let theirs = server.cli(&["KEYS", "*rwlock_timeout*"]);
    let theirs = theirs.split_whitespace().find(|key| !key.contains(&guard.owner().to_string())).unwrap();
    assert!(gone(&server, theirs).await);
    assert!(guard.is_valid());
    assert_eq!(java.thread("t").try_lock("write@n").done().await, "false");
    release(guard).await;
    assert!(eventually(PATIENCE, async || server.cli(&["EXISTS", "n"]) == "0").await);
}

/// The same calls on either side leave the same keys, fields and TTLs after each step.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn same_calls_leave_same_state() {
    let Some((server, java, locks)) = both_sides(LEASE).await else { return };
    for (number, steps) in SAME_STATE.iter().enumerate() {
        let mut theirs = Vec::new();
        // A lock object of Redisson remembers its last lease.
        let threads = ["first", "second"].map(|name| java.thread(&format!("{name}-{number}")));
        let owners = [threads[0].number().await, threads[1].number().await].map(|number| java.owner(number));
        for Step(actor, does, name, lease) in *steps {
            let thread = &threads[*actor];
            match (does, lease) {
                (Lock, 0) => thread.lock(name).done().await,
                (Lock, lease) => thread.lock_with_lease(name, Duration::from_secs(*lease)).done().await,
                (Unlock, _) => thread.unlock(name).done().await,
            };
            theirs.push(state(&server, &owners));
        }
        assert_eq!(server.cli(&["FLUSHALL"]), "OK");

        let owners = [locks.owner(), locks.owner()];
        let names = owners.each_ref().map(Owner::to_string);
        let mut guards: HashMap<(usize, &str), Vec<Guard>> = HashMap::new();
        for (Step(actor, does, name, lease), theirs) in steps.iter().zip(theirs) {
            let held = guards.entry((*actor, *name)).or_default();
            match does {
                Lock => {
                    let lock = of_kind(&locks, name).with_owner(owners[*actor].clone());
                    let lock = if *lease == 0 { lock } else { lock.with_lease(Duration::from_secs(*lease)) };
                    held.push(lock.acquire().await.unwrap());
                }
                Unlock => release(held.pop().unwrap()).await,
            }
            let ours = state(&server, &names);
            let what = format!("after {does:?} {name} by {actor}: theirs {theirs:?}, ours {ours:?}");
            assert!(ours.keys().eq(theirs.keys()), "{what}");
            for (key, (value, ttl)) in ours {
                let (their_value, their_ttl) = &theirs[&key];
                assert!(&value == their_value && ttl.abs_diff(*their_ttl) <= TOLERANCE, "{key} {what}");
            }
        }
        assert_eq!(server.cli(&["FLUSHALL"]), "OK");
    }
}

/// Cases that docs/interop/redisson.md lists, in which Redisson's own state is not worth copying.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_redissons_state_is_not_copied() {
    let Some((server, java, locks)) = both_sides(LEASE).await else { return };
    let thread = java.thread("t");
    let pttl = |key: &str| -> u64 { server.cli(&["PTTL", key]).parse().unwrap_or_default() };
    let minute = Duration::from_secs(60);

    // A write lock is taken again. Redisson adds the new lease to the rest of the previous lease.
    for _ in 0..2 {
        thread.lock_with_lease("write@theirs", minute).done().await;
    }
    assert!(pttl("theirs") > 100_000, "{}", pttl("theirs"));
    let write = of_kind(&locks, "write@ours").with_lease(minute);
    let outer = write.acquire().await.unwrap();
    let inner = write.with_owner(outer.owner()).with_lease(BRIEF).acquire().await.unwrap();
    assert!((55_000..=60_000).contains(&pttl("ours")), "neither longer nor shorter: {}", pttl("ours"));
    for guard in [inner, outer] {
        release(guard).await;
    }

    // Any lock except a read lock is taken again with a shorter lease. Redisson shortens the outer hold.
    thread.lock_with_lease("fenced@theirs too", minute).done().await;
    let token = thread.token("fenced@theirs too").done().await;
    thread.lock_with_lease("fenced@theirs too", BRIEF).done().await;
    assert!(pttl("theirs too") <= 1_000);
    assert_ne!(thread.token("fenced@theirs too").done().await, token, "and raises the token");

    // Readers lose the lock by force. Redisson lets their timeout keys expire by themselves.
    for side in ["theirs", "ours"] {
        let name = format!("read@forced by {side}");
        let _robbed = of_kind(&locks, &name).with_lease(minute).acquire().await.unwrap();
        if side == "theirs" {
            assert_eq!(thread.force_unlock(&name).done().await, "true");
        } else {
            assert!(of_kind(&locks, &name).force_release().await.unwrap());
        }
        let stays = server.cli(&["KEYS", &format!("{{forced by {side}}}:*")]);
        assert_eq!(stays.is_empty(), side == "ours", "{stays}");
    }

    // The hash of a plain lock is under a read-write lock's name. Redisson grants both locks in it.
    thread.lock("plain").done().await;
    assert_eq!(java.thread("other").try_lock("write@plain").done().await, "true", "seen of Redisson");
    thread.lock("plain too").done().await;
    for name in ["read@plain too", "write@plain too"] {
        let error = of_kind(&locks, name).try_acquire().await.unwrap_err();
        assert!(matches!(error, Error::OtherData { .. }), "{name}: {error}");
    }
    java.thread("other").lock("read@read").done().await;
    for name in ["read", "fenced@read"] {
        let error = of_kind(&locks, name).try_acquire().await.unwrap_err();
        assert!(matches!(error, Error::OtherData { .. }), "{name}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_rise_whoever_holds() {
    let Some((server, java, locks)) = both_sides(LEASE).await else { return };
    let (thread, fenced) = (java.thread("t"), locks.fenced_lock("f"));
    let theirs = async || -> u64 {
        let token = thread.lock_and_get_token("fenced@f").done().await.parse().unwrap();
        assert_eq!(fenced.token().await.unwrap(), Some(token));
        thread.unlock("fenced@f").done().await;
        token
    };
    let ours = async || {
        let guard = fenced.acquire().await.unwrap();
        let token = guard.token();
        assert_eq!(thread.token("fenced@f").done().await, token.to_string());
        let again = fenced.with_owner(guard.owner()).acquire().await.unwrap();
        assert_eq!(again.token(), token, "one owner, one token");
        again.release().await.unwrap();
        guard.release().await.unwrap();
        token
    };
    assert_eq!(theirs().await, 1);
    let first = ours().await;
    assert!(
        Duration::from_micros(first).abs_diff(clock(&server)) < Duration::from_secs(60),
        "the server's time in microseconds: {first}"
    );
    assert_eq!(theirs().await, first + 1, "INCR goes on from ours");
    let second = ours().await;
    assert!(second > first + 1);
    // The counter is ahead of every clock, as after years of INCR at an unrealistic rate.
    let high = (1_u64 << 53) + 1;
    assert_eq!(server.cli(&["SET", TOKEN, &high.to_string()]), "OK");
    assert_eq!((theirs().await, ours().await, theirs().await), (high + 1, high + 2, high + 3));
    assert_eq!(server.cli(&["DEL", TOKEN]), "1");

    // All threads and tasks acquire at once.
    ours().await;
    let mut tasks = Vec::new();
    for number in 0..4 {
        let (thread, fenced) = (java.thread(&format!("t{number}")), locks.fenced_lock("f"));
        tasks.push(tokio::spawn(async move {
            let mut grants = Vec::new();
            for _ in 0..50 {
                if number % 2 == 0 {
                    let answer = thread.lock_and_get_token("fenced@f").answer().await;
                    grants.push((answer.ended, answer.result.unwrap().parse().unwrap()));
                    thread.unlock("fenced@f").done().await;
                } else {
                    let guard = fenced.acquire().await.unwrap();
                    grants.push((monotonic(), guard.token()));
                    guard.release().await.unwrap();
                }
            }
            grants
        }));
    }
    let mut grants: Vec<(Duration, u64)> = Vec::new();
    for task in tasks {
        grants.extend(task.await.unwrap());
    }
    grants.sort_unstable();
    let rises = grants.windows(2).all(|grants| grants[0].1 < grants[1].1);
    assert!(grants.len() == 200 && rises, "{grants:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writer_is_exclusive_on_both_sides() {
    let Some((server, java, locks)) = both_sides(LEASE).await else { return };
    let managers = [locks, manager(&server.url()).await];
    for reads in [9, 1] {
        let file = server.directory().join(format!("written-{reads}"));
        fs::write(&file, "0").unwrap();
        let time = seconds();
        let threads: Vec<_> = (0..4)
            .map(|number| java.thread(&format!("t{number}")).visit("write@visited", reads, time, &file))
            .collect();
        let tasks: Vec<_> = (0..4)
            .map(|number| {
                let (locks, file) = (managers[number % 2].clone(), file.clone());
                tokio::spawn(async move { visit(&locks, "visited", reads, time, &file).await })
            })
            .collect();
        let mut visits = Vec::new();
        for task in tasks {
            visits.extend(task.await.unwrap());
        }
        for thread in threads {
            visits.extend(Visit::parse_all(&thread.done().await));
        }
        judge(reads, visits, &fs::read_to_string(&file).unwrap());
        assert!(left(&server).is_empty());
    }
}

/// One critical section. It began after the grant and ended before the request for the release.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Visit {
    began: u128,
    ended: u128,
    writes: bool,
    ours: bool,
}

impl Visit {
    /// Parses the result of [`Thread::visit`].
    fn parse_all(text: &str) -> Vec<Self> {
        let visit = |line: &str| {
            let words: Vec<_> = line.split(' ').collect();
            let [began, ended] = [words[1], words[2]].map(|word| word.parse().unwrap());
            Self { began, ended, writes: words[0] == "w", ours: false }
        };
        text.lines().map(visit).collect()
    }
}

/// Does the same as [`Thread::visit`] in a task of ours.
async fn visit(locks: &LockManager, name: &str, reads: u64, time: Duration, file: &Path) -> Vec<Visit> {
    let lock = locks.read_write_lock(name);
    let (until, mut visits) = (Instant::now() + time, Vec::new());
    while Instant::now() < until {
        let writes = visits.len() as u64 % (reads + 1) == reads;
        let guard = if writes { lock.write().acquire().await } else { lock.read().acquire().await };
        let (guard, began) = (guard.unwrap(), monotonic());
        if writes {
            let number: u32 = fs::read_to_string(file).unwrap().parse().unwrap();
            yield_now().await;
            fs::write(file, (number + 1).to_string()).unwrap();
        } else {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let ended = monotonic();
        visits.push(Visit { began: began.as_nanos(), ended: ended.as_nanos(), writes, ours: true });
        release(guard).await;
    }
    visits
}

/// Checks the visits. The witnesses are the clock that all processes share, and a file in which every writer has added one.
fn judge(reads: u64, mut visits: Vec<Visit>, written: &str) {
    visits.sort_unstable();
    let (mut writer, mut last, mut mixed) = (0, Visit { began: 0, ended: 0, writes: true, ours: true }, 0);
    for visit in &visits {
        assert!(visit.began >= writer, "somebody wrote meanwhile: {last:?}, {visit:?}");
        assert!(!visit.writes || visit.began >= last.ended, "somebody was inside: {last:?}, {visit:?}");
        if visit.writes {
            writer = visit.ended;
        }
        mixed += u32::from(visit.began < last.ended && visit.ours != last.ours);
        if visit.ended > last.ended {
            last = *visit;
        }
    }
    let count = |ours: bool, writes: bool| {
        visits.iter().filter(|visit| (visit.ours, visit.writes) == (ours, writes)).count()
    };
    println!(
        "{reads}:1, ours read {} wrote {}, theirs read {} wrote {}; {mixed} times readers of both sides met",
        count(true, false),
        count(true, true),
        count(false, false),
        count(false, true)
    );
    for ours in [true, false] {
        assert!(count(ours, true) > 0 && count(ours, false) > 0, "ours: {ours}");
    }
    assert!(mixed > 0, "readers are together, or the witness sees nothing");
    assert_eq!(written, (count(true, true) + count(false, true)).to_string());
}

/// Returns the duration of each mixture.
fn seconds() -> Duration {
    let seconds = std::env::var("WHEELLOCK_SOAK_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    Duration::from_secs(seconds.unwrap_or(3))
}

async fn release(guard: Guard) {
    guard.release().await.unwrap();
}

/// Returns the number of holds of `owner` in the server's hash.
fn holds(server: &RedisServer, name: &str, owner: &str) -> usize {
    let suffix = if name.starts_with("write@") { ":write" } else { "" };
    server.cli(&["HGET", key(name), &format!("{owner}{suffix}")]).parse().unwrap_or(0)
}

/// Returns the keys on the server, except keys that expire by themselves. Those are Redisson's latches and the marks of polling waiters.
fn left(server: &RedisServer) -> Vec<String> {
    let keys = server.cli(&["KEYS", "*"]);
    let is_ours =
        |key: &&str| !key.starts_with("redisson_unlock_latch:") && !key.ends_with(":wheellock_poller");
    let mut keys: Vec<_> = keys.lines().filter(is_ours).map(str::to_owned).collect();
    keys.sort_unstable();
    keys
}

/// Returns each key on the server with its value and its TTL. The position of an owner replaces the owner, and a fixed text replaces a
/// token.
fn state(server: &RedisServer, owners: &[String]) -> BTreeMap<String, (String, i64)> {
    let named = |text: &str| {
        let places = owners.iter().enumerate();
        places.fold(text.to_owned(), |text, (place, owner)| text.replace(owner, &format!("<{place}>")))
    };
    let value = |key: &str| match server.cli(&["TYPE", key]).as_str() {
        "hash" => {
            let fields = named(&server.cli(&["HGETALL", key]));
            let fields: Vec<_> = fields.lines().collect();
            let mut fields: Vec<_> = fields.chunks(2).map(|field| field.join("=")).collect();
            fields.sort_unstable();
            fields.join(" ")
        }
        "string" if key.starts_with("redisson_lock_token:") => "a token".to_owned(),
        "string" => server.cli(&["GET", key]),
        other => panic!("{key} is of type {other}"),
    };
    let ttl = |key: &str| server.cli(&["PTTL", key]).parse().unwrap();
    left(server).iter().map(|key| (named(key), (value(key), ttl(key)))).collect()
}

/// Waits until all threads sleep. Redisson's message `1` wakes a sleeping thread. The message is lost on a thread that was refused just
/// now.
async fn asleep(threads: &[&Thread]) -> bool {
    for thread in threads {
        if !eventually(PATIENCE, async || thread.sleeps().await).await {
            return false;
        }
    }
    true
}

async fn we_all_wait(locks: &LockManager, count: u64) -> bool {
    eventually(PATIENCE, async || locks.metrics().waiting == count).await
}

/// Checks that every lock of [`PAIRS`] is free for either side.
async fn both_may(java: &Client, locks: &LockManager) {
    for (_, wanted) in PAIRS {
        let thread: Thread = java.thread("next");
        assert_eq!(thread.try_lock(wanted).done().await, "true", "{wanted}");
        thread.unlock(wanted).done().await;
        // After a writer died while it waited, a reader of ours waits for a moment.
        let guard = of_kind(locks, wanted).try_acquire_for(PATIENCE).await.unwrap();
        release(guard.acquired().expect("nobody holds it")).await;
    }
}

/// Starts a process of ours that the test will kill.
fn spawn(server: &RedisServer, name: &str) -> Worker {
    let program = Command::new(env!("CARGO_BIN_EXE_lock_worker"));
    Worker::spawn(program, &server.url(), name, SHORT_LEASE).unwrap()
}

/// The held lock, and the lock that this hold blocks.
const PAIRS: [(&str, &str); 5] = [
    ("write@ww", "write@ww"),
    ("write@wr", "read@wr"),
    ("read@rw", "write@rw"),
    ("fenced@f", "fenced@f"),
    ("spin@s", "spin@s"),
];
/// Counter of the one fenced lock in [`PAIRS`], which stays on the server.
const TOKEN: &str = "redisson_lock_token:{f}";

/// Actor, action, lock and lease in seconds. The lease 0 is the watchdog's lease.
struct Step(usize, Does, &'static str, u64);

#[derive(Debug)]
enum Does {
    Lock,
    Unlock,
}

use Does::{Lock, Unlock};

/// Calls after which Redisson's own state is correct. The other calls are in `where_redissons_state_is_not_copied`.
const SAME_STATE: &[&[Step]] = &[
    &[
        Step(0, Lock, "read@n", 20),
        Step(0, Lock, "read@n", 60),
        Step(1, Lock, "read@n", 40),
        Step(0, Unlock, "read@n", 0),
        Step(1, Unlock, "read@n", 0),
        Step(0, Unlock, "read@n", 0),
    ],
    &[
        Step(0, Lock, "read@x{n}y", 0),
        Step(1, Lock, "read@x{n}y", 0),
        Step(0, Unlock, "read@x{n}y", 0),
        Step(1, Unlock, "read@x{n}y", 0),
    ],
    &[Step(0, Lock, "write@n", 20), Step(0, Unlock, "write@n", 0)],
    &[
        Step(0, Lock, "write@n", 0),
        Step(0, Lock, "read@n", 0),
        Step(0, Lock, "read@n", 0),
        Step(0, Unlock, "write@n", 0),
        Step(1, Lock, "read@n", 0),
        Step(0, Unlock, "read@n", 0),
        Step(0, Unlock, "read@n", 0),
        Step(1, Unlock, "read@n", 0),
    ],
    &[
        Step(0, Lock, "write@n", 20),
        Step(0, Lock, "read@n", 10),
        Step(0, Unlock, "read@n", 0),
        Step(0, Unlock, "write@n", 0),
    ],
    &[
        Step(0, Lock, "fenced@n", 0),
        Step(0, Lock, "fenced@n", 0),
        Step(0, Unlock, "fenced@n", 0),
        Step(0, Unlock, "fenced@n", 0),
        Step(1, Lock, "fenced@n", 20),
        Step(1, Unlock, "fenced@n", 0),
    ],
    &[
        Step(0, Lock, "spin@n", 0),
        Step(0, Lock, "spin@n", 0),
        Step(0, Unlock, "spin@n", 0),
        Step(0, Unlock, "spin@n", 0),
        Step(1, Lock, "spin@n", 20),
        Step(1, Unlock, "spin@n", 0),
    ],
];
/// In milliseconds. Time passes between the steps of the two sides.
const TOLERANCE: u64 = 2_000;

/// Redisson's exception for an unlock by a thread that holds nothing.
const NOT_THE_HOLDER: &str = "java.lang.IllegalMonitorStateException";

/// Redisson's default.
const LEASE: Duration = Duration::from_secs(30);
/// Short enough to see many renewals, and long enough for two busy processes to renew in time.
const SHORT_LEASE: Duration = Duration::from_secs(3);
/// A lease that is to end.
const BRIEF: Duration = Duration::from_secs(1);
/// Delay that scheduling may add to the end of a lease on a busy machine.
const SLACK: Duration = Duration::from_secs(1);
