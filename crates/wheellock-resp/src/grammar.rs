//! Grammar of single tokens: numbers, lines and lengths.
//!
//! It does not know frames, nesting or state. Every function reads the bytes after a type byte. The outcome is the token and its length, or
//! an incomplete token, or an error at an index. The result depends only on the bytes. A decoder that retries with more bytes therefore
//! gets the same error at the same place, however the bytes were split.

use crate::blob::Window;
use crate::{Blob, ErrorKind, LimitKind, Value};

/// A token and the number of its bytes, or `None` if the token is incomplete.
pub(crate) type Scan<T> = Result<Option<(T, usize)>, Bad>;

/// An error, and the index of the byte that shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bad {
    pub(crate) kind: ErrorKind,
    pub(crate) at: usize,
}

/// A short, complete, well-formed scalar reply of a common kind.
///
/// It holds only the position of the payload. The value is thus built once, at its final place. Moving 32 bytes that were just written in
/// pieces costs more than reading the reply.
#[derive(Clone, Copy)]
pub(crate) enum Short {
    Null,
    Integer(i64),
    /// A simple string after the type byte.
    Line {
        len: u8,
    },
    /// A bulk string after a header.
    Bulk {
        header: u8,
        len: u8,
    },
}

impl Short {
    /// Finds a short scalar at the front of `bytes`, and the number of its bytes.
    ///
    /// If this returns `None`, the functions below read the bytes again and find the reason. This reads at most a header and
    /// [`Blob::INLINE`] bytes, so a `None` has a constant cost.
    #[inline(always)]
    pub(crate) fn find(bytes: &[u8]) -> Option<(Self, usize)> {
        match *bytes {
            [b':', ref rest @ ..] => Self::integer(rest),
            [b'$', ones @ b'0'..=b'9', b'\r', b'\n', ref rest @ ..] => Self::bulk(rest, ones - b'0', 4),
            [b'$', tens @ b'1'..=b'2', ones @ b'0'..=b'9', b'\r', b'\n', ref rest @ ..] => {
                Self::bulk(rest, (tens - b'0') * 10 + (ones - b'0'), 5)
            }
            [b'+', b'O', b'K', b'\r', b'\n', ..] => Some((Self::Line { len: 2 }, 5)),
            [b'+', ref rest @ ..] => Self::line(rest),
            [b'_', b'\r', b'\n', ..] => Some((Self::Null, 3)),
            _ => None,
        }
    }

    /// Builds the value from the bytes in which it was found.
    #[inline(always)]
    pub(crate) fn value(self, bytes: &[u8]) -> Value {
        match self {
            Self::Null => Value::Null,
            Self::Integer(number) => Value::Integer(number),
            Self::Line { len } => Value::SimpleString(Window::load(bytes, 1).blob(len)),
            Self::Bulk { header, len } => Value::BulkString(Window::load(bytes, header.into()).blob(len)),
        }
    }

    #[inline(always)]
    fn bulk(rest: &[u8], len: u8, header: u8) -> Option<(Self, usize)> {
        let end = usize::from(len);
        if end > Blob::INLINE || rest.get(end..end + 2)? != b"\r\n" {
            return None;
        }
        Some((Self::Bulk { header, len }, usize::from(header) + end + 2))
    }

    #[inline(always)]
    fn integer(rest: &[u8]) -> Option<(Self, usize)> {
        let (negative, digits) = match *rest {
            [b'-', ref digits @ ..] => (true, digits),
            _ => (false, rest),
        };
        let mut number: i64 = 0;
        // 18 digits cannot overflow.
        for (at, &byte) in digits.iter().take(19).enumerate() {
            let digit = byte.wrapping_sub(b'0');
            if digit < 10 && at < 18 {
                number = number * 10 + i64::from(digit);
            } else if byte == b'\r' && at > 0 && digits.get(at + 1) == Some(&b'\n') {
                let signed = if negative { -number } else { number };
                return Some((Self::Integer(signed), 1 + usize::from(negative) + at + 2));
            } else {
                return None;
            }
        }
        None
    }

    #[inline]
    fn line(rest: &[u8]) -> Option<(Self, usize)> {
        let window = rest.get(..=Blob::INLINE).unwrap_or(rest);
        let at = window.iter().position(|byte| matches!(byte, b'\r' | b'\n'))?;
        if rest.get(at..at + 2)? != b"\r\n" {
            return None;
        }
        let len = u8::try_from(at).ok()?;
        Some((Self::Line { len }, 1 + at + 2))
    }
}

/// Reads the number after `$`, `*` and the other length prefixes: `0`, or digits without a leading zero. `-1` becomes `None`.
pub(crate) fn length(bytes: &[u8]) -> Scan<Option<u64>> {
    let Some(&first) = bytes.first() else { return Ok(None) };
    if first == b'-' {
        return match bytes.get(1) {
            None => Ok(None),
            Some(b'1') => ended(bytes, 2, None),
            Some(_) => Err(Bad { kind: ErrorKind::Length, at: 1 }),
        };
    }
    let mut number: i64 = 0;
    for (at, &byte) in bytes.iter().enumerate() {
        let digit = byte.wrapping_sub(b'0');
        if digit >= 10 {
            if at == 0 {
                return Err(Bad { kind: ErrorKind::Length, at });
            }
            if byte == b'\r' || byte == b'\n' {
                return ended(bytes, at, Some(number.unsigned_abs()));
            }
            return Err(Bad { kind: ErrorKind::Length, at });
        }
        if at > 0 && first == b'0' {
            return Err(Bad { kind: ErrorKind::Length, at });
        }
        number = number
            .checked_mul(10)
            .and_then(|tens| tens.checked_add(i64::from(digit)))
            .ok_or(Bad { kind: ErrorKind::Length, at })?;
    }
    Ok(None)
}

