//! One who waits: what it wants, in what way and in whose name it asks, and what it has been told. Pure.

use std::num::NonZeroU64;

#[derive(Default)]
pub(super) struct Waiter {
    /// It asks at once, head or not: another waiter was let in who does not keep it out, or it may have the lock without knowing.
    pub(super) may_ask: bool,
    /// How often all who wait had been let in when it heard of that last.
    pub(super) let_in: u32,
    /// It takes a hold of this process as it is.
    pub(super) takes_over: bool,
    /// It has been told to ask, and has not come back since.
    pub(super) asks: bool,
    /// The hold that was handed over to it, by its index.
    pub(super) handed: Option<u32>,
    /// How many times it wants to hold the lock.
    pub(super) wants: u32,
    pub(super) manner: Manner,
    /// How many had joined before.
    pub(super) joined: u64,
    /// Of a latch: when the last one of its name had ended when this one looked first.
    pub(super) ended: Option<Ended>,
    /// The latch that it waits for has ended.
    pub(super) open: bool,
}

impl Waiter {
    /// Whether it was told to ask, by itself or with all others, who have been let in so often; told once.
    pub(super) fn take_may_ask(&mut self, let_in: u32) -> bool {
        let with_all = std::mem::replace(&mut self.let_in, let_in) != let_in;
        std::mem::take(&mut self.may_ask) || with_all
    }
}

/// In what way a waiter asks.
#[derive(Clone, Copy, Default)]
pub(crate) struct Manner {
    /// After pauses; it does not listen.
    pub(crate) pauses: bool,
    /// As a reader who stands behind writers who wait.
    pub(crate) heeds_writers: bool,
    /// For an owner whom others can present, too.
    pub(crate) owner: Option<u64>,
}

impl Manner {
    /// Whether one who asks like this may have what was refused to the other one, or hears of what that one does not.
    pub(super) fn fares_better_than(self, other: Self) -> bool {
        (other.pauses && !self.pauses) || (other.heeds_writers && !self.heeds_writers)
    }

    /// Whether it asks in this owner's name.
    pub(super) fn is_for(self, owner: u64) -> bool {
        self.owner == Some(owner)
    }
}

/// When a latch ended; small, for every waiter has room for it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ended(NonZeroU64);

impl Ended {
    pub(super) fn at(ended: u64) -> Self {
        Self(NonZeroU64::MIN.saturating_add(ended))
    }
}
