//! Callers that leave, full queues, and hostile servers.
//!
//! Covers rows C, O and X of the failure catalogue, as far as the connection is responsible. docs/reliability/faults.md maps rows to tests.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;

use wheellock::LockManager;
use wheellock_client::{Client, Command, Config, ErrorKind, Outcome, Script};
use wheellock_tests::fault::{At, Direction, FakeServer, Fault, Gate, Proxy, Random, Rule, cancel_at};
use wheellock_tests::{RedisServer, eventually};

use crate::faults::{LONG, PATIENCE, config, connect, echo, within};

const SHORT: Duration = Duration::from_millis(100);

/// Waits until no call is pending and no bytes wait to be written.
async fn at_rest(client: &Client) -> bool {
    eventually(PATIENCE, async || {
        let stats = client.stats();
        (stats.in_flight, stats.queued_bytes) == (0, 0)
    })
    .await
}

/// Returns the resident memory of this process. Source: proc(5), `/proc/self/statm`, second field, in pages of 4 KiB.
fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).unwrap_or_default() * 4096
}

#[tokio::test]
async fn c01_dropped_before_its_first_poll() {
    let server = RedisServer::start();
    let proxy = Proxy::before(&server);
    let client = connect(&proxy.url()).await;
    let (calls, commands) = (client.stats().calls, proxy.counts().commands);
    let incr = Command::new("INCR").arg("n");
    assert!(cancel_at(0, client.call(&incr)).await.is_none());
    assert_eq!(echo(&client, "next").await.unwrap(), "next");
    assert_eq!((client.stats().calls, proxy.counts().commands), (calls + 1, commands + 1), "only the ECHO");
    assert_eq!(server.cli(&["EXISTS", "n"]), "0");
}

#[tokio::test]
async fn c02_cancelled_queued_call_frees_room() {
    let server = RedisServer::start();
    let proxy = Proxy::before(&server);
    let mut config = config(&proxy.url());
    config.max_in_flight = 16;
    config.max_queued_bytes = 64 << 10;
    let client = Client::connect(config).await.unwrap();
    proxy.gate(Gate::Refuse);
    proxy.strike(Direction::ToClient, Fault::Rst);
    assert!(eventually(PATIENCE, async || !client.is_ready()).await);
    let payload = "x".repeat(10_000);
    let append = Command::new("APPEND").arg("k").arg(&payload);
    for round in 0..100 {
        if let Some(result) = cancel_at(1, client.call(&append)).await {
            panic!("round {round}: {}", result.unwrap_err());
        }
        let expired = client.call_with(&append, within(&client, Duration::ZERO)).await.unwrap_err();
        assert_eq!(
            (expired.kind(), expired.outcome()),
            (ErrorKind::Timeout, Outcome::NotSent),
            "round {round}"
        );
    }
    proxy.gate(Gate::Open);
    assert_eq!(echo(&client, "next").await.unwrap(), "next");
    assert!(at_rest(&client).await);
    assert_eq!(server.cli(&["EXISTS", "k"]), "0", "what nobody waited for any more was not sent");
}

#[tokio::test]
async fn c03_cancelled_partial_write_completes_frame() {
    let server = RedisServer::start();
    let proxy = Proxy::before(&server);
    let client = connect(&proxy.url()).await;
    proxy.strike(Direction::ToServer, Fault::Stall);
    let commands = proxy.counts().commands;
    let call = tokio::spawn({
        let client = client.clone();
        async move { client.call(&Command::new("SET").arg("big").arg(&vec![b'x'; 12 << 20][..])).await }
    });
    let before = client.stats().bytes_written;
    assert!(eventually(PATIENCE, async || client.stats().bytes_written > before + (64 << 10)).await);
    assert!(!call.is_finished());
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    proxy.heal();
    assert_eq!(echo(&client, "next").await.unwrap(), "next");
    assert_eq!((client.stats().connections, proxy.counts().commands), (1, commands + 2), "no frame was torn");
    assert_eq!(server.cli(&["STRLEN", "big"]), (12 << 20).to_string());
    assert!(at_rest(&client).await);
}

