//! The waiters for one lock in this process, in order. Pure but for the subscription it keeps.
//!
//! Only the head of the queue asks the server, and only when there is a reason: a message, the end of the holder's lease,
//! or the bounded re-poll. The other waiters only wait, so a thousand of them cost the server as much as one. A head that
//! leaves passes on what it may have learnt and not used: the baton.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use wheellock_client::Subscription;

use crate::error::Error;
use crate::tickets::Tickets;

#[derive(Default)]
pub(crate) struct WaitQueue {
    waiting: Tickets<Waiter>,
    /// How many have joined so far.
    joined: u64,
    /// Kept while there are waiters, and a little longer.
    subscription: Option<Subscription>,
    /// When the head asks again even if it hears nothing; `None` until the server has said that the lock is held.
    poll_at: Option<Instant>,
    /// The head has a reason to ask at once.
    poll_now: bool,
    /// The end of the subscription is planned.
    lingering: bool,
    /// When the head asked for the first time after the last answer.
    unanswered_since: Option<Instant>,
    /// What kept the last question from being answered, other than the end of its own waiter's wait.
    last_error: Option<Error>,
}

#[derive(Default)]
struct Waiter {
    /// If it has to be woken.
    waker: Option<Waker>,
    /// The head could not ask, and what stopped it stops this one, too.
    failed: Option<Arc<Error>>,
    /// It asks at once, head or not: another waiter was let in who does not keep it out.
    may_ask: bool,
    /// How many times it wants to hold the lock.
    wants: u32,
    /// How many had joined before.
    joined: u64,
    /// Of a latch: when the last one of its name had ended when this one looked first.
    ended: Option<u64>,
    /// The latch that it waits for has ended.
    open: bool,
}

/// What a waiter has to do.
pub(crate) enum Turn {
    /// Ask the server now.
    Ask {
        /// There was a message.
        heard: bool,
        /// Since when the server owes an answer.
        since: Instant,
    },
    /// Sleep; if a time is given, until then at most.
    Wait(Option<Instant>),
    /// The server cannot be asked; every waiter is told.
    Failed(Error),
    /// There is nothing left to wait for.
    Open,
}

/// What is known of the lock when a wait ends.
pub(crate) enum Known {
    /// The server has not said anything yet.
    Nothing,
    /// It was held when the server was last heard of, and a question is unanswered since this instant, if there is one.
    Held { unanswered_since: Option<Instant> },
    /// The last question failed.
    Trouble(Error),
}

impl WaitQueue {
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// A waiter joins at the end of the queue.
    pub(crate) fn join(&mut self, wants: u32) -> u64 {
        let waiter = self.next_waiter(wants);
        self.waiting.push_back(waiter)
    }

    /// A waiter joins before all others, none of whom has asked yet.
    pub(crate) fn join_first(&mut self, wants: u32) -> u64 {
        let waiter = self.next_waiter(wants);
        self.waiting.push_front(waiter)
    }

    fn next_waiter(&mut self, wants: u32) -> Waiter {
        let joined = self.joined;
        self.joined += 1;
        Waiter { wants, joined, ..Waiter::default() }
    }

    /// How many have joined so far, those included who have left.
    pub(crate) fn joined(&self) -> u64 {
        self.joined
    }

    /// A caller outside the queue is about to ask the server: what was heard so far is not news to the answer.
    pub(crate) fn about_to_ask(&mut self) {
        if let Some(subscription) = self.subscription.as_mut().filter(|_| self.waiting.is_empty()) {
            subscription.take_changed();
        }
    }

    /// Makes sure that messages arrive. A new subscription is followed by a question at once: the answer to an earlier
    /// one may have been overtaken by a message that found no listener.
    pub(crate) fn listen(&mut self, subscribe: impl FnOnce() -> Subscription) {
        if self.subscription.is_none() {
            self.subscription = Some(subscribe());
            self.poll_now = true;
        }
    }

