//! The pause of one process among many after a release.
//!
//! A release wakes the head of every process, and one of them gets the lock. If all heads polled at once, each turn would cost the server
//! one refused script per process. Each head therefore draws a random pause when the server refuses it. The pause runs down after releases
//! only, so every release brings a head closer to its poll. Pure.

use std::time::{Duration, Instant};

use crate::wait::poll_schedule::REPOLL;

/// The competitors of one process for one lock.
#[derive(Default)]
pub(crate) struct Herd {
    /// Number of listeners when the server last refused the lock, this process included. Listeners that have had a turn since are not
    /// counted. 0 if unknown.
    listeners: u32,
    /// Round trip of the last refused poll.
    trip: Duration,
    /// Pause until the next poll, in round trips.
    pause: f64,
    /// Time of the last release. The pause runs from then on.
    runs_since: Option<Instant>,
    /// The next poll follows a release.
    was_notified: bool,
    /// A release has arrived that the watchdog does not know yet.
    has_news: bool,
}

impl Herd {
    /// Records that the server refused a poll after this round trip and counted this many listeners. `random` is uniform over all of `u64`.
    pub(crate) fn refused(&mut self, listeners: u32, trip: Duration, random: u64) {
        self.listeners = listeners;
        // `on_release` divides by this value. A trip of zero would end every pause at the first release.
        self.trip = trip.max(SHORTEST_TRIP);
        let crowd = f64::from(listeners.saturating_sub(FEW));
        self.pause = fraction(random) * crowd * (1.0 + crowd / GROWS).min(TRIPS_EACH);
        self.runs_since = None;
        self.was_notified = false;
    }

    /// Records that this process got the lock.
    pub(crate) fn granted(&mut self) {
        self.pause = 0.0;
        self.runs_since = None;
        self.was_notified = false;
    }

    /// Returns true if the number of listening processes is too large for all of them to poll at once.
    pub(crate) fn is_crowded(&self) -> bool {
        self.listeners > FEW
    }

    /// Records a release. Returns the time of the next poll; `None` if the head polls now. A release never postpones a poll.
    pub(crate) fn on_release(&mut self, now: Instant) -> Option<Instant> {
        if self.pause <= 0.0 {
            return None;
        }
        // Charge the time since the release before. The pause then runs at full speed again, because the lock is free
        // again.
        let since = self.runs_since.replace(now);
        let trips = |since| now.saturating_duration_since(since).as_secs_f64() / self.trip.as_secs_f64();
        self.pause -= since.map_or(0.0, |since| run_down(trips(since)));
        if self.listeners > FEW {
            // A competitor has had its turn, so each remaining competitor pauses for less. Otherwise the last ones would wait long without
            // need.
            let others = f64::from(self.listeners - FEW);
            self.pause *= (others - 1.0) / others;
            self.listeners -= 1;
        }
        if self.pause <= 0.0 {
            return None;
        }
        (self.was_notified, self.has_news) = (true, true);
        // A slow server with a huge crowd exceeds a `Duration`. Such a pause is longer than `REPOLL` anyway.
        let delay = Duration::try_from_secs_f64(lasts(self.pause) * self.trip.as_secs_f64());
        Some(now + delay.map_or(REPOLL, |delay| delay.min(REPOLL)))
    }

    /// Returns true if the poll that is due follows a release.
    pub(crate) fn take_notified(&mut self) -> bool {
        std::mem::take(&mut self.was_notified)
    }

    /// Returns true if a release arrived since the last call after which the head did not poll at once.
    pub(crate) fn take_news(&mut self) -> bool {
        std::mem::take(&mut self.has_news)
    }
}

/// Returns how many round trips a pause lasts after a release. The pause runs at full speed while the lock is probably free. Later a
/// competitor probably holds the lock and a poll would be refused, so the pause slows down.
fn lasts(pause: f64) -> f64 {
    if pause <= FREE_FOR {
        return pause;
    }
    (FREE_FOR * (pause / FREE_FOR - 1.0).exp()).min(SLOWEST * pause)
}

/// Returns how much of a pause has run down after this many round trips. This is the inverse of [`lasts`].
fn run_down(trips: f64) -> f64 {
    if trips <= FREE_FOR {
        return trips;
    }
    (FREE_FOR * (1.0 + (trips / FREE_FOR).ln())).max(trips / SLOWEST)
}

/// Returns a number from 0 to 1.
fn fraction(random: u64) -> f64 {
    f64::from(u32::try_from(random >> 32).unwrap_or(u32::MAX)) / f64::from(u32::MAX)
}

/// Up to this number of listeners poll at once. A pause would cost more than their few refused scripts.
const FEW: u32 = 4;

/// Longest pause in round trips for each competitor. All pauses spread over this time, so a poll has its reply before the next poll
/// follows.
const TRIPS_EACH: f64 = 10.0;

/// This number of additional competitors makes the pause one round trip longer for each. Among few competitors, an additional refused
/// script does less harm than a longer pause.
const GROWS: f64 = 8.0;

/// Round trips after a release in which the lock is probably free: its message, the first poll, and one more chance.
const FREE_FOR: f64 = 2.0;

/// Bounds the slowdown, in case the competitors have gone.
const SLOWEST: f64 = 4.0;

/// Lower bound of the round trip. No timer is finer, and no server is nearer.
const SHORTEST_TRIP: Duration = Duration::from_micros(50);

#[cfg(test)]
mod tests;
