//! What can go wrong with a lock. Owns the error type of this crate.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use wheellock_client::ErrorKind;
pub use wheellock_client::Outcome;

use crate::base::durability::{Durability, Shortfall};

/// A failed lock operation.
///
/// `Display` is one line fit for a log, and enough by itself: it has every cause in it, down to the last one. `source()`
/// repeats nothing of that line: it goes on where the line ends, as
/// [`wheellock_client::Error`'s](wheellock_client::Error) does, with an [`std::io::Error`] if it was the system that
/// failed us.
///
/// ```no_run
/// use wheellock::{Error, Outcome};
///
/// # async fn example(locks: wheellock::LockManager) -> Result<(), wheellock::Error> {
/// match locks.lock("orders:42").acquire().await {
///     Ok(guard) => drop(guard),
///     Err(Error::OtherData { lock, server }) => eprintln!("{lock} on {server} is no lock of ours"),
///     Err(error) if error.outcome() == Outcome::NotSent => eprintln!("nothing has happened: {error}"),
///     Err(error) => return Err(error),
/// }
/// # Ok(())
/// # }
/// ```
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
    /// In a cluster this name and what belongs to it are in different hash slots, and no script may touch both. With sharded
    /// messages that is the channel on which waiters hear of a release, and in some kinds of locks it is further keys. Redisson
    /// builds them from the name, so a name with a brace needs a complete hash tag, as in `{orders}:42`.
    NoCommonSlot {
        /// The lock's name.
        lock: String,
    },
    /// What a leader says of itself is longer than 4 KiB.
    AnnouncementTooLong {
        /// Its length in bytes.
        length: usize,
    },
    /// The lease is too short to be believed, or to be renewed in time if the watchdog is to keep it; or it is above 100
    /// years.
    InvalidLease {
        /// The lease that was asked for.
        lease: Duration,
        /// The shortest lease that would do: 3 ms, or 20 ms with the watchdog.
        shortest: Duration,
    },
    /// The label is empty, longer than 256 bytes, or has a control character in it.
    InvalidLabel {
        /// Length of the label in bytes.
        length: usize,
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
    /// There is other data under the lock's name, or another kind of lock. Nothing was changed.
    OtherData {
        /// The lock's name.
        lock: String,
        /// The server.
        server: Arc<str>,
    },
    /// This owner holds the read-write lock for reading and asks to write: it would wait for itself for ever. Nothing was
    /// changed. Release the read hold first, or write from the start; a writer may read.
    Upgrade {
        /// The lock's name.
        lock: String,
    },
    /// This owner holds the lock already, and the lock is not reentrant, or it was taken as one of another kind: a lock, a fenced lock and
    /// a fair lock of the same name are one lock on the server. It would wait for itself for ever.
    NotReentrant {
        /// The lock's name.
        lock: String,
    },
    /// The lock was granted too late to be believed; it was released again at once.
    GrantedTooLate {
        /// The lock's name.
        lock: String,
        /// The lease that had run out on the way.
        lease: Duration,
    },
    /// The lock was granted, or its lease extended, but fewer servers have acknowledged it in time than
    /// [`Durability`](crate::Durability) asks for. A grant is being taken back: its release was queued before this was
    /// returned. A lease may be believed as long as before.
    NotReplicated {
        /// The lock's name.
        lock: String,
        /// The server that the others follow; of a cluster, the nodes by which it is known.
        server: Arc<str>,
        /// Whether a lease was to be extended; otherwise a lock was to be granted.
        extension: bool,
        /// How many have acknowledged, as far as was heard in time.
        acked: u32,
        /// How many were to. With [`Durability::Aof`](crate::Durability::Aof) the primary's own disk is one of them.
        wanted: u32,
    },
    /// The server cannot do what [`Durability`](crate::Durability) asks for: it does not know the command, the user may not
    /// run it, or it keeps no append-only file.
    UnsupportedDurability {
        /// What was asked for.
        durability: Durability,
        /// What the server said.
        reason: String,
    },
    /// The lock was lost while work was running under it.
    Lost {
        /// The lock's name.
        lock: String,
        /// Why it is no longer held.
        reason: LostReason,
    },
    /// The manager was [shut down](crate::LockManager::shutdown): it grants nothing any more. What may have been granted
    /// meanwhile is being given back.
    ShutDown {
        /// The lock's name.
        lock: String,
        /// Whether the lock had been asked for by then.
        outcome: Outcome,
    },
    /// Nothing to lock: no lock was named, or no server.
    NoMembers,
    /// One lock was named twice among those to be taken together: the second hold would wait for the first.
    DuplicateMember {
        /// The lock's name.
        lock: String,
        /// Where it is.
        server: Arc<str>,
    },
    /// A server does not count as one more for a [`RedLockManager`](crate::RedLockManager): what happens to another one, or a failover,
    /// can take its locks away as well.
    NotIndependent {
        /// The server.
        server: Arc<str>,
        /// Why it does not count.
        reason: String,
    },
    /// Too few servers of a [`RedLockManager`](crate::RedLockManager) could be asked. That says nothing about who holds the lock. What
    /// some have granted was given back.
    NoQuorum {
        /// The lock's name; empty if it was not about one: the servers were asked who they are, to put them together.
        lock: String,
        /// How many servers did what was asked.
        granted: usize,
        /// How many have to.
        wanted: usize,
        /// What kept the others from it, as far as is known.
        failures: Vec<MemberFailure>,
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
    /// What a script or a query about `lock` failed with. Ours look at what is under the name before they change anything.
    pub(crate) fn of_lock(lock: &str, operation: String, source: wheellock_client::Error) -> Self {
        if is_other_data(&source) {
            return Self::OtherData { lock: lock.to_owned(), server: source.server_address().into() };
        }
        if source.code() == Some(UPGRADE) {
            return Self::Upgrade { lock: lock.to_owned() };
        }
        Self::Server { operation, source }
    }

    /// A script was answered with a reply of this type, which it never returns.
    pub(crate) fn unexpected(operation: String, reply_type: &str) -> Self {
        Self::UnexpectedReply { operation, reply: format!("reply of type {reply_type}") }
    }

    /// What this server has granted is not known to enough others.
    pub(crate) fn not_replicated(lock: &str, server: Arc<str>, by: Shortfall) -> Self {
        let Shortfall { acked, wanted } = by;
        Self::NotReplicated { lock: lock.to_owned(), server, extension: false, acked, wanted }
    }

    /// What this server has extended is not known to enough others.
    pub(crate) fn extension_not_replicated(lock: &str, server: Arc<str>, by: Shortfall) -> Self {
        let Shortfall { acked, wanted } = by;
        Self::NotReplicated { lock: lock.to_owned(), server, extension: true, acked, wanted }
    }

    /// Returns true if waiting may cure this although the server answers: a server that takes no writes for the moment, or a grant that
    /// was late. [`NoQuorum`](Self::NoQuorum) is cured if enough servers are.
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            Self::GrantedTooLate { .. } => true,
            Self::Server { source, .. } => refuses_writes(source),
            Self::NoQuorum { granted, wanted, failures, .. } => {
                granted + failures.iter().filter(|failure| failure.error.may_pass()).count() >= *wanted
            }
            _ => false,
        }
    }

    /// Whether what was tried may have taken effect on the server. The library resolves ambiguity itself where it can:
    /// an acquire that fails with `MaybeExecuted` is released as soon as the server is reachable.
    pub fn outcome(&self) -> Outcome {
        match self {
            Self::Server { source, .. } => source.outcome(),
            Self::ShutDown { outcome, .. } => *outcome,
            Self::UnexpectedReply { .. }
            | Self::Lost { .. }
            | Self::GrantedTooLate { .. }
            | Self::NotReplicated { .. } => Outcome::MaybeExecuted,
            Self::OtherData { .. } | Self::Upgrade { .. } => Outcome::Rejected,
            // Who was asked who it is has done nothing.
            Self::NoQuorum { lock, .. } if lock.is_empty() => Outcome::NotSent,
            Self::NoQuorum { granted, failures, .. } => {
                let outcomes = || failures.iter().map(|failure| failure.error.outcome());
                if *granted > 0 || outcomes().any(|outcome| outcome == Outcome::MaybeExecuted) {
                    Outcome::MaybeExecuted
                } else if outcomes().all(|outcome| outcome == Outcome::NotSent) {
                    Outcome::NotSent
                } else {
                    Outcome::Rejected
                }
            }
            Self::NoMembers
            | Self::NotReentrant { .. }
            | Self::DuplicateMember { .. }
            | Self::NotIndependent { .. }
            | Self::InvalidName { .. }
            | Self::AnnouncementTooLong { .. }
            | Self::NoCommonSlot { .. }
            | Self::InvalidLease { .. }
            | Self::InvalidLabel { .. }
            | Self::ForeignOwner { .. }
            | Self::UnsupportedDurability { .. }
            | Self::NoRandomness
            | Self::NoBackgroundThread { .. } => Outcome::NotSent,
        }
    }

    /// Whether the same call may succeed later because nothing was wrong with it: the server, or the way to it, failed, or it does not
    /// serve at the moment. A web service answers 503.
    ///
    /// Not so if somebody has to change something first: a name, a setting, a password, a permission, other data under the name. Nor
    /// if the manager was shut down, or work was begun under a lock that was [lost](Self::Lost). It says nothing of what became of
    /// this call; that is [`outcome`](Self::outcome).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), wheellock::Error> {
    /// # let double = wheellock::testing::Double::new();
    /// # let locks = double.manager().await?;
    /// use wheellock::testing::Outage;
    ///
    /// double.outage(Outage::Down);
    /// let error = locks.lock("orders:42").try_acquire().await.unwrap_err();
    /// assert!(error.is_unavailable());
    /// let error = locks.lock("").try_acquire().await.unwrap_err();
    /// assert!(!error.is_unavailable()); // a lock needs a name
    /// # Ok(())
    /// # }
    /// ```
    pub fn is_unavailable(&self) -> bool {
        match self {
            Self::Server { source, .. } => is_away(source),
            Self::GrantedTooLate { .. } | Self::NotReplicated { .. } => true,
            // Those that were not heard of at all are away as well.
            Self::NoQuorum { failures, .. } => {
                failures.is_empty() || failures.iter().any(|failure| failure.error.is_unavailable())
            }
            Self::UnexpectedReply { .. }
            | Self::Lost { .. }
            | Self::ShutDown { .. }
            | Self::OtherData { .. }
            | Self::Upgrade { .. }
            | Self::NoMembers
            | Self::NotReentrant { .. }
            | Self::DuplicateMember { .. }
            | Self::NotIndependent { .. }
            | Self::InvalidName { .. }
            | Self::AnnouncementTooLong { .. }
            | Self::NoCommonSlot { .. }
            | Self::InvalidLease { .. }
            | Self::InvalidLabel { .. }
            | Self::ForeignOwner { .. }
            | Self::UnsupportedDurability { .. }
            | Self::NoRandomness
            | Self::NoBackgroundThread { .. } => false,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // It says the same about itself.
            Self::Server { operation, source } if operation == source.operation() => source.fmt(f),
            Self::Server { operation, source } => write!(f, "cannot {operation}: {source}"),
            Self::InvalidName { length } => {
                write!(f, "a name must have 1 to {MAX_NAME} bytes, this one has {length}")
            }
            Self::AnnouncementTooLong { length } => {
                write!(f, "an announcement must have no more than 4096 bytes, this one has {length}")
            }
            Self::NoCommonSlot { lock } => write!(
                f,
                "\"{}\" and what belongs to it are in different hash slots of the cluster: use a name without braces, or with a \
                 hash tag such as {{orders}}",
                quotable(lock)
            ),
            Self::InvalidLease { lease, shortest } => {
                write!(f, "this lease must be within {shortest:?} and 100 years, not {lease:?}")
            }
            Self::InvalidLabel { length } => write!(
                f,
                "a label must have 1 to {MAX_LABEL} bytes and no control characters; this one has {length} bytes"
            ),
            Self::ForeignOwner { owner } => write!(f, "owner {owner} belongs to another LockManager"),
            Self::UnexpectedReply { operation, reply } => {
                write!(f, "cannot {operation}: the server answered with an unexpected {reply}")
            }
            Self::OtherData { .. } | Self::Upgrade { .. } | Self::NotReentrant { .. } => self.fmt_refusal(f),
            Self::GrantedTooLate { lock, lease } => {
                write!(f, "lock \"{}\" was granted after its lease of {lease:?} had run out", quotable(lock))
            }
            Self::NotReplicated { .. } => self.fmt_shortfall(f),
            Self::UnsupportedDurability { durability, reason } => {
                write!(f, "locks cannot be kept by {durability}: {reason}")
            }
            Self::Lost { lock, reason } => write!(f, "\"{}\" was lost: {reason}", quotable(lock)),
            Self::ShutDown { lock, .. } => {
                write!(f, "cannot acquire \"{}\": its manager was shut down", quotable(lock))
            }
            Self::NoMembers => f.write_str("there is nothing to lock: name at least one lock, or server"),
            Self::DuplicateMember { lock, server } => write!(
                f,
                "lock \"{}\" on {server} is named twice among those to be taken together",
                quotable(lock)
            ),
            Self::NotIndependent { server, reason } => {
                write!(f, "{server} is no independent member of a quorum: {reason}")
            }
            Self::NoQuorum { .. } => self.fmt_shortfall(f),
            Self::NoRandomness => f.write_str("the system provides no randomness for a unique identity"),
            Self::NoBackgroundThread { reason } => {
                write!(f, "cannot start the thread that serves blocking calls: {reason}")
            }
        }
    }
}

