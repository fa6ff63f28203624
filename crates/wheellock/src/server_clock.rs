//! Notices when a server's clock jumps. Pure; is told what time which server said it was, and between which instants.
//!
//! Redis expires keys by its wall clock. A jump forward ends leases early, one backward makes them outlive their
//! holders, and no reply says so: only comparing the server's clock with ours does.

use std::collections::HashMap;
use std::time::Duration;

use crate::clock::BootInstant;

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
mod tests {
    use super::*;

    fn sample(server_millis: u64, sent_millis: u64, received_millis: u64) -> Sample {
        let start = BootInstant::now();
        let at = |millis| start + Duration::from_millis(millis);
        Sample {
            server: Duration::from_millis(1_700_000_000_000 + server_millis),
            sent: at(sent_millis),
            received: at(received_millis),
        }
    }

    #[test]
    fn slow_replies_and_drifting_clocks_are_no_jumps() {
        for (server, sent, received) in [
            (10_000, 10_000, 10_001),
            (14_000, 10_000, 14_000),
            (10_000, 10_000, 14_000),
            (10_099, 10_000, 10_001),
        ] {
            let mut clock = ServerClock::default();
            assert_eq!(clock.observe(sample(0, 0, 1)), None);
            assert_eq!(clock.observe(sample(server, sent, received)), None, "{server} {sent} {received}");
        }
    }

    #[test]
    fn a_jump_is_as_long_as_it_may_have_been() {
        let (mut clock, start) = (ServerClock::default(), BootInstant::now());
        let heard = |server, sent, received| {
            let at = |seconds| start + Duration::from_secs(seconds);
            Sample { server: Duration::from_secs(server), sent: at(sent), received: at(received) }
        };
        assert_eq!(clock.observe(heard(1_000, 0, 0)), None);
        // It was read when it was asked, or when it answered, or in between.
        let jumped = clock.observe(heard(1_040, 10, 14));
        assert_eq!(jumped, Some(Jump::Forward(Duration::from_secs(30))));
    }

    #[test]
    fn each_server_is_compared_with_itself() {
        let start = BootInstant::now();
        let at = |server: u64, ours: u64| {
            let now = start + Duration::from_secs(ours);
            Sample { server: Duration::from_secs(server), sent: now, received: now }
        };
        let mut clocks = ServerClocks::default();
        for second in 0..2 {
            assert_eq!(clocks.observe(1, at(1_000 + second, second)), None);
            assert_eq!(clocks.observe(2, at(9_000 + second, second)), None);
        }
        assert_eq!(clocks.observe(1, at(1_002, 2)), None);
        assert_eq!(clocks.observe(2, at(9_062, 2)), Some(Jump::Forward(Duration::from_secs(60))));
        assert_eq!(clocks.observe(3, at(0, 48 * 3600)), None);
        assert_eq!(clocks.clocks.len(), 1, "servers that are gone are forgotten");
    }

    #[test]
    fn jumps_are_measured_both_ways() {
        let start = BootInstant::now();
        let at = |server: u64, ours: u64| Sample {
            server: Duration::from_secs(server),
            sent: start + Duration::from_secs(ours),
            received: start + Duration::from_secs(ours),
        };
        let mut clock = ServerClock::default();
        assert_eq!(clock.observe(at(1_000_000, 0)), None);
        assert_eq!(clock.observe(at(1_000_041, 10)), Some(Jump::Forward(Duration::from_secs(31))));
        assert_eq!(clock.observe(at(1_000_051, 20)), None, "once");
        assert_eq!(clock.observe(at(1_000_058, 30)), Some(Jump::Backward(Duration::from_secs(3))));
        assert_eq!(clock.observe(at(996_468, 40)), Some(Jump::Backward(Duration::from_secs(3_600))));
    }
}
