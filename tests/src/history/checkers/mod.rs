//! Whether what happened may happen. Pure: a history in, verdicts out, each with the events that prove it.
//!
//! Everything is on one clock, so every question is about spans of time and costs a sort and binary searches.

mod exclusion;
mod honesty;
mod latches;
mod leaks;
mod liveness;
mod order;
mod pools;
mod tokens;
mod turns;
mod validity;
mod wakeups;

use std::collections::HashMap;
use std::fmt;

use super::event::{Event, Fault, What};
use super::operations::{Operation, operations};
use super::spans::{Span, Spans};
use super::text::History;

pub use latches::COUNTED_DOWN;
pub use order::queued_grants;
pub use pools::{DEAD_TOOK, most_inside};
pub use turns::{WritersWaits, writers_waits};
pub use wakeups::{handoffs, takeovers};

/// Who judges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Checker {
    /// No two beliefs of different owners in one lock overlap, unless both share it; nor do more than a pool has permits.
    Exclusion,
    /// The witness saw nobody enter while another guard went on claiming the lock.
    Witness,
    /// A release with a waiter present is followed by a grant.
    WakeUps,
    /// Everything ends: by its deadline, or soon after the last fault.
    Liveness,
    /// Every answer that is not the lock can be explained by another holder or a fault.
    Honesty,
    /// Nothing is left behind.
    Leaks,
    /// No guard claims the lock after its deadline, and the news of a loss is not late.
    Validity,
    /// Readers do not wait for readers, and none goes before a writer who waited before it came.
    Turns,
    /// Every grant has a greater fencing token than all before.
    Tokens,
    /// Of a fair lock: grants follow arrival.
    Order,
}

impl Checker {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Exclusion,
        Self::Witness,
        Self::WakeUps,
        Self::Liveness,
        Self::Honesty,
        Self::Leaks,
        Self::Validity,
        Self::Turns,
        Self::Tokens,
        Self::Order,
    ];
}

impl fmt::Display for Checker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Exclusion => "exclusion",
            Self::Witness => "witness",
            Self::WakeUps => "wake-ups",
            Self::Liveness => "liveness",
            Self::Honesty => "honesty",
            Self::Leaks => "leaks",
            Self::Validity => "validity",
            Self::Turns => "turns",
            Self::Tokens => "tokens",
            Self::Order => "order",
        })
    }
}

/// Something that should not have happened.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// Who says so.
    pub checker: Checker,
    /// What is wrong.
    pub text: String,
    /// The fault that explains it, where no promise covers that.
    pub excuse: Option<Fault>,
    /// The events that prove it, as places in the history.
    pub events: Vec<usize>,
}

/// Runs every checker.
#[must_use]
pub fn check(history: &History) -> Vec<Verdict> {
    let case = Case::new(history);
    let mut verdicts = exclusion::check(&case);
    verdicts.extend(wakeups::check(&case));
    verdicts.extend(liveness::check(&case));
    verdicts.extend(honesty::check(&case));
    verdicts.extend(leaks::check(&case));
    verdicts.extend(validity::check(&case));
    verdicts.extend(turns::check(&case));
    verdicts.extend(tokens::check(&case));
    verdicts.extend(order::check(&case));
    verdicts.extend(pools::check(&case));
    verdicts.extend(latches::check(&case));
    verdicts
}

/// A history, and what every checker asks of it.
struct Case<'a> {
    events: &'a [Event],
    operations: Vec<Operation>,
    /// What is no lock but a pool of so many permits.
    pools: HashMap<&'a str, u64>,
    terms: Terms,
    /// Faults for which requests may fail or be late; of losing messages alone, [`Self::deaf`] knows.
    disturbed: Spans,
    deaf: Spans,
    /// Faults for which a request may come so late that its caller has asked once more meanwhile.
    late: Spans,
    /// Faults for which locks may vanish.
    losing: Spans,
    /// When another server took over.
    replaced: Spans,
    /// When the server's clock was set.
    clock_set: Spans,
    /// When each process that has ended had nobody left who would give back again what it had given back.
    gone: HashMap<u32, u64>,
    /// Times in which a process did not run.
    stalls: HashMap<u32, Spans>,
    any_stall: Spans,
    /// The locks are fair: whoever waits asks from time to time, the first included.
    is_fair: bool,
    /// See [`What::Majority`].
    is_majority: bool,
}

/// See [`What::Setup`].
#[derive(Clone, Copy, Debug, Default)]
struct Terms {
    longest: u64,
    patience: u64,
    wake: u64,
    healed: Option<u64>,
    end: u64,
}

impl<'a> Case<'a> {
    fn new(history: &'a History) -> Self {
        let events = &history.events;
        let mut terms = Terms { end: events.last().map_or(0, |event| event.at), ..Terms::default() };
        for event in events {
            match event.what {
                What::Setup { longest, patience, wake } => {
                    terms = Terms { longest, patience, wake, ..terms };
                }
                What::Healed => terms.healed = Some(event.at),
                _ => {}
            }
        }
        let pools = events.iter().filter_map(|event| match event.what {
            What::Pool { permits } => Some((event.lock.as_str(), permits)),
            _ => None,
        });
        let faults = faults(events);
        let of = |wanted: fn(Fault) -> bool| {
            let chosen = faults.iter().filter(|(fault, _)| wanted(*fault)).map(|(_, span)| *span);
            Spans::new(chosen.collect())
        };
        // The first of them counts, so it comes last.
        let ends = events
            .iter()
            .rev()
            .filter(|event| matches!(event.what, What::ShutDown | What::Killed | What::Finished));
        let stalls = stalls(events);
        let any_stall = Spans::new(stalls.values().flatten().copied().collect());
        Self {
            events,
            operations: operations(events),
            pools: pools.collect(),
            terms,
            disturbed: of(|fault| fault.disturbs() && fault != Fault::Deaf),
            deaf: of(|fault| fault == Fault::Deaf),
            late: of(|fault| fault == Fault::Slow),
            losing: of(Fault::loses_locks),
            replaced: of(|fault| fault == Fault::Replaced),
            clock_set: of(|fault| fault == Fault::Clock),
            gone: ends.map(|event| (event.process, event.at)).collect(),
            stalls: stalls.into_iter().map(|(process, spans)| (process, Spans::new(spans))).collect(),
            any_stall,
            is_fair: events.iter().any(|event| event.what == What::Watched),
            is_majority: events.iter().any(|event| event.what == What::Majority),
        }
    }

