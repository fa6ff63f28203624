//! How many servers have to keep a grant or a renewal before it counts. Owns the levels and what they ask for; who waits for it
//! is `retry`.

use std::fmt;
use std::time::Duration;

use wheellock_client::layer::Acks;
use wheellock_client::{Config, Value};

/// How many servers have to keep a grant or a renewal before it counts. Set with
/// [`LockManagerBuilder::durability`](crate::LockManagerBuilder::durability).
///
/// Replication is asynchronous: a primary answers before its replicas have heard. What is promised under which
/// assumptions, and what no level promises, is on the page *Guarantees*.
///
/// ```no_run
/// use wheellock::{Durability, LockManager};
///
/// # async fn example() -> Result<(), wheellock::Error> {
/// let locks = LockManager::builder("redis+sentinel://a,b,c/mymaster")
///     .durability(Durability::Replicas(1)) // nothing is granted that only the primary knows
///     .connect()
///     .await?;
/// # drop(locks);
/// # Ok(())
/// # }
/// ```
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
    pub(crate) acked: u32,
    pub(crate) wanted: u32,
}
