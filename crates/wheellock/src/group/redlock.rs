//! Locks on a majority of independent servers: the Redlock algorithm. Owns the rounds. Every attempt is an ordinary lock's,
//! `queue` orders the waiters of this process, `servers` identifies the servers, `members` is the guard, and `roster` looks
//! after its members.
//!
//! # How it differs from what is usually built
//!
//! - A round is over when enough servers have granted, or can no longer grant; it never waits for the slowest. A server
//!   that grants later joins the hold, so that the next server may fail without harm.
//! - A held lock asks missing members again with each renewal, so that all servers may be restarted one after the other.
//! - Each member counts its validity from before its own request, less 1 % and 2 ms, as any lock does; the quorum is valid
//!   as long as enough members are. That is the page's `lease - elapsed - drift`, and it is still right when one request
//!   was repeated and the others were not.
//! - A member lock is an ordinary one: a hash of owner to count under the lock's name, with a TTL, released by a script that
//!   checks the owner, and repeated idempotently after a lost answer. The page's `SET NX PX` with compare-and-delete is the
//!   same thing without counts; with it a repeated attempt would be refused by its own earlier grant, a waiter would not be
//!   told of the release, and no Redisson client would see the lock.
//! - Waiting costs nothing: after a failed round the first task of a process listens for the releases, and tries again when
//!   so many members have been released that a quorum is in reach.
//! - Too few servers is [`Error::NoQuorum`], never a busy lock.

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

/// Independent servers of which a majority decides who holds a lock: the Redlock algorithm.
///
/// Locks outlive any minority of the servers, without a failover and without the loss of grants that one may bring. Read
/// [when to use it](https://docs.rs/wheellock/latest/wheellock/struct.RedLockManager.html#when-to-use-it-and-when-not) first.
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
/// - It needs servers that fail independently: none a replica of another, none behind Sentinel, a cluster, or an address
///   that moves with a failover. Those are refused where they can be recognised.
/// - A server that restarts without its data may grant again what it had granted. Give every member an append-only file with
///   `appendfsync always`, or keep it down for the longest lease before it is started again.
/// - Clocks: a majority's must not run fast by more than 1 %, nor jump ahead.
/// - Within these bounds two guards are never valid at once. A process that is stopped after asking its guard may still
///   act late, as with every lease. There is no fencing token: each server can only count its own grants, and a number
///   agreed upon in a second round (the highest of a majority, plus one) would be given out twice exactly when exclusion has
///   failed, which is the one case that a token is for. Where a resource can check tokens, one server and a check there
///   is simpler and stronger.
#[derive(Clone)]
pub struct RedLockManager {
    servers: Arc<Servers>,
}

impl RedLockManager {
    /// Puts independent servers together. Returns when all have said who they are, or a majority has and the others have had
    /// a little more time: those are asked when they are first used. Managers may have been made
    /// [`lazily`](LockManagerBuilder::lazy), so that a dead minority keeps nobody from starting.
    ///
    /// # Cancel safety
    ///
    /// Safe: it only asks.
    ///
    /// # Errors
    ///
    /// [`Error::NoMembers`]; [`Error::NotIndependent`] if a server is named twice, is a replica, or is one of those that
    /// Sentinel, a cluster or replication makes of several; [`Error::NoQuorum`], without a lock's name and with the outcome
    /// [`NotSent`](crate::Outcome::NotSent), if no majority answered within the response timeout.
    ///
    /// # Panics
    ///
    /// If called outside a tokio runtime.
    pub async fn new(managers: impl IntoIterator<Item = LockManager>) -> Result<Self, Error> {
        let servers = Arc::new(Servers::new(managers.into_iter().collect())?);
        servers.meet().await?;
        Ok(Self { servers })
    }

    /// Connects to the servers at `urls` with default settings; those that cannot be reached now, in the background.
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

    /// A lock by name. No I/O. Members are the ordinary locks of this name on every server.
    pub fn lock(&self, name: &str) -> RedLock {
        self.of(name, LockManager::lock)
    }

