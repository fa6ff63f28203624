//! Metrics, diagnostics and renewals by hand. The tests also cover jumps of the server's clock.

use std::time::Duration;

use wheellock::client::ErrorKind;
use wheellock::{Attempt, Backoff, BootInstant, Error, Finding, Lock, LockManager, LostReason, Outcome};
use wheellock_tests::locks::at_rest;
use wheellock_tests::{Builder, RedisServer, eventually, guide};

const PATIENCE: Duration = Duration::from_secs(10);
/// First version in which a script can check the user's permissions.
const CHECKS_PERMISSIONS: (u32, u32, u32) = (7, 0, 0);

#[tokio::test]
async fn metrics_count_what_happened() {
    let server = RedisServer::start();
    let lease = Duration::from_secs(3);
    let locks = LockManager::builder(&server.url()).watchdog_lease(lease).connect().await.unwrap();
    let lock = locks.lock("counted");
    let guard = lock.acquire().await.unwrap();
    let again = lock.with_owner(guard.owner()).acquire().await.unwrap();
    assert!(!lock.try_acquire_for(Duration::from_millis(20)).await.unwrap().is_acquired());
    let waiting = tokio::spawn({
        let lock = lock.clone();
        async move { lock.acquire().await }
    });
    assert!(eventually(PATIENCE, async || locks.metrics().waiting == 1).await);
    assert!(eventually(PATIENCE, async || locks.metrics().renewals > 0).await);
    let seen = locks.metrics();
    assert_eq!((seen.acquires, seen.waits, seen.waits_given_up, seen.held), (2, 0, 1, 1));
    again.release().await.unwrap();
    guard.release().await.unwrap();
    let last = waiting.await.unwrap().unwrap();
    lock.force_release().await.unwrap();
    assert_eq!(last.lost().await, LostReason::NotOwner);
    let fixed = lock.with_lease(Duration::from_millis(50)).acquire().await.unwrap();
    assert_eq!(fixed.lost().await, LostReason::Expired);

    let seen = locks.metrics();
    assert_eq!((seen.acquires, seen.waits, seen.message_wakes), (4, 1, 1), "{seen:?}");
    assert_eq!((seen.lost_not_owner, seen.lost_expired), (1, 1), "{seen:?}");
    assert_eq!((seen.held, seen.waiting, seen.failed_renewals), (0, 0, 0), "{seen:?}");
    assert_eq!((seen.wait.count(), seen.hold.count()), (1, 3), "{seen:?}");
    assert!(seen.hold.quantile(1.0) >= lease / 3, "held until it was renewed: {seen:?}");
}

#[tokio::test]
async fn risky_server_settings_are_reported() {
    let safe = RedisServer::builder().arg("appendonly", "yes").start();
    let locks = LockManager::connect(&safe.url()).await.unwrap();
    assert_eq!(findings(&safe, &locks), []);

    let risky =
        RedisServer::builder().arg("maxmemory", "100mb").arg("maxmemory-policy", "volatile-lru").start();
    let locks = LockManager::connect(&risky.url()).await.unwrap();
    let policy = "volatile-lru".to_owned();
    let evicts = Finding::MayEvict { policy, maxmemory: 100 << 20 };
    assert_eq!(findings(&risky, &locks), [evicts, Finding::ForgetsOnRestart]);
    assert!(locks.diagnostics()[0].to_string().contains("noeviction"), "says what to do");
}

