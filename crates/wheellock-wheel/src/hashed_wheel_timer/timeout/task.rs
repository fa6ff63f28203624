//! Tasks of timeouts, and their type-erased storage.

use std::any::Any;
use std::boxed::Box;
use std::fmt;
use std::hint::black_box;
use std::mem::needs_drop;
use std::sync::Arc;

use super::{Timeout, entry};

/// A task of a [`HashedWheelTimer`](crate::HashedWheelTimer). Every `Fn(&Timeout)` implements this trait.
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
    /// Runs once, after the delay. The timer catches a panic; the panic hook reports it.
    fn run(&self, timeout: &Timeout);

    /// Runs once if the timeout is cancelled, on the cancelling thread. The timer catches a panic.
    fn cancelled(&self, timeout: &Timeout) {
        let _ = timeout;
    }
}

impl<F: Fn(&Timeout) + Send + Sync + 'static> TimerTask for F {
    fn run(&self, timeout: &Timeout) {
        self(timeout);
    }
}

/// The shared task of a [`Timeout`]. Pass it to [`new_timeout`](crate::HashedWheelTimer::new_timeout) to run it again. Each timeout of the
/// task expires or is cancelled independently.
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

/// A task of any type.
pub(crate) type AnyTask = entry::AnyTask<dyn KeptTask>;

/// A task with fast access to its memory.
pub(crate) trait KeptTask: Send + Sync {
    fn run(&self, timeout: &Timeout);

    fn cancelled(&self, timeout: &Timeout);

    /// Reads the byte behind the task, if the task has memory.
    fn read_end(&self);
}

/// A task of a type without state, which has no memory.
struct Stateless<T>(T);

/// A task followed by one byte. The reference counts lie before the task. Reading the counts and this byte brings a small task into the
/// cache, even across cache lines. The task then runs without a wait for memory.
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
        // A box of a zero-sized type is not allocated, so this leaks no memory.
        return AnyTask::Stateless(Box::leak(Box::new(Stateless(task))));
    }
    // Reuse the inner task: otherwise each re-armed timeout would wrap the task once more.
    match (&task as &dyn Any).downcast_ref::<Task>() {
        Some(handed_on) => handed_on.0.clone(),
        None => AnyTask::Shared(Arc::new(WithEnd { task, end: 0 })),
    }
}
