//! Prefixes of names: they decide which managers contend, and precede every key and channel on a real server.

use std::num::NonZeroU32;
use std::time::Duration;

use wheellock::{Error, Finding, LockManager, LostReason, RedLockManager, multi_lock};
use wheellock_tests::locks::{PATIENCE, WOKEN, listeners, manager};
use wheellock_tests::worker::of_kind;
use wheellock_tests::{RedisServer, eventually, guide};

async fn with_prefix(server: &RedisServer, prefix: &str) -> LockManager {
    LockManager::builder(&server.url()).prefix(prefix).connect().await.unwrap()
}

#[tokio::test]
async fn full_names_decide_contention() {
    let server = RedisServer::start();
    let (billing, again) = (with_prefix(&server, "billing:").await, with_prefix(&server, "billing:").await);
    let (tenant, bare) = (with_prefix(&server, "{tenant}:").await, manager(&server.url()).await);
    for name in ["orders", "{orders}:42", "a{b}c", "fair@f", "fenced@t", "read@r", "write@w", "simple@s"] {
        let guard = of_kind(&billing, name).acquire().await.unwrap();
        // A reader admits other readers, so a writer contends with it.
        let wanted = name.replace("read@", "write@");
        let is_free = async |locks: &LockManager, name: &str| {
            of_kind(locks, name).try_acquire().await.unwrap().is_acquired()
        };
        assert!(is_free(&tenant, &wanted).await && is_free(&bare, &wanted).await, "{name}: another lock");
        assert!(!is_free(&again, &wanted).await, "{name}: the same lock");
        let full = match wanted.split_once('@') {
            Some((kind, name)) => format!("{kind}@billing:{name}"),
            None => format!("billing:{wanted}"),
        };
        assert!(!is_free(&bare, &full).await, "{full}: the same lock");
        assert_eq!(of_kind(&bare, &full).name(), guard.name());
        // The release wakes the waiter on the channel of the full name.
        let waiting = of_kind(&again, &wanted);
        let waiter = tokio::spawn(async move { waiting.acquire().await });
        assert!(eventually(PATIENCE, async || again.metrics().waiting == 1).await, "{name}");
        guard.release().await.unwrap();
        drop(tokio::time::timeout(WOKEN, waiter).await.expect("it is woken").unwrap().unwrap());
        assert!(eventually(PATIENCE, async || is_free(&bare, &full).await).await, "{full}");
    }
}

#[tokio::test]
async fn prefix_precedes_all_keys_and_channels() {
    let server = RedisServer::start();
    let locks = with_prefix(&server, "billing:").await;
    let plain = locks.lock("orders").acquire().await.unwrap();
    let fair = locks.fair_lock("fair");
    let first = fair.acquire().await.unwrap();
    let second = tokio::spawn(async move { fair.acquire().await });
    assert!(eventually(PATIENCE, async || server.cli(&["KEYS", "*queue*"]).contains("billing:fair")).await);
    let waiting = locks.lock("orders");
    let waiter = tokio::spawn(async move { waiting.acquire().await });
    assert!(listeners(&server, "billing:orders", 1).await);
    let leadership = locks.election("fenced").with_announcement("here").campaign().await.unwrap();
    let rw = locks.read_write_lock("rw");
    let reader = rw.read().acquire().await.unwrap();
    let simple = locks.simple_lock("simple").acquire().await.unwrap();
    assert!(locks.semaphore("semaphore").try_set_permits(3).await.unwrap());
    let counted = locks.semaphore("semaphore").acquire(1).await.unwrap();
    assert!(locks.permit_semaphore("permits").try_set_permits(3).await.unwrap());
    let permit = locks.permit_semaphore("permits").acquire().await.unwrap();
    assert!(locks.count_down_latch("latch").try_set_count(NonZeroU32::MIN).await.unwrap());
    let set = multi_lock([locks.lock("one"), locks.lock("two")]).unwrap().acquire().await.unwrap();

    let keys = server.cli(&["KEYS", "*"]);
    let without: Vec<&str> = keys.lines().filter(|key| !key.contains("billing:")).collect();
    assert!(without.is_empty() && keys.lines().count() > 12, "{keys}");
    for key in [
        "billing:orders",
        "redisson_lock_queue:{billing:fair}",
        "redisson_lock_token:{billing:fenced}",
        "{billing:fenced}:wheellock_leader",
        "billing:one",
        "billing:two",
    ] {
        assert!(keys.lines().any(|known| known == key), "{key}: {keys}");
    }
    let channels = server.cli(&["PUBSUB", "CHANNELS"]);
    assert!(
        channels.lines().any(|channel| channel == "redisson_lock__channel:{billing:orders}"),
        "{channels}"
    );
    assert!(channels.lines().all(|channel| channel.contains("billing:")), "{channels}");
    drop((plain, first, leadership, reader, simple, counted, permit, set));
    drop(waiter.await.unwrap().unwrap());
    drop(second.await.unwrap().unwrap());
}

