//! A guard, which proves one hold of a lock.
//!
//! It releases the hold, and reports a loss.

mod ticket;

use std::fmt;
use std::future::Future;
use std::num::NonZeroU64;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{self, Poll, Waker};

use crate::base::clock::BootInstant;
use crate::base::error::{Error, LostReason, refuses_writes};
use crate::base::owner::{Owner, PermitId};
use crate::base::work::unless_lost;
use crate::request::context::Context;
use crate::request::endangered::until_endangered;
use crate::request::hand_over;
use crate::request::requested::Requested;
use crate::request::watchdog;
use crate::table::holds::{CallerIndex, Confirmation, Ended, Failed, HoldIndex, Share, State, Want};
use crate::wait::name::Name;
use crate::wait::spans::{End, Held, HoldSpan};
use crate::wire;
use crate::wire::release_request::ReleaseRequest;

/// One hold of a lock. Dropping the guard releases the hold in the background. [`release`](Self::release) does so with confirmation, and
/// reports a lock that was lost before.
///
/// Dropping a guard never blocks and spawns no task. It works while the runtime shuts down, and afterwards. See
/// [`shutdown`](crate::LockManager::shutdown) for the end of a service. From the drop on, no renewal of the lease is sent.
///
/// ```no_run
/// # async fn example(locks: wheellock::LockManager) -> Result<(), wheellock::Error> {
/// let guard = locks.lock("orders:42").acquire().await?;
/// if guard.is_valid() {
///     println!("held by {} for {:?} at least", guard.owner(), guard.valid_until().remaining());
/// }
/// guard.run(async { Ok::<_, wheellock::Error>(()) }).await?; // dropped where it stands if the lock is lost
/// guard.release().await?; // or drop it
/// # Ok(())
/// # }
/// ```
#[must_use = "the lock is given back at once if its guard is not kept"]
pub struct Guard {
    context: Arc<Context>,
    name: Arc<Name>,
    hold: HoldIndex,
    share: Share,
    released: bool,
    /// The fencing token of the grant, if this kind of lock has tokens.
    token: Option<NonZeroU64>,
    span: HoldSpan,
    requested: Requested,
}

impl Guard {
    pub(crate) fn new(context: Arc<Context>, name: Arc<Name>, hold: HoldIndex, share: Share) -> Self {
        let (span, requested) = (HoldSpan::none(), Requested::default());
        Self { context, name, hold, share, released: false, token: None, span, requested }
    }

    pub(crate) fn with_token(mut self, token: Option<NonZeroU64>) -> Self {
        self.token = token;
        self
    }

    pub(crate) fn token(&self) -> Option<NonZeroU64> {
        self.token
    }

    /// Returns how many times this guard holds the lock.
    pub(crate) fn count(&self) -> u32 {
        self.share.count
    }

    /// Splits `count` off this guard's share, for a new guard.
    pub(crate) fn split(&mut self, count: u32) -> Self {
        self.share.count -= count;
        let share = Share { count, ..self.share };
        Self::new(Arc::clone(&self.context), Arc::clone(&self.name), self.hold, share)
    }

    /// Leaves this guard's share on the server.
    pub(crate) fn forget(mut self) {
        self.released = true;
        self.span.end(|| End::Left);
        self.context.change(|holds, clock| holds.forget(self.hold, self.share, clock.now()));
    }

    /// Records that a request for this hold has no reply and may still be executed.
    pub(crate) fn may_arrive_late(&self) {
        self.context.change(|holds, _| holds.may_arrive_late(self.hold));
    }

    /// Returns the id of this guard's permit.
    pub(crate) fn permit_id(&self) -> PermitId {
        let number = self.context.holds().get(self.hold).map_or(0, |hold| hold.owner);
        PermitId(self.context.first_permit.wrapping_add(u128::from(number)))
    }

    /// Returns the lock's name.
    pub fn name(&self) -> &str {
        self.name.text()
    }

