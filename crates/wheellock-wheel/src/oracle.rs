//! Comparison of a [`Wheel`] with a sorted map.
//!
//! Both run the same operations, and the oracle panics if the results differ. The property tests and the fuzz target share it. The model
//! knows only deadlines and the order of insertion, not slots.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use crate::{TimerKey, Wheel};

/// One operation. It selects a timer by a number, modulo the number of timers.
#[derive(Debug, Clone, Copy)]
pub enum Op {
    /// Inserts a timer at this distance from now, or in the past if negative.
    Insert(i128),
    /// Removes a pending timer.
    Remove(usize),
    /// Uses the key of a timer that is gone.
    Stale(usize),
    /// Reschedules a pending timer to this distance from now.
    Reschedule(usize, i128),
    /// Defers a pending timer to this distance from now.
    Defer(usize, i128),
    /// Advances by this number of ticks. A negative step must change nothing.
    Advance(i128),
    /// Advances by this number of ticks with a budget.
    AdvanceWithin(u64, usize),
    /// Takes one timer due within this number of ticks.
    Poll(u64),
    /// Takes every timer out.
    Drain,
    /// Frees unused memory.
    Shrink,
}

impl Op {
    /// Decodes one operation from 4 bytes of fuzz input.
    #[must_use]
    pub fn decode(bytes: [u8; 4]) -> Self {
        let [kind, pick, exponent, mantissa] = bytes;
        let pick = usize::from(pick);
        // Powers of two and their neighbours reach every level and edge.
        let magnitude = (1_u128 << (exponent % 65)).saturating_sub(1) + u128::from(mantissa);
        let magnitude = i128::try_from(magnitude).unwrap_or(i128::MAX);
        let near = u64::from(mantissa) << (exponent % 24);
        match kind % 32 {
            0..=9 => Self::Insert(if exponent > 250 { -magnitude } else { magnitude }),
            10..=14 => Self::Remove(pick),
            15 => Self::Stale(pick),
            16..=18 => Self::Reschedule(pick, magnitude),
            19..=21 => Self::Defer(pick, magnitude),
            22 => Self::Advance(-magnitude),
            23..=25 => Self::Advance(i128::from(near)),
            26 => Self::Advance(magnitude.min(1 << 40)),
            27..=28 => Self::AdvanceWithin(near, pick % 8),
            29..=30 => Self::Poll(near),
            _ if mantissa == 0 => Self::Drain,
            _ => Self::Shrink,
        }
    }
}

/// A wheel and the model of its expected behaviour.
#[derive(Debug)]
pub struct Oracle {
    wheel: Wheel<u64>,
    /// The timers that must fire, in order.
    order: BTreeSet<(u64, u64)>,
    timers: BTreeMap<u64, Timer>,
    pending: Vec<u64>,
    gone: Vec<TimerKey>,
    now: u64,
    sequence: u64,
    next_id: u64,
    exact: bool,
    fired: u64,
}

#[derive(Debug)]
struct Timer {
    key: TimerKey,
    when: u64,
    sequence: u64,
    /// True if the wheel may choose the order of this timer among equal deadlines.
    deferred: bool,
    place: usize,
}

impl Oracle {
    /// Creates an empty wheel of this size that starts at `now`.
    #[must_use]
    pub fn new(ticks_per_wheel: usize, now: u64) -> Self {
        Self {
            wheel: Wheel::starting_at(ticks_per_wheel, now),
            order: BTreeSet::new(),
            timers: BTreeMap::new(),
            pending: Vec::new(),
            gone: Vec::new(),
            now,
            sequence: 0,
            next_id: 0,
            exact: true,
            fired: 0,
        }
    }

    /// Returns the number of timers that have fired.
    #[must_use]
    pub fn fired(&self) -> u64 {
        self.fired
    }

