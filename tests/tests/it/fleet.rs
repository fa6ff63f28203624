//! The operation of a fleet: diagnostics, permissions, health, shutdown and the command line.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use wheellock::{Error, Finding, Fleet, Health, Lock, LockManager, LockManagerBuilder};
use wheellock_tests::beside::calls;
use wheellock_tests::fault::{At, Direction, Fault, Proxy, Rule};
use wheellock_tests::topology::{Replicas, Settings};
use wheellock_tests::{RedisServer, eventually, guide, poll_until};

use crate::failover::{cut_off, replicated};

const LEASE: Duration = Duration::from_secs(4);
const WINDOW: Duration = Duration::from_millis(1500);
const REPLY: Duration = Duration::from_millis(500);
const PATIENCE: Duration = Duration::from_secs(30);
const PROGRAM: &str = env!("CARGO_BIN_EXE_wheellock_cli");
const ROSTER: &str = "wheellock:fleet:roster";

fn fleet(servers: u32) -> Fleet {
    with_window(WINDOW, servers)
}

fn with_window(window: Duration, servers: u32) -> Fleet {
    let mut fleet = Fleet::of_servers(servers);
    (fleet.longest_lease, fleet.window, fleet.may_be_new) = (LEASE, window, true);
    fleet
}

fn builder(url: &str, fleet: Fleet) -> LockManagerBuilder {
    let builder = LockManager::builder(url).watchdog_lease(LEASE).keep_locks_across_failovers(fleet);
    builder.configure(|config| config.response_timeout = REPLY)
}

async fn is_ready(locks: &LockManager) -> bool {
    eventually(PATIENCE, async || locks.is_healthy()).await
}

/// Returns the findings about a fleet.
fn findings(locks: &LockManager) -> Vec<Finding> {
    let is_of_fleet = |finding: &&Finding| {
        matches!(
            finding,
            Finding::NoReplica { .. }
                | Finding::OtherServerCount { .. }
                | Finding::WritesWithoutReplicas
                | Finding::MissingFleetPermission { .. }
        )
    };
    locks.diagnostics().iter().filter(is_of_fleet).cloned().collect()
}

/// Connects to a fleet of `servers` servers, and returns the findings about it.
async fn found(url: &str, servers: u32) -> Vec<Finding> {
    let locks = builder(url, fleet(servers)).connect().await.unwrap();
    let findings = findings(&locks);
    // A later fleet may have other numbers.
    assert!(locks.shutdown(PATIENCE).await.is_empty());
    findings
}

#[tokio::test]
async fn missing_replicas_are_reported() {
    let single = RedisServer::builder().tcp().start();
    assert_eq!(found(&single.tcp_url(), 1).await, [], "a single server needs no replica");
    let alone = [Finding::NoReplica { servers: 2 }, Finding::WritesWithoutReplicas];
    assert_eq!(found(&single.tcp_url(), 2).await, alone);

    let set = Replicas::start(1, &Settings::default());
    assert_eq!(found(&set.url(), 2).await, [Finding::WritesWithoutReplicas]);
    assert_eq!(set.primary().cli(&["CONFIG", "SET", "min-replicas-to-write", "1"]), "OK");
    assert_eq!(found(&set.url(), 2).await, []);
    for servers in [1, 3] {
        let other = Finding::OtherServerCount { servers, connected: 2 };
        assert_eq!(found(&set.url(), servers).await, [other]);
    }
}

/// The primary gets a replica that the fleet does not count, so a failover could lead to a server that does not know all processes.
#[tokio::test]
async fn uncounted_replica_stops_acquires() {
    let set = Replicas::start(2, &Settings::default());
    // By several addresses, the manager would also find the other primary.
    let (primary, extra, url) = (set.primary(), &set.servers()[2], set.primary().tcp_url());
    assert_eq!(extra.cli(&["REPLICAOF", "NO", "ONE"]), "OK");
    let locks = builder(&url, fleet(2)).connect().await.unwrap();
    assert!(is_ready(&locks).await, "{}", locks.health());
    let held = locks.lock("held").acquire().await.unwrap();
    let address = primary.addr();
    let follow = ["REPLICAOF", &address.ip().to_string(), &address.port().to_string()];
    assert_eq!(extra.cli(&follow), "OK");

    let is_refused = async || match locks.lock("orders").try_acquire().await {
        Err(Error::NotReady { reason, .. }) => {
            reason.contains("has 2 servers, and the primary has 2 replicas")
        }
        _ => false,
    };
    assert!(eventually(PATIENCE, is_refused).await, "{}", locks.health());
    let new = builder(&url, fleet(2)).connect().await.unwrap();
    tokio::time::sleep(LEASE).await;
    assert!(held.is_valid(), "holds are renewed");
    assert!(new.fleet_health().unwrap().obstacle.is_some());
    assert_eq!(extra.cli(&["REPLICAOF", "NO", "ONE"]), "OK");
    for locks in [&locks, &new] {
        assert!(is_ready(locks).await, "{}", locks.health());
        assert!(locks.lock("orders").try_acquire().await.unwrap().is_acquired());
    }
}

