//! Names under which other data is stored. The data is of another type, is another kind of lock, or names holders in another language.

use std::time::Duration;

use wheellock::{Error, LostReason, Outcome, blocking, multi_lock};
use wheellock_tests::locks::{Asked, PATIENCE, WOKEN, at_rest, listeners, lost, manager};
use wheellock_tests::{RedisServer, eventually};

const JAVA: &str = "8a3ba4a9-51d9-4eb3-a2ee-7a3ba0dfd9f4:31";

/// Command that makes each kind of foreign data, and command that shows it unchanged.
const FOREIGN: [(&[&str], &[&str]); 7] = [
    (&["SET", "n", "5"], &["GET", "n"]),
    (&["RPUSH", "n", "a", "b"], &["LRANGE", "n", "0", "-1"]),
    (&["ZADD", "n", "1", "permit"], &["ZRANGE", "n", "0", "-1"]),
    (&["HSET", "n", "colour", "blue"], &["HGETALL", "n"]),
    (&["HSET", "n", JAVA, "0"], &["HGETALL", "n"]),
    (&["HSET", "n", JAVA, "1", "colour", "blue"], &["HGETALL", "n"]),
    (&["HSET", "n", "mode", "read", JAVA, "1"], &["HGETALL", "n"]),
];

#[track_caller]
fn assert_other_data<T: std::fmt::Debug>(result: Result<T, Error>) {
    let error = result.expect_err("it is no lock");
    assert!(matches!(&error, Error::OtherData { lock, .. } if lock == "n"), "{error:?}");
    assert_eq!(error.outcome(), Outcome::Rejected, "nothing was changed");
    let said = error.to_string();
    assert!(said.contains("\"n\"") && said.contains("other data"), "{said}");
}

/// A7: a name with data of another type or another kind of lock is refused with an error that says so. The refusal changes nothing and
/// leaves nothing to do in the background.
#[tokio::test]
async fn other_data_is_reported_and_kept() {
    let server = RedisServer::start();
    let locks = manager(&server.url()).await;
    let lock = locks.lock("n");
    for (make, show) in FOREIGN {
        let _made = server.cli(make);
        let before = server.cli(show);
        let monitor = server.monitor();
        for _ in 0..20 {
            assert_other_data(lock.try_acquire().await);
        }
        assert_other_data(lock.acquire().await);
        assert_other_data(lock.try_acquire_for(Duration::from_millis(50)).await);
        assert_other_data(multi_lock([lock.clone(), locks.lock("m")]).unwrap().try_acquire().await);
        assert!(at_rest(&locks).await);
        let asked = Asked::all(&monitor.stop().unwrap());
        assert!(!asked.iter().any(|asked| asked.frees("n")), "{asked:?}");
        assert_eq!(server.cli(show), before);
        assert_eq!(server.cli(&["DEL", "n"]), "1");
    }
    assert_eq!(server.cli(&["DBSIZE"]), "0");
}

/// L4: an application's hash is not a holder of any kind of lock.
#[tokio::test]
async fn application_hash_is_no_lock() {
    let server = RedisServer::start();
    let locks = manager(&server.url()).await;
    let large: Vec<String> = (0..1000).map(|field| format!("{}:{field}", &JAVA[..36])).collect();
    let large: Vec<&str> = large.iter().flat_map(|field| [field.as_str(), "1"]).collect();
    let sides = locks.read_write_lock("n");
    let kinds = [
        locks.lock("n"),
        locks.spin_lock("n"),
        locks.fair_lock("n"),
        locks.fenced_lock("n").as_lock().clone(),
        locks.simple_lock("n"),
        sides.read(),
        sides.write(),
    ];
    for fields in [&["name", "Ada"][..], &[JAVA, "1", "name", "Ada"], &[JAVA, "often"], &["a:1", "1"], &large]
    {
        let _made = server.cli(&[&["HSET", "n"], fields].concat());
        for lock in &kinds {
            assert_other_data(lock.try_acquire().await);
            assert_other_data(lock.try_acquire_for(Duration::from_millis(5)).await);
            assert_other_data(lock.acquire().await);
            assert_other_data(lock.holder().await);
            assert_other_data(lock.force_release().await);
        }
        assert_other_data(multi_lock([locks.lock("n"), locks.lock("m")]).unwrap().acquire().await);
        assert_other_data(multi_lock([locks.lock("m"), locks.lock("n")]).unwrap().try_acquire().await);
        assert_other_data(locks.election("n").try_campaign().await);
        assert_other_data(locks.election("n").leader().await);
        assert!(at_rest(&locks).await);
        assert_eq!(server.cli(&["HLEN", "n"]), (fields.len() / 2).to_string());
        assert_eq!(server.cli(&["DEL", "n"]), "1");
    }
    // Each caller of a shared request gets its own answer, and blocks no other caller.
    let _made = server.cli(&["HSET", "n", "name", "Ada"]);
    let (many, other) = (vec![locks.lock("n"); 20], locks.lock("m"));
    let all = many.iter().map(|lock| Box::pin(lock.try_acquire())).collect::<Vec<_>>();
    let (refused, taken) = tokio::join!(
        async {
            let mut refused = Vec::new();
            for attempt in all {
                refused.push(attempt.await);
            }
            refused
        },
        other.try_acquire()
    );
    refused.into_iter().for_each(assert_other_data);
    assert!(taken.unwrap().is_acquired());
}

