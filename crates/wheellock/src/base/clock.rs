//! The clock of leases. This module chooses the clock. All other code gets instants as arguments.

use std::fmt;
use std::num::NonZeroU64;
use std::ops::Add;
use std::time::{Duration, Instant, SystemTime};

use wheellock_client::{Config, Timer};

/// The source of one manager's instants.
pub(crate) enum Clock {
    /// The system's clock.
    Boot,
    /// The clock of a timer, in a simulated world without a server: everything in such a world must follow one clock.
    Timer { timer: Timer, start: Instant },
    /// The clock of a simulated world whose machine is suspended now and then. Everything else that uses a timer has a separate timer.
    #[cfg(all(test, feature = "testing"))]
    Apart { timer: Timer, start: Instant },
}

impl Clock {
    /// Returns the clock that fits a connection.
    pub(crate) fn beside(config: &Config) -> Self {
        let timer = &config.timer;
        if timer.is_manual() || config.connector.is_some() {
            Self::Timer { timer: timer.clone(), start: timer.now() }
        } else {
            Self::Boot
        }
    }

    pub(crate) fn now(&self) -> BootInstant {
        let since = |timer: &Timer, start: &Instant| {
            BootInstant::from_nanos(nanos(timer.now().saturating_duration_since(*start)))
        };
        match self {
            Self::Boot => BootInstant::now(),
            Self::Timer { timer, start } => since(timer, start),
            #[cfg(all(test, feature = "testing"))]
            Self::Apart { timer, start } => since(timer, start),
        }
    }

    /// Returns true if the clock runs on while timers stand still. Timers stand still while the machine is suspended.
    pub(crate) fn outruns_timers(&self) -> bool {
        !matches!(self, Self::Timer { .. })
    }
}

/// An instant on a clock that runs on while the machine is suspended.
///
/// `std::time::Instant` stops during suspend on Linux (`CLOCK_MONOTONIC`), but the server's TTLs run on. With that clock a lease would
/// still count as valid after it has expired. `BootInstant` uses these clocks instead:
///
/// | on | clock | while the machine is suspended |
/// |---|---|---|
/// | Linux, Android | `CLOCK_BOOTTIME` | runs on |
/// | macOS, iOS | `CLOCK_MONOTONIC`, which is a different clock there | runs on |
/// | Windows | `QueryPerformanceCounter`, counted from its first use in this process | runs on |
/// | any other Unix | `CLOCK_MONOTONIC` | may stop: a lease may then count as valid after it has ended |
///
/// A `BootInstant` spans 584 years in nanoseconds. Larger values are clamped.
///
/// ```no_run
/// use std::time::Duration;
/// use wheellock::BootInstant;
///
/// # async fn example(guard: wheellock::Guard) -> Result<(), wheellock::Error> {
/// let until = guard.valid_until();
/// if until.remaining() > Duration::from_secs(1) {
///     println!("time enough for a small step");
/// }
/// println!("of {:?}", until.saturating_duration_since(BootInstant::now()));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BootInstant(NonZeroU64);

impl BootInstant {
    /// Returns the current instant.
    pub fn now() -> Self {
        Self::from_nanos(reading())
    }

    /// Returns the milliseconds on this clock. They start again from zero after 49 days.
    #[expect(clippy::cast_possible_truncation, reason = "begins anew")]
    pub(crate) const fn millis(self) -> u32 {
        (self.0.get() / 1_000_000) as u32
    }

    /// Creates an instant. Zero is clamped to the first nanosecond, so that an `Option` of an instant needs no more space than the instant.
    const fn from_nanos(nanos: u64) -> Self {
        match NonZeroU64::new(nanos) {
            Some(nanos) => Self(nanos),
            None => Self(NonZeroU64::MIN),
        }
    }

    /// Returns the time since the machine was started. All processes on the machine share this clock. On Windows, returns the time since
    /// this process first used the clock.
    #[must_use]
    pub fn since_boot(self) -> Duration {
        Duration::from_nanos(self.0.get())
    }