/// A server that does not follow the primary may have the entry of a process that is there.
#[tokio::test]
async fn entry_is_kept_while_server_is_away() {
    let set = Replicas::start(1, &Settings::default());
    let (primary, replica) = (set.primary(), &set.servers()[1]);
    let locks = builder(&primary.tcp_url(), fleet(2)).connect().await.unwrap();
    assert!(is_ready(&locks).await, "{}", locks.health());
    assert_eq!(replica.cli(&["REPLICAOF", "NO", "ONE"]), "OK");
    assert_eq!(primary.cli(&["ZADD", ROSTER, "1", "gone"]), "1");
    let is_removed = async || primary.cli(&["ZCARD", ROSTER]) == "1";
    assert!(!eventually(2 * WINDOW, is_removed).await);
    let address = primary.addr();
    let follow = ["REPLICAOF", &address.ip().to_string(), &address.port().to_string()];
    assert_eq!(replica.cli(&follow), "OK");
    assert!(eventually(PATIENCE, is_removed).await, "all servers follow");
}

/// A backup reads from the primary as a replica does, and cannot be promoted.
#[tokio::test]
async fn backup_stops_no_acquire() {
    let server = RedisServer::builder().tcp().start();
    let locks = builder(&server.tcp_url(), fleet(1)).connect().await.unwrap();
    assert!(is_ready(&locks).await);
    let mut backup = UnixStream::connect(server.socket_path()).unwrap();
    backup.write_all(b"PSYNC ? -1\r\n").unwrap();
    let is_connected = || server.cli(&["INFO", "replication"]).contains("connected_slaves:1");
    assert!(poll_until(PATIENCE, is_connected));
    tokio::time::sleep(WINDOW).await;
    assert!(locks.lock("orders").try_acquire().await.unwrap().is_acquired());
}

/// `min-replicas-to-write` looks at the replicas once per second. So a server accepts writes that arrived while it was paused, although it
/// was replaced meanwhile.
#[test]
fn replaced_primary_accepts_write_after_pause() {
    let mut set = Replicas::start(1, &Settings::default());
    let old = &set.servers()[0];
    for (name, value) in [("min-replicas-max-lag", "1"), ("min-replicas-to-write", "1")] {
        assert_eq!(old.cli(&["CONFIG", "SET", name, value]), "OK");
    }
    assert!(poll_until(PATIENCE, || old.cli(&["SET", "before", "1"]) == "OK"));
    let mut client = UnixStream::connect(old.socket_path()).unwrap();
    let mut reply = [0; 5];
    // Afterwards the server has accepted the connection. It would look at the replicas before it accepts one.
    client.write_all(b"SET early 1\r\n").unwrap();
    client.read_exact(&mut reply).unwrap();
    assert_eq!(&reply, b"+OK\r\n");
    old.pause();
    client.write_all(b"SET late 1\r\n").unwrap();
    set.promote(1);
    // The replica must look older than the setting allows.
    std::thread::sleep(Duration::from_secs(3));
    let old = &set.servers()[0];
    old.resume();
    client.read_exact(&mut reply).unwrap();
    assert_eq!(&reply, b"+OK\r\n");
    let is_refused = || old.cli(&["SET", "later", "1"]).contains("NOREPLICAS");
    assert!(poll_until(PATIENCE, is_refused), "later writes are refused");
}

/// Sets the user of plain locks in a fleet. The user has the guide's permissions, except for `left_out`.
fn allow(server: &RedisServer, left_out: Option<&str>) {
    let (fleet, _) = guide::fleet_permissions();
    set_user(server, &[], fleet.into_iter().filter(|rule| Some(*rule) != left_out));
}

