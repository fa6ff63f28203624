//! A subscriber's interest in a channel of one server.
//!
//! This module does not keep the wanted and the confirmed subscriptions; `channels` does.

use std::sync::{Arc, MutexGuard};
use std::task::{Context, Poll};
use std::time::Instant;

use crate::base::panics::wake_all;
use crate::connection::link::Link;
use crate::connection::{Shared, State};

/// Interest in a channel of one server.
pub(crate) struct Listening {
    link: Link,
    index: u32,
    waiter: u64,
    seen: u64,
    /// Number of the wake-up up to which the payloads were taken.
    taken: u64,
}

impl Listening {
    /// Subscribes to a channel. With `keeps_payloads`, the payloads of its messages are kept.
    pub(crate) fn new(shared: &Arc<Shared>, channel: &[u8], keeps_payloads: bool) -> Self {
        let now = shared.config.timer.now();
        let mut state = shared.lock();
        let index = state.pipeline.channels().want(channel);
        if keeps_payloads {
            // Before the SUBSCRIBE is sent. Otherwise a message could arrive first, and its payload would be lost.
            state.pipeline.channels().keep_payloads(index);
        }
        let waiter = state.changes.new_waiter();
        // The call that usually follows sends the SUBSCRIBE in its own write. The driver sends it if no call follows.
        let count = state.pipeline.channels().count(index);
        reconcile(state, index, now);
        Self { link: Link::to(shared), index, waiter, seen: count, taken: count }
    }

    /// Returns the number of changes since the last poll.
    pub(crate) fn poll_changes(&mut self, cx: &Context<'_>) -> Poll<u64> {
        let mut state = self.link.lock();
        let channels = state.pipeline.channels();
        let count = channels.count(self.index);
        if count == self.seen {
            channels.wait(self.index, self.waiter, cx.waker());
            return Poll::Pending;
        }
        Poll::Ready(count.wrapping_sub(std::mem::replace(&mut self.seen, count)))
    }

    /// Waits until the server has confirmed or refused the subscription, or the connection has ended.
    pub(crate) fn poll_settled(&self, cx: &Context<'_>) -> Poll<()> {
        let mut state = self.link.lock();
        let has_ended = state.phase.is_closed();
        let channels = state.pipeline.channels();
        if has_ended || channels.is_confirmed(self.index) || channels.refusal(self.index).is_some() {
            return Poll::Ready(());
        }
        channels.wait(self.index, self.waiter, cx.waker());
        Poll::Pending
    }

    /// Records a change that the server does not know of.
    pub(crate) fn mark_changed(&mut self) {
        self.seen = self.seen.wrapping_sub(1);
    }

    pub(crate) fn has_changed(&self) -> bool {
        self.link.lock().pipeline.channels().count(self.index) != self.seen
    }

    pub(crate) fn take_changes(&mut self) -> u64 {
        let count = self.link.lock().pipeline.channels().count(self.index);
        count.wrapping_sub(std::mem::replace(&mut self.seen, count))
    }

    /// Returns the kept payloads since the last call.
    pub(crate) fn take_payloads(&mut self) -> Vec<Box<[u8]>> {
        let mut state = self.link.lock();
        let channels = state.pipeline.channels();
        let since = std::mem::replace(&mut self.taken, channels.count(self.index));
        channels.payloads_since(self.index, since)
    }

    pub(crate) fn is_confirmed(&self) -> bool {
        self.link.lock().pipeline.channels().is_confirmed(self.index)
    }

    pub(crate) fn refusal(&self) -> Option<String> {
        self.link.lock().pipeline.channels().refusal(self.index)
    }

    /// Returns the server that has the channel.
    pub(crate) fn server(&self) -> &Arc<Shared> {
        &self.link
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let now = self.link.config.timer.now();
        let mut state = self.link.lock();
        state.pipeline.channels().unwant(self.index, self.waiter);
        reconcile(state, self.index, now);
    }
}

/// Queues the order that the channel needs, and wakes the driver for it.
fn reconcile(mut state: MutexGuard<'_, State>, index: u32, now: Instant) {
    let driver = if state.pipeline.reconcile(index, now) { state.driver.wake() } else { None };
    drop(state);
    wake_all(driver);
}
