//! Broken networks.
//!
//! Connections are refused, silent, half-open, cut at any byte, slow or flapping.
//!
//! Covers rows N of the failure catalogue, and a server that is killed repeatedly. docs/reliability/faults.md maps rows to tests.

use std::error::Error as _;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use wheellock_client::layer::Retry;
use wheellock_client::{Client, Command, Config, ErrorKind, Outcome, Script};
use wheellock_tests::fault::{At, Direction, FakeServer, Fault, Gate, Proxy, Rule, Upstream};
use wheellock_tests::{RedisServer, eventually};

use crate::faults::{LONG, PATIENCE, config, connect, echo, within};

const SHORT: Duration = Duration::from_millis(100);

#[tokio::test]
async fn n01_refused_connection_recovers_with_server() {
    let server = RedisServer::start();
    let proxy = Proxy::before(&server);
    proxy.gate(Gate::Refuse);
    let error = Client::connect(config(&proxy.url())).await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Connect, Outcome::NotSent));
    assert!(error.to_string().contains(&proxy.addr().to_string()), "{error}");
    let source = error.source().and_then(|source| source.downcast_ref::<io::Error>());
    assert_eq!(source.map(io::Error::kind), Some(io::ErrorKind::ConnectionRefused));

    let client = Client::lazy(config(&proxy.url()));
    let ping = Command::new("PING");
    let error = client.call_with(&ping, within(&client, SHORT)).await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Timeout, Outcome::NotSent));
    assert!(error.to_string().contains("refused"), "says why: {error}");
    proxy.gate(Gate::Open);
    assert_eq!(echo(&client, "back").await.unwrap(), "back");
}

/// A listener with a full backlog drops SYNs, as a silent network does.
#[tokio::test]
async fn n02_dropped_syn_ends_at_connect_timeout() {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    socket.listen(0).unwrap();
    let addr = socket.local_addr().unwrap().as_socket().unwrap();
    let mut fillers = Vec::new();
    while let Ok(filler) = std::net::TcpStream::connect_timeout(&addr, SHORT) {
        fillers.push(filler);
        assert!(fillers.len() < 100, "the backlog never fills");
    }
    let mut config = config(&format!("redis://{addr}"));
    config.connect_timeout = SHORT;
    let error = Client::connect(config.clone()).await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Connect, Outcome::NotSent), "{error}");
    let client = Client::lazy(config);
    let error = client.call_with(&Command::new("PING"), within(&client, SHORT)).await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Timeout, Outcome::NotSent), "{error}");
}

#[tokio::test]
async fn n03_accepted_and_then_silence() {
    let server = RedisServer::start();
    let proxy = Proxy::before(&server);
    proxy.gate(Gate::Silent);
    let mut config = config(&proxy.url());
    config.connect_timeout = SHORT;
    let error = Client::connect(config.clone()).await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Connect, Outcome::NotSent), "{error}");
    assert!(error.detail().starts_with("connected, but"), "tells silence from unreachability: {error}");
    let client = Client::lazy(config);
    assert!(eventually(PATIENCE, async || proxy.counts().accepted >= 3).await, "tries again");
    proxy.gate(Gate::Open);
    assert_eq!(echo(&client, "talks").await.unwrap(), "talks");
}

/// Breaks the first connection of a client after byte 0, 1, 2, ... of the handshake, until the handshake succeeds.
async fn break_the_handshake_everywhere(direction: Direction, fault: Fault) {
    let server = RedisServer::start();
    let proxy = Proxy::before(&server);
    for byte in 0.. {
        assert!(byte < 10_000, "a handshake has an end");
        let before = proxy.counts();
        proxy.rule(Rule::new(direction, At::Byte(byte), fault.clone()).only_on(before.accepted));
        let client = Client::lazy(config(&proxy.url()));
        let text = byte.to_string();
        let reply = echo(&client, &text).await;
        let stats = client.stats();
        if stats.connections != 1 || proxy.counts().accepted == before.accepted + 1 || reply.is_err() {
            // The handshake succeeded: the fault struck after it, or not at all.
            assert!(byte > 100, "the handshake is longer than {byte} bytes: {reply:?}");
            break;
        }
        assert_eq!(reply.unwrap(), text);
        assert_eq!((stats.connections, stats.in_flight), (1, 0), "byte {byte}");
    }
}

