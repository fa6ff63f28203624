//! Encoding of commands as arrays of bulk strings.
//!
//! The encoded length is known before a byte is written. The module does not know any command by name.

use std::fmt;

use bytes::BytesMut;

use crate::number::{self, Decimal};
use crate::writer::Writer;

/// One borrowed argument of a command.
///
/// ```
/// use wheellock_resp::{Arg, Command};
///
/// let lease: Arg<'_> = 30_000_u64.into(); // its digits are written when the command is
/// let owner: Arg<'_> = "9b1d:7".into();
/// let command = Command::new("HSET").arg("orders:42").args([owner, lease]);
/// assert_eq!(command.iter().count(), 4); // the name is one of them
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Arg<'a> {
    /// Any bytes, including CR, LF and NUL: an argument is sent with its length.
    Bytes(&'a [u8]),
    /// A number, sent as its decimal digits.
    Int(i64),
    /// A number, sent as its decimal digits. Most commands reject numbers above `i64::MAX`.
    Uint(u64),
}

impl Arg<'_> {
    /// Returns the number of bytes of the argument itself, without its header.
    #[inline]
    fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Int(number) => number::signed_digits(*number),
            Self::Uint(number) => number::digits(*number),
        }
    }

    /// Returns the number of bytes of the encoded argument, its header included.
    #[inline]
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        let len = self.len();
        1 + number::digits(len as u64) + 2 + len + 2
    }

    /// Returns an upper bound of [`encoded_len`](Self::encoded_len) that is faster to compute. It is valid for arguments up to [`SHORT`].
    #[inline]
    fn most(&self) -> usize {
        match self {
            Self::Bytes(bytes) => HEADER + bytes.len() + 2,
            Self::Int(_) | Self::Uint(_) => HEADER + 20 + 2,
        }
    }

    // By reference: copying an argument that was just written in pieces costs more than everything after it.
    #[expect(
        clippy::inline_always,
        reason = "left to itself the compiler stopped at the second caller: 285 instructions per lock"
    )]
    #[inline(always)]
    fn write<'w>(&self, out: Writer<'w>) -> Writer<'w> {
        match self {
            Self::Bytes(bytes) => out.bulk(bytes),
            Self::Int(number) => out.number(*number < 0, number.unsigned_abs()),
            Self::Uint(number) => out.number(false, *number),
        }
    }

    fn put(&self, out: &mut BytesMut) {
        match self {
            Self::Bytes(bytes) => put_bulk(out, bytes),
            Self::Int(number) => put_bulk(out, Decimal::new(*number).as_bytes()),
            Self::Uint(number) => put_bulk(out, Decimal::unsigned(*number).as_bytes()),
        }
    }
}

impl fmt::Debug for Arg<'_> {
    /// Shows only the length of bytes: an argument may be a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => write!(f, "Bytes({} bytes)", bytes.len()),
            Self::Int(number) => write!(f, "Int({number})"),
            Self::Uint(number) => write!(f, "Uint({number})"),
        }
    }
}

impl<'a> From<&'a [u8]> for Arg<'a> {
    #[inline]
    fn from(bytes: &'a [u8]) -> Self {
        Self::Bytes(bytes)
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for Arg<'a> {
    #[inline]
    fn from(bytes: &'a [u8; N]) -> Self {
        Self::Bytes(bytes)
    }
}

impl<'a> From<&'a str> for Arg<'a> {
    #[inline]
    fn from(text: &'a str) -> Self {
        Self::Bytes(text.as_bytes())
    }
}

impl<'a> From<&'a String> for Arg<'a> {
    #[inline]
    fn from(text: &'a String) -> Self {
        Self::Bytes(text.as_bytes())
    }
}

impl<'a> From<&'a Vec<u8>> for Arg<'a> {
    #[inline]
    fn from(bytes: &'a Vec<u8>) -> Self {
        Self::Bytes(bytes)
    }
}

