//! The command as a process: how it is started, signalled and tied to this tool's life. Owns its process group.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::ExitStatus;

use rustix::process::{Pid, Signal, getpgrp, getpid, getppid, kill_process, kill_process_group};
use rustix::termios::tcgetpgrp;
use tokio::process::Command;

use crate::end::{End, complain};

/// The command, running.
#[derive(Debug)]
pub(crate) struct Child {
    process: tokio::process::Child,
    pid: Pid,
    /// Whether it has a process group of its own, with whatever it starts.
    has_group: bool,
}

impl Child {
    /// Starts the command. `again` is what this program is to be started with to come to [`become_command`].
    pub(crate) fn start(
        words: &[OsString],
        environment: &[(&str, String)],
        again: &[&str],
    ) -> io::Result<Self> {
        // One that uses a terminal must be in the terminal's foreground group, or it is stopped. If it reads from one it may come there
        // later, together with this tool.
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

    /// Waits until it has ended. Nothing is lost if the future is dropped.
    pub(crate) async fn ended(&mut self) -> io::Result<ExitStatus> {
        self.process.wait().await
    }

    /// Passes a signal on that this tool got. The terminal sends its own to the whole foreground group.
    pub(crate) fn pass_on(&self, signal: Signal) {
        if self.has_group || signal == Signal::TERM {
            self.signal(signal);
        }
    }

    /// Sends a signal to the command, and to what it has started. One that has ended is past caring, and one that is stopped is woken to
    /// take it.
    pub(crate) fn signal(&self, signal: Signal) {
        for signal in [signal, Signal::CONT] {
            let _sent = if self.has_group {
                kill_process_group(self.pid, signal)
            } else {
                kill_process(self.pid, signal)
            };
        }
    }

    /// Kills what an ended command has left behind in its process group.
    pub(crate) fn kill_rest(&self) {
        if self.has_group {
            self.signal(Signal::KILL);
        }
    }
}

/// Whether this process is in the foreground of a terminal, whatever its input is: a command that somebody looks at may ask there for a
/// password.
fn is_in_foreground() -> bool {
    let foreground = File::open("/dev/tty").and_then(|terminal| Ok(tcgetpgrp(terminal)?));
    foreground.is_ok_and(|group| group == getpgrp())
}

/// What the command's end means for ours.
pub(crate) fn end_of(status: ExitStatus) -> End {
    match (status.code(), status.signal()) {
        (Some(code), _) => End::Command(code),
        (None, signal) => End::Signal(signal.unwrap_or_default()),
    }
}

/// On Linux this very program, which ties itself to our life and then becomes the command: what is done between fork and exec
/// otherwise needs unsafe code.
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

/// What this program is told to become, if these are the arguments that it starts itself with: the parent's process id and the command. No
/// argument of those that people write, so that nobody is shown it.
pub(crate) fn bound(arguments: &[OsString]) -> Option<(i32, &[OsString])> {
    let [_program, verb, parent, dashes, command @ ..] = arguments else { return None };
    let parent = parent.to_str()?.parse().ok()?;
    (verb == BOUND && dashes == "--" && !command.is_empty()).then_some((parent, command))
}

pub(crate) const BOUND: &str = "bound";

/// Becomes the command: dies when `parent` does. Returns only if that fails.
pub(crate) fn become_command(parent: i32, words: &[OsString]) -> End {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::set_parent_process_death_signal(Some(Signal::KILL)) {
        complain(&format!("cannot tie the command to this tool: {error}"));
    }
    // It may have died before.
    if getppid() != Pid::from_raw(parent) {
        return End::Signal(Signal::KILL.as_raw());
    }
    let Some((program, arguments)) = words.split_first() else { return End::Usage };
    let error = std::process::Command::new(program).args(arguments).exec();
    cannot_run(program, &error)
}

/// Says why a command does not run, as shells do.
pub(crate) fn cannot_run(program: &OsString, error: &io::Error) -> End {
    complain(&format!("cannot run {}: {error}", program.display()));
    if error.kind() == io::ErrorKind::NotFound { End::NotFound } else { End::NotExecutable }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_that_this_program_starts_itself_with_are_told_from_those_of_people() {
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