fn set_user<'a>(server: &RedisServer, kind: &[&'a str], fleet: impl Iterator<Item = &'a str>) {
    let version = server.redis_version();
    let set =
        [&["ACL", "SETUSER", "locks", "reset", "on", ">secret"][..], &guide::permissions(version), kind]
            .concat();
    let set: Vec<&str> = set.into_iter().chain(fleet).collect();
    assert_eq!(server.cli(&set), "OK");
}

#[tokio::test]
async fn missing_permissions_are_reported() {
    let set = Replicas::start(1, &Settings::default());
    let server = set.primary();
    if server.redis_version() < (7, 0, 0) {
        return;
    }
    let url = server.tcp_url().replace("redis://", "redis://locks:secret@");
    assert_eq!(server.cli(&["CONFIG", "SET", "min-replicas-to-write", "1"]), "OK");
    for rule in ["+wait", "+zrem", "+srem"] {
        allow(server, Some(rule));
        let missing = Finding::MissingFleetPermission { rule: rule.to_owned() };
        assert_eq!(found(&url, 2).await, [missing]);
    }
    for rule in ["~wheellock:fleet*", "+hmget", "+zadd", "+zremrangebyscore", "+scard"] {
        allow(server, Some(rule));
        match builder(&url, fleet(2)).connect().await {
            Err(error @ Error::UnsupportedFleet { .. }) => {
                assert!(error.to_string().contains(&format!("the user lacks {rule}")), "{error}");
            }
            other => panic!("{rule}: {other:?}"),
        }
    }
    allow(server, None);
    assert_eq!(found(&url, 2).await, []);
}

#[tokio::test]
async fn guide_fleet_permissions_are_exactly_sufficient() {
    let set = Replicas::start(1, &Settings::default());
    let server = set.primary();
    let plain = |locks: &LockManager| locks.lock("orders:42");
    allow(server, None);
    assert_eq!(use_fleet(server, plain).await, Ok(()));
    let (fleet, for_read_write) = guide::fleet_permissions();
    let mut needless = Vec::new();
    for rule in &fleet {
        allow(server, Some(rule));
        if use_fleet(server, plain).await.is_ok() {
            needless.push(rule);
        }
    }
    assert!(needless.is_empty(), "{needless:?}");

    let kind = guide::kind_permissions("read-write", server.redis_version());
    let read = |locks: &LockManager| locks.read_write_lock("orders:42").read();
    set_user(server, &kind, fleet.iter().chain(&for_read_write).copied());
    assert_eq!(use_fleet(server, read).await, Ok(()));
    for rule in &for_read_write {
        let less = for_read_write.iter().filter(|other| *other != rule);
        set_user(server, &kind, fleet.iter().chain(less).copied());
        assert!(use_fleet(server, read).await.is_err(), "it does without {rule}");
    }
}

/// Uses all operations of a fleet as its user, from an empty server on. Returns an error if an operation failed or was refused.
async fn use_fleet(server: &RedisServer, lock: fn(&LockManager) -> Lock) -> Result<(), String> {
    assert_eq!(server.cli(&["FLUSHALL"]), "OK");
    assert_eq!(server.cli(&["ACL", "LOG", "RESET"]), "OK");
    let url = server.tcp_url().replace("redis://", "redis://locks:secret@");
    let text = |error: Error| error.to_string();
    let locks = builder(&url, with_window(REPLY, 2)).connect().await.map_err(text)?;
    let is_ready = async || eventually(LEASE, async || locks.is_healthy()).await;
    if !is_ready().await {
        return Err(locks.health().to_string());
    }
    let guard = lock(&locks).acquire().await.map_err(text)?;
    // A server that was a replica for a moment counts as new, and gets the hold again.
    assert_eq!(server.cli(&["REPLICAOF", "127.0.0.1", "1"]), "OK");
    assert_eq!(server.cli(&["REPLICAOF", "NO", "ONE"]), "OK");
    if !eventually(LEASE, async || locks.metrics().reclaimed == 1).await || !is_ready().await {
        return Err(format!("the hold was not written, or {}", locks.health()));
    }
    guard.release().await.map_err(text)?;
    let left = locks.shutdown(PATIENCE).await;
    if !left.is_empty() || server.cli(&["ZCARD", ROSTER]) != "0" {
        return Err(format!("{left}, or its entry is left"));
    }
    let refused = server.cli(&["ACL", "LOG"]);
    if refused.is_empty() { Ok(()) } else { Err(refused) }
}

