//! A counted handle to one server's connection. It does not know other servers.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::{Duration, Instant};

use wheellock_resp::{Command, Value};

use crate::base::error::{Error, ErrorKind};
use crate::base::patience::Patience;
use crate::config::Servers;
use crate::connection::driver;
use crate::connection::locator::Locator;
use crate::connection::options::CallOptions;
use crate::connection::started::{Start, Started};
use crate::connection::{Phase, Server, Shared};
use crate::protocol::pipeline::Prefix;
use crate::protocol::request::Request;

/// A handle to one server's connection. The connection ends when its last handle is dropped.
pub(crate) struct Link(Arc<Shared>);

impl Link {
    /// Starts to connect. Must be called within a runtime.
    pub(crate) fn start(shared: Shared, locator: Locator) -> Self {
        let shared = Arc::new(shared);
        driver::start(&shared, locator);
        Self(shared)
    }

    /// Returns one more handle to a connection that another handle keeps open.
    pub(crate) fn to(shared: &Arc<Shared>) -> Self {
        shared.handles.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(shared))
    }

    /// Waits until the server is ready. One failed attempt is an error, with two exceptions. A server that is up may
    /// not be ready yet. A server that is searched among several addresses may be in a failover, or one address is
    /// down.
    pub(crate) async fn ready(&self) -> Result<(), Error> {
        let patient = !matches!(self.config.servers, Servers::One(_));
        let verdict = |is_last: bool| {
            let counts = move |error: &&Error| is_last || !patient && error.kind() != ErrorKind::NotReady;
            self.wait_for_phase(move |state| match &state.phase {
                Phase::Ready(_) => Some(Ok(())),
                Phase::Refused(error) | Phase::Closed { cause: error, .. } => Some(Err(error.clone())),
                Phase::Connecting(last) => last.as_ref().filter(counts).map(|error| Err(error.clone())),
            })
        };
        let mut patience = Patience::new(&self.config.timer, self.config.connect_timeout);
        if let Some(verdict) = patience.wait_for(verdict(false)).await {
            return verdict;
        }
        // The first attempt has the same timeout and began a moment later. Its error names the stage that took too
        // long.
        let last = Patience::new(&self.config.timer, VERDICT_GRACE).wait_for(verdict(true)).await;
        last.unwrap_or_else(|| Err(self.not_connected(ErrorKind::Connect, "no answer in time")))
    }

    /// Makes one attempt at a call, with access to the reserved room.
    pub(crate) async fn call(&self, command: &Command<'_>, deadline: Instant) -> Result<Value, Error> {
        let request = Request::Command(command);
        let waker = std::future::poll_fn(|cx| Poll::Ready(cx.waker().clone())).await;
        let start = Start {
            at: self.config.timer.now(),
            options: CallOptions::by(deadline).reserved(),
            remembers: false,
        };
        Started::new(Ok((Server::Borrowed(&self.0), Prefix::None)), request.name(), &request, start, &waker)
            .await
    }
}

/// How long a caller waits beyond its timeout for the error of the first attempt. The attempt has the same timeout
/// and began within milliseconds. A pause of the process does not count.
pub(crate) const VERDICT_GRACE: Duration = Duration::from_millis(50);

impl Deref for Link {
    type Target = Arc<Shared>;

    fn deref(&self) -> &Arc<Shared> {
        &self.0
    }
}

impl Clone for Link {
    fn clone(&self) -> Self {
        Self::to(&self.0)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if self.handles.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.begin_closing();
        }
    }
}
