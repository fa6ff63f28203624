//! Simulated fleets in virtual time, built with optimizations.
//!
//! `wheellock_tests::simulation` has the simulator.

use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use clap::Args;

use crate::run;

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Number of seeds; ten thousand without it and without `--minutes`
    #[arg(long)]
    seeds: Option<u64>,
    /// The first seed
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Only fleets with locks of this kind: plain, hot, fair, read-write, fenced, spin, simple, permits, semaphore, election, set, quorum, latch, visited, surviving, surviving-permits, limited
    #[arg(long, value_parser = ["plain", "hot", "fair", "read-write", "fenced", "spin", "simple", "permits", "semaphore", "election", "set", "quorum", "latch", "visited", "surviving", "surviving-permits", "limited"])]
    kind: Option<String>,
    /// Begins no seed after this number of minutes
    #[arg(long)]
    minutes: Option<u64>,
    /// Ends at the first finding, without reducing it
    #[arg(long)]
    until_found: bool,
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let Options { seeds, from, kind, minutes, until_found } = options;
    let build =
        ["build", "--release", "-p", "wheellock-tests", "--features", "simulation", "--bin", "simulate"];
    run::run(&mut run::cargo(build))?;
    let program = run::target_directory().join("release/simulate");
    let mut command = Command::new(&program);
    let seeds = seeds.or((minutes.is_none()).then_some(USUALLY));
    command.args(["--from", &from.to_string()]);
    command.args(seeds.iter().flat_map(|seeds| ["--seeds".to_owned(), seeds.to_string()]));
    command.args(kind.iter().flat_map(|kind| ["--kind", kind]));
    command.args(minutes.iter().flat_map(|minutes| ["--minutes".to_owned(), minutes.to_string()]));
    command.args(until_found.then_some("--until-found"));
    let ended = command.status().with_context(|| format!("cannot run {}", program.display()))?;
    Ok(if ended.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

const USUALLY: u64 = 10_000;
