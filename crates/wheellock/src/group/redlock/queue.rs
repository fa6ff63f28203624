//! The waiters of this process for one name, in order.
//!
//! Only the head polls the servers, so tasks of one process never split the members between them. This module owns the
//! state that all waiters share. It sends no request.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use wheellock_client::Timer;

use super::News;
use crate::base::error::Error;
use crate::request::acquire::{Limit, Wait};
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
    news: Option<News>,
    /// The lock was held at the last reply while a waiter was queued, by this process or by another.
    held: bool,
}

pub(super) enum Turn<'a, L> {
    Come(Place<'a>),
    /// A waiter before this one could not poll the servers. The cause stops all waiters.
    Failed(Error),
    /// This limit ended the wait first.
    TooLate(L),
}

impl Queue {
    /// Waits until all earlier waiters have left.
    pub(super) async fn turn<L: Copy + Into<Limit>>(&self, timer: &Timer, wait: Wait<L>) -> Turn<'_, L> {
        let mut place = self.join();
        let come = std::future::poll_fn(|cx| place.poll_come(cx.waker()));
        let come = match (wait.limit(), wait.deadline()) {
            (Some(limit), Some(deadline)) => match timer.timeout_at(deadline, come).await {
                Ok(come) => come,
                Err(_) => return Turn::TooLate(limit),
            },
            _ => come.await,
        };
        match come {
            Ok(()) => Turn::Come(place),
            Err(error) => Turn::Failed(error),
        }
    }

    fn join(&self) -> Place<'_> {
        Place { ticket: self.shared().waiters.join(()), queue: self, news: None }
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

/// A place in the queue, left on drop. The head polls for all waiters.
pub(super) struct Place<'a> {
    queue: &'a Queue,
    ticket: u64,
    /// The subscriptions, which the head takes over when its turn begins.
    pub(super) news: Option<News>,
}

impl Place<'_> {
    fn poll_come(&mut self, waker: &Waker) -> Poll<Result<(), Error>> {
        let mut shared = self.queue.shared();
        let is_head = shared.waiters.is_head(self.ticket);
        if let Some(Entry { waker: to_wake, failed, .. }) = shared.waiters.entry(self.ticket) {
            if let Some(error) = failed {
                return Poll::Ready(Err(Error::clone(error)));
            }
            if !is_head {
                *to_wake = Some(waker.clone());
                return Poll::Pending;
            }
        }
        self.news = shared.news.take();
        Poll::Ready(Ok(()))
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut shared = self.queue.shared();
        shared.waiters.leave(self.ticket);
        // Dropping subscriptions may write to a socket, so drop them only after unlocking.
        let (mut next, mut over) = (None, None);
        if shared.waiters.is_empty() {
            over = shared.news.take();
            // The last reply will soon be out of date, and the next waiter polls anyway.
            shared.held = false;
        } else {
            shared.news = self.news.take().or(shared.news.take());
            next = shared.waiters.head_to_wake();
        }
        drop(shared);
        drop(over);
        next.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests;
