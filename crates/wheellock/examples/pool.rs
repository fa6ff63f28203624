//! At most three of ten workers inside at once.
//!
//! A worker that dies inside does not keep its permit.
//!
//! ```text
//! REDIS_URL=redis://127.0.0.1:6379 cargo run -p wheellock --example pool
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use wheellock::LockManager;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:6379".to_owned());
    let locks = LockManager::connect(&url).await?;
    let id = std::process::id();
    let (pool, done) =
        (locks.permit_semaphore(&format!("pool-{id}")), locks.count_down_latch(&format!("done-{id}")));
    pool.set_permits(3).await?;
    done.try_set_count(10.try_into()?).await?;

    let (inside, most) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    for _ in 0..10 {
        let (pool, done) = (pool.clone(), done.clone());
        let (inside, most) = (Arc::clone(&inside), Arc::clone(&most));
        tokio::spawn(async move {
            pool.run(async |_permit| {
                most.fetch_max(inside.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
                tokio::task::yield_now().await; // work
                inside.fetch_sub(1, Ordering::Relaxed);
                Ok::<_, wheellock::Error>(())
            })
            .await?;
            done.count_down().await
        });
    }
    done.wait().await?;
    println!("ten have been inside, at most {} at once", most.load(Ordering::Relaxed));
    assert!(most.load(Ordering::Relaxed) <= 3);

    // A permit of a dead process: no watchdog renews its lease.
    let dead = pool.with_lease(Duration::from_millis(200)).acquire().await?;
    std::mem::forget(dead);
    let three = [pool.acquire().await?, pool.acquire().await?, pool.acquire().await?];
    println!("a dead worker's permit was free again when its lease had ended");
    drop(three);
    pool.delete().await?;
    Ok(())
}
