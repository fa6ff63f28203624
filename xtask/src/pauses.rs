//! Pauses of programs, from the command line.
//!
//! This module starts the programs and prints their counts. `wheellock_tests::pauses` implements one program.

use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use wheellock_tests::RedisServer;
use wheellock_tests::certificates::{Authority, leaf};
use wheellock_tests::pauses::{self, Pausing, Plan, Tally};

use crate::install::ensure_server;

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Number of pauses of each kind of program on each transport
    #[arg(default_value_t = 100)]
    pauses: u32,
    /// Number of programs that share these pauses
    #[arg(long, default_value_t = 5)]
    programs: u32,
    /// Length of each pause in milliseconds
    #[arg(long, default_value_t = 3_500)]
    length: u64,
}

/// A transport by name, with its server and the certificate file of its authority.
struct Transport {
    name: &'static str,
    server: RedisServer,
    trusted: Option<PathBuf>,
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    ensure_server()?;
    let programs = options.programs.max(1);
    let plan = Plan {
        pauses: options.pauses.div_ceil(programs),
        length: Duration::from_millis(options.length),
        response_timeout: Duration::from_secs(3),
    };
    let transports = transports();
    let mut all = Tally::default();
    println!("| transport | runtime | timer | pause | calls | lost | connections | of programs |");
    println!("|---|---|---|---|---|---|---|---|");
    std::thread::scope(|threads| {
        let mut running = Vec::new();
        for transport in &transports {
            for kind in Pausing::all() {
                let run = move || {
                    pauses::run(program(), kind, plan, &transport.server.url(), transport.trusted.as_deref())
                };
                let group: Vec<_> = (0..programs).map(|_| threads.spawn(run)).collect();
                running.push((transport.name, kind, group));
            }
        }
        for (name, Pausing { runtime, driver, pause }, group) in running {
            let mut tally = Tally::default();
            for program in group {
                tally.add(program.join().ok().context("a program's thread panicked")??);
            }
            let Tally { calls, errors, connections } = &tally;
            let lost = errors.len();
            println!(
                "| {name} | {runtime:?} | {driver:?} | {pause:?} | {calls} | {lost} | {connections} | {programs} |"
            );
            all.add(tally);
        }
        anyhow::Ok(())
    })?;
    let made = u64::from(programs) * (transports.len() * Pausing::all().count()) as u64;
    println!("{} calls, {} lost, {} connections lost", all.calls, all.errors.len(), all.connections - made);
    all.errors.iter().take(10).for_each(|error| println!("{error}"));
    let passed = all.errors.is_empty() && all.connections == made;
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn transports() -> [Transport; 3] {
    let authority = Authority::new("ours");
    let tls = RedisServer::builder().tls(&authority.issue(&leaf(&["127.0.0.1"])), authority.pem());
    let tls = tls.arg("tls-auth-clients", "no").start();
    let trusted = Some(tls.trusted_file());
    [
        Transport { name: "TCP", server: RedisServer::builder().tcp().start(), trusted: None },
        Transport { name: "unix", server: RedisServer::start(), trusted: None },
        Transport { name: "TLS", server: tls, trusted },
    ]
}

#[derive(Debug, Args)]
pub(crate) struct ProgramOptions {
    /// The arguments that `pauses` passes
    #[arg(allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// Runs one program.
pub(crate) fn work(options: &ProgramOptions) -> Result<ExitCode> {
    pauses::serve(&options.arguments)?;
    Ok(ExitCode::SUCCESS)
}

fn program() -> Command {
    // Without a path to this program the start fails, and the error then names the path that was tried.
    let mut program = Command::new(std::env::current_exe().unwrap_or_else(|_| "xtask".into()));
    program.arg("pausing-program");
    program
}
