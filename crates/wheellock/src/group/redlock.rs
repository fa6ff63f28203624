//! Locks on a majority of independent servers (Redlock).
//!
//! This module owns the rounds of requests. Every request is the one of an ordinary lock. `queue` orders the waiters of
//! this process, `releases` waits for releases, `servers` identifies the servers, `locks` has the lock of each server,
//! `member` is the state of one server's lock, `members` is the guard, and `roster` keeps the guard's members.
//!
//! # Differences from the usual implementation
//!
//! - A round ends when enough servers have granted, or can no longer grant. A round never waits for the slowest server.
//!   A server that grants later joins the hold, so that the next server may fail without harm.
//! - A held lock requests missing members again with each renewal. All servers may be restarted one after the other.
//! - Each member counts its validity from before its own request, less 1 % and 2 ms, as every lock does. The quorum is
//!   valid while enough members are. That is the Redlock page's `lease - elapsed - drift`. This rule stays right when
//!   one request was repeated and the others were not.
//! - A member lock is an ordinary lock: a hash of owner to count under the lock's name, with a TTL. A script that
//!   checks the owner releases it. A request is repeated idempotently after a lost reply. The page's `SET NX PX` with
//!   compare-and-delete is the same without counts. But it has three drawbacks. A repeated request is refused by its
//!   own earlier grant. A waiter is not notified of the release. No Redisson client sees the lock.
//! - Waiting sends no requests. After a failed round the first task of a process subscribes to the releases. It retries
//!   when enough members were released for a quorum to be possible.
//! - Too few reachable servers give [`Error::NoQuorum`], never a busy lock.

mod locks;
mod member;
mod members;
mod queue;
mod releases;
mod roster;
mod servers;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::base::attempt::Attempt;
use crate::base::backoff::Backoff;
use crate::base::error::{Error, LostReason, MemberFailure};
use crate::base::join_all::{JoinAll, join_all};
use crate::base::quorum::Verdict;
use crate::group::{answer_by, is_held, jitter, sleep_within};
use crate::lock::Lock;
use crate::lock::verbs::{self, AsyncLock, forward_verbs};
use crate::manager::health::{Health, health_of_quorum};
use crate::manager::shutdown::Leftover;
use crate::manager::{LockManager, LockManagerBuilder};
use crate::request::acquire::{Wait, is_only_late};
use crate::request::diagnostics::Finding;
use crate::wait::spans::{Subject, acquiring};
use locks::MemberLocks;
use member::Member;
pub use members::{MemberState, RedLockGuard, RedLockMember};
use queue::{Queue, QuorumWaiter};
use releases::{Busy, Subscriptions};
use servers::Servers;

/// Independent servers whose majority decides which client holds a lock: the Redlock algorithm.
///
/// Locks outlive the failure of any minority of the servers. They need no failover, and so lose no grants in one. Read
/// [when to use it](https://docs.rs/wheellock/latest/wheellock/struct.RedLockManager.html#when-to-use-it-and-when-not)
/// first.
///
/// ```no_run
/// # async fn example() -> Result<(), wheellock::Error> {
/// let servers = wheellock::RedLockManager::connect(["redis://a", "redis://b", "redis://c"]).await?;
/// let guard = servers.lock("orders:42").acquire().await?;
/// // ... alone, as long as two of the three keep what they were told ...
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
///
/// # When to use it, and when not
///
/// - `RedLockManager` needs servers that fail independently. A server must not be a replica of another, or stand behind
///   Sentinel, a cluster or an address that moves with a failover. Such servers are refused where they can be
///   recognised.
/// - A server that restarts without its data may grant its locks a second time. Give every server an append-only file
///   with `appendfsync always`. Or keep the server down for the longest lease before you start it again.
/// - The clocks of a majority must not run fast by more than 1 %, and must not jump ahead.
/// - Within these bounds two guards are never valid at once. A process that is paused after it checked its guard may
///   still act late, as with every lease. A quorum has no fencing token, because each server can count only its own
///   grants. The servers could agree on a number in a second round (the highest of a majority, plus one). They would
///   give it out twice exactly when exclusion has failed, which is the one case that a token is for. If your resource
///   can check tokens, use one server and check the token there. That is simpler and stronger.
#[derive(Clone)]
pub struct RedLockManager {
    servers: Arc<Servers>,
}

