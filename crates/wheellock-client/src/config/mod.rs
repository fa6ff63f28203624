//! Where the server is, who we are to it, and the limits we keep. Owns the settings; their spelling in a URL is `url`'s.
//! Opens nothing.

pub(crate) mod credentials;
pub(crate) mod resolve;
#[cfg(feature = "tls")]
pub(crate) mod tls;
pub(crate) mod url;

#[cfg(not(feature = "tls"))]
pub(crate) use crate::base::absent as tls;

use std::fmt;
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use wheellock_resp::Limits;
use wheellock_wheel::Timer;

use crate::base::address::Address;
use crate::base::contain::contained;
use crate::base::detached::Detached;
use crate::base::memory::Connector;
use crate::base::script::Script;
use crate::base::slots::{SlotSet, slot_of};
use crate::config::resolve::Resolver;
use crate::config::tls::TlsConfig;

/// Who we are to the server.
///
/// ```
/// use wheellock_client::{Credentials, Secret};
///
/// let credentials =
///     Credentials { username: Some("app".to_owned()), password: Some(Secret::new("a token of today")) };
/// assert!(!format!("{credentials:?}").contains("token"));
/// ```
#[derive(Clone, Debug, Default)]
pub struct Credentials {
    /// ACL user; that of the [`Config`] if `None`, and if that one names none either, the server's `default` user.
    pub username: Option<String>,
    /// Password. A user without one is asked for with an empty one: see [`Config::username`].
    pub password: Option<Secret>,
}

impl Credentials {
    /// The user and the password to say, if either is given. Without any the server takes us for its `default` user, so
    /// a user who was named must always be said: the server knows whether it needs a password.
    pub(crate) fn to_say(&self) -> Option<(&str, &str)> {
        let password = self.password.as_ref().map(Secret::expose);
        match &self.username {
            Some(user) => Some((user, password.unwrap_or_default())),
            None => Some((DEFAULT_USER, password?)),
        }
    }

    /// Who we are to be.
    pub(crate) fn user(&self) -> &str {
        self.username.as_deref().unwrap_or(DEFAULT_USER)
    }
}

/// Who a connection is that says nothing (source: the Redis documentation, "ACL").
const DEFAULT_USER: &str = "default";

/// See [`Config::credentials`].
///
/// ```
/// use std::sync::Arc;
/// use wheellock_client::{Config, Credentials, CredentialsProvider, Secret};
///
/// let tokens: CredentialsProvider = Arc::new(|| {
///     Box::pin(async {
///         let token = "asked for at every handshake"; // from a vault, say
///         Ok(Credentials { username: Some("app".to_owned()), password: Some(Secret::new(token)) })
///     })
/// });
/// let mut config: Config = "redis://cache.internal".parse()?;
/// config.credentials = Some(tokens);
/// # Ok::<(), wheellock_client::Error>(())
/// ```
pub type CredentialsProvider = Arc<dyn Fn() -> CredentialsFuture + Send + Sync>;

/// What a [`CredentialsProvider`] returns.
///
/// ```
/// use wheellock_client::{Credentials, CredentialsFuture, Secret};
///
/// fn from_a_file() -> CredentialsFuture {
///     Box::pin(async {
///         let token = std::fs::read_to_string("/run/secrets/redis")?;
///         Ok(Credentials { username: None, password: Some(Secret::new(token.trim())) })
///     })
/// }
/// # drop(from_a_file());
/// ```
pub type CredentialsFuture =
    Pin<Box<dyn Future<Output = Result<Credentials, Box<dyn std::error::Error + Send + Sync>>> + Send>>;

/// See [`Config::translate`].
///
/// ```
/// use std::sync::Arc;
/// use wheellock_client::{Address, Config, Translate};
///
/// let through_the_tunnel: Translate = Arc::new(|address| match address {
///     Address::Tcp { port, .. } => Some(Address::Tcp { host: "tunnel.internal".to_owned(), port: *port }),
///     _ => None, // must not be used
/// });
/// let mut config: Config = "redis+sentinel://a,b,c/mymaster".parse()?;
/// config.translate = Some(through_the_tunnel);
/// # Ok::<(), wheellock_client::Error>(())
/// ```
pub type Translate = Arc<dyn Fn(&Address) -> Option<Address> + Send + Sync>;

