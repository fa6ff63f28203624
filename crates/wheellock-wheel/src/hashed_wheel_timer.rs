//! Callbacks after a delay, with the semantics of Netty's `HashedWheelTimer`.
//!
//! Owns the life of a timeout (pending, then expired or cancelled, once) and of the timer (running, then stopped). The wheel,
//! the thread and the clock are those of [`crate::timer`].

mod entry;
mod errors;
mod share;
mod task;

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::string::String;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::vec::Vec;

use entry::{CANCELLED, EXPIRED, PENDING};
pub use errors::{BuildError, NewTimeoutError, StopError};
use share::Share;
use task::{KeptTask, any_task};

use crate::TimerKey;
use crate::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use crate::timer::clock::{Clock, VirtualTime};
use crate::timer::driver::Driver;
use crate::timer::manual;
use crate::timer::shards::{Armed, Expire, Left, Shard, Shards, Stored};

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
            let timeout = Timeout {
                shard: Share::of(&shard),
                key,
                tick: deadline,
                task,
                known: AtomicU8::new(CANCELLED),
            };
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
        Ok(Timeout { shard: Share::of(shard), key, tick, task, known: AtomicU8::new(PENDING) })
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
        let shared = Shared {
            executor: self.executor,
            limit: self.max_pending_timeouts,
            counted: AtomicUsize::new(0),
        };
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

/// What a [`HashedWheelTimer`] runs. Implemented by every `Fn(&Timeout)`.
///
/// ```
/// use std::time::Duration;
/// use wheellock_wheel::{HashedWheelTimer, Timeout, TimerTask};
///
/// struct Request(u64);
///
/// impl TimerTask for Request {
///     fn run(&self, _: &Timeout) {
///         println!("no reply to {}", self.0);
///     }
///
///     fn cancelled(&self, _: &Timeout) {
///         println!("{} is answered", self.0);
///     }
/// }
///
/// let timer = HashedWheelTimer::new();
/// let timeout = timer.new_timeout(Request(7), Duration::from_secs(3))?;
/// timeout.cancel(); // prints "7 is answered"
/// # Ok::<(), wheellock_wheel::NewTimeoutError>(())
/// ```
pub trait TimerTask: Any + Send + Sync {
    /// Runs once, when the delay is over. A panic is contained and reported by the panic hook.
    fn run(&self, timeout: &Timeout);

    /// Runs once if the timeout is cancelled, on the thread that cancels. A panic is contained.
    fn cancelled(&self, timeout: &Timeout) {
        let _ = timeout;
    }
}

impl<F: Fn(&Timeout) + Send + Sync + 'static> TimerTask for F {
    fn run(&self, timeout: &Timeout) {
        self(timeout);
    }
}

/// A task that was handed to a [`HashedWheelTimer`]. Dropping it changes nothing.
///
/// As long as it is kept it keeps the task. One that has expired, or was cancelled through a clone, also keeps its 48 bytes in the wheel.
///
/// ```
/// use std::time::Duration;
/// use wheellock_wheel::{HashedWheelTimer, Timeout};
///
/// let timer = HashedWheelTimer::new();
/// let timeout = timer.new_timeout(|_: &Timeout| println!("no reply"), Duration::from_secs(3))?;
/// assert!(!timeout.is_expired());
/// assert!(timeout.cancel());
/// assert!(timeout.is_cancelled() && !timeout.cancel()); // once
/// # Ok::<(), wheellock_wheel::NewTimeoutError>(())
/// ```
pub struct Timeout {
    shard: Share,
    key: TimerKey,
    tick: u64,
    task: AnyTask,
    /// What has become of it, once the entry has been told that this handle will not ask again. Changes once, under the lock.
    known: AtomicU8,
}

impl Timeout {
    /// The timer; none once every handle to it is gone. What is pending then still runs.
    #[must_use]
    pub fn timer(&self) -> Option<HashedWheelTimer> {
        self.shard.all().map(|shards| HashedWheelTimer { shards })
    }

