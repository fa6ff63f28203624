//! A waker as what a timer fires.

use std::sync::Arc;
use std::task::Waker;

use super::shards::{Expire, Shard, Stored};
use crate::TimerKey;

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
