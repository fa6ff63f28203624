//! Locks that survive a failover.
//!
//! The tests cut replicas off, and so choose which grants a failover loses.

use std::time::{Duration, Instant, SystemTime};

use wheellock::{Error, Fleet, Guard, Lock, LockManager, LostReason, Permit};
use wheellock_tests::topology::{Replicas, Settings};
use wheellock_tests::{RedisServer, eventually};

use crate::failover::{cut_off, replicated};

const LEASE: Duration = Duration::from_secs(4);
const WINDOW: Duration = Duration::from_millis(1500);
const REPLY: Duration = Duration::from_millis(500);
const PATIENCE: Duration = Duration::from_secs(30);

fn fleet(servers: u32) -> Fleet {
    let mut fleet = Fleet::of_servers(servers);
    (fleet.longest_lease, fleet.window, fleet.may_be_new) = (LEASE, WINDOW, true);
    fleet
}

async fn member(url: String, fleet: Fleet) -> LockManager {
    let locks = LockManager::builder(&url)
        .watchdog_lease(LEASE)
        .keep_locks_across_failovers(fleet)
        .configure(|config| config.response_timeout = REPLY)
        .connect()
        .await
        .unwrap();
    // The replicas have to know the process before its first lock.
    let is_ready = eventually(PATIENCE, async || {
        locks.lock("ready").try_acquire().await.is_ok_and(|guard| guard.is_acquired())
    });
    assert!(is_ready.await, "the process is not ready");
    locks
}

/// Kills the primary, and promotes the first replica. Both replicas lack the latest writes.
fn fail_over(set: &mut Replicas) {
    set.servers_mut()[0].kill();
    set.servers().iter().skip(1).for_each(RedisServer::resume);
    set.promote(1);
}

#[tokio::test]
async fn lost_holds_survive_failover() {
    let mut set = Replicas::start(2, &Settings::default());
    let locks = member(set.url(), fleet(3)).await;
    let other = member(set.url(), fleet(3)).await;
    replicated(&locks, 2).await;
    cut_off(set.servers(), 0, &[1, 2]);
    let (read_write, shared) = (locks.read_write_lock("w"), locks.read_write_lock("r"));
    let plain = locks.lock("plain").acquire().await.unwrap();
    let simple = locks.simple_lock("simple").acquire().await.unwrap();
    let fair = locks.fair_lock("fair").acquire().await.unwrap();
    let fenced = locks.fenced_lock("fenced").acquire().await.unwrap();
    let write = read_write.write().acquire().await.unwrap();
    let read = shared.read().acquire().await.unwrap();
    let second = locks.read_write_lock("r").read().acquire().await.unwrap();
    fail_over(&mut set);

    let names = ["plain", "simple", "fair", "fenced", "w", "r"];
    let missing = || names.iter().filter(|name| set.servers()[1].cli(&["EXISTS", name]) == "0").count();
    assert!(eventually(LEASE, async || missing() == 0).await, "{} locks are not written", missing());
    let is_granted = eventually(LEASE, async || {
        other.lock("free").try_acquire().await.is_ok_and(|guard| guard.is_acquired())
    });
    assert!(is_granted.await, "no lock is granted after the failover");
    assert!(!other.lock("plain").try_acquire().await.unwrap().is_acquired());
    assert!(!other.simple_lock("simple").try_acquire().await.unwrap().is_acquired());
    assert!(!other.read_write_lock("r").write().try_acquire().await.unwrap().is_acquired());
    assert!(!other.read_write_lock("w").read().try_acquire().await.unwrap().is_acquired());
    assert_eq!(set.servers()[1].cli(&["HLEN", "r"]), "3", "a mode and two readers");
    // The watchdog renews the holds on the new server.
    tokio::time::sleep(LEASE + WINDOW).await;
    for guard in [plain, simple, fair, write, read, second] {
        assert!(guard.is_valid(), "{guard:?}");
        guard.release().await.unwrap();
    }
    fenced.release().await.unwrap();
    assert!(other.lock("plain").try_acquire().await.unwrap().is_acquired());
}

