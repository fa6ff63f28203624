//! One call as a future: watches the slot of a request that was submitted, or submits at its first poll. Owns nothing but
//! the slot's index, so a call allocates nothing, and dropping it at any point loses nothing but its result.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};
use std::time::Instant;

use wheellock_resp::Value;
use wheellock_wheel::Sleep;

use crate::acks::Acks;
use crate::client::Client;
use crate::connection::{Phase, Shared};
use crate::connection_id::ConnectionId;
use crate::error::{Error, ErrorKind, Outcome};
use crate::pipeline::{Done, Failure, Lane, NoWait};
use crate::request::Request;
use crate::retry::Retry;
use crate::route::Server;

/// A call that is under way: it was queued when this was made, by [`Client::start_eval`](crate::Client::start_eval).
///
/// Its parameters need not live on, so whoever keeps many calls keeps little.
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

/// How far a call has come. Every waiter's future contains one.
#[derive(Clone, Copy)]
enum Stage {
    /// Its slot.
    Waiting(u32),
    /// Which of the node's connections answered.
    Done { epoch: u32 },
}

impl<'a> Started<'a> {
    /// `deadline` covers queueing, connecting and the reply; `None` means the configured response timeout.
    pub(crate) fn new(
        server: Server<'a>,
        name: &'a str,
        request: &Request<'_>,
        lane: Lane,
        deadline: Option<Instant>,
        asking: bool,
        waker: &Waker,
    ) -> Self {
        match submit(&server, request, lane, deadline, asking, waker) {
            Ok(slot) => {
                let script = request.is_script();
                Self { under_way: Ok(UnderWay { server, stage: Stage::Waiting(slot), name, script }) }
            }
            Err(error) => Self::refused(error),
        }
    }

    /// A wait for acknowledgements of what was written on `connection`.
    pub(crate) fn wait(
        server: Server<'a>,
        connection: ConnectionId,
        (acks, millis): (Acks, u64),
        deadline: Instant,
        waker: &Waker,
    ) -> Self {
        match submit_wait(&server, connection, (acks, millis), deadline, waker) {
            Ok(slot) => {
                let (stage, name) = (Stage::Waiting(slot), acks.verb());
                Self { under_way: Ok(UnderWay { server, stage, name, script: false }) }
            }
            Err(error) => Self::refused(error),
        }
    }

    /// The connection on which the call was answered, or given up; `None` before that, and if it was never queued.
    pub fn connection(&self) -> Option<ConnectionId> {
        match &self.under_way {
            Ok(UnderWay { server, stage: Stage::Done { epoch }, .. }) => {
                Some(ConnectionId { node: server.node, epoch: *epoch })
            }
            _ => None,
        }
    }

    /// A call that was not queued.
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
                Some(text) => Err(server.refusal(self.name, self.script, text)),
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

fn submit(
    shared: &Shared,
    request: &Request<'_>,
    lane: Lane,
    deadline: Option<Instant>,
    asking: bool,
    waker: &Waker,
) -> Result<u32, Error> {
    let now = shared.config.timer.now();
    let deadline = deadline.unwrap_or_else(|| now + shared.config.response_timeout);
    let waker = waker.clone();
    let mut state = shared.lock();
    if let Phase::Closed(cause) | Phase::Refused(cause) = &state.phase {
        return Err(cause.seen_by(request.name(), cause.kind(), Outcome::NotSent));
    }
    let Some(slot) = state.pipeline.submit(request, lane, now, deadline, waker, asking) else {
        drop(state);
        return Err(queue_is_full(shared, request.name()));
    };
    state.stats.calls += 1;
    let next = state.after_append(Some(deadline), false);
    drop(state);
    shared.act(next);
    Ok(slot)
}

fn submit_wait(
    shared: &Shared,
    connection: ConnectionId,
    (acks, millis): (Acks, u64),
    deadline: Instant,
    waker: &Waker,
) -> Result<u32, Error> {
    let now = shared.config.timer.now();
    let waker = waker.clone();
    let mut state = shared.lock();
    let slot = match state.pipeline.submit_wait(connection, (acks, millis), now, deadline, waker) {
        Ok(slot) => slot,
        Err(no_wait) => {
            drop(state);
            return Err(match no_wait {
                NoWait::Ended => connection_has_ended(shared, acks),
                NoWait::Full => queue_is_full(shared, acks.verb()),
            });
        }
    };
    state.stats.calls += 1;
    let next = state.after_append(Some(deadline), false);
    drop(state);
    shared.act(next);
    Ok(slot)
}

fn queue_is_full(shared: &Shared, operation: &str) -> Error {
    let detail = "the queue of this connection is full";
    shared.error(ErrorKind::Overloaded, Outcome::NotSent, operation, detail)
}

/// What was written on a connection that has ended can be waited for no more: what the next one has written is all that a
/// wait there would ask for.
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

/// A call that is submitted at its first poll, and again as long as an attempt certainly had no effect and the next one
/// has a chance: a script whose text is needed, and in a cluster a redirection.
pub(crate) struct Call<'a> {
    client: &'a Client,
    request: Request<'a>,
    lane: Lane,
    deadline: Option<Instant>,
    started: Option<Started<'a>>,
    retry: Retry,
    /// How the attempt before this one was refused.
    refused: Option<Error>,
    pause: Option<Pin<Box<Sleep>>>,
}

