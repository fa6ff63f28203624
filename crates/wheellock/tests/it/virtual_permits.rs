//! Semaphores, permits and latches on a manual clock.
//!
//! The connections are in memory. The tests drop each operation at every poll, break it at every byte, and lose every reply. Then the
//! operation must have taken effect once. If no caller learned of an effect, there may be none.
//!
//! Every world ends with the same checks, see [`World::check`]. The server counts exactly the holders that have guards. The right number
//! of permits is free. Every waiter behind the operation was granted its permits.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::num::NonZeroU32;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::task::JoinHandle;
use wheellock::client::Timer;
use wheellock::testing::server::{Cut, How, Network, Server, Side, Which, late_renewals};
use wheellock::{Error, LockManager, Outcome, Permit, PermitSemaphore, Permits, Semaphore};
use wheellock_wheel::ManualClock;

use crate::worlds::{Flag, Told, virtual_time};

const NAME: &str = "n";
/// Common part of a name's companion keys.
const TAG: &str = "{n}";
/// Number of a semaphore's permits, when there is no holder.
const ALL: i64 = 10;
/// Short, so that renewals fall due within few steps of the clock.
const LEASE: Duration = Duration::from_millis(300);
/// Step of a world's clock. The clock moves only when no task has more work.
const STEP: Duration = Duration::from_millis(10);
/// Turns of the run queue without a moved byte after which no task has more work.
const IDLE: usize = 3;
/// Upper bound of a world's turns.
const ENDLESS: usize = 200_000;

/// The operation that is dropped or broken.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Operation {
    /// One permit of a counted semaphore.
    Take,
    TakeMany,
    /// No permit is free until a stranger adds some.
    TakeContended,
    /// Before another waiter of this process.
    TakeAhead,
    /// Behind another waiter of this process.
    TakeBehind,
    /// The permits become free in time.
    TryFor,
    TryForInVain,
    Release,
    DropTaken,
    /// One part of the permits is kept.
    SplitAndDrop,
    SplitAndReleaseBoth,
    Give,
    Add,
    TakeAway,
    Drain,
    Set,
    SetAgain,
    /// A permit with a lease.
    Lease,
    /// Several permits with leases, together.
    LeaseMany,
    LeaseContended,
    LeaseAhead,
    LeaseRelease,
    LeaseDrop,
    /// Over several renewals.
    LeaseHeld,
    LeaseRun,
    /// By the id of a stranger's permit.
    GiveBack,
    SetPermits,
    AddLeased,
    SetLatch,
    SetLatchAgain,
    CountDown,
    CountDownLast,
    Delete,
    Wait,
    WaitAhead,
    WaitDeleted,
}

use Operation::*;

const OPERATIONS: [Operation; 36] = [
    Take,
    TakeMany,
    TakeContended,
    TakeAhead,
    TakeBehind,
    TryFor,
    TryForInVain,
    Release,
    DropTaken,
    SplitAndDrop,
    SplitAndReleaseBoth,
    Give,
    Add,
    TakeAway,
    Drain,
    Set,
    SetAgain,
    Lease,
    LeaseMany,
    LeaseContended,
    LeaseAhead,
    LeaseRelease,
    LeaseDrop,
    LeaseHeld,
    LeaseRun,
    GiveBack,
    SetPermits,
    AddLeased,
    SetLatch,
    SetLatchAgain,
    CountDown,
    CountDownLast,
    Delete,
    Wait,
    WaitAhead,
    WaitDeleted,
];

/// An outside event, which occurs when no task has more work.
#[derive(Clone, Copy, Debug)]
enum Event {
    StrangerAdds,
    StrangerCountsDown,
    StrangerDeletes,
    CompanionComes,
}

/// Demand of another task of this process.
#[derive(Clone, Copy, Debug)]
enum Demand {
    Counted(u32),
    Leased,
    Latch,
}

/// The circumstances of a world.
#[derive(Clone, Copy, Debug, Default)]
struct Setting {
    /// Bytes per turn and direction.
    trickle: Option<usize>,
    /// Polls in every turn, woken or not. Otherwise only a woken job is polled, so that the test finds a lost wake-up.
    restless: bool,
    /// The server has lost its scripts.
    forgetful: bool,
    messages_last: bool,
    cut: Option<Cut>,
    /// After the cut, the server does not reply until the check.
    down: bool,
    /// Lost replies: the number of the first call, and the number of replies.
    losses: Option<(usize, usize, How)>,
    /// The call whose request arrives late, and when it arrives.
    late: Option<(usize, Late)>,
}

