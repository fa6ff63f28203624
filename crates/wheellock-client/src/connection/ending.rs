//! The last words of a connection that its runtime drops at work: what tasks have queued that were dropped
//! with the same runtime, and what those will queue that are dropped after it.
//!
//! A server that cannot write an answer, because the process has ended meanwhile, throws away what it has not read yet
//! (`writeToClient` in networking.c of Redis 7.0; seen with unix sockets and TLS). So answers are waited for, for a moment, and
//! nothing that is queued later is answered, because nobody would read it.

use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use crate::connection::{Phase, Shared, State};

/// How long a driver that is dropped at work listens for answers. Longer than they take; and a runtime that is shut down must
/// not hang.
pub(crate) const LAST_ANSWERS: Duration = Duration::from_millis(100);
/// Pause between two looks. There is no runtime any more that could tell.
pub(crate) const LAST_LOOKS: Duration = Duration::from_micros(50);

impl Shared {
    /// The runtime drops the driver at work. Everything that is queued is written, as far as the socket takes it now; what
    /// is queued from now on is written by who queues it, and not answered.
    pub(crate) fn abandon(&self) {
        let mut state = self.lock();
        if let Phase::Ready(_) = &state.phase {
            state.abandoned = true;
            self.write_rest(state);
        }
    }

    /// The driver is gone: every call fails.
    pub(crate) fn end(&self) {
        let mut state = self.lock();
        state.driver = None;
        state.ending = true;
        self.write_rest(state);
    }

    /// Writes what is queued, if nobody else will.
    fn write_rest(&self, mut state: MutexGuard<'_, State>) {
        // Whoever is in the middle of a write, in another thread, goes on with this.
        if state.abandoned && state.writing {
            return;
        }
        match &state.phase {
            Phase::Ready(writer) if state.pipeline.has_output() => {
                let writer = Arc::clone(writer);
                state.writing = true;
                let (bytes, epoch) = (state.pipeline.take_output(), state.epoch);
                drop(state);
                self.write_here(&writer, bytes, epoch);
            }
            _ if state.ending => self.end_with(state),
            _ => {}
        }
    }
}
