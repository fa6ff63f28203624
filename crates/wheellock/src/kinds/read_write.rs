//! A read-write lock by name: two sides, each of which is a [`Lock`].

use std::sync::Arc;

use crate::kind;
use crate::lock::Lock;
use crate::request::context::Context;
use crate::wait::sides::{Fairness, Sides};

/// A read-write lock, shared by all who use its name: tasks, processes, and Redisson's `RReadWriteLock` in Java. Any number of
/// holders may read at once; a writer is alone.
///
/// Each side is a [`Lock`] with all of its verbs. Both are reentrant; a writer may read as well, by presenting its
/// [owner](crate::Guard::owner), and keeps reading when its write hold is released. A reader who asks to write is refused
/// with [`Error::Upgrade`](crate::Error::Upgrade).
///
/// ```no_run
/// # async fn example(locks: wheellock::LockManager) -> Result<(), wheellock::Error> {
/// let prices = locks.read_write_lock("prices");
/// let reading = prices.read().acquire().await?;
/// // Others read at the same time; nobody writes.
/// reading.release().await?;
/// let writing = prices.write().acquire().await?;
/// // Nobody else is in here.
/// let reading = prices.read().with_owner(writing.owner()).acquire().await?;
/// writing.release().await?;
/// // Other readers may enter now.
/// # drop(reading);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct ReadWriteLock {
    read: Lock,
    write: Lock,
}

impl ReadWriteLock {
    pub(crate) fn new(context: &Arc<Context>, name: &str) -> Self {
        let names = [&kind::READ, &kind::WRITE].map(|kind| context.name(name, kind));
        let [read, write] = &names;
        let side = |name, other| {
            let mut side = Lock::new(Arc::clone(context), Arc::clone(name));
            side.sides = Some(Sides { other: Arc::clone(other), fairness: Fairness::default() });
            side
        };
        Self { read: side(read, write), write: side(write, read) }
    }

    /// The lock's name, which is also its key on the server.
    pub fn name(&self) -> &str {
        self.read.name()
    }

    /// The same lock with another rule about who goes first. A writer waits before readers who come only if neither side asks
    /// for [`ReadersFirst`](Fairness::ReadersFirst).
    #[must_use]
    pub fn with_fairness(&self, fairness: Fairness) -> Self {
        let mut lock = self.clone();
        for side in [&mut lock.read, &mut lock.write] {
            if let Some(sides) = &mut side.sides {
                sides.fairness = fairness;
            }
        }
        lock
    }

    /// The side for those who read, any number at once.
    ///
    /// Its queries are about readers: [`is_locked`](Lock::is_locked) says whether anybody reads,
    /// [`force_release`](Lock::force_release) throws all readers out and no writer;
    /// [`remaining_lease`](Lock::remaining_lease) is that of the longest hold of either side.
    #[must_use]
    pub fn read(&self) -> Lock {
        self.read.clone()
    }

    /// The side for the one who writes.
    ///
    /// Its queries are about the writer; [`force_release`](Lock::force_release) throws the writer out, who may read as well.
    #[must_use]
    pub fn write(&self) -> Lock {
        self.write.clone()
    }
}
