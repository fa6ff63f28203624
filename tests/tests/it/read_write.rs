//! The read-write lock against real servers. The tests cover its wire contract, exclusion, the order of readers and writers, and other data
//! under its name.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::Barrier;
use tokio::time::timeout;
use wheellock::testing::server::Which;
use wheellock::{Error, Fairness, Guard, LockManager, LostReason, Outcome};
use wheellock_tests::locks::{PATIENCE, RENEWED, WOKEN, at_rest, brisk, clock, gone, lost, manager, renewed};
use wheellock_tests::{RedisServer, Reply, eventually};

const NAME: &str = "prices";
const MANY: usize = 30;

async fn server_and_manager() -> (RedisServer, LockManager) {
    let server = RedisServer::start();
    let locks = manager(&server.url()).await;
    (server, locks)
}

/// Returns the fields of a hash and their values, sorted.
fn fields(server: &RedisServer, key: &str) -> Vec<String> {
    let all = server.cli(&["HGETALL", key]);
    let all: Vec<_> = all.split_whitespace().collect();
    let mut fields: Vec<_> = all.chunks(2).map(|pair| pair.join("=")).collect();
    fields.sort();
    fields
}

fn set(server: &RedisServer, command: &[&str]) {
    let _answer = server.cli(command);
}

fn pttl(server: &RedisServer, key: &str) -> i64 {
    server.cli(&["PTTL", key]).parse().unwrap()
}

fn keys(server: &RedisServer) -> Vec<String> {
    let keys = server.cli(&["KEYS", "*"]);
    let mut keys: Vec<_> = keys.split_whitespace().map(str::to_owned).collect();
    keys.sort();
    keys
}

#[tokio::test]
async fn read_lock_matches_wire_contract() {
    let (server, locks) = server_and_manager().await;
    let lock = locks.read_write_lock(NAME);
    let first = lock.read().with_lease(Duration::from_secs(20)).acquire().await.unwrap();
    let owner = first.owner();
    let again = lock.read().with_owner(owner.clone()).with_lease(Duration::from_secs(60));
    let second = again.acquire().await.unwrap();
    let other = lock.read().with_lease(Duration::from_secs(40)).acquire().await.unwrap();
    let others = other.owner();
    let mut expected = vec!["mode=read".to_owned(), format!("{owner}=2"), format!("{others}=1")];
    expected.sort();
    assert_eq!(fields(&server, NAME), expected);
    let timeouts = [(&owner, 1, 20_000), (&owner, 2, 60_000), (&others, 1, 40_000)];
    for (owner, hold, lease) in timeouts {
        let key = format!("{{{NAME}}}:{owner}:rwlock_timeout:{hold}");
        assert_eq!(server.cli(&["GET", &key]), "1", "{key}");
        assert!((lease - 5_000..=lease).contains(&pttl(&server, &key)), "{key}");
    }
    assert_eq!(keys(&server).len(), 4);
    assert!((55_000..=60_000).contains(&pttl(&server, NAME)), "the longest of all leases");

    second.release().await.unwrap();
    assert!((35_000..=40_000).contains(&pttl(&server, NAME)), "the longest of those that are left");
    assert_eq!(lock.read().hold_count(&owner).await.unwrap(), 1);
    other.release().await.unwrap();
    assert!((15_000..=20_000).contains(&pttl(&server, NAME)));
    assert!(lock.read().is_locked().await.unwrap() && !lock.write().is_locked().await.unwrap());
    first.release().await.unwrap();
    assert!(keys(&server).is_empty() && !lock.read().is_locked().await.unwrap());
}

#[tokio::test]
async fn write_lock_matches_wire_contract() {
    let (server, locks) = server_and_manager().await;
    let lock = locks.read_write_lock("a:{tag}");
    let first = lock.write().acquire().await.unwrap();
    let owner = first.owner();
    assert_eq!(fields(&server, "a:{tag}"), [format!("{owner}:write=1"), "mode=write".to_owned()]);
    let second = lock.write().with_owner(owner.clone()).acquire().await.unwrap();
    assert_eq!(fields(&server, "a:{tag}")[0], format!("{owner}:write=2"));
    assert!((25_000..=30_000).contains(&pttl(&server, "a:{tag}")), "leases are not added up");
    assert_eq!(keys(&server), ["a:{tag}"]);
    assert!(lock.write().is_locked().await.unwrap() && !lock.read().is_locked().await.unwrap());
    assert!(lock.write().is_held_by(&owner).await.unwrap() && !lock.read().is_held_by(&owner).await.unwrap());
    second.release().await.unwrap();
    assert_eq!(lock.write().hold_count(&owner).await.unwrap(), 1);
    first.release().await.unwrap();
    assert!(keys(&server).is_empty());
}

