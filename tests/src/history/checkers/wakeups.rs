//! A release with a waiter present is followed by a grant, soon.

use std::collections::HashMap;

use super::super::event::{Outcome, What};
use super::super::operations::{Answer, Ending, Operation};
use super::super::spans::{Span, Spans};
use super::super::text::History;
use super::turns::{hold, is_shared};
use super::{AFTERMATH, Case, Checker, MILLISECOND, REPOLL, Verdict};

pub(super) fn check(case: &Case<'_>) -> Vec<Verdict> {
    let absent = absences(case);
    let verdict = |freed: &Freed| match freed.next {
        Next::Nobody { waiter } if !freed.stirred(case, &absent) => {
            let (holder, waiter) = (&case.operations[freed.by], &case.operations[waiter]);
            Some(Verdict {
                checker: Checker::WakeUps,
                text: format!(
                    "{:?} was free for {} ms and nobody who waited for it got it",
                    holder.lock,
                    (freed.until - freed.at) / MILLISECOND
                ),
                excuse: None,
                events: holder.events.iter().chain(&waiter.events).copied().collect(),
            })
        }
        _ => None,
    };
    freed(case).iter().filter_map(verdict).collect()
}

/// How long it took from the beginning of a release that freed a lock, with a waiter present and nothing disturbed, to
/// the next grant; in nanoseconds.
#[must_use]
pub fn handoffs(history: &History) -> Vec<u64> {
    let case = Case::new(history);
    let absent = absences(&case);
    let handoff = |freed: &Freed| match freed.next {
        Next::Granted { at, handed: true } if freed.dead.is_none() && !freed.stirred(&case, &absent) => {
            Some(at - freed.at)
        }
        _ => None,
    };
    freed(&case).iter().filter_map(handoff).collect()
}

/// How long it took from the death of a process that held a lock, with a waiter present and nothing else disturbed, to the
/// next grant; in nanoseconds.
#[must_use]
pub fn takeovers(history: &History) -> Vec<u64> {
    let case = Case::new(history);
    let absent = absences(&case);
    let takeover = |freed: &Freed| match freed.next {
        Next::Granted { at, handed: true } if freed.dead.is_some() && !freed.stirred(&case, &absent) => {
            Some(at - freed.at)
        }
        _ => None,
    };
    freed(&case).iter().filter_map(takeover).collect()
}

/// A lock was freed.
struct Freed {
    by: usize,
    /// The process that held it, if its death freed the lock.
    dead: Option<usize>,
    at: u64,
    /// By when somebody should have had it.
    until: u64,
    next: Next,
}

enum Next {
    /// Somebody had it; `handed` if that one had waited for it.
    Granted { at: u64, handed: bool },
    /// Nobody, although this one waited.
    Nobody { waiter: usize },
    /// Nobody wanted it for so long.
    Unwanted,
}

impl Freed {
    fn stirred(&self, case: &Case<'_>, absent: &Spans) -> bool {
        let early = self.at.saturating_sub(AFTERMATH);
        case.disturbed.touching(early, self.until, None).is_some()
            || case.any_stall.touching(self.at, self.until, None).is_some()
            || absent.touching(self.at, self.until, self.dead).is_some()
    }
}

/// After the death of a process, or while it is stopped, it may hold locks of which it could not tell. So may one that was shut down
/// while its connection was broken have a place in a queue.
pub(super) fn absences(case: &Case<'_>) -> Spans {
    let events = case.events.iter().enumerate();
    let gone =
        events.filter(|(_, event)| matches!(event.what, What::Killed | What::Stopped | What::Continued));
    let gone = gone.map(|(of, event)| absence(case, event.process, event.at, of));
    Spans::new(gone.chain((0..case.operations.len()).filter_map(|of| place_left(case, of))).collect())
}

fn absence(case: &Case<'_>, process: u32, at: u64, of: usize) -> Span {
    let lasting = case.terms.longest + AFTERMATH;
    let to = at + lasting;
    // A place in a queue ends by the server's clock, and later if that is set back.
    let set = case.clock_set.touching(at, to, None).filter(|_| case.is_fair);
    Span { from: at, to: set.map_or(to, |set| to.max(set.to + lasting)), whose: process as usize, of }
}

