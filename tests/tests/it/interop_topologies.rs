//! Redisson behind Sentinels and in a cluster. The tests cover its requests there and its hand-overs of locks, failovers included.
//!
//! First Java is on both sides, then on one side. Without Java all tests are skipped.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use wheellock::LockManager;
use wheellock::client::ShardedPubSub;
use wheellock_tests::interop::{self, Client, Exception, Peer};
use wheellock_tests::locks::{PATIENCE, WOKEN, manager};
use wheellock_tests::topology::{Cluster, SentinelSet, Settings};
use wheellock_tests::{Monitor, Observed, RedisServer, eventually};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn java_publishes_on_current_sentinel_primary() {
    let Some(peer) = of_the_known_version() else { return };
    let settings = Settings::default().user("app", "p@ss", "~* &* +@all").sentinel_password("another");
    let mut set = SentinelSet::start(&settings);
    let open = async |name| peer.open_with_sentinel_password(name, &set.url(), LEASE, "another").await;
    let (holder, waiter) = (open("sentinel-holder").await, open("sentinel-waiter").await);

    let primary = set.primary();
    let sent = hand_over(&[primary], primary, &holder, &waiter, "NUMSUB").await;
    assert_eq!(commands_about(&sent, &channel(NAME)), ["SUBSCRIBE", "PUBLISH", "UNSUBSCRIBE", "PUBLISH"]);
    assert!(sent.iter().any(|command| command.args == ["WAIT", "2", "1000"]), "it waits for both replicas");

    // A held lock and a waiter outlive the primary.
    let (holding, waiting) = (holder.thread("t"), waiter.thread("t"));
    let old = set.primary_index();
    holding.lock(NAME).done().await;
    let waits = waiting.lock(NAME);
    assert!(subscribed(set.primary(), "NUMSUB", "1").await);
    set.servers_mut()[old].kill();
    let new = set.wait_for_new_primary(set.servers()[old].addr());
    assert!(subscribed(&set.servers()[new], "NUMSUB", "1").await, "the waiter listens there");
    follows(&holder).await;
    assert_eq!(holding.unlock(NAME).done().await, "unlocked");
    assert_eq!(within(WOKEN_LATE, waits.done()).await, "locked");
    assert_eq!(waiting.unlock(NAME).done().await, "unlocked");

    set.heal();
    for client in [holder, waiter] {
        client.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn java_publishes_on_current_shard_master() {
    let Some(peer) = of_the_known_version() else { return };
    let settings = Settings::default().password("open-sesame");
    let mut set = Cluster::start(3, 1, &settings);
    let open = async |name| peer.open(name, &set.url(), LEASE).await;
    let (holder, waiter) = (open("cluster-holder").await, open("cluster-waiter").await);

    let old = set.owner_of_key(NAME);
    let nodes: Vec<_> = set.nodes().iter().collect();
    let sent = hand_over(&nodes, nodes[old], &holder, &waiter, "SHARDNUMSUB").await;
    assert_eq!(commands_about(&sent, &channel(NAME)), ["SSUBSCRIBE", "SPUBLISH", "SUNSUBSCRIBE", "SPUBLISH"]);
    assert!(sent.iter().any(|command| command.args == ["WAIT", "1", "1000"]), "it waits for the replica");

    // A held lock and a waiter outlive the master.
    let (holding, waiting) = (holder.thread("t"), waiter.thread("t"));
    holding.lock(NAME).done().await;
    let waits = waiting.lock(NAME);
    assert!(subscribed(&set.nodes()[old], "SHARDNUMSUB", "1").await);
    set.nodes_mut()[old].kill();
    set.wait_ok();
    let new = set.owner_of_key(NAME);
    assert!(subscribed(&set.nodes()[new], "SHARDNUMSUB", "1").await, "the waiter listens there");
    follows(&holder).await;
    assert_eq!(holding.unlock(NAME).done().await, "unlocked");
    // Java's own waiter gives up if the failover is slow.
    if within(WOKEN_LATE, waits.answer()).await.result.is_err() {
        follows(&waiter).await;
        assert_eq!(waiting.lock(NAME).done().await, "locked");
    }
    assert_eq!(waiting.unlock(NAME).done().await, "unlocked");
    set.heal();

    // A held lock outlives its slot's move. Java's waiters do not outlive it: see docs/interop/redisson.md.
    holding.lock(NAME).done().await;
    let (slot, from) = (set.slot_of(NAME), set.owner_of_key(NAME));
    let to = (0..3).find(|master| set.replicas_of(*master).len() == 1 && *master != from).unwrap();
    set.move_slot(slot, to);
    follows(&waiter).await;
    assert_eq!(waiting.try_lock(NAME).done().await, "false");
    follows(&holder).await;
    assert_eq!(holding.unlock(NAME).done().await, "unlocked");
    assert_eq!(waiting.try_lock(NAME).done().await, "true");
    assert_eq!(set.nodes()[to].cli(&["EXISTS", NAME]), "1");
    assert_eq!(waiting.unlock(NAME).done().await, "unlocked");
    for client in [holder, waiter] {
        client.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wakeups_survive_sentinel_failover() {
    let Some(peer) = interop::shared() else { return };
    let mut set = SentinelSet::start(&Settings::default());
    let java = peer.open("sentinel-mixed", &set.url(), LEASE).await;
    let locks = manager(&set.url()).await;
    each_wakes_the_other(&java, &locks, async || subscribers(set.primary(), "NUMSUB")).await;
    let old = set.primary_index();
    set.servers_mut()[old].kill();
    let _new = set.wait_for_new_primary(set.servers()[old].addr());
    follows(&java).await;
    each_wakes_the_other(&java, &locks, async || subscribers(set.primary(), "NUMSUB")).await;
    java.close().await;
}

/// D2: in a cluster each side wakes the other. Beside Redisson before 3.28 this needs `ShardedPubSub::Off`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wakeups_survive_cluster_failover_and_move() {
    let Some(peer) = interop::shared() else { return };
    let (sharded, question) = if java_knows_sharded_pubsub() {
        (ShardedPubSub::Auto, "SHARDNUMSUB")
    } else {
        (ShardedPubSub::Off, "NUMSUB")
    };
    let mut set = Cluster::start(3, 1, &Settings::default());
    let java = peer.open("cluster-mixed", &set.url(), LEASE).await;
    let agreed = LockManager::builder(&set.url()).configure(|config| config.sharded_pubsub = sharded);
    let locks = agreed.connect().await.unwrap();
    let listening = |set: &Cluster| -> u32 {
        set.nodes().iter().filter(|node| node.is_up()).map(|node| subscribers(node, question)).sum()
    };
    each_wakes_the_other(&java, &locks, async || listening(&set)).await;
    let old = set.owner_of_key(NAME);
    set.nodes_mut()[old].kill();
    set.wait_ok();
    follows(&java).await;
    each_wakes_the_other(&java, &locks, async || listening(&set)).await;
    set.heal();
    let (slot, from) = (set.slot_of(NAME), set.owner_of_key(NAME));
    let to =
        (0..set.nodes().len()).find(|master| set.replicas_of(*master).len() == 1 && *master != from).unwrap();
    set.move_slot(slot, to);
    follows(&java).await;
    each_wakes_the_other(&java, &locks, async || listening(&set)).await;
    java.close().await;
}

/// Passes a lock from Java to Rust and back. The next holder waits for the message of the release each time.
async fn each_wakes_the_other(java: &Client, locks: &LockManager, subscribers: impl AsyncFn() -> u32) {
    let (thread, lock) = (java.thread("t"), locks.lock(NAME));
    thread.lock(NAME).done().await;
    assert!(!lock.try_acquire().await.unwrap().is_acquired(), "held by Java");
    let waiter = tokio::spawn({
        let lock = lock.clone();
        async move { lock.acquire().await }
    });
    assert!(eventually(PATIENCE, async || subscribers().await > 0).await, "Rust listens");
    assert_eq!(thread.unlock(NAME).done().await, "unlocked");
    let guard = within(WOKEN_LATE, waiter).await.unwrap().unwrap();
    assert_eq!(thread.try_lock(NAME).done().await, "false", "held by Rust");
    let waits = thread.lock(NAME);
    // Our own subscription lingers for two seconds.
    let since = Instant::now();
    let java_listens = async || match subscribers().await {
        0 => false,
        1 => since.elapsed() > Duration::from_secs(3),
        _ => true,
    };
    assert!(eventually(PATIENCE, java_listens).await, "Java listens");
    guard.release().await.unwrap();
    assert_eq!(within(WOKEN_LATE, waits.done()).await, "locked");
    assert_eq!(thread.unlock(NAME).done().await, "unlocked");
}

/// Waits until Java's client works again. Its first calls after a failover may fail, and so may the second of two calls.
async fn follows(java: &Client) {
    let (thread, has_taken) = (java.thread("t"), Cell::new(false));
    let serves = async || {
        if !has_taken.get() {
            match thread.try_lock(NAME).answer().await.result {
                Ok(taken) => has_taken.set(taken == "true"),
                Err(_) => return false,
            }
        }
        // The server may have executed a call that failed.
        let is_given_back = |thrown: Exception| thrown.class.ends_with("IllegalMonitorStateException");
        !has_taken.get() || thread.unlock(NAME).answer().await.result.map_or_else(is_given_back, |_| true)
    };
    assert!(eventually(WOKEN_LATE, serves).await);
}

/// Returns true if the Redisson under test uses sharded pub/sub in a cluster. Redisson does so since 3.28.
fn java_knows_sharded_pubsub() -> bool {
    let Some(version) = interop::chosen_version() else { return true };
    let numbers: Vec<u32> = version.split('.').map_while(|number| number.parse().ok()).collect();
    numbers.as_slice() >= &[3, 28]
}

/// Returns the JVM if it runs the default Redisson. Other versions send other requests than these tests describe.
fn of_the_known_version() -> Option<&'static Arc<Peer>> {
    if interop::chosen_version().is_some() { None } else { interop::shared() }
}

/// Lets a thread of one client unlock while a thread of another client waits and is woken. Returns the requests that `primary` received.
/// The other servers have no channel meanwhile.
async fn hand_over(
    servers: &[&RedisServer],
    primary: &RedisServer,
    holder: &Client,
    waiter: &Client,
    subscribers: &str,
) -> Vec<Observed> {
    let (holding, waiting) = (holder.thread("t"), waiter.thread("t"));
    // The JVM is slow when it does something for the first time.
    for thread in [&holding, &waiting] {
        thread.lock(NAME).done().await;
        thread.unlock(NAME).done().await;
    }
    let monitors: Vec<_> = servers.iter().map(|server| server.monitor()).collect();
    holding.lock(NAME).done().await;
    assert_eq!(waiting.try_lock(NAME).done().await, "false");
    let waits = waiting.lock(NAME);
    assert!(subscribed(primary, subscribers, "1").await);
    assert_eq!(holding.unlock(NAME).done().await, "unlocked");
    assert_eq!(within(WOKEN, waits.done()).await, "locked");
    assert!(subscribed(primary, subscribers, "0").await);
    assert_eq!(waiting.unlock(NAME).done().await, "unlocked");
    let mut sent = Vec::new();
    for (server, monitor) in servers.iter().zip(monitors) {
        let observed = Monitor::stop(monitor).unwrap();
        if server.addr() == primary.addr() {
            sent = observed;
        } else {
            assert_eq!(commands_about(&observed, &channel(NAME)), [""; 0], "on {}", server.addr());
        }
    }
    sent
}

/// Returns the commands of clients and scripts whose first argument was the channel. Queries are left out.
fn commands_about(observed: &[Observed], channel: &str) -> Vec<String> {
    let about = |command: &&Observed| command.args.get(1).is_some_and(|first| first == channel);
    observed.iter().filter(about).map(Observed::name).collect()
}

async fn subscribed(server: &RedisServer, subscribers: &str, count: &str) -> bool {
    let channel = channel(NAME);
    let answer = format!("{channel}\n{count}");
    eventually(PATIENCE, async || server.cli(&["PUBSUB", subscribers, &channel]) == answer).await
}

fn subscribers(server: &RedisServer, question: &str) -> u32 {
    let answer = server.cli(&["PUBSUB", question, &channel(NAME)]);
    answer.lines().last().and_then(|count| count.parse().ok()).unwrap_or_default()
}

async fn within<F: Future>(limit: Duration, work: F) -> F::Output {
    tokio::time::timeout(limit, work).await.expect("woken, not told by the clock")
}

fn channel(name: &str) -> String {
    format!("redisson_lock__channel:{{{name}}}")
}

const NAME: &str = "orders:42";
/// No test waits for its end.
const LEASE: Duration = Duration::from_secs(60);
/// Redisson waits 1 s for a dead replica at every attempt and every unlock. This limit is still far less than the rest of the lease. At
/// least two thirds of the lease are left.
const WOKEN_LATE: Duration = Duration::from_secs(20);
