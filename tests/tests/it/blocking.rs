//! The blocking API against a real server.
//!
//! The owners are threads, and the promises are those of the asynchronous API.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use wheellock::blocking::{LockManager, multi_lock};
use wheellock::{Error, LostReason};
use wheellock_tests::{RedisServer, poll_until};

const PATIENCE: Duration = Duration::from_secs(10);

fn manager(server: &RedisServer) -> LockManager {
    LockManager::connect(&server.url()).expect("the server is up")
}

#[test]
fn thread_owns_and_counts_holds() {
    let server = RedisServer::start();
    let locks = manager(&server);
    let lock = locks.lock("threads");
    let outer = lock.acquire().unwrap();
    let inner = lock.try_acquire().unwrap().acquired().expect("its own");
    let owner = locks.this_thread();
    assert_eq!((outer.owner(), lock.hold_count(&owner).unwrap()), (owner.clone(), 2));
    assert_eq!(server.cli(&["HGET", "threads", &owner.to_string()]), "2");
    std::thread::scope(|threads| {
        let other = threads.spawn(|| (locks.this_thread(), lock.try_acquire().unwrap().is_acquired()));
        let (other, got_it) = other.join().unwrap();
        assert!(other != owner && !got_it, "another thread is another owner");
        let released = threads.spawn(|| inner.release()).join().unwrap();
        released.expect("a guard may go to another thread");
    });
    assert!(lock.is_locked().unwrap() && lock.is_held_by(&owner).unwrap());
    outer.release().unwrap();
    assert_eq!((lock.is_locked().unwrap(), lock.remaining_lease().unwrap()), (false, None));
}

#[test]
fn current_thread_hold_is_detected() {
    let (server, other_server) = (RedisServer::start(), RedisServer::start());
    let (locks, others) = (manager(&server), manager(&other_server));
    let lock = locks.lock("ours");
    assert!(!lock.is_held_by_current_thread().unwrap());
    let guard = lock.acquire().unwrap();
    assert!(lock.is_held_by_current_thread().unwrap());
    let elsewhere = std::thread::scope(|threads| {
        threads.spawn(|| lock.is_held_by_current_thread().unwrap()).join().unwrap()
    });
    assert!(!elsewhere, "another thread's");
    guard.release().unwrap();
    let presented = lock.with_owner(locks.owner());
    let guard = presented.acquire().unwrap();
    assert!(!presented.is_held_by_current_thread().unwrap(), "an owner that is no thread");
    guard.release().unwrap();

    let fenced = locks.fenced_lock("fenced");
    let guard = fenced.acquire().unwrap();
    assert!(fenced.is_held_by_current_thread().unwrap());
    guard.release().unwrap();

    let prices = locks.read_write_lock("prices");
    let reading = prices.read().acquire().unwrap();
    assert!(prices.read().is_held_by_current_thread().unwrap());
    assert!(!prices.write().is_held_by_current_thread().unwrap());
    reading.release().unwrap();

    let set = multi_lock([locks.lock("a"), others.lock("b")]).unwrap();
    assert_eq!(set.members().iter().map(|lock| lock.name().to_owned()).collect::<Vec<_>>(), ["a", "b"]);
    let first = set.members()[0].acquire().unwrap();
    assert!(set.is_locked().unwrap() && !set.is_held_by_current_thread().unwrap(), "one of two");
    let guard = set.acquire().unwrap();
    assert!(set.is_held_by_current_thread().unwrap());
    assert!(!set.is_held_by(&locks.this_thread()).unwrap(), "on the other server it is another owner");
    drop(first);
    guard.release().unwrap();
    assert!(!set.is_locked().unwrap());
}

