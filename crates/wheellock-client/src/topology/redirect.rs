//! Redirections of Redis Cluster: the errors MOVED and ASK. Reads them; following them is the caller's.
//!
//! `MOVED <slot> <host>:<port>`, and the same for ASK. Source: the Redis Cluster specification, "MOVED Redirection".

use super::endpoint::{Malformed, parse_host_port, parse_slot};
use crate::address::Address;

/// What a redirection is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Redirect {
    /// The slot has another owner, for good.
    Moved,
    /// The slot is on its way, and this key is there already: only this call goes there, after ASKING.
    Ask,
}

/// Where a node sent us.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Redirection {
    pub(crate) kind: Redirect,
    pub(crate) slot: u16,
    /// Empty if the node does not say: then it means its own host.
    pub(crate) host: String,
    pub(crate) port: u16,
}

/// Reads an error reply; `None` if it is no redirection.
pub(crate) fn parse(error_text: &[u8]) -> Option<Result<Redirection, Malformed>> {
    let (code, rest) = match error_text.iter().position(|&byte| byte == b' ') {
        Some(end) => error_text.split_at_checked(end)?,
        None => (error_text, &[][..]),
    };
    let kind = match code {
        b"MOVED" => Redirect::Moved,
        b"ASK" => Redirect::Ask,
        _ => return None,
    };
    Some(parse_target(kind, rest))
}

/// Where a redirection leads, if `error_text` is one that can be followed. `asked` is the host that said so, for a redirection
/// that names none.
pub(crate) fn target(error_text: &[u8], asked: impl FnOnce() -> Option<String>) -> Option<Address> {
    let to = parse(error_text)?.ok()?;
    let host = if to.host.is_empty() { asked()? } else { to.host };
    Some(Address::Tcp { host, port: to.port })
}

fn parse_target(kind: Redirect, text: &[u8]) -> Result<Redirection, Malformed> {
    let text = std::str::from_utf8(text).map_err(|_| Malformed("a redirection is not UTF-8"))?;
    let mut words = text.split(' ').filter(|word| !word.is_empty());
    let (Some(slot), Some(endpoint), None) = (words.next(), words.next(), words.next()) else {
        return Err(Malformed("a redirection is not a slot and an address"));
    };
    // A question mark stands for the host name of a node that was not given one, if the cluster prefers host names; with
    // `unknown-endpoint` nothing stands there (`getPreferredEndpoint` in cluster.c of Redis 7.0).
    let unnamed = endpoint.strip_prefix('?').filter(|rest| rest.rfind(':') == Some(0));
    let endpoint = unnamed.unwrap_or(endpoint);
    let (host, port) = parse_host_port(endpoint)?;
    Ok(Redirection { kind, slot: parse_slot(slot)?, host, port })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::topology::slots::SLOTS;

    #[test]
    fn what_servers_say() {
        let read = |text: &str| {
            let Redirection { kind, slot, host, port } = parse(text.as_bytes()).unwrap().unwrap();
            (kind, slot, host, port)
        };
        let moved = |slot, host: &str, port| (Redirect::Moved, slot, host.to_owned(), port);
        assert_eq!(read("MOVED 3999 127.0.0.1:6381"), moved(3999, "127.0.0.1", 6381));
        assert_eq!(read("ASK 0 127.0.0.1:6381"), (Redirect::Ask, 0, "127.0.0.1".to_owned(), 6381));
        assert_eq!(
            read("MOVED 12182 node21003.example.org:21003"),
            moved(12_182, "node21003.example.org", 21003)
        );
        // redis-server 7.0.15 with `cluster-preferred-endpoint-type` hostname, but no name, and unknown-endpoint.
        assert_eq!(read("MOVED 12182 ?:21002"), moved(12_182, "", 21002));
        assert_eq!(read("MOVED 12182 :21002"), moved(12_182, "", 21002));
        assert_eq!(read("MOVED 1 ::1:7000"), moved(1, "::1", 7000));
        assert_eq!(read("MOVED 1 [::1]:7000"), moved(1, "::1", 7000));
        assert_eq!(read("MOVED 16383 h:65535"), moved(16_383, "h", 65_535));
    }

    #[test]
    fn other_errors_are_none_of_ours() {
        for text in [
            "",
            "ERR no",
            "MOVEDX 1 h:1",
            "moved 1 h:1",
            "TRYAGAIN Multiple keys",
            "CLUSTERDOWN",
            " MOVED 1 h:1",
        ] {
            assert_eq!(parse(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn what_cannot_be_followed_is_refused() {
        let why = |text: &[u8]| parse(text).unwrap().map_err(|Malformed(why)| why);
        let shape = Err("a redirection is not a slot and an address");
        for text in ["MOVED", "ASK ", "MOVED 1", "MOVED 1 h:1 more"] {
            assert_eq!(why(text.as_bytes()), shape, "{text}");
        }
        for slot in ["16384", "-1", "+1", "x", "99999999999999999999"] {
            let text = format!("MOVED {slot} h:1");
            assert_eq!(why(text.as_bytes()), Err("a slot is not within 0..=16383"), "{slot}");
        }
        for port in ["0", "65536", "", "-1", "+1", "x"] {
            let text = format!("ASK 1 h:{port}");
            assert_eq!(why(text.as_bytes()), Err("a port is not within 1..=65535"), "{port}");
        }
        assert_eq!(why(b"MOVED 1 h"), Err("an address lacks its port"));
        assert_eq!(why(b"MOVED 1 h\x1b[1m:1"), Err("a host has a character that no host name has"));
        assert_eq!(why(b"MOVED 1 ?h:1"), Err("a host has a character that no host name has"));
        assert_eq!(why(b"MOVED 1 ?::1:1"), Err("a host has a character that no host name has"));
        assert_eq!(why(b"MOVED 1 \xff:1"), Err("a redirection is not UTF-8"));
        let long = format!("MOVED 1 {}:1", "h".repeat(256));
        assert_eq!(why(long.as_bytes()), Err("a host name is longer than a name can be"));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(ask: bool, slot in 0..SLOTS, host in "|::1|[a-z0-9.-]{1,30}", port in 1..=u16::MAX) {
            let (kind, code) = if ask { (Redirect::Ask, "ASK") } else { (Redirect::Moved, "MOVED") };
            let text = format!("{code} {slot} {host}:{port}");
            prop_assert_eq!(parse(text.as_bytes()), Some(Ok(Redirection { kind, slot, host, port })));
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            let text = [b"MOVED ", bytes.as_slice()].concat();
            if let Ok(read) = parse(&text).unwrap() {
                prop_assert!(read.slot < SLOTS && read.port != 0);
            }
            prop_assert_eq!(parse(&bytes), None);
        }
    }
}
