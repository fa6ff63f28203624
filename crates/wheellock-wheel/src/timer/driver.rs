//! Drivers: a thread, a tokio task, or the caller.
//!
//! A driver turns the wheels: it sleeps until the next turn or until it is woken. The turn itself is a closure that returns the time of the
//! next turn. The driver does not know slots or deadlines.

use std::string::String;
use std::time::Instant;

use super::clock::Clock;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, Parker, Unparker, lock, spawn};

pub(crate) enum Driver {
    Thread(ThreadDriver),
    #[cfg(feature = "tokio")]
    Tokio(std::boxed::Box<tokio_task::TokioDriver>),
    /// The code that moves the clock turns the wheels.
    Manual,
}

/// The next action of a driver after a turn.
pub(crate) enum Next {
    /// Turn again at this time, or when woken.
    At(Instant),
    /// Turn again when woken.
    WhenWoken,
    /// End: the timer has ended.
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

    /// Creates a driver for tests whose thread is refused `refusals` times.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn refused(name: &str, refusals: u32) -> Self {
        Self::Thread(ThreadDriver {
            name: name.into(),
            thread: Mutex::new(None),
            is_refused: AtomicBool::new(false),
            refusals: Mutex::new(refusals),
        })
    }

    /// Makes `own`, a thread of a model, the driver's thread.
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

    /// Wakes a driver that was started. Does nothing otherwise.
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

/// A driver thread. The first timer that needs it starts it.
pub(crate) struct ThreadDriver {
    name: String,
    thread: Mutex<Option<Unparker>>,
    /// True if the system refused the last thread that the timer needed.
    is_refused: AtomicBool,
    #[cfg(test)]
    refusals: Mutex<u32>,
}

impl ThreadDriver {
    /// Wakes the thread, or starts it with the turns of `turns`. Returns false if the system refuses a thread.
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

/// Stack size of the driver's thread, which runs wakers and tasks.
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

        /// Wakes the task, or starts it with the turns of `turns`. If the runtime ends first, it drops these turns.
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
