//! The address of one server.
//!
//! This module opens and resolves nothing.

use std::fmt;
use std::path::PathBuf;

/// The address of one server.
///
/// ```
/// use wheellock_client::{Address, Config};
///
/// let config = Config::new(Address::Tcp { host: "::1".to_owned(), port: 6379 });
/// assert_eq!(config.servers.to_string(), "[::1]:6379");
/// assert_eq!(Address::Unix("/run/redis.sock".into()).to_string(), "/run/redis.sock");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Address {
    /// A host name or IP address, and a port. The client resolves names at every connect.
    Tcp {
        /// Host name, IPv4 or IPv6 address (without brackets).
        host: String,
        /// TCP port.
        port: u16,
    },
    /// A unix domain socket. Connecting fails on platforms without such sockets, as on Windows.
    Unix(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}
