//! Locks on a majority of independent servers (Redlock).
//!
//! This module owns the rounds of requests. Every request is the one of an ordinary lock. `queue` orders the waiters of
//! this process, `servers` identifies the servers, `members` is the guard, and `roster` keeps the guard's members.
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

mod members;
mod queue;
mod roster;
mod servers;

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{self, Poll};
use std::time::{Duration, Instant};

use wheellock_client::{Subscription, Timer};

use crate::base::backoff::Backoff;
use crate::base::error::{Error, MemberFailure};
use crate::base::join_all::{JoinAll, Request};
use crate::base::quorum::{Quorum, Verdict};
use crate::group::multi_lock::jitter;
use crate::lock::Lock;
use crate::manager::health::{Health, health_of_quorum};
use crate::manager::shutdown::Leftover;
use crate::manager::{LockManager, LockManagerBuilder};
use crate::request::acquire::{Answer, Limit, Wait, first_answer_by, is_only_late};
use crate::request::diagnostics::Finding;
use crate::wait::spans::{Subject, acquiring};
pub use members::{MemberState, RedLockGuard, RedLockMember};
use queue::{Place, Queue, Turn};
use roster::{Asker, Member};
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
    /// # Panics
    ///
    /// If called outside a tokio runtime.
    pub async fn new(managers: impl IntoIterator<Item = LockManager>) -> Result<Self, Error> {
        let servers = Arc::new(Servers::new(managers.into_iter().collect())?);
        servers.meet().await?;
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
    pub fn lock(&self, name: &str) -> RedLock {
        self.of(name, LockManager::lock)
    }

    /// Returns a lock by name whose members are [simple locks](LockManager::simple_lock), without I/O. This lock
    /// excludes redsync, node-redlock, redlock-py and their kin.
    pub fn simple_lock(&self, name: &str) -> RedLock {
        self.of(name, LockManager::simple_lock)
    }

    fn of(&self, name: &str, member: fn(&LockManager, &str) -> Lock) -> RedLock {
        let locks: Arc<[Lock]> = self.servers.managers().map(|manager| member(manager, name)).collect();
        let kind = locks.first().map_or(0, |lock| lock.name.kind().address());
        RedLock { locks, queue: self.servers.queue(name, kind), servers: Arc::clone(&self.servers) }
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
        let shut_down = |(place, manager)| -> (usize, Request<'_, _>) {
            (place, Box::pin(LockManager::shutdown(manager, within)))
        };
        let all = JoinAll::new(self.managers().enumerate().map(shut_down)).all().await;
        Leftover::together(all)
    }

    /// Returns the number of servers that have to grant.
    pub fn quorum(&self) -> usize {
        self.servers.quorum().wanted()
    }

    /// Returns whether a majority of the servers is [healthy](LockManager::health), without I/O. Ask the
    /// [managers](Self::managers) for the health of each server.
    pub fn health(&self) -> Health {
        health_of_quorum(self.managers().map(LockManager::health), self.quorum())
    }

    /// Returns true if [`health`](Self::health) is [`Healthy`](Health::Healthy).
    pub fn is_healthy(&self) -> bool {
        self.health().is_healthy()
    }

    /// Returns known risks to locks on these servers. These are the findings of each manager when connecting, and
    /// replicas that an operator may promote.
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
/// if let Some(guard) = orders.try_acquire_for(Duration::from_secs(5)).await? {
///     // ... alone, also while a minority of the servers is down ...
///     guard.release().await?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct RedLock {
    servers: Arc<Servers>,
    locks: Arc<[Lock]>,
    queue: Arc<Queue>,
}

impl RedLock {
    /// Returns the lock's name, which is also its key on every server.
    pub fn name(&self) -> &str {
        self.locks.first().map_or("", Lock::name)
    }

    /// Returns the same lock with a fixed lease. The watchdog does not renew this lease; the lock expires after `lease`
    /// unless released before.
    #[must_use]
    pub fn with_lease(&self, lease: Duration) -> Self {
        self.map(|lock| lock.with_lease(lease))
    }

    pub(crate) fn map(&self, change: impl Fn(&Lock) -> Lock) -> Self {
        Self { locks: self.locks.iter().map(change).collect(), ..self.clone() }
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
        let Ok(guard) = self.take(Wait::FOREVER).await?;
        Ok(guard)
    }

    /// Takes the lock if a majority grants it now, in one round trip to the fastest majority.
    ///
    /// Also returns `None` if several callers tried at the same time and none of them got a majority.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire).
    pub fn try_acquire(&self) -> impl Future<Output = Result<Option<RedLockGuard>, Error>> + Send {
        self.take_within(Wait::NO)
    }

