//! Shared test support: feeding in pieces, outcomes, and the corpus.

use bytes::BytesMut;
use wheellock_resp::{Decoder, Error, ErrorKind, Frame, Limits, Value};

/// All results of decoding a stream.
#[derive(Debug, Clone)]
pub(crate) struct Outcome {
    pub(crate) frames: Vec<Frame>,
    /// The error of the stream. Without an error: the number of bytes taken, and whether the stream ended inside a frame.
    pub(crate) end: Result<(u64, bool), Error>,
}

impl PartialEq for Outcome {
    /// Compares the encoded bytes of the frames, so that not-a-number equals itself.
    fn eq(&self, other: &Self) -> bool {
        self.end == other.end && encoded(&self.frames) == encoded(&other.frames)
    }
}

pub(crate) fn encoded(frames: &[Frame]) -> BytesMut {
    let mut out = BytesMut::new();
    for frame in frames {
        frame.encode(&mut out);
    }
    out
}

impl Outcome {
    pub(crate) fn values(&self) -> Vec<Value> {
        self.frames
            .iter()
            .map(|frame| match frame {
                Frame::Reply(value) => value.clone(),
                Frame::Push(push) => panic!("a push: {push:?}"),
            })
            .collect()
    }

    /// Returns the only value of a stream that neither failed nor ended early.
    pub(crate) fn value(&self) -> Value {
        assert!(matches!(self.end, Ok((_, false))), "{self:?}");
        match self.values().as_slice() {
            [value] => value.clone(),
            values => panic!("{} values", values.len()),
        }
    }

    pub(crate) fn error(&self) -> (ErrorKind, u64) {
        let error = self.end.expect_err("the stream did not fail");
        (error.kind(), error.offset())
    }

    /// Returns true if there is neither a frame nor an error.
    pub(crate) fn waits(&self) -> bool {
        self.frames.is_empty() && self.end.is_ok()
    }
}

/// Feeds the pieces one after the other.
pub(crate) fn feed<'a>(limits: Limits, pieces: impl IntoIterator<Item = &'a [u8]>) -> Outcome {
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
    }
    // Bytes that wait in the buffer for the rest of a token count as taken: their number is not part of the contract.
    let taken = decoder.consumed() + buf.len() as u64;
    Outcome { frames, end: Ok((taken, decoder.is_mid_frame() || !buf.is_empty())) }
}

pub(crate) fn whole(stream: impl AsRef<[u8]>) -> Outcome {
    feed(Limits::default(), [stream.as_ref()])
}

/// Limits so small that the corpus exceeds each of them.
pub(crate) const TIGHT: Limits = Limits { depth: 4, bulk: 40, elements: 12, line: 30, frame: 70 };

/// Limits below the inline size.
pub(crate) const TIGHTEST: Limits = Limits { depth: 2, bulk: 4, elements: 4, line: 3, frame: 4 };

/// Returns streams that reach every branch of the grammar, well-formed and malformed. The tests also run them under `TIGHT` and `TIGHTEST`
/// limits.
pub(crate) fn corpus() -> Vec<Vec<u8>> {
    let mut streams: Vec<Vec<u8>> =
        WELL_FORMED.iter().chain(MALFORMED).map(|text| text.as_bytes().to_vec()).collect();
    streams.push(b"$3\r\n\xff\0\r\r\n-ERR \xc3\x28\r\n".to_vec());
    streams.push(b"$70\r\n".iter().copied().chain(vec![b'>'; 70]).chain(*b"\r\n:1\r\n").collect());
    streams
}

pub(crate) const WELL_FORMED: &[&str] = &[
    "",
    "+OK\r\n",
    "+\r\n",
    "+a simple string longer than inline\r\n+OK\r\n",
    "-ERR unknown command\r\n",
    ":0\r\n:1\r\n:-1\r\n:+7\r\n:007\r\n",
    ":9223372036854775807\r\n:-9223372036854775808\r\n:1\r\n",
    "$0\r\n\r\n$1\r\n\r\r\n$2\r\n\r\n\r\n",
    "$5\r\nhello\r\n$-1\r\n",
    "$16\r\n0123456789abcdef\r\n$22\r\n0123456789abcdef012345\r\n",
    "$23\r\n0123456789abcdef0123456\r\n:1\r\n",
    "$36\r\n3f1c4b52-9a30-4b1e-8a3d-000000000001\r\n",
    "*0\r\n*-1\r\n*1\r\n_\r\n",
    "*3\r\n:1\r\n$3\r\nfoo\r\n+bar\r\n:5\r\n",
    "*2\r\n*2\r\n:1\r\n*1\r\n:2\r\n*0\r\n",
    "_\r\n#t\r\n#f\r\n",
    ",1.5\r\n,-0\r\n,10\r\n,inf\r\n,-inf\r\n,nan\r\n,-nan\r\n,1e400\r\n,1.5e-3\r\n,5.\r\n",
    "(3492890328409238509324850943850943825024385\r\n(-1\r\n(+1\r\n",
    "!21\r\nSYNTAX invalid syntax\r\n!0\r\n\r\n",
    "=15\r\ntxt:Some string\r\n=4\r\nmkd:\r\n",
    "=38\r\ntxt:a verbatim text longer than inline\r\n",
    "%2\r\n+first\r\n:1\r\n+second\r\n*1\r\n:2\r\n",
    "%0\r\n~0\r\n~3\r\n:1\r\n:1\r\n+x\r\n",
    ">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\n0\r\n:1\r\n",
    ":1\r\n>2\r\n+pubsub\r\n:1\r\n:2\r\n",
    ">1\r\n=7\r\ntxt:abc\r\n",
    "|1\r\n+ttl\r\n:3600\r\n+OK\r\n",
    "|0\r\n|0\r\n:1\r\n",
    "*2\r\n:1\r\n|1\r\n$1\r\na\r\n*1\r\n_\r\n:2\r\n",
    "|1\r\n|1\r\n+k\r\n+v\r\n+a\r\n+b\r\n:1\r\n",
    ">2\r\n|1\r\n+a\r\n+b\r\n+kind\r\n:1\r\n",
    "%1\r\n$3\r\nkey\r\n%1\r\n$3\r\nkey\r\n%1\r\n+a\r\n#t\r\n",
    "*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n",
    // Found by fuzzing: the searched length of one line, split in the middle, was applied to the next line.
    "*3\r\n+0123456789abcdef\r\n+a\r\n-b\r\n",
];

