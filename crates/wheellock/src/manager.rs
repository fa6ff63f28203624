//! The shared context of all locks of one connection: identity, names, holds. Owns the lifetime of the keeper.

use std::borrow::Borrow;
use std::collections::HashSet;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::Waker;
use std::time::Duration;

use wheellock_client::{Client, Config, Retry, Servers};

use crate::clock::Clock;
use crate::diagnostics::{Finding, diagnose};
use crate::durability::{self, Durability, Wanted};
use crate::error::Error;
use crate::events;
use crate::holds::{Holds, Settle};
use crate::keeper;
use crate::kind::{self, Kind};
use crate::lease::Lease;
use crate::lock::Lock;
use crate::metrics::Metrics;
use crate::name::Name;
use crate::owner::{Owner, OwnerText, new_uuid};

/// Makes locks on one server. Cheap to clone; all clones share one connection, one watchdog and one identity.
#[derive(Clone)]
pub struct LockManager {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) client: Client,
    pub(crate) clock: Clock,
    /// Who we are on the wire: the part of every owner before the colon.
    pub(crate) uuid: Arc<str>,
    pub(crate) watchdog_lease: Lease,
    /// What is waited for after each grant and renewal.
    pub(crate) wanted: Option<Wanted>,
    findings: Vec<Finding>,
    next_owner: AtomicU64,
    /// Tasks that stand in line for some lock.
    pub(crate) waiting: AtomicU64,
    names: Mutex<Names>,
    holds: Mutex<Holds>,
}

/// Locks with the same name share one line of waiters, so handles to the same name share one `Name`.
#[derive(Default)]
struct Names {
    known: HashSet<ByKey>,
    purge_at: usize,
}

/// A name in a table, found by its key. The table's is the last reference to a name that nobody uses.
struct ByKey(Arc<Name>);

impl Borrow<str> for ByKey {
    fn borrow(&self) -> &str {
        self.0.key()
    }
}

impl PartialEq for ByKey {
    fn eq(&self, other: &Self) -> bool {
        self.0.key() == other.0.key()
    }
}

impl Eq for ByKey {}

impl Hash for ByKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.key().hash(state);
    }
}

/// Settings of a [`LockManager`]; made by [`LockManager::builder`].
#[derive(Debug)]
pub struct LockManagerBuilder {
    config: Result<Config, wheellock_client::Error>,
    watchdog_lease: Duration,
    durability: Durability,
    replication_timeout: Duration,
}

impl LockManager {
    /// Connects to the server at `url`, with default settings. The URL's grammar is that of
    /// [`Config`](wheellock_client::Config).
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), wheellock::Error> {
    /// let locks = wheellock::LockManager::connect("redis://127.0.0.1:6379").await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes the connection.
    ///
    /// # Errors
    ///
    /// [`Error::Server`] if the URL is wrong, or the server cannot be reached, refuses us or is too old;
    /// [`Error::NoRandomness`].
    ///
    /// # Panics
    ///
    /// If called outside a tokio runtime with I/O enabled.
    pub async fn connect(url: &str) -> Result<Self, Error> {
        Self::builder(url).connect().await
    }

    /// Starts the settings of a manager. An error in the URL is reported when connecting.
    pub fn builder(url: &str) -> LockManagerBuilder {
        LockManagerBuilder {
            config: url.parse(),
            watchdog_lease: Lease::DEFAULT.duration(),
            durability: Durability::default(),
            replication_timeout: REPLICATION_TIMEOUT,
        }
    }

    /// A reentrant lock, shared with every process that uses this name, Redisson's `getLock(name)` included. No I/O.
    pub fn lock(&self, name: &str) -> Lock {
        Lock::new(Arc::clone(&self.inner), self.inner.name(name, &kind::REENTRANT))
    }

    /// A new owner, for taking locks reentrantly: see [`Lock::with_owner`].
    pub fn owner(&self) -> Owner {
        self.inner.owner(self.inner.new_owner())
    }

    /// The identity of this manager on the wire: the part of its owners before the colon.
    pub fn id(&self) -> &str {
        &self.inner.uuid
    }

    /// What about the server puts locks at risk, as it was when connecting: eviction, missing persistence, missing
    /// permissions, an old version. Empty is good. With the feature `tracing` each was logged as a warning then.
    pub fn diagnostics(&self) -> &[Finding] {
        &self.inner.findings
    }

    /// Counters since this manager was made, for all its locks and clones.
    pub fn metrics(&self) -> Metrics {
        let waiting = self.inner.waiting.load(Ordering::Relaxed);
        self.inner.holds().tally.snapshot(waiting)
    }

    /// The connection, for other commands on the same server. Mind that they share its pipeline, and that closing it leaves
    /// every lock that is held to its lease: [`shutdown`](Self::shutdown) gives them back first.
    pub fn client(&self) -> &Client {
        &self.inner.client
    }
}

