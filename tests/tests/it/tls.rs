//! TLS against a real redis-server. The tests cover connections that must succeed, and connections that must fail, each for its own reason.

use std::fmt::Write as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, CidrSubnet, ExtendedKeyUsagePurpose, GeneralSubtree, IsCa, KeyPair,
    NameConstraints, date_time_ymd,
};
use wheellock_client::{
    Address, Client, Command, Config, ConnectionState, Error, ErrorKind, Outcome, Servers, TlsConfig,
};
use wheellock_tests::certificates::{Authority, Identity, authority, leaf};
use wheellock_tests::fault::{Direction, Fault, Proxy, Upstream};
use wheellock_tests::{RedisServer, eventually};

use crate::log::listen;

const PATIENCE: Duration = Duration::from_secs(10);

/// Starts a redis-server that speaks TLS. The server requests certificates from clients if `clients` is an authority for them.
fn serve(identity: &Identity, clients: Option<&Authority>, more: &[(&str, &str)]) -> RedisServer {
    let trusted = clients.map_or(identity.chain.as_str(), Authority::pem);
    let builder = RedisServer::builder()
        .tls(identity, trusted)
        .arg("tls-auth-clients", if clients.is_some() { "yes" } else { "no" });
    more.iter().fold(builder, |builder, (name, value)| builder.arg(name, value)).start()
}

fn config(server: &RedisServer, host: &str, trusted: &Authority) -> Config {
    let mut config: Config = format!("redis://{host}:{}", server.addr().port()).parse().unwrap();
    config.tls = Some(TlsConfig::new().trust_pem(trusted.pem().as_bytes()).build().unwrap());
    config
}

async fn refused(config: Config) -> String {
    let error = Client::connect(config).await.expect_err("must be refused");
    assert_eq!(error.kind(), ErrorKind::Connect, "{error}");
    error.to_string()
}

async fn works(config: Config) {
    let client = Client::connect(config).await.expect("a good certificate");
    let big = "x".repeat(100_000);
    let reply = client.call(&Command::new("ECHO").arg(&big)).await.unwrap();
    assert_eq!(reply.as_str(), Some(big.as_str()));
    let calls = (0..64).map(|n| {
        let client = client.clone();
        tokio::spawn(async move {
            let n = n.to_string();
            assert_eq!(client.call(&Command::new("ECHO").arg(&n)).await.unwrap().as_str(), Some(n.as_str()));
        })
    });
    for call in calls.collect::<Vec<_>>() {
        call.await.unwrap();
    }
}

/// Returns a URL with TLS, in which `rest` follows the port.
fn url(server: &RedisServer, rest: &str) -> String {
    format!("rediss://localhost:{}{rest}", server.addr().port())
}

#[tokio::test]
async fn ca_file_of_url_is_trusted() {
    let ca = Authority::new("ours");
    let server = serve(&ca.issue(&leaf(&["localhost"])), None, &[]);
    let file = server.directory().join("an authority.pem");
    let config: Config =
        url(&server, &format!("?ca_file={}", file.display().to_string().replace(' ', "%20")))
            .parse()
            .expect("the file is read at the first attempt to connect");

    let error = Client::connect(config.clone()).await.expect_err("there is no file");
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    let shown = error.to_string();
    assert!(shown.contains("the CA file") && shown.contains("No such file"), "{shown}");
    let origin = error.origin().and_then(|origin| origin.downcast_ref::<std::io::Error>());
    assert_eq!(origin.map(std::io::Error::kind), Some(std::io::ErrorKind::NotFound));

    let waiting = Client::lazy(config.clone());
    assert!(eventually(PATIENCE, async || matches!(waiting.state(), ConnectionState::Refused(_))).await);
    std::fs::write(&file, "no certificate").unwrap();
    let error = Client::connect(config.clone()).await.expect_err("there is no authority in it");
    assert!(error.kind() == ErrorKind::Config && error.to_string().contains("no certificate"), "{error}");
    std::fs::write(&file, ca.pem()).unwrap();
    works(config).await;
    assert!(eventually(PATIENCE, async || waiting.is_ready()).await, "a file that comes later is read");
}

