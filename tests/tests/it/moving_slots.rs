//! A cluster's slot that moves key by key. This is row T11 of docs/reliability/faults.md. A lock has moved before its related keys. A request that
//! needs those keys waits until all have moved. It does not take a missing key for deleted. It does not create the key either, which would
//! keep the move from ending.

use std::num::NonZeroU32;
use std::time::Duration;

use wheellock::{LockManager, Permit};
use wheellock_client::slot_of;
use wheellock_tests::eventually;
use wheellock_tests::topology::{Cluster, Settings};
use wheellock_tests::worker::connect;

#[tokio::test]
async fn leaving_reader_keeps_unmoved_reader() {
    let (going, managers) = Move::start().await;
    let [stays, goes, writes] = managers.each_ref().map(|manager| manager.read_write_lock(NAME));
    let (stays, goes) = (stays.read().acquire().await.unwrap(), goes.read().acquire().await.unwrap());
    going.begin();
    going.migrate(NAME);
    going.migrate(&going.find(&format!("{}:", goes.owner())));
    let release = goes.release();
    let end = async {
        going.was_asked().await;
        going.end();
    };
    let (released, ()) = tokio::join!(release, end);
    released.unwrap();
    assert!(!writes.write().try_acquire().await.unwrap().is_acquired(), "beside a reader");
    stays.renew().await.unwrap();
    stays.release().await.unwrap();
    going.has_left_nothing();
}

#[tokio::test]
async fn renewal_waits_for_moving_lease() {
    let (going, [locks, ..]) = Move::start().await;
    let reading = locks.read_write_lock(NAME).read().acquire().await.unwrap();
    going.begin();
    going.migrate(NAME);
    let end = async {
        going.was_asked().await;
        going.end();
    };
    let (renewed, ()) = tokio::join!(reading.renew(), end);
    renewed.unwrap();
    reading.release().await.unwrap();
    going.has_left_nothing();
}

