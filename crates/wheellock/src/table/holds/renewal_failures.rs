//! Statistics of failing renewals, for rate-limited logging.
//!
//! The watchdog's retries are planned by `renewals`.

use std::collections::BTreeSet;
use std::time::Duration;

use super::effects::Failing;
use super::{Hold, HoldIndex};
use crate::base::clock::BootInstant;
use crate::table::metrics::Tally;

/// Statistics of failing renewals.
#[derive(Default)]
pub(crate) struct RenewalFailures {
    /// Holds that the watchdog keeps, and whose last renewal failed.
    holds: BTreeSet<HoldIndex>,
    /// Instant since which at least one hold fails.
    since: Option<BootInstant>,
    /// Number of renewals that failed since the last report.
    failures: u64,
    /// Number of holds lost with a renewal under way since the last report.
    lost: u64,
    told_at: Option<BootInstant>,
    /// True if a report was made since the first hold failed.
    is_told: bool,
}

impl RenewalFailures {
    /// Returns the number of locks that the watchdog keeps and could not renew last time.
    pub(crate) fn failing(&self) -> u64 {
        self.holds.len() as u64
    }

    /// Returns the number of renewals that failed since the last report.
    pub(crate) fn unreported(&self) -> u64 {
        self.failures
    }

    /// Returns a report if one is due, and resets the counts.
    pub(crate) fn tell(&mut self, now: BootInstant) -> Option<Failing> {
        let is_due = self.told_at.is_none_or(|told| now.saturating_duration_since(told) >= REMINDER);
        if !is_due || self.failures == 0 {
            return None;
        }
        // A report of lost holds only has no end, so no line must say later that renewals succeed again.
        (self.told_at, self.is_told) = (Some(now), !self.holds.is_empty());
        let failing = self.since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        let locks = self.failing() + std::mem::take(&mut self.lost);
        Some(Failing { locks, failures: std::mem::take(&mut self.failures), failing })
    }

    /// Records a failed renewal of this hold.
    pub(super) fn record(&mut self, index: HoldIndex, hold: &Hold, tally: &mut Tally, now: BootInstant) {
        tally.failed_renewals += 1;
        self.failures += 1;
        if hold.is_kept_alive() && self.begins(index, now) {
            tally.failing += 1;
        }
    }

    /// Counts the renewal that was under way at the end of the lease as failed. It is not retried.
    pub(super) fn record_expiry(&mut self, tally: &mut Tally) {
        tally.failed_renewals += 1;
        self.failures += 1;
        self.lost += 1;
    }

    /// Records that the hold's last renewal did not fail, or that no guard wants one. Returns the time for which renewals had
    /// failed, if this was the last failing hold and a report was made.
    pub(super) fn clear(
        &mut self,
        index: HoldIndex,
        tally: &mut Tally,
        now: BootInstant,
    ) -> Option<Duration> {
        if !self.holds.contains(&index) {
            return None;
        }
        tally.failing -= 1;
        self.ends(index, now)
    }

    /// Adds a failing hold. Returns false if its renewal before had failed, too.
    fn begins(&mut self, index: HoldIndex, now: BootInstant) -> bool {
        self.since.get_or_insert(now);
        self.holds.insert(index)
    }

    /// Removes a failing hold. Returns the time for which holds had been failing, if this was the last one and a report was
    /// made.
    fn ends(&mut self, index: HoldIndex, now: BootInstant) -> Option<Duration> {
        self.holds.remove(&index);
        if !self.holds.is_empty() {
            return None;
        }
        let since = self.since.take()?;
        std::mem::take(&mut self.is_told).then(|| now.saturating_duration_since(since))
    }
}

/// Shortest time between two reports of failing renewals.
const REMINDER: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    /// E1: the first failure is reported at once, then one line per ten seconds, and then the end of the failures.
    #[test]
    fn failures_are_told_once_then_seldom() {
        let start = BootInstant::now();
        let after = |tenths: u32| start + Duration::from_millis(100) * tenths;
        let mut trouble = RenewalFailures::default();
        trouble.begins(1, start);
        let mut told = Vec::new();
        for tenth in 0..350 {
            trouble.failures += 2;
            told.extend(trouble.tell(after(tenth)));
        }
        assert_eq!(told.iter().map(|failing| failing.failures).collect::<Vec<_>>(), [2, 200, 200, 200]);
        assert_eq!(told[3].failing, Duration::from_secs(30));
        trouble.begins(2, after(350));
        assert_eq!(trouble.ends(1, after(355)), None, "there is one left");
        assert_eq!(trouble.ends(2, after(360)), Some(Duration::from_secs(36)));
        trouble.begins(1, after(361));
        assert_eq!(trouble.tell(after(361)), None, "the last line is not ten seconds old");
        assert_eq!(trouble.ends(1, after(362)), None, "nobody was told that it began");
        // Holds that are lost meanwhile appear in the next line only.
        (trouble.failures, trouble.lost) = (3, 3);
        let told = trouble.tell(after(450)).unwrap();
        assert_eq!((told.locks, told.failures, told.failing), (3, 3, Duration::ZERO));
        trouble.failures += 1;
        assert_eq!(trouble.tell(after(550)).unwrap().locks, 0);
    }
}
