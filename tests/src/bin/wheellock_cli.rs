//! The command line, for tests.

fn main() -> std::process::ExitCode {
    wheellock_cli::main()
}