/// See [`Config::on_change`].
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use wheellock_client::ChangeSink;
///
/// let failovers = Arc::new(AtomicU64::new(0));
/// let count = Arc::clone(&failovers);
/// let on_change: ChangeSink = Arc::new(move |_| drop(count.fetch_add(1, Ordering::Relaxed)));
/// # drop(on_change);
/// ```
pub type ChangeSink = Arc<dyn Fn(&Change) + Send + Sync>;

/// See [`Hooks::on_detached`].
pub type DetachedSink = Arc<dyn Fn(&mut Vec<Detached>) + Send + Sync>;

/// What the layer above is to be told, besides the user.
#[derive(Clone, Default)]
pub struct Hooks {
    /// Receives the results of [detached](crate::Client::queue_eval) calls, in batches and in order, on the task of the
    /// connection. Must be quick and must not block. What it leaves in the vector is dropped.
    pub on_detached: Option<DetachedSink>,
    /// As [`Config::on_change`], and told after it.
    pub on_change: Option<ChangeSink>,
}

impl fmt::Debug for Hooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hooks").finish_non_exhaustive()
    }
}

/// Where a client finds the server that is responsible for a key.
///
/// ```
/// use wheellock_client::{Config, Servers};
///
/// let config: Config = "redis+cluster://a:6379,b:6379".parse()?;
/// assert!(matches!(&config.servers, Servers::Cluster(nodes) if nodes.len() == 2));
/// # Ok::<(), wheellock_client::Error>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Servers {
    /// One server.
    One(Address),
    /// A primary and its replicas, in any order: whichever of them says that it is the primary is used. They are asked at
    /// every connect, all at once. If two say so, which only Sentinel could decide, the first answer counts.
    Replicated(Vec<Address>),
    /// The primary that Sentinels name.
    Sentinel(Sentinels),
    /// Any nodes of a Redis Cluster; the others are learnt from them.
    Cluster(Vec<Address>),
}

/// Sentinels and the service to ask them for.
///
/// ```
/// use wheellock_client::{Address, Config, Sentinels, Servers};
///
/// let sentinel = |host: &str| Address::Tcp { host: host.to_owned(), port: 26379 };
/// let mut sentinels = Sentinels::default();
/// sentinels.addresses = ["a", "b", "c"].map(sentinel).to_vec();
/// sentinels.service = "mymaster".to_owned();
/// let config = Config::with(Servers::Sentinel(sentinels));
/// assert_eq!(config.to_string(), "redis+sentinel://a:26379,b:26379,c:26379/mymaster");
/// ```
#[derive(Clone, Debug, Default)]
pub struct Sentinels {
    /// The Sentinels, in any order. Some of them suffice.
    pub addresses: Vec<Address>,
    /// The name under which they watch the primary.
    pub service: String,
    /// ACL user for the Sentinels themselves, as [`Config::username`] is for the servers. The servers' credentials are the
    /// [`Config`]'s.
    pub username: Option<String>,
    /// Password for the Sentinels themselves.
    pub password: Option<Secret>,
    /// TLS settings for the Sentinels themselves; plain if `None`, as always without the feature `tls`. `rediss+sentinel://` sets them for both.
    pub tls: Option<TlsConfig>,
}

/// For messages: the addresses.
impl fmt::Display for Servers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, addresses) = match self {
            Self::One(address) => return address.fmt(f),
            Self::Replicated(addresses) => ("the primary of".to_owned(), addresses),
            Self::Sentinel(sentinels) => {
                let service = sentinels.service.escape_debug();
                (format!("the primary \"{service}\" of the Sentinels"), &sentinels.addresses)
            }
            Self::Cluster(addresses) => ("the cluster of".to_owned(), addresses),
        };
        f.write_str(&what)?;
        addresses
            .iter()
            .enumerate()
            .try_for_each(|(place, address)| write!(f, "{}{address}", if place == 0 { " " } else { "," }))
    }
}

