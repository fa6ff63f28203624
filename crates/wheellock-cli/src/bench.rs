//! Measures what locks cost on the user's server. Owns what is measured, and leaves nothing there.

use std::time::{Duration, Instant};

use wheellock::client::Command;
use wheellock::{Error, Lock, LockManager};

use crate::arguments::Bench;
use crate::end::{End, Failure, say};
use crate::signals::Signals;

pub(crate) async fn measure(options: &Bench) -> Result<End, Failure> {
    let signals = Signals::new();
    let mut signals =
        signals.map_err(|error| Failure::of(End::Unavailable, format!("no signals: {error}")))?;
    let builder = || LockManager::builder(&options.target.url).watchdog_lease(LEASE);
    let locks = builder().connect().await?;
    let without = builder().hand_over(Duration::ZERO).connect().await?;
    let end = tokio::select! {
        measured = all(options, &locks, &without) => measured.map(|()| End::Success),
        signal = signals.next() => Ok(End::Signal(signal.as_raw())),
    };
    // Also if it was interrupted, or failed: nothing is left.
    for locks in [locks, without] {
        let left = locks.shutdown(LAST_WORDS).await;
        if !left.is_empty() {
            crate::end::complain(&left.to_string());
        }
    }
    end
}

async fn all(options: &Bench, locks: &LockManager, without: &LockManager) -> Result<(), Failure> {
    let name = format!("wheellock:bench:{}", locks.id());
    say(&format!(
        "{}, {} s each; times are those of this machine, this network and this server\n\n{:<44} {:>9} {:>9} {:>9} {:>9} {:>9} {:>10}\n",
        locks.client().server_address(),
        options.time.as_secs_f64(),
        "",
        "p50 us",
        "p90 us",
        "p99 us",
        "p99.9 us",
        "max us",
        "per second"
    ));
    let client = locks.client();
    let ping = repeat(options.time, async || client.call(&Command::new("PING")).await.map(drop)).await;
    show("round trip (PING)", ping.map_err(|error| Failure::of(End::Unavailable, error))?, options.time);
    let lock = locks.lock(&name);
    show(
        "acquire + release, nobody else wants it",
        repeat(options.time, async || pair(&lock).await).await?,
        options.time,
    );
    for (locks, how) in [(locks, "handed over"), (without, "always the server")] {
        let title = format!("hot lock, {} tasks, {how}", options.tasks);
        let tasks = tokio::task::LocalSet::new();
        let samples = tasks.run_until(contend(&locks.lock(&name), options)).await?;
        show(&title, samples, options.time);
    }
    say("\nof the hot lock the time is one task's: from asking for the lock until it has given it back\n");
    Ok(())
}

async fn pair(lock: &Lock) -> Result<(), Error> {
    lock.acquire().await?.release().await.map(drop)
}

/// Does it one after the other for so long; how long each took.
async fn repeat<E>(time: Duration, mut work: impl AsyncFnMut() -> Result<(), E>) -> Result<Vec<Duration>, E> {
    let begin = Instant::now();
    let mut samples = Vec::new();
    while begin.elapsed() < time && samples.len() < MOST_SAMPLES {
        let start = Instant::now();
        work().await?;
        samples.push(start.elapsed());
    }
    Ok(samples)
}

async fn contend(lock: &Lock, options: &Bench) -> Result<Vec<Duration>, Failure> {
    let (time, mut tasks) = (options.time, tokio::task::JoinSet::new());
    for _ in 0..options.tasks {
        let lock = lock.clone();
        tasks.spawn_local(async move { repeat(time, async || pair(&lock).await).await });
    }
    let mut samples = Vec::new();
    while let Some(ended) = tasks.join_next().await {
        samples.extend(ended.map_err(|error| Failure::of(End::Unavailable, error))??);
    }
    Ok(samples)
}

fn show(what: &str, mut samples: Vec<Duration>, time: Duration) {
    samples.sort_unstable();
    let at = |share: f64| {
        let last = samples.len().saturating_sub(1);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a place among the samples"
        )]
        let place = (last as f64 * share).round() as usize;
        samples.get(place).copied().unwrap_or_default().as_secs_f64() * 1e6
    };
    let [p50, p90, p99, p999, max] = [0.5, 0.9, 0.99, 0.999, 1.0].map(at);
    let rate = samples.len() as f64 / time.as_secs_f64();
    say(&format!("{what:<44} {p50:>9.1} {p90:>9.1} {p99:>9.1} {p999:>9.1} {max:>9.1} {rate:>10.0}\n"));
}

/// Memory has an end, however long is measured.
const MOST_SAMPLES: usize = 4_000_000;
/// Should this tool be killed, its lock is gone that soon.
const LEASE: Duration = Duration::from_secs(5);
const LAST_WORDS: Duration = Duration::from_secs(1);