/// The reply stops after each of its bytes, the caller leaves, and the rest arrives. No other caller gets it.
#[tokio::test]
async fn c04_cancelled_call_discards_partial_reply() {
    let server = RedisServer::start();
    let proxy = Proxy::before(&server);
    let client = connect(&proxy.url()).await;
    let reply = "$6\r\norphan\r\n".len() as u64;
    for cut in 0..=reply {
        for neighbours in [false, true] {
            proxy.rule(Rule::new(Direction::ToClient, At::Byte(cut), Fault::Stall));
            let sent = proxy.counts().from_clients;
            let orphan = tokio::spawn({
                let client = client.clone();
                async move { echo(&client, "orphan").await }
            });
            let neighbour = neighbours.then(|| {
                let client = client.clone();
                tokio::spawn(async move { echo(&client, "neighbour").await })
            });
            assert!(eventually(PATIENCE, async || proxy.counts().from_clients > sent).await);
            orphan.abort();
            let _late_or_cancelled = orphan.await;
            proxy.heal();
            assert_eq!(echo(&client, "next").await.unwrap(), "next", "cut {cut}");
            if let Some(neighbour) = neighbour {
                assert_eq!(neighbour.await.unwrap().unwrap(), "neighbour", "cut {cut}");
            }
            assert!(at_rest(&client).await);
        }
    }
    assert_eq!(client.stats().connections, 1);
}

