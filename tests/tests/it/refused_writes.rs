//! A server that refuses writes for want of resources. It lacks replicas or memory for the moment, and still serves other requests. A wait
//! outlasts the refusals, and a call that does not wait returns the error.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use wheellock::{Election, Error, Lock, LockManager, RedLockManager, blocking, multi_lock};
use wheellock_tests::RedisServer;
use wheellock_tests::locks::{PATIENCE, adjusted, at_rest, gone};

/// Setting that makes a server refuse writes, its value, and the server's error code.
const SHORTAGES: [(&str, &str, &str); 2] =
    [("min-replicas-to-write", "1", "NOREPLICAS"), ("maxmemory", "1", "OOM")];
const RESPONSE_TIMEOUT: Duration = Duration::from_millis(300);

/// Returns a server, and a manager whose response timeout is shorter than any shortage here.
async fn server_and_manager() -> (RedisServer, LockManager) {
    let server = RedisServer::start();
    let adjust = |config: &mut wheellock::client::Config| config.response_timeout = RESPONSE_TIMEOUT;
    let locks = adjusted(&server.url(), Duration::from_secs(30), adjust).await;
    (server, locks)
}

fn set(server: &RedisServer, setting: &str, value: &str) {
    assert_eq!(server.cli(&["CONFIG", "SET", setting, value]), "OK");
}

fn kinds(locks: &LockManager) -> Vec<Lock> {
    let sides = locks.read_write_lock("sides");
    vec![
        locks.lock("lock"),
        locks.spin_lock("spin"),
        locks.fair_lock("fair"),
        locks.fenced_lock("fenced").as_lock().clone(),
        locks.simple_lock("simple"),
        sides.read(),
        locks.read_write_lock("write").write(),
    ]
}

type Wait = Pin<Box<dyn Future<Output = Result<(), Error>> + Send>>;

/// Returns one wait for each kind without a limit, and one with a limit. Each wait drops its grant.
async fn waits(locks: &LockManager) -> Vec<Wait> {
    let mut waits: Vec<Wait> = Vec::new();
    for (lock, limited) in kinds(locks).into_iter().zip(kinds(locks)) {
        waits.push(Box::pin(async move { lock.acquire().await.map(drop) }));
        waits.push(Box::pin(async move {
            assert!(limited.try_acquire_for(PATIENCE).await?.is_acquired());
            Ok(())
        }));
    }
    let (semaphore, permits) = (locks.semaphore("semaphore"), locks.permit_semaphore("permits"));
    assert!(semaphore.try_set_permits(1).await.unwrap() && permits.try_set_permits(1).await.unwrap());
    let set = multi_lock([locks.lock("first"), locks.lock("second")]).unwrap();
    let quorum = RedLockManager::new([locks.clone()]).await.unwrap().lock("quorum");
    let election: Election = locks.election("election");
    waits.push(Box::pin(async move { semaphore.acquire(1).await.map(drop) }));
    waits.push(Box::pin(async move { permits.acquire().await.map(drop) }));
    waits.push(Box::pin(async move { set.acquire().await.map(drop) }));
    waits.push(Box::pin(async move { quorum.acquire().await.map(drop) }));
    waits.push(Box::pin(async move { election.campaign().await.map(drop) }));
    waits
}

/// L3: a wait outlasts refused writes for as long as it lasts, and for longer than the response timeout.
#[tokio::test]
async fn waits_outlast_refused_writes() {
    for (setting, value, _) in SHORTAGES {
        let (server, locks) = server_and_manager().await;
        let waits = waits(&locks).await;
        set(&server, setting, value);
        let mut waiting: Vec<_> = waits.into_iter().map(tokio::spawn).collect();
        tokio::time::sleep(3 * RESPONSE_TIMEOUT).await;
        let mut ended = waiting.iter_mut().enumerate().filter(|(_, waiting)| waiting.is_finished());
        if let Some((place, waiting)) = ended.next() {
            panic!("{setting}: wait {place} has ended: {:?}", waiting.await.unwrap());
        }
        set(&server, setting, "0");
        for waiting in &mut waiting {
            tokio::time::timeout(PATIENCE, waiting)
                .await
                .expect("woken")
                .unwrap()
                .expect("it has outlasted it");
        }
        assert!(at_rest(&locks).await);
    }
}

/// A call that does not wait returns the error. So does a call whose wait ends before the shortage does.
#[tokio::test]
async fn short_calls_report_refused_writes() {
    for (setting, value, code) in SHORTAGES {
        let (server, locks) = server_and_manager().await;
        set(&server, setting, value);
        for lock in kinds(&locks) {
            for wait in [Duration::ZERO, Duration::from_millis(50)] {
                let error = lock.try_acquire_for(wait).await.unwrap_err();
                assert!(error.to_string().contains(code) && error.is_unavailable(), "{wait:?} {error}");
            }
            let error = lock.try_acquire().await.unwrap_err();
            assert!(error.to_string().contains(code) && error.is_unavailable(), "{error}");
        }
        let set_of_two = multi_lock([locks.lock("first"), locks.lock("second")]).unwrap();
        let error = set_of_two.try_acquire().await.unwrap_err();
        assert!(error.to_string().contains(code), "{error}");
        let quorum = RedLockManager::new([locks.clone()]).await.unwrap();
        let error = quorum.lock("quorum").try_acquire().await.unwrap_err();
        assert!(error.to_string().contains(code), "{error}");
        set(&server, setting, "0");
        assert!(at_rest(&locks).await);
        assert_eq!(server.cli(&["DBSIZE"]), "0");
    }
}

/// A release outlasts a short shortage. After a long shortage its error says that the release continues, and it does.
#[tokio::test]
async fn refused_releases_are_repeated() {
    let (server, locks) = server_and_manager().await;
    for (lock, is_short) in kinds(&locks).into_iter().flat_map(|lock| [(lock.clone(), true), (lock, false)]) {
        let guard = lock.acquire().await.unwrap();
        set(&server, "min-replicas-to-write", "1");
        let release = tokio::spawn(guard.release());
        if is_short {
            tokio::time::sleep(RESPONSE_TIMEOUT / 10).await;
            set(&server, "min-replicas-to-write", "0");
            release.await.unwrap().unwrap();
        } else {
            let error = release.await.unwrap().unwrap_err();
            let said = error.to_string();
            assert!(said.contains("NOREPLICAS") && said.contains("repeated in the background"), "{said}");
            set(&server, "min-replicas-to-write", "0");
        }
        assert!(gone(&server, lock.name()).await, "{lock:?}");
    }
}

/// L3: threads outlast refused writes as tasks do.
#[test]
fn threads_outlast_refused_writes() {
    let server = RedisServer::start();
    let locks = blocking::LockManager::connect(&server.url()).unwrap();
    let lock = locks.lock("lock");
    set(&server, "min-replicas-to-write", "1");
    let error = lock.try_acquire().unwrap_err();
    assert!(error.to_string().contains("NOREPLICAS"), "{error}");
    std::thread::scope(|threads| {
        let waiting = threads.spawn(|| lock.try_acquire_for(PATIENCE).unwrap().is_acquired());
        std::thread::sleep(Duration::from_millis(200));
        assert!(!waiting.is_finished());
        set(&server, "min-replicas-to-write", "0");
        assert!(waiting.join().unwrap());
    });
}
