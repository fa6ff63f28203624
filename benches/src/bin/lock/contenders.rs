//! Contenders: this project's locks, four other crates, and bare sockets.
//!
//! The bare sockets use Redisson's scheme. This module has the setup of each contender.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use distkit::lock::{LockGuardState, LockOptions};

/// One process's access to the locks of a server.
pub(crate) trait Manager: Sized + Send + Sync + 'static {
    /// A lock by name.
    type Lock: Lock;

    /// Creates a manager with connections of its own.
    fn connect(url: &str, polling: Polling) -> impl Future<Output = Result<Self>>;

    /// Returns a handle that a task keeps.
    fn lock(&self, name: &str) -> Self::Lock;
}

/// A lock that a task may acquire.
pub(crate) trait Lock: Clone + Send + Sync + 'static {
    /// Proof of holding the lock.
    type Guard: Send + 'static;

    /// Waits until the lock is acquired.
    fn acquire(&self) -> impl Future<Output = Result<Self::Guard>> + Send;

    /// Releases the lock and waits for the server's reply. Fails unless the lock was held until now.
    fn release(guard: Self::Guard) -> impl Future<Output = Result<()>> + Send;
}

/// The poll interval of contenders that poll. Contenders with notifications ignore it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Polling {
    /// The crate's own default.
    Default,
    /// Every 5 ms: fast, but expensive for the server.
    Fast,
}

const FAST: Duration = Duration::from_millis(5);

/// The lease of all contenders, the default of Redisson's watchdog.
pub(crate) const LEASE: Duration = Duration::from_secs(30);

impl Manager for wheellock::LockManager {
    type Lock = wheellock::Lock;

    async fn connect(url: &str, _: Polling) -> Result<Self> {
        Ok(Self::connect(url).await?)
    }

    fn lock(&self, name: &str) -> wheellock::Lock {
        self.lock(name)
    }
}

impl Lock for wheellock::Lock {
    type Guard = wheellock::Guard;

    async fn acquire(&self) -> Result<wheellock::Guard> {
        Ok(self.acquire().await?)
    }

    async fn release(guard: wheellock::Guard) -> Result<()> {
        guard.release().await?;
        Ok(())
    }
}

/// Locks of other kinds, of the same manager.
pub(crate) struct OfKind<const KIND: usize>(wheellock::LockManager);

