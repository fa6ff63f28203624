//! What happens in one simulated fleet, as a value that its seed decides: who asks for what when, and what goes wrong meanwhile.

use std::fmt;

use wheellock::testing::server::{How, Make, Side};

use super::give_up::GiveUp;
use crate::fault::Random;

/// What is locked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// `lock`
    Plain,
    /// `lock`, taken again and again, so that tasks hand it over
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
    /// `multi_lock` of all locks, and `lock` of one
    Set,
    /// `RedLockManager::lock`, on three independent servers
    Quorum,
    /// `count_down_latch`
    Latch,
    /// `lock`, taken again and again by one process alone, beside visitors that listen or poll
    Visited,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 14] = [
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
    ];
    /// How many of them a seed chooses from. A later one would have every seed decide for another fleet than before.
    const DRAWN: usize = 12;

    /// The kind that is called so.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.to_string() == name)
    }

    /// How many servers there are.
    pub(super) fn servers(self) -> u64 {
        if self == Self::Quorum { 3 } else { 1 }
    }

    pub(super) fn is_pool(self) -> bool {
        matches!(self, Self::Permits | Self::Semaphore)
    }

    /// Whether the server keeps a number, and not who holds what.
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
        })
    }
}

/// A fleet and its day. All times are milliseconds.
#[derive(Clone, Debug)]
pub struct Plan {
    pub(super) seed: u64,
    /// What is locked.
    pub kind: Kind,
    pub(super) processes: u32,
    /// How long an answer takes.
    pub(super) latency: u64,
    /// Bytes per turn and direction.
    pub(super) trickle: Option<usize>,
    /// Long texts trickle only at their beginning: the scripts that each connection loads are most of all bytes.
    pub(super) hurries: bool,
    pub(super) messages_last: bool,
    pub(super) hand_over: u64,
    /// Each server has a replica, and grants count when it has them.
    pub(super) durable: bool,
    /// Every process watches who leads.
    pub(super) observed: bool,
    pub(super) tasks: Vec<Task>,
    pub(super) troubles: Vec<Trouble>,
    pub(super) foreigners: Vec<Foreigner>,
}

/// Somebody who takes a lock as Redisson does, and knows nothing of this library.
#[derive(Clone, Debug)]
pub(super) struct Foreigner {
    pub(super) at: u64,
    pub(super) lock: u64,
    /// Asks so often, every ten milliseconds.
    pub(super) asks: u64,
    pub(super) hold: u64,
    /// Ends without a word, and its lease runs out.
    pub(super) dies: bool,
}

/// What one task does, one after the other.
#[derive(Clone, Debug)]
pub(super) struct Task {
    pub(super) process: u32,
    pub(super) steps: Vec<Step>,
}

/// Takes something and gives it back.
#[derive(Clone, Debug)]
pub(super) struct Step {
    /// Before it.
    pub(super) pause: u64,
    pub(super) lock: u64,
    pub(super) manner: Manner,
    /// A fixed lease; the watchdog's if there is none.
    pub(super) lease: Option<u64>,
    /// Shows its owner beforehand.
    pub(super) presents: bool,
    /// Reads.
    pub(super) shared: bool,
    pub(super) permits: u32,
    pub(super) give_up: Option<GiveUp>,
    pub(super) hold: u64,
    /// Takes it once more meanwhile.
    pub(super) again: bool,
    /// Renews it by hand meanwhile.
    pub(super) renews: bool,
    pub(super) give_back: GiveBack,
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
    /// The future of the release is dropped at so many polls in vain.
    ReleaseAndDrop(usize),
}

/// Something goes wrong at a time, and for a time.
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
    /// A connection breaks after so many more bytes.
    Cut(Side, usize, How),
    /// So many calls are executed, and instead of their answers the connection breaks.
    AnswersLost(usize),
    /// After so many calls the connection breaks, and what came last is executed at the end of this.
    Late(usize, How),
    /// Nothing is answered, and connections stay.
    Silent,
    /// The server is down, and comes back, with its data or without.
    Down {
        forgets: bool,
    },
    /// Everything is deleted, and nobody told.
    Flushed,
    ScriptsFlushed,
    /// So many calls are refused.
    Refused(usize, &'static str),
    /// A lock is deleted, and nobody told.
    Evicted(u64),
    /// A lock is freed by force, by this process.
    Forced(u32, u64),
    /// The server's clock goes by so many milliseconds.
    ClockSet(i64),
    /// One process cannot reach the server.
    Parted(u32),
    /// One process ends, and gives nothing back.
    Killed(u32),
    /// Answers take so much longer.
    Slow(u64),
    /// One process' manager is shut down, while its tasks work.
    ShutDown(u32),
    /// For so long a replica hears of nothing but what somebody waits for; then it takes over.
    FailedOver,
    /// Replicas acknowledge nothing.
    Unacknowledged,
    /// All processes stand still, as if their machine did; the servers' clocks go on.
    Stopped,
}