pub(crate) const MALFORMED: &[&str] = &[
    // Types.
    "x",
    "HTTP/1.1 400 Bad Request\r\n",
    ":1\r\n\r\n",
    "*2\r\n:1\r\n\0",
    // Line endings.
    "+OK\n",
    "+OK\rX",
    "+a\rb\r\n",
    ":1\n",
    ":1\rx",
    ":12\r\r\n",
    "$5\nhello\r\n",
    "$5\rXhello\r\n",
    "$5\r\nhelloX\r\n",
    "$5\r\nhello\n",
    "$5\r\nhello\rX",
    "*1\n:1\r\n",
    "*2\r\n+0123456789abcdef\r\n+a\rb\r\n",
    "_\n",
    "_\rX",
    "#t\n",
    "#t\rX",
    "#tX",
    // Lengths.
    "$+5\r\nhello\r\n",
    "$05\r\nhello\r\n",
    "$00\r\n",
    "$ 5\r\nhello\r\n",
    "$1e3\r\n",
    "$-2\r\n",
    "$-\r\n",
    "$-01\r\n",
    "$-1x\r\n",
    "$-11\r\n",
    "$\r\n\r\n",
    "$9223372036854775808\r\n",
    "$18446744073709551616\r\n",
    "$0x10\r\n",
    "*-2\r\n",
    "*\r\n",
    "*01\r\n",
    "%-1\r\n",
    "~-1\r\n",
    ">-1\r\n",
    "|-1\r\n",
    "!-1\r\n",
    "=-1\r\n",
    "%9223372036854775807\r\n",
    "%4611686018427387904\r\n",
    "*9223372036854775807\r\n",
    // Numbers.
    ":\r\n",
    ":-\r\n",
    ":+\r\n",
    ":--1\r\n",
    ":+-1\r\n",
    ":1.5\r\n",
    ": 1\r\n",
    ":9223372036854775808\r\n",
    ":-9223372036854775809\r\n",
    ":000000000000000000001\r\n",
    ",\r\n",
    ",.5\r\n",
    ",1e\r\n",
    ",1e+\r\n",
    ",1.5x\r\n",
    ",Infinity\r\n",
    ",INF\r\n",
    ",+-1\r\n",
    ",0x1\r\n",
    "(\r\n",
    "(-\r\n",
    "(12a\r\n",
    "(1 2\r\n",
    // Small types.
    "#x\r\n",
    "#\r\n",
    "#true\r\n",
    "_x\r\n",
    "=3\r\ntxt\r\n",
    "=0\r\n\r\n",
    "=8\r\ntxtxtext\r\n",
    // Streamed types.
    "$?\r\n;4\r\nHell\r\n",
    "*?\r\n:1\r\n.\r\n",
    "%?\r\n",
    "~?\r\n",
    ">?\r\n",
    "|?\r\n",
    ";4\r\n",
    ".\r\n",
    "=?\r\n",
    "!?\r\n",
    // Pushes.
    ">0\r\n",
    ">1\r\n:1\r\n",
    ">1\r\n$-1\r\n",
    ">1\r\n_\r\n",
    ">1\r\n-ERR\r\n",
    ">1\r\n*1\r\n+message\r\n",
    ">1\r\n>1\r\n+x\r\n",
    ">1\r\n;1\r\n",
    ">1\r\nx",
    "*1\r\n>1\r\n+message\r\n",
    "|1\r\n+a\r\n>1\r\n+message\r\n",
    // Limits, at the default or at the tight values.
    "$17000000\r\n",
    "*2000000\r\n",
    "*13\r\n:1\r\n",
    "*2\r\n*12\r\n",
    "%7\r\n",
    "*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n",
    "*1\r\n*1\r\n*1\r\n*1\r\n*0\r\n",
    "$41\r\n",
    "*2\r\n$40\r\n0123456789012345678901234567890123456789\r\n*1\r\n$31\r\n",
    "|1\r\n+01234567890123456789012345678\r\n(01234567890123456789012345678\r\n-01234567890123456789012\r\n",
    "+1234567890123456789012345678901\r\n",
    "+123456789012345678901234567890\rX",
    "|1\r\n+a\r\n*1\r\n*1\r\n*1\r\n*1\r\n_\r\n",
    "|0\r\n|0\r\n|0\r\n|0\r\n|0\r\n|0\r\n|0\r\n|0\r\n|0\r\n|0\r\n|0\r\n|0\r\n|0\r\n:1\r\n",
];
