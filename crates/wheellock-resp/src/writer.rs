//! Fast writing of headers and bulks into reserved room.
//!
//! Small pieces are written as chunks of fixed size, which cost a few instructions each. A copy of variable length costs a call. The writer
//! does not know commands.

#![expect(
    clippy::inline_always,
    reason = "see `Arg::write`: a call saves and restores more than a piece takes"
)]

use bytes::BytesMut;

use crate::number::{PAIRS, digits, write_digits};

/// The remaining room at the end of a buffer. A piece that does not fit is not written.
///
/// Each method consumes the writer and returns one with the remaining room. The room thus stays in registers, even if a call writes the
/// piece.
pub(crate) struct Writer<'a> {
    room: &'a mut [u8],
}

impl<'a> Writer<'a> {
    /// Reserves room for `most` bytes after `out`. The caller must cut off the bytes that are [left](Self::left).
    #[inline(always)]
    pub(crate) fn behind(out: &'a mut BytesMut, most: usize) -> Self {
        let start = out.len();
        // The room is zeroed first, which takes a handful of instructions for a few hundred bytes.
        out.resize(start + most, 0);
        Self { room: out.get_mut(start..).unwrap_or_default() }
    }

    /// Returns the number of bytes that were not written.
    #[inline(always)]
    pub(crate) fn left(self) -> usize {
        self.room.len()
    }

    /// Writes a header: the type, the number, CR LF.
    #[inline]
    pub(crate) fn header(self, kind: u8, number: usize) -> Self {
        let number = number as u64;
        self.chunk(&[kind]).digits(number, digits(number)).chunk(b"\r\n")
    }

    /// Writes a bulk string.
    #[inline(always)]
    pub(crate) fn bulk(self, bytes: &[u8]) -> Self {
        match bytes.len() {
            4..=99 => self.framed(bytes.len(), |place| copy(place, bytes)),
            _ => self.any_bulk(bytes),
        }
    }

    #[inline(never)]
    fn any_bulk(self, bytes: &[u8]) -> Self {
        self.header(b'$', bytes.len()).bytes(bytes).chunk(b"\r\n")
    }

    /// Writes a number as a bulk string.
    #[inline(always)]
    pub(crate) fn number(self, negative: bool, magnitude: u64) -> Self {
        match u8::try_from(magnitude) {
            Ok(ones @ 0..=9) if !negative => {
                self.chunk(&[b'$', b'1', b'\r', b'\n', b'0' + ones, b'\r', b'\n'])
            }
            _ => self.any_number(negative, magnitude),
        }
    }

    #[inline(never)]
    fn any_number(self, negative: bool, magnitude: u64) -> Self {
        self.framed(digits(magnitude) + usize::from(negative), |place| {
            write_digits(place, magnitude);
            if let (true, Some(sign)) = (negative, place.first_mut()) {
                *sign = b'-';
            }
        })
    }

    /// Writes a bulk string of `len` bytes, fewer than 100, in one piece. `fill` writes the payload.
    #[inline(always)]
    fn framed(self, len: usize, fill: impl FnOnce(&mut [u8])) -> Self {
        let Some([ten, one]) = PAIRS.get(len) else { return Self::full() };
        let head = if len < 10 { 4 } else { 5 };
        self.place(head + len + 2, |place| {
            if let Some((head, rest)) = place.split_at_mut_checked(head)
                && let Some((text, end)) = rest.split_last_chunk_mut()
            {
                // The second write overwrites the tens digit if the length has only one digit.
                head.first_chunk_mut().into_iter().for_each(|place| *place = [b'$', *ten]);
                head.last_chunk_mut().into_iter().for_each(|place| *place = [*one, b'\r', b'\n']);
                fill(text);
                *end = *b"\r\n";
            }
        })
    }

    #[inline(always)]
    pub(crate) fn bytes(self, bytes: &[u8]) -> Self {
        self.place(bytes.len(), |place| copy(place, bytes))
    }

    /// Writes the `count` digits of a number.
    #[inline]
    fn digits(self, number: u64, count: usize) -> Self {
        self.place(count, |place| write_digits(place, number))
    }

    #[inline(always)]
    fn chunk<const N: usize>(self, chunk: &[u8; N]) -> Self {
        match self.room.split_first_chunk_mut() {
            Some((place, room)) => {
                *place = *chunk;
                Self { room }
            }
            None => Self::full(),
        }
    }

    /// Fills the next `len` bytes.
    #[inline(always)]
    fn place(self, len: usize, fill: impl FnOnce(&mut [u8])) -> Self {
        match self.room.split_at_mut_checked(len) {
            Some((place, room)) => {
                fill(place);
                Self { room }
            }
            None => Self::full(),
        }
    }

    #[cold]
    fn full() -> Self {
        debug_assert!(false, "there is room for the most that is written");
        Self { room: &mut [] }
    }
}

/// Copies `bytes` into `place`, which must have the same length.
#[inline(always)]
fn copy(place: &mut [u8], bytes: &[u8]) {
    // Two overlapping chunks of N bytes cover every length from N to 2N.
    match bytes.len() {
        33..=64 => overlapping::<32>(place, bytes),
        17..=32 => overlapping::<16>(place, bytes),
        8..=16 => overlapping::<8>(place, bytes),
        4..=7 => overlapping::<4>(place, bytes),
        65..=128 => overlapping::<64>(place, bytes),
        _ => place.copy_from_slice(bytes),
    }
}

#[inline(always)]
fn overlapping<const N: usize>(place: &mut [u8], bytes: &[u8]) {
    if let (Some(to), Some(from)) = (place.first_chunk_mut::<N>(), bytes.first_chunk()) {
        *to = *from;
    }
    if let (Some(to), Some(from)) = (place.last_chunk_mut::<N>(), bytes.last_chunk()) {
        *to = *from;
    }
}
