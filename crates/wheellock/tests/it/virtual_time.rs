//! A whole lock manager on a manual clock.
//!
//! The connections are in memory. The tests drop each operation at every poll and break it at every byte, one at a time. Afterwards the
//! world may not have a trace of the operation.
//!
//! Every world ends with the same checks, see [`World::check`]. The key is free once the server has replied, without any time passing.
//! Without a reply the key is free after one lease. No lease is renewed after its release. There is no subscription and no call left. The
//! next caller gets the lock.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::task::JoinHandle;
use wheellock::client::Timer;
use wheellock::testing::server::{Answer, Cut, How, Make, Network, Server, Side, Which, late_renewals};
use wheellock::{Durability, Error, Guard, Lock, LockManager, LostReason, Outcome};
use wheellock_wheel::ManualClock;

use crate::worlds::{Flag, Told, virtual_time};

const NAME: &str = "n";
/// Common part of a lock's companion keys.
const TAG: &str = "{n}";
/// Minimum time that a connected server has for its first reply, however short the wait is.
const FIRST_ANSWER: Duration = Duration::from_millis(300);
const STRANGER: &str = "00000000-0000-4000-8000-000000000000:1";
/// An owner that keeps a lock for a moment after a forced release.
const SPENT: &str = "11111111-2222-3333-4444-555555555555:8";
/// Short, so that renewals fall due within few steps of the clock. The watchdog renews after every third of it.
const LEASE: Duration = Duration::from_millis(300);
/// Step of a world's clock. The clock moves only when no task has more work. A step is shorter than a twentieth of the lease, which is
/// how long before its deadline a loss must be reported.
const STEP: Duration = Duration::from_millis(10);
/// The connection's default.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(3);
/// Turns of the run queue without a moved byte after which no task has more work.
const IDLE: usize = 3;
/// Upper bound of a world's turns.
const ENDLESS: usize = 200_000;
/// Turns until a waiter has polled twice and sleeps.
const SETTLED: usize = 20;
/// The suite tests one of `OF_ANY` places at which an operation is broken. It tests one of `OF_A_KIND` places at which an operation of
/// each kind is broken or dropped.
const OF_ANY: usize = 4;
const OF_A_KIND: usize = 2 * KINDS.len();
/// Number of hand-overs between tasks, in all worlds.
static HAND_OVERS: AtomicU64 = AtomicU64::new(0);

/// The kind of lock in a world.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
enum Kind {
    #[default]
    Plain,
    Fenced,
    Fair,
    Simple,
    /// The simple lock, without scripts.
    Native,
    /// Behind a writer.
    Read,
    /// Behind a reader.
    Write,
}

/// All kinds but the plain lock.
const KINDS: [Kind; 6] = [Kind::Fenced, Kind::Fair, Kind::Simple, Kind::Native, Kind::Read, Kind::Write];

impl Kind {
    fn channel(self) -> &'static str {
        match self {
            Self::Plain | Self::Fenced | Self::Fair => "redisson_lock__channel:{n}",
            Self::Simple | Self::Native => "wheellock_simple:{n}",
            Self::Read | Self::Write => "redisson_rwlock:{n}",
        }
    }

    /// Returns the operations that this kind supports.
    fn operations(self) -> impl Iterator<Item = Operation> {
        let reentrant =
            [Reentrant, ReentrantInner, ReleaseInner, ReleaseBoth, DropAndAcquire, DropAndRelease, Downgrade];
        let possible = move |operation: &Operation| match self {
            Self::Simple | Self::Native => !reentrant.contains(operation),
            Self::Write => true,
            _ => *operation != Downgrade,
        };
        OPERATIONS.into_iter().chain([Downgrade]).filter(possible)
    }
}

/// The operation that is dropped or broken.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Operation {
    Acquire,
    /// A stranger holds the lock and releases it in time.
    AcquireContended,
    TryAcquire,
    TryAcquireHeld,
    TryAcquireFor,
    TryAcquireForInVain,
    /// Two holds of one owner.
    Reentrant,
    /// The second hold of an owner that keeps its first hold.
    ReentrantInner,
    Release,
    ReleaseInner,
    ReleaseBoth,
    DropGuard,
    /// A guard is dropped. Its owner takes the lock again before the server receives the release.
    DropAndAcquire,
    /// A guard is dropped. Its owner releases another guard before the server receives the first release.
    DropAndRelease,
    /// A guard over several renewals.
    Held,
    GuardRun,
    LockRun,
    /// A fixed lease that expires.
    RunsOut,
    /// Released by force while the guard holds the lock.
    Forced,
    /// From one task of this process to the next.
    Handoff,
    /// The first waiter, before another waiter.
    Ahead,
    /// A waiter behind another waiter.
    Behind,
    /// By hand.
    Renew,
    /// By hand, and released at once.
    RenewAndRelease,
    /// A writer takes a read hold and releases the write hold.
    Downgrade,
}

use Operation::*;

const OPERATIONS: [Operation; 24] = [
    Acquire,
    AcquireContended,
    TryAcquire,
    TryAcquireHeld,
    TryAcquireFor,
    TryAcquireForInVain,
    Reentrant,
    ReentrantInner,
    Release,
    ReleaseInner,
    ReleaseBoth,
    DropGuard,
    DropAndAcquire,
    DropAndRelease,
    Renew,
    RenewAndRelease,
    Held,
    GuardRun,
    LockRun,
    RunsOut,
    Forced,
    Handoff,
    Ahead,
    Behind,
];

/// Operations whose result is a new grant.
const GRANTING: [Operation; 9] =
    [Acquire, AcquireContended, TryAcquire, TryAcquireFor, Reentrant, ReentrantInner, Handoff, Ahead, Behind];

/// Operations that do not hold anything before their grant.
const ASKING: [Operation; 4] = [Acquire, AcquireContended, TryAcquire, TryAcquireFor];

/// Operations that are dropped while the connection is restored. There is one for each kind of request and of release.
const CORE: [Operation; 8] = [
    Acquire,
    AcquireContended,
    ReentrantInner,
    Release,
    ReleaseInner,
    DropAndAcquire,
    RenewAndRelease,
    Ahead,
];

