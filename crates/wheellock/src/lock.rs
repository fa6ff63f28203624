//! A lock by name, and its public methods.
//!
//! The acquire loop and the guard do the work.

pub(crate) mod verbs;

use std::fmt;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use wheellock_client::layer::Retry;
use wheellock_client::{Arg, Command, Script, Servers, Value};

use crate::base::attempt::Attempt;
use crate::base::backoff::Backoff;
use crate::base::error::{Error, LostReason};
use crate::base::hold_limits::HoldLimits;
use crate::base::join_all::join_all;
use crate::base::lease::Lease;
use crate::base::owner::{Owner, OwnerText};
use crate::base::ticket::Ticket;
use crate::kind::Wake;
use crate::lock::verbs::{AsyncLock, forward_verbs};
use crate::request::acquire::{Over, Request, Wait, acquire, adopt, first_answer_by};
use crate::request::context::Context;
use crate::request::guard::Guard;
use crate::request::label;
use crate::request::once::once;
use crate::request::retry::retry;
use crate::table::holds::Share;
use crate::wait::name::Name;
use crate::wait::sides::Sides;
use crate::wire;
use crate::wire::holder::{Holder, Holders, Label, Waiter};
use crate::wire::release_request::{AskedHolders, ReleaseRequest};

/// For this time after a forced release, the server grants the lock to no other owner. A notified holder needs a few
/// milliseconds to learn that its hold has ended.
const HEAD_START: Duration = Duration::from_millis(20);

/// A reentrant lock, shared by all who use its name: tasks, processes, and Redisson's `RLock` in Java.
///
/// A handle costs no I/O. You can clone and share it. Every acquire has an owner of its own, so two tasks that share a
/// handle exclude each other. To take the lock once more on purpose, present the owner with
/// [`with_owner`](Self::with_owner).
///
/// ```no_run
/// use std::time::Duration;
///
/// # async fn example(locks: wheellock::LockManager) -> Result<(), wheellock::Error> {
/// let orders = locks.lock("orders:42");
/// let guard = orders.acquire().await?; // as long as it takes
/// guard.release().await?;
///
/// // An error if another holder still has it after 5 s:
/// let guard = orders.try_acquire_for(Duration::from_secs(5)).await?.or_held()?;
/// // ... alone in the whole fleet ...
/// guard.release().await?; // an error if the lock was lost meanwhile
///
/// orders.run(async |_guard| Ok::<_, wheellock::Error>(6 * 7)).await?; // acquires, works, releases
/// # Ok(())
/// # }
/// ```
#[must_use = "this is only a handle: call `acquire()` to take the lock"]
#[derive(Clone)]
pub struct Lock {
    pub(crate) context: Arc<Context>,
    pub(crate) name: Arc<Name>,
    lease: Option<Duration>,
    owner: Option<Owner>,
    /// The other side of a read-write lock, if this lock is one side.
    pub(crate) sides: Option<Sides>,
    /// The pauses between polls, for a handle that polls instead of subscribing. Copies share it, because few handles
    /// have a backoff, and every waiting task has a copy of the handle.
    backoff: Option<Arc<Backoff>>,
    /// The limits of each hold. Copies share them, because few handles have limits.
    limits: Option<Arc<HoldLimits>>,
}

impl Lock {
    pub(crate) fn new(context: Arc<Context>, name: Arc<Name>) -> Self {
        Self { context, name, lease: None, owner: None, sides: None, backoff: None, limits: None }
    }

    /// Returns the lock's name, which is also its key on the server.
    pub fn name(&self) -> &str {
        self.name.text()
    }

    /// Returns the same lock with a fixed lease. The watchdog does not renew this lease; the lock expires after `lease`
    /// unless released before. With a lease below 3 ms or above 100 years, acquiring fails.
    pub fn with_lease(&self, lease: Duration) -> Self {
        Self { lease: Some(lease), ..self.clone() }
    }

