//! The handle for users: calls, scripts and subscriptions.
//!
//! The handle does not write to the socket unless the connection is idle.

pub(crate) mod attempts;
pub(crate) mod call;
#[doc(hidden)]
pub mod layer;
pub(crate) mod reauthentication;
pub(crate) mod route;
pub(crate) mod subscription;
pub(crate) mod watch;

use std::fmt;
use std::future::Future;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;

use wheellock_resp::{Arg, Command, Value};

use crate::base::error::{Error, ErrorKind};
use crate::base::script::Script;
use crate::base::slots::slot_of;
use crate::client::call::call;
use crate::client::route::Route;
use crate::client::subscription::Subscription;
use crate::client::watch::Watch;
use crate::config::Config;
use crate::connection::link::Link;
use crate::connection::options::CallOptions;
use crate::connection::{ConnectionState, Stats};
use crate::protocol::handshake::ServerInfo;
use crate::protocol::request::{Eval, Request};

/// A handle to one server. It is cheap to clone. All clones share one pipelined connection, which reconnects by
/// itself.
///
/// ```no_run
/// use wheellock_client::{Client, Command};
///
/// # async fn example() -> Result<(), wheellock_client::Error> {
/// let client = Client::connect("redis://127.0.0.1:6379".parse()?).await?;
/// let visits = client.call(&Command::new("INCR").arg("visits")).await?;
/// println!("{:?} visits, by {}", visits.as_i64(), client.server_address());
/// client.close().await;
/// # Ok(())
/// # }
/// ```
///
/// # Ordering
///
/// Calls reach the server in the order of their first polls. A call that is never polled is never sent.
///
/// # Cancel safety
///
/// If the future of a call is dropped before its first poll, the call is not sent. After that, the call may still
/// run. Its reply is discarded, and other callers are not affected.
pub struct Client {
    pub(crate) route: Route,
}

// The state is behind mutexes that ignore poison, and no change of it runs a caller's code.
impl UnwindSafe for Client {}
impl RefUnwindSafe for Client {}

impl Client {
    /// Connects to the server and waits until the server is ready.
    ///
    /// One refused attempt is an error, with two exceptions. While a server loads its data, this waits for up to
    /// `connect_timeout`. With several servers, this also waits, unless each server to query refuses the credentials.
    /// After a later disconnect, the client reconnects in the background.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes the connection.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Connect`], [`ErrorKind::Auth`], [`ErrorKind::Unsupported`], [`ErrorKind::NotReady`] or
    /// [`ErrorKind::Protocol`]. The outcome is always [`Outcome::NotSent`](crate::Outcome::NotSent).
    ///
    /// # Panics
    ///
    /// If called outside a tokio runtime with I/O enabled.
    pub async fn connect(config: Config) -> Result<Self, Error> {
        let client = Self::lazy(config);
        client.route.ready().await?;
        Ok(client)
    }

    /// Returns a client that connects in the background. Until it is connected, calls queue up to their deadlines.
    ///
    /// # Panics
    ///
    /// If called outside a tokio runtime.
    pub fn lazy(config: Config) -> Self {
        Self { route: Route::open(config) }
    }

    pub(crate) fn error(&self, kind: ErrorKind, operation: &str, detail: &str) -> Error {
        self.route.error(kind, operation, detail)
    }

