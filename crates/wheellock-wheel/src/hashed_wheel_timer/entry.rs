//! One timeout in its wheel: what has become of it, its task, and how many handles may ask.
//!
//! Everything here runs under the lock of the entry's shard, and drops no task there: who takes one out drops it.

use std::sync::Arc;

use crate::TimerKey;
use crate::sync::atomic::{AtomicU8, Ordering};
use crate::timer::shards::Stored;

pub(super) const PENDING: u8 = 0;
pub(super) const CANCELLED: u8 = 1;
pub(super) const EXPIRED: u8 = 2;

/// A task of any type that `T`, a trait object, stands for.
pub(crate) enum AnyTask<T: ?Sized + 'static> {
    Shared(Arc<T>),
    /// Of a type without state, whose values need no memory and no count of their owners.
    Stateless(&'static T),
}

impl<T: ?Sized> AnyTask<T> {
    #[inline]
    pub(super) fn get(&self) -> &T {
        match self {
            Self::Shared(task) => task,
            Self::Stateless(task) => task,
        }
    }
}

impl<T: ?Sized> Clone for AnyTask<T> {
    #[inline]
    fn clone(&self) -> Self {
        match self {
            Self::Shared(task) => Self::Shared(task.clone()),
            Self::Stateless(task) => Self::Stateless(task),
        }
    }
}

/// It stays until both the timeout has left and the last handle is gone. A task of either kind, so that the tag is beside the count and
/// costs nothing.
pub(crate) enum Entry<T: ?Sized + 'static> {
    Shared { handles: u32, task: Arc<T> },
    Stateless { handles: u32, task: &'static T },
    Cancelled { handles: u32 },
    Expired { handles: u32 },
}

impl<T: ?Sized> Entry<T> {
    /// Of a new timeout, with the handle that is returned.
    #[inline]
    pub(super) fn new(task: &AnyTask<T>) -> Self {
        match task {
            AnyTask::Shared(task) => Self::Shared { handles: 1, task: task.clone() },
            AnyTask::Stateless(task) => Self::Stateless { handles: 1, task },
        }
    }

    #[inline]
    pub(super) fn handles(&mut self) -> &mut u32 {
        match self {
            Self::Shared { handles, .. }
            | Self::Stateless { handles, .. }
            | Self::Cancelled { handles }
            | Self::Expired { handles } => handles,
        }
    }

    /// From pending to cancelled, through a handle that has a task of its own, so that no task is dropped here, under the lock. If it is
    /// the only handle it is all that knows: the entry goes.
    #[inline]
    pub(super) fn cancel(stored: &mut Stored<Self>, key: TimerKey, known: &AtomicU8) -> bool {
        match stored.wheel.get_mut(key) {
            Some(entry) if entry.fate() == PENDING => {
                if *entry.handles() == 1 {
                    known.store(CANCELLED, Ordering::Release);
                    stored.wheel.discard(key)
                } else {
                    Self::keep(stored, key, |handles| Self::Cancelled { handles }).is_some()
                }
            }
            _ => false,
        }
    }

    /// From pending to what it becomes, to be run or given back. Whoever gets the task owns what follows; nobody else counts, runs or
    /// tells.
    #[inline]
    pub(super) fn leave(
        stored: &mut Stored<Self>,
        key: TimerKey,
        to: impl FnOnce(u32) -> Self,
    ) -> Option<AnyTask<T>> {
        let entry = stored.wheel.get_mut(key).filter(|entry| entry.fate() == PENDING)?;
        let entry =
            if *entry.handles() == 0 { stored.wheel.remove(key)? } else { Self::keep(stored, key, to)? };
        match entry {
            Self::Shared { task, .. } => Some(AnyTask::Shared(task)),
            Self::Stateless { task, .. } => Some(AnyTask::Stateless(task)),
            Self::Cancelled { .. } | Self::Expired { .. } => None,
        }
    }

    /// Takes a pending one out that no handle was given for.
    pub(super) fn take_back(stored: &mut Stored<Self>, key: TimerKey) -> Option<Self> {
        stored.wheel.get_mut(key).filter(|entry| entry.fate() == PENDING)?;
        stored.wheel.remove(key)
    }

    /// For the handles that may still ask.
    fn keep(stored: &mut Stored<Self>, key: TimerKey, to: impl FnOnce(u32) -> Self) -> Option<Self> {
        let entry = stored.wheel.detach(key)?;
        stored.ended += 1;
        let to = to(*entry.handles());
        Some(std::mem::replace(entry, to))
    }

    /// One handle will not ask any more.
    pub(super) fn forget(stored: &mut Stored<Self>, key: TimerKey) {
        let Some(entry) = stored.wheel.get_mut(key) else { return };
        *entry.handles() -= 1;
        if *entry.handles() == 0 && entry.fate() != PENDING {
            stored.wheel.discard(key);
            stored.ended -= 1;
        }
    }

    #[inline]
    pub(super) fn fate(&self) -> u8 {
        match self {
            Self::Shared { .. } | Self::Stateless { .. } => PENDING,
            Self::Cancelled { .. } => CANCELLED,
            Self::Expired { .. } => EXPIRED,
        }
    }
}
