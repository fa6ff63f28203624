//! The decoder against `redis-protocol` (RESP3) and the `redis` crate.
//!
//! If all parsers can read the bytes, they must read the same value, of the same length on the wire. If only some parsers can, the reason
//! must be on the list.
//!
//! Known differences, all deliberate:
//!
//! | bytes | ours | `redis-protocol` 6.0 | `redis` 2.0.0-rc.2 |
//! |---|---|---|---|
//! | `$-1`, `*-1` | null | reads them as streamed types | same |
//! | other negative lengths | error | some are streamed types | null, or an empty push |
//! | streamed types, `;`, `.` | unsupported | reads them | error |
//! | `H...` | error | reads `HELLO` | error |
//! | lengths `+5`, `05`, ` 5` | error | the first two | all |
//! | integers with spaces, over 20 digits | error | over 20 digits | both |
//! | CR or LF alone in a line | error | reads on to CR LF | same |
//! | something other than CR LF after a bulk | error | not looked at | error |
//! | lines or simple errors that are not UTF-8 | bytes | error in errors and doubles | error |
//! | bulk errors and verbatim texts not UTF-8 | bytes | error in none | replaced |
//! | verbatim formats | any three bytes and a colon | `txt`, `mkd`, any byte for the colon | all up to a colon |
//! | doubles `.5`, `infinity`, `NaN` | error | reads them | same, and spaces |
//! | big numbers that are none, `_x` | error | reads them | same |
//! | aggregates as set members or map keys | read | error | read |
//! | duplicate set members and map keys | kept | dropped | kept |
//! | attributes | skipped | one before a value, not before null | wrap the value, nested like a level |
//! | push first element | a string | anything | a simple string but `OK`, or a bulk, in UTF-8 |
//! | push inside a value, empty push | error | reads them | same |
//! | more than 32 levels, 1 Mi values, 16 MiB | error | reads it (and recurses) | error over 100 levels |
#![no_main]

use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;
use redis_protocol::resp3::types::{DecodedFrame, OwnedFrame, VerbatimStringFormat};
use wheellock_resp::{Decoder, ErrorKind, Frame, Limits, Push, Value};

fuzz_target!(|data: &[u8]| {
    // The other parsers recurse, and reserve memory as headers demand.
    if data.len() > 4096 {
        return;
    }
    let mut rest = data;
    loop {
        let ours = decode(rest);
        against_redis_protocol(rest, &ours);
        against_redis(rest, &ours);
        match ours {
            Ok(Some((_, used))) => rest = &rest[used..],
            _ => return,
        }
    }
});

type Ours = Result<Option<(Frame, usize)>, ErrorKind>;

fn decode(bytes: &[u8]) -> Ours {
    let mut buf = BytesMut::from(bytes);
    let frame = Decoder::new(Limits::default()).decode(&mut buf).map_err(|error| error.kind())?;
    Ok(frame.map(|frame| (frame, bytes.len() - buf.len())))
}

fn against_redis_protocol(bytes: &[u8], ours: &Ours) {
    use redis_protocol::resp3::decode::streaming::decode as theirs;

    // `redis-protocol` does not distinguish streamed nulls from RESP2 nulls, anywhere in the frame.
    if contains(bytes, b"-1\r\n") || contains(bytes, b"?\r\n") || contains(bytes, b"+-") {
        return;
    }
    // Attributes are skipped here, because the parsers differ (see the list).
    if bytes.contains(&b'|') {
        return;
    }
    match (ours, theirs(bytes)) {
        (Ok(Some((frame, used))), Ok(Some((DecodedFrame::Complete(other), other_used)))) => {
            assert_eq!(*used, other_used);
            assert!(same_as_protocol_frame(frame, &other), "{frame:?} but redis-protocol {other:?}");
        }
        (Ok(Some((frame, _))), other) => {
            assert!(!protocol_reads(frame), "{frame:?} but redis-protocol {other:?}");
        }
        (Err(kind), Ok(Some(other))) => {
            let lenient = matches!(
                kind,
                ErrorKind::LineEnding
                    | ErrorKind::Length
                    | ErrorKind::Integer
                    | ErrorKind::Double
                    | ErrorKind::BigNumber
                    | ErrorKind::Null
                    | ErrorKind::Verbatim
                    | ErrorKind::PushKind
                    | ErrorKind::PushInside
                    | ErrorKind::Unsupported(_)
                    | ErrorKind::UnknownType(b'H')
                    | ErrorKind::Limit(_)
            );
            assert!(lenient, "{kind:?} but redis-protocol {other:?}");
        }
        (Ok(None), Ok(Some(other))) => panic!("not complete but redis-protocol {other:?}"),
        (Ok(None) | Err(_), _) => {}
    }
}

