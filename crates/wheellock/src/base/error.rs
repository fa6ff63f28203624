//! The error type of this crate.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use wheellock_client::ErrorKind;
pub use wheellock_client::Outcome;

use crate::base::durability::{Durability, Shortfall};
use crate::base::fleet::Fleet;
use crate::base::ticket::ParseTicketError;

/// A failed lock operation.
///
/// The variants may get more fields, so a pattern ends with `..`. With the feature `testing`, tests can construct these errors.
///
/// `Display` writes one line that is suitable for a log. The line contains every cause, down to the last. `source()` does not repeat any
/// part of that line. Like [`wheellock_client::Error`'s](wheellock_client::Error), it continues where the line ends. If the system failed,
/// the source is an [`std::io::Error`].
///
/// ```no_run
/// use wheellock::{Error, Outcome};
///
/// # async fn example(locks: wheellock::LockManager) -> Result<(), wheellock::Error> {
/// match locks.lock("orders:42").acquire().await {
///     Ok(guard) => drop(guard),
///     Err(Error::OtherData { lock, server, .. }) => eprintln!("{lock} on {server} is no lock of ours"),
///     Err(error) if error.outcome() == Outcome::NotSent => eprintln!("nothing has happened: {error}"),
///     Err(error) => return Err(error),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Error {
    /// The server or the connection to it failed. The source says which step failed, where, and why.
    #[cfg_attr(not(feature = "testing"), non_exhaustive)]
    Server {
        /// The operation that failed, as in "acquire lock \"orders:42\"".
        operation: String,
        /// The connection's error.
        source: wheellock_client::Error,
    },
    /// The lock's name is empty or longer than 4 KiB.
    #[cfg_attr(not(feature = "testing"), non_exhaustive)]
    InvalidName {
        /// Length of the name in bytes.
        length: usize,
    },
    /// In a cluster, this lock's keys and channel are in different hash slots, and no script may touch both slots.
    ///
    /// With sharded messages this concerns the channel on which waiters are notified of a release. In some kinds of locks, further keys may
    /// be in another slot. Redisson builds these names from the lock's name. A name with a brace therefore needs a complete hash tag, as in
    /// `{orders}:42`.
    #[cfg_attr(not(feature = "testing"), non_exhaustive)]
    NoCommonSlot {
        /// The lock's name.
        lock: String,
    },
    /// A leader's announcement is longer than 4 KiB.
    #[cfg_attr(not(feature = "testing"), non_exhaustive)]
    AnnouncementTooLong {
        /// Length of the announcement in bytes.
        length: usize,
    },
    /// The lease is too short to ever count as valid, or too short for a renewal by the watchdog. Or the lease is longer than 100 years.
    #[cfg_attr(not(feature = "testing"), non_exhaustive)]
    InvalidLease {
        /// The requested lease.
        lease: Duration,
        /// The shortest lease that is allowed: 3 ms, or 20 ms with the watchdog.
        shortest: Duration,
    },
    /// The label is empty, longer than 256 bytes, or contains a control character.
    #[cfg_attr(not(feature = "testing"), non_exhaustive)]
    InvalidLabel {
        /// Length of the label in bytes.
        length: usize,
    },
    /// The reason of a [request to release](crate::Lock::ask_to_release) is longer than 256 bytes, or contains a control character.
    #[cfg_attr(not(feature = "testing"), non_exhaustive)]
    InvalidReason {
        /// Length of the reason in bytes.
        length: usize,
    },
    /// The owner belongs to another manager. That manager renews and counts the owner's holds.
    #[cfg_attr(not(feature = "testing"), non_exhaustive)]
    ForeignOwner {
        /// The owner's text.
        owner: String,
    },
    /// The server replied to a script with a value that the script never returns. Another application may use this name for its data, or a
    /// proxy may change the server's replies.
    #[cfg_attr(not(feature = "testing"), non_exhaustive)]
    UnexpectedReply {
        /// The operation that failed.
        operation: String,
        /// The reply's type.
        reply: String,
    },
    /// The lock's name is in use for other data or for another kind of lock. The server changed nothing.
    #[cfg_attr(not(feature = "testing"), non_exhaustive)]
    OtherData {
        /// The lock's name.
        lock: String,
        /// The server.
        server: Arc<str>,
    },
    /// This owner holds the read-write lock for reading and requests it for writing. The owner would wait for itself for ever.
    ///
    /// The server changed nothing. Release the read hold first, or acquire the write lock from the start: a writer may also read.
    #[cfg_attr(not(feature = "testing"), non_exhaustive)]
    Upgrade {
        /// The lock's name.
        lock: String,
    },
    /// A lock of this kind cannot have a [minimum time](crate::Lock::with_min_hold). No request was sent.
    #[cfg_attr(not(feature = "testing"), non_exhaustive)]
    NoMinHold {
        /// The lock's name.
        lock: String,
    },
    /// This hold cannot become a [ticket](crate::Guard::into_ticket), and the lock was released. Its kind has no tickets, or its owner holds
    /// the lock more than once. Or the [ticket](crate::Ticket) names a kind without tickets.
    #[cfg_attr(not(feature = "testing"), non_exhaustive)]
    NoTicket {
        /// The lock's name.
        lock: String,
        /// The label of the lock's kind.
        kind: String,
    },
    /// The text is not a [ticket](crate::Ticket).
    #[cfg_attr(not(feature = "testing"), non_exhaustive)]
    InvalidTicket {
        /// The reason.
        reason: ParseTicketError,
    },
    /// The server does not know the owner that the [ticket](crate::Ticket) names as the lock's only holder. The ticket was adopted before,
    /// its lease has ended, or it is of another server. The server changed nothing.
    #[cfg_attr(not(feature = "testing"), non_exhaustive)]
    TicketEnded {
        /// The lock's name.
        lock: String,
        /// The server.
        server: Arc<str>,
    },
    /// This owner already holds the lock and would wait for itself for ever.
    ///
    /// Either the lock is not reentrant, or the owner holds it as another kind of lock. A lock, a fenced lock and a fair lock of the same
    /// name are one lock on the server.
    #[cfg_attr(not(feature = "testing"), non_exhaustive)]
    NotReentrant {
        /// The lock's name.
        lock: String,
    },
    /// The grant arrived too late to count as valid. The lock was released again at once.
    #[cfg_attr(not(feature = "testing"), non_exhaustive)]
    GrantedTooLate {
        /// The lock's name.
        lock: String,
        /// The lease, which ran out on the way.
        lease: Duration,
    },
    /// The server granted the lock or extended its lease, but too few servers acknowledged that in time. [`Durability`](crate::Durability)
    /// sets the number.
    ///
    /// A grant is being revoked: its release was queued before this error was returned. An extended lease is valid for as long as before.
    #[cfg_attr(not(feature = "testing"), non_exhaustive)]
    NotReplicated {
        /// The lock's name.
        lock: String,
        /// The server that the others replicate. In a cluster, the nodes by which the cluster is known.
        server: Arc<str>,
        /// True if a lease was to be extended; false if a lock was to be granted.
        extension: bool,
        /// Number of servers that acknowledged in time, as far as is known.
        acked: u32,
        /// Number of servers that had to acknowledge. With [`Durability::Aof`](crate::Durability::Aof) the primary's own disk counts as
        /// one.
        wanted: u32,
    },
    /// The server does not support the requested [`Durability`](crate::Durability). It does not know the command, the user may not run the
    /// command, or the server keeps no append-only file.
    #[cfg_attr(not(feature = "testing"), non_exhaustive)]
    UnsupportedDurability {
        /// The requested level.
        durability: Durability,
        /// The server's reply.
        reason: String,
    },
    /// Locks cannot [survive a failover](crate::LockManagerBuilder::keep_locks_across_failovers) with these settings, or the other processes
    /// of the server have other settings.
    #[cfg_attr(not(feature = "testing"), non_exhaustive)]
    UnsupportedFleet {
        /// The settings.
        fleet: Fleet,
        /// The reason.
        reason: String,
    },
    /// The lease is longer than the longest lease of the [`Fleet`]. After a failover, the lock could be granted twice.
    #[cfg_attr(not(feature = "testing"), non_exhaustive)]
    LeaseTooLong {
        /// The requested lease.
        lease: Duration,
        /// The longest lease of the fleet.
        longest: Duration,
    },
    /// No lock can be acquired now, because a failover is not over, or because too few servers know this process. Only with
    /// [`keep_locks_across_failovers`](crate::LockManagerBuilder::keep_locks_across_failovers).
    #[cfg_attr(not(feature = "testing"), non_exhaustive)]
    NotReady {
        /// The lock's name.
        lock: String,
        /// The event that the process waits for.
        reason: String,
        /// `NotSent`, or `MaybeExecuted` if a request of this wait may have been granted. That grant is then being revoked.
        outcome: Outcome,
    },
    /// Another holder has the lock: [`Attempt::or_held`](crate::Attempt::or_held) makes this error. A web service would reply 409.
    #[cfg_attr(not(feature = "testing"), non_exhaustive)]
    Held {
        /// The lock's name.
        lock: String,
        /// Remaining lease of the holder, as in [`Attempt::Held`](crate::Attempt::Held).
        lease_left: Option<Duration>,
    },
    /// The lock was lost before the call ended: while work was running under it, or before its release.
    #[cfg_attr(not(feature = "testing"), non_exhaustive)]
    Lost {
        /// The lock's name.
        lock: String,
        /// Why the lock is no longer held.
        reason: LostReason,
    },
    /// The manager was [shut down](crate::LockManager::shutdown) and grants no more locks. A lock that the server may have granted
    /// meanwhile is being released.
    #[cfg_attr(not(feature = "testing"), non_exhaustive)]
    ShutDown {
        /// The lock's name.
        lock: String,
        /// Whether the request for the lock had been sent by then.
        outcome: Outcome,
    },
    /// This operation is not supported in a cluster.
    #[cfg_attr(not(feature = "testing"), non_exhaustive)]
    NotInACluster {
        /// The operation.
        operation: String,
    },
    /// The call named no lock or no server.
    NoMembers,
    /// The call named one lock twice among the locks to take together. The second hold would wait for the first.
    #[cfg_attr(not(feature = "testing"), non_exhaustive)]
    DuplicateMember {
        /// The lock's name.
        lock: String,
        /// The lock's server.
        server: Arc<str>,
    },
    /// A server does not count as a further member of a [`RedLockManager`](crate::RedLockManager). A failure of another member, or a
    /// failover, can take this server's locks away as well.
    #[cfg_attr(not(feature = "testing"), non_exhaustive)]
    NotIndependent {
        /// The server.
        server: Arc<str>,
        /// Why the server does not count.
        reason: String,
    },
    /// Too few servers of a [`RedLockManager`](crate::RedLockManager) could be reached. The error does not say which owner holds the lock.
    /// Locks that some servers granted were released.
    #[cfg_attr(not(feature = "testing"), non_exhaustive)]
    NoQuorum {
        /// The lock's name. Empty if the error is about the servers' identities, which are checked when the manager is built.
        lock: String,
        /// Number of servers that did as requested.
        granted: usize,
        /// Number of servers that are needed.
        wanted: usize,
        /// Why the other servers did not, as far as is known.
        failures: Vec<MemberFailure>,
    },
    /// The system provides no randomness for a unique identity.
    NoRandomness,
    /// The thread that serves blocking calls cannot be started.
    #[cfg_attr(not(feature = "testing"), non_exhaustive)]
    NoBackgroundThread {
        /// The system's reason.
        reason: String,
    },
}