    /// A lock by name whose members are [simple locks](LockManager::simple_lock): a majority that is shared with redsync,
    /// node-redlock, redlock-py and their kin. No I/O.
    pub fn simple_lock(&self, name: &str) -> RedLock {
        self.of(name, LockManager::simple_lock)
    }

    fn of(&self, name: &str, member: fn(&LockManager, &str) -> Lock) -> RedLock {
        let locks: Arc<[Lock]> = self.servers.managers().map(|manager| member(manager, name)).collect();
        let kind = locks.first().map_or(0, |lock| lock.name.kind().address());
        RedLock { locks, queue: self.servers.queue(name, kind), servers: Arc::clone(&self.servers) }
    }

    /// The servers' managers, in the order in which they were given.
    pub fn managers(&self) -> impl ExactSizeIterator<Item = &LockManager> {
        self.servers.managers()
    }

    /// Ends everything, on all servers at once: [`LockManager::shutdown`] of each, within the same time. Who waits for a lock of
    /// this `RedLockManager` is told at once.
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

    /// How many servers have to grant.
    pub fn quorum(&self) -> usize {
        self.servers.quorum().wanted()
    }

    /// Whether a majority of the servers is [healthy](LockManager::health), each for itself: which are not, the
    /// [managers](Self::managers) say. No I/O.
    pub fn health(&self) -> Health {
        health_of_quorum(self.managers().map(LockManager::health), self.quorum())
    }

    /// Whether [`health`](Self::health) is [`Healthy`](Health::Healthy).
    pub fn is_healthy(&self) -> bool {
        self.health().is_healthy()
    }

    /// What about the servers is known to put locks at risk: what their managers found when connecting, and replicas that
    /// an operator may promote.
    pub fn diagnostics(&self) -> Vec<Finding> {
        self.servers.findings()
    }
}

impl fmt::Debug for RedLockManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.managers()).finish()
    }
}

