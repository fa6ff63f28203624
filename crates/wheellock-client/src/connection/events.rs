//! Events of the connection for the operator.
//!
//! The events use `tracing` if that feature is on. This module owns their wording and their target. The target is an
//! interface for users, so it is not the name of a module. No event contains a secret. This module does not limit the
//! rate of events; `outages` does.
#![cfg_attr(not(feature = "tracing"), expect(unused_variables, reason = "only events use it"))]

use crate::base::error::Error;
use crate::base::outages::{Connected, Outage};
use crate::protocol::handshake::ServerInfo;

/// The target of every event of this module. It is a part of the public interface, because users' filters name it.
#[cfg(feature = "tracing")]
const TARGET: &str = "wheellock::connection";

pub(crate) fn connected(server: &str, info: &ServerInfo, connected: Connected) {
    #[cfg(feature = "tracing")]
    {
        let (version, connection_id) = (&info.version, info.connection_id);
        match connected {
            Connected::First => {
                tracing::info!(target: TARGET, server, version, connection_id, "connected");
            }
            Connected::Again(Outage { down, attempts, .. }) => {
                let down_ms = millis(down);
                tracing::info!(
                    target: TARGET, server, version, connection_id, down_ms, attempts, "connected again"
                );
            }
        }
    }
}

/// Reports that no driver wakes the client's timers, because the system refused a thread.
pub(crate) fn timer_refused(server: &str) {
    #[cfg(feature = "tracing")]
    tracing::warn!(target: TARGET, server, "the system refused the timer's thread");
}

/// Reports that the server cannot be reached, for the first time or still.
pub(crate) fn connect_failed(server: &str, error: &Error, outage: Outage) {
    #[cfg(feature = "tracing")]
    {
        let Outage { down, attempts, losses } = outage;
        let (kind, detail, down_ms) = (error.kind(), error.detail(), millis(down));
        tracing::warn!(
            target: TARGET, server, ?kind, detail, down_ms, attempts, losses, "cannot connect"
        );
    }
}

pub(crate) fn disconnected(server: &str, error: &Error, outage: Outage) {
    #[cfg(feature = "tracing")]
    {
        let (kind, detail, losses) = (error.kind(), error.detail(), outage.losses);
        tracing::warn!(target: TARGET, server, ?kind, detail, losses, "connection lost");
    }
}

/// Reports that the client has ended a connection it no longer needs.
pub(crate) fn closed(server: &str) {
    #[cfg(feature = "tracing")]
    tracing::debug!(target: TARGET, server, "connection closed");
}

#[cfg(feature = "tracing")]
fn millis(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
