//! Creates locks on one server, from its address and settings.
//!
//! This module owns the lifetime of the watchdog.

pub(crate) mod health;
pub(crate) mod listing;
#[cfg(feature = "metrics")]
pub(crate) mod report;
pub(crate) mod shutdown;

use std::fmt;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use wheellock_client::{Client, Config};

use crate::base::backoff::Backoff;
use crate::base::durability::{Durability, Wanted};
use crate::base::error::Error;
use crate::base::fleet::{Fleet, FleetHealth};
use crate::base::fleet_terms::Terms;
use crate::base::lease::Lease;
use crate::base::owner::{Owner, new_uuid};
use crate::base::ticket::Ticket;
use crate::kind::{self, Kind};
use crate::kinds::election::Election;
use crate::kinds::fenced::{FencedGuard, FencedLock};
use crate::kinds::latch::CountDownLatch;
use crate::kinds::permit::PermitSemaphore;
use crate::kinds::read_write::ReadWriteLock;
use crate::kinds::semaphore::Semaphore;
use crate::lock::Lock;
use crate::manager::health::{Health, health_of};
use crate::manager::listing::Listing;
#[cfg(feature = "metrics")]
use crate::manager::report::Reporter;
use crate::request::context::{Context, Settings};
use crate::request::diagnostics::{Finding, check_durability, diagnose, releases_are_silent};
use crate::request::events;
use crate::request::fleet;
use crate::request::guard::Guard;
use crate::request::label;
use crate::request::watchdog;
use crate::table::metrics::Metrics;
use crate::wait::families::Classifier;
use crate::wait::sides::{Fairness, Sides};
use crate::wire::holder::Label;

/// A connection to one server, and the locks on it. Cheap to clone; all clones share one connection, one watchdog and
/// one identity.
///
/// ```no_run
/// use wheellock::LockManager;
///
/// # async fn example() -> Result<(), wheellock::Error> {
/// let locks = LockManager::connect("redis://127.0.0.1:6379").await?;
/// let guard = locks.lock("orders:42").acquire().await?;
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct LockManager {
    pub(crate) context: Arc<Context>,
    findings: Arc<[Finding]>,
    #[cfg(feature = "metrics")]
    reporter: Arc<Reporter>,
}

/// Settings of a [`LockManager`]. Use [`LockManager::builder`] to start them.
///
/// ```no_run
/// use std::time::Duration;
/// use wheellock::LockManager;
///
/// # async fn example() -> Result<(), wheellock::Error> {
/// let locks = LockManager::builder("redis://127.0.0.1:6379")
///     .watchdog_lease(Duration::from_secs(10)) // how long a lock outlives a holder that died
///     .configure(|config| config.response_timeout = Duration::from_secs(1))
///     .connect()
///     .await?;
/// # drop(locks);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct LockManagerBuilder {
    config: Result<Config, wheellock_client::Error>,
    watchdog_lease: Duration,
    hand_over: Duration,
    durability: Durability,
    replication_timeout: Duration,
    fleet: Option<Fleet>,
    label: Option<String>,
    prefix: String,
    classifier: Option<Classifier>,
    #[cfg(feature = "metrics")]
    reports: report::Settings,
}

impl LockManager {
    /// Connects to the server at `url`, with default settings. [`Config`](wheellock_client::Config) describes the URL's
    /// grammar.
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
    /// [`Error::Server`] if the URL is wrong, or the server cannot be reached, refuses the connection or is too old;
    /// [`Error::NoRandomness`].
    ///
    /// # Panics
    ///
    /// If called outside a tokio runtime with I/O enabled.
    pub async fn connect(url: impl AsRef<str>) -> Result<Self, Error> {
        Self::builder(url).connect().await
    }

