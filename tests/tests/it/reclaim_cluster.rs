//! Locks of a cluster that survive a failover of their shard.

use std::time::Duration;

use wheellock::{BootInstant, Error, Fleet, LockManager, LockManagerBuilder};
use wheellock_client::Command;
use wheellock_tests::eventually;
use wheellock_tests::topology::{Cluster, Settings};

use crate::failover::cut_off;

const LEASE: Duration = Duration::from_secs(10);
const WINDOW: Duration = Duration::from_secs(2);
const REPLY: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(60);
/// Locks of three shards. All locks with the same tag are in one shard.
const SHARDS: [&str; 3] = ["{a}", "{b}", "{c}"];

fn builder(url: &str, servers: u32) -> LockManagerBuilder {
    let mut fleet = Fleet::of_servers(servers);
    (fleet.longest_lease, fleet.window, fleet.may_be_new) = (LEASE, WINDOW, true);
    LockManager::builder(url)
        .watchdog_lease(LEASE)
        .keep_locks_across_failovers(fleet)
        .configure(|config| config.response_timeout = REPLY)
}

/// Returns the slots of the fleet's keys on a node.
fn fleet_slots(cluster: &Cluster, node: usize) -> Vec<u16> {
    (512..16_384).step_by(1024).filter(|slot| cluster.owner_of(*slot) == node).collect()
}

async fn member(cluster: &Cluster, servers: u32) -> LockManager {
    let locks = builder(&cluster.url(), servers).connect().await.unwrap();
    assert!(eventually(PATIENCE, async || locks.is_healthy()).await, "{}", locks.health());
    locks
}

async fn is_granted(locks: &LockManager, name: &str) -> bool {
    locks.lock(name).try_acquire().await.is_ok_and(|guard| guard.is_acquired())
}

/// A cluster whose first shard fails over.
struct Failover {
    cluster: Cluster,
    primary: usize,
    replicas: Vec<usize>,
}

impl Failover {
    fn of(shard: &str) -> Self {
        let cluster = Cluster::start(3, 2, &Settings::default());
        let owners = SHARDS.map(|shard| cluster.owner_of_key(shard));
        assert!(owners[0] != owners[1] && owners[1] != owners[2] && owners[0] != owners[2], "{owners:?}");
        for node in cluster.nodes() {
            // Otherwise the other shards refuse all commands until the replica has taken over.
            assert_eq!(node.cli(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]), "OK");
        }
        let primary = cluster.owner_of_key(shard);
        let replicas = cluster.replicas_of(primary);
        Self { cluster, primary, replicas }
    }

    /// Cuts the shard's replicas off when they know all writes so far.
    async fn cut_off(&self, locks: &LockManager) {
        for node in locks.client().nodes() {
            let acks = node.call(&Command::new("WAIT").arg("2").arg("5000")).await.unwrap();
            assert_eq!(acks.as_i64(), Some(2));
        }
        cut_off(self.cluster.nodes(), self.primary, &self.replicas);
    }

    /// Kills the primary, and lets a replica take over that lacks the latest writes.
    fn begin(&mut self) {
        self.cluster.nodes_mut()[self.primary].kill();
        self.replicas.iter().for_each(|replica| self.cluster.nodes()[*replica].resume());
    }

    /// Returns true if the shard's new primary has this lock.
    fn has(&self, name: &str) -> bool {
        self.replicas.iter().any(|replica| self.cluster.nodes()[*replica].cli(&["EXISTS", name]) == "1")
    }

    /// Waits until the shard grants a lock again. Meanwhile the other shards grant.
    async fn end(&self, locks: &LockManager, shard: &str) {
        let others = SHARDS.map(|shard| format!("{shard}:other"));
        let free = format!("{shard}:free");
        let ended = eventually(PATIENCE, async || {
            for other in others.iter().filter(|other| !other.starts_with(shard)) {
                let granted = locks.lock(other).try_acquire().await;
                assert!(granted.as_ref().is_ok_and(|it| it.is_acquired()), "{other}: {granted:?}");
            }
            is_granted(locks, &free).await
        });
        assert!(ended.await, "{}", locks.health());
    }
}

