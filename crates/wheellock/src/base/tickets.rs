//! Entries in order of their tickets. An entry is found by its ticket and may be removed in any order. Pure.

use std::collections::VecDeque;

/// First ticket. Later tickets count upwards, and tickets for the front count downwards.
const MIDDLE: u64 = 1 << 32;

/// Holes are kept up to this number, or up to the number of entries.
const HOLES: usize = 32;

/// Entries in the order of their tickets. The list does not allocate once it has space for all entries.
pub(crate) struct Tickets<T> {
    /// A removed entry leaves a hole, unless it stood at an end: neither end is a hole.
    entries: VecDeque<(u64, Option<T>)>,
    holes: usize,
    next: u64,
}

impl<T> Default for Tickets<T> {
    fn default() -> Self {
        Self { entries: VecDeque::new(), holes: 0, next: MIDDLE }
    }
}

impl<T> Tickets<T> {
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Adds an entry behind all others. Returns its ticket.
    pub(crate) fn push_back(&mut self, entry: T) -> u64 {
        let ticket = self.next;
        self.next += 1;
        self.entries.push_back((ticket, Some(entry)));
        ticket
    }

    /// Adds an entry in front of all others. Returns its ticket.
    pub(crate) fn push_front(&mut self, entry: T) -> u64 {
        let Some((first, _)) = self.entries.front() else { return self.push_back(entry) };
        let ticket = first - 1;
        self.entries.push_front((ticket, Some(entry)));
        ticket
    }

    pub(crate) fn first(&mut self) -> Option<&mut T> {
        self.entries.front_mut().and_then(|(_, entry)| entry.as_mut())
    }

    pub(crate) fn first_ticket(&self) -> Option<u64> {
        self.entries.front().map(|(ticket, _)| *ticket)
    }

    /// Returns the ticket of the next entry behind all others.
    pub(crate) fn next_ticket(&self) -> u64 {
        self.next
    }

    pub(crate) fn is_first(&self, ticket: u64) -> bool {
        self.entries.front().is_some_and(|(first, _)| *first == ticket)
    }

    pub(crate) fn get_mut(&mut self, ticket: u64) -> Option<&mut T> {
        let place = self.place(ticket)?;
        self.entries.get_mut(place)?.1.as_mut()
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.entries.iter_mut().filter_map(|(_, entry)| entry.as_mut())
    }

    /// Returns the entries from this ticket on.
    pub(crate) fn values_from(&mut self, ticket: u64) -> impl Iterator<Item = &mut T> {
        let place = self.entries.partition_point(|(known, _)| *known < ticket);
        self.entries.range_mut(place..).filter_map(|(_, entry)| entry.as_mut())
    }

    pub(crate) fn remove(&mut self, ticket: u64) -> Option<T> {
        let place = self.place(ticket)?;
        let removed = self.entries.get_mut(place)?.1.take()?;
        self.holes += 1;
        while let Some((_, None)) = self.entries.front() {
            self.entries.pop_front();
            self.holes -= 1;
        }
        while let Some((_, None)) = self.entries.back() {
            self.entries.pop_back();
            self.holes -= 1;
        }
        if self.holes > HOLES && self.holes > self.entries.len() / 2 {
            self.entries.retain(|(_, entry)| entry.is_some());
            self.holes = 0;
        }
        Some(removed)
    }

    /// Returns the index of a ticket. Tickets usually have no gaps, so the distance from the first ticket is the index.
    fn place(&self, ticket: u64) -> Option<usize> {
        let (first, _) = self.entries.front()?;
        let place = usize::try_from(ticket.checked_sub(*first)?).ok()?;
        if self.entries.get(place).is_some_and(|(known, _)| *known == ticket) {
            return Some(place);
        }
        self.entries.binary_search_by_key(&ticket, |(known, _)| *known).ok()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Compares the tickets with a map, which has the same behaviour.
        #[test]
        fn tickets_are_a_map_in_order(steps in proptest::collection::vec((0..4_u8, any::<prop::sample::Index>()), 0..400)) {
            let (mut tickets, mut model) = (Tickets::default(), BTreeMap::new());
            for (number, (step, which)) in steps.into_iter().enumerate() {
                match step {
                    0 | 1 => {
                        let ticket = if step == 0 { tickets.push_back(number) } else { tickets.push_front(number) };
                        let known = if step == 0 { model.last_key_value() } else { model.first_key_value() };
                        prop_assert!(known.is_none_or(|(known, _)| (ticket > *known) == (step == 0)));
                        prop_assert!(model.insert(ticket, number).is_none());
                    }
                    _ if model.is_empty() => prop_assert!(tickets.remove(MIDDLE).is_none()),
                    _ => {
                        let ticket = *model.keys().nth(which.index(model.len())).unwrap();
                        prop_assert_eq!(tickets.get_mut(ticket).copied(), model.get(&ticket).copied());
                        prop_assert_eq!(tickets.remove(ticket), model.remove(&ticket));
                        prop_assert_eq!(tickets.remove(ticket), None);
                    }
                }
                let first = model.first_key_value();
                prop_assert_eq!(tickets.first().copied(), first.map(|(_, entry)| *entry));
                prop_assert!(first.is_none_or(|(ticket, _)| tickets.is_first(*ticket)));
                prop_assert_eq!(tickets.is_empty(), model.is_empty());
                prop_assert!(tickets.values_mut().map(|entry| *entry).eq(model.values().copied()));
                let from = MIDDLE + number as u64 / 2;
                prop_assert!(tickets.values_from(from).map(|entry| *entry).eq(model.range(from..).map(|(_, entry)| *entry)));
                prop_assert!(tickets.entries.len() <= 2 * model.len() + HOLES + 1, "holes are given up");
            }
        }
    }
}
