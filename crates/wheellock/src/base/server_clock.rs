//! Notices when a server's clock jumps. Pure; is told what time which server said it was, and between which instants.
//!
//! Redis expires keys by its wall clock. A jump forward ends leases early, one backward makes them outlive their
//! holders, and no reply says so: only comparing the server's clock with ours does.

use std::collections::HashMap;
use std::time::Duration;

use crate::base::clock::BootInstant;

/// The clocks of all servers, each compared with itself only: those of a cluster's nodes differ.
#[derive(Default)]
pub(crate) struct ServerClocks {
    clocks: HashMap<u32, ServerClock>,
    /// When a jump ahead was heard of last, of whichever server: they are rare.
    jumped: Option<BootInstant>,
}

impl ServerClocks {
    /// Compares what the clock of `node` says with what it said before.
    pub(crate) fn observe(&mut self, node: u32, sample: Sample) -> Option<Jump> {
        if !self.clocks.contains_key(&node) {
            // Nodes come and go for as long as the process lives.
            let lately = sample.received.saturating_sub(MEMORY);
            self.clocks.retain(|_, clock| clock.last.is_some_and(|last| last.received >= lately));
        }
        let jump = self.clocks.entry(node).or_default().observe(sample);
        if let Some(Jump::Forward(_)) = jump {
            self.jumped = Some(sample.received);
        }
        jump
    }

    /// Whether a request that was sent at `sent` may have been executed before a jump ahead that has been heard of since.
    pub(crate) fn jumped_since(&self, sent: BootInstant) -> bool {
        self.jumped.is_some_and(|jumped| sent <= jumped)
    }
}

/// What one server's clock has said so far.
#[derive(Default)]
struct ServerClock {
    last: Option<Sample>,
}

/// The server's time since the Unix epoch, read between two instants of ours.
#[derive(Clone, Copy)]
pub(crate) struct Sample {
    pub(crate) server: Duration,
    pub(crate) sent: BootInstant,
    pub(crate) received: BootInstant,
}

/// By how much the server's clock moved beyond what the time that has passed explains; forward at most by so much, for leases may end that
/// much earlier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Jump {
    Forward(Duration),
    Backward(Duration),
}

impl ServerClock {
    /// Compares a new sample with the one before.
    fn observe(&mut self, sample: Sample) -> Option<Jump> {
        let last = self.last.replace(sample)?;
        // Both readings happened somewhere between their sending and their answer.
        let at_least = sample.sent.saturating_duration_since(last.received);
        let at_most = sample.received.saturating_duration_since(last.sent);
        let fastest = at_most + at_most / 100 + SLACK;
        let slowest = (at_least - at_least / 100).saturating_sub(SLACK);
        match sample.server.checked_sub(last.server) {
            Some(moved) if moved > fastest => Some(Jump::Forward(moved - at_least)),
            Some(moved) if moved < slowest => Some(Jump::Backward(at_least - moved)),
            Some(_) => None,
            None => Some(Jump::Backward(last.server - sample.server + at_least)),
        }
    }
}

/// As for leases: 1 % for the clocks' rates and 2 ms for their granularity.
const SLACK: Duration = Duration::from_millis(2);

/// How long the clock of a server is remembered that is not heard of.
const MEMORY: Duration = Duration::from_secs(24 * 3600);

#[cfg(test)]
mod tests;
