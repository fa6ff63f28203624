//! Contenders of a process whose tasks always want a lock.
//!
//! Every contender has its turns, subscribed or not.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use wheellock::{Error, Guard, Lock, LockManager};

use wheellock_tests::hot::{self, Contender, Kind};
use wheellock_tests::locks::{PATIENCE, WOKEN, manager};
use wheellock_tests::{RedisServer, eventually};

const HOLD: Duration = Duration::from_millis(1);
/// A lock that is free for this long beside a waiting subscriber was left free without a message.
const SILENT: Duration = Duration::from_millis(30);

/// Returns the turns of a contender beside `processes` of four tasks, as soon as it has had `wanted`.
async fn turns(server: &RedisServer, contender: Contender, kind: Kind, processes: usize, wanted: u64) -> u64 {
    let name = format!("{contender} beside {processes}, {kind:?}");
    let mut managers: Vec<LockManager> = Vec::new();
    for _ in 0..processes {
        managers.push(manager(&server.tcp_url()).await);
    }
    let processes: Vec<_> =
        managers.iter().map(|locks| hot::hot(&kind.lock(locks, &name), 4, HOLD)).collect();
    for process in &processes {
        assert!(process.reaches(20, PATIENCE).await, "{name}");
    }
    let contends = hot::beside(contender, kind, server, &managers[0], &name, HOLD).await.unwrap();
    contends.reaches(wanted, PATIENCE).await;
    let had = contends.end().await.unwrap();
    for process in processes {
        process.end().await.unwrap();
    }
    had
}

/// Asserts that each of these contenders has turns. They contend at the same time, each for a separate lock.
async fn each_has_turns(kind: Kind, contenders: &[Contender], processes: usize) {
    let server = Arc::new(RedisServer::builder().tcp().start());
    let mut running = JoinSet::new();
    for contender in contenders.iter().copied() {
        let server = Arc::clone(&server);
        let wanted = if contender == Contender::Foreign { 1 } else { 4 };
        running.spawn(async move {
            (contender, turns(&server, contender, kind, processes, wanted).await, wanted)
        });
    }
    let starved: Vec<_> =
        running.join_all().await.into_iter().filter(|(_, had, wanted)| had < wanted).collect();
    assert!(starved.is_empty(), "turns beside {processes} of {kind:?}: {starved:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contenders_have_turns_beside_hot_process() {
    for kind in Kind::ALL {
        each_has_turns(kind, &kind.contenders(), 1).await;
    }
}

/// Returns the turns of each process, one per number of `tasks`, from when all of them have had turns.
async fn shares(server: &RedisServer, kind: Kind, tasks: &[usize], turns: u64) -> Vec<u64> {
    let name = format!("{kind:?} of {}", tasks.len());
    let mut processes = Vec::new();
    for tasks in tasks {
        let locks = manager(&server.tcp_url()).await;
        processes.push((hot::hot(&kind.lock(&locks, &name), *tasks, HOLD), locks));
    }
    for (process, _) in &processes {
        assert!(process.reaches(20, PATIENCE).await, "{name}");
    }
    let before: Vec<_> = processes.iter().map(|(process, _)| process.had()).collect();
    let last = processes.len() - 1;
    assert!(processes[last].0.reaches(before[last] + turns, PATIENCE).await, "{name}");
    let had = processes.iter().zip(before).map(|((process, _), before)| process.had() - before).collect();
    for (process, _) in processes {
        process.end().await.unwrap();
    }
    had
}

/// The lone task wants the lock again at once, and no other task of its process waits when it releases the lock. Every turn lasts for
/// the same time. A fair lock is shared by waiters, not by processes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_of_unequal_size_share_time() {
    let server = RedisServer::builder().tcp().start();
    for kind in [Kind::Plain, Kind::Simple, Kind::Write, Kind::Fenced] {
        let had = shares(&server, kind, &[32, 1], 300).await;
        assert!(
            had[0] <= 2 * had[1] && had[1] <= 2 * had[0],
            "turns of 32 tasks and of one, {kind:?}: {had:?}"
        );
    }
}

/// Each process releases the lock and takes it again at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lone_tasks_of_crowd_share_time() {
    let server = RedisServer::builder().tcp().start();
    for processes in [2, 3, 8] {
        let had = shares(&server, Kind::Plain, &vec![1; processes], 100).await;
        let (least, most) = (had.iter().min().unwrap(), had.iter().max().unwrap());
        assert!(*most <= 3 * least, "turns of {processes} processes: {had:?}");
    }
}

/// Takes the lock again and again, and counts the turns.
async fn takes(lock: Lock, runs: bool, turns: Arc<AtomicU64>) {
    loop {
        if runs {
            let work = async |_: &Guard| {
                tokio::time::sleep(HOLD).await;
                Ok::<_, Error>(())
            };
            lock.run(work).await.unwrap();
        } else {
            let _guard = lock.acquire().await.unwrap();
            tokio::time::sleep(HOLD).await;
        }
        turns.fetch_add(1, Ordering::Relaxed);
    }
}

