//! Encoding of values and frames as RESP3.
//!
//! Commands have a module of their own.

use bytes::BytesMut;

use crate::command::{put_bulk, put_header};
use crate::number::Decimal;
use crate::{Frame, Push, Value};

impl Value {
    /// Appends the value as RESP3.
    ///
    /// A decoded value encodes to the same value again, but not always to the same bytes. RESP2's nulls become `_`, and numbers take their
    /// shortest form. A line cannot contain CR or LF. In simple strings, simple errors and big numbers that were not decoded, these bytes
    /// become spaces.
    pub fn encode(&self, out: &mut BytesMut) {
        match self {
            Self::Null => out.extend_from_slice(b"_\r\n"),
            Self::Boolean(true) => out.extend_from_slice(b"#t\r\n"),
            Self::Boolean(false) => out.extend_from_slice(b"#f\r\n"),
            Self::Integer(number) => put_line(out, b':', Decimal::new(*number).as_bytes()),
            Self::Double(number) => put_double(out, *number),
            Self::SimpleString(text) => put_line(out, b'+', text),
            Self::Error(text) => put_line(out, b'-', text),
            Self::BulkString(bytes) => put_bulk(out, bytes),
            Self::BulkError(bytes) => {
                put_header(out, b'!', bytes.len());
                out.extend_from_slice(bytes);
                out.extend_from_slice(b"\r\n");
            }
            Self::Verbatim { format, text } => {
                put_header(out, b'=', format.len() + 1 + text.len());
                out.extend_from_slice(format);
                out.extend_from_slice(b":");
                out.extend_from_slice(text);
                out.extend_from_slice(b"\r\n");
            }
            Self::BigNumber(digits) => put_line(out, b'(', digits),
            Self::Array(items) => put_list(out, b'*', items),
            Self::Set(items) => put_list(out, b'~', items),
            Self::Map(pairs) => {
                put_header(out, b'%', pairs.len());
                for (key, value) in pairs {
                    key.encode(out);
                    value.encode(out);
                }
            }
        }
    }
}

impl Push {
    /// Appends the push as RESP3.
    pub fn encode(&self, out: &mut BytesMut) {
        put_list(out, b'>', self.elements());
    }
}

impl Frame {
    /// Appends the frame as RESP3.
    pub fn encode(&self, out: &mut BytesMut) {
        match self {
            Self::Reply(value) => value.encode(out),
            Self::Push(push) => push.encode(out),
        }
    }
}

fn put_list(out: &mut BytesMut, kind: u8, items: &[Value]) {
    put_header(out, kind, items.len());
    for item in items {
        item.encode(out);
    }
}

fn put_line(out: &mut BytesMut, kind: u8, text: &[u8]) {
    out.reserve(text.len() + 3);
    out.extend_from_slice(&[kind]);
    let start = out.len();
    out.extend_from_slice(text);
    for byte in out.iter_mut().skip(start) {
        if matches!(byte, b'\r' | b'\n') {
            *byte = b' ';
        }
    }
    out.extend_from_slice(b"\r\n");
}

fn put_double(out: &mut BytesMut, number: f64) {
    let text = if number.is_nan() {
        "nan".to_owned()
    } else if number.is_infinite() {
        if number > 0.0 { "inf" } else { "-inf" }.to_owned()
    } else if number == 0.0 || (1e-5..1e17).contains(&number.abs()) {
        format!("{number}")
    } else {
        // In positional notation a double can have more than 300 digits.
        format!("{number:e}")
    };
    put_line(out, b',', text.as_bytes());
}
