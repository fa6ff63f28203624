//! The verdict that a server is silent. Pure: the driver brings the times.

use std::time::{Duration, Instant};

/// How long the driver has watched a server that owes an answer.
///
/// The age of a call does not tell how long its server has been silent: the process may have stood still before it wrote the call, or
/// before it read the answer. The verdict therefore needs a last quarter of the response timeout during which the driver was punctual.
#[derive(Default)]
pub(crate) struct Silence {
    /// The start of the silence that is watched, and since when the driver has watched it.
    watched: Option<(Instant, Instant)>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The server owes no answer.
    Quiet,
    /// The driver has to look again at this time.
    LookAt(Instant),
    /// The server counts as dead.
    Lost,
}

impl Silence {
    /// Judges a server that has been silent since `since`. `late` says by how much the driver has missed the time at which it had to look.
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
            return Verdict::LookAt(begins);
        }
        // A driver that is a moment late was punctual. Or the call's deadline would come just before the verdict, and the next call
        // would go out on a connection that has lost a reply.
        let watches_from = if now < begins + last_part && !stood_still(late, timeout) { begins } else { now };
        let (_, watched) = *self.watched.get_or_insert((since, watches_from));
        let ends = (since + timeout).max(watched + last_part);
        if now < ends { Verdict::LookAt(ends) } else { Verdict::Lost }
    }
}

/// Returns true if a driver that was `late` cannot tell how long its server was silent.
pub(crate) fn stood_still(late: Duration, timeout: Duration) -> bool {
    !late.is_zero() && late >= last_part(timeout)
}

/// The part of the response timeout during which the driver has to be punctual.
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
        assert_eq!(judge(1), Verdict::LookAt(start + 300 * MS));
        assert_eq!(judge(300), Verdict::LookAt(start + 400 * MS));
        assert_eq!(judge(400), Verdict::Lost);
    }

    #[test]
    fn paused_process_watches_anew() {
        let (mut silence, start) = (Silence::default(), Instant::now());
        let mut judge = |ms: u32, late: u32| silence.judge(Some(start), late * MS, start + ms * MS, TIMEOUT);
        assert_eq!(judge(300, 0), Verdict::LookAt(start + 400 * MS));
        assert_eq!(judge(900, 500), Verdict::LookAt(start + 1000 * MS), "nothing was seen in between");
        assert_eq!(judge(1300, 300), Verdict::LookAt(start + 1400 * MS), "and once more");
        assert_eq!(judge(1402, 2), Verdict::Lost);
    }

    #[test]
    fn call_written_late_has_its_time() {
        let (mut silence, start) = (Silence::default(), Instant::now());
        let queued = start;
        // Queued, then the process stood still, then written: the driver sees it for the first time now.
        let judged = silence.judge(Some(queued), PUNCTUAL, start + 700 * MS, TIMEOUT);
        assert_eq!(judged, Verdict::LookAt(start + 800 * MS));
        // An answer came, and the next call waits.
        let next = Some(start + 750 * MS);
        let judged = silence.judge(next, PUNCTUAL, start + 800 * MS, TIMEOUT);
        assert_eq!(judged, Verdict::LookAt(start + 1050 * MS));
    }

    #[test]
    fn zero_timeout_is_lost_at_once() {
        let (mut silence, now) = (Silence::default(), Instant::now());
        assert_eq!(silence.judge(Some(now), PUNCTUAL, now, Duration::ZERO), Verdict::Lost);
    }
}
