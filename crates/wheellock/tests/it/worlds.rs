//! What every suite of virtual worlds runs in: a runtime, a waker that only remembers, and the name of a world that failed.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Wake;

/// Remembers that it was woken.
pub(crate) struct Flag(AtomicBool);

impl Flag {
    /// Woken already, so that a job is polled first.
    pub(crate) fn woken() -> Arc<Self> {
        Arc::new(Self(AtomicBool::new(true)))
    }

    pub(crate) fn is_woken(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Whether it was woken since the last time.
    pub(crate) fn take(&self) -> bool {
        self.0.swap(false, Ordering::Relaxed)
    }
}

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Says which world it was if a check fails.
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
