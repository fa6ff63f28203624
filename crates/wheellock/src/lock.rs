//! A lock by name: what one may hold. Owns the public verbs; the work is done by the acquire loop and the guard.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use wheellock_client::{Arg, Command, Script, Servers, Value};

use crate::base::backoff::Backoff;
use crate::base::error::Error;
use crate::base::lease::Lease;
use crate::base::owner::{Owner, OwnerText};
use crate::kind::Companions;
use crate::request::acquire::{Request, Wait, acquire};
use crate::request::context::Context;
use crate::request::guard::Guard;
use crate::request::label;
use crate::request::once::once;
use crate::table::holds::Share;
use crate::wait::name::Name;
use crate::wait::sides::Sides;
use crate::wire;
use crate::wire::holder::{Holder, Holders};

/// A reentrant lock, shared by all who use its name: tasks, processes, and Redisson's `RLock` in Java.
///
/// A handle costs no I/O and may be cloned and shared. Every acquire is a holder of its own, so two tasks that share a
/// handle exclude each other; to take the lock once more on purpose, present the owner: [`with_owner`](Self::with_owner).
///
/// ```no_run
/// use std::time::Duration;
///
/// # async fn example(locks: wheellock::LockManager) -> Result<(), wheellock::Error> {
/// let orders = locks.lock("orders:42");
/// let guard = orders.acquire().await?; // as long as it takes
/// guard.release().await?;
///
/// if let Some(guard) = orders.try_acquire_for(Duration::from_secs(5)).await? {
///     // ... alone in the whole fleet ...
///     guard.release().await?;
/// }
/// let answer = orders.run(async |_guard| 6 * 7).await?; // acquires, works, releases
/// # drop(answer);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Lock {
    pub(crate) context: Arc<Context>,
    pub(crate) name: Arc<Name>,
    lease: Option<Duration>,
    owner: Option<Owner>,
    /// Of a side of a read-write lock.
    pub(crate) sides: Option<Sides>,
    /// Of a handle whose callers ask again after pauses, and do not listen.
    /// Shared by its copies: few have one, and every task that waits has a copy.
    backoff: Option<Arc<Backoff>>,
}

impl Lock {
    pub(crate) fn new(context: Arc<Context>, name: Arc<Name>) -> Self {
        Self { context, name, lease: None, owner: None, sides: None, backoff: None }
    }

    /// The lock's name, which is also its key on the server.
    pub fn name(&self) -> &str {
        self.name.text()
    }

    /// The same lock taken with a fixed lease: no watchdog, it ends by itself after `lease` unless released before. A
    /// lease below 3 ms or above 100 years fails when acquiring.
    #[must_use]
    pub fn with_lease(&self, lease: Duration) -> Self {
        Self { lease: Some(lease), ..self.clone() }
    }

    /// The same lock taken as `owner`. If that owner holds it, acquiring succeeds at once and raises the hold count;
    /// each guard gives back one hold.
    #[must_use]
    pub fn with_owner(&self, owner: Owner) -> Self {
        Self { owner: Some(owner), ..self.clone() }
    }

    /// The same lock waited for by asking again and again after these pauses, instead of listening for releases: what
    /// [`spin_lock`](crate::LockManager::spin_lock) does by default. A wait is never overshot. Behind a waiter of this process
    /// who listens, a caller with a backoff hears of a release as early as that one.
    #[must_use]
    pub fn with_backoff(&self, backoff: Backoff) -> Self {
        Self { backoff: Some(Arc::new(backoff)), ..self.clone() }
    }

    /// Waits until the lock is free and takes it. Without [`with_lease`](Self::with_lease) the watchdog renews the lease
    /// until the guard is released or dropped, or this process dies.
    ///
    /// Waiters of one process are served in the order in which they came.
    ///
    /// # Cancel safety
    ///
    /// Safe at every point: what the server may have granted meanwhile is released, and the next waiter is woken.
    ///
    /// Safe is to drop the future, and not to keep it without polling it, as a `select!` in a loop does with one that is pinned outside
    /// of it while the work of another branch goes on. It keeps its place: as with tokio's `Mutex`, those who wait behind it for
    /// this lock in this process may stand still until it is polled or dropped.
    ///
    /// # Errors
    ///
    /// [`Error::Server`] if the server cannot be asked for longer than the response timeout; [`Error::OtherData`] if there
    /// is other data under the name; [`Error::InvalidName`], [`Error::InvalidLease`], [`Error::ForeignOwner`] before anything
    /// is sent; [`Error::GrantedTooLate`] if the lease had run out before the grant arrived, and the wait was over (without a limit the
    /// lock is asked for again); [`Error::NotReplicated`] if too few servers knew of the grant in time; [`Error::ShutDown`] once the manager is
    /// [shut down](crate::LockManager::shutdown).
    pub async fn acquire(&self) -> Result<Guard, Error> {
        acquire(self.request(), Wait::FOREVER, None, |Ok(guard)| guard).await
    }

