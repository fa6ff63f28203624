//! Elections, leaderships and observers for threads.
//!
//! Each type wraps the asynchronous type and the runtime that waits for it.

use std::sync::Arc;
use std::time::Duration;

use super::LockManager;
use super::served::Served;
use crate::{AskedHolders, Attempt, BootInstant, Error, Leader, LostReason, ReleaseRequest};

/// An election by name, like [`crate::Election`]. The leader is a [`Leadership`], not a thread. A thread that leads and campaigns
/// again therefore waits for itself.
///
/// ```no_run
/// # fn example(locks: &wheellock::blocking::LockManager) -> Result<(), wheellock::Error> {
/// let election = locks.election("scheduler").with_announcement("http://10.0.0.7:8080");
/// let leadership = election.campaign()?; // waits until it is this one's turn
/// println!("leading with token {}", leadership.token());
/// # Ok(())
/// # }
/// ```
#[must_use = "this is only a handle: call `campaign()` to lead"]
#[derive(Clone, Debug)]
pub struct Election {
    inner: crate::Election,
    runtime: Arc<Served>,
}

impl Election {
    /// Returns the election's name, which is the name of its lock.
    pub fn name(&self) -> &str {
        self.inner.name()
    }

    /// Works like [`crate::Election::with_announcement`].
    pub fn with_announcement(&self, text: impl AsRef<str>) -> Self {
        Self { inner: self.inner.with_announcement(text), runtime: Arc::clone(&self.runtime) }
    }

    /// Works like [`crate::Election::with_max_hold`].
    pub fn with_max_hold(&self, max: Duration) -> Self {
        Self { inner: self.inner.with_max_hold(max), runtime: Arc::clone(&self.runtime) }
    }

    /// Waits until no other candidate leads, and becomes the leader.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`crate::Election::campaign`].
    #[track_caller]
    pub fn campaign(&self) -> Result<Leadership, Error> {
        self.runtime.block_on(self.inner.campaign()).map(|inner| self.leadership(inner))
    }

    /// Becomes the leader if there is none. Costs two round trips.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`crate::Election::campaign`].
    #[track_caller]
    pub fn try_campaign(&self) -> Result<Attempt<Leadership>, Error> {
        Ok(self.runtime.block_on(self.inner.try_campaign())?.map(|inner| self.leadership(inner)))
    }

    /// Waits for at most `wait`, and becomes the leader. Returns [`Attempt::Held`] if another candidate still leads at the end of
    /// that time.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`crate::Election::try_campaign_for`].
    #[track_caller]
    pub fn try_campaign_for(&self, wait: Duration) -> Result<Attempt<Leadership>, Error> {
        Ok(self.runtime.block_on(self.inner.try_campaign_for(wait))?.map(|inner| self.leadership(inner)))
    }

    /// Leads again and again, and runs `work` under each leadership, like [`crate::Election::lead`]. A leadership that is
    /// lost does not stop `work`, so let `work` check [`Leadership::is_leader`] before every step, and return. The result of
    /// `work` under a lost leadership does not count, and this thread campaigns again.
    ///
    /// ```no_run
    /// # fn example(election: &wheellock::blocking::Election) -> Result<(), wheellock::Error> {
    /// election.lead(|leadership| {
    ///     while leadership.is_leader() {
    ///         // one piece of the work, with `leadership.token()`
    ///     }
    ///     Ok::<_, wheellock::Error>(())
    /// })
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`crate::Election::lead`].
    ///
    /// # Panics
    ///
    /// A panic of `work` leaves this call. The leadership is resigned in the background.
    #[track_caller]
    pub fn lead<T, E: From<Error>>(&self, mut work: impl FnMut(&Leadership) -> Result<T, E>) -> Result<T, E> {
        loop {
            let leadership = self.leadership(self.runtime.block_on(self.inner.campaign_until_elected())?);
            let result = work(&leadership);
            // This fails only if the leadership is lost.
            if self.runtime.block_on(leadership.inner.release_after_work()).is_ok() {
                return result;
            }
        }
    }

    /// Returns the current leader, as the primary knows it.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`crate::Election::leader`].
    #[track_caller]
    pub fn leader(&self) -> Result<Option<Leader>, Error> {
        self.runtime.block_on(self.inner.leader())
    }

    /// Works like [`crate::Election::ask_to_step_down`].
    ///
    /// # Errors
    ///
    /// Returns the errors of [`crate::Lock::ask_to_release`].
    #[track_caller]
    pub fn ask_to_step_down(&self, reason: impl AsRef<str>) -> Result<AskedHolders, Error> {
        self.runtime.block_on(self.inner.ask_to_step_down(reason))
    }

    /// Works like [`crate::Election::observe`].
    pub fn observe(&self) -> Observer {
        Observer { inner: self.inner.observe(), runtime: Arc::clone(&self.runtime) }
    }

    fn leadership(&self, inner: crate::Leadership) -> Leadership {
        Leadership { inner, runtime: Arc::clone(&self.runtime) }
    }
}

