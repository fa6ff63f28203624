//! Plans of fleets whose locks survive failovers.

use std::collections::HashSet;
use std::rc::Rc;
use std::time::Duration;

use tokio::time::sleep;
use wheellock::testing::server::How;

use super::plan::{DAY, Kind, LEASE, Manner, Plan, Step, Task, Trouble, Wrong, pick, u32_below, usize_below};
use super::process::Process;
use super::replicas::Replicas;
use crate::fault::Random;
use crate::history::{Checker, Event, Fault, History, Kind as Asked, Verdict, What};

/// The fleet's numbers, and its servers. All times are milliseconds.
#[derive(Clone, Debug)]
pub(super) struct Survival {
    pub(super) servers: usize,
    pub(super) window: u64,
    /// The response timeout.
    pub(super) patience: u64,
    pub(super) may_be_new: bool,
    /// Time that data takes to each replica.
    pub(super) lags: Vec<u64>,
    /// Starts of further processes. Their numbers follow those of the first processes.
    pub(super) joins: Vec<u64>,
    /// True if only servers crash and processes are alive, so that no hold is lost.
    pub(super) is_calm: bool,
}

/// A failover, or a restart of the primary. All times are milliseconds.
#[derive(Clone, Debug)]
pub(super) struct Switch {
    pub(super) end: End,
    /// The first replica that is considered as the new primary.
    pub(super) to: usize,
    /// Time before the end in which no replica gets data.
    pub(super) behind: u64,
    pub(super) promoted_after: u64,
    /// Time until the other replicas follow the new primary.
    pub(super) followed: Vec<u64>,
    /// Time until each process uses the new primary.
    pub(super) noticed: Vec<u64>,
    /// Time until the old primary is back, after the promotion.
    pub(super) resumes_after: u64,
    /// Time after that until it becomes a replica.
    pub(super) demoted_after: u64,
    /// The demotion leaves connections open.
    pub(super) keeps_connections: bool,
    /// A crashed primary comes back without data.
    pub(super) returns_empty: bool,
}

/// The end of a primary.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    /// It crashes.
    Crash,
    /// It stops, and continues later.
    Stop,
    /// It goes on beside the new primary.
    Split,
    /// It restarts, and stays the primary.
    Restart { forgets: bool },
}

impl Survival {
    /// Returns the longest lease of the fleet.
    pub(super) fn longest_lease(&self) -> u64 {
        LEASE
    }

    /// Returns the time after which a settled fleet grants locks again.
    pub(super) fn bound(&self) -> u64 {
        let lag = self.lags.iter().max().copied().unwrap_or_default();
        (self.longest_lease() + self.window) * 101 / 100
            + self.window / 3
            + 4 * lag
            + 4 * self.patience
            + 1_000
    }
}

