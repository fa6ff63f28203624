//! Wheels shared by threads: one per shard, each behind its own short mutex, and the turn that fires what is due in all.
//!
//! Owns who may touch which wheel, and how long the shared state lives. Knows ticks, not clocks: `now` is passed in.
//!
//! A thread keeps to one shard, so that its lock and its reference count are uncontended. Handles and pending sleeps keep a
//! shard, shards and handles keep [`Alive`], and the driver keeps only the [`Hub`]: when the last of the former goes, the
//! driver is told to end.

use std::boxed::Box;
use std::cell::Cell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex as StdMutex, OnceLock, PoisonError, Weak};
use std::time::Duration;
use std::vec::Vec;

use super::alarm::Alarm;
use super::clock::{Clock, Ticks};
use super::driver::{Driver, Next};
use super::expire::Expire;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, ShortGuard, ShortMutex, lock, thread_local};
use crate::{TimerKey, Wheel};

/// What a driver needs, and nothing that keeps the timer alive.
pub(crate) struct Hub<T: Expire> {
    alarm: Alarm,
    shards: Mutex<Vec<Weak<Shard<T>>>>,
    /// What has been taken out of the wheels and not been fired yet. Locked before any shard.
    due: Mutex<Due<T>>,
    /// No timer will be fired any more: nobody is left to wait for one, or the timer was stopped, or its driver has ended.
    closed: AtomicBool,
    pub(crate) driver: Driver,
    pub(crate) clock: Clock,
    pub(crate) ticks: Ticks,
    pub(crate) ticks_per_wheel: usize,
    pub(crate) shared: T::Shared,
}

struct Due<T> {
    queue: VecDeque<(u64, T)>,
    /// Those in the queue that nobody has claimed.
    pending: usize,
}

impl<T: Expire> Hub<T> {
    /// Takes up to `TURN_BUDGET` due values per shard out, in order, for [`fire`](Self::fire). Returns the tick of the next turn:
    /// not after `now` if something due is left, `None` if nothing is pending at all.
    pub(crate) fn turn(&self, now: u64) -> Option<u64> {
        let asked = self.alarm.open();
        // A wish for a later tick stays promised even if its timer is gone: one idle wake-up then, in place of one per insert.
        let mut next = Some(asked).filter(|&tick| tick > now && tick != u64::MAX);
        let shards = self.live_shards();
        let mut due = lock(&self.due);
        let mut sources = usize::from(!due.queue.is_empty());
        for shard in &shards {
            let mut wheel = shard.wheel.lock();
            let before = due.queue.len();
            wheel.advance_within(now, TURN_BUDGET, |deadline, value| due.queue.push_back((deadline, value)));
            let pending = wheel.next_wakeup();
            if pending.is_none() && wheel.capacity() > KEPT_CAPACITY {
                wheel.shrink_to_fit();
            }
            drop(wheel);
            due.pending += due.queue.len() - before;
            sources += usize::from(due.queue.len() > before);
            next = next.into_iter().chain(pending).min();
        }
        // Before anything runs, or every insert meanwhile would have to tell.
        if let Some(next) = next {
            self.alarm.promise(next);
        }
        due.queue.iter().for_each(|(_, value)| value.fetch());
        if sources > 1 {
            // Each shard's part is in order already, and the sort is stable.
            due.queue.make_contiguous().sort_by_key(|&(deadline, _)| deadline);
        }
        next
    }

    /// Fires what turns have taken out, one after the other, and says whether there was anything. A panic is contained: the panic
    /// hook has reported it, and it must not take the others with it.
    pub(crate) fn fire(&self) -> bool {
        let outer = RUNNING.with(|running| running.replace(self.address()));
        let mut any = false;
        while let Some(value) = self.next_due() {
            any = true;
            // The value is dropped in there too.
            let _ = catch_unwind(AssertUnwindSafe(|| value.expire()));
        }
        RUNNING.with(|running| running.set(outer));
        any
    }

