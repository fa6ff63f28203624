//! Checker of wake-ups: a release soon reaches a waiter.

use std::collections::HashMap;

use super::super::event::{Outcome, Reason, What};
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

/// Returns the times from the begin of a release to the next grant, in nanoseconds. Counts releases that freed a lock with a waiter, while
/// no fault was active.
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

/// Returns the times from the death of a holder to the next grant, in nanoseconds. Counts deaths with a waiter, while no other fault was
/// active.
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

/// The event that freed a lock.
struct Freed {
    by: usize,
    /// The process that held it, if its death freed the lock.
    dead: Option<usize>,
    at: u64,
    /// The time by which another operation should have got the lock.
    until: u64,
    next: Next,
}

enum Next {
    /// Another operation got the lock. `handed` is true if it had waited.
    Granted { at: u64, handed: bool },
    /// No operation got the lock, although this operation waited.
    Nobody { waiter: usize },
    /// No operation wanted the lock in that time.
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

/// Returns the spans in which processes may have unknown holds. A dead or stopped process may hold locks that it could not record. A
/// process that was shut down with a broken connection may have a place in a queue.
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
    // A place in a queue expires by the server's clock, which is later if that clock is set back.
    let set = case.clock_set.touching(at, to, None).filter(|_| case.is_fair);
    Span { from: at, to: set.map_or(to, |set| to.max(set.to + lasting)), whose: process as usize, of }
}

/// Returns the span in which a waiter may still have a place in a queue, although its wait has failed. The server was unreachable, or
/// rejected the withdrawal.
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
    // The times of failures that may nevertheless have been granted the lock.
    let is_unheard =
        |of: usize| matches!(case.operations[of].answer, Some((_, Answer::Failed(Outcome::MaybeExecuted))));
    let unheard: Vec<u64> =
        answers.iter().filter(|(_, of)| is_unheard(*of)).map(|(answered, _)| *answered).collect();
    let waiting = |of: &usize| {
        let operation = &case.operations[*of];
        let to = operation.answered().or(operation.killed).unwrap_or(u64::MAX);
        // Readers do not all wait for a free lock; `turns` judges them.
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
    // A lock with another shared hold is not free yet.
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
            // A waiter from a queue that the server lost is back in the queue after its next poll.
            let has_lost_its_place = case.is_fair && case.lost_by(at.saturating_sub(ASKS), at).is_some();
            let done = if has_lost_its_place { done + ASKS } else { done };
            // No message tells when the minimum ends. A new head learns it with its next poll.
            let is_kept = operation.kept_until(done) > done;
            let done = operation.kept_until(done) + if is_kept && case.is_fair { ASKS } else { 0 };
            // The server sends no message about a lock that it has lost. A waiter polls at the end of the lease that it knows, and another
            // operation may have got the lock meanwhile.
            let done = match case.lost_by(operation.since, at) {
                Some(_) if was_granted_since(case, by, at, &answers) => continue,
                Some(_) => done.max(operation.valid_until),
                None => done,
            };
            // A late request may have made its sender a reader without its knowledge, and waiters get no message when that lease ends.
            let done = match unknown_reads_end(case, &unheard, at).filter(|_| operation.shared) {
                Some(end) => done.max(operation.valid_until).max(end),
                None => done,
            };
            all.push(follow(case, by, at, done, &answers, &waiting));
        }
        let was_lost =
            |at| case.lost_by(operation.since, at).is_some() && was_granted_since(case, by, at, &answers);
        if let Some((at, done)) = over_at(operation)
            && !is_held(by, at, done)
            && !was_lost(at)
        {
            let done = if case.is_fair { done + ASKS } else { done };
            all.push(follow(case, by, at, done, &answers, &waiting));
        }
        // If the server had lost the lock, another operation may hold it.
        if let Some((at, done)) = abandoned_at(operation)
            && !is_held(by, at, done)
            && !was_lost(at)
        {
            let dead = Some(operation.id.0 as usize);
            // A waiter may know the lease of a reader that has left since. The waiter polls at the end of that lease, and regularly in any
            // case.
            let told = if operation.shared { longest_read(case, lock, at).min(done + REPOLL) } else { done };
            let done = done.max(told);
            // A new head does not know the lease of the previous holder. Waiters that died with the holder may stand before the head.
            let done = if case.is_fair { done.max(places_end(case, lock, by, at)) + ASKS } else { done };
            all.push(Freed { dead, ..follow(case, by, at, done, &answers, &waiting) });
        }
    }
    all
}

