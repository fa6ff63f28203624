//! Sharded wheels, and the turn that fires their due values.
//!
//! Each shard has one wheel behind its own short mutex. This module decides which thread touches which wheel, and how long the shared state
//! lives. It decides when one reading of the clock serves many timers. It also defines the requirements on a value that a timer fires.
//!
//! A thread keeps to one shard, so that the shard's lock and reference count are uncontended. Handles keep [`Alive`]. A shard keeps it too
//! while the shard has values that keep their timer from ending. A sleep always keeps its shard. The driver keeps only the [`Hub`]. When
//! the last owner of [`Alive`] drops it, the driver is told to end.

use std::boxed::Box;
use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex as StdMutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};
use std::vec::Vec;

use super::alarm::Alarm;
use super::clock::{Clock, Ticks};
use super::driver::{Driver, Next};
use super::undated::{MANY, Undated};
use crate::ahead::BATCH;
use crate::contain::contained;
use crate::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use crate::sync::{Mutex, ShortGuard, ShortMutex, lock, thread_local};
use crate::{TimerKey, Wheel};

/// A value that a timer fires.
pub(crate) trait Expire: Send + Sized + 'static {
    /// Data that all values of one timer share.
    type Shared: Send + Sync;

    /// The rest of a value that was taken out, to be run or returned outside the lock.
    type Taken: Send;

    /// True if a pending value keeps its timer from ending. Values of a manual timer are dropped when no handle is left to move its clock.
    const KEEPS_TIMER: bool;

    /// Takes a pending value out to fire it. Returns `None` if the value is not pending any more. Runs under the shard's lock.
    fn take_due(stored: &mut Stored<Self>, key: TimerKey) -> Option<Self::Taken>;

    /// Takes a pending value out because its timer ends. Returns `None` if the value is not pending any more. Runs under the shard's lock.
    fn take_left(stored: &mut Stored<Self>, key: TimerKey) -> Option<Self::Taken>;

    /// Takes a pending value back, as if it had never been armed. Returns `None` if the value is not pending any more. Runs under the
    /// shard's lock.
    fn take_back(stored: &mut Stored<Self>, key: TimerKey) -> Option<Self>;

    /// Reads a byte of the data behind the value, if there is any. For a batch in a row the waits for memory overlap. Later, one by one,
    /// the waits would add up; with a million timers they are most of the cost.
    fn fetch(&self);

    /// Fires the value. Runs outside every lock and may panic.
    fn expire(taken: Self::Taken, shard: &Arc<Shard<Self>>, key: TimerKey, tick: u64);

    /// Returns true if the value has not left yet.
    fn is_pending(&self) -> bool {
        true
    }
}

/// The state that a driver needs. Apart from [`orphans`](Self::orphans), it does not keep the timer alive.
pub(crate) struct Hub<T: Expire> {
    alarm: Alarm,
    shards: Mutex<Vec<Weak<Shard<T>>>>,
    /// Due values that were not fired yet, in order. Each stays in its wheel until it is fired. Lock this before any shard.
    due: ShortMutex<VecDeque<Due>>,
    /// True while the driver fires due values and may not read the clock for long. A thread that locks a shard after the driver has sees
    /// this flag.
    is_firing: AtomicBool,
    /// True once the driver was started. Before that the system may refuse the driver, so no thread requests a look. The driver looks at
    /// everything when it starts.
    is_driven: AtomicBool,
    /// True once no value will fire any more. Either no handle or value keeps the timer, or the timer was stopped, or its driver has ended.
    closed: AtomicBool,
    /// True once every handle is dropped while values are pending that keep the timer from ending.
    orphaned: AtomicBool,
    /// The shards of those values. They keep the timer alive until the driver finds that all have fired or been cancelled.
    orphans: Mutex<Vec<Orphan<T>>>,
    pub(crate) driver: Driver,
    /// The process that made the timer. The driver can run only there.
    pub(crate) process: u32,
    pub(crate) clock: Clock,
    pub(crate) ticks: Ticks,
    pub(crate) ticks_per_wheel: usize,
    pub(crate) shared: T::Shared,
}

/// A due value: its deadline and its location.
#[derive(Clone, Copy)]
struct Due {
    tick: u64,
    key: TimerKey,
    shard: u32,
}

/// A shard whose pending values keep a timer without handles.
struct Orphan<T: Expire> {
    shard: Arc<Shard<T>>,
    _alive: Arc<Alive<T>>,
}

