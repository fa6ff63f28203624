//! Takeover times after the maximum of a hold whose holder is stuck.
//!
//! A time counts from the maximum, two seconds after the grant, until a waiter in another process has the lock.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use tokio::task::JoinSet;
use wheellock::LockManager;
use wheellock_benches::Report;
use wheellock_tests::RedisServer;

use crate::crash::{figures, nanos};
use crate::runtime;

/// Measures waiters behind holders that never look at their guards. The watchdog renews the holds until their maximum.
pub(crate) fn bench(report: &mut Report, server: &RedisServer) -> Result<()> {
    if !report.wants(NAME) {
        return Ok(());
    }
    let runtime = runtime()?;
    let (mut p50, mut latest) = (Vec::new(), Vec::new());
    for round in 0..report.rounds() {
        report.progress(NAME, round, report.rounds(), SUBJECT);
        let late = runtime.block_on(takeovers(&server.tcp_url(), round))?;
        let found = figures(late);
        for (metric, values) in [("p50", &mut p50), ("latest", &mut latest)] {
            values.extend(found.iter().filter(|(name, ..)| *name == metric).map(|(.., value)| *value));
        }
    }
    report.row(NAME, SUBJECT, "p50", "ms", &p50);
    report.row(NAME, SUBJECT, "latest", "ms", &latest);
    Ok(())
}

/// Returns the nanoseconds from each maximum to the next grant.
async fn takeovers(url: &str, round: usize) -> Result<Vec<u64>> {
    let connect = || LockManager::builder(url).watchdog_lease(LEASE).connect();
    let (holders, waiters) = (connect().await?, connect().await?);
    let mut stuck = Vec::new();
    let mut waits = JoinSet::new();
    for number in 0..LOCKS {
        let name = format!("wedged:{round}:{number}");
        let guard = holders.lock(&name).with_max_hold(MAX).acquire().await?;
        let over = Instant::now() + MAX;
        stuck.push(guard);
        let lock = waiters.lock(&name);
        waits.spawn(async move {
            let next = lock.acquire().await?;
            let late = nanos(Instant::now().saturating_duration_since(over));
            next.release().await?;
            anyhow::Ok(late)
        });
        // The maxima of the locks do not coincide.
        tokio::time::sleep(Duration::from_millis(7)).await;
    }
    let mut late = Vec::new();
    while let Some(waited) = waits.join_next().await {
        late.push(waited??);
    }
    ensure!(stuck.iter().all(|guard| !guard.is_valid()), "a holder still believes in its lock");
    Ok(late)
}

const NAME: &str = "a stuck holder's maximum ends";
const SUBJECT: &str = "wheellock";
const LOCKS: usize = 100;
const MAX: Duration = Duration::from_secs(2);
/// Shorter than the maximum, so that the watchdog renews each hold.
const LEASE: Duration = Duration::from_millis(1000);