impl Plan {
    /// Makes the plan of a fleet whose locks survive failovers. The seed chooses the kind of locks, unless it is given.
    pub(super) fn surviving(seed: u64, kind: Option<Kind>) -> Self {
        let mut random = Random::new(seed ^ 0x00FA_110E_E125_u64.rotate_left(31));
        let _first_of_similar_seeds_is_similar = random.number();
        let drawn = pick(&mut random, &Kind::SURVIVING);
        let kind = kind.unwrap_or(drawn);
        let mut plan = Self::narrow(random.number(), Some(kind));
        (plan.seed, plan.hurries) = (seed, true);
        plan.processes = 2 + u32_below(&mut random, 2);
        plan.latency = pick(&mut random, &[0, 0, 1, 3]);
        plan.trickle = pick(&mut random, &[None, None, None, Some(150)]);
        let servers = pick(&mut random, &[3, 3, 3, 3, 2, 1]);
        // Four times the longest is less than a sixth of the window, for which a refresh waits for a replica.
        let lags: Vec<u64> = (0..servers).map(|_| pick(&mut random, &[1, 1, 1, 2, 5, 6])).collect();
        let mut survival = Survival {
            servers,
            window: pick(&mut random, &[160, 300]),
            patience: pick(&mut random, &[80, 150]),
            may_be_new: random.below(4) > 0,
            lags,
            joins: (0..pick(&mut random, &[0, 0, 1, 2])).map(|_| random.below(DAY - 1_000)).collect(),
            is_calm: random.below(4) == 0,
        };
        if survival.is_calm {
            (survival.window, survival.patience) = (160, 80);
            survival.joins.clear();
            survival.lags.iter_mut().for_each(|lag| *lag = 1 + *lag % 2);
            plan.latency = plan.latency.min(1);
            plan.trickle = None;
        }
        let all = plan.processes + u32::try_from(survival.joins.len()).unwrap_or_default();
        plan.tasks.clear();
        for process in 1..=all {
            for _ in 0..1 + random.below(3) {
                let steps = (0..2 + random.below(9)).map(|_| surviving_step(&mut random, kind)).collect();
                plan.tasks.push(Task { process, steps });
            }
        }
        plan.troubles.clear();
        let mut switches = Vec::new();
        for _ in 0..1 + random.below(3) {
            let at = 50 + random.below(DAY - 600);
            let switch = Switch::drawn(&mut random, &survival);
            switches.push(at + switch.behind + switch.promoted_after);
            if matches!(switch.end, End::Restart { forgets: true }) || switch.returns_empty {
                survival.may_be_new = false;
            }
            plan.troubles.push(Trouble { at, lasts: 1, what: Wrong::Switched(switch) });
        }
        for _ in 0..if survival.is_calm { 0 } else { random.below(5) } {
            let near = pick(&mut random, &switches);
            let at = if random.below(3) > 0 { near + random.below(300) } else { random.below(DAY) };
            let most = pick(&mut random, &[100, 500, 1_500]);
            plan.troubles.push(Trouble {
                at: at.saturating_sub(random.below(150)).min(DAY - 500),
                lasts: 1 + random.below(most),
                what: disturbance(&mut random, all, &survival),
            });
        }
        plan.survival = Some(survival);
        if seed % 2 == 1 {
            plan.tighten(&mut random);
        }
        plan.troubles.retain(|trouble| !trouble.what.is_left_out(kind));
        plan.troubles.sort_by_key(|trouble| trouble.at);
        if kind.is_pool() {
            plan.keep_semaphores();
            plan.take_several(seed);
        }
        if plan.troubles.iter().any(|trouble| matches!(trouble.what, Wrong::Late(..))) {
            // A late release of an owner that has taken the lock again frees the new hold.
            plan.tasks.iter_mut().flat_map(|task| &mut task.steps).for_each(|step| step.presents = false);
        }
        plan
    }

    /// Lets every restarted server keep its data. A lost semaphore has no total, so no process could acquire its permits.
    fn keep_semaphores(&mut self) {
        for trouble in &mut self.troubles {
            let Wrong::Switched(switch) = &mut trouble.what else { continue };
            switch.returns_empty = false;
            if let End::Restart { forgets } = &mut switch.end {
                *forgets = false;
            }
        }
    }