    /// The task, which may be handed to a timer again.
    #[must_use]
    pub fn task(&self) -> Task {
        Task(self.task.clone())
    }

    /// True once its time has come: while the task runs, and after.
    #[must_use]
    pub fn is_expired(&self) -> bool {
        self.fate() == EXPIRED
    }

    /// True if it was cancelled, or returned by [`HashedWheelTimer::stop`].
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.fate() == CANCELLED
    }

    /// Cancels it, frees its place at once and calls [`TimerTask::cancelled`]. False if it has expired or was cancelled before.
    pub fn cancel(&self) -> bool {
        if self.known.load(Ordering::Acquire) != PENDING {
            return false;
        }
        if !self.shard.with(|stored| Entry::cancel(stored, self.key, &self.known)) {
            return false;
        }
        self.shard.hub().shared.leave();
        self.shard.taken_out();
        self.tell_cancelled();
        true
    }

    fn fate(&self) -> u8 {
        match self.known.load(Ordering::Acquire) {
            PENDING => self.shard.with(|stored| match stored.wheel.get_mut(self.key) {
                Some(entry) => entry.fate(),
                // Another thread has cancelled it through this very handle meanwhile.
                None => self.known.load(Ordering::Acquire),
            }),
            known => known,
        }
    }

    fn tell_cancelled(&self) {
        let _ = catch_unwind(AssertUnwindSafe(|| self.task.get().cancelled(self)));
    }
}

impl Clone for Timeout {
    fn clone(&self) -> Self {
        let known = match self.known.load(Ordering::Acquire) {
            PENDING => self.shard.with(|stored| match stored.wheel.get_mut(self.key) {
                Some(entry) => {
                    *entry.handles() += 1;
                    PENDING
                }
                None => self.known.load(Ordering::Acquire),
            }),
            known => known,
        };
        Self {
            shard: Share::of(&self.shard),
            key: self.key,
            tick: self.tick,
            task: self.task.clone(),
            known: AtomicU8::new(known),
        }
    }
}

impl Drop for Timeout {
    fn drop(&mut self) {
        if self.known.load(Ordering::Acquire) == PENDING {
            self.shard.with(|stored| Entry::forget(stored, self.key));
        }
    }
}

impl fmt::Debug for Timeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hub = self.shard.hub();
        let now = hub.clock.now();
        let mut out = f.debug_struct("Timeout");
        match hub.ticks.start_of(self.tick) {
            None => out.field("deadline", &"never"),
            Some(at) if at > now => out.field("due_in", &(at - now)),
            Some(at) => out.field("due_ago", &(now - at)),
        };
        out.field("expired", &self.is_expired()).field("cancelled", &self.is_cancelled()).finish()
    }
}

/// The task of a [`Timeout`], shared with it. Hand it to [`HashedWheelTimer::new_timeout`] to have it run once more; each of its
/// timeouts expires or is cancelled by itself.
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU32, Ordering};
/// use std::time::Duration;
/// use wheellock_wheel::{HashedWheelTimer, Timeout};
///
/// let (timer, ticker) = HashedWheelTimer::builder().build_manual()?;
/// let beats = Arc::new(AtomicU32::new(0));
/// let counted = Arc::clone(&beats);
/// let heartbeat = move |timeout: &Timeout| {
///     counted.fetch_add(1, Ordering::Relaxed);
///     if let Some(timer) = timeout.timer() {
///         drop(timer.new_timeout(timeout.task(), Duration::from_secs(1)));
///     }
/// };
/// timer.new_timeout(heartbeat, Duration::from_secs(1))?;
/// for _ in 0..3 {
///     ticker.advance(Duration::from_secs(1));
/// }
/// assert_eq!(beats.load(Ordering::Relaxed), 3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Task(AnyTask);

impl TimerTask for Task {
    fn run(&self, timeout: &Timeout) {
        self.0.get().run(timeout);
    }

