//! Loopback TCP ports for servers.
//!
//! Only one owner on the whole machine has a port at a time.

use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::sync::atomic::{AtomicU16, Ordering};

use anyhow::{Result, bail};

/// A port that stays reserved while its server is down.
#[derive(Debug)]
pub(crate) struct Port {
    number: u16,
    /// Servers speak TCP, so the UDP port of the same number is free. Binding it reserves the port. The kernel frees it however this
    /// process ends.
    _reservation: UdpSocket,
}

impl Port {
    /// Reserves a port without a listener or another reservation, below the range of ports that the kernel assigns.
    ///
    /// Inside that range, the kernel could assign a dead server's port to a client that redials it. The client would then connect to
    /// itself, and the server could not bind the port again.
    pub(crate) fn reserve() -> Result<Self> {
        static NEXT: AtomicU16 = AtomicU16::new(0);
        // Concurrent processes begin their search at different ports. 61 is coprime to the span's length.
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

/// The kernel's own range begins at 32768 on Linux, and at 49152 on macOS.
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
