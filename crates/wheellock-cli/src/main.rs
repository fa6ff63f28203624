//! The program `wheellock`.
//!
//! All code is in the library, so that tests and demos can run as the program too.

use std::process::ExitCode;

fn main() -> ExitCode {
    wheellock_cli::main()
}
