//! The text of `CLUSTER NODES`.
//!
//! Parsing must not panic. The size of the result must be bounded by the size of the text.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wheellock_client::fuzzing;

fuzz_target!(|data: &[u8]| fuzzing::view(data));
