//! Time from a deletion of a lock by another client until its holder or a waiter knows of it.
//!
//! `loss [--rounds N] [words]` runs the rows whose names contain the words. There are three groups of rows:
//!
//! - Kinds: another client deletes [`HELD`] locks per round, one after the other, and waits each time until
//!   [`lost`](wheellock::Guard::lost) resolves. The locks are renewed once before, and not again meanwhile. rueidislock does the same.
//!   In one row the server refuses `CLIENT TRACKING`, so the next renewal finds the loss.
//! - Waiters: a waiter stands behind a simple lock of another library, and that holder deletes the key. The time ends with the grant.
//!   The other library is a plain client, and then each library of `cargo xtask peers`.
//! - Storm: another client deletes all keys at once while one manager holds [`STORM`] locks. The time ends with the last loss.

#[path = "loss/rueidislock.rs"]
mod rueidislock;

use std::future::Future;
use std::ops::Deref;
use std::pin::Pin;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use tokio::runtime::{Builder, Runtime};
use tokio::task::{JoinHandle, JoinSet};
use wheellock::{Error, Guard, Lock, LockManager};
use wheellock_benches::Report;
use wheellock_tests::peers::{self, Library, Peer, Program};
use wheellock_tests::{Cli, RedisServer};

use rueidislock::Rueidislock;

/// Number of locks per round.
const HELD: usize = 1000;
/// The watchdog renews after a third of it, which is longer than the deletions of a round take.
const LEASE: Duration = Duration::from_secs(15);
/// Number of foreign releases per round.
const RELEASES: u64 = 100;
/// Number of locks of the manager in the storm.
const STORM: usize = 100_000;
/// Longer than the storm and its preparation take. The watchdog renews each lock once before.
const STORM_LEASE: Duration = Duration::from_secs(60);

/// A guard, or a type that contains one.
type Held = Box<dyn Deref<Target = Guard>>;

type Acquire = fn(&LockManager, String) -> Pin<Box<dyn Future<Output = Result<Held, Error>> + '_>>;

const KINDS: [(&str, Acquire); 8] = [
    ("plain", |locks, name| Box::pin(async move { held(locks.lock(name).acquire().await) })),
    ("fair", |locks, name| Box::pin(async move { held(locks.fair_lock(name).acquire().await) })),
    ("read", |locks, name| Box::pin(async move { held(locks.read_write_lock(name).read().acquire().await) })),
    ("write", |locks, name| {
        Box::pin(async move { held(locks.read_write_lock(name).write().acquire().await) })
    }),
    ("fenced", |locks, name| {
        Box::pin(async move { Ok(Box::new(locks.fenced_lock(name).acquire().await?) as Held) })
    }),
    ("permit", |locks, name| {
        Box::pin(async move {
            let permits = locks.permit_semaphore(name);
            permits.try_set_permits(1).await?;
            Ok(Box::new(permits.acquire().await?) as Held)
        })
    }),
    ("simple", |locks, name| Box::pin(async move { held(locks.simple_lock(name).acquire().await) })),
    ("fixed lease", |locks, name| {
        Box::pin(async move { held(locks.lock(name).with_lease(LEASE * 4).acquire().await) })
    }),
];

fn held(acquired: Result<Guard, Error>) -> Result<Held, Error> {
    Ok(Box::new(Box::new(acquired?)))
}

fn main() -> Result<()> {
    let mut report = Report::new("loss");
    let runtime = Builder::new_current_thread().enable_all().build()?;
    for (kind, acquire) in KINDS {
        if !report.wants(kind) {
            continue;
        }
        let server = RedisServer::builder().tcp().start();
        let mut operator = server.connect()?;
        let mut times = Times::default();
        for _ in 0..report.rounds() {
            times.add(runtime.block_on(round(&server, &mut operator, acquire))?);
        }
        times.report(&mut report, kind, "wheellock");
    }
    rival(&mut report)?;
    untracked(&mut report, &runtime)?;
    waiters(&mut report, &runtime)?;
    for library in
        peers::present().into_iter().filter(|library| !matches!(library.program, Program::Itself(_)))
    {
        behind_library(&mut report, &runtime, library)?;
    }
    storm(&mut report, &runtime)?;
    report.finish()
}

/// The median, the 99th percentile and the longest time of each round, in microseconds.
#[derive(Default)]
struct Times {
    middle: Vec<f64>,
    late: Vec<f64>,
    latest: Vec<f64>,
}

impl Times {
    fn add(&mut self, mut took: Vec<Duration>) {
        took.sort_unstable();
        let micros = |part: usize| took[(took.len() - 1) * part / 1000].as_secs_f64() * 1e6;
        self.middle.push(micros(500));
        self.late.push(micros(990));
        self.latest.push(micros(1000));
    }

    fn report(&self, report: &mut Report, row: &str, subject: &str) {
        report.row(row, subject, "p50", "us", &self.middle);
        report.row(row, subject, "p99", "us", &self.late);
        report.row(row, subject, "most", "us", &self.latest);
    }
}

