//! Hash slots of Redis Cluster: which slot a key is in, and sets of slots. Knows nothing of who owns one.

use std::fmt;
use std::ops::RangeInclusive;

/// How many hash slots a cluster has. Source: the Redis Cluster specification, "Key distribution model".
pub(crate) const SLOTS: u16 = 16_384;

/// The hash slot of a key in Redis Cluster, below 16 384.
///
/// It is the CRC16 of the key, or of its hash tag: the bytes between the first `{` and the first `}` after it, unless there
/// are none. Keys with equal tags are in the same slot. Source: the Redis Cluster specification, "Hash tags".
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

/// CRC-16/XMODEM: polynomial 0x1021, starting from zero, nothing reflected. Source: the Redis Cluster specification,
/// appendix A.
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

/// A set of hash slots: 2 KiB, whatever is in it.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct SlotSet(Box<[u64; WORDS]>);

const WORDS: usize = SLOTS as usize / 64;

impl SlotSet {
    /// Adds a slot; one that no cluster has is ignored.
    pub(crate) fn insert(&mut self, slot: u16) {
        let (word, bit) = place(slot);
        if let Some(word) = self.0.get_mut(word) {
            *word |= bit;
        }
    }

    /// Whether the slot is in the set.
    pub(crate) fn contains(&self, slot: u16) -> bool {
        let (word, bit) = place(slot);
        self.0.get(word).is_some_and(|word| word & bit != 0)
    }

    /// Whether no slot is in the set.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.iter().all(|&word| word == 0)
    }

    /// The slots in ascending order.
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

/// As ranges: `{0..=5460, 9000..=9000}`.
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