    /// Lets all tasks want one lock for long, and lets most faults happen near a failover that some of the others notice late.
    fn tighten(&mut self, random: &mut Random) {
        let Some(survival) = &mut self.survival else { return };
        survival.is_calm = false;
        survival.servers = pick(random, &[3, 3, 3, 2]);
        survival.lags = (0..survival.servers).map(|_| 1 + random.below(3)).collect();
        self.latency = pick(random, &[0, 1, 3, 20]);
        self.processes = 2 + u32_below(random, 2);
        let all = self.processes + u32::try_from(survival.joins.len()).unwrap_or_default();
        self.tasks.clear();
        for process in 1..=all {
            for _ in 0..1 + random.below(2) {
                let steps = (0..8).map(|_| tight_step(random, self.kind)).collect();
                self.tasks.push(Task { process, steps });
            }
        }
        self.troubles.clear();
        let mut at = 300 + random.below(400);
        for _ in 0..2 {
            let switch = Switch::tight(random, survival);
            if matches!(switch.end, End::Restart { forgets: true }) || switch.returns_empty {
                survival.may_be_new = false;
            }
            let promotion = at + switch.behind + switch.promoted_after;
            self.troubles.push(Trouble { at, lasts: 1, what: Wrong::Switched(switch) });
            for _ in 0..random.below(3) {
                let what = match random.below(8) {
                    0..3 => Wrong::Halted(1 + u32_below(random, all)),
                    3 | 4 => Wrong::Late(usize_below(random, 4), How::Rst),
                    5 => Wrong::Broken(How::Rst),
                    6 => Wrong::Slow(10 + random.below(200)),
                    _ => Wrong::Killed(1 + u32_below(random, all)),
                };
                let at = (promotion + random.below(150)).saturating_sub(random.below(150));
                self.troubles.push(Trouble { at, lasts: 50 + random.below(1_200), what });
            }
            at = promotion + 200 + random.below(1_300);
        }
        if random.below(3) == 0 {
            survival.joins = vec![at.saturating_sub(random.below(600))];
        }
    }
}

fn tight_step(random: &mut Random, kind: Kind) -> Step {
    let long = random.below(3) > 0;
    Step {
        pause: random.below(60),
        lock: 0,
        manner: Manner::Acquire,
        lease: None,
        give_up: None,
        hold: if long { 200 + random.below(1_000) } else { random.below(60) },
        again: false,
        renews: false,
        ..Step::drawn(random, kind)
    }
}

fn surviving_step(random: &mut Random, kind: Kind) -> Step {
    let mut step = Step { lease: None, ..Step::drawn(random, kind) };
    if step.manner != Manner::Run && random.below(100) < 15 {
        step.lease = Some(pick(random, &[LEASE / 2, LEASE]));
    }
    if random.below(2) == 0 {
        step.hold = random.below(2 * LEASE);
    }
    step
}

fn disturbance(random: &mut Random, processes: u32, survival: &Survival) -> Wrong {
    let how = pick(random, &[How::Fin, How::Rst]);
    let process = 1 + u32_below(random, processes);
    match random.below(14) {
        0..5 => Wrong::Halted(process),
        5 => Wrong::Killed(process),
        6 => Wrong::Parted(process),
        7 => Wrong::Broken(how),
        8 => Wrong::AnswersLost(1 + usize_below(random, 3)),
        9 | 10 => Wrong::Late(usize_below(random, 6), how),
        11 => Wrong::Slow(10 + random.below(200)),
        12 => Wrong::ShutDown(process),
        _ => Wrong::CutOff(usize_below(random, survival.servers as u64)),
    }
}

impl Switch {
    /// Returns a failover that each process and server notices at once or late.
    fn tight(random: &mut Random, survival: &Survival) -> Self {
        let mut sooner_or_later = |soon: u64, late: u64| match random.below(2) {
            0 => random.below(soon),
            _ => late / 3 + random.below(late),
        };
        let (behind, promoted_after) =
            (sooner_or_later(10, survival.window * 3 / 4), sooner_or_later(10, 200));
        let followed = (0..survival.servers).map(|_| sooner_or_later(10, 800)).collect();
        let noticed = (0..6).map(|_| sooner_or_later(40, 900)).collect();
        let (resumes_after, demoted_after) = (sooner_or_later(20, 900), sooner_or_later(20, 900));
        let ends = [End::Split, End::Split, End::Split, End::Stop, End::Stop, End::Crash];
        Self {
            end: if random.below(12) == 0 { End::Restart { forgets: true } } else { pick(random, &ends) },
            to: usize_below(random, survival.servers as u64),
            behind,
            promoted_after,
            followed,
            noticed,
            resumes_after,
            demoted_after,
            keeps_connections: random.below(2) == 0,
            returns_empty: random.below(6) == 0,
        }
    }

