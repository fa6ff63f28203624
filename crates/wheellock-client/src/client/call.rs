//! One call of a user. Owns what may be repeated of it: an attempt that certainly had no effect. The loop is `attempts`', one attempt
//! is `started`'s, and where it goes is `route`'s.

use std::task::Waker;
use std::time::{Duration, Instant};

use wheellock_resp::Value;
use wheellock_wheel::Timer;

use crate::base::connection_id::ConnectionId;
use crate::base::error::{Error, ErrorKind};
use crate::base::retry::Retry;
use crate::client::attempts::{Attempts, Failed, Repeat};
use crate::client::route::Route;
use crate::connection::options::CallOptions;
use crate::connection::started::{Start, Started};
use crate::protocol::request::Request;

/// A call that is submitted at its first poll, and again as long as an attempt certainly had no effect and the next one
/// has a chance: a script whose text is needed, and in a cluster a redirection. One to which there is an objection is not made.
pub(crate) fn call<'a>(
    route: &'a Route,
    request: Request<'a>,
    options: CallOptions,
) -> impl Future<Output = Result<Value, Error>> + Send + 'a {
    let ask = move |retry: &Retry, start: Start, waker: &Waker| {
        let request = request.retried(retry);
        if let Some(objection) = request.objection() {
            return Started::refused(route.error(ErrorKind::Config, request.name(), &objection));
        }
        if let Some(excess) = request.excess(route.config().max_queued_bytes) {
            return Started::refused(route.error(ErrorKind::Overloaded, request.name(), &excess));
        }
        let server = route.server(&request, retry);
        Started::new(server, request.name(), &request, start, waker)
    };
    Attempts::new(ask, IfRefused { route, is_script: request.is_script(), options })
}

/// Repeats a call that was refused before it had any effect.
struct IfRefused<'a> {
    route: &'a Route,
    is_script: bool,
    /// As the caller wants; from the first attempt on with a deadline.
    options: CallOptions,
}

impl Repeat for IfRefused<'_> {
    type End = Result<Value, Error>;

    fn begin(&mut self) -> Start {
        let config = self.route.config();
        let at = config.timer.now();
        self.options.deadline.get_or_insert(at + config.response_timeout);
        Start { at, options: self.options }
    }

    fn pause_after(&mut self, retry: &mut Retry, error: &Error) -> Option<Duration> {
        let lacks_script = self.is_script && error.code() == Some("NOSCRIPT");
        if lacks_script || self.route.is_cluster() { retry.after(error) } else { None }
    }

    fn deadline(&mut self) -> Instant {
        let config = self.route.config();
        *self.options.deadline.get_or_insert_with(|| config.timer.now() + config.response_timeout)
    }

    fn timer(&self) -> &Timer {
        &self.route.config().timer
    }

    fn end(&mut self, end: Result<(Value, Option<ConnectionId>), Failed>) -> Self::End {
        match end {
            Ok((value, _)) => Ok(value),
            Err(Failed { error, reason: Some(reason) }) => Err(error.after(&reason)),
            Err(Failed { error, reason: None }) => Err(error),
        }
    }
}
