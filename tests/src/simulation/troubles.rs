//! The faults of a world.
//!
//! Each fault begins and ends in the log, under its name for the checkers.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::spawn_local;
use tokio::time::{Instant, advance, sleep, sleep_until, timeout};
use wheellock::testing::server::{Cut, How, Server};

use super::foreigner::FOREIGN;
use super::machine::{Log, Machine, Way, lock_name};
use super::plan::{Kind, LEASE, LOCKS, Plan, Trouble, Wrong};
use super::process::Process;
use super::replicas::Replicas;
use super::survival;
use crate::history::{Fault, Kind as Asked, Outcome, What};

/// The processes of a world. More of them may start later.
pub(super) type Fleet = RefCell<Vec<Rc<Process>>>;

/// Runs all faults of the plan, and returns at the end of the last fault.
pub(super) async fn happen(
    plan: &Plan,
    fleet: &Fleet,
    machines: &[Arc<Machine>],
    replicas: Option<Rc<Replicas>>,
    begin: Instant,
) {
    let (mut under_way, shared) = (Vec::new(), Rc::new(plan.clone()));
    for trouble in &plan.troubles {
        sleep_until(begin + Duration::from_millis(trouble.at)).await;
        let (plan, trouble) = (Rc::clone(&shared), trouble.clone());
        // The server of the fault. A lock is always freed by force on the first server.
        let place = match trouble.what {
            Wrong::Forced(..) => 0,
            _ => usize::try_from(trouble.at % plan.kind.servers()).unwrap_or_default(),
        };
        let Some(machine) = machines.get(place) else { continue };
        let machine = replicas.as_ref().map_or(machine, |replicas| replicas.primary());
        let (fleet, machine, replicas) = (fleet.borrow().clone(), Arc::clone(machine), replicas.clone());
        under_way.push(spawn_local(async move {
            match replicas {
                Some(replicas) if survival::is_of_replicas(&trouble.what) => {
                    survival::happens(&plan, &trouble, &fleet, &replicas).await;
                }
                _ => happens(&plan, &trouble, &fleet, &machine).await,
            }
        }));
    }
    for trouble in under_way {
        trouble.await.expect("a trouble ends");
    }
}

async fn happens(plan: &Plan, trouble: &Trouble, fleet: &[Rc<Process>], machine: &Arc<Machine>) {
    let (kind, latency, log) = (plan.kind, plan.latency, &machine.log);
    let lasts = Duration::from_millis(trouble.lasts);
    let named = |number: u32| fleet.iter().find(|process| process.number == number);
    let Some(fault) = fault(&trouble.what, plan.durable) else {
        match trouble.what {
            Wrong::Stopped => {
                let ours =
                    fleet.iter().filter(|process| !process.is_dead.get()).map(|process| process.number);
                let others = (FOREIGN + 1..).zip(&plan.foreigners).map(|(number, _)| number);
                stand_still(lasts, &ours.chain(others).collect::<Vec<_>>(), log).await;
            }
            Wrong::Killed(number) => {
                if let Some(process) = named(number).filter(|process| !process.is_dead.get()) {
                    process.kill();
                }
            }
            _ => {}
        }
        return;
    };
    log.note("", What::Begins { fault, detail: format!("{:?}", trouble.what) });
    let replaced = matches!(trouble.what, Wrong::FailedOver);
    if replaced {
        log.note("", What::Begins { fault: Fault::Replaced, detail: String::new() });
    }
    match &trouble.what {
        Wrong::Broken(how) => machine.change(|server| server.end(*how)),
        Wrong::Cut(side, after, how) => {
            machine.change(|server| {
                server.faults.cut = Some(Cut { side: *side, after: *after, how: *how });
            });
            sleep(lasts).await;
            machine.change(|server| server.faults.cut = None);
        }
        Wrong::AnswersLost(calls) => {
            machine.change(|server| {
                server.faults.losses = Some((0, *calls, How::Rst));
            });
            sleep(lasts).await;
            machine.change(|server| server.faults.losses = None);
        }
        Wrong::Late(after, how) => {
            machine.change(|server| server.faults.delay = Some((*after, *how)));
            sleep(lasts).await;
            let late = machine.change(|server| {
                server.faults.delay = None;
                server.read_late()
            });
            if late > 0 && !kind.is_counted() {
                haunt(log);
            }
        }
        Wrong::FailedOver => {
            machine.change(|server| server.replica = Some(server.store.snapshot()));
            sleep(lasts).await;
            machine.change(Server::fail_over);
        }
        Wrong::Unacknowledged => {
            machine.change(|server| server.faults.replica_acks = false);
            sleep(lasts).await;
            machine.change(|server| server.faults.replica_acks = true);
        }
        Wrong::Silent => {
            machine.change(|server| server.faults.is_silent = true);
            sleep(lasts).await;
            machine.change(|server| server.faults.is_silent = false);
        }
        Wrong::Down { forgets } => {
            machine.host.network().set_down(true);
            machine.change(|server| server.end(How::Rst));
            sleep(lasts).await;
            machine.change(|server| {
                if *forgets {
                    server.store.forget_everything();
                } else {
                    // A restart deletes only the scripts.
                    server.store.execute(&["SCRIPT", "FLUSH"]);
                }
            });
            machine.host.network().set_down(false);
        }
        Wrong::Flushed => machine.change(|server| server.store.forget_everything()),
        Wrong::ScriptsFlushed => {
            machine.change(|server| server.store.execute(&["SCRIPT", "FLUSH"]));
        }
        Wrong::Refused(calls, text) => {
            machine.change(|server| server.faults.refusal = Some((*calls, text)));
            sleep(lasts).await;
            machine.change(|server| server.faults.refusal = None);
        }
        Wrong::Evicted(lock) => {
            machine.change(|server| server.store.execute(&["DEL", &lock_name(*lock)]));
        }
        Wrong::Forced(number, lock) => {
            if let Some(process) = named(*number).filter(|process| !process.is_dead.get()) {
                let name = lock_name(*lock);
                let lock = match kind {
                    Kind::Fair => process.locks.fair_lock(&name),
                    Kind::ReadWrite => process.locks.read_write_lock(&name).write(),
                    Kind::Simple => process.locks.simple_lock(&name),
                    Kind::Fenced => process.locks.fenced_lock(&name).as_lock().clone(),
                    _ => process.locks.lock(&name),
                };
                let is_done = lock.force_release().await.is_ok();
                // A request that the server has not read yet frees the lock when the server reads it.
                while !is_done && machine.change(|server| server.is_late()) {
                    sleep(Duration::from_millis(1)).await;
                }
            }
        }
        Wrong::ClockSet(by) => {
            machine.host.set_clock_by(*by);
            sleep(Duration::from_millis(2 * LEASE)).await;
        }
        Wrong::Parted(number) => {
            if let Some(process) = named(*number).filter(|process| !process.is_dead.get()) {
                process.ways.iter().for_each(Way::shut);
                sleep(lasts).await;
                if !process.is_dead.get() {
                    process.ways.iter().for_each(Way::open);
                }
            }
        }
        Wrong::Slow(by) => {
            machine.change(|server| server.faults.latency = latency + by);
            sleep(lasts).await;
            machine.change(|server| server.faults.latency = latency);
        }
        Wrong::ShutDown(number) => {
            // A process that stands still does not shut down, and does not continue to.
            let runs = |process: &&Rc<Process>| !process.is_dead.get() && process.gate.is_open();
            if let Some(process) = named(*number).filter(runs) {
                // The clock of a process that dies meanwhile stands still.
                let _ended = timeout(SHUTDOWN, process.gate.behind(process.shut_down())).await;
            }
        }
        Wrong::Killed(_) | Wrong::Stopped | Wrong::Halted(_) | Wrong::Switched(_) | Wrong::CutOff(_) => {}
    }
    if replaced {
        log.note("", What::Ends { fault: Fault::Replaced });
    }
    log.note("", What::Ends { fault });
}

