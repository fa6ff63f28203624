//! Callbacks after a delay, with the semantics of Netty's `HashedWheelTimer`.
//!
//! This module owns the timer's states: running, then stopped. The states of a timeout are in [`timeout`]. The wheel, the thread and the
//! clock are in [`crate::timer`].

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
use timeout::{Entry, Executor, Shared, UNDATED, any_task};
pub use timeout::{Job, Task, Timeout, TimerTask};

use crate::timer::clock::{Clock, Ticks, VirtualTime};
use crate::timer::driver::Driver;
use crate::timer::manual;
use crate::timer::shards::{Armed, Left, Shards};

/// A timer that runs tasks after a delay, for tasks that are mostly cancelled before they run. It is a cheap handle: clones share one
/// timer.
///
/// The semantics are Netty's. One thread runs the tasks, and the first timeout starts it. Deadlines are rounded up to the tick, so no task
/// runs early. A panic of a task does not affect other tasks. [`stop`](Self::stop) returns the timeouts that have not run. The differences
/// are:
///
/// | Netty | here |
/// |---|---|
/// | wakes every tick, for ever | sleeps until the next timeout; an idle timer never wakes |
/// | lateness is (0, 1 tick] | [0, 1 tick): a deadline that is a multiple of the tick is on time |
/// | reads the clock for every timeout | once per sixteen if a thread makes a thousand per tick; the timer then wakes twice a tick |
/// | a cancelled timeout keeps its memory until the next tick | `cancel` frees the memory |
/// | `cancelled` runs on the worker, at the next tick | it runs on the cancelling thread, before `cancel` returns |
/// | `stop` interrupts the running task and waits for it | `stop` does not wait: expired timeouts still run, all others do not |
/// | `stop` leaves `pendingTimeouts` unchanged and does not call `cancelled` | `stop` counts down and calls `cancelled` |
/// | a timeout created while `stop` runs may be lost | creating it fails, or `stop` returns it |
/// | far delays are touched once per revolution | they are touched at most once per level of the wheel |
/// | a timer that is not stopped is a leak | its thread ends when the last handle is dropped and no timeout is pending |
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
    /// Creates a timer with Netty's defaults: ticks of 100 ms, 512 ticks per wheel, and any number of pending timeouts.
    #[must_use]
    pub fn new() -> Self {
        Self::builder().assemble(Driver::thread(THREAD_NAME), Clock::System, Ticks::halved)
    }

    /// Returns a builder for a timer with other settings.
    pub fn builder() -> HashedWheelTimerBuilder {
        HashedWheelTimerBuilder {
            tick: Duration::from_millis(100),
            ticks_per_wheel: 512,
            max_pending_timeouts: 0,
            thread_name: THREAD_NAME.into(),
            executor: None,
        }
    }

    /// Starts the timer's thread now. A call is optional: the first timeout starts the thread.
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

    /// Runs `task` on the timer's thread, or on its executor, after `delay`. The task runs less than a tick late. A delay of zero means the
    /// next tick. A delay that is too long to count means never.
    ///
    /// This call reads the clock. If a thread makes a thousand timeouts per tick, one reading serves up to sixteen of them. One of the
    /// thread's next calls reads the clock, or the timer's thread does. The timer's thread then wakes twice a tick.
    /// [`new_timeout_at`](Self::new_timeout_at) needs no clock.
    ///
    /// # Errors
    /// [`NewTimeoutError::Full`] with [`max_pending_timeouts`](HashedWheelTimerBuilder::max_pending_timeouts) pending,
    /// [`NewTimeoutError::Stopped`] after [`stop`](Self::stop), [`NewTimeoutError::NoThread`] if the system refuses a thread.
    pub fn new_timeout(&self, task: impl TimerTask, delay: Duration) -> Result<Timeout, NewTimeoutError> {
        let hub = self.shards.hub();
        hub.shared.enter()?;
        let (shard, task) = (self.shards.own(), any_task(task));
        if shard.may_be_undated()
            && let Ok(key) = shard.arm_undated(delay, Entry::new(&task))
        {
            return Ok(Timeout::of(shard, key, UNDATED, task, PENDING));
        }
        let now = hub.clock.now();
        // Only a timer with half ticks can round a deadline that it does not know exactly.
        if hub.ticks.are_halved() {
            shard.looked(now);
        }
        let tick = hub.ticks.after(now, delay);
        match shard.arm(tick, Entry::new(&task)) {
            Armed::Pending(key) => Ok(Timeout::of(shard, key, tick, task, PENDING)),
            unarmed => Err(self.refusal(&unarmed)),
        }
    }

    /// Runs `task` at `deadline`, less than a tick late. Unlike [`new_timeout`](Self::new_timeout), this call does not read the clock.
    ///
    /// # Errors
    /// The errors are those of [`new_timeout`](Self::new_timeout).
    pub fn new_timeout_at(
        &self,
        task: impl TimerTask,
        deadline: Instant,
    ) -> Result<Timeout, NewTimeoutError> {
        let hub = self.shards.hub();
        hub.shared.enter()?;
        let (shard, task) = (self.shards.own(), any_task(task));
        let tick = hub.ticks.at_or_after(deadline);
        match shard.arm(tick, Entry::new(&task)) {
            Armed::Pending(key) => Ok(Timeout::of(shard, key, tick, task, PENDING)),
            unarmed => Err(self.refusal(&unarmed)),
        }
    }

    /// Returns the number of timeouts that have neither expired nor been cancelled. A running timeout has expired. The threads' counts are
    /// added up one after the other. The number is therefore exact only if no timeout is made or ends meanwhile.
    #[must_use]
    pub fn pending_timeouts(&self) -> usize {
        self.shards.hub().pending()
    }

    /// Stops the timer for good, cancels every pending timeout and returns these timeouts. None of them runs, and no other timeout expires
    /// afterwards.
    ///
    /// `stop` does not wait for timeouts that have already expired. The current one runs, even if it is only about to begin, and an
    /// executor runs its jobs. The result is empty if the timer was already stopped.
    ///
    /// # Errors
    /// [`StopError`] if a task on the timer's own thread calls `stop`, as in Netty. A task on an executor may call it.
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

    /// Returns true after [`stop`](Self::stop).
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.shards.hub().is_closed()
    }

    /// Returns the length of a tick.
    #[must_use]
    pub fn tick_duration(&self) -> Duration {
        self.shards.hub().ticks.tick()
    }

    /// Returns the number of ticks per wheel, after rounding up to a power of two.
    #[must_use]
    pub fn ticks_per_wheel(&self) -> usize {
        self.shards.hub().ticks_per_wheel
    }

    #[cfg(test)]
    pub(crate) fn entries(&self) -> usize {
        self.shards.hub().entries()
    }

    /// Returns the reason why the timeout could not be armed.
    #[cold]
    fn refusal(&self, unarmed: &Armed<Entry>) -> NewTimeoutError {
        self.shards.hub().shared.refuse(match unarmed {
            Armed::NoDriver(_) => NewTimeoutError::NoThread,
            // `arm` never returns `Due`: it arms an overdue timeout for the next tick.
            Armed::Closed(_) | Armed::Due(_) | Armed::Pending(_) => NewTimeoutError::Stopped,
        })
    }
}

