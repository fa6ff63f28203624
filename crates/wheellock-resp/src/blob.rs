//! Byte strings of replies, with storage by length.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;

use bytes::Bytes;

/// An immutable byte string in 24 bytes. Its storage depends on its length.
///
/// | length | storage | cost to decode |
/// |---|---|---|
/// | up to [`Blob::INLINE`] (22) | in the value itself | no allocation |
/// | below [`Blob::SHARE`] (32 KiB) | an allocation of its own, of exact size | one allocation, one copy |
/// | from [`Blob::SHARE`] on | a slice of the read buffer, if at least a quarter of it | no copy |
///
/// A short reply therefore does not allocate, and it does not keep its read block alive. A megabyte in a buffer of its own is never copied.
/// A slice keeps its whole block alive, so a payload smaller than a quarter of its block is copied instead.
///
/// `Blob` dereferences to `[u8]`. [`Bytes::from`] turns it into `Bytes`, without a copy unless it is inline.
///
/// ```
/// use wheellock_resp::Blob;
///
/// let token = Blob::from("3f1c");
/// assert_eq!(token.as_str(), Some("3f1c"));
/// assert_eq!(token.len(), 4); // as of any `[u8]`
/// assert!(token < Blob::from("4"));
/// ```
#[derive(Clone)]
pub struct Blob(Storage);

#[derive(Clone)]
enum Storage {
    Inline { len: u8, bytes: [u8; Blob::INLINE] },
    Owned(Box<[u8]>),
    // Boxed because a `Bytes` has 32 bytes: large payloads are rare, but arrays have many values.
    Shared(Box<Bytes>),
}

impl Blob {
    /// The length of the longest byte string stored in the value itself.
    pub const INLINE: usize = 22;

    /// The length of the shortest byte string that is sliced from the read buffer instead of copied. It is half of 64 KiB, a typical read
    /// size, so a slice typically keeps about twice its own length alive.
    pub const SHARE: usize = 32 * 1024;

    /// Creates an empty byte string.
    #[must_use]
    pub const fn new() -> Self {
        Self(Storage::Inline { len: 0, bytes: [0; Self::INLINE] })
    }

    /// Returns the bytes.
    #[inline]
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        match &self.0 {
            // `get` cannot fail, because `len` is at most `INLINE` by construction. It costs as much as indexing, without the panic.
            Storage::Inline { len, bytes } => bytes.get(..usize::from(*len)).unwrap_or(bytes),
            Storage::Owned(bytes) => bytes,
            Storage::Shared(bytes) => bytes,
        }
    }

    /// Returns the bytes as text, if they are UTF-8.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        std::str::from_utf8(self.as_slice()).ok()
    }

    /// Copies `bytes`, into the value itself if they are short enough.
    #[inline]
    #[must_use]
    pub fn copy_from_slice(bytes: &[u8]) -> Self {
        if bytes.len() <= Self::INLINE { Self::inline(bytes) } else { Self(Storage::Owned(bytes.into())) }
    }

    fn inline(from: &[u8]) -> Self {
        let mut bytes = [0; Self::INLINE];
        let mut len = 0;
        for (to, from) in bytes.iter_mut().zip(from) {
            *to = *from;
            len += 1;
        }
        Self(Storage::Inline { len, bytes })
    }
}

/// The bytes of an inline blob, on their way from a buffer into a value.
///
/// They are integers instead of an array, so that the compiler keeps them in registers. A value that is written in pieces and then moved
/// must wait for its own bytes. That wait costs more than reading a short reply.
#[derive(Clone, Copy)]
pub(crate) struct Window(u64, u64, u32, u16);

impl Window {
    /// Loads the bytes at `from`, padded with zeros.
    #[inline(always)]
    pub(crate) fn load(bytes: &[u8], from: usize) -> Self {
        let rest = bytes.get(from..).unwrap_or_default();
        match rest.first_chunk::<{ Blob::INLINE }>() {
            Some(bytes) => Self::split(bytes),
            None => Self::load_last(rest),
        }
    }

    /// Creates a blob of the first `len` bytes, at most [`Blob::INLINE`]. The bytes after them are stored but never visible.
    #[inline(always)]
    pub(crate) fn blob(self, len: u8) -> Blob {
        let mut bytes = [0; Blob::INLINE];
        bytes[..8].copy_from_slice(&self.0.to_ne_bytes());
        bytes[8..16].copy_from_slice(&self.1.to_ne_bytes());
        bytes[16..20].copy_from_slice(&self.2.to_ne_bytes());
        bytes[20..].copy_from_slice(&self.3.to_ne_bytes());
        Blob(Storage::Inline { len, bytes })
    }

    /// Loads the rest of a buffer that is shorter than a window.
    #[cold]
    fn load_last(rest: &[u8]) -> Self {
        let mut bytes = [0; Blob::INLINE];
        for (to, from) in bytes.iter_mut().zip(rest) {
            *to = *from;
        }
        Self::split(&bytes)
    }

    #[inline(always)]
    fn split(bytes: &[u8; Blob::INLINE]) -> Self {
        let [a, b, c, d, e, f, g, h, rest @ ..] = *bytes;
        let first = u64::from_ne_bytes([a, b, c, d, e, f, g, h]);
        let [a, b, c, d, e, f, g, h, rest @ ..] = rest;
        let second = u64::from_ne_bytes([a, b, c, d, e, f, g, h]);
        let [a, b, c, d, e, f] = rest;
        Self(first, second, u32::from_ne_bytes([a, b, c, d]), u16::from_ne_bytes([e, f]))
    }
}

