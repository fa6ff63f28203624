//! A TLS session and its socket.
//!
//! One type owns both, because one session encrypts and decrypts. The driver reads from the session, and any task may
//! write to it.

use std::io::{self, IoSlice, Read, Write};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use crate::config::tls::TlsConfig;

/// A TLS session. Clones share the session. Its lock is held while bytes are encrypted or decrypted and passed to the
/// socket, which never blocks.
#[derive(Clone)]
pub(crate) struct Encrypted(Arc<Mutex<TlsStream<TcpStream>>>);

impl Encrypted {
    /// Performs the TLS handshake over `socket`. Returns the reader and the writer, which share the session.
    pub(super) async fn connect(tls: &TlsConfig, host: &str, socket: TcpStream) -> io::Result<(Self, Self)> {
        let stream = tls.connector()?.connect(tls.server_name(host)?, socket).await?;
        let session = Self(Arc::new(Mutex::new(stream)));
        Ok((session.clone(), session))
    }

    pub(super) fn poll_read(&self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.lock()).poll_read(cx, buf)
    }

    /// Decrypts bytes that have arrived, without the runtime.
    pub(super) fn try_read(&self, bytes: &mut [u8]) -> io::Result<usize> {
        let mut stream = self.lock();
        let (socket, session) = stream.get_mut();
        let socket = SockRef::from(&*socket);
        loop {
            match session.reader().read(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return read,
            }
            if session.read_tls(&mut &*socket)? == 0 {
                return Ok(0);
            }
            session.process_new_packets().map_err(io::Error::other)?;
        }
    }

    /// Encrypts and writes while the socket takes bytes. Encrypted bytes count as written, because they leave before
    /// all bytes that are encrypted later. The session has little room, so no further bytes are encrypted until the
    /// socket has taken the previous ones.
    pub(super) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        let mut stream = self.lock();
        let mut encrypted = 0;
        loop {
            match flush(&mut stream) {
                Ok(()) => {}
                // Some bytes may have left. The next attempt meets the same error again.
                Err(_) if encrypted > 0 => return Ok(encrypted),
                Err(error) => return Err(error),
            }
            let rest = bytes.get(encrypted..).filter(|rest| !rest.is_empty() && encrypted < AT_ONCE);
            let Some(rest) = rest else { return Ok(encrypted) };
            let (_, session) = stream.get_mut();
            match session.writer().write(rest)? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                taken => encrypted += taken,
            }
        }
    }

    /// Writes bytes that are already encrypted, as far as the socket takes them now.
    pub(super) fn try_flush(&self) -> io::Result<()> {
        flush(&mut self.lock())
    }

    pub(super) fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.lock().get_ref().0.poll_write_ready(cx)
    }

    pub(super) fn forget_undelivered(&self) -> io::Result<()> {
        SockRef::from(self.lock().get_ref().0).set_linger(Some(Duration::ZERO))
    }

    fn lock(&self) -> MutexGuard<'_, TlsStream<TcpStream>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Minimum number of bytes that are encrypted before other tasks get the session, for example to read.
const AT_ONCE: usize = 256 << 10;

fn flush(stream: &mut TlsStream<TcpStream>) -> io::Result<()> {
    let (socket, session) = stream.get_mut();
    while session.wants_write() {
        if session.write_tls(&mut Now(socket))? == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
    }
    Ok(())
}

/// A writer that writes only as much as the socket takes now. It uses the socket itself, because the runtime may have
/// ended.
struct Now<'a>(&'a TcpStream);

impl Write for Now<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(bytes)
    }

    fn write_vectored(&mut self, bytes: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.try_write_vectored(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
