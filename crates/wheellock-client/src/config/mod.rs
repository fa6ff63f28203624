//! Settings of a client.
//!
//! `url` owns their spelling in a URL. This module opens no connection.

pub(crate) mod credentials;
pub(crate) mod resolve;
#[cfg(feature = "tls")]
pub(crate) mod tls;
pub(crate) mod url;

#[cfg(not(feature = "tls"))]
pub(crate) use crate::base::disabled as tls;

use std::fmt;
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use wheellock_resp::{Limits, Value};
use wheellock_wheel::Timer;

use crate::base::address::Address;
use crate::base::detached::Detached;
use crate::base::memory::Connector;
use crate::base::panics::catch_panic;
use crate::base::script::Script;
use crate::base::slots::{SlotSet, slot_of};
use crate::config::resolve::Resolver;
use crate::config::tls::TlsConfig;

/// A user and a password for the server.
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
    /// The ACL user. If it is `None`, the user of the [`Config`] applies, and otherwise the server's `default` user.
    pub username: Option<String>,
    /// The password. For a user without a password the client sends an empty one: see [`Config::username`].
    pub password: Option<Secret>,
}

impl Credentials {
    /// Returns the user and the password to send, if either is given. Without credentials the server assigns its
    /// `default` user. A named user must therefore always be sent, even without a password: only the server knows
    /// whether that user needs one.
    pub(crate) fn to_send(&self) -> Option<(&str, &str)> {
        let password = self.password.as_ref().map(Secret::expose);
        match &self.username {
            Some(user) => Some((user, password.unwrap_or_default())),
            None => Some((DEFAULT_USER, password?)),
        }
    }

    /// Returns the name of the user.
    pub(crate) fn user(&self) -> &str {
        self.username.as_deref().unwrap_or(DEFAULT_USER)
    }
}

/// The user of a connection that sends no credentials (source: the Redis documentation, "ACL").
const DEFAULT_USER: &str = "default";

/// A source of credentials: see [`Config::credentials`].
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

/// The future that a [`CredentialsProvider`] returns.
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

/// A translation of addresses: see [`Config::translate`].
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

/// A callback for changes of servers: see [`Config::on_change`].
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

/// A callback for results of detached calls: see [`Hooks::on_detached`].
pub type DetachedSink = Arc<dyn Fn(&mut Vec<Detached>) + Send + Sync>;

/// A callback for keys that other clients changed: see [`Hooks::on_changed_keys`].
pub type ChangedKeysSink = Arc<dyn Fn(&ChangedKeys) + Send + Sync>;

/// Keys that other clients changed after the server remembered them.
#[derive(Clone, Debug)]
pub enum ChangedKeys {
    /// Any of these keys: after `FLUSHALL`, and after each connect, because the server has remembered none yet.
    Any(Change),
    /// These keys, in the server's order.
    These(Vec<Value>),
}

/// Callbacks for the layer above this client.
#[derive(Clone, Default)]
pub struct Hooks {
    /// Receives the results of [detached](crate::Client::queue_eval) calls, in batches and in order. The callback
    /// runs on the connection's task. It must be quick and must not block. Results that it leaves in the vector are
    /// dropped.
    pub on_detached: Option<DetachedSink>,
    /// Does the same as [`Config::on_change`], and is called after it.
    pub on_change: Option<ChangeSink>,
    /// Receives the keys that other clients have changed since the server
    /// [remembered](crate::Client::queue_eval) them for this connection (`CLIENT TRACKING`). The callback runs on the
    /// connection's task. It must be quick and must not block.
    pub on_changed_keys: Option<ChangedKeysSink>,
}

impl fmt::Debug for Hooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hooks").finish_non_exhaustive()
    }
}

