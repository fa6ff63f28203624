//! Shared timers: sleeps, timeouts and intervals.
//!
//! This module owns the public handle and the choice of clock and driver. The driver sleeps until the next occupied slot, so an idle timer
//! causes no wake-ups.

mod alarm;
pub(crate) mod clock;
pub(crate) mod driver;
mod interval;
pub(crate) mod manual;
pub(crate) mod shards;
mod sleep;
mod undated;

pub use interval::{Interval, MissedTicks};
pub use sleep::Sleep;

use std::fmt;
use std::future::{Future, IntoFuture, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use clock::{Clock, Ticks, VirtualTime};
use driver::Driver;
use shards::{Armed, Shards};

use crate::TimerKey;
use crate::per_process::PerProcess;

/// A shared timer: a cheap handle to wheels turned by one driver.
///
/// `Timer` is made for deadlines that are almost always cancelled. Creating, polling once and dropping a [`Sleep`] takes one uncontended
/// lock and allocates nothing. It wakes the driver only if its deadline is earlier than all others.
///
/// The resolution is the tick: deadlines are rounded up to it, so nothing completes early. The driver ends when the last handle and the
/// last sleep are dropped.
///
/// ```
/// use std::time::Duration;
/// use wheellock_wheel::Timer;
///
/// let (timer, clock) = Timer::manual(Duration::from_millis(1));
/// let mut sleep = std::pin::pin!(timer.sleep(Duration::from_secs(30)));
/// let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
/// assert!(sleep.as_mut().poll(&mut cx).is_pending());
/// clock.advance(Duration::from_secs(30));
/// assert!(sleep.as_mut().poll(&mut cx).is_ready());
/// # use std::future::Future;
/// ```
#[derive(Clone)]
pub struct Timer {
    shards: Arc<Shards<Waker>>,
}

impl Timer {
    /// Creates a timer with a thread of its own, which the first polled sleep starts. The timer stays punctual while every worker of an
    /// async runtime is busy.
    ///
    /// `tick` is the resolution; less than 1 us counts as 1 us.
    #[must_use]
    pub fn thread(tick: Duration) -> Self {
        Self::new(Driver::thread("wheellock-timer"), Clock::System, tick)
    }

    /// Returns the process-wide timer: a thread of its own, with ticks of 1 ms. After `fork()` the child gets a new timer here, because
    /// only the forking thread continues in the child.
    #[must_use]
    pub fn global() -> &'static Self {
        static GLOBAL: PerProcess<Timer> = PerProcess::new();
        GLOBAL.get_or_init(|| Self::thread(Duration::from_millis(1)))
    }

    /// Returns this timer, or the [process-wide](Self::global) timer if another process made this one. After `fork()` the child has no
    /// thread and no runtime that drives the timers of its parent. A sleep of such a timer would never complete.
    #[must_use]
    pub fn in_this_process(&self) -> Self {
        let is_driven = self.is_manual() || self.shards.hub().process == std::process::id();
        if is_driven { self.clone() } else { Self::global().clone() }
    }

    /// Returns false if the system refused a thread to this timer the last time that the timer needed one. Sleeps then complete in time
    /// only if their tasks poll them on every turn. The sleeps keep these tasks busy. Each new sleep requests the thread again.
    #[must_use]
    pub fn is_driven(&self) -> bool {
        !self.shards.hub().driver.is_refused()
    }

    /// Creates a timer whose driver is a task of the current tokio runtime. Its clock is the runtime's, so `tokio::time::pause` and its
    /// auto-advance work. The timer is as punctual as that runtime: about 1 ms late on an idle runtime.
    ///
    /// If the runtime ends before the timer does, the [process-wide](Self::global) timer drives the sleeps from then on.
    ///
    /// # Panics
    /// Panics outside a tokio runtime. The runtime must have its time driver enabled, or the driver task panics when it starts.
    #[cfg(feature = "tokio")]
    #[must_use]
    pub fn tokio(tick: Duration) -> Self {
        let driver = driver::tokio_task::TokioDriver::new(tokio::runtime::Handle::current());
        Self::new(Driver::Tokio(std::boxed::Box::new(driver)), Clock::Tokio, tick)
    }

    /// Creates a timer for tests. Its clock moves only when the test moves it.
    #[must_use]
    pub fn manual(tick: Duration) -> (Self, ManualClock) {
        let time = Arc::new(VirtualTime::new());
        let timer = Self::new(Driver::Manual, Clock::Manual(time.clone()), tick);
        (timer.clone(), ManualClock { timer, time })
    }

    /// Creates a timer for the model checker.
    #[cfg(all(test, loom))]
    pub(crate) fn model(driver: Driver, clock: Clock, tick: Duration) -> Self {
        Self::new(driver, clock, tick)
    }

    fn new(driver: Driver, clock: Clock, tick: Duration) -> Self {
        let ticks = Ticks::new(clock.now(), tick);
        Self { shards: Shards::new(driver, clock, ticks, TICKS_PER_WHEEL, ()) }
    }

    /// Returns the current time of the timer's clock.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.shards.hub().clock.now()
    }

    /// Returns true if this is a [`manual`](Self::manual) timer. A caller with other clocks can then make them follow this timer.
    #[must_use]
    pub fn is_manual(&self) -> bool {
        matches!(self.shards.hub().clock, Clock::Manual(_))
    }

    /// Returns the length of a tick, the resolution of the timer.
    #[must_use]
    pub fn tick(&self) -> Duration {
        self.shards.hub().ticks.tick()
    }

    /// Returns a future that completes at `deadline`, or at once if the deadline has passed. This call does not read the clock.
    pub fn sleep_until(&self, deadline: Instant) -> Sleep {
        Sleep::new(self.shards.own().clone(), deadline)
    }

    /// Returns a future that completes `duration` from now. A duration that is too long for an `Instant` becomes 30 years.
    pub fn sleep(&self, duration: Duration) -> Sleep {
        self.sleep_until(interval::add(self.now(), duration))
    }

    /// Waits for `future` until `deadline`. A future that is ready at its first poll uses neither clock nor wheel.
    ///
    /// # Errors
    /// [`Elapsed`] if the deadline passes first; `future` is then dropped.
    ///
    /// # Cancel safety
    /// Dropping the returned future drops `future` and frees the timer's entry.
    pub async fn timeout_at<F: IntoFuture>(
        &self,
        deadline: Instant,
        future: F,
    ) -> Result<F::Output, Elapsed> {
        self.race(future, || deadline).await
    }

    /// Waits for `future` for at most `duration`, counted from the first poll. A future that is ready at its first poll uses neither clock
    /// nor wheel.
    ///
    /// # Errors
    /// [`Elapsed`] if the duration passes first; `future` is then dropped.
    ///
    /// # Cancel safety
    /// Dropping the returned future drops `future` and frees the timer's entry.
    pub async fn timeout<F: IntoFuture>(&self, duration: Duration, future: F) -> Result<F::Output, Elapsed> {
        self.race(future, || interval::add(self.now(), duration)).await
    }

    /// Wakes `waker` at `deadline`. A [`Sleep`] is built on this call; use it directly if your future keeps its own state. The call touches
    /// no reference count, so it costs about half as much.
    ///
    /// A caller that drops the result without [`cancel`](Self::cancel) gets a needless wake-up. The result does not keep the timer from
    /// ending.
    ///
    /// # Errors Returns the waker if the tick of `deadline` has passed, or if there is no driver. A driver is missing if the system refused
    /// a thread, or if the driver's runtime has ended. The caller must then check the clock itself.
    #[inline]
    pub fn schedule(&self, deadline: Instant, waker: Waker) -> Result<Scheduled, Waker> {
        let tick = self.shards.hub().ticks.at_or_after(deadline);
        match self.shards.own().arm_unless_due(tick, waker) {
            Armed::Pending(key) => Ok(Scheduled { key, shard: self.shards.own_index() }),
            Armed::Due(waker) | Armed::Closed(waker) | Armed::NoDriver(waker) => Err(waker),
        }
    }

    /// Cancels a wake-up that [`schedule`](Self::schedule) has armed, from any thread. Returns `None` if the waker was already woken.
    #[inline]
    pub fn cancel(&self, scheduled: Scheduled) -> Option<Waker> {
        self.shards.get(scheduled.shard)?.disarm(scheduled.key)
    }

    /// Ticks every `period`, the first time at once.
    #[must_use]
    pub fn interval(&self, period: Duration) -> Interval {
        self.interval_at(self.now(), period)
    }

    /// Ticks every `period`, the first time at `start`.
    #[must_use]
    pub fn interval_at(&self, start: Instant, period: Duration) -> Interval {
        Interval::new(self.sleep_until(start), period)
    }

    async fn race<F: IntoFuture>(
        &self,
        future: F,
        deadline: impl FnOnce() -> Instant,
    ) -> Result<F::Output, Elapsed> {
        let mut future = pin!(future.into_future());
        let (mut deadline, mut sleep) = (Some(deadline), None);
        poll_fn(|cx| {
            if let Poll::Ready(output) = future.as_mut().poll(cx) {
                return Poll::Ready(Ok(output));
            }
            if let Some(deadline) = deadline.take() {
                sleep = Some(self.sleep_until(deadline()));
            }
            match &mut sleep {
                Some(sleep) => Pin::new(sleep).poll(cx).map(|()| Err(Elapsed(()))),
                None => Poll::Pending,
            }
        })
        .await
    }
}

