//! The result of an attempt to take a lock.

use std::time::Duration;

use crate::base::error::Error;

/// The result of a call that may end without the lock.
///
/// A statement that drops an `Attempt` gets a compiler warning, because the code behind it would run without the lock.
///
/// ```
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), wheellock::Error> {
/// # let double = wheellock::testing::Double::new();
/// # let (locks, others) = (double.manager().await?, double.manager().await?);
/// use wheellock::{Attempt, Error};
///
/// let orders = locks.lock("orders:42");
/// // As an error, for a caller that cannot work without the lock:
/// let guard = orders.try_acquire().await?.or_held()?;
/// guard.release().await?;
///
/// # let theirs = others.lock("orders:42").acquire().await?;
/// // As a value, for a caller that has other work:
/// match orders.try_acquire().await? {
///     Attempt::Acquired(guard) => guard.release().await?,
///     Attempt::Held { lease_left, .. } => println!("held, for {lease_left:?} more"),
/// }
/// # assert!(matches!(orders.try_acquire().await?.or_held(), Err(Error::Held { .. })));
/// # drop(theirs);
/// # Ok(())
/// # }
/// ```
#[must_use = "the lock may be held by another holder: use `or_held()?`, or match on both variants"]
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Attempt<G> {
    /// The lock is granted. Of a closure form: the lock was granted, and this is the result of the work.
    Acquired(G),
    /// The wait ended while another holder had the lock.
    #[non_exhaustive]
    Held {
        /// The lock's name. Of a set: the name of a member that another holder has.
        lock: String,
        /// Remaining lease of the holder, by the server's last reply. `None` if no reply told it.
        ///
        /// The holder may release before, or renew its lease. Of permits, the lease that ends first. A counted semaphore
        /// does not know it. In a quorum, the time after which enough leases will have ended.
        lease_left: Option<Duration>,
    },
}

impl<G> Attempt<G> {
    /// Returns the guard, or `None` if another holder has the lock.
    #[must_use = "without the guard, the lock is released at once"]
    pub fn acquired(self) -> Option<G> {
        match self {
            Self::Acquired(guard) => Some(guard),
            Self::Held { .. } => None,
        }
    }

    /// Returns the guard, or an error if another holder has the lock.
    ///
    /// # Errors
    ///
    /// [`Error::Held`] if another holder has the lock.
    pub fn or_held(self) -> Result<G, Error> {
        match self {
            Self::Acquired(guard) => Ok(guard),
            Self::Held { lock, lease_left } => Err(Error::Held { lock, lease_left }),
        }
    }

    /// Returns true if the lock is granted.
    #[must_use]
    pub fn is_acquired(&self) -> bool {
        matches!(self, Self::Acquired(_))
    }

    /// Converts the guard. A refusal stays as it is.
    pub fn map<T>(self, convert: impl FnOnce(G) -> T) -> Attempt<T> {
        match self {
            Self::Acquired(guard) => Attempt::Acquired(convert(guard)),
            Self::Held { lock, lease_left } => Attempt::Held { lock, lease_left },
        }
    }
}
