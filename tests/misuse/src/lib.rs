//! Statements that forget a result.
//!
//! The compiler must warn of each line that ends with a mark. The test `misuse` of `wheellock-tests` compares its warnings
//! with the marks. Without `--cfg misuse` this crate is empty.
#![cfg(misuse)]
#![allow(missing_docs, missing_debug_implementations)]

use std::time::Duration;

use wheellock::{Error, Guard, LockManager, RedLockManager, blocking, multi_lock};

const WAIT: Duration = Duration::from_secs(1);

/// The work would go on without the lock.
pub async fn refusals(locks: LockManager, servers: RedLockManager) -> Result<(), Error> {
    let sides = locks.read_write_lock("sides");
    let set = multi_lock([locks.lock("a"), locks.lock("b")])?;
    locks.lock("orders").try_acquire().await?; // warns
    locks.lock("orders").try_acquire_for(WAIT).await?; // warns
    locks.fair_lock("orders").try_acquire().await?; // warns
    locks.fair_lock("orders").try_acquire_for(WAIT).await?; // warns
    locks.fenced_lock("orders").try_acquire().await?; // warns
    locks.fenced_lock("orders").try_acquire_for(WAIT).await?; // warns
    locks.spin_lock("orders").try_acquire().await?; // warns
    locks.simple_lock("orders").try_acquire_for(WAIT).await?; // warns
    sides.read().try_acquire().await?; // warns
    sides.write().try_acquire_for(WAIT).await?; // warns
    locks.semaphore("orders").try_acquire(2).await?; // warns
    locks.semaphore("orders").try_acquire_for(2, WAIT).await?; // warns
    locks.permit_semaphore("orders").try_acquire().await?; // warns
    locks.permit_semaphore("orders").try_acquire_for(WAIT).await?; // warns
    locks.permit_semaphore("orders").try_acquire_many(2).await?; // warns
    locks.permit_semaphore("orders").try_acquire_many_for(2, WAIT).await?; // warns
    set.try_acquire().await?; // warns
    set.try_acquire_for(WAIT).await?; // warns
    servers.lock("orders").try_acquire().await?; // warns
    servers.lock("orders").try_acquire_for(WAIT).await?; // warns
    locks.election("orders").try_campaign().await?; // warns
    locks.election("orders").try_campaign_for(WAIT).await?; // warns
    locks.lock("orders").try_acquire().await?.acquired(); // warns
    locks.lock("orders").try_acquire().await?.is_acquired(); // warns
    locks.lock("orders").try_acquire().await?.or_held(); // warns
    locks.lock("orders").try_acquire().await?.or_held()?; // warns
    locks.lock("orders").try_acquire().await?.map(drop); // warns
    Ok(())
}

/// The work may not have run.
pub async fn closures(locks: LockManager, servers: RedLockManager) -> Result<(), Error> {
    let set = multi_lock([locks.lock("a"), locks.lock("b")])?;
    locks.lock("orders").try_run(async |_| Ok::<_, Error>(())).await?; // warns
    locks.lock("orders").run_for(WAIT, async |_| Ok::<_, Error>(())).await?; // warns
    locks.fenced_lock("orders").try_run(async |_| Ok::<_, Error>(())).await?; // warns
    locks.fenced_lock("orders").run_for(WAIT, async |_| Ok::<_, Error>(())).await?; // warns
    locks.permit_semaphore("orders").try_run(async |_| Ok::<_, Error>(())).await?; // warns
    locks.permit_semaphore("orders").run_for(WAIT, async |_| Ok::<_, Error>(())).await?; // warns
    set.try_run(async |_| Ok::<_, Error>(())).await?; // warns
    set.run_for(WAIT, async |_| Ok::<_, Error>(())).await?; // warns
    servers.lock("orders").try_run(async |_| Ok::<_, Error>(())).await?; // warns
    servers.lock("orders").run_for(WAIT, async |_| Ok::<_, Error>(())).await?; // warns
    locks.lock("orders").run(async |_| Ok::<_, Error>(())).await; // warns
    Ok(())
}

