//! Interest in a channel, on the server that serves it.
//!
//! A subscription follows its channel's slot. It does not interpret the messages of one server; `listening` does.

use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::client::route::Route;
use crate::connection::Shared;
use crate::connection::listening::Listening;
use crate::protocol::channels::MOST_PAYLOADS;
use crate::topology::cluster;

/// Interest in a channel. The interest ends when the subscription is dropped.
///
/// A subscription is a coalesced wake-up, not a queue. It reports that there was a reason to check, regardless of the
/// number of messages. [`poll_changes`](Self::poll_changes) returns that number. A reason to check is a message, or a
/// lost connection or a refusal, which may have hidden a message.
///
/// A user that checks once after subscribing, and again whenever [`changed`](Self::changed) resolves, does not miss
/// any message.
///
/// ```no_run
/// use wheellock_client::Command;
///
/// # async fn example(client: wheellock_client::Client) -> Result<(), wheellock_client::Error> {
/// let mut news = client.subscribe(b"news");
/// loop {
///     let latest = client.call(&Command::new("GET").arg("latest")).await?;
///     println!("{latest:?}"); // looked at after the SUBSCRIBE, so no message fell in between
///     news.changed().await;
/// }
/// # Ok(())
/// # }
/// ```
pub struct Subscription {
    at: Listening,
    /// Boxed, because every waiter of a fair lock has a subscription, and most subscriptions are not in a cluster.
    home: Option<Box<Home>>,
}

/// The cluster to which a subscription belongs.
struct Home {
    cluster: cluster::Handle,
    channel: Box<[u8]>,
    /// The payloads that an earlier node sent, if this subscription keeps payloads.
    payloads: Option<Vec<Box<[u8]>>>,
}

// The state is behind mutexes that ignore poison, and no change of it runs a caller's code.
impl UnwindSafe for Subscription {}
impl RefUnwindSafe for Subscription {}

impl Subscription {
    /// Subscribes to `channel` at the server that serves the channel's slot now. In a cluster, the subscription follows
    /// the slot.
    pub(crate) fn new(route: &Route, channel: &[u8], keeps_payloads: bool) -> Self {
        match route {
            Route::One(link) => Self { at: Listening::new(link, channel, keeps_payloads), home: None },
            Route::Cluster(cluster) => {
                // Without a node for the slot, wait at `unassigned`. The subscription moves when a node serves the slot.
                let node = cluster.node_for(Some(channel)).unwrap_or_else(|_| cluster.unassigned());
                let payloads = keeps_payloads.then(Vec::new);
                let home = Home { cluster: cluster.clone(), channel: channel.into(), payloads };
                Self { at: Listening::new(&node, channel, keeps_payloads), home: Some(Box::new(home)) }
            }
        }
    }

    /// Follows the channel's slot to another node. This counts as a reason to check, because a message may have been
    /// missed meanwhile. The SUBSCRIBE is queued at the new node before this returns. A user that checks after that
    /// does not miss a message.
    fn follow(&mut self) -> bool {
        let gone_to = self.gone_to();
        if let Some((node, channel)) = &gone_to {
            let mut kept = self.home.as_mut().and_then(|home| home.payloads.as_mut());
            let there = Listening::new(node, channel, kept.is_some());
            let mut before = std::mem::replace(&mut self.at, there);
            self.at.mark_changed();
            if let Some(kept) = &mut kept {
                kept.extend(before.take_payloads());
                kept.drain(..kept.len().saturating_sub(MOST_PAYLOADS));
            }
        }
        gone_to.is_some()
    }

    /// Returns the node that serves the channel's slot now, if it is a different node. If no node serves the slot and
    /// the present node has ended, the subscription waits at `unassigned`. An ended connection does not report a new
    /// owner or the client's end.
    fn gone_to(&self) -> Option<(Arc<Shared>, Box<[u8]>)> {
        let Home { cluster, channel, .. } = self.home.as_deref()?;
        let here = self.at.server();
        let node = match cluster.node_for(Some(channel)) {
            Ok(node) if !node.is_closed() => node,
            _ if here.is_closed() => cluster.unassigned(),
            _ => return None,
        };
        (!Arc::ptr_eq(&node, here)).then(|| (node, channel.clone()))
    }

    /// Waits until there is a reason to check since the last call.
    ///
    /// # Cancel safety
    ///
    /// Safe. No change is lost: the next call resolves at once.
    pub async fn changed(&mut self) {
        std::future::poll_fn(|cx| self.poll_changed(cx)).await;
    }

    /// Polls [`changed`](Self::changed), for hand-written futures.
    pub fn poll_changed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.poll_changes(cx).map(drop)
    }

    /// Polls like [`poll_changed`](Self::poll_changed), and returns the number of reasons since the last call. This
    /// suits a user that counts messages, because several messages may arrive before it polls.
    pub fn poll_changes(&mut self, cx: &mut Context<'_>) -> Poll<u64> {
        self.follow();
        self.at.poll_changes(cx)
    }

    /// Waits until the server has confirmed or refused the subscription; see [`refusal`](Self::refusal).
    ///
    /// In a cluster, this waits for the node that serves the channel's slot. While no node serves the slot, this
    /// keeps waiting. It also resolves when the client is closed or its runtime ends. Then
    /// [`is_confirmed`](Self::is_confirmed) returns false, and the subscription will not be confirmed any more.
    ///
    /// # Cancel safety
    ///
    /// Safe: this only waits. [`changed`](Self::changed) still reports the changes that happened meanwhile.
    pub async fn settled(&mut self) {
        std::future::poll_fn(|cx| self.poll_settled(cx)).await;
    }

    fn poll_settled(&mut self, cx: &Context<'_>) -> Poll<()> {
        loop {
            let settled = self.at.poll_settled(cx);
            // Check after the waker is registered, so that a later move of the slot wakes this task.
            if !self.follow() {
                return settled;
            }
        }
    }

    /// Returns true if there was a reason to check since the last call.
    pub fn has_changed(&self) -> bool {
        self.gone_to().is_some() || self.at.has_changed()
    }

    /// Returns true if there was a reason to check since the last call, and resets the count.
    pub fn take_changed(&mut self) -> bool {
        self.take_changes() > 0
    }

    /// Returns the number of reasons to check since the last call, and resets the count.
    pub fn take_changes(&mut self) -> u64 {
        self.follow();
        self.at.take_changes()
    }

    /// Returns the kept payloads since the last call, the oldest first. Of a flood of messages only the latest are kept.
    #[doc(hidden)]
    pub fn take_payloads(&mut self) -> Vec<Box<[u8]>> {
        self.follow();
        let mut payloads = self
            .home
            .as_mut()
            .and_then(|home| home.payloads.as_mut())
            .map(std::mem::take)
            .unwrap_or_default();
        payloads.extend(self.at.take_payloads());
        payloads
    }

    /// Returns true if the server has confirmed the subscription on the present connection.
    pub fn is_confirmed(&self) -> bool {
        self.at.is_confirmed()
    }

    /// Returns the reason of the server's refusal, if it refused, for example because of an ACL without the channel.
    /// The client subscribes again on the next connection. Until then, this subscription does not receive messages.
    pub fn refusal(&self) -> Option<String> {
        self.at.refusal()
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription").field("server", &self.at.server().server()).finish_non_exhaustive()
    }
}