#[tokio::test]
async fn missing_permissions_are_named_when_connecting() {
    let server = RedisServer::builder().tcp().arg("appendonly", "yes").start();
    if server.redis_version() < CHECKS_PERMISSIONS {
        return;
    }
    let connect = async |rules: &[&str]| {
        let set = [&["ACL", "SETUSER", "limited", "reset", "on", ">secret", "+@all"][..], rules].concat();
        assert_eq!(server.cli(&set), "OK");
        let url = server.tcp_url().replace("redis://", "redis://limited:secret@");
        LockManager::connect(&url).await.unwrap()
    };
    let missing = |locks: &LockManager| -> Vec<String> {
        let missing = locks.diagnostics().iter().map(|finding| match finding {
            Finding::MissingPermission { command, .. } => command.clone(),
            other => format!("{other:?}"),
        });
        missing.collect()
    };
    assert_eq!(missing(&connect(&["allkeys", "allchannels"]).await), [""; 0]);
    assert_eq!(missing(&connect(&["allkeys", "allchannels", "-pexpire", "-del"]).await), ["PEXPIRE", "DEL"]);
    assert_eq!(missing(&connect(&["allkeys", "allchannels", "-lindex", "-set"]).await), ["SET", "LINDEX"]);
    assert_eq!(missing(&connect(&["allkeys", "resetchannels"]).await), ["PUBLISH", "SUBSCRIBE"]);
    let restricted = connect(&["~orders:*", "&redisson_lock__channel:*"]).await;
    assert_eq!(missing(&restricted), [""; 0], "which names are allowed is not for us to guess");

    let blind = connect(&["allkeys", "allchannels", "-info"]).await;
    assert!(matches!(blind.diagnostics(), [Finding::Unknown { .. }]), "{:?}", blind.diagnostics());
    assert!(blind.lock("works").try_acquire().await.unwrap().is_acquired());
}

/// Command that the server lacks, its name in the finding, and words of the finding that state the consequence.
const MISSING: [(&str, &str, &str); 8] = [
    ("PUBLISH", "PUBLISH", "up to 5 s late"),
    ("SUBSCRIBE", "SUBSCRIBE", "ten times a second"),
    ("PUBSUB", "PUBSUB", "cannot be counted"),
    ("TIME", "TIME", "no lease can be renewed"),
    ("PEXPIRE", "PEXPIRE", "do not work: lock,"),
    ("ZADD", "ZADD", "fair_lock"),
    ("EVALSHA", "EVALSHA", "no lock works"),
    ("EVAL", "EVAL", "no lock works"),
];

#[tokio::test]
async fn missing_command_is_named_with_consequence() {
    for (renamed, command, words) in MISSING {
        let server = RedisServer::builder()
            .arg("appendonly", "yes")
            .arg(&format!("rename-command {renamed}"), "")
            .start();
        let locks = LockManager::connect(&server.url()).await.unwrap();
        let findings = findings(&server, &locks);
        let found = Finding::MissingCommand { command: command.to_owned() };
        assert_eq!(findings, std::slice::from_ref(&found), "{renamed}");
        assert!(found.to_string().contains(words), "{found}");
    }
}

/// Valkey 9.1 may run without Lua. The connection fails then. If only the commands are renamed, the manager says so on connect,
/// and each call says that it had no effect.
#[tokio::test]
async fn server_without_lua_rejects_calls() {
    let without = |commands: &[&str]| {
        let rename = |builder: Builder, command: &&str| builder.arg(&format!("rename-command {command}"), "");
        commands.iter().fold(RedisServer::builder(), rename).start()
    };
    let refused = LockManager::connect(&without(&["SCRIPT"]).url()).await.unwrap_err();
    assert!(refused.to_string().contains("does not run Lua scripts"), "{refused}");
    let Error::Server { source, .. } = refused else { panic!("{refused}") };
    assert_eq!(source.kind(), ErrorKind::Unsupported);

    let server = without(&["EVAL", "EVALSHA"]);
    let locks = LockManager::connect(&server.url()).await.unwrap();
    let lacks_lua = Finding::MissingCommand { command: "EVAL".to_owned() };
    assert!(locks.diagnostics().contains(&lacks_lua), "{:?}", locks.diagnostics());
    let error = locks.lock("n").try_acquire().await.unwrap_err();
    assert!(error.to_string().contains("this server does not run Lua scripts"), "{error}");
    assert_eq!(error.outcome(), Outcome::Rejected, "{error}");
}

#[tokio::test]
async fn forbidden_command_is_named_with_consequence() {
    let server = RedisServer::builder().tcp().arg("appendonly", "yes").start();
    if server.redis_version() < CHECKS_PERMISSIONS {
        return;
    }
    for (rule, command, words) in [
        ("-publish", "PUBLISH", "up to 5 s late"),
        ("-subscribe", "SUBSCRIBE", "ten times a second"),
        ("-pubsub", "PUBSUB|NUMSUB", "cannot be counted"),
        ("-time", "TIME", "no lease can be renewed"),
        ("-pexpire", "PEXPIRE", "do not work: lock,"),
        ("-eval", "EVAL", "no lock works"),
    ] {
        let set =
            ["ACL", "SETUSER", "limited", "reset", "on", ">secret", "+@all", "allkeys", "allchannels", rule];
        assert_eq!(server.cli(&set), "OK");
        let url = server.tcp_url().replace("redis://", "redis://limited:secret@");
        let locks = LockManager::connect(&url).await.unwrap();
        let found = Finding::MissingPermission { command: command.to_owned() };
        assert_eq!(locks.diagnostics(), std::slice::from_ref(&found), "{rule}");
        assert!(found.to_string().contains(words), "{found}");
    }
}