    /// Starts the settings of a manager. Connecting reports an error in the URL.
    pub fn builder(url: impl AsRef<str>) -> LockManagerBuilder {
        LockManagerBuilder {
            config: url.as_ref().parse(),
            watchdog_lease: Lease::DEFAULT.duration(),
            hand_over: HAND_OVER,
            durability: Durability::default(),
            replication_timeout: REPLICATION_TIMEOUT,
            fleet: None,
            label: None,
            prefix: String::new(),
            classifier: None,
            #[cfg(feature = "metrics")]
            reports: report::Settings::default(),
        }
    }

    /// Returns a reentrant lock, without I/O. It is shared with every process that uses this name, Redisson's
    /// `getLock(name)` included.
    pub fn lock(&self, name: impl AsRef<str>) -> Lock {
        Lock::new(Arc::clone(&self.context), self.context.name(name.as_ref(), &kind::REENTRANT))
    }

    /// Returns a read-write lock, without I/O. It is shared with every process that uses this name, Redisson's
    /// `getReadWriteLock(name)` included.
    pub fn read_write_lock(&self, name: impl AsRef<str>) -> ReadWriteLock {
        ReadWriteLock::of(&self.context, name.as_ref(), [&kind::READ, &kind::WRITE], |side| side)
    }

    /// Returns a lock that is granted in the order of requests, without I/O. The order spans all processes that use
    /// this name, Redisson's `getFairLock(name)` included.
    ///
    /// Waiters queue in the order in which their requests reach the server. A waiter keeps its place while its future
    /// lives. If its process dies, the waiter loses its place within 5 s. While any waiter is queued,
    /// [`try_acquire`](Lock::try_acquire) is refused.
    pub fn fair_lock(&self, name: impl AsRef<str>) -> Lock {
        Lock::new(Arc::clone(&self.context), self.context.name(name.as_ref(), &kind::FAIR))
    }

    /// Returns a lock whose every grant has a fencing token, without I/O. It is shared with every process that uses
    /// this name, Redisson's `getFencedLock(name)` included.
    pub fn fenced_lock(&self, name: impl AsRef<str>) -> FencedLock {
        FencedLock::new(Lock::new(Arc::clone(&self.context), self.context.name(name.as_ref(), &kind::FENCED)))
    }

    /// Returns the lock of [`lock`](Self::lock) with a polling wait, as Redisson's `getSpinLock(name)`, without I/O.
    /// Its waiters do not subscribe, which saves the subscription where waits are mostly short. The pauses are those of
    /// [`Backoff::default`]. Use [`Lock::with_backoff`] for others.
    pub fn spin_lock(&self, name: impl AsRef<str>) -> Lock {
        self.lock(name.as_ref()).with_backoff(Backoff::default())
    }

    /// Returns the single-instance lock of Redis's own documentation (`SET name token NX PX lease`), without I/O. It is
    /// shared with all libraries of this protocol, such as redsync and redislock (Go), node-redlock (JavaScript),
    /// redis-py's `Lock` and redlock-py (Python), rslock (Rust).
    ///
    /// This lock is the cheapest, and it is not reentrant. If its owner requests it again, the error is
    /// [`Error::NotReentrant`]. Waiters are notified of a release if the holder uses this library. Other libraries
    /// publish no message, so waiters also poll, with pauses of up to 128 ms. Do not use the name for another kind of
    /// lock.
    pub fn simple_lock(&self, name: impl AsRef<str>) -> Lock {
        Lock::new(Arc::clone(&self.context), self.context.name(name.as_ref(), &kind::SIMPLE))
    }

    // new-kind: constructor

    /// Returns a counted semaphore, without I/O. It is shared with every process that uses this name, Redisson's
    /// `getSemaphore(name)` included. The permits of a process that died are gone until a caller adds them again.
    /// Permits of a [`permit_semaphore`](Self::permit_semaphore) are not.
    pub fn semaphore(&self, name: impl AsRef<str>) -> Semaphore {
        Semaphore::new(&self.context, name.as_ref())
    }