impl<'a> From<&'a bytes::Bytes> for Arg<'a> {
    #[inline]
    fn from(bytes: &'a bytes::Bytes) -> Self {
        Self::Bytes(bytes)
    }
}

impl<'a> From<&'a crate::Blob> for Arg<'a> {
    #[inline]
    fn from(blob: &'a crate::Blob) -> Self {
        Self::Bytes(blob)
    }
}

impl<'a> From<&Self> for Arg<'a> {
    #[inline]
    fn from(arg: &Self) -> Self {
        *arg
    }
}

impl From<i64> for Arg<'_> {
    #[inline]
    fn from(number: i64) -> Self {
        Self::Int(number)
    }
}

impl From<i32> for Arg<'_> {
    #[inline]
    fn from(number: i32) -> Self {
        Self::Int(number.into())
    }
}

impl From<u32> for Arg<'_> {
    #[inline]
    fn from(number: u32) -> Self {
        Self::Int(number.into())
    }
}

impl From<u16> for Arg<'_> {
    #[inline]
    fn from(number: u16) -> Self {
        Self::Int(number.into())
    }
}

impl From<u8> for Arg<'_> {
    #[inline]
    fn from(number: u8) -> Self {
        Self::Int(number.into())
    }
}

impl From<u64> for Arg<'_> {
    #[inline]
    fn from(number: u64) -> Self {
        Self::Uint(number)
    }
}

impl From<usize> for Arg<'_> {
    #[inline]
    fn from(number: usize) -> Self {
        Self::Uint(number as u64)
    }
}

/// A borrowed command with its arguments, ready to be encoded.
///
/// Up to [`Command::INLINE`] arguments are stored in the value itself, so building and encoding allocate only the buffer.
///
/// ```
/// use bytes::BytesMut;
/// use wheellock_resp::Command;
///
/// let command = Command::new("SET").arg("key").arg(5_i64).args(["PX", "30000"]);
/// let mut out = BytesMut::with_capacity(command.encoded_len());
/// command.encode(&mut out);
/// assert_eq!(&out[..], b"*5\r\n$3\r\nSET\r\n$3\r\nkey\r\n$1\r\n5\r\n$2\r\nPX\r\n$5\r\n30000\r\n");
/// assert_eq!(out.len(), command.encoded_len());
/// ```
#[derive(Clone)]
pub struct Command<'a> {
    name: &'a str,
    /// The first arguments. The command's name is one of them.
    inline: [Arg<'a>; Command::INLINE],
    len: usize,
    /// The arguments that did not fit inline.
    spilled: Vec<Arg<'a>>,
}

impl<'a> Command<'a> {
    /// Maximum number of arguments, the command's name included, without an allocation.
    pub const INLINE: usize = 12;

    /// Creates a command without arguments. A subcommand is an argument: `Command::new("CLIENT").arg("ID")`.
    #[inline]
    #[must_use]
    pub fn new(name: &'a str) -> Self {
        let mut inline = [Arg::Int(0); Self::INLINE];
        inline[0] = name.into();
        Self { name, inline, len: 1, spilled: Vec::new() }
    }

