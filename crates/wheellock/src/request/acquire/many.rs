//! What one caller asks for besides its first permit. Owns the holds of one attempt, and then their guards; the attempt decides what
//! becomes of them.

use std::sync::{Mutex, PoisonError};

use crate::request::guard::Guard;
use crate::table::holds::HoldIndex;

/// Permits that a caller gets together, all or none, each of which is a hold of its own from then on.
///
/// Their owners are consecutive numbers, and so are their ids: the request names the first one, and how many.
pub(crate) struct Many {
    count: u16,
    besides: Mutex<Besides>,
}

/// What there is besides the first.
#[derive(Default)]
struct Besides {
    /// The attempt under way has entered these.
    asked: Vec<HoldIndex>,
    /// The server has granted these.
    granted: Vec<Guard>,
}

impl Many {
    pub(crate) fn new(count: u16) -> Self {
        Self { count, besides: Mutex::default() }
    }

    /// Returns how many there are, with the first.
    pub(crate) fn count(&self) -> u16 {
        self.count
    }

    /// An attempt has entered one more.
    pub(super) fn asks_for(&self, hold: HoldIndex) {
        self.with(|besides| besides.asked.push(hold));
    }

    /// Returns what the attempt has entered, which has ended.
    pub(super) fn take_asked(&self) -> Vec<HoldIndex> {
        self.with(|besides| std::mem::take(&mut besides.asked))
    }

    /// The server has granted these.
    pub(super) fn granted(&self, guards: Vec<Guard>) {
        self.with(|besides| besides.granted = guards);
    }

    /// Returns the guards of what was granted besides the first.
    pub(crate) fn take_granted(&self) -> Vec<Guard> {
        self.with(|besides| std::mem::take(&mut besides.granted))
    }

    fn with<T>(&self, with: impl FnOnce(&mut Besides) -> T) -> T {
        with(&mut self.besides.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
