//! Where the server is, who we are to it, and the limits we keep. Owns the settings and the URL grammar; opens
//! nothing.

use std::fmt;
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use wheellock_resp::Limits;
use wheellock_wheel::Timer;

use crate::error::{Error, ErrorKind, Outcome};
use crate::pipeline::Detached;
use crate::script::Script;

/// Who we are to the server.
#[derive(Clone, Debug, Default)]
pub struct Credentials {
    /// ACL user; the server's `default` user if `None`.
    pub username: Option<String>,
    /// Password, if the server wants one.
    pub password: Option<Secret>,
}

/// See [`Config::credentials`].
pub type CredentialsProvider = Arc<dyn Fn() -> CredentialsFuture + Send + Sync>;

/// What a [`CredentialsProvider`] returns.
pub type CredentialsFuture =
    Pin<Box<dyn Future<Output = Result<Credentials, Box<dyn std::error::Error + Send + Sync>>> + Send>>;

/// See [`Config::on_detached`].
pub type DetachedSink = Arc<dyn Fn(&mut Vec<Detached>) + Send + Sync>;

/// One server's address.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Address {
    /// A host name or IP address, and a port. Names are resolved at every connect.
    Tcp {
        /// Host name, IPv4 or IPv6 address (without brackets).
        host: String,
        /// TCP port.
        port: u16,
    },
    /// A unix domain socket.
    Unix(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

/// A secret that no `Debug` or `Display` shows.
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
/// `redis://` or `valkey://`, or with TLS `rediss://` or `valkeys://`, then `[[user]:password@]host[:port][/db]`; the port defaults to 6379. A lone userinfo
/// part without a colon is a password, as in redis-cli. `unix://`, `redis+unix://` and `valkey+unix://` take
/// `[[user]:password@]/path/to/socket[?db=n]`. User and password are percent-decoded.
#[derive(Clone)]
#[non_exhaustive]
pub struct Config {
    /// The server.
    pub address: Address,
    /// ACL user; the server's `default` user if `None`.
    pub username: Option<String>,
    /// Password, if the server wants one.
    pub password: Option<Secret>,
    /// Asked at every handshake instead of `username` and `password`, for credentials that change. Its time counts
    /// towards `connect_timeout`.
    pub credentials: Option<CredentialsProvider>,
    /// TLS settings; plain if `None`. `rediss://` sets those of [`TlsConfig::new`](crate::TlsConfig::new).
    #[cfg(feature = "tls")]
    pub tls: Option<crate::TlsConfig>,
    /// Logical database; 0 if not set.
    pub database: u32,
    /// Name shown by `CLIENT LIST`. Printable ASCII without spaces (a rule of Redis).
    pub client_name: String,
    /// Bound on DNS, connect and handshake together. Default 3 s.
    pub connect_timeout: Duration,
    /// Default deadline of a call, and the age at which an unanswered call condemns the connection. Default 3 s
    /// (Redisson's `timeout`).
    pub response_timeout: Duration,
    /// Time between two PINGs, on a silent connection and on a busy one. Each asks for a number of its own back, so it
    /// finds a dead peer as well as shifted replies. Default 1.5 s: together with `response_timeout` a half-open socket
    /// is replaced within 5 s.
    pub heartbeat: Duration,
    /// Shortest and longest pause between attempts to connect, before jitter. Default 5 ms and 200 ms.
    pub reconnect: (Duration, Duration),
    /// Bound on calls that wait for a reply. Default 65 536. One eighth more is open to reserved calls.
    pub max_in_flight: usize,
    /// Bound on encoded bytes that wait to be written. Default 16 MiB. One eighth more is open to reserved calls.
    pub max_queued_bytes: usize,
    /// Limits on what the server may send.
    pub limits: Limits,
    /// Scripts loaded while connecting, so that the first call finds them.
    pub scripts: Vec<Arc<Script>>,
    /// Receives the results of [detached](crate::Client::queue_eval) calls, in batches and in order, on the task of the
    /// connection. Must be quick and must not block. What it leaves in the vector is dropped.
    pub on_detached: Option<DetachedSink>,
    /// Where randomness for the pauses between attempts to connect comes from. Default: the operating system.
    pub random: fn() -> u64,
    /// Opens in-memory connections instead of sockets.
    #[cfg(feature = "testing")]
    pub connector: Option<crate::memory::Connector>,
    /// Clock and timer. Default: the process-wide timer thread.
    pub timer: Timer,
}

impl Config {
    /// Default settings for the server at `address`.
    pub fn new(address: Address) -> Self {
        Self {
            address,
            username: None,
            password: None,
            credentials: None,
            #[cfg(feature = "tls")]
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
            on_detached: None,
            random: system_random,
            #[cfg(feature = "testing")]
            connector: None,
            timer: Timer::global().clone(),
        }
    }
}

impl Config {
    pub(crate) fn is_encrypted(&self) -> bool {
        #[cfg(feature = "tls")]
        return self.tls.is_some();
        #[cfg(not(feature = "tls"))]
        false
    }

    #[cfg(feature = "tls")]
    fn encrypt(&mut self) -> Result<(), String> {
        let tls = crate::TlsConfig::new().build().map_err(|error| error.detail().to_owned())?;
        self.tls = Some(tls);
        Ok(())
    }

    #[cfg(not(feature = "tls"))]
    #[expect(clippy::unused_self, reason = "the other feature's form sets a field")]
    fn encrypt(&mut self) -> Result<(), String> {
        Err("it asks for TLS, and wheellock-client was built without its feature `tls`".to_owned())
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

/// The URL without the password.
impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The colon keeps a lone user from reading back as a password.
        let user = self.username.as_deref().map(|user| format!("{}:@", percent_encode(user)));
        let user = user.as_deref().unwrap_or_default();
        match &self.address {
            address @ Address::Tcp { .. } => {
                let scheme = if self.is_encrypted() { "rediss" } else { "redis" };
                write!(f, "{scheme}://{user}{address}")?;
                if self.database != 0 {
                    write!(f, "/{}", self.database)?;
                }
            }
            Address::Unix(path) => {
                write!(f, "unix://{user}{}", percent_encode_path(&path.to_string_lossy()))?;
                if self.database != 0 {
                    write!(f, "?db={}", self.database)?;
                }
            }
        }
        Ok(())
    }
}

impl FromStr for Config {
    type Err = Error;

    fn from_str(url: &str) -> Result<Self, Error> {
        parse(url).map_err(|why| {
            // The URL itself may hold a password, so the error only names the part that is wrong.
            Error::new(ErrorKind::Config, Outcome::NotSent, "parsing the URL", "no server yet", why)
        })
    }
}

/// Uniform over `u64`. Without randomness from the system, which is not a reason to stay disconnected, the clock's low
/// bits still spread clients apart.
fn system_random() -> u64 {
    getrandom::u64().unwrap_or_else(|_| {
        let since = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        u64::from(since.subsec_nanos()).wrapping_mul(0x9E37_79B9_7F4A_7C15)
    })
}

const DEFAULT_PORT: u16 = 6379;

fn parse(url: &str) -> Result<Config, String> {
    let (scheme, rest) = url.split_once("://").ok_or("it has no scheme such as redis://")?;
    let (authority, query) = rest.split_once('?').map_or((rest, None), |(rest, query)| (rest, Some(query)));
    // The last @ ends the userinfo: an unescaped @ in a password then still parses as people mean it.
    let (userinfo, place) = authority.rsplit_once('@').map_or((None, authority), |(u, p)| (Some(u), p));

    let mut config = match scheme.to_ascii_lowercase().as_str() {
        plain_or_tls @ ("redis" | "valkey" | "rediss" | "valkeys") => {
            let (host_port, path) = place.split_once('/').map_or((place, ""), |(h, p)| (h, p));
            let mut config = Config::new(parse_host_port(host_port)?);
            if !path.is_empty() {
                config.database = parse_database(path)?;
            }
            if plain_or_tls.ends_with("ss") || plain_or_tls.ends_with("ys") {
                config.encrypt()?;
            }
            config
        }
        "unix" | "redis+unix" | "valkey+unix" => {
            let path = percent_decode(place)?;
            if !path.starts_with('/') {
                return Err("a unix socket needs an absolute path: unix:///path/to/socket".to_owned());
            }
            Config::new(Address::Unix(path.into()))
        }
        _ => {
            return Err(
                "its scheme is none of redis, rediss, valkey, valkeys, unix, redis+unix, valkey+unix"
                    .to_owned(),
            );
        }
    };

    if let Some(userinfo) = userinfo {
        let (user, password) = match userinfo.split_once(':') {
            Some((user, password)) => (user, password),
            None => ("", userinfo),
        };
        config.username = (!user.is_empty()).then(|| percent_decode(user)).transpose()?;
        config.password = (!password.is_empty()).then(|| percent_decode(password).map(Secret)).transpose()?;
    }
    for pair in query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
        match pair.split_once('=') {
            Some(("db", database)) => config.database = parse_database(database)?,
            _ => {
                return Err(format!(
                    "unknown query parameter {:?}",
                    pair.split('=').next().unwrap_or_default()
                ));
            }
        }
    }
    Ok(config)
}