/// Fields of Redisson's kinds of locks, which contain more than an owner.
#[tokio::test]
async fn foreign_holders_are_holders() {
    let server = RedisServer::start();
    let locks = manager(&server.url()).await;
    for holder in
        [JAVA.to_owned(), format!("{JAVA}:write"), format!("{}:-3", &JAVA[..36]), JAVA.to_uppercase()]
    {
        assert_eq!(server.cli(&["HSET", "n", &holder, "2"]), "1");
        for lock in [locks.lock("n"), locks.fair_lock("n"), locks.fenced_lock("n").as_lock().clone()] {
            assert!(!lock.try_acquire().await.unwrap().is_acquired(), "{holder}");
            let told = lock.holder().await.unwrap().expect("it is held");
            assert_eq!((told.owner.as_str(), told.hold_count), (&*holder, 2));
        }
        assert!(locks.lock("n").force_release().await.unwrap());
    }
}

/// A7: a forced release refuses data that is not a lock of this kind.
#[tokio::test]
async fn a_forced_release_deletes_locks_only() {
    let server = RedisServer::start();
    let locks = manager(&server.url()).await;
    let lock = locks.lock("n");
    for (make, show) in FOREIGN {
        let _made = server.cli(make);
        let before = server.cli(show);
        assert_other_data(lock.force_release().await);
        assert_eq!(server.cli(show), before);
        assert_eq!(server.cli(&["DEL", "n"]), "1");
    }
    let many: Vec<String> = (0..2000).flat_map(|field| [format!("a:{field}"), "1".to_owned()]).collect();
    let many: Vec<&str> = ["HSET", "n"].into_iter().chain(many.iter().map(String::as_str)).collect();
    assert_eq!(server.cli(&many), "2000");
    assert_other_data(lock.force_release().await);
    assert_eq!(server.cli(&["DEL", "n"]), "1");

    assert!(!lock.force_release().await.unwrap(), "it is free");
    assert_eq!(server.cli(&["HSET", "n", JAVA, "2"]), "1");
    assert!(lock.force_release().await.unwrap(), "a lock of another language");
    let guard = lock.acquire().await.unwrap();
    assert!(lock.force_release().await.unwrap());
    assert_eq!(lost(&guard).await, LostReason::NotOwner);
}

/// A7: other data that replaces a held lock is a lost lock. The loss is reported once.
#[tokio::test]
async fn other_data_replacing_lock_is_loss() {
    let server = RedisServer::start();
    let locks = manager(&server.url()).await;
    let guards = [locks.lock("n").acquire().await.unwrap(), locks.lock("m").acquire().await.unwrap()];
    assert_eq!(server.cli(&["MSET", "n", "theirs", "m", "theirs"]), "OK");
    let monitor = server.monitor();
    let [confirmed, dropped] = guards;
    assert!(matches!(confirmed.release().await, Err(Error::Lost { .. })));
    drop(dropped);
    assert!(eventually(PATIENCE, async || locks.metrics().lost_not_owner == 2).await);
    assert!(at_rest(&locks).await);
    let asked = Asked::all(&monitor.stop().unwrap());
    assert_eq!(asked.len(), 2, "{asked:?}");
    assert_eq!(server.cli(&["MGET", "n", "m"]), "theirs\ntheirs");
}