/// Time at which the server reads the last request of an ended connection.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Late {
    /// When the request was repeated or given up, and before its permits are released.
    Soon,
    /// When all permits were released and another request uses the request's slot.
    Afterwards,
}

/// Permits that the operation returned.
enum Have {
    Counted(Permits),
    Leased(Rc<Permit>),
}

type Job = Pin<Box<dyn Future<Output = Result<Vec<Have>, Error>>>>;

struct World {
    locks: LockManager,
    timer: Timer,
    clock: ManualClock,
    elapsed: Duration,
    network: Arc<Network>,
    server: Server,
    setting: Setting,
    events: VecDeque<Event>,
    wish: Demand,
    /// Permits that outlive the dropped operation.
    kept: Vec<Have>,
    companion: Option<JoinHandle<Result<(), Error>>>,
    /// Permits that must not be valid longer than the server knows them.
    believed: Rc<RefCell<Vec<Weak<Permit>>>>,
}

impl World {
    async fn new() -> Self {
        let (timer, clock) = Timer::manual(Duration::from_millis(1));
        let network = Arc::new(Network::default());
        let connector = network.connector();
        let own = timer.clone();
        let builder = LockManager::builder("redis://in.memory").watchdog_lease(LEASE).configure(|config| {
            config.timer = own;
            // One millisecond between attempts to connect.
            config.random = || 1_000_000;
            config.connector = Some(connector);
        });
        let connecting = tokio::spawn(builder.connect());
        let mut server = Server::new(Arc::clone(&network));
        while !connecting.is_finished() {
            tokio::task::yield_now().await;
            server.serve();
        }
        Self {
            locks: connecting.await.unwrap().unwrap(),
            timer,
            clock,
            elapsed: Duration::ZERO,
            network,
            server,
            setting: Setting::default(),
            events: VecDeque::new(),
            wish: Demand::Latch,
            kept: Vec::new(),
            companion: None,
            believed: Rc::default(),
        }
    }

