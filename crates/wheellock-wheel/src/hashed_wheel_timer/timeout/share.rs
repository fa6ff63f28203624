//! What a handle holds of its shard.

use std::sync::Arc;

use super::Entry;
use crate::timer::shards::Shard;

/// A handle's share of its shard.
///
/// The shard's count of owners is two locked instructions per handle. They are spared where a thread makes handles and drops them: it
/// keeps the share that it has dropped last for the next.
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
        // That of a timer that is gone would only keep memory.
        if let Some(shard) = self.0.take_if(|shard| shard.has_timer()) {
            spare::keep(shard);
        }
    }
}

/// The share that a thread has dropped last.
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
        // A thread that is being torn down has none.
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

/// The model checker's threads share one of the system's.
#[cfg(loom)]
mod spare {
    use std::sync::Arc;

    use super::{Entry, Shard};

    pub(super) fn take(_: &Arc<Shard<Entry>>) -> Option<Arc<Shard<Entry>>> {
        None
    }

    pub(super) fn keep(_: Arc<Shard<Entry>>) {}
}
