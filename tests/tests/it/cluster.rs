//! Clusters (rows T8 to T14 of docs/reliability/faults.md).
//!
//! Real nodes are killed, stopped and replaced, and their slots move. Fake nodes send the replies of a test.

use std::io;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::timeout;
use wheellock::{Attempt, Error as LockError, LockManager, multi_lock};
use wheellock_client::{
    CallOptions, Client, Command, Config, Error, ErrorKind, Outcome, Script, ShardedPubSub, slot_of,
};
use wheellock_tests::eventually;
use wheellock_tests::fault::{FakeServer, Session};
use wheellock_tests::locks::WOKEN;
use wheellock_tests::topology::{Cluster, Settings};
use wheellock_tests::worker::connect;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t8_replica_serves_slots_of_killed_node() {
    let mut cluster = Cluster::start(3, 1, &Settings::default());
    let locks = connect(&cluster.url(), LEASE).await.unwrap();
    let load = Load::start(&locks, 16);
    assert!(load.goes_on(0).await, "no service to begin with");
    let name = load.name(0);
    let victim = cluster.owner_of_key(&name);
    cluster.nodes_mut()[victim].kill();
    // The other shards continue meanwhile.
    let elsewhere = (0..LOCKS).find(|lock| cluster.owner_of_key(&load.name(*lock)) != victim).unwrap();
    assert!(load.goes_on(elsewhere).await);
    assert!(load.goes_on(0).await, "no service after the failover");
    for error in load.end().await {
        assert_ne!(error.kind(), ErrorKind::Protocol, "{error}");
        assert_ne!(error.kind(), ErrorKind::Server, "{error}");
    }
}

