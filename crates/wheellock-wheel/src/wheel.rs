//! Timing wheel: deadlines in ticks in, expired values out.
//!
//! This module owns the slots and the firing order. It does not know a clock, a thread or a waker: the caller always passes `now`.
//!
//! Level 0 is a sliding window of `ticks_per_wheel` slots, one tick each. Later deadlines wait in overflow levels of 64 slots. Each slot of
//! an overflow level is as wide as the whole level below. When a slot's start is reached, its entries move down. An entry moves at most
//! once per level, and never if its deadline was within the window.

use alloc::boxed::Box;
use alloc::vec;
use core::fmt;

use crate::ahead::{self, Ahead, WALKS};
use crate::occupancy::Occupancy;
use crate::slab::{Key, Links, NIL, Slab, Taken};

/// Key of one timer of one [`Wheel`]. A key is never reused: the key of a fired or removed timer never matches again.
///
/// ```
/// use wheellock_wheel::{TimerKey, Wheel};
///
/// let mut wheel = Wheel::new(512);
/// let request: TimerKey = wheel.insert(3_000, "request");
/// wheel.advance(3_000, |_, name| assert_eq!(name, "request"));
/// let other = wheel.insert(6_000, "other");
/// assert_ne!(request, other);
/// assert_eq!(wheel.remove(request), None); // never what came after it
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TimerKey(Key);

impl fmt::Debug for TimerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TimerKey({}#{})", self.0.index(), self.0.generation())
    }
}

const _: () = assert!(size_of::<Option<TimerKey>>() == 8);

/// A single-owner timing wheel. Time is a `u64` of ticks; the caller chooses the length of a tick.
///
/// Insert, remove and reschedule are O(1), and the memory of a removed timer is reused at once. [`advance`](Self::advance) jumps from one
/// occupied slot to the next: an hour without timers costs the same as one tick. Timers fire exactly in the order of their deadlines.
/// Timers with equal deadlines fire in the order of insertion.
///
/// ```
/// use wheellock_wheel::Wheel;
///
/// let mut wheel = Wheel::new(512);
/// let lease = wheel.insert(30_000, "lease");
/// wheel.insert(3_000, "request");
/// assert_eq!(wheel.next_expiration(), Some(512 * 5)); // a lower bound: the start of the slot that holds it
///
/// let mut fired = Vec::new();
/// wheel.advance(3_000, |deadline, name| fired.push((deadline, name)));
/// assert_eq!(fired, [(3_000, "request")]);
///
/// assert_eq!(wheel.remove(lease), Some("lease"));
/// assert_eq!(wheel.remove(lease), None);
/// ```
pub struct Wheel<T> {
    now: u64,
    /// Number of slots of level 0, minus one.
    mask: u64,
    /// log2 of the number of slots of level 0.
    bits: u32,
    /// One bit for each level of `far` that holds an entry.
    far_levels: u32,
    /// The overflow slot, starting at `now`, that is only partly moved because a budget ran out. `NIL` if every slot is complete.
    half_moved: u32,
    near: Occupancy,
    far: [u64; MAX_FAR_LEVELS],
    /// The first entry of each slot, level 0 first. A slot is a circular list: the last entry is the `prev` of the first.
    heads: Box<[u32]>,
    slab: Slab<T>,
    /// The prefetcher, allocated once a slot is long. The box keeps the fields that every call reads close together.
    ahead: Option<Box<Ahead>>,
}

impl<T> Wheel<T> {
    /// Creates an empty wheel at tick 0.
    ///
    /// `ticks_per_wheel` is rounded up to a power of two and clamped to `1..=65_536`. It affects only the cost. A deadline within
    /// `ticks_per_wheel` ticks is placed once; a later deadline moves at least once.
    #[must_use]
    pub fn new(ticks_per_wheel: usize) -> Self {
        Self::starting_at(ticks_per_wheel, 0)
    }

