//! Leader election by name: a fenced lock that says who has it. Owns campaigns and what a leader announces; who leads is seen through
//! `observer`, and waiting for the lock is the acquire loop's.

pub(crate) mod observer;

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use wheellock_client::Script;

use crate::base::error::{Error, LostReason};
use crate::base::places::Places;
use crate::kind;
use crate::kinds::fenced::{FencedGuard, FencedLock};
use crate::lock::Lock;
use crate::request::context::Context;
use crate::request::guard::Released;
use crate::request::once::once_at;
use crate::wire;

pub use observer::{Leader, Observer};

/// An election by name: of all who campaign, in all processes that use this name, one leads. Who leads, and what it says of itself, can
/// be [observed](Self::observe).
///
/// It is a [`FencedLock`] of the same name with something to say beside it, so that processes with Redisson's `RFencedLock` may take part.
/// Leadership is a lease: no lock keeps a leader that was stopped from acting after another one has been elected, but what it acts upon
/// can, by the [token](FencedGuard::token).
///
/// ```no_run
/// # async fn example(locks: wheellock::LockManager) -> Result<(), wheellock::Error> {
/// let election = locks.election("scheduler").with_announcement("http://10.0.0.7:8080");
/// loop {
///     let leadership = election.campaign().await?; // waits until it is this one's turn
///     leadership.run(async { /* lead, with leadership.token() */ }).await.ok();
/// }
/// # }
/// ```
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

    /// The election's name, which is that of its lock.
    pub fn name(&self) -> &str {
        self.lock.as_lock().name()
    }

    /// The same election with what this one says of itself once it leads: where it is, as a rule. At most 4 KiB, or campaigns fail. What
    /// it does not say, observers see as an empty text.
    #[must_use]
    pub fn with_announcement(&self, text: &str) -> Self {
        Self { lock: self.lock.clone(), announcement: text.into() }
    }

    /// Waits until nobody else leads, and leads. The lease is kept alive by the watchdog until the leadership is resigned, dropped or lost,
    /// or this process dies; then the next one is elected, after one lease at most.
    ///
    /// Campaigners of one process lead in the order in which they came; between processes there is no order.
    ///
    /// # Cancel safety
    ///
    /// As [`Lock::acquire`]: what may have been won is given back, and the next campaigner is woken.
    ///
    /// # Errors
    ///
    /// As [`FencedLock::acquire`]; [`Error::AnnouncementTooLong`]; [`Error::Lost`] if the leadership was lost before it was announced, and
    /// [`Error::Server`] if it could not be: it is given back then.
    pub async fn campaign(&self) -> Result<Leadership, Error> {
        self.check()?;
        self.lead(self.lock.acquire().await?).await
    }

    /// Leads if nobody does: two round trips.
    ///
    /// # Cancel safety
    ///
    /// As [`campaign`](Self::campaign).
    ///
    /// # Errors
    ///
    /// As [`campaign`](Self::campaign).
    pub async fn try_campaign(&self) -> Result<Option<Leadership>, Error> {
        self.check()?;
        match self.lock.try_acquire().await? {
            Some(guard) => self.lead(guard).await.map(Some),
            None => Ok(None),
        }
    }

    /// Waits up to `wait`, counted from this call. Returns `None` if another one still leads then. Whoever is elected in time announces
    /// itself, which takes a round trip more, and at most the response timeout.
    ///
    /// # Cancel safety
    ///
    /// As [`campaign`](Self::campaign).
    ///
    /// # Errors
    ///
    /// As [`Lock::try_acquire_for`] and [`campaign`](Self::campaign).
    pub async fn try_campaign_for(&self, wait: Duration) -> Result<Option<Leadership>, Error> {
        self.check()?;
        match self.lock.try_acquire_for(wait).await? {
            Some(guard) => self.lead(guard).await.map(Some),
            None => Ok(None),
        }
    }

    /// Who leads now, as the primary says.
    ///
    /// # Cancel safety
    ///
    /// Safe: it changes nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Server`], [`Error::OtherData`], [`Error::InvalidName`], [`Error::NoCommonSlot`].
    pub async fn leader(&self) -> Result<Option<Leader>, Error> {
        observer::look(self.lock.as_lock()).await.map(|(leader, _)| leader)
    }

    /// Watches who leads. Nothing is asked, and nothing is listened to, before [`Observer::changed`] is.
    pub fn observe(&self) -> Observer {
        Observer::new(self.lock.as_lock().clone())
    }

    fn check(&self) -> Result<(), Error> {
        check_announcement(&self.announcement)
    }

    async fn lead(&self, guard: FencedGuard) -> Result<Leadership, Error> {
        let announcements = Announcements::new(&self.lock.as_lock().context);
        let leadership = Leadership { guard, lock: self.lock.as_lock().clone(), announcements };
        leadership.announce(&self.announcement).await?;
        // The server may have said long ago what is heard now.
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

/// Being the leader of an [`Election`]: a [`FencedGuard`] with what a leader does. Dropping it resigns in the background.
///
/// ```no_run
/// # async fn example(election: wheellock::Election) -> Result<(), wheellock::Error> {
/// let leadership = election.campaign().await?;
/// leadership.announce("http://10.0.0.7:8080, since noon").await?;
/// leadership.run(async { /* dropped where it stands if the leadership is lost */ }).await?;
/// leadership.resign().await?; // the next one leads at once
/// # Ok(())
/// # }
/// ```
#[must_use = "the leadership ends at once if it is not kept"]
#[derive(Debug)]
pub struct Leadership {
    guard: FencedGuard,
    lock: Lock,
    announcements: Announcements,
}

/// Where the server remembers what a leader says: all of it at one place, so that nothing takes effect after what was said later.
struct Announcements {
    context: Arc<Context>,
    place: u64,
}

impl Announcements {
    fn new(context: &Arc<Context>) -> Self {
        Self { context: Arc::clone(context), place: Places::keep(&context.places) }
    }

    fn next(&self) -> (u64, u64) {
        (self.place, Places::next(&self.context.places))
    }
}

impl Drop for Announcements {
    fn drop(&mut self) {
        Places::give_back(&self.context.places, self.place);
    }
}

impl fmt::Debug for Announcements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Announcements").finish_non_exhaustive()
    }
}

