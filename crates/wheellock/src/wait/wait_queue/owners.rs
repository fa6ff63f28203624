//! Who waits in whose name: several tasks of this process may present the same owner, and the server knows of that one alone.

use std::task::Waker;

use super::WaitQueue;

impl WaitQueue {
    /// This owner has the lock now: who waits for it in that owner's name need not wait. The first of them asks at once. Returns its waker.
    pub(crate) fn let_owner_ask(&mut self, owner: u64) -> Option<Waker> {
        let mut entries = self.queue.entries();
        let entry = entries.find(|entry| entry.waiter.manner.is_for(owner) && !entry.waiter.asks)?;
        entry.waiter.may_ask = true;
        entry.waker.take()
    }

    /// Whether somebody waits in this owner's name.
    pub(crate) fn is_wanted_by(&mut self, owner: u64) -> bool {
        self.queue.entries().any(|entry| entry.waiter.manner.is_for(owner))
    }
}

#[cfg(test)]
mod tests;