    fn cancelled(&self, timeout: &Timeout) {
        self.0.get().cancelled(timeout);
    }
}

impl fmt::Debug for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task").finish_non_exhaustive()
    }
}

/// An expired timeout on its way to run on an executor.
///
/// ```
/// use std::sync::mpsc;
/// use std::time::Duration;
/// use wheellock_wheel::{HashedWheelTimer, Job, Timeout};
///
/// let (jobs, inbox) = mpsc::channel::<Job>();
/// std::thread::spawn(move || inbox.into_iter().for_each(Job::run)); // a thread that may be slow
/// let (timer, ticker) =
///     HashedWheelTimer::builder().executor(move |job| drop(jobs.send(job))).build_manual()?;
///
/// let (said, heard) = mpsc::channel();
/// timer.new_timeout(move |_: &Timeout| drop(said.send("no reply")), Duration::from_secs(3))?;
/// ticker.advance(Duration::from_secs(4));
/// assert_eq!(heard.recv()?, "no reply");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Job(Timeout);

impl Job {
    /// Runs the task. A panic is the caller's to contain.
    pub fn run(self) {
        self.0.task.get().run(&self.0);
    }

    /// The timeout.
    #[must_use]
    pub fn timeout(&self) -> &Timeout {
        &self.0
    }
}

type Executor = Arc<dyn Fn(Job) + Send + Sync>;

/// What all timeouts of a timer share.
pub(crate) struct Shared {
    executor: Option<Executor>,
    /// 0: any number.
    limit: usize,
    /// Pending timeouts, if there is a limit. A timer without one spares its threads the contention.
    counted: AtomicUsize,
}

impl Shared {
    fn enter(&self) -> Result<(), NewTimeoutError> {
        if self.limit > 0 && self.counted.fetch_add(1, Ordering::AcqRel) >= self.limit {
            return Err(self.refuse(NewTimeoutError::Full { max: self.limit }));
        }
        Ok(())
    }

    fn refuse(&self, error: NewTimeoutError) -> NewTimeoutError {
        self.leave();
        error
    }

