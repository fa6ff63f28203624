//! Lazily made values, one per process.
//!
//! A process that `fork()` made gets its own value. No value is ever dropped.

use std::boxed::Box;
use std::sync::OnceLock;

/// A value that each process makes on first use, for a `static` that owns a thread.
///
/// `fork()` copies the value but not the thread. The child therefore makes a new value and leaks the value of its parent. Readers take no
/// lock. A thread of the parent might hold that lock at the moment of the fork. No thread of the child would release it.
///
/// ```
/// use wheellock_wheel::PerProcess;
///
/// static NAME: PerProcess<String> = PerProcess::new();
/// let name = NAME.get_or_init(|| format!("worker {}", std::process::id()));
/// assert_eq!(NAME.get_or_init(String::new), name);
/// ```
#[doc(hidden)]
#[derive(Debug)]
pub struct PerProcess<T>(OnceLock<Box<Made<T>>>);

#[derive(Debug)]
struct Made<T> {
    process: u32,
    value: T,
    /// The value of a child of `process`.
    next: PerProcess<T>,
}

impl<T> PerProcess<T> {
    /// Creates an empty cell.
    #[must_use]
    pub const fn new() -> Self {
        Self(OnceLock::new())
    }

    /// Returns the value of this process. The first call makes the value with `make`.
    pub fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
        self.get_or_init_in(std::process::id(), make)
    }

    fn get_or_init_in(&self, process: u32, make: impl FnOnce() -> T) -> &T {
        match self.0.get() {
            Some(made) if made.process == process => &made.value,
            Some(made) => made.next.get_or_init_in(process, make),
            // Only threads of this process fill the cell.
            None => {
                &self.0.get_or_init(|| Box::new(Made { process, value: make(), next: Self::new() })).value
            }
        }
    }
}

impl<T> Default for PerProcess<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_is_made_once_per_process() {
        let cell = PerProcess::new();
        assert_eq!(cell.get_or_init_in(1, || "parent"), &"parent");
        assert_eq!(cell.get_or_init_in(1, || unreachable!()), &"parent");
        assert_eq!(cell.get_or_init_in(2, || "child"), &"child");
        assert_eq!(cell.get_or_init_in(3, || "grandchild"), &"grandchild");
        assert_eq!(cell.get_or_init_in(2, || unreachable!()), &"child");
    }
}
