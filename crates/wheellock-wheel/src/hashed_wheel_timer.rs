//! Callbacks after a delay, with the semantics of Netty's `HashedWheelTimer`.
//!
//! Owns the life of the timer: running, then stopped. That of a timeout is in [`timeout`]; the wheel, the thread and the clock are those
//! of [`crate::timer`].

mod entry;
mod errors;
mod timeout;

use std::fmt;
use std::string::String;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::vec::Vec;

use entry::{CANCELLED, PENDING};
pub use errors::{BuildError, NewTimeoutError, StopError};
use timeout::{Entry, Executor, Shared, any_task};
pub use timeout::{Job, Task, Timeout, TimerTask};

use crate::timer::clock::{Clock, VirtualTime};
use crate::timer::driver::Driver;
use crate::timer::manual;
use crate::timer::shards::{Armed, Left, Shards};

/// Runs tasks after a delay; most are cancelled before. A cheap handle to one timer: clones share it.
///
/// The semantics are Netty's: one thread, started by the first timeout; deadlines rounded up to the tick, so that nothing runs
/// early; tasks that panic are contained; [`stop`](Self::stop) returns what has not run. What is different:
///
/// | Netty | here |
/// |---|---|
/// | wakes every tick, for ever | sleeps until the next timeout; an idle timer never wakes |
/// | lateness is (0, 1 tick] | [0, 1 tick): a deadline that is a multiple of the tick is on time |
/// | a cancelled timeout keeps its memory until the next tick | freed by `cancel` |
/// | `cancelled` runs on the worker, at the next tick | on the thread that cancels, before `cancel` returns |
/// | `stop` interrupts and waits for the running task | does not wait: when it returns, no further task starts |
/// | `stop` leaves `pendingTimeouts` as it was, and does not call `cancelled` | counts down, and calls it |
/// | a timeout created while `stop` runs may be lost | it is an error, or it is returned by `stop` |
/// | far delays are touched once per revolution | at most once per level of the wheel |
/// | an unstopped timer is a leak | its thread ends when the last handle is gone and nothing is pending |
///
/// ```
/// use std::time::Duration;
/// use wheellock_wheel::{HashedWheelTimer, Timeout};
///
/// let timer = HashedWheelTimer::new();
/// let timeout = timer.new_timeout(|_: &Timeout| println!("no reply"), Duration::from_secs(3))?;
/// assert_eq!(timer.pending_timeouts(), 1);
/// assert!(timeout.cancel());
/// assert_eq!(timer.pending_timeouts(), 0);
/// # Ok::<(), wheellock_wheel::NewTimeoutError>(())
/// ```
#[derive(Clone)]
pub struct HashedWheelTimer {
    shards: Arc<Shards<Entry>>,
}

impl HashedWheelTimer {
    /// A timer with Netty's defaults: 100 ms ticks, 512 of them per wheel, any number of pending timeouts.
    #[must_use]
    pub fn new() -> Self {
        Self::builder().assemble(Driver::thread(THREAD_NAME), Clock::System)
    }

    /// A timer with other than the default settings.
    pub fn builder() -> HashedWheelTimerBuilder {
        HashedWheelTimerBuilder {
            tick: Duration::from_millis(100),
            ticks_per_wheel: 512,
            max_pending_timeouts: 0,
            thread_name: THREAD_NAME.into(),
            executor: None,
        }
    }

    /// Starts the timer's thread now. There is no need to: the first timeout does.
    ///
    /// # Errors
    /// [`NewTimeoutError::Stopped`] after [`stop`](Self::stop), [`NewTimeoutError::NoThread`] if the system refuses a thread.
    pub fn start(&self) -> Result<(), NewTimeoutError> {
        let hub = self.shards.hub();
        if hub.is_closed() {
            return Err(NewTimeoutError::Stopped);
        }
        if hub.start_or_wake() { Ok(()) } else { Err(NewTimeoutError::NoThread) }
    }

    /// Runs `task` on the timer's thread (or its executor) after `delay`, less than a tick late. A delay of zero means the next tick; one
    /// too long to count means never.
    ///
    /// # Errors
    /// [`NewTimeoutError::Full`] with [`max_pending_timeouts`](HashedWheelTimerBuilder::max_pending_timeouts) pending,
    /// [`NewTimeoutError::Stopped`] after [`stop`](Self::stop), [`NewTimeoutError::NoThread`] if the system refuses a thread.
    pub fn new_timeout(&self, task: impl TimerTask, delay: Duration) -> Result<Timeout, NewTimeoutError> {
        let now = self.shards.hub().clock.now();
        self.schedule(task, now.checked_add(delay))
    }

