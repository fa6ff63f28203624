//! The pause between two polls without messages. A value: the caller provides the randomness.

use std::fmt;
use std::time::Duration;

/// The pause between two polls of a waiter for a [spin lock](crate::LockManager::spin_lock).
///
/// Only the first waiter of a process polls. The other waiters queue behind it.
///
/// ```no_run
/// use std::time::Duration;
/// use wheellock::Backoff;
///
/// # async fn example(locks: wheellock::LockManager) -> Result<(), wheellock::Error> {
/// let lock = locks.lock("orders:42").with_backoff(Backoff::Constant(Duration::from_millis(20)));
/// let guard = lock.acquire().await?; // asks fifty times a second, and listens to nobody
/// # drop(guard);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Backoff {
    /// A random time up to a bound that doubles with every poll (full jitter).
    Exponential {
        /// The bound of the first pause.
        first: Duration,
        /// The largest bound.
        most: Duration,
    },
    /// Always the same time.
    Constant(Duration),
}

impl Backoff {
    /// Returns the pause after `questions` unsuccessful polls, at least [`SHORTEST`]. `random` is uniform over all of `u64`.
    pub(crate) fn pause(self, questions: u32, random: impl FnOnce() -> u64) -> Duration {
        let pause = match self {
            Self::Constant(pause) => pause,
            Self::Exponential { first, most } => {
                let bound = first.saturating_mul(1_u32.checked_shl(questions).unwrap_or(u32::MAX)).min(most);
                // Rounding may exceed the largest duration. The pause is then the bound itself.
                let part = Duration::try_from_secs_f64(bound.as_secs_f64() * fraction(random()));
                part.map_or(bound, |part| part.min(bound))
            }
        };
        pause.max(SHORTEST)
    }
}

/// Writes the pauses in plain words, for a log or a settings page.
impl fmt::Display for Backoff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exponential { first, most } => {
                write!(f, "random pauses of up to {first:?}, doubled up to {most:?}")
            }
            Self::Constant(pause) => write!(f, "pauses of {pause:?}"),
        }
    }
}

/// Redisson's first pause and its longest: 1 ms and 128 ms.
impl Default for Backoff {
    fn default() -> Self {
        Self::Exponential { first: Duration::from_millis(1), most: Duration::from_millis(128) }
    }
}

/// Shortest pause. A user's pause of zero would make the waiter poll without a break.
const SHORTEST: Duration = Duration::from_micros(100);

/// Returns a number from 0 to 1.
fn fraction(random: u64) -> f64 {
    let high = u32::try_from(random >> 32).unwrap_or(u32::MAX);
    f64::from(high) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pause_bound_doubles_to_maximum() {
        let (first, most) = (Duration::from_millis(2), Duration::from_millis(50));
        let backoff = Backoff::Exponential { first, most };
        for questions in 0..200 {
            let bound = first.saturating_mul(2_u32.saturating_pow(questions)).min(most);
            for random in [0, 1, u64::MAX / 3, u64::MAX] {
                assert!((SHORTEST..=bound).contains(&backoff.pause(questions, || random)), "{questions}");
            }
            assert_eq!(backoff.pause(questions, || u64::MAX), bound);
        }
    }

    #[test]
    fn display_shows_pauses() {
        assert_eq!(Backoff::default().to_string(), "random pauses of up to 1ms, doubled up to 128ms");
        assert_eq!(Backoff::Constant(Duration::from_millis(20)).to_string(), "pauses of 20ms");
    }

    #[test]
    fn no_pause_is_nothing() {
        assert_eq!(Backoff::Constant(Duration::ZERO).pause(7, || 0), SHORTEST);
        assert_eq!(Backoff::Constant(Duration::from_secs(1)).pause(7, || 0), Duration::from_secs(1));
        let zero = Backoff::Exponential { first: Duration::ZERO, most: Duration::MAX };
        assert_eq!(zero.pause(40, || u64::MAX), SHORTEST);
        let most = Backoff::Exponential { first: Duration::MAX, most: Duration::MAX };
        assert!(most.pause(40, || u64::MAX) >= SHORTEST, "nothing overflows");
    }
}