    /// Creates an empty wheel at tick `now`.
    #[must_use]
    pub fn starting_at(ticks_per_wheel: usize, now: u64) -> Self {
        let slots = ticks_per_wheel.clamp(1, MAX_TICKS_PER_WHEEL).next_power_of_two();
        let bits = slots.trailing_zeros();
        let far_levels = (u64::BITS - bits).div_ceil(FAR_BITS) as usize;
        Self {
            now,
            mask: slots as u64 - 1,
            bits,
            far_levels: 0,
            half_moved: NIL,
            near: Occupancy::new(slots),
            far: [0; MAX_FAR_LEVELS],
            heads: vec![NIL; slots + far_levels * FAR_SLOTS].into(),
            slab: Slab::new(),
            ahead: None,
        }
    }

    /// Adds a timer. A deadline in the past counts as [`now`](Self::now). Such timers fire at the next advance, in the order of their
    /// insertion. `u64::MAX` is never reached in practice.
    ///
    /// # Panics
    /// Panics if 2<sup>32</sup> - 1 timers are already pending.
    #[inline]
    pub fn insert(&mut self, deadline: u64, value: T) -> TimerKey {
        let when = deadline.max(self.now);
        let slot = self.slot_for(when);
        let first = self.heads[slot as usize];
        let last = if first == NIL { NIL } else { self.slab[first].prev };
        let key = self.slab.insert(when, slot, first, last, value);
        self.close_ring(slot, first, last, key.index());
        TimerKey(key)
    }

    /// Adds a value without a slot. [`attach`](Self::attach) gives it a slot later.
    #[cfg(feature = "std")]
    #[inline]
    pub(crate) fn insert_detached(&mut self, value: T) -> TimerKey {
        TimerKey(self.slab.insert(u64::MAX, DETACHED, NIL, NIL, value))
    }

    /// Gives a detached value its deadline. Does nothing if the value has a deadline or was removed.
    #[cfg(feature = "std")]
    pub(crate) fn attach(&mut self, key: TimerKey, deadline: u64) {
        if self.slab.slot(key.0) == Some(DETACHED) {
            self.place_last(key.0.index(), deadline.max(self.now));
        }
    }

    /// Removes a pending timer and returns its value. Returns `None` if the timer has fired or was removed.
    #[inline]
    pub fn remove(&mut self, key: TimerKey) -> Option<T> {
        let Taken { slot, links, value } = self.slab.take(key.0)?;
        if slot != DETACHED {
            self.unlink(slot, key.0.index(), links);
        }
        Some(value)
    }

    /// Removes a timer like [`remove`](Self::remove), but drops the value in place. Returns false if the key matches no timer.
    #[cfg(feature = "std")]
    #[inline]
    pub(crate) fn discard(&mut self, key: TimerKey) -> bool {
        let Some((slot, links)) = self.slab.discard(key.0) else { return false };
        if slot != DETACHED {
            self.unlink(slot, key.0.index(), links);
        }
        true
    }

    /// Takes a timer out of its slot but keeps its value. The timer will not fire, and its key matches until [`remove`](Self::remove).
    /// Returns `None` if the timer has fired or was removed.
    #[cfg(feature = "std")]
    pub(crate) fn detach(&mut self, key: TimerKey) -> Option<&mut T> {
        let slot = self.slab.slot(key.0)?;
        if slot != DETACHED {
            self.unlink(slot, key.0.index(), self.slab[key.0.index()].links());
            self.slab.set_slot(key.0.index(), DETACHED);
        }
        self.slab.value_mut(key.0)
    }

    /// [Detaches](Self::detach) all timers. Detaching them one by one would read the neighbours of each timer.
    #[cfg(feature = "std")]
    pub(crate) fn detach_all(&mut self) {
        for slot in 0..truncate(self.heads.len() as u64) {
            if std::mem::replace(&mut self.heads[slot as usize], NIL) != NIL {
                self.unmark(slot);
            }
        }
        self.slab.set_slots(DETACHED);
    }

    /// Moves a pending timer to a new deadline. The effect is that of a remove and an insert, but the key stays the same. Returns false if
    /// the timer has fired or was removed.
    #[inline]
    pub fn reschedule(&mut self, key: TimerKey, deadline: u64) -> bool {
        let Some(slot) = self.slab.slot(key.0).filter(|&slot| slot != DETACHED) else { return false };
        self.unlink(slot, key.0.index(), self.slab[key.0.index()].links());
        self.place_last(key.0.index(), deadline.max(self.now));
        true
    }

