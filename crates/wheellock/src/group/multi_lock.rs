//! Several locks taken as one, all or none.
//!
//! This module owns the order in which members are waited for. Every request and every wait is the one of an ordinary
//! lock.
//!
//! # No deadlock, no livelock
//!
//! First, all members are tried without waiting. Members on one server go in one request that takes all or none of
//! them. So a free set on one server costs the time of one lock. If others hold some members:
//!
//! 1. The first time, all granted members are released at once. The task waits for the first refused member and holds
//!    nothing meanwhile. So a set with one member that is busy for minutes does not keep other tasks from its other
//!    members.
//! 2. Once that member is granted, all others are tried again. If some are still refused, the task waits for the first
//!    of these in a fixed order, and so on. It keeps only granted members that come *before* that member.
//!
//! So a waiting task holds only members that come before the member for which it waits. Tasks and processes that use
//! the same order cannot wait for each other in a circle. They cannot chase each other for ever either. A failed try of
//! later members releases its grants within a round trip. No other task starts over because of them; it only polls
//! again.
//!
//! The order is by key, then by server. Keys are the same for all processes. Addresses can be spelled in several ways,
//! and only matter if a set has one key on several servers.
//!
//! Other clients need not keep the order. Redisson's `MultiLock` takes its members in the order of its arguments, and
//! any task may take single locks in any order. Therefore a task holds members while it waits only for [`PATIENCE`] and
//! a random time more. Then it releases all of them and waits without any, as the first time. The other task in the
//! circle can then continue. Redisson does the same after 1.5 s per member (`RedissonMultiLock.lock`).

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use wheellock_client::Timer;

use crate::base::attempt::Attempt;
use crate::base::backoff::Backoff;
use crate::base::clock::BootInstant;
use crate::base::error::{Error, LostReason};
use crate::base::join_all::{JoinAll, join_all};
use crate::base::owner::Owner;
use crate::base::quorum::Quorum;
use crate::base::work::unless_lost;
use crate::group::{answer_by, is_held, jitter, sleep_within};
use crate::lock::Lock;
use crate::lock::verbs::{self, AsyncLock, forward_verbs};
use crate::request::acquire::{Over, SILENT_PART, Wait, acquire, ask_together, is_only_late};
use crate::request::guard::Guard;
use crate::wait::spans::{Held, Subject, acquiring};
use crate::wire::Refusal;
use crate::wire::release_request::ReleaseRequest;

/// Several locks that are taken together, all or none. They may belong to any managers, and so be on several servers.
/// Use [`multi_lock`] to create one.
///
/// Each member is an ordinary lock. It excludes all other users of its name, Redisson's processes included. Its lease
/// and owner are those of the [`Lock`] that was given.
///
/// ```no_run
/// # async fn example(locks: wheellock::LockManager) -> Result<(), wheellock::Error> {
/// let transfer = wheellock::multi_lock([locks.lock("account:1"), locks.lock("account:2")])?;
/// let guard = transfer.try_acquire().await?.or_held()?;
/// // ... no other holder moves money of either account ...
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "this is only a handle: call `acquire()` to take the locks"]
#[derive(Clone)]
pub struct MultiLock {
    /// The members, in the order in which they were given.
    members: Arc<[Lock]>,
    /// The member whose clock measures the waits.
    lead: Lock,
    /// The members' places, in the order in which they are waited for. A member's rank is its index here.
    order: Arc<[usize]>,
}

/// Combines locks into one that takes all or none of them.
///
/// ```no_run
/// # async fn example(locks: wheellock::LockManager) -> Result<(), wheellock::Error> {
/// let transfer = wheellock::multi_lock([locks.lock("account:1"), locks.lock("account:2")])?;
/// let guard = transfer.acquire().await?;
/// // ... nobody else moves money of either account ...
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
///
/// A lock may be named only once, because it would be unclear which lease and owner count. Two locks with the same name
/// on one server are the same lock, even through two managers. The servers' addresses or run ids show this. If a
/// manager has yet to connect, the run id of its server is known only later. Then the error comes when the set is taken
/// and one of its members refuses another.
///
/// # Errors
///
/// [`Error::NoMembers`], [`Error::DuplicateMember`].
pub fn multi_lock(members: impl IntoIterator<Item = Lock>) -> Result<MultiLock, Error> {
    let members: Arc<[Lock]> = members.into_iter().collect();
    // A set takes and releases members while it waits for others. A minimum would keep these from every other caller.
    if let Some(member) = members.iter().find(|member| member.has_min_hold()) {
        return Err(member.no_min_hold());
    }
    let lead = members.first().cloned().ok_or(Error::NoMembers)?;
    Ok(MultiLock { order: in_order(&members)?, lead, members })
}

