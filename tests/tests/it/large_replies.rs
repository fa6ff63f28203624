//! Large replies and messages on a shared connection. The tests cover limits, a server's own limits and neighbouring calls.

use std::time::Duration;

use tokio::time::timeout;
use wheellock::LockManager;
use wheellock::client::{Client, Command, ErrorKind, Outcome};
use wheellock_tests::fault::FakeServer;
use wheellock_tests::{RedisServer, eventually};

const NO_HANG: Duration = Duration::from_secs(20);
const MIB: usize = 1 << 20;

async fn connect(server: &RedisServer) -> Client {
    Client::connect(server.url().parse().unwrap()).await.unwrap()
}

/// C3: any client may publish a payload over `Limits::bulk` on a channel to which a lock's waiters subscribe.
#[tokio::test]
async fn large_foreign_message_keeps_connection() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let mut config = client.config().clone();
    config.max_queued_bytes = 64 * MIB;
    let publisher = Client::connect(config).await.unwrap();
    let mut news = client.subscribe(b"news");
    news.settled().await;
    let payload = "x".repeat(17 * MIB);
    let published = Command::new("PUBLISH").arg("news").arg(&payload);
    for _ in 0..3 {
        assert_eq!(publisher.call(&published).await.unwrap().as_i64(), Some(1));
        timeout(NO_HANG, news.changed()).await.expect("a message");
    }
    assert_eq!(client.call(&Command::new("ECHO").arg("x")).await.unwrap().as_str(), Some("x"));
    assert_eq!(client.stats().connections, 1);
}

/// C3: a waiter of a lock subscribes on its manager's connection. The values that the application reads use another connection.
#[tokio::test]
async fn waiting_manager_keeps_other_clients_replies() {
    let server = RedisServer::start();
    let locks = LockManager::connect(&server.url()).await.unwrap();
    let held = locks.lock("orders").acquire().await.unwrap();
    let waiter = tokio::spawn({
        let lock = LockManager::connect(&server.url()).await.unwrap().lock("orders");
        async move { lock.acquire().await }
    });
    let heard = async || server.cli(&["PUBSUB", "CHANNELS"]).contains("orders");
    assert!(eventually(NO_HANG, heard).await);
    let client = connect(&server).await;
    assert!(read_at_once(&client, 12).await.iter().all(Option::is_none));
    assert_eq!(client.stats().connections, 1);
    drop(held);
    assert!(timeout(NO_HANG, waiter).await.unwrap().unwrap().is_ok());
}

/// C3: a connection with subscriptions has another limit on the server, and the error names that limit.
#[tokio::test]
async fn subscription_limit_is_named() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    assert!(read_at_once(&client, 1).await.iter().all(Option::is_none), "a first large reply");
    let mut news = client.subscribe(b"news");
    news.settled().await;
    let failures: Vec<String> = read_at_once(&client, 12).await.into_iter().flatten().collect();
    assert!(!failures.is_empty(), "a server without limits");
    for text in failures {
        assert!(
            text.contains("client-output-buffer-limit pubsub") && text.contains("another Client"),
            "{text}"
        );
    }
}

/// Reads a value of 5 MiB `count` times at once. Returns the error of each call, if it failed.
async fn read_at_once(client: &Client, count: usize) -> Vec<Option<String>> {
    let value = "x".repeat(5 * MIB);
    client.call(&Command::new("SET").arg("large").arg(&value)).await.unwrap();
    let reads: Vec<_> = (0..count)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move { client.call(&Command::new("GET").arg("large")).await })
        })
        .collect();
    let mut failures = Vec::new();
    for read in reads {
        failures.push(read.await.unwrap().err().map(|error| error.to_string()));
    }
    failures
}

/// C12: a call whose reply is over a limit learns which limit it is and how to raise it. The neighbouring calls do not fail.
#[tokio::test]
async fn oversized_reply_names_call_and_limit() {
    let server = FakeServer::ready(|_, session| {
        let mut calls = 0;
        while calls < 3 {
            calls += usize::from(session.command()?[0] != b"PING");
        }
        session.send(":1\r\n$16777217\r\n")?;
        session.stay_silent()
    });
    let client = Client::connect(server.url().parse().unwrap()).await.unwrap();
    let (first, second, third) =
        (Command::new("INCR").arg("a"), Command::new("GET").arg("b"), Command::new("INCR").arg("c"));
    let (first, second, third) = tokio::join!(client.call(&first), client.call(&second), client.call(&third));
    assert_eq!(first.unwrap().as_i64(), Some(1));
    let second = second.unwrap_err();
    assert_eq!((second.kind(), second.outcome()), (ErrorKind::Protocol, Outcome::MaybeExecuted), "{second}");
    let text = second.to_string();
    let told = ["GET on", "its reply", "16777216 bytes in a bulk", "Limits::bulk", "Config::limits"];
    assert!(told.iter().all(|told| text.contains(told)), "{text}");
    let third = third.unwrap_err();
    assert_eq!(
        (third.kind(), third.outcome()),
        (ErrorKind::ConnectionLost, Outcome::MaybeExecuted),
        "{third}"
    );
    let text = third.to_string();
    assert!(text.contains("reply to another call") && text.contains("Limits::bulk"), "{text}");
}
