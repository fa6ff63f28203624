//! What a manager has done so far, in numbers. Owns the counters; knows neither clock nor server.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use wheellock_client::Histogram;

use crate::base::error::LostReason;
use crate::wait::families::Family;
use crate::wait::name::Name;

/// A snapshot of a manager's counters since it was made; see [`LockManager::metrics`](crate::LockManager::metrics).
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
    /// Guards handed out.
    pub acquires: u64,
    /// Of these, how many had to wait for another holder.
    pub waits: u64,
    /// Of the waits, how many ended with the message of a release; the others with the end of a lease, or by asking.
    pub handoffs: u64,
    /// Of the waits, how many ended with a hold that another guard of this process handed over, without a word to the server.
    pub hand_overs: u64,
    /// Waits that ended without the lock: their time was up, they failed, or they were dropped.
    pub waits_given_up: u64,
    /// Grants that were taken back because too few servers had acknowledged them in time; see
    /// [`Durability`](crate::Durability).
    pub not_replicated: u64,
    /// Leases extended, by the watchdog or because a holder asked: [`Guard::renew`](crate::Guard::renew), and
    /// [`Guard::run`](crate::Guard::run) when its work has ended.
    pub renewals: u64,
    /// Renewals without an answer, or refused; each is repeated until the lease has ended. A redirection to another node
    /// of a cluster is none.
    pub failed_renewals: u64,
    /// Locks lost because the lease ran out without a renewal ([`LostReason::Expired`]), fixed leases included.
    pub lost_expired: u64,
    /// Locks lost because the server knew another holder or none ([`LostReason::NotOwner`]).
    pub lost_not_owner: u64,
    /// Times that the server's clock moved otherwise than time did, as seen by renewals.
    pub server_clock_jumps: u64,
    /// Locks held now. Several guards of one owner on one lock count as one.
    pub held: u64,
    /// Of these, how many the watchdog keeps and could not renew when it last tried. Each is lost when its lease has ended, unless a
    /// later attempt succeeds.
    pub failing: u64,
    /// Waiters now.
    pub waiting: u64,
    /// How long those who had to wait waited for their guards.
    pub wait: Histogram,
    /// How much later than planned, a third of the lease after the one before, the watchdog's renewals were confirmed. The
    /// lock is in danger when that comes near two thirds of its lease. What was renewed earlier than planned is not counted.
    pub renewal_lateness: Histogram,
    /// How long locks were held, from the first guard of an owner to its last, or to the loss; each guard to which a lock was handed
    /// over counts for itself.
    pub hold: Histogram,
}

impl Metrics {
    fn add(&mut self, other: &Self) {
        let Self {
            acquires,
            waits,
            handoffs,
            hand_overs,
            waits_given_up,
            not_replicated,
            renewals,
            failed_renewals,
            lost_expired,
            lost_not_owner,
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
        self.handoffs += handoffs;
        self.hand_overs += hand_overs;
        self.waits_given_up += waits_given_up;
        self.not_replicated += not_replicated;
        self.renewals += renewals;
        self.failed_renewals += failed_renewals;
        self.lost_expired += lost_expired;
        self.lost_not_owner += lost_not_owner;
        self.server_clock_jumps += server_clock_jumps;
        self.held += held;
        self.failing += failing;
        self.waiting += waiting;
        self.wait.add(wait);
        self.renewal_lateness.add(renewal_lateness);
        self.hold.add(hold);
    }

    /// Several as one.
    pub(crate) fn together<'a>(all: impl IntoIterator<Item = &'a Self>) -> Self {
        let mut together = Self::default();
        all.into_iter().for_each(|one| together.add(one));
        together
    }
}

/// The waiters of now, by families.
pub(crate) struct Waiting(Box<[AtomicU64]>);

impl Waiting {
    /// If there are `families`, each has a number of its own.
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

    pub(crate) fn of(&self, family: usize) -> u64 {
        self.0.get(family).map_or(0, |waiting| waiting.load(Ordering::Relaxed))
    }
}

/// The counters that change under the lock of the table of holds: one set for each family of locks.
#[derive(Clone, Default)]
pub(crate) struct Tallies {
    unclassified: Tally,
    /// From family 1 on.
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

    /// The counters of so many families, in the order of their numbers, and first those of none.
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
    handoffs: u64,
    hand_overs: u64,
    lost_expired: u64,
    lost_not_owner: u64,
    wait: Histogram,
    hold: Histogram,
    renewal_lateness: Histogram,
}

impl Tally {
    /// `late` by so much, unless it came early.
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

    /// After so long one guard's hold is another's.
    pub(crate) fn handed_over(&mut self, held: Duration) {
        self.hold.record(held);
    }

    pub(crate) fn took_over(&mut self) {
        self.acquires += 1;
        self.hand_overs += 1;
    }

    pub(crate) fn waited(&mut self, duration: Duration, handoff: bool) {
        self.waits += 1;
        self.handoffs += u64::from(handoff);
        self.wait.record(duration);
    }

    pub(crate) fn lost(&mut self, reason: LostReason, held: Duration) {
        self.found_lost(reason);
        self.released(held);
    }

    /// Its release found that a lock had been lost before.
    pub(crate) fn found_lost(&mut self, reason: LostReason) {
        match reason {
            LostReason::Expired => self.lost_expired += 1,
            LostReason::NotOwner => self.lost_not_owner += 1,
            // It is given back.
            LostReason::ShutDown => {}
        }
    }

    /// The counters, beside what is counted elsewhere.
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
            handoffs,
            hand_overs,
            lost_expired,
            lost_not_owner,
            wait,
            hold,
            renewal_lateness,
        } = *self;
        Metrics {
            acquires,
            waits,
            handoffs,
            hand_overs,
            waits_given_up,
            not_replicated,
            renewals,
            failed_renewals,
            lost_expired,
            lost_not_owner,
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
