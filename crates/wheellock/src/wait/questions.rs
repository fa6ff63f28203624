//! When one who waits for a lock asks its server: at once where there is a reason to, when a message has come, when the holder's lease
//! ends, and from time to time in any case. Pure but for the subscription it keeps. Whose questions they are its user knows: the head's,
//! who asks for all waiters of the process (`wait_queue`), or those of one waiter who asks for itself, because the server knows who is next.

use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use wheellock_client::Subscription;

use crate::base::error::Error;

/// The questions of one who waits.
#[derive(Default)]
pub(crate) struct Questions {
    /// `None` for one who only asks from time to time.
    pub(crate) subscription: Option<Subscription>,
    /// When the next question is due even if no message comes; `None` until the server has said that the lock is held.
    pub(crate) poll_at: Option<Instant>,
    /// When the first question was asked after the last answer.
    pub(crate) unanswered_since: Option<Instant>,
    /// What kept the last question from being answered, other than the end of its own waiter's wait. Boxed, because a waiter who asks
    /// for itself has room for it.
    pub(crate) last_error: Option<Box<Error>>,
    /// There is a reason to ask at once.
    pub(crate) poll_now: bool,
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
    /// Take this hold, which was handed over.
    Take(u32),
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

impl Questions {
    /// Makes sure that messages arrive. A new subscription is followed by a question at once: the answer to an earlier
    /// one may have been overtaken by a message that found no listener.
    pub(crate) fn listen(&mut self, subscribe: impl FnOnce() -> Subscription) {
        if self.subscription.is_none() {
            self.subscription = Some(subscribe());
            self.poll_now = true;
        }
    }

    /// No question is without an answer.
    pub(crate) fn answered(&mut self) {
        self.unanswered_since = None;
        self.last_error = None;
    }

    /// The server said that the lock is held for at least `lease_left` (not at all bounded if `None`).
    pub(crate) fn on_held(&mut self, now: Instant, lease_left: Option<Duration>) {
        self.answered();
        let left = lease_left.map_or(REPOLL, |left| left.clamp(LAST_MILLISECOND, REPOLL));
        // An ACL may forbid the channel.
        let is_refused = self.subscription.as_ref().is_some_and(|news| news.refusal().is_some());
        self.poll_at = Some(now + if is_refused { left.min(POLL_UNTOLD) } else { left });
    }

    /// The question failed, and not because its own waiter's wait has ended.
    pub(crate) fn on_unanswered(&mut self, error: &Error) {
        self.last_error = Some(Box::new(error.clone()));
    }

    /// The next question is due at `at`, or before.
    pub(crate) fn poll_by(&mut self, at: Instant) {
        self.poll_at = Some(self.poll_at.map_or(at, |known| known.min(at)));
    }

    /// Whether a question is due, message or not.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.poll_at.is_none_or(|at| now >= at)
    }

    /// How many messages there were since the last time; if none, leaves the waker of the one who waits with the subscription.
    pub(crate) fn messages(&mut self, cx: &mut Context<'_>) -> u64 {
        match self.subscription.as_mut().map(|news| news.poll_changes(cx)) {
            Some(Poll::Ready(messages)) => messages,
            Some(Poll::Pending) | None => 0,
        }
    }

    /// What one who asks for itself has to do.
    pub(crate) fn turn(&mut self, now: Instant, cx: &mut Context<'_>) -> Turn {
        let heard = self.messages(cx) > 0;
        self.ask_or_wait(heard, now)
    }

    /// Asks if a message was `heard` that is to be followed, if the next question is due, which a message may have put off, or if there is
    /// another reason to ask at once.
    pub(crate) fn ask_or_wait(&mut self, heard: bool, now: Instant) -> Turn {
        if std::mem::take(&mut self.poll_now) || heard || self.is_due(now) {
            return Turn::Ask { heard, since: *self.unanswered_since.get_or_insert(now) };
        }
        Turn::Wait(self.poll_at)
    }

    /// What a waiter can be told when its wait has ended.
    pub(crate) fn known(&self) -> Known {
        match (&self.last_error, self.poll_at) {
            (Some(error), _) => Known::Trouble(Error::clone(error)),
            (None, None) => Known::Nothing,
            (None, Some(_)) => Known::Held { unanswered_since: self.unanswered_since },
        }
    }
}

/// Longest time between two questions of a waiting process. Only matters if a message got lost without the connection
/// breaking; so it costs latency then, and one small command per process and lock until then.
pub(crate) const REPOLL: Duration = Duration::from_secs(5);

/// The server rounds down to milliseconds: a lease ends within the one after what it said. Who asks when that one begins has the lock half of
/// it earlier, in the mean, than who asks when it is over, and asks once more in half of all cases: after this time.
const LAST_MILLISECOND: Duration = Duration::from_micros(500);

/// Time between two questions where no message is to be relied on: the server refuses the subscription, or what comes next may be the
/// message of this process' own release, which says nothing.
pub(crate) const POLL_UNTOLD: Duration = Duration::from_millis(100);

/// Of fair locks every waiter has one: a thousand waiters are to have no more than 1.5 KiB each, with their tasks and their channels.
const _: () = assert!(size_of::<Questions>() <= 96);

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    #[test]
    fn who_asks_for_itself_asks_at_once_when_its_time_has_come_and_not_before() {
        let (mut questions, now) = (Questions::default(), Instant::now());
        let mut cx = Context::from_waker(Waker::noop());
        let second = Duration::from_secs(1);
        assert!(matches!(questions.known(), Known::Nothing));
        assert!(matches!(questions.turn(now, &mut cx), Turn::Ask { heard: false, since } if since == now));
        let Turn::Ask { since, .. } = questions.turn(now + second, &mut cx) else {
            panic!("it has no answer yet")
        };
        assert_eq!(since, now, "all questions that find no answer share one patience");
        questions.on_held(now + second, Some(second));
        assert!(matches!(questions.known(), Known::Held { unanswered_since: None }));
        let Turn::Wait(Some(until)) = questions.turn(now + second, &mut cx) else { panic!("it is held") };
        assert_eq!(until, now + 2 * second);
        assert!(matches!(questions.turn(until, &mut cx), Turn::Ask { since, .. } if since == until));
        assert!(matches!(questions.known(), Known::Held { unanswered_since: Some(since) } if since == until));
        questions.on_unanswered(&Error::NoMembers);
        assert!(matches!(questions.known(), Known::Trouble(Error::NoMembers)));
        questions.on_held(until, Some(Duration::ZERO));
        let Turn::Wait(Some(next)) = questions.turn(until, &mut cx) else { panic!("it is held") };
        assert!(next > until && next < until + Duration::from_millis(1), "the server rounds down");
        questions.on_held(until, None);
        let Turn::Wait(Some(next)) = questions.turn(until, &mut cx) else { panic!("it is held") };
        assert!(next > until + second, "nobody said when");
    }
}
