//! What the two sides of a read-write lock know of each other. A value.

use std::sync::Arc;

use crate::wait::name::Name;

/// Who goes first where readers and writers wait for the same lock.
///
/// ```no_run
/// use wheellock::Fairness;
///
/// # async fn example(locks: wheellock::LockManager) -> Result<(), wheellock::Error> {
/// let prices = locks.read_write_lock("prices").with_fairness(Fairness::ReadersFirst);
/// let reading = prices.read().acquire().await?; // whether or not a writer waits
/// # drop(reading);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Fairness {
    /// Readers who come while a writer waits stand behind it, in all processes that use this library; a writer waits for those
    /// who read already, and no longer. Readers who hold the lock already, or write, pass all the same.
    #[default]
    WritersFirst,
    /// Readers join readers. A writer waits until nobody reads, which may take for ever.
    ReadersFirst,
}

/// What one side of a read-write lock knows of the other.
#[derive(Clone)]
pub(crate) struct Sides {
    pub(crate) other: Arc<Name>,
    pub(crate) fairness: Fairness,
}
