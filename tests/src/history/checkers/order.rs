//! Checker of fair locks: grants follow arrival.
//!
//! Uses the server's order for both. A waiter may lose its place only if the server lost its data, or its process did not run for long.

use std::collections::HashMap;

use super::super::event::{Fault, Kind, What};
use super::super::operations::{Answer, Operation};
use super::super::text::History;
use super::{Case, Checker, MILLISECOND, Verdict};

pub(super) fn check(case: &Case<'_>) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    for places in books(case) {
        // Of all later arrivals, the place that was served first.
        let mut first: Option<&Place<'_>> = None;
        for place in places.iter().rev() {
            if let Some(other) = first.filter(|other| other.served < place.served)
                && let Some(operation) = place.operation.filter(|_| !place.is_missing)
            {
                verdicts.extend(overtaken(case, place, other, operation));
            }
            if first.is_none_or(|first| place.served < first.served) {
                first = Some(place);
            }
        }
    }
    verdicts
}

/// Returns the number of grants to waiters from a server's queue.
#[must_use]
pub fn queued_grants(history: &History) -> usize {
    let case = Case::new(history);
    let in_turn = |place: &&Place<'_>| place.operation.is_some() && place.arrived < place.served;
    books(&case).iter().map(|places| places.iter().filter(in_turn).count()).sum()
}

/// A waiter's place in the queue of a lock. Arrival and grant are indices into the history.
struct Place<'a> {
    owner: &'a str,
    arrived: usize,
    served: usize,
    /// The waiter's own operation, if the waiter learnt of its grant.
    operation: Option<&'a Operation>,
    /// True if the grant itself was not recorded, but a later event of the hold was.
    is_missing: bool,
}

#[derive(Default)]
struct Seen {
    arrived: Option<usize>,
    served: Option<usize>,
    /// The begin of the gapless record at the time of the grant.
    watched: u64,
}

/// Returns the certain places of each lock, in the order of arrival.
fn books<'a>(case: &'a Case<'_>) -> Vec<Vec<Place<'a>>> {
    let operations: HashMap<&str, &Operation> = case
        .operations
        .iter()
        .filter(|operation| operation.kind != Kind::Again)
        .map(|operation| (operation.owner.as_str(), operation))
        .collect();
    let mut locks: HashMap<&str, HashMap<&str, Seen>> = HashMap::new();
    let mut watched = 0;
    for (place, event) in case.events.iter().enumerate() {
        let owner = match &event.what {
            What::Queued { owner } | What::Served { owner } => owner.as_str(),
            What::Watched => {
                watched = event.at;
                continue;
            }
            _ => continue,
        };
        let seen = locks.entry(event.lock.as_str()).or_default().entry(owner).or_default();
        if matches!(event.what, What::Queued { .. }) {
            // The owner was served before and has released its hold. This entry comes from a late request.
            if seen.served.is_none() {
                seen.arrived.get_or_insert(place);
            }
        } else if seen.served.is_none() {
            (seen.served, seen.watched) = (Some(place), watched);
            // The waiter did not queue, or it queued before the record began.
            let came_since = operations.get(owner).is_some_and(|operation| {
                // An adopter takes the place of the holder, and does not queue.
                operation.invoked > watched && operation.kind != Kind::Adopt
            });
            seen.arrived = seen.arrived.or(came_since.then_some(place));
        }
    }
    let mut all: Vec<(&str, Vec<Place<'_>>)> = Vec::new();
    for (lock, owners) in locks {
        let place = |(owner, seen): (&'a str, Seen)| {
            let operation = operations.get(owner).copied();
            let answer = operation.and_then(|operation| operation.answer);
            let granted = answer.filter(|(_, answer)| *answer == Answer::Granted).map(|(at, _)| at);
            Some(Place {
                owner,
                arrived: seen.arrived?,
                served: seen.served?,
                operation: operation.filter(|operation| operation.waits() && granted.is_some()),
                is_missing: granted.is_some_and(|at| at < seen.watched),
            })
        };
        let mut places: Vec<_> = owners.into_iter().filter_map(place).collect();
        places.sort_unstable_by_key(|place| place.arrived);
        all.push((lock, places));
    }
    all.sort_unstable_by_key(|(lock, _)| *lock);
    all.into_iter().map(|(_, places)| places).collect()
}

fn overtaken(
    case: &Case<'_>,
    place: &Place<'_>,
    other: &Place<'_>,
    operation: &Operation,
) -> Option<Verdict> {
    let time = |of: usize| case.events[of].at;
    let (from, to) = (time(place.arrived), time(place.served));
    let slept = case.events.iter().any(|event| {
        let own = event.process == operation.id.0 && (from..to).contains(&event.at);
        own && matches!(event.what, What::Stalled { until } if until - event.at > UNHEARD)
    });
    (!slept).then(|| Verdict {
        checker: Checker::Order,
        text: format!(
            "{} stood in the queue of {:?}, and {}, who came {} ms later, was served before it",
            place.owner,
            operation.lock,
            other.owner,
            (time(other.arrived) - from) / MILLISECOND
        ),
        // A waiter does not wait until replicas have its place in a queue.
        excuse: case.lost_by(from, to).or(case.was_replaced(from, to).then_some(Fault::Replaced)),
        events: operation
            .events
            .iter()
            .copied()
            .chain([place.arrived, place.served, other.arrived, other.served])
            .collect(),
    })
}

/// The silence after which a waiter may lose its place, on the safe side. A waiter polls every 2 s, and counts as dead after 5 s without a
/// poll.
const UNHEARD: u64 = 2_500 * MILLISECOND;