    /// Runs `task` at `deadline`. Like [`new_timeout`](Self::new_timeout), but reads no clock.
    ///
    /// # Errors
    /// As [`new_timeout`](Self::new_timeout).
    pub fn new_timeout_at(
        &self,
        task: impl TimerTask,
        deadline: Instant,
    ) -> Result<Timeout, NewTimeoutError> {
        self.schedule(task, Some(deadline))
    }

    /// Timeouts that have neither expired nor been cancelled. Exact at every moment: one that is being run has expired.
    #[must_use]
    pub fn pending_timeouts(&self) -> usize {
        self.shards.hub().pending()
    }

    /// Stops the timer for good, cancels every pending timeout and returns those. When it returns, no further task starts; one that is
    /// running goes on. Empty if it was stopped before.
    ///
    /// # Errors
    /// [`StopError`] when called by a task on the timer's own thread, as in Netty. A task on an executor may.
    pub fn stop(&self) -> Result<Vec<Timeout>, StopError> {
        let hub = self.shards.hub();
        if hub.fires_here() {
            return Err(StopError(()));
        }
        let mut unprocessed = Vec::new();
        for Left { shard, key, deadline, taken: task } in hub.close() {
            hub.shared.leave();
            let timeout = Timeout::of(&shard, key, deadline, task, CANCELLED);
            timeout.tell_cancelled();
            unprocessed.push(timeout);
        }
        Ok(unprocessed)
    }

    /// True after [`stop`](Self::stop).
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.shards.hub().is_closed()
    }

    /// The length of a tick.
    #[must_use]
    pub fn tick_duration(&self) -> Duration {
        self.shards.hub().ticks.tick()
    }

    /// Ticks per wheel, after rounding up to a power of two.
    #[must_use]
    pub fn ticks_per_wheel(&self) -> usize {
        self.shards.hub().ticks_per_wheel
    }

    #[cfg(test)]
    pub(crate) fn entries(&self) -> usize {
        self.shards.hub().entries()
    }

    fn schedule<T: TimerTask>(&self, task: T, deadline: Option<Instant>) -> Result<Timeout, NewTimeoutError> {
        let hub = self.shards.hub();
        let tick = deadline.map_or(crate::timer::clock::NEVER, |deadline| hub.ticks.at_or_after(deadline));
        hub.shared.enter()?;
        let shard = self.shards.own();
        let task = any_task(task);
        let key = match shard.arm(tick, Entry::new(&task)) {
            Armed::Pending(key) => key,
            // An overdue one is armed for the next tick.
            Armed::Due(_) | Armed::Closed(_) => return Err(hub.shared.refuse(NewTimeoutError::Stopped)),
            Armed::NoDriver(_) => return Err(hub.shared.refuse(NewTimeoutError::NoThread)),
        };
        Ok(Timeout::of(shard, key, tick, task, PENDING))
    }
}

impl Timeout {
    /// The timer; none once every handle to it is gone. What is pending then still runs.
    #[must_use]
    pub fn timer(&self) -> Option<HashedWheelTimer> {
        self.shards().map(|shards| HashedWheelTimer { shards })
    }
}

impl Default for HashedWheelTimer {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for HashedWheelTimer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HashedWheelTimer")
            .field("tick_duration", &self.tick_duration())
            .field("ticks_per_wheel", &self.ticks_per_wheel())
            .field("pending_timeouts", &self.pending_timeouts())
            .field("stopped", &self.is_stopped())
            .finish()
    }
}

/// Settings of a [`HashedWheelTimer`].
///
/// ```
/// use std::time::Duration;
/// use wheellock_wheel::HashedWheelTimer;
///
/// let timer = HashedWheelTimer::builder()
///     .tick_duration(Duration::from_millis(10))
///     .max_pending_timeouts(100_000)
///     .thread_name("requests")
///     .build()?;
/// assert_eq!(timer.tick_duration(), Duration::from_millis(10));
/// # Ok::<(), wheellock_wheel::BuildError>(())
/// ```
#[derive(Clone)]
#[must_use]
pub struct HashedWheelTimerBuilder {
    tick: Duration,
    ticks_per_wheel: usize,
    max_pending_timeouts: usize,
    thread_name: String,
    executor: Option<Executor>,
}

impl HashedWheelTimerBuilder {
    /// The resolution: 100 ms by default. Less than 1 ms counts as 1 ms.
    pub fn tick_duration(mut self, tick: Duration) -> Self {
        self.tick = tick;
        self
    }

    /// Ticks per revolution: 512 by default, rounded up to a power of two, at most 65,536. It changes cost, not meaning.
    pub fn ticks_per_wheel(mut self, ticks: usize) -> Self {
        self.ticks_per_wheel = ticks;
        self
    }

