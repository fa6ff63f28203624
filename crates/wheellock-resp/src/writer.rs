//! Bytes into a buffer, fast: small pieces are written as chunks of fixed size into room made beforehand, which costs a few
//! instructions each where a copy of variable length costs a call. Knows headers and bulks, no commands.

use bytes::BytesMut;

use crate::number::digits;

/// The end of a buffer, with room that is cut to what was written when done.
pub(crate) struct Writer<'a> {
    room: &'a mut [u8],
    at: usize,
}

impl Writer<'_> {
    /// Appends the `len` bytes that `write` writes; beyond them nothing is written.
    #[inline]
    pub(crate) fn append(out: &mut BytesMut, len: usize, write: impl FnOnce(&mut Writer<'_>)) {
        let start = out.len();
        // The place is zeroed first, which for a few hundred bytes is a handful of instructions.
        out.resize(start + len, 0);
        let mut writer = Writer { room: out.get_mut(start..).unwrap_or_default(), at: 0 };
        write(&mut writer);
        debug_assert_eq!(writer.at, len, "the length was said to be exact");
    }

    /// Writes a header: the type, the number, CR LF.
    #[inline]
    pub(crate) fn header(&mut self, kind: u8, number: usize) {
        match u8::try_from(number) {
            Ok(ones @ 0..=9) => self.chunk(&[kind, b'0' + ones, b'\r', b'\n']),
            Ok(both @ 10..=99) => self.chunk(&[kind, b'0' + both / 10, b'0' + both % 10, b'\r', b'\n']),
            _ => {
                self.chunk(&[kind]);
                self.digits(number as u64, digits(number as u64));
                self.chunk(b"\r\n");
            }
        }
    }

    /// Writes a bulk string.
    #[inline]
    pub(crate) fn bulk(&mut self, bytes: &[u8]) {
        self.header(b'$', bytes.len());
        self.bytes(bytes);
        self.chunk(b"\r\n");
    }

    /// Writes a number as a bulk string.
    #[inline]
    pub(crate) fn number(&mut self, negative: bool, magnitude: u64) {
        let count = digits(magnitude);
        self.header(b'$', count + usize::from(negative));
        if negative {
            self.chunk(b"-");
        }
        self.digits(magnitude, count);
        self.chunk(b"\r\n");
    }

    #[inline]
    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        // Two chunks that overlap cover every length from one to two of them.
        match bytes.len() {
            8..=16 => self.overlapping::<8>(bytes),
            17..=32 => self.overlapping::<16>(bytes),
            33..=64 => self.overlapping::<32>(bytes),
            len => {
                if let Some(place) = self.room.get_mut(self.at..).and_then(|room| room.get_mut(..len)) {
                    place.copy_from_slice(bytes);
                    self.at += len;
                }
            }
        }
    }

    /// Writes the `count` digits of a number where they belong, the last one first.
    #[inline]
    fn digits(&mut self, number: u64, count: usize) {
        let Some(place) = self.room.get_mut(self.at..self.at + count) else { return };
        let mut left = number;
        for byte in place.iter_mut().rev() {
            // A remainder of ten fits a byte.
            *byte = b'0' + (left % 10) as u8;
            left /= 10;
        }
        self.at += count;
    }

    #[inline]
    fn overlapping<const N: usize>(&mut self, bytes: &[u8]) {
        let (Some(first), Some(last)) = (bytes.first_chunk::<N>(), bytes.last_chunk::<N>()) else { return };
        self.chunk(first);
        self.at -= 2 * N - bytes.len();
        self.chunk(last);
    }

    #[inline]
    fn chunk<const N: usize>(&mut self, chunk: &[u8; N]) {
        if let Some(place) = self.room.get_mut(self.at..).and_then(<[u8]>::first_chunk_mut) {
            *place = *chunk;
            self.at += N;
        }
    }
}