#[tokio::test]
async fn errors_name_full_name() {
    let server = RedisServer::start();
    let locks = with_prefix(&server, "billing:").await;
    assert_eq!(server.cli(&["SET", "billing:text", "other data"]), "OK");
    let error = locks.lock("text").acquire().await.unwrap_err();
    assert!(matches!(&error, Error::OtherData { lock, .. } if lock == "billing:text"), "{error}");
    let guard = locks.lock("lost").acquire().await.unwrap();
    assert_eq!(server.cli(&["DEL", "billing:lost"]), "1");
    let error = guard.renew().await.unwrap_err();
    assert!(matches!(error, Error::Lost { reason: LostReason::NotOwner, .. }), "{error}");
    assert!(error.to_string().contains("\"billing:lost\""), "{error}");
    // A prefix does not make an empty name valid.
    let error = locks.lock("").acquire().await.unwrap_err();
    assert!(matches!(error, Error::InvalidName { length: 0, .. }), "{error}");
    let long = "x".repeat(4096);
    assert!(matches!(locks.lock(&long).acquire().await, Err(Error::InvalidName { length: 4104, .. })));
}

#[tokio::test]
async fn quorum_and_threads_share_prefix() {
    let servers = [(); 3].map(|()| RedisServer::start());
    let member =
        |server: &RedisServer| LockManager::builder(&server.url()).prefix("billing:").lazy().unwrap();
    let red = RedLockManager::new(servers.iter().map(member)).await.unwrap();
    let guard = red.lock("orders").acquire().await.unwrap();
    assert_eq!(guard.name(), "billing:orders");
    let is_held = async || servers.iter().all(|server| server.cli(&["EXISTS", "billing:orders"]) == "1");
    assert!(eventually(PATIENCE, is_held).await);
    let url = servers[0].url();
    let threads = tokio::task::spawn_blocking(move || {
        let locks =
            wheellock::blocking::LockManager::builder(&url).prefix("billing:").connect_blocking().unwrap();
        !locks.lock("orders").try_acquire_for(Duration::from_millis(20)).unwrap().is_acquired()
    });
    assert!(threads.await.unwrap(), "the quorum's member is the same lock");
    guard.release().await.unwrap();
}

/// The guide's user for locks named `orders:..` fits a manager with the prefix `orders:`.
#[tokio::test]
async fn guide_permissions_fit_prefix() {
    let server = RedisServer::builder().tcp().start();
    let rules = guide::permissions(server.redis_version());
    let set = [&["ACL", "SETUSER", "locks", "reset", "on", ">secret"][..], &rules].concat();
    assert_eq!(server.cli(&set), "OK");
    let url = server.tcp_url().replace("redis://", "redis://locks:secret@");
    let locks = LockManager::builder(&url).prefix("orders:").connect().await.unwrap();
    let missing = |finding: &&Finding| matches!(finding, Finding::MissingPermission { .. });
    assert_eq!(locks.diagnostics().iter().find(missing), None);
    let guard = locks.lock("42").acquire().await.unwrap();
    guard.renew().await.unwrap();
    guard.release().await.unwrap();
    assert!(
        LockManager::builder(&url)
            .prefix("other:")
            .connect()
            .await
            .unwrap()
            .lock("42")
            .acquire()
            .await
            .is_err()
    );
}