    /// The server said that the lock is held for at least `lease_left` (not at all bounded if `None`).
    pub(crate) fn on_held(&mut self, now: Instant, lease_left: Option<Duration>) {
        self.unanswered_since = None;
        self.last_error = None;
        // One millisecond more, because the server rounds down.
        let left = lease_left.map_or(REPOLL, |left| (left + Duration::from_millis(1)).min(REPOLL));
        // Without messages (an ACL may forbid the channel) only asking helps.
        let deaf = self.subscription.as_ref().is_some_and(|news| news.refusal().is_some());
        let left = if deaf { left.min(POLL_WHEN_DEAF) } else { left };
        self.poll_at = Some(now + left);
    }

    /// The head's question failed, and not because its own wait has ended.
    pub(crate) fn on_unanswered(&mut self, error: &Error) {
        self.last_error = Some(error.clone());
    }

    /// What the holder of `ticket` has to do; leaves its waker if it has to wait. The head waits, too, while a caller
    /// asks from outside the queue.
    pub(crate) fn turn(&mut self, ticket: u64, asked_for: bool, now: Instant, cx: &mut Context<'_>) -> Turn {
        let is_head = self.is_head(ticket);
        let Some(waiter) = self.waiting.get_mut(ticket) else {
            return Turn::Ask { heard: false, since: now };
        };
        if waiter.open {
            return Turn::Open;
        }
        if let Some(error) = &waiter.failed {
            return Turn::Failed(Error::clone(error));
        }
        if std::mem::take(&mut waiter.may_ask) {
            return Turn::Ask { heard: false, since: now };
        }
        waiter.waker = Some(cx.waker().clone());
        if !is_head || asked_for {
            return Turn::Wait(None);
        }
        let heard = self.subscription.as_mut().is_some_and(|news| news.poll_changed(cx) == Poll::Ready(()));
        let due = self.poll_at.is_none_or(|at| now >= at);
        if std::mem::take(&mut self.poll_now) || heard || due {
            return Turn::Ask { heard, since: *self.unanswered_since.get_or_insert(now) };
        }
        Turn::Wait(self.poll_at)
    }

    /// A waiter leaves the queue. Returns the next head's waker, if the head left.
    ///
    /// A head that leaves without an answer to its question may have consumed a wake-up, and one that was let in may not have asked
    /// yet, so the next head asks at once. A head that got the lock, for the time of `lease`, has nothing to pass on: the next one
    /// hears of its release. Not of its lease's end, though, so it asks then.
    pub(crate) fn leave(&mut self, ticket: u64, lease: Option<Duration>, now: Instant) -> Option<Waker> {
        let was_head = self.is_head(ticket);
        let was_let_in = self.waiting.remove(ticket).is_some_and(|waiter| waiter.may_ask);
        self.poll_now |= was_let_in;
        if self.waiting.is_empty() {
            // No waiter is left to whom an old error would matter; one that comes later asks anew.
            self.last_error = None;
            self.poll_now |= self.unanswered_since.take().is_some();
        }
        if !was_head {
            return if was_let_in { self.head_to_wake() } else { None };
        }
        match lease {
            Some(_) => {
                self.on_held(now, lease);
                // Without a subscription no waiter would hear of the release.
                self.poll_now = self.subscription.is_none();
            }
            None => self.poll_now |= self.unanswered_since.is_some(),
        }
        self.head_to_wake()
    }

    /// A waiter leaves who was let in, where many may hold the lock and there is `room` for more: those for whom it will do ask at
    /// once, each for itself, but nobody before one who came earlier. Returns their wakers.
    pub(crate) fn leave_open(&mut self, ticket: u64, mut room: u32) -> Vec<Waker> {
        self.waiting.remove(ticket);
        self.unanswered_since = None;
        self.last_error = None;
        let mut let_in = Vec::new();
        for waiter in self.waiting.values_mut() {
            let Some(left) = room.checked_sub(waiter.wants) else { break };
            if room < u32::MAX {
                room = left;
            }
            waiter.may_ask = true;
            let_in.extend(waiter.waker.take());
        }
        if let_in.is_empty() {
            // Without a subscription the head would not hear of the next release.
            self.poll_now |= self.subscription.is_none();
            let_in.extend(self.head_to_wake());
        }
        let_in
    }

