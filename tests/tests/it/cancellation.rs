//! Hundreds of thousands of cancellations on a real server.
//!
//! A future may be dropped at any time, and must not leave traces. `crates/wheellock/tests/it/virtual_time.rs` tests this exhaustively,
//! without threads and sockets.

use std::collections::HashSet;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use wheellock::{Error, Guard, Lock, LockManager};
use wheellock_client::ErrorKind;
use wheellock_tests::locks::Asked;
use wheellock_tests::{Observed, RedisServer, eventually};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_drops_leave_no_key() {
    let server = RedisServer::start();
    let locks = LockManager::connect(&server.url()).await.unwrap();
    let p99 = p99_without_drops(&locks).await;
    let tally = Arc::new(Tally::default());
    let began = Instant::now();
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        tasks.spawn(drop_at_random(locks.clone(), Arc::clone(&tally), p99, SplitMix(task)));
    }
    // A grant that the library does not take back would block all tasks for a lease.
    let mut done = 0;
    loop {
        match timeout(STALLED, tasks.join_next()).await {
            Ok(Some(ended)) => ended.unwrap(),
            Ok(None) => break,
            Err(_) => {
                let by_now = tally.done();
                assert!(by_now > done, "a key is left");
                done = by_now;
            }
        }
    }
    let took = began.elapsed();

    // Far below the lease of 30 s, so every lock that is free by then was released.
    let free = eventually(SOON, async || server.cli(&["DBSIZE"]) == "0").await;
    assert!(free, "left: {}", server.cli(&["KEYS", "*"]));
    let unsubscribed = eventually(SOON, async || server.cli(&["PUBSUB", "CHANNELS"]).is_empty()).await;
    assert!(unsubscribed, "left: {}", server.cli(&["PUBSUB", "CHANNELS"]));
    let answered = eventually(SOON, async || {
        let stats = locks.client().stats();
        (stats.in_flight, stats.queued_bytes) == (0, 0)
    });
    assert!(answered.await, "{:?}", locks.client().stats());
    println!("{tally:?} in {took:?}, p99 without drops {p99:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewal_never_follows_release() {
    let server = RedisServer::start();
    let builder = LockManager::builder(&server.url()).watchdog_lease(SHORT_LEASE);
    // Late replies are not the subject of this test.
    let builder = builder.configure(|config| config.response_timeout = STALLED);
    let locks = builder.connect().await.unwrap();
    let ledger = Arc::new(Mutex::new(Ledger::new()));
    let writer = Arc::clone(&ledger);
    let monitor = server.monitor().follow(move |observed| writer.lock().unwrap().enter(&observed));
    let began = Instant::now();
    let mut tasks = JoinSet::new();
    for task in 0..HOLDERS {
        tasks.spawn(hold_and_release(locks.lock(&format!("held:{task}")), SplitMix(task)));
    }
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
    let took = began.elapsed();
    // Wait for the last possible wrong renewal.
    sleep(SHORT_LEASE).await;
    assert!(eventually(SOON, async || server.cli(&["DBSIZE"]) == "0").await);
    monitor.stop().unwrap();

    let ledger = ledger.lock().unwrap();
    println!("{} in {took:?}", ledger.summary());
    assert_eq!(ledger.late, [] as [String; 0]);
    let pairs = usize::try_from(HOLDERS).unwrap() * HOLDS_EACH;
    assert!(ledger.released.len() >= pairs * 9 / 10, "{}", ledger.summary());
    assert!(ledger.renewals >= pairs / 10, "too few to race with anything: {}", ledger.summary());
}

/// Returns the 99th percentile of an operation's time under the same load.
async fn p99_without_drops(locks: &LockManager) -> Duration {
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let (locks, mut random) = (locks.clone(), SplitMix(!task));
        tasks.spawn(async move {
            let mut took = Vec::new();
            for _ in 0..50 {
                let began = Instant::now();
                operate(&locks, &mut random).await;
                took.push(began.elapsed());
            }
            took
        });
    }
    let mut took = Vec::new();
    while let Some(of_one) = tasks.join_next().await {
        took.extend(of_one.unwrap());
    }
    took.sort_unstable();
    took[took.len() * 99 / 100]
}

async fn drop_at_random(locks: LockManager, tally: Arc<Tally>, p99: Duration, mut random: SplitMix) {
    let longest = 2 * u64::try_from(p99.as_micros()).unwrap();
    while tally.dropped.load(Relaxed) < DROPS {
        let by_time = random.below(2) == 0;
        let (polls, time) = (random.below(8), Duration::from_micros(random.below(longest)));
        let operation = operate(&locks, &mut random);
        let ended = if by_time {
            timeout(time, operation).await.is_ok()
        } else {
            with_so_many_polls(polls, operation).await
        };
        let counter = if ended { &tally.ended } else { &tally.dropped };
        counter.fetch_add(1, Relaxed);
        // The operations above may not have waited; the connection's task needs its turns.
        tokio::task::yield_now().await;
    }
}

