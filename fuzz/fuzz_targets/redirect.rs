//! MOVED and ASK: no panic, and what is read says the same when it is written again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wheellock_client::fuzzing;

fuzz_target!(|data: &[u8]| fuzzing::redirection(data));
