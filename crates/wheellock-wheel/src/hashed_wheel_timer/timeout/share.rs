//! Reference of a handle to its shard.

use std::sync::Arc;

use super::Entry;
use crate::timer::shards::Shard;

/// A handle's reference to its shard.
///
/// The shard's reference count costs two locked instructions per handle. A thread that makes and drops handles saves them: it keeps the
/// last dropped reference for its next handle.
pub(super) struct Share(Option<Arc<Shard<Entry>>>);

impl Share {
    #[inline]
    pub(super) fn of(shard: &Arc<Shard<Entry>>) -> Self {
        Self(Some(spare::take(shard).unwrap_or_else(|| shard.clone())))
    }
}

impl std::ops::Deref for Share {
    type Target = Arc<Shard<Entry>>;

    #[inline]
    fn deref(&self) -> &Self::Target {
        match &self.0 {
            Some(shard) => shard,
            None => unreachable!("it has one until it is dropped"),
        }
    }
}

impl Drop for Share {
    #[inline]
    fn drop(&mut self) {
        // A reference to the shard of a dropped timer would only keep memory.
        if let Some(shard) = self.0.take_if(|shard| shard.has_timer()) {
            spare::keep(shard);
        }
    }
}

/// The reference that a thread dropped last.
#[cfg(not(loom))]
mod spare {
    use std::cell::Cell;
    use std::sync::Arc;

    use super::{Entry, Shard};

    std::thread_local! {
        static SPARE: Cell<Option<Arc<Shard<Entry>>>> = const { Cell::new(None) };
    }

    #[inline]
    pub(super) fn take(shard: &Arc<Shard<Entry>>) -> Option<Arc<Shard<Entry>>> {
        // The thread-local is gone while its thread is being torn down.
        let spare = SPARE.try_with(Cell::take).ok()??;
        if Arc::ptr_eq(&spare, shard) {
            return Some(spare);
        }
        keep(spare);
        None
    }

    #[inline]
    pub(super) fn keep(shard: Arc<Shard<Entry>>) {
        let _ = SPARE.try_with(|spare| spare.replace(Some(shard)));
    }
}

/// Without a spare: the model checker's threads run on one thread of the system.
#[cfg(loom)]
mod spare {
    use std::sync::Arc;

    use super::{Entry, Shard};

    pub(super) fn take(_: &Arc<Shard<Entry>>) -> Option<Arc<Shard<Entry>>> {
        None
    }

    pub(super) fn keep(_: Arc<Shard<Entry>>) {}
}