#[tokio::test]
async fn token_waits_for_moving_counter() {
    let (going, [locks, ..]) = Move::start().await;
    let lock = locks.fenced_lock(NAME);
    let guard = lock.acquire().await.unwrap();
    let before = guard.token();
    guard.release().await.unwrap();
    going.begin();
    let end = async {
        going.was_asked().await;
        going.end();
    };
    let (guard, ()) = tokio::join!(lock.acquire(), end);
    let guard = guard.unwrap();
    assert!(guard.token() > before);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn moving_queue_is_not_overtaken() {
    let (going, [holds, waits, comes]) = Move::start().await;
    let held = holds.fair_lock(NAME).acquire().await.unwrap();
    let lock = waits.fair_lock(NAME);
    let waiting = tokio::spawn(async move { lock.acquire().await });
    assert!(
        eventually(NO_HANG, async || waits.fair_lock(NAME).queue_length().await.unwrap() == Some(1)).await
    );
    going.begin();
    going.migrate(NAME);
    let lock = comes.fair_lock(NAME);
    let coming = tokio::spawn(async move { lock.acquire().await });
    going.was_asked().await;
    going.end();
    assert!(
        eventually(NO_HANG, async || waits.fair_lock(NAME).queue_length().await.unwrap() == Some(2)).await
    );
    held.release().await.unwrap();
    let first = waiting.await.unwrap().unwrap();
    assert!(!coming.is_finished());
    first.release().await.unwrap();
    coming.await.unwrap().unwrap().release().await.unwrap();
    going.has_left_nothing();
}

/// A node that a slot leaves does not take a missing key for deleted.
#[tokio::test]
async fn leaving_slot_releases_readers_and_writers() {
    let (going, managers) = Move::start().await;
    let locks = managers.each_ref().map(|manager| manager.read_write_lock(NAME));
    let [first, second, third] = locks.each_ref().map(|lock| async { lock.read().acquire().await.unwrap() });
    let readers = [first.await, second.await, third.await];
    going.begin();
    for guard in readers {
        guard.release().await.unwrap();
    }
    going.end();

    let writing = locks[0].write().acquire().await.unwrap();
    let reading = locks[0].read().with_owner(writing.owner()).acquire().await.unwrap();
    going.cluster.begin_move(going.slot, 1 - going.to);
    writing.release().await.unwrap();
    assert!(locks[1].read().is_locked().await.unwrap());
    reading.release().await.unwrap();
}

/// Such a node does not take a missing queue for deleted either.
#[tokio::test]
async fn leaving_slot_releases_fair_lock() {
    let (going, [holds, ..]) = Move::start().await;
    let held = holds.fair_lock(NAME).acquire().await.unwrap();
    going.begin();
    held.release().await.unwrap();
    going.end();
    going.has_left_nothing();
}

#[tokio::test]
async fn semaphore_release_waits_for_move() {
    let (going, [locks, others, ..]) = Move::start().await;
    let (counted, other) = (locks.semaphore(NAME), others.semaphore(NAME));
    assert!(counted.try_set_permits(3).await.unwrap());
    let held = counted.acquire(2).await.unwrap();
    going.begin();
    going.migrate(NAME);
    let end = async {
        going.was_asked().await;
        going.end();
    };
    let (released, taken, added, ()) =
        tokio::join!(held.release(), other.acquire(1), other.add_permits(1), end);
    released.unwrap();
    added.unwrap();
    taken.unwrap().release().await.unwrap();
    assert_eq!(counted.available().await.unwrap(), 4);
}

#[tokio::test]
async fn leased_permit_release_waits_for_move() {
    let (going, [locks, others, ..]) = Move::start().await;
    let (near, far) = (locks.permit_semaphore(NAME), others.permit_semaphore(NAME));
    assert_eq!(near.set_permits(2).await.unwrap(), 2);
    let (given_back, kept) = (near.acquire().await.unwrap(), near.acquire().await.unwrap());
    going.begin();
    going.migrate(NAME);
    let end = async {
        going.was_asked().await;
        going.end();
    };
    let (released, renewed, taken, ()) = tokio::join!(given_back.release(), kept.renew(), far.acquire(), end);
    released.unwrap();
    renewed.unwrap();
    assert!(!far.try_acquire().await.unwrap().is_acquired());
    taken.unwrap().release().await.unwrap();
    kept.release().await.unwrap();
    assert_eq!((near.permits().await.unwrap(), near.available().await.unwrap()), (2, 2));
}

#[tokio::test]
async fn moving_slot_releases_permits_together() {
    let (going, [locks, others, ..]) = Move::start().await;
    let (near, far) = (locks.permit_semaphore(NAME), others.permit_semaphore(NAME));
    assert_eq!(near.set_permits(3).await.unwrap(), 3);
    let held = near.acquire_many(3).await.unwrap();
    going.begin();
    going.migrate(NAME);
    let end = async {
        going.was_asked().await;
        going.end();
    };
    let ids: Vec<_> = held.iter().map(Permit::id).collect();
    let (taken, released, ()) = tokio::join!(far.acquire_many(3), near.release_many(&ids), end);
    assert!(released.unwrap());
    let taken = taken.unwrap();
    assert_eq!(taken.len(), 3, "all or none");
    assert!(!near.try_acquire().await.unwrap().is_acquired());
}

/// The record of a manager's earlier request is beside the semaphore, and may move together with it.
#[tokio::test]
async fn permit_count_waits_for_moving_leases() {
    let (going, [locks, ..]) = Move::start().await;
    let permits = locks.permit_semaphore(NAME);
    assert_eq!(permits.set_permits(2).await.unwrap(), 2);
    let held = [permits.acquire().await.unwrap(), permits.acquire().await.unwrap()];
    going.begin();
    going.migrate(NAME);
    going.migrate(&going.find("wheellock_request"));
    let end = async {
        going.was_asked().await;
        going.end();
    };
    let (free, ()) = tokio::join!(permits.set_permits(2), end);
    assert_eq!(free.unwrap(), 0);
    assert!(!permits.try_acquire().await.unwrap().is_acquired());
    for permit in held {
        permit.release().await.unwrap();
    }
}

/// The opening of a latch is recorded in a key. The node may lack that key and must not create it.
#[tokio::test]
async fn leaving_slot_opens_latch() {
    let (going, [locks, others, ..]) = Move::start().await;
    let (latch, far) = (locks.count_down_latch(NAME), others.count_down_latch(NAME));
    assert!(latch.try_set_count(NonZeroU32::MIN).await.unwrap());
    let waiting = tokio::spawn(async move { far.wait().await });
    assert!(eventually(NO_HANG, async || others.metrics().waiting == 1).await);
    going.begin();
    let refused = || going.cluster.nodes()[1 - going.to].cli(&["INFO", "errorstats"]).contains("count=");
    let end = async {
        assert!(eventually(NO_HANG, async || refused()).await);
        going.end();
    };
    let (left, ()) = tokio::join!(latch.count_down(), end);
    assert_eq!(left.unwrap(), 0);
    waiting.await.unwrap().unwrap();
}

#[tokio::test]
async fn stale_opening_leaves_latch_closed() {
    let (going, [locks, others, ..]) = Move::start().await;
    let (latch, far) = (locks.count_down_latch(NAME), others.count_down_latch(NAME));
    assert!(latch.try_set_count(NonZeroU32::MIN).await.unwrap());
    assert_eq!(latch.count_down().await.unwrap(), 0);
    assert!(latch.try_set_count(NonZeroU32::MIN).await.unwrap());
    going.begin();
    going.migrate(NAME);
    let waiting = tokio::spawn(async move { far.wait().await });
    going.was_asked().await;
    going.end();
    assert!(eventually(NO_HANG, async || others.metrics().waiting == 1).await);
    // A message makes the waiter read the latch once more.
    let new = &going.cluster.nodes()[going.to];
    let listens = || new.cli(&["PUBSUB", "SHARDCHANNELS"]);
    assert!(eventually(NO_HANG, async || listens().contains(NAME)).await, "{}", listens());
    going.forget_who_asked();
    assert_eq!(new.cli(&["SPUBLISH", &listens(), "0"]), "1");
    going.was_asked().await;
    assert_eq!(latch.count().await.unwrap(), 1);
    assert!(!waiting.is_finished());
    assert_eq!(latch.count_down().await.unwrap(), 0);
    waiting.await.unwrap().unwrap();
}

/// A slot that moves from one of two nodes to the other.
struct Move {
    cluster: Cluster,
    slot: u16,
    to: usize,
}

impl Move {
    async fn start() -> (Self, [LockManager; 3]) {
        let cluster = Cluster::start(2, 0, &Settings::default());
        let url = cluster.url();
        let manager = async || connect(&url, LEASE).await.unwrap();
        let managers = [manager().await, manager().await, manager().await];
        let slot = slot_of(NAME.as_bytes());
        let to = 1 - cluster.owner_of(slot);
        (Self { cluster, slot, to }, managers)
    }

    fn begin(&self) {
        self.forget_who_asked();
        self.cluster.begin_move(self.slot, self.to);
    }

    fn forget_who_asked(&self) {
        assert_eq!(self.cluster.nodes()[self.to].cli(&["CONFIG", "RESETSTAT"]), "OK");
    }

    fn migrate(&self, key: &str) {
        self.cluster.migrate_key(key, self.to);
    }

    /// Returns the keys that are still to be moved.
    fn keys(&self) -> Vec<String> {
        let from = &self.cluster.nodes()[1 - self.to];
        let keys = from.cli(&["CLUSTER", "GETKEYSINSLOT", &self.slot.to_string(), "100"]);
        keys.lines().map(str::to_owned).collect()
    }

    fn find(&self, part: &str) -> String {
        let keys = self.keys();
        keys.iter().find(|key| key.contains(part)).unwrap_or_else(|| panic!("{part}: {keys:?}")).clone()
    }

    /// Waits until a script was run on the node to which the slot moves.
    async fn was_asked(&self) {
        let stats = || self.cluster.nodes()[self.to].cli(&["INFO", "commandstats"]);
        let asked = eventually(NO_HANG, async || {
            stats().lines().any(|line| line.starts_with("cmdstat_eval") && !line.contains(":calls=0,"))
        });
        assert!(asked.await, "{}", stats());
    }

    fn end(&self) {
        while self.cluster.migrate_keys(self.slot, self.to, 1) > 0 {}
        self.cluster.finish_move(self.slot, self.to);
    }

    fn has_left_nothing(&self) {
        let left = self.cluster.nodes()[self.to].cli(&["CLUSTER", "COUNTKEYSINSLOT", &self.slot.to_string()]);
        assert_eq!(left, "0");
    }
}

const NAME: &str = "orders";
/// Longer than any test takes.
const LEASE: Duration = Duration::from_secs(60);
const NO_HANG: Duration = Duration::from_secs(30);
