//! Futures that complete at a deadline.
//!
//! This module owns the registration of a sleep: it begins at the first poll and ends on drop. It also implements firing a waker. It does
//! not know drivers.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use super::shards::{Armed, Expire, Shard, Stored};
use crate::TimerKey;

/// A future that completes at its deadline. It never completes earlier. It completes less than one tick of its [`Timer`](super::Timer),
/// plus the driver's own latency, after the deadline.
///
/// [`Timer::sleep`](super::Timer::sleep) and [`Timer::sleep_until`](super::Timer::sleep_until) create it. The first poll registers the
/// sleep. Dropping it removes the registration and frees its memory at once.
///
/// ```
/// use std::time::Duration;
/// use wheellock_wheel::{Sleep, Timer};
///
/// # async fn example() {
/// let mut patience: Sleep = Timer::global().sleep(Duration::from_secs(3));
/// patience.reset(patience.deadline() + Duration::from_secs(3)); // there was news
/// patience.await;
/// # }
/// ```
#[must_use = "futures do nothing unless polled"]
pub struct Sleep {
    shard: Arc<Shard<Waker>>,
    deadline: Instant,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Unpolled,
    Pending(TimerKey),
    /// No driver fires this sleep: every poll reads the clock and wakes its task at once.
    Alone,
    Elapsed,
}

impl Sleep {
    pub(crate) fn new(shard: Arc<Shard<Waker>>, deadline: Instant) -> Self {
        Self { shard, deadline, state: State::Unpolled }
    }

    /// Returns the current time of the sleep's timer.
    pub(crate) fn now(&self) -> Instant {
        self.shard.hub().clock.now()
    }

    /// Returns the deadline.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Returns true once the sleep has completed. The method does not read the clock: a sleep that was never polled has not elapsed.
    #[must_use]
    pub fn is_elapsed(&self) -> bool {
        match self.state {
            State::Elapsed => true,
            State::Pending(key) => self.shard.pending(key, |_| ()).is_none() && !self.shard.hub().is_closed(),
            State::Unpolled | State::Alone => false,
        }
    }

    /// Moves the deadline. A completed sleep must be polled again to be woken. A pending sleep keeps the waker of its last poll.
    ///
    /// Postponing a pending deadline costs a few nanoseconds: the new deadline is only recorded until the old one is reached.
    pub fn reset(&mut self, deadline: Instant) {
        self.deadline = deadline;
        self.state = match self.state {
            State::Pending(key) if self.shard.rearm(key, self.shard.hub().ticks.at_or_after(deadline)) => {
                return;
            }
            _ => State::Unpolled,
        };
    }

    /// Returns false if no driver will wake this sleep's task, because the system refused a thread to the timer. Such a sleep wakes its
    /// task at every poll. It completes in time only if its task polls it on every turn.
    #[must_use]
    pub fn is_driven(&self) -> bool {
        self.state != State::Alone
    }

    /// Moves the sleep to the process-wide timer, because its own timer has ended with its runtime. The process-wide timer has a thread, so
    /// the sleep keeps no task busy.
    #[cold]
    fn poll_elsewhere(&mut self, cx: &Context<'_>) -> Poll<()> {
        if self.now() >= self.deadline {
            self.state = State::Elapsed;
            return Poll::Ready(());
        }
        #[cfg(not(loom))]
        {
            let global = super::Timer::global().shards.own();
            if !std::ptr::eq(&raw const **global.hub(), &raw const **self.shard.hub()) {
                self.shard = global.clone();
                return self.poll_first(cx);
            }
        }
        self.poll_alone(cx)
    }

    #[cold]
    fn poll_alone(&mut self, cx: &Context<'_>) -> Poll<()> {
        if self.now() >= self.deadline {
            self.state = State::Elapsed;
            return Poll::Ready(());
        }
        self.state = State::Alone;
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn poll_first(&mut self, cx: &Context<'_>) -> Poll<()> {
        let tick = self.shard.hub().ticks.at_or_after(self.deadline);
        // Clone before taking the lock: cloning a waker runs foreign code.
        match self.shard.arm_unless_due(tick, cx.waker().clone()) {
            Armed::Pending(key) => {
                self.state = State::Pending(key);
                Poll::Pending
            }
            Armed::Due(_) => {
                self.state = State::Elapsed;
                Poll::Ready(())
            }
            Armed::Closed(_) => self.poll_elsewhere(cx),
            Armed::NoDriver(_) => self.poll_alone(cx),
        }
    }

    fn poll_pending(&mut self, cx: &Context<'_>, key: TimerKey) -> Poll<()> {
        match self.shard.pending(key, |waker| waker.will_wake(cx.waker())) {
            Some(true) => return Poll::Pending,
            Some(false) => {
                let mut waker = cx.waker().clone();
                let swapped = self.shard.pending(key, |old| std::mem::swap(old, &mut waker)).is_some();
                drop(waker);
                if swapped {
                    return Poll::Pending;
                }
            }
            None => {}
        }
        if self.shard.hub().is_closed() {
            return self.poll_elsewhere(cx);
        }
        self.state = State::Elapsed;
        Poll::Ready(())
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        match self.state {
            State::Unpolled => self.poll_first(cx),
            State::Pending(key) => self.poll_pending(cx, key),
            State::Alone => self.poll_alone(cx),
            State::Elapsed => Poll::Ready(()),
        }
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let State::Pending(key) = self.state {
            // The statement drops the returned waker only after the lock is released.
            drop(self.shard.disarm(key));
        }
    }
}

impl fmt::Debug for Sleep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sleep").field("deadline", &self.deadline).field("state", &self.state).finish()
    }
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

    fn take_back(stored: &mut Stored<Self>, key: TimerKey) -> Option<Self> {
        stored.wheel.remove(key)
    }

    // The wheel stores the waker itself, so there is no memory to prefetch.
    fn fetch(&self) {}

    fn expire(taken: Self, _: &Arc<Shard<Self>>, _: TimerKey, _: u64) {
        taken.wake();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::Duration;

    use super::super::Timer;
    use super::super::clock::Clock;
    use super::super::driver::Driver;
    use super::*;

    #[test]
    fn refused_thread_is_reported_and_retried() {
        let tick = Duration::from_millis(1);
        let timer = Timer::new(Driver::refused("refused", 1), Clock::System, tick);
        let mut sleep = timer.sleep(50 * tick);
        let mut cx = Context::from_waker(Waker::noop());
        assert!(Pin::new(&mut sleep).poll(&mut cx).is_pending());
        assert!(!sleep.is_driven() && !timer.is_driven());
        while Pin::new(&mut sleep).poll(&mut cx).is_pending() {}
        assert!(timer.now() >= sleep.deadline());
        sleep.reset(timer.now() + 50 * tick);
        assert!(Pin::new(&mut sleep).poll(&mut cx).is_pending());
        assert!(sleep.is_driven() && timer.is_driven(), "the system grants a thread now");
    }

    #[test]
    fn timer_of_other_process_is_replaced() {
        let (timer, _) = Timer::manual(Duration::from_millis(1));
        assert!(timer.in_this_process().is_manual());
        let own = Timer::thread(Duration::from_millis(7));
        assert_eq!(own.in_this_process().tick(), own.tick());
    }
}