    /// Returns the owner of this hold. Pass the owner to [`Lock::with_owner`](crate::Lock::with_owner) to take the lock once more. A hold
    /// whose owner was returned here is not [handed over](crate::LockManagerBuilder::hand_over).
    pub fn owner(&self) -> Owner {
        let number = self.context.change(|holds, _| holds.present(self.hold));
        self.context.owner(number)
    }

    /// Returns until when the lock may be assumed held, as far as this process knows now. A successful renewal moves this instant.
    ///
    /// The time counts from before the request was sent, less 1 % and 2 ms. The server keeps the key for longer.
    pub fn valid_until(&self) -> BootInstant {
        let holds = self.context.holds();
        holds.get(self.hold).map_or_else(|| self.context.clock.now(), |hold| hold.valid_until)
    }

    /// Returns true if the lock may be assumed held right now.
    pub fn is_valid(&self) -> bool {
        let now = self.context.clock.now();
        let holds = self.context.holds();
        holds.get(self.hold).is_some_and(|hold| hold.state == State::Held && now < hold.valid_until)
    }

    /// Waits until the lock may no longer be assumed held, and returns the reason. Returns no later than
    /// [`valid_until`](Self::valid_until), provided that the runtime polls its tasks.
    ///
    /// # Cancel safety
    ///
    /// Safe: it only waits.
    pub async fn lost(&self) -> LostReason {
        Lost { guard: self, watcher: None }.await
    }

    /// Waits until a caller [asks](crate::Lock::ask_to_release) this holder to release the lock, and returns the request. The
    /// guard listens from the first poll until its end, also between two calls. Once a request has come, every call returns
    /// the first one at once. A request by itself releases nothing.
    ///
    /// Nothing else ends the wait, not even the loss of the lock: see [`lost`](Self::lost). If the user may not subscribe to the
    /// guard's channel, no request arrives, and callers see a holder that does not listen. A hold that listens is not
    /// [handed over](crate::LockManagerBuilder::hand_over), so its release frees the lock for other processes.
    ///
    /// ```no_run
    /// # async fn next_step() {}
    /// # async fn example(guard: wheellock::Guard) -> Result<(), wheellock::Error> {
    /// loop {
    ///     tokio::select! {
    ///         () = next_step() => {}
    ///         request = guard.release_requested() => {
    ///             println!("stops for {request}");
    ///             break guard.release().await;
    ///         }
    ///     }
    /// }
    /// # }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// Safe: a later call returns the request that a dropped call would have returned.
    pub async fn release_requested(&self) -> ReleaseRequest {
        // Asking for the owner also keeps the hold from being handed over, to a guard that the request does not mean.
        let channel = || wire::request_channel(&self.name, &self.owner().to_string());
        self.requested.wait(&self.context.client, &self.name, channel).await
    }

    /// Returns true if less than a third of the lease is left, or the lock is lost. The watchdog renews after a third of the lease. So
    /// the renewals have then failed for another third, or the server is away. Without a watchdog, a fixed lease gets there by itself.
    pub fn is_endangered(&self) -> bool {
        self.endangered_at().is_none_or(|at| at <= self.context.clock.now())
    }

    /// Waits until the lock [is endangered](Self::is_endangered), a third of the lease before [`valid_until`](Self::valid_until). With the
    /// default lease that is 10 s before. A service can then stop in order, where [`lost`](Self::lost) comes too late. A later renewal may
    /// still succeed: check [`is_endangered`](Self::is_endangered) again after a while.
    ///
    /// ```no_run
    /// # async fn finish_the_step() {}
    /// # async fn stop_in_order() {}
    /// # async fn example(guard: wheellock::Guard) {
    /// tokio::select! {
    ///     () = finish_the_step() => {}
    ///     () = guard.endangered() => stop_in_order().await, // 10 s are left
    /// }
    /// # }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// Safe: it only waits.
    pub async fn endangered(&self) {
        until_endangered(&self.context, || self.endangered_at(), self.lost()).await;
    }

    /// Returns when the lock is endangered, unless a renewal moves that instant; `None` if the lock is lost.
    pub(crate) fn endangered_at(&self) -> Option<BootInstant> {
        let holds = self.context.holds();
        let hold = holds.get(self.hold).filter(|hold| hold.state == State::Held)?;
        Some(hold.valid_until.saturating_sub(hold.lease.renew_after()))
    }

