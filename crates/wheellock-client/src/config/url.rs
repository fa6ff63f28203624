//! The URL grammar, for parsing and printing a [`Config`].
//!
//! This module knows the spelling of settings, not their meaning. It never prints a password.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::base::address::Address;
use crate::base::error::{Error, ErrorKind, printable};
use crate::config::tls::TlsConfig;
use crate::config::{Config, Secret, Sentinels, Servers};

/// Prints the URL without the passwords.
impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the colon, the user would be parsed as a password.
        let user = self.username.as_deref().map(|user| format!("{}:@", percent_encode(user)));
        let user = user.as_deref().unwrap_or_default();
        let tls = if self.is_encrypted() { "rediss" } else { "redis" };
        match &self.servers {
            Servers::One(Address::Unix(path)) => {
                write!(f, "unix://{user}{}", percent_encode_path(&path.to_string_lossy()))?;
                if self.database != 0 {
                    write!(f, "?db={}", self.database)?;
                }
                return Ok(());
            }
            Servers::One(address) => write!(f, "{tls}://{user}{}", host_port(address))?,
            Servers::Replicated(addresses) => write!(f, "{tls}://{user}{}", list(addresses))?,
            Servers::Sentinel(sentinels) => {
                let (addresses, service) = (list(&sentinels.addresses), percent_encode(&sentinels.service));
                write!(f, "{tls}+sentinel://{user}{addresses}/{service}")?;
            }
            Servers::Cluster(addresses) => write!(f, "{tls}+cluster://{user}{}", list(addresses))?,
        }
        let reads_as_database =
            matches!(&self.servers, Servers::Sentinel(sentinels) if is_number(&sentinels.service));
        if self.database != 0 || reads_as_database {
            write!(f, "/{}", self.database)?;
        }
        let mut parameters = Vec::new();
        if let Servers::Sentinel(Sentinels { username: Some(user), .. }) = &self.servers {
            parameters.push(format!("sentinel_user={}", percent_encode(user)));
        }
        if let Some(path) = self.tls.as_ref().and_then(TlsConfig::ca_file) {
            parameters.push(format!("ca_file={}", percent_encode_path(&path.to_string_lossy())));
        }
        if !parameters.is_empty() {
            write!(f, "?{}", parameters.join("&"))?;
        }
        Ok(())
    }
}

fn list(addresses: &[Address]) -> String {
    let addresses: Vec<_> = addresses.iter().map(host_port).collect();
    addresses.join(",")
}

/// Returns the address in the spelling of a URL. A zone follows `%25` (RFC 6874).
fn host_port(address: &Address) -> String {
    match address {
        Address::Tcp { host, port } if host.contains(':') => match host.split_once('%') {
            Some((ip, zone)) => format!("[{ip}%25{}]:{port}", percent_encode(zone)),
            None => address.to_string(),
        },
        address => address.to_string(),
    }
}

impl FromStr for Config {
    type Err = Error;

    fn from_str(url: &str) -> Result<Self, Error> {
        parse(url).map_err(|mut why| {
            // A raw question mark in a password ends the part in which the parser looks for the @.
            if url.split_once('?').is_some_and(|(_, query)| query.contains('@')) {
                why.push_str(
                    "; a ? in a user or password is written %3F, and a raw one begins the parameters",
                );
            }
            Error::step(ErrorKind::Config, "parse the URL", &shown(url), why)
        })
    }
}

/// Returns the safe part of a malformed URL: a known scheme, and the text behind the last `@`.
///
/// The fault may lie in the signs that separate a password from the rest. Without an `@` the text may be a password
/// (`redis://app:secret`). The text behind a `?` may be part of a password, too, and is never shown. If an `@`
/// follows the `?`, nothing but the scheme is shown.
fn shown(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://").filter(|(scheme, _)| parse_scheme(scheme).is_some())
    else {
        return "...".to_owned();
    };
    let (before_query, query) = rest.split_once('?').map_or((rest, ""), |(rest, _)| (rest, "?..."));
    match before_query.rsplit_once('@') {
        Some((_, place)) if !rest[before_query.len()..].contains('@') => {
            format!("{scheme}://***@{}{query}", printable(place.as_bytes()))
        }
        _ => format!("{scheme}://..."),
    }
}

