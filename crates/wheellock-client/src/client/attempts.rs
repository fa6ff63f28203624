//! The loop over the attempts at one request.
//!
//! The loop repeats a request while a repetition can help and time is left. It serves calls of this crate's users and
//! the requests of the lock layer. It does not decide which failures a repetition may heal; each user of the loop
//! does.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use wheellock_resp::Value;
use wheellock_wheel::{Sleep, Timer};

use crate::base::connection_id::ConnectionId;
use crate::base::error::{Error, ErrorKind};
use crate::base::retry::Retry;
use crate::connection::started::{Start, Started};

/// The rule by which a request is repeated.
pub trait Repeat {
    /// The result for the caller.
    type End;

    /// Begins an attempt. Returns its instant and options.
    fn begin(&mut self) -> Start;

    /// Returns the pause before the next attempt may succeed. Returns `None` if no attempt can succeed, or none may
    /// be made.
    fn pause_after(&mut self, retry: &mut Retry, error: &Error) -> Option<Duration>;

    /// Returns the deadline of the last attempt. Called only after an attempt has failed.
    fn deadline(&mut self) -> Instant;

    /// Returns the timer of the pauses.
    fn timer(&self) -> &Timer;

    /// Converts the end of the request, which is a reply with its connection or a final failure.
    fn end(&mut self, end: Result<(Value, Option<ConnectionId>), Failed>) -> Self::End;
}

/// A future of all attempts at one request. `ask` makes one attempt with the results of earlier ones. It is
/// hand-written and does not keep the parameters, because every waiter's future contains it.
#[must_use = "nothing is sent before its first poll"]
pub struct Attempts<'a, F, R> {
    ask: F,
    repeat: R,
    under_way: Option<Started<'a>>,
    retry: Retry,
    pause: Option<Pin<Box<Sleep>>>,
    /// The error of an earlier attempt. It is reported if the deadline cuts a later attempt short.
    reason: Option<Error>,
    /// The last error, if no further attempt can succeed before the deadline.
    last: Option<Error>,
}

/// The failure of a request without a reply, or with an error reply.
#[derive(Debug)]
pub struct Failed {
    /// The error of the last attempt.
    pub error: Error,
    /// The error of the attempt before it, if the deadline cut the last attempt short.
    pub reason: Option<Error>,
}

impl<'a, F, R> Attempts<'a, F, R>
where
    F: FnMut(&Retry, Start, &Waker) -> Started<'a>,
    R: Repeat,
{
    /// Returns a future that makes its first attempt at its first poll.
    pub fn new(ask: F, repeat: R) -> Self {
        let retry = Retry::default();
        Self { ask, repeat, under_way: None, retry, pause: None, reason: None, last: None }
    }

    /// Waits for the pause. Returns the last error if no attempt follows.
    ///
    /// A deadline that has passed meanwhile ends the request. A further attempt would be given up at once, and its
    /// caller would not know whether it ran.
    fn poll_pause(&mut self, cx: &mut Context<'_>) -> Poll<Option<Error>> {
        if let Some(pause) = &mut self.pause {
            ready!(pause.as_mut().poll(cx));
            self.pause = None;
            let last = self.last.take();
            return Poll::Ready(last.or_else(|| {
                let is_over = self.repeat.timer().now() >= self.repeat.deadline();
                self.reason.take_if(|_| is_over)
            }));
        }
        Poll::Ready(None)
    }

    /// Updates the retry state after a failed attempt. Returns the failure if it is final.
    fn failed(&mut self, error: Error) -> Option<Failed> {
        let pause = self.repeat.pause_after(&mut self.retry, &error);
        let left = self.repeat.deadline().saturating_duration_since(self.repeat.timer().now());
        let pause = match pause {
            Some(pause) if pause < left => {
                if error.code() != Some("NOSCRIPT") {
                    self.reason = Some(error);
                }
                pause
            }
            // Wait until the deadline itself, so that the elapsed time shows which limit ended the call.
            Some(_) if !left.is_zero() => {
                self.last = Some(error);
                left
            }
            _ => {
                // A redirection without a pause was cut short by the deadline. An endless chain of redirections gets
                // pauses, and its last redirection is the error to report.
                let may_go_on = pause.is_some_and(|pause| pause.is_zero());
                let error = if may_go_on && is_direction(&error) { error.cut_short() } else { error };
                let reason = self.reason.take().filter(|_| error.kind() == ErrorKind::Timeout);
                return Some(match reason {
                    Some(reason) if is_direction(&reason) => {
                        Failed { error: error.after(&reason), reason: None }
                    }
                    reason => Failed { error, reason },
                });
            }
        };
        if !pause.is_zero() {
            self.pause = Some(Box::pin(self.repeat.timer().sleep(pause)));
        }
        None
    }
}

/// Returns true if the server only stated where or how to send the request. This is not a fault, and never the reason
/// for a timeout.
fn is_direction(error: &Error) -> bool {
    matches!(error.code(), Some("NOSCRIPT" | "MOVED" | "ASK"))
}

impl<'a, F, R> Future for Attempts<'a, F, R>
where
    F: FnMut(&Retry, Start, &Waker) -> Started<'a> + Unpin,
    R: Repeat + Unpin,
{
    type Output = R::End;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<R::End> {
        let this = &mut *self;
        loop {
            if let Some(error) = ready!(this.poll_pause(cx)) {
                return Poll::Ready(this.repeat.end(Err(Failed { error, reason: None })));
            }
            let started = match &mut this.under_way {
                Some(started) => started,
                None => {
                    let start = this.repeat.begin();
                    let started = this.under_way.insert((this.ask)(&this.retry, start, cx.waker()));
                    if started.is_under_way() {
                        return Poll::Pending;
                    }
                    started
                }
            };
            let result = ready!(Pin::new(&mut *started).poll(cx));
            let connection = started.connection();
            this.under_way = None;
            match result {
                Ok(reply) => return Poll::Ready(this.repeat.end(Ok((reply, connection)))),
                Err(error) => {
                    if let Some(failed) = this.failed(error) {
                        return Poll::Ready(this.repeat.end(Err(failed)));
                    }
                }
            }
        }
    }
}

impl<F, R> fmt::Debug for Attempts<'_, F, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attempts").field("under_way", &self.under_way).finish_non_exhaustive()
    }
}