    /// Runs `work` while the lock is held. If the lock is lost first, `work` is dropped at its current await point. When `work` has
    /// ended, the guard checks the lock with the server. A lock may be released by force without a message to its holder. [`From`]
    /// converts the lock's errors into those of `work`.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `work`; the guard lives on.
    ///
    /// # Errors
    ///
    /// The error of `work`. Instead [`Error::Lost`] if the lock was lost before the server confirmed it, and so perhaps before `work` had
    /// ended. That error does not show how far `work` got. If the server does not reply, the lease decides: under a valid lease the
    /// result is that of `work`.
    pub async fn run<T, E: From<Error>>(&self, work: impl Future<Output = Result<T, E>>) -> Result<T, E> {
        let result = self.run_unconfirmed(work).await?;
        self.confirm().await?;
        result
    }

    /// Does the same as [`run`](Self::run), for a caller that confirms the lock in another way.
    pub(crate) async fn run_unconfirmed<F: Future>(&self, work: F) -> Result<F::Output, Error> {
        let lost = async { self.lost_error(self.lost().await) };
        // Work that blocks its thread may outlive the lease before `lost` is polled.
        unless_lost(work, lost, || self.check()).await
    }

    /// Checks with the server that the lock is still held. Returns false if the server did not reply, which proves nothing. Returns an
    /// error only if the lock is lost.
    pub(crate) async fn confirm(&self) -> Result<bool, Error> {
        match self.ask_the_server(Want::Check).await {
            Err(lost @ Error::Lost { .. }) => Err(lost),
            asked => self.check().map(|()| asked.is_ok()),
        }
    }

