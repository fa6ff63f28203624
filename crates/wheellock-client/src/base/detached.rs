//! The end of a call that nobody waited for, as a value.

use wheellock_resp::Value;

use crate::base::connection_id::ConnectionId;
use crate::base::error::{Error, ErrorKind, Outcome};

/// The end of a call that nobody waited for.
#[derive(Debug)]
#[non_exhaustive]
pub struct Detached {
    /// What the call was queued with.
    pub token: u64,
    /// The reply; an error reply is an `Ok` holding an error value. Otherwise, what may have become of the call.
    pub result: Result<Value, Outcome>,
    /// The connection on which it was answered, or given up.
    pub connection: ConnectionId,
    /// What ended the connection, if that is why there is no reply, and how a caller is told.
    pub(crate) cause: Option<(ErrorKind, Error)>,
}
