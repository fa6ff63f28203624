//! How one call is to be made, where its caller has a say.

use std::time::Instant;

use crate::protocol::pipeline::Lane;

/// How one call is to be made.
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
    /// Absolute deadline that covers queueing, connecting and the reply; the configured response timeout from the
    /// first poll if `None`.
    pub deadline: Option<Instant>,
    /// May use the room that is kept free for calls that must not be refused when the queue is full.
    pub reserved: bool,
}

impl CallOptions {
    /// Options with a deadline.
    pub fn by(deadline: Instant) -> Self {
        Self { deadline: Some(deadline), ..Self::default() }
    }

    /// The same options with access to the reserved room.
    #[must_use]
    pub fn reserved(self) -> Self {
        Self { reserved: true, ..self }
    }

    pub(crate) fn lane(self) -> Lane {
        if self.reserved { Lane::Reserved } else { Lane::Normal }
    }
}
