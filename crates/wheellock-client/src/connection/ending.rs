//! The end of a connection whose runtime drops its driver.
//!
//! Tasks that are dropped with the same runtime have queued calls. Tasks that are dropped later will queue more. This
//! module writes both.
//!
//! After the process has ended, a server cannot write its replies, and then discards unread requests. Source:
//! `writeToClient` in networking.c of Redis 7.0; seen with unix sockets and TLS. The dropped driver therefore waits a
//! moment for replies. Calls that are queued later get no reply, because no task would read it.

use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use crate::connection::{Driver, Phase, Shared, State};

/// How long a dropped driver waits for replies. The time is longer than replies take, and short enough that a
/// runtime's shutdown does not hang.
pub(crate) const LAST_REPLIES: Duration = Duration::from_millis(100);
/// Pause between two reads. The runtime has ended and cannot report that the socket is ready.
pub(crate) const READ_PAUSE: Duration = Duration::from_micros(50);

impl Shared {
    /// Writes all queued bytes when the runtime drops the driver, as far as the socket takes them now. A caller that
    /// queues a call later writes it itself and gets no reply.
    pub(crate) fn abandon(&self) {
        let mut state = self.lock();
        if let Phase::Ready(_) = &state.phase {
            state.driver = Driver::Abandoned;
            self.write_rest(state);
        }
    }

    /// Ends the connection after the driver is gone. Every call fails.
    pub(crate) fn end(&self) {
        let mut state = self.lock();
        state.driver = Driver::Gone;
        self.write_rest(state);
    }

    /// Writes the queued bytes, unless another writer is at work.
    fn write_rest(&self, mut state: MutexGuard<'_, State>) {
        // A writer in another thread continues with these bytes when its own write is done.
        if state.writing {
            return;
        }
        match &state.phase {
            Phase::Ready(writer) if state.pipeline.has_output() => {
                let writer = Arc::clone(writer);
                state.writing = true;
                let bytes = state.pipeline.take_output();
                drop(state);
                self.write_here(&writer, bytes);
            }
            _ if matches!(state.driver, Driver::Gone) => self.end_with(state),
            _ => {}
        }
    }
}
