//! Who wants one name in this process, in order. Only the first asks the servers, so tasks of one process never split the
//! members between them. Owns the order and what all of them may know; asks no server.

use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError};

use wheellock_client::Timer;

use super::News;
use crate::acquire::{Limit, Wait};
use crate::error::Error;

#[derive(Default)]
pub(super) struct Queue {
    /// First come, first served (source: tokio's documentation of `Mutex`). What is heard of releases is handed on, so that
    /// not every waiter has to subscribe, and to ask twice for it.
    turn: tokio::sync::Mutex<Option<News>>,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    next_ticket: u64,
    /// How many are in the queue, the first included.
    waiting: usize,
    /// The error that awaits every waiter with a ticket below this one.
    failed: Option<(u64, Error)>,
    /// When last heard of, the lock was held, by one of us or by others.
    held: bool,
}

pub(super) enum Turn<'a, L> {
    Come(First<'a>),
    /// A waiter before this one could not ask the servers; what stopped it stops all.
    Failed(Error),
    /// This has ended the wait before.
    TooLate(L),
}

impl Queue {
    pub(super) async fn turn<L: Copy + Into<Limit>>(&self, timer: &Timer, wait: Wait<L>) -> Turn<'_, L> {
        let place = Place::join(self);
        let news = match (wait.limit(), wait.deadline()) {
            (Some(limit), Some(deadline)) => match timer.timeout_at(deadline, self.turn.lock()).await {
                Ok(news) => news,
                Err(_) => return Turn::TooLate(limit),
            },
            _ => self.turn.lock().await,
        };
        let failed = self.known().failed.clone();
        match failed.filter(|(before, _)| place.ticket < *before) {
            Some((_, error)) => Turn::Failed(error),
            None => Turn::Come(First { news, place }),
        }
    }

    pub(super) fn on_held(&self) {
        self.known().held = true;
    }

    pub(super) fn knows_held(&self) -> bool {
        self.known().held
    }

    /// The servers cannot be asked, so nobody knows whether the lock is held.
    pub(super) fn fail_all(&self, error: &Error) {
        let mut known = self.known();
        known.failed = Some((known.next_ticket, error.clone()));
        known.held = false;
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The head of the queue, which asks for all. The next one's turn comes when this is dropped.
pub(super) struct First<'a> {
    news: tokio::sync::MutexGuard<'a, Option<News>>,
    place: Place<'a>,
}

impl Deref for First<'_> {
    type Target = Option<News>;

    fn deref(&self) -> &Self::Target {
        &self.news
    }
}

impl DerefMut for First<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.news
    }
}

impl Drop for First<'_> {
    fn drop(&mut self) {
        if self.place.queue.known().waiting == 1 {
            *self.news = None;
        }
    }
}

struct Place<'a> {
    queue: &'a Queue,
    ticket: u64,
}

impl<'a> Place<'a> {
    fn join(queue: &'a Queue) -> Self {
        let mut known = queue.known();
        known.waiting += 1;
        known.next_ticket += 1;
        Self { queue, ticket: known.next_ticket - 1 }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.queue.known().waiting -= 1;
    }
}
