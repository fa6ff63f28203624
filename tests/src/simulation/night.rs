//! A run of many seeds on every processor.
//!
//! It implements `cargo xtask simulate`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::plan::{Kind, Plan};
use super::shrink::shrink;
use super::{Outcome, run};

/// The settings of a run.
#[derive(Clone, Copy, Debug)]
pub struct Night {
    /// The first seed.
    pub from: u64,
    /// The number of seeds.
    pub seeds: u64,
    /// The only kind of fleets, if given.
    pub kind: Option<Kind>,
    /// The time after which the run does not begin further seeds.
    pub at_most: Option<Duration>,
    /// True to end with the first finding, without shrinking it.
    pub until_found: bool,
}

/// The result of a run.
#[derive(Debug, Default)]
pub struct Morning {
    /// Worlds that ran.
    pub worlds: u64,
    /// Granted locks in all worlds.
    pub grants: u64,
    /// Recorded events.
    pub events: u64,
    /// Planned faults.
    pub troubles: u64,
    /// The findings, by seeds.
    pub findings: Vec<Finding>,
}

/// A violation.
#[derive(Debug)]
pub struct Finding {
    /// The seed of its world.
    pub seed: u64,
    /// The description for humans.
    pub text: String,
}

impl Night {
    /// Parses the arguments of the program, or returns the error.
    fn said(arguments: &[String]) -> Result<Self, String> {
        let mut night = Self { from: 0, seeds: u64::MAX, kind: None, at_most: None, until_found: false };
        let mut words = arguments.iter();
        while let Some(name) = words.next() {
            if name == "--until-found" {
                night.until_found = true;
                continue;
            }
            let value = words.next().ok_or_else(|| format!("{name} needs a value"));
            let number = || {
                let value = value.clone()?;
                value.parse::<u64>().map_err(|error| format!("{name} {value}: {error}"))
            };
            match name.as_str() {
                "--from" => night.from = number()?,
                "--seeds" => night.seeds = number()?,
                "--minutes" => night.at_most = Some(Duration::from_secs(number()?.saturating_mul(60))),
                "--kind" => {
                    let kinds = Kind::ALL.map(|kind| kind.to_string()).join(", ");
                    let known = |kind: &String| {
                        Kind::named(kind).ok_or_else(|| format!("there is no kind {kind}; there are {kinds}"))
                    };
                    night.kind = Some(known(value?)?);
                }
                _ => {
                    return Err(format!("{name} is not known; there are {OPTIONS}"));
                }
            }
        }
        if night.from.checked_add(night.seeds).is_none() && night.seeds != u64::MAX {
            return Err(format!("there are no {} seeds from {} on", night.seeds, night.from));
        }
        Ok(night)
    }

    /// Runs the seeds on every processor. Calls `told` now and then with the progress.
    ///
    /// # Panics
    ///
    /// If a thread cannot be started.
    pub fn pass(self, told: impl Fn(&Morning) + Sync) -> Morning {
        let morning = Mutex::new(Morning::default());
        let (next, is_over, began) = (AtomicU64::new(0), AtomicBool::new(false), Instant::now());
        let workers = thread::available_parallelism().map_or(1, usize::from);
        thread::scope(|scope| {
            for _ in 0..workers {
                scope.spawn(|| {
                    loop {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        let late = self.at_most.is_some_and(|most| began.elapsed() >= most);
                        if number >= self.seeds || late || is_over.load(Ordering::Relaxed) {
                            return;
                        }
                        let Some(seed) = self.from.checked_add(number) else { return };
                        let latches = self.kind.is_none() && seed.is_multiple_of(LATCHES_EVERY);
                        let visited = self.kind.is_none() && seed.is_multiple_of(VISITED_EVERY);
                        let surviving = self.kind.is_none() && seed.is_multiple_of(SURVIVING_EVERY);
                        let limited = self.kind.is_none() && seed.is_multiple_of(LIMITED_EVERY);
                        let more = [
                            (latches, Kind::Latch),
                            (visited, Kind::Visited),
                            (surviving, Kind::Surviving),
                            (limited, Kind::Limited),
                        ];
                        let more = more.into_iter().filter_map(|(is_due, kind)| is_due.then_some(Some(kind)));
                        for kind in [self.kind].into_iter().chain(more) {
                            let plan = Plan::of(seed, kind);
                            let (grants, events, finding) = Self { kind, ..self }.judge(&plan);
                            let mut morning = morning.lock().unwrap_or_else(PoisonError::into_inner);
                            morning.worlds += 1;
                            morning.grants += grants;
                            morning.events += events;
                            morning.troubles += plan.troubles.len() as u64;
                            morning.findings.extend(finding);
                            let most = if self.until_found { 1 } else { MOST_FINDINGS };
                            is_over.store(morning.findings.len() >= most, Ordering::Relaxed);
                            if morning.worlds.is_multiple_of(TOLD_EVERY) {
                                told(&morning);
                            }
                        }
                    }
                });
            }
        });
        let mut morning = morning.into_inner().unwrap_or_else(PoisonError::into_inner);
        morning.findings.sort_by_key(|finding| finding.seed);
        morning
    }

