//! The releases that a failover loses.
//!
//! The primary has confirmed them, and the promoted replica does not know them. The tests cut replicas off, and so choose which releases
//! are lost.

use std::time::Duration;

use tokio::time::timeout;
use wheellock::{Guard, LockManager};
use wheellock_client::Command;
use wheellock_tests::topology::{Cluster, Replicas, SentinelSet, Settings};
use wheellock_tests::worker::connect;
use wheellock_tests::{RedisServer, eventually};

/// B2: the library sends releases that a failover lost to the new primary again.
#[tokio::test]
async fn lost_releases_repeat_after_failover() {
    let mut set = SentinelSet::start(&Settings::default());
    let (here, there) = (connect(&set.url(), LONG).await.unwrap(), patient(&set.url()).await);
    let names: Vec<_> = (0..300).map(|number| format!("order:{number}")).collect();
    let guards = take_and_replicate(&here, &names, 2).await;
    let old = set.primary_index();
    let replicas: Vec<usize> = (0..3).filter(|index| *index != old).collect();
    cut_off(set.servers(), old, &replicas);
    release(guards, &set.servers()[old]).await;
    set.servers_mut()[old].kill();
    replicas.iter().for_each(|index| set.servers()[*index].resume());

    // Another process gets every lock long before its lease would have ended.
    for name in &names {
        let next = timeout(NO_HANG, there.lock(name).acquire()).await.unwrap_or_else(|_| panic!("{name}"));
        next.unwrap().release().await.unwrap();
    }
    told_no_loss(&here);
}

/// B2: the first server that takes over knows a release, and the second, soon after, does not. It gets the release again.
#[tokio::test]
async fn second_failover_repeats_known_release() {
    let mut set = Replicas::start(2, &Settings::default());
    let locks = connect(&set.url(), LONG).await.unwrap();
    let guards = take_and_replicate(&locks, &["orders".to_owned()], 2).await;
    cut_off(set.servers(), 0, &[2]);
    release(guards, &set.servers()[0]).await;
    let first = &set.servers()[1];
    assert!(eventually(NO_HANG, async || first.cli(&["DBSIZE"]) == "0").await, "it hears of the release");
    assert_eq!(first.cli(&["REPLICAOF", "NO", "ONE"]), "OK");
    set.servers_mut()[0].kill();
    let first = &set.servers()[1];
    // Replication does not send scripts, so a script here is the repeated release.
    let is_told =
        eventually(NO_HANG, async || first.cli(&["INFO", "commandstats"]).contains("cmdstat_evalsha:"));
    assert!(is_told.await);
    set.servers()[2].resume();
    let second = &set.servers()[2];
    assert_eq!(second.cli(&["EXISTS", "orders"]), "1", "it has not heard of the release");
    assert_eq!(second.cli(&["REPLICAOF", "NO", "ONE"]), "OK");
    set.servers_mut()[1].kill();

    let second = &set.servers()[2];
    assert!(eventually(NO_HANG, async || second.cli(&["EXISTS", "orders"]) == "0").await, "held by nobody");
    told_no_loss(&locks);
}

/// B2: in a cluster, the replica of a dead node gets the releases of the node's slots again.
#[tokio::test]
async fn cluster_failover_repeats_lost_releases() {
    let mut cluster = Cluster::start(3, 1, &Settings::default());
    let locks = connect(&cluster.url(), LONG).await.unwrap();
    let victim = cluster.owner_of_key("order");
    let names: Vec<_> = (0..300).map(|number| format!("order:{number}")).collect();
    let guards: Vec<_> = take(&locks, &names).await;
    for node in locks.client().nodes() {
        assert_eq!(node.call(&Command::new("WAIT").arg("1").arg("5000")).await.unwrap().as_i64(), Some(1));
    }
    let heir = cluster.replicas_of(victim)[0];
    cut_off(cluster.nodes(), victim, &[heir]);
    release(guards, &cluster.nodes()[victim]).await;
    cluster.nodes_mut()[victim].kill();
    cluster.nodes()[heir].resume();

    let heir = &cluster.nodes()[heir];
    assert!(heir.cli(&["DBSIZE"]) != "0", "it has not heard of the releases");
    assert!(eventually(NO_HANG, async || heir.cli(&["DBSIZE"]) == "0").await, "held by nobody");
    told_no_loss(&locks);
}

/// B2: if the old primary confirms a release after its replacement, the new primary gets the release again.
#[tokio::test]
async fn release_confirmed_by_replaced_primary_repeats() {
    let set = Replicas::start(1, &Settings::default());
    let locks = connect(&set.url(), LONG).await.unwrap();
    let guards = take_and_replicate(&locks, &["split".to_owned()], 1).await;
    let [old, new] = set.servers() else { panic!("two servers") };
    // From here on there are two primaries, and this process knows the old primary.
    assert_eq!(new.cli(&["REPLICAOF", "NO", "ONE"]), "OK");
    release(guards, old).await;
    assert_eq!(new.cli(&["EXISTS", "split"]), "1");
    let addr = new.addr();
    assert_eq!(old.cli(&["REPLICAOF", &addr.ip().to_string(), &addr.port().to_string()]), "OK");
    // The process learns of it at the next rejected write.
    let freed = eventually(NO_HANG, async || {
        let _refused = locks.lock("others").try_acquire().await;
        new.cli(&["EXISTS", "split"]) == "0"
    });
    assert!(freed.await, "held by nobody");
    told_no_loss(&locks);
}

