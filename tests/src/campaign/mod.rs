//! Campaigns: worker processes that use locks under faults.
//!
//! A campaign strikes with one kind of fault again and again. Then it ends all faults and counts the remaining keys and connections. At
//! last the checkers judge the record of every process.
//!
//! A single seed determines all random choices. This module runs a campaign; `plans` defines its faults.

mod books;
mod cpus;
mod figures;
mod fleet;
mod plans;
mod pool;
mod sampler;
mod servers;
mod shim;
mod stage;
mod wanted;
mod worker;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

pub use figures::Figures;
pub use shim::Shim;
pub use worker::serve;

use crate::history::{Checker, History, OTHERS, Verdict, check};
use plans::Plan;
use stage::Stage;

/// The settings of a campaign.
#[derive(Clone, Debug)]
pub struct Options {
    /// The campaign's name; [`names`] lists them.
    pub name: String,
    /// The time during which faults strike.
    pub duration: Duration,
    /// The seed of all random choices.
    pub seed: u64,
    /// Worker processes.
    pub processes: u32,
    /// Tasks of each process.
    pub tasks: u32,
}

impl Options {
    /// Makes the options of a campaign with the default number of workers.
    #[must_use]
    pub fn new(name: &str, duration: Duration, seed: u64) -> Self {
        Self { name: name.to_owned(), duration, seed, processes: 4, tasks: 8 }
    }
}

/// The result of a campaign.
#[derive(Debug)]
pub struct Report {
    /// The counts of the campaign.
    pub figures: Figures,
    /// All violations, with or without an excuse.
    pub verdicts: Vec<Verdict>,
    /// The event that the campaign had to show and did not show, if any.
    pub missed: Option<String>,
    /// The folder of the history.
    pub directory: PathBuf,
    history: History,
}

impl Report {
    /// Returns true if all required events occurred and no violation lacks an excuse.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.missed.is_none() && self.verdicts.iter().all(|verdict| verdict.excuse.is_some())
    }

    /// Returns the figures, and the first few verdicts without an excuse, with the events that prove them.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = self.figures.to_string();
        for verdict in self.verdicts.iter().filter(|verdict| verdict.excuse.is_none()).take(SHOWN) {
            text += &format!("\n{}: {}\n", verdict.checker, verdict.text);
            for place in verdict.events.iter().take(SHOWN_EVENTS) {
                text += &format!("    {}\n", self.history.events[*place]);
            }
        }
        if let Some(missed) = &self.missed {
            text += &format!("\n{missed}\n");
        }
        text
    }
}

/// Returns the name and the description of every campaign.
pub fn names() -> impl Iterator<Item = (&'static str, &'static str)> {
    plans::ALL.iter().map(|plan| (plan.name, plan.what))
}

/// Runs a campaign. `worker` starts a process whose `main` calls [`serve`] with the arguments appended here.
///
/// # Errors
///
/// The campaign does not exist, there is no server, or a worker cannot be started.
pub fn run(options: &Options, worker: fn() -> Command) -> Result<Report> {
    let plan = plan(&options.name)?;
    let directory =
        crate::server::target_directory()?.join("campaigns").join(plan.name).join(options.seed.to_string());
    if directory.exists() {
        fs::remove_dir_all(&directory)?;
    }
    fs::create_dir_all(&directory)?;
    let mut stage = Stage::set(plan, options, worker, &directory)?;
    while stage.goes_on() {
        (plan.round)(&mut stage)?;
    }
    stage.heal()?;
    stage.finish()?;
    drop(stage);
    judge(&directory, Some(plan))
}

/// Runs the checkers on a stored history.
///
/// # Errors
///
/// There is no history, or it cannot be read.
pub fn recheck(directory: &Path) -> Result<Report> {
    judge(directory, None)
}

fn plan(name: &str) -> Result<&'static Plan> {
    match plans::ALL.iter().find(|plan| plan.name == name) {
        Some(plan) => Ok(plan),
        None => {
            let known: Vec<_> = names().map(|(name, _)| name).collect();
            bail!("there is no campaign {name:?}; there are {}", known.join(", "))
        }
    }
}

fn judge(directory: &Path, plan: Option<&Plan>) -> Result<Report> {
    let history = History::read(directory)
        .with_context(|| format!("cannot read the history in {}", directory.display()))?;
    if history.events.is_empty() {
        bail!("there is no history in {}", directory.display());
    }
    let mut verdicts = check(&history);
    verdicts.retain(|verdict| is_ours(&history, verdict));
    let figures = Figures::of(&history, &verdicts);
    let missed = plan.and_then(|plan| (plan.shows)(&figures));
    let summary = serde_json::to_string_pretty(&figures.json())?;
    fs::write(directory.join("figures.json"), summary + "\n")?;
    Ok(Report { figures, verdicts, missed, directory: directory.to_owned(), history })
}

/// Returns true if our library answers for the verdict. Redisson's answers and releases are not judged, but no lock may ever have two
/// holders.
fn is_ours(history: &History, verdict: &Verdict) -> bool {
    let of_others = |place: &usize| history.events[*place].process > OTHERS;
    match verdict.checker {
        Checker::Exclusion | Checker::Witness | Checker::Leaks => true,
        // The last event is the waiter's.
        Checker::WakeUps => !verdict.events.last().is_some_and(of_others),
        _ => !verdict.events.iter().any(of_others),
    }
}

/// Enough for a first look; the history contains all verdicts.
const SHOWN: usize = 10;
const SHOWN_EVENTS: usize = 40;
