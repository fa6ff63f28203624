//! Many workers, one job each at a time per customer: locks by name, taken in many tasks over one connection.
//!
//! ```text
//! REDIS_URL=redis://127.0.0.1:6379 cargo run -p wheellock --example workers
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use wheellock::LockManager;

const CUSTOMERS: usize = 4;
const WORKERS: usize = 32;
const JOBS: usize = 10;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:6379".to_owned());
    let locks = LockManager::connect(&url).await?;
    let busy: Arc<[AtomicU32; CUSTOMERS]> = Arc::default();

    let workers: Vec<_> = (0..WORKERS)
        .map(|worker| {
            let (locks, busy) = (locks.clone(), Arc::clone(&busy));
            tokio::spawn(async move {
                for job in 0..JOBS {
                    let customer = (worker + job) % CUSTOMERS;
                    let lock = locks.lock(&format!("workers-example-{}:{customer}", std::process::id()));
                    let _guard = lock.acquire().await?;
                    assert_eq!(busy[customer].fetch_add(1, Ordering::SeqCst), 0, "two at one customer");
                    tokio::task::yield_now().await;
                    busy[customer].fetch_sub(1, Ordering::SeqCst);
                    // Dropping the guard releases in the background; the next worker is woken.
                }
                Ok::<(), wheellock::Error>(())
            })
        })
        .collect();
    for worker in workers {
        worker.await??;
    }
    let stats = locks.client().stats();
    println!("{} jobs done, {} commands over one connection", WORKERS * JOBS, stats.calls);
    Ok(())
}
