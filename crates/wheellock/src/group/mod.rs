//! Locks of several names or servers.

pub(crate) mod multi_lock;
pub(crate) mod redlock;

use std::time::{Duration, Instant};

use wheellock_client::Timer;

use crate::base::attempt::Attempt;
use crate::lock::Lock;
use crate::request::acquire::Wait;

/// Returns the result of a wait that ended while another holder had `lock`.
fn is_held<G>(lock: &str, lease_left: Option<Duration>) -> Attempt<G> {
    Attempt::Held { lock: lock.to_owned(), lease_left }
}

/// Pauses before the next try, at most until the wait ends.
async fn sleep_within(wait: Wait, pause: Duration, timer: &Timer) {
    let until = timer.now() + pause;
    timer.sleep_until(wait.deadline().map_or(until, |deadline| deadline.min(until))).await;
}

/// Returns the deadline for the replies of `locks`. The caller has `waited` for this long, and `None` means that a holder is known. The
/// first requests get the time for a reply, however short the wait. If fewer than `wanted` of the servers were ever connected, the response
/// timeout decides.
fn answer_by(locks: &[Lock], wanted: usize, wait: Wait, waited: Option<Duration>) -> Option<Instant> {
    let Some(waited) = waited else { return wait.deadline() };
    let firsts = locks.iter().filter_map(|lock| lock.first_answer_by(waited, wait));
    let firsts: Vec<_> = firsts.collect();
    firsts.iter().copied().max().filter(|_| firsts.len() >= wanted)
}

/// Returns a random time below `bound`.
fn jitter(random: fn() -> u64, bound: Duration) -> Duration {
    let nanos = u64::try_from(bound.as_nanos()).unwrap_or(u64::MAX);
    Duration::from_nanos(random() % nanos.max(1))
}
