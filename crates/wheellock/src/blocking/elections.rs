//! Elections for threads: campaigns, leaderships and observers, each the asynchronous one and a runtime to wait in.

use std::sync::Arc;
use std::time::Duration;

use super::LockManager;
use super::served::Served;
use crate::{BootInstant, Error, Leader, LostReason, Released};

/// An election by name, as [`crate::Election`] is. Who leads is not the thread: a thread that leads and campaigns once more waits for
/// itself.
///
/// ```no_run
/// # fn example(locks: &wheellock::blocking::LockManager) -> Result<(), wheellock::Error> {
/// let election = locks.election("scheduler").with_announcement("http://10.0.0.7:8080");
/// let leadership = election.campaign()?; // waits until it is this one's turn
/// println!("leading with token {}", leadership.token());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Election {
    inner: crate::Election,
    runtime: Arc<Served>,
}

impl Election {
    /// The election's name, which is that of its lock.
    pub fn name(&self) -> &str {
        self.inner.name()
    }

    /// As [`crate::Election::with_announcement`].
    #[must_use]
    pub fn with_announcement(&self, text: &str) -> Self {
        Self { inner: self.inner.with_announcement(text), runtime: Arc::clone(&self.runtime) }
    }

    /// Waits until nobody else leads, and leads.
    ///
    /// # Errors
    ///
    /// As [`crate::Election::campaign`].
    pub fn campaign(&self) -> Result<Leadership, Error> {
        self.runtime.block_on(self.inner.campaign()).map(|inner| self.leadership(inner))
    }

    /// Leads if nobody does: two round trips.
    ///
    /// # Errors
    ///
    /// As [`crate::Election::campaign`].
    pub fn try_campaign(&self) -> Result<Option<Leadership>, Error> {
        Ok(self.runtime.block_on(self.inner.try_campaign())?.map(|inner| self.leadership(inner)))
    }

    /// Waits up to `wait`. Returns `None` if another one still leads then.
    ///
    /// # Errors
    ///
    /// As [`crate::Election::try_campaign_for`].
    pub fn try_campaign_for(&self, wait: Duration) -> Result<Option<Leadership>, Error> {
        Ok(self.runtime.block_on(self.inner.try_campaign_for(wait))?.map(|inner| self.leadership(inner)))
    }

    /// Who leads now, as the primary says.
    ///
    /// # Errors
    ///
    /// As [`crate::Election::leader`].
    pub fn leader(&self) -> Result<Option<Leader>, Error> {
        self.runtime.block_on(self.inner.leader())
    }

    /// As [`crate::Election::observe`].
    pub fn observe(&self) -> Observer {
        Observer { inner: self.inner.observe(), runtime: Arc::clone(&self.runtime) }
    }

    fn leadership(&self, inner: crate::Leadership) -> Leadership {
        Leadership { inner, runtime: Arc::clone(&self.runtime) }
    }
}

/// Being the leader of an [`Election`], as [`crate::Leadership`] is. Dropping it resigns in the background.
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
    /// As [`crate::Leadership::is_leader`].
    pub fn is_leader(&self) -> bool {
        self.inner.is_leader()
    }

    /// As [`crate::FencedGuard::token`].
    pub fn token(&self) -> u64 {
        self.inner.token()
    }

    /// As [`crate::Guard::valid_until`].
    pub fn valid_until(&self) -> BootInstant {
        self.inner.valid_until()
    }

    /// Blocks until this one can no longer believe to lead, and tells why.
    pub fn lost(&self) -> LostReason {
        self.runtime.block_on(self.inner.lost())
    }

    /// As [`crate::Leadership::announce`].
    ///
    /// # Errors
    ///
    /// As [`crate::Leadership::announce`].
    pub fn announce(&self, text: &str) -> Result<(), Error> {
        self.runtime.block_on(self.inner.announce(text))
    }

    /// Gives the leadership back and waits for the server's word.
    ///
    /// # Errors
    ///
    /// As [`crate::Leadership::resign`].
    pub fn resign(self) -> Result<Released, Error> {
        self.runtime.block_on(self.inner.resign())
    }
}

/// Watches who leads an [`Election`], as [`crate::Observer`] does.
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
    /// Blocks until another one leads than was told last, or says something else of itself.
    ///
    /// # Errors
    ///
    /// As [`crate::Observer::changed`].
    pub fn changed(&mut self) -> Result<Option<Leader>, Error> {
        self.runtime.block_on(self.inner.changed())
    }
}

impl LockManager {
    /// As [`crate::LockManager::election`].
    pub fn election(&self, name: &str) -> Election {
        Election { inner: self.inner.election(name), runtime: Arc::clone(&self.runtime) }
    }
}
