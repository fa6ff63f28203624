//! A lock that ends by itself: no watchdog, whatever happens to this process.
//!
//! ```text
//! REDIS_URL=redis://127.0.0.1:6379 cargo run -p wheellock --example fixed_lease
//! ```

use std::time::Duration;

use wheellock::{Error, LockManager};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:6379".to_owned());
    let locks = LockManager::connect(&url).await?;
    let batch = locks.lock(&format!("fixed-lease-example-{}", std::process::id()));

    let guard = batch.with_lease(Duration::from_millis(500)).acquire().await?;
    println!("ours for {:?} more by the server's clock", batch.remaining_lease().await?);
    println!("and to be believed for {:?}", guard.valid_until().remaining());

    let reason = guard.lost().await;
    println!("lost: {reason}");
    assert!(!guard.is_valid());
    // The next holder may be at work by now, and must not be disturbed.
    let next = batch.try_acquire_for(Duration::from_secs(5)).await?.acquired().ok_or("free within 5 s")?;
    assert!(matches!(guard.release().await, Err(Error::Lost { .. })));
    assert!(next.is_valid());
    println!("the late release changed nothing");
    Ok(())
}
