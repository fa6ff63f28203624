//! A simulated process: a manager and its tasks.
//!
//! The tasks follow the plan and record their observations.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use tokio::task::{JoinHandle, spawn_local};
use tokio::time::sleep;
use wheellock::{Durability, Fleet, LockManager, RedLockManager, multi_lock};

use super::held::{FOR_EVER, Wanted};
use super::latches::Turn;
use super::limits::Limits;
use super::machine::{Log, Machine, Way, lock_name};
use super::operation::{Attempt, Op};
use super::plan::{Kind, LEASE, LOCKS, Manner, PATIENCE, Plan, Step};
use super::replicas::Replicas;
use super::standstill::Gate;
use super::survival::Survival;
use super::troubles;
use crate::fault::Random;
use crate::history::{Kind as Asked, What};

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
    pub(super) kind: Kind,
    pub(super) log: Log,
    next_op: Cell<u64>,
    /// The time of the log at the zero of the manager's clock, in nanoseconds.
    epoch: u64,
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
        fleet.entry_lasts = Some(Duration::from_millis(survival.longest_lease() + 2 * survival.window));
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
    pub(super) fn next_number(&self, operations: u64) -> u64 {
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
