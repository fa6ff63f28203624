//! Takeover times after the crash of a holder.
//!
//! A time counts from the lease's end until a waiter has the lock.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use wheellock_tests::RedisServer;

use crate::contenders::{Lock as _, Manager, Polling};
use crate::rig::percentile;
use crate::{Figure, Stage, runtime};

/// One process acquires the lock and dies, while a task of a second manager waits for it. This repeats several times.
pub(crate) async fn play<M: Manager>(stage: Stage<'_>) -> Result<Vec<Figure>> {
    let Stage { server, key, polling, .. } = stage;
    let waiter = M::connect(&server.tcp_url(), polling).await?;
    let mut late = Vec::new();
    for death in 0..deaths() {
        let (url, key) = (server.tcp_url(), format!("{key}:{death}"));
        let wanted = waiter.lock(&key);
        tokio::task::spawn_blocking(move || holder_dies::<M>(&url, &key, polling)).await??;
        let over = left(server, death)?;
        let got = tokio::spawn(async move {
            let guard = wanted.acquire().await?;
            let got = Instant::now();
            M::Lock::release(guard).await?;
            anyhow::Ok(got)
        });
        late.push(nanos(got.await??.saturating_duration_since(over)));
    }
    Ok(figures(late))
}

/// Acquires the lock and dies. The tasks, the connections and the renewal end with the runtime, and the guard is never dropped.
fn holder_dies<M: Manager>(url: &str, key: &str, polling: Polling) -> Result<()> {
    let runtime = runtime()?;
    runtime.block_on(async {
        let holder = M::connect(url, polling).await?;
        std::mem::forget(holder.lock(key).acquire().await?);
        Ok(())
    })
}

/// Sets the remaining lease to about half a second, not in step with any poll interval. Returns the time of its end.
pub(crate) fn left(server: &RedisServer, death: u64) -> Result<Instant> {
    let keys = server.cli(&["KEYS", "*"]);
    let left = Duration::from_millis(400 + death * 377 % 200);
    ensure!(!keys.is_empty(), "the dead one holds nothing");
    for key in keys.lines() {
        ensure!(server.cli(&["PEXPIRE", key, &left.as_millis().to_string()]) == "1", "{key} is gone");
    }
    Ok(Instant::now() + left)
}

pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the figures. `late` has the nanoseconds after the end of the lease.
pub(crate) fn figures(mut late: Vec<u64>) -> Vec<Figure> {
    late.sort_unstable();
    #[expect(clippy::cast_precision_loss, reason = "figures with three digits")]
    let at = |per_mille| percentile(&late, per_mille) as f64 / 1e6;
    vec![("p50", "ms", at(500)), ("latest", "ms", at(1000))]
}

/// Returns the number of takeovers of one contender within a round.
pub(crate) fn deaths() -> u64 {
    if wheellock_benches::is_quick() { 2 } else { 8 }
}
