//! Access to sockets: opening, reading and writing. This module knows bytes, not commands.

#[cfg(feature = "tls")]
mod encrypted;

use std::io::{self, Read};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::BytesMut;
use socket2::SockRef;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::{TcpStream, tcp};
#[cfg(unix)]
use tokio::net::{UnixStream, unix};

use crate::base::address::Address;
#[cfg(not(feature = "tls"))]
use crate::base::disabled as encrypted;
use crate::base::memory::{self, Pipe};
use crate::base::patience::Patience;
use crate::config::Config;
use encrypted::Encrypted;

/// An open connection. The driver owns it.
pub(crate) struct Stream {
    read: ReadHalf,
    write: Arc<WriteHalf>,
}

enum ReadHalf {
    Tcp(tcp::OwnedReadHalf),
    #[cfg(unix)]
    Unix(unix::OwnedReadHalf),
    Tls(Encrypted),
    Memory(Pipe),
}

/// The writing half of a connection. Callers that write themselves share it through `&self`.
pub(crate) enum WriteHalf {
    Tcp(tcp::OwnedWriteHalf),
    #[cfg(unix)]
    Unix(unix::OwnedWriteHalf),
    Tls(Encrypted),
    Memory(Pipe),
}

/// Resolves `address` to socket addresses. Returns none for a unix socket and for a connection in memory, which need
/// no socket address. Resolves a host name anew on every call.
pub(crate) async fn resolve(config: &Config, address: &Address) -> io::Result<Vec<SocketAddr>> {
    match address {
        Address::Tcp { host, port } if config.connector.is_none() => {
            config.resolver.look_up(host, *port).await
        }
        _ => Ok(Vec::new()),
    }
}

/// Opens a connection. Tries the addresses in `found` one after the other.
///
/// `liveness` bounds how long the kernel retransmits unacknowledged bytes before it reports the peer dead. The
/// kernel's own default is about 15 minutes. `liveness` is clamped to the range that kernels accept.
pub(crate) async fn connect(
    config: &Config,
    address: &Address,
    found: &[SocketAddr],
    liveness: Duration,
) -> io::Result<Stream> {
    if let Some(connector) = &config.connector {
        let (read, write) = memory::open(connector)?;
        return Ok(Stream::new(ReadHalf::Memory(read), WriteHalf::Memory(write)));
    }
    match address {
        Address::Tcp { host, .. } => {
            let stream = reach(found, config).await?;
            // The driver already batches small commands. Nagle's algorithm would only delay them.
            stream.set_nodelay(true)?;
            let socket = SockRef::from(&stream);
            let liveness = liveness.clamp(LEAST_LIVENESS, MOST_LIVENESS);
            let keepalive =
                socket2::TcpKeepalive::new().with_time(liveness).with_interval(Duration::from_secs(1));
            socket.set_tcp_keepalive(&keepalive)?;
            #[cfg(any(target_os = "linux", target_os = "android"))]
            socket.set_tcp_user_timeout(Some(liveness))?;
            if let Some(tls) = &config.tls {
                let (read, write) = Encrypted::connect(tls, host, stream).await?;
                return Ok(Stream::new(ReadHalf::Tls(read), WriteHalf::Tls(write)));
            }
            let (read, write) = stream.into_split();
            Ok(Stream::new(ReadHalf::Tcp(read), WriteHalf::Tcp(write)))
        }
        #[cfg(not(unix))]
        Address::Unix(_) => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "there are no unix domain sockets on this platform",
        )),
        #[cfg(unix)]
        Address::Unix(path) => {
            let (read, write) = UnixStream::connect(path).await?.into_split();
            Ok(Stream::new(ReadHalf::Unix(read), WriteHalf::Unix(write)))
        }
    }
}

/// Connects to the first of a host's addresses that accepts. A silent address uses up its share of the timeout, and
/// the rest is left for the other addresses.
async fn reach(found: &[SocketAddr], config: &Config) -> io::Result<TcpStream> {
    let Some((last, others)) = found.split_last() else {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address"));
    };
    let share = config.connect_timeout / u32::try_from(found.len()).unwrap_or(u32::MAX);
    for address in others {
        let mut patience = Patience::new(&config.timer, share);
        if let Some(Ok(stream)) = patience.wait_for(TcpStream::connect(address)).await {
            return Ok(stream);
        }
    }
    // No share limits the last attempt. The caller's timeout ends it, and refusals of the other addresses leave more
    // time.
    TcpStream::connect(last).await
}

/// Bounds of `liveness`. A kernel counts in seconds, and Linux accepts at most nine hours. Two hours are its own
/// default.
const LEAST_LIVENESS: Duration = Duration::from_secs(1);
const MOST_LIVENESS: Duration = Duration::from_secs(2 * 3600);

