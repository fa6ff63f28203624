//! The timers from outside: one program with a module for each subject.
#![cfg(all(feature = "std", not(loom)))]

mod complaints;
mod hashed_wheel_timer;
mod sleep;
