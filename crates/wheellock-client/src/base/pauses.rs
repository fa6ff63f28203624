//! Pauses between attempts to connect, by the last failure.
//!
//! This module reads no clock and draws no random numbers.

use std::time::{Duration, Instant};

use crate::base::backoff::Backoff;
use crate::base::error::{Error, ErrorKind};

/// The shortest pause after refused credentials. They do not become valid within milliseconds, and servers log or
/// punish retries.
const REFUSED_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause after a server has answered and turned the connection away, for example at its `maxclients`
/// limit. Each attempt costs the server a connection and a handshake, and the server needs time.
const TURNED_AWAY_PAUSE: Duration = Duration::from_secs(2);
/// The longest pause before the next attempt at a server that is up and not yet a primary.
const ALMOST_READY_PAUSE: Duration = Duration::from_millis(20);
/// The time for which `ALMOST_READY_PAUSE` applies. A server that takes longer gains nothing from frequent attempts.
/// The time equals `pace::TROUBLE`, the phase in which a cluster is queried often.
const ALMOST_READY: Duration = Duration::from_secs(10);

pub(crate) struct Pauses {
    backoff: Backoff,
    turned_away: Backoff,
    almost_ready_since: Option<Instant>,
}

impl Pauses {
    /// Creates the pauses, with the shortest and the longest pause after an attempt that found no server.
    pub(crate) fn new((min, max): (Duration, Duration)) -> Self {
        Self {
            backoff: Backoff::new(min, max),
            turned_away: Backoff::new(min, max.max(TURNED_AWAY_PAUSE)),
            almost_ready_since: None,
        }
    }

    /// Resets the pauses once a connection has proved itself.
    pub(crate) fn reset(&mut self) {
        self.backoff.reset();
        self.turned_away.reset();
    }

    /// Returns the pause before the next attempt. `may_move` is true if another server may take this server's place.
    /// `random` is uniform over all of `u64`.
    pub(crate) fn after(&mut self, error: &Error, may_move: bool, now: Instant, random: u64) -> Duration {
        // Another server may have room, so only a single server gets the longer pause.
        let turned_away = error.kind() == ErrorKind::Connect && error.code().is_some() && !may_move;
        let pause = if turned_away { self.turned_away.next(random) } else { self.backoff.next(random) };
        if error.is_refusal() {
            return pause.max(REFUSED_PAUSE);
        }
        // The server is up, and may soon become the primary.
        if error.kind() == ErrorKind::NotReady && may_move {
            let since = *self.almost_ready_since.get_or_insert(now);
            let soon = now.saturating_duration_since(since) < ALMOST_READY;
            return if soon { pause.min(ALMOST_READY_PAUSE) } else { pause };
        }
        self.almost_ready_since = None;
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLISECOND: Duration = Duration::from_millis(1);

    fn connect_error(code: Option<&str>, kind: ErrorKind) -> Error {
        let error = Error::step(kind, "connect to", "db", "no".to_owned());
        code.map_or(error.clone(), |code| error.with_code(code))
    }

    /// Returns the number of attempts within `time`, with pauses from the middle of their range.
    fn attempts(error: &Error, may_move: bool, time: Duration) -> u32 {
        let mut pauses = Pauses::new((5 * MILLISECOND, 200 * MILLISECOND));
        let start = Instant::now();
        let (mut now, mut random, mut attempts) = (start, 7_u64, 0);
        while now - start < time {
            // A 64-bit LCG, which is uniform enough.
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            now += pauses.after(error, may_move, now, random >> 1) + MILLISECOND;
            attempts += 1;
        }
        attempts
    }

    #[test]
    fn full_server_slows_retries() {
        let minute = Duration::from_secs(60);
        let full = connect_error(Some("ERR"), ErrorKind::Connect);
        assert!((30..100).contains(&attempts(&full, false, minute)), "{}", attempts(&full, false, minute));
        let away = connect_error(None, ErrorKind::Connect);
        assert!(attempts(&away, false, minute) > 400, "a server that restarts is found at once");
        assert!(attempts(&full, true, minute) > 400, "another server may have room");
    }

    #[test]
    fn refused_credentials_pause_one_second() {
        let mut pauses = Pauses::new((5 * MILLISECOND, 200 * MILLISECOND));
        let refused = connect_error(Some("WRONGPASS"), ErrorKind::Auth);
        assert!(pauses.after(&refused, false, Instant::now(), 0) >= REFUSED_PAUSE);
    }

    #[test]
    fn future_primary_is_retried_fast_first() {
        let mut pauses = Pauses::new((5 * MILLISECOND, 200 * MILLISECOND));
        let (now, replica) = (Instant::now(), connect_error(None, ErrorKind::NotReady));
        let mut longest = |at: Instant| {
            let long = (0..50).map(|_| pauses.after(&replica, true, at, 200_000_000)).max();
            long.unwrap_or_default()
        };
        assert!(longest(now) <= ALMOST_READY_PAUSE);
        assert!(longest(now + ALMOST_READY) > ALMOST_READY_PAUSE);
    }
}
