//! A read-write lock by name, as two [`Lock`]s.

use std::fmt;
use std::sync::Arc;

use crate::kind::Kind;
use crate::lock::Lock;
use crate::request::context::Context;
use crate::wait::sides::{Fairness, Sides};

/// A read-write lock, shared by all users of its name: tasks, processes, and Redisson's `RReadWriteLock` in Java. Any
/// number of readers may hold it at once; a writer holds it alone.
///
/// Each side is a [`Lock`] with all of its methods. `W` is the type of the write side. Both sides are reentrant. A writer can also read if it presents its
/// [owner](crate::Guard::owner), and keeps reading when its write hold is released. A reader that requests the write
/// side gets [`Error::Upgrade`](crate::Error::Upgrade).
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
#[must_use = "this is only a handle: call `read().acquire()` or `write().acquire()` to take the lock"]
#[derive(Clone)]
pub struct ReadWriteLock<W = Lock> {
    read: Lock,
    write: Lock,
    /// Returns the write side as the type of its kind.
    writer: fn(Lock) -> W,
}

impl<W> ReadWriteLock<W> {
    /// Returns the lock whose sides are these two kinds, which share a hash on the server.
    pub(crate) fn of(
        context: &Arc<Context>,
        name: &str,
        sides: [&'static Kind; 2],
        writer: fn(Lock) -> W,
    ) -> Self {
        let names = sides.map(|kind| context.name(name, kind));
        let [read, write] = &names;
        let side = |name, other| {
            let mut side = Lock::new(Arc::clone(context), Arc::clone(name));
            side.sides = Some(Sides { other: Arc::clone(other), fairness: Fairness::default() });
            side
        };
        Self { read: side(read, write), write: side(write, read), writer }
    }

    /// Returns the lock's name, which is also its key on the server.
    pub fn name(&self) -> &str {
        self.read.name()
    }

    /// Returns the same lock with another rule for the order of readers and writers. A writer goes before later readers
    /// only if neither side uses [`ReadersFirst`](Fairness::ReadersFirst).
    pub fn with_fairness(&self, fairness: Fairness) -> Self {
        let [mut read, mut write] = [self.read.clone(), self.write.clone()];
        for sides in [&mut read, &mut write].into_iter().filter_map(|side| side.sides.as_mut()) {
            sides.fairness = fairness;
        }
        Self { read, write, writer: self.writer }
    }

    /// Returns the side for readers, any number at once.
    ///
    /// Queries on this side are about readers. [`is_locked`](Lock::is_locked) returns true if any reader holds the
    /// lock. [`force_release`](Lock::force_release) frees the holds of all readers, but not of a writer.
    /// [`remaining_lease`](Lock::remaining_lease) returns the longest lease of either side.
    pub fn read(&self) -> Lock {
        self.read.clone()
    }

    /// Returns the side for writers, one at a time.
    ///
    /// Queries on this side are about the writer. [`force_release`](Lock::force_release) frees the writer's hold. If
    /// the writer also reads, its read holds are freed, too.
    pub fn write(&self) -> W {
        (self.writer)(self.write.clone())
    }
}

impl<W> fmt::Debug for ReadWriteLock<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadWriteLock").field("read", &self.read).field("write", &self.write).finish()
    }
}
