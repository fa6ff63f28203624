//! Where a connection finds its server, at every attempt anew. Owns the choice of the question; the answers of Sentinels are
//! `finder`'s, and connecting is `open`'s.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use wheellock_wheel::Timer;

use crate::base::address::Address;
use crate::topology::finder::Finder;

/// How the server is found.
pub(crate) enum Locator {
    /// Always at the same address.
    At(Address),
    /// At this address as long as the cluster names it: another node may take its place.
    Node {
        address: Address,
        /// The server that named the address, for messages.
        named_by: String,
    },
    /// At the one of these addresses whose server says that it is the primary.
    Among(Vec<Address>),
    /// At the address that the Sentinels name.
    Named(Arc<Finder>),
}

impl Locator {
    /// Whether another server may take this one's place.
    pub(crate) fn may_move(&self) -> bool {
        !matches!(self, Self::At(_))
    }

    /// Waits, but not after somebody has named another address.
    pub(crate) async fn sleep_unless_renamed(&self, timer: &Timer, pause: Duration) {
        let mut sleep = timer.sleep(pause);
        let Self::Named(finder) = self else { return sleep.await };
        let mut renamed = pin!(finder.renamed(finder.version()));
        std::future::poll_fn(|cx| match renamed.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(()),
            Poll::Pending => Pin::new(&mut sleep).poll(cx),
        })
        .await;
    }
}
