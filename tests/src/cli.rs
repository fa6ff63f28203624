//! A minimal blocking RESP2 client over std sockets.
//!
//! Tests examine a server with it, and do not have to trust the code under test.
//!
//! Does not pipeline, reconnect or speak RESP3: the client sends a request and reads its reply, on a single socket.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// One blocking connection to a server.
#[derive(Debug)]
pub struct Cli {
    stream: BufReader<Stream>,
}

impl Cli {
    /// Connects to a unix socket.
    ///
    /// # Errors
    ///
    /// Errors of `connect(2)`.
    pub fn connect_unix(path: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(REPLY_TIMEOUT))?;
        Ok(Self { stream: BufReader::new(Stream::Unix(stream)) })
    }

    /// Connects over TCP.
    ///
    /// # Errors
    ///
    /// Errors of `connect(2)`.
    pub fn connect_tcp(addr: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(addr)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(REPLY_TIMEOUT))?;
        Ok(Self { stream: BufReader::new(Stream::Tcp(stream)) })
    }

    /// Sends a command and reads its reply. An error reply is `Ok(Reply::Error)`, because the connection still works.
    ///
    /// # Errors
    ///
    /// A broken connection, no reply within ten seconds, or bytes that are not RESP2.
    pub fn query<A: AsRef<[u8]>>(&mut self, args: &[A]) -> io::Result<Reply> {
        self.send(args)?;
        self.read_reply()
    }

    /// Sends a command without reading its reply.
    ///
    /// # Errors
    ///
    /// A broken connection.
    pub fn send<A: AsRef<[u8]>>(&mut self, args: &[A]) -> io::Result<()> {
        let mut request = format!("*{}\r\n", args.len()).into_bytes();
        for arg in args {
            let arg = arg.as_ref();
            request.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
            request.extend_from_slice(arg);
            request.extend_from_slice(b"\r\n");
        }
        self.stream.get_mut().write_all(&request)
    }

    /// Reads a reply (or, after MONITOR or SUBSCRIBE, the next message).
    ///
    /// # Errors
    ///
    /// A broken connection, nothing within ten seconds, or bytes that are not RESP2.
    pub fn read_reply(&mut self) -> io::Result<Reply> {
        let line = self.read_line()?;
        let (kind, rest) = line.split_at_checked(1).ok_or_else(|| malformed(&line))?;
        let length = || rest.parse::<i64>().map_err(|_| malformed(&line));
        Ok(match kind {
            "+" => Reply::Status(rest.to_owned()),
            "-" => Reply::Error(rest.to_owned()),
            ":" => Reply::Integer(length()?),
            "$" => match usize::try_from(length()?) {
                Err(_) => Reply::Nil,
                Ok(length) => {
                    let mut bulk = vec![0; length + 2];
                    self.stream.read_exact(&mut bulk)?;
                    bulk.truncate(length);
                    Reply::Bulk(bulk)
                }
            },
            "*" => match usize::try_from(length()?) {
                Err(_) => Reply::Nil,
                Ok(length) => {
                    Reply::Array((0..length).map(|_| self.read_reply()).collect::<io::Result<_>>()?)
                }
            },
            _ => return Err(malformed(&line)),
        })
    }

    fn read_line(&mut self) -> io::Result<String> {
        let mut line = Vec::new();
        self.stream.read_until(b'\n', &mut line)?;
        match line.strip_suffix(b"\r\n") {
            Some(line) => Ok(String::from_utf8_lossy(line).into_owned()),
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

/// One RESP2 reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// `+OK`
    Status(String),
    /// `-ERR ...`, without the dash
    Error(String),
    /// `:1`
    Integer(i64),
    /// `$3\r\nfoo`
    Bulk(Vec<u8>),
    /// A null bulk or a null array.
    Nil,
    /// `*2 ...`
    Array(Vec<Self>),
}

/// Formats a reply for humans: bare text, `(nil)`, `(error) ...`, and each element of an array on its own line.
impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(text) => f.write_str(text),
            Self::Error(text) => write!(f, "(error) {text}"),
            Self::Integer(number) => number.fmt(f),
            Self::Bulk(bytes) => f.write_str(&String::from_utf8_lossy(bytes)),
            Self::Nil => f.write_str("(nil)"),
            Self::Array(elements) => {
                for (index, element) in elements.iter().enumerate() {
                    if index > 0 {
                        f.write_str("\n")?;
                    }
                    element.fmt(f)?;
                }
                Ok(())
            }
        }
    }
}

/// Longer than any command that a test sends, and than a write of the append-only file on a busy disk. A paused server must not hang the
/// test run.
const REPLY_TIMEOUT: Duration = Duration::from_secs(30);

fn malformed(line: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("not RESP2: {line:?}"))
}

#[derive(Debug)]
enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(buffer),
            Self::Unix(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
