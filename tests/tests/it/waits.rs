//! Waits that end with an error or with `None`. The tests also show which waiter gets an error.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use wheellock::client::ErrorKind;
use wheellock::{Attempt, Error, Guard, LockManager, RedLockManager, blocking, multi_lock};
use wheellock_tests::fault::{Direction, Fault, Proxy};
use wheellock_tests::locks::{PATIENCE, adjusted, at_rest, gone, listeners, manager};
use wheellock_tests::{RedisServer, eventually};

const LEASE: Duration = Duration::from_secs(30);
/// Default number of rounds. A longer campaign sets it: `WHEELLOCK_WAIT_ROUNDS=1000`.
const ROUNDS: usize = 10;
const MILLI: Duration = Duration::from_millis(1);

fn rounds() -> usize {
    std::env::var("WHEELLOCK_WAIT_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(ROUNDS)
}

/// Returns a manager with a round trip of `round_trip` milliseconds to the server.
async fn far(proxy: &Proxy, round_trip: u64) -> LockManager {
    let locks = adjusted(&proxy.url(), LEASE, |_| {}).await;
    let each_way = Duration::from_micros(500 * round_trip);
    for direction in [Direction::ToServer, Direction::ToClient] {
        proxy.strike(direction, Fault::Delay(each_way, Duration::from_nanos(1)));
    }
    locks
}

#[track_caller]
fn assert_none(result: &Result<Attempt<Guard>, Error>, what: &str) {
    assert!(matches!(result, Ok(Attempt::Held { .. })), "{what}: {result:?}");
}

/// A2: waits of one process that end 0 to 3 ms apart end with `Held` while the server replies. The round trip does not matter.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn simultaneous_timeouts_are_not_errors() {
    let server = RedisServer::start();
    let holder = manager(&server.url()).await;
    let _held = holder.lock("n").acquire().await.unwrap();
    for round_trip in [0, 1, 4] {
        let proxy = Proxy::before(&server);
        let locks = far(&proxy, round_trip).await;
        let errors = AtomicUsize::new(0);
        for round in 0..rounds() {
            let mut waits = JoinSet::new();
            let base = Duration::from_millis(10 + 7 * u64::try_from(round % 5).unwrap());
            for waiter in 0..10 {
                let lock = locks.lock("n");
                waits.spawn(async move { lock.try_acquire_for(base + waiter * MILLI / 3).await });
            }
            while let Some(ended) = waits.join_next().await {
                match ended.unwrap() {
                    Ok(Attempt::Held { .. }) => {}
                    Ok(Attempt::Acquired(_)) => panic!("it is held"),
                    Err(error) => {
                        println!("{round_trip} ms, round {round}: {error}");
                        errors.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
        }
        let errors = errors.into_inner();
        assert_eq!(errors, 0, "of {} waits with a round trip of {round_trip} ms", 10 * rounds());
    }
}

/// A2: this also holds for sets of locks, async and blocking.
#[test]
fn simultaneous_set_timeouts_are_not_errors() {
    let server = RedisServer::start();
    let locks = blocking::LockManager::connect(&server.url()).unwrap();
    let held = blocking::LockManager::connect(&server.url()).unwrap().lock("b").acquire().unwrap();
    let set = blocking::multi_lock(["a", "b", "c"].map(|name| locks.lock(name))).unwrap();
    for round in 0..rounds() {
        let wait = Duration::from_micros(800 + 130 * u64::try_from(round % 20).unwrap());
        std::thread::scope(|threads| {
            let waits: Vec<_> = (0..10)
                .map(|waiter| {
                    let set = &set;
                    threads.spawn(move || set.try_acquire_for(wait + waiter * MILLI / 3))
                })
                .collect();
            for ended in waits {
                let ended = ended.join().unwrap();
                assert!(matches!(&ended, Ok(Attempt::Held { .. })), "{ended:?}");
            }
        });
    }
    drop(held);
}

/// A5: a wait of zero sends one request. Every call sends at least one request, however short its wait and however long the round trip is.
#[tokio::test]
async fn wait_below_round_trip_still_requests() {
    let server = RedisServer::start();
    let holder = manager(&server.url()).await;
    let proxy = Proxy::before(&server);
    let locks = far(&proxy, 20).await;
    let others = far(&proxy, 20).await;
    for wait in [Duration::ZERO, Duration::from_nanos(1), MILLI, 5 * MILLI] {
        let lock = locks.lock("n");
        let guard = lock.try_acquire_for(wait).await.unwrap().acquired().expect("it is free");
        assert_none(&others.lock("n").try_acquire_for(wait).await, "held");
        assert_none(&lock.try_acquire_for(wait).await, "held by this process");
        let set = multi_lock([lock.clone(), locks.lock("m")]).unwrap();
        assert!(!set.try_acquire_for(wait).await.unwrap().is_acquired());
        drop(guard);
        assert!(gone(&server, "n").await);
        drop(set.try_acquire_for(wait).await.unwrap().acquired().expect("all are free"));
        assert!(eventually(PATIENCE, async || server.cli(&["DBSIZE"]) == "0").await);
        let mut crowd = JoinSet::new();
        for _ in 0..8 {
            let lock = lock.clone();
            crowd.spawn(async move { lock.try_acquire_for(wait).await });
        }
        let ended = crowd.join_all().await;
        assert!(ended.iter().all(Result::is_ok), "{ended:?}");
        assert_eq!(
            ended.iter().flatten().filter(|attempt| attempt.is_acquired()).count(),
            1,
            "a free lock is somebody's"
        );
        drop(ended);
        assert!(gone(&server, "n").await);
    }
    let red = RedLockManager::new([locks]).await.unwrap();
    drop(red.lock("q").try_acquire_for(Duration::ZERO).await.unwrap().acquired().expect("it is free"));
    assert!(gone(&server, "q").await);
    let theirs = holder.lock("q").acquire().await.unwrap();
    for wait in [Duration::ZERO, MILLI] {
        assert!(!red.lock("q").try_acquire_for(wait).await.unwrap().is_acquired());
    }
    drop(theirs);
}

/// A3: once the server replies again, no caller gets an error from before.
#[tokio::test]
async fn an_error_ends_with_its_cause() {
    let server = RedisServer::start();
    let others = manager(&server.url()).await;
    let locks = adjusted(&server.url(), LEASE, |config| config.response_timeout = 100 * MILLI).await;
    let held = others.lock("n").acquire().await.unwrap();
    let lock = locks.lock("n");
    let crowd = |count: usize| {
        let mut crowd = JoinSet::new();
        for _ in 0..count {
            let lock = lock.clone();
            crowd.spawn(async move { lock.acquire().await });
        }
        crowd
    };
    // Only permissions are broken, and the holder's message makes the head send a request.
    let waiting = crowd(5);
    assert!(listeners(&server, "n", 1).await);
    assert_eq!(server.cli(&["ACL", "SETUSER", "default", "-evalsha", "-eval"]), "OK");
    assert_eq!(server.cli(&["DEL", "n"]), "1");
    let heard = server.cli(&["PUBLISH", "redisson_lock__channel:{n}", "0"]);
    assert_eq!(heard, "1");
    let ended = waiting.join_all().await;
    assert!(
        ended.iter().all(|ended| matches!(ended, Err(Error::Server { source, .. }) if source.kind() == ErrorKind::Permission)),
        "{ended:?}"
    );
    assert_eq!(server.cli(&["ACL", "SETUSER", "default", "+evalsha", "+eval"]), "OK");
    // The subscription lingers, so these waits find the state that the earlier waits have left.
    for wait in [Duration::ZERO, 20 * MILLI, PATIENCE] {
        let guard =
            lock.try_acquire_for(wait).await.expect("the server answers").acquired().expect("it is free");
        let second = lock.try_acquire_for(20 * MILLI).await;
        assert_none(&second, "held here");
        drop(guard);
        assert!(gone(&server, "n").await);
    }
    drop(held);

    // The same happens after the server was silent for longer than a call may take.
    let held = others.lock("n").acquire().await.unwrap();
    let mut waiting = crowd(5);
    assert!(listeners(&server, "n", 1).await);
    server.pause();
    let ended = lock.clone().try_acquire().await;
    assert!(ended.is_err(), "{ended:?}");
    server.resume();
    assert!(eventually(PATIENCE, async || lock.try_acquire().await.is_ok()).await);
    for _ in 0..20 {
        assert_none(&lock.try_acquire_for(5 * MILLI).await, "held");
    }
    drop(held);
    // These waiters may have failed, and then they failed in time.
    waiting.abort_all();
}

/// Frees a lock, notifies the waiters, and refuses everything else until [`serve_again`]. The refusal is `BUSY`. A server that loads its
/// data refuses with `LOADING`, and a cluster without a node with `CLUSTERDOWN`.
fn free_and_be_busy(server: &RedisServer, name: &str) -> std::thread::JoinHandle<()> {
    assert_eq!(server.cli(&["DEL", name]), "1");
    let mut connection = server.connect().unwrap();
    let channel = format!("redisson_lock__channel:{{{name}}}");
    std::thread::spawn(move || {
        let script = "redis.call('publish', ARGV[1], '0') while true do end";
        let _killed = connection.query(&["EVAL", script, "0", &channel]).unwrap();
    })
}

fn serve_again(server: &RedisServer, busy: std::thread::JoinHandle<()>) {
    assert_eq!(server.cli(&["SCRIPT", "KILL"]), "OK");
    busy.join().unwrap();
}

/// A4: a waiter whose wait ends in a short fault fails alone. Waiters with more patience outlast the fault.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_impatient_waiter_fails_alone() {
    let server = RedisServer::builder().arg("busy-reply-threshold", "5").start();
    let others = manager(&server.url()).await;
    let locks = adjusted(&server.url(), LEASE, |_| {}).await;
    let held = others.lock("n").acquire().await.unwrap();
    let lock = locks.lock("n");
    let impatient = tokio::spawn({
        let lock = lock.clone();
        async move { lock.try_acquire_for(600 * MILLI).await }
    });
    assert!(listeners(&server, "n", 1).await);
    let mut patient = JoinSet::new();
    for _ in 0..3 {
        let lock = lock.clone();
        patient.spawn(async move { lock.acquire().await.map(drop) });
    }
    assert!(eventually(PATIENCE, async || locks.metrics().waiting == 4).await);
    let busy = free_and_be_busy(&server, "n");
    let error = impatient.await.unwrap().expect_err("its wait ended in trouble");
    assert!(error.to_string().contains("BUSY"), "{error}");
    assert!(patient.try_join_next().is_none(), "the others go on");
    serve_again(&server, busy);
    while let Some(ended) = patient.join_next().await {
        ended.unwrap().expect("they have outlasted it");
    }
    assert!(at_rest(&locks).await && gone(&server, "n").await);
    drop(held);
}

/// A4: a quorum's waiter whose wait ends in a short fault fails alone, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn timed_out_quorum_waiter_fails_alone() {
    let servers = [(); 3].map(|()| RedisServer::builder().arg("busy-reply-threshold", "5").start());
    let red = RedLockManager::connect(servers.iter().map(RedisServer::url)).await.unwrap();
    let others = RedLockManager::connect(servers.iter().map(RedisServer::url)).await.unwrap();
    let held = others.lock("q").acquire().await.unwrap();
    let lock = red.lock("q");
    let impatient = tokio::spawn({
        let lock = lock.clone();
        async move { lock.try_acquire_for(600 * MILLI).await }
    });
    for server in &servers {
        assert!(listeners(server, "q", 1).await);
    }
    let patient = tokio::spawn({
        let lock = lock.clone();
        async move { lock.acquire().await.map(drop) }
    });
    let busy: Vec<_> = servers.iter().map(|server| free_and_be_busy(server, "q")).collect();
    let error = impatient.await.unwrap().expect_err("its wait ended in trouble");
    assert!(matches!(error, Error::NoQuorum { .. }), "{error}");
    assert!(!patient.is_finished(), "the other goes on");
    servers.iter().zip(busy).for_each(|(server, busy)| serve_again(server, busy));
    tokio::time::timeout(PATIENCE, patient).await.expect("woken").unwrap().expect("it has outlasted it");
    drop(held);
}
