//! Statistics of failing renewals, for rate-limited logging.
//!
//! The watchdog's retries are planned by `renewals`.

use std::time::Duration;

use super::effects::Failing;
use super::{HoldIndex, Holds, State, Want};
use crate::base::clock::BootInstant;

/// Statistics of failing renewals.
#[derive(Default)]
pub(super) struct RenewalFailures {
    /// Number of holds whose last renewal failed.
    holds: u64,
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
    fn begins(&mut self, now: BootInstant) {
        self.holds += 1;
        self.since.get_or_insert(now);
    }

    /// Removes one failing hold. Returns the time for which holds had been failing, if this was the last one and a report was
    /// made.
    fn ends(&mut self, now: BootInstant) -> Option<Duration> {
        self.holds = self.holds.saturating_sub(1);
        if self.holds > 0 {
            return None;
        }
        let since = self.since.take()?;
        std::mem::take(&mut self.is_told).then(|| now.saturating_duration_since(since))
    }

    /// Returns a report if one is due, and resets the counts.
    fn tell(&mut self, now: BootInstant) -> Option<Failing> {
        let is_due = self.told_at.is_none_or(|told| now.saturating_duration_since(told) >= REMINDER);
        if !is_due || self.failures == 0 {
            return None;
        }
        (self.told_at, self.is_told) = (Some(now), self.holds > 0);
        let failing = self.since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        let locks = self.holds + std::mem::take(&mut self.lost);
        Some(Failing { locks, failures: std::mem::take(&mut self.failures), failing })
    }
}

impl Holds {
    /// Returns the number of locks that the watchdog keeps and could not renew last time.
    pub(crate) fn failing(&self) -> u64 {
        self.trouble.holds
    }

    /// Returns the number of renewals that failed since the last report.
    pub(crate) fn failures(&self) -> u64 {
        self.trouble.failures
    }

    /// Returns the report about failed renewals, if one is due.
    pub(crate) fn tell_failing(&mut self, now: BootInstant) -> Option<Failing> {
        self.trouble.tell(now)
    }

    /// Records a failed renewal of this hold.
    pub(super) fn fails(&mut self, index: HoldIndex, now: BootInstant) {
        let Some(hold) = self.holds.get_mut(index as usize) else { return };
        let tally = self.tallies.of(hold.name.family());
        tally.failed_renewals += 1;
        self.trouble.failures += 1;
        let is_kept = hold.state == State::Held && hold.renewing.is_wanted();
        if is_kept && !hold.renewing.fail() {
            tally.failing += 1;
            self.trouble.begins(now);
        }
    }

    /// Counts a renewal as failed if it is still under way when its hold's lease ends. A later reply does not change that.
    pub(super) fn fails_if_under_way(&mut self, index: HoldIndex) {
        let Some(hold) = self.holds.get(index as usize) else { return };
        let extends =
            hold.renewing.is_wanted() || self.callers.renewal(hold.releasing.callers) == Some(Want::Renew);
        if hold.guards > 0 && hold.renewing.is_under_way() && extends {
            self.record_expiry(index);
        }
    }

    /// Counts the renewal that was under way at the end of the lease as failed. It is not retried.
    pub(super) fn record_expiry(&mut self, index: HoldIndex) {
        let Some(hold) = self.holds.get(index as usize) else { return };
        self.tallies.of(hold.name.family()).failed_renewals += 1;
        self.trouble.failures += 1;
        self.trouble.lost += 1;
    }

    /// Records that the hold's last renewal did not fail, or that no guard wants one. Returns the time for which renewals had
    /// failed, if this was the last failing hold.
    pub(super) fn clear_failure(&mut self, index: HoldIndex, now: BootInstant) -> Option<Duration> {
        let hold = self.holds.get_mut(index as usize)?;
        if !hold.renewing.fail_no_more() {
            return None;
        }
        self.tallies.of(hold.name.family()).failing -= 1;
        self.trouble.ends(now)
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
        trouble.begins(start);
        let mut told = Vec::new();
        for tenth in 0..350 {
            trouble.failures += 2;
            told.extend(trouble.tell(after(tenth)));
        }
        assert_eq!(told.iter().map(|failing| failing.failures).collect::<Vec<_>>(), [2, 200, 200, 200]);
        assert_eq!(told[3].failing, Duration::from_secs(30));
        trouble.begins(after(350));
        assert_eq!(trouble.ends(after(355)), None, "there is one left");
        assert_eq!(trouble.ends(after(360)), Some(Duration::from_secs(36)));
        trouble.begins(after(361));
        assert_eq!(trouble.tell(after(361)), None, "the last line is not ten seconds old");
        assert_eq!(trouble.ends(after(362)), None, "nobody was told that it began");
        // Holds that are lost meanwhile appear in the next line only.
        (trouble.failures, trouble.lost) = (3, 3);
        let told = trouble.tell(after(450)).unwrap();
        assert_eq!((told.locks, told.failures, told.failing), (3, 3, Duration::ZERO));
        trouble.failures += 1;
        assert_eq!(trouble.tell(after(550)).unwrap().locks, 0);
    }
}
