//! Polls of a head after other clients have changed its lock's key.
//!
//! The server tells of one change after each poll that asks for it (`CLIENT TRACKING`). This module decides when the head polls then. It
//! does not know messages: a release with a message also changes the key. Pure.

use std::time::{Duration, Instant};

use crate::wait::turns::OPEN;

/// Changes of one lock's key, with the next poll that follows them.
#[derive(Default)]
pub(crate) struct KeyChanges {
    /// The holder of the last refusal sends no message when it releases the lock.
    is_silent: bool,
    /// When the head polls because of a change.
    poll_at: Option<Instant>,
    /// Until then the past polls without a delay count against their [`Pace`].
    prompt_until: Option<Instant>,
    /// As `prompt_until`, for the polls with a delay.
    late_until: Option<Instant>,
}

/// The limit of polls that follow changes.
struct Pace {
    /// Time from a change to the poll. A message in this time takes the place of the poll.
    delay: Duration,
    /// Time between two polls, if the key changes all the time.
    apart: Duration,
    /// Number of polls that may follow each other without this pause.
    burst: u32,
}

impl KeyChanges {
    /// Records whether the holder sends a message when it releases the lock.
    pub(crate) fn set_silent(&mut self, is_silent: bool) {
        self.is_silent = is_silent;
    }

    /// Returns true if only a change of the key tells of the release.
    pub(crate) fn is_silent(&self) -> bool {
        self.is_silent
    }

    /// Plans the poll after a change. Without messages the change probably is the release, so the head polls at once.
    pub(crate) fn on_change(&mut self, now: Instant) {
        // The planned poll comes after this change, too.
        if self.poll_at.is_none() {
            let (pace, until) = if self.is_silent {
                (&PROMPT, &mut self.prompt_until)
            } else {
                (&LATE, &mut self.late_until)
            };
            self.poll_at = Some(pace.next(until, now));
        }
    }

    /// Returns true if the head polls now because of a change.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.poll_at.is_some_and(|at| now >= at)
    }

    /// Returns when the head polls because of a change.
    pub(crate) fn poll_at(&self) -> Option<Instant> {
        self.poll_at
    }

    /// Drops the planned poll. A poll is sent now, or a message decides about the next poll.
    pub(crate) fn settle(&mut self) {
        self.poll_at = None;
    }
}

impl Pace {
    /// Returns the time of the poll that follows a change at `now`. `until` is when the past polls no longer count.
    fn next(&self, until: &mut Option<Instant>, now: Instant) -> Instant {
        let counted = until.map_or(now, |until| until.max(now));
        *until = Some(counted + self.apart);
        counted.checked_sub(self.apart * self.burst).unwrap_or(now).max(now + self.delay)
    }
}

/// Behind holders that send no message. Sixteen quick holders in a row are noticed at once.
const PROMPT: Pace = Pace { delay: Duration::ZERO, apart: Duration::from_millis(50), burst: 16 };

/// Behind holders that send messages. The delay is much longer than a message takes after its release, and than a holder takes to learn of
/// a deletion. Without it, the head would often have the lock before its holder knows of the loss. A process that leaves the lock free for
/// polling contenders sends no message, so the delay is also longer than such an [opening](OPEN). Renewals, nested holds and other readers
/// change the key without a release, so polls become rare after a few of them.
const LATE: Pace = Pace { delay: Duration::from_millis(150), apart: Duration::from_secs(1), burst: 4 };

/// Otherwise a listener would take the lock from the contenders for which it was left free.
const _: () = assert!(LATE.delay.as_millis() > OPEN.as_millis());

#[cfg(test)]
mod tests {
    use super::*;

    /// Changes the key each millisecond for `time`. Returns the times of the polls, in milliseconds.
    fn polls(changes: &mut KeyChanges, start: Instant, time: u64) -> Vec<u64> {
        let mut polls = Vec::new();
        for millis in 0..time {
            let now = start + Duration::from_millis(millis);
            changes.on_change(now);
            if changes.is_due(now) {
                changes.settle();
                polls.push(millis);
            }
        }
        polls
    }

    #[test]
    fn silent_change_polls_at_once() {
        let (mut changes, start) = (KeyChanges::default(), Instant::now());
        changes.set_silent(true);
        let polled = polls(&mut changes, start, 2000);
        assert_eq!(polled[..17], (0..17).collect::<Vec<_>>());
        assert!((40..=60).contains(&polled.len()), "{polled:?}");
        let later = start + Duration::from_secs(10);
        assert_eq!(polls(&mut changes, later, 10).len(), 10, "a quiet time restores the burst");
    }

    #[test]
    fn announced_change_polls_later() {
        let (mut changes, start) = (KeyChanges::default(), Instant::now());
        let polled = polls(&mut changes, start, 10_000);
        assert_eq!(polled[0], 150);
        assert!((10..=16).contains(&polled.len()), "{polled:?}");
    }

    #[test]
    fn message_replaces_planned_poll() {
        let (mut changes, start) = (KeyChanges::default(), Instant::now());
        changes.on_change(start);
        changes.settle();
        assert!(!changes.is_due(start + Duration::from_secs(1)));
    }
}
