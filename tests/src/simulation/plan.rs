//! The plan of a simulated fleet, as a value.
//!
//! A seed determines the plan: the requests of each task, and the faults with their times.

use std::fmt;

use wheellock::testing::server::{How, Make, Side};

use super::give_up::GiveUp;
use super::limits::Limits;
use super::survival::{Survival, Switch};
use crate::fault::Random;

/// The kind of locks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// `lock`
    Plain,
    /// `lock`, taken repeatedly, so that tasks hand it over
    Hot,
    /// `fair_lock`
    Fair,
    /// `read_write_lock`
    ReadWrite,
    /// `fenced_lock`
    Fenced,
    /// `spin_lock`
    Spin,
    /// `simple_lock`
    Simple,
    /// `permit_semaphore`
    Permits,
    /// `semaphore`
    Semaphore,
    /// `election`
    Election,
    /// `multi_lock` of all locks, and `lock` of a single lock
    Set,
    /// `RedLockManager::lock`, on three independent servers
    Quorum,
    /// `count_down_latch`
    Latch,
    /// `lock`, taken repeatedly by a single process, beside visitors that subscribe or poll
    Visited,
    /// Any kind of lock that survives failovers, with `keep_locks_across_failovers`
    Surviving,
    /// `permit_semaphore` with `keep_locks_across_failovers`
    SurvivingPermits,
    /// Any kind of lock with minima, maxima and tickets
    Limited,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 17] = [
        Self::Plain,
        Self::Hot,
        Self::Fair,
        Self::ReadWrite,
        Self::Fenced,
        Self::Spin,
        Self::Simple,
        Self::Permits,
        Self::Semaphore,
        Self::Election,
        Self::Set,
        Self::Quorum,
        Self::Latch,
        Self::Visited,
        Self::Surviving,
        Self::SurvivingPermits,
        Self::Limited,
    ];
    /// The number of kinds that a seed chooses from. Including a later kind would change the fleet of every seed.
    const DRAWN: usize = 12;
    /// The kinds of locks that survive failovers. A fleet of [`Kind::Surviving`] has locks of one of these kinds.
    pub(super) const SURVIVING: [Self; 5] =
        [Self::Plain, Self::Fair, Self::ReadWrite, Self::Fenced, Self::Simple];

    /// The kinds of locks that have limits or tickets. A fleet of [`Kind::Limited`] has locks of one of these kinds.
    pub(super) const LIMITED: [Self; 7] =
        [Self::Plain, Self::Hot, Self::Fair, Self::ReadWrite, Self::Fenced, Self::Spin, Self::Simple];

    /// Returns the kind of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.to_string() == name)
    }

    /// Returns the number of servers.
    pub(super) fn servers(self) -> u64 {
        if self == Self::Quorum { 3 } else { 1 }
    }

    pub(super) fn is_pool(self) -> bool {
        matches!(self, Self::Permits | Self::Semaphore)
    }

    /// Returns true if the server keeps only a number, not the holders.
    pub(super) fn is_counted(self) -> bool {
        self.is_pool() || self == Self::Latch
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Plain => "plain",
            Self::Hot => "hot",
            Self::Fair => "fair",
            Self::ReadWrite => "read-write",
            Self::Fenced => "fenced",
            Self::Spin => "spin",
            Self::Simple => "simple",
            Self::Permits => "permits",
            Self::Semaphore => "semaphore",
            Self::Election => "election",
            Self::Set => "set",
            Self::Quorum => "quorum",
            Self::Latch => "latch",
            Self::Visited => "visited",
            Self::Surviving => "surviving",
            Self::SurvivingPermits => "surviving-permits",
            Self::Limited => "limited",
        })
    }
}

