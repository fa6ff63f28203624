//! What the connection tells the operator, through `tracing` if that feature is on. Owns the wording, and the target under which
//! users find it, which is no module's name; nothing secret is ever passed in. How often a line is said is decided by `outages`.
#![cfg_attr(not(feature = "tracing"), expect(unused_variables, reason = "nobody listens"))]

use crate::base::error::Error;
use crate::base::outages::{Connected, Outage};
use crate::protocol::handshake::ServerInfo;

/// The target of every event here. A part of the interface: filters name it.
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

/// The server cannot be reached, for the first time or still.
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

/// It was ended on our side, because nobody needs it any more.
pub(crate) fn closed(server: &str) {
    #[cfg(feature = "tracing")]
    tracing::debug!(target: TARGET, server, "connection closed");
}

#[cfg(feature = "tracing")]
fn millis(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
