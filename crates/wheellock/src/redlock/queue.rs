//! Who wants one name in this process, in order. Only the head asks the servers, so tasks of one process never split the
//! members between them. Owns what all of them may know; asks no server.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use wheellock_client::Timer;

use super::News;
use crate::acquire::{Limit, Wait};
use crate::error::Error;
use crate::queue::{Entry, Queue as Waiters};

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
mod tests {
    use super::*;

    fn has_come(place: &mut Place<'_>) -> bool {
        matches!(place.poll_come(Waker::noop()), Poll::Ready(Ok(())))
    }

    #[test]
    fn a_head_that_leaves_hands_on_what_it_hears_with_until_nobody_waits() {
        let queue = Queue::default();
        let [mut first, mut second, mut third] = [queue.join(), queue.join(), queue.join()];
        assert!(has_come(&mut first) && !has_come(&mut second) && !has_come(&mut third));
        first.news = Some(News { subscriptions: Vec::new() });
        drop(second);
        assert!(!has_come(&mut third), "it was not the head that left");
        drop(first);
        assert!(has_come(&mut third) && third.news.is_some());
        drop(third);
        assert!(queue.shared().news.is_none(), "no waiter is left who would hear anything");
    }

    #[test]
    fn an_error_reaches_every_waiter_in_the_queue_and_nobody_who_comes_later() {
        let queue = Queue::default();
        let [mut first, mut second, mut third] = [queue.join(), queue.join(), queue.join()];
        assert!(has_come(&mut first));
        queue.on_held();
        queue.fail_all(&Error::NoRandomness);
        assert!(!queue.knows_held());
        for place in [&mut second, &mut third] {
            let Poll::Ready(Err(error)) = place.poll_come(Waker::noop()) else { panic!("it waits") };
            assert!(matches!(error, Error::NoRandomness));
        }
        drop([first, second, third]);
        assert!(has_come(&mut queue.join()));
    }
}

#[cfg(all(test, feature = "testing"))]
mod on_doubles {
    use std::time::Duration;

    use tokio::task::{JoinHandle, yield_now};

    use crate::redlock::{RedLock, RedLockGuard, RedLockManager};
    use crate::testing::{Double, Outage};
    use crate::{Error, Released};

    async fn three() -> ([Double; 3], RedLockManager) {
        let doubles = [Double::new(), Double::new(), Double::new()];
        let mut managers = Vec::new();
        for double in &doubles {
            managers.push(double.manager().await.unwrap());
        }
        (doubles, RedLockManager::new(managers).await.unwrap())
    }

    /// A task that waits for the lock, and stands in the queue behind so many others.
    async fn waits_behind(others: usize, lock: &RedLock) -> JoinHandle<Result<RedLockGuard, Error>> {
        let waits = lock.clone();
        let waiter = tokio::spawn(async move { waits.acquire().await });
        while lock.queue.shared().waiters.entries().count() <= others {
            yield_now().await;
        }
        waiter
    }

    /// Who holds a lock that is not reentrant and asks for it again is told so, and nobody else.
    #[tokio::test(start_paused = true)]
    async fn who_asks_again_for_its_own_fails_nobody_who_waits() {
        let (_doubles, red) = three().await;
        let lock = red.simple_lock("s");
        let own = lock.map(|lock| lock.with_owner(lock.context.owner(7)));
        let guard = own.acquire().await.unwrap();
        let waiters = [waits_behind(0, &lock).await, waits_behind(1, &lock).await];
        for again in [own.try_acquire().await, own.acquire().await.map(Some)] {
            let Err(Error::NoQuorum { failures, .. }) = again else { panic!("{again:?}") };
            assert!(failures.iter().all(|failure| matches!(failure.error, Error::NotReentrant { .. })));
        }
        assert_eq!(guard.release().await.unwrap(), Released::Released);
        for waiter in waiters {
            waiter.await.unwrap().unwrap().release().await.unwrap();
        }
    }

    /// What the servers said while nobody waited is no answer to those who wait now.
    #[tokio::test(start_paused = true)]
    async fn what_was_held_while_nobody_waited_is_not_known_to_be_held() {
        let (doubles, red) = three().await;
        let lock = red.lock("l");
        lock.try_acquire().await.unwrap().unwrap().release().await.unwrap();
        doubles[..2].iter().for_each(|double| double.outage(Outage::Silent));
        let head = waits_behind(0, &lock).await;
        let behind = lock.try_acquire_for(Duration::from_millis(100)).await;
        assert!(matches!(behind, Err(Error::NoQuorum { .. })), "{behind:?}");
        doubles.iter().for_each(Double::come_back);
        drop(head.await.unwrap());
    }
}
