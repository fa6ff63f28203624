//! The primitives that the shared timer is built from, and the model checker's in their place under `cfg(loom)`.
//!
//! A poisoned lock is recovered: no code that can panic runs while one is held, except the drop of a payload that the
//! wheel's own invariants do not depend on.

#[cfg(loom)]
pub(crate) use loom::sync::{Mutex, MutexGuard, atomic};
#[cfg(not(loom))]
pub(crate) use std::sync::{Mutex, MutexGuard, atomic};

use std::sync::PoisonError;

/// Locks, whether or not a panic has poisoned the lock.
#[inline]
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps a value on cache lines of its own: 128 bytes, because adjacent lines are fetched in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct CachePadded<T>(pub(crate) T);
