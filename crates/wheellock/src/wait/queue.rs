//! The ordered waiters of this process for one thing. Pure.
//!
//! The queue knows the head, the wakers, and the waiters that the head's failure stops. It does not know which messages the head waits for:
//! those of one server, or of a majority.

use std::sync::Arc;
use std::task::Waker;

use crate::base::error::Error;
use crate::base::tickets::Tickets;

/// Waiters in order, each with a `W`.
pub(crate) struct Queue<W> {
    waiting: Tickets<Entry<W>>,
}

/// A queued waiter.
pub(crate) struct Entry<W> {
    /// Waker, while the waiter has to be woken.
    pub(crate) waker: Option<Waker>,
    /// Error of the head that fails this waiter, too.
    pub(crate) failed: Option<Arc<Error>>,
    pub(crate) waiter: W,
}

impl<W> Default for Queue<W> {
    fn default() -> Self {
        Self { waiting: Tickets::default() }
    }
}

impl<W> Queue<W> {
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Adds a waiter at the end of the queue. Returns its ticket.
    pub(crate) fn join(&mut self, waiter: W) -> u64 {
        self.waiting.push_back(Entry { waker: None, failed: None, waiter })
    }

    /// Adds a waiter before all others. Returns its ticket.
    pub(crate) fn join_first(&mut self, waiter: W) -> u64 {
        self.waiting.push_front(Entry { waker: None, failed: None, waiter })
    }

    /// Removes the waiter with this ticket.
    pub(crate) fn leave(&mut self, ticket: u64) -> Option<W> {
        self.waiting.remove(ticket).map(|entry| entry.waiter)
    }

    pub(crate) fn entry(&mut self, ticket: u64) -> Option<&mut Entry<W>> {
        self.waiting.get_mut(ticket)
    }

    pub(crate) fn get_mut(&mut self, ticket: u64) -> Option<&mut W> {
        self.waiting.get_mut(ticket).map(|entry| &mut entry.waiter)
    }

    /// Returns all waiters, in order.
    pub(crate) fn entries(&mut self) -> impl Iterator<Item = &mut Entry<W>> {
        self.waiting.values_mut()
    }

    /// Returns the waiter with this ticket and all waiters behind it, in order.
    pub(crate) fn entries_from(&mut self, ticket: u64) -> impl Iterator<Item = &mut Entry<W>> {
        self.waiting.values_from(ticket)
    }

    pub(crate) fn head(&mut self) -> Option<&mut Entry<W>> {
        self.waiting.first()
    }

    pub(crate) fn head_ticket(&self) -> Option<u64> {
        self.waiting.first_ticket()
    }

    /// Returns the ticket of the next waiter that joins at the end of the queue.
    pub(crate) fn next_ticket(&self) -> u64 {
        self.waiting.next_ticket()
    }

    /// Returns true if the waiter with this ticket is the head.
    pub(crate) fn is_head(&self, ticket: u64) -> bool {
        self.waiting.is_first(ticket)
    }

    /// Returns the head's waker.
    pub(crate) fn head_to_wake(&mut self) -> Option<Waker> {
        // A waker is used once, because a waiter stores a new one before it sleeps again.
        self.head().and_then(|head| head.waker.take())
    }

    /// Fails every waiter in the queue with the head's error. Returns the wakers.
    pub(crate) fn fail_all(&mut self, error: &Error) -> Vec<Waker> {
        // There may be a thousand waiters, so they share one copy of the error.
        let error = Arc::new(error.clone());
        let fail = |entry: &mut Entry<W>| {
            entry.failed = Some(Arc::clone(&error));
            entry.waker.take()
        };
        // Only the waiters of this moment fail. A waiter that joins later sends a request of its own.
        self.entries().filter_map(fail).collect()
    }
}