    /// Returns a semaphore whose permits have leases, without I/O. The watchdog renews the leases. The semaphore is
    /// shared with every process that uses this name, Redisson's `getPermitExpirableSemaphore(name)` included.
    pub fn permit_semaphore(&self, name: impl AsRef<str>) -> PermitSemaphore {
        PermitSemaphore::new(&self.context, name.as_ref())
    }

    /// Returns a latch, without I/O. It is shared with every process that uses this name, Redisson's
    /// `getCountDownLatch(name)` included.
    pub fn count_down_latch(&self, name: impl AsRef<str>) -> CountDownLatch {
        CountDownLatch::new(&self.context, name.as_ref())
    }

    /// Returns an election, without I/O. One of all campaigners leads, in all processes that use this name.
    pub fn election(&self, name: impl AsRef<str>) -> Election {
        Election::new(&self.context, name.as_ref())
    }

    /// Takes over the lock of a [`Ticket`], with a fresh owner and a renewed lease, in one round trip. The lock is never free in between, and
    /// only one call adopts a ticket. Redisson sees one holder throughout.
    ///
    /// For the new token of a fenced lock, use [`adopt_fenced`](Self::adopt_fenced).
    ///
    /// # Cancel safety
    ///
    /// As [`Lock::acquire`]. A dropped call may have adopted the ticket. Then it releases the lock.
    ///
    /// # Errors
    ///
    /// [`Error::TicketEnded`] if the owner that the ticket names does not hold the lock on this server any more; [`Error::NoTicket`] if
    /// this version does not know the ticket's kind; the errors of [`Lock::try_acquire`].
    pub async fn adopt(&self, ticket: &Ticket) -> Result<Guard, Error> {
        let no_ticket = || Error::NoTicket { lock: ticket.lock.clone(), kind: ticket.kind.clone() };
        let has_tickets = |row: &&Kind| row.label == ticket.kind && row.adopt.is_some();
        let kind = kind::rows().find(has_tickets).ok_or_else(no_ticket)?;
        let name = |kind| self.context.name_on_server(&ticket.lock, kind);
        let mut lock = Lock::new(Arc::clone(&self.context), name(kind));
        if std::ptr::eq(kind, &*kind::WRITE) {
            lock.sides = Some(Sides { other: name(&kind::READ), fairness: Fairness::default() });
        }
        lock.adopt(ticket).await
    }

    /// Does the same as [`adopt`](Self::adopt) for a [`FencedLock`], with a new fencing token. The token is greater than the token of the
    /// guard that the ticket came from, so the resource refuses late requests of that process.
    ///
    /// # Cancel safety
    ///
    /// As [`adopt`](Self::adopt).
    ///
    /// # Errors
    ///
    /// As [`adopt`](Self::adopt); [`Error::NoTicket`] if the ticket is of another kind.
    pub async fn adopt_fenced(&self, ticket: &Ticket) -> Result<FencedGuard, Error> {
        if ticket.kind != kind::FENCED.label {
            return Err(Error::NoTicket { lock: ticket.lock.clone(), kind: ticket.kind.clone() });
        }
        self.adopt(ticket).await.map(FencedGuard::new)
    }

