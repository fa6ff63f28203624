//! Holds with a minimum time, in virtual time.

use std::time::Duration;

use tokio::time::Instant;
use wheellock::testing::Double;
use wheellock::{Error, Lock, LockManager, multi_lock};

const SECOND: Duration = Duration::from_secs(1);
/// Longer than the lease of 30 s.
const LONG: Duration = Duration::from_secs(75);
/// A waiter gets the lock this long after the minimum at the latest.
const LATE: Duration = Duration::from_millis(50);

/// Every kind of lock that has a minimum.
fn kinds(locks: &LockManager) -> [Lock; 5] {
    [
        locks.lock("plain"),
        locks.spin_lock("spin"),
        locks.fair_lock("fair"),
        locks.fenced_lock("fenced").as_lock().clone(),
        locks.simple_lock("simple"),
    ]
}

#[tokio::test(start_paused = true)]
async fn early_release_keeps_lock() {
    for (min, held) in [(LONG, SECOND), (2 * SECOND, SECOND), (SECOND, Duration::ZERO), (SECOND, LONG)] {
        for is_dropped in [false, true] {
            let double = Double::new();
            let (locks, others) = (double.manager().await.unwrap(), double.manager().await.unwrap());
            for (lock, other) in kinds(&locks).into_iter().zip(kinds(&others)) {
                let name = lock.name();
                let granted = Instant::now();
                let guard = lock.with_min_hold(min).acquire().await.unwrap();
                tokio::time::sleep(held).await;
                if is_dropped {
                    drop(guard);
                } else {
                    guard.release().await.unwrap();
                }
                let next = other.acquire().await.unwrap();
                let (kept, wanted) = (granted.elapsed(), min.max(held));
                assert!(kept >= wanted && kept <= wanted + LATE, "{name}: {kept:?} of {wanted:?}");
                next.release().await.unwrap();
                assert!(!lock.is_locked().await.unwrap(), "{name}");
            }
            let metrics = locks.metrics();
            assert_eq!((metrics.held, metrics.lost_not_owner, metrics.lost_expired), (0, 0, 0));
        }
    }
}

