//! Hash slots of Redis Cluster, and sets of them.
//!
//! This module does not know the owners of slots.

use std::fmt;
use std::ops::RangeInclusive;

/// The number of hash slots in a cluster. Source: the Redis Cluster specification, "Key distribution model".
pub(crate) const SLOTS: u16 = 16_384;

/// Returns the hash slot of a key in Redis Cluster, a number below 16 384.
///
/// The slot is the CRC16 of the key's hash tag, or of the whole key if it has no tag. The hash tag is the text
/// between the first `{` and the first `}` behind it, unless that text is empty. Keys with equal tags are in the same
/// slot. Source: the Redis Cluster specification, "Hash tags".
///
/// ```
/// use wheellock_client::slot_of;
///
/// assert_eq!(slot_of(b"foo"), 12_182);
/// assert_eq!(slot_of(b"redisson_lock__channel:{foo}"), slot_of(b"foo"));
/// ```
#[must_use]
pub fn slot_of(key: &[u8]) -> u16 {
    crc16(hash_tag(key).unwrap_or(key)) % SLOTS
}

fn hash_tag(key: &[u8]) -> Option<&[u8]> {
    let open = key.iter().position(|&byte| byte == b'{')?;
    let inside = key.get(open + 1..)?;
    let close = inside.iter().position(|&byte| byte == b'}')?;
    inside.get(..close).filter(|tag| !tag.is_empty())
}

/// Returns the CRC-16/XMODEM of `bytes`: polynomial 0x1021, initial value zero, without reflection. Source: the Redis
/// Cluster specification, appendix A.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc: u16, &byte| {
        let [high, low] = crc.to_be_bytes();
        #[expect(clippy::indexing_slicing, reason = "a byte indexes 256 entries")]
        let entry = CRC16[usize::from(high ^ byte)];
        entry ^ u16::from_be_bytes([low, 0])
    })
}

static CRC16: [u16; 256] = crc16_table();

#[expect(clippy::indexing_slicing, reason = "evaluated by the compiler, which would refuse")]
const fn crc16_table() -> [u16; 256] {
    let mut table = [0; 256];
    let mut byte: u16 = 0;
    while byte < 256 {
        let mut crc = byte << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
            bit += 1;
        }
        table[byte as usize] = crc;
        byte += 1;
    }
    table
}

/// A set of hash slots. It always takes 2 KiB.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct SlotSet(Box<[u64; WORDS]>);

const WORDS: usize = SLOTS as usize / 64;

impl SlotSet {
    /// Adds a slot, and ignores a number that is not a slot.
    pub(crate) fn insert(&mut self, slot: u16) {
        let (word, bit) = place(slot);
        if let Some(word) = self.0.get_mut(word) {
            *word |= bit;
        }
    }

    /// Adds the slots of another set.
    pub(crate) fn join(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0.iter()).for_each(|(word, other)| *word |= other);
    }

    /// Returns true if the slot is in the set.
    pub(crate) fn contains(&self, slot: u16) -> bool {
        let (word, bit) = place(slot);
        self.0.get(word).is_some_and(|word| word & bit != 0)
    }

    /// Returns true if the set is empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.iter().all(|&word| word == 0)
    }

    /// Returns the slots in ascending order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u16> {
        (0..SLOTS).filter(|&slot| self.contains(slot))
    }
}

fn place(slot: u16) -> (usize, u64) {
    (usize::from(slot / 64), 1 << (slot % 64))
}

impl Default for SlotSet {
    fn default() -> Self {
        Self(Box::new([0; WORDS]))
    }
}

/// Prints ranges: `{0..=5460, 9000..=9000}`.
impl fmt::Debug for SlotSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut ranges: Vec<RangeInclusive<u16>> = Vec::new();
        for slot in self.iter() {
            match ranges.last_mut() {
                Some(range) if range.end() + 1 == slot => *range = *range.start()..=slot,
                _ => ranges.push(slot..=slot),
            }
        }
        f.debug_set().entries(ranges).finish()
    }
}

#[cfg(test)]
mod tests;
