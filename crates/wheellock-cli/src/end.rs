//! How the program ends: its exit codes, and what it says before. Owns the meaning of every code that is not the command's.

use std::fmt;
use std::io::Write as _;
use std::process::ExitCode;

use wheellock::Error;

/// How the program ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    Success,
    /// There is something to say no to: the lock is free, the server has a fault.
    No,
    /// The lock is held by others, and the exit code for that.
    Conflict(u8),
    /// As `sysexits.h` has it: 64, the arguments make no sense.
    Usage,
    /// 65: there is other data under the name.
    OtherData,
    /// 69: the server cannot be reached, or does not serve.
    Unavailable,
    /// 75: the lock was lost, or about to be, before the command had ended, which was stopped for it or ended by itself. To try again may
    /// help.
    Lost,
    /// 126: the command cannot be run (as shells have it).
    NotExecutable,
    /// 127: there is no such command (as shells have it).
    NotFound,
    /// 128 and its number: ended by this signal (as shells have it).
    Signal(i32),
    /// The command's own.
    Command(i32),
}

impl End {
    fn code(self) -> u8 {
        match self {
            Self::Success => 0,
            Self::No => 1,
            Self::Conflict(code) => code,
            Self::Usage => 64,
            Self::OtherData => 65,
            Self::Unavailable => 69,
            Self::Lost => 75,
            Self::NotExecutable => 126,
            Self::NotFound => 127,
            Self::Signal(signal) => 128_u8.saturating_add(u8::try_from(signal).unwrap_or(127)),
            // The system gives eight bits.
            Self::Command(code) => u8::try_from(code & 0xFF).unwrap_or(1),
        }
    }
}

impl From<End> for ExitCode {
    fn from(end: End) -> Self {
        end.code().into()
    }
}

/// An end that has to be explained.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) end: End,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn of(end: End, message: impl fmt::Display) -> Self {
        Self { end, message: message.to_string() }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let end = match &error {
            Error::InvalidName { .. } | Error::InvalidLease { .. } | Error::InvalidLabel { .. } => End::Usage,
            Error::Server { source, .. } if source.kind() == wheellock::client::ErrorKind::Config => {
                End::Usage
            }
            Error::OtherData { .. } => End::OtherData,
            Error::Lost { .. } | Error::GrantedTooLate { .. } => End::Lost,
            _ => End::Unavailable,
        };
        Self::of(end, error)
    }
}

/// Writes to standard output. Who closed it does not want to read it.
pub(crate) fn say(text: &str) {
    let mut output = std::io::stdout().lock();
    let _written = output.write_all(text.as_bytes()).and_then(|()| output.flush());
}

/// Writes a line to standard error.
pub(crate) fn complain(message: &str) {
    let _written = writeln!(std::io::stderr(), "wheellock: {message}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_sysexits_of_shells_and_of_the_command() {
        let codes = [
            (End::Success, 0),
            (End::Conflict(7), 7),
            (End::Usage, 64),
            (End::Unavailable, 69),
            (End::Lost, 75),
            (End::Signal(15), 143),
            (End::Signal(1 << 20), 255),
            (End::Command(3), 3),
            (End::Command(-1), 255),
        ];
        for (end, code) in codes {
            assert_eq!(end.code(), code, "{end:?}");
        }
    }
}