/// D5: a release removes only its own field. The key goes with its last field.
#[tokio::test]
async fn release_keeps_foreign_holds() {
    let server = RedisServer::start();
    let locks = manager(&server.url()).await;
    // A read lock of Redisson changes our held lock in this way. It finds no `mode` and enters.
    let java = ["HSET", "n", "mode", "read", JAVA, "1"];
    let guard = locks.lock("n").acquire().await.unwrap();
    assert_eq!(server.cli(&java), "2");
    let monitor = server.monitor();
    guard.release().await.unwrap();
    let left = server.cli(&["HGETALL", "n"]);
    let seen = monitor.stop().unwrap();
    assert_eq!(left.split_whitespace().collect::<Vec<_>>(), java[2..]);
    assert!(!seen.iter().any(|line| line.name() == "PUBLISH"), "it is not free");
    assert!(server.cli(&["PTTL", "n"]).parse::<i64>().unwrap() > 0);
    assert_other_data(locks.lock("n").try_acquire().await);
    assert_eq!(server.cli(&["DEL", "n"]), "1");

    let guard = locks.lock("n").acquire().await.unwrap();
    assert_eq!(server.cli(&java), "2");
    drop(guard);
    assert!(eventually(PATIENCE, async || server.cli(&["HLEN", "n"]) == "2").await, "dropped");
    assert_eq!(server.cli(&["HDEL", "n", "mode", JAVA]), "2");
    assert_eq!(server.cli(&["EXISTS", "n"]), "0");
}

/// D5: a waiter learns that the lock has meanwhile become a lock of another kind.
#[tokio::test]
async fn waiter_reports_changed_lock_kind() {
    let server = RedisServer::start();
    let (locks, others) = (manager(&server.url()).await, manager(&server.url()).await);
    let guard = others.lock("n").acquire().await.unwrap();
    let lock = locks.lock("n");
    let waiting = tokio::spawn(async move { lock.acquire().await.map(drop) });
    assert!(listeners(&server, "n", 1).await);
    assert_eq!(server.cli(&["HSET", "n", "mode", "write"]), "1");
    guard.release().await.unwrap();
    assert_eq!(server.cli(&["PUBLISH", "redisson_lock__channel:{n}", "0"]), "1");
    assert_other_data(tokio::time::timeout(WOKEN, waiting).await.expect("it asked").unwrap());
}

/// A reader is one owner for all kinds of locks. Another kind of lock is refused to it as to any other owner.
#[tokio::test]
async fn reader_owner_is_refused_other_kinds() {
    let server = RedisServer::start();
    let locks = manager(&server.url()).await;
    let reader = locks.read_write_lock("n").read().acquire().await.unwrap();
    let _other = locks.read_write_lock("n").read().acquire().await.unwrap();
    let owner = reader.owner();
    let fields = || {
        let all = server.cli(&["HGETALL", "n"]);
        let mut all: Vec<_> = all.lines().map(str::to_owned).collect();
        all.sort();
        all
    };
    let before = fields();
    let fenced = locks.fenced_lock("n");
    let plain = [locks.lock("n"), locks.lock("n")].map(|lock| lock.with_owner(owner.clone()));
    for lock in [
        &plain[0],
        &locks.fair_lock("n").with_owner(owner.clone()),
        &fenced.as_lock().with_owner(owner.clone()),
    ] {
        assert_other_data(lock.try_acquire().await);
        assert_other_data(lock.acquire().await);
    }
    let together = tokio::join!(plain[0].acquire(), plain[1].acquire());
    assert_other_data(together.0);
    assert_other_data(together.1);
    let free = locks.lock("m").with_owner(owner);
    assert_other_data(multi_lock([plain[0].clone(), free]).unwrap().try_acquire().await);
    assert!(at_rest(&locks).await);
    assert_eq!(fields(), before);
    assert_eq!(server.cli(&["KEYS", "redisson_lock_*"]), "", "neither a token nor a queue");
    reader.release().await.unwrap();
}

/// A7: the blocking forms return the same errors.
#[test]
fn blocking_forms_tell_other_data_too() {
    let server = RedisServer::start();
    let locks = blocking::LockManager::connect(&server.url()).unwrap();
    assert_eq!(server.cli(&["SET", "n", "5"]), "OK");
    let lock = locks.lock("n");
    assert_other_data(lock.try_acquire());
    assert_other_data(lock.force_release());
    assert_other_data(lock.hold_count(&locks.this_thread()));
    assert_other_data(lock.is_held_by(&locks.this_thread()));
    assert_other_data(blocking::multi_lock([lock, locks.lock("m")]).unwrap().try_acquire());
    assert_eq!((server.cli(&["GET", "n"]), server.cli(&["DBSIZE"])), ("5".to_owned(), "1".to_owned()));
}

/// A thread is one owner for all kinds of locks.
#[test]
fn reading_thread_is_refused_other_kind() {
    let server = RedisServer::start();
    let locks = blocking::LockManager::connect(&server.url()).unwrap();
    let reads = locks.read_write_lock("n").read().acquire().unwrap();
    assert_other_data(locks.lock("n").try_acquire());
    reads.release().unwrap();
    assert_eq!(server.cli(&["DBSIZE"]), "0");
}
