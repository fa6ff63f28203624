//! The alarm clock of the table of holds.
//!
//! It keeps the single events, the beats, and the instant at which the watchdog must run. It does not know what a hold is.

use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use wheellock_wheel::{Cohorts, Member, TimerKey, Wheel};

use super::HoldIndex;
use crate::base::clock::{BootInstant, nanos};
use crate::base::lease::Lease;
use crate::wait::name::Name;
use crate::wait::wait_queue::UNCLAIMED;

pub(crate) struct Schedule {
    /// Events that occur once: ends of fixed leases, retries, and the local expiry of doubtful holds.
    wheel: Wheel<Event>,
    /// Recurring events: the renewal of every lease that the watchdog keeps alive.
    beats: Cohorts<HoldIndex>,
    /// Time between two beats, in nanoseconds.
    beat_nanos: u64,
    /// Instant of tick 0 of the wheel and of beat 0.
    start: BootInstant,
    /// The earliest event that was scheduled since the watchdog last learned of one.
    planned: Option<BootInstant>,
    /// The instant at which the watchdog has promised to run next.
    armed: Option<BootInstant>,
    /// Waker that makes the watchdog run earlier.
    watchdog: Option<Waker>,
}

pub(super) enum Event {
    Hold(HoldIndex),
    /// Ends the subscription of a name whose last waiter left.
    Quiet(Arc<Name>),
    /// Checks the holds that are handed over under a name.
    HandingOver(Arc<Name>),
    /// Retries the backlog, which may find room now.
    Backlog,
    /// Drops releases that are old enough to forget.
    Forget,
    /// Ends the waits of callers whose deadlines have passed.
    Overdue,
}

impl Schedule {
    /// Creates an empty schedule. `watchdog` is the lease whose renewals the beats divide.
    pub(super) fn new(start: BootInstant, watchdog: Lease) -> Self {
        let period = nanos(watchdog.renew_after());
        let beat_nanos = (period / BEATS).max(TICK_NANOS);
        Self {
            wheel: Wheel::new(TICKS),
            beats: Cohorts::new(period / beat_nanos, 0),
            beat_nanos,
            start,
            planned: None,
            armed: None,
            watchdog: None,
        }
    }

    /// Schedules an event for the first tick at or after `at`.
    pub(super) fn at(&mut self, at: BootInstant, event: Event) -> TimerKey {
        // The tick is rounded up. An event before its instant would find its hold not due yet.
        let tick = self.since_start(at).div_ceil(TICK_NANOS);
        self.plan(self.start_of(tick));
        self.wheel.insert(tick, event)
    }

    /// Schedules the end of a subscription whose last waiter for `name` has left. A waiter that joins soon keeps it.
    pub(crate) fn quiet(&mut self, name: Arc<Name>, now: BootInstant) {
        self.at(now + LINGER, Event::Quiet(name));
    }

    /// Schedules a check of the holds that are handed over under `name`.
    pub(crate) fn look_after(&mut self, name: Arc<Name>, now: BootInstant) {
        self.at(now + UNCLAIMED, Event::HandingOver(name));
    }

    pub(super) fn cancel(&mut self, alarm: TimerKey) {
        self.wheel.remove(alarm);
    }

    /// Makes the watchdog run at `at` at the latest.
    pub(super) fn plan(&mut self, at: BootInstant) {
        self.planned = Some(self.planned.map_or(at, |planned| planned.min(at)));
    }

    /// Returns an instant in the past, at which an event is due at once.
    pub(super) fn at_once(&self) -> BootInstant {
        self.start
    }

    /// Returns the events that are due at `now`.
    pub(super) fn fired(&mut self, now: BootInstant) -> Vec<Event> {
        let mut fired = Vec::new();
        // The tick is rounded down, so that no event of the present tick fires early.
        self.wheel.advance(self.since_start(now) / TICK_NANOS, |_, event| fired.push(event));
        fired
    }

