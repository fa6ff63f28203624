//! Real servers in bad states, and their error replies.
//!
//! Covers rows S of the failure catalogue. docs/reliability/faults.md maps rows to tests.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use wheellock::LockManager;
use wheellock_client::{Client, Command, Config, ConnectionState, Error, ErrorKind, Outcome, Script};
use wheellock_tests::fault::{Direction, FakeServer, Fault, Proxy};
use wheellock_tests::{Cli, RedisServer, eventually};

use crate::faults::{LONG, PATIENCE, within};

const SHORT: Duration = Duration::from_millis(100);

fn config(url: &str) -> Config {
    let mut config: Config = url.parse().expect("the support library makes valid URLs");
    config.response_timeout = LONG;
    config
}

async fn connect(url: &str) -> Client {
    Client::connect(config(url)).await.expect("the server is up")
}

async fn call(client: &Client, words: &[&str]) -> Result<String, Error> {
    let command = Command::new(words[0]).args(words[1..].iter().copied());
    let reply = client.call(&command).await?;
    Ok(reply.as_i64().map_or_else(|| reply.as_str().unwrap_or("nil").to_owned(), |number| number.to_string()))
}

/// Starts a call without a reply, and waits until the server has it.
async fn block(client: &Client, server: &RedisServer) -> tokio::task::JoinHandle<Result<String, Error>> {
    let task = tokio::spawn({
        let client = client.clone();
        // The server does not have a replica, so WAIT blocks.
        async move { call(&client, &["WAIT", "1", "0"]).await }
    });
    assert!(eventually(PATIENCE, async || server.cli(&["CLIENT", "LIST"]).contains("cmd=wait")).await);
    task
}

async fn lost(task: tokio::task::JoinHandle<Result<String, Error>>) {
    let error = task.await.unwrap().unwrap_err();
    assert_eq!(
        (error.kind(), error.outcome()),
        (ErrorKind::ConnectionLost, Outcome::MaybeExecuted),
        "{error}"
    );
}

async fn reconnected(client: &Client, connections: u64) -> bool {
    eventually(PATIENCE, async || client.stats().connections >= connections && client.is_ready()).await
}

/// Checks that a server with room for three clients refuses the fourth client, which gets the reason. The fourth client connects after
/// another client has left.
async fn refuses_a_fourth_client(server: RedisServer) {
    let crowd: Vec<_> = (0..3)
        .map(|_| {
            let mut cli = server.connect().unwrap();
            cli.query(&["PING"]).unwrap();
            cli
        })
        .collect();
    for _ in 0..20 {
        let error = Client::connect(config(&server.url())).await.unwrap_err();
        assert_eq!((error.kind(), error.outcome()), (ErrorKind::Connect, Outcome::NotSent));
        assert!(error.to_string().contains("max number of clients reached"), "{error}");
    }
    let client = Client::lazy(config(&server.url()));
    let ping = Command::new("PING");
    let error = client.call_with(&ping, within(&client, SHORT)).await.unwrap_err();
    assert_eq!(error.outcome(), Outcome::NotSent, "{error}");
    drop(crowd);
    assert_eq!(call(&client, &["ECHO", "room"]).await.unwrap(), "room");
}

#[tokio::test]
async fn s01_no_room_for_another_client() {
    refuses_a_fourth_client(RedisServer::builder().arg("maxclients", "3").tcp().start()).await;
}

#[tokio::test]
async fn s01_full_server_rejects_unix_client() {
    refuses_a_fourth_client(RedisServer::builder().arg("maxclients", "3").start()).await;
}

#[tokio::test]
async fn s02_client_kill_loses_call_in_flight() {
    let server = RedisServer::start();
    let client = connect(&server.url()).await;
    let blocked = block(&client, &server).await;
    let id = client.server_info().unwrap().connection_id.to_string();
    assert_eq!(server.cli(&["CLIENT", "KILL", "ID", &id]), "1");
    lost(blocked).await;
    assert_eq!(call(&client, &["ECHO", "next"]).await.unwrap(), "next");
}