/// Without PUBLISH no message wakes a waiter.
#[tokio::test]
async fn waiter_without_publish_polls_often() {
    let renamed = RedisServer::builder().arg("rename-command PUBLISH", "").start();
    let forbidden = RedisServer::builder().tcp().start();
    let mut urls = vec![renamed.url()];
    if forbidden.redis_version() >= CHECKS_PERMISSIONS {
        let set = ["ACL", "SETUSER", "mute", "on", ">secret", "+@all", "allkeys", "allchannels", "-publish"];
        assert_eq!(forbidden.cli(&set), "OK");
        urls.push(forbidden.tcp_url().replace("redis://", "redis://mute:secret@"));
    }
    for url in urls {
        let [here, there] =
            [LockManager::connect(&url).await.unwrap(), LockManager::connect(&url).await.unwrap()];
        let locks = |locks: &LockManager| [locks.lock("a"), locks.fair_lock("b"), locks.simple_lock("c")];
        for (held, wanted) in locks(&here).into_iter().zip(locks(&there)) {
            let guard = held.acquire().await.unwrap();
            let waiting = tokio::spawn(async move { wanted.acquire().await.unwrap() });
            assert!(eventually(PATIENCE, async || there.metrics().waiting == 1).await);
            tokio::time::sleep(Duration::from_millis(50)).await;
            guard.release().await.unwrap();
            let woken = tokio::time::timeout(Duration::from_secs(1), waiting).await;
            drop(woken.expect("ten times a second").unwrap());
        }
    }
}

#[test]
fn diagnosis_checks_given_pubsub_verbs() {
    let server = RedisServer::start();
    if server.redis_version() < CHECKS_PERMISSIONS {
        return;
    }
    let rules = "ACL SETUSER limited on >secret +@all allkeys allchannels -spublish -ssubscribe";
    assert_eq!(server.cli(&rules.split(' ').collect::<Vec<_>>()), "OK");
    let mut limited = server.connect().unwrap();
    assert_eq!(limited.query(&["AUTH", "limited", "secret"]).unwrap().to_string(), "OK");
    let script = include_str!("../../../crates/wheellock/src/scripts/diagnose.lua");
    let mut missing = |verbs: [&str; 2]| {
        limited.query(&["EVAL", script, "0", "name", "channel", verbs[0], verbs[1]]).unwrap().to_string()
    };
    assert_eq!(missing(["PUBLISH", "SUBSCRIBE"]), "");
    assert_eq!(missing(["SPUBLISH", "SSUBSCRIBE"]), "SPUBLISH\nSSUBSCRIBE");
}

#[tokio::test]
async fn missing_channel_permission_still_releases() {
    let server = RedisServer::builder().tcp().start();
    if server.redis_version() < (6, 2, 0) {
        return; // no rules for channels yet
    }
    let set = ["ACL", "SETUSER", "deaf", "on", ">secret", "+@all", "allkeys", "resetchannels"];
    assert_eq!(server.cli(&set), "OK");
    let url = server.tcp_url().replace("redis://", "redis://deaf:secret@");
    let locks = LockManager::connect(&url).await.unwrap();
    let lock = locks.lock("unheard");
    let guard = lock.acquire().await.unwrap();
    guard.release().await.unwrap();
    let _guard = lock.acquire().await.unwrap();
    assert!(lock.force_release().await.unwrap());
    assert_eq!(server.cli(&["EXISTS", "unheard"]), "0");
}