/// The servers of a client, or the way to find them.
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
    /// A primary and its replicas, in any order. The client queries all of them in parallel at every connect, and
    /// uses the server that reports to be the primary. If two servers report this, the first reply counts. Only
    /// Sentinel could resolve that conflict.
    Replicated(Vec<Address>),
    /// The primary that the Sentinels name.
    Sentinel(Sentinels),
    /// Some nodes of a Redis Cluster, in any order. The client discovers the other nodes.
    Cluster(Vec<Address>),
}

/// Sentinels, and the service whose primary they name.
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
    /// The Sentinels, in any order. Some of them are enough.
    pub addresses: Vec<Address>,
    /// The name under which the Sentinels watch the primary.
    pub service: String,
    /// The ACL user for the Sentinels, as [`Config::username`] is for the servers. The credentials of the [`Config`]
    /// are those for the servers.
    pub username: Option<String>,
    /// The password for the Sentinels.
    pub password: Option<Secret>,
    /// The TLS settings for the Sentinels. Connections are unencrypted if it is `None`, as always without the feature
    /// `tls`. `rediss+sentinel://` sets it for the Sentinels and the servers.
    pub tls: Option<TlsConfig>,
}

/// Prints the addresses, for messages.
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

/// The use of sharded pub/sub (`SPUBLISH`), which only clusters of Redis 7 and later have.
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
    /// Sharded in a cluster whose nodes know it. This is Redisson's rule and default (`shardedSubscriptionMode`).
    #[default]
    Auto,
    /// Sharded in every cluster.
    On,
    /// Never sharded.
    Off,
}

/// The keys that another server may now serve: see [`Config::on_change`].
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
    /// Returns a change of all keys.
    #[doc(hidden)]
    pub fn everywhere() -> Self {
        Self { slots: None }
    }

    /// Returns a change of the keys in some slots.
    pub(crate) fn of(slots: SlotSet) -> Self {
        Self { slots: Some(slots) }
    }

    /// Returns a change of the keys of both changes.
    #[doc(hidden)]
    #[must_use]
    pub fn joined(self, other: Option<Self>) -> Self {
        match (self.slots, other) {
            (slots, None) => Self { slots },
            (Some(mut slots), Some(Self { slots: Some(others) })) => {
                slots.join(&others);
                Self::of(slots)
            }
            _ => Self::everywhere(),
        }
    }

    /// Returns true if another server may now serve `key`.
    pub fn concerns(&self, key: &[u8]) -> bool {
        self.slots.as_ref().is_none_or(|slots| slots.contains(slot_of(key)))
    }
}

/// A secret that `Debug` and `Display` never show.
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

