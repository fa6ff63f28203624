//! Pauses between attempts to connect.
//!
//! This module draws no random numbers: the caller passes them.

use std::time::Duration;

/// Exponential growth, then a clamp, then full jitter: `random(0 ..= min(max, min * 2^failures))`.
///
/// The jitter is applied after the clamp. Clients that have all reached the maximum therefore spread over the whole
/// range instead of returning together.
#[derive(Clone, Debug)]
pub(crate) struct Backoff {
    min: Duration,
    max: Duration,
    failures: u32,
}

impl Backoff {
    pub(crate) fn new(min: Duration, max: Duration) -> Self {
        Self { min, max: max.max(min), failures: 0 }
    }

    /// Returns the next pause. `random` is uniform over all of `u64`.
    pub(crate) fn next(&mut self, random: u64) -> Duration {
        let factor = 1_u32.checked_shl(self.failures).unwrap_or(u32::MAX);
        let ceiling = self.min.saturating_mul(factor).min(self.max);
        self.failures = self.failures.saturating_add(1);
        let nanos = u64::try_from(ceiling.as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos(if nanos == u64::MAX { random } else { random % (nanos + 1) })
    }

    /// Resets the number of failures. Call this function when a connection has proved itself, not when it is merely
    /// up. A server that accepts connections and then dies must not be flooded.
    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_grows_to_maximum_with_jitter() {
        let (min, max) = (Duration::from_millis(10), Duration::from_millis(80));
        let mut backoff = Backoff::new(min, max);
        let nanos = |d: Duration| u64::try_from(d.as_nanos()).unwrap();
        for ceiling in [10, 20, 40, 80, 80, 80] {
            let ceiling = Duration::from_millis(ceiling);
            assert_eq!(backoff.clone().next(nanos(ceiling)), ceiling, "the ceiling itself can be drawn");
            assert_eq!(backoff.next(nanos(ceiling) + 1), Duration::ZERO, "and so can zero");
        }
        for _ in 0..100 {
            assert!(backoff.next(u64::MAX) <= max, "no overflow after many failures");
        }
        backoff.reset();
        assert!(backoff.next(u64::MAX) <= min);
    }
}
