//! Which locks a change of servers concerns. Pure, and bounded: beyond a few changes it is all of them.

use wheellock_client::Change;

/// The locks that one of several changes concerns.
#[derive(Default)]
pub(super) struct Concerns {
    changes: Vec<Change>,
    all: bool,
}

impl Concerns {
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

/// Changes that are told apart. Where there are more, it is less work to ask for everything.
const MANY: usize = 16;
