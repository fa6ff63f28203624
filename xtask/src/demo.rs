//! Demo: the main job on a private server, with real processes.
//!
//! The demo checks every property that it shows. This module owns the server and the report; `scenes` has the properties and their checks.

mod scenes;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;
use wheellock_tests::RedisServer;
use wheellock_tests::worker::{self, Worker};

use crate::install::ensure_server;

/// Runs every scene. Succeeds only if every property held.
pub(crate) fn run() -> Result<ExitCode> {
    let start = Instant::now();
    ensure_server()?;
    let server = RedisServer::builder().tcp().try_start()?;
    println!(
        "Wheellock on a private server at {} (pid {}); each worker is a process.\n",
        server.url(),
        server.pid()
    );
    let stage = Stage { server, program: std::env::current_exe().context("cannot find this program")? };
    // One thread suffices: the demo's own calls are sequential, and so are the latencies that it reports.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;

    println!("        {:<CLAIM_WIDTH$}  what was seen", "property");
    let mut held = 0;
    let mut latencies = Vec::new();
    for scene in scenes::ALL {
        let shown = (scene.show)(&stage, &runtime);
        let (verdict, seen) = match shown {
            Ok(finding) => {
                latencies.extend(finding.latency);
                (if finding.held { "ok" } else { "BROKEN" }, finding.seen)
            }
            Err(error) => ("BROKEN", format!("{error:#}")),
        };
        held += usize::from(verdict == "ok");
        println!("{verdict:>6}  {:<CLAIM_WIDTH$}  {seen}", scene.claim);
    }

    println!("\n        {:<CLAIM_WIDTH$}  {:>10} {:>10} {:>7}", "latency", "p50", "p99", "n");
    for latency in &latencies {
        let Latency { what, p50, p99, samples } = latency;
        println!("        {what:<CLAIM_WIDTH$}  {:>10} {:>10} {samples:>7}", micros(*p50), micros(*p99));
    }
    let all = scenes::ALL.len();
    println!("\n{held} of {all} properties held, in {:.1} s", start.elapsed().as_secs_f64());
    Ok(if held == all { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

#[derive(Debug, Args)]
pub(crate) struct WorkerOptions {
    /// URL, name of the lock, lease in milliseconds
    arguments: Vec<String>,
}

/// Runs a worker process.
pub(crate) fn work(options: &WorkerOptions) -> Result<ExitCode> {
    worker::serve(&options.arguments)?;
    Ok(ExitCode::SUCCESS)
}

#[derive(Debug, Args)]
pub(crate) struct CommandLine {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

/// Runs a process that is the command line.
pub(crate) fn command_line(options: CommandLine) -> ExitCode {
    let arguments = std::iter::once("wheellock".into()).chain(options.arguments);
    wheellock_cli::run(arguments, &[COMMAND_LINE])
}

/// The argument that makes this program the command line.
const COMMAND_LINE: &str = "demo-command-line";

/// The shared resources of all scenes.
struct Stage {
    server: RedisServer,
    /// The path of this program, which also runs the workers.
    program: PathBuf,
}

impl Stage {
    fn worker(&self, lock: &str, lease: Duration) -> Result<Worker> {
        let mut program = Command::new(&self.program);
        program.arg("demo-worker");
        Worker::spawn(program, &self.server.url(), lock, lease)
    }

    /// Returns a job as cron runs it: the command line with the command `script`, which runs only if the lock is free.
    fn cron_job(&self, lock: &str, script: &str) -> Command {
        let mut job = Command::new(&self.program);
        job.args([COMMAND_LINE, "run", lock, "--wait", "0", "--", "sh", "-c", script]);
        job.env("WHEELLOCK_URL", self.server.url()).stdin(Stdio::null());
        job
    }

    /// Queries the server through a connection that shares no code with the product.
    fn redis(&self, args: &[&str]) -> String {
        self.server.cli(args)
    }
}

/// The result of a scene.
struct Finding {
    held: bool,
    seen: String,
    latency: Option<Latency>,
}

struct Latency {
    what: &'static str,
    p50: Duration,
    p99: Duration,
    samples: usize,
}

impl Latency {
    fn of(what: &'static str, mut samples: Vec<Duration>) -> Self {
        samples.sort_unstable();
        let percentile = |percent: usize| samples.get((samples.len() * percent / 100).min(samples.len() - 1));
        let [p50, p99] = [50, 99].map(|percent| percentile(percent).copied().unwrap_or_default());
        Self { what, p50, p99, samples: samples.len() }
    }
}

fn micros(duration: Duration) -> String {
    format!("{:.0} us", duration.as_secs_f64() * 1e6)
}

/// The width of the longest claim.
const CLAIM_WIDTH: usize = 55;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_sorted_samples() {
        let latency = Latency::of("test", (1..=100).rev().map(Duration::from_micros).collect());
        assert_eq!((latency.p50, latency.p99), (Duration::from_micros(51), Duration::from_micros(100)));
        let single = Latency::of("test", vec![Duration::from_micros(7)]);
        assert_eq!((single.p50, single.p99), (Duration::from_micros(7), Duration::from_micros(7)));
    }

    #[test]
    fn claims_fit_their_column() {
        for scene in scenes::ALL {
            assert!(scene.claim.chars().count() <= CLAIM_WIDTH, "{}", scene.claim);
        }
    }
}