/// Returns the members' places in the order in which they are waited for. Fails if two are known to be the same lock.
fn in_order(members: &[Lock]) -> Result<Arc<[usize]>, Error> {
    let mut places: Vec<_> = members.iter().enumerate().map(|(place, lock)| (Key::of(lock), place)).collect();
    places.sort();
    for (first, (key, _)) in places.iter().enumerate() {
        let others = places.iter().skip(first + 1).map(|(other, _)| other);
        if others.into_iter().any(|other| key.is_same_lock_as(other)) {
            return Err(Error::DuplicateMember { lock: key.key.clone(), server: key.server.as_str().into() });
        }
    }
    Ok(places.into_iter().map(|(_, place)| place).collect())
}

/// Identity of a lock, and its rank in the order.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    key: String,
    server: String,
    database: u32,
    run_id: Option<String>,
}

impl Key {
    fn of(lock: &Lock) -> Self {
        let client = &lock.context.client;
        Self {
            key: lock.name.key().to_owned(),
            server: client.config().servers.to_string(),
            database: client.config().database,
            run_id: client.server_info().and_then(|info| info.run_id),
        }
    }

    fn is_same_lock_as(&self, other: &Self) -> bool {
        let same_process = self.run_id.is_some() && self.run_id == other.run_id;
        let same_server = same_process || self.server == other.server;
        same_server && (&self.key, self.database) == (&other.key, other.database)
    }
}

impl MultiLock {
    /// Returns the members, in the order in which they were given.
    pub fn members(&self) -> &[Lock] {
        &self.members
    }

    /// Returns the same locks with a fixed lease each, without watchdogs. `acquire` renews members that it held while
    /// it waited for others, before it returns.
    pub fn with_lease(&self, lease: Duration) -> Self {
        self.map(|lock| lock.with_lease(lease))
    }

    /// Returns the same locks with a maximum time for each hold, as [`Lock::with_max_hold`]. The time of each member
    /// counts from its own grant, so the guard is lost `max` after the first of these grants.
    pub fn with_max_hold(&self, max: Duration) -> Self {
        self.map(|lock| lock.with_max_hold(max))
    }

    fn map(&self, change: impl Fn(&Lock) -> Lock) -> Self {
        let members = self.members.iter().map(change).collect();
        Self { members, lead: self.lead.clone(), order: Arc::clone(&self.order) }
    }

    /// Waits until all members are held at the same time. The watchdog renews members without a fixed lease.
    ///
    /// # Cancel safety
    ///
    /// Safe at every point: any grant of a server meanwhile is released.
    ///
    /// # Errors
    ///
    /// As [`Lock::acquire`], for the first member that fails. No member is held then. [`Error::DuplicateMember`] if a
    /// member was refused, and two turn out to be the same lock.
    pub async fn acquire(&self) -> Result<MultiGuard, Error> {
        // Only a limit ends a wait without a grant.
        self.take(Wait::Forever).await?.or_held()
    }

    /// Takes all members if all are free. This takes one round trip if one server has them all (other than in a
    /// cluster), and two otherwise. If several callers try to take the same free locks at the same moment, one
    /// succeeds.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire).
    pub fn try_acquire(&self) -> impl Future<Output = Result<Attempt<MultiGuard>, Error>> + Send {
        self.take(Wait::NO)
    }

