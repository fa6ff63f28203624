//! Proof of holding one hold of a lock. Owns the release, and the news of a loss.

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
use crate::request::hand_over;
use crate::request::watchdog;
use crate::table::holds::{Failed, Fulfilled, HoldIndex, Share, State, ViewIndex, Want};
use crate::wait::name::Name;
use crate::wait::spans::{End, Held, HoldSpan};

/// One hold of a lock. Dropping it releases the hold in the background; [`release`](Self::release) does so with
/// confirmation.
///
/// Dropping never blocks, spawns nothing and works while the runtime shuts down and after it; see
/// [`shutdown`](crate::LockManager::shutdown) for the end of a service. From the drop on, no renewal of the lease is sent.
///
/// ```no_run
/// # async fn example(locks: wheellock::LockManager) -> Result<(), wheellock::Error> {
/// let guard = locks.lock("orders:42").acquire().await?;
/// if guard.is_valid() {
///     println!("held by {} for {:?} at least", guard.owner(), guard.valid_until().remaining());
/// }
/// guard.run(async { /* dropped where it stands if the lock is lost */ }).await?;
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
    /// The fencing token of its grant, if its kind of lock has them.
    token: Option<NonZeroU64>,
    span: HoldSpan,
}

/// How a release ended.
///
/// ```no_run
/// use wheellock::Released;
///
/// # async fn example(guard: wheellock::Guard) -> Result<(), wheellock::Error> {
/// if guard.release().await? == Released::AlreadyLost {
///     eprintln!("somebody else may have been at it");
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Released {
    /// The hold was ours until now, and now it is given back. If a task of this process waited for the lock, it may have it already
    /// ([hand-over](crate::LockManagerBuilder::hand_over)): then the server was not asked, and the hold was believed until now.
    Released,
    /// The lock had been lost before, as [`Guard::lost`] says: its lease ran out, it was freed or taken by force, or its manager was shut
    /// down. Of other holders' locks nothing was changed.
    AlreadyLost,
}

impl Released {
    pub(crate) fn of(held_until_then: Result<(), LostReason>) -> Self {
        held_until_then.map_or(Self::AlreadyLost, |()| Self::Released)
    }
}

impl Guard {
    pub(crate) fn new(context: Arc<Context>, name: Arc<Name>, hold: HoldIndex, share: Share) -> Self {
        Self { context, name, hold, share, released: false, token: None, span: HoldSpan::none() }
    }

    pub(crate) fn with_token(mut self, token: Option<NonZeroU64>) -> Self {
        self.token = token;
        self
    }

    pub(crate) fn token(&self) -> Option<NonZeroU64> {
        self.token
    }

    /// How many times it is held by this guard.
    pub(crate) fn count(&self) -> u32 {
        self.share.count
    }

    /// Takes a smaller part of what this guard has, for another one.
    pub(crate) fn split(&mut self, count: u32) -> Self {
        self.share.count -= count;
        let share = Share { count, ..self.share };
        Self::new(Arc::clone(&self.context), Arc::clone(&self.name), self.hold, share)
    }

    /// Leaves on the server what this guard has.
    pub(crate) fn forget(mut self) {
        self.released = true;
        self.span.end(|| End::Left);
        self.context.transact(|holds, now, _| holds.forget(self.hold, self.share, now));
    }

    /// A question for it got no answer, and may still come.
    pub(crate) fn may_come_late(&self) {
        self.context.transact(|holds, _, _| holds.may_come_late(self.hold));
    }

    /// The id of the permit that it is.
    pub(crate) fn permit_id(&self) -> PermitId {
        let number = self.context.holds().get(self.hold).map_or(0, |hold| hold.owner);
        PermitId(self.context.first_permit.wrapping_add(u128::from(number)))
    }

    /// The lock's name.
    pub fn name(&self) -> &str {
        self.name.text()
    }

    /// Who holds. Present it to [`Lock::with_owner`](crate::Lock::with_owner) to take the lock once more. A hold whose owner was shown
    /// is not [handed over](crate::LockManagerBuilder::hand_over).
    pub fn owner(&self) -> Owner {
        let number = self.context.transact(|holds, _, _| holds.present(self.hold));
        self.context.owner(number)
    }

