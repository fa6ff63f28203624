//! The clock by which leases are believed. Owns the choice of clock; everything else is handed instants.

use std::fmt;
use std::num::NonZeroU64;
use std::ops::Add;
use std::time::{Duration, Instant, SystemTime};

use wheellock_client::{Config, Timer};

/// Where the instants of one manager come from.
pub(crate) enum Clock {
    /// The system's.
    Boot,
    /// A timer's, of a world without a server: all of it must follow one clock.
    Timer { timer: Timer, start: Instant },
    /// That of a world whose machine is suspended now and then: what else goes by a timer goes by another one.
    #[cfg(all(test, feature = "testing"))]
    Apart { timer: Timer, start: Instant },
}

impl Clock {
    /// The clock that goes with a connection.
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

    /// Whether it goes on while timers stand still, as they do while the machine is suspended.
    pub(crate) fn outruns_timers(&self) -> bool {
        !matches!(self, Self::Timer { .. })
    }
}

/// An instant on a clock that goes on while the machine is suspended.
///
/// `std::time::Instant` stops during suspend on Linux (`CLOCK_MONOTONIC`), while the server's TTLs run on: a lease
/// judged by it would be believed after it has expired. What this is instead:
///
/// | on | clock | while the machine is suspended |
/// |---|---|---|
/// | Linux, Android | `CLOCK_BOOTTIME` | goes on |
/// | macOS, iOS | `CLOCK_MONOTONIC`, which is another clock there | goes on |
/// | Windows | `QueryPerformanceCounter`, counted from the first look at it in this process | goes on |
/// | any other Unix | `CLOCK_MONOTONIC` | may stop: then a lease may be believed after it has ended |
///
/// It spans 584 years in nanoseconds; what lies beyond is clamped.
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
    /// This instant.
    pub fn now() -> Self {
        Self::from_nanos(reading())
    }

    /// Milliseconds on this clock, which begin anew after 49 days.
    #[expect(clippy::cast_possible_truncation, reason = "begins anew")]
    pub(crate) const fn millis(self) -> u32 {
        (self.0.get() / 1_000_000) as u32
    }

    /// The first nanosecond is missing, so that an `Option` of an instant needs no more room than the instant.
    const fn from_nanos(nanos: u64) -> Self {
        match NonZeroU64::new(nanos) {
            Some(nanos) => Self(nanos),
            None => Self(NonZeroU64::MIN),
        }
    }

    /// The time since the machine was started: the clock's own number, the same for all processes on it; on Windows the time since
    /// this process first looked.
    #[must_use]
    pub fn since_boot(self) -> Duration {
        Duration::from_nanos(self.0.get())
    }

    /// The time from `earlier` to this instant; zero if `earlier` is later.
    #[must_use]
    pub fn saturating_duration_since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.nanos_since(earlier))
    }

    /// Nanoseconds from `earlier` to this instant; zero if `earlier` is later.
    pub(crate) fn nanos_since(self, earlier: Self) -> u64 {
        self.0.get().saturating_sub(earlier.0.get())
    }

    pub(crate) fn plus_nanos(self, nanos: u64) -> Self {
        Self(self.0.saturating_add(nanos))
    }

    /// The instant `duration` before this one, or the clock's start.
    #[must_use]
    pub(crate) fn saturating_sub(self, duration: Duration) -> Self {
        Self::from_nanos(self.0.get().saturating_sub(nanos(duration)))
    }

    /// What the wall clock showed, or will show, at this instant, if nobody sets it meanwhile: to be shown to people, or written to a log.
    ///
    /// Approximate, and no basis for a decision: it is the wall clock's time now, plus or minus the time from now. A clock that is set,
    /// slewed or wrong makes it so, and so two calls may differ. What has to happen before a lease ends asks for
    /// [`remaining`](Self::remaining) time.
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
        // What no wall clock shows is as good as now.
        then.unwrap_or(there)
    }

    /// The time from now until this instant; zero if it has passed.
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

/// The clock's number in nanoseconds.
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

/// std's clock is the performance counter there, which counts the time in sleep states too (source: Microsoft, "Acquiring
/// high-resolution time stamps").
#[cfg(not(unix))]
fn reading() -> u64 {
    static FIRST: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    nanos(FIRST.get_or_init(Instant::now).elapsed())
}

/// The length of `duration` in nanoseconds, clamped to 584 years.
pub(crate) fn nanos(duration: Duration) -> u64 {
    duration.as_secs().saturating_mul(1_000_000_000).saturating_add(u64::from(duration.subsec_nanos()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// E3: what a guard says can be read as a time of day.
    #[test]
    fn an_instant_is_a_time_of_the_wall_clock() {
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
