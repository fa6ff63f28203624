//! The result of a call without a waiting caller.

use wheellock_resp::Value;

use crate::base::connection_id::ConnectionId;
use crate::base::error::{Error, ErrorKind, Outcome};

/// The result of a call without a waiting caller.
#[derive(Debug)]
#[non_exhaustive]
pub struct Detached {
    /// The token with which the call was queued.
    pub token: u64,
    /// The reply, or the outcome of a call without a reply. An error reply is an `Ok` that holds an error value.
    pub result: Result<Value, Outcome>,
    /// The connection that carried the call until its reply or its failure.
    pub connection: ConnectionId,
    /// The error that ended the connection, and the kind of error that the caller receives. `None` if the connection
    /// is not the reason.
    pub(crate) cause: Option<(ErrorKind, Error)>,
}