impl Default for Blob {
    fn default() -> Self {
        Self::new()
    }
}

impl Deref for Blob {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl AsRef<[u8]> for Blob {
    fn as_ref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl From<&[u8]> for Blob {
    fn from(bytes: &[u8]) -> Self {
        Self::copy_from_slice(bytes)
    }
}

impl<const N: usize> From<&[u8; N]> for Blob {
    fn from(bytes: &[u8; N]) -> Self {
        Self::copy_from_slice(bytes)
    }
}

impl From<&str> for Blob {
    fn from(text: &str) -> Self {
        Self::copy_from_slice(text.as_bytes())
    }
}

impl From<String> for Blob {
    fn from(text: String) -> Self {
        text.into_bytes().into()
    }
}

impl From<Vec<u8>> for Blob {
    fn from(bytes: Vec<u8>) -> Self {
        if bytes.len() <= Self::INLINE {
            Self::inline(&bytes)
        } else {
            Self(Storage::Owned(bytes.into_boxed_slice()))
        }
    }
}

impl From<Bytes> for Blob {
    /// Keeps the `Bytes` unless it is short enough to be stored inline.
    fn from(bytes: Bytes) -> Self {
        if bytes.len() <= Self::INLINE {
            Self::inline(&bytes)
        } else {
            Self(Storage::Shared(Box::new(bytes)))
        }
    }
}

impl From<Blob> for Bytes {
    fn from(blob: Blob) -> Self {
        match blob.0 {
            Storage::Inline { .. } => Self::copy_from_slice(blob.as_slice()),
            Storage::Owned(bytes) => bytes.into(),
            Storage::Shared(bytes) => *bytes,
        }
    }
}

impl From<Blob> for Vec<u8> {
    fn from(blob: Blob) -> Self {
        match blob.0 {
            Storage::Inline { .. } => blob.as_slice().to_vec(),
            Storage::Owned(bytes) => bytes.into_vec(),
            Storage::Shared(bytes) => (*bytes).into(),
        }
    }
}

impl PartialEq for Blob {
    fn eq(&self, other: &Self) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl Eq for Blob {}

impl PartialEq<[u8]> for Blob {
    fn eq(&self, other: &[u8]) -> bool {
        self.as_slice() == other
    }
}

impl PartialEq<str> for Blob {
    fn eq(&self, other: &str) -> bool {
        self.as_slice() == other.as_bytes()
    }
}

impl PartialEq<&str> for Blob {
    fn eq(&self, other: &&str) -> bool {
        self.as_slice() == other.as_bytes()
    }
}

impl PartialOrd for Blob {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Blob {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.as_slice().cmp(other.as_slice())
    }
}

impl Hash for Blob {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_slice().hash(state);
    }
}

impl fmt::Debug for Blob {
    /// Formats a byte string literal, escaped and cut like [`Display`](fmt::Display).
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b\"{self}\"")
    }
}

impl fmt::Display for Blob {
    /// Escapes to printable ASCII and cuts after 256 bytes, so that a reply cannot forge or flood a log line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = self.get(..SHOWN).unwrap_or(self);
        write!(f, "{}", shown.escape_ascii())?;
        if shown.len() < self.len() {
            write!(f, "... ({} bytes)", self.len())?;
        }
        Ok(())
    }
}

/// Maximum number of bytes of one string shown in a log line.
const SHOWN: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    fn lengths() -> impl Iterator<Item = Vec<u8>> {
        [0, 1, 21, 22, 23, 64, 255, 256, 257, 40_000].into_iter().map(|len| vec![b'x'; len])
    }

    #[test]
    fn every_conversion_keeps_the_bytes() {
        for bytes in lengths() {
            let blobs = [
                Blob::from(bytes.as_slice()),
                Blob::from(bytes.clone()),
                Blob::from(Bytes::from(bytes.clone())),
                Blob::from(String::from_utf8(bytes.clone()).unwrap()),
            ];
            for blob in blobs {
                assert_eq!(blob.as_slice(), bytes);
                assert_eq!(blob.as_str().map(str::len), Some(bytes.len()));
                assert_eq!(blob, blob.clone());
                assert_eq!(Bytes::from(blob.clone()), bytes);
                assert_eq!(Vec::from(blob), bytes);
            }
        }
    }

    #[test]
    fn prefix_takes_exactly_requested_bytes() {
        let stream = b"0123456789012345678901234567890123456789";
        for window in 0..stream.len() {
            for len in 0..=window.min(Blob::INLINE) {
                let blob = Window::load(&stream[..window], 0).blob(u8::try_from(len).unwrap());
                assert_eq!(blob.as_slice(), &stream[..len]);
                assert_eq!(blob, Blob::from(&stream[..len]));
            }
        }
    }

    #[test]
    fn it_prints_escaped_and_cut() {
        assert_eq!(Blob::from(b"a\r\n\x1b[31m\xff").to_string(), "a\\r\\n\\x1b[31m\\xff");
        assert_eq!(format!("{:?}", Blob::from("q\"")), "b\"q\\\"\"");
        let long = Blob::from(vec![b'x'; 1000]).to_string();
        assert_eq!(long, format!("{}... (1000 bytes)", "x".repeat(256)));
    }

    #[test]
    fn it_is_small() {
        assert_eq!(size_of::<Blob>(), 24);
    }
}
