//! Identity of a client's connection.

/// The identity of one connection, from its handshake to its end. Another connection has nothing to do with its
/// writes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ConnectionId {
    pub(crate) node: u32,
    pub(crate) epoch: u32,
}

impl ConnectionId {
    /// Returns the identity of the connection with the number `epoch` to the server with the number `node`.
    pub fn new(node: u32, epoch: u32) -> Self {
        Self { node, epoch }
    }

    /// Returns the number of the server behind the connection. [`Client::node_of`](crate::Client::node_of) returns
    /// the same number for the keys of that server. A server that replaces another server may have that server's
    /// number.
    pub fn node(self) -> u32 {
        self.node
    }
}