/// The name of a kind in the tables, and the function that creates a lock of it.
pub(crate) type KindRow = (&'static str, fn(&wheellock::LockManager, &str) -> wheellock::Lock);

pub(crate) const KINDS: [KindRow; 5] = [
    ("wheellock simple", |locks, name| locks.simple_lock(name)),
    ("wheellock fenced", |locks, name| locks.fenced_lock(name).as_lock().clone()),
    ("wheellock read", |locks, name| locks.read_write_lock(name).read()),
    ("wheellock write", |locks, name| locks.read_write_lock(name).write()),
    ("wheellock fair", |locks, name| locks.fair_lock(name)),
];

impl<const KIND: usize> Manager for OfKind<KIND> {
    type Lock = wheellock::Lock;

    async fn connect(url: &str, _: Polling) -> Result<Self> {
        Ok(Self(wheellock::LockManager::connect(url).await?))
    }

    fn lock(&self, name: &str) -> wheellock::Lock {
        KINDS.get(KIND).map_or_else(|| self.0.lock(name), |(_, make)| make(&self.0, name))
    }
}

/// The same manager with locks that survive a failover, on a server without replicas.
pub(crate) struct Surviving(wheellock::LockManager);

impl Manager for Surviving {
    type Lock = wheellock::Lock;

    async fn connect(url: &str, _: Polling) -> Result<Self> {
        let mut fleet = wheellock::Fleet::of_servers(1);
        fleet.may_be_new = true;
        let builder = wheellock::LockManager::builder(url).keep_locks_across_failovers(fleet);
        Ok(Self(builder.connect().await?))
    }

    fn lock(&self, name: &str) -> wheellock::Lock {
        self.0.lock(name)
    }
}

/// The `rslock` crate: SET NX, no watchdog in this use, polls.
pub(crate) struct RsLock(rslock::LockManager);

impl Manager for RsLock {
    type Lock = RsLockHandle;

    async fn connect(url: &str, polling: Polling) -> Result<Self> {
        let mut manager = rslock::LockManager::new(vec![url]);
        if polling == Polling::Fast {
            manager.set_retry(3, FAST);
        }
        Ok(Self(manager))
    }

    fn lock(&self, name: &str) -> RsLockHandle {
        RsLockHandle { manager: self.0.clone(), name: name.to_owned() }
    }
}

#[derive(Clone)]
pub(crate) struct RsLockHandle {
    manager: rslock::LockManager,
    name: String,
}

impl Lock for RsLockHandle {
    type Guard = rslock::LockGuard;

    async fn acquire(&self) -> Result<rslock::LockGuard> {
        Ok(self.manager.acquire(self.name.as_str(), LEASE).await?)
    }

    async fn release(guard: rslock::LockGuard) -> Result<()> {
        guard.release().await;
        Ok(())
    }
}

/// The mode in which a peer's lock is acquired.
pub(crate) const MUTEX: usize = 0;
pub(crate) const READ: usize = 1;
pub(crate) const WRITE: usize = 2;

/// The `rlock` crate: a script, a renewal task per lock, polls.
pub(crate) struct RLock<const WAY: usize> {
    locks: rlock::async_lock::RLock,
    options: rlock::AcquireOptions,
}

impl<const WAY: usize> Manager for RLock<WAY> {
    type Lock = RLockHandle<WAY>;

    async fn connect(url: &str, polling: Polling) -> Result<Self> {
        let options = rlock::AcquireOptions::builder().ttl(LEASE);
        let options = if polling == Polling::Fast { options.retry_interval(FAST) } else { options };
        Ok(Self { locks: rlock::async_lock::RLock::new(url).await?, options: options.build()? })
    }

    fn lock(&self, name: &str) -> RLockHandle<WAY> {
        RLockHandle { locks: self.locks.clone(), options: self.options.clone(), name: name.to_owned() }
    }
}

#[derive(Clone)]
pub(crate) struct RLockHandle<const WAY: usize> {
    locks: rlock::async_lock::RLock,
    options: rlock::AcquireOptions,
    name: String,
}

pub(crate) enum RLockGuard {
    Mutex(rlock::async_lock::RLockGuard),
    Read(rlock::async_lock::RReadLockGuard),
    Write(rlock::async_lock::RWriteLockGuard),
}

impl<const WAY: usize> Lock for RLockHandle<WAY> {
    type Guard = RLockGuard;

    async fn acquire(&self) -> Result<RLockGuard> {
        let Self { locks, options, name } = self;
        let options = options.clone();
        Ok(match WAY {
            READ => RLockGuard::Read(locks.acquire_read_with_options(name, options).await?),
            WRITE => RLockGuard::Write(locks.acquire_write_with_options(name, options).await?),
            _ => RLockGuard::Mutex(locks.acquire_mutex_with_options(name, options).await?),
        })
    }

    async fn release(guard: RLockGuard) -> Result<()> {
        match guard {
            RLockGuard::Mutex(mut guard) => guard.release().await?,
            RLockGuard::Read(mut guard) => guard.release().await?,
            RLockGuard::Write(mut guard) => guard.release().await?,
        }
        Ok(())
    }
}

/// The `distkit` crate: SET NX, or a script for readers and writers, a renewal task per hold, polls.
pub(crate) struct Distkit<const WAY: usize> {
    connection: redis_1::aio::ConnectionManager,
    polling: Polling,
}

impl<const WAY: usize> Manager for Distkit<WAY> {
    type Lock = DistkitHandle<WAY>;

    async fn connect(url: &str, polling: Polling) -> Result<Self> {
        let connection = redis_1::Client::open(url)?.get_connection_manager().await?;
        Ok(Self { connection, polling })
    }

    fn lock(&self, name: &str) -> DistkitHandle<WAY> {
        // This crate allows no colons.
        let key = distkit::DistkitRedisKey::new_or_panic(name.replace(':', "-"));
        let options = LockOptions::builder(key, self.connection.clone()).ttl(LEASE);
        DistkitHandle::new(
            if self.polling == Polling::Fast { options.retry_interval(FAST) } else { options }.build(),
        )
    }
}

/// The handle is the owner, so each clone is a new owner.
pub(crate) struct DistkitHandle<const WAY: usize> {
    options: LockOptions,
    mutex: Arc<distkit::lock::Mutex>,
    both: Arc<distkit::lock::RwLock>,
}

impl<const WAY: usize> DistkitHandle<WAY> {
    fn new(options: LockOptions) -> Self {
        let (mutex, both) = (options.clone(), options.clone());
        Self { options, mutex: distkit::lock::Mutex::new(mutex), both: distkit::lock::RwLock::new(both) }
    }
}

impl<const WAY: usize> Clone for DistkitHandle<WAY> {
    fn clone(&self) -> Self {
        let LockOptions { key, connection_manager, .. } = self.options.clone();
        let fresh = LockOptions::new(key, connection_manager);
        Self::new(LockOptions { owner_id: fresh.owner_id, ..self.options.clone() })
    }
}

pub(crate) enum DistkitGuard {
    Mutex(distkit::lock::MutexGuard),
    Read(distkit::lock::RwLockReadGuard),
    Write(distkit::lock::RwLockWriteGuard),
}

impl<const WAY: usize> Lock for DistkitHandle<WAY> {
    type Guard = DistkitGuard;

    async fn acquire(&self) -> Result<DistkitGuard> {
        Ok(match WAY {
            READ => DistkitGuard::Read(self.both.read().await?),
            WRITE => DistkitGuard::Write(self.both.write().await?),
            _ => DistkitGuard::Mutex(self.mutex.lock().await?),
        })
    }

    async fn release(guard: DistkitGuard) -> Result<()> {
        let state = match guard {
            DistkitGuard::Mutex(guard) => guard.release().await?,
            DistkitGuard::Read(guard) => guard.release().await?,
            DistkitGuard::Write(guard) => guard.release().await?,
        };
        ensure!(state == LockGuardState::Released, "the lock was lost");
        Ok(())
    }
}

/// The `async-redis-lock` crate: a script, a renewal task per lock, polls.
pub(crate) struct AsyncRedisLock {
    locker: async_redis_lock::Locker,
    options: async_redis_lock::Options,
}

impl Manager for AsyncRedisLock {
    type Lock = AsyncRedisLockHandle;

    async fn connect(url: &str, polling: Polling) -> Result<Self> {
        let options = async_redis_lock::Options::new().timeout(None).ttl(LEASE).extend(LEASE / 3);
        let options = if polling == Polling::Fast { options.retry(FAST) } else { options };
        Ok(Self { locker: async_redis_lock::Locker::from_redis_url(url).await?, options })
    }

    fn lock(&self, name: &str) -> AsyncRedisLockHandle {
        AsyncRedisLockHandle {
            locker: self.locker.clone(),
            options: self.options.clone(),
            name: name.to_owned(),
        }
    }
}

#[derive(Clone)]
pub(crate) struct AsyncRedisLockHandle {
    locker: async_redis_lock::Locker,
    options: async_redis_lock::Options,
    name: String,
}

impl Lock for AsyncRedisLockHandle {
    type Guard = async_redis_lock::Lock;

    async fn acquire(&self) -> Result<Self::Guard> {
        self.locker.acquire_with_options(&self.options, self.name.as_str()).await.context("acquire")
    }

    async fn release(guard: Self::Guard) -> Result<()> {
        guard.release().await.context("release")
    }
}
