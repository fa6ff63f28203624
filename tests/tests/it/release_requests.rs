//! Requests to release a lock, from callers to holders. The tests cover every kind of lock, holders that do not listen, and messages that
//! are not meant for a guard.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::time::timeout;
use wheellock::client::{Config, ShardedPubSub};
use wheellock::{AskedHolders, Error, Guard, Lock, LockManager, ReleaseRequest, multi_lock};
use wheellock_tests::locks::{PATIENCE, at_rest, gone, manager};
use wheellock_tests::topology::{Cluster, Settings};
use wheellock_tests::{RedisServer, eventually};

/// Function that returns the lock whose holder is asked.
type Named = fn(&LockManager) -> Lock;

async fn server_and_managers() -> (RedisServer, LockManager, LockManager) {
    let server = RedisServer::start();
    let here = LockManager::builder(server.url()).label("web-3/1/billing").connect().await.unwrap();
    let there = manager(&server.url()).await;
    (server, here, there)
}

async fn ask(lock: &Lock, reason: &str) -> AskedHolders {
    lock.ask_to_release(reason).await.unwrap()
}

fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Polls a guard's wait once, and waits until the server knows its subscription.
async fn listens(locks: &LockManager, wait: Pin<&mut impl Future<Output = ReleaseRequest>>) {
    assert!(poll(wait).is_pending());
    assert!(eventually(PATIENCE, async || at_rest(locks).await).await);
}

async fn received(wait: impl Future<Output = ReleaseRequest>) -> ReleaseRequest {
    timeout(PATIENCE, wait).await.expect("the request arrives")
}

#[tokio::test]
async fn every_kind_tells_listening_holder() {
    let (_server, asks, locks) = server_and_managers().await;
    let kinds: [(&str, Named); 7] = [
        ("plain", |locks| locks.lock("plain")),
        ("spin", |locks| locks.spin_lock("spin")),
        ("fair", |locks| locks.fair_lock("fair")),
        ("fenced", |locks| locks.fenced_lock("{fen}ced").as_lock().clone()),
        ("read", |locks| locks.read_write_lock("read").read()),
        ("write", |locks| locks.read_write_lock("write").write()),
        ("simple", |locks| locks.simple_lock("simple")),
    ];
    for (name, kind) in kinds {
        let (lock, asked) = (kind(&locks), kind(&asks));
        assert!(ask(&asked, "deploy 4711").await.is_free(), "{name}");
        let guard = lock.acquire().await.unwrap();
        let found = ask(&asked, "deploy 4711").await;
        assert!(found.told.is_empty() && found.untold.len() == 1, "{name}: nobody listens yet: {found:?}");
        let mut wait = Box::pin(guard.release_requested());
        listens(&locks, wait.as_mut()).await;
        let found = ask(&asked, "deploy 4711").await;
        assert!(found.untold.is_empty() && found.beyond == 0, "{name}: {found:?}");
        assert_eq!(found.told.len(), 1, "{name}");
        assert_eq!(found.told[0].owner, guard.owner().to_string(), "{name}");
        let request = received(wait).await;
        assert_eq!(request.from, asks.id(), "{name}");
        assert_eq!(request.label.as_deref(), Some("web-3/1/billing"), "{name}");
        assert_eq!(request.reason, "deploy 4711", "{name}");
        assert!(guard.is_valid() && lock.is_locked().await.unwrap(), "{name}: a request frees nothing");
        guard.renew().await.unwrap();
        guard.release().await.unwrap();
        assert!(ask(&asked, "deploy 4711").await.is_free(), "{name}");
    }
}

#[tokio::test]
async fn request_between_waits_is_kept() {
    let (_server, asks, locks) = server_and_managers().await;
    let guard = locks.lock("step").acquire().await.unwrap();
    {
        let mut wait = Box::pin(guard.release_requested());
        listens(&locks, wait.as_mut()).await;
    }
    assert_eq!(ask(&asks.lock("step"), "first").await.told.len(), 1, "it listens between its waits, too");
    assert_eq!(ask(&asks.lock("step"), "second").await.told.len(), 1);
    let (one, other) = tokio::join!(received(guard.release_requested()), received(guard.release_requested()));
    assert_eq!(one, other);
    assert_eq!(one.reason, "first");
    assert_eq!(received(guard.release_requested()).await.reason, "first", "and at once from then on");
    guard.release().await.unwrap();
    // The next hold starts anew.
    let guard = locks.lock("step").acquire().await.unwrap();
    let mut wait = Box::pin(guard.release_requested());
    listens(&locks, wait.as_mut()).await;
    assert!(poll(wait.as_mut()).is_pending());
}

