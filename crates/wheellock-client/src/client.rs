//! The handle that users hold: calls, scripts, subscriptions. Does no I/O of its own unless the line is idle.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use wheellock_resp::{Arg, Command, Value};

use crate::acks::Acks;
use crate::call::Call;
use crate::config::Config;
use crate::connection::{ConnectionState, Phase, Stats};
use crate::connection_id::ConnectionId;
use crate::error::{Error, ErrorKind, Outcome};
use crate::handshake::ServerInfo;
use crate::link::Link;
use crate::pipeline::Lane;
use crate::request::{Eval, Request};
use crate::retry::Retry;
use crate::route::Route;
use crate::script::Script;
use crate::server::Server;
use crate::started::Started;
use crate::subscription::Subscription;
use crate::watch::Watch;

/// A handle to one server. Cheap to clone; all clones share one pipelined connection, which reconnects by itself.
///
/// # Ordering
///
/// Calls reach the server in the order of their first polls. A call that is never polled is never sent.
///
/// # Cancel safety
///
/// Dropping the future of a call before its first poll sends nothing. After that the call is on its way: it may run,
/// its reply is discarded, and no other caller is affected.
pub struct Client {
    route: Route,
}

/// How one call is to be made.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct CallOptions {
    /// Absolute deadline that covers queueing, connecting and the reply; the configured response timeout from the
    /// first poll if `None`.
    pub deadline: Option<Instant>,
    /// May use the room that is kept free for calls that must not be refused when the queue is full.
    pub reserved: bool,
}

impl CallOptions {
    /// Options with a deadline.
    pub fn by(deadline: Instant) -> Self {
        Self { deadline: Some(deadline), ..Self::default() }
    }

    /// The same options with access to the reserved room.
    #[must_use]
    pub fn reserved(self) -> Self {
        Self { reserved: true, ..self }
    }

    fn lane(self) -> Lane {
        if self.reserved { Lane::Reserved } else { Lane::Normal }
    }
}

impl Client {
    /// Connects to the server and waits until it serves. One refused attempt is an error; a server that is still
    /// loading its data is waited for, up to `connect_timeout`. Later disconnects are healed in the background.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes the connection.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Connect`], [`ErrorKind::Auth`], [`ErrorKind::Unsupported`], [`ErrorKind::NotReady`],
    /// [`ErrorKind::Protocol`]: always with [`Outcome::NotSent`].
    ///
    /// # Panics
    ///
    /// If called outside a tokio runtime with I/O enabled.
    pub async fn connect(config: Config) -> Result<Self, Error> {
        let client = Self::lazy(config);
        client.route.ready().await?;
        Ok(client)
    }

    /// A client that connects in the background. Calls queue, up to their deadlines, until it has.
    ///
    /// # Panics
    ///
    /// If called outside a tokio runtime.
    pub fn lazy(config: Config) -> Self {
        Self { route: Route::open(config) }
    }

    fn error(&self, kind: ErrorKind, operation: &str, detail: &str) -> Error {
        Error::new(kind, Outcome::NotSent, operation, &self.server_address(), detail.to_owned())
    }

