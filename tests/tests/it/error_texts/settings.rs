//! Texts about URLs and settings.
//!
//! The client sends no request.

use wheellock::client::{Config, TlsConfig};
use wheellock_tests::certificates::{Authority, leaf};

use super::{Row, fixed};

pub(super) fn urls() -> Vec<Row> {
    [
        ("An empty URL", ""),
        ("No scheme", "localhost:6379"),
        ("An unknown scheme", "http://localhost"),
        ("No host", "redis://"),
        ("A port that is not a number", "redis://app:secret@localhost:port"),
        ("A database that is not a number", "redis://localhost/orders"),
        ("A relative path to a socket", "unix://run/redis.sock"),
        ("A Sentinel without its service", "redis+sentinel://localhost:26379"),
        ("A database of a cluster", "redis+cluster://localhost/2"),
        ("An unknown parameter", "redis://localhost?timeout=5"),
        ("An IPv6 address without brackets", "redis://::1:6379"),
        ("An IPv6 address with an empty zone", "redis://[fe80::1%]:6379"),
        ("A broken percent-encoding", "redis://app:100%@localhost"),
        ("A raw question mark in a password", "redis://app:what?@localhost"),
        ("A request not to verify certificates", "rediss://localhost#insecure"),
        ("A fragment", "redis://localhost/0#orders"),
        ("A file of authorities without TLS", "redis://localhost?ca_file=/etc/ca.pem"),
    ]
    .into_iter()
    .map(|(situation, url)| fixed(situation, url.parse::<Config>().unwrap_err()))
    .collect()
}

pub(super) fn values() -> Vec<Row> {
    let authority = Authority::new("ours");
    let identity = authority.issue(&leaf(&["me"]));
    let trusting = || TlsConfig::new().trust_pem(authority.pem().as_bytes());
    let (chain, key) = (identity.chain.as_bytes(), identity.key.as_bytes());
    [
        ("An authority that is not PEM", TlsConfig::new().trust_pem(b"not PEM")),
        ("A client certificate that is not PEM", trusting().identity_pem(b"not PEM", key)),
        ("A private key that is not PEM", trusting().identity_pem(chain, b"not PEM")),
        ("A client certificate's file that does not exist", trusting().identity_files("us.pem", "us.key")),
        ("A name that no certificate can have", trusting().server_name("not a name")),
    ]
    .into_iter()
    .map(|(situation, settings)| fixed(situation, settings.build().unwrap_err()))
    .collect()
}
