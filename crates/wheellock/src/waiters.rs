//! Who waits for a lock in this process, in order. Pure but for the subscription it keeps.
//!
//! Only the first in line asks the server, and only when there is a reason: a message, the end of the holder's lease,
//! or the bounded re-poll. Everybody else just stands in line, so a thousand waiters cost the server as much as one.
//! Whoever leaves the head of the line passes on what it may have learnt and not used.

use std::collections::BTreeMap;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use wheellock_client::Subscription;
use wheellock_client::planted::bug;

use crate::error::Error;

#[derive(Default)]
pub(crate) struct Waiters {
    /// By ticket; the waker of whoever has to be woken.
    line: BTreeMap<u64, Option<Waker>>,
    /// Whom the same error awaits: everybody with a ticket up to this one.
    failed: Option<(u64, Error)>,
    next_ticket: u64,
    /// Kept while somebody waits, and a little longer.
    subscription: Option<Subscription>,
    /// When the head asks again even if it hears nothing.
    look_at: Option<Instant>,
    /// The head has a reason to ask at once.
    look_now: bool,
    /// The end of the subscription is planned.
    lingering: bool,
    /// The last question found no answer. Until one does, nobody knows that the lock is held.
    trouble: Option<Error>,
}

/// What a waiter has to do.
pub(crate) enum Turn {
    /// Ask the server now; `heard` if there was a message.
    Ask { heard: bool },
    /// Sleep; if a time is given, until then at most.
    Wait(Option<Instant>),
    /// The server cannot be asked; everybody in line is told.
    Failed(Error),
}

impl Waiters {
    pub(crate) fn is_empty(&self) -> bool {
        self.line.is_empty()
    }

    /// Stands in line.
    pub(crate) fn join(&mut self) -> u64 {
        self.next_ticket += 1;
        self.line.insert(MIDDLE + self.next_ticket, None);
        MIDDLE + self.next_ticket
    }

    /// Stands in front of the line: nobody in it has asked yet.
    pub(crate) fn join_first(&mut self) -> u64 {
        let first = self.line.first_key_value().map_or(MIDDLE + self.next_ticket, |(first, _)| *first);
        self.line.insert(first - 1, None);
        first - 1
    }

    /// Somebody is about to ask the server without standing in line: what was heard so far is not news to the answer.
    pub(crate) fn about_to_ask(&mut self) {
        if let Some(subscription) = self.subscription.as_mut().filter(|_| self.line.is_empty()) {
            subscription.take_changed();
        }
    }

    /// Makes sure that messages arrive. A new subscription is followed by a question at once: the answer to an earlier
    /// one may have been overtaken by a message that nobody heard.
    pub(crate) fn listen(&mut self, subscribe: impl FnOnce() -> Subscription) {
        if self.subscription.is_none() {
            self.subscription = Some(subscribe());
            self.look_now = true;
        }
    }

    /// The server said that the lock is held for at least `lease_left` (not at all bounded if `None`).
    pub(crate) fn heard_held(&mut self, now: Instant, lease_left: Option<Duration>) {
        self.trouble = None;
        // One millisecond more, because the server rounds down.
        let lease_left = lease_left.filter(|_| !bug("the end of a lease is not looked for"));
        let left = lease_left.map_or(REPOLL, |left| (left + Duration::from_millis(1)).min(REPOLL));
        // Without messages (an ACL may forbid the channel) only asking helps.
        let deaf = self.subscription.as_ref().is_some_and(|news| news.refusal().is_some());
        let left = if deaf { left.min(POLL_WHEN_DEAF) } else { left };
        self.look_at = Some(now + left);
    }

