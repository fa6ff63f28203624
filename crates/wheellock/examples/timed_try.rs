//! A wait for a lock with a time limit.
//!
//! ```text
//! REDIS_URL=redis://127.0.0.1:6379 cargo run -p wheellock --example timed_try
//! ```

use std::time::{Duration, Instant};

use wheellock::{Attempt, LockManager};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:6379".to_owned());
    let locks = LockManager::connect(&url).await?;
    let report = locks.lock(&format!("timed-try-example-{}", std::process::id()));

    let busy = report.acquire().await?;
    let asked = Instant::now();
    match report.try_acquire_for(Duration::from_millis(200)).await? {
        Attempt::Acquired(_guard) => unreachable!("it is held"),
        Attempt::Held { lease_left, .. } => {
            println!(
                "gave up after {:?}: another holder writes the report, for {lease_left:?}",
                asked.elapsed()
            );
        }
    }

    // The lock is released while a caller waits. The release message wakes the waiter, which does not have to poll.
    let waiter = tokio::spawn({
        let report = report.clone();
        async move { report.try_acquire_for(Duration::from_secs(30)).await }
    });
    tokio::task::yield_now().await;
    busy.release().await?;
    let guard = waiter.await??.or_held()?;
    println!("{} is ours now", guard.name());
    Ok(())
}
