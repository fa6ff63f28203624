//! Interest in a channel, wherever it is served. Owns following a channel's slot; what one server says is `listening`'s.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::connection::Shared;
use crate::connection::listening::Listening;
use crate::topology::cluster::Cluster;

/// Interest in a channel; ends when dropped.
///
/// A subscription is a coalesced wake-up, not a queue: it tells that there was a reason to look, however many
/// messages there were (how many, [`poll_changes`](Self::poll_changes) says). Reasons are messages, and everything
/// that may have hidden one: a lost connection, a refusal.
/// So a user who looks once after subscribing, and again whenever [`changed`](Self::changed) resolves, misses nothing.
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
    /// Boxed, because every waiter of a fair lock has a subscription, and most are in no cluster.
    home: Option<Box<Home>>,
}

/// In a cluster: where the subscription belongs.
struct Home {
    cluster: Arc<Cluster>,
    channel: Box<[u8]>,
}

impl Subscription {
    pub(crate) fn new(shared: &Arc<Shared>, channel: &[u8]) -> Self {
        Self { at: Listening::new(shared, channel), home: None }
    }

    /// In a cluster the subscription follows the channel's slot; `shared` serves it now.
    pub(crate) fn in_cluster(cluster: &Arc<Cluster>, shared: &Arc<Shared>, channel: &[u8]) -> Self {
        cluster.handle_cloned();
        let home = Home { cluster: Arc::clone(cluster), channel: channel.into() };
        Self { at: Listening::new(shared, channel), home: Some(Box::new(home)) }
    }

    /// Goes where the channel's slot has gone. That is a reason to look: a message may have been missed on the way. The
    /// SUBSCRIBE is queued there when this returns, so a user who looks now looks after it.
    fn follow(&mut self) -> bool {
        let gone_to = self.gone_to();
        if let Some((node, channel)) = &gone_to {
            self.at = Listening::new(node, channel);
            self.at.look_again();
        }
        gone_to.is_some()
    }

    /// The node that serves the channel's slot now, if that is another one. While nobody does, who listens at a node that has ended
    /// listens nowhere: an ended connection tells nobody of a successor, nor of the client's end.
    fn gone_to(&self) -> Option<(Arc<Shared>, Box<[u8]>)> {
        let Home { cluster, channel } = self.home.as_deref()?;
        let here = self.at.server();
        let node = match cluster.node_for(Some(channel)) {
            Ok(node) if !node.is_closed() => node,
            _ if here.is_closed() => cluster.nowhere(),
            _ => return None,
        };
        (!Arc::ptr_eq(&node, here)).then(|| (node, channel.clone()))
    }

    /// Resolves when there was a reason to look since the last time.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost: the next call resolves at once.
    pub async fn changed(&mut self) {
        std::future::poll_fn(|cx| self.poll_changed(cx)).await;
    }

    /// [`changed`](Self::changed) for hand-written futures.
    pub fn poll_changed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.poll_changes(cx).map(drop)
    }

    /// [`poll_changed`](Self::poll_changed), with how many reasons there were since the last time: for who counts messages, of which
    /// several may have come before it could look.
    pub fn poll_changes(&mut self, cx: &mut Context<'_>) -> Poll<u64> {
        self.follow();
        self.at.poll_changes(cx)
    }

    /// Resolves when the server has confirmed the subscription, or refused it: see [`refusal`](Self::refusal). In a cluster that is the
    /// node that serves the channel's slot by then; where nobody does, it waits. Once the client is closed, or its runtime has
    /// ended, it resolves, too: [`is_confirmed`](Self::is_confirmed) says that nothing is confirmed, and nothing will be.
    ///
    /// # Cancel safety
    ///
    /// Safe: it only waits. What there was a reason to look for meanwhile, [`changed`](Self::changed) still tells.
    pub async fn settled(&mut self) {
        std::future::poll_fn(|cx| self.poll_settled(cx)).await;
    }

    fn poll_settled(&mut self, cx: &Context<'_>) -> Poll<()> {
        loop {
            let settled = self.at.poll_settled(cx);
            // Asked with the waker in place, so a slot that leaves after this is told of.
            if !self.follow() {
                return settled;
            }
        }
    }

    /// Whether there was a reason to look since the last time.
    pub fn has_changed(&self) -> bool {
        self.gone_to().is_some() || self.at.has_changed()
    }

    /// Whether there was a reason to look since the last time; forgets it.
    pub fn take_changed(&mut self) -> bool {
        self.take_changes() > 0
    }

    /// How many reasons to look there were since the last time; forgets them.
    pub fn take_changes(&mut self) -> u64 {
        self.follow();
        self.at.take_changes()
    }

    /// Whether the server has confirmed the subscription on the present connection.
    pub fn is_confirmed(&self) -> bool {
        self.at.is_confirmed()
    }

    /// Why the server refused, if it did (an ACL without the channel, for instance). It is asked again on the next
    /// connection; until then this subscription sees no messages.
    pub fn refusal(&self) -> Option<String> {
        self.at.refusal()
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        self.cluster.handle_dropped();
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription").field("server", &self.at.server().server()).finish_non_exhaustive()
    }
}
