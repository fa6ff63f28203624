//! Wheels shared by threads: one per shard, each behind its own short mutex, and the turn that fires what is due in all.
//!
//! Owns who may touch which wheel, how long the shared state lives, when one look at the clock does for many, and the demands on a value that
//! a timer fires.
//!
//! A thread keeps to one shard, so that its lock and its reference count are uncontended. Handles keep [`Alive`], and so do
//! shards while they have values that keep their timer from ending (sleepers always do: they keep their shard); the driver
//! keeps only the [`Hub`]. When the last that keeps [`Alive`] goes, the driver is told to end.

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
    /// What all values of one timer share.
    type Shared: Send + Sync;

    /// What is left of a value that has been taken out, to be run or given back outside the lock.
    type Taken: Send;

    /// Whether a pending value keeps its timer from ending. It is let go when nobody is left to move a manual clock.
    const KEEPS_TIMER: bool;

    /// Takes a pending value out, to be fired. `None` if somebody else was first. Runs under the shard's lock.
    fn take_due(stored: &mut Stored<Self>, key: TimerKey) -> Option<Self::Taken>;

    /// Takes a pending value out because its timer ends. `None` if somebody else was first. Runs under the shard's lock.
    fn take_left(stored: &mut Stored<Self>, key: TimerKey) -> Option<Self::Taken>;

    /// Takes a pending value back, as if it had never been armed. `None` if somebody else was first. Runs under the shard's lock.
    fn take_back(stored: &mut Stored<Self>, key: TimerKey) -> Option<Self>;

    /// Reads a byte of what it points to, if it can. For a batch in a row the waits for memory overlap; later, one by one, they would
    /// add up, and with a million timers they are most of the cost.
    fn fetch(&self);

    /// Runs outside every lock; may panic.
    fn expire(taken: Self::Taken, shard: &Arc<Shard<Self>>, key: TimerKey, tick: u64);

    /// Whether it has not left yet.
    fn is_pending(&self) -> bool {
        true
    }
}

/// What a driver needs, and nothing that keeps the timer alive, but for [`orphans`](Self::orphans).
pub(crate) struct Hub<T: Expire> {
    alarm: Alarm,
    shards: Mutex<Vec<Weak<Shard<T>>>>,
    /// What is due and has not been fired yet, in order. It stays in its wheel until then. Locked before any shard.
    due: ShortMutex<VecDeque<Due>>,
    /// The driver fires what it has found, and may not look at the clock for long. Known to whoever locks a shard after it has.
    is_firing: AtomicBool,
    /// The driver was started. Until then nothing is asked of it, for it may be refused: it looks at everything when it starts.
    is_driven: AtomicBool,
    /// No timer will be fired any more: nobody is left to wait for one, or the timer was stopped, or its driver has ended.
    closed: AtomicBool,
    /// Every handle is gone; values are pending that keep the timer from ending.
    orphaned: AtomicBool,
    /// The shards of those values, which keep the timer alive until the driver finds that all have fired or been cancelled.
    orphans: Mutex<Vec<Orphan<T>>>,
    pub(crate) driver: Driver,
    /// The process that made the timer: the only one in which its driver can run.
    pub(crate) process: u32,
    pub(crate) clock: Clock,
    pub(crate) ticks: Ticks,
    pub(crate) ticks_per_wheel: usize,
    pub(crate) shared: T::Shared,
}

/// A due value: its deadline, and where it is.
#[derive(Clone, Copy)]
struct Due {
    tick: u64,
    key: TimerKey,
    shard: u32,
}

/// A shard whose pending values keep their timer, which has no handle any more.
struct Orphan<T: Expire> {
    shard: Arc<Shard<T>>,
    _alive: Arc<Alive<T>>,
}

impl<T: Expire> Hub<T> {
    /// Finds up to `TURN_BUDGET` due values per shard, in order, for [`fire`](Self::fire). Returns the step of the next turn:
    /// not after that of `present` if something due is left, `None` if nothing is pending at all.
    pub(crate) fn turn(&self, present: Instant) -> Option<u64> {
        let now = self.ticks.at_or_before(present);
        let asked = self.alarm.open();
        // A wish for a later tick stays promised even if its timer is gone: one idle wake-up then, in place of one per insert.
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
        // Before anything runs, or every insert meanwhile would have to tell.
        if let Some(next) = next {
            self.alarm.promise(next);
        }
        if !due.is_empty() {
            self.is_firing.store(true, Ordering::Release);
            // Those of shards, too, that were made since: whoever makes one later knows what was said before it.
            for shard in self.live_shards() {
                shard.stored.lock().date_all(&self.clock, &self.ticks);
            }
        }
        if sources > 1 {
            // Each shard's part is in order already, and the sort is stable.
            due.make_contiguous().sort_by_key(|due| due.tick);
        }
        next
    }