fn parse_host_port(text: &str) -> Result<Address, String> {
    let (host, port) = if let Some(rest) = text.strip_prefix('[') {
        let (host, rest) = rest.split_once(']').ok_or("an IPv6 address lacks its closing bracket")?;
        let port = match rest.strip_prefix(':') {
            Some(port) => Some(port),
            None if rest.is_empty() => None,
            None => return Err("only a port may follow the bracketed IPv6 address".to_owned()),
        };
        (host, port)
    } else {
        match text.split_once(':') {
            Some((_, rest)) if rest.contains(':') => {
                return Err("an IPv6 address needs brackets: redis://[::1]:6379".to_owned());
            }
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        }
    };
    if host.is_empty() {
        return Err("it names no host".to_owned());
    }
    if host.contains(['[', ']']) {
        return Err("its host has a bracket in the wrong place".to_owned());
    }
    let port = match port {
        Some(port) => {
            port.parse().ok().filter(|&port| port != 0).ok_or("its port is not within 1..=65535")?
        }
        None => DEFAULT_PORT,
    };
    Ok(Address::Tcp { host: host.to_owned(), port })
}

fn parse_database(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| "its database is not a number".to_owned())
}

fn percent_decode(text: &str) -> Result<String, String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digit = |b: Option<u8>| b.and_then(|b| char::from(b).to_digit(16));
        match (digit(rest.next()), digit(rest.next())) {
            (Some(high), Some(low)) => bytes.push(u8::try_from(high * 16 + low).unwrap_or_default()),
            _ => return Err("a % is not followed by two hexadecimal digits".to_owned()),
        }
    }
    String::from_utf8(bytes).map_err(|_| "a percent-encoded part is not UTF-8".to_owned())
}