#[test]
fn command_line_trusts_named_authority() {
    let ca = Authority::new("ours");
    let server = serve(&ca.issue(&leaf(&["localhost"])), None, &[]);
    let file = server.directory().join("ca.pem");
    std::fs::write(&file, ca.pem()).unwrap();
    let run = |rest: &str, trusted: &str| {
        let mut tool = std::process::Command::new(env!("CARGO_BIN_EXE_wheellock_cli"));
        tool.args(["run", "orders", "--", "true"]).env("WHEELLOCK_URL", url(&server, rest));
        let ended = tool.env("SSL_CERT_FILE", trusted).env_remove("SSL_CERT_DIR").output().unwrap();
        (ended.status.code(), String::from_utf8_lossy(&ended.stderr).into_owned())
    };
    let path = file.display().to_string();
    assert_eq!(run("", &path).0, Some(0), "SSL_CERT_FILE");
    assert_eq!(run(&format!("?ca_file={path}"), "/nowhere").0, Some(0), "ca_file");
    let (code, said) = run("", "/nowhere");
    assert_ne!(code, Some(0));
    for part in ["no certificate authority", "SSL_CERT_FILE", "ca_file="] {
        assert!(said.contains(part), "{said}");
    }
}

#[tokio::test]
async fn valid_certificates_are_accepted() {
    let ca = Authority::new("ours");
    let server = serve(&ca.issue(&leaf(&["localhost", "127.0.0.1"])), None, &[]);
    works(config(&server, "localhost", &ca)).await;
    works(config(&server, "127.0.0.1", &ca)).await;

    let below = ca.intermediate(authority("below"));
    let server = serve(&below.issue(&leaf(&["localhost"])).followed_by(&below), None, &[]);
    works(config(&server, "localhost", &ca)).await;

    let server = serve(&ca.issue(&leaf(&["cache.internal"])), None, &[]);
    let mut config = config(&server, "localhost", &ca);
    let named = TlsConfig::new().trust_pem(ca.pem().as_bytes()).server_name("cache.internal");
    config.tls = Some(named.build().unwrap());
    works(config).await;
}

/// Encrypted bytes that the socket does not take stay in the session, which has room for 64 KiB.
#[tokio::test]
async fn large_command_is_written_completely() {
    let ca = Authority::new("ours");
    let server = serve(&ca.issue(&leaf(&["localhost"])), None, &[]);
    let mut config = config(&server, "localhost", &ca);
    config.response_timeout = 3 * PATIENCE;
    let client = Client::connect(config).await.unwrap();
    let big: String = (0..12 << 20).map(|n: u32| char::from(b'a' + (n % 23) as u8)).collect();
    for command in ["SET", "GETSET"] {
        // The socket fills until the server reads again.
        server.pause();
        let before = client.stats().bytes_written;
        let call = tokio::spawn({
            let (client, big) = (client.clone(), big.clone());
            async move { client.call(&Command::new(command).arg("big").arg(&big)).await }
        });
        assert!(eventually(PATIENCE, async || client.stats().bytes_written > before + (1 << 16)).await);
        server.resume();
        let reply = call.await.unwrap().unwrap();
        assert!(reply.as_str() == Some(if command == "SET" { "OK" } else { &big }), "{command}");
    }
    assert_eq!(client.stats().connections, 1);
}

#[tokio::test]
async fn tls_1_2_is_enough() {
    let ca = Authority::new("ours");
    let server = serve(&ca.issue(&leaf(&["localhost"])), None, &[("tls-protocols", "TLSv1.2")]);
    works(config(&server, "localhost", &ca)).await;
}