    /// Waits up to `wait`, counted from this call, for the lock. Returns `None` if another holder still has it then.
    /// The servers get at least one request, as in [`Lock::try_acquire_for`].
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
    ) -> impl Future<Output = Result<Option<RedLockGuard>, Error>> + Send {
        self.take_within(Wait::up_to(wait, self.servers.timer()))
    }

    /// Acquires, runs `work` with the guard, and releases with confirmation. If the quorum is lost meanwhile, `work` is
    /// dropped at its current await point.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `work` and releases in the background.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire); [`Error::Lost`] if the quorum was lost before `work` ended, or the release found
    /// it lost. If the release could not be confirmed, the leases decide: work that ended under a valid quorum is `Ok`.
    pub async fn run<T>(&self, work: impl AsyncFnOnce(&RedLockGuard) -> T) -> Result<T, Error> {
        Self::run_under(self.acquire().await?, work).await
    }

    /// [`run`](Self::run) for work that can fail, as [`Lock::try_run`].
    ///
    /// # Cancel safety
    ///
    /// As [`run`](Self::run).
    ///
    /// # Errors
    ///
    /// The error of `work`, and all errors of [`run`](Self::run).
    pub async fn try_run<T, E: From<Error>>(
        &self,
        work: impl AsyncFnOnce(&RedLockGuard) -> Result<T, E>,
    ) -> Result<T, E> {
        self.run(work).await?
    }

    /// [`try_run`](Self::try_run) with the wait of [`try_acquire_for`](Self::try_acquire_for), as
    /// [`Lock::try_run_for`].
    ///
    /// # Cancel safety
    ///
    /// As [`run`](Self::run).
    ///
    /// # Errors
    ///
    /// The error of `work`, and all errors of [`try_acquire_for`](Self::try_acquire_for) and [`run`](Self::run).
    pub async fn try_run_for<T, E: From<Error>>(
        &self,
        wait: Duration,
        work: impl AsyncFnOnce(&RedLockGuard) -> Result<T, E>,
    ) -> Result<Option<T>, E> {
        match self.try_acquire_for(wait).await? {
            Some(guard) => Self::run_under(guard, work).await?.map(Some),
            None => Ok(None),
        }
    }

    /// Runs `work` under `guard`, and releases the guard.
    async fn run_under<T>(
        guard: RedLockGuard,
        work: impl AsyncFnOnce(&RedLockGuard) -> T,
    ) -> Result<T, Error> {
        let result = guard.run_unconfirmed(work(&guard)).await?;
        guard.release_after_work().await?;
        Ok(result)
    }

    async fn take_within(&self, wait: Wait) -> Result<Option<RedLockGuard>, Error> {
        Ok(self.take(wait).await?.ok())
    }

    fn take<L: Copy + Into<Limit> + Send>(
        &self,
        wait: Wait<L>,
    ) -> impl Future<Output = Result<Result<RedLockGuard, L>, Error>> + Send {
        let subject = Subject { lock: self.name(), kind: "redlock" };
        let take = move || self.servers.unless_shut_down(self.name(), self.take_in_time(wait));
        acquiring(Some(subject), true, take)
    }

    /// Waits for its place in the queue, unless the caller tries once or its owner has the lock. Returns the limit if
    /// the wait ended while the lock was known to be held.
    async fn queue_up<L: Copy + Into<Limit>>(
        &self,
        wait: Wait<L>,
    ) -> Result<Result<Option<Place<'_>>, L>, Error> {
        if wait.one_try().is_some() || self.is_ours() {
            return Ok(Ok(None));
        }
        match self.queue.turn(self.servers.timer(), wait).await {
            Turn::Come(come) => Ok(Ok(Some(come))),
            Turn::Failed(error) => Err(error),
            Turn::TooLate(limit) if self.queue.knows_held() => Ok(Err(limit)),
            // A lock that was never polled is not known to be held.
            Turn::TooLate(_) => Ok(Ok(None)),
        }
    }

    /// Pauses between two rounds, at most until the wait ends.
    async fn pause<L: Copy + Into<Limit>>(&self, pause: Duration, wait: Wait<L>) {
        let timer = self.servers.timer();
        let until = timer.now() + pause;
        timer.sleep_until(wait.deadline().map_or(until, |deadline| deadline.min(until))).await;
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

    async fn take_in_time<L: Copy + Into<Limit>>(
        &self,
        wait: Wait<L>,
    ) -> Result<Result<RedLockGuard, L>, Error> {
        self.locks.iter().try_for_each(Lock::check)?;
        let timer = self.servers.timer();
        let (mut place, mut own_news) = match self.queue_up(wait).await? {
            Ok(place) => (place, None),
            Err(limit) => return self.in_vain(limit, true, Vec::new()),
        };
        let news = place.as_mut().map_or(&mut own_news, |place| &mut place.news);
        // `questions` counts failed rounds, for the pauses between them.
        let (mut splits, mut given_up, mut known_held, mut questions) = (0, 0, false, 0_u32);
        loop {
            if let Some(news) = news {
                news.forget();
            }
            let busy = match self.round(self.answer_by(wait, known_held), given_up).await {
                Ok(Round::Reached(guard)) => {
                    // The caller holds the lock now, so waiters behind it that time out know that the lock is held.
                    self.queue.on_held();
                    return Ok(Ok(guard));
                }
                Ok(Round::Busy(busy)) => busy,
                Err(error) if wait.outlasts(&error, timer) => {
                    self.pause(Backoff::default().pause(questions, self.random()), wait).await;
                    questions = questions.saturating_add(1);
                    continue;
                }
                Err(error) => match (error, wait.over(timer)) {
                    (Error::NoQuorum { failures, .. }, Some(limit)) => {
                        return self.in_vain(limit, known_held, failures);
                    }
                    (error, _) => return Err(self.failed(error, wait.one_try().is_none())),
                },
            };
            known_held = true;
            // Waiters behind this one that time out report a busy lock, although they have sent no request.
            self.queue.on_held();
            if let Some(limit) = wait.one_try() {
                return Ok(Err(limit));
            }
            if let Some(limit) = wait.over(timer) {
                return self.in_vain(limit, true, Vec::new());
            }
            let Some(news) = news else {
                // Poll once more after subscribing: a release before the subscription gives no message.
                *news = Some(News::listen(&self.locks));
                continue;
            };
            // Contenders that split the members and retry at once would split them for ever.
            splits = if busy.granted > 0 { splits + 1 } else { 0 };
            let began = timer.now();
            let unheard = busy.is_silent.then(|| Backoff::default().pause(questions, self.random()));
            questions = questions.saturating_add(1);
            let heard = news.wait(timer, &busy, unheard, wait.deadline(), self.random()).await;
            // A message about a release shows that contenders split the members, not that slow servers were missing.
            given_up = if busy.given_up.is_some() && !heard { given_up + 1 } else { 0 };
            if timer.now() - began > LONG {
                splits = 0;
            }
            if splits > 0 {
                let most = SPLIT_PAUSE * (1 << splits.min(MOST_DOUBLINGS));
                self.pause(jitter(self.random(), most), wait).await;
            }
            if let Some(limit) = wait.over(timer) {
                return self.in_vain(limit, true, Vec::new());
            }
        }
    }

    /// Sends a request to all servers at once, and returns when the outcome is certain.
    ///
    /// The round also ends if only slow servers could still decide it. Contenders may have split the fast servers
    /// between them. While each waits for the slow servers, it keeps the fast ones from all others. After `given_up`
    /// such rounds in a row the slow servers get more time, because the quorum may really need one of them.
    async fn round(&self, deadline: Option<Instant>, given_up: u32) -> Result<Round, Error> {
        let timer = self.servers.timer();
        let began = timer.now();
        let mut give_up: Option<(Instant, Duration)> = None;
        let asker = Asker { servers: Arc::clone(&self.servers), locks: Arc::clone(&self.locks) };
        let mut flight = JoinAll::new((0..self.locks.len()).map(|place| (place, asker.ask(place, deadline))));
        let mut members: Vec<_> = self.locks.iter().map(|_| Member::Asked).collect();
        let mut tally = self.servers.quorum();
        loop {
            let ready = match give_up {
                None => flight.ready().await,
                Some((at, patience)) => match timer.timeout_at(at, flight.ready()).await {
                    Ok(ready) => ready,
                    Err(_) => {
                        let busy = Busy::of(&members, tally);
                        return Ok(Round::Busy(Busy { given_up: Some(patience), ..busy }));
                    }
                },
            };
            for (place, answer) in ready {
                let (member, count) = match answer {
                    Ok(Answer::Granted(guard, _)) => (Member::Held(Arc::new(guard)), &mut tally.granted),
                    Ok(Answer::Held(refusal)) => (Member::Refused(refusal), &mut tally.refused),
                    Err(error) => (Member::Failed(error), &mut tally.failed),
                };
                *count += 1;
                if let Some(place) = members.get_mut(place) {
                    *place = member;
                }
            }
            match tally.verdict() {
                Some(Verdict::Reached) => {
                    let guard = RedLockGuard::new(&asker, members, flight, self.servers.runtime());
                    // Slow replies may have used up the leases of the first grants.
                    if guard.is_valid() {
                        return Ok(Round::Reached(guard));
                    }
                    let lease = self.locks.first().map_or(Ok(Duration::ZERO), |lock| {
                        lock.lease().map(crate::base::lease::Lease::duration)
                    });
                    return Err(Error::GrantedTooLate { lock: self.name().to_owned(), lease: lease? });
                }
                Some(Verdict::Busy) => return Ok(Round::Busy(Busy::of(&members, tally))),
                Some(Verdict::Dead) => {
                    let failures =
                        members.into_iter().enumerate().filter_map(|(place, member)| match member {
                            Member::Failed(error) => Some(self.servers.failure(place, error)),
                            _ => None,
                        });
                    return Err(self.no_quorum(tally.granted, failures.collect()));
                }
                None => {}
            }
            if tally.is_contended() && give_up.is_none() {
                let now = timer.now();
                let longer = 1 << (2 * given_up.min(MOST_PATIENCE));
                let patience = (2 * (now - began)).max(SLOW_PATIENCE) * longer;
                give_up = Some((now + patience, patience));
            }
            if tally.is_out_of_reach() {
                // These grants cannot make a quorum any more. The other replies still tell a busy lock from dead
                // servers.
                for member in &mut members {
                    member.give_back();
                }
            }
        }
    }

    /// Returns the result of a wait that `limit` ended: the limit, if another holder is known to have the lock.
    fn in_vain<L>(
        &self,
        limit: L,
        known_held: bool,
        failures: Vec<MemberFailure>,
    ) -> Result<Result<RedLockGuard, L>, Error> {
        let ready = |lock: &&Lock| lock.context.client.is_ready_for(lock.name.key().as_bytes());
        let enough = self.locks.iter().filter(ready).count() >= self.servers.quorum().wanted();
        // Replies that the end of the wait cut short say nothing about their servers. Other failures do.
        let late = |failure: &MemberFailure| is_only_late(&failure.error);
        if known_held && enough && failures.iter().all(late) {
            return Ok(Err(limit));
        }
        let failures = if failures.is_empty() { self.no_answers() } else { failures };
        Err(self.no_quorum(0, failures))
    }

    fn no_answers(&self) -> Vec<MemberFailure> {
        let late = |(place, lock): (usize, &Lock)| {
            let source = lock.context.client.timed_out(lock.name.key().as_bytes(), "EVALSHA");
            let operation = format!("acquire lock {:?}", lock.name);
            self.servers.failure(place, Error::Server { operation, source })
        };
        self.locks.iter().enumerate().map(late).collect()
    }

    fn no_quorum(&self, granted: usize, failures: Vec<MemberFailure>) -> Error {
        let wanted = self.servers.quorum().wanted();
        Error::NoQuorum { lock: self.name().to_owned(), granted, wanted, failures }
    }

    /// Returns true if the presented owners hold the lock already. They must not queue behind waiters that wait for
    /// them.
    fn is_ours(&self) -> bool {
        let held = self.locks.iter().filter(|lock| lock.is_held_by_owner()).count();
        held >= self.servers.quorum().wanted()
    }

    /// Returns the deadline for a round's replies. The first round gets the time for a reply, however short the wait.
    fn answer_by(&self, wait: Wait<impl Copy + Into<Limit>>, known_held: bool) -> Option<Instant> {
        if known_held {
            return wait.deadline();
        }
        let first = |lock: &Lock| {
            first_answer_by(&lock.context.client, lock.name.key(), Duration::ZERO, wait.of_any())
        };
        let firsts: Vec<_> = self.locks.iter().filter_map(first).collect();
        // A majority that was never connected decides by its response timeout.
        firsts.iter().copied().max().filter(|_| firsts.len() >= self.servers.quorum().wanted())
    }

    fn random(&self) -> fn() -> u64 {
        self.servers.random()
    }
}

