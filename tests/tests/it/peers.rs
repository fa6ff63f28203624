//! Simple locks beside widely used lock libraries. Each promise is tested in both directions on real servers.
//!
//! Each test runs with all libraries that are present. It skips the libraries that `cargo xtask peers` would have to fetch first, and
//! prints a line that says so. The library rslock is always present.

#[path = "../../peers/rslock/peer.rs"]
mod rslock_peer;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use tokio::task::yield_now;
use wheellock::{Attempt, Error, Lock, LockManager, RedLock, RedLockManager};
use wheellock_tests::hot;
use wheellock_tests::locks::{PATIENCE, WOKEN, adjusted, at_rest, gone, lost};
use wheellock_tests::peers::{Library, Peer, Quorum, URLS, present};
use wheellock_tests::worker::{Outcome, Request, Worker};
use wheellock_tests::{RedisServer, eventually};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peer_increments_lose_none() {
    for library in present() {
        let (server, mut peer, locks) = both_sides(library, LEASE).await;
        let lock = locks.simple_lock(NAME);
        let file = server.directory().join("counter");
        fs::write(&file, "0").unwrap();
        peer.ask(&increments(1000, &file));
        let turns = contend(1000, &file, async || {
            let guard = lock.acquire().await.unwrap();
            let found = increment(&file).await;
            guard.release().await.unwrap();
            found
        });
        let turns = turns.await;
        assert_eq!(peer.answer().await, "done");
        assert_eq!(fs::read_to_string(&file).unwrap(), "2000", "{}", library.name);
        assert!(turns > 10, "{}: both sides were at it at the same time: {turns}", library.name);
        println!("{}: the other side came between two of ours {turns} times", library.name);
        assert!(gone(&server, NAME).await);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_side_waits_for_release() {
    for library in present() {
        let (server, mut peer, locks) = both_sides(library, LEASE).await;
        let lock = locks.simple_lock(NAME);

        // Their hold. Its token has their own form, and we still read all that the lock can tell.
        assert!(peer.acquires(NAME, LEASE, Duration::ZERO).await);
        assert!(!lock.try_acquire().await.unwrap().is_acquired());
        assert!(lock.is_locked().await.unwrap());
        assert!(!lock.is_held_by(&locks.owner()).await.unwrap());
        let left = lock.remaining_lease().await.unwrap().unwrap();
        assert!(left <= LEASE && left > LEASE / 2, "{}: {left:?}", library.name);
        let waiting = waiter(&lock, &locks).await;
        assert_ne!(peer.releases().await, Some(false), "{}", library.name);
        let guard = waiting.await.unwrap().acquired().expect("nobody tells us, so we ask");

        // Our hold.
        assert!(!peer.acquires(NAME, LEASE, Duration::ZERO).await, "{}", library.name);
        assert_eq!(server.cli(&["GET", NAME]), guard.owner().to_string());
        peer.asks_for(NAME, LEASE, PATIENCE);
        guard.release().await.unwrap();
        assert_eq!(peer.answer().await, "acquired", "{}", library.name);
        assert_ne!(peer.releases().await, Some(false), "{}", library.name);
        assert!(gone(&server, NAME).await);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewed_hold_excludes_peer() {
    for library in present() {
        let (server, mut peer, locks) = both_sides(library, SHORT_LEASE).await;
        let wait = 3 * SHORT_LEASE;

        let guard = locks.simple_lock("ours").acquire().await.unwrap();
        assert!(!peer.acquires("ours", SHORT_LEASE, wait).await, "{} waited for us", library.name);
        assert!(guard.is_valid());
        assert_eq!(server.cli(&["GET", "ours"]), guard.owner().to_string());
        guard.release().await.unwrap();

        if !library.extends {
            println!("{} cannot extend a lease", library.name);
            continue;
        }
        assert!(peer.acquires("theirs", SHORT_LEASE, Duration::ZERO).await);
        let token = server.cli(&["GET", "theirs"]);
        let lock = locks.simple_lock("theirs");
        let refused = tokio::spawn(async move { !lock.try_acquire_for(wait).await.unwrap().is_acquired() });
        while !refused.is_finished() {
            let is_due = || left(&server, "theirs") <= SHORT_LEASE * 2 / 3;
            assert!(eventually(PATIENCE, async || is_due() || refused.is_finished()).await);
            assert!(peer.extends(SHORT_LEASE).await, "{}", library.name);
        }
        assert!(refused.await.unwrap(), "we waited for {}", library.name);
        assert_eq!(server.cli(&["GET", "theirs"]), token);
        assert_ne!(peer.releases().await, Some(false));
        assert_eq!(server.cli(&["EXISTS", "ours", "theirs"]), "0");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_holder_succeeded_across_libraries() {
    for library in present() {
        let (server, mut peer, locks) = both_sides(library, LEASE).await;

        // Our holder dies, and their caller waits.
        let program = Command::new(env!("CARGO_BIN_EXE_lock_worker"));
        let mut ours = Worker::spawn(program, &server.url(), "simple@ours", SHORT_LEASE).unwrap();
        assert_eq!(ours.ask(&Request::Acquire).unwrap().what, Outcome::Acquired);
        peer.asks_for("ours", LEASE, PATIENCE);
        assert!(renewed(&server, "ours").await);
        let killed = Instant::now();
        ours.kill().unwrap();
        assert_eq!(peer.answer().await, "acquired", "{}", library.name);
        let took = killed.elapsed();
        assert!(took <= SHORT_LEASE + SLACK, "{} succeeded us after {took:?}", library.name);

        // Their holder dies, and our task waits.
        let mut doomed = Peer::start(library, &[server.url()]).await;
        assert!(doomed.acquires("theirs", SHORT_LEASE, Duration::ZERO).await);
        let waiting = waiter(&locks.simple_lock("theirs"), &locks).await;
        let killed = Instant::now();
        doomed.kill();
        let guard = waiting.await.unwrap().acquired().expect("its lease ends");
        let took = killed.elapsed();
        assert!(took <= SHORT_LEASE + SLACK, "we succeeded {} after {took:?}", library.name);
        assert_eq!(server.cli(&["GET", "theirs"]), guard.owner().to_string());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_calls_spare_successor() {
    for library in present() {
        let (server, mut peer, locks) = both_sides(library, LEASE).await;
        let lock = locks.simple_lock(NAME);

        // Their lease ends and our hold follows. Neither their late extension nor their late release changes our hold.
        assert!(peer.acquires(NAME, SHORT_LEASE, Duration::ZERO).await);
        let guard = lock.try_acquire_for(PATIENCE).await.unwrap().acquired().expect("their lease ends");
        if library.extends {
            assert!(!peer.extends(SHORT_LEASE).await, "{}", library.name);
        }
        assert_ne!(peer.releases().await, Some(true), "{}", library.name);
        assert_eq!(server.cli(&["GET", NAME]), guard.owner().to_string());
        assert!(left(&server, NAME) > LEASE / 2 && guard.is_valid());
        guard.release().await.unwrap();

        // Our lease ends and their hold follows. Neither our late release nor our late drop changes their hold.
        for name in ["released", "dropped"] {
            let guard = locks.simple_lock(name).with_lease(SHORT_LEASE).acquire().await.unwrap();
            assert!(peer.acquires(name, LEASE, PATIENCE).await, "{}", library.name);
            let token = server.cli(&["GET", name]);
            lost(&guard).await;
            if name == "released" {
                assert!(matches!(guard.release().await, Err(Error::Lost { .. })));
            } else {
                drop(guard);
            }
            assert!(at_rest(&locks).await);
            assert_eq!(server.cli(&["GET", name]), token, "{}", library.name);
            assert!(left(&server, name) > LEASE / 2, "{}", library.name);
            assert_ne!(peer.releases().await, Some(false), "{}", library.name);
            assert!(gone(&server, name).await);
        }

        // A holder that was robbed by force finds out, and takes nothing from its successor.
        assert!(peer.acquires(NAME, LEASE, Duration::ZERO).await);
        assert!(lock.force_release().await.unwrap());
        let guard = lock.try_acquire().await.unwrap().acquired().unwrap();
        assert_ne!(peer.releases().await, Some(true), "{}", library.name);
        assert_eq!(server.cli(&["GET", NAME]), guard.owner().to_string());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_waits_for_endless_peer_lock() {
    for library in present().into_iter().filter(|library| library.endless) {
        let (server, mut peer, locks) = both_sides(library, LEASE).await;
        let lock = locks.simple_lock(NAME);
        assert!(peer.acquires(NAME, Duration::ZERO, Duration::ZERO).await);
        assert_eq!(server.cli(&["PTTL", NAME]), "-1");
        assert_eq!(lock.remaining_lease().await.unwrap(), Some(Duration::MAX));
        let waiting = waiter(&lock, &locks).await;
        assert_eq!(peer.releases().await, Some(true));
        waiting.await.unwrap().acquired().expect("it was released").release().await.unwrap();

        // The holder is dead, and the lock stays until a forced release.
        assert!(peer.acquires(NAME, Duration::ZERO, Duration::ZERO).await);
        let waiting = waiter(&lock, &locks).await;
        peer.kill();
        assert!(lock.force_release().await.unwrap());
        assert!(waiting.await.unwrap().is_acquired());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peer_shares_majority_of_three() {
    for library in present().into_iter().filter(|library| library.quorum != Quorum::None) {
        let (mut servers, mut peer, red) = three_servers(library).await;
        let lock = red.simple_lock(NAME);
        exclude_each_other(&lock, &mut peer, library).await;
        for server in &servers {
            assert!(gone(server, NAME).await, "{}", library.name);
        }

        // The successor of a dead holder gets the lock when the holder's leases end.
        let mut doomed = Peer::start(library, &urls(&servers)).await;
        assert!(doomed.acquires(NAME, SHORT_LEASE, Duration::ZERO).await);
        let killed = Instant::now();
        doomed.kill();
        let guard = lock.try_acquire_for(PATIENCE).await.unwrap().acquired().expect("their leases end");
        let took = killed.elapsed();
        assert!(took <= SHORT_LEASE + SLACK, "we succeeded {} after {took:?}", library.name);
        guard.release().await.unwrap();

        if library.quorum == Quorum::Some {
            servers[0].kill();
            exclude_each_other(&lock, &mut peer, library).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shared_majority_increments_lose_none() {
    for library in present().into_iter().filter(|library| library.quorum != Quorum::None) {
        let (servers, mut peer, red) = three_servers(library).await;
        let lock = red.simple_lock(NAME);
        let file = servers[0].directory().join("counter");
        fs::write(&file, "0").unwrap();
        peer.ask(&increments(200, &file));
        let turns = contend(200, &file, async || {
            let guard = lock.acquire().await.unwrap();
            let found = increment(&file).await;
            guard.release().await.unwrap();
            found
        });
        let turns = turns.await;
        assert_eq!(peer.answer().await, "done");
        assert_eq!(fs::read_to_string(&file).unwrap(), "400", "{}", library.name);
        assert!(turns > 2, "{}: both sides were at it at the same time: {turns}", library.name);
        println!("{}: the other side came between two of ours {turns} times", library.name);
    }
}

#[tokio::test]
#[ignore = "a process that the others start"]
async fn rslock_as_a_peer() {
    let Ok(urls) = std::env::var(URLS) else { return };
    rslock_peer::serve(urls.split(' ').map(str::to_owned).collect()).await;
}

/// A peer leaves no mark on the server. Therefore a simple lock has to be free for long enough between two of our holds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peer_has_turns_beside_hot_lock() {
    for library in present() {
        let (_server, mut peer, locks) = both_sides(library, LEASE).await;
        let process = hot::hot(&locks.simple_lock(NAME), 4, Duration::from_millis(1));
        assert!(process.reaches(20, PATIENCE).await, "{}", library.name);
        let (began, before) = (Instant::now(), process.had());
        let mut attempts = 0;
        for turn in 0..2 {
            loop {
                attempts += 1;
                if peer.acquires(NAME, LEASE, Duration::ZERO).await {
                    break;
                }
                assert!(began.elapsed() < PATIENCE, "{} had {turn} turns", library.name);
                tokio::time::sleep(REDSYNC_DELAY).await;
            }
            assert_ne!(peer.releases().await, Some(false), "{}", library.name);
        }
        let ours = process.end().await.unwrap() - before;
        println!("{}: 2 turns with {attempts} attempts beside {ours} of ours", library.name);
    }
}

/// Shortest delay between two attempts with redsync's defaults, which vary the delay from 50 to 250 ms.
const REDSYNC_DELAY: Duration = Duration::from_millis(50);

/// Starts a server and the library. Returns them with a manager whose watchdog keeps locks for `lease`.
async fn both_sides(library: &'static Library, lease: Duration) -> (RedisServer, Peer, LockManager) {
    let server = RedisServer::builder().tcp().start();
    let peer = Peer::start(library, &[server.url()]).await;
    let locks = adjusted(&server.url(), lease, |_| {}).await;
    (server, peer, locks)
}

async fn three_servers(library: &'static Library) -> (Vec<RedisServer>, Peer, RedLockManager) {
    let servers: Vec<_> = (0..3).map(|_| RedisServer::builder().tcp().start()).collect();
    let peer = Peer::start(library, &urls(&servers)).await;
    let red = RedLockManager::connect(urls(&servers)).await.unwrap();
    (servers, peer, red)
}

fn urls(servers: &[RedisServer]) -> Vec<String> {
    servers.iter().map(RedisServer::url).collect()
}

async fn exclude_each_other(lock: &RedLock, peer: &mut Peer, library: &Library) {
    // The second round starts with the keys that the first round has left.
    for _ in 0..2 {
        let guard = lock.acquire().await.unwrap();
        assert!(!peer.acquires(NAME, LEASE, Duration::ZERO).await, "{}", library.name);
        peer.asks_for(NAME, LEASE, PATIENCE);
        guard.release().await.unwrap();
        assert_eq!(peer.answer().await, "acquired", "{}", library.name);
        assert!(!lock.try_acquire().await.unwrap().is_acquired(), "{}", library.name);
        let waiting = tokio::spawn({
            let lock = lock.clone();
            async move { lock.try_acquire_for(WOKEN).await.unwrap() }
        });
        yield_now().await;
        assert_ne!(peer.releases().await, Some(false), "{}", library.name);
        let guard = waiting.await.unwrap().acquired().expect("nobody tells us, so we ask");
        guard.release().await.unwrap();
    }
}

/// Starts a task that waits for `lock` and was refused.
async fn waiter(lock: &Lock, locks: &LockManager) -> tokio::task::JoinHandle<Attempt<wheellock::Guard>> {
    let lock = lock.clone();
    let waiting = tokio::spawn(async move { lock.try_acquire_for(WOKEN).await.unwrap() });
    assert!(eventually(PATIENCE, async || locks.metrics().waiting == 1).await);
    waiting
}

fn increments(times: u32, file: &Path) -> String {
    format!("increment {NAME} {} {times} {}", LEASE.as_millis(), file.display())
}

/// Calls `increment_locked` `times` times, as often as the other side increments the number in the file. Lets the other side in after every
/// tenth call. Returns the number of its turns between two of ours.
async fn contend(times: u32, file: &Path, mut increment_locked: impl AsyncFnMut() -> u32) -> u32 {
    let (mut left, mut turns) = (0, 0);
    for done in 0..times {
        if done % 10 == 0 && left - done < times {
            let came = || fs::read_to_string(file).unwrap().parse().is_ok_and(|number: u32| number > left);
            assert!(eventually(PATIENCE, async || came()).await, "the other side is shut out");
        }
        let found = increment_locked().await;
        turns += u32::from(found != left);
        left = found + 1;
    }
    turns
}

/// Reads, adds one and writes in three steps on purpose. Other tasks may run between the steps. Returns the old number.
async fn increment(file: &Path) -> u32 {
    let number: u32 = fs::read_to_string(file).unwrap().parse().unwrap();
    yield_now().await;
    fs::write(file, (number + 1).to_string()).unwrap();
    number
}

/// Waits until the lease of `name` is extended.
async fn renewed(server: &RedisServer, name: &str) -> bool {
    let mut before = Duration::MAX;
    eventually(PATIENCE, async || {
        let left = left(server, name);
        std::mem::replace(&mut before, left) < left
    })
    .await
}

/// Returns the rest of a lease by the server's clock.
fn left(server: &RedisServer, name: &str) -> Duration {
    Duration::from_millis(server.cli(&["PTTL", name]).parse().unwrap_or_default())
}

/// Every test has its own server for each library, so one name is enough.
const NAME: &str = "orders:42";
/// Longer than any test takes.
const LEASE: Duration = Duration::from_secs(30);
/// Short enough to see renewals, and long enough for two busy processes to renew in time.
const SHORT_LEASE: Duration = Duration::from_secs(1);
/// Delay that pauses and scheduling may add to the end of a lease on a busy machine.
const SLACK: Duration = Duration::from_secs(1);