impl<'a> Call<'a> {
    pub(crate) fn new(
        client: &'a Client,
        request: Request<'a>,
        lane: Lane,
        deadline: Option<Instant>,
    ) -> Self {
        let retry = Retry::default();
        Self { client, request, lane, deadline, started: None, retry, refused: None, pause: None }
    }

    /// How long to wait before making the call again; `None` if its failure is final.
    fn pause_after(&mut self, error: &Error) -> Option<std::time::Duration> {
        let may_repeat = self.request.is_script() && error.code() == Some("NOSCRIPT");
        if !may_repeat && !self.client.is_cluster() {
            return None;
        }
        let timer = &self.client.config().timer;
        let pause = self.retry.after(error)?;
        self.deadline.is_none_or(|deadline| timer.now() + pause < deadline).then_some(pause)
    }

    /// The last refusal, if the deadline has passed while the call was not under way. Another attempt could only be given
    /// up, and then nobody would know what had become of it.
    fn ended_between_attempts(&mut self) -> Option<Error> {
        let now = self.client.config().timer.now();
        let passed = self.deadline.is_some_and(|deadline| now >= deadline);
        self.refused.take_if(|_| passed)
    }
}

impl Future for Call<'_> {
    type Output = Result<Value, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        loop {
            if let Some(pause) = &mut this.pause {
                ready!(pause.as_mut().poll(cx));
                this.pause = None;
                if let Some(refused) = this.ended_between_attempts() {
                    return Poll::Ready(Err(refused));
                }
            }
            let result = match &mut this.started {
                Some(started) => ready!(Pin::new(started).poll(cx)),
                None => {
                    let config = this.client.config();
                    let deadline =
                        *this.deadline.get_or_insert_with(|| config.timer.now() + config.response_timeout);
                    let request = this.request.retried(&this.retry);
                    let mut started = this.client.start(
                        request.name(),
                        &request,
                        this.lane,
                        Some(deadline),
                        &this.retry,
                        cx.waker(),
                    );
                    match &mut started.under_way {
                        Ok(_) => {
                            this.started = Some(started);
                            return Poll::Pending;
                        }
                        Err(refused) => match refused.take() {
                            Some(error) => Err(error),
                            None => return Poll::Pending,
                        },
                    }
                }
            };
            let error = match result {
                Ok(value) => return Poll::Ready(Ok(value)),
                Err(error) => error,
            };
            let Some(pause) = this.pause_after(&error) else {
                let refused = this.refused.take().filter(|_| error.kind() == ErrorKind::Timeout);
                return Poll::Ready(Err(
                    refused.map_or_else(|| error.clone(), |refused| error.after(&refused))
                ));
            };
            this.started = None;
            this.refused = Some(error);
            if !pause.is_zero() {
                this.pause = Some(Box::pin(this.client.config().timer.sleep(pause)));
            }
        }
    }
}
