//! Storage of timers: entries found by index, freed at once, and told apart by generation.
//!
//! Knows nothing of time or slots; an entry's place in them is the wheel's.

use alloc::vec::Vec;
use core::num::{NonZeroU32, NonZeroU64};

use crate::lists::Place;

/// No entry: the end of a free list, or an empty slot.
pub(crate) const NIL: u32 = u32::MAX;

/// Names one live entry, by its index and generation; never the same for two. One word, so that it is passed in a register: written as
/// two and read as one it would have to wait for the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Key(NonZeroU64);

impl Key {
    #[inline]
    fn new(generation: NonZeroU32, index: u32) -> Self {
        Self(NonZeroU64::from(generation) | u64::from(index) << 32)
    }

    #[inline]
    pub(crate) fn index(self) -> u32 {
        (self.0.get() >> 32) as u32
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the lower half")]
    pub(crate) fn generation(self) -> u32 {
        self.0.get() as u32
    }
}

/// What was in an entry.
pub(crate) struct Taken<T> {
    pub(crate) place: Place,
    pub(crate) value: T,
}

/// 16 bytes beside the value: 24 with a `u64`, 32 with a `Waker`.
struct Entry<T> {
    /// The deadline; of a free entry the next of the free list.
    when: u64,
    body: Body<T>,
}

/// The zero that a place never is marks a free entry, so that the tag costs no byte.
enum Body<T> {
    Live { generation: u32, place: Place, value: T },
    Free { generation: u32 },
}

const _: () = assert!(size_of::<Entry<u64>>() == 24);

/// Entries by index. An index is reused, a pair of index and generation never is.
pub(crate) struct Slab<T> {
    entries: Vec<Entry<T>>,
    free: u32,
    len: usize,
    /// The generation of an entry that never was used before; moves only when memory is given back.
    first_generation: NonZeroU32,
}

impl<T> Slab<T> {
    pub(crate) const fn new() -> Self {
        Self { entries: Vec::new(), free: NIL, len: 0, first_generation: NonZeroU32::MIN }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn capacity(&self) -> usize {
        self.entries.capacity()
    }

    /// The index of the entry that [`insert`](Self::insert) will use.
    #[inline]
    pub(crate) fn vacant(&self) -> u32 {
        if self.free != NIL {
            return self.free;
        }
        let index = u32::try_from(self.entries.len()).unwrap_or(NIL);
        assert!(index < MOST, "a wheel holds at most 2^27 - 1 timers");
        index
    }

    /// Stores a value at the vacant index, which is in its place already.
    #[inline]
    pub(crate) fn insert(&mut self, when: u64, place: Place, value: T) -> Key {
        let index = self.free;
        if let Some(entry) = self.entries.get_mut(index as usize)
            && let Body::Free { generation } = entry.body
            && let Some(reused) = NonZeroU32::new(generation)
        {
            self.free = link(entry.when);
            entry.when = when;
            entry.body = Body::Live { generation, place, value };
            self.len += 1;
            return Key::new(reused, index);
        }
        self.grow(when, place, value)
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self, when: u64, place: Place, value: T) -> Key {
        let index = self.vacant();
        if self.entries.len() == self.entries.capacity() && self.entries.len() >= SMALL {
            // Doubling a large slab would keep up to half of it unused.
            self.entries.reserve_exact(self.entries.len() / 16);
        }
        let generation = self.first_generation;
        self.entries.push(Entry { when, body: Body::Live { generation: generation.get(), place, value } });
        self.len += 1;
        Key::new(generation, index)
    }

    /// Takes a live entry out and frees it; the caller takes it out of its place.
    #[inline]
    pub(crate) fn take(&mut self, key: Key) -> Option<Taken<T>> {
        match self.free(key, core::mem::replace)? {
            Body::Live { place, value, .. } => Some(Taken { place, value }),
            Body::Free { .. } => None,
        }
    }

    /// Drops what a live entry holds where it is, and frees it; the caller takes it out of its place.
    #[inline]
    #[cfg(feature = "std")]
    pub(crate) fn discard(&mut self, key: Key) -> Option<Place> {
        let place = self.place(key)?;
        self.free(key, |body, free| *body = free)?;
        Some(place)
    }

    #[inline]
    fn free<R>(&mut self, key: Key, replace: impl FnOnce(&mut Body<T>, Body<T>) -> R) -> Option<R> {
        let entry = self.entries.get_mut(key.index() as usize)?;
        match entry.body {
            Body::Live { generation, .. } if generation == key.generation() => {}
            _ => return None,
        }
        // An entry whose generations are used up is retired: reusing it would let an ancient key match again.
        let next = key.generation().wrapping_add(1);
        let body = replace(&mut entry.body, Body::Free { generation: next });
        if next != 0 {
            entry.when = u64::from(self.free);
            self.free = key.index();
        }
        self.len -= 1;
        Some(body)
    }

    /// The key of a live entry.
    #[inline]
    pub(crate) fn key(&self, index: u32) -> Option<Key> {
        match self.entries.get(index as usize)?.body {
            Body::Live { generation, .. } => {
                NonZeroU32::new(generation).map(|generation| Key::new(generation, index))
            }
            Body::Free { .. } => None,
        }
    }

    /// The place of a live entry of this generation.
    #[inline]
    pub(crate) fn place(&self, key: Key) -> Option<Place> {
        match self.entries.get(key.index() as usize)?.body {
            Body::Live { generation, place, .. } if generation == key.generation() => Some(place),
            _ => None,
        }
    }

    #[inline]
    pub(crate) fn place_of(&self, index: u32) -> Option<Place> {
        match self.entries.get(index as usize)?.body {
            Body::Live { place, .. } => Some(place),
            Body::Free { .. } => None,
        }
    }

    #[inline]
    pub(crate) fn set_place(&mut self, index: u32, to: Place) {
        if let Body::Live { place, .. } = &mut self.entries[index as usize].body {
            *place = to;
        }
    }

    /// The deadline of a live entry.
    #[inline]
    pub(crate) fn when(&self, index: u32) -> u64 {
        self.entries[index as usize].when
    }

    #[inline]
    pub(crate) fn set_when(&mut self, index: u32, when: u64) {
        self.entries[index as usize].when = when;
    }

    /// Shows a live entry's value to `look`.
    #[inline]
    pub(crate) fn look(&self, index: u32, look: impl Fn(&T)) {
        if let Body::Live { value, .. } = &self.entries[index as usize].body {
            look(value);
        }
    }

    pub(crate) fn value(&self, key: Key) -> Option<&T> {
        match &self.entries.get(key.index() as usize)?.body {
            Body::Live { generation, value, .. } if *generation == key.generation() => Some(value),
            _ => None,
        }
    }

    pub(crate) fn value_mut(&mut self, key: Key) -> Option<&mut T> {
        match &mut self.entries.get_mut(key.index() as usize)?.body {
            Body::Live { generation, value, .. } if *generation == key.generation() => Some(value),
            _ => None,
        }
    }

    /// Live entries in index order, with their deadlines.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Key, u64, &T)> {
        (0..).zip(&self.entries).filter_map(|(index, entry)| match &entry.body {
            Body::Live { generation, value, .. } => {
                let generation = NonZeroU32::new(*generation)?;
                Some((Key::new(generation, index), entry.when, value))
            }
            Body::Free { .. } => None,
        })
    }

