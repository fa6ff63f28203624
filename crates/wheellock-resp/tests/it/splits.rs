//! Splits of a stream into reads.
//!
//! A split must not change frames, errors or offsets. The tests try every single cut and every pair of cuts over the golden corpus, and
//! single bytes.

use crate::support::{TIGHT, TIGHTEST, corpus, encoded, feed};
use wheellock_resp::Limits;

#[test]
fn one_cut_anywhere_changes_nothing() {
    every(|stream, limits| {
        let expected = feed(limits, [stream]);
        for cut in 0..=stream.len() {
            let (a, b) = stream.split_at(cut);
            assert_eq!(feed(limits, [a, b]), expected, "{} cut at {cut}", stream.escape_ascii());
        }
    });
}

#[test]
fn two_cuts_anywhere_change_nothing() {
    every(|stream, limits| {
        let expected = feed(limits, [stream]);
        for second in 0..=stream.len() {
            let (front, c) = stream.split_at(second);
            for first in 0..=second {
                let (a, b) = front.split_at(first);
                let outcome = feed(limits, [a, b, c]);
                assert_eq!(outcome, expected, "{} cut at {first} and {second}", stream.escape_ascii());
            }
        }
    });
}

#[test]
fn single_bytes_change_nothing() {
    every(|stream, limits| {
        let expected = feed(limits, [stream]);
        assert_eq!(feed(limits, stream.chunks(1)), expected, "{}", stream.escape_ascii());
    });
}

/// A prefix of a stream yields a prefix of its frames: more bytes withdraw no frame, and no error appears before its byte.
#[test]
fn a_prefix_yields_a_prefix() {
    every(|stream, limits| {
        let expected = feed(limits, [stream]);
        for end in 0..stream.len() {
            let outcome = feed(limits, [&stream[..end]]);
            assert!(encoded(&expected.frames).starts_with(&encoded(&outcome.frames)));
            if outcome.end.is_err() {
                assert_eq!(outcome, expected, "{} cut at {end}", stream.escape_ascii());
            }
        }
    });
}

fn every(check: impl Fn(&[u8], Limits)) {
    for stream in &corpus() {
        check(stream, Limits::default());
        check(stream, TIGHT);
        check(stream, TIGHTEST);
    }
}

/// Decodes the whole well-formed corpus as one stream, so that leftover state of one frame would affect the next.
#[test]
fn single_cut_changes_nothing() {
    let stream = crate::support::WELL_FORMED.concat().into_bytes();
    let expected = feed(Limits::default(), [&stream[..]]);
    assert!(matches!(expected.end, Ok((_, false))));
    for cut in 0..=stream.len() {
        let (a, b) = stream.split_at(cut);
        assert_eq!(feed(Limits::default(), [a, b]), expected, "cut at {cut}");
    }
    assert_eq!(feed(Limits::default(), stream.chunks(1)), expected);
}