    fn next_due(&self) -> Option<T> {
        let mut due = lock(&self.due);
        loop {
            let (_, value) = due.queue.pop_front()?;
            if value.claim() {
                due.pending -= 1;
                return Some(value);
            }
            // Cancelled; may run somebody's `Drop`.
            drop(due);
            let _ = catch_unwind(AssertUnwindSafe(|| drop(value)));
            due = lock(&self.due);
        }
    }

    /// After a value was claimed by somebody else while it was waiting to be fired.
    fn claimed_elsewhere(&self) {
        let mut due = lock(&self.due);
        // Whoever closes the timer counts from nought once it gets the lock.
        if !self.is_closed() {
            due.pending -= 1;
        }
    }

    /// True while a value of this timer is being fired by the calling thread.
    pub(crate) fn fires_here(&self) -> bool {
        RUNNING.with(|running| running.get()) == self.address()
    }

    /// Values that are armed and have not been claimed.
    pub(crate) fn pending(&self) -> usize {
        let shards = self.live_shards();
        let due = lock(&self.due);
        due.pending + shards.iter().map(|shard| shard.wheel.lock().len()).sum::<usize>()
    }

    /// Ends the timer and takes everything out that has not been fired. Nothing can be armed afterwards.
    pub(crate) fn close(&self) -> Vec<T> {
        self.closed.store(true, Ordering::Release);
        self.driver.wake();
        let shards = self.live_shards();
        let mut due = lock(&self.due);
        due.pending = 0;
        let mut left: Vec<T> = due.queue.drain(..).map(|(_, value)| value).collect();
        for shard in &shards {
            let mut wheel = shard.wheel.lock();
            wheel.drain(|_, value| left.push(value));
            wheel.shrink_to_fit();
        }
        left
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Wakes the driver, which is started if it has not been. False if it cannot be.
    #[cold]
    #[inline(never)]
    pub(crate) fn start_or_wake(self: &Arc<Self>) -> bool {
        match &self.driver {
            Driver::Thread(thread) => thread.start_or_wake(&self.clock, || {
                let hub = self.clone();
                move || hub.turn_and_fire()
            }),
            #[cfg(feature = "tokio")]
            Driver::Tokio(task) => task.start_or_wake(|| {
                let ending = EndsWithRuntime(self.clone());
                move || ending.turn_and_fire()
            }),
            Driver::Manual => true,
        }
    }

    /// One turn of a driver, at the time that the clock tells.
    fn turn_and_fire(&self) -> Next {
        if self.is_closed() {
            return Next::Never;
        }
        let next = self.turn(self.ticks.at_or_before(self.clock.now()));
        self.fire();
        // Nothing pending, or nothing within the next centuries.
        next.and_then(|tick| self.ticks.start_of(tick)).map_or(Next::WhenWoken, Next::At)
    }

    fn live_shards(&self) -> Vec<Arc<Shard<T>>> {
        let mut shards = lock(&self.shards);
        shards.retain(|shard| shard.strong_count() > 0);
        shards.iter().filter_map(Weak::upgrade).collect()
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }
}

thread_local! {
    /// The timer that the thread is firing a value of.
    #[allow(clippy::missing_const_for_thread_local, reason = "the model checker's has no such form")]
    static RUNNING: Cell<usize> = Cell::new(0);
}

/// The turns of a task: dropped by its runtime, it leaves its sleepers to look at the clock themselves.
#[cfg(feature = "tokio")]
struct EndsWithRuntime<T: Expire>(Arc<Hub<T>>);

#[cfg(feature = "tokio")]
impl<T: Expire> EndsWithRuntime<T> {
    fn turn_and_fire(&self) -> Next {
        self.0.turn_and_fire()
    }
}

#[cfg(feature = "tokio")]
impl<T: Expire> Drop for EndsWithRuntime<T> {
    fn drop(&mut self) {
        for value in self.0.close() {
            if value.claim() {
                let _ = catch_unwind(AssertUnwindSafe(|| value.expire()));
            }
        }
    }
}

/// Held by every handle and every shard; the driver ends when it goes.
pub(crate) struct Alive<T: Expire>(Arc<Hub<T>>);

impl<T: Expire> Drop for Alive<T> {
    fn drop(&mut self) {
        self.0.closed.store(true, Ordering::Release);
        self.0.driver.wake();
    }
}

/// All shards of a timer; what a timer handle points to.
pub(crate) struct Shards<T: Expire> {
    this: Weak<Self>,
    shards: Box<[OnceLock<Arc<Shard<T>>>]>,
    alive: Arc<Alive<T>>,
}

impl<T: Expire> Shards<T> {
    pub(crate) fn new(
        driver: Driver,
        clock: Clock,
        tick: Duration,
        ticks_per_wheel: usize,
        shared: T::Shared,
    ) -> Arc<Self> {
        let hub = Hub {
            alarm: Alarm::new(),
            shards: Mutex::new(Vec::new()),
            due: Mutex::new(Due { queue: VecDeque::new(), pending: 0 }),
            closed: AtomicBool::new(false),
            driver,
            ticks: Ticks::new(clock.now(), tick),
            clock,
            ticks_per_wheel,
            shared,
        };
        let shards = (0..shard_count()).map(|_| OnceLock::new()).collect();
        let alive = Arc::new(Alive(Arc::new(hub)));
        Arc::new_cyclic(|this| Self { this: this.clone(), shards, alive })
    }