/// The lock may have been lost under the work.
pub async fn releases(locks: LockManager, servers: RedLockManager, guard: Guard) -> Result<(), Error> {
    let set = multi_lock([locks.lock("a"), locks.lock("b")])?.acquire().await?;
    guard.run(async { Ok::<_, Error>(()) }).await; // warns
    guard.release().await; // warns
    locks.lock("orders").acquire().await?.release(); // warns
    locks.fenced_lock("orders").acquire().await?.release().await; // warns
    locks.semaphore("orders").acquire(2).await?.release().await; // warns
    locks.permit_semaphore("orders").acquire().await?.release().await; // warns
    locks.election("orders").campaign().await?.resign().await; // warns
    servers.lock("orders").acquire().await?.release().await; // warns
    set.release().await; // warns
    Ok(())
}

/// The guard ends with the statement.
pub async fn guards(locks: LockManager, servers: RedLockManager) -> Result<(), Error> {
    let set = multi_lock([locks.lock("a"), locks.lock("b")])?;
    locks.lock("orders").acquire().await?; // warns
    locks.fenced_lock("orders").acquire().await?; // warns
    locks.semaphore("orders").acquire(2).await?; // warns
    locks.permit_semaphore("orders").acquire().await?; // warns
    locks.election("orders").campaign().await?; // warns
    servers.lock("orders").acquire().await?; // warns
    set.acquire().await?; // warns
    Ok(())
}

/// The statement makes a handle, and takes no lock.
pub fn handles(locks: &LockManager, servers: &RedLockManager) -> Result<(), Error> {
    locks.lock("orders"); // warns
    locks.fair_lock("orders"); // warns
    locks.fenced_lock("orders"); // warns
    locks.spin_lock("orders"); // warns
    locks.simple_lock("orders"); // warns
    locks.read_write_lock("orders"); // warns
    locks.read_write_lock("orders").read(); // warns
    locks.semaphore("orders"); // warns
    locks.permit_semaphore("orders"); // warns
    locks.count_down_latch("orders"); // warns
    locks.election("orders"); // warns
    locks.lock("orders").with_lease(WAIT); // warns
    servers.lock("orders"); // warns
    servers.simple_lock("orders"); // warns
    multi_lock([locks.lock("a"), locks.lock("b")])?; // warns
    Ok(())
}

/// The same for threads.
pub fn threads(locks: &blocking::LockManager, servers: &blocking::RedLockManager) -> Result<(), Error> {
    let set = blocking::multi_lock([locks.lock("a"), locks.lock("b")])?;
    locks.lock("orders").try_acquire()?; // warns
    locks.lock("orders").try_acquire_for(WAIT)?; // warns
    locks.read_write_lock("orders").read().try_acquire()?; // warns
    locks.fenced_lock("orders").try_acquire()?; // warns
    locks.semaphore("orders").try_acquire(2)?; // warns
    locks.semaphore("orders").try_acquire_for(2, WAIT)?; // warns
    locks.permit_semaphore("orders").try_acquire()?; // warns
    locks.permit_semaphore("orders").try_acquire_many(2)?; // warns
    locks.permit_semaphore("orders").try_acquire_many_for(2, WAIT)?; // warns
    locks.election("orders").try_campaign()?; // warns
    locks.election("orders").try_campaign_for(WAIT)?; // warns
    servers.lock("orders").try_acquire()?; // warns
    set.try_acquire()?; // warns
    set.try_acquire_for(WAIT)?; // warns
    set.try_run(|_| Ok::<_, Error>(()))?; // warns
    set.run_for(WAIT, |_| Ok::<_, Error>(()))?; // warns
    locks.lock("orders").acquire()?.release(); // warns
    locks.semaphore("orders").acquire(2)?.release(); // warns
    locks.permit_semaphore("orders").acquire()?.release(); // warns
    locks.election("orders").campaign()?.resign(); // warns
    set.acquire()?.release(); // warns
    locks.lock("orders").acquire()?; // warns
    locks.lock("orders"); // warns
    locks.fair_lock("orders"); // warns
    locks.read_write_lock("orders"); // warns
    locks.semaphore("orders"); // warns
    locks.permit_semaphore("orders"); // warns
    locks.count_down_latch("orders"); // warns
    locks.election("orders"); // warns
    servers.lock("orders"); // warns
    blocking::multi_lock([locks.lock("a"), locks.lock("b")])?; // warns
    Ok(())
}

/// Statements without a warning: the caller says what becomes of the result.
pub async fn kept(locks: LockManager) -> Result<(), Error> {
    let guard = locks.lock("orders").try_acquire().await?.or_held()?;
    guard.release().await?;
    locks.lock("orders").run(async |_| Ok::<_, Error>(())).await?;
    drop(locks.lock("orders").acquire().await?);
    Ok(())
}