#[tokio::test]
async fn s03_output_limit_kill_reports_maybe_executed() {
    let server = RedisServer::start();
    let client = connect(&server.url()).await;
    assert_eq!(server.cli(&["SET", "big", &"x".repeat(1 << 20)]), "OK");
    let limit = "normal 100000 0 0";
    assert_eq!(server.cli(&["CONFIG", "SET", "client-output-buffer-limit", limit]), "OK");
    let script = Script::new("redis.call('incr', 'executed') return redis.call('get', 'big')", 0, 0);
    let calls: Vec<_> = (0..10)
        .map(|_| {
            let (client, text) = (client.clone(), script.text());
            tokio::spawn(async move { call(&client, &["EVAL", text, "0"]).await })
        })
        .collect();
    for task in calls {
        let error = task.await.unwrap().unwrap_err();
        assert_eq!(error.outcome(), Outcome::MaybeExecuted, "{error}");
    }
    assert!(server.cli(&["GET", "executed"]).parse::<u32>().unwrap() > 0, "and some were");
    assert_eq!(call(&client, &["ECHO", "next"]).await.unwrap(), "next");
}

#[tokio::test]
async fn s04_killed_slow_subscriber_resubscribes() {
    let server = RedisServer::start();
    assert_eq!(server.cli(&["CONFIG", "SET", "client-output-buffer-limit", "pubsub 50000 0 0"]), "OK");
    let proxy = Proxy::before(&server);
    let client = connect(&proxy.url()).await;
    let mut news = client.subscribe(b"news");
    news.settled().await;
    news.take_changed();
    proxy.strike(Direction::ToClient, Fault::Stall);
    let mut cli = server.connect().unwrap();
    let message = "x".repeat(64 << 10);
    let killed = async || cli.query(&["PUBLISH", "news", &message]).unwrap().to_string() == "0";
    assert!(eventually(PATIENCE, killed).await, "the server gives up on the reader");
    proxy.heal();
    assert!(reconnected(&client, 2).await);
    news.changed().await;
    news.settled().await;
    assert_eq!(server.cli(&["PUBSUB", "NUMSUB", "news"]), "news\n1");
}

#[tokio::test]
async fn s05_paused_writes_time_out_as_unhealthy() {
    let server = RedisServer::start();
    let mut config = config(&server.url());
    config.response_timeout = 2 * SHORT;
    config.connect_timeout = 2 * SHORT;
    let client = Client::connect(config).await.unwrap();
    assert_eq!(server.cli(&["CLIENT", "PAUSE", "60000", "WRITE"]), "OK");
    assert_eq!(server.cli(&["PING"]), "PONG", "reads and PING are answered as ever");
    let set = Command::new("SET").arg("k").arg("1");
    let error = client.call_with(&set, within(&client, SHORT)).await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Timeout, Outcome::MaybeExecuted), "{error}");
    assert!(eventually(PATIENCE, async || !client.is_ready()).await, "a connection without writes is no use");
    let error = client.call_with(&set, within(&client, 4 * SHORT)).await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Timeout, Outcome::NotSent), "{error}");
    assert_eq!(server.cli(&["CLIENT", "UNPAUSE"]), "OK");
    assert!(reconnected(&client, 2).await);
    assert_eq!(call(&client, &["SET", "k", "2"]).await.unwrap(), "OK");
}

#[tokio::test]
async fn s06_full_pause_causes_no_storm() {
    let server = RedisServer::start();
    let patient = connect(&server.url()).await;
    let mut config = config(&server.url());
    config.response_timeout = SHORT;
    config.connect_timeout = SHORT;
    let hasty = Client::connect(config).await.unwrap();
    let received = |server: &RedisServer| -> u64 {
        let info = server.cli(&["INFO", "stats"]);
        let line = info.lines().find_map(|line| line.strip_prefix("total_connections_received:"));
        line.unwrap().trim().parse().unwrap()
    };
    let before = received(&server);
    assert_eq!(server.cli(&["CLIENT", "PAUSE", "700", "ALL"]), "OK");
    let (waited, failed) =
        tokio::join!(call(&patient, &["ECHO", "in the end"]), call(&hasty, &["ECHO", "too late"]));
    assert_eq!(waited.unwrap(), "in the end");
    assert_eq!(failed.unwrap_err().outcome(), Outcome::MaybeExecuted);
    assert_eq!(patient.stats().connections, 1);
    // The calls of `hasty` time out after 100 ms, and the pause between two attempts may be longer.
    let again = async || call(&hasty, &["ECHO", "again"]).await.is_ok_and(|text| text == "again");
    assert!(eventually(PATIENCE, again).await);
    // 700 ms in attempts of 100 ms, and the two checks of this test.
    let attempts = received(&server) - before;
    assert!(attempts <= 20, "{attempts} connections");
}

