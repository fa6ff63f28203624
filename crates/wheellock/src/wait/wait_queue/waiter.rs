//! A queued waiter: its request, owner and state. Pure.

#[derive(Default)]
pub(super) struct Waiter {
    /// Polls at once, head or not. Another waiter was let in that does not exclude it, or the waiter may have the lock without knowing.
    pub(super) may_poll: bool,
    /// Number of broadcasts that this waiter has seen.
    pub(super) let_in: u32,
    /// Accepts a hold of this process as it is.
    pub(super) takes_over: bool,
    /// Has a request pending: the waiter was allowed to poll and has not taken its next turn yet.
    pub(super) asks: bool,
    /// Index of the hold that was handed over to this waiter.
    pub(super) handed: Option<u32>,
    /// Number of permits, or of holds, that this waiter wants.
    pub(super) wants: u32,
    pub(super) manner: Manner,
    /// Number of waiters that had joined before.
    pub(super) joined: u64,
}

impl Waiter {
    /// Returns true, once, if this waiter may poll. Either it was allowed to alone, or a broadcast let all waiters in. `let_in` is the
    /// number of broadcasts.
    pub(super) fn take_may_ask(&mut self, let_in: u32) -> bool {
        let with_all = std::mem::replace(&mut self.let_in, let_in) != let_in;
        std::mem::take(&mut self.may_poll) || with_all
    }
}

/// How a waiter polls.
#[derive(Clone, Copy, Default)]
pub(crate) struct Manner {
    /// After pauses, without a subscription.
    pub(crate) pauses: bool,
    /// As a reader that yields to waiting writers.
    pub(crate) yields_to_writers: bool,
    /// For an owner that other callers can present, too.
    pub(crate) owner: Option<u64>,
}

impl Manner {
    /// Returns true if a waiter of this manner may succeed where a waiter of the other manner was refused. Also returns true if only the
    /// first is subscribed.
    pub(super) fn could_succeed_after(self, other: Self) -> bool {
        (other.pauses && !self.pauses) || (other.yields_to_writers && !self.yields_to_writers)
    }

    /// Returns true if the waiter polls for this owner.
    pub(super) fn is_for(self, owner: u64) -> bool {
        self.owner == Some(owner)
    }
}
