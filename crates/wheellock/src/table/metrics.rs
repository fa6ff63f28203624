//! The counters of a manager.
//!
//! This module knows neither the clock nor the server.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use wheellock_client::Histogram;

use crate::base::error::LostReason;
use crate::wait::families::Family;
use crate::wait::name::Name;

/// A snapshot of a manager's counters since its creation; see [`LockManager::metrics`](crate::LockManager::metrics).
///
/// ```no_run
/// # async fn example(locks: wheellock::LockManager) -> Result<(), wheellock::Error> {
/// let metrics = locks.metrics();
/// println!("{} held, {} waiting, {} lost", metrics.held, metrics.waiting, metrics.lost_expired + metrics.lost_not_owner);
/// println!("99 % of those who waited did for {:?}", metrics.wait.quantile(0.99));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Metrics {
    /// Number of guards acquired.
    pub acquires: u64,
    /// Number of these acquires that had to wait for another holder.
    pub waits: u64,
    /// Number of waits that ended with the message of a release, or with the server's news of a changed key. The other waits ended with
    /// the end of a lease, or by polling.
    pub message_wakes: u64,
    /// Number of waits that ended with a hold that another guard of this process handed over, without a request to the server.
    pub hand_overs: u64,
    /// Number of waits that ended without the lock, because they timed out, failed or were dropped.
    pub waits_given_up: u64,
    /// Number of grants taken back because too few servers had acknowledged them in time; see [`Durability`](crate::Durability).
    pub not_replicated: u64,
    /// Number of lease extensions, by the watchdog or on request of a holder. A holder requests one with
    /// [`Guard::renew`](crate::Guard::renew), and [`Guard::run`](crate::Guard::run) requests one at the end of its work.
    pub renewals: u64,
    /// Number of renewals that were rejected or had no reply. Each is retried until the lease has ended. A redirection to another
    /// node of a cluster does not count.
    pub failed_renewals: u64,
    /// Number of locks lost because the lease ended without a renewal ([`LostReason::Expired`]), fixed leases included.
    pub lost_expired: u64,
    /// Number of locks lost because the server knew another holder or no holder ([`LostReason::NotOwner`]).
    pub lost_not_owner: u64,
    /// Number of these losses after a failover that the manager's [`Fleet`](crate::Fleet) could not make up for: the new server did not get
    /// the lock in time, or too few replicas acknowledged this process.
    pub lost_in_failover: u64,
    /// Number of held locks that were written into a new server after a failover. Only with a [`Fleet`](crate::Fleet).
    pub reclaimed: u64,
    /// Number of refreshes of this process's entry in its [`Fleet`](crate::Fleet) that the server or enough replicas did not confirm. Without
    /// a confirmed refresh within the window, no lock is acquired.
    pub failed_refreshes: u64,
    /// Number of locks lost because they were held for their maximum time ([`LostReason::HeldTooLong`]).
    pub lost_held_too_long: u64,
    /// Number of jumps of the server's clock, as seen by renewals.
    pub server_clock_jumps: u64,
    /// Number of locks held now. Several guards of one owner on one lock count as one.
    pub held: u64,
    /// Number of held locks that the watchdog keeps and could not renew at its last try. Such a lock is lost when its lease ends,
    /// unless a retry succeeds before.
    pub failing: u64,
    /// Number of waiters now.
    pub waiting: u64,
    /// Time that each waiter waited for its guard.
    pub wait: Histogram,
    /// Delay between the planned and the confirmed instant of the watchdog's renewals. A renewal is planned a third of the lease
    /// after the one before it. A lock is in danger when its delay comes near two thirds of its lease. Early renewals are not
    /// counted.
    pub renewal_lateness: Histogram,
    /// Time for which locks were held, from an owner's first guard to its last, or to the loss. Each guard that receives a lock
    /// by hand-over counts separately.
    pub hold: Histogram,
}

impl Metrics {
    fn add(&mut self, other: &Self) {
        let Self {
            acquires,
            waits,
            message_wakes,
            hand_overs,
            waits_given_up,
            not_replicated,
            renewals,
            failed_renewals,
            lost_expired,
            lost_not_owner,
            lost_in_failover,
            reclaimed,
            failed_refreshes,
            lost_held_too_long,
            server_clock_jumps,
            held,
            failing,
            waiting,
            wait,
            renewal_lateness,
            hold,
        } = other;
        self.acquires += acquires;
        self.waits += waits;
        self.message_wakes += message_wakes;
        self.hand_overs += hand_overs;
        self.waits_given_up += waits_given_up;
        self.not_replicated += not_replicated;
        self.renewals += renewals;
        self.failed_renewals += failed_renewals;
        self.lost_expired += lost_expired;
        self.lost_not_owner += lost_not_owner;
        self.lost_in_failover += lost_in_failover;
        self.reclaimed += reclaimed;
        self.failed_refreshes += failed_refreshes;
        self.lost_held_too_long += lost_held_too_long;
        self.server_clock_jumps += server_clock_jumps;
        self.held += held;
        self.failing += failing;
        self.waiting += waiting;
        self.wait.add(wait);
        self.renewal_lateness.add(renewal_lateness);
        self.hold.add(hold);
    }

    /// Returns the sum of several snapshots.
    pub(crate) fn together<'a>(all: impl IntoIterator<Item = &'a Self>) -> Self {
        let mut together = Self::default();
        all.into_iter().for_each(|one| together.add(one));
        together
    }
}

