//! Bytes that a connection has read and not yet decoded.
//!
//! This module knows no socket.

use bytes::BytesMut;

/// The room offered to each read. A short read shows tokio that the socket is drained, which saves a system call.
pub(crate) const READ_ROOM: usize = 64 << 10;

/// A buffer that grows for a large reply and shrinks afterwards.
pub(crate) struct ReadBuffer {
    pub(crate) bytes: BytesMut,
    /// True if the buffer's block of memory is larger than [`MOST_KEPT`].
    is_large: bool,
    /// True if the buffer has ever been large.
    was_large: bool,
}

impl ReadBuffer {
    pub(crate) fn new(bytes: BytesMut) -> Self {
        Self { bytes, is_large: false, was_large: false }
    }

    /// Makes room for the next read. `wanted` is the decoder's hint.
    pub(crate) fn make_room(&mut self, wanted: usize) {
        if self.bytes.capacity() - self.bytes.len() < READ_ROOM / 4 {
            self.bytes.reserve(READ_ROOM.max(wanted));
            self.is_large |= self.bytes.capacity() > MOST_KEPT;
            self.was_large |= self.is_large;
        }
    }

    /// Moves the remaining bytes into a small block once a large reply is complete. Otherwise `reserve` would reuse
    /// the large block, and the connection would keep it for life.
    pub(crate) fn shrink(&mut self, wanted: usize) {
        if self.is_large && wanted == 0 && self.bytes.len() <= READ_ROOM {
            let mut small = BytesMut::with_capacity(READ_ROOM);
            small.extend_from_slice(&self.bytes);
            self.bytes = small;
            self.is_large = false;
        }
    }

    /// Returns true if a large reply has arrived.
    pub(crate) fn was_large(&self) -> bool {
        self.was_large
    }
}

/// The largest block of memory that a connection keeps between replies. Replies of up to this size reuse it.
const MOST_KEPT: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use wheellock_resp::{Decoder, Limits};

    /// Reads `reply` in pieces, as the driver does.
    fn read(buffer: &mut ReadBuffer, decoder: &mut Decoder, reply: &[u8]) {
        let mut rest = reply;
        let mut frames = 0;
        while !rest.is_empty() {
            buffer.make_room(decoder.wanted());
            let room = buffer.bytes.capacity() - buffer.bytes.len();
            let (now, later) = rest.split_at(room.min(rest.len()));
            buffer.bytes.extend_from_slice(now);
            rest = later;
            while decoder.decode(&mut buffer.bytes).unwrap().is_some() {
                frames += 1;
            }
            buffer.shrink(decoder.wanted());
        }
        assert!(frames > 0 && buffer.bytes.is_empty());
    }

    #[test]
    fn large_reply_leaves_small_buffer() {
        let bulk = |len: usize| [format!("${len}\r\n").as_bytes(), &vec![b'x'; len], b"\r\n"].concat();
        let (mut buffer, mut decoder) = (ReadBuffer::new(BytesMut::new()), Decoder::new(Limits::default()));
        for len in [15 << 20, 9 << 20, 100] {
            read(&mut buffer, &mut decoder, &bulk(len));
            assert!(!buffer.bytes.try_reclaim(MOST_KEPT), "a block of {len} bytes is kept");
        }
        assert!(buffer.was_large());
        read(&mut buffer, &mut decoder, &bulk(500 << 10));
        assert!(!buffer.is_large, "a block for half a MiB may stay");
    }
}
