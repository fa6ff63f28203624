//! One idempotent request of a caller: repeated while that can help, and then, if that is wanted, acknowledged by other servers. Owns the
//! judgement which failures a repetition may heal.

use std::future::Future;
use std::pin::Pin;
use std::task::{self, Poll, Waker, ready};
use std::time::{Duration, Instant};

use wheellock_client::layer::{ConnectionId, Retry, Started};
use wheellock_client::{CallOptions, ErrorKind, Value};
use wheellock_wheel::Sleep;

use crate::clock::BootInstant;
use crate::context::Context;
use crate::durability::{Shortfall, Wanted};
use crate::error::{Outcome, has_changed_nothing};
use crate::name::Name;

/// The end of a call that was repeated while that could help.
pub(crate) struct Retried {
    pub(crate) result: Result<Value, wheellock_client::Error>,
    /// Just before the request was sent that was answered.
    pub(crate) sent: BootInstant,
    /// The connection on which it was answered.
    pub(crate) connection: Option<ConnectionId>,
    /// An earlier or the last request may have been executed without an answer.
    pub(crate) ambiguous: bool,
}

/// See [`retry`]. Hand-written and without the parameters: every waiter's future contains one.
pub(crate) struct Retrying<'a, F> {
    context: &'a Context,
    ask: F,
    /// As the caller wants; the response timeout from the start if there is none.
    deadline: Option<Instant>,
    under_way: Option<(Started<'a>, BootInstant)>,
    /// An instant just before the first attempt, if the caller has looked at the clock.
    since: Option<BootInstant>,
    retry: Retry,
    ambiguous: bool,
    pause: Option<Box<Sleep>>,
    /// Why an earlier attempt failed: what to tell if the deadline cuts a later one short.
    reason: Option<wheellock_client::Error>,
    /// The last failure, if no other attempt has a chance before the deadline.
    last: Option<Box<Retried>>,
}

/// Runs an idempotent script, and again when the connection broke or the server was not ready, until `deadline` or the
/// response timeout, whichever is earlier; not a moment less, so that the clock tells which of the two has ended it. `ask`
/// starts one run, as its earlier ones have taught.
pub(crate) fn retry<'a, F>(context: &'a Context, ask: F, deadline: Option<Instant>) -> Retrying<'a, F>
where
    F: Fn(&Retry, CallOptions, &Waker) -> Started<'a> + Unpin,
{
    let config = context.client.config();
    let deadline = deadline.map(|deadline| deadline.min(config.timer.now() + config.response_timeout));
    Retrying {
        context,
        ask,
        deadline,
        under_way: None,
        since: None,
        retry: Retry::default(),
        ambiguous: false,
        pause: None,
        reason: None,
        last: None,
    }
}

impl<F> Retrying<'_, F> {
    /// The same, by a caller that has just looked at the clock.
    pub(crate) fn since(self, now: BootInstant) -> Self {
        Self { since: Some(now), ..self }
    }
}