#[tokio::test]
async fn n04_rst_at_every_handshake_byte() {
    break_the_handshake_everywhere(Direction::ToClient, Fault::Rst).await;
    break_the_handshake_everywhere(Direction::ToServer, Fault::Rst).await;
}

#[tokio::test]
async fn n04_fin_at_every_handshake_byte() {
    break_the_handshake_everywhere(Direction::ToClient, Fault::Fin).await;
}

/// Cuts the replies of three pipelined calls after every byte. Complete replies arrive; the other calls may have been executed.
async fn cut_three_replies_everywhere(fault: Fault) {
    let server = RedisServer::start();
    let proxy = Proxy::before(&server);
    let client = connect(&proxy.url()).await;
    // `$1\r\na\r\n`
    let length = 7;
    for cut in 1..=3 * length {
        let connections = client.stats().connections;
        proxy.rule(
            Rule::new(Direction::ToClient, At::Byte(cut), fault.clone()).only_on(proxy.counts().accepted - 1),
        );
        // No reply before all three calls are written. Otherwise a call would go to the next connection and succeed there.
        let commands = proxy.counts().commands;
        server.pause();
        let written = async {
            assert!(eventually(PATIENCE, async || proxy.counts().commands == commands + 3).await);
            server.resume();
        };
        let (a, b, c, ()) = tokio::join!(echo(&client, "a"), echo(&client, "b"), echo(&client, "c"), written);
        for (place, (result, text)) in [(a, "a"), (b, "b"), (c, "c")].into_iter().enumerate() {
            if (place as u64 + 1) * length <= cut {
                assert_eq!(result.unwrap(), text, "cut {cut}");
            } else {
                let error = result.unwrap_err();
                assert_eq!(
                    (error.kind(), error.outcome()),
                    (ErrorKind::ConnectionLost, Outcome::MaybeExecuted),
                    "cut {cut}: {error}"
                );
            }
        }
        assert!(
            eventually(PATIENCE, async || client.stats().connections == connections + 1 && client.is_ready())
                .await
        );
    }
    assert_eq!(client.stats().in_flight, 0);

    proxy.gate(Gate::Refuse);
    proxy.strike(Direction::ToClient, fault);
    assert!(eventually(PATIENCE, async || !client.is_ready()).await);
    let options = within(&client, SHORT);
    let error = client.call_with(&Command::new("SET").arg("unsent").arg("1"), options).await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Timeout, Outcome::NotSent));
    proxy.gate(Gate::Open);
    assert_eq!(echo(&client, "back").await.unwrap(), "back");
    assert_eq!(server.cli(&["EXISTS", "unsent"]), "0");
}

#[tokio::test]
async fn n05_fin_between_and_inside_frames() {
    cut_three_replies_everywhere(Fault::Fin).await;
}

#[tokio::test]
async fn n06_rst_between_and_inside_frames() {
    cut_three_replies_everywhere(Fault::Rst).await;
}

/// With the default settings, pending calls end by their own deadlines. With or without pending calls, the client replaces the dead socket
/// within five seconds.
#[tokio::test]
async fn n07_silent_drop_replaces_connection() {
    let server = RedisServer::start();
    let scenario = async |calling: bool| {
        let proxy = Proxy::before(&server);
        let client = Client::connect(proxy.url().parse().unwrap()).await.unwrap();
        proxy.strike(Direction::ToServer, Fault::Blackhole);
        proxy.strike(Direction::ToClient, Fault::Blackhole);
        let struck = Instant::now();
        if calling {
            let ping = Command::new("PING");
            for time in [SHORT, 2 * SHORT] {
                let begun = Instant::now();
                let error = client.call_with(&ping, within(&client, time)).await.unwrap_err();
                assert_eq!((error.kind(), error.outcome()), (ErrorKind::Timeout, Outcome::MaybeExecuted));
                assert!(begun.elapsed() < time + Duration::from_secs(1), "no hang past the deadline");
            }
        }
        let replaced = eventually(PATIENCE, async || client.stats().connections == 2).await;
        let after = struck.elapsed();
        println!("silent drop, calls under way: {calling}: replaced after {} ms", after.as_millis());
        assert!(replaced && after < Duration::from_secs(5), "{after:?}");
        assert_eq!(echo(&client, "heard").await.unwrap(), "heard");
    };
    tokio::join!(scenario(false), scenario(true));
}