    /// What the holder of `ticket` has to do; leaves its waker if it has to wait. Who is first waits, too, while somebody
    /// asks without standing in line.
    pub(crate) fn turn(&mut self, ticket: u64, asked_for: bool, now: Instant, cx: &mut Context<'_>) -> Turn {
        let is_head = self.is_head(ticket);
        let Some(waiter) = self.line.get_mut(&ticket) else { return Turn::Ask { heard: false } };
        if let Some((last, error)) = &self.failed
            && ticket <= *last
        {
            return Turn::Failed(error.clone());
        }
        if bug("nobody stands in line") {
            return Turn::Ask { heard: false };
        }
        *waiter = Some(cx.waker().clone());
        if !is_head || asked_for {
            return Turn::Wait(None);
        }
        let heard = self.subscription.as_mut().is_some_and(|news| news.poll_changed(cx) == Poll::Ready(()));
        let due = self.look_at.is_none_or(|at| now >= at);
        if std::mem::take(&mut self.look_now) || heard || due {
            return Turn::Ask { heard };
        }
        Turn::Wait(self.look_at)
    }

    /// Leaves the line. Returns whom to wake: the next head, if the head left.
    ///
    /// A head that leaves without the lock may have consumed a wake-up, so the next one asks at once. A head that got the
    /// lock, for the time of `lease`, has nothing to pass on: the next one hears of its release. Not of its lease's end,
    /// though, so it asks then.
    pub(crate) fn leave(&mut self, ticket: u64, lease: Option<Duration>, now: Instant) -> Option<Waker> {
        let was_head = self.is_head(ticket);
        self.line.remove(&ticket);
        if !was_head {
            return None;
        }
        match lease {
            Some(_) => {
                self.heard_held(now, lease);
                // Of a release nobody hears where nobody listens yet.
                self.look_now = self.subscription.is_none();
            }
            None if bug("the baton is lost") => return None,
            None => self.look_now = true,
        }
        self.head_to_wake()
    }

    /// The waker of who is first in line.
    pub(crate) fn head_to_wake(&mut self) -> Option<Waker> {
        self.line.first_entry().and_then(|mut head| head.get_mut().take())
    }

    /// Whether the server has said that the lock is held.
    pub(crate) fn know_held(&self) -> bool {
        self.look_at.is_some()
    }

    /// A question found no answer in time. Returns whether the one before it had found none either.
    pub(crate) fn heard_nothing(&mut self, error: &Error) -> bool {
        self.trouble.replace(error.clone()).is_some()
    }

    /// Why the last question found no answer, if it found none.
    pub(crate) fn trouble(&self) -> Option<Error> {
        self.trouble.clone()
    }

    /// The server could not be asked, and what stopped the head stops everybody.
    pub(crate) fn fail_all(&mut self, error: &Error) -> Vec<Waker> {
        self.failed = Some((MIDDLE + self.next_ticket, error.clone()));
        self.line.values_mut().filter_map(Option::take).collect()
    }

    /// Whether the last waiter has just left, and the end of its subscription is to be planned.
    pub(crate) fn begin_lingering(&mut self) -> bool {
        let quiet = self.line.is_empty() && self.subscription.is_some();
        quiet && !std::mem::replace(&mut self.lingering, true)
    }

    /// Gives the subscription up if nobody waits. The caller drops it after unlocking.
    pub(crate) fn stop_listening(&mut self) -> Option<Subscription> {
        self.lingering = false;
        if self.line.is_empty() && !bug("subscriptions stay") { self.subscription.take() } else { None }
    }

    /// Whether nobody waits and nothing is listened to.
    pub(crate) fn is_over(&self) -> bool {
        self.line.is_empty() && self.subscription.is_none()
    }

    /// Whether the holder of `ticket` is first in line.
    pub(crate) fn is_head(&self, ticket: u64) -> bool {
        self.line.first_key_value().is_some_and(|(first, _)| *first == ticket)
    }
}

/// Tickets are given out from here upwards, and downwards to those who may stand in front.
const MIDDLE: u64 = 1 << 32;

/// Longest time between two questions of a waiting process. Only matters if a message got lost without the connection
/// breaking; so it costs latency then, and one small command per process and lock until then.
const REPOLL: Duration = Duration::from_secs(5);

