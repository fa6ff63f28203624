//! Grants and renewals that replicas have to acknowledge.
//!
//! Covers row T6 of docs/reliability/faults.md and its consequences, on real replicas.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use wheellock::{Durability, Error, Finding, LockManager, LockManagerBuilder, LostReason, Outcome};
use wheellock_tests::fault::{At, Direction, Fault, Proxy, Rule};
use wheellock_tests::locks::{PATIENCE, at_rest, gone, lost, taken};
use wheellock_tests::topology::{Cluster, Replicas, Settings};
use wheellock_tests::{Observed, RedisServer, eventually, poll_until};

fn builder(url: &str, durability: Durability) -> LockManagerBuilder {
    LockManager::builder(url)
        .durability(durability)
        .replication_timeout(TIMEOUT)
        .configure(|config| config.response_timeout = RESPONSE_TIMEOUT)
}

async fn durable(url: &str, durability: Durability) -> LockManager {
    builder(url, durability).connect().await.unwrap()
}

/// Starts a primary and `replicas` replicas that acknowledge writes. For up to a second after a diskless sync, a primary does not send
/// writes to a linked replica (`repl_start_cmd_stream_on_ack` in replication.c of Redis 7.0).
fn following(replicas: usize, settings: &Settings) -> Replicas {
    let servers = Replicas::start(replicas, settings);
    let mut cli = servers.primary().connect().unwrap();
    assert_eq!(cli.query(&["SET", "anything", "1", "PX", "1"]).unwrap().to_string(), "OK");
    let acked = cli.query(&["WAIT", &replicas.to_string(), "9000"]).unwrap().to_string();
    assert_eq!(acked, replicas.to_string());
    servers
}

fn replicas(count: usize) -> Replicas {
    following(count, &Settings::default())
}

/// Starts a primary and stops all its replicas.
fn paused(count: usize) -> Replicas {
    let servers = replicas(count);
    servers.replicas().for_each(RedisServer::pause);
    servers
}

fn waits(observed: &[Observed]) -> usize {
    observed.iter().filter(|command| command.name().starts_with("WAIT")).count()
}