    /// Returns the holds whose beats have come at `now`.
    pub(super) fn beating(&mut self, now: BootInstant) -> Vec<HoldIndex> {
        let mut beating = Vec::new();
        self.beats.visit(self.beat_at(now), |_, group| beating.extend_from_slice(group));
        beating
    }

    /// Returns the time between two renewals of one lease.
    pub(super) fn period(&self) -> Duration {
        // The beats divide the lease's period with a remainder, and this is the period that they keep.
        Duration::from_nanos(self.beat_nanos * self.beats.period())
    }

    /// Returns the beat in which `now` lies.
    pub(super) fn beat_at(&self, now: BootInstant) -> u64 {
        self.since_start(now) / self.beat_nanos
    }

    /// Renews a hold one period after `beat`, and again after each further period.
    pub(super) fn join(&mut self, hold: HoldIndex, beat: u64) -> Member {
        self.beats.join(hold, beat)
    }

    /// Renews a hold at its beats no longer.
    pub(super) fn leave(&mut self, member: Member) {
        self.beats.leave(member);
    }

    /// Makes the watchdog run one period after `beat` at the latest.
    pub(super) fn plan_after_beat(&mut self, beat: u64) {
        self.plan(self.start_of_beat(beat + self.beats.period()));
    }

    /// Returns the instant of the next event or beat.
    pub(super) fn next(&mut self) -> Option<BootInstant> {
        let once = self.wheel.next_expiration().map(|tick| self.start_of(tick));
        let beat = self.beats.next_visit().map(|beat| self.start_of_beat(beat));
        once.into_iter().chain(beat).min()
    }

    /// Stores the watchdog's waker. The watchdog promises to run at `next`.
    pub(crate) fn watchdog_leaves(&mut self, next: Option<BootInstant>, waker: &Waker) {
        // `next` covers every event that was planned so far.
        (self.planned, self.armed) = (None, next);
        if !self.watchdog.as_ref().is_some_and(|watchdog| watchdog.will_wake(waker)) {
            self.watchdog = Some(waker.clone());
        }
    }

    /// Returns the watchdog's waker if an event is due before the watchdog has promised to run.
    pub(crate) fn watchdog_to_wake(&mut self) -> Option<Waker> {
        let planned = self.planned.take()?;
        if self.armed.is_some_and(|armed| armed <= planned) {
            return None;
        }
        // Until the watchdog runs, only an earlier event wakes it again.
        self.armed = Some(planned);
        // The waker stays for an event that is even earlier.
        self.watchdog.clone()
    }

    /// Removes the watchdog's waker, because the manager is dropped.
    pub(crate) fn take_watchdog(&mut self) -> Option<Waker> {
        self.watchdog.take()
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.wheel.is_empty() && self.beats.is_empty()
    }

    fn since_start(&self, now: BootInstant) -> u64 {
        now.nanos_since(self.start)
    }

    fn start_of(&self, tick: u64) -> BootInstant {
        self.start.plus_nanos(tick.saturating_mul(TICK_NANOS))
    }

    fn start_of_beat(&self, beat: u64) -> BootInstant {
        self.start.plus_nanos(beat.saturating_mul(self.beat_nanos))
    }
}

/// Resolution of the wheel, small compared with the shortest useful lease.
pub(super) const TICK: Duration = Duration::from_nanos(TICK_NANOS);
const TICK_NANOS: u64 = 2_000_000;
/// Length of the wheel, 16 s.
const TICKS: usize = 8192;
/// Beats per period of the watchdog. A renewal is early by less than half a percent of its period, and the renewals of one beat
/// share their commands.
const BEATS: u64 = 256;

/// Time for which a subscription outlives its last waiter. Contention comes in bursts, and a new subscription for each handoff
/// would cost more than a few idle messages.
pub(super) const LINGER: Duration = Duration::from_secs(2);