    /// Releases the lock of a [`Ticket`]. Returns false if the ticket has ended already.
    ///
    /// # Cancel safety
    ///
    /// A dropped call may still take effect.
    ///
    /// # Errors
    ///
    /// The other errors of [`adopt`](Self::adopt), and those of [`Guard::release`].
    pub async fn release_ticket(&self, ticket: &Ticket) -> Result<bool, Error> {
        match self.adopt(ticket).await {
            Ok(guard) => guard.release().await.map(|()| true),
            Err(Error::TicketEnded { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Lists the locks whose names match a glob pattern of Redis, such as `orders:*`, without I/O yet. The pattern follows the manager's
    /// prefix. The listing scans all keys of the server in small batches, and leaves most of the server's time to others.
    ///
    /// Only the shape of the data tells a lock. So a listing does not know simple locks of other libraries, counted semaphores and
    /// latches. Locks that come or go meanwhile may be missing.
    ///
    /// ```no_run
    /// # async fn example(locks: wheellock::LockManager) -> Result<(), wheellock::Error> {
    /// let mut listing = locks.list("orders:*");
    /// while let Some(lock) = listing.next().await? {
    ///     println!("{} is a {}: {:?}", lock.name, lock.kind, lock.holders.holders.first());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn list(&self, pattern: impl AsRef<str>) -> Listing {
        Listing::new(&self.context, pattern.as_ref())
    }

    /// Returns a new owner, for taking locks reentrantly: see [`Lock::with_owner`].
    pub fn owner(&self) -> Owner {
        self.context.owner(self.context.new_owner())
    }

    /// Returns the identity of this manager on the server: the part of its owners before the colon.
    pub fn id(&self) -> &str {
        &self.context.uuid
    }

    /// Returns the server's risks to locks, as found when connecting: eviction, missing persistence, missing
    /// permissions, an old version. An empty list is good. With the feature `tracing`, connecting logs each finding as
    /// a warning.
    pub fn diagnostics(&self) -> &[Finding] {
        &self.findings
    }

    /// Returns the counters since this manager was created, for all its locks and clones.
    pub fn metrics(&self) -> Metrics {
        Metrics::together(self.context.counted().iter().map(|(_, metrics)| metrics))
    }

    /// Returns [`metrics`](Self::metrics) per family of locks, with the family's label.
    /// [`classify`](LockManagerBuilder::classify) defines the families; without it the list is empty. A counter that
    /// concerns no single lock, such as [`server_clock_jumps`](Metrics::server_clock_jumps), is in none of the
    /// families.
    pub fn metrics_by_family(&self) -> Vec<(&'static str, Metrics)> {
        let counted = self.context.counted().into_iter();
        counted.filter_map(|(label, metrics)| label.map(|label| (label, metrics))).collect()
    }

    /// Reports to the recorder of the `metrics` crate all counts since the last report, and the present gauges.
    /// [`guide::observability`](crate::guide::observability) lists the names. The labels are this manager's
    /// [name](LockManagerBuilder::metrics_name) and the [families](LockManagerBuilder::classify) of its locks.
    ///
    /// Install the recorder first. Counts that are reported without a recorder are lost, because they are not reported
    /// twice. Call this before the numbers are read, for example in the handler of a scrape. Or call it at intervals,
    /// as [`report_metrics_every`](LockManagerBuilder::report_metrics_every) does. The manager counts the same with and
    /// without this feature, so taking locks does not cost more.
    ///
    /// Each observation of a histogram is reported as the middle of its [`Bucket`](crate::Bucket), at most an eighth
    /// off. One report has at most ten thousand observations of each histogram. If there were more, the proportions of
    /// the buckets are kept.
    #[cfg(feature = "metrics")]
    pub fn report_metrics(&self) {
        self.reporter.report(&self.context);
    }

    /// Sends the last report, if reports are sent at intervals.
    pub(crate) fn end_reports(&self) {
        #[cfg(feature = "metrics")]
        self.reporter.end(&self.context);
    }

    /// Returns whether a lock can be acquired now, as far as is known without a request. For that the connection is
    /// ready, the server replies in time, and the watchdog's renewals succeed. No I/O, so a probe may call this every
    /// second.
    ///
    /// Behind Sentinels or among replicas, the server is the current primary. During a failover there is none. In a
    /// cluster every slot needs a connected primary, even though a lock of another shard could still be acquired.
    ///
    /// Use this for a *readiness* probe: a service whose every request needs a lock takes no requests meanwhile. Do not
    /// use it for a *liveness* probe: a restart heals none of these states, and gives up the held locks. A server that
    /// died a moment ago may seem healthy until a reply is missed. On an idle connection that takes a heartbeat
    /// ([`Config::heartbeat`](wheellock_client::Config::heartbeat)) and a third of the response timeout.
    pub fn health(&self) -> Health {
        health_of(&self.context)
    }

    /// Returns true if [`health`](Self::health) is [`Healthy`](Health::Healthy).
    pub fn is_healthy(&self) -> bool {
        self.health().is_healthy()
    }

    /// Returns the state of this process in its fleet, without a request. `None` without
    /// [`keep_locks_across_failovers`](LockManagerBuilder::keep_locks_across_failovers).
    pub fn fleet_health(&self) -> Option<FleetHealth> {
        self.context.holds().fleet_health(self.context.clock.now())
    }

    /// Returns the connection, for other commands on the same server.
    ///
    /// Other commands share the pipeline of the locks. Commands that would change the connection for the locks or delay
    /// them are refused (`SELECT`, `MULTI`, `BLPOP`, ...: [`Client::call`]). Closing the connection leaves every held
    /// lock until its lease ends. [`shutdown`](Self::shutdown) releases the locks first.
    pub fn client(&self) -> &Client {
        &self.context.client
    }
}

impl fmt::Debug for LockManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockManager")
            .field("server", &self.context.client.server_address())
            .field("id", &self.context.uuid)
            .finish_non_exhaustive()
    }
}

impl LockManagerBuilder {
    /// Sets the lease of locks that the watchdog renews. A lock outlives its holder's death by this time at most. The
    /// watchdog renews it after every third of the lease. Default 30 s, as in Redisson (`lockWatchdogTimeout`). At
    /// least 20 ms, and on a network rather a hundred round trips.
    ///
    /// A renewal without a reply is given up after
    /// [`Config::response_timeout`](wheellock_client::Config::response_timeout), 3 s by default. If a connection goes
    /// silent, a lease below one and a half times the timeout is lost with its first renewal. There is no time for a
    /// second one. So use a short timeout with a short lease, for example 500 ms for a lease of 3 s.
    #[must_use]
    pub fn watchdog_lease(mut self, lease: Duration) -> Self {
        self.watchdog_lease = lease;
        self
    }