#[tokio::test]
async fn all_waits_of_guard_are_woken() {
    let (_server, asks, locks) = server_and_managers().await;
    let guard = Arc::new(locks.lock("shared").acquire().await.unwrap());
    let again = locks.lock("shared").with_owner(guard.owner()).acquire().await.unwrap();
    let waits: Vec<_> = (0..5)
        .map(|_| {
            let guard = Arc::clone(&guard);
            tokio::spawn(async move { guard.release_requested().await })
        })
        .collect();
    let mut wait = Box::pin(again.release_requested());
    listens(&locks, wait.as_mut()).await;
    tokio::task::yield_now().await;
    assert!(eventually(PATIENCE, async || at_rest(&locks).await).await);
    let asked = ask(&asks.lock("shared"), "both").await;
    assert_eq!((asked.told.len(), asked.told[0].hold_count), (1, 2));
    assert_eq!(received(wait).await.reason, "both", "of one owner all guards are told");
    for wait in waits {
        assert_eq!(timeout(PATIENCE, wait).await.expect("it is woken").unwrap().reason, "both");
    }
}

#[tokio::test]
async fn each_reader_is_told_or_counted() {
    let (server, asks, locks) = server_and_managers().await;
    let others = manager(&server.url()).await;
    let side = |locks: &LockManager| locks.read_write_lock("prices").read();
    let [one, two] = [side(&locks).acquire().await.unwrap(), side(&locks).acquire().await.unwrap()];
    let deaf = side(&others).acquire().await.unwrap();
    let (mut first, mut second) = (Box::pin(one.release_requested()), Box::pin(two.release_requested()));
    listens(&locks, first.as_mut()).await;
    listens(&locks, second.as_mut()).await;
    let asked = ask(&side(&asks), "new prices").await;
    let mut told: Vec<_> = asked.told.iter().map(|holder| holder.owner.clone()).collect();
    told.sort_unstable();
    let mut expected = vec![one.owner().to_string(), two.owner().to_string()];
    expected.sort_unstable();
    assert_eq!(told, expected);
    assert_eq!(asked.untold.len(), 1);
    assert_eq!(asked.untold[0].owner, deaf.owner().to_string());
    assert_eq!(received(first).await.reason, "new prices");
    assert_eq!(received(second).await.reason, "new prices");
    let writer = asks.read_write_lock("prices").write();
    assert!(ask(&writer, "new prices").await.is_free(), "the other side has holders of its own");
}

/// One owner may hold two locks, and a request is about one of them.
#[tokio::test]
async fn request_for_other_lock_is_not_received() {
    let (_server, asks, locks) = server_and_managers().await;
    let one = locks.lock("one").acquire().await.unwrap();
    let other = locks.lock("other").with_owner(one.owner()).acquire().await.unwrap();
    let (mut first, mut second) = (Box::pin(one.release_requested()), Box::pin(other.release_requested()));
    listens(&locks, first.as_mut()).await;
    listens(&locks, second.as_mut()).await;
    assert_eq!(ask(&asks.lock("one"), "for one").await.told.len(), 1);
    assert_eq!(received(first).await.reason, "for one");
    assert!(poll(second.as_mut()).is_pending(), "this request is about another lock");
    assert_eq!(ask(&asks.lock("other"), "for the other").await.told.len(), 1);
    assert_eq!(received(second).await.reason, "for the other");
}