#[tokio::test]
async fn t8_waiters_and_holds_follow_to_replica() {
    let mut cluster = Cluster::start(3, 1, &Settings::default());
    let here = connect(&cluster.url(), LEASE).await.unwrap();
    // The waiter polls until the nodes agree, which may take long.
    let there = LockManager::builder(&cluster.url()).watchdog_lease(LEASE);
    let there = there.configure(|config| config.response_timeout = NO_HANG).connect().await.unwrap();
    let guard = here.lock("orders").acquire().await.unwrap();
    let victim = cluster.owner_of_key("orders");
    let waiter = tokio::spawn({
        let lock = there.lock("orders");
        async move { lock.acquire().await }
    });
    let waits = || cluster.nodes()[victim].cli(&["PUBSUB", "SHARDNUMSUB", CHANNEL]).contains('1');
    assert!(eventually(NO_HANG, async || waits()).await, "it listens by shard");
    // WAIT confirms that the grant has reached the replica.
    let node = here
        .client()
        .nodes()
        .into_iter()
        .find(|node| *node.server_address() == *cluster.nodes()[victim].addr().to_string())
        .unwrap();
    assert_eq!(node.call(&Command::new("WAIT").arg("1").arg("1000")).await.unwrap().as_i64(), Some(1));
    let before = guard.valid_until();
    cluster.nodes_mut()[victim].kill();
    assert!(
        eventually(NO_HANG, async || guard.valid_until() > before).await,
        "asked after on the replica, and renewed"
    );
    guard.release().await.unwrap();
    let woken = timeout(LEASE / 3, waiter).await.expect("the release is heard on the new node");
    woken.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn t8_stopped_node_stays_unused_after_resume() {
    let cluster = Cluster::start(3, 1, &Settings::default());
    let locks = connect(&cluster.url(), LEASE).await.unwrap();
    let victim = cluster.owner_of_key("orders");
    cluster.nodes()[victim].pause();
    let stopped = cluster.nodes()[victim].addr().to_string();
    let guard = timeout(NO_HANG, async {
        loop {
            match locks.lock("orders").acquire().await {
                Ok(guard) => return guard,
                // The slot may be unserved for longer than a call may take.
                Err(error) => assert_ne!(error.outcome(), Outcome::Rejected, "{error}"),
            }
        }
    });
    let guard = guard.await.expect("the replica serves");
    cluster.nodes()[victim].resume();
    let gone = async || locks.client().nodes().iter().all(|node| *node.server_address() != *stopped);
    assert!(eventually(NO_HANG, gone).await, "it is no primary any more");
    assert!(guard.is_valid() && locks.lock("orders").is_locked().await.unwrap());
    guard.release().await.unwrap();
}

/// E8: a call that nodes redirect to each other ends by its deadline and reports the redirections.
#[tokio::test]
async fn t9_circular_redirection_limits_calls() {
    let ring =
        Ring::start(|number, ports, slot| format!("-MOVED {slot} 127.0.0.1:{}\r\n", ports[1 - number]));
    let client = Client::connect(ring.config()).await.unwrap();
    assert_tells_of("MOVED", &ask_for_a_second(&client).await);
    let asked = ring.asked.load(SeqCst);
    assert!((2..=60).contains(&asked), "asked {asked} times in a second");
}

#[tokio::test]
async fn t9_circular_redirection_limits_subscriptions() {
    let ring =
        Ring::start(|number, ports, slot| format!("-MOVED {slot} 127.0.0.1:{}\r\n", ports[1 - number]));
    let client = Client::connect(ring.config()).await.unwrap();
    let mut news = client.subscribe(b"channel");
    let mut looked = 0;
    let _endless = timeout(Duration::from_millis(500), async {
        loop {
            news.changed().await;
            looked += 1;
        }
    })
    .await;
    let asked = ring.asked.load(SeqCst);
    assert!(
        (2..=60).contains(&asked) && looked <= 120,
        "asked {asked} times, looked {looked} times in half a second"
    );
}

/// E8: the client follows invalid redirections a limited number of times, and reports them at the deadline.
#[tokio::test]
async fn t9_invalid_redirections_are_bounded_and_reported() {
    let senseless = [
        "MOVED 1 :0",
        "MOVED 1 127.0.0.1:99999",
        "MOVED 16384 127.0.0.1:1",
        "MOVED",
        "MOVED x y",
        "MOVED 1 ",
        "ASK 1 :0",
        "MOVED 1 [::1",
        "MOVED -1 127.0.0.1:1",
        "ASK 70000 h:1",
        "MOVED 1 unknown.invalid:6379",
    ];
    let mut calls = JoinSet::new();
    for text in senseless {
        calls.spawn(async move {
            let ring = Ring::start(move |_, _, _| format!("-{text}\r\n"));
            let client = Client::connect(ring.config()).await.unwrap();
            let error = timeout(NO_HANG, ask_for_a_second(&client)).await.expect(text);
            assert_tells_of(text.split(' ').next().unwrap(), &error);
            let asked = ring.asked.load(SeqCst);
            assert!((1..=60).contains(&asked), "{text}: asked {asked} times in a second");
        });
    }
    while let Some(called) = calls.join_next().await {
        called.unwrap();
    }
}

/// Returns the error of a call with a deadline of a second.
async fn ask_for_a_second(client: &Client) -> Error {
    let deadline = CallOptions::by(client.config().timer.now() + Duration::from_secs(1));
    client.call_with(&Command::new("GET").arg("key"), deadline).await.unwrap_err()
}

/// Asserts that the error names the redirection. The redirection itself is the error if the deadline has passed before another attempt. If
/// the deadline cut an attempt off, the outcome is unknown. Tests in virtual time distinguish the cases.
fn assert_tells_of(code: &str, error: &Error) {
    let (refused, unknown) =
        (error.outcome() == Outcome::Rejected, error.outcome() == Outcome::MaybeExecuted);
    let ended = error.kind() == ErrorKind::Timeout && error.detail().contains(code);
    assert!((refused && error.code() == Some(code)) || (ended && (refused || unknown)), "{code}: {error}");
}

#[tokio::test]
async fn t9_redirection_without_host_keeps_host() {
    let ring = Ring::start(|number, ports, slot| {
        if number == 0 { format!("-MOVED {slot} :{}\r\n", ports[1]) } else { "+OK\r\n".to_owned() }
    });
    let client = Client::connect(ring.config()).await.unwrap();
    // Covers both owners: the first node redirects us to the second node, which replies.
    for key in ["a", "b", "c", "d", "e", "f"] {
        assert_eq!(client.call(&Command::new("GET").arg(key)).await.unwrap().as_bytes(), Some(&b"OK"[..]));
    }
}

#[tokio::test]
async fn t10_migrating_lock_stays_reachable() {
    let cluster = Cluster::start(2, 0, &Settings::default());
    let locks = connect(&cluster.url(), SHORT).await.unwrap();
    let (name, slot) = ("orders", slot_of(b"orders"));
    let guard = locks.lock(name).acquire().await.unwrap();
    let to = 1 - cluster.owner_of(slot);
    cluster.begin_move(slot, to);
    // A new lock is created on the target node (ASK). An existing lock stays on its node until it is migrated.
    let made = locks.lock("{orders}:new").acquire().await.unwrap();
    assert_eq!(cluster.nodes()[to].cli(&["CLUSTER", "COUNTKEYSINSLOT", &slot.to_string()]), "1");
    renewed(&guard).await;
    renewed(&made).await;
    while cluster.migrate_keys(slot, to, 1) > 0 {}
    renewed(&guard).await;
    renewed(&made).await;
    assert!(!locks.lock(name).try_acquire().await.unwrap().is_acquired());
    made.release().await.unwrap();
    cluster.finish_move(slot, to);
    renewed(&guard).await;
    guard.release().await.unwrap();
    assert_eq!(cluster.nodes()[to].cli(&["CLUSTER", "COUNTKEYSINSLOT", &slot.to_string()]), "0");
}

#[tokio::test]
async fn t11_multikey_call_waits_during_migration() {
    let cluster = Cluster::start(2, 0, &Settings::default());
    let client = Client::connect(cluster.url().parse().unwrap()).await.unwrap();
    for key in ["{t11}a", "{t11}b"] {
        client.call(&Command::new("SET").arg(key).arg("1")).await.unwrap();
    }
    let slot = slot_of(b"t11");
    let to = 1 - cluster.owner_of(slot);
    cluster.begin_move(slot, to);
    assert_eq!(cluster.migrate_keys(slot, to, 1), 1);
    // The keys are on different nodes, so the reply is TRYAGAIN.
    let both = Script::new("return redis.call('exists', KEYS[1]) + redis.call('exists', KEYS[2])", 2, 0);
    let params = ["{t11}a".into(), "{t11}b".into()];
    let options = CallOptions::by(client.config().timer.now() + Duration::from_millis(100));
    let error = client.eval_with(&both, &params, options).await.unwrap_err();
    // The deadline may also pass during an attempt.
    assert!(error.code() == Some("TRYAGAIN") || error.kind() == ErrorKind::Timeout, "{error}");
    let call = client.eval(&both, &params);
    let move_on = async {
        while cluster.migrate_keys(slot, to, 1) > 0 {}
        cluster.finish_move(slot, to);
    };
    let (reply, ()) = tokio::join!(call, move_on);
    assert_eq!(reply.unwrap().as_i64(), Some(2));
}

#[tokio::test]
async fn t11_leases_of_migrating_slot_renew() {
    let cluster = Cluster::start(2, 0, &Settings::default());
    let locks = connect(&cluster.url(), SHORT).await.unwrap();
    let slot = slot_of(b"t11");
    let mut guards = Vec::new();
    for number in 0..10 {
        guards.push(locks.lock(&format!("{{t11}}:{number}")).acquire().await.unwrap());
    }
    let to = 1 - cluster.owner_of(slot);
    cluster.begin_move(slot, to);
    assert_eq!(cluster.migrate_keys(slot, to, 5), 5);
    // A node rejects a script with keys on both nodes, but not scripts with a single key.
    for guard in &guards {
        renewed(guard).await;
        renewed(guard).await;
    }
    while cluster.migrate_keys(slot, to, 5) > 0 {}
    cluster.finish_move(slot, to);
    for guard in guards {
        renewed(&guard).await;
        guard.release().await.unwrap();
    }
}

/// The release of a dropped guard follows its key to the node that already has it, while the slot still moves.
#[tokio::test]
async fn t11_dropped_guard_releases_migrated_key() {
    let cluster = Cluster::start(2, 0, &Settings::default());
    let locks = connect(&cluster.url(), LEASE).await.unwrap();
    let slot = slot_of(b"t11");
    // Longer than the test runs, so that the lock cannot expire.
    let lock = locks.lock("{t11}").with_lease(Duration::from_secs(600));
    let guard = lock.acquire().await.unwrap();
    let to = 1 - cluster.owner_of(slot);
    cluster.begin_move(slot, to);
    assert_eq!(cluster.migrate_keys(slot, to, 5), 1);
    drop(guard);
    let released = async || cluster.nodes()[to].cli(&["DBSIZE"]) == "0";
    assert!(eventually(NO_HANG, released).await, "the release went to the node that the key had left");
    cluster.finish_move(slot, to);
}

#[tokio::test]
async fn t11_keys_of_any_lock_share_slot() {
    let cluster = Cluster::start(2, 0, &Settings::default());
    let locks = connect(&cluster.url(), LEASE).await.unwrap();
    for name in ["orders", "{orders}:1", "a{b}c{d}", "blå", "{x}}", "a b", "{{y}}", "\"'\\"] {
        let lock = locks.lock(name);
        let guard = lock.acquire().await.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(!lock.try_acquire().await.unwrap().is_acquired(), "{name}");
        let waiter = tokio::spawn(async move { lock.acquire().await });
        guard.release().await.unwrap_or_else(|error| panic!("{name}: {error}"));
        timeout(NO_HANG, waiter).await.expect(name).unwrap().unwrap().release().await.unwrap();
    }
}

/// B4: in a cluster, a name whose channel is in another slot is refused, unless messages go to all nodes. With such messages the name
/// works, and a release wakes its waiters.
#[tokio::test]
async fn unusable_hash_tag_needs_unsharded_messages() {
    let cluster = Cluster::start(2, 0, &Settings::default());
    let locks = connect(&cluster.url(), LEASE).await.unwrap();
    let builder = LockManager::builder(&cluster.url());
    let everywhere = builder.configure(|config| config.sharded_pubsub = ShardedPubSub::Off);
    let everywhere = everywhere.connect().await.unwrap();
    let names = ["x{}y", "{}", "b{r", "}{", "{}x", "orders:42}"];
    for name in names {
        let error = locks.lock(name).acquire().await.unwrap_err();
        assert!(matches!(&error, LockError::NoCommonSlot { lock, .. } if lock == name), "{name}: {error}");
        assert_eq!(error.outcome(), Outcome::NotSent);
        assert!(matches!(locks.lock(name).force_release().await, Err(LockError::NoCommonSlot { .. })));
        assert!(matches!(locks.simple_lock(name).acquire().await, Err(LockError::NoCommonSlot { .. })));
        let set = multi_lock([locks.lock("fine"), locks.lock(name)]).unwrap();
        assert!(matches!(set.try_acquire().await, Err(LockError::NoCommonSlot { .. })));

        let lock = everywhere.lock(name);
        let guard = lock.acquire().await.unwrap();
        let waiter = tokio::spawn(async move { lock.acquire().await });
        assert!(eventually(NO_HANG, async || everywhere.metrics().waiting == 1).await);
        guard.release().await.unwrap();
        // Without a message, the waiter would poll after 5 s.
        let woken = timeout(Duration::from_secs(4), waiter).await.expect("woken").unwrap();
        woken.unwrap().release().await.unwrap();
    }
    let server = wheellock_tests::RedisServer::start();
    let alone = connect(&server.url(), LEASE).await.unwrap();
    for name in names {
        alone.lock(name).acquire().await.expect("only clusters have slots").release().await.unwrap();
    }
}

#[tokio::test]
async fn t12_unserved_slot_fails_calls_by_deadline() {
    let settings = Settings::default().arg("cluster-require-full-coverage", "no");
    let mut cluster = Cluster::start(3, 0, &settings);
    let locks = LockManager::builder(&cluster.url())
        .configure(|config| config.response_timeout = Duration::from_millis(700))
        .connect()
        .await
        .unwrap();
    let victim = cluster.owner_of_key("orders");
    let other =
        (0..).map(|n| format!("other:{n}")).find(|name| cluster.owner_of_key(name) != victim).unwrap();
    cluster.nodes_mut()[victim].kill();
    let error = locks.lock("orders").try_acquire().await.unwrap_err();
    assert!(!error.to_string().is_empty());
    // The rest of the cluster is up.
    locks.lock(&other).acquire().await.unwrap().release().await.unwrap();
    cluster.nodes_mut()[victim].restart();
    let back = async || locks.lock("orders").try_acquire().await.is_ok_and(|guard| guard.is_acquired());
    assert!(eventually(NO_HANG, back).await, "it is served again");
}

#[tokio::test]
async fn t12_cluster_down_differs_from_busy_lock() {
    let mut cluster = Cluster::start(3, 0, &Settings::default());
    let locks = LockManager::builder(&cluster.url())
        .configure(|config| config.response_timeout = Duration::from_millis(700))
        .connect()
        .await
        .unwrap();
    let dead = cluster.owner_of_key("orders");
    let alive = (0..).map(|n| format!("other:{n}")).find(|name| cluster.owner_of_key(name) != dead).unwrap();
    cluster.nodes_mut()[dead].kill();
    let down = async || {
        let error = locks.lock(&alive).try_acquire_for(Duration::from_millis(100)).await;
        error.is_err_and(|error| error.to_string().contains("CLUSTERDOWN"))
    };
    assert!(eventually(NO_HANG, down).await);
    cluster.nodes_mut()[dead].restart();
    let back = async || locks.lock(&alive).try_acquire().await.is_ok_and(|guard| guard.is_acquired());
    assert!(eventually(NO_HANG, back).await);
}

#[tokio::test]
async fn t13_waiters_follow_moving_slot() {
    let cluster = Cluster::start(3, 0, &Settings::default());
    let (here, there) =
        (connect(&cluster.url(), LEASE).await.unwrap(), connect(&cluster.url(), LEASE).await.unwrap());
    assert_eq!(here.client().publish_verb(), "SPUBLISH");
    let slot = slot_of(b"orders");
    for round in 0..20 {
        let guard = here.lock("orders").acquire().await.unwrap();
        let waiter = tokio::spawn({
            let lock = there.lock("orders");
            async move { lock.acquire().await }
        });
        let owner = cluster.owner_of(slot);
        let listens =
            |node: usize| cluster.nodes()[node].cli(&["PUBSUB", "SHARDNUMSUB", CHANNEL]).ends_with('1');
        assert!(eventually(NO_HANG, async || listens(owner)).await, "round {round}");
        let to = (owner + 1) % 3;
        cluster.move_slot(slot, to);
        assert!(
            eventually(NO_HANG, async || listens(to)).await,
            "round {round}: it listens on the new owner"
        );
        assert!(guard.is_valid());
        guard.release().await.unwrap();
        let woken = timeout(LEASE / 3, waiter).await.unwrap_or_else(|_| panic!("round {round}: not woken"));
        woken.unwrap().unwrap().release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t13_slot_moves_lose_nothing_under_load() {
    let cluster = Cluster::start(3, 0, &Settings::default());
    let locks = connect(&cluster.url(), LEASE).await.unwrap();
    let mut held = Vec::new();
    for lock in 0..LOCKS {
        held.push(locks.lock(&format!("{{{}}}:held", Load::lock_name(lock))).acquire().await.unwrap());
    }
    let load = Load::start(&locks, 16);
    let cluster = tokio::task::spawn_blocking(move || {
        for step in 0..40 {
            let slot = slot_of(Load::lock_name(step % LOCKS).as_bytes());
            cluster.move_slot(slot, (cluster.owner_of(slot) + 1) % 3);
        }
        cluster
    });
    let cluster = timeout(NO_HANG, cluster).await.unwrap().unwrap();
    for lock in 0..LOCKS {
        assert!(load.goes_on(lock).await, "{} is stuck", load.name(lock));
    }
    let errors = load.end().await;
    assert!(errors.is_empty(), "a move costs no errors: {errors:?}");
    for guard in held {
        assert!(guard.is_valid());
        guard.release().await.unwrap();
    }
    drop(cluster);
}

#[tokio::test]
async fn t14_empty_replacement_node_ends_leases() {
    let mut cluster = Cluster::start(3, 1, &Settings::default());
    let locks = connect(&cluster.url(), SHORT).await.unwrap();
    let guard = locks.lock("orders").acquire().await.unwrap();
    let victim = cluster.owner_of_key("orders");
    // Redis 7.0 never fails over such a node. The other nodes drop its address and keep waiting for it.
    cluster.replace(victim);
    timeout(NO_HANG, guard.lost()).await.expect("nobody answers for the slot, so its leases end");
    assert!(!guard.is_valid());
    // A request may be under way when the client learns that the node is gone.
    let is_refused = async || {
        let refused = locks.lock("orders").try_acquire().await;
        refused.is_err_and(|error| error.outcome() != Outcome::MaybeExecuted)
    };
    assert!(eventually(NO_HANG, is_refused).await, "no request can be sent any more");
    cluster.heal();
    let served = async || locks.lock("orders").try_acquire().await.is_ok_and(|guard| guard.is_acquired());
    assert!(eventually(NO_HANG, served).await, "the clean node's scripts are loaded anew");
}

/// D2: with `ShardedPubSub::Off`, we notify processes without sharded pub/sub, such as Redisson before 3.28, and they notify us.
#[tokio::test]
async fn unsharded_notifications_work_both_ways() {
    let cluster = Cluster::start(3, 0, &Settings::default());
    let unsharded = |config: &mut Config| config.sharded_pubsub = ShardedPubSub::Off;
    let locks = LockManager::builder(&cluster.url()).configure(unsharded).connect().await.unwrap();
    assert_eq!(locks.client().publish_verb(), "PUBLISH");
    let lock = locks.lock("orders");
    let owner = cluster.owner_of_key("orders");
    let (here, there) = (&cluster.nodes()[owner], &cluster.nodes()[(owner + 1) % 3]);

    // Their waiter subscribes at any node, because the bus of the cluster carries messages to all nodes.
    for node in [here, there] {
        let guard = lock.acquire().await.unwrap();
        let mut theirs = node.connect().unwrap();
        assert_eq!(
            theirs.query(&["SUBSCRIBE", CHANNEL]).unwrap().to_string(),
            format!("subscribe\n{CHANNEL}\n1")
        );
        guard.release().await.unwrap();
        assert_eq!(theirs.read_reply().unwrap().to_string(), format!("message\n{CHANNEL}\n0"));
    }

    // Their holder publishes on the lock's node, as their script does, or on any node.
    for node in [here, there] {
        assert_eq!(here.cli(&["HSET", "orders", "8a3ba4a9-51d9-4eb3-a2ee-7a3ba0dfd9f4:1", "1"]), "1");
        assert_eq!(here.cli(&["PEXPIRE", "orders", "60000"]), "1");
        let ours = tokio::spawn({
            let lock = lock.clone();
            async move { lock.acquire().await }
        });
        let listens = || here.cli(&["PUBSUB", "NUMSUB", CHANNEL]) == format!("{CHANNEL}\n1");
        assert!(eventually(NO_HANG, async || locks.metrics().waiting == 1 && listens()).await);
        assert_eq!(here.cli(&["DEL", "orders"]), "1");
        let _receivers_on_this_node = node.cli(&["PUBLISH", CHANNEL, "0"]);
        let guard = timeout(WOKEN, ours).await.expect("woken, not told by the clock").unwrap().unwrap();
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn single_connection_suggests_cluster_url() {
    let cluster = Cluster::start(1, 0, &Settings::default());
    let error = Client::connect(cluster.nodes()[0].tcp_url().parse().unwrap()).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Unsupported && error.detail().contains("redis+cluster://"), "{error}");
}

/// Two nodes that share all slots, and reply to every call as a test says.
struct Ring {
    nodes: Vec<FakeServer>,
    asked: Arc<AtomicUsize>,
}

impl Ring {
    fn start(answer: impl Fn(usize, &[u16], u16) -> String + Send + Sync + 'static) -> Self {
        let asked = Arc::new(AtomicUsize::new(0));
        let ports = Arc::new(Mutex::new(Vec::new()));
        let answer = Arc::new(answer);
        let node = |number: usize| {
            let (asked, ports, answer) = (Arc::clone(&asked), Arc::clone(&ports), Arc::clone(&answer));
            FakeServer::start(move |_, session| Self::serve(session, number, &asked, &ports, &*answer))
        };
        let nodes = vec![node(0), node(1)];
        *ports.lock().unwrap() = nodes.iter().map(|node| node.addr().port()).collect();
        Self { nodes, asked }
    }

    fn config(&self) -> Config {
        let addresses: Vec<_> = self.nodes.iter().map(|node| node.addr().to_string()).collect();
        format!("redis+cluster://{}", addresses.join(",")).parse().unwrap()
    }

    fn serve(
        session: &mut Session,
        number: usize,
        asked: &AtomicUsize,
        ports: &Mutex<Vec<u16>>,
        answer: &dyn Fn(usize, &[u16], u16) -> String,
    ) -> io::Result<()> {
        loop {
            let command = session.command()?;
            let ports = ports.lock().unwrap().clone();
            let words: Vec<_> = command.iter().map(|word| String::from_utf8_lossy(word)).collect();
            match &*words.iter().map(|word| &**word).collect::<Vec<_>>() {
                ["HELLO", ..] => {
                    session.send("%3\r\n+proto\r\n:3\r\n+mode\r\n+cluster\r\n+role\r\n+master\r\n")?;
                }
                ["CLUSTER", "NODES"] => {
                    let line = |node: usize, slots: &str| {
                        let (id, myself) =
                            ("ab"[node..=node].repeat(40), if node == number { "myself," } else { "" });
                        format!(
                            "{id} 127.0.0.1:{}@1 {myself}master - 0 0 {} connected {slots}\n",
                            ports[node],
                            node + 1
                        )
                    };
                    let text = line(0, "0-8191") + &line(1, "8192-16383");
                    session.send(format!("${}\r\n{text}\r\n", text.len()))?;
                }
                ["PUBSUB", ..] => session.send("*0\r\n")?,
                ["GET" | "SSUBSCRIBE", key] => {
                    asked.fetch_add(1, SeqCst);
                    session.send(answer(number, &ports, slot_of(key.as_bytes())))?;
                }
                _ => session.reply(&command)?,
            }
        }
    }
}

/// Tasks that take and release locks in many slots until the end of the test.
struct Load {
    served: Arc<Vec<AtomicUsize>>,
    errors: Arc<Mutex<Vec<Error>>>,
    stop: Arc<AtomicBool>,
    tasks: JoinSet<()>,
}

impl Load {
    fn start(locks: &LockManager, tasks: usize) -> Self {
        let served: Arc<Vec<AtomicUsize>> = Arc::new((0..LOCKS).map(|_| AtomicUsize::new(0)).collect());
        let (errors, stop) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let mut set = JoinSet::new();
        for task in 0..tasks {
            let (locks, served) = (locks.clone(), Arc::clone(&served));
            let (errors, stop) = (Arc::clone(&errors), Arc::clone(&stop));
            set.spawn(async move {
                while !stop.load(SeqCst) {
                    let place = task % LOCKS;
                    let lock = locks.lock(&Self::lock_name(place));
                    let taken = timeout(NO_HANG, lock.try_acquire_for(Duration::from_secs(5))).await;
                    let done = match taken.expect("no call hangs") {
                        Ok(Attempt::Acquired(guard)) => {
                            guard.release().await.map(|_| served[place].fetch_add(1, SeqCst))
                        }
                        Ok(Attempt::Held { .. }) => Ok(0),
                        Err(error) => Err(error),
                    };
                    if let Err(wheellock::Error::Server { source, .. }) = done {
                        errors.lock().unwrap().push(source);
                    }
                }
            });
        }
        Self { served, errors, stop, tasks: set }
    }

    fn lock_name(place: usize) -> String {
        format!("load:{place}")
    }

    fn name(&self, place: usize) -> String {
        Self::lock_name(place)
    }

    async fn goes_on(&self, place: usize) -> bool {
        let before = self.served[place].load(SeqCst);
        eventually(NO_HANG, async || self.served[place].load(SeqCst) >= before + 50).await
    }

    async fn end(mut self) -> Vec<Error> {
        self.stop.store(true, SeqCst);
        while let Some(ended) = timeout(NO_HANG, self.tasks.join_next()).await.expect("a task hangs") {
            ended.expect("a task panicked");
        }
        std::mem::take(&mut self.errors.lock().unwrap())
    }
}

/// Waits until the watchdog renews the lease.
async fn renewed(guard: &wheellock::Guard) {
    let before = guard.valid_until();
    let renewed = eventually(NO_HANG, async || guard.valid_until() > before || !guard.is_valid()).await;
    assert!(renewed && guard.is_valid(), "{guard:?}");
}

const LOCKS: usize = 8;
/// The channel of the lock `orders`.
const CHANNEL: &str = "redisson_lock__channel:{orders}";
/// The watchdog renews it every 5 s. An event before that did not need a renewal.
const LEASE: Duration = Duration::from_secs(15);
/// The watchdog renews it every 300 ms.
const SHORT: Duration = Duration::from_millis(900);
/// A failover takes two seconds and a half in these tests, and several times as long on a busy machine.
const NO_HANG: Duration = Duration::from_secs(30);

/// The keys of every kind are in the lock's slot, and its messages reach the waiters.
#[tokio::test]
async fn every_kind_works_in_a_cluster() {
    let cluster = Cluster::start(3, 0, &Settings::default());
    let locks = connect(&cluster.url(), LEASE).await.unwrap();
    let others = connect(&cluster.url(), LEASE).await.unwrap();
    for name in ["orders", "{shop}:orders", "a b", "x"] {
        let kinds = |locks: &LockManager| {
            [
                locks.fair_lock(name),
                locks.read_write_lock(name).read(),
                locks.read_write_lock(name).write(),
                locks.fenced_lock(name).as_lock().clone(),
                locks.simple_lock(name),
            ]
        };
        for (lock, other) in kinds(&locks).into_iter().zip(kinds(&others)) {
            let guard = lock.acquire().await.unwrap();
            guard.renew().await.unwrap();
            let again = other.clone();
            let waiting = tokio::spawn(async move { again.try_acquire_for(NO_HANG).await });
            guard.release().await.unwrap();
            let guard = waiting.await.unwrap().unwrap().acquired().expect("it is told");
            guard.release().await.unwrap();
        }
        // A reader blocks a writer of another manager.
        let (near, far) = (locks.read_write_lock(name), others.read_write_lock(name));
        let reading = near.read().acquire().await.unwrap();
        let write = far.write();
        let waiting = tokio::spawn(async move { write.acquire().await });
        assert!(eventually(NO_HANG, async || others.metrics().waiting == 1).await);
        reading.release().await.unwrap();
        let writing = waiting.await.unwrap().unwrap();
        assert!(!near.read().try_acquire().await.unwrap().is_acquired());
        writing.release().await.unwrap();
    }
    let one = NonZeroU32::MIN;
    for name in ["pool", "{shop}:pool", "a b", "x{t}y"] {
        let (near, far) = (locks.semaphore(name), others.semaphore(name));
        assert!(near.try_set_permits(2).await.unwrap());
        let permits = near.acquire(2).await.unwrap();
        let waiting = tokio::spawn(async move { far.acquire(1).await.unwrap() });
        assert!(eventually(NO_HANG, async || others.metrics().waiting == 1).await);
        permits.release().await.unwrap();
        let next = waiting.await.unwrap();
        next.release().await.unwrap();
        assert_eq!((near.drain().await.unwrap(), near.add_permits(-1).await.unwrap()), (2, -1));
        assert!(near.delete().await.unwrap());

        let (near, far) = (locks.permit_semaphore(name), others.permit_semaphore(name));
        assert_eq!(near.set_permits(1).await.unwrap(), 1);
        let permit = near.acquire().await.unwrap();
        permit.renew().await.unwrap();
        let waiting = tokio::spawn(async move { far.acquire().await.unwrap() });
        assert!(eventually(NO_HANG, async || others.metrics().waiting == 1).await);
        assert!(near.release(permit.id()).await.unwrap());
        let next = waiting.await.unwrap();
        assert_eq!(near.permits().await.unwrap(), 1);
        next.release().await.unwrap();
        assert!(near.delete().await.unwrap());

        let (near, far) = (locks.count_down_latch(name), others.count_down_latch(name));
        for how in ["count down", "delete"] {
            assert!(near.try_set_count(one).await.unwrap());
            let far = far.clone();
            let waiting = tokio::spawn(async move { far.wait().await.unwrap() });
            assert!(eventually(NO_HANG, async || others.metrics().waiting == 1).await);
            if how == "delete" {
                assert!(near.delete().await.unwrap());
            } else {
                assert_eq!(near.count_down().await.unwrap(), 0);
            }
            waiting.await.unwrap();
        }
    }
    assert!(matches!(locks.semaphore("odd}").try_acquire(1).await, Err(LockError::NoCommonSlot { .. })));
    assert!(matches!(locks.permit_semaphore("odd}").delete().await, Err(LockError::NoCommonSlot { .. })));
    assert!(matches!(
        locks.count_down_latch("odd}").try_set_count(one).await,
        Err(LockError::NoCommonSlot { .. })
    ));
    // A name that no slot can hold together is refused before a request is sent.
    for lock in [locks.fair_lock("odd}"), locks.read_write_lock("odd{").read()] {
        assert!(matches!(lock.try_acquire().await, Err(LockError::NoCommonSlot { .. })));
    }
}