const DEFAULT_PORT: u16 = 6379;
const DEFAULT_SENTINEL_PORT: u16 = 26379;

/// The server topology that a scheme selects.
enum Topology {
    Unix,
    /// One or several addresses.
    Servers,
    Sentinel,
    Cluster,
}

/// Parses a scheme. Returns its topology, and true for TLS.
fn parse_scheme(text: &str) -> Option<(Topology, bool)> {
    let text = text.to_ascii_lowercase();
    let (name, topology) = text.split_once(['+', '-']).unwrap_or((&text, ""));
    let tls = matches!(name, "rediss" | "valkeys");
    let is_server = tls || matches!(name, "redis" | "valkey");
    Some(match topology {
        "" if is_server => (Topology::Servers, tls),
        "sentinel" if is_server => (Topology::Sentinel, tls),
        "cluster" if is_server => (Topology::Cluster, tls),
        "unix" if is_server && !tls => (Topology::Unix, false),
        "" if name == "unix" => (Topology::Unix, false),
        _ => return None,
    })
}

const KNOWN_SCHEMES: &str =
    "redis, rediss, valkey, valkeys, any of these with +sentinel or +cluster, and unix";

/// Returns the text before `://` if it looks like a scheme and is short enough. Text with other characters may be a
/// password, or a user with a password.
fn scheme_to_show(text: &str) -> Option<&str> {
    let fits = text.len() <= MAX_SHOWN
        && text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c));
    fits.then_some(text)
}

/// The length of the longest scheme or parameter name that is shown. No known name is longer.
const MAX_SHOWN: usize = 32;

fn parse(url: &str) -> Result<Config, String> {
    if url.is_empty() {
        return Err("it is empty".to_owned());
    }
    let (scheme, rest) = url.split_once("://").ok_or("it has no scheme such as redis://")?;
    let (authority, query) = rest.split_once('?').map_or((rest, None), |(rest, query)| (rest, Some(query)));
    // The last @ ends the userinfo. A password with an unescaped @ is thus still parsed as intended.
    let (userinfo, place) = authority.rsplit_once('@').map_or((None, authority), |(u, p)| (Some(u), p));
    let (topology, tls) = parse_scheme(scheme).ok_or_else(|| match scheme_to_show(scheme) {
        Some(scheme) => format!("its scheme \"{scheme}\" is none of {KNOWN_SCHEMES}"),
        None => format!("its scheme is none of {KNOWN_SCHEMES}"),
    })?;
    let (servers, database) = parse_place(&topology, place)?;
    let mut config = Config::with(servers);
    if !database.is_empty() {
        config.database = parse_database(database)?;
    }
    if let Some(userinfo) = userinfo {
        let (user, password) = match userinfo.split_once(':') {
            Some((user, password)) => (user, password),
            None => ("", userinfo),
        };
        config.username = (!user.is_empty()).then(|| percent_decode(user)).transpose()?;
        config.password =
            (!password.is_empty()).then(|| percent_decode(password).map(Secret::new)).transpose()?;
    }
    let query = query.unwrap_or_default();
    if query.ends_with("#insecure") {
        return Err(INSECURE.to_owned());
    }
    let mut ca_file = None;
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        if name == "ca_file" && tls {
            ca_file = Some(PathBuf::from(percent_decode(value)?)).filter(|path| !path.as_os_str().is_empty());
        } else if name == "ca_file" {
            return Err("ca_file needs TLS: rediss:// in place of redis://".to_owned());
        } else if !parse_parameter(&mut config, name, value)? {
            let known = known_parameters(&config.servers, tls);
            let name = name_to_show(query, pair).map(|name| format!(": \"{name}\"")).unwrap_or_default();
            return Err(format!("it has a query parameter other than {known}{name}"));
        }
    }
    if tls {
        config.encrypt(ca_file)?;
    }
    match &config.servers {
        Servers::Sentinel(sentinels) if sentinels.service.is_empty() => {
            Err("it names no service: redis+sentinel://host:port/service[/db]".to_owned())
        }
        Servers::Cluster(_) if config.database != 0 => Err("a cluster has no database but 0".to_owned()),
        _ => Ok(config),
    }
}

