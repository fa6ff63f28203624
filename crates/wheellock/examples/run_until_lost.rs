//! Work that must not go on without its lock.
//!
//! ```text
//! REDIS_URL=redis://127.0.0.1:6379 cargo run -p wheellock --example run_until_lost
//! ```

use std::time::Duration;

use wheellock::{Error, LockManager};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:6379".to_owned());
    // A short lease, so that the loss shows soon: within a third of it.
    let locks = LockManager::builder(&url).watchdog_lease(Duration::from_secs(1)).connect().await?;
    let import = locks.lock(&format!("run-until-lost-example-{}", std::process::id()));

    let rows = import.run(async |_guard| Ok::<_, Error>(1000)).await?;
    println!("imported {rows} rows under the lock");

    let guard = import.acquire().await?;
    // An operator frees the lock by force while we work.
    import.force_release().await?;
    match guard.run(std::future::pending::<Result<(), Error>>()).await {
        Err(Error::Lost { reason, .. }) => println!("stopped in the middle: {reason}"),
        other => return Err(format!("expected a lost lock, got {other:?}").into()),
    }
    Ok(())
}
