//! Which entries are in which slot, and in which order: a lone entry's index, or a list of chunks of indices.
//!
//! Owns order, and knows neither entries nor time. A slot's entries are found without looking at one of them: with a million
//! scattered in memory the waits for them overlap, where a list that went from entry to entry would add them up. Adding and
//! removing touch one chunk, a cache line, and no neighbour.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use core::num::NonZeroU32;

use crate::slab::NIL;

/// Where an entry is: alone in a slot, or at a position in a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place(NonZeroU32);

impl Place {
    /// In no slot.
    pub(crate) const NOWHERE: Self = Self(NonZeroU32::MAX);

    #[inline]
    fn new(chunk: u32, position: u8) -> Self {
        Self(NonZeroU32::MIN.saturating_add(chunk << POSITION_BITS | u32::from(position)))
    }

    /// Alone in a slot.
    #[inline]
    fn alone(slot: u32) -> Self {
        Self(NonZeroU32::MIN | ALONE | slot << 1)
    }

    /// The slot that it is alone in.
    #[inline]
    fn lone_slot(self) -> Option<u32> {
        (self.0.get() & ALONE != 0).then_some((self.0.get() & !ALONE) >> 1)
    }

    #[inline]
    fn chunk(self) -> u32 {
        (self.0.get() - 1) >> POSITION_BITS
    }

    #[inline]
    fn position(self) -> usize {
        ((self.0.get() - 1) & ((1 << POSITION_BITS) - 1)) as usize
    }
}

/// A cache line of indices, those from `start` to `end`, with `NIL` where one was removed. At least one is none.
#[repr(align(64))]
struct Chunk {
    items: [u32; CAPACITY],
    /// The neighbours in the slot's ring; `next` is also the link of the free list.
    prev: u32,
    next: u32,
    slot: u32,
    start: u8,
    end: u8,
    live: u8,
}

const _: () = assert!(size_of::<Chunk>() == 64);

pub(crate) struct Lists {
    /// The first chunk of each slot, or its only entry, marked `ALONE`. A slot's chunks are a ring: the last is the first one's `prev`.
    heads: Box<[u32]>,
    chunks: Vec<Chunk>,
    free: u32,
}

impl Lists {
    pub(crate) fn new(slots: usize) -> Self {
        Self { heads: vec![NIL; slots].into(), chunks: Vec::new(), free: NIL }
    }

    pub(crate) fn slots(&self) -> usize {
        self.heads.len()
    }

    #[inline]
    pub(crate) fn is_empty(&self, slot: u32) -> bool {
        self.heads[slot as usize] == NIL
    }

    /// Puts an entry into an empty slot.
    #[inline]
    pub(crate) fn put(&mut self, slot: u32, index: u32) -> Place {
        self.heads[slot as usize] = ALONE | index;
        Place::alone(slot)
    }

    /// Before an entry joins others: gives the one that is alone in the slot another place, which is for the caller to note.
    #[inline]
    pub(crate) fn make_room(&mut self, slot: u32) -> Option<(u32, Place)> {
        let head = self.heads[slot as usize];
        let index = lone(head)?;
        self.heads[slot as usize] = NIL;
        // As if it were first of all, with room on both sides.
        let chunk = self.add(slot, 1);
        self.heads[slot as usize] = chunk;
        Some((index, self.push(chunk, index)))
    }

    /// Puts an entry last in a slot that has room for it.
    #[inline]
    pub(crate) fn append(&mut self, slot: u32, index: u32) -> Place {
        let first = self.heads[slot as usize];
        let mut chunk = self.chunks[first as usize].prev;
        if usize::from(self.chunks[chunk as usize].end) == CAPACITY {
            chunk = self.add(slot, 0);
        }
        self.push(chunk, index)
    }

    /// Puts an entry first in a slot that has room for it.
    pub(crate) fn prepend(&mut self, slot: u32, index: u32) -> Place {
        let mut chunk = self.heads[slot as usize];
        if self.chunks[chunk as usize].start == 0 {
            // The ring has no end: before the first is after the last.
            chunk = self.add(slot, CAPACITY_U8);
            self.heads[slot as usize] = chunk;
        }
        let own = &mut self.chunks[chunk as usize];
        own.start -= 1;
        own.live += 1;
        own.items[usize::from(own.start)] = index;
        Place::new(chunk, own.start)
    }

    #[inline]
    fn push(&mut self, chunk: u32, index: u32) -> Place {
        let own = &mut self.chunks[chunk as usize];
        let position = own.end;
        own.items[usize::from(position)] = index;
        own.end += 1;
        own.live += 1;
        Place::new(chunk, position)
    }

