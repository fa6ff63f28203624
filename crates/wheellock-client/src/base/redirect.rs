//! Redirections of Redis Cluster: the errors MOVED and ASK.
//!
//! This module parses them and does not follow them. The text is `MOVED <slot> <host>:<port>`, and the same for ASK.
//! Source: the Redis Cluster specification, "MOVED Redirection".

use crate::base::address::Address;
use crate::base::endpoint::{Malformed, parse_host_port, parse_slot};

/// The target of a redirection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Redirection {
    pub(crate) slot: u16,
    /// The host, or an empty text if the node means its own host.
    pub(crate) host: String,
    pub(crate) port: u16,
}

/// Parses an error reply. Returns `None` if the reply is not a redirection.
pub(crate) fn parse(error_text: &[u8]) -> Option<Result<Redirection, Malformed>> {
    let end = error_text.iter().position(|&byte| byte == b' ').unwrap_or(error_text.len());
    let (code, rest) = error_text.split_at_checked(end)?;
    matches!(code, b"MOVED" | b"ASK").then(|| parse_target(rest))
}

/// Returns the target of a redirection that can be followed. `asked` returns the host that sent it, for a redirection
/// without a host.
pub(crate) fn target(error_text: &[u8], asked: impl FnOnce() -> Option<String>) -> Option<Address> {
    let to = parse(error_text)?.ok()?;
    let host = if to.host.is_empty() { asked()? } else { to.host };
    Some(Address::Tcp { host, port: to.port })
}

fn parse_target(text: &[u8]) -> Result<Redirection, Malformed> {
    let text = std::str::from_utf8(text).map_err(|_| Malformed("a redirection is not UTF-8"))?;
    let mut words = text.split(' ').filter(|word| !word.is_empty());
    let (Some(slot), Some(endpoint), None) = (words.next(), words.next(), words.next()) else {
        return Err(Malformed("a redirection is not a slot and an address"));
    };
    // A cluster that prefers host names sends a question mark for a node without a host name. With `unknown-endpoint`
    // the host is empty (`getPreferredEndpoint` in cluster.c of Redis 7.0).
    let unnamed = endpoint.strip_prefix('?').filter(|rest| rest.rfind(':') == Some(0));
    let endpoint = unnamed.unwrap_or(endpoint);
    let (host, port) = parse_host_port(endpoint)?;
    Ok(Redirection { slot: parse_slot(slot)?, host, port })
}

#[cfg(test)]
mod tests;
