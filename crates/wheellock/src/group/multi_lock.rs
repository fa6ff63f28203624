//! Several locks taken as one: all of them or none. Owns the order in which they are waited for; every attempt and every
//! wait is an ordinary lock's.
//!
//! # No deadlock, no livelock
//!
//! All members are tried without waiting: those on one server in one request that takes all or none of them, so an uncontended
//! set there costs the time of one lock. If some are held by others:
//!
//! 1. The first time, all that was granted is given back at once and the task waits for the first refused member, holding
//!    nothing: a set of which one member is busy for minutes keeps nobody from the others.
//! 2. With that one in hand all others are tried again. If some are still refused, only those granted are kept that come
//!    *before* the first refused one in a fixed order, and that one is waited for, and so on.
//!
//! So a task that waits holds only members that come before the one it waits for. Tasks and processes that use the same order
//! cannot wait for each other in a circle, and cannot chase each other for ever either: what is granted in a failed try
//! of later members is given back within a round trip and makes nobody start again, only look again.
//!
//! The order is by key, then by server. Keys are the same for all processes; addresses may be spelled in many ways, and
//! only matter where a set has one key on several servers.
//!
//! Others need not keep the order: Redisson's `MultiLock` takes its members in the order of its arguments, and any task may
//! take single locks in any order. Therefore a task holds members while it waits only for [`PATIENCE`] and a random time
//! more. Then it lets go of all of them and waits with empty hands, as the first time; the task it was in a circle with goes
//! on. Redisson does the same after 1.5 s per member (`RedissonMultiLock.lock`).

use std::convert::identity;
use std::fmt;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use wheellock_client::Timer;

use crate::base::backoff::Backoff;
use crate::base::clock::BootInstant;
use crate::base::error::Error;
use crate::base::error::LostReason;
use crate::base::join_all::{JoinAll, Request};
use crate::base::owner::Owner;
use crate::base::quorum::Quorum;
use crate::base::work::unless_lost;
use crate::lock::Lock;
use crate::request::acquire::{
    Limit, SILENT_PART, Wait, acquire, ask_together, first_answer_by, is_only_late,
};
use crate::request::guard::{Guard, Released};
use crate::wait::spans::{Held, Subject, acquiring};
use crate::wire::Refusal;

/// Several locks that are taken together, all or none: of any managers, so also on several servers. Made by
/// [`multi_lock`].
///
/// Each member is an ordinary lock: everybody else who uses its name respects it, Redisson's processes included, and its
/// lease and owner are those of the [`Lock`] that was given.
///
/// ```no_run
/// # async fn example(locks: wheellock::LockManager) -> Result<(), wheellock::Error> {
/// let transfer = wheellock::multi_lock([locks.lock("account:1"), locks.lock("account:2")])?;
/// if let Some(guard) = transfer.try_acquire().await? {
///     // ... nobody else moves money of either account ...
///     guard.release().await?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct MultiLock {
    /// As they were given.
    members: Arc<[Lock]>,
    /// The one whose clock measures the waits.
    lead: Lock,
    /// Their places, in the order in which they are waited for.
    order: Arc<[usize]>,
}

/// Puts locks together into one that takes them all or none.
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
/// A lock may be named only once. Two with the same name on one server are the same, also by way of two managers, as far as
/// the servers' addresses or run ids show it; whose lease and owner would count is for the caller to say. Of a server to which a
/// manager has yet to connect the run id is known only later: then it is told when such a set is taken and is in its own way.
///
/// # Errors
///
/// [`Error::NoMembers`], [`Error::DuplicateMember`].
pub fn multi_lock(members: impl IntoIterator<Item = Lock>) -> Result<MultiLock, Error> {
    let members: Arc<[Lock]> = members.into_iter().collect();
    let lead = members.first().cloned().ok_or(Error::NoMembers)?;
    Ok(MultiLock { order: in_order(&members)?, lead, members })
}

/// The members' places in the order in which they are waited for, if no two are the same lock as far as is known now.
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