impl fmt::Debug for LockManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockManager")
            .field("server", &self.inner.client.server_address())
            .field("id", &self.inner.uuid)
            .finish_non_exhaustive()
    }
}

impl LockManagerBuilder {
    /// How long a lock that the watchdog keeps alive outlives its holder's death. It is renewed after every third of
    /// this. Default 30 s, as in Redisson (`lockWatchdogTimeout`); at least 20 ms, and on a network rather a hundred round
    /// trips.
    #[must_use]
    pub fn watchdog_lease(mut self, lease: Duration) -> Self {
        self.watchdog_lease = lease;
        self
    }

    /// How many servers have to keep a grant or a renewal before it counts. Default [`Durability::Primary`].
    #[must_use]
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// How long a grant or a renewal may take to reach the servers that [`durability`](Self::durability) asks for. Default
    /// 1 s, as in Redisson (`slavesSyncTimeout`). While one is waited for, the server answers nothing else on the
    /// connection, so a third of the response timeout is the most.
    #[must_use]
    pub fn replication_timeout(mut self, timeout: Duration) -> Self {
        self.replication_timeout = timeout;
        self
    }

    /// Adjusts the connection's settings: timeouts, credentials, limits.
    #[must_use]
    pub fn configure(mut self, adjust: impl FnOnce(&mut Config)) -> Self {
        if let Ok(config) = &mut self.config {
            adjust(config);
        }
        self
    }

    /// Connects.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes the connection.
    ///
    /// # Errors
    ///
    /// As [`LockManager::connect`], [`Error::InvalidLease`] and [`Error::UnsupportedDurability`].
    ///
    /// # Panics
    ///
    /// If called outside a tokio runtime with I/O enabled.
    pub async fn connect(self) -> Result<LockManager, Error> {
        let durability = self.durability;
        let (config, prepared) = self.prepare()?;
        let client = Client::connect(config).await.map_err(not_connected)?;
        durability::check(&client, durability).await?;
        let findings = diagnose(&client, durability).await;
        for finding in &findings {
            events::found(&client.server_address(), finding);
        }
        LockManager::assemble(client, findings, prepared)
    }

    /// Makes a manager that connects in the background: for one server of a [`RedLock`](crate::RedLock), which must not
    /// keep the others from working. Until it is connected, operations wait, up to their deadlines. Its
    /// [`diagnostics`](LockManager::diagnostics) are empty, because nobody has asked.
    ///
    /// # Errors
    ///
    /// [`Error::Server`] if the URL is wrong; [`Error::InvalidLease`], [`Error::NoRandomness`].
    ///
    /// # Panics
    ///
    /// If called outside a tokio runtime with I/O enabled.
    pub fn lazy(self) -> Result<LockManager, Error> {
        let (config, prepared) = self.prepare()?;
        LockManager::assemble(Client::lazy(config), Vec::new(), prepared)
    }

    /// The connection's settings, and where it reports to the manager that is made right after it.
    fn prepare(self) -> Result<(Config, Prepared), Error> {
        let watchdog_lease = Lease::kept(self.watchdog_lease)?;
        let mut config = self.config.map_err(not_connected)?;
        config.scripts.extend(kind::scripts());
        let reports_to = Arc::new(OnceLock::<Weak<Inner>>::new());
        let sink = Arc::clone(&reports_to);
        config.on_detached = Some(Arc::new(move |results| {
            if let Some(inner) = sink.get().and_then(Weak::upgrade) {
                keeper::on_results(&inner, results);
            }
        }));
        let sink = Arc::clone(&reports_to);
        let theirs = config.on_change.take();
        config.on_change = Some(Arc::new(move |change| {
            if let Some(tell) = &theirs {
                tell(change);
            }
            if let Some(inner) = sink.get().and_then(Weak::upgrade) {
                keeper::on_change(&inner, change);
            }
        }));
        let wanted = Wanted::new(self.durability, self.replication_timeout, &config);
        Ok((config, Prepared { watchdog_lease, wanted, reports_to }))
    }
}

/// The connection's error says what was tried as well as we could.
fn not_connected(source: wheellock_client::Error) -> Error {
    Error::Server { operation: source.operation().to_owned(), source }
}

/// What a manager is to be made with, beside its connection.
struct Prepared {
    watchdog_lease: Lease,
    wanted: Option<Wanted>,
    /// Where the connection finds the manager.
    reports_to: Arc<OnceLock<Weak<Inner>>>,
}