/// Both processes are alive, and no replica follows the new primary.
#[tokio::test]
async fn grants_resume_before_replica_follows() {
    let mut set = Replicas::start(2, &Settings::default());
    let mut fleet = fleet(3);
    fleet.window = PATIENCE;
    let (locks, other) = (member(set.url(), fleet.clone()).await, member(set.url(), fleet).await);
    replicated(&locks, 2).await;
    cut_off(set.servers(), 0, &[1, 2]);
    let held = locks.lock("held").acquire().await.unwrap();
    set.servers_mut()[0].kill();
    set.servers()[1].resume();
    assert_eq!(set.servers()[1].cli(&["REPLICAOF", "NO", "ONE"]), "OK");
    let guard = other.lock("free").try_acquire_for(LEASE).await.unwrap().or_held().unwrap();
    assert!(!other.lock("held").try_acquire().await.unwrap().is_acquired());
    assert!(set.servers()[1].cli(&["INFO", "replication"]).contains("connected_slaves:0"));
    // The window is open, so the holds are extended.
    tokio::time::sleep(LEASE + REPLY).await;
    assert!(guard.is_valid() && held.is_valid());
}

/// The new primary does not know the owner yet when the owner takes the lock again and releases one share.
#[tokio::test]
async fn reentrant_hold_survives_failover() {
    let mut set = Replicas::start(2, &Settings::default());
    let locks = member(set.url(), fleet(3)).await;
    replicated(&locks, 2).await;
    cut_off(set.servers(), 0, &[1, 2]);
    let (owner, other) = (locks.owner(), locks.owner());
    let lock = locks.lock("orders").with_owner(owner);
    let (first, second) = (lock.acquire().await.unwrap(), lock.acquire().await.unwrap());
    let foreign = locks.lock("mine").with_owner(other.clone()).acquire().await.unwrap();
    // The replicas know another holder of this lock.
    set.servers_mut()[0].kill();
    let again = [lock, locks.lock("mine").with_owner(other)];
    let again = again.map(|lock| tokio::spawn(async move { lock.try_acquire_for(PATIENCE).await }));
    let released = tokio::spawn(second.release());
    let [one, two] = [1, 2].map(|replica| &set.servers()[replica]);
    [one, two].iter().for_each(|replica| replica.resume());
    assert_eq!(one.cli(&["REPLICAOF", "NO", "ONE"]), "OK");
    assert_eq!(one.cli(&["HSET", "mine", "00000000-0000-4000-8000-000000000000:1", "1"]), "1");
    // The new primary may be in its grace.
    tokio::time::sleep(REPLY).await;
    assert!(first.is_valid() && foreign.is_valid(), "lost by a server that did not know them");
    let address = one.addr();
    let follow = ["REPLICAOF", &address.ip().to_string(), &address.port().to_string()];
    assert_eq!(two.cli(&follow), "OK");
    released.await.unwrap().unwrap();
    let [third, fourth] = again;
    let (third, fourth) = (third.await.unwrap().unwrap(), fourth.await.unwrap().unwrap());
    assert!(third.is_acquired() && fourth.is_acquired());
    assert!(first.is_valid() && foreign.is_valid());
    assert_eq!(one.cli(&["HLEN", "mine"]), "1", "the old copy is gone");
}

/// The new primary has lost the counter of the tokens, and its clock is behind that counter.
#[tokio::test]
async fn token_rises_across_failover() {
    let mut set = Replicas::start(2, &Settings::default());
    let locks = member(set.url(), fleet(3)).await;
    let other = member(set.url(), fleet(3)).await;
    replicated(&locks, 2).await;
    cut_off(set.servers(), 0, &[1, 2]);
    let counter = "redisson_lock_token:{orders}";
    assert_eq!(set.servers()[0].cli(&["SET", counter, "5000000000000000"]), "OK");
    let lock = locks.fenced_lock("orders").with_owner(locks.owner());
    let held = lock.acquire().await.unwrap();
    assert_eq!(held.token(), 5_000_000_000_000_001);
    fail_over(&mut set);

    let again = lock.try_acquire_for(PATIENCE).await.unwrap().or_held().unwrap();
    assert_eq!(again.token(), held.token(), "the owner held the lock already");
    again.release().await.unwrap();
    let (token, next) = (held.token(), other.fenced_lock("orders"));
    assert!(!next.try_acquire().await.unwrap().is_acquired());
    held.release().await.unwrap();
    assert!(next.acquire().await.unwrap().token() > token);
}

