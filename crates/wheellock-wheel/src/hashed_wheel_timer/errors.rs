//! Errors of building, arming and stopping a timer.

use std::fmt;

/// An error of [`HashedWheelTimer::new_timeout`](crate::HashedWheelTimer::new_timeout): the reason why no timeout was made.
///
/// ```
/// use std::time::Duration;
/// use wheellock_wheel::{HashedWheelTimer, NewTimeoutError, Timeout};
///
/// let timer = HashedWheelTimer::builder().max_pending_timeouts(1).build()?;
/// let _first = timer.new_timeout(|_: &Timeout| (), Duration::from_secs(3))?;
/// let second = timer.new_timeout(|_: &Timeout| (), Duration::from_secs(3));
/// assert_eq!(second.unwrap_err(), NewTimeoutError::Full { max: 1 });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum NewTimeoutError {
    /// The maximum number of timeouts is already pending.
    Full {
        /// The maximum number of pending timeouts.
        max: usize,
    },
    /// The timer was stopped.
    Stopped,
    /// The system refused the timer's thread.
    NoThread,
}

impl fmt::Display for NewTimeoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full { max } => write!(f, "the timer has {max} timeouts pending, the most it may have"),
            Self::Stopped => f.write_str("the timer was stopped"),
            Self::NoThread => f.write_str("the system refused a thread for the timer"),
        }
    }
}

impl core::error::Error for NewTimeoutError {}

/// An error of [`HashedWheelTimerBuilder::build`](crate::HashedWheelTimerBuilder::build): the reason why no timer was made.
///
/// ```
/// use std::time::Duration;
/// use wheellock_wheel::{BuildError, HashedWheelTimer};
///
/// let error = HashedWheelTimer::builder().tick_duration(Duration::ZERO).build().unwrap_err();
/// assert_eq!(error, BuildError::ZeroTick);
/// assert_eq!(error.to_string(), "the tick duration is zero");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum BuildError {
    /// The tick is zero.
    ZeroTick,
    /// The number of ticks per wheel is zero.
    ZeroTicksPerWheel,
    /// A revolution takes 2<sup>63</sup> ns or longer.
    RevolutionTooLong,
    /// The thread's name has a zero byte, which no system accepts.
    ZeroByteInThreadName,
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ZeroTick => "the tick duration is zero",
            Self::ZeroTicksPerWheel => "the number of ticks per wheel is zero",
            Self::RevolutionTooLong => "tick duration times ticks per wheel is not less than 2^63 ns",
            Self::ZeroByteInThreadName => "the thread's name has a zero byte",
        })
    }
}

impl core::error::Error for BuildError {}

/// An error of [`HashedWheelTimer::stop`](crate::HashedWheelTimer::stop): a task on the timer's own thread tried to stop the timer.
///
/// ```
/// use std::sync::mpsc;
/// use std::time::Duration;
/// use wheellock_wheel::{HashedWheelTimer, StopError, Timeout};
///
/// let (timer, ticker) = HashedWheelTimer::builder().build_manual()?;
/// let (said, heard) = mpsc::channel::<Result<Vec<Timeout>, StopError>>();
/// let stop = move |timeout: &Timeout| {
///     drop(timeout.timer().map(|timer| said.send(timer.stop())));
/// };
/// timer.new_timeout(stop, Duration::from_secs(1))?;
/// ticker.advance(Duration::from_secs(2));
/// assert_eq!(heard.recv()?.unwrap_err().to_string(), "a timer cannot be stopped by one of its own tasks");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StopError(pub(super) ());

impl fmt::Display for StopError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a timer cannot be stopped by one of its own tasks")
    }
}

impl core::error::Error for StopError {}
