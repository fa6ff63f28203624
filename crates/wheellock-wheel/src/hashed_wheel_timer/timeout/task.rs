//! What a timeout runs, and how one of any type is kept.

use std::any::Any;
use std::boxed::Box;
use std::fmt;
use std::hint::black_box;
use std::mem::needs_drop;
use std::sync::Arc;

use super::{Timeout, entry};

/// What a [`HashedWheelTimer`](crate::HashedWheelTimer) runs. Implemented by every `Fn(&Timeout)`.
///
/// ```
/// use std::time::Duration;
/// use wheellock_wheel::{HashedWheelTimer, Timeout, TimerTask};
///
/// struct Request(u64);
///
/// impl TimerTask for Request {
///     fn run(&self, _: &Timeout) {
///         println!("no reply to {}", self.0);
///     }
///
///     fn cancelled(&self, _: &Timeout) {
///         println!("{} is answered", self.0);
///     }
/// }
///
/// let timer = HashedWheelTimer::new();
/// let timeout = timer.new_timeout(Request(7), Duration::from_secs(3))?;
/// timeout.cancel(); // prints "7 is answered"
/// # Ok::<(), wheellock_wheel::NewTimeoutError>(())
/// ```
pub trait TimerTask: Any + Send + Sync {
    /// Runs once, when the delay is over. A panic is contained and reported by the panic hook.
    fn run(&self, timeout: &Timeout);

    /// Runs once if the timeout is cancelled, on the thread that cancels. A panic is contained.
    fn cancelled(&self, timeout: &Timeout) {
        let _ = timeout;
    }
}

impl<F: Fn(&Timeout) + Send + Sync + 'static> TimerTask for F {
    fn run(&self, timeout: &Timeout) {
        self(timeout);
    }
}

/// The task of a [`Timeout`], shared with it. Hand it to [`new_timeout`](crate::HashedWheelTimer::new_timeout) to have it run once
/// more; each of its timeouts expires or is cancelled by itself.
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU32, Ordering};
/// use std::time::Duration;
/// use wheellock_wheel::{HashedWheelTimer, Timeout};
///
/// let (timer, ticker) = HashedWheelTimer::builder().build_manual()?;
/// let beats = Arc::new(AtomicU32::new(0));
/// let counted = Arc::clone(&beats);
/// let heartbeat = move |timeout: &Timeout| {
///     counted.fetch_add(1, Ordering::Relaxed);
///     if let Some(timer) = timeout.timer() {
///         drop(timer.new_timeout(timeout.task(), Duration::from_secs(1)));
///     }
/// };
/// timer.new_timeout(heartbeat, Duration::from_secs(1))?;
/// for _ in 0..3 {
///     ticker.advance(Duration::from_secs(1));
/// }
/// assert_eq!(beats.load(Ordering::Relaxed), 3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Task(pub(super) AnyTask);

impl TimerTask for Task {
    fn run(&self, timeout: &Timeout) {
        self.0.get().run(timeout);
    }

    fn cancelled(&self, timeout: &Timeout) {
        self.0.get().cancelled(timeout);
    }
}

impl fmt::Debug for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task").finish_non_exhaustive()
    }
}

/// What stands for tasks of any type.
pub(crate) type AnyTask = entry::AnyTask<dyn KeptTask>;

/// A task, and what makes it quick to reach.
pub(crate) trait KeptTask: Send + Sync {
    fn run(&self, timeout: &Timeout);

    fn cancelled(&self, timeout: &Timeout);

    /// Reads what is behind it in memory, if it is anywhere.
    fn read_end(&self);
}

/// Of a type without state: it is nowhere in memory.
struct Stateless<T>(T);

/// With a byte behind it. Who reads that byte and the counts of the task's owners, which are before it, has the whole of a small one in the
/// cache, wherever it lies across lines. Running it then waits for nothing.
#[repr(C)]
struct WithEnd<T> {
    task: T,
    end: u8,
}

impl<T: TimerTask> KeptTask for Stateless<T> {
    fn run(&self, timeout: &Timeout) {
        self.0.run(timeout);
    }

    fn cancelled(&self, timeout: &Timeout) {
        self.0.cancelled(timeout);
    }

    fn read_end(&self) {}
}

impl<T: TimerTask> KeptTask for WithEnd<T> {
    fn run(&self, timeout: &Timeout) {
        self.task.run(timeout);
    }

    fn cancelled(&self, timeout: &Timeout) {
        self.task.cancelled(timeout);
    }

    fn read_end(&self) {
        black_box(self.end);
    }
}

#[inline]
pub(crate) fn any_task<T: TimerTask>(task: T) -> AnyTask {
    if size_of::<T>() == 0 && !needs_drop::<T>() {
        // A box of nothing is not allocated, so nothing is leaked.
        return AnyTask::Stateless(Box::leak(Box::new(Stateless(task))));
    }
    // One that is handed on again and again is still one task.
    match (&task as &dyn Any).downcast_ref::<Task>() {
        Some(handed_on) => handed_on.0.clone(),
        None => AnyTask::Shared(Arc::new(WithEnd { task, end: 0 })),
    }
}
