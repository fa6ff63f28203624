//! What is to be verified after a change of servers: whether the one that answers now knows of what was granted before. Goes
//! through the table some holds at a time.

use wheellock_client::Change;

use super::{Due, HoldIndex, Holds, State};
use crate::clock::BootInstant;

/// Changes whose consequences are being looked at.
#[derive(Default)]
pub(super) struct Changes {
    /// Whom this pass through the table looks for; nobody if there is none.
    pass: Concerns,
    /// Where it goes on.
    cursor: usize,
    /// Whom the next pass looks for.
    next: Concerns,
    last: Option<BootInstant>,
}

impl Changes {
    /// Whether a request that was sent at `sent` may have been answered by a server that has been replaced since.
    pub(super) fn since(&self, sent: BootInstant) -> bool {
        self.last.is_some_and(|last| sent <= last)
    }
}

/// Everybody whom one of several changes concerns.
#[derive(Default)]
struct Concerns {
    changes: Vec<Change>,
    everybody: bool,
}

impl Concerns {
    fn add(&mut self, change: &Change) {
        if self.changes.len() < MANY {
            self.changes.push(change.clone());
        } else {
            self.everybody = true;
        }
    }

    fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    fn contains(&self, key: &str) -> bool {
        self.everybody || self.changes.iter().any(|change| change.concerns(key.as_bytes()))
    }
}

impl Holds {
    /// Another server may answer for some locks now.
    pub(crate) fn changed(&mut self, change: &Change, now: BootInstant) {
        self.changes.last = Some(now);
        self.changes.next.add(change);
        if self.may_verify() {
            self.plan(now);
        }
    }

    /// Whether there is something to verify, and room for it: not everything is asked at once, or whatever else is to be
    /// sent would stand behind it.
    pub(super) fn may_verify(&self) -> bool {
        let any = !self.changes.pass.is_empty() || !self.changes.next.is_empty();
        any && self.renewals.len() < SCRIPTS
    }

    /// Renews or verifies some of the holds that the changes concern.
    pub(super) fn verify_some(&mut self, now: BootInstant, due: &mut Due) {
        if !self.may_verify() {
            return;
        }
        if self.changes.pass.is_empty() {
            self.changes.pass = std::mem::take(&mut self.changes.next);
            self.changes.cursor = 0;
        }
        let end = (self.changes.cursor + SLICE).min(self.holds.capacity());
        for index in self.changes.cursor..end {
            let Some(hold) = self.holds.get_mut(index) else { continue };
            let held = hold.state == State::Held && hold.guards > 0;
            if held && self.changes.pass.contains(hold.name.key()) {
                hold.unverified = true;
                self.ask(HoldIndex::try_from(index).unwrap_or(HoldIndex::MAX), now, due);
            }
        }
        self.changes.cursor = end;
        if end == self.holds.capacity() {
            self.changes.pass = Concerns::default();
        }
    }
}

/// Holds looked at before others may have the table.
const SLICE: usize = 1000;
/// Scripts of renewals under way beyond which no more are made for the sake of a change.
const SCRIPTS: usize = 64;
/// Changes that are told apart. Where there are more, it is less work to ask for everything.
const MANY: usize = 16;
