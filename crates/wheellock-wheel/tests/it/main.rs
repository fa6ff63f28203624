//! Integration tests of the timers, one module per subject.
#![cfg(all(feature = "std", not(loom)))]

mod complaints;
mod hashed_wheel_timer;
mod sleep;