    /// Fires what turns have found, one after the other, and says whether there was anything. A panic must not take the others with it.
    pub(crate) fn fire(&self) -> bool {
        let Some(mut due) = self.next_due() else { return false };
        let outer = RUNNING.with(|running| running.replace(self.address()));
        let mut shards = self.live_shards();
        loop {
            if !shards.iter().any(|shard| shard.number == due.shard) {
                // Made since, or gone together with all that was in it.
                shards = self.live_shards();
            }
            if let Some(shard) = shards.iter().find(|shard| shard.number == due.shard)
                && let Some(taken) = shard.take_due(due.key)
            {
                // What was taken is dropped in there too.
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

    /// Makes a thread of a model the driver's.
    #[cfg(all(test, loom))]
    pub(crate) fn adopt(&self, own: crate::sync::Unparker) {
        self.driver.adopt(own);
        self.is_driven.store(true, Ordering::Release);
    }

    /// True while a value of this timer is being fired by the calling thread.
    pub(crate) fn fires_here(&self) -> bool {
        RUNNING.with(|running| running.get()) == self.address()
    }

    /// Values that are armed and have not left.
    pub(crate) fn pending(&self) -> usize {
        self.live_shards().iter().map(|shard| shard.stored.lock().pending()).sum()
    }

    /// Whether some have no deadline yet.
    #[cfg(all(test, loom))]
    pub(crate) fn has_undated(&self) -> bool {
        self.live_shards().iter().any(|shard| !shard.stored.lock().undated.is_empty())
    }

    /// When the driver has promised to turn again.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn promised(&self) -> Option<Instant> {
        let step = self.alarm.open();
        self.alarm.promise(step);
        self.ticks.start_of(step)
    }

    /// Values that take up memory, whether or not they have left.
    #[cfg(test)]
    pub(crate) fn entries(&self) -> usize {
        self.live_shards().iter().map(|shard| shard.stored.lock().wheel.len()).sum()
    }

    /// Ends the timer and takes everything out that has not been fired. Nothing can be armed afterwards.
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

    /// Wakes the driver, which is started if it has not been. False if it cannot be.
    #[cold]
    #[inline(never)]
    pub(crate) fn start_or_wake(self: &Arc<Self>) -> bool {
        let has_driver = self.start_or_wake_driver();
        if has_driver {
            self.is_driven.store(true, Ordering::Release);
        }
        has_driver
    }

    /// Tells the driver of a timer that is due before it would look. False if there is none, and none can be started.
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

    /// One turn of a driver, at the time that the clock tells.
    fn turn_and_fire(&self) -> Next {
        if self.is_closed() {
            return Next::Never;
        }
        let next = self.turn(self.clock.now());
        self.fire();
        // Nothing pending, or nothing within the next centuries.
        let next = next.and_then(|tick| self.ticks.start_of(tick));
        if self.orphaned.load(Ordering::Acquire) {
            self.let_orphans_go(next.is_some());
        }
        next.map_or(Next::WhenWoken, Next::At)
    }

    /// Lets go of shards without pending values. Unless any value will fire, it lets go of all: a value without a deadline in
    /// reach would keep the driver for ever. The last one ends the timer.
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
        for Left { shard, key, deadline, taken } in self.0.close() {
            contained(|| T::expire(taken, &shard, key, deadline));
        }
    }
}

/// Held by every handle, and by what else keeps the timer; the driver ends when it goes.
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
        ticks: Ticks,
        ticks_per_wheel: usize,
        shared: T::Shared,
    ) -> Arc<Self> {
        let hub = Hub {
            alarm: Alarm::new(),
            shards: Mutex::new(Vec::new()),
            due: ShortMutex::new(VecDeque::new()),
            is_firing: AtomicBool::new(false),
            is_driven: AtomicBool::new(false),
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

    /// The calling thread's shard.
    #[inline]
    pub(crate) fn own(&self) -> &Arc<Shard<T>> {
        self.nth(self.own_index())
    }

    /// The number of the calling thread's shard.
    #[inline]
    pub(crate) fn own_index(&self) -> usize {
        thread_number() & (self.shards.len() - 1)
    }

    /// A shard by its number.
    #[inline]
    pub(crate) fn nth(&self, index: usize) -> &Arc<Shard<T>> {
        self.shards[index].get_or_init(|| self.create(index))
    }

    /// A shard that has been used.
    #[inline]
    pub(crate) fn get(&self, index: usize) -> Option<&Arc<Shard<T>>> {
        self.shards.get(index)?.get()
    }

    #[cold]
    fn create(&self, index: usize) -> Arc<Shard<T>> {
        let hub = self.hub();
        // Starting at the present, so that a deadline that has passed already is seen as such.
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
        // Before the look at what is pending: who takes the last one out after that look sees it, and tells the driver.
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

/// A wheel, and what is told of those that have left it.
pub(crate) struct Stored<T> {
    pub(crate) wheel: Wheel<T>,
    /// Values that are kept although their timer has fired or was cancelled.
    pub(crate) ended: usize,
    /// Apart, so that what every call touches lies together.
    undated: Box<Undated>,
}

impl<T: Expire> Stored<T> {
    /// Gives those that were armed without a look at the clock their deadlines, by one look for all of them. It comes after they were armed
    /// because it is taken under the lock.
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

    /// Gives the memory of many past timers back, if none is left.
    fn shrink(&mut self) {
        if self.wheel.is_empty() && self.wheel.capacity() > KEPT_CAPACITY {
            self.wheel.shrink_to_fit();
        }
    }
}

/// What a timer that ends has not fired.
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
    /// So many are armed here that some of them need no look at the clock: a hint, the truth is in `stored`.
    is_busy: AtomicBool,
    /// How many were armed with a look at the clock, up to `MANY`.
    armed: AtomicU32,
    number: u32,
    /// A shard that is kept by those who wait keeps the timer; one that is kept by those who only ask does not.
    _alive: Option<Arc<Alive<T>>>,
    hub: Arc<Hub<T>>,
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
        &self.hub
    }

    /// Whether the timer has a handle.
    pub(crate) fn has_timer(&self) -> bool {
        self.all.strong_count() > 0
    }

    /// All shards of the timer, as long as it has a handle.
    pub(crate) fn all(&self) -> Option<Arc<Shards<T>>> {
        self.all.upgrade()
    }

    /// Arms a timer, unless its tick has been fired already, and wakes the driver if it would sleep past it.
    #[inline]
    pub(crate) fn arm_unless_due(&self, tick: u64, value: T) -> Armed<T> {
        let stored = self.stored.lock();
        if tick <= stored.wheel.now() {
            return Armed::Due(value);
        }
        self.arm_in(stored, tick, value)
    }

    /// Arms a timer, at the next tick if its own has been fired already, and wakes the driver if it would sleep past it.
    #[inline]
    pub(crate) fn arm(&self, tick: u64, value: T) -> Armed<T> {
        let mut stored = self.stored.lock();
        // Before this one, which may be due at the same tick.
        stored.date_all(&self.hub.clock, &self.hub.ticks);
        let tick = tick.max(self.hub.ticks.whole(stored.wheel.now().saturating_add(1)));
        self.arm_in(stored, tick, value)
    }

    /// Arms a timer that is due `delay` from now without a look at the clock, if so many are armed here that one look does for several; the
    /// value comes back if not.
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

    /// Whether it is worth the try.
    #[inline]
    pub(crate) fn may_be_undated(&self) -> bool {
        self.is_busy.load(Ordering::Relaxed) && !self.hub.is_firing.load(Ordering::Relaxed)
    }

    /// One more is armed, by somebody who has looked at the clock. Where it is one of many, the driver is made to look from now on.
    #[inline]
    pub(crate) fn looked(&self, now: Instant) {
        // Two threads may count as one: it is a guess.
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
        // Told before anybody relies on it, hence under the lock.
        if let Some(look) = stored.undated.many_were_armed(now, &self.hub.ticks) {
            let cannot_look = self.must_tell(look);
            stored.undated.told(!cannot_look);
            self.is_busy.store(!cannot_look, Ordering::Relaxed);
        }
    }

    #[inline]
    fn arm_in(&self, mut stored: ShortGuard<'_, Stored<T>>, tick: u64, value: T) -> Armed<T> {
        // Under the lock, so that whoever closes the timer either is seen here or takes the value out.
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
        // Or it has left meanwhile: it was taken out by who closes the timer, or fired by a driver whom somebody else could start.
        Armed::Pending(key)
    }

    /// Disarms a timer: `None` if it has fired.
    #[inline]
    pub(crate) fn disarm(&self, key: TimerKey) -> Option<T> {
        self.stored.lock().wheel.remove(key)
    }

    fn take_due(&self, key: TimerKey) -> Option<T::Taken> {
        T::take_due(&mut self.stored.lock(), key)
    }

    /// Runs `with` on the wheel, under the lock.
    #[inline]
    pub(crate) fn with<R>(&self, with: impl FnOnce(&mut Stored<T>) -> R) -> R {
        with(&mut self.stored.lock())
    }

    /// After a pending value was taken out by other means than firing, outside the lock.
    #[inline]
    pub(crate) fn taken_out(&self) {
        let hub = self.hub();
        if hub.orphaned.load(Ordering::Acquire) {
            hub.driver.wake();
        }
    }

    /// Moves a pending timer; false if it has fired. The place among equals of a timer that moves back is its move's.
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

    /// Runs `with` on a pending timer's value, under the lock; `None` if it has fired.
    pub(crate) fn pending<R>(&self, key: TimerKey, with: impl FnOnce(&mut T) -> R) -> Option<R> {
        self.stored.lock().wheel.get_mut(key).map(with)
    }

    /// True if the driver had to be told and cannot be.
    #[inline]
    fn must_tell(&self, tick: u64) -> bool {
        self.hub().alarm.is_later_than(tick) && !self.hub().tell(tick)
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

/// One shard per core up to 16: beyond, the scan of a turn costs more than the contention it saves. How many cores there are is asked
/// once: the answer is read from files.
fn shard_count() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    let cores = *CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from));
    cores.min(16).next_power_of_two()
}

/// Values taken from a shard under one hold of its lock, and fired before the next are looked for: as many as are read in one go.
const TURN_BUDGET: usize = BATCH;

/// Entries whose memory an idle shard keeps: 40 KiB of wakers. One that has had long slots keeps 32 KiB of notes beside them.
const KEPT_CAPACITY: usize = 1024;
