//! When one waiter that asks for itself asks the server. Pure but for the subscription it keeps. Where the server knows who is next,
//! nobody in this process asks for another: so this is what `wait_queue` is for many, without what they have to do with each other,
//! and small, for a thousand who wait have one each.

use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use wheellock_client::Subscription;

use crate::error::Error;
use crate::wait_queue::{Known, Turn, next_question};

#[derive(Default)]
pub(crate) struct Alone {
    /// `None` for a waiter that only asks from time to time.
    subscription: Option<Subscription>,
    /// When it asks again even if it hears nothing; `None` until the server has said that the lock is held.
    poll_at: Option<Instant>,
    /// When it asked for the first time after the last answer.
    unanswered_since: Option<Instant>,
    /// What kept the last question from being answered, other than the end of its own wait.
    last_error: Option<Box<Error>>,
    /// It has a reason to ask at once.
    poll_now: bool,
}

impl Alone {
    /// As [`WaitQueue::listen`](crate::wait_queue::WaitQueue::listen).
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
        self.poll_at = Some(next_question(now, lease_left, self.subscription.as_ref()));
    }

    /// The question failed, and not because the wait has ended.
    pub(crate) fn on_unanswered(&mut self, error: &Error) {
        self.last_error = Some(Box::new(error.clone()));
    }

    /// What it has to do; its waker is left with the subscription.
    pub(crate) fn turn(&mut self, now: Instant, cx: &mut Context<'_>) -> Turn {
        let news = self.subscription.as_mut();
        let heard = news.is_some_and(|news| news.poll_changed(cx) == Poll::Ready(()));
        let due = self.poll_at.is_none_or(|at| now >= at);
        if std::mem::take(&mut self.poll_now) || heard || due {
            return Turn::Ask { heard, since: *self.unanswered_since.get_or_insert(now) };
        }
        Turn::Wait(self.poll_at)
    }

    /// What it can be told when its wait has ended.
    pub(crate) fn known(&self) -> Known {
        match (&self.last_error, self.poll_at) {
            (Some(error), _) => Known::Trouble(Error::clone(error)),
            (None, None) => Known::Nothing,
            (None, Some(_)) => Known::Held { unanswered_since: self.unanswered_since },
        }
    }
}

/// A thousand waiters are to have no more than 1.5 KiB each, with their tasks and their channels.
const _: () = assert!(size_of::<Alone>() <= 96);

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    #[test]
    fn one_alone_asks_at_once_when_its_time_has_come_and_not_before() {
        let (mut alone, now) = (Alone::default(), Instant::now());
        let mut cx = Context::from_waker(Waker::noop());
        let second = Duration::from_secs(1);
        assert!(matches!(alone.known(), Known::Nothing));
        assert!(matches!(alone.turn(now, &mut cx), Turn::Ask { heard: false, since } if since == now));
        let Turn::Ask { since, .. } = alone.turn(now + second, &mut cx) else {
            panic!("it has no answer yet")
        };
        assert_eq!(since, now, "all questions that find no answer share one patience");
        alone.on_held(now + second, Some(second));
        assert!(matches!(alone.known(), Known::Held { unanswered_since: None }));
        let Turn::Wait(Some(until)) = alone.turn(now + second, &mut cx) else { panic!("it is held") };
        assert_eq!(until, now + 2 * second + Duration::from_millis(1), "the server rounds down");
        assert!(matches!(alone.turn(until, &mut cx), Turn::Ask { since, .. } if since == until));
        assert!(matches!(alone.known(), Known::Held { unanswered_since: Some(since) } if since == until));
        alone.on_unanswered(&Error::NoMembers);
        assert!(matches!(alone.known(), Known::Trouble(Error::NoMembers)));
        alone.on_held(until, None);
        let Turn::Wait(Some(next)) = alone.turn(until, &mut cx) else { panic!("it is held") };
        assert!(next > until + second, "nobody said when");
    }
}
