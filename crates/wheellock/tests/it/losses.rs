//! Losses of locks that the process itself causes.
//!
//! The process released such a lock by force, or was granted it. Its own guards must be notified at once.

use std::time::Duration;

use wheellock::testing::Double;
use wheellock::{Guard, Lock, LockManager, LostReason};

/// Much shorter than the time until the watchdog renews.
const AT_ONCE: Duration = Duration::from_secs(1);

async fn assert_lost(what: &str, guard: &Guard) {
    let told = tokio::time::timeout(AT_ONCE, guard.lost()).await;
    assert_eq!(told.unwrap_or_else(|_| panic!("{what} is not told")), LostReason::NotOwner, "{what}");
}

async fn readers(locks: &LockManager) -> [Guard; 3] {
    let reader = locks.read_write_lock("n").read();
    [
        reader.acquire().await.unwrap(),
        reader.acquire().await.unwrap(),
        reader.with_lease(10 * AT_ONCE).acquire().await.unwrap(),
    ]
}

/// A6: a release by force notifies every holder of the lock in this process.
#[tokio::test(start_paused = true)]
async fn forced_release_notifies_every_local_holder() {
    let double = Double::new();
    let locks = double.manager().await.unwrap();
    let sides = locks.read_write_lock("n");
    let reading = readers(&locks).await;
    assert!(sides.read().force_release().await.unwrap());
    for reader in &reading {
        assert_lost("a reader", reader).await;
    }
    let writing = sides.write().acquire().await.unwrap();
    let reading = sides.read().with_owner(writing.owner()).acquire().await.unwrap();
    assert!(sides.write().force_release().await.unwrap());
    assert_lost("the writer", &writing).await;
    assert_lost("the writer who reads", &reading).await;
    let fenced = locks.fenced_lock("fenced").acquire().await.unwrap();
    assert!(locks.lock("fenced").force_release().await.unwrap());
    assert_lost("who holds it as another kind", &fenced).await;
}

/// A6: a grant of one side of a read-write lock notifies this process' holders of the other side.
#[tokio::test(start_paused = true)]
async fn grant_notifies_holders_of_other_side() {
    let double = Double::new();
    let locks = double.manager().await.unwrap();
    let sides = locks.read_write_lock("n");
    let reading = readers(&locks).await;
    double.forget_everything();
    let writing = sides.write().try_acquire().await.unwrap().acquired().unwrap();
    for reader in &reading {
        assert_lost("a reader", reader).await;
    }
    double.forget_everything();
    let reading = sides.read().try_acquire().await.unwrap().acquired().unwrap();
    assert_lost("the writer", &writing).await;
    assert!(reading.is_valid());
    reading.release().await.unwrap();
    // A writer may read as well.
    let writing = sides.write().acquire().await.unwrap();
    let reading = sides.read().with_owner(writing.owner()).acquire().await.unwrap();
    assert!(tokio::time::timeout(AT_ONCE, writing.lost()).await.is_err() && reading.is_valid());
}

/// The server tells of a change of a renewed lock, long before the next renewal.
#[tokio::test(start_paused = true)]
async fn changed_lock_is_lost_at_once() {
    let double = Double::new();
    let locks = double.manager().await.unwrap();
    let beats = Duration::from_secs(25);
    let (kept, fixed) = (locks.lock("kept"), locks.lock("fixed").with_lease(4 * beats));
    let (kept, fixed) = (kept.acquire().await.unwrap(), fixed.acquire().await.unwrap());
    tokio::time::sleep(beats).await;
    let others = double.manager().await.unwrap();
    for (name, guard) in [("kept", kept), ("fixed", fixed)] {
        assert!(others.lock(name).force_release().await.unwrap());
        assert_lost(name, &guard).await;
    }
}

/// The server grants the lock only after a notified holder knows of its loss.
#[tokio::test(start_paused = true)]
async fn forced_release_notifies_holder_before_grant() {
    let double = Double::new();
    let [holders, waiters, operators] =
        [double.manager().await, double.manager().await, double.manager().await];
    let [holders, waiters, operators] = [holders.unwrap(), waiters.unwrap(), operators.unwrap()];
    let lock_of: [fn(&LockManager) -> Lock; 5] = [
        |locks| locks.lock("plain"),
        |locks| locks.fair_lock("fair"),
        |locks| locks.simple_lock("simple"),
        |locks| locks.read_write_lock("read").read(),
        |locks| locks.read_write_lock("write").write(),
    ];
    for lock_of in lock_of {
        let held = lock_of(&holders).acquire().await.unwrap();
        tokio::time::sleep(Duration::from_secs(15)).await;
        let writer = match held.name() {
            "read" => waiters.read_write_lock("read").write(),
            _ => lock_of(&waiters),
        };
        let waiting = tokio::spawn(async move { writer.acquire().await });
        tokio::time::sleep(AT_ONCE).await;
        let since = tokio::time::Instant::now();
        assert!(lock_of(&operators).force_release().await.unwrap());
        let next = waiting.await.unwrap().unwrap();
        let after = since.elapsed();
        let head_start = Duration::from_millis(20);
        assert!(head_start <= after && after < 3 * head_start, "{} after {after:?}", held.name());
        assert!(!held.is_valid(), "{}", held.name());
        next.release().await.unwrap();
    }
}
