//! The text of `CLUSTER NODES`: no panic, and what is read is bounded by what was sent.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wheellock_client::fuzzing;

fuzz_target!(|data: &[u8]| fuzzing::view(data));