/// Whether messages go by sharded pub/sub (`SPUBLISH`), which only clusters of Redis 7 and later have.
///
/// ```
/// use wheellock_client::{Config, ShardedPubSub};
///
/// let mut config: Config = "redis+cluster://a:6379,b:6379".parse()?;
/// config.sharded_pubsub = ShardedPubSub::Off; // as the older processes of the fleet do
/// # Ok::<(), wheellock_client::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ShardedPubSub {
    /// In a cluster whose nodes know it. Redisson's rule and default (`shardedSubscriptionMode`).
    #[default]
    Auto,
    /// In every cluster.
    On,
    /// Never.
    Off,
}

/// News of who answers for which keys: see [`Config::on_change`].
///
/// ```
/// use wheellock_client::{Change, Config};
///
/// let mut config: Config = "redis+cluster://a:6379,b:6379".parse()?;
/// config.on_change = Some(std::sync::Arc::new(|change: &Change| {
///     if change.concerns(b"orders:42") {
///         println!("look whether it still knows of orders:42");
///     }
/// }));
/// # Ok::<(), wheellock_client::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Change {
    slots: Option<SlotSet>,
}

impl Change {
    /// Everything is answered by another server now.
    #[doc(hidden)]
    pub fn everywhere() -> Self {
        Self { slots: None }
    }

    /// The keys of some slots are answered by another server now.
    pub(crate) fn of(slots: SlotSet) -> Self {
        Self { slots: Some(slots) }
    }

    /// Whether `key` is among those that may be answered by another server now.
    pub fn concerns(&self, key: &[u8]) -> bool {
        self.slots.as_ref().is_none_or(|slots| slots.contains(slot_of(key)))
    }
}

/// A secret that no `Debug` or `Display` shows.
///
/// ```
/// use wheellock_client::{Config, Secret};
///
/// let mut config: Config = "redis://app@cache.internal".parse()?;
/// config.password = Some(Secret::new("correct horse"));
/// assert!(!format!("{config:?}{config}").contains("horse"));
/// # Ok::<(), wheellock_client::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a secret.
    pub fn new(secret: impl Into<String>) -> Self {
        Self(secret.into())
    }

    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<redacted>")
    }
}

