//! Checker of latches.
//!
//! A waiter continues soon after its latch has opened, and not before. Each latch is counted down as many times as reported.

use std::collections::HashMap;

use super::super::event::{Change, Event, Outcome, What};
use super::liveness::FIRST_ANSWER;
use super::{Case, Checker, MILLISECOND, SCHEDULING, Verdict};

pub(super) fn check(case: &Case<'_>) -> Vec<Verdict> {
    let (calls, latches) = (calls(case.events), latches(case.events));
    let mut verdicts: Vec<Verdict> = calls
        .iter()
        .filter_map(|call| {
            let (checker, text) = judge(case, call, latches.get(call.latch).map_or(&[], Vec::as_slice))?;
            Some(Verdict { checker, text, excuse: None, events: call.events.clone() })
        })
        .collect();
    verdicts.extend(miscounted(case.events, &calls));
    verdicts
}

/// A call of a latch.
struct Call<'a> {
    latch: &'a str,
    process: u32,
    asks: Asks,
    /// The index and the time of the call's begin.
    begins: (usize, u64),
    /// The index, the time and the event of the call's end.
    ended: Option<(usize, u64, &'a What)>,
    killed: Option<u64>,
    events: Vec<usize>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Asks {
    ToPass { deadline: Option<u64> },
    For(Change),
}

fn calls(events: &[Event]) -> Vec<Call<'_>> {
    let (mut calls, mut open) = (Vec::<Call<'_>>::new(), HashMap::new());
    for (place, event) in events.iter().enumerate() {
        let id = (event.process, event.op);
        let asks = match event.what {
            What::Awaits { deadline } => Asks::ToPass { deadline },
            What::Changes { how } => Asks::For(how),
            What::Passed
            | What::Changed { .. }
            | What::NotGranted
            | What::Failed { .. }
            | What::Cancelled => {
                if let Some(call) = open.remove(&id).and_then(|index: usize| calls.get_mut(index)) {
                    call.ended = Some((place, event.at, &event.what));
                    call.events.push(place);
                }
                continue;
            }
            What::Killed => {
                let of_process =
                    calls.iter_mut().filter(|call| call.process == event.process && call.ended.is_none());
                of_process.for_each(|call| call.killed = Some(event.at));
                continue;
            }
            _ => continue,
        };
        open.insert(id, calls.len());
        calls.push(Call {
            latch: &event.lock,
            process: event.process,
            asks,
            begins: (place, event.at),
            ended: None,
            killed: None,
            events: vec![place],
        });
    }
    calls
}

/// A state of the latch, from an index in the history on.
struct Step {
    place: usize,
    at: u64,
    is_open: bool,
    /// True if the latch was open since the step before, at least for a moment.
    has_opened: bool,
}

fn latches(events: &[Event]) -> HashMap<&str, Vec<Step>> {
    let (mut latches, mut last) = (HashMap::<&str, Vec<Step>>::new(), HashMap::new());
    for (place, event) in events.iter().enumerate() {
        if let What::Latch { left, opened } = event.what {
            let before = last.insert(event.lock.as_str(), opened).unwrap_or_default();
            let (is_open, has_opened) = (left == 0, left == 0 || opened != before);
            latches.entry(&event.lock).or_default().push(Step { place, at: event.at, is_open, has_opened });
        }
    }
    latches
}

fn judge(case: &Case<'_>, call: &Call<'_>, steps: &[Step]) -> Option<(Checker, String)> {
    let (latch, (_, begins)) = (call.latch, call.begins);
    let over = call.ended.map(|(_, at, _)| at).or(call.killed);
    let until = over.unwrap_or(case.terms.end);
    if over.is_none() {
        return Some((Checker::Liveness, format!("a call about the latch {latch:?} never ended")));
    }
    if let Some((_, at, What::Failed { outcome, .. })) = call.ended {
        let from = at.saturating_sub(case.terms.patience).max(begins);
        let text = format!("a call about the latch {latch:?} failed ({outcome}), and nothing was wrong");
        return (!case.hindered(call.process, from, at)).then_some((Checker::Honesty, text));
    }
    let Asks::ToPass { deadline } = call.asks else { return None };
    if let Some((place, _, What::Passed)) = call.ended
        && !was_open(call, steps, place)
    {
        let text = format!("a wait for the latch {latch:?} ended, and it had not been open meanwhile");
        return Some((Checker::Honesty, text));
    }
    if let Some((_, at, What::NotGranted)) = call.ended
        && deadline.is_some_and(|deadline| at + MILLISECOND < deadline)
    {
        let text = format!("a wait for the latch {latch:?} was given up before its deadline");
        return Some((Checker::Honesty, text));
    }
    let deadline = deadline.map(|deadline| deadline.max(begins + FIRST_ANSWER) + SCHEDULING);
    if let Some(deadline) = deadline.filter(|deadline| until > *deadline)
        && !case.stalled(call.process, deadline - SCHEDULING, until)
    {
        let text = format!("a wait for the latch {latch:?} went on beyond its deadline");
        return Some((Checker::Liveness, text));
    }
    let since = overslept(case, call, steps, until)?;
    let ms = (until - since) / MILLISECOND;
    let text = format!("a wait for the latch {latch:?} went on for {ms} ms although it had been open");
    Some((Checker::WakeUps, text))
}

/// Returns the state of the latch when the call began, and all later steps while `until` holds.
fn meanwhile<'a>(
    call: &Call<'_>,
    steps: &'a [Step],
    until: impl Fn(&Step) -> bool,
) -> (bool, impl Iterator<Item = &'a Step>) {
    let begun = steps.partition_point(|step| step.place < call.begins.0);
    let (before, after) = steps.split_at(begun);
    let after = after.get(..after.partition_point(until)).unwrap_or_default();
    // A latch that was never set is open.
    (before.last().is_none_or(|step| step.is_open), after.iter())
}