/// Returns true if redis-protocol can represent the value.
fn protocol_reads(frame: &Frame) -> bool {
    fn reads(value: &Value) -> bool {
        let hashable = |value: &Value| !matches!(value, Value::Array(_) | Value::Set(_) | Value::Map(_));
        match value {
            Value::Error(text) => text.as_str().is_some(),
            Value::Verbatim { format, .. } => matches!(format, b"txt" | b"mkd"),
            Value::Array(items) => items.iter().all(reads),
            Value::Set(items) => items.iter().all(|item| hashable(item) && reads(item)),
            Value::Map(pairs) => pairs.iter().all(|(key, value)| hashable(key) && reads(key) && reads(value)),
            _ => true,
        }
    }
    match frame {
        Frame::Reply(value) => reads(value),
        Frame::Push(push) => push.elements().iter().all(reads),
    }
}

fn same_as_protocol_frame(frame: &Frame, other: &OwnedFrame) -> bool {
    match (frame, other) {
        (Frame::Push(push), OwnedFrame::Push { data, .. }) => same_as_protocol_list(push.elements(), data),
        (Frame::Push(_), _) => false,
        (Frame::Reply(value), _) => same_as_protocol(value, other),
    }
}

fn same_as_protocol_list(items: &[Value], others: &[OwnedFrame]) -> bool {
    items.len() == others.len() && items.iter().zip(others).all(|(item, other)| same_as_protocol(item, other))
}

fn same_as_protocol(value: &Value, other: &OwnedFrame) -> bool {
    match (value, other) {
        (Value::Null, OwnedFrame::Null) => true,
        (Value::Boolean(a), OwnedFrame::Boolean { data, .. }) => a == data,
        (Value::Integer(a), OwnedFrame::Number { data, .. }) => a == data,
        (Value::Double(a), OwnedFrame::Double { data, .. }) => same_double(*a, *data),
        (Value::SimpleString(a), OwnedFrame::SimpleString { data, .. })
        | (Value::BulkString(a), OwnedFrame::BlobString { data, .. })
        | (Value::BulkError(a), OwnedFrame::BlobError { data, .. })
        | (Value::BigNumber(a), OwnedFrame::BigNumber { data, .. }) => **a == data[..],
        (Value::Error(a), OwnedFrame::SimpleError { data, .. }) => a == data.as_str(),
        (Value::Verbatim { format, text }, OwnedFrame::VerbatimString { data, format: other, .. }) => {
            let other = match other {
                VerbatimStringFormat::Text => b"txt",
                VerbatimStringFormat::Markdown => b"mkd",
            };
            format == other && **text == data[..]
        }
        (Value::Array(items), OwnedFrame::Array { data, .. }) => same_as_protocol_list(items, data),
        // Duplicates were dropped, and the order is arbitrary.
        (Value::Set(items), OwnedFrame::Set { data, .. }) => {
            data.len() <= items.len()
                && items.iter().all(|item| data.iter().any(|other| same_as_protocol(item, other)))
        }
        (Value::Map(pairs), OwnedFrame::Map { data, .. }) => {
            data.len() <= pairs.len()
                && data.iter().all(|(key, value)| {
                    pairs
                        .iter()
                        .any(|(ours, our)| same_as_protocol(ours, key) && same_as_protocol(our, value))
                })
        }
        _ => false,
    }
}

fn against_redis(bytes: &[u8], ours: &Ours) {
    match (ours, redis::parse_redis_value(bytes)) {
        (Ok(Some((frame, _))), Ok(other)) => {
            assert!(same_as_redis_frame(frame, &other), "{frame:?} but redis {other:?}");
        }
        (Ok(Some((frame, _))), Err(error)) => {
            // Attributes may contain values that the redis crate cannot read, and may be nested.
            let reads = redis_reads(frame) && !bytes.contains(&b'|');
            assert!(!reads, "{frame:?} but redis: {error}");
        }
        (Err(kind), Ok(other)) => {
            let lenient = matches!(
                kind,
                ErrorKind::LineEnding
                    | ErrorKind::Length
                    | ErrorKind::Integer
                    | ErrorKind::Double
                    | ErrorKind::BigNumber
                    | ErrorKind::Null
                    | ErrorKind::Verbatim
                    | ErrorKind::PushKind
                    | ErrorKind::PushInside
                    | ErrorKind::Limit(_)
            );
            assert!(lenient, "{kind:?} but redis {other:?}");
        }
        (Ok(None), Ok(other)) => panic!("not complete but redis {other:?}"),
        (Ok(None) | Err(_), Err(_)) => {}
    }
}

