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
    /// Number of servers that hold the locks: the primary and its replicas, dead ones included. Sentinels do not count. In a cluster this is
    /// the number of servers of each shard. While the primary has more replicas than that, no process acquires a lock.
    pub servers: u32,
    /// The longest lease that any process takes. Default 30 s. After a failover without all processes, the first new grant comes this time
    /// and the [`window`](Self::window) later, and 1 % more. The time begins when a replica follows the new primary.
    pub longest_lease: Duration,
    /// A process takes locks only within this time after its last refresh that enough servers acknowledged. A grant whose reply takes longer
    /// than a third of it is given back. Default 10 s.
    pub window: Duration,
    /// True if a server without any data may be a new server. Default false: it may also have lost its data. So the first process on an empty
    /// server waits as after a failover without all processes. Use true in development. The first process on the server decides for all
    /// processes.
    pub may_be_new: bool,
    /// Time without a refresh after which a process's entry is removed. Only simulations set it, because their time is short.
    #[doc(hidden)]
    pub entry_lasts: Option<Duration>,
}

impl Fleet {
    /// Returns the description of a fleet on `servers` servers, with the other settings at their defaults.
    pub fn of_servers(servers: u32) -> Self {
        Self {
            servers,
            longest_lease: Duration::from_secs(30),
            window: Duration::from_secs(10),
            may_be_new: false,
            entry_lasts: None,
        }
    }
}

/// The state of a manager in its [`Fleet`], as far as is known without a request: see
/// [`LockManager::fleet_health`](crate::LockManager::fleet_health).
///
/// ```no_run
/// # fn example(locks: &wheellock::LockManager) {
/// match locks.fleet_health() {
///     None => println!("a failover may lose locks"),
///     Some(fleet) => println!("{fleet}"),
/// }
/// # }
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct FleetHealth {
    /// True if the present server is in its grace. Not all processes have written their locks into it since a failover.
    pub is_in_grace: bool,
    /// Time until the grace ends at the latest, so that new locks are granted. `None` without a grace, or before the server has enough
    /// replicas.
    pub grace_ends_in: Option<Duration>,
    /// Why this process acquires no lock now. `None` if it can.
    pub obstacle: Option<String>,
}

impl fmt::Display for FleetHealth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.obstacle.as_deref().unwrap_or("locks survive a failover"))
    }
}

impl fmt::Display for Fleet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { servers, longest_lease, window, .. } = self;
        write!(f, "{servers} servers, leases of {longest_lease:?} at most, a window of {window:?}")
    }
}