impl Error {
    /// Converts the failure of a script or a query about `lock`. Our scripts check the data under the name before they change it.
    pub(crate) fn of_lock(lock: &str, operation: String, source: wheellock_client::Error) -> Self {
        if is_other_data(&source) {
            return Self::OtherData { lock: lock.to_owned(), server: source.server_address().into() };
        }
        if source.code() == Some(UPGRADE) {
            return Self::Upgrade { lock: lock.to_owned() };
        }
        Self::Server { operation, source }
    }

    /// Returns the error of a script whose reply has a type that the script never returns.
    pub(crate) fn unexpected(operation: String, reply_type: &str) -> Self {
        Self::UnexpectedReply { operation, reply: format!("reply of type {reply_type}") }
    }

    /// Returns the error of a grant that too few servers have acknowledged.
    pub(crate) fn not_replicated(lock: &str, server: Arc<str>, by: Shortfall) -> Self {
        let Shortfall { acked, wanted } = by;
        Self::NotReplicated { lock: lock.to_owned(), server, extension: false, acked, wanted }
    }

    /// Returns the error of a renewal that too few servers have acknowledged.
    pub(crate) fn extension_not_replicated(lock: &str, server: Arc<str>, by: Shortfall) -> Self {
        let Shortfall { acked, wanted } = by;
        Self::NotReplicated { lock: lock.to_owned(), server, extension: true, acked, wanted }
    }

