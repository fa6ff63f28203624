//! The command line of Wheellock.
//!
//! It runs a command under a lock, reports a lock's holders, and checks and measures a server. Users need only the
//! program `wheellock`, which `docs/cli.md` describes. This library has no public API: it exists so that tests and the
//! project's demo can run as that program, and any release may change it.
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

#[cfg(not(unix))]
compile_error!("the command line needs Unix: process groups and signals");

mod arguments;
mod ask;
mod bench;
mod child;
mod doctor;
mod end;
mod holder;
mod json;
mod kinds;
mod ls;
mod manual;
mod queue;
mod run;
mod signals;
mod ticket;
mod time;
mod top;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use clap_complete::Shell;

use arguments::{Arguments, Verb};
use end::{End, Failure, say};

/// Runs the program with the arguments of this process.
#[doc(hidden)]
pub fn main() -> ExitCode {
    run(std::env::args_os(), &[])
}

/// Runs the program with these arguments. The first argument is the program's name. `again` holds the arguments that
/// make this process call this function again; they precede the program's own arguments. The program starts itself in
/// that way to tie a command to its own life.
///
/// Blocks the thread until the program ends. Must be called by the first thread of a process. On Linux, a command is
/// tied to the life of the thread that started it.
#[doc(hidden)]
pub fn run(arguments: impl IntoIterator<Item = OsString>, again: &[&str]) -> ExitCode {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    if let Some((parent, command)) = child::bound(&arguments) {
        return child::become_command(parent, command).into();
    }
    let arguments = match Arguments::try_parse_from(arguments) {
        Ok(arguments) => arguments,
        Err(error) => {
            // A reader that has closed the output does not want the message.
            let _printed = error.print();
            return if error.use_stderr() { End::Usage.into() } else { ExitCode::SUCCESS };
        }
    };
    let end = match arguments.verb {
        Verb::Run(options) => on_runtime(run::run(&options, again)),
        Verb::Acquire(options) => on_runtime(ticket::acquire(&options)),
        Verb::Release(options) => on_runtime(ticket::release(&options)),
        Verb::Ask(options) => on_runtime(ask::ask(&options)),
        Verb::Holder(options) => on_runtime(holder::show(&options)),
        Verb::Ls(options) => on_runtime(ls::list(&options)),
        Verb::Top(options) => on_runtime(top::show(&options)),
        Verb::Queue(options) => on_runtime(queue::show(&options)),
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

/// Returns the script with which a shell completes this tool's arguments.
fn completions(shell: Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "wheellock", &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

/// Runs `work` on one thread, the present one. A command that it starts is tied to this thread.
fn on_runtime(work: impl Future<Output = Result<End, Failure>>) -> Result<End, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::of(End::Unavailable, format!("cannot start: {error}")))?;
    let end = runtime.block_on(work);
    // This drops the runtime's tasks and does not wait for blocking calls. A resolver may be silent for half a
    // minute.
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
    fn completions_omit_internal_arguments() {
        for shell in Shell::value_variants() {
            let script = completions(*shell);
            assert!(script.contains("doctor") && !script.contains(child::BOUND), "{shell}: {script}");
        }
    }

    /// A blocking call is a DNS lookup, which a resolver may leave without a reply for long.
    #[test]
    fn blocking_call_does_not_delay_exit() {
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