fn was_open(call: &Call<'_>, steps: &[Step], place: usize) -> bool {
    let (at_first, mut then) = meanwhile(call, steps, |step| step.place < place);
    at_first || then.any(|step| step.has_opened)
}

/// Returns when the call should have known that the latch was open.
fn overslept(case: &Case<'_>, call: &Call<'_>, steps: &[Step], until: u64) -> Option<u64> {
    let ((_, begins), wake) = (call.begins, case.terms.wake);
    let (at_first, then) = meanwhile(call, steps, |step| step.at < until);
    let mut open_since = at_first.then_some(begins);
    for step in then {
        if let Some(missed) = open_since.and_then(|since| missed(case, call, since, step.at)) {
            return Some(missed);
        }
        // A waiter of that time gets the news, even if another latch is set at once.
        let known = step.has_opened && step.at >= begins + wake && step.at + wake < until;
        if known && !case.hindered(call.process, begins, step.at + wake) {
            return Some(step.at);
        }
        open_since = step.is_open.then(|| open_since.unwrap_or(step.at));
    }
    open_since.and_then(|since| missed(case, call, since, until))
}

/// Returns when the call should have passed a latch that was open from `since` to `until`. A waiter that was hindered polls after the
/// hindrance.
fn missed(case: &Case<'_>, call: &Call<'_>, since: u64, until: u64) -> Option<u64> {
    let wake = case.terms.wake;
    let mut from = since;
    while from + wake < until {
        if !case.hindered(call.process, from, from + wake) {
            return Some(from);
        }
        from += wake;
    }
    None
}

/// Compares the counts. A call with a reply has counted a latch down once; a call without a reply has done so at most once.
fn miscounted(events: &[Event], calls: &[Call<'_>]) -> Vec<Verdict> {
    let counted = events.iter().enumerate().filter_map(|(place, event)| match &event.what {
        What::Probe { name, found, .. } if name == COUNTED_DOWN => Some((place, &event.lock, *found)),
        _ => None,
    });
    let verdict = |(place, latch, found): (usize, &String, u64)| {
        let count = |is_so: fn(Option<&What>) -> bool| {
            let of_latch = calls.iter().filter(|call| call.latch == latch);
            let of_latch = of_latch.filter(|call| call.asks == Asks::For(Change::CountDown));
            of_latch.filter(|call| is_so(call.ended.map(|(.., what)| what))).count() as u64
        };
        let certain = count(|ended| matches!(ended, Some(What::Changed { .. })));
        let possible = count(|ended| match ended {
            None | Some(What::Cancelled) => true,
            Some(What::Failed { outcome, .. }) => *outcome == Outcome::MaybeExecuted,
            Some(_) => false,
        });
        (!(certain..=certain + possible).contains(&found)).then(|| Verdict {
            checker: Checker::Leaks,
            text: format!(
                "the latch {latch:?} was counted down {found} times; {certain} calls did so, at most {possible} more"
            ),
            excuse: None,
            events: vec![place],
        })
    };
    counted.filter_map(verdict).collect()
}

/// The probe that counts how many times a latch was counted down.
pub const COUNTED_DOWN: &str = "times counted down";
