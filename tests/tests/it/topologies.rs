//! The support library's topologies. They come up, fail over, move slots, heal, speak TLS, and leave nothing behind.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use rustix::process::{Pid, test_kill_process};
use wheellock_tests::topology::{Cluster, Replicas, SERVICE, SentinelSet, Settings};
use wheellock_tests::{RedisServer, poll_until};

const LONG: Duration = Duration::from_secs(20);
const PASSWORD: &str = "open-sesame";

#[test]
fn replicas_follow_promoted_primary() {
    let mut set = Replicas::start(2, &Settings::default());
    assert_eq!(set.url(), format!("redis://{}", addresses(set.servers())));
    assert_eq!((set.primary_index(), set.replicas().count()), (0, 2));
    assert_eq!(write(set.primary(), 2, &["SET", "key", "1"]), "OK");
    for replica in set.replicas() {
        assert_eq!(replica.cli(&["GET", "key"]), "1");
        assert!(replica.cli(&["SET", "key", "2"]).starts_with("(error) READONLY"));
    }

    // The old primary lives, and follows the new primary.
    set.promote(1);
    assert_eq!(set.servers()[1].addr(), set.primary().addr());
    assert_eq!(write(set.primary(), 2, &["INCR", "key"]), "2");

    // The old primary is dead, and comes back as a primary.
    set.servers_mut()[1].kill();
    set.promote(2);
    assert_eq!(write(set.primary(), 1, &["INCR", "key"]), "3");
    set.servers_mut()[1].restart();
    assert!(set.servers()[1].cli(&["ROLE"]).starts_with("master"));
    set.heal();
    assert_eq!(set.primary_index(), 2);
    assert_eq!(set.servers()[1].cli(&["GET", "key"]), "3");

    // Roles outlive a restart.
    set.servers_mut()[0].restart();
    assert!(poll_until(LONG, || set.primary().cli(&["ROLE"]).lines().count() > 3));
    left_nothing(traces(set.servers()), || drop(set));
}

#[test]
fn sentinels_replace_dead_or_paused_primary() {
    let mut set = SentinelSet::start(&Settings::default());
    assert_eq!(set.url(), format!("redis+sentinel://{}/mymaster", addresses(set.sentinels())));
    assert_eq!(set.primary_index(), 0);

    set.servers_mut()[0].kill();
    let second = set.wait_for_new_primary(set.servers()[0].addr());
    assert_ne!(second, 0);
    set.heal();
    // The primary is not `second` if the machine was stopped meanwhile, because the Sentinels have then replaced it, too.
    let second = set.primary_index();
    for (place, server) in set.servers().iter().enumerate() {
        let role = if place == second { "master" } else { "slave" };
        assert!(server.cli(&["ROLE"]).starts_with(role), "{place}");
    }

    set.servers()[second].pause();
    let third = set.wait_for_new_primary(set.servers()[second].addr());
    assert_ne!(third, second);
    set.servers()[second].resume();
    set.heal();
    let third = set.primary_index();

    // The Sentinels agree on changes that a paused or dead Sentinel has missed.
    set.sentinels()[0].pause();
    set.sentinels_mut()[1].kill();
    set.heal();
    let fourth = set.failover();
    assert_ne!(fourth, third);
    assert_eq!(write(set.primary(), 2, &["SET", "key", "1"]), "OK");
    let mut all = traces(set.servers());
    all.extend(traces(set.sentinels()));
    left_nothing(all, || drop(set));
}

/// A Sentinel gives up a failover if the replica does not become a primary in time, as on a busy machine. It never tries again.
#[test]
fn given_up_failover_is_ordered_again() {
    let set = SentinelSet::start(&Settings::default());
    let old = set.primary_index();
    let is_failing_over = || {
        let says = |sentinel: &RedisServer| sentinel.cli(&["SENTINEL", "MASTER", SERVICE]);
        set.sentinels().iter().any(|sentinel| says(sentinel).contains("failover_in_progress"))
    };
    let replicas = || set.servers().iter().enumerate().filter(|(index, _)| *index != old);
    let new = std::thread::scope(|threads| {
        let failover = threads.spawn(|| set.failover());
        assert!(poll_until(LONG, is_failing_over));
        replicas().for_each(|(_, replica)| replica.pause());
        assert!(poll_until(LONG, || !is_failing_over()), "the Sentinel gives up");
        replicas().for_each(|(_, replica)| replica.resume());
        failover.join().unwrap()
    });
    assert_ne!(new, old);
}

