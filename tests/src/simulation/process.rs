//! A simulated process: a manager and its tasks.
//!
//! The tasks follow the plan and record their observations.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::ops::Deref;
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::task::{JoinHandle, spawn_local};
use tokio::time::sleep;
use wheellock::{
    BootInstant, Durability, Election, Error, FencedGuard, FencedLock, Fleet, Guard, Leadership, Lock,
    LockManager, LostReason, MultiGuard, MultiLock, Owner, Permit, PermitSemaphore, Permits, RedLock,
    RedLockGuard, RedLockManager, Semaphore, Ticket, multi_lock,
};

use super::give_up::{GiveUp, outcome_unless};
use super::latches::Turn;
use super::limits::Limits;
use super::machine::{Log, Machine, Way, lock_name};
use super::plan::{GiveBack, Kind, LEASE, LOCKS, Manner, PATIENCE, Plan, Step};
use super::replicas::Replicas;
use super::standstill::Gate;
use super::survival::Survival;
use super::troubles;
use crate::fault::{Random, cancel_at};
use crate::history::{Kind as Asked, Outcome, What};
use crate::told;

pub(super) struct Process {
    pub(super) number: u32,
    pub(super) locks: LockManager,
    /// The managers, one for each server. The first is `locks`.
    pub(super) managers: Vec<LockManager>,
    pub(super) ways: Vec<Way>,
    quorum: Option<RedLockManager>,
    pub(super) tasks: RefCell<Vec<JoinHandle<()>>>,
    observers: RefCell<Vec<JoinHandle<()>>>,
    /// The leader's token in the last report to an observer, by the election's number. It is 0 without a leader.
    pub(super) seen: RefCell<BTreeMap<u64, u64>>,
    /// The processes that may get its tickets.
    pub(super) fleet: RefCell<Weak<troubles::Fleet>>,
    pub(super) is_dead: Cell<bool>,
    pub(super) is_shut: Cell<bool>,
    /// The gate before the process's tasks.
    pub(super) gate: Rc<Gate>,
    kind: Kind,
    log: Log,
    next_op: Cell<u64>,
    /// The time of the log at the zero of the manager's clock, in nanoseconds.
    epoch: u64,
}

/// An object that a task may acquire.
#[derive(Clone)]
pub(super) enum Wanted {
    Plain(Lock),
    Fenced(FencedLock),
    Leased(PermitSemaphore, u16),
    Permits(Semaphore, u32),
    Election(Election),
    Set(MultiLock),
    Quorum(RedLock),
}

pub(super) enum Held {
    Plain(Guard),
    Fenced(FencedGuard),
    Leased(Vec<Permit>),
    Permits(Permits),
    Leader(Leadership),
    Set(MultiGuard),
    Quorum(RedLockGuard),
}

/// A pending operation.
pub(super) struct Op<'a> {
    pub(super) process: &'a Process,
    pub(super) task: u32,
    number: u64,
    pub(super) lock: &'a str,
    wanted: Wanted,
    shared: bool,
    limits: Limits,
    /// A pending operation of the same owner inside this one, and the event to record if it is dropped.
    inner: Cell<Option<(u64, What)>>,
}

struct Attempt {
    asked: Asked,
    lease: u64,
    renewed: bool,
    wait: Option<u64>,
    give_up: Option<GiveUp>,
    owner: String,
}

impl Process {
    pub(super) async fn start(number: u32, plan: &Plan, machines: &[Arc<Machine>]) -> Rc<Self> {
        let (mut managers, mut ways) = (Vec::new(), Vec::new());
        for (place, machine) in machines.iter().enumerate() {
            let way = Way::new();
            let mut url = format!("redis://simulated-{place}");
            if plan.is_replicated() {
                url = format!("{url},replica-{place}");
            }
            let (timer, connector) =
                (machine.host.timer().clone(), way.connector(std::slice::from_ref(machine)));
            let builder = LockManager::builder(&url)
                .watchdog_lease(Duration::from_millis(LEASE))
                .hand_over(Duration::from_millis(plan.hand_over))
                .durability(if plan.durable { Durability::Replicas(1) } else { Durability::Primary });
            let builder = builder.configure(|config| {
                config.timer = timer;
                config.connector = Some(connector);
                config.response_timeout = Duration::from_millis(PATIENCE);
                config.random = random;
            });
            managers.push(builder.connect().await.expect("nothing is wrong yet"));
            ways.push(way);
        }
        let quorum = match plan.kind {
            Kind::Quorum => {
                Some(RedLockManager::new(managers.iter().cloned()).await.expect("independent servers"))
            }
            _ => None,
        };
        let (locks, log) = (managers[0].clone(), machines[0].log.clone());
        log.record(number, 0, 0, "", What::Started);
        let world = machines[0].host.timer();
        let (gate, _) = Gate::new(ways[0].clone(), false, world);
        Rc::new(Self {
            number,
            gate,
            epoch: 0,
            locks,
            managers,
            ways,
            quorum,
            tasks: RefCell::default(),
            observers: RefCell::default(),
            seen: RefCell::default(),
            fleet: RefCell::default(),
            is_dead: Cell::new(false),
            is_shut: Cell::new(false),
            kind: plan.kind,
            log,
            next_op: Cell::new(1),
        })
    }