/// While a waiter's place may be in a queue although its wait has failed: the server could not be told, or refused to hear of it.
pub(super) fn place_left(case: &Case<'_>, of: usize) -> Option<Span> {
    let operation = &case.operations[of];
    let (at, answer) = operation.answer.filter(|_| case.is_fair && operation.waits())?;
    let is_cut_off = || case.disturbed.touching(at.saturating_sub(AFTERMATH), at - 1, None).is_some();
    (matches!(answer, Answer::Failed(Outcome::NotSent | Outcome::Rejected)) && is_cut_off())
        .then(|| absence(case, operation.id.0, at, of))
}

fn freed(case: &Case<'_>) -> Vec<Freed> {
    case.by_lock().iter().flat_map(|lock| freed_of(case, lock)).collect()
}

fn freed_of(case: &Case<'_>, lock: &[usize]) -> Vec<Freed> {
    let mut answers: Vec<(u64, usize)> =
        lock.iter().filter_map(|of| Some((case.operations[*of].answered()?, *of))).collect();
    answers.sort_unstable();
    // When those failed who may have been granted the lock all the same.
    let is_unheard =
        |of: usize| matches!(case.operations[of].answer, Some((_, Answer::Failed(Outcome::MaybeExecuted))));
    let unheard: Vec<u64> =
        answers.iter().filter(|(_, of)| is_unheard(*of)).map(|(answered, _)| *answered).collect();
    let waiting = |of: &usize| {
        let operation = &case.operations[*of];
        let to = operation.answered().or(operation.killed).unwrap_or(u64::MAX);
        // Of those who share a lock not everybody waits for it to be free; `turns` judges them.
        let waits = operation.waits() && !operation.shared;
        waits.then_some(Span { from: operation.invoked, to, whose: 0, of: *of })
    };
    let waiting = Spans::new(lock.iter().filter_map(waiting).collect());
    let mut last_of_owner: HashMap<&str, u64> = HashMap::new();
    for of in lock {
        let operation = &case.operations[*of];
        let last = last_of_owner.entry(&operation.owner).or_default();
        *last = (*last).max(operation.ended.unwrap_or(u64::MAX));
    }
    let shared = is_shared(case, lock).then(|| {
        let mut owners: HashMap<&str, usize> = HashMap::new();
        let whose: HashMap<usize, usize> = lock
            .iter()
            .map(|of| {
                let next = owners.len();
                (*of, *owners.entry(&case.operations[*of].owner).or_insert(next))
            })
            .collect();
        let holds = lock.iter().filter_map(|of| Some(Span { whose: whose[of], ..hold(case, *of)? }));
        (Spans::new(holds.collect()), whose)
    });
    // A lock that others share is not free yet.
    let is_held = |by: usize, from: u64, to: u64| {
        shared
            .as_ref()
            .is_some_and(|(holds, whose)| holds.touching(from, to, whose.get(&by).copied()).is_some())
    };
    let mut all = Vec::new();
    for &by in lock {
        let operation = &case.operations[by];
        if let Some((at, done)) = freed_at(operation)
            && last_of_owner.get(operation.owner.as_str()) == Some(&at)
            && !is_held(by, at, done)
        {
            // Who had stood in a queue that the server lost stands there again when it has asked.
            let has_lost_its_place = case.is_fair && case.lost_by(at.saturating_sub(ASKS), at).is_some();
            let done = if has_lost_its_place { done + ASKS } else { done };
            // Of what the server had forgotten nobody is told: who waits asks when the lease ends of which it knows, and somebody else
            // may have it meanwhile.
            let done = match case.lost_by(operation.since, at) {
                Some(_) if was_granted_since(case, by, at, &answers) => continue,
                Some(_) => done.max(operation.valid_until),
                None => done,
            };
            // One whose question came late may read without knowing it, and nobody is told when its lease ends.
            let done = match unknown_reads_end(case, &unheard, at).filter(|_| operation.shared) {
                Some(end) => done.max(operation.valid_until).max(end),
                None => done,
            };
            all.push(follow(case, by, at, done, &answers, &waiting));
        }
        let was_lost =
            |at| case.lost_by(operation.since, at).is_some() && was_granted_since(case, by, at, &answers);
        // What the server had forgotten somebody else has, if not nobody.
        if let Some((at, done)) = abandoned_at(operation)
            && !is_held(by, at, done)
            && !was_lost(at)
        {
            let dead = Some(operation.id.0 as usize);
            // Who was told of the lease of a reader who has left since asks when that would have ended, or from time to time in any case.
            let told = if operation.shared { longest_read(case, lock, at).min(done + REPOLL) } else { done };
            let done = done.max(told);
            // Who has become the first since it asked last does not know the lease of the one before, and those who died with the holder
            // may stand before it.
            let done = if case.is_fair { done.max(places_end(case, lock, by, at)) + ASKS } else { done };
            all.push(Freed { dead, ..follow(case, by, at, done, &answers, &waiting) });
        }
    }
    all
}

