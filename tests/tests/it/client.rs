//! `wheellock-client` against real servers.
//!
//! Tests calls, scripts, pushes, deadlines and reconnects.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use wheellock_client::{
    CallOptions, ChangeSink, Client, Command, Config, ConnectionState, ErrorKind, Outcome, Script,
};
use wheellock_tests::{RedisServer, eventually};

const PATIENCE: Duration = Duration::from_secs(10);

fn config(server: &RedisServer) -> Config {
    server.url().parse().expect("the support library makes valid URLs")
}

async fn client(server: &RedisServer) -> Client {
    Client::connect(config(server)).await.expect("the server is up")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_caller_gets_its_own_reply() {
    let server = RedisServer::builder().tcp().start();
    for url in [server.url(), server.tcp_url()] {
        let client = Client::connect(url.parse().unwrap()).await.unwrap();
        let tasks: Vec<_> = (0..64)
            .map(|task| {
                let client = client.clone();
                tokio::spawn(async move {
                    for round in 0..200 {
                        let nonce = format!("{task}:{round}:{}", "x".repeat(round));
                        let reply = client.call(&Command::new("ECHO").arg(&nonce)).await.unwrap();
                        assert_eq!(reply.as_str(), Some(nonce.as_str()));
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        let stats = client.stats();
        assert!(stats.wakeups >= stats.calls / 2 && stats.latency.count() == stats.calls);
        assert_eq!((stats.calls, stats.in_flight, stats.queued_bytes), (64 * 200, 0, 0));
    }
}

#[tokio::test]
async fn error_reply_becomes_typed_error() {
    let server = RedisServer::start();
    let client = client(&server).await;
    let error = client.call(&Command::new("GET")).await.unwrap_err();
    assert_eq!(
        (error.kind(), error.outcome(), error.code()),
        (ErrorKind::Server, Outcome::Rejected, Some("ERR"))
    );
    assert!(error.to_string().contains("GET on "), "{error}");
}

#[tokio::test]
async fn flushed_script_reloads_without_shifting_replies() {
    let server = RedisServer::start();
    let client = client(&server).await;
    let script = Script::new("return {KEYS[1], ARGV[1]}", 1, 1);
    for round in 0..20_i64 {
        let _reply = server.cli(&["SCRIPT", "FLUSH"]);
        let params = ["a".into(), round.into()];
        let before = round.to_string();
        let echo = Command::new("ECHO").arg(&before);
        let (first, reply, second) =
            tokio::join!(client.call(&echo), client.eval(&script, &params), client.call(&echo));
        assert_eq!(first.unwrap().as_str(), Some(before.as_str()));
        assert_eq!(second.unwrap().as_str(), Some(before.as_str()));
        let reply = reply.unwrap();
        assert_eq!(reply.as_array().unwrap()[1].as_str(), Some(before.as_str()));
    }
    let error = client.eval(&script, &["a".into()]).await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Config, Outcome::NotSent));
}

#[tokio::test]
async fn configured_scripts_load_on_connect() {
    let server = RedisServer::start();
    let mut config = config(&server);
    config.scripts.push(Script::new("return 42", 0, 0).into());
    let script = config.scripts[0].clone();
    let client = Client::connect(config).await.unwrap();
    let monitor = server.monitor();
    assert_eq!(client.eval(&script, &[]).await.unwrap().as_i64(), Some(42));
    let seen: Vec<_> = monitor.stop().unwrap().iter().map(|line| line.name()).collect();
    assert_eq!(seen, ["EVALSHA"]);
}

#[tokio::test]
async fn messages_wake_subscriber_beside_calls() {
    let server = RedisServer::start();
    let client = client(&server).await;
    let mut news = client.subscribe(b"news");
    // The server executes this call after the subscription, because the client sent it later.
    let subscribers = client.call(&Command::new("PUBLISH").arg("news").arg("1")).await.unwrap();
    assert_eq!(subscribers.as_i64(), Some(1));
    news.changed().await;
    assert!(news.is_confirmed());
    news.take_changed();
    let _reply = server.cli(&["PUBLISH", "news", "2"]);
    news.changed().await;
    drop(news);
    assert!(eventually(PATIENCE, async || server.cli(&["PUBSUB", "CHANNELS"]).is_empty()).await);
    assert_eq!(client.call(&Command::new("ECHO").arg("on")).await.unwrap().as_str(), Some("on"));
}

#[tokio::test]
async fn deadline_spares_neighbouring_calls() {
    let server = RedisServer::start();
    let client = client(&server).await;
    server.pause();
    let before = Instant::now();
    let options = CallOptions::by(client.config().timer.now() + Duration::from_millis(50));
    let slow = Command::new("ECHO").arg("slow");
    let patient = client.call(&slow);
    let (error, reply) = tokio::join!(
        async {
            let error = client.call_with(&Command::new("ECHO").arg("hasty"), options).await.unwrap_err();
            server.resume();
            error
        },
        patient
    );
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Timeout, Outcome::MaybeExecuted));
    assert!(before.elapsed() >= Duration::from_millis(50), "never early");
    assert_eq!(reply.unwrap().as_str(), Some("slow"), "the reply of the hasty call passed by");
    assert_eq!(client.stats().connections, 1);
}

#[tokio::test]
async fn killed_server_fails_only_written_calls() {
    let mut server = RedisServer::start();
    let mut config = config(&server);
    config.response_timeout = PATIENCE;
    let client = Client::connect(config).await.unwrap();
    let mut news = client.subscribe(b"news");
    news.settled().await;

    server.pause();
    let task = tokio::spawn({
        let client = client.clone();
        async move { client.call(&Command::new("ECHO").arg("lost")).await }
    });
    assert!(eventually(PATIENCE, async || client.stats().in_flight == 1).await);
    server.kill();
    let error = task.await.unwrap().unwrap_err();
    assert_eq!(
        (error.kind(), error.outcome()),
        (ErrorKind::ConnectionLost, Outcome::MaybeExecuted),
        "{error}"
    );
    assert!(eventually(PATIENCE, async || !client.is_ready()).await);

    let hasty = CallOptions::by(client.config().timer.now() + Duration::from_millis(30));
    let error = client.call_with(&Command::new("SET").arg("hasty").arg("1"), hasty).await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Timeout, Outcome::NotSent), "{error}");
    assert!(error.to_string().contains("connect"), "{error}");

    assert!(news.take_changed(), "a lost connection is a reason to look");
    let kept = Command::new("ECHO").arg("kept");
    let (reply, ()) = tokio::join!(client.call(&kept), async { server.restart() });
    assert_eq!(reply.unwrap().as_str(), Some("kept"));
    news.settled().await;
    assert!(news.is_confirmed(), "subscribed again by itself");
    let _reply = server.cli(&["PUBLISH", "news", "1"]);
    news.changed().await;
    assert_eq!(client.stats().connections, 2);
    assert_eq!(server.cli(&["EXISTS", "hasty"]), "0", "what was reported as not sent never was");
}

