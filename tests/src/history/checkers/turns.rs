//! Checker of the turns of readers and writers.
//!
//! Readers do not wait for readers, and no reader overtakes a waiting writer. Knows which operations may block which others, as far as the
//! history shows it. Assumes that writers go first, which is the default of a handle.

use super::super::event::Kind;
use super::super::operations::{Answer, Ending, Operation};
use super::super::spans::{Span, Spans};
use super::super::text::History;
use super::wakeups::absences;
use super::{AFTERMATH, Case, Checker, MILLISECOND, REPOLL, Verdict};

pub(super) fn check(case: &Case<'_>) -> Vec<Verdict> {
    let absent = absences(case);
    let shared = case.by_lock().into_iter().filter(|lock| is_shared(case, lock));
    shared
        .flat_map(|lock| {
            let mut verdicts = readers_wait_for_writers_only(case, &lock, &absent);
            verdicts.extend(readers_stand_behind_writers(case, &lock, &absent));
            verdicts
        })
        .collect()
}

/// The waits of writers for shared locks, in nanoseconds. Only waits that ended with the lock count, without a fault or a dead process.
#[derive(Clone, Debug, Default)]
pub struct WritersWaits {
    /// From the request to the grant.
    pub whole: Vec<u64>,
    /// From the release or withdrawal of the last other writer to the grant. During this time, the writer waited only for readers.
    pub for_readers: Vec<u64>,
    /// The average hold of readers and writers.
    pub mean_hold: u64,
}

/// Measures the waits of writers.
#[must_use]
pub fn writers_waits(history: &History) -> WritersWaits {
    let case = Case::new(history);
    let absent = absences(&case);
    let mut waits = WritersWaits::default();
    let mut holds: Vec<u64> = Vec::new();
    for lock in case.by_lock().into_iter().filter(|lock| is_shared(&case, lock)) {
        let ends = writers_ends(&case, &lock);
        for operation in lock.iter().map(|of| &case.operations[*of]) {
            holds.extend(operation.belief.zip(operation.ended).map(|(belief, ended)| ended - belief.from));
            let Some((at, Answer::Granted)) = operation.answer else { continue };
            let stirred = stirred(&case, &absent, operation.invoked, at);
            if operation.shared || !operation.waits() || stirred {
                continue;
            }
            let last =
                ends.get(..ends.partition_point(|end| *end < at)).and_then(|ends| ends.last().copied());
            waits.whole.push(at - operation.invoked);
            waits.for_readers.push(at - last.unwrap_or(0).max(operation.invoked));
        }
    }
    let all = u64::try_from(holds.len().max(1)).unwrap_or(u64::MAX);
    waits.mean_hold = holds.iter().sum::<u64>() / all;
    waits
}

pub(super) fn is_shared(case: &Case<'_>, lock: &[usize]) -> bool {
    lock.iter().any(|of| case.operations[*of].shared)
}

/// Returns the span in which an operation held its lock. It begins with the return of the acquire, and ends at the latest possible end.
pub(super) fn hold(case: &Case<'_>, of: usize) -> Option<Span> {
    let operation = &case.operations[of];
    let from = operation.belief?.from;
    Some(Span { from, to: end_of_hold(case, operation), whose: of, of })
}

fn end_of_hold(case: &Case<'_>, operation: &Operation) -> u64 {
    match operation.ending {
        Some((at, Ending::Released | Ending::Dropped)) if operation.lost.is_none() => at,
        _ => operation.last.max(operation.valid_until) + 2 * case.terms.longest + case.terms.patience,
    }
}

/// Returns the span in which a writer may block others, because it holds the lock or waits for it.
pub(super) fn in_the_way(case: &Case<'_>, of: usize) -> Option<Span> {
    let operation = &case.operations[of];
    // The mark that a waiting writer leaves for readers expires.
    let lasting = MARK.max(2 * case.terms.longest + case.terms.patience);
    let to = match operation.answer {
        _ if operation.shared => return None,
        Some((_, Answer::Granted)) => {
            let end = end_of_hold(case, operation);
            // A new server may have the mark from before the grant, and the writer's release may not reach that server.
            let is_released = matches!(operation.ending, Some((_, Ending::Released)));
            let back = match is_released {
                true => case.revived(operation, end),
                false => case.replaced_at(operation.invoked, end),
            };
            back.map_or(end, |at| end.max(at.saturating_add(lasting)))
        }
        Some((_, Answer::NotGranted | Answer::Failed(_))) if !operation.waits() => return None,
        answer => {
            let at = answer.map(|(at, _)| at).or(operation.killed).unwrap_or(case.terms.end);
            let quiet = answer.is_some() && !case.hindered(operation.id.0, operation.invoked, at);
            // After the fault, the server may execute a delayed request, long after its sender has died.
            let read = case.disturbed.touching(operation.invoked, at, None).filter(|_| !quiet);
            let at = read.map_or(at, |fault| at.max(fault.to));
            // A writer that gives up removes its mark. Otherwise the mark expires by the server's clock, which is later if that clock is
            // set back.
            let to = at.saturating_add(if quiet { case.terms.wake } else { lasting });
            let set = case.clock_set.touching(at, to, None).filter(|_| !quiet);
            set.map_or(to, |set| to.max(set.to + lasting))
        }
    };
    Some(Span { from: operation.invoked, to, whose: of, of })
}

