//! Checker: every result other than the lock has a reason.
//!
//! Reasons are another holder, a fault, or the end of a lease.

use std::collections::{HashMap, HashSet};

use super::super::event::{Fault, Outcome, Reason, What};
use super::super::operations::{Answer, Ending, Operation};
use super::super::spans::{Span, Spans};
use super::turns::in_the_way;
use super::wakeups::place_left;
use super::{Case, Checker, MILLISECOND, SCHEDULING, Verdict};

pub(super) fn check(case: &Case<'_>) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    let clock_fault = |what: &What| matches!(what, What::Begins { fault: Fault::Clock, .. });
    let set_back = case.events.iter().find(|event| clock_fault(&event.what)).map(|event| event.at);
    for lock in case.by_lock() {
        let possible = lock.iter().filter_map(|of| possible_hold(case, *of, set_back)).collect();
        let possible: Vec<Span> = possible;
        let alone = possible.iter().filter(|span| !case.operations[span.of].shared).copied();
        // A waiting writer refuses readers, too.
        let before_readers =
            Spans::new(alone.chain(lock.iter().filter_map(|of| in_the_way(case, *of))).collect());
        let possible = Spans::new(possible);
        for of in lock {
            let operation = &case.operations[of];
            let mut complain = |text: String| {
                verdicts.push(Verdict {
                    checker: Checker::Honesty,
                    text,
                    excuse: None,
                    events: operation.events.clone(),
                });
            };
            let held = if operation.shared { &before_readers } else { &possible };
            answer(case, of, held).map(&mut complain);
            loss(case, operation).map(&mut complain);
            ending(case, operation).map(&mut complain);
        }
    }
    let of_pools = case.operations.iter().filter(|operation| case.pools.contains_key(&*operation.lock));
    for operation in of_pools {
        // An outside observer cannot know the permits of each process at the time of a refusal.
        let complaints = [failure(case, operation), loss(case, operation), ending(case, operation)];
        verdicts.extend(complaints.into_iter().flatten().map(|text| Verdict {
            checker: Checker::Honesty,
            text,
            excuse: None,
            events: operation.events.clone(),
        }));
    }
    verdicts.extend(traces(case));
    verdicts
}

/// Returns the time in which the server may have had a record of this operation. `set_back` is the first change of the server's clock.
fn possible_hold(case: &Case<'_>, of: usize, set_back: Option<u64>) -> Option<Span> {
    let operation = &case.operations[of];
    let (answered, answer) = operation.answer.unzip();
    // A hold without a confirmed release ends with its lease. The lease may have begun as late as the end of the last request.
    let forgotten = |from: u64| from + 2 * case.terms.longest + case.terms.patience;
    let to = match answer {
        Some(Answer::Failed(Outcome::NotSent | Outcome::Rejected)) => {
            return place_left(case, of).map(|place| Span { whose: of, from: operation.invoked, ..place });
        }
        // At the deadline, the last request may have been on its way; the library takes back such a grant. On a majority, a single attempt
        // may have got a server that another attempt lacked.
        Some(Answer::NotGranted) if operation.asks_again() || case.is_majority => {
            let at = answered.unwrap_or(case.terms.end);
            let hindered = case.hindered(operation.id.0, operation.invoked, at);
            if hindered { forgotten(at) } else { at + case.terms.wake }
        }
        // The server may have granted the lock, lost the reply and the lock, and then refused the second request.
        Some(Answer::NotGranted) => {
            let at = answered.filter(|at| case.lost_by(operation.invoked, *at).is_some())?;
            return Some(Span { from: operation.invoked, to: at, whose: of, of });
        }
        Some(Answer::Granted) => match operation.ending {
            Some((at, Ending::Released)) if !case.forgets_release(at) && !is_half_known(case, of, at) => {
                operation.kept_until(at)
            }
            _ => forgotten(operation.kept_until(operation.last.max(operation.valid_until))),
        },
        _ => forgotten(answered.or(operation.killed).unwrap_or(case.terms.end)),
    };
    // A server clock that was set back extends a key's life by the same time.
    let set_back = set_back.is_some_and(|at| at < to);
    let confirmed = operation.min.is_none() && matches!(operation.ending, Some((_, Ending::Released)));
    let to = if set_back && !confirmed { u64::MAX } else { to };
    Some(Span { from: operation.invoked, to, whose: of, of })
}

/// Returns true if another server may not know a release that a majority confirmed at this time. That server refuses other owners until it
/// learns of the release or the lease ends.
fn is_half_known(case: &Case<'_>, of: usize, at: u64) -> bool {
    let operation = &case.operations[of];
    case.is_majority && case.hindered(operation.id.0, operation.last, at)
}

fn answer(case: &Case<'_>, of: usize, possible: &Spans) -> Option<String> {
    let operation = &case.operations[of];
    let (at, answer) = operation.answer?;
    let lock = &operation.lock;
    match answer {
        Answer::NotGranted => {
            if operation.deadline.is_some_and(|deadline| at + MILLISECOND < deadline) {
                return Some(format!("a wait for {lock:?} was given up before its deadline"));
            }
            let held = possible.touching(operation.invoked, at, Some(of)).is_some();
            (!held).then(|| format!("{lock:?} was called held, and nobody can have held it"))
        }
        Answer::Failed(_) => failure(case, operation),
        Answer::Granted | Answer::Cancelled => None,
    }
}