impl Error {
    /// Formats the errors of a server that grants no lock of this kind to this owner.
    fn fmt_refusal(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OtherData { lock, server } => write!(
                f,
                "\"{}\": there is other data, or a lock or semaphore of another kind, under this name on {server}; it was left \
                 alone",
                quotable(lock)
            ),
            Self::Upgrade { lock } => write!(
                f,
                "lock \"{}\": this owner holds it for reading and would wait for itself to write: it has to release that first",
                quotable(lock)
            ),
            Self::NotReentrant { lock } => write!(
                f,
                "lock \"{}\": this owner holds it already, and it is not reentrant, or was taken as another kind of lock: it would \
                 wait for itself",
                quotable(lock)
            ),
            _ => Ok(()),
        }
    }

    /// Formats the errors of too few replicas or too few servers.
    fn fmt_shortfall(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotReplicated { lock, server, extension, acked, wanted } => {
                let (verb, now) = if *extension {
                    ("renew", "it may be believed as long as before")
                } else {
                    ("acquire", "the grant is being taken back")
                };
                let lock = quotable(lock);
                write!(
                    f,
                    "cannot {verb} \"{lock}\" on {server}: {acked} of {wanted} acknowledgements came in time; {now}"
                )
            }
            Self::NoQuorum { lock, granted, wanted, failures } => {
                if lock.is_empty() {
                    let asked = "no majority of the servers could be asked who it is";
                    write!(f, "{asked}: {granted} answered, {wanted} are needed")?;
                } else {
                    let lock = quotable(lock);
                    write!(f, "no quorum for lock \"{lock}\": {granted} of {wanted} servers")?;
                }
                failures.iter().try_for_each(|failure| write!(f, "; {failure}"))
            }
            _ => Ok(()),
        }
    }
}