    fn leave(&self) {
        if self.limit > 0 {
            self.counted.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// What stands for tasks of any type.
type AnyTask = entry::AnyTask<dyn KeptTask>;

/// A timeout in its wheel.
type Entry = entry::Entry<dyn KeptTask>;

const _: () = assert!(size_of::<Entry>() == 24);

impl Expire for Entry {
    type Shared = Shared;

    type Taken = AnyTask;

    const KEEPS_TIMER: bool = true;

    fn take_due(stored: &mut Stored<Self>, key: TimerKey) -> Option<AnyTask> {
        Self::leave(stored, key, |handles| Self::Expired { handles })
    }

    fn take_left(stored: &mut Stored<Self>, key: TimerKey) -> Option<AnyTask> {
        Self::leave(stored, key, |handles| Self::Cancelled { handles })
    }

    fn fetch(&self) {
        if let Self::Shared { task, .. } = self {
            std::hint::black_box(Arc::strong_count(task));
            task.read_end();
        }
    }

    fn expire(task: AnyTask, shard: &Arc<Shard<Self>>, key: TimerKey, tick: u64) {
        let shared = &shard.hub().shared;
        shared.leave();
        let job = Job(Timeout { shard: Share::of(shard), key, tick, task, known: AtomicU8::new(EXPIRED) });
        match &shared.executor {
            // Apart from the task's drop, which may panic too: two panics at once would abort the process.
            None => drop(catch_unwind(AssertUnwindSafe(|| job.0.task.get().run(&job.0)))),
            Some(execute) => execute(job),
        }
    }
}

const THREAD_NAME: &str = "hashed-wheel-timer";

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_task_that_is_handed_on_again_and_again_is_one_task() {
        let (timer, ticker) = HashedWheelTimer::builder().build_manual().unwrap();
        let held = Arc::new(());
        let first = timer.new_timeout(move |_: &Timeout| drop(held.clone()), Duration::ZERO).unwrap();
        let same = |one: &AnyTask, other: &AnyTask| match (one, other) {
            (AnyTask::Shared(one), AnyTask::Shared(other)) => Arc::ptr_eq(one, other),
            _ => false,
        };
        let mut last = first.clone();
        for _ in 0..3 {
            last = timer.new_timeout(last.task(), Duration::ZERO).unwrap();
            assert!(same(&last.task().0, &first.task), "no timeout keeps the one before it");
        }
        ticker.advance(Duration::from_secs(1));
        assert!(first.is_expired() && last.is_expired());
    }

    #[test]
    fn every_handle_is_told_and_the_last_one_frees_the_entry() {
        let second = Duration::from_secs(1);
        for kept in 0..3 {
            for end in ["cancelled by a handle", "cancelled by a clone", "expired", "stopped"] {
                let (timer, ticker) = HashedWheelTimer::builder().build_manual().unwrap();
                let first = timer.new_timeout(|_: &Timeout| (), second).unwrap();
                let mut clones: Vec<Timeout> = (0..kept).map(|_| first.clone()).collect();
                assert_eq!((timer.entries(), timer.pending_timeouts()), (1, 1));
                match end {
                    "cancelled by a handle" => assert!(first.cancel()),
                    "cancelled by a clone" => assert!(clones.last().unwrap_or(&first).cancel()),
                    "expired" => ticker.advance(second),
                    _ => assert_eq!(timer.stop().unwrap().len(), 1),
                }
                assert_eq!(timer.pending_timeouts(), 0, "{end}");
                clones.push(first);
                clones.push(clones[0].clone());
                for timeout in &clones {
                    assert_eq!(timeout.is_expired(), end == "expired", "{end}");
                    assert_eq!(timeout.is_cancelled(), end != "expired", "{end}");
                    assert!(!timeout.cancel());
                }
                clones.drain(1..);
                assert_eq!(clones[0].is_expired(), end == "expired", "{end}");
                clones.clear();
                assert_eq!(timer.entries(), 0, "{end}, {kept} clones");
            }
        }
    }

    #[test]
    fn a_pending_timeout_without_handles_is_freed_when_it_has_run() {
        let (timer, ticker) = HashedWheelTimer::builder().build_manual().unwrap();
        drop(timer.new_timeout(|_: &Timeout| (), Duration::from_secs(1)).unwrap());
        assert_eq!((timer.entries(), timer.pending_timeouts()), (1, 1));
        ticker.advance(Duration::from_secs(1));
        assert_eq!(timer.entries(), 0);
    }

    #[test]
    fn a_task_without_state_is_dropped_if_it_wants_to_be() {
        static DROPS: AtomicUsize = AtomicUsize::new(0);
        struct Empty;
        impl TimerTask for Empty {
            fn run(&self, _: &Timeout) {}
        }
        struct Noticed;
        impl TimerTask for Noticed {
            fn run(&self, _: &Timeout) {}
        }
        impl Drop for Noticed {
            fn drop(&mut self) {
                DROPS.fetch_add(1, Ordering::SeqCst);
            }
        }
        assert!(matches!(any_task(Empty), AnyTask::Stateless(_)));
        let (timer, ticker) = HashedWheelTimer::builder().build_manual().unwrap();
        let timeout = timer.new_timeout(Noticed, Duration::from_secs(1)).unwrap();
        assert!(timeout.cancel());
        assert_eq!(DROPS.load(Ordering::SeqCst), 0, "it may be asked for");
        drop(timeout);
        assert_eq!(DROPS.load(Ordering::SeqCst), 1);
        drop(timer.new_timeout(Noticed, Duration::from_secs(1)).unwrap());
        ticker.advance(Duration::from_secs(1));
        assert_eq!(DROPS.load(Ordering::SeqCst), 2);
    }
}