fn failure(case: &Case<'_>, operation: &Operation) -> Option<String> {
    let (at, Answer::Failed(outcome)) = operation.answer? else { return None };
    // The failed request may be that of another waiter, and may have lasted as long as a single call.
    let from = at.saturating_sub(case.terms.patience);
    let hindered = case.hindered(operation.id.0, from, at);
    (!hindered).then(|| format!("acquiring {:?} failed ({outcome}), and nothing was wrong", operation.lock))
}

fn loss(case: &Case<'_>, operation: &Operation) -> Option<String> {
    let (at, reason, valid_until) = operation.lost?;
    let (lock, process) = (&operation.lock, operation.id.0);
    let since = at.saturating_sub(operation.lease);
    // The key expires with the lease at the latest. A belief ends a little earlier.
    let over = at + early(operation) >= valid_until;
    match reason {
        // The library may learn of a jump of the server's clock long after the jump.
        Reason::Expired if !over && case.lost_by(0, at).is_none() => {
            let by = (valid_until - at) / MILLISECOND;
            Some(format!("{lock:?} was called expired {by} ms before its time"))
        }
        Reason::Expired if operation.renewed && !case.hindered(process, since, at) => {
            Some(format!("{lock:?} was called expired, and nothing kept it from being renewed"))
        }
        // The server may be the first to report the end of a lease. An example is its reply to the release at a closure's end.
        Reason::NotOwner
            if case.lost_by(operation.since, at).is_none()
                && !(at + early(operation) >= operation.valid_until && case.hindered(process, since, at)) =>
        {
            Some(format!("{lock:?} was called lost, and nothing had taken it away"))
        }
        // A grant whose answer came late was earlier than the history shows.
        Reason::HeldTooLong
            if operation.over_at().is_none_or(|end| at + early(operation) + case.terms.patience < end) =>
        {
            Some(format!("{lock:?} was called held too long before its maximum"))
        }
        Reason::Expired | Reason::NotOwner | Reason::HeldTooLong => None,
    }
}

fn ending(case: &Case<'_>, operation: &Operation) -> Option<String> {
    let (at, ending) = operation.ending?;
    let begun = operation.ended?;
    let lock = &operation.lock;
    match ending {
        Ending::AlreadyLost => {
            let explained = operation.lost.is_some()
                || at + early(operation) >= operation.valid_until
                || case.lost_by(operation.since, at).is_some();
            (!explained).then(|| format!("{lock:?} was called already lost, and nothing had taken it away"))
        }
        Ending::Unconfirmed => {
            let explained = case.hindered(operation.id.0, begun, at);
            (!explained).then(|| format!("releasing {lock:?} failed, and nothing was wrong"))
        }
        Ending::Released => {
            // The server has certainly expired the hold, so a release cannot succeed. But a late request may have begun a new lease.
            let long_gone = operation.valid_until + operation.lease + 2 * SCHEDULING;
            let anew = case.late.touching(operation.since, at, None).is_some();
            let counted = case.lost_by(operation.since, at).is_none();
            (counted && !anew && operation.lost.is_none() && begun > long_gone)
                .then(|| format!("{lock:?} was called released long after its lease"))
        }
        Ending::Dropped | Ending::Sent => None,
    }
}

/// Returns how long before `valid_until` a guard may report the loss. It is a twentieth of the lease, and at most 100 ms. The wheel's ticks
/// and rounding need as much again.
fn early(operation: &Operation) -> u64 {
    2 * (operation.lease / 20).min(100 * MILLISECOND) + 5 * MILLISECOND
}

/// Finds traces on the server of operations that certainly had no effect.
fn traces(case: &Case<'_>) -> Vec<Verdict> {
    let mut harmless: HashMap<&str, &Operation> = HashMap::new();
    let mut others: HashSet<&str> = HashSet::new();
    for operation in case.operations.iter().filter(|operation| !operation.owner.is_empty()) {
        match operation.answer {
            Some((_, Answer::Failed(Outcome::NotSent | Outcome::Rejected))) => {
                harmless.insert(&operation.owner, operation);
            }
            // The server itself refused, in contrast to a wait that timed out.
            Some((_, Answer::NotGranted)) if !operation.asks_again() => {
                harmless.insert(&operation.owner, operation);
            }
            _ => _ = others.insert(&operation.owner),
        }
    }
    let found = case.events.iter().enumerate().filter_map(|(place, event)| {
        let What::Holder { owner } = &event.what else { return None };
        let operation = harmless.get(owner.as_str()).filter(|_| !others.contains(owner.as_str()))?;
        Some(Verdict {
            checker: Checker::Honesty,
            text: format!("{owner} holds {:?}, and its acquire had been called without effect", event.lock),
            excuse: None,
            events: operation.events.iter().copied().chain([place]).collect(),
        })
    });
    found.collect()
}
