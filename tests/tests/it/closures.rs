//! Work under a lock.
//!
//! No form returns `Ok` if the lock was lost before the work ended.

use std::time::{Duration, Instant};

use wheellock::blocking;
use wheellock::{
    Attempt, BootInstant, Error, LockManager, LostReason, MemberState, RedLockGuard, RedLockManager,
    RedLockMember, multi_lock,
};
use wheellock_tests::fault::{Direction, Fault, Proxy};
use wheellock_tests::locks::{PATIENCE, adjusted, gone, listeners, manager};
use wheellock_tests::{RedisServer, eventually, poll_until};

const LEASE: Duration = Duration::from_secs(30);
/// Ends before work that ignores it.
const SHORT: Duration = Duration::from_millis(150);

/// Frees the lock by force and takes it, as another process.
async fn steal(others: &LockManager, name: &str) -> wheellock::Guard {
    assert!(others.lock(name).force_release().await.unwrap());
    others.lock(name).try_acquire().await.unwrap().acquired().expect("it is free")
}

/// Frees the lock `q` on the servers of a quorum. The last server may not have granted it yet.
fn take_by_force(servers: &[RedisServer]) -> Result<(), Error> {
    let freed = servers.iter().filter(|server| server.cli(&["DEL", "q"]) == "1").count();
    assert!(freed + 1 >= servers.len());
    Ok(())
}

#[track_caller]
fn assert_lost<T: std::fmt::Debug>(result: Result<T, Error>, name: &str, expected: LostReason) {
    match result {
        Err(Error::Lost { lock, reason, .. }) => assert_eq!((&*lock, reason), (name, expected)),
        other => panic!("{other:?}"),
    }
}

/// Blocks the thread for longer than the lease.
fn block_for(lease: Duration) -> Result<u32, Error> {
    let end = BootInstant::now() + lease + lease / 2;
    assert!(poll_until(10 * lease, || BootInstant::now() > end));
    Ok(42)
}

/// A1: `run` of a lock returns `Lost` if another process took the lock by force during the work.
#[tokio::test]
async fn stolen_lock_fails_run() {
    let server = RedisServer::start();
    let (locks, others) = (manager(&server.url()).await, manager(&server.url()).await);
    let mut second = None;
    let result = locks
        .lock("r")
        .run(async |_| {
            second = Some(steal(&others, "r").await);
            Ok(42)
        })
        .await;
    assert_lost(result, "r", LostReason::NotOwner);
    assert!(second.unwrap().is_valid());
}

/// A1: `Guard::run` checks the lock once more after the work, and returns `Lost` if another owner has it.
#[tokio::test]
async fn guard_run_confirms_with_server() {
    let server = RedisServer::start();
    let (locks, others) = (manager(&server.url()).await, manager(&server.url()).await);
    for lock in [locks.lock("g"), locks.lock("fixed").with_lease(LEASE)] {
        let guard = lock.acquire().await.unwrap();
        assert_eq!(guard.run(async { Ok::<_, Error>(42) }).await.unwrap(), 42);
        let before = guard.valid_until();
        let result = guard.run(async { Ok(steal(&others, lock.name()).await) }).await.map(drop);
        assert_lost(result, lock.name(), LostReason::NotOwner);
        assert!(!guard.is_valid() && guard.valid_until() == before, "asked for, not extended");
    }
    assert_eq!(locks.metrics().lost_not_owner, 2);
}

/// A1: work that blocks the runtime's only thread beyond the lease does not return `Ok`, in any closure form.
#[tokio::test]
async fn work_blocking_beyond_lease_fails() {
    let servers = [RedisServer::start(), RedisServer::start(), RedisServer::start()];
    let locks = manager(&servers[0].url()).await;
    let lock = locks.lock("b").with_lease(SHORT);
    assert_lost(lock.run(async |_| block_for(SHORT)).await, "b", LostReason::Expired);
    let guard = lock.acquire().await.unwrap();
    assert_lost(guard.run(async { block_for(SHORT) }).await, "b", LostReason::Expired);
    let set = multi_lock([locks.lock("m1").with_lease(SHORT), locks.lock("m2")]).unwrap();
    assert_lost(set.run(async |_| block_for(SHORT)).await, "m1", LostReason::Expired);
    let guard = set.acquire().await.unwrap();
    assert_lost(guard.run(async { block_for(SHORT) }).await, "m1", LostReason::Expired);
    let red = RedLockManager::connect(servers.iter().map(RedisServer::url)).await.unwrap();
    let lock = red.lock("q").with_lease(SHORT);
    assert_lost(lock.run(async |_| block_for(SHORT)).await, "q", LostReason::Expired);
    let guard = lock.acquire().await.unwrap();
    assert_lost(guard.run(async { block_for(SHORT) }).await, "q", LostReason::Expired);
}

