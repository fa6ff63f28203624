//! Bitmap of the occupied slots of a ring.
//!
//! One bit per slot, and one summary bit per 64 slots. The bitmap only finds the next occupied slot; it does not know time or timers.

use alloc::boxed::Box;
use alloc::vec;

#[derive(Debug, Clone)]
pub(crate) struct Occupancy {
    words: Box<[u64]>,
    summary: Box<[u64]>,
}

impl Occupancy {
    pub(crate) fn new(slots: usize) -> Self {
        let words = slots.div_ceil(64);
        Self { words: vec![0; words].into(), summary: vec![0; words.div_ceil(64)].into() }
    }

    #[inline]
    pub(crate) fn set(&mut self, slot: usize) {
        let word = slot / 64;
        if self.words[word] == 0 {
            self.summary[word / 64] |= 1 << (word % 64);
        }
        self.words[word] |= 1 << (slot % 64);
    }

    #[inline]
    pub(crate) fn clear(&mut self, slot: usize) {
        let word = slot / 64;
        self.words[word] &= !(1 << (slot % 64));
        if self.words[word] == 0 {
            self.summary[word / 64] &= !(1 << (word % 64));
        }
    }

    /// Returns the first occupied slot at or after `from`, wrapping around once.
    #[inline]
    pub(crate) fn first_from(&self, from: usize) -> Option<usize> {
        let word = from / 64;
        let here = self.words[word] & (u64::MAX << (from % 64));
        if here != 0 {
            return Some(word * 64 + here.trailing_zeros() as usize);
        }
        let word = self.first_word_from(word + 1).or_else(|| self.first_word_from(0))?;
        Some(word * 64 + self.words[word].trailing_zeros() as usize)
    }

    fn first_word_from(&self, from: usize) -> Option<usize> {
        let mut index = from / 64;
        let mut bits = self.summary.get(index)? & (u64::MAX << (from % 64));
        while bits == 0 {
            index += 1;
            bits = *self.summary.get(index)?;
        }
        Some(index * 64 + bits.trailing_zeros() as usize)
    }

    #[cfg(any(test, fuzzing))]
    pub(crate) fn contains(&self, slot: usize) -> bool {
        self.words[slot / 64] >> (slot % 64) & 1 == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_slot_wraps_at_every_size() {
        for slots in [1, 2, 32, 64, 128, 512, 4096, 8192, 16_384] {
            let mut ring = Occupancy::new(slots);
            assert_eq!(ring.first_from(slots - 1), None);
            let marks = [0, slots / 3, slots / 2, slots - 1];
            for &mark in &marks {
                ring.set(mark);
                assert!(ring.contains(mark));
                for from in [0, mark.saturating_sub(1), mark, (mark + 1) % slots, slots - 1] {
                    assert_eq!(ring.first_from(from), Some(mark), "{slots} slots, mark {mark}, from {from}");
                }
                ring.clear(mark);
                assert_eq!(ring.first_from(mark), None);
            }
            for &mark in &marks {
                ring.set(mark);
            }
            for from in 0..slots {
                let want = marks.iter().map(|&mark| (mark + slots - from) % slots).min();
                assert_eq!(ring.first_from(from).map(|slot| (slot + slots - from) % slots), want);
            }
        }
    }
}
