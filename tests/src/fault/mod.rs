//! Faults on purpose: a proxy that breaks the stream between a client and a real server, a scripted server that
//! answers with any bytes, a way to drop a future in the middle, and seeded randomness to choose among them.
//!
//! Refuses to know the project's own codec: frames are found by a scanner of its own, so that one mistake
//! cannot hide on both sides. Every fault source runs on threads of its own; a stalled runtime under test
//! cannot stall it.

mod cancel;
mod fake;
mod proxy;
mod random;
mod scanner;

pub use cancel::{CancelAt, cancel_at};
pub use fake::{FakeServer, Session};
pub use proxy::{At, Counts, Direction, Fault, Gate, Proxy, Rule, Upstream};
pub use random::Random;
pub use scanner::{Scanned, Scanner};

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering};

/// A listener on a free loopback port below the range the kernel hands out by itself, so that a client which
/// redials a closed port can never be given that port as its own source and connect to itself.
fn listen() -> io::Result<TcpListener> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Processes running side by side start looking at different places; 37 is coprime to the span's length.
    let start = std::process::id().wrapping_mul(37);
    for _ in 0..PORT_SPAN {
        let offset =
            start.wrapping_add(u32::from(NEXT.fetch_add(1, Ordering::Relaxed))) % u32::from(PORT_SPAN);
        let port = FIRST_PORT + u16::try_from(offset).unwrap_or_default();
        if let Ok(listener) = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port))) {
            return Ok(listener);
        }
    }
    Err(io::ErrorKind::AddrNotAvailable.into())
}

/// Below the ports of [`RedisServer`](crate::RedisServer), which start at 20 000.
const FIRST_PORT: u16 = 10_000;
const PORT_SPAN: u16 = 10_000;
