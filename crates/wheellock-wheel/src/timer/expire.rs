//! What a timer fires: values that can be claimed once, and run. Owns the demands on such a value, and a waker's answers to
//! them.

use std::task::Waker;

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
