//! Whether locks can be acquired now, judged without I/O.
//!
//! This module owns the judgement of one manager and of a quorum. It reads the connection's state and the failing
//! renewals.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use wheellock_client::ConnectionState;

use crate::base::fleet::FleetHealth;
use crate::request::acquire::SILENT_PART;
use crate::request::context::Context;

/// Whether a lock can be acquired now, as far as is known: see [`LockManager::health`](crate::LockManager::health).
/// `Display` writes one line for the body of a response.
///
/// ```no_run
/// # fn answer(_: u16, _: String) {}
/// # fn example(locks: &wheellock::LockManager) {
/// let health = locks.health();
/// answer(if health.is_healthy() { 200 } else { 503 }, health.to_string());
/// # }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Health {
    /// The server is connected and replies. The last renewal of every lease by the watchdog succeeded.
    Healthy,
    /// The server, or one of a cluster's primaries, is not connected or refuses the connection. The client retries in
    /// the background.
    #[cfg_attr(not(feature = "testing"), non_exhaustive)]
    NotConnected {
        /// The reason, if an attempt has failed or a connection was lost.
        last_error: Option<wheellock_client::Error>,
    },
    /// The server is connected, and a reply has been missing for more than a third of the response timeout.
    Silent,
    /// The server replies, and this process acquires no lock in its [`Fleet`](crate::Fleet): a failover is not over, or too few servers know
    /// the process. [`LockManager::fleet_health`](crate::LockManager::fleet_health) has the same facts.
    #[cfg_attr(not(feature = "testing"), non_exhaustive)]
    NotReady {
        /// The event that the process waits for.
        reason: String,
        /// Longest time until locks are granted after a failover, if that is known.
        at_most: Option<Duration>,
    },
    /// The watchdog could not renew held locks. It retries until their leases end.
    #[cfg_attr(not(feature = "testing"), non_exhaustive)]
    RenewalsFail {
        /// Number of these locks.
        locks: u64,
    },
    /// The manager was shut down, or its client was closed. This state is final.
    Ended,
    /// Too few servers of a [`RedLockManager`](crate::RedLockManager) are healthy for a grant.
    #[cfg_attr(not(feature = "testing"), non_exhaustive)]
    NoQuorum {
        /// Number of healthy servers.
        healthy: usize,
        /// Number of servers that have to be healthy.
        needed: usize,
    },
    /// A server of a [`RedLockManager`](crate::RedLockManager) cannot grant until a setting changes. The majority may
    /// still grant.
    #[cfg_attr(not(feature = "testing"), non_exhaustive)]
    UnusableMember {
        /// The server.
        server: Arc<str>,
        /// Why the server cannot grant.
        reason: String,
    },
}

impl Health {
    /// Returns true if the state is [`Healthy`](Self::Healthy).
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
            Self::NotReady { reason, .. } => f.write_str(reason),
            Self::RenewalsFail { locks: 1 } => f.write_str("1 lock could not be renewed"),
            Self::RenewalsFail { locks } => write!(f, "{locks} locks could not be renewed"),
            Self::Ended => f.write_str("shut down"),
            Self::NoQuorum { healthy, needed } => {
                write!(f, "{healthy} healthy servers where {needed} are needed")
            }
            Self::UnusableMember { server, reason } => {
                write!(f, "{server} cannot be a member of the quorum: {reason}")
            }
        }
    }
}

/// Returns the health of one manager: see [`LockManager::health`](crate::LockManager::health).
pub(crate) fn health_of(context: &Context) -> Health {
    let (shut, failing, fleet) = {
        let holds = context.holds();
        (holds.is_shut(), holds.failures.failing(), holds.fleet_health(context.clock.now()))
    };
    if shut {
        return Health::Ended;
    }
    match context.client.state() {
        ConnectionState::Ready { .. } => {}
        ConnectionState::Connecting { last_error, .. } => return Health::NotConnected { last_error },
        ConnectionState::Refused(error) => return Health::NotConnected { last_error: Some(error) },
        // The client is closed, which is final.
        _ => return Health::Ended,
    }
    let patience = context.client.config().response_timeout / SILENT_PART;
    if context.client.owed_for().is_some_and(|owed| owed > patience) {
        return Health::Silent;
    }
    if let Some(FleetHealth { obstacle: Some(reason), grace_ends_in: at_most, .. }) = fleet {
        return Health::NotReady { reason, at_most };
    }
    if failing > 0 { Health::RenewalsFail { locks: failing } } else { Health::Healthy }
}

/// Returns the health of several managers, of which `needed` have to be healthy.
pub(crate) fn health_of_quorum(managers: impl Iterator<Item = Health>, needed: usize) -> Health {
    let (mut healthy, mut have_ended) = (0, true);
    for health in managers {
        healthy += usize::from(health.is_healthy());
        have_ended &= matches!(health, Health::Ended);
    }
    match () {
        () if healthy >= needed => Health::Healthy,
        () if have_ended => Health::Ended,
        () => Health::NoQuorum { healthy, needed },
    }
}
