//! Campaigns from the command line.
//!
//! This module starts a campaign and prints its report. `wheellock_tests::campaign` runs it.

use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::{Duration, SystemTime};

use anyhow::Result;
use clap::Args;
use wheellock_tests::campaign::{self, Report};

use crate::install::ensure_server;

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Name of the campaign; `list`, or no name, lists all campaigns
    name: Option<String>,
    /// Seconds during which faults strike
    #[arg(default_value_t = 60)]
    seconds: u64,
    /// Repeats the choices of an earlier run
    seed: Option<u64>,
    /// Number of worker processes
    #[arg(long, default_value_t = 4)]
    processes: u32,
    /// Number of tasks per process
    #[arg(long, default_value_t = 8)]
    tasks: u32,
    /// Only runs the checkers, on the history kept in this directory
    #[arg(long, conflicts_with_all = ["name", "seed"])]
    check: Option<PathBuf>,
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    if let Some(directory) = &options.check {
        return Ok(verdict(&campaign::recheck(directory)?));
    }
    let name = match options.name.as_deref() {
        None | Some("list") => {
            campaign::names().for_each(|(name, what)| println!("{name:<20} {what}"));
            return Ok(ExitCode::SUCCESS);
        }
        Some(name) => name,
    };
    ensure_server()?;
    let seed = options.seed.unwrap_or_else(new_seed);
    println!("to repeat: cargo xtask campaign {name} {} {seed}", options.seconds);
    let duration = Duration::from_secs(options.seconds);
    let mut campaign = campaign::Options::new(name, duration, seed);
    (campaign.processes, campaign.tasks) = (options.processes, options.tasks);
    let report = campaign::run(&campaign, worker)?;
    println!("history: {}", report.directory.display());
    Ok(verdict(&report))
}

fn verdict(report: &Report) -> ExitCode {
    println!("{}", report.text());
    println!("{}", if report.passed() { "passed" } else { "FAILED" });
    if report.passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[derive(Debug, Args)]
pub(crate) struct WorkerOptions {
    /// The arguments that the campaign passes
    #[arg(allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// Runs a worker process.
pub(crate) fn work(options: &WorkerOptions) -> Result<ExitCode> {
    campaign::serve(&options.arguments)?;
    Ok(ExitCode::SUCCESS)
}

fn worker() -> Command {
    // Without a path to this program the start fails, and the error then names the path that was tried.
    let mut program = Command::new(std::env::current_exe().unwrap_or_else(|_| "xtask".into()));
    program.arg("campaign-worker");
    program
}

fn new_seed() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::from(since.subsec_nanos()) ^ since.as_secs()
}
