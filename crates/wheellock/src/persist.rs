//! One idempotent script, repeated while that can help. Owns the judgement which failures a repetition may heal.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use wheellock_client::{CallOptions, ConnectionId, ErrorKind, Retry, Started, Value};
use wheellock_wheel::Sleep;

use crate::clock::BootInstant;
use crate::error::{Outcome, is_other_data};
use crate::manager::Inner;

/// The end of a call that was repeated while that could help.
pub(crate) struct Persisted {
    pub(crate) result: Result<Value, wheellock_client::Error>,
    /// Just before the request was sent that was answered.
    pub(crate) sent: BootInstant,
    /// The connection on which it was answered.
    pub(crate) connection: Option<ConnectionId>,
    /// An earlier or the last request may have been executed without an answer.
    pub(crate) ambiguous: bool,
}

/// See [`persist`]. Hand-written and without the parameters: every waiter's future contains one.
pub(crate) struct Persist<'a, F> {
    inner: &'a Inner,
    ask: F,
    deadline: Instant,
    under_way: Option<(Started<'a>, BootInstant)>,
    reserved: bool,
    retry: Retry,
    ambiguous: bool,
    pause: Option<Box<Sleep>>,
    /// Why an earlier attempt failed: what to tell if the deadline cuts a later one short.
    reason: Option<wheellock_client::Error>,
    /// The last failure, if no other attempt has a chance before the deadline.
    last: Option<Box<Persisted>>,
}

/// Runs an idempotent script, and again when the connection broke or the server was not ready, until `deadline` or the
/// response timeout, whichever is earlier; not a moment less, so that the clock tells which of the two has ended it. `ask`
/// starts one run, as its earlier ones have taught.
pub(crate) fn persist<'a, F>(
    inner: &'a Inner,
    ask: F,
    deadline: Option<Instant>,
    reserved: bool,
) -> Persist<'a, F>
where
    F: Fn(&Retry, CallOptions, &Waker) -> Started<'a> + Unpin,
{
    let config = inner.client.config();
    let patience = config.timer.now() + config.response_timeout;
    let deadline = deadline.map_or(patience, |deadline| deadline.min(patience));
    Persist {
        inner,
        ask,
        deadline,
        under_way: None,
        reserved,
        retry: Retry::default(),
        ambiguous: false,
        pause: None,
        reason: None,
        last: None,
    }
}

impl<'a, F> Future for Persist<'a, F>
where
    F: Fn(&Retry, CallOptions, &Waker) -> Started<'a> + Unpin,
{
    type Output = Persisted;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Persisted> {
        let this = &mut *self;
        let timer = &this.inner.client.config().timer;
        loop {
            if let Some(pause) = &mut this.pause {
                ready!(Pin::new(&mut **pause).poll(cx));
                this.pause = None;
            }
            if let Some(last) = this.last.take() {
                return Poll::Ready(*last);
            }
            let (call, sent) = this.under_way.get_or_insert_with(|| {
                let sent = this.inner.clock.now();
                let options = CallOptions::by(this.deadline);
                let options = if this.reserved { options.reserved() } else { options };
                ((this.ask)(&this.retry, options, cx.waker()), sent)
            });
            let (result, sent) = (ready!(Pin::new(&mut *call).poll(cx)), *sent);
            let connection = call.connection();
            this.under_way = None;
            let pause = match &result {
                Err(error) => {
                    this.ambiguous |= error.outcome() == Outcome::MaybeExecuted && !is_other_data(error);
                    pause_before_repeating(&mut this.retry, error)
                }
                Ok(_) => None,
            };
            let left = this.deadline.saturating_duration_since(timer.now());
            if pause.is_none_or(|pause| pause >= left) {
                let ambiguous = this.ambiguous;
                let result = result.map_err(|error| {
                    let cut_short = error.kind() == ErrorKind::Timeout;
                    let error = this.reason.take().filter(|_| cut_short).unwrap_or(error);
                    if ambiguous { error.after_an_unanswered_attempt() } else { error }
                });
                let last = Persisted { result, sent, connection, ambiguous };
                if pause.is_none() || left.is_zero() {
                    return Poll::Ready(last);
                }
                this.last = Some(Box::new(last));
            } else {
                this.reason = result.err();
            }
            let pause = pause.unwrap_or_default().min(left);
            if !pause.is_zero() {
                this.pause = Some(Box::new(timer.sleep(pause)));
            }
        }
    }
}

/// How long to wait before the same request has a chance; `None` if it has none. It is idempotent, so an attempt of which
/// nobody knows the outcome may be repeated too.
fn pause_before_repeating(retry: &mut Retry, error: &wheellock_client::Error) -> Option<Duration> {
    retry.after(error).or(match error.kind() {
        // The next connection is waited for in the queue.
        ErrorKind::ConnectionLost | ErrorKind::Protocol => Some(Duration::ZERO),
        _ => None,
    })
}
