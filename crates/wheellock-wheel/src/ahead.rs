//! Prefetching of entries, and of the data behind their values.
//!
//! The wheel finds an entry through the entry before it. If a million entries are scattered in memory, each entry of a slot costs a wait of
//! 200 ns. The waits of different slots can overlap. This module therefore walks the next slots side by side and notes the indices of their
//! entries. When a slot is due, its entries are read by the noted indices, without a wait for each link.
//!
//! A noted index is only a hint: the entry may be gone, or a new entry may have its index. Reading the wrong entry changes nothing.

use alloc::vec::Vec;
use core::hint::black_box;

use crate::slab::{NIL, Slab};

/// The walks through the next slots.
pub(crate) struct Ahead {
    walks: [Walk; WALKS],
    /// The largest tick among the walked slots.
    last: u64,
}

/// A walk through the entries of one slot.
struct Walk {
    /// The tick of the slot. `None` before the first walk.
    tick: Option<u64>,
    /// The entry at which the walk began.
    first: u32,
    /// The next entry to note. `NIL` at the end of the slot's list.
    next: u32,
    /// The entries noted so far.
    noted: Vec<u32>,
    /// Number of noted entries, from the front, that were already read.
    passed: usize,
}

impl Ahead {
    pub(crate) const fn new() -> Self {
        let walks =
            [const { Walk { tick: None, first: NIL, next: NIL, noted: Vec::new(), passed: 0 } }; WALKS];
        Self { walks, last: 0 }
    }

    /// Returns true if `head`, the first entry of the slot of `tick`, is noted.
    #[inline]
    pub(crate) fn knows(&mut self, tick: u64, head: u32) -> bool {
        self.batch(tick, head, 1).is_some()
    }

    /// Reads the next noted entries of the slot of `tick`, and the data behind their values. Returns the number of entries read, at least
    /// 1.
    pub(crate) fn read<T>(
        &mut self,
        tick: u64,
        head: u32,
        at_most: usize,
        slab: &Slab<T>,
        fetch: &impl Fn(&T),
    ) -> usize {
        let Some((walk, until)) = self.batch(tick, head, at_most) else { return 1 };
        let batch = &walk.noted[walk.passed..until];
        for &index in batch {
            black_box(slab.next(index));
        }
        for &index in batch {
            slab.look(index, fetch);
        }
        walk.passed = until;
        batch.len()
    }

    /// Continues the walks through `slots`, each given by its tick and its first entry. The first slot is due now and its noted entries are
    /// used up, so its walk starts over.
    pub(crate) fn walk<T>(&mut self, slots: &[(u64, u32)], slab: &Slab<T>) {
        let (Some(&(now, head)), Some(&(last, _))) = (slots.first(), slots.last()) else { return };
        self.last = last;
        if let Some(walk) = self.walks.iter_mut().find(|walk| walk.tick == Some(now)) {
            walk.start(now, head);
        }
        for &(tick, first) in slots {
            if self.walks.iter().all(|walk| walk.tick != Some(tick))
                && let Some(over) = self.walks.iter_mut().find(|walk| walk.tick < Some(now))
            {
                over.start(tick, first);
            }
        }
        for _ in 0..BATCH {
            let mut walking = false;
            for walk in &mut self.walks {
                walking |= walk.step(slab);
            }
            if !walking {
                break;
            }
        }
    }

    /// Returns the walk through the slot of `tick`, and the end of the batch that begins at `head`.
    #[inline]
    fn batch(&mut self, tick: u64, head: u32, at_most: usize) -> Option<(&mut Walk, usize)> {
        if tick > self.last {
            return None;
        }
        let walk = self.walks.iter_mut().find(|walk| walk.tick == Some(tick))?;
        // Entries noted before `head` were removed; skip them.
        walk.passed += walk.noted[walk.passed..].iter().position(|&index| index == head)?;
        let until = walk.passed + at_most.min(BATCH).min(walk.noted.len() - walk.passed);
        Some((walk, until))
    }
}

impl Walk {
    fn start(&mut self, tick: u64, first: u32) {
        (self.tick, self.first, self.next) = (Some(tick), first, first);
        self.noted.clear();
        self.passed = 0;
    }

    /// Notes one entry. Returns false if the walk has ended.
    #[inline]
    fn step<T>(&mut self, slab: &Slab<T>) -> bool {
        if self.next == NIL || self.noted.len() == NOTED {
            return false;
        }
        self.noted.push(self.next);
        self.next = slab.next(self.next).filter(|&next| next != self.first).unwrap_or(NIL);
        true
    }
}

/// Returns true if the slot has at most `SHORT` entries. Such a slot needs no walk, and this check has already read its entries.
pub(crate) fn is_short<T>(slab: &Slab<T>, first: u32) -> bool {
    let mut index = first;
    (0..SHORT).any(|_| {
        index = slab[index].next;
        index == first
    })
}

/// Reads a slot's entries from both ends at once, so that two waits for memory overlap.
pub(crate) fn read_from_both_ends<T>(slab: &Slab<T>, first: u32, at_most: usize) {
    let (mut ahead, mut behind) = (first, slab[first].prev);
    for _ in 0..at_most.min(FETCHED) / 2 {
        let next = slab[ahead].next;
        if ahead == behind || next == behind {
            break;
        }
        ahead = next;
        behind = slab[behind].prev;
    }
    black_box((ahead, behind));
}

