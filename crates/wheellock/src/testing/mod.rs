//! A server in memory, for tests of what uses locks: every kind of lock as it is shipped, without a server, a socket or a wait. Owns
//! what a test may do to that server; what the scripts mean is `server`'s.
//!
//! With the feature `testing`, for `[dev-dependencies]`:
//!
//! ```toml
//! wheellock = { version = "0.1", features = ["testing"] }
//! ```
//!
//! The library above the socket is the one that runs in production: its connection, its scripts, its watchdog, its errors. Only what
//! answers is a model, which this project's own tests compare with real servers, call by call. It knows what locks send and a few
//! commands on their keys; to everything else it answers with an error, and so it does where other data is under a key.
//!
//! # Time
//!
//! A [`Double`] that is made in a tokio runtime keeps that runtime's time. Where a test has paused it, the 30 s of a lease pass in
//! milliseconds: whenever every task waits, tokio goes on to the next moment at which one of them has something to do. Two ways to let
//! time pass say two things:
//!
//! - `tokio::time::sleep` lets everything happen meanwhile: the watchdog renews, and a lock that is held stays so;
//! - `tokio::time::advance` is a process that stood still, as in a debugger or while its machine was suspended: the leases run out.
//!
//! A double that is made outside of a runtime keeps the system's time.
//!
//! Managers for threads do not go with paused time. What waits for a thread in `spawn_blocking` keeps tokio from going on to the next
//! moment for as long as that thread works, so a wait that only time would end does not end. In a thread of its own
//! (`std::thread`) time jumps whenever the runtime is idle, whatever that thread is about: leases run out between two of its
//! steps. Make such a double outside of a runtime, or in one whose time runs.

#[doc(hidden)]
pub mod server;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, SystemTime};

use wheellock_client::{Change, Timer};

use crate::base::error::Error;
use crate::manager::{LockManager, LockManagerBuilder};
use crate::request::context::Context;
use crate::{blocking, request::watchdog};
use server::{Host, How};

