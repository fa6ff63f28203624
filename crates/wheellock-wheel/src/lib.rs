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
//!
//! # When to use it, and when not
//!
//! - Timeouts that are almost always cancelled, such as those of requests: [`Timer`]. It costs half of tokio's sleep, a third where two threads
//!   use it, keeps 40 bytes where that keeps 112, and does not get slower with the number of threads.
//! - Work that must be punctual while every worker of a runtime is busy, such as renewing leases: [`Timer::thread`].
//! - Many members of one period: [`Cohorts`].
//! - A few sleeps in a program that uses tokio anyway: `tokio::time` does, without a second thread. It also resolves 1 ms
//!   without being told; here the tick is chosen, and a sleep may be one tick late.
//! - A wall-clock time ("at noon"), or time that goes on while the machine is suspended: neither. The clock is `Instant`, which
//!   stops with the machine on Linux.
//!
//! # Features
//!
//! - `std`, on by default: the shared timer, its thread, and the callbacks. Without it there are `Wheel` and `Cohorts`, on `alloc`.
//! - `tokio`: `Timer::tokio`, whose driver is a task of a tokio runtime and whose clock is that runtime's.
//!
#![cfg_attr(
    not(feature = "std"),
    doc = "
[`Timer`]: https://docs.rs/wheellock-wheel/latest/wheellock_wheel/struct.Timer.html
[`Timer::thread`]: https://docs.rs/wheellock-wheel/latest/wheellock_wheel/struct.Timer.html#method.thread
[`HashedWheelTimer`]: https://docs.rs/wheellock-wheel/latest/wheellock_wheel/struct.HashedWheelTimer.html"
)]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
#[cfg(feature = "std")]
extern crate std;

mod ahead;
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
mod contain;
#[cfg(feature = "std")]
mod hashed_wheel_timer;
#[cfg(all(test, loom, feature = "std"))]
mod models;
#[cfg(feature = "std")]
mod per_process;
#[cfg(feature = "std")]
mod sync;
#[cfg(feature = "std")]
mod timer;

#[cfg(feature = "std")]
pub use hashed_wheel_timer::{
    BuildError, HashedWheelTimer, HashedWheelTimerBuilder, Job, ManualTicker, NewTimeoutError, StopError,
    Task, Timeout, TimerTask,
};
#[cfg(feature = "std")]
#[doc(hidden)]
pub use per_process::PerProcess;
#[cfg(feature = "std")]
pub use timer::{Elapsed, Interval, ManualClock, MissedTicks, Scheduled, Sleep, Timer};

/// The examples in the package's README must compile.
#[cfg(all(doctest, feature = "std"))]
#[doc = include_str!("../README.md")]
struct Readme;