#[tokio::test]
async fn readers_share_writer_excludes() {
    let (_server, locks) = server_and_manager().await;
    let lock = locks.read_write_lock(NAME);
    let mut reading = Vec::new();
    for _ in 0..5 {
        reading.push(
            lock.read().try_acquire().await.unwrap().acquired().expect("readers do not exclude each other"),
        );
    }
    assert!(!lock.write().try_acquire().await.unwrap().is_acquired());
    for guard in reading {
        assert!(!lock.write().try_acquire().await.unwrap().is_acquired());
        guard.release().await.unwrap();
    }
    let writing = lock.write().try_acquire().await.unwrap().acquired().expect("nobody reads");
    assert!(!lock.write().try_acquire().await.unwrap().is_acquired());
    assert!(!lock.read().try_acquire().await.unwrap().is_acquired());
    drop(writing);
    let reading = lock.read().acquire().await.unwrap();
    reading.release().await.unwrap();
}

#[tokio::test]
async fn writer_downgrade_admits_readers() {
    let (server, locks) = server_and_manager().await;
    let (lock, others) = (locks.read_write_lock(NAME), manager(&server.url()).await.read_write_lock(NAME));
    let writing = lock.write().acquire().await.unwrap();
    let waiting = {
        let read = others.read();
        tokio::spawn(async move { read.try_acquire_for(WOKEN).await.unwrap() })
    };
    let listens = ["PUBSUB", "NUMSUB", "redisson_rwlock:{prices}"];
    assert!(eventually(PATIENCE, async || server.cli(&listens).ends_with('1')).await);
    // Another reader of this process waits, too. The writer must not wait behind that reader.
    let beside = {
        let read = lock.read();
        tokio::spawn(async move { read.try_acquire_for(WOKEN).await.unwrap() })
    };
    assert!(eventually(PATIENCE, async || locks.metrics().waiting == 1).await);
    let reading = lock.read().with_owner(writing.owner()).acquire().await.unwrap();
    assert!(lock.read().is_locked().await.unwrap() && lock.write().is_locked().await.unwrap());
    writing.release().await.unwrap();
    assert_eq!(server.cli(&["HGET", NAME, "mode"]), "read");
    for waiting in [waiting, beside] {
        let read = waiting.await.unwrap().acquired().expect("readers are told that nobody writes any more");
        assert!(reading.is_valid() && read.is_valid());
    }
    assert!(!lock.write().try_acquire().await.unwrap().is_acquired(), "it still reads");
    reading.release().await.unwrap();
    assert!(gone(&server, NAME).await && keys(&server).is_empty());
}

#[tokio::test]
async fn upgrade_is_refused_immediately() {
    let (server, locks) = server_and_manager().await;
    let lock = locks.read_write_lock(NAME);
    let reading = lock.read().acquire().await.unwrap();
    let upgrade = lock.write().with_owner(reading.owner());
    let without_limit = timeout(PATIENCE, upgrade.acquire()).await.expect("it waits for itself");
    for refused in
        [without_limit, upgrade.try_acquire_for(PATIENCE).await.map(|attempt| attempt.acquired().unwrap())]
    {
        let error = refused.unwrap_err();
        assert!(matches!(error, Error::Upgrade { .. }), "{error}");
        assert_eq!(error.outcome(), Outcome::Rejected);
    }
    // The server also refuses a process that does not know of the hold.
    let holder = reading.owner().to_string();
    drop(reading);
    assert!(gone(&server, NAME).await);
    let owner = locks.owner();
    set(&server, &["HSET", NAME, "mode", "read", &owner.to_string(), "1"]);
    set(&server, &["SET", &format!("{{{NAME}}}:{owner}:rwlock_timeout:1"), "1", "PX", "600000"]);
    let upgrade = lock.write().with_owner(owner);
    let error = timeout(PATIENCE, upgrade.acquire()).await.expect("it waits for itself").unwrap_err();
    assert!(matches!(error, Error::Upgrade { .. }), "{error}");
    assert!(!server.cli(&["HGETALL", NAME]).contains(&holder));
}