/// The settings of a [`Client`](crate::Client). Start from a URL and adjust the fields:
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
/// A URL begins with `redis://` or `valkey://`, or with `rediss://` or `valkeys://` for TLS. Then follows
/// `[userinfo@]host[:port][/db]`. The default port is 6379. A URL with `unix://`, `redis+unix://` or `valkey+unix://`
/// continues with `[userinfo@]/path/to/socket[?db=n]`.
///
/// | userinfo | the connection is |
/// |---|---|
/// | `user:password@` | that user, or it fails |
/// | `user:@` | that user, if it needs no password (`nopass`), or it fails. An unset variable in `app:$PW@` is thus noticed |
/// | `:password@`, `password@` | the server's `default` user. A lone part is a password, as in redis-cli; a lone user needs a colon |
/// | `:@`, `@`, none | the server's `default` user, if it needs no password |
///
/// User and password are percent-decoded. The same rules apply to the Sentinels' credentials and to servers that the
/// client discovers later. `Display` shows the URL with the user and without the password.
///
/// Several servers are separated by commas:
///
/// - `redis://a:6379,b:6379,c:6379/db`: a primary and its replicas, in any order.
/// - `redis+sentinel://a:26379,b:26379/service[/db]`: the primary that these Sentinels name. The credentials are those of the
///   servers. `?sentinel_user=..&sentinel_password=..` sets those of the Sentinels. A single number in place of the service is
///   a database, and then `?service=` must name the service.
/// - `redis+cluster://a:6379,b:6379`: a cluster with these nodes.
///
/// With `rediss` in place of `redis` all connections are encrypted, including those to Sentinels. `valkey` is
/// equivalent to `redis`, and `-` to `+`. `?node=host:port` adds an address. `?service=` names the service, and so
/// does `/db#service`, which is Lettuce's spelling. The zone of an IPv6 address follows `%25`:
/// `redis://[fe80::1%25eth0]:6379`.
///
/// TLS trusts the authorities in the PEM file of `?ca_file=/path`. Without that parameter TLS trusts the system's
/// authorities, for which the environment variable `SSL_CERT_FILE` may name a file. The client reads the authorities
/// at the first attempt to connect. A failure is [`ErrorKind::Config`](crate::ErrorKind::Config), and the next
/// attempt reads again.
///
/// # Times
///
/// The client shortens times of more than ten years, such as [`Duration::MAX`], to ten years.
#[derive(Clone)]
#[non_exhaustive]
pub struct Config {
    /// The address of the server, or the way to find it.
    pub servers: Servers,
    /// The ACL user, or the server's `default` user if it is `None`. The connection has exactly this user, or it
    /// fails. Without a password the client sends this user with an empty one. The server accepts that for a user
    /// with `nopass` and refuses it for any other user.
    pub username: Option<String>,
    /// The password, if the server requires one.
    pub password: Option<Secret>,
    /// A source of credentials that change. The client calls it at every handshake instead of using `username` and
    /// `password`. [`Client::reauthenticate`](crate::Client::reauthenticate) calls it, too, for credentials that
    /// expire during a connection. If the provider names no user, `username` applies. The provider's time counts
    /// towards `connect_timeout`. If the provider panics, the attempt fails.
    pub credentials: Option<CredentialsProvider>,
    /// The TLS settings. Connections are unencrypted if it is `None`, as always without the feature `tls`.
    /// `rediss://` trusts the authorities of the URL or of the system, and reads them at the first attempt to
    /// connect.
    pub tls: Option<TlsConfig>,
    /// The logical database. Default 0.
    pub database: u32,
    /// The name that `CLIENT LIST` shows. It consists of printable ASCII without spaces (a rule of Redis).
    pub client_name: String,
    /// The limit for DNS, connect and handshake together. Default 3 s.
    pub connect_timeout: Duration,
    /// The default deadline of a call. A call without a reply for this time also ends the connection. Default 3 s
    /// (Redisson's `timeout`). A Sentinel may take a sixth of this time, but at least 500 ms. Raise the value if
    /// round trips are long.
    pub response_timeout: Duration,
    /// The time between two PINGs, whether the connection is idle or busy. Each PING carries a number that the server
    /// must return. A PING therefore detects a dead peer and shifted replies. Default 1.5 s: together with
    /// `response_timeout`, the client replaces a half-open socket within 5 s.
    pub heartbeat: Duration,
    /// The shortest and the longest pause between attempts to connect, before jitter. The same pauses apply between
    /// two checks of one of several addresses. Default 5 ms and 200 ms.
    pub reconnect: (Duration, Duration),
    /// The limit for calls that wait for a reply. Default 65 536. Reserved calls may use one eighth more.
    pub max_in_flight: usize,
    /// The limit for encoded bytes that no socket has taken yet. The last call that finds room may exceed the limit,
    /// but no single call may be larger than the limit. Default 16 MiB. Reserved calls may use one eighth more.
    pub max_queued_bytes: usize,
    /// The limits for the server's replies. A reply beyond them ends the connection with
    /// [`ErrorKind::Protocol`](crate::ErrorKind::Protocol). Default: [`Limits::default`], which allows 64 MiB of
    /// payload in one reply ([`Limits::frame`]).
    pub limits: Limits,
    /// Scripts that the client loads while connecting, so that the first call finds them.
    pub scripts: Vec<Arc<Script>>,
    /// A translation of each address that a Sentinel or a cluster names, for clients behind an address translation.
    /// The function returns `None` for an address that must not be used.
    ///
    /// For a cluster's node with a host name and an IP address, the client translates both. It uses an address that
    /// the function changed, or else the address that the cluster prefers. After a panic the client does not use the
    /// address until a server names the address again. A foreign server may be there, and it must not see
    /// credentials. Default: the client uses addresses as they are.
    pub translate: Option<Translate>,
    /// True if the caller itself writes detached calls, even where the connection's task would soon write them
    /// together. Use it for runtimes that are never dropped. Their tasks end with the process, without notice.
    pub write_at_once: bool,
    /// The use of sharded pub/sub. All users of the same channels must use the same setting.
    pub sharded_pubsub: ShardedPubSub,
    /// A callback for changes of servers. The client calls it whenever another server may serve some keys: after a
    /// failover, a restart or a slot's migration. The client recognizes a restart by the server's `run_id`, if the
    /// user may run `INFO`. The callback must be quick and must not block. If it panics, the client continues.
    pub on_change: Option<ChangeSink>,
    /// Callbacks for the layer above this client.
    #[doc(hidden)]
    pub hooks: Hooks,
    /// The source of randomness for pauses between attempts to connect and between queries. Default: the operating
    /// system.
    pub random: fn() -> u64,
    /// A connector for in-memory connections instead of sockets. It cannot exist without the feature `testing`.
    #[doc(hidden)]
    pub connector: Option<Connector>,
    /// The resolver for host names.
    pub(crate) resolver: Resolver,
    /// The clock and timer. Default: the process-wide timer thread.
    pub timer: Timer,
}