#[tokio::test]
async fn n08_lost_replies_report_maybe_executed() {
    let server = RedisServer::start();
    let proxy = Proxy::before(&server);
    let mut config = config(&proxy.url());
    config.response_timeout = 3 * SHORT;
    let client = Client::connect(config).await.unwrap();
    proxy.strike(Direction::ToClient, Fault::Blackhole);
    let error = client.call(&Command::new("SET").arg("done").arg("1")).await.unwrap_err();
    assert_eq!(error.outcome(), Outcome::MaybeExecuted, "{error}");
    assert_eq!(server.cli(&["GET", "done"]), "1", "and it was");
    assert_eq!(echo(&client, "next").await.unwrap(), "next");
    assert_eq!(client.stats().connections, 2);
}

#[tokio::test]
async fn n09_blocked_write_keeps_reading() {
    let server = RedisServer::start();
    let proxy = Proxy::before(&server);
    let client = connect(&proxy.url()).await;
    let mut news = client.subscribe(b"news");
    news.settled().await;
    proxy.strike(Direction::ToServer, Fault::Stall);
    // Far more bytes than the socket buffers can hold.
    let big = vec![b'x'; 15 << 20];
    let blocked = tokio::spawn({
        let client = client.clone();
        async move {
            client
                .call(&Command::new("ECHO").arg(&big[..]))
                .await
                .map(|reply| reply.as_bytes().map(<[u8]>::len))
        }
    });
    let before = client.stats();
    let written = async || {
        let now = client.stats().bytes_written;
        now > before.bytes_written + (64 << 10)
    };
    assert!(eventually(PATIENCE, written).await, "the write has begun");
    for round in 0..100 {
        news.take_changed();
        let pushes = client.stats().pushes;
        assert_eq!(server.cli(&["PUBLISH", "news", &round.to_string()]), "1");
        news.changed().await;
        assert_eq!(client.stats().pushes, pushes + 1);
    }
    assert!(!blocked.is_finished());
    proxy.heal();
    assert_eq!(blocked.await.unwrap().unwrap(), Some(15 << 20));
    assert_eq!(client.stats().connections, 1);
}

#[tokio::test]
async fn n10_progress_never_moves_deadline() {
    let server = RedisServer::start();
    let proxy = Proxy::before(&server);
    let client = connect(&proxy.url()).await;
    // 40 bytes of payload, one every 20 ms. The reply is complete long after the deadline, but is never silent for 100 ms.
    proxy.strike(Direction::ToClient, Fault::Slice(1, Duration::from_millis(20)));
    let text = "x".repeat(40);
    let options = within(&client, 3 * SHORT);
    let error = client.call_with(&Command::new("ECHO").arg(&text), options).await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Timeout, Outcome::MaybeExecuted));
    proxy.heal();
    assert_eq!(echo(&client, "next").await.unwrap(), "next");
    assert_eq!(client.stats().connections, 1, "slow is not dead");
}