/// Returns when the last unknown read hold ends. A request that failed before `at` may have got such a hold; the last failure counts.
fn unknown_reads_end(case: &Case<'_>, unheard: &[u64], at: u64) -> Option<u64> {
    let failed = unheard.partition_point(|answered| *answered <= at);
    let end = unheard.get(..failed)?.last()? + case.terms.longest;
    (at < end).then_some(end)
}

/// Returns when a holder was killed, and when its lease has certainly ended. A renewal just before the kill counts.
fn abandoned_at(operation: &Operation) -> Option<(u64, u64)> {
    let killed = operation.killed?;
    let held = operation.belief.is_some_and(|belief| belief.from < killed && belief.to == killed);
    let end = killed + operation.lease + operation.lease / 50;
    held.then(|| (killed, operation.freed_by().map_or(end, |freed| end.min(freed.max(killed)))))
}

/// Returns when a hold ended by its maximum, while its guard was still there.
fn over_at(operation: &Operation) -> Option<(u64, u64)> {
    let (lost, reason, _) = operation.lost?;
    let over = operation.over_at().filter(|_| reason == Reason::HeldTooLong && !operation.shared)?;
    operation.ended.is_none_or(|ended| ended > over).then_some((lost, operation.freed_by()?))
}

/// Returns the end of the last read lease that had begun by `died`, the death of a reader.
fn longest_read(case: &Case<'_>, lock: &[usize], died: u64) -> u64 {
    let readers = lock.iter().map(|of| &case.operations[*of]).filter(|other| other.shared);
    readers
        .filter_map(|other| (other.belief?.from <= died).then_some(other.valid_until))
        .max()
        .unwrap_or(died)
}

/// Returns when the places of the process in the queue of a fair lock end. The process is that of `by`, which died at `died`.
fn places_end(case: &Case<'_>, lock: &[usize], by: usize, died: u64) -> u64 {
    let may_have_stood = lock.iter().map(|of| &case.operations[*of]).any(|other| {
        // If a waiter left so late, its withdrawal may not have reached the server.
        let had_left = other.answered().is_some_and(|at| at + case.terms.patience < died);
        other.id.0 == case.operations[by].id.0
            && other.waits()
            && other.invoked <= died
            && other.belief.is_none()
            && !had_left
    });
    if may_have_stood { died + case.terms.longest } else { died }
}

/// Returns the begin and the end of the release that freed the lock.
fn freed_at(operation: &Operation) -> Option<(u64, u64)> {
    let (at, (done, ending)) = (operation.ended?, operation.ending?);
    let held = operation.lost.is_none() && operation.belief.is_some_and(|belief| belief.to == at);
    (held && matches!(ending, Ending::Released | Ending::Dropped)).then_some((at, done))
}

/// Returns true if another operation got the lock between this operation's grant and `at`.
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
            // A waiter that leaves may be the waiter that was woken. The next waiter is woken when it leaves.
            Some(_) if operation.waits() => until = until.max(answered + patience),
            _ => {}
        }
    }
    let waiter = waiting.covering(at, until).filter(|_| until < case.terms.end);
    let next = waiter.map_or(Next::Unwanted, |waiter| Next::Nobody { waiter: waiter.of });
    Freed { by, dead: None, at, until, next }
}

/// The time between two polls of a waiter in the queue of a fair lock.
const ASKS: u64 = 2_000 * MILLISECOND;
