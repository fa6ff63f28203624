//! Common parts of the virtual worlds.
//!
//! They are a runtime, a waker that only sets a flag, and a report of the world that failed.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Wake;

/// A waker that sets a flag.
pub(crate) struct Flag(AtomicBool);

impl Flag {
    /// Returns a flag that is set, so that a job is polled first.
    pub(crate) fn woken() -> Arc<Self> {
        Arc::new(Self(AtomicBool::new(true)))
    }

    pub(crate) fn is_woken(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Returns true if the flag was set, and clears it.
    pub(crate) fn take(&self) -> bool {
        self.0.swap(false, Ordering::Relaxed)
    }
}

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Reports the current world if a check fails.
pub(crate) struct Told(pub(crate) String);

impl Drop for Told {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("in the world of {}", self.0);
        }
    }
}

pub(crate) fn virtual_time(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(test);
}
