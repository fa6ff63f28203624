//! Who turns the wheels: a thread of its own, a task of a tokio runtime, or the caller.
//!
//! Owns sleeping until the next turn and being woken. What a turn does is its maker's: a closure that says when the next
//! one is due. Knows nothing of slots or deadlines.

use std::string::String;
use std::time::Instant;

use super::clock::Clock;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, Parker, Unparker, lock, spawn};

pub(crate) enum Driver {
    Thread(ThreadDriver),
    #[cfg(feature = "tokio")]
    Tokio(std::boxed::Box<tokio_task::TokioDriver>),
    /// Turned by whoever moves the clock.
    Manual,
}

/// What a turn leaves to be done.
pub(crate) enum Next {
    /// Another turn at this time, or when the driver is woken.
    At(Instant),
    /// Another turn when the driver is woken.
    WhenWoken,
    /// Nothing ever again: the timer has ended.
    Never,
}

impl Driver {
    pub(crate) fn thread(name: &str) -> Self {
        Self::Thread(ThreadDriver {
            name: name.into(),
            thread: Mutex::new(None),
            is_refused: AtomicBool::new(false),
            #[cfg(test)]
            refusals: Mutex::new(0),
        })
    }

    /// One that is refused its thread so often.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn refused(name: &str, refusals: u32) -> Self {
        Self::Thread(ThreadDriver {
            name: name.into(),
            thread: Mutex::new(None),
            is_refused: AtomicBool::new(false),
            refusals: Mutex::new(refusals),
        })
    }

    /// Makes a thread of a model the driver's.
    #[cfg(all(test, loom))]
    pub(crate) fn adopt(&self, own: Unparker) {
        if let Self::Thread(driver) = self {
            *lock(&driver.thread) = Some(own);
        }
    }

    /// Returns true if the system refused the driver's thread the last time that a timer needed it.
    pub(crate) fn is_refused(&self) -> bool {
        matches!(self, Self::Thread(driver) if driver.is_refused.load(Ordering::Relaxed))
    }

    /// Wakes a driver that has been started; nothing to do for one that has not.
    pub(crate) fn wake(&self) {
        match self {
            Self::Thread(driver) => {
                if let Some(thread) = &*lock(&driver.thread) {
                    thread.unpark();
                }
            }
            #[cfg(feature = "tokio")]
            Self::Tokio(driver) => driver.wake(),
            Self::Manual => {}
        }
    }
}

/// A thread that is started by the first timer that needs it.
pub(crate) struct ThreadDriver {
    name: String,
    thread: Mutex<Option<Unparker>>,
    /// True if the system refused the last thread that the timer needed.
    is_refused: AtomicBool,
    #[cfg(test)]
    refusals: Mutex<u32>,
}

impl ThreadDriver {
    /// Wakes the thread, which is started if it has not been: then it runs the turns of `turns`. False if the system refuses
    /// a thread.
    pub(crate) fn start_or_wake<F>(&self, clock: &Clock, turns: impl FnOnce() -> F) -> bool
    where
        F: FnMut() -> Next + Send + 'static,
    {
        let mut thread = lock(&self.thread);
        if let Some(thread) = &*thread {
            thread.unpark();
            return true;
        }
        #[cfg(test)]
        {
            let mut refusals = lock(&self.refusals);
            if *refusals > 0 {
                *refusals -= 1;
                self.is_refused.store(true, Ordering::Relaxed);
                return false;
            }
        }
        let (clock, turn) = (clock.clone(), turns());
        *thread = spawn(self.name.clone(), DRIVER_STACK, move |parker| run(&parker, &clock, turn)).ok();
        self.is_refused.store(thread.is_none(), Ordering::Relaxed);
        thread.is_some()
    }
}

fn run(parker: &Parker, clock: &Clock, mut turn: impl FnMut() -> Next) {
    loop {
        match turn() {
            Next::At(next) => {
                let left = next.saturating_duration_since(clock.now());
                if !left.is_zero() {
                    parker.park(Some(left));
                }
            }
            Next::WhenWoken => parker.park(None),
            Next::Never => return,
        }
    }
}

/// Wakers and tasks run on it.
const DRIVER_STACK: usize = 2 << 20;

#[cfg(feature = "tokio")]
pub(crate) mod tokio_task {
    use std::sync::Arc;

    use tokio::runtime::Handle;
    use tokio::sync::Notify;

    use crate::sync::{Mutex, lock};
    use crate::timer::driver::Next;

    pub(crate) struct TokioDriver {
        runtime: Handle,
        started: Mutex<bool>,
        woken: Arc<Notify>,
    }

    impl TokioDriver {
        pub(crate) fn new(runtime: Handle) -> Self {
            Self { runtime, started: Mutex::new(false), woken: Arc::new(Notify::new()) }
        }

        pub(crate) fn wake(&self) {
            self.woken.notify_one();
        }

        /// Wakes the task, which is started if it has not been: then it runs the turns of `turns`. They are dropped with the
        /// runtime, if that ends first.
        pub(crate) fn start_or_wake<F>(&self, turns: impl FnOnce() -> F) -> bool
        where
            F: FnMut() -> Next + Send + 'static,
        {
            let first = !std::mem::replace(&mut *lock(&self.started), true);
            if first {
                self.runtime.spawn(run(self.woken.clone(), turns()));
            } else {
                self.wake();
            }
            true
        }
    }

    async fn run(woken: Arc<Notify>, mut turn: impl FnMut() -> Next) {
        loop {
            match turn() {
                Next::At(next) => {
                    let deadline = tokio::time::Instant::from_std(next);
                    let _ = tokio::time::timeout_at(deadline, woken.notified()).await;
                }
                Next::WhenWoken => woken.notified().await,
                Next::Never => return,
            }
        }
    }
}
