//! The only place that touches a socket: opening one, and its two halves. Knows bytes, not commands.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::{TcpStream, UnixStream, tcp, unix};

use crate::config::Address;

/// The reading half; owned by the driver.
pub(crate) enum ReadHalf {
    Tcp(tcp::OwnedReadHalf),
    Unix(unix::OwnedReadHalf),
}

/// The writing half; shared between the driver and idle callers, who write through `&self`.
pub(crate) enum WriteHalf {
    Tcp(tcp::OwnedWriteHalf),
    Unix(unix::OwnedWriteHalf),
}

/// Opens a socket to `address`. A host name is resolved anew on every call, and every address it has is tried.
///
/// `liveness` bounds how long the kernel retransmits unacknowledged bytes before it reports the peer dead; its own
/// default is about 15 minutes.
pub(crate) async fn connect(address: &Address, liveness: Duration) -> io::Result<(ReadHalf, WriteHalf)> {
    match address {
        Address::Tcp { host, port } => {
            let stream = TcpStream::connect((host.as_str(), *port)).await?;
            // Commands are small and pipelined by us: waiting for more would only delay them.
            stream.set_nodelay(true)?;
            let socket = socket2::SockRef::from(&stream);
            let keepalive =
                socket2::TcpKeepalive::new().with_time(liveness).with_interval(Duration::from_secs(1));
            socket.set_tcp_keepalive(&keepalive)?;
            #[cfg(any(target_os = "linux", target_os = "android"))]
            socket.set_tcp_user_timeout(Some(liveness))?;
            let (read, write) = stream.into_split();
            Ok((ReadHalf::Tcp(read), WriteHalf::Tcp(write)))
        }
        Address::Unix(path) => {
            let (read, write) = UnixStream::connect(path).await?.into_split();
            Ok((ReadHalf::Unix(read), WriteHalf::Unix(write)))
        }
    }
}

impl ReadHalf {
    /// Reads what has arrived into the spare capacity of `buf`; 0 means the peer closed.
    pub(crate) fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut BytesMut) -> Poll<io::Result<usize>> {
        tokio_util::io::poll_read_buf(Pin::new(self), cx, buf)
    }
}

impl AsyncRead for ReadHalf {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(half) => Pin::new(half).poll_read(cx, buf),
            Self::Unix(half) => Pin::new(half).poll_read(cx, buf),
        }
    }
}

impl WriteHalf {
    /// Writes as much as the socket takes now.
    pub(crate) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(half) => half.try_write(bytes),
            Self::Unix(half) => half.try_write(bytes),
        }
    }

    /// Ready when the socket may take bytes again. One task at a time may wait.
    pub(crate) fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(half) => half.as_ref().poll_write_ready(cx),
            Self::Unix(half) => half.as_ref().poll_write_ready(cx),
        }
    }
}
