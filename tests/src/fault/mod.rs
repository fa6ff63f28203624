//! Deliberate faults for tests.
//!
//! Provides a proxy that breaks the stream between a client and a real server, and a scripted server that replies with any bytes. Also
//! provides a future that drops another future midway, and seeded randomness to choose faults.
//!
//! Does not use the project's own codec. A separate scanner finds the frames, so that the same mistake cannot hide on both sides. Every
//! fault source runs on its own threads, so a stalled runtime under test cannot stall it.

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

use std::net::{Ipv4Addr, TcpListener};

use anyhow::Result;

use crate::port::Port;

/// Returns a listener and its port. The port stays reserved while the listener is closed.
fn listen() -> Result<(Port, TcpListener)> {
    let port = Port::reserve()?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port.number()))?;
    Ok((port, listener))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpStream, UdpSocket};

    use super::*;
    use crate::RedisServer;

    /// Otherwise clients would reach another listener meanwhile, and the proxy could not bind the port again.
    #[test]
    fn refusing_proxy_keeps_port() {
        let proxy = Proxy::before(&RedisServer::start());
        proxy.gate(Gate::Refuse);
        assert!(TcpStream::connect(proxy.addr()).is_err());
        assert!(UdpSocket::bind(proxy.addr()).is_err(), "it is reserved");
        proxy.gate(Gate::Silent);
        assert!(TcpStream::connect(proxy.addr()).is_ok());
    }
}
