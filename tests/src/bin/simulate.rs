//! A program that runs simulated fleets.
//!
//! `cargo xtask simulate` builds it with optimizations.

use std::process::ExitCode;

fn main() -> ExitCode {
    wheellock_tests::simulation::main(&std::env::args().skip(1).collect::<Vec<_>>())
}