#[tokio::test]
async fn manual_renewal_extends_or_reports_loss() {
    let server = RedisServer::start();
    let locks = LockManager::connect(&server.url()).await.unwrap();
    let lease = Duration::from_secs(20);
    let lock = locks.lock("by hand").with_lease(lease);
    let guard = lock.acquire().await.unwrap();
    assert_eq!(server.cli(&["PEXPIRE", "by hand", "5000"]), "1");
    let promised = guard.valid_until();
    guard.renew().await.unwrap();
    assert!(guard.valid_until() > promised);
    let pttl: u128 = server.cli(&["PTTL", "by hand"]).parse().unwrap();
    assert!((15_000..=lease.as_millis()).contains(&pttl), "{pttl}");

    assert_eq!(server.cli(&["DEL", "by hand"]), "1");
    let error = guard.renew().await.unwrap_err();
    assert!(matches!(error, Error::Lost { reason: LostReason::NotOwner, .. }), "{error}");
    assert_eq!(server.cli(&["EXISTS", "by hand"]), "0", "never created anew");
    assert!(!guard.is_valid());
    assert!(matches!(guard.renew().await, Err(Error::Lost { .. })), "and nothing is sent");
}

#[tokio::test]
async fn unanswered_manual_renewal_changes_nothing() {
    let server = RedisServer::start();
    let patience = Duration::from_secs(1);
    let configure = |config: &mut wheellock::client::Config| {
        config.response_timeout = patience;
        // The connection's own heartbeat must not find the silent server before the renewal is on its way.
        config.heartbeat = PATIENCE;
    };
    let locks = LockManager::builder(&server.url()).configure(configure).connect().await.unwrap();
    let guard = locks.lock("unanswered").acquire().await.unwrap();
    let promised = guard.valid_until();
    server.pause();
    let before = BootInstant::now();
    let error = guard.renew().await.unwrap_err();
    assert_eq!(error.outcome(), Outcome::MaybeExecuted, "{error}");
    assert!(BootInstant::now() >= before + patience, "it was tried for as long as a reply may take");
    assert_eq!(guard.valid_until(), promised);
    server.resume();
    assert!(eventually(PATIENCE, async || guard.renew().await.is_ok()).await);
    assert!(guard.valid_until() > promised);
}

/// C2: everything works with the guide's permissions for this version of the server. The server denies no command on the way, and `ACL LOG`
/// stays empty. Each permission is needed.
#[tokio::test]
async fn guide_permissions_are_exactly_sufficient() {
    let server = {
        let version = RedisServer::start().redis_version();
        let builder = RedisServer::builder().tcp().arg("appendonly", "yes");
        // This is the default of 6.2, which can be set in later versions.
        if version < (6, 2, 0) { builder } else { builder.arg("acl-pubsub-default", "allchannels") }.start()
    };
    let rules = guide::permissions(server.redis_version());
    assert_eq!(use_everything(&server, &rules).await, Ok(()));
    let mut needless = Vec::new();
    for left_out in &rules {
        let without: Vec<&str> = rules.iter().filter(|rule| rule != &left_out).copied().collect();
        if use_everything(&server, &without).await.is_ok() {
            needless.push(left_out);
        }
        assert_eq!(server.cli(&["FLUSHALL"]), "OK");
    }
    assert!(needless.is_empty(), "{needless:?}");
}

/// Returns the findings, except those that no server of this version can make. Before 7.0 a server cannot report a user's permissions.
fn findings(server: &RedisServer, locks: &LockManager) -> Vec<Finding> {
    let can_tell = server.redis_version() >= CHECKS_PERMISSIONS;
    let told = |finding: &&Finding| can_tell || !matches!(finding, Finding::Unknown { .. });
    locks.diagnostics().iter().filter(told).cloned().collect()
}

/// Drops a guard after the end of the runtime in which its lock was acquired.
fn outlive_the_runtime(url: &str) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let guard = runtime.block_on(async {
        let locks = LockManager::connect(url).await?;
        locks.lock("orders:43").acquire().await
    })?;
    drop(runtime);
    drop(guard);
    Ok(())
}

