//! Benchmark runs, and the rows in which a peer is better.
//!
//! The binary is built with the settings of a latency-sensitive service.

use std::fs;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::Value;

use crate::behind::{Row, behind};
use crate::run;

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The area; without it the areas are listed
    area: Option<String>,
    /// Fails if a peer is better in a row
    #[arg(long)]
    strict: bool,
    /// Arguments for the benchmark
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<String>,
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let areas = areas()?;
    let Some(area) = &options.area else {
        println!("areas: {}", areas.join(", "));
        return Ok(ExitCode::SUCCESS);
    };
    if !areas.contains(area) {
        bail!("no benchmark area {area:?}; there are: {}", areas.join(", "));
    }
    // Most areas measure against a server.
    crate::install::ensure_server()?;
    let mut command =
        run::cargo(["run", "--package", "wheellock-benches", "--profile", "bench", "--bin", area, "--"]);
    let wrote = run::target_directory().join("bench/last.json");
    // Remove the file of an earlier run. A run that only draws plots measures nothing and would report the old rows.
    let _not_there = fs::remove_file(&wrote);
    run::run(command.args(&options.rest))?;
    let Ok(rows) = fs::read(&wrote) else { return Ok(ExitCode::SUCCESS) };
    let rows: Vec<Value> =
        serde_json::from_slice(&rows).with_context(|| format!("{} is no rows", wrote.display()))?;
    let rows: Option<Vec<Row>> = rows.iter().map(Row::of).collect();
    let rows = rows.with_context(|| format!("{} has rows that are none", wrote.display()))?;
    let behind = behind(&rows);
    println!("\nrows that a peer wins: {}", behind.len());
    behind.iter().for_each(|row| println!("  {row}"));
    Ok(if options.strict && !behind.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Returns the names of the binaries of the benches crate.
fn areas() -> Result<Vec<String>> {
    let metadata = run::metadata()?;
    let packages = metadata["packages"].as_array().map_or(&[][..], Vec::as_slice);
    let benches = packages.iter().filter(|package| package["name"] == "wheellock-benches");
    let targets = benches.flat_map(|package| package["targets"].as_array().into_iter().flatten());
    let bins = targets.filter(|target| target["kind"][0] == "bin");
    Ok(bins.filter_map(|target| target["name"].as_str().map(str::to_owned)).collect())
}