    /// Waits up to `wait`, counted from this call, until all members are held. Returns [`Attempt::Held`] if another
    /// holder still has some of them then. The servers get at least one request, as in [`Lock::try_acquire_for`].
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire). Also an error if the wait ended while a server did not answer.
    pub fn try_acquire_for(
        &self,
        wait: Duration,
    ) -> impl Future<Output = Result<Attempt<MultiGuard>, Error>> + Send {
        self.take(Wait::up_to(wait, &self.lead.context.client.config().timer))
    }

    /// Acquires, runs `work`, and releases, as [`Lock::run`], all members. Waits without a limit.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `work` and releases in the background.
    ///
    /// # Errors
    ///
    /// As [`Lock::run`], for the first member that was lost.
    pub async fn run<T, E: From<Error>>(
        &self,
        work: impl AsyncFnOnce(&MultiGuard) -> Result<T, E>,
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
        work: impl AsyncFnOnce(&MultiGuard) -> Result<T, E>,
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
        work: impl AsyncFnOnce(&MultiGuard) -> Result<T, E>,
    ) -> Result<Attempt<T>, E> {
        verbs::run_if_granted::<Self, _, _>(self.try_acquire().await?, work).await
    }

    /// Returns true if any member is held now. Then [`try_acquire`](Self::try_acquire) would be refused to all but that
    /// holder. All members are polled at once.
    ///
    /// # Cancel safety
    ///
    /// Safe: the call changes nothing.
    ///
    /// # Errors
    ///
    /// As [`Lock::is_locked`], for the first member without a reply.
    pub async fn is_locked(&self) -> Result<bool, Error> {
        Ok(self.on_all(Lock::is_locked).await?.contains(&true))
    }

    /// Returns true if `owner` holds every member. It does if each was given [`with_owner`](Lock::with_owner). An owner
    /// belongs to one manager and holds no locks of another. All members are polled at once.
    ///
    /// # Cancel safety
    ///
    /// Safe: the call changes nothing.
    ///
    /// # Errors
    ///
    /// As [`Lock::is_held_by`], for the first member without a reply.
    pub async fn is_held_by(&self, owner: &Owner) -> Result<bool, Error> {
        self.is_each_held_by(|_| owner.clone()).await
    }

    /// Returns true if every member is held by the owner that `owner` names for it.
    pub(crate) async fn is_each_held_by(&self, owner: impl Fn(&Lock) -> Owner) -> Result<bool, Error> {
        let held = self.on_all(|lock| {
            let owner = owner(lock);
            async move { lock.is_held_by(&owner).await }
        });
        Ok(!held.await?.contains(&false))
    }

    /// Returns the hold count of `owner`: the smallest of its counts of the members. All members are polled at once.
    ///
    /// # Cancel safety
    ///
    /// Safe: the call changes nothing.
    ///
    /// # Errors
    ///
    /// As [`Lock::hold_count`], for the first member without a reply.
    pub async fn hold_count(&self, owner: &Owner) -> Result<u64, Error> {
        let counts = self.on_all(|lock| lock.hold_count(owner)).await?;
        Ok(counts.into_iter().min().unwrap_or_default())
    }

    /// Returns the shortest remaining lease of the members. All members stay held for this time without a renewal.
    /// Returns `None` if any member is free. All members are polled at once.
    ///
    /// # Cancel safety
    ///
    /// Safe: the call changes nothing.
    ///
    /// # Errors
    ///
    /// As [`Lock::remaining_lease`], for the first member without a reply.
    pub async fn remaining_lease(&self) -> Result<Option<Duration>, Error> {
        let leases = self.on_all(Lock::remaining_lease).await?;
        // `None`, a free member, sorts before every lease.
        Ok(leases.into_iter().min().flatten())
    }

    /// Frees every member, even if others hold it, as [`Lock::force_release`] does. Returns true if any was held. All
    /// servers get the request at once.
    ///
    /// # Cancel safety
    ///
    /// A dropped call may still take effect.
    ///
    /// # Errors
    ///
    /// As [`Lock::force_release`], for the first member that could not be freed. Other members may have been freed.
    pub async fn force_release(&self) -> Result<bool, Error> {
        Ok(self.on_all(Lock::force_release).await?.contains(&true))
    }

    /// Sends a request to every member at once. Returns the replies, or the error of the first member that failed.
    async fn on_all<'a, T, F: Future<Output = Result<T, Error>> + Send>(
        &'a self,
        request: impl Fn(&'a Lock) -> F,
    ) -> Result<Vec<T>, Error> {
        join_all(self.members.iter().map(request)).await.into_iter().collect()
    }

    fn take(&self, wait: Wait) -> impl Future<Output = Result<Attempt<MultiGuard>, Error>> {
        let subject = Subject { lock: self.lead.name(), kind: "multi_lock" };
        acquiring(Some(subject), true, move || self.take_all(wait))
    }

    async fn take_all(&self, wait: Wait) -> Result<Attempt<MultiGuard>, Error> {
        self.members.iter().try_for_each(Lock::check)?;
        let mut taken = Taken::new();
        // The first wait keeps no members: see the module's documentation.
        let (mut keep, mut held, called) = (false, None, self.timer().now());
        // If leases end before all members are held and no wait was in between, the servers are too slow for them. A
        // second try would end the same way, so report it.
        let mut was_too_late = false;
        // Failed tries that a wait may cure, for the pauses between them.
        let mut failures = 0;
        loop {
            // A member may have been lost during a wait for another member.
            taken.retain(|_, guard| guard.is_valid());
            let waited_with: Vec<_> = taken.keys().copied().collect();
            let waited = held.is_none().then(|| self.now().saturating_duration_since(called));
            let until = answer_by(&self.members, self.members.len(), wait, waited);
            let sent_at = self.now();
            let refused = match self.try_missing(&mut taken, until).await {
                Ok(refused) => refused,
                Err(error) => match held {
                    // No reply tells the lease of the present holder.
                    Some(lock) if self.is_cut_short(wait, sent_at, &error) => return Ok(is_held(lock, None)),
                    _ => {
                        self.try_again_later(wait, error, &mut failures, &mut taken).await?;
                        continue;
                    }
                },
            };
            let Some((refused, refusal)) = refused else {
                match self.renew_fixed(&waited_with, &taken).await {
                    Ok(true) => return Ok(Attempt::Acquired(self.guard(taken))),
                    Ok(false) => {}
                    Err(error) => {
                        self.try_again_later(wait, error, &mut failures, &mut taken).await?;
                        continue;
                    }
                }
                // A member that another client freed is taken again.
                let is_too_late = taken.values().all(|guard| match guard.check() {
                    Ok(()) | Err(Error::Lost { reason: LostReason::Expired, .. }) => true,
                    Err(_) => false,
                });
                if is_too_late && (waited_with.is_empty() || was_too_late) {
                    let error = self.granted_too_late(&taken);
                    self.try_again_later(wait, error, &mut failures, &mut taken).await?;
                }
                was_too_late = is_too_late;
                continue;
            };
            (held, was_too_late) = (Some(self.member(refused).name()), false);
            if self.has_several_managers() {
                // A manager may have connected since the set was made. Only now can its run id show that two members
                // are the same lock, which would wait for itself for ever.
                in_order(&self.members)?;
            }
            if wait.one_try().or_else(|| wait.over(self.timer())).is_some() {
                return Ok(is_held(self.member(refused).name(), refusal.lease_left));
            }
            let keep_now = std::mem::replace(&mut keep, true);
            taken.retain(|rank, _| keep_now && *rank < refused);
            match self.wait_for(self.member(refused), refusal, &mut taken, wait).await? {
                Attempt::Acquired(guard) => taken.insert(refused, guard),
                Attempt::Held { lock, lease_left } => return Ok(Attempt::Held { lock, lease_left }),
            };
        }
    }

    /// Releases the granted members and pauses, if the wait outlasts `error`. Other callers can take the members
    /// meanwhile.
    async fn try_again_later(
        &self,
        wait: Wait,
        error: Error,
        failures: &mut u32,
        taken: &mut Taken,
    ) -> Result<(), Error> {
        if !wait.outlasts(&error, self.timer()) {
            return Err(error);
        }
        taken.clear();
        let pause = Backoff::default().pause(*failures, self.lead.context.client.config().random);
        *failures = failures.saturating_add(1);
        sleep_within(wait, pause, self.timer()).await;
        Ok(())
    }

    /// Tries all members that are not taken. Returns the first member in order that others hold, and its refusal.
    ///
    /// Members on one server go in one request. With several servers, the server of the first member in order gets its
    /// request alone. If it grants, all others get theirs at once. If several callers want the same locks at the same
    /// moment, one gets the first member. The other callers then do not disturb it at the other servers.
    async fn try_missing(
        &self,
        taken: &mut Taken,
        until: Option<Instant>,
    ) -> Result<Option<(usize, Refusal)>, Error> {
        let mut groups = self.groups(taken);
        let later = groups.split_off(1.min(groups.len()));
        let phases = if taken.is_empty() {
            vec![groups, later]
        } else {
            vec![groups.into_iter().chain(later).collect()]
        };
        for groups in phases {
            let mut replies = JoinAll::new(groups.into_iter().map(|ranks| async move {
                let requests = ranks.iter().map(|rank| self.member(*rank).request()).collect();
                (ranks, ask_together(requests, until).await)
            }));
            let mut refused: Option<(usize, Refusal)> = None;
            while !replies.is_over() {
                for (_, (ranks, answer)) in replies.ready().await {
                    // An error drops the requests under way, which releases their grants.
                    match answer? {
                        Ok(guards) => taken.extend(ranks.into_iter().zip(guards)),
                        Err((at, refusal)) => {
                            let rank = ranks.get(at).copied().unwrap_or_default();
                            if refused.is_none_or(|(first, _)| rank < first) {
                                refused = Some((rank, refusal));
                            }
                        }
                    }
                }
            }
            if refused.is_some() {
                return Ok(refused);
            }
        }
        Ok(None)
    }

    /// Returns the ranks of the members that are not taken. Each group of them fits in one request.
    fn groups(&self, taken: &Taken) -> Vec<Vec<usize>> {
        let mut groups: Vec<(&Lock, Vec<usize>)> = Vec::new();
        for rank in (0..self.order.len()).filter(|rank| !taken.contains_key(rank)) {
            let lock = self.member(rank);
            match groups.iter_mut().find(|(first, _)| lock.can_be_requested_with(first)) {
                Some((_, ranks)) => ranks.push(rank),
                None => groups.push((lock, vec![rank])),
            }
        }
        groups.into_iter().map(|(_, ranks)| ranks).collect()
    }

    fn member(&self, rank: usize) -> &Lock {
        let member = self.order.get(rank).and_then(|place| self.members.get(*place));
        member.unwrap_or(&self.lead)
    }

    /// Returns the guard of all members, in the order in which they were given.
    fn guard(&self, taken: Taken) -> MultiGuard {
        let members: BTreeMap<_, _> = self.order.iter().zip(taken.into_values()).collect();
        MultiGuard { members: members.into_values().collect() }
    }

    /// Waits for one member, which was just refused. If that takes too long while other members are held, releases
    /// these.
    async fn wait_for(
        &self,
        lock: &Lock,
        refusal: Refusal,
        taken: &mut Taken,
        wait: Wait,
    ) -> Result<Attempt<Guard>, Error> {
        if !taken.is_empty() {
            let patience = PATIENCE + jitter(self.lead.context.client.config().random, PATIENCE);
            let impatient = self.now() + patience;
            let until = wait.deadline().map_or(impatient, |deadline| deadline.min(impatient));
            match acquire(lock.request(), Wait::until(until), Some(refusal), Over::attempt).await {
                Ok(Attempt::Acquired(guard)) => return Ok(Attempt::Acquired(guard)),
                Ok(Attempt::Held { .. }) => {}
                // The shorter wait may be the reason for the missing reply.
                Err(error) if self.now() < until => return Err(error),
                Err(_) => {}
            }
            taken.clear();
        }
        acquire(lock.request(), wait, Some(refusal), Over::attempt).await
    }

    /// Renews members with a fixed lease that were held during a wait, so that all leases begin now. Returns true if
    /// all are still held.
    async fn renew_fixed(&self, waited_with: &[usize], taken: &Taken) -> Result<bool, Error> {
        let fixed = waited_with.iter().filter(|rank| !self.member(**rank).renews());
        let fixed = fixed.filter_map(|rank| taken.get(rank));
        for renewed in join_all(fixed.map(Guard::renew)).await {
            match renewed {
                Ok(()) => {}
                Err(Error::Lost { .. }) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(taken.values().all(Guard::is_valid))
    }

    fn has_several_managers(&self) -> bool {
        self.members.iter().any(|lock| !Arc::ptr_eq(&lock.context, &self.lead.context))
    }

    /// Returns the error for the first member whose lease was too short to take the others.
    fn granted_too_late(&self, taken: &Taken) -> Error {
        let is_over = |rank: &usize| taken.get(rank).is_none_or(|guard| !guard.is_valid());
        self.member((0..self.order.len()).find(is_over).unwrap_or_default()).granted_too_late()
    }

    /// Returns true if the wait is over, and a reply is missing only because of that. A dead server is not a busy lock.
    fn is_cut_short(&self, wait: Wait, sent_at: Instant, error: &Error) -> bool {
        let patience = self.lead.context.client.config().response_timeout / SILENT_PART;
        let soon = self.now().saturating_duration_since(sent_at) < patience;
        let is_over = wait.over(self.timer()).is_some();
        is_over && is_only_late(error) && soon && self.members.iter().all(Lock::is_ready)
    }

    fn timer(&self) -> &Timer {
        &self.lead.context.client.config().timer
    }

    fn now(&self) -> Instant {
        self.timer().now()
    }
}

impl AsyncLock for MultiLock {
    type Guard = MultiGuard;
    type Loss = LostMember;

    fn with_default_owner(&self, number: u64) -> Self {
        self.map(|lock| lock.with_default_owner(number))
    }

    forward_verbs!();
}

impl fmt::Debug for MultiLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MultiLock").field("members", &self.members).finish_non_exhaustive()
    }
}

