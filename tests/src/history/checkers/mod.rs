//! The checkers of a history.
//!
//! Pure: the input is a history, and the output are verdicts, each with the events that prove it.
//!
//! All events have the same clock. So every query is about spans of time, and costs a sort and binary searches.

mod exclusion;
mod honesty;
mod latches;
mod leaks;
mod limits;
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

/// A checker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Checker {
    /// Beliefs of different owners in one lock do not overlap, unless both share it. The beliefs in a pool do not exceed its permits.
    Exclusion,
    /// The witness saw no entry while another guard still claimed the lock.
    Witness,
    /// A release with a waiter present is followed by a grant.
    WakeUps,
    /// Every operation ends, by its deadline or soon after the last fault.
    Liveness,
    /// Every result other than the lock has a reason: another holder or a fault.
    Honesty,
    /// Operations leave no traces.
    Leaks,
    /// No guard claims the lock after its deadline, and each loss is reported in time.
    Validity,
    /// Readers do not wait for readers, and no reader overtakes a writer that waited before it.
    Turns,
    /// Every grant has a greater fencing token than all grants before it.
    Tokens,
    /// Grants of fair locks follow the order of arrival.
    Order,
}

impl Checker {
    /// All checkers.
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

/// A violation.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// The checker.
    pub checker: Checker,
    /// The description.
    pub text: String,
    /// The fault that explains the violation, where no promise covers the fault.
    pub excuse: Option<Fault>,
    /// The events that prove the violation, as indices into the history.
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
    verdicts.extend(limits::check(&case));
    verdicts
}

/// A history, with the data that all checkers need.
struct Case<'a> {
    events: &'a [Event],
    operations: Vec<Operation>,
    /// The pools with their numbers of permits.
    pools: HashMap<&'a str, u64>,
    terms: Terms,
    /// Faults that may delay or fail requests. Faults that only lose messages are in [`Self::deaf`].
    disturbed: Spans,
    deaf: Spans,
    /// Faults that may delay a request until its caller has sent another request.
    late: Spans,
    /// Faults that may remove locks.
    losing: Spans,
    /// The times when another server took over.
    replaced: Spans,
    /// The times when the server's clock was set.
    clock_set: Spans,
    /// For each process that has ended, the time from which it did not retry its releases.
    gone: HashMap<u32, u64>,
    /// Times in which a process did not run.
    stalls: HashMap<u32, Spans>,
    any_stall: Spans,
    /// True for fair locks, where every waiter polls regularly, the head included.
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
        // The first of these events counts, so the reversed order inserts it last.
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

    /// Returns the operations of each lock other than a pool, as indices into [`Self::operations`], in the order of their begins.
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

    /// Returns the operations of a pool.
    fn of_pool(&self, pool: &str) -> impl Iterator<Item = &Operation> {
        self.operations.iter().filter(move |operation| operation.lock == pool)
    }

    /// Returns true if a cause outside the library may have hindered `process`.
    fn hindered(&self, process: u32, from: u64, to: u64) -> bool {
        let early = from.saturating_sub(AFTERMATH);
        self.disturbed.touching(early, to, None).is_some() || self.stalled(process, from, to)
    }

    /// Returns true if this process, or a CPU of one of its threads, may have stalled.
    fn stalled(&self, process: u32, from: u64, to: u64) -> bool {
        let stood_still =
            |process| self.stalls.get(process).and_then(|stalls| stalls.touching(from, to, None));
        [process, STAGE].iter().any(|process| stood_still(process).is_some())
    }

    /// Returns true if a server that took over may not know a release that was confirmed at this time.
    fn forgets_release(&self, at: u64) -> bool {
        self.was_replaced(at, at + REPLICA_LAG)
    }

    /// Returns true if another server took over in this time.
    fn was_replaced(&self, from: u64, to: u64) -> bool {
        self.replaced.touching(from, to, None).is_some()
    }

    /// Returns when a server took over that did not know by `ended` how this operation ended. The process did not retry any more.
    fn revived(&self, operation: &Operation, ended: u64) -> Option<u64> {
        let gone = *self.gone.get(&operation.id.0)?;
        self.replaced_at(operation.invoked, ended).filter(|replaced| gone <= *replaced)
    }

    /// Returns when a server took over that may not know of an end at `ended`.
    fn replaced_at(&self, from: u64, ended: u64) -> Option<u64> {
        self.replaced.touching(from, ended.saturating_add(REPLICA_LAG), None).map(|replaced| replaced.to)
    }

    /// Returns the fault that may have removed a lock in this time.
    fn lost_by(&self, from: u64, to: u64) -> Option<Fault> {
        let span = self.losing.touching(from, to, None)?;
        Fault::ALL.get(span.whose).copied()
    }
}

/// Returns every fault with its time. A fault without an end lasts until the end of the history.
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

/// Returns when each process did not run, by its own record or because it was stopped.
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
                    // The process needs time for the work that has piled up.
                    open.to = event.at + CATCHING_UP;
                }
            }
            _ => {}
        }
    }
    stalls
}

const MILLISECOND: u64 = 1_000_000;

/// The time that a fault's consequences last after its end. The client reconnects after a pause of up to 200 ms, and sends the waiting
/// requests.
const AFTERMATH: u64 = 500 * MILLISECOND;
/// The longest lag of a replica that takes over.
const REPLICA_LAG: u64 = 1_000 * MILLISECOND;
/// The time after which a waiter polls without a message.
const REPOLL: u64 = 5_000 * MILLISECOND;
/// The campaign's own process, which records stalled CPUs.
const STAGE: u32 = 0;
const CATCHING_UP: u64 = 100 * MILLISECOND;
/// The longest scheduling delay that is not recorded.
const SCHEDULING: u64 = 250 * MILLISECOND;