/// The new primary knows two permits that were released, and does not know the permits that took their place.
#[tokio::test]
async fn living_permits_survive_failover() {
    let mut set = Replicas::start(2, &Settings::default());
    let locks = member(set.url(), fleet(3)).await;
    let other = member(set.url(), fleet(3)).await;
    let (pool, theirs) = (locks.permit_semaphore("pool"), other.permit_semaphore("pool"));
    pool.set_permits(2).await.unwrap();
    let (leases, old) = ("{pool}:timeout", ["00000000000000-1", "00000000000000-2"]);
    let ends = (SystemTime::UNIX_EPOCH.elapsed().unwrap() + LEASE).as_millis().to_string();
    let primary = &set.servers()[0];
    assert_eq!(primary.cli(&["ZADD", leases, &ends, old[0], &ends, old[1]]), "2");
    assert_eq!(primary.cli(&["DECRBY", "pool", "2"]), "0");
    replicated(&locks, 2).await;
    cut_off(set.servers(), 0, &[1, 2]);
    assert_eq!(primary.cli(&["ZREM", leases, old[0], old[1]]), "2");
    assert_eq!(primary.cli(&["INCRBY", "pool", "2"]), "2");
    let (held, last) = (theirs.acquire().await.unwrap(), pool.acquire().await.unwrap());
    fail_over(&mut set);

    let new = &set.servers()[1];
    let is_written = async || new.cli(&["ZCARD", leases]) == "4" && new.cli(&["GET", "pool"]) == "-2";
    assert!(eventually(LEASE, is_written).await, "{} permits", new.cli(&["ZCARD", leases]));
    let is_granted = eventually(LEASE, async || {
        other.lock("free").try_acquire().await.is_ok_and(|guard| guard.is_acquired())
    });
    assert!(is_granted.await, "no lock is granted after the failover");
    assert!(!theirs.try_acquire().await.unwrap().is_acquired());
    // The old copies end with their leases, and then only the living permits count.
    last.release().await.unwrap();
    let next = theirs.try_acquire_for(LEASE).await.unwrap();
    assert!(next.is_acquired(), "an old copy outlives its lease");
    tokio::time::sleep(LEASE + WINDOW).await;
    assert!(held.is_valid());
    assert!(!pool.try_acquire().await.unwrap().is_acquired());
    assert_eq!((pool.acquired().await.unwrap(), pool.permits().await.unwrap()), (2, 2));
    held.release().await.unwrap();
    assert!(pool.try_acquire().await.unwrap().is_acquired());
}

/// Neither the semaphore nor its permit is on the new primary. No process could ever write this permit there.
#[tokio::test]
async fn permit_without_semaphore_delays_no_grant() {
    let mut set = Replicas::start(2, &Settings::default());
    let locks = member(set.url(), fleet(3)).await;
    let other = member(set.url(), fleet(3)).await;
    replicated(&locks, 2).await;
    cut_off(set.servers(), 0, &[1, 2]);
    let pool = locks.permit_semaphore("pool");
    pool.set_permits(1).await.unwrap();
    let (permit, held) = (pool.acquire().await.unwrap(), locks.lock("held").acquire().await.unwrap());
    fail_over(&mut set);
    let reason = tokio::time::timeout(LEASE / 2, permit.lost()).await.expect("the permit is lost at once");
    assert_eq!(reason, LostReason::NotOwner);
    let is_granted = eventually(LEASE / 2, async || {
        other.lock("free").try_acquire().await.is_ok_and(|guard| guard.is_acquired())
    });
    assert!(is_granted.await, "no lock is granted after the failover");
    assert!(held.is_valid());
}

