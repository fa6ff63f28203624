//! Leader election by name, on a fenced lock.
//!
//! This module owns campaigns and announcements. `observer` polls the leader, and the acquire loop waits for the lock.

pub(crate) mod observer;

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use wheellock_client::Script;

use crate::base::attempt::Attempt;
use crate::base::backoff::Backoff;
use crate::base::error::{Error, LostReason};
use crate::base::request_slots::RequestSlot;
use crate::kind::{self, lua};
use crate::kinds::fenced::{FencedGuard, FencedLock};
use crate::lock::Lock;
use crate::request::context::Context;
use crate::request::once::once_at;
use crate::wire;
use crate::wire::release_request::{AskedHolders, ReleaseRequest};

pub use observer::{Leader, Observer};

/// An election by name. One of all campaigners leads, in all processes that use this name. You can
/// [observe](Self::observe) the leader and its announcement.
///
/// An election is a [`FencedLock`] of the same name with an announcement beside it. So processes with Redisson's
/// `RFencedLock` may take part. Leadership is a lease. A paused leader may act after another leader was elected, and no
/// lock prevents that. The resource can prevent it, by the [token](FencedGuard::token).
///
/// ```no_run
/// # async fn example(locks: wheellock::LockManager) -> Result<(), wheellock::Error> {
/// let election = locks.election("scheduler").with_announcement("http://10.0.0.7:8080");
/// let leadership = election.campaign().await?; // waits until no other process leads
/// let lead = async { Ok::<_, wheellock::Error>(()) }; // with leadership.token()
/// leadership.run(lead).await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "this is only a handle: call `campaign()` to lead"]
#[derive(Clone)]
pub struct Election {
    lock: FencedLock,
    announcement: Arc<str>,
}

impl Election {
    pub(crate) fn new(context: &Arc<Context>, name: &str) -> Self {
        let lock = Lock::new(Arc::clone(context), context.name(name, &kind::FENCED));
        Self { lock: FencedLock::new(lock), announcement: "".into() }
    }

    /// Returns the election's name, which is also the name of its lock.
    pub fn name(&self) -> &str {
        self.lock.as_lock().name()
    }

    /// Returns the same election with an announcement for when this campaigner leads, usually its address. With more
    /// than 4 KiB, campaigns fail. Without an announcement, observers see an empty text.
    pub fn with_announcement(&self, text: impl AsRef<str>) -> Self {
        Self { lock: self.lock.clone(), announcement: text.as_ref().into() }
    }

    /// Returns the same election with a maximum time for each leadership, as [`Lock::with_max_hold`].
    pub fn with_max_hold(&self, max: Duration) -> Self {
        Self { lock: self.lock.with_max_hold(max), announcement: Arc::clone(&self.announcement) }
    }

    /// Waits until no other process leads, and then leads. The watchdog renews the lease until the leadership is
    /// resigned, dropped or lost, or this process dies. Then the next leader is elected, after one lease at most.
    ///
    /// Campaigners of one process lead in the order of their calls. Between processes there is no order.
    ///
    /// # Cancel safety
    ///
    /// As [`Lock::acquire`]: a leadership won meanwhile is released, and the next campaigner is woken.
    ///
    /// # Errors
    ///
    /// As [`FencedLock::acquire`]; [`Error::AnnouncementTooLong`]; [`Error::Lost`] if the leadership was lost before
    /// its announcement; [`Error::Server`] if the announcement failed. The leadership is released then.
    pub async fn campaign(&self) -> Result<Leadership, Error> {
        check_announcement(&self.announcement)?;
        self.announced(self.lock.acquire().await?).await
    }

    /// Leads if there is no leader, in two round trips.
    ///
    /// # Cancel safety
    ///
    /// As [`campaign`](Self::campaign).
    ///
    /// # Errors
    ///
    /// As [`campaign`](Self::campaign).
    pub async fn try_campaign(&self) -> Result<Attempt<Leadership>, Error> {
        check_announcement(&self.announcement)?;
        self.announced_if_granted(self.lock.try_acquire().await?).await
    }

    /// Waits up to `wait`, counted from this call. Returns [`Attempt::Held`] if another process still leads then. A
    /// campaigner elected in time announces itself. That takes one more round trip, and at most the response timeout.
    ///
    /// # Cancel safety
    ///
    /// As [`campaign`](Self::campaign).
    ///
    /// # Errors
    ///
    /// As [`Lock::try_acquire_for`] and [`campaign`](Self::campaign).
    pub async fn try_campaign_for(&self, wait: Duration) -> Result<Attempt<Leadership>, Error> {
        check_announcement(&self.announcement)?;
        self.announced_if_granted(self.lock.try_acquire_for(wait).await?).await
    }