    /// Starts a process whose locks survive failovers. It has no connection yet.
    pub(super) fn start_surviving(
        number: u32,
        plan: &Plan,
        survival: &Survival,
        replicas: &Replicas,
    ) -> Rc<Self> {
        let way = replicas.new_way();
        let machine = replicas.primary();
        let (gate, timer) = Gate::new(way.clone(), plan.halts(), machine.host.timer());
        if plan.halts() {
            replicas.keep_time_of(&gate);
        }
        let url =
            (0..survival.servers).map(|server| format!("server-{server}")).collect::<Vec<_>>().join(",");
        let mut fleet = Fleet::of_servers(u32::try_from(survival.servers).unwrap_or(1));
        fleet.longest_lease = Duration::from_millis(survival.longest_lease());
        fleet.window = Duration::from_millis(survival.window);
        fleet.may_be_new = survival.may_be_new;
        let builder = LockManager::builder(&format!("redis://{url}"))
            .watchdog_lease(Duration::from_millis(LEASE))
            .hand_over(Duration::from_millis(plan.hand_over))
            .keep_locks_across_failovers(fleet);
        let connector = way.connector(&replicas.machines);
        let builder = builder.configure(|config| {
            config.timer = timer;
            config.connector = Some(connector);
            config.response_timeout = Duration::from_millis(survival.patience);
            if survival.is_calm {
                // Leases, window and patience are shorter than the defaults. With the default pauses, a process would reach the new primary
                // after the time that the promise grants.
                config.reconnect = CALM_RECONNECT;
            }
            config.random = random;
        });
        let locks = builder.lazy().expect("a correct fleet");
        let log = machine.log.clone();
        log.record(number, 0, 0, "", What::Started);
        Rc::new(Self {
            number,
            gate,
            epoch: log.elapsed(),
            managers: vec![locks.clone()],
            locks,
            ways: vec![way],
            quorum: None,
            tasks: RefCell::default(),
            observers: RefCell::default(),
            seen: RefCell::default(),
            fleet: RefCell::default(),
            is_dead: Cell::new(false),
            is_shut: Cell::new(false),
            kind: plan.kind,
            log,
            next_op: Cell::new(1),
        })
    }

    /// Returns true if the process can acquire locks now.
    pub(super) fn is_ready(&self) -> bool {
        self.locks.fleet_health().is_none_or(|fleet| fleet.obstacle.is_none())
    }

    /// Returns a living process of the same fleet.
    pub(super) fn peer(&self, number: u32) -> Option<Rc<Self>> {
        let fleet = self.fleet.borrow().upgrade()?;
        let found = fleet.borrow().iter().find(|process| process.number == number).cloned();
        found.filter(|process| !process.is_dead.get())
    }

    /// Returns the time of the log for a time of the manager.
    pub(super) fn time(&self, nanos: u64) -> u64 {
        nanos.saturating_add(self.epoch).min(FOR_EVER)
    }

    /// Runs the steps in order. Begins no step after the end of the day.
    pub(super) async fn task(self: Rc<Self>, task: u32, steps: Vec<Step>, end: u64) {
        for step in steps {
            sleep(Duration::from_millis(step.pause)).await;
            if self.log.now() >= end || self.is_shut.get() {
                break;
            }
            self.step(task, &step).await;
        }
    }

