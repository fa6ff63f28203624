//! Checker of guards' claims.
//!
//! A guard claims the lock only until its deadline, reports a loss in time, and never takes a loss back. The resource that checks tokens
//! never accepts a stale token.

use std::collections::HashMap;

use super::super::event::What;
use super::super::operations::Operation;
use super::{Case, Checker, MILLISECOND, SCHEDULING, Verdict};

pub(super) fn check(case: &Case<'_>) -> Vec<Verdict> {
    let complaint = |operation: &Operation| {
        let (text, place) = claims(case, operation).or_else(|| news(case, operation))?;
        let mut events = operation.events.clone();
        events.retain(|event| *event <= place);
        Some(Verdict { checker: Checker::Validity, text, excuse: None, events })
    };
    let mut verdicts: Vec<Verdict> = case.operations.iter().filter_map(complaint).collect();
    verdicts.extend(stale_writes(case));
    verdicts
}

/// Checks the guard's claims.
fn claims(case: &Case<'_>, operation: &Operation) -> Option<(String, usize)> {
    let lock = &operation.lock;
    let mut over = false;
    for &place in &operation.events {
        let event = &case.events[place];
        match event.what {
            What::Claimed { until } if event.at > until => {
                let by = (event.at - until) / 1000;
                return Some((
                    format!("a guard of {lock:?} called itself valid {by} us after its end"),
                    place,
                ));
            }
            What::Claimed { .. } if over => {
                return Some((format!("a lost guard of {lock:?} called itself valid again"), place));
            }
            What::Lost { .. } | What::Disclaimed => over = true,
            _ => {}
        }
    }
    None
}

/// Checks the time of the report of a loss.
fn news(case: &Case<'_>, operation: &Operation) -> Option<(String, usize)> {
    operation.belief?;
    let (lock, process) = (&operation.lock, operation.id.0);
    let place = operation.events.last().copied()?;
    let told = operation.lost.map(|(at, ..)| at);
    let valid_until = operation.lost.map_or(operation.valid_until, |(.., valid_until)| valid_until);
    // The loss was reported late, or the holder released late without a report.
    let seen = told.or(operation.ended).or(operation.killed).unwrap_or(operation.last);
    // The report begins a twentieth of the lease early, so that it arrives in time. A process that was stalled then cannot have got it.
    let start = valid_until.saturating_sub((operation.lease / 20).min(100 * MILLISECOND) + 5 * MILLISECOND);
    // A jump of the server's clock, even an old one, shortens grants since the last known clock value. A server that restarted without its
    // last writes may know a shorter lease. That lease can be over when the holder learns of it.
    let promised = |place: &usize| match case.events[*place].what {
        What::Granted { valid_until, .. } | What::Moved { valid_until } => valid_until,
        _ => 0,
    };
    let shortened = told.is_some()
        && operation.events.iter().map(promised).any(|promised| valid_until < promised)
        && case.lost_by(operation.invoked, seen).is_some();
    let jumped = case.clock_set.touching(0, seen, None).is_some();
    let excused = shortened || jumped || case.stalled(process, start, seen);
    let slack = if told.is_some() { 2 * MILLISECOND } else { SCHEDULING };
    if seen <= valid_until + slack || excused {
        return None;
    }
    let by = (seen - valid_until) / 1000;
    Some((format!("the loss of {lock:?} was told {by} us too late, or not at all"), place))
}

fn stale_writes(case: &Case<'_>) -> Vec<Verdict> {
    let mut accepted_before: HashMap<&str, (u64, usize)> = HashMap::new();
    let mut verdicts = Vec::new();
    for (place, event) in case.events.iter().enumerate() {
        let What::Wrote { token, highest: known, accepted } = event.what else { continue };
        let highest = accepted_before.entry(&event.lock).or_insert((0, place));
        // If a process was killed before it recorded its write, only the resource knows the write.
        let right = if accepted { token >= highest.0 } else { token < known };
        if !right {
            let what = if accepted { "accepted" } else { "refused" };
            verdicts.push(Verdict {
                checker: Checker::Validity,
                text: format!("a write with token {token} was {what} after one with {}", highest.0),
                excuse: None,
                events: vec![highest.1, place],
            });
        } else if accepted {
            *highest = (token, place);
        }
    }
    verdicts
}