/// Returns true if the redis crate can represent the value.
fn redis_reads(frame: &Frame) -> bool {
    fn reads(value: &Value) -> bool {
        match value {
            Value::SimpleString(text) | Value::Error(text) => text.as_str().is_some(),
            Value::Array(items) | Value::Set(items) => items.iter().all(reads),
            Value::Map(pairs) => pairs.iter().all(|(key, value)| reads(key) && reads(value)),
            _ => true,
        }
    }
    match frame {
        Frame::Reply(value) => reads(value),
        Frame::Push(push) => push_kind_reads(push) && push.elements().iter().all(reads),
    }
}

fn push_kind_reads(push: &Push) -> bool {
    match push.elements().first() {
        Some(Value::SimpleString(kind)) => kind.as_str().is_some_and(|kind| kind != "OK"),
        Some(Value::BulkString(kind)) => kind.as_str().is_some(),
        _ => false,
    }
}

fn same_as_redis_frame(frame: &Frame, other: &redis::Value) -> bool {
    match (frame, other) {
        (frame, redis::Value::Attribute { data, .. }) => same_as_redis_frame(frame, data),
        (Frame::Push(push), redis::Value::Push { kind, data }) => {
            push.kind() == kind.to_string().as_bytes() && same_as_redis_list(push.args(), data)
        }
        (Frame::Push(_), _) => false,
        (Frame::Reply(value), _) => same_as_redis(value, other),
    }
}

fn same_as_redis_list(items: &[Value], others: &[redis::Value]) -> bool {
    items.len() == others.len() && items.iter().zip(others).all(|(item, other)| same_as_redis(item, other))
}

fn same_as_redis(value: &Value, other: &redis::Value) -> bool {
    match (value, other) {
        (value, redis::Value::Attribute { data, .. }) => same_as_redis(value, data),
        (Value::Null, redis::Value::Nil) => true,
        (Value::Boolean(a), redis::Value::Boolean(b)) => a == b,
        (Value::Integer(a), redis::Value::Int(b)) => a == b,
        (Value::Double(a), redis::Value::Double(b)) => same_double(*a, *b),
        (Value::SimpleString(a), redis::Value::Okay) => a == "OK",
        (Value::SimpleString(a), redis::Value::SimpleString(b)) => a == b.as_str(),
        (Value::BulkString(a), redis::Value::BulkString(b))
        | (Value::BigNumber(a), redis::Value::BigNumber(b)) => **a == b[..],
        (Value::Error(a) | Value::BulkError(a), redis::Value::ServerError(b)) => {
            let text = String::from_utf8_lossy(a);
            let mut pieces = text.splitn(2, ' ');
            let code = pieces.next().unwrap_or_default();
            // The redis crate renames `ERR`.
            (code == b.code() || code == "ERR") && pieces.next() == b.details()
        }
        (Value::Verbatim { format, text }, redis::Value::VerbatimString { format: other, text: b }) => {
            let other = match other {
                redis::VerbatimFormat::Text => "txt",
                redis::VerbatimFormat::Markdown => "mkd",
                redis::VerbatimFormat::Unknown(name) => name,
                _ => return false,
            };
            let strange = format.contains(&b':') || !format.is_ascii();
            strange || (format == other.as_bytes() && String::from_utf8_lossy(text) == *b)
        }
        (Value::Array(items), redis::Value::Array(others))
        | (Value::Set(items), redis::Value::Set(others)) => same_as_redis_list(items, others),
        (Value::Map(pairs), redis::Value::Map(others)) => {
            pairs.len() == others.len()
                && pairs.iter().zip(others).all(|((key, value), (other_key, other))| {
                    same_as_redis(key, other_key) && same_as_redis(value, other)
                })
        }
        _ => false,
    }
}

fn same_double(a: f64, b: f64) -> bool {
    a == b || (a.is_nan() && b.is_nan())
}

fn contains(bytes: &[u8], needle: &[u8]) -> bool {
    bytes.windows(needle.len()).any(|window| window == needle)
}
