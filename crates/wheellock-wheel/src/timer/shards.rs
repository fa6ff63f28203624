//! Wheels shared by threads: one per shard, each behind its own short mutex, and the turn that fires what is due in all.
//!
//! Owns who may touch which wheel, and how long the shared state lives. Knows ticks, not clocks: `now` is passed in.
//!
//! A thread keeps to one shard, so that its lock and its reference count are uncontended. Handles and pending sleeps keep a
//! shard, shards and handles keep [`Alive`], and the driver keeps only the [`Hub`]: when the last of the former goes, the
//! driver is told to end.

use std::boxed::Box;
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering as StdOrdering};
use std::sync::{Arc, OnceLock, Weak};
use std::vec::Vec;

use super::alarm::Alarm;
use super::clock::{Clock, Ticks};
use super::driver::{Driver, Expire};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, lock};
use crate::{TimerKey, Wheel};

/// What a driver needs, and nothing that keeps the timer alive.
pub(crate) struct Hub<T> {
    alarm: Alarm,
    shards: Mutex<Vec<Weak<Shard<T>>>>,
    closed: AtomicBool,
    /// Set when the driver has ended although the timer has not: whoever waits must look at the clock himself.
    abandoned: AtomicBool,
    pub(crate) driver: Driver,
    pub(crate) clock: Clock,
    pub(crate) ticks: Ticks,
    ticks_per_wheel: usize,
}

impl<T: Expire> Hub<T> {
    /// Takes up to `TURN_BUDGET` due values per shard into `due`, in order, and returns the tick of the next turn: not after
    /// `now` if something due is left, `None` if nothing is pending at all.
    pub(crate) fn turn(&self, now: u64, due: &mut Vec<(u64, T)>) -> Option<u64> {
        let asked = self.alarm.open();
        // A wish for a later tick stays promised even if its timer is gone: one idle wake-up then, in place of one per insert.
        let mut next = Some(asked).filter(|&tick| tick > now && tick != u64::MAX);
        let mut sources = 0;
        for shard in self.live_shards() {
            let mut wheel = lock(&shard.wheel);
            let before = due.len();
            wheel.advance_within(now, TURN_BUDGET, |deadline, value| due.push((deadline, value)));
            let pending = wheel.next_expiration();
            if pending.is_none() && wheel.capacity() > KEPT_CAPACITY {
                wheel.shrink_to_fit();
            }
            drop(wheel);
            sources += usize::from(due.len() > before);
            next = next.into_iter().chain(pending).min();
        }
        if let Some(next) = next {
            self.alarm.promise(next);
        }
        if sources > 1 {
            // Each shard's part is in order already, and the sort is stable.
            due.sort_by_key(|&(deadline, _)| deadline);
        }
        next
    }

    /// Takes every pending value out, due or not.
    pub(crate) fn drain(&self) -> Vec<T> {
        let mut all = Vec::new();
        for shard in self.live_shards() {
            lock(&shard.wheel).drain(|_, value| all.push(value));
        }
        all
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Tells everyone that no driver will come.
    pub(crate) fn abandon(&self) -> Vec<T> {
        self.abandoned.store(true, Ordering::Release);
        self.drain()
    }

    fn live_shards(&self) -> Vec<Arc<Shard<T>>> {
        let mut shards = lock(&self.shards);
        shards.retain(|shard| shard.strong_count() > 0);
        shards.iter().filter_map(Weak::upgrade).collect()
    }
}

/// Held by every handle and every shard; the driver ends when it goes.
pub(crate) struct Alive<T>(Arc<Hub<T>>);

impl<T> Drop for Alive<T> {
    fn drop(&mut self) {
        self.0.closed.store(true, Ordering::Release);
        self.0.driver.wake();
    }
}

/// All shards of a timer; what a timer handle points to.
pub(crate) struct Shards<T> {
    shards: Box<[OnceLock<Arc<Shard<T>>>]>,
    alive: Arc<Alive<T>>,
}

impl<T: Expire> Shards<T> {
    pub(crate) fn new(driver: Driver, clock: Clock, ticks: Ticks, ticks_per_wheel: usize) -> Self {
        let hub = Hub {
            alarm: Alarm::new(),
            shards: Mutex::new(Vec::new()),
            closed: AtomicBool::new(false),
            abandoned: AtomicBool::new(false),
            driver,
            clock,
            ticks,
            ticks_per_wheel,
        };
        let shards = (0..shard_count()).map(|_| OnceLock::new()).collect();
        Self { shards, alive: Arc::new(Alive(Arc::new(hub))) }
    }

