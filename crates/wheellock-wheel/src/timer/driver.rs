//! Who turns the wheel: a thread of its own, a task of a tokio runtime, or the caller.
//!
//! Owns sleeping until the next turn and being woken. Knows nothing of slots or deadlines.

use std::string::String;
use std::sync::Arc;
use std::task::Waker;

use super::clock::VirtualTime;
use super::shards::Hub;
use crate::sync::{Mutex, Parker, Unparker, lock, spawn};
use std::time::{Duration, Instant};

/// A value that a timer fires.
pub(crate) trait Expire: Send + Sized + 'static {
    /// What all values of one timer share.
    type Shared: Send + Sync;

    /// Whether a pending value keeps its timer from ending. It is let go when nobody is left to move a manual clock.
    const KEEPS_TIMER: bool;

    /// Takes the right to fire it. False if somebody else was first. Runs under a lock.
    fn claim(&self) -> bool;

    /// Reads a byte of what it points to, if it can. For a batch in a row the waits for memory overlap; later, one by one, they would
    /// add up, and with a million timers they are most of the cost.
    fn fetch(&self) {}

    /// Runs outside every lock; may panic.
    fn expire(self);
}

impl Expire for Waker {
    type Shared = ();

    const KEEPS_TIMER: bool = false;

    fn claim(&self) -> bool {
        true
    }

    fn expire(self) {
        self.wake();
    }
}

pub(crate) enum Driver {
    /// A thread that is started by the first timer that needs it.
    Thread { name: String, thread: Mutex<Option<Unparker>> },
    #[cfg(feature = "tokio")]
    Tokio(std::boxed::Box<tokio_task::TokioDriver>),
    /// Turned by whoever moves the clock.
    Manual,
}

impl Driver {
    pub(crate) fn thread(name: &str) -> Self {
        Self::Thread { name: name.into(), thread: Mutex::new(None) }
    }

    /// Makes a thread of a model the driver's.
    #[cfg(all(test, loom))]
    pub(crate) fn adopt(&self, own: Unparker) {
        if let Self::Thread { thread, .. } = self {
            *lock(thread) = Some(own);
        }
    }

    /// Wakes a driver that has been started; nothing to do for one that has not.
    pub(crate) fn wake(&self) {
        match self {
            Self::Thread { thread, .. } => {
                if let Some(thread) = &*lock(thread) {
                    thread.unpark();
                }
            }
            #[cfg(feature = "tokio")]
            Self::Tokio(driver) => driver.wake(),
            Self::Manual => {}
        }
    }
}

impl<T: Expire> Hub<T> {
    /// Wakes the driver, which is started if it has not been. False if it cannot be.
    #[cold]
    #[inline(never)]
    pub(crate) fn start_or_wake(self: &Arc<Self>) -> bool {
        match &self.driver {
            Driver::Thread { name, thread } => {
                let mut thread = lock(thread);
                if let Some(thread) = &*thread {
                    thread.unpark();
                    return true;
                }
                let hub = self.clone();
                *thread = spawn(name.clone(), DRIVER_STACK, move |parker| hub.run_thread(&parker)).ok();
                thread.is_some()
            }
            #[cfg(feature = "tokio")]
            Driver::Tokio(driver) => driver.start_or_wake(self),
            Driver::Manual => true,
        }
    }

    fn run_thread(&self, parker: &Parker) {
        while !self.is_closed() {
            let next = self.turn(self.ticks.at_or_before(self.clock.now()));
            self.fire();
            match next.map(|tick| self.ticks.start_of(tick)) {
                Some(Some(next)) => {
                    let left = next.saturating_duration_since(self.clock.now());
                    if !left.is_zero() {
                        parker.park(Some(left));
                    }
                }
                // Nothing pending, or nothing within the next centuries.
                Some(None) | None => parker.park(None),
            }
        }
    }
}

/// Runs due timers up to the new time, tick by tick, each at its own time.
pub(crate) fn advance_manually<T: Expire>(hub: &Hub<T>, time: &VirtualTime, by: Duration) {
    let Some(target) = time.now().checked_add(by) else { return };
    loop {
        let next = hub.turn(hub.ticks.at_or_before(time.now()));
        let fired = hub.fire();
        let next: Option<Instant> = next.and_then(|tick| hub.ticks.start_of(tick));
        match next {
            // What the fired ones have armed is only seen by another turn.
            _ if fired => {}
            Some(next) if next <= target => time.move_to(next),
            // The last turn is at the target itself, so that the wheels have caught up with the clock.
            _ if time.now() < target => time.move_to(target),
            _ => break,
        }
    }
}

/// Wakers and tasks run on it.
const DRIVER_STACK: usize = 2 << 20;

#[cfg(feature = "tokio")]
pub(crate) mod tokio_task {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use tokio::runtime::Handle;
    use tokio::sync::Notify;

    pub(crate) struct TokioDriver {
        runtime: Handle,
        started: Mutex<bool>,
        woken: Notify,
    }

    impl TokioDriver {
        pub(crate) fn new(runtime: Handle) -> Self {
            Self { runtime, started: Mutex::new(false), woken: Notify::new() }
        }

        pub(crate) fn wake(&self) {
            self.woken.notify_one();
        }

        pub(crate) fn start_or_wake<T: Expire>(&self, hub: &Arc<Hub<T>>) -> bool {
            let first = !std::mem::replace(&mut *lock(&self.started), true);
            if first {
                let ending = EndsWithRuntime(hub.clone());
                self.runtime.spawn(async move { ending.0.run_task().await });
            } else {
                self.wake();
            }
            true
        }
    }

    /// A task that is dropped by its runtime leaves its sleepers to look at the clock themselves.
    struct EndsWithRuntime<T: Expire>(Arc<Hub<T>>);

    impl<T: Expire> Drop for EndsWithRuntime<T> {
        fn drop(&mut self) {
            for value in self.0.close() {
                if value.claim() {
                    let _ = catch_unwind(AssertUnwindSafe(|| value.expire()));
                }
            }
        }
    }

    impl<T: Expire> Hub<T> {
        async fn run_task(&self) {
            let Driver::Tokio(driver) = &self.driver else { return };
            while !self.is_closed() {
                let next = self.turn(self.ticks.at_or_before(self.clock.now()));
                self.fire();
                match next.map(|tick| self.ticks.start_of(tick)) {
                    Some(Some(next)) => {
                        let deadline = tokio::time::Instant::from_std(next);
                        let _ = tokio::time::timeout_at(deadline, driver.woken.notified()).await;
                    }
                    Some(None) | None => driver.woken.notified().await,
                }
            }
        }
    }
}