#[tokio::test]
async fn silent_server_gets_socket_replaced() {
    let server = RedisServer::builder().tcp().start();
    let mut config: Config = server.tcp_url().parse().unwrap();
    config.heartbeat = Duration::from_millis(50);
    config.response_timeout = Duration::from_millis(200);
    let client = Client::connect(config).await.unwrap();
    server.pause();
    assert!(eventually(PATIENCE, async || !client.is_ready()).await, "nobody called, the heartbeat noticed");
    server.resume();
    assert!(eventually(PATIENCE, async || client.is_ready()).await);
    assert!(client.call(&Command::new("PING")).await.is_ok());
}

#[tokio::test]
async fn connect_error_names_cause() {
    let server = RedisServer::builder().tcp().arg("requirepass", "sesame").start();
    let refused = Client::connect(config(&server)).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Auth, "{refused}");
    let wrong = server.tcp_url().replace("redis://", "redis://:wrong@");
    let error = Client::connect(wrong.parse().unwrap()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Auth);
    assert!(!format!("{error} {error:?}").contains("wrong@"));
    let right = server.tcp_url().replace("redis://", "redis://:sesame@");
    Client::connect(right.parse().unwrap()).await.unwrap();

    let nobody = "unix:///nonexistent/redis.sock".parse().unwrap();
    let error = Client::connect(nobody).await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Connect, Outcome::NotSent));
    assert!(error.to_string().contains("/nonexistent/redis.sock"), "{error}");
    assert!(std::error::Error::source(&error).is_some());
}