/// A1: the closure forms of sets and quorums return `Lost` if a member, or a majority, was taken by force during the work.
#[tokio::test]
async fn stolen_set_or_quorum_fails_run() {
    let servers = [RedisServer::start(), RedisServer::start(), RedisServer::start()];
    let (locks, others) = (manager(&servers[0].url()).await, manager(&servers[0].url()).await);
    let set = multi_lock([locks.lock("a"), locks.lock("b")]).unwrap();
    let result = set.run(async |_| Ok(steal(&others, "b").await)).await.map(drop);
    assert_lost(result, "b", LostReason::NotOwner);
    let guard = set.acquire().await.unwrap();
    assert_eq!(guard.run(async { Ok::<_, Error>(42) }).await.unwrap(), 42);
    let result = guard.run(async { Ok(steal(&others, "b").await) }).await.map(drop);
    assert_lost(result, "b", LostReason::NotOwner);
    drop(guard);

    let red = RedLockManager::connect(servers.iter().map(RedisServer::url)).await.unwrap();
    let all_have_granted = async |guard: &RedLockGuard| {
        let held = |member: &RedLockMember| matches!(member.state, MemberState::Held { .. });
        assert!(eventually(PATIENCE, async || guard.members().iter().all(held)).await);
    };
    let lock = red.lock("q");
    let one_of_three = lock.run(async |guard| {
        all_have_granted(guard).await;
        take_by_force(&servers[..1])
    });
    one_of_three.await.expect("a majority was left");
    assert_lost(lock.run(async |_| take_by_force(&servers)).await, "q", LostReason::NotOwner);
    let guard = lock.acquire().await.unwrap();
    assert_eq!(guard.run(async { Ok::<_, Error>(42) }).await.unwrap(), 42);
    assert_lost(guard.run(async { take_by_force(&servers) }).await, "q", LostReason::NotOwner);
}

/// A1: the blocking closure forms return `Lost` if the lock was lost during the work.
#[test]
fn lost_lock_fails_blocking_work() {
    let servers = [RedisServer::start(), RedisServer::start(), RedisServer::start()];
    let locks = blocking::LockManager::connect(&servers[0].url()).unwrap();
    let others = blocking::LockManager::connect(&servers[0].url()).unwrap();
    let steal = |name: &str| others.lock(name).force_release().map(|was_held| assert!(was_held));
    assert_eq!(locks.lock("r").run(|_| Ok::<_, Error>(42)).unwrap(), 42);
    assert_lost(locks.lock("r").run(|_| steal("r")), "r", LostReason::NotOwner);
    let short = locks.lock("b").with_lease(SHORT);
    assert_lost(short.run(|_| block_for(SHORT)), "b", LostReason::Expired);
    let set = blocking::multi_lock([locks.lock("m1"), locks.lock("m2")]).unwrap();
    assert_eq!(set.run(|_| Ok::<_, Error>(42)).unwrap(), 42);
    assert_lost(set.run(|_| steal("m2")), "m2", LostReason::NotOwner);
    let red = blocking::RedLockManager::connect(servers.iter().map(RedisServer::url)).unwrap();
    assert_eq!(red.lock("q").run(|_| Ok::<_, Error>(42)).unwrap(), 42);
    assert_lost(red.lock("q").run(|_| take_by_force(&servers)), "q", LostReason::NotOwner);
    let permits = locks.permit_semaphore("p");
    assert!(permits.try_set_permits(1).unwrap());
    assert_eq!(permits.run(|_| Ok::<_, Error>(42)).unwrap(), 42);
    let taken = permits.run(|permit| {
        assert!(others.permit_semaphore("p").release(permit.id()).unwrap());
        Ok(())
    });
    assert_lost(taken, "p", LostReason::NotOwner);
    assert_eq!(permits.available().unwrap(), 1);
}

/// A1: work under a lock that was valid to the end returns `Ok`, even if the server did not confirm the release.
#[tokio::test]
async fn unconfirmed_release_keeps_work_ok() {
    let server = RedisServer::start();
    let proxy = Proxy::before(&server);
    let locks = adjusted(&proxy.url(), LEASE, |config| config.response_timeout = SHORT).await;
    let lock = locks.lock("r");
    let work = async |_: &wheellock::Guard| {
        proxy.strike(Direction::ToClient, Fault::Stall);
        Ok::<_, Error>(42)
    };
    assert_eq!(lock.run(work).await.unwrap(), 42);
    proxy.heal();
    let guard = lock.acquire().await.unwrap();
    assert_eq!(guard.run(work(&guard)).await.unwrap(), 42);
}

/// The errors of a service's own functions: its own and the lock's.
#[derive(Debug)]
enum Failed {
    Work(&'static str),
    Lock(Error),
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self::Lock(error)
    }
}