/// Number of waiters now, by family.
pub(crate) struct Waiting(Box<[AtomicU64]>);

impl Waiting {
    /// Creates the counters. With `families`, each family has a counter of its own.
    pub(crate) fn new(families: bool) -> Self {
        let numbers = if families { usize::from(Family::MAX) + 1 } else { 1 };
        Self((0..numbers).map(|_| AtomicU64::new(0)).collect())
    }

    pub(crate) fn join(&self, name: &Name) {
        if let Some(waiting) = self.0.get(usize::from(name.family())) {
            waiting.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn leave(&self, name: &Name) {
        if let Some(waiting) = self.0.get(usize::from(name.family())) {
            waiting.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Returns true if no task waits for a lock.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.iter().all(|waiting| waiting.load(Ordering::Relaxed) == 0)
    }

    pub(crate) fn of(&self, family: usize) -> u64 {
        self.0.get(family).map_or(0, |waiting| waiting.load(Ordering::Relaxed))
    }
}

/// The counters that change under the lock of the table of holds, one set per family of locks.
#[derive(Clone, Default)]
pub(crate) struct Tallies {
    unclassified: Tally,
    /// The families from number 1 on.
    families: Vec<Tally>,
}

impl Tallies {
    pub(crate) fn of(&mut self, family: Family) -> &mut Tally {
        let Some(place) = usize::from(family).checked_sub(1) else { return &mut self.unclassified };
        if place >= self.families.len() {
            self.families.resize_with(place + 1, Tally::default);
        }
        self.families.get_mut(place).unwrap_or(&mut self.unclassified)
    }

    /// Returns a snapshot of the unclassified locks, and then one for each of `families` families by number.
    pub(crate) fn snapshots(&self, families: usize, waiting: &Waiting) -> Vec<Metrics> {
        let nothing = Tally::default();
        let tallies = self.families.iter().chain(std::iter::repeat(&nothing)).take(families);
        let tallies = std::iter::once(&self.unclassified).chain(tallies);
        tallies.enumerate().map(|(family, tally)| tally.snapshot(waiting.of(family))).collect()
    }
}

/// The counters of one family.
#[derive(Clone, Default)]
pub(crate) struct Tally {
    acquires: u64,
    held: u64,
    pub(crate) failing: u64,
    renewals: u64,
    pub(crate) failed_renewals: u64,
    pub(crate) server_clock_jumps: u64,
    pub(crate) waits_given_up: u64,
    pub(crate) not_replicated: u64,
    waits: u64,
    message_wakes: u64,
    hand_overs: u64,
    lost_expired: u64,
    lost_not_owner: u64,
    pub(crate) lost_in_failover: u64,
    pub(crate) reclaimed: u64,
    pub(crate) failed_refreshes: u64,
    lost_held_too_long: u64,
    wait: Histogram,
    hold: Histogram,
    renewal_lateness: Histogram,
}

impl Tally {
    /// Counts a renewal, and records its delay unless it was early.
    pub(crate) fn renewed(&mut self, late: Option<Duration>) {
        self.renewals += 1;
        late.into_iter().for_each(|late| self.renewal_lateness.record(late));
    }

    pub(crate) fn acquired(&mut self, first_guard: bool) {
        self.acquires += 1;
        self.held += u64::from(first_guard);
    }

    pub(crate) fn released(&mut self, held: Duration) {
        self.held = self.held.saturating_sub(1);
        self.hold.record(held);
    }

    /// Records the time for which a guard held a lock that it handed over.
    pub(crate) fn handed_over(&mut self, held: Duration) {
        self.hold.record(held);
    }

    pub(crate) fn took_over(&mut self) {
        self.acquires += 1;
        self.hand_overs += 1;
    }

    pub(crate) fn waited(&mut self, duration: Duration, handoff: bool) {
        self.waits += 1;
        self.message_wakes += u64::from(handoff);
        self.wait.record(duration);
    }

    pub(crate) fn lost(&mut self, reason: LostReason, held: Duration) {
        self.found_lost(reason);
        self.released(held);
    }

    /// Counts a lock whose release found that it had been lost before.
    pub(crate) fn found_lost(&mut self, reason: LostReason) {
        match reason {
            LostReason::Expired => self.lost_expired += 1,
            LostReason::NotOwner => self.lost_not_owner += 1,
            LostReason::HeldTooLong => self.lost_held_too_long += 1,
            // The shutdown releases it.
            LostReason::ShutDown => {}
        }
    }

    /// Returns the counters as a snapshot. The caller supplies `waiting`, which is counted elsewhere.
    fn snapshot(&self, waiting: u64) -> Metrics {
        let Self {
            acquires,
            held,
            failing,
            renewals,
            failed_renewals,
            server_clock_jumps,
            waits_given_up,
            not_replicated,
            waits,
            message_wakes,
            hand_overs,
            lost_expired,
            lost_not_owner,
            lost_in_failover,
            reclaimed,
            failed_refreshes,
            lost_held_too_long,
            wait,
            hold,
            renewal_lateness,
        } = *self;
        Metrics {
            acquires,
            waits,
            message_wakes,
            hand_overs,
            waits_given_up,
            not_replicated,
            renewals,
            failed_renewals,
            lost_expired,
            lost_not_owner,
            lost_in_failover,
            reclaimed,
            failed_refreshes,
            lost_held_too_long,
            server_clock_jumps,
            held,
            failing,
            waiting,
            wait,
            renewal_lateness,
            hold,
        }
    }
}
