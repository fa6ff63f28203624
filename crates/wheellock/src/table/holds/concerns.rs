//! The set of locks that server changes concern. Pure.
//!
//! The set is bounded. After a few changes it contains all locks.

use wheellock_client::Change;

/// The locks that at least one of several changes concerns.
#[derive(Default)]
pub(super) struct Concerns {
    changes: Vec<Change>,
    all: bool,
}

impl Concerns {
    /// Adds a change. A full set becomes the set of all locks.
    pub(super) fn add(&mut self, change: Change) {
        if self.changes.len() < MANY {
            self.changes.push(change);
        } else {
            self.all = true;
        }
    }

    pub(super) fn join(&mut self, others: Self) {
        self.all |= others.all;
        others.changes.into_iter().for_each(|change| self.add(change));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    pub(super) fn contains(&self, key: &str) -> bool {
        self.all || self.changes.iter().any(|change| change.concerns(key.as_bytes()))
    }
}

/// Number of changes that are kept apart. With more changes, a check of all locks is cheaper.
const MANY: usize = 16;
