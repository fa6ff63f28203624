//! In-memory connections for tests.
//!
//! The test holds the server's end and controls every byte. This module knows no protocol.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};

use bytes::BytesMut;
use tokio::io::ReadBuf;

/// Opens connections for a client under test. Set it as [`Config::connector`](crate::Config::connector).
///
/// ```
/// use std::sync::Arc;
/// use wheellock_client::Config;
/// use wheellock_client::memory::{Connector, Pipe};
///
/// let pipe = Pipe::new();
/// let server = pipe.clone(); // the test's end
/// let connector: Connector = Arc::new(move || Ok(pipe.clone()));
/// let mut config: Config = "redis://nowhere".parse()?;
/// config.connector = Some(connector);
/// # drop(server);
/// # Ok::<(), wheellock_client::Error>(())
/// ```
pub type Connector = Arc<dyn Fn() -> io::Result<Pipe> + Send + Sync>;

/// The server's end of an in-memory connection. All clones are the same end.
///
/// The pipe does nothing by itself. It takes as many of the client's bytes as [`accept`](Self::accept) allows, and
/// the client reads the bytes passed to [`send`](Self::send).
///
/// ```
/// use wheellock_client::memory::Pipe;
///
/// let server = Pipe::new();
/// server.accept(0); // the client's next write has to wait
/// server.send(b"+PONG\r\n");
/// assert!(server.take().is_empty());
/// server.fin(); // and the connection has ended
/// ```
#[derive(Clone)]
pub struct Pipe(Arc<Mutex<Inner>>);

/// A reference to a connection that does not keep the connection alive.
///
/// ```
/// use wheellock_client::memory::Pipe;
///
/// let server = Pipe::new();
/// let name = server.downgrade();
/// name.upgrade().unwrap().fin();
/// drop(server);
/// assert!(name.upgrade().is_none());
/// ```
#[derive(Clone)]
pub struct WeakPipe(Weak<Mutex<Inner>>);

impl WeakPipe {
    /// Returns the server's end, unless both ends have been dropped.
    #[must_use]
    pub fn upgrade(&self) -> Option<Pipe> {
        self.0.upgrade().map(Pipe)
    }
}

#[derive(Default)]
struct Inner {
    /// The bytes that the client has written and the test has not taken.
    to_server: BytesMut,
    /// The number of further bytes that the pipe accepts from the client.
    acceptable: usize,
    /// The bytes that the client has not read yet.
    to_client: VecDeque<u8>,
    end: Option<End>,
    reader: Option<Waker>,
    writer: Option<Waker>,
    /// The server's waker, if the server wants to be notified of new bytes.
    server: Option<Waker>,
    /// The client's end does not notice bytes or the end of the connection.
    is_held_back: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Fin,
    Rst,
}

/// Opens a connection. Returns the reader and the writer, both of the client's end.
pub(crate) fn open(connector: &Connector) -> io::Result<(Pipe, Pipe)> {
    let pipe = connector()?;
    Ok((pipe.clone(), pipe))
}

impl Pipe {
    /// Creates a connection that accepts all bytes.
    #[expect(clippy::new_without_default, reason = "a connection is not a value with a default")]
    pub fn new() -> Self {
        Self(Arc::new(Mutex::new(Inner { acceptable: usize::MAX, ..Inner::default() })))
    }

    /// Lets the client write `bytes` further bytes. After them the client has to wait.
    pub fn accept(&self, bytes: usize) {
        let mut inner = self.lock();
        let waits = inner.acceptable == 0 && bytes > 0;
        inner.acceptable = bytes;
        if waits {
            inner.wake();
        }
    }

    /// Wakes `server` from now on whenever the client has written bytes. The wake-up happens on the writing thread,
    /// while no lock of the client is held. The waker may therefore serve the client directly.
    pub fn wake_when_written(&self, server: Waker) {
        self.lock().server = Some(server);
    }

    /// Returns a reference that does not keep the connection alive.
    #[must_use]
    pub fn downgrade(&self) -> WeakPipe {
        WeakPipe(Arc::downgrade(&self.0))
    }

    /// Returns true if the client has dropped its end and all of its bytes have been [taken](Self::take). All other
    /// clones of this end must have been dropped, too.
    pub fn is_abandoned(&self) -> bool {
        Arc::strong_count(&self.0) == 1 && self.lock().to_server.is_empty()
    }

    /// Takes the bytes that the client has written.
    pub fn take(&self) -> BytesMut {
        std::mem::take(&mut self.lock().to_server)
    }

    /// Sends bytes to the client.
    pub fn send(&self, bytes: &[u8]) {
        let mut inner = self.lock();
        inner.to_client.extend(bytes);
        inner.wake();
    }

    /// Hides new bytes and the end of the connection from the client, or shows them again. A client whose process stands still does not
    /// notice them either.
    pub fn hold_back(&self, is_held_back: bool) {
        let mut inner = self.lock();
        inner.is_held_back = is_held_back;
        inner.wake();
    }

    /// Closes the connection in order: the client can still read the bytes sent before.
    pub fn fin(&self) {
        self.end(End::Fin);
    }

    /// Breaks the connection: reads and writes fail from now on.
    pub fn rst(&self) {
        self.end(End::Rst);
    }

    fn end(&self, end: End) {
        let mut inner = self.lock();
        inner.end = Some(end);
        inner.wake();
    }

    pub(crate) fn poll_read(&self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut inner = self.lock();
        if inner.is_held_back {
            inner.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        if inner.end == Some(End::Rst) {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        if inner.to_client.is_empty() && inner.end.is_none() {
            inner.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let count = inner.to_client.len().min(buf.remaining());
        let bytes: Vec<u8> = inner.to_client.drain(..count).collect();
        buf.put_slice(&bytes);
        Poll::Ready(Ok(()))
    }

    /// Reads as a socket does: returns the available bytes, or `WouldBlock`.
    pub(crate) fn try_read(&self, bytes: &mut [u8]) -> io::Result<usize> {
        let mut inner = self.lock();
        match inner.end {
            _ if inner.is_held_back => return Err(io::ErrorKind::WouldBlock.into()),
            Some(End::Rst) => return Err(io::ErrorKind::ConnectionReset.into()),
            None if inner.to_client.is_empty() => return Err(io::ErrorKind::WouldBlock.into()),
            _ => {}
        }
        io::Read::read(&mut inner.to_client, bytes)
    }

    /// Writes as a socket does: takes the bytes it can, or returns `WouldBlock`.
    pub(crate) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        let mut inner = self.lock();
        if inner.end.is_some() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let count = inner.acceptable.min(bytes.len());
        if count == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        if inner.acceptable != usize::MAX {
            inner.acceptable -= count;
        }
        inner.to_server.extend_from_slice(bytes.get(..count).unwrap_or_default());
        let server = inner.server.clone();
        drop(inner);
        if let Some(server) = server {
            server.wake();
        }
        Ok(count)
    }

    pub(crate) fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut inner = self.lock();
        if inner.acceptable > 0 || inner.end.is_some() {
            return Poll::Ready(Ok(()));
        }
        inner.writer = Some(cx.waker().clone());
        Poll::Pending
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn wake(&mut self) {
        if self.is_held_back {
            return;
        }
        self.reader.take().into_iter().chain(self.writer.take()).for_each(Waker::wake);
    }
}

impl fmt::Debug for WeakPipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WeakPipe")
    }
}

impl fmt::Debug for Pipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pipe")
    }
}
