//! Locks of several names or servers.

pub(crate) mod multi_lock;
pub(crate) mod redlock;

use std::time::Duration;

use wheellock_client::Timer;

use crate::request::acquire::{Limit, Wait};

/// Pauses before the next try, at most until the wait ends.
async fn sleep_within<L: Copy + Into<Limit>>(wait: Wait<L>, pause: Duration, timer: &Timer) {
    let until = timer.now() + pause;
    timer.sleep_until(wait.deadline().map_or(until, |deadline| deadline.min(until))).await;
}

/// Returns a random time below `bound`.
fn jitter(random: fn() -> u64, bound: Duration) -> Duration {
    let nanos = u64::try_from(bound.as_nanos()).unwrap_or(u64::MAX);
    Duration::from_nanos(random() % nanos.max(1))
}