    /// Takes an entry out; its slot, if that is empty now.
    #[inline]
    pub(crate) fn remove(&mut self, place: Place) -> Option<u32> {
        if let Some(slot) = place.lone_slot() {
            self.heads[slot as usize] = NIL;
            return Some(slot);
        }
        self.remove_from_chunk(place)
    }

    fn remove_from_chunk(&mut self, place: Place) -> Option<u32> {
        let chunk = place.chunk();
        let own = &mut self.chunks[chunk as usize];
        let position = place.position();
        own.items[position] = NIL;
        own.live -= 1;
        if own.live == 0 {
            return self.unlink(chunk);
        }
        if position + 1 == usize::from(own.end) {
            own.end -= 1;
        } else if position == usize::from(own.start) {
            own.start += 1;
        }
        None
    }

    /// The first entry of a slot.
    #[inline]
    pub(crate) fn first(&mut self, slot: u32) -> Option<u32> {
        let head = self.heads[slot as usize];
        if let Some(index) = lone(head) {
            return Some(index);
        }
        let own = self.chunks.get_mut(head as usize)?;
        loop {
            let index = own.items[usize::from(own.start)];
            if index != NIL {
                return Some(index);
            }
            own.start += 1;
        }
    }

    /// The last entry of a slot.
    #[inline]
    pub(crate) fn last(&mut self, slot: u32) -> Option<u32> {
        let head = self.heads[slot as usize];
        if let Some(index) = lone(head) {
            return Some(index);
        }
        let last = self.chunks.get(head as usize)?.prev;
        let own = &mut self.chunks[last as usize];
        loop {
            let index = own.items[usize::from(own.end) - 1];
            if index != NIL {
                return Some(index);
            }
            own.end -= 1;
        }
    }

    /// The entries of a slot, from the first or from the last chunk on.
    pub(crate) fn entries(&self, slot: u32, from: End) -> impl Iterator<Item = u32> {
        let first = self.heads[slot as usize];
        let (mut chunk, end) = match (self.chunks.get(first as usize), from) {
            (None, _) => (NIL, NIL),
            (Some(_), End::First) => (first, first),
            (Some(own), End::Last) => (own.prev, own.prev),
        };
        let chunks = core::iter::from_fn(move || {
            let own = self.chunks.get(chunk as usize)?;
            chunk = if from == End::First { own.next } else { own.prev };
            if chunk == end {
                chunk = NIL;
            }
            Some(own)
        });
        let entries =
            chunks.flat_map(|own| &own.items[usize::from(own.start)..usize::from(own.end)]).copied();
        lone(first).into_iter().chain(entries.filter(|&index| index != NIL))
    }

    /// Gives all memory back if no entry is in any slot.
    pub(crate) fn release(&mut self) {
        self.chunks = Vec::new();
        self.free = NIL;
    }

    /// An empty chunk, after the last one of the slot.
    #[inline]
    fn add(&mut self, slot: u32, start: u8) -> u32 {
        let chunk = if self.free == NIL { self.grow() } else { self.free };
        self.free = self.chunks[chunk as usize].next;
        let first = self.heads[slot as usize];
        // Empty, and about to be filled, or it has chunks.
        let (prev, next) =
            if first == NIL { (chunk, chunk) } else { (self.chunks[first as usize].prev, first) };
        let own = &mut self.chunks[chunk as usize];
        (own.prev, own.next, own.slot) = (prev, next, slot);
        (own.start, own.end, own.live) = (start, start, 0);
        if first != NIL {
            self.chunks[prev as usize].next = chunk;
            self.chunks[next as usize].prev = chunk;
        }
        chunk
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self) -> u32 {
        let chunk = u32::try_from(self.chunks.len()).unwrap_or(NIL);
        if self.chunks.len() == self.chunks.capacity() && self.chunks.len() >= SMALL {
            // Doubling would keep up to half of it unused.
            self.chunks.reserve_exact(self.chunks.len() / 16);
        }
        let items = [NIL; CAPACITY];
        self.chunks.push(Chunk { items, prev: NIL, next: NIL, slot: NIL, start: 0, end: 0, live: 0 });
        chunk
    }

    /// Frees a chunk; its slot, if it was the only one there.
    #[inline]
    fn unlink(&mut self, chunk: u32) -> Option<u32> {
        let own = &mut self.chunks[chunk as usize];
        let (prev, next, slot) = (own.prev, own.next, own.slot);
        own.next = self.free;
        self.free = chunk;
        if next == chunk {
            self.heads[slot as usize] = NIL;
            return Some(slot);
        }
        self.chunks[prev as usize].next = next;
        self.chunks[next as usize].prev = prev;
        if self.heads[slot as usize] == chunk {
            self.heads[slot as usize] = next;
        }
        None
    }
}