/// Uses all operations of a lock as a user with these permissions. Returns a message about an operation that did not work.
async fn use_everything(server: &RedisServer, rules: &[&str]) -> Result<(), String> {
    let set = [&["ACL", "SETUSER", "locks", "reset", "on", ">secret"][..], rules].concat();
    match &*server.cli(&set) {
        "OK" => {}
        refused => return Err(refused.to_owned()),
    }
    let url = server.tcp_url().replace("redis://", "redis://locks:secret@");
    let text = |error: Error| error.to_string();
    let locks = LockManager::builder(&url)
        .configure(|config| config.connect_timeout = Duration::from_millis(200))
        .connect()
        .await
        .map_err(text)?;
    if let [finding, ..] = &findings(server, &locks)[..] {
        return Err(finding.to_string());
    }
    let lock = locks.lock("orders:42");
    let guard = lock.acquire().await.map_err(text)?;
    guard.renew().await.map_err(text)?;
    let owner = guard.owner();
    lock.hold_count(&owner).await.map_err(text)?;
    lock.is_held_by(&owner).await.map_err(text)?;
    lock.remaining_lease().await.map_err(text)?;
    lock.holders().await.map_err(text)?;
    lock.is_locked().await.map_err(text)?;
    drop(lock.try_acquire_for(Duration::from_millis(10)).await.map_err(text)?);
    let again = lock.with_owner(owner).acquire().await.map_err(text)?;
    again.release().await.map_err(text)?;
    guard.release().await.map_err(text)?;
    let _forgotten = lock.acquire().await.map_err(text)?;
    lock.force_release().await.map_err(text)?;
    let (held, second) = (lock.acquire().await.map_err(text)?, Duration::from_secs(1));
    let (refused, polls) = (lock.try_acquire(), lock.with_backoff(Backoff::Constant(second / 20)));
    let queues_on_server = !refused.await.map_err(text)?.is_acquired()
        && !polls.try_acquire_for(second / 2).await.map_err(text)?.is_acquired()
        && server.cli(&["EXISTS", "{orders:42}:wheellock_poller"]) == "1";
    if !queues_on_server {
        return Err("contenders that poll leave no mark".to_owned());
    }
    let waiting = lock.clone();
    let waits = tokio::spawn(async move { waiting.acquire().await });
    // The waiter sleeps, so the release is a hot release.
    if !eventually(PATIENCE, async || locks.metrics().waiting == 1).await || !at_rest(&locks).await {
        return Err("it does not wait".to_owned());
    }
    held.release().await.map_err(text)?;
    waits.await.unwrap().map_err(text)?.release().await.map_err(text)?;
    let outlived = tokio::task::spawn_blocking(move || outlive_the_runtime(&url)).await.unwrap();
    outlived.map_err(text)?;
    if !eventually(PATIENCE, async || server.cli(&["EXISTS", "orders:43"]) == "0").await {
        return Err("a guard that outlived its runtime was not released".to_owned());
    }
    // The subscription lingers, and then ends.
    let unheard = async || server.cli(&["PUBSUB", "CHANNELS"]).is_empty();
    if !eventually(PATIENCE, unheard).await {
        return Err("still subscribed".to_owned());
    }
    let refused = server.cli(&["ACL", "LOG"]);
    assert_eq!(server.cli(&["ACL", "LOG", "RESET"]), "OK");
    if refused.is_empty() { Ok(()) } else { Err(refused) }
}

#[tokio::test]
async fn guide_kind_permissions_are_exactly_sufficient() {
    let server = {
        let version = RedisServer::start().redis_version();
        let builder = RedisServer::builder().tcp().arg("appendonly", "yes");
        if version < (6, 2, 0) { builder } else { builder.arg("acl-pubsub-default", "allchannels") }.start()
    };
    let version = server.redis_version();
    for kind in [
        "fair",
        "fenced",
        "election",
        "read-write",
        "simple",
        "semaphore",
        "permits",
        "latch",
        "labels",
        "requests",
    ] {
        let (base, mut added) = (guide::permissions(version), guide::kind_permissions(kind, version));
        added.extend(server.deletes_by().filter(|_| kind == "simple").map(guide::deleting));
        let rules: Vec<&str> = base.iter().chain(&added).copied().collect();
        assert_eq!(use_kind(&server, &rules, kind).await, Ok(()), "{kind}");
        for left_out in &added {
            let without: Vec<&str> = rules.iter().filter(|rule| rule != &left_out).copied().collect();
            assert!(use_kind(&server, &without, kind).await.is_err(), "{kind} does without {left_out}");
        }
    }
}

