//! A lock that its owner takes twice, on purpose.
//!
//! The owner is passed to the second call.
//!
//! ```text
//! REDIS_URL=redis://127.0.0.1:6379 cargo run -p wheellock --example reentrancy
//! ```

use wheellock::{Guard, Lock, LockManager, Owner};

/// Needs the lock, whether or not its caller holds it. The caller passes its owner.
async fn rebook(account: &Lock, owner: Owner) -> Result<Guard, wheellock::Error> {
    account.with_owner(owner).acquire().await
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:6379".to_owned());
    let locks = LockManager::connect(&url).await?;
    let account = locks.lock(&format!("reentrancy-example-{}", std::process::id()));

    let outer = account.acquire().await?;
    let inner = rebook(&account, outer.owner()).await?;
    assert_eq!(account.hold_count(&outer.owner()).await?, 2);
    assert!(
        !account.try_acquire().await?.is_acquired(),
        "a fresh owner is somebody else, even in the same task"
    );

    inner.release().await?;
    assert!(account.is_held_by(&outer.owner()).await?, "one hold is left");
    outer.release().await?;
    assert!(!account.is_locked().await?);
    println!("held twice, released twice, free again");
    Ok(())
}
