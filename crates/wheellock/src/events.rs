//! What the lock layer tells the operator, through `tracing` if that feature is on. Owns the wording.
#![cfg_attr(not(feature = "tracing"), expect(unused_variables, reason = "nobody listens"))]

use wheellock_client::{Outcome, Value};

use crate::diagnostics::Finding;
use crate::error::LostReason;
use crate::name::Name;
use crate::server_clock::Jump;

pub(crate) fn lost(lock: &Name, reason: LostReason) {
    // A shutdown gives locks back, and says by itself what it could not.
    #[cfg(feature = "tracing")]
    if reason != LostReason::ShutDown {
        tracing::warn!(?lock, %reason, "lock lost");
    }
}

pub(crate) fn renewal_failed(server: &str, result: &Result<Value, Outcome>) {
    #[cfg(feature = "tracing")]
    tracing::warn!(server, ?result, "leases not renewed, will be tried again");
}

pub(crate) fn server_clock_jumped(server: &str, jump: Jump) {
    #[cfg(feature = "tracing")]
    tracing::warn!(server, ?jump, "the server's clock jumped");
}

pub(crate) fn found(server: &str, finding: &Finding) {
    #[cfg(feature = "tracing")]
    tracing::warn!(server, %finding, "locks on this server are at risk");
}
