//! Fencing tokens: every grant has a greater one than all grants before it, also where the server has lost its data.

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

    /// A lock that its owner held already.
    fn is_again(&self) -> bool {
        self.operation.kind == Kind::Again
    }
}

/// No token comes twice, and none is smaller than one before it.
///
/// Whoever was granted the lock before another one asked was granted it before that one. Of two whose questions overlap, the
/// one who knew of its grant first had it first: the other one's lease would still have kept it out, unless the server had
/// lost that.
fn rising(case: &Case<'_>, grants: &[Grant<'_>]) -> Vec<Verdict> {
    let mut known: HashMap<u64, Grant<'_>> = HashMap::new();
    let mut verdicts = Vec::new();
    // The greatest token of the grants up to each.
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
                    // With the smaller token it was granted first, and that was lost before the other one was granted it.
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
        // A greatest token keeps its place in time: what is looked for is what was known by then.
        let greater = greater.map_or(*grant, |earlier| Grant { at: grant.at, ..*earlier });
        greatest.push(greater);
    }
    verdicts
}

/// Who holds a lock already gets the token it has.
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
    /// The only thing that excuses a token that falls: the server's clock was set back, and the counter lost. The clock may have been set
    /// back long before, and not be where it had been yet.
    fn clock_set(&self, from: u64, to: u64) -> Option<Fault> {
        let from = if self.lost_by(from, to).is_some() { 0 } else { from };
        self.clock_set.touching(from, to, None).map(|_| Fault::Clock)
    }
}
