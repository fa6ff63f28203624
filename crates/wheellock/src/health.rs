//! Whether locks can be had now, as far as is known without asking anybody. Owns the judgement of one manager and of a quorum; where a
//! connection stands, and what the watchdog could not renew, is told by those who know.

use std::fmt;

use wheellock_client::ConnectionState;

use crate::acquire::SILENT_PART;
use crate::manager::LockManager;

/// Whether a lock can be acquired now, as far as is known: see [`LockManager::health`]. `Display` is one line for the body of an answer.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Health {
    /// The server is connected and answers, and every lease that the watchdog keeps was renewed when it was tried last.
    Healthy,
    /// The server, or of a cluster's primaries one, is not connected, or refuses us. It is tried again in the background.
    NotConnected {
        /// Why, if an attempt has failed or a connection was lost.
        last_error: Option<wheellock_client::Error>,
    },
    /// The server is connected and has owed an answer for more than a third of the response timeout.
    Silent,
    /// The watchdog could not renew locks that are held; it tries again until their leases end.
    RenewalsFail {
        /// How many.
        locks: u64,
    },
    /// The manager was shut down, or its client closed: for good.
    Ended,
    /// Of the servers of a [`RedLock`](crate::RedLock), fewer are healthy than have to grant.
    NoQuorum {
        /// How many are.
        healthy: usize,
        /// How many have to be.
        needed: usize,
    },
}

impl Health {
    /// Whether it is [`Healthy`](Self::Healthy).
    pub fn is_healthy(&self) -> bool {
        matches!(self, Self::Healthy)
    }
}

impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Healthy => f.write_str("healthy"),
            Self::NotConnected { last_error: Some(error) } => {
                write!(f, "not connected to {}: {}", error.server_address(), error.detail())
            }
            Self::NotConnected { last_error: None } => f.write_str("not connected yet"),
            Self::Silent => f.write_str("the server does not answer"),
            Self::RenewalsFail { locks: 1 } => f.write_str("1 lock could not be renewed"),
            Self::RenewalsFail { locks } => write!(f, "{locks} locks could not be renewed"),
            Self::Ended => f.write_str("shut down"),
            Self::NoQuorum { healthy, needed } => {
                write!(f, "{healthy} healthy servers where {needed} are needed")
            }
        }
    }
}

impl LockManager {
    /// Whether a lock can be acquired now, as far as is known without asking: the connection is ready, the server answers what it was
    /// asked, and the watchdog's renewals succeed. No I/O; for a probe that is called every second.
    ///
    /// Behind Sentinels or among replicas the server is the primary of now; while a failover goes on there is none. In a cluster every slot has
    /// to have a connected primary, though a lock of another shard could be had.
    ///
    /// It is what a *readiness* probe wants: a service whose every request needs a lock takes no requests meanwhile. It is no
    /// *liveness* probe: a restart heals none of this, and gives up the locks that are held. A server that died a moment ago may be taken for
    /// healthy until an answer is missed, on an idle connection for a heartbeat
    /// ([`Config::heartbeat`](wheellock_client::Config::heartbeat)) and a third of the response timeout.
    pub fn health(&self) -> Health {
        let context = &self.context;
        let (shut, failing) = {
            let holds = context.holds();
            (holds.is_shut(), holds.failing())
        };
        if shut {
            return Health::Ended;
        }
        match context.client.state() {
            ConnectionState::Ready { .. } => {}
            ConnectionState::Connecting { last_error } => return Health::NotConnected { last_error },
            ConnectionState::Refused(error) => return Health::NotConnected { last_error: Some(error) },
            // What the next release will say, too, this client says no more.
            _ => return Health::Ended,
        }
        let patience = context.client.config().response_timeout / SILENT_PART;
        if context.client.owed_for().is_some_and(|owed| owed > patience) {
            return Health::Silent;
        }
        if failing > 0 { Health::RenewalsFail { locks: failing } } else { Health::Healthy }
    }

    /// Whether [`health`](Self::health) is [`Healthy`](Health::Healthy).
    pub fn is_healthy(&self) -> bool {
        self.health().is_healthy()
    }
}

/// Of several managers so many have to be healthy.
pub(crate) fn health_of_quorum<'a>(managers: impl Iterator<Item = &'a LockManager>, needed: usize) -> Health {
    let healths: Vec<_> = managers.map(LockManager::health).collect();
    let healthy = healths.iter().filter(|health| health.is_healthy()).count();
    if healthy >= needed {
        Health::Healthy
    } else if healths.iter().all(|health| matches!(health, Health::Ended)) {
        Health::Ended
    } else {
        Health::NoQuorum { healthy, needed }
    }
}