impl<'a, F> Future for Retrying<'a, F>
where
    F: Fn(&Retry, CallOptions, &Waker) -> Started<'a> + Unpin,
{
    type Output = Retried;

    fn poll(mut self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<Retried> {
        let this = &mut *self;
        let config = this.context.client.config();
        let timer = &config.timer;
        loop {
            if let Some(pause) = &mut this.pause {
                ready!(Pin::new(&mut **pause).poll(cx));
                this.pause = None;
            }
            if let Some(last) = this.last.take() {
                return Poll::Ready(*last);
            }
            let (call, sent) = match &mut this.under_way {
                Some(under_way) => under_way,
                None => {
                    let sent = this.since.take().unwrap_or_else(|| this.context.clock.now());
                    let options = this.deadline.map(CallOptions::by).unwrap_or_default();
                    let started = (this.ask)(&this.retry, options, cx.waker());
                    let is_under_way = started.is_under_way();
                    let started = this.under_way.insert((started, sent));
                    if is_under_way {
                        return Poll::Pending;
                    }
                    started
                }
            };
            let (result, sent) = (ready!(Pin::new(&mut *call).poll(cx)), *sent);
            let connection = call.connection();
            this.under_way = None;
            let error = match result {
                Ok(reply) => {
                    let ambiguous = this.ambiguous;
                    return Poll::Ready(Retried { result: Ok(reply), sent, connection, ambiguous });
                }
                Err(error) => error,
            };
            this.ambiguous |= error.outcome() == Outcome::MaybeExecuted && !has_changed_nothing(&error);
            let pause = pause_before_repeating(&mut this.retry, &error);
            let deadline = *this.deadline.get_or_insert_with(|| {
                let spent = this.context.clock.now().saturating_duration_since(sent);
                timer.now() + config.response_timeout.saturating_sub(spent)
            });
            let left = deadline.saturating_duration_since(timer.now());
            if pause.is_none_or(|pause| pause >= left) {
                let ambiguous = this.ambiguous;
                let cut_short = error.kind() == ErrorKind::Timeout;
                let error = this.reason.take().filter(|_| cut_short).unwrap_or(error);
                let error = if ambiguous { error.after_an_unanswered_attempt() } else { error };
                let last = Retried { result: Err(error), sent, connection, ambiguous };
                if pause.is_none() || left.is_zero() {
                    return Poll::Ready(last);
                }
                this.last = Some(Box::new(last));
            } else {
                // That a server lacks a script is no trouble, and never why there was no answer in time.
                if error.code() != Some("NOSCRIPT") {
                    this.reason = Some(error);
                }
            }
            let pause = pause.unwrap_or_default().min(left);
            if !pause.is_zero() {
                this.pause = Some(Box::new(timer.sleep(pause)));
            }
        }
    }
}

/// How long to wait before the same request has a chance; `None` if it has none. It is idempotent, so an attempt
/// whose outcome is not known may be repeated too.
fn pause_before_repeating(retry: &mut Retry, error: &wheellock_client::Error) -> Option<Duration> {
    retry.after(error).or(match error.kind() {
        // The next connection is waited for in the queue.
        ErrorKind::ConnectionLost | ErrorKind::Protocol => Some(Duration::ZERO),
        _ => None,
    })
}

/// As [`retry`], and then waits until what the script wrote is kept as wanted. Nothing is waited for unless `wrote` says of
/// the reply that it did write.
///
/// What was written on a connection that ends before it was waited for is written again on the next one, which the next wait
/// covers; the script is idempotent.
pub(crate) async fn retry_acknowledged<'a, F>(
    context: &'a Context,
    wanted: Wanted,
    ask: F,
    deadline: Option<Instant>,
    mut wrote: impl FnMut(&Value) -> bool,
) -> (Retried, Option<Shortfall>)
where
    F: Fn(&Retry, CallOptions, &Waker) -> Started<'a> + Copy + Unpin,
{
    let config = context.client.config();
    let patience = config.timer.now() + config.response_timeout;
    let until = deadline.map_or(patience, |deadline| deadline.min(patience));
    let mut written = false;
    loop {
        let mut retried = retry(context, ask, Some(until)).await;
        if written {
            retried.ambiguous = true;
            retried.result = retried.result.map_err(|error| error.after_an_unanswered_attempt());
        }
        if !retried.result.as_ref().is_ok_and(&mut wrote) {
            return (retried, None);
        }
        written = true;
        // Whatever was answered has a connection.
        let Some(connection) = retried.connection else { return (retried, wanted.shortfall(None)) };
        match wait(context, wanted, connection, deadline).await {
            Ok(reply) => return (retried, wanted.shortfall(Some(&reply))),
            Err(error) => match error.kind() {
                ErrorKind::Timeout => return (retried, wanted.shortfall(None)),
                ErrorKind::ConnectionLost | ErrorKind::Protocol if config.timer.now() < until => {}
                _ => {
                    retried.ambiguous = true;
                    retried.result = Err(error.after_an_unanswered_attempt());
                    return (retried, None);
                }
            },
        }
    }
}

async fn wait(
    context: &Context,
    Wanted { acks, timeout }: Wanted,
    connection: ConnectionId,
    deadline: Option<Instant>,
) -> Result<Value, wheellock_client::Error> {
    let config = context.client.config();
    let patience = config.timer.now() + config.response_timeout;
    let deadline = deadline.map_or(patience, |deadline| deadline.min(patience));
    let mut started: Option<Started<'_>> = None;
    std::future::poll_fn(|cx| {
        let call = started.get_or_insert_with(|| {
            context.client.start_wait(connection, acks, timeout, deadline, cx.waker())
        });
        Pin::new(call).poll(cx)
    })
    .await
}

/// Waits until no request of the same owner is under way and `pass` lets through, but not for longer than a call may
/// take: what is under way may itself be waiting for a connection. Returns by when the call that follows has to end.
pub(crate) fn wait_for_owner<T>(
    context: &Context,
    name: &Name,
    deadline: Option<Instant>,
    mut pass: impl FnMut(&Waker) -> Poll<T>,
) -> impl Future<Output = Result<(T, Option<Instant>), wheellock_client::Error>> {
    // Boxed, because a caller hardly ever waits here and every waiter's future has room for it.
    let mut sleep: Option<Pin<Box<Sleep>>> = None;
    std::future::poll_fn(move |cx| {
        if let Poll::Ready(passed) = pass(cx.waker()) {
            let until = sleep.as_ref().map(|sleep| sleep.deadline()).or(deadline);
            return Poll::Ready(Ok((passed, until)));
        }
        let sleep = sleep.get_or_insert_with(|| {
            let config = context.client.config();
            let patience = config.timer.now() + config.response_timeout;
            Box::pin(config.timer.sleep_until(deadline.map_or(patience, |deadline| deadline.min(patience))))
        });
        sleep.as_mut().poll(cx).map(|()| Err(context.client.timed_out(name.key().as_bytes(), "EVALSHA")))
    })
}
