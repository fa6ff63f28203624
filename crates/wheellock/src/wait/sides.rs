//! The two sides of a read-write lock. A value.

use std::sync::Arc;

use crate::wait::name::Name;

/// The order of readers and writers that wait for the same lock.
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
    /// A reader that arrives while a writer waits queues behind the writer, in all processes that use this library. A writer waits only for
    /// the readers that already hold the lock. A reader whose owner already holds the read lock or the write lock does not have to queue.
    #[default]
    WritersFirst,
    /// A reader does not queue behind a waiting writer. A writer waits until no reader holds the lock, which may take for ever.
    ReadersFirst,
}

/// The other side of a read-write lock, as known to one side.
#[derive(Clone)]
pub(crate) struct Sides {
    pub(crate) other: Arc<Name>,
    pub(crate) fairness: Fairness,
}
