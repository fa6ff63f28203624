//! Who wants one name in this process, in order. Only the head asks the servers, so tasks of one process never split the
//! members between them. Owns what all of them may know; asks no server.

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
    /// What a head that left has heard with, for the next one: so not every waiter has to subscribe, and to ask twice for it.
    news: Option<News>,
    /// Since somebody waits, the lock was held when last heard of, by one of us or by others.
    held: bool,
}

pub(super) enum Turn<'a, L> {
    Come(Place<'a>),
    /// A waiter before this one could not ask the servers; what stopped it stops all.
    Failed(Error),
    /// This has ended the wait before.
    TooLate(L),
}

impl Queue {
    /// Waits until all who came before have left.
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

    /// The servers cannot be asked, so no waiter knows whether the lock is held.
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

/// A place in the queue; left when dropped. The head asks for all.
pub(super) struct Place<'a> {
    queue: &'a Queue,
    ticket: u64,
    /// The head's from the turn it has come to.
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
        // What nobody waits for any more is given up, which may write to a socket, only after unlocking.
        let (mut next, mut over) = (None, None);
        if shared.waiters.is_empty() {
            over = shared.news.take();
            // What was heard is soon out of date, and whoever comes next asks.
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
