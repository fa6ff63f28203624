//! `cargo xtask`: every command that a contributor or newcomer runs.
//!
//! No tool has to be installed first. This file only selects a command; each command has a module of its own.

mod api;
mod behind;
mod bench;
mod campaign;
mod circles;
mod compare;
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
mod new_kind;
mod packages;
mod pauses;
mod peers;
mod planted;
mod plots;
mod programs;
mod promises;
mod prove;
mod redis;
mod run;
mod servers;
mod shape;
mod simulate;
mod tables;
mod test;
mod tidy;
mod words;
mod workflows;

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
    /// Formatting, tidy, lints, unit, integration and doc tests, examples, packages without features and with all, documentation, packages,
    /// loom models, planted bugs and a short run of every fuzz target. The last line is `N passed, N failed`. Longer checks have their own
    /// commands: `gates features` (all combinations), `fuzz`, `campaign` and `simulate`.
    Test(test::Options),
    /// Contend with Java's Redisson for the same locks; needs a JDK and Maven
    ///
    /// `test` includes this if both tools are installed. Without them it is skipped, but it fails where CI is set.
    Interop,
    /// Contend for simple locks with other popular libraries, fetched from their registries
    ///
    /// Needs go, node with npm, and python3 with venv; a library whose tool is missing is skipped. Keeps the libraries under target/peers,
    /// where `test` finds them too.
    Peers,
    /// Start private servers in the foreground, for experiments
    Redis {
        #[command(subcommand)]
        topology: redis::Topology,
    },
    /// Get servers of other versions as Python packages, and run tests against each
    ///
    /// Needs python3 with pip. Keeps the servers under target/servers; a server that was put there by hand is tested too.
    Servers(servers::Options),
    /// Plant each of the listed bugs in the library, and check that a test fails because of it
    Planted {
        /// Only the bugs whose names contain one of these words
        names: Vec<String>,
        /// Search for the bugs with simulated fleets instead, and print the first seed that finds each
        #[arg(long)]
        simulate: bool,
        /// Number of seeds
        #[arg(long, default_value_t = 2000, requires = "simulate")]
        seeds: u64,
    },
    /// Change the lock layer and its scripts in small ways, and check that a test fails because of each change
    ///
    /// One build contains all mutants, but judging all of them takes hours; the nightly job does it. A survivor needs a line in
    /// `tests/mutants.txt` with the reason why no test can distinguish it from the correct code.
    Mutants(mutants::Options),
    /// Write the row, the stubs and the failing test of a new kind of lock
    ///
    /// The stub is the plain lock under another key. Its test fails, and lists the files to fill in.
    NewKind(new_kind::Options),
    /// Check rules that the compiler cannot: dependencies between crates, purity of the leaves, the documents
    Tidy(tidy::Options),
    /// Check properties that users rely on: the oldest compiler, the oldest dependencies, other platforms, licences and advisories
    ///
    /// Installs missing compilers with rustup. A gate whose tool is missing is skipped, but fails where CI is set.
    Gates(gates::Options),
    /// Print every error text with a situation that produces it, and write them to docs/tables/errors.md
    Errors,
    /// Run one fuzz target, or all of them; installs cargo-fuzz if it is missing
    Fuzz(fuzz::Options),
    /// Measure one area beside its peers (`cargo xtask bench` lists the areas)
    Bench(bench::Options),
    /// Let worker processes use locks while one kind of fault strikes, and judge their records
    ///
    /// Prints the counts and keeps the history under target/campaigns. The exit code is 0 only if every count that must be zero is zero.
    Campaign(campaign::Options),
    /// Run whole fleets in virtual time, each determined by its seed, and judge the results
    ///
    /// A seed with a finding is reduced as far as possible, and printed with the command that repeats it. The exit code is 0 only without
    /// findings.
    Simulate(simulate::Options),
    /// Check a model of the reclaim of locks after a failover: all states of many worlds, with each rule and without it
    ///
    /// The library does not have this protocol yet. The exit code is 0 only if each world and each changed rule has the expected result.
    Prove(prove::Options),
    /// Pause programs during calls, on every runtime, timer and transport, and count the lost replies and connections
    ///
    /// The exit code is 0 only if no reply or connection is lost.
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
        Task::NewKind(options) => new_kind::run(&options),
        Task::Tidy(options) => tidy::run(&options),
        Task::Gates(options) => gates::run(&options),
        Task::Errors => errors::run(),
        Task::Fuzz(options) => fuzz::run(&options),
        Task::Bench(options) => bench::run(&options),
        Task::Campaign(options) => campaign::run(&options),
        Task::Prove(options) => prove::run(&options),
        Task::Pauses(options) => pauses::run(&options),
        Task::PausingProgram(options) => pauses::work(&options),
        Task::CampaignWorker(options) => campaign::work(&options),
        Task::DemoWorker(options) => demo::work(&options),
        Task::DemoCommandLine(options) => Ok(demo::command_line(options)),
    }
}