#[tokio::test]
async fn connection_events_tell_the_story() {
    let mut server = RedisServer::start();
    let client = client(&server).await;
    assert!(matches!(client.state(), ConnectionState::Ready { connection: 1, .. }));
    let mut watch = client.watch();
    server.kill();
    let lost = watch.changed().await;
    assert!(matches!(lost, ConnectionState::Connecting { last_error: Some(_), .. }), "{lost:?}");
    server.restart();
    while !matches!(watch.changed().await, ConnectionState::Ready { connection: 2, .. }) {}
    drop(client);
    while !matches!(watch.changed().await, ConnectionState::Closed(_)) {}
}

#[tokio::test]
async fn server_change_reaches_user_and_hook() {
    let mut server = RedisServer::start();
    let mut config = config(&server);
    let told = [(); 2].map(|()| Arc::new(AtomicU32::new(0)));
    let [theirs, ours] = told.each_ref().map(|told| -> ChangeSink {
        let told = Arc::clone(told);
        Arc::new(move |change| {
            assert!(change.concerns(b"any"));
            told.fetch_add(1, Ordering::SeqCst);
        })
    });
    (config.on_change, config.hooks.on_change) = (Some(theirs), Some(ours));
    let client = Client::connect(config).await.unwrap();
    let mut watch = client.watch();
    server.kill();
    server.restart();
    while !matches!(watch.changed().await, ConnectionState::Ready { connection: 2, .. }) {}
    let each = || told.each_ref().map(|told| told.load(Ordering::SeqCst));
    assert!(eventually(PATIENCE, async || each() == [1, 1]).await, "{:?}", each());
}

#[tokio::test]
async fn close_or_dropped_runtime_fails_calls() {
    let server = RedisServer::start();
    let client = client(&server).await;
    let other = client.clone();
    client.close().await;
    let error = other.call(&Command::new("PING")).await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Closed, Outcome::NotSent));

    let config = config(&server);
    let orphan = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(Client::connect(config)).unwrap()
    })
    .join()
    .unwrap();
    let error = orphan.call(&Command::new("PING")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed);
    assert!(error.to_string().contains("runtime was shut down"), "{error}");
}

#[tokio::test]
async fn full_queue_rejects_keeps_reserve() {
    let server = RedisServer::start();
    let mut config = config(&server);
    config.max_in_flight = 16;
    let client = Client::connect(config).await.unwrap();
    server.pause();
    let deadline = client.config().timer.now() + PATIENCE;
    let calls: Vec<_> = (0..16)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(
                async move { client.call_with(&Command::new("PING"), CallOptions::by(deadline)).await },
            )
        })
        .collect();
    assert!(eventually(PATIENCE, async || client.stats().in_flight == 16).await);
    let error = client.call(&Command::new("PING")).await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Overloaded, Outcome::NotSent));
    let ping = Command::new("PING");
    let (reserved, ()) = tokio::join!(client.call_with(&ping, CallOptions::by(deadline).reserved()), async {
        server.resume();
    });
    assert!(reserved.is_ok());
    for call in calls {
        assert!(call.await.unwrap().is_ok());
    }
}