#[test]
fn threads_exclude_each_other() {
    let server = RedisServer::start();
    let locks = manager(&server);
    let (inside, entered) = (AtomicU32::new(0), AtomicU32::new(0));
    std::thread::scope(|threads| {
        for _ in 0..8 {
            threads.spawn(|| {
                let lock = locks.lock("crowd");
                for _ in 0..20 {
                    lock.run(|guard| {
                        assert!(guard.is_valid());
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two inside");
                        std::thread::yield_now();
                        entered.fetch_add(1, Ordering::SeqCst);
                        inside.fetch_sub(1, Ordering::SeqCst);
                        Ok::<_, Error>(())
                    })
                    .unwrap();
                }
            });
        }
    });
    assert_eq!(entered.load(Ordering::SeqCst), 160);
    assert_eq!(server.cli(&["KEYS", "*"]), "");
    let metrics = locks.metrics();
    assert_eq!((metrics.acquires, metrics.held, metrics.waiting), (160, 0, 0));
}

#[test]
fn wait_times_out_dropped_guard_releases() {
    let server = RedisServer::start();
    let (here, there) = (manager(&server), manager(&server));
    let guard = here.lock("waited").acquire().unwrap();
    let (before, wait) = (Instant::now(), Duration::from_millis(80));
    assert!(!there.lock("waited").try_acquire_for(wait).unwrap().is_acquired());
    assert!(before.elapsed() >= wait);
    drop(guard);
    assert!(there.lock("waited").try_acquire_for(PATIENCE).unwrap().is_acquired());
}

#[test]
fn watchdog_renews_and_reports_loss() {
    let server = RedisServer::start();
    let lease = Duration::from_secs(1);
    let locks = LockManager::builder(&server.url()).watchdog_lease(lease).connect_blocking().unwrap();
    let lock = locks.lock("kept");
    let guard = lock.acquire().unwrap();
    let promised = guard.valid_until();
    assert!(poll_until(PATIENCE, || guard.valid_until() > promised + 2 * lease), "renewed without our help");
    assert!(lock.force_release().unwrap());
    assert_eq!(guard.lost(), LostReason::NotOwner);
    assert!(!guard.is_valid());
    assert!(matches!(guard.renew(), Err(Error::Lost { reason: LostReason::NotOwner, .. })));
    assert!(matches!(guard.release(), Err(Error::Lost { .. })));
    let work = lock.run(|guard| {
        assert!(lock.force_release().unwrap());
        guard.lost();
        Ok("done")
    });
    assert!(matches!(work, Err(Error::Lost { .. })), "done, but not under the lock: {work:?}");
}

#[test]
fn fixed_lease_renews_then_expires() {
    let server = RedisServer::start();
    let lock = manager(&server).lock("fixed").with_lease(Duration::from_secs(2));
    let guard = lock.acquire().unwrap();
    let promised = guard.valid_until();
    assert!(poll_until(PATIENCE, || {
        guard.renew().unwrap();
        guard.valid_until() > promised + Duration::from_secs(1)
    }));
    assert_eq!(guard.lost(), LostReason::Expired);
    assert!(matches!(guard.renew(), Err(Error::Lost { reason: LostReason::Expired, .. })));
}

#[test]
fn connecting_fails_with_the_reason() {
    let error = LockManager::connect("redis://127.0.0.1:1").unwrap_err();
    assert!(matches!(error, Error::Server { .. }), "{error}");
    assert!(matches!(LockManager::connect("nonsense"), Err(Error::Server { .. })));
}

/// Blocking in asynchronous code would stop the runtime's worker. Dropping a guard there must be harmless.
#[test]
fn guard_may_drop_in_async_code() {
    let server = RedisServer::start();
    let lock = manager(&server).lock("mixed");
    let guard = lock.acquire().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async move { drop(guard) });
    assert!(poll_until(PATIENCE, || !lock.is_locked().unwrap()));
}

