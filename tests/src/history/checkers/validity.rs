//! A guard claims the lock until its deadline and no longer, says so in time when it is lost, and never takes that back;
//! and the resource that checks tokens never takes a stale one.

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

/// What the guard said of itself.
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

/// When the loss was told.
fn news(case: &Case<'_>, operation: &Operation) -> Option<(String, usize)> {
    operation.belief?;
    let (lock, process) = (&operation.lock, operation.id.0);
    let place = operation.events.last().copied()?;
    let told = operation.lost.map(|(at, ..)| at);
    let valid_until = operation.lost.map_or(operation.valid_until, |(.., valid_until)| valid_until);
    // Told late, or given back late without having been told.
    let seen = told.or(operation.ended).or(operation.killed).unwrap_or(operation.last);
    // The news starts a twentieth of the lease early, to be there in time; whoever was stalled then cannot have had it.
    let start = valid_until.saturating_sub((operation.lease / 20).min(100 * MILLISECOND) + 5 * MILLISECOND);
    // News of a jump of the server clock, however old, shorten what was granted since the clock was last heard of.
    // A server that came back without its last writes may know a shorter lease, which can be over when its holder hears of it.
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
        // Of what a process has written that was killed before it said so only the resource knows.
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