/// A fleet and its actions. All times are milliseconds.
#[derive(Clone, Debug)]
pub struct Plan {
    pub(super) seed: u64,
    /// The kind of locks.
    pub kind: Kind,
    pub(super) processes: u32,
    /// The time until a reply.
    pub(super) latency: u64,
    /// Bytes per turn and direction.
    pub(super) trickle: Option<usize>,
    /// True if only the beginning of long texts is slow. Otherwise the scripts that each connection loads would dominate.
    pub(super) hurries: bool,
    pub(super) messages_last: bool,
    pub(super) hand_over: u64,
    /// True if each server has a replica, and grants count when the replica has them.
    pub(super) durable: bool,
    /// True if every process observes the leaders.
    pub(super) observed: bool,
    pub(super) tasks: Vec<Task>,
    pub(super) troubles: Vec<Trouble>,
    pub(super) foreigners: Vec<Foreigner>,
    /// The fleet, if its locks survive failovers.
    pub(super) survival: Option<Survival>,
}

/// A client that takes a lock as Redisson does, without this library.
#[derive(Clone, Debug)]
pub(super) struct Foreigner {
    pub(super) at: u64,
    pub(super) lock: u64,
    /// The number of polls, one every ten milliseconds.
    pub(super) asks: u64,
    pub(super) hold: u64,
    /// True if the client ends without a release, so that its lease expires.
    pub(super) dies: bool,
}

/// The steps of a task, in order.
#[derive(Clone, Debug)]
pub(super) struct Task {
    pub(super) process: u32,
    pub(super) steps: Vec<Step>,
}

