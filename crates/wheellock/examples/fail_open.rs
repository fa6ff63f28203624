//! The server is down: work without the lock (fail open), or refuse (fail closed).
//!
//! Fail open only if the lock saves work. If the lock protects data, fail closed.
//!
//! ```text
//! REDIS_URL=redis://127.0.0.1:6379 cargo run -p wheellock --example fail_open
//! ```

use std::time::Duration;

use wheellock::{Error, Guard, Lock, LockManager};

const PATIENCE: Duration = Duration::from_millis(300);

/// Returns no guard if the server is down. A held lock is still an error.
async fn open(lock: &Lock) -> Result<Option<Guard>, Error> {
    match lock.try_acquire_for(PATIENCE).await {
        Err(error) if error.is_unavailable() => Ok(None),
        attempt => attempt?.or_held().map(Some),
    }
}

/// Returns an error if the server is down.
async fn closed(lock: &Lock) -> Result<Guard, Error> {
    lock.try_acquire_for(PATIENCE).await?.or_held()
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:6379".to_owned());
    let lock = LockManager::connect(&url).await?.lock(&format!("fail-open-example-{}", std::process::id()));

    let guard = open(&lock).await?.expect("the server is up");
    assert!(matches!(open(&lock).await, Err(Error::Held { .. })), "a held lock is not an outage");
    guard.release().await?;

    // No server listens on this port. The response timeout bounds each call, so keep it short.
    let builder = LockManager::builder("redis://127.0.0.1:1");
    let down = builder.configure(|config| config.response_timeout = PATIENCE).lazy()?.lock("a");
    assert!(open(&down).await?.is_none());
    println!("{}", closed(&down).await.expect_err("the server is down"));
    Ok(())
}
