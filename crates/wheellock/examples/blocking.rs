//! Locks in threads, without async code: `cargo run --example blocking` with a server at `REDIS_URL` (default
//! `redis://127.0.0.1:6379`).

use std::time::Duration;

use wheellock::blocking::LockManager;
use wheellock::{Attempt, Error};

fn main() -> Result<(), Error> {
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:6379".to_owned());
    let locks = LockManager::connect(&url)?;
    let lock = locks.lock("example:blocking");

    // The thread is the owner: it may take its own lock again, others may not.
    let outer = lock.acquire()?;
    let inner = lock.acquire()?;
    println!("this thread holds it {} times", lock.hold_count(&locks.this_thread())?);
    std::thread::scope(|threads| {
        let other = threads.spawn(|| lock.try_acquire_for(Duration::from_millis(50)));
        let refused = matches!(other.join(), Ok(Ok(Attempt::Held { .. })));
        println!("another thread was refused: {refused}");
    });
    inner.release()?;
    outer.release()?;

    // Four threads, one at a time.
    let total = std::sync::atomic::AtomicU32::new(0);
    std::thread::scope(|threads| {
        for _ in 0..4 {
            threads.spawn(|| {
                let added = lock.run(|guard| {
                    debug_assert!(guard.is_valid());
                    Ok::<_, Error>(total.fetch_add(1, std::sync::atomic::Ordering::Relaxed))
                });
                added.map_err(|error| eprintln!("{error}"))
            });
        }
    });
    println!("done {} times", total.into_inner());
    Ok(())
}
