//! Makes locks on one server, from its address and settings. Owns the lifetime of the watchdog.

pub(crate) mod health;
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
use crate::base::lease::Lease;
use crate::base::owner::{Owner, new_uuid};
use crate::kind;
use crate::kinds::election::Election;
use crate::kinds::fenced::FencedLock;
use crate::kinds::latch::CountDownLatch;
use crate::kinds::permit::PermitSemaphore;
use crate::kinds::read_write::ReadWriteLock;
use crate::kinds::semaphore::Semaphore;
use crate::lock::Lock;
use crate::manager::health::{Health, health_of};
#[cfg(feature = "metrics")]
use crate::manager::report::Reporter;
use crate::request::context::{Context, Settings};
use crate::request::diagnostics::{Finding, check_durability, diagnose, releases_are_silent};
use crate::request::events;
use crate::request::label;
use crate::request::watchdog;
use crate::table::metrics::Metrics;
use crate::wait::families::Classifier;
use crate::wire::holder::Label;

/// Makes locks on one server. Cheap to clone; all clones share one connection, one watchdog and one identity.
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

/// Settings of a [`LockManager`]; made by [`LockManager::builder`].
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
    label: Option<String>,
    classifier: Option<Classifier>,
    #[cfg(feature = "metrics")]
    reports: report::Settings,
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
            hand_over: HAND_OVER,
            durability: Durability::default(),
            replication_timeout: REPLICATION_TIMEOUT,
            label: None,
            classifier: None,
            #[cfg(feature = "metrics")]
            reports: report::Settings::default(),
        }
    }

    /// A reentrant lock, shared with every process that uses this name, Redisson's `getLock(name)` included. No I/O.
    pub fn lock(&self, name: &str) -> Lock {
        Lock::new(Arc::clone(&self.context), self.context.name(name, &kind::REENTRANT))
    }

    /// A read-write lock, shared with every process that uses this name, Redisson's `getReadWriteLock(name)` included. No
    /// I/O.
    pub fn read_write_lock(&self, name: &str) -> ReadWriteLock {
        ReadWriteLock::new(&self.context, name)
    }

    /// A lock that is granted in the order in which callers have asked for it, over all processes that use this name,
    /// Redisson's `getFairLock(name)` included. No I/O.
    ///
    /// The order is that in which the server has heard of those who wait. A waiter keeps its place for as long as its future
    /// lives; one whose process dies loses it within 5 s. A [`try_acquire`](Lock::try_acquire) is refused while anybody waits.
    pub fn fair_lock(&self, name: &str) -> Lock {
        Lock::new(Arc::clone(&self.context), self.context.name(name, &kind::FAIR))
    }

    /// A lock whose every grant has a fencing token, shared with every process that uses this name, Redisson's
    /// `getFencedLock(name)` included. No I/O.
    pub fn fenced_lock(&self, name: &str) -> FencedLock {
        FencedLock::new(Lock::new(Arc::clone(&self.context), self.context.name(name, &kind::FENCED)))
    }

    /// The lock of [`lock`](Self::lock), waited for by polling, as Redisson's `getSpinLock(name)` is: no subscription, and so
    /// nothing to set up for waits that are mostly short. The pauses are [`Backoff::default`]'s, unless
    /// [`Lock::with_backoff`] says otherwise. No I/O.
    pub fn spin_lock(&self, name: &str) -> Lock {
        self.lock(name).with_backoff(Backoff::default())
    }

    /// The lock of a single instance, as Redis's own documentation describes it (`SET name token NX PX lease`), shared with
    /// everybody who speaks it: redsync and redislock (Go), node-redlock (JavaScript), redis-py's `Lock` and redlock-py
    /// (Python), rslock (Rust). No I/O.
    ///
    /// It is the cheapest lock there is, and not reentrant: an owner who holds it is refused with [`Error::NotReentrant`].
    /// Waiters are woken by a message where the holder uses this library. Others tell nobody when they release: then waiters
    /// ask again and again, with pauses of up to 128 ms. Do not use the name for another kind of lock.
    pub fn simple_lock(&self, name: &str) -> Lock {
        Lock::new(Arc::clone(&self.context), self.context.name(name, &kind::SIMPLE))
    }

    /// A counted semaphore, shared with every process that uses this name, Redisson's `getSemaphore(name)` included. What a
    /// process had when it died is gone until somebody adds it: see [`permit_semaphore`](Self::permit_semaphore). No I/O.
    pub fn semaphore(&self, name: &str) -> Semaphore {
        Semaphore::new(&self.context, name)
    }

    /// A semaphore whose permits have leases, which the watchdog keeps alive; shared with every process that uses this name,
    /// Redisson's `getPermitExpirableSemaphore(name)` included. No I/O.
    pub fn permit_semaphore(&self, name: &str) -> PermitSemaphore {
        PermitSemaphore::new(&self.context, name)
    }

    /// A latch, shared with every process that uses this name, Redisson's `getCountDownLatch(name)` included. No I/O.
    pub fn count_down_latch(&self, name: &str) -> CountDownLatch {
        CountDownLatch::new(&self.context, name)
    }

    /// An election, of which one leads among all who campaign in all processes that use this name. No I/O.
    pub fn election(&self, name: &str) -> Election {
        Election::new(&self.context, name)
    }

    /// A new owner, for taking locks reentrantly: see [`Lock::with_owner`].
    pub fn owner(&self) -> Owner {
        self.context.owner(self.context.new_owner())
    }

    /// The identity of this manager on the wire: the part of its owners before the colon.
    pub fn id(&self) -> &str {
        &self.context.uuid
    }

    /// What about the server puts locks at risk, as it was when connecting: eviction, missing persistence, missing
    /// permissions, an old version. Empty is good. With the feature `tracing` each was logged as a warning then.
    pub fn diagnostics(&self) -> &[Finding] {
        &self.findings
    }

    /// Counters since this manager was made, for all its locks and clones.
    pub fn metrics(&self) -> Metrics {
        Metrics::together(self.context.counted().iter().map(|(_, metrics)| metrics))
    }

    /// [`metrics`](Self::metrics), apart for each family of locks that [`classify`](LockManagerBuilder::classify) makes, with its
    /// label. What concerns no single lock, as [`server_clock_jumps`](Metrics::server_clock_jumps), is in none of them, and without a
    /// classifier there are none.
    pub fn metrics_by_family(&self) -> Vec<(&'static str, Metrics)> {
        let counted = self.context.counted().into_iter();
        counted.filter_map(|(label, metrics)| label.map(|label| (label, metrics))).collect()
    }

    /// Tells the recorder of the `metrics` crate what has been counted since the last time, and how things are now: under the names that
    /// [`guide::observability`](crate::guide::observability) lists, labelled with this manager's
    /// [name](LockManagerBuilder::metrics_name) and the [families](LockManagerBuilder::classify) of its locks.
    ///
    /// The recorder has to be installed before: a report without one tells nobody, and nothing is told twice. To be called before the
    /// numbers are read, as by the handler of a scrape; or from time to time, which
    /// [`report_metrics_every`](LockManagerBuilder::report_metrics_every) does. What is counted is the same with and without the
    /// feature, so taking locks costs no more. Observations of a histogram are told as the middle of their
    /// [`Bucket`](crate::Bucket), at most an eighth off; at most ten thousand of each in one report, in the same proportions, if there were
    /// more.
    #[cfg(feature = "metrics")]
    pub fn report_metrics(&self) {
        self.reporter.report(&self.context);
    }

    /// The last report, if there were others.
    pub(crate) fn end_reports(&self) {
        #[cfg(feature = "metrics")]
        self.reporter.end(&self.context);
    }

    /// Whether a lock can be acquired now, as far as is known without asking: the connection is ready, the server answers what it was
    /// asked, and the watchdog's renewals succeed. No I/O; for a probe that is called every second.
    ///
    /// Behind Sentinels or among replicas the server is the primary of now; while a failover goes on there is none. In a cluster every slot has
    /// to have a connected primary, though a lock of another shard could be had.
    ///
    /// It is what a *readiness* probe wants: a service whose every request needs a lock takes no requests meanwhile. It is no
    /// *liveness* probe: a restart heals none of this, and gives up the locks that are held. A server that died a moment ago may be taken for
    /// healthy until an answer is missed: on an idle connection for a heartbeat
    /// ([`Config::heartbeat`](wheellock_client::Config::heartbeat)) and a third of the response timeout.
    pub fn health(&self) -> Health {
        health_of(&self.context)
    }

    /// Whether [`health`](Self::health) is [`Healthy`](Health::Healthy).
    pub fn is_healthy(&self) -> bool {
        self.health().is_healthy()
    }

    /// The connection, for other commands on the same server. Mind that they share its pipeline, which is why what would change it for
    /// the locks or keep them waiting is refused (`SELECT`, `MULTI`, `BLPOP`, ...: [`Client::call`]), and that closing it leaves every
    /// lock that is held to its lease: [`shutdown`](Self::shutdown) gives them back first.
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
    /// How long a lock that the watchdog keeps alive outlives its holder's death. It is renewed after every third of
    /// this. Default 30 s, as in Redisson (`lockWatchdogTimeout`); at least 20 ms, and on a network rather a hundred round
    /// trips.
    ///
    /// A renewal that is not answered is given up after
    /// [`Config::response_timeout`](wheellock_client::Config::response_timeout), 3 s by default. On a connection that has gone silent a
    /// lease below one and a half times that is lost with its first renewal, for there is no time for a second one: a short
    /// lease wants a short timeout, too, as 500 ms for a lease of 3 s.
    #[must_use]
    pub fn watchdog_lease(mut self, lease: Duration) -> Self {
        self.watchdog_lease = lease;
        self
    }

    /// For how long after a grant by the server a lock may pass from task to task of this process without a word to the server.
    /// Default 5 ms; [`Duration::ZERO`] turns it off.
    ///
    /// A guard that is dropped or released hands a lock that the watchdog keeps alive over to the task of this process that has waited
    /// longest, as it is: in a microsecond and not in two round trips. When the time is over the lock is really released, and if
    /// other processes heard of that this one stands back until they have had their turns. They share the time: of two that want the
    /// lock, each has it for half as long. While no other process listens, the time doubles with each release, up to 100 ms. A process
    /// that is never without waiters leaves the lock free for 135 ms every 4.6 s, and every 0.75 s while contenders of this library poll.
    /// The closure forms, simple locks, fenced locks, fair locks, semaphores, fixed leases and owners that were presented always go to
    /// the server.
    #[must_use]
    pub fn hand_over(mut self, budget: Duration) -> Self {
        self.hand_over = budget;
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

    /// What this manager calls itself, for people who ask who holds a lock: see [`Lock::holder`]. For example host, process and
    /// service, as in `"web-3/4711/billing"`: 1 to 256 bytes, without control characters. **Never a secret**: whoever may read
    /// keys reads it. Default none.
    ///
    /// It stands beside the locks, in a key of its own that Redisson does not know, `wheellock:process:{id}` with this manager's
    /// [`id`](LockManager::id) in place of the braces. That is written when connecting and every 10 s, lives for 30 s, and is
    /// deleted by [`shutdown`](LockManager::shutdown). No lock depends on it, and that it cannot be written is no error.
    #[must_use]
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// Says to which family a lock belongs, so that [numbers](LockManager::metrics_by_family) can be told apart without one for each
    /// name: `classify` is asked once for a name, as long as that is in use, and gives the family's label.
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
    /// There are at most 255 families; when a classifier makes more, those that come last are one, `other`. The names of a semaphore's,
    /// a latch's and a multi-lock's members are classified, too.
    #[must_use]
    pub fn classify(mut self, classify: impl Fn(&str) -> &'static str + Send + Sync + 'static) -> Self {
        self.classifier = Some(Classifier::new(classify));
        self
    }

    /// What the label `manager` of this manager's numbers says. Default: its [id](LockManager::id), which is another one in every process; a
    /// name that says what it is for makes fewer series. Two managers of one process need two names.
    #[cfg(feature = "metrics")]
    #[must_use]
    pub fn metrics_name(mut self, name: impl Into<String>) -> Self {
        self.reports.name = Some(name.into());
        self
    }

    /// Has a task [report](LockManager::report_metrics) so often, from `period` after connecting until the manager is gone, and once more
    /// when it was [shut down](LockManager::shutdown). Default: nobody does. For exporters that push; one that is scraped does better with a
    /// report before each scrape.
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

    /// Connects.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes the connection.
    ///
    /// # Errors
    ///
    /// As [`LockManager::connect`], [`Error::InvalidLease`], [`Error::InvalidLabel`] and [`Error::UnsupportedDurability`].
    ///
    /// # Panics
    ///
    /// If called outside a tokio runtime with I/O enabled.
    pub async fn connect(self) -> Result<LockManager, Error> {
        let durability = self.durability;
        let (config, prepared) = self.prepare()?;
        let client = Client::connect(config).await.map_err(not_connected)?;
        check_durability(&client, durability).await?;
        let findings = diagnose(&client, durability).await;
        for finding in &findings {
            events::found(&client.server_address(), finding);
        }
        let manager = LockManager::assemble(client, findings, prepared)?;
        if label::write(&manager.context).await {
            manager.keep_label(true);
        }
        Ok(manager)
    }

    /// Makes a manager that connects in the background: for a service that may start before its server, and for one server of a
    /// [`RedLockManager`](crate::RedLockManager), which must not keep the others from working. Until it is connected, operations
    /// wait, up to their deadlines, and [`health`](LockManager::health) says what keeps it. Its [`diagnostics`](LockManager::diagnostics) are
    /// empty, because nobody has asked.
    ///
    /// # Errors
    ///
    /// [`Error::Server`] if the URL is wrong; [`Error::InvalidLease`], [`Error::InvalidLabel`], [`Error::NoRandomness`].
    ///
    /// # Panics
    ///
    /// If called outside a tokio runtime with I/O enabled.
    pub fn lazy(self) -> Result<LockManager, Error> {
        let (config, prepared) = self.prepare()?;
        let manager = LockManager::assemble(Client::lazy(config), Vec::new(), prepared)?;
        manager.keep_label(false);
        Ok(manager)
    }

    /// The connection's settings, and where it reports to the manager that is made right after it.
    fn prepare(self) -> Result<(Config, Prepared), Error> {
        let watchdog_lease = Lease::kept(self.watchdog_lease)?;
        let label = self.label.map(Label::new).transpose()?;
        let mut config = self.config.map_err(not_connected)?;
        config.scripts.extend(kind::scripts());
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
        let wanted = Wanted::new(self.durability, self.replication_timeout, &config);
        let settings = Settings {
            watchdog_lease,
            hand_over: self.hand_over,
            // Not known before the server was asked.
            releases_are_silent: false,
            wanted,
            label,
            classifier: self.classifier,
        };
        Ok((
            config,
            Prepared {
                settings,
                reports_to,
                #[cfg(feature = "metrics")]
                reports: self.reports,
            },
        ))
    }
}