#[tokio::test]
async fn s07_busy_reply_keeps_connection() {
    let server = RedisServer::builder().arg("busy-reply-threshold", "50").start();
    let mut config = config(&server.url());
    config.heartbeat = Duration::from_millis(20);
    let client = Client::connect(config).await.unwrap();
    let mut cli = server.connect().unwrap();
    cli.send(&["EVAL", "while true do end", "0"]).unwrap();
    let busy = async || match call(&client, &["PING"]).await {
        Err(error) if error.code() == Some("BUSY") => {
            assert_eq!((error.kind(), error.outcome()), (ErrorKind::Server, Outcome::Rejected));
            true
        }
        other => {
            other.unwrap();
            false
        }
    };
    assert!(eventually(PATIENCE, busy).await);
    // The server replies to health checks with BUSY as well.
    let read = client.stats().bytes_read;
    assert!(eventually(PATIENCE, async || client.stats().bytes_read > read + 500).await);
    assert_eq!(server.cli(&["SCRIPT", "KILL"]), "OK");
    // The script ends a moment after the kill.
    let free = async || call(&client, &["ECHO", "free"]).await.is_ok_and(|text| text == "free");
    assert!(eventually(PATIENCE, free).await);
    assert_eq!(client.stats().connections, 1);
}

/// A script also blocks SUBSCRIBE and UNSUBSCRIBE. The client remembers the commands that the server rejects meanwhile.
#[tokio::test]
async fn s07_channels_reconcile_after_busy_server() {
    let server = RedisServer::builder().arg("busy-reply-threshold", "50").start();
    let mut config = config(&server.url());
    config.heartbeat = Duration::from_millis(20);
    let client = Client::connect(config).await.unwrap();
    let mut old = client.subscribe(b"old");
    old.settled().await;
    let mut cli = server.connect().unwrap();
    cli.send(&["EVAL", "while true do end", "0"]).unwrap();
    let busy = async || call(&client, &["PING"]).await.is_err_and(|error| error.code() == Some("BUSY"));
    assert!(eventually(PATIENCE, busy).await);
    drop(old);
    let mut new = client.subscribe(b"new");
    // Both commands precede this point.
    assert!(busy().await);
    assert_eq!((new.is_confirmed(), new.refusal()), (false, None));
    assert_eq!(server.cli(&["SCRIPT", "KILL"]), "OK");
    let numbers = || server.cli(&["PUBSUB", "NUMSUB", "old", "new"]) == "old\n0\nnew\n1";
    assert!(eventually(PATIENCE, async || numbers()).await);
    assert!(new.take_changed(), "what was asked meanwhile came before it");
    assert_eq!(client.stats().connections, 1);
}

#[tokio::test]
async fn s08_killed_and_unkillable_scripts() {
    let mut server = RedisServer::builder().arg("busy-reply-threshold", "20").start();
    let (client, killer) = (connect(&server.url()).await, connect(&server.url()).await);
    let endless = |text: &'static str| {
        let client = client.clone();
        tokio::spawn(async move { client.eval(&Script::new(text, 1, 0), &["k".into()]).await })
    };
    let kill = async || call(&killer, &["SCRIPT", "KILL"]).await;
    let running = endless("while true do end");
    assert!(eventually(PATIENCE, async || kill().await.is_ok()).await);
    let error = running.await.unwrap().unwrap_err();
    assert_eq!(
        (error.kind(), error.outcome()),
        (ErrorKind::Server, Outcome::Rejected),
        "it had written nothing"
    );
    assert!(error.to_string().contains("killed by user"), "{error}");

    let running = endless("redis.call('set', KEYS[1], '1') while true do end");
    let unkillable = async || {
        kill().await.is_err_and(|error| {
            assert_eq!(error.outcome(), Outcome::Rejected);
            error.code() == Some("UNKILLABLE")
        })
    };
    assert!(eventually(PATIENCE, unkillable).await);
    server.kill();
    let error = running.await.unwrap().unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::ConnectionLost, Outcome::MaybeExecuted));
}

const LEASE: Duration = Duration::from_secs(2);

async fn locks(server: &RedisServer) -> LockManager {
    LockManager::builder(&server.url()).watchdog_lease(LEASE).connect().await.unwrap()
}

fn time_to_live(server: &RedisServer, key: &str) -> i64 {
    server.cli(&["PTTL", key]).parse().unwrap()
}