    /// Returns the number of pending timers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pending.len()
    }

    /// Returns true if no timer is pending.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Runs one operation.
    ///
    /// # Panics
    /// Panics if the wheel and the model differ.
    pub fn run(&mut self, op: Op) {
        match op {
            Op::Insert(ahead) => self.insert(ahead),
            Op::Remove(pick) => self.remove(pick),
            Op::Stale(pick) => self.use_stale_key(pick),
            Op::Reschedule(pick, ahead) => self.reschedule(pick, ahead),
            Op::Defer(pick, ahead) => self.defer(pick, ahead),
            Op::Advance(by) => self.advance(self.ahead(by)),
            Op::AdvanceWithin(by, budget) => self.advance_within(self.now.saturating_add(by), budget),
            Op::Poll(by) => self.poll(self.now.saturating_add(by)),
            Op::Drain => self.drain(),
            Op::Shrink => self.wheel.shrink_to_fit(),
        }
        assert_eq!(self.wheel.len(), self.pending.len());
        assert_eq!(self.wheel.is_empty(), self.pending.is_empty());
        assert_eq!(self.wheel.now(), self.now);
        let earliest = self.order.first().map(|&(when, _)| when);
        let next = self.wheel.next_expiration();
        assert_eq!(next.is_some(), earliest.is_some());
        if let (Some(next), Some(earliest)) = (next, earliest) {
            assert!(self.now <= next && next <= earliest, "{next} is not within {}..={earliest}", self.now);
            let wakeup = self.wheel.next_wakeup();
            assert!(Some(next) <= wakeup && wakeup <= Some(earliest));
            // A slot that a budget left half moved is due now.
            assert!(
                wakeup == Some(earliest) || self.len() > 32 || !self.exact || wakeup == Some(self.now),
                "{wakeup:?} is not {earliest}, at {}",
                self.now
            );
        }
    }

    /// Walks the whole structure.
    ///
    /// # Panics
    /// Panics if an invariant is broken.
    pub fn check(&self) {
        self.wheel.check(self.exact);
        let seen = self.wheel.iter().map(|(key, deadline, &id)| {
            let timer = &self.timers[&id];
            assert_eq!((key, deadline), (timer.key, timer.when));
            assert_eq!(self.wheel.get(key), Some(&id));
        });
        assert_eq!(seen.count(), self.pending.len());
    }

    fn ahead(&self, by: i128) -> u64 {
        u64::try_from((i128::from(self.now) + by).max(0)).unwrap_or(u64::MAX)
    }

    fn insert(&mut self, ahead: i128) {
        let deadline = self.ahead(ahead);
        let id = self.next_id;
        self.next_id += 1;
        let key = self.wheel.insert(deadline, id);
        let timer = Timer {
            key,
            when: deadline.max(self.now),
            sequence: self.sequence,
            deferred: false,
            place: self.pending.len(),
        };
        self.sequence += 1;
        self.order.insert((timer.when, id));
        self.timers.insert(id, timer);
        self.pending.push(id);
    }

    fn pick(&self, pick: usize) -> Option<u64> {
        self.pending.get(pick % self.pending.len().max(1)).copied()
    }

    fn remove(&mut self, pick: usize) {
        let Some(id) = self.pick(pick) else { return };
        let key = self.timers[&id].key;
        assert_eq!(self.wheel.deadline(key), Some(self.timers[&id].when));
        assert_eq!(self.wheel.remove(key), Some(id));
        self.forget(id);
    }

    fn use_stale_key(&mut self, pick: usize) {
        let Some(&key) = self.gone.get(pick % self.gone.len().max(1)) else { return };
        assert_eq!(self.wheel.remove(key), None);
        assert!(!self.wheel.reschedule(key, 0));
        assert!(!self.wheel.defer(key, u64::MAX));
        assert_eq!(self.wheel.get(key), None);
        assert_eq!(self.wheel.get_mut(key), None);
        assert_eq!(self.wheel.deadline(key), None);
    }

    fn reschedule(&mut self, pick: usize, ahead: i128) {
        let Some(id) = self.pick(pick) else { return };
        let deadline = self.ahead(ahead);
        assert!(self.wheel.reschedule(self.timers[&id].key, deadline));
        self.replace(id, deadline.max(self.now), false);
    }

    fn defer(&mut self, pick: usize, ahead: i128) {
        let Some(id) = self.pick(pick) else { return };
        let deadline = self.ahead(ahead);
        let later = deadline >= self.timers[&id].when;
        assert!(self.wheel.defer(self.timers[&id].key, deadline));
        self.exact &= !later;
        self.replace(id, deadline.max(self.now), later);
    }

    fn replace(&mut self, id: u64, when: u64, deferred: bool) {
        let Some(timer) = self.timers.get_mut(&id) else { return };
        self.order.remove(&(timer.when, id));
        timer.when = when;
        timer.deferred = deferred;
        timer.sequence = self.sequence;
        self.sequence += 1;
        self.order.insert((when, id));
    }

    fn forget(&mut self, id: u64) {
        let Some(timer) = self.timers.remove(&id) else { panic!("{id} is gone already") };
        self.order.remove(&(timer.when, id));
        self.pending.swap_remove(timer.place);
        if let Some(moved) = self.pending.get(timer.place) {
            self.timers.entry(*moved).and_modify(|moved| moved.place = timer.place);
        }
        if self.gone.len() < 4096 {
            self.gone.push(timer.key);
        }
    }

    fn advance(&mut self, to: u64) {
        let mut fired = Vec::new();
        self.wheel.advance(to, |deadline, id| fired.push((deadline, id)));
        self.now = self.now.max(to);
        self.expect(&fired);
        assert!(self.order.first().is_none_or(|&(when, _)| when > self.now), "something due is left");
    }

    fn advance_within(&mut self, to: u64, budget: usize) {
        let mut fired = Vec::new();
        let done = self.wheel.advance_within(to, budget, |deadline, id| fired.push((deadline, id)));
        assert!(fired.len() <= budget);
        assert!(self.now <= self.wheel.now() && self.wheel.now() <= to);
        self.now = self.wheel.now();
        self.expect(&fired);
        if done {
            assert_eq!(self.now, to);
            assert!(self.order.first().is_none_or(|&(when, _)| when > self.now), "something due is left");
        }
    }

    fn poll(&mut self, to: u64) {
        let fired = self.wheel.poll(to);
        assert!(self.now <= self.wheel.now() && self.wheel.now() <= to);
        self.now = self.wheel.now();
        self.expect(fired.as_slice());
        if fired.is_none() {
            assert_eq!(self.now, to);
            assert!(self.order.first().is_none_or(|&(when, _)| when > self.now), "something due is left");
        }
    }

    fn drain(&mut self) {
        let mut left = Vec::new();
        self.wheel.drain(|deadline, id| left.push((deadline, id)));
        for (deadline, id) in left {
            assert_eq!(self.timers[&id].when, deadline);
            self.forget(id);
        }
        assert!(self.pending.is_empty());
    }

    /// Checks that each fired timer was the earliest. Among equal deadlines, the timer that was inserted first must fire first.
    fn expect(&mut self, fired: &[(u64, u64)]) {
        for &(deadline, id) in fired {
            let earliest = self.order.first().map(|&(when, _)| when);
            assert_eq!(earliest, Some(deadline), "timer {id} fired out of order");
            assert!(deadline <= self.now, "timer {id} fired early");
            let timer = &self.timers[&id];
            assert_eq!(timer.when, deadline);
            if !timer.deferred {
                let first = self
                    .order
                    .range((deadline, 0)..=(deadline, u64::MAX))
                    .map(|(_, id)| &self.timers[id])
                    .filter(|timer| !timer.deferred)
                    .map(|timer| timer.sequence)
                    .min();
                assert_eq!(first, Some(timer.sequence), "timer {id} overtook another of its deadline");
            }
            self.forget(id);
            self.fired += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct XorShift(u64);

    impl XorShift {
        fn next(&mut self) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0
        }
    }

    fn random_operations(ticks_per_wheel: usize, operations: u32) {
        for (seed, start) in [(1, 0), (2, 12_345), (3, u64::MAX - (1 << 41)), (4, (1 << 30) - 3)] {
            let mut random = XorShift(0x9E37_79B9_7F4A_7C15 ^ (seed << 32) ^ ticks_per_wheel as u64);
            let mut oracle = Oracle::new(ticks_per_wheel, start);
            for step in 0..operations {
                let word = random.next().to_le_bytes();
                let mut op = Op::decode([word[0], word[1], word[2], word[3]]);
                if let Op::Insert(ahead) = &mut op
                    && word[4] & 3 != 0
                {
                    // Most timers are close together, so that they share slots.
                    *ahead %= 3 * ticks_per_wheel as i128 + 7;
                }
                oracle.run(op);
                if step % 1024 == 0 {
                    oracle.check();
                }
                if oracle.len() > 2_000 {
                    oracle.run(Op::Drain);
                }
            }
            oracle.check();
            oracle.run(Op::Advance(i128::MAX >> 1));
            assert!(oracle.is_empty());
            assert!(oracle.fired() > u64::from(operations) / 10, "only {} fired", oracle.fired());
        }
    }

    #[test]
    fn reading_ahead_matches_model() {
        for seed in 1..=20 {
            let mut random = XorShift(seed);
            let mut oracle = Oracle::new(64, 1_000 * seed);
            let ticks = 1 + random.next() % 24;
            for _ in 0..3_000 {
                oracle.run(Op::Insert(i128::from(random.next() % ticks)));
            }
            while !oracle.is_empty() {
                let pick = usize::try_from(random.next() >> 32).unwrap();
                let near = i128::from(random.next() % 16);
                oracle.run(match random.next() % 8 {
                    0..=2 => Op::AdvanceWithin(random.next() % 3, pick % 300),
                    3..=5 => Op::Remove(pick),
                    6 => Op::Defer(pick, near),
                    _ if oracle.len() > 1_500 => Op::Insert(near),
                    _ => Op::Reschedule(pick, near),
                });
            }
            oracle.check();
        }
    }

    // Seven sizes, four starts and 150 000 operations each: 4.2 million in all.
    macro_rules! sizes {
        ($($name:ident = $size:expr),* $(,)?) => {$(
            #[test]
            fn $name() {
                random_operations($size, 150_000);
            }
        )*};
    }
    sizes! {
        agrees_with_the_model_at_1_slot = 1,
        agrees_with_the_model_at_2_slots = 2,
        agrees_with_the_model_at_4_slots = 4,
        agrees_with_the_model_at_32_slots = 32,
        agrees_with_the_model_at_512_slots = 512,
        agrees_with_the_model_at_4096_slots = 4096,
        agrees_with_the_model_at_16384_slots = 16_384,
    }
}