/// A grace lasts long beside a stopped process. It extends no hold that has less than a window left.
#[tokio::test]
async fn manual_renewal_in_grace_repeats_slowly() {
    let mut set = Replicas::start(2, &Settings::default());
    let locks = member(set.url(), fleet(3)).await;
    let stopped = member(set.url(), fleet(3)).await;
    let held = locks.lock("orders").with_lease(WINDOW).acquire().await.unwrap();
    replicated(&locks, 2).await;
    cut_off(set.servers(), 0, &[1, 2]);
    stopped.client().close().await;
    fail_over(&mut set);
    let new = &set.servers()[1];
    let scripts = || {
        let stats = new.cli(&["INFO", "commandstats"]);
        let calls = stats.split("cmdstat_evalsha:calls=").nth(1).and_then(|rest| rest.split(',').next());
        calls.map_or(0, |calls| calls.parse::<u32>().unwrap())
    };
    assert!(eventually(LEASE, async || new.cli(&["EXISTS", "orders"]) == "1").await);
    let (before, began) = (scripts(), Instant::now());
    let renewed = held.renew().await;
    assert!(renewed.is_err(), "{renewed:?}");
    let (sent, took) = (scripts() - before, began.elapsed());
    assert!(u128::from(sent) < 20 + took.as_millis() / 10, "{sent} scripts in {took:?}");
}

/// A stopped process is one that does not write its holds. No other process gets them before they have ended.
#[tokio::test]
async fn missing_process_delays_grants() {
    let mut set = Replicas::start(2, &Settings::default());
    let locks = member(set.url(), fleet(3)).await;
    replicated(&locks, 2).await;
    let dead = member(set.url(), fleet(3)).await;
    cut_off(set.servers(), 0, &[1, 2]);
    let held = dead.lock("orders").acquire().await.unwrap();
    let until = held.valid_until();
    // Without a connection, the process sends nothing any more.
    dead.client().close().await;
    fail_over(&mut set);

    let began = Instant::now();
    let refused = locks.lock("orders").try_acquire().await.unwrap_err();
    assert!(matches!(refused, Error::NotReady { .. }), "{refused}");
    let granted = eventually(PATIENCE, async || {
        locks.lock("orders").try_acquire().await.is_ok_and(|guard| guard.is_acquired())
    });
    assert!(granted.await);
    assert!(wheellock::BootInstant::now() > until, "granted while another process believed to hold it");
    assert!(began.elapsed() >= LEASE, "{:?}", began.elapsed());
    assert!(began.elapsed() < (LEASE + WINDOW).mul_f64(1.3), "{:?}", began.elapsed());
    std::mem::forget(held);
}

#[tokio::test]
async fn restart_without_data_loses_no_lock() {
    let mut server = RedisServer::builder().tcp().start();
    // A server without data may have lost them. So the first process waits as after a failover.
    let mut fleet = fleet(1);
    fleet.may_be_new = false;
    let locks = member(server.tcp_url(), fleet.clone()).await;
    let other = member(server.tcp_url(), fleet).await;
    let held = locks.lock("orders").acquire().await.unwrap();
    server.restart_clean();
    assert!(eventually(LEASE, async || server.cli(&["EXISTS", "orders"]) == "1").await);
    let granted = eventually(PATIENCE, async || {
        other.lock("free").try_acquire().await.is_ok_and(|guard| guard.is_acquired())
    });
    assert!(granted.await);
    assert!(held.is_valid() && !other.lock("orders").try_acquire().await.unwrap().is_acquired());
    held.release().await.unwrap();
}

