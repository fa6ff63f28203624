//! Options of one call.

use std::time::Instant;

use crate::protocol::pipeline::Lane;

/// Options of one call.
///
/// ```no_run
/// use std::time::{Duration, Instant};
/// use wheellock_client::{CallOptions, Command};
///
/// # async fn example(client: wheellock_client::Client) -> Result<(), wheellock_client::Error> {
/// let soon = Instant::now() + Duration::from_millis(200);
/// let reply = client.call_with(&Command::new("GET").arg("greeting"), CallOptions::by(soon)).await?;
/// # drop(reply);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct CallOptions {
    /// The absolute deadline. It covers queueing, connecting and the reply. If `None`, the configured response
    /// timeout applies from the first poll.
    pub deadline: Option<Instant>,
    /// Allows the call to use the reserved room. That room stays free for calls that must not be refused when the
    /// queue is full.
    pub reserved: bool,
}

impl CallOptions {
    /// Returns options with a deadline.
    pub fn by(deadline: Instant) -> Self {
        Self { deadline: Some(deadline), ..Self::default() }
    }

    /// Returns the same options with access to the reserved room.
    #[must_use]
    pub fn reserved(self) -> Self {
        Self { reserved: true, ..self }
    }

    pub(crate) fn lane(self) -> Lane {
        if self.reserved { Lane::Reserved } else { Lane::Normal }
    }
}