    /// Leads again and again, and runs `work` under each leadership. Returns the result of the first `work` that ends under
    /// a valid leadership, after the server has confirmed that the leadership is resigned. If the leadership is lost
    /// before, `work` is dropped at its current await point and its result does not count. Then this process campaigns
    /// again.
    ///
    /// While the server is [unavailable](Error::is_unavailable), failed campaigns are repeated, after random pauses of up
    /// to a second. So a server that restarts, or a computer that slept, does not end the call. The manager's
    /// [shutdown](crate::LockManager::shutdown) ends it.
    ///
    /// In a spawned task, the compiler requires `async move |leadership| { .. }`.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), wheellock::Error> {
    /// # let locks = wheellock::testing::Double::new().manager().await?;
    /// # async fn next_job() -> Option<u64> { None }
    /// let election = locks.election("scheduler").with_announcement("http://10.0.0.7:8080");
    /// let done = election.lead(async |leadership| {
    ///     while let Some(job) = next_job().await {
    ///         println!("job {job} with token {}", leadership.token());
    ///     }
    ///     Ok::<_, wheellock::Error>("no more jobs")
    /// });
    /// assert_eq!(done.await?, "no more jobs");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `work` and resigns in the background.
    ///
    /// # Errors
    ///
    /// The error of `work`, if the leadership was not lost before. The errors of [`campaign`](Self::campaign) that a
    /// repetition cannot cure: [`Error::ShutDown`], and those of a wrong name, setting or permission.
    ///
    /// # Panics
    ///
    /// A panic of `work` leaves this call. The leadership is resigned in the background.
    pub async fn lead<T, E: From<Error>>(
        &self,
        mut work: impl AsyncFnMut(&Leadership) -> Result<T, E>,
    ) -> Result<T, E> {
        loop {
            let leadership = self.campaign_until_elected().await?;
            // Both calls fail only if the leadership is lost.
            let Ok(result) = leadership.run_unconfirmed(work(&leadership)).await else { continue };
            if leadership.release_after_work().await.is_ok() {
                return result;
            }
        }
    }

    /// Campaigns, and repeats failed campaigns that may succeed later.
    pub(crate) async fn campaign_until_elected(&self) -> Result<Leadership, Error> {
        let config = self.lock.as_lock().context.client.config();
        let mut failures = 0;
        loop {
            let error = match self.campaign().await {
                Ok(leadership) => return Ok(leadership),
                Err(error) => error,
            };
            // A leadership may be lost before its announcement, which the next campaign cures. After a shutdown, the next
            // campaign says so.
            if !error.is_unavailable() && !matches!(error, Error::Lost { .. }) {
                return Err(error);
            }
            config.timer.sleep(RETRIES.pause(failures, config.random)).await;
            failures = failures.saturating_add(1);
        }
    }

    /// Returns the present leader, as the primary knows it.
    ///
    /// # Cancel safety
    ///
    /// Safe: the call changes nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Server`], [`Error::OtherData`], [`Error::InvalidName`], [`Error::NoCommonSlot`].
    pub async fn leader(&self) -> Result<Option<Leader>, Error> {
        observer::poll_leader(self.lock.as_lock()).await.map(|(leader, _)| leader)
    }

    /// Asks the leader to resign, with a reason that it sees, as [`Lock::ask_to_release`] does.
    ///
    /// # Cancel safety
    ///
    /// As [`Lock::ask_to_release`].
    ///
    /// # Errors
    ///
    /// As [`Lock::ask_to_release`].
    pub async fn ask_to_step_down(&self, reason: impl AsRef<str>) -> Result<AskedHolders, Error> {
        self.lock.as_lock().ask_to_release(reason).await
    }

    /// Returns a watch over the leader. It sends no request and subscribes to nothing before the first
    /// [`Observer::changed`].
    pub fn observe(&self) -> Observer {
        Observer::new(self.lock.as_lock().clone())
    }

    async fn announced_if_granted(
        &self,
        attempt: Attempt<FencedGuard>,
    ) -> Result<Attempt<Leadership>, Error> {
        match attempt {
            Attempt::Acquired(guard) => self.announced(guard).await.map(Attempt::Acquired),
            Attempt::Held { lock, lease_left } => Ok(Attempt::Held { lock, lease_left }),
        }
    }

    /// Announces the leader with this guard, and returns its leadership.
    async fn announced(&self, guard: FencedGuard) -> Result<Leadership, Error> {
        let announcements = RequestSlot::take(&self.lock.as_lock().context.slots);
        let leadership = Leadership { guard, lock: self.lock.as_lock().clone(), announcements };
        leadership.announce(&self.announcement).await?;
        // A reply that arrives now may be old, and the lease may have ended since.
        if !leadership.is_leader() {
            let reason = leadership.lost().await;
            return Err(Error::Lost { lock: self.name().to_owned(), reason });
        }
        Ok(leadership)
    }
}