/// Returns true if the watchdog has renewed the lock: its time to live grew between two checks.
async fn renewed(server: &RedisServer, key: &str) -> bool {
    let mut last = time_to_live(server, key);
    eventually(PATIENCE, async || {
        let now = time_to_live(server, key);
        std::mem::replace(&mut last, now) < now
    })
    .await
}

#[tokio::test]
async fn s09_oom_rejects_only_new_locks() {
    let server = RedisServer::start();
    let locks = locks(&server).await;
    let guard = locks.lock("held").acquire().await.unwrap();
    assert_eq!(server.cli(&["CONFIG", "SET", "maxmemory", "1"]), "OK");
    let error = locks.lock("new").try_acquire().await.unwrap_err();
    assert!(error.to_string().contains("OOM"), "{error}");
    let error = call(locks.client(), &["SET", "k", "v"]).await.unwrap_err();
    assert_eq!((error.code(), error.outcome()), (Some("OOM"), Outcome::Rejected));
    assert!(renewed(&server, "held").await);
    assert!(guard.is_valid());
    guard.release().await.unwrap();
    assert_eq!(server.cli(&["EXISTS", "held"]), "0");
}

/// Holds of every kind are renewed, and released hold by hold.
#[tokio::test]
async fn s09_oom_renews_and_releases_every_kind() {
    let server = RedisServer::start();
    let locks = locks(&server).await;
    let sides = locks.read_write_lock("sides");
    let fenced = locks.fenced_lock("fenced");
    let kinds = [locks.lock("plain"), locks.fair_lock("fair"), fenced.as_lock().clone(), sides.write()];
    let mut holds = Vec::new();
    for lock in
        kinds.into_iter().chain((0..3).map(|number| locks.read_write_lock(&format!("{number}")).read()))
    {
        let outer = lock.acquire().await.unwrap();
        let lock = lock.with_owner(outer.owner());
        // Two of the inner holds are released at once.
        let inner = [lock.acquire().await.unwrap(), lock.acquire().await.unwrap()];
        holds.push((outer, inner));
    }
    let reads = sides.read().with_owner(holds[3].0.owner()).acquire().await.unwrap();
    let (semaphore, permits) = (locks.semaphore("pool"), locks.permit_semaphore("permits"));
    assert!(semaphore.try_set_permits(5).await.unwrap() && permits.try_set_permits(2).await.unwrap());
    let mut counted = semaphore.acquire(3).await.unwrap();
    let (permit, other) = (permits.acquire().await.unwrap(), permits.acquire().await.unwrap());
    assert_eq!(server.cli(&["CONFIG", "SET", "maxmemory", "1"]), "OK");

    for (outer, inner) in holds {
        let name = outer.name().to_owned();
        outer.renew().await.unwrap_or_else(|error| panic!("{name}: {error}"));
        let [one, two] = inner;
        let (one, two) = tokio::join!(one.release(), two.release());
        for released in [one, two] {
            released.unwrap_or_else(|error| panic!("{name}: {error}"));
        }
        assert!(matches!(outer.release().await, Ok(())), "{name}");
    }
    assert_eq!(server.cli(&["HGET", "sides", "mode"]), "read", "the writer reads on");
    reads.renew().await.unwrap();
    reads.release().await.unwrap();

    permit.renew().await.unwrap();
    permit.release().await.unwrap();
    assert!(permits.release(other.id()).await.unwrap());
    counted.split(1).unwrap().release().await.unwrap();
    counted.release().await.unwrap();
    assert_eq!((server.cli(&["GET", "pool"]), server.cli(&["GET", "permits"])), ("5".into(), "2".into()));
}

#[tokio::test]
async fn s10_evicted_lock_is_reported_lost() {
    let server = RedisServer::start();
    let locks = locks(&server).await;
    let guard = locks.lock("held").acquire().await.unwrap();
    for (name, value) in [("maxmemory-policy", "volatile-ttl"), ("maxmemory", "1")] {
        assert_eq!(server.cli(&["CONFIG", "SET", name, value]), "OK");
    }
    // Every write command now evicts keys with a time to live, and only the lock has one.
    let evicted = async || {
        let _refused = server.cli(&["SET", "filler", "x"]);
        server.cli(&["EXISTS", "held"]) == "0"
    };
    assert!(eventually(PATIENCE, evicted).await);
    guard.lost().await;
    assert!(!guard.is_valid());
    assert_eq!(server.cli(&["EXISTS", "held"]), "0", "never renewed into being");
}