#[tokio::test]
async fn x05_bad_certificate_is_rejected_with_reason() {
    let ca = Authority::new("ours");
    let adjust = |names: &[&str], adjust: &dyn Fn(&mut CertificateParams)| {
        let mut params = leaf(names);
        adjust(&mut params);
        params
    };
    let mut cases: Vec<(&str, Identity, &str, &str)> = vec![
        ("another host", ca.issue(&leaf(&["other.example"])), "localhost", "not valid for name"),
        (
            "a name where an address is asked for",
            ca.issue(&leaf(&["localhost"])),
            "127.0.0.1",
            "not valid for name",
        ),
        ("a common name and no alternative name", ca.issue(&leaf(&[])), "localhost", "not valid for name"),
        (
            "expired",
            ca.issue(&adjust(&["localhost"], &|params| {
                params.not_before = date_time_ymd(2020, 1, 1);
                params.not_after = date_time_ymd(2021, 1, 1);
            })),
            "localhost",
            "expired",
        ),
        (
            "not yet valid",
            ca.issue(&adjust(&["localhost"], &|params| {
                params.not_before = date_time_ymd(2090, 1, 1);
                params.not_after = date_time_ymd(2091, 1, 1);
            })),
            "localhost",
            "not valid yet",
        ),
        (
            "another authority",
            Authority::new("theirs").issue(&leaf(&["localhost"])),
            "localhost",
            "UnknownIssuer",
        ),
        (
            "for clients only",
            ca.issue(&adjust(&["localhost"], &|params| {
                params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
            })),
            "localhost",
            "does not allow extended key usage",
        ),
        (
            "a wildcard for another level",
            ca.issue(&leaf(&["*.localhost"])),
            "localhost",
            "not valid for name",
        ),
    ];

    let self_signed = KeyPair::generate().unwrap();
    let certificate = leaf(&["localhost"]).self_signed(&self_signed).unwrap();
    let identity = Identity { chain: certificate.pem(), key: self_signed.serialize_pem() };
    cases.push(("self-signed", identity, "localhost", "UnknownIssuer"));

    let below = ca.intermediate(authority("below"));
    cases.push(("a missing intermediate", below.issue(&leaf(&["localhost"])), "localhost", "UnknownIssuer"));

    let no_authority = ca.intermediate(leaf(&["localhost"]));
    let issued = no_authority.issue(&leaf(&["localhost"])).followed_by(&no_authority);
    cases.push(("an intermediate that is no authority", issued, "localhost", "EndEntityUsedAsCa"));

    let mut short = authority("short");
    short.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    let short = ca.intermediate(short);
    let too_deep = short.intermediate(authority("too deep"));
    let issued = too_deep.issue(&leaf(&["localhost"])).followed_by(&too_deep).followed_by(&short);
    cases.push(("a path longer than allowed", issued, "localhost", "PathLenConstraintViolated"));

    let mut narrow = authority("narrow");
    narrow.name_constraints = Some(NameConstraints {
        permitted_subtrees: vec![
            GeneralSubtree::DnsName("example.com".to_owned()),
            GeneralSubtree::IpAddress(CidrSubnet::V4([10, 0, 0, 0], [255, 0, 0, 0])),
        ],
        excluded_subtrees: Vec::new(),
    });
    let narrow = ca.intermediate(narrow);
    let issued = narrow.issue(&leaf(&["localhost"])).followed_by(&narrow);
    cases.push(("a name its authority may not sign", issued, "localhost", "NameConstraintViolation"));

    assert!(cases.len() >= 12);
    let mut report = String::new();
    for (what, identity, host, reason) in &cases {
        let server = serve(identity, None, &[]);
        let text = refused(config(&server, host, &ca)).await;
        let _infallible = writeln!(report, "{what}: {text}");
        assert!(
            reason.split('|').any(|reason| text.contains(reason)),
            "{what}: expected {reason} in: {text}"
        );
        assert_eq!(server.cli(&["PING"]), "PONG", "the server itself is well");
    }
    println!("{report}");
}

#[tokio::test]
async fn x06_missing_client_certificate_is_named() {
    let ca = Authority::new("ours");
    let clients = Authority::new("clients");
    let server = serve(&ca.issue(&leaf(&["localhost"])), Some(&clients), &[]);

    let text = refused(config(&server, "localhost", &ca)).await;
    assert!(text.contains("client certificate") || text.contains("CertificateRequired"), "{text}");

    let with = |identity: &Identity| {
        let mut config = config(&server, "localhost", &ca);
        let tls = TlsConfig::new().trust_pem(ca.pem().as_bytes());
        config.tls =
            Some(tls.identity_pem(identity.chain.as_bytes(), identity.key.as_bytes()).build().unwrap());
        config
    };
    works(with(&clients.issue(&leaf(&["me"])))).await;
    let text = refused(with(&ca.issue(&leaf(&["me"])))).await;
    assert!(text.contains("client certificate") || text.contains("alert"), "{text}");
}

