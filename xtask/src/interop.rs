//! Tests against Java's Redisson, and their required tools.

use std::process::ExitCode;

use anyhow::{Result, bail};
use wheellock_tests::interop::missing_tools;

use crate::{install, run};

pub(crate) fn run() -> Result<ExitCode> {
    let missing = missing_tools();
    if !missing.is_empty() {
        let what =
            format!("not found on PATH: {}. Install a JDK (17 or later) and Maven", missing.join(", "));
        if std::env::var_os("CI").is_some() {
            bail!("{what}");
        }
        println!("Skipped. {what}.");
        return Ok(ExitCode::SUCCESS);
    }
    install::ensure_server()?;
    println!("Building the peer in Java; the first time, Maven downloads Redisson.");
    let mut command = run::cargo(["test", "--package", "wheellock-tests", "--test", "it", "--"]);
    command.args(
        ["interop", "interop_fair", "interop_kinds", "interop_semaphores", "interop_topologies"]
            .map(|module| format!("{module}::")),
    );
    // Print the latencies even if all tests pass.
    run::run(command.arg("--show-output"))?;
    Ok(ExitCode::SUCCESS)
}
