//! Contention for the same locks between Redisson and this library. Each promise is tested in both directions on real servers.
//!
//! Every test has its own server and its own Redisson client. All tests share the JVM. Without Java all tests are skipped.

mod golden;

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::runtime::Builder;
use tokio::task::{JoinHandle, spawn_blocking, yield_now};
use wheellock::client::Command as Request;
use wheellock::{Error, Guard, Lock, LockManager, Metrics, RedLockManager, multi_lock};
use wheellock_tests::beside::{attempts, both_sides, extended, java_waits, quiet, waiter, we_wait, within};
use wheellock_tests::interop::{self, Exception, Thread};
use wheellock_tests::locks::{PATIENCE, WOKEN, at_rest, gone, lost, manager};
use wheellock_tests::worker::{self, Outcome, Worker, monotonic, of_kind};
use wheellock_tests::{Observed, RedisServer, eventually};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mixed_increments_lose_none() {
    let Some((server, java, locks)) = both_sides(LEASE).await else { return };
    let file = server.directory().join("counter");
    fs::write(&file, "0").unwrap();
    let of_java: Vec<_> =
        (0..4).map(|number| java.thread(&format!("t{number}")).increment(NAME, 1_250, &file)).collect();
    let tasks = (0..4).map(|_| {
        let (lock, file) = (locks.lock(NAME), file.clone());
        tokio::spawn(async move {
            for _ in 0..625 {
                let guard = lock.acquire().await.unwrap();
                increment(&file).await;
                guard.release().await.unwrap();
            }
        })
    });
    let blocking = wheellock::blocking::LockManager::builder(&server.url());
    let blocking = spawn_blocking(|| blocking.connect_blocking().unwrap()).await.unwrap();
    let threads = (0..4).map(|_| {
        let (lock, file) = (blocking.lock(NAME), file.clone());
        spawn_blocking(move || {
            for _ in 0..625 {
                let guard = lock.acquire().unwrap();
                add_one(&file);
                guard.release().unwrap();
            }
        })
    });
    for ours in tasks.chain(threads).collect::<Vec<_>>() {
        ours.await.unwrap();
    }
    for theirs in of_java {
        assert_eq!(theirs.done().await, "done");
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), "10000");
    assert_eq!(server.cli(&["EXISTS", NAME]), "0");
    assert!(
        locks.metrics().message_wakes > 0,
        "both sides were at it at the same time: {:?}",
        locks.metrics()
    );
}

/// Tasks of ours that hand a lock over release it when their budget ends, and let Java have its turns. The cases are one thread, two
/// threads on two processors, and two managers. Two threads leave Java no processor of its own. Two managers act as two processes.
#[test]
fn hand_over_gives_java_turns() {
    for (threads, managers) in [(1, 1), (2, 1), (2, 2)] {
        let runtime = Builder::new_multi_thread().worker_threads(threads).enable_all().build().unwrap();
        println!("{managers} managers of ours on {threads} threads:");
        runtime.block_on(java_has_its_turns(managers));
    }
}