impl fmt::Debug for Timer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Timer").field("tick", &self.tick()).finish_non_exhaustive()
    }
}

/// Key of a waker that [`Timer::schedule`] has armed. It is valid only with the same timer.
///
/// ```
/// use std::task::Waker;
/// use std::time::Duration;
/// use wheellock_wheel::{Scheduled, Timer};
///
/// let timer = Timer::global();
/// let deadline = timer.now() + Duration::from_secs(3);
/// let scheduled: Scheduled = timer.schedule(deadline, Waker::noop().clone()).expect("three seconds are left");
/// assert!(timer.cancel(scheduled).is_some()); // the waker, which was not woken
/// assert!(timer.cancel(scheduled).is_none());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Scheduled {
    key: TimerKey,
    shard: usize,
}

/// The clock of a [`Timer::manual`] timer, which the test moves.
///
/// ```
/// use std::time::Duration;
/// use wheellock_wheel::Timer;
///
/// let (timer, clock) = Timer::manual(Duration::from_millis(1));
/// let start = timer.now();
/// clock.advance(Duration::from_secs(3_600)); // whatever was due has been woken when this returns
/// assert_eq!(clock.now() - start, Duration::from_secs(3_600));
/// ```
#[derive(Debug, Clone)]
pub struct ManualClock {
    timer: Timer,
    time: Arc<VirtualTime>,
}