    #[inline]
    pub(crate) fn hub(&self) -> &Arc<Hub<T>> {
        &self.alive.0
    }

    /// The calling thread's shard.
    #[inline]
    pub(crate) fn own(&self) -> &Arc<Shard<T>> {
        self.shards[self.own_index()].get_or_init(|| self.create())
    }

    /// The number of the calling thread's shard.
    #[inline]
    pub(crate) fn own_index(&self) -> usize {
        thread_number() & (self.shards.len() - 1)
    }

    /// A shard by its number, for models of several threads, which the checker runs on one.
    #[cfg(all(test, loom))]
    pub(crate) fn nth(&self, index: usize) -> &Arc<Shard<T>> {
        self.shards[index].get_or_init(|| self.create())
    }

    /// A shard that has been used.
    #[inline]
    pub(crate) fn get(&self, index: usize) -> Option<&Arc<Shard<T>>> {
        self.shards.get(index)?.get()
    }

    #[cold]
    fn create(&self) -> Arc<Shard<T>> {
        let hub = self.hub();
        // Starting at the present, so that a deadline that has passed already is seen as such.
        let wheel = Wheel::starting_at(hub.ticks_per_wheel, hub.ticks.at_or_before(hub.clock.now()));
        let shard = Arc::new(Shard {
            wheel: ShortMutex::new(wheel),
            alive: self.alive.clone(),
            all: self.this.clone(),
        });
        lock(&hub.shards).push(Arc::downgrade(&shard));
        shard
    }
}

impl<T: Expire> Drop for Shards<T> {
    fn drop(&mut self) {
        if T::KEEPS_TIMER && matches!(self.hub().driver, Driver::Manual) {
            drop(self.hub().close());
        }
    }
}

/// One wheel and its lock.
#[repr(align(128))]
pub(crate) struct Shard<T: Expire> {
    wheel: ShortMutex<Wheel<T>>,
    alive: Arc<Alive<T>>,
    all: Weak<Shards<T>>,
}

/// What became of an attempt to arm a timer; the value comes back if nothing did.
pub(crate) enum Armed<T> {
    Pending(TimerKey),
    /// The tick has been fired already.
    Due(T),
    /// The timer has ended.
    Closed(T),
    /// There is no driver to fire it, and none could be started.
    NoDriver(T),
}

impl<T: Expire> Shard<T> {
    #[inline]
    pub(crate) fn hub(&self) -> &Arc<Hub<T>> {
        &self.alive.0
    }

    /// All shards of the timer, as long as it has a handle.
    pub(crate) fn all(&self) -> Option<Arc<Shards<T>>> {
        self.all.upgrade()
    }

    /// Arms a timer, unless its tick has been fired already, and wakes the driver if it would sleep past it.
    #[inline]
    pub(crate) fn arm_unless_due(&self, tick: u64, value: T) -> Armed<T> {
        let wheel = self.wheel.lock();
        if tick <= wheel.now() {
            return Armed::Due(value);
        }
        self.arm_in(wheel, tick, value)
    }

