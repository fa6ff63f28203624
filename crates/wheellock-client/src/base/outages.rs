//! What the operator is told of a connection that comes and goes: every change once, a reminder while it stays away, each absence that
//! callers may have noticed, and no flood, however often it does so. Pure: instants in, decisions out; the words are `events`'.

use std::time::{Duration, Instant};

/// One connection, as its operator knows it.
#[derive(Default)]
pub(crate) struct Outages {
    /// Since when there is none, if it was lost or sought before.
    down_since: Option<Instant>,
    /// The operator knows that it is down.
    is_told: bool,
    /// When it was last said that there is none.
    told_at: Option<Instant>,
    /// When it was last said that the server refuses us.
    refused_at: Option<Instant>,
    has_connected: bool,
    /// Failed attempts to connect since it was lost or first sought.
    attempts: u64,
    /// Connections lost since that was last said.
    losses: u64,
}

/// How an outage stands, for a line about it.
#[cfg_attr(not(feature = "tracing"), allow(dead_code, reason = "nobody listens"))]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Outage {
    /// How long there has been no connection.
    pub(crate) down: Duration,
    /// Failed attempts to connect since.
    pub(crate) attempts: u64,
    /// Connections lost since the last line about a loss.
    pub(crate) losses: u64,
}

/// A connection that is worth a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Connected {
    First,
    /// After an outage that was told, or a long one.
    Again(Outage),
}

impl Outages {
    /// There is a connection; what is to be said of it.
    pub(crate) fn connected(&mut self, now: Instant) -> Option<Connected> {
        let outage = self.outage(now);
        (self.down_since, self.attempts) = (None, 0);
        let is_first = !std::mem::replace(&mut self.has_connected, true);
        let was_told = std::mem::take(&mut self.is_told);
        match (is_first, was_told || outage.down >= LONG) {
            (true, _) if !was_told => Some(Connected::First),
            (_, true) => Some(Connected::Again(outage)),
            // Nobody knows that it was away.
            (_, false) => None,
        }
    }

    /// The connection has ended; what is to be said of it.
    pub(crate) fn lost(&mut self, now: Instant) -> Option<Outage> {
        self.down_since = Some(now);
        self.losses += 1;
        self.tell(now)
    }

    /// An attempt to connect has failed, perhaps because the server `refuses` us; what is to be said of it.
    pub(crate) fn failed(&mut self, refuses: bool, now: Instant) -> Option<Outage> {
        self.down_since.get_or_insert(now);
        self.attempts += 1;
        if refuses && is_due(self.refused_at, now) {
            self.refused_at = Some(now);
            return Some(self.told(now));
        }
        self.tell(now)
    }

    fn tell(&mut self, now: Instant) -> Option<Outage> {
        is_due(self.told_at, now).then(|| self.told(now))
    }

    fn told(&mut self, now: Instant) -> Outage {
        (self.is_told, self.told_at) = (true, Some(now));
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

/// Of each line that says that there is no connection at most one in this time. Long enough that an outage of a night can be read,
/// short enough that one who looks sees that it goes on.
pub(crate) const REMINDER: Duration = Duration::from_secs(10);

/// An outage of that length is told when it ends, even if the last one was told just before: by then calls have waited for it.
const LONG: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests;
