//! The only place that touches a socket: opening one, reading and writing. Knows bytes, not commands.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::{TcpStream, UnixStream, tcp, unix};
#[cfg(feature = "tls")]
use tokio_rustls::client::TlsStream;

use crate::config::{Address, Config};

/// An open connection, owned by the driver.
pub(crate) enum Stream {
    Tcp {
        read: tcp::OwnedReadHalf,
        write: Arc<WriteHalf>,
    },
    Unix {
        read: unix::OwnedReadHalf,
        write: Arc<WriteHalf>,
    },
    #[cfg(feature = "tls")]
    Tls(Box<TlsStream<TcpStream>>),
    #[cfg(feature = "testing")]
    Memory {
        read: crate::memory::Pipe,
        write: Arc<WriteHalf>,
    },
}

/// The writing half of a plain socket. Shared with idle callers, who write through `&self`. A TLS stream has none: its
/// records are made in one place.
pub(crate) enum WriteHalf {
    Tcp(tcp::OwnedWriteHalf),
    Unix(unix::OwnedWriteHalf),
    #[cfg(feature = "testing")]
    Memory(crate::memory::Pipe),
}

/// Opens a connection. A host name is resolved anew on every call, and every address it has is tried.
///
/// `liveness` bounds how long the kernel retransmits unacknowledged bytes before it reports the peer dead; its own
/// default is about 15 minutes.
pub(crate) async fn connect(config: &Config, address: &Address, liveness: Duration) -> io::Result<Stream> {
    #[cfg(feature = "testing")]
    if let Some(connector) = &config.connector {
        let read = connector()?;
        let write = Arc::new(WriteHalf::Memory(read.clone()));
        return Ok(Stream::Memory { read, write });
    }
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
            #[cfg(not(feature = "tls"))]
            let _unencrypted = config;
            #[cfg(feature = "tls")]
            if let Some(tls) = &config.tls {
                let stream = tls.connector().connect(tls.server_name(host)?, stream).await?;
                return Ok(Stream::Tls(Box::new(stream)));
            }
            let (read, write) = stream.into_split();
            Ok(Stream::Tcp { read, write: Arc::new(WriteHalf::Tcp(write)) })
        }
        Address::Unix(path) => {
            let (read, write) = UnixStream::connect(path).await?.into_split();
            Ok(Stream::Unix { read, write: Arc::new(WriteHalf::Unix(write)) })
        }
    }
}

impl Stream {
    /// Reads what has arrived into the spare capacity of `buf`; 0 means the peer closed.
    pub(crate) fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut BytesMut) -> Poll<io::Result<usize>> {
        tokio_util::io::poll_read_buf(Pin::new(self), cx, buf)
    }

    /// Writes as much as the socket takes; pending when it takes nothing now.
    pub(crate) fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let write = match self {
            Self::Tcp { write, .. } | Self::Unix { write, .. } => write,
            #[cfg(feature = "tls")]
            Self::Tls(stream) => return tokio::io::AsyncWrite::poll_write(Pin::new(stream), cx, bytes),
            #[cfg(feature = "testing")]
            Self::Memory { write, .. } => write,
        };
        loop {
            match write.try_write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => match write.poll_writable(cx) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(ready) => ready?,
                },
                written => return Poll::Ready(written),
            }
        }
    }

    /// Moves what the layers above the socket still hold into it.
    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp { .. } | Self::Unix { .. } => {
                let _unbuffered = cx;
                Poll::Ready(Ok(()))
            }
            #[cfg(feature = "tls")]
            Self::Tls(stream) => tokio::io::AsyncWrite::poll_flush(Pin::new(stream), cx),
            #[cfg(feature = "testing")]
            Self::Memory { .. } => Poll::Ready(Ok(())),
        }
    }

    /// What idle callers may write to, if this kind of stream allows it.
    pub(crate) fn shared_writer(&self) -> Option<Arc<WriteHalf>> {
        match self {
            Self::Tcp { write, .. } | Self::Unix { write, .. } => Some(Arc::clone(write)),
            #[cfg(feature = "tls")]
            Self::Tls(_) => None,
            #[cfg(feature = "testing")]
            Self::Memory { write, .. } => Some(Arc::clone(write)),
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp { read, .. } => Pin::new(read).poll_read(cx, buf),
            Self::Unix { read, .. } => Pin::new(read).poll_read(cx, buf),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
            #[cfg(feature = "testing")]
            Self::Memory { read, .. } => read.poll_read(cx, buf),
        }
    }
}

impl WriteHalf {
    /// Writes as much as the socket takes now.
    pub(crate) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(half) => half.try_write(bytes),
            Self::Unix(half) => half.try_write(bytes),
            #[cfg(feature = "testing")]
            Self::Memory(pipe) => pipe.try_write(bytes),
        }
    }

    /// Ready when the socket may take bytes again. One task at a time may wait.
    fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(half) => half.as_ref().poll_write_ready(cx),
            Self::Unix(half) => half.as_ref().poll_write_ready(cx),
            #[cfg(feature = "testing")]
            Self::Memory(pipe) => pipe.poll_writable(cx),
        }
    }
}
