//! Campaigns: worker processes use locks in every way while one kind of fault strikes again and again; then everything
//! is healed, what is left is counted, and the checkers judge what every process has recorded.
//!
//! All chance comes from one seed. This module owns the course of a campaign; `plans` knows what strikes in each.

mod books;
mod cpus;
mod figures;
mod fleet;
mod plans;
mod pool;
mod sampler;
mod shim;
mod stage;
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

/// What to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The campaign's name; [`names`] lists them.
    pub name: String,
    /// How long faults strike.
    pub duration: Duration,
    /// Decides everything that is left to chance.
    pub seed: u64,
    /// Worker processes.
    pub processes: u32,
    /// Tasks of each.
    pub tasks: u32,
}

impl Options {
    /// A campaign with as many workers as it has by default.
    #[must_use]
    pub fn new(name: &str, duration: Duration, seed: u64) -> Self {
        Self { name: name.to_owned(), duration, seed, processes: 4, tasks: 8 }
    }
}

/// What came of a campaign.
#[derive(Debug)]
pub struct Report {
    /// What was counted.
    pub figures: Figures,
    /// What should not have happened, excused or not.
    pub verdicts: Vec<Verdict>,
    /// What the campaign was to show and did not show, if so.
    pub missed: Option<String>,
    /// Where the history is kept.
    pub directory: PathBuf,
    history: History,
}

impl Report {
    /// Whether what must be zero is zero, and what must be seen was seen.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.missed.is_none() && self.verdicts.iter().all(|verdict| verdict.excuse.is_some())
    }

    /// The figures, and the first few verdicts without an excuse with the events that prove them.
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

/// Every campaign: its name and what it does.
pub fn names() -> impl Iterator<Item = (&'static str, &'static str)> {
    plans::ALL.iter().map(|plan| (plan.name, plan.what))
}

/// Runs one campaign. `worker` starts a process whose `main` calls [`serve`] with the arguments appended here.
///
/// # Errors
///
/// No such campaign, no server, a worker that cannot be started.
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

/// Runs the checkers on a history that was kept.
///
/// # Errors
///
/// No history there, or one that cannot be read.
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

/// How others answer and give back is not ours to judge; that nobody has what another has is.
fn is_ours(history: &History, verdict: &Verdict) -> bool {
    let of_others = |place: &usize| history.events[*place].process > OTHERS;
    match verdict.checker {
        Checker::Exclusion | Checker::Witness | Checker::Leaks => true,
        // Who waited stands last.
        Checker::WakeUps => !verdict.events.last().is_some_and(of_others),
        _ => !verdict.events.iter().any(of_others),
    }
}

/// Enough to begin with; all of them are in the history.
const SHOWN: usize = 10;
const SHOWN_EVENTS: usize = 40;