#[tokio::test]
async fn t06_grants_stop_and_resume_with_replica() {
    let servers = replicas(2);
    let url = servers.primary().url();
    let managers =
        [durable(&url, Durability::Replicas(1)).await, durable(&url, Durability::Replicas(1)).await];
    assert_eq!(managers[0].diagnostics(), [Finding::ForgetsOnRestart]);
    servers.replicas().for_each(RedisServer::pause);
    for locks in &managers {
        let error = locks.lock("a").try_acquire().await.unwrap_err();
        assert!(matches!(error, Error::NotReplicated { acked: 0, wanted: 1, .. }), "{error}");
        assert_eq!(error.outcome(), Outcome::MaybeExecuted);
        // The release was queued before the error was returned, so it precedes all later requests.
        assert!(!locks.lock("a").is_locked().await.unwrap());
        assert_eq!(locks.metrics().not_replicated, 1);
        assert_eq!((locks.metrics().acquires, locks.metrics().held), (0, 0));
    }
    servers.replicas().next().unwrap().resume();
    for locks in &managers {
        let guard = locks.lock("a").acquire().await.unwrap();
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn one_replica_satisfies_one_not_two() {
    let servers = replicas(2);
    let one = durable(&servers.primary().url(), Durability::Replicas(1)).await;
    let two = durable(&servers.primary().url(), Durability::Replicas(2)).await;
    drop(two.lock("two").acquire().await.unwrap());
    servers.replicas().next().unwrap().pause();
    // If the ten had to wait for the other replica, they would take longer than a single wait may.
    let began = Instant::now();
    for _ in 0..10 {
        drop(one.lock("one").acquire().await.unwrap());
    }
    assert!(began.elapsed() < TIMEOUT, "{:?}", began.elapsed());
    let error = two.lock("two").acquire().await.unwrap_err();
    assert!(matches!(error, Error::NotReplicated { acked: 1, wanted: 2, .. }), "{error}");
}

#[tokio::test]
async fn concurrent_acquires_share_wait_spare_holds() {
    let servers = replicas(1);
    let url = servers.primary().url();
    // A third of it is long compared to the time that the crowd may block the connection.
    let locks = builder(&url, Durability::Replicas(1)).watchdog_lease(12 * TIMEOUT).connect().await.unwrap();
    let kept = locks.lock("kept").acquire().await.unwrap();
    let other = LockManager::connect(&url).await.unwrap();
    servers.replicas().for_each(RedisServer::pause);
    let monitor = servers.primary().monitor();
    let mut crowd = JoinSet::new();
    for number in 0..32 {
        let lock = locks.lock(&format!("crowd:{number}"));
        crowd.spawn(async move {
            let began = Instant::now();
            let error = lock.try_acquire().await.unwrap_err();
            (began.elapsed(), error)
        });
    }
    // A caller that does not need replicas must not wait for callers that do.
    drop(other.lock("other").acquire().await.unwrap());
    while let Some(ended) = crowd.join_next().await {
        let (took, error) = ended.unwrap();
        assert!(matches!(error, Error::NotReplicated { acked: 0, wanted: 1, .. }), "{error}");
        assert!(took < 4 * TIMEOUT, "{took:?}");
    }
    servers.replicas().for_each(RedisServer::resume);
    let renewed = kept.valid_until();
    assert!(eventually(PATIENCE, async || kept.valid_until() > renewed).await);
    assert!(kept.is_valid() && locks.metrics().lost_expired == 0);
    let shared = waits(&monitor.stop().unwrap());
    assert!((2..=8).contains(&shared), "{shared} waits for 32 and the renewals");
    assert!(
        eventually(PATIENCE, async || servers.primary().cli(&["DBSIZE"]) == "1").await,
        "all others are free"
    );
}

#[tokio::test]
async fn underreplicated_renewal_never_extends_lease() {
    let servers = replicas(1);
    let lease = 6 * TIMEOUT;
    let locks = builder(&servers.primary().url(), Durability::Replicas(1)).watchdog_lease(lease);
    let locks = locks.connect().await.unwrap();
    let kept = locks.lock("kept").acquire().await.unwrap();
    let fixed = locks.lock("fixed").with_lease(Duration::from_secs(60)).acquire().await.unwrap();
    servers.replicas().for_each(RedisServer::pause);
    let (kept_until, fixed_until) = (kept.valid_until(), fixed.valid_until());
    let error = fixed.renew().await.unwrap_err();
    assert!(matches!(error, Error::NotReplicated { acked: 0, wanted: 1, .. }), "{error}");
    assert_eq!(fixed.valid_until(), fixed_until);
    assert!(fixed.is_valid(), "as before");

    assert_eq!(lost(&kept).await, LostReason::Expired);
    assert!(!kept_until.remaining().is_zero(), "told in time");
    assert_eq!(kept.valid_until(), kept_until);
    let metrics = locks.metrics();
    assert!(metrics.failed_renewals > 0 && metrics.renewals == 0, "{metrics:?}");
    assert_eq!(servers.primary().cli(&["EXISTS", "kept"]), "1", "the server does not know");

    servers.replicas().for_each(RedisServer::resume);
    drop(kept);
    assert!(gone(servers.primary(), "kept").await);
    fixed.renew().await.unwrap();
    assert!(fixed.valid_until() > fixed_until);
}

#[tokio::test]
async fn watchdog_keeps_acknowledged_holds() {
    let servers = replicas(1);
    let locks = builder(&servers.primary().url(), Durability::Replicas(1)).watchdog_lease(3 * TIMEOUT);
    let locks = locks.connect().await.unwrap();
    let mut guards = Vec::new();
    for number in 0..20 {
        guards.push(locks.lock(&format!("kept:{number}")).acquire().await.unwrap());
    }
    let monitor = servers.primary().monitor();
    let wanted = async || locks.metrics().renewals >= 60;
    assert!(eventually(PATIENCE, wanted).await, "{:?}", locks.metrics());
    assert!(guards.iter().all(wheellock::Guard::is_valid));
    assert!(at_rest(&locks).await);
    let observed = monitor.stop().unwrap();
    let scripts = observed.iter().filter(|command| command.name() == "EVALSHA").count();
    let waits = waits(&observed);
    assert!((1..=scripts).contains(&waits), "{waits} waits for {scripts} scripts");
}

#[tokio::test]
async fn w24_only_grants_await_replicas() {
    let servers = replicas(1);
    let url = servers.primary().url();
    let (locks, other) =
        (durable(&url, Durability::Replicas(1)).await, LockManager::connect(&url).await.unwrap());
    let held = other.lock("held").acquire().await.unwrap();
    let monitor = servers.primary().monitor();
    assert!(!locks.lock("held").try_acquire().await.unwrap().is_acquired());
    let guard = locks.lock("free").acquire().await.unwrap();
    guard.release().await.unwrap();
    drop(held);
    assert!(at_rest(&locks).await);
    let observed = monitor.stop().unwrap();
    let shown: Vec<_> =
        observed.iter().filter(|command| command.name() == "WAIT").map(|c| &c.args[1..]).collect();
    assert_eq!(shown, [["1", &TIMEOUT.as_millis().to_string()]], "once, and for one replica");
}

#[tokio::test]
async fn granted_lock_survives_failover() {
    let mut servers = replicas(1);
    let locks = durable(&servers.url(), Durability::Replicas(1)).await;
    let other = LockManager::connect(&servers.url()).await.unwrap();
    servers.replicas().for_each(RedisServer::pause);
    let lock = locks.lock("kept").with_lease(Duration::from_secs(60));
    let acquiring = tokio::spawn(async move { lock.acquire().await });
    assert!(taken(servers.primary(), "kept").await);
    assert!(!acquiring.is_finished(), "the primary alone is not enough");
    servers.replicas().for_each(RedisServer::resume);
    let guard = acquiring.await.unwrap().unwrap();
    servers.servers_mut()[0].kill();
    servers.promote(1);
    assert_eq!(servers.primary().cli(&["EXISTS", "kept"]), "1");
    let held = async || other.lock("kept").try_acquire().await.is_ok_and(|guard| !guard.is_acquired());
    assert!(eventually(PATIENCE, held).await);
    assert!(guard.is_valid());
    guard.release().await.unwrap();
}

#[tokio::test]
async fn disconnect_before_wait_never_fakes_grant() {
    let servers = replicas(1);
    let proxy = Proxy::before(servers.primary());
    let locks = durable(&proxy.url(), Durability::Replicas(1)).await;
    // The server executes the script and replies. WAIT then uses a new connection without writes.
    let cut = || Rule::new(Direction::ToServer, At::Command("WAIT", 0), Fault::Rst);
    let newest = || proxy.counts().accepted - 1;
    proxy.rule(cut().only_on(newest()));
    let guard = locks.lock("a").acquire().await.unwrap();
    assert_eq!(proxy.counts().faults, 1);
    guard.release().await.unwrap();

    servers.replicas().for_each(RedisServer::pause);
    proxy.rule(cut().only_on(newest()));
    let error = locks.lock("a").acquire().await.unwrap_err();
    assert!(matches!(error, Error::NotReplicated { acked: 0, wanted: 1, .. }), "{error}");
    assert_eq!(proxy.counts().faults, 2);

    // Repeated failures.
    servers.replicas().for_each(RedisServer::resume);
    proxy.rule(cut());
    let error = locks.lock("a").acquire().await.unwrap_err();
    assert_eq!(error.outcome(), Outcome::MaybeExecuted, "{error}");
    proxy.heal();
    assert!(gone(servers.primary(), "a").await);
}

#[tokio::test]
async fn deadline_ends_replica_wait() {
    let servers = paused(1);
    let locks = durable(&servers.primary().url(), Durability::Replicas(1)).await;
    let began = Instant::now();
    let error = locks.lock("a").try_acquire_for(TIMEOUT / 10).await.unwrap_err();
    assert!(matches!(error, Error::NotReplicated { acked: 0, wanted: 1, .. }), "{error}");
    assert!(began.elapsed() < TIMEOUT, "{:?}", began.elapsed());
    assert!(gone(servers.primary(), "a").await);
}

#[tokio::test]
async fn acquire_dropped_during_wait_is_revoked() {
    let servers = paused(1);
    let locks = durable(&servers.primary().url(), Durability::Replicas(1)).await;
    let lock = locks.lock("a");
    let acquiring = tokio::spawn(async move { lock.acquire().await });
    assert!(taken(servers.primary(), "a").await);
    acquiring.abort();
    assert!(acquiring.await.unwrap_err().is_cancelled());
    assert!(gone(servers.primary(), "a").await);
    assert!(at_rest(&locks).await);
}

#[tokio::test]
async fn revoked_grant_never_revives_vanished_lock() {
    let servers = replicas(1);
    let locks = durable(&servers.primary().url(), Durability::Replicas(1)).await;
    let lock = locks.lock("a");
    let outer = lock.acquire().await.unwrap();
    assert_eq!(servers.primary().cli(&["DEL", "a"]), "1");
    servers.replicas().for_each(RedisServer::pause);
    let error = lock.with_owner(outer.owner()).acquire().await.unwrap_err();
    assert!(matches!(error, Error::NotReplicated { acked: 0, wanted: 1, .. }), "{error}");
    assert_eq!(lost(&outer).await, LostReason::NotOwner);
    assert!(gone(servers.primary(), "a").await);
}

/// While a slot moves, the key's owner may differ from the node that granted the lock.
#[tokio::test]
async fn replicas_of_granting_node_must_acknowledge() {
    let cluster = Cluster::start(2, 1, &Settings::default());
    let locks = durable(&cluster.url(), Durability::Replicas(1)).await;
    let elsewhere = (0..).map(|number| format!("other:{number}"));
    let (slot, from) = (cluster.slot_of("orders"), cluster.owner_of_key("orders"));
    let elsewhere = elsewhere.into_iter().find(|name| cluster.owner_of_key(name) != from).unwrap();
    let to = cluster.owner_of_key(&elsewhere);
    for name in ["orders", &elsewhere] {
        let granted = async || locks.lock(name).try_acquire().await.is_ok_and(|guard| guard.is_acquired());
        assert!(eventually(PATIENCE, granted).await);
    }
    let replicas_of = |node| cluster.replicas_of(node).into_iter().map(|replica| &cluster.nodes()[replica]);

    cluster.begin_move(slot, to);
    replicas_of(from).for_each(RedisServer::pause);
    let guard = locks.lock("orders").acquire().await.unwrap();
    assert_eq!(cluster.nodes()[to].cli(&["CLUSTER", "COUNTKEYSINSLOT", &slot.to_string()]), "1");
    guard.renew().await.unwrap();
    guard.release().await.unwrap();

    replicas_of(from).for_each(RedisServer::resume);
    replicas_of(to).for_each(RedisServer::pause);
    let error = locks.lock("orders").acquire().await.unwrap_err();
    assert!(matches!(error, Error::NotReplicated { acked: 0, wanted: 1, .. }), "{error}");
}

#[tokio::test]
async fn missing_replicas_are_reported_grant_nothing() {
    let server = RedisServer::builder().tcp().arg("appendonly", "yes").start();
    let locks = durable(&server.url(), Durability::Replicas(2)).await;
    assert_eq!(locks.diagnostics(), [Finding::TooFewReplicas { connected: 0, wanted: 2 }]);
    let error = locks.lock("a").acquire().await.unwrap_err();
    let came = "0 of 2 acknowledgements came in time; the grant is being taken back";
    assert_eq!(error.to_string(), format!("cannot acquire \"a\" on {}: {came}", server.addr()));
    assert!(gone(&server, "a").await);

    let none = builder(&server.url(), Durability::Replicas(0)).connect().await.unwrap_err();
    assert!(matches!(none, Error::UnsupportedDurability { .. }), "{none}");
    let refused = server.cli(&["ACL", "SETUSER", "default", "-wait"]);
    assert_eq!(refused, "OK");
    let refused = builder(&server.url(), Durability::Replicas(1)).connect().await.unwrap_err();
    assert!(refused.to_string().contains("NOPERM"), "{refused}");
}

/// Redis 7.2 introduced WAITAOF.
#[tokio::test]
async fn grant_is_on_disk_with_waitaof() {
    let connect = async |server: &RedisServer| builder(&server.url(), DISK).connect().await;
    let server = RedisServer::builder().tcp().arg("appendonly", "yes").arg("appendfsync", "always").start();
    if server.cli(&["WAITAOF", "0", "0", "1"]).starts_with("(error)") {
        let error = connect(&server).await.unwrap_err();
        assert!(matches!(error, Error::UnsupportedDurability { durability: DISK, .. }), "{error}");
        assert!(error.to_string().contains("WAITAOF"), "{error}");
        return;
    }
    let locks = connect(&server).await.unwrap();
    let guard = locks.lock("a").acquire().await.unwrap();
    guard.renew().await.unwrap();
    guard.release().await.unwrap();

    // From now on, the server does not flush its file to disk.
    assert_eq!(server.cli(&["CONFIG", "SET", "appendfsync", "no"]), "OK");
    let error = locks.lock("a").acquire().await.unwrap_err();
    assert!(matches!(error, Error::NotReplicated { acked: 0, wanted: 1, .. }), "{error}");
    assert!(gone(&server, "a").await);

    let forgetful = RedisServer::builder().tcp().start();
    let error = connect(&forgetful).await.unwrap_err();
    assert!(error.to_string().contains("appendonly"), "{error}");
}

#[tokio::test]
async fn replica_disks_count_beside_primary() {
    let settings = Settings::default().arg("appendonly", "yes").arg("appendfsync", "always");
    let servers = following(1, &settings);
    let url = servers.primary().url();
    if servers.primary().cli(&["WAITAOF", "0", "0", "1"]).starts_with("(error)") {
        return;
    }
    // A replica starts its file some time after its data has arrived.
    let mut cli = servers.primary().connect().unwrap();
    let both_disks = || {
        let _write = cli.query(&["SET", "anything", "1", "PX", "1"]).unwrap();
        cli.query(&["WAITAOF", "1", "1", "1000"]).unwrap().to_string() == "1\n1"
    };
    assert!(poll_until(PATIENCE, both_disks));
    let locks = durable(&url, Durability::Aof { replicas: 1 }).await;
    // Other writers on the disk may make an acknowledgement late.
    assert!(eventually(PATIENCE, async || locks.lock("a").acquire().await.is_ok()).await);
    servers.replicas().for_each(RedisServer::pause);
    let error = locks.lock("a").acquire().await.unwrap_err();
    assert!(matches!(error, Error::NotReplicated { acked: 1, wanted: 2, .. }), "{error}");
}

const DISK: Durability = Durability::Aof { replicas: 0 };
/// The time limit of acknowledgements.
const TIMEOUT: Duration = Duration::from_millis(500);
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(3);
