//! Permits of one caller after its first permit.
//!
//! Keeps the holds of the attempt, and then their guards. The attempt decides when the holds are granted or taken back.

use std::sync::{Mutex, PoisonError};

use crate::request::guard::Guard;
use crate::table::holds::HoldIndex;

/// Several permits that a caller gets together, all or none. Each of them is a hold of its own from then on.
///
/// Their owners are consecutive numbers, and so are their ids. The request contains the first owner and the number of permits.
pub(crate) struct Many {
    count: u16,
    besides: Mutex<Besides>,
}

/// The permits after the first.
#[derive(Default)]
struct Besides {
    /// Holds that the pending attempt has begun.
    asked: Vec<HoldIndex>,
    /// Guards of the permits that the server has granted.
    granted: Vec<Guard>,
}

impl Many {
    pub(crate) fn new(count: u16) -> Self {
        Self { count, besides: Mutex::default() }
    }

    /// Returns the number of permits, including the first.
    pub(crate) fn count(&self) -> u16 {
        self.count
    }

    /// Adds a hold that the attempt has begun.
    pub(super) fn asks_for(&self, hold: HoldIndex) {
        self.with(|besides| besides.asked.push(hold));
    }

    /// Takes the holds of an attempt that has ended.
    pub(super) fn take_asked(&self) -> Vec<HoldIndex> {
        self.with(|besides| std::mem::take(&mut besides.asked))
    }

    /// Keeps the guards of the permits that the server has granted.
    pub(super) fn granted(&self, guards: Vec<Guard>) {
        self.with(|besides| besides.granted = guards);
    }

    /// Takes the guards of the permits after the first.
    pub(crate) fn take_granted(&self) -> Vec<Guard> {
        self.with(|besides| std::mem::take(&mut besides.granted))
    }

    fn with<T>(&self, with: impl FnOnce(&mut Besides) -> T) -> T {
        with(&mut self.besides.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
