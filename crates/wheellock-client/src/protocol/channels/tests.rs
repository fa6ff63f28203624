//! Tests of `channels`.

use super::*;

fn order(channels: &mut Channels, index: u32) -> Option<Order> {
    channels.next_order(index).map(|(order, _)| order)
}

#[test]
fn channel_has_one_order_in_flight() {
    let (mut channels, mut wakers) = (Channels::default(), Vec::new());
    let a = channels.want(b"a");
    assert_eq!(order(&mut channels, a), Some(Order::Subscribe));
    assert_eq!(order(&mut channels, a), None, "already under way");
    channels.unwant(a, 0);
    assert_eq!(order(&mut channels, a), None, "nothing is confirmed yet");
    assert_eq!(channels.want(b"a"), a, "the entry stays while an order is under way");
    channels.unwant(a, 0);
    channels.on_subscribed(a, &mut wakers);
    assert_eq!(order(&mut channels, a), Some(Order::Unsubscribe));
    assert_eq!(channels.want(b"a"), a);
    let before = channels.count(a);
    channels.on_unsubscribed(a, &mut wakers);
    assert_eq!(channels.count(a), before + 1, "messages may have been missed since");
    assert_eq!(order(&mut channels, a), Some(Order::Subscribe), "wanted again meanwhile");
    channels.on_subscribed(a, &mut wakers);
    channels.unwant(a, 0);
    assert_eq!(order(&mut channels, a), Some(Order::Unsubscribe));
    channels.on_unsubscribed(a, &mut wakers);
    assert_eq!(channels.find(b"a"), None, "nothing is left behind");
    assert!(channels.entries.is_empty());
}

#[test]
fn message_or_possible_loss_wakes_waiters() {
    let (mut channels, mut wakers) = (Channels::default(), Vec::new());
    let a = channels.want(b"a");
    let waker = Waker::noop();
    let mut expect_wake =
        |channels: &mut Channels, what: &str, act: &dyn Fn(&mut Channels, &mut Vec<Waker>)| {
            let before = channels.count(a);
            channels.wait(a, 7, waker);
            channels.wait(a, 7, waker);
            act(channels, &mut wakers);
            assert_eq!((channels.count(a), wakers.len()), (before + 1, 1), "{what}");
            wakers.clear();
        };
    expect_wake(&mut channels, "message", &|c, w| assert!(c.on_message(b"a", b"0", w)));
    expect_wake(&mut channels, "disconnect", &|c, w| c.on_disconnect(w));
    channels.next_order(a);
    expect_wake(&mut channels, "refusal", &|c, w| c.on_refused(a, "NOPERM".to_owned(), w));
    assert_eq!(order(&mut channels, a), None, "not asked again on this connection");
    channels.on_disconnect(&mut Vec::new());
    assert_eq!(order(&mut channels, a), Some(Order::Subscribe), "but on the next");
    assert!(!channels.on_message(b"unknown", b"0", &mut Vec::new()));
}

#[test]
fn channel_keeps_few_short_payloads() {
    let (mut channels, mut wakers) = (Channels::default(), Vec::new());
    let a = channels.want(b"a");
    assert!(channels.on_message(b"a", b"before", &mut wakers));
    channels.keep_payloads(a);
    assert!(channels.payloads_since(a, 0).is_empty(), "kept from now on");
    for number in 0..2 * MOST_PAYLOADS {
        assert!(channels.on_message(b"a", number.to_string().as_bytes(), &mut wakers));
    }
    let kept = channels.payloads_since(a, 0);
    assert_eq!(kept.len(), MOST_PAYLOADS);
    assert_eq!(&*kept[0], MOST_PAYLOADS.to_string().as_bytes(), "the latest are kept");
    let last = channels.count(a) - 1;
    assert_eq!(channels.payloads_since(a, last).len(), 1);
    channels.on_disconnect(&mut wakers);
    assert_eq!(channels.payloads_since(a, last).len(), 1, "a reconnect loses none");
}

#[test]
fn channel_dropped_while_disconnected_leaves_nothing() {
    let mut channels = Channels::default();
    let a = channels.want(b"a");
    channels.next_order(a);
    channels.unwant(a, 0);
    channels.on_disconnect(&mut Vec::new());
    assert!(channels.entries.is_empty() && channels.by_name.is_empty());
}