/// A step: an acquire and a release.
#[derive(Clone, Debug)]
pub(super) struct Step {
    /// The pause before the step.
    pub(super) pause: u64,
    pub(super) lock: u64,
    pub(super) manner: Manner,
    /// The fixed lease; without it, the watchdog's lease.
    pub(super) lease: Option<u64>,
    /// True to choose the owner beforehand.
    pub(super) presents: bool,
    /// True for a read hold.
    pub(super) shared: bool,
    pub(super) permits: u32,
    pub(super) give_up: Option<GiveUp>,
    pub(super) hold: u64,
    /// True to acquire again during the hold.
    pub(super) again: bool,
    /// True to renew by hand during the hold.
    pub(super) renews: bool,
    pub(super) give_back: GiveBack,
    pub(super) limits: Limits,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Manner {
    Acquire,
    Try,
    TryFor(u64),
    Run,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum GiveBack {
    Release,
    Drop,
    /// The future of the release is dropped at this number of `Pending`s.
    ReleaseAndDrop(usize),
}

/// A fault, its time and its length.
#[derive(Clone, Debug)]
pub(super) struct Trouble {
    pub(super) at: u64,
    pub(super) lasts: u64,
    pub(super) what: Wrong,
}

#[derive(Clone, Debug)]
pub(super) enum Wrong {
    /// All connections break.
    Broken(How),
    /// A connection breaks after this number of bytes.
    Cut(Side, usize, How),
    /// The server executes this number of calls. The connection breaks instead of delivering their replies.
    AnswersLost(usize),
    /// After this number of calls the connection breaks. The server executes the last call at the end of the fault.
    Late(usize, How),
    /// The server does not reply, and connections stay open.
    Silent,
    /// The server is down, and restarts with or without its data.
    Down {
        forgets: bool,
    },
    /// All data is deleted, without a message.
    Flushed,
    ScriptsFlushed,
    /// The server rejects this number of calls.
    Refused(usize, &'static str),
    /// A lock is deleted, without a message.
    Evicted(u64),
    /// This process frees a lock by force.
    Forced(u32, u64),
    /// The server's clock jumps by this number of milliseconds.
    ClockSet(i64),
    /// A process cannot reach the server.
    Parted(u32),
    /// A process ends without releases.
    Killed(u32),
    /// Replies take this much longer.
    Slow(u64),
    /// A process' manager is shut down while its tasks work.
    ShutDown(u32),
    /// During this time, a replica gets only writes that a client waits for. Then the replica takes over.
    FailedOver,
    /// Replicas do not acknowledge writes.
    Unacknowledged,
    /// All processes stand still, as if their machine did. The servers' clocks continue.
    Stopped,
    /// This process stands still, and others run.
    Halted(u32),
    /// A replica is promoted, or the primary restarts.
    Switched(Switch),
    /// A replica gets no data.
    CutOff(usize),
}

impl Wrong {
    /// Returns true if the server may execute requests in a different order than they were sent.
    fn reorders(&self) -> bool {
        matches!(self, Self::Late(..) | Self::Silent | Self::Switched(_))
    }

    pub(super) fn is_left_out(&self, kind: Kind) -> bool {
        match self {
            // The library does not restore a lost count; an operator would have to.
            Self::Down { forgets } => *forgets && kind.is_counted(),
            Self::Flushed | Self::Evicted(_) | Self::Forced(..) => kind.is_counted(),
            Self::Killed(_) => kind == Kind::Semaphore,
            // Counted permits do not have a lease or a loss notice. Their holders have to stop before their manager does.
            Self::ShutDown(_) => kind == Kind::Semaphore,
            // The library does not know of a release that was not replicated either. The servers of a quorum do not have successors.
            Self::FailedOver => matches!(kind, Kind::Semaphore | Kind::Quorum | Kind::Latch),
            // A late request stays in the queue of a fair lock until its deadline of five seconds has passed.
            Self::Late(..) => kind == Kind::Fair,
            _ => false,
        }
    }
}

/// The error replies of servers that reject all commands.
const REFUSALS: [&str; 5] = [
    "LOADING Redis is loading the dataset in memory",
    "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
    "OOM command not allowed when used memory > 'maxmemory'.",
    "READONLY You can't write against a read only replica.",
    "TRYAGAIN Multiple keys request during rehashing of slot",
];

/// The time when the last step begins and the last fault ends.
pub(super) const DAY: u64 = 3_000;
/// The watchdog's lease.
pub(super) const LEASE: u64 = 600;
/// The connection's response timeout.
pub(super) const PATIENCE: u64 = 1_000;
pub(super) const PERMITS: u64 = 3;
pub(super) const LOCKS: u64 = 2;

impl Plan {
    /// Makes the plan of a seed. The seed also determines the kind, unless it is given.
    #[must_use]
    pub fn of(seed: u64, kind: Option<Kind>) -> Self {
        match kind {
            Some(Kind::Surviving) => return Self::surviving(seed, None),
            Some(Kind::SurvivingPermits) => return Self::surviving(seed, Some(Kind::Permits)),
            Some(Kind::Limited) => return Self::limited(seed),
            _ => {}
        }
        let mut plan = Self { hurries: true, ..Self::narrow(seed, kind) };
        let mut random = Random::new(seed ^ 0x0DD_BA11_u64.rotate_left(29));
        let _first_of_similar_seeds_is_similar = random.number();
        if matches!(plan.kind, Kind::Plain | Kind::Hot | Kind::Set) && random.below(4) == 0 {
            plan.foreigners = (0..1 + random.below(4)).map(|_| Foreigner::drawn(&mut random)).collect();
        }
        if random.below(8) == 0 {
            let what = Wrong::ShutDown(1 + u32_below(&mut random, plan.processes));
            let at = random.below(DAY - 500);
            plan.troubles.extend((!what.is_left_out(plan.kind)).then_some(Trouble { at, lasts: 1, what }));
        }
        if random.below(8) == 0 {
            let (at, lasts) = (random.below(DAY - 500), pick(&mut random, &[LEASE / 2, LEASE, 3 * LEASE]));
            plan.troubles.push(Trouble { at, lasts, what: Wrong::Stopped });
        }
        if random.below(6) == 0 && plan.kind != Kind::Quorum {
            plan.durable = random.below(2) == 0;
            if plan.durable {
                // Foreigners do not wait for acknowledgements.
                plan.foreigners.clear();
            }
            for _ in 0..1 + random.below(2) {
                let what = if plan.durable && random.below(3) == 0 {
                    Wrong::Unacknowledged
                } else {
                    Wrong::FailedOver
                };
                let (at, lasts) = (random.below(DAY - 500), 1 + random.below(300));
                plan.troubles.extend((!what.is_left_out(plan.kind)).then_some(Trouble { at, lasts, what }));
            }
        }
        plan.observed = plan.kind == Kind::Election && random.below(4) == 0;
        if plan.kind == Kind::Quorum && random.below(4) == 0 {
            plan.roll(&mut random);
        }
        plan.troubles.sort_by_key(|trouble| trouble.at);
        if plan.kind == Kind::Permits {
            plan.take_several(seed);
        }
        plan
    }

    /// Makes half of the fleets with shared permits take several permits at once. Uses a separate generator, so that the rest of each
    /// seed's plan stays the same.
    pub(super) fn take_several(&mut self, seed: u64) {
        let mut random = Random::new(seed ^ 0x05E7_E4A1_u64.rotate_left(23));
        let _first_of_similar_seeds_is_similar = random.number();
        if random.below(2) == 0 {
            let steps = self.tasks.iter_mut().flat_map(|task| &mut task.steps);
            steps.for_each(|step| step.permits = 1 + u32_below(&mut random, 3));
        }
    }

    /// Makes the original, narrower plan of a seed, so that seeds with old findings still reproduce them.
    #[must_use]
    pub fn narrow(seed: u64, kind: Option<Kind>) -> Self {
        let mut random = Random::new(seed ^ 0x5EED_0F0F_1EE7_u64.rotate_left(17));
        let _first_of_similar_seeds_is_similar = random.number();
        let drawn = pick(&mut random, &Kind::ALL[..Kind::DRAWN]);
        let kind = kind.unwrap_or(drawn);
        let processes = 2 + u32_below(&mut random, 4);
        let tasks_each = 1 + random.below(4);
        let latency = pick(&mut random, &[0, 0, 1, 3, 20]);
        let trickle = pick(&mut random, &[None, None, None, Some(20), Some(50), Some(150)]);
        let mut plan = Self {
            seed,
            kind,
            processes,
            latency,
            trickle,
            hurries: false,
            messages_last: random.below(2) == 0,
            hand_over: pick(&mut random, &[0, 5, 5, 50]),
            durable: false,
            observed: false,
            tasks: Vec::new(),
            troubles: Vec::new(),
            foreigners: Vec::new(),
            survival: None,
        };
        if kind == Kind::Visited {
            plan.tasks = visited(&mut random, processes, tasks_each);
        }
        for process in (1..=processes).filter(|_| kind != Kind::Visited) {
            for _ in 0..tasks_each {
                let steps = 1 + random.below(if kind == Kind::Hot { 40 } else { 8 });
                let steps = (0..steps).map(|_| Step::drawn(&mut random, kind)).collect();
                plan.tasks.push(Task { process, steps });
            }
        }
        for _ in 0..random.below(6) {
            let trouble = Trouble::drawn(&mut random, processes);
            if !trouble.what.is_left_out(kind) {
                plan.troubles.push(trouble);
            }
        }
        plan.troubles.sort_by_key(|trouble| trouble.at);
        plan
    }
}

impl Plan {
    /// Adds a restart of every server, one after the other. Each server is down for two leases, during a hold of the same lock.
    fn roll(&mut self, random: &mut Random) {
        let (begins, forgets) = (random.below(LEASE), random.below(2) == 0);
        let servers = self.kind.servers();
        for place in 0..servers {
            // The time determines the server.
            let at = (begins / servers + place * LEASE) * servers + place;
            self.troubles.push(Trouble { at, lasts: 2 * LEASE, what: Wrong::Down { forgets } });
        }
        let hold = servers * servers * LEASE;
        let step = Step {
            pause: 0,
            manner: Manner::Acquire,
            lease: None,
            give_up: None,
            hold,
            ..Step::drawn(random, self.kind)
        };
        self.tasks.push(Task { process: 1 + u32_below(random, self.processes), steps: vec![step] });
    }

    /// Returns the make and version that the servers report. Not drawn, so that the rest of each seed's plan stays the same.
    pub(super) fn make(&self) -> Make {
        let place = usize::try_from(self.seed % 4).unwrap_or_default();
        Make::ALL.get(place).copied().unwrap_or_default()
    }

    /// Returns the number of servers.
    pub(super) fn servers(&self) -> u64 {
        self.survival.as_ref().map_or(self.kind.servers(), |survival| survival.servers as u64)
    }

    /// Returns the response timeout of the connections.
    pub(super) fn patience(&self) -> u64 {
        self.survival.as_ref().map_or(PATIENCE, |survival| survival.patience)
    }

    /// Returns true if a process stands still while others run.
    pub(super) fn halts(&self) -> bool {
        self.troubles.iter().any(|trouble| matches!(trouble.what, Wrong::Halted(_)))
    }

    /// Returns true if servers execute the requests of a process in order.
    pub(super) fn is_in_order(&self) -> bool {
        !self.troubles.iter().any(|trouble| trouble.what.reorders())
    }

    /// Returns true if servers have replicas that may take over, and clients know these replicas.
    pub(super) fn is_replicated(&self) -> bool {
        self.durable || self.troubles.iter().any(|trouble| matches!(trouble.what, Wrong::FailedOver))
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            kind,
            processes,
            latency,
            trickle,
            messages_last,
            hand_over,
            durable,
            observed,
            tasks,
            troubles,
            foreigners,
            survival,
            ..
        } = self;
        writeln!(
            f,
            "{processes} processes, {kind}; latency {latency} ms, trickle {trickle:?}, messages last {messages_last}, hand-over {hand_over} ms, durable {durable}, observed {observed}, server {:?}",
            self.make()
        )?;
        if let Some(survival) = survival {
            writeln!(f, "  {survival:?}")?;
        }
        for (number, task) in (1..).zip(tasks) {
            writeln!(f, "  task {number} of process {}", task.process)?;
            task.steps.iter().try_for_each(|step| writeln!(f, "    {step:?}"))?;
        }
        foreigners.iter().try_for_each(|foreigner| writeln!(f, "  {foreigner:?}"))?;
        troubles.iter().try_for_each(|trouble| writeln!(f, "  {trouble:?}"))
    }
}

/// Makes the tasks: the first process always wants a lock; the others want it now and then.
fn visited(random: &mut Random, processes: u32, tasks_each: u64) -> Vec<Task> {
    let mut tasks = Vec::new();
    for _ in 0..2 + tasks_each {
        let mut steps: Vec<_> = (0..400).map(|_| Step::drawn(random, Kind::Hot)).collect();
        steps.iter_mut().for_each(|step| step.pause = 0);
        tasks.push(Task { process: 1, steps });
    }
    for process in 2..=processes {
        let mut steps: Vec<_> = (0..20).map(|_| Step::drawn(random, Kind::Hot)).collect();
        for step in &mut steps {
            step.pause = pick(random, &[0, 20, 90]);
            // Processes with even numbers poll, with spin locks or with repeated attempts.
            if process % 4 == 2 {
                step.manner = Manner::Try;
            }
        }
        tasks.push(Task { process, steps });
    }
    tasks
}

impl Step {
    pub(super) fn drawn(random: &mut Random, kind: Kind) -> Self {
        let is_hot = kind == Kind::Hot;
        let manner = match random.below(100) {
            0..70 if is_hot => Manner::Acquire,
            0..40 => Manner::Acquire,
            40..55 => Manner::Try,
            55..85 => Manner::TryFor(1 + random.below(400)),
            _ if kind.is_pool() || kind == Kind::Election => Manner::Acquire,
            _ => Manner::Run,
        };
        let give_up = match random.below(100) {
            _ if manner == Manner::Run => None,
            0..10 => Some(GiveUp::Polls(usize_below(random, 6))),
            10..20 => Some(GiveUp::After(random.below(300))),
            _ => None,
        };
        let fixes = manner != Manner::Run && kind != Kind::Semaphore && random.below(100) < 15;
        let lease = [LEASE / 2, LEASE, 2 * LEASE];
        let hold = match random.below(100) {
            0..5 => random.below(3 * LEASE),
            _ if is_hot => random.below(3),
            _ => random.below(40),
        };
        Self {
            pause: if is_hot { random.below(4) } else { random.below(300) },
            lock: if is_hot { 0 } else { random.below(LOCKS) },
            manner,
            lease: fixes.then(|| pick(random, &lease)),
            presents: random.below(100) < if is_hot { 2 } else { 25 },
            shared: kind == Kind::ReadWrite && random.below(100) < 60,
            permits: if matches!(kind, Kind::Semaphore | Kind::Set) { 1 + u32_below(random, 2) } else { 1 },
            give_up,
            hold,
            again: random.below(100) < 10
                && !is_hot
                && !matches!(kind, Kind::Simple | Kind::Election | Kind::Set | Kind::Quorum)
                && !kind.is_pool(),
            renews: random.below(100) < 5,
            give_back: match random.below(100) {
                0..60 => GiveBack::Release,
                60..85 => GiveBack::Drop,
                _ => GiveBack::ReleaseAndDrop(usize_below(random, 4)),
            },
            limits: Limits::default(),
        }
    }
}

impl Trouble {
    fn drawn(random: &mut Random, processes: u32) -> Self {
        let how = pick(random, &[How::Fin, How::Rst]);
        let process = 1 + u32_below(random, processes);
        let lock = random.below(LOCKS);
        let what = match random.below(16) {
            0 => Wrong::Broken(how),
            1 | 2 => {
                let side = pick(random, &[Side::Answers, Side::Requests]);
                Wrong::Cut(side, usize_below(random, 400), how)
            }
            3 => Wrong::AnswersLost(1 + usize_below(random, 3)),
            4 => Wrong::Late(usize_below(random, 4), how),
            5 => Wrong::Silent,
            6 => Wrong::Down { forgets: false },
            7 => Wrong::Down { forgets: true },
            8 => Wrong::Flushed,
            9 => Wrong::ScriptsFlushed,
            10 => Wrong::Refused(1 + usize_below(random, 5), pick(random, &REFUSALS)),
            11 => Wrong::Evicted(lock),
            12 => Wrong::Forced(process, lock),
            13 => {
                let by = i64::try_from(50 + random.below(1_000)).unwrap_or_default();
                Wrong::ClockSet(if random.below(2) == 0 { by } else { -by })
            }
            14 => pick(random, &[Wrong::Parted(process), Wrong::Killed(process)]),
            _ => Wrong::Slow(10 + random.below(200)),
        };
        Self { at: random.below(DAY - 500), lasts: 1 + random.below(450), what }
    }
}

impl Foreigner {
    fn drawn(random: &mut Random) -> Self {
        Self {
            at: random.below(DAY - 500),
            lock: random.below(LOCKS),
            asks: 1 + random.below(30),
            hold: random.below(LEASE),
            dies: random.below(5) == 0,
        }
    }
}

pub(super) fn pick<T: Clone>(random: &mut Random, from: &[T]) -> T {
    from[usize_below(random, from.len() as u64)].clone()
}

pub(super) fn usize_below(random: &mut Random, bound: u64) -> usize {
    usize::try_from(random.below(bound)).unwrap_or_default()
}

pub(super) fn u32_below(random: &mut Random, bound: u32) -> u32 {
    u32::try_from(random.below(bound.into())).unwrap_or_default()
}