    /// Returns true if waiting may help although the server replies. Such a server takes no writes for the moment, or its grant was late.
    /// [`NoQuorum`](Self::NoQuorum) may pass if the errors of enough servers may pass.
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            Self::GrantedTooLate { .. } | Self::NotReady { .. } => true,
            Self::Server { source, .. } => refuses_writes(source),
            Self::NoQuorum { granted, wanted, failures, .. } => {
                granted + failures.iter().filter(|failure| failure.error.may_pass()).count() >= *wanted
            }
            _ => false,
        }
    }

    /// Returns this failure of a wait. With `may_have_run`, an earlier request of the wait may have had an effect on the server.
    pub(crate) fn after(self, may_have_run: bool) -> Self {
        let outcome = Outcome::MaybeExecuted;
        match self {
            Self::Server { operation, source } if may_have_run => {
                Self::Server { operation, source: source.after_an_unanswered_attempt() }
            }
            Self::NotReady { lock, reason, .. } if may_have_run => Self::NotReady { lock, reason, outcome },
            Self::ShutDown { lock, .. } if may_have_run => Self::ShutDown { lock, outcome },
            other => other,
        }
    }

    /// Returns whether the operation may have taken effect on the server.
    ///
    /// The library resolves ambiguity itself where it can. After an acquire that fails with `MaybeExecuted`, the library releases the lock
    /// as soon as the server is reachable.
    pub fn outcome(&self) -> Outcome {
        match self {
            Self::Server { source, .. } => source.outcome(),
            Self::ShutDown { outcome, .. } | Self::NotReady { outcome, .. } => *outcome,
            Self::UnexpectedReply { .. }
            | Self::Lost { .. }
            | Self::GrantedTooLate { .. }
            | Self::NotReplicated { .. } => Outcome::MaybeExecuted,
            Self::OtherData { .. }
            | Self::Upgrade { .. }
            | Self::Held { .. }
            | Self::NoTicket { .. }
            | Self::TicketEnded { .. } => Outcome::Rejected,
            // A request for a server's identity has no effect.
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
            | Self::NoMinHold { .. }
            | Self::NotInACluster { .. }
            | Self::InvalidTicket { .. }
            | Self::NotReentrant { .. }
            | Self::DuplicateMember { .. }
            | Self::NotIndependent { .. }
            | Self::InvalidName { .. }
            | Self::AnnouncementTooLong { .. }
            | Self::NoCommonSlot { .. }
            | Self::InvalidLease { .. }
            | Self::InvalidLabel { .. }
            | Self::InvalidReason { .. }
            | Self::ForeignOwner { .. }
            | Self::UnsupportedDurability { .. }
            | Self::UnsupportedFleet { .. }
            | Self::LeaseTooLong { .. }
            | Self::NoRandomness
            | Self::NoBackgroundThread { .. } => Outcome::NotSent,
        }
    }

    /// Returns true if the same call may succeed later without a change. The server or the connection to it failed, or the server does not
    /// serve at the moment. A web service would reply 503.
    ///
    /// Returns false if you have to change something first: a name, a setting, a password, a permission, or other data under the name. Also
    /// returns false if the manager was shut down, or if work was begun under a lock that was [lost](Self::Lost). A [held](Self::Held) lock
    /// is not a fault of the server, so it is false there as well.
    ///
    /// The result says nothing about the effect of this call: see [`outcome`](Self::outcome).
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
            Self::GrantedTooLate { .. } | Self::NotReplicated { .. } | Self::NotReady { .. } => true,
            // Servers without any reply are unavailable as well.
            Self::NoQuorum { failures, .. } => {
                failures.is_empty() || failures.iter().any(|failure| failure.error.is_unavailable())
            }
            Self::UnexpectedReply { .. }
            | Self::Held { .. }
            | Self::Lost { .. }
            | Self::ShutDown { .. }
            | Self::OtherData { .. }
            | Self::Upgrade { .. }
            | Self::TicketEnded { .. }
            | Self::NoMembers
            | Self::NoMinHold { .. }
            | Self::NotInACluster { .. }
            | Self::NoTicket { .. }
            | Self::InvalidTicket { .. }
            | Self::NotReentrant { .. }
            | Self::DuplicateMember { .. }
            | Self::NotIndependent { .. }
            | Self::InvalidName { .. }
            | Self::AnnouncementTooLong { .. }
            | Self::NoCommonSlot { .. }
            | Self::InvalidLease { .. }
            | Self::InvalidLabel { .. }
            | Self::InvalidReason { .. }
            | Self::ForeignOwner { .. }
            | Self::UnsupportedDurability { .. }
            | Self::UnsupportedFleet { .. }
            | Self::LeaseTooLong { .. }
            | Self::NoRandomness
            | Self::NoBackgroundThread { .. } => false,
        }
    }
}

