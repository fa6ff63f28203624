//! Loopback TCP ports for servers, each taken by one owner at a time on the whole machine.

use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::sync::atomic::{AtomicU16, Ordering};

use anyhow::{Result, bail};

/// A port that is ours also while the server on it is down.
#[derive(Debug)]
pub(crate) struct Port {
    number: u16,
    /// Servers speak TCP, so the UDP port of the same number is free to say that the port is taken. The kernel takes it
    /// back however we end.
    _reservation: UdpSocket,
}

impl Port {
    /// A port nobody listens on or has reserved, below the range the kernel hands out by itself.
    ///
    /// Inside that range, a client that redials a dead server's port can be given that very port as its own
    /// source, connect to itself, and keep the server from coming back.
    pub(crate) fn reserve() -> Result<Self> {
        static NEXT: AtomicU16 = AtomicU16::new(0);
        // Processes running side by side start looking at different places; 61 is coprime to the span's length.
        let start = std::process::id().wrapping_mul(61);
        for _ in 0..SPAN {
            let offset =
                start.wrapping_add(u32::from(NEXT.fetch_add(1, Ordering::Relaxed))) % u32::from(SPAN);
            let number = FIRST + u16::try_from(offset)?;
            let Ok(reservation) = UdpSocket::bind((Ipv4Addr::LOCALHOST, number)) else { continue };
            if TcpListener::bind((Ipv4Addr::LOCALHOST, number)).is_ok() {
                return Ok(Self { number, _reservation: reservation });
            }
        }
        bail!("no free loopback port in {FIRST}..{}", FIRST + SPAN)
    }

    pub(crate) fn number(&self) -> u16 {
        self.number
    }
}

/// Linux hands out 32768 and up, macOS 49152 and up.
const FIRST: u16 = 20_000;
const SPAN: u16 = 12_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reserved_port_is_nobody_elses() {
        let port = Port::reserve().unwrap();
        assert!(UdpSocket::bind((Ipv4Addr::LOCALHOST, port.number())).is_err());
        assert!(TcpListener::bind((Ipv4Addr::LOCALHOST, port.number())).is_ok(), "for its server it is free");
    }
}
