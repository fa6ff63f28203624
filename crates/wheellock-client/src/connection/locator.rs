//! The rule by which a connection finds its server.
//!
//! The driver applies the rule at every attempt. This module does not query Sentinels (`finder` does) and does not
//! connect (`open` does).

use std::sync::Arc;
use std::time::Duration;

use wheellock_wheel::Timer;

use crate::base::address::Address;
use crate::connection::finder::Finder;

/// The rule by which the server is found.
pub(crate) enum Locator {
    /// Always this address.
    At(Address),
    /// This address while the cluster names it. Another node may take its place.
    Node {
        address: Address,
        /// The server that named the address, for messages.
        named_by: String,
    },
    /// The one of these addresses whose server reports that it is the primary.
    Among(Vec<Address>),
    /// The address that the Sentinels name.
    Named(Arc<Finder>),
}

impl Locator {
    /// Returns true if another server may replace this one.
    pub(crate) fn may_move(&self) -> bool {
        !matches!(self, Self::At(_))
    }

    /// Waits for `pause`. Returns early when the Sentinels name another address.
    pub(crate) async fn sleep_unless_renamed(&self, timer: &Timer, pause: Duration) {
        let sleep = timer.sleep(pause);
        match self {
            Self::Named(finder) => drop(finder.unless_renamed(finder.version(), sleep).await),
            _ => sleep.await,
        }
    }
}