/// Returns the servers and the text of the database.
fn parse_place<'a>(topology: &Topology, place: &'a str) -> Result<(Servers, &'a str), String> {
    let (before, fragment) = place.split_once('#').map_or((place, None), |(place, rest)| (place, Some(rest)));
    let (hosts, path) = before.split_once('/').map_or((before, ""), |(hosts, path)| (hosts, path));
    match (topology, fragment) {
        (Topology::Unix | Topology::Sentinel, _) | (_, None) => {}
        (_, Some("insecure")) => return Err(INSECURE.to_owned()),
        (_, Some(_)) => return Err(FRAGMENT.to_owned()),
    }
    Ok(match topology {
        Topology::Unix => {
            let path = percent_decode(place)?;
            if !path.starts_with('/') {
                return Err("a unix socket needs an absolute path: unix:///path/to/socket".to_owned());
            }
            (Servers::One(Address::Unix(path.into())), "")
        }
        Topology::Sentinel => {
            let addresses = parse_hosts(hosts, DEFAULT_SENTINEL_PORT)?;
            let (service, database) = parse_service(path, fragment)?;
            let service = percent_decode(service)?;
            (Servers::Sentinel(Sentinels { addresses, service, ..Sentinels::default() }), database)
        }
        Topology::Cluster => (Servers::Cluster(parse_hosts(hosts, DEFAULT_PORT)?), path),
        Topology::Servers => {
            let mut addresses = parse_hosts(hosts, DEFAULT_PORT)?;
            let servers = match (addresses.pop(), addresses.is_empty()) {
                (Some(only), true) => Servers::One(only),
                (last, _) => Servers::Replicated(addresses.into_iter().chain(last).collect()),
            };
            (servers, path)
        }
    })
}

/// Returns the service and the database, from `service/db` or from Lettuce's spelling `db#service`.
fn parse_service<'a>(path: &'a str, fragment: Option<&'a str>) -> Result<(&'a str, &'a str), String> {
    match (path.split_once('/'), fragment) {
        (None, Some("insecure")) => Err(INSECURE.to_owned()),
        (None, Some(service)) if is_number(path) || path.is_empty() => Ok((service, path)),
        (_, Some(_)) => Err(FRAGMENT.to_owned()),
        (Some(both), None) => Ok(both),
        // A parameter names the service, or the service is missing.
        (None, None) if is_number(path) => Ok(("", path)),
        (None, None) => Ok((path, "")),
    }
}

/// The error text for `#insecure`, with which redis-rs verifies no certificate.
const INSECURE: &str = "it ends with #insecure, and certificates are always verified: name the server's authority by ?ca_file=/path";
const FRAGMENT: &str =
    "it has a fragment, which begins with #: in a user, password or service a # is written %23";

/// Returns the name of the first unknown parameter, unless the name may be part of a password. A password with a `?`
/// is followed by an `@`. A password with a `&` stands behind the known name `sentinel_password`.
fn name_to_show<'a>(query: &str, pair: &'a str) -> Option<&'a str> {
    let (name, _) = pair.split_once('=')?;
    let is_name = (1..=MAX_SHOWN).contains(&name.len())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c));
    (is_name && !query.contains('@') && !query.contains("sentinel_password=")).then_some(name)
}

