//! Members that a quorum refuses, or that cannot grant.

use std::time::{Duration, Instant};

use tokio::task::spawn_blocking;
use wheellock::client::Outcome;
use wheellock::{Error, Finding, LockManager, MemberState, RedLockManager};
use wheellock_tests::fault::{Gate, Proxy};
use wheellock_tests::locks::{PATIENCE, manager};
use wheellock_tests::topology::{Replicas, Settings};
use wheellock_tests::{RedisServer, eventually};

use super::{FAST, Fleet, held};

#[tokio::test]
async fn only_independent_servers_are_members() {
    let servers = [RedisServer::start(), RedisServer::start()];
    let proxy = Proxy::before(&servers[0]);
    let connected = async |url: &str| manager(url).await;
    let (a, b) = (connected(&servers[0].url()).await, connected(&servers[1].url()).await);
    let refused = async |managers: Vec<LockManager>, why: &str| {
        let error = RedLockManager::new(managers).await.unwrap_err();
        assert!(matches!(&error, Error::NotIndependent { reason, .. } if reason.contains(why)), "{error}");
        assert_eq!(error.outcome(), Outcome::NotSent);
    };
    refused(vec![a.clone(), b.clone(), a.clone()], "named twice").await;
    let again = connected(&proxy.url()).await;
    refused(vec![a.clone(), b.clone(), again], "the same server").await;
    for url in ["redis+sentinel://127.0.0.1:1/s", "redis+cluster://127.0.0.1:1", "redis://h:1,h:2"] {
        let lazy = LockManager::builder(url).lazy().unwrap();
        refused(vec![a.clone(), b.clone(), lazy], "failover").await;
    }
    assert!(matches!(RedLockManager::new([]).await, Err(Error::NoMembers)));
    assert!(
        RedLockManager::new([a.clone(), b.clone()]).await.unwrap().diagnostics().len() >= 2,
        "no append-only file"
    );

    let replicas = Replicas::start(1, &Settings::default());
    let primary = connected(&replicas.primary().tcp_url()).await;
    let replica = replicas.replicas().next().unwrap().tcp_url();
    let lazy = LockManager::builder(&replica).lazy().unwrap();
    // A replica is never ready for locks, so it does not count.
    let red = RedLockManager::new([a.clone(), primary, lazy]).await;
    match &red {
        Ok(red) => {
            let findings = red.diagnostics();
            let found = |finding: &Finding| matches!(finding, Finding::HasReplicas { replicas: 1, .. });
            assert!(findings.iter().any(found), "{findings:?}");
            let guard = red.lock("l").acquire().await.unwrap();
            assert!(eventually(PATIENCE, async || held(&guard) == 2).await);
            assert!(!matches!(guard.members()[2].state, MemberState::Held { .. }));
        }
        Err(error) => assert!(matches!(error, Error::NotIndependent { .. }), "{error}"),
    }
}

#[tokio::test]
async fn refused_password_makes_quorum_unhealthy() {
    let mut servers = [RedisServer::start(), RedisServer::start(), server_with_user(&["+@all"])];
    let urls = [servers[0].url(), servers[1].url(), as_app(&servers[2], "wrong")];
    let red = RedLockManager::connect(&urls).await.unwrap();
    assert_unusable(&red, "\"app\" (with a password) was refused");
    red.lock("l").acquire().await.unwrap().release().await.unwrap();
    let threaded = spawn_blocking(move || {
        let red = wheellock::blocking::RedLockManager::connect(&urls).unwrap();
        (red.is_healthy(), red.diagnostics().len())
    });
    let (healthy, findings) = threaded.await.unwrap();
    assert!(!healthy && findings > 0);
    servers[0].kill();
    let error = red.lock("l").try_acquire().await.unwrap_err();
    assert!(error.to_string().contains("was refused"), "{error}");
}

#[tokio::test]
async fn missing_permission_makes_quorum_unhealthy() {
    let servers =
        [RedisServer::start(), RedisServer::start(), server_with_user(&["+@all", "-evalsha", "-eval"])];
    let urls = [servers[0].url(), servers[1].url(), as_app(&servers[2], "right")];
    let red = RedLockManager::connect(&urls).await.unwrap();
    assert_unusable(&red, "EVAL");
}

