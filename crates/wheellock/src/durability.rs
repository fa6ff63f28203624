//! How many servers have to keep a grant or a renewal before it counts. Owns the levels, and the wait for what they ask.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::Waker;
use std::time::{Duration, Instant};

use wheellock_client::{
    Acks, CallOptions, Client, Command, Config, ConnectionId, ErrorKind, Retry, Started, Value,
};

use crate::error::Error;
use crate::manager::Inner;
use crate::name::Name;
use crate::persist::{Persisted, persist};

/// How many servers have to keep a grant or a renewal before it counts. Set with
/// [`LockManagerBuilder::durability`](crate::LockManagerBuilder::durability).
///
/// Replication is asynchronous: a primary answers before its replicas have heard. What is promised under which
/// assumptions, and what no level promises, is on the page *Guarantees*.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum Durability {
    /// The primary alone: one round trip. A lock is exclusive as long as this server keeps its data. A failover loses the
    /// grants that had not been replicated, and the lock may then be granted again while its old holder still believes.
    #[default]
    Primary,
    /// So many replicas besides, at least one: another round trip, and the replication's time (`WAIT`). With as many as may
    /// ever be promoted, a lock is exclusive across a failover to any of them that keeps its data. With fewer it is as long
    /// as one that has acknowledged is promoted: Sentinel and Cluster prefer the replica that is furthest, but do not
    /// promise it.
    Replicas(u32),
    /// The primary's append-only file, fsynced, and those of so many replicas, which may be none (`WAITAOF`, Redis 7.2 and
    /// Valkey): what was granted survives a power cut too. With `appendfsync everysec` a grant takes up to a second.
    Aof {
        /// Replicas besides the primary.
        replicas: u32,
    },
}

impl Durability {
    fn acks(self) -> Option<Acks> {
        match self {
            Self::Primary => None,
            Self::Replicas(replicas) => Some(Acks::Replicas(replicas)),
            Self::Aof { replicas } => Some(Acks::Disks { replicas }),
        }
    }

    /// Replicas that have to be connected for anything to be granted.
    pub(crate) fn replicas(self) -> u32 {
        match self {
            Self::Primary => 0,
            Self::Replicas(replicas) | Self::Aof { replicas } => replicas,
        }
    }
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Primary => f.write_str("the primary alone"),
            Self::Replicas(replicas) => write!(f, "the primary and {replicas} replicas"),
            Self::Aof { replicas } => write!(f, "the disks of the primary and {replicas} replicas"),
        }
    }
}

/// What is waited for after each grant and renewal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) acks: Acks,
    pub(crate) timeout: Duration,
}

impl Wanted {
    /// `None` if nothing is waited for. The connection is blocked meanwhile, so the timeout is a third of the time after
    /// which a connection counts as dead, at most: one wait may stand behind another.
    pub(crate) fn new(durability: Durability, timeout: Duration, config: &Config) -> Option<Self> {
        let acks = durability.acks()?;
        let timeout = timeout.min(config.response_timeout / 3).max(Duration::from_millis(1));
        Some(Self { acks, timeout })
    }

    /// By how much `reply` falls short of what is wanted; `None` if it does not.
    pub(crate) fn shortfall(self, reply: Option<&Value>) -> Option<Shortfall> {
        let acked = reply.and_then(|reply| self.acks.heard(reply)).unwrap_or(0);
        let wanted = self.acks.wanted();
        (acked < wanted).then_some(Shortfall { acked, wanted })
    }
}

/// Fewer servers than wanted have acknowledged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Shortfall {
    acked: u32,
    wanted: u32,
}

impl Shortfall {
    pub(crate) fn error(self, lock: &Name) -> Error {
        let Self { acked, wanted } = self;
        Error::NotReplicated { lock: lock.key().to_owned(), acked, wanted }
    }
}

/// As [`persist`], and then waits until what the script wrote is kept as wanted. Nothing is waited for unless `wrote` says of
/// the reply that it did write.
///
/// What was written on a connection that ends before it was waited for is written again on the next one, which the next wait
/// covers; the script is idempotent.
pub(crate) async fn persist_kept<'a, F>(
    inner: &'a Inner,
    wanted: Wanted,
    ask: F,
    deadline: Option<Instant>,
    reserved: bool,
    mut wrote: impl FnMut(&Value) -> bool,
) -> (Persisted, Option<Shortfall>)
where
    F: Fn(&Retry, CallOptions, &Waker) -> Started<'a> + Copy + Unpin,
{
    let config = inner.client.config();
    let patience = config.timer.now() + config.response_timeout;
    let until = deadline.map_or(patience, |deadline| deadline.min(patience));
    let mut written = false;
    loop {
        let mut persisted = persist(inner, ask, Some(until), reserved).await;
        if written {
            persisted.ambiguous = true;
            persisted.result = persisted.result.map_err(|error| error.after_an_unanswered_attempt());
        }
        if !persisted.result.as_ref().is_ok_and(&mut wrote) {
            return (persisted, None);
        }
        written = true;
        // Whatever was answered has a connection.
        let Some(connection) = persisted.connection else { return (persisted, wanted.shortfall(None)) };
        match wait(inner, wanted, connection, deadline).await {
            Ok(reply) => return (persisted, wanted.shortfall(Some(&reply))),
            Err(error) => match error.kind() {
                ErrorKind::Timeout => return (persisted, wanted.shortfall(None)),
                ErrorKind::ConnectionLost | ErrorKind::Protocol if config.timer.now() < until => {}
                _ => {
                    persisted.ambiguous = true;
                    persisted.result = Err(error.after_an_unanswered_attempt());
                    return (persisted, None);
                }
            },
        }
    }
}

async fn wait(
    inner: &Inner,
    Wanted { acks, timeout }: Wanted,
    connection: ConnectionId,
    deadline: Option<Instant>,
) -> Result<Value, wheellock_client::Error> {
    let config = inner.client.config();
    let patience = config.timer.now() + config.response_timeout;
    let deadline = deadline.map_or(patience, |deadline| deadline.min(patience));
    let mut started: Option<Started<'_>> = None;
    std::future::poll_fn(|cx| {
        let call = started
            .get_or_insert_with(|| inner.client.start_wait(connection, acks, timeout, deadline, cx.waker()));
        Pin::new(call).poll(cx)
    })
    .await
}

/// Whether the servers can do what is wanted of them; asked once when connecting.
pub(crate) async fn check(client: &Client, durability: Durability) -> Result<(), Error> {
    let unsupported = |reason: String| Error::UnsupportedDurability { durability, reason };
    let probe = match durability {
        Durability::Primary => return Ok(()),
        Durability::Replicas(0) => {
            return Err(unsupported("at least one replica is needed to wait for one".to_owned()));
        }
        // Nobody's acknowledgement, for a millisecond: only whether the server knows how.
        Durability::Replicas(_) => Command::new("WAIT").arg(0_u64).arg(1_u64),
        Durability::Aof { .. } => Command::new("WAITAOF").arg(1_u64).arg(0_u64).arg(1_u64),
    };
    for node in client.nodes().into_iter().filter(Client::is_ready) {
        if let Err(source) = node.call(&probe).await {
            return Err(match source.kind() {
                ErrorKind::Server | ErrorKind::Permission => unsupported(source.to_string()),
                _ => Error::Server { operation: "connect".to_owned(), source },
            });
        }
    }
    Ok(())
}