    /// Until when the lock may be believed held, as far as is known now. Moves when a renewal succeeds.
    ///
    /// Counted from before the request was sent, less 1 % and 2 ms: the server keeps the key for longer.
    pub fn valid_until(&self) -> BootInstant {
        let holds = self.context.holds();
        holds.get(self.hold).map_or_else(|| self.context.clock.now(), |hold| hold.valid_until)
    }

    /// Whether the lock may be believed held right now.
    pub fn is_valid(&self) -> bool {
        let now = self.context.clock.now();
        let holds = self.context.holds();
        holds.get(self.hold).is_some_and(|hold| hold.state == State::Held && now < hold.valid_until)
    }

    /// Resolves, with the reason, when the lock can no longer be believed held: no later than
    /// [`valid_until`](Self::valid_until), as long as the runtime polls its tasks.
    ///
    /// # Cancel safety
    ///
    /// Safe: it only waits.
    pub async fn lost(&self) -> LostReason {
        Lost { guard: self, watcher: None }.await
    }

    /// Runs `work` while the lock is held. If the lock is lost first, `work` is dropped where it stands. When `work` has
    /// ended the server is asked once more, for a lock may have been freed by force without its holder being told.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `work`; the guard lives on.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the lock was lost before the server confirmed it, and so perhaps before `work` had ended. How far
    /// `work` got is not known. If the server cannot be asked, the lease decides: a result under a valid lease is `Ok`.
    pub async fn run<F: Future>(&self, work: F) -> Result<F::Output, Error> {
        let output = self.run_unconfirmed(work).await?;
        self.confirm().await?;
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

    /// [`run`](Self::run) for a caller who hears from the server in another way.
    pub(crate) async fn run_unconfirmed<F: Future>(&self, work: F) -> Result<F::Output, Error> {
        let lost = async { self.lost_error(self.lost().await) };
        unless_lost(work, lost, || self.check()).await
    }

    /// Asks the server whether the lock is still held; false if it could not be asked, which proves nothing. An error only
    /// if the lock is lost.
    pub(crate) async fn confirm(&self) -> Result<bool, Error> {
        match self.ask_the_server(Want::Word).await {
            Err(lost @ Error::Lost { .. }) => Err(lost),
            asked => self.check().map(|()| asked.is_ok()),
        }
    }

    /// Gives the hold back after work that ended under a valid lock. An error if the server no longer knew this owner: the
    /// lock may have been lost before the work ended. A release that is not confirmed is repeated in the background and is
    /// no error.
    pub(crate) async fn release_after_work(self) -> Result<(), Error> {
        let name = Arc::clone(&self.name);
        match self.give_back().await {
            Ok(Err(reason)) => Err(Error::Lost { lock: name.text().to_owned(), reason }),
            Ok(Ok(())) | Err(_) => Ok(()),
        }
    }

    /// Extends the lease to its full length, from now on, without waiting for the watchdog; with a fixed lease, which
    /// has none, this is the only way to extend it. The lease is that of the longest hold of this owner.
    ///
    /// A renewal whose answer got lost is repeated.
    ///
    /// # Cancel safety
    ///
    /// A dropped call may still take effect, but never after the guard's release.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the lock is lost, or turns out to be; [`Error::Server`] if no answer came within the response
    /// timeout; [`Error::NotReplicated`] if too few servers know of it. The lock may then be believed until
    /// [`valid_until`](Self::valid_until) as before.
    pub async fn renew(&self) -> Result<(), Error> {
        self.ask_the_server(Want::Extension).await
    }

    /// Has the watchdog ask the server now, and waits for what it says.
    async fn ask_the_server(&self, want: Want) -> Result<(), Error> {
        let mut wish = Wish { guard: self, want, number: None };
        let fulfilled = std::future::poll_fn(|cx| wish.poll(cx.waker())).await;
        // Whatever was said, a lock that is lost is lost.
        self.check()?;
        match fulfilled {
            None | Some(Ok(None)) => Ok(()),
            Some(Ok(Some(shortfall))) => {
                let server = self.context.client.server_address();
                Err(Error::extension_not_replicated(self.name.text(), server, shortfall))
            }
            Some(Err(failed)) => {
                let what = if want == Want::Extension { "renew" } else { "ask for" };
                Err(self.failure(format!("{what} {}", self.name.titled()), failed))
            }
        }
    }

    /// [`lost`](Self::lost) for those who watch several guards; to be ended with [`unwatch`](Self::unwatch).
    pub(crate) fn poll_lost(&self, watcher: &mut Option<u64>, waker: &Waker) -> Poll<LostReason> {
        let reason = self.context.transact(|holds, now, _| holds.watch(self.hold, watcher, waker, now));
        reason.map_or(Poll::Pending, Poll::Ready)
    }

    pub(crate) fn unwatch(&self, watcher: u64) {
        self.context.transact(|holds, _, _| holds.unwatch(self.hold, watcher));
    }

    /// Why the lock was lost, if that is known.
    pub(crate) fn reason(&self) -> Option<LostReason> {
        self.context.holds().lost(self.hold)
    }

    /// An error if the lock is lost.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let lost = self.context.holds().lost(self.hold);
        let lost = lost.or_else(|| (!self.is_valid()).then_some(LostReason::Expired));
        lost.map_or(Ok(()), |reason| Err(self.lost_error(reason)))
    }