    /// Returns the numbers of grants and events, and the finding if there is a violation.
    fn judge(self, plan: &Plan) -> (u64, u64, Option<Finding>) {
        let Some(outcome) = world(plan) else {
            return (0, 0, Some(self.tell(plan, "panicked", |plan| world(plan).is_none())));
        };
        let size = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
        let (grants, events) = (size(outcome.grants()), size(outcome.history.events.len()));
        let finding = outcome.complaints.first().map(|first| {
            let same = |plan: &Plan| {
                world(plan).is_some_and(|outcome| {
                    outcome.complaints.iter().any(|verdict| verdict.checker == first.checker)
                })
            };
            self.tell(plan, &first.text, same)
        });
        (grants, events, finding)
    }

    fn tell(self, plan: &Plan, what: &str, same: impl Fn(&Plan) -> bool) -> Finding {
        if self.until_found {
            return Finding { seed: plan.seed, text: format!("seed {}, {}: {what}", plan.seed, plan.kind) };
        }
        let small = shrink(plan, same);
        let kind = self.kind.map_or(String::new(), |kind| format!(" --kind {kind}"));
        let mut text = format!(
            "seed {}, {}: {what}\nagain: cargo xtask simulate --seeds 1 --from {}{kind}\n\nthe smallest world found in which that happens:\n{small}",
            plan.seed, plan.kind, plan.seed
        );
        if let Some(outcome) = world(&small) {
            outcome.complaints.iter().for_each(|verdict| text += &format!("{}\n", verdict.text));
            let told = outcome
                .lines()
                .into_iter()
                .filter(|line| !(line.contains(" probe ") && line.ends_with(" 0 0")));
            told.for_each(|line| text += &format!("  {line}\n"));
        }
        Finding { seed: plan.seed, text }
    }
}

/// Runs a world. Returns `None` if it panicked.
fn world(plan: &Plan) -> Option<Outcome> {
    catch_unwind(AssertUnwindSafe(|| run(plan))).ok()
}

/// Runs the program's `main`: `--seeds N --from S --kind K --minutes M --until-found`.
pub fn main(arguments: &[String]) -> ExitCode {
    let night = match Night::said(arguments) {
        Ok(night) => night,
        Err(wrong) => {
            eprintln!("{wrong}");
            return ExitCode::from(2);
        }
    };
    let began = Instant::now();
    let morning = night.pass(|so_far| {
        println!("{} worlds, {:.0} s", so_far.worlds, began.elapsed().as_secs_f64());
    });
    morning.findings.iter().for_each(|finding| println!("\n{}", finding.text));
    println!(
        "{} worlds in {:.1} s: {} troubles, {} grants, {} events; {} findings",
        morning.worlds,
        began.elapsed().as_secs_f64(),
        morning.troubles,
        morning.grants,
        morning.events,
        morning.findings.len()
    );
    if morning.findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

const OPTIONS: &str = "--seeds, --from, --kind, --minutes and --until-found";
/// Further findings are usually the same mistake.
const MOST_FINDINGS: usize = 3;
const TOLD_EVERY: u64 = 10_000;
/// The distance between seeds that also run a fleet with latches, a kind that seeds do not choose.
const LATCHES_EVERY: u64 = 16;
/// The same distance for visited processes, whose fleets take longer.
const VISITED_EVERY: u64 = 50;
/// The same distance for fleets whose locks survive failovers.
const SURVIVING_EVERY: u64 = 64;
/// The same distance for fleets whose locks have limits and tickets.
const LIMITED_EVERY: u64 = 32;

#[cfg(test)]
mod tests {
    use super::*;

    fn said(words: &str) -> Result<Night, String> {
        Night::said(&words.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn night_options_are_parsed_or_rejected() {
        let night = said("--from 7 --seeds 9 --kind read-write --minutes 2").unwrap();
        assert_eq!((night.from, night.seeds, night.kind), (7, 9, Some(Kind::ReadWrite)));
        assert_eq!(night.at_most, Some(Duration::from_secs(120)));
        for (words, wrong) in [
            ("--kind none", "no kind none; there are plain, "),
            ("--seeds many", "--seeds many: "),
            ("--seeds -1", "--seeds -1: "),
            ("--from", "--from needs a value"),
            ("--minute 3", "--minute is not known"),
            ("--from 18446744073709551615 --seeds 2", "no 2 seeds from "),
        ] {
            let told = said(words).unwrap_err();
            assert!(told.contains(wrong), "{words}: {told}");
        }
    }
}
