//! Detection of silent servers.
//!
//! This module reads no clock: the driver passes the times.

use std::time::{Duration, Instant};

/// The time for which the driver has watched a server that owes a reply.
///
/// The age of a call does not show how long its server has been silent. The process may have been suspended before it
/// wrote the call, or before it read the reply. The server therefore counts as dead only if the driver was punctual
/// during the last quarter of the response timeout.
#[derive(Default)]
pub(crate) struct Silence {
    /// The start of the watched silence, and the time since which the driver has watched it.
    watched: Option<(Instant, Instant)>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The server owes no reply.
    Quiet,
    /// The driver has to check again at this time.
    CheckAt(Instant),
    /// The server counts as dead.
    Lost,
}

impl Silence {
    /// Judges a server that has been silent since `since`. `late` is the delay of the driver's check.
    pub(crate) fn judge(
        &mut self,
        since: Option<Instant>,
        late: Duration,
        now: Instant,
        timeout: Duration,
    ) -> Verdict {
        let Some(since) = since else {
            self.watched = None;
            return Verdict::Quiet;
        };
        let last_part = last_part(timeout);
        self.watched = self.watched.filter(|(start, _)| *start == since && !stood_still(late, timeout));
        let begins = since + (timeout - last_part);
        if now < begins {
            return Verdict::CheckAt(begins);
        }
        // A slight delay still counts as punctual. Otherwise the call's deadline would pass just before the verdict.
        // The next call would then use a connection that has lost a reply.
        let watches_from = if now < begins + last_part && !stood_still(late, timeout) { begins } else { now };
        let (_, watched) = *self.watched.get_or_insert((since, watches_from));
        let ends = (since + timeout).max(watched + last_part);
        if now < ends { Verdict::CheckAt(ends) } else { Verdict::Lost }
    }
}

/// Returns true if a driver that was `late` cannot know how long its server was silent.
pub(crate) fn stood_still(late: Duration, timeout: Duration) -> bool {
    !late.is_zero() && late >= last_part(timeout)
}

/// Returns the part of the response timeout during which the driver has to be punctual.
pub(crate) fn last_part(timeout: Duration) -> Duration {
    timeout / 4
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_millis(400);
    const MS: Duration = Duration::from_millis(1);
    const PUNCTUAL: Duration = Duration::ZERO;

    #[test]
    fn dead_server_is_lost_at_timeout() {
        let (mut silence, start) = (Silence::default(), Instant::now());
        assert_eq!(silence.judge(None, PUNCTUAL, start, TIMEOUT), Verdict::Quiet);
        let mut judge = |ms: u32| silence.judge(Some(start), PUNCTUAL, start + ms * MS, TIMEOUT);
        assert_eq!(judge(1), Verdict::CheckAt(start + 300 * MS));
        assert_eq!(judge(300), Verdict::CheckAt(start + 400 * MS));
        assert_eq!(judge(400), Verdict::Lost);
    }

    #[test]
    fn paused_process_watches_anew() {
        let (mut silence, start) = (Silence::default(), Instant::now());
        let mut judge = |ms: u32, late: u32| silence.judge(Some(start), late * MS, start + ms * MS, TIMEOUT);
        assert_eq!(judge(300, 0), Verdict::CheckAt(start + 400 * MS));
        assert_eq!(judge(900, 500), Verdict::CheckAt(start + 1000 * MS), "nothing was seen in between");
        assert_eq!(judge(1300, 300), Verdict::CheckAt(start + 1400 * MS), "and once more");
        assert_eq!(judge(1402, 2), Verdict::Lost);
    }

    #[test]
    fn call_written_late_has_its_time() {
        let (mut silence, start) = (Silence::default(), Instant::now());
        let queued = start;
        // The call was queued, then the process was suspended, then the call was written. The driver sees the call
        // for the first time now.
        let judged = silence.judge(Some(queued), PUNCTUAL, start + 700 * MS, TIMEOUT);
        assert_eq!(judged, Verdict::CheckAt(start + 800 * MS));
        // A reply has arrived, and the next call is waiting.
        let next = Some(start + 750 * MS);
        let judged = silence.judge(next, PUNCTUAL, start + 800 * MS, TIMEOUT);
        assert_eq!(judged, Verdict::CheckAt(start + 1050 * MS));
    }

    #[test]
    fn zero_timeout_is_lost_at_once() {
        let (mut silence, now) = (Silence::default(), Instant::now());
        assert_eq!(silence.judge(Some(now), PUNCTUAL, now, Duration::ZERO), Verdict::Lost);
    }
}