    /// Gives all memory back if nothing is live. No key that was ever given out can match again. False if it keeps the memory.
    pub(crate) fn release(&mut self) -> bool {
        if self.len > 0 {
            return false;
        }
        let used = self.entries.iter().map(|entry| match entry.body {
            Body::Free { generation } | Body::Live { generation, .. } => generation,
        });
        // A retired entry (generation 0 after the wrap) must stay retired, so such a slab keeps its memory.
        if used.clone().any(|generation| generation == 0) {
            return false;
        }
        let newest = used.max().and_then(NonZeroU32::new).unwrap_or(self.first_generation);
        self.first_generation = self.first_generation.max(newest);
        self.entries = Vec::new();
        self.free = NIL;
        true
    }

    #[cfg(test)]
    pub(crate) fn set_first_generation(&mut self, generation: NonZeroU32) {
        self.first_generation = generation;
    }
}

#[cfg(any(test, fuzzing))]
impl<T> Slab<T> {
    pub(crate) fn entries(&self) -> usize {
        self.entries.len()
    }

    /// Every entry is live, free and on the list, or retired.
    pub(crate) fn check(&self) {
        let (mut free, mut index) = (0, self.free);
        while index != NIL {
            free += 1;
            assert!(free <= self.entries.len(), "the free list loops");
            assert!(matches!(self.entries[index as usize].body, Body::Free { generation: 1.. }));
            index = link(self.entries[index as usize].when);
        }
        let retired =
            self.entries.iter().filter(|entry| matches!(entry.body, Body::Free { generation: 0 })).count();
        assert_eq!(self.len + free + retired, self.entries.len());
    }
}

/// Below this many entries a slab doubles as vectors do.
const SMALL: usize = 1024;

/// So that its place in a list of chunks can be named, even if it is the only one in its chunk.
const MOST: u32 = (1 << 27) - 1;

/// What a free entry has for a deadline.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "an index")]
const fn link(when: u64) -> u32 {
    when as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_whose_generations_are_used_up_is_retired() {
        let mut slab = Slab::new();
        slab.set_first_generation(NonZeroU32::MAX);
        let key = slab.insert(0, Place::NOWHERE, 'a');
        assert_eq!(key.generation(), u32::MAX);
        assert_eq!(slab.take(key).map(|taken| taken.value), Some('a'));
        let other = slab.insert(0, Place::NOWHERE, 'b');
        assert_ne!(other.index(), key.index());
        assert_eq!(slab.place(key), None);
        assert_eq!(slab.place(Key::new(NonZeroU32::MIN, key.index())), None);
        slab.take(other);
        slab.check();
        slab.release();
        assert!(slab.capacity() > 0, "a retired entry must be remembered");
    }

    #[test]
    fn giving_memory_back_never_revives_a_key() {
        let mut slab = Slab::new();
        let mut seen = alloc::collections::BTreeSet::new();
        for _ in 0..100 {
            let key = slab.insert(0, Place::NOWHERE, 'x');
            assert!(seen.insert((key.index(), key.generation())), "{key:?} was given out before");
            slab.take(key);
            slab.release();
            assert_eq!(slab.capacity(), 0);
        }
    }
}