/// Frames that exceed the socket buffers, with a slow reader, so that writes stop at any byte.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn n11_partial_writes_tear_no_frame() {
    let server = RedisServer::start();
    let proxy = Proxy::before(&server);
    let client = connect(&proxy.url()).await;
    proxy.strike(Direction::ToServer, Fault::Slice(60_000, Duration::from_micros(200)));
    let tasks: Vec<_> = (0..8_u8)
        .map(|task| {
            let client = client.clone();
            tokio::spawn(async move {
                for round in 0..3 {
                    let payload = vec![task * 16 + round; (1 << 20) + usize::from(task)];
                    let reply = client.call(&Command::new("ECHO").arg(&payload[..])).await.unwrap();
                    assert!(reply.as_bytes() == Some(&payload[..]), "task {task} round {round}");
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let stats = client.stats();
    assert_eq!((stats.connections, stats.in_flight, stats.queued_bytes), (1, 0, 0));
}

/// The tokens and replies that a sink of detached results got. A result may lack a reply.
type Seen = Arc<Mutex<Vec<(u64, Option<i64>)>>>;

fn collect_detached(config: &mut Config) -> Seen {
    let seen = Seen::default();
    config.hooks.on_detached = Some(Arc::new({
        let seen = Arc::clone(&seen);
        move |results| {
            let results = results.drain(..);
            seen.lock()
                .unwrap()
                .extend(results.map(|done| (done.token, done.result.ok().and_then(|reply| reply.as_i64()))));
        }
    }));
    seen
}

#[tokio::test]
async fn n12_reply_burst_after_stall_keeps_order() {
    const CALLS: u64 = 100_000;
    let server = RedisServer::start();
    let proxy = Proxy::before(&server);
    let mut config = config(&proxy.url());
    config.max_in_flight = 200_000;
    // The stall lasts as long as a busy machine needs for a hundred thousand scripts.
    config.response_timeout = 10 * PATIENCE;
    let seen = collect_detached(&mut config);
    let client = Client::connect(config).await.unwrap();
    let script = Script::new("return tonumber(ARGV[1])", 0, 1);
    client.eval(&script, &[0_u64.into()]).await.unwrap();
    proxy.strike(Direction::ToClient, Fault::Stall);
    let commands = proxy.counts().commands;
    for token in 0..CALLS {
        let queued = client.queue_eval(&script, 0, &[token.into()], &Retry::default(), token, false);
        assert!(queued.is_some(), "call {token} found no room");
    }
    assert!(
        eventually(PATIENCE, async || proxy.counts().commands >= commands + CALLS).await,
        "everything was sent although nothing is answered"
    );
    let others = Arc::new(AtomicU64::new(0));
    let other = tokio::spawn({
        let others = Arc::clone(&others);
        async move {
            loop {
                others.fetch_add(1, Ordering::Relaxed);
                tokio::task::yield_now().await;
            }
        }
    });
    proxy.heal();
    assert!(eventually(PATIENCE, async || seen.lock().unwrap().len() as u64 == CALLS).await);
    assert!(others.load(Ordering::Relaxed) > 10, "other tasks of this one thread had their turns");
    other.abort();
    let seen = seen.lock().unwrap();
    assert!(
        seen.iter()
            .zip(0..)
            .all(|(&(token, reply), place)| token == place && reply == Some(place.cast_signed()))
    );
    assert_eq!(client.stats().connections, 1, "a stall within the response timeout condemns nothing");
}

#[tokio::test]
async fn n13_duplicate_or_mistyped_reply_ends_connection() {
    let server = RedisServer::start();
    let proxy = Proxy::before(&server);
    let client = connect(&proxy.url()).await;
    proxy.rule(Rule::new(Direction::ToClient, At::Reply(0), Fault::Duplicate).only_on(0));
    assert_eq!(echo(&client, "first").await.unwrap(), "first");
    assert!(eventually(PATIENCE, async || client.stats().connections == 2).await, "a reply too many");
    proxy.rule(Rule::new(Direction::ToClient, At::Push(0), Fault::Duplicate).only_on(1));
    let mut news = client.subscribe(b"news");
    assert!(eventually(PATIENCE, async || client.stats().connections == 3).await, "a confirmation too many");
    news.settled().await;
    proxy.rule(Rule::new(Direction::ToClient, At::Push(0), Fault::Replace(b"+OK\r\n".to_vec())).only_on(2));
    let mut weather = client.subscribe(b"weather");
    assert!(
        eventually(PATIENCE, async || client.stats().connections == 4).await,
        "a reply for a confirmation"
    );
    weather.settled().await;
    assert_eq!(echo(&client, "last").await.unwrap(), "last");
}

/// Under load, a caller cannot see that each reply belongs to the call before. The health check expects its own number in the reply.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn n13_shifted_replies_are_detected_under_load() {
    let server = RedisServer::start();
    for fault in [Fault::Swallow, Fault::Duplicate] {
        let proxy = Proxy::before(&server);
        let mut config = config(&proxy.url());
        config.heartbeat = SHORT;
        let client = Client::connect(config).await.unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let tasks: Vec<_> = (0..16)
            .map(|task| {
                let (client, stop) = (client.clone(), Arc::clone(&stop));
                tokio::spawn(async move {
                    let mut round = 0_u64;
                    while !stop.load(Ordering::Relaxed) {
                        let _perhaps_anothers = echo(&client, &format!("{task}:{round}")).await;
                        round += 1;
                    }
                })
            })
            .collect();
        assert!(eventually(PATIENCE, async || client.stats().calls > 1000).await);
        proxy.rule(Rule::new(Direction::ToClient, At::Reply(0), fault.clone()).only_on(0));
        let replaced = eventually(Duration::from_secs(5), async || client.stats().connections == 2).await;
        assert!(replaced, "{fault:?}: replies are shifted for ever");
        stop.store(true, Ordering::Relaxed);
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(echo(&client, "mine").await.unwrap(), "mine");
    }
}

#[tokio::test]
async fn n14_os_error_kind_is_kept() {
    let server = RedisServer::start();
    let proxy = Proxy::before(&server);
    let client = connect(&proxy.url()).await;
    proxy.rule(Rule::new(Direction::ToClient, At::Reply(0), Fault::Rst).only_on(0));
    let error = echo(&client, "x").await.unwrap_err();
    let source = error.source().and_then(|source| source.downcast_ref::<io::Error>());
    assert_eq!(source.map(io::Error::kind), Some(io::ErrorKind::ConnectionReset), "{error}");
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::ConnectionLost, Outcome::MaybeExecuted));
    // A closed peer answers further writes with a reset, too. The error goes to the call that meets the reset.
    assert_eq!(echo(&client, "next").await.unwrap(), "next");
}

#[tokio::test]
async fn n15_idle_disconnect_reconnects_without_error() {
    let server = RedisServer::builder().arg("timeout", "1").start();
    let mut config = config(&server.url());
    // Health checks would keep the connection busy.
    config.heartbeat = LONG;
    let client = Client::connect(config).await.unwrap();
    assert!(eventually(PATIENCE, async || client.stats().connections >= 2 && client.is_ready()).await);
    assert_eq!(echo(&client, "as ever").await.unwrap(), "as ever");
}

#[tokio::test]
async fn n16_resolved_addresses_are_all_tried() {
    let server = RedisServer::builder().tcp().start();
    // `localhost` usually is ::1 as well, where the server does not listen.
    let client = connect(&format!("redis://localhost:{}", server.addr().port())).await;
    assert_eq!(echo(&client, "x").await.unwrap(), "x");
    let error = Client::connect(config("redis://no-such-host.invalid:6379")).await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Connect, Outcome::NotSent), "{error}");
    assert!(error.to_string().contains("no-such-host.invalid"), "{error}");
}

