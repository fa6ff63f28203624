//! Texts of attempts to connect to real servers with TLS.

use std::time::Duration;

use rcgen::{KeyPair, date_time_ymd};
use wheellock::client::{Client, Config, TlsConfig};
use wheellock_tests::RedisServer;
use wheellock_tests::certificates::{Authority, Identity, authority, leaf};

use super::{Row, row};

pub(super) async fn rows() -> Vec<Row> {
    let ours = Authority::new("ours");
    let mut expired = leaf(&["localhost"]);
    expired.not_after = date_time_ymd(2020, 1, 1);
    let self_signed = self_signed();
    let mut rows = Vec::new();
    for (situation, identity, trusted) in [
        (
            "A certificate of an authority that is not trusted",
            Authority::new("theirs").issue(&leaf(&["localhost"])),
            ours.pem(),
        ),
        ("A certificate for another name", ours.issue(&leaf(&["cache.internal"])), ours.pem()),
        ("A certificate that has expired", ours.issue(&expired), ours.pem()),
        (
            "What `openssl req -x509` makes: an authority as the server's own certificate",
            self_signed.clone(),
            &self_signed.chain,
        ),
    ] {
        let server = RedisServer::builder().tls(&identity, ours.pem()).arg("tls-auth-clients", "no").start();
        rows.push(failure(situation, &server, "rediss", trusted).await);
    }
    let identity = ours.issue(&leaf(&["localhost"]));
    let server = RedisServer::builder().tls(&identity, ours.pem()).arg("tls-auth-clients", "yes").start();
    rows.push(
        failure("No client certificate, and the server wants one", &server, "rediss", ours.pem()).await,
    );
    rows.push(failure("A plain client at a TLS port", &server, "redis", ours.pem()).await);
    let server = RedisServer::builder().tcp().start();
    rows.push(failure("A TLS client at a plain port", &server, "rediss", ours.pem()).await);
    rows
}

async fn failure(situation: &'static str, server: &RedisServer, scheme: &str, trusted: &str) -> Row {
    let address = format!("localhost:{}", server.addr().port());
    let mut config: Config = format!("redis://{address}").parse().unwrap();
    if scheme == "rediss" {
        config.tls = Some(TlsConfig::new().trust_pem(trusted.as_bytes()).build().unwrap());
    }
    config.connect_timeout = Duration::from_millis(300);
    row(situation, address, Client::connect(config).await.unwrap_err())
}

/// Makes a certificate as `openssl req -x509` does: a self-signed authority that the server itself uses.
fn self_signed() -> Identity {
    let mut params = authority("localhost");
    params.subject_alt_names = leaf(&["localhost"]).subject_alt_names;
    let key = KeyPair::generate().unwrap();
    Identity { chain: params.self_signed(&key).unwrap().pem(), key: key.serialize_pem() }
}
