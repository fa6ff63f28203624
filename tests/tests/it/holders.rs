//! Holders of a lock as the server reports them. The tests cover every kind of lock, foreign holders and the labels of managers.

use std::time::{Duration, Instant};

use wheellock::{Error, Holder, Lock, LockManager, Mode};
use wheellock_tests::locks::{PATIENCE, manager};
use wheellock_tests::topology::{Cluster, Settings};
use wheellock_tests::{RedisServer, eventually};

const LEASE: Duration = Duration::from_secs(30);

/// Function that returns the lock whose holders are read.
type Named = fn(&LockManager) -> Lock;

async fn labelled(url: &str, label: &str) -> LockManager {
    LockManager::builder(url).label(label).connect().await.unwrap()
}

async fn holder(lock: &Lock) -> Option<Holder> {
    lock.holder().await.unwrap()
}

/// Returns true if the lease was granted recently.
fn is_fresh(holder: &Holder) -> bool {
    holder.lease_left <= LEASE && holder.lease_left > LEASE / 2
}

#[tokio::test]
async fn every_kind_reports_labelled_holder() {
    let server = RedisServer::start();
    let locks = labelled(&server.url(), "web-3/1/billing").await;
    let asks = manager(&server.url()).await;
    let kinds: [(&str, Named, Mode); 7] = [
        ("plain", |locks| locks.lock("plain"), Mode::Exclusive),
        ("spin", |locks| locks.spin_lock("spin"), Mode::Exclusive),
        ("fair", |locks| locks.fair_lock("fair"), Mode::Exclusive),
        ("fenced", |locks| locks.fenced_lock("fenced").as_lock().clone(), Mode::Exclusive),
        ("read", |locks| locks.read_write_lock("read").read(), Mode::Read),
        ("write", |locks| locks.read_write_lock("write").write(), Mode::Write),
        ("simple", |locks| locks.simple_lock("simple"), Mode::Exclusive),
    ];
    for (name, kind, mode) in kinds {
        let (lock, seen) = (kind(&locks), kind(&asks));
        assert_eq!(holder(&seen).await, None, "{name}");
        assert!(seen.holders().await.unwrap().is_empty(), "{name}");
        let guard = lock.acquire().await.unwrap();
        let told = holder(&seen).await.unwrap_or_else(|| panic!("{name} is held"));
        assert_eq!(told.owner, guard.owner().to_string(), "{name}");
        assert_eq!(told.process(), Some(locks.id()), "{name}");
        assert_eq!((told.mode, told.hold_count), (mode, 1), "{name}");
        assert!(is_fresh(&told), "{name}: {told:?}");
        assert_eq!(told.label.as_deref(), Some("web-3/1/billing"), "{name}");
        let of_itself = holder(&lock).await.unwrap();
        assert_eq!((of_itself.owner, of_itself.label), (told.owner, told.label), "{name}");
        if name != "simple" {
            let again = lock.with_owner(guard.owner()).acquire().await.unwrap();
            assert_eq!(holder(&seen).await.unwrap().hold_count, 2, "{name}");
            again.release().await.unwrap();
        }
        guard.release().await.unwrap();
        assert_eq!(holder(&seen).await, None, "{name}");
    }
}

#[tokio::test]
async fn foreign_holders_are_reported() {
    let server = RedisServer::start();
    let locks = manager(&server.url()).await;
    let java = "0f9a1b2c-0000-4000-8000-00805f9b34fb:51";
    assert_eq!(server.cli(&["HSET", "java", java, "3"]), "1");
    assert_eq!(server.cli(&["PEXPIRE", "java", "20000"]), "1");
    let told = holder(&locks.lock("java")).await.unwrap();
    assert_eq!((&*told.owner, told.process(), told.hold_count), (java, java.strip_suffix(":51"), 3));
    assert!(told.lease_left <= Duration::from_secs(20) && told.lease_left > Duration::from_secs(10));
    assert_eq!(told.label, None);

    assert_eq!(server.cli(&["SET", "go", "c2VjcmV0"]), "OK");
    let told = holder(&locks.simple_lock("go")).await.unwrap();
    assert_eq!((&*told.owner, told.process(), told.lease_left), ("c2VjcmV0", None, Duration::MAX));

    let readers = [("mode", "read"), (java, "1")].map(|(field, value)| [field, value]);
    assert_eq!(server.cli(&[&["HSET", "sides"][..], readers.as_flattened()].concat()), "2");
    assert_eq!(server.cli(&["PEXPIRE", "sides", "20000"]), "1");
    let sides = locks.read_write_lock("sides");
    assert_eq!(holder(&sides.read()).await, None, "a reader without a lease holds nothing");
    let lease = format!("{{sides}}:{java}:rwlock_timeout:1");
    assert_eq!(server.cli(&["SET", &lease, "1", "PX", "15000"]), "OK");
    let told = holder(&sides.read()).await.unwrap();
    assert_eq!((&*told.owner, told.mode), (java, Mode::Read));
    assert!(told.lease_left <= Duration::from_secs(15), "its own lease, not the lock's");
    assert_eq!(holder(&sides.write()).await, None);
}