impl Timeout {
    /// Returns the timer, or `None` once every handle to it is dropped. Pending timeouts still run then.
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
    /// Sets the length of a tick, the resolution of the timer. The default is 100 ms. Less than 1 ms counts as 1 ms.
    pub fn tick_duration(mut self, tick: Duration) -> Self {
        self.tick = tick;
        self
    }

    /// Sets the number of ticks per revolution. The default is 512; the number is rounded up to a power of two and is at most 65,536. It
    /// affects only the cost.
    pub fn ticks_per_wheel(mut self, ticks: usize) -> Self {
        self.ticks_per_wheel = ticks;
        self
    }

    /// Sets the maximum number of pending timeouts. The default is 0, which means any number.
    pub fn max_pending_timeouts(mut self, timeouts: usize) -> Self {
        self.max_pending_timeouts = timeouts;
        self
    }

    /// Sets the name of the timer's thread.
    pub fn thread_name(mut self, name: impl Into<String>) -> Self {
        self.thread_name = name.into();
        self
    }

    /// Sets an executor for the tasks. By default they run on the timer's own thread, which a slow task delays. The executor is called on
    /// that thread and should pass the [`Job`] on. A dropped job is lost, as when a Java executor rejects a task.
    pub fn executor(mut self, execute: impl Fn(Job) + Send + Sync + 'static) -> Self {
        self.executor = Some(Arc::new(execute));
        self
    }

