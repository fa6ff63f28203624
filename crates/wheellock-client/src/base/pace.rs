//! The interval between queries, which shortens while a fault lasts. Pure: the caller supplies the time.

use std::time::{Duration, Instant};

/// The interval between queries. It is long while all is well, short after a fault, and longer again if the fault
/// lasts.
#[derive(Debug)]
pub(crate) struct Pace {
    well: Duration,
    hurried: Duration,
    slowed: Duration,
    in_trouble_since: Option<Instant>,
}

impl Pace {
    pub(crate) fn new(well: Duration, hurried: Duration, slowed: Duration) -> Self {
        Self { well, hurried, slowed, in_trouble_since: None }
    }

    /// Returns the pause before the next query.
    pub(crate) fn pause(&mut self, is_well: bool, now: Instant) -> Duration {
        if is_well {
            self.in_trouble_since = None;
            return self.well;
        }
        self.in_trouble_since.get_or_insert(now);
        if self.is_hurried(now) { self.hurried } else { self.slowed }
    }

    /// Returns true if the present fault, or one that would begin now, is to be examined at the hurried interval.
    pub(crate) fn is_hurried(&self, now: Instant) -> bool {
        self.in_trouble_since.is_none_or(|since| now.saturating_duration_since(since) < TROUBLE)
    }

    /// Starts a new fault, so that the next queries are hurried.
    pub(crate) fn begin_anew(&mut self) {
        self.in_trouble_since = None;
    }
}

/// Duration after which hurried queries do not help any more.
pub(crate) const TROUBLE: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests;