    /// Returns the name as it was given.
    #[inline]
    #[must_use]
    pub fn name(&self) -> &'a str {
        self.name
    }

    /// Returns the command with one more argument.
    #[inline]
    #[must_use]
    pub fn arg(mut self, arg: impl Into<Arg<'a>>) -> Self {
        self.push(arg);
        self
    }

    /// Returns the command with more arguments.
    #[inline]
    #[must_use]
    pub fn args<I>(mut self, args: I) -> Self
    where
        I: IntoIterator,
        I::Item: Into<Arg<'a>>,
    {
        for arg in args {
            self.push(arg);
        }
        self
    }

    /// Adds an argument in place.
    #[inline]
    pub fn push(&mut self, arg: impl Into<Arg<'a>>) {
        match self.inline.get_mut(self.len) {
            Some(place) => *place = arg.into(),
            None => self.spilled.push(arg.into()),
        }
        self.len += 1;
    }

    /// Returns the arguments so far, the command's name first.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = Arg<'a>> + Clone {
        self.iter_ref().copied()
    }

    #[inline]
    fn iter_ref(&self) -> impl Iterator<Item = &Arg<'a>> + Clone {
        self.inline.iter().take(self.len).chain(&self.spilled)
    }

    /// Returns the exact number of bytes that [`encode`](Self::encode) appends.
    #[inline]
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        header_len(self.len) + self.iter_ref().map(Arg::encoded_len).sum::<usize>()
    }

    /// Appends the command to `out`.
    #[inline]
    pub fn encode(&self, out: &mut BytesMut) {
        let front = Front::Count(self.len);
        match self.inline.get(..self.len) {
            // A single slice avoids the chained iterator below, which costs two calls per argument.
            Some(all) => put_all(out, front, all.iter()),
            None => put_all(out, front, self.iter_ref()),
        }
    }
}

impl fmt::Debug for Command<'_> {
    /// Shows the name and the number of arguments, but not their contents: an argument may be a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Command({} +{})", self.name.as_bytes().escape_ascii(), self.len.saturating_sub(1))
    }
}

/// A template for calls of one script by its hash. Its fixed front is encoded once; each call appends the front as one piece, then the keys
/// and arguments.
///
/// ```
/// use bytes::BytesMut;
/// use wheellock_resp::EvalSha;
///
/// let unlock = EvalSha::new("e0e1f9fabfc9d4800c877a703b823ac0578ff8db", 1, 1);
/// let mut out = BytesMut::new();
/// unlock.encode(&mut out, &["orders:42".into(), 30_000_i64.into()])?;
/// assert!(out.starts_with(b"*5\r\n$7\r\nEVALSHA\r\n$40\r\ne0e1"));
/// assert!(out.ends_with(b"$1\r\n1\r\n$9\r\norders:42\r\n$5\r\n30000\r\n"));
/// # Ok::<(), wheellock_resp::ArgCount>(())
/// ```
#[derive(Clone)]
pub struct EvalSha {
    front: Box<[u8]>,
    rest: usize,
}

impl EvalSha {
    /// Creates a template for the script with this SHA-1 (40 hexadecimal digits), called with `keys` keys and `args` other arguments.
    #[must_use]
    pub fn new(sha1_hex: &str, keys: usize, args: usize) -> Self {
        let mut front = BytesMut::new();
        let rest = keys.saturating_add(args);
        Self::begin(sha1_hex, keys, rest, &mut front);
        Self { front: front[..].into(), rest }
    }

    /// Appends the front of a call of the script with this SHA-1: everything before the keys and other arguments. The caller must append
    /// these; there are `rest` of them.
    pub fn begin(sha1_hex: &str, keys: usize, rest: usize, out: &mut BytesMut) {
        put_header(out, b'*', rest.saturating_add(3));
        put_bulk(out, b"EVALSHA");
        put_bulk(out, sha1_hex.as_bytes());
        put_bulk(out, Decimal::unsigned(keys as u64).as_bytes());
    }

