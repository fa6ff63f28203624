//! Storage of timers: entries found by index, freed at once, and told apart by generation.
//!
//! Knows nothing of time or slots; the links between entries belong to the wheel.

use alloc::vec::Vec;
use core::num::NonZeroU32;

/// No entry: the end of the free list, or an empty slot.
pub(crate) const NIL: u32 = u32::MAX;

/// 24 bytes beside the value: 32 with a `u64`, 40 with a `Waker`.
pub(crate) struct Entry<T> {
    pub(crate) when: u64,
    pub(crate) prev: u32,
    /// The next entry of the slot, or of the free list.
    pub(crate) next: u32,
    body: Body<T>,
}

/// The zero that `slot` never takes marks a free entry, so that the tag costs no byte.
enum Body<T> {
    Live { generation: u32, slot: NonZeroU32, value: T },
    Free { generation: u32 },
}

const _: () = assert!(size_of::<Entry<u64>>() == 32);

/// Entries by index. An index is reused, a pair of index and generation never is.
pub(crate) struct Slab<T> {
    entries: Vec<Entry<T>>,
    free: u32,
    len: usize,
    /// The generation of an entry that never was used before; moves only when memory is given back.
    first_generation: u32,
}

impl<T> Slab<T> {
    pub(crate) const fn new() -> Self {
        Self { entries: Vec::new(), free: NIL, len: 0, first_generation: 1 }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn capacity(&self) -> usize {
        self.entries.capacity()
    }

    /// Stores a value that belongs to `slot`; the links are the caller's to set.
    #[inline]
    pub(crate) fn insert(&mut self, when: u64, slot: u32, value: T) -> (u32, u32) {
        let slot = tag(slot);
        let index = self.free;
        if let Some(entry) = self.entries.get_mut(index as usize)
            && let Body::Free { generation } = entry.body
        {
            self.free = entry.next;
            entry.when = when;
            entry.body = Body::Live { generation, slot, value };
            self.len += 1;
            return (index, generation);
        }
        self.grow(when, slot, value)
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self, when: u64, slot: NonZeroU32, value: T) -> (u32, u32) {
        let generation = self.first_generation;
        let index = u32::try_from(self.entries.len()).unwrap_or(NIL);
        assert!(index < NIL, "a wheel holds at most 2^32 - 1 timers");
        if self.entries.len() == self.entries.capacity() && self.entries.len() >= SMALL {
            // Doubling a large slab would keep up to half of it unused.
            self.entries.reserve_exact(self.entries.len() / 8);
        }
        self.entries.push(Entry { when, prev: NIL, next: NIL, body: Body::Live { generation, slot, value } });
        self.len += 1;
        (index, generation)
    }

    /// Takes the value of a live entry and frees it. The links are as the caller left them until the next insert.
    #[inline]
    pub(crate) fn remove(&mut self, index: u32) -> Option<T> {
        let entry = self.entries.get_mut(index as usize)?;
        let generation = match entry.body {
            Body::Live { generation, .. } => generation,
            Body::Free { .. } => return None,
        };
        // An entry whose generations are used up is retired: reusing it would let an ancient key match again.
        let next = generation.wrapping_add(1);
        let body = core::mem::replace(&mut entry.body, Body::Free { generation: next });
        if next != 0 {
            entry.next = self.free;
            self.free = index;
        }
        self.len -= 1;
        match body {
            Body::Live { value, .. } => Some(value),
            Body::Free { .. } => None,
        }
    }

    /// The slot of a live entry of this generation.
    #[inline]
    pub(crate) fn slot(&self, index: u32, generation: u32) -> Option<u32> {
        match self.entries.get(index as usize)?.body {
            Body::Live { generation: live, slot, .. } if live == generation => Some(slot.get() - 1),
            _ => None,
        }
    }

    #[inline]
    pub(crate) fn set_slot(&mut self, index: u32, to: u32) {
        if let Body::Live { slot, .. } = &mut self.entries[index as usize].body {
            *slot = tag(to);
        }
    }

    pub(crate) fn value(&self, index: u32, generation: u32) -> Option<&T> {
        match &self.entries.get(index as usize)?.body {
            Body::Live { generation: live, value, .. } if *live == generation => Some(value),
            _ => None,
        }
    }

    pub(crate) fn value_mut(&mut self, index: u32, generation: u32) -> Option<&mut T> {
        match &mut self.entries.get_mut(index as usize)?.body {
            Body::Live { generation: live, value, .. } if *live == generation => Some(value),
            _ => None,
        }
    }

    /// Live entries in index order: `(index, generation, when, value)`.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, u32, u64, &T)> {
        (0..).zip(&self.entries).filter_map(|(index, entry)| match &entry.body {
            Body::Live { generation, value, .. } => Some((index, *generation, entry.when, value)),
            Body::Free { .. } => None,
        })
    }