    /// Sends `command` and returns the server's reply. An error reply is an `Err`.
    ///
    /// # Cancel safety
    ///
    /// See [`Client`]: a dropped call may still run.
    ///
    /// # Errors
    ///
    /// Every [`ErrorKind`] but `Config`; [`Error::outcome`] says whether the call may have run.
    pub fn call<'a>(
        &'a self,
        command: &'a Command<'a>,
    ) -> impl Future<Output = Result<Value, Error>> + Send + 'a {
        self.send(Request::Command(command), CallOptions::default())
    }

    /// [`call`](Self::call) with options.
    ///
    /// # Cancel safety
    ///
    /// See [`Client`].
    ///
    /// # Errors
    ///
    /// As [`call`](Self::call).
    pub fn call_with<'a>(
        &'a self,
        command: &'a Command<'a>,
        options: CallOptions,
    ) -> impl Future<Output = Result<Value, Error>> + Send + 'a {
        self.send(Request::Command(command), options)
    }

    /// Runs `script`; `params` are its keys, then its arguments. Sends EVALSHA, and EVAL once if the server has lost
    /// the script (`NOSCRIPT` proves that nothing ran, so this repeats nothing).
    ///
    /// # Cancel safety
    ///
    /// See [`Client`].
    ///
    /// # Errors
    ///
    /// As [`call`](Self::call); and [`ErrorKind::Config`] if the script was made for another number of parameters.
    pub fn eval<'a>(
        &'a self,
        script: &'a Script,
        params: &'a [Arg<'a>],
    ) -> impl Future<Output = Result<Value, Error>> + Send + 'a {
        self.eval_with(script, params, CallOptions::default())
    }

    /// [`eval`](Self::eval) with options.
    ///
    /// # Cancel safety
    ///
    /// See [`Client`].
    ///
    /// # Errors
    ///
    /// As [`eval`](Self::eval).
    pub fn eval_with<'a>(
        &'a self,
        script: &'a Script,
        params: &'a [Arg<'a>],
        options: CallOptions,
    ) -> impl Future<Output = Result<Value, Error>> + Send + 'a {
        let arity = script.arity();
        match arity {
            Some((keys, count)) if count == params.len() => {
                self.send(Request::EvalSha(Eval { script, keys, params }), options)
            }
            _ => self.wrong_arity(Eval { script, keys: 0, params }, arity),
        }
    }

    #[cold]
    fn wrong_arity<'a>(&'a self, eval: Eval<'a>, arity: Option<(usize, usize)>) -> Call<'a> {
        let wants =
            arity.map_or("a varying number of keys".to_owned(), |(_, count)| format!("{count} parameters"));
        let detail = format!("the script takes {wants}, and {} parameters were given", eval.params.len());
        Call::refused(&self.route, Request::EvalSha(eval), self.error(ErrorKind::Config, "EVALSHA", &detail))
    }

    /// Queues a run of `script` now, and wakes `waker` when its result is there: for hand-written futures that do not want
    /// to keep the parameters. The first `keys` of `params` are its keys. `retry` is what earlier attempts have taught; only
    /// one attempt is made here, and its failure is for [`Retry::after`].
    ///
    /// # Cancel safety
    ///
    /// See [`Client`]: a dropped call may still run.
    pub fn start_eval<'a>(
        &'a self,
        script: &Script,
        keys: usize,
        params: &[Arg<'_>],
        retry: &Retry,
        options: CallOptions,
        waker: &Waker,
    ) -> Started<'a> {
        let request = Request::EvalSha(Eval { script, keys, params }).retried(retry);
        let name = if retry.is_in_full() { "EVAL" } else { "EVALSHA" };
        let server = self.route.server(&request, retry);
        Started::new(server, name, &request, options.lane(), options.deadline, waker)
    }

    fn send<'a>(&'a self, request: Request<'a>, options: CallOptions) -> Call<'a> {
        Call::new(&self.route, request, options.lane(), options.deadline)
    }

    /// Queues `script` without waiting for its reply; the result goes to [`Config::on_detached`] with `token`. The
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
        let closed = matches!(state.phase, Phase::Closed(_)) && state.left_open.is_none();
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
        drop(state);
        Some(Flush { server })
    }

    /// Waits until everything that was written on `connection` so far is acknowledged as `acks` says, or `timeout` has passed
    /// on the server; the reply says how many have ([`Acks::heard`]). `connection` is that of a call that was answered
    /// ([`Started::connection`], [`Detached::connection`](crate::Detached::connection)): on another one the server would
    /// count what was written there, and say yes without having waited. If that connection has ended, or ends meanwhile, the
    /// wait fails.
    ///
    /// The server answers nothing else on this connection before it has answered this, so `timeout` must be well below the
    /// response timeout. Whoever comes while such a wait is queued and not yet on its way shares it. `deadline` only ends the
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

    /// As [`start_wait`](Self::start_wait) for a result that goes to [`Config::on_detached`] with `token`; like
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
        Some(Flush { server })
    }

    /// Whether `connection` was the last one to its server: this client was closed, or its runtime has ended. What was
    /// written there and not answered never will be, and what is queued there from now on neither.
    pub fn has_ended(&self, connection: ConnectionId) -> bool {
        self.route.server_of(connection).is_some_and(|server| matches!(server.lock().phase, Phase::Closed(_)))
    }

    /// Subscribes to `channel`, on the connection that serves the keys of the channel's hash slot.
    ///
    /// The SUBSCRIBE is queued before this returns, so a call made afterwards reaches the server after it: what is
    /// checked then cannot miss a message.
    pub fn subscribe(&self, channel: &[u8]) -> Subscription {
        self.route.subscribe(channel)
    }

    /// `PUBLISH` or `SPUBLISH`: how to send what [`subscribe`](Self::subscribe) is to hear.
    pub fn publish_verb(&self) -> &'static str {
        if self.route.is_sharded() { "SPUBLISH" } else { "PUBLISH" }
    }

    /// A number that keys have in common if they may be parameters of one command: in a cluster their hash slot, otherwise
    /// always 0.
    pub fn slot_of(&self, key: &[u8]) -> u16 {
        self.route.slot_of(key)
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

    /// Whether the server that is responsible for `key` is connected.
    pub fn is_ready_for(&self, key: &[u8]) -> bool {
        self.route.server_for(key).is_ok_and(|server| server.is_ready())
    }

    /// A client for each server that this one uses now: each of a cluster's primaries, otherwise only this one.
    pub fn nodes(&self) -> Vec<Self> {
        self.route.servers().iter().map(|server| Self { route: Route::One(Link::to(server)) }).collect()
    }

    /// What the server said about itself when it was last connected; in a cluster, what any node did.
    pub fn server_info(&self) -> Option<ServerInfo> {
        self.route.server_info()
    }

    /// Where the server is, for messages; contains no credentials.
    pub fn server_address(&self) -> Arc<str> {
        self.route.address()
    }

    /// The configuration this client was made with.
    pub fn config(&self) -> &Config {
        self.route.config()
    }

    /// Whether a connection is up and has passed its handshake; in a cluster, whether any is.
    pub fn is_ready(&self) -> bool {
        self.route.is_ready()
    }

    /// Where this client stands with its server. A cluster is ready if every slot has a node that is.
    pub fn state(&self) -> ConnectionState {
        self.route.state()
    }

    /// Connection events: the state after each change that follows this call, the latest one if several came together.
    pub fn watch(&self) -> Watch {
        self.route.watch()
    }

    /// Counters since the client was made; in a cluster, of all its present nodes together.
    pub fn stats(&self) -> Stats {
        self.route.stats()
    }

    /// [`close`](Self::close) without waiting for the end.
    pub fn begin_closing(&self) {
        self.route.begin_closing();
    }

    /// Closes the connection for all clones: what was queued before is sent and may still be answered within a second, then
    /// every call fails with [`ErrorKind::Closed`].
    ///
    /// # Cancel safety
    ///
    /// The client closes all the same.
    pub async fn close(&self) {
        self.begin_closing();
        for server in self.route.servers() {
            server.closed().await;
        }
    }
}

fn whole_millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl Clone for Client {
    fn clone(&self) -> Self {
        Self { route: self.route.clone() }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("server", &self.server_address()).finish_non_exhaustive()
    }
}

/// Sends what [`Client::queue_eval`] queued when it is dropped: writes it right here if the line is idle, and leaves it
/// to the connection's task otherwise.
#[must_use = "drop it outside of your own locks: it may make a system call"]
pub struct Flush<'a> {
    server: Server<'a>,
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
