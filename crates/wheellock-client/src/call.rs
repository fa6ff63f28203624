//! One call as a future: submits at its first poll, then watches its slot. Owns nothing but the slot's index, so a
//! call allocates nothing, and dropping it at any point loses nothing but its result.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use wheellock_resp::Value;

use crate::connection::{Phase, Shared};
use crate::error::{Error, ErrorKind, Outcome};
use crate::pipeline::{Failure, Lane, Request};

pub(crate) struct Call<'a> {
    shared: &'a Shared,
    request: Request<'a>,
    lane: Lane,
    deadline: Option<Instant>,
    slot: Option<u32>,
}

impl<'a> Call<'a> {
    /// `deadline` covers queueing, connecting and the reply; `None` means the configured response timeout.
    pub(crate) fn new(
        shared: &'a Shared,
        request: Request<'a>,
        lane: Lane,
        deadline: Option<Instant>,
    ) -> Self {
        Self { shared, request, lane, deadline, slot: None }
    }

    pub(crate) fn request(&self) -> &Request<'a> {
        &self.request
    }

    /// Makes another request in place of this one, by the same deadline; what is under way is left.
    pub(crate) fn make(&mut self, request: Request<'a>) {
        self.leave();
        self.request = request;
    }

    fn leave(&mut self) {
        if let Some(slot) = self.slot.take() {
            let remains = self.shared.lock().pipeline.leave(slot);
            drop(remains);
        }
    }

    fn submit(&mut self, cx: &Context<'_>) -> Result<(), Error> {
        let now = self.shared.config.timer.now();
        let deadline = self.deadline.unwrap_or_else(|| now + self.shared.config.response_timeout);
        let waker = cx.waker().clone();
        let mut state = self.shared.lock();
        if let Phase::Closed(cause) | Phase::Refused(cause) = &state.phase {
            return Err(cause.seen_by(self.request.name(), cause.kind(), Outcome::NotSent));
        }
        let Some(slot) = state.pipeline.submit(&self.request, self.lane, now, deadline, waker) else {
            let detail = "the queue of this connection is full";
            return Err(self.shared.error(
                ErrorKind::Overloaded,
                Outcome::NotSent,
                self.request.name(),
                detail,
            ));
        };
        state.stats.calls += 1;
        let next = state.after_append(Some(deadline));
        drop(state);
        self.slot = Some(slot);
        self.shared.act(next);
        Ok(())
    }

    fn finish(&self, result: Result<Value, Failure>) -> Result<Value, Error> {
        match result {
            Ok(value) => match value.as_error() {
                None => Ok(value),
                Some(text) => {
                    let script = self.request.is_script();
                    Err(Error::server(self.request.name(), &self.shared.server, script, text))
                }
            },
            Err(Failure { kind: ErrorKind::Timeout, outcome, .. }) => {
                Err(self.shared.timed_out(self.request.name(), outcome))
            }
            Err(Failure { kind, outcome, cause: Some(cause) }) => {
                Err(cause.seen_by(self.request.name(), kind, outcome))
            }
            Err(Failure { kind, outcome, cause: None }) => {
                Err(self.shared.error(kind, outcome, self.request.name(), "the connection ended"))
            }
        }
    }
}

impl Future for Call<'_> {
    type Output = Result<Value, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(slot) = self.slot else {
            if let Err(error) = self.submit(cx) {
                return Poll::Ready(Err(error));
            }
            return Poll::Pending;
        };
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

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}
