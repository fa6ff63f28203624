//! Shutdown of the table of holds.
//!
//! After it the table grants no lock, and releases every hold.

use std::sync::Arc;
use std::task::{Poll, Waker};

use super::{Effects, Holds, Reconcile};
use crate::base::clock::BootInstant;
use crate::base::error::LostReason;
use crate::wait::name::Name;

impl Holds {
    /// Shuts the table down. The wanted count of every hold is zero from now on, and the remaining guards have lost their holds.
    ///
    /// Returns requests that take back the attempts under way, which follow those attempts on the wire. All other releases are in
    /// the backlog.
    pub(crate) fn shut_down(&mut self, now: BootInstant, effects: &mut Effects) -> Vec<Reconcile> {
        if std::mem::replace(&mut self.shut, true) {
            return Vec::new();
        }
        if let Some(memberships) = &mut self.memberships {
            effects.wake(memberships.shut_down());
        }
        let mut under_way = Vec::new();
        for index in self.indices_of(|_| true) {
            let Some(hold) = self.get_mut(index) else { continue };
            hold.open_gate(effects);
            let (asked_for, held) =
                (hold.releasing.attempts() > 0, hold.guards > 0 && hold.is_worth_releasing());
            if hold.is_believed() {
                self.lose(index, LostReason::ShutDown, now, effects);
            }
            if asked_for {
                under_way.extend(self.reconcile(index));
            } else if held {
                self.put_off(index, now);
            }
        }
        under_way
    }

    pub(crate) fn is_shut(&self) -> bool {
        self.shut
    }

    /// Returns ready when the server has confirmed every release. Continues at `cursor`, where the last poll stopped.
    ///
    /// Scans all holds once more at the end, because a task that read its reply meanwhile may have added a release.
    pub(crate) fn poll_given_back(&mut self, cursor: &mut usize, waker: &Waker) -> Poll<()> {
        for first in [*cursor, 0] {
            for place in first..self.holds.capacity() {
                if let Some(hold) = self.holds.get_mut(place).filter(|hold| hold.is_unreconciled()) {
                    hold.wait_at_gate(waker);
                    *cursor = place;
                    return Poll::Pending;
                }
            }
        }
        Poll::Ready(())
    }

    /// Returns the names of holds that the server may still know.
    pub(crate) fn unreconciled_names(&self) -> Vec<Arc<Name>> {
        let reconcile_failed = self.holds.iter().filter(|(_, hold)| hold.is_unreconciled());
        reconcile_failed.map(|(_, hold)| Arc::clone(&hold.name)).collect()
    }
}
