//! Properties of arbitrary streams and values.
//!
//! The fuzz targets check the same properties for longer.

use crate::support::{TIGHT, TIGHTEST, encoded, feed, whole};
use proptest::collection::vec;
use proptest::prelude::*;
use wheellock_resp::{Blob, Frame, Limits, Value};

proptest! {
    /// Mostly valid RESP, split anywhere.
    #[test]
    fn any_stream_cut_anywhere(pieces in vec(piece(), 0..12), sizes in vec(1_usize..9, 1..6)) {
        let stream = pieces.concat();
        for limits in [Limits::default(), TIGHT, TIGHTEST] {
            let expected = feed(limits, [&stream[..]]);
            let mut rest = &stream[..];
            let chunks = sizes.iter().cycle().map_while(|&size| {
                let (chunk, left) = rest.split_at(size.min(rest.len()));
                rest = left;
                (!chunk.is_empty()).then_some(chunk)
            });
            prop_assert_eq!(feed(limits, chunks), expected);
        }
    }

    /// An encoded value decodes to the same value, and encodes to the same bytes again.
    #[test]
    fn any_value_comes_back(value in value()) {
        let frames = [Frame::Reply(value)];
        let bytes = encoded(&frames);
        let outcome = whole(&bytes);
        prop_assert_eq!(outcome.end, Ok((bytes.len() as u64, false)));
        prop_assert_eq!(encoded(&outcome.frames), bytes);
        if !format!("{frames:?}").contains("NaN") {
            prop_assert_eq!(&outcome.frames[..], &frames[..]);
        }
    }
}

fn piece() -> impl Strategy<Value = Vec<u8>> {
    let corpus: Vec<Vec<u8>> = crate::support::corpus();
    prop_oneof![
        4 => value().prop_map(|value| encoded(&[Frame::Reply(value)]).to_vec()),
        2 => proptest::sample::select(corpus),
        1 => vec(any::<u8>(), 0..6),
        1 => vec(proptest::sample::select(b"*$%~>|+:-_#,(!=;.0123456789?\r\n".to_vec()), 0..12),
    ]
}

fn value() -> impl Strategy<Value = Value> {
    let blob = || vec(any::<u8>(), 0..40).prop_map(Blob::from);
    let line = || {
        vec(any::<u8>().prop_filter("no line break", |byte| !matches!(byte, b'\r' | b'\n')), 0..40)
            .prop_map(Blob::from)
    };
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Boolean),
        any::<i64>().prop_map(Value::Integer),
        any::<f64>().prop_map(Value::Double),
        line().prop_map(Value::SimpleString),
        line().prop_map(Value::Error),
        blob().prop_map(Value::BulkString),
        blob().prop_map(Value::BulkError),
        (any::<[u8; 3]>(), blob()).prop_map(|(format, text)| Value::Verbatim { format, text }),
        any::<i128>().prop_map(|number| Value::BigNumber(number.to_string().into())),
    ];
    leaf.prop_recursive(5, 40, 6, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..6).prop_map(Value::Array),
            vec(inner.clone(), 0..6).prop_map(Value::Set),
            vec((inner.clone(), inner), 0..4).prop_map(Value::Map),
        ]
    })
}
