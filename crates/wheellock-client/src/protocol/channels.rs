//! What we want to be subscribed to, and what the server has confirmed. Pure: says which order to send next.
//!
//! Every channel is reconciled by itself: wanted against confirmed. At most one order per channel is under way, so a
//! confirmation always answers that order, and after a reconnect nothing needs to be replayed: everything is simply
//! unconfirmed again. A message is a wake-up and is only counted, so memory is bounded by the number of channels, and
//! nothing is lost by a slow waiter.

use std::collections::HashMap;
use std::sync::Arc;
use std::task::Waker;

use slab::Slab;

use crate::base::waiting::Waiting;

/// What to send for a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Subscribe,
    Unsubscribe,
}

#[derive(Default)]
pub(crate) struct Channels {
    by_name: HashMap<Arc<[u8]>, u32>,
    entries: Slab<Channel>,
    /// An order was put off, and was not queued again yet.
    any_put_off: bool,
}

/// Small, for every waiter of a fair lock has one of its own.
struct Channel {
    name: Arc<[u8]>,
    /// How many subscriptions hold this channel.
    wanted: u32,
    confirmed: Confirmed,
    /// Messages, and every other reason to look again: a lost connection, a refusal.
    count: u64,
    refused: Option<Box<str>>,
    waiting: Waiting,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Confirmed {
    No,
    Subscribing,
    Yes,
    Unsubscribing,
}

impl Channels {
    /// Adds one subscription to `name`; returns the channel's index.
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
            waiting: Waiting::Nobody,
        };
        let index = u32::try_from(self.entries.insert(channel)).unwrap_or(u32::MAX);
        self.by_name.insert(name, index);
        index
    }

    /// Takes one subscription away.
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

    /// The order that brings a channel closer to what is wanted, if one is due. The caller sends it.
    pub(crate) fn next_order(&mut self, index: u32) -> Option<(Order, Arc<[u8]>)> {
        let channel = self.get_mut(index)?;
        let order = match (channel.wanted > 0, channel.confirmed) {
            (true, Confirmed::No) if channel.refused.is_none() => {
                channel.confirmed = Confirmed::Subscribing;
                Order::Subscribe
            }
            (false, Confirmed::Yes) => {
                channel.confirmed = Confirmed::Unsubscribing;
                Order::Unsubscribe
            }
            _ => return None,
        };
        Some((order, Arc::clone(&channel.name)))
    }

    /// The server confirmed a subscription. That is no reason to look: whatever was called after subscribing reached
    /// the server after it, on this connection too.
    pub(crate) fn on_subscribed(&mut self, index: u32, wakers: &mut Vec<Waker>) {
        if let Some(channel) = self.get_mut(index) {
            channel.confirmed = Confirmed::Yes;
            channel.waiting.wake(wakers);
        }
    }

    /// The server confirmed the end of a subscription, or ended it by itself. Whoever still wants it, or wants it again,
    /// may have missed a message: it is to look once the SUBSCRIBE is queued, which the caller does next.
    pub(crate) fn on_unsubscribed(&mut self, index: u32, wakers: &mut Vec<Waker>) {
        if let Some(channel) = self.get_mut(index) {
            channel.confirmed = Confirmed::No;
            if channel.wanted > 0 {
                channel.wake(wakers);
            }
            self.forget_if_unused(index);
        }
    }

    /// The server refused to subscribe. Waiters are told once; it is asked again on the next connection.
    pub(crate) fn on_refused(&mut self, index: u32, why: String, wakers: &mut Vec<Waker>) {
        if let Some(channel) = self.get_mut(index) {
            channel.confirmed = Confirmed::No;
            channel.refused = Some(why.into());
            channel.wake(wakers);
            self.forget_if_unused(index);
        }
    }

    /// The server does nothing now but run a script, so nothing has changed there. The order is due again when it
    /// [is free](Self::free_again).
    pub(crate) fn on_put_off(&mut self, index: u32) {
        self.any_put_off = true;
        if let Some(channel) = self.get_mut(index) {
            channel.confirmed = match channel.confirmed {
                Confirmed::Subscribing | Confirmed::No => Confirmed::No,
                Confirmed::Unsubscribing | Confirmed::Yes => Confirmed::Yes,
            };
            self.forget_if_unused(index);
        }
    }

    /// Whether an order was put off.
    #[inline]
    pub(crate) fn any_put_off(&self) -> bool {
        self.any_put_off
    }

    /// The server has done what it was asked. Returns the channels for which an order is due; the caller sends them.
    /// Whoever waits for messages of one is to look once its SUBSCRIBE is queued: what was asked meanwhile came before it.
    pub(crate) fn free_again(&mut self, wakers: &mut Vec<Waker>) -> Vec<u32> {
        self.any_put_off = false;
        for (_, channel) in &mut self.entries {
            if channel.wanted > 0 && channel.confirmed == Confirmed::No && channel.refused.is_none() {
                channel.wake(wakers);
            }
        }
        self.indices()
    }

    /// A message arrived. Returns false for a channel that nobody knows.
    pub(crate) fn on_message(&mut self, name: &[u8], wakers: &mut Vec<Waker>) -> bool {
        match self.find(name).and_then(|index| self.get_mut(index)) {
            Some(channel) => {
                channel.wake(wakers);
                true
            }
            None => false,
        }
    }

    /// The connection is gone: nothing is confirmed any more. Waiters look again; on the next connection the
    /// subscriptions go first, so that their look comes after them.
    pub(crate) fn on_disconnect(&mut self, wakers: &mut Vec<Waker>) {
        self.any_put_off = false;
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

    /// Whoever waits is to look, and a refusal is forgotten.
    pub(crate) fn look_again(&mut self, wakers: &mut Vec<Waker>) {
        for (_, channel) in &mut self.entries {
            channel.refused = None;
            channel.wake(wakers);
        }
    }

    /// The names of those that the server has refused.
    pub(crate) fn refused(&self) -> Vec<Arc<[u8]>> {
        let refused = self.entries.iter().filter(|(_, channel)| channel.refused.is_some());
        refused.map(|(_, channel)| Arc::clone(&channel.name)).collect()
    }

    /// A refusal may be over, and is forgotten. Whoever waits for messages of that channel is to look. Returns the channel.
    pub(crate) fn forget_refusal(&mut self, name: &[u8], wakers: &mut Vec<Waker>) -> Option<u32> {
        let index = self.find(name)?;
        let channel = self.get_mut(index)?;
        channel.refused.take()?;
        channel.wake(wakers);
        Some(index)
    }

    /// Every channel's index.
    pub(crate) fn indices(&self) -> Vec<u32> {
        self.by_name.values().copied().collect()
    }

    pub(crate) fn find(&self, name: &[u8]) -> Option<u32> {
        self.by_name.get(name).copied()
    }

    /// How often waiters of this channel were told to look.
    pub(crate) fn count(&self, index: u32) -> u64 {
        self.get(index).map_or(0, |channel| channel.count)
    }

    pub(crate) fn is_confirmed(&self, index: u32) -> bool {
        self.get(index).is_some_and(|channel| channel.confirmed == Confirmed::Yes)
    }

    /// Whether any subscription is confirmed.
    pub(crate) fn any_confirmed(&self) -> bool {
        self.entries.iter().any(|(_, channel)| channel.confirmed == Confirmed::Yes)
    }

    /// Whether an UNSUBSCRIBE is under way.
    pub(crate) fn is_being_ended(&self, index: u32) -> bool {
        self.get(index).is_some_and(|channel| channel.confirmed == Confirmed::Unsubscribing)
    }

    pub(crate) fn refusal(&self, index: u32) -> Option<String> {
        self.get(index)?.refused.as_deref().map(str::to_owned)
    }

    /// Leaves a waker for the next count; replaces the one that `waiter` left before.
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
        let unused = |channel: &Channel| channel.wanted == 0 && channel.confirmed == Confirmed::No;
        if self.get(index).is_some_and(unused) {
            let channel = self.entries.remove(index as usize);
            self.by_name.remove(&channel.name);
        }
    }
}

impl Channel {
    fn wake(&mut self, wakers: &mut Vec<Waker>) {
        self.count += 1;
        self.waiting.wake(wakers);
    }
}

#[cfg(test)]
mod tests;
