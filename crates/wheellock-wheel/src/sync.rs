//! Synchronization primitives of the shared timer.
//!
//! Under `cfg(loom)` the model checker's primitives replace them. A poisoned lock is recovered. Under a lock only the drop of a payload can
//! panic, and the wheel's invariants do not depend on that payload.

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
pub(crate) use short::{ShortGuard, ShortMutex};
use std::sync::PoisonError;

/// Locks the mutex even if a panic has poisoned it.
#[inline]
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A value on its own cache lines. The alignment is 128 bytes, because the processor fetches adjacent lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct CachePadded<T>(pub(crate) T);

/// A mutex that is held for nanoseconds, nearly always by the same thread.
///
/// The standard mutex needs a second locked instruction on release, to find sleeping threads. That instruction takes as long as all other
/// work under a shard's lock. This mutex is released by a plain store instead. A waiting thread spins, then yields, then sleeps. A holder
/// that has lost its core therefore gets a core again, whatever its priority.
#[cfg(not(loom))]
mod short {
    use std::hint::spin_loop;
    use std::thread;
    use std::time::Duration;

    use spin::mutex::{SpinMutex, SpinMutexGuard};

    pub(crate) type ShortGuard<'a, T> = SpinMutexGuard<'a, T>;

    pub(crate) struct ShortMutex<T>(SpinMutex<T>);

    impl<T> ShortMutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(SpinMutex::new(value))
        }

        #[inline]
        pub(crate) fn lock(&self) -> ShortGuard<'_, T> {
            match self.0.try_lock() {
                Some(guard) => guard,
                None => self.wait(),
            }
        }

        #[cold]
        #[inline(never)]
        fn wait(&self) -> ShortGuard<'_, T> {
            let mut attempts = 0_u32;
            loop {
                // Reading before the attempt leaves the cache line with the holder.
                if !self.0.is_locked()
                    && let Some(guard) = self.0.try_lock()
                {
                    return guard;
                }
                if attempts < SPINS {
                    spin_loop();
                } else if attempts < YIELDS {
                    thread::yield_now();
                } else {
                    thread::sleep(NAP);
                }
                attempts = attempts.saturating_add(1);
            }
        }
    }

    /// Spins before yielding: at most 10 us. This is longer than an insert takes, and a tenth of the cost of a sleep and a wake-up.
    const SPINS: u32 = 200;
    /// Attempts before sleeping. After the spins, either the holder has lost its core or the driver takes many timers out. Both end soon on
    /// an idle machine.
    const YIELDS: u32 = SPINS + 100;
    /// The sleep between attempts: about as long as the system needs to wake a thread.
    const NAP: Duration = Duration::from_micros(50);
}

#[cfg(loom)]
mod short {
    use loom::sync::{Mutex, MutexGuard};

    use super::lock;

    pub(crate) type ShortGuard<'a, T> = MutexGuard<'a, T>;

    pub(crate) struct ShortMutex<T>(Mutex<T>);

    impl<T> ShortMutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> ShortGuard<'_, T> {
            lock(&self.0)
        }
    }
}

/// A thread that sleeps until it is woken. A wake-up before the sleep is not lost.
#[cfg(not(loom))]
mod parking {
    use std::string::String;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;
    use std::time::Duration;

    /// Wakes a thread that [`spawn`] started.
    pub(crate) struct Unparker {
        thread: thread::Thread,
        woken: Arc<AtomicBool>,
    }

    impl Unparker {
        pub(crate) fn unpark(&self) {
            self.woken.store(true, Ordering::Release);
            self.thread.unpark();
        }
    }

    /// The sleeping side. Tasks and wakers run on its thread and may park it for their own purposes, as a channel does. They may then
    /// consume the system's token of the thread, so `woken` is a second token.
    pub(crate) struct Parker {
        woken: Arc<AtomicBool>,
    }

    impl Parker {
        pub(crate) fn park(&self, at_most: Option<Duration>) {
            if self.woken.swap(false, Ordering::Acquire) {
                return;
            }
            match at_most {
                Some(duration) => thread::park_timeout(duration),
                None => thread::park(),
            }
            self.woken.swap(false, Ordering::Acquire);
        }
    }

    /// Starts a thread.
    pub(crate) fn spawn(
        name: String,
        stack: usize,
        run: impl FnOnce(Parker) + Send + 'static,
    ) -> std::io::Result<Unparker> {
        let woken = Arc::new(AtomicBool::new(false));
        let parker = Parker { woken: woken.clone() };
        let started = thread::Builder::new().name(name).stack_size(stack).spawn(move || run(parker))?;
        Ok(Unparker { thread: started.thread().clone(), woken })
    }
}

/// Parking for the model checker: a lock and a condition variable. The checker's own `unpark` is lost on a thread that waits for a lock.
/// Timeouts are ignored: a parked thread is woken, or the checker reports it as stuck.
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

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Barrier;
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn short_lock_is_exclusive_under_contention() {
        let (count, all) = (ShortMutex::new(0_u32), Barrier::new(4));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    all.wait();
                    for _ in 0..10_000 {
                        let mut count = count.lock();
                        let before = *count;
                        std::hint::black_box(&mut *count);
                        *count = before + 1;
                    }
                });
            }
        });
        assert_eq!(*count.lock(), 40_000);
    }

    /// Simulates a holder that has lost its core.
    #[test]
    fn waiter_acquires_long_held_lock() {
        let (is_over, held) = (ShortMutex::new(false), Barrier::new(2));
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut is_over = is_over.lock();
                held.wait();
                thread::sleep(Duration::from_millis(20));
                *is_over = true;
            });
            held.wait();
            assert!(*is_over.lock());
        });
    }
}