/// Runs in a separate process, because the limit applies to the process.
#[test]
fn n17_no_file_descriptor_left() {
    const CHILD: &str = "WHEELLOCK_TEST_FEW_DESCRIPTORS";
    if std::env::var_os(CHILD).is_some() {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
            .block_on(without_descriptors());
        return;
    }
    let server = RedisServer::start();
    let output = std::process::Command::new("sh")
        .args([
            "-c",
            "ulimit -n 64 && exec \"$0\" --exact faults_network::n17_no_file_descriptor_left --nocapture",
        ])
        .arg(std::env::current_exe().unwrap())
        .env(CHILD, server.url())
        .output()
        .unwrap();
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

async fn without_descriptors() {
    let url = std::env::var("WHEELLOCK_TEST_FEW_DESCRIPTORS").unwrap();
    let mut config = config(&url);
    config.reconnect = (Duration::from_millis(10), Duration::from_millis(50));
    let mut hoard = Vec::new();
    while let Ok(file) = std::fs::File::open("/dev/null") {
        hoard.push(file);
    }
    let error = Client::connect(config.clone()).await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Connect, Outcome::NotSent), "{error}");
    assert!(error.to_string().contains("Too many open files"), "{error}");
    let client = Client::lazy(config);
    let error = client.call_with(&Command::new("PING"), within(&client, SHORT)).await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Timeout, Outcome::NotSent), "{error}");
    drop(hoard);
    assert_eq!(echo(&client, "room again").await.unwrap(), "room again");
}

/// Ten clients of a server that closes right after the handshake. Without a growing backoff they would reconnect thousands of times.
#[tokio::test]
async fn n18_flapping_server_gets_backoff() {
    let server = FakeServer::start(|_, session| session.handshake());
    let clients: Vec<_> = (0..10)
        .map(|_| {
            let mut config: Config = server.url().parse().unwrap();
            config.reconnect = (Duration::from_millis(5), Duration::from_millis(200));
            Client::lazy(config)
        })
        .collect();
    let begun = Instant::now();
    assert!(eventually(PATIENCE, async || server.connections() >= 150).await);
    // 15 attempts each. The mean pauses of full jitter between 5 and 200 ms add up to about a second. Chance does not explain a tenth of
    // it. Without backoff, the attempts would take a few milliseconds.
    assert!(begun.elapsed() > Duration::from_millis(100), "{:?}", begun.elapsed());
    drop(clients);
}