#[tokio::test]
async fn s11_loading_server_is_not_ready() {
    let mut server = RedisServer::builder()
        .arg("key-load-delay", "4000")
        .arg("loading-process-events-interval-bytes", "1024")
        .start();
    let client = connect(&server.url()).await;
    for key in 0..500 {
        assert_eq!(server.cli(&["SET", &key.to_string(), &"x".repeat(200)]), "OK");
    }
    assert_eq!(server.cli(&["SAVE"]), "OK");
    let (url, socket) = (server.url(), server.socket_path());
    server.kill();
    let restarted = tokio::task::spawn_blocking(move || {
        server.restart();
        server
    });
    let loading = async || {
        let reply = Cli::connect_unix(&socket).and_then(|mut cli| cli.query(&["PING"]));
        reply.is_ok_and(|reply| reply.to_string().contains("LOADING"))
    };
    assert!(eventually(PATIENCE, loading).await);
    // Until the first attempt after the restart, the error reports a refused connection.
    let told = async || {
        let ping = Command::new("PING");
        let error = client.call_with(&ping, within(&client, SHORT)).await.expect_err("it is loading");
        assert_eq!((error.kind(), error.outcome()), (ErrorKind::Timeout, Outcome::NotSent));
        error.to_string().contains("LOADING")
    };
    assert!(eventually(PATIENCE, told).await);
    let (kept, fresh) = tokio::join!(call(&client, &["GET", "7"]), Client::connect(config(&url)));
    assert_eq!(kept.unwrap().len(), 200, "the first thing that was answered is the data");
    assert!(fresh.unwrap().is_ready());
    drop(restarted.await.unwrap());
}

#[tokio::test]
async fn s12_a_demoted_primary_is_left() {
    let server = RedisServer::start();
    let client = connect(&server.url()).await;
    assert_eq!(server.cli(&["REPLICAOF", "127.0.0.1", "1"]), "OK");
    let error = call(&client, &["SET", "k", "1"]).await.unwrap_err();
    assert_eq!((error.code(), error.outcome()), (Some("READONLY"), Outcome::Rejected));
    assert!(eventually(PATIENCE, async || !client.is_ready()).await, "the socket is closed");
    let options = within(&client, SHORT);
    let error = client.call_with(&Command::new("SET").arg("k").arg("2"), options).await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Timeout, Outcome::NotSent));
    assert!(error.to_string().contains("replica"), "{error}");
    assert_eq!(server.cli(&["REPLICAOF", "NO", "ONE"]), "OK");
    assert_eq!(call(&client, &["SET", "k", "3"]).await.unwrap(), "OK");
}

/// A read-only user learns of the demotion, too, and the server's log gets no entry about a rejected command.
#[tokio::test]
async fn s12_lone_reader_learns_of_demotion() {
    let server = RedisServer::builder().tcp().start();
    assert_eq!(
        server.cli(&["ACL", "SETUSER", "app", "on", ">sesame", "~*", "+get", "+ping", "+client"]),
        "OK"
    );
    let mut config = config(&server.tcp_url().replace("redis://", "redis://app:sesame@"));
    config.heartbeat = Duration::from_millis(20);
    let client = Client::connect(config).await.unwrap();
    assert_eq!(server.cli(&["ACL", "LOG", "RESET"]), "OK");
    let greetings = || {
        let stats = server.cli(&["INFO", "commandstats"]);
        let hello = stats.split_once("cmdstat_hello:calls=").unwrap().1;
        hello.split(',').next().unwrap().parse::<u64>().unwrap()
    };
    let before = greetings();
    assert!(eventually(PATIENCE, async || greetings() >= before + 3).await, "the role is asked for");
    assert_eq!((client.stats().connections, server.cli(&["ACL", "LOG"])), (1, String::new()));
    assert_eq!(server.cli(&["REPLICAOF", "127.0.0.1", "1"]), "OK");
    let told = eventually(PATIENCE, async || match client.state() {
        ConnectionState::Connecting { last_error: Some(error), .. } => {
            error.to_string().contains("it is a replica")
        }
        _ => false,
    });
    assert!(told.await, "{:?}", client.state());
    assert_eq!(server.cli(&["REPLICAOF", "NO", "ONE"]), "OK");
    assert!(eventually(PATIENCE, async || client.is_ready()).await);
}

