//! A stream in pieces of any size.
//!
//! Frames, error kind and offset must be the same as in one-shot decoding. Memory must be bounded.
//!
//! The first byte of the input is the number of sizes. The sizes follow, and then the stream. Each size is used again and again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wheellock_fuzz::{TIGHT, TIGHTEST, bounded, feed};
use wheellock_resp::Limits;

fuzz_target!(|data: &[u8]| {
    let Some((&count, rest)) = data.split_first() else { return };
    let Some((sizes, stream)) = rest.split_at_checked(usize::from(count % 16)) else { return };
    for limits in [Limits::default(), TIGHT, TIGHTEST] {
        let whole = feed(limits, [stream]);
        let chunked = bounded(stream.len(), || feed(limits, pieces(stream, sizes)));
        assert_eq!(chunked, whole);
        let single = bounded(stream.len(), || feed(limits, stream.chunks(1)));
        assert_eq!(single, whole);
    }
});

fn pieces<'a>(stream: &'a [u8], sizes: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
    let mut left = stream;
    let mut sizes = sizes.iter().cycle();
    std::iter::from_fn(move || {
        if left.is_empty() {
            return None;
        }
        let size = sizes.next().map_or(left.len(), |&size| usize::from(size));
        let (piece, rest) = left.split_at(size.max(1).min(left.len()));
        left = rest;
        Some(piece)
    })
}