    /// Returns the same lock with a maximum time for each hold. The hold ends `max` after its grant at the latest, also if
    /// its task is stuck or its process dies. The server itself ends the lease then. A guard still there is lost with
    /// [`LostReason::HeldTooLong`], up to 0.5 s earlier. With a maximum below 3 ms or above 100 years, acquiring fails.
    ///
    /// A renewal that is delayed on its way can extend the lease by the length of that delay.
    ///
    /// - Of a [fixed lease](Self::with_lease) and a maximum, the shorter counts. [`renew`](Guard::renew) extends a fixed
    ///   lease up to the maximum.
    /// - An owner has one maximum for all its holds of a lock: the earliest end of its acquires, until its last guard is
    ///   released.
    /// - A guard that receives a hold by [hand-over](crate::LockManagerBuilder::hand_over) has its own maximum from then.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), wheellock::Error> {
    /// # use std::time::Duration;
    /// # let locks = wheellock::testing::Double::new().manager().await?;
    /// let import = locks.lock("import").with_max_hold(Duration::from_secs(300));
    /// let guard = import.acquire().await?; // renewed, but not for ever
    /// assert_eq!(guard.lost().await, wheellock::LostReason::HeldTooLong);
    /// # Ok(())
    /// # }
    /// ```
    pub fn with_max_hold(&self, max: Duration) -> Self {
        self.with_limits(HoldLimits { max: Some(max), ..self.limits() })
    }

    /// Returns the same lock with a minimum time for each hold. A release before `min` after the grant keeps the lock
    /// until then. The guard counts as released, and no process renews or releases the lock in that time. So two hosts
    /// whose clocks differ do not run a short scheduled job twice. With a minimum below 3 ms or above 100 years, acquiring
    /// fails.
    ///
    /// - The time counts from the grant, by clocks that do not depend on the hosts' time of day.
    /// - On the server, a spent owner with a text of the usual form takes the holder's place. [`holder`](Self::holder)
    ///   shows this process, and [that it has ended](Holder::is_spent). A [forced release](Self::force_release) ends the time.
    /// - If the holder dies or loses the lock, the lock is free at the end of its lease, and another process may run the
    ///   job again.
    /// - Of an owner's acquires, the latest end counts. The owner itself cannot take the lock again before that.
    ///
    /// Plain, spin, fenced, fair and simple locks have a minimum. For others acquiring fails with [`Error::NoMinHold`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), wheellock::Error> {
    /// # use std::time::Duration;
    /// # let double = wheellock::testing::Double::new();
    /// # let (locks, others) = (double.manager().await?, double.manager().await?);
    /// let tick = locks.lock("tick").with_min_hold(Duration::from_secs(60));
    /// tick.try_run(async |_guard| Ok::<_, wheellock::Error>(())).await?;
    /// assert!(!others.lock("tick").try_acquire().await?.is_acquired()); // for a minute
    /// # Ok(())
    /// # }
    /// ```
    pub fn with_min_hold(&self, min: Duration) -> Self {
        self.with_limits(HoldLimits { min: Some(min), ..self.limits() })
    }

    fn with_limits(&self, limits: HoldLimits) -> Self {
        Self { limits: Some(Arc::new(limits)), ..self.clone() }
    }

    fn limits(&self) -> HoldLimits {
        self.limits.as_deref().copied().unwrap_or_default()
    }

    /// Returns the same lock, taken as `owner`. If that owner holds the lock, acquiring succeeds at once and raises the
    /// hold count. Each guard releases one hold.
    pub fn with_owner(&self, owner: Owner) -> Self {
        Self { owner: Some(owner), ..self.clone() }
    }

    /// Returns the same lock with a polling wait. The waiter polls after these pauses, instead of subscribing to
    /// releases. [`spin_lock`](crate::LockManager::spin_lock) does so by default. A pause never outlasts the wait. If
    /// an earlier waiter of this process subscribes, a caller with a backoff is notified of a release together with it.
    pub fn with_backoff(&self, backoff: Backoff) -> Self {
        Self { backoff: Some(Arc::new(backoff)), ..self.clone() }
    }