/// E9: a topology that has settled streams to every replica. A later write is on its way to all replicas.
#[test]
fn settled_topology_streams_to_replicas() {
    let mut set = Replicas::start(2, &Settings::default());
    assert_streams(set.primary(), 2);
    set.servers_mut()[1].restart_clean();
    set.heal();
    assert_streams(set.primary(), 2);
    drop(set);

    let mut set = SentinelSet::start(&Settings::default());
    assert_streams(set.primary(), 2);
    let old = set.primary_index();
    set.servers_mut()[old].kill();
    let _new = set.wait_for_new_primary(set.servers()[old].addr());
    set.heal();
    assert_streams(set.primary(), 2);
    drop(set);

    let mut cluster = Cluster::start(3, 1, &Settings::default());
    (0..3).for_each(|master| assert_streams(&cluster.nodes()[master], 1));
    for _ in 0..2 {
        let old = cluster.owner_of(0);
        cluster.nodes_mut()[old].kill();
        cluster.wait_ok();
        cluster.heal();
        assert_streams(&cluster.nodes()[cluster.owner_of(0)], 1);
    }
}

#[test]
fn slot_moves_immediately_or_stepwise() {
    let set = Cluster::start(3, 1, &Settings::default());
    assert_eq!(set.url(), format!("redis+cluster://{}", addresses(set.nodes())));
    assert_eq!([0, 6_000, 16_383].map(|slot| set.owner_of(slot)), [0, 1, 2]);
    assert_eq!([0, 1, 2].map(|master| set.replicas_of(master)), [vec![3], vec![4], vec![5]]);

    let slot = set.slot_of("{tag}");
    let from = set.owner_of_key("{tag}");
    let (to, other) = ((from + 1) % 3, (from + 2) % 3);
    let [old, new] = [from, to].map(|index| &set.nodes()[index]);
    let keys: Vec<_> = (0..25).map(|number| format!("{{tag}}{number}")).collect();
    for key in &keys {
        assert_eq!(old.cli(&["SET", key, key]), "OK");
    }
    let moved_to = |index: usize| format!("(error) MOVED {slot} {}", set.nodes()[index].addr());
    assert_eq!(new.cli(&["GET", &keys[0]]), moved_to(from));

    // The slot moves step by step.
    set.begin_move(slot, to);
    assert_eq!(old.cli(&["GET", &keys[0]]), keys[0]);
    assert_eq!(old.cli(&["GET", "{tag}new"]), format!("(error) ASK {slot} {}", new.addr()));
    assert_eq!(new.cli(&["GET", "{tag}new"]), moved_to(from));
    assert_eq!(set.migrate_keys(slot, to, 10), 10);
    let [here, there]: [Vec<_>; 2] = {
        let is_here = |key: &&String| !old.cli(&["GET", key]).starts_with("(error) ASK");
        let (here, there) = keys.iter().partition(is_here);
        [here, there]
    };
    assert_eq!((here.len(), there.len()), (15, 10));
    assert!(old.cli(&["MGET", here[0], there[0]]).starts_with("(error) TRYAGAIN"));
    let mut asking = new.connect().unwrap();
    assert_eq!(asking.query(&["ASKING"]).unwrap().to_string(), "OK");
    assert_eq!(asking.query(&["GET", there[0]]).unwrap().to_string(), *there[0]);
    while set.migrate_keys(slot, to, 10) > 0 {}
    set.finish_move(slot, to);
    assert_eq!(set.owner_of(slot), to);
    set.wait_ok();
    for key in &keys {
        assert_eq!(new.cli(&["GET", key]), *key);
        assert_eq!(old.cli(&["GET", key]), moved_to(to));
    }

    // The slot moves at once. When the call returns, all nodes know of the move.
    set.move_slot(slot, other);
    for index in [from, to] {
        assert_eq!(set.nodes()[index].cli(&["GET", &keys[0]]), moved_to(other));
    }
    assert_eq!(set.nodes()[other].cli(&["CLUSTER", "COUNTKEYSINSLOT", &slot.to_string()]), "25");

    // A move that has begun is cancelled.
    set.begin_move(slot, from);
    set.cancel_move(slot, from);
    assert_eq!(set.nodes()[other].cli(&["GET", "{tag}new"]), "(nil)");
    left_nothing(traces(set.nodes()), || drop(set));
}

#[test]
fn cluster_survives_deaths_pauses_and_replacements() {
    let mut set = Cluster::start(3, 1, &Settings::default());
    let (key, slot) = ("{tag}", set.slot_of("{tag}"));
    let master = set.owner_of(slot);
    let [replica] = set.replicas_of(master)[..] else { panic!("one replica each") };
    assert_eq!(write(&set.nodes()[master], 1, &["SET", key, "kept"]), "OK");

    set.nodes_mut()[master].kill();
    set.wait_ok();
    assert_eq!(set.owner_of(slot), replica);
    assert_eq!(set.nodes()[replica].cli(&["GET", key]), "kept");
    set.heal();
    assert_eq!(set.replicas_of(replica), [master]);

    set.failover(master);
    assert_eq!(set.owner_of(slot), master);

    set.nodes()[master].pause();
    assert!(poll_until(LONG, || set.owner_of(slot) == replica));
    set.nodes()[master].resume();
    set.heal();
    assert_eq!(set.replicas_of(replica), [master]);

    // A master is replaced in the middle of a slot's move. Its replica takes over, and knows nothing of the move.
    let target = (0..3).find(|index| ![master, replica].contains(index)).unwrap();
    set.begin_move(slot, target);
    let addr = set.nodes()[replica].addr();
    set.replace(replica);
    assert_eq!(set.nodes()[replica].addr(), addr);
    assert!(set.nodes()[replica].cli(&["GET", key]).starts_with("(error) CLUSTERDOWN"));
    assert_eq!(set.nodes()[replica].cli(&["DBSIZE"]), "0");
    // The replica asks the clean node for a copy once a second. With a copy it would be as empty as that node.
    assert!(poll_until(LONG, || set.nodes()[master].log().contains("Unable to AUTH to")));
    set.heal();
    assert_eq!(set.owner_of(slot), target, "the move is finished");
    assert_eq!(set.nodes()[target].cli(&["GET", key]), "kept");
    assert_eq!(set.replicas_of(master), [replica]);

    // A replica is replaced.
    set.replace(replica);
    set.heal();
    assert_eq!(set.replicas_of(master), [replica]);
    left_nothing(traces(set.nodes()), || drop(set));
}

