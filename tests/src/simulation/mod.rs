//! Simulated fleets in a single thread and in virtual time.
//!
//! Managers contend for a server in memory, while a seed determines their actions and the faults. The checkers of real campaigns judge the
//! history, and the world must leave no traces.
//!
//! The seed determines the plan, the library's random choices, and the order of polls, because a single thread runs all tasks. So a world
//! can run again. It can also shrink, while the same complaint remains.

mod foreigner;
mod give_up;
mod held;
mod latches;
mod limits;
mod machine;
mod night;
mod operation;
mod plan;
mod process;
mod replicas;
mod shrink;
mod standstill;
mod survival;
mod troubles;

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::{LocalSet, spawn_local};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use wheellock::testing::server::late_renewals;

pub use night::{Morning, Night, main};
pub use plan::{Kind, Plan};
pub use shrink::shrink;

use crate::history::{Checker, Event, History, Verdict, What, check};
use machine::{Log, Machine, lock_name};
use plan::{DAY, LEASE, LOCKS, PERMITS};
use process::{POOL, Process};
use replicas::Replicas;
use survival::Survival;
use troubles::Fleet;

/// The result of a world.
#[derive(Debug)]
pub struct Outcome {
    /// The history.
    pub history: History,
    /// Violations without an excuse.
    pub complaints: Vec<Verdict>,
}

impl Outcome {
    /// Returns the number of granted locks.
    #[must_use]
    pub fn grants(&self) -> usize {
        self.history.events.iter().filter(|event| matches!(event.what, What::Granted { .. })).count()
    }

    /// Returns a hash that is equal for equal histories on any machine. Random identities count by the order in which they appear.
    #[must_use]
    pub fn hash(&self) -> u64 {
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        for byte in self.lines().iter().flat_map(|line| line.bytes()) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        hash
    }

    /// Returns the history, line by line.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let mut known = BTreeMap::new();
        self.history.events.iter().map(|event| portable(&event.to_string(), &mut known)).collect()
    }
}

/// Runs a world.
///
/// # Panics
///
/// If the world cannot be made, or if a task in it panics. A panic is a finding, too.
#[must_use]
pub fn run(plan: &Plan) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .on_thread_park(standstill::before_sleep)
        .on_thread_unpark(standstill::after_sleep)
        .build();
    let runtime = runtime.expect("a runtime without a thread of its own");
    process::seed_the_library(plan.seed);
    let events = LocalSet::new().block_on(&runtime, world(plan));
    let history = History::merge(events);
    // A failover may lose the queue of a fair lock, and the waiters queue again.
    let keeps_order = plan.survival.is_none();
    let counts =
        |verdict: &Verdict| verdict.excuse.is_none() && (keeps_order || verdict.checker != Checker::Order);
    let mut complaints: Vec<_> = check(&history).into_iter().filter(counts).collect();
    if plan.survival.as_ref().is_some_and(|survival| survival.is_calm) {
        complaints.extend(survival::losses(&history));
    }
    Outcome { history, complaints }
}