    /// Sets the hand-over budget. For this time after a grant, a lock may pass between tasks of this process without a
    /// request to the server. Default 5 ms; [`Duration::ZERO`] turns hand-overs off.
    ///
    /// If the watchdog renews the lock, a dropped or released guard hands the lock over to the longest waiter of this
    /// process. That takes a microsecond instead of two round trips. After the budget the lock is really released. If
    /// other processes were notified of that, this process waits until they have had their turns.
    ///
    /// Processes share the budget: if two want the lock, each has it for half as long. While no other process
    /// subscribes, the budget doubles with each release, up to 100 ms. A process that always has waiters leaves the
    /// lock free for 135 ms every 4.6 s. While contenders of this library poll, it does so every 0.75 s.
    ///
    /// Some locks always go to the server: the closure forms, simple locks, fenced locks, fair locks, semaphores, fixed
    /// leases and presented owners.
    #[must_use]
    pub fn hand_over(mut self, budget: Duration) -> Self {
        self.hand_over = budget;
        self
    }

    /// Sets the number of servers that must keep a grant or a renewal before it counts. Default
    /// [`Durability::Primary`].
    #[must_use]
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// Sets the time in which a grant or a renewal must reach the servers that [`durability`](Self::durability)
    /// requires. Default 1 s, as in Redisson (`slavesSyncTimeout`). During this wait the server answers no other
    /// command on the connection, so the limit is a third of the response timeout.
    #[must_use]
    pub fn replication_timeout(mut self, timeout: Duration) -> Self {
        self.replication_timeout = timeout;
        self
    }