    /// The operations of each lock that is no pool, as places in [`Self::operations`], in the order in which they began.
    fn by_lock(&self) -> Vec<Vec<usize>> {
        let mut locks: HashMap<&str, Vec<usize>> = HashMap::new();
        for (place, operation) in self.operations.iter().enumerate() {
            if !self.pools.contains_key(operation.lock.as_str()) {
                locks.entry(&operation.lock).or_default().push(place);
            }
        }
        let mut locks: Vec<_> = locks.into_iter().collect();
        locks.sort_unstable_by_key(|(name, _)| *name);
        locks.into_iter().map(|(_, operations)| operations).collect()
    }

    /// The operations of a pool.
    fn of_pool(&self, pool: &str) -> impl Iterator<Item = &Operation> {
        self.operations.iter().filter(move |operation| operation.lock == pool)
    }

    /// Whether something outside the library may have kept `process` from what it wanted.
    fn hindered(&self, process: u32, from: u64, to: u64) -> bool {
        let early = from.saturating_sub(AFTERMATH);
        self.disturbed.touching(early, to, None).is_some() || self.stalled(process, from, to)
    }

    /// Whether this process did not run for a while, or a CPU on which one of its threads may have been.
    fn stalled(&self, process: u32, from: u64, to: u64) -> bool {
        let stood_still =
            |process| self.stalls.get(process).and_then(|stalls| stalls.touching(from, to, None));
        [process, STAGE].iter().any(|process| stood_still(process).is_some())
    }

    /// Whether a release that was confirmed at this time may be unknown to a server that took over.
    fn forgets_release(&self, at: u64) -> bool {
        self.was_replaced(at, at + REPLICA_LAG)
    }

    /// Whether another server took over in this time.
    fn was_replaced(&self, from: u64, to: u64) -> bool {
        self.replaced.touching(from, to, None).is_some()
    }

    /// When a server took over that had not heard how this operation ended, by the time `ended`, and nobody was left to tell it.
    fn revived(&self, operation: &Operation, ended: u64) -> Option<u64> {
        let gone = *self.gone.get(&operation.id.0)?;
        let replaced = self.replaced.touching(operation.invoked, ended.saturating_add(REPLICA_LAG), None)?;
        (gone <= replaced.to).then_some(replaced.to)
    }

    /// The fault by which a lock may have vanished in this time.
    fn lost_by(&self, from: u64, to: u64) -> Option<Fault> {
        let span = self.losing.touching(from, to, None)?;
        Fault::ALL.get(span.whose).copied()
    }
}

/// Every fault with its time. One that does not end lasts until the end of the history.
fn faults(events: &[Event]) -> Vec<(Fault, Span)> {
    let number = |fault: Fault| Fault::ALL.iter().position(|known| *known == fault).unwrap_or_default();
    let mut begun: HashMap<usize, Vec<usize>> = HashMap::new();
    let mut faults = Vec::new();
    for (place, event) in events.iter().enumerate() {
        match event.what {
            What::Begins { fault, .. } => {
                begun.entry(number(fault)).or_default().push(faults.len());
                faults.push((fault, Span { from: event.at, to: u64::MAX, whose: number(fault), of: place }));
            }
            What::Ends { fault } => {
                if let Some(begun) = begun.get_mut(&number(fault)).and_then(Vec::pop) {
                    faults[begun].1.to = event.at;
                }
            }
            _ => {}
        }
    }
    faults
}

/// When each process did not run: by its own account, or because it was stopped.
fn stalls(events: &[Event]) -> HashMap<u32, Vec<Span>> {
    let mut stalls: HashMap<u32, Vec<Span>> = HashMap::new();
    for (place, event) in events.iter().enumerate() {
        let whose = event.process as usize;
        let spans = stalls.entry(event.process).or_default();
        match event.what {
            What::Stalled { until } => spans.push(Span { from: event.at, to: until, whose, of: place }),
            What::Stopped => spans.push(Span { from: event.at, to: u64::MAX, whose, of: place }),
            What::Continued => {
                if let Some(open) = spans.iter_mut().rev().find(|span| span.to == u64::MAX) {
                    // What has piled up meanwhile takes its time.
                    open.to = event.at + CATCHING_UP;
                }
            }
            _ => {}
        }
    }
    stalls
}

const MILLISECOND: u64 = 1_000_000;

/// How long a fault's consequences last after its end: the connection is made anew after a pause of up to 200 ms, and
/// what had piled up is sent.
const AFTERMATH: u64 = 500 * MILLISECOND;
/// How far behind a replica may be that takes over.
const REPLICA_LAG: u64 = 1_000 * MILLISECOND;
/// A waiter that hears nothing asks after this long.
const REPOLL: u64 = 5_000 * MILLISECOND;
/// The campaign's own part of the history, in which CPUs stand still.
const STAGE: u32 = 0;
const CATCHING_UP: u64 = 100 * MILLISECOND;
/// Scheduling delays below this go unrecorded.
const SCHEDULING: u64 = 250 * MILLISECOND;