#[tokio::test]
async fn holder_query_refuses_other_data() {
    let server = RedisServer::start();
    let locks = manager(&server.url()).await;
    let _written = server.cli(&["SET", "text", "x"]);
    let _written = server.cli(&["RPUSH", "list", "x"]);
    let writing = locks.read_write_lock("sides").write().acquire().await.unwrap();
    let plain = locks.lock("plain").acquire().await.unwrap();
    for lock in [
        locks.lock("text"),
        locks.fair_lock("list"),
        locks.lock("sides"),
        locks.read_write_lock("plain").read(),
        locks.read_write_lock("text").write(),
        locks.simple_lock("plain"),
    ] {
        assert!(matches!(lock.holder().await, Err(Error::OtherData { .. })), "{lock:?}");
        assert!(matches!(lock.holders().await, Err(Error::OtherData { .. })), "{lock:?}");
    }
    assert!(matches!(locks.lock("").holder().await, Err(Error::InvalidName { .. })));
    writing.release().await.unwrap();
    plain.release().await.unwrap();
}

#[tokio::test]
async fn hundred_readers_listed_rest_counted() {
    const READERS: usize = 1000;
    let server = RedisServer::start();
    let locks = labelled(&server.url(), "reader").await;
    let asks = manager(&server.url()).await;
    let read = locks.read_write_lock("prices").read();
    let mut reading = Vec::new();
    for _ in 0..READERS {
        reading.push(read.with_owner(locks.owner()).acquire().await.unwrap());
    }
    let seen = asks.read_write_lock("prices");
    let told = seen.read().holders().await.unwrap();
    assert_eq!((told.holders.len(), told.beyond), (100, 900));
    assert!(told.holders.iter().all(|holder| is_fresh(holder) && holder.label.as_deref() == Some("reader")));
    let mut owners: Vec<_> = told.holders.iter().map(|holder| holder.owner.clone()).collect();
    owners.sort_unstable();
    owners.dedup();
    assert_eq!(owners.len(), 100, "nobody is told twice");
    assert!(seen.write().holders().await.unwrap().is_empty());
    drop(reading);

    // An owner that writes and reads is a holder on both sides.
    let writing = locks.read_write_lock("ledger").write().acquire().await.unwrap();
    let _reading =
        locks.read_write_lock("ledger").read().with_owner(writing.owner()).acquire().await.unwrap();
    let seen = asks.read_write_lock("ledger");
    for side in [seen.read(), seen.write()] {
        let told = side.holders().await.unwrap();
        assert_eq!((told.holders.len(), told.beyond), (1, 0));
        assert_eq!(told.holders[0].owner, writing.owner().to_string());
    }
}