    /// Waits until the lock is free and takes it. Without [`with_lease`](Self::with_lease) the watchdog renews the
    /// lease. It does so until the guard is released or dropped, or this process dies.
    ///
    /// Waiters of one process are served in the order of their calls.
    ///
    /// # Cancel safety
    ///
    /// Safe at every point: any grant of the server meanwhile is released, and the next waiter is woken.
    ///
    /// You may drop the future. Do not keep it without polling it. A `select!` in a loop does that to a future pinned
    /// outside of the loop, while it runs another branch. The future keeps its place in the queue. Later waiters for
    /// this lock in this process may then stand still until it is polled or dropped, as with tokio's `Mutex`.
    ///
    /// # Errors
    ///
    /// [`Error::Server`] if the server does not reply for longer than the response timeout; [`Error::OtherData`] if
    /// there is other data under the name; [`Error::InvalidName`], [`Error::InvalidLease`], [`Error::ForeignOwner`]
    /// before anything is sent; [`Error::GrantedTooLate`] if the lease had ended before the grant arrived, and the wait
    /// was over (without a limit the request is retried); [`Error::NotReplicated`] if too few servers knew of the grant
    /// in time; [`Error::ShutDown`] once the manager is [shut down](crate::LockManager::shutdown).
    pub async fn acquire(&self) -> Result<Guard, Error> {
        acquire(self.request(), Wait::FOREVER, None, |Ok(guard)| guard).await
    }

    /// Takes the lock if it is free, in one round trip. A [wait](Self::try_acquire_for) of zero does the same.
    ///
    /// The server has 300 ms for its reply, even if a broken connection must first reconnect. Only the first connection
    /// of a [lazy](crate::LockManagerBuilder::lazy) manager may take as long as the response timeout.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire).
    pub fn try_acquire(&self) -> impl Future<Output = Result<Attempt<Guard>, Error>> + Send {
        acquire(self.request(), Wait::NO, None, Over::attempt)
    }

    /// Waits up to `wait`, counted from this call, for the lock. Returns [`Attempt::Held`] if another holder still has it
    /// then.
    ///
    /// The server gets at least one request. So a wait shorter than a round trip ends with the reply to the first
    /// request. If the server is connected and does not reply, the wait ends at most 300 ms late. All other waits end
    /// on time. A wait of [`Duration::ZERO`] acts as [`try_acquire`](Self::try_acquire).
    ///
    /// A server may refuse writes for lack of replicas or memory (`NOREPLICAS`, `OOM`). The call waits for such a
    /// server, as it waits for a holder.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire). Also [`Error::Server`] if the wait ended while the server did not reply, or
    /// refused to serve. The holder is not known then. A request that the end of the wait cut short is not an error.
    pub fn try_acquire_for(
        &self,
        wait: Duration,
    ) -> impl Future<Output = Result<Attempt<Guard>, Error>> + Send {
        let wait = Wait::up_to(wait, &self.context.client.config().timer);
        acquire(self.request(), wait, None, Over::attempt)
    }

    /// Acquires, runs `work` with the guard, and releases with confirmation. Waits without a limit. If the lock is lost
    /// meanwhile, `work` is dropped at its current await point. [`From`] converts the lock's errors into those of `work`.
    ///
    /// ```no_run
    /// # use wheellock::{Error, LockManager};
    /// # async fn charge(_: &str) -> Result<u64, std::io::Error> { Ok(3) }
    /// # async fn example(locks: LockManager) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    /// type Any = Box<dyn std::error::Error + Send + Sync>;
    /// let order = locks.lock("orders:42");
    /// let paid = order.run(async |_guard| {
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
    /// Dropping the future drops `work` and releases in the background.
    ///
    /// # Errors
    ///
    /// The error of `work`, after the lock was released. The errors of [`acquire`](Self::acquire). [`Error::Lost`] if
    /// the lock was lost before `work` ended, whatever `work` returned. Also [`Error::Lost`] if the server no longer knew
    /// the owner at the release. The loss may have come before the end of `work`. If the release could not be confirmed,
    /// the lease decides: work that ended under a valid lease has its own result.
    pub async fn run<T, E: From<Error>>(
        &self,
        work: impl AsyncFnOnce(&Guard) -> Result<T, E>,
    ) -> Result<T, E> {
        verbs::run::<Self, _, _>(self.acquire().await?, work).await
    }

