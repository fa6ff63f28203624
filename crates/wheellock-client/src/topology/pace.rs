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
mod tests {
    use super::*;

    #[test]
    fn what_lasts_is_asked_about_less_often_until_it_is_over_or_another_thing() {
        let [well, hurried, slowed] = [1000, 25, 500].map(Duration::from_millis);
        let (mut pace, mut now) = (Pace::new(well, hurried, slowed), Instant::now());
        let second = Duration::from_secs(1);
        for ends_by_itself in [true, false, true] {
            assert!(pace.is_hurried(now), "whatever comes");
            assert_eq!(pace.pause(false, now), hurried);
            assert_eq!(pace.pause(false, now + 9 * second), hurried);
            assert_eq!(pace.pause(false, now + 10 * second), slowed);
            now += 900 * second;
            assert_eq!(pace.pause(false, now), slowed);
            assert!(!pace.is_hurried(now));
            if ends_by_itself {
                assert_eq!(pace.pause(true, now), well);
            } else {
                pace.begin_anew();
            }
        }
    }
}
