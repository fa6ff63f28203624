//! A server in memory, for tests of code with locks.
//!
//! Every kind of lock works as shipped, without a server, a socket or a wait. This module owns the control that a test
//! has over the server. `server` models the scripts.
//!
//! Enable the feature `testing` in `[dev-dependencies]`:
//!
//! ```toml
//! wheellock = { version = "0.1", features = ["testing"] }
//! ```
//!
//! The library above the socket is the production library, with its connection, its scripts, its watchdog and its
//! errors. Only the server is a model. This project's own tests compare the model with real servers, call by call. The
//! model knows the commands of locks and a few more commands on their keys. To all other commands it replies with an
//! error. It also does so if other data is under a key.
//!
//! # Time
//!
//! A [`Double`] that is created in a tokio runtime uses that runtime's time. If a test has paused the time, the 30 s of
//! a lease pass in milliseconds. Whenever every task waits, tokio jumps to the next moment at which a task has work. A
//! test can let time pass in two ways:
//!
//! - `tokio::time::sleep` lets everything happen meanwhile. The watchdog renews, and a held lock stays held.
//! - `tokio::time::advance` acts like a process that stood still, as in a debugger or on a suspended machine. Leases
//!   expire.
//!
//! A double that is created outside of a runtime uses the system's time.
//!
//! Managers for threads do not work with paused time. While a task waits for a thread in `spawn_blocking`, tokio does
//! not jump to the next moment. So a wait that only time would end does not end. With a thread of its own
//! (`std::thread`), time jumps whenever the runtime is idle, even while that thread works. Leases may expire between
//! two of its steps. Create such a double outside of a runtime, or in a runtime whose time is not paused.

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

/// A server in memory, under the control of a test. Clones are the same server. It lives as long as its clones and its
/// managers.
///
/// Each manager acts as a process. Two managers contend as two processes do.
///
/// ```
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), wheellock::Error> {
/// let double = wheellock::testing::Double::new();
/// let (here, there) = (double.manager().await?, double.manager().await?);
/// let guard = here.lock("orders:42").acquire().await?;
/// assert!(!there.lock("orders:42").try_acquire().await?.is_acquired());
/// guard.release().await?;
/// assert!(there.lock("orders:42").try_acquire().await?.is_acquired());
/// # Ok(())
/// # }
/// ```
///
/// Several doubles act as independent servers:
/// `RedLockManager::new([a.manager().await?, b.manager().await?, c.manager().await?])`.
#[derive(Clone)]
pub struct Double {
    shared: Arc<Shared>,
}

/// The way in which a server is unavailable.
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
    /// The server's process has ended. Connections break, and new connections are refused.
    Down,
    /// The server does not reply. It may be stopped, overloaded, or behind a network partition. When it comes back, it
    /// executes the requests that were sent meanwhile.
    Silent,
}

impl Double {
    /// Creates a server without data.
    ///
    /// # Panics
    ///
    /// In a tokio runtime without its time driver: the task that keeps the time panics, and waits would never end. The
    /// runtimes of `#[tokio::test]` and `#[tokio::main]` have the driver.
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
            server.store.run_id.clone_from(&name);
        });
        let shared = Arc::new(Shared { name, host, managers: Mutex::default() });
        Self { shared }
    }

    /// Returns a manager that is connected to this server, with default settings.
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

    /// Returns a manager that is connected to this server, with the settings of `adjust`.
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

    /// Returns a manager that connects to this server in the background, as [`LockManagerBuilder::lazy`]. Use it to
    /// test a service that starts before its server.
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

    /// Returns a manager for threads that is connected to this server, with default settings. Do not use it with a
    /// double in a runtime whose time is paused: see [above](self#time).
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

    /// Returns a manager for threads that is connected to this server, with the settings of `adjust`.
    ///
    /// # Errors
    ///
    /// As [`blocking::LockManager::connect`], and the errors of the settings.
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

    /// Takes all holds under this name away, of any kind, as if an operator had deleted the key. Permits become free.
    /// Returns true if anything was held.
    ///
    /// The guards are notified as of a real loss. They need not wait for the next renewal, because the managers of this
    /// double poll the server at once.
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
    pub fn lose(&self, name: impl AsRef<str>) -> bool {
        let name = name.as_ref();
        let lost = self.shared.host.change(|server| {
            let lost = server.store.take_away(name);
            server.tell_all();
            lost
        });
        let managers: Vec<_> = self.managers().iter().filter_map(Weak::upgrade).collect();
        managers.iter().for_each(|context| watchdog::on_change(context, &Change::everywhere()));
        lost
    }

    /// Delays every reply and every message by this time, to the millisecond, from now on. [`Duration::ZERO`] ends
    /// that.
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

    /// Loses the replies to the next `requests` requests of locks. Each request is executed, and its connection breaks
    /// instead of the reply.
    ///
    /// The library retries where it can, so a service hardly ever notices. If an [`outage`](Self::outage) follows, the
    /// outcome of an error is [`MaybeExecuted`](crate::Outcome::MaybeExecuted).
    pub fn lose_answers(&self, requests: usize) {
        self.shared.host.change(|server| server.faults.losses = Some((0, requests, How::Rst)));
    }

    /// Makes the server unavailable until it [comes back](Self::come_back). The server keeps its data, and leases run
    /// on.
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

    /// Makes the server available again. Does nothing if it is available.
    pub fn come_back(&self) {
        self.shared.host.network().set_down(false);
        self.shared.host.change(|server| server.faults.is_silent = false);
    }

    /// Deletes all data of the server, as after a restart without persistence. Connections stay. Holders notice when
    /// they renew, or earlier if the server tells them of the change.
    pub fn forget_everything(&self) {
        self.shared.host.change(|server| server.store.forget_everything());
    }

    /// Blocks other commands on connections with a subscription from now on, as in RESP2. A push or a reply confirms a
    /// subscription.
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
            // The connector keeps the server alive while a manager may connect to it.
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
    /// Returns a manager with a server in memory, for tests of code that uses locks: see [`testing`](self). Create a
    /// [`Double`] for a server with outages or with several managers.
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
    /// Name that differs between doubles, also in messages. It is never resolved.
    name: String,
    host: Arc<Host>,
    managers: Mutex<Vec<Weak<Context>>>,
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

const MILLISECOND: Duration = Duration::from_millis(1);
/// Number of servers created so far, which makes their names differ.
static SERVERS: AtomicU64 = AtomicU64::new(1);
