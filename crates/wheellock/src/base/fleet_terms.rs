//! The checked numbers of a fleet, for one manager.

use std::time::Duration;

use crate::base::error::Error;
use crate::base::fleet::Fleet;
use crate::base::lease::Lease;

/// A fleet with checked numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub(crate) longest_lease: Lease,
    pub(crate) window: Duration,
    /// A grant whose reply takes longer is given back. All processes have the same limit, whatever their response timeouts are: a hold is
    /// extended in a grace only if no such grant of the old server is to come.
    pub(crate) reply_within: Duration,
    pub(crate) replicas: u32,
    pub(crate) may_be_new: bool,
    /// Time without a refresh after which a process's entry is removed.
    pub(crate) entry_lasts: Duration,
}

impl Terms {
    /// Checks a fleet for a manager whose watchdog renews `watchdog_lease`.
    pub(crate) fn new(fleet: &Fleet, watchdog_lease: Lease) -> Result<Self, Error> {
        let wrong = |reason: String| Error::UnsupportedFleet { fleet: fleet.clone(), reason };
        let longest_lease = Lease::new(fleet.longest_lease)?;
        let Some(replicas) = fleet.servers.checked_sub(1) else {
            return Err(wrong("a fleet has at least one server".to_owned()));
        };
        if watchdog_lease > longest_lease {
            let lease = watchdog_lease.duration();
            return Err(wrong(format!("the watchdog's lease of {lease:?} is longer")));
        }
        // After this time less a window without a primary, all processes count as new, and need the acknowledgements of all replicas.
        let entry_lasts = fleet.entry_lasts.unwrap_or(2 * (fleet.longest_lease + fleet.window));
        let (window, may_be_new) = (fleet.window, fleet.may_be_new);
        let reply_within = window / 3;
        Ok(Self { longest_lease, window, reply_within, replicas, may_be_new, entry_lasts })
    }

    /// Returns the number of replicas without which no other server can have the acknowledgements of a majority.
    pub(crate) fn majority(&self) -> u32 {
        self.replicas.div_ceil(2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_grants_have_one_limit() {
        let fleet = Fleet::of_servers(3);
        let terms = Terms::new(&fleet, Lease::DEFAULT).unwrap();
        assert_eq!(terms.reply_within, fleet.window / 3);
        let left = terms.longest_lease.duration() * 2 / 3;
        assert!(left > terms.window + terms.reply_within, "a hold can be secure when it is renewed");
    }
}