impl From<ParseTicketError> for Error {
    fn from(reason: ParseTicketError) -> Self {
        Self::InvalidTicket { reason }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // The source's own text already begins with this operation.
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
            Self::OtherData { .. }
            | Self::InvalidReason { .. }
            | Self::Upgrade { .. }
            | Self::NotReentrant { .. }
            | Self::NoMinHold { .. }
            | Self::NoTicket { .. }
            | Self::InvalidTicket { .. }
            | Self::TicketEnded { .. }
            | Self::NotInACluster { .. }
            | Self::DuplicateMember { .. } => self.fmt_refusal(f),
            Self::GrantedTooLate { lock, lease } => {
                write!(f, "lock \"{}\" was granted after its lease of {lease:?} had run out", quotable(lock))
            }
            Self::NotReplicated { .. } => self.fmt_shortfall(f),
            Self::UnsupportedDurability { durability, reason } => {
                write!(f, "locks cannot be kept by {durability}: {reason}")
            }
            Self::UnsupportedFleet { .. } | Self::LeaseTooLong { .. } | Self::NotReady { .. } => {
                self.fmt_of_fleet(f)
            }
            Self::Held { lock, lease_left } => {
                write!(f, "the lock \"{}\" is held", quotable(lock))?;
                lease_left.map_or(Ok(()), |left| match left.as_millis().div_ceil(1000) {
                    0 | 1 => f.write_str("; its lease ends in less than 1 s"),
                    seconds => write!(f, "; its lease ends in {seconds} s"),
                })
            }
            Self::Lost { lock, reason } => write!(f, "\"{}\" was lost: {reason}", quotable(lock)),
            Self::ShutDown { lock, .. } => {
                write!(f, "cannot acquire \"{}\": its manager was shut down", quotable(lock))
            }
            Self::NoMembers => f.write_str("there is nothing to lock: name at least one lock, or server"),
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
    /// Formats the errors of requests that cannot be made, and of a server that grants no lock of this kind to this owner.
    fn fmt_refusal(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OtherData { lock, server } => write!(
                f,
                "\"{}\": there is other data, or a lock or semaphore of another kind, under this name on {server}; it was left \
                 alone",
                quotable(lock)
            ),
            Self::NoMinHold { lock } => {
                let kinds = "plain, spin, fenced, fair and simple locks";
                write!(f, "lock \"{}\": only {kinds} can be held for a minimum time", quotable(lock))
            }
            Self::DuplicateMember { lock, server } => write!(
                f,
                "lock \"{}\" on {server} is named twice among those to be taken together",
                quotable(lock)
            ),
            Self::NoTicket { lock, kind } => write!(
                f,
                "lock \"{}\" cannot travel: {kind} has no tickets, or its owner holds it more than once",
                quotable(lock)
            ),
            Self::NotInACluster { operation } => {
                write!(f, "cannot {operation} in a cluster: it is not supported there")
            }
            Self::InvalidTicket { reason } => write!(f, "{reason}"),
            Self::InvalidReason { length } => write!(
                f,
                "a reason must have at most {MAX_REASON} bytes and no control characters; this one has {length} bytes"
            ),
            Self::TicketEnded { lock, server } => write!(
                f,
                "the ticket for lock \"{}\" was adopted before, its lease has ended, or it is of another server than {server}",
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
    fn fmt_of_fleet(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnsupportedFleet { fleet, reason } => {
                write!(f, "locks cannot survive a failover ({fleet}): {reason}")
            }
            Self::LeaseTooLong { lease, longest } => {
                write!(f, "a lease of {lease:?} is longer than the fleet's longest lease of {longest:?}")
            }
            Self::NotReady { lock, reason, .. } => {
                write!(f, "cannot acquire \"{}\" yet: {reason}", quotable(lock))
            }
            _ => Ok(()),
        }
    }

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

/// Escapes a lock's name for use within double quotes in one line. Single quotes stay as they are.
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
    /// The lease ended: it was a fixed lease, or its renewals did not reach the server in time.
    Expired,
    /// The server reports that this owner does not hold the lock. The lock was released by force, deleted, or evicted.
    NotOwner,
    /// The manager was [shut down](crate::LockManager::shutdown) and has released the lock.
    ShutDown,
    /// The lock was held for its maximum time; see [`with_max_hold`](crate::Lock::with_max_hold).
    HeldTooLong,
}

impl fmt::Display for LostReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expired => "its lease ran out without a renewal",
            Self::NotOwner => "the server no longer knows this owner as the holder",
            Self::ShutDown => "its manager was shut down and has given it back",
            Self::HeldTooLong => "it was held for its maximum time",
        })
    }
}

