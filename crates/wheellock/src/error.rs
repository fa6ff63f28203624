//! What can go wrong with a lock. Owns the error type of this crate.

use std::fmt;
use std::time::Duration;

pub use wheellock_client::Outcome;

use crate::guard::LostReason;

/// A failed lock operation. `Display` is one line fit for a log; the chain of causes is kept in `source()`.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Error {
    /// The server, or the way to it, failed. The source tells what was tried, where, and why it failed.
    Server {
        /// What the library was doing, as in "acquire lock \"orders:42\"".
        operation: String,
        /// The connection's error.
        source: wheellock_client::Error,
    },
    /// The lock's name is empty or longer than 4 KiB.
    InvalidName {
        /// Length of the name in bytes.
        length: usize,
    },
    /// The lease is below 1 ms or above 100 years.
    InvalidLease {
        /// The lease that was asked for.
        lease: Duration,
    },
    /// The owner belongs to another manager: its holds are renewed and counted there.
    ForeignOwner {
        /// The owner's text.
        owner: String,
    },
    /// The server answered a script with something that the script never returns. Is there another application's data
    /// under this name, or something between us and the server that changes replies?
    UnexpectedReply {
        /// What the library was doing.
        operation: String,
        /// The reply's type.
        reply: String,
    },
    /// The lock was granted too late to be believed; it was released again at once.
    GrantedTooLate {
        /// The lock's name.
        lock: String,
        /// The lease that had run out on the way.
        lease: Duration,
    },
    /// The lock was lost while work was running under it.
    Lost {
        /// The lock's name.
        lock: String,
        /// Why it is no longer held.
        reason: LostReason,
    },
    /// The system has no randomness to make a unique identity from.
    NoRandomness,
    /// The thread that serves blocking calls cannot be started.
    NoBackgroundThread {
        /// The system's reason.
        reason: String,
    },
}

impl Error {
    /// Whether what was tried may have taken effect on the server. The library resolves ambiguity itself where it can:
    /// an acquire that fails with `MaybeExecuted` is released as soon as the server is reachable.
    pub fn outcome(&self) -> Outcome {
        match self {
            Self::Server { source, .. } => source.outcome(),
            Self::UnexpectedReply { .. } | Self::Lost { .. } | Self::GrantedTooLate { .. } => {
                Outcome::MaybeExecuted
            }
            Self::InvalidName { .. }
            | Self::InvalidLease { .. }
            | Self::ForeignOwner { .. }
            | Self::NoRandomness
            | Self::NoBackgroundThread { .. } => Outcome::NotSent,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Server { operation, source } => write!(f, "cannot {operation}: {source}"),
            Self::InvalidName { length } => {
                write!(f, "a lock's name must have 1 to {MAX_NAME} bytes, this one has {length}")
            }
            Self::InvalidLease { lease } => {
                write!(f, "a lease must be within 1 ms and 100 years, not {lease:?}")
            }
            Self::ForeignOwner { owner } => write!(f, "owner {owner} belongs to another LockManager"),
            Self::UnexpectedReply { operation, reply } => {
                write!(f, "cannot {operation}: the server answered with an unexpected {reply}")
            }
            Self::GrantedTooLate { lock, lease } => {
                write!(
                    f,
                    "lock \"{}\" was granted after its lease of {lease:?} had run out",
                    lock.escape_debug()
                )
            }
            Self::Lost { lock, reason } => write!(f, "lock \"{}\" was lost: {reason}", lock.escape_debug()),
            Self::NoRandomness => f.write_str("the system provides no randomness for a unique identity"),
            Self::NoBackgroundThread { reason } => {
                write!(f, "cannot start the thread that serves blocking calls: {reason}")
            }
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Server { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// Longest name of a lock in bytes. Redis takes more; a name that long is a mistake.
pub(crate) const MAX_NAME: usize = 4096;
