//! Checker of fencing tokens: every grant has a greater token.
//!
//! The rule holds even if the server has lost its data.

use std::collections::HashMap;

use super::super::event::{Fault, Kind};
use super::super::operations::{Answer, Operation};
use super::{Case, Checker, Verdict};

pub(super) fn check(case: &Case<'_>) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    for lock in case.by_lock() {
        let mut grants: Vec<Grant<'_>> =
            lock.iter().filter_map(|of| Grant::of(&case.operations[*of])).collect();
        grants.sort_by_key(|grant| grant.at);
        verdicts.extend(rising(case, &grants));
        verdicts.extend(again(case, &grants));
    }
    verdicts
}

/// A grant with a token.
#[derive(Clone, Copy)]
struct Grant<'a> {
    at: u64,
    token: u64,
    operation: &'a Operation,
}

impl<'a> Grant<'a> {
    fn of(operation: &'a Operation) -> Option<Self> {
        match (operation.answer, operation.token) {
            (Some((at, Answer::Granted)), Some(token)) => Some(Self { at, token, operation }),
            _ => None,
        }
    }

    /// Returns true if the owner already held the lock.
    fn is_again(&self) -> bool {
        self.operation.kind == Kind::Again
    }
}

/// Checks that tokens are unique and rise.
///
/// If an operation knew of its grant before another operation began, its grant was earlier. If the requests of two operations overlap, the
/// operation that knew of its grant first got it first. Its lease would have refused the other operation, unless the server had lost the
/// lock.
fn rising(case: &Case<'_>, grants: &[Grant<'_>]) -> Vec<Verdict> {
    let mut known: HashMap<u64, Grant<'_>> = HashMap::new();
    let mut verdicts = Vec::new();
    // For each grant, the greatest token up to it.
    let mut greatest: Vec<Grant<'_>> = Vec::new();
    for grant in grants.iter().filter(|grant| !grant.is_again()) {
        let mut complain = |earlier: &Grant<'_>, text: String| {
            verdicts.push(Verdict {
                checker: Checker::Tokens,
                text,
                excuse: case.clock_set(earlier.operation.invoked, grant.at),
                events: earlier.operation.events.iter().chain(&grant.operation.events).copied().collect(),
            });
        };
        let (lock, token) = (&grant.operation.lock, grant.token);
        if let Some(earlier) = known.insert(token, *grant) {
            complain(&earlier, format!("token {token} of {lock:?} was given twice"));
        } else {
            let before = greatest.partition_point(|earlier| earlier.at < grant.operation.invoked);
            let certain = before.checked_sub(1).and_then(|place| greatest.get(place));
            let believed = greatest
                .last()
                .filter(|_| grant.operation.belief.is_some_and(|belief| belief.from < belief.to))
                .filter(|earlier| {
                    // The earlier operation got the smaller token first, and the server lost its lock before it granted the other.
                    let told = earlier.operation.answered().unwrap_or(grant.at);
                    case.lost_by(grant.operation.invoked, told).is_none()
                });
            if let Some(earlier) =
                [certain, believed].into_iter().flatten().find(|earlier| earlier.token > token)
            {
                complain(earlier, format!("token {token} of {lock:?} came after {}", earlier.token));
            }
        }
        let greater = greatest.last().filter(|earlier| earlier.token > token);
        // The greatest token gets this grant's time, because the search is for tokens that were known by then.
        let greater = greater.map_or(*grant, |earlier| Grant { at: grant.at, ..*earlier });
        greatest.push(greater);
    }
    verdicts
}

/// Checks that an owner gets its existing token again if it already holds the lock.
fn again(case: &Case<'_>, grants: &[Grant<'_>]) -> Vec<Verdict> {
    let mut latest: HashMap<&str, Grant<'_>> = HashMap::new();
    let mut verdicts = Vec::new();
    for grant in grants {
        let owner = grant.operation.owner.as_str();
        if let Some(outer) = latest.get(owner).filter(|_| grant.is_again())
            && outer.token != grant.token
        {
            let (lock, token, outer_token) = (&grant.operation.lock, grant.token, outer.token);
            let excused = case.lost_by(outer.operation.invoked, grant.at);
            let ran_out = outer.operation.lost.is_some() || outer.operation.valid_until < grant.at;
            if !ran_out {
                verdicts.push(Verdict {
                    checker: Checker::Tokens,
                    text: format!("{owner} holds {lock:?} with token {outer_token}, and was given {token}"),
                    excuse: excused,
                    events: outer.operation.events.iter().chain(&grant.operation.events).copied().collect(),
                });
            }
        }
        latest.insert(owner, *grant);
    }
    verdicts
}

impl Case<'_> {
    /// Returns the only excuse for a falling token: the server's clock was set back, and the server lost the counter. The clock may have
    /// been set back long before, and may not have caught up yet.
    fn clock_set(&self, from: u64, to: u64) -> Option<Fault> {
        let from = if self.lost_by(from, to).is_some() { 0 } else { from };
        self.clock_set.touching(from, to, None).map(|_| Fault::Clock)
    }
}