/// The members taken so far, by rank. Dropping this releases them all.
type Taken = BTreeMap<usize, Guard>;

/// One hold of every member of a [`MultiLock`]. Dropping the guard releases all members in the background.
/// [`release`](Self::release) does so with confirmation.
///
/// ```no_run
/// # async fn example(locks: wheellock::LockManager) -> Result<(), wheellock::Error> {
/// let transfer = wheellock::multi_lock([locks.lock("account:1"), locks.lock("account:2")])?;
/// let guard = transfer.acquire().await?;
/// for member in guard.members() {
///     println!("{} until {:?}", member.name(), member.valid_until());
/// }
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "the locks are given back at once if their guard is not kept"]
pub struct MultiGuard {
    members: Vec<Guard>,
}

/// A lost member of a [`MultiLock`], and the reason.
///
/// ```no_run
/// # async fn example(guard: wheellock::MultiGuard) -> Result<(), wheellock::Error> {
/// let lost = guard.lost().await;
/// eprintln!("{}: {}", lost.lock, lost.reason);
/// drop(guard); // the others are still held until now
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct LostMember {
    /// The member's place among [`MultiGuard::members`].
    pub place: usize,
    /// The name of the member's lock.
    pub lock: String,
    /// The reason of the loss.
    pub reason: LostReason,
}