impl Leadership {
    /// Whether this one may believe to lead right now: [`Guard::is_valid`](crate::Guard::is_valid). Ask before every step that must not
    /// happen without it, and let what the step changes check the [token](FencedGuard::token).
    pub fn is_leader(&self) -> bool {
        self.guard.is_valid()
    }

    /// Says something else of this leader, at most 4 KiB; observers are woken. Leaves the leadership as it is, whatever comes of it.
    ///
    /// # Cancel safety
    ///
    /// A dropped call may still take effect, but not after a later one.
    ///
    /// # Errors
    ///
    /// [`Error::AnnouncementTooLong`]; [`Error::Lost`] if the server does not know this one as the leader; [`Error::Server`].
    pub async fn announce(&self, text: &str) -> Result<(), Error> {
        check_announcement(text)?;
        let said = wire::announcement(&self.guard.owner(), self.guard.token(), text);
        let (at, Lock { context, name, .. }) = (self.announcements.next(), &self.lock);
        match once_at(at, context, name, &ANNOUNCE, "announce the leader of", Some(said.as_str().into()))
            .await?
        {
            1 => Ok(()),
            _ => Err(Error::Lost { lock: self.lock.name().to_owned(), reason: LostReason::NotOwner }),
        }
    }

    /// Gives the leadership back and waits for the server's word. One who campaigns is elected at once.
    ///
    /// # Cancel safety
    ///
    /// As [`Guard::release`](crate::Guard::release).
    ///
    /// # Errors
    ///
    /// As [`Guard::release`](crate::Guard::release).
    pub async fn resign(self) -> Result<Released, Error> {
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

/// In bytes. Every observer reads it with every change, and it is a place and not a store.
const MAX_ANNOUNCEMENT: usize = 4096;

pub(crate) static ANNOUNCE: LazyLock<Script> = LazyLock::new(|| {
    let text = concat!(include_str!("../scripts/once.lua"), include_str!("../scripts/election/announce.lua"));
    Script::new(text, 1, 7)
});