/// A server in memory, and what a test may do to it. Clones are the same server; it lives as long as one of them, or a manager that
/// was made with it.
///
/// Managers are what processes are: two of them contend as two processes do.
///
/// ```
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), wheellock::Error> {
/// let double = wheellock::testing::Double::new();
/// let (here, there) = (double.manager().await?, double.manager().await?);
/// let guard = here.lock("orders:42").acquire().await?;
/// assert!(there.lock("orders:42").try_acquire().await?.is_none());
/// guard.release().await?;
/// assert!(there.lock("orders:42").try_acquire().await?.is_some());
/// # Ok(())
/// # }
/// ```
///
/// Several doubles are several independent servers: `RedLockManager::new([a.manager().await?, b.manager().await?, c.manager().await?])`.
#[derive(Clone)]
pub struct Double {
    shared: Arc<Shared>,
}

/// In which way a server is away.
///
/// ```
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), wheellock::Error> {
/// use wheellock::testing::{Double, Outage};
///
/// let double = Double::new();
/// let locks = double.manager().await?;
/// double.outage(Outage::Silent);
/// assert!(locks.lock("orders:42").try_acquire().await.is_err()); // after the response timeout
/// double.come_back();
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Outage {
    /// Its process has ended: connections break, and new ones are refused.
    Down,
    /// It does not answer, and nobody knows why: stopped, overloaded, or behind a network that is parted. What was sent to it is
    /// executed when it comes back.
    Silent,
}

impl Double {
    /// A server without data.
    ///
    /// # Panics
    ///
    /// In a tokio runtime without its time driver nothing that waits would ever go on: the task that keeps the time panics. The
    /// runtimes of `#[tokio::test]` and `#[tokio::main]` have it.
    pub fn new() -> Self {
        let timer = match tokio::runtime::Handle::try_current() {
            Ok(_) => Timer::tokio(MILLISECOND),
            Err(_) => Timer::global().clone(),
        };
        let since_epoch = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        let host = Host::new(timer, millis(since_epoch), |_| {});
        let name = format!("in-memory-{}", SERVERS.fetch_add(1, Ordering::Relaxed));
        host.change(|server| {
            server.strict = false;
            server.run_id.clone_from(&name);
        });
        let shared = Arc::new(Shared { name, host, managers: Mutex::default() });
        Self { shared }
    }

    /// A manager that is connected to this server, with default settings.
    ///
    /// # Cancel safety
    ///
    /// As [`LockManager::connect`].
    ///
    /// # Errors
    ///
    /// As [`LockManager::connect`]: [`Error::Server`] during an [`outage`](Self::outage).
    ///
    /// # Panics
    ///
    /// If called outside a tokio runtime.
    pub async fn manager(&self) -> Result<LockManager, Error> {
        self.manager_with(|settings| settings).await
    }

    /// A manager that is connected to this server, with settings.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), wheellock::Error> {
    /// use std::time::Duration;
    ///
    /// let double = wheellock::testing::Double::new();
    /// let locks = double.manager_with(|settings| settings.watchdog_lease(Duration::from_secs(10))).await?;
    /// # drop(locks);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// As [`LockManager::connect`].
    ///
    /// # Errors
    ///
    /// As [`LockManagerBuilder::connect`].
    ///
    /// # Panics
    ///
    /// If called outside a tokio runtime.
    pub async fn manager_with(
        &self,
        adjust: impl FnOnce(LockManagerBuilder) -> LockManagerBuilder,
    ) -> Result<LockManager, Error> {
        let locks = self.settings(adjust).connect().await?;
        self.remember(&locks);
        Ok(locks)
    }

    /// A manager that connects to this server in the background, as [`LockManagerBuilder::lazy`] makes it: for tests of a service that
    /// starts before its server.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), wheellock::Error> {
    /// use wheellock::testing::{Double, Outage};
    ///
    /// let double = Double::new();
    /// double.outage(Outage::Down);
    /// assert!(double.manager().await.is_err());
    /// let locks = double.lazy_manager_with(|settings| settings)?;
    /// assert!(!locks.is_healthy());
    /// double.come_back();
    /// locks.lock("orders:42").acquire().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`LockManagerBuilder::lazy`].
    ///
    /// # Panics
    ///
    /// If called outside a tokio runtime.
    pub fn lazy_manager_with(
        &self,
        adjust: impl FnOnce(LockManagerBuilder) -> LockManagerBuilder,
    ) -> Result<LockManager, Error> {
        let locks = self.settings(adjust).lazy()?;
        self.remember(&locks);
        Ok(locks)
    }

    /// A manager for threads that is connected to this server, with default settings. Not for a double of a runtime whose time is
    /// paused: see [above](self#time).
    ///
    /// ```
    /// let double = wheellock::testing::Double::new();
    /// let locks = double.blocking_manager()?;
    /// let guard = locks.lock("orders:42").acquire()?;
    /// guard.release()?;
    /// # Ok::<(), wheellock::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`blocking::LockManager::connect`].
    ///
    /// # Panics
    ///
    /// In asynchronous code; see [`blocking`].
    pub fn blocking_manager(&self) -> Result<blocking::LockManager, Error> {
        self.blocking_manager_with(|settings| settings)
    }

    /// A manager for threads that is connected to this server, with settings.
    ///
    /// # Errors
    ///
    /// As [`blocking::LockManager::connect`], and those of the settings.
    ///
    /// # Panics
    ///
    /// In asynchronous code; see [`blocking`].
    pub fn blocking_manager_with(
        &self,
        adjust: impl FnOnce(LockManagerBuilder) -> LockManagerBuilder,
    ) -> Result<blocking::LockManager, Error> {
        let locks = self.settings(adjust).connect_blocking()?;
        self.remember(&locks.to_async());
        Ok(locks)
    }

    /// Takes away from everybody what they hold under this name, of whatever kind, as if an operator had deleted it; permits become free.
    /// Returns whether anybody held anything.
    ///
    /// Who held it is told as by a real loss, and need not wait for the next renewal: the managers of this double ask the server at
    /// once.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), wheellock::Error> {
    /// # let double = wheellock::testing::Double::new();
    /// # let locks = double.manager().await?;
    /// let guard = locks.lock("orders:42").acquire().await?;
    /// assert!(double.lose("orders:42"));
    /// assert_eq!(guard.lost().await, wheellock::LostReason::NotOwner);
    /// # Ok(())
    /// # }
    /// ```
    pub fn lose(&self, name: &str) -> bool {
        let lost = self.shared.host.change(|server| {
            let lost = server.store.take_away(name);
            server.tell_all();
            lost
        });
        let managers: Vec<_> = self.managers().iter().filter_map(Weak::upgrade).collect();
        managers.iter().for_each(|context| watchdog::on_change(context, &Change::everywhere()));
        lost
    }

    /// From now on every answer and every message takes so much longer, to the millisecond. [`Duration::ZERO`] ends that.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), wheellock::Error> {
    /// # use std::time::Duration;
    /// # let double = wheellock::testing::Double::new();
    /// # let locks = double.manager().await?;
    /// double.delay(Duration::from_millis(40));
    /// let before = tokio::time::Instant::now();
    /// let _guard = locks.lock("orders:42").acquire().await?;
    /// assert!(before.elapsed() >= Duration::from_millis(40));
    /// # Ok(())
    /// # }
    /// ```
    pub fn delay(&self, answers: Duration) {
        self.shared.host.change(|server| server.faults.latency = millis(answers));
    }

    /// The next so many requests of locks are executed, and their connection breaks in place of the answer. The library repeats what it
    /// can repeat, so that a service hardly ever sees this: it is what makes an outcome
    /// [`MaybeExecuted`](crate::Outcome::MaybeExecuted) if an [`outage`](Self::outage) follows.
    pub fn lose_answers(&self, requests: usize) {
        self.shared.host.change(|server| server.faults.losses = Some((0, requests, How::Rst)));
    }

    /// From now on the server is away, until it [comes back](Self::come_back). It keeps its data, and leases run on.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), wheellock::Error> {
    /// # let double = wheellock::testing::Double::new();
    /// # let locks = double.manager().await?;
    /// use wheellock::testing::Outage;
    ///
    /// let guard = locks.lock("orders:42").acquire().await?;
    /// double.outage(Outage::Down);
    /// assert_eq!(guard.lost().await, wheellock::LostReason::Expired);
    /// assert!(locks.lock("orders:42").try_acquire().await.is_err());
    /// double.come_back();
    /// locks.lock("orders:42").acquire().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn outage(&self, outage: Outage) {
        self.shared.host.network().set_down(outage == Outage::Down);
        self.shared.host.change(|server| {
            server.faults.is_silent = outage == Outage::Silent;
            if outage == Outage::Down {
                server.end(How::Rst);
            }
        });
    }

    /// The server is there again. Nothing happens if it was not away.
    pub fn come_back(&self) {
        self.shared.host.network().set_down(false);
        self.shared.host.change(|server| server.faults.is_silent = false);
    }

    /// Everything that the server keeps is gone, as after a restart without persistence; connections stay. Holders learn of it when
    /// they renew, within a third of their lease.
    pub fn forget_everything(&self) {
        self.shared.host.change(|server| server.store.forget_everything());
    }

    /// From now on a connection with a subscription runs no other command, as in RESP2; it is confirmed by a push, or by a reply.
    #[doc(hidden)]
    pub fn block_subscribers(&self, confirms_by_push: bool) {
        self.shared.host.change(|server| {
            server.faults.subscriptions_block = true;
            server.faults.confirms_by_reply = !confirms_by_push;
        });
    }

    /// Returns the number of commands that the server has answered, without heartbeats.
    #[doc(hidden)]
    pub fn commands(&self) -> u64 {
        self.shared.host.change(|server| server.commands)
    }

    fn settings(&self, adjust: impl FnOnce(LockManagerBuilder) -> LockManagerBuilder) -> LockManagerBuilder {
        let shared = Arc::clone(&self.shared);
        let url = format!("redis://{}", shared.name);
        adjust(LockManager::builder(&url)).configure(move |config| {
            config.timer = shared.host.timer().clone();
            let open = shared.host.network().connector();
            // The server lives as long as somebody may connect to it.
            config.connector = Some(Arc::new(move || {
                let _lives = &shared;
                open()
            }));
        })
    }

    fn remember(&self, locks: &LockManager) {
        let mut managers = self.managers();
        managers.retain(|context| context.strong_count() > 0);
        managers.push(Arc::downgrade(&locks.context));
    }

    fn managers(&self) -> MutexGuard<'_, Vec<Weak<Context>>> {
        self.shared.managers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Double {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Double {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Double").field("server", &self.shared.name).finish_non_exhaustive()
    }
}

impl LockManager {
    /// A manager with a server in memory, for tests of what uses locks: see [`testing`](self). For a server that a test can take away,
    /// or that several managers share, make a [`Double`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), wheellock::Error> {
    /// let locks = wheellock::LockManager::in_memory().await?;
    /// let guard = locks.lock("orders:42").acquire().await?;
    /// # drop(guard);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// As [`LockManager::connect`].
    ///
    /// # Errors
    ///
    /// [`Error::NoRandomness`].
    ///
    /// # Panics
    ///
    /// If called outside a tokio runtime, and as [`Double::new`].
    pub async fn in_memory() -> Result<Self, Error> {
        Double::new().manager().await
    }
}

struct Shared {
    /// What tells it from other doubles, in messages too; nothing is looked up.
    name: String,
    host: Arc<Host>,
    managers: Mutex<Vec<Weak<Context>>>,
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

const MILLISECOND: Duration = Duration::from_millis(1);
/// How many servers there were, to tell them apart.
static SERVERS: AtomicU64 = AtomicU64::new(1);