impl RedLockManager {
    /// Combines independent servers into one manager.
    ///
    /// The call returns when all servers have identified themselves. If a majority has, it gives the others only a
    /// little more time; these are then identified on first use. Create the managers
    /// [`lazily`](LockManagerBuilder::lazy), so that a dead minority does not prevent a start.
    ///
    /// # Cancel safety
    ///
    /// Safe: the call only reads.
    ///
    /// # Errors
    ///
    /// [`Error::NoMembers`]; [`Error::NotIndependent`] if a server is named twice, is a replica, or belongs to
    /// Sentinel, to a cluster or to the same replication as another; [`Error::NoQuorum`], without a lock's name and
    /// with the outcome [`NotSent`](crate::Outcome::NotSent), if no majority answered within the response timeout.
    ///
    /// A minority that refuses this client is not an error. [`diagnostics`](Self::diagnostics) and
    /// [`health`](Self::health) report it.
    ///
    /// # Panics
    ///
    /// If called outside a tokio runtime.
    pub async fn new(managers: impl IntoIterator<Item = LockManager>) -> Result<Self, Error> {
        let servers = Arc::new(Servers::new(managers.into_iter().collect())?);
        servers.identify_majority().await?;
        Ok(Self { servers })
    }

    /// Connects to the servers at `urls` with default settings. Unreachable servers are connected in the background.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes the connections.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new); [`Error::Server`] if a URL is wrong.
    ///
    /// # Panics
    ///
    /// If called outside a tokio runtime with I/O enabled.
    pub async fn connect(urls: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Self, Error> {
        let lazy = |url: &str| LockManagerBuilder::lazy(LockManager::builder(url));
        let managers: Vec<_> = urls.into_iter().map(|url| lazy(url.as_ref())).collect::<Result<_, _>>()?;
        Self::new(managers).await
    }

    /// Returns a lock by name, without I/O. Its members are the ordinary locks of this name on every server.
    pub fn lock(&self, name: impl AsRef<str>) -> RedLock {
        self.of(name.as_ref(), |manager, name| manager.lock(name))
    }

    /// Returns a lock by name whose members are [simple locks](LockManager::simple_lock), without I/O. This lock
    /// excludes redsync, node-redlock, redlock-py and their kin.
    pub fn simple_lock(&self, name: impl AsRef<str>) -> RedLock {
        self.of(name.as_ref(), |manager, name| manager.simple_lock(name))
    }

    fn of(&self, name: &str, member: fn(&LockManager, &str) -> Lock) -> RedLock {
        let locks: Arc<[Lock]> = self.servers.managers().map(|manager| member(manager, name)).collect();
        let kind = locks.first().map_or(0, |lock| lock.name.kind().address());
        let queue = self.servers.queue(name, kind);
        RedLock { members: MemberLocks { servers: Arc::clone(&self.servers), locks }, queue }
    }

    /// Returns the servers' managers, in the order in which they were given.
    pub fn managers(&self) -> impl ExactSizeIterator<Item = &LockManager> {
        self.servers.managers()
    }

    /// Shuts down all servers' managers at once, as [`LockManager::shutdown`] does, within the same time. Waiters for a
    /// lock of this `RedLockManager` fail at once.
    ///
    /// # Cancel safety
    ///
    /// As [`LockManager::shutdown`].
    pub async fn shutdown(&self, within: Duration) -> Leftover {
        self.servers.shut_down();
        Leftover::combine(join_all(self.managers().map(|manager| manager.shutdown(within))).await)
    }

    /// Returns the number of servers that have to grant.
    pub fn quorum(&self) -> usize {
        self.servers.quorum().wanted()
    }

    /// Returns whether a majority of the servers is [healthy](LockManager::health), without I/O. Ask the
    /// [managers](Self::managers) for the health of each server.
    ///
    /// The state is [`UnusableMember`](Health::UnusableMember) if a server cannot grant until a setting changes, even
    /// if a majority is healthy. Such a quorum tolerates fewer failures than its size promises.
    pub fn health(&self) -> Health {
        let health = health_of_quorum(self.managers().map(LockManager::health), self.quorum());
        let unusable = if health.is_healthy() { self.servers.unusable() } else { Vec::new() };
        let unusable = unusable.into_iter().next();
        unusable.map_or(health, |(server, reason)| Health::UnusableMember { server, reason })
    }

    /// Returns true if [`health`](Self::health) is [`Healthy`](Health::Healthy).
    pub fn is_healthy(&self) -> bool {
        self.health().is_healthy()
    }

    /// Returns known risks to locks on these servers, without I/O. These are the findings of each manager when
    /// connecting, replicas that an operator may promote, and [members](Finding::UnusableMember) that cannot grant
    /// until a setting changes.
    pub fn diagnostics(&self) -> Vec<Finding> {
        self.servers.findings()
    }
}

impl fmt::Debug for RedLockManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.managers()).finish()
    }
}