    /// Does the same as [`run`](Self::run), with a wait of up to `wait`, as in
    /// [`try_acquire_for`](Self::try_acquire_for). If another holder still has the lock then, `work` does not start.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), wheellock::Error> {
    /// # use std::time::Duration;
    /// # let double = wheellock::testing::Double::new();
    /// # let (locks, others) = (double.manager().await?, double.manager().await?);
    /// let order = locks.lock("orders:42");
    /// let wait = Duration::from_secs(2);
    /// let paid = order.run_for(wait, async |_guard| Ok::<_, wheellock::Error>(3)).await?;
    /// assert_eq!(paid.acquired(), Some(3));
    ///
    /// let _theirs = others.lock("orders:42").acquire().await?;
    /// let paid = order.run_for(wait, async |_guard| Ok::<_, wheellock::Error>(3)).await?;
    /// assert!(!paid.is_acquired()); // a web service answers 409
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
    /// The errors of [`run`](Self::run) and [`try_acquire_for`](Self::try_acquire_for).
    pub async fn run_for<T, E: From<Error>>(
        &self,
        wait: Duration,
        work: impl AsyncFnOnce(&Guard) -> Result<T, E>,
    ) -> Result<Attempt<T>, E> {
        verbs::run_if_granted::<Self, _, _>(self.try_acquire_for(wait).await?, work).await
    }