/// Proof of being the leader of an [`Election`], like [`crate::Leadership`]. Dropping the leadership resigns in the background.
///
/// ```no_run
/// # fn example(election: &wheellock::blocking::Election) -> Result<(), wheellock::Error> {
/// let leadership = election.campaign()?;
/// while leadership.is_leader() {
///     // one piece of the work, with `leadership.token()`
/// #   break;
/// }
/// leadership.resign()?;
/// # Ok(())
/// # }
/// ```
#[must_use = "the leadership ends at once if it is not kept"]
#[derive(Debug)]
pub struct Leadership {
    inner: crate::Leadership,
    runtime: Arc<Served>,
}

impl Leadership {
    /// Works like [`crate::Leadership::is_leader`].
    pub fn is_leader(&self) -> bool {
        self.inner.is_leader()
    }

    /// Works like [`crate::FencedGuard::token`].
    pub fn token(&self) -> u64 {
        self.inner.token()
    }

    /// Works like [`crate::Guard::valid_until`].
    pub fn valid_until(&self) -> BootInstant {
        self.inner.valid_until()
    }

    /// Works like [`crate::Guard::is_endangered`].
    pub fn is_endangered(&self) -> bool {
        self.inner.is_endangered()
    }

    /// Blocks until this leader can no longer believe that it leads, and returns the reason.
    #[track_caller]
    pub fn lost(&self) -> LostReason {
        self.runtime.block_on(self.inner.lost())
    }

    /// Blocks until a caller asks this leader to resign, and returns the request. See
    /// [`crate::Leadership::step_down_requested`].
    #[track_caller]
    pub fn step_down_requested(&self) -> ReleaseRequest {
        self.runtime.block_on(self.inner.step_down_requested())
    }

    /// Works like [`crate::Leadership::announce`].
    ///
    /// # Errors
    ///
    /// Returns the errors of [`crate::Leadership::announce`].
    #[track_caller]
    pub fn announce(&self, text: &str) -> Result<(), Error> {
        self.runtime.block_on(self.inner.announce(text))
    }

    /// Resigns, and waits for the server's reply.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`crate::Leadership::resign`].
    #[track_caller]
    pub fn resign(self) -> Result<(), Error> {
        self.runtime.block_on(self.inner.resign())
    }
}

/// Watches the leader of an [`Election`], like [`crate::Observer`].
///
/// ```no_run
/// # fn example(election: &wheellock::blocking::Election) -> Result<(), wheellock::Error> {
/// let mut observer = election.observe();
/// while let Some(leader) = observer.changed()? {
///     println!("{} leads", leader.announcement());
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Observer {
    inner: crate::Observer,
    runtime: Arc<Served>,
}

impl Observer {
    /// Blocks until the leader or its announcement differs from the last returned one.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`crate::Observer::changed`].
    #[track_caller]
    pub fn changed(&mut self) -> Result<Option<Leader>, Error> {
        self.runtime.block_on(self.inner.changed())
    }
}

impl LockManager {
    /// Works like [`crate::LockManager::election`].
    pub fn election(&self, name: impl AsRef<str>) -> Election {
        Election { inner: self.inner.election(name.as_ref()), runtime: Arc::clone(&self.runtime) }
    }
}