impl<T: Expire> Hub<T> {
    /// Finds up to `TURN_BUDGET` due values per shard, in order, for [`fire`](Self::fire). Returns the step of the next turn. That step is
    /// not after `present` if due values are left. Returns `None` if no value is pending.
    pub(crate) fn turn(&self, present: Instant) -> Option<u64> {
        let now = self.ticks.at_or_before(present);
        let asked = self.alarm.open();
        // A request for a later tick stays promised even if its timer is gone. This costs one idle wake-up, instead of one wake-up per
        // insert.
        let mut next = Some(asked).filter(|&tick| tick > now && tick != u64::MAX);
        let shards = self.live_shards();
        let mut due = self.due.lock();
        let mut sources = usize::from(!due.is_empty());
        for shard in &shards {
            let before = due.len();
            let mut stored = shard.stored.lock();
            stored.date_all(&self.clock, &self.ticks);
            if !stored.undated.looked(present, now) {
                shard.is_busy.store(false, Ordering::Relaxed);
            }
            stored.wheel.detach_due(now, TURN_BUDGET, T::fetch, |tick, key| {
                due.push_back(Due { tick, key, shard: shard.number });
            });
            let (pending, look) = (stored.wheel.next_wakeup(), stored.undated.look());
            if pending.is_none() {
                stored.shrink();
            }
            drop(stored);
            sources += usize::from(due.len() > before);
            next = next.into_iter().chain(pending).chain(look).min();
        }
        // Promise before any value runs. Otherwise every insert meanwhile would wake the driver.
        if let Some(next) = next {
            self.alarm.promise(next);
        }
        if !due.is_empty() {
            self.is_firing.store(true, Ordering::Release);
            // Include shards created since: a thread that creates a shard later sees `is_firing`.
            for shard in self.live_shards() {
                shard.stored.lock().date_all(&self.clock, &self.ticks);
            }
        }
        if sources > 1 {
            // The values of each shard are already in order, and the sort is stable.
            due.make_contiguous().sort_by_key(|due| due.tick);
        }
        next
    }

    /// Fires the found values one after the other. Returns true if there were any. A panic of one value does not affect the others.
    pub(crate) fn fire(&self) -> bool {
        let Some(mut due) = self.next_due() else { return false };
        let outer = RUNNING.with(|running| running.replace(self.address()));
        let mut shards = self.live_shards();
        loop {
            if !shards.iter().any(|shard| shard.number == due.shard) {
                // The shard was created since, or it is gone together with its values.
                shards = self.live_shards();
            }
            if let Some(shard) = shards.iter().find(|shard| shard.number == due.shard)
                && let Some(taken) = shard.take_due(due.key)
            {
                // The closure also drops `taken`, and that drop may panic too.
                contained(|| T::expire(taken, shard, due.key, due.tick));
            }
            match self.next_due() {
                Some(next) => due = next,
                None => break,
            }
        }
        for shard in &shards {
            shard.stored.lock().shrink();
        }
        RUNNING.with(|running| running.set(outer));
        self.is_firing.store(false, Ordering::Release);
        true
    }

    fn next_due(&self) -> Option<Due> {
        self.due.lock().pop_front()
    }

    /// Makes `own`, a thread of a model, the driver's thread.
    #[cfg(all(test, loom))]
    pub(crate) fn adopt(&self, own: crate::sync::Unparker) {
        self.driver.adopt(own);
        self.is_driven.store(true, Ordering::Release);
    }

    /// Returns true if no turn is promised or requested up to `present`.
    pub(crate) fn is_quiet_until(&self, present: Instant) -> bool {
        self.alarm.is_later_than(self.ticks.at_or_before(present))
    }

    /// Returns the time of the next turn that is promised or requested.
    pub(crate) fn next_turn(&self) -> Option<Instant> {
        self.ticks.start_of(self.alarm.promised())
    }

    /// Returns true while the calling thread fires a value of this timer.
    pub(crate) fn fires_here(&self) -> bool {
        RUNNING.with(|running| running.get()) == self.address()
    }

    /// Returns the number of values that are armed and have not left.
    pub(crate) fn pending(&self) -> usize {
        self.live_shards().iter().map(|shard| shard.stored.lock().pending()).sum()
    }