/// The refresh reaches the server after the shutdown has begun.
#[tokio::test]
async fn shutdown_awaits_refresh_under_way() {
    let server = RedisServer::builder().tcp().start();
    let proxy = Proxy::before(&server);
    // The response timeout is longer than the refresh takes.
    let locks = builder(&proxy.url(), with_window(2 * WINDOW, 1))
        .configure(|config| config.response_timeout = 2 * WINDOW)
        .connect()
        .await
        .unwrap();
    assert!(is_ready(&locks).await);
    // The second connection carries the refreshes.
    let stall = Rule::new(Direction::ToServer, At::Command("EVAL", 0), Fault::Stall).only_on(1);
    proxy.rule(stall);
    let refreshes = calls(&server, "eval");
    assert!(eventually(PATIENCE, async || proxy.counts().faults == 1).await, "no refresh is under way");
    let shutdown = tokio::spawn(async move { locks.shutdown(PATIENCE).await });
    // A removal that does not wait for the refresh takes milliseconds.
    let is_removed = async || server.cli(&["ZCARD", ROSTER]) == "0";
    assert!(!eventually(REPLY, is_removed).await, "the refresh that comes now adds the entry again");
    proxy.heal();
    assert!(shutdown.await.unwrap().is_empty());
    assert!(calls(&server, "eval") > refreshes, "the refresh was sent");
    assert_eq!(server.cli(&["ZCARD", ROSTER]), "0");
}

#[tokio::test]
async fn health_tells_state_of_fleet() {
    let mut set = Replicas::start(1, &Settings::default());
    let plain = LockManager::connect(set.url()).await.unwrap();
    assert_eq!(plain.fleet_health(), None);
    let locks = builder(&set.url(), fleet(2)).connect().await.unwrap();
    assert!(is_ready(&locks).await);
    let health = locks.fleet_health().unwrap();
    assert!(!health.is_in_grace && health.obstacle.is_none() && health.grace_ends_in.is_none(), "{health:?}");
    let time = set.servers()[0].cli(&["TIME"]);
    let now = format!("{}000", time.lines().next().unwrap());
    assert_eq!(set.servers()[0].cli(&["ZADD", ROSTER, &now, "gone"]), "1");
    replicated(&locks, 1).await;
    cut_off(set.servers(), 0, &[1]);
    let guard = locks.lock("orders").acquire().await.unwrap();
    assert_eq!((locks.metrics().reclaimed, locks.metrics().lost_in_failover), (0, 0));

    // The new primary knows another process, which has gone, so its grace does not end early. It has no replica, so no refresh counts, and
    // the hold is not extended.
    set.servers_mut()[0].kill();
    set.servers()[1].resume();
    assert_eq!(set.servers()[1].cli(&["REPLICAOF", "NO", "ONE"]), "OK");
    let in_grace = async || locks.fleet_health().is_some_and(|health| health.is_in_grace);
    assert!(eventually(PATIENCE, in_grace).await, "{:?}", locks.fleet_health());
    let refuses = async || matches!(locks.health(), Health::NotReady { at_most: None, .. });
    assert!(eventually(PATIENCE, refuses).await, "{:?}", locks.health());
    assert!(eventually(PATIENCE, async || !guard.is_valid()).await);
    let counted = async || {
        let metrics = locks.metrics();
        metrics.lost_in_failover == 1 && metrics.failed_refreshes > 0
    };
    assert!(eventually(PATIENCE, counted).await, "{:?}", locks.metrics());
    assert_eq!(locks.metrics().reclaimed, 1);

    // With a replica again, the grace has an end.
    let address = set.servers()[1].addr();
    set.servers_mut()[0].restart();
    let follow = ["REPLICAOF", &address.ip().to_string(), &address.port().to_string()];
    assert_eq!(set.servers()[0].cli(&follow), "OK");
    let ends = |health: Health| matches!(health, Health::NotReady { at_most: Some(_), .. } | Health::Healthy);
    assert!(eventually(PATIENCE, async || ends(locks.health())).await, "{}", locks.health());
    assert!(is_ready(&locks).await, "{}", locks.health());
}

/// Ends the grace of an empty server.
fn settle(server: &RedisServer) {
    let info = server.cli(&["INFO"]);
    let field = |name: &str| {
        let found = info.lines().find_map(|line| line.strip_prefix(name));
        found.expect("INFO has the field").trim().to_owned()
    };
    let era = format!("{}:{}:0", field("run_id:"), field("master_replid:"));
    let _set = server.cli(&["HSET", "wheellock:fleet", "era", &era]);
}