#[tokio::test]
async fn s13_rejected_credentials_fail_fast_without_storm() {
    let server = RedisServer::builder().tcp().start();
    let user = ["ACL", "SETUSER", "app", "on", ">sesame", "~*", "+@all"];
    assert_eq!(server.cli(&user), "OK");
    let url = server.tcp_url().replace("redis://", "redis://app:sesame@");
    let client = connect(&url).await;
    let blocked = block(&client, &server).await;
    assert_eq!(server.cli(&["ACL", "DELUSER", "app"]), "1");
    lost(blocked).await;
    let proxied = Proxy::start(wheellock_tests::fault::Upstream::Tcp(server.addr()), 1);
    let refused = Client::lazy(config(&proxied.url().replace("redis://", "redis://app:sesame@")));
    for client in [&client, &refused] {
        // The call fails at once, ten seconds before its deadline.
        let error = call(client, &["PING"]).await.unwrap_err();
        assert_eq!((error.kind(), error.outcome()), (ErrorKind::Auth, Outcome::NotSent), "{error}");
        assert!(!format!("{error} {error:?}").contains("sesame"), "{error}");
        let error = call(client, &["PING"]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Auth, "while refused, every call is");
    }
    let attempts = proxied.counts().accepted;
    assert!(attempts <= 2, "{attempts} attempts within the first second");
    assert_eq!(server.cli(&user), "OK");
    for client in [&client, &refused] {
        assert!(reconnected(client, 1).await);
        assert_eq!(call(client, &["ECHO", "allowed"]).await.unwrap(), "allowed");
    }
}

#[tokio::test]
async fn s14_missing_permission_has_distinct_kind() {
    let server = RedisServer::builder().tcp().start();
    let user = ["ACL", "SETUSER", "app", "on", ">pw", "~app:*", "+@all", "-set"];
    assert_eq!(server.cli(&user), "OK");
    // Redis 6.2 introduced rules for channels.
    let channels = server.redis_version() >= (6, 2, 0);
    if channels {
        assert_eq!(server.cli(&["ACL", "SETUSER", "app", "resetchannels", "&app:*"]), "OK");
    }
    let client = connect(&server.tcp_url().replace("redis://", "redis://app:pw@")).await;
    for words in [["SET", "app:k", "1"], ["LPUSH", "other", "1"]] {
        let error = call(&client, &words).await.unwrap_err();
        assert_eq!(
            (error.kind(), error.outcome(), error.code()),
            (ErrorKind::Permission, Outcome::Rejected, Some("NOPERM")),
            "{error}"
        );
    }
    let command = Script::new("return redis.call('set', KEYS[1], '1')", 1, 0);
    let key = Script::new("return redis.call('get', 'other')", 1, 0);
    for script in [&command, &key] {
        let error = client.eval(script, &["app:k".into()]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Permission, "{error}");
    }
    let mut refused = client.subscribe(b"other");
    refused.settled().await;
    assert_eq!(refused.refusal().is_some_and(|why| why.contains("NOPERM")), channels);
    let mut allowed = client.subscribe(b"app:news");
    allowed.settled().await;
    assert!(allowed.is_confirmed());
    assert_eq!(client.stats().connections, 1);
}