    /// Takes the lock if it is free: one round trip. A [wait](Self::try_acquire_for) of zero does the same.
    ///
    /// The server has 300 ms for its answer, also if the connection broke and has to come back first. Only the first connection of a
    /// [lazy](crate::LockManagerBuilder::lazy) manager may take as long as the response timeout.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire).
    pub fn try_acquire(&self) -> impl Future<Output = Result<Option<Guard>, Error>> + Send {
        acquire(self.request(), Wait::NO, None, Result::ok)
    }

    /// Waits up to `wait`, counted from this call, for the lock. Returns `None` if another holder still has it then.
    ///
    /// The server is asked at least once, so a wait shorter than a round trip ends with the answer to the first question; at most 300 ms
    /// later, if the server is connected and does not answer. All other waits end on time. A wait of [`Duration::ZERO`] is
    /// [`try_acquire`](Self::try_acquire).
    ///
    /// A server that takes no writes for want of replicas or memory (`NOREPLICAS`, `OOM`) is waited for, as a holder is.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire), and [`Error::Server`] if the wait ended while the server did not answer, or refused to
    /// serve: then it is not known who holds the lock. A question that the end of the wait cut short is no error.
    pub fn try_acquire_for(
        &self,
        wait: Duration,
    ) -> impl Future<Output = Result<Option<Guard>, Error>> + Send {
        let wait = Wait::up_to(wait, &self.context.client.config().timer);
        acquire(self.request(), wait, None, Result::ok)
    }

    /// Acquires, runs `work` with the guard, and releases with confirmation. If the lock is lost meanwhile, `work` is
    /// dropped where it stands.
    ///
    /// ```no_run
    /// # async fn example(locks: wheellock::LockManager) -> Result<(), wheellock::Error> {
    /// let total = locks.lock("orders:42").run(async |_guard| 40 + 2).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `work` and releases in the background.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire); [`Error::Lost`] if the lock was lost before `work` had ended, or if the server no
    /// longer knew its owner when it was released: then it is not known which came first. If the release could not be
    /// confirmed, the lease decides: what ended under a valid one is `Ok`.
    pub async fn run<T>(&self, work: impl AsyncFnOnce(&Guard) -> T) -> Result<T, Error> {
        Self::run_under(self.acquire().await?, work).await
    }

    /// [`run`](Self::run) for work that can fail: one `Result` for both. The lock's errors become the work's by [`From`].
    ///
    /// ```no_run
    /// # use wheellock::{Error, LockManager};
    /// # async fn charge(_: &str) -> Result<u64, std::io::Error> { Ok(3) }
    /// # async fn example(locks: LockManager) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    /// type Any = Box<dyn std::error::Error + Send + Sync>;
    /// let order = locks.lock("orders:42");
    /// let paid = order.try_run(async |_guard| {
    ///     let paid = charge("orders:42").await?; // an error ends the work, and the lock is released
    ///     Ok::<_, Any>(paid)
    /// });
    /// println!("paid {}", paid.await?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// As [`run`](Self::run).
    ///
    /// # Errors
    ///
    /// What `work` returns, after the lock was released; and all of [`run`](Self::run). Of a lock that was lost the error is
    /// [`Error::Lost`], whatever `work` has said.
    pub async fn try_run<T, E: From<Error>>(
        &self,
        work: impl AsyncFnOnce(&Guard) -> Result<T, E>,
    ) -> Result<T, E> {
        self.run(work).await?
    }

