//! How long calls took, in buckets of bounded relative width. Pure; recording is a shift and an addition.

use std::fmt;
use std::time::Duration;

/// A histogram of durations. Each power of two of nanoseconds is split into four, so a quantile is at most 25 % above
/// the truth.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Histogram {
    buckets: [u64; BUCKETS],
}

impl Histogram {
    /// Counts one duration.
    #[doc(hidden)]
    pub fn record(&mut self, duration: Duration) {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        if let Some(bucket) = self.buckets.get_mut(bucket_of(nanos)) {
            *bucket += 1;
        }
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.buckets.iter_mut().zip(&other.buckets).for_each(|(mine, theirs)| *mine += theirs);
    }

    /// How many durations were recorded.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// The duration below which a share `q` (0 to 1) of all lie, rounded up to its bucket's end; zero if there are none.
    pub fn quantile(&self, q: f64) -> Duration {
        let count = self.count();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "a rank within count; quantiles of 2^53 calls need no exact rank"
        )]
        let rank = ((count as f64 * q.clamp(0.0, 1.0)).ceil() as u64).max(1);
        let mut below = 0;
        for (bucket, recorded) in self.buckets.iter().enumerate() {
            below += recorded;
            if below >= rank && count > 0 {
                return Duration::from_nanos(end_of(bucket));
            }
        }
        Duration::ZERO
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Self { buckets: [0; BUCKETS] }
    }
}

impl fmt::Debug for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Histogram")
            .field("count", &self.count())
            .field("p50", &self.quantile(0.5))
            .field("p99", &self.quantile(0.99))
            .finish()
    }
}

/// The bits below the highest one that tell buckets of one power of two apart.
const SPLIT_BITS: u32 = 2;
/// Up to 2^38 ns, more than four minutes; what takes longer counts as that.
const BUCKETS: usize = 37 << SPLIT_BITS;

fn bucket_of(nanos: u64) -> usize {
    let power = 63 - (nanos | 1).leading_zeros();
    let bucket = match power.checked_sub(SPLIT_BITS) {
        None => nanos,
        Some(shift) => (u64::from(shift) << SPLIT_BITS) + (nanos >> shift),
    };
    usize::try_from(bucket).map_or(BUCKETS - 1, |bucket| bucket.min(BUCKETS - 1))
}

/// The first duration beyond a bucket.
fn end_of(bucket: usize) -> u64 {
    let next = bucket as u64 + 1;
    let shift = (next >> SPLIT_BITS).saturating_sub(1);
    (next - (shift << SPLIT_BITS)) << shift
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_duration_lies_in_its_bucket_and_no_further_than_a_quarter_from_its_end() {
        for power in 0..37 {
            for nanos in [1_u64 << power, (1 << power) + 1, (1 << power) * 3 / 2, (2 << power) - 1] {
                let end = end_of(bucket_of(nanos));
                assert!(nanos < end && end <= nanos + nanos / 4 + 1, "{nanos} ends at {end}");
            }
        }
        let buckets: Vec<_> = (0..5000).map(bucket_of).collect();
        assert!(buckets.is_sorted());
    }

    #[test]
    fn quantiles_count_from_below() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.quantile(0.5), Duration::ZERO);
        (0..99).for_each(|_| histogram.record(Duration::from_micros(10)));
        histogram.record(Duration::from_secs(3600));
        let near =
            |duration: Duration, micros: u128| (micros..=micros * 5 / 4).contains(&duration.as_micros());
        assert!(near(histogram.quantile(0.5), 10) && near(histogram.quantile(0.99), 10));
        assert!(histogram.quantile(1.0) > Duration::from_secs(200), "far too long counts as very long");
        assert_eq!(histogram.count(), 100);
    }
}