/// Returns the times when writers began to release, had released, or had given up, in order.
fn writers_ends(case: &Case<'_>, lock: &[usize]) -> Vec<u64> {
    let mut ends: Vec<u64> = lock.iter().filter_map(|of| Some(in_the_way(case, *of)?.to)).collect();
    // Another operation may get the lock before the releasing holder learns of its release.
    ends.extend(
        lock.iter().map(|of| &case.operations[*of]).filter(|operation| !operation.shared).filter_map(
            |operation| operation.ended.or(operation.answered().filter(|_| operation.belief.is_none())),
        ),
    );
    ends.sort_unstable();
    ends
}

fn readers_wait_for_writers_only(case: &Case<'_>, lock: &[usize], absent: &Spans) -> Vec<Verdict> {
    let writers = Spans::new(lock.iter().filter_map(|of| in_the_way(case, *of)).collect());
    let mut verdicts = Vec::new();
    for operation in lock.iter().map(|of| &case.operations[*of]) {
        if !operation.shared || !operation.waits() {
            continue;
        }
        let until = operation.answered().or(operation.killed).unwrap_or(u64::MAX).min(case.terms.end);
        let mut from = operation.invoked;
        loop {
            let deaf = case.deaf.touching(from.saturating_sub(AFTERMATH), from, None).is_some();
            let to = from + if deaf { REPOLL + case.terms.wake } else { case.terms.wake };
            if to >= until {
                break;
            }
            if let Some(writer) = writers.touching(from, to, None) {
                from = writer.to.saturating_add(1);
                continue;
            }
            if stirred(case, absent, from, to) {
                from = to;
                continue;
            }
            verdicts.push(Verdict {
                checker: Checker::Turns,
                text: format!(
                    "a reader of {:?} waited for {} ms while nobody wrote or waited to write",
                    operation.lock,
                    (until - from) / MILLISECOND
                ),
                excuse: None,
                events: operation.events.clone(),
            });
            break;
        }
    }
    verdicts
}

fn readers_stand_behind_writers(case: &Case<'_>, lock: &[usize], absent: &Spans) -> Vec<Verdict> {
    let waiting = |of: &usize| {
        let operation = &case.operations[*of];
        let to = operation.answered().or(operation.killed).unwrap_or(u64::MAX);
        let waits = !operation.shared && operation.waits();
        // By then, the server knows the waiting writer.
        waits.then_some(Span { from: operation.invoked + case.terms.wake, to, whose: *of, of: *of })
    };
    let waiting = Spans::new(lock.iter().filter_map(waiting).filter(|span| span.from < span.to).collect());
    let ends = writers_ends(case, lock);
    let mut verdicts = Vec::new();
    for reader in lock.iter().map(|of| &case.operations[*of]) {
        let Some((at, Answer::Granted)) = reader.answer else { continue };
        // An owner that already holds the lock must not wait behind a waiter.
        if !reader.shared || reader.kind == Kind::Again {
            continue;
        }
        let Some(writer) = waiting.covering(reader.invoked, at) else { continue };
        // With several writers, readers have their turn between two writers.
        let early = reader.invoked.saturating_sub(case.terms.wake);
        let between = ends.get(ends.partition_point(|end| *end < early)).is_some_and(|end| *end <= at);
        if between || stirred(case, absent, early, at) {
            continue;
        }
        let writer = &case.operations[writer.of];
        // A server that has lost the writer learns of it at the next poll. The writer polls at the end of the lease that it knows.
        let learns = early.saturating_sub(case.terms.longest).max(writer.invoked);
        if case.lost_by(learns, at).is_some() {
            continue;
        }
        verdicts.push(Verdict {
            checker: Checker::Turns,
            text: format!(
                "a reader of {:?} came {} ms after a writer who waits, and went before it",
                reader.lock,
                (reader.invoked - writer.invoked) / MILLISECOND
            ),
            excuse: None,
            events: writer.events.iter().chain(&reader.events).copied().collect(),
        });
    }
    verdicts
}

/// Returns true if an outside cause may have changed the length of a wait.
fn stirred(case: &Case<'_>, absent: &Spans, from: u64, to: u64) -> bool {
    let early = from.saturating_sub(AFTERMATH);
    case.disturbed.touching(early, to, None).is_some()
        || case.deaf.touching(early, to, None).is_some()
        || case.any_stall.touching(from, to, None).is_some()
        || absent.touching(from, to, None).is_some()
}

/// The time that readers may wait behind a dead writer.
pub(super) const MARK: u64 = 6_000 * MILLISECOND;
