//! One caller computes a value, and all callers get it, over all processes.
//!
//! ```text
//! REDIS_URL=redis://127.0.0.1:6379 cargo run -p wheellock --example single_flight
//! ```

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use wheellock::LockManager;
use wheellock::client::{Client, Command};

/// The errors of the lock, the connection and the work.
type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Returns the value under `key`. If there is none, the holder of the lock computes it, and it lives for `ttl`.
async fn single_flight(
    locks: &LockManager,
    key: &str,
    ttl: Duration,
    compute: impl AsyncFnOnce() -> Result<String, Failure>,
) -> Result<String, Failure> {
    if let Some(value) = get(locks.client(), key).await? {
        return Ok(value);
    }
    let compute_once = async |_: &_| {
        // Another holder may have computed the value while this caller waited.
        if let Some(value) = get(locks.client(), key).await? {
            return Ok(value);
        }
        let (value, millis) = (compute().await?, ttl.as_millis().to_string());
        let set = Command::new("SET").arg(key).arg(&value).arg("PX").arg(&millis);
        locks.client().call(&set).await?;
        Ok(value)
    };
    // If the computing process dies, the next caller computes after one lease.
    locks.lock(format!("{key}:lock")).run(compute_once).await
}

async fn get(client: &Client, key: &str) -> Result<Option<String>, Failure> {
    let value = client.call(&Command::new("GET").arg(key)).await?;
    Ok(value.as_str().map(str::to_owned))
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:6379".to_owned());
    // Two managers act as two processes.
    let processes = [LockManager::connect(&url).await?, LockManager::connect(&url).await?];
    let key = format!("single-flight-example-{}", std::process::id());
    static COMPUTED: AtomicUsize = AtomicUsize::new(0);
    let compute = async || {
        COMPUTED.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(50)).await; // the expensive part
        Ok("42".to_owned())
    };
    let callers: Vec<_> = (0..64)
        .map(|caller| {
            let (locks, key) = (processes[caller % 2].clone(), key.clone());
            tokio::spawn(async move { single_flight(&locks, &key, Duration::from_secs(10), compute).await })
        })
        .collect();
    for caller in callers {
        assert_eq!(caller.await??, "42");
    }
    assert_eq!(COMPUTED.load(Ordering::Relaxed), 1);
    println!("64 callers have the value, and it was computed once");
    Ok(())
}
