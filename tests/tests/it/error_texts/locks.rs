//! Texts of the lock layer.
//!
//! The library produces most of them with a server in memory. The others are built here in the same way.

use std::sync::Arc;
use std::time::Duration;

use wheellock::testing::{Double, Outage};
use wheellock::{Durability, Error, Finding, Fleet, LockManager, LostReason, Outcome, Ticket};
use wheellock_tests::RedisServer;

use super::{Row, fixed, row};

pub(super) async fn rows() -> Vec<Row> {
    let mut rows = made_by_calls().await;
    rows.extend(refused_writes().await);
    rows.extend(given().into_iter().map(|(situation, error)| fixed(situation, error)));
    rows
}

/// Errors of calls, from a server in memory.
async fn made_by_calls() -> Vec<Row> {
    let double = Double::new();
    let locks = double.manager().await.unwrap();
    let short = Duration::from_millis(1);
    let mut rows = vec![
        fixed("An empty name", locks.lock("").try_acquire().await.unwrap_err()),
        fixed(
            "A lease that cannot be believed",
            locks.lock("orders").with_lease(short).try_acquire().await.unwrap_err(),
        ),
    ];
    let other = double.manager().await.unwrap();
    let foreign = locks.lock("orders").with_owner(other.owner()).try_acquire().await;
    let foreign = foreign.unwrap_err().to_string();
    let known = foreign.split(' ').nth(1).map(|owner| foreign.replace(owner, "1a2b..:1"));
    rows.push(fixed("An owner of another manager", known.unwrap()));
    let held = locks.simple_lock("orders").acquire().await.unwrap();
    rows.push(fixed(
        "Another kind of lock under the name",
        locks.lock("orders").try_acquire().await.unwrap_err(),
    ));
    let refused = other.simple_lock("orders").try_acquire().await.unwrap();
    rows.push(fixed("A lock that another holder has", refused.or_held().unwrap_err()));
    drop(held);
    double.outage(Outage::Down);
    rows.push(fixed("A server that is away", locks.lock("orders").try_acquire().await.unwrap_err()));
    let _left = locks.shutdown(Duration::ZERO).await;
    rows.push(fixed("A manager that was shut down", locks.lock("orders").try_acquire().await.unwrap_err()));
    let nothing = LockManager::connect("http://localhost").await.unwrap_err();
    rows.push(fixed("A URL that cannot be used", nothing));
    rows
}

/// Errors of a server that temporarily does not accept writes.
async fn refused_writes() -> [Row; 2] {
    let server = RedisServer::start();
    let patience = Duration::from_millis(100);
    let builder = LockManager::builder(&server.url()).configure(|config| config.response_timeout = patience);
    let locks = builder.connect().await.unwrap();
    let held = locks.lock("orders").acquire().await.unwrap();
    assert_eq!(server.cli(&["CONFIG", "SET", "min-replicas-to-write", "1"]), "OK");
    let release = held.release().await.unwrap_err();
    let acquire = locks.lock("other").try_acquire().await.unwrap_err();
    let address = locks.client().server_address();
    let made = |situation, error: Error| {
        let Row { text, .. } = row(situation, &address, error);
        // Removes the script's hash and the place in the script.
        let (before, script) = text.split_once(" script: ").unwrap_or((&text, ""));
        let after = script.find('"').and_then(|end| script.get(end..)).unwrap_or_default();
        fixed(situation, format!("{before}{after}"))
    };
    [
        made("A lock of a server that takes no writes", acquire),
        made("A release to a server that takes no writes", release),
    ]
}

