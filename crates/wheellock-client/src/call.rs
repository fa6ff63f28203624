//! One call as a future: watches the slot of a request that was submitted, or submits at its first poll. Owns nothing but
//! the slot's index, so a call allocates nothing, and dropping it at any point loses nothing but its result.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use wheellock_resp::Value;

use crate::connection::{Phase, Shared};
use crate::error::{Error, ErrorKind, Outcome};
use crate::pipeline::{Failure, Lane, Request};

/// A call that is under way: it was queued when this was made, by [`Client::start_eval`](crate::Client::start_eval).
///
/// Its parameters need not live on, so whoever keeps many calls keeps little.
#[must_use = "the result is lost"]
pub struct Started<'a> {
    shared: &'a Shared,
    slot: Option<u32>,
    name: &'a str,
    script: bool,
    /// Why it was not queued.
    refused: Option<Error>,
}

impl<'a> Started<'a> {
    /// `deadline` covers queueing, connecting and the reply; `None` means the configured response timeout.
    pub(crate) fn new(
        shared: &'a Shared,
        name: &'a str,
        request: &Request<'_>,
        lane: Lane,
        deadline: Option<Instant>,
        waker: &Waker,
    ) -> Self {
        let (slot, refused) = match submit(shared, request, lane, deadline, waker) {
            Ok(slot) => (Some(slot), None),
            Err(error) => (None, Some(error)),
        };
        Self { shared, slot, name, script: request.is_script(), refused }
    }

    fn finish(&self, result: Result<Value, Failure>) -> Result<Value, Error> {
        match result {
            Ok(value) => match value.as_error() {
                None => Ok(value),
                Some(text) => Err(Error::server(self.name, &self.shared.server, self.script, text)),
            },
            Err(Failure { kind: ErrorKind::Timeout, outcome, .. }) => {
                Err(self.shared.timed_out(self.name, outcome))
            }
            Err(Failure { kind, outcome, cause: Some(cause) }) => {
                Err(cause.seen_by(self.name, kind, outcome))
            }
            Err(Failure { kind, outcome, cause: None }) => {
                Err(self.shared.error(kind, outcome, self.name, "the connection ended"))
            }
        }
    }
}

fn submit(
    shared: &Shared,
    request: &Request<'_>,
    lane: Lane,
    deadline: Option<Instant>,
    waker: &Waker,
) -> Result<u32, Error> {
    let now = shared.config.timer.now();
    let deadline = deadline.unwrap_or_else(|| now + shared.config.response_timeout);
    let waker = waker.clone();
    let mut state = shared.lock();
    if let Phase::Closed(cause) | Phase::Refused(cause) = &state.phase {
        return Err(cause.seen_by(request.name(), cause.kind(), Outcome::NotSent));
    }
    let Some(slot) = state.pipeline.submit(request, lane, now, deadline, waker) else {
        let detail = "the queue of this connection is full";
        return Err(shared.error(ErrorKind::Overloaded, Outcome::NotSent, request.name(), detail));
    };
    state.stats.calls += 1;
    let next = state.after_append(Some(deadline));
    drop(state);
    shared.act(next);
    Ok(slot)
}

impl Future for Started<'_> {
    type Output = Result<Value, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(refused) = self.refused.take() {
            return Poll::Ready(Err(refused));
        }
        let Some(slot) = self.slot else { return Poll::Pending };
        let result = self.shared.lock().pipeline.take(slot, cx.waker());
        match result {
            None => Poll::Pending,
            Some(result) => {
                self.slot = None;
                Poll::Ready(self.finish(result))
            }
        }
    }
}

impl Drop for Started<'_> {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take() {
            let remains = self.shared.lock().pipeline.leave(slot);
            drop(remains);
        }
    }
}

impl fmt::Debug for Started<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Started").field("call", &self.name).finish_non_exhaustive()
    }
}

/// A call that is submitted at its first poll.
pub(crate) struct Call<'a> {
    shared: &'a Shared,
    request: Request<'a>,
    lane: Lane,
    deadline: Option<Instant>,
    started: Option<Started<'a>>,
}

impl<'a> Call<'a> {
    pub(crate) fn new(
        shared: &'a Shared,
        request: Request<'a>,
        lane: Lane,
        deadline: Option<Instant>,
    ) -> Self {
        Self { shared, request, lane, deadline, started: None }
    }

    pub(crate) fn request(&self) -> &Request<'a> {
        &self.request
    }

    /// Makes another request in place of this one, by the same deadline.
    pub(crate) fn make(&mut self, request: Request<'a>) {
        self.started = None;
        self.request = request;
    }
}

impl Future for Call<'_> {
    type Output = Result<Value, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if let Some(started) = &mut this.started {
            return Pin::new(started).poll(cx);
        }
        let mut started = Started::new(
            this.shared,
            this.request.name(),
            &this.request,
            this.lane,
            this.deadline,
            cx.waker(),
        );
        if let Some(refused) = started.refused.take() {
            return Poll::Ready(Err(refused));
        }
        this.started = Some(started);
        Poll::Pending
    }
}
