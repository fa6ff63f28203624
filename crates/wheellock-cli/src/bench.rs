//! Measures the cost of locks on the user's server.
//!
//! The measurements do not leave data on the server.

use std::cell::Cell;
use std::rc::Rc;
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
    // Shut down also after an interruption or a failure, so that no lock remains.
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
    let left = || Cell::new(MOST_SAMPLES);
    let ping = async || client.call(&Command::new("PING")).await.map(drop);
    let pinged = repeat(options.time, &left(), ping).await;
    show("round trip (PING)", pinged.map_err(|error| Failure::of(End::Unavailable, error))?);
    let lock = locks.lock(&name);
    let paired = repeat(options.time, &left(), async || pair(&lock).await).await?;
    show("acquire + release, nobody else wants it", paired);
    for (locks, how) in [(locks, "handed over"), (without, "always the server")] {
        let title = format!("hot lock, {} tasks, {how}", options.tasks);
        let tasks = tokio::task::LocalSet::new();
        show(&title, tasks.run_until(contend(&locks.lock(&name), options)).await?);
    }
    say("\nof the hot lock the time is one task's: from asking for the lock until it has given it back\n");
    Ok(())
}

async fn pair(lock: &Lock) -> Result<(), Error> {
    lock.acquire().await?.release().await.map(drop)
}

/// The result of one measurement.
struct Measured {
    /// The duration of each repetition.
    samples: Vec<Duration>,
    /// The duration of the whole measurement.
    took: Duration,
}

/// Repeats `work` one after the other. Stops after `time`, or when the `left` repetitions are used up.
async fn repeat<E>(
    time: Duration,
    left: &Cell<usize>,
    mut work: impl AsyncFnMut() -> Result<(), E>,
) -> Result<Measured, E> {
    let begin = Instant::now();
    let mut samples = Vec::new();
    while begin.elapsed() < time && left.get() > 0 {
        left.set(left.get() - 1);
        let start = Instant::now();
        work().await?;
        samples.push(start.elapsed());
    }
    Ok(Measured { samples, took: begin.elapsed() })
}

async fn contend(lock: &Lock, options: &Bench) -> Result<Measured, Failure> {
    let (time, mut tasks) = (options.time, tokio::task::JoinSet::new());
    let (begin, left) = (Instant::now(), Rc::new(Cell::new(MOST_SAMPLES)));
    for _ in 0..options.tasks {
        let (lock, left) = (lock.clone(), Rc::clone(&left));
        tasks.spawn_local(async move { repeat(time, &left, async || pair(&lock).await).await });
    }
    let mut samples = Vec::new();
    while let Some(ended) = tasks.join_next().await {
        samples.extend(ended.map_err(|error| Failure::of(End::Unavailable, error))??.samples);
    }
    Ok(Measured { samples, took: begin.elapsed() })
}

fn show(what: &str, measured: Measured) {
    let Measured { mut samples, took } = measured;
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
    let rate = samples.len() as f64 / took.as_secs_f64();
    say(&format!("{what:<44} {p50:>9.1} {p90:>9.1} {p99:>9.1} {p999:>9.1} {max:>9.1} {rate:>10.0}\n"));
}

/// Maximum number of samples. It bounds the memory for any duration and any number of tasks.
const MOST_SAMPLES: usize = 4_000_000;
/// The lease of the measured locks. If this tool is killed, its lock expires after this time.
const LEASE: Duration = Duration::from_secs(5);
const LAST_WORDS: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measurement_ending_early_reports_duration() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let hour = Duration::from_secs(3600);
        runtime.block_on(async {
            let left = Cell::new(5);
            let turn = async || {
                tokio::task::yield_now().await;
                Ok::<_, Failure>(())
            };
            let (first, second) = tokio::join!(repeat(hour, &left, turn), repeat(hour, &left, turn));
            let [first, second] =
                [first, second].map(|measured| measured.unwrap_or_else(|_| panic!("nothing fails")));
            assert_eq!(first.samples.len() + second.samples.len(), 5, "the bound is that of both");
            assert!(first.took < hour && second.took < hour);
        });
    }
}
