//! The command line of Wheellock: runs a command under a lock, says who holds one, checks and measures a server.
//!
//! The program `wheellock` is all there is to use, and `docs/cli.md` its page. This library exists so that other programs can be
//! it: tests, and the project's demo.
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

#[cfg(not(unix))]
compile_error!("the command line needs Unix: process groups and signals");

mod arguments;
mod bench;
mod child;
mod doctor;
mod end;
mod holder;
mod json;
mod kinds;
mod manual;
mod run;
mod signals;
mod time;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use clap_complete::Shell;

use arguments::{Arguments, Verb};
use end::{End, Failure, say};

/// The program, with the arguments of this process.
pub fn main() -> ExitCode {
    run(std::env::args_os(), &[])
}

/// The program with these arguments, the first of which is its name. `again` is what this process has to be started with to come
/// here once more, before the arguments: the program starts itself to tie a command to its own life.
///
/// Blocks the thread until the program would have ended, and is to be called by a process' first thread: on Linux a command is tied
/// to the life of the thread that started it.
pub fn run(arguments: impl IntoIterator<Item = OsString>, again: &[&str]) -> ExitCode {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    if let Some((parent, command)) = child::bound(&arguments) {
        return child::become_command(parent, command).into();
    }
    let arguments = match Arguments::try_parse_from(arguments) {
        Ok(arguments) => arguments,
        Err(error) => {
            // Who closed the other end does not want to read it.
            let _printed = error.print();
            return if error.use_stderr() { End::Usage.into() } else { ExitCode::SUCCESS };
        }
    };
    let end = match arguments.verb {
        Verb::Run(options) => on_runtime(run::run(&options, again)),
        Verb::Holder(options) => on_runtime(holder::show(&options)),
        Verb::Doctor(options) => on_runtime(doctor::check(&options)),
        Verb::Bench(options) => on_runtime(bench::measure(&options)),
        Verb::Completions { shell } => {
            say(&completions(shell));
            Ok(End::Success)
        }
        Verb::Manual => {
            say(&manual::page());
            Ok(End::Success)
        }
    };
    match end {
        Ok(end) => end.into(),
        Err(Failure { end, message }) => {
            end::complain(&message);
            end.into()
        }
    }
}

/// What makes a shell complete this tool's arguments.
fn completions(shell: Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "wheellock", &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

/// On one thread, which is this one: a command that it starts is tied to it.
fn on_runtime(work: impl Future<Output = Result<End, Failure>>) -> Result<End, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::of(End::Unavailable, format!("cannot start: {error}")))?;
    let end = runtime.block_on(work);
    // Its tasks are dropped; a call that blocks a thread is not waited for. A resolver may be silent for half a minute.
    runtime.shutdown_background();
    end
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use clap::ValueEnum;

    use super::*;

    #[test]
    fn shells_do_not_complete_what_this_tool_says_to_itself() {
        for shell in Shell::value_variants() {
            let script = completions(*shell);
            assert!(script.contains("doctor") && !script.contains(child::BOUND), "{shell}: {script}");
        }
    }

    /// Such a call is the look-up of a name, which a resolver may leave without an answer for long.
    #[test]
    fn the_end_waits_for_no_call_that_blocks_a_thread() {
        let (answer, unanswered) = channel::<()>();
        let (ended, ends) = channel();
        std::thread::spawn(move || {
            let end = on_runtime(async {
                let (begun, begins) = channel();
                tokio::task::spawn_blocking(move || {
                    begun.send(()).unwrap();
                    unanswered.recv()
                });
                begins.recv().unwrap();
                Ok(End::Success)
            });
            ended.send(matches!(end, Ok(End::Success))).unwrap();
        });
        assert_eq!(ends.recv_timeout(Duration::from_secs(10)), Ok(true));
        drop(answer);
    }
}
