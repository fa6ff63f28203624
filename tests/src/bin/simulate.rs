//! Runs simulated fleets; see `cargo xtask simulate`, which builds this with optimizations.

use std::process::ExitCode;

fn main() -> ExitCode {
    wheellock_tests::simulation::main(&std::env::args().skip(1).collect::<Vec<_>>())
}