    async fn step(&self, task: u32, step: &Step) {
        if self.kind == Kind::Latch {
            let turn = Turn { locks: &self.locks, log: &self.log, process: self.number, task };
            return turn.take(self.next_number(1), step).await;
        }
        let name = if self.kind.is_pool() { POOL.to_owned() } else { lock_name(step.lock) };
        let mut wanted = self.wanted(&name, step);
        // A leader has the watchdog's lease.
        let lease = step.lease.filter(|_| self.kind != Kind::Election);
        let mut attempt = Attempt {
            asked: match step.manner {
                Manner::Acquire => Asked::Acquire,
                Manner::Try => Asked::Try,
                Manner::TryFor(_) => Asked::TryFor,
                Manner::Run => Asked::Run,
            },
            lease: lease.unwrap_or(LEASE),
            renewed: lease.is_none(),
            wait: match step.manner {
                Manner::TryFor(wait) => Some(wait),
                _ => None,
            },
            give_up: step.give_up,
            owner: String::new(),
        };
        if let Some(lease) = lease {
            wanted = wanted.with_lease(Duration::from_millis(lease));
        }
        if step.presents
            && !matches!(wanted, Wanted::Election(_) | Wanted::Set(_) | Wanted::Quorum(_))
            && !self.kind.is_pool()
        {
            let owner = self.locks.owner();
            attempt.owner = owner.to_string();
            wanted = wanted.with_owner(owner);
        }
        let wanted = wanted.with_limits(&step.limits);
        let mut op = self.begin(task, &name, wanted, step.shared || self.kind.is_pool());
        op.limits = step.limits.clone();
        if step.manner == Manner::Run {
            return op.run(&attempt, step).await;
        }
        if let Some(held) = op.attempt(&attempt).await {
            op.hold_watched(&held, step).await;
            match &step.limits.journey {
                Some(journey) => op.send(held, journey).await,
                None => op.give_back(held, step.give_back).await,
            }
        }
    }

    pub(super) fn wanted(&self, name: &str, step: &Step) -> Wanted {
        let locks = &self.locks;
        match self.kind {
            Kind::Visited if self.number.is_multiple_of(4) => Wanted::Plain(locks.spin_lock(name)),
            Kind::Plain | Kind::Hot | Kind::Visited => Wanted::Plain(locks.lock(name)),
            Kind::Fair => Wanted::Plain(locks.fair_lock(name)),
            Kind::ReadWrite if step.shared => Wanted::Plain(locks.read_write_lock(name).read()),
            Kind::ReadWrite => Wanted::Plain(locks.read_write_lock(name).write()),
            Kind::Fenced => Wanted::Fenced(locks.fenced_lock(name)),
            Kind::Spin => Wanted::Plain(locks.spin_lock(name)),
            Kind::Simple => Wanted::Plain(locks.simple_lock(name)),
            Kind::Permits => {
                let count = u16::try_from(step.permits).expect("a step takes few");
                Wanted::Leased(locks.permit_semaphore(name), count)
            }
            Kind::Semaphore => Wanted::Permits(locks.semaphore(name), step.permits),
            Kind::Election => Wanted::Election(locks.election(name)),
            Kind::Set if step.permits > 1 => {
                let members = (0..LOCKS).map(|number| locks.lock(&lock_name((step.lock + number) % LOCKS)));
                Wanted::Set(multi_lock(members).expect("different locks"))
            }
            Kind::Set => Wanted::Plain(locks.lock(name)),
            Kind::Quorum => Wanted::Quorum(self.quorum.as_ref().expect("it has one").lock(name)),
            Kind::Latch | Kind::Surviving | Kind::SurvivingPermits | Kind::Limited => {
                unreachable!("no lock is of this kind")
            }
        }
    }

    pub(super) fn begin<'a>(&'a self, task: u32, lock: &'a str, wanted: Wanted, shared: bool) -> Op<'a> {
        let number = self.next_number(if matches!(wanted, Wanted::Set(_)) { LOCKS } else { 1 });
        Op {
            process: self,
            task,
            number,
            lock,
            wanted,
            shared,
            limits: Limits::default(),
            inner: Cell::new(None),
        }
    }

    /// Returns the number of the next operation, and reserves `operations` numbers.
    fn next_number(&self, operations: u64) -> u64 {
        self.next_op.replace(self.next_op.get() + operations)
    }

