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
    pub(crate) since: BootInstant,
    /// Ticket of the last waiter that received the hold, and the time.
    pub(super) to: Option<(u64, Instant)>,
}

impl Handed {
    pub(crate) fn new(serial: u64, since: BootInstant) -> Self {
        Self { serial, since, to: None }
    }
}

/// How long a process may hand a lock over before other processes have their turns.
#[derive(Clone, Copy)]
pub(crate) struct Time {
    /// The last hand-over, whether or not its hold still exists.
    pub(crate) last: Option<Handed>,
    pub(crate) share: Duration,
    /// The share is as long as the other processes' turns were. Another hold must not make this turn much longer.
    pub(crate) is_tight: bool,
    /// How this process leaves the lock when the share is used up.
    pub(crate) opening: Opening,
}