/// A lock of a [`RedLockManager`], by name: held by the one to whom a majority of the servers has granted it.
///
/// It is not reentrant: an owner belongs to one server's manager.
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
    /// The lock's name, which is also its key on every server.
    pub fn name(&self) -> &str {
        self.locks.first().map_or("", Lock::name)
    }

    /// The same lock taken with a fixed lease: no watchdog, it ends by itself after `lease` unless released before.
    #[must_use]
    pub fn with_lease(&self, lease: Duration) -> Self {
        self.map(|lock| lock.with_lease(lease))
    }

    pub(crate) fn map(&self, change: impl Fn(&Lock) -> Lock) -> Self {
        Self { locks: self.locks.iter().map(change).collect(), ..self.clone() }
    }

    /// Waits until a majority of the servers has granted the lock. Without [`with_lease`](Self::with_lease) the watchdog of
    /// each server's manager renews its member.
    ///
    /// Waiters of one process are served in the order in which they came.
    ///
    /// # Cancel safety
    ///
    /// Safe at every point: what any server may have granted meanwhile is released.
    ///
    /// # Errors
    ///
    /// [`Error::NoQuorum`] if no majority could be asked within the response timeout; [`Error::InvalidName`],
    /// [`Error::InvalidLease`] before anything is sent; [`Error::GrantedTooLate`] if the lease had run out before the last
    /// grant that was needed; [`Error::ShutDown`] once everything is [shut down](RedLockManager::shutdown).
    pub async fn acquire(&self) -> Result<RedLockGuard, Error> {
        let Ok(guard) = self.take(Wait::FOREVER).await?;
        Ok(guard)
    }

    /// Takes the lock if a majority grants it now: one round trip to the fastest majority.
    ///
    /// `None` as well if others were at it at the same time and nobody got a majority.
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

    /// Waits up to `wait`, counted from this call, for the lock. Returns `None` if another holder still has it then. The
    /// servers are asked at least once, as in [`Lock::try_acquire_for`].
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire); also if the wait ended while no majority answered.
    pub fn try_acquire_for(
        &self,
        wait: Duration,
    ) -> impl Future<Output = Result<Option<RedLockGuard>, Error>> + Send {
        self.take_within(Wait::up_to(wait, self.servers.timer()))
    }

    /// Acquires, runs `work` with the guard, and releases with confirmation. If the quorum is lost meanwhile, `work` is
    /// dropped where it stands.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `work` and releases in the background.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire); [`Error::Lost`] if the quorum was lost before `work` had ended, or was found lost when
    /// it was released. If the release could not be confirmed, the leases decide: what ended under a valid quorum is `Ok`.
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
    /// What `work` returns, and all of [`run`](Self::run).
    pub async fn try_run<T, E: From<Error>>(
        &self,
        work: impl AsyncFnOnce(&RedLockGuard) -> Result<T, E>,
    ) -> Result<T, E> {
        self.run(work).await?
    }

    /// [`try_run`](Self::try_run) that waits as long as [`try_acquire_for`](Self::try_acquire_for), as [`Lock::try_run_for`].
    ///
    /// # Cancel safety
    ///
    /// As [`run`](Self::run).
    ///
    /// # Errors
    ///
    /// What `work` returns, and all of [`try_acquire_for`](Self::try_acquire_for) and [`run`](Self::run).
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

    /// Runs `work` under what was granted, and gives that back.
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

    /// Waits for its place in the queue, unless the caller tries once or its owner has the lock. Returns the limit if the wait ended
    /// while the lock was known to be held.
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

    /// Waits for a pause between two rounds, within the wait.
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
        // `questions` counts rounds in vain, for the pauses between them.
        let (mut splits, mut given_up, mut known_held, mut questions) = (0, 0, false, 0_u32);
        loop {
            if let Some(news) = news {
                news.forget();
            }
            let busy = match self.round(self.answer_by(wait, known_held), given_up).await {
                Ok(Round::Reached(guard)) => {
                    self.queue.on_held();
                    return Ok(Ok(guard));
                }
                Ok(Round::Busy(busy)) => busy,
                Err(error) if wait.outlasts(&error, timer) => {
                    self.pause(Backoff::default().pause(questions, self.random()), wait).await;
                    questions = questions.saturating_add(1);
                    continue;
                }
                Err(Error::NoQuorum { lock, granted, wanted, failures }) => {
                    if let Some(limit) = wait.over(timer) {
                        return self.in_vain(limit, known_held, failures);
                    }
                    let error = Error::NoQuorum { lock, granted, wanted, failures };
                    return Err(self.failed(error, wait.one_try().is_none()));
                }
                Err(error) => return Err(error),
            };
            known_held = true;
            self.queue.on_held();
            if let Some(limit) = wait.one_try() {
                return Ok(Err(limit));
            }
            if let Some(limit) = wait.over(timer) {
                return self.in_vain(limit, true, Vec::new());
            }
            let Some(news) = news else {
                // What was released before anybody listened is found by asking once more.
                *news = Some(News::listen(&self.locks));
                continue;
            };
            // Several who share the members between them and retry at once would do so for ever.
            splits = if busy.granted > 0 { splits + 1 } else { 0 };
            let began = timer.now();
            let unheard = busy.is_silent.then(|| Backoff::default().pause(questions, self.random()));
            questions = questions.saturating_add(1);
            let heard = news.wait(timer, &busy, unheard, wait.deadline(), self.random()).await;
            // Who hears of releases was up against contenders, not against the absence of slow servers.
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

    /// Asks all servers at once, and is done when it is certain what will become of it, or when it takes a server so slow
    /// that others had better be let through: contenders that share the fast servers between them would keep those from
    /// everybody while they wait for the slow ones. After `given_up` rounds of that kind in a row the slow ones get more
    /// time, because it may really take one of them.
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
                // Of no use any more, while the others are still heard to know whether this is a busy lock.
                for member in &mut members {
                    member.give_back();
                }
            }
        }
    }

    /// This has ended the wait. Another holder has the lock, unless it cannot be known.
    fn in_vain<L>(
        &self,
        limit: L,
        known_held: bool,
        failures: Vec<MemberFailure>,
    ) -> Result<Result<RedLockGuard, L>, Error> {
        let ready = |lock: &&Lock| lock.context.client.is_ready_for(lock.name.key().as_bytes());
        let enough = self.locks.iter().filter(ready).count() >= self.servers.quorum().wanted();
        // Answers that the end of the wait cut short say nothing about their servers; other failures do.
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

    /// Whether the owners that were presented hold it already: they need not queue behind those who wait for them.
    fn is_ours(&self) -> bool {
        let held = self.locks.iter().filter(|lock| lock.is_held_by_owner()).count();
        held >= self.servers.quorum().wanted()
    }

    /// The first question has the time for an answer, however short the wait.
    fn answer_by(&self, wait: Wait<impl Copy + Into<Limit>>, known_held: bool) -> Option<Instant> {
        if known_held {
            return wait.deadline();
        }
        let first = |lock: &Lock| {
            first_answer_by(&lock.context.client, lock.name.key(), Duration::ZERO, wait.of_any())
        };
        let firsts: Vec<_> = self.locks.iter().filter_map(first).collect();
        // A majority that has never been connected decides by its response timeout.
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

/// Who holds the lock, as far as a round could see.
struct Busy {
    /// Members that others hold, or that failed: news can only come from them.
    elsewhere: Vec<usize>,
    /// One of the others tells nobody of its release.
    is_silent: bool,
    /// How many were free.
    granted: usize,
    /// How many of the others it takes.
    needed: usize,
    /// By when so many of them may have come free because their leases ended.
    free_after: Option<Duration>,
    /// How long slow servers were waited for in vain that might have granted.
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

/// What is heard of releases, from every server.
struct News {
    subscriptions: Vec<Subscription>,
}

impl News {
    fn listen(locks: &[Lock]) -> Self {
        let listen = |lock: &Lock| lock.context.client.subscribe(lock.name.channel().as_bytes());
        Self { subscriptions: locks.iter().map(listen).collect() }
    }

    /// What was heard so far is not news to the answers of the round that begins.
    fn forget(&mut self) {
        for subscription in &mut self.subscriptions {
            subscription.take_changed();
        }
    }

    /// Waits until another round has a chance: so many members were released that a quorum is in reach, or some were and the
    /// others have had time to follow; enough leases may have ended; or simply for long, but where nobody tells of releases no
    /// longer than `unheard`. Returns whether anything was heard.
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
        // One millisecond more, because servers round down.
        let free_after = busy.free_after.map(|left| left + Duration::from_millis(1));
        let poll_at = match busy.given_up {
            // Contenders release within the same time. If nobody does, it takes the slow ones.
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

/// The same where a server refuses the subscription.
const REPOLL_WHEN_DEAF: Duration = Duration::from_millis(100);

/// A holder's release reaches the servers at different times; who has heard it from some gives the others so long.
const FOLLOW: Duration = Duration::from_millis(20);

/// Processes that wait for the same lease to end shall not all ask in the same moment.
const LEASE_JITTER: Duration = Duration::from_millis(20);

/// A round in which others got some of the members is repeated after a random time below this, doubled each time: a few
/// round trips, so that one contender finds all members free.
const SPLIT_PAUSE: Duration = Duration::from_millis(1);
const MOST_DOUBLINGS: u32 = 6;

/// When a majority has answered and some were refused, the others get at least so long, and twice the time that those took.
const SLOW_PATIENCE: Duration = Duration::from_millis(5);
/// It is four times longer each time, up to 5 s, beyond which no answer is waited for.
const MOST_PATIENCE: u32 = 5;

/// Who has waited so long was no party to a split.
const LONG: Duration = Duration::from_millis(200);