impl Held for MultiGuard {
    fn begin_span(&mut self) {
        self.members.iter_mut().for_each(Guard::begin_span);
    }
}

impl MultiGuard {
    /// Returns the members' own guards, in the order in which the locks were given.
    pub fn members(&self) -> &[Guard] {
        &self.members
    }

    /// Returns the time until which all members are known to be held, the earliest of their own. Renewals move it.
    pub fn valid_until(&self) -> BootInstant {
        let ends = self.members.iter().map(Guard::valid_until);
        Quorum::all(self.members.len()).valid_until(ends).unwrap_or_else(BootInstant::now)
    }

    /// Returns true if all members are held now, as far as is known.
    pub fn is_valid(&self) -> bool {
        self.members.iter().all(Guard::is_valid)
    }

    /// Returns true if any member [is endangered](Guard::is_endangered).
    pub fn is_endangered(&self) -> bool {
        self.members.iter().any(Guard::is_endangered)
    }

    /// Waits until any member [is endangered](Guard::endangered), a third of its lease before the set may be lost.
    ///
    /// # Cancel safety
    ///
    /// Safe: the call only waits.
    pub async fn endangered(&self) {
        let _members = JoinAll::new(self.members.iter().map(Guard::endangered)).ready().await;
    }

    /// Resolves when any member is lost, and returns that member. The others stay held and renewed until this guard is
    /// released or dropped.
    ///
    /// # Cancel safety
    ///
    /// Safe: the call only waits.
    pub async fn lost(&self) -> LostMember {
        let losses = self.members.iter().enumerate().map(|(place, guard)| async move {
            LostMember { place, lock: guard.name().to_owned(), reason: guard.lost().await }
        });
        match JoinAll::new(losses).ready().await.into_iter().next() {
            Some((_, lost)) => lost,
            // A guard has at least one member, so this branch never runs.
            None => std::future::pending().await,
        }
    }

