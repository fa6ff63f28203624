//! Common helpers of the fuzz targets.
//!
//! They feed streams in pieces, collect the outcome, and bound its memory.

use bytes::BytesMut;
use wheellock_resp::{Decoder, Error, Frame, Limits};

/// Limits that are so small that short inputs reach each of them.
pub const TIGHT: Limits = Limits { depth: 4, bulk: 48, elements: 24, line: 32, frame: 80 };

/// Limits below the capacity of an inline value, so that even the shortest values are checked.
pub const TIGHTEST: Limits = Limits { depth: 2, bulk: 4, elements: 8, line: 3, frame: 4 };

/// The complete outcome of decoding a stream.
#[derive(Debug)]
pub struct Outcome {
    pub frames: Vec<Frame>,
    /// The error, or the number of consumed bytes and whether they end inside a frame.
    pub end: Result<(u64, bool), Error>,
}

impl PartialEq for Outcome {
    /// Compares the bytes that the frames encode to, so that NaN equals NaN.
    fn eq(&self, other: &Self) -> bool {
        self.end == other.end && encoded(&self.frames) == encoded(&other.frames)
    }
}

/// Feeds the pieces in order.
pub fn feed<'a>(limits: Limits, pieces: impl IntoIterator<Item = &'a [u8]>) -> Outcome {
    let mut decoder = Decoder::new(limits);
    let mut buf = BytesMut::new();
    let mut frames = Vec::new();
    for piece in pieces {
        buf.extend_from_slice(piece);
        loop {
            match decoder.decode(&mut buf) {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(error) => {
                    assert_eq!(decoder.decode(&mut buf), Err(error), "an error is for ever");
                    return Outcome { frames, end: Err(error) };
                }
            }
        }
        let grounded = buf.len().max((16 * buf.len()).clamp(16 << 10, 1 << 20));
        assert!(decoder.wanted() <= grounded, "room wanted on the strength of a header");
    }
    let taken = decoder.consumed() + buf.len() as u64;
    Outcome { frames, end: Ok((taken, decoder.is_mid_frame() || !buf.is_empty())) }
}

pub fn encoded(frames: &[Frame]) -> BytesMut {
    let mut out = BytesMut::new();
    for frame in frames {
        frame.encode(&mut out);
    }
    out
}

/// Runs `work` on an input of `len` bytes, and asserts an upper bound of the memory that it held.
///
/// The densest input has three bytes for a value of 32, in a vector with a quarter to spare. That is 13 times the input. The counter sees
/// a growing vector as two, the old beside the new, which makes it 24. A buffer of up to twice the input comes on top. So does a vector
/// of frames, which are 48 bytes for three at worst and grow in the same way, but doubled.
pub fn bounded<T>(len: usize, work: impl FnOnce() -> T) -> T {
    let mut result = None;
    let allocated = allocation_counter::measure(|| result = Some(work()));
    let bound = 48 * len as u64 + 64 * 1024;
    assert!(allocated.bytes_max <= bound, "{} bytes held for an input of {len}", allocated.bytes_max);
    result.expect("the work has run")
}
