//! The program `wheellock`. Owns nothing: all of it is the library's, so that tests and demos can be it, too.

use std::process::ExitCode;

fn main() -> ExitCode {
    wheellock_cli::main()
}