    fn lost_error(&self, reason: LostReason) -> Error {
        Error::Lost { lock: self.name.text().to_owned(), reason }
    }

    /// Gives the hold back and waits for the server's word; or hands it over to a task of this process, without asking the server, if
    /// one waits and that [may be](crate::LockManagerBuilder::hand_over).
    ///
    /// A release whose answer got lost is repeated, which is safe: it only ever takes this owner's hold.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future releases in the background, as dropping the guard does.
    ///
    /// # Errors
    ///
    /// [`Error::Server`] if no answer came within the response timeout. The release is then repeated in the background
    /// until the lease has ended. The source's kind is [`Closed`](wheellock_client::ErrorKind::Closed) if the client was closed
    /// before, and the lock then stays for its lease; or if its runtime has ended, and the release was sent all the same, but
    /// no task can hear the answer.
    pub async fn release(mut self) -> Result<Released, Error> {
        let Self { context, name, hold, share, .. } = &self;
        if hand_over::hand_over(context, name, *hold, *share) {
            self.released = true;
            self.span.end(|| End::HandedOver);
            return Ok(Released::Released);
        }
        if hand_over::leave_to_others(context, name, *hold, *share) {
            self.released = true;
            self.span.end(|| End::Released);
            return Ok(Released::Released);
        }
        self.confirmed().await.map(Released::of)
    }

    /// [`release`](Self::release) for a caller who wants the server's word in any case, and why the lock was lost if it was.
    pub(crate) async fn give_back(mut self) -> Result<Result<(), LostReason>, Error> {
        if self.context.holds().stays_with_others(self.hold, self.share) {
            // Nothing will be given back, so nothing would be heard.
            if let Err(Error::Lost { reason, .. }) = self.ask_the_server(Want::Word).await {
                return Ok(Err(reason));
            }
            if hand_over::leave_to_others(&self.context, &self.name, self.hold, self.share) {
                self.released = true;
                self.span.end(|| End::Released);
                return Ok(Ok(()));
            }
        }
        hand_over::tell_head(&self.context, &self.name);
        self.confirmed().await
    }

    async fn confirmed(&mut self) -> Result<Result<(), LostReason>, Error> {
        // From its first poll on the release takes place, and this only looks.
        self.released = true;
        let mut release = Release { guard: self, view: None };
        let end = std::future::poll_fn(|cx| release.poll(cx.waker())).await;
        drop(release);
        self.span.end(|| match &end {
            Ok(Ok(())) => End::Released,
            Ok(Err(_)) => End::Lost,
            Err(_) => End::Dropped,
        });
        end.map_err(|failed| {
            let is_refused = match &failed {
                Failed::Error(error) | Failed::TimedOut { reason: Some(error), .. } => refuses_writes(error),
                Failed::Unexpected(_) | Failed::TimedOut { reason: None, .. } => false,
            };
            let what = if is_refused { " yet (it is repeated in the background)" } else { "" };
            self.failure(format!("release {}{what}", self.name.titled()), failed)
        })
    }

