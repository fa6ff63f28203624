//! Wanted and confirmed subscriptions of one connection.
//!
//! This module sends nothing. It returns the next order for each channel, and the pipeline sends it.
//!
//! Each channel compares its own wanted state with its confirmed state. At most one order per channel is in flight,
//! so a confirmation always answers that order. After a reconnect every channel is unconfirmed again, and nothing
//! needs a replay. A message is a wake-up, and the channel only counts it. Memory is therefore bounded by the number
//! of channels, and a slow waiter loses no message. A channel keeps a few short payloads if a subscriber wants them.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::task::Waker;

use slab::Slab;

use crate::base::waiting::Waiting;

/// The order to send for a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Subscribe,
    Unsubscribe,
}

#[derive(Default)]
pub(crate) struct Channels {
    by_name: HashMap<Arc<[u8]>, u32>,
    entries: Slab<Channel>,
    /// True if the server postponed an order that has not been queued again yet.
    any_postponed: bool,
}

/// One channel. It is small because every waiter of a fair lock has its own channel.
struct Channel {
    name: Arc<[u8]>,
    /// The number of subscriptions to this channel.
    wanted: u32,
    confirmed: Confirmed,
    /// The number of wake-ups. Messages count, and so do lost connections, refusals and other reasons to poll again.
    count: u64,
    refused: Option<Box<str>>,
    waiting: Waiting,
    /// The latest payloads, if a subscriber wants them. Boxed, because few channels keep any.
    payloads: Option<Box<Payloads>>,
}

/// Payloads of a channel, each with the number of its wake-up.
type Payloads = VecDeque<(u64, Box<[u8]>)>;

/// Number of payloads that a channel keeps. Older payloads are dropped, so a flood of messages takes no memory.
pub(crate) const MOST_PAYLOADS: usize = 8;

/// Longest payload that a channel keeps, in bytes. Of a longer message nothing arrives but an empty payload.
pub(crate) const LONGEST_PAYLOAD: usize = 1024;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Confirmed {
    No,
    Subscribing,
    Yes,
    Unsubscribing,
}

impl Channels {
    /// Adds one subscription to `name` and returns the channel's index.
    pub(crate) fn want(&mut self, name: &[u8]) -> u32 {
        if let Some(&index) = self.by_name.get(name) {
            if let Some(channel) = self.get_mut(index) {
                channel.wanted += 1;
            }
            return index;
        }
        let name: Arc<[u8]> = name.into();
        let channel = Channel {
            name: Arc::clone(&name),
            wanted: 1,
            confirmed: Confirmed::No,
            count: 0,
            refused: None,
            waiting: Waiting::default(),
            payloads: None,
        };
        let index = u32::try_from(self.entries.insert(channel)).unwrap_or(u32::MAX);
        self.by_name.insert(name, index);
        index
    }

    /// Keeps the payloads of this channel's messages from now on.
    pub(crate) fn keep_payloads(&mut self, index: u32) {
        if let Some(channel) = self.get_mut(index) {
            channel.payloads.get_or_insert_default();
        }
    }

    /// Returns the kept payloads of the messages after wake-up number `since`.
    pub(crate) fn payloads_since(&self, index: u32, since: u64) -> Vec<Box<[u8]>> {
        let kept = self.get(index).and_then(|channel| channel.payloads.as_deref());
        let later = kept.into_iter().flatten().filter(|(number, _)| *number > since);
        later.map(|(_, payload)| payload.clone()).collect()
    }

    /// Removes one subscription, and the waker of `waiter`.
    pub(crate) fn unwant(&mut self, index: u32, waiter: u64) {
        if let Some(channel) = self.get_mut(index) {
            channel.wanted -= 1;
            drop(channel.waiting.forget(waiter));
            if channel.wanted == 0 {
                channel.refused = None;
                self.forget_if_unused(index);
            }
        }
    }