/// The data of a replica may be old. Its process, and so its run id, stays the same.
#[tokio::test]
async fn repromoted_server_begins_grace() {
    let server = RedisServer::builder().tcp().start();
    let locks = member(server.tcp_url(), fleet(1)).await;
    let held = locks.lock("orders").acquire().await.unwrap();
    let address = RedisServer::builder().tcp().start().addr();
    assert_eq!(server.cli(&["REPLICAOF", &address.ip().to_string(), &address.port().to_string()]), "OK");
    assert_eq!(server.cli(&["REPLICAOF", "NO", "ONE"]), "OK");
    assert!(eventually(LEASE, async || locks.metrics().reclaimed == 1).await);
    assert!(held.is_valid());

    // The server is the same when it has lost the hash of the fleet.
    let number = || server.cli(&["HGET", "wheellock:fleet", "number"]);
    assert_eq!(number(), "1");
    assert_eq!(server.cli(&["DEL", "wheellock:fleet"]), "1");
    assert!(eventually(LEASE, async || number() == "1").await);
    assert_eq!(locks.metrics().reclaimed, 1);
    assert!(held.is_valid());
    held.release().await.unwrap();
}

#[tokio::test]
async fn unknown_process_acquires_nothing() {
    let set = Replicas::start(2, &Settings::default());
    let locks = member(set.url(), fleet(3)).await;
    set.servers()[2].pause();
    let new = LockManager::builder(set.url())
        .watchdog_lease(LEASE)
        .keep_locks_across_failovers(fleet(3))
        .configure(|config| config.response_timeout = REPLY)
        .connect()
        .await
        .unwrap();
    let refused = new.lock("orders").try_acquire().await.unwrap_err();
    assert!(matches!(refused, Error::NotReady { .. }), "{refused}");
    assert!(locks.lock("orders").try_acquire().await.unwrap().is_acquired(), "an older process goes on");
    set.servers()[2].resume();
    let granted = eventually(PATIENCE, async || {
        new.lock("orders").try_acquire().await.is_ok_and(|guard| guard.is_acquired())
    });
    assert!(granted.await);
}

#[tokio::test]
async fn different_fleet_is_refused() {
    let server = RedisServer::builder().tcp().start();
    let locks = member(server.tcp_url(), fleet(1)).await;
    let refused = LockManager::builder(server.tcp_url())
        .watchdog_lease(LEASE)
        .keep_locks_across_failovers(fleet(2))
        .configure(|config| config.response_timeout = REPLY)
        .connect()
        .await
        .unwrap_err();
    assert!(matches!(refused, Error::UnsupportedFleet { .. }), "{refused}");
    let long = locks.lock("orders").with_lease(2 * LEASE).try_acquire().await.unwrap_err();
    assert!(matches!(long, Error::LeaseTooLong { .. }), "{long}");
}

/// The processes of a fleet end without a shutdown, and their entries stay.
#[tokio::test]
async fn ended_fleet_accepts_other_numbers() {
    let server = RedisServer::builder().tcp().start();
    let numbers = |window: u32| {
        let mut fleet = Fleet::of_servers(1);
        (fleet.longest_lease, fleet.window, fleet.may_be_new) = (2 * REPLY, REPLY * window, true);
        fleet
    };
    let connect = async |fleet: Fleet| {
        let builder = LockManager::builder(server.tcp_url()).watchdog_lease(2 * REPLY);
        builder
            .configure(|config| config.response_timeout = REPLY)
            .keep_locks_across_failovers(fleet)
            .connect()
            .await
    };
    let locks = connect(numbers(1)).await.unwrap();
    drop(locks.lock("held").acquire().await.unwrap());
    drop(locks);
    assert!(matches!(connect(numbers(2)).await.unwrap_err(), Error::UnsupportedFleet { .. }));
    assert!(eventually(PATIENCE, async || connect(numbers(2)).await.is_ok()).await);
}

