//! Listings of the locks on a server, and forced releases from the command line.

use std::collections::BTreeMap;
use std::process::{Command, Output};
use std::time::Duration;

use wheellock::{Error, Listed, LockManager, PermitSemaphore};
use wheellock_tests::RedisServer;
use wheellock_tests::eventually;
use wheellock_tests::locks::{PATIENCE, manager};
use wheellock_tests::topology::{Cluster, Settings};

const TOOL: &str = env!("CARGO_BIN_EXE_wheellock_cli");

fn tool(server: &RedisServer, arguments: &[&str]) -> Output {
    Command::new(TOOL).args(arguments).env("WHEELLOCK_URL", server.url()).output().unwrap()
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap()
}

async fn listed(locks: &LockManager, pattern: &str) -> BTreeMap<String, Listed> {
    let mut listing = locks.list(pattern);
    let mut found = BTreeMap::new();
    while let Some(lock) = listing.next().await.unwrap() {
        assert!(found.insert(lock.name.clone(), lock).is_none(), "a lock was listed twice");
    }
    found
}

async fn filled(locks: &LockManager, name: &str) -> PermitSemaphore {
    let semaphore = locks.permit_semaphore(name);
    assert!(semaphore.try_set_permits(3).await.unwrap());
    semaphore
}

#[tokio::test]
async fn listing_tells_kinds_and_holders() {
    let server = RedisServer::start();
    let locks = LockManager::builder(server.url()).label("the test").connect().await.unwrap();
    let others = manager(&server.url()).await;
    let plain = locks.lock("plain").acquire().await.unwrap();
    let fair = locks.fair_lock("fair").acquire().await.unwrap();
    let fenced = locks.fenced_lock("{fenced}:x").acquire().await.unwrap();
    let simple = locks.simple_lock("simple").acquire().await.unwrap();
    let sides = locks.read_write_lock("read");
    let readers = [sides.read().acquire().await.unwrap(), sides.read().acquire().await.unwrap()];
    let writer = locks.read_write_lock("write").write().acquire().await.unwrap();
    let permits = filled(&locks, "permits").await.acquire_many(2).await.unwrap();
    let waiting = tokio::spawn(async move { others.fair_lock("fair").acquire().await });
    assert!(
        eventually(PATIENCE, async || locks.fair_lock("fair").queue_length().await.unwrap() == Some(1)).await
    );
    // Other data, and a token of another library.
    for command in [
        &["SET", "text", "0e8aa3a7-6d64-4f0e-9f3a-1c7a3b1b0a55:7"][..],
        &["SET", "cached", "a value", "PX", "60000"],
        &["HSET", "hash", "a", "1"],
        &["ZADD", "a:timeout", "1", "b"],
        &["LPUSH", "list", "1"],
    ] {
        assert!(!server.cli(command).contains("ERR"));
    }
    let found = listed(&locks, "*").await;
    let kinds: Vec<(&str, &str, usize, u64)> = found
        .values()
        .map(|lock| (&*lock.name, lock.kind, lock.holders.holders.len(), lock.holders.beyond))
        .collect();
    let expected = [
        ("fair", "fair_lock", 1, 0),
        ("permits", "permit_semaphore", 0, 2),
        ("plain", "lock", 1, 0),
        ("read", "read", 2, 0),
        ("simple", "simple_lock", 1, 0),
        ("write", "write", 1, 0),
        ("{fenced}:x", "fenced_lock", 1, 0),
    ];
    assert_eq!(kinds, expected);
    assert_eq!(found["fair"].waiters, Some(1));
    for lock in found.values().filter(|lock| lock.kind != "permit_semaphore") {
        assert!(lock.holders.holders.iter().all(|holder| holder.label.as_deref() == Some("the test")));
    }
    assert_eq!(found["plain"].holders.holders[0].owner, plain.owner().to_string());
    assert_eq!(listed(&locks, "f*").await.len(), 1);
    drop((plain, fair, fenced, simple, readers, writer, permits));
    waiting.await.unwrap().unwrap().release().await.unwrap();
}

