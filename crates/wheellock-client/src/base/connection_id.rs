//! What tells the connections of one client apart.

/// One connection, from its handshake to its end. What was written on another one is none of its business.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ConnectionId {
    pub(crate) node: u32,
    pub(crate) epoch: u32,
}

impl ConnectionId {
    /// The number of the server that it leads to: the one that [`Client::node_of`](crate::Client::node_of) gives for the
    /// keys that are served there. A server that takes another's place may have the same.
    pub fn node(self) -> u32 {
        self.node
    }
}
