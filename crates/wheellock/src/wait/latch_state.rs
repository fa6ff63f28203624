//! The knowledge of this process about one latch. Pure.

/// The findings of the waiters' polls of one latch.
///
/// Callers and polls have numbers of one sequence. A poll with a higher number than a caller was sent after that caller arrived.
#[derive(Default)]
pub(crate) struct LatchState {
    /// Number of the last poll that found the latch open.
    opened: u64,
    /// End of the last latch of this name, and the number of the poll that found it.
    ended: (u64, u64),
}

impl LatchState {
    /// Records that the poll with this number found the latch open, or set again since the last latch `ended`.
    pub(crate) fn on_end(&mut self, poll: u64, is_open: bool, ended: u64) {
        if is_open {
            self.opened = poll;
        }
        self.ended = (ended, poll);
    }

    /// Returns true if the latch has ended for this caller, whose first reply said that the last latch had `ended`.
    pub(crate) fn is_open_for(&self, caller: u64, ended: u64) -> bool {
        let (last, poll) = self.ended;
        // An older poll proves nothing, because the server may have lost that end since.
        self.opened > caller || (poll > caller && last > ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ended_latch_opens_matching_waiters_only() {
        let mut latch = LatchState::default();
        let [early, late] = [(1, 5), (2, 7)];
        let is_open = |latch: &LatchState, (caller, ended)| latch.is_open_for(caller, ended);
        assert!(!is_open(&latch, early) && !is_open(&latch, late));
        // The latch has been set again since.
        latch.on_end(3, false, 7);
        assert!(is_open(&latch, early) && !is_open(&latch, late), "it waits for the next one");
        // A caller that arrived after the poll was sent may wait for a latch that was set later.
        let later = (5, 9);
        latch.on_end(4, true, 9);
        assert!(is_open(&latch, early) && is_open(&latch, late) && !is_open(&latch, later));
        // Redisson does not record the end.
        latch.on_end(6, true, 9);
        assert!(is_open(&latch, later));
    }

    #[test]
    fn lost_end_opens_nothing() {
        let mut latch = LatchState::default();
        latch.on_end(1, false, 9);
        assert!(!latch.is_open_for(2, 0), "the server has lost its data since");
    }
}