#[tokio::test]
async fn n19_queued_calls_keep_order_skip_expired() {
    const CALLS: u64 = 10_000;
    let server = RedisServer::start();
    let proxy = Proxy::before(&server);
    let mut config = config(&proxy.url());
    let seen = collect_detached(&mut config);
    config.max_in_flight = 10_100;
    let client = Client::connect(config).await.unwrap();
    proxy.gate(Gate::Refuse);
    proxy.strike(Direction::ToClient, Fault::Rst);
    assert!(eventually(PATIENCE, async || !client.is_ready()).await);
    let script = Script::new("return redis.call('incr', KEYS[1])", 1, 0);
    let queue = |tokens: std::ops::Range<u64>| {
        for token in tokens {
            assert!(
                client.queue_eval(&script, 1, &["n19".into()], &Retry::in_full(), token, false).is_some()
            );
        }
    };
    queue(0..CALLS / 2);
    let hasty: Vec<_> = (0..100)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move {
                let options = within(&client, SHORT);
                client.call_with(&Command::new("INCR").arg("hasty"), options).await
            })
        })
        .collect();
    assert!(eventually(PATIENCE, async || client.stats().in_flight as u64 == CALLS / 2 + 100).await);
    queue(CALLS / 2..CALLS);
    let error = client.call(&Command::new("PING")).await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Overloaded, Outcome::NotSent));
    for call in hasty {
        let error = call.await.unwrap().unwrap_err();
        assert_eq!((error.kind(), error.outcome()), (ErrorKind::Timeout, Outcome::NotSent));
    }
    proxy.gate(Gate::Open);
    assert!(eventually(PATIENCE, async || seen.lock().unwrap().len() as u64 == CALLS).await);
    let in_order = (0..CALLS).map(|token| (token, Some(token.cast_signed() + 1)));
    assert!(seen.lock().unwrap().iter().copied().eq(in_order));
    assert_eq!(server.cli(&["EXISTS", "hasty"]), "0");
}

/// INCR, cut after every byte of the request and of the reply, by FIN and by RST, is executed at most once.
#[tokio::test]
async fn n20_nothing_is_ever_replayed() {
    let server = RedisServer::start();
    let mut cli = server.connect().unwrap();
    let proxy = Proxy::before(&server);
    let client = connect(&proxy.url()).await;
    let request = "*2\r\n$4\r\nINCR\r\n$1\r\nn\r\n".len() as u64;
    let reply = ":1\r\n".len() as u64;
    let places = (1..=request)
        .map(|cut| (Direction::ToServer, cut))
        .chain((1..=reply).map(|cut| (Direction::ToClient, cut)));
    for (direction, cut) in places {
        for fault in [Fault::Fin, Fault::Rst] {
            cli.query(&["DEL", "n"]).unwrap();
            let connections = client.stats().connections;
            let current = proxy.counts().accepted - 1;
            proxy.rule(Rule::new(direction, At::Byte(cut), fault.clone()).only_on(current));
            let result = client.call(&Command::new("INCR").arg("n")).await;
            assert!(
                eventually(PATIENCE, async || client.stats().connections > connections && client.is_ready())
                    .await
            );
            // When a call on the new connection has succeeded, the bytes of the old connection have arrived.
            assert_eq!(echo(&client, "barrier").await.unwrap(), "barrier");
            let count = cli.query(&["GET", "n"]).unwrap().to_string();
            match result {
                Ok(value) => assert_eq!((value.as_i64(), count.as_str()), (Some(1), "1")),
                Err(error) => {
                    assert_eq!(error.outcome(), Outcome::MaybeExecuted, "{direction:?} {cut} {fault:?}");
                    assert!(count == "1" || count == "(nil)", "{direction:?} {cut} {fault:?}: {count}");
                }
            }
        }
    }
}

