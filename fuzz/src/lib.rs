//! What the fuzz targets share: streams fed in pieces, what came out, and how much memory that may take.

use bytes::BytesMut;
use wheellock_resp::{Decoder, Error, Frame, Limits};

/// Small enough for short inputs to run into every limit.
pub const TIGHT: Limits = Limits { depth: 4, bulk: 48, elements: 24, line: 32, frame: 80 };

/// Below what has room in a value, where the shortest of values are looked at, too.
pub const TIGHTEST: Limits = Limits { depth: 2, bulk: 4, elements: 8, line: 3, frame: 4 };

/// Everything a decoder made of a stream.
#[derive(Debug)]
pub struct Outcome {
    pub frames: Vec<Frame>,
    /// The error, or the bytes taken and whether they end inside a frame.
    pub end: Result<(u64, bool), Error>,
}

impl PartialEq for Outcome {
    /// By the bytes the frames encode to, so that not-a-number equals itself.
    fn eq(&self, other: &Self) -> bool {
        self.end == other.end && encoded(&self.frames) == encoded(&other.frames)
    }
}

/// Feeds the pieces one after the other.
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

/// Runs `work` on an input of `len` bytes and asserts how much memory it held at most.
///
/// The densest input is three bytes for a value of 32, in a vector with a quarter to spare: 13 times. The counter sees a
/// growing vector as two, the old beside the new, which makes it 24; a buffer of up to twice the input, and a vector of
/// frames (48 for three bytes at worst, the same growth but doubled) come on top.
pub fn bounded<T>(len: usize, work: impl FnOnce() -> T) -> T {
    let mut result = None;
    let allocated = allocation_counter::measure(|| result = Some(work()));
    let bound = 48 * len as u64 + 64 * 1024;
    assert!(allocated.bytes_max <= bound, "{} bytes held for an input of {len}", allocated.bytes_max);
    result.expect("the work has run")
}