    /// Waits until a caller [asks](Lock::ask_to_release) to release any member, and returns the first request, as
    /// [`Guard::release_requested`] does.
    ///
    /// # Cancel safety
    ///
    /// As [`Guard::release_requested`].
    pub async fn release_requested(&self) -> ReleaseRequest {
        let requests = JoinAll::new(self.members.iter().map(Guard::release_requested)).ready().await;
        match requests.into_iter().next() {
            Some((_, request)) => request,
            // A guard has at least one member, so this branch never runs.
            None => std::future::pending().await,
        }
    }

    /// Runs `work` while all members are held. If a member is lost first, `work` is dropped at its current await point.
    /// After `work` has ended, the servers are polled once more, as [`Guard::run`] does.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `work`. The guard stays.
    ///
    /// # Errors
    ///
    /// As [`Guard::run`], with the name of the first member that was lost.
    pub async fn run<T, E: From<Error>>(&self, work: impl Future<Output = Result<T, E>>) -> Result<T, E> {
        let result = self.run_unconfirmed(work).await?;
        join_all(self.members.iter().map(Guard::confirm)).await.into_iter().collect::<Result<Vec<_>, _>>()?;
        result
    }

    async fn run_unconfirmed<F: Future>(&self, work: F) -> Result<F::Output, Error> {
        let lost = async {
            let LostMember { lock, reason, .. } = self.lost().await;
            Error::Lost { lock, reason }
        };
        unless_lost(work, lost, || self.check()).await
    }

