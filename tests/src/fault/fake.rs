//! A server that sends the bytes of a test's script.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::scanner::Scanner;
use crate::port::Port;

/// A scripted server on a loopback port. The script runs once per connection, each time on a separate thread.
///
/// When the script returns, the server closes the connection. Dropping the server ends every script.
pub struct FakeServer {
    addr: SocketAddr,
    _port: Port,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

struct Shared {
    stopped: AtomicBool,
    connections: AtomicUsize,
    streams: Mutex<Vec<TcpStream>>,
}

impl FakeServer {
    /// Starts a server. The script gets the connection's number, counted from 0, and the connection.
    ///
    /// # Panics
    ///
    /// If no loopback port is free.
    pub fn start<F>(script: F) -> Self
    where
        F: Fn(usize, &mut Session) -> io::Result<()> + Send + Sync + 'static,
    {
        let (port, listener) = super::listen().expect("a free loopback port");
        let addr = listener.local_addr().expect("a bound socket has an address");
        let shared = Arc::new(Shared {
            stopped: AtomicBool::new(false),
            connections: AtomicUsize::new(0),
            streams: Mutex::new(Vec::new()),
        });
        let script = Arc::new(script);
        let acceptor = std::thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                let mut sessions = Vec::new();
                for stream in listener.incoming() {
                    if shared.stopped.load(Ordering::SeqCst) {
                        break;
                    }
                    let Ok(stream) = stream else { continue };
                    let number = shared.connections.fetch_add(1, Ordering::SeqCst);
                    if let Ok(clone) = stream.try_clone() {
                        shared.streams.lock().unwrap_or_else(PoisonError::into_inner).push(clone);
                    }
                    let script = Arc::clone(&script);
                    sessions.push(std::thread::spawn(move || {
                        let mut session = Session::new(stream);
                        // The script fails when the client closes the connection first.
                        let _ended = script(number, &mut session);
                        let _closed = session.stream.shutdown(Shutdown::Both);
                    }));
                }
                drop(listener);
                for session in sessions {
                    let _panicked = session.join();
                }
            }
        });
        Self { addr, _port: port, shared, acceptor: Some(acceptor) }
    }

    /// Starts a server that completes the handshake on every connection and then runs the script.
    ///
    /// # Panics
    ///
    /// If no loopback port is free.
    pub fn ready<F>(script: F) -> Self
    where
        F: Fn(usize, &mut Session) -> io::Result<()> + Send + Sync + 'static,
    {
        Self::start(move |number, session| {
            session.handshake()?;
            script(number, session)
        })
    }

    /// Returns the server's address.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// `redis://127.0.0.1:port`
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://{}", self.addr)
    }

    /// Returns the number of accepted connections.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }
}

impl Drop for FakeServer {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::SeqCst);
        // The acceptor checks the flag after each connection, so this connection wakes it.
        let _woken = TcpStream::connect(self.addr);
        for stream in self.shared.streams.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            let _closed = stream.shutdown(Shutdown::Both);
        }
        if let Some(acceptor) = self.acceptor.take() {
            let _panicked = acceptor.join();
        }
    }
}

impl fmt::Debug for FakeServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakeServer").field("addr", &self.addr).finish_non_exhaustive()
    }
}

/// A connection of a script.
#[derive(Debug)]
pub struct Session {
    stream: TcpStream,
    scanner: Scanner,
    input: Vec<u8>,
    /// The part of `input` that the scanner has seen.
    scanned: usize,
}

impl Session {
    fn new(stream: TcpStream) -> Self {
        let _best_effort = stream.set_nodelay(true);
        Self { stream, scanner: Scanner::default(), input: Vec::new(), scanned: 0 }
    }

