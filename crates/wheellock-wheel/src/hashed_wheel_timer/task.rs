//! A task of any type as a timeout keeps it.

use std::any::Any;
use std::boxed::Box;
use std::hint::black_box;
use std::mem::needs_drop;
use std::sync::Arc;

use super::{AnyTask, Task, Timeout, TimerTask};

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
pub(super) fn any_task<T: TimerTask>(task: T) -> AnyTask {
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