/// The connection's error says what was tried as well as we could.
fn not_connected(source: wheellock_client::Error) -> Error {
    Error::Server { operation: source.operation().to_owned(), source }
}

/// What a manager is to be made with, beside its connection.
struct Prepared {
    settings: Settings,
    /// Where the connection finds the manager.
    reports_to: Arc<OnceLock<Weak<Context>>>,
    #[cfg(feature = "metrics")]
    reports: report::Settings,
}

impl LockManager {
    fn assemble(client: Client, findings: Vec<Finding>, prepared: Prepared) -> Result<Self, Error> {
        let Prepared { mut settings, reports_to, .. } = prepared;
        settings.releases_are_silent = releases_are_silent(&findings);
        let uuid: Arc<str> = new_uuid().map_err(|_| Error::NoRandomness)?.into();
        let timer = client.config().timer.clone();
        let context = Arc::new(Context::new(client, uuid, settings));
        let _first = reports_to.set(Arc::downgrade(&context));
        #[cfg(feature = "metrics")]
        let reporter = Reporter::start(prepared.reports, &context);
        tokio::spawn(watchdog::keep(Arc::downgrade(&context), timer));
        Ok(Self {
            context,
            findings: findings.into(),
            #[cfg(feature = "metrics")]
            reporter,
        })
    }

    fn keep_label(&self, is_written: bool) {
        if self.context.label().is_some() {
            let timer = self.context.client.config().timer.clone();
            tokio::spawn(label::keep(Arc::downgrade(&self.context), timer, is_written));
        }
    }
}

/// Some turns of a hot lock, and no wait that other processes would notice.
const HAND_OVER: Duration = Duration::from_millis(5);

/// Redisson's default `slavesSyncTimeout`.
const REPLICATION_TIMEOUT: Duration = Duration::from_secs(1);