/// Another program replaces the files, one after the other.
#[tokio::test]
async fn rotated_client_certificate_is_presented() {
    let (ca, clients, strangers) =
        (Authority::new("ours"), Authority::new("clients"), Authority::new("others"));
    let server = serve(&ca.issue(&leaf(&["localhost"])), Some(&clients), &[]);
    let [chain, key] = ["us.pem", "us.key"].map(|name| server.directory().join(name));
    let write = |identity: &Identity| {
        std::fs::write(&chain, &identity.chain).unwrap();
        std::fs::write(&key, &identity.key).unwrap();
    };
    let building = || TlsConfig::new().trust_pem(ca.pem().as_bytes()).identity_files(&chain, &key);
    let error = building().build().expect_err("there is no file");
    assert!(error.kind() == ErrorKind::Config && error.to_string().contains("us.pem"), "{error}");

    write(&strangers.issue(&leaf(&["me"])));
    let mut config = config(&server, "localhost", &ca);
    config.tls = Some(building().build().unwrap());
    let waiting = Client::lazy(config.clone());
    let text = refused(config.clone()).await;
    assert!(!text.contains("a former certificate"), "{text}");

    let ours = clients.issue(&leaf(&["me"]));
    std::fs::write(&chain, &ours.chain).unwrap();
    let text = refused(config.clone()).await;
    assert!(text.contains("a former certificate") && text.contains("us.key"), "{text}");

    std::fs::write(&key, &ours.key).unwrap();
    works(config.clone()).await;
    assert!(eventually(PATIENCE, async || waiting.is_ready()).await, "no restart is needed");

    std::fs::write(&chain, &clients.issue(&leaf(&["me"])).chain).unwrap();
    works(config.clone()).await;
    std::fs::remove_file(&key).unwrap();
    works(config.clone()).await;

    write(&strangers.issue(&leaf(&["me"])));
    refused(config).await;
}

#[tokio::test]
async fn x03_x04_tls_mismatch_error_names_cause() {
    let ca = Authority::new("ours");
    let server = serve(&ca.issue(&leaf(&["localhost"])), None, &[]);
    let plain: Config = format!("redis://localhost:{}", server.addr().port()).parse().unwrap();
    let text = refused(plain).await;
    assert!(text.contains("rediss://"), "{text}");

    let plaintext = RedisServer::builder().tcp().start();
    let mut config: Config = plaintext.tcp_url().parse().unwrap();
    config.tls = Some(TlsConfig::new().trust_pem(ca.pem().as_bytes()).build().unwrap());
    config.connect_timeout = Duration::from_millis(300);
    let text = refused(config).await;
    assert!(text.contains("does not speak TLS") || text.contains("InvalidContentType"), "{text}");
}

#[tokio::test]
async fn x07_older_tls_is_refused() {
    let ca = Authority::new("ours");
    let more = [("tls-protocols", "TLSv1.1"), ("tls-ciphers", "DEFAULT@SECLEVEL=0")];
    let server = serve(&ca.issue(&leaf(&["localhost"])), None, &more);
    refused(config(&server, "localhost", &ca)).await;
}

#[test]
fn invalid_tls_settings_fail_at_build() {
    let ca = Authority::new("ours");
    let identity = ca.issue(&leaf(&["me"]));
    let refused = |tls: wheellock_client::TlsBuilder| {
        let error = tls.build().expect_err("must be refused");
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(!error.to_string().contains("PRIVATE"), "{error}");
    };
    let trusting = || TlsConfig::new().trust_pem(ca.pem().as_bytes());
    refused(TlsConfig::new().trust_pem(b"not PEM"));
    refused(trusting().identity_pem(b"not PEM", identity.key.as_bytes()));
    refused(trusting().identity_pem(identity.chain.as_bytes(), b"not PEM"));
    let other = KeyPair::generate().unwrap().serialize_pem();
    refused(trusting().identity_pem(identity.chain.as_bytes(), other.as_bytes()));
    refused(trusting().server_name("not a name"));
}