fn tool(url: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(arguments).env("WHEELLOCK_URL", url).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn ended(url: &str, arguments: &[&str]) -> (Option<i32>, String) {
    let Output { status, stdout, stderr } = tool(url, arguments).output().unwrap();
    (status.code(), String::from_utf8(stdout).unwrap() + &String::from_utf8(stderr).unwrap())
}

#[test]
fn tool_keeps_lock_across_failover() {
    let mut set = Replicas::start(2, &Settings::default());
    settle(set.primary());
    let file = set.servers()[0].directory().join("ends");
    let began = set.servers()[0].directory().join("began");
    let folder = set.servers()[0].directory().display().to_string();
    let script = format!(
        "echo > {}; while [ -e {folder} ] && ! [ -e {} ]; do sleep 0.01; done",
        began.display(),
        file.display()
    );
    let arguments = ["run", "report", "--keep-across-failovers", "3", "--", "sh", "-c", &script];
    let mut job = tool(&set.url(), &arguments).spawn().unwrap();
    let has_begun = poll_until(PATIENCE, || began.exists());
    if has_begun {
        assert_eq!(set.primary().cli(&["ZCARD", ROSTER]), "1");
        // The replicas know the process, and lose its lock.
        cut_off(set.servers(), 0, &[1, 2]);
        set.servers_mut()[0].kill();
        for replica in set.servers().iter().skip(1) {
            replica.resume();
            assert_eq!(replica.cli(&["CONFIG", "SET", "replica-read-only", "no"]), "OK");
            assert_eq!(replica.cli(&["DEL", "report"]), "1");
        }
        set.promote(1);
        assert!(poll_until(PATIENCE, || set.servers()[1].cli(&["EXISTS", "report"]) == "1"));
    }
    std::fs::write(&file, "").unwrap();
    let output = job.wait().unwrap();
    assert!(has_begun && output.success(), "{output}");
    assert!(poll_until(PATIENCE, || set.servers()[1].cli(&["EXISTS", "report"]) == "0"));
    assert!(poll_until(PATIENCE, || set.servers()[1].cli(&["ZCARD", ROSTER]) == "0"));
}

#[tokio::test]
async fn tool_refuses_wrong_combinations() {
    let server = RedisServer::builder().tcp().start();
    let url = server.tcp_url();
    let run = |options: &[&str]| ended(&url, &[&["run", "n"][..], options, &["--", "true"]].concat());
    let keep = "--keep-across-failovers";
    assert_eq!(run(&[keep, "0"]).0, Some(64));
    let (code, said) = run(&[keep, "1", "--lease", "60s"]);
    assert!(code == Some(64) && said.contains("lease of 60s is longer"), "{code:?} {said}");
    let (code, said) = ended(&url, &["doctor", keep, "2", &url, &url]);
    assert!(code == Some(64) && said.contains(keep), "{code:?} {said}");
    // An empty server may have lost its locks.
    let (code, said) = run(&[keep, "1", "--wait", "0"]);
    assert!(code == Some(69) && said.contains("at most"), "{code:?} {said}");

    settle(&server);
    assert_eq!(run(&[keep, "1"]).0, Some(0));
    let locks = LockManager::builder(&url).keep_locks_across_failovers(Fleet::of_servers(1));
    let member = locks.connect().await.unwrap();
    assert!(is_ready(&member).await, "it is entered");
    let (code, said) = run(&[keep, "2"]);
    assert!(code == Some(64) && said.contains("the other processes"), "{code:?} {said}");
    let (code, said) = ended(&url, &["doctor", keep, "2", &url]);
    assert!(code == Some(1) && said.contains("FAIL  failovers   locks cannot survive"), "{code:?} {said}");
    assert!(said.contains("trial lock  taken and released"), "{said}");
    let (_, said) = ended(&url, &["doctor", keep, "1", &url]);
    assert!(said.contains("  ok  failovers   locks survive a failover"), "{said}");
}

#[test]
fn doctor_reports_missing_replica() {
    let server = RedisServer::builder().tcp().start();
    settle(&server);
    let url = server.tcp_url();
    let (code, said) = ended(&url, &["doctor", "--keep-across-failovers", "2", &url]);
    assert_eq!(code, Some(1), "{said}");
    for part in ["no replica is connected", "without min-replicas-to-write", "FAIL  failovers "] {
        assert!(said.contains(part), "{part}: {said}");
    }
}
