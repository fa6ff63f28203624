//! The internal API for lock-layer crates.
//!
//! Ordinary users do not need it. It offers calls without a future or with a hand-written one. It also exposes the
//! order of effects on the wire and the connection of a reply. It is hidden from the documentation and may change
//! with every release.

use std::fmt;
use std::task::Waker;
use std::time::{Duration, Instant};

use wheellock_resp::Arg;

pub use crate::base::connection_id::ConnectionId;
pub use crate::base::detached::Detached;
pub use crate::base::error::error_code;
pub use crate::base::retry::Retry;
pub use crate::base::script::{Native, NativeReply, Word};
pub use crate::client::attempts::{Attempts, Failed, Repeat};
pub use crate::config::{ChangedKeys, ChangedKeysSink, DetachedSink, Hooks};
pub use crate::connection::started::{Start, Started};
pub use crate::protocol::acks::Acks;

use crate::base::error::{Error, ErrorKind, Outcome};
use crate::base::script::Script;
use crate::client::Client;
use crate::client::route::Route;
use crate::connection::started::error_of_detached;
use crate::connection::{Phase, Server};
use crate::protocol::pipeline::Prefix;
use crate::protocol::request::{Eval, Request};

#[doc(hidden)]
impl Client {
    /// Queues a run of `script` now, and wakes `waker` when the result is there. This suits hand-written futures that
    /// do not keep the parameters. The first `keys` of `params` are the script's keys. `retry` holds the results of
    /// earlier attempts. This makes only one attempt; pass its failure to [`Retry::after`].
    ///
    /// # Cancel safety
    ///
    /// See [`Client`]: a dropped call may still run.
    #[inline]
    pub fn start_eval<'a>(
        &'a self,
        script: &Script,
        keys: usize,
        params: &[Arg<'_>],
        retry: &Retry,
        start: Start,
        waker: &Waker,
    ) -> Started<'a> {
        let request = Request::EvalSha(Eval { script, keys, params }).retried(retry);
        let name = if retry.is_in_full() { "EVAL" } else { "EVALSHA" };
        // Other scripts have a known number of parameters, and the layer above bounds each parameter.
        if script.arity().is_none()
            && let Some(excess) = request.excess(self.route.config().max_queued_bytes)
        {
            return Started::refused(self.route.error(ErrorKind::Overloaded, name, &excess));
        }
        let server = self.route.server(&request, retry);
        let server = server.map(|(server, asking)| (server, Prefix::of(asking, start.remembers)));
        Started::new(server, name, &request, start, waker)
    }

    /// Queues `script` without waiting for its reply. The result goes to [`Hooks::on_detached`] with `token`. The
    /// first `keys` of `params` are the script's keys. `retry` holds the results of earlier attempts.
    ///
    /// This only appends to a buffer, so the caller may hold its own lock. The order of effects then equals the order
    /// on the wire. The bytes leave when the returned [`Flush`] is dropped. This uses reserved room, never blocks and
    /// needs no runtime.
    ///
    /// With `remembers`, the server remembers the keys that the script reads last, and [`Hooks::on_changed_keys`] receives
    /// the next change of such a key by another client. The server forgets a key after that change, and after each later
    /// write of this client. A server that cannot track keys
    /// ([`ServerInfo::tracks_keys`](crate::ServerInfo::tracks_keys)) only runs the script. Source: the documentation of
    /// `CLIENT TRACKING`, observed on Redis 7.0.
    ///
    /// Returns `None` if the script was not queued, because the client is closed or refused, or its queue is full.
    pub fn queue_eval(
        &self,
        script: &Script,
        keys: usize,
        params: &[Arg<'_>],
        retry: &Retry,
        token: u64,
        remembers: bool,
    ) -> Option<Flush<'_>> {
        let request = Request::EvalSha(Eval { script, keys, params }).retried(retry);
        let (server, asking) = self.route.server(&request, retry).ok()?;
        let now = server.config.timer.now();
        let mut state = server.lock();
        if let Phase::Refused(_) | Phase::Closed { left_open: None, .. } = state.phase {
            return None;
        }
        if state.driver.has_left() {
            state.pipeline.suppress_replies(now);
        }
        let prefix = Prefix::of(asking, remembers);
        if !state.pipeline.submit_detached(&request, now, token, prefix) {
            return None;
        }
        state.stats.calls += 1;
        let is_answered = !state.phase.is_closed();
        let is_written = state.is_about_to_write(server.config.write_at_once);
        drop(state);
        Some(Flush { server, is_answered, is_written })
    }

    /// Returns the tokens of [queued](Self::queue_eval) scripts that were not sent at all, because there is no
    /// connection. All other queued scripts may have been executed, even if their results were not handed out yet.
    pub fn unsent(&self) -> Vec<u64> {
        let mut unsent = Vec::new();
        self.route.servers().iter().for_each(|server| unsent.extend(server.lock().pipeline.unsent()));
        unsent
    }

    /// Returns the error with which a call about `key` would fail at once, if any.
    pub fn refusal(&self, key: &[u8], operation: &str) -> Option<Error> {
        match self.route.server_for(key) {
            Ok(server) => match &server.lock().phase {
                Phase::Closed { cause, .. } | Phase::Refused(cause) => {
                    Some(cause.seen_by(operation, cause.kind(), Outcome::NotSent))
                }
                Phase::Connecting(_) | Phase::Ready(_) => None,
            },
            Err(error) => Some(error),
        }
    }

    /// Returns the error of a [detached](Self::queue_eval) call, as its caller would see it. Returns `None` if the
    /// server replied without an error.
    pub fn error_of(&self, detached: &Detached, operation: &str) -> Option<Error> {
        error_of_detached(&self.route.server_that_was(detached.connection), operation, detached)
    }

    /// Returns the host of `connection`, if the connection is still used and is not a unix socket.
    pub fn host_of(&self, connection: ConnectionId) -> Option<String> {
        self.route.server_of(connection)?.host()
    }

    /// Returns the present connection to the server of `key`, and the run id of that server. Returns `None` while the
    /// client is not connected, and if the user may not run `INFO`.
    pub fn present_server(&self, key: &[u8]) -> Option<(ConnectionId, String)> {
        let server = self.route.server_for(key).ok()?;
        let state = server.lock();
        if !state.phase.is_ready() {
            return None;
        }
        let run_id = state.server.as_ref().and_then(|(info, _)| info.run_id.clone())?;
        Some((state.pipeline.connection(), run_id))
    }

    /// Waits until all writes on `connection` so far are acknowledged according to `acks`. The server ends the wait
    /// after `timeout`. The reply contains the number of acknowledgements ([`Acks::heard`]).
    ///
    /// `connection` is the connection of a call that received its reply ([`Started::connection`],
    /// [`Detached::connection`](crate::Detached::connection)). On a different connection, the server would count that
    /// connection's writes, and confirm without having waited. The wait fails if the connection has ended or ends
    /// meanwhile.
    ///
    /// The server does not reply to other requests on this connection before it has replied to this one. So `timeout`
    /// must be well below the response timeout. Callers share a wait that is queued and not yet sent. `deadline` ends
    /// only this caller's wait.
    ///
    /// # Cancel safety
    ///
    /// See [`Client`].
    pub fn start_wait(
        &self,
        connection: ConnectionId,
        acks: Acks,
        timeout: Duration,
        deadline: Instant,
        waker: &Waker,
    ) -> Started<'_> {
        match self.route.server_of(connection) {
            Some(server) => Started::wait(server, connection, (acks, whole_millis(timeout)), deadline, waker),
            None => Started::refused(self.error(
                ErrorKind::ConnectionLost,
                acks.verb(),
                "the server on which it was written is not used any more",
            )),
        }
    }

    /// Waits like [`start_wait`](Self::start_wait), with a result that goes to [`Hooks::on_detached`] with `token`.
    /// Only appends to a buffer, like [`queue_eval`](Self::queue_eval). Returns `None` if the connection has ended or
    /// its queue is full.
    pub fn queue_wait(
        &self,
        connection: ConnectionId,
        acks: Acks,
        timeout: Duration,
        token: u64,
    ) -> Option<Flush<'_>> {
        let server = self.route.server_of(connection)?;
        let (now, wait) = (server.config.timer.now(), (acks, whole_millis(timeout)));
        let mut state = server.lock();
        if !state.pipeline.submit_detached_wait(connection, wait, now, token) {
            return None;
        }
        state.stats.calls += 1;
        drop(state);
        Some(Flush { server, is_answered: true, is_written: false })
    }

    /// Returns true if `connection` was the last connection to its server. Then this client was closed, or its
    /// runtime has ended. Requests without a reply on that connection never get one, and later requests do not
    /// either.
    pub fn has_ended(&self, connection: ConnectionId) -> bool {
        self.route.server_of(connection).is_some_and(|server| server.is_closed())
    }

    /// Returns a number that is equal for keys of the same server. It distinguishes the clocks of servers.
    pub fn node_of(&self, key: &[u8]) -> u32 {
        self.route.node_of(key)
    }

    /// Returns the [numbers](Self::node_of) of the servers that serve keys.
    pub fn serving_nodes(&self) -> Vec<u32> {
        match &self.route {
            Route::One(_) => vec![0],
            Route::Cluster(cluster) => cluster.serving_nodes(),
        }
    }

    /// Ends the connection that serves `key`, after a reply that its call can never return. Replies may have been
    /// shifted, and then no reply on this connection can be trusted. Calls under way fail with
    /// [`Outcome::MaybeExecuted`]. The client opens a new connection.
    pub fn poison(&self, key: &[u8], why: &str) {
        if let Ok(server) = self.route.server_for(key) {
            server.poison(ErrorKind::Protocol, why);
        }
    }

    /// Returns the error of a caller whose deadline passed while it waited for its turn to call about `key`. The call
    /// was not sent.
    pub fn timed_out(&self, key: &[u8], operation: &str) -> Error {
        match self.route.server_for(key) {
            Ok(server) => server.timed_out(operation, Outcome::NotSent),
            Err(error) => error.seen_by(operation, ErrorKind::Timeout, Outcome::NotSent),
        }
    }

    /// Returns the longest time for which a server in use has owed a reply. Returns `None` if no server owes a reply.
    pub fn owed_for(&self) -> Option<Duration> {
        let owed = self.route.servers().into_iter().filter_map(|server| {
            let since = server.lock().pipeline.waiting_since()?;
            Some(server.config.timer.now().saturating_duration_since(since))
        });
        owed.max()
    }

    /// Returns true if the server that serves `key` is connected.
    pub fn is_ready_for(&self, key: &[u8]) -> bool {
        self.route.server_for(key).is_ok_and(|server| server.is_ready())
    }
}

/// Sends the requests that [`Client::queue_eval`] queued, when dropped. Writes at once if the connection is idle.
/// Otherwise the connection's task writes.
#[must_use = "drop it outside of your own locks: it may make a system call"]
pub struct Flush<'a> {
    server: Server<'a>,
    is_answered: bool,
    /// Another task writes the requests.
    is_written: bool,
}

impl Flush<'_> {
    /// Returns true if the call's result will be reported. If not, the client's runtime has ended, and the socket it
    /// left open only takes bytes.
    pub fn is_answered(&self) -> bool {
        self.is_answered
    }
}

impl Drop for Flush<'_> {
    fn drop(&mut self) {
        if !self.is_written {
            let next = self.server.lock().after_append(None, self.server.config.write_at_once);
            self.server.act(next);
        }
    }
}

impl fmt::Debug for Flush<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Flush")
    }
}

fn whole_millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
