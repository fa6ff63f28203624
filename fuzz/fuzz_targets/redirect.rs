//! The errors MOVED and ASK.
//!
//! Parsing must not panic. A parsed redirection that is written again must have the same meaning.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wheellock_client::fuzzing;

fuzz_target!(|data: &[u8]| fuzzing::redirection(data));
