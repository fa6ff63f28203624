//! Storage of timer entries with generation-checked keys.
//!
//! An entry is found by its index, and its memory is reused at once. The slab does not know time or slots; the wheel maintains the links
//! between entries.

use alloc::vec::Vec;
use core::num::{NonZeroU32, NonZeroU64};

/// The null index: the end of the free list, or an empty slot.
pub(crate) const NIL: u32 = u32::MAX;

/// The key of one live entry: its index and generation. No two entries ever have the same key.
///
/// The key is one word, so that the compiler passes it in a register. Written as two words and read as one, the key would stall on the
/// cache.
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

/// The neighbours of an entry in its list.
#[derive(Clone, Copy)]
pub(crate) struct Links {
    pub(crate) prev: u32,
    pub(crate) next: u32,
}

/// The contents of an entry that was taken out.
pub(crate) struct Taken<T> {
    pub(crate) slot: u32,
    pub(crate) links: Links,
    pub(crate) value: T,
}

/// An entry: 24 bytes plus the value. The total is 32 bytes with a `u64` and 40 with a `Waker`.
pub(crate) struct Entry<T> {
    pub(crate) when: u64,
    pub(crate) prev: u32,
    /// The next entry of the slot, or of the free list.
    pub(crate) next: u32,
    body: Body<T>,
}

/// The state of an entry. `slot` is never zero; the zero marks a free entry, so the tag needs no extra byte.
enum Body<T> {
    Live { generation: u32, slot: NonZeroU32, value: T },
    Free { generation: u32 },
}

const _: () = assert!(size_of::<Entry<u64>>() == 32);

/// Entries by index. An index is reused; a pair of index and generation is not.
pub(crate) struct Slab<T> {
    entries: Vec<Entry<T>>,
    free: u32,
    len: usize,
    /// The generation of an entry that was never used. It increases only when the slab frees its memory.
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

    /// Stores a value in `slot`, whose list has the ends `first` and `last` (`NIL` if the list is empty). Links the new entry to these
    /// ends; the caller must link the ends to the entry.
    #[inline]
    pub(crate) fn insert(&mut self, when: u64, slot: u32, first: u32, last: u32, value: T) -> Key {
        let slot = tag(slot);
        let index = self.free;
        if let Some(entry) = self.entries.get_mut(index as usize)
            && let Body::Free { generation } = entry.body
            && let Some(reused) = NonZeroU32::new(generation)
        {
            self.free = entry.next;
            (entry.prev, entry.next) = if first == NIL { (index, index) } else { (last, first) };
            entry.when = when;
            entry.body = Body::Live { generation, slot, value };
            self.len += 1;
            return Key::new(reused, index);
        }
        self.grow(when, slot, first, last, value)
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self, when: u64, slot: NonZeroU32, first: u32, last: u32, value: T) -> Key {
        let index = u32::try_from(self.entries.len()).unwrap_or(NIL);
        assert!(index < NIL, "a wheel holds at most 2^32 - 1 timers");
        if self.entries.len() == self.entries.capacity() && self.entries.len() >= SMALL {
            // Doubling a large slab would leave up to half of its memory unused.
            self.entries.reserve_exact(self.entries.len() / 16);
        }
        let generation = self.first_generation;
        let (prev, next) = if first == NIL { (index, index) } else { (last, first) };
        let body = Body::Live { generation: generation.get(), slot, value };
        self.entries.push(Entry { when, prev, next, body });
        self.len += 1;
        Key::new(generation, index)
    }

    /// Takes a live entry out and frees its index. The caller must close the gap in the entry's list.
    #[inline]
    pub(crate) fn take(&mut self, key: Key) -> Option<Taken<T>> {
        let (links, body) = self.free(key, core::mem::replace)?;
        match body {
            Body::Live { slot, value, .. } => Some(Taken { slot: slot.get() - 1, links, value }),
            Body::Free { .. } => None,
        }
    }

    /// Drops the value of a live entry in place and frees the index. The caller must close the gap in the entry's list.
    #[inline]
    #[cfg(feature = "std")]
    pub(crate) fn discard(&mut self, key: Key) -> Option<(u32, Links)> {
        let slot = self.slot(key)?;
        let (links, ()) = self.free(key, |body, free| *body = free)?;
        Some((slot, links))
    }

    #[inline]
    fn free<R>(&mut self, key: Key, replace: impl FnOnce(&mut Body<T>, Body<T>) -> R) -> Option<(Links, R)> {
        let entry = self.entries.get_mut(key.index() as usize)?;
        match entry.body {
            Body::Live { generation, .. } if generation == key.generation() => {}
            _ => return None,
        }
        let links = entry.links();
        // An entry without unused generations is retired: if it were reused, an old key would match again.
        let next = key.generation().wrapping_add(1);
        let body = replace(&mut entry.body, Body::Free { generation: next });
        if next != 0 {
            entry.next = self.free;
            self.free = key.index();
        }
        self.len -= 1;
        Some((links, body))
    }

