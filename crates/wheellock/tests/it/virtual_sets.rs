//! Sets and quorums on servers with a manual clock.
//!
//! The connections are in memory. The tests drop each operation at every poll, with servers that reply byte by byte or not at all.
//! Afterwards no server may have a trace of the operation.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use wheellock::client::Timer;
use wheellock::testing::server::{Network, Server, Which, late_renewals};
use wheellock::{Error, LockManager, RedLockManager, multi_lock};
use wheellock_wheel::ManualClock;

use crate::worlds::{Flag, Told, virtual_time};

const NAME: &str = "n";
const CHANNEL: &str = "redisson_lock__channel:{n}";
const STRANGER: &str = "00000000-0000-4000-8000-000000000000:1";
const LEASE: Duration = Duration::from_secs(3);
const STEP: Duration = Duration::from_millis(10);
/// Turns without a moved byte after which no task has more work.
const IDLE: usize = 4;
const ENDLESS: usize = 100_000;

#[derive(Clone, Copy, Debug)]
enum Operation {
    Set,
    /// A stranger holds the second member and releases it.
    SetContended,
    SetTry,
    SetForInVain,
    SetRelease,
    Quorum,
    /// Strangers hold two of three members and release them.
    QuorumContended,
    /// A stranger holds one of three members.
    QuorumOneElsewhere,
    QuorumTryInVain,
    QuorumForInVain,
    QuorumRelease,
    QuorumRun,
}

use Operation::*;

const OPERATIONS: [Operation; 12] = [
    Set,
    SetContended,
    SetTry,
    SetForInVain,
    SetRelease,
    Quorum,
    QuorumContended,
    QuorumOneElsewhere,
    QuorumTryInVain,
    QuorumForInVain,
    QuorumRelease,
    QuorumRun,
];

/// Faults of the servers during an operation.
#[derive(Clone, Copy, Debug, Default)]
struct Setting {
    /// Bytes per turn and direction, of every server but the last.
    trickle: Option<usize>,
    /// The last server replies this slowly, in bytes per turn and direction.
    last_trickle: Option<usize>,
    /// The last server reads all requests and does not reply until the check.
    last_silent: bool,
}

type Job = Pin<Box<dyn Future<Output = Result<(), Error>>>>;

struct World {
    managers: Vec<LockManager>,
    red: RedLockManager,
    servers: Vec<Server>,
    timer: ManualClock,
    elapsed: Duration,
    setting: Setting,
    /// Servers on which a stranger holds the lock.
    strangers: Vec<usize>,
}

impl World {
    async fn new() -> Self {
        let (timer, clock) = Timer::manual(Duration::from_millis(1));
        let (mut servers, mut connecting) = (Vec::new(), Vec::new());
        for number in 0..3 {
            let network = Arc::new(Network::default());
            let (own, connector) = (timer.clone(), network.connector());
            let builder = LockManager::builder(&format!("redis://server{number}")).watchdog_lease(LEASE);
            let builder = builder.configure(|config| {
                config.timer = own;
                config.random = || 1_000_000;
                config.connector = Some(connector);
            });
            connecting.push(tokio::spawn(builder.connect()));
            let mut server = Server::new(network);
            server.store.run_id = format!("server {number}");
            servers.push(server);
        }
        let mut managers = Vec::new();
        for connecting in connecting {
            while !connecting.is_finished() {
                tokio::task::yield_now().await;
                servers.iter_mut().for_each(|server| _ = server.serve());
            }
            managers.push(connecting.await.unwrap().unwrap());
        }
        let meeting = tokio::spawn(RedLockManager::new(managers.clone()));
        while !meeting.is_finished() {
            tokio::task::yield_now().await;
            servers.iter_mut().for_each(|server| _ = server.serve());
        }
        let red = meeting.await.unwrap().unwrap();
        let (elapsed, setting) = (Duration::ZERO, Setting::default());
        Self { managers, red, servers, timer: clock, elapsed, setting, strangers: Vec::new() }
    }

    fn stranger_holds(&mut self, places: &[usize]) {
        for place in places {
            let params = [NAME, "60000", STRANGER, "1"];
            self.servers[*place].run_for_another(Which::Acquire, "1", &params);
            self.strangers.push(*place);
        }
    }