#[tokio::test]
async fn n22_ended_tls_stream_is_lost_connection() {
    let ca = Authority::new("ours");
    let server = serve(&ca.issue(&leaf(&["localhost"])), None, &[]);
    let proxy = Proxy::start(Upstream::Tcp(([127, 0, 0, 1], server.addr().port()).into()), 1);
    let mut config = config(&server, "localhost", &ca);
    config.servers = Servers::One(Address::Tcp { host: "localhost".to_owned(), port: proxy.addr().port() });
    let client = Client::connect(config).await.unwrap();
    let cuts: [(&str, &dyn Fn()); 3] = [
        ("a truncated stream: no close_notify", &|| proxy.strike(Direction::ToClient, Fault::Fin)),
        ("a reset", &|| proxy.strike(Direction::ToClient, Fault::Rst)),
        ("closed by the server in good order", &|| {
            let _killed = server.cli(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        }),
    ];
    for (round, (what, cut)) in (1..).zip(cuts) {
        assert_eq!(client.stats().connections, round, "{what}");
        server.pause();
        let call = tokio::spawn({
            let client = client.clone();
            async move { client.call(&Command::new("INCR").arg("n")).await }
        });
        assert!(eventually(PATIENCE, async || client.stats().in_flight == 1).await);
        if round == 3 {
            server.resume();
            let _answered = call.await.unwrap();
            cut();
        } else {
            cut();
            let error = call.await.unwrap().unwrap_err();
            let expected = (ErrorKind::ConnectionLost, Outcome::MaybeExecuted);
            assert_eq!((error.kind(), error.outcome()), expected, "{what}: {error}");
            server.resume();
        }
        assert!(eventually(PATIENCE, async || client.stats().connections == round + 1).await, "{what}");
        assert!(eventually(PATIENCE, async || client.is_ready()).await, "{what}");
        let reply = client.call(&Command::new("ECHO").arg(what)).await.unwrap();
        assert_eq!(reply.as_str(), Some(what));
    }
}

/// Subscriber that collects everything that is logged, down to TRACE.
#[derive(Clone, Default)]
struct Everything(Arc<Mutex<String>>);

impl tracing::Subscriber for Everything {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, span: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        let _infallible = writeln!(self.0.lock().unwrap(), "{span:?}");
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, values: &tracing::span::Record<'_>) {
        let _infallible = writeln!(self.0.lock().unwrap(), "{values:?}");
    }
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        let _infallible = writeln!(self.0.lock().unwrap(), "{event:?}");
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

#[tokio::test]
async fn x09_the_password_appears_nowhere() {
    let seen = Everything::default();
    let _default = listen(seen.clone());
    let password = "s3s@me:öffne/dich";
    let encoded = "s3s%40me%3A%C3%B6ffne%2Fdich";
    let ca = Authority::new("ours");
    let server = serve(&ca.issue(&leaf(&["localhost"])), None, &[("requirepass", password)]);
    let url = |password: &str| format!("redis://default:{password}@localhost:{}", server.addr().port());

    let mut shown = String::new();
    let mut note = |what: &dyn std::fmt::Debug| {
        let _infallible = writeln!(shown, "{what:?}");
    };
    for (password, right) in [(encoded, true), ("s3s%40me%3A%C3%B6ffne%2Fdich%21", false)] {
        let mut config: Config = url(password).parse().unwrap();
        config.tls = Some(TlsConfig::new().trust_pem(ca.pem().as_bytes()).build().unwrap());
        note(&config);
        note(&config.to_string());
        match Client::connect(config).await {
            Ok(client) => {
                assert!(right);
                note(&client);
                note(&client.config());
                let error = client
                    .call(&Command::new("AUTH").arg("default").arg("s3s@me:öffne/dich?"))
                    .await
                    .unwrap_err();
                note(&error);
                note(&error.to_string());
                note(&Command::new("AUTH").arg(password));
            }
            Err(error) => {
                assert!(!right, "{error}");
                assert_eq!(error.kind(), ErrorKind::Auth);
                note(&error);
                note(&error.to_string());
            }
        }
    }
    let wrong: Result<Config, Error> = format!("redis://default:{encoded}@localhost:99999").parse();
    note(&wrong.unwrap_err());

    let logged = seen.0.lock().unwrap().clone();
    assert!(logged.contains("connected"), "the log was listened to: {logged}");
    for text in [shown, logged] {
        for form in ["s3s@me", "s3s%40me", "öffne", "dich", "czNzQG1l", "%C3%B6ffne"] {
            assert!(!text.contains(form), "{form} in {text}");
        }
    }
}