/// Returns true if the error proves that a script of ours changed nothing. Either the script refused to touch the data that it found. Or a
/// slot moves, and the script did not find all of the data.
pub(crate) fn has_changed_nothing(error: &wheellock_client::Error) -> bool {
    is_other_data(error) || matches!(error.code(), Some(UPGRADE | "TRYAGAIN"))
}

/// Returns true if the server serves requests, but takes no writes because it lacks replicas or memory.
pub(crate) fn refuses_writes(error: &wheellock_client::Error) -> bool {
    matches!(error.code(), Some("NOREPLICAS" | "OOM"))
}

fn is_other_data(error: &wheellock_client::Error) -> bool {
    error.code() == Some("WRONGTYPE")
}

/// Returns true if the server or the connection to it failed, so that a retry may succeed.
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

/// Error codes of servers that cannot run any command, or this command, for the moment. A script runs too long, memory or replicas are
/// short, the disk fails, or the primary or a slot is moving.
const PASSING: &[&str] =
    &["BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "MISCONF", "NOREPLICAS", "OOM", "READONLY", "TRYAGAIN"];

/// Error code with which a write lock's script rejects a reader.
const UPGRADE: &str = "UPGRADE";

/// The failure of one server of a quorum.
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
    /// The server's error.
    pub error: Error,
}