/// Two operations at once, each of which is dropped at every turn.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Pair {
    /// Two owners wait for a lock that a stranger releases.
    InLine,
    /// Two tasks take the lock as one owner.
    OneOwner,
    /// Two tasks release the holds of one owner.
    BothRelease,
    /// One task releases the hold of an owner, and another task takes one more hold.
    ReleaseAndAcquire,
    /// One owner releases the lock, and another owner takes it.
    HandOver,
    /// The same, while the other owner's task sleeps.
    HandOverAsleep,
    /// The second owner then releases the lock, too.
    HandOverOn,
}

const PAIRS: [Pair; 7] = [
    Pair::InLine,
    Pair::OneOwner,
    Pair::BothRelease,
    Pair::ReleaseAndAcquire,
    Pair::HandOver,
    Pair::HandOverAsleep,
    Pair::HandOverOn,
];

/// An outside event, which occurs when no task has more work.
#[derive(Clone, Copy, Debug)]
enum Event {
    StrangerReleases,
    StrangerForces,
    CompanionComes,
}

/// The circumstances of a world.
#[derive(Clone, Copy, Debug, Default)]
struct Setting {
    kind: Kind,
    /// Bytes per turn and direction.
    trickle: Option<usize>,
    /// Polls in every turn, woken or not, so that the test can drop the job in every intermediate state. Otherwise only a woken job is
    /// polled, so that the test finds a lost wake-up.
    restless: bool,
    /// The server has lost its scripts.
    forgetful: bool,
    messages_last: bool,
    cut: Option<Cut>,
    /// After the cut, the server does not reply until the check.
    down: bool,
    /// The test does not keep a handle to the lock.
    fleeting: bool,
    /// A replica has to acknowledge every grant and every renewal.
    durable: bool,
    /// The replica does not acknowledge until the check.
    starved: bool,
    /// The first outside event occurs in this turn, whatever else happens.
    event_in: Option<usize>,
}

type Guards = Vec<Rc<Guard>>;
type Job = Pin<Box<dyn Future<Output = Result<Guards, Error>>>>;

struct World {
    kind: Kind,
    locks: Option<LockManager>,
    /// Keeps this process' state for the lock alive.
    handle: Option<Lock>,
    /// Prefix of our owners' names.
    id: String,
    timer: Timer,
    clock: ManualClock,
    elapsed: Duration,
    network: Arc<Network>,
    server: Server,
    setting: Setting,
    events: VecDeque<Event>,
    /// Guards that outlive the dropped operation.
    kept: Guards,
    /// Another task of this process, which wants the lock once.
    companion: Option<JoinHandle<Result<(), Error>>>,
    /// Guards that must not be valid longer than the server knows their holds.
    believed: Rc<RefCell<Vec<Weak<Guard>>>>,
    forced: bool,
}

impl World {
    async fn new(kind: Kind, durability: Durability) -> Self {
        let (timer, clock) = Timer::manual(Duration::from_millis(1));
        let network = Arc::new(Network::default());
        let connector = network.connector();
        let own = timer.clone();
        let builder = LockManager::builder("redis://in.memory").durability(durability);
        let builder = builder.watchdog_lease(LEASE).configure(|config| {
            config.timer = own;
            // One millisecond between attempts to connect.
            config.random = || 1_000_000;
            config.connector = Some(connector);
        });
        let connecting = tokio::spawn(builder.connect());
        let mut server = Server::new(Arc::clone(&network));
        server.store.make = if kind == Kind::Native { Make::Valkey90 } else { Make::Unknown };
        while !connecting.is_finished() {
            tokio::task::yield_now().await;
            server.serve();
        }
        let locks = connecting.await.unwrap().unwrap();
        Self {
            id: locks.id().to_owned(),
            handle: Some(lock_of(&locks, kind)),
            kind,
            locks: Some(locks),
            timer,
            clock,
            elapsed: Duration::ZERO,
            network,
            server,
            setting: Setting::default(),
            events: VecDeque::new(),
            kept: Vec::new(),
            companion: None,
            believed: Rc::default(),
            forced: false,
        }
    }

    fn lock(&self) -> Lock {
        lock_of(self.locks.as_ref().unwrap(), self.kind)
    }

