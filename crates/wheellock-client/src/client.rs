//! The handle that users hold: calls, scripts, subscriptions. Does no I/O of its own unless the line is idle.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use wheellock_resp::{Arg, Command, Value};

use crate::call::{Call, Started};
use crate::config::Config;
use crate::connection::{ConnectionState, Phase, Shared, Stats};
use crate::driver;
use crate::error::{Error, ErrorKind, Outcome};
use crate::handshake::ServerInfo;
use crate::pipeline::{Eval, Lane, Request};
use crate::retry::Retry;
use crate::route::{Route, Server};
use crate::script::Script;
use crate::subscription::Subscription;

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
        let timer = config.timer.clone();
        // The attempt has the timeout of its own, and knows better what it waited for.
        let deadline = timer.now() + config.connect_timeout + VERDICT_GRACE;
        let client = Self::lazy(config);
        let Route::One(shared) = &client.route;
        let ready = std::future::poll_fn(|cx| {
            let mut state = shared.lock();
            match (&state.phase, &state.last_error) {
                (Phase::Ready(_), _) => return Poll::Ready(Ok(())),
                (Phase::Refused(error) | Phase::Closed(error), _) => return Poll::Ready(Err(error.clone())),
                (Phase::Connecting, Some(error)) if error.kind() != ErrorKind::NotReady => {
                    return Poll::Ready(Err(error.clone()));
                }
                (Phase::Connecting, _) => {}
            }
            state.wait_for_phase(cx.waker());
            Poll::Pending
        });
        match timer.timeout_at(deadline, ready).await {
            Ok(result) => result?,
            Err(_elapsed) => {
                let not_yet =
                    || shared.error(ErrorKind::Connect, Outcome::NotSent, "connecting", "no answer in time");
                let last = shared.lock().last_error.clone();
                return Err(last.unwrap_or_else(not_yet));
            }
        }
        Ok(client)
    }

    /// A client that connects in the background. Calls queue, up to their deadlines, until it has.
    ///
    /// # Panics
    ///
    /// If called outside a tokio runtime.
    pub fn lazy(config: Config) -> Self {
        let shared = Arc::new(Shared::new(config));
        tokio::spawn(driver::drive(Arc::clone(&shared)));
        Self { route: Route::One(shared) }
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
    pub fn eval<'a>(&'a self, script: &'a Script, params: &'a [Arg<'a>]) -> EvalCall<'a> {
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
    ) -> EvalCall<'a> {
        let keys = match script.arity() {
            Some((keys, count)) if count == params.len() => keys,
            arity => return EvalCall::refused(self, Eval { script, keys: 0, params }, arity),
        };
        EvalCall::new(self, Eval { script, keys, params }, options)
    }

    /// Runs a [variadic](Script::variadic) script; the first `keys` of `params` are its keys.
    ///
    /// # Cancel safety
    ///
    /// See [`Client`].
    ///
    /// # Errors
    ///
    /// As [`call`](Self::call).
    pub fn eval_keys<'a>(
        &'a self,
        script: &'a Script,
        keys: usize,
        params: &'a [Arg<'a>],
        options: CallOptions,
    ) -> EvalCall<'a> {
        EvalCall::new(self, Eval { script, keys, params }, options)
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
        self.start(name, &request, options.lane(), options.deadline, retry, waker)
    }

    pub(crate) fn start<'a>(
        &'a self,
        name: &'a str,
        request: &Request<'_>,
        lane: Lane,
        deadline: Option<Instant>,
        retry: &Retry,
        waker: &Waker,
    ) -> Started<'a> {
        match self.server(request, retry) {
            Ok((server, asking)) => Started::new(server, name, request, lane, deadline, asking, waker),
            Err(error) => Started::refused(error),
        }
    }

    /// The server to which a request goes, and whether it has to be asked on the quiet.
    fn server(&self, _request: &Request<'_>, _retry: &Retry) -> Result<(Server<'_>, bool), Error> {
        match &self.route {
            Route::One(shared) => Ok((Server::Only(shared), false)),
        }
    }

    fn send<'a>(&'a self, request: Request<'a>, options: CallOptions) -> Call<'a> {
        Call::new(self, request, options.lane(), options.deadline)
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
        let (server, asking) = self.server(&request, retry).ok()?;
        let now = server.config.timer.now();
        let mut state = server.lock();
        if matches!(state.phase, Phase::Closed(_) | Phase::Refused(_)) {
            return None;
        }
        if !state.pipeline.submit_detached(&request, now, token, asking) {
            return None;
        }
        state.stats.calls += 1;
        drop(state);
        Some(Flush { server })
    }

    /// Subscribes to `channel`, on the connection that serves the keys of the channel's hash slot.
    ///
    /// The SUBSCRIBE is queued before this returns, so a call made afterwards reaches the server after it: what is
    /// checked then cannot miss a message.
    pub fn subscribe(&self, channel: &[u8]) -> Subscription {
        match &self.route {
            Route::One(shared) => Subscription::new(shared, channel),
        }
    }

    /// `PUBLISH` or `SPUBLISH`: how to send what [`subscribe`](Self::subscribe) is to hear.
    pub fn publish_verb(&self) -> &'static str {
        "PUBLISH"
    }

    /// A number that keys have in common if they may be parameters of one command: in a cluster their hash slot, otherwise
    /// always 0.
    pub fn slot_of(&self, _key: &[u8]) -> u16 {
        match &self.route {
            Route::One(_) => 0,
        }
    }

    /// A number that keys have in common if one server serves them now; for telling the clocks of servers apart.
    pub fn node_of(&self, _key: &[u8]) -> u32 {
        match &self.route {
            Route::One(_) => 0,
        }
    }

    /// Ends the connection that serves `key`, because a reply on it was not what its call can return: replies may have been
    /// shifted, and then none can be trusted. Calls under way fail with [`Outcome::MaybeExecuted`]; a new connection is
    /// made.
    pub fn condemn(&self, _key: &[u8], why: &str) {
        match &self.route {
            Route::One(shared) => shared.condemn(why),
        }
    }

    /// The error of a caller whose deadline has passed while it waited for its turn to make a call on `key`: nothing was
    /// sent.
    pub fn timed_out(&self, _key: &[u8], operation: &str) -> Error {
        match &self.route {
            Route::One(shared) => shared.timed_out(operation, Outcome::NotSent),
        }
    }

    /// Whether the server that is responsible for `key` is connected.
    pub fn is_ready_for(&self, _key: &[u8]) -> bool {
        self.is_ready()
    }

    /// What the server said about itself when it was last connected.
    pub fn server_info(&self) -> Option<ServerInfo> {
        let Route::One(shared) = &self.route;
        shared.lock().info.clone()
    }

    /// Where the server is, for messages; contains no credentials.
    pub fn server_address(&self) -> Arc<str> {
        let Route::One(shared) = &self.route;
        shared.server()
    }

    /// The configuration this client was made with.
    pub fn config(&self) -> &Config {
        let Route::One(shared) = &self.route;
        &shared.config
    }

    pub(crate) fn is_cluster(&self) -> bool {
        match &self.route {
            Route::One(_) => false,
        }
    }

    /// Whether a connection is up and has passed its handshake.
    pub fn is_ready(&self) -> bool {
        let Route::One(shared) = &self.route;
        matches!(shared.lock().phase, Phase::Ready(_))
    }

    /// Where this client stands with its server.
    pub fn state(&self) -> ConnectionState {
        let Route::One(shared) = &self.route;
        shared.lock().connection_state()
    }

    /// Connection events: the state after each change that follows this call, the latest one if several came together.
    pub fn watch(&self) -> Watch {
        let Route::One(shared) = &self.route;
        let seen = shared.lock().phase_changes;
        Watch { shared: Arc::clone(shared), seen }
    }

    /// Counters since the client was made.
    pub fn stats(&self) -> Stats {
        let Route::One(shared) = &self.route;
        shared.stats()
    }

    /// Closes the connection for all clones: what was sent may still be answered within a second, then every call
    /// fails with [`ErrorKind::Closed`].
    ///
    /// # Cancel safety
    ///
    /// The client closes all the same.
    pub async fn close(&self) {
        let Route::One(shared) = &self.route;
        shared.begin_closing();
        std::future::poll_fn(|cx| {
            let mut state = shared.lock();
            if matches!(state.phase, Phase::Closed(_)) {
                return Poll::Ready(());
            }
            state.wait_for_phase(cx.waker());
            Poll::Pending
        })
        .await;
    }
}