    /// Creates a timer with a thread of its own.
    ///
    /// # Errors
    /// [`BuildError`] if the tick or the number of ticks is zero, a revolution is longer than 292 years, or the thread's name has a zero
    /// byte.
    pub fn build(self) -> Result<HashedWheelTimer, BuildError> {
        self.check()?;
        let driver = Driver::thread(&self.thread_name);
        Ok(self.assemble(driver, Clock::System, Ticks::halved))
    }

    /// Creates a timer without a thread for tests. The caller moves its clock by hand, and tasks run in [`ManualTicker::advance`].
    ///
    /// # Errors
    /// The errors are those of [`build`](Self::build).
    pub fn build_manual(self) -> Result<(HashedWheelTimer, ManualTicker), BuildError> {
        self.check()?;
        let time = Arc::new(VirtualTime::new());
        // Reading this clock is free, so timeouts need not share one reading.
        let timer = self.assemble(Driver::Manual, Clock::Manual(time.clone()), Ticks::new);
        Ok((timer.clone(), ManualTicker { timer, time }))
    }

    /// Creates a timer for the model checker.
    #[cfg(all(test, loom))]
    pub(crate) fn build_model(self, driver: Driver, clock: Clock) -> HashedWheelTimer {
        self.assemble(driver, clock, Ticks::halved)
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
        if self.thread_name.contains('\0') {
            return Err(BuildError::ZeroByteInThreadName);
        }
        Ok(())
    }

    fn ticks(&self) -> usize {
        self.ticks_per_wheel.clamp(1, 1 << 16).next_power_of_two()
    }

    /// Creates the timer. `ticks` makes ticks of one step or of two steps. Only ticks of two steps let timeouts share one reading of the
    /// clock.
    fn assemble(
        self,
        driver: Driver,
        clock: Clock,
        ticks: fn(Instant, Duration) -> Ticks,
    ) -> HashedWheelTimer {
        let (tick, ticks_per_wheel) = (self.tick.max(Duration::from_millis(1)), self.ticks());
        let shared = Shared::new(self.executor, self.max_pending_timeouts);
        let ticks = ticks(clock.now(), tick);
        HashedWheelTimer { shards: Shards::new(driver, clock, ticks, ticks_per_wheel, shared) }
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
    /// Advances time by `duration` and runs the due tasks on the calling thread, in order, each at its own tick.
    pub fn advance(&self, duration: Duration) {
        manual::advance(self.timer.shards.hub(), &self.time, duration);
    }

    /// Returns the timer's current time.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.time.now()
    }
}

