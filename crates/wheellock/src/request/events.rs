//! What the lock layer tells the operator, through `tracing` if that feature is on. Owns the wording, and the targets under which
//! users find it, which are no modules' names.
#![cfg_attr(not(feature = "tracing"), expect(unused_variables, reason = "nobody listens"))]

use std::time::Duration;

use wheellock_client::{Outcome, Value};

use crate::base::error::LostReason;
use crate::base::server_clock::Jump;
use crate::request::diagnostics::Finding;
use crate::table::holds::Failing;
use crate::wait::name::Name;

/// The targets are a part of the interface: filters name them. What becomes of single locks;
#[cfg(feature = "tracing")]
const LOCK: &str = "wheellock::lock";
/// whether the watchdog can renew;
#[cfg(feature = "tracing")]
const RENEWAL: &str = "wheellock::renewal";
/// and what is wrong with the server. What becomes of connections is the client's to tell, as `wheellock::connection`.
#[cfg(feature = "tracing")]
const SERVER: &str = "wheellock::server";

pub(crate) fn lost(lock: &Name, reason: LostReason) {
    // A shutdown gives locks back, and says by itself what it could not.
    #[cfg(feature = "tracing")]
    if reason != LostReason::ShutDown {
        tracing::warn!(target: LOCK, lock = lock.text(), kind = lock.kind().label, %reason, "lock lost");
    }
}

/// Said when it begins, and seldom while it goes on.
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

/// No renewal fails any more, after that was said.
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

#[cfg(feature = "tracing")]
fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
