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

use std::net::{Ipv4Addr, TcpListener};

use anyhow::Result;

use crate::port::Port;

/// A listener, and its port, which is its own also while nobody listens there.
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

    /// Clients would reach whoever listened there meanwhile, and the proxy could not come back.
    #[test]
    fn a_port_stays_its_proxys_while_it_refuses() {
        let proxy = Proxy::before(&RedisServer::start());
        proxy.gate(Gate::Refuse);
        assert!(TcpStream::connect(proxy.addr()).is_err());
        assert!(UdpSocket::bind(proxy.addr()).is_err(), "it is reserved");
        proxy.gate(Gate::Silent);
        assert!(TcpStream::connect(proxy.addr()).is_ok());
    }
}
