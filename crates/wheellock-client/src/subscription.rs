//! Interest in a channel, as its holder sees it. What is wanted and what is confirmed is kept by `channels`.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::connection::{Phase, Shared};
use crate::topology::Cluster;

/// Interest in a channel; ends when dropped.
///
/// A subscription is a coalesced wake-up, not a queue: it tells that there was a reason to look, however many
/// messages there were. Reasons are messages, and everything that may have hidden one: a lost connection, a refusal.
/// So whoever looks once after subscribing, and again whenever [`changed`](Self::changed) resolves, misses nothing.
pub struct Subscription {
    at: Listening,
    home: Option<Home>,
}

/// In a cluster: where the subscription belongs.
struct Home {
    cluster: Arc<Cluster>,
    channel: Box<[u8]>,
}

/// Interest in a channel of one server.
struct Listening {
    shared: Arc<Shared>,
    index: u32,
    waiter: u64,
    seen: u64,
}

impl Subscription {
    pub(crate) fn new(shared: &Arc<Shared>, channel: &[u8]) -> Self {
        Self { at: Listening::new(shared, channel), home: None }
    }

    /// In a cluster the subscription follows the channel's slot; `shared` serves it now.
    pub(crate) fn in_cluster(cluster: &Arc<Cluster>, shared: &Arc<Shared>, channel: &[u8]) -> Self {
        cluster.handle_cloned();
        let home = Home { cluster: Arc::clone(cluster), channel: channel.into() };
        Self { at: Listening::new(shared, channel), home: Some(home) }
    }

    /// Goes where the channel's slot has gone. That is a reason to look: a message may have been missed on the way. The
    /// SUBSCRIBE is queued there when this returns, so whoever looks now looks after it.
    fn follow(&mut self) -> bool {
        let Some(Home { cluster, channel }) = &self.home else { return false };
        let node = cluster.node_for(Some(channel)).ok().filter(|node| !Arc::ptr_eq(node, &self.at.shared));
        match node {
            Some(node) => {
                self.at = Listening::new(&node, channel);
                true
            }
            None => false,
        }
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
        if self.follow() { Poll::Ready(()) } else { self.at.poll_changed(cx) }
    }

    /// Resolves when the server has confirmed the subscription, or refused it: see [`refusal`](Self::refusal).
    ///
    /// # Cancel safety
    ///
    /// Safe: it only waits.
    pub async fn settled(&self) {
        std::future::poll_fn(|cx| {
            let at = &self.at;
            let mut state = at.shared.lock();
            let channels = state.pipeline.channels();
            if channels.is_confirmed(at.index) || channels.refusal(at.index).is_some() {
                return Poll::Ready(());
            }
            channels.wait(at.index, at.waiter, cx.waker());
            Poll::Pending
        })
        .await;
    }

    /// Whether there was a reason to look since the last time; forgets it.
    pub fn take_changed(&mut self) -> bool {
        let followed = self.follow();
        let count = self.at.shared.lock().pipeline.channels().count(self.at.index);
        followed || std::mem::replace(&mut self.at.seen, count) != count
    }

    /// Whether the server has confirmed the subscription on the present connection.
    pub fn is_confirmed(&self) -> bool {
        self.at.shared.lock().pipeline.channels().is_confirmed(self.at.index)
    }

    /// Why the server refused, if it did (an ACL without the channel, for instance). It is asked again on the next
    /// connection; until then this subscription sees no messages.
    pub fn refusal(&self) -> Option<String> {
        self.at.shared.lock().pipeline.channels().refusal(self.at.index)
    }
}

impl Listening {
    fn new(shared: &Arc<Shared>, channel: &[u8]) -> Self {
        let now = shared.config.timer.now();
        let mut state = shared.lock();
        let index = state.pipeline.channels().want(channel);
        let waiter = state.new_waiter();
        // The call that usually follows takes the SUBSCRIBE along in its own write; the driver makes sure of it.
        let ready = matches!(state.phase, Phase::Ready(_));
        let queued = ready && state.pipeline.reconcile(index, now);
        let driver = if queued { state.driver_to_wake() } else { None };
        let count = state.pipeline.channels().count(index);
        drop(state);
        if let Some(driver) = driver {
            driver.wake();
        }
        shared.handle_cloned();
        Self { shared: Arc::clone(shared), index, waiter, seen: count }
    }

    fn poll_changed(&mut self, cx: &Context<'_>) -> Poll<()> {
        let mut state = self.shared.lock();
        let channels = state.pipeline.channels();
        let count = channels.count(self.index);
        if count == self.seen {
            channels.wait(self.index, self.waiter, cx.waker());
            return Poll::Pending;
        }
        self.seen = count;
        Poll::Ready(())
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let now = self.shared.config.timer.now();
        let mut state = self.shared.lock();
        state.pipeline.channels().unwant(self.index, self.waiter);
        let ready = matches!(state.phase, Phase::Ready(_));
        let queued = ready && state.pipeline.reconcile(self.index, now);
        let driver = if queued { state.driver_to_wake() } else { None };
        drop(state);
        if let Some(driver) = driver {
            driver.wake();
        }
        self.shared.handle_dropped();
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        self.cluster.handle_dropped();
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription").field("server", &self.at.shared.server()).finish_non_exhaustive()
    }
}
