//! Checker of pools: no pool exceeds its permits.
//!
//! A counted semaphore must lack exactly the permits that processes held when they were killed.

use std::collections::HashMap;

use super::super::event::{OTHERS, What};
use super::super::operations::{Answer, Ending, Operation};
use super::super::text::History;
use super::{Case, Checker, Verdict};

pub(super) fn check(case: &Case<'_>) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    for (&pool, &permits) in &case.pools {
        verdicts.extend(beliefs(case, pool, permits));
        verdicts.extend(witnessed(case, pool));
        verdicts.extend(missing(case, pool));
    }
    verdicts
}

/// Returns the highest number of permits of a pool that processes believed to hold at once, or 0 without a pool.
#[must_use]
pub fn most_inside(history: &History) -> u64 {
    let case = Case::new(history);
    let most = case.pools.keys().flat_map(|pool| steps(&case, pool)).map(|step| step.inside).max();
    most.unwrap_or_default()
}

/// The number of permits that processes believe to hold, after this operation began or ceased to believe.
struct Step<'a> {
    at: u64,
    inside: u64,
    of: &'a Operation,
}

fn steps<'a>(case: &'a Case<'_>, pool: &str) -> Vec<Step<'a>> {
    let mut changes: Vec<(u64, bool, &Operation)> = Vec::new();
    for operation in case.of_pool(pool) {
        if let Some(belief) = operation.belief.filter(|belief| belief.from < belief.to) {
            changes.extend([(belief.from, true, operation), (belief.to, false, operation)]);
        }
    }
    // If a belief ends at the moment when another begins, the two do not overlap.
    changes.sort_by_key(|(at, begins, _)| (*at, *begins));
    let mut inside = 0;
    let change = |(at, begins, of): (u64, bool, &'a Operation)| {
        inside = if begins { inside + of.permits } else { inside - of.permits };
        Step { at, inside, of }
    };
    changes.into_iter().map(change).collect()
}

fn beliefs(case: &Case<'_>, pool: &str, permits: u64) -> Vec<Verdict> {
    let too_many = |step: &Step<'_>| {
        (step.inside > permits).then(|| Verdict {
            checker: Checker::Exclusion,
            text: format!(
                "{} permits of {pool:?} were believed to be had at once, of {permits}",
                step.inside
            ),
            excuse: case.lost_by(0, step.at),
            events: step.of.events.clone(),
        })
    };
    steps(case, pool).iter().filter_map(too_many).collect()
}

/// Judges the refusals of the witness. A refusal counts, unless a process inside had already ceased to believe.
fn witnessed(case: &Case<'_>, pool: &str) -> Vec<Verdict> {
    let stale = |at: u64| {
        case.of_pool(pool).any(|operation| {
            let ceased = operation.belief.is_some_and(|belief| belief.from <= at && belief.to < at);
            ceased && [operation.ended, operation.killed].into_iter().flatten().all(|left| left > at)
        })
    };
    let full = case.events.iter().enumerate().filter(|(_, event)| {
        event.lock == pool && matches!(event.what, What::Overlap { .. }) && !stale(event.at)
    });
    full.map(|(place, event)| Verdict {
        checker: Checker::Witness,
        text: format!("process {} had permits of {pool:?}, and all places were taken", event.process),
        excuse: case.lost_by(0, event.at),
        events: vec![place],
    })
    .collect()
}

/// Checks the permits lost with killed processes. The lower bound is the permits that they certainly held, and the upper bound is the
/// permits that they may have held.
fn missing(case: &Case<'_>, pool: &str) -> Option<Verdict> {
    let (place, found) = case.events.iter().enumerate().find_map(|(place, event)| match &event.what {
        What::Probe { name, found, .. } if name == DEAD_TOOK && event.lock == pool => Some((place, *found)),
        _ => None,
    })?;
    let deaths = case.events.iter().filter(|event| event.what == What::Killed);
    let deaths: HashMap<u32, u64> = deaths.map(|event| (event.process, event.at)).collect();
    let (mut certain, mut possible) = (0, 0);
    for operation in case.of_pool(pool) {
        // Another library does not find out the result of a request without a reply.
        let is_unsure = operation.id.0 > OTHERS
            && (matches!(operation.answer, Some((_, Answer::Failed(_))))
                || matches!(operation.ending, Some((_, Ending::Unconfirmed))));
        if is_unsure {
            possible += operation.permits;
            continue;
        }
        let Some(death) = deaths.get(&operation.id.0) else { continue };
        match (operation.answer, operation.ended, operation.ending) {
            (Some((_, Answer::Granted)), None, _) => certain += operation.permits,
            (_, _, Some((_, Ending::Released | Ending::AlreadyLost))) => {}
            // The release or withdrawal in the background ended some time before the death.
            (Some((at, _)), ended, _) if ended.unwrap_or(at) + 2 * case.terms.patience < *death => {}
            _ => possible += operation.permits,
        }
    }
    (!(certain..=certain + possible).contains(&found)).then(|| Verdict {
        checker: Checker::Leaks,
        text: format!(
            "the killed took {found} permits of {pool:?} along; they had {certain}, at most {possible} more"
        ),
        excuse: None,
        events: vec![place],
    })
}

/// The probe that counts the permits lost with killed processes.
pub const DEAD_TOOK: &str = "permits that the killed took along";