    /// Sends `command` and returns the server's reply. An error reply is an `Err`.
    ///
    /// All callers share one connection. The client therefore refuses commands that would change the connection for
    /// the other callers, end it, or block it:
    ///
    /// - `SELECT`, `HELLO`, `RESET`, `QUIT`, `REPLCONF`
    /// - subcommands of `CLIENT` and `SCRIPT` that may change the connection, such as `CLIENT SETNAME` and
    ///   `SCRIPT DEBUG`; only the subcommands known to be harmless are sent
    /// - transactions (`MULTI`, `EXEC`, `DISCARD`, `WATCH`, `UNWATCH`); use [`eval`](Self::eval) instead
    /// - subscriptions of all kinds; use [`subscribe`](Self::subscribe) instead
    /// - `MONITOR`, `SYNC`, `PSYNC`
    /// - `READONLY`, `READWRITE`, `ASKING`
    /// - blocking commands: `BLPOP` and similar commands, and `XREAD` and `XREADGROUP` with `BLOCK`
    ///
    /// `AUTH` is sent, but only to one server, and its error may show the server's reply. To renew a token before it
    /// expires, use [`reauthenticate`](Self::reauthenticate).
    ///
    /// `WAIT` and `WAITAOF` are sent too. They delay the replies of all other callers, so give them a timeout well
    /// below [`Config::response_timeout`].
    ///
    /// # Cancel safety
    ///
    /// See [`Client`]: a dropped call may still run.
    ///
    /// # Errors
    ///
    /// Every [`ErrorKind`]. [`Error::outcome`] states whether the call may have run. A refused command is an
    /// [`ErrorKind::Config`].
    pub fn call<'a>(
        &'a self,
        command: &'a Command<'a>,
    ) -> impl Future<Output = Result<Value, Error>> + Send + 'a {
        self.call_with(command, CallOptions::default())
    }

    /// Sends a command like [`call`](Self::call), with options.
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
        call(&self.route, Request::Command(command), options)
    }

    /// Gets credentials from [`Config::credentials`] and sends them (`AUTH`) on every open connection. In a cluster,
    /// these are the connections to all primaries.
    ///
    /// Use this for tokens that expire while a connection lives, such as those of cloud providers. Call it in good
    /// time before they expire. Later calls run as the user in the new credentials. That user should be the same as
    /// before, because another user may have other permissions.
    ///
    /// A connection that is down, or ends meanwhile, is not an error: the next connection gets the credentials
    /// itself. Connections to Sentinels have their own credentials, which do not change. Without a provider,
    /// [`Config::username`] and [`Config::password`] are sent again.
    ///
    /// ```no_run
    /// # async fn example(client: wheellock_client::Client) {
    /// loop {
    ///     client.config().timer.sleep(std::time::Duration::from_secs(600)).await; // of tokens that last for 15 min
    ///     if let Err(error) = client.reauthenticate().await {
    ///         eprintln!("tried again in 10 min: {error}"); // says which server, and never the token
    ///     }
    /// }
    /// # }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// Safe. Some servers may have the new credentials and others the old ones, which does no harm. Call this again
    /// at any time.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::Connect`]: the provider failed, panicked or took longer than [`Config::connect_timeout`]. The
    ///   credentials were not sent.
    /// - [`ErrorKind::Auth`]: a server refuses the credentials. Its connection keeps the former user.
    /// - [`ErrorKind::Timeout`]: a server did not reply within [`Config::response_timeout`].
    /// - [`ErrorKind::Server`]: a server refused for any other reason.
    /// - [`ErrorKind::Overloaded`] and [`ErrorKind::Closed`].
    ///
    /// If one server fails, the other servers still get the credentials. The error names every server that failed.
    pub async fn reauthenticate(&self) -> Result<(), Error> {
        reauthentication::reauthenticate(&self.route).await
    }

    /// Runs `script`. `params` holds its keys, then its arguments.
    ///
    /// Sends EVALSHA, and EVAL once if the server has lost the script. The reply `NOSCRIPT` proves that the script
    /// did not run, so the script never runs twice.
    ///
    /// # Cancel safety
    ///
    /// See [`Client`].
    ///
    /// # Errors
    ///
    /// As [`call`](Self::call). Also [`ErrorKind::Config`] if the script expects a different number of parameters.
    pub fn eval<'a>(
        &'a self,
        script: &'a Script,
        params: &'a [Arg<'a>],
    ) -> impl Future<Output = Result<Value, Error>> + Send + 'a {
        self.eval_with(script, params, CallOptions::default())
    }

    /// Runs a script like [`eval`](Self::eval), with options.
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
        let keys = script.arity().map_or(0, |(keys, _)| keys);
        call(&self.route, Request::EvalSha(Eval { script, keys, params }), options)
    }

    /// Subscribes to `channel`, on the connection that serves the keys of the channel's hash slot.
    ///
    /// The SUBSCRIBE is queued before this returns, so a later call reaches the server after it. A check by such a
    /// call cannot miss a message.
    ///
    /// A server limits the unread output of a connection with subscriptions, including replies. By default, it ends
    /// the connection above 32 MiB, or above 8 MiB for a minute (`client-output-buffer-limit pubsub`). Use a separate
    /// client for replies of megabytes. Messages may have payloads of any length, because the client drops long payloads
    /// as they arrive.
    pub fn subscribe(&self, channel: &[u8]) -> Subscription {
        Subscription::new(&self.route, channel, false)
    }

    /// Does the same as [`subscribe`](Self::subscribe), and keeps the short payloads of the latest messages, for
    /// [`Subscription::take_payloads`].
    #[doc(hidden)]
    pub fn subscribe_keeping_payloads(&self, channel: &[u8]) -> Subscription {
        Subscription::new(&self.route, channel, true)
    }

    /// Returns the command that publishes to subscribers of [`subscribe`](Self::subscribe): `PUBLISH` or `SPUBLISH`.
    pub fn publish_verb(&self) -> &'static str {
        let is_sharded = matches!(&self.route, Route::Cluster(cluster) if cluster.is_sharded());
        if is_sharded { "SPUBLISH" } else { "PUBLISH" }
    }

    /// Returns a number that is equal for keys that may be parameters of one command. In a cluster it is their hash
    /// slot, otherwise always 0.
    pub fn slot_of(&self, key: &[u8]) -> u16 {
        if self.route.is_cluster() { slot_of(key) } else { 0 }
    }

    /// Returns a client for each server in use: for each primary of a cluster, otherwise only this one.
    ///
    /// Each client is a handle to a connection that this client uses too, and [`close`](Self::close) ends that
    /// connection. Calls for keys of a closed node fail with [`ErrorKind::Closed`] until the cluster has reconnected
    /// it, which happens automatically. To release only the handle, drop it.
    pub fn nodes(&self) -> Vec<Self> {
        self.route.servers().iter().map(|server| Self { route: Route::One(Link::to(server)) }).collect()
    }

    /// Returns the server's description of itself from the last connection. In a cluster, it comes from any node.
    pub fn server_info(&self) -> Option<ServerInfo> {
        self.route
            .servers()
            .iter()
            .find_map(|server| server.lock().server.as_ref().map(|(info, _)| info.clone()))
    }

    /// Returns the server's address for messages. It contains no credentials.
    pub fn server_address(&self) -> Arc<str> {
        self.route.address()
    }

    /// Returns the configuration of this client.
    pub fn config(&self) -> &Config {
        self.route.config()
    }

    /// Returns true if a connection is up and has passed its handshake. In a cluster, one such connection suffices.
    pub fn is_ready(&self) -> bool {
        self.route.servers().iter().any(|server| server.is_ready())
    }

    /// Returns the state of the connection. A cluster is ready if every slot has a ready node.
    pub fn state(&self) -> ConnectionState {
        self.route.state()
    }

    /// Watches the connection's state. Reports each change after this call, and only the latest state if several
    /// changes came together.
    pub fn watch(&self) -> Watch {
        Watch::new(&self.route)
    }

    /// Returns the counters since the client was created. In a cluster, they add up all present nodes.
    pub fn stats(&self) -> Stats {
        self.route.servers().iter().map(|server| server.stats()).fold(Stats::default(), Stats::merged)
    }

    /// Begins to [`close`](Self::close) without waiting for the end.
    pub fn begin_closing(&self) {
        self.route.begin_closing();
    }

    /// Closes the connection for all clones. Calls that are already queued are sent, and may still get their replies
    /// within a second. After that, every call fails with [`ErrorKind::Closed`].
    ///
    /// A runtime that is dropped after this does not wait for DNS lookups, which run on threads of the process. With
    /// 200 clients and a silent name server, dropping the runtime took 1.5 ms.
    ///
    /// # Cancel safety
    ///
    /// The client also closes if the future is dropped.
    pub async fn close(&self) {
        self.begin_closing();
        for server in self.route.servers() {
            server.closed().await;
        }
    }
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
