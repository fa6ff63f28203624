//! Who waits for one thing in this process, in order. Pure. Owns who is the head, who is to be woken, and whom the head's failure
//! stops, too; what the head waits for, its user knows: messages of one server, or of a majority.

use std::sync::Arc;
use std::task::Waker;

use crate::base::error::Error;
use crate::base::tickets::Tickets;

/// Waiters, of each of whom a `W` is known.
pub(crate) struct Queue<W> {
    waiting: Tickets<Entry<W>>,
}

/// One waiter.
pub(crate) struct Entry<W> {
    /// If it has to be woken.
    pub(crate) waker: Option<Waker>,
    /// The head could not ask, and what stopped it stops this one, too.
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

    /// A waiter joins at the end of the queue. Returns its ticket.
    pub(crate) fn join(&mut self, waiter: W) -> u64 {
        self.waiting.push_back(Entry { waker: None, failed: None, waiter })
    }

    /// A waiter joins before all others.
    pub(crate) fn join_first(&mut self, waiter: W) -> u64 {
        self.waiting.push_front(Entry { waker: None, failed: None, waiter })
    }

    /// The waiter with this ticket leaves.
    pub(crate) fn leave(&mut self, ticket: u64) -> Option<W> {
        self.waiting.remove(ticket).map(|entry| entry.waiter)
    }

    pub(crate) fn entry(&mut self, ticket: u64) -> Option<&mut Entry<W>> {
        self.waiting.get_mut(ticket)
    }

    pub(crate) fn get_mut(&mut self, ticket: u64) -> Option<&mut W> {
        self.waiting.get_mut(ticket).map(|entry| &mut entry.waiter)
    }

    /// All waiters, in order.
    pub(crate) fn entries(&mut self) -> impl Iterator<Item = &mut Entry<W>> {
        self.waiting.values_mut()
    }

    /// The waiter with this ticket and those behind it, in order.
    pub(crate) fn entries_from(&mut self, ticket: u64) -> impl Iterator<Item = &mut Entry<W>> {
        self.waiting.values_from(ticket)
    }

    pub(crate) fn head(&mut self) -> Option<&mut Entry<W>> {
        self.waiting.first()
    }

    pub(crate) fn head_ticket(&self) -> Option<u64> {
        self.waiting.first_ticket()
    }

    /// Whether the waiter with this ticket is the head.
    pub(crate) fn is_head(&self, ticket: u64) -> bool {
        self.waiting.is_first(ticket)
    }

    /// The head's waker.
    pub(crate) fn head_to_wake(&mut self) -> Option<Waker> {
        self.head().and_then(|head| head.waker.take())
    }

    /// What stopped the head stops every waiter who is in the queue now. Returns who is to be woken.
    pub(crate) fn fail_all(&mut self, error: &Error) -> Vec<Waker> {
        let error = Arc::new(error.clone());
        let fail = |entry: &mut Entry<W>| {
            entry.failed = Some(Arc::clone(&error));
            entry.waker.take()
        };
        self.entries().filter_map(fail).collect()
    }
}