    /// Prepares the world and makes the operation. Also returns the expected number of permits in total, free or not, or the latch's
    /// remaining count. The first number is for an operation that takes effect, the second for an operation that does not.
    async fn begin(&mut self, operation: Operation) -> (Job, [i64; 2]) {
        let latches =
            [SetLatch, SetLatchAgain, CountDown, CountDownLast, Delete, Wait, WaitAhead, WaitDeleted];
        if latches.contains(&operation) {
            return self.begin_with_latch(operation).await;
        }
        let leases = [
            Lease,
            LeaseMany,
            LeaseContended,
            LeaseAhead,
            LeaseRelease,
            LeaseDrop,
            LeaseHeld,
            LeaseRun,
            GiveBack,
            SetPermits,
            AddLeased,
        ];
        if leases.contains(&operation) {
            return self.begin_with_leases(operation).await;
        }
        let contended = [TakeContended, TakeAhead, TakeBehind, TryFor, TryForInVain];
        self.set_number(if contended.contains(&operation) { 0 } else { ALL });
        let (pool, timer) = (self.locks.semaphore(NAME), self.timer.clone());
        let taken = |permits| Ok(vec![Have::Counted(permits)]);
        let nothing = || Ok(Vec::new());
        let mut totals = [ALL, ALL];
        let job: Job = match operation {
            Take => Box::pin(async move { taken(pool.acquire(1).await?) }),
            TakeMany => Box::pin(async move { taken(pool.acquire(4).await?) }),
            TakeContended => {
                self.events.push_back(Event::StrangerAdds);
                Box::pin(async move { taken(pool.acquire(3).await?) })
            }
            TakeAhead => {
                self.wish = Demand::Counted(2);
                self.events.extend([Event::CompanionComes, Event::StrangerAdds]);
                Box::pin(async move { taken(pool.acquire(3).await?) })
            }
            TakeBehind => {
                self.wish = Demand::Counted(4);
                self.happen(Event::CompanionComes);
                self.settle().await;
                self.events.push_back(Event::StrangerAdds);
                Box::pin(async move { taken(pool.acquire(3).await?) })
            }
            TryFor => {
                self.events.push_back(Event::StrangerAdds);
                Box::pin(async move {
                    let permits = pool.try_acquire_for(3, LEASE / 2).await?;
                    Ok(permits.map(Have::Counted).acquired().into_iter().collect())
                })
            }
            TryForInVain => {
                totals = [0, 0];
                Box::pin(async move {
                    assert!(!pool.try_acquire_for(3, 4 * STEP).await?.is_acquired());
                    nothing()
                })
            }
            Release | DropTaken | SplitAndDrop | SplitAndReleaseBoth => {
                let mut permits = self.take(&pool, 5).await;
                match operation {
                    Release => Box::pin(async move {
                        permits.release().await?;
                        nothing()
                    }),
                    DropTaken => Box::pin(async move {
                        drop(permits);
                        nothing()
                    }),
                    SplitAndDrop => {
                        let part = permits.split(2).unwrap();
                        self.kept.push(Have::Counted(permits));
                        Box::pin(async move {
                            drop(part);
                            timer.sleep(STEP).await;
                            nothing()
                        })
                    }
                    _ => Box::pin(async move {
                        let part = permits.split(2).unwrap();
                        let (one, other) = tokio::join!(part.release(), permits.release());
                        one.and(other).map(|_| Vec::new())
                    }),
                }
            }
            Give => {
                totals[0] = ALL + 2;
                Box::pin(async move { pool.release(2).await.map(|()| Vec::new()) })
            }
            Add | TakeAway => {
                let more = if operation == Add { 3 } else { -3 };
                totals[0] = ALL + more;
                Box::pin(async move {
                    assert_eq!(pool.add_permits(more).await?, ALL + more);
                    nothing()
                })
            }
            Drain => {
                totals[0] = 0;
                Box::pin(async move {
                    assert_eq!(pool.drain().await?, ALL.unsigned_abs());
                    nothing()
                })
            }
            Set => {
                self.server.store.execute(&["DEL", NAME]);
                totals = [7, 0];
                Box::pin(async move {
                    assert!(pool.try_set_permits(7).await?);
                    nothing()
                })
            }
            _ => Box::pin(async move {
                assert!(!pool.try_set_permits(7).await?);
                nothing()
            }),
        };
        (job, totals)
    }

    async fn begin_with_leases(&mut self, operation: Operation) -> (Job, [i64; 2]) {
        self.set_number(if [LeaseContended, LeaseAhead].contains(&operation) { 0 } else { ALL });
        let (pool, timer) = (self.locks.permit_semaphore(NAME), self.timer.clone());
        let believed = Rc::clone(&self.believed);
        let believe = move |permit: Permit| {
            let permit = Rc::new(permit);
            believed.borrow_mut().push(Rc::downgrade(&permit));
            permit
        };
        let mut totals = [ALL, ALL];
        let job: Job = match operation {
            Lease | LeaseContended | LeaseAhead => {
                self.wish = Demand::Leased;
                let events = [Event::CompanionComes, Event::StrangerAdds];
                self.events.extend(&events[usize::from(operation != LeaseAhead)..]);
                if operation == Lease {
                    self.events.clear();
                }
                Box::pin(async move { Ok(vec![Have::Leased(believe(pool.acquire().await?))]) })
            }
            LeaseMany => Box::pin(async move {
                let permits = pool.acquire_many(3).await?;
                Ok(permits.into_iter().map(|permit| Have::Leased(believe(permit))).collect())
            }),
            LeaseRelease => {
                let permit = self.lease(&pool).await;
                Box::pin(async move { permit.release().await.map(|_| Vec::new()) })
            }
            LeaseDrop => {
                let permit = self.lease(&pool).await;
                Box::pin(async move {
                    drop(permit);
                    Ok(Vec::new())
                })
            }
            LeaseHeld => {
                let permit = believe(self.lease(&pool).await);
                Box::pin(async move {
                    let mut lost = Box::pin(permit.lost());
                    let mut held = timer.sleep(LEASE + 4 * STEP);
                    std::future::poll_fn(|cx| match lost.as_mut().poll(cx) {
                        Poll::Ready(_) => Poll::Ready(()),
                        Poll::Pending => Pin::new(&mut held).poll(cx).map(|()| {
                            assert!(permit.is_valid(), "lost, and nobody says so");
                        }),
                    })
                    .await;
                    drop(lost);
                    Ok(vec![Have::Leased(permit)])
                })
            }
            LeaseRun => Box::pin(async move {
                let work = async |_permit: &Permit| {
                    timer.sleep(LEASE / 2).await;
                    Ok(Vec::new())
                };
                pool.run(work).await
            }),
            GiveBack => {
                // The permit's holder does not know of the permit any more.
                let permit = self.lease(&pool.with_lease(Duration::from_secs(3600))).await;
                let id = permit.id();
                self.kept.push(Have::Leased(Rc::new(permit)));
                Box::pin(async move {
                    assert!(pool.release(id).await?);
                    Ok(Vec::new())
                })
            }
            SetPermits => {
                let permit = believe(self.lease(&pool).await);
                self.kept.push(Have::Leased(permit));
                totals[0] = 7;
                Box::pin(async move {
                    assert_eq!(pool.set_permits(7).await?, 6);
                    Ok(Vec::new())
                })
            }
            _ => {
                totals[0] = ALL + 3;
                Box::pin(async move {
                    assert_eq!(pool.add_permits(3).await?, ALL + 3);
                    Ok(Vec::new())
                })
            }
        };
        (job, totals)
    }

