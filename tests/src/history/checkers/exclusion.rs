//! Checker of exclusion: holders overlap only if both share the lock.
//!
//! Judges the beliefs of the guards, and the record of the witness.

use std::collections::HashMap;

use super::super::event::What;
use super::super::operations::Operation;
use super::super::spans::{Span, Spans};
use super::{AFTERMATH, Case, Checker, Verdict};

pub(super) fn check(case: &Case<'_>) -> Vec<Verdict> {
    let mut verdicts: Vec<Verdict> = case.by_lock().iter().flat_map(|lock| beliefs(case, lock)).collect();
    verdicts.extend(witnessed(case));
    verdicts
}

fn beliefs(case: &Case<'_>, lock: &[usize]) -> Vec<Verdict> {
    let mut owners: HashMap<&str, usize> = HashMap::new();
    let mut spans = Vec::new();
    for &of in lock {
        let operation = &case.operations[of];
        let next = owners.len();
        let whose = *owners.entry(&operation.owner).or_insert(next);
        if let Some(belief) = operation.belief.filter(|belief| belief.from < belief.to) {
            spans.push(Span { from: belief.from, to: belief.to - 1, whose, of });
        }
    }
    let believed = Spans::new(spans.clone());
    let alone = Spans::new(spans.iter().filter(|span| !case.operations[span.of].shared).copied().collect());
    let mut verdicts = Vec::new();
    for later in spans {
        // If two spans overlap, the later span begins inside the earlier span.
        let others = if case.operations[later.of].shared { &alone } else { &believed };
        let Some(earlier) = others.touching(later.from, later.from, Some(later.whose)) else { continue };
        let (a, b) = (&case.operations[earlier.of], &case.operations[later.of]);
        let a_lost = case.lost_by(a.since, later.from);
        // The server may have granted the lock earlier than the answer arrived, and may have lost it in between. This takes at most the
        // response timeout.
        let since = b.since.max(later.from.saturating_sub(case.terms.patience));
        let b_lost = case.lost_by(since, earlier.from);
        let excuse = a_lost.or(b_lost);
        let events = a.events.iter().chain(&b.events).copied().collect();
        let both = earlier.to.min(later.to) - later.from;
        verdicts.push(Verdict {
            checker: Checker::Exclusion,
            text: format!(
                "{} and {} believed in {:?} at once for {} us",
                a.owner,
                b.owner,
                a.lock,
                both / 1000
            ),
            excuse,
            events,
        });
        // The next renewal reports the loss, after a third of the lease. A failed renewal takes a twentieth more, and a holder in doubt
        // takes a fifth for its check.
        let told_late = |of: &Operation, to: u64| {
            let news = of.lease / 3 + of.lease / 20 + of.lease / 5 + AFTERMATH / 5;
            let hindered = || {
                case.disturbed.touching(later.from + 1, to, None).is_some()
                    || case.stalled(of.id.0, later.from, to)
            };
            // If the other holder left before the renewal, the hold gets its server late, and is not lost.
            let is_made_up_for = case.is_majority && both <= news;
            of.renewed && to - later.from > news && !is_made_up_for && !hindered()
        };
        // If both may have lost the lock, a report to one of them is enough.
        let losers = [a_lost.map(|_| (a, earlier.to)), b_lost.map(|_| (b, later.to))];
        let mut losers = losers.into_iter().flatten().peekable();
        let first = losers.peek().map(|(loser, _)| *loser);
        if let Some(loser) = first
            && losers.all(|(loser, to)| told_late(loser, to))
        {
            verdicts.push(Verdict {
                checker: Checker::Honesty,
                text: format!(
                    "{} was not told within a renewal that it had lost {:?}",
                    loser.owner, loser.lock
                ),
                excuse: None,
                events: a.events.iter().chain(&b.events).copied().collect(),
            });
        }
    }
    verdicts
}

fn witnessed(case: &Case<'_>) -> Vec<Verdict> {
    let invoked: HashMap<(u32, u64), u64> =
        case.operations.iter().map(|operation| (operation.id, operation.invoked)).collect();
    let since = |event: &super::Event| invoked.get(&(event.process, event.op)).copied().unwrap_or(event.at);
    let entered: HashMap<(&str, u64), u64> = case
        .events
        .iter()
        .filter_map(|event| match event.what {
            What::Entered { token } => Some(((event.lock.as_str(), token), since(event))),
            _ => None,
        })
        .collect();
    let overlaps = case.events.iter().enumerate().filter_map(|(place, event)| match event.what {
        What::Overlap { other } if !case.pools.contains_key(event.lock.as_str()) => {
            Some((place, event, other))
        }
        _ => None,
    });
    let verdict = |(place, event, other): (usize, &super::Event, u64)| {
        // Either of the two may have lost the lock.
        let others = entered.get(&(event.lock.as_str(), other)).copied();
        let since = since(event).min(others.unwrap_or(event.at));
        Verdict {
            checker: Checker::Witness,
            text: format!(
                "the witness saw entry {other} while process {} still claimed {:?}",
                event.process, event.lock
            ),
            excuse: case.lost_by(since, event.at),
            events: vec![place],
        }
    };
    overlaps.map(verdict).collect()
}
