//! Clusters that announce names beside unreachable addresses.
//!
//! The settings are `cluster-announce-hostname` and `cluster-preferred-endpoint-type`.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::timeout;
use wheellock::LockManager;
use wheellock_client::{Address, Config, Translate, slot_of};
use wheellock_tests::topology::{Cluster, Settings};
use wheellock_tests::{RedisServer, poll_until};

/// The tests share a cluster, because the restart of its nodes takes longer than the tests.
#[tokio::test]
async fn preferred_endpoints_of_cluster_are_connected() {
    let cluster = announcing("localhost");
    preferred_names_are_connected(&cluster).await;
    moved_to_name_is_followed(&cluster).await;
    translate_sees_name_and_ip(&cluster).await;
    prefer(&cluster, "unknown-endpoint");
    serves_every_node(&cluster, &connect(&cluster, |_| {}).await).await;
    prefer(&cluster, "ip");
    unreachable_address_names_its_source(&cluster).await;
}

#[tokio::test]
async fn unnamed_nodes_are_connected_by_ip() {
    let cluster = Cluster::start(2, 0, &Settings::default());
    prefer(&cluster, "hostname");
    serves_every_node(&cluster, &connect(&cluster, |_| {}).await).await;
}

async fn preferred_names_are_connected(cluster: &Cluster) {
    let locks = connect(cluster, |_| {}).await;
    serves_every_node(cluster, &locks).await;
    for node in locks.client().nodes() {
        assert!(node.server_address().starts_with("localhost:"), "{}", node.server_address());
    }
}

/// Checks that a move to a name is followed. The test cuts the bus, so only the two nodes of the move know of it.
async fn moved_to_name_is_followed(cluster: &Cluster) {
    let locks = connect(cluster, |_| {}).await;
    let slot = slot_of(b"moves");
    let (from, to) = (cluster.owner_of(slot), 1 - cluster.owner_of(slot));
    locks.lock("moves").acquire().await.unwrap().release().await.unwrap();
    cluster.begin_move(slot, to);
    cluster.finish_move(slot, to);
    assert!(cluster.nodes()[from].cli(&["GET", "moves"]).contains("localhost:"), "a node redirects by name");
    let acquired = timeout(PATIENCE, locks.lock("moves").acquire()).await.expect("a redirection is followed");
    assert_eq!(cluster.nodes()[to].cli(&["EXISTS", "moves"]), "1");
    acquired.unwrap().release().await.unwrap();
}

/// Checks that the client uses the address that the translator changes, for the name and for the IP address.
async fn translate_sees_name_and_ip(cluster: &Cluster) {
    for known in ["localhost", NOWHERE] {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let locks = connect(cluster, |config| config.translate = Some(translate(known, &seen))).await;
        serves_every_node(cluster, &locks).await;
        for node in locks.client().nodes() {
            assert!(node.server_address().starts_with("127.0.0.1:"), "{}", node.server_address());
        }
        let seen = seen.lock().unwrap();
        for host in ["localhost", NOWHERE] {
            assert!(seen.iter().any(|seen| seen == host), "{known}: {seen:?}");
        }
    }
}

async fn unreachable_address_names_its_source(cluster: &Cluster) {
    let patience = |config: &mut Config| config.connect_timeout = Duration::from_millis(500);
    let connected = LockManager::builder(&url(cluster)).configure(patience).connect().await;
    let error = connected.expect_err("the address leads nowhere").to_string();
    assert!(error.contains(NOWHERE), "{error}");
    assert!(error.contains("localhost:") && error.contains("announces this address"), "{error}");
    assert!(error.contains("Config::translate"), "{error}");
}

/// Returns a translator that maps the host `known` to the loopback address and returns any other address unchanged.
fn translate(known: &'static str, seen: &Arc<Mutex<Vec<String>>>) -> Translate {
    let seen = Arc::clone(seen);
    Arc::new(move |address| {
        let Address::Tcp { host, port } = address else { return None };
        seen.lock().unwrap().push(host.clone());
        let host = if host == known { "127.0.0.1" } else { host };
        Some(Address::Tcp { host: host.to_owned(), port: *port })
    })
}

/// Starts two masters that announce and prefer `name`, beside an unreachable address.
///
/// That address breaks the bus between the nodes. A long node timeout keeps the cluster up without the bus.
fn announcing(name: &str) -> Cluster {
    let settings = Settings::default()
        .arg("cluster-node-timeout", "3600000")
        .arg("cluster-announce-hostname", name)
        .arg("cluster-preferred-endpoint-type", "hostname");
    let mut cluster = Cluster::start(2, 0, &settings);
    let names = |node: &RedisServer| node.cli(&["CLUSTER", "NODES"]).matches(name).count();
    assert!(poll_until(PATIENCE, || cluster.nodes().iter().all(|node| names(node) == 2)));
    for node in cluster.nodes_mut() {
        assert_eq!(node.cli(&["CONFIG", "SET", "cluster-announce-ip", NOWHERE]), "OK");
        assert_eq!(node.cli(&["CONFIG", "REWRITE"]), "OK");
        node.kill();
        // Only a PING over the bus would announce the address to the other nodes, and the first PING breaks the bus.
        let known = node.directory().join("nodes.conf");
        let nodes = std::fs::read_to_string(&known).unwrap();
        std::fs::write(&known, nodes.replace("127.0.0.1:", &format!("{NOWHERE}:"))).unwrap();
    }
    cluster.nodes_mut().iter_mut().for_each(RedisServer::restart);
    let is_up = |node: &RedisServer| node.cli(&["CLUSTER", "INFO"]).contains("cluster_state:ok");
    assert!(poll_until(PATIENCE, || cluster.nodes().iter().all(is_up)));
    cluster
}

fn prefer(cluster: &Cluster, endpoint: &str) {
    for node in cluster.nodes() {
        assert_eq!(node.cli(&["CONFIG", "SET", "cluster-preferred-endpoint-type", endpoint]), "OK");
    }
}

/// Connects by the name `localhost`, which reaches every node.
async fn connect(cluster: &Cluster, configure: impl FnOnce(&mut Config)) -> LockManager {
    let connected = LockManager::builder(&url(cluster)).configure(configure).connect().await;
    connected.unwrap_or_else(|error| panic!("cannot connect: {error}"))
}

fn url(cluster: &Cluster) -> String {
    let of = |node: &RedisServer| format!("localhost:{}", node.addr().port());
    let addresses: Vec<_> = cluster.nodes().iter().map(of).collect();
    format!("redis+cluster://{}", addresses.join(","))
}

/// Takes a lock on each node.
async fn serves_every_node(cluster: &Cluster, locks: &LockManager) {
    for (index, node) in cluster.nodes().iter().enumerate() {
        let mut names = (0..).map(|number| format!("lock:{number}"));
        let name = names.find(|name| cluster.owner_of_key(name) == index).unwrap();
        let guard = locks.lock(&name).acquire().await.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(node.cli(&["EXISTS", &name]), "1");
        guard.release().await.unwrap();
    }
}

/// An address that does not belong to a machine (RFC 5737).
const NOWHERE: &str = "192.0.2.1";
const PATIENCE: Duration = Duration::from_secs(20);