    /// Prepares the world and makes the operation.
    async fn begin(&mut self, operation: Operation) -> Job {
        let (lock, timer) = (self.lock(), self.timer.clone());
        let believed = Rc::clone(&self.believed);
        let believe = move |guard: Guard| {
            let guard = Rc::new(guard);
            believed.borrow_mut().push(Rc::downgrade(&guard));
            guard
        };
        match operation {
            Acquire => Box::pin(async move { Ok(vec![believe(lock.acquire().await?)]) }),
            AcquireContended => {
                self.stranger_holds(&[Event::StrangerReleases]);
                Box::pin(async move { Ok(vec![believe(lock.acquire().await?)]) })
            }
            TryAcquire => Box::pin(async move {
                Ok(lock.try_acquire().await?.map(believe).acquired().into_iter().collect())
            }),
            TryAcquireHeld => {
                self.stranger_holds(&[]);
                Box::pin(async move {
                    assert!(!lock.try_acquire().await?.is_acquired());
                    Ok(Vec::new())
                })
            }
            TryAcquireFor => {
                self.stranger_holds(&[Event::StrangerReleases]);
                Box::pin(async move {
                    // Shorter than the lease, so that the test still sees the grant when the wait is over.
                    let wait = LEASE / 2;
                    let guard = within(&timer, wait.max(FIRST_ANSWER), lock.try_acquire_for(wait)).await?;
                    Ok(guard.map(believe).acquired().into_iter().collect())
                })
            }
            TryAcquireForInVain => {
                self.stranger_holds(&[]);
                Box::pin(async move {
                    let wait = 4 * STEP;
                    let guard = within(&timer, wait.max(FIRST_ANSWER), lock.try_acquire_for(wait)).await?;
                    assert!(!guard.is_acquired());
                    Ok(Vec::new())
                })
            }
            Reentrant => Box::pin(async move {
                let outer = lock.acquire().await?;
                let inner = lock.with_owner(outer.owner()).acquire().await?;
                Ok(vec![believe(inner), believe(outer)])
            }),
            ReentrantInner => {
                let outer = self.acquire(&lock).await;
                let lock = lock.with_owner(outer.owner());
                self.kept.push(believe(outer));
                Box::pin(async move { Ok(vec![believe(lock.acquire().await?)]) })
            }
            Release => {
                let guard = self.acquire(&lock).await;
                Box::pin(async move {
                    within(&timer, RESPONSE_TIMEOUT, guard.release()).await.map(|_| Vec::new())
                })
            }
            ReleaseInner => {
                let (outer, inner) = self.acquire_twice(&lock).await;
                self.kept.push(believe(outer));
                Box::pin(async move { inner.release().await.map(|_| Vec::new()) })
            }
            ReleaseBoth => {
                let (outer, inner) = self.acquire_twice(&lock).await;
                Box::pin(async move {
                    let (inner, outer) = tokio::join!(inner.release(), outer.release());
                    inner.and(outer).map(|_| Vec::new())
                })
            }
            DropGuard => {
                let guard = self.acquire(&lock).await;
                Box::pin(async move {
                    drop(guard);
                    Ok(Vec::new())
                })
            }
            DropAndAcquire => {
                let (outer, inner) = self.acquire_twice(&lock).await;
                let lock = lock.with_owner(outer.owner());
                self.kept.push(believe.clone()(outer));
                Box::pin(async move {
                    drop(inner);
                    let wait = 4 * STEP;
                    let guard = within(&timer, wait.max(FIRST_ANSWER), lock.try_acquire_for(wait)).await?;
                    Ok(guard.map(believe).acquired().into_iter().collect())
                })
            }
            DropAndRelease => {
                let (outer, inner) = self.acquire_twice(&lock).await;
                Box::pin(async move {
                    drop(inner);
                    within(&timer, RESPONSE_TIMEOUT, outer.release()).await.map(|_| Vec::new())
                })
            }
            Renew => {
                let guard = believe(self.acquire(&lock).await);
                Box::pin(async move {
                    within(&timer, RESPONSE_TIMEOUT, guard.renew()).await?;
                    Ok(vec![guard])
                })
            }
            RenewAndRelease => {
                let guard = self.acquire(&lock).await;
                Box::pin(async move {
                    let renewed = guard.renew().await;
                    guard.release().await?;
                    renewed.map(|()| Vec::new())
                })
            }
            Held => {
                let guard = believe(self.acquire(&lock).await);
                Box::pin(async move {
                    let mut lost = Box::pin(until_lost(&guard));
                    let mut held = timer.sleep(LEASE + 4 * STEP);
                    std::future::poll_fn(|cx| match lost.as_mut().poll(cx) {
                        Poll::Ready(_) => Poll::Ready(()),
                        Poll::Pending => Pin::new(&mut held).poll(cx).map(|()| {
                            assert!(guard.is_valid(), "lost, and nobody says so");
                        }),
                    })
                    .await;
                    drop(lost);
                    Ok(vec![guard])
                })
            }
            GuardRun => {
                let guard = believe(self.acquire(&lock).await);
                Box::pin(async move {
                    let work = async {
                        timer.sleep(LEASE / 2).await;
                        Ok::<_, Error>(())
                    };
                    guard.run(work).await?;
                    Ok(vec![guard])
                })
            }
            LockRun => Box::pin(async move {
                let work = async |_guard: &Guard| {
                    timer.sleep(LEASE / 2).await;
                    Ok(Vec::new())
                };
                lock.run(work).await
            }),
            RunsOut => {
                let guard = believe(self.acquire(&lock.with_lease(LEASE / 3)).await);
                Box::pin(async move {
                    assert_eq!(until_lost(&guard).await, LostReason::Expired);
                    Ok(vec![guard])
                })
            }
            Forced => {
                let guard = believe(self.acquire(&lock).await);
                self.events.push_back(Event::StrangerForces);
                Box::pin(async move {
                    until_lost(&guard).await;
                    Ok(vec![guard])
                })
            }
            Downgrade => {
                let writes = self.acquire(&lock).await;
                let reads = self.locks.as_ref().unwrap().read_write_lock(NAME).read();
                let reads = reads.with_owner(writes.owner());
                Box::pin(async move {
                    let guard = reads.acquire().await?;
                    writes.release().await?;
                    Ok(vec![believe(guard)])
                })
            }
            Handoff => {
                let guard = self.acquire(&lock).await;
                Box::pin(async move {
                    let release = async {
                        timer.sleep(2 * STEP).await;
                        guard.release().await
                    };
                    let (next, released) = tokio::join!(lock.acquire(), release);
                    released?;
                    Ok(vec![believe(next?)])
                })
            }
            Ahead => {
                self.stranger_holds(&[Event::CompanionComes, Event::StrangerReleases]);
                Box::pin(async move { Ok(vec![believe(lock.acquire().await?)]) })
            }
            Behind => {
                self.stranger_holds(&[Event::StrangerReleases]);
                self.happen(Event::CompanionComes);
                self.settle().await;
                Box::pin(async move { Ok(vec![believe(lock.acquire().await?)]) })
            }
        }
    }

