//! Servers that reject releases and renewals without a waiting caller.
//!
//! The tests run in memory and on a manual clock. So "soon" is a number, and a loop without a pause would never end.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use wheellock::client::Timer;
use wheellock::testing::server::{How, Network, Server};
use wheellock::{Attempt, Guard, Lock, LockManager, Permit};
use wheellock_wheel::ManualClock;

/// A twentieth of the lease passes before a failed request is repeated. That is much longer than every pause here.
const LEASE: Duration = Duration::from_secs(30);
const MILLISECOND: Duration = Duration::from_millis(1);
/// Turns of the run queue without a moved byte after which no task has more work.
const IDLE: usize = 3;
/// Maximum number of turns in which bytes move while the clock stands still.
const ENDLESS: usize = 10_000;

struct World {
    locks: LockManager,
    clock: ManualClock,
    elapsed: Duration,
    server: Server,
}

impl World {
    async fn new() -> Self {
        let (timer, clock) = Timer::manual(MILLISECOND);
        let network = Arc::new(Network::default());
        let connector = network.connector();
        let builder = LockManager::builder("redis://in.memory").watchdog_lease(LEASE).configure(|config| {
            config.timer = timer;
            // One millisecond between attempts to connect.
            config.random = || 1_000_000;
            config.connector = Some(connector);
        });
        let connecting = tokio::spawn(builder.connect());
        let mut server = Server::new(network);
        while !connecting.is_finished() {
            tokio::task::yield_now().await;
            server.serve();
        }
        let locks = connecting.await.unwrap().unwrap();
        Self { locks, clock, elapsed: Duration::ZERO, server }
    }

    async fn acquire(&mut self, name: &str) -> Guard {
        self.acquire_lock(self.locks.lock(name)).await
    }

    async fn acquire_lock(&mut self, lock: Lock) -> Guard {
        let acquiring = tokio::spawn(async move { lock.acquire().await });
        while !acquiring.is_finished() {
            self.turn().await;
        }
        acquiring.await.unwrap().unwrap()
    }

    /// Runs each task for one turn. Returns true if a byte moved.
    async fn turn(&mut self) -> bool {
        self.server.store.set_now(u64::try_from(self.elapsed.as_millis()).unwrap());
        tokio::task::yield_now().await;
        self.server.serve()
    }

    /// Runs all tasks until they have no more work, while the clock stands still.
    async fn settle(&mut self) {
        let mut idle = 0;
        for _ in 0..ENDLESS {
            idle = if self.turn().await { 0 } else { idle + 1 };
            if idle >= IDLE {
                return;
            }
        }
        panic!("it asks again and again, and time stands still");
    }

    async fn pass(&mut self, time: Duration) {
        let until = self.elapsed + time;
        while self.elapsed < until {
            self.elapsed += MILLISECOND;
            self.clock.advance(MILLISECOND);
            self.settle().await;
        }
    }

    /// Lets time pass until `happened` returns true. Returns the time that has passed.
    async fn pass_until(&mut self, happened: impl Fn(&Self) -> bool) -> Duration {
        let began = self.elapsed;
        self.settle().await;
        while !happened(self) {
            assert!(self.elapsed < began + 2 * LEASE, "it never happens");
            self.pass(MILLISECOND).await;
        }
        self.elapsed - began
    }

    /// Runs turns until `done` returns true. The client has not read the server's last reply then.
    async fn turn_until(&mut self, done: impl Fn(&Self) -> bool) {
        loop {
            while self.turn().await {
                if done(self) {
                    return;
                }
            }
            assert!(self.elapsed < LEASE, "it never does");
            self.elapsed += MILLISECOND;
            self.clock.advance(MILLISECOND);
        }
    }

    fn is_free(&self) -> bool {
        self.server.store.holds().count() == 0
    }

    fn failed_renewals(&self) -> u64 {
        self.locks.metrics().failed_renewals
    }
}

fn virtual_time(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(test);
}

const MOVED: &str = "MOVED 1 127.0.0.1:7001";
const ASK: &str = "ASK 1 127.0.0.1:7001";
const TRYAGAIN: &str = "TRYAGAIN Multiple keys request during rehashing of slot";
const LOADING: &str = "LOADING Redis is loading the dataset in memory";
const CLUSTERDOWN: &str = "CLUSTERDOWN The cluster is down";

