//! What a cluster's nodes say, one after the other: the map of slots stays consistent.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wheellock_client::fuzzing;

fuzz_target!(|data: &[u8]| fuzzing::views(data));