    /// Moves a timer like [`reschedule`](Self::reschedule), but only records a *later* deadline. The timer moves when its old slot is
    /// reached. This is cheaper for a deadline that is postponed repeatedly.
    ///
    /// Until the timer moves, [`next_expiration`](Self::next_expiration) may still return the old deadline. Among timers with equal
    /// deadlines, the time of the move decides the order of a deferred timer.
    #[inline]
    pub fn defer(&mut self, key: TimerKey, deadline: u64) -> bool {
        if self.slab.slot(key.0).is_none_or(|slot| slot == DETACHED) {
            return false;
        }
        let entry = &mut self.slab[key.0.index()];
        if deadline >= entry.when {
            entry.when = deadline;
            return true;
        }
        self.reschedule(key, deadline)
    }

    /// Returns the value of a pending timer.
    #[must_use]
    pub fn get(&self, key: TimerKey) -> Option<&T> {
        self.slab.value(key.0)
    }

    /// Returns the value of a pending timer for modification in place.
    #[inline]
    #[must_use]
    pub fn get_mut(&mut self, key: TimerKey) -> Option<&mut T> {
        self.slab.value_mut(key.0)
    }

    /// Returns the deadline of a pending timer, in ticks.
    #[must_use]
    pub fn deadline(&self, key: TimerKey) -> Option<u64> {
        self.slab.slot(key.0).map(|_| self.slab[key.0.index()].when)
    }

    /// Moves to tick `now` and passes every timer due by then to `sink`, with its deadline, in order. A `now` before the wheel's own time
    /// counts as the wheel's own time.
    pub fn advance(&mut self, now: u64, sink: impl FnMut(u64, T)) {
        self.advance_within(now, usize::MAX, sink);
    }

    /// Advances like [`advance`](Self::advance), but stops after `budget` timers. A timer that fires and a timer that moves between levels
    /// each count as one. Returns true if every due timer has fired. Otherwise the next call continues at the same point, in order.
    pub fn advance_within(&mut self, now: u64, budget: usize, mut sink: impl FnMut(u64, T)) -> bool {
        let take = |wheel: &mut Self, head| {
            if let Some((when, value)) = wheel.fire(head) {
                sink(when, value);
            }
        };
        self.run(now, &mut { budget }, |_| (), take)
    }

    /// Advances like [`advance_within`](Self::advance_within), but [detaches](Self::detach) each due timer and passes its key to `sink`.
    /// `fetch` reads the data behind a value beforehand.
    #[cfg(feature = "std")]
    pub(crate) fn detach_due(
        &mut self,
        now: u64,
        budget: usize,
        fetch: impl Fn(&T),
        mut sink: impl FnMut(u64, TimerKey),
    ) -> bool {
        self.run(now, &mut { budget }, fetch, |wheel, head| {
            let when = wheel.slab[head].when;
            if wheel.moved_on(head, when) {
                return;
            }
            wheel.unlink(wheel.near_slot(wheel.now), head, wheel.slab[head].links());
            wheel.slab.set_slot(head, DETACHED);
            if let Some(key) = wheel.slab.key(head) {
                sink(when, TimerKey(key));
            }
        })
    }

    /// Returns the next timer due by tick `now`. Returns `None` if no timer is due any more; the wheel has then moved to `now`.
    ///
    /// A loop that inserts a due timer for each timer that it takes never ends.
    pub fn poll(&mut self, now: u64) -> Option<(u64, T)> {
        loop {
            let next = self.step(now)?;
            while let Some(head) = self.first(self.near_slot(next)) {
                if let Some(fired) = self.fire(head) {
                    return Some(fired);
                }
            }
        }
    }