/// A lock of a [`RedLockManager`], by name. Its holder is the client to which a majority of the servers granted it.
///
/// The lock is not reentrant, because an owner belongs to one server's manager.
///
/// ```no_run
/// use std::time::Duration;
///
/// # async fn example(servers: wheellock::RedLockManager) -> Result<(), wheellock::Error> {
/// let orders = servers.lock("orders:42");
/// let guard = orders.try_acquire_for(Duration::from_secs(5)).await?.or_held()?;
/// // ... alone, also while a minority of the servers is down ...
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "this is only a handle: call `acquire()` to take the lock"]
#[derive(Clone)]
pub struct RedLock {
    members: MemberLocks,
    queue: Arc<Queue>,
}

impl RedLock {
    /// Returns the lock's name, which is also its key on every server.
    pub fn name(&self) -> &str {
        self.members.name()
    }

    /// Returns the same lock with a fixed lease. The watchdog does not renew this lease; the lock expires after `lease`
    /// unless released before.
    pub fn with_lease(&self, lease: Duration) -> Self {
        self.map(|lock| lock.with_lease(lease))
    }

    /// Returns the same lock with a maximum time for each hold, as [`Lock::with_max_hold`]. A server that grants the lock
    /// later, or again, ends it at the same time.
    pub fn with_max_hold(&self, max: Duration) -> Self {
        self.map(|lock| lock.with_max_hold(max))
    }

    fn map(&self, change: impl Fn(&Lock) -> Lock) -> Self {
        Self { members: self.members.map(change), queue: Arc::clone(&self.queue) }
    }

    /// Waits until a majority of the servers has granted the lock. Without [`with_lease`](Self::with_lease) the
    /// watchdog of each server's manager renews its member.
    ///
    /// Waiters of one process are served in the order of their calls.
    ///
    /// # Cancel safety
    ///
    /// Safe at every point: any grant of a server meanwhile is released.
    ///
    /// # Errors
    ///
    /// [`Error::NoQuorum`] if no majority answered within the response timeout; [`Error::InvalidName`],
    /// [`Error::InvalidLease`] before anything is sent; [`Error::GrantedTooLate`] if the lease had ended before the
    /// last grant that was needed; [`Error::ShutDown`] after a [shutdown](RedLockManager::shutdown).
    pub async fn acquire(&self) -> Result<RedLockGuard, Error> {
        // Only a limit ends a wait without a grant.
        self.take(Wait::Forever).await?.or_held()
    }

    /// Takes the lock if a majority grants it now, in one round trip to the fastest majority.
    ///
    /// Also returns [`Attempt::Held`] if several callers tried at the same time and none of them got a majority. If another holder has
    /// the lock on some servers and a slow server could decide, that server gets at least 100 ms.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire).
    pub fn try_acquire(&self) -> impl Future<Output = Result<Attempt<RedLockGuard>, Error>> + Send {
        self.take(Wait::NO)
    }