/// A lock's name within double quotes in a line: escaped, but for single quotes.
pub(crate) fn quotable(name: &str) -> String {
    name.split('\'').map(|part| part.escape_debug().to_string()).collect::<Vec<_>>().join("'")
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Server { source, .. } => source.source(),
            Self::NoQuorum { failures, .. } => failures.iter().find_map(|failure| failure.error.source()),
            _ => None,
        }
    }
}

/// Why a lock is no longer held.
///
/// ```no_run
/// use wheellock::LostReason;
///
/// # async fn example(guard: wheellock::Guard) -> Result<(), wheellock::Error> {
/// match guard.lost().await {
///     LostReason::Expired => eprintln!("the server could not be reached for a whole lease"),
///     reason => eprintln!("{reason}"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum LostReason {
    /// The lease has run as long as it may be believed: it was a fixed one, or its renewals did not come through.
    Expired,
    /// The server says that this owner does not hold the lock: it was freed by force, deleted, or evicted.
    NotOwner,
    /// The manager was [shut down](crate::LockManager::shutdown), and has given the lock back.
    ShutDown,
}

impl fmt::Display for LostReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expired => "its lease ran out without a renewal",
            Self::NotOwner => "the server no longer knows this owner as the holder",
            Self::ShutDown => "its manager was shut down and has given it back",
        })
    }
}