#[test]
fn cluster_without_coverage_keeps_serving() {
    let settings = Settings::default().arg("cluster-require-full-coverage", "no");
    let mut set = Cluster::start(3, 0, &settings);
    assert_eq!(
        set.nodes()[1].cli(&["CONFIG", "GET", "cluster-require-full-coverage"]).lines().last(),
        Some("no")
    );
    set.nodes_mut()[0].kill();
    let info = || set.nodes()[1].cli(&["CLUSTER", "INFO"]);
    assert!(poll_until(LONG, || info().contains("cluster_slots_fail:5461")));
    assert!(info().contains("cluster_state:ok"));
    set.heal();
    assert_eq!(set.owner_of(0), 0);
}

#[test]
fn passwords_and_tls_in_every_topology() {
    let settings = Settings::default()
        .password(PASSWORD)
        .sentinel_password("another")
        .user("app", "p@ss", "~* &* +@all")
        .tls();
    assert!(settings.authority().is_some());
    let at = |servers: &[RedisServer]| format!("app:p%40ss@{}", addresses(servers));

    let mut set = Replicas::start(1, &settings);
    assert_eq!(set.url(), format!("rediss://{}", at(set.servers())));
    set.promote(1);
    set.heal();

    let mut set = SentinelSet::start(&settings);
    assert_eq!(set.url(), format!("rediss+sentinel://{}/mymaster", at(set.sentinels())));
    set.servers_mut()[0].kill();
    set.sentinels_mut()[0].restart();
    let _elected = set.wait_for_new_primary(set.servers()[0].addr());
    set.heal();
    assert!(set.servers()[0].trusted_file().exists());

    let mut set = Cluster::start(3, 1, &settings);
    assert_eq!(set.url(), format!("rediss+cluster://{}", at(set.nodes())));
    let (slot, from) = (set.slot_of("key"), set.owner_of_key("key"));
    assert_eq!(set.nodes()[from].cli(&["SET", "key", "kept"]), "OK");
    let to = (from + 1) % 3;
    set.move_slot(slot, to);
    assert_eq!(set.nodes()[to].cli(&["GET", "key"]), "kept");
    set.nodes_mut()[to].kill();
    set.wait_ok();
    set.heal();
}

/// Runs a command, and waits until `replicas` replicas have executed it, too.
fn write(server: &RedisServer, replicas: u8, command: &[&str]) -> String {
    let mut cli = server.connect().unwrap();
    let reply = cli.query(command).unwrap().to_string();
    let acks = cli.query(&["WAIT", &replicas.to_string(), "5000"]).unwrap().to_string();
    assert_eq!(acks, replicas.to_string());
    reply
}

fn addresses(servers: &[RedisServer]) -> String {
    servers.iter().map(|server| server.addr().to_string()).collect::<Vec<_>>().join(",")
}

/// Returns the process, the address and the directory of each server.
fn traces(servers: &[RedisServer]) -> Vec<(u32, SocketAddr, PathBuf)> {
    servers.iter().map(|server| (server.pid(), server.addr(), server.directory().to_owned())).collect()
}

/// Checks that a primary streams to its replicas. A primary that has fed a replica by a full sync need not stream yet. It streams once the
/// replica has acknowledged something on this link.
fn assert_streams(primary: &RedisServer, replicas: usize) {
    let info = primary.cli(&["INFO", "replication"]);
    let lines: Vec<_> = info.lines().filter(|line| line.contains(",state=")).collect();
    let streams = |line: &&&str| line.contains("state=online") && !line.contains("offset=0,");
    assert_eq!(lines.iter().filter(streams).count(), replicas, "{lines:?}");
}

fn left_nothing(traces: Vec<(u32, SocketAddr, PathBuf)>, dropped: impl FnOnce()) {
    dropped();
    for (pid, addr, directory) in traces {
        assert!(test_kill_process(Pid::from_raw(pid.cast_signed()).unwrap()).is_err(), "{pid} lives");
        assert!(std::net::TcpStream::connect(addr).is_err(), "{addr} listens");
        assert!(!directory.exists(), "{}", directory.display());
    }
}
