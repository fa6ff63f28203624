//! The statistics of a history, and their display.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::{Value, json};

use crate::history::{
    Answer, Belief, Checker, DEAD_TOOK, Ending, Event, Fault, History, OTHERS, Outcome, Reason, Told,
    Verdict, What, handoffs, most_inside, operations, queued_grants, takeovers, told, writers_waits,
};

/// The counts of a campaign.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// Attempts to acquire.
    pub operations: u64,
    /// Grants.
    pub grants: u64,
    /// Grants to Redisson.
    pub grants_of_others: u64,
    /// Violations without a fault as their excuse, by checker.
    pub violations: BTreeMap<Checker, u64>,
    /// Double grants where the server had lost its data.
    pub excused: u64,
    /// Holders whose locks a fault deleted, and whether they learned of it before the next grant.
    pub told: Told,
    /// Releases that found the lock lost.
    pub already_lost: u64,
    /// Dropped futures of acquires.
    pub cancelled: u64,
    /// Processes killed.
    pub kills: u64,
    /// Processes stopped.
    pub stops: u64,
    /// Replicas that took over.
    pub failovers: u64,
    /// Holds that were valid for a whole lease after a strike at their server began. They were renewed after it.
    pub outlived: u64,
    /// Jumps of the server's clock, as the workers saw them.
    pub clock_jumps: u64,
    /// Holds that passed between tasks without a request to the server.
    pub hand_overs: u64,
    /// Grants by process, for processes that wanted a lock.
    pub grants_by_process: BTreeMap<u32, u64>,
    /// Attempts to acquire by process.
    pub operations_by_process: BTreeMap<u32, u64>,
    /// Keys that remain at the end.
    pub keys_left: u64,
    /// Writes with a token, and the late writes among them that were refused.
    pub writes: (u64, u64),
    /// Grants of fair locks to waiters from the server's queue.
    pub queued_grants: usize,
    /// For a pool: the highest number of permits held at once, and the number of permits that killed processes held.
    pub pool: (u64, u64),
    lost: BTreeMap<Reason, u64>,
    errors: BTreeMap<Outcome, u64>,
    unconfirmed: u64,
    faults: BTreeMap<Fault, u64>,
    recovery: Times,
    handoff: Times,
    takeover: Times,
    /// For shared locks: the average time of a hold, the waits of writers, and their waits for readers only.
    mean_hold: u64,
    writers: Times,
    for_readers: Times,
}

impl Figures {
    /// Counts the events of a history.
    #[must_use]
    pub fn of(history: &History, verdicts: &[Verdict]) -> Self {
        let mut figures = Self::default();
        for verdict in verdicts {
            match verdict.excuse {
                None => *figures.violations.entry(verdict.checker).or_default() += 1,
                // The witness saw the same double grant, which is counted already.
                Some(_) => figures.excused += u64::from(verdict.checker == Checker::Exclusion),
            }
        }
        let is_strike = |event: &&Event| matches!(event.what, What::Begins { fault: Fault::Replaced, .. });
        let strikes: Vec<u64> = history.events.iter().filter(is_strike).map(|event| event.at).collect();
        for operation in operations(&history.events) {
            figures.operations += 1;
            let outlives = |belief: Belief| {
                let outlived = |strike: &u64| belief.from < *strike && strike + operation.lease < belief.to;
                strikes.iter().any(outlived)
            };
            figures.outlived += u64::from(operation.belief.is_some_and(outlives));
            let granted = matches!(operation.answer, Some((_, Answer::Granted)));
            *figures.operations_by_process.entry(operation.id.0).or_default() += 1;
            *figures.grants_by_process.entry(operation.id.0).or_default() += u64::from(granted);
            match operation.answer.map(|(_, answer)| answer) {
                Some(Answer::Granted) => {
                    figures.grants += 1;
                    figures.grants_of_others += u64::from(operation.id.0 > OTHERS);
                }
                Some(Answer::Failed(outcome)) => *figures.errors.entry(outcome).or_default() += 1,
                Some(Answer::Cancelled) => figures.cancelled += 1,
                Some(Answer::NotGranted) | None => {}
            }
            if let Some((_, reason, _)) = operation.lost {
                *figures.lost.entry(reason).or_default() += 1;
            }
            match operation.ending {
                Some((_, Ending::AlreadyLost)) => figures.already_lost += 1,
                Some((_, Ending::Unconfirmed)) => figures.unconfirmed += 1,
                _ => {}
            }
        }
        figures.count(history);
        figures.told = told(history);
        figures.queued_grants = queued_grants(history);
        figures.recovery = Times::of(recoveries(history));
        figures.handoff = Times::of(handoffs(history));
        figures.takeover = Times::of(takeovers(history));
        let waits = writers_waits(history);
        figures.pool.0 = most_inside(history);
        figures.mean_hold = waits.mean_hold;
        figures.writers = Times::of(waits.whole);
        figures.for_readers = Times::of(waits.for_readers);
        figures
    }