#[test]
fn rejected_release_is_retried_promptly() {
    virtual_time(async {
        let soon = [
            (MOVED, 2, 0),
            (ASK, 2, 0),
            ("NOSCRIPT No matching script.", 1, 0),
            // 2 ms is the resolution of the table's wheel.
            (TRYAGAIN, 1, 12),
            (LOADING, 3, 36),
            (CLUSTERDOWN, 1, 27),
            // After these errors only another connection helps.
            ("READONLY You can't write against a read only replica.", 1, 14),
            ("MASTERDOWN Link with MASTER is down", 1, 14),
        ];
        for (refusal, times, millis) in soon {
            let mut world = World::new().await;
            let guard = world.acquire("a").await;
            world.server.faults.refusal = Some((times, refusal));
            drop(guard);
            let took = world.pass_until(World::is_free).await;
            assert!(took <= Duration::from_millis(millis), "{refusal}: {took:?}");
            assert_eq!(world.server.faults.refused, vec![1; times], "{refusal}");
        }
    });
}

#[test]
fn endlessly_redirected_release_never_spins() {
    virtual_time(async {
        for refusal in [MOVED, ASK] {
            let mut world = World::new().await;
            let guard = world.acquire("a").await;
            world.server.faults.refusal = Some((usize::MAX, refusal));
            drop(guard);
            world.pass(Duration::from_millis(500)).await;
            let asked = world.server.faults.refused.len();
            assert!((10..40).contains(&asked), "{refusal}: {asked} times in half a second");
            world.server.faults.refusal = None;
            let took = world.pass_until(World::is_free).await;
            assert!(took <= Duration::from_millis(82), "{refusal}: {took:?}");
        }
    });
}

#[test]
fn rejected_renewals_retry_singly_during_migration() {
    virtual_time(async {
        // Columns: error, its count, locks per rejected script, locks per executed script, counted failures, milliseconds.
        let cases = [
            (MOVED, 2, vec![3, 3], vec![3], 0, 6),
            (TRYAGAIN, 1, vec![3], vec![1, 1, 1], 0, 12),
            (ASK, 1, vec![3], vec![1, 1, 1], 0, 2),
            ("NOSCRIPT No matching script.", 1, vec![3], vec![3], 0, 2),
            (LOADING, 2, vec![3, 3], vec![3], 3, 24),
        ];
        for (refusal, times, refused, executed, failures, millis) in cases {
            let mut world = World::new().await;
            let guards = [world.acquire("a").await, world.acquire("b").await, world.acquire("c").await];
            world.server.faults.executed.clear();
            world.server.faults.refusal = Some((times, refusal));
            let before = guards.each_ref().map(Guard::valid_until);
            let _third = world.pass_until(|world| !world.server.faults.refused.is_empty()).await;
            let renewed = |_: &World| guards.iter().zip(before).all(|(guard, was)| guard.valid_until() > was);
            let took = world.pass_until(renewed).await;
            assert!(took <= Duration::from_millis(millis), "{refusal}: {took:?}");
            assert_eq!(
                (&world.server.faults.refused, &world.server.faults.executed),
                (&refused, &executed),
                "{refusal}"
            );
            assert_eq!(world.failed_renewals(), failures, "{refusal}");

            // At the next beat the renewals share a script again.
            world.server.faults.executed.clear();
            let _third = world.pass_until(|world| !world.server.faults.executed.is_empty()).await;
            assert_eq!(world.server.faults.executed, [3], "{refusal}");
        }
    });
}

#[test]
fn endless_rejection_reports_loss_without_spinning() {
    virtual_time(async {
        for refusal in [MOVED, ASK, TRYAGAIN, LOADING] {
            let mut world = World::new().await;
            let guard = world.acquire("a").await;
            world.server.faults.refusal = Some((usize::MAX, refusal));
            let _lost = world.pass_until(|_| !guard.is_valid()).await;
            assert!(world.elapsed <= LEASE, "{refusal}");
            // After a third of the lease, at most three renewals per 80 ms.
            let asked = world.server.faults.refused.len();
            assert!(asked < 1000, "{refusal}: {asked} times");
            assert_eq!(world.locks.metrics().lost_expired, 1, "{refusal}");
        }
    });
}