/// The server's end stops reading, so that the kernel keeps the written bytes. A kernel still delivers the bytes of a closed socket.
#[tokio::test]
async fn n20_lost_call_never_arrives_after_next() {
    let (next_came, next) = std::sync::mpsc::channel();
    let next = Mutex::new(next);
    let arrived = Arc::new(AtomicU64::new(0));
    let server = FakeServer::ready({
        let arrived = Arc::clone(&arrived);
        move |number, session| {
            if number > 0 {
                return session.serve();
            }
            next.lock().unwrap().recv_timeout(PATIENCE).map_err(io::Error::other)?;
            arrived.store(session.read_to_end(), Ordering::Release);
            Ok(())
        }
    });
    let mut config = config(&server.url());
    config.response_timeout = SHORT;
    let client = Client::connect(config).await.unwrap();
    let before = client.stats().bytes_written;
    let large = vec![b'x'; 15 << 20];
    let lost = client.call(&Command::new("ECHO").arg(&large[..])).await.unwrap_err();
    assert_eq!(lost.outcome(), Outcome::MaybeExecuted, "{lost}");
    let written = client.stats().bytes_written - before;
    assert_eq!(echo(&client, "next").await.unwrap(), "next");
    next_came.send(()).unwrap();
    assert!(eventually(PATIENCE, async || arrived.load(Ordering::Acquire) > 0).await);
    let arrived = arrived.load(Ordering::Acquire);
    assert!(arrived < written, "all {written} bytes arrived: {arrived}");
}

#[tokio::test]
async fn n21_reconnect_reconciles_subscriptions_in_flight() {
    let server = RedisServer::start();
    let proxy = Proxy::before(&server);
    let client = connect(&proxy.url()).await;
    let on = |connection, name, fault| {
        Rule::new(Direction::ToServer, At::Command(name, 0), fault).only_on(connection)
    };

    proxy.rule(on(0, "SUBSCRIBE", Fault::Rst));
    let mut news = client.subscribe(b"news");
    news.settled().await;
    assert!(news.is_confirmed());
    assert_eq!(
        (client.stats().connections, server.cli(&["PUBSUB", "NUMSUB", "news"])),
        (2, "news\n1".to_owned())
    );

    proxy.rule(on(1, "UNSUBSCRIBE", Fault::Rst));
    drop(news);
    assert!(eventually(PATIENCE, async || client.stats().connections == 3 && client.is_ready()).await);
    assert_eq!(echo(&client, "barrier").await.unwrap(), "barrier");
    assert_eq!(
        server.cli(&["PUBSUB", "CHANNELS"]),
        "",
        "an unsubscription under way never becomes the opposite"
    );

    proxy.rule(on(2, "SUBSCRIBE", Fault::Rst));
    drop(client.subscribe(b"news"));
    assert!(eventually(PATIENCE, async || client.stats().connections == 4 && client.is_ready()).await);
    assert_eq!(echo(&client, "barrier").await.unwrap(), "barrier");
    assert_eq!(server.cli(&["PUBSUB", "CHANNELS"]), "", "nobody wants it any more");
}

/// The server behind an address changes, and the client reaches the new server.
#[tokio::test]
async fn n21_replaced_server_gets_subscriptions_and_scripts() {
    let (old, new) = (RedisServer::start(), RedisServer::start());
    let proxy = Proxy::before(&old);
    let client = connect(&proxy.url()).await;
    let mut news = client.subscribe(b"news");
    news.settled().await;
    news.take_changed();
    let script = Script::new("return redis.call('set', KEYS[1], '1')", 1, 0);
    client.eval(&script, &["k".into()]).await.unwrap();
    proxy.move_upstream(Upstream::Unix(new.socket_path()));
    proxy.strike(Direction::ToClient, Fault::Fin);
    news.changed().await;
    news.settled().await;
    assert_eq!(new.cli(&["PUBSUB", "NUMSUB", "news"]), "news\n1");
    client.eval(&script, &["k".into()]).await.unwrap();
    assert_eq!(new.cli(&["GET", "k"]), "1", "the new server was given the script");
}

