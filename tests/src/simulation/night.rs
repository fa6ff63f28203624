//! Many seeds, one after the other, on every processor: what `cargo xtask simulate` does.

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

/// What is to be run.
#[derive(Clone, Copy, Debug)]
pub struct Night {
    /// The first seed.
    pub from: u64,
    /// How many.
    pub seeds: u64,
    /// Only fleets of this kind.
    pub kind: Option<Kind>,
    /// No seed is begun after that.
    pub at_most: Option<Duration>,
}

/// What came of it.
#[derive(Debug, Default)]
pub struct Morning {
    /// How many worlds were run,
    pub worlds: u64,
    /// how many locks were granted in them,
    pub grants: u64,
    /// how many things were written down,
    pub events: u64,
    /// and what went wrong by design.
    pub troubles: u64,
    /// What must not be, seed by seed, told so that a person can read it.
    pub findings: Vec<String>,
}

impl Night {
    /// Runs the seeds on every processor; `told` hears now and then how far it is.
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
                        let plan = Plan::of(self.from + number, self.kind);
                        let (grants, events, finding) = self.judge(&plan);
                        let mut morning = morning.lock().unwrap_or_else(PoisonError::into_inner);
                        morning.worlds += 1;
                        morning.grants += grants;
                        morning.events += events;
                        morning.troubles += plan.troubles.len() as u64;
                        morning.findings.extend(finding);
                        is_over.store(morning.findings.len() >= MOST_FINDINGS, Ordering::Relaxed);
                        if morning.worlds.is_multiple_of(TOLD_EVERY) {
                            told(&morning);
                        }
                    }
                });
            }
        });
        morning.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// Grants, events, and what is to be told if anything is wrong.
    fn judge(self, plan: &Plan) -> (u64, u64, Option<String>) {
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

    fn tell(self, plan: &Plan, what: &str, same: impl Fn(&Plan) -> bool) -> String {
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
        text
    }
}

/// `None` if it panicked.
fn world(plan: &Plan) -> Option<Outcome> {
    catch_unwind(AssertUnwindSafe(|| run(plan))).ok()
}

/// The program's `main`: `--seeds N --from S --kind K --minutes M`.
pub fn main(arguments: &[String]) -> ExitCode {
    let value = |name: &str| {
        let at = arguments.iter().position(|argument| argument == name)?;
        arguments.get(at + 1)
    };
    let number = |name: &str| value(name).and_then(|value| value.parse::<u64>().ok());
    let night = Night {
        from: number("--from").unwrap_or_default(),
        seeds: number("--seeds").unwrap_or(u64::MAX),
        kind: value("--kind").and_then(|name| Kind::named(name)),
        at_most: number("--minutes").map(|minutes| Duration::from_secs(60 * minutes)),
    };
    let began = Instant::now();
    let morning = night.pass(|so_far| {
        println!("{} worlds, {:.0} s", so_far.worlds, began.elapsed().as_secs_f64());
    });
    morning.findings.iter().for_each(|finding| println!("\n{finding}"));
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

/// More than that is one mistake told many times.
const MOST_FINDINGS: usize = 3;
const TOLD_EVERY: u64 = 10_000;
