//! What sentinels answer: no panic, and the address they lead to is one that was said.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wheellock_client::fuzzing;

fuzz_target!(|data: &[u8]| fuzzing::sentinels(data));
