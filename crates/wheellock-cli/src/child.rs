//! The command as a process: its start, signals and process group.
//!
//! This module ties the command to this tool's life.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::ExitStatus;

use rustix::process::{Pid, Signal, getpgrp, getpid, getppid, kill_process, kill_process_group};
use rustix::termios::tcgetpgrp;
use tokio::process::Command;

use crate::end::{End, complain};

/// The running command.
#[derive(Debug)]
pub(crate) struct Child {
    process: tokio::process::Child,
    pid: Pid,
    /// True if the command has its own process group, together with the processes that it starts.
    has_group: bool,
}

impl Child {
    /// Starts the command. `again` holds the arguments that start this program again, up to [`become_command`].
    pub(crate) fn start(
        words: &[OsString],
        environment: &[(&str, String)],
        again: &[&str],
    ) -> io::Result<Self> {
        // A command that uses a terminal must be in the terminal's foreground group, or the system stops it. If it
        // reads from a terminal, it may move there later, together with this tool.
        let shows = io::stdout().is_terminal() || io::stderr().is_terminal();
        let has_group = !(io::stdin().is_terminal() || shows && is_in_foreground());
        let mut command = command(words, again)?;
        command.envs(environment.iter().map(|(name, value)| (name, value))).kill_on_drop(true);
        if has_group {
            command.process_group(0);
        }
        let process = command.spawn()?;
        let pid = process.id().and_then(|pid| Pid::from_raw(pid.try_into().ok()?));
        let pid = pid.ok_or_else(|| io::Error::other("the system gave no process id"))?;
        Ok(Self { process, pid, has_group })
    }

    /// Waits until the command has ended. If the future is dropped, the status is not lost.
    pub(crate) async fn ended(&mut self) -> io::Result<ExitStatus> {
        self.process.wait().await
    }

    /// Passes on a signal that this tool received. The terminal itself signals the whole foreground group.
    pub(crate) fn pass_on(&self, signal: Signal) {
        // The terminal never sends SIGTERM, so it must be passed on in every case.
        if self.has_group || signal == Signal::TERM {
            self.signal(signal);
        }
    }

    /// Sends a signal to the command and to the processes that it started. An error is ignored, because the command
    /// may have ended. SIGCONT wakes a stopped command so that it handles the signal.
    pub(crate) fn signal(&self, signal: Signal) {
        for signal in [signal, Signal::CONT] {
            let _sent = if self.has_group {
                kill_process_group(self.pid, signal)
            } else {
                kill_process(self.pid, signal)
            };
        }
    }

    /// Kills the processes that an ended command has left in its process group.
    pub(crate) fn kill_rest(&self) {
        if self.has_group {
            self.signal(Signal::KILL);
        }
    }
}

/// Returns true if this process is in the foreground of a terminal, regardless of its input. A command with visible
/// output may ask for a password on that terminal.
fn is_in_foreground() -> bool {
    let foreground = File::open("/dev/tty").and_then(|terminal| Ok(tcgetpgrp(terminal)?));
    foreground.is_ok_and(|group| group == getpgrp())
}

/// Converts the command's exit status to the end of this tool.
pub(crate) fn end_of(status: ExitStatus) -> End {
    match (status.code(), status.signal()) {
        (Some(code), _) => End::Command(code),
        (None, signal) => End::Signal(signal.unwrap_or_default()),
    }
}

/// Returns the process to start. On Linux, this program starts itself, ties itself to this tool's life and then
/// becomes the command. Steps between fork and exec would otherwise need unsafe code.
fn command(words: &[OsString], again: &[&str]) -> io::Result<Command> {
    const THIS_PROGRAM: &str = "/proc/self/exe";
    let (program, arguments) = words.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    if cfg!(target_os = "linux") && std::path::Path::new(THIS_PROGRAM).exists() {
        let mut command = Command::new(THIS_PROGRAM);
        command.args(again).arg(BOUND).arg(getpid().as_raw_nonzero().to_string()).arg("--").args(words);
        return Ok(command);
    }
    let mut command = Command::new(program);
    command.args(arguments);
    Ok(command)
}

/// Returns the parent's process id and the command, if these are the arguments with which this program starts itself.
/// They are not part of the user's arguments, so no help or completion shows them.
pub(crate) fn bound(arguments: &[OsString]) -> Option<(i32, &[OsString])> {
    let [_program, verb, parent, dashes, command @ ..] = arguments else { return None };
    let parent = parent.to_str()?.parse().ok()?;
    (verb == BOUND && dashes == "--" && !command.is_empty()).then_some((parent, command))
}

pub(crate) const BOUND: &str = "bound";

/// Becomes the command, which dies when `parent` dies. Returns only if that fails.
pub(crate) fn become_command(parent: i32, words: &[OsString]) -> End {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::set_parent_process_death_signal(Some(Signal::KILL)) {
        complain(&format!("cannot tie the command to this tool: {error}"));
    }
    // The parent may have died before the previous step.
    if getppid() != Pid::from_raw(parent) {
        return End::Signal(Signal::KILL.as_raw());
    }
    let Some((program, arguments)) = words.split_first() else { return End::Usage };
    let error = std::process::Command::new(program).args(arguments).exec();
    cannot_run(program, &error)
}

/// Reports why a command cannot run, as shells do.
pub(crate) fn cannot_run(program: &OsString, error: &io::Error) -> End {
    complain(&format!("cannot run {}: {error}", program.display()));
    if error.kind() == io::ErrorKind::NotFound { End::NotFound } else { End::NotExecutable }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_internal_arguments_are_recognized() {
        let words = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        let told = words(&["w", "bound", "17", "--", "sh", "--", "-c"]);
        assert_eq!(bound(&told), Some((17, &words(&["sh", "--", "-c"])[..])));
        for other in [
            &[][..],
            &["w"],
            &["w", "bound"],
            &["w", "bound", "17", "--"],
            &["w", "bound", "17", "sh", "-c"],
            &["w", "bound", "x", "--", "sh"],
            &["w", "run", "17", "--", "sh"],
        ] {
            assert_eq!(bound(&words(other)), None, "{other:?}");
        }
    }
}