#[tokio::test]
async fn lost_holds_survive_failover_of_shard() {
    let shard = SHARDS[1];
    let mut failover = Failover::of(shard);
    let locks = member(&failover.cluster, 3).await;
    let other = member(&failover.cluster, 3).await;
    failover.cut_off(&locks).await;
    let names = ["plain", "simple", "fair", "rw"].map(|kind| format!("{shard}:{kind}"));
    let [plain, simple, fair, shared] = &names;
    let guards = [
        locks.lock(plain).acquire().await.unwrap(),
        locks.simple_lock(simple).acquire().await.unwrap(),
        locks.fair_lock(fair).acquire().await.unwrap(),
        locks.read_write_lock(shared).read().acquire().await.unwrap(),
        locks.lock("{a}:elsewhere").acquire().await.unwrap(),
    ];
    failover.begin();

    failover.end(&other, shard).await;
    assert!(names.iter().all(|name| failover.has(name)), "not all locks are written");
    assert!(!is_granted(&other, plain).await);
    assert!(!other.simple_lock(simple).try_acquire().await.unwrap().is_acquired());
    assert!(!other.read_write_lock(shared).write().try_acquire().await.unwrap().is_acquired());
    assert!(!is_granted(&other, "{a}:elsewhere").await);
    // The watchdog renews the holds on the new server.
    tokio::time::sleep(LEASE + WINDOW).await;
    for guard in guards {
        assert!(guard.is_valid(), "{guard:?}");
        guard.release().await.unwrap();
    }
    assert!(is_granted(&other, plain).await);
}

/// The dead process may hold locks of the shard that failed over, and of no other.
#[tokio::test]
async fn missing_process_delays_its_shard_only() {
    let shard = SHARDS[2];
    let mut failover = Failover::of(shard);
    let locks = member(&failover.cluster, 3).await;
    let dead = member(&failover.cluster, 3).await;
    failover.cut_off(&locks).await;
    let name = format!("{shard}:orders");
    let held = dead.lock(&name).acquire().await.unwrap();
    let until = held.valid_until();
    dead.client().close().await;
    failover.begin();

    let in_grace = async || {
        let refused = locks.lock(&name).try_acquire().await;
        matches!(refused, Err(Error::NotReady { ref reason, .. }) if reason.contains("a failover"))
    };
    assert!(eventually(PATIENCE, in_grace).await, "{}", locks.health());
    assert!(BootInstant::now() < until, "too late to tell");
    failover.end(&locks, shard).await;
    assert!(BootInstant::now() > until, "granted while another process believed to hold it");
    assert!(is_granted(&locks, &name).await);
    std::mem::forget(held);
}

/// The demoted primary keeps its connections, and becomes the replica of its successor.
#[tokio::test]
async fn ordered_failover_keeps_locks() {
    let cluster = Cluster::start(3, 1, &Settings::default());
    let (locks, other) = (member(&cluster, 2).await, member(&cluster, 2).await);
    let held = locks.lock("{a}:held").acquire().await.unwrap();
    let primary = cluster.owner_of_key("{a}");
    cluster.failover(cluster.replicas_of(primary)[0]);
    assert!(eventually(PATIENCE, async || is_granted(&other, "{a}:free").await).await, "{}", other.health());
    assert!(!is_granted(&other, "{a}:held").await);
    tokio::time::sleep(LEASE).await;
    assert!(held.is_valid() && locks.is_healthy(), "{}", locks.health());
    held.release().await.unwrap();
    assert!(is_granted(&other, "{a}:held").await);
}

/// A tool has begun to move a slot of the fleet, and has moved no key yet.
#[tokio::test]
async fn open_slot_keeps_fleet() {
    let cluster = Cluster::start(3, 0, &Settings::default());
    let locks = member(&cluster, 1).await;
    let held = locks.lock("{a}:held").acquire().await.unwrap();
    let from = cluster.owner_of_key("{a}");
    let [source, target] = [from, (from + 1) % 3].map(|node| &cluster.nodes()[node]);
    let [source_id, target_id] = [source, target].map(|node| node.cli(&["CLUSTER", "MYID"]));
    let slot = fleet_slots(&cluster, from)[0].to_string();
    assert_eq!(target.cli(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &source_id]), "OK");
    assert_eq!(source.cli(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &target_id]), "OK");
    tokio::time::sleep(2 * WINDOW).await;
    assert!(locks.is_healthy() && is_granted(&locks, "{a}:free").await, "{}", locks.health());
    assert!(held.is_valid());
    assert_eq!(locks.metrics().failed_refreshes, 0);
}