/// E3: fallible work returns a single `Result` in every form, which can also carry the work's own error. The lock is free afterwards.
#[tokio::test]
async fn e03_fallible_work_returns_single_result() {
    let servers = [RedisServer::start(), RedisServer::start(), RedisServer::start()];
    let locks = manager(&servers[0].url()).await;
    let quorum = RedLockManager::connect(servers.iter().map(RedisServer::url)).await.unwrap();
    let lock = locks.lock("r");
    let set = multi_lock([locks.lock("a"), locks.lock("b")]).unwrap();
    let permits = locks.permit_semaphore("p");
    permits.try_set_permits(1).await.unwrap();
    let work = |fails: bool| if fails { Err(Failed::Work("no")) } else { Ok(42) };
    for fails in [false, true] {
        let guard = lock.acquire().await.unwrap();
        let mut results = vec![guard.run(async { work(fails) }).await];
        assert!(guard.is_valid(), "it holds on");
        guard.release().await.unwrap();
        results.push(lock.run(async |_guard| work(fails)).await);
        results.push(locks.fenced_lock("f").run(async |_guard| work(fails)).await);
        results.push(set.run(async |_guard| work(fails)).await);
        let guard = set.acquire().await.unwrap();
        results.push(guard.run(async { work(fails) }).await);
        drop(guard);
        results.push(quorum.lock("q").run(async |_guard| work(fails)).await);
        results.push(permits.run(async |_permit| work(fails)).await);
        for result in results {
            match result {
                Ok(done) => assert!(!fails && done == 42),
                Err(Failed::Work(why)) => assert!(fails && why == "no"),
                Err(Failed::Lock(error)) => panic!("{error}"),
            }
        }
    }
    for name in ["r", "f", "a", "b", "q"] {
        assert!(eventually(PATIENCE, async || !locks.lock(name).is_locked().await.unwrap()).await, "{name}");
    }
}

/// E3: the loss of a lock overrides the result of the work.
#[tokio::test]
async fn e03_loss_overrides_work_error() {
    let server = RedisServer::start();
    let (locks, others) = (manager(&server.url()).await, manager(&server.url()).await);
    let mut second = None;
    let result: Result<(), Failed> = locks
        .lock("r")
        .run(async |_| {
            second = Some(steal(&others, "r").await);
            Err(Failed::Work("no"))
        })
        .await;
    assert!(matches!(result, Err(Failed::Lock(Error::Lost { .. }))), "{result:?}");
    assert!(second.unwrap().is_valid());
}

/// E3: fallible work has the same result on threads.
#[test]
fn e03_threads_have_one_result_too() {
    let server = RedisServer::start();
    let locks = blocking::LockManager::connect(&server.url()).unwrap();
    let done: Result<u32, Failed> = locks.lock("r").run(|_guard| Ok(42));
    assert_eq!(done.unwrap(), 42);
    let failed: Result<u32, Failed> = locks.lock("r").run(|_guard| Err(Failed::Work("no")));
    assert!(matches!(failed, Err(Failed::Work("no"))));
    assert!(!locks.lock("r").is_locked().unwrap());
    let permits = locks.permit_semaphore("p");
    permits.try_set_permits(1).unwrap();
    assert_eq!(permits.run(|_permit| Ok::<_, Failed>(42)).unwrap(), 42);
    let failed = permits.run(|_permit| Err::<(), _>(Failed::Work("no")));
    assert!(matches!(failed, Err(Failed::Work("no"))));
    assert_eq!(permits.available().unwrap(), 1);
}

/// E3: work with a limited wait does not begin if another owner still has the lock, in every form.
#[tokio::test]
async fn e03_timed_out_wait_skips_work() {
    let servers = [RedisServer::start(), RedisServer::start(), RedisServer::start()];
    let (locks, others) = (manager(&servers[0].url()).await, manager(&servers[0].url()).await);
    let quorum = RedLockManager::connect(servers.iter().map(RedisServer::url)).await.unwrap();
    let permits = locks.permit_semaphore("p");
    permits.try_set_permits(1).await.unwrap();
    let set = multi_lock([locks.lock("a"), locks.lock("b")]).unwrap();
    let work = || Ok::<_, Error>(42);
    for (is_held, done) in [(false, Some(42)), (true, None)] {
        let mut held = Vec::new();
        for name in ["r", "b"].into_iter().filter(|_| is_held) {
            held.push(others.lock(name).acquire().await.unwrap());
        }
        let token = if is_held { Some(others.fenced_lock("f").acquire().await.unwrap()) } else { None };
        let permit = if is_held { Some(permits.acquire().await.unwrap()) } else { None };
        let majority = if is_held { Some(quorum.lock("q").acquire().await.unwrap()) } else { None };
        assert_eq!(locks.lock("r").run_for(SHORT, async |_| work()).await.unwrap().acquired(), done);
        assert_eq!(locks.fenced_lock("f").run_for(SHORT, async |_| work()).await.unwrap().acquired(), done);
        assert_eq!(set.run_for(SHORT, async |_| work()).await.unwrap().acquired(), done);
        assert_eq!(permits.run_for(SHORT, async |_| work()).await.unwrap().acquired(), done);
        assert_eq!(quorum.lock("q").run_for(SHORT, async |_| work()).await.unwrap().acquired(), done);
        drop((held, token, permit, majority));
    }
}

