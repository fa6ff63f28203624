//! Bytes into a buffer, fast: small pieces are written as chunks of fixed size into room made beforehand, which costs a few
//! instructions each where a copy of variable length costs a call. Knows headers and bulks, no commands.

use bytes::BytesMut;

use crate::number::{digits, write_digits};

/// The room that is left at the end of a buffer. What does not fit is not written.
pub(crate) struct Writer<'a> {
    room: &'a mut [u8],
}

impl Writer<'_> {
    /// Appends what `write` writes, `most` bytes at most.
    #[inline]
    pub(crate) fn append(out: &mut BytesMut, most: usize, write: impl FnOnce(&mut Writer<'_>)) {
        let start = out.len();
        // The place is zeroed first, which for a few hundred bytes is a handful of instructions.
        out.resize(start + most, 0);
        let mut writer = Writer { room: out.get_mut(start..).unwrap_or_default() };
        write(&mut writer);
        let written = most - writer.room.len();
        out.truncate(start + written);
    }

    /// Writes a header: the type, the number, CR LF.
    #[expect(clippy::inline_always, reason = "see `Arg::write`")]
    #[inline(always)]
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
        let Ok(len @ 10..=99) = u8::try_from(bytes.len()) else { return self.any_bulk(bytes) };
        // What most strings are, in one piece.
        let Some(place) = self.take(5 + bytes.len() + 2) else { return };
        if let Some((header, rest)) = place.split_first_chunk_mut()
            && let Some((text, end)) = rest.split_last_chunk_mut()
        {
            *header = [b'$', b'0' + len / 10, b'0' + len % 10, b'\r', b'\n'];
            copy(text, bytes);
            *end = *b"\r\n";
        }
    }

    fn any_bulk(&mut self, bytes: &[u8]) {
        self.header(b'$', bytes.len());
        self.bytes(bytes);
        self.chunk(b"\r\n");
    }

    /// Writes a number as a bulk string.
    #[inline]
    pub(crate) fn number(&mut self, negative: bool, magnitude: u64) {
        if let (false, Ok(ones @ 0..=9)) = (negative, u8::try_from(magnitude)) {
            return self.chunk(&[b'$', b'1', b'\r', b'\n', b'0' + ones, b'\r', b'\n']);
        }
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
        if let Some(place) = self.take(bytes.len()) {
            copy(place, bytes);
        }
    }

    /// Writes the `count` digits of a number.
    #[inline]
    fn digits(&mut self, number: u64, count: usize) {
        if let Some(place) = self.take(count) {
            write_digits(place, number);
        }
    }

    #[inline]
    fn chunk<const N: usize>(&mut self, chunk: &[u8; N]) {
        let room = std::mem::take(&mut self.room);
        match room.split_first_chunk_mut() {
            Some((place, rest)) => {
                *place = *chunk;
                self.room = rest;
            }
            None => debug_assert!(false, "there is room for the most that is written"),
        }
    }

    /// The next `len` bytes.
    #[inline]
    fn take(&mut self, len: usize) -> Option<&mut [u8]> {
        let (place, rest) = std::mem::take(&mut self.room).split_at_mut_checked(len)?;
        self.room = rest;
        Some(place)
    }
}

/// Fills the place with as many bytes.
#[inline]
fn copy(place: &mut [u8], bytes: &[u8]) {
    // Two chunks that overlap cover every length from one to two of them.
    match bytes.len() {
        8..=16 => overlapping::<8>(place, bytes),
        17..=32 => overlapping::<16>(place, bytes),
        33..=64 => overlapping::<32>(place, bytes),
        _ => place.copy_from_slice(bytes),
    }
}

#[inline]
fn overlapping<const N: usize>(place: &mut [u8], bytes: &[u8]) {
    if let (Some(to), Some(from)) = (place.first_chunk_mut::<N>(), bytes.first_chunk()) {
        *to = *from;
    }
    if let (Some(to), Some(from)) = (place.last_chunk_mut::<N>(), bytes.last_chunk()) {
        *to = *from;
    }
}
