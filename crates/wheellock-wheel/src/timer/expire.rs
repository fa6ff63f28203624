//! What a timer fires: values that leave their wheel once, and then run. Owns the demands on such a value, and a waker's
//! answers to them.

use std::sync::Arc;
use std::task::Waker;

use super::shards::{Shard, Stored};
use crate::TimerKey;

/// A value that a timer fires.
pub(crate) trait Expire: Send + Sized + 'static {
    /// What all values of one timer share.
    type Shared: Send + Sync;

    /// What is left of a value that has been taken out, to be run or given back outside the lock.
    type Taken: Send;

    /// Whether a pending value keeps its timer from ending. It is let go when nobody is left to move a manual clock.
    const KEEPS_TIMER: bool;

    /// Takes a pending value out, to be fired. `None` if somebody else was first. Runs under the shard's lock.
    fn take_due(stored: &mut Stored<Self>, key: TimerKey) -> Option<Self::Taken>;

    /// Takes a pending value out because its timer ends. `None` if somebody else was first. Runs under the shard's lock.
    fn take_left(stored: &mut Stored<Self>, key: TimerKey) -> Option<Self::Taken>;

    /// Reads a byte of what it points to, if it can. For a batch in a row the waits for memory overlap; later, one by one, they would
    /// add up, and with a million timers they are most of the cost.
    fn fetch(&self) {}

    /// Runs outside every lock; may panic.
    fn expire(taken: Self::Taken, shard: &Arc<Shard<Self>>, key: TimerKey, tick: u64);
}

impl Expire for Waker {
    type Shared = ();

    type Taken = Self;

    const KEEPS_TIMER: bool = false;

    fn take_due(stored: &mut Stored<Self>, key: TimerKey) -> Option<Self> {
        stored.wheel.remove(key)
    }

    fn take_left(stored: &mut Stored<Self>, key: TimerKey) -> Option<Self> {
        stored.wheel.remove(key)
    }

    fn expire(taken: Self, _: &Arc<Shard<Self>>, _: TimerKey, _: u64) {
        taken.wake();
    }
}