#[tokio::test]
async fn odd_messages_are_ignored() {
    let (server, asks, locks) = server_and_managers().await;
    let guard = locks.lock("odd").acquire().await.unwrap();
    let mut wait = Box::pin(guard.release_requested());
    listens(&locks, wait.as_mut()).await;
    let channel = format!("wheellock_request:{{odd}}:{}", guard.owner());
    let long = "x".repeat(100_000);
    for odd in
        ["", "0", "a\nb\nc", &long, &format!("{}\n\n{long}", asks.id()), &format!("{}\n\na\nb", asks.id())]
    {
        assert_eq!(server.cli(&["PUBLISH", &channel, odd]), "1");
    }
    assert_eq!(ask(&asks.lock("odd"), "the real one").await.told.len(), 1);
    assert_eq!(received(wait).await.reason, "the real one");
    // A flood takes no memory, and the latest messages stay.
    let guard = locks.lock("flood").acquire().await.unwrap();
    let mut wait = Box::pin(guard.release_requested());
    listens(&locks, wait.as_mut()).await;
    for number in 0..100 {
        assert_eq!(ask(&asks.lock("flood"), &format!("number {number}")).await.told.len(), 1);
    }
    assert_eq!(received(wait).await.reason, "number 92");
}

/// A hold that listens goes back to the server, and the next holder of this process has requests of its own.
#[tokio::test]
async fn listening_hold_is_not_handed_over() {
    let (server, asks, _) = server_and_managers().await;
    let locks = LockManager::builder(server.url()).hand_over(Duration::from_secs(600));
    let locks = locks.connect().await.unwrap();
    let lock = locks.lock("hot");
    let next = || {
        let lock = lock.clone();
        tokio::spawn(async move { lock.acquire().await })
    };
    let waits = async || {
        assert!(eventually(PATIENCE, async || locks.metrics().waiting == 1).await);
        assert!(at_rest(&locks).await);
    };
    let silent = lock.acquire().await.unwrap();
    let waiting = next();
    waits().await;
    silent.release().await.unwrap();
    let guard = timeout(PATIENCE, waiting).await.expect("it is woken").unwrap().unwrap();
    assert_eq!(locks.metrics().hand_overs, 1, "a hold that does not listen is handed over");

    let mut wait = Box::pin(guard.release_requested());
    listens(&locks, wait.as_mut()).await;
    let waiting = next();
    waits().await;
    assert_eq!(ask(&asks.lock("hot"), "for the first").await.told.len(), 1);
    assert_eq!(received(wait).await.reason, "for the first");
    guard.release().await.unwrap();
    let last = timeout(PATIENCE, waiting).await.expect("it is woken").unwrap().unwrap();
    assert_eq!(locks.metrics().hand_overs, 1);
    let mut wait = Box::pin(last.release_requested());
    listens(&locks, wait.as_mut()).await;
    assert!(poll(wait.as_mut()).is_pending(), "the first holder's request is not the second's");
    assert_eq!(ask(&asks.lock("hot"), "for the second").await.told.len(), 1);
    assert_eq!(received(wait).await.reason, "for the second");
}

#[tokio::test]
async fn listener_survives_reconnect() {
    let (server, asks, locks) = server_and_managers().await;
    let guard = locks.lock("cut").acquire().await.unwrap();
    let mut wait = Box::pin(guard.release_requested());
    listens(&locks, wait.as_mut()).await;
    assert_eq!(server.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]), "1");
    let asked = async || !ask(&asks.lock("cut"), "after the cut").await.told.is_empty();
    assert!(eventually(PATIENCE, asked).await, "the subscription is renewed");
    assert_eq!(received(wait).await.reason, "after the cut");
}

#[tokio::test]
async fn foreign_holders_are_untold() {
    let (server, asks, _locks) = server_and_managers().await;
    let java = "0a1b2c3d-0000-4000-8000-0123456789ab:17";
    assert_eq!(server.cli(&["HSET", "java", java, "1"]), "1");
    let asked = ask(&asks.lock("java"), "deploy").await;
    assert_eq!((asked.told.len(), asked.untold.len()), (0, 1));
    assert_eq!(asked.untold[0].owner, java);
    let _done = server.cli(&["SET", "go", "odd \u{1} token", "PX", "60000"]);
    let asked = ask(&asks.simple_lock("go"), "deploy").await;
    assert_eq!((asked.told.len(), asked.untold.len()), (0, 1));
}

