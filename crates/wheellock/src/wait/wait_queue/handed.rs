//! Hand-overs of a hold within one process, and their time limit.

use std::time::{Duration, Instant};

use crate::base::clock::BootInstant;
use crate::wait::turns::Opening;

/// The last hand-over.
#[derive(Clone, Copy)]
pub(crate) struct Handed {
    /// Number that distinguishes this hold from others.
    pub(crate) serial: u64,
    /// When the server granted the hold to its first holder in this process.
    pub(crate) granted_at: BootInstant,
    /// Ticket of the last waiter that received the hold, and the time.
    pub(super) to: Option<(u64, Instant)>,
}

impl Handed {
    pub(crate) fn new(serial: u64, granted_at: BootInstant) -> Self {
        Self { serial, granted_at, to: None }
    }
}

/// How long a process may hand a lock over before other processes have their turns.
#[derive(Clone, Copy)]
pub(crate) struct TurnLimit {
    /// The last hand-over, whether or not its hold still exists.
    pub(crate) last: Option<Handed>,
    /// Part of the budget that this process may use, counted from the server's grant.
    pub(crate) budget: Duration,
    /// That part is as long as the other processes' turns were. Another hold must not make this turn much longer.
    pub(crate) is_tight: bool,
    /// How this process leaves the lock when the budget is used up.
    pub(crate) opening: Opening,
}
