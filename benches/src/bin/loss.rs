//! Time from a deletion of a held lock until its holder knows of the loss.
//!
//! `loss [--rounds N] [words]` runs the kinds whose names contain the words. Another client deletes [`HELD`] locks per round, one after the
//! other, and waits each time until [`lost`](wheellock::Guard::lost) resolves. The locks are renewed once before, and not again meanwhile.

use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use tokio::runtime::Builder;
use wheellock::{Error, Guard, LockManager};
use wheellock_benches::Report;
use wheellock_tests::{Cli, RedisServer};

/// Number of locks per round.
const HELD: usize = 1000;
/// The watchdog renews after a third of it, which is longer than the deletions of a round take.
const LEASE: Duration = Duration::from_secs(15);

type Acquire = fn(&LockManager, String) -> Pin<Box<dyn Future<Output = Result<Guard, Error>> + '_>>;

const KINDS: [(&str, Acquire); 6] = [
    ("plain", |locks, name| Box::pin(async move { locks.lock(name).acquire().await })),
    ("fair", |locks, name| Box::pin(async move { locks.fair_lock(name).acquire().await })),
    ("read", |locks, name| Box::pin(async move { locks.read_write_lock(name).read().acquire().await })),
    ("write", |locks, name| Box::pin(async move { locks.read_write_lock(name).write().acquire().await })),
    ("simple", |locks, name| Box::pin(async move { locks.simple_lock(name).acquire().await })),
    ("fixed lease", |locks, name| {
        Box::pin(async move { locks.lock(name).with_lease(LEASE * 4).acquire().await })
    }),
];

fn main() -> Result<()> {
    let mut report = Report::new("loss");
    let runtime = Builder::new_current_thread().enable_all().build()?;
    for (kind, acquire) in KINDS {
        if !report.wants(kind) {
            continue;
        }
        let server = RedisServer::start();
        let mut operator = server.connect()?;
        let (mut middle, mut late, mut latest) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..report.rounds() {
            let mut took = runtime.block_on(round(&server, &mut operator, acquire))?;
            took.sort_unstable();
            let micros = |part: usize| took[(took.len() - 1) * part / 1000].as_secs_f64() * 1e6;
            middle.push(micros(500));
            late.push(micros(990));
            latest.push(micros(1000));
        }
        report.row(kind, "wheellock", "p50", "us", &middle);
        report.row(kind, "wheellock", "p99", "us", &late);
        report.row(kind, "wheellock", "most", "us", &latest);
    }
    report.finish()
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
        operator.query(&["DEL", &format!("n{number}")])?;
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