/// An eviction removes the fleet's numbers, and keeps the entries of its processes.
#[tokio::test]
async fn lost_numbers_are_written_again() {
    let server = RedisServer::builder().tcp().start();
    let locks = member(server.tcp_url(), fleet(1)).await;
    let held = locks.lock("held").acquire().await.unwrap();
    assert_eq!(server.cli(&["DEL", "wheellock:fleet"]), "1");
    tokio::time::sleep(LEASE + WINDOW).await;
    assert!(held.is_valid());
    let is_granted = async || locks.lock("free").try_acquire().await.is_ok_and(|guard| guard.is_acquired());
    assert!(eventually(PATIENCE, is_granted).await, "{}", locks.health());
}

/// Without its replica the primary cannot extend holds, and no failover is under way.
#[tokio::test]
async fn missing_replica_shows_failing_renewals() {
    let mut set = Replicas::start(1, &Settings::default());
    let locks = member(set.url(), fleet(2)).await;
    let held = locks.lock("held").acquire().await.unwrap();
    assert_eq!(locks.metrics().failing, 0);
    set.servers_mut()[1].kill();
    assert!(eventually(PATIENCE, async || locks.metrics().failing == 1).await);
    assert!(held.is_valid());
    held.lost().await;
    assert_eq!(locks.metrics().failing, 0);
}

/// The watchdog does not extend the lease, but the new primary has to know the hold.
#[tokio::test]
async fn failed_reclaim_of_fixed_lease_repeats() {
    let mut set = Replicas::start(1, &Settings::default());
    let locks = member(set.url(), fleet(2)).await;
    replicated(&locks, 1).await;
    cut_off(set.servers(), 0, &[1]);
    let held = locks.lock("orders").with_lease(LEASE).acquire().await.unwrap();
    set.servers_mut()[0].kill();
    let server = &set.servers()[1];
    server.resume();
    let keys = |pattern| assert_eq!(server.cli(&["ACL", "SETUSER", "default", "resetkeys", pattern]), "OK");
    keys("~wheellock:*");
    assert_eq!(server.cli(&["REPLICAOF", "NO", "ONE"]), "OK");
    let errors = || server.cli(&["INFO", "errorstats"]);
    assert!(eventually(LEASE, async || errors().contains("NOPERM")).await);
    // Another attempt follows when the process may extend its holds.
    tokio::time::sleep(LEASE / 4).await;
    keys("~*");
    assert!(eventually(LEASE, async || server.cli(&["TYPE", "orders"]) == "hash").await);
    assert!(held.is_valid());
}

enum Taken {
    Lock(Guard),
    Permit(Permit),
}

impl Taken {
    /// Acquires a lock of this kind, or a permit.
    async fn of_kind(locks: &LockManager, kind: &str, name: &str) -> Self {
        if kind == "permit" {
            let permits = locks.permit_semaphore("permits").with_lease(LEASE);
            return Self::Permit(permits.acquire().await.unwrap());
        }
        Self::Lock(lock_of_kind(locks, kind, name).acquire().await.unwrap())
    }

    fn guard(&self) -> &Guard {
        match self {
            Self::Lock(guard) => guard,
            Self::Permit(permit) => permit,
        }
    }

    async fn release(self) -> Result<(), Error> {
        match self {
            Self::Lock(guard) => guard.release().await.map(drop),
            Self::Permit(permit) => permit.release().await.map(drop),
        }
    }
}

/// Returns a lock of this kind. Checks of its fixed lease do not extend it.
fn lock_of_kind(locks: &LockManager, kind: &str, name: &str) -> Lock {
    let lock = match kind {
        "plain" => locks.lock(name),
        "simple" => locks.simple_lock(name),
        "fair" => locks.fair_lock(name),
        "fenced" => locks.fenced_lock(name).as_lock().clone(),
        "write" => locks.read_write_lock(name).write(),
        _ => locks.read_write_lock(name).read(),
    };
    lock.with_lease(LEASE)
}

const KINDS: [&str; 7] = ["plain", "simple", "fair", "fenced", "write", "read", "permit"];

