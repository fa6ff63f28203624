//! `cargo xtask`: everything a contributor or a newcomer runs, with no tool to install first.
//!
//! Knows how to run things, not what they mean: the demo and the checks live in modules of their own.

mod behind;
mod bench;
mod campaign;
mod circles;
mod demo;
mod errors;
mod examples;
mod features;
mod files;
mod fuzz;
mod gates;
mod install;
mod interop;
mod mutants;
mod packages;
mod pauses;
mod peers;
mod planted;
mod plots;
mod programs;
mod promises;
mod redis;
mod run;
mod servers;
mod shape;
mod simulate;
mod tables;
mod test;
mod tidy;
mod words;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// The project's own tools.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", disable_help_subcommand = false)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Show the main job on a real private server with real processes, and check every property shown
    ///
    /// Takes under 30 seconds once it is built. The exit code is 0 only if every property held.
    Demo,
    /// Run every check that must pass before a push
    ///
    /// Formatting, tidy, lints, unit, integration and doc tests, examples, packages without features and with all, documentation,
    /// packages, loom models, planted bugs and a short run of every fuzz target. The last line is `N passed, N failed`. What takes
    /// longer is `gates features` (all combinations), `fuzz`, `campaign` and `simulate`.
    Test(test::Options),
    /// Contend with Java's Redisson for the same locks; needs a JDK and Maven
    ///
    /// A part of `test` where both are there. Without them it is skipped, but fails where CI is set.
    Interop,
    /// Contend for simple locks with the libraries that everybody else uses, fetched from their registries
    ///
    /// Needs go, node with npm, python3 with venv; what is missing is skipped. Keeps them under target/peers, where `test`
    /// finds them too.
    Peers,
    /// Start private servers in the foreground, for trying things
    Redis {
        #[command(subcommand)]
        topology: redis::Topology,
    },
    /// Get servers of other versions as Python packages, and run tests against each
    ///
    /// Needs python3 with pip. Keeps them under target/servers; a server that was put there by hand is tested too.
    Servers(servers::Options),
    /// Plant each of the listed bugs in the library, and see a test fail because of it
    Planted {
        /// Only the bugs with one of these in their names
        names: Vec<String>,
        /// Looks for them with simulated fleets instead, and tells the first seed that finds each
        #[arg(long)]
        simulate: bool,
        /// With how many seeds
        #[arg(long, default_value_t = 2000, requires = "simulate")]
        seeds: u64,
    },
    /// Change the lock layer and its scripts in small ways, and see a test fail because of each change
    ///
    /// One build has all mutants, but all of them take hours to judge: every night runs it. Survivors need a line in
    /// `tests/mutants.txt` that says why no test can tell them from the right code.
    Mutants(mutants::Options),
    /// Check what the compiler cannot: the arrows between crates, the purity of the leaves, the documents
    Tidy(tidy::Options),
    /// Check what a change must not break for users: the oldest compiler, the oldest dependencies, other platforms, licences and advisories
    ///
    /// Installs compilers with rustup where they are missing. Gates whose tools are missing are skipped, but fail where CI is set.
    Gates(gates::Options),
    /// Print every error text with a situation that produces it, and write them to docs/errors.md
    Errors,
    /// Run one fuzz target, or all of them; installs cargo-fuzz if it is missing
    Fuzz(fuzz::Options),
    /// Measure one area beside its peers (`cargo xtask bench` lists the areas)
    Bench(bench::Options),
    /// Let worker processes use locks while one kind of fault strikes, and judge what they recorded
    ///
    /// Prints what it counted and keeps the history under target/campaigns. The exit code is 0 only if what must be
    /// zero is zero.
    Campaign(campaign::Options),
    /// Run whole fleets in virtual time, each decided by its seed, and judge what they saw
    ///
    /// A seed with a finding is made as small as it can be, and told with how to run it again. The exit code is 0 only if there is none.
    Simulate(simulate::Options),
    /// Pause programs while calls are under way, on every runtime, timer and transport, and count the lost answers and connections
    ///
    /// The exit code is 0 only if nothing is lost.
    Pauses(pauses::Options),
    #[command(hide = true)]
    PausingProgram(pauses::ProgramOptions),
    #[command(hide = true)]
    CampaignWorker(campaign::WorkerOptions),
    #[command(hide = true)]
    DemoWorker(demo::WorkerOptions),
    #[command(hide = true)]
    DemoCommandLine(demo::CommandLine),
}

fn main() -> Result<ExitCode> {
    match Arguments::parse().task {
        Task::Demo => demo::run(),
        Task::Test(options) => test::run(&options),
        Task::Interop => interop::run(),
        Task::Peers => peers::run(),
        Task::Simulate(options) => simulate::run(&options),
        Task::Redis { topology } => redis::run(&topology),
        Task::Servers(options) => servers::run(&options),
        Task::Planted { names, simulate: true, seeds } => planted::simulated::check(&names, seeds),
        Task::Planted { names, .. } => planted::check(&names),
        Task::Mutants(options) => mutants::run(&options),
        Task::Tidy(options) => tidy::run(&options),
        Task::Gates(options) => gates::run(&options),
        Task::Errors => errors::run(),
        Task::Fuzz(options) => fuzz::run(&options),
        Task::Bench(options) => bench::run(&options),
        Task::Campaign(options) => campaign::run(&options),
        Task::Pauses(options) => pauses::run(&options),
        Task::PausingProgram(options) => pauses::work(&options),
        Task::CampaignWorker(options) => campaign::work(&options),
        Task::DemoWorker(options) => demo::work(&options),
        Task::DemoCommandLine(options) => Ok(demo::command_line(options)),
    }
}