    /// Returns the exact number of bytes that [`encode`](Self::encode) appends for these keys and arguments.
    #[must_use]
    pub fn encoded_len(&self, rest: &[Arg<'_>]) -> usize {
        self.front.len() + rest.iter().map(Arg::encoded_len).sum::<usize>()
    }

    /// Appends a call with these keys and arguments, keys first.
    ///
    /// # Errors
    ///
    /// [`ArgCount`] if the length of `rest` differs from the template's count. Nothing is appended then.
    #[inline]
    pub fn encode(&self, out: &mut BytesMut, rest: &[Arg<'_>]) -> Result<(), ArgCount> {
        if rest.len() != self.rest {
            return Err(ArgCount { expected: self.rest, given: rest.len() });
        }
        put_all(out, Front::Encoded(&self.front), rest.iter());
        Ok(())
    }
}

impl fmt::Debug for EvalSha {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EvalSha({} +{})", self.front.escape_ascii(), self.rest)
    }
}

/// The error of a script template that got the wrong number of keys and arguments.
///
/// ```
/// use wheellock_resp::{ArgCount, EvalSha};
///
/// let unlock = EvalSha::new("e0e1f9fabfc9d4800c877a703b823ac0578ff8db", 1, 1);
/// let mut out = bytes::BytesMut::new();
/// let wrong = unlock.encode(&mut out, &["orders:42".into()]);
/// assert_eq!(wrong, Err(ArgCount { expected: 2, given: 1 }));
/// assert!(out.is_empty());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArgCount {
    /// The template's number of keys and arguments.
    pub expected: usize,
    /// The given number of keys and arguments.
    pub given: usize,
}

impl fmt::Display for ArgCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "script takes {} keys and arguments, {} given", self.expected, self.given)
    }
}

impl std::error::Error for ArgCount {}

/// Appends the front of a command and its arguments.
#[expect(clippy::inline_always, reason = "see Arg::write")]
#[inline(always)]
fn put_all<'b, 'a: 'b>(
    out: &mut BytesMut,
    front: Front<'_>,
    args: impl Iterator<Item = &'b Arg<'a>> + Clone,
) {
    let most = front.most() + args.clone().map(Arg::most).sum::<usize>();
    let room = out.capacity() - out.len();
    if most > SHORT || room < most {
        let len = front.len() + args.clone().map(Arg::encoded_len).sum::<usize>();
        // The caller reserved exactly this length; do not reserve more.
        if most > SHORT || room >= len {
            return put_long(out, len, front, args);
        }
        out.reserve(most);
    }
    let end = out.len() + most;
    let mut room = Writer::behind(out, most);
    room = match front {
        Front::Count(count) => room.header(b'*', count),
        Front::Encoded(bytes) => room.bytes(bytes),
    };
    for arg in args {
        room = arg.write(room);
    }
    let left = room.left();
    out.truncate(end - left);
}

/// Appends the command piece by piece into room of the exact size.
#[cold]
fn put_long<'b, 'a: 'b>(
    out: &mut BytesMut,
    len: usize,
    front: Front<'_>,
    args: impl Iterator<Item = &'b Arg<'a>> + Clone,
) {
    out.reserve(len);
    match front {
        Front::Count(count) => put_header(out, b'*', count),
        Front::Encoded(bytes) => out.extend_from_slice(bytes),
    }
    for arg in args {
        arg.put(out);
    }
}

/// The front of a command.
#[derive(Clone, Copy)]
enum Front<'a> {
    /// The number of arguments.
    Count(usize),
    /// A front that is already encoded.
    Encoded(&'a [u8]),
}

impl Front<'_> {
    /// Returns an upper bound of [`len`](Self::len) for a command up to [`SHORT`].
    #[inline]
    fn most(self) -> usize {
        match self {
            Self::Count(_) => HEADER,
            Self::Encoded(bytes) => bytes.len(),
        }
    }

    #[inline]
    fn len(self) -> usize {
        match self {
            Self::Count(count) => header_len(count),
            Self::Encoded(bytes) => bytes.len(),
        }
    }
}

/// The longest header of a command up to [`SHORT`]: its number has four digits.
const HEADER: usize = 1 + 4 + 2;

/// Returns the number of bytes of a header: the type, the number, CR LF.
#[inline]
pub(crate) fn header_len(count: usize) -> usize {
    1 + number::digits(count as u64) + 2
}