/// The script checks each batch of keys, and the client does not keep them.
#[tokio::test]
async fn listing_finds_locks_among_many_keys() {
    let server = RedisServer::start();
    let locks = manager(&server.url()).await;
    let mut guards = Vec::new();
    for number in 0..200 {
        guards.push(locks.lock(format!("lock:{number}")).acquire().await.unwrap());
    }
    let fill = "for i = 1, 20000 do redis.call('set', 'key:' .. i, 'value') end";
    assert!(!server.cli(&["EVAL", fill, "0"]).contains("ERR"));
    let mut listing = locks.list("*");
    let mut count = 0;
    while let Some(lock) = listing.next().await.unwrap() {
        assert!(lock.name.starts_with("lock:"));
        count += 1;
    }
    assert_eq!(count, 200);
    assert!(listing.keys_seen() >= 20_200);
    // A dropped call continues where it was.
    let mut listing = locks.list("*");
    let mut found = 0;
    loop {
        let dropped = tokio::time::timeout(Duration::from_micros(300), listing.next()).await;
        let next = match dropped {
            Ok(next) => next,
            Err(_) => listing.next().await,
        };
        if next.unwrap().is_none() {
            break;
        }
        found += 1;
    }
    assert_eq!(found, 200);
}

#[tokio::test]
async fn listing_begins_behind_prefix() {
    let server = RedisServer::start();
    let locks = LockManager::builder(server.url()).prefix("app[1]:").connect().await.unwrap();
    let others = manager(&server.url()).await;
    let _guards = (locks.lock("n").acquire().await.unwrap(), others.lock("n").acquire().await.unwrap());
    assert_eq!(listed(&locks, "*").await.into_keys().collect::<Vec<_>>(), ["app[1]:n"]);
    assert_eq!(listed(&others, "*").await.len(), 2);
}

#[tokio::test]
async fn cluster_is_not_listed() {
    let cluster = Cluster::start(3, 0, &Settings::default());
    let locks = manager(&cluster.url()).await;
    assert!(matches!(locks.list("*").next().await, Err(Error::NotInACluster { .. })));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tool_lists_and_frees_locks() {
    let server = RedisServer::start();
    assert_eq!(code(&tool(&server, &["ls"])), 1);
    let locks = LockManager::builder(server.url()).label("stuck job").connect().await.unwrap();
    let plain = locks.lock("plain").acquire().await.unwrap();
    let fair = locks.fair_lock("fair").acquire().await.unwrap();
    let simple = locks.simple_lock("simple").acquire().await.unwrap();
    let read = locks.read_write_lock("read").read().acquire().await.unwrap();
    let write = locks.read_write_lock("write").write().acquire().await.unwrap();
    let guards = [plain, fair, simple, read, write];
    let output = tool(&server, &["ls"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!((output.status.code(), text.lines().count()), (Some(0), 5));
    assert!(text.lines().all(|line| line.contains("stuck job  [") && line.ends_with(" s")), "{text}");
    let limited = tool(&server, &["ls", "--limit", "2", "--json"]);
    let lines = String::from_utf8(limited.stdout).unwrap();
    assert_eq!(lines.lines().count(), 2);
    for line in lines.lines() {
        for part in [
            "{\"name\":\"",
            "\",\"kind\":\"",
            ",\"waiters\":null,\"holders\":[{\"owner\":\"",
            "],\"beyond\":0}",
        ] {
            assert!(line.contains(part), "{line}");
        }
    }
    for guard in guards {
        let name = guard.name().to_owned();
        assert_eq!(code(&tool(&server, &["release", "--force", &name])), 64, "nobody was asked");
        assert!(guard.is_valid());
        let freed = tool(&server, &["release", "--force", &name, "--yes"]);
        let said = String::from_utf8(freed.stderr.clone()).unwrap();
        assert!(code(&freed) == 0 && said.contains("stuck job"), "{freed:?}");
        assert_eq!(code(&tool(&server, &["holder", &name])), 1);
        assert_eq!(code(&tool(&server, &["release", "--force", &name, "--yes"])), 1, "it is free");
    }
}