/// Uses all operations of locks of this kind with these permissions. Returns an error if an operation failed or was refused.
async fn use_kind(server: &RedisServer, rules: &[&str], kind: &str) -> Result<(), String> {
    let set = [&["ACL", "SETUSER", "locks", "reset", "on", ">secret"][..], rules].concat();
    assert_eq!(server.cli(&set), "OK");
    let url = server.tcp_url().replace("redis://", "redis://locks:secret@");
    let locks = LockManager::connect(&url).await.map_err(|error| error.to_string())?;
    let used = async {
        match kind {
            "fair" => {
                let lock = locks.fair_lock("orders:42");
                use_side(&locks, &lock, &lock).await?;
                // The entry of another library is behind a waiter that is served, and before a waiter that leaves.
                let guard = lock.acquire().await?;
                let waiting = {
                    let lock = lock.clone();
                    tokio::spawn(async move { lock.try_acquire_for(Duration::from_secs(1)).await })
                };
                let queued = async || waiting.is_finished() || server.cli(&["LLEN", QUEUE]) == "1";
                assert!(eventually(PATIENCE, queued).await);
                assert_eq!(server.cli(&["RPUSH", QUEUE, "java:1"]), "2");
                let deadline = "99999999999999";
                assert_eq!(
                    server.cli(&["ZADD", "redisson_lock_timeout:{orders:42}", deadline, "java:1"]),
                    "1"
                );
                assert!(!lock.try_acquire_for(Duration::from_millis(10)).await?.is_acquired());
                guard.release().await?;
                if let Attempt::Acquired(guard) = waiting.await.unwrap()? {
                    guard.release().await?;
                }
                lock.position(&locks.owner()).await?;
                lock.queue_length().await.map(drop)
            }
            "fenced" => {
                let lock = locks.fenced_lock("orders:42");
                use_side(&locks, lock.as_lock(), lock.as_lock()).await?;
                // A counter that is ahead of the server's clock is incremented for each token.
                let ahead = ["SET", "redisson_lock_token:{orders:42}", "9000000000000000"];
                assert_eq!(server.cli(&ahead), "OK");
                let _token = lock.acquire().await?.token();
                lock.token().await.map(drop)
            }
            "election" => {
                let lock = locks.fenced_lock("orders:42");
                use_side(&locks, lock.as_lock(), lock.as_lock()).await?;
                let ahead = ["SET", "redisson_lock_token:{orders:42}", "9000000000000000"];
                assert_eq!(server.cli(&ahead), "OK");
                let election = locks.election("orders:42").with_announcement("here");
                let mut observer = election.observe();
                let _nobody = observer.changed().await?;
                let leadership = election.campaign().await?;
                let _leader = observer.changed().await?;
                leadership.resign().await?;
                // This holder announces nothing.
                let _guard = lock.acquire().await?;
                election.leader().await.map(drop)
            }
            "semaphore" => {
                let semaphore = locks.semaphore("orders:42");
                assert!(semaphore.try_set_permits(2).await?);
                let permits = semaphore.acquire(2).await?;
                let waiting = {
                    let semaphore = semaphore.clone();
                    tokio::spawn(async move { semaphore.try_acquire_for(1, Duration::from_secs(1)).await })
                };
                assert!(eventually(PATIENCE, async || locks.metrics().waiting == 1).await);
                permits.release().await?;
                waiting.await.unwrap()?.acquired().expect("it is free").release().await?;
                let _free = (semaphore.add_permits(-1).await?, semaphore.available().await?);
                semaphore.drain().await?;
                semaphore.delete().await.map(drop)
            }
            "permits" => {
                let permits = locks.permit_semaphore("orders:42");
                assert!(permits.try_set_permits(2).await?);
                permits.set_permits(1).await?;
                let permit = permits.acquire().await?;
                permit.renew().await?;
                assert!(!permits.try_acquire_for(Duration::from_millis(10)).await?.is_acquired());
                assert!(permits.release(permit.id()).await?);
                permits.acquire().await?.release().await?;
                let short = permits.with_lease(Duration::from_millis(20)).acquire().await?;
                assert!(eventually(PATIENCE, async || !short.is_valid()).await);
                std::mem::forget(short);
                permits.acquire().await?.release().await?;
                let _free = (permits.add_permits(1).await?, permits.available().await?);
                permits.delete().await.map(drop)
            }
            "latch" => {
                let latch = locks.count_down_latch("orders:42");
                assert!(latch.try_set_count(2.try_into().unwrap()).await?);
                assert!(!latch.wait_for(Duration::from_millis(10)).await?);
                let _left = (latch.count_down().await?, latch.count().await?, latch.count_down().await?);
                assert!(latch.try_set_count(2.try_into().unwrap()).await?);
                latch.delete().await?;
                latch.wait().await
            }
            "labels" => {
                let labelled = LockManager::builder(&url).label("web-3/1/billing").connect().await?;
                let guard = labelled.lock("orders:42").acquire().await?;
                let holder = locks.lock("orders:42").holder().await?.expect("it is held");
                guard.release().await?;
                let _left = labelled.shutdown(PATIENCE).await;
                let told = holder.label.as_deref() == Some("web-3/1/billing");
                told.then_some(()).ok_or(Error::NoMembers)
            }
            "requests" => {
                let lock = locks.lock("orders:42");
                let guard = lock.acquire().await?;
                let wait = tokio::spawn(async move { guard.release_requested().await });
                let asked = async || match lock.ask_to_release("deploy 4711").await {
                    Ok(asked) => asked.untold.is_empty(),
                    // A missing permission does not go away.
                    Err(_) => true,
                };
                let is_told = eventually(PATIENCE / 10, asked).await;
                wait.abort();
                lock.ask_to_release("deploy 4711").await?;
                is_told.then_some(()).ok_or(Error::NoMembers)
            }
            "read-write" => {
                let lock = locks.read_write_lock("orders:42");
                use_side(&locks, &lock.read(), &lock.write()).await?;
                use_side(&locks, &lock.write(), &lock.read()).await?;
                let (first, last) = (lock.read().acquire().await?, lock.read().acquire().await?);
                last.release().await?;
                first.release().await.map(drop)
            }
            _ => {
                let lock = locks.simple_lock("orders:42");
                use_side(&locks, &lock, &lock).await
            }
        }
    };
    let used = used.await.map_err(|error: Error| error.to_string());
    // A failed operation must not be retried in the background.
    let _left = locks.shutdown(Duration::from_millis(300)).await;
    let idle = async || server.cli(&["PUBSUB", "CHANNELS"]).is_empty();
    assert!(eventually(PATIENCE, idle).await, "still subscribed");
    let refused = server.cli(&["ACL", "LOG"]);
    assert_eq!(server.cli(&["ACL", "LOG", "RESET"]), "OK");
    assert_eq!(server.cli(&["FLUSHALL"]), "OK");
    used?;
    if refused.is_empty() { Ok(()) } else { Err(refused) }
}