    /// Returns true if a value has no deadline yet.
    #[cfg(all(test, loom))]
    pub(crate) fn has_undated(&self) -> bool {
        self.live_shards().iter().any(|shard| !shard.stored.lock().undated.is_empty())
    }

    /// Returns the time at which the driver has promised to turn again.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn promised(&self) -> Option<Instant> {
        let step = self.alarm.open();
        self.alarm.promise(step);
        self.ticks.start_of(step)
    }

    /// Returns the number of values in memory, including values that have left.
    #[cfg(test)]
    pub(crate) fn entries(&self) -> usize {
        self.live_shards().iter().map(|shard| shard.stored.lock().wheel.len()).sum()
    }

    /// Ends the timer and takes out every value that was not fired. Afterwards no value can be armed.
    pub(crate) fn close(&self) -> Vec<Left<T>> {
        self.closed.store(true, Ordering::Release);
        self.driver.wake();
        let mut left = Vec::new();
        for shard in self.live_shards() {
            let mut stored = shard.stored.lock();
            stored.date_all(&self.clock, &self.ticks);
            stored.wheel.detach_all();
            let keys: Vec<TimerKey> = stored.wheel.iter().map(|(key, ..)| key).collect();
            for key in keys {
                let Some(deadline) = stored.wheel.deadline(key) else { continue };
                if let Some(taken) = T::take_left(&mut stored, key) {
                    left.push(Left { shard: shard.clone(), key, deadline, taken });
                }
            }
            stored.shrink();
        }
        left
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Wakes the driver, or starts it. Returns false if the driver cannot be started.
    #[cold]
    #[inline(never)]
    pub(crate) fn start_or_wake(self: &Arc<Self>) -> bool {
        let has_driver = self.start_or_wake_driver();
        if has_driver {
            self.is_driven.store(true, Ordering::Release);
        }
        has_driver
    }

    /// Notifies the driver of a timer that is due before the promised look. Returns false if there is no driver and none can be started.
    #[cold]
    #[inline(never)]
    fn tell(self: &Arc<Self>, tick: u64) -> bool {
        (self.is_driven.load(Ordering::Acquire) && !self.alarm.lower(tick)) || self.start_or_wake()
    }

    fn start_or_wake_driver(self: &Arc<Self>) -> bool {
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

    /// Runs one turn of a driver at the clock's current time.
    fn turn_and_fire(&self) -> Next {
        if self.is_closed() {
            return Next::Never;
        }
        let next = self.turn(self.clock.now());
        self.fire();
        // `None` means that no value is pending, or none within the next centuries.
        let next = next.and_then(|tick| self.ticks.start_of(tick));
        if self.orphaned.load(Ordering::Acquire) {
            self.let_orphans_go(next.is_some());
        }
        next.map_or(Next::WhenWoken, Next::At)
    }

    /// Drops the shards without pending values. If no value will ever fire, drops all shards. Otherwise a value whose deadline is out of
    /// reach would keep the driver for ever. Dropping the last shard ends the timer.
    #[cold]
    fn let_orphans_go(&self, any_will_fire: bool) {
        let is_done = |orphan: &mut Orphan<T>| !any_will_fire || orphan.shard.stored.lock().pending() == 0;
        let gone: Vec<_> = lock(&self.orphans).extract_if(.., is_done).collect();
        drop(gone);
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
    /// The address of the timer whose value the thread is firing.
    #[allow(clippy::missing_const_for_thread_local, reason = "the model checker's has no such form")]
    static RUNNING: Cell<usize> = Cell::new(0);
}

/// The turns of a tokio task. When the runtime drops them, this closes the timer and wakes its sleepers, which then check the clock
/// themselves.
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
        for Left { shard, key, deadline, taken } in self.0.close() {
            contained(|| T::expire(taken, &shard, key, deadline));
        }
    }
}

/// Owned by every handle, and by everything else that keeps the timer. The driver ends when it is dropped.
pub(crate) struct Alive<T: Expire>(Arc<Hub<T>>);

impl<T: Expire> Drop for Alive<T> {
    fn drop(&mut self) {
        self.0.closed.store(true, Ordering::Release);
        self.0.driver.wake();
    }
}

/// All shards of a timer. A timer handle points to this.
pub(crate) struct Shards<T: Expire> {
    this: Weak<Self>,
    shards: Box<[OnceLock<Arc<Shard<T>>>]>,
    alive: Arc<Alive<T>>,
}

