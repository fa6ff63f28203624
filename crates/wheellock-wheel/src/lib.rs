//! A hashed timing wheel after Netty's `HashedWheelTimer`, for timeouts that almost always get cancelled.
//!
//! | type | what it is | needs |
//! |---|---|---|
//! | [`Wheel`] | the single-owner core: deadlines in ticks in, expired values out | `alloc` |
//! | [`Cohorts`] | members of one period, visited in dense groups and never re-armed | `alloc` |
//! | [`Timer`] | a shared handle with async sleeps, timeouts and intervals | `std` |
//! | [`HashedWheelTimer`] | callbacks with Netty's semantics | `std` |
//!
//! The core modules know no clock, no thread and no runtime: time is a `u64` of ticks that the caller passes in.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
#[cfg(feature = "std")]
extern crate std;

mod cohort;
mod occupancy;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod oracle;
mod slab;
mod wheel;

pub use cohort::{Cohorts, Member};
pub use wheel::{TimerKey, Wheel};

#[cfg(feature = "std")]
mod hashed_wheel_timer;
#[cfg(all(test, loom, feature = "std"))]
mod models;
#[cfg(feature = "std")]
mod sync;
#[cfg(feature = "std")]
mod timer;

#[cfg(feature = "std")]
pub use hashed_wheel_timer::{
    BuildError, HashedWheelTimer, HashedWheelTimerBuilder, Job, ManualTicker, NewTimeoutError, StopError,
    Timeout, TimerTask,
};
#[cfg(feature = "std")]
pub use timer::{Elapsed, Interval, ManualClock, MissedTicks, Scheduled, Sleep, Timer};
