//! Holds with a minimum time on real servers.

use std::time::{Duration, Instant};

use wheellock::{Lock, LockManager};
use wheellock_tests::RedisServer;
use wheellock_tests::locks::{listeners, manager};

const MIN: Duration = Duration::from_secs(2);
/// A busy machine delays a waiter by this time at most.
const LATE: Duration = Duration::from_millis(700);

fn kinds(locks: &LockManager) -> [Lock; 4] {
    [
        locks.lock("plain"),
        locks.fair_lock("fair"),
        locks.fenced_lock("fenced").as_lock().clone(),
        locks.simple_lock("simple"),
    ]
}

/// After the release the lock looks as if an ordinary holder held it once, until the minimum after the grant is over.
#[tokio::test]
async fn spent_owner_matches_wire_contract() {
    let server = RedisServer::start();
    let locks = manager(&server.url()).await;
    for lock in kinds(&locks) {
        let name = lock.name();
        let guard = lock.with_min_hold(MIN).acquire().await.unwrap();
        let granted = Instant::now();
        let owner = guard.owner();
        let (manager_id, _) =
            owner.to_string().rsplit_once(':').map(|(id, n)| (id.to_owned(), n.to_owned())).unwrap();
        // A minimum that counts from the release would end this much later than `LATE` / 2 allows.
        tokio::time::sleep(MIN / 4).await;
        guard.release().await.unwrap();
        let spent = match name {
            "simple" => server.cli(&["GET", name]),
            _ => {
                assert_eq!(server.cli(&["HLEN", name]), "1");
                let spent = server.cli(&["HKEYS", name]).split_whitespace().last().unwrap().to_owned();
                assert_eq!(server.cli(&["HGET", name, &spent]), "1");
                spent
            }
        };
        assert!(spent != owner.to_string(), "{name}: the old owner could release it");
        let number = spent.strip_prefix(&format!("{manager_id}:"));
        assert!(number.is_some_and(|number| number.parse::<u64>().is_ok()), "{name}: {spent}");
        let left: u64 = server.cli(&["PTTL", name]).parse().unwrap();
        let end = granted.elapsed() + Duration::from_millis(left);
        assert!(end + LATE >= MIN && end <= MIN + LATE / 2, "{name}: {left} ms left");
        let holder = lock.holder().await.unwrap().expect("it is shown");
        assert_eq!(holder.hold_count, 1);
        assert!(holder.is_spent(), "{holder}");
        assert_eq!(lock.hold_count(&owner).await.unwrap(), 0);
    }
}

#[tokio::test]
async fn kept_lock_passes_in_time() {
    let server = RedisServer::start();
    let (locks, others) = (manager(&server.url()).await, manager(&server.url()).await);
    for (lock, other) in kinds(&locks).into_iter().zip(kinds(&others)) {
        let guard = lock.with_min_hold(MIN).acquire().await.unwrap();
        let granted = Instant::now();
        let waits = other.clone();
        let waiting = tokio::spawn(async move { waits.acquire().await.unwrap() });
        if matches!(lock.name(), "plain" | "fenced") {
            assert!(listeners(&server, lock.name(), 1).await);
        }
        drop(guard);
        let next = waiting.await.unwrap();
        let kept = granted.elapsed();
        assert!(kept + Duration::from_millis(20) >= MIN && kept <= MIN + LATE, "{}: {kept:?}", lock.name());
        next.release().await.unwrap();
    }
}