async fn java_has_its_turns(managers: usize) {
    let turns =
        std::env::var("WHEELLOCK_TURNS").map_or(200, |turns| turns.parse().expect("a number of turns"));
    let Some((server, java, locks)) = both_sides(LEASE).await else { return };
    let file = server.directory().join("counter");
    fs::write(&file, "0").unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let mut ours = vec![Busy::start(locks, &over)];
    while ours.len() < managers {
        ours.push(Busy::start(LockManager::connect(&server.url()).await.unwrap(), &over));
    }
    for busy in &ours {
        assert!(eventually(PATIENCE, async || busy.locks.metrics().hand_overs > 1_000).await);
    }
    let before: Vec<_> = ours.iter().map(Busy::count_anew).collect();
    let began = Instant::now();
    let waits = java.thread("t0").waits(NAME, turns, &file).done().await;
    println!("{turns} turns of Java's in {:?}", began.elapsed());
    let waits: Vec<_> = waits.lines().map(Wait::parse).collect();
    assert_eq!(waits.len(), turns);
    show_turns("Java's", waits.iter().map(|wait| wait.had - wait.asked).collect());
    for (busy, before) in ours.iter().zip(before) {
        let turns_of_ours = busy.turns_since(&before);
        show_turns("ours", turns_of_ours.iter().map(|turn| turn.had - turn.asked).collect());
        // On a busy machine Java may send its next request late. No process of ours waits for Java then.
        let waits_for = |turn: &&Wait| waits.iter().any(|wait| (wait.asked..wait.had).contains(&turn.had));
        let in_its_way = turns_of_ours.iter().filter(waits_for).count();
        println!("{in_its_way} of them began while Java waited");
        // Jain's index of two parties is 0.9 if one party has had twice as many turns as the other.
        assert!(in_its_way <= 2 * turns, "{in_its_way} of ours while Java waited for {turns}");
    }
    over.store(true, Ordering::Relaxed);
    for task in ours.into_iter().flat_map(|busy| busy.tasks) {
        task.await.unwrap();
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), turns.to_string());
    assert!(gone(&server, NAME).await);
}

/// Times of the request and of the grant, on the clock of [`monotonic`].
#[derive(Clone, Copy)]
struct Wait {
    asked: Duration,
    had: Duration,
}

impl Wait {
    fn parse(line: &str) -> Self {
        let [asked, had] = [0, 1].map(|place| line.split(' ').nth(place).unwrap().parse().unwrap());
        Self { asked: Duration::from_nanos(asked), had: Duration::from_nanos(had) }
    }
}

fn show_turns(whose: &str, mut waits: Vec<Duration>) {
    waits.sort();
    let [half, most, longest] = [50, 99, 100].map(|percent| waits[(waits.len() - 1) * percent / 100]);
    println!(
        "until the next turn, {whose}: p50 {half:?}, p99 {most:?}, longest {longest:?} of {}",
        waits.len()
    );
}

/// Eight tasks of one manager that acquire the lock again and again.
struct Busy {
    locks: LockManager,
    tasks: Vec<JoinHandle<()>>,
    /// Time of the last grant to one of the tasks. Then each gap before a grant in which no task held the lock.
    gaps: Arc<Mutex<(Duration, Vec<Wait>)>>,
}

impl Busy {
    fn start(locks: LockManager, over: &Arc<AtomicBool>) -> Self {
        let gaps = Arc::new(Mutex::new((monotonic(), Vec::new())));
        let task = |_| {
            let (lock, over, gaps) = (locks.lock(NAME), Arc::clone(over), Arc::clone(&gaps));
            tokio::spawn(async move {
                while !over.load(Ordering::Relaxed) {
                    let _guard = lock.acquire().await.unwrap();
                    {
                        let (last, gaps) = &mut *gaps.lock().unwrap();
                        let now = monotonic();
                        gaps.push(Wait { asked: *last, had: now });
                        *last = now;
                    }
                    yield_now().await;
                }
            })
        };
        let tasks = (0..8).map(task).collect();
        Self { locks, tasks, gaps }
    }

    fn count_anew(&self) -> Metrics {
        self.gaps.lock().unwrap().1.clear();
        self.locks.metrics()
    }

