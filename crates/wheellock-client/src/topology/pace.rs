//! How often to ask while something is wrong. Pure: the caller brings the time.

use std::time::{Duration, Instant};

/// How often somebody is asked: seldom while all is well, often when something has gone wrong, and less often if that lasts.
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

    /// How long to wait before the next question.
    pub(crate) fn pause(&mut self, is_well: bool, now: Instant) -> Duration {
        if is_well {
            self.in_trouble_since = None;
            return self.well;
        }
        self.in_trouble_since.get_or_insert(now);
        if self.is_hurried(now) { self.hurried } else { self.slowed }
    }

    /// Whether what is wrong, or would be from now on, is to be looked into often.
    pub(crate) fn is_hurried(&self, now: Instant) -> bool {
        self.in_trouble_since.is_none_or(|since| now.saturating_duration_since(since) < TROUBLE)
    }

    /// Something else is wrong than before: what is asked next is asked in a hurry.
    pub(crate) fn begin_anew(&mut self) {
        self.in_trouble_since = None;
    }
}

/// What has been wrong for this long needs more than our attention.
pub(crate) const TROUBLE: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests;
