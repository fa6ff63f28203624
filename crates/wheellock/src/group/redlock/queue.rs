//! The waiters of this process for one name, in order.
//!
//! Only the head polls the servers, so tasks of one process never split the members between them. This module owns the
//! state that all waiters share. It sends no request.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use wheellock_client::Timer;

use super::releases::Subscriptions;
use crate::base::error::Error;
use crate::request::acquire::Wait;
use crate::wait::queue::{Entry, Queue as Waiters};

#[derive(Default)]
pub(super) struct Queue {
    shared: Mutex<Shared>,
}

#[derive(Default)]
struct Shared {
    waiters: Waiters<()>,
    /// Subscriptions of a head that left, kept for the next head. Otherwise each head subscribes and polls once more
    /// for it.
    subscriptions: Option<Subscriptions>,
    /// The lock was held at the last reply while a waiter was queued, by this process or by another.
    held: bool,
}

impl Queue {
    /// Waits until all earlier waiters have left. Returns `None` if the wait ended first. Fails with the error of a head
    /// that could not poll the servers.
    pub(super) async fn turn(&self, timer: &Timer, wait: Wait) -> Result<Option<QuorumWaiter<'_>>, Error> {
        let mut waiter = self.join();
        let turn = std::future::poll_fn(|cx| waiter.poll_turn(cx.waker()));
        match wait.deadline() {
            Some(deadline) => match timer.timeout_at(deadline, turn).await {
                Ok(turn) => turn?,
                Err(_) => return Ok(None),
            },
            None => turn.await?,
        }
        Ok(Some(waiter))
    }

    fn join(&self) -> QuorumWaiter<'_> {
        QuorumWaiter { ticket: self.shared().waiters.join(()), queue: self, subscriptions: None }
    }

    pub(super) fn on_held(&self) {
        let mut shared = self.shared();
        shared.held = !shared.waiters.is_empty();
    }

    pub(super) fn knows_held(&self) -> bool {
        self.shared().held
    }

    /// Fails all waiters, because the servers do not reply. No waiter knows any more whether the lock is held.
    pub(super) fn fail_all(&self, error: &Error) {
        let mut shared = self.shared();
        shared.held = false;
        let woken = shared.waiters.fail_all(error);
        drop(shared);
        woken.into_iter().for_each(Waker::wake);
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A queued waiter, which leaves the queue on drop. The head polls for all waiters.
pub(super) struct QuorumWaiter<'a> {
    queue: &'a Queue,
    ticket: u64,
    /// The subscriptions, which the head takes over when its turn begins.
    pub(super) subscriptions: Option<Subscriptions>,
}

impl QuorumWaiter<'_> {
    fn poll_turn(&mut self, waker: &Waker) -> Poll<Result<(), Error>> {
        let mut shared = self.queue.shared();
        let is_head = shared.waiters.is_first(self.ticket);
        if let Some(Entry { waker: to_wake, failed, .. }) = shared.waiters.get_mut(self.ticket) {
            if let Some(error) = failed {
                return Poll::Ready(Err(Error::clone(error)));
            }
            if !is_head {
                *to_wake = Some(waker.clone());
                return Poll::Pending;
            }
        }
        self.subscriptions = shared.subscriptions.take();
        Poll::Ready(Ok(()))
    }
}

impl Drop for QuorumWaiter<'_> {
    fn drop(&mut self) {
        let mut shared = self.queue.shared();
        shared.waiters.leave(self.ticket);
        // Dropping subscriptions may write to a socket, so drop them only after unlocking.
        let (mut next, mut over) = (None, None);
        if shared.waiters.is_empty() {
            over = shared.subscriptions.take();
            // The last reply will soon be out of date, and the next waiter polls anyway.
            shared.held = false;
        } else {
            shared.subscriptions = self.subscriptions.take().or(shared.subscriptions.take());
            next = shared.waiters.head_to_wake();
        }
        drop(shared);
        drop(over);
        next.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests;
