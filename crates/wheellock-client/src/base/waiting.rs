//! Wakers of the callers that wait for one event.
//!
//! Each caller has at most one waker here. This module does not know the event.

use std::task::Waker;

/// The wakers by their waiters' numbers. There is nearly always only one.
#[derive(Default)]
pub(crate) struct Waiting(Vec<(u64, Waker)>);

impl Waiting {
    /// Stores a waker. It replaces the previous waker of `waiter`.
    pub(crate) fn add(&mut self, waiter: u64, waker: &Waker) {
        match self.0.iter_mut().find(|(known, _)| *known == waiter) {
            Some((_, old)) => old.clone_from(waker),
            None => {
                if self.0.is_empty() {
                    // Every waiter of a fair lock has such a list. A push would make room for four.
                    self.0.reserve_exact(1);
                }
                self.0.push((waiter, waker.clone()));
            }
        }
    }

    /// Removes the waker of `waiter` and returns it, if it is still stored.
    pub(crate) fn forget(&mut self, waiter: u64) -> Option<Waker> {
        let place = self.0.iter().position(|(known, _)| *known == waiter)?;
        Some(self.0.remove(place).1)
    }

    /// Moves all wakers to `wakers`.
    pub(crate) fn wake(&mut self, wakers: &mut Vec<Waker>) {
        wakers.extend(self.0.drain(..).map(|(_, waker)| waker));
    }
}

/// A number of changes, and the tasks that wait for the next change.
#[derive(Default)]
pub(crate) struct Changes {
    count: u64,
    waiting: Waiting,
    last_waiter: u64,
}

impl Changes {
    /// Returns the number of changes so far.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Returns a number that distinguishes waiters.
    pub(crate) fn new_waiter(&mut self) -> u64 {
        self.last_waiter += 1;
        self.last_waiter
    }

    /// Counts a change, and moves the waiters' wakers to `wakers`.
    pub(crate) fn advance(&mut self, wakers: &mut Vec<Waker>) {
        self.count += 1;
        self.waiting.wake(wakers);
    }

    /// Stores a waker for the next change. It replaces the previous waker of `waiter`.
    pub(crate) fn wait(&mut self, waiter: u64, waker: &Waker) {
        self.waiting.add(waiter, waker);
    }

    /// Removes the waker of `waiter` and returns it, if it is still stored.
    pub(crate) fn forget(&mut self, waiter: u64) -> Option<Waker> {
        self.waiting.forget(waiter)
    }
}

/// Removes a caller's waker when its future is dropped, for whatever reason. The closure returns the waker, which is
/// dropped here without holding a lock.
pub(crate) struct OnLeave<F: FnMut() -> Option<Waker>>(pub(crate) F);

impl<F: FnMut() -> Option<Waker>> Drop for OnLeave<F> {
    fn drop(&mut self) {
        let waker = (self.0)();
        drop(waker);
    }
}