    /// Waits for the next command and returns its name and arguments.
    ///
    /// # Errors
    ///
    /// The client closed the connection, or it sent bytes that are not a command.
    pub fn command(&mut self) -> io::Result<Vec<Vec<u8>>> {
        loop {
            let (taken, frame) = self.scanner.advance(&self.input[self.scanned..]);
            self.scanned += taken;
            if frame.is_some() {
                let bytes: Vec<u8> = self.input.drain(..self.scanned).collect();
                self.scanned = 0;
                return arguments(&bytes).ok_or_else(|| io::ErrorKind::InvalidData.into());
            }
            let mut chunk = [0; 16 << 10];
            match self.stream.read(&mut chunk)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                read => self.input.extend_from_slice(&chunk[..read]),
            }
        }
    }

    /// Sends raw bytes.
    ///
    /// # Errors
    ///
    /// The client is gone.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        self.stream.write_all(bytes.as_ref())
    }

    /// Replies to the next command as a well-behaved server would, and returns the command.
    ///
    /// # Errors
    ///
    /// The client is gone.
    pub fn answer(&mut self) -> io::Result<Vec<Vec<u8>>> {
        let command = self.command()?;
        self.reply(&command)?;
        Ok(command)
    }

    /// Replies to `command` as a well-behaved server would.
    ///
    /// # Errors
    ///
    /// The client is gone.
    pub fn reply(&mut self, command: &[Vec<u8>]) -> io::Result<()> {
        self.send(well_behaved(command))
    }

    /// Returns true if the client sends more bytes within `patience`.
    ///
    /// # Errors
    ///
    /// Errors of setting a timeout.
    pub fn has_input_within(&mut self, patience: Duration) -> io::Result<bool> {
        if !self.input.is_empty() {
            return Ok(true);
        }
        self.stream.set_read_timeout(Some(patience))?;
        let peeked = self.stream.peek(&mut [0]);
        self.stream.set_read_timeout(None)?;
        Ok(matches!(peeked, Ok(1..)))
    }

    /// Replies to all commands up to the PING that ends a handshake.
    ///
    /// # Errors
    ///
    /// The client is gone.
    pub fn handshake(&mut self) -> io::Result<()> {
        self.handshake_and(b"")
    }

    /// Does the same as [`handshake`](Self::handshake), and appends `more` to the write of the last reply.
    ///
    /// # Errors
    ///
    /// The client is gone.
    pub fn handshake_and(&mut self, more: &[u8]) -> io::Result<()> {
        loop {
            let command = self.command()?;
            let mut reply = well_behaved(&command);
            let last = command.first().is_some_and(|name| name == b"PING");
            if last {
                reply.extend_from_slice(more);
            }
            self.send(reply)?;
            if last {
                return Ok(());
            }
        }
    }

    /// Replies to commands until the client leaves.
    ///
    /// # Errors
    ///
    /// Always: the client is gone.
    pub fn serve(&mut self) -> io::Result<()> {
        loop {
            self.answer()?;
        }
    }

    /// Discards all input until the client leaves.
    ///
    /// # Errors
    ///
    /// The connection was reset.
    pub fn stay_silent(&mut self) -> io::Result<()> {
        let mut chunk = [0; 16 << 10];
        while self.stream.read(&mut chunk)? > 0 {}
        Ok(())
    }

    /// Discards all input until the client closes or resets the connection. Returns the number of bytes, plus one.
    pub fn read_to_end(&mut self) -> u64 {
        let mut chunk = [0; 16 << 10];
        let mut came = 1;
        while let Ok(read @ 1..) = self.stream.read(&mut chunk) {
            came += read as u64;
        }
        came
    }

    /// Returns true if the client closes the connection within `patience`. Discards the input meanwhile.
    ///
    /// # Errors
    ///
    /// Errors of setting a timeout.
    pub fn is_closed_within(&mut self, patience: Duration) -> io::Result<bool> {
        self.stream.set_read_timeout(Some(patience))?;
        match self.stay_silent() {
            Ok(()) => Ok(true),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                Ok(false)
            }
            Err(_reset) => Ok(true),
        }
    }

    /// Makes the end of the script reset the connection (RST) instead of closing it (FIN).
    ///
    /// # Errors
    ///
    /// Errors of `setsockopt(2)`.
    pub fn reset_at_end(&self) -> io::Result<()> {
        socket2::SockRef::from(&self.stream).set_linger(Some(Duration::ZERO))
    }
}

/// The reply to HELLO 3 of a standalone primary.
pub(super) const HELLO: &[u8] = b"%7\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$5\r\n7.2.4\r\n\
    $5\r\nproto\r\n:3\r\n$2\r\nid\r\n:7\r\n$4\r\nmode\r\n$10\r\nstandalone\r\n$4\r\nrole\r\n$6\r\nmaster\r\n\
    $7\r\nmodules\r\n*0\r\n";

fn well_behaved(command: &[Vec<u8>]) -> Vec<u8> {
    let arg = |place: usize| command.get(place).map_or(&b""[..], Vec::as_slice);
    let bulk = |bytes: &[u8]| [format!("${}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat();
    let confirm = |kind: &str| {
        let each = |name: &Vec<u8>| [b">3\r\n", &bulk(kind.as_bytes())[..], &bulk(name), b":1\r\n"].concat();
        command.iter().skip(1).flat_map(each).collect()
    };
    match arg(0) {
        b"HELLO" => HELLO.to_vec(),
        b"PING" if command.len() == 1 => b"+PONG\r\n".to_vec(),
        b"PING" => bulk(arg(1)),
        b"ECHO" => bulk(arg(1)),
        b"SUBSCRIBE" => confirm("subscribe"),
        b"UNSUBSCRIBE" => confirm("unsubscribe"),
        _ => b"+OK\r\n".to_vec(),
    }
}

/// Returns the bulk strings of an array, or `None` for any other frame.
fn arguments(frame: &[u8]) -> Option<Vec<Vec<u8>>> {
    let line = |bytes: &[u8], kind: u8| -> Option<(usize, usize)> {
        let end = bytes.windows(2).position(|pair| pair == b"\r\n")?;
        let text = bytes.get(..end)?.strip_prefix(&[kind])?;
        Some((std::str::from_utf8(text).ok()?.parse().ok()?, end + 2))
    };
    let (count, mut at) = line(frame, b'*')?;
    let mut args = Vec::new();
    for _ in 0..count {
        let (length, header) = line(frame.get(at..)?, b'$')?;
        at += header;
        args.push(frame.get(at..at + length)?.to_vec());
        at += length + 2;
    }
    Some(args)
}
