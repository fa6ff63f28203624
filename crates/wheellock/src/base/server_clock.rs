//! Detection of jumps of a server's clock. Pure: its input is a server's time and the two instants around the reading.
//!
//! Redis expires keys by its wall clock. A jump forward ends leases early. A jump backward makes leases outlive their holders. No reply
//! reports a jump, so only a comparison of the server's clock with ours reveals it.

use std::collections::HashMap;
use std::time::Duration;

use crate::base::clock::BootInstant;

/// The clocks of all servers. Each is compared only with itself, because the clocks of a cluster's nodes differ.
#[derive(Default)]
pub(crate) struct ServerClocks {
    last: HashMap<u32, Sample>,
    /// When the last jump forward was noticed, on any server. One field is enough because jumps are rare.
    jumped: Option<BootInstant>,
}

impl ServerClocks {
    /// Compares the clock of `node` with its last sample.
    pub(crate) fn observe(&mut self, node: u32, sample: Sample) -> Option<Jump> {
        if !self.last.contains_key(&node) {
            // Nodes join and leave for as long as the process lives.
            let lately = sample.received.saturating_sub(MEMORY);
            self.last.retain(|_, last| last.received >= lately);
        }
        let jump = self.last.insert(node, sample).and_then(|last| sample.jump_since(last));
        if let Some(Jump::Forward(_)) = jump {
            self.jumped = Some(sample.received);
        }
        jump
    }

    /// Forgets the clock of `node`, because another server has its place.
    pub(crate) fn forget(&mut self, node: u32) {
        self.last.remove(&node);
    }

    /// Returns true if a request sent at `sent` may have been executed before a jump forward that was noticed since.
    pub(crate) fn jumped_since(&self, sent: BootInstant) -> bool {
        self.jumped.is_some_and(|jumped| sent <= jumped)
    }
}

/// The server's time since the Unix epoch, read between two of our instants.
#[derive(Clone, Copy)]
pub(crate) struct Sample {
    pub(crate) server: Duration,
    pub(crate) sent: BootInstant,
    pub(crate) received: BootInstant,
}

/// By how much the server's clock moved beyond the time that has passed. For a forward jump this is the largest possible value, because
/// leases may end earlier by that much.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Jump {
    Forward(Duration),
    Backward(Duration),
}

impl Sample {
    /// Compares this sample with the last one of the same clock.
    fn jump_since(self, last: Self) -> Option<Jump> {
        // The server read its clock at some instant between the request and the reply.
        let at_least = self.sent.saturating_duration_since(last.received);
        let at_most = self.received.saturating_duration_since(last.sent);
        let fastest = at_most + at_most / 100 + SLACK;
        let slowest = (at_least - at_least / 100).saturating_sub(SLACK);
        match self.server.checked_sub(last.server) {
            Some(moved) if moved > fastest => Some(Jump::Forward(moved - at_least)),
            Some(moved) if moved < slowest => Some(Jump::Backward(at_least - moved)),
            Some(_) => None,
            None => Some(Jump::Backward(last.server - self.server + at_least)),
        }
    }
}

/// As for leases: 1 % for the clocks' rates and 2 ms for their granularity.
const SLACK: Duration = Duration::from_millis(2);

/// How long the clock of a silent server is remembered.
const MEMORY: Duration = Duration::from_secs(24 * 3600);

#[cfg(test)]
mod tests;