/// A dropped guard does not wait for the reply to its release, and `run` releases without hand-over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runs_and_dropped_guards_share_time() {
    let server = RedisServer::builder().tcp().start();
    for (name, runs) in [("run", true), ("dropped", false)] {
        let (mut tasks, turns) = (JoinSet::new(), [Arc::default(), Arc::<AtomicU64>::default()]);
        for turns in &turns {
            let lock = manager(&server.tcp_url()).await.lock(name).with_lease(PATIENCE);
            tasks.spawn(takes(lock, runs, Arc::clone(turns)));
        }
        let had = || [0, 1].map(|place: usize| turns[place].load(Ordering::Relaxed));
        assert!(
            eventually(PATIENCE, async || had().iter().all(|had| *had >= 20)).await,
            "{name}: {:?}",
            had()
        );
        let before = had();
        let grown = || [0, 1].map(|place| had()[place] - before[place]);
        assert!(eventually(PATIENCE, async || grown().iter().any(|had| *had >= 150)).await);
        let [one, other] = grown();
        assert!(one <= 3 * other && other <= 3 * one, "{name}: {one} and {other} turns");
        tasks.shutdown().await;
    }
}

/// The releases of these users send no message, so the next waiter of the fair lock has to poll.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_fair_release_delays_no_waiter() {
    let server = RedisServer::builder().tcp().start();
    let locks = manager(&server.tcp_url()).await;
    for contender in [Contender::Deaf, Contender::Mute] {
        let name = contender.to_string();
        let process = hot::hot(&locks.fair_lock(&name), 4, HOLD);
        let silent = hot::beside(contender, Kind::Fair, &server, &locks, &name, HOLD).await.unwrap();
        // The first release finds waiters that poll every two seconds.
        assert!(silent.reaches(2, PATIENCE).await, "{contender}");
        assert!(silent.reaches(8, Duration::from_secs(5)).await, "{contender}: {}", silent.had());
        process.end().await.unwrap();
        silent.end().await.unwrap();
    }
}

/// A hot process leaves the lock free for contenders that poll only while their mark lives.
#[tokio::test]
async fn polling_contender_leaves_mark() {
    let server = RedisServer::start();
    let (owns, polls) = (manager(&server.url()).await, manager(&server.url()).await);
    for kind in [Kind::Plain, Kind::Write, Kind::Fenced] {
        let name = format!("polled {kind:?}");
        let held = kind.lock(&owns, &name).acquire().await.unwrap();
        let polled = kind.lock(&polls, &name);
        let is_marked = eventually(PATIENCE, async || {
            assert!(!polled.try_acquire().await.unwrap().is_acquired());
            server.cli(&["EXISTS", &format!("{{{name}}}:wheellock_poller")]) == "1"
        });
        assert!(is_marked.await, "{kind:?}");
        held.release().await.unwrap();
    }
}

/// Subscribers have their turns in any case. A subscriber that is notified of an opening would end it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pollers_have_turns_beside_hot_processes() {
    each_has_turns(Kind::Plain, &[Contender::Try, Contender::Spin, Contender::Foreign], 2).await;
    for kind in [Kind::Simple, Kind::Write, Kind::Fenced] {
        each_has_turns(kind, &[Contender::Try, Contender::Backoff], 2).await;
    }
    each_has_turns(Kind::Fair, &[Contender::Backoff], 2).await;
}

/// The next release of the same process ends a silent opening. Without a task that wants the lock, there is no such release.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn abandoned_silent_opening_notifies_listener() {
    let server = RedisServer::builder().tcp().start();
    let locks = manager(&server.tcp_url()).await;
    let process = hot::hot(&locks.lock("hot"), 4, HOLD);
    let listener = hot::beside(Contender::Listener, Kind::Plain, &server, &locks, "hot", HOLD).await.unwrap();
    assert!(process.reaches(20, PATIENCE).await && listener.reaches(20, PATIENCE).await);
    let is_free = || server.cli(&["EXISTS", "hot"]) == "0";
    let opened = eventually(PATIENCE, async || {
        assert_eq!(server.cli(&["SET", "{hot}:wheellock_poller", "1", "PX", "1000"]), "OK");
        // A message would have brought the listener by then, and the opening lasts for longer.
        let (had, until) = (listener.had(), Instant::now() + SILENT);
        while is_free() && listener.had() == had {
            if Instant::now() >= until {
                return true;
            }
        }
        false
    });
    assert!(opened.await, "it is never left free");
    process.abort().await;
    let had = listener.had();
    assert!(listener.reaches(had + 3, WOKEN / 2).await, "it was not notified");
    listener.end().await.unwrap();
}

/// Other users of simple locks poll, and leave no mark.
#[tokio::test]
async fn simple_locks_are_not_handed_over() {
    let server = RedisServer::start();
    let locks = manager(&server.url()).await;
    let process = hot::hot(&locks.simple_lock("hot"), 4, Duration::ZERO);
    assert!(process.reaches(20, PATIENCE).await);
    process.end().await.unwrap();
    assert_eq!(locks.metrics().hand_overs, 0);
}