/// Everything a [`Client`](crate::Client) needs to know. Start from a URL and adjust:
///
/// ```
/// use std::time::Duration;
/// use wheellock_client::Config;
///
/// let mut config: Config = "redis://app:secret@cache.internal:6380/2".parse()?;
/// config.response_timeout = Duration::from_secs(1);
/// assert_eq!(config.to_string(), "redis://app:@cache.internal:6380/2"); // never the password
/// # Ok::<(), wheellock_client::Error>(())
/// ```
///
/// # URL grammar
///
/// `redis://` or `valkey://`, or with TLS `rediss://` or `valkeys://`, then `[userinfo@]host[:port][/db]`; the port
/// defaults to 6379. `unix://`, `redis+unix://` and `valkey+unix://` take `[userinfo@]/path/to/socket[?db=n]`.
///
/// | userinfo | the connection is |
/// |---|---|
/// | `user:password@` | that user, or it fails |
/// | `user:@` | that user, if it needs no password (`nopass`), or it fails; so a variable that is not set in `app:$PW@` shows |
/// | `:password@`, `password@` | the server's `default` user. A lone part is a password, as in redis-cli: a user without a password has a colon |
/// | `:@`, `@`, none | the server's `default` user, if it needs no password |
///
/// User and password are percent-decoded. The same is true of the Sentinels' own credentials, and of every server that is
/// found later. `Display` shows the URL with the user and without the password.
///
/// Several servers are separated by commas:
///
/// - `redis://a:6379,b:6379,c:6379/db`: a primary and its replicas, whichever is which;
/// - `redis+sentinel://a:26379,b:26379/service[/db]`: the primary that these Sentinels name. Credentials are those of the
///   servers; the Sentinels' own are `?sentinel_user=..&sentinel_password=..`. A number alone in the place of the service
///   is a database, and the service has to be named by `?service=`;
/// - `redis+cluster://a:6379,b:6379`: a cluster of which these are nodes.
///
/// With `rediss` in place of `redis` every connection is encrypted, those to Sentinels included. `valkey` is the same as
/// `redis`, `-` the same as `+`; further addresses may follow as `?node=host:port`, the service as `?service=` or, as Lettuce
/// spells it, as `/db#service`. The zone of an IPv6 address follows `%25`: `redis://[fe80::1%25eth0]:6379`.
///
/// TLS trusts the authorities in the PEM file of `?ca_file=/path`, or those of the system, for which the environment variable
/// `SSL_CERT_FILE` may name a file. They are read at the first attempt to connect; a failure is
/// [`ErrorKind::Config`](crate::ErrorKind::Config), and the next attempt reads again.
///
/// # Times
///
/// Those longer than ten years, [`Duration::MAX`] among them, are ten years for the client that is made.
#[derive(Clone)]
#[non_exhaustive]
pub struct Config {
    /// Where the server is, or how to find it.
    pub servers: Servers,
    /// ACL user; the server's `default` user if `None`. Whoever is named here is who the connection is, or it fails:
    /// without a password the server is asked for this user with an empty one, which it grants to a user with `nopass`
    /// and refuses to any other.
    pub username: Option<String>,
    /// Password, if the server wants one.
    pub password: Option<Secret>,
    /// Asked at every handshake instead of `username` and `password`, for credentials that change, and by
    /// [`Client::reauthenticate`](crate::Client::reauthenticate) for those that end while a connection lives. If it names no user,
    /// the user is `username` all the same. Its time counts towards `connect_timeout`; if it panics, the attempt has failed.
    pub credentials: Option<CredentialsProvider>,
    /// TLS settings; plain if `None`, as always without the feature `tls`. `rediss://` trusts what the URL or the
    /// system says, read at the first attempt to connect.
    pub tls: Option<TlsConfig>,
    /// Logical database; 0 if not set.
    pub database: u32,
    /// Name shown by `CLIENT LIST`. Printable ASCII without spaces (a rule of Redis).
    pub client_name: String,
    /// Bound on DNS, connect and handshake together. Default 3 s.
    pub connect_timeout: Duration,
    /// Default deadline of a call, and the age at which an unanswered call condemns the connection. Default 3 s
    /// (Redisson's `timeout`). A Sentinel may take a sixth of it, and not less than 500 ms: raise it where round trips are long.
    pub response_timeout: Duration,
    /// Time between two PINGs, on a silent connection and on a busy one. Each asks for a number of its own back, so it
    /// finds a dead peer as well as shifted replies. Default 1.5 s: together with `response_timeout` a half-open socket
    /// is replaced within 5 s.
    pub heartbeat: Duration,
    /// Shortest and longest pause between attempts to connect, and between two looks at one of several addresses, before jitter. Default
    /// 5 ms and 200 ms.
    pub reconnect: (Duration, Duration),
    /// Bound on calls that wait for a reply. Default 65 536. One eighth more is open to reserved calls.
    pub max_in_flight: usize,
    /// Bound on encoded bytes that no socket has taken yet; the last call that finds room may go beyond it, and none may be larger. Default
    /// 16 MiB. One eighth more is open to reserved calls.
    pub max_queued_bytes: usize,
    /// Limits on what the server may send. A reply beyond them ends the connection with [`ErrorKind::Protocol`](crate::ErrorKind::Protocol). Default:
    /// [`Limits::default`], of which one reply takes 64 MiB of payloads at most ([`Limits::frame`]).
    pub limits: Limits,
    /// Scripts loaded while connecting, so that the first call finds them.
    pub scripts: Vec<Arc<Script>>,
    /// Maps every address that a Sentinel or a cluster names, for clients behind an address translation. Returns `None` for
    /// an address that must not be used. A cluster's node with a host name and an IP address is asked for twice: the client
    /// uses an address that was changed, and otherwise the one that the cluster prefers. A panic forbids the address until it
    /// is named again: a foreign server may be there, which must not see credentials. Default: addresses are used as they are.
    pub translate: Option<Translate>,
    /// Whether calls whose results nobody waits for are written by who makes them even where the connection's task would soon
    /// write them together. For runtimes that nobody drops: their tasks end with the process, without a word.
    pub write_at_once: bool,
    /// Whether messages go by sharded pub/sub. Must be what all users of the same channels do.
    pub sharded_pubsub: ShardedPubSub,
    /// Told whenever a server answers for keys for which another one did before: after a failover, a restart (told by the
    /// server's `run_id`, if the user may run `INFO`), a slot's move. Must be quick and must not block. If it panics, the client goes on.
    pub on_change: Option<ChangeSink>,
    /// What the layer above is told.
    #[doc(hidden)]
    pub hooks: Hooks,
    /// Where the randomness of pauses comes from, between attempts to connect and between questions. Default: the operating system.
    pub random: fn() -> u64,
    /// Opens in-memory connections instead of sockets. There is none without the feature `testing`.
    #[doc(hidden)]
    pub connector: Option<Connector>,
    /// Looks host names up.
    pub(crate) resolver: Resolver,
    /// Clock and timer. Default: the process-wide timer thread.
    pub timer: Timer,
}

