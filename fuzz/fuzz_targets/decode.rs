//! One-shot decoding of any bytes.
//!
//! Decoding must not panic. Memory must be bounded, and offsets must be inside the input. Decoded values must encode to themselves.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wheellock_fuzz::{TIGHT, TIGHTEST, bounded, encoded, feed};
use wheellock_resp::Limits;

fuzz_target!(|data: &[u8]| {
    for limits in [Limits::default(), TIGHT, TIGHTEST] {
        let outcome = bounded(data.len(), || feed(limits, [data]));
        match outcome.end {
            Ok((taken, _)) => assert_eq!(taken, data.len() as u64),
            Err(error) => {
                assert!(error.offset() < data.len() as u64);
                assert!(!error.to_string().is_empty());
            }
        }
        // The decoded and encoded bytes must decode to the same values and encode to the same bytes.
        let bytes = encoded(&outcome.frames);
        let again = feed(Limits::default(), [&bytes[..]]);
        assert_eq!(again.end, Ok((bytes.len() as u64, false)), "{}", bytes.escape_ascii());
        assert_eq!(again.frames.len(), outcome.frames.len());
        assert_eq!(encoded(&again.frames), bytes);
    }
});