impl ManualClock {
    /// Advances time by `duration` and fires the due timers on the calling thread, in order. Each fires at its own tick, and [`Timer::now`]
    /// returns that tick meanwhile.
    pub fn advance(&self, duration: Duration) {
        manual::advance(self.timer.shards.hub(), &self.time, duration);
    }

    /// Returns the timer's current time.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.time.now()
    }

    /// Returns a time before which no timer is due, or `None` if no timer is pending. Simulations jump to that time.
    #[doc(hidden)]
    #[must_use]
    pub fn next_turn(&self) -> Option<Instant> {
        self.timer.shards.hub().next_turn()
    }
}

/// The error of a timeout that ended before its future was ready.
///
/// ```
/// use std::future::Future;
/// use std::time::Duration;
/// use wheellock_wheel::{Elapsed, Timer};
///
/// let (timer, clock) = Timer::manual(Duration::from_millis(1));
/// let mut answer = std::pin::pin!(timer.timeout(Duration::from_secs(3), std::future::pending::<()>()));
/// let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
/// assert!(answer.as_mut().poll(&mut cx).is_pending());
/// clock.advance(Duration::from_secs(3));
/// let too_late = matches!(answer.as_mut().poll(&mut cx), std::task::Poll::Ready(Err(Elapsed { .. })));
/// assert!(too_late);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Elapsed(());

impl fmt::Display for Elapsed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the deadline has passed")
    }
}

impl core::error::Error for Elapsed {}

/// Ticks per wheel. At 1 ms ticks, a timer due within four seconds is placed once and never moves. At 10 ms ticks this holds within 41 s.
const TICKS_PER_WHEEL: usize = 4096;