impl fmt::Debug for RedLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedLock").field("members", &self.locks).finish_non_exhaustive()
    }
}

enum Round {
    Reached(RedLockGuard),
    Busy(Busy),
}

/// A refused round, with the holders that it found.
struct Busy {
    /// Members that others hold, or that failed. Only these can still be released.
    elsewhere: Vec<usize>,
    /// Another holder does not publish its release.
    is_silent: bool,
    /// Number of members that were free.
    granted: usize,
    /// Number of members that are missing for a quorum.
    needed: usize,
    /// Time after which the leases of `needed` members will have ended.
    free_after: Option<Duration>,
    /// Time for which the round waited in vain for slow servers that could have granted.
    given_up: Option<Duration>,
}

impl Busy {
    fn of(members: &[Member], tally: Quorum) -> Self {
        let needed = tally.wanted().saturating_sub(tally.granted).max(1);
        let elsewhere = members.iter().enumerate().filter(|(_, member)| member.is_elsewhere());
        let mut ends: Vec<_> = members.iter().filter_map(Member::lease_left).collect();
        ends.sort_unstable();
        Self {
            elsewhere: elsewhere.map(|(place, _)| place).collect(),
            is_silent: members.iter().any(Member::is_silent),
            granted: tally.granted,
            needed,
            free_after: ends.get(needed - 1).copied(),
            given_up: None,
        }
    }
}