impl fmt::Display for MemberFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.server, self.error)
    }
}

/// Longest name of a lock in bytes. Redis allows longer names, but a longer name is a mistake.
pub(crate) const MAX_NAME: usize = 4096;

/// Longest label of a manager in bytes. A host, a process and a service fit. A longer text is not a label.
pub(crate) const MAX_LABEL: usize = 256;

/// Longest reason of a request to release a lock, in bytes. A holder prints or logs it.
pub(crate) const MAX_REASON: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    /// The text says which operation failed, where, why, and what happens next.
    #[test]
    fn missing_acknowledgement_error_names_operation() {
        let (server, by) = (Arc::from("db:6379"), Shortfall { acked: 0, wanted: 1 });
        let grant = Error::not_replicated("dur", Arc::clone(&server), by);
        let expected = "cannot acquire \"dur\" on db:6379: 0 of 1 acknowledgements came in time; the grant is being taken back";
        assert_eq!(grant.to_string(), expected);
        let extension = Error::extension_not_replicated("dur", server, by);
        let expected = "cannot renew \"dur\" on db:6379: 0 of 1 acknowledgements came in time; it may be believed as long as before";
        assert_eq!(extension.to_string(), expected);
    }

    #[test]
    fn error_escapes_only_special_characters() {
        let shown =
            |name: &str| Error::NoQuorum { lock: name.into(), granted: 1, wanted: 2, failures: Vec::new() };
        assert_eq!(shown("anna's").to_string(), "no quorum for lock \"anna's\": 1 of 2 servers");
        assert_eq!(quotable("'a\"b\\c\n\u{1b}'"), r#"'a\"b\\c\n\u{1b}'"#);
    }
}