#[tokio::test]
async fn label_ends_with_manager() {
    let server = RedisServer::start();
    let plain = manager(&server.url()).await;
    assert_eq!(server.cli(&["DBSIZE"]), "0", "who has no label writes none");
    let locks = labelled(&server.url(), "web-3/1/billing").await;
    let key = format!("wheellock:process:{}", locks.id());
    assert_eq!(server.cli(&["GET", &key]), "web-3/1/billing");
    let left: i64 = server.cli(&["PTTL", &key]).parse().unwrap();
    assert!((1..=30_000).contains(&left), "{left}");

    let guard = locks.lock("orders").acquire().await.unwrap();
    assert_eq!(server.cli(&["DEL", &key]), "1");
    let told = holder(&plain.lock("orders")).await.unwrap();
    assert_eq!((told.owner, told.label), (guard.owner().to_string(), None), "only the label is gone");
    // A label that another client has written is cut to a bounded length.
    assert_eq!(server.cli(&["SET", &key, &"x".repeat(100_000)]), "OK");
    assert_eq!(holder(&plain.lock("orders")).await.unwrap().label.map(|label| label.len()), Some(256));
    assert_eq!(server.cli(&["DEL", &key]), "1");
    assert_eq!(server.cli(&["RPUSH", &key, "x"]), "1");
    assert_eq!(holder(&plain.lock("orders")).await.unwrap().label, None);

    assert!(locks.shutdown(PATIENCE).await.is_empty());
    drop(guard);
    assert_eq!(server.cli(&["DBSIZE"]), "0", "a shutdown deletes it");

    for label in ["", "a\nb", &"x".repeat(257)] {
        let error = LockManager::builder(&server.url()).label(label).connect().await.unwrap_err();
        assert!(matches!(error, Error::InvalidLabel { length, .. } if length == label.len()), "{error}");
    }
    let patient = LockManager::builder(&server.url()).label("patient").connect().await.unwrap();
    assert!(patient.shutdown(Duration::MAX).await.is_empty());
    let later = LockManager::builder(&server.url()).label("later").lazy().unwrap();
    let key = format!("wheellock:process:{}", later.id());
    assert!(eventually(PATIENCE, async || server.cli(&["GET", &key]) == "later").await);
}

/// A manager writes its label again before the label expires. It also writes the label again after a server has lost its data and come
/// back.
#[tokio::test]
async fn a_label_is_written_again() {
    let server = RedisServer::start();
    let locks = labelled(&server.url(), "kept").await;
    let key = format!("wheellock:process:{}", locks.id());
    assert_eq!(server.cli(&["FLUSHALL"]), "OK");
    let again = async || server.cli(&["GET", &key]) == "kept";
    assert!(eventually(2 * PATIENCE, again).await, "it is written every ten seconds");
}

#[tokio::test]
async fn missing_label_permission_still_locks() {
    let server = RedisServer::builder().tcp().start();
    let rules = ["ACL", "SETUSER", "app", "reset", "on", ">secret", "~orders*", "&*", "+@all"];
    assert_eq!(server.cli(&rules), "OK");
    let url = server.tcp_url().replace("redis://", "redis://app:secret@");
    let (one, other) = (labelled(&url, "one").await, labelled(&url, "other").await);
    let guard = one.lock("orders").acquire().await.unwrap();
    let told = holder(&other.lock("orders")).await.unwrap();
    assert_eq!((told.owner, told.label), (guard.owner().to_string(), None));
    guard.release().await.unwrap();
}

/// A lock and its holder's label may be on different nodes.
#[tokio::test]
async fn cluster_finds_holders_and_labels() {
    let cluster = Cluster::start(2, 0, &Settings::default());
    let locks = labelled(&cluster.url(), "node/1/x").await;
    let asks = manager(&cluster.url()).await;
    for number in 0..20 {
        let name = format!("orders:{number}");
        let guards = (
            locks.lock(&name).acquire().await.unwrap(),
            locks.read_write_lock(&format!("{name}:sides")).read().acquire().await.unwrap(),
        );
        let told = holder(&asks.lock(&name)).await.unwrap();
        assert_eq!((told.owner, told.label.as_deref()), (guards.0.owner().to_string(), Some("node/1/x")));
        let told = holder(&asks.read_write_lock(&format!("{name}:sides")).read()).await.unwrap();
        assert_eq!((told.owner, told.label.as_deref()), (guards.1.owner().to_string(), Some("node/1/x")));
        guards.0.release().await.unwrap();
        guards.1.release().await.unwrap();
    }
}

/// Time after which a manager has told since when it holds a lock.
const TOLD: Duration = Duration::from_secs(20);

/// Returns true if this holder tells that its hold began within a second of `then`.
fn is_since(holder: &Holder, then: Instant) -> bool {
    let off = |held: Duration| held.abs_diff(then.elapsed());
    holder.held_for.map(off).is_some_and(|off| off < Duration::from_secs(1))
}