    /// Keeps held locks across a failover, and grants no lock twice because of one. Costs nothing per grant. Default off: a failover may
    /// lose the latest grants.
    ///
    /// After a failover, each process writes its holds into the new server. Until all processes have done so, no process is granted a lock.
    /// If a process is dead, that lasts for the longest lease and the window. All processes that use these locks must use this setting,
    /// with the same numbers. The page *Guarantees* lists the conditions.
    ///
    /// Permits of a [`permit_semaphore`](LockManager::permit_semaphore) count as locks here. The server of a
    /// [`semaphore`](LockManager::semaphore) knows only the number of free permits, so after a failover it is the new server's number.
    /// Latches are as without this setting, too.
    ///
    /// The manager opens a second connection, and refreshes its entry in the key `wheellock:fleet:roster` every third of the window. In a
    /// cluster it has an entry in each of 16 such keys, `wheellock:fleet:{..}:roster`, and each shard needs one of them. A failover of one
    /// shard delays no grant of the others. The user needs the permission for `INFO`, `WAIT` and the keys `wheellock:fleet*`.
    ///
    /// ```no_run
    /// use wheellock::{Fleet, LockManager};
    ///
    /// # async fn example() -> Result<(), wheellock::Error> {
    /// let builder = LockManager::builder("redis+sentinel://a,b,c/mymaster");
    /// let locks = builder.keep_locks_across_failovers(Fleet::of_servers(3)).connect().await?;
    /// # drop(locks);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn keep_locks_across_failovers(mut self, fleet: Fleet) -> Self {
        self.fleet = Some(fleet);
        self
    }

    /// Sets a label of this manager, for people who look up a lock's holder: see [`Lock::holder`]. Name for example
    /// host, process and service, as in `"web-3/4711/billing"`. It has 1 to 256 bytes, without control characters.
    /// **Never use a secret**, because every user with read access to keys can read it. Default none.
    ///
    /// The label has a key of its own beside the locks, unknown to Redisson. The key is `wheellock:process:{id}`, with
    /// this manager's [`id`](LockManager::id) in place of the braces. The manager writes it when connecting and every
    /// 10 s, with a lease of 30 s. [`shutdown`](LockManager::shutdown) deletes it. Locks do not depend on it, so a
    /// failed write is not an error. Beside it, with `:since` at the end of the key, the manager writes since when it
    /// holds its oldest locks, with their names, for [`Holder::held_for`](crate::Holder::held_for).
    #[must_use]
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// Sets a prefix of every name on the server, for example `"billing:"`. So tests, tenants and services share a server
    /// without a collision of names. Default none.
    ///
    /// With this prefix, `lock("orders")` is the lock `billing:orders`. The prefix applies to all kinds, sets and
    /// elections, and to their further keys and channels. [`Lock::name`], errors, events and
    /// [`diagnostics`](LockManager::diagnostics) contain the full name. The function of [`classify`](Self::classify) gets
    /// the name without the prefix. The key of a [label](Self::label) has no prefix.
    ///
    /// A Redisson `NameMapper` that prepends the same prefix selects the same locks. The hash tag of a cluster may be
    /// part of the prefix, as in `"{billing}:"`. Then all locks of the manager are in one slot.
    ///
    /// ```no_run
    /// # use wheellock::LockManager;
    /// # async fn example() -> Result<(), wheellock::Error> {
    /// let locks = LockManager::builder("redis://127.0.0.1:6379").prefix("billing:").connect().await?;
    /// assert_eq!(locks.lock("orders").name(), "billing:orders");
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Sets the family of each lock, so that [metrics](LockManager::metrics_by_family) can be split without one set per
    /// name. The manager calls `classify` once for each name in use, and takes the result as the family's label.
    ///
    /// ```
    /// # use wheellock::LockManager;
    /// let builder = LockManager::builder("redis://127.0.0.1:6379").classify(|name| match name.split(':').next() {
    ///     Some("orders") => "orders",
    ///     Some("nightly") => "nightly",
    ///     _ => "rest",
    /// });
    /// ```
    ///
    /// There are at most 255 families. If a classifier makes more, all further ones are counted as `other`. The names
    /// of semaphores, latches and the members of multi-locks are classified, too.
    #[must_use]
    pub fn classify(mut self, classify: impl Fn(&str) -> &'static str + Send + Sync + 'static) -> Self {
        self.classifier = Some(Classifier::new(classify));
        self
    }