    /// When a waiter looked for the first time, the last latch had ended then.
    pub(crate) fn saw(&mut self, ticket: u64, ended: u64) {
        if let Some(waiter) = self.waiting.get_mut(ticket) {
            waiter.ended.get_or_insert(ended);
        }
    }

    /// A latch has ended: if it `is_open` for all but those who joined only after somebody had been told so, as `asked` says; and
    /// for those in any case who looked for the first time before it `ended`. The others look again. Returns who is to be woken.
    pub(crate) fn open(&mut self, is_open: bool, ended: u64, asked: u64) -> Vec<Waker> {
        let mut woken = Vec::new();
        for waiter in self.waiting.values_mut() {
            let looked_before = waiter.ended.is_some_and(|before| before < ended);
            if looked_before || (is_open && waiter.joined < asked) {
                waiter.open = true;
                woken.extend(waiter.waker.take());
            } else {
                self.poll_now = true;
            }
        }
        if self.poll_now {
            woken.extend(self.head_to_wake());
        }
        woken
    }

    /// A waiter leaves for whom the latch is open. Returns the next head's waker, if the head left.
    pub(crate) fn leave_opened(&mut self, ticket: u64) -> Option<Waker> {
        let was_head = self.is_head(ticket);
        self.waiting.remove(ticket);
        self.unanswered_since = None;
        self.last_error = None;
        if was_head { self.head_to_wake() } else { None }
    }

    /// The lock may be free, though no message says so: the head is to ask. Returns its waker.
    pub(crate) fn poll_now(&mut self) -> Option<Waker> {
        self.poll_now = true;
        self.head_to_wake()
    }

    /// The head's waker.
    pub(crate) fn head_to_wake(&mut self) -> Option<Waker> {
        self.waiting.first().and_then(|head| head.waker.take())
    }

    /// What a waiter whose wait has ended can be told.
    pub(crate) fn known(&self) -> Known {
        match (&self.last_error, self.poll_at) {
            (Some(error), _) => Known::Trouble(error.clone()),
            (None, None) => Known::Nothing,
            (None, Some(_)) => Known::Held { unanswered_since: self.unanswered_since },
        }
    }

    /// The server could not be asked for as long as any question waits for its answer, or refused: what stopped the head stops
    /// every waiter who is in the queue now.
    pub(crate) fn fail_all(&mut self, error: &Error) -> Vec<Waker> {
        let error = Arc::new(error.clone());
        let fail = |waiter: &mut Waiter| {
            waiter.failed = Some(Arc::clone(&error));
            waiter.waker.take()
        };
        self.waiting.values_mut().filter_map(fail).collect()
    }

    /// Whether the last waiter has just left, and the end of its subscription is to be planned.
    pub(crate) fn begin_lingering(&mut self) -> bool {
        let quiet = self.waiting.is_empty() && self.subscription.is_some();
        quiet && !std::mem::replace(&mut self.lingering, true)
    }

    /// Gives the subscription up if there are no waiters. The caller drops it after unlocking.
    pub(crate) fn stop_listening(&mut self) -> Option<Subscription> {
        self.lingering = false;
        if self.waiting.is_empty() { self.subscription.take() } else { None }
    }

    /// Whether there are no waiters and nothing is listened to.
    pub(crate) fn is_over(&self) -> bool {
        self.waiting.is_empty() && self.subscription.is_none()
    }

    /// Whether the waiter with `ticket` is the head.
    pub(crate) fn is_head(&self, ticket: u64) -> bool {
        self.waiting.is_first(ticket)
    }
}

/// Longest time between two questions of a waiting process. Only matters if a message got lost without the connection
/// breaking; so it costs latency then, and one small command per process and lock until then.
const REPOLL: Duration = Duration::from_secs(5);