impl LockManager {
    fn assemble(client: Client, findings: Vec<Finding>, prepared: Prepared) -> Result<Self, Error> {
        let Prepared { watchdog_lease, wanted, reports_to } = prepared;
        let uuid: Arc<str> = new_uuid().map_err(|_| Error::NoRandomness)?.into();
        let clock = Clock::beside(&client.config().timer);
        let mut holds = Holds::new(clock.now(), watchdog_lease);
        if !matches!(client.config().servers, Servers::One(_)) {
            holds.remember_releases();
        }
        let inner = Arc::new(Inner {
            client,
            findings,
            uuid,
            watchdog_lease,
            wanted,
            next_owner: AtomicU64::new(1),
            waiting: AtomicU64::new(0),
            names: Mutex::default(),
            holds: Mutex::new(holds),
            clock,
        });
        let _first = reports_to.set(Arc::downgrade(&inner));
        tokio::spawn(keeper::keep(Arc::downgrade(&inner), inner.client.config().timer.clone()));
        Ok(Self { inner })
    }
}

impl Inner {
    pub(crate) fn holds(&self) -> MutexGuard<'_, Holds> {
        self.holds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn new_owner(&self) -> u64 {
        self.next_owner.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn owner(&self, number: u64) -> Owner {
        Owner { manager: Arc::clone(&self.uuid), number }
    }

    pub(crate) fn owner_text(&self, number: u64) -> OwnerText {
        OwnerText::new(&self.uuid, number)
    }

    /// A number that tells the server of a lock from others.
    pub(crate) fn node_of(&self, name: &Name) -> u32 {
        self.client.node_of(name.key().as_bytes())
    }

    fn name(&self, key: &str, kind: &'static Kind) -> Arc<Name> {
        if !Name::may_be(key) {
            // It will be refused, and nobody has to remember it.
            return Arc::new(Name::new(key, kind));
        }
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(ByKey(name)) = names.known.get(key) {
            return Arc::clone(name);
        }
        if names.known.len() >= names.purge_at {
            // Forgetting in bulk keeps the cost per name constant.
            names.known.retain(|ByKey(name)| Arc::strong_count(name) > 1);
            names.purge_at = 2 * names.known.len() + 64;
        }
        let name = Arc::new(Name::new(key, kind));
        names.known.insert(ByKey(Arc::clone(&name)));
        name
    }

    /// Something was heard that speaks against a hold of ours: the server is asked for it at once.
    pub(crate) fn verify(&self, name: &Arc<Name>) {
        let mut holds = self.holds();
        holds.verify(name, self.clock.now());
        self.finish(holds, None, Vec::new());
    }

    /// The lock may be free though no message says so: the first of this process' waiters asks. Takes the waiters' lock.
    pub(crate) fn let_waiters_look(&self, name: &Name) {
        let head = name.crowd().as_mut().and_then(|waiters| waiters.look_now());
        if let Some(head) = head {
            head.wake();
        }
    }

    /// Every name that anybody uses.
    pub(crate) fn names(&self) -> Vec<Arc<Name>> {
        let names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        names.known.iter().map(|ByKey(name)| Arc::clone(name)).collect()
    }

    /// Unlocks, sends a settling request, and wakes the keeper if something is due earlier than it knows.
    pub(crate) fn finish(
        &self,
        mut holds: MutexGuard<'_, Holds>,
        settle: Option<Settle>,
        mut wake: Vec<Waker>,
    ) {
        // Queued under the lock, so that no renewal can come after it; written after unlocking.
        let flush = settle
            .and_then(|settle| keeper::queue_settle(self, &mut holds, &settle, &Retry::default(), &mut wake));
        let keeper = holds.keeper_to_wake();
        drop(holds);
        drop(flush);
        wake.into_iter().chain(keeper).for_each(Waker::wake);
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let mut holds = self.holds();
        // What was to follow a request under way goes now: nobody will be there to hear that one's answer.
        let last = holds.last_settles();
        let flushes: Vec<_> = last
            .iter()
            .filter_map(|settle| {
                keeper::queue_settle(self, &mut holds, settle, &Retry::default(), &mut Vec::new())
            })
            .collect();
        let keeper = holds.keeper.take();
        drop(holds);
        drop(flushes);
        // The keeper finds its manager gone and ends.
        if let Some(keeper) = keeper {
            keeper.wake();
        }
    }
}

/// Redisson's default `slavesSyncTimeout`.
const REPLICATION_TIMEOUT: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    /// B3: a name that is refused is not remembered, however often it is asked for.
    #[tokio::test]
    async fn refused_names_are_not_remembered() {
        let locks = LockManager::builder("redis://127.0.0.1:1").lazy().unwrap();
        for length in [0, crate::error::MAX_NAME + 1, 8 << 20] {
            let lock = locks.lock(&"x".repeat(length));
            assert!(matches!(lock.try_acquire().await, Err(Error::InvalidName { .. })), "{length}");
        }
        let lock = locks.lock("short");
        assert_eq!(locks.inner.names.lock().unwrap().known.len(), 1);
        drop(lock);
    }
}