    /// Waits up to `wait`, counted from this call, for the lock. Returns [`Attempt::Held`] if another holder still has it
    /// then. The servers get at least one request, as in [`Lock::try_acquire_for`].
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire). Also an error if the wait ended while no majority answered.
    pub fn try_acquire_for(
        &self,
        wait: Duration,
    ) -> impl Future<Output = Result<Attempt<RedLockGuard>, Error>> + Send {
        self.take(Wait::up_to(wait, self.members.timer()))
    }

    /// Acquires, runs `work`, and releases, as [`Lock::run`], a majority of the servers. Waits without a limit.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `work` and releases in the background.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire), and those of [`Lock::run`], of a majority.
    pub async fn run<T, E: From<Error>>(
        &self,
        work: impl AsyncFnOnce(&RedLockGuard) -> Result<T, E>,
    ) -> Result<T, E> {
        verbs::run::<Self, _, _>(self.acquire().await?, work).await
    }

    /// Does the same as [`run`](Self::run), with the wait of [`try_acquire_for`](Self::try_acquire_for).
    ///
    /// # Cancel safety
    ///
    /// As [`run`](Self::run).
    ///
    /// # Errors
    ///
    /// The errors of [`run`](Self::run) and [`try_acquire_for`](Self::try_acquire_for).
    pub async fn run_for<T, E: From<Error>>(
        &self,
        wait: Duration,
        work: impl AsyncFnOnce(&RedLockGuard) -> Result<T, E>,
    ) -> Result<Attempt<T>, E> {
        verbs::run_if_granted::<Self, _, _>(self.try_acquire_for(wait).await?, work).await
    }

    /// Does the same as [`run`](Self::run), without a wait, as [`try_acquire`](Self::try_acquire).
    ///
    /// # Cancel safety
    ///
    /// As [`run`](Self::run).
    ///
    /// # Errors
    ///
    /// The errors of [`run`](Self::run).
    pub async fn try_run<T, E: From<Error>>(
        &self,
        work: impl AsyncFnOnce(&RedLockGuard) -> Result<T, E>,
    ) -> Result<Attempt<T>, E> {
        verbs::run_if_granted::<Self, _, _>(self.try_acquire().await?, work).await
    }

    fn take(&self, wait: Wait) -> impl Future<Output = Result<Attempt<RedLockGuard>, Error>> + Send {
        let subject = Subject { lock: self.name(), kind: "redlock" };
        let take = move || self.members.servers.unless_shut_down(self.name(), self.take_in_time(wait));
        acquiring(Some(subject), true, take)
    }

    /// Waits for the caller's turn, unless the caller tries once or its owner has the lock.
    async fn queue_up(&self, wait: Wait) -> Result<Attempt<Option<QuorumWaiter<'_>>>, Error> {
        if wait.one_try().is_some() || self.is_held_by_owners() {
            return Ok(Attempt::Acquired(None));
        }
        let waiter = self.queue.turn(self.members.timer(), wait).await?;
        if waiter.is_none() && self.queue.knows_held() {
            return self.timed_out(true, None, Vec::new());
        }
        // A lock that was never polled is not known to be held.
        Ok(Attempt::Acquired(waiter))
    }

    /// Fails the other waiters of this process as well, if the caller `waits` and the failure concerns all of them.
    fn failed(&self, error: Error, waits: bool) -> Error {
        let is_own = |failure: &MemberFailure| matches!(failure.error, Error::NotReentrant { .. });
        // The other waiters wait for this owner to release its own hold.
        let concerns_all = |failures: &[MemberFailure]| !failures.iter().any(is_own);
        if let Error::NoQuorum { failures, .. } = &error
            && waits
            && concerns_all(failures)
        {
            self.queue.fail_all(&error);
        }
        error
    }

    async fn take_in_time(&self, wait: Wait) -> Result<Attempt<RedLockGuard>, Error> {
        self.members.locks.iter().try_for_each(Lock::check)?;
        let (timer, random) = (self.members.timer(), self.members.servers.random());
        let (called, is_over) = (timer.now(), || wait.over(timer).is_some());
        let (mut waiter, mut own) = match self.queue_up(wait).await? {
            Attempt::Acquired(waiter) => (waiter, None),
            Attempt::Held { lock, lease_left } => return Ok(Attempt::Held { lock, lease_left }),
        };
        let subscriptions = waiter.as_mut().map_or(&mut own, |waiter| &mut waiter.subscriptions);
        let (mut splits, mut given_up, mut known_held, mut failed_rounds) = (0, 0, false, 0_u32);
        loop {
            subscriptions.iter_mut().for_each(Subscriptions::discard);
            let waited = (!known_held).then(|| timer.now().saturating_duration_since(called));
            let deadline = answer_by(&self.members.locks, self.members.quorum().wanted(), wait, waited);
            let busy = match self.round(deadline, patience(wait), given_up).await {
                Ok(Ok(guard)) => {
                    // The caller holds the lock now, so waiters behind it that time out know that the lock is held.
                    self.queue.on_held();
                    return Ok(Attempt::Acquired(guard));
                }
                Ok(Err(busy)) => busy,
                Err(error) if wait.outlasts(&error, timer) => {
                    sleep_within(wait, Backoff::default().pause(failed_rounds, random), timer).await;
                    failed_rounds = failed_rounds.saturating_add(1);
                    continue;
                }
                Err(Error::NoQuorum { failures, .. }) if is_over() => {
                    return self.timed_out(known_held, None, failures);
                }
                Err(error) => return Err(self.failed(error, wait.one_try().is_none())),
            };
            known_held = true;
            // Waiters behind this one that time out report a busy lock, although they have sent no request.
            self.queue.on_held();
            if wait.one_try().is_some() {
                return Ok(is_held(self.name(), busy.free_after));
            }
            if is_over() {
                return self.timed_out(true, busy.free_after, Vec::new());
            }
            let Some(subscriptions) = subscriptions else {
                // Poll once more after subscribing: a release before the subscription gives no message.
                *subscriptions = Some(Subscriptions::to_releases(&self.members.locks));
                continue;
            };
            // Contenders that split the members and retry at once would split them for ever.
            splits = if busy.granted > 0 { splits + 1 } else { 0 };
            let began = timer.now();
            let silent = busy.is_silent.then(|| Backoff::default().pause(failed_rounds, random));
            failed_rounds = failed_rounds.saturating_add(1);
            let notified = subscriptions.wait(timer, &busy, silent, wait.deadline(), random).await;
            // A message about a release shows that contenders split the members, not that slow servers were missing.
            given_up = if busy.given_up.is_some() && !notified { given_up + 1 } else { 0 };
            if timer.now() - began > LONG {
                splits = 0;
            }
            if splits > 0 {
                let most = SPLIT_PAUSE * (1 << splits.min(MOST_DOUBLINGS));
                sleep_within(wait, jitter(random, most), timer).await;
            }
            if is_over() {
                return self.timed_out(true, busy.free_in(timer.now() - began), Vec::new());
            }
        }
    }

    /// Sends a request to all servers at once, and returns when the outcome is certain.
    ///
    /// The round also ends if only slow servers could still decide it. Contenders may have split the fast servers
    /// between them. While each waits for the slow servers, it keeps the fast ones from all others. The slow servers get
    /// this time at `least`. After `given_up` such rounds in a row they get more, because the quorum may really need one
    /// of them.
    async fn round(
        &self,
        deadline: Option<Instant>,
        least: Duration,
        given_up: u32,
    ) -> Result<Result<RedLockGuard, Busy>, Error> {
        let (timer, count) = (self.members.timer(), self.members.locks.len());
        let began = timer.now();
        let mut give_up: Option<(Instant, Duration)> = None;
        let mut replies = JoinAll::new((0..count).map(|place| self.members.request(place, deadline)));
        let mut members = vec![Member::Pending; count];
        let mut tally = self.members.quorum();
        loop {
            let ready = match give_up {
                None => replies.ready().await,
                Some((at, patience)) => match timer.timeout_at(at, replies.ready()).await {
                    Ok(ready) => ready,
                    Err(_) => return Ok(Err(Busy::of(&members, tally, Some(patience)))),
                },
            };
            for (place, answer) in ready {
                let answer = Member::of(answer);
                *match &answer {
                    Member::Held(_) => &mut tally.granted,
                    Member::Refused(_) => &mut tally.refused,
                    _ => &mut tally.failed,
                } += 1;
                if let Some(member) = members.get_mut(place) {
                    *member = answer;
                }
            }
            match tally.verdict() {
                Some(Verdict::Reached) => {
                    let guard = RedLockGuard::new(&self.members, members, replies);
                    // Slow replies may have used up the leases of the first grants.
                    if guard.is_valid() {
                        return Ok(Ok(guard));
                    }
                    let lock = self.members.locks.first();
                    return Err(lock.map_or(Error::NoMembers, Lock::granted_too_late));
                }
                Some(Verdict::Busy) => return Ok(Err(Busy::of(&members, tally, None))),
                Some(Verdict::Dead) => {
                    let failed = members.into_iter().enumerate().filter_map(|(place, member)| match member {
                        Member::Failed(error) => Some(self.members.servers.failure(place, error)),
                        _ => None,
                    });
                    return Err(self.members.no_quorum(tally.granted, failed.collect()));
                }
                None => {}
            }
            if tally.is_contended() && give_up.is_none() {
                let now = timer.now();
                let longer = 1 << (2 * given_up.min(MOST_PATIENCE));
                let patience = (2 * (now - began)).max(least) * longer;
                give_up = Some((now + patience, patience));
            }
            if tally.is_out_of_reach() {
                // These grants cannot make a quorum any more. The other replies still tell a busy lock from dead
                // servers.
                let held = members.iter_mut().filter(|member| matches!(member, Member::Held(_)));
                held.for_each(|member| *member = Member::Released);
            }
        }
    }

    /// Returns the result of a wait that is over. It is not an error if another holder is known to have the lock.
    fn timed_out<G>(
        &self,
        known_held: bool,
        lease_left: Option<Duration>,
        failures: Vec<MemberFailure>,
    ) -> Result<Attempt<G>, Error> {
        let ready = self.members.locks.iter().filter(|lock| lock.is_ready()).count();
        let enough = ready >= self.members.quorum().wanted();
        // Replies that the end of the wait cut short say nothing about their servers. Other failures do.
        let late = |failure: &MemberFailure| is_only_late(&failure.error);
        // A waiter whose turn came late relies on the replies to the waiters before it.
        let known_held = known_held || self.queue.knows_held();
        if known_held && enough && failures.iter().all(late) {
            return Ok(is_held(self.name(), lease_left));
        }
        let failures = if failures.is_empty() { self.members.timeouts() } else { failures };
        Err(self.members.no_quorum(0, failures))
    }

    /// Returns true if the presented owners hold the lock already. They must not queue behind waiters that wait for
    /// them.
    fn is_held_by_owners(&self) -> bool {
        let held = self.members.locks.iter().filter(|lock| lock.is_held_by_owner()).count();
        held >= self.members.quorum().wanted()
    }
}