impl<T: Expire> Shards<T> {
    pub(crate) fn new(
        driver: Driver,
        clock: Clock,
        ticks: Ticks,
        ticks_per_wheel: usize,
        shared: T::Shared,
    ) -> Arc<Self> {
        let hub = Hub {
            alarm: Alarm::new(),
            shards: Mutex::new(Vec::new()),
            due: ShortMutex::new(VecDeque::new()),
            is_firing: AtomicBool::new(false),
            // The code that moves the clock needs no start.
            is_driven: AtomicBool::new(matches!(driver, Driver::Manual)),
            closed: AtomicBool::new(false),
            orphaned: AtomicBool::new(false),
            orphans: Mutex::new(Vec::new()),
            driver,
            process: std::process::id(),
            ticks,
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

    /// Returns the calling thread's shard.
    #[inline]
    pub(crate) fn own(&self) -> &Arc<Shard<T>> {
        self.nth(self.own_index())
    }

    /// Returns the number of the calling thread's shard.
    #[inline]
    pub(crate) fn own_index(&self) -> usize {
        thread_number() & (self.shards.len() - 1)
    }

    /// Returns a shard by its number, and creates it on first use.
    #[inline]
    pub(crate) fn nth(&self, index: usize) -> &Arc<Shard<T>> {
        self.shards[index].get_or_init(|| self.create(index))
    }

    /// Returns a shard if it was used before.
    #[inline]
    pub(crate) fn get(&self, index: usize) -> Option<&Arc<Shard<T>>> {
        self.shards.get(index)?.get()
    }

    #[cold]
    fn create(&self, index: usize) -> Arc<Shard<T>> {
        let hub = self.hub();
        // The wheel starts at the present, so that it recognizes a deadline that has already passed.
        let now = hub.clock.now();
        let slots = hub.ticks_per_wheel << u32::from(hub.ticks.are_halved());
        let wheel = Wheel::starting_at(slots, hub.ticks.at_or_before(now));
        let shard = Arc::new(Shard {
            stored: ShortMutex::new(Stored { wheel, ended: 0, undated: Box::new(Undated::new(now)) }),
            is_busy: AtomicBool::new(false),
            armed: AtomicU32::new(0),
            number: u32::try_from(index).unwrap_or(u32::MAX),
            _alive: (!T::KEEPS_TIMER).then(|| self.alive.clone()),
            hub: hub.clone(),
            all: self.this.clone(),
        });
        lock(&hub.shards).push(Arc::downgrade(&shard));
        shard
    }
}

impl<T: Expire> Drop for Shards<T> {
    fn drop(&mut self) {
        let hub = self.alive.0.clone();
        if !T::KEEPS_TIMER || hub.is_closed() {
            return;
        }
        if matches!(hub.driver, Driver::Manual) {
            drop(hub.close());
            return;
        }
        // Set the flag before checking for pending values. A thread that takes the last value out after the check sees the flag and wakes
        // the driver.
        hub.orphaned.store(true, Ordering::Release);
        let shards = self.shards.iter().filter_map(OnceLock::get);
        let pending: Vec<_> = shards
            .filter(|shard| shard.stored.lock().pending() > 0)
            .map(|shard| Orphan { shard: shard.clone(), _alive: self.alive.clone() })
            .collect();
        if !pending.is_empty() {
            lock(&hub.orphans).extend(pending);
            hub.driver.wake();
        }
    }
}

/// A wheel, and the records of values that have left it.
pub(crate) struct Stored<T> {
    pub(crate) wheel: Wheel<T>,
    /// Number of values that are kept although they were fired or cancelled.
    pub(crate) ended: usize,
    /// Boxed, so that the fields that every call reads lie close together.
    undated: Box<Undated>,
}

impl<T: Expire> Stored<T> {
    /// Gives all undated values their deadlines, with one reading of the clock. The caller holds the shard's lock, so the reading is later
    /// than their arming.
    #[inline]
    fn date_all(&mut self, clock: &Clock, ticks: &Ticks) {
        if !self.undated.is_empty() {
            self.date_those(clock.now(), ticks);
        }
    }

    #[inline(never)]
    fn date_those(&mut self, now: Instant, ticks: &Ticks) {
        let (earlier, waiting) = self.undated.take(now);
        for (key, delay) in waiting {
            // Most have left already.
            if self.wheel.get(key).is_some_and(T::is_pending) {
                let step = ticks.after_one_between(earlier, now, delay);
                self.wheel.attach(key, step.max(self.wheel.now().saturating_add(1)));
            }
        }
    }
}

impl<T> Stored<T> {
    fn pending(&self) -> usize {
        self.wheel.len() - self.ended
    }

    /// Frees the memory of many past values if no value is left.
    fn shrink(&mut self) {
        if self.wheel.is_empty() && self.wheel.capacity() > KEPT_CAPACITY {
            self.wheel.shrink_to_fit();
        }
    }
}

/// A value that a timer has not fired when it ends.
pub(crate) struct Left<T: Expire> {
    pub(crate) shard: Arc<Shard<T>>,
    pub(crate) key: TimerKey,
    pub(crate) deadline: u64,
    pub(crate) taken: T::Taken,
}

/// One wheel and its lock.
#[repr(align(128))]
pub(crate) struct Shard<T: Expire> {
    stored: ShortMutex<Stored<T>>,
    /// True if timers are armed here frequently enough that some need no reading of the clock. This is a hint; `stored` has the truth.
    is_busy: AtomicBool,
    /// Number of timers armed with a reading of the clock, up to `MANY`.
    armed: AtomicU32,
    number: u32,
    /// Present if pending values do not keep the timer themselves: then a sleep, which keeps its shard, also keeps the timer.
    _alive: Option<Arc<Alive<T>>>,
    hub: Arc<Hub<T>>,
    all: Weak<Shards<T>>,
}

/// The result of an attempt to arm a timer. A value that was not armed is returned.
pub(crate) enum Armed<T> {
    Pending(TimerKey),
    /// The tick has already fired.
    Due(T),
    /// The timer has ended.
    Closed(T),
    /// There is no driver to fire the value, and none could be started.
    NoDriver(T),
}

impl<T: Expire> Shard<T> {
    #[inline]
    pub(crate) fn hub(&self) -> &Arc<Hub<T>> {
        &self.hub
    }

    /// Returns true if the timer has a handle.
    pub(crate) fn has_timer(&self) -> bool {
        self.all.strong_count() > 0
    }

    /// Returns all shards of the timer while it has a handle.
    pub(crate) fn all(&self) -> Option<Arc<Shards<T>>> {
        self.all.upgrade()
    }

    /// Arms a timer unless its tick has already fired, and wakes the driver if it would sleep past that tick.
    #[inline]
    pub(crate) fn arm_unless_due(&self, tick: u64, value: T) -> Armed<T> {
        let stored = self.stored.lock();
        if tick <= stored.wheel.now() {
            return Armed::Due(value);
        }
        self.arm_in(stored, tick, value)
    }

    /// Arms a timer, and wakes the driver if it would sleep past the tick. If the tick has already fired, the timer is armed for the next
    /// tick.
    #[inline]
    pub(crate) fn arm(&self, tick: u64, value: T) -> Armed<T> {
        let mut stored = self.stored.lock();
        // Before this one, which may be due at the same tick.
        stored.date_all(&self.hub.clock, &self.hub.ticks);
        let tick = tick.max(self.hub.ticks.whole(stored.wheel.now().saturating_add(1)));
        self.arm_in(stored, tick, value)
    }

    /// Arms a timer that is due `delay` from now without reading the clock. This works only while one reading serves several timers here;
    /// otherwise the value is returned.
    #[inline]
    pub(crate) fn arm_undated(&self, delay: Duration, value: T) -> Result<TimerKey, T> {
        let hub = self.hub();
        let mut stored = self.stored.lock();
        if !stored.undated.is_looked_for() || hub.is_firing.load(Ordering::Acquire) || hub.is_closed() {
            return Err(value);
        }
        if stored.undated.is_full() {
            stored.date_all(&hub.clock, &hub.ticks);
        }
        let key = stored.wheel.insert_detached(value);
        stored.undated.push(key, delay);
        Ok(key)
    }

    /// Returns true if `arm_undated` is likely to succeed.
    #[inline]
    pub(crate) fn may_be_undated(&self) -> bool {
        self.is_busy.load(Ordering::Relaxed) && !self.hub.is_firing.load(Ordering::Relaxed)
    }

    /// Counts a timer that was armed with a reading of the clock. If many were armed in a short time, the driver reads the clock from now
    /// on.
    #[inline]
    pub(crate) fn looked(&self, now: Instant) {
        // Two concurrent threads may count as one: the count is a guess.
        let armed = self.armed.load(Ordering::Relaxed) + 1;
        self.armed.store(armed, Ordering::Relaxed);
        if armed >= MANY {
            self.have_it_looked_at(now);
        }
    }

    #[cold]
    #[inline(never)]
    fn have_it_looked_at(&self, now: Instant) {
        self.armed.store(0, Ordering::Relaxed);
        let mut stored = self.stored.lock();
        // Notify the driver under the lock, before any thread relies on its readings.
        if let Some(look) = stored.undated.many_were_armed(now, &self.hub.ticks) {
            let cannot_look = self.must_tell(look);
            stored.undated.told(!cannot_look);
            self.is_busy.store(!cannot_look, Ordering::Relaxed);
        }
    }

    #[inline]
    fn arm_in(&self, mut stored: ShortGuard<'_, Stored<T>>, tick: u64, value: T) -> Armed<T> {
        // Check under the lock: a thread that closes the timer is either seen here, or it takes the value out.
        if self.hub().closed.load(Ordering::Relaxed) {
            return Armed::Closed(value);
        }
        let key = stored.wheel.insert(tick, value);
        drop(stored);
        if self.must_tell(tick)
            && let Some(value) = T::take_back(&mut self.stored.lock(), key)
        {
            return Armed::NoDriver(value);
        }
        // The value may already have left. A closing thread took it out, or a driver that another thread could start has fired it.
        Armed::Pending(key)
    }

    /// Disarms a timer. Returns `None` if it has fired.
    #[inline]
    pub(crate) fn disarm(&self, key: TimerKey) -> Option<T> {
        self.stored.lock().wheel.remove(key)
    }

    fn take_due(&self, key: TimerKey) -> Option<T::Taken> {
        T::take_due(&mut self.stored.lock(), key)
    }

    /// Runs `with` on the stored wheel, under the lock.
    #[inline]
    pub(crate) fn with<R>(&self, with: impl FnOnce(&mut Stored<T>) -> R) -> R {
        with(&mut self.stored.lock())
    }

    /// Wakes the driver of a timer without handles, which may now end. Call it outside the lock, after a pending value was taken out
    /// without firing.
    #[inline]
    pub(crate) fn taken_out(&self) {
        let hub = self.hub();
        if hub.orphaned.load(Ordering::Acquire) {
            hub.driver.wake();
        }
    }

    /// Moves a pending timer. Returns false if it has fired. Among timers with equal deadlines, the time of the move decides the order of a
    /// postponed timer.
    pub(crate) fn rearm(&self, key: TimerKey, tick: u64) -> bool {
        let mut stored = self.stored.lock();
        let tick = tick.max(stored.wheel.now().saturating_add(1));
        let pending = stored.wheel.defer(key, tick);
        drop(stored);
        if pending {
            self.must_tell(tick);
        }
        pending
    }

    /// Runs `with` on a pending timer's value, under the lock. Returns `None` if the timer has fired.
    pub(crate) fn pending<R>(&self, key: TimerKey, with: impl FnOnce(&mut T) -> R) -> Option<R> {
        self.stored.lock().wheel.get_mut(key).map(with)
    }

    /// Returns true if the driver must be notified but cannot be.
    #[inline]
    fn must_tell(&self, tick: u64) -> bool {
        self.hub().alarm.is_later_than(tick) && !self.hub().tell(tick)
    }
}

/// Returns a small number for the thread, which is reused when the thread ends. No two threads share a shard unless more threads than
/// shards use timers.
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

/// The numbers in use by threads. The mutex is not the model checker's: the system creates and ends the threads.
static THREAD_NUMBERS: StdMutex<Vec<bool>> = StdMutex::new(Vec::new());

/// Returns the number of shards: one per core, up to 16. With more, the scan of a turn costs more than the contention it saves. The number
/// of cores is determined once, because the system reads it from files.
fn shard_count() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    let cores = *CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from));
    cores.min(16).next_power_of_two()
}

/// Maximum number of values taken from a shard under one lock and fired before the next search. Equal to the number of entries read at
/// once.
const TURN_BUDGET: usize = BATCH;

/// Number of entries whose memory an idle shard keeps: 40 KiB of wakers. A shard that has had long slots also keeps 32 KiB of notes.
const KEPT_CAPACITY: usize = 1024;
