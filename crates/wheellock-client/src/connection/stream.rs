//! The only place that touches a socket: opening one, reading and writing. Knows bytes, not commands.

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

#[cfg(not(feature = "tls"))]
use crate::base::absent as encrypted;
use crate::base::address::Address;
use crate::base::memory::{self, Pipe};
use crate::base::patience::Patience;
use crate::config::Config;
use encrypted::Encrypted;

/// An open connection, owned by the driver.
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

/// The writing half of a connection. Shared with callers who write for themselves, through `&self`.
pub(crate) enum WriteHalf {
    Tcp(tcp::OwnedWriteHalf),
    #[cfg(unix)]
    Unix(unix::OwnedWriteHalf),
    Tls(Encrypted),
    Memory(Pipe),
}

/// Returns where `address` is on the network: none for a unix socket and for a connection in memory, which need no address.
/// Resolves a host name anew on every call.
pub(crate) async fn resolve(config: &Config, address: &Address) -> io::Result<Vec<SocketAddr>> {
    match address {
        Address::Tcp { host, port } if config.connector.is_none() => {
            config.resolver.look_up(host, *port).await
        }
        _ => Ok(Vec::new()),
    }
}

/// Opens a connection. Tries each address that was `found`, one after the other.
///
/// `liveness` bounds how long the kernel retransmits unacknowledged bytes before it reports the peer dead; its own
/// default is about 15 minutes. It is kept within what a kernel takes.
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
            // Commands are small and pipelined by us: waiting for more would only delay them.
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

/// Connects to the first of a host's addresses where somebody answers. One that is silent takes its share of the time, and what is left is
/// for the others.
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
    TcpStream::connect(last).await
}

/// A kernel counts in seconds, and Linux takes no more than nine hours. Two are its own default.
const LEAST_LIVENESS: Duration = Duration::from_secs(1);
const MOST_LIVENESS: Duration = Duration::from_secs(2 * 3600);

impl Stream {
    fn new(read: ReadHalf, write: WriteHalf) -> Self {
        Self { read, write: Arc::new(write) }
    }

    /// Reads what has arrived into the spare capacity of `buf`; 0 means the peer closed.
    pub(crate) fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut BytesMut) -> Poll<io::Result<usize>> {
        tokio_util::io::poll_read_buf(Pin::new(self), cx, buf)
    }

    /// As [`poll_read`](Self::poll_read) for those who cannot wait. Asks the socket and not its runtime, which may have
    /// ended.
    pub(crate) fn try_read(&mut self, buf: &mut BytesMut) -> io::Result<usize> {
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

    /// Writes as much as the socket takes; pending when it takes nothing now.
    pub(crate) fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_with(cx, |write| write.try_write(bytes))
    }

    /// Moves what the layers above the socket still hold into it.
    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_with(cx, WriteHalf::try_flush)
    }

    /// Tries until it no longer would block.
    fn poll_with<T>(
        &self,
        cx: &mut Context<'_>,
        attempt: impl Fn(&WriteHalf) -> io::Result<T>,
    ) -> Poll<io::Result<T>> {
        loop {
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

    /// Has the kernel forget, when this is dropped, what it has not delivered. Otherwise it goes on trying, and what counts as lost may
    /// arrive behind what was sent on the next connection.
    pub(crate) fn forget_undelivered(&self) {
        let forgotten = match &self.read {
            ReadHalf::Tcp(half) => SockRef::from(half.as_ref()).set_linger(Some(Duration::ZERO)),
            ReadHalf::Tls(stream) => stream.forget_undelivered(),
            // Both ends are one machine's, which delivers at once.
            #[cfg(unix)]
            ReadHalf::Unix(_) => Ok(()),
            ReadHalf::Memory(_) => Ok(()),
        };
        // A socket that has been reset has nothing left to forget.
        drop(forgotten);
    }

    /// What callers may write to.
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
    /// Writes as much as the socket takes now.
    pub(crate) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(half) => half.try_write(bytes),
            #[cfg(unix)]
            Self::Unix(half) => half.try_write(bytes),
            Self::Tls(stream) => stream.try_write(bytes),
            Self::Memory(pipe) => pipe.try_write(bytes),
        }
    }

    /// Moves what the layers above the socket still hold into it, as far as it takes it now.
    pub(crate) fn try_flush(&self) -> io::Result<()> {
        match self {
            Self::Tls(stream) => stream.try_flush(),
            _ => Ok(()),
        }
    }

    /// Ready when the socket may take bytes again. One task at a time may wait.
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
