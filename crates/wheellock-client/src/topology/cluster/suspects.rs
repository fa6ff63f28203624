//! The nodes with recent faults, which distinguish new faults from repeated ones. Pure.

use std::collections::HashMap;
use std::time::Instant;

use crate::base::address::Address;
use crate::base::pace::TROUBLE;

/// The nodes with recent faults, each with the instant of its last fault.
#[derive(Default)]
pub(super) struct Suspects(HashMap<Address, Instant>);

impl Suspects {
    /// Records a fault of the node at `address`. Returns true if the fault is new: the node had none for the last
    /// `TROUBLE`. A fault that repeats is new only once.
    pub(super) fn add(&mut self, address: &Address, now: Instant) -> bool {
        let before = self.0.insert(address.clone(), now);
        before.is_none_or(|before| now.saturating_duration_since(before) >= TROUBLE)
    }

    /// Forgets nodes whose next fault would be new.
    pub(super) fn forget_old(&mut self, now: Instant) {
        self.0.retain(|_, last| now.saturating_duration_since(*last) < TROUBLE);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn recurring_suspect_is_reported_once() {
        let at = |port| Address::Tcp { host: "h".to_owned(), port };
        let (mut suspects, begin, second) = (Suspects::default(), Instant::now(), Duration::from_secs(1));
        assert!(suspects.add(&at(1), begin));
        for round in 1..100 {
            assert!(!suspects.add(&at(1), begin + 9 * second * round), "within ten seconds of the last time");
        }
        let now = begin + 9 * second * 99;
        assert!(suspects.add(&at(2), now), "another one");
        assert!(suspects.add(&at(1), now + 10 * second), "it was well for long");
        suspects.forget_old(now + 10 * second);
        assert_eq!(suspects.0.len(), 1);
        suspects.forget_old(now + 20 * second);
        assert!(suspects.0.is_empty());
    }
}