    /// Observes the leader of each election, until a signal to stop.
    pub(super) fn observe(self: &Rc<Self>) {
        for number in 0..LOCKS {
            let process = Rc::clone(self);
            let observes = async move {
                let mut observer = process.locks.election(&lock_name(number)).observe();
                loop {
                    match observer.changed().await {
                        Ok(leader) => {
                            let token = leader.map_or(0, |leader| leader.token());
                            process.seen.borrow_mut().insert(number, token);
                        }
                        Err(_) if process.is_shut.get() => return,
                        // The server is unreachable, and the observer has reported that after this time.
                        Err(_) => sleep(Duration::from_millis(PATIENCE)).await,
                    }
                }
            };
            self.observers.borrow_mut().push(spawn_local(observes));
        }
    }

    pub(super) fn observe_no_more(&self) {
        self.observers.borrow().iter().for_each(JoinHandle::abort);
    }

    /// Releases all holds, and begins no further steps.
    pub(super) async fn shut_down(&self) {
        self.is_shut.set(true);
        self.log.record(self.number, 0, 0, "", What::ShutDown);
        let within = Duration::from_millis(PATIENCE);
        let left = match &self.quorum {
            Some(quorum) => quorum.shutdown(within).await,
            None => self.locks.shutdown(within).await,
        };
        let held: u64 = self.managers.iter().map(|locks| locks.metrics().held).sum();
        self.log.record(
            self.number,
            0,
            0,
            "",
            What::Probe {
                name: "locks that a shutdown let go of unsaid".to_owned(),
                found: held.saturating_sub(left.locks().len() as u64),
                allowed: 0,
            },
        );
    }

    /// Ends at once, without releases.
    pub(super) fn kill(&self) {
        self.log.record(self.number, 0, 0, "", What::Killed);
        self.is_dead.set(true);
        self.gate.close();
        self.ways.iter().for_each(Way::shut);
        self.tasks.borrow().iter().for_each(JoinHandle::abort);
        self.observe_no_more();
    }
}

impl Wanted {
    fn with_lease(self, lease: Duration) -> Self {
        match self {
            Self::Plain(lock) => Self::Plain(lock.with_lease(lease)),
            Self::Fenced(lock) => Self::Fenced(lock.with_lease(lease)),
            Self::Leased(semaphore, count) => Self::Leased(semaphore.with_lease(lease), count),
            Self::Set(set) => Self::Set(set.with_lease(lease)),
            Self::Quorum(lock) => Self::Quorum(lock.with_lease(lease)),
            other @ (Self::Permits(..) | Self::Election(_)) => other,
        }
    }

    fn with_owner(self, owner: Owner) -> Self {
        match self {
            Self::Plain(lock) => Self::Plain(lock.with_owner(owner)),
            Self::Fenced(lock) => Self::Fenced(lock.with_owner(owner)),
            pool => pool,
        }
    }

    fn with_limits(self, limits: &Limits) -> Self {
        let Limits { min, max, .. } = limits;
        let (min, max) = (min.map(Duration::from_millis), max.map(Duration::from_millis));
        match self {
            Self::Plain(mut lock) => {
                lock = min.map_or(lock.clone(), |min| lock.with_min_hold(min));
                Self::Plain(max.map_or(lock.clone(), |max| lock.with_max_hold(max)))
            }
            Self::Fenced(mut lock) => {
                lock = min.map_or(lock.clone(), |min| lock.with_min_hold(min));
                Self::Fenced(max.map_or(lock.clone(), |max| lock.with_max_hold(max)))
            }
            other => other,
        }
    }

