//! Tests of `slots`.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

#[test]
fn published_vectors() {
    // The check value of CRC-16/XMODEM, which the Cluster specification also quotes.
    assert_eq!(crc16(b"123456789"), 0x31C3);
    assert_eq!(slot_of(b"123456789"), 12_739);
    assert_eq!(slot_of(b""), 0);
    assert_eq!(slot_of(b"foo"), 12_182);
}

#[test]
fn hash_tags_follow_specification() {
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
    fn crc_table_matches_definition(key: Vec<u8>) {
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
fn joined_slot_sets_hold_both() {
    let (mut set, mut other) = (SlotSet::default(), SlotSet::default());
    [0, 93].into_iter().for_each(|slot| set.insert(slot));
    [93, 16_383].into_iter().for_each(|slot| other.insert(slot));
    set.join(&other);
    assert!(set.iter().eq([0, 93, 16_383]));
}

#[test]
fn slot_sets_are_shown_as_ranges() {
    let mut set = SlotSet::default();
    assert_eq!(format!("{set:?}"), "{}");
    [0, 1, 2, 93, 16_382, 16_383].into_iter().for_each(|slot| set.insert(slot));
    assert_eq!(format!("{set:?}"), "{0..=2, 93..=93, 16382..=16383}");
}
