//! Decoded messages: values, pushes and frames.

use bytes::Bytes;

use crate::Blob;

/// One complete message from a server.
///
/// ```
/// use bytes::BytesMut;
/// use wheellock_resp::{Decoder, Frame, Limits, Value};
///
/// let mut decoder = Decoder::new(Limits::default());
/// let mut bytes = BytesMut::from(">2\r\n+invalidate\r\n_\r\n+OK\r\n");
/// while let Some(frame) = decoder.decode(&mut bytes)? {
///     match frame {
///         Frame::Push(push) => assert_eq!(push.kind(), b"invalidate"), // answers nobody
///         Frame::Reply(reply) => assert_eq!(reply, Value::SimpleString("OK".into())),
///     }
/// }
/// # Ok::<(), wheellock_resp::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub enum Frame {
    /// The reply to a command. Replies arrive in the order of the commands.
    Reply(Value),
    /// Out-of-band data, not a reply to any command.
    Push(Push),
}

/// A RESP2 or RESP3 value, 32 bytes in size.
///
/// The codec does not interpret values: `+OK` is a simple string. An error is an ordinary value, because an array may contain errors.
/// RESP2's null bulk string and null array are [`Value::Null`].
///
/// Cloning, comparing, printing, encoding and dropping recurse once per level of nesting. For decoded values,
/// [`Limits::MAX_DEPTH`](crate::Limits::MAX_DEPTH) bounds the nesting.
///
/// ```
/// use wheellock_resp::Value;
///
/// let hello = Value::Map(vec![("server".into(), "redis".into()), ("proto".into(), 3.into())]);
/// assert_eq!(hello.get("proto").and_then(Value::as_i64), Some(3));
/// assert_eq!(hello.get("server").and_then(Value::as_str), Some("redis"));
/// assert_eq!(hello.type_name(), "map");
/// ```
#[derive(Debug, Clone, PartialEq, Default)]
pub enum Value {
    /// `_`, `$-1` or `*-1`.
    #[default]
    Null,
    /// `#t` or `#f`.
    Boolean(bool),
    /// `:` A signed 64-bit integer.
    Integer(i64),
    /// `,` A double, including infinity and not-a-number.
    Double(f64),
    /// `+` A short string without line breaks, such as `OK`.
    SimpleString(Blob),
    /// `-` An error without line breaks.
    Error(Blob),
    /// `$` A byte string.
    BulkString(Blob),
    /// `!` An error that may contain any byte.
    BulkError(Blob),
    /// `=` A text and its format.
    Verbatim {
        /// Three bytes such as `txt` or `mkd`.
        format: [u8; 3],
        /// The text, without the format and its colon.
        text: Blob,
    },
    /// `(` An integer of any size: its decimal digits with an optional sign.
    BigNumber(Blob),
    /// `*` Values in order.
    Array(Vec<Self>),
    /// `~` Values without an order. The received order and duplicates are kept.
    Set(Vec<Self>),
    /// `%` Pairs of key and value. The received order and duplicates are kept.
    Map(Vec<(Self, Self)>),
}

impl Value {
    /// Returns the bytes of a string of any kind: simple, bulk or verbatim. Errors are not strings; see [`Value::as_error`].
    #[inline]
    #[must_use]
    pub fn as_bytes(&self) -> Option<&[u8]> {
        match self {
            Self::SimpleString(blob) | Self::BulkString(blob) | Self::Verbatim { text: blob, .. } => {
                Some(blob)
            }
            _ => None,
        }
    }

    /// Returns the text of a string of any kind, if it is UTF-8.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        std::str::from_utf8(self.as_bytes()?).ok()
    }

    /// Returns the bytes of a string of any kind. Only inline bytes are copied; see [`Blob`].
    #[must_use]
    pub fn into_bytes(self) -> Option<Bytes> {
        match self {
            Self::SimpleString(blob) | Self::BulkString(blob) | Self::Verbatim { text: blob, .. } => {
                Some(blob.into())
            }
            _ => None,
        }
    }

    /// Returns the number of an integer.
    #[inline]
    #[must_use]
    pub fn as_i64(&self) -> Option<i64> {
        match self {
            Self::Integer(number) => Some(*number),
            _ => None,
        }
    }

    /// Returns the number of a double.
    #[must_use]
    pub fn as_f64(&self) -> Option<f64> {
        match self {
            Self::Double(number) => Some(*number),
            _ => None,
        }
    }

    /// Returns the value of a boolean.
    #[must_use]
    pub fn as_bool(&self) -> Option<bool> {
        match self {
            Self::Boolean(truth) => Some(*truth),
            _ => None,
        }
    }

    /// Returns the bytes of an error, simple or bulk.
    #[inline]
    #[must_use]
    pub fn as_error(&self) -> Option<&[u8]> {
        match self {
            Self::Error(blob) | Self::BulkError(blob) => Some(blob),
            _ => None,
        }
    }

    /// Returns true if this is an error, simple or bulk.
    #[must_use]
    pub fn is_error(&self) -> bool {
        matches!(self, Self::Error(_) | Self::BulkError(_))
    }

    /// Returns true if this is null.
    #[inline]
    #[must_use]
    pub fn is_null(&self) -> bool {
        matches!(self, Self::Null)
    }

    /// Returns the values of an array.
    #[must_use]
    pub fn as_array(&self) -> Option<&[Self]> {
        match self {
            Self::Array(items) => Some(items),
            _ => None,
        }
    }

    /// Returns the values of a set.
    #[must_use]
    pub fn as_set(&self) -> Option<&[Self]> {
        match self {
            Self::Set(items) => Some(items),
            _ => None,
        }
    }

    /// Returns the pairs of a map.
    #[must_use]
    pub fn as_map(&self) -> Option<&[(Self, Self)]> {
        match self {
            Self::Map(pairs) => Some(pairs),
            _ => None,
        }
    }

    /// Returns the value of the first key in a map that is the string `key`. The search is linear.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Self> {
        self.as_map()?
            .iter()
            .find(|(name, _)| name.as_bytes() == Some(key.as_bytes()))
            .map(|(_, value)| value)
    }

    /// Returns the name of the type, for messages about a reply of the wrong type.
    #[must_use]
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Boolean(_) => "boolean",
            Self::Integer(_) => "integer",
            Self::Double(_) => "double",
            Self::SimpleString(_) => "simple string",
            Self::Error(_) => "simple error",
            Self::BulkString(_) => "bulk string",
            Self::BulkError(_) => "bulk error",
            Self::Verbatim { .. } => "verbatim string",
            Self::BigNumber(_) => "big number",
            Self::Array(_) => "array",
            Self::Set(_) => "set",
            Self::Map(_) => "map",
        }
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Self::Integer(number)
    }
}

