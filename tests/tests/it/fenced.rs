//! The fenced lock and the spin lock against real servers.
//!
//! Tests that tokens only rise, and waits without messages.

use std::time::{Duration, Instant};

use wheellock::{Backoff, Error, LockManager};
use wheellock_tests::locks::{PATIENCE, WOKEN, clock, exclude_each_other, gone, manager};
use wheellock_tests::{RedisServer, eventually};

const NAME: &str = "ledger";
const COUNTER: &str = "redisson_lock_token:{ledger}";

async fn server_and_manager() -> (RedisServer, LockManager) {
    let server = RedisServer::start();
    let locks = manager(&server.url()).await;
    (server, locks)
}

fn set(server: &RedisServer, command: &[&str]) {
    let _answer = server.cli(command);
}

#[tokio::test]
async fn fenced_lock_follows_wire_contract() {
    let (server, locks) = server_and_manager().await;
    let lock = locks.fenced_lock(NAME);
    assert_eq!(lock.token().await.unwrap(), None);
    let guard = lock.acquire().await.unwrap();
    let owner = guard.owner().to_string();
    let fields = server.cli(&["HGETALL", NAME]);
    assert_eq!(
        fields.split_whitespace().collect::<Vec<_>>(),
        [&owner, "1"],
        "a plain lock beside its counter"
    );
    assert_eq!(server.cli(&["GET", COUNTER]), guard.token().to_string());
    assert_eq!(server.cli(&["PTTL", COUNTER]), "-1");
    assert_eq!(lock.token().await.unwrap(), Some(guard.token()));
    assert!(!locks.lock(NAME).try_acquire().await.unwrap().is_acquired(), "it excludes the plain lock");
    let again = lock.with_owner(guard.owner()).try_acquire().await.unwrap().acquired().unwrap();
    assert_eq!(again.token(), guard.token(), "one owner's holds have one token");
    again.release().await.unwrap();
    let first = guard.token();
    guard.release().await.unwrap();
    let next = lock.try_acquire_for(PATIENCE).await.unwrap().acquired().unwrap();
    assert!(next.token() > first);
    drop(next);
    assert!(gone(&server, NAME).await);
    assert_eq!(server.cli(&["EXISTS", COUNTER]), "1");
}

#[tokio::test]
async fn tokens_rise_despite_counter_changes() {
    let (server, locks) = server_and_manager().await;
    let lock = locks.fenced_lock(NAME);
    let mut latest = 0;
    let mut next = async |what: &str| {
        let guard = lock.acquire().await.unwrap();
        assert!(guard.token() > latest, "{what}: {} after {latest}", guard.token());
        latest = guard.token();
        guard.release().await.unwrap();
        latest
    };
    next("the first").await;
    set(&server, &["DEL", COUNTER]);
    next("after its counter was deleted").await;
    set(&server, &["SET", COUNTER, "7"]);
    next("after its counter was set back").await;
    let raised: u64 = server.cli(&["INCR", COUNTER]).parse().unwrap();
    assert!(next("after Redisson has raised it").await > raised);
    // Beyond the precision of the script language's numbers, and ahead of the server's clock.
    let high = (1_u64 << 53) + 1;
    set(&server, &["SET", COUNTER, &high.to_string()]);
    assert_eq!(next("from a high one").await, high + 1);
    assert_eq!(next("one by one").await, high + 2);
    set(&server, &["FLUSHALL"]);
    set(&server, &["SET", COUNTER, "-5"]);
    the_clock_rules(&server, &lock).await;
}

/// Asserts that tokens follow the clock again. The clock cannot restore a lost high counter.
async fn the_clock_rules(server: &RedisServer, lock: &wheellock::FencedLock) {
    let guard = lock.acquire().await.unwrap();
    assert!(
        Duration::from_micros(guard.token()).abs_diff(clock(server)) < Duration::from_secs(10),
        "{}",
        guard.token()
    );
    guard.release().await.unwrap();
}

#[tokio::test]
async fn tokens_rise_after_data_loss() {
    let (mut server, locks) = server_and_manager().await;
    let lock = locks.fenced_lock(NAME);
    let mut latest = 0;
    for _ in 0..3 {
        let guard = lock.acquire().await.unwrap();
        assert!(guard.token() > latest);
        latest = guard.token();
        drop(guard);
        server.kill();
        server.restart_clean();
    }
}