impl Config {
    /// Returns default settings for the server at `address`.
    pub fn new(address: Address) -> Self {
        Self::with(Servers::One(address))
    }

    /// Returns default settings for `servers`.
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
    /// Shortens times that are too long, so that sums of an instant and such times cannot overflow. Also replaces the
    /// timer by one that this process drives, because the configuration may have come through `fork()`.
    pub(crate) fn within_reach(mut self) -> Self {
        self.timer = self.timer.in_this_process();
        for time in [&mut self.connect_timeout, &mut self.response_timeout, &mut self.heartbeat] {
            *time = NEVER.min(*time);
        }
        self
    }

    /// Returns the address to use in place of an address that another server named. For an unusable address, returns
    /// its name and the reason.
    pub(crate) fn translated(&self, address: Address) -> Result<Address, String> {
        let Some(translate) = &self.translate else { return Ok(address) };
        match catch_panic(|| translate(&address)) {
            Some(Some(translated)) => Ok(translated),
            Some(None) => Err(format!("{address}, which `Config::translate` forbids")),
            None => Err(format!("{address}, for which `Config::translate` panicked")),
        }
    }

    /// Notifies the callbacks that a different server replies: the user's, then that of the layer above.
    pub(crate) fn notify(&self, change: &Change) {
        for callback in [&self.on_change, &self.hooks.on_change].into_iter().flatten() {
            catch_panic(|| callback(change));
        }
    }

    pub(crate) fn report_changed_keys(&self, keys: &ChangedKeys) {
        if let Some(callback) = &self.hooks.on_changed_keys {
            catch_panic(|| callback(keys));
        }
    }

    pub(crate) fn is_encrypted(&self) -> bool {
        self.tls.is_some()
    }

    /// Encrypts all connections. Trusts the authorities in `ca_file`, or those of the system.
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

/// Ten years: longer than any program runs, and short enough for the clock of every platform.
const NEVER: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Returns a number that is uniform over `u64`. Without randomness from the system, the clock's low bits still spread
/// clients apart. Missing randomness must not keep the client disconnected.
fn system_random() -> u64 {
    getrandom::u64().unwrap_or_else(|_| {
        let since = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        u64::from(since.subsec_nanos()).wrapping_mul(0x9E37_79B9_7F4A_7C15)
    })
}

#[cfg(test)]
mod tests;