    async fn begin_with_latch(&mut self, operation: Operation) -> (Job, [i64; 2]) {
        let latch = self.locks.count_down_latch(NAME);
        let three = NonZeroU32::new(3).unwrap();
        let count = match operation {
            SetLatch => 0,
            CountDownLast | Wait | WaitAhead => 1,
            _ => 2,
        };
        if count > 0 {
            self.set_number(count);
        }
        let mut totals = [count, count];
        let job: Job = match operation {
            SetLatch => {
                totals[0] = 3;
                Box::pin(async move {
                    assert!(latch.try_set_count(three).await?);
                    Ok(Vec::new())
                })
            }
            SetLatchAgain => Box::pin(async move {
                assert!(!latch.try_set_count(three).await?);
                Ok(Vec::new())
            }),
            CountDown | CountDownLast => {
                totals[0] = count - 1;
                Box::pin(async move {
                    assert_eq!(latch.count_down().await?, (count - 1).unsigned_abs());
                    Ok(Vec::new())
                })
            }
            Delete => {
                totals[0] = 0;
                Box::pin(async move {
                    assert!(latch.delete().await?);
                    Ok(Vec::new())
                })
            }
            _ => {
                totals = [0, 0];
                match operation {
                    WaitDeleted => self.events.push_back(Event::StrangerDeletes),
                    WaitAhead => {
                        self.events.extend([Event::CompanionComes, Event::StrangerCountsDown]);
                    }
                    _ => self.events.push_back(Event::StrangerCountsDown),
                }
                Box::pin(async move { latch.wait().await.map(|()| Vec::new()) })
            }
        };
        (job, totals)
    }

    fn set_number(&mut self, number: i64) {
        self.server.store.execute(&["SET", NAME, &number.to_string()]);
    }

    fn happen(&mut self, event: Event) {
        let (semaphore, latch) = ("redisson_sc:{n}", "redisson_countdownlatch__channel__{n}");
        let request = |channel| [NAME, channel, TAG, "stranger:1", "1", "60000", "PUBLISH"];
        match event {
            Event::StrangerAdds => {
                let all = ALL.to_string();
                let add = [&request(semaphore)[..], &[&all]].concat();
                self.server.run_for_another(Which::AddPermits, "1", &add);
            }
            Event::StrangerCountsDown => {
                self.server.run_for_another(Which::CountDown, "1", &request(latch));
            }
            Event::StrangerDeletes => {
                self.server.run_for_another(Which::DeleteLatch, "1", &request(latch));
            }
            Event::CompanionComes => {
                let (locks, wish) = (self.locks.clone(), self.wish);
                self.companion = Some(tokio::spawn(async move {
                    match wish {
                        Demand::Counted(permits) => {
                            let permits = locks.semaphore(NAME).acquire(permits).await?;
                            permits.release().await.map(drop)
                        }
                        Demand::Leased => {
                            locks.permit_semaphore(NAME).acquire().await?.release().await.map(drop)
                        }
                        Demand::Latch => locks.count_down_latch(NAME).wait().await,
                    }
                }));
            }
        }
    }