/// Time between two questions where the server refuses the subscription.
const POLL_WHEN_DEAF: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(waiters: &mut WaitQueue, ticket: u64, now: Instant) -> bool {
        matches!(waiters.turn(ticket, false, now, &mut Context::from_waker(Waker::noop())), Turn::Ask { .. })
    }

    #[test]
    fn where_many_may_hold_the_lock_one_who_is_let_in_lets_all_others_ask() {
        let (mut waiters, now) = (WaitQueue::default(), Instant::now());
        let (a, b, c) = (waiters.join(1), waiters.join(1), waiters.join(1));
        assert!(ask(&mut waiters, a, now) && !ask(&mut waiters, b, now) && !ask(&mut waiters, c, now));
        waiters.on_held(now, Some(REPOLL));
        assert_eq!(waiters.leave_open(a, u32::MAX).len(), 2, "both are woken");
        assert!(ask(&mut waiters, c, now) && ask(&mut waiters, b, now));
        assert!(!ask(&mut waiters, c, now) && !ask(&mut waiters, b, now), "once");
        assert!(ask(&mut waiters, b, now + REPOLL), "the head asks on when the lease has ended");
    }

    #[test]
    fn a_latch_that_has_ended_is_open_for_those_whom_it_concerns() {
        let (mut waiters, now) = (WaitQueue::default(), Instant::now());
        let [early, late] = [waiters.join(1), waiters.join(1)];
        waiters.saw(early, 5);
        waiters.saw(late, 7);
        waiters.on_held(now, None);
        let is_open = |waiters: &mut WaitQueue, ticket| {
            matches!(waiters.turn(ticket, false, now, &mut Context::from_waker(Waker::noop())), Turn::Open)
        };
        // Set again since.
        let asked = waiters.joined();
        assert!(waiters.open(false, 7, asked).is_empty(), "nobody sleeps");
        assert!(is_open(&mut waiters, early) && !is_open(&mut waiters, late), "it waits for the next one");
        assert!(waiters.leave_opened(early).is_some(), "the next head is woken");
        // Who joined only after the question had been sent may wait for one that was set later.
        let asked = waiters.joined();
        let later = waiters.join(1);
        waiters.saw(later, 9);
        assert!(!ask(&mut waiters, later, now));
        waiters.open(true, 9, asked);
        assert!(is_open(&mut waiters, late) && !is_open(&mut waiters, later));
        assert!(waiters.leave_opened(late).is_some(), "the next head is woken");
        assert!(ask(&mut waiters, later, now), "and looks again");
        assert!(!ask(&mut waiters, later, now), "once");
    }

    /// Invariant 6: one that was let in and goes before it has asked passes that on.
    #[test]
    fn who_was_let_in_and_leaves_without_asking_lets_the_next_one_ask() {
        let (mut waiters, now) = (WaitQueue::default(), Instant::now());
        let [first, let_in, next] = [waiters.join(1), waiters.join(1), waiters.join(1)];
        assert!(ask(&mut waiters, first, now));
        waiters.on_held(now, None);
        assert!(!ask(&mut waiters, let_in, now) && !ask(&mut waiters, next, now));
        assert_eq!(waiters.leave_open(first, 1).len(), 1);
        assert!(waiters.leave(let_in, None, now).is_some(), "the next head is woken");
        assert!(ask(&mut waiters, next, now), "something is free, and nobody else asks for it");
        assert!(!ask(&mut waiters, next, now), "once");
    }

    #[test]
    fn who_wants_many_is_not_overtaken_by_who_wants_few() {
        let (mut waiters, now) = (WaitQueue::default(), Instant::now());
        let (a, b, c) = (waiters.join(1), waiters.join(3), waiters.join(1));
        assert!(ask(&mut waiters, a, now) && !ask(&mut waiters, b, now) && !ask(&mut waiters, c, now));
        assert_eq!(waiters.leave_open(a, 2).len(), 1, "the head is woken, who wants three");
        assert!(!ask(&mut waiters, c, now), "one would be free");
        assert!(waiters.leave_open(b, 1).len() == 1 && ask(&mut waiters, c, now));
    }

    #[test]
    fn only_the_head_asks_and_the_line_is_first_come_first_served() {
        let (mut waiters, now) = (WaitQueue::default(), Instant::now());
        let (a, b, c) = (waiters.join(1), waiters.join(1), waiters.join(1));
        assert!(ask(&mut waiters, a, now), "nothing is known yet");
        assert!(!ask(&mut waiters, b, now) && !ask(&mut waiters, c, now));
        waiters.on_held(now, Some(Duration::from_millis(100)));
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
        let (mut waiters, now) = (WaitQueue::default(), Instant::now());
        let (a, b) = (waiters.join(1), waiters.join(1));
        let turn = |waiters: &mut WaitQueue, ticket, asked_for| {
            matches!(
                waiters.turn(ticket, asked_for, now, &mut Context::from_waker(Waker::noop())),
                Turn::Ask { .. }
            )
        };
        assert!(!turn(&mut waiters, a, true) && !turn(&mut waiters, b, true));
        assert!(matches!(waiters.known(), Known::Nothing), "nobody has heard anything yet");
        let first = waiters.join_first(1);
        waiters.on_held(now, Some(REPOLL));
        assert!(waiters.is_head(first) && matches!(waiters.known(), Known::Held { unanswered_since: None }));
        assert!(!turn(&mut waiters, a, false), "it stands behind");
        assert!(waiters.leave(first, None, now).is_some());
        assert!(!turn(&mut waiters, a, false), "whoever left had its answer");
        assert!(turn(&mut waiters, a, false) || waiters.poll_now().is_some());
        assert!(turn(&mut waiters, a, false));
    }

    #[test]
    fn a_head_that_leaves_without_the_lock_passes_its_wake_up_on() {
        let (mut waiters, now) = (WaitQueue::default(), Instant::now());
        let (a, b) = (waiters.join(1), waiters.join(1));
        waiters.on_held(now, None);
        assert!(!ask(&mut waiters, a, now) && !ask(&mut waiters, b, now));
        assert!(ask(&mut waiters, a, now + REPOLL));
        waiters.poll_at = None;
        waiters.on_held(now, None);
        waiters.poll_now = true;
        assert!(ask(&mut waiters, a, now), "it has heard something");
        assert!(waiters.leave(a, None, now).is_some());
        assert!(ask(&mut waiters, b, now));
        assert!(!ask(&mut waiters, b, now), "once");
    }

    /// A2: a waiter that leaves without having asked leaves no reason to ask behind.
    #[test]
    fn a_head_that_leaves_without_a_question_makes_nobody_ask() {
        let (mut waiters, now) = (WaitQueue::default(), Instant::now());
        let (a, b) = (waiters.join(1), waiters.join(1));
        waiters.on_held(now, None);
        assert!(!ask(&mut waiters, a, now) && !ask(&mut waiters, b, now));
        assert!(waiters.leave(a, None, now).is_some());
        assert!(!ask(&mut waiters, b, now));
    }

    /// A3: an error reaches those who wait, and nobody who comes later.
    #[test]
    fn who_comes_after_an_error_hears_nothing_of_it() {
        let (mut waiters, now) = (WaitQueue::default(), Instant::now());
        let waiting = [waiters.join(1), waiters.join(1)];
        waiters.on_held(now, None);
        waiters.on_unanswered(&Error::NoRandomness);
        assert!(matches!(waiters.known(), Known::Trouble(Error::NoRandomness)));
        waiters.fail_all(&Error::NoRandomness);
        let later = [waiters.join_first(1), waiters.join(1)];
        waiting.iter().for_each(|ticket| _ = waiters.leave(*ticket, None, now));
        for ticket in later {
            let turn = waiters.turn(ticket, false, now, &mut Context::from_waker(Waker::noop()));
            assert!(!matches!(turn, Turn::Failed(_)));
        }
        later.iter().for_each(|ticket| _ = waiters.leave(*ticket, None, now));
        assert!(!matches!(waiters.known(), Known::Trouble(_)), "nobody is left to whom it matters");
    }

    #[test]
    fn an_error_reaches_every_waiter_in_the_queue() {
        let (mut waiters, now) = (WaitQueue::default(), Instant::now());
        let tickets = [waiters.join(1), waiters.join(1)];
        waiters.on_held(now, None);
        assert!(tickets.iter().all(|ticket| !ask(&mut waiters, *ticket, now)));
        assert_eq!(waiters.fail_all(&Error::NoRandomness).len(), 2);
        for ticket in tickets {
            let turn = waiters.turn(ticket, false, now, &mut Context::from_waker(Waker::noop()));
            assert!(matches!(turn, Turn::Failed(Error::NoRandomness)));
        }
    }
}