#[tokio::test]
async fn short_inner_lease_shortens_nothing() {
    let (server, locks) = server_and_manager().await;
    let lock = locks.read_write_lock(NAME);
    for side in [lock.read(), lock.write()] {
        let outer = side.with_lease(Duration::from_secs(60)).acquire().await.unwrap();
        let inner = side.with_owner(outer.owner()).with_lease(Duration::from_secs(1));
        let inner = inner.acquire().await.unwrap();
        assert!(pttl(&server, NAME) > 55_000);
        inner.release().await.unwrap();
        assert!(pttl(&server, NAME) > 55_000 && outer.is_valid());
        outer.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_readers_enter_together() {
    let (server, locks) = server_and_manager().await;
    let writer = manager(&server.url()).await;
    let lock = locks.read_write_lock(NAME);
    let writing = writer.read_write_lock(NAME).write().acquire().await.unwrap();
    let inside = Arc::new(Barrier::new(50));
    let readers: Vec<_> = (0..50)
        .map(|_| {
            let (read, inside) = (lock.read(), Arc::clone(&inside));
            tokio::spawn(async move {
                let guard = read.try_acquire_for(WOKEN).await.unwrap().acquired().expect("readers are woken");
                // No reader leaves before all have entered.
                inside.wait().await;
                guard.release().await.unwrap();
            })
        })
        .collect();
    assert!(eventually(PATIENCE, async || locks.metrics().waiting == 50).await);
    let monitor = server.monitor();
    writing.release().await.unwrap();
    for reader in readers {
        reader.await.unwrap();
    }
    let asked = monitor.stop().unwrap();
    let scripts =
        asked.iter().filter(|command| !command.from_script() && command.name() == "EVALSHA").count();
    assert!(
        scripts <= 1 + 50 + 50 + 2,
        "one release of the writer, an acquire and a release each: {scripts}"
    );
    assert!(gone(&server, NAME).await);
}

#[tokio::test]
async fn waiting_writer_precedes_new_readers() {
    let (server, locks) = server_and_manager().await;
    let (near, far) = (locks.read_write_lock(NAME), manager(&server.url()).await.read_write_lock(NAME));
    let reading = near.read().acquire().await.unwrap();
    let writer = {
        let write = far.write();
        tokio::spawn(async move { write.acquire().await.unwrap() })
    };
    let mark = format!("{{{NAME}}}:wheellock_writer");
    assert!(eventually(PATIENCE, async || server.cli(&["EXISTS", &mark]) == "1").await);
    assert!(!near.read().try_acquire().await.unwrap().is_acquired(), "of the other process");
    assert!(!far.read().try_acquire().await.unwrap().is_acquired(), "of its own");
    let eager = near.with_fairness(Fairness::ReadersFirst);
    let passes = eager.read().try_acquire().await.unwrap().acquired().expect("it is not asked to stand back");
    passes.release().await.unwrap();
    let again = near.read().with_owner(reading.owner()).acquire().await.unwrap();
    again.release().await.expect("who reads already must not wait");
    reading.release().await.unwrap();
    let writing = writer.await.unwrap();
    assert_eq!(keys(&server), [NAME], "what told of the writer has gone");
    let waiting = {
        let read = near.read();
        tokio::spawn(async move { read.try_acquire_for(WOKEN).await.unwrap() })
    };
    assert!(eventually(PATIENCE, async || locks.metrics().waiting == 1).await);
    writing.release().await.unwrap();
    assert!(waiting.await.unwrap().is_acquired());
}

#[tokio::test]
async fn readers_first_writer_blocks_no_reader() {
    let (server, locks) = server_and_manager().await;
    let lock = locks.read_write_lock(NAME).with_fairness(Fairness::ReadersFirst);
    let reading = lock.read().acquire().await.unwrap();
    let writer = {
        let write = lock.write();
        tokio::spawn(async move { write.acquire().await.unwrap() })
    };
    assert!(eventually(PATIENCE, async || locks.metrics().waiting == 1).await);
    assert!(locks.read_write_lock(NAME).read().try_acquire().await.unwrap().is_acquired());
    reading.release().await.unwrap();
    writer.await.unwrap().release().await.unwrap();
    assert!(gone(&server, NAME).await);
}

#[tokio::test]
async fn reader_after_deletion_counts_once() {
    let (server, locks) = server_and_manager().await;
    let others = manager(&server.url()).await;
    let (reader, writer) = (locks.read_write_lock(NAME).read(), others.read_write_lock(NAME).write());
    for is_read_by_another in [false, true] {
        let old = reader.acquire().await.unwrap();
        let owner = old.owner();
        set(&server, &["DEL", NAME]);
        let another = if is_read_by_another {
            others.read_write_lock(NAME).read().try_acquire().await.unwrap().acquired()
        } else {
            None
        };
        let outer = reader.with_owner(owner.clone()).acquire().await.unwrap();
        assert!(!old.is_valid() && outer.is_valid());
        assert_eq!(server.cli(&["HGET", NAME, &owner.to_string()]), "1");
        let inner = reader.with_owner(owner).acquire().await.unwrap();
        inner.release().await.unwrap();
        assert!(!writer.try_acquire().await.unwrap().is_acquired());
        assert!(outer.is_valid());
        drop(another);
        outer.release().await.unwrap();
        assert!(matches!(old.release().await, Err(Error::Lost { .. })));
        assert!(writer.try_acquire_for(PATIENCE).await.unwrap().is_acquired());
    }
}

/// Each hold of a reader has its own lease on the server. A release removes the lease of the released hold.
#[tokio::test]
async fn reader_relies_on_remaining_leases() {
    let (server, locks) = server_and_manager().await;
    let others = manager(&server.url()).await;
    let (reader, writer) = (locks.read_write_lock(NAME).read(), others.read_write_lock(NAME).write());
    let lease = Duration::from_secs(1);
    let outer = reader.with_lease(lease).acquire().await.unwrap();
    let inner = reader.with_owner(outer.owner()).with_lease(60 * lease).acquire().await.unwrap();
    // Waits until a third of the lease is over. A reader with a fixed lease checks its hold then.
    let half = clock(&server) + lease / 2;
    assert!(eventually(PATIENCE, async || clock(&server) > half).await);
    inner.release().await.unwrap();
    let writing =
        writer.try_acquire_for(PATIENCE).await.unwrap().acquired().expect("the outer lease has ended");
    assert!(!outer.is_valid(), "a writer has the lock");
    writing.release().await.unwrap();

    // The server removes the latest hold, whichever guard is released.
    let outer = reader.with_lease(lease).acquire().await.unwrap();
    let inner = reader.with_owner(outer.owner()).acquire().await.unwrap();
    outer.release().await.unwrap();
    let over = clock(&server) + 2 * lease;
    assert!(eventually(PATIENCE, async || clock(&server) > over || !inner.is_valid()).await);
    assert!(inner.is_valid(), "the watchdog keeps it");
    assert!(!writer.try_acquire().await.unwrap().is_acquired());
    inner.release().await.unwrap();

    // The remaining hold has ended before, so no reader is left.
    let outer = reader.with_lease(lease).acquire().await.unwrap();
    let inner = reader.with_owner(outer.owner()).with_lease(60 * lease).acquire().await.unwrap();
    let over = clock(&server) + lease;
    assert!(eventually(PATIENCE, async || clock(&server) > over).await);
    assert!(inner.is_valid());
    inner.release().await.unwrap();
    assert!(!outer.is_valid());
    writer
        .try_acquire_for(PATIENCE)
        .await
        .unwrap()
        .acquired()
        .expect("nobody reads")
        .release()
        .await
        .unwrap();
    assert!(matches!(outer.release().await, Err(Error::Lost { .. })));
    assert!(eventually(PATIENCE, async || keys(&server).is_empty()).await, "{:?}", keys(&server));
}

/// When a reader leaves, the server examines only a few of many readers. The reader with the longest lease must not suffer from that.
#[tokio::test]
async fn lock_lives_for_longest_reader_lease() {
    let (server, locks) = server_and_manager().await;
    let reader = locks.read_write_lock(NAME).read();
    let mut guards = Vec::new();
    for place in 0..MANY {
        let seconds = if place == MANY / 2 { 40 } else { 20 };
        guards.push(reader.with_lease(Duration::from_secs(seconds)).acquire().await.unwrap());
    }
    for _ in 0..8 {
        let longer = reader.with_lease(Duration::from_secs(60)).acquire().await.unwrap();
        assert!((55_000..=60_000).contains(&pttl(&server, NAME)));
        longer.release().await.unwrap();
        let left = pttl(&server, NAME);
        assert!((30_000..=40_000).contains(&left), "{left}");
    }
    for guard in guards {
        guard.release().await.unwrap();
    }
    assert_eq!(keys(&server), [""; 0]);
}

/// When a writer's wait ends for any reason, readers no longer wait behind the writer.
#[tokio::test]
async fn leaving_writer_lets_readers_pass() {
    let (server, locks) = server_and_manager().await;
    let (near, far) = (locks.read_write_lock(NAME), manager(&server.url()).await.read_write_lock(NAME));
    let mark = format!("{{{NAME}}}:wheellock_writer");
    let reading = near.read().acquire().await.unwrap();
    for dropped in [true, false] {
        let write = far.write();
        let wait = if dropped { PATIENCE } else { Duration::from_millis(300) };
        let writer = tokio::spawn(async move { write.try_acquire_for(wait).await.unwrap() });
        assert!(eventually(PATIENCE, async || server.cli(&["EXISTS", &mark]) == "1").await);
        let reader = {
            let read = near.read();
            tokio::spawn(async move { read.try_acquire_for(WOKEN).await.unwrap() })
        };
        assert!(eventually(PATIENCE, async || locks.metrics().waiting == 1).await || !dropped);
        if dropped {
            writer.abort();
        } else {
            assert!(!writer.await.unwrap().is_acquired());
        }
        let began = Instant::now();
        let passed = reader.await.unwrap().acquired().expect("it is told");
        assert!(began.elapsed() < WOKEN);
        passed.release().await.unwrap();
        assert!(gone(&server, &mark).await);
    }
    assert!(!far.write().try_acquire().await.unwrap().is_acquired());
    assert_eq!(server.cli(&["EXISTS", &mark]), "0", "who does not wait keeps nobody out");
    reading.release().await.unwrap();
    assert!(keys(&server).is_empty());
}

/// The short wait replaced the longer wait of the other writer on the server, and ended without a message.
#[tokio::test]
async fn short_wait_hides_no_waiting_writer() {
    let (server, locks) = server_and_manager().await;
    let near = locks.read_write_lock(NAME);
    let (far, hasty) = (manager(&server.url()).await, manager(&server.url()).await);
    let mark = format!("{{{NAME}}}:wheellock_writer");
    let reading = near.read().acquire().await.unwrap();
    let writer = {
        let write = far.read_write_lock(NAME).write();
        tokio::spawn(async move { write.acquire().await.unwrap() })
    };
    assert!(eventually(PATIENCE, async || server.cli(&["EXISTS", &mark]) == "1").await);
    let waits = server.cli(&["GET", &mark]);
    let hasty = hasty.read_write_lock(NAME).write();
    assert!(!hasty.try_acquire_for(Duration::from_millis(50)).await.unwrap().is_acquired());
    assert_eq!(server.cli(&["GET", &mark]), waits);
    assert!(!near.read().try_acquire().await.unwrap().is_acquired(), "readers still stand behind it");
    reading.release().await.unwrap();
    writer.await.unwrap().release().await.unwrap();
}

/// The request of the first waiting writer in a process keeps readers out, until that wait ends. The writer behind it sends a request then.
#[tokio::test]
async fn next_writer_keeps_readers_out() {
    let (server, locks) = server_and_manager().await;
    let far = manager(&server.url()).await.read_write_lock(NAME);
    let mark = format!("{{{NAME}}}:wheellock_writer");
    let reading = locks.read_write_lock(NAME).read().acquire().await.unwrap();
    for _ in 0..MANY {
        let [hasty, patient] = [far.write(), far.write()];
        let hasty = tokio::spawn(async move { hasty.try_acquire_for(Duration::from_millis(1)).await });
        let patient = tokio::spawn(async move { patient.acquire().await });
        assert!(!hasty.await.unwrap().unwrap().is_acquired());
        assert!(eventually(WOKEN, async || server.cli(&["EXISTS", &mark]) == "1").await);
        patient.abort();
        assert!(gone(&server, &mark).await);
    }
    reading.release().await.unwrap();
}

/// A process that dies while its writer waits keeps readers out for only a few seconds.
#[tokio::test]
async fn dead_writer_mark_expires() {
    let (server, locks) = server_and_manager().await;
    let lock = locks.read_write_lock(NAME);
    let reading = lock.read().acquire().await.unwrap();
    let mark = format!("{{{NAME}}}:wheellock_writer");
    set(&server, &["SET", &mark, "somebody:1:write", "PX", "700"]);
    let began = Instant::now();
    let read = lock.read().try_acquire_for(PATIENCE).await.unwrap().acquired().expect("it has ended");
    assert!((Duration::from_millis(500)..WOKEN).contains(&began.elapsed()), "{:?}", began.elapsed());
    drop((reading, read));
    assert!(gone(&server, NAME).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writers_exclude_and_never_starve() {
    let server = RedisServer::start();
    let managers = [manager(&server.url()).await, manager(&server.url()).await];
    let (readers, writers) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let written = Arc::new(AtomicU32::new(0));
    // Without this barrier the writers may finish before the readers begin.
    let all_there = Arc::new(Barrier::new(16));
    let mut tasks = Vec::new();
    for number in 0..16 {
        let lock = managers[number % 2].read_write_lock(NAME);
        let (readers, writers, written) = (Arc::clone(&readers), Arc::clone(&writers), Arc::clone(&written));
        let all_there = Arc::clone(&all_there);
        tasks.push(tokio::spawn(async move {
            all_there.wait().await;
            if number < 2 {
                for _ in 0..50 {
                    let guard = lock.write().acquire().await.unwrap();
                    assert_eq!(writers.fetch_add(1, Ordering::SeqCst), 0, "two write");
                    assert_eq!(readers.load(Ordering::SeqCst), 0, "somebody reads");
                    tokio::task::yield_now().await;
                    writers.fetch_sub(1, Ordering::SeqCst);
                    guard.release().await.unwrap();
                }
                written.fetch_add(1, Ordering::SeqCst);
                return 0;
            }
            let mut read = 0;
            while written.load(Ordering::SeqCst) < 2 {
                let guard = lock.read().acquire().await.unwrap();
                readers.fetch_add(1, Ordering::SeqCst);
                assert_eq!(writers.load(Ordering::SeqCst), 0, "somebody writes");
                tokio::task::yield_now().await;
                readers.fetch_sub(1, Ordering::SeqCst);
                guard.release().await.unwrap();
                read += 1;
            }
            read
        }));
    }
    let mut read = 0;
    for task in tasks {
        read += task.await.unwrap();
    }
    assert!(read >= 14, "readers have their turns, too: {read}");
    assert!(gone(&server, NAME).await);
}

#[tokio::test]
async fn the_watchdog_keeps_both_sides() {
    let server = RedisServer::start();
    let locks = brisk(&server.url(), RENEWED).await;
    let lock = locks.read_write_lock(NAME);
    let reading = lock.read().acquire().await.unwrap();
    let again = lock.read().with_owner(reading.owner()).acquire().await.unwrap();
    let beside = locks.lock("plain").acquire().await.unwrap();
    let writing = locks.read_write_lock("other").write().acquire().await.unwrap();
    let also_reads = locks.read_write_lock("other").read().with_owner(writing.owner());
    let also_reads = also_reads.acquire().await.unwrap();
    let all = tokio::join!(renewed(&reading, 4), renewed(&beside, 4), renewed(&writing, 4));
    assert_eq!(all, (true, true, true), "for longer than a lease");
    let timeout = |hold: u32| format!("{{{NAME}}}:{}:rwlock_timeout:{hold}", reading.owner());
    assert!(pttl(&server, &timeout(1)) > 0 && pttl(&server, &timeout(2)) > 0);
    // The release of an inner hold does not end the renewal of the outer hold.
    also_reads.release().await.unwrap();
    assert!(renewed(&writing, 4).await);
    for guard in [again, reading, writing, beside] {
        guard.release().await.unwrap();
    }
    assert!(keys(&server).is_empty());
}

/// Redisson's watchdog of readers sets the lease of the whole lock to its own lease.
#[tokio::test]
async fn renewal_restores_shortened_lock_lease() {
    let server = RedisServer::start();
    let locks = brisk(&server.url(), RENEWED).await;
    let lock = locks.read_write_lock(NAME);
    let reading = lock.read().acquire().await.unwrap();
    let long = lock.read().with_lease(Duration::from_secs(600)).acquire().await.unwrap();
    assert!(renewed(&reading, 1).await);
    set(&server, &["PEXPIRE", NAME, "3000"]);
    assert!(eventually(PATIENCE, async || pttl(&server, NAME) > 500_000).await, "the longest lease of all");
    assert!(long.is_valid());
    drop((reading, long));
    assert!(gone(&server, NAME).await);
}

/// A reader's lease that was extended, as Redisson's watchdog may do it, returns to the lease of its own watchdog.
#[tokio::test]
async fn renewal_keeps_leases_of_other_readers() {
    let server = RedisServer::start();
    let locks = brisk(&server.url(), RENEWED).await;
    let reading = locks.read_write_lock(NAME).read().acquire().await.unwrap();
    // This reader of another process does not look after its lease during the test.
    set(&server, &["HSET", NAME, "other:1", "1"]);
    set(&server, &["SET", &format!("{{{NAME}}}:other:1:rwlock_timeout:1"), "1", "PX", "600000"]);
    for key in [NAME.to_owned(), format!("{{{NAME}}}:{}:rwlock_timeout:1", reading.owner())] {
        set(&server, &["PEXPIRE", &key, "3600000"]);
    }
    let is_shorter = async || pttl(&server, NAME) < 3_000_000;
    assert!(eventually(PATIENCE, is_shorter).await, "the renewal sets the lease of the whole lock");
    assert!(pttl(&server, NAME) > 500_000, "the other reader keeps its lease");
}

/// A reader with a fixed lease restores the lock's lease as well, although no watchdog renews its hold. The reader learns of a loss before
/// its lease ends.
#[tokio::test]
async fn fixed_lease_reader_restores_lock_lease() {
    let (server, locks) = server_and_manager().await;
    let read = locks.read_write_lock(NAME).read().with_lease(Duration::from_secs(9));
    let reading = read.acquire().await.unwrap();
    let timeout = format!("{{{NAME}}}:{}:rwlock_timeout:1", reading.owner());
    set(&server, &["PEXPIRE", NAME, "5000"]);
    let kept = async || pttl(&server, NAME) + 100 > pttl(&server, &timeout);
    assert!(eventually(PATIENCE, kept).await);
    assert!(reading.is_valid() && pttl(&server, &timeout) > 1000);
    set(&server, &["DEL", NAME]);
    assert_eq!(lost(&reading).await, LostReason::NotOwner);
    assert!(matches!(reading.release().await, Err(Error::Lost { .. })));
}

/// The reader checks as often as the watchdog renews other holds, whatever its own lease is.
#[tokio::test]
async fn long_lease_reader_checks_like_watchdog() {
    let server = RedisServer::start();
    let locks = brisk(&server.url(), RENEWED).await;
    let read = locks.read_write_lock(NAME).read().with_lease(Duration::from_secs(600));
    let reading = read.acquire().await.unwrap();
    for _ in 0..2 {
        set(&server, &["PEXPIRE", NAME, "3000"]);
        assert!(eventually(PATIENCE, async || pttl(&server, NAME) > 500_000).await);
    }
    assert!(reading.is_valid());
    set(&server, &["DEL", NAME]);
    assert_eq!(lost(&reading).await, LostReason::NotOwner);
}

#[tokio::test]
async fn lost_lock_notifies_readers_and_writers() {
    let server = RedisServer::start();
    let locks = brisk(&server.url(), RENEWED).await;
    let lock = locks.read_write_lock(NAME);
    for side in [lock.read(), lock.write()] {
        let (one, others) = (side.acquire().await.unwrap(), manager(&server.url()).await);
        let others = others.read_write_lock(NAME);
        let forced =
            [others.read().force_release().await.unwrap(), others.write().force_release().await.unwrap()];
        assert_eq!(forced.iter().filter(|forced| **forced).count(), 1, "each frees its own side only");
        assert!(keys(&server).is_empty());
        assert_eq!(lost(&one).await, LostReason::NotOwner);
        assert!(matches!(one.release().await, Err(Error::Lost { .. })));
    }
}

#[tokio::test]
async fn read_write_lock_leaves_other_data() {
    let (server, locks) = server_and_manager().await;
    let lock = locks.read_write_lock(NAME);
    let data: [&[&str]; 4] = [
        &["SET", NAME, "x"],
        &["HSET", NAME, "some", "data"],
        &["HSET", NAME, "mode", "dark"],
        &["RPUSH", NAME, "x"],
    ];
    for set_up in data {
        set(&server, set_up);
        let before = server.cli(&["DUMP", NAME]);
        for side in [lock.read(), lock.write()] {
            let error = side.try_acquire().await.unwrap_err();
            assert!(matches!(error, Error::OtherData { .. }), "{error}");
            let error = side.acquire().await.unwrap_err();
            assert!(matches!(error, Error::OtherData { .. }), "{error}");
            let error = side.force_release().await.unwrap_err();
            assert!(matches!(error, Error::OtherData { .. }), "{error}");
        }
        assert!(at_rest(&locks).await);
        assert_eq!(server.cli(&["DUMP", NAME]), before);
        set(&server, &["DEL", NAME]);
    }
    // A plain lock and a read-write lock refuse each other's key.
    let plain = locks.lock(NAME).acquire().await.unwrap();
    assert!(matches!(lock.read().try_acquire().await, Err(Error::OtherData { .. })));
    plain.release().await.unwrap();
    let reading = lock.read().acquire().await.unwrap();
    assert!(matches!(locks.lock(NAME).try_acquire().await, Err(Error::OtherData { .. })));
    assert!(matches!(locks.fenced_lock(NAME).try_acquire().await, Err(Error::OtherData { .. })));
    reading.release().await.unwrap();
    assert!(keys(&server).is_empty());
}

#[tokio::test]
async fn deleted_reader_lease_is_restored() {
    let server = RedisServer::start();
    let locks = brisk(&server.url(), RENEWED).await;
    let lock = locks.read_write_lock(NAME);
    let reading = lock.read().acquire().await.unwrap();
    let timeout = format!("{{{NAME}}}:{}:rwlock_timeout:1", reading.owner());
    set(&server, &["DEL", &timeout]);
    assert!(renewed(&reading, 2).await);
    assert_eq!(server.cli(&["EXISTS", &timeout]), "1");
    reading.release().await.unwrap();
    assert!(keys(&server).is_empty());
}

/// A dead reader leaves its field behind. The last live reader removes the field.
#[tokio::test]
async fn last_reader_removes_dead_field() {
    let (server, locks) = server_and_manager().await;
    let lock = locks.read_write_lock(NAME);
    let reading = lock.read().acquire().await.unwrap();
    set(&server, &["HSET", NAME, "dead:1", "1"]);
    reading.release().await.unwrap();
    assert!(keys(&server).is_empty());
}

#[tokio::test]
async fn dropped_guards_and_waits_leave_nothing() {
    let (server, locks) = server_and_manager().await;
    let lock = locks.read_write_lock(NAME);
    for side in [lock.read(), lock.write()] {
        let guard: Guard = side.acquire().await.unwrap();
        drop(guard);
        assert!(gone(&server, NAME).await);
        let blocker = lock.write().acquire().await.unwrap();
        let waiting = {
            let side = side.clone();
            tokio::spawn(async move { side.acquire().await.map(drop) })
        };
        assert!(eventually(PATIENCE, async || locks.metrics().waiting == 1).await);
        waiting.abort();
        assert!(waiting.await.unwrap_err().is_cancelled());
        blocker.release().await.unwrap();
        assert!(eventually(PATIENCE, async || keys(&server).is_empty()).await, "{:?}", keys(&server));
    }
}

#[tokio::test]
async fn set_combines_lock_kinds() {
    let (server, locks) = server_and_manager().await;
    let prices = locks.read_write_lock(NAME);
    let fenced = locks.fenced_lock("fenced");
    let set =
        [prices.read(), locks.lock("plain"), fenced.as_lock().clone(), locks.read_write_lock("w").write()];
    let set = wheellock::multi_lock(set).unwrap();
    let guard = set.acquire().await.unwrap();
    assert!(prices.read().try_acquire().await.unwrap().is_acquired());
    assert!(!prices.write().try_acquire().await.unwrap().is_acquired());
    assert!(!set.try_acquire().await.unwrap().is_acquired());
    guard.release().await.unwrap();
    assert_eq!(keys(&server), ["redisson_lock_token:{fenced}"]);
    let both = wheellock::multi_lock([prices.read(), prices.write()]);
    assert!(matches!(both, Err(Error::DuplicateMember { .. })), "one key: it would wait for itself");
}

/// A script may lack the permission to read the rest of other readers' leases. The release then takes nothing.
#[tokio::test]
async fn release_without_lease_access_changes_nothing() {
    let (server, _locks) = server_and_manager().await;
    let timeout = |hold: &str| format!("{{{NAME}}}:{hold}");
    // The lock ends before these leases, so a release has to read all of them.
    for hold in ["u:1:rwlock_timeout:1", "v:1:rwlock_timeout:1"] {
        set(&server, &["SET", &timeout(hold), "1", "PX", "90000"]);
    }
    let user =
        ["ACL", "SETUSER", "short", "on", "nopass", "+@all", "~prices", "~{prices}:u:1*", "~{prices}:wh*"];
    set(&server, &user);
    let mut limited = server.connect().unwrap();
    assert_eq!(limited.query(&["AUTH", "short", "any"]).unwrap().to_string(), "OK");
    let cases = [
        (Which::WriteRelease, vec!["mode", "write", "u:1:write", "1", "v:1", "1"], "u:1:write"),
        (Which::ReadRelease, vec!["mode", "read", "u:1", "1", "v:1", "1"], "u:1"),
    ];
    for (which, made, holder) in cases {
        set(&server, &["DEL", NAME]);
        set(&server, &[&["HSET", NAME], &made[..]].concat());
        set(&server, &["PEXPIRE", NAME, "60000"]);
        let before = fields(&server, NAME);
        let call = ["EVAL", which.text(), "1", NAME, "of", holder, "0", "PUBLISH", "{prices}"];
        let refused = limited.query(&call).unwrap();
        assert!(matches!(refused, Reply::Error(_)), "{refused:?}");
        assert_eq!(fields(&server, NAME), before, "{which:?}");
    }
}

/// L8: the result of a forced release counts in this process at once, also for the same owner.
#[tokio::test]
async fn forced_release_lets_its_reader_write() {
    let (server, locks) = server_and_manager().await;
    let lock = locks.read_write_lock(NAME);
    for _ in 0..20 {
        let reading = lock.read().acquire().await.unwrap();
        let owner = reading.owner();
        assert!(lock.read().force_release().await.unwrap());
        assert!(!reading.is_valid());
        let writing =
            lock.write().with_owner(owner).try_acquire().await.unwrap().acquired().expect("it is free");
        assert!(matches!(reading.release().await, Err(Error::Lost { .. })));
        assert!(writing.is_valid());
        writing.release().await.unwrap();
        assert!(keys(&server).is_empty());
    }
    // The first two locks are one lock on the server. The third lock is not reentrant.
    let plain = locks.lock(NAME).acquire().await.unwrap();
    assert!(locks.lock(NAME).force_release().await.unwrap());
    let fenced = locks.fenced_lock(NAME).as_lock().with_owner(plain.owner()).try_acquire().await.unwrap();
    fenced.acquired().expect("it is free").release().await.unwrap();
    let simple = locks.simple_lock(NAME).acquire().await.unwrap();
    assert!(locks.simple_lock(NAME).force_release().await.unwrap());
    let again = locks.simple_lock(NAME).with_owner(simple.owner()).try_acquire().await.unwrap();
    again.acquired().expect("it is free").release().await.unwrap();
}

/// L9: for a reader with its own or a presented owner, `lost()` and `release()` give the same result, and nothing stays.
#[tokio::test]
async fn expired_reader_leaves_nothing() {
    let (server, locks) = server_and_manager().await;
    let read = locks.read_write_lock(NAME).read();
    let other = read.acquire().await.unwrap();
    let short = read.with_lease(Duration::from_millis(100));
    for owner in [None, Some(locks.owner())] {
        for is_dropped in [false, true] {
            let reader = owner.as_ref().map_or(short.clone(), |owner| short.with_owner(owner.clone()));
            let reading = reader.acquire().await.unwrap();
            let field = reading.owner();
            assert_eq!(lost(&reading).await, LostReason::Expired);
            if is_dropped {
                drop(reading);
            } else {
                assert!(matches!(reading.release().await, Err(Error::Lost { .. })));
            }
            let is_gone = async || read.hold_count(&field).await.unwrap() == 0;
            assert!(eventually(PATIENCE, is_gone).await, "{owner:?}");
            assert_eq!(server.cli(&["HLEN", NAME]), "2", "the other one, and the mode");
        }
    }
    assert!(other.is_valid());
    other.release().await.unwrap();
    assert!(keys(&server).is_empty());
}