/// Whether a script of ours has refused to touch what it found, or has not found all of it because a slot moves: it has not changed
/// anything then.
pub(crate) fn has_changed_nothing(error: &wheellock_client::Error) -> bool {
    is_other_data(error) || matches!(error.code(), Some(UPGRADE | "TRYAGAIN"))
}

/// Returns true if the server serves, but takes no writes for want of replicas or memory.
pub(crate) fn refuses_writes(error: &wheellock_client::Error) -> bool {
    matches!(error.code(), Some("NOREPLICAS" | "OOM"))
}

fn is_other_data(error: &wheellock_client::Error) -> bool {
    error.code() == Some("WRONGTYPE")
}

/// Whether the server, or the way to it, is what failed, so that time may mend it.
fn is_away(error: &wheellock_client::Error) -> bool {
    match error.kind() {
        ErrorKind::Connect
        | ErrorKind::ConnectionLost
        | ErrorKind::Timeout
        | ErrorKind::Overloaded
        | ErrorKind::NotReady => true,
        ErrorKind::Server => error.code().is_some_and(|code| PASSING.contains(&code)),
        _ => false,
    }
}

/// What servers say that cannot run anything, or not this, for the moment: a script runs too long, memory or replicas are short, the
/// disk fails, the primary or a slot is moving.
const PASSING: &[&str] =
    &["BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "MISCONF", "NOREPLICAS", "OOM", "READONLY", "TRYAGAIN"];

/// With this a write lock's script refuses a reader.
const UPGRADE: &str = "UPGRADE";

/// What kept one server of a quorum from what was asked of it.
///
/// ```no_run
/// use wheellock::Error;
///
/// # async fn example(servers: wheellock::RedLockManager) -> Result<(), wheellock::Error> {
/// if let Err(Error::NoQuorum { failures, .. }) = servers.lock("orders:42").try_acquire().await {
///     for failure in &failures {
///         eprintln!("{}: {}", failure.server, failure.error);
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct MemberFailure {
    /// The server.
    pub server: Arc<str>,
    /// What went wrong.
    pub error: Error,
}

impl fmt::Display for MemberFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.server, self.error)
    }
}

