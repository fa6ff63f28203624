//! Hash slots: which of a cluster's 16 384 a key belongs to, and sets of them. Pure.

/// The hash slot of a key in Redis Cluster.
pub fn slot_of(_key: &[u8]) -> u16 {
    0
}

/// A set of hash slots.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct SlotSet(Vec<u16>);

impl SlotSet {
    /// Whether `slot` is in the set.
    pub fn contains(&self, slot: u16) -> bool {
        self.0.contains(&slot)
    }
}