    /// Does a piece of work before any fault occurs.
    async fn before<T: Send + 'static>(
        &mut self,
        what: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> T {
        let doing = tokio::spawn(what);
        while !doing.is_finished() {
            self.turn().await;
        }
        let done = doing.await.unwrap().unwrap();
        self.settle().await;
        done
    }

    async fn take(&mut self, pool: &Semaphore, permits: u32) -> Permits {
        let pool = pool.clone();
        self.before(async move { pool.acquire(permits).await }).await
    }

    async fn lease(&mut self, pool: &PermitSemaphore) -> Permit {
        let pool = pool.clone();
        self.before(async move { pool.acquire().await }).await
    }

    /// Sets the circumstances from now on.
    fn set(&mut self, setting: Setting) {
        self.setting = setting;
        self.server.set_trickle(setting.trickle);
        self.server.faults.cut = setting.cut;
        self.server.faults.losses = setting.losses;
        self.server.faults.delay = setting.late.map(|(first, _)| (first, How::Rst));
        self.server.faults.messages_last = setting.messages_last;
        if setting.forgetful {
            self.server.store.execute(&["SCRIPT", "FLUSH"]);
        }
        self.network.set_down(setting.down);
    }

    /// Runs each task for one turn. Returns true if a byte moved.
    async fn turn(&mut self) -> bool {
        self.server.store.set_now(u64::try_from(self.elapsed.as_millis()).unwrap());
        tokio::task::yield_now().await;
        let moved = self.server.serve();
        let believed = self.believed.borrow();
        for permit in believed.iter().filter_map(Weak::upgrade).filter(|permit| permit.is_valid()) {
            let known = self.server.store.has_permit(TAG, &permit.id().to_string());
            assert!(known, "a permit claims what the server does not know");
        }
        moved
    }

    /// Runs all tasks until they have no more work, while the clock stands still.
    async fn settle(&mut self) {
        let mut idle = 0;
        while idle < IDLE {
            idle = if self.turn().await { 0 } else { idle + 1 };
        }
    }

    fn pass(&mut self, time: Duration) {
        self.elapsed += time;
        self.clock.advance(time);
    }

    /// Runs `job` for up to `turns` turns, and drops it if it has not ended by then.
    async fn drive(&mut self, job: Job, turns: usize) -> Option<Result<Vec<Have>, Error>> {
        let flag = Flag::woken();
        let waker = Waker::from(Arc::clone(&flag));
        let (mut job, mut idle) = (job, 0);
        for _ in 0..turns {
            if flag.take() || self.setting.restless {
                let poll = job.as_mut().poll(&mut Context::from_waker(&waker));
                if let Poll::Ready(ended) = poll {
                    return Some(ended);
                }
            }
            let woken = flag.is_woken();
            let moved = self.turn().await || woken;
            idle = if moved { 0 } else { idle + 1 };
            if idle >= IDLE {
                idle = 0;
                match self.events.pop_front() {
                    Some(event) => self.happen(event),
                    None => self.pass(STEP),
                }
            }
        }
        assert!(turns < ENDLESS, "it never ends");
        None
    }

    fn is_broken(&self) -> bool {
        self.setting.cut.is_some() && self.server.faults.cut.is_none()
            || self.server.faults.lost + self.server.faults.delayed > 0
    }