/// Longest name of a lock in bytes. Redis takes more; a name that long is a mistake.
pub(crate) const MAX_NAME: usize = 4096;

/// Longest label of a manager in bytes. A host, a process and a service fit; what does not fit is no label.
pub(crate) const MAX_LABEL: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    /// What was tried, where, why it failed, and what becomes of it.
    #[test]
    fn a_missing_acknowledgement_says_what_it_was_about() {
        let (server, by) = (Arc::from("db:6379"), Shortfall { acked: 0, wanted: 1 });
        let grant = Error::not_replicated("dur", Arc::clone(&server), by);
        let expected = "cannot acquire \"dur\" on db:6379: 0 of 1 acknowledgements came in time; the grant is being taken back";
        assert_eq!(grant.to_string(), expected);
        let extension = Error::extension_not_replicated("dur", server, by);
        let expected = "cannot renew \"dur\" on db:6379: 0 of 1 acknowledgements came in time; it may be believed as long as before";
        assert_eq!(extension.to_string(), expected);
    }

    #[test]
    fn names_are_shown_as_they_are_but_for_what_would_break_the_line() {
        let shown =
            |name: &str| Error::NoQuorum { lock: name.into(), granted: 1, wanted: 2, failures: Vec::new() };
        assert_eq!(shown("anna's").to_string(), "no quorum for lock \"anna's\": 1 of 2 servers");
        assert_eq!(quotable("'a\"b\\c\n\u{1b}'"), r#"'a\"b\\c\n\u{1b}'"#);
    }
}
