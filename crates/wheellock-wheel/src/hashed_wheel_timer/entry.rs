//! Entry of one timeout: its state, task and handle count.
//!
//! Everything here runs under the lock of the entry's shard. No task is dropped under that lock: the caller that takes a task out must drop
//! it.

use std::sync::Arc;

use crate::TimerKey;
use crate::sync::atomic::{AtomicU8, Ordering};
use crate::timer::shards::Stored;

pub(super) const PENDING: u8 = 0;
pub(super) const CANCELLED: u8 = 1;
pub(super) const EXPIRED: u8 = 2;

/// A task behind the trait object `T`.
pub(crate) enum AnyTask<T: ?Sized + 'static> {
    Shared(Arc<T>),
    /// A task of a type without state. It needs no memory and no reference count.
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

/// The state of a timeout. The entry stays until the timeout has ended and the last handle is dropped. Each kind of task has its own
/// variant: the tag then lies beside the count and costs no memory.
pub(crate) enum Entry<T: ?Sized + 'static> {
    Shared { handles: u32, task: Arc<T> },
    Stateless { handles: u32, task: &'static T },
    Cancelled { handles: u32 },
    Expired { handles: u32 },
}

impl<T: ?Sized> Entry<T> {
    /// Creates the entry of a new timeout. The returned handle is counted.
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

    /// Cancels a pending timeout. The calling handle has its own reference to the task, so no task is dropped here under the lock. If the
    /// calling handle is the only handle, `known` records the state and the entry is removed.
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

    /// Moves a pending timeout to its final state and returns the task, to be run or given back. Only the caller that receives the task may
    /// count, run or notify.
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

    /// Removes a pending timeout that has no handle yet.
    pub(super) fn take_back(stored: &mut Stored<Self>, key: TimerKey) -> Option<Self> {
        stored.wheel.get_mut(key).filter(|entry| entry.fate() == PENDING)?;
        stored.wheel.remove(key)
    }

    /// Keeps the final state for the remaining handles.
    fn keep(stored: &mut Stored<Self>, key: TimerKey, to: impl FnOnce(u32) -> Self) -> Option<Self> {
        let entry = stored.wheel.detach(key)?;
        stored.ended += 1;
        let to = to(*entry.handles());
        Some(std::mem::replace(entry, to))
    }

    /// Removes one handle from the count. The last handle of an ended timeout removes the entry.
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
