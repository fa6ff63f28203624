//! Hashed timing wheel for timeouts that are almost always cancelled.
//!
//! The design follows Netty's `HashedWheelTimer`.
//!
//! | type | purpose | needs |
//! |---|---|---|
//! | [`Wheel`] | the single-owner core: deadlines in ticks in, expired values out | `alloc` |
//! | [`Cohorts`] | members with one common period; the caller visits them in groups, and none is scheduled again | `alloc` |
//! | [`Timer`] | a shared handle with async sleeps, timeouts and intervals | `std` |
//! | [`HashedWheelTimer`] | callbacks with Netty's semantics | `std` |
//!
//! The core modules do not depend on a clock, a thread or a runtime. Time is a `u64` of ticks that the caller passes in.
//!
//! # When to use it, and when not
//!
//! - Timeouts that are almost always cancelled, such as those of requests: [`Timer`]. One timeout costs half as much as tokio's sleep, or a
//!   third where two threads use the timer. It keeps 40 bytes instead of 112, and its cost does not grow with the number of threads.
//! - Work that must be punctual while every worker of a runtime is busy, such as renewing leases: [`Timer::thread`].
//! - Many members of one period: [`Cohorts`].
//! - A few sleeps in a program that uses tokio anyway: use `tokio::time`, which needs no second thread. Its resolution is 1 ms. Here you
//!   choose the tick, and a sleep may be one tick late.
//! - A wall-clock time ("at noon"), or time that continues while the machine is suspended: use neither of them. The clock of [`Timer`] is
//!   `Instant`, which stops with the machine on Linux.
//!
//! # Features
//!
//! - `std`, on by default: the shared timer, its thread, and the callbacks. Without this feature only `Wheel` and `Cohorts` remain, on
//!   `alloc`.
//! - `tokio`: `Timer::tokio`. Its driver is a task of a tokio runtime, and its clock is the runtime's clock.
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

/// Compiles the examples in the package's README.
#[cfg(all(doctest, feature = "std"))]
#[doc = include_str!("../README.md")]
struct Readme;