    /// Asserts that the world has no trace of the operation, and that every effect occurred once. Returns true if the connection broke.
    async fn check(&mut self, result: Option<Result<Vec<Have>, Error>>, totals: [i64; 2]) -> bool {
        let [done, not_done] = totals;
        let began = self.elapsed;
        self.settle().await;
        while self.is_broken() && self.setting.down && self.elapsed <= began + LEASE {
            self.pass(STEP);
            self.settle().await;
        }
        self.heal().await;
        let possible = match &result {
            Some(Ok(_)) => vec![done],
            Some(Err(error)) => {
                assert!(self.is_broken(), "{error}");
                if error.outcome() == Outcome::MaybeExecuted { vec![done, not_done] } else { vec![not_done] }
            }
            None => vec![done, not_done],
        };
        while let Some(event) = self.events.pop_front() {
            self.happen(event);
        }
        self.heal().await;
        self.check_companion().await;
        self.read_late(Late::Soon).await;
        let total = self.check_total(&possible);
        let mut haves: Vec<_> = result.into_iter().flatten().flatten().collect();
        haves.append(&mut self.kept);
        let had: i64 = haves.iter().map(Have::count).sum();
        let all_valid = haves.iter().all(|have| !matches!(have, Have::Leased(permit) if !permit.is_valid()));
        let (_, has) = self.server.store.permits(NAME, TAG);
        // The permit may have been released by id.
        let forced = has + 1 == had && haves.len() == 1 && total == ALL && self.given_back();
        assert!(!all_valid || has == had || forced, "the server counts {has} for {had}");
        drop(haves);
        self.heal().await;
        let (free, has) = self.server.store.permits(NAME, TAG);
        assert_eq!((free, has), (total, 0), "free, and of nobody");
        let broke = self.is_broken();
        self.server.faults.cut = None;
        if broke && matches!(self.setting.late, Some((_, Late::Afterwards))) {
            let pool = self.locks.semaphore(NAME);
            let now = self.before(async move { pool.add_permits(0).await }).await;
            assert_eq!(now, total);
            self.read_late(Late::Afterwards).await;
        }
        for _ in 0..3 {
            self.pass(Duration::from_secs(1));
            self.settle().await;
        }
        assert_eq!(self.server.store.permits(NAME, TAG), (total, 0), "some time later");
        let log = &self.server.store.log;
        let none = self.setting.late.is_some() || late_renewals(log).is_empty();
        assert!(none, "renewed after its release: {:?}", late_renewals(log));
        assert!(self.server.store.channels.is_empty(), "a subscription is left");
        let stats = self.locks.client().stats();
        assert_eq!((stats.in_flight, stats.queued_bytes), (0, 0), "a call is left");
        broke
    }

    async fn read_late(&mut self, when: Late) {
        if self.setting.late.is_some_and(|(_, late)| late == when) {
            self.server.read_late();
            // A permit with a lease becomes free when its lease ends.
            let read = self.elapsed;
            while self.elapsed <= read + LEASE {
                self.settle().await;
                self.pass(STEP);
            }
            self.settle().await;
        }
    }

    fn check_total(&self, possible: &[i64]) -> i64 {
        let (free, has) = self.server.store.permits(NAME, TAG);
        assert!(possible.contains(&(free + has)), "{free} are free, {has} are not, of {possible:?}");
        free + has
    }

    fn given_back(&self) -> bool {
        self.server.store.log.iter().any(|executed| executed.script == Which::GiveBack)
    }

    /// Restores the way to the server, for whole bytes.
    async fn heal(&mut self) {
        self.network.set_down(false);
        self.server.set_trickle(None);
        for _ in 0..1000 {
            self.settle().await;
            if self.locks.client().is_ready() {
                return;
            }
            self.pass(Duration::from_millis(1));
        }
        panic!("no new connection");
    }

    /// Asserts that a waiter behind the dropped operation is granted its permits. The waiter must be woken by a message, and not only by
    /// a late poll.
    async fn check_companion(&mut self) {
        let Some(companion) = self.companion.take() else { return };
        // The waiter may have to wait for a new connection.
        let mut patience = if self.is_broken() { 20 } else { 0 };
        while !companion.is_finished() && patience > 0 {
            patience -= 1;
            self.pass(STEP);
            self.settle().await;
        }
        assert!(companion.is_finished(), "who waits behind was forgotten");
        let ended = companion.await.unwrap();
        assert!(self.is_broken() || ended.is_ok(), "{ended:?}");
        self.settle().await;
    }
}

impl Have {
    fn count(&self) -> i64 {
        match self {
            Self::Counted(permits) => permits.count().into(),
            Self::Leased(_) => 1,
        }
    }
}

/// The outcome of a world.
struct Ended {
    by_itself: bool,
    broke: bool,
    lost: usize,
}

