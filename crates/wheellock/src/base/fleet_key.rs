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

    /// Returns the keys that each process of a fleet refreshes.
    pub(crate) fn all() -> Box<[Arc<Self>]> {
        [Arc::new(Self::new(Self::START.to_owned()))].into()
    }
}
