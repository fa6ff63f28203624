//! Holds with a maximum time, in virtual time.

use std::time::Duration;

use tokio::time::Instant;
use wheellock::testing::{Double, Outage};
use wheellock::{
    Error, Guard, Lock, LockManager, LostReason, MemberState, RedLockGuard, RedLockManager, multi_lock,
};

const SECOND: Duration = Duration::from_secs(1);
const LEASE: Duration = Duration::from_secs(30);
/// Longer than the lease, so that the watchdog renews the hold several times.
const LONG: Duration = Duration::from_secs(75);
/// A loss is reported early by 1 % of the lease, by 100 ms for the task, and by the clocks' granularity.
const EARLY: Duration = Duration::from_millis(450);
/// A waiter gets the lock this long after the maximum at the latest.
const LATE: Duration = Duration::from_millis(50);

/// Every kind of lock that the type `Lock` has.
fn kinds(locks: &LockManager) -> [Lock; 7] {
    let sides = locks.read_write_lock("sides");
    [
        locks.lock("plain"),
        locks.spin_lock("spin"),
        locks.fair_lock("fair"),
        locks.fenced_lock("fenced").as_lock().clone(),
        locks.simple_lock("simple"),
        sides.write(),
        locks.read_write_lock("others").read(),
    ]
}

/// Waits for the loss, and checks its reason and its instant.
async fn assert_ends(what: &str, guard: &Guard, granted: Instant, max: Duration) {
    let reason = tokio::time::timeout(2 * max, guard.lost()).await;
    assert_eq!(
        reason.unwrap_or_else(|_| panic!("{what} is held for ever")),
        LostReason::HeldTooLong,
        "{what}"
    );
    let held = granted.elapsed();
    assert!(held <= max && held + EARLY >= max, "{what}: {held:?} of {max:?}");
    assert!(!guard.is_valid());
}

#[tokio::test(start_paused = true)]
async fn renewed_hold_ends_at_maximum() {
    let double = Double::new();
    for max in [LONG, 31 * SECOND, LEASE, SECOND, Duration::from_millis(100)] {
        let locks = double.manager().await.unwrap();
        for lock in kinds(&locks) {
            let granted = Instant::now();
            let guard = lock.with_max_hold(max).acquire().await.unwrap();
            assert_ends(lock.name(), &guard, granted, max).await;
            assert!(matches!(
                guard.release().await,
                Err(Error::Lost { reason: LostReason::HeldTooLong, .. })
            ));
            assert!(!lock.is_locked().await.unwrap(), "{}", lock.name());
        }
    }
}

/// The holder's task is wedged: it never polls its guard. The server alone ends the lease.
#[tokio::test(start_paused = true)]
async fn waiter_succeeds_wedged_holder() {
    for max in [LONG, 2 * SECOND] {
        let double = Double::new();
        let (locks, others) = (double.manager().await.unwrap(), double.manager().await.unwrap());
        for (lock, waiter) in kinds(&locks).into_iter().zip(kinds(&others)) {
            // Two readers exclude each other not at all.
            let waiter =
                if lock.name() == "others" { others.read_write_lock("others").write() } else { waiter };
            let granted = Instant::now();
            let wedged = lock.with_max_hold(max).acquire().await.unwrap();
            let next = waiter.acquire().await.unwrap();
            let held = granted.elapsed();
            assert!(held + EARLY >= max && held <= max + LATE, "{}: {held:?} of {max:?}", lock.name());
            assert!(!wedged.is_valid());
            next.release().await.unwrap();
        }
    }
}

/// The holder's process is gone at once, without a release.
#[tokio::test(start_paused = true)]
async fn lease_never_outlasts_maximum() {
    let double = Double::new();
    let (locks, others) = (double.manager().await.unwrap(), double.manager().await.unwrap());
    for (lock, other) in kinds(&locks).into_iter().zip(kinds(&others)) {
        let granted = Instant::now();
        let _guard = lock.with_max_hold(LONG).acquire().await.unwrap();
        while let Some(left) = other.remaining_lease().await.unwrap() {
            assert!(granted.elapsed() + left <= LONG + LATE, "{}: {left:?} left", lock.name());
            tokio::time::sleep(SECOND).await;
        }
        assert!(granted.elapsed() + EARLY >= LONG, "{}", lock.name());
    }
}

