//! One idempotent request, with its repetitions and acknowledgements.
//!
//! This module decides which failures a repetition can cure. The loop itself is the client's.

use std::future::Future;
use std::pin::Pin;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use wheellock_client::layer::{Attempts, ConnectionId, Failed, Repeat, Retry, Start, Started};
use wheellock_client::{CallOptions, ErrorKind, Timer, Value};
use wheellock_wheel::Sleep;

use crate::base::clock::BootInstant;
use crate::base::durability::{Shortfall, Wanted};
use crate::base::error::{Outcome, has_changed_nothing, refuses_writes};
use crate::request::context::Context;
use crate::table::holds::GatePlace;
use crate::wait::name::Name;

/// The result of a request, after its repetitions.
pub(crate) struct Retried {
    pub(crate) result: Result<Value, wheellock_client::Error>,
    /// Instant just before the answered request was sent.
    pub(crate) sent: BootInstant,
    /// Connection of the reply.
    pub(crate) connection: Option<ConnectionId>,
    /// A request without a reply may have been executed: an earlier request or the last one.
    pub(crate) ambiguous: bool,
}

/// How long a request is repeated while the server rejects writes, for lack of replicas or memory.
#[derive(Clone, Copy, Default)]
pub(crate) enum RefusedWrite {
    /// The first rejection ends the request, because the caller does not wait.
    Ends,
    /// The request is repeated as after any other failure.
    #[default]
    IsRepeated,
    /// The request is repeated until the caller's wait ends at this instant, or without end. The server replies, so this is a wait as for
    /// a lock's holder. Each attempt has the response timeout.
    IsWaitedOut(Option<Instant>),
}

/// Repeats a script even if it may have been executed, because a second execution changes nothing.
pub(crate) struct IfIdempotent<'a> {
    context: &'a Context,
    /// The caller's deadline. If there is none, the response timeout counts from the start.
    deadline: Option<Instant>,
    /// Instant just before the latest attempt.
    sent: BootInstant,
    /// An attempt was made.
    is_started: bool,
    ambiguous: bool,
    refused_write: RefusedWrite,
    /// The request is waiting until the server accepts writes.
    is_waited_out: bool,
}

/// A wait without end, as long as a timer allows.
const WITHOUT_END: Duration = Duration::from_secs(24 * 3600);

impl IfIdempotent<'_> {
    /// Returns the pause after a rejected write, if the write is to be repeated.
    fn pause_after_refused_write(
        &mut self,
        retry: &mut Retry,
        error: &wheellock_client::Error,
    ) -> Option<Duration> {
        match self.refused_write {
            RefusedWrite::Ends => return None,
            RefusedWrite::IsWaitedOut(end) if refuses_writes(error) => {
                // The pause does not count as silence of the server, however late this process wakes up from it.
                self.deadline = Some(end.unwrap_or_else(|| self.timer().now() + WITHOUT_END));
                self.is_waited_out = true;
            }
            RefusedWrite::IsRepeated | RefusedWrite::IsWaitedOut(_) => {}
        }
        retry.after_refused_write(error.code()?)
    }
}

/// Runs an idempotent script. Repeats it if the connection broke or the server was not ready. Ends at `deadline` or after the response
/// timeout, whichever is earlier, and not before. So the caller can tell by the clock which of the two ended the request. `ask` starts
/// one attempt with the state that earlier attempts have left in `Retry`.
pub(crate) fn retry<'a, F>(
    context: &'a Context,
    ask: F,
    deadline: Option<Instant>,
) -> Attempts<'a, F, IfIdempotent<'a>>
where
    F: Fn(&Retry, Start, &Waker) -> Started<'a> + Unpin,
{
    retry_since(context.clock.now(), context, ask, deadline, RefusedWrite::default())
}

/// Does the same as [`retry`], for a caller that has just read the clock.
pub(crate) fn retry_since<'a, F>(
    now: BootInstant,
    context: &'a Context,
    ask: F,
    deadline: Option<Instant>,
    refused_write: RefusedWrite,
) -> Attempts<'a, F, IfIdempotent<'a>>
where
    F: Fn(&Retry, Start, &Waker) -> Started<'a> + Unpin,
{
    let config = context.client.config();
    let deadline = deadline.map(|deadline| deadline.min(config.timer.now() + config.response_timeout));
    let repeat = IfIdempotent {
        context,
        deadline,
        sent: now,
        is_started: false,
        ambiguous: false,
        refused_write,
        is_waited_out: false,
    };
    Attempts::new(ask, repeat)
}

