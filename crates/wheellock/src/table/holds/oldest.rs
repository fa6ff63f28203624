//! The oldest holds of this process, for display. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::{Hold, Holds};
use crate::base::clock::BootInstant;
use crate::wait::name::Name;

/// The oldest holds among those that a search has seen. Each has its start and its serial, its lock and its owner.
#[derive(Default)]
pub(crate) struct Oldest(BTreeMap<(BootInstant, u64), (Arc<Name>, u64)>);

impl Oldest {
    /// Largest number of holds.
    pub(crate) const MOST: usize = 100;

    fn add(&mut self, hold: &Hold) {
        let age = (hold.guard_since, hold.serial);
        let is_full = self.0.len() >= Self::MOST;
        if is_full && self.0.last_key_value().is_some_and(|(youngest, _)| *youngest < age) {
            return;
        }
        // Last, because the name is elsewhere in memory.
        if hold.name.kind().show_holders.is_none() {
            return;
        }
        self.0.insert(age, (Arc::clone(&hold.name), hold.owner));
        if self.0.len() > Self::MOST {
            self.0.pop_last();
        }
    }

    /// Returns the start, the lock and the owner of each hold. The oldest comes first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (BootInstant, &Name, u64)> {
        self.0.iter().map(|((since, _), (name, owner))| (*since, &**name, *owner))
    }
}

impl Holds {
    /// Searches some places of the table for old holds whose owner the server knows by name. Returns the next place, or `None` at
    /// the end.
    ///
    /// A search of all places at once would keep every task of the process from its locks for milliseconds.
    pub(crate) fn find_oldest(&self, from: usize, now: BootInstant, oldest: &mut Oldest) -> Option<usize> {
        let end = self.holds.capacity();
        let next = from.saturating_add(PLACES_AT_ONCE);
        let holds = (from..next.min(end)).filter_map(|place| self.holds.get(place));
        holds.filter(|hold| hold.is_old(now)).for_each(|hold| oldest.add(hold));
        (next < end).then_some(next)
    }
}

impl Hold {
    fn is_old(&self, now: BootInstant) -> bool {
        self.is_believed() && self.is_valid(now) && self.guard_since + SHORTEST <= now
    }
}

/// Shortest time of an old hold. A process whose holds are all shorter writes nothing about them.
const SHORTEST: Duration = Duration::from_secs(5);

/// Number of places that are searched under one lock of the table. That takes some microseconds.
const PLACES_AT_ONCE: usize = 1000;
