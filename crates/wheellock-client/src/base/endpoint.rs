//! Parsers for hosts, ports and slots in a server's replies.
//!
//! This module does not know any reply as a whole.

use crate::base::address::Address;
use crate::base::slots::SLOTS;

/// A reply about other servers that is malformed, with the fault. It never contains the server's own text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed(pub(crate) &'static str);

/// Parses a host name or IP address. IPv6 addresses may have brackets. The text is empty if the server did not name a
/// host.
pub(crate) fn parse_host(text: &str) -> Result<String, Malformed> {
    let host = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    // A percent sign introduces the zone of an IPv6 address. Underscores occur in many names, although the standards
    // forbid them.
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:%".contains(&byte);
    if host.len() > MAX_HOST {
        Err(Malformed("a host name is longer than a name can be"))
    } else if host.bytes().all(fits) {
        Ok(host.to_owned())
    } else {
        Err(Malformed("a host has a character that no host name has"))
    }
}

pub(crate) fn parse_port(text: &str) -> Result<u16, Malformed> {
    decimal(text).filter(|&port| port != 0).ok_or(Malformed("a port is not within 1..=65535"))
}

pub(crate) fn parse_slot(text: &str) -> Result<u16, Malformed> {
    decimal(text).filter(|&slot| slot < SLOTS).ok_or(Malformed("a slot is not within 0..=16383"))
}

/// Parses `host:port`. The text is split at the last colon, because Redis writes IPv6 addresses without brackets.
pub(crate) fn parse_host_port(text: &str) -> Result<(String, u16), Malformed> {
    let (host, port) = text.rsplit_once(':').ok_or(Malformed("an address lacks its port"))?;
    Ok((parse_host(host)?, parse_port(port)?))
}

pub(crate) fn address(host: &str, port: u16) -> Address {
    Address::Tcp { host: host.to_owned(), port }
}

/// Parses digits only: the standard library would accept a plus sign.
fn decimal(text: &str) -> Option<u16> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

/// The length of the longest DNS name (RFC 1035).
const MAX_HOST: usize = 255;
