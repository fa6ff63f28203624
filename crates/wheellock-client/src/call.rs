//! One call as a future: submits at its first poll, and again as long as that can help. Owns the loop over attempts; one
//! attempt is `started`'s, and where it goes is `route`'s.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use wheellock_resp::Value;
use wheellock_wheel::Sleep;

use crate::error::{Error, ErrorKind};
use crate::pipeline::Lane;
use crate::request::Request;
use crate::retry::Retry;
use crate::route::Route;
use crate::started::Started;

/// A call that is submitted at its first poll, and again as long as an attempt certainly had no effect and the next one
/// has a chance: a script whose text is needed, and in a cluster a redirection.
pub(crate) struct Call<'a> {
    route: &'a Route,
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
    pub(crate) fn new(route: &'a Route, request: Request<'a>, lane: Lane, deadline: Option<Instant>) -> Self {
        let retry = Retry::default();
        Self { route, request, lane, deadline, started: None, retry, refused: None, pause: None }
    }

    /// A call that is not made.
    #[cold]
    pub(crate) fn refused(route: &'a Route, request: Request<'a>, error: Error) -> Self {
        let started = Some(Started::refused(error));
        Self { started, ..Self::new(route, request, Lane::Normal, None) }
    }

    /// How long to wait before making the call again; `None` if its failure is final.
    fn pause_after(&mut self, error: &Error) -> Option<std::time::Duration> {
        let may_repeat = self.request.is_script() && error.code() == Some("NOSCRIPT");
        if !may_repeat && !self.route.is_cluster() {
            return None;
        }
        let timer = &self.route.config().timer;
        let pause = self.retry.after(error)?;
        self.deadline.is_none_or(|deadline| timer.now() + pause < deadline).then_some(pause)
    }

    /// The last refusal, if the deadline has passed while the call was not under way. Another attempt could only be given
    /// up, and then nobody would know what had become of it.
    fn ended_between_attempts(&mut self) -> Option<Error> {
        let now = self.route.config().timer.now();
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
                    let config = this.route.config();
                    let deadline =
                        *this.deadline.get_or_insert_with(|| config.timer.now() + config.response_timeout);
                    let request = this.request.retried(&this.retry);
                    let server = this.route.server(&request, &this.retry);
                    let mut started =
                        Started::new(server, request.name(), &request, this.lane, Some(deadline), cx.waker());
                    match started.take_refusal() {
                        Ok(()) => {
                            this.started = Some(started);
                            return Poll::Pending;
                        }
                        Err(Some(error)) => Err(error),
                        Err(None) => return Poll::Pending,
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
                this.pause = Some(Box::pin(this.route.config().timer.sleep(pause)));
            }
        }
    }
}