    /// Returns the time from `earlier` to this instant, or zero if `earlier` is later.
    #[must_use]
    pub fn saturating_duration_since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.nanos_since(earlier))
    }

    /// Returns the nanoseconds from `earlier` to this instant, or zero if `earlier` is later.
    pub(crate) fn nanos_since(self, earlier: Self) -> u64 {
        self.0.get().saturating_sub(earlier.0.get())
    }

    pub(crate) fn plus_nanos(self, nanos: u64) -> Self {
        Self(self.0.saturating_add(nanos))
    }

    /// Returns the instant `duration` before this instant, or the clock's start.
    #[must_use]
    pub(crate) fn saturating_sub(self, duration: Duration) -> Self {
        Self::from_nanos(self.0.get().saturating_sub(nanos(duration)))
    }

    /// Returns the wall clock's time at this instant, for logs and displays.
    ///
    /// The time is approximate. It is the wall clock's time now, plus or minus the time from now. If the wall clock is wrong, set or
    /// slewed, so is the result, and two calls may differ. Do not base a decision on it. To finish work before a lease ends, use
    /// [`remaining`](Self::remaining).
    ///
    /// ```no_run
    /// # fn example(guard: &wheellock::Guard) {
    /// let end: std::time::SystemTime = guard.valid_until().system_time();
    /// # }
    /// ```
    #[must_use]
    pub fn system_time(self) -> SystemTime {
        let (here, there) = (Self::now(), SystemTime::now());
        let then = if self >= here {
            there.checked_add(self.saturating_duration_since(here))
        } else {
            there.checked_sub(here.saturating_duration_since(self))
        };
        // The wall clock cannot show this time. The current time is as good as any.
        then.unwrap_or(there)
    }

    /// Returns the time from now until this instant, or zero if the instant has passed.
    #[must_use]
    pub fn remaining(self) -> Duration {
        self.saturating_duration_since(Self::now())
    }
}

impl Add<Duration> for BootInstant {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        self.plus_nanos(nanos(duration))
    }
}

impl fmt::Debug for BootInstant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BootInstant({:?} after boot)", self.since_boot())
    }
}

/// Returns the clock's time in nanoseconds.
#[cfg(unix)]
fn reading() -> u64 {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Boottime;
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Monotonic;
    let time = rustix::time::clock_gettime(CLOCK);
    // Neither part is negative on these clocks, and the machine was not started 584 years ago.
    #[expect(clippy::cast_sign_loss, reason = "what is not negative has none")]
    let (seconds, nanos) = (time.tv_sec as u64, time.tv_nsec as u64);
    seconds.wrapping_mul(1_000_000_000).wrapping_add(nanos)
}

/// Returns the clock's time in nanoseconds. On Windows, `Instant` is the performance counter, which also counts the time in sleep states
/// (source: Microsoft, "Acquiring high-resolution time stamps").
#[cfg(not(unix))]
fn reading() -> u64 {
    static FIRST: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    nanos(FIRST.get_or_init(Instant::now).elapsed())
}

/// Returns the length of `duration` in nanoseconds, clamped to 584 years.
pub(crate) fn nanos(duration: Duration) -> u64 {
    duration.as_secs().saturating_mul(1_000_000_000).saturating_add(u64::from(duration.subsec_nanos()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// E3: a guard's instant can be read as a time of day.
    #[test]
    fn instant_converts_to_system_time() {
        let (now, wall) = (BootInstant::now(), SystemTime::now());
        let minute = Duration::from_secs(60);
        for (instant, expected) in
            [(now + minute, wall + minute), (now.saturating_sub(minute), wall - minute)]
        {
            let time = instant.system_time();
            let off = time.duration_since(expected).unwrap_or_else(|error| error.duration());
            assert!(off < Duration::from_secs(5), "{off:?}");
        }
        let _no_panic =
            (BootInstant::from_nanos(1).system_time(), BootInstant::from_nanos(u64::MAX).system_time());
    }
}