    async fn begin_pair(&mut self, pair: Pair) -> [Job; 2] {
        let lock = self.lock();
        let acquire =
            |lock: Lock| -> Job { Box::pin(async move { Ok(vec![Rc::new(lock.acquire().await?)]) }) };
        let release =
            |guard: Guard| -> Job { Box::pin(async move { guard.release().await.map(|_| Vec::new()) }) };
        match pair {
            Pair::InLine => {
                self.stranger_holds(&[Event::StrangerReleases]);
                // The first waiter to be granted the lock releases it for the other waiter.
                let first = lock.clone();
                let first =
                    Box::pin(async move { first.acquire().await?.release().await.map(|_| Vec::new()) });
                [first, acquire(lock)]
            }
            Pair::OneOwner => {
                let lock = lock.with_owner(self.locks.as_ref().unwrap().owner());
                [acquire(lock.clone()), acquire(lock)]
            }
            Pair::BothRelease => {
                let (outer, inner) = self.acquire_twice(&lock).await;
                [release(outer), release(inner)]
            }
            Pair::ReleaseAndAcquire => {
                let guard = self.acquire(&lock).await;
                let lock = lock.with_owner(guard.owner());
                [release(guard), acquire(lock)]
            }
            Pair::HandOver => [release(self.acquire(&lock).await), acquire(lock)],
            Pair::HandOverAsleep => [self.release_later(&lock).await, acquire(lock)],
            Pair::HandOverOn => {
                let first = self.release_later(&lock).await;
                let on = async move {
                    let guard = lock.acquire().await?;
                    turns(2).await;
                    guard.release().await.map(|_| Vec::new())
                };
                [first, Box::pin(on)]
            }
        }
    }

    /// Holds the lock, and releases it when a later waiter sleeps.
    async fn release_later(&mut self, lock: &Lock) -> Job {
        let guard = self.acquire(lock).await;
        Box::pin(async move {
            turns(SETTLED).await;
            guard.release().await.map(|_| Vec::new())
        })
    }

