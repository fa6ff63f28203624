//! The keys of a fleet on its servers.

use std::sync::Arc;

/// A fleet's hash on a server, with its two companions.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct FleetKey {
    /// A hash: the numbers of the fleet, and the state of the grace.
    pub(crate) fleet: String,
    /// A sorted set: the last refresh of each process.
    pub(crate) roster: String,
    /// A set: the processes that have written their holds.
    pub(crate) checked_in: String,
}

impl FleetKey {
    /// The common start of all keys of a fleet.
    pub(crate) const START: &str = "wheellock:fleet";

    fn new(fleet: String) -> Self {
        let (roster, checked_in) = (format!("{fleet}:roster"), format!("{fleet}:checked_in"));
        Self { fleet, roster, checked_in }
    }

    /// Returns the keys that each process of a fleet refreshes. In a cluster they are spread evenly over the slots.
    pub(crate) fn all(in_cluster: bool) -> Box<[Arc<Self>]> {
        if in_cluster {
            TAGS.iter().map(|tag| Arc::new(Self::new(format!("{}:{{{tag}}}", Self::START)))).collect()
        } else {
            [Arc::new(Self::new(Self::START.to_owned()))].into()
        }
    }
}

/// Hash tags of the keys in a cluster. Their slots are 512, 1536 and so on to 15 872, so each of up to 16 equal shards has one. All processes
/// have the same keys, whatever each of them knows of the shards. Otherwise two processes of a shard might not know each other.
const TAGS: [u16; 16] = [
    1768, 20_261, 18_360, 41_271, 3453, 11_199, 29_098, 8591, 265, 45_842, 13_409, 17_891, 46_093, 3635,
    2912, 48_623,
];

#[cfg(test)]
mod tests {
    use wheellock_client::slot_of;

    use super::*;

    #[test]
    fn keys_divide_slots_evenly() {
        for (place, key) in (0_u16..).zip(FleetKey::all(true)) {
            for text in [&key.fleet, &key.roster, &key.checked_in] {
                assert_eq!(slot_of(text.as_bytes()), 1024 * place + 512, "{text}");
            }
        }
    }
}