/// B2: an owner that holds the lock again keeps it, although the failover lost a release of that owner.
#[tokio::test]
async fn new_hold_survives_repeated_release() {
    let mut set = Replicas::start(1, &Settings::default());
    let locks = connect(&set.url(), LONG).await.unwrap();
    let (owner, names) = (locks.owner(), ["again", "gone"].map(str::to_owned));
    let [again, gone] = names.each_ref().map(|name| locks.lock(name).with_owner(owner.clone()));
    let guards = [again.acquire().await.unwrap(), gone.acquire().await.unwrap()];
    replicated(&locks, 1).await;
    cut_off(set.servers(), 0, &[1]);
    for guard in guards {
        guard.release().await.unwrap();
    }
    let guard = again.acquire().await.unwrap();
    set.servers_mut()[0].kill();
    set.servers()[1].resume();
    set.promote(1);

    let new = &set.servers()[1];
    assert!(eventually(NO_HANG, async || new.cli(&["EXISTS", "gone"]) == "0").await, "held by nobody");
    assert_eq!(new.cli(&["HGET", "again", &owner.to_string()]), "1");
    assert!(guard.is_valid() && again.is_held_by(&owner).await.unwrap());
    guard.release().await.unwrap();
    assert_eq!(new.cli(&["DBSIZE"]), "0");
    told_no_loss(&locks);
}

/// B2: plain, fenced and fair locks of one name have the same holders on the server.
#[tokio::test]
async fn hold_of_other_kind_survives_repeated_release() {
    let mut set = Replicas::start(1, &Settings::default());
    let locks = connect(&set.url(), LONG).await.unwrap();
    let owner = locks.owner();
    let names = ["fenced", "fair", "gone"];
    let mut guards = Vec::new();
    for name in names {
        guards.push(locks.lock(name).with_owner(owner.clone()).acquire().await.unwrap());
    }
    replicated(&locks, 1).await;
    cut_off(set.servers(), 0, &[1]);
    for guard in guards {
        guard.release().await.unwrap();
    }
    let fenced = locks.fenced_lock("fenced").with_owner(owner.clone()).acquire().await.unwrap();
    let fair = locks.fair_lock("fair").with_owner(owner.clone()).acquire().await.unwrap();
    set.servers_mut()[0].kill();
    set.servers()[1].resume();
    set.promote(1);

    let new = &set.servers()[1];
    assert!(eventually(NO_HANG, async || new.cli(&["EXISTS", "gone"]) == "0").await, "held by nobody");
    let counts = ["fenced", "fair"].map(|name| new.cli(&["HGET", name, &owner.to_string()]));
    assert_eq!(counts, ["1", "1"]);
    assert!(fenced.is_valid() && fair.is_valid());
    told_no_loss(&locks);
}

/// B2: a repeated release does not touch the lock of another holder.
#[tokio::test]
async fn a_repeated_release_frees_nobody_else() {
    let mut set = Replicas::start(1, &Settings::default());
    let (here, there) = (connect(&set.url(), LONG).await.unwrap(), patient(&set.url()).await);
    let names = ["theirs", "gone"].map(str::to_owned);
    // The replica gets the hand-over of one lock, but not the release of the other.
    let mut guards = take_and_replicate(&here, &names, 1).await;
    let gone = guards.pop().unwrap();
    drop(guards);
    let theirs = timeout(NO_HANG, there.lock("theirs").acquire()).await.unwrap().unwrap();
    replicated(&there, 1).await;
    cut_off(set.servers(), 0, &[1]);
    gone.release().await.unwrap();
    set.servers_mut()[0].kill();
    set.servers()[1].resume();
    set.promote(1);

    let new = &set.servers()[1];
    assert!(eventually(NO_HANG, async || new.cli(&["EXISTS", "gone"]) == "0").await, "held by nobody");
    assert_eq!(new.cli(&["HGET", "theirs", &theirs.owner().to_string()]), "1");
    told_no_loss(&here);
    assert!(theirs.is_valid());
    theirs.release().await.unwrap();
}

/// B2: a repeated release wakes a waiter.
#[tokio::test]
async fn repeated_release_wakes_waiter() {
    let mut set = Replicas::start(1, &Settings::default());
    let (here, there) = (connect(&set.url(), LONG).await.unwrap(), patient(&set.url()).await);
    let guards = take_and_replicate(&here, &["orders".to_owned()], 1).await;
    cut_off(set.servers(), 0, &[1]);
    release(guards, &set.servers()[0]).await;
    set.servers_mut()[0].kill();
    let waiter = tokio::spawn({
        let lock = there.lock("orders");
        async move { lock.try_acquire_for(NO_HANG).await }
    });
    set.servers()[1].resume();
    set.promote(1);
    let next = timeout(2 * NO_HANG, waiter).await.unwrap().unwrap();
    assert!(next.is_ok_and(|guard| guard.is_acquired()), "not before the lease ends");
}