/// Measures rueidislock at the work of the row "plain".
fn rival(report: &mut Report) -> Result<()> {
    if !report.wants(rueidislock::NAME) {
        return Ok(());
    }
    let server = RedisServer::builder().tcp().start();
    let mut operator = server.connect()?;
    let mut times = Times::default();
    for _ in 0..report.rounds() {
        let Some(mut rival) = Rueidislock::start(&server, LEASE)? else {
            println!("{}: left out, needs go and its modules", rueidislock::NAME);
            return Ok(());
        };
        rival.hold(HELD)?;
        // Its renewals make the server remember the keys.
        std::thread::sleep(LEASE / 3 + LEASE / 30);
        ensure!(tracked(&mut operator)? >= HELD, "the server remembers {} keys", tracked(&mut operator)?);
        let start = Instant::now();
        times.add(rival.delete(HELD)?);
        ensure!(start.elapsed() < LEASE / 5, "a renewal may have found the losses");
    }
    times.report(report, "plain", rueidislock::NAME);
    Ok(())
}

/// Measures the row "plain" while the server refuses `CLIENT TRACKING`. All keys are deleted at once. Each round does so at another time
/// between two renewals.
fn untracked(report: &mut Report, runtime: &Runtime) -> Result<()> {
    let row = "plain without tracking";
    if !report.wants(row) {
        return Ok(());
    }
    let server = RedisServer::builder().tcp().start();
    let mut operator = server.connect()?;
    let mut times = Times::default();
    for number in 0..report.rounds() {
        times.add(runtime.block_on(async {
            let builder = LockManager::builder(server.untracked_url()).watchdog_lease(LEASE);
            let locks = builder.connect().await?;
            let mut losses = JoinSet::new();
            for number in 0..HELD {
                let guard = locks.lock(format!("n{number}")).acquire().await?;
                losses.spawn(async move {
                    guard.lost().await;
                    Instant::now()
                });
            }
            tokio::time::sleep(LEASE / 30 * u32::try_from(number % 10)?).await;
            let start = Instant::now();
            operator.query(&["FLUSHALL"])?;
            let told = losses.join_all().await;
            anyhow::Ok(told.into_iter().map(|told| told.saturating_duration_since(start)).collect())
        })?);
    }
    times.report(report, row, "wheellock");
    Ok(())
}

/// Measures the time from the order to release until the waiter's grant, behind a holder of another library. The time contains that
/// library's own way to the server.
fn behind_library(report: &mut Report, runtime: &Runtime, library: &'static Library) -> Result<()> {
    let row = format!("waiter behind {}", library.name);
    if !report.wants(&row) {
        return Ok(());
    }
    let server = RedisServer::builder().tcp().start();
    let (mut times, mut own) = (Times::default(), Times::default());
    for _ in 0..report.rounds() {
        let (granted, released) = runtime.block_on(async {
            let mut peer = Peer::start(library, &[server.url()]).await;
            let lock = LockManager::connect(&server.url()).await?.simple_lock("n");
            let (mut granted, mut released) = (Vec::new(), Vec::new());
            for number in 0..RELEASES {
                let patience = Duration::from_secs(30);
                ensure!(peer.acquires("n", patience, Duration::from_secs(1)).await, "the lock is free");
                let waiter = waiter(&lock, number).await;
                let start = Instant::now();
                ensure!(peer.releases().await != Some(false), "{} held the lock", library.name);
                released.push(start.elapsed());
                let (at, guard) = waiter.await??;
                granted.push(at.saturating_duration_since(start));
                guard.release().await?;
            }
            anyhow::Ok((granted, released))
        })?;
        times.add(granted);
        own.add(released);
    }
    times.report(report, &row, "wheellock");
    own.report(report, &row, "the release itself");
    Ok(())
}

/// Measures the time from a foreign holder's deletion to the waiter's grant, with and without news from the server.
fn waiters(report: &mut Report, runtime: &Runtime) -> Result<()> {
    let server = RedisServer::start();
    let mut other = server.connect()?;
    for (row, url) in
        [("waiter behind foreign lock", server.url()), ("the same without tracking", server.untracked_url())]
    {
        if !report.wants(row) {
            continue;
        }
        let mut times = Times::default();
        for _ in 0..report.rounds() {
            times.add(runtime.block_on(releases(&url, &mut other))?);
        }
        times.report(report, row, "wheellock");
    }
    Ok(())
}

/// Spawns a task that waits for the lock, and returns the instant of the grant. Returns when the task has waited for a while.
async fn waiter(lock: &Lock, number: u64) -> JoinHandle<Result<(Instant, Guard), Error>> {
    let lock = lock.clone();
    let waiter = tokio::spawn(async move { lock.acquire().await.map(|guard| (Instant::now(), guard)) });
    // The waiter's pauses have become long by then. The time varies, so that the releases do not follow the pauses.
    tokio::time::sleep(Duration::from_millis(250 + 13 * number % 128)).await;
    waiter
}