/// Connects managers that do not refresh their entries during a test. The first refusal leads a manager to the new primary, so each
/// request needs a manager of its own.
async fn quiet_members(set: &Replicas, count: usize) -> Vec<LockManager> {
    let mut fleet = fleet(3);
    fleet.window = PATIENCE;
    let mut members = Vec::new();
    for _ in 0..count {
        members.push(member(set.url(), fleet.clone()).await);
    }
    let permits = u32::try_from(count).unwrap();
    assert!(members[0].permit_semaphore("permits").try_set_permits(permits).await.unwrap());
    members
}

/// Replaces the primary without ending connections, as an operator may. Returns when the old primary has the data of the new one.
async fn demote(set: &mut Replicas) {
    assert_eq!(set.servers()[0].cli(&["SET", "unreplicated", "1"]), "OK");
    set.servers()[0].pause();
    set.servers().iter().skip(1).for_each(RedisServer::resume);
    assert_eq!(set.servers()[1].cli(&["REPLICAOF", "NO", "ONE"]), "OK");
    set.servers()[0].resume();
    set.promote(1);
    assert!(eventually(LEASE, async || set.servers()[0].cli(&["EXISTS", "unreplicated"]) == "0").await);
}

/// The new primary has the hold without its renewal.
#[tokio::test]
async fn demoted_server_shortens_no_lease() {
    let mut set = Replicas::start(2, &Settings::default());
    let members = quiet_members(&set, KINDS.len()).await;
    let mut taken = Vec::new();
    for (locks, kind) in members.iter().zip(KINDS) {
        taken.push(Taken::of_kind(locks, kind, kind).await);
    }
    replicated(&members[0], 2).await;
    cut_off(set.servers(), 0, &[1, 2]);
    // The renewed lease has to end later than the replicated one.
    tokio::time::sleep(LEASE / 8).await;
    for taken in &taken {
        taken.guard().renew().await.unwrap();
    }
    let ends: Vec<_> = taken.iter().map(|taken| taken.guard().valid_until()).collect();
    demote(&mut set).await;

    let is_reclaimed = async || {
        for ((taken, kind), end) in taken.iter().zip(KINDS).zip(&ends) {
            let by = end.saturating_duration_since(taken.guard().valid_until());
            // A check rounds the remaining lease down.
            assert!(by < LEASE / 40, "{kind}, by {by:?}");
        }
        members.iter().all(|locks| locks.metrics().reclaimed > 0)
    };
    assert!(eventually(LEASE, is_reclaimed).await);
}

/// The new primary does not have the hold.
#[tokio::test]
async fn demoted_server_ends_no_hold() {
    let mut set = Replicas::start(2, &Settings::default());
    let members = quiet_members(&set, 2 * KINDS.len()).await;
    replicated(&members[0], 2).await;
    cut_off(set.servers(), 0, &[1, 2]);
    let mut taken = Vec::new();
    for (place, locks) in members.iter().enumerate() {
        taken.push(Taken::of_kind(locks, KINDS[place / 2], &format!("lock:{place}")).await);
    }
    demote(&mut set).await;

    let mut asked = Vec::new();
    for (place, taken) in taken.into_iter().enumerate() {
        let renews = place % 2 == 0;
        asked.push(tokio::spawn(async move {
            if !renews {
                return (taken.release().await, None);
            }
            (taken.guard().renew().await, Some(taken))
        }));
    }
    let mut kept = Vec::new();
    for (place, asked) in asked.into_iter().enumerate() {
        let (result, taken) = asked.await.unwrap();
        assert!(result.is_ok(), "{}, {place}: {result:?}", KINDS[place / 2]);
        kept.extend(taken);
    }
    let is_written = |place: usize| set.servers()[1].cli(&["EXISTS", &format!("lock:{place}")]) == "1";
    assert!(eventually(LEASE, async || (0..12).step_by(2).all(is_written)).await);
}

