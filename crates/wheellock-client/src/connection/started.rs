//! One attempt at a call: a submitted request and its reply's slot.
//!
//! An attempt owns only the slot's index, so a call does not allocate. Dropping an attempt at any point loses only
//! its result.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use wheellock_resp::Value;

use crate::base::connection_id::ConnectionId;
use crate::base::detached::Detached;
use crate::base::error::{Error, ErrorKind, Outcome};
use crate::base::redirect;
use crate::connection::options::CallOptions;
use crate::connection::{Phase, Server, Shared, State};
use crate::protocol::acks::Acks;
use crate::protocol::handshake::Role;
use crate::protocol::pipeline::{Done, Failure, NoWait, Prefix};
use crate::protocol::request::Request;

/// The start of one attempt, with its options. The caller has already read the clock, so the attempt does not read it
/// again.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    /// The instant at which the attempt starts.
    pub at: Instant,
    /// The caller's options.
    pub options: CallOptions,
    /// True if the server is to tell of the next change of the script's keys, as with
    /// [`queue_eval`](crate::Client::queue_eval). Such a call is never part of a batch, and no native command replaces
    /// it.
    pub remembers: bool,
}

/// A call that is under way. [`Client::start_eval`](crate::Client::start_eval) queues it and returns this value.
///
/// The call's parameters need not outlive its start, so a caller that keeps many calls needs little memory.
#[must_use = "the result is lost"]
pub struct Started<'a> {
    under_way: Result<UnderWay<'a>, Option<Error>>,
}

struct UnderWay<'a> {
    server: Server<'a>,
    stage: Stage,
    name: &'a str,
    script: bool,
}

/// The progress of a call. It is small, because every waiter's future contains it.
#[derive(Clone, Copy)]
enum Stage {
    /// The call waits for its reply in this slot.
    Waiting(u32),
    /// The call is done. `epoch` numbers the node's connection on which it ended.
    Done { epoch: u32 },
}

impl<'a> Started<'a> {
    /// Queues a request at `server`, or keeps the error if there is no server. The deadline covers queueing,
    /// connecting and the reply. `None` means the configured response timeout. The prefix beside the server precedes the
    /// request.
    pub(crate) fn new(
        server: Result<(Server<'a>, Prefix), Error>,
        name: &'a str,
        request: &Request<'_>,
        Start { at: now, options, .. }: Start,
        waker: &Waker,
    ) -> Self {
        let (server, prefix) = match server {
            Ok(found) => found,
            Err(error) => return Self::refused(error),
        };
        let deadline = options.deadline.unwrap_or_else(|| now + server.config.response_timeout);
        let waker = waker.clone();
        let submit = |server: &Shared, state: &mut State| {
            // Check under the lock that queues the call. Otherwise the call could join the queue just after the driver's
            // end has failed all calls, and would wait in vain.
            if let Phase::Closed { cause, .. } | Phase::Refused(cause) = &state.phase {
                return Err(cause.seen_by(request.name(), cause.kind(), Outcome::NotSent));
            }
            let slot = state.pipeline.submit(request, options.lane(), now, deadline, waker, prefix);
            slot.ok_or_else(|| queue_is_full(server, request.name()))
        };
        Self::queue(server, name, request.is_script(), (now, deadline), submit)
    }

    /// Submits a wait for acknowledgements of the writes of `connection`.
    pub(crate) fn wait(
        server: Server<'a>,
        connection: ConnectionId,
        (acks, millis): (Acks, u64),
        deadline: Instant,
        waker: &Waker,
    ) -> Self {
        let (now, waker) = (server.config.timer.now(), waker.clone());
        let submit = |server: &Shared, state: &mut State| {
            let slot = state.pipeline.submit_wait(connection, (acks, millis), now, deadline, waker);
            slot.map_err(|no_wait| match no_wait {
                NoWait::Ended => connection_has_ended(server, acks),
                NoWait::Full => queue_is_full(server, acks.verb()),
            })
        };
        Self::queue(server, acks.verb(), false, (now, deadline), submit)
    }

    /// Lets `submit` queue a request under the lock, and lets its bytes leave.
    fn queue(
        server: Server<'a>,
        name: &'a str,
        script: bool,
        times: (Instant, Instant),
        submit: impl FnOnce(&Shared, &mut State) -> Result<u32, Error>,
    ) -> Self {
        let mut state = server.lock();
        let slot = match submit(&server, &mut state) {
            Ok(slot) => slot,
            Err(error) => return Self::refused(error),
        };
        state.stats.calls += 1;
        let next = state.after_append(Some(times), false);
        drop(state);
        // `act` takes the lock again when it writes, so it runs after the drop.
        server.act(next);
        Self { under_way: Ok(UnderWay { server, stage: Stage::Waiting(slot), name, script }) }
    }

    /// Returns the connection on which the call received its reply or was given up. Returns `None` before that, and
    /// for a call that was never queued.
    pub fn connection(&self) -> Option<ConnectionId> {
        match &self.under_way {
            Ok(UnderWay { server, stage: Stage::Done { epoch }, .. }) => {
                Some(ConnectionId { node: server.node, epoch: *epoch })
            }
            _ => None,
        }
    }

    /// Returns true if the call was queued, so that its waker will be woken. Otherwise the first poll returns the
    /// error.
    pub fn is_under_way(&self) -> bool {
        self.under_way.is_ok()
    }

    /// Returns a call that was not queued.
    pub(crate) fn refused(error: Error) -> Self {
        Self { under_way: Err(Some(error)) }
    }
}

impl UnderWay<'_> {
    fn finish(&self, result: Result<Value, Failure>) -> Result<Value, Error> {
        let server = &*self.server;
        match result {
            Ok(value) => match value.as_error() {
                None => Ok(value),
                Some(text) => Err(refusal(server, self.name, self.script, text)),
            },
            Err(Failure { kind: ErrorKind::Timeout, outcome, .. }) => {
                Err(server.timed_out(self.name, outcome))
            }
            Err(Failure { kind, outcome, cause: Some(cause) }) => {
                Err(cause.seen_by(self.name, kind, outcome))
            }
            Err(Failure { kind, outcome, cause: None }) => {
                Err(server.error(kind, outcome, self.name, "the connection ended"))
            }
        }
    }
}