    /// Returns the order that brings the channel closer to the wanted state, if an order is due. The caller sends the
    /// order.
    pub(crate) fn next_order(&mut self, index: u32) -> Option<(Order, Arc<[u8]>)> {
        let channel = self.get_mut(index)?;
        let order = match (channel.wanted > 0, channel.confirmed) {
            // After a refusal each reconciliation would otherwise repeat the SUBSCRIBE, and this server would refuse
            // it again.
            (true, Confirmed::No) if channel.refused.is_none() => {
                channel.confirmed = Confirmed::Subscribing;
                Order::Subscribe
            }
            // A subscription that is not confirmed yet cannot end. Its confirmation makes this order due.
            (false, Confirmed::Yes) => {
                channel.confirmed = Confirmed::Unsubscribing;
                Order::Unsubscribe
            }
            _ => return None,
        };
        Some((order, Arc::clone(&channel.name)))
    }

    /// Records that the server confirmed a subscription. The count stays as it is. A request made after subscribing
    /// also reached the server after the SUBSCRIBE, so waiters need no new request.
    pub(crate) fn on_subscribed(&mut self, index: u32, wakers: &mut Vec<Waker>) {
        if let Some(channel) = self.get_mut(index) {
            channel.confirmed = Confirmed::Yes;
            channel.waiting.wake(wakers);
        }
    }

    /// Records that the server confirmed the end of a subscription, or ended the subscription by itself. Remaining
    /// subscribers may have missed a message, so they are woken. Their next request must follow the SUBSCRIBE, which
    /// the caller queues next.
    pub(crate) fn on_unsubscribed(&mut self, index: u32, wakers: &mut Vec<Waker>) {
        if let Some(channel) = self.get_mut(index) {
            channel.confirmed = Confirmed::No;
            if channel.wanted > 0 {
                channel.wake(wakers);
            }
            self.forget_if_unused(index);
        }
    }

    /// Records that the server refused a subscription, and wakes the waiters once. The next connection subscribes
    /// again.
    pub(crate) fn on_refused(&mut self, index: u32, why: String, wakers: &mut Vec<Waker>) {
        if let Some(channel) = self.get_mut(index) {
            channel.confirmed = Confirmed::No;
            channel.refused = Some(why.into());
            channel.wake(wakers);
            // All subscribers may have left while the SUBSCRIBE was in flight.
            self.forget_if_unused(index);
        }
    }

    /// Records that the server postponed an order because a script is running. The subscription on the server is
    /// unchanged. The order is due again when the [server is free](Self::on_server_free).
    pub(crate) fn on_postponed(&mut self, index: u32) {
        self.any_postponed = true;
        if let Some(channel) = self.get_mut(index) {
            channel.confirmed = match channel.confirmed {
                Confirmed::Subscribing | Confirmed::No => Confirmed::No,
                Confirmed::Unsubscribing | Confirmed::Yes => Confirmed::Yes,
            };
            self.forget_if_unused(index);
        }
    }

    /// Returns true if the server postponed an order.
    #[inline]
    pub(crate) fn any_postponed(&self) -> bool {
        self.any_postponed
    }

    /// Records that the server executes commands again. Returns all channels; the caller sends the orders that are
    /// due. Wakes the waiters of channels whose SUBSCRIBE was postponed. Their earlier requests reached the server
    /// before the SUBSCRIBE.
    pub(crate) fn on_server_free(&mut self, wakers: &mut Vec<Waker>) -> Vec<u32> {
        self.any_postponed = false;
        for (_, channel) in &mut self.entries {
            if channel.wanted > 0 && channel.confirmed == Confirmed::No && channel.refused.is_none() {
                channel.wake(wakers);
            }
        }
        self.indices()
    }

    /// Records a message. Returns false if the channel is unknown.
    pub(crate) fn on_message(&mut self, name: &[u8], payload: &[u8], wakers: &mut Vec<Waker>) -> bool {
        match self.find(name).and_then(|index| self.get_mut(index)) {
            Some(channel) => {
                channel.wake(wakers);
                channel.keep(payload);
                true
            }
            None => false,
        }
    }

    /// Marks every channel as unconfirmed and wakes all waiters. The next connection sends the subscriptions first,
    /// so the waiters' requests reach the server after them.
    pub(crate) fn on_disconnect(&mut self, wakers: &mut Vec<Waker>) {
        // The next connection sends every order anew, so no order is postponed. Its user or its server may permit a
        // refused channel.
        self.any_postponed = false;
        for (_, channel) in &mut self.entries {
            channel.confirmed = Confirmed::No;
            channel.refused = None;
            channel.wake(wakers);
        }
        let by_name = &mut self.by_name;
        self.entries.retain(|_, channel| {
            let keep = channel.wanted > 0;
            if !keep {
                by_name.remove(&channel.name);
            }
            keep
        });
    }