    fn strangers_release(&mut self) {
        for place in self.strangers.drain(..) {
            let params = [NAME, CHANNEL, STRANGER, "0", "PUBLISH"];
            self.servers[place].run_for_another(Which::Release, "1", &params);
        }
    }

    async fn begin(&mut self, operation: Operation) -> (Job, bool) {
        let set = multi_lock(self.managers.iter().map(|locks| locks.lock(NAME))).unwrap();
        let lock = self.red.lock(NAME);
        let wait = 4 * STEP;
        let mut comes_free = false;
        let job: Job = match operation {
            Set => Box::pin(async move { set.acquire().await.map(drop) }),
            SetContended => {
                self.stranger_holds(&[1]);
                comes_free = true;
                Box::pin(async move { set.acquire().await.map(drop) })
            }
            SetTry => {
                self.stranger_holds(&[1]);
                Box::pin(async move { set.try_acquire().await.map(|guard| assert!(!guard.is_acquired())) })
            }
            SetForInVain => {
                self.stranger_holds(&[0]);
                Box::pin(
                    async move { set.try_acquire_for(wait).await.map(|guard| assert!(!guard.is_acquired())) },
                )
            }
            SetRelease => {
                let guard = self.prepared(async move { set.acquire().await }).await;
                Box::pin(async move { guard.release().await.map(drop) })
            }
            Quorum => Box::pin(async move { lock.acquire().await.map(drop) }),
            QuorumContended => {
                self.stranger_holds(&[0, 1]);
                comes_free = true;
                Box::pin(async move { lock.acquire().await.map(drop) })
            }
            QuorumOneElsewhere => {
                self.stranger_holds(&[1]);
                comes_free = true;
                Box::pin(async move { lock.acquire().await.map(drop) })
            }
            QuorumTryInVain => {
                self.stranger_holds(&[0, 1]);
                Box::pin(async move { lock.try_acquire().await.map(|guard| assert!(!guard.is_acquired())) })
            }
            QuorumForInVain => {
                self.stranger_holds(&[0, 1]);
                Box::pin(async move {
                    lock.try_acquire_for(wait).await.map(|guard| assert!(!guard.is_acquired()))
                })
            }
            QuorumRelease => {
                let guard = self.prepared(async move { lock.acquire().await }).await;
                Box::pin(async move { guard.release().await.map(drop) })
            }
            QuorumRun => Box::pin(async move {
                lock.run(async |guard| {
                    assert!(guard.is_valid());
                    tokio::task::yield_now().await;
                    Ok(())
                })
                .await
            }),
        };
        (job, comes_free)
    }

    /// Prepares an operation before any fault occurs.
    async fn prepared<T: Send + 'static>(
        &mut self,
        work: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> T {
        let work = tokio::spawn(work);
        while !work.is_finished() {
            self.turn().await;
        }
        let done = work.await.unwrap().unwrap();
        self.settle().await;
        done
    }

    fn set(&mut self, setting: Setting) {
        self.setting = setting;
        let last = self.servers.len() - 1;
        for (place, server) in self.servers.iter_mut().enumerate() {
            server.set_trickle(if place == last { setting.last_trickle } else { setting.trickle });
        }
    }

    async fn turn(&mut self) -> bool {
        tokio::task::yield_now().await;
        let now = u64::try_from(self.elapsed.as_millis()).unwrap();
        let last = self.servers.len() - 1;
        let mut moved = false;
        for (place, server) in self.servers.iter_mut().enumerate() {
            server.store.set_now(now);
            if place != last || !self.setting.last_silent {
                moved |= server.serve();
            }
        }
        moved
    }

    async fn settle(&mut self) {
        let mut idle = 0;
        while idle < IDLE {
            idle = if self.turn().await { 0 } else { idle + 1 };
        }
    }

    fn pass(&mut self, time: Duration) {
        self.elapsed += time;
        self.timer.advance(time);
    }

