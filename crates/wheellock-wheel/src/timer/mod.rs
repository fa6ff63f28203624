//! A timer shared by threads and tasks: sleeps, timeouts and intervals over sharded wheels.
//!
//! Owns the public handle and the choice of clock and driver. The driver sleeps until the next occupied slot, so that an
//! idle timer wakes nobody.

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

/// A shared timer: a cheap handle to wheels that one driver turns.
///
/// Made for deadlines that are almost always cancelled. Creating, polling once and dropping a [`Sleep`] touches one
/// uncontended lock, allocates nothing, and wakes nobody unless its deadline is earlier than all others.
///
/// Resolution is the tick: deadlines are rounded up to it, so that nothing completes early. The driver ends when the last
/// handle and the last sleep are gone.
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
    /// A timer with a thread of its own, which is started by the first sleep that is polled. It stays punctual while every
    /// worker of an async runtime is busy.
    ///
    /// `tick` is the resolution; less than 1 us counts as 1 us.
    #[must_use]
    pub fn thread(tick: Duration) -> Self {
        Self::new(Driver::thread("wheellock-timer"), Clock::System, tick)
    }

    /// The process-wide timer: a thread of its own, 1 ms ticks. After `fork()` the child gets one of its own here, because no thread
    /// but the forking one lives on in it.
    #[must_use]
    pub fn global() -> &'static Self {
        static GLOBAL: PerProcess<Timer> = PerProcess::new();
        GLOBAL.get_or_init(|| Self::thread(Duration::from_millis(1)))
    }

    /// Returns this timer, or the [process-wide](Self::global) one in its place if another process made this one. After `fork()` the
    /// child has no thread and no runtime that drives the timers of its parent, so a sleep of such a timer would never complete.
    #[must_use]
    pub fn in_this_process(&self) -> Self {
        let is_driven = self.is_manual() || self.shards.hub().process == std::process::id();
        if is_driven { self.clone() } else { Self::global().clone() }
    }

    /// Returns false if the system refused a thread to this timer the last time that it needed one. Sleeps then complete in time
    /// only if their tasks poll them on every turn, and they keep these tasks busy. Each new sleep asks for the thread again.
    #[must_use]
    pub fn is_driven(&self) -> bool {
        !self.shards.hub().driver.is_refused()
    }

    /// A timer whose driver is a task of the current tokio runtime and whose clock is the runtime's, so that
    /// `tokio::time::pause` and its auto-advance work. It is as punctual as that runtime: about 1 ms late on an idle one.
    ///
    /// If the runtime ends before the timer does, the [process-wide](Self::global) timer drives the sleeps from then on.
    ///
    /// # Panics
    /// Outside a tokio runtime. The runtime must have its time driver enabled, or the driver task panics when it starts.
    #[cfg(feature = "tokio")]
    #[must_use]
    pub fn tokio(tick: Duration) -> Self {
        let driver = driver::tokio_task::TokioDriver::new(tokio::runtime::Handle::current());
        Self::new(Driver::Tokio(std::boxed::Box::new(driver)), Clock::Tokio, tick)
    }

    /// A timer whose clock only moves when told to, for tests.
    #[must_use]
    pub fn manual(tick: Duration) -> (Self, ManualClock) {
        let time = Arc::new(VirtualTime::new());
        let timer = Self::new(Driver::Manual, Clock::Manual(time.clone()), tick);
        (timer.clone(), ManualClock { timer, time })
    }

    /// A timer for the model checker.
    #[cfg(all(test, loom))]
    pub(crate) fn model(driver: Driver, clock: Clock, tick: Duration) -> Self {
        Self::new(driver, clock, tick)
    }

    fn new(driver: Driver, clock: Clock, tick: Duration) -> Self {
        let ticks = Ticks::new(clock.now(), tick);
        Self { shards: Shards::new(driver, clock, ticks, TICKS_PER_WHEEL, ()) }
    }

    /// The timer's own present: that of its clock.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.shards.hub().clock.now()
    }

    /// Whether this is a [`manual`](Self::manual) timer, so that whoever keeps other clocks beside it can follow it.
    #[must_use]
    pub fn is_manual(&self) -> bool {
        matches!(self.shards.hub().clock, Clock::Manual(_))
    }

    /// The resolution.
    #[must_use]
    pub fn tick(&self) -> Duration {
        self.shards.hub().ticks.tick()
    }

    /// Completes at `deadline`, at once if it has passed. Reads no clock.
    pub fn sleep_until(&self, deadline: Instant) -> Sleep {
        Sleep::new(self.shards.own().clone(), deadline)
    }

    /// Completes `duration` from now. One that is too long for an `Instant` lasts 30 years.
    pub fn sleep(&self, duration: Duration) -> Sleep {
        self.sleep_until(interval::add(self.now(), duration))
    }

    /// Waits for `future` until `deadline`. A future that is ready at its first poll touches neither clock nor wheel.
    ///
    /// # Errors
    /// [`Elapsed`] if the deadline came first; `future` is dropped.
    ///
    /// # Cancel safety
    /// Dropping it drops `future` and frees the timer; nothing stays behind.
    pub async fn timeout_at<F: IntoFuture>(
        &self,
        deadline: Instant,
        future: F,
    ) -> Result<F::Output, Elapsed> {
        self.race(future, || deadline).await
    }

    /// Waits for `future` for at most `duration`, counted from the first poll. A future that is ready at its first poll
    /// touches neither clock nor wheel.
    ///
    /// # Errors
    /// [`Elapsed`] if the time was up first; `future` is dropped.
    ///
    /// # Cancel safety
    /// Dropping it drops `future` and frees the timer; nothing stays behind.
    pub async fn timeout<F: IntoFuture>(&self, duration: Duration, future: F) -> Result<F::Output, Elapsed> {
        self.race(future, || interval::add(self.now(), duration)).await
    }

    /// Wakes `waker` at `deadline`: what a [`Sleep`] is made of, for those who keep their own state. It touches no reference count, so
    /// it costs about half.
    ///
    /// Whoever drops the answer without [`cancel`](Self::cancel) is woken for nothing. It does not keep the timer from ending.
    ///
    /// # Errors
    /// Gives the waker back if the tick of `deadline` has passed, or if there is no driver (the system refused a thread, or its
    /// runtime has ended), and then the caller must look at the clock himself.
    #[inline]
    pub fn schedule(&self, deadline: Instant, waker: Waker) -> Result<Scheduled, Waker> {
        let tick = self.shards.hub().ticks.at_or_after(deadline);
        match self.shards.own().arm_unless_due(tick, waker) {
            Armed::Pending(key) => Ok(Scheduled { key, shard: self.shards.own_index() }),
            Armed::Due(waker) | Armed::Closed(waker) | Armed::NoDriver(waker) => Err(waker),
        }
    }

    /// Takes back what [`schedule`](Self::schedule) has armed, from any thread; `None` if it has been woken.
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

/// Names a waker that [`Timer::schedule`] has armed. Only of use with the same timer.
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

/// Moves the time of a [`Timer::manual`].
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
    /// Moves time on by `duration`, firing what becomes due on the calling thread: in order, and each at its own tick, which
    /// is what [`Timer::now`] answers meanwhile.
    pub fn advance(&self, duration: Duration) {
        manual::advance(self.timer.shards.hub(), &self.time, duration);
    }

    /// The present of the timer.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.time.now()
    }
}

/// A timeout's time was up before its future was ready.
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

/// At 1 ms ticks, whatever is due within four seconds is placed once and never moves; at 10 ms within 41 s.
const TICKS_PER_WHEEL: usize = 4096;
