//! The model of the reclaim after a failover, built with optimizations.
//!
//! `tests/failover-model` has the model and its claims.

use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use clap::Args;

use crate::run;

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Only the rules and worlds with this name, or else with this part of a name; prints their counterexamples step by step
    names: Vec<String>,
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    run::run(&mut run::cargo(["build", "--release", "-p", "wheellock-failover-model"]))?;
    let program = run::target_directory().join("release/prove");
    let mut command = Command::new(&program);
    let ended = command.args(&options.names).status();
    let ended = ended.with_context(|| format!("cannot run {}", program.display()))?;
    Ok(if ended.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
