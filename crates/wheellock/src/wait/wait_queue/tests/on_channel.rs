//! Tests of `wait_queue` with a subscription to a channel of the in-memory server.

use std::sync::Arc;

use tokio::task::yield_now;
use wheellock_client::{Address, Client, Config, Timer};

use super::*;
use crate::testing::server::Host;

const CHANNEL: &str = "c";

/// A server, and a client that is connected to it.
struct Connected {
    host: Arc<Host>,
    client: Client,
}

impl Connected {
    async fn new() -> Self {
        let host = Host::new(Timer::tokio(Duration::from_millis(1)), 0, |_| {});
        let mut config = Config::new(Address::Tcp { host: "in-memory".to_owned(), port: 0 });
        config.timer = host.timer().clone();
        config.connector = Some(host.network().connector());
        Self { client: Client::connect(config).await.unwrap(), host }
    }

    /// Subscribes the queue. Returns when the server has confirmed or refused that. The head does not poll once more.
    async fn subscribe(&self, waiters: &mut WaitQueue) {
        let mut subscription = self.client.subscribe(CHANNEL.as_bytes());
        subscription.settled().await;
        waiters.questions.subscription = Some(subscription);
    }

    /// Publishes a message. Returns when it has arrived.
    async fn publish(&self, waiters: &WaitQueue) {
        self.host.change(|server| {
            assert!(server.store.execute(&["PUBLISH", CHANNEL, "0"]).is_some());
            server.tell_all();
        });
        while !has_message(waiters) {
            yield_now().await;
        }
    }
}

fn has_message(waiters: &WaitQueue) -> bool {
    waiters.questions.subscription.as_ref().unwrap().has_changed()
}

/// Creates a subscribed queue of two sleeping waiters. The head has polled and was refused.
async fn two_subscribed(now: Instant) -> (Connected, WaitQueue, [u64; 2]) {
    let (mut waiters, tickets) = two_asleep(now);
    let server = Connected::new().await;
    server.subscribe(&mut waiters).await;
    assert!(!ask(&mut waiters, tickets[0], now));
    (server, waiters, tickets)
}

/// Passes a hold to the head, which accepts it.
fn take(waiters: &mut WaitQueue, head: u64, now: Instant) {
    waiters.hand_over(7, handed(), now);
    assert!(matches!(turn(waiters, head, now), Turn::Take(7)));
    waiters.leave(head, Ending::HandedOver, now);
}

#[tokio::test(start_paused = true)]
async fn message_before_request_is_no_news() {
    let now = Instant::now();
    let (server, mut waiters, tickets) = two_subscribed(now).await;
    server.publish(&waiters).await;
    waiters.discard_old_messages();
    assert!(has_message(&waiters), "the head has not received it");
    tickets.iter().for_each(|ticket| _ = waiters.leave(*ticket, Ending::InVain, now));
    waiters.discard_old_messages();
    let next = waiters.join_first(1);
    waiters.on_held(now, Some(REPOLL));
    assert!(!ask(&mut waiters, next, now), "the reply is newer than the message");
}

/// The caller was refused before the release, and joins after the reply to the release.
#[tokio::test(start_paused = true)]
async fn release_before_join_prompts_caller() {
    let now = Instant::now();
    let (server, mut waiters) = (Connected::new().await, WaitQueue::default());
    server.subscribe(&mut waiters).await;
    waiters.let_others(now);
    server.publish(&waiters).await;
    waiters.released(found(Some(1)), now);
    let caller = waiters.join_first(1);
    waiters.on_held(now, Some(REPOLL));
    assert!(ask(&mut waiters, caller, now), "it waits for another release");
}

#[tokio::test(start_paused = true)]
async fn missed_message_prompts_only_subscribed_head() {
    let now = Instant::now();
    for (is_subscribed, is_head) in [(true, true), (true, false), (false, true)] {
        let (_server, mut waiters, [first, second]) = two_subscribed(now).await;
        waiters.questions.subscription.take_if(|_| !is_subscribed);
        waiters.may_have_missed_a_message(if is_head { first } else { second });
        assert_eq!(ask(&mut waiters, first, now), is_subscribed && is_head, "{is_subscribed} {is_head}");
    }
}

/// Only a holder announces a release, so a hold of this process was taken away.
#[tokio::test(start_paused = true)]
async fn foreign_message_ends_handing_over() {
    let now = Instant::now();
    let (server, mut waiters, [first, _]) = two_subscribed(now).await;
    assert_eq!(waiters.turn_limit(REPOLL, now).budget, REPOLL);
    server.publish(&waiters).await;
    for _ in 0..2 {
        assert_eq!(waiters.turn_limit(REPOLL, now).budget, Duration::ZERO);
    }
    assert!(ask(&mut waiters, first, now), "the message is left to the head");
}

#[tokio::test(start_paused = true)]
async fn own_message_keeps_handing_over() {
    let now = Instant::now();
    let (server, mut waiters, _) = two_subscribed(now).await;
    waiters.turns.give_back(true, now);
    waiters.turns.found(found(Some(1)), true, Some(false), now);
    server.publish(&waiters).await;
    for _ in 0..2 {
        assert!(waiters.turn_limit(REPOLL, now).budget >= REPOLL);
    }
}