/// Where to begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    First,
    Last,
}

#[cfg(any(test, fuzzing))]
impl Lists {
    pub(crate) fn slot(&self, place: Place) -> Option<u32> {
        place.lone_slot().or_else(|| self.chunks.get(place.chunk() as usize).map(|own| own.slot))
    }

    pub(crate) fn at(&self, place: Place) -> Option<u32> {
        match place.lone_slot() {
            Some(slot) => lone(self.heads[slot as usize]),
            None => self.chunks.get(place.chunk() as usize).map(|own| own.items[place.position()]),
        }
    }

    /// Every chunk is in a ring and has entries, or is free.
    pub(crate) fn check(&self) {
        let (mut known, mut chunk) = (0, self.free);
        while chunk != NIL {
            known += 1;
            assert!(known <= self.chunks.len(), "the free list loops");
            chunk = self.chunks[chunk as usize].next;
        }
        for &first in self.heads.iter().filter(|&&head| head & ALONE == 0) {
            let mut chunk = first;
            loop {
                known += 1;
                assert!(known <= self.chunks.len(), "a ring loops");
                let own = &self.chunks[chunk as usize];
                let items = &own.items[usize::from(own.start)..usize::from(own.end)];
                assert_eq!(items.iter().filter(|&&index| index != NIL).count(), usize::from(own.live));
                assert!(own.live > 0);
                assert_eq!(self.chunks[own.next as usize].prev, chunk);
                chunk = own.next;
                if chunk == first {
                    break;
                }
            }
        }
        assert_eq!(known, self.chunks.len());
    }
}

/// The entry of a slot that has one and no chunk.
#[inline]
fn lone(head: u32) -> Option<u32> {
    (head & ALONE != 0 && head != NIL).then_some(head & !ALONE)
}

/// Marks an entry in place of a chunk, and a slot in place of a position.
const ALONE: u32 = 1 << 31;

/// What fits into a cache line beside the links.
const CAPACITY: usize = 12;
const CAPACITY_U8: u8 = 12;
const POSITION_BITS: u32 = 4;

/// Below this many chunks memory doubles as vectors do.
const SMALL: usize = 128;

#[cfg(test)]
mod tests {
    use alloc::collections::VecDeque;

    use super::*;

    /// Random additions at both ends and removals anywhere, beside a queue that is searched.
    #[test]
    fn order_is_that_of_a_queue() {
        let mut lists = Lists::new(3);
        let mut expected: [VecDeque<u32>; 3] = Default::default();
        let mut places = vec![Place::NOWHERE; 400];
        let mut absent: Vec<u32> = (0..400).collect();
        let mut state = 0x9E37_79B9_7F4A_7C15_u64;
        for step in 0..200_000 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let slot = (state >> 8) as usize % 3;
            let queue = &mut expected[slot];
            // Mostly fuller for a while, then mostly emptier.
            let adds = state % 16 < if step / 2_000 % 2 == 0 { 10 } else { 5 };
            let number = u32::try_from(slot).unwrap();
            if adds && let Some(index) = absent.pop() {
                places[index as usize] = if lists.is_empty(number) {
                    queue.push_back(index);
                    lists.put(number, index)
                } else {
                    if let Some((moved, place)) = lists.make_room(number) {
                        places[moved as usize] = place;
                    }
                    if state & 1 << 20 == 0 {
                        queue.push_back(index);
                        lists.append(number, index)
                    } else {
                        queue.push_front(index);
                        lists.prepend(number, index)
                    }
                };
            } else if !queue.is_empty() {
                let at = match state >> 32 & 3 {
                    0 => 0,
                    1 => queue.len() - 1,
                    _ => (state >> 36) as usize % queue.len(),
                };
                let index = queue.remove(at).unwrap();
                absent.push(index);
                let emptied = lists.remove(places[index as usize]);
                assert_eq!(emptied, queue.is_empty().then_some(number));
            }
            assert_eq!(
                (lists.first(number), lists.last(number)),
                (queue.front().copied(), queue.back().copied())
            );
            if step % 64 == 0 {
                lists.check();
                assert!(lists.entries(number, End::First).eq(queue.iter().copied()));
                assert_eq!(lists.entries(number, End::Last).count(), queue.len());
                assert!(queue.iter().all(|&index| lists.at(places[index as usize]) == Some(index)));
            }
        }
    }
}
