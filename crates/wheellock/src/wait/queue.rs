//! The ordered waiters of this process for one thing. Pure.
//!
//! The queue knows the head, the wakers, and the waiters that the head's failure stops. It does not know which messages the head waits for:
//! those of one server, or of a majority.

use std::sync::Arc;
use std::task::Waker;

use crate::base::error::Error;
use crate::base::tickets::Tickets;

/// Waiters in order, each with a `W`. The first one is the head.
pub(crate) type Queue<W> = Tickets<Entry<W>>;

/// A queued waiter.
pub(crate) struct Entry<W> {
    /// Waker, while the waiter has to be woken.
    pub(crate) waker: Option<Waker>,
    /// Error of the head that fails this waiter, too.
    pub(crate) failed: Option<Arc<Error>>,
    pub(crate) waiter: W,
}

impl<W> Queue<W> {
    /// Adds a waiter at the end of the queue. Returns its ticket.
    pub(crate) fn join(&mut self, waiter: W) -> u64 {
        self.push_back(Entry { waker: None, failed: None, waiter })
    }

    /// Adds a waiter before all others. Returns its ticket.
    pub(crate) fn join_first(&mut self, waiter: W) -> u64 {
        self.push_front(Entry { waker: None, failed: None, waiter })
    }

    /// Removes the waiter with this ticket.
    pub(crate) fn leave(&mut self, ticket: u64) -> Option<W> {
        self.remove(ticket).map(|entry| entry.waiter)
    }

    /// Returns the waiter with this ticket.
    pub(crate) fn waiter(&mut self, ticket: u64) -> Option<&mut W> {
        self.get_mut(ticket).map(|entry| &mut entry.waiter)
    }

    /// Returns the head's waker.
    pub(crate) fn head_to_wake(&mut self) -> Option<Waker> {
        // A waker is used once, because a waiter stores a new one before it sleeps again.
        self.first().and_then(|head| head.waker.take())
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
        self.values_mut().filter_map(fail).collect()
    }
}