#[tokio::test]
async fn foreign_counter_stays_untouched() {
    let (server, locks) = server_and_manager().await;
    let lock = locks.fenced_lock(NAME);
    for set_up in [["SET", COUNTER, "x"], ["RPUSH", COUNTER, "x"]] {
        set(&server, &set_up);
        let before = server.cli(&["DUMP", COUNTER]);
        let error = lock.try_acquire().await.unwrap_err();
        assert!(matches!(error, Error::OtherData { .. }), "{error}");
        assert_eq!((server.cli(&["DUMP", COUNTER]), server.cli(&["EXISTS", NAME])), (before, "0".to_owned()));
        set(&server, &["DEL", COUNTER]);
    }
    let guard = lock.run(async |guard| Ok::<_, Error>(guard.token())).await.unwrap();
    assert!(guard > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_token_is_given_twice() {
    let server = RedisServer::start();
    let managers = [manager(&server.url()).await, manager(&server.url()).await];
    let tasks: Vec<_> = (0..16)
        .map(|number| {
            let lock = managers[number % 2].fenced_lock(NAME);
            tokio::spawn(async move {
                let mut tokens = Vec::new();
                for _ in 0..30 {
                    let guard = lock.acquire().await.unwrap();
                    tokens.push(guard.token());
                    if number % 3 > 0 {
                        guard.release().await.unwrap();
                    }
                }
                assert!(tokens.is_sorted());
                tokens
            })
        })
        .collect();
    let mut all = Vec::new();
    for task in tasks {
        all.extend(task.await.unwrap());
    }
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 16 * 30);
}

#[tokio::test]
async fn spin_lock_polls_without_subscribing() {
    let (server, locks) = server_and_manager().await;
    let (spin, plain) = (locks.spin_lock(NAME), manager(&server.url()).await.lock(NAME));
    let guard = plain.acquire().await.unwrap();
    assert!(!spin.try_acquire().await.unwrap().is_acquired(), "it excludes and is excluded");
    let waiting = {
        let spin = spin.clone();
        tokio::spawn(async move { spin.try_acquire_for(WOKEN).await.unwrap() })
    };
    assert!(eventually(PATIENCE, async || locks.metrics().waiting == 1).await);
    let asked = server.monitor();
    let polls = locks.client().stats().calls;
    assert!(eventually(PATIENCE, async || locks.client().stats().calls > polls + 5).await, "it polls");
    assert_eq!(server.cli(&["PUBSUB", "CHANNELS", "*"]), "");
    guard.release().await.unwrap();
    let guard = waiting.await.unwrap().acquired().expect("it asks again soon");
    let asked = asked.stop().unwrap();
    assert!(!asked.iter().any(|command| command.name() == "SUBSCRIBE"));
    // A subscribed waiter on the same key is notified all the same.
    let waiting = tokio::spawn(async move { plain.try_acquire_for(WOKEN).await.unwrap() });
    assert!(eventually(PATIENCE, async || !server.cli(&["PUBSUB", "CHANNELS", "*"]).is_empty()).await);
    guard.release().await.unwrap();
    assert!(waiting.await.unwrap().is_acquired());
}

#[tokio::test]
async fn spin_lock_never_overshoots_wait() {
    let (_server, locks) = server_and_manager().await;
    let guard = locks.lock(NAME).acquire().await.unwrap();
    let slow = locks.spin_lock(NAME).with_backoff(Backoff::Constant(Duration::from_secs(60)));
    let began = Instant::now();
    assert!(!slow.try_acquire_for(Duration::from_millis(300)).await.unwrap().is_acquired());
    let waited = began.elapsed();
    assert!((Duration::from_millis(300)..PATIENCE).contains(&waited), "{waited:?}");
    drop(guard);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spinning_processes_stay_exclusive() {
    let server = RedisServer::start();
    let managers = [manager(&server.url()).await, manager(&server.url()).await];
    exclude_each_other(&managers.map(|locks| locks.spin_lock(NAME)), 16).await;
    assert!(gone(&server, NAME).await);
}
