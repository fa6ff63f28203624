//! Checker: every operation ends.
//!
//! A wait ends by its deadline, a release ends within the response timeout, and all operations end soon after the last fault.

use super::super::event::What;
use super::super::operations::{Ending, Operation};
use super::turns::MARK;
use super::{Case, Checker, MILLISECOND, REPOLL, SCHEDULING, Verdict};

pub(super) fn check(case: &Case<'_>) -> Vec<Verdict> {
    let operations = case.operations.iter().filter(|operation| operation.killed.is_none());
    let mut verdicts: Vec<Verdict> = operations
        .filter_map(|operation| {
            let text = late(case, operation)?;
            Some(Verdict { checker: Checker::Liveness, text, excuse: None, events: operation.events.clone() })
        })
        .collect();
    verdicts.extend(unfinished(case));
    verdicts
}

fn late(case: &Case<'_>, operation: &Operation) -> Option<String> {
    let process = operation.id.0;
    let lock = &operation.lock;
    let answered = operation.answered().unwrap_or(u64::MAX);
    let seen = answered.min(case.terms.end);
    let deadline = operation.deadline.map(|deadline| deadline.max(operation.invoked + FIRST_ANSWER));
    if let Some(deadline) = deadline
        && seen > deadline + SCHEDULING
        && !case.stalled(process, deadline, seen)
    {
        let by = (seen - deadline) / MILLISECOND;
        return Some(format!("a wait for {lock:?} went on {by} ms beyond its deadline"));
    }
    if let Some(healed) = case.terms.healed {
        // A fault may have lost a message, or the lock vanished without a message. Polling makes up for it.
        let unheard =
            [&case.deaf, &case.losing].iter().any(|faults| faults.touching(0, healed, None).is_some());
        let asking = if unheard { REPOLL } else { 0 };
        // A reader may wait behind a dead writer.
        let mark = if operation.shared { MARK } else { 0 };
        let bound = healed + 2 * case.terms.longest + asking + mark + SETTLING;
        let bound = if seen > bound { bound + held_by_others(case, operation, healed, seen) } else { bound };
        if seen > bound.max(operation.deadline.unwrap_or(0) + SCHEDULING) {
            let by = (seen - healed) / MILLISECOND;
            return Some(format!("a wait for {lock:?} went on {by} ms after the last fault"));
        }
    }
    if answered == u64::MAX {
        return Some(format!("a wait for {lock:?} never ended"));
    }
    let ended = operation.ended?;
    let given_back = operation.ending.map_or(case.terms.end, |(at, _)| at);
    let bound = case.terms.patience + SCHEDULING;
    if given_back - ended > bound && !case.stalled(process, ended, given_back) {
        return Some(format!("a release of {lock:?} took {} ms", (given_back - ended) / MILLISECOND));
    }
    operation.ending.is_none().then(|| format!("a release of {lock:?} never ended"))
}

/// Returns how long other operations held the lock that this operation wanted.
fn held_by_others(case: &Case<'_>, operation: &Operation, from: u64, to: u64) -> u64 {
    // A pool may have had enough permits for all operations.
    if case.pools.contains_key(operation.lock.as_str()) {
        return 0;
    }
    let others = case.operations.iter().filter(|other| {
        other.lock == operation.lock && other.id != operation.id && !(other.shared && operation.shared)
    });
    let mut holds: Vec<(u64, u64)> = others
        .filter_map(|other| {
            let belief = other.belief?;
            let travels = if matches!(other.ending, Some((_, Ending::Sent))) { other.lease } else { 0 };
            Some((belief.from.max(from), other.kept_until(belief.to + travels).min(to)))
        })
        .filter(|(from, to)| from < to)
        .collect();
    holds.sort_unstable();
    let (mut held, mut until) = (0, 0);
    for (from, to) in holds {
        held += to.max(until) - from.max(until);
        until = to.max(until);
    }
    held
}

fn unfinished(case: &Case<'_>) -> Vec<Verdict> {
    let over = |process: u32| {
        case.events
            .iter()
            .any(|event| event.process == process && matches!(event.what, What::Finished | What::Killed))
    };
    let started = case.events.iter().enumerate().filter(|(_, event)| event.what == What::Started);
    started
        .filter(|(_, event)| !over(event.process))
        .map(|(place, event)| Verdict {
            checker: Checker::Liveness,
            text: format!("process {} neither finished nor was killed", event.process),
            excuse: None,
            events: vec![place],
        })
        .collect()
}

/// The time that a connected server has for its first reply, however short a wait is.
pub(super) const FIRST_ANSWER: u64 = 300 * MILLISECOND;

/// The time in which all waiters get the lock and release it after the last fault, one after the other.
const SETTLING: u64 = 2_000 * MILLISECOND;