    /// Returns the earliest tick at which [`advance`](Self::advance) may have work, or `None` if no timer is pending. This is the earliest
    /// deadline if that timer is in level 0. Otherwise it is the start of the timer's overflow slot, a lower bound.
    #[inline]
    #[must_use]
    pub fn next_expiration(&self) -> Option<u64> {
        let near = self.next_near();
        match self.next_far() {
            Some((_, start)) => Some(near.map_or(start, |near| near.min(start))),
            None => near,
        }
    }

    /// Returns the tick until which a driver may sleep. Unlike [`next_expiration`](Self::next_expiration), this looks into the first
    /// overflow slot. The result is the earliest deadline itself, unless that slot holds more than 32 timers. A driver thus wakes once per
    /// isolated timer, not twice.
    #[must_use]
    pub fn next_wakeup(&self) -> Option<u64> {
        let near = self.next_near();
        let Some((slot, start)) = self.next_far() else { return near };
        let far = self.earliest_in(slot, start).unwrap_or(start);
        Some(near.map_or(far, |near| near.min(far)))
    }

    /// Returns the number of pending timers.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.slab.len()
    }

    /// Returns true if no timer is pending.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.slab.len() == 0
    }

    /// Returns the wheel's own time: the largest tick ever passed to [`advance`](Self::advance), or less if a budget ran out.
    #[inline]
    #[must_use]
    pub fn now(&self) -> u64 {
        self.now
    }

    /// Returns the number of slots of level 0, after rounding.
    #[must_use]
    pub fn ticks_per_wheel(&self) -> usize {
        self.heads.len() - (u64::BITS - self.bits).div_ceil(FAR_BITS) as usize * FAR_SLOTS
    }

    /// Returns all pending timers as `(key, deadline, value)`, in an unspecified order.
    pub fn iter(&self) -> impl Iterator<Item = (TimerKey, u64, &T)> {
        self.slab.iter().map(|(key, when, value)| (TimerKey(key), when, value))
    }

    /// Removes every pending timer and passes each to `sink`, with its deadline. The wheel's time does not change.
    pub fn drain(&mut self, mut sink: impl FnMut(u64, T)) {
        for slot in 0..u32::try_from(self.heads.len()).unwrap_or(NIL) {
            while let Some(head) = self.first(slot) {
                let when = self.slab[head].when;
                let Some(value) = self.slab.key(head).and_then(|key| self.remove(TimerKey(key))) else {
                    break;
                };
                sink(when, value);
            }
        }
    }

    /// Returns the number of timers that fit without another allocation.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.slab.capacity()
    }

    /// Frees the memory of past timers if no timer is pending. Old keys still match nothing.
    pub fn shrink_to_fit(&mut self) {
        self.slab.release();
    }

    /// Visits the occupied slots up to `target`. `take` must take out the first entry; it is called until the slot is empty.
    #[inline]
    fn run(
        &mut self,
        target: u64,
        budget: &mut usize,
        fetch: impl Fn(&T),
        mut take: impl FnMut(&mut Self, u32),
    ) -> bool {
        let target = self.depart(target);
        loop {
            let far = self.next_far();
            let near = self.next_near();
            let next = match (near, far) {
                (Some(near), Some((_, start))) => near.min(start),
                (Some(near), None) => near,
                (None, Some((_, start))) => start,
                (None, None) => break,
            };
            if next > target {
                break;
            }
            self.now = next;
            if let Some((slot, start)) = far
                && start == next
                && !self.cascade(slot, budget)
            {
                return false;
            }
            let slot = self.near_slot(next);
            let mut read = 0;
            while let Some(head) = self.first(slot) {
                if read == 0 {
                    if *budget == 0 {
                        return false;
                    }
                    read = self.read(head, *budget, &fetch);
                    *budget -= read;
                }
                read -= 1;
                take(self, head);
            }
            *budget += read;
        }
        self.now = target;
        true
    }

    /// Moves to the next tick with work, at most to `target`. Everything due at that tick is then in level 0.
    fn step(&mut self, target: u64) -> Option<u64> {
        let target = self.depart(target);
        match self.next_expiration() {
            Some(next) if next <= target => {
                self.now = next;
                if let Some((slot, start)) = self.next_far()
                    && start == next
                {
                    self.cascade(slot, &mut { usize::MAX });
                }
                Some(next)
            }
            _ => {
                self.now = target;
                None
            }
        }
    }

    /// Prepares for moving time, and returns the tick to move to at most.
    fn depart(&mut self, target: u64) -> u64 {
        if self.half_moved != NIL && self.heads[self.half_moved as usize] == NIL {
            // The last entries of that slot were removed one by one. An insert can refill the slot as soon as `now` is no longer its start.
            self.half_moved = NIL;
        }
        target.max(self.now)
    }

    /// Reads the next entries of the slot of `now`, beginning with `head`, and the data behind their values. The waits for memory overlap,
    /// and firing or detaching finds the entries in the cache. Returns the number of entries, at least 1, after which the caller must call
    /// again.
    #[inline(never)]
    fn read(&mut self, head: u32, at_most: usize, fetch: &impl Fn(&T)) -> usize {
        if let Some(ahead) = &mut self.ahead
            && ahead.knows(self.now, head)
        {
            return ahead.read(self.now, head, at_most, &self.slab, fetch);
        }
        let mut slots = [(self.now, head); WALKS];
        let short = ahead::is_short(&self.slab, head);
        let count = if short { 0 } else { self.next_slots(&mut slots) };
        if count < 2 {
            if !short {
                ahead::read_from_both_ends(&self.slab, head, at_most);
            }
            ahead::read_values(&self.slab, head, at_most, fetch);
            return at_most;
        }
        let ahead = self.ahead.get_or_insert_with(|| Box::new(Ahead::new()));
        ahead.walk(&slots[..count], &self.slab);
        ahead.read(self.now, head, at_most, &self.slab, fetch)
    }

    /// Finds the next occupied slots within this turn of the wheel, each with its tick and first entry. Returns their number.
    fn next_slots(&self, slots: &mut [(u64, u32)]) -> usize {
        let mut ahead = 0;
        for (count, place) in slots.iter_mut().enumerate() {
            let from = self.now.wrapping_add(ahead);
            let Some(slot) = self.near.first_from(self.near_slot(from) as usize) else { return count };
            let tick = from.wrapping_add((slot as u64).wrapping_sub(from) & self.mask);
            if ahead > self.mask || tick.wrapping_sub(self.now) > self.mask {
                return count;
            }
            *place = (tick, self.heads[slot]);
            ahead = tick.wrapping_sub(self.now) + 1;
        }
        slots.len()
    }

    /// Takes the first entry out of the slot of `now`. A deferred entry moves to its new slot instead.
    #[inline]
    fn fire(&mut self, head: u32) -> Option<(u64, T)> {
        let when = self.slab[head].when;
        if self.moved_on(head, when) {
            return None;
        }
        let key = self.slab.key(head)?;
        self.remove(TimerKey(key)).map(|value| (when, value))
    }

    /// Moves the first entry of the slot of `now` to its new slot if it was deferred. Returns true if it moved.
    #[inline]
    fn moved_on(&mut self, head: u32, when: u64) -> bool {
        let deferred = when > self.now;
        if deferred {
            self.unlink(self.near_slot(self.now), head, self.slab[head].links());
            self.place_last(head, when);
        }
        deferred
    }

    /// Moves the entries of an overflow slot down when `now` is its start. The last entry moves first, and each goes to the front of its
    /// new slot. Every entry here is older than the entries with equal deadlines below. This keeps the order of insertion.
    fn cascade(&mut self, slot: u32, budget: &mut usize) -> bool {
        if let Some(first) = self.first(slot) {
            ahead::read_from_both_ends(&self.slab, first, *budget);
        }
        while let Some(head) = self.first(slot) {
            if *budget == 0 {
                self.half_moved = slot;
                return false;
            }
            *budget -= 1;
            let last = self.slab[head].prev;
            self.unlink(slot, last, self.slab[last].links());
            let to = self.slot_for(self.slab[last].when);
            self.slab.set_slot(last, to);
            self.link_last(to, last);
            // In a circular list the front is the back with the head moved back by one.
            self.heads[to as usize] = last;
        }
        self.half_moved = NIL;
        true
    }

    #[inline]
    fn next_near(&self) -> Option<u64> {
        let here = self.near_slot(self.now);
        let slot = self.near.first_from(here as usize)? as u64;
        Some(self.now.wrapping_add(slot.wrapping_sub(self.now) & self.mask))
    }

    /// Returns the first occupied overflow slot and its start. The lowest occupied level has this slot, because all its slots lie within
    /// one slot of the level above. That slot contains `now`. The exception is a half-moved slot, which may already have filled the levels
    /// below.
    #[inline]
    fn next_far(&self) -> Option<(u32, u64)> {
        if self.far_levels == 0 {
            return None;
        }
        if self.half_moved != NIL && self.heads[self.half_moved as usize] != NIL {
            return Some((self.half_moved, self.now));
        }
        let level = self.far_levels.trailing_zeros();
        let digit = self.far[level as usize].trailing_zeros();
        let shift = self.bits + FAR_BITS * level;
        let block = self.now >> shift & !(FAR_SLOTS as u64 - 1);
        Some((self.far_slot(level, digit), (block | u64::from(digit)) << shift))
    }

    /// Returns the earliest deadline in the first overflow slot, or `None` if the slot holds more than `LOOKED_AT` entries. The result is
    /// at most the slot's end. A deferred entry may be due later, but other slots come first from there.
    fn earliest_in(&self, slot: u32, start: u64) -> Option<u64> {
        let first = self.first(slot).filter(|_| slot != self.half_moved)?;
        let (level, _) = self.far_position(slot)?;
        let width = 1_u64 << (self.bits + FAR_BITS * truncate(level as u64));
        let (mut index, mut earliest) = (first, start.saturating_add(width));
        for _ in 0..LOOKED_AT {
            earliest = earliest.min(self.slab[index].when);
            index = self.slab[index].next;
            if index == first {
                return Some(earliest);
            }
        }
        None
    }

    /// Returns the slot of an entry due at `when`, which must not be before `now`.
    #[inline]
    fn slot_for(&self, when: u64) -> u32 {
        if when - self.now <= self.mask {
            return self.near_slot(when);
        }
        let differs = u64::BITS - 1 - (when ^ self.now).leading_zeros();
        let level = (differs - self.bits) / FAR_BITS;
        let digit = when >> (self.bits + FAR_BITS * level) & (FAR_SLOTS as u64 - 1);
        self.far_slot(level, truncate(digit))
    }

    #[inline]
    fn near_slot(&self, when: u64) -> u32 {
        truncate(when & self.mask)
    }

    #[inline]
    fn far_slot(&self, level: u32, digit: u32) -> u32 {
        truncate(self.mask) + 1 + level * truncate(FAR_SLOTS as u64) + digit
    }

    #[inline]
    fn first(&self, slot: u32) -> Option<u32> {
        Some(self.heads[slot as usize]).filter(|&head| head != NIL)
    }

    #[inline]
    fn place_last(&mut self, index: u32, when: u64) {
        let slot = self.slot_for(when);
        self.slab[index].when = when;
        self.slab.set_slot(index, slot);
        self.link_last(slot, index);
    }

    #[inline]
    fn link_last(&mut self, slot: u32, index: u32) {
        let first = self.heads[slot as usize];
        let (last, next) = if first == NIL { (index, index) } else { (self.slab[first].prev, first) };
        let entry = &mut self.slab[index];
        entry.prev = last;
        entry.next = next;
        self.close_ring(slot, first, last, index);
    }

    /// Links the ends of a slot's list to its new last entry. That entry is already linked to them.
    #[inline]
    fn close_ring(&mut self, slot: u32, first: u32, last: u32, index: u32) {
        if first == NIL {
            self.heads[slot as usize] = index;
            self.mark(slot);
        } else {
            self.slab[first].prev = index;
            self.slab[last].next = index;
        }
    }

    #[inline]
    fn unlink(&mut self, slot: u32, index: u32, links: Links) {
        if links.next == index {
            self.heads[slot as usize] = NIL;
            self.unmark(slot);
            return;
        }
        self.slab[links.prev].next = links.next;
        self.slab[links.next].prev = links.prev;
        if self.heads[slot as usize] == index {
            self.heads[slot as usize] = links.next;
        }
    }

    #[inline]
    fn mark(&mut self, slot: u32) {
        match self.far_position(slot) {
            None => self.near.set(slot as usize),
            Some((level, digit)) => {
                self.far[level] |= 1 << digit;
                self.far_levels |= 1 << level;
            }
        }
    }

    #[inline]
    fn unmark(&mut self, slot: u32) {
        match self.far_position(slot) {
            None => self.near.clear(slot as usize),
            Some((level, digit)) => {
                self.far[level] &= !(1 << digit);
                if self.far[level] == 0 {
                    self.far_levels &= !(1 << level);
                }
            }
        }
    }

    #[inline]
    fn far_position(&self, slot: u32) -> Option<(usize, usize)> {
        let far = (u64::from(slot)).checked_sub(self.mask + 1)?;
        let far = truncate(far) as usize;
        Some((far / FAR_SLOTS, far % FAR_SLOTS))
    }
}