    /// Sets the value of the label `manager` of this manager's metrics. Default: its [id](LockManager::id), which
    /// differs in every process. A name for the manager's purpose makes fewer series. Two managers of one process need
    /// two names.
    #[cfg(feature = "metrics")]
    #[must_use]
    pub fn metrics_name(mut self, name: impl Into<String>) -> Self {
        self.reports.name = Some(name.into());
        self
    }

    /// Spawns a task that [reports](LockManager::report_metrics) every `period`, until the manager is gone. The first
    /// report comes `period` after connecting. A [shutdown](LockManager::shutdown) sends one more. By default there is
    /// no such task. Use it for exporters that push. For a scraped exporter, report before each scrape instead.
    #[cfg(feature = "metrics")]
    #[must_use]
    pub fn report_metrics_every(mut self, period: Duration) -> Self {
        self.reports.every = Some(period);
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

    /// Connects to the server.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes the connection.
    ///
    /// # Errors
    ///
    /// As [`LockManager::connect`], [`Error::InvalidLease`], [`Error::InvalidLabel`],
    /// [`Error::UnsupportedDurability`] and [`Error::UnsupportedFleet`].
    ///
    /// # Panics
    ///
    /// If called outside a tokio runtime with I/O enabled.
    pub async fn connect(self) -> Result<LockManager, Error> {
        let (durability, prefix) = (self.durability, self.prefix.clone());
        let fleet = self.fleet.clone();
        let (config, assemble) = self.prepare()?;
        let refreshes = fleet.as_ref().map(|_| fleet::config_of(&config));
        let client = Client::connect(config).await.map_err(not_connected)?;
        check_durability(&client, durability).await?;
        let findings = diagnose(&client, &prefix, durability, fleet.as_ref()).await;
        for finding in &findings {
            events::found(&client.server_address(), finding);
        }
        let manager = assemble(client, findings)?;
        if let (Some(fleet), Some(config)) = (&fleet, refreshes) {
            let refreshes = Client::connect(config).await.map_err(not_connected)?;
            fleet::check(&manager.context, &refreshes, fleet, &manager.findings).await?;
            fleet::start(&manager.context, &refreshes);
        }
        if label::write(&manager.context).await {
            manager.keep_label(true);
        }
        Ok(manager)
    }

    /// Creates a manager that connects in the background. Use it for a service that may start before its server. Use it
    /// also for the servers of a [`RedLockManager`](crate::RedLockManager), where one server must not keep the others
    /// from working.
    ///
    /// Until the manager is connected, operations wait, up to their deadlines. [`health`](LockManager::health) gives
    /// the reason. Its [`diagnostics`](LockManager::diagnostics) stay empty, because it does not run the checks.
    ///
    /// # Errors
    ///
    /// [`Error::Server`] if the URL is wrong; [`Error::InvalidLease`], [`Error::InvalidLabel`], [`Error::UnsupportedFleet`],
    /// [`Error::NoRandomness`].
    ///
    /// # Panics
    ///
    /// If called outside a tokio runtime with I/O enabled.
    #[track_caller]
    pub fn lazy(self) -> Result<LockManager, Error> {
        check_runtime();
        let has_fleet = self.fleet.is_some();
        let (config, assemble) = self.prepare()?;
        let refreshes = has_fleet.then(|| fleet::config_of(&config));
        let manager = assemble(Client::lazy(config), Vec::new())?;
        if let Some(config) = refreshes {
            fleet::start(&manager.context, &Client::lazy(config));
        }
        manager.keep_label(false);
        Ok(manager)
    }

    /// Returns the connection's settings, with hooks that report to the manager, and the function that makes this manager.
    fn prepare(self) -> Result<(Config, Assemble), Error> {
        let watchdog_lease = Lease::kept(self.watchdog_lease)?;
        let label = self.label.map(Label::new).transpose()?;
        let mut config = self.config.map_err(not_connected)?;
        config.scripts.extend(kind::scripts(self.fleet.is_some()));
        let fleet = self.fleet.as_ref().map(|fleet| Terms::new(fleet, watchdog_lease)).transpose()?;
        // The hooks hold the context weakly. Otherwise the connection keeps the manager alive, and the manager the
        // connection.
        let reports_to = Arc::new(OnceLock::<Weak<Context>>::new());
        let sink = Arc::clone(&reports_to);
        config.hooks.on_detached = Some(Arc::new(move |results| {
            if let Some(context) = sink.get().and_then(Weak::upgrade) {
                watchdog::on_results(&context, results);
            }
        }));
        let sink = Arc::clone(&reports_to);
        config.hooks.on_change = Some(Arc::new(move |change| {
            if let Some(context) = sink.get().and_then(Weak::upgrade) {
                watchdog::on_change(&context, change);
            }
        }));
        let sink = Arc::clone(&reports_to);
        config.hooks.on_changed_keys = Some(Arc::new(move |keys| {
            if let Some(context) = sink.get().and_then(Weak::upgrade) {
                watchdog::on_changed_keys(&context, keys);
            }
        }));
        let wanted = Wanted::new(self.durability, self.replication_timeout, &config);
        let assemble = move |client: Client, findings: Vec<Finding>| {
            let uuid: Arc<str> = new_uuid().map_err(|_| Error::NoRandomness)?.into();
            let timer = client.config().timer.clone();
            let settings = Settings {
                watchdog_lease,
                hand_over: self.hand_over,
                releases_are_silent: releases_are_silent(&findings),
                wanted,
                fleet,
                label,
                prefix: self.prefix.into(),
                classifier: self.classifier,
            };
            let context = Arc::new(Context::new(client, uuid, settings));
            let _first = reports_to.set(Arc::downgrade(&context));
            #[cfg(feature = "metrics")]
            let reporter = Reporter::start(self.reports, &context);
            tokio::spawn(watchdog::keep(Arc::downgrade(&context), timer));
            Ok(LockManager {
                context,
                findings: findings.into(),
                #[cfg(feature = "metrics")]
                reporter,
            })
        };
        Ok((config, Box::new(assemble)))
    }
}

/// Panics outside a tokio runtime, at the place of the public call.
#[expect(clippy::panic, reason = "as documented: no task could keep the connection")]
#[track_caller]
fn check_runtime() {
    if tokio::runtime::Handle::try_current().is_err() {
        panic!(
            "a manager needs a tokio runtime: call this in asynchronous code, or take `lazy_blocking()` for threads, whose \
             `to_async()` also returns an asynchronous manager"
        );
    }
}

/// Makes a manager from its connection and the findings about its server.
type Assemble = Box<dyn FnOnce(Client, Vec<Finding>) -> Result<LockManager, Error> + Send>;

/// Wraps an error of connecting. The client's error already describes the operation well.
fn not_connected(source: wheellock_client::Error) -> Error {
    Error::Server { operation: source.operation().to_owned(), source }
}

impl LockManager {
    fn keep_label(&self, is_written: bool) {
        if self.context.label().is_some() {
            let timer = self.context.client.config().timer.clone();
            tokio::spawn(label::keep(Arc::downgrade(&self.context), timer, is_written));
        }
    }
}

/// A few hand-overs of a hot lock, and a wait that other processes do not notice.
const HAND_OVER: Duration = Duration::from_millis(5);

/// Redisson's default `slavesSyncTimeout`.
const REPLICATION_TIMEOUT: Duration = Duration::from_secs(1);