#[tokio::test]
async fn c05_cancelled_call_discards_parsed_reply() {
    let server = RedisServer::start();
    let client = connect(&server.url()).await;
    for round in 0..100 {
        let incr = Command::new("INCR").arg("n");
        {
            let mut call = pin!(client.call(&incr));
            assert!(call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            assert!(at_rest(&client).await, "the reply has arrived");
        }
        let text = round.to_string();
        assert_eq!(echo(&client, &text).await.unwrap(), text);
    }
    assert_eq!(server.cli(&["GET", "n"]), "100");
    assert!(at_rest(&client).await);
}

#[tokio::test]
async fn c06_cancelled_while_reconnecting_is_never_sent() {
    let server = RedisServer::start();
    let proxy = Proxy::before(&server);
    let client = connect(&proxy.url()).await;
    for round in 0..20_u64 {
        proxy.gate(Gate::Refuse);
        proxy.strike(Direction::ToClient, Fault::Fin);
        assert!(eventually(PATIENCE, async || !client.is_ready()).await);
        let incr = Command::new("INCR").arg("n");
        assert!(cancel_at(1, client.call(&incr)).await.is_none());
        let kept = tokio::spawn({
            let client = client.clone();
            async move { echo(&client, &round.to_string()).await }
        });
        proxy.gate(Gate::Open);
        assert_eq!(kept.await.unwrap().unwrap(), round.to_string());
    }
    assert_eq!(server.cli(&["EXISTS", "n"]), "0");
    assert!(at_rest(&client).await);
}

#[tokio::test]
async fn c07_cancelled_noscript_retry_never_runs_twice() {
    let server = RedisServer::start();
    let client = connect(&server.url()).await;
    let script = Script::new("return redis.call('incr', KEYS[1])", 1, 0);
    for pendings in 0.. {
        assert!(pendings < 20, "the call never completes");
        let _reply = server.cli(&["DEL", "n"]);
        let _reply = server.cli(&["SCRIPT", "FLUSH"]);
        let params = ["n".into()];
        let result = cancel_at(pendings, client.eval(&script, &params)).await;
        assert_eq!(echo(&client, "next").await.unwrap(), "next", "dropped at {pendings}");
        assert!(at_rest(&client).await);
        let count = server.cli(&["GET", "n"]);
        if let Some(result) = result {
            assert_eq!((result.unwrap().as_i64(), count.as_str()), (Some(1), "1"));
            assert!(pendings >= 2, "EVALSHA and EVAL were waited for");
            break;
        }
        assert!(count == "(nil)" || count == "1", "half or twice: {count}");
    }
    assert_eq!(client.stats().connections, 1);
}

#[tokio::test]
async fn c08_cancelled_subscriptions_leave_nothing() {
    let server = RedisServer::start();
    let client = connect(&server.url()).await;
    let mut random = Random::new(8);
    let mut held = Vec::new();
    for round in 0..500 {
        let channel = [b'a' + u8::try_from(random.below(4)).unwrap()];
        let mut subscription = client.subscribe(&channel);
        match random.below(4) {
            0 => {}
            1 => drop(cancel_at(1, subscription.settled()).await),
            2 => subscription.settled().await,
            _ => drop(cancel_at(1, subscription.changed()).await),
        }
        if random.below(3) == 0 {
            held.push(subscription);
        }
        while held.len() > 8 {
            held.swap_remove(usize::try_from(random.below(held.len() as u64)).unwrap());
        }
        let text = round.to_string();
        assert_eq!(echo(&client, &text).await.unwrap(), text);
    }
    for subscription in &mut held {
        subscription.settled().await;
        assert!(subscription.is_confirmed());
    }
    drop(held);
    assert!(eventually(PATIENCE, async || server.cli(&["PUBSUB", "CHANNELS"]).is_empty()).await);
    assert!(at_rest(&client).await);
    assert_eq!(client.stats().connections, 1);
}

/// A hundred thousand callers leave at random moments. Every remaining caller gets its own reply.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r01_many_cancellations_misroute_no_reply() {
    const TASKS: u64 = 64;
    const CANCELLATIONS: u64 = 100_000;
    let server = RedisServer::builder().tcp().start();
    let cancelled = Arc::new(AtomicU64::new(0));
    let answered = Arc::new(AtomicU64::new(0));
    for url in [server.unix_url(), server.tcp_url()] {
        let client = connect(&url).await;
        let goal = cancelled.load(Ordering::Relaxed) + CANCELLATIONS / 2;
        let tasks: Vec<_> = (0..TASKS)
            .map(|task| {
                let (client, cancelled, answered) =
                    (client.clone(), Arc::clone(&cancelled), Arc::clone(&answered));
                tokio::spawn(async move {
                    let mut random = Random::new(task);
                    while cancelled.load(Ordering::Relaxed) < goal {
                        let nonce = format!("{task}:{:x}", random.number());
                        let command = Command::new("ECHO").arg(&nonce);
                        let call = client.call(&command);
                        let reply = match random.below(4) {
                            0 => cancel_at(1, call).await,
                            // Every wake-up of the task polls the call again, so the call sees the connection at work.
                            1 => {
                                let spins = random.below(20);
                                tokio::select! {
                                    reply = call => Some(reply),
                                    () = async { for _ in 0..spins { tokio::task::yield_now().await; } } => None,
                                }
                            }
                            2 => {
                                let limit = Duration::from_micros(random.below(600));
                                tokio::time::timeout(limit, call).await.ok()
                            }
                            _ => Some(call.await),
                        };
                        match reply {
                            None => cancelled.fetch_add(1, Ordering::Relaxed),
                            Some(reply) => {
                                assert_eq!(reply.unwrap().as_str(), Some(nonce.as_str()), "another caller's reply");
                                answered.fetch_add(1, Ordering::Relaxed)
                            }
                        };
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        assert!(at_rest(&client).await, "leaked: {:?}", client.stats());
        assert_eq!(client.stats().connections, 1);
    }
    println!("{cancelled:?} cancelled, {answered:?} answered, 0 mismatches");
}

#[tokio::test]
async fn o03_full_queue_rejects_keeps_reserve() {
    let server = RedisServer::start();
    let proxy = Proxy::before(&server);
    let mut config = config(&proxy.url());
    config.max_queued_bytes = 1 << 20;
    let client = Client::connect(config).await.unwrap();
    for round in 0..3 {
        proxy.strike(Direction::ToServer, Fault::Stall);
        let (mut calls, payload) = (Vec::new(), "x".repeat(100_000));
        let refused = loop {
            let mut call = Box::pin({
                let (client, payload) = (client.clone(), payload.clone());
                async move { echo(&client, &payload).await }
            });
            let refused = std::future::poll_fn(|cx| std::task::Poll::Ready(call.as_mut().poll(cx))).await;
            match refused {
                std::task::Poll::Ready(result) => break result.unwrap_err(),
                std::task::Poll::Pending => calls.push(call),
            }
            assert!(calls.len() < 1000, "100 MB queued and no refusal");
            // Lets the driver write as much as the socket accepts.
            tokio::task::yield_now().await;
        };
        assert_eq!((refused.kind(), refused.outcome()), (ErrorKind::Overloaded, Outcome::NotSent));
        // One command beyond the bound.
        assert!(client.stats().queued_bytes <= (1 << 20) + 110_000, "{:?}", client.stats());
        let ping = Command::new("PING");
        let reserved = client.call_with(&ping, within(&client, LONG).reserved());
        let (reserved, ()) = tokio::join!(reserved, async { proxy.heal() });
        assert_eq!(reserved.unwrap().as_str(), Some("PONG"), "round {round}");
        for call in calls {
            assert_eq!(call.await.unwrap().len(), payload.len());
        }
        assert!(at_rest(&client).await, "the room is given back");
    }
}

#[tokio::test]
async fn o05_busy_server_gets_no_extra_calls() {
    let server = RedisServer::builder().arg("enable-debug-command", "yes").start();
    let mut config = config(&server.url());
    config.response_timeout = 3 * SHORT;
    config.connect_timeout = 3 * SHORT;
    config.reconnect = (Duration::from_millis(5), Duration::from_millis(200));
    let client = Client::connect(config).await.unwrap();
    server.connect().unwrap().send(&["DEBUG", "SLEEP", "1.2"]).unwrap();
    let tasks: Vec<_> = (0..64)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move {
                for _ in 0..5 {
                    let _honest =
                        client.call_with(&Command::new("INCR").arg("n"), within(&client, SHORT)).await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert!(eventually(PATIENCE, async || echo(&client, "again").await.is_ok()).await);
    let executed: u64 = server.cli(&["GET", "n"]).parse().unwrap_or_default();
    assert!(executed <= 64 * 5, "{executed} executed of {} offered", 64 * 5);
    let stats = server.cli(&["INFO", "stats"]);
    let received = stats.lines().find_map(|line| line.strip_prefix("total_connections_received:")).unwrap();
    assert!(received.trim().parse::<u32>().unwrap() < 60, "{received} connections");
}

#[tokio::test]
async fn o06_push_flood_bounds_memory_wakes_subscriber() {
    const PUSHES: usize = 1_000_000;
    let server = FakeServer::ready(|_, session| {
        loop {
            let command = session.answer()?;
            if command[0] == b"SUBSCRIBE" {
                let unknown = b">2\r\n$7\r\nunknown\r\n$1\r\nx\r\n".repeat(1000);
                for _ in 0..PUSHES / 1000 {
                    session.send(&unknown)?;
                }
                session.send(b">3\r\n$7\r\nmessage\r\n$4\r\nnews\r\n$1\r\nx\r\n".repeat(1000))?;
            }
        }
    });
    let client = connect(&server.url()).await;
    let before = resident_bytes();
    let mut news = client.subscribe(b"news");
    news.changed().await;
    assert_eq!(echo(&client, "behind the flood").await.unwrap(), "behind the flood");
    let stats = client.stats();
    assert_eq!((stats.strays, stats.connections), (PUSHES as u64, 1));
    assert_eq!(stats.pushes, PUSHES as u64 + 1001, "the messages and the confirmation are known");
    let grown = resident_bytes().saturating_sub(before);
    // The flood is 27 MB on the wire and far more as values. Other tests of this process run at the same time.
    assert!(grown < 128 << 20, "grew by {} MiB", grown >> 20);
}

/// A client with pending calls gets random bytes, and frames with a few changed bytes.
#[tokio::test]
async fn x01_hostile_server_only_ends_calls() {
    const CONNECTIONS: usize = 400;
    let server = FakeServer::ready(|number, session| {
        if number >= CONNECTIONS {
            return session.serve();
        }
        session.command()?;
        let mut random = Random::new(number as u64);
        let mut bytes = if number % 2 == 0 {
            let length = usize::try_from(random.below(2000)).unwrap_or_default();
            random.bytes(length)
        } else {
            b"$3\r\nabc\r\n*2\r\n:1\r\n+x\r\n>2\r\n$1\r\na\r\n:1\r\n%1\r\n+a\r\n#t\r\n,1.5\r\n(12\r\n=5\r\ntxt:x\r\n".to_vec()
        };
        for _ in 0..3 {
            let place = usize::try_from(random.below(bytes.len() as u64)).unwrap_or_default();
            if let Some(byte) = bytes.get_mut(place) {
                *byte = random.number().to_le_bytes()[0];
            }
        }
        session.send(&bytes)
    });
    let before = resident_bytes();
    let client = connect(&server.url()).await;
    while server.connections() <= CONNECTIONS {
        let (command, options) = (Command::new("ECHO").arg("x"), within(&client, 10 * SHORT));
        let (a, b) = tokio::join!(client.call_with(&command, options), client.call_with(&command, options));
        for error in [a, b].into_iter().filter_map(Result::err) {
            let typed = matches!(
                error.kind(),
                ErrorKind::Protocol | ErrorKind::ConnectionLost | ErrorKind::Server | ErrorKind::Timeout
            );
            assert!(typed, "{error:?}");
            assert!(error.to_string().chars().all(|c| (' '..='~').contains(&c)), "{error}");
        }
    }
    assert!(
        eventually(PATIENCE, async || echo(&client, "well").await.is_ok_and(|text| text == "well")).await
    );
    assert!(at_rest(&client).await);
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 128 << 20, "grew by {} MiB", grown >> 20);
}

#[tokio::test]
async fn x02_redirections_are_errors_not_followed() {
    let elsewhere = FakeServer::ready(|_, session| session.serve());
    let addr = elsewhere.addr();
    let server = FakeServer::ready(move |_, session| {
        for kind in ["MOVED", "ASK"] {
            session.command()?;
            session.send(format!("-{kind} 3999 {addr}\r\n"))?;
        }
        session.serve()
    });
    let url = server.url().replace("redis://", "redis://:sesame@");
    let client = connect(&url).await;
    for kind in ["MOVED", "ASK"] {
        let error = client.call(&Command::new("GET").arg("k")).await.unwrap_err();
        assert_eq!((error.code(), error.outcome()), (Some(kind), Outcome::Rejected), "{error}");
    }
    assert_eq!(echo(&client, "here").await.unwrap(), "here");
    assert_eq!((elsewhere.connections(), client.stats().connections), (0, 1), "no credentials go astray");
}

/// `s3 same+` in the forms in which it may leak: plain, percent-encoded, base64 of it and of `user:s3 same+`.
const SECRETS: [&str; 4] = ["s3 same+", "s3%20same%2B", "czMgc2FtZSs", "dXNlcjpzMyBzYW1lK"];

fn keeps_secrets(shown: &str) {
    for secret in SECRETS {
        assert!(!shown.contains(secret), "leaks {secret:?}: {shown}");
    }
}

#[tokio::test]
async fn x09_no_secret_in_any_text() {
    let refuses = |text: &'static str| {
        FakeServer::start(move |_, session| {
            session.command()?;
            session.send(text)?;
            session.stay_silent()
        })
    };
    let servers = [
        refuses("-WRONGPASS invalid username-password pair or user is disabled.\r\n"),
        refuses("-NOAUTH Authentication required.\r\n"),
        refuses("-ERR unknown command 'HELLO'\r\n"),
        refuses("-NOPROTO no\r\n"),
        refuses("garbage\r\n"),
        refuses("+OK\r\n"),
        FakeServer::start(|_, _| Ok(())),
    ];
    let secret_url = |url: &str| url.replace("redis://", "redis://user:s3%20same%2B@");
    for server in &servers {
        let config = config(&secret_url(&server.url()));
        keeps_secrets(&format!("{config} {config:?} {config:#?} {:?}", config.password));
        let error = Client::connect(config.clone()).await.unwrap_err();
        keeps_secrets(&format!("{error} {error:?} {error:#?} {}", error.detail()));
        let mut source = std::error::Error::source(&error);
        while let Some(inner) = source {
            keeps_secrets(&format!("{inner} {inner:?}"));
            source = inner.source();
        }
        let client = Client::lazy(config);
        let error = client.call_with(&Command::new("PING"), within(&client, SHORT)).await.unwrap_err();
        keeps_secrets(&format!(
            "{error} {error:?} {client:?} {} {:?}",
            client.server_address(),
            client.config()
        ));
    }
    for url in [
        "redis://user:s3%20same%2B@",
        "redis://user:s3%20same%2B@h:x",
        "redis://user:s3%20same%2B@h/x",
        "x://s3%20same%2B@h",
    ] {
        let error = url.parse::<Config>().unwrap_err();
        keeps_secrets(&format!("{error} {error:?}"));
    }
}

#[tokio::test]
async fn x10_untrusted_text_cannot_forge_log_lines() {
    let server = RedisServer::start();
    let client = connect(&server.url()).await;
    let evil = "EVIL\r\nINFO forged \x1b[31m\u{202e}";
    let clean = |shown: &str| assert!(!shown.chars().any(char::is_control), "{shown:?}");
    let eval = Command::new("EVAL").arg("return redis.error_reply(ARGV[1])").arg(0_u64).arg(evil);
    clean(&client.call(&eval).await.unwrap_err().to_string());
    client.call(&Command::new("SET").arg(evil).arg("theirs")).await.unwrap();
    let locks = LockManager::connect(&server.url()).await.unwrap();
    clean(&locks.lock(evil).acquire().await.unwrap_err().to_string());
}

#[tokio::test]
async fn x10_command_names_cannot_forge_log_lines() {
    let server = RedisServer::start();
    let client = connect(&server.url()).await;
    let error = client.call(&Command::new("EVIL\r\nINFO forged \x1b[31m").arg("x")).await.unwrap_err();
    assert!(!error.to_string().chars().any(char::is_control), "{error:?}");
}

#[tokio::test]
async fn x11_no_name_becomes_a_command() {
    let server = RedisServer::start();
    let client = connect(&server.url()).await;
    let names: [&[u8]; 8] = [
        b"a\r\n*1\r\n$8\r\nFLUSHALL\r\n",
        b"\r\n",
        b"",
        b"\0\0",
        b"\xff\xfe{}",
        b"}{",
        b"{a}{b}",
        b"$1\r\n'\"]] return redis.call('flushall')",
    ];
    let script = Script::new("return {redis.call('get', KEYS[1]), KEYS[1], ARGV[1]}", 1, 1);
    for (number, name) in names.into_iter().enumerate() {
        client.call(&Command::new("SET").arg(name).arg(name)).await.unwrap();
        let reply = client.eval(&script, &[name.into(), name.into()]).await.unwrap();
        let parts: Vec<_> =
            reply.as_array().unwrap().iter().map(|part| part.as_bytes().unwrap().to_vec()).collect();
        assert_eq!(parts, [name, name, name]);
        assert_eq!(server.cli(&["DBSIZE"]), (number + 1).to_string());
    }
    assert_eq!(client.stats().connections, 1);
}

#[tokio::test]
async fn x12_manager_ids_are_long_and_unique() {
    let server = RedisServer::start();
    let mut seen = std::collections::HashSet::new();
    for _ in 0..50 {
        let locks = LockManager::connect(&server.url()).await.unwrap();
        let digits = locks.id().chars().filter(char::is_ascii_hexdigit).count();
        assert!(digits >= 32, "128 bits, of which at least 122 are random: {}", locks.id());
        assert!(seen.insert(locks.id().to_owned()));
    }
}