#[tokio::test]
async fn moved_slots_keep_locks() {
    let cluster = Cluster::start(3, 0, &Settings::default());
    let (locks, other) = (member(&cluster, 1).await, member(&cluster, 1).await);
    let held = locks.lock("{a}:held").acquire().await.unwrap();
    let from = cluster.owner_of_key("{a}");
    let to = (from + 1) % 3;
    cluster.move_slot(cluster.slot_of("{a}"), to);
    held.renew().await.unwrap();
    assert!(is_granted(&other, "{a}:free").await, "{}", other.health());
    assert!(!is_granted(&other, "{a}:held").await);

    // A key of the fleet arrives at a shard that has others.
    let key = fleet_slots(&cluster, from)[0];
    cluster.move_slot(key, to);
    let arrived = async || cluster.nodes()[to].cli(&["CLUSTER", "COUNTKEYSINSLOT", &key.to_string()]) != "0";
    assert!(eventually(PATIENCE, arrived).await);
    for locks in [&locks, &other] {
        assert!(eventually(PATIENCE, async || locks.is_healthy()).await, "{}", locks.health());
        for free in SHARDS.map(|shard| format!("{shard}:free")) {
            let ready = eventually(PATIENCE, async || is_granted(locks, &free).await);
            assert!(ready.await, "{free}: {}", locks.health());
        }
    }
    tokio::time::sleep(LEASE).await;
    assert!(held.is_valid() && !is_granted(&other, "{a}:held").await);
    held.release().await.unwrap();
    assert_eq!(locks.metrics().lost_not_owner + locks.metrics().lost_expired, 0);
}

/// Each process has left the server that a key of the fleet comes back to. It does not have to wait until its holds would be over.
#[tokio::test]
async fn returned_slot_keeps_locks() {
    let cluster = Cluster::start(3, 0, &Settings::default());
    let (locks, other) = (patient_member(&cluster).await, patient_member(&cluster).await);
    let held = locks.lock("{b}:held").acquire().await.unwrap();
    let from = cluster.owner_of_key("{b}");
    let slot = fleet_slots(&cluster, from)[0];
    for to in [(from + 1) % 3, from] {
        cluster.move_slot(slot, to);
        assert!(eventually(PATIENCE, async || ends_grace(&cluster, slot, to)).await, "the grace has no end");
        for locks in [&locks, &other] {
            for free in SHARDS.map(|shard| format!("{shard}:free")) {
                let ready = eventually(PATIENCE, async || is_granted(locks, &free).await);
                assert!(ready.await, "{free}: {}", locks.health());
            }
        }
    }
    assert!(held.is_valid() && !is_granted(&other, "{b}:held").await);
    held.release().await.unwrap();
    assert_eq!(locks.metrics().lost_not_owner + locks.metrics().lost_expired, 0);
}

/// Returns a process whose holds could last for longer than this test waits.
async fn patient_member(cluster: &Cluster) -> LockManager {
    let mut fleet = Fleet::of_servers(1);
    (fleet.longest_lease, fleet.window, fleet.may_be_new) = (4 * PATIENCE, WINDOW, true);
    let builder = builder(&cluster.url(), 1).keep_locks_across_failovers(fleet);
    let locks = builder.connect().await.unwrap();
    assert!(eventually(PATIENCE, async || locks.is_healthy()).await, "{}", locks.health());
    locks
}

/// Returns true if the grace is over on this node for the fleet's key in this slot.
fn ends_grace(cluster: &Cluster, slot: u16, node: usize) -> bool {
    let node = &cluster.nodes()[node];
    let info = node.cli(&["INFO", "server"]);
    let run_id = info.lines().find_map(|line| line.strip_prefix("run_id:")).unwrap().trim();
    let keys = node.cli(&["CLUSTER", "GETKEYSINSLOT", &slot.to_string(), "10"]);
    let fleet = keys.lines().find(|key| key.ends_with('}')).unwrap_or_default();
    node.cli(&["HGET", fleet, "era"]).starts_with(run_id)
}

#[tokio::test]
async fn shard_without_key_is_refused() {
    let cluster = Cluster::start(3, 0, &Settings::default());
    for slot in fleet_slots(&cluster, 0) {
        cluster.move_slot(slot, 1);
    }
    let refused = builder(&cluster.url(), 1).connect().await.unwrap_err();
    assert!(matches!(refused, Error::UnsupportedFleet { .. }), "{refused}");
    assert!(refused.to_string().contains("none of the 16 slots"), "{refused}");
}