/// Errors that only a cluster, a quorum or a broken system can produce.
fn given() -> Vec<(&'static str, Error)> {
    let (lock, server) = ("orders".to_owned(), Arc::<str>::from("db:6379"));
    vec![
        (
            "In a cluster, a name whose keys are in several slots",
            Error::NoCommonSlot { lock: "orders:{".to_owned() },
        ),
        ("A lock whose holder's lease is not known", Error::Held { lock: lock.clone(), lease_left: None }),
        ("A long announcement of a leader", Error::AnnouncementTooLong { length: 5000 }),
        ("An empty label", Error::InvalidLabel { length: 0 }),
        ("A long reason of a request to release", Error::InvalidReason { length: 257 }),
        (
            "A script's reply of another type",
            Error::UnexpectedReply {
                operation: "acquire lock \"orders\"".to_owned(),
                reply: "reply of type map".to_owned(),
            },
        ),
        ("A reader that asks to write", Error::Upgrade { lock: lock.clone() }),
        ("A kind of lock without a minimum time", Error::NoMinHold { lock: lock.clone() }),
        ("A listing of a cluster", Error::NotInACluster { operation: "list locks".to_owned() }),
        (
            "A guard whose kind has no tickets",
            Error::NoTicket { lock: lock.clone(), kind: "read".to_owned() },
        ),
        (
            "A ticket that was cut",
            Error::InvalidTicket { reason: "wl1:00000000:lock".parse::<Ticket>().unwrap_err() },
        ),
        (
            "A ticket that was adopted before",
            Error::TicketEnded { lock: lock.clone(), server: Arc::clone(&server) },
        ),
        ("An owner that holds a lock that is not reentrant", Error::NotReentrant { lock: lock.clone() }),
        (
            "A grant that came after its lease",
            Error::GrantedTooLate { lock: lock.clone(), lease: Duration::from_secs(1) },
        ),
        (
            "Too few acknowledgements of a grant",
            Error::NotReplicated {
                lock: lock.clone(),
                server: Arc::clone(&server),
                extension: false,
                acked: 0,
                wanted: 1,
            },
        ),
        (
            "Too few acknowledgements of a renewal",
            Error::NotReplicated {
                lock: lock.clone(),
                server: Arc::clone(&server),
                extension: true,
                acked: 0,
                wanted: 1,
            },
        ),
        (
            "A durability that the server lacks",
            Error::UnsupportedDurability {
                durability: Durability::Replicas(0),
                reason: "at least one replica is needed to wait for one".to_owned(),
            },
        ),
        (
            "A shard that cannot keep its locks across a failover",
            Error::UnsupportedFleet {
                fleet: Fleet::of_servers(3),
                reason: "a shard of the cluster has none of the 16 slots that it needs".to_owned(),
            },
        ),
        (
            "A lease that is longer than that of the fleet",
            Error::LeaseTooLong { lease: Duration::from_secs(60), longest: Duration::from_secs(30) },
        ),
        (
            "A failover that is not over",
            Error::NotReady {
                lock: lock.clone(),
                reason: "3 of 4 processes have written their locks into the new server, and this lasts for 12s at most"
                    .to_owned(),
                outcome: Outcome::NotSent,
            },
        ),
        ("Work under a lock that was lost", Error::Lost { lock: lock.clone(), reason: LostReason::Expired }),
        (
            "A shutdown during the wait",
            Error::ShutDown { lock: lock.clone(), outcome: Outcome::MaybeExecuted },
        ),
        ("A multi lock of no locks", Error::NoMembers),
        (
            "A multi lock with one lock twice",
            Error::DuplicateMember { lock: lock.clone(), server: Arc::clone(&server) },
        ),
        (
            "Two servers of a quorum that are one",
            Error::NotIndependent {
                server: Arc::clone(&server),
                reason: "it is the same server as db-2:6379".to_owned(),
            },
        ),
        (
            "Too few servers of a quorum",
            Error::NoQuorum { lock, granted: 1, wanted: 2, failures: Vec::new() },
        ),
        (
            "Too few servers to make a quorum of",
            Error::NoQuorum { lock: String::new(), granted: 1, wanted: 2, failures: Vec::new() },
        ),
        ("A system without randomness", Error::NoRandomness),
        (
            "A system without another thread",
            Error::NoBackgroundThread { reason: "Resource temporarily unavailable".to_owned() },
        ),
    ]
}

pub(super) fn losses() -> Vec<Row> {
    [
        ("No renewal for a whole lease", LostReason::Expired),
        ("A forced release, or a deleted key", LostReason::NotOwner),
        ("A shutdown", LostReason::ShutDown),
        ("The end of `with_max_hold`", LostReason::HeldTooLong),
    ]
    .into_iter()
    .map(|(situation, reason)| fixed(situation, reason))
    .collect()
}

pub(super) fn findings() -> Vec<Row> {
    let server = Arc::<str>::from("db:6379");
    [
        (
            "A server that may evict locks",
            Finding::MayEvict { policy: "allkeys-lru".to_owned(), maxmemory: 100_000_000 },
        ),
        ("A server without an append-only file", Finding::ForgetsOnRestart),
        ("A permission that is missing", Finding::MissingPermission { command: "PUBLISH".to_owned() }),
        ("A command that is missing", Finding::MissingCommand { command: "SUBSCRIBE".to_owned() }),
        ("A server without Lua", Finding::MissingCommand { command: "EVAL".to_owned() }),
        (
            "A server that stands in for Redis in tests",
            Finding::SubscriptionBlocksCommands { reason: "ERR Can't execute 'eval'".to_owned() },
        ),
        ("A password that the server did not check", Finding::UncheckedPassword),
        ("A server that does not tell of changed keys", Finding::ChangesNotTold),
        ("An old server", Finding::UntestedVersion { version: "5.0.14".to_owned() }),
        ("A quorum member with replicas", Finding::HasReplicas { server: Arc::clone(&server), replicas: 1 }),
        (
            "A quorum member that cannot grant",
            Finding::UnusableMember {
                server,
                reason: "it is a replica, not a primary: locks live on the primary only".to_owned(),
            },
        ),
        ("Fewer replicas than acknowledgements", Finding::TooFewReplicas { connected: 0, wanted: 1 }),
        ("A fleet without a replica", Finding::NoReplica { servers: 3 }),
        ("A fleet with a server that is away", Finding::OtherServerCount { servers: 3, connected: 2 }),
        ("A fleet with a server too many", Finding::OtherServerCount { servers: 3, connected: 4 }),
        ("A fleet whose primary writes without replicas", Finding::WritesWithoutReplicas),
        (
            "A permission of a fleet that is missing",
            Finding::MissingFleetPermission { rule: "+wait".to_owned() },
        ),
        (
            "No answer",
            Finding::Unknown {
                question: "what the user may do",
                reason: "servers before 7.0 cannot tell".to_owned(),
            },
        ),
    ]
    .into_iter()
    .map(|(situation, finding)| fixed(situation, finding))
    .collect()
}