/// B2: held permits stay held. Permits whose release the failover lost are released again. Permits whose release the new primary knows are
/// not.
#[tokio::test]
async fn lost_permit_release_repeats_once() {
    let mut set = SentinelSet::start(&Settings::default());
    let locks = patient(&set.url()).await;
    let (leased, counted) = (locks.permit_semaphore("leased"), locks.semaphore("counted"));
    assert!(leased.try_set_permits(10).await.unwrap() && counted.try_set_permits(10).await.unwrap());
    let mut permits = Vec::new();
    for _ in 0..4 {
        permits.push((leased.acquire().await.unwrap(), counted.acquire(2).await.unwrap()));
    }
    let [kept, known, lost, dropped] = permits.try_into().unwrap_or_else(|_| panic!("four"));
    known.0.release().await.unwrap();
    known.1.release().await.unwrap();
    replicated(&locks, 2).await;
    let old = set.primary_index();
    let replicas: Vec<usize> = (0..3).filter(|index| *index != old).collect();
    cut_off(set.servers(), old, &replicas);
    lost.0.release().await.unwrap();
    lost.1.release().await.unwrap();
    drop(dropped);
    let primary = &set.servers()[old];
    let free = |server: &RedisServer| (server.cli(&["GET", "leased"]), server.cli(&["GET", "counted"]));
    let expected = ("9".to_owned(), "8".to_owned());
    assert!(eventually(NO_HANG, async || free(primary) == expected).await);
    set.servers_mut()[old].kill();
    replicas.iter().for_each(|index| set.servers()[*index].resume());

    let old = set.servers()[old].addr();
    // On a busy machine, the Sentinels may replace the new primary, too.
    let now = || &set.servers()[set.wait_for_new_primary(old)];
    let new = now().addr();
    let given_back = eventually(NO_HANG, async || free(now()) == expected).await;
    assert!(given_back, "{:?} at {}; {new} took over", free(now()), now().addr());
    assert_eq!(
        (leased.acquired().await.unwrap(), now().cli(&["ZCARD", "{leased}:timeout"])),
        (1, "1".to_owned())
    );
    assert!(kept.0.is_valid());
    kept.0.release().await.unwrap();
    kept.1.release().await.unwrap();
    assert_eq!(free(now()), ("10".to_owned(), "10".to_owned()));
    told_no_loss(&locks);
}

async fn take(locks: &LockManager, names: &[String]) -> Vec<Guard> {
    let mut guards = Vec::new();
    for name in names {
        guards.push(locks.lock(name).acquire().await.unwrap());
    }
    guards
}

async fn take_and_replicate(locks: &LockManager, names: &[String], replicas: i64) -> Vec<Guard> {
    let guards = take(locks, names).await;
    replicated(locks, replicas).await;
    guards
}

/// Waits until all writes so far have reached `replicas` replicas.
pub(crate) async fn replicated(locks: &LockManager, replicas: i64) {
    let wait = Command::new("WAIT").arg(replicas).arg("5000");
    assert_eq!(locks.client().call(&wait).await.unwrap().as_i64(), Some(replicas));
}

/// Cuts these replicas off from now on. They will read the bytes in their sockets when they continue.
pub(crate) fn cut_off(servers: &[RedisServer], primary: usize, replicas: &[usize]) {
    replicas.iter().for_each(|index| servers[*index].pause());
    let _cut = servers[primary].cli(&["CLIENT", "KILL", "TYPE", "replica"]);
}

/// Releases half of the guards with a call and drops the others. Returns when `primary` has executed all releases.
async fn release(guards: Vec<Guard>, primary: &RedisServer) {
    for (number, guard) in guards.into_iter().enumerate() {
        if number % 2 == 0 {
            guard.release().await.unwrap();
        }
    }
    assert!(eventually(NO_HANG, async || primary.cli(&["DBSIZE"]) == "0").await);
}

/// Asserts that no release reported a loss, not even afterwards.
fn told_no_loss(locks: &LockManager) {
    let metrics = locks.metrics();
    assert_eq!((metrics.lost_not_owner, metrics.lost_expired), (0, 0));
}

/// Connects a manager whose waiters poll for as long as a failover may take on a loaded machine. The default gives up after three seconds.
async fn patient(url: &str) -> LockManager {
    let builder = LockManager::builder(url).watchdog_lease(LONG);
    builder.configure(|config| config.response_timeout = NO_HANG).connect().await.unwrap()
}

/// A lock that is free earlier was released.
const LONG: Duration = Duration::from_secs(600);
/// A failover takes about two seconds in these tests, and several times as long on a busy machine.
const NO_HANG: Duration = Duration::from_secs(30);
