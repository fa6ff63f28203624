//! From a key to the connection that serves it. Knows no protocol.

use std::ops::Deref;
use std::sync::Arc;

use crate::connection::Shared;

/// What a client's calls go to.
pub(crate) enum Route {
    /// Every call to one and the same server, which may be found anew at every connect.
    One(Arc<Shared>),
}

/// The server that serves a call; borrowed where it is always the same one.
pub(crate) enum Server<'a> {
    Only(&'a Arc<Shared>),
}

impl Deref for Server<'_> {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        match self {
            Self::Only(shared) => shared,
        }
    }
}