/// A waiter learns the remaining time, although it waits since before the release, and behind a longer lease.
#[tokio::test(start_paused = true)]
async fn waiter_learns_remaining_time() {
    let double = Double::new();
    let (locks, others) = (double.manager().await.unwrap(), double.manager().await.unwrap());
    for (lock, other) in kinds(&locks).into_iter().zip(kinds(&others)) {
        for waiter in [other, lock.clone()] {
            let granted = Instant::now();
            let guard = lock.with_min_hold(10 * SECOND).acquire().await.unwrap();
            let waiting = tokio::spawn(async move { waiter.acquire().await.unwrap() });
            tokio::time::sleep(3 * SECOND).await;
            guard.release().await.unwrap();
            let next = waiting.await.unwrap();
            let kept = granted.elapsed();
            assert!(kept >= 10 * SECOND && kept <= 10 * SECOND + 4 * LATE, "{}: {kept:?}", lock.name());
            next.release().await.unwrap();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn owner_waits_like_others() {
    let double = Double::new();
    let locks = double.manager().await.unwrap();
    let (lock, granted) = (locks.lock("n"), Instant::now());
    let outer = lock.with_min_hold(10 * SECOND).acquire().await.unwrap();
    let again = lock.with_owner(outer.owner());
    tokio::time::sleep(SECOND).await;
    let inner = again.with_min_hold(20 * SECOND).acquire().await.unwrap();
    outer.release().await.unwrap();
    assert!(inner.is_valid());
    inner.release().await.unwrap();
    assert!(!again.try_acquire().await.unwrap().is_acquired());
    let holder = lock.holder().await.unwrap().expect("it is kept");
    let (left, end) = (lock.remaining_lease().await.unwrap().unwrap(), 21 * SECOND);
    assert!(left + granted.elapsed() >= end && left + granted.elapsed() <= end + LATE, "{left:?}");
    assert_eq!(holder.hold_count, 1);
    let next = again.acquire().await.unwrap();
    assert!(granted.elapsed() >= end);
    next.release().await.unwrap();
    assert!(!lock.is_locked().await.unwrap(), "the later hold has no minimum");
}

/// A hand-over within the process must not shorten the minimum.
#[tokio::test(start_paused = true)]
async fn minimum_prevents_hand_over() {
    let double = Double::new();
    let locks = double.manager_with(|settings| settings.hand_over(LONG)).await.unwrap();
    let lock = locks.lock("n").with_min_hold(5 * SECOND);
    for held in [SECOND, 6 * SECOND] {
        let granted = Instant::now();
        let guard = lock.acquire().await.unwrap();
        let waiter = lock.clone();
        let waiting = tokio::spawn(async move { waiter.acquire().await.unwrap() });
        tokio::time::sleep(held).await;
        drop(guard);
        let next = waiting.await.unwrap();
        let next_since = Instant::now();
        assert!(granted.elapsed() >= 5 * SECOND);
        next.release().await.unwrap();
        let _next = lock.acquire().await.unwrap();
        assert!(next_since.elapsed() + LATE >= 5 * SECOND, "{:?}", next_since.elapsed());
        tokio::time::sleep(6 * SECOND).await;
    }
    assert_eq!(locks.metrics().hand_overs, 1, "after the minimum");
}

#[tokio::test(start_paused = true)]
async fn lost_replies_keep_minimum() {
    let double = Double::new();
    let (locks, others) = (double.manager().await.unwrap(), double.manager().await.unwrap());
    for (lock, other) in kinds(&locks).into_iter().zip(kinds(&others)) {
        let granted = Instant::now();
        let guard = lock.with_min_hold(LONG).acquire().await.unwrap();
        double.lose_answers(1);
        guard.release().await.unwrap();
        let _next = other.acquire().await.unwrap();
        let kept = granted.elapsed();
        assert!(kept >= LONG && kept <= LONG + LATE, "{}: {kept:?}", lock.name());
    }
}

/// The minimum does not outlive a dead or lost holder, so that another process can run the job again.
#[tokio::test(start_paused = true)]
async fn lost_hold_keeps_no_minimum() {
    let double = Double::new();
    let (locks, others) = (double.manager().await.unwrap(), double.manager().await.unwrap());
    let lock = locks.lock("n").with_lease(2 * SECOND).with_min_hold(LONG);
    let guard = lock.acquire().await.unwrap();
    guard.lost().await;
    let next = others.lock("n").acquire().await.unwrap();
    drop(guard);
    tokio::time::sleep(SECOND).await;
    assert!(next.is_valid());
    next.release().await.unwrap();
    assert!(!lock.is_locked().await.unwrap());

    let lock = locks.lock("n").with_max_hold(2 * SECOND).with_min_hold(LONG);
    let guard = lock.acquire().await.unwrap();
    tokio::time::sleep(SECOND).await;
    guard.release().await.unwrap();
    assert!(lock.remaining_lease().await.unwrap().unwrap() > LONG - 2 * SECOND);
    assert!(lock.force_release().await.unwrap(), "a forced release ends the minimum");
    assert!(!lock.is_locked().await.unwrap());
}

/// A caller that gives up before the grant has run no job.
#[tokio::test(start_paused = true)]
async fn dropped_acquire_keeps_nothing() {
    let double = Double::new();
    let locks = double.manager().await.unwrap();
    let lock = locks.lock("n").with_min_hold(LONG);
    double.delay(SECOND);
    let acquire = tokio::time::timeout(SECOND / 2, lock.acquire()).await;
    assert!(acquire.is_err());
    tokio::time::sleep(3 * SECOND).await;
    assert!(!lock.is_locked().await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn other_kinds_refuse_minimum() {
    let double = Double::new();
    let locks = double.manager().await.unwrap();
    let sides = locks.read_write_lock("sides");
    for side in [sides.read(), sides.write()] {
        let error = side.with_min_hold(LONG).try_acquire().await.unwrap_err();
        assert!(matches!(error, Error::NoMinHold { .. }), "{error}");
    }
    let error = multi_lock([locks.lock("a"), locks.lock("b").with_min_hold(LONG)]).unwrap_err();
    assert!(matches!(&error, Error::NoMinHold { lock, .. } if lock == "b"), "{error}");
    for min in [Duration::ZERO, Duration::MAX] {
        let error = locks.lock("n").with_min_hold(min).acquire().await.unwrap_err();
        assert!(matches!(error, Error::InvalidLease { .. }), "{error}");
    }
}