/// Reads the number after `:`, an optional sign and at least one digit.
pub(crate) fn integer(bytes: &[u8]) -> Scan<i64> {
    let bad = |at| Bad { kind: ErrorKind::Integer, at };
    let Some(&first) = bytes.first() else { return Ok(None) };
    let negative = first == b'-';
    let signed = usize::from(negative || first == b'+');
    let mut number: i64 = 0;
    for (at, &byte) in bytes.iter().enumerate().skip(signed) {
        let digit = byte.wrapping_sub(b'0');
        if digit >= 10 {
            if at > signed && (byte == b'\r' || byte == b'\n') {
                return ended(bytes, at, number);
            }
            return Err(bad(at));
        }
        // Leading zeros are legal, but an endless line of them must be an error.
        if at - signed >= INTEGER_DIGITS {
            return Err(bad(at));
        }
        // Accumulate negative numbers downwards: the smallest number has no positive counterpart.
        let digit = i64::from(digit);
        let tens = number.checked_mul(10).ok_or(bad(at))?;
        number = if negative { tens.checked_sub(digit) } else { tens.checked_add(digit) }.ok_or(bad(at))?;
    }
    Ok(None)
}

/// Reads the rest of `#t` and `#f` after the type byte.
pub(crate) fn boolean(bytes: &[u8]) -> Scan<bool> {
    match bytes.first() {
        None => Ok(None),
        Some(b't') => ended(bytes, 1, true),
        Some(b'f') => ended(bytes, 1, false),
        Some(_) => Err(Bad { kind: ErrorKind::Boolean, at: 0 }),
    }
}

/// Reads the rest of `_` after the type byte: only the line ending.
pub(crate) fn null(bytes: &[u8]) -> Scan<()> {
    match bytes.first() {
        Some(byte) if !matches!(byte, b'\r' | b'\n') => Err(Bad { kind: ErrorKind::Null, at: 0 }),
        _ => ended(bytes, 0, ()),
    }
}

/// Reads a line of at most `limit` bytes, and returns it without its end. The first `searched` bytes must contain no CR or LF. On `None`
/// the caller may count all bytes as searched, except a CR at the very end.
///
/// An error at index 0 reports a line over the limit; the caller reports it at the type byte.
pub(crate) fn line(bytes: &[u8], searched: usize, limit: usize) -> Scan<&[u8]> {
    let window = bytes.get(..limit.saturating_add(1)).unwrap_or(bytes);
    match find_break(window, searched) {
        Some(at) => Ok(ended(bytes, at, ())?.map(|((), used)| (bytes.get(..at).unwrap_or_default(), used))),
        None if bytes.len() > limit => Err(Bad { kind: ErrorKind::Limit(LimitKind::Line), at: 0 }),
        None => Ok(None),
    }
}

/// Parses a whole line as a double: `[+-]digits[.digits][e[+-]digits]`, `inf`, `nan`. A number that is too large becomes infinite, as in C.
pub(crate) fn double(line: &[u8]) -> Result<f64, Bad> {
    let bad = |at| Bad { kind: ErrorKind::Double, at };
    let signed = usize::from(matches!(line.first(), Some(b'+' | b'-')));
    let unsigned = line.get(signed..).unwrap_or_default();
    if unsigned != b"inf" && unsigned != b"nan" {
        // A server's printf may write `-nan`; Rust parses it, as it parses `inf` and `nan`.
        let digits = |from: usize| line.iter().skip(from).take_while(|byte| byte.is_ascii_digit()).count();
        let mut at = signed + digits(signed);
        if at == signed {
            return Err(bad(at));
        }
        if line.get(at) == Some(&b'.') {
            at += 1 + digits(at + 1);
        }
        if matches!(line.get(at), Some(b'e' | b'E')) {
            at += 1 + usize::from(matches!(line.get(at + 1), Some(b'+' | b'-')));
            let exponent = digits(at);
            at += exponent;
            if exponent == 0 {
                return Err(bad(at));
            }
        }
        if at < line.len() {
            return Err(bad(at));
        }
    }
    std::str::from_utf8(line).ok().and_then(|text| text.parse().ok()).ok_or(bad(0))
}

/// Checks that a whole line is a big number: an optional sign and at least one digit.
pub(crate) fn big_number(line: &[u8]) -> Result<(), Bad> {
    let signed = usize::from(matches!(line.first(), Some(b'+' | b'-')));
    let digits = line.iter().skip(signed).take_while(|byte| byte.is_ascii_digit()).count();
    if digits == 0 || signed + digits < line.len() {
        return Err(Bad { kind: ErrorKind::BigNumber, at: signed + digits });
    }
    Ok(())
}

/// Expects CR LF at `at`, which ends the token.
pub(crate) fn ended<T>(bytes: &[u8], at: usize, token: T) -> Scan<T> {
    match (bytes.get(at), bytes.get(at + 1)) {
        (None, _) | (Some(b'\r'), None) => Ok(None),
        (Some(b'\r'), Some(b'\n')) => Ok(Some((token, at + 2))),
        (Some(b'\r'), Some(_)) => Err(Bad { kind: ErrorKind::LineEnding, at: at + 1 }),
        (Some(_), _) => Err(Bad { kind: ErrorKind::LineEnding, at }),
    }
}

/// Returns the index of the first CR or LF from `from` on.
fn find_break(bytes: &[u8], from: usize) -> Option<usize> {
    let from = from.min(bytes.len());
    let rest = bytes.get(from..)?;
    rest.iter().position(|byte| matches!(byte, b'\r' | b'\n')).map(|at| from + at)
}

/// Maximum digits of an integer, leading zeros included. The largest integer has 19 digits.
const INTEGER_DIGITS: usize = 20;