/// Appends a header: the type, the number, CR LF.
#[inline]
pub(crate) fn put_header(out: &mut BytesMut, kind: u8, count: usize) {
    match u8::try_from(count) {
        Ok(ones @ 0..=9) => out.extend_from_slice(&[kind, b'0' + ones, b'\r', b'\n']),
        Ok(tens @ 10..=99) => {
            out.extend_from_slice(&[kind, b'0' + tens / 10, b'0' + tens % 10, b'\r', b'\n']);
        }
        _ => {
            out.extend_from_slice(&[kind]);
            out.extend_from_slice(Decimal::unsigned(count as u64).as_bytes());
            out.extend_from_slice(b"\r\n");
        }
    }
}

/// Appends a bulk string.
#[inline]
pub(crate) fn put_bulk(out: &mut BytesMut, bytes: &[u8]) {
    put_header(out, b'$', bytes.len());
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

/// Maximum bytes of a command written the fast way. For longer commands, zeroing the room costs more than is gained.
const SHORT: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(command: &Command<'_>) -> BytesMut {
        let mut out = BytesMut::new();
        command.encode(&mut out);
        assert_eq!(out.len(), command.encoded_len());
        out
    }

    #[test]
    fn arguments_spill_without_a_seam() {
        for count in 0..40_i64 {
            let command = Command::new("MGET").args(0..count);
            let mut expected = format!("*{}\r\n$4\r\nMGET\r\n", count + 1);
            for number in 0..count {
                let text = number.to_string();
                expected += &format!("${}\r\n{text}\r\n", text.len());
            }
            assert_eq!(encoded(&command), expected);
        }
    }

    #[test]
    fn lengths_of_every_number_of_digits() {
        for len in [0, 1, 9, 10, 99, 100, 101, 999, 1000, 65_536] {
            let bytes = vec![b'x'; len];
            let out = encoded(&Command::new("ECHO").arg(&bytes));
            let header = format!("*2\r\n$4\r\nECHO\r\n${len}\r\n");
            assert_eq!(&out[..header.len()], header.as_bytes());
            assert_eq!(out.len(), header.len() + len + 2);
        }
    }

    #[test]
    fn template_encodes_like_command() {
        let sha = "a".repeat(40);
        for keys in 0..12 {
            for args in 0..12 {
                let rest: Vec<Arg<'_>> =
                    (0..keys + args).map(|n| Arg::Int(i64::try_from(n).unwrap() * 97)).collect();
                let command = Command::new("EVALSHA").arg(&sha).arg(keys).args(&rest);
                let template = EvalSha::new(&sha, keys, args);
                let mut out = BytesMut::new();
                template.encode(&mut out, &rest).unwrap();
                assert_eq!(out, encoded(&command));
                assert_eq!(out.len(), template.encoded_len(&rest));
            }
        }
    }

    #[test]
    fn template_refuses_wrong_argument_count() {
        let mut out = BytesMut::new();
        let error = EvalSha::new(&"a".repeat(40), 1, 1).encode(&mut out, &["k".into()]).unwrap_err();
        assert_eq!(error, ArgCount { expected: 2, given: 1 });
        assert_eq!(error.to_string(), "script takes 2 keys and arguments, 1 given");
        assert!(out.is_empty());
    }

    #[test]
    fn nothing_printed_shows_an_argument() {
        let command = Command::new("AUTH").arg("user").arg("hunter2");
        assert_eq!(format!("{command:?}"), "Command(AUTH +2)");
        assert_eq!(format!("{:?}", Arg::from("hunter2")), "Bytes(7 bytes)");
    }

    #[test]
    fn numbers_go_to_both_ends() {
        let out = encoded(&Command::new("X").arg(i64::MIN).arg(i64::MAX).arg(u64::MAX));
        let (min, max, umax) = (i64::MIN, i64::MAX, u64::MAX);
        assert_eq!(out, format!("*4\r\n$1\r\nX\r\n$20\r\n{min}\r\n$19\r\n{max}\r\n$20\r\n{umax}\r\n"));
    }
}
