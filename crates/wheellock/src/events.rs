//! What the lock layer tells the operator, through `tracing` if that feature is on. Owns the wording.

use wheellock_client::{Outcome, Value};

use crate::diagnostics::Finding;
use crate::guard::LostReason;
use crate::name::Name;
use crate::server_clock::Jump;

#[cfg(feature = "tracing")]
pub(crate) fn lost(lock: &Name, reason: LostReason) {
    tracing::warn!(?lock, %reason, "lock lost");
}

#[cfg(feature = "tracing")]
pub(crate) fn renewal_failed(server: &str, result: &Result<Value, Outcome>) {
    tracing::warn!(server, ?result, "leases not renewed, will be tried again");
}

#[cfg(feature = "tracing")]
pub(crate) fn server_clock_jumped(server: &str, jump: Jump) {
    tracing::warn!(server, ?jump, "the server's clock jumped");
}

#[cfg(feature = "tracing")]
pub(crate) fn found(server: &str, finding: &Finding) {
    tracing::warn!(server, %finding, "locks on this server are at risk");
}

#[cfg(not(feature = "tracing"))]
pub(crate) fn lost(_lock: &Name, _reason: LostReason) {}

#[cfg(not(feature = "tracing"))]
pub(crate) fn renewal_failed(_server: &str, _result: &Result<Value, Outcome>) {}

#[cfg(not(feature = "tracing"))]
pub(crate) fn server_clock_jumped(_server: &str, _jump: Jump) {}

#[cfg(not(feature = "tracing"))]
pub(crate) fn found(_server: &str, _finding: &Finding) {}