    /// Arms a timer, at the next tick if its own has been fired already, and wakes the driver if it would sleep past it.
    #[inline]
    pub(crate) fn arm(&self, tick: u64, value: T) -> Armed<T> {
        let wheel = self.wheel.lock();
        let tick = tick.max(wheel.now().saturating_add(1));
        self.arm_in(wheel, tick, value)
    }

    #[inline]
    fn arm_in(&self, mut wheel: ShortGuard<'_, Wheel<T>>, tick: u64, value: T) -> Armed<T> {
        // Under the lock, so that whoever closes the timer either is seen here or takes the value out.
        if self.hub().closed.load(Ordering::Relaxed) {
            return Armed::Closed(value);
        }
        let key = wheel.insert(tick, value);
        drop(wheel);
        if self.must_tell(tick)
            && let Some(value) = self.disarm(key)
        {
            return Armed::NoDriver(value);
        }
        Armed::Pending(key)
    }

    /// Disarms a timer: `None` if it has fired.
    #[inline]
    pub(crate) fn disarm(&self, key: TimerKey) -> Option<T> {
        self.wheel.lock().remove(key)
    }

    /// After a value was claimed by other means than firing: takes it out, wherever it is.
    pub(crate) fn take_claimed(&self, key: TimerKey) {
        if self.disarm(key).is_none() {
            self.hub().claimed_elsewhere();
        }
    }

    /// Moves a pending timer; false if it has fired. The place among equals of a timer that moves back is its move's.
    pub(crate) fn rearm(&self, key: TimerKey, tick: u64) -> bool {
        let mut wheel = self.wheel.lock();
        let tick = tick.max(wheel.now().saturating_add(1));
        let pending = wheel.defer(key, tick);
        drop(wheel);
        if pending {
            self.must_tell(tick);
        }
        pending
    }

    /// Runs `with` on a pending timer's value, under the lock; `None` if it has fired.
    pub(crate) fn pending<R>(&self, key: TimerKey, with: impl FnOnce(&mut T) -> R) -> Option<R> {
        self.wheel.lock().get_mut(key).map(with)
    }

    /// True if the driver had to be told and cannot be.
    #[inline]
    fn must_tell(&self, tick: u64) -> bool {
        self.hub().alarm.must_wake(tick) && !self.hub().start_or_wake()
    }
}

/// A small number per thread, given back when the thread ends: as long as no more threads than shards use timers, no two of them
/// share a shard.
#[inline]
fn thread_number() -> usize {
    std::thread_local! {
        static OWN: ThreadNumber = ThreadNumber::take();
    }
    // A thread that is being torn down shares the first shard.
    OWN.try_with(|own| own.0).unwrap_or(0)
}

struct ThreadNumber(usize);

impl ThreadNumber {
    fn take() -> Self {
        let mut taken = THREAD_NUMBERS.lock().unwrap_or_else(PoisonError::into_inner);
        let number = taken.iter().position(|taken| !taken).unwrap_or(taken.len());
        if number == taken.len() {
            taken.push(true);
        } else {
            taken[number] = true;
        }
        Self(number)
    }
}

impl Drop for ThreadNumber {
    fn drop(&mut self) {
        THREAD_NUMBERS.lock().unwrap_or_else(PoisonError::into_inner)[self.0] = false;
    }
}

/// Which numbers threads have. Not one of the model checker's: its threads are not created and ended by the system.
static THREAD_NUMBERS: StdMutex<Vec<bool>> = StdMutex::new(Vec::new());

/// One shard per core up to 16: beyond, the scan of a turn costs more than the contention it saves.
fn shard_count() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).min(16).next_power_of_two()
}

/// Values taken from a shard under one hold of its lock: at 130 ns for a far, scattered timer that is 130 us.
const TURN_BUDGET: usize = 1024;

/// Entries whose memory an idle shard keeps: 40 KiB of wakers.
const KEPT_CAPACITY: usize = 1024;