#[tokio::test]
async fn s15_refused_writes_keep_error_code() {
    let server = RedisServer::start();
    let client = connect(&server.url()).await;
    let refused = async |code: &str| {
        let error = call(&client, &["SET", "k", "1"]).await.unwrap_err();
        assert_eq!((error.code(), error.outcome()), (Some(code), Outcome::Rejected), "{error}");
    };
    assert_eq!(server.cli(&["CONFIG", "SET", "min-replicas-to-write", "1"]), "OK");
    refused("NOREPLICAS").await;
    assert_eq!(server.cli(&["CONFIG", "SET", "min-replicas-to-write", "0"]), "OK");
    assert_eq!(call(&client, &["SET", "k", "1"]).await.unwrap(), "OK");

    assert_eq!(server.cli(&["CONFIG", "SET", "save", "3600 1"]), "OK");
    std::fs::create_dir(server.directory().join("dump.rdb")).unwrap();
    let _started = server.cli(&["BGSAVE"]);
    let failed = async || server.cli(&["INFO", "persistence"]).contains("rdb_last_bgsave_status:err");
    assert!(eventually(PATIENCE, failed).await);
    refused("MISCONF").await;
    assert_eq!(server.cli(&["CONFIG", "SET", "save", ""]), "OK");
    assert_eq!(call(&client, &["SET", "k", "1"]).await.unwrap(), "OK");

    assert_eq!(server.cli(&["CONFIG", "SET", "replica-serve-stale-data", "no"]), "OK");
    assert_eq!(server.cli(&["REPLICAOF", "127.0.0.1", "1"]), "OK");
    let error = call(&client, &["GET", "k"]).await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::NotReady, Outcome::Rejected), "{error}");
    assert_eq!(error.code(), Some("MASTERDOWN"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s16_scripts_flushed_every_ten_milliseconds() {
    let server = RedisServer::start();
    let client = connect(&server.url()).await;
    let stop = Arc::new(AtomicBool::new(false));
    let script = Arc::new(Script::new("return {KEYS[1], ARGV[1]}", 1, 1));
    let tasks: Vec<_> = (0..16)
        .map(|task| {
            let (client, stop, script) = (client.clone(), Arc::clone(&stop), Arc::clone(&script));
            tokio::spawn(async move {
                let mut round = 0_u64;
                while !stop.load(Ordering::Relaxed) {
                    let text = format!("{task}:{round}");
                    round += 1;
                    let params = ["key".into(), text.as_str().into()];
                    let words = ["ECHO", &text];
                    let (before, reply, after) = tokio::join!(
                        call(&client, &words),
                        client.eval(&script, &params),
                        call(&client, &words)
                    );
                    assert_eq!((before.unwrap(), after.unwrap()), (text.clone(), text.clone()));
                    assert_eq!(reply.unwrap().as_array().unwrap()[1].as_str(), Some(text.as_str()));
                }
                round
            })
        })
        .collect();
    let mut cli = server.connect().unwrap();
    let mut every = tokio::time::interval(Duration::from_millis(10));
    for _ in 0..100 {
        every.tick().await;
        cli.query(&["SCRIPT", "FLUSH"]).unwrap();
    }
    stop.store(true, Ordering::Relaxed);
    for task in tasks {
        assert!(task.await.unwrap() > 0);
    }
    let stats = client.stats();
    assert_eq!((stats.connections, stats.in_flight), (1, 0));
}

#[tokio::test]
async fn s17_missing_resp3_gives_specific_advice() {
    let refusals = [
        ("-NOPROTO unsupported protocol version\r\n", "RESP3"),
        ("-ERR unknown command 'HELLO'\r\n", "Redis 6"),
        ("-ERR unknown command `HELLO`, with args beginning with: `3`, \r\n", "Redis 6"),
        // Replies of proxies.
        ("-unsupported command 'HELLO'\r\n", "no proxy"),
        ("-invalid request\r\n", "no proxy"),
        ("*4\r\n$6\r\nserver\r\n$5\r\nredis\r\n$5\r\nproto\r\n:2\r\n", "in RESP2"),
    ];
    for (refusal, advice) in refusals {
        let server = FakeServer::start(move |_, session| {
            session.command()?;
            session.send(refusal)?;
            session.stay_silent()
        });
        let error = Client::connect(config(&server.url())).await.unwrap_err();
        assert_eq!((error.kind(), error.outcome()), (ErrorKind::Unsupported, Outcome::NotSent));
        assert!(error.to_string().contains(advice), "{error}");
    }
}

#[tokio::test]
async fn s18_resp2_messages_end_connection() {
    let server = FakeServer::ready(|number, session| {
        let command = session.command()?;
        match number {
            // A confirmation in RESP2 is an array, which is a reply.
            0 => session.send("*3\r\n$9\r\nsubscribe\r\n$4\r\nnews\r\n:1\r\n")?,
            1 => {
                session.reply(&command)?;
                session.send("*3\r\n$7\r\nmessage\r\n$4\r\nnews\r\n$1\r\nx\r\n")?;
            }
            _ => session.reply(&command)?,
        }
        session.serve()
    });
    let client = connect(&server.url()).await;
    let mut news = client.subscribe(b"news");
    assert!(eventually(PATIENCE, async || server.connections() == 3).await);
    news.settled().await;
    assert!(news.is_confirmed());
    assert_eq!(call(&client, &["ECHO", "x"]).await.unwrap(), "x");
}

#[tokio::test]
async fn s19_unknown_commands_shift_no_reply() {
    let server = FakeServer::start(|_, session| {
        loop {
            let command = session.command()?;
            match &command[0][..] {
                b"CLIENT" => session.send("-ERR unknown subcommand 'SETINFO'. Try CLIENT HELP.\r\n")?,
                b"EVAL" => session.send("-ERR Error compiling script (new function)\r\n")?,
                _ => session.reply(&command)?,
            }
        }
    });
    let client = connect(&server.url()).await;
    assert_eq!(call(&client, &["ECHO", "mine"]).await.unwrap(), "mine");
    let server = RedisServer::start();
    let client = connect(&server.url()).await;
    assert_eq!(call(&client, &["ECHO", "mine"]).await.unwrap(), "mine");
    assert_eq!(client.stats().connections, 1);
}

#[tokio::test]
async fn s20_foreign_data_is_not_overwritten() {
    let server = RedisServer::start();
    assert_eq!(server.cli(&["SET", "lock", "theirs"]), "OK");
    let locks = locks(&server).await;
    let error = locks.lock("lock").acquire().await.unwrap_err();
    assert!(error.to_string().contains("lock"), "names the key: {error}");
    assert_eq!(server.cli(&["GET", "lock"]), "theirs", "nothing is overwritten");
    let error = call(locks.client(), &["HGET", "lock", "f"]).await.unwrap_err();
    assert_eq!((error.code(), error.outcome()), (Some("WRONGTYPE"), Outcome::Rejected));
}

#[tokio::test]
async fn s21_operator_changes_lose_or_rearm_lock() {
    let server = RedisServer::start();
    let locks = locks(&server).await;
    for words in [vec!["FLUSHALL"], vec!["DEL", "lock"], vec!["RENAME", "lock", "elsewhere"]] {
        let guard = locks.lock("lock").acquire().await.unwrap();
        let _reply = server.cli(&words);
        guard.lost().await;
        assert!(!guard.is_valid(), "{words:?}");
        assert_eq!(server.cli(&["EXISTS", "lock"]), "0", "{words:?}: never renewed into being");
    }
    let guard = locks.lock("lock").acquire().await.unwrap();
    assert_eq!(server.cli(&["PERSIST", "lock"]), "1");
    assert!(
        eventually(PATIENCE, async || time_to_live(&server, "lock") > 0).await,
        "armed again by a renewal"
    );
    assert!(guard.is_valid());
    guard.release().await.unwrap();
}

#[tokio::test]
async fn s22_shutdown_loses_calls_then_reconnects() {
    let mut server = RedisServer::builder().arg("busy-reply-threshold", "20").start();
    let client = connect(&server.url()).await;
    let blocked = block(&client, &server).await;
    server.connect().unwrap().send(&["SHUTDOWN", "NOSAVE"]).unwrap();
    lost(blocked).await;
    server.restart();
    assert_eq!(call(&client, &["ECHO", "back"]).await.unwrap(), "back");

    let blocked = block(&client, &server).await;
    let pid = server.pid().to_string();
    assert!(std::process::Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    lost(blocked).await;
    server.restart();
    assert_eq!(call(&client, &["ECHO", "back"]).await.unwrap(), "back");

    let running = tokio::spawn({
        let client = client.clone();
        async move { call(&client, &["EVAL", "while true do end", "0"]).await }
    });
    let busy = async || server.cli(&["PING"]).contains("BUSY");
    assert!(eventually(PATIENCE, busy).await);
    server.connect().unwrap().send(&["SHUTDOWN", "NOSAVE"]).unwrap();
    lost(running).await;
    server.restart();
    assert_eq!(call(&client, &["ECHO", "back"]).await.unwrap(), "back");
}

#[tokio::test]
async fn s23_wrong_role_or_mode_is_rejected() {
    let replica = RedisServer::builder().arg("replicaof", "127.0.0.1 1").start();
    let mut hasty = config(&replica.url());
    hasty.connect_timeout = 3 * SHORT;
    let error = Client::connect(hasty).await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::NotReady, Outcome::NotSent), "{error}");
    assert!(error.to_string().contains("it is a replica"), "{error}");

    let node = RedisServer::builder().arg("cluster-enabled", "yes").start();
    let error = Client::connect(config(&node.url())).await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Unsupported, Outcome::NotSent), "{error}");
    assert!(error.to_string().contains("cluster"), "{error}");

    // A Sentinel does not report a role. Source: helloCommand in networking.c of Redis 7.0.
    let sentinel = FakeServer::start(|_, session| {
        session.command()?;
        session.send(
            "%5\r\n+server\r\n+redis\r\n+version\r\n+7.0.15\r\n+proto\r\n:3\r\n+id\r\n:3\r\n+mode\r\n+sentinel\r\n",
        )?;
        session.stay_silent()
    });
    let error = Client::connect(config(&sentinel.url())).await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Unsupported, Outcome::NotSent), "{error}");
    assert!(error.to_string().contains("Sentinel"), "{error}");
}