    fn count(&mut self, history: &History) {
        for event in &history.events {
            match &event.what {
                What::Killed => self.kills += 1,
                What::Stopped => self.stops += 1,
                What::Begins { fault, .. } => *self.faults.entry(*fault).or_default() += 1,
                What::Wrote { accepted, .. } => {
                    self.writes.0 += 1;
                    self.writes.1 += u64::from(!accepted);
                }
                What::Probe { name, found, .. } if name == "keys left" => self.keys_left += found,
                What::Probe { name, found, .. } if name == DEAD_TOOK => self.pool.1 += found,
                What::Probe { name, found, .. } if name.contains("clock jumps") => self.clock_jumps += found,
                What::Probe { name, found, .. } if name == "failovers" => self.failovers += found,
                What::Probe { name, found, .. } if name == "handed over" => self.hand_overs += found,
                _ => {}
            }
        }
    }

    /// Returns the number of locks lost for this reason.
    #[must_use]
    pub fn lost(&self, reason: Reason) -> u64 {
        self.lost.get(&reason).copied().unwrap_or_default()
    }

    pub(super) fn lacks(&self, fault: Fault) -> Option<String> {
        (!self.faults.contains_key(&fault)).then(|| format!("the fault ({fault}) never struck"))
    }

    pub(super) fn lacks_stops(&self) -> Option<String> {
        (self.stops == 0).then(|| "no process was stopped".to_owned())
    }

    pub(super) fn lacks_failovers(&self) -> Option<String> {
        (self.failovers == 0).then(|| "no replica took over".to_owned())
    }