/// Time between two questions where the server refuses the subscription.
const POLL_WHEN_DEAF: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(waiters: &mut Waiters, ticket: u64, now: Instant) -> bool {
        matches!(waiters.turn(ticket, false, now, &mut Context::from_waker(Waker::noop())), Turn::Ask { .. })
    }

    #[test]
    fn only_the_head_asks_and_the_line_is_first_come_first_served() {
        let (mut waiters, now) = (Waiters::default(), Instant::now());
        let (a, b, c) = (waiters.join(), waiters.join(), waiters.join());
        assert!(ask(&mut waiters, a, now), "nothing is known yet");
        assert!(!ask(&mut waiters, b, now) && !ask(&mut waiters, c, now));
        waiters.heard_held(now, Some(Duration::from_millis(100)));
        assert!(!ask(&mut waiters, a, now));
        assert!(!ask(&mut waiters, a, now + Duration::from_millis(100)), "the server rounds down");
        assert!(ask(&mut waiters, a, now + Duration::from_millis(101)), "the lease may have ended");
        assert!(waiters.leave(a, Some(2 * REPOLL), now).is_some(), "the next head is woken");
        assert!(ask(&mut waiters, b, now), "nobody listens here, so nobody would hear of the release");
        assert!(!ask(&mut waiters, b, now), "it waits for the release");
        assert!(ask(&mut waiters, b, now + REPOLL), "but not for ever");
        assert!(waiters.leave(b, Some(REPOLL / 2), now).is_some());
        assert!(ask(&mut waiters, c, now));
        assert!(!ask(&mut waiters, c, now));
        assert!(ask(&mut waiters, c, now + REPOLL * 3 / 5), "nor beyond the lease of the one before");
        assert!(waiters.leave(c, None, now).is_none());
        assert!(waiters.is_empty());
    }

    #[test]
    fn while_somebody_asks_alone_the_line_waits_and_lets_him_in_front() {
        let (mut waiters, now) = (Waiters::default(), Instant::now());
        let (a, b) = (waiters.join(), waiters.join());
        let turn = |waiters: &mut Waiters, ticket, asked_for| {
            matches!(
                waiters.turn(ticket, asked_for, now, &mut Context::from_waker(Waker::noop())),
                Turn::Ask { .. }
            )
        };
        assert!(!turn(&mut waiters, a, true) && !turn(&mut waiters, b, true));
        assert!(!waiters.know_held(), "nobody has heard anything yet");
        let first = waiters.join_first();
        waiters.heard_held(now, Some(REPOLL));
        assert!(waiters.is_head(first) && waiters.know_held());
        assert!(!turn(&mut waiters, a, false), "it stands behind");
        assert!(waiters.leave(first, None, now).is_some());
        assert!(turn(&mut waiters, a, false));
    }

    #[test]
    fn a_head_that_leaves_without_the_lock_passes_its_wake_up_on() {
        let (mut waiters, now) = (Waiters::default(), Instant::now());
        let (a, b) = (waiters.join(), waiters.join());
        waiters.heard_held(now, None);
        assert!(!ask(&mut waiters, a, now) && !ask(&mut waiters, b, now));
        assert!(waiters.leave(a, None, now).is_some());
        assert!(ask(&mut waiters, b, now));
        assert!(!ask(&mut waiters, b, now), "once");
    }

    #[test]
    fn an_error_reaches_everybody_in_line() {
        let (mut waiters, now) = (Waiters::default(), Instant::now());
        let tickets = [waiters.join(), waiters.join()];
        waiters.heard_held(now, None);
        assert!(tickets.iter().all(|ticket| !ask(&mut waiters, *ticket, now)));
        assert_eq!(waiters.fail_all(&Error::NoRandomness).len(), 2);
        for ticket in tickets {
            let turn = waiters.turn(ticket, false, now, &mut Context::from_waker(Waker::noop()));
            assert!(matches!(turn, Turn::Failed(Error::NoRandomness)));
        }
    }
}