    /// Timeouts that may be pending at once; any number by default, and with 0.
    pub fn max_pending_timeouts(mut self, timeouts: usize) -> Self {
        self.max_pending_timeouts = timeouts;
        self
    }

    /// The name of the timer's thread.
    pub fn thread_name(mut self, name: impl Into<String>) -> Self {
        self.thread_name = name.into();
        self
    }

    /// Where tasks run, in place of the timer's own thread, which a slow task would hold up. The executor is called on that thread and should
    /// pass the [`Job`] on. A job that is dropped is lost, as when a Java executor rejects one.
    pub fn executor(mut self, execute: impl Fn(Job) + Send + Sync + 'static) -> Self {
        self.executor = Some(Arc::new(execute));
        self
    }

    /// A timer with a thread of its own.
    ///
    /// # Errors
    /// If the tick or the number of ticks is zero, or a revolution is longer than 292 years.
    pub fn build(self) -> Result<HashedWheelTimer, BuildError> {
        self.check()?;
        let driver = Driver::thread(&self.thread_name);
        Ok(self.assemble(driver, Clock::System))
    }

    /// A timer without a thread, whose clock is moved by hand, for tests: tasks run in [`ManualTicker::advance`].
    ///
    /// # Errors
    /// As [`build`](Self::build).
    pub fn build_manual(self) -> Result<(HashedWheelTimer, ManualTicker), BuildError> {
        self.check()?;
        let time = Arc::new(VirtualTime::new());
        let timer = self.assemble(Driver::Manual, Clock::Manual(time.clone()));
        Ok((timer.clone(), ManualTicker { timer, time }))
    }

    /// A timer for the model checker.
    #[cfg(all(test, loom))]
    pub(crate) fn build_model(self, driver: Driver, clock: Clock) -> HashedWheelTimer {
        self.assemble(driver, clock)
    }

    fn check(&self) -> Result<(), BuildError> {
        if self.tick.is_zero() {
            return Err(BuildError::ZeroTick);
        }
        if self.ticks_per_wheel == 0 {
            return Err(BuildError::ZeroTicksPerWheel);
        }
        let revolution = self.tick.as_nanos().saturating_mul(self.ticks() as u128);
        if revolution >= i64::MAX as u128 {
            return Err(BuildError::RevolutionTooLong);
        }
        Ok(())
    }

    fn ticks(&self) -> usize {
        self.ticks_per_wheel.clamp(1, 1 << 16).next_power_of_two()
    }

    fn assemble(self, driver: Driver, clock: Clock) -> HashedWheelTimer {
        let (tick, ticks_per_wheel) = (self.tick.max(Duration::from_millis(1)), self.ticks());
        let shared = Shared::new(self.executor, self.max_pending_timeouts);
        HashedWheelTimer { shards: Shards::new(driver, clock, tick, ticks_per_wheel, shared) }
    }
}

impl fmt::Debug for HashedWheelTimerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HashedWheelTimerBuilder")
            .field("tick_duration", &self.tick)
            .field("ticks_per_wheel", &self.ticks_per_wheel)
            .field("max_pending_timeouts", &self.max_pending_timeouts)
            .field("thread_name", &self.thread_name)
            .field("executor", &self.executor.is_some())
            .finish()
    }
}

/// Moves the time of a timer from [`HashedWheelTimerBuilder::build_manual`].
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicBool, Ordering};
/// use std::time::Duration;
/// use wheellock_wheel::{HashedWheelTimer, Timeout};
///
/// let (timer, ticker) = HashedWheelTimer::builder().build_manual()?;
/// let late = Arc::new(AtomicBool::new(false));
/// let seen = Arc::clone(&late);
/// timer.new_timeout(move |_: &Timeout| seen.store(true, Ordering::Relaxed), Duration::from_secs(3))?;
///
/// ticker.advance(Duration::from_millis(2_900));
/// assert!(!late.load(Ordering::Relaxed));
/// ticker.advance(Duration::from_millis(200));
/// assert!(late.load(Ordering::Relaxed));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct ManualTicker {
    timer: HashedWheelTimer,
    time: Arc<VirtualTime>,
}

impl ManualTicker {
    /// Moves time on by `duration` and runs what becomes due on the calling thread, in order, each at its own tick.
    pub fn advance(&self, duration: Duration) {
        manual::advance(self.timer.shards.hub(), &self.time, duration);
    }

    /// The present of the timer.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.time.now()
    }
}

const THREAD_NAME: &str = "hashed-wheel-timer";