impl<T> fmt::Debug for Wheel<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wheel")
            .field("now", &self.now)
            .field("len", &self.len())
            .field("ticks_per_wheel", &self.ticks_per_wheel())
            .field("next_expiration", &self.next_expiration())
            .finish()
    }
}

/// Maximum number of slots of level 0. Larger wheels would cost memory without gain: the overflow levels hold the rest.
const MAX_TICKS_PER_WHEEL: usize = 1 << 16;
/// log2 of the slots of an overflow level. 64 slots fit one word of occupancy bits.
const FAR_BITS: u32 = 6;
const FAR_SLOTS: usize = 1 << FAR_BITS;
/// Number of overflow levels for 64 bits of ticks over a wheel with a single slot.
const MAX_FAR_LEVELS: usize = 64_usize.div_ceil(FAR_BITS as usize);

/// The slot number of detached entries.
const DETACHED: u32 = u32::MAX - 1;

/// Maximum number of entries read to spare a driver one wake-up. At worst these are 32 waits for memory, a third of the cost of a wake-up.
const LOOKED_AT: usize = 32;

/// Truncates a value below a slot count.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "slot counts are below 2^17")]
const fn truncate(value: u64) -> u32 {
    value as u32
}

#[cfg(any(test, fuzzing))]
impl<T> Wheel<T> {
    /// Walks the whole structure and panics on the first broken invariant. `exact` means that no timer was ever deferred.
    pub(crate) fn check(&self, exact: bool) {
        let mut reached = 0;
        for slot in 0..truncate(self.heads.len() as u64) {
            let far = self.far_position(slot);
            let marked = match far {
                None => self.near.contains(slot as usize),
                Some((level, digit)) => self.far[level] >> digit & 1 == 1,
            };
            assert_eq!(marked, self.heads[slot as usize] != NIL, "occupancy of slot {slot}");
            let Some(head) = self.first(slot) else { continue };
            let mut index = head;
            loop {
                reached += 1;
                assert!(reached <= self.len(), "slot {slot} loops");
                let entry = &self.slab[index];
                assert_eq!(self.slab[entry.next].prev, index);
                assert_eq!(self.slab.slot_of_live(index), Some(slot));
                match far {
                    None if exact => assert_eq!(
                        (self.near_slot(entry.when), entry.when - self.now <= self.mask),
                        (slot, true)
                    ),
                    None => {}
                    Some(_) => {
                        assert!(entry.when > self.now || !exact || self.next_expiration() == Some(self.now));
                    }
                }
                index = entry.next;
                if index == head {
                    break;
                }
            }
        }
        let entries = 0..truncate(self.slab.entries() as u64);
        let detached = entries.filter(|&index| self.slab.slot_of_live(index) == Some(DETACHED)).count();
        assert_eq!(reached + detached, self.len(), "entries in no slot");
        for level in 0..MAX_FAR_LEVELS {
            assert_eq!(self.far_levels >> level & 1 == 1, self.far[level] != 0, "level {level}");
        }
        self.slab.check();
    }
}
