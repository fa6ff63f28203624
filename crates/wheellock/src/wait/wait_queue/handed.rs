//! A hold that passes from waiter to waiter of one process, and for how long it may.

use std::time::{Duration, Instant};

use crate::base::clock::BootInstant;
use crate::wait::turns::Opening;

/// What was handed over last.
#[derive(Clone, Copy)]
pub(crate) struct Handed {
    /// Tells it from other holds.
    pub(crate) serial: u64,
    /// When the server granted it to the first holder of this process.
    pub(crate) since: BootInstant,
    /// To whom it was handed over last, and when.
    pub(super) to: Option<(u64, Instant)>,
}

impl Handed {
    pub(crate) fn new(serial: u64, since: BootInstant) -> Self {
        Self { serial, since, to: None }
    }
}

/// How long a process may hand a lock over before others have their turns.
#[derive(Clone, Copy)]
pub(crate) struct Time {
    /// What was handed over last, whether or not that is over.
    pub(crate) last: Option<Handed>,
    pub(crate) share: Duration,
    /// How the lock is left when that is over.
    pub(crate) opening: Opening,
}
