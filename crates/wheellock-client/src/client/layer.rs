//! What a layer that is built on connections asks of them, and no ordinary user does: calls without a future or with one that
//! is written by hand, the order of effects on the wire, which connection a reply came from. Hidden from the documentation: it
//! may change with every release.

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
pub use crate::config::{DetachedSink, Hooks};
pub use crate::connection::started::{Start, Started};
pub use crate::protocol::acks::Acks;

use crate::base::error::{Error, ErrorKind, Outcome};
use crate::base::script::Script;
use crate::client::Client;
use crate::connection::Phase;
use crate::connection::server::Server;
use crate::connection::started::error_of_detached;
use crate::protocol::request::{Eval, Request};

#[doc(hidden)]
impl Client {
    /// Queues a run of `script` now, and wakes `waker` when its result is there: for hand-written futures that do not want
    /// to keep the parameters. The first `keys` of `params` are its keys. `retry` is what earlier attempts have taught; only
    /// one attempt is made here, and its failure is for [`Retry::after`].
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
        // How many parameters others have is known, and whoever builds on this bounds each of them.
        if script.arity().is_none()
            && let Some(excess) = request.excess(self.route.config().max_queued_bytes)
        {
            return Started::refused(self.route.error(ErrorKind::Overloaded, name, &excess));
        }
        let server = self.route.server(&request, retry);
        Started::new(server, name, &request, start, waker)
    }

    /// Queues `script` without waiting for its reply; the result goes to [`Hooks::on_detached`] with `token`. The
    /// first `keys` of `params` are its keys. `retry` is what earlier attempts have taught.
    ///
    /// Only appends to a buffer: it may be called under a caller's own lock, which is how the order of effects and the
    /// order on the wire are made one. Bytes leave when the returned [`Flush`] is dropped. Uses reserved room, never
    /// blocks, needs no runtime.
    ///
    /// Returns `None` if nothing was queued: the client is closed or refused, or its queue is full.
    pub fn queue_eval(
        &self,
        script: &Script,
        keys: usize,
        params: &[Arg<'_>],
        retry: &Retry,
        token: u64,
    ) -> Option<Flush<'_>> {
        let request = Request::EvalSha(Eval { script, keys, params }).retried(retry);
        let (server, asking) = self.route.server(&request, retry).ok()?;
        let now = server.config.timer.now();
        let mut state = server.lock();
        let closed = closed_for_good(&state.phase) && state.left_open.is_none();
        if closed || matches!(state.phase, Phase::Refused(_)) {
            return None;
        }
        if state.abandoned {
            state.pipeline.hush(now);
        }
        if !state.pipeline.submit_detached(&request, now, token, asking) {
            return None;
        }
        state.stats.calls += 1;
        let is_answered = !closed_for_good(&state.phase);
        drop(state);
        Some(Flush { server, is_answered })
    }

    /// The tokens of [queued](Self::queue_eval) scripts of which no byte has left, because there is no connection. What was queued before
    /// and is not among them may have been executed, whether or not its result has been handed out yet.
    pub fn unsent(&self) -> Vec<u64> {
        let mut unsent = Vec::new();
        self.route.servers().iter().for_each(|server| unsent.extend(server.lock().pipeline.unsent()));
        unsent
    }

    /// Why a call about `key` would fail at once, if it would.
    pub fn refusal(&self, key: &[u8], operation: &str) -> Option<Error> {
        match self.route.server_for(key) {
            Ok(server) => match &server.lock().phase {
                Phase::Closed(cause) | Phase::Refused(cause) => {
                    Some(cause.seen_by(operation, cause.kind(), Outcome::NotSent))
                }
                Phase::Connecting | Phase::Ready(_) => None,
            },
            Err(error) => Some(error),
        }
    }

    /// The error that the caller of a [detached](Self::queue_eval) call would be told; `None` if it was answered without one.
    pub fn error_of(&self, detached: &Detached, operation: &str) -> Option<Error> {
        error_of_detached(&self.route.server_that_was(detached.connection), operation, detached)
    }

    /// The host to which `connection` leads, if it is still used and is no unix socket.
    pub fn host_of(&self, connection: ConnectionId) -> Option<String> {
        self.route.server_of(connection)?.host()
    }

    /// Waits until everything that was written on `connection` so far is acknowledged as `acks` says, or `timeout` has passed
    /// on the server; the reply says how many have ([`Acks::heard`]). `connection` is that of a call that was answered
    /// ([`Started::connection`], [`Detached::connection`](crate::Detached::connection)): on another one the server would
    /// count what was written there, and say yes without having waited. If that connection has ended, or ends meanwhile, the
    /// wait fails.
    ///
    /// The server answers nothing else on this connection before it has answered this, so `timeout` must be well below the
    /// response timeout. A caller who comes while such a wait is queued and not yet on its way shares it. `deadline` only ends the
    /// caller's own waiting.
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

    /// As [`start_wait`](Self::start_wait) for a result that goes to [`Hooks::on_detached`] with `token`; like
    /// [`queue_eval`](Self::queue_eval) it only appends to a buffer. Returns `None` if that connection has ended, or its
    /// queue is full.
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
        Some(Flush { server, is_answered: true })
    }

    /// Whether `connection` was the last one to its server: this client was closed, or its runtime has ended. What was
    /// written there and not answered never will be, and what is queued there from now on neither.
    pub fn has_ended(&self, connection: ConnectionId) -> bool {
        self.route.server_of(connection).is_some_and(|server| closed_for_good(&server.lock().phase))
    }

    /// A number that keys have in common if one server serves them now; for telling the clocks of servers apart.
    pub fn node_of(&self, key: &[u8]) -> u32 {
        self.route.node_of(key)
    }

    /// Ends the connection that serves `key`, because a reply on it was not what its call can return: replies may have been
    /// shifted, and then none can be trusted. Calls under way fail with [`Outcome::MaybeExecuted`]; a new connection is
    /// made.
    pub fn condemn(&self, key: &[u8], why: &str) {
        if let Ok(server) = self.route.server_for(key) {
            server.condemn(ErrorKind::Protocol, why);
        }
    }

    /// The error of a caller whose deadline has passed while it waited for its turn to make a call on `key`: nothing was
    /// sent.
    pub fn timed_out(&self, key: &[u8], operation: &str) -> Error {
        match self.route.server_for(key) {
            Ok(server) => server.timed_out(operation, Outcome::NotSent),
            Err(error) => error.seen_by(operation, ErrorKind::Timeout, Outcome::NotSent),
        }
    }

    /// For how long a server that is used now has owed an answer; `None` if none does.
    pub fn owed_for(&self) -> Option<Duration> {
        let owed = self.route.servers().into_iter().filter_map(|server| {
            let since = server.lock().pipeline.waiting_since()?;
            Some(server.config.timer.now().saturating_duration_since(since))
        });
        owed.max()
    }

    /// Whether the server that is responsible for `key` is connected.
    pub fn is_ready_for(&self, key: &[u8]) -> bool {
        self.route.server_for(key).is_ok_and(|server| server.is_ready())
    }
}

/// Sends what [`Client::queue_eval`] queued when it is dropped: writes it right here if the connection is idle, and leaves it
/// to the connection's task otherwise.
#[must_use = "drop it outside of your own locks: it may make a system call"]
pub struct Flush<'a> {
    server: Server<'a>,
    is_answered: bool,
}

impl Flush<'_> {
    /// Whether what became of the call will be heard. If not, the client's runtime has ended, and what it has left open takes
    /// bytes and gives none.
    pub fn is_answered(&self) -> bool {
        self.is_answered
    }
}

fn closed_for_good(phase: &Phase) -> bool {
    matches!(phase, Phase::Closed(_))
}

impl Drop for Flush<'_> {
    fn drop(&mut self) {
        let next = self.server.lock().after_append(None, self.server.config.write_at_once);
        self.server.act(next);
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
