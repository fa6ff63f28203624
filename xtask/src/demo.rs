//! Placeholder, replaced below.
use anyhow::Result;
use std::process::ExitCode;
#[derive(Debug, clap::Args)]
pub(crate) struct WorkerOptions {}
pub(crate) fn run() -> Result<ExitCode> {
    Ok(ExitCode::SUCCESS)
}
pub(crate) fn work(_: WorkerOptions) -> Result<ExitCode> {
    Ok(ExitCode::SUCCESS)
}