    fn drawn(random: &mut Random, survival: &Survival) -> Self {
        let (is_calm, servers) = (survival.is_calm, survival.servers);
        let forgets = random.below(2) == 0;
        let end = match random.below(12) {
            _ if servers == 1 => End::Restart { forgets },
            0 => End::Restart { forgets },
            1..6 => End::Crash,
            _ if is_calm => End::Crash,
            6..9 => End::Stop,
            _ => End::Split,
        };
        let mut up_to = |most: u64| {
            let most = pick(random, &[1, most / 10, most]);
            random.below(most.max(1))
        };
        let most = if is_calm { 20 } else { 1_000 };
        Self {
            end,
            behind: up_to(if is_calm { 50 } else { survival.window }),
            promoted_after: up_to(if is_calm { 30 } else { 400 }),
            followed: (0..servers).map(|_| up_to(most)).collect(),
            noticed: (0..6).map(|_| up_to(most)).collect(),
            resumes_after: up_to(if is_calm { 20 } else { 1_200 }),
            demoted_after: up_to(most),
            to: usize_below(random, servers as u64),
            keeps_connections: random.below(2) == 0,
            returns_empty: random.below(6) == 0,
        }
    }
}

/// Returns true if the fault concerns the replicas, or a process that stands still.
pub(super) fn is_of_replicas(what: &Wrong) -> bool {
    matches!(what, Wrong::Switched(_) | Wrong::CutOff(_) | Wrong::Halted(_))
}

/// Lets such a fault happen, and records it.
pub(super) async fn happens(plan: &Plan, trouble: &Trouble, fleet: &[Rc<Process>], replicas: &Rc<Replicas>) {
    let (log, lasts) = (&replicas.primary().log.clone(), Duration::from_millis(trouble.lasts));
    let begins = |fault: Fault| {
        log.note("", What::Begins { fault, detail: format!("{:?}", trouble.what) });
    };
    let bound = plan.survival.as_ref().map_or(0, Survival::bound);
    match &trouble.what {
        Wrong::Switched(switch) => {
            begins(Fault::Down);
            begins(Fault::Replaced);
            replicas.switch(switch).await;
            log.note("", What::Ends { fault: Fault::Replaced });
            // The grace may last until all old leases have ended.
            sleep(Duration::from_millis(bound)).await;
            log.note("", What::Ends { fault: Fault::Down });
        }
        Wrong::CutOff(server) => {
            begins(Fault::Down);
            replicas.cut(*server, true);
            sleep(lasts).await;
            replicas.cut(*server, false);
            sleep(Duration::from_millis(bound)).await;
            log.note("", What::Ends { fault: Fault::Down });
        }
        Wrong::Halted(number) => {
            let is_it = |process: &&Rc<Process>| process.number == *number && !process.is_dead.get();
            let Some(process) = fleet.iter().find(is_it).filter(|process| process.gate.is_open()) else {
                return;
            };
            log.record(*number, 0, 0, "", What::Stopped);
            // Its refreshes and check-ins are missing, too.
            begins(Fault::Down);
            process.gate.close();
            sleep(lasts).await;
            if !process.is_dead.get() {
                process.gate.open();
                log.record(*number, 0, 0, "", What::Continued);
            }
            sleep(Duration::from_millis(bound)).await;
            log.note("", What::Ends { fault: Fault::Down });
        }
        _ => {}
    }
}

/// Finds renewed holds that were lost, though all processes were alive and connected.
pub(super) fn losses(history: &History) -> Vec<Verdict> {
    let events = history.events.iter().enumerate();
    let renewed: HashSet<(u32, u64)> = events
        .clone()
        .filter(|(_, event)| matches!(event.what, What::Invoked { renewed: true, kind, .. } if kind != Asked::Again))
        .map(|(_, event)| (event.process, event.op))
        .collect();
    let lost = events.filter(|(_, event)| {
        matches!(event.what, What::Lost { .. } | What::AlreadyLost)
            && renewed.contains(&(event.process, event.op))
    });
    let verdict = |(place, event): (usize, &Event)| Verdict {
        checker: Checker::Honesty,
        text: format!("a living process has lost {:?} in a failover", event.lock),
        excuse: None,
        events: vec![place],
    };
    lost.map(verdict).collect()
}
