//! Arbitrary values, encoded and decoded.
//!
//! The result must be equal, and must encode to the same bytes.
#![no_main]

use bytes::BytesMut;
use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use wheellock_resp::{Blob, Decoder, Frame, Limits, Push, Value};

fuzz_target!(|data: &[u8]| {
    let mut input = Unstructured::new(data);
    let Ok(frame) = frame(&mut input) else { return };
    let mut bytes = BytesMut::new();
    frame.encode(&mut bytes);
    let wire = bytes.clone();
    let mut decoder = Decoder::new(Limits::default());
    let decoded = decoder.decode(&mut bytes).expect("what we encode is RESP").expect("and complete");
    assert!(bytes.is_empty() && !decoder.is_mid_frame());
    let mut again = BytesMut::new();
    decoded.encode(&mut again);
    assert_eq!(wire, again, "{}", wire.escape_ascii());
    if !format!("{frame:?}").contains("NaN") {
        assert_eq!(decoded, frame);
    }
});

fn frame(input: &mut Unstructured<'_>) -> Result<Frame> {
    let value = value(input, 0)?;
    if input.ratio(1_u8, 4_u8)? {
        let mut elements = vec![value];
        for _ in 0..input.int_in_range(0..=4)? {
            elements.push(self::value(input, 1)?);
        }
        if let Some(push) = Push::new(elements.clone()) {
            return Ok(Frame::Push(push));
        }
        return Ok(Frame::Reply(Value::Array(elements)));
    }
    Ok(Frame::Reply(value))
}

fn value(input: &mut Unstructured<'_>, depth: usize) -> Result<Value> {
    let kinds = if depth < 8 { 12 } else { 9 };
    Ok(match input.int_in_range(0..=kinds)? {
        0 => Value::Null,
        1 => Value::Boolean(input.arbitrary()?),
        2 => Value::Integer(input.arbitrary()?),
        3 => Value::Double(input.arbitrary()?),
        4 => Value::SimpleString(line(input)?),
        5 => Value::Error(line(input)?),
        6 => Value::BulkString(blob(input)?),
        7 => Value::BulkError(blob(input)?),
        8 => Value::Verbatim { format: input.arbitrary()?, text: blob(input)? },
        9 => Value::BigNumber(input.arbitrary::<i128>()?.to_string().into()),
        10 => Value::Array(values(input, depth)?),
        11 => Value::Set(values(input, depth)?),
        _ => {
            let mut pairs = Vec::new();
            for _ in 0..input.int_in_range(0..=4)? {
                pairs.push((value(input, depth + 1)?, value(input, depth + 1)?));
            }
            Value::Map(pairs)
        }
    })
}

fn values(input: &mut Unstructured<'_>, depth: usize) -> Result<Vec<Value>> {
    let count = input.int_in_range(0..=6)?;
    (0..count).map(|_| value(input, depth + 1)).collect()
}

/// Returns a short blob byte by byte, and sometimes a blob that is long enough to be copied or sliced.
fn blob(input: &mut Unstructured<'_>) -> Result<Blob> {
    let mut bytes: Vec<u8> = input.arbitrary()?;
    if input.ratio(1_u8, 16_u8)? {
        bytes.resize(input.int_in_range(0..=40_000)?, b'\r');
    }
    Ok(bytes.into())
}

fn line(input: &mut Unstructured<'_>) -> Result<Blob> {
    let mut bytes = Vec::from(blob(input)?);
    bytes.retain(|byte| !matches!(byte, b'\r' | b'\n'));
    Ok(bytes.into())
}
