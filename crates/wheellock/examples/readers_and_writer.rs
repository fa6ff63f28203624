//! Several readers at once, or one writer alone.
//!
//! The writer then reads its own changes, while other readers join.
//!
//! ```text
//! REDIS_URL=redis://127.0.0.1:6379 cargo run -p wheellock --example readers_and_writer
//! ```

use wheellock::{Error, LockManager};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:6379".to_owned());
    let locks = LockManager::connect(&url).await?;
    let prices = locks.read_write_lock(&format!("readers-example-{}", std::process::id()));

    let (one, another) = (prices.read().acquire().await?, prices.read().acquire().await?);
    assert!(!prices.write().try_acquire().await?.is_acquired());
    println!("two read at once, and nobody writes");

    // The writer would wait for its own read lock, so the call fails at once.
    let upgrade = prices.write().with_owner(one.owner()).acquire().await;
    assert!(matches!(upgrade, Err(Error::Upgrade { .. })));
    one.release().await?;
    another.release().await?;

    let writing = prices.write().acquire().await?;
    assert!(!prices.read().try_acquire().await?.is_acquired());
    println!("one writes, and nobody else reads");
    let reading = prices.read().with_owner(writing.owner()).acquire().await?;
    writing.release().await?;
    let other = prices.read().try_acquire().await?.acquired().ok_or("readers may enter")?;
    println!("it reads on, and others join");
    other.release().await?;
    reading.release().await?;
    Ok(())
}