    /// Does the same as [`run`](Self::run), without a wait, as [`try_acquire`](Self::try_acquire). If another holder has
    /// the lock, `work` does not start.
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
        work: impl AsyncFnOnce(&Guard) -> Result<T, E>,
    ) -> Result<Attempt<T>, E> {
        verbs::run_if_granted::<Self, _, _>(self.try_acquire().await?, work).await
    }

    /// Returns true if the lock is held now. The primary answers, never a replica.
    ///
    /// # Cancel safety
    ///
    /// Safe: the call changes nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Server`], [`Error::InvalidName`].
    pub async fn is_locked(&self) -> Result<bool, Error> {
        if let Some(script) = &self.name.kind().is_held {
            return self.query_by_script(script, &wire::is_held_by_script(&self.name), wire::read_yes).await;
        }
        self.query(wire::is_held(&self.name), wire::read_yes).await
    }

    /// Returns the number of holds that `owner` has of the lock.
    ///
    /// # Cancel safety
    ///
    /// Safe: the call changes nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Server`], [`Error::InvalidName`].
    pub async fn hold_count(&self, owner: &Owner) -> Result<u64, Error> {
        let holder = self.text_of(owner);
        let read = |reply: &Value| wire::read_hold_count(&self.name, &holder, reply);
        self.query(wire::hold_count(&self.name, &holder), read).await
    }

    /// Returns true if `owner` holds the lock.
    ///
    /// # Cancel safety
    ///
    /// Safe: the call changes nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Server`], [`Error::InvalidName`].
    pub async fn is_held_by(&self, owner: &Owner) -> Result<bool, Error> {
        self.hold_count(owner).await.map(|count| count > 0)
    }

    /// Returns the lock's holder, or `None` if the lock is free. A [`Holder`] has the process, the owner, the hold
    /// count and the remaining lease. If its manager has a [label](crate::LockManagerBuilder::label), the holder has
    /// this, too. Of several readers, any one is returned; see [`holders`](Self::holders).
    ///
    /// The owner of a foreign holder has the text that is on the server. The call takes one round trip, and a second
    /// one for the labels of other managers.
    ///
    /// ```no_run
    /// # async fn example(locks: wheellock::LockManager) -> Result<(), wheellock::Error> {
    /// let orders = locks.lock("orders:42");
    /// if !orders.try_acquire().await?.is_acquired()
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
    /// Safe: the call changes nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Server`], [`Error::InvalidName`]; [`Error::OtherData`] if the name holds data that is not such a lock.
    /// A missing label is not an error.
    pub async fn holder(&self) -> Result<Option<Holder>, Error> {
        let Holders { mut holders, .. } = self.unlabelled_holders().await?;
        holders.truncate(1);
        label::find(&self.context, label::named(self.name.text(), &mut holders)).await;
        Ok(holders.pop())
    }

    /// Returns all holders of the lock, each as [`holder`](Self::holder) does. Only readers can be several. At most a
    /// hundred of them are returned, and the number of the others.
    ///
    /// # Cancel safety
    ///
    /// Safe: the call changes nothing.
    ///
    /// # Errors
    ///
    /// As [`holder`](Self::holder).
    pub async fn holders(&self) -> Result<Holders, Error> {
        let mut found = self.unlabelled_holders().await?;
        label::find(&self.context, label::named(self.name.text(), &mut found.holders)).await;
        Ok(found)
    }

    async fn unlabelled_holders(&self) -> Result<Holders, Error> {
        let Some(script) = &self.name.kind().show_holders else {
            return self.name.check().map(|()| Holders::default());
        };
        let read = |reply: &Value| wire::read_holders(&self.name, reply);
        self.query_by_script(script, &wire::show_holders(&self.name), read).await
    }

    /// Asks all holders of the lock to release it, with a reason that they see. Returns the holders, and whether each was
    /// told. The call changes nothing: the holders decide. A holder is told if its guard listens, by
    /// [`Guard::release_requested`]. Of a read-write lock, each side has holders of its own.
    ///
    /// The call takes two round trips, and a third one for the labels. A holder that was told received
    /// the message, unless its connection broke just then.
    ///
    /// Semaphores, permits and latches cannot be asked, because the server does not know their holders by name.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), wheellock::Error> {
    /// # let double = wheellock::testing::Double::new();
    /// # let (locks, others) = (double.manager().await?, double.manager().await?);
    /// let guard = others.lock("import").acquire().await?;
    /// let asked = locks.lock("import").ask_to_release("deploy 4711").await?;
    /// assert_eq!(asked.untold.len(), 1); // it does not listen yet
    ///
    /// let listens = async { guard.release_requested().await };
    /// let asks = async {
    ///     while locks.lock("import").ask_to_release("deploy 4711").await?.told.is_empty() {}
    ///     Ok::<_, wheellock::Error>(())
    /// };
    /// let (request, asked) = tokio::join!(listens, asks);
    /// assert_eq!(request.reason, "deploy 4711");
    /// # asked
    /// # }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// A dropped call may still reach holders.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidReason`] before anything is sent; [`Error::Server`], after which some holders may have been told; the
    /// other errors of [`holder`](Self::holder).
    pub async fn ask_to_release(&self, reason: impl AsRef<str>) -> Result<AskedHolders, Error> {
        let context = &self.context;
        let label = context.label().map(Label::text);
        let message = ReleaseRequest::new(&context.uuid, label, reason.as_ref())?.message();
        let Holders { mut holders, beyond } = self.unlabelled_holders().await?;
        let receivers = join_all(holders.iter().map(|holder| self.tell(holder, &message))).await;
        label::find(context, label::named(self.name.text(), &mut holders)).await;
        let mut asked = AskedHolders { beyond, ..AskedHolders::default() };
        for (holder, receivers) in holders.into_iter().zip(receivers) {
            if receivers? > 0 { &mut asked.told } else { &mut asked.untold }.push(holder);
        }
        Ok(asked)
    }

    /// Publishes a request to one holder. Returns the number of receivers, which are guards of that holder.
    async fn tell(&self, holder: &Holder, message: &str) -> Result<u64, Error> {
        // In a cluster, the holder listens at the node of the channel's slot, and this command goes to that node.
        let channel = wire::request_channel(&self.name, &holder.owner);
        let publish = wire::publish(self.context.client.publish_verb(), &channel, message);
        let reply = self.context.client.call(&publish).await;
        self.read("ask the holder of", reply, wire::read_queue_length)
    }

    /// Returns the remaining lease of the present holder by the server's clock, to the millisecond. `None` if the lock
    /// is free, [`Duration::MAX`] if an operator has removed its TTL.
    ///
    /// # Cancel safety
    ///
    /// Safe: the call changes nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Server`], [`Error::InvalidName`].
    pub async fn remaining_lease(&self) -> Result<Option<Duration>, Error> {
        self.query(wire::remaining_lease(&self.name), wire::read_remaining_lease).await
    }

    /// Returns the number of waiters for a [fair lock](crate::LockManager::fair_lock), in all processes. `None` for
    /// other kinds, whose waiters the server does not know.
    ///
    /// # Cancel safety
    ///
    /// Safe: the call changes nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Server`], [`Error::InvalidName`].
    pub async fn queue_length(&self) -> Result<Option<u64>, Error> {
        if self.name.kind().wake != Wake::OwnChannel {
            return self.name.check().map(|()| None);
        }
        let key = wire::queue_key(&self.name);
        self.query(wire::queue_length(&key), wire::read_queue_length).await.map(Some)
    }

    /// Returns the first hundred waiters for a [fair lock](crate::LockManager::fair_lock), in their order and with their
    /// labels. Waiters of dead processes are among them for some time. `None` for other kinds, as of
    /// [`queue_length`](Self::queue_length).
    ///
    /// # Cancel safety
    ///
    /// Safe: the call changes nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Server`], [`Error::InvalidName`].
    pub async fn waiters(&self) -> Result<Option<Vec<Waiter>>, Error> {
        if self.name.kind().wake != Wake::OwnChannel {
            return self.name.check().map(|()| None);
        }
        let key = wire::queue_key(&self.name);
        let mut waiters = self.query(wire::waiters(&key), wire::read_waiters).await?;
        let owners = waiters.iter_mut().map(|Waiter { owner, label }| (owner.as_str(), label));
        label::find_of_owners(&self.context, owners).await;
        Ok(Some(waiters))
    }

    /// Returns the number of waiters before `owner` in the queue of a [fair lock](crate::LockManager::fair_lock), dead
    /// waiters included. The next waiter has 0. `None` if this owner does not wait, and for other kinds. Needs Redis
    /// 6.0.6.
    ///
    /// # Cancel safety
    ///
    /// Safe: the call changes nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Server`], [`Error::InvalidName`].
    pub async fn position(&self, owner: &Owner) -> Result<Option<u64>, Error> {
        if self.name.kind().wake != Wake::OwnChannel {
            return self.name.check().map(|()| None);
        }
        let (key, holder) = (wire::queue_key(&self.name), self.text_of(owner));
        self.query(wire::position(&key, &holder), wire::read_position).await
    }

    /// Frees the lock, even if another client holds it, and wakes the waiters. Returns true if it was held.
    ///
    /// A holder of this manager is notified at once. The server notifies a holder elsewhere at once if that holder's
    /// watchdog has renewed or checked the hold before. The server grants the lock to the next owner 20 ms later, so
    /// that such a holder learns of its loss first. The call takes this time too. Any other holder notices the loss
    /// with its first renewal, within two thirds of its lease. Until then two holders may work.
    ///
    /// For these 20 ms, a spent owner with a text of the usual form holds the lock.
    ///
    /// # Cancel safety
    ///
    /// A dropped call may still take effect.
    ///
    /// # Errors
    ///
    /// [`Error::OtherData`] if the name holds data that is not such a lock; [`Error::Server`], [`Error::InvalidName`].
    pub async fn force_release(&self) -> Result<bool, Error> {
        self.check_name()?;
        let Some(script) = &self.name.kind().force_release else { return Ok(false) };
        let head_start = Lease::new(HEAD_START)?;
        let spent = self.context.holder_text(&self.name, self.context.new_spent_owner());
        let verb = self.context.client.publish_verb();
        let params = wire::force_release(&self.name, verb, spent.as_bytes(), head_start);
        let sent = self.context.clock.now();
        let reply = self.context.client.eval(script, &params).await;
        let was_held = self.read("force the release of", reply, wire::read_yes)?;
        if was_held {
            let mut names = self.context.with_others_of_its_hash(&self.name, <[_]>::to_vec);
            names.push(Arc::clone(&self.name));
            names.extend(self.sides.as_ref().map(|sides| Arc::clone(&sides.other)));
            self.context.transact(|holds, now, effects| holds.freed_by_force(&names, sent, now, effects));
            let now = self.context.clock.now();
            let left = head_start.expired_by(now).saturating_duration_since(now);
            self.context.client.config().timer.sleep(left).await;
        }
        Ok(was_held)
    }

    /// Sends a query to the primary, and reads its reply.
    pub(crate) async fn query<T>(
        &self,
        command: Command<'_>,
        read: impl FnOnce(&Value) -> Option<T>,
    ) -> Result<T, Error> {
        self.name.check()?;
        self.read("query", self.context.client.call(&command).await, read)
    }

    /// As [`query`](Self::query), for queries that need a script.
    pub(crate) async fn query_by_script<T>(
        &self,
        script: &Script,
        params: &[Arg<'_>],
        read: impl FnOnce(&Value) -> Option<T>,
    ) -> Result<T, Error> {
        self.name.check()?;
        self.read("query", self.context.client.eval(script, params).await, read)
    }

    /// As [`query_by_script`](Self::query_by_script), but repeats the request if the reply was lost. Ends at `deadline` or
    /// after the response timeout.
    pub(crate) async fn query_with_retry<T>(
        &self,
        verb: &str,
        script: &Script,
        params: &[Arg<'_>],
        deadline: Option<Instant>,
        read: impl FnOnce(&Value) -> Option<T>,
    ) -> Result<T, Error> {
        self.check_name()?;
        let ask = |learnt: &Retry, start, waker: &Waker| {
            self.context.client.start_eval(script, wire::KEYS, params, learnt, start, waker)
        };
        let reply = retry(&self.context, ask, deadline).await.result;
        self.read(verb, reply, read)
    }

    /// Runs a script that takes effect exactly once.
    pub(crate) async fn once(
        &self,
        script: &Script,
        verb: &str,
        more: Option<Arg<'_>>,
    ) -> Result<i64, Error> {
        self.check_name()?;
        once(&self.context, &self.name, script, verb, more).await
    }

    /// Reads the reply to a request, or returns an error that names the operation.
    fn read<T>(
        &self,
        verb: &str,
        reply: Result<Value, wheellock_client::Error>,
        read: impl FnOnce(&Value) -> Option<T>,
    ) -> Result<T, Error> {
        let operation = || format!("{verb} {}", self.name.display_name());
        let reply = reply.map_err(|source| Error::of_lock(self.name(), operation(), source))?;
        read(&reply).ok_or_else(|| self.context.unexpected(&self.name, operation(), &reply))
    }

    /// Returns the request for one hold of this lock, with the settings of this handle.
    pub(crate) fn request(&self) -> Result<Request<'_>, Error> {
        self.check_name()?;
        if self.has_min_hold() && self.name.kind().retire.is_none() {
            return Err(self.no_min_hold());
        }
        Ok(Request {
            context: &self.context,
            name: &self.name,
            owner: self.presented_owner()?.unwrap_or_else(|| self.context.new_owner()),
            presented: self.owner.is_some(),
            lease: self.lease()?,
            share: Share { count: 1, renew: self.renews() },
            sides: self.sides.as_ref(),
            backoff: self.backoff.as_deref(),
            limits: self.limits.as_deref(),
            many: None,
            giver: None,
        })
    }

    /// Takes the place of the owner that the ticket names: see [`LockManager::adopt`](crate::LockManager::adopt).
    pub(crate) async fn adopt(&self, ticket: &Ticket) -> Result<Guard, Error> {
        adopt(self.request().map(|request| Request { giver: Some(&ticket.owner), ..request })).await
    }

    /// Returns the text of `owner` for this lock.
    fn text_of(&self, owner: &Owner) -> OwnerText {
        OwnerText::new(&owner.manager, owner.number, self.name.kind().holder_suffix)
    }

    /// Returns the number of the presented owner. Fails if that owner belongs to another manager.
    fn presented_owner(&self) -> Result<Option<u64>, Error> {
        match &self.owner {
            Some(owner) if owner.manager != self.context.uuid => {
                Err(Error::ForeignOwner { owner: owner.to_string() })
            }
            owner => Ok(owner.as_ref().map(|owner| owner.number)),
        }
    }

    /// Returns true if the presented owner holds this lock, as far as is known.
    pub(crate) fn is_held_by_owner(&self) -> bool {
        let ours = self.presented_owner().ok().flatten();
        ours.is_some_and(|number| self.context.holds().is_held_by(&self.name, number))
    }

    /// Fails if no request for this lock can be made at all.
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.check_name()?;
        self.lease()?;
        self.presented_owner().map(drop)
    }

    /// Fails if a server cannot hold the keys of a lock with this name.
    pub(crate) fn check_name(&self) -> Result<(), Error> {
        self.name.check()?;
        if self.name.is_in_one_slot() {
            return Ok(());
        }
        let is_sharded = self.context.client.publish_verb() == "SPUBLISH";
        if is_sharded || (self.is_in_cluster() && wire::has_companions(&self.name)) {
            return Err(Error::NoCommonSlot { lock: self.name.text().to_owned() });
        }
        Ok(())
    }

    /// Returns true if one request can take both locks. In a cluster a script's keys must be in one slot. Not even keys
    /// of one slot can always be requested together.
    pub(crate) fn can_be_requested_with(&self, other: &Self) -> bool {
        let is_same_kind = std::ptr::eq(self.name.kind(), other.name.kind());
        let is_same_manager = Arc::ptr_eq(&self.context, &other.context);
        is_same_manager && is_same_kind && self.name.kind().acquire_all.is_some() && !self.is_in_cluster()
    }

    fn is_in_cluster(&self) -> bool {
        matches!(self.context.client.config().servers, Servers::Cluster(_))
    }

    /// Returns the error of a grant that came after the end of its lease.
    pub(crate) fn granted_too_late(&self) -> Error {
        match self.lease() {
            Ok(lease) => Error::GrantedTooLate { lock: self.name().to_owned(), lease: lease.duration() },
            Err(error) => error,
        }
    }

    /// Returns the deadline for the first reply to a caller that waits this long.
    pub(crate) fn first_answer_by(&self, waited: Duration, wait: Wait) -> Option<Instant> {
        first_answer_by(&self.context.client, self.name.key(), waited, wait)
    }

    /// Returns true if the lock's server is connected.
    pub(crate) fn is_ready(&self) -> bool {
        self.context.client.is_ready_for(self.name.key().as_bytes())
    }

    pub(crate) fn lease(&self) -> Result<Lease, Error> {
        let lease = self.lease.map_or(Ok(self.context.watchdog_lease), Lease::new)?;
        self.limits.as_ref().map_or(Ok(lease), |limits| limits.first_lease(lease))
    }

    /// Returns true if each hold has a minimum time.
    pub(crate) fn has_min_hold(&self) -> bool {
        self.limits.as_ref().is_some_and(|limits| limits.min.is_some())
    }

    /// Returns the error of a lock that cannot have a minimum time.
    pub(crate) fn no_min_hold(&self) -> Error {
        Error::NoMinHold { lock: self.name().to_owned() }
    }

    /// Returns the maximum time of each hold.
    pub(crate) fn max_hold(&self) -> Option<Duration> {
        self.limits.as_ref()?.max
    }

    pub(crate) fn renews(&self) -> bool {
        self.lease.is_none()
    }
}

impl AsyncLock for Lock {
    type Guard = Guard;
    type Loss = LostReason;

    fn with_default_owner(&self, number: u64) -> Self {
        if self.owner.is_some() { self.clone() } else { self.with_owner(self.context.owner(number)) }
    }

    forward_verbs!();
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
