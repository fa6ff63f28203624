//! Messages of the lock layer to the operator, through `tracing`.
//!
//! The messages are sent only if the feature is on. Their targets are not module names.
#![cfg_attr(not(feature = "tracing"), expect(unused_variables, reason = "nobody listens"))]

use std::time::Duration;

use wheellock_client::{Outcome, Value};

use crate::base::error::LostReason;
use crate::base::fleet::Fleet;
use crate::base::server_clock::Jump;
use crate::request::diagnostics::Finding;
use crate::table::holds::Failing;
use crate::wait::name::Name;
use crate::wire::release_request::ReleaseRequest;

/// Target of messages about single locks. The targets are part of the interface, because users filter by them.
#[cfg(feature = "tracing")]
const LOCK: &str = "wheellock::lock";
/// Target of messages about renewals by the watchdog.
#[cfg(feature = "tracing")]
const RENEWAL: &str = "wheellock::renewal";
/// Target of messages about the state of the server. The client reports connections, with the target `wheellock::connection`.
#[cfg(feature = "tracing")]
const SERVER: &str = "wheellock::server";

pub(crate) fn lost(lock: &Name, reason: LostReason) {
    // A shutdown releases locks. The shutdown itself reports the locks that it could not release.
    #[cfg(feature = "tracing")]
    if reason != LostReason::ShutDown {
        tracing::warn!(target: LOCK, lock = lock.text(), kind = lock.kind().label, %reason, "lock lost");
    }
}

/// Logs that a listening holder received a request to release its lock.
pub(crate) fn release_requested(lock: &Name, request: &ReleaseRequest) {
    #[cfg(feature = "tracing")]
    tracing::info!(target: LOCK, lock = lock.text(), kind = lock.kind().label, %request, "asked to release the lock");
}

/// Logs renewals that begin to fail, and seldom while they keep failing.
pub(crate) fn renewals_fail(server: &str, result: &Result<Value, Outcome>, how: Failing) {
    #[cfg(feature = "tracing")]
    {
        let Failing { locks, failures, failing } = how;
        let failing_ms = millis(failing);
        tracing::warn!(
            target: RENEWAL, server, locks, failures, failing_ms, ?result,
            "leases not renewed, will be tried again"
        );
    }
}

/// Logs that no renewal fails any more, if the failure was logged.
pub(crate) fn renewed_again(server: &str, failing: Duration) {
    #[cfg(feature = "tracing")]
    tracing::info!(target: RENEWAL, server, failing_ms = millis(failing), "leases renewed again");
}

pub(crate) fn server_clock_jumped(server: &str, jump: Jump) {
    #[cfg(feature = "tracing")]
    tracing::warn!(target: SERVER, server, ?jump, "the server's clock jumped");
}

pub(crate) fn found(server: &str, finding: &Finding) {
    #[cfg(feature = "tracing")]
    tracing::warn!(target: SERVER, server, %finding, "locks on this server are at risk");
}

pub(crate) fn other_fleet(server: &str, fleet: &Fleet) {
    #[cfg(feature = "tracing")]
    tracing::error!(target: SERVER, server, %fleet, "the other processes of this server have other settings for failovers");
}

#[cfg(feature = "tracing")]
fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