impl fmt::Debug for Election {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let announcement = &*self.announcement;
        f.debug_struct("Election").field("name", &self.name()).field("announcement", &announcement).finish()
    }
}

/// The leadership of an [`Election`]: a [`FencedGuard`] with the methods of a leader. Dropping it resigns in the
/// background.
///
/// ```no_run
/// # async fn example(election: wheellock::Election) -> Result<(), wheellock::Error> {
/// let leadership = election.campaign().await?;
/// leadership.announce("http://10.0.0.7:8080, since noon").await?;
/// leadership.run(async { Ok::<_, wheellock::Error>(()) }).await?; // dropped where it stands if the leadership is lost
/// leadership.resign().await?; // the next one leads at once
/// # Ok(())
/// # }
/// ```
#[must_use = "the leadership ends at once if it is not kept"]
#[derive(Debug)]
pub struct Leadership {
    guard: FencedGuard,
    lock: Lock,
    /// The server's slot for the results of announcements. All share one slot, so that no announcement takes effect after
    /// a later one.
    announcements: RequestSlot,
}

impl Leadership {
    /// Returns true if this process leads now, as far as is known: [`Guard::is_valid`](crate::Guard::is_valid). Check
    /// it before every step that needs the leadership. Let the resource of that step check the
    /// [token](FencedGuard::token).
    pub fn is_leader(&self) -> bool {
        self.guard.is_valid()
    }

    /// Replaces the leader's announcement, at most 4 KiB, and wakes observers. The leadership stays as it is, even if
    /// the call fails.
    ///
    /// # Cancel safety
    ///
    /// A dropped call may still take effect, but not after a later one.
    ///
    /// # Errors
    ///
    /// [`Error::AnnouncementTooLong`]; [`Error::Lost`] if the server does not know this process as the leader;
    /// [`Error::Server`].
    pub async fn announce(&self, text: &str) -> Result<(), Error> {
        check_announcement(text)?;
        let said = wire::announcement(&self.guard.owner(), self.guard.token(), text);
        let Lock { context, name, .. } = &self.lock;
        let (slot, said) = (&self.announcements, Some(said.as_str().into()));
        match once_at(slot, context, name, &ANNOUNCE, "announce the leader of", said).await? {
            1 => Ok(()),
            _ => Err(Error::Lost { lock: self.lock.name().to_owned(), reason: LostReason::NotOwner }),
        }
    }

    /// Waits until a caller [asks](Election::ask_to_step_down) this leader to resign, as
    /// [`Guard::release_requested`](crate::Guard::release_requested) does.
    ///
    /// ```no_run
    /// # async fn lead() {}
    /// # async fn example(leadership: wheellock::Leadership) -> Result<(), wheellock::Error> {
    /// tokio::select! {
    ///     () = lead() => {}
    ///     request = leadership.step_down_requested() => println!("resigns for {request}"),
    /// }
    /// leadership.resign().await
    /// # }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// As [`Guard::release_requested`](crate::Guard::release_requested).
    pub async fn step_down_requested(&self) -> ReleaseRequest {
        self.guard.release_requested().await
    }

    /// Resigns after work. Returns an error if the leadership was lost before.
    pub(crate) async fn release_after_work(self) -> Result<(), Error> {
        self.guard.release_after_work().await
    }

    /// Releases the leadership and waits for the server's confirmation. The next campaigner is elected at once.
    ///
    /// # Cancel safety
    ///
    /// As [`Guard::release`](crate::Guard::release).
    ///
    /// # Errors
    ///
    /// As [`Guard::release`](crate::Guard::release).
    pub async fn resign(self) -> Result<(), Error> {
        self.guard.release().await
    }
}

impl Deref for Leadership {
    type Target = FencedGuard;

    fn deref(&self) -> &FencedGuard {
        &self.guard
    }
}

fn check_announcement(text: &str) -> Result<(), Error> {
    if text.len() <= MAX_ANNOUNCEMENT {
        return Ok(());
    }
    Err(Error::AnnouncementTooLong { length: text.len() })
}

/// Longest announcement, in bytes. Every observer reads it with every change. An announcement is an address, not a
/// store.
const MAX_ANNOUNCEMENT: usize = 4096;

/// Pauses between failed campaigns. A shutdown is noticed after the longest pause at the latest.
const RETRIES: Backoff =
    Backoff::Exponential { first: Duration::from_millis(20), most: Duration::from_secs(1) };

pub(crate) static ANNOUNCE: LazyLock<Script> =
    LazyLock::new(|| Script::new(lua!("once.lua", "election/announce.lua"), 1, 7));
