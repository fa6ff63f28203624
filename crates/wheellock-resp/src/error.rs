//! Errors of a RESP stream: kind and offset.

use std::fmt;

/// A violation of the protocol or of a [limit](crate::Limits), and the offset of the byte at which it happened.
///
/// Every error is fatal to the stream. After a framing error the decoder cannot know where the next frame begins. The decoder returns the
/// same error for ever, and the caller must close the connection. Kind and offset depend only on the bytes, not on how they were split into
/// reads.
///
/// ```
/// use bytes::BytesMut;
/// use wheellock_resp::{Decoder, ErrorKind, Limits};
///
/// let mut decoder = Decoder::new(Limits::default());
/// let error = decoder.decode(&mut BytesMut::from("HTTP/1.1 400 Bad Request\r\n")).unwrap_err();
/// assert_eq!((error.kind(), error.offset()), (ErrorKind::UnknownType(b'H'), 0));
/// assert_eq!(error.to_string(), "invalid RESP at byte 0: no type begins with 'H' (0x48)");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Error {
    kind: ErrorKind,
    offset: u64,
}

impl Error {
    pub(crate) const fn new(kind: ErrorKind, offset: u64) -> Self {
        Self { kind, offset }
    }

    /// Returns the kind of the violation.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Returns the offset: the number of bytes before the offending byte, since the decoder was created. For a limit it is the offset of
    /// the type byte of the value that exceeded the limit.
    #[must_use]
    pub const fn offset(&self) -> u64 {
        self.offset
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "invalid RESP at byte {}: {}", self.offset, self.kind)
    }
}

impl std::error::Error for Error {}

/// The kind of a violation.
///
/// ```
/// use bytes::BytesMut;
/// use wheellock_resp::{Decoder, ErrorKind, Limits};
///
/// let error = Decoder::new(Limits::default()).decode(&mut BytesMut::from(":1.5\r\n")).unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::Integer);
/// assert_eq!(error.kind().to_string(), "not a 64-bit integer");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A value began with a byte that is not a RESP type.
    UnknownType(u8),
    /// A streamed type (`$?`, `*?`, `~?`, `%?`, `>?`, `|?`, `;`, `.`). It is legal RESP3, but no server sends it and this codec does not
    /// read it. Carries the type byte.
    Unsupported(u8),
    /// CR LF was missing, or a CR or LF was at a place where it is not allowed.
    LineEnding,
    /// A length was not `0` or digits without a leading zero (or `-1` after `$` and `*`), or did not fit 64 bits.
    Length,
    /// An integer was not an optional sign and digits, or did not fit 64 bits.
    Integer,
    /// A double was not a decimal number, `inf`, `-inf` or `nan`.
    Double,
    /// A big number was not an optional sign and digits.
    BigNumber,
    /// A boolean was neither `#t` nor `#f`.
    Boolean,
    /// A null had bytes after its `_`.
    Null,
    /// A verbatim string did not begin with three bytes of format and a colon.
    Verbatim,
    /// A push message was empty, or its first element was not a string.
    PushKind,
    /// A push message began inside another value.
    PushInside,
    /// A value exceeded one of the [`Limits`](crate::Limits).
    Limit(LimitKind),
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::UnknownType(byte) => write!(f, "no type begins with {}", Byte(byte)),
            Self::Unsupported(byte) => write!(f, "streamed types are not supported (type {})", Byte(byte)),
            Self::LineEnding => f.write_str("expected CR LF, and no CR or LF before it"),
            Self::Length => f.write_str("not a length"),
            Self::Integer => f.write_str("not a 64-bit integer"),
            Self::Double => f.write_str("not a double"),
            Self::BigNumber => f.write_str("not a big number"),
            Self::Boolean => f.write_str("not a boolean"),
            Self::Null => f.write_str("not a null"),
            Self::Verbatim => f.write_str("verbatim string without a format"),
            Self::PushKind => f.write_str("push message that does not begin with a string"),
            Self::PushInside => f.write_str("push message inside another value"),
            Self::Limit(kind) => write!(f, "over the limit of {kind}"),
        }
    }
}

/// The limit of [`Limits`](crate::Limits) that was exceeded.
///
/// ```
/// use bytes::BytesMut;
/// use wheellock_resp::{Decoder, ErrorKind, LimitKind, Limits};
///
/// let mut decoder = Decoder::new(Limits { bulk: 1024, ..Limits::default() });
/// let error = decoder.decode(&mut BytesMut::from("$1025\r\n")).unwrap_err(); // before any of it has arrived
/// assert_eq!(error.kind(), ErrorKind::Limit(LimitKind::Bulk));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LimitKind {
    /// [`Limits::depth`](crate::Limits::depth).
    Depth,
    /// [`Limits::bulk`](crate::Limits::bulk).
    Bulk,
    /// [`Limits::elements`](crate::Limits::elements).
    Elements,
    /// [`Limits::line`](crate::Limits::line).
    Line,
    /// [`Limits::frame`](crate::Limits::frame).
    Frame,
}

impl fmt::Display for LimitKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Depth => "nested aggregates (Limits::depth)",
            Self::Bulk => "bytes in a bulk (Limits::bulk)",
            Self::Elements => "values in a frame (Limits::elements)",
            Self::Line => "bytes in a line (Limits::line)",
            Self::Frame => "bytes in a frame (Limits::frame)",
        })
    }
}

/// A byte for error messages: as a character if printable, and always as a number.
struct Byte(u8);

impl fmt::Display for Byte {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_ascii_graphic() {
            write!(f, "'{}' (0x{:02x})", char::from(self.0), self.0)
        } else {
            write!(f, "0x{:02x}", self.0)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_say_what_and_where() {
        let text = |kind| Error::new(kind, 17).to_string();
        assert_eq!(
            text(ErrorKind::UnknownType(b'H')),
            "invalid RESP at byte 17: no type begins with 'H' (0x48)"
        );
        assert_eq!(text(ErrorKind::UnknownType(0)), "invalid RESP at byte 17: no type begins with 0x00");
        assert_eq!(
            text(ErrorKind::Limit(LimitKind::Bulk)),
            "invalid RESP at byte 17: over the limit of bytes in a bulk (Limits::bulk)"
        );
    }
}