    /// Returns the turns since `before`, with the wait for each turn. While one task held the lock, the other tasks did not wait for a
    /// turn.
    fn turns_since(&self, before: &Metrics) -> Vec<Wait> {
        let (after, mut gaps) = (self.locks.metrics(), self.gaps.lock().unwrap().1.clone());
        let turns = after.acquires - before.acquires - (after.hand_overs - before.hand_overs);
        gaps.sort_by_key(|gap| gap.had - gap.asked);
        gaps.split_off(gaps.len() - usize::try_from(turns).unwrap())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreign_holds_are_counted_never_released() {
    let Some((server, java, locks)) = both_sides(LEASE).await else { return };
    let (holder, other) = (java.thread("holder"), java.thread("other"));
    let number = holder.number().await;
    let ours = locks.lock(NAME);

    // Their hold. Only a forced release on our side takes it away.
    let theirs = java.owner(number);
    for depth in 1..=5 {
        holder.lock(NAME).done().await;
        assert_eq!(seen_by_us(&locks, NAME).await, format!("{theirs} {depth}"));
    }
    assert!(!ours.try_acquire().await.unwrap().is_acquired());
    let stranger = manager(&server.url()).await.owner();
    let error = ours.with_owner(stranger).acquire().await.unwrap_err();
    assert!(matches!(error, Error::ForeignOwner { .. }), "{error}");
    for depth in (1..5).rev() {
        holder.unlock(NAME).done().await;
        assert_eq!(seen_by_us(&locks, NAME).await, format!("{theirs} {depth}"));
        assert!(!ours.try_acquire().await.unwrap().is_acquired(), "{depth} holds are left");
    }
    holder.unlock(NAME).done().await;
    assert_eq!(seen_by_us(&locks, NAME).await, "");

    // Our hold. Only a forced release on their side takes it away.
    let outer = ours.acquire().await.unwrap();
    let owner = outer.owner();
    let mut guards = vec![outer];
    for depth in 1..=5 {
        assert_eq!(holder.holders(NAME).done().await, format!("{owner} {depth}"));
        guards.push(ours.with_owner(owner.clone()).acquire().await.unwrap());
    }
    assert_eq!(holder.try_lock(NAME).done().await, "false");
    for thread in [&holder, &other] {
        let Exception { class, message } = thread.unlock(NAME).answer().await.result.unwrap_err();
        assert_eq!(class, "java.lang.IllegalMonitorStateException");
        assert!(message.contains(java.id()), "{message}");
    }
    for depth in (1..=5).rev() {
        guards.pop().unwrap().release().await.unwrap();
        assert_eq!(holder.holders(NAME).done().await, format!("{owner} {depth}"));
        assert_eq!(holder.try_lock(NAME).done().await, "false", "{depth} holds are left");
    }
    guards.pop().unwrap().release().await.unwrap();
    assert_eq!(holder.try_lock(NAME).done().await, "true");
    holder.unlock(NAME).done().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_release_spares_successor() {
    let Some((server, java, locks)) = both_sides(LEASE).await else { return };
    let thread = java.thread("t");
    let theirs = java.owner(thread.number().await);
    let short = locks.lock(NAME).with_lease(SHORT_LEASE);

    // Our lease ends and their hold follows. Neither our late release nor our late drop changes their hold.
    let (late, dropped) = (short.acquire().await.unwrap(), locks.lock("dropped").with_lease(SHORT_LEASE));
    let dropped = dropped.acquire().await.unwrap();
    for name in [NAME, "dropped"] {
        assert_eq!(thread.try_lock_for(name, LEASE).done().await, "true");
    }
    lost(&late).await;
    assert!(matches!(late.release().await, Err(Error::Lost { .. })));
    lost(&dropped).await;
    drop(dropped);
    assert!(at_rest(&locks).await);
    for name in [NAME, "dropped"] {
        assert_eq!(seen_by_us(&locks, name).await, format!("{theirs} 1"));
        thread.unlock(name).done().await;
    }

    // Their lease ends and our hold follows. Their late unlock fails and does not change our hold.
    let leased = thread.try_lock_for_with_lease(NAME, Duration::ZERO, SHORT_LEASE).done().await;
    assert_eq!(leased, "true");
    let guard = short.with_lease(LEASE).try_acquire_for(LEASE).await.unwrap().acquired().unwrap();
    let thrown = thread.unlock(NAME).answer().await.result.unwrap_err();
    assert_eq!(thrown.class, "java.lang.IllegalMonitorStateException");
    assert_eq!(thread.holders(NAME).done().await, format!("{} 1", guard.owner()));
    assert!(guard.is_valid());
    guard.release().await.unwrap();
    assert!(gone(&server, NAME).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn releases_wake_other_side_by_message() {
    let Some((server, java, locks)) = both_sides(LEASE).await else { return };
    let thread = java.thread("t");
    // The JVM is slow when it does something for the first time.
    hand_over_to_java(&server, &locks, "warm-up", &thread).await;
    hand_over_to_us(&server, &locks, "warm-up too", &thread).await;
    let before = locks.metrics().message_wakes;

    let (mut to_java, mut to_us) = (Vec::new(), Vec::new());
    for round in 0..HANDOFFS {
        to_java.push(hand_over_to_java(&server, &locks, &format!("to Java {round}"), &thread).await);
        to_us.push(hand_over_to_us(&server, &locks, &format!("to us {round}"), &thread).await);
    }
    assert_eq!(
        locks.metrics().message_wakes - before,
        HANDOFFS as u64,
        "all of ours were woken by the message"
    );
    for (to, mut latencies) in [("Java", to_java), ("us", to_us)] {
        latencies.sort_unstable();
        let [median, p99] = [50, 99].map(|percent| latencies[latencies.len() * percent / 100]);
        println!(
            "from the release here to the grant there, handed over to {to}: p50 {median:?}, p99 {p99:?}"
        );
        assert!(median <= Duration::from_millis(50), "to {to}: {latencies:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_holder_succeeded_within_lease() {
    let Some((server, java, locks)) = both_sides(LEASE).await else { return };

    // Our holder dies, and their thread waits.
    let program = Command::new(env!("CARGO_BIN_EXE_lock_worker"));
    let mut ours = Worker::spawn(program, &server.url(), "ours", SHORT_LEASE).unwrap();
    assert_eq!(ours.ask(&worker::Request::Acquire).unwrap().what, Outcome::Acquired);
    let asked = attempts(&server);
    let theirs = java.thread("t").lock("ours");
    assert!(java_waits(&server, "ours", asked).await && extended(&server, "ours").await);
    let killed = monotonic();
    ours.kill().unwrap();
    let succeeded = theirs.answer().await;
    assert_eq!(succeeded.result.as_deref(), Ok("locked"));
    let took = succeeded.ended - killed;
    assert!(took <= SHORT_LEASE + SLACK, "Java succeeded us after {took:?}");

    // Their holder dies, and our task waits. One JVM is killed from outside, and the other JVM ends itself.
    for name in ["killed", "crashed"] {
        let doomed = interop::start().unwrap();
        let theirs = doomed.open("doomed", &server.url(), SHORT_LEASE).await;
        theirs.thread("t").lock(name).done().await;
        let waiter = waiter(&locks, name);
        assert!(we_wait(&server, &locks, name).await && extended(&server, name).await);
        let killed = monotonic();
        if name == "killed" {
            doomed.kill();
        } else {
            doomed.crash();
        }
        let (succeeded, guard) = waiter.await.unwrap();
        let took = succeeded - killed;
        assert!(took <= SHORT_LEASE + SLACK, "we succeeded Java after {took:?}");
        assert_eq!(seen_by_us(&locks, name).await, format!("{} 1", guard.owner()));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watchdog_excludes_other_side() {
    let Some((server, java, locks)) = both_sides(SHORT_LEASE).await else { return };
    let theirs = java.thread("holder");
    let number = theirs.number().await;
    theirs.lock("theirs").done().await;
    let ours = locks.lock("ours").acquire().await.unwrap();

    let wait = 3 * SHORT_LEASE;
    let refused = java.thread("waiter").try_lock_for("ours", wait);
    assert!(!locks.lock("theirs").try_acquire_for(wait).await.unwrap().is_acquired(), "we waited for Java");
    assert_eq!(refused.done().await, "false", "Java waited for us");

    assert!(ours.is_valid());
    assert_eq!(theirs.holders("ours").done().await, format!("{} 1", ours.owner()));
    assert_eq!(theirs.is_held_by("theirs", number).done().await, "true");
    ours.release().await.unwrap();
    theirs.unlock("theirs").done().await;
    assert_eq!(server.cli(&["EXISTS", "ours", "theirs"]), "0");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batched_renewals_keep_fifty_locks() {
    // Beside a full load, the Java process has missed the renewals of a whole short lease.
    let Some((server, java, locks)) = both_sides(2 * SHORT_LEASE).await else { return };
    let thread = java.thread("t");
    let names = |side: &str| -> Vec<String> { (0..50).map(|number| format!("{side}:{number}")).collect() };
    let (theirs, ours) = (names("theirs"), names("ours"));
    let taking: Vec<_> = ours.iter().map(|name| taker(&locks, name)).collect();
    let locking: Vec<_> = theirs.iter().map(|name| thread.lock(name)).collect();
    let mut guards = Vec::new();
    for taking in taking {
        guards.push(taking.await.unwrap());
    }
    for locking in locking {
        locking.done().await;
    }

    // All locks are held, so every later script about them is a renewal.
    let (sender, mut renewed) = tokio::sync::mpsc::unbounded_channel();
    let following = server.monitor().follow(move |command| {
        let _ = sender.send(keys(&command).to_vec());
    });
    // A renewal comes after each third of a lease, so nine renewals of one lock are three leases.
    let (mut renewals, mut of_ours, mut of_theirs) = (HashMap::new(), 0, 0);
    let all = |renewals: &HashMap<String, u32>| {
        theirs.iter().chain(&ours).all(|name| renewals.get(name).is_some_and(|times| *times >= 9))
    };
    let deadline = Instant::now() + 2 * PATIENCE;
    while !all(&renewals) {
        let keys = tokio::time::timeout_at(deadline.into(), renewed.recv()).await;
        let keys = keys.unwrap_or_else(|_| panic!("not all were renewed: {renewals:?}")).unwrap();
        if let Some(first) = keys.first() {
            let largest = if first.starts_with("ours") { &mut of_ours } else { &mut of_theirs };
            *largest = keys.len().max(*largest);
        }
        for key in keys {
            *renewals.entry(key).or_default() += 1;
        }
    }
    // Redisson before 3.44 does not renew all locks in one call.
    let all_at_once = of_theirs == 50 || interop::chosen_version().is_some();
    assert!(all_at_once, "Redisson renews all locks of a process in one call, not {of_theirs}");
    assert!(of_ours > 1, "we renew those that were taken at about the same time in one call");
    following.stop().unwrap();

    for name in &theirs {
        assert!(!locks.lock(name).try_acquire().await.unwrap().is_acquired(), "{name}");
    }
    let refused: Vec<_> = ours.iter().map(|name| java.thread("other").try_lock(name)).collect();
    for refused in refused {
        assert_eq!(refused.done().await, "false");
    }
    for guard in guards {
        guard.release().await.unwrap();
    }
    let unlocking: Vec<_> = theirs.iter().map(|name| thread.unlock(name)).collect();
    for unlocking in unlocking {
        assert_eq!(unlocking.done().await, "unlocked");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forced_release_wakes_other_side() {
    let Some((server, java, locks)) = both_sides(LEASE).await else { return };
    let (thread, boss) = (java.thread("t"), java.thread("boss"));

    // We release their lock by force. Their waiter is granted the lock, and the robbed thread's unlock fails.
    thread.lock("forced by us").done().await;
    let asked = attempts(&server);
    let next = java.thread("next").lock("forced by us");
    assert!(java_waits(&server, "forced by us", asked).await);
    assert!(locks.lock("forced by us").force_release().await.unwrap());
    within(WOKEN, next.done()).await;
    let thrown = thread.unlock("forced by us").answer().await.result.unwrap_err();
    assert_eq!(thrown.class, "java.lang.IllegalMonitorStateException");
    java.thread("next").unlock("forced by us").done().await;

    // They release our lock by force. Our waiter is granted the lock, and the robbed guard learns of the loss.
    let robbed = locks.lock("forced by them").acquire().await.unwrap();
    let waiting = manager(&server.url()).await;
    let next = waiter(&waiting, "forced by them");
    assert!(we_wait(&server, &waiting, "forced by them").await);
    assert_eq!(boss.force_unlock("forced by them").done().await, "true");
    let (_, next) = within(WOKEN, next).await.unwrap();
    assert!(matches!(robbed.release().await, Err(Error::Lost { .. })));
    assert!(next.is_valid());

    assert_eq!(boss.force_unlock("free").done().await, "false");
    assert!(!locks.lock("free").force_release().await.unwrap());
}

/// A single lock of Java also blocks a set. A quorum is blocked only by several locks together.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sets_and_quorums_exclude_java() {
    let Some((server, java, locks)) = both_sides(LEASE).await else { return };
    let thread = java.thread("t");
    let set = multi_lock([locks.lock(NAME), locks.lock("other")]).unwrap();
    let guard = set.acquire().await.unwrap();
    assert_eq!(thread.try_lock(NAME).done().await, "false");
    assert_eq!(thread.holders("other").done().await, format!("{} 1", guard.members()[1].owner()));
    let theirs = thread.lock("other");
    guard.release().await.unwrap();
    theirs.done().await;
    assert!(!set.try_acquire().await.unwrap().is_acquired());
    assert!(gone(&server, NAME).await, "given back");
    thread.unlock("other").done().await;
    assert!(set.try_acquire_for(LEASE).await.unwrap().is_acquired());

    let others = [RedisServer::start(), RedisServer::start()];
    let [second, third] = [manager(&others[0].url()).await, manager(&others[1].url()).await];
    let red = RedLockManager::new([locks.clone(), second.clone(), third]).await.unwrap();
    let quorum = red.lock("quorum");
    let guard = quorum.acquire().await.unwrap();
    assert!(eventually(PATIENCE, async || server.cli(&["EXISTS", "quorum"]) == "1").await);
    assert_eq!(thread.try_lock("quorum").done().await, "false");
    let theirs = thread.lock("quorum");
    guard.release().await.unwrap();
    theirs.done().await;
    let guard = quorum.acquire().await.unwrap();
    guard.release().await.expect("a majority without theirs");
    let busy = second.lock("quorum").acquire().await.unwrap();
    assert!(!quorum.try_acquire().await.unwrap().is_acquired(), "theirs and another one are a majority");
    drop(busy);
    assert_eq!(thread.holders("quorum").done().await.split(' ').nth(1), Some("1"), "theirs stays theirs");
    thread.unlock("quorum").done().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_sides_give_the_same_answers() {
    let Some((server, java, locks)) = both_sides(LEASE).await else { return };
    let thread = java.thread("t");
    let number = thread.number().await;
    let lock = locks.lock(NAME);
    let me = locks.owner();

    assert_eq!(thread.is_locked(NAME).done().await, "false");
    assert!(!lock.is_locked().await.unwrap());
    assert_eq!(thread.remaining(NAME).done().await, "-2", "no such key");
    assert_eq!(lock.remaining_lease().await.unwrap(), None);

    let guard = lock.with_owner(me.clone()).with_lease(LEASE).acquire().await.unwrap();
    assert_eq!(thread.is_locked(NAME).done().await, "true");
    assert_eq!(thread.hold_count(NAME).done().await, "0", "theirs");
    assert_eq!(thread.is_held_by(NAME, number).done().await, "false");
    assert_eq!((lock.hold_count(&me).await.unwrap(), lock.is_held_by(&me).await.unwrap()), (1, true));
    agree_on_the_remaining_lease(&lock, &thread).await;
    guard.release().await.unwrap();

    thread.lock_with_lease(NAME, LEASE).done().await;
    assert!(lock.is_locked().await.unwrap());
    assert_eq!((lock.hold_count(&me).await.unwrap(), lock.is_held_by(&me).await.unwrap()), (0, false));
    assert_eq!(thread.hold_count(NAME).done().await, "1");
    assert_eq!(thread.is_held_by(NAME, number).done().await, "true");
    agree_on_the_remaining_lease(&lock, &thread).await;

    // An operator has removed the TTL.
    assert_eq!(server.cli(&["PERSIST", NAME]), "1");
    assert_eq!(thread.remaining(NAME).done().await, "-1");
    assert_eq!(lock.remaining_lease().await.unwrap(), Some(Duration::MAX));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_name_shares_lock_and_channel() {
    let Some((server, java, locks)) = both_sides(LEASE).await else { return };
    let thread = java.thread("t");
    for name in NAMES {
        let guard = locks.lock(name).acquire().await.unwrap();
        assert_eq!(thread.try_lock(name).done().await, "false", "{name:?}");
        assert_eq!(thread.holders(name).done().await, format!("{} 1", guard.owner()), "{name:?}");
        guard.release().await.unwrap();
        hand_over_to_java(&server, &locks, name, &thread).await;
        hand_over_to_us(&server, &locks, name, &thread).await;
        assert!(gone(&server, name).await, "{name:?}");
    }
    assert_eq!(locks.metrics().message_wakes, NAMES.len() as u64, "each of ours was woken by the message");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn java_name_mapper_changes_lock_name() {
    let Some((server, java, locks)) = both_sides(LEASE).await else { return };
    let peer = interop::shared().expect("there is Java");
    let client = format!("mapped-{}", server.addr().port());
    let mapped = peer.open_prefixed(&client, &server.url(), LEASE, "prod:").await.thread("t");

    mapped.lock(NAME).done().await;
    assert!(locks.lock(NAME).try_acquire().await.unwrap().is_acquired(), "another lock");
    assert!(!locks.lock("prod:orders:42").try_acquire().await.unwrap().is_acquired(), "the same lock");
    assert_eq!(java.thread("t").try_lock("prod:orders:42").done().await, "false");

    // The Java thread subscribes to the mapped name's channel and is woken there.
    mapped.unlock(NAME).done().await;
    let guard = locks.lock("prod:orders:42").acquire().await.unwrap();
    let asked = attempts(&server);
    let waiter = mapped.lock(NAME);
    assert!(java_waits(&server, "prod:orders:42", asked).await);
    guard.release().await.unwrap();
    assert_eq!(within(WOKEN, waiter.done()).await, "locked");
}

/// A prefix here and a mapper there select the same lock, of every kind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prefix_selects_mapped_locks() {
    let Some((server, _java, _locks)) = both_sides(LEASE).await else { return };
    let peer = interop::shared().expect("there is Java");
    let client = format!("prefixed-{}", server.addr().port());
    let mapped = peer.open_prefixed(&client, &server.url(), LEASE, "prod:").await.thread("t");
    let ours = LockManager::builder(&server.url()).prefix("prod:").connect().await.unwrap();
    for object in ["orders:42", "fair@{f}:1", "fenced@n", "read@rw", "write@rw"] {
        mapped.lock(object).done().await;
        let wanted = object.replace("read@", "write@");
        assert!(!of_kind(&ours, &wanted).try_acquire().await.unwrap().is_acquired(), "{object}");
        mapped.unlock(object).done().await;
        let guard = of_kind(&ours, &wanted).acquire().await.unwrap();
        assert_eq!(mapped.try_lock(object).done().await, "false", "{object}");
        // The Java thread is woken on the channel of the mapped name.
        let waiter = mapped.lock(object);
        assert!(eventually(PATIENCE, async || mapped.sleeps().await).await);
        guard.release().await.unwrap();
        assert_eq!(within(WOKEN, waiter.done()).await, "locked", "{object}");
        mapped.unlock(object).done().await;
    }
}

/// Hands a lock over from us to a waiting thread of Java. Returns the time that this took.
async fn hand_over_to_java(
    server: &RedisServer,
    locks: &LockManager,
    name: &str,
    thread: &Thread,
) -> Duration {
    assert!(quiet(server, name).await);
    let guard = locks.lock(name).acquire().await.unwrap();
    let asked = attempts(server);
    let waiter = thread.lock(name);
    assert!(java_waits(server, name, asked).await, "{name:?}");
    let released = monotonic();
    guard.release().await.unwrap();
    let acquired = within(WOKEN, waiter.answer()).await;
    assert_eq!(acquired.result.as_deref(), Ok("locked"));
    thread.unlock(name).done().await;
    acquired.ended - released
}

/// Hands a lock over from a thread of Java to a waiter of ours. Returns the time that this took.
async fn hand_over_to_us(server: &RedisServer, locks: &LockManager, name: &str, thread: &Thread) -> Duration {
    assert!(quiet(server, name).await);
    thread.lock(name).done().await;
    let waiter = waiter(locks, name);
    assert!(we_wait(server, locks, name).await, "{name:?}");
    let unlocked = thread.unlock(name).answer().await;
    assert_eq!(unlocked.result.as_deref(), Ok("unlocked"));
    let (acquired, guard) = within(WOKEN, waiter).await.unwrap();
    guard.release().await.unwrap();
    acquired - unlocked.began
}

fn taker(locks: &LockManager, name: &str) -> JoinHandle<Guard> {
    let lock = locks.lock(name);
    tokio::spawn(async move { lock.acquire().await.unwrap() })
}

/// Returns the holders of a lock as we read them, in the form of [`Thread::holders`].
async fn seen_by_us(locks: &LockManager, name: &str) -> String {
    let reply = locks.client().call(&Request::new("HGETALL").arg(name)).await.unwrap();
    let mut holders: Vec<_> = reply
        .as_map()
        .unwrap()
        .iter()
        .map(|(owner, count)| format!("{} {}", owner.as_str().unwrap(), count.as_str().unwrap()))
        .collect();
    holders.sort_unstable();
    holders.join("\n")
}

/// Checks that both sides read the same remaining lease. Neither side extends the lease meanwhile, so a later reading is smaller.
async fn agree_on_the_remaining_lease(lock: &Lock, thread: &Thread) {
    let ours = async || lock.remaining_lease().await.unwrap().unwrap();
    let before = ours().await;
    let theirs = thread.remaining(lock.name()).done().await;
    let after = ours().await;
    let theirs = Duration::from_millis(theirs.parse().unwrap());
    assert!(LEASE >= before && before >= theirs && theirs >= after, "{before:?} {theirs:?} {after:?}");
}

/// Returns the keys of a script's call.
fn keys(command: &Observed) -> &[String] {
    let is_call = !command.from_script() && ["EVAL", "EVALSHA"].contains(&command.name().as_str());
    let count = command.args.get(2).filter(|_| is_call).and_then(|count| count.parse().ok()).unwrap_or(0);
    command.args.get(3..3_usize.saturating_add(count)).unwrap_or_default()
}

/// Reads, adds one and writes in three steps on purpose. Other tasks may run between the steps.
async fn increment(file: &Path) {
    let number: u32 = fs::read_to_string(file).unwrap().parse().unwrap();
    yield_now().await;
    fs::write(file, (number + 1).to_string()).unwrap();
}

fn add_one(file: &Path) {
    let number: u32 = fs::read_to_string(file).unwrap().parse().unwrap();
    fs::write(file, (number + 1).to_string()).unwrap();
}

/// Every test has its own server, so one name is enough.
const NAME: &str = "orders:42";

/// Braces decide the channel's name. The other characters must survive the strings of two languages.
const NAMES: &[&str] = &[
    "orders",
    "{orders}:42",
    "orders:{42}",
    "a{b}c{d}e",
    "open{",
    "{",
    "closed}",
    "}{",
    "{}",
    "{}orders",
    "{{orders}}",
    "with space",
    " space around ",
    "line\nbreak",
    "tab\tquote\"backslash\\",
    "100%+1",
    "blå lås",
    "名前",
    "🔒",
    "{🔒}",
];

/// Redisson's default.
const LEASE: Duration = Duration::from_secs(30);
/// Short enough to see many renewals, and long enough for two busy processes to renew in time.
const SHORT_LEASE: Duration = Duration::from_secs(3);
/// Delay that scheduling may add to the end of a lease on a busy machine.
const SLACK: Duration = Duration::from_secs(1);
const HANDOFFS: usize = 100;