    fn stranger_holds(&mut self, and_then: &[Event]) {
        let writer = format!("{STRANGER}:write");
        let (which, params): (_, &[&str]) = match self.kind {
            Kind::Plain | Kind::Fenced => (Which::Acquire, &[NAME, "60000", STRANGER, "1"]),
            Kind::Fair => (
                Which::FairAcquire,
                &[NAME, "60000", STRANGER, "1", "0", self.kind.channel(), "PUBLISH", TAG],
            ),
            Kind::Simple | Kind::Native => (Which::SimpleAcquire, &[NAME, "60000", STRANGER, "1"]),
            Kind::Read => (Which::WriteAcquire, &[NAME, "60000", &writer, "1", TAG, "0"]),
            Kind::Write => (Which::ReadAcquire, &[NAME, "60000", STRANGER, "1", TAG, "0"]),
        };
        self.server.run_for_another(which, "1", params);
        self.events.extend(and_then);
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::StrangerReleases => {
                let channel = self.kind.channel();
                let writer = format!("{STRANGER}:write");
                let (which, params): (_, &[&str]) = match self.kind {
                    Kind::Plain | Kind::Fenced => {
                        (Which::Release, &[NAME, channel, STRANGER, "0", "PUBLISH"])
                    }
                    Kind::Fair => (Which::FairRelease, &[NAME, channel, STRANGER, "0", "PUBLISH", TAG]),
                    Kind::Simple | Kind::Native => {
                        (Which::SimpleRelease, &[NAME, channel, STRANGER, "0", "PUBLISH"])
                    }
                    Kind::Read => (Which::WriteRelease, &[NAME, channel, &writer, "0", "PUBLISH", TAG]),
                    Kind::Write => (Which::ReadRelease, &[NAME, channel, STRANGER, "0", "PUBLISH", TAG]),
                };
                self.server.run_for_another(which, "1", params);
            }
            Event::StrangerForces => {
                self.forced = true;
                self.force();
            }
            Event::CompanionComes => {
                let lock = self.lock();
                self.companion = Some(tokio::spawn(async move {
                    let guard = lock.acquire().await?;
                    guard.release().await.map(drop)
                }));
            }
        }
    }

    /// Releases the lock by force, for all holders of any kind.
    fn force(&mut self) {
        let channel = self.kind.channel();
        let plain = [NAME, channel, "PUBLISH", SPENT, "20"];
        let with_tag = [NAME, channel, "PUBLISH", SPENT, "20", TAG];
        match self.kind {
            Kind::Plain | Kind::Fenced => self.server.run_for_another(Which::ForceRelease, "1", &plain),
            Kind::Fair => self.server.run_for_another(Which::FairForceRelease, "1", &with_tag),
            Kind::Simple | Kind::Native => {
                self.server.run_for_another(Which::SimpleForceRelease, "1", &plain);
            }
            Kind::Read | Kind::Write => {
                for side in ["read", "write"] {
                    let params = [NAME, channel, "PUBLISH", SPENT, "20", TAG, side];
                    self.server.run_for_another(Which::ReadWriteForceRelease, "1", &params);
                }
            }
        }
    }

    /// Takes a lock before any fault occurs.
    async fn acquire(&mut self, lock: &Lock) -> Guard {
        let lock = lock.clone();
        let acquiring = tokio::spawn(async move { lock.acquire().await });
        while !acquiring.is_finished() {
            self.turn().await;
        }
        let guard = acquiring.await.unwrap().unwrap();
        self.settle().await;
        guard
    }

    async fn acquire_twice(&mut self, lock: &Lock) -> (Guard, Guard) {
        let outer = self.acquire(lock).await;
        let inner = self.acquire(&lock.with_owner(outer.owner())).await;
        (outer, inner)
    }

    /// Sets the circumstances from now on.
    fn set(&mut self, setting: Setting) {
        self.setting = setting;
        self.server.set_trickle(setting.trickle);
        self.server.faults.cut = setting.cut;
        if setting.fleeting {
            self.handle = None;
        }
        self.server.faults.replica_acks = !setting.starved;
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
        let ours = self.holds() > 0 || self.forced;
        let believed = self.believed.borrow();
        assert!(
            ours || !believed.iter().filter_map(Weak::upgrade).any(|guard| guard.is_valid()),
            "a guard claims what the server does not know"
        );
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

    /// Runs each of `jobs` for its number of turns, and drops the jobs that have not ended by then.
    async fn drive(&mut self, jobs: Vec<(Job, usize)>) -> Vec<Option<Result<Guards, Error>>> {
        let mut results: Vec<_> = jobs.iter().map(|_| None).collect();
        let mut jobs: Vec<_> =
            jobs.into_iter().map(|(job, turns)| (Some(job), turns, Flag::woken())).collect();
        let mut idle = 0;
        for turn in 0..ENDLESS {
            let mut woken = false;
            if self.setting.event_in == Some(turn)
                && let Some(event) = self.events.pop_front()
            {
                self.happen(event);
            }
            for ((job, turns, flag), result) in jobs.iter_mut().zip(&mut results) {
                if turn >= *turns {
                    *job = None;
                }
                let due = flag.take() || self.setting.restless;
                let Some(running) = job.as_mut().filter(|_| due) else { continue };
                let waker = Waker::from(Arc::clone(flag));
                if let Poll::Ready(ended) = running.as_mut().poll(&mut Context::from_waker(&waker)) {
                    (*job, *result) = (None, Some(ended));
                }
                woken |= flag.is_woken();
            }
            if jobs.iter().all(|(job, ..)| job.is_none()) {
                return results;
            }
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
        panic!("it never ends");
    }

    /// Returns the number of our holds on the server.
    fn holds(&self) -> usize {
        let ours = self.server.store.holds().filter(|(_, holder, _)| holder.starts_with(&self.id));
        ours.map(|(_, _, count)| count.parse::<usize>().unwrap()).sum()
    }

    fn is_broken(&self) -> bool {
        self.setting.cut.is_some() && self.server.faults.cut.is_none()
    }

    /// Asserts that the world has no trace of the operation. Returns true if the connection broke at the intended place.
    async fn check(mut self, results: Vec<Option<Result<Guards, Error>>>) -> bool {
        let began = self.elapsed;
        self.server.faults.replica_acks = true;
        self.settle().await;
        if self.is_broken() && self.setting.down {
            self.check_without_server(began).await;
        }
        self.heal().await;
        let failed = results.iter().flatten().filter_map(|result| result.as_ref().err());
        let failed: Vec<_> = failed.map(ToString::to_string).collect();
        assert!(self.is_broken() || self.setting.starved || failed.is_empty(), "{failed:?}");

        // Every grant that was not dropped is on the server, and there are no other holds.
        let mut guards: Guards = results.into_iter().flatten().flatten().flatten().collect();
        guards.append(&mut self.kept);
        let valid = guards.iter().filter(|guard| guard.is_valid()).count();
        if valid == guards.len() && self.companion.is_none() {
            assert_eq!(self.holds(), valid, "the server's count is not that of the guards");
        }
        drop(guards);
        self.heal().await;
        let handed_over = self.locks.as_ref().map_or(0, |locks| locks.metrics().hand_overs);
        HAND_OVERS.fetch_add(handed_over, Ordering::Relaxed);
        if self.companion.is_none() {
            assert_eq!(self.holds(), 0, "the key is not free within one round trip");
        }
        self.check_companion().await;
        let broke = self.is_broken();
        self.server.faults.cut = None;

        // No release is repeated from now on. The subscription ends after it has lingered.
        let released = u64::try_from(self.elapsed.as_millis()).unwrap();
        self.force();
        let companions: Vec<_> = self.server.store.companions().collect();
        assert!(companions.is_empty(), "left behind: {companions:?}");
        for _ in 0..3 {
            self.pass(Duration::from_secs(1));
            self.settle().await;
        }
        let renewed = |at: u64| move |executed: &&_| is_renewal_after(executed, at);
        let log = &self.server.store.log;
        assert_eq!(log.iter().find(renewed(released)), None, "renewed after it was dropped");
        assert!(late_renewals(log).is_empty(), "renewed after its release: {:?}", late_renewals(log));
        assert!(self.server.store.channels.is_empty(), "a subscription is left");
        let stats = self.locks.as_ref().unwrap().client().stats();
        assert_eq!((stats.in_flight, stats.queued_bytes), (0, 0), "a call is left");

        let lock = self.lock();
        let next: Job = Box::pin(async move {
            let guard = lock.try_acquire().await?.acquired().expect("the lock is free");
            guard.release().await?;
            Ok(Vec::new())
        });
        for result in self.drive(vec![(next, ENDLESS)]).await {
            result.unwrap().unwrap();
        }
        assert_eq!(self.server.store.holds().count(), 0);
        broke
    }

    /// The server keeps the last state that it received, but no longer than a lease. No guard is valid for longer.
    async fn check_without_server(&mut self, began: Duration) {
        while self.elapsed <= began + LEASE {
            self.pass(STEP);
            self.settle().await;
        }
        assert_eq!(self.holds(), 0, "kept for longer than a lease");
    }

    /// Restores the way to the server, for whole bytes.
    async fn heal(&mut self) {
        self.network.set_down(false);
        self.server.set_trickle(None);
        for _ in 0..1000 {
            self.settle().await;
            if self.locks.as_ref().unwrap().client().is_ready() {
                return;
            }
            self.pass(Duration::from_millis(1));
        }
        panic!("no new connection");
    }

    /// Asserts that a waiter behind the dropped operation gets the lock when it is free. The waiter must be woken by a message, and not
    /// only by a late poll.
    async fn check_companion(&mut self) {
        while let Some(event) = self.events.pop_front() {
            self.happen(event);
        }
        self.heal().await;
        let broke = self.is_broken();
        let Some(companion) = self.companion.take() else { return };
        // The waiter may have to wait for a new connection.
        let mut patience = if broke { 20 } else { 0 };
        while !companion.is_finished() && patience > 0 {
            patience -= 1;
            self.pass(STEP);
            self.settle().await;
        }
        assert!(companion.is_finished(), "who waits behind was forgotten");
        let ended = companion.await.unwrap();
        assert!(broke || self.setting.starved || ended.is_ok(), "{ended:?}");
    }
}

/// Asserts that `operation` ends in time, whatever happens.
async fn within<T>(timer: &Timer, limit: Duration, operation: impl Future<Output = T>) -> T {
    let began = timer.now();
    let result = operation.await;
    let took = timer.now() - began;
    assert!(took <= limit + STEP, "took {took:?} instead of {limit:?}");
    result
}

/// Waits for the loss. Panics if the guard was invalid without reporting its loss.
async fn until_lost(guard: &Guard) -> LostReason {
    let mut lost = Box::pin(guard.lost());
    let mut overdue = 0;
    std::future::poll_fn(|cx| {
        let poll = lost.as_mut().poll(cx);
        // The report may be on its way until no task has more work.
        overdue += usize::from(poll.is_pending() && !guard.is_valid());
        assert!(overdue <= IDLE, "lost, and nobody says so");
        poll
    })
    .await
}

fn lock_of(locks: &LockManager, kind: Kind) -> Lock {
    match kind {
        Kind::Plain => locks.lock(NAME),
        Kind::Fenced => locks.fenced_lock(NAME).as_lock().clone(),
        Kind::Fair => locks.fair_lock(NAME),
        Kind::Simple | Kind::Native => locks.simple_lock(NAME),
        Kind::Read => locks.read_write_lock(NAME).read(),
        Kind::Write => locks.read_write_lock(NAME).write(),
    }
}

fn is_renewal_after(executed: &wheellock::testing::server::Executed, at: u64) -> bool {
    executed.script.is_renewal() && executed.at > at
}

/// Waits for `count` turns, in which no time passes.
async fn turns(mut count: usize) {
    std::future::poll_fn(|cx| {
        if count == 0 {
            return Poll::Ready(());
        }
        count -= 1;
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Runs one world, with `operation` for up to `turns` turns. Returns true if the operation ended by itself, and true if the connection
/// broke.
async fn world(operation: Operation, setting: Setting, turns: usize) -> (bool, bool) {
    let told = Told(format!("{operation:?} for {turns} turns, {setting:?}"));
    let durability = if setting.durable { Durability::Replicas(1) } else { Durability::Primary };
    let mut world = World::new(setting.kind, durability).await;
    let job = world.begin(operation).await;
    world.set(setting);
    let results = world.drive(vec![(job, turns)]).await;
    if setting.starved && GRANTING.contains(&operation) {
        let granted = results.iter().flatten().flatten().any(|guards| !guards.is_empty());
        assert!(!granted, "granted, and no replica knows");
    }
    if ASKING.contains(&operation) {
        let errors = results.iter().flatten().filter_map(|result| result.as_ref().err());
        let harmless = errors.filter(|error| error.outcome() != Outcome::MaybeExecuted).count();
        assert!(harmless == 0 || world.holds() == 0, "it holds what it was told it had not even asked for");
    }
    let ended = results.iter().all(Option::is_some);
    let broke = world.check(results).await;
    drop(told);
    (ended, broke)
}

/// Drops `operation` after every number of turns, until it ends by itself. Returns the number of worlds.
async fn drop_everywhere(operation: Operation, setting: Setting) -> usize {
    drop_after(0.., operation, setting).await
}

/// Does the same as `drop_everywhere`, with these numbers of turns.
async fn drop_after(turns: impl Iterator<Item = usize>, operation: Operation, setting: Setting) -> usize {
    for (worlds, turns) in turns.enumerate() {
        if world(operation, setting, turns).await.0 {
            return worlds + 1;
        }
    }
    unreachable!("every operation ends")
}

/// Returns the places that the suite tests. It is one of `one_of` places, and each series of worlds has different places. With
/// `WHEELLOCK_EVERY_BYTE=1`, as every night, it is all places.
fn places(series: usize, one_of: usize) -> impl Iterator<Item = usize> {
    let stride = if std::env::var_os("WHEELLOCK_EVERY_BYTE").is_some() { 1 } else { one_of };
    (series % stride..).step_by(stride)
}

#[test]
fn dropped_at_every_poll() {
    let plain = Setting::default();
    let restless = Setting { restless: true, ..plain };
    let settings = [
        plain,
        restless,
        Setting { forgetful: true, ..restless },
        Setting { messages_last: true, fleeting: true, ..plain },
        Setting { trickle: Some(7), ..plain },
    ];
    virtual_time(async {
        let mut worlds = 0;
        for operation in OPERATIONS {
            for setting in settings {
                worlds += drop_everywhere(operation, setting).await;
            }
        }
        println!("{worlds} worlds");
    });
}

/// The same for every other kind of lock. Nothing of its companion keys may be left, either.
#[test]
fn every_kind_dropped_at_every_poll() {
    virtual_time(async {
        let mut worlds = 0;
        for kind in KINDS {
            let plain = Setting { kind, ..Setting::default() };
            let restless = Setting { restless: true, ..plain };
            let settings = [
                plain,
                restless,
                Setting { forgetful: true, ..restless },
                Setting { messages_last: true, fleeting: true, ..plain },
                Setting { trickle: Some(7), ..plain },
                Setting { durable: true, restless: true, ..plain },
            ];
            for operation in kind.operations() {
                for setting in settings {
                    worlds += drop_everywhere(operation, setting).await;
                }
            }
        }
        println!("{worlds} worlds");
    });
}

#[test]
fn every_kind_dropped_at_many_bytes() {
    virtual_time(async {
        let mut worlds = 0;
        for (number, kind) in KINDS.into_iter().enumerate() {
            for operation in kind.operations() {
                let setting = Setting { kind, trickle: Some(1), ..Setting::default() };
                worlds += drop_after(places(2 * number, OF_A_KIND), operation, setting).await;
            }
        }
        println!("{worlds} worlds");
    });
}

#[test]
fn every_kind_broken_at_many_bytes() {
    virtual_time(async {
        let mut worlds = 0;
        for (number, kind) in KINDS.into_iter().enumerate() {
            for operation in kind.operations() {
                for (side, how, down) in breaks() {
                    for after in places(2 * number, OF_A_KIND) {
                        let cut = Some(Cut { side, after, how });
                        let setting = Setting { kind, cut, down, ..Setting::default() };
                        worlds += 1;
                        if !world(operation, setting, ENDLESS).await.1 {
                            break;
                        }
                    }
                }
            }
        }
        println!("{worlds} worlds");
    });
}

/// Two operations at once for every other kind: readers together, and a writer in line.
#[test]
fn dropped_pairs_of_kinds_leave_nothing() {
    virtual_time(async {
        let mut worlds = 0;
        for kind in KINDS {
            let reentrant = [Pair::OneOwner, Pair::BothRelease, Pair::ReleaseAndAcquire];
            let pairs = PAIRS
                .iter()
                .filter(|pair| !matches!(kind, Kind::Simple | Kind::Native) || !reentrant.contains(pair));
            for pair in pairs {
                worlds += drop_both_everywhere(*pair, Setting { kind, ..Setting::default() }).await;
            }
        }
        println!("{worlds} worlds");
    });
}

/// A stranger that has taken the lock meanwhile keeps it.
#[test]
fn native_release_spares_new_holder() {
    virtual_time(async {
        let mut world = World::new(Kind::Native, Durability::Primary).await;
        let lock = world.lock();
        for taken in [false, true] {
            let guard = world.acquire(&lock).await;
            if taken {
                world.server.store.execute(&["SET", NAME, "another", "PX", "60000"]).unwrap();
            }
            let releasing = tokio::spawn(async move { guard.release().await });
            while !releasing.is_finished() {
                world.turn().await;
            }
            match releasing.await.unwrap() {
                Err(Error::Lost { .. }) => assert!(taken),
                released => assert!(released.is_ok() && !taken, "{released:?}"),
            }
        }
        assert_eq!(world.server.store.execute(&["GET", NAME]), Some(Answer::Bulk("another".to_owned())));
    });
}

#[test]
fn drops_during_acknowledgement_leave_nothing() {
    let durable = Setting { durable: true, ..Setting::default() };
    let settings = [
        durable,
        Setting { restless: true, forgetful: true, ..durable },
        Setting { trickle: Some(7), ..durable },
        Setting { starved: true, ..durable },
        Setting { starved: true, restless: true, ..durable },
    ];
    virtual_time(async {
        let mut worlds = 0;
        for operation in OPERATIONS {
            for setting in settings {
                // Without a replica a lock cannot be held for long.
                if !(setting.starved && operation == Held) {
                    worlds += drop_everywhere(operation, setting).await;
                }
            }
        }
        println!("{worlds} worlds");
    });
}

/// A grant that no replica knows never reaches the caller, wherever the connection breaks between the grant and its acknowledgement. On
/// the next connection the server says at once that all replicas have this connection's writes, and there are none.
#[test]
fn broken_connection_never_grants_without_replica() {
    virtual_time(async {
        let mut worlds = 0;
        for operation in GRANTING {
            for (series, (side, how, down)) in breaks().enumerate() {
                for after in places(series, OF_ANY) {
                    let cut = Some(Cut { side, after, how });
                    let setting = Setting { cut, down, durable: true, starved: true, ..Setting::default() };
                    worlds += 1;
                    if !world(operation, setting, ENDLESS).await.1 {
                        break;
                    }
                }
            }
        }
        println!("{worlds} worlds");
    });
}

#[test]
fn dropped_at_every_byte() {
    virtual_time(async {
        let mut worlds = 0;
        for operation in OPERATIONS {
            worlds += drop_everywhere(operation, Setting { trickle: Some(1), ..Setting::default() }).await;
        }
        println!("{worlds} worlds");
    });
}

/// A release and a poll may overtake each other in any way. The waiter is notified in any case, and never has to wait for the clock.
#[test]
fn release_at_any_turn_notifies_waiter() {
    virtual_time(async {
        let mut worlds = 0;
        for operation in [AcquireContended, TryAcquireFor, Behind] {
            // In small pieces there are very many turns, so the release occurs in every fifth turn only.
            for (trickle, stride) in [(None, 1), (Some(40), 1), (Some(7), 5)] {
                for event in (0..).step_by(stride) {
                    let setting = Setting { trickle, event_in: Some(event), ..Setting::default() };
                    let turns = drop_everywhere(operation, setting).await;
                    worlds += turns;
                    // All requests that could overtake each other have ended before this turn.
                    if event >= turns {
                        break;
                    }
                }
                never_waits_for_the_clock(operation, trickle).await;
            }
        }
        println!("{worlds} worlds");
    });
}

/// Asserts that `operation` gets the lock before time passes, in whichever turn the lock becomes free.
async fn never_waits_for_the_clock(operation: Operation, trickle: Option<usize>) {
    for turn in 0..200 {
        let mut world = World::new(Kind::Plain, Durability::Primary).await;
        let job = world.begin(operation).await;
        world.set(Setting { trickle, event_in: Some(turn), ..Setting::default() });
        let before = world.elapsed;
        for result in world.drive(vec![(job, ENDLESS)]).await {
            result.unwrap().unwrap();
        }
        assert_eq!(
            world.elapsed, before,
            "{operation:?} asked in vain, {trickle:?}, released in turn {turn}"
        );
    }
}

#[test]
fn dropped_pairs_leave_nothing() {
    virtual_time(async {
        let mut worlds = 0;
        for pair in PAIRS {
            for restless in [false, true] {
                worlds += drop_both_everywhere(pair, Setting { restless, ..Setting::default() }).await;
            }
        }
        let handed_over = HAND_OVERS.load(Ordering::Relaxed);
        println!("{worlds} worlds, {handed_over} locks handed over");
        assert!(handed_over > 100, "those who wait beside each other hand over");
    });
}

async fn drop_both_everywhere(pair: Pair, setting: Setting) -> usize {
    let mut worlds = 0;
    let mut longest = usize::MAX;
    for first in 0.. {
        for second in 0.. {
            let told = Told(format!("{pair:?} for {first} and {second} turns, {setting:?}"));
            let mut world = World::new(setting.kind, Durability::Primary).await;
            let jobs = world.begin_pair(pair).await;
            world.set(setting);
            let results = world.drive(jobs.into_iter().zip([first, second]).collect()).await;
            let ended = results.iter().map(Option::is_some).collect::<Vec<_>>();
            world.check(results).await;
            drop(told);
            worlds += 1;
            if ended[1] {
                longest = if ended[0] { first } else { longest };
                break;
            }
        }
        if first >= longest {
            return worlds;
        }
    }
    unreachable!("every operation ends")
}

/// Dropping the manager, too, leaves no trace. Queued requests are still sent, and no task lives on.
#[test]
fn dropped_manager_leaves_nothing() {
    virtual_time(async {
        let mut worlds = 0;
        for operation in [Acquire, AcquireContended, Reentrant, Release, DropGuard, Held, LockRun] {
            for turns in 0.. {
                let told = Told(format!("{operation:?} for {turns} turns without a manager"));
                let mut world = World::new(Kind::Plain, Durability::Primary).await;
                let job = world.begin(operation).await;
                drop((world.handle.take(), world.locks.take()));
                let results = world.drive(vec![(job, turns)]).await;
                let ended = results.iter().all(Option::is_some);
                drop(results);
                world.settle().await;
                assert_eq!(world.holds(), 0, "the key is not free within one round trip");
                let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
                assert_eq!(tasks, 0, "a task lives on");
                drop(told);
                worlds += 1;
                if ended {
                    break;
                }
            }
        }
        println!("{worlds} worlds");
    });
}

/// B1: in whichever turn a manager is shut down, every lock is released, every caller is notified, and no time passes.
#[test]
fn shut_down_in_every_turn() {
    virtual_time(async {
        let mut worlds = 0;
        for operation in OPERATIONS.into_iter().filter(|operation| *operation != RunsOut) {
            for trickle in [None, Some(7)] {
                for turns in 0.. {
                    worlds += 1;
                    let setting = Setting { trickle, ..Setting::default() };
                    if shut_down_in_turn(turns, operation, setting).await.0 {
                        break;
                    }
                }
            }
        }
        println!("{worlds} worlds");
    });
}

/// B1: a shutdown releases every lock on the next connection, wherever the present connection breaks.
#[test]
fn shutdown_releases_despite_broken_connection() {
    virtual_time(async {
        let mut worlds = 0;
        for operation in CORE {
            for (side, how, turns) in [(Side::Answers, How::Fin, 0), (Side::Requests, How::Rst, 5)] {
                for after in 0.. {
                    worlds += 1;
                    let setting = Setting { cut: Some(Cut { side, after, how }), ..Setting::default() };
                    if !shut_down_in_turn(turns, operation, setting).await.1 {
                        break;
                    }
                }
            }
        }
        println!("{worlds} worlds");
    });
}

/// Returns true if `operation` had ended before, and true if the connection broke.
async fn shut_down_in_turn(turns: usize, operation: Operation, setting: Setting) -> (bool, bool) {
    let story = Told(format!("{operation:?}, shut down in turn {turns}, {setting:?}"));
    let mut world = World::new(setting.kind, Durability::Primary).await;
    let ended = Rc::new(Cell::new(false));
    let (job, end) = (world.begin(operation).await, Rc::clone(&ended));
    let job: Job = Box::pin(async move {
        let result = job.await;
        end.set(true);
        result
    });
    let (locks, timer) = (world.locks.clone().unwrap(), world.timer.clone());
    let ended_before = Rc::new(Cell::new(false));
    let before = Rc::clone(&ended_before);
    let shutdown: Job = Box::pin(async move {
        for _ in 0..turns {
            tokio::task::yield_now().await;
        }
        // One more turn with a wake-up, so that the clock is not about to move.
        let mut moved = false;
        std::future::poll_fn(|cx| {
            cx.waker().wake_by_ref();
            if std::mem::replace(&mut moved, true) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        before.set(ended.get());
        let began = timer.now();
        let left = locks.shutdown(RESPONSE_TIMEOUT).await;
        assert!(left.is_empty(), "{left}");
        assert!(timer.now() == began || setting.cut.is_some(), "it waited for the clock");
        Ok(Vec::new())
    });
    world.set(setting);
    let mut results = world.drive(vec![(job, ENDLESS), (shutdown, ENDLESS)]).await;
    let broke = world.is_broken();
    assert_eq!(world.holds(), 0, "something was not given back");
    let ended = results.swap_remove(0).unwrap();
    let told = matches!(ended, Ok(_) | Err(Error::ShutDown { .. } | Error::Lost { .. }));
    assert!(told || broke, "{:?}", ended.err());
    let guards = ended.into_iter().flatten().chain(std::mem::take(&mut world.kept));
    guards.for_each(|guard| assert!(!guard.is_valid(), "a guard believes that it holds"));
    if let Some(companion) = world.companion.take() {
        world.settle().await;
        assert!(companion.is_finished(), "who waits behind was forgotten");
        let ended = companion.await.unwrap();
        assert!(broke || matches!(ended, Ok(()) | Err(Error::ShutDown { .. })), "{ended:?}");
    }
    world.settle().await;
    assert_eq!(world.holds(), 0, "something was taken afterwards");
    let log = &world.server.store.log;
    assert!(late_renewals(log).is_empty(), "renewed after its release: {:?}", late_renewals(log));
    drop(story);
    (ended_before.get(), broke)
}

#[test]
fn drops_after_broken_connection_leave_nothing() {
    virtual_time(async {
        let mut worlds = 0;
        for operation in CORE {
            // The server does not execute a request that it has not received completely, however the connection ends.
            let breaks = [
                (Side::Answers, How::Fin, OF_ANY),
                (Side::Answers, How::Rst, OF_ANY),
                (Side::Requests, How::Fin, 13),
            ];
            for (series, (side, how, one_of)) in breaks.into_iter().enumerate() {
                for after in places(series, one_of) {
                    let setting = Setting { cut: Some(Cut { side, after, how }), ..Setting::default() };
                    let mut broke = false;
                    for turns in 0.. {
                        let ended;
                        (ended, broke) = world(operation, setting, turns).await;
                        worlds += 1;
                        if ended {
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

#[test]
fn broken_at_every_byte() {
    virtual_time(async {
        let mut worlds = 0;
        for operation in OPERATIONS {
            for (series, (side, how, down)) in breaks().enumerate() {
                for after in places(series, OF_ANY) {
                    let cut = Some(Cut { side, after, how });
                    worlds += 1;
                    if !world(operation, Setting { cut, down, ..Setting::default() }, ENDLESS).await.1 {
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