impl AsyncLock for RedLock {
    type Guard = RedLockGuard;
    type Loss = LostReason;

    fn with_default_owner(&self, number: u64) -> Self {
        self.map(|lock| lock.with_default_owner(number))
    }

    forward_verbs!();
}

impl fmt::Debug for RedLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedLock").field("members", &self.members.locks).finish_non_exhaustive()
    }
}

/// Returns the least time for slow servers in a round. A caller that tries once has no second round in which they could grant.
fn patience(wait: Wait) -> Duration {
    if wait.one_try().is_some() { ONLY_PATIENCE } else { SLOW_PATIENCE }
}

/// Upper bound of the first random pause after a split round, doubled each time. It spans a few round trips, in which
/// one contender finds all members free.
const SPLIT_PAUSE: Duration = Duration::from_millis(1);
const MOST_DOUBLINGS: u32 = 6;

/// Least time for slow servers after a majority has answered and some refused. They get at least twice the time of that
/// majority.
const SLOW_PATIENCE: Duration = Duration::from_millis(5);
/// Least such time for a caller that tries once. A busy machine may delay one of several replies for a while, and a free
/// lock must not pass for a busy one then.
const ONLY_PATIENCE: Duration = Duration::from_millis(100);
/// Number of times that `SLOW_PATIENCE` is multiplied by four, up to 5 s. No reply is waited for longer.
const MOST_PATIENCE: u32 = 5;

/// A wait of this length was not caused by a split.
const LONG: Duration = Duration::from_millis(200);
