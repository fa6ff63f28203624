//! The server of one call.

use std::ops::Deref;
use std::sync::Arc;

use crate::connection::Shared;

/// The server of a call. It is borrowed if every call has the same server.
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