/// What tells locks apart, and their order.
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
    /// The members, as they were given.
    pub fn members(&self) -> &[Lock] {
        &self.members
    }

    /// The same locks taken with a fixed lease each, without watchdogs. Members that had to be held while others were
    /// waited for are renewed before `acquire` returns.
    #[must_use]
    pub fn with_lease(&self, lease: Duration) -> Self {
        self.map(|lock| lock.with_lease(lease))
    }

    pub(crate) fn map(&self, change: impl Fn(&Lock) -> Lock) -> Self {
        let members = self.members.iter().map(change).collect();
        Self { members, lead: self.lead.clone(), order: Arc::clone(&self.order) }
    }

    /// Waits until all members are ours at the same time. The watchdog renews those without a fixed lease.
    ///
    /// # Cancel safety
    ///
    /// Safe at every point: what any server may have granted meanwhile is released.
    ///
    /// # Errors
    ///
    /// As [`Lock::acquire`], of the first member that fails; nothing is held then. [`Error::DuplicateMember`] if a member was refused,
    /// and two turn out to be the same lock.
    pub async fn acquire(&self) -> Result<MultiGuard, Error> {
        let Ok(guard) = self.take(Wait::FOREVER).await?;
        Ok(guard)
    }

    /// Takes all members if all are free: one round trip if one server has them all (other than in a cluster), two otherwise.
    /// Of several who try to take the same free locks at the same moment one succeeds.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire).
    pub fn try_acquire(&self) -> impl Future<Output = Result<Option<MultiGuard>, Error>> + Send {
        self.take_within(Wait::NO)
    }

    /// Waits up to `wait`, counted from this call, until all members are ours. Returns `None` if some are still held by
    /// another holder then. The servers are asked at least once, as in [`Lock::try_acquire_for`].
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire); also if the wait ended while a server did not answer.
    pub fn try_acquire_for(
        &self,
        wait: Duration,
    ) -> impl Future<Output = Result<Option<MultiGuard>, Error>> + Send {
        self.take_within(Wait::up_to(wait, &self.lead.context.client.config().timer))
    }

    /// Acquires, runs `work` with the guard, and releases with confirmation. If a member is lost meanwhile, `work` is
    /// dropped where it stands.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `work` and releases in the background.
    ///
    /// # Errors
    ///
    /// As [`Lock::run`], of the first member that was lost.
    pub async fn run<T>(&self, work: impl AsyncFnOnce(&MultiGuard) -> T) -> Result<T, Error> {
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
        work: impl AsyncFnOnce(&MultiGuard) -> Result<T, E>,
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
        work: impl AsyncFnOnce(&MultiGuard) -> Result<T, E>,
    ) -> Result<Option<T>, E> {
        match self.try_acquire_for(wait).await? {
            Some(guard) => Self::run_under(guard, work).await?.map(Some),
            None => Ok(None),
        }
    }

    /// Runs `work` under what was granted, and gives that back.
    async fn run_under<T>(guard: MultiGuard, work: impl AsyncFnOnce(&MultiGuard) -> T) -> Result<T, Error> {
        let result = guard.run_unconfirmed(work(&guard)).await?;
        guard.release_after_work().await?;
        Ok(result)
    }

    /// Whether anybody holds any member now, so that [`try_acquire`](Self::try_acquire) would be refused by others than the holder.
    /// All members are asked at once.
    ///
    /// # Cancel safety
    ///
    /// Safe: it changes nothing.
    ///
    /// # Errors
    ///
    /// As [`Lock::is_locked`], of the first member that could not be asked.
    pub async fn is_locked(&self) -> Result<bool, Error> {
        let locked = self.ask_all(|lock| Box::pin(lock.is_locked())).await?;
        Ok(locked.contains(&true))
    }

    /// Whether `owner` holds every member, as it does if each was given [`with_owner`](Lock::with_owner). An owner belongs to one
    /// manager: it holds nothing of another one's. All members are asked at once.
    ///
    /// # Cancel safety
    ///
    /// Safe: it changes nothing.
    ///
    /// # Errors
    ///
    /// As [`Lock::is_held_by`], of the first member that could not be asked.
    pub async fn is_held_by(&self, owner: &Owner) -> Result<bool, Error> {
        self.is_each_held_by(|_| owner.clone()).await
    }

    /// Whether every member is held by the owner that is named for it.
    pub(crate) async fn is_each_held_by(&self, owner: impl Fn(&Lock) -> Owner) -> Result<bool, Error> {
        let held = self.ask_all(|lock| {
            let owner = owner(lock);
            Box::pin(async move { lock.is_held_by(&owner).await })
        });
        Ok(!held.await?.contains(&false))
    }

    /// How often `owner` holds the set: as often as the member that it holds least often. All members are asked at once.
    ///
    /// # Cancel safety
    ///
    /// Safe: it changes nothing.
    ///
    /// # Errors
    ///
    /// As [`Lock::hold_count`], of the first member that could not be asked.
    pub async fn hold_count(&self, owner: &Owner) -> Result<u64, Error> {
        let counts = self.ask_all(|lock| {
            let owner = owner.clone();
            Box::pin(async move { lock.hold_count(&owner).await })
        });
        Ok(counts.await?.into_iter().min().unwrap_or_default())
    }

    /// How long all members stay held unless they are renewed: the shortest of their leases; `None` if any member is free. All members
    /// are asked at once.
    ///
    /// # Cancel safety
    ///
    /// Safe: it changes nothing.
    ///
    /// # Errors
    ///
    /// As [`Lock::remaining_lease`], of the first member that could not be asked.
    pub async fn remaining_lease(&self) -> Result<Option<Duration>, Error> {
        let leases = self.ask_all(|lock| Box::pin(lock.remaining_lease())).await?;
        // Nothing is less than any lease.
        Ok(leases.into_iter().min().flatten())
    }

    /// Frees every member, no matter who holds it, as [`Lock::force_release`] does. Returns whether any was held. All servers are asked at
    /// once.
    ///
    /// # Cancel safety
    ///
    /// A dropped call may still take effect.
    ///
    /// # Errors
    ///
    /// As [`Lock::force_release`], of the first member that could not be freed; others may have been.
    pub async fn force_release(&self) -> Result<bool, Error> {
        let held = self.ask_all(|lock| Box::pin(lock.force_release())).await?;
        Ok(held.contains(&true))
    }

    /// What every member says, or the error of the first that could not be asked.
    async fn ask_all<'a, T>(
        &'a self,
        ask: impl Fn(&'a Lock) -> Request<'a, Result<T, Error>>,
    ) -> Result<Vec<T>, Error> {
        let requests = self.members.iter().map(ask);
        JoinAll::new(requests.enumerate()).all().await.into_iter().collect()
    }

    async fn take_within(&self, wait: Wait) -> Result<Option<MultiGuard>, Error> {
        Ok(self.take(wait).await?.ok())
    }

    fn take<L: Copy + Into<Limit>>(
        &self,
        wait: Wait<L>,
    ) -> impl Future<Output = Result<Result<MultiGuard, L>, Error>> {
        let subject = Subject { lock: self.lead.name(), kind: "multi_lock" };
        acquiring(Some(subject), true, move || self.take_all(wait))
    }

    async fn take_all<L: Copy + Into<Limit>>(&self, wait: Wait<L>) -> Result<Result<MultiGuard, L>, Error> {
        self.members.iter().try_for_each(Lock::check)?;
        let mut taken = Taken(self.members.iter().map(|_| None).collect());
        // The first time, nothing is kept: see above.
        let (mut keep, mut known_held) = (false, false);
        // Leases that end before all are held do so again, where servers are slow beside them: nothing was waited for in between.
        let mut was_too_late = false;
        // Tries that waiting may cure, for the pauses between them.
        let mut failures = 0;
        loop {
            taken.forget_lost();
            let waited_with = taken.places();
            let (until, asked_at) = (self.answer_by(wait, known_held), self.now());
            let refused = match self.try_rest(&mut taken, until).await {
                Ok(refused) => refused,
                Err(error) => match self.cut_short_by(wait, asked_at, &error).filter(|_| known_held) {
                    Some(limit) => return Ok(Err(limit)),
                    None => {
                        self.try_again_later(wait, error, &mut failures, &mut taken).await?;
                        continue;
                    }
                },
            };
            let Some((refused, refusal)) = refused else {
                match self.renew_fixed(&waited_with, &taken).await {
                    Ok(true) => return Ok(Ok(taken.into_guard())),
                    Ok(false) => {}
                    Err(error) => {
                        self.try_again_later(wait, error, &mut failures, &mut taken).await?;
                        continue;
                    }
                }
                // What another hand has freed is taken again.
                let is_too_late = !taken.was_taken_away();
                if is_too_late && (waited_with.is_empty() || was_too_late) {
                    let error = self.granted_too_late(&taken);
                    self.try_again_later(wait, error, &mut failures, &mut taken).await?;
                }
                was_too_late = is_too_late;
                continue;
            };
            (known_held, was_too_late) = (true, false);
            if self.has_several_managers() {
                // They may have connected since the set was made, and then it is known whether the set is in its own way.
                in_order(&self.members)?;
            }
            if let Some(limit) = wait.one_try().or_else(|| wait.over(self.timer())) {
                return Ok(Err(limit));
            }
            let keep_now = std::mem::replace(&mut keep, true);
            taken.keep(|place| keep_now && self.comes_before(place, refused));
            let lock = self.members.get(refused).unwrap_or(&self.lead);
            match self.wait_for(lock, refusal, &mut taken, wait).await? {
                Ok(guard) => taken.put(refused, guard),
                Err(limit) => return Ok(Err(limit)),
            }
        }
    }

    /// Releases the granted members and pauses, if the wait outlasts this failure. Other callers can take the members meanwhile.
    async fn try_again_later<L: Copy + Into<Limit>>(
        &self,
        wait: Wait<L>,
        error: Error,
        failures: &mut u32,
        taken: &mut Taken,
    ) -> Result<(), Error> {
        if !wait.outlasts(&error, self.timer()) {
            return Err(error);
        }
        taken.keep(|_| false);
        let pause = Backoff::default().pause(*failures, self.lead.context.client.config().random);
        *failures = failures.saturating_add(1);
        let until = self.now() + pause;
        self.timer().sleep_until(wait.deadline().map_or(until, |deadline| deadline.min(until))).await;
        Ok(())
    }

    /// Tries all members that are not taken. Returns the first one in order that others hold.
    ///
    /// Members on one server go in one request. Where there are several servers, the one of the first member in order is asked
    /// alone, and the others at once after it: of all who want the same locks at the same moment one gets the first, and
    /// nobody is in its way at the others.
    async fn try_rest(
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
            let requests = groups.into_iter().map(|places| {
                let locks: Vec<Lock> =
                    places.iter().filter_map(|place| self.members.get(*place).cloned()).collect();
                let request: Request<'_, _> = Box::pin(async move {
                    let requests = locks.iter().map(Lock::request).collect();
                    (places, ask_together(requests, until).await)
                });
                request
            });
            let mut flight = JoinAll::new(requests.enumerate());
            let mut refused: Option<(usize, Refusal)> = None;
            while !flight.is_over() {
                for (_, (places, answer)) in flight.ready().await {
                    // After an error those still under way are dropped, and what they were granted is given back.
                    match answer? {
                        Ok(guards) => {
                            places.into_iter().zip(guards).for_each(|(place, guard)| taken.put(place, guard));
                        }
                        Err((at, refusal)) => {
                            let place = places.get(at).copied().unwrap_or_default();
                            if refused.is_none_or(|(first, _)| self.comes_before(place, first)) {
                                refused = Some((place, refusal));
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

    /// The places of the members that are not taken, in order, and apart where one request cannot take them together.
    fn groups(&self, taken: &Taken) -> Vec<Vec<usize>> {
        let mut groups: Vec<(&Lock, Vec<usize>)> = Vec::new();
        for place in self.order.iter().copied().filter(|place| taken.get(*place).is_none()) {
            let Some(lock) = self.members.get(place) else { continue };
            let together = |(first, _): &&mut (&Lock, Vec<usize>)| lock.can_be_asked_for_with(first);
            match groups.iter_mut().find(together) {
                Some((_, places)) => places.push(place),
                None => groups.push((lock, vec![place])),
            }
        }
        groups.into_iter().map(|(_, places)| places).collect()
    }

    /// Waits for one member, which was just refused. If that takes too long with others in hand, lets go of them.
    async fn wait_for<L: Copy + Into<Limit>>(
        &self,
        lock: &Lock,
        refusal: Refusal,
        taken: &mut Taken,
        wait: Wait<L>,
    ) -> Result<Result<Guard, L>, Error> {
        if !taken.is_empty() {
            let patience = PATIENCE + jitter(self.lead.context.client.config().random, PATIENCE);
            let impatient = self.now() + patience;
            let until = wait.deadline().map_or(impatient, |deadline| deadline.min(impatient));
            match acquire(lock.request(), Wait::until(until), Some(refusal), identity).await {
                Ok(Ok(guard)) => return Ok(Ok(guard)),
                Ok(Err(_)) => {}
                // The shorter wait may be why there was no answer.
                Err(error) if self.now() < until => return Err(error),
                Err(_) => {}
            }
            taken.keep(|_| false);
        }
        acquire(lock.request(), wait, Some(refusal), identity).await
    }

    /// Renews members with a fixed lease that were waited with, so that all leases begin now. Returns whether all are
    /// still held.
    async fn renew_fixed(&self, waited_with: &[usize], taken: &Taken) -> Result<bool, Error> {
        let fixed =
            waited_with.iter().filter(|place| self.members.get(**place).is_some_and(|lock| !lock.renews()));
        let renewals = JoinAll::new(fixed.filter_map(|place| {
            let guard = taken.get(*place)?;
            let request: Request<'_, _> = Box::pin(guard.renew());
            Some((*place, request))
        }));
        for renewed in renewals.all().await {
            match renewed {
                Ok(()) => {}
                Err(Error::Lost { .. }) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(taken.all_valid())
    }

    fn has_several_managers(&self) -> bool {
        self.members.iter().any(|lock| !Arc::ptr_eq(&lock.context, &self.lead.context))
    }

    /// The first member that is not held for long enough to take the others.
    fn granted_too_late(&self, taken: &Taken) -> Error {
        let is_over = |place: &&usize| taken.get(**place).is_none_or(|guard| !guard.is_valid());
        let place = self.order.iter().find(is_over).copied().unwrap_or_default();
        let lock = self.members.get(place).unwrap_or(&self.lead);
        match lock.lease() {
            Ok(lease) => Error::GrantedTooLate { lock: lock.name().to_owned(), lease: lease.duration() },
            Err(error) => error,
        }
    }

    /// The first question has the time for an answer, however short the wait.
    fn answer_by(&self, wait: Wait<impl Copy + Into<Limit>>, known_held: bool) -> Option<Instant> {
        if known_held {
            return wait.deadline();
        }
        let first = |lock: &Lock| {
            first_answer_by(&lock.context.client, lock.name.key(), Duration::ZERO, wait.of_any())
        };
        let firsts: Option<Vec<_>> = self.members.iter().map(first).collect();
        firsts?.into_iter().max()
    }

    /// What has ended the wait, if a question was not answered only because of that: a dead server is not a busy lock.
    fn cut_short_by<L: Copy + Into<Limit>>(
        &self,
        wait: Wait<L>,
        asked_at: Instant,
        error: &Error,
    ) -> Option<L> {
        let patience = self.lead.context.client.config().response_timeout / SILENT_PART;
        let ready = |lock: &Lock| lock.context.client.is_ready_for(lock.name.key().as_bytes());
        let soon = self.now().saturating_duration_since(asked_at) < patience;
        wait.over(self.timer()).filter(|_| is_only_late(error) && soon && self.members.iter().all(ready))
    }

    fn comes_before(&self, place: usize, other: usize) -> bool {
        let rank = |place| self.order.iter().position(|at| *at == place);
        rank(place) < rank(other)
    }

    fn timer(&self) -> &Timer {
        &self.lead.context.client.config().timer
    }

    fn now(&self) -> Instant {
        self.timer().now()
    }
}

impl fmt::Debug for MultiLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MultiLock").field("members", &self.members).finish_non_exhaustive()
    }
}

/// What has been taken so far, by place. Dropped, it gives everything back.
struct Taken(Vec<Option<Guard>>);

impl Taken {
    fn places(&self) -> Vec<usize> {
        self.0.iter().enumerate().filter(|(_, guard)| guard.is_some()).map(|(place, _)| place).collect()
    }

    fn is_empty(&self) -> bool {
        self.0.iter().all(Option::is_none)
    }

    fn get(&self, place: usize) -> Option<&Guard> {
        self.0.get(place)?.as_ref()
    }

    fn put(&mut self, place: usize, guard: Guard) {
        if let Some(taken) = self.0.get_mut(place) {
            *taken = Some(guard);
        }
    }

    /// Gives back the others.
    fn keep(&mut self, which: impl Fn(usize) -> bool) {
        let others = self.0.iter_mut().enumerate().filter(|(place, _)| !which(*place));
        others.for_each(|(_, guard)| *guard = None);
    }

    /// A member may have been lost while another one was waited for.
    fn forget_lost(&mut self) {
        self.0.iter_mut().for_each(|guard| *guard = guard.take().filter(Guard::is_valid));
    }

    /// Whether one was lost though its lease runs.
    fn was_taken_away(&self) -> bool {
        let reason = |guard: &Guard| guard.check().err();
        let mut lost = self.0.iter().flatten().filter_map(reason);
        lost.any(|error| !matches!(error, Error::Lost { reason: LostReason::Expired, .. }))
    }

    fn all_valid(&self) -> bool {
        self.0.iter().all(|guard| guard.as_ref().is_some_and(Guard::is_valid))
    }

    fn into_guard(self) -> MultiGuard {
        MultiGuard { members: self.0.into_iter().flatten().collect() }
    }
}

/// One hold of every member of a [`MultiLock`]. Dropping it releases all of them in the background;
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

/// Which member of a [`MultiLock`] was lost, and why.
///
/// ```no_run
/// # async fn example(guard: wheellock::MultiGuard) -> Result<(), wheellock::Error> {
/// let lost = guard.lost().await;
/// eprintln!("{}: {}", lost.lock, lost.reason);
/// guard.release().await?; // the others are still held
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct LostMember {
    /// Its place among [`MultiGuard::members`].
    pub place: usize,
    /// Its lock's name.
    pub lock: String,
    /// Why it is no longer held.
    pub reason: LostReason,
}

impl Held for MultiGuard {
    fn begin_span(&mut self) {
        self.members.iter_mut().for_each(Guard::begin_span);
    }
}

impl MultiGuard {
    /// The members' own guards, in the order in which the locks were given.
    pub fn members(&self) -> &[Guard] {
        &self.members
    }

    /// Until when all members may be believed held, as far as is known now: the earliest of their instants.
    pub fn valid_until(&self) -> BootInstant {
        let ends = self.members.iter().map(Guard::valid_until);
        Quorum::all(self.members.len()).valid_until(ends).unwrap_or_else(BootInstant::now)
    }

    /// Whether all members may be believed held right now.
    pub fn is_valid(&self) -> bool {
        self.members.iter().all(Guard::is_valid)
    }

    /// Resolves when any member can no longer be believed held, and says which. The other members are still held then,
    /// and renewed, until this guard is released or dropped.
    ///
    /// # Cancel safety
    ///
    /// Safe: it only waits.
    pub async fn lost(&self) -> LostMember {
        let mut watch = Watch { members: &self.members, watchers: vec![None; self.members.len()] };
        std::future::poll_fn(|cx| watch.poll(cx.waker())).await
    }

    /// Runs `work` while all members are held. If one is lost first, `work` is dropped where it stands. When `work` has
    /// ended the servers are asked once more, as [`Guard::run`] does.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `work`; the guard lives on.
    ///
    /// # Errors
    ///
    /// As [`Guard::run`], with the name of the first member that was lost.
    pub async fn run<F: Future>(&self, work: F) -> Result<F::Output, Error> {
        let output = self.run_unconfirmed(work).await?;
        self.all(async |guard| guard.confirm().await.map(drop)).await?;
        Ok(output)
    }

    /// [`run`](Self::run) for work that can fail: one `Result` for both, as in [`Lock::try_run`](crate::Lock::try_run).
    ///
    /// # Cancel safety
    ///
    /// As [`run`](Self::run).
    ///
    /// # Errors
    ///
    /// What `work` returns, and all of [`run`](Self::run).
    pub async fn try_run<T, E: From<Error>>(&self, work: impl Future<Output = Result<T, E>>) -> Result<T, E> {
        self.run(work).await?
    }

    async fn run_unconfirmed<F: Future>(&self, work: F) -> Result<F::Output, Error> {
        let lost = async {
            let LostMember { lock, reason, .. } = self.lost().await;
            Error::Lost { lock, reason }
        };
        unless_lost(work, lost, || self.check()).await
    }

    pub(crate) async fn release_after_work(self) -> Result<(), Error> {
        let members = self.members.into_iter().enumerate();
        let releases = members.map(|(place, guard)| -> (usize, Request<'_, _>) {
            (place, Box::pin(guard.release_after_work()))
        });
        JoinAll::new(releases).all().await.into_iter().collect()
    }

    /// Extends the leases of all members at once: see [`Guard::renew`].
    ///
    /// # Cancel safety
    ///
    /// As [`Guard::renew`].
    ///
    /// # Errors
    ///
    /// Those of the first member whose renewal failed. All were tried.
    pub async fn renew(&self) -> Result<(), Error> {
        self.all(Guard::renew).await
    }

    /// Asks something of every member at once. Returns the first error in order.
    async fn all<'a, F: Future<Output = Result<(), Error>> + Send + 'a>(
        &'a self,
        ask: impl Fn(&'a Guard) -> F,
    ) -> Result<(), Error> {
        let requests = self.members.iter().map(|guard| -> Request<'a, _> { Box::pin(ask(guard)) });
        JoinAll::new(requests.enumerate()).all().await.into_iter().collect()
    }

    /// Gives all members back, at once, and waits for every server's word.
    ///
    /// [`Released::AlreadyLost`] if any member had been lost before.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future releases in the background, as dropping the guard does.
    ///
    /// # Errors
    ///
    /// As [`Guard::release`], those of the first member that could not be released in time. All were tried, and those that
    /// failed are tried again in the background until their leases have ended.
    pub async fn release(self) -> Result<Released, Error> {
        let releases = self.members.into_iter().map(|guard| -> Request<'_, _> { Box::pin(guard.release()) });
        let mut all = Released::Released;
        let mut failed = None;
        for released in JoinAll::new(releases.enumerate()).all().await {
            match released {
                Ok(Released::Released) => {}
                Ok(Released::AlreadyLost) => all = Released::AlreadyLost,
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(all), Err)
    }

    /// An error if a member is lost.
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.members.iter().try_for_each(Guard::check)
    }
}

impl fmt::Debug for MultiGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MultiGuard").field("members", &self.members).finish_non_exhaustive()
    }
}

/// Looks out for losses of several guards.
struct Watch<'a> {
    members: &'a [Guard],
    watchers: Vec<Option<u64>>,
}

impl Watch<'_> {
    fn poll(&mut self, waker: &Waker) -> Poll<LostMember> {
        for (place, (guard, watcher)) in self.members.iter().zip(&mut self.watchers).enumerate() {
            if let Poll::Ready(reason) = guard.poll_lost(watcher, waker) {
                return Poll::Ready(LostMember { place, lock: guard.name().to_owned(), reason });
            }
        }
        Poll::Pending
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        for (guard, watcher) in self.members.iter().zip(&self.watchers) {
            if let Some(watcher) = watcher {
                guard.unwatch(*watcher);
            }
        }
    }
}

/// A random time below `bound`.
pub(crate) fn jitter(random: fn() -> u64, bound: Duration) -> Duration {
    let nanos = u64::try_from(bound.as_nanos()).unwrap_or(u64::MAX);
    Duration::from_nanos(random() % nanos.max(1))
}

/// How long members are held while another one is waited for, random time apart. Long beside the time for which locks are
/// usually held, short enough not to keep others from the members in hand for long.
const PATIENCE: Duration = Duration::from_secs(1);
