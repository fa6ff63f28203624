//! The handle that users hold: calls, scripts, subscriptions. Does no I/O of its own unless the connection is idle.

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
use std::sync::Arc;

use wheellock_resp::{Arg, Command, Value};

use crate::base::error::{Error, ErrorKind};
use crate::base::script::Script;
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

/// A handle to one server. Cheap to clone; all clones share one pipelined connection, which reconnects by itself.
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
/// Dropping the future of a call before its first poll sends nothing. After that the call is on its way: it may run,
/// its reply is discarded, and no other caller is affected.
pub struct Client {
    pub(crate) route: Route,
}

impl Client {
    /// Connects to the server and waits until it serves. One refused attempt is an error; a server that is still
    /// loading its data is waited for, up to `connect_timeout`; so are several servers, unless each of those to be asked refuses
    /// the credentials. Later disconnects are healed in the background.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes the connection.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Connect`], [`ErrorKind::Auth`], [`ErrorKind::Unsupported`], [`ErrorKind::NotReady`],
    /// [`ErrorKind::Protocol`]: always with [`Outcome::NotSent`](crate::Outcome::NotSent).
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

    pub(crate) fn error(&self, kind: ErrorKind, operation: &str, detail: &str) -> Error {
        self.route.error(kind, operation, detail)
    }

    /// Sends `command` and returns the server's reply. An error reply is an `Err`.
    ///
    /// All callers share one connection, so what would change it for the others, end it, or keep them waiting is refused and not sent:
    /// `SELECT`, `HELLO`, `RESET`, `QUIT`, `REPLCONF`; subcommands of `CLIENT` and `SCRIPT` other than the known ones that leave it as it
    /// is, so `CLIENT SETNAME` and `SCRIPT DEBUG`; transactions (`MULTI`, `EXEC`, `DISCARD`, `WATCH`,
    /// `UNWATCH`), in place of which there is [`eval`](Self::eval); subscriptions of all sorts, in place of which there is
    /// [`subscribe`](Self::subscribe); `MONITOR`, `SYNC`, `PSYNC`; `READONLY`, `READWRITE`, `ASKING`; and what blocks: `BLPOP` and its kin,
    /// `XREAD` and `XREADGROUP` with `BLOCK`.
    ///
    /// `AUTH` is sent, but to one server only, and what the server says of it is shown: for a token that has to be renewed before it ends
    /// there is [`reauthenticate`](Self::reauthenticate). `WAIT` and `WAITAOF` are sent, too, and keep all others from their answers
    /// meanwhile: give them a timeout well below [`Config::response_timeout`].
    ///
    /// # Cancel safety
    ///
    /// See [`Client`]: a dropped call may still run.
    ///
    /// # Errors
    ///
    /// Every [`ErrorKind`]; [`Error::outcome`] says whether the call may have run. [`ErrorKind::Config`] if the command is one of those that
    /// are not sent.
    pub fn call<'a>(
        &'a self,
        command: &'a Command<'a>,
    ) -> impl Future<Output = Result<Value, Error>> + Send + 'a {
        self.call_with(command, CallOptions::default())
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
        call(&self.route, Request::Command(command), options)
    }

    /// Asks [`Config::credentials`] once more, and says what it provides (`AUTH`) on every connection that is up: in a cluster on those to all
    /// of its primaries. For tokens that end while a connection lives, as those of clouds do: call it in good time before that. Whatever is
    /// called afterwards is done as the user that was named, who should be the same as before: another one may have other permissions.
    ///
    /// A connection that is not up, or ends meanwhile, is no error: the next one asks by itself. Those to Sentinels have credentials of their
    /// own, which do not change. Without a provider the [`Config::username`] and [`Config::password`] are said once more.
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
    /// Some servers may have been told and others not, which does no harm. It may be called again at any time.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Connect`] if the provider fails, panics, or takes longer than [`Config::connect_timeout`]: nothing was sent.
    /// [`ErrorKind::Auth`] if a server refuses the credentials: its connection goes on as who it was. [`ErrorKind::Timeout`] if it does not
    /// answer within [`Config::response_timeout`], [`ErrorKind::Overloaded`], [`ErrorKind::Server`] for any other refusal, and
    /// [`ErrorKind::Closed`]. If it fails on one server the others have been told all the same; the error names each on which it did.
    pub async fn reauthenticate(&self) -> Result<(), Error> {
        reauthentication::reauthenticate(&self.route).await
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
        let keys = script.arity().map_or(0, |(keys, _)| keys);
        call(&self.route, Request::EvalSha(Eval { script, keys, params }), options)
    }

    /// Subscribes to `channel`, on the connection that serves the keys of the channel's hash slot.
    ///
    /// The SUBSCRIBE is queued before this returns, so a call made afterwards reaches the server after it: what is
    /// checked then cannot miss a message.
    ///
    /// A server bounds what a connection with subscriptions leaves unread, replies included: by default it ends the connection beyond 32 MiB,
    /// or beyond 8 MiB for a minute (`client-output-buffer-limit pubsub`). Use another client for replies of megabytes. Payloads of messages
    /// may be of any length: they are dropped as they arrive.
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

    /// A client for each server that this one uses now: each of a cluster's primaries, otherwise only this one.
    ///
    /// Each is a handle to the connection that this client uses itself, and [`close`](Self::close) ends that: calls for keys of such a node
    /// fail with [`ErrorKind::Closed`] until the cluster has connected it anew, which it does by itself. To give up no more than the handle,
    /// drop it.
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
    /// A runtime that is dropped after this waits for no lookup of a name, because lookups run on threads of the process. With 200 clients
    /// and a silent name server its end took 1.5 ms.
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