    /// [`try_run`](Self::try_run) that waits for the lock up to `wait`, as [`try_acquire_for`](Self::try_acquire_for) does. Returns
    /// `None` if another holder still has it then: `work` was not begun.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), wheellock::Error> {
    /// # use std::time::Duration;
    /// # let double = wheellock::testing::Double::new();
    /// # let (locks, others) = (double.manager().await?, double.manager().await?);
    /// let order = locks.lock("orders:42");
    /// let wait = Duration::from_secs(2);
    /// let paid = order.try_run_for(wait, async |_guard| Ok::<_, wheellock::Error>(3)).await?;
    /// assert_eq!(paid, Some(3));
    ///
    /// let _theirs = others.lock("orders:42").acquire().await?;
    /// let paid = order.try_run_for(wait, async |_guard| Ok::<_, wheellock::Error>(3)).await?;
    /// assert_eq!(paid, None); // a web service answers 409
    /// # Ok(())
    /// # }
    /// ```
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
        work: impl AsyncFnOnce(&Guard) -> Result<T, E>,
    ) -> Result<Option<T>, E> {
        match self.try_acquire_for(wait).await? {
            Some(guard) => Self::run_under(guard, work).await?.map(Some),
            None => Ok(None),
        }
    }

    /// Runs `work` under what was granted, and gives that back.
    async fn run_under<T>(guard: Guard, work: impl AsyncFnOnce(&Guard) -> T) -> Result<T, Error> {
        let result = guard.run_unconfirmed(work(&guard)).await?;
        guard.release_after_work().await?;
        Ok(result)
    }

    /// Whether anybody holds the lock now. Always asked of the primary.
    ///
    /// # Cancel safety
    ///
    /// Safe: it changes nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Server`], [`Error::InvalidName`].
    pub async fn is_locked(&self) -> Result<bool, Error> {
        if let Some(script) = &self.name.kind().is_held {
            return self.ask_script(script, &wire::is_held_by_script(&self.name), wire::read_yes).await;
        }
        self.ask(wire::is_held(&self.name), wire::read_yes).await
    }

    /// How often `owner` holds the lock.
    ///
    /// # Cancel safety
    ///
    /// Safe: it changes nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Server`], [`Error::InvalidName`].
    pub async fn hold_count(&self, owner: &Owner) -> Result<u64, Error> {
        let holder = self.text_of(owner);
        let read = |reply: &Value| wire::read_hold_count(&self.name, &holder, reply);
        self.ask(wire::hold_count(&self.name, &holder), read).await
    }

    /// Whether `owner` holds the lock.
    ///
    /// # Cancel safety
    ///
    /// Safe: it changes nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Server`], [`Error::InvalidName`].
    pub async fn is_held_by(&self, owner: &Owner) -> Result<bool, Error> {
        self.hold_count(owner).await.map(|count| count > 0)
    }

    /// Who holds the lock: process, owner, hold count, what is left of the lease and, if its manager has one, its
    /// [label](crate::LockManagerBuilder::label); `None` if the lock is free. Of readers it is any one; see
    /// [`holders`](Self::holders).
    ///
    /// Foreign holders are shown as what they are. It takes one round trip, and a second one for the labels of other managers.
    ///
    /// ```no_run
    /// # async fn example(locks: wheellock::LockManager) -> Result<(), wheellock::Error> {
    /// let orders = locks.lock("orders:42");
    /// if orders.try_acquire().await?.is_none()
    ///     && let Some(holder) = orders.holder().await?
    /// {
    ///     println!("orders are being billed: {holder}");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// Safe: it changes nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Server`], [`Error::InvalidName`]; [`Error::OtherData`] if what is under the name is no such lock. A label that
    /// cannot be found is none.
    pub async fn holder(&self) -> Result<Option<Holder>, Error> {
        let Holders { mut holders, .. } = self.unlabelled_holders().await?;
        holders.truncate(1);
        label::find(&self.context, &mut holders).await;
        Ok(holders.pop())
    }

    /// All who hold the lock, as [`holder`](Self::holder) says it of one. Only readers are several: at most a hundred of them are
    /// told, and how many there are beyond these.
    ///
    /// # Cancel safety
    ///
    /// Safe: it changes nothing.
    ///
    /// # Errors
    ///
    /// As [`holder`](Self::holder).
    pub async fn holders(&self) -> Result<Holders, Error> {
        let mut found = self.unlabelled_holders().await?;
        label::find(&self.context, &mut found.holders).await;
        Ok(found)
    }

    async fn unlabelled_holders(&self) -> Result<Holders, Error> {
        let Some(script) = &self.name.kind().show_holders else {
            return self.name.check().map(|()| Holders::default());
        };
        let read = |reply: &Value| wire::read_holders(&self.name, reply);
        self.ask_script(script, &wire::show_holders(&self.name), read).await
    }

    /// How long the present holder's lease still runs by the server's clock, to the millisecond; `None` if the lock
    /// is free, [`Duration::MAX`] if an operator has taken its TTL away.
    ///
    /// # Cancel safety
    ///
    /// Safe: it changes nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Server`], [`Error::InvalidName`].
    pub async fn remaining_lease(&self) -> Result<Option<Duration>, Error> {
        self.ask(wire::remaining_lease(&self.name), wire::read_remaining_lease).await
    }

    /// How many wait for a [fair lock](crate::LockManager::fair_lock), in all processes; `None` for other kinds, of which the
    /// server does not know who waits.
    ///
    /// # Cancel safety
    ///
    /// Safe: it changes nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Server`], [`Error::InvalidName`].
    pub async fn queue_length(&self) -> Result<Option<u64>, Error> {
        if self.name.kind().companions != Companions::Queue {
            return self.name.check().map(|()| None);
        }
        let key = wire::queue_key(&self.name);
        self.ask(wire::queue_length(&key), wire::read_queue_length).await.map(Some)
    }

    /// How many stand before `owner` among those who wait for a [fair lock](crate::LockManager::fair_lock), the dead included: 0 is
    /// next. `None` if this owner does not wait, and for other kinds. Needs Redis 6.0.6.
    ///
    /// # Cancel safety
    ///
    /// Safe: it changes nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Server`], [`Error::InvalidName`].
    pub async fn position(&self, owner: &Owner) -> Result<Option<u64>, Error> {
        if self.name.kind().companions != Companions::Queue {
            return self.name.check().map(|()| None);
        }
        let (key, holder) = (wire::queue_key(&self.name), self.text_of(owner));
        self.ask(wire::position(&key, &holder), wire::read_position).await
    }

    /// Frees the lock, no matter who holds it, and wakes the waiters. Returns whether it was held. A holder of this manager learns
    /// of it at once, one elsewhere by its watchdog's next renewal, within a third of its lease, or with a fixed lease when it asks; until then
    /// two may work.
    ///
    /// # Cancel safety
    ///
    /// A dropped call may still take effect.
    ///
    /// # Errors
    ///
    /// [`Error::OtherData`] if what is under the name is no such lock; [`Error::Server`], [`Error::InvalidName`].
    pub async fn force_release(&self) -> Result<bool, Error> {
        self.check_name()?;
        let Some(script) = &self.name.kind().force_release else { return Ok(false) };
        let params = wire::force_release(&self.name, self.context.client.publish_verb());
        let sent = self.context.clock.now();
        let reply = self.context.client.eval(script, &params).await;
        let reply = reply.map_err(|source| self.error("force the release of", source))?;
        let was_held = wire::read_yes(&reply).ok_or_else(|| self.unexpected(&reply))?;
        if was_held {
            let mut names = self.context.with_others_of_its_hash(&self.name, <[_]>::to_vec);
            names.push(Arc::clone(&self.name));
            names.extend(self.sides.as_ref().map(|sides| Arc::clone(&sides.other)));
            self.context.transact(|holds, now, effects| holds.freed_by_force(&names, sent, now, effects));
        }
        Ok(was_held)
    }

    /// Asks the primary, and reads its answer.
    pub(crate) async fn ask<T>(
        &self,
        command: Command<'_>,
        read: impl FnOnce(&Value) -> Option<T>,
    ) -> Result<T, Error> {
        self.name.check()?;
        let reply = self.context.client.call(&command).await;
        let reply = reply.map_err(|source| self.error("query", source))?;
        read(&reply).ok_or_else(|| self.unexpected(&reply))
    }

    /// As [`ask`](Self::ask), where one command does not say it.
    pub(crate) async fn ask_script<T>(
        &self,
        script: &Script,
        params: &[Arg<'_>],
        read: impl FnOnce(&Value) -> Option<T>,
    ) -> Result<T, Error> {
        self.name.check()?;
        let reply = self.context.client.eval(script, params).await;
        let reply = reply.map_err(|source| self.error("query", source))?;
        read(&reply).ok_or_else(|| self.unexpected(&reply))
    }

    /// Has a script take effect once.
    pub(crate) async fn once(
        &self,
        script: &Script,
        verb: &str,
        more: Option<Arg<'_>>,
    ) -> Result<i64, Error> {
        self.check_name()?;
        once(&self.context, &self.name, script, verb, more).await
    }

    fn error(&self, verb: &str, source: wheellock_client::Error) -> Error {
        Error::of_lock(self.name(), self.operation(verb), source)
    }

    fn unexpected(&self, reply: &Value) -> Error {
        self.context.unexpected(&self.name, self.operation("query"), reply)
    }

    fn operation(&self, verb: &str) -> String {
        format!("{verb} {}", self.name.titled())
    }

    /// One hold of this lock, on the terms of this handle.
    pub(crate) fn request(&self) -> Result<Request<'_>, Error> {
        self.check_name()?;
        Ok(Request {
            context: &self.context,
            name: &self.name,
            owner: self.owner_number()?,
            presented: self.has_owner(),
            lease: self.lease()?,
            share: Share { count: 1, renew: self.renews() },
            sides: self.sides.as_ref(),
            backoff: self.backoff.as_deref(),
            latch: None,
            many: None,
        })
    }

    /// What `owner` is called in this lock.
    fn text_of(&self, owner: &Owner) -> OwnerText {
        OwnerText::new(&owner.manager, owner.number, self.name.kind().holder_suffix)
    }

    fn owner_number(&self) -> Result<u64, Error> {
        match &self.owner {
            None => Ok(self.context.new_owner()),
            Some(owner) if owner.manager == self.context.uuid => Ok(owner.number),
            Some(owner) => Err(Error::ForeignOwner { owner: owner.to_string() }),
        }
    }

    /// Whether the owner that was presented is believed to hold this lock.
    pub(crate) fn is_held_by_owner(&self) -> bool {
        let ours = self.owner.as_ref().filter(|owner| owner.manager == self.context.uuid);
        ours.is_some_and(|owner| self.context.holds().is_held_by(&self.name, owner.number))
    }

    /// An error, if no attempt on this lock could be made at all.
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.check_name()?;
        self.lease()?;
        match &self.owner {
            Some(owner) if owner.manager != self.context.uuid => {
                Err(Error::ForeignOwner { owner: owner.to_string() })
            }
            _ => Ok(()),
        }
    }

    /// An error if the server could not do with this name what a lock needs.
    pub(crate) fn check_name(&self) -> Result<(), Error> {
        self.name.check()?;
        if self.name.is_in_one_slot() {
            return Ok(());
        }
        let client = &self.context.client;
        let has_companions = self.name.kind().companions != Companions::None;
        let is_cluster = matches!(client.config().servers, Servers::Cluster(_));
        if client.publish_verb() == "SPUBLISH" || (is_cluster && has_companions) {
            return Err(Error::NoCommonSlot { lock: self.name.text().to_owned() });
        }
        Ok(())
    }

    /// Whether one request can take both locks. In a cluster a script's keys are in one slot, and not even those of one slot
    /// can always be asked for together.
    pub(crate) fn can_be_asked_for_with(&self, other: &Self) -> bool {
        let is_cluster = matches!(self.context.client.config().servers, Servers::Cluster(_));
        let same_kind = std::ptr::eq(self.name.kind(), other.name.kind());
        let together = same_kind && self.name.kind().acquire_all.is_some();
        Arc::ptr_eq(&self.context, &other.context) && together && !is_cluster
    }

    pub(crate) fn has_owner(&self) -> bool {
        self.owner.is_some()
    }

    pub(crate) fn lease(&self) -> Result<Lease, Error> {
        self.lease.map_or(Ok(self.context.watchdog_lease), Lease::new)
    }

    pub(crate) fn renews(&self) -> bool {
        self.lease.is_none()
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock")
            .field("name", &self.name)
            .field("lease", &self.lease)
            .field("owner", &self.owner)
            .finish_non_exhaustive()
    }
}