#[tokio::test]
async fn wrong_requests_change_nothing() {
    let (server, asks, locks) = server_and_managers().await;
    let guard = locks.lock("held").acquire().await.unwrap();
    let mut wait = Box::pin(guard.release_requested());
    listens(&locks, wait.as_mut()).await;
    let calls = asks.client().stats().calls;
    for reason in ["two\nlines", &"x".repeat(257)] {
        let error = asks.lock("held").ask_to_release(reason).await.unwrap_err();
        assert!(matches!(error, Error::InvalidReason { length, .. } if length == reason.len()), "{error}");
    }
    assert!(matches!(asks.lock("").ask_to_release("").await, Err(Error::InvalidName { .. })));
    assert_eq!(asks.client().stats().calls, calls, "nothing was sent");
    assert!(poll(wait.as_mut()).is_pending());
    let _done = server.cli(&["RPUSH", "list", "data"]);
    assert!(matches!(asks.lock("list").ask_to_release("").await, Err(Error::OtherData { .. })));
    assert_eq!(ask(&asks.lock("held"), &"x".repeat(256)).await.told.len(), 1);
    assert_eq!(received(wait).await.reason.len(), 256);
}

#[tokio::test]
async fn leader_is_asked_to_step_down() {
    let (server, asks, locks) = server_and_managers().await;
    let leadership = locks.election("scheduler").campaign().await.unwrap();
    let mut wait = Box::pin(leadership.step_down_requested());
    listens(&locks, wait.as_mut()).await;
    let asked = asks.election("scheduler").ask_to_step_down("node 3 leads faster").await.unwrap();
    assert_eq!(asked.told.len(), 1);
    assert_eq!(received(wait).await.reason, "node 3 leads faster");
    assert!(leadership.is_leader());
    leadership.resign().await.unwrap();
    assert!(gone(&server, "scheduler").await);
    assert!(asks.election("scheduler").ask_to_step_down("again").await.unwrap().is_free());
}

/// A set listens to requests for any of its members.
#[tokio::test]
async fn set_is_told_of_each_member() {
    let (_server, asks, locks) = server_and_managers().await;
    for wanted in ["one", "two"] {
        let set = multi_lock([locks.lock("one"), locks.lock("two")]).unwrap();
        let guard = set.acquire().await.unwrap();
        let mut wait = Box::pin(guard.release_requested());
        listens(&locks, wait.as_mut()).await;
        assert_eq!(ask(&asks.lock(wanted), wanted).await.told.len(), 1);
        assert_eq!(received(wait).await.reason, wanted);
        guard.release().await.unwrap();
    }
}

/// The subscription and the request are at the node of the lock's slot, for sharded and for other messages.
#[tokio::test]
async fn cluster_tells_holder_of_any_slot() {
    let cluster = Cluster::start(2, 0, &Settings::default());
    for sharded in [ShardedPubSub::default(), ShardedPubSub::Off] {
        let connect = async || {
            let adjust = |config: &mut Config| config.sharded_pubsub = sharded;
            LockManager::builder(cluster.url()).configure(adjust).connect().await.unwrap()
        };
        let (locks, asks) = (connect().await, connect().await);
        for number in 0..12 {
            let name = format!("orders:{number}");
            let guard = locks.lock(&name).acquire().await.unwrap();
            assert_eq!(ask(&asks.lock(&name), "early").await.untold.len(), 1, "{name} {sharded:?}");
            let wait = tokio::spawn(told(guard));
            let asked = async || !ask(&asks.lock(&name), "deploy").await.told.is_empty();
            assert!(eventually(PATIENCE, asked).await, "{name} {sharded:?}");
            assert_eq!(received(async { wait.await.unwrap() }).await.reason, "deploy");
        }
    }
}

async fn told(guard: Guard) -> ReleaseRequest {
    let request = guard.release_requested().await;
    guard.release().await.unwrap();
    request
}

#[test]
fn threads_ask_and_are_told() {
    let server = RedisServer::start();
    let here = wheellock::blocking::LockManager::connect(server.url()).unwrap();
    let there = wheellock::blocking::LockManager::connect(server.url()).unwrap();
    let guard = here.lock("job").acquire().unwrap();
    let leadership = here.election("jobs").campaign().unwrap();
    std::thread::scope(|scope| {
        let told = scope.spawn(|| guard.release_requested());
        let asked_to_resign = scope.spawn(|| leadership.step_down_requested());
        while there.lock("job").ask_to_release("deploy").unwrap().told.is_empty() {
            std::thread::sleep(Duration::from_millis(5));
        }
        while there.election("jobs").ask_to_step_down("deploy").unwrap().told.is_empty() {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(told.join().unwrap().reason, "deploy");
        assert_eq!(asked_to_resign.join().unwrap().reason, "deploy");
    });
}
