//! Decisions about log lines for a connection's outages.
//!
//! This module reads no clock and writes no log: `events` owns the texts. The operator sees every change once, a
//! reminder during an outage, and each outage that callers may have noticed. Frequent outages do not flood the log.

use std::time::{Duration, Instant};

/// One connection, as its operator knows it.
#[derive(Default)]
pub(crate) struct Outages {
    /// The start of the current outage, or `None` while connected and before the first attempt.
    down_since: Option<Instant>,
    /// True if the operator knows of the outage.
    is_reported: bool,
    /// The time of the last line about an outage.
    reported_at: Option<Instant>,
    /// The time of the last line about a refusal by the server.
    refused_at: Option<Instant>,
    has_connected: bool,
    /// The number of failed attempts to connect since the outage began.
    attempts: u64,
    /// The number of lost connections since the last line about a loss.
    losses: u64,
}

/// The state of an outage, for a log line.
#[cfg_attr(not(feature = "tracing"), allow(dead_code, reason = "only events use it"))]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Outage {
    /// The length of the outage so far.
    pub(crate) down: Duration,
    /// The number of failed attempts to connect during the outage.
    pub(crate) attempts: u64,
    /// The number of lost connections since the last line about a loss.
    pub(crate) losses: u64,
}

/// A new connection that deserves a log line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Connected {
    First,
    /// A connection after a reported outage or a long one.
    Again(Outage),
}

impl Outages {
    /// Records a new connection. Returns the log line that is due.
    pub(crate) fn connected(&mut self, now: Instant) -> Option<Connected> {
        let outage = self.outage(now);
        (self.down_since, self.attempts) = (None, 0);
        let is_first = !std::mem::replace(&mut self.has_connected, true);
        let was_reported = std::mem::take(&mut self.is_reported);
        match (is_first, was_reported || outage.down >= LONG) {
            (true, _) if !was_reported => Some(Connected::First),
            (_, true) => Some(Connected::Again(outage)),
            // The operator does not know of the outage, and it was short.
            (_, false) => None,
        }
    }

    /// Records the end of the connection. Returns the log line that is due.
    pub(crate) fn lost(&mut self, now: Instant) -> Option<Outage> {
        self.down_since = Some(now);
        self.losses += 1;
        self.report_if_due(now)
    }

    /// Records a failed attempt to connect. `refuses` is true if the server refused this client. Returns the log line
    /// that is due.
    pub(crate) fn failed(&mut self, refuses: bool, now: Instant) -> Option<Outage> {
        self.down_since.get_or_insert(now);
        self.attempts += 1;
        if refuses && is_due(self.refused_at, now) {
            self.refused_at = Some(now);
            return Some(self.report(now));
        }
        self.report_if_due(now)
    }

    fn report_if_due(&mut self, now: Instant) -> Option<Outage> {
        is_due(self.reported_at, now).then(|| self.report(now))
    }

    fn report(&mut self, now: Instant) -> Outage {
        (self.is_reported, self.reported_at) = (true, Some(now));
        let outage = self.outage(now);
        self.losses = 0;
        outage
    }

    fn outage(&self, now: Instant) -> Outage {
        let down = self.down_since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        Outage { down, attempts: self.attempts, losses: self.losses }
    }
}

fn is_due(last: Option<Instant>, now: Instant) -> bool {
    last.is_none_or(|last| now.saturating_duration_since(last) >= REMINDER)
}

/// The shortest time between two lines of the same kind during an outage. It keeps the log of a night's outage
/// readable, and still shows that the outage continues.
pub(crate) const REMINDER: Duration = Duration::from_secs(10);

/// The length from which the end of every outage is reported, even just after another report. Calls have waited for
/// such an outage.
const LONG: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests;