/// One script releases several locks that the new primary does not have.
#[tokio::test]
async fn demoted_server_refuses_batched_releases() {
    let mut set = Replicas::start(2, &Settings::default());
    let kinds = ["plain", "simple"];
    let members = quiet_members(&set, kinds.len()).await;
    replicated(&members[0], 2).await;
    cut_off(set.servers(), 0, &[1, 2]);
    let mut taken = Vec::new();
    for (locks, kind) in members.iter().zip(kinds) {
        for place in 0..8 {
            taken.push(Taken::of_kind(locks, kind, &format!("{kind}:{place}")).await);
        }
    }
    demote(&mut set).await;
    let released: Vec<_> = taken.into_iter().map(|taken| tokio::spawn(taken.release())).collect();
    for (place, released) in released.into_iter().enumerate() {
        let released = released.await.unwrap();
        assert!(released.is_ok(), "{}: {released:?}", kinds[place / 8]);
    }
    assert!(set.servers()[0].cli(&["INFO", "errorstats"]).contains("READONLY"));
}

/// Each owner has two guards. It releases one of them, and the new primary knows neither.
#[tokio::test]
async fn demoted_server_refuses_inner_releases() {
    let mut set = Replicas::start(2, &Settings::default());
    let kinds = ["plain", "fair", "fenced", "write", "read"];
    let members = quiet_members(&set, kinds.len()).await;
    replicated(&members[0], 2).await;
    cut_off(set.servers(), 0, &[1, 2]);
    let (mut outer, mut inner) = (Vec::new(), Vec::new());
    for (locks, kind) in members.iter().zip(kinds) {
        let lock = lock_of_kind(locks, kind, kind).with_owner(locks.owner());
        outer.push(lock.acquire().await.unwrap());
        inner.push(lock.acquire().await.unwrap());
    }
    demote(&mut set).await;
    let released: Vec<_> = inner.into_iter().map(|guard| tokio::spawn(guard.release())).collect();
    for (released, kind) in released.into_iter().zip(kinds) {
        let released = released.await.unwrap();
        assert!(released.is_ok(), "{kind}: {released:?}");
    }
    let is_written = |kind: &&str| set.servers()[1].cli(&["EXISTS", kind]) == "1";
    assert!(eventually(LEASE, async || kinds.iter().all(is_written)).await);
    for (guard, kind) in outer.into_iter().zip(kinds) {
        assert!(guard.is_valid(), "{kind}");
        guard.release().await.unwrap();
    }
}

/// The new primary has no memory for new locks.
#[tokio::test]
async fn full_server_keeps_locks_across_failover() {
    let mut set = Replicas::start(2, &Settings::default());
    let locks = member(set.url(), fleet(3)).await;
    let permits = locks.permit_semaphore("permits");
    assert!(permits.try_set_permits(2).await.unwrap());
    let known = locks.lock("known").acquire().await.unwrap();
    replicated(&locks, 2).await;
    cut_off(set.servers(), 0, &[1, 2]);
    let plain = locks.lock("plain").acquire().await.unwrap();
    let simple = locks.simple_lock("simple").acquire().await.unwrap();
    let fenced = locks.fenced_lock("fenced").acquire().await.unwrap();
    let write = locks.read_write_lock("w").write().acquire().await.unwrap();
    let read = locks.read_write_lock("r").read().acquire().await.unwrap();
    let permit = permits.acquire().await.unwrap();
    set.servers_mut()[0].kill();
    for server in &set.servers()[1..] {
        server.resume();
        assert_eq!(server.cli(&["CONFIG", "SET", "maxmemory", "1"]), "OK");
    }
    assert_eq!(set.servers()[1].cli(&["REPLICAOF", "NO", "ONE"]), "OK");
    let port = set.servers()[1].addr().port().to_string();
    assert_eq!(set.servers()[2].cli(&["REPLICAOF", "127.0.0.1", &port]), "OK");
    tokio::time::sleep(LEASE + WINDOW).await;
    for guard in [known, plain, simple, write, read] {
        assert!(guard.is_valid(), "{guard:?}");
        guard.release().await.unwrap();
    }
    fenced.release().await.unwrap();
    permit.release().await.unwrap();
}
