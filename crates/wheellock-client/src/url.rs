//! The URL grammar: text to [`Config`] and back, less the password. Knows the spelling of settings, not their meaning.

use std::fmt;
use std::str::FromStr;

use crate::config::{Address, Config, Secret, Servers};
use crate::error::{Error, ErrorKind, Outcome};

/// The URL without the password.
impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The colon keeps a lone user from reading back as a password.
        let user = self.username.as_deref().map(|user| format!("{}:@", percent_encode(user)));
        let user = user.as_deref().unwrap_or_default();
        match &self.servers {
            Servers::One(Address::Unix(path)) => {
                write!(f, "unix://{user}{}", percent_encode_path(&path.to_string_lossy()))?;
                if self.database != 0 {
                    write!(f, "?db={}", self.database)?;
                }
            }
            Servers::One(address) => {
                let scheme = if self.is_encrypted() { "rediss" } else { "redis" };
                write!(f, "{scheme}://{user}{address}")?;
                if self.database != 0 {
                    write!(f, "/{}", self.database)?;
                }
            }
            servers => write!(f, "{servers}")?,
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
        config.password =
            (!password.is_empty()).then(|| percent_decode(password).map(Secret::new)).transpose()?;
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

        let one = |config: &Config| match &config.servers {
            Servers::One(address) => address.clone(),
            other => panic!("{other:?}"),
        };
        let c = ok("redis://localhost");
        assert_eq!((one(&c), c.username, c.password, c.database), (tcp("localhost", 6379), None, None, 0));
        let c = ok("valkey://h:7000/3");
        assert_eq!((one(&c), c.database), (tcp("h", 7000), 3));
        let c = ok("REDIS://[::1]:7000/");
        assert_eq!((one(&c), c.database), (tcp("::1", 7000), 0));
        let c = ok("redis://:pa%3Ass@h");
        assert_eq!((c.username, c.password), (None, secret("pa:ss")));
        let c = ok("redis://lonely@h");
        assert_eq!((c.username, c.password), (None, secret("lonely")), "as in redis-cli and Redisson");
        let c = ok("redis://u:p@ss@h");
        assert_eq!((c.username.as_deref(), c.password), (Some("u"), secret("p@ss")));
        let c = ok("unix:///run/redis.sock?db=5");
        assert_eq!((one(&c), c.database), (Address::Unix("/run/redis.sock".into()), 5));
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