impl Config {
    /// Default settings for the server at `address`.
    pub fn new(address: Address) -> Self {
        Self::with(Servers::One(address))
    }

    /// Default settings for `servers`.
    pub fn with(servers: Servers) -> Self {
        Self {
            servers,
            username: None,
            password: None,
            credentials: None,
            tls: None,
            database: 0,
            client_name: "wheellock".to_owned(),
            connect_timeout: Duration::from_secs(3),
            response_timeout: Duration::from_secs(3),
            heartbeat: Duration::from_millis(1500),
            reconnect: (Duration::from_millis(5), Duration::from_millis(200)),
            max_in_flight: 65_536,
            max_queued_bytes: 16 << 20,
            limits: Limits::default(),
            scripts: Vec::new(),
            translate: None,
            write_at_once: false,
            sharded_pubsub: ShardedPubSub::default(),
            on_change: None,
            hooks: Hooks::default(),
            random: system_random,
            connector: None,
            resolver: Resolver::of_the_system(),
            timer: Timer::global().clone(),
        }
    }
}

impl Config {
    /// With no time that is too long to be added to a moment, and to another such time; and with a timer that this process drives, for a
    /// configuration may have come through `fork()`.
    pub(crate) fn within_reach(mut self) -> Self {
        self.timer = self.timer.in_this_process();
        for time in [&mut self.connect_timeout, &mut self.response_timeout, &mut self.heartbeat] {
            *time = NEVER.min(*time);
        }
        self
    }

    /// An address that another server named, as it is to be reached; if it is not to be used, its name and why.
    pub(crate) fn translated(&self, address: Address) -> Result<Address, String> {
        let Some(translate) = &self.translate else { return Ok(address) };
        match contained(|| translate(&address)) {
            Some(Some(translated)) => Ok(translated),
            Some(None) => Err(format!("{address}, which `Config::translate` forbids")),
            None => Err(format!("{address}, for which `Config::translate` panicked")),
        }
    }

    pub(crate) fn is_encrypted(&self) -> bool {
        self.tls.is_some()
    }

    /// Encrypts all connections, and trusts the authorities in `ca_file`, or those of the system.
    pub(crate) fn encrypt(&mut self, ca_file: Option<PathBuf>) -> Result<(), String> {
        self.tls = Some(TlsConfig::read_later(ca_file)?);
        if let Servers::Sentinel(sentinels) = &mut self.servers {
            sentinels.tls.clone_from(&self.tls);
        }
        Ok(())
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("url", &self.to_string())
            .field("password", &self.password)
            .field("connect_timeout", &self.connect_timeout)
            .field("response_timeout", &self.response_timeout)
            .field("heartbeat", &self.heartbeat)
            .field("reconnect", &self.reconnect)
            .field("max_in_flight", &self.max_in_flight)
            .field("max_queued_bytes", &self.max_queued_bytes)
            .finish_non_exhaustive()
    }
}

/// Longer than any program runs, and short enough for the clock of every platform.
const NEVER: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Uniform over `u64`. Without randomness from the system, which is not a reason to stay disconnected, the clock's low
/// bits still spread clients apart.
fn system_random() -> u64 {
    getrandom::u64().unwrap_or_else(|_| {
        let since = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        u64::from(since.subsec_nanos()).wrapping_mul(0x9E37_79B9_7F4A_7C15)
    })
}

#[cfg(test)]
mod tests;