    async fn ask(&self, asked: Asked, wait: Option<Duration>) -> Result<Option<Held>, Error> {
        let once = matches!(asked, Asked::Try | Asked::Again);
        Ok(match (self, wait) {
            (Self::Plain(lock), _) if once => lock.try_acquire().await?.map(Held::Plain).acquired(),
            (Self::Plain(lock), Some(wait)) => lock.try_acquire_for(wait).await?.map(Held::Plain).acquired(),
            (Self::Plain(lock), None) => Some(Held::Plain(lock.acquire().await?)),
            (Self::Fenced(lock), _) if once => lock.try_acquire().await?.map(Held::Fenced).acquired(),
            (Self::Fenced(lock), Some(wait)) => {
                lock.try_acquire_for(wait).await?.map(Held::Fenced).acquired()
            }
            (Self::Fenced(lock), None) => Some(Held::Fenced(lock.acquire().await?)),
            (Self::Leased(semaphore, count), _) => {
                ask_for_leased(semaphore, *count, once, wait).await?.map(Held::Leased)
            }
            (Self::Permits(pool, count), _) if once => {
                pool.try_acquire(*count).await?.map(Held::Permits).acquired()
            }
            (Self::Permits(pool, count), Some(wait)) => {
                pool.try_acquire_for(*count, wait).await?.map(Held::Permits).acquired()
            }
            (Self::Permits(pool, count), None) => Some(Held::Permits(pool.acquire(*count).await?)),
            (Self::Election(election), _) if once => {
                election.try_campaign().await?.map(Held::Leader).acquired()
            }
            (Self::Election(election), Some(wait)) => {
                election.try_campaign_for(wait).await?.map(Held::Leader).acquired()
            }
            (Self::Election(election), None) => Some(Held::Leader(election.campaign().await?)),
            (Self::Set(set), _) if once => set.try_acquire().await?.map(Held::Set).acquired(),
            (Self::Set(set), Some(wait)) => set.try_acquire_for(wait).await?.map(Held::Set).acquired(),
            (Self::Set(set), None) => Some(Held::Set(set.acquire().await?)),
            (Self::Quorum(lock), _) if once => lock.try_acquire().await?.map(Held::Quorum).acquired(),
            (Self::Quorum(lock), Some(wait)) => {
                lock.try_acquire_for(wait).await?.map(Held::Quorum).acquired()
            }
            (Self::Quorum(lock), None) => Some(Held::Quorum(lock.acquire().await?)),
        })
    }
}

async fn ask_for_leased(
    semaphore: &PermitSemaphore,
    count: u16,
    once: bool,
    wait: Option<Duration>,
) -> Result<Option<Vec<Permit>>, Error> {
    let one = |permit: Permit| vec![permit];
    Ok(match (wait, count) {
        (_, 1) if once => semaphore.try_acquire().await?.map(one).acquired(),
        (Some(wait), 1) => semaphore.try_acquire_for(wait).await?.map(one).acquired(),
        (None, 1) => Some(one(semaphore.acquire().await?)),
        (_, count) if once => semaphore.try_acquire_many(count).await?.acquired(),
        (Some(wait), count) => semaphore.try_acquire_many_for(count, wait).await?.acquired(),
        (None, count) => Some(semaphore.acquire_many(count).await?),
    })
}

/// Resolves when the first permit is lost.
async fn first_loss(permits: &[Permit]) -> LostReason {
    let mut losses: Vec<_> = permits.iter().map(|permit| Box::pin(permit.lost())).collect();
    poll_fn(|cx| {
        let lost = losses.iter_mut().map(|lost| lost.as_mut().poll(cx));
        lost.into_iter().find(Poll::is_ready).unwrap_or(Poll::Pending)
    })
    .await
}

