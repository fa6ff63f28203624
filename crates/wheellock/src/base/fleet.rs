//! The numbers of a fleet: the processes whose locks survive a failover together.

use std::fmt;
use std::time::Duration;

/// The processes that share the locks of one server and its replicas, as each of them has to describe them. Set with
/// [`LockManagerBuilder::keep_locks_across_failovers`](crate::LockManagerBuilder::keep_locks_across_failovers).
///
/// ```no_run
/// use wheellock::{Fleet, LockManager};
///
/// # async fn example() -> Result<(), wheellock::Error> {
/// let locks = LockManager::builder("redis+sentinel://a,b,c/mymaster")
///     .keep_locks_across_failovers(Fleet::of_servers(3)) // a primary and two replicas
///     .connect()
///     .await?;
/// # drop(locks);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fleet {
    /// Number of servers that hold the locks: the primary and its replicas, dead ones included. Sentinels do not count.
    pub servers: u32,
    /// The longest lease that any process takes. Default 30 s. After a failover without all processes, the first new grant comes this time
    /// and the [`window`](Self::window) later.
    pub longest_lease: Duration,
    /// A process takes locks only within this time after its last sign of life that enough servers acknowledged. Default 10 s.
    pub window: Duration,
    /// True if a server without any data may be a new server. Default false: it may also have lost its data. So the first process on an empty
    /// server waits as after a failover without all processes. Use true in development.
    pub may_be_new: bool,
}

impl Fleet {
    /// Returns the description of a fleet on `servers` servers, with the other settings at their defaults.
    pub fn of_servers(servers: u32) -> Self {
        Self {
            servers,
            longest_lease: Duration::from_secs(30),
            window: Duration::from_secs(10),
            may_be_new: false,
        }
    }
}

impl fmt::Display for Fleet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { servers, longest_lease, window, .. } = self;
        write!(f, "{servers} servers, leases of {longest_lease:?} at most, a window of {window:?}")
    }
}