    /// Returns the figures as a JSON object, with times in microseconds.
    #[must_use]
    pub fn json(&self) -> Value {
        let named = |counts: Vec<(String, u64)>| -> Value { counts.into_iter().collect() };
        let all =
            |checker: Checker| (checker.to_string(), self.violations.get(&checker).copied().unwrap_or(0));
        json!({
            "operations": self.operations,
            "grants": self.grants,
            "grants_of_others": self.grants_of_others,
            "grants_from_a_queue": self.queued_grants,
            "violations": named(Checker::ALL.into_iter().map(all).collect()),
            "excused": self.excused,
            "lost": named(self.lost.iter().map(|(reason, count)| (reason.to_string(), *count)).collect()),
            "told_before_next_grant": self.told.in_time,
            "told_after_next_grant": self.told.late,
            "already_lost": self.already_lost,
            "errors": named(self.errors.iter().map(|(outcome, count)| (outcome.to_string(), *count)).collect()),
            "unconfirmed_releases": self.unconfirmed,
            "cancelled": self.cancelled,
            "faults": named(self.faults.iter().map(|(fault, count)| (fault.to_string(), *count)).collect()),
            "processes_killed": self.kills,
            "processes_stopped": self.stops,
            "failovers": self.failovers,
            "holds_outlived": self.outlived,
            "clock_jumps_seen": self.clock_jumps,
            "hand_overs": self.hand_overs,
            "writes": self.writes.0,
            "stale_writes_rejected": self.writes.1,
            "recovery_us": self.recovery.json(),
            "handoff_us": self.handoff.json(),
            "takeover_us": self.takeover.json(),
            "keys_left": self.keys_left,
            "most_inside": self.pool.0,
            "permits_taken_along": self.pool.1,
            "mean_hold_us": self.mean_hold / 1000,
            "writers_wait_us": self.writers.json(),
            "writers_wait_for_readers_us": self.for_readers.json(),
        })
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list =
            |counts: Vec<String>| if counts.is_empty() { "none".to_owned() } else { counts.join(", ") };
        let violations: u64 = self.violations.values().sum();
        let by_checker =
            list(self.violations.iter().map(|(checker, count)| format!("{checker} {count}")).collect());
        writeln!(f, "operations {}, grants {}, cancelled {}", self.operations, self.grants, self.cancelled)?;
        writeln!(
            f,
            "violations {violations} ({by_checker}); double grants excused by lost data {}",
            self.excused
        )?;
        let faults = list(self.faults.iter().map(|(fault, count)| format!("{fault} {count}")).collect());
        writeln!(f, "faults: {faults}; processes killed {}, stopped {}", self.kills, self.stops)?;
        if self.failovers > 0 {
            writeln!(f, "failovers {}; holds that outlived a strike {}", self.failovers, self.outlived)?;
        }
        let lost = list(self.lost.iter().map(|(reason, count)| format!("{reason} {count}")).collect());
        writeln!(f, "lost: {lost}; found lost when released {}", self.already_lost)?;
        let Told { in_time, late } = self.told;
        if in_time + late > 0 {
            writeln!(f, "told before the next grant {in_time}, after it {late}")?;
        }
        let errors = list(self.errors.iter().map(|(outcome, count)| format!("{outcome} {count}")).collect());
        writeln!(f, "errors: {errors}; releases unconfirmed {}", self.unconfirmed)?;
        writeln!(f, "writes {}, stale and rejected {}", self.writes.0, self.writes.1)?;
        writeln!(f, "recovery {}; handoff {}", self.recovery, self.handoff)?;
        writeln!(f, "takeover {}; keys left {}", self.takeover, self.keys_left)?;
        if self.hand_overs > 0 {
            writeln!(f, "handed over {}", self.hand_overs)?;
        }
        if self.pool.0 > 0 {
            let (most, taken) = self.pool;
            writeln!(f, "permits had at once {most}, taken along by the killed {taken}")?;
        }
        if self.mean_hold > 0 {
            writeln!(f, "holds of {} us on average; writers waited {}", self.mean_hold / 1000, self.writers)?;
            writeln!(f, "writers waited for readers alone {}", self.for_readers)?;
        }
        if self.grants_of_others > 0 {
            writeln!(f, "grants that Redisson had {}", self.grants_of_others)?;
        }
        if self.queued_grants > 0 {
            writeln!(f, "grants to those who stood in a queue {}", self.queued_grants)?;
        }
        Ok(())
    }
}

/// Returns the times from the end of each fault to the first grant after it.
fn recoveries(history: &History) -> Vec<u64> {
    let mut open: Vec<u64> = Vec::new();
    let mut times = Vec::new();
    for event in &history.events {
        match &event.what {
            // Lost data on the server does not delay any grant.
            What::Ends { fault } if !matches!(fault, Fault::Flushed | Fault::Forgot) => open.push(event.at),
            What::Granted { .. } => times.extend(open.drain(..).map(|ended| event.at - ended)),
            _ => {}
        }
    }
    times
}

/// A distribution, in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
struct Times {
    p50: u64,
    p99: u64,
    most: u64,
    samples: usize,
}

impl Times {
    fn of(mut times: Vec<u64>) -> Self {
        times.sort_unstable();
        let at = |percent: usize| {
            let place = (times.len() * percent / 100).min(times.len().saturating_sub(1));
            times.get(place).copied().unwrap_or_default()
        };
        Self { p50: at(50), p99: at(99), most: at(100), samples: times.len() }
    }

    fn json(&self) -> Value {
        json!({ "p50": self.p50 / 1000, "p99": self.p99 / 1000, "max": self.most / 1000, "n": self.samples })
    }
}

impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [p50, p99, most] = [self.p50, self.p99, self.most].map(|nanos| nanos / 1000);
        write!(f, "p50 {p50} us, p99 {p99} us, max {most} us (n {})", self.samples)
    }
}