/// Otherwise other callers would wait until the end of the longer lease.
#[test]
fn refused_cut_to_maximum_repeats() {
    virtual_time(async {
        for refusal in [MOVED, TRYAGAIN, LOADING, "ERR unknown"] {
            let mut world = World::new().await;
            let lock = world.locks.lock("a").with_lease(LEASE);
            let outer = world.acquire_lock(lock.clone()).await;
            let max = LEASE / 3;
            let lock = lock.with_owner(outer.owner()).with_max_hold(max);
            world.server.faults.executed.clear();
            let acquiring = tokio::spawn(async move { lock.acquire().await });
            world.turn_until(|world| !world.server.faults.executed.is_empty()).await;
            world.server.faults.refusal = Some((1, refusal));
            world.pass(max).await;
            let inner = acquiring.await.unwrap().unwrap();
            assert_eq!(world.server.faults.refused, [1], "{refusal}");
            let late = world.pass_until(World::is_free).await;
            assert!(late <= 2 * MILLISECOND, "{refusal}: {late:?}");
            assert!(!outer.is_valid() && !inner.is_valid());
        }
    });
}

/// A redirection or a NOSCRIPT error is not a failure, even if the wait ends before the next attempt.
#[test]
fn unfinished_retry_ends_wait_without_error() {
    virtual_time(async {
        for refusal in ["NOSCRIPT No matching script.", MOVED, ASK] {
            for is_asked_again in [false, true] {
                let mut world = World::new().await;
                let guard = world.acquire("a").await;
                let lock = world.locks.lock("a");
                // A little longer than the head waits for a message before it polls again.
                let wait = Duration::from_millis(5100);
                let waiting = tokio::spawn(async move { lock.try_acquire_for(wait).await });
                world.settle().await;
                world.server.faults.refusal = Some((1, refusal));
                world.turn_until(|world| !world.server.faults.refused.is_empty()).await;
                if is_asked_again {
                    world.server.faults.is_silent = true;
                    world.settle().await;
                }
                world.clock.advance(wait.saturating_sub(world.elapsed));
                world.settle().await;
                let ended = waiting.await.unwrap();
                assert!(matches!(ended, Ok(Attempt::Held { .. })), "{refusal}, {is_asked_again}: {ended:?}");
                assert!(guard.is_valid());
            }
        }
    });
}

/// Takes the lock or permit with the name `a`.
type Take = fn(LockManager) -> Pin<Box<dyn Future<Output = Taken> + Send>>;

enum Taken {
    Lock(Guard),
    Permit(Permit),
}

impl Taken {
    async fn lock(lock: Lock) -> Self {
        Self::Lock(lock.acquire().await.unwrap())
    }

    fn guard(&self) -> &Guard {
        match self {
            Self::Lock(guard) => guard,
            Self::Permit(permit) => permit,
        }
    }
}

/// Found by simulated fleets. The first grant of a permit had a lost reply, and the lease counted from that grant. The holder counted
/// from the second grant.
#[test]
fn server_keeps_repeated_grant_until_expiry() {
    let kinds: [(&str, Take); 7] = [
        ("plain", |locks| Box::pin(Taken::lock(locks.lock("a")))),
        ("fair", |locks| Box::pin(Taken::lock(locks.fair_lock("a")))),
        ("fenced", |locks| Box::pin(Taken::lock(locks.fenced_lock("a").as_lock().clone()))),
        ("read", |locks| Box::pin(Taken::lock(locks.read_write_lock("a").read()))),
        ("write", |locks| Box::pin(Taken::lock(locks.read_write_lock("a").write()))),
        ("simple", |locks| Box::pin(Taken::lock(locks.simple_lock("a")))),
        ("permit", |locks| {
            Box::pin(async move { Taken::Permit(locks.permit_semaphore("a").acquire().await.unwrap()) })
        }),
    ];
    virtual_time(async {
        for (kind, take) in kinds {
            let mut world = World::new().await;
            if kind == "permit" {
                world.server.store.execute(&["SET", "a", "1"]);
            }
            world.server.faults.losses = Some((0, 1, How::Rst));
            let taking = tokio::spawn(take(world.locks.clone()));
            world.turn_until(|world| world.server.faults.lost == 1).await;
            world.server.faults.refusal = Some((usize::MAX, LOADING));
            // Longer than the margin that a holder subtracts from its lease for different clocks.
            world.pass(Duration::from_millis(1500)).await;
            world.server.faults.refusal = None;
            world.pass_until(|_| taking.is_finished()).await;
            let taken = taking.await.unwrap();
            world.server.faults.is_silent = true;
            let is_over = |world: &World| {
                let server = &world.server.store;
                let keeps =
                    if kind == "permit" { server.permits("a", "{a}").1 > 0 } else { !world.is_free() };
                let is_valid = taken.guard().is_valid();
                assert!(keeps || !is_valid, "{kind}");
                !is_valid
            };
            let lasted = world.pass_until(is_over).await;
            assert!(lasted > LEASE - Duration::from_millis(500), "{kind}: {lasted:?}");
        }
    });
}