/// Returns the time from each release of a foreign holder to the grant.
async fn releases(url: &str, other: &mut Cli) -> Result<Vec<Duration>> {
    let locks = LockManager::connect(url).await?;
    let lock = locks.simple_lock("n");
    let mut took = Vec::new();
    for number in 0..RELEASES {
        other.query(&["SET", "n", "foreign", "NX", "PX", "30000"])?;
        let waiter = waiter(&lock, number).await;
        let start = Instant::now();
        other.query(&["DEL", "n"])?;
        let (granted, guard) = waiter.await??;
        took.push(granted.saturating_duration_since(start));
        guard.release().await?;
    }
    Ok(took)
}

/// Measures the time from the deletion of all keys until each of [`STORM`] guards knows of its loss, and the scripts that this takes.
fn storm(report: &mut Report, runtime: &Runtime) -> Result<()> {
    if !report.wants("storm") {
        return Ok(());
    }
    let (mut first, mut last, mut requests) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..report.rounds() {
        let server = RedisServer::start();
        let mut operator = server.connect()?;
        let (took, scripts) = runtime.block_on(flush(&server, &mut operator))?;
        first.push(took[0].as_secs_f64() * 1e3);
        last.push(took[took.len() - 1].as_secs_f64() * 1e3);
        requests.push(scripts);
    }
    let row = format!("storm of {STORM} losses");
    report.row(&row, "wheellock", "first", "ms", &first);
    report.row(&row, "wheellock", "last", "ms", &last);
    report.row(&row, "wheellock", "scripts", "requests", &requests);
    Ok(())
}

/// Returns the time until each loss in order, and the number of scripts.
async fn flush(server: &RedisServer, operator: &mut Cli) -> Result<(Vec<Duration>, f64)> {
    let locks = LockManager::builder(server.url()).watchdog_lease(STORM_LEASE).connect().await?;
    let mut losses = JoinSet::new();
    let mut names: Vec<_> = (0..STORM).map(|number| format!("n{number}")).collect();
    while !names.is_empty() {
        let some = names.split_off(names.len().saturating_sub(HELD));
        let mut acquires = JoinSet::new();
        for name in some {
            let lock = locks.lock(&name);
            acquires.spawn(async move { lock.acquire().await });
        }
        while let Some(guard) = acquires.join_next().await {
            let guard = guard??;
            losses.spawn(async move {
                guard.lost().await;
                Instant::now()
            });
        }
    }
    let (waited, renewed) = (Instant::now(), || locks.metrics().renewals);
    while renewed() < u64::try_from(STORM)? {
        tokio::time::sleep(Duration::from_millis(50)).await;
        ensure!(waited.elapsed() < STORM_LEASE, "{} of {STORM} locks were renewed", renewed());
    }
    operator.query(&["CONFIG", "RESETSTAT"])?;
    let start = Instant::now();
    operator.query(&["FLUSHALL", "ASYNC"])?;
    let mut took = Vec::new();
    while let Some(told) = losses.join_next().await {
        took.push(told?.saturating_duration_since(start));
    }
    took.sort_unstable();
    Ok((took, scripts(operator)?))
}

/// Returns the number of scripts that the server has run.
fn scripts(operator: &mut Cli) -> Result<f64> {
    let info = operator.query(&["INFO", "commandstats"])?.to_string();
    let calls = info.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls=")?.split(',').next());
    Ok(calls.unwrap_or("0").parse()?)
}

/// Returns the time until each guard learnt of its loss. Fails if a renewal may have found a loss.
async fn round(server: &RedisServer, operator: &mut Cli, acquire: Acquire) -> Result<Vec<Duration>> {
    let locks = LockManager::builder(server.url()).watchdog_lease(LEASE).connect().await?;
    let mut guards = Vec::new();
    for number in 0..HELD {
        guards.push(acquire(&locks, format!("n{number}")).await?);
    }
    let mut waited = Instant::now();
    while tracked(operator)? < HELD {
        tokio::time::sleep(Duration::from_millis(5)).await;
        ensure!(waited.elapsed() < LEASE, "the server remembers {} of {HELD} keys", tracked(operator)?);
    }
    waited = Instant::now();
    let mut took = Vec::new();
    for (number, guard) in guards.iter().enumerate() {
        let start = Instant::now();
        // The second key has the permits.
        operator.query(&["DEL", &format!("n{number}"), &format!("{{n{number}}}:timeout")])?;
        guard.lost().await;
        took.push(start.elapsed());
    }
    ensure!(waited.elapsed() < LEASE / 3, "a renewal may have found the losses");
    Ok(took)
}

/// Returns the number of keys that the server remembers for its clients.
fn tracked(operator: &mut Cli) -> Result<usize> {
    let info = operator.query(&["INFO", "stats"])?.to_string();
    let line = info.lines().find_map(|line| line.strip_prefix("tracking_total_keys:"));
    Ok(line.unwrap_or_default().trim().parse()?)
}
