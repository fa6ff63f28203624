//! From a key to the connection that serves it. Knows no protocol.

use std::ops::Deref;
use std::sync::Arc;

use crate::connection::Shared;
use crate::topology::Cluster;

/// What a client's calls go to.
pub(crate) enum Route {
    /// Every call to one and the same server, which may be found anew at every connect.
    One(Arc<Shared>),
    /// Each call to the node that serves its key.
    Cluster(Arc<Cluster>),
}

impl Clone for Route {
    fn clone(&self) -> Self {
        match self {
            Self::One(shared) => {
                shared.handle_cloned();
                Self::One(Arc::clone(shared))
            }
            Self::Cluster(cluster) => {
                cluster.handle_cloned();
                Self::Cluster(Arc::clone(cluster))
            }
        }
    }
}

impl Drop for Route {
    fn drop(&mut self) {
        match self {
            Self::One(shared) => shared.handle_dropped(),
            Self::Cluster(cluster) => cluster.handle_dropped(),
        }
    }
}

/// The server that serves a call; borrowed where it is always the same one.
pub(crate) enum Server<'a> {
    Only(&'a Arc<Shared>),
    Node(Arc<Shared>),
}

impl Deref for Server<'_> {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        match self {
            Self::Only(shared) => shared,
            Self::Node(shared) => shared,
        }
    }
}