impl Stream {
    fn new(read: ReadHalf, write: WriteHalf) -> Self {
        Self { read, write: Arc::new(write) }
    }

    /// Reads bytes that have arrived into the spare capacity of `buf`. Returns 0 if the peer has closed.
    pub(crate) fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut BytesMut) -> Poll<io::Result<usize>> {
        // This fills the spare capacity without zeroing it first.
        tokio_util::io::poll_read_buf(Pin::new(self), cx, buf)
    }

    /// Reads without waiting; see [`poll_read`](Self::poll_read). Reads the socket itself, because the runtime may
    /// have ended.
    pub(crate) fn try_read(&mut self, buf: &mut BytesMut) -> io::Result<usize> {
        // `Read` needs initialized bytes, and the spare capacity of `buf` is not initialized.
        let mut bytes = [0; 4096];
        let read = match &self.read {
            ReadHalf::Tcp(half) => (&*SockRef::from(half.as_ref())).read(&mut bytes),
            #[cfg(unix)]
            ReadHalf::Unix(half) => (&*SockRef::from(half.as_ref())).read(&mut bytes),
            ReadHalf::Tls(stream) => stream.try_read(&mut bytes),
            ReadHalf::Memory(pipe) => pipe.try_read(&mut bytes),
        }?;
        buf.extend_from_slice(bytes.get(..read).unwrap_or_default());
        Ok(read)
    }

    /// Writes as many bytes as the socket takes. Pending while the socket takes no bytes.
    pub(crate) fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_with(cx, |write| write.try_write(bytes))
    }

    /// Flushes buffered bytes of the layers above the socket into it.
    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_with(cx, WriteHalf::try_flush)
    }

    /// Retries `attempt` while the socket would block and then becomes writable.
    fn poll_with<T>(
        &self,
        cx: &mut Context<'_>,
        attempt: impl Fn(&WriteHalf) -> io::Result<T>,
    ) -> Poll<io::Result<T>> {
        loop {
            // Only a failed attempt clears the runtime's readiness. Without one, `poll_writable` would not store the
            // waker.
            match attempt(&self.write) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    match self.write.poll_writable(cx) {
                        Poll::Pending => return Poll::Pending,
                        Poll::Ready(ready) => ready?,
                    }
                }
                done => return Poll::Ready(done),
            }
        }
    }

    /// Makes the kernel discard undelivered bytes when this stream is dropped. Otherwise the kernel keeps sending.
    /// Bytes of calls that count as lost could then arrive after the calls of the next connection.
    pub(crate) fn forget_undelivered(&self) {
        let forgotten = match &self.read {
            ReadHalf::Tcp(half) => SockRef::from(half.as_ref()).set_linger(Some(Duration::ZERO)),
            ReadHalf::Tls(stream) => stream.forget_undelivered(),
            // Both ends are on one machine, which delivers at once.
            #[cfg(unix)]
            ReadHalf::Unix(_) => Ok(()),
            ReadHalf::Memory(_) => Ok(()),
        };
        // A socket that was reset has no undelivered bytes.
        drop(forgotten);
    }

    /// Returns the half to which callers may write.
    pub(crate) fn writer(&self) -> Arc<WriteHalf> {
        Arc::clone(&self.write)
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().read {
            ReadHalf::Tcp(read) => Pin::new(read).poll_read(cx, buf),
            #[cfg(unix)]
            ReadHalf::Unix(read) => Pin::new(read).poll_read(cx, buf),
            ReadHalf::Tls(stream) => stream.poll_read(cx, buf),
            ReadHalf::Memory(pipe) => pipe.poll_read(cx, buf),
        }
    }
}

impl WriteHalf {
    /// Writes as many bytes as the socket takes now.
    pub(crate) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(half) => half.try_write(bytes),
            #[cfg(unix)]
            Self::Unix(half) => half.try_write(bytes),
            Self::Tls(stream) => stream.try_write(bytes),
            Self::Memory(pipe) => pipe.try_write(bytes),
        }
    }

    /// Flushes buffered bytes of the layers above the socket, as far as the socket takes them now.
    pub(crate) fn try_flush(&self) -> io::Result<()> {
        match self {
            Self::Tls(stream) => stream.try_flush(),
            _ => Ok(()),
        }
    }

    /// Waits until the socket may take bytes again. Only one task at a time may wait.
    fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(half) => half.as_ref().poll_write_ready(cx),
            #[cfg(unix)]
            Self::Unix(half) => half.as_ref().poll_write_ready(cx),
            Self::Tls(stream) => stream.poll_writable(cx),
            Self::Memory(pipe) => pipe.poll_writable(cx),
        }
    }
}

#[cfg(test)]
mod tests;
