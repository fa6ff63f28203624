//! Tests of `queue` on the in-memory server.

use std::time::Duration;

use tokio::task::{JoinHandle, yield_now};

use crate::group::redlock::{RedLock, RedLockGuard, RedLockManager};
use crate::testing::{Double, Outage};
use crate::{Attempt, Error};

async fn three() -> ([Double; 3], RedLockManager) {
    let doubles = [Double::new(), Double::new(), Double::new()];
    let mut managers = Vec::new();
    for double in &doubles {
        managers.push(double.manager().await.unwrap());
    }
    (doubles, RedLockManager::new(managers).await.unwrap())
}

/// Spawns a task that waits for the lock behind `others` waiters.
async fn waits_behind(others: usize, lock: &RedLock) -> JoinHandle<Result<RedLockGuard, Error>> {
    let waits = lock.clone();
    let waiter = tokio::spawn(async move { waits.acquire().await });
    while lock.queue.shared().waiters.values_mut().count() <= others {
        yield_now().await;
    }
    waiter
}

/// A holder that requests its non-reentrant lock again gets an error, and the other waiters do not.
#[tokio::test(start_paused = true)]
async fn repeated_request_fails_only_holder() {
    let (_doubles, red) = three().await;
    let lock = red.simple_lock("s");
    let own = lock.map(|lock| lock.with_owner(lock.context.owner(7)));
    let guard = own.acquire().await.unwrap();
    let waiters = [waits_behind(0, &lock).await, waits_behind(1, &lock).await];
    for again in [own.try_acquire().await, own.acquire().await.map(Attempt::Acquired)] {
        let Err(Error::NoQuorum { failures, .. }) = again else { panic!("{again:?}") };
        assert!(failures.iter().all(|failure| matches!(failure.error, Error::NotReentrant { .. })));
    }
    guard.release().await.unwrap();
    for waiter in waiters {
        waiter.await.unwrap().unwrap().release().await.unwrap();
    }
}

/// Replies from before the first waiter joined do not count for this waiter.
#[tokio::test(start_paused = true)]
async fn reply_before_first_waiter_is_ignored() {
    let (doubles, red) = three().await;
    let lock = red.lock("l");
    lock.try_acquire().await.unwrap().acquired().unwrap().release().await.unwrap();
    doubles[..2].iter().for_each(|double| double.outage(Outage::Silent));
    let head = waits_behind(0, &lock).await;
    let behind = lock.try_acquire_for(Duration::from_millis(100)).await;
    assert!(matches!(behind, Err(Error::NoQuorum { .. })), "{behind:?}");
    doubles.iter().for_each(Double::come_back);
    drop(head.await.unwrap());
}
