//! The loop over the attempts at one request: makes it, and makes it again as long as that can help and there is time. Serves the calls of
//! this crate's users and what a layer above repeats; which failures a repetition may heal, each of the two says for itself.

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

/// Whether, and until when, a request is made again.
pub trait Repeat {
    /// What its caller is told at the end.
    type End;

    /// An attempt begins. Returns when and how it is made.
    fn begin(&mut self) -> Start;

    /// How long to wait before the next attempt has a chance; `None` if none has, or none may be made.
    fn pause_after(&mut self, retry: &mut Retry, error: &Error) -> Option<Duration>;

    /// By when the last attempt has to end. Asked only after an attempt has failed.
    fn deadline(&mut self) -> Instant;

    /// What measures the pauses.
    fn timer(&self) -> &Timer;

    /// It was answered, on this connection, or has failed for good.
    fn end(&mut self, end: Result<(Value, Option<ConnectionId>), Failed>) -> Self::End;
}

/// All attempts at one request, as a future; `ask` makes one of them, as what became of the earlier ones has taught. Hand-written and
/// without the parameters: every waiter's future contains one.
#[must_use = "nothing is sent before its first poll"]
pub struct Attempts<'a, F, R> {
    ask: F,
    repeat: R,
    under_way: Option<Started<'a>>,
    retry: Retry,
    pause: Option<Pin<Box<Sleep>>>,
    /// Why an earlier attempt failed: what to tell if the deadline cuts a later one short.
    reason: Option<Error>,
    /// The last failure, if no other attempt has a chance before the deadline.
    last: Option<Error>,
}

/// The end of a request that was not answered, or with an error.
#[derive(Debug)]
pub struct Failed {
    /// How the last attempt failed.
    pub error: Error,
    /// How the one before it did, if the deadline cut the last one short.
    pub reason: Option<Error>,
}

impl<'a, F, R> Attempts<'a, F, R>
where
    F: FnMut(&Retry, Start, &Waker) -> Started<'a>,
    R: Repeat,
{
    /// The first attempt is made at the first poll.
    pub fn new(ask: F, repeat: R) -> Self {
        let retry = Retry::default();
        Self { ask, repeat, under_way: None, retry, pause: None, reason: None, last: None }
    }

    /// Waits as long as it was said. Returns the last failure if no attempt follows.
    ///
    /// A deadline that has passed meanwhile is the end: another attempt could only be given up, and then its caller would not know what
    /// had become of it.
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

    /// Learns from a failed attempt. Returns the failure if it is the end.
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
            // Not a moment less than the caller gave, so that the clock tells what has ended it.
            Some(_) if !left.is_zero() => {
                self.last = Some(error);
                left
            }
            _ => {
                // One that goes on without end is made to pause, and is the trouble.
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

/// Whether a server said how it is to be asked, or whom to ask: that is no trouble, and never why there was no answer in time.
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
                    let started = (this.ask)(&this.retry, start, cx.waker());
                    let is_under_way = started.is_under_way();
                    let started = this.under_way.insert(started);
                    if is_under_way {
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