    /// Returns the key of a live entry.
    #[inline]
    pub(crate) fn key(&self, index: u32) -> Option<Key> {
        match self.entries.get(index as usize)?.body {
            Body::Live { generation, .. } => {
                NonZeroU32::new(generation).map(|generation| Key::new(generation, index))
            }
            Body::Free { .. } => None,
        }
    }

    /// Returns the slot of the live entry with this key.
    #[inline]
    pub(crate) fn slot(&self, key: Key) -> Option<u32> {
        match self.entries.get(key.index() as usize)?.body {
            Body::Live { generation, slot, .. } if generation == key.generation() => Some(slot.get() - 1),
            _ => None,
        }
    }

    #[inline]
    pub(crate) fn set_slot(&mut self, index: u32, to: u32) {
        if let Body::Live { slot, .. } = &mut self.entries[index as usize].body {
            *slot = tag(to);
        }
    }

    /// Returns the entry after a live entry in its slot.
    #[inline]
    pub(crate) fn next(&self, index: u32) -> Option<u32> {
        let entry = self.entries.get(index as usize)?;
        matches!(entry.body, Body::Live { .. }).then_some(entry.next)
    }

    #[cfg(feature = "std")]
    pub(crate) fn set_slots(&mut self, to: u32) {
        for entry in &mut self.entries {
            if let Body::Live { slot, .. } = &mut entry.body {
                *slot = tag(to);
            }
        }
    }

    /// Passes the value of a live entry to `look`.
    #[inline]
    pub(crate) fn look(&self, index: u32, look: &impl Fn(&T)) {
        if let Some(Entry { body: Body::Live { value, .. }, .. }) = self.entries.get(index as usize) {
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

    /// Returns the live entries in index order, with their deadlines.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Key, u64, &T)> {
        (0..).zip(&self.entries).filter_map(|(index, entry)| match &entry.body {
            Body::Live { generation, value, .. } => {
                let generation = NonZeroU32::new(*generation)?;
                Some((Key::new(generation, index), entry.when, value))
            }
            Body::Free { .. } => None,
        })
    }

    /// Frees all memory if no entry is live. Keys from before never match again.
    pub(crate) fn release(&mut self) {
        if self.len > 0 {
            return;
        }
        let used = self.entries.iter().map(|entry| match entry.body {
            Body::Free { generation } | Body::Live { generation, .. } => generation,
        });
        // A retired entry (generation 0 after the wrap) must stay retired. A slab with such an entry keeps its memory.
        if used.clone().any(|generation| generation == 0) {
            return;
        }
        let newest = used.max().and_then(NonZeroU32::new).unwrap_or(self.first_generation);
        self.first_generation = self.first_generation.max(newest);
        self.entries = Vec::new();
        self.free = NIL;
    }

    #[cfg(test)]
    pub(crate) fn set_first_generation(&mut self, generation: NonZeroU32) {
        self.first_generation = generation;
    }
}

impl<T> Entry<T> {
    #[inline]
    pub(crate) fn links(&self) -> Links {
        Links { prev: self.prev, next: self.next }
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
    pub(crate) fn entries(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn slot_of_live(&self, index: u32) -> Option<u32> {
        match self.entries[index as usize].body {
            Body::Live { slot, .. } => Some(slot.get() - 1),
            Body::Free { .. } => None,
        }
    }

    /// Checks that every entry is live, in the free list, or retired.
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

/// The size below which a slab doubles, as a `Vec` does.
const SMALL: usize = 1024;

#[inline]
fn tag(slot: u32) -> NonZeroU32 {
    NonZeroU32::MIN.saturating_add(slot)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entry_without_generations_is_retired() {
        let mut slab = Slab::new();
        slab.set_first_generation(NonZeroU32::MAX);
        let key = slab.insert(0, 0, NIL, NIL, 'a');
        assert_eq!(key.generation(), u32::MAX);
        assert_eq!(slab.take(key).map(|taken| taken.value), Some('a'));
        let other = slab.insert(0, 0, NIL, NIL, 'b');
        assert_ne!(other.index(), key.index());
        assert_eq!(slab.slot(key), None);
        assert_eq!(slab.slot(Key::new(NonZeroU32::MIN, key.index())), None);
        slab.take(other);
        slab.check();
        slab.release();
        assert!(slab.capacity() > 0, "a retired entry must be remembered");
    }

    #[test]
    fn released_memory_revives_no_key() {
        let mut slab = Slab::new();
        let mut seen = alloc::collections::BTreeSet::new();
        for _ in 0..100 {
            let key = slab.insert(0, 3, NIL, NIL, 'x');
            assert!(seen.insert((key.index(), key.generation())), "{key:?} was given out before");
            slab.take(key);
            slab.release();
            assert_eq!(slab.capacity(), 0);
        }
    }
}