const QUEUE: &str = "redisson_lock_queue:{orders:42}";

/// Uses all operations of `lock`. The lock `other` waits for it.
async fn use_side(locks: &LockManager, lock: &Lock, other: &Lock) -> Result<(), Error> {
    let guard = lock.acquire().await?;
    guard.renew().await?;
    let _known =
        (lock.hold_count(&guard.owner()).await?, lock.remaining_lease().await?, lock.is_locked().await?);
    let _them = lock.holders().await?;
    let waiting = {
        let other = other.clone();
        tokio::spawn(async move { other.try_acquire_for(Duration::from_secs(1)).await })
    };
    let waits = async || locks.metrics().waiting == 1 || waiting.is_finished();
    assert!(eventually(PATIENCE, waits).await);
    assert!(!other.try_acquire_for(Duration::from_millis(10)).await?.is_acquired());
    guard.release().await?;
    if let Attempt::Acquired(guard) = waiting.await.unwrap()? {
        guard.release().await?;
    }
    let _forgotten = lock.acquire().await?;
    lock.force_release().await.map(drop)
}

#[tokio::test]
async fn guards_over_queue_limit_are_released() {
    let server = RedisServer::start();
    let bound = 64;
    let configure = |config: &mut wheellock::client::Config| config.max_in_flight = bound;
    let locks = LockManager::builder(&server.url()).configure(configure).connect().await.unwrap();
    let mut guards = Vec::new();
    for number in 0..10 * bound {
        guards.push(locks.lock(&format!("many:{number}")).acquire().await.unwrap());
    }
    drop(guards);
    let released = async || server.cli(&["DBSIZE"]) == "0";
    assert!(
        eventually(PATIENCE, released).await,
        "{} locks are left of leases of 30 s",
        server.cli(&["DBSIZE"])
    );
}