impl Repeat for IfIdempotent<'_> {
    type End = Retried;

    #[inline]
    fn begin(&mut self) -> Start {
        // Validity counts from before the send. For the first attempt, the caller has read the clock.
        if std::mem::replace(&mut self.is_started, true) {
            self.sent = self.context.clock.now();
        }
        if std::mem::take(&mut self.is_waited_out) {
            let patience = self.timer().now() + self.context.client.config().response_timeout;
            self.deadline = self.deadline.map(|end| end.min(patience));
        }
        let options = self.deadline.map(CallOptions::by).unwrap_or_default();
        Start { at: self.timer().now(), options, remembers: false }
    }

    fn pause_after(&mut self, retry: &mut Retry, error: &wheellock_client::Error) -> Option<Duration> {
        self.ambiguous |= error.outcome() == Outcome::MaybeExecuted && !has_changed_nothing(error);
        pause_before_repeating(retry, error).or_else(|| self.pause_after_refused_write(retry, error))
    }

    fn deadline(&mut self) -> Instant {
        let Self { context, sent, .. } = *self;
        let config = context.client.config();
        // Only a failed attempt needs this instant, so an attempt that succeeds reads no clock for it.
        *self.deadline.get_or_insert_with(|| {
            let spent = context.clock.now().saturating_duration_since(sent);
            config.timer.now() + config.response_timeout.saturating_sub(spent)
        })
    }

    fn timer(&self) -> &Timer {
        &self.context.client.config().timer
    }

    #[inline]
    fn end(&mut self, end: Result<(Value, Option<ConnectionId>), Failed>) -> Retried {
        let Self { sent, ambiguous, .. } = *self;
        let (result, connection) = match end {
            Ok((reply, connection)) => (Ok(reply), connection),
            Err(Failed { error, reason }) => {
                // The last error is only the deadline. The earlier error says why the request was repeated.
                let error = reason.unwrap_or(error);
                (Err(if ambiguous { error.after_an_unanswered_attempt() } else { error }), None)
            }
        };
        Retried { result, sent, connection, ambiguous }
    }
}

/// Returns the pause before the same request can succeed, or `None` if it cannot. The request is idempotent, so an attempt with an
/// unknown outcome may be repeated, too.
fn pause_before_repeating(retry: &mut Retry, error: &wheellock_client::Error) -> Option<Duration> {
    retry.after(error).or_else(|| match error.kind() {
        // The request waits in the queue for the next connection.
        ErrorKind::ConnectionLost | ErrorKind::Protocol => Some(Duration::ZERO),
        _ => retry.after_answer(error),
    })
}

/// Does the same as [`retry`], and then waits until the script's writes are acknowledged as `wanted`. Waits only if `wrote` returns true
/// for the reply.
///
/// If the connection ends before the acknowledgements, the script runs again on the next connection, and the next wait covers its writes.
/// The script is idempotent.
pub(crate) async fn retry_acknowledged<'a, F>(
    context: &'a Context,
    wanted: Wanted,
    ask: F,
    (deadline, refused_write): (Option<Instant>, RefusedWrite),
    mut wrote: impl FnMut(&Value) -> bool,
) -> (Retried, Option<Shortfall>)
where
    F: Fn(&Retry, Start, &Waker) -> Started<'a> + Copy + Unpin,
{
    let config = context.client.config();
    let patience = config.timer.now() + config.response_timeout;
    let until = deadline.map_or(patience, |deadline| deadline.min(patience));
    let mut written = false;
    loop {
        let mut retried = retry_since(context.clock.now(), context, ask, Some(until), refused_write).await;
        if written {
            // The script ran before, on a connection that has ended since. Its effect may still exist.
            retried.ambiguous = true;
            retried.result = retried.result.map_err(|error| error.after_an_unanswered_attempt());
        }
        if !retried.result.as_ref().is_ok_and(&mut wrote) {
            return (retried, None);
        }
        written = true;
        // Every reply has a connection.
        let Some(connection) = retried.connection else { return (retried, wanted.shortfall(None)) };
        match wait(context, wanted, connection, deadline).await {
            Ok(reply) => return (retried, wanted.shortfall(Some(&reply))),
            Err(error) => match error.kind() {
                // The script has run, and the deadline ended only the wait for acknowledgements.
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

/// Waits until no other request of the owner is pending and `pass` is ready. Waits for at most the time of a call, because the pending
/// request may itself be waiting for a connection. Returns the deadline of the call that follows.
pub(crate) fn wait_for_owner<T>(
    context: &Context,
    name: &Name,
    deadline: Option<Instant>,
    mut pass: impl FnMut(&Waker, &mut Option<GatePlace>) -> Poll<T>,
) -> impl Future<Output = Result<(T, Option<Instant>), wheellock_client::Error>> {
    // Boxed, because callers rarely wait here and every waiter's future has room for it.
    let mut waiting: Option<Box<WaitsForOwner<'_>>> = None;
    std::future::poll_fn(move |cx| {
        let mut first = None;
        let place = waiting.as_mut().map_or(&mut first, |waiting| &mut waiting.place);
        if let Poll::Ready(passed) = pass(cx.waker(), place) {
            // The call shares this deadline, so the wait and the call together take at most the time of one call.
            let until = waiting.as_ref().map(|waiting| waiting.sleep.deadline()).or(deadline);
            return Poll::Ready(Ok((passed, until)));
        }
        let waiting = waiting.get_or_insert_with(|| {
            let config = context.client.config();
            let patience = config.timer.now() + config.response_timeout;
            let until = deadline.map_or(patience, |deadline| deadline.min(patience));
            Box::new(WaitsForOwner { context, sleep: config.timer.sleep_until(until), place: first })
        });
        let sleep = Pin::new(&mut waiting.sleep);
        sleep.poll(cx).map(|()| Err(context.client.timed_out(name.key().as_bytes(), "EVALSHA")))
    })
}

/// A caller in [`wait_for_owner`].
struct WaitsForOwner<'a> {
    context: &'a Context,
    sleep: Sleep,
    place: Option<GatePlace>,
}

impl Drop for WaitsForOwner<'_> {
    fn drop(&mut self) {
        if let Some(place) = &self.place {
            // The waker is dropped after the table's lock, because its drop may drop a task.
            let _waker = self.context.change(|holds, _| holds.leave_gate(place));
        }
    }
}