    async fn release_after_work(self) -> Result<(), Error> {
        join_all(self.members.into_iter().map(Guard::release_after_work)).await.into_iter().collect()
    }

    /// Extends the leases of all members at once: see [`Guard::renew`].
    ///
    /// # Cancel safety
    ///
    /// As [`Guard::renew`].
    ///
    /// # Errors
    ///
    /// The error of the first member whose renewal failed. All members were tried.
    pub async fn renew(&self) -> Result<(), Error> {
        join_all(self.members.iter().map(Guard::renew)).await.into_iter().collect()
    }

    /// Releases all members at once, and waits for every server's confirmation.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future releases in the background, as dropping the guard does.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if a member had been lost before. Otherwise as [`Guard::release`], for the first member that could
    /// not be released in time. All members were tried. Failed releases are retried in the background until the leases
    /// have ended.
    pub async fn release(self) -> Result<(), Error> {
        let released = join_all(self.members.into_iter().map(Guard::release)).await;
        let mut errors: Vec<_> = released.into_iter().filter_map(Result::err).collect();
        // A loss concerns the caller's work. A failed release does not, because it is repeated.
        errors.sort_by_key(|error| !matches!(error, Error::Lost { .. }));
        errors.into_iter().next().map_or(Ok(()), Err)
    }

    /// Fails if a member is lost.
    fn check(&self) -> Result<(), Error> {
        self.members.iter().try_for_each(Guard::check)
    }
}

impl fmt::Debug for MultiGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MultiGuard").field("members", &self.members).finish_non_exhaustive()
    }
}

/// Time for which members are held during a wait for another member. A random time is added. Locks are usually held for
/// much less, and other callers do not lack these members for long.
const PATIENCE: Duration = Duration::from_secs(1);