/// A head that has taken a turn receives the message of the release itself.
#[tokio::test(start_paused = true)]
async fn release_wakes_only_unnotified_head() {
    let now = Instant::now();
    for has_taken_turn in [false, true] {
        let (_server, mut waiters, [first, second]) = two_subscribed(now).await;
        take(&mut waiters, first, now);
        assert!(!has_taken_turn || !ask(&mut waiters, second, now));
        assert_eq!(waiters.give_back(false, now).is_some(), !has_taken_turn);
    }
}

#[tokio::test(start_paused = true)]
async fn subscribed_head_waits_after_hand_over() {
    let now = Instant::now();
    let (_server, mut waiters, [first, second]) = two_subscribed(now).await;
    take(&mut waiters, first, now);
    let (unclaimed, head, again) = waiters.look_after(now + UNCLAIMED);
    assert!(unclaimed.is_none() && head.is_some() && !again);
    assert!(!ask(&mut waiters, second, now + UNCLAIMED), "a message will announce the release");
}

/// The message of the own release arrives before the reply to it, or after, as since Redis 7.2.
#[tokio::test(start_paused = true)]
async fn head_follows_only_foreign_message() {
    let now = Instant::now();
    for is_before_reply in [false, true] {
        let (server, mut waiters, [first, _]) = two_subscribed(now).await;
        server.publish(&waiters).await;
        assert!(waiters.give_back(true, now).is_some(), "the head has a new time to poll");
        assert!(!has_message(&waiters), "it is older than the release");
        if is_before_reply {
            server.publish(&waiters).await;
        }
        waiters.released(found(Some(2)), now);
        if !is_before_reply {
            server.publish(&waiters).await;
        }
        assert!(!ask(&mut waiters, first, now), "it is the other process' turn");
        server.publish(&waiters).await;
        assert!(ask(&mut waiters, first, now), "the other process has had its turn");
    }
}

/// No permit is left, so a waiter that wants fewer permits than the leaving one would be refused, too.
#[tokio::test(start_paused = true)]
async fn full_grant_leaves_nothing_to_others() {
    let now = Instant::now();
    let (server, mut waiters) = (Connected::new().await, WaitQueue::default());
    let [first, many, few] = [1, 3, 1].map(|wants| waiters.join(wants));
    server.subscribe(&mut waiters).await;
    assert!(ask(&mut waiters, first, now));
    waiters.on_held(now, Some(REPOLL));
    waiters.leave(first, full(REPOLL), now);
    assert!(!ask(&mut waiters, many, now));
    waiters.leave(many, Ending::InVain, now);
    assert!(!ask(&mut waiters, few, now));
}

/// The granted waiter is not the only holder. The next head polls if the other leases are not known, or may have ended.
#[tokio::test(start_paused = true)]
async fn full_grant_keeps_reason_to_poll() {
    let now = Instant::now();
    for (knows_lease, may_have_ended) in [(true, false), (true, true), (false, false)] {
        let (server, mut waiters) = (Connected::new().await, WaitQueue::default());
        let [first, second] = [waiters.join(1), waiters.join(1)];
        server.subscribe(&mut waiters).await;
        assert!(ask(&mut waiters, first, now));
        if knows_lease {
            waiters.on_held(now, Some(REPOLL));
        }
        if may_have_ended {
            waiters.poll_now();
        }
        waiters.leave(first, full(REPOLL), now);
        assert_eq!(ask(&mut waiters, second, now), may_have_ended || !knows_lease);
    }
}

#[tokio::test(start_paused = true)]
async fn refused_subscription_is_deaf() {
    for is_refused in [false, true] {
        let (server, mut waiters) = (Connected::new().await, WaitQueue::default());
        assert!(!waiters.is_deaf());
        server.host.change(|server| server.faults.forbids_channels = is_refused);
        server.subscribe(&mut waiters).await;
        assert_eq!(waiters.is_deaf(), is_refused);
    }
}

#[tokio::test(start_paused = true)]
async fn subscription_outlasts_last_waiter_once() {
    let now = Instant::now();
    let (_server, mut waiters, tickets) = two_subscribed(now).await;
    assert!(!waiters.begin_lingering() && !waiters.is_over() && waiters.stop_listening().is_none());
    tickets.iter().for_each(|ticket| _ = waiters.leave(*ticket, Ending::InVain, now));
    assert!(!waiters.is_over());
    assert!(waiters.begin_lingering() && !waiters.begin_lingering(), "its end is planned once");
    let next = waiters.join(1);
    assert!(waiters.stop_listening().is_none(), "a waiter has joined in time");
    waiters.leave(next, Ending::InVain, now);
    assert!(waiters.begin_lingering(), "its end is planned again");
    assert!(waiters.stop_listening().is_some() && waiters.is_over());
    assert!(!waiters.begin_lingering(), "no subscription is left");
    waiters.join(1);
    assert!(!waiters.is_over());
}

#[tokio::test(start_paused = true)]
async fn last_waiter_leaves_crowd_at_once() {
    let now = Instant::now();
    for (listeners, is_crowded) in [(2, false), (100, true)] {
        let (_server, mut waiters, tickets) = two_subscribed(now).await;
        waiters.refused_among(listeners, Duration::from_millis(1), u64::MAX);
        assert!(waiters.leave_the_crowd().is_none(), "waiters need it");
        tickets.iter().for_each(|ticket| _ = waiters.leave(*ticket, Ending::InVain, now));
        assert_eq!(waiters.leave_the_crowd().is_some(), is_crowded);
    }
}