/// Reports changes of a client's [`ConnectionState`]; made by [`Client::watch`]. Does not keep the client alive.
pub struct Watch {
    shared: Arc<Shared>,
    seen: u64,
}

impl Watch {
    /// The next state. After [`ConnectionState::Closed`] there is none, and this never resolves.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost: the next call resolves at once.
    pub async fn changed(&mut self) -> ConnectionState {
        std::future::poll_fn(|cx| {
            let mut state = self.shared.lock();
            if state.phase_changes == self.seen {
                state.wait_for_phase(cx.waker());
                return Poll::Pending;
            }
            self.seen = state.phase_changes;
            Poll::Ready(state.connection_state())
        })
        .await
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").field("server", &self.shared.server()).finish_non_exhaustive()
    }
}

/// How much longer than an attempt at connecting its caller waits to hear what became of it.
const VERDICT_GRACE: Duration = Duration::from_millis(500);

impl Clone for Client {
    fn clone(&self) -> Self {
        let Route::One(shared) = &self.route;
        shared.handle_cloned();
        Self { route: Route::One(Arc::clone(shared)) }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let Route::One(shared) = &self.route;
        shared.handle_dropped();
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("server", &self.server_address()).finish_non_exhaustive()
    }
}

/// A script's run: EVALSHA, and EVAL after it if the server has lost the script. Made by [`Client::eval`] and its sisters.
///
/// Hand-written, because async functions around async functions would copy the parameters in and the reply out at every
/// level.
#[must_use = "futures do nothing unless awaited"]
pub struct EvalCall<'a> {
    call: Call<'a>,
    refused: Option<Error>,
}

impl<'a> EvalCall<'a> {
    fn new(client: &'a Client, eval: Eval<'a>, options: CallOptions) -> Self {
        Self { call: client.send(Request::EvalSha(eval), options), refused: None }
    }

    #[cold]
    fn refused(client: &'a Client, eval: Eval<'a>, arity: Option<(usize, usize)>) -> Self {
        let wants =
            arity.map_or("a varying number of keys".to_owned(), |(_, count)| format!("{count} parameters"));
        let detail = format!("the script takes {wants}, and {} parameters were given", eval.params.len());
        let error =
            Error::new(ErrorKind::Config, Outcome::NotSent, "EVALSHA", &client.server_address(), detail);
        Self { refused: Some(error), ..Self::new(client, eval, CallOptions::default()) }
    }
}

impl Future for EvalCall<'_> {
    type Output = Result<Value, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if let Some(error) = this.refused.take() {
            return Poll::Ready(Err(error));
        }
        Pin::new(&mut this.call).poll(cx)
    }
}

impl fmt::Debug for EvalCall<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EvalCall")
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
        let next = self.server.lock().after_append(None);
        self.server.act(next);
    }
}

impl fmt::Debug for Flush<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Flush")
    }
}
