//! The runs of several claims at a time, and their table.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::check::{RunResult, explore};
use crate::claims::{Claim, Expected};
use crate::worlds::{FaultWorld, LARGEST};

/// Results of a list of claims.
#[derive(Debug)]
pub struct ClaimTable<'a> {
    rows: Vec<(&'a Claim, Vec<(FaultWorld, RunResult)>)>,
    took: Duration,
}

/// Checks claims with this number of threads.
#[must_use]
pub fn check(claims: &[Claim], threads: usize) -> ClaimTable<'_> {
    let began = Instant::now();
    let mut runs: Vec<(usize, FaultWorld)> = Vec::new();
    for (index, claim) in claims.iter().enumerate() {
        runs.extend(claim.worlds.iter().map(|world| (index, *world)));
    }
    // The longest runs begin first. Otherwise one of them could be the last, on one processor.
    runs.sort_by_key(|(_, world)| LARGEST.iter().position(|name| *name == world.name).unwrap_or(usize::MAX));
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some((index, world)) = runs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let result = explore(claims[*index].rules, *world);
                    done.lock().unwrap_or_else(PoisonError::into_inner).push((*index, *world, result));
                }
            });
        }
    });
    let mut rows: Vec<_> = claims.iter().map(|claim| (claim, Vec::new())).collect();
    for (index, world, result) in done.into_inner().unwrap_or_else(PoisonError::into_inner) {
        rows[index].1.push((world, result));
    }
    ClaimTable { rows, took: began.elapsed() }
}

impl ClaimTable<'_> {
    /// Returns a line for each claim, and the sum.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = format!(
            "{:<9} {:<56} {:<38} {:>10} {:>7}  result\n",
            "part", "rule or world", "world", "states", "s"
        );
        for (claim, runs) in &self.rows {
            let world = match runs.as_slice() {
                [(world, _)] => world.name.to_owned(),
                _ => format!("{} worlds", runs.len()),
            };
            let seconds: f64 = runs.iter().map(|(_, result)| result.took.as_secs_f64()).sum();
            let _infallible = writeln!(
                text,
                "{:<9} {:<56} {world:<38} {:>10} {seconds:>7.1}  {}",
                claim.part,
                claim.name,
                states(runs),
                result_text(claim, runs)
            );
        }
        let all: usize = self.rows.iter().map(|(_, runs)| states(runs)).sum();
        let runs: usize = self.rows.iter().map(|(_, runs)| runs.len()).sum();
        let seconds = self.took.as_secs_f64();
        let _infallible = writeln!(
            text,
            "\n{} claims, {runs} runs, {all} states, {seconds:.0} s: {} unexpected results",
            self.rows.len(),
            self.contradictions().len()
        );
        text
    }

    /// Returns the results that contradict their claims, with the world and the reason.
    #[must_use]
    pub fn contradictions(&self) -> Vec<String> {
        let mut found = Vec::new();
        for (claim, runs) in &self.rows {
            if runs.is_empty() {
                found.push(format!("{}: there is no such world", claim.name));
            }
            for (world, result) in runs {
                let why = claim.contradiction(world, result);
                found.extend(why.map(|why| format!("{}, in \"{}\": {why}", claim.name, world.name)));
            }
        }
        found
    }

    /// Returns the counterexamples, step by step.
    #[must_use]
    pub fn stories(&self) -> String {
        let mut text = String::new();
        for (world, result) in self.rows.iter().flat_map(|(_, runs)| runs) {
            if let Some((property, steps)) = &result.counterexample {
                let _infallible = writeln!(text, "{property} in the world \"{}\":", world.name);
                for (number, step) in steps.iter().enumerate() {
                    let _infallible = writeln!(text, "{number:>4}. {step}");
                }
            }
        }
        text
    }
}

fn states(runs: &[(FaultWorld, RunResult)]) -> usize {
    runs.iter().map(|(_, result)| result.states).sum()
}

fn result_text(claim: &Claim, runs: &[(FaultWorld, RunResult)]) -> String {
    let shortest = runs.iter().filter_map(|(_, result)| result.counterexample.as_ref());
    let shortest = shortest.min_by_key(|(_, steps)| steps.len());
    let found = match shortest {
        Some((property, steps)) => format!("{property}, {} steps", steps.len() - 1),
        None => "no counterexample".to_owned(),
    };
    let why = runs.iter().find_map(|(world, result)| claim.contradiction(world, result));
    let expected = match claim.expected {
        Expected::Holds => "no counterexample".to_owned(),
        Expected::Breaks(property) => property.to_string(),
    };
    match why {
        Some(why) => format!("{found}; UNEXPECTED: {why} (expected: {expected})"),
        None if runs.is_empty() => "UNEXPECTED: there is no such world".to_owned(),
        None => found,
    }
}