/// Reads the data behind the values of a slot's entries, so that these waits overlap too. The entries themselves must be cached.
pub(crate) fn read_values<T>(slab: &Slab<T>, first: u32, at_most: usize, fetch: &impl Fn(&T)) {
    let mut index = first;
    for _ in 0..at_most.min(FETCHED) {
        slab.look(index, fetch);
        index = slab[index].next;
        if index == first {
            break;
        }
    }
}

/// Number of slots walked at once. 16 slots are as fast, 4 are slower.
pub(crate) const WALKS: usize = 8;

/// Number of entries read and then fired together. Their memory fits the first-level cache and the TLB.
pub(crate) const BATCH: usize = 128;

/// Maximum number of noted entries per slot. All walks together keep 32 KiB of indices once a wheel has needed them.
const NOTED: usize = 1024;

/// Number of entries up to which a slot is not worth a walk.
const SHORT: usize = 8;

/// Maximum number of entries read ahead in list order. At 64 bytes per line they must stay in a small second-level cache until they are
/// used.
const FETCHED: usize = 1024;

#[cfg(test)]
mod tests {
    use alloc::vec;
    use core::cell::RefCell;

    use super::*;

    /// Creates `ticks` slots whose entries alternate in memory, in the order of their numbers.
    fn slots(slab: &mut Slab<usize>, ticks: usize, each: usize) -> Vec<(u64, u32)> {
        let index = |number: usize| u32::try_from(number).unwrap();
        for number in 0..ticks * each {
            slab.insert(0, index(number % ticks), NIL, NIL, number);
        }
        for number in 0..ticks * each {
            slab[index(number)].next = index((number + ticks) % (ticks * each));
        }
        (0..ticks).map(|tick| (tick as u64, index(tick))).collect()
    }

    /// Returns the numbers of the entries that were read, and the reported count.
    fn read(
        ahead: &mut Ahead,
        slab: &Slab<usize>,
        (tick, head): (u64, u32),
        at_most: usize,
    ) -> (Vec<usize>, usize) {
        let seen = RefCell::new(Vec::new());
        let count = ahead.read(tick, head, at_most, slab, &|&number| seen.borrow_mut().push(number));
        (seen.into_inner(), count)
    }

    #[test]
    fn slots_are_read_ahead_in_batches() {
        let mut slab = Slab::new();
        let slots = slots(&mut slab, 3, 300);
        let mut ahead = Ahead::new();
        for (at, &(tick, first)) in slots.iter().enumerate() {
            let (mut head, last) = (first, first + 3 * 299);
            let mut sizes = Vec::new();
            loop {
                if !ahead.knows(tick, head) {
                    ahead.walk(&[&[(tick, head)], &slots[at + 1..]].concat(), &slab);
                }
                let (seen, count) = read(&mut ahead, &slab, (tick, head), 100);
                assert!((head as usize..).step_by(3).zip(&seen).all(|(want, &number)| want == number));
                assert_eq!(seen.len(), count);
                sizes.push(count);
                if seen.last() == Some(&(last as usize)) {
                    break;
                }
                // These entries are fired now.
                head = slab.next(u32::try_from(seen[count - 1]).unwrap()).unwrap();
                slab[last].next = head;
            }
            assert_eq!(sizes.iter().sum::<usize>(), 300);
            assert_eq!(sizes, [&[100, 28, 100, 28, 44][..], &[100; 3], &[100; 3]][at]);
        }
    }

    #[test]
    fn walk_skips_removed_ends_at_freed() {
        let mut slab = Slab::new();
        let slots = slots(&mut slab, 2, 50);
        let mut ahead = Ahead::new();
        let freed = slab.key(60).unwrap();
        slab.take(freed);
        ahead.walk(&slots, &slab);
        assert!(ahead.knows(0, 58) && !ahead.knows(0, 62), "60 led nowhere");
        assert!(!ahead.knows(0, 0), "58 was the first, so those before it had gone");
        assert_eq!(read(&mut ahead, &slab, (0, 58), usize::MAX), (vec![58], 2));
        assert_eq!(read(&mut ahead, &slab, (1, 91), usize::MAX), (vec![91, 93, 95, 97, 99], 5));
    }

    #[test]
    fn notes_stay_bounded_across_turns() {
        let mut slab = Slab::new();
        let slots = slots(&mut slab, 2 * WALKS, 2 * NOTED);
        let mut ahead = Ahead::new();
        for turn in 0..=WALKS {
            for _ in 0..20 {
                ahead.walk(&slots[turn..turn + WALKS], &slab);
            }
            let mut noted: Vec<_> = ahead.walks.iter().map(|walk| walk.noted.len()).collect();
            noted.sort_unstable();
            let (own, others) = noted.split_first().unwrap();
            assert_eq!(*own, BATCH, "whose turn it is begins anew");
            assert!(others.iter().all(|&noted| noted == NOTED));
            assert!(ahead.knows(turn as u64, slots[turn].1));
        }
    }
}