    #[inline]
    pub(crate) fn hub(&self) -> &Arc<Hub<T>> {
        &self.alive.0
    }

    /// The calling thread's shard.
    #[inline]
    pub(crate) fn own(&self) -> &Arc<Shard<T>> {
        let index = thread_number() & (self.shards.len() - 1);
        self.shards[index].get_or_init(|| self.create())
    }

    #[cold]
    fn create(&self) -> Arc<Shard<T>> {
        let hub = self.hub();
        // Starting at the present, so that a deadline that has passed already is seen as such.
        let wheel = Wheel::starting_at(hub.ticks_per_wheel, hub.ticks.at_or_before(hub.clock.now()));
        let shard = Arc::new(Shard { wheel: Mutex::new(wheel), alive: self.alive.clone() });
        lock(&hub.shards).push(Arc::downgrade(&shard));
        shard
    }
}

/// One wheel and its lock.
#[repr(align(128))]
pub(crate) struct Shard<T> {
    wheel: Mutex<Wheel<T>>,
    alive: Arc<Alive<T>>,
}

/// What became of an attempt to arm a timer.
pub(crate) enum Armed {
    Pending(TimerKey),
    /// The tick has been fired already.
    Due,
    /// There is no driver (left) to fire it.
    NoDriver,
}

impl<T: Expire> Shard<T> {
    #[inline]
    pub(crate) fn hub(&self) -> &Arc<Hub<T>> {
        &self.alive.0
    }

    /// Arms a timer and wakes the driver if it would sleep past it. A tick that has been fired is not armed again.
    #[inline]
    pub(crate) fn arm(&self, tick: u64, value: T) -> Armed {
        let mut wheel = lock(&self.wheel);
        if tick <= wheel.now() {
            drop(wheel);
            return Armed::Due;
        }
        if self.hub().abandoned.load(Ordering::Relaxed) {
            drop(wheel);
            return Armed::NoDriver;
        }
        let key = wheel.insert(tick, value);
        drop(wheel);
        if self.must_tell(tick) {
            drop(self.disarm(key));
            return Armed::NoDriver;
        }
        Armed::Pending(key)
    }

    /// Disarms a timer: `None` if it has fired.
    #[inline]
    pub(crate) fn disarm(&self, key: TimerKey) -> Option<T> {
        lock(&self.wheel).remove(key)
    }

    /// Moves a pending timer; false if it has fired. The place among equals of a timer that moves back is its move's.
    pub(crate) fn rearm(&self, key: TimerKey, tick: u64) -> bool {
        let mut wheel = lock(&self.wheel);
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
        lock(&self.wheel).get_mut(key).map(with)
    }

    /// True if the driver has ended although the timer has not.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.hub().abandoned.load(Ordering::Acquire)
    }

    /// True if the driver had to be told and cannot be.
    #[inline]
    fn must_tell(&self, tick: u64) -> bool {
        self.hub().alarm.must_wake(tick) && !self.hub().start_or_wake()
    }
}

/// A number per thread that never changes: threads created one after the other get neighbouring shards.
#[inline]
fn thread_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    std::thread_local! {
        static OWN: Cell<usize> = Cell::new(NEXT.fetch_add(1, StdOrdering::Relaxed));
    }
    // A thread that is being torn down shares the first shard.
    OWN.try_with(Cell::get).unwrap_or(0)
}

/// One shard per core up to 16: beyond, the scan of a turn costs more than the contention it saves.
fn shard_count() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).min(16).next_power_of_two()
}

/// Values taken from a shard under one hold of its lock: at 130 ns for a far, scattered timer that is 130 us.
const TURN_BUDGET: usize = 1024;

/// Entries whose memory an idle shard keeps: 40 KiB of wakers.
const KEPT_CAPACITY: usize = 1024;
