//! Repeated requests whose first reply was lost.
//!
//! The state on the server has changed before the repetition.

use std::time::Duration;

use wheellock::testing::{Double, Outage};
use wheellock::{Outcome, multi_lock};

/// The reply to the grant of a set was lost. Before the repetition, one member's lease ends, and another process takes that member.
#[tokio::test(start_paused = true)]
async fn unconfirmed_set_missing_member_is_released() {
    let double = Double::new();
    let (ours, theirs) = (double.manager().await.unwrap(), double.manager().await.unwrap());
    let short = Duration::from_millis(10);
    let members = [ours.lock("a"), ours.lock("b").with_lease(short), ours.lock("c")];
    let set = multi_lock(members).unwrap();
    double.delay(4 * short);
    double.lose_answers(1);
    let taking = tokio::spawn(async move { set.try_acquire().await });
    tokio::time::sleep(2 * short).await;
    // These requests get their replies before the set's connection is restored.
    let [a, b] = ["a", "b"].map(|name| theirs.lock(name));
    let (held, other) = tokio::join!(a.is_locked(), b.acquire());
    let other = other.unwrap();
    assert!(held.unwrap() && other.is_valid(), "the set was granted, and one lease is over");
    assert!(!taking.await.unwrap().unwrap().is_acquired(), "another one has a member");
    double.delay(Duration::ZERO);
    tokio::time::sleep(Duration::from_secs(1)).await;
    for name in ["a", "c"] {
        assert!(!theirs.lock(name).is_locked().await.unwrap(), "nobody has {name}");
    }
}

/// The server refused the repetition. It may still execute the first request, and then the connection breaks for good.
#[tokio::test(start_paused = true)]
async fn later_outage_hides_no_unanswered_request() {
    let double = Double::new();
    let (ours, theirs) = (double.manager().await.unwrap(), double.manager().await.unwrap());
    let _held = theirs.lock("k").acquire().await.unwrap();
    double.lose_answers(1);
    let waiting = tokio::spawn(async move { ours.lock("k").try_acquire_for(Duration::from_secs(2)).await });
    tokio::time::sleep(Duration::from_secs(1)).await;
    double.outage(Outage::Down);
    let error = waiting.await.unwrap().unwrap_err();
    assert_eq!(error.outcome(), Outcome::MaybeExecuted, "{error}");
}
