//! The end of the program: exit codes and last messages.
//!
//! This module owns the meaning of every exit code except the command's own.

use std::fmt;
use std::io::Write as _;
use std::process::ExitCode;

use wheellock::Error;

/// The end of the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    Success,
    /// The result is negative: the lock is free, or the server has a fault.
    No,
    /// Other owners hold the lock. The field is the exit code for that.
    Conflict(u8),
    /// 64, as in `sysexits.h`: the arguments are invalid.
    Usage,
    /// 65: other data is under the name.
    OtherData,
    /// 69: the server cannot be reached, or is not ready.
    Unavailable,
    /// 75: the lock was lost, or about to be, before the command had ended. The command was stopped for that reason,
    /// or ended by itself. A retry may succeed.
    Lost,
    /// 126, as in shells: the command cannot be run.
    NotExecutable,
    /// 127, as in shells: the command does not exist.
    NotFound,
    /// 128 and the signal's number, as in shells: ended by this signal.
    Signal(i32),
    /// The command's own exit code.
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
            // The system keeps only eight bits.
            Self::Command(code) => u8::try_from(code & 0xFF).unwrap_or(1),
        }
    }
}

impl From<End> for ExitCode {
    fn from(end: End) -> Self {
        end.code().into()
    }
}

/// An end with an explanation.
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
            Error::InvalidName { .. }
            | Error::InvalidLease { .. }
            | Error::InvalidLabel { .. }
            | Error::InvalidReason { .. }
            | Error::UnsupportedFleet { .. }
            | Error::NoTicket { .. }
            | Error::InvalidTicket { .. }
            | Error::NoMinHold { .. } => End::Usage,
            Error::Server { source, .. } if source.kind() == wheellock::client::ErrorKind::Config => {
                End::Usage
            }
            Error::TicketEnded { .. } => End::No,
            Error::OtherData { .. } => End::OtherData,
            Error::Lost { .. } | Error::GrantedTooLate { .. } => End::Lost,
            _ => End::Unavailable,
        };
        Self::of(end, error)
    }
}

/// Writes to standard output. An error is ignored, because a reader that has closed the output does not want it.
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
    fn exit_codes_follow_conventions() {
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
