//! Waiters of one owner.
//!
//! Several tasks of this process may present the same owner. The server does not distinguish them.

use std::task::Waker;

use super::WaitQueue;

impl WaitQueue {
    /// Makes the first waiter of this owner poll at once, because the owner has the lock now. Returns its waker.
    pub(crate) fn allow_owner_poll(&mut self, owner: u64) -> Option<Waker> {
        let mut entries = self.queue.values_mut();
        let entry = entries.find(|entry| entry.waiter.manner.is_for(owner) && !entry.waiter.is_polling())?;
        entry.waiter.allow_poll(self.let_in);
        entry.waker.take()
    }

    /// Returns true if a waiter of this owner is in the queue.
    pub(crate) fn is_wanted_by(&mut self, owner: u64) -> bool {
        self.queue.values_mut().any(|entry| entry.waiter.manner.is_for(owner))
    }
}

#[cfg(test)]
mod tests;