    /// Runs `job` for up to `turns` turns, and then drops it. Returns the result if the job ended before.
    async fn drive(&mut self, job: Job, turns: usize, mut comes_free: bool) -> Option<Result<(), Error>> {
        let mut job = Some(job);
        let flag = Flag::woken();
        let waker = Waker::from(Arc::clone(&flag));
        let mut idle = 0;
        for turn in 0..ENDLESS {
            if turn >= turns {
                drop(job.take());
                return None;
            }
            let woken = flag.take();
            if let Some(job) = job.as_mut().filter(|_| woken)
                && let Poll::Ready(ended) = job.as_mut().poll(&mut Context::from_waker(&waker))
            {
                return Some(ended);
            }
            let moved = self.turn().await || flag.is_woken();
            idle = if moved { 0 } else { idle + 1 };
            if idle >= IDLE {
                idle = 0;
                if std::mem::take(&mut comes_free) {
                    self.strangers_release();
                } else {
                    self.pass(STEP);
                }
            }
        }
        panic!("it never ends");
    }

    /// Asserts that no server has a trace of our operation, without time passing. The next caller gets the lock.
    async fn check(mut self) {
        self.set(Setting::default());
        self.settle().await;
        self.strangers_release();
        self.settle().await;
        for (place, server) in self.servers.iter().enumerate() {
            let holds: Vec<_> = server.store.holds().collect();
            assert_eq!(holds.len(), 0, "left on server {place}: {holds:?}");
            assert!(late_renewals(&server.store.log).is_empty(), "renewed after its release");
        }
        for _ in 0..4 {
            self.pass(Duration::from_secs(1));
            self.settle().await;
        }
        for (place, server) in self.servers.iter().enumerate() {
            assert!(server.store.channels.is_empty(), "a subscription is left on server {place}");
            let stats = self.managers[place].client().stats();
            assert_eq!((stats.in_flight, stats.queued_bytes), (0, 0), "a call is left");
        }
        let (lock, set) =
            (self.red.lock(NAME), multi_lock(self.managers.iter().map(|locks| locks.lock("m"))).unwrap());
        self.prepared(async move { lock.try_acquire().await?.acquired().expect("free").release().await })
            .await;
        self.prepared(async move { set.try_acquire().await?.acquired().expect("free").release().await })
            .await;
        self.settle().await;
        assert_eq!(self.servers.iter().map(|server| server.store.holds().count()).sum::<usize>(), 0);
        // The guard's wait for late members has ended with the guard. Only the tasks of drivers and keepers are left.
        drop((self.red, self.managers));
        for _ in 0..8 {
            tokio::task::yield_now().await;
        }
        let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
        assert_eq!(tasks, 0, "a task lives on");
    }
}

/// Drops `operation` after every number of turns, until it ends by itself. Returns the number of worlds.
async fn drop_everywhere(operation: Operation, setting: Setting) -> usize {
    for turns in 0.. {
        let told = Told(format!("{operation:?} for {turns} turns, {setting:?}"));
        let mut world = World::new().await;
        let (job, comes_free) = world.begin(operation).await;
        world.set(setting);
        let ended = world.drive(job, turns, comes_free).await;
        let is_over = ended.is_some();
        let may_fail = setting.last_silent;
        assert!(may_fail || ended.is_none_or(|ended| ended.is_ok()), "it failed");
        world.check().await;
        drop(told);
        if is_over {
            return turns + 1;
        }
    }
    unreachable!("every operation ends")
}

fn everywhere(setting: Setting, operations: &[Operation]) {
    virtual_time(async {
        let mut worlds = 0;
        for operation in operations {
            worlds += drop_everywhere(*operation, setting).await;
        }
        println!("{worlds} worlds");
    });
}

#[test]
fn dropped_at_every_poll() {
    everywhere(Setting::default(), &OPERATIONS);
}

#[test]
fn drops_during_trickled_replies_leave_nothing() {
    everywhere(Setting { trickle: Some(9), last_trickle: Some(4), last_silent: false }, &OPERATIONS);
}

#[test]
fn drops_with_silent_server_leave_nothing() {
    let quorums = [Quorum, QuorumOneElsewhere, QuorumTryInVain, QuorumForInVain, QuorumRelease, QuorumRun];
    everywhere(Setting { last_silent: true, ..Setting::default() }, &quorums);
}