/// When the last lease ends of those who may read a lock that a reader gives back then, and do not know it: who failed last,
/// as late as that.
fn unknown_reads_end(case: &Case<'_>, unheard: &[u64], at: u64) -> Option<u64> {
    let failed = unheard.partition_point(|answered| *answered <= at);
    let end = unheard.get(..failed)?.last()? + case.terms.longest;
    (at < end).then_some(end)
}

/// When a holder was killed, and when its lease is over for certain: it may have been renewed just before.
fn abandoned_at(operation: &Operation) -> Option<(u64, u64)> {
    let killed = operation.killed?;
    let held = operation.belief.is_some_and(|belief| belief.from < killed && belief.to == killed);
    held.then(|| (killed, killed + operation.lease + operation.lease / 50))
}

/// When the last lease ends of those who read with one who died then, or had done so.
fn longest_read(case: &Case<'_>, lock: &[usize], died: u64) -> u64 {
    let readers = lock.iter().map(|of| &case.operations[*of]).filter(|other| other.shared);
    readers
        .filter_map(|other| (other.belief?.from <= died).then_some(other.valid_until))
        .max()
        .unwrap_or(died)
}

/// When those places in the queue of a fair lock end that the process of the operation `by` may have had when it died.
fn places_end(case: &Case<'_>, lock: &[usize], by: usize, died: u64) -> u64 {
    let may_have_stood = lock.iter().map(|of| &case.operations[*of]).any(|other| {
        // Who left so late may not have told the server.
        let had_left = other.answered().is_some_and(|at| at + case.terms.patience < died);
        other.id.0 == case.operations[by].id.0
            && other.waits()
            && other.invoked <= died
            && other.belief.is_none()
            && !had_left
    });
    if may_have_stood { died + case.terms.longest } else { died }
}

/// When an operation freed its lock: the beginning and the end of that.
fn freed_at(operation: &Operation) -> Option<(u64, u64)> {
    let (at, (done, ending)) = (operation.ended?, operation.ending?);
    let held = operation.lost.is_none() && operation.belief.is_some_and(|belief| belief.to == at);
    (held && matches!(ending, Ending::Released | Ending::Dropped)).then_some((at, done))
}

/// Whether somebody was given the lock between this operation's grant and then.
fn was_granted_since(case: &Case<'_>, by: usize, at: u64, answers: &[(u64, usize)]) -> bool {
    let from = case.operations[by].answered().unwrap_or(at);
    let [begin, end] = [from, at].map(|at| answers.partition_point(|(answered, _)| *answered < at));
    let is_grant = |(_, of): &(u64, usize)| {
        *of != by && matches!(case.operations[*of].answer, Some((_, Answer::Granted)))
    };
    answers.get(begin..end).unwrap_or_default().iter().any(is_grant)
}

fn follow(
    case: &Case<'_>,
    by: usize,
    at: u64,
    done: u64,
    answers: &[(u64, usize)],
    waiting: &Spans,
) -> Freed {
    let deaf = case.deaf.touching(at.saturating_sub(AFTERMATH), done, None).is_some();
    let patience = if deaf { case.terms.longest.max(REPOLL) + case.terms.wake } else { case.terms.wake };
    let mut until = done + patience;
    let after = answers.partition_point(|(answered, _)| *answered < at);
    for &(answered, of) in answers.get(after..).unwrap_or_default() {
        if answered > until {
            break;
        }
        let operation = &case.operations[of];
        match operation.answer {
            Some((_, Answer::Granted)) => {
                let next = Next::Granted { at: answered, handed: operation.invoked < at };
                return Freed { by, dead: None, at, until, next };
            }
            // Whoever leaves may have been the one that was woken; the next one is told when it leaves.
            Some(_) if operation.waits() => until = until.max(answered + patience),
            _ => {}
        }
    }
    let waiter = waiting.covering(at, until).filter(|_| until < case.terms.end);
    let next = waiter.map_or(Next::Unwanted, |waiter| Next::Nobody { waiter: waiter.of });
    Freed { by, dead: None, at, until, next }
}

/// Time between two questions of one who stands in the queue of a fair lock.
const ASKS: u64 = 2_000 * MILLISECOND;
