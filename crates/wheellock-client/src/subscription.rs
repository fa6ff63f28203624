//! Interest in a channel, as its holder sees it. What is wanted and what is confirmed is kept by `channels`.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::connection::{Phase, Shared};

/// Interest in a channel; ends when dropped.
///
/// A subscription is a coalesced wake-up, not a queue: it tells that there was a reason to look, however many
/// messages there were. Reasons are messages, and everything that may have hidden one: a lost connection, a refusal.
/// So whoever looks once after subscribing, and again whenever [`changed`](Self::changed) resolves, misses nothing.
pub struct Subscription {
    shared: Arc<Shared>,
    index: u32,
    waiter: u64,
    seen: u64,
}

impl Subscription {
    pub(crate) fn new(shared: &Arc<Shared>, channel: &[u8]) -> Self {
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

    /// Resolves when the server has confirmed the subscription, or refused it: see [`refusal`](Self::refusal).
    ///
    /// # Cancel safety
    ///
    /// Safe: it only waits.
    pub async fn settled(&self) {
        std::future::poll_fn(|cx| {
            let mut state = self.shared.lock();
            let channels = state.pipeline.channels();
            if channels.is_confirmed(self.index) || channels.refusal(self.index).is_some() {
                return Poll::Ready(());
            }
            channels.wait(self.index, self.waiter, cx.waker());
            Poll::Pending
        })
        .await;
    }

    /// Whether there was a reason to look since the last time; forgets it.
    pub fn take_changed(&mut self) -> bool {
        let count = self.shared.lock().pipeline.channels().count(self.index);
        std::mem::replace(&mut self.seen, count) != count
    }

    /// Whether the server has confirmed the subscription on the present connection.
    pub fn is_confirmed(&self) -> bool {
        self.shared.lock().pipeline.channels().is_confirmed(self.index)
    }

    /// Why the server refused, if it did (an ACL without the channel, for instance). It is asked again on the next
    /// connection; until then this subscription sees no messages.
    pub fn refusal(&self) -> Option<String> {
        self.shared.lock().pipeline.channels().refusal(self.index)
    }
}

impl Drop for Subscription {
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

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription").field("server", &self.shared.server()).finish_non_exhaustive()
    }
}