    /// Gives all memory back if nothing is live. No key that was ever given out can match again.
    pub(crate) fn release(&mut self) {
        if self.len > 0 {
            return;
        }
        let used = self.entries.iter().map(|entry| match entry.body {
            Body::Free { generation } | Body::Live { generation, .. } => generation,
        });
        // A retired entry (generation 0 after the wrap) must stay retired, so such a slab keeps its memory.
        if used.clone().any(|generation| generation == 0) {
            return;
        }
        self.first_generation = used.max().unwrap_or(self.first_generation).max(self.first_generation);
        self.entries = Vec::new();
        self.free = NIL;
    }

    #[cfg(test)]
    pub(crate) fn set_first_generation(&mut self, generation: u32) {
        self.first_generation = generation;
    }
}

impl<T> core::ops::Index<u32> for Slab<T> {
    type Output = Entry<T>;
    #[inline]
    fn index(&self, index: u32) -> &Entry<T> {
        &self.entries[index as usize]
    }
}

impl<T> core::ops::IndexMut<u32> for Slab<T> {
    #[inline]
    fn index_mut(&mut self, index: u32) -> &mut Entry<T> {
        &mut self.entries[index as usize]
    }
}

#[cfg(any(test, fuzzing))]
impl<T> Slab<T> {
    pub(crate) fn slot_of_live(&self, index: u32) -> Option<u32> {
        match self.entries[index as usize].body {
            Body::Live { slot, .. } => Some(slot.get() - 1),
            Body::Free { .. } => None,
        }
    }

    /// Every entry is live, free and on the list, or retired.
    pub(crate) fn check(&self) {
        let (mut free, mut index) = (0, self.free);
        while index != NIL {
            free += 1;
            assert!(free <= self.entries.len(), "the free list loops");
            assert!(matches!(self.entries[index as usize].body, Body::Free { generation: 1.. }));
            index = self.entries[index as usize].next;
        }
        let retired =
            self.entries.iter().filter(|entry| matches!(entry.body, Body::Free { generation: 0 })).count();
        assert_eq!(self.len + free + retired, self.entries.len());
    }
}

/// Below this many entries a slab doubles as vectors do.
const SMALL: usize = 1024;

#[inline]
fn tag(slot: u32) -> NonZeroU32 {
    NonZeroU32::MIN.saturating_add(slot)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_whose_generations_are_used_up_is_retired() {
        let mut slab = Slab::new();
        slab.set_first_generation(u32::MAX);
        let (index, generation) = slab.insert(0, 0, 'a');
        assert_eq!(generation, u32::MAX);
        assert_eq!(slab.remove(index), Some('a'));
        let (other, _) = slab.insert(0, 0, 'b');
        assert_ne!(other, index);
        assert_eq!(slab.slot(index, generation), None);
        assert_eq!(slab.slot(index, 0), None);
    }

    #[test]
    fn giving_memory_back_never_revives_a_key() {
        let mut slab = Slab::new();
        let mut seen = alloc::collections::BTreeSet::new();
        for _ in 0..100 {
            let pair = slab.insert(0, 3, 'x');
            assert!(seen.insert(pair), "{pair:?} was given out before");
            slab.remove(pair.0);
            slab.release();
            assert_eq!(slab.capacity(), 0);
        }
    }
}