impl Wrong {
    /// Whether requests may be executed in another order than they were made in.
    fn reorders(&self) -> bool {
        matches!(self, Self::Late(..) | Self::Silent)
    }

    fn is_left_out(&self, kind: Kind) -> bool {
        match self {
            // Nobody brings back a count that is gone: an operator would have to.
            Self::Down { forgets } => *forgets && kind.is_counted(),
            Self::Flushed | Self::Evicted(_) | Self::Forced(..) => kind.is_counted(),
            Self::Killed(_) => kind == Kind::Semaphore,
            // Counted permits have no lease and no news of a loss: whoever has some has to stop before its manager does.
            Self::ShutDown(_) => kind == Kind::Semaphore,
            // Nor does anybody know of what was given back, and not replicated; and a quorum is of servers that nobody takes over from.
            Self::FailedOver => matches!(kind, Kind::Semaphore | Kind::Quorum | Kind::Latch),
            // Who comes late stands in the queue of a fair lock until its deadline of five seconds has passed.
            Self::Late(..) => kind == Kind::Fair,
            _ => false,
        }
    }
}

/// What servers say that refuse to execute anything.
const REFUSALS: [&str; 5] = [
    "LOADING Redis is loading the dataset in memory",
    "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
    "OOM command not allowed when used memory > 'maxmemory'.",
    "READONLY You can't write against a read only replica.",
    "TRYAGAIN Multiple keys request during rehashing of slot",
];

/// When the last step begins, and the last trouble ends.
pub(super) const DAY: u64 = 3_000;
/// The watchdog's.
pub(super) const LEASE: u64 = 600;
/// The connection's response timeout.
pub(super) const PATIENCE: u64 = 1_000;
pub(super) const PERMITS: u64 = 3;
pub(super) const LOCKS: u64 = 2;

impl Plan {
    /// What the seed decides; the kind, too, unless it is given.
    #[must_use]
    pub fn of(seed: u64, kind: Option<Kind>) -> Self {
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
                // They wait for no acknowledgement.
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

    /// Half of the fleets that share permits take some together. Drawn apart from all else, which stays as it was for every seed.
    fn take_several(&mut self, seed: u64) {
        let mut random = Random::new(seed ^ 0x05E7_E4A1_u64.rotate_left(23));
        let _first_of_similar_seeds_is_similar = random.number();
        if random.below(2) == 0 {
            let steps = self.tasks.iter_mut().flat_map(|task| &mut task.steps);
            steps.for_each(|step| step.permits = 1 + u32_below(&mut random, 3));
        }
    }

    /// What was simulated first: seeds that found something then decide the same still.
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
    /// Adds a restart of every server, one after the other, each away for two leases, under a lock that is held meanwhile.
    fn roll(&mut self, random: &mut Random) {
        let (begins, forgets) = (random.below(LEASE), random.below(2) == 0);
        let servers = self.kind.servers();
        for place in 0..servers {
            // The time decides which server it is.
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

    /// What the servers say that they are. Not drawn: seeds that found something decide all else as they did.
    pub(super) fn make(&self) -> Make {
        let place = usize::try_from(self.seed % 4).unwrap_or_default();
        Make::ALL.get(place).copied().unwrap_or_default()
    }

    /// Whether servers execute what one process asks for in the order in which it asks.
    pub(super) fn is_in_order(&self) -> bool {
        !self.troubles.iter().any(|trouble| trouble.what.reorders())
    }

    /// Whether servers have replicas that may take over, and clients know of them.
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
            ..
        } = self;
        writeln!(
            f,
            "{processes} processes, {kind}; latency {latency} ms, trickle {trickle:?}, messages last {messages_last}, hand-over {hand_over} ms, durable {durable}, observed {observed}, server {:?}",
            self.make()
        )?;
        for (number, task) in (1..).zip(tasks) {
            writeln!(f, "  task {number} of process {}", task.process)?;
            task.steps.iter().try_for_each(|step| writeln!(f, "    {step:?}"))?;
        }
        foreigners.iter().try_for_each(|foreigner| writeln!(f, "  {foreigner:?}"))?;
        troubles.iter().try_for_each(|trouble| writeln!(f, "  {trouble:?}"))
    }
}

/// The first process never stops wanting a lock, for the whole day; the others come now and then.
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
            // Even processes poll, by spin locks or by trying again and again.
            if process % 4 == 2 {
                step.manner = Manner::Try;
            }
        }
        tasks.push(Task { process, steps });
    }
    tasks
}

impl Step {
    fn drawn(random: &mut Random, kind: Kind) -> Self {
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

fn pick<T: Clone>(random: &mut Random, from: &[T]) -> T {
    from[usize_below(random, from.len() as u64)].clone()
}

fn usize_below(random: &mut Random, bound: u64) -> usize {
    usize::try_from(random.below(bound)).unwrap_or_default()
}

fn u32_below(random: &mut Random, bound: u32) -> u32 {
    u32::try_from(random.below(bound.into())).unwrap_or_default()
}