/// Lets time pass without polling any task. Then all tasks that were due run, in any order.
async fn stand_still(lasts: Duration, processes: &[u32], log: &Log) {
    let all = |what: What| processes.iter().for_each(|number| log.record(*number, 0, 0, "", what.clone()));
    all(What::Stopped);
    advance(lasts).await;
    all(What::Continued);
}

/// Records a ghost waiter. A late request may be one that its caller has retried. Its caller does not know the lease that begins now, or
/// the mark that a waiting writer leaves for readers. For the checkers, a process sent the request and then died.
fn haunt(log: &Log) {
    for (number, lock) in (0..LOCKS).map(|number| (number, lock_name(number))) {
        let record = |what| log.record(GHOST, 0, log.now() + number, &lock, what);
        record(What::Invoked {
            kind: Asked::Acquire,
            renewed: false,
            lease: LEASE * 1_000_000,
            deadline: None,
            owner: String::new(),
            shared: false,
        });
        record(What::Failed { outcome: Outcome::MaybeExecuted, text: "came late".to_owned() });
    }
}

/// A shutdown takes less time than this.
const SHUTDOWN: Duration = Duration::from_secs(5);
/// A number that is not a process of the fleet.
const GHOST: u32 = 99;

/// Returns the fault's name for the checkers. A kill or stop is recorded for its process instead.
fn fault(what: &Wrong, durable: bool) -> Option<Fault> {
    Some(match what {
        Wrong::Broken(_) | Wrong::Cut(..) | Wrong::AnswersLost(_) | Wrong::Parted(_) | Wrong::ShutDown(_) => {
            Fault::Cut
        }
        Wrong::Late(..) | Wrong::Refused(..) | Wrong::Slow(_) | Wrong::Unacknowledged => Fault::Slow,
        Wrong::Silent => Fault::Silent,
        Wrong::Down { forgets: false } => Fault::Down,
        // The replica has all acknowledged writes.
        Wrong::FailedOver if durable => Fault::Down,
        Wrong::FailedOver | Wrong::Down { forgets: true } | Wrong::Flushed => Fault::Forgot,
        Wrong::ScriptsFlushed => Fault::Flushed,
        Wrong::Evicted(_) | Wrong::Forced(..) => Fault::Evicting,
        Wrong::ClockSet(_) => Fault::Clock,
        Wrong::Killed(_) | Wrong::Stopped | Wrong::Halted(_) | Wrong::Switched(_) | Wrong::CutOff(_) => {
            return None;
        }
    })
}
