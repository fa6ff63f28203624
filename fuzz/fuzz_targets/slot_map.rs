//! Consecutive replies of a cluster's nodes.
//!
//! The slot map must stay consistent.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wheellock_client::fuzzing;

fuzz_target!(|data: &[u8]| fuzzing::views(data));
