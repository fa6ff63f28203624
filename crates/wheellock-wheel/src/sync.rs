//! The primitives that the shared timer is built from, and the model checker's in their place under `cfg(loom)`.
//!
//! A poisoned lock is recovered: no code that can panic runs while one is held, except the drop of a payload that the
//! wheel's own invariants do not depend on.

#[cfg(loom)]
pub(crate) use loom::{
    sync::{Mutex, MutexGuard, atomic},
    thread_local,
};
#[cfg(not(loom))]
pub(crate) use std::{
    sync::{Mutex, MutexGuard, atomic},
    thread_local,
};

pub(crate) use parking::{Parker, Unparker, spawn};
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

/// A thread that sleeps until it is woken. A wake-up that comes first is not lost.
#[cfg(not(loom))]
mod parking {
    use std::string::String;
    use std::thread;
    use std::time::Duration;

    /// Wakes a thread that was started by [`spawn`].
    pub(crate) type Unparker = thread::Thread;

    /// The sleeping side.
    pub(crate) struct Parker(());

    impl Parker {
        #[expect(clippy::unused_self, reason = "only the thread that owns it may park")]
        pub(crate) fn park(&self, at_most: Option<Duration>) {
            match at_most {
                Some(duration) => thread::park_timeout(duration),
                None => thread::park(),
            }
        }
    }

    /// Starts a thread.
    pub(crate) fn spawn(
        name: String,
        stack: usize,
        run: impl FnOnce(Parker) + Send + 'static,
    ) -> std::io::Result<Unparker> {
        let started = thread::Builder::new().name(name).stack_size(stack).spawn(move || run(Parker(())))?;
        Ok(started.thread().clone())
    }
}

/// The model checker's `unpark` is lost on a thread that is waiting for a lock, so this is a lock and a condition. It knows no time:
/// whoever parks is woken or found stuck.
#[cfg(loom)]
mod parking {
    use loom::sync::{Condvar, Mutex};
    use std::string::String;
    use std::sync::Arc;
    use std::time::Duration;

    use super::lock;

    #[derive(Clone)]
    pub(crate) struct Unparker(Arc<(Mutex<bool>, Condvar)>);

    impl Unparker {
        pub(crate) fn unpark(&self) {
            *lock(&self.0.0) = true;
            self.0.1.notify_one();
        }
    }

    pub(crate) struct Parker(Unparker);

    impl Parker {
        pub(crate) fn new() -> Self {
            Self(Unparker(Arc::new((Mutex::new(false), Condvar::new()))))
        }

        pub(crate) fn unparker(&self) -> Unparker {
            self.0.clone()
        }

        pub(crate) fn park(&self, _: Option<Duration>) {
            let (token, changed) = &*self.0.0;
            let mut token = lock(token);
            while !*token {
                token = changed.wait(token).unwrap_or_else(std::sync::PoisonError::into_inner);
            }
            *token = false;
        }
    }

    pub(crate) fn spawn(
        _: String,
        _: usize,
        run: impl FnOnce(Parker) + Send + 'static,
    ) -> std::io::Result<Unparker> {
        let parker = Parker::new();
        let unparker = parker.unparker();
        loom::thread::spawn(move || run(parker));
        Ok(unparker)
    }
}
