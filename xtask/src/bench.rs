//! Runs one benchmark binary, built as a latency-sensitive service would be.

use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Args;

use crate::run;

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The area; without it the areas are listed
    area: Option<String>,
    /// Passed to the benchmark
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
    run::run(command.args(&options.rest))?;
    Ok(ExitCode::SUCCESS)
}

/// The binaries of the benches crate.
fn areas() -> Result<Vec<String>> {
    let metadata = run::metadata()?;
    let packages = metadata["packages"].as_array().map_or(&[][..], Vec::as_slice);
    let benches = packages.iter().filter(|package| package["name"] == "wheellock-benches");
    let targets = benches.flat_map(|package| package["targets"].as_array().into_iter().flatten());
    let bins = targets.filter(|target| target["kind"][0] == "bin");
    Ok(bins.filter_map(|target| target["name"].as_str().map(str::to_owned)).collect())
}
