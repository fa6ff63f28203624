//! The texts of errors.
//!
//! An error's line is complete in itself. The causes add facts to it, repeat no fact, and do not contain secrets.

use std::io;
use std::time::Duration;

use tokio::time::timeout;
use wheellock::client::{Client, Command, Config, ErrorKind};
use wheellock::{Error, LockManager, RedLockManager};
use wheellock_tests::fault::FakeServer;
use wheellock_tests::locks::brisk;
use wheellock_tests::{RedisServer, eventually};

const NO_HANG: Duration = Duration::from_secs(20);
const LEASE: Duration = Duration::from_secs(30);

/// Returns the error and its causes.
fn chain<'a>(error: &'a (dyn std::error::Error + 'static)) -> Vec<&'a (dyn std::error::Error + 'static)> {
    let mut chain = vec![error];
    while let Some(cause) = chain[chain.len() - 1].source() {
        chain.push(cause);
    }
    chain
}

/// Returns the error's line, and the lines of its causes.
fn told(error: &(dyn std::error::Error + 'static)) -> Vec<String> {
    chain(error).iter().map(ToString::to_string).collect()
}

/// Asserts that every cause adds a new text, and that `once` occurs once.
fn says_once(error: &(dyn std::error::Error + 'static), once: &str) {
    let told = told(error);
    for (place, cause) in told.iter().enumerate() {
        assert!(!cause.contains('\n') && !cause.is_empty(), "{told:#?}");
        let before = &told[..place];
        assert!(before.iter().all(|line| !line.contains(cause.as_str())), "said twice: {told:#?}");
    }
    let all = told.join(": ");
    assert_eq!(all.matches(once).count(), 1, "{once:?} in {all}");
    assert!(told[0].contains(once), "one line is enough: {told:#?}");
}

fn io_kind(error: &(dyn std::error::Error + 'static)) -> Option<io::ErrorKind> {
    chain(error).into_iter().find_map(|cause| cause.downcast_ref::<io::Error>()).map(io::Error::kind)
}

/// A9: the line and the chain name each cause once, and the chain keeps the kind of the system's error.
#[tokio::test]
async fn a_cause_is_said_once() {
    let mut server = RedisServer::builder().tcp().start();
    let url = server.url();
    let locks = brisk(&url, LEASE).await;
    let quorum = RedLockManager::new([locks.clone()]).await.unwrap();
    server.kill();

    let error = LockManager::connect(&url).await.unwrap_err();
    says_once(&error, "Connection refused");
    says_once(&error, "connect to");
    says_once(&error, &server.addr().to_string());
    assert_eq!(error.to_string(), format!("cannot connect to {}: Connection refused", server.addr()));
    assert_eq!(told(&error)[1..], ["os error 111"]);
    assert_eq!(io_kind(&error), Some(io::ErrorKind::ConnectionRefused));
    let Error::Server { source: ref of_client, .. } = error else { panic!("{error:?}") };
    says_once(of_client, "Connection refused");
    let whole = of_client.origin().and_then(|origin| origin.downcast_ref::<io::Error>());
    assert_eq!(whole.and_then(io::Error::raw_os_error), Some(111), "{error:?}");

    let error = timeout(NO_HANG, locks.lock("orders").acquire()).await.unwrap().unwrap_err();
    says_once(&error, "Connection refused");
    says_once(&error, "orders");
    assert!(error.to_string().starts_with("cannot acquire lock \"orders\": "), "{error}");

    let error = timeout(NO_HANG, quorum.lock("orders").acquire()).await.unwrap().unwrap_err();
    assert!(matches!(error, Error::NoQuorum { .. }), "{error}");
    says_once(&error, "Connection refused");
}

/// A9: bytes that are not RESP are reported once, with their position.
#[tokio::test]
async fn a_protocol_error_is_said_once() {
    let server = FakeServer::start(|_, session| {
        session.command()?;
        session.send("garbage\r\n")?;
        session.stay_silent()
    });
    let error = LockManager::connect(&server.url()).await.unwrap_err();
    says_once(&error, "invalid RESP at byte 0");
}

/// A9: an error in the URL shows the URL once, without its secrets, and names the mistake.
#[tokio::test]
async fn url_error_shows_position_hides_secret() {
    let url = "redis://app:sesame@db.internal:70000/2";
    let expected = "cannot parse the URL redis://***@db.internal:70000/2: its port is not within 1..=65535";
    let error = url.parse::<Config>().unwrap_err();
    assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::Config, expected));
    for error in [LockManager::connect(url).await.unwrap_err(), LockManager::builder(url).lazy().unwrap_err()]
    {
        assert_eq!(told(&error), [expected]);
    }
}

/// A9: a call that failed for lack of a connection reports why there is no connection.
#[tokio::test]
async fn disconnected_call_reports_cause() {
    let server = RedisServer::builder().tcp().arg("requirepass", "sesame").start();
    let client = Client::lazy(server.url().parse().unwrap());
    let error = timeout(NO_HANG, client.call(&Command::new("PING"))).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Auth);
    let text = error.to_string();
    assert!(
        text.starts_with(&format!("PING on {} failed: not connected: user \"default\"", server.addr())),
        "{text}"
    );
    assert!(text.ends_with("; it was not sent"), "{text}");
}

/// A9: a lease that cannot be valid, or cannot be renewed in time, is refused before a request is sent.
#[tokio::test]
async fn unusable_lease_is_rejected_before_sending() {
    let server = RedisServer::start();
    let url = server.url();
    let with_watchdog = |millis| LockManager::builder(&url).watchdog_lease(Duration::from_millis(millis));
    for millis in [0, 1, 19] {
        for error in [with_watchdog(millis).lazy().err(), with_watchdog(millis).connect().await.err()] {
            let error = error.expect("refused");
            let shortest = Duration::from_millis(20);
            assert!(
                matches!(error, Error::InvalidLease { shortest: told, .. } if told == shortest),
                "{error}"
            );
            assert!(error.to_string().contains("20ms"), "{error}");
        }
    }
    let lock = with_watchdog(20).connect().await.unwrap().lock("short");
    for millis in [0, 1, 2] {
        let error = lock.with_lease(Duration::from_millis(millis)).try_acquire().await.unwrap_err();
        assert!(matches!(error, Error::InvalidLease { .. }) && error.to_string().contains("3ms"), "{error}");
    }
    let believed = async || lock.with_lease(Duration::from_millis(3)).try_acquire().await.is_ok();
    assert!(eventually(NO_HANG, believed).await, "where the server is near");
    assert!(eventually(NO_HANG, async || lock.try_acquire().await.unwrap().is_acquired()).await);
}

/// E3: errors that time may cure differ from errors that need a change of the program or the server.
#[tokio::test]
async fn e03_unavailable_server_differs_from_misuse() {
    let mut server = RedisServer::builder().tcp().start();
    let locks = brisk(&server.url(), LEASE).await;
    let quorum = RedLockManager::new([locks.clone()]).await.unwrap();

    assert_eq!(server.cli(&["SET", "n", "5"]), "OK");
    for wrong in [locks.lock("n"), locks.lock(""), locks.lock("r").with_lease(Duration::from_millis(1))] {
        let error = wrong.try_acquire().await.unwrap_err();
        assert!(!error.is_unavailable(), "{error}");
    }
    let error = quorum.lock("n").try_acquire().await.unwrap_err();
    assert!(!error.is_unavailable(), "{error}");
    assert_eq!(server.cli(&["CONFIG", "SET", "maxmemory", "1"]), "OK");
    let error = locks.lock("r").try_acquire().await.unwrap_err();
    assert!(error.is_unavailable() && error.to_string().contains("OOM"), "{error}");
    assert_eq!(server.cli(&["CONFIG", "SET", "maxmemory", "0"]), "OK");
    assert_eq!(server.cli(&["ACL", "SETUSER", "default", "-evalsha", "-eval"]), "OK");
    let error = locks.lock("r").try_acquire().await.unwrap_err();
    assert!(!error.is_unavailable() && error.to_string().contains("NOPERM"), "{error}");
    assert_eq!(server.cli(&["ACL", "SETUSER", "default", "+@all"]), "OK");

    server.kill();
    let error = locks.lock("r").try_acquire().await.unwrap_err();
    assert!(error.is_unavailable(), "{error}");
    let error = quorum.lock("r").try_acquire().await.unwrap_err();
    assert!(matches!(error, Error::NoQuorum { .. }) && error.is_unavailable(), "{error}");
    let _left = locks.shutdown(Duration::ZERO).await;
    let error = locks.lock("r").try_acquire().await.unwrap_err();
    assert!(!error.is_unavailable(), "it is this process that ends: {error}");
}
