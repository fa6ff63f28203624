//! The poll schedule of one waiter.
//!
//! A waiter polls when there is a reason, when a message has arrived, and when the holder's lease ends. A waiter also polls from time to
//! time. The schedule is pure, but for the subscription that it keeps. It does not know for which waiters it polls. In `wait_queue` the
//! head polls for all waiters of the process. Elsewhere a waiter polls for itself, because the server knows which waiter is next.

use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use wheellock_client::Subscription;

use crate::base::error::Error;

/// The poll schedule of one waiter.
#[derive(Default)]
pub(crate) struct PollSchedule {
    /// `None` for a waiter that only polls from time to time.
    pub(crate) subscription: Option<Subscription>,
    /// When the next poll is due without a message; `None` until the server has replied that the lock is held.
    pub(crate) poll_at: Option<Instant>,
    /// When the first request was sent after the last reply.
    pub(crate) unanswered_since: Option<Instant>,
    /// Error of the last request, unless the waiter's own wait ended. Boxed, because every waiter with its own schedule has this field.
    pub(crate) last_error: Option<Box<Error>>,
    /// There is a reason to poll at once.
    pub(crate) poll_now: bool,
}

/// The next step of a waiter.
pub(crate) enum Turn {
    /// Poll the server now.
    Ask {
        /// A message arrived.
        heard: bool,
        /// When the oldest request without a reply was sent.
        since: Instant,
        /// The poll asks the server to tell of the next change of the lock's key.
        remembers: bool,
    },
    /// Sleep, and at most until this time if there is one.
    Wait(Option<Instant>),
    /// Fail with the error that kept the head from polling. Every waiter gets this error.
    Failed(Error),
    /// Accept this hold, which was handed over.
    Take(u32),
}

/// The last known state of a lock when a wait ends.
pub(crate) enum Known {
    /// The server has not replied yet.
    Nothing,
    /// The lock was held when the server last replied. A later request has had no reply since `unanswered_since`, if there is one.
    Held { unanswered_since: Option<Instant> },
    /// The last request failed.
    Trouble(Error),
}

impl PollSchedule {
    /// Subscribes if there is no subscription yet. A poll follows at once, because a message may have been sent between the last reply and
    /// the subscription.
    pub(crate) fn listen(&mut self, subscribe: impl FnOnce() -> Subscription) {
        if self.subscription.is_none() {
            self.subscription = Some(subscribe());
            self.poll_now = true;
        }
    }

    /// Records that every request has a reply.
    pub(crate) fn answered(&mut self) {
        self.unanswered_since = None;
        self.last_error = None;
    }

    /// Records the server's refusal. The lock is held for at least `lease_left`, or without a bound if `None`.
    pub(crate) fn on_held(&mut self, now: Instant, lease_left: Option<Duration>) {
        self.answered();
        let left = lease_left.map_or(REPOLL, |left| left.clamp(LAST_MILLISECOND, REPOLL));
        // An ACL may forbid the channel. Without messages the waiter has to poll more often.
        let is_refused = self.subscription.as_ref().is_some_and(|news| news.refusal().is_some());
        self.poll_at = Some(now + if is_refused { left.min(POLL_UNTOLD) } else { left });
    }

    /// Records that the request failed, but not because its own waiter's wait ended.
    pub(crate) fn on_unanswered(&mut self, error: &Error) {
        self.last_error = Some(Box::new(error.clone()));
    }

    /// Makes the next poll due at `at` or earlier.
    pub(crate) fn poll_by(&mut self, at: Instant) {
        self.poll_at = Some(self.poll_at.map_or(at, |known| known.min(at)));
    }

    /// Returns true if a poll is due even without a message.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        // Before the first reply this waiter does not know that the lock is held.
        self.poll_at.is_none_or(|at| now >= at)
    }

    /// Returns the number of messages since the last call. If there are none, the subscription keeps the waiter's waker.
    pub(crate) fn messages(&mut self, cx: &mut Context<'_>) -> u64 {
        match self.subscription.as_mut().map(|news| news.poll_changes(cx)) {
            Some(Poll::Ready(messages)) => messages,
            Some(Poll::Pending) | None => 0,
        }
    }

    /// Returns the next step of a waiter that polls for itself.
    pub(crate) fn turn(&mut self, now: Instant, cx: &mut Context<'_>) -> Turn {
        let heard = self.messages(cx) > 0;
        self.ask_or_wait(heard, now)
    }

    /// Returns [`Turn::Ask`] if a message was `heard` that the waiter follows, or if the next poll is due. A message may have postponed the
    /// next poll. Any other reason to poll at once counts, too.
    pub(crate) fn ask_or_wait(&mut self, heard: bool, now: Instant) -> Turn {
        // The reason is taken in any case, because one poll serves every reason.
        if std::mem::take(&mut self.poll_now) || heard || self.is_due(now) {
            // Polls without a reply share this instant. Otherwise each repetition would extend the patience with a silent server.
            let since = *self.unanswered_since.get_or_insert(now);
            return Turn::Ask { heard, since, remembers: false };
        }
        Turn::Wait(self.poll_at)
    }

    /// Returns the last known state of the lock for a waiter whose wait has ended.
    pub(crate) fn known(&self) -> Known {
        match (&self.last_error, self.poll_at) {
            (Some(error), _) => Known::Trouble(Error::clone(error)),
            (None, None) => Known::Nothing,
            (None, Some(_)) => Known::Held { unanswered_since: self.unanswered_since },
        }
    }
}

/// Longest time between two polls of a waiting process. The bound only matters if a message is lost on a working connection: then it limits
/// the latency. It costs one small command per process and lock.
pub(crate) const REPOLL: Duration = Duration::from_secs(5);

/// Pause before the second poll at the end of a lease.
///
/// The server rounds down to milliseconds, so a lease ends within the millisecond that follows the reported time. A poll at the beginning
/// of that millisecond gets the lock half a millisecond earlier, on average, than at its end. In half of all cases the waiter polls once
/// more, after this pause.
const LAST_MILLISECOND: Duration = Duration::from_micros(500);

/// Time between two polls when messages are not reliable. Either the server refuses the subscription, or the next message may announce this
/// process' own release, which carries no news.
pub(crate) const POLL_UNTOLD: Duration = Duration::from_millis(100);

/// Every waiter of a fair lock has a schedule. A thousand waiters may use at most 1.5 KiB each, with their tasks and their channels.
const _: () = assert!(size_of::<PollSchedule>() <= 96);

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    #[test]
    fn schedule_polls_exactly_when_due() {
        let (mut questions, now) = (PollSchedule::default(), Instant::now());
        let mut cx = Context::from_waker(Waker::noop());
        let second = Duration::from_secs(1);
        assert!(matches!(questions.known(), Known::Nothing));
        assert!(
            matches!(questions.turn(now, &mut cx), Turn::Ask { heard: false, since, .. } if since == now)
        );
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