/// `kill -9` of the server every two seconds, under 64 tasks. `WHEELLOCK_KILL_SECONDS` sets the duration.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_killed_every_two_seconds() {
    const TASKS: usize = 64;
    const DEADLINE: Duration = Duration::from_secs(1);
    const BUCKET: Duration = Duration::from_millis(10);
    let seconds =
        std::env::var("WHEELLOCK_KILL_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(6_u64);
    let mut server = RedisServer::start();
    let client = Client::connect(server.url().parse().unwrap()).await.unwrap();
    let begun = Instant::now();
    let buckets: Arc<Vec<AtomicU64>> =
        Arc::new((0..seconds * 100 + 2000).map(|_| AtomicU64::new(0)).collect());
    let stop = Arc::new(AtomicBool::new(false));
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let (client, buckets, stop) = (client.clone(), Arc::clone(&buckets), Arc::clone(&stop));
            tokio::spawn(async move {
                let (mut round, mut failed) = (0_u64, 0_u64);
                let mut slowest = Duration::ZERO;
                while !stop.load(Ordering::Relaxed) {
                    let text = format!("{task}:{round}");
                    round += 1;
                    let from = Instant::now();
                    let options = within(&client, DEADLINE);
                    match client.call_with(&Command::new("ECHO").arg(&text), options).await {
                        Ok(reply) => {
                            assert_eq!(reply.as_str(), Some(text.as_str()), "another caller's reply");
                            let place = begun.elapsed().as_millis() / BUCKET.as_millis();
                            if let Some(bucket) =
                                usize::try_from(place).ok().and_then(|place| buckets.get(place))
                            {
                                bucket.fetch_add(1, Ordering::Relaxed);
                            }
                        }
                        Err(error) => {
                            let typed = matches!(
                                (error.kind(), error.outcome()),
                                (ErrorKind::ConnectionLost, Outcome::MaybeExecuted)
                                    | (ErrorKind::Timeout, Outcome::NotSent | Outcome::MaybeExecuted)
                            );
                            assert!(typed, "{error:?}");
                            failed += 1;
                        }
                    }
                    slowest = slowest.max(from.elapsed());
                }
                (round, failed, slowest)
            })
        })
        .collect();

    let mut pongs = Vec::new();
    let mut kills = Vec::new();
    while begun.elapsed() + Duration::from_secs(2) <= Duration::from_secs(seconds) {
        let next = begun + Duration::from_secs(2) * u32::try_from(kills.len() + 1).unwrap();
        tokio::time::sleep_until(next.into()).await;
        kills.push(begun.elapsed());
        server = tokio::task::spawn_blocking(move || {
            server.restart();
            server
        })
        .await
        .unwrap();
        pongs.push(begun.elapsed());
    }
    let recovered = eventually(Duration::from_secs(5), async || client.is_ready()).await;
    assert!(recovered);
    tokio::time::sleep_until((begun + pongs.last().unwrap().to_owned() + Duration::from_secs(2)).into())
        .await;
    stop.store(true, Ordering::Relaxed);
    let (mut calls, mut failed, mut slowest) = (0, 0, Duration::ZERO);
    for task in tasks {
        let (round, errors, slow) = task.await.unwrap();
        calls += round;
        failed += errors;
        slowest = slowest.max(slow);
    }

    let at = |time: Duration| usize::try_from(time.as_millis() / BUCKET.as_millis()).unwrap();
    let rate = |from: usize, to: usize| -> f64 {
        let sum: u64 = buckets[from..to].iter().map(|bucket| bucket.load(Ordering::Relaxed)).sum();
        sum as f64 / (to - from) as f64
    };
    // Each recovery is compared with the second before its own kill, because the speed of a shared machine drifts.
    let rounds: Vec<_> = std::iter::zip(&kills, &pongs)
        .map(|(&kill, &pong)| {
            let (kill, pong) = (at(kill), at(pong));
            let before = rate(kill.saturating_sub(100), kill);
            let windows = || (pong..pong + 190).map(|from| (from - pong, rate(from, from + 5) / before));
            let back = windows().find(|&(_, share)| share >= 0.95);
            let best = windows().map(|(_, share)| share).fold(0.0, f64::max);
            (back.map(|(buckets, _)| buckets as u128 * BUCKET.as_millis()), best)
        })
        .collect();
    let mut recoveries: Vec<_> = rounds.iter().filter_map(|&(back, _)| back).collect();
    recoveries.sort_unstable();
    println!(
        "{} kills: {calls} calls, {failed} typed errors, slowest call {} ms; 95 % of the throughput before the kill again \
         after the first PONG, in ms, of {} recoveries: {recoveries:?}; {} connections",
        kills.len(),
        slowest.as_millis(),
        rounds.len(),
        client.stats().connections,
    );
    assert!(slowest < DEADLINE + Duration::from_secs(2), "a call hung past its deadline: {slowest:?}");
    assert_eq!(client.stats().in_flight, 0);
    // Generous, because other programs may use the machine. The printed figures are the measurement.
    assert!(rounds.iter().all(|&(_, best)| best >= 0.25), "never back within two seconds: {rounds:?}");
}
