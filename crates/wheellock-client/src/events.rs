//! What the connection tells the operator, through `tracing` if that feature is on. Owns the wording; nothing secret is
//! ever passed in.

use crate::error::Error;
use crate::handshake::ServerInfo;

#[cfg(feature = "tracing")]
pub(crate) fn connected(server: &str, info: &ServerInfo) {
    tracing::info!(server, version = info.version, connection_id = info.connection_id, "connected");
}

#[cfg(feature = "tracing")]
pub(crate) fn connect_failed(server: &str, error: &Error) {
    tracing::warn!(server, kind = ?error.kind(), detail = error.detail(), "cannot connect");
}

#[cfg(feature = "tracing")]
pub(crate) fn disconnected(server: &str, error: &Error) {
    tracing::warn!(server, kind = ?error.kind(), detail = error.detail(), "connection ended");
}

#[cfg(not(feature = "tracing"))]
pub(crate) fn connected(_server: &str, _info: &ServerInfo) {}

#[cfg(not(feature = "tracing"))]
pub(crate) fn connect_failed(_server: &str, _error: &Error) {}

#[cfg(not(feature = "tracing"))]
pub(crate) fn disconnected(_server: &str, _error: &Error) {}
