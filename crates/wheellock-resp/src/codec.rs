//! Adapter for tokio-util's `Framed`.

use std::{fmt, io};

use bytes::BytesMut;

use crate::{Command, Error, Frame, Limits, Push, Value};

/// A [`Decoder`](tokio_util::codec::Decoder) of [`Frame`]s and an [`Encoder`](tokio_util::codec::Encoder) of
/// [`Command`]s, [`Value`]s and [`Frame`]s.
///
/// A client sends commands and reads frames. A server, a proxy or a test reads commands as arrays of bulk strings and sends values.
///
/// ```no_run
/// use futures_util::{SinkExt as _, StreamExt as _};
/// use tokio::net::TcpStream;
/// use tokio_util::codec::Framed;
/// use wheellock_resp::{Command, Frame, Value, codec::RespCodec};
///
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let stream = TcpStream::connect("127.0.0.1:6379").await?;
/// let mut server = Framed::new(stream, RespCodec::default());
/// server.send(Command::new("PING")).await?;
/// let reply = server.next().await.ok_or("closed")??;
/// assert_eq!(reply, Frame::Reply(Value::SimpleString("PONG".into())));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Default)]
pub struct RespCodec {
    decoder: crate::Decoder,
}

impl RespCodec {
    /// Creates a codec for the start of a stream.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self { decoder: crate::Decoder::new(limits) }
    }
}

impl tokio_util::codec::Decoder for RespCodec {
    type Item = Frame;
    type Error = CodecError;

    fn decode(&mut self, buf: &mut BytesMut) -> Result<Option<Frame>, CodecError> {
        let frame = self.decoder.decode(buf)?;
        if frame.is_none() {
            buf.reserve(self.decoder.wanted());
        }
        Ok(frame)
    }

    fn decode_eof(&mut self, buf: &mut BytesMut) -> Result<Option<Frame>, CodecError> {
        match self.decoder.decode(buf)? {
            // The decoded part of an unfinished frame has left the buffer, so an empty buffer is not sufficient.
            None if self.decoder.is_mid_frame() || !buf.is_empty() => Err(CodecError::Truncated),
            frame => Ok(frame),
        }
    }
}

impl tokio_util::codec::Encoder<&Command<'_>> for RespCodec {
    type Error = CodecError;

    fn encode(&mut self, command: &Command<'_>, out: &mut BytesMut) -> Result<(), CodecError> {
        command.encode(out);
        Ok(())
    }
}

impl tokio_util::codec::Encoder<Command<'_>> for RespCodec {
    type Error = CodecError;

    fn encode(&mut self, command: Command<'_>, out: &mut BytesMut) -> Result<(), CodecError> {
        command.encode(out);
        Ok(())
    }
}

impl tokio_util::codec::Encoder<&Value> for RespCodec {
    type Error = CodecError;

    fn encode(&mut self, value: &Value, out: &mut BytesMut) -> Result<(), CodecError> {
        value.encode(out);
        Ok(())
    }
}

impl tokio_util::codec::Encoder<Value> for RespCodec {
    type Error = CodecError;

    fn encode(&mut self, value: Value, out: &mut BytesMut) -> Result<(), CodecError> {
        value.encode(out);
        Ok(())
    }
}

impl tokio_util::codec::Encoder<Push> for RespCodec {
    type Error = CodecError;

    fn encode(&mut self, push: Push, out: &mut BytesMut) -> Result<(), CodecError> {
        push.encode(out);
        Ok(())
    }
}

impl tokio_util::codec::Encoder<Frame> for RespCodec {
    type Error = CodecError;

    fn encode(&mut self, frame: Frame, out: &mut BytesMut) -> Result<(), CodecError> {
        frame.encode(out);
        Ok(())
    }
}

/// The error of a framed stream.
///
/// ```
/// use tokio_util::codec::Decoder as _;
/// use wheellock_resp::codec::{CodecError, RespCodec};
///
/// let mut codec = RespCodec::default();
/// let mut half = bytes::BytesMut::from("$5\r\nhel"); // and then the other end hangs up
/// assert!(matches!(codec.decode_eof(&mut half), Err(CodecError::Truncated)));
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum CodecError {
    /// The transport failed.
    Io(io::Error),
    /// The bytes are not RESP, or exceed the limits.
    Protocol(Error),
    /// The stream ended inside a frame.
    Truncated,
}

impl fmt::Display for CodecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => write!(f, "transport failed: {error}"),
            Self::Protocol(error) => error.fmt(f),
            Self::Truncated => f.write_str("stream ended inside a frame"),
        }
    }
}

impl std::error::Error for CodecError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io(error) => Some(error),
            Self::Protocol(_) | Self::Truncated => None,
        }
    }
}

impl From<io::Error> for CodecError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<Error> for CodecError {
    fn from(error: Error) -> Self {
        Self::Protocol(error)
    }
}

#[cfg(test)]
mod tests {
    use tokio_util::codec::Decoder as _;

    use super::*;

    #[test]
    fn stream_may_end_only_between_frames() {
        let end = |bytes: &[u8]| {
            let mut codec = RespCodec::default();
            let mut buf = BytesMut::from(bytes);
            while codec.decode(&mut buf).unwrap().is_some() {}
            codec.decode_eof(&mut buf)
        };
        assert!(matches!(end(b""), Ok(None)));
        assert!(matches!(end(b":1\r\n"), Ok(None)));
        for cut in [&b":1"[..], b"*2\r\n:1\r\n", b"$5\r\n", b"|0\r\n", b"$5\r\nhello\r"] {
            assert!(matches!(end(cut), Err(CodecError::Truncated)), "{}", cut.escape_ascii());
        }
    }

    #[test]
    fn bulk_header_alone_reserves_little() {
        let mut codec = RespCodec::default();
        let mut buf = BytesMut::from(&b"$10000000\r\n"[..]);
        assert!(codec.decode(&mut buf).unwrap().is_none());
        assert!(buf.capacity() <= 32 * 1024);
    }
}
