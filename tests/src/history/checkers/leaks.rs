//! Checker: operations leave no traces on the server.
//!
//! Judges the end of the history, and the time after each operation.

use std::collections::HashMap;

use super::super::event::{Outcome, What};
use super::super::operations::{Answer, Ending, Operation};
use super::{AFTERMATH, Case, Checker, MILLISECOND, SCHEDULING, Verdict};

pub(super) fn check(case: &Case<'_>) -> Vec<Verdict> {
    let probes = case.events.iter().enumerate().filter_map(|(place, event)| match &event.what {
        What::Probe { name, found, allowed } if found > allowed => Some(Verdict {
            checker: Checker::Leaks,
            text: format!("process {}: {found} {name}, {allowed} allowed", event.process),
            excuse: None,
            events: vec![place],
        }),
        _ => None,
    });
    let mut verdicts: Vec<Verdict> = probes.collect();
    verdicts.extend(still_there(case));
    verdicts
}

/// Finds owners on the server that have already released their lock or dropped their attempt.
fn still_there(case: &Case<'_>) -> Vec<Verdict> {
    // For each owner, the last operation to end, if all have ended.
    let mut owners: HashMap<&str, Option<(u64, &Operation)>> = HashMap::new();
    for operation in case.operations.iter().filter(|operation| !operation.owner.is_empty()) {
        let gone = gone_by(operation).map(|at| (at, operation));
        let last = owners.entry(&operation.owner).or_insert(gone);
        *last = last.zip(gone).map(|(one, other)| if other.0 > one.0 { other } else { one });
    }
    let kills = case.events.iter().filter(|event| event.what == What::Killed);
    let kills: HashMap<u32, u64> = kills.map(|event| (event.process, event.at)).collect();
    let killed = |operation: &Operation| kills.get(&operation.id.0).copied();
    let mut verdicts = Vec::new();
    for (place, event) in case.events.iter().enumerate() {
        let What::Holder { owner } = &event.what else { continue };
        let Some(&Some((gone, operation))) = owners.get(owner.as_str()) else { continue };
        let early = gone.saturating_sub(AFTERMATH);
        let hindered = case.disturbed.touching(early, event.at, None).is_some()
            || case.stalled(operation.id.0, gone, event.at)
            || is_unconfirmed(operation) && killed(operation).is_some_and(|at| at <= gone + SCHEDULING);
        if event.at > gone + SCHEDULING && !hindered {
            // One verdict per owner is enough.
            owners.remove(owner.as_str());
            verdicts.push(Verdict {
                checker: Checker::Leaks,
                text: format!(
                    "{owner} still holds {:?}, {} ms after it was given back or given up",
                    event.lock,
                    (event.at - gone) / MILLISECOND
                ),
                excuse: None,
                events: operation.events.iter().copied().chain([place]).collect(),
            });
        }
    }
    verdicts
}

/// Returns true if no caller got a confirmation of the release. If the process dies at that moment, the request is lost.
fn is_unconfirmed(operation: &Operation) -> bool {
    !matches!(operation.ending, Some((_, Ending::Released)))
}

/// Returns when the operation had released its possible hold, if the history shows it.
fn gone_by(operation: &Operation) -> Option<u64> {
    let (answered, answer) = operation.answer?;
    match answer {
        Answer::Granted => match operation.ending? {
            (at, Ending::Released | Ending::Dropped) if operation.lost.is_none() => Some(at),
            _ => None,
        },
        Answer::Failed(Outcome::MaybeExecuted) => None,
        Answer::Failed(_) | Answer::NotGranted | Answer::Cancelled => Some(answered),
    }
}
