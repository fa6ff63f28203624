//! Losses of which the server tells the holders. Pure.

use super::event::{Event, Fault, What};
use super::operations::{Operation, operations};
use super::text::History;

/// The holders whose locks a fault deleted while their connections were up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// Their belief ended before the next grant of the lock.
    pub in_time: u64,
    /// Another owner was granted the lock while they believed.
    pub late: u64,
}

/// Counts the holders that lost their locks to a fault. A hold counts if the watchdog has renewed it before, because the server tells of
/// such holds only.
#[must_use]
pub fn told(history: &History) -> Told {
    let operations = operations(&history.events);
    let mut told = Told::default();
    for struck in history.events.iter().filter(|event| deletes_locks(event)).map(|event| event.at) {
        for hold in operations.iter().filter(|hold| is_watched(hold, struck)) {
            if !is_connected(&history.events, struck, hold.lease) {
                continue;
            }
            let to = hold.belief.map_or(0, |belief| belief.to);
            // The owner itself may take the lock again.
            let is_rival = |other: &&Operation| other.lock == hold.lock && other.owner != hold.owner;
            let of_lock = operations.iter().filter(is_rival);
            let grants = of_lock.filter_map(|other| other.belief.map(|belief| belief.from));
            let next = grants.filter(|granted| *granted > struck).min();
            match next {
                Some(next) if next < to => told.late += 1,
                _ if hold.lost.is_some_and(|(at, ..)| at == to) => told.in_time += 1,
                // The holder released the lock before it learned of the loss.
                _ => {}
            }
        }
    }
    told
}

fn deletes_locks(event: &Event) -> bool {
    matches!(event.what, What::Begins { fault: Fault::Forgot | Fault::Evicting, .. })
}

/// Returns true if the hold is believed at this time and the watchdog has renewed it. The first renewal comes after a third of the lease.
fn is_watched(hold: &Operation, at: u64) -> bool {
    let renewed_after = hold.lease / 3 + hold.lease / 10;
    let is_believed = hold.belief.is_some_and(|belief| belief.from + renewed_after <= at && at < belief.to);
    hold.renewed && !hold.shared && is_believed
}

/// Returns true if no other fault stops the news of a deletion at this time.
fn is_connected(events: &[Event], at: u64, lease: u64) -> bool {
    let is_near = |event: &&Event| event.at + lease >= at && event.at <= at + lease;
    let stops_news = |event: &Event| match &event.what {
        What::Begins { fault, .. } => fault.disturbs() && !fault.loses_locks(),
        What::Stopped | What::Killed => true,
        _ => false,
    };
    !events.iter().filter(is_near).any(stops_news)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELD: &str =
        "10 1 1 1 a invoked acquire true 90 - -\n20 1 1 1 a granted me:1 110\n60 1 1 1 a moved 150\n";

    fn of(rest: &str) -> Told {
        let text = format!("{HELD}{rest}");
        told(&History::merge(History::parse(&text).unwrap()))
    }

    #[test]
    fn belief_at_next_grant_is_late() {
        let taken = "70 0 0 0 - begins forgot -\n75 2 1 1 a invoked acquire true 90 - -\n80 2 1 1 a granted you:1 170\n";
        for (ends, in_time, late) in [
            ("78 1 1 1 a lost not-owner 150\n", 1, 0),
            ("85 1 1 1 a lost not-owner 150\n", 0, 1),
            ("85 1 1 1 a releasing\n", 0, 1),
            ("78 1 1 1 a releasing\n", 0, 0),
        ] {
            assert_eq!(of(&format!("{taken}{ends}")), Told { in_time, late }, "{ends}");
        }
    }

    #[test]
    fn unwatched_hold_does_not_count() {
        for fault in
            ["30 0 0 0 - begins forgot -\n", "70 0 0 0 - begins down -\n70 0 0 0 - begins forgot -\n"]
        {
            assert_eq!(of(&format!("{fault}78 1 1 1 a lost not-owner 150\n")), Told::default(), "{fault}");
        }
    }
}
