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
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn published_vectors() {
        // The check value of CRC-16/XMODEM, which the Cluster specification quotes too.
        assert_eq!(crc16(b"123456789"), 0x31C3);
        assert_eq!(slot_of(b"123456789"), 12_739);
        assert_eq!(slot_of(b""), 0);
        assert_eq!(slot_of(b"foo"), 12_182);
    }

    #[test]
    fn hash_tags_as_the_specification_tells_them() {
        assert_eq!(slot_of(b"{user1000}.following"), slot_of(b"user1000"));
        assert_eq!(slot_of(b"{user1000}.following"), slot_of(b"{user1000}.followers"));
        assert_eq!(slot_of(b"foo{}{bar}"), crc16(b"foo{}{bar}") % SLOTS, "an empty tag is none");
        assert_eq!(slot_of(b"foo{{bar}}zap"), slot_of(b"{bar"), "the first brace opens");
        assert_eq!(slot_of(b"foo{bar}{zap}"), slot_of(b"bar"), "the first brace after it closes");
        assert_eq!(slot_of(b"foo}{bar"), crc16(b"foo}{bar") % SLOTS, "nothing closes it");
        assert_eq!(slot_of(b"}{bar}"), slot_of(b"bar"), "a brace before the opening one is no brace");
        assert_eq!(slot_of(b"{"), crc16(b"{") % SLOTS);
    }

    proptest! {
        #[test]
        fn the_table_computes_what_the_definition_says(key: Vec<u8>) {
            let by_definition = key.iter().fold(0, |crc: u16, &byte| {
                (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| (crc << 1) ^ if crc & 0x8000 == 0 { 0 } else { 0x1021 })
            });
            prop_assert_eq!(crc16(&key), by_definition);
            prop_assert!(slot_of(&key) < SLOTS);
        }

        #[test]
        fn a_slot_set_is_a_set(some in proptest::collection::vec(any::<u16>(), 0..50)) {
            let set = |slots: &[u16]| {
                let mut set = SlotSet::default();
                slots.iter().for_each(|&slot| set.insert(slot));
                set
            };
            let slots = set(&some);
            let expected: BTreeSet<u16> = some.iter().copied().filter(|&slot| slot < SLOTS).collect();
            prop_assert_eq!(slots.is_empty(), expected.is_empty());
            prop_assert!(slots.iter().eq(expected.iter().copied()));
            prop_assert!(some.iter().all(|&slot| slots.contains(slot) == (slot < SLOTS)));
            prop_assert_eq!(&slots, &set(&expected.into_iter().collect::<Vec<_>>()));
        }
    }

    #[test]
    fn slot_sets_are_shown_as_ranges() {
        let mut set = SlotSet::default();
        assert_eq!(format!("{set:?}"), "{}");
        [0, 1, 2, 93, 16_382, 16_383].into_iter().for_each(|slot| set.insert(slot));
        assert_eq!(format!("{set:?}"), "{0..=2, 93..=93, 16382..=16383}");
    }
}