    /// Why the server's word did not come.
    fn failure(&self, operation: String, failed: Failed) -> Error {
        let (client, key) = (&self.context.client, self.name.key().as_bytes());
        match failed {
            Failed::Error(source) => Error::Server { operation, source },
            Failed::Unexpected(reply_type) => Error::unexpected(operation, reply_type),
            Failed::TimedOut { ambiguous, reason } => {
                let source = reason.unwrap_or_else(|| client.timed_out(key, "EVALSHA"));
                let source = if ambiguous { source.after_an_unanswered_attempt() } else { source };
                Error::Server { operation, source }
            }
        }
    }
}

impl Held for Guard {
    fn begin_span(&mut self) {
        self.span = HoldSpan::begin(self.name.as_subject());
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let (context, hold, released) = (&self.context, self.hold, self.released);
        // After its release the place may be another hold's.
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

/// What a caller sees of what it wants to hear from the server.
struct Wish<'a> {
    guard: &'a Guard,
    want: Want,
    number: Option<u64>,
}

impl Wish<'_> {
    /// `None` if the hold is lost.
    fn poll(&mut self, waker: &Waker) -> Poll<Option<Fulfilled>> {
        let Guard { context, hold, .. } = self.guard;
        let Some(number) = self.number else {
            self.number = watchdog::wish(context, *hold, self.want, waker);
            return if self.number.is_some() { Poll::Pending } else { Poll::Ready(None) };
        };
        let fulfilled = context.transact(|holds, _, _| holds.fulfilled(*hold, number, waker));
        if fulfilled.is_some() {
            self.number = None;
        }
        fulfilled.map_or(Poll::Pending, |fulfilled| Poll::Ready(Some(fulfilled)))
    }
}

impl Drop for Wish<'_> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            let Guard { context, hold, .. } = self.guard;
            // The waker is dropped after the table is unlocked.
            drop(context.transact(|holds, _, _| holds.forget_wish(*hold, number)));
        }
    }
}

/// What a caller sees of its release, which takes place whether or not anybody looks.
struct Release<'a> {
    guard: &'a Guard,
    view: Option<ViewIndex>,
}

impl Release<'_> {
    /// Gives the guard's hold back at the first poll. Whether it was held until then, or why not.
    fn poll(&mut self, waker: &Waker) -> Poll<Result<Result<(), LostReason>, Failed>> {
        let Guard { context, hold, share, .. } = self.guard;
        if let Some(view) = self.view {
            let end = context.transact(|holds, _, _| holds.released(view, waker));
            return match end {
                Some(end) => {
                    self.view = None;
                    Poll::Ready(end.map(|known| if known { Ok(()) } else { Err(LostReason::NotOwner) }))
                }
                None => Poll::Pending,
            };
        }
        let (view, lost) = context.transact(|holds, now, effects| {
            holds.lose_if_expired(*hold, now, effects);
            let lost = holds.lost(*hold);
            let until = now + context.client.config().response_timeout;
            let (view, request) = match lost {
                // The server may know the hold for a moment longer, and would call it released.
                Some(_) => (None, holds.release(*hold, *share, now)),
                None => holds.release_awaited(*hold, *share, (now, until), waker),
            };
            effects.request_all(request);
            (view, lost)
        });
        self.view = view;
        // If it has ended already, the waker was woken. What needs no word of the server's is lost, or others have joined it.
        if view.is_some() { Poll::Pending } else { Poll::Ready(Ok(lost.map_or(Ok(()), Err))) }
    }
}

impl Drop for Release<'_> {
    fn drop(&mut self) {
        if let Some(view) = self.view {
            // The waker is dropped after the table is unlocked.
            drop(self.guard.context.transact(|holds, _, _| holds.leave(view)));
        }
    }
}

/// See [`Guard::lost`].
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
