//! Coverage-guided fuzzing of the network parsers, on stable.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::run;

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The target; without it all targets run, one after the other
    target: Option<String>,
    /// Seconds for each target
    #[arg(default_value_t = 10)]
    seconds: u64,
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let all = targets()?;
    let chosen = match &options.target {
        None => all,
        Some(target) if all.contains(target) => vec![target.clone()],
        Some(target) => bail!("no fuzz target {target:?}; there are: {}", all.join(", ")),
    };
    ensure_cargo_fuzz()?;
    for target in &chosen {
        println!("--- fuzz {target}, {} s", options.seconds);
        run::run(&mut command(target, options.seconds)?)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the fuzz targets by file name. Returns an empty list if there is no fuzz folder.
pub(crate) fn targets() -> Result<Vec<String>> {
    let Ok(entries) = fs::read_dir(run::root().join("fuzz/fuzz_targets")) else { return Ok(Vec::new()) };
    let mut targets = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "rs")
            && let Some(stem) = path.file_stem()
        {
            targets.push(stem.to_string_lossy().into_owned());
        }
    }
    targets.sort();
    Ok(targets)
}

/// Returns true if cargo-fuzz is installed.
pub(crate) fn is_installed() -> bool {
    let mut asked = run::cargo(["fuzz", "--version"]);
    asked.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

/// Installs cargo-fuzz unless it is installed.
pub(crate) fn ensure_cargo_fuzz() -> Result<()> {
    if is_installed() {
        return Ok(());
    }
    // Build without optimisation: cargo-fuzz only starts other programs, so an optimised build would cost more time than it saves.
    let mut install = run::cargo(["install", "cargo-fuzz", "--locked", "--debug"]);
    println!("Found no cargo-fuzz: installing it.\n$ {}", run::shown(&install));
    run::run(&mut install)
}

/// Returns the command for one run of one target. A crash is a failure, and leaves its input in `fuzz/artifacts`.
pub(crate) fn command(target: &str, seconds: u64) -> Result<Command> {
    // Found inputs stay out of the repository; only selected seeds are committed.
    let corpus = run::target_directory().join("fuzz-corpus").join(target);
    fs::create_dir_all(&corpus).with_context(|| format!("cannot create {}", corpus.display()))?;
    let seeds: PathBuf = run::root().join("fuzz/seeds").join(target);

    let mut command = cargo_fuzz("run");
    command.arg(target).arg(&corpus);
    if seeds.is_dir() {
        command.arg(&seeds);
    }
    command.args([
        "--",
        &format!("-max_total_time={seconds}"),
        "-timeout=5",
        "-rss_limit_mb=1024",
        "-verbosity=0",
        "-print_final_stats=1",
    ]);
    Ok(command)
}

/// Returns the command that builds all targets, so that no target waits for a build of another target.
pub(crate) fn building() -> Command {
    cargo_fuzz("build")
}

fn cargo_fuzz(verb: &str) -> Command {
    // No sanitizer: the project forbids unsafe code, so a fault shows as a panic, a hang or memory use. Without a sanitizer the same time
    // covers more inputs.
    let mut command = run::cargo(["fuzz", verb, "--sanitizer", "none", "--target-dir"]);
    command.arg(run::target_directory().join("fuzz"));
    // The coverage instrumentation is behind `-Z`; this makes the stable compiler accept it.
    command.env("RUSTC_BOOTSTRAP", "1");
    // `cargo xtask test` may set flags of its own.
    command.env_remove("RUSTFLAGS");
    command
}
