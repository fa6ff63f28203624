//! Passwords, ACLs and TLS in every topology. Every node that is found is used in the same way, and never with less protection than
//! requested.

use std::time::Duration;

use tokio::time::timeout;
use wheellock::LockManager;
use wheellock_client::{Client, Config, ErrorKind, Servers, TlsConfig};
use wheellock_tests::topology::{Cluster, Replicas, SentinelSet, Settings};
use wheellock_tests::{RedisServer, eventually, guide};

/// Acquires, waits for and releases a lock through two managers. Returns both managers.
async fn works(url: &str, settings: &Settings) -> [LockManager; 2] {
    let connect = async || {
        let tls =
            settings.authority().map(|authority| TlsConfig::new().trust_pem(authority.pem().as_bytes()));
        let tls = tls.map(|tls| tls.build().unwrap());
        let manager = LockManager::builder(url).configure(|config| {
            if let Servers::Sentinel(sentinels) = &mut config.servers {
                sentinels.tls.clone_from(&tls);
            }
            config.tls = tls;
        });
        timeout(NO_HANG, manager.connect())
            .await
            .expect("connects or fails in time")
            .unwrap_or_else(|error| panic!("{url}: {error}"))
    };
    let managers = [connect().await, connect().await];
    handed_over(&managers).await;
    managers
}

/// Checks that a lock goes from one manager to the other, which is notified of the release.
async fn handed_over([here, there]: &[LockManager; 2]) {
    let guard = here.lock("orders:1").acquire().await.unwrap();
    let waiter = tokio::spawn({
        let lock = there.lock("orders:1");
        async move { lock.acquire().await }
    });
    assert!(eventually(NO_HANG, async || there.metrics().waiting == 1).await);
    guard.release().await.unwrap();
    let guard = timeout(NO_HANG, waiter).await.expect("woken long before the lease ends").unwrap().unwrap();
    guard.renew().await.unwrap();
    guard.release().await.unwrap();
}

#[tokio::test]
async fn replicas_with_a_user_and_tls() {
    let settings = settings(guide::permissions).tls();
    let mut set = Replicas::start(1, &settings);
    let managers = works(&set.url(), &settings).await;
    set.promote(1);
    let moved = async || {
        let _refused = managers[0].lock("orders:2").try_acquire().await;
        let _refused = managers[1].lock("orders:3").try_acquire().await;
        let new = set.primary().addr().to_string();
        managers.iter().all(|locks| *locks.client().server_address() == *new)
    };
    assert!(eventually(NO_HANG, moved).await);
    handed_over(&managers).await;
}

/// C2: the guide's user for Sentinels may send all requests that the library sends to Sentinels. The library sends no other requests.
#[tokio::test]
async fn sentinels_accept_guide_user_and_tls() {
    let settings = settings(guide::permissions).sentinel_password("watchers").tls();
    let mut set = SentinelSet::start(&settings);
    for sentinel in set.sentinels() {
        let rules = guide::sentinel_permissions(sentinel.redis_version());
        let watcher = [&["ACL", "SETUSER", "watcher", "on", ">secret"][..], &rules].concat();
        assert_eq!(sentinel.cli(&watcher), "OK");
    }
    let url = format!("{}?sentinel_user=watcher&sentinel_password=secret", set.url());
    let managers = works(&url, &settings).await;
    let old = set.primary_index();
    set.servers_mut()[old].kill();
    let new = &set.servers()[set.wait_for_new_primary(set.servers()[old].addr())];
    let address = new.addr().to_string();
    let moved = async || {
        managers.iter().all(|locks| *locks.client().server_address() == *address && locks.client().is_ready())
    };
    assert!(eventually(NO_HANG, moved).await);
    handed_over(&managers).await;
    drop(managers);
    nothing_was_refused(set.sentinels());
    nothing_was_refused(&[new]);
}

/// C2: the guide's user for a cluster may send all requests that the library sends to a cluster. The library sends no other requests.
#[tokio::test]
async fn cluster_accepts_guide_user_and_tls() {
    let settings = settings(guide::cluster_permissions).tls();
    let cluster = Cluster::start(3, 0, &settings);
    let managers = works(&cluster.url(), &settings).await;
    assert_eq!(managers[0].client().publish_verb(), "SPUBLISH");
    let slot = cluster.slot_of("orders:1");
    // The redirected connection to another node has the same user and the same encryption as before.
    cluster.move_slot(slot, (cluster.owner_of(slot) + 1) % 3);
    handed_over(&managers).await;
    assert!(
        managers[0].diagnostics().iter().all(|finding| !finding.to_string().contains("may not")),
        "{:?}",
        managers[0].diagnostics()
    );
    drop(managers);
    nothing_was_refused(cluster.nodes());
}

#[tokio::test]
async fn a_cluster_with_passwords() {
    let settings = Settings::default().password("secret");
    let cluster = Cluster::start(2, 0, &settings);
    works(&cluster.url(), &settings).await;
    let anonymous = format!("redis+cluster://{}", cluster.nodes()[0].addr());
    let error = LockManager::connect(&anonymous).await.unwrap_err();
    assert!(error.to_string().contains("without a password"), "{error}");
    assert!(!error.to_string().contains("secret"));
}

#[tokio::test]
async fn client_with_tls_rejects_plaintext_cluster() {
    let cluster = Cluster::start(2, 0, &Settings::default());
    let trusting = {
        let encrypted = Settings::default().tls();
        TlsConfig::new().trust_pem(encrypted.authority().unwrap().pem().as_bytes()).build().unwrap()
    };
    let mut config: Config = cluster.url().parse().unwrap();
    config.tls = Some(trusting);
    config.connect_timeout = Duration::from_millis(500);
    let error = Client::connect(config).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Connect, "{error}");
}

#[tokio::test]
async fn error_names_tls_required_by_cluster() {
    let cluster = Cluster::start(2, 0, &Settings::default().tls());
    let plain = cluster.url().replace("rediss+", "redis+");
    let mut config: Config = plain.parse().unwrap();
    config.connect_timeout = Duration::from_millis(500);
    let error = Client::connect(config).await.unwrap_err();
    assert!(error.detail().contains("requires TLS (rediss://)"), "{error}");
}

/// Returns the settings of servers with a user that has the guide's permissions.
fn settings(permissions: fn((u32, u32, u32)) -> Vec<&'static str>) -> Settings {
    let rules = permissions(RedisServer::start().redis_version()).join(" ");
    Settings::default().password("administrator").user("locks", "secret", &format!("{rules} +wait"))
}

fn nothing_was_refused<S: std::borrow::Borrow<RedisServer>>(servers: &[S]) {
    for server in servers {
        assert_eq!(server.borrow().cli(&["ACL", "LOG"]), "");
    }
}

const NO_HANG: Duration = Duration::from_secs(20);
