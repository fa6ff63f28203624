//! The parts that every answer about other servers is made of: host, port, slot. Says what is wrong with one; knows no
//! answer as a whole.

use std::fmt;

use crate::base::address::Address;
use crate::base::slots::SLOTS;

/// An answer about other servers that cannot be one: what is wrong with it. Never contains what the server said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed(pub(crate) &'static str);

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// A host name or IP address; IPv6 with or without brackets. Empty if the server did not say.
pub(crate) fn parse_host(text: &str) -> Result<String, Malformed> {
    let host = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    // A percent sign introduces the zone of an IPv6 address; underscores are in many names, whatever the standards say.
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

/// `host:port`, split at the last colon, so that an IPv6 address needs no brackets: Redis writes none.
pub(crate) fn parse_host_port(text: &str) -> Result<(String, u16), Malformed> {
    let (host, port) = text.rsplit_once(':').ok_or(Malformed("an address lacks its port"))?;
    Ok((parse_host(host)?, parse_port(port)?))
}

pub(crate) fn address(host: &str, port: u16) -> Address {
    Address::Tcp { host: host.to_owned(), port }
}

/// Digits only: the standard library would take a plus sign too.
fn decimal(text: &str) -> Option<u16> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

/// The longest name DNS knows (RFC 1035).
const MAX_HOST: usize = 255;
