//! Kinds of locks that share one hash of holders.
//!
//! They are the same lock on the server. The server counts an owner there for whichever kind the owner takes.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use wheellock::testing::Double;
use wheellock::{Error, Lock, LockManager, multi_lock};

const NAME: &str = "orders:42";
/// Longer than any of the tests' own pauses.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, PartialEq, Debug)]
enum Kind {
    Plain,
    Fenced,
    Fair,
}

use Kind::{Fair, Fenced, Plain};

const KINDS: [Kind; 3] = [Plain, Fenced, Fair];

fn lock(locks: &LockManager, kind: Kind) -> Lock {
    match kind {
        Plain => locks.lock(NAME),
        Fenced => locks.fenced_lock(NAME).as_lock().clone(),
        Fair => locks.fair_lock(NAME),
    }
}

/// Returns all pairs of different kinds.
fn pairs() -> impl Iterator<Item = (Kind, Kind)> {
    let pairs = KINDS.into_iter().flat_map(|outer| KINDS.map(|inner| (outer, inner)));
    pairs.filter(|(outer, inner)| outer != inner)
}

async fn in_time<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("it does not wait for ever")
}

/// The server counts an owner once for all kinds, but a manager counts each kind by itself. So a release of one kind could release a hold
/// that the manager still believes in. A fenced lock could return the previous holder's token.
#[tokio::test(start_paused = true)]
async fn holder_is_refused_other_kinds() {
    let double = Double::new();
    let (ours, theirs) = (double.manager().await.unwrap(), double.manager().await.unwrap());
    for (outer, inner) in pairs() {
        let guard = lock(&ours, outer).acquire().await.unwrap();
        let owner = guard.owner();
        let again = lock(&ours, inner).with_owner(owner.clone());
        let together = [again.clone(), ours.lock("other").with_owner(owner.clone())];
        let together = multi_lock(together).unwrap();
        let refused = |error: Option<Error>| {
            assert!(matches!(error, Some(Error::NotReentrant { .. })), "{outer:?}, {inner:?}: {error:?}");
        };
        refused(again.try_acquire().await.err());
        refused(in_time(again.acquire()).await.err());
        refused(again.try_acquire_for(PATIENCE).await.err());
        refused(in_time(together.acquire()).await.err());
        // The same holds behind a waiter of this process.
        let other = lock(&ours, inner);
        let waiting = tokio::spawn(async move { other.acquire().await });
        while ours.metrics().waiting == 0 {
            tokio::task::yield_now().await;
        }
        refused(in_time(again.acquire()).await.err());
        waiting.abort();
        let _aborted = waiting.await;
        assert_eq!(again.hold_count(&owner).await.unwrap(), 1);
        assert!(guard.is_valid() && !lock(&theirs, Plain).try_acquire().await.unwrap().is_acquired());
        guard.release().await.unwrap();
        assert!(!ours.lock("other").is_locked().await.unwrap());
    }
}

/// A release whose reply was lost is repeated. If the owner took the lock as another kind meanwhile, the repeated release would release
/// that hold.
#[tokio::test(start_paused = true)]
async fn other_kind_waits_for_pending_release() {
    let double = Double::new();
    let (ours, theirs) = (double.manager().await.unwrap(), double.manager().await.unwrap());
    for (before, after) in pairs() {
        let guard = lock(&ours, before).acquire().await.unwrap();
        let again = lock(&ours, after).with_owner(guard.owner());
        double.lose_answers(1);
        drop(guard);
        let guard = in_time(again.acquire()).await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(again.hold_count(&guard.owner()).await.unwrap(), 1, "{before:?}, {after:?}");
        assert!(guard.is_valid() && !lock(&theirs, Plain).try_acquire().await.unwrap().is_acquired());
        guard.release().await.unwrap();
    }
}

/// One task waits for the fair lock. Another task takes the plain lock as the same owner, and the plain lock ignores the queue.
#[tokio::test(start_paused = true)]
async fn cancelled_waiter_keeps_other_kind_hold() {
    let double = Double::new();
    let (ours, theirs) = (double.manager().await.unwrap(), double.manager().await.unwrap());
    let busy = theirs.lock(NAME).acquire().await.unwrap();
    let (owner, fair) = (ours.owner(), lock(&ours, Fair));
    let waiting = fair.with_owner(owner.clone());
    let guard = {
        let mut waiting = pin!(waiting.acquire());
        // The waiter's polls have replies, and the next poll is due after two seconds.
        let waited = tokio::time::timeout(Duration::from_secs(1), &mut waiting).await;
        assert!(waited.is_err() && fair.queue_length().await.unwrap() == Some(1));
        busy.release().await.unwrap();
        ours.lock(NAME).with_owner(owner.clone()).try_acquire().await.unwrap().acquired().unwrap()
    };
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(ours.lock(NAME).hold_count(&owner).await.unwrap(), 1);
    assert!(guard.is_valid());
}