#[tokio::test]
async fn replica_is_refused_when_recognised() {
    let replicas = Replicas::start(1, &Settings::default());
    let (primary, replica) = (replicas.primary().tcp_url(), replicas.replicas().next().unwrap().tcp_url());
    let other = RedisServer::start();
    for _ in 0..3 {
        let error = RedLockManager::connect([&other.url(), &primary, &replica]).await.unwrap_err();
        assert!(matches!(&error, Error::NotIndependent { .. }), "{error}");
        assert!(error.to_string().contains("replica"), "{error}");
    }
}

#[tokio::test]
async fn demoted_member_makes_quorum_unhealthy() {
    let servers: Vec<_> = (0..3).map(|_| RedisServer::builder().tcp().start()).collect();
    let red = RedLockManager::connect(servers.iter().map(RedisServer::url)).await.unwrap();
    assert!(red.is_healthy(), "{}", red.health());
    let primary = servers[0].addr();
    let follow = ["REPLICAOF", &primary.ip().to_string(), &primary.port().to_string()];
    assert_eq!(servers[2].cli(&follow), "OK");
    let is_noticed = async || {
        drop(red.lock("l").try_acquire().await.unwrap());
        !red.is_healthy()
    };
    assert!(eventually(PATIENCE, is_noticed).await);
    assert_unusable(&red, "replica");
}

/// The second address of a server does not answer while the manager connects.
#[tokio::test]
async fn late_second_address_makes_quorum_unhealthy() {
    let fleet = Fleet::start(2);
    let again = Proxy::before(&fleet.servers[0]);
    again.gate(Gate::Silent);
    let urls = [fleet.servers[0].url(), fleet.servers[1].url(), again.url()];
    let red = RedLockManager::connect(&urls).await.unwrap();
    assert!(red.is_healthy(), "{}", red.health());
    again.gate(Gate::Open);
    assert!(eventually(PATIENCE, async || !red.is_healthy()).await);
    assert_unusable(&red, "the same server as");
}

#[tokio::test]
async fn dead_minority_does_not_prevent_start() {
    let mut fleet = Fleet::start(3);
    fleet.servers[1].kill();
    let urls: Vec<_> = fleet.proxies.iter().map(Proxy::url).collect();
    let began = Instant::now();
    let red = RedLockManager::connect(&urls).await.unwrap();
    let guard = red.lock("l").acquire().await.unwrap();
    assert!(began.elapsed() < FAST, "{:?}", began.elapsed());
    guard.release().await.unwrap();
    fleet.servers[1].restart();
    let whole = async || {
        let guard = red.lock("l").acquire().await.unwrap();
        let joined = eventually(Duration::from_millis(100), async || held(&guard) == 3).await;
        guard.release().await.unwrap();
        joined
    };
    assert!(eventually(PATIENCE, whole).await, "it joins when it is back");
    fleet.servers[0].kill();
    fleet.servers[2].kill();
    let error = RedLockManager::connect(&urls).await.unwrap_err();
    assert!(matches!(error, Error::NoQuorum { .. }), "{error}");
}

/// Asserts that the manager names a member that cannot grant, and why.
fn assert_unusable(red: &RedLockManager, why: &str) {
    let findings: Vec<_> = red.diagnostics().iter().map(ToString::to_string).collect();
    assert!(findings.iter().any(|finding| finding.contains(why)), "{findings:?}");
    assert!(!red.is_healthy() && red.health().to_string().contains(why), "{}", red.health());
}

/// Starts a server that knows the user `app` with the password `right` and these permissions.
fn server_with_user(permissions: &[&str]) -> RedisServer {
    let user = [&["ACL", "SETUSER", "app", "on", ">right", "~*", "&*"], permissions].concat();
    RedisServer::builder().first_command(&user).start()
}

fn as_app(server: &RedisServer, password: &str) -> String {
    server.url().replacen("://", &format!("://app:{password}@"), 1)
}
