//! Nothing is left behind: when everything has ended, and whenever one operation has.

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

/// Whoever has given its lock back, or has dropped its attempt, is not to be found on the server any more.
fn still_there(case: &Case<'_>) -> Vec<Verdict> {
    let mut owners: HashMap<&str, (Option<u64>, &Operation)> = HashMap::new();
    for operation in case.operations.iter().filter(|operation| !operation.owner.is_empty()) {
        let gone = gone_by(operation);
        let owner = owners.entry(&operation.owner).or_insert((gone, operation));
        owner.0 = owner.0.zip(gone).map(|(one, other)| one.max(other));
    }
    let mut verdicts = Vec::new();
    for (place, event) in case.events.iter().enumerate() {
        let What::Holder { owner } = &event.what else { continue };
        let Some(&(Some(gone), operation)) = owners.get(owner.as_str()) else { continue };
        let early = gone.saturating_sub(AFTERMATH);
        let hindered = case.disturbed.touching(early, event.at, None).is_some()
            || case.stalled(operation.id.0, gone, event.at);
        if event.at > gone + SCHEDULING && !hindered {
            // Once is enough.
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

/// When the operation had given back what it may have had, if that can be said.
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
