//! A queued waiter: its request, owner and state. Pure.

pub(super) struct Waiter {
    /// Number of permits, or of holds, that this waiter wants.
    pub(super) wants: u32,
    pub(super) manner: Manner,
    pub(super) state: State,
    /// Number of the last broadcast that this waiter has used. After a later broadcast the waiter polls once, head or not. Another waiter
    /// was let in that does not exclude this one, or this one may have the lock without knowing.
    let_in: u32,
}

/// The state of a queued waiter.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Waiting,
    /// Has a request pending, and has not taken its next turn yet. Waiters from this ticket on joined after that request.
    Polling(u64),
    /// Has not accepted the hold with this index yet, which was handed over to it.
    HandedOver(u32),
}

impl Waiter {
    /// Creates a waiter that joins after `let_in` broadcasts.
    pub(super) fn new(wants: u32, let_in: u32) -> Self {
        Self { wants, manner: Manner::default(), state: State::Waiting, let_in }
    }

    pub(super) fn is_polling(&self) -> bool {
        matches!(self.state, State::Polling(_))
    }

    /// Takes the hold that was handed over to this waiter.
    pub(super) fn take_hold(&mut self) -> Option<u32> {
        let State::HandedOver(hold) = self.state else { return None };
        self.state = State::Waiting;
        Some(hold)
    }

    /// Makes the waiter poll at its next turn, as if it alone had missed the last of `let_in` broadcasts.
    pub(super) fn allow_poll(&mut self, let_in: u32) {
        // Any other number makes the poll due. `wrapping_sub`, because `let_in` is 0 before the first broadcast.
        self.let_in = let_in.wrapping_sub(1);
    }

    /// Returns true, once, if this waiter may poll after `let_in` broadcasts.
    pub(super) fn take_may_poll(&mut self, let_in: u32) -> bool {
        std::mem::replace(&mut self.let_in, let_in) != let_in
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
    /// Also accepts a hold of this process as it is.
    pub(crate) takes_over: bool,
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