#[tokio::test(start_paused = true)]
async fn closure_ends_at_maximum() {
    let double = Double::new();
    let locks = double.manager().await.unwrap();
    let lock = locks.lock("n").with_max_hold(LONG);
    let began = Instant::now();
    let work = async |_guard: &Guard| {
        std::future::pending::<()>().await;
        Ok::<_, Error>(())
    };
    let ended = lock.run(work).await;
    assert!(matches!(ended, Err(Error::Lost { reason: LostReason::HeldTooLong, .. })), "{ended:?}");
    assert!(began.elapsed() <= LONG);
    assert!(!lock.is_locked().await.unwrap());
    let metrics = locks.metrics();
    assert_eq!((metrics.lost_held_too_long, metrics.lost_expired, metrics.held), (1, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn failed_renewals_expire_before_maximum() {
    let double = Double::new();
    let locks = double.manager().await.unwrap();
    let guard = locks.lock("n").with_max_hold(LONG).acquire().await.unwrap();
    tokio::time::sleep(15 * SECOND).await;
    double.outage(Outage::Down);
    assert_eq!(guard.lost().await, LostReason::Expired);
    let granted = Instant::now();
    double.come_back();
    let guard = locks.lock("m").with_max_hold(LONG).acquire().await.unwrap();
    tokio::time::sleep(60 * SECOND).await;
    double.outage(Outage::Down);
    // The last renewal had reached the maximum.
    assert_ends("m", &guard, granted, LONG).await;
}

/// The first acquire's maximum counts, and a later acquire can only shorten it.
#[tokio::test(start_paused = true)]
async fn earliest_maximum_of_owner_counts() {
    let double = Double::new();
    let (locks, others) = (double.manager().await.unwrap(), double.manager().await.unwrap());
    for (outer_max, inner_max, wanted) in [
        (Some(LONG), Some(100 * SECOND), LONG),
        (Some(LONG), None, LONG),
        (Some(LONG), Some(SECOND), 11 * SECOND),
        (None, Some(SECOND), 11 * SECOND),
        (None, Some(60 * SECOND), LONG - 5 * SECOND),
    ] {
        let (lock, granted) = (locks.lock("n"), Instant::now());
        let limited = |max: Option<Duration>| max.map_or_else(|| lock.clone(), |max| lock.with_max_hold(max));
        let outer = limited(outer_max).acquire().await.unwrap();
        tokio::time::sleep(10 * SECOND).await;
        let inner = limited(inner_max).with_owner(outer.owner()).acquire().await.unwrap();
        tokio::time::sleep(LATE).await;
        let left = others.lock("n").remaining_lease().await.unwrap().unwrap();
        assert!(granted.elapsed() + left <= wanted + LATE, "{left:?} left of {wanted:?}");
        assert_ends("the inner guard", &inner, granted, wanted).await;
        assert!(!outer.is_valid());
        tokio::time::sleep(LATE + EARLY).await;
        assert!(!lock.is_locked().await.unwrap());
    }
}

#[tokio::test(start_paused = true)]
async fn fixed_lease_and_maximum_use_shorter() {
    let double = Double::new();
    let locks = double.manager().await.unwrap();
    let lock = locks.lock("n");
    for (lease, max, held, reason) in [
        (2 * SECOND, LONG, 2 * SECOND, LostReason::Expired),
        (LONG, 2 * SECOND, 2 * SECOND, LostReason::HeldTooLong),
    ] {
        let granted = Instant::now();
        let guard = lock.with_lease(lease).with_max_hold(max).acquire().await.unwrap();
        assert_eq!(guard.lost().await, reason);
        assert!(granted.elapsed() <= held && granted.elapsed() + EARLY >= held);
    }
    for max in [Duration::ZERO, Duration::from_millis(1), Duration::MAX] {
        let error = lock.with_max_hold(max).acquire().await.unwrap_err();
        assert!(matches!(error, Error::InvalidLease { .. }), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn renewal_by_hand_respects_maximum() {
    let double = Double::new();
    let (locks, others) = (double.manager().await.unwrap(), double.manager().await.unwrap());
    for lease in [None, Some(5 * SECOND)] {
        let (lock, granted) = (locks.lock("n").with_max_hold(LONG), Instant::now());
        let lock = lease.map_or_else(|| lock.clone(), |lease| lock.with_lease(lease));
        let guard = lock.acquire().await.unwrap();
        while granted.elapsed() + SECOND < LONG {
            guard.renew().await.unwrap();
            let left = others.lock("n").remaining_lease().await.unwrap().unwrap();
            assert!(granted.elapsed() + left <= LONG + LATE, "{left:?} left");
            tokio::time::sleep(SECOND).await;
        }
        assert_ends("a guard that renews", &guard, granted, LONG).await;
        assert!(matches!(guard.renew().await, Err(Error::Lost { reason: LostReason::HeldTooLong, .. })));
    }
}

/// Each guard that takes a hold over has its own maximum, from the hand-over on.
#[tokio::test(start_paused = true)]
async fn handed_over_hold_starts_anew() {
    let double = Double::new();
    let locks = double.manager_with(|settings| settings.hand_over(LONG)).await.unwrap();
    for (first_max, next_max) in [
        (Some(LONG), Some(LONG)),
        (Some(LONG), None),
        (None, Some(LONG)),
        (None, Some(SECOND)),
        (Some(10 * SECOND), None),
    ] {
        let lock = locks.lock("n");
        let limited = |max: Option<Duration>| max.map_or_else(|| lock.clone(), |max| lock.with_max_hold(max));
        let first = limited(first_max).acquire().await.unwrap();
        let waiter = limited(next_max);
        let waiting = tokio::spawn(async move { waiter.acquire().await.unwrap() });
        tokio::time::sleep(2 * SECOND).await;
        let handed = Instant::now();
        first.release().await.unwrap();
        let next = waiting.await.unwrap();
        match next_max {
            Some(max) => assert_ends("the next guard", &next, handed, max).await,
            None => assert!(tokio::time::timeout(2 * LONG, next.lost()).await.is_err(), "{first_max:?}"),
        }
        drop(next);
        tokio::time::sleep(SECOND).await;
    }
    assert!(locks.metrics().hand_overs >= 3, "{}", locks.metrics().hand_overs);
}

#[tokio::test(start_paused = true)]
async fn next_hold_of_owner_starts_anew() {
    let double = Double::new();
    let locks = double.manager().await.unwrap();
    let first = locks.lock("n").with_max_hold(SECOND).acquire().await.unwrap();
    let lock = locks.lock("n").with_owner(first.owner());
    first.release().await.unwrap();
    let guard = lock.acquire().await.unwrap();
    assert!(tokio::time::timeout(LONG, guard.lost()).await.is_err());
    guard.release().await.unwrap();
    let guard = lock.with_max_hold(LONG).acquire().await.unwrap();
    assert_ends("a later hold", &guard, Instant::now(), LONG).await;
}

#[tokio::test(start_paused = true)]
async fn permits_and_leaders_end_at_maximum() {
    let double = Double::new();
    let (locks, others) = (double.manager().await.unwrap(), double.manager().await.unwrap());
    let permits = locks.permit_semaphore("permits");
    permits.set_permits(2).await.unwrap();
    let granted = Instant::now();
    let permit = permits.with_max_hold(LONG).acquire().await.unwrap();
    let many = permits.with_max_hold(LONG).acquire_many(1).await.unwrap();
    let next = others.permit_semaphore("permits").acquire().await.unwrap();
    assert!(granted.elapsed() + EARLY >= LONG && granted.elapsed() <= LONG + LATE);
    assert!(!permit.is_valid() && !many[0].is_valid() && next.is_valid());

    let granted = Instant::now();
    let leader = locks.election("election").with_max_hold(LONG).campaign().await.unwrap();
    assert_ends("a leader", &leader, granted, LONG).await;
    let granted = Instant::now();
    let fenced = locks.fenced_lock("fenced").with_max_hold(LONG).acquire().await.unwrap();
    assert_ends("a fenced lock", &fenced, granted, LONG).await;
}

#[tokio::test(start_paused = true)]
async fn several_locks_end_at_maximum() {
    let doubles = [Double::new(), Double::new(), Double::new()];
    let mut managers = Vec::new();
    for double in &doubles {
        managers.push(double.manager().await.unwrap());
    }
    let granted = Instant::now();
    let all = multi_lock(managers.iter().map(|locks| locks.lock("member"))).unwrap();
    let guard = all.with_max_hold(LONG).acquire().await.unwrap();
    assert_eq!(guard.lost().await.reason, LostReason::HeldTooLong);
    assert!(granted.elapsed() <= LONG && granted.elapsed() + EARLY >= LONG);
    drop(guard);

    // A server that forgot the lock is asked again after a lease, so two of them are asked again in this time.
    let max = 2 * LONG;
    let held = |guard: &RedLockGuard| {
        let is_held = |state: &MemberState| matches!(state, MemberState::Held { .. });
        guard.members().iter().filter(|member| is_held(&member.state)).count()
    };
    let red = RedLockManager::new(managers).await.unwrap();
    let granted = Instant::now();
    let guard = red.lock("n").with_max_hold(max).acquire().await.unwrap();
    for double in &doubles[..2] {
        assert!(double.lose("n"));
        tokio::time::sleep(55 * SECOND).await;
        assert_eq!(held(&guard), 3);
    }
    assert_eq!(guard.lost().await, LostReason::HeldTooLong);
    assert!(granted.elapsed() <= max && granted.elapsed() + EARLY >= max, "{:?}", granted.elapsed());
}