    /// Releases the hold after work that ended under a valid lock. Returns an error if the server did not know this owner any more. In
    /// that case the lock may have been lost before the work ended. An unconfirmed release is not an error, because it is repeated in the
    /// background.
    pub(crate) async fn release_after_work(self) -> Result<(), Error> {
        match self.give_back().await {
            Err(lost @ Error::Lost { .. }) => Err(lost),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Extends the lease to its full length from now on, without waiting for the watchdog. The watchdog does not renew a fixed lease, so
    /// only this call extends it. The lease is that of the longest hold of this owner.
    ///
    /// A renewal whose reply was lost is repeated.
    ///
    /// # Cancel safety
    ///
    /// A dropped call may still take effect, but never after the guard's release.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the lock is lost, or turns out to be lost. [`Error::Server`] if there was no reply within the response timeout.
    /// [`Error::NotReplicated`] if too few servers have acknowledged the renewal. In the last two cases the lock may be assumed held
    /// until [`valid_until`](Self::valid_until), as before.
    pub async fn renew(&self) -> Result<(), Error> {
        self.ask_the_server(Want::Renew).await
    }

    /// Makes the watchdog send a request now, and waits for the result.
    async fn ask_the_server(&self, want: Want) -> Result<(), Error> {
        let end = self.result(|waker| watchdog::wish(&self.context, self.hold, want, waker)).await;
        // A lost lock is lost, whatever the server replied.
        self.check()?;
        match end {
            None | Some(Ok(Confirmation::Held | Confirmation::Lost)) => Ok(()),
            Some(Ok(Confirmation::FellShort(shortfall))) => {
                let server = self.context.client.server_address();
                Err(Error::extension_not_replicated(self.name.text(), server, shortfall))
            }
            Some(Err(failed)) => {
                let what = if want == Want::Renew { "renew" } else { "ask for" };
                Err(self.failure(format!("{what} {}", self.name.display_name()), failed))
            }
        }
    }

    /// Makes a request with `begin`, and waits for the result. Returns `None` if there is nothing to wait for.
    async fn result(&self, mut begin: impl FnMut(&Waker) -> Option<CallerIndex>) -> Option<Ended> {
        let mut result = ResultFuture { context: &self.context, caller: None };
        std::future::poll_fn(|cx| result.poll(cx.waker(), &mut begin)).await
    }

    /// Does the same as [`lost`](Self::lost), for callers that watch several guards. Such a caller ends with [`unwatch`](Self::unwatch).
    pub(crate) fn poll_lost(&self, watcher: &mut Option<u64>, waker: &Waker) -> Poll<LostReason> {
        let reason = self.context.change(|holds, clock| holds.watch(self.hold, watcher, waker, clock.now()));
        reason.map_or(Poll::Pending, Poll::Ready)
    }

    pub(crate) fn unwatch(&self, watcher: u64) {
        self.context.change(|holds, _| holds.unwatch(self.hold, watcher));
    }

    /// Returns why the lock was lost, if it was.
    pub(crate) fn reason(&self) -> Option<LostReason> {
        self.context.holds().lost(self.hold)
    }

    /// Returns an error if the lock is lost.
    pub(crate) fn check(&self) -> Result<(), Error> {
        // The watchdog may run late, so the clock decides, too.
        let lost = self.context.change(|holds, clock| holds.lost_at(self.hold, clock.now()));
        lost.map_or(Ok(()), |reason| Err(self.lost_error(reason)))
    }

    pub(crate) fn lost_error(&self, reason: LostReason) -> Error {
        Error::Lost { lock: self.name.text().to_owned(), reason }
    }

    /// Releases the hold and waits for the server's confirmation. If a task of this process waits for the lock, the hold may be
    /// [handed over](crate::LockManagerBuilder::hand_over) to that task. In that case no request is sent to the server.
    ///
    /// A release whose reply was lost is repeated. That is safe, because it can only release this owner's hold. A caller that does not need
    /// the confirmation drops the guard.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future releases the hold in the background, as dropping the guard does.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the lock had been lost before, so that work under it may have met another holder. Its lease expired, it was
    /// released or taken by force, or its manager was shut down. Other holders' locks are unchanged.
    ///
    /// [`Error::Server`] if there was no reply within the response timeout. The release is then repeated in the background until the
    /// lease has expired.
    ///
    /// The source's kind is [`Closed`](wheellock_client::ErrorKind::Closed) in two cases. If the client was closed before, the lock stays
    /// held until its lease expires. If the client's runtime has ended, the release was sent nevertheless, but no task can receive the
    /// reply.
    pub async fn release(mut self) -> Result<(), Error> {
        if hand_over::hand_over(&self.context, &self.name, self.hold, self.share) {
            self.released = true;
            self.span.end(|| End::HandedOver);
            return Ok(());
        }
        self.confirmed().await
    }

    /// Does the same as [`release`](Self::release), but always with the server's confirmation.
    pub(crate) async fn give_back(mut self) -> Result<(), Error> {
        // This release goes to the server and not to a waiter. A head without a subscription would not learn of it.
        hand_over::tell_head(&self.context, &self.name, self.hold, self.share);
        self.confirmed().await
    }

    async fn confirmed(&mut self) -> Result<(), Error> {
        // The release starts at its first poll. From then on, this future only observes it.
        self.released = true;
        let mut lost = None;
        let end = self.result(|waker| self.begin_release(&mut lost, waker)).await;
        let released = match end {
            // This release needs no reply, because the lock is lost.
            None => lost.map_or(Ok(()), |reason| Err(self.lost_error(reason))),
            Some(Ok(Confirmation::Lost)) => Err(self.lost_error(LostReason::NotOwner)),
            Some(Ok(_)) => Ok(()),
            Some(Err(failed)) => Err(self.unreleased(failed)),
        };
        self.span.end(|| match &released {
            Ok(()) => End::Released,
            Err(Error::Lost { .. }) => End::Lost,
            Err(_) => End::Dropped,
        });
        released
    }

    /// Returns the error for a release that the server did not confirm.
    fn unreleased(&self, failed: Failed) -> Error {
        let is_refused = match &failed {
            Failed::Error(error) | Failed::TimedOut { reason: Some(error), .. } => refuses_writes(error),
            Failed::Unexpected(_) | Failed::TimedOut { reason: None, .. } => false,
        };
        let what = if is_refused { " yet (it is repeated in the background)" } else { "" };
        self.failure(format!("release {}{what}", self.name.display_name()), failed)
    }

    /// Releases the hold. Sets `lost` to the reason if the lock was lost before.
    fn begin_release(&self, lost: &mut Option<LostReason>, waker: &Waker) -> Option<CallerIndex> {
        let Self { context, hold, share, .. } = self;
        context.transact(|holds, now, effects| {
            // The watchdog may run late. `release` must report the same as `lost`, which reads the clock.
            holds.lose_if_expired(*hold, now, effects);
            *lost = holds.lost(*hold);
            let until = now + context.client.config().response_timeout;
            let (caller, request) = match lost {
                // The server may know the hold for a moment longer, and would then confirm the release.
                Some(_) => (None, holds.release(*hold, *share, now)),
                None => holds.release_awaited(*hold, *share, (now, until), waker),
            };
            effects.request_all(request);
            caller
        })
    }

    /// Returns the error for a release or renewal that the server did not confirm.
    fn failure(&self, operation: String, failed: Failed) -> Error {
        let (client, key) = (&self.context.client, self.name.key().as_bytes());
        match failed {
            Failed::Error(source) => Error::Server { operation, source },
            Failed::Unexpected(reply_type) => Error::unexpected(operation, reply_type),
            Failed::TimedOut { ambiguous, reason } => {
                let source = reason.unwrap_or_else(|| client.timed_out(key, "EVALSHA"));
                // An earlier request may have been executed, whatever the last error says.
                let source = if ambiguous { source.after_an_unanswered_attempt() } else { source };
                Error::Server { operation, source }
            }
        }
    }
}

impl Held for Guard {
    fn begin_span(&mut self) {
        self.span = HoldSpan::begin(self.name.span_fields());
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let (context, hold, released) = (&self.context, self.hold, self.released);
        // After the release, another hold may have this index.
        let is_lost = || !released && context.holds().lost(hold).is_some();
        self.span.end(|| if is_lost() { End::Lost } else { End::Dropped });
        if !self.released {
            hand_over::end(&self.context, &self.name, self.hold, self.share);
        }
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("name", &self.name)
            .field("valid", &self.is_valid())
            .finish_non_exhaustive()
    }
}

/// A caller's wait for a result. The request also completes without a caller.
struct ResultFuture<'a> {
    context: &'a Context,
    caller: Option<CallerIndex>,
}

impl ResultFuture<'_> {
    /// Makes the request with `begin` at the first poll. Returns `None` if there is nothing to wait for.
    fn poll(
        &mut self,
        waker: &Waker,
        begin: impl FnOnce(&Waker) -> Option<CallerIndex>,
    ) -> Poll<Option<Ended>> {
        let Some(caller) = self.caller else {
            self.caller = begin(waker);
            // If the wait has ended already, the waker was woken.
            return if self.caller.is_some() { Poll::Pending } else { Poll::Ready(None) };
        };
        let end = self.context.change(|holds, _| holds.result(caller, waker));
        if end.is_some() {
            // The table reuses the index, so the drop must not remove another caller.
            self.caller = None;
        }
        end.map_or(Poll::Pending, |end| Poll::Ready(Some(end)))
    }
}

impl Drop for ResultFuture<'_> {
    fn drop(&mut self) {
        if let Some(caller) = self.caller {
            // The table is unlocked before the waker is dropped.
            drop(self.context.change(|holds, _| holds.leave(caller)));
        }
    }
}

/// The future of [`Guard::lost`].
struct Lost<'a> {
    guard: &'a Guard,
    watcher: Option<u64>,
}

impl Future for Lost<'_> {
    type Output = LostReason;

    fn poll(mut self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<LostReason> {
        let guard = self.guard;
        guard.poll_lost(&mut self.watcher, cx.waker())
    }
}

impl Drop for Lost<'_> {
    fn drop(&mut self) {
        if let Some(watcher) = self.watcher {
            self.guard.unwatch(watcher);
        }
    }
}

#[cfg(all(test, feature = "testing"))]
mod tests;