/// Returns the error of a detached script. Returns `None` if the server replied without an error.
pub(crate) fn error_of_detached(server: &Shared, operation: &str, detached: &Detached) -> Option<Error> {
    match (&detached.result, &detached.cause) {
        (Ok(value), _) => value.as_error().map(|text| refusal(server, operation, true, text)),
        (Err(outcome), Some((kind, cause))) => Some(cause.seen_by(operation, *kind, *outcome)),
        (Err(outcome), None) => {
            Some(server.error(ErrorKind::ConnectionLost, *outcome, operation, "the connection ended"))
        }
    }
}

/// Returns the error that the server sent in reply to `operation`.
fn refusal(server: &Shared, operation: &str, script: bool, text: &[u8]) -> Error {
    let error = Error::server(operation, &server.server(), script, text);
    let to = (server.role == Role::Node).then(|| redirect::target(text, || server.host())).flatten();
    match to {
        Some(address) => error.with_redirection(address),
        None => error,
    }
}

/// Returns the error of a call that was not queued.
#[cold]
fn queue_is_full(shared: &Shared, operation: &str) -> Error {
    let detail = "the queue of this connection is full";
    shared.error(ErrorKind::Overloaded, Outcome::NotSent, operation, detail)
}

/// Returns the error of a wait for writes of an ended connection. A wait on the next connection would cover only the
/// writes of that connection.
fn connection_has_ended(shared: &Shared, acks: Acks) -> Error {
    let detail = "the connection on which it was written has ended";
    shared.error(ErrorKind::ConnectionLost, Outcome::NotSent, acks.verb(), detail)
}

impl Future for Started<'_> {
    type Output = Result<Value, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let call = match &mut self.under_way {
            Ok(call) => call,
            Err(refused) => return refused.take().map_or(Poll::Pending, |error| Poll::Ready(Err(error))),
        };
        let Stage::Waiting(slot) = call.stage else { return Poll::Pending };
        let done = call.server.lock().pipeline.take(slot, cx.waker());
        match done {
            None => Poll::Pending,
            Some(Done { result, epoch }) => {
                call.stage = Stage::Done { epoch };
                Poll::Ready(call.finish(result))
            }
        }
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        if let Stage::Waiting(slot) = self.stage {
            let remains = self.server.lock().pipeline.leave(slot);
            // The statement above has freed the lock. Wakers and values may run foreign code, which must not run under it.
            drop(remains);
        }
    }
}

impl fmt::Debug for Started<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let call = self.under_way.as_ref().map_or("refused", |call| call.name);
        f.debug_struct("Started").field("call", &call).finish_non_exhaustive()
    }
}