async fn world(plan: &Plan) -> Vec<Event> {
    let machines = Machine::all(plan);
    for machine in &machines {
        machine.change(|server| server.store.make = plan.make());
    }
    let Some(machine) = machines.first() else { return Vec::new() };
    let log = machine.log.clone();
    let in_the_way = if plan.kind == Kind::Fair { DEAD_HEAD } else { 0 };
    log.note(
        "",
        What::Setup {
            longest: in_the_way.max(2 * LEASE) * MILLISECOND,
            patience: plan.patience() * MILLISECOND,
            wake: if plan.kind == Kind::Quorum { WAKE_OF_MANY } else { WAKE } * MILLISECOND,
        },
    );
    match plan.kind {
        Kind::Fair => log.note("", What::Watched),
        Kind::Quorum => log.note("", What::Majority),
        kind if kind.is_pool() => log.note(POOL, What::Pool { permits: PERMITS }),
        _ => {}
    }
    let fleet = Rc::new(Fleet::default());
    let replicas = match &plan.survival {
        Some(survival) => Some(start_surviving(plan, survival, &machines, &fleet).await),
        None => {
            for number in 1..=plan.processes {
                let process = Process::start(number, plan, &machines).await;
                fleet.borrow_mut().push(process);
            }
            None
        }
    };
    for process in fleet.borrow().iter() {
        process.fleet.replace(Rc::downgrade(&fleet));
    }
    let first = fleet.borrow().first().cloned();
    fill_the_pool(plan, first.as_ref()).await;
    for machine in &machines {
        machine.change(|server| {
            server.faults.latency = plan.latency;
            server.faults.messages_last = plan.messages_last;
            server.faults.hurries = plan.hurries;
            server.set_trickle(plan.trickle);
        });
        if plan.trickle.is_some() {
            let machine = Arc::clone(machine);
            spawn_local(async move { machine.host.take_turns().await });
        }
    }
    if plan.observed {
        fleet.borrow().iter().for_each(Process::observe);
    }
    let begin = Instant::now();
    let end = log.now() + DAY * MILLISECOND;
    fleet.borrow().iter().for_each(|process| begin_tasks(plan, process, end));
    let joining = plan.survival.clone().zip(replicas.clone()).map(|(survival, replicas)| {
        spawn_local(join(plan.clone(), survival, replicas, Rc::clone(&fleet), end))
    });
    let foreigners = (1..).zip(&plan.foreigners).map(|(number, foreigner)| {
        spawn_local(foreigner::come(number, foreigner.clone(), Arc::clone(machine)))
    });
    let foreigners: Vec<_> = foreigners.collect();
    let day = {
        let (plan, fleet, machines) = (plan.clone(), Rc::clone(&fleet), machines.clone());
        let replicas = replicas.clone();
        spawn_local(async move { troubles::happen(&plan, &fleet, &machines, replicas, begin).await })
    };
    sleep_until(begin + Duration::from_millis(DAY)).await;
    day.await.expect("troubles end");
    if let Some(joining) = joining {
        joining.await.expect("all processes have started");
    }
    let fleet = fleet.borrow().clone();
    let machines = match &replicas {
        Some(replicas) => vec![Arc::clone(replicas.primary())],
        None => machines.clone(),
    };
    for foreigner in foreigners {
        foreigner.await.expect("a foreigner leaves");
    }
    log.note("", What::Healed);
    let opener = (plan.kind == Kind::Latch).then(|| spawn_local(latches::open_all(Arc::clone(machine))));
    for process in &fleet {
        let tasks = std::mem::take(&mut *process.tasks.borrow_mut());
        let all = async {
            for task in tasks {
                match task.await {
                    Err(ended) if ended.is_panic() => std::panic::resume_unwind(ended.into_panic()),
                    _ => {}
                }
            }
        };
        // A process that is not done by then does not end, and the checkers report that.
        let is_done = timeout(Duration::from_millis(ENDLESS), all).await.is_ok();
        if is_done && !process.is_dead.get() {
            log.record(process.number, 0, 0, "", What::Finished);
        }
    }
    if let Some(opener) = opener {
        opener.abort();
        latches::count(machine);
    }
    if plan.observed {
        ask_observers(&fleet, &log).await;
    }
    probe(plan, &fleet, &machines, &log).await;
    log.take()
}

/// Starts the processes and servers of a fleet whose locks survive failovers. Returns when they are ready.
async fn start_surviving(
    plan: &Plan,
    survival: &Survival,
    machines: &[Arc<Machine>],
    fleet: &Fleet,
) -> Rc<Replicas> {
    let replicas = Replicas::start(machines.to_vec(), survival);
    let start = |number| Process::start_surviving(number, plan, survival, &replicas);
    fleet.borrow_mut().extend((1..=plan.processes).map(start));
    let began = Instant::now();
    while !fleet.borrow().iter().all(|process| process.is_ready()) {
        assert!(began.elapsed() < Duration::from_millis(survival.bound()), "a new fleet gets ready");
        sleep(Duration::from_millis(1)).await;
    }
    replicas
}

/// Starts the tasks of a process.
fn begin_tasks(plan: &Plan, process: &Rc<Process>, end: u64) {
    for (number, task) in (1..).zip(&plan.tasks).filter(|(_, task)| task.process == process.number) {
        let running = Rc::clone(process).task(number, task.steps.clone(), end);
        process.tasks.borrow_mut().push(spawn_local(process.gate.behind(running)));
    }
}

/// Starts further processes. Each begins its tasks when it is ready.
async fn join(plan: Plan, survival: Survival, replicas: Rc<Replicas>, fleet: Rc<Fleet>, end: u64) {
    let begin = Instant::now();
    let mut joins = survival.joins.clone();
    joins.sort_unstable();
    for (number, at) in (plan.processes + 1..).zip(joins) {
        sleep_until(begin + Duration::from_millis(at)).await;
        let process = Process::start_surviving(number, &plan, &survival, &replicas);
        fleet.borrow_mut().push(Rc::clone(&process));
        let (plan, bound) = (plan.clone(), survival.bound());
        spawn_local(async move {
            let began = Instant::now();
            while !process.is_ready() && began.elapsed() < Duration::from_millis(bound) {
                sleep(Duration::from_millis(1)).await;
            }
            begin_tasks(&plan, &process, end);
        });
    }
}

async fn fill_the_pool(plan: &Plan, process: Option<&Rc<Process>>) {
    let Some(process) = process else { return };
    let permits = u32::try_from(PERMITS).unwrap_or_default();
    let filled = match plan.kind {
        Kind::Permits => process.locks.permit_semaphore(POOL).try_set_permits(permits).await,
        Kind::Semaphore => process.locks.semaphore(POOL).try_set_permits(permits).await,
        _ => return,
    };
    assert!(filled.expect("nothing is wrong yet"), "the pool is new");
    if let Some(survival) = &plan.survival {
        // A replica that is promoted without the semaphore grants no permit.
        let lag = survival.lags.iter().max().copied().unwrap_or_default();
        sleep(Duration::from_millis(4 * lag)).await;
    }
}

