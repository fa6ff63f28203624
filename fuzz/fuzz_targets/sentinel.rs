//! Replies of Sentinels.
//!
//! Handling them must not panic. The resulting address must be one of the addresses in the replies.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wheellock_client::fuzzing;

fuzz_target!(|data: &[u8]| fuzzing::sentinels(data));