const THREAD_NAME: &str = "hashed-wheel-timer";

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::{Mutex, PoisonError};

    use super::*;

    const TICK: Duration = Duration::from_millis(10);

    /// For each timeout: when the test made it, its delay, and when it ran.
    #[derive(Default)]
    struct Made(Mutex<Vec<(Instant, Duration, Option<Instant>)>>);

    impl Made {
        fn with<R>(&self, with: impl FnOnce(&mut Vec<(Instant, Duration, Option<Instant>)>) -> R) -> R {
            with(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
        }
    }

    /// A timer whose clock moves independently. The test turns it at the promised times.
    struct Driven {
        timer: HashedWheelTimer,
        time: Arc<VirtualTime>,
        made: Arc<Made>,
    }

    impl Driven {
        fn new() -> Self {
            let time = Arc::new(VirtualTime::new());
            let builder = HashedWheelTimer::builder().tick_duration(TICK).ticks_per_wheel(16);
            let timer = builder.assemble(Driver::Manual, Clock::Manual(time.clone()), Ticks::halved);
            Self { timer, time, made: Arc::default() }
        }

        fn make(&self, delay: Duration) -> Timeout {
            let (made, time) = (self.made.clone(), self.time.clone());
            let id = made.with(|all| {
                all.push((time.now(), delay, None));
                all.len() - 1
            });
            let ran = move |_: &Timeout| {
                let before = made.with(|all| all.get_mut(id).and_then(|one| one.2.replace(time.now())));
                assert_eq!(before, None, "it has run before");
            };
            self.timer.new_timeout(ran, delay).unwrap()
        }

        /// Advances time; the driver turns exactly at the promised times.
        fn pass(&self, by: Duration) {
            let (hub, end) = (self.timer.shards.hub(), self.time.now() + by);
            loop {
                match hub.promised() {
                    Some(promised) if promised <= end => {
                        self.time.move_to(promised);
                        hub.turn(self.time.now());
                        hub.fire();
                    }
                    _ => return self.time.move_to(end),
                }
            }
        }

        fn is_looked_for(&self) -> bool {
            self.timer.shards.own().may_be_undated()
        }
    }

    fn random(seed: &mut u64, below: u32) -> u32 {
        *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        u32::try_from(*seed >> 33).unwrap_or(0) % below
    }

    #[test]
    fn dated_and_undated_fire_within_tick() {
        let mut were_undated = 0;
        for seed in 0..40 {
            let (driven, mut seed) = (Driven::new(), seed);
            let mut cancelled = Vec::new();
            for _ in 0..4 {
                // First a burst of random length, then a phase with few timeouts.
                for few in [false, true] {
                    let pause = Duration::from_nanos(if few { 700_000 } else { 2_000 });
                    for _ in 0..random(&mut seed, if few { 30 } else { 6_000 }) {
                        let delay = TICK * 40 * random(&mut seed, 1_000) / 1_000;
                        let id = driven.made.with(|all| all.len());
                        were_undated += u32::from(driven.is_looked_for());
                        let timeout = driven.make(delay);
                        match random(&mut seed, 4) {
                            0 => {}
                            1 => {
                                assert!(timeout.clone().cancel());
                                cancelled.push(id);
                            }
                            _ => {
                                assert!(timeout.cancel());
                                cancelled.push(id);
                            }
                        }
                        driven.pass(pause * random(&mut seed, 3));
                    }
                    driven.pass(TICK * random(&mut seed, 3) / 2);
                }
            }
            assert_eq!(
                driven.timer.pending_timeouts(),
                driven.made.with(|all| pending(all)) - cancelled.len()
            );
            driven.pass(TICK * 50);
            assert_eq!(driven.timer.entries(), 0);
            driven.made.with(|all| {
                for (id, (made, delay, ran)) in all.iter().enumerate() {
                    let Some(ran) = ran else {
                        assert!(cancelled.contains(&id), "{id} never ran");
                        continue;
                    };
                    let late = ran.checked_duration_since(*made + *delay);
                    let late =
                        late.unwrap_or_else(|| panic!("{id} was early by {:?}", *made + *delay - *ran));
                    assert!(late < TICK, "{id} was {late:?} late");
                }
            });
        }
        assert!(were_undated > 100_000, "only {were_undated}");
    }

    fn pending(all: &[(Instant, Duration, Option<Instant>)]) -> usize {
        all.iter().filter(|(_, _, ran)| ran.is_none()).count()
    }

    #[test]
    fn driver_reads_clock_only_during_bursts() {
        let driven = Driven::new();
        let far = TICK * 100_000;
        for _ in 0..511 {
            driven.make(far);
        }
        assert!(!driven.is_looked_for());
        driven.make(far);
        assert!(driven.is_looked_for(), "the last of 512 in no time");
        let look = driven.timer.shards.hub().promised().unwrap();
        assert!(look <= driven.time.now() + TICK / 2);
        for _ in 0..600 {
            driven.make(far);
        }
        driven.pass(TICK / 2);
        assert!(driven.is_looked_for(), "600 more were made until then");
        driven.pass(TICK / 2);
        assert!(!driven.is_looked_for());
        assert!(driven.timer.shards.hub().promised().unwrap() > driven.time.now() + far / 2, "it sleeps");
    }

    #[test]
    fn cancelled_undated_timeout_schedules_no_wake() {
        let driven = Driven::new();
        while !driven.is_looked_for() {
            assert!(driven.make(TICK * 9).cancel());
        }
        let timeout = driven.make(TICK * 5);
        let same = timeout.clone();
        assert!(timeout.cancel());
        driven.pass(TICK);
        assert!(same.is_cancelled());
        let promised = driven.timer.shards.hub().promised();
        assert!(promised.is_none_or(|at| at > driven.time.now() + TICK * 50), "{promised:?}");
    }

    #[test]
    fn undated_timeouts_run_in_creation_order() {
        let driven = Driven::new();
        while !driven.is_looked_for() {
            assert!(driven.make(TICK * 9).cancel());
        }
        let order = Arc::new(Mutex::new(Vec::new()));
        let noted = |name: &'static str| {
            let order = order.clone();
            move |_: &Timeout| order.lock().unwrap().push(name)
        };
        driven.timer.new_timeout(noted("without a look"), TICK * 2).unwrap();
        driven.timer.new_timeout_at(noted("at a time"), driven.time.now() + TICK * 2).unwrap();
        driven.timer.new_timeout(noted("without a look again"), TICK * 2).unwrap();
        driven.pass(TICK * 3);
        assert_eq!(*order.lock().unwrap(), ["without a look", "at a time", "without a look again"]);
    }

    #[test]
    fn manual_clock_dates_every_timeout() {
        let (timer, ticker) = HashedWheelTimer::builder().tick_duration(TICK).build_manual().unwrap();
        let shard = timer.shards.own();
        for _ in 0..2_000 {
            timer.new_timeout(|_: &Timeout| (), TICK).unwrap();
            assert!(!shard.may_be_undated());
        }
        ticker.advance(TICK);
        assert_eq!(timer.pending_timeouts(), 0);
    }

    #[test]
    fn timer_recovers_after_refused_thread() {
        let builder = HashedWheelTimer::builder().tick_duration(Duration::from_millis(1));
        let timer = builder.assemble(Driver::refused("refused", 1), Clock::System, Ticks::halved);
        let (said, heard) = std::sync::mpsc::channel();
        let make = |delay| {
            let said = said.clone();
            timer.new_timeout(move |_: &Timeout| said.send(()).unwrap(), delay)
        };
        let refused = make(Duration::from_millis(1)).unwrap_err();
        assert_eq!((refused, timer.pending_timeouts()), (NewTimeoutError::NoThread, 0));
        // This timeout is later than the refused one, for which the driver will not look.
        make(Duration::from_millis(20)).unwrap();
        heard.recv_timeout(Duration::from_secs(30)).unwrap();
    }

    #[test]
    fn take_back_after_stop_returns_none() {
        let (timer, _) = HashedWheelTimer::builder().build_manual().unwrap();
        let shard = timer.shards.own();
        let key = shard.with(|stored| stored.wheel.insert(9, Entry::new(&any_task(|_: &Timeout| ()))));
        assert_eq!(timer.stop().unwrap().len(), 1);
        assert!(shard.with(|stored| Entry::take_back(stored, key)).is_none());
        assert_eq!(timer.pending_timeouts(), 0);
    }

    #[test]
    fn undated_timeouts_are_reported_and_returned() {
        let driven = Driven::new();
        while !driven.is_looked_for() {
            driven.make(TICK);
        }
        let before = driven.timer.pending_timeouts();
        let timeouts: Vec<Timeout> = (1..=5).map(|ticks| driven.make(TICK * ticks)).collect();
        assert_eq!(driven.timer.pending_timeouts(), before + 5);
        assert!(timeouts.iter().all(|timeout| !timeout.is_expired() && !timeout.is_cancelled()));
        assert_eq!(std::format!("{:?}", timeouts[0]), "Timeout { expired: false, cancelled: false }");
        assert!(timeouts[0].cancel() && timeouts[0].is_cancelled());
        let left = driven.timer.stop().unwrap();
        assert_eq!(left.len(), before + 4);
        assert!(timeouts.iter().all(Timeout::is_cancelled));
        assert!(left.iter().all(|timeout| std::format!("{timeout:?}").contains("due_in")));
    }
}
