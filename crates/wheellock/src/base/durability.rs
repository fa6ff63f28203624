//! Levels of durability and the acknowledgements that they need. Waiting for these is the task of `retry`.

use std::fmt;
use std::time::Duration;

use wheellock_client::layer::Acks;
use wheellock_client::{Config, Value};

/// The number of servers that must keep a grant or a renewal before it counts. Set with
/// [`LockManagerBuilder::durability`](crate::LockManagerBuilder::durability).
///
/// Replication is asynchronous: a primary replies before its replicas have received the write. The page *Guarantees* lists the promises,
/// their assumptions and the limits of every level.
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
    /// Only the primary, in one round trip. A lock is exclusive while this server keeps its data. A failover loses the grants that were not
    /// replicated yet. The server may then grant the lock again while its old holder still considers it held.
    #[default]
    Primary,
    /// The primary and this number of replicas, at least one. Costs a second round trip and the time of the replication (`WAIT`). If the
    /// number covers every replica that may be promoted, a lock stays exclusive across a failover. The promoted replica must keep its data.
    /// With a smaller number, a lock stays exclusive only if the promoted replica is among those that acknowledged. Sentinel and Cluster
    /// prefer the replica with the most recent data, but do not promise to promote it.
    Replicas(u32),
    /// The fsynced append-only files of the primary and of this number of replicas (`WAITAOF`, Redis 7.2 and Valkey). The number may be
    /// zero. A grant then survives a power failure, too. With `appendfsync everysec` a grant takes up to a second.
    Aof {
        /// Number of replicas besides the primary.
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

    /// Returns the number of replicas that must be connected before the server can grant a lock.
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

/// The acknowledgements that each grant and renewal waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) acks: Acks,
    pub(crate) timeout: Duration,
}

impl Wanted {
    /// Returns `None` if the level needs no acknowledgement. The connection is blocked during the wait, and one wait may stand behind
    /// another. The timeout is therefore at most a third of the time after which a connection counts as dead.
    pub(crate) fn new(durability: Durability, timeout: Duration, config: &Config) -> Option<Self> {
        let acks = durability.acks()?;
        let timeout = timeout.min(config.response_timeout / 3).max(Duration::from_millis(1));
        Some(Self { acks, timeout })
    }

    /// Returns by how much `reply` falls short of the wanted number; `None` if it does not.
    pub(crate) fn shortfall(self, reply: Option<&Value>) -> Option<Shortfall> {
        let acked = reply.and_then(|reply| self.acks.heard(reply)).unwrap_or(0);
        let wanted = self.acks.wanted();
        (acked < wanted).then_some(Shortfall { acked, wanted })
    }
}

/// Fewer acknowledgements than wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Shortfall {
    pub(crate) acked: u32,
    pub(crate) wanted: u32,
}