/// Drops `operation` after `polls` polls if it is not ready. Returns true if it was ready.
async fn with_so_many_polls(mut polls: u64, operation: impl Future<Output = ()>) -> bool {
    let mut operation = pin!(operation);
    std::future::poll_fn(|cx| {
        if polls == 0 {
            return Poll::Ready(false);
        }
        polls -= 1;
        match Pin::new(&mut operation).poll(cx) {
            Poll::Pending if polls == 0 => Poll::Ready(false),
            poll => poll.map(|()| true),
        }
    })
    .await
}

/// Runs a random operation on one of a few locks.
async fn operate(locks: &LockManager, random: &mut SplitMix) {
    let lock = locks.lock(&format!("contended:{}", random.below(NAMES)));
    match random.below(5) {
        0 => drop(lock.acquire().await.unwrap()),
        1 => {
            let wait = Duration::from_micros(random.below(2000));
            match lock.try_acquire_for(wait).await {
                Ok(guard) => drop(guard),
                // The wait was too short even for the first reply.
                Err(Error::Server { source, .. }) if source.kind() == ErrorKind::Timeout => {}
                Err(error) => panic!("{error}"),
            }
        }
        2 => lock.acquire().await.unwrap().release().await.unwrap(),
        3 => {
            let outer = lock.acquire().await.unwrap();
            let inner = lock.with_owner(outer.owner()).acquire().await.unwrap();
            let (outer, inner) = tokio::join!(outer.release(), inner.release());
            let _released = (outer.unwrap(), inner.unwrap());
        }
        _ => {
            let work = async |_guard: &Guard| {
                tokio::task::yield_now().await;
                Ok::<_, Error>(())
            };
            lock.run(work).await.unwrap();
        }
    }
}

/// Takes the lock repeatedly. Releases half of the guards and drops the other half, at about the times of renewals.
async fn hold_and_release(lock: Lock, mut random: SplitMix) {
    for _ in 0..HOLDS_EACH {
        let guard = loop {
            match lock.acquire().await {
                Ok(guard) => break guard,
                // A busy machine may take longer than the short lease. The library has released the lock at once.
                Err(Error::GrantedTooLate { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        };
        // A little longer than two renewals.
        let longest = u64::try_from(SHORT_LEASE.as_micros()).unwrap() * 7 / 10;
        sleep(Duration::from_micros(random.below(longest))).await;
        if random.below(2) == 0 {
            drop(guard);
        } else {
            match guard.release().await {
                // On a busy machine the short lease may end before its renewal, or while the release is under way.
                Ok(()) | Err(Error::Lost { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }
}

#[derive(Debug, Default)]
struct Tally {
    dropped: AtomicU64,
    ended: AtomicU64,
}

impl Tally {
    fn done(&self) -> u64 {
        self.dropped.load(Relaxed) + self.ended.load(Relaxed)
    }
}

/// The server's requests for every hold, in the server's order.
struct Ledger {
    released: HashSet<(String, String)>,
    /// The number of renewed locks; a request may renew several locks.
    renewals: usize,
    late: Vec<String>,
}

impl Ledger {
    fn new() -> Self {
        Self { released: HashSet::new(), renewals: 0, late: Vec::new() }
    }

    fn enter(&mut self, observed: &Observed) {
        assert_ne!(observed.name(), "EVAL", "the server has all scripts");
        for asked in Asked::each(observed) {
            match asked {
                Asked::Release { lock, owner, count } => {
                    assert_eq!(count, "0", "nothing here is reentrant");
                    self.released.insert((lock, owner));
                }
                Asked::Renew { holds } => {
                    self.renewals += holds.len();
                    let late = holds.iter().filter(|hold| self.released.contains(*hold));
                    self.late.extend(late.map(|(lock, owner)| format!("{lock} by {owner}")));
                }
                _ => {}
            }
        }
    }

    fn summary(&self) -> String {
        format!("{} released, {} renewals, {} late", self.released.len(), self.renewals, self.late.len())
    }
}

/// A small generator with the same numbers on any machine.
struct SplitMix(u64);

impl SplitMix {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % bound.max(1)
    }
}

const DROPS: u64 = 100_000;
const TASKS: u64 = 64;
const NAMES: u64 = 16;
/// Below the default lease: a waiter for an orphaned key does not get the lock in this time.
const STALLED: Duration = Duration::from_secs(20);
/// Far below the default lease.
const SOON: Duration = Duration::from_secs(10);

/// The watchdog renews it every 100 ms.
const SHORT_LEASE: Duration = Duration::from_millis(300);
/// Enough to keep an idle machine busy. On a busy machine, more holders would only get their locks too late.
const HOLDERS: u64 = 500;
const HOLDS_EACH: usize = 200;