#[tokio::test]
async fn old_holds_tell_since_when() {
    let server = RedisServer::start();
    let (locks, asks) = (labelled(&server.url(), "old").await, manager(&server.url()).await);
    let key = format!("wheellock:process:{}:since", locks.id());
    let (owner, first) = (locks.owner(), Instant::now());
    let sides = |locks: &LockManager| locks.read_write_lock("two words");
    let plain = locks.lock("plain").acquire().await.unwrap();
    let writes = sides(&locks).write().with_owner(owner.clone()).acquire().await.unwrap();
    let simple = locks.simple_lock("simple").acquire().await.unwrap();
    let without_a_label = asks.lock("other").acquire().await.unwrap();
    let handed_over = locks.lock("handed over").acquire().await.unwrap();
    let released = locks.lock("released").acquire().await.unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let second = Instant::now();
    let reads = sides(&locks).read().with_owner(owner).acquire().await.unwrap();
    let again = locks.lock("plain").with_owner(plain.owner()).acquire().await.unwrap();
    let next = tokio::spawn({
        let lock = locks.lock("handed over");
        async move { lock.acquire().await.unwrap() }
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    handed_over.release().await.unwrap();
    let next = next.await.unwrap();
    assert_eq!(holder(&asks.lock("plain")).await.unwrap().held_for, None, "it is young");
    let is_told = async || holder(&asks.lock("plain")).await.unwrap().held_for.is_some();
    assert!(eventually(TOLD, is_told).await);

    for (lock, then) in [
        (asks.lock("plain"), first),
        (locks.lock("plain"), first),
        (asks.simple_lock("simple"), first),
        (sides(&asks).write(), first),
        (sides(&asks).read(), second),
        (asks.lock("handed over"), second),
    ] {
        let told = holder(&lock).await.unwrap();
        assert!(is_since(&told, then), "{lock:?}: {told:?}");
        assert!(told.to_string().contains(" s ago, for "), "{told}");
    }
    assert_eq!(holder(&locks.lock("other")).await.unwrap().held_for, None, "no label");
    let mut listing = asks.list("plain");
    let listed = listing.next().await.unwrap().unwrap();
    assert!(is_since(&listed.holders.holders[0], first), "{listed:?}");

    // The line of another owner does not count.
    released.release().await.unwrap();
    let other = locks.lock("released").acquire().await.unwrap();
    assert_eq!(holder(&asks.lock("released")).await.unwrap().held_for, None);

    let left: i64 = server.cli(&["PTTL", &key]).parse().unwrap();
    assert!((1..=30_000).contains(&left), "{left}");
    let lies = format!("x\n{}\n1000 {} plain", "9".repeat(30), plain.owner());
    assert_eq!(server.cli(&["SET", &key, &lies]), "OK");
    let told = holder(&asks.lock("plain")).await.unwrap();
    assert_eq!(told.held_for, None, "a text without a lease has no age");
    assert_eq!(holder(&asks.simple_lock("simple")).await.unwrap().held_for, None);
    assert_eq!(server.cli(&["DEL", &key]), "1");
    assert_eq!(server.cli(&["RPUSH", &key, "x"]), "1");
    let told = holder(&asks.lock("plain")).await.unwrap();
    assert_eq!((told.label.as_deref(), told.held_for), (Some("old"), None));

    assert!(locks.shutdown(PATIENCE).await.is_empty());
    assert_eq!(server.cli(&["EXISTS", &key]), "0", "a shutdown deletes it");
    drop((plain, writes, simple, without_a_label, reads, again, next, other));
}

/// Without old holds, a manager deletes the starts of its earlier holds.
#[tokio::test]
async fn since_ends_with_old_holds() {
    let server = RedisServer::start();
    let locks = labelled(&server.url(), "old").await;
    let key = format!("wheellock:process:{}:since", locks.id());
    let guard = locks.lock("plain").acquire().await.unwrap();
    let is_there = async |there: &str| server.cli(&["EXISTS", &key]) == there;
    assert!(eventually(TOLD, async || is_there("1").await).await);
    guard.release().await.unwrap();
    assert!(eventually(TOLD, async || is_there("0").await).await);
}
