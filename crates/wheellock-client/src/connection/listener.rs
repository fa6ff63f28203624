//! The events that a connection reports to its listener.
//!
//! The connection does not know the consequences of an event. The module that opened the connection does.

/// A change of a connection's state.
pub(crate) enum Event<'a> {
    /// The connection is up. `replaced` is true if a different server replies than before.
    Up { replaced: bool },
    /// Any key of the server may have changed since it was last seen.
    AnyKeyChanged,
    /// The connection has ended or could not be opened. The driver retries.
    Down,
    /// The connection has ended for good.
    Closed,
    /// The server is connected and does not reply. Another server may have replaced it.
    Silent,
    /// The server's `reply` names another node for a slot. `host` is the host at which this server was reached.
    Redirected { reply: &'a [u8], host: Option<String> },
}

/// The receiver of the events. The connection's task calls it without any lock, so it must be quick.
pub(crate) type Listener = Box<dyn Fn(Event<'_>) + Send + Sync>;