    /// Forgets all refusals and wakes all waiters.
    pub(crate) fn recheck(&mut self, wakers: &mut Vec<Waker>) {
        for (_, channel) in &mut self.entries {
            channel.refused = None;
            channel.wake(wakers);
        }
    }

    /// Returns the names of the channels that the server refused.
    pub(crate) fn refused(&self) -> Vec<Arc<[u8]>> {
        let refused = self.entries.iter().filter(|(_, channel)| channel.refused.is_some());
        refused.map(|(_, channel)| Arc::clone(&channel.name)).collect()
    }

    /// Forgets the refusal of one channel, wakes the channel's waiters and returns its index. Returns `None` if the
    /// channel was not refused.
    pub(crate) fn forget_refusal(&mut self, name: &[u8], wakers: &mut Vec<Waker>) -> Option<u32> {
        let index = self.find(name)?;
        let channel = self.get_mut(index)?;
        channel.refused.take()?;
        // The subscribers have received no message since the refusal.
        channel.wake(wakers);
        Some(index)
    }

    /// Returns the index of every channel, in the same order in every run.
    pub(crate) fn indices(&self) -> Vec<u32> {
        self.entries.iter().filter_map(|(index, _)| u32::try_from(index).ok()).collect()
    }

    pub(crate) fn find(&self, name: &[u8]) -> Option<u32> {
        self.by_name.get(name).copied()
    }

    /// Returns the number of wake-ups of this channel.
    pub(crate) fn count(&self, index: u32) -> u64 {
        self.get(index).map_or(0, |channel| channel.count)
    }

    pub(crate) fn is_confirmed(&self, index: u32) -> bool {
        self.get(index).is_some_and(|channel| channel.confirmed == Confirmed::Yes)
    }

    /// Returns true if at least one subscription is confirmed.
    pub(crate) fn any_confirmed(&self) -> bool {
        self.entries.iter().any(|(_, channel)| channel.confirmed == Confirmed::Yes)
    }

    /// Returns true if an UNSUBSCRIBE is in flight.
    pub(crate) fn is_being_ended(&self, index: u32) -> bool {
        self.get(index).is_some_and(|channel| channel.confirmed == Confirmed::Unsubscribing)
    }

    pub(crate) fn refusal(&self, index: u32) -> Option<String> {
        self.get(index)?.refused.as_deref().map(str::to_owned)
    }

    /// Stores a waker for the next wake-up. It replaces the previous waker of `waiter`.
    pub(crate) fn wait(&mut self, index: u32, waiter: u64, waker: &Waker) {
        if let Some(channel) = self.get_mut(index) {
            channel.waiting.add(waiter, waker);
        }
    }

    fn get(&self, index: u32) -> Option<&Channel> {
        self.entries.get(index as usize)
    }

    fn get_mut(&mut self, index: u32) -> Option<&mut Channel> {
        self.entries.get_mut(index as usize)
    }

    fn forget_if_unused(&mut self, index: u32) {
        // A channel with an order in flight must stay. Its confirmation would otherwise reach the next channel at
        // this index.
        let unused = |channel: &Channel| channel.wanted == 0 && channel.confirmed == Confirmed::No;
        if self.get(index).is_some_and(unused) {
            let channel = self.entries.remove(index as usize);
            self.by_name.remove(&channel.name);
        }
    }
}

impl Channel {
    fn wake(&mut self, wakers: &mut Vec<Waker>) {
        // A subscriber that is not waiting now finds the change by this count.
        self.count += 1;
        self.waiting.wake(wakers);
    }

    /// Keeps the payload of the latest wake-up, if a subscriber wants it.
    fn keep(&mut self, payload: &[u8]) {
        let Some(payloads) = &mut self.payloads else { return };
        if payloads.len() >= MOST_PAYLOADS {
            payloads.pop_front();
        }
        // A copy, because a part of the read buffer would keep the whole buffer alive.
        payloads.push_back((self.count, payload.into()));
    }
}

#[cfg(test)]
mod tests;
