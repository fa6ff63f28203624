//! One call of a user, and the rule for repeating it.
//!
//! A call repeats an attempt only if the attempt certainly had no effect. This module does not contain the loop, one
//! attempt or the choice of the server. See `attempts`, `started` and `route`.

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
use crate::protocol::pipeline::Prefix;
use crate::protocol::request::Request;

/// Submits a call at its first poll. Repeats the call while the last attempt certainly had no effect and the next
/// attempt may succeed. That applies to a script whose text the server lacks, and in a cluster to a redirection.
/// Refuses a request that `Request::objection` or `Request::excess` rejects.
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
        let server = server.map(|(server, asking)| (server, Prefix::of(asking, false)));
        Started::new(server, request.name(), &request, start, waker)
    };
    Attempts::new(ask, IfRefused { route, is_script: request.is_script(), options })
}

/// The rule that repeats a call only if it was refused before it had any effect.
struct IfRefused<'a> {
    route: &'a Route,
    is_script: bool,
    /// The caller's options. From the first attempt on, they contain a deadline.
    options: CallOptions,
}

impl Repeat for IfRefused<'_> {
    type End = Result<Value, Error>;

    fn begin(&mut self) -> Start {
        let config = self.route.config();
        let at = config.timer.now();
        self.options.deadline.get_or_insert(at + config.response_timeout);
        Start { at, options: self.options, remembers: false }
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
