//! Tests of `queue`.

#[cfg(feature = "testing")]
mod on_doubles;

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