/// Every kind of lock has a blocking form, whose owner is the thread.
#[test]
fn all_kinds_are_there_for_threads() {
    let server = RedisServer::start();
    let (locks, others) = (manager(&server), manager(&server));
    let prices = locks.read_write_lock("prices");
    let writing = prices.write().acquire().unwrap();
    let reading = prices.read().acquire().unwrap();
    assert!(!others.read_write_lock("prices").read().try_acquire().unwrap().is_acquired());
    writing.release().unwrap();
    assert!(matches!(prices.write().acquire(), Err(Error::Upgrade { .. })), "this thread reads");
    reading.release().unwrap();

    let ledger = locks.fenced_lock("ledger");
    let first = ledger.run(|guard| Ok::<_, Error>(guard.token())).unwrap();
    let guard = ledger.acquire().unwrap();
    assert!(guard.token() > first && guard.is_valid());
    assert_eq!(ledger.token().unwrap(), Some(guard.token()));
    guard.release().unwrap();

    let tickets = locks.fair_lock("tickets");
    let guard = tickets.acquire().unwrap();
    let waiting = {
        let tickets = others.fair_lock("tickets");
        std::thread::spawn(move || tickets.acquire().unwrap().release().unwrap())
    };
    assert!(poll_until(PATIENCE, || tickets.queue_length().unwrap() == Some(1)));
    assert_eq!(tickets.position(&guard.owner()).unwrap(), None);
    let holder = tickets.holder().unwrap().expect("it is held");
    assert_eq!((&*holder.owner, holder.process()), (&*guard.owner().to_string(), Some(locks.id())));
    assert_eq!(tickets.holders().unwrap().holders.len(), 1);
    guard.release().unwrap();
    waiting.join().unwrap();

    let guard = locks.spin_lock("spun").acquire().unwrap();
    assert!(!others.spin_lock("spun").try_acquire_for(Duration::from_millis(20)).unwrap().is_acquired());
    guard.release().unwrap();
    let guard = locks.simple_lock("simple").acquire().unwrap();
    assert!(matches!(locks.simple_lock("simple").acquire(), Err(Error::NotReentrant { .. })));
    guard.release().unwrap();
}

#[test]
fn threads_share_permits_and_latch() {
    let server = RedisServer::start();
    let locks = manager(&server);
    let (semaphore, pool, latch) =
        (locks.semaphore("tickets"), locks.permit_semaphore("pool"), locks.count_down_latch("done"));
    assert!(semaphore.try_set_permits(3).unwrap() && latch.try_set_count(8.try_into().unwrap()).unwrap());
    assert_eq!(pool.set_permits(2).unwrap(), 2);
    let inside = AtomicU32::new(0);
    std::thread::scope(|threads| {
        for _ in 0..8 {
            threads.spawn(|| {
                let both = pool.acquire_many(2).unwrap();
                assert_eq!(inside.fetch_add(2, Ordering::SeqCst), 0);
                inside.fetch_sub(2, Ordering::SeqCst);
                drop(both);
                let permit = pool.acquire().unwrap();
                assert!(permit.is_valid() && inside.fetch_add(1, Ordering::SeqCst) < 2);
                inside.fetch_sub(1, Ordering::SeqCst);
                permit.release().unwrap();
                drop(
                    semaphore
                        .try_acquire_for(2, PATIENCE)
                        .unwrap()
                        .acquired()
                        .expect("others give theirs back"),
                );
                latch.count_down().unwrap();
            });
        }
        latch.wait().unwrap();
    });
    assert_eq!((latch.count().unwrap(), pool.available().unwrap()), (0, 2));
    let both = pool.try_acquire_many_for(2, PATIENCE).unwrap().acquired().expect("all are free");
    assert!(!pool.try_acquire_many(1).unwrap().is_acquired());
    let ids: Vec<_> = both.iter().map(wheellock::blocking::Permit::id).collect();
    assert!(pool.extend(ids[0], Duration::from_secs(60)).unwrap());
    assert!(pool.remaining_lease(ids[0]).unwrap() > Some(Duration::from_secs(50)));
    assert!(pool.release_many(&ids).unwrap() && !pool.release_many(&ids).unwrap());
    let mut permits = semaphore.acquire(3).unwrap();
    permits.split(1).unwrap().forget();
    assert_eq!(permits.count(), 2);
    permits.release().unwrap();
    assert_eq!(semaphore.available().unwrap(), 2);
    assert!(!semaphore.try_acquire(3).unwrap().is_acquired());
}
