//! Turns of a timer whose clock is moved by hand.
//!
//! They run on the thread that moves the clock. The clock stops at each tick that has a due timer.

use std::time::{Duration, Instant};

use super::clock::VirtualTime;
use super::shards::{Expire, Hub};

/// Fires the due timers up to the new time, tick by tick, each at its own time.
pub(crate) fn advance<T: Expire>(hub: &Hub<T>, time: &VirtualTime, by: Duration) {
    let end = time.end();
    let target = time.now().checked_add(by).map_or(end, |target| target.min(end));
    // No value is due before the promised tick, so one turn at the target is enough.
    if hub.is_quiet_until(target) {
        time.move_to(target);
    }
    loop {
        let next = hub.turn(time.now());
        let fired = hub.fire();
        let next: Option<Instant> = next.and_then(|tick| hub.ticks.start_of(tick));
        match next {
            // Fired timers may have armed new timers; another turn must look for them.
            _ if fired => {}
            Some(next) if next <= target => time.move_to(next),
            // The last turn is at the target itself, so that the wheels reach the clock's time.
            _ if time.now() < target => time.move_to(target),
            _ => break,
        }
    }
}
