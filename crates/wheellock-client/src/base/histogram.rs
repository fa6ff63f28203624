//! Durations in buckets of bounded relative width.
//!
//! This module reads no clock. Recording takes a shift and two additions.

use std::fmt;
use std::time::Duration;

/// A histogram of durations.
///
/// Its size is fixed at 1.2 KB. Each power of two of nanoseconds is split into four buckets. A quantile is therefore
/// at most 25 % above the truth. The sum is exact.
///
/// Exporters need [`buckets`](Self::buckets), [`sum`](Self::sum) and [`count`](Self::count). Most of them need fewer
/// than the 148 buckets. Adjacent buckets can be merged, and the merged bucket has the bound of the last one:
///
/// ```
/// # use std::time::Duration;
/// # fn line(_: &str, _: u64) {}
/// # let histogram = wheellock_client::Histogram::default();
/// // A Prometheus histogram with a bucket for every power of two from a millisecond to two minutes.
/// let bounds = (20..37).map(|power| Duration::from_nanos(1 << power));
/// for bound in bounds {
///     line(&format!("wait_seconds_bucket{{le=\"{}\"}}", bound.as_secs_f64()), histogram.count_below(bound));
/// }
/// line("wait_seconds_bucket{le=\"+Inf\"}", histogram.count());
/// line("wait_seconds_count", histogram.count());
/// let seconds = histogram.sum().as_secs_f64();
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Histogram {
    buckets: [u64; BUCKETS],
    sum: Duration,
}

/// One bucket of a [`Histogram`], as listed by [`buckets`](Histogram::buckets).
///
/// ```
/// # let histogram = wheellock_client::Histogram::default();
/// for bucket in histogram.buckets().filter(|bucket| bucket.count > 0) {
///     println!("{:?} to {:?}: {}", bucket.from, bucket.to, bucket.count);
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Bucket {
    /// The shortest duration that this bucket counts.
    pub from: Duration,
    /// The shortest duration beyond this bucket. The last bucket counts everything longer than four minutes, and its
    /// bound is [`Duration::MAX`].
    pub to: Duration,
    /// The number of durations in this bucket alone, without the buckets below it.
    pub count: u64,
}

impl Histogram {
    /// Counts one duration.
    #[doc(hidden)]
    pub fn record(&mut self, duration: Duration) {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.sum = self.sum.saturating_add(duration);
        if let Some(bucket) = self.buckets.get_mut(bucket_of(nanos)) {
            *bucket += 1;
        }
    }

    /// Adds the counts of another histogram.
    #[doc(hidden)]
    pub fn add(&mut self, other: &Self) {
        self.buckets.iter_mut().zip(&other.buckets).for_each(|(mine, theirs)| *mine += theirs);
        self.sum = self.sum.saturating_add(other.sum);
    }

    /// Returns the number of recorded durations.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Returns the sum of all recorded durations.
    pub fn sum(&self) -> Duration {
        self.sum
    }

    /// Returns all buckets in ascending order, including empty ones. Their number and bounds never change.
    pub fn buckets(&self) -> impl ExactSizeIterator<Item = Bucket> {
        self.buckets.iter().enumerate().map(|(bucket, count)| Bucket {
            from: bucket.checked_sub(1).map_or(Duration::ZERO, |before| Duration::from_nanos(end_of(before))),
            to: if bucket + 1 == BUCKETS { Duration::MAX } else { Duration::from_nanos(end_of(bucket)) },
            count: *count,
        })
    }

    /// Returns the number of durations shorter than `bound`. The number is exact if a bucket ends at `bound`, as at
    /// every power of two of nanoseconds up to 2^37. Otherwise the bucket that contains `bound` is not counted.
    pub fn count_below(&self, bound: Duration) -> u64 {
        self.buckets().take_while(|bucket| bucket.to <= bound).map(|bucket| bucket.count).sum()
    }

    /// Returns the quantile `q` (0 to 1) of all durations, rounded up to the end of its bucket. An empty histogram
    /// returns zero.
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
        Self { buckets: [0; BUCKETS], sum: Duration::ZERO }
    }
}

impl fmt::Debug for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Histogram")
            .field("count", &self.count())
            .field("sum", &self.sum)
            .field("p50", &self.quantile(0.5))
            .field("p99", &self.quantile(0.99))
            .finish()
    }
}

/// The number of bits below the highest bit that distinguish the buckets of one power of two.
const SPLIT_BITS: u32 = 2;
/// The number of buckets, up to 2^38 ns, more than four minutes. The last bucket also counts longer durations.
const BUCKETS: usize = 37 << SPLIT_BITS;

fn bucket_of(nanos: u64) -> usize {
    let power = 63 - (nanos | 1).leading_zeros();
    let bucket = match power.checked_sub(SPLIT_BITS) {
        None => nanos,
        Some(shift) => (u64::from(shift) << SPLIT_BITS) + (nanos >> shift),
    };
    usize::try_from(bucket).map_or(BUCKETS - 1, |bucket| bucket.min(BUCKETS - 1))
}

/// Returns the first duration beyond a bucket, in nanoseconds.
fn end_of(bucket: usize) -> u64 {
    let next = bucket as u64 + 1;
    let shift = (next >> SPLIT_BITS).saturating_sub(1);
    (next - (shift << SPLIT_BITS)) << shift
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_bound_durations_within_quarter() {
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

    /// E2: an exporter's numbers add up.
    #[test]
    fn buckets_are_contiguous_sum_is_exact() {
        let mut histogram = Histogram::default();
        let durations = [0, 1, 999, 1_000_000, 1 << 20, 3 << 30, 1 << 37, u64::MAX].map(Duration::from_nanos);
        durations.iter().for_each(|duration| histogram.record(*duration));
        let buckets: Vec<_> = histogram.buckets().collect();
        assert_eq!(buckets.iter().map(|bucket| bucket.count).sum::<u64>(), histogram.count());
        assert_eq!(buckets[0].from, Duration::ZERO);
        assert_eq!(buckets[BUCKETS - 1].to, Duration::MAX);
        assert!(buckets.windows(2).all(|pair| pair[0].from < pair[0].to && pair[0].to == pair[1].from));
        for bucket in &buckets {
            let counted = durations.iter().filter(|duration| (bucket.from..bucket.to).contains(duration));
            assert_eq!(counted.count() as u64, bucket.count, "{bucket:?}");
        }
        for power in 0..=37 {
            let bound = Duration::from_nanos(1 << power);
            let shorter = durations.iter().filter(|duration| **duration < bound).count();
            assert_eq!(histogram.count_below(bound), shorter as u64, "{bound:?}");
        }
        assert_eq!(histogram.sum(), durations.iter().sum());
        let mut twice = histogram;
        twice.add(&histogram);
        assert_eq!((twice.sum(), twice.count()), (histogram.sum() * 2, 16));
    }

    #[test]
    fn sum_saturates_at_duration_max() {
        let mut histogram = Histogram::default();
        (0..3).for_each(|_| histogram.record(Duration::MAX));
        assert_eq!((histogram.sum(), histogram.count()), (Duration::MAX, 3));
    }
}