/// Releases all permits at once. Returns the first failure.
async fn release_all(permits: Vec<Permit>) -> Result<(), Error> {
    let mut releases: Vec<_> = permits.into_iter().map(|permit| Box::pin(permit.release())).collect();
    let mut result = Ok(());
    poll_fn(|context| {
        releases.retain_mut(|release| match release.as_mut().poll(context) {
            Poll::Ready(Err(failed)) if result.is_ok() => {
                result = Err(failed);
                false
            }
            Poll::Ready(_) => false,
            Poll::Pending => true,
        });
        if releases.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    result
}

impl Held {
    /// Returns the guard that can be lost. A counted permit cannot be lost.
    fn guard(&self) -> Option<&Guard> {
        match self {
            Self::Plain(guard) => Some(guard),
            Self::Fenced(guard) => Some(guard),
            Self::Leader(leadership) => Some(leadership),
            Self::Leased(_) | Self::Permits(_) | Self::Set(_) | Self::Quorum(_) => None,
        }
    }

    fn is_valid(&self) -> bool {
        match self {
            Self::Leased(permits) => permits.iter().all(|permit| permit.is_valid()),
            Self::Permits(_) => true,
            Self::Set(guard) => guard.is_valid(),
            Self::Quorum(guard) => guard.is_valid(),
            Self::Leader(leadership) => leadership.is_leader(),
            Self::Plain(_) | Self::Fenced(_) => self.guard().is_some_and(Guard::is_valid),
        }
    }

    pub(super) fn valid_until(&self) -> u64 {
        let until = match self {
            Self::Plain(guard) => guard.valid_until(),
            Self::Fenced(guard) => guard.deref().valid_until(),
            Self::Leased(permits) => {
                return permits.iter().map(|permit| nanos(permit.valid_until())).min().unwrap_or(FOR_EVER);
            }
            Self::Permits(_) => return FOR_EVER,
            Self::Leader(leadership) => leadership.valid_until(),
            Self::Set(guard) => guard.valid_until(),
            Self::Quorum(guard) => guard.valid_until(),
        };
        nanos(until)
    }

    /// Turns the guard into a ticket.
    pub(super) async fn into_ticket(self) -> Result<Ticket, Error> {
        match self {
            Self::Plain(guard) => guard.into_ticket().await,
            Self::Fenced(guard) => guard.into_ticket().await,
            _ => unreachable!("only locks travel"),
        }
    }

    async fn lost(&self) -> LostReason {
        match self {
            Self::Plain(guard) => guard.lost().await,
            Self::Fenced(guard) => guard.lost().await,
            Self::Leased(permits) => first_loss(permits).await,
            Self::Permits(_) => std::future::pending().await,
            Self::Leader(leadership) => leadership.lost().await,
            Self::Set(guard) => guard.lost().await.reason,
            Self::Quorum(guard) => guard.lost().await,
        }
    }

    pub(super) fn token(&self) -> Option<u64> {
        match self {
            Self::Fenced(guard) => Some(guard.token()),
            Self::Leader(leadership) => Some(leadership.token()),
            _ => None,
        }
    }

    async fn release(self) -> Result<(), Error> {
        match self {
            Self::Plain(guard) => guard.release().await,
            Self::Fenced(guard) => guard.release().await,
            Self::Leased(permits) => release_all(permits).await,
            Self::Permits(permits) => permits.release().await,
            Self::Leader(leadership) => leadership.resign().await,
            Self::Set(guard) => guard.release().await,
            Self::Quorum(guard) => guard.release().await,
        }
    }
}

impl Op<'_> {
    /// Records an event. An event of a set is recorded for each of its locks, because the checkers treat each lock as a separate operation.
    pub(super) fn record(&self, what: What) {
        let Process { log, number: process, .. } = self.process;
        let Wanted::Set(set) = &self.wanted else {
            return log.record(*process, self.task, self.number, self.lock, what);
        };
        for (number, lock) in (self.number..).zip(set.members()) {
            let what = match &what {
                // The attempt may have failed for another lock of the set.
                What::NotGranted => What::Cancelled,
                what => what.clone(),
            };
            log.record(*process, self.task, number, lock.name(), what);
        }
    }

    fn is_set(&self) -> bool {
        matches!(self.wanted, Wanted::Set(_))
    }

    fn invoked(&self, attempt: &Attempt) {
        self.record(What::Invoked {
            // A set may hold some locks while it waits for another lock, and the history does not show it. So a waiter for one of its locks
            // cannot claim that the lock is free.
            kind: if self.process.kind == Kind::Set { Asked::Try } else { attempt.asked },
            renewed: attempt.renewed,
            lease: attempt.lease * MILLISECOND,
            // An announcement follows a campaign, and its time limit is that of any request.
            deadline: attempt
                .wait
                .filter(|_| !self.is_set() && self.process.kind != Kind::Election)
                .map(|wait| self.process.log.now() + wait * MILLISECOND),
            owner: attempt.owner.clone(),
            shared: self.shared,
        });
        match self.wanted {
            Wanted::Permits(_, permits) => self.record(What::Takes { permits: permits.into() }),
            Wanted::Leased(_, permits @ 2..) => self.record(What::Takes { permits: permits.into() }),
            _ => {}
        }
        if let Some(limits) = self.limits.recorded() {
            self.record(limits);
        }
    }

    pub(super) fn granted(&self, owner: String, valid_until: u64, token: Option<u64>) {
        self.record(What::Granted { owner, valid_until, token });
        // No time has passed since the library returned the guard. So an expired guard is a false claim.
        if valid_until < self.process.log.now() {
            self.record(What::Claimed { until: valid_until });
        }
    }

    /// Returns the owner to record. Asking a guard for its owner prevents the hand-over of its hold.
    pub(super) fn owner_of(&self, held: &Held) -> String {
        match held {
            _ if matches!(self.process.kind, Kind::Hot | Kind::Quorum | Kind::Visited) => {
                format!("{}:{}", self.process.number, self.number)
            }
            Held::Leased(permits) => {
                permits.first().map(|permit| permit.id().to_string()).unwrap_or_default()
            }
            Held::Permits(_) | Held::Quorum(_) => String::new(),
            Held::Set(guard) => {
                guard.members().first().map(|guard| guard.owner().to_string()).unwrap_or_default()
            }
            Held::Plain(_) | Held::Fenced(_) | Held::Leader(_) => {
                held.guard().map(|guard| guard.owner().to_string()).unwrap_or_default()
            }
        }
    }

    async fn attempt(&self, attempt: &Attempt) -> Option<Held> {
        self.invoked(attempt);
        let acquire = self.wanted.ask(attempt.asked, attempt.wait.map(Duration::from_millis));
        match outcome_unless(attempt.give_up, acquire).await {
            Some(Ok(Some(held))) => {
                self.granted(self.owner_of(&held), self.process.time(held.valid_until()), held.token());
                return Some(held);
            }
            Some(Ok(None)) => self.record(What::NotGranted),
            Some(Err(error)) => self.failed(&error),
            None => self.record(What::Cancelled),
        }
        None
    }

    pub(super) fn failed(&self, error: &Error) {
        // A set may have held one of its locks meanwhile, and an election may have held the lead before its announcement. The library has
        // released it.
        let is_unsure = self.is_set() || self.process.kind == Kind::Election;
        let outcome = if is_unsure { Outcome::MaybeExecuted } else { told::outcome(error) };
        self.record(What::Failed { outcome, text: error.to_string() });
    }

    async fn run(&self, attempt: &Attempt, step: &Step) {
        self.invoked(attempt);
        let is_granted = Cell::new(false);
        let work = async |guard: &Guard, token: Option<u64>| {
            is_granted.set(true);
            self.granted(guard.owner().to_string(), self.process.time(nanos(guard.valid_until())), token);
            self.look(step.hold, self.process.time(nanos(guard.valid_until())), || {
                (guard.is_valid(), self.process.time(nanos(guard.valid_until())))
            })
            .await;
            self.record(What::Dropped);
            Ok::<_, Error>(())
        };
        let done = match &self.wanted {
            Wanted::Plain(lock) => lock.run(async |guard| work(guard, None).await).await,
            Wanted::Fenced(lock) => lock.run(async |guard| work(guard, Some(guard.token())).await).await,
            Wanted::Set(set) => {
                set.run(async |guard| {
                    is_granted.set(true);
                    let owner = guard.members().first().map(|guard| guard.owner().to_string());
                    self.granted(
                        owner.unwrap_or_default(),
                        self.process.time(nanos(guard.valid_until())),
                        None,
                    );
                    self.look(step.hold, self.process.time(nanos(guard.valid_until())), || {
                        (guard.is_valid(), self.process.time(nanos(guard.valid_until())))
                    })
                    .await;
                    self.record(What::Dropped);
                    Ok(())
                })
                .await
            }
            Wanted::Quorum(lock) => {
                lock.run(async |guard| {
                    is_granted.set(true);
                    let owner = format!("{}:{}", self.process.number, self.number);
                    self.granted(owner, self.process.time(nanos(guard.valid_until())), None);
                    self.look(step.hold, self.process.time(nanos(guard.valid_until())), || {
                        (guard.is_valid(), self.process.time(nanos(guard.valid_until())))
                    })
                    .await;
                    self.record(What::Dropped);
                    Ok(())
                })
                .await
            }
            Wanted::Leased(..) | Wanted::Permits(..) | Wanted::Election(_) => Ok(()),
        };
        match done {
            Ok(()) => {}
            Err(Error::Lost { reason: LostReason::ShutDown, .. }) if is_granted.get() => {
                self.record(What::Dropped);
            }
            Err(Error::Lost { reason, .. }) if is_granted.get() => {
                let valid_until = self.process.log.now();
                self.record(What::Lost { reason: told::reason(reason), valid_until });
                self.record(What::Dropped);
            }
            Err(error) => self.failed(&error),
        }
    }

    pub(super) async fn hold_watched(&self, held: &Held, step: &Step) {
        let end = self.process.log.now() + step.hold * MILLISECOND;
        let mut work = pin!(async {
            let granted_until = self.process.time(held.valid_until());
            if let Some(guard) = held.guard() {
                if step.again {
                    self.hold_again(guard).await;
                }
                if step.renews {
                    let _told_by_the_guard = guard.renew().await;
                }
            }
            self.look(step.hold, granted_until, || (held.is_valid(), self.process.time(held.valid_until())))
                .await;
        });
        tokio::select! {
            biased;
            reason = held.lost() => {
                self.record(match reason {
                    LostReason::ShutDown => What::Disclaimed,
                    reason => What::Lost { reason: told::reason(reason), valid_until: self.process.time(held.valid_until()) },
                });
                if held.is_valid() {
                    self.record(What::Claimed { until: self.process.time(held.valid_until()) });
                }
                // The next step drops the pending operation of the same owner.
                if let Some((number, what)) = self.inner.take() {
                    let Process { log, number: process, .. } = self.process;
                    log.record(*process, self.task, number, self.lock, what);
                }
                if step.limits.is_wedged && reason == LostReason::HeldTooLong {
                    sleep(Duration::from_nanos(end.saturating_sub(self.process.log.now()))).await;
                }
            }
            () = &mut work => {}
        }
    }

    /// Checks the guard continuously for `hold` milliseconds. Its last known expiry was `until`.
    async fn look(&self, hold: u64, mut until: u64, look: impl Fn() -> (bool, u64)) {
        let end = self.process.log.now() + hold * MILLISECOND;
        loop {
            let (valid, now_until) = look();
            if now_until != until {
                until = now_until;
                self.record(What::Moved { valid_until: until });
            }
            if !valid {
                return self.record(What::Disclaimed);
            }
            let now = self.process.log.now();
            if now > until {
                self.record(What::Claimed { until });
            }
            if now >= end {
                return;
            }
            sleep(Duration::from_nanos((end - now).min(SLICE))).await;
        }
    }

    /// Acquires the lock again with the same owner, and releases that second hold.
    async fn hold_again(&self, guard: &Guard) {
        let wanted = self.wanted.clone().with_owner(guard.owner());
        let mut op = self.process.begin(self.task, self.lock, wanted, self.shared);
        op.limits = self.limits.clone();
        let owner = guard.owner().to_string();
        let attempt =
            Attempt { asked: Asked::Again, lease: LEASE, renewed: true, wait: None, give_up: None, owner };
        self.inner.set(Some((op.number, What::Cancelled)));
        let inner = op.attempt(&attempt).await;
        self.inner.set(inner.is_some().then_some((op.number, What::Dropped)));
        if let Some(inner) = inner {
            op.give_back(inner, GiveBack::Release).await;
        }
        self.inner.set(None);
    }

    pub(super) async fn give_back(&self, held: Held, how: GiveBack) {
        match how {
            GiveBack::Release => {
                self.record(What::Releasing);
                self.released(held.release().await);
            }
            GiveBack::Drop => {
                self.record(What::Dropped);
                drop(held);
            }
            GiveBack::ReleaseAndDrop(polls) => {
                self.record(What::Releasing);
                match cancel_at(polls, held.release()).await {
                    Some(released) => self.released(released),
                    None => self.record(What::Dropped),
                }
            }
        }
    }

    pub(super) fn released(&self, released: Result<(), Error>) {
        self.record(match released {
            Ok(()) => What::Released,
            // The shutdown has released the hold.
            Err(Error::Lost { .. }) if self.process.is_shut.get() => What::Dropped,
            Err(Error::Lost { .. }) => What::AlreadyLost,
            Err(error) => What::Unconfirmed { text: error.to_string() },
        });
    }
}

fn nanos(instant: BootInstant) -> u64 {
    u64::try_from(instant.since_boot().as_nanos()).unwrap_or(u64::MAX)
}

thread_local! {
    static RANDOM: RefCell<Random> = RefCell::new(Random::new(0));
}

/// Seeds the generator that the library uses in this thread's world.
pub(super) fn seed_the_library(seed: u64) {
    RANDOM.with(|random| *random.borrow_mut() = Random::new(seed));
}

fn random() -> u64 {
    RANDOM.with(|random| random.borrow_mut().number())
}

/// The pauses between attempts to connect in a calm world. They are to [`LEASE`] what the default pauses are to the default lease.
const CALM_RECONNECT: (Duration, Duration) = (Duration::from_micros(100), Duration::from_millis(4));
/// The name of the pool that all processes share.
pub(super) const POOL: &str = "pool";
const MILLISECOND: u64 = 1_000_000;
/// The time between two checks of a guard, in nanoseconds.
const SLICE: u64 = 10 * MILLISECOND;
/// Later than the end of any world.
const FOR_EVER: u64 = u64::MAX / 2;
