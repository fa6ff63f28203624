//! Tests of `queue`.

#[cfg(feature = "testing")]
mod on_doubles;

use super::*;

fn has_turn(waiter: &mut QuorumWaiter<'_>) -> bool {
    matches!(waiter.poll_turn(Waker::noop()), Poll::Ready(Ok(())))
}

#[test]
fn leaving_head_hands_on_subscriptions() {
    let queue = Queue::default();
    let [mut first, mut second, mut third] = [queue.join(), queue.join(), queue.join()];
    assert!(has_turn(&mut first) && !has_turn(&mut second) && !has_turn(&mut third));
    first.subscriptions = Some(Subscriptions::to_releases(&[]));
    drop(second);
    assert!(!has_turn(&mut third), "it was not the head that left");
    drop(first);
    assert!(has_turn(&mut third) && third.subscriptions.is_some());
    drop(third);
    assert!(queue.shared().subscriptions.is_none(), "no waiter is left who would hear anything");
}

#[test]
fn error_reaches_only_queued_waiters() {
    let queue = Queue::default();
    let [mut first, mut second, mut third] = [queue.join(), queue.join(), queue.join()];
    assert!(has_turn(&mut first));
    queue.on_held();
    queue.fail_all(&Error::NoRandomness);
    assert!(!queue.knows_held());
    for waiter in [&mut second, &mut third] {
        let Poll::Ready(Err(error)) = waiter.poll_turn(Waker::noop()) else { panic!("it waits") };
        assert!(matches!(error, Error::NoRandomness));
    }
    drop([first, second, third]);
    assert!(has_turn(&mut queue.join()));
}
