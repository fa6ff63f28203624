//! Number of simulated fleets until each planted bug is found.
//!
//! The number measures the simulator. This module knows the bugs only by their patches.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{ExitCode, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::{Planted, all, command, copy, lay_out, target};
use crate::run;

/// Returns the reason why the simulator cannot detect a bug, or `None` if it should.
fn is_beyond(planted: &Planted) -> Option<&'static str> {
    let files = || planted.changes.iter().map(|change| change.path.as_str());
    if files()
        .all(|file| !file.starts_with("crates/wheellock/") && !file.starts_with("crates/wheellock-client/"))
    {
        Some("not in the library")
    } else if files().all(|file| file.ends_with(".lua")) {
        Some("in a script, which the model does not run")
    } else {
        None
    }
}

/// Runs `seeds` seeds with each bug, one bug after the other, and prints the first seed that finds it.
pub(crate) fn check(names: &[String], seeds: u64) -> Result<ExitCode> {
    // The copy contains all bugs, whatever the request, so that it is built once.
    let mut bugs = all(run::root())?;
    lay_out(run::root(), &copy(), &bugs)?;
    let build =
        ["build", "--release", "-p", "wheellock-tests", "--features", "simulation", "--bin", "simulate"];
    run::run(&mut command(build))?;
    bugs.retain(|bug| names.is_empty() || names.iter().any(|name| bug.bug.contains(name)));
    ensure!(!bugs.is_empty(), "there is no such bug");
    let (mut found, mut looked_for) = (0, 0);
    for planted in &bugs {
        let told = match is_beyond(planted) {
            Some(why) => why.to_owned(),
            None => {
                looked_for += 1;
                let told = first_seed(planted, seeds)?;
                found += usize::from(told.is_some());
                told.unwrap_or_else(|| {
                    let line = if reached().exists() { "reached" } else { "never reached" };
                    format!("NOT FOUND in {seeds} seeds; its line was {line}")
                })
            }
        };
        println!("{:<60} {told}", planted.bug);
    }
    println!("{found} of {looked_for} planted bugs found by simulated fleets");
    Ok(ExitCode::SUCCESS)
}

/// Returns the path of a file that exists once the code of the current bug was reached.
fn reached() -> PathBuf {
    target().join("reached")
}

/// Returns the first seed that finds the bug, and its report.
fn first_seed(planted: &Planted, seeds: u64) -> Result<Option<String>> {
    let mut simulate = std::process::Command::new(target().join("release/simulate"));
    simulate.args(["--until-found", "--seeds", &seeds.to_string()]);
    simulate.env("WHEELLOCK_PLANTED", &planted.bug).env("RUST_BACKTRACE", "0");
    if reached().exists() {
        fs::remove_file(reached())?;
    }
    simulate.env("WHEELLOCK_PLANTED_REACHED", reached());
    let mut child = simulate.stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let (says, said) = mpsc::channel();
    let lines = BufReader::new(child.stdout.take().context("it has an output")?).lines();
    thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| says.send(line)));
    let mut finding = None;
    loop {
        match said.recv_timeout(QUIET) {
            Ok(line) if line.starts_with("seed ") => finding = Some(line),
            Ok(_) => {}
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                child.kill()?;
                child.wait()?;
                return Ok(Some("a world that does not end".to_owned()));
            }
        }
    }
    if child.wait()?.success() {
        return Ok(None);
    }
    Ok(Some(finding.context("it failed and named no seed")?))
}

/// The longest silence of the simulator. It prints a line every ten thousand worlds, which take a quarter of a minute on an idle machine.
const QUIET: Duration = Duration::from_secs(240);
