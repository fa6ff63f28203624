//! The end of a service.
//!
//! Some workers have the lock, some wait for it, and one guard is never dropped. Afterwards every lock is free.
//!
//! ```text
//! REDIS_URL=redis://127.0.0.1:6379 cargo run -p wheellock --example shutdown
//! ```

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use wheellock::{Error, Guard, Lock, LockManager, LostReason};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:6379".to_owned());
    let locks = LockManager::connect(&url).await?;
    let name = |what: &str| format!("shutdown-example-{}:{what}", std::process::id());

    // In a service this is SIGTERM: `tokio::signal::unix::signal(SignalKind::terminate())`.
    let terminated = Arc::new(Notify::new());
    let workers: Vec<_> =
        (0..8).map(|_| tokio::spawn(work(locks.lock(&name("jobs")), Arc::clone(&terminated)))).collect();
    let forgotten = locks.lock(&name("forgotten")).acquire().await?;
    terminated.notified().await;

    let left = locks.shutdown(Duration::from_secs(2)).await;
    println!("{left}");
    if !left.is_empty() {
        return Err("the server did not answer in time".into());
    }
    println!("the guard that nobody dropped: {:?}", forgotten.lost().await);
    let mut jobs = 0;
    for worker in workers {
        jobs += worker.await??;
    }
    println!("{jobs} jobs were done before");

    // The next process can take every lock.
    let next = LockManager::connect(&url).await?;
    for what in ["jobs", "forgotten"] {
        let guard = next.lock(&name(what)).try_acquire().await?.or_held()?;
        guard.release().await?;
    }
    Ok(())
}

/// Does one job after another, each under the lock. Returns the number of jobs.
async fn work(lock: Lock, terminated: Arc<Notify>) -> Result<u32, Error> {
    let mut jobs = 0;
    loop {
        let job = async |_guard: &Guard| {
            tokio::task::yield_now().await;
            Ok::<_, Error>(())
        };
        match lock.run(job).await {
            Ok(()) => jobs += 1,
            // The worker was waiting for the lock, or wanted the lock once more.
            Err(Error::ShutDown { .. }) => return Ok(jobs),
            // The worker was in the middle of a job. The job was dropped at its current await point.
            Err(Error::Lost { reason: LostReason::ShutDown, .. }) => return Ok(jobs),
            Err(error) => return Err(error),
        }
        if jobs == 10 {
            terminated.notify_one();
        }
    }
}