impl From<&str> for Value {
    /// Creates a bulk string.
    fn from(text: &str) -> Self {
        Self::BulkString(text.into())
    }
}

impl From<&[u8]> for Value {
    /// Creates a bulk string.
    fn from(bytes: &[u8]) -> Self {
        Self::BulkString(bytes.into())
    }
}

/// `>` A message that the server sends on its own: a kind and its arguments.
///
/// The first element is always a string, so [`Push::kind`] always returns a kind; see [`Push::new`].
///
/// ```
/// use wheellock_resp::{Push, Value};
///
/// let push = Push::new(vec!["message".into(), "news".into(), "it rains".into()]).expect("it begins with a string");
/// assert_eq!(push.kind(), b"message");
/// assert_eq!(push.args()[1].as_str(), Some("it rains"));
/// assert_eq!(Push::new(vec![Value::Integer(1)]), None);
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Push(Vec<Value>);

impl Push {
    /// Creates a push from these elements. Returns `None` if the first element is not a string.
    #[must_use]
    pub fn new(elements: Vec<Value>) -> Option<Self> {
        elements.first()?.as_bytes()?;
        Some(Self(elements))
    }

    /// Returns the kind of the message: `message`, `subscribe`, `invalidate` and so on.
    #[must_use]
    pub fn kind(&self) -> &[u8] {
        self.0.first().and_then(Value::as_bytes).unwrap_or_default()
    }

    /// Returns the elements after the kind.
    #[must_use]
    pub fn args(&self) -> &[Value] {
        self.0.get(1..).unwrap_or_default()
    }

    /// Returns all elements, the kind included.
    #[must_use]
    pub fn elements(&self) -> &[Value] {
        &self.0
    }

    /// Returns all elements, the kind included.
    #[must_use]
    pub fn into_elements(self) -> Vec<Value> {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_what_the_documentation_says() {
        assert_eq!(size_of::<Value>(), 32);
        assert_eq!(size_of::<Frame>(), 32);
        assert_eq!(size_of::<Result<Option<Frame>, crate::Error>>(), 32);
    }

    #[test]
    fn a_push_begins_with_a_string() {
        assert_eq!(Push::new(vec![]), None);
        assert_eq!(Push::new(vec![Value::Integer(1)]), None);
        assert_eq!(Push::new(vec![Value::Error("ERR".into())]), None);
        let push = Push::new(vec![Value::BulkString("message".into()), Value::Integer(1)]).unwrap();
        assert_eq!(push.kind(), b"message");
        assert_eq!(push.args(), [Value::Integer(1)]);
        assert_eq!(push.elements().len(), 2);
        assert_eq!(push.into_elements().len(), 2);
    }

    #[test]
    fn accessors_answer_for_their_type_alone() {
        let text = Value::Verbatim { format: *b"txt", text: "hi".into() };
        assert_eq!(text.as_str(), Some("hi"));
        assert_eq!(text.into_bytes().as_deref(), Some(&b"hi"[..]));
        assert_eq!(Value::Error("ERR".into()).as_bytes(), None);
        assert_eq!(Value::BulkError("ERR".into()).as_error(), Some(&b"ERR"[..]));
        assert_eq!(Value::Boolean(true).as_i64(), None);
        assert_eq!(Value::Boolean(true).as_bool(), Some(true));
        let map = Value::Map(vec![("proto".into(), 3.into()), (1.into(), 2.into())]);
        assert_eq!(map.get("proto").and_then(Value::as_i64), Some(3));
        assert_eq!(map.get("role"), None);
    }
}