/// Checks that no process leads when all operations have ended, and that the observers know it.
async fn ask_observers(fleet: &[Rc<Process>], log: &Log) {
    sleep(Duration::from_millis(2 * LEASE + UNHEARD)).await;
    for process in fleet {
        process.observe_no_more();
        if process.is_dead.get() || process.is_shut.get() {
            continue;
        }
        let seen = process.seen.borrow();
        let astray = (0..LOCKS).filter(|number| seen.get(number) != Some(&0)).count();
        let found = u64::try_from(astray).unwrap_or(u64::MAX);
        let name = "elections in which an observer sees a leader".to_owned();
        log.record(process.number, 0, 0, "", What::Probe { name, found, allowed: 0 });
    }
}

/// Counts the leftovers when all operations have ended.
async fn probe(plan: &Plan, fleet: &[Rc<Process>], machines: &[Arc<Machine>], log: &Log) {
    // The hold of a killed process lasts until its lease ends, and a subscription lasts a little longer.
    sleep(Duration::from_millis(LINGER + 2 * LEASE)).await;
    let told = |process: u32, name: &str, found: u64| {
        log.record(process, 0, 0, "", What::Probe { name: name.to_owned(), found, allowed: 0 });
    };
    for process in fleet.iter().filter(|process| !process.is_dead.get()) {
        let count = || {
            let mut found =
                [("requests in flight", 0), ("bytes queued", 0), ("locks held", 0), ("waiters", 0)];
            for locks in &process.managers {
                let (stats, metrics) = (locks.client().stats(), locks.metrics());
                let count = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
                let more = [count(stats.in_flight), count(stats.queued_bytes), metrics.held, metrics.waiting];
                found.iter_mut().zip(more).for_each(|((_, found), more)| *found += more);
            }
            found
        };
        // A connection pings its server from time to time.
        for _ in 0..LOOKS {
            if count().iter().all(|(_, found)| *found == 0) {
                break;
            }
            sleep(Duration::from_millis(1 + 2 * plan.latency)).await;
        }
        count().iter().for_each(|(name, found)| told(process.number, name, *found));
    }
    let (mut holders, mut channels) = (0, 0);
    for machine in machines {
        // Makes the server notice closed connections. Where bytes trickle, it takes its turn only while this task sleeps.
        machine.change(|_| {});
        if machine.change(|server| !server.store.channels.is_empty()) {
            sleep(Duration::from_millis(1)).await;
        }
        machine.change(|server| {
            // A latch does not have an owner, and may stay set.
            let locks: Vec<String> = (0..LOCKS).map(lock_name).filter(|_| plan.kind != Kind::Latch).collect();
            holders += server.store.holds().filter(|(key, ..)| locks.iter().any(|lock| lock == key)).count();
            channels += server.store.channels.len();
        });
    }
    if plan.is_in_order() {
        let late = |machine: &Arc<Machine>| machine.change(|server| late_renewals(&server.store.log).len());
        let late = machines.iter().map(late).sum::<usize>();
        told(0, "renewals after a release", u64::try_from(late).unwrap_or(u64::MAX));
    }
    told(0, "holders on the server", u64::try_from(holders).unwrap_or(u64::MAX));
    if fleet.iter().all(|process| !process.is_dead.get()) {
        told(0, "channels listened to", u64::try_from(channels).unwrap_or(u64::MAX));
    }
    let asks = fleet.iter().find(|process| !process.is_shut.get());
    if let Some(process) = asks.filter(|_| plan.kind == Kind::Semaphore) {
        let free = process.locks.semaphore(POOL).available().await.unwrap_or_default();
        let astray = (free - i64::try_from(PERMITS).unwrap_or_default()).unsigned_abs();
        told(0, "permits missing or too many", astray);
    }
}

/// Replaces the random identities in a line of a history by numbers.
fn portable(line: &str, known: &mut BTreeMap<String, usize>) -> String {
    let mut text = String::with_capacity(line.len());
    for word in line.split_inclusive([' ', ':']) {
        let bare = word.trim_end_matches([' ', ':']);
        let is_random = (bare.len() == 36 && bare.matches('-').count() == 4)
            || (bare.len() == 32 && bare.bytes().all(|byte| byte.is_ascii_hexdigit()));
        if is_random {
            let next = known.len();
            let number = *known.entry(bare.to_owned()).or_insert(next);
            text.push_str(&format!("#{number}"));
            text.push_str(&word[bare.len()..]);
        } else {
            text.push_str(word);
        }
    }
    text
}

const MILLISECOND: u64 = 1_000_000;
/// The time within which a release reaches a waiter when no fault is active.
const WAKE: u64 = 200;
/// The same time for a quorum. Several servers have to reply, and conflicting waiters back off for random times.
const WAKE_OF_MANY: u64 = 1_000;
/// The time that a dead waiter of a fair lock blocks others.
const DEAD_HEAD: u64 = 5_000;
/// The time within which an observer makes up for a lost message, and gets its reply.
const UNHEARD: u64 = 6_000;
/// A world that takes longer than this does not end.
const ENDLESS: u64 = 120_000;
/// The number of checks that a process is quiet.
const LOOKS: u32 = 50;
/// Longer than a subscription lasts after its last waiter.
const LINGER: u64 = 2_500;