/// E3: work with a limited wait gets the lock within its time. Its errors are its own, and a loss is reported.
#[tokio::test]
async fn e03_timely_wait_returns_work_or_loss() {
    let server = RedisServer::start();
    let (locks, others) = (manager(&server.url()).await, manager(&server.url()).await);
    let guard = others.lock("r").acquire().await.unwrap();
    let lock = locks.lock("r");
    let waiting = tokio::spawn(async move { lock.run_for(PATIENCE, async |_| Ok::<_, Failed>(42)).await });
    assert!(listeners(&server, "r", 1).await);
    guard.release().await.unwrap();
    assert_eq!(waiting.await.unwrap().unwrap().acquired(), Some(42));

    let lock = locks.lock("r");
    let failed = lock.run_for(SHORT, async |_| Err::<(), _>(Failed::Work("no"))).await;
    assert!(matches!(failed, Err(Failed::Work("no"))), "{failed:?}");
    let lost = lock.run_for(SHORT, async |_| {
        drop(steal(&others, "r").await);
        Err::<(), _>(Failed::Work("no"))
    });
    let lost = lost.await;
    assert!(matches!(lost, Err(Failed::Lock(Error::Lost { .. }))), "{lost:?}");
    assert!(gone(&server, "r").await);
}

/// E3: work with a limited wait behaves the same on threads.
#[test]
fn e03_blocking_work_waits_like_async() {
    let server = RedisServer::start();
    let locks = blocking::LockManager::connect(&server.url()).unwrap();
    let others = blocking::LockManager::connect(&server.url()).unwrap();
    let lock = locks.lock("r");
    assert_eq!(lock.run_for(SHORT, |_guard| Ok::<_, Failed>(42)).unwrap().acquired(), Some(42));
    let failed = lock.run_for(SHORT, |_guard| Err::<(), _>(Failed::Work("no")));
    assert!(matches!(failed, Err(Failed::Work("no"))), "{failed:?}");
    let guard = others.lock("r").acquire().unwrap();
    assert_eq!(lock.run_for(SHORT, |_guard| Ok::<_, Failed>(42)).unwrap().acquired(), None);
    guard.release().unwrap();
    assert!(!lock.is_locked().unwrap());
    let permits = locks.permit_semaphore("p");
    permits.try_set_permits(1).unwrap();
    assert_eq!(permits.run_for(SHORT, |_permit| Ok::<_, Failed>(42)).unwrap().acquired(), Some(42));
    let permit = others.permit_semaphore("p").acquire().unwrap();
    assert_eq!(permits.run_for(SHORT, |_permit| Ok::<_, Failed>(42)).unwrap().acquired(), None);
    permit.release().unwrap();
}

/// P4: without a grant, `try_run` returns after a round trip, `run_for` at its limit, and `run` waits on.
#[tokio::test]
async fn closure_forms_wait_as_named() {
    let server = RedisServer::start();
    let (locks, others) = (manager(&server.url()).await, manager(&server.url()).await);
    let held = others.lock("r").acquire().await.unwrap();
    let lock = locks.lock("r");
    let began = Instant::now();
    let refused = lock.try_run(async |_| Ok::<_, Failed>(42)).await.unwrap();
    assert!(began.elapsed() < PATIENCE);
    let Attempt::Held { lock: name, lease_left, .. } = refused else { panic!("{refused:?}") };
    assert!(name == "r" && lease_left.is_some_and(|left| left <= LEASE), "{lease_left:?}");
    let began = Instant::now();
    let refused = lock.run_for(SHORT, async |_| Ok::<_, Failed>(42)).await.unwrap();
    assert!(!refused.is_acquired() && began.elapsed() >= SHORT);
    let waiting = tokio::spawn(async move { lock.run(async |_| Ok::<_, Failed>(42)).await });
    assert!(listeners(&server, "r", 1).await && !waiting.is_finished());
    held.release().await.unwrap();
    assert_eq!(waiting.await.unwrap().unwrap(), 42);
    let done = locks.lock("r").try_run(async |_| Ok::<_, Failed>(43)).await.unwrap();
    assert_eq!(done.acquired(), Some(43));
}