fn percent_encode(text: &str) -> String {
    encode_except(text, b"-._~")
}

fn percent_encode_path(text: &str) -> String {
    encode_except(text, b"-._~/")
}

fn encode_except(text: &str, plain: &[u8]) -> String {
    use fmt::Write;
    text.bytes().fold(String::new(), |mut out, byte| {
        if byte.is_ascii_alphanumeric() || plain.contains(&byte) {
            out.push(char::from(byte));
        } else {
            let _infallible = write!(out, "%{byte:02X}");
        }
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(host: &str, port: u16) -> Address {
        Address::Tcp { host: host.to_owned(), port }
    }

    #[test]
    fn urls_in_the_wild() {
        let ok = |url: &str| url.parse::<Config>().unwrap_or_else(|e| panic!("{url}: {e}"));
        let secret = |s: &str| Some(Secret::new(s));

        let c = ok("redis://localhost");
        assert_eq!((c.address, c.username, c.password, c.database), (tcp("localhost", 6379), None, None, 0));
        let c = ok("valkey://h:7000/3");
        assert_eq!((c.address, c.database), (tcp("h", 7000), 3));
        let c = ok("REDIS://[::1]:7000/");
        assert_eq!((c.address, c.database), (tcp("::1", 7000), 0));
        let c = ok("redis://:pa%3Ass@h");
        assert_eq!((c.username, c.password), (None, secret("pa:ss")));
        let c = ok("redis://lonely@h");
        assert_eq!((c.username, c.password), (None, secret("lonely")), "as in redis-cli and Redisson");
        let c = ok("redis://u:p@ss@h");
        assert_eq!((c.username.as_deref(), c.password), (Some("u"), secret("p@ss")));
        let c = ok("unix:///run/redis.sock?db=5");
        assert_eq!((c.address, c.database), (Address::Unix("/run/redis.sock".into()), 5));
        let c = ok("redis+unix://u:p@/run/redis.sock");
        assert_eq!((c.username.as_deref(), c.password), (Some("u"), secret("p")));
    }

    #[test]
    fn bad_urls_name_their_fault_and_never_the_password() {
        let bad = [
            ("", "scheme"),
            ("localhost:6379", "scheme"),
            ("http://h", "scheme is none of"),
            ("redis://", "host"),
            ("redis://:sesame@", "host"),
            ("redis://u:sesame@h:0", "port"),
            ("redis://u:sesame@h:70000", "port"),
            ("redis://u:sesame@h/x", "database"),
            ("redis://u:sesame@::1", "brackets"),
            ("redis://u:sesame@[::1", "bracket"),
            ("redis://u:sesame@[::1]6379", "bracketed"),
            ("redis://u:sesame@[[::1]", "bracket"),
            ("redis://u:sesame@h]", "bracket"),
            ("redis://u:sesame%4@h", "%"),
            ("redis://u:sesame%ff@h", "UTF-8"),
            ("redis://u:sesame@h?password=sesame", "query"),
            ("unix://relative", "absolute"),
        ];
        for (url, fault) in bad {
            let error = url.parse::<Config>().expect_err(url);
            let shown = format!("{error} {error:?}");
            assert!(shown.contains(fault), "{url}: {shown}");
            assert!(!shown.contains("sesame"), "{url}: {shown}");
            assert_eq!(error.kind(), ErrorKind::Config);
        }
    }

    #[test]
    fn display_round_trips_without_the_secret() {
        for url in ["redis://h:6379", "redis://u%40x:@[::1]:7000/2", "unix://u:@/run/a%20b.sock?db=1"] {
            assert_eq!(url.parse::<Config>().unwrap().to_string(), url);
        }
        let config: Config = "redis://u:sesame@h/2".parse().unwrap();
        assert_eq!(config.to_string(), "redis://u:@h:6379/2");
        assert!(!format!("{config:?}").contains("sesame"));
    }
}