/// Sets a parameter. Returns false if the parameter is unknown. Other clients use the alternative names of the
/// Sentinel's service.
fn parse_parameter(config: &mut Config, name: &str, value: &str) -> Result<bool, String> {
    match (name, &mut config.servers) {
        ("db", _) => config.database = parse_database(value)?,
        ("service" | "master_set" | "sentinelServiceName", Servers::Sentinel(sentinels)) => {
            sentinels.service = percent_decode(value)?;
        }
        ("sentinel_user", Servers::Sentinel(sentinels)) => {
            sentinels.username = Some(percent_decode(value)?).filter(|user| !user.is_empty());
        }
        ("sentinel_password", Servers::Sentinel(sentinels)) => {
            let password = percent_decode(value)?;
            sentinels.password = (!password.is_empty()).then(|| Secret::new(password));
        }
        ("node" | "addr", servers @ Servers::One(Address::Tcp { .. })) => {
            let another = parse_host_port(value, DEFAULT_PORT)?;
            if let Servers::One(first) = servers {
                *servers = Servers::Replicated(vec![first.clone(), another]);
            }
        }
        ("node" | "addr", Servers::Replicated(addresses) | Servers::Cluster(addresses)) => {
            addresses.push(parse_host_port(value, DEFAULT_PORT)?);
        }
        ("node" | "addr", Servers::Sentinel(sentinels)) => {
            sentinels.addresses.push(parse_host_port(value, DEFAULT_SENTINEL_PORT)?);
        }
        _ => return Ok(false),
    }
    Ok(true)
}

fn known_parameters(servers: &Servers, tls: bool) -> &'static str {
    match (servers, tls) {
        (Servers::One(Address::Unix(_)), _) => "db",
        (Servers::One(_) | Servers::Replicated(_), false) => "db and node",
        (Servers::One(_) | Servers::Replicated(_), true) => "ca_file, db and node",
        (Servers::Cluster(_), false) => "node",
        (Servers::Cluster(_), true) => "ca_file and node",
        (Servers::Sentinel(_), false) => "db, node, service, sentinel_user and sentinel_password",
        (Servers::Sentinel(_), true) => "ca_file, db, node, service, sentinel_user and sentinel_password",
    }
}

fn parse_hosts(text: &str, default_port: u16) -> Result<Vec<Address>, String> {
    text.split(',').map(|host| parse_host_port(host, default_port)).collect()
}

fn parse_host_port(text: &str, default_port: u16) -> Result<Address, String> {
    let (host, port) = if let Some(rest) = text.strip_prefix('[') {
        let (host, rest) = rest.split_once(']').ok_or("an IPv6 address lacks its closing bracket")?;
        let port = match rest.strip_prefix(':') {
            Some(port) => Some(port),
            None if rest.is_empty() => None,
            None => return Err("only a port may follow the bracketed IPv6 address".to_owned()),
        };
        (with_zone(host)?, port)
    } else {
        match text.split_once(':') {
            Some((_, rest)) if rest.contains(':') => {
                return Err("an IPv6 address needs brackets: redis://[::1]:6379".to_owned());
            }
            Some((host, port)) => (host.to_owned(), Some(port)),
            None => (text.to_owned(), None),
        }
    };
    if host.is_empty() {
        return Err("it names no host".to_owned());
    }
    if host.contains(['[', ']']) {
        return Err("its host has a bracket in the wrong place".to_owned());
    }
    // No earlier step has checked parameters for these characters. In a printed URL they would end the host.
    if host.contains(|c: char| ",/?#@&".contains(c) || c.is_whitespace() || c.is_control()) {
        return Err("its host has a character that no host has".to_owned());
    }
    let port = match port {
        Some(port) => {
            port.parse().ok().filter(|&port| port != 0).ok_or("its port is not within 1..=65535")?
        }
        None => default_port,
    };
    Ok(Address::Tcp { host, port })
}

/// Decodes the zone of a bracketed IPv6 address: `fe80::1%25eth0` (RFC 6874). A bare `%eth0` is kept unchanged.
fn with_zone(host: &str) -> Result<String, String> {
    match host.split_once("%25") {
        Some((ip, zone)) if !zone.is_empty() => Ok(format!("{ip}%{}", percent_decode(zone)?)),
        // A printed URL with an empty zone would name the zone 25.
        _ if host.ends_with('%') => Err("the zone of its IPv6 address is empty".to_owned()),
        _ => Ok(host.to_owned()),
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
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
mod tests;
