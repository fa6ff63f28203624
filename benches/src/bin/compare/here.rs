//! Libraries for Rust, each with the same tasks: acquire and renew, wait up to a limit, learn of a loss, release.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use distkit::lock::{LockGuardState, LockOptions, Mutex, MutexGuard};
use rlock::async_lock::RLock;
use rlock::{AcquireOptions, LeaseState};
use tokio::task::JoinHandle;
use wheellock::{Guard, LockManager};

use super::{Holder, LEASE, NAME, row};

/// Prints the rows of these libraries.
pub(crate) async fn rows(wants: &impl Fn(&str) -> bool) -> Result<()> {
    if wants("Wheellock") {
        row::<Guard>("Wheellock").await?.print();
    }
    if wants("rslock") {
        row::<Using>("rslock").await?.print();
    }
    if wants("rlock") {
        row::<rlock::async_lock::RLockGuard>("rlock").await?.print();
    }
    if wants("distkit") {
        row::<MutexGuard>("distkit").await?.print();
    }
    if wants("async-redis-lock") {
        row::<async_redis_lock::Lock>("async-redis-lock").await?.print();
    }
    Ok(())
}

/// Holds the lock in this process.
pub(crate) async fn hold_until_killed(library: &str, url: &str) -> Result<()> {
    async fn hold<H: Holder>(url: &str) -> Result<()> {
        let _holder = H::hold(url).await?;
        println!("held");
        std::future::pending().await
    }
    match library {
        "rslock" => hold::<Using>(url).await,
        "rlock" => hold::<rlock::async_lock::RLockGuard>(url).await,
        "distkit" => hold::<MutexGuard>(url).await,
        "async-redis-lock" => hold::<async_redis_lock::Lock>(url).await,
        _ => hold::<Guard>(url).await,
    }
}

impl Holder for Guard {
    async fn hold(url: &str) -> Result<Self> {
        let locks = LockManager::builder(url).watchdog_lease(LEASE).connect().await?;
        Ok(locks.lock(NAME).acquire().await?)
    }

    async fn contend(url: &str, wait: Duration) -> Result<bool> {
        let locks = LockManager::connect(url).await?;
        Ok(locks.lock(NAME).try_acquire_for(wait).await?.is_acquired())
    }

    fn is_lost(&mut self) -> Option<bool> {
        Some(!self.is_valid())
    }

    async fn release(self) -> String {
        said(Self::release(self).await)
    }
}

/// A task that holds the lock by `using`, which ends the work if a renewal fails.
struct Using(JoinHandle<Result<(), rslock::LockError>>);

impl Holder for Using {
    async fn hold(url: &str) -> Result<Self> {
        let locks = rslock::LockManager::new(vec![url]);
        let (tell, told) = tokio::sync::oneshot::channel();
        let work = async || {
            let _told = tell.send(());
            std::future::pending::<()>().await;
        };
        let holder = tokio::spawn(async move { locks.using(NAME.as_bytes(), LEASE, work).await });
        told.await?;
        Ok(Self(holder))
    }

    async fn contend(url: &str, wait: Duration) -> Result<bool> {
        let mut locks = rslock::LockManager::new(vec![url]);
        locks.set_retry(u32::try_from(wait.as_millis() / 100)?, Duration::from_millis(200));
        Ok(locks.lock(NAME, LEASE).await.is_ok())
    }

    fn is_lost(&mut self) -> Option<bool> {
        Some(self.0.is_finished())
    }

    async fn release(self) -> String {
        "`using` has ended with an error".to_owned()
    }
}

impl Holder for rlock::async_lock::RLockGuard {
    async fn hold(url: &str) -> Result<Self> {
        let options = AcquireOptions::builder().ttl(LEASE).build()?;
        Ok(RLock::new(url).await?.acquire_mutex_with_options(NAME, options).await?)
    }

    async fn contend(url: &str, wait: Duration) -> Result<bool> {
        let options = AcquireOptions::builder().ttl(LEASE).lock_timeout(Some(wait)).build()?;
        Ok(RLock::new(url).await?.acquire_mutex_with_options(NAME, options).await.is_ok())
    }

    fn is_lost(&mut self) -> Option<bool> {
        Some(self.lease_state() == LeaseState::Lost)
    }

    async fn release(mut self) -> String {
        said(Self::release(&mut self).await)
    }
}

/// Returns the mutex of a process.
async fn mutex(url: &str) -> Result<Arc<Mutex>> {
    let connection = redis_1::Client::open(url)?.get_connection_manager().await?;
    let key = distkit::DistkitRedisKey::new_or_panic(NAME.to_owned());
    Ok(Mutex::new(LockOptions::builder(key, connection).ttl(LEASE).build()))
}

impl Holder for MutexGuard {
    async fn hold(url: &str) -> Result<Self> {
        Ok(mutex(url).await?.lock().await?)
    }

    async fn contend(url: &str, wait: Duration) -> Result<bool> {
        Ok(mutex(url).await?.try_lock_with_timeout(wait).await.is_ok())
    }

    fn is_lost(&mut self) -> Option<bool> {
        Some(self.get_state() == LockGuardState::Lost)
    }

    async fn release(self) -> String {
        said(Self::release(self).await)
    }
}

impl Holder for async_redis_lock::Lock {
    async fn hold(url: &str) -> Result<Self> {
        let options = async_redis_lock::Options::new().ttl(LEASE).extend(LEASE / 3);
        let locker = async_redis_lock::Locker::from_redis_url(url).await?;
        Ok(locker.acquire_with_options(&options, NAME).await?)
    }

    async fn contend(url: &str, wait: Duration) -> Result<bool> {
        let options = async_redis_lock::Options::new().ttl(LEASE).timeout(Some(wait));
        let locker = async_redis_lock::Locker::from_redis_url(url).await?;
        Ok(locker.acquire_with_options(&options, NAME).await.is_ok())
    }

    fn is_lost(&mut self) -> Option<bool> {
        Some(Self::is_lost(self))
    }

    async fn release(self) -> String {
        said(Self::release(self).await)
    }
}

fn said<T: std::fmt::Debug, E: std::fmt::Debug>(released: std::result::Result<T, E>) -> String {
    let text = match released {
        Ok(value) => format!("`Ok({value:?})`"),
        Err(error) => format!("`Err({error:?})`"),
    };
    text.chars().take(60).collect()
}