/// Subscriptions to the releases, one per server.
struct News {
    subscriptions: Vec<Subscription>,
}

impl News {
    fn listen(locks: &[Lock]) -> Self {
        let listen = |lock: &Lock| lock.context.client.subscribe(lock.name.channel().as_bytes());
        Self { subscriptions: locks.iter().map(listen).collect() }
    }

    /// Discards messages from before the next round, because that round's replies are newer.
    fn forget(&mut self) {
        for subscription in &mut self.subscriptions {
            subscription.take_changed();
        }
    }

    /// Waits until another round has a chance.
    ///
    /// That is when enough members were released for a quorum. If fewer were, the other releases get `FOLLOW` to
    /// arrive. The wait also ends when enough leases may have ended, or after the repoll interval. That interval is
    /// `unheard` if a holder does not publish its release. Returns true if any message arrived.
    async fn wait(
        &mut self,
        timer: &Timer,
        busy: &Busy,
        unheard: Option<Duration>,
        deadline: Option<Instant>,
        random: fn() -> u64,
    ) -> bool {
        let now = timer.now();
        let deaf = self.subscriptions.iter().any(|news| news.refusal().is_some());
        let repoll = unheard.unwrap_or(if deaf { REPOLL_WHEN_DEAF } else { REPOLL });
        // Servers round the remaining lease down, so wait one millisecond more.
        let free_after = busy.free_after.map(|left| left + Duration::from_millis(1));
        let poll_at = match busy.given_up {
            // Contenders release within the same time. If no release comes, the quorum needs the slow servers.
            Some(patience) => now + patience.min(repoll) + jitter(random, patience.min(repoll)),
            None => now + free_after.map_or(repoll, |left| left.min(repoll)) + jitter(random, LEASE_JITTER),
        };
        let poll_at = deadline.map_or(poll_at, |deadline| deadline.min(poll_at));
        let mut sleep = timer.sleep_until(poll_at);
        let mut heard = vec![false; self.subscriptions.len()];
        let mut first = None;
        std::future::poll_fn(|cx: &mut task::Context<'_>| {
            for place in &busy.elsewhere {
                if let (Some(news), Some(heard)) = (self.subscriptions.get_mut(*place), heard.get_mut(*place))
                {
                    *heard |= !*heard && news.poll_changed(cx).is_ready();
                }
            }
            let count = heard.iter().filter(|heard| **heard).count();
            if count >= busy.needed {
                return Poll::Ready(());
            }
            if count > 0 && first.is_none() {
                let until = timer.now() + FOLLOW;
                first = Some(until);
                sleep.reset(poll_at.min(until));
            }
            Pin::new(&mut sleep).poll(cx)
        })
        .await;
        heard.contains(&true)
    }
}

/// Longest time between two rounds of a waiting process, as for plain locks.
const REPOLL: Duration = Duration::from_secs(5);

/// The same if a server refuses the subscription.
const REPOLL_WHEN_DEAF: Duration = Duration::from_millis(100);

/// Time between a holder's first and last message. Its release reaches the servers at different times.
const FOLLOW: Duration = Duration::from_millis(20);

/// Spread of the polls at the end of a lease, so that waiting processes do not all poll in the same moment.
const LEASE_JITTER: Duration = Duration::from_millis(20);

/// Upper bound of the first random pause after a split round, doubled each time. It spans a few round trips, in which
/// one contender finds all members free.
const SPLIT_PAUSE: Duration = Duration::from_millis(1);
const MOST_DOUBLINGS: u32 = 6;

/// Least time for slow servers after a majority has answered and some refused. They get at least twice the time of that
/// majority.
const SLOW_PATIENCE: Duration = Duration::from_millis(5);
/// Number of times that `SLOW_PATIENCE` is multiplied by four, up to 5 s. No reply is waited for longer.
const MOST_PATIENCE: u32 = 5;

/// A wait of this length was not caused by a split.
const LONG: Duration = Duration::from_millis(200);