/// Runs one world, with `operation` for up to `turns` turns.
async fn world(operation: Operation, setting: Setting, turns: usize) -> Ended {
    let told = Told(format!("{operation:?} for {turns} turns, {setting:?}"));
    let mut world = World::new().await;
    let (job, totals) = world.begin(operation).await;
    world.set(setting);
    let result = world.drive(job, turns).await;
    let by_itself = result.is_some();
    let broke = world.check(result, totals).await;
    drop(told);
    Ended { by_itself, broke, lost: world.server.faults.lost }
}

#[test]
fn dropped_at_every_poll() {
    let plain = Setting::default();
    let restless = Setting { restless: true, ..plain };
    let settings = [
        plain,
        restless,
        Setting { forgetful: true, ..restless },
        Setting { messages_last: true, ..plain },
        Setting { trickle: Some(7), ..plain },
    ];
    virtual_time(async {
        let mut worlds = 0;
        for operation in OPERATIONS {
            for setting in settings {
                for turns in 0.. {
                    worlds += 1;
                    if world(operation, setting, turns).await.by_itself {
                        break;
                    }
                }
            }
        }
        println!("{worlds} worlds");
    });
}

/// Every thirty-first byte, and each operation at different bytes. `WHEELLOCK_EVERY_BYTE=1` tests all bytes.
#[test]
fn broken_at_many_bytes() {
    virtual_time(async {
        let mut worlds = 0;
        let stride = if every() { 1 } else { 31 };
        for (first, operation) in OPERATIONS.into_iter().enumerate() {
            for (side, how, down) in breaks() {
                for after in (first % stride..).step_by(stride) {
                    let cut = Some(Cut { side, after, how });
                    worlds += 1;
                    if !world(operation, Setting { cut, down, ..Setting::default() }, ENDLESS).await.broke {
                        break;
                    }
                }
            }
        }
        println!("{worlds} worlds");
    });
}

fn breaks() -> impl Iterator<Item = (Side, How, bool)> {
    let sides = [Side::Answers, Side::Requests];
    let hows = [(How::Fin, false), (How::Rst, false), (How::Fin, true)];
    sides.into_iter().flat_map(move |side| hows.map(|(how, down)| (side, how, down)))
}

/// Loses the reply to every request of every operation, and the replies to its repetitions. Meanwhile the operation is dropped at every
/// poll. `WHEELLOCK_EVERY_BYTE=1` tests longer series of lost replies.
#[test]
fn ten_thousand_lost_answers_count_once() {
    virtual_time(async {
        let (mut worlds, mut lost) = (0, 0);
        let series = if every() { (1..=12).collect() } else { vec![1, 3] };
        for operation in OPERATIONS {
            for how in [How::Fin, How::Rst] {
                for &series in &series {
                    for first in 0.. {
                        let mut most = 0;
                        let losses = Some((first, series, how));
                        for turns in (0..).chain([ENDLESS]) {
                            let ended =
                                world(operation, Setting { losses, ..Setting::default() }, turns).await;
                            worlds += 1;
                            lost += ended.lost;
                            most = ended.lost.max(most);
                            if ended.by_itself {
                                break;
                            }
                        }
                        if most == 0 {
                            break;
                        }
                    }
                }
            }
        }
        println!("{worlds} worlds, {lost} lost answers");
        assert!(lost >= 10_000, "only {lost} answers got lost");
    });
}

/// Every request of every operation is read when no caller waits for it any more. That is after its repetition, or after it was taken
/// back.
#[test]
fn what_comes_late_counts_once() {
    virtual_time(async {
        let mut worlds = 0;
        for operation in OPERATIONS {
            for late in [Late::Soon, Late::Afterwards] {
                for first in 0.. {
                    let mut broke = false;
                    let setting = Setting { late: Some((first, late)), ..Setting::default() };
                    for turns in 0.. {
                        let ended = world(operation, setting, turns).await;
                        worlds += 1;
                        broke |= ended.broke;
                        if ended.by_itself {
                            break;
                        }
                    }
                    if !broke {
                        break;
                    }
                }
            }
        }
        println!("{worlds} worlds");
    });
}

fn every() -> bool {
    std::env::var_os("WHEELLOCK_EVERY_BYTE").is_some()
}
