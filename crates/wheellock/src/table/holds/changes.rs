//! Consequences of a failover to another server, and of changes of keys that a server tells of.
//!
//! Holds that were granted before are verified, because the new server may not know them. Recent releases are sent again. Both
//! happen in slices. This module also limits the number of holds of whose keys a server tells.

use std::collections::HashSet;
use std::sync::Arc;

use wheellock_client::Change;

use super::recent_releases::{KEPT, Release};
use super::{Due, Event, Hold, HoldIndex, Holds, State};
use crate::base::clock::BootInstant;
use crate::base::lease::Lease;
use crate::wait::name::Name;

/// Changes of servers and of many keys, whose consequences are being processed.
#[derive(Default)]
pub(super) struct Changes {
    /// The current pass through the table.
    pass: Option<Pass>,
    /// Index at which the pass continues.
    cursor: usize,
    /// The next pass.
    next: Option<Pass>,
    last: Option<BootInstant>,
    /// True once a server has promised to tell of changes of keys.
    are_told: bool,
    /// Number of holds of whose keys a server tells.
    told: u32,
}

/// A pass through the table of holds.
struct Pass {
    /// The locks that the pass checks.
    change: Change,
    /// Other servers may reply now, so releases are sent again after the pass.
    is_replaced: bool,
}

impl Changes {
    /// Adds the locks of `change` to the next pass.
    pub(super) fn plan_pass(&mut self, change: &Change, is_replaced: bool) {
        let (earlier, was_replaced) =
            self.next.take().map_or((None, false), |next| (Some(next.change), next.is_replaced));
        let change = change.clone().joined(earlier);
        self.next = Some(Pass { change, is_replaced: is_replaced || was_replaced });
    }

    /// Returns true if a request that was sent at `sent` may have its reply from a server that has been replaced since.
    pub(super) fn since(&self, sent: BootInstant) -> bool {
        self.last.is_some_and(|last| sent <= last)
    }

    /// Returns true if a server tells of changes of keys.
    pub(super) fn are_told(&self) -> bool {
        self.are_told
    }

    /// Counts this hold among the [`MOST_TOLD`] holds of whose keys a server tells, if there is room. The hold then stays among them until
    /// it ends. Returns true if the server is to remember its key.
    pub(super) fn admit(&mut self, hold: &mut Hold) -> bool {
        if self.are_told && !hold.is_told && self.told < MOST_TOLD {
            self.told += 1;
            hold.is_told = true;
        }
        hold.is_told
    }

    /// Makes room for another hold, because this one has ended.
    pub(super) fn ended(&mut self, hold: &Hold) {
        self.told -= u32::from(hold.is_told);
    }
}

impl Holds {
    /// Records that another server may now serve some locks.
    pub(crate) fn changed(&mut self, change: &Change, now: BootInstant) {
        self.changes.last = Some(now);
        if let Some(memberships) = &mut self.memberships {
            memberships.are_replaced(|key| change.concerns(key), now);
        }
        self.releases_may_be_lost(change, now);
    }

    /// Records that the servers of these locks may not know recent releases.
    pub(super) fn releases_may_be_lost(&mut self, change: &Change, now: BootInstant) {
        self.changes.plan_pass(change, true);
        if let Some(released) = &mut self.released {
            released.changed();
        }
        self.plan_verification(now);
    }

    /// Records that a server tells of changes of keys.
    pub(crate) fn are_told_of_changes(&mut self) {
        self.changes.are_told = true;
    }

    /// Handles the news that any of these keys may have changed. It is the first news of a server that tells of changes.
    pub(crate) fn any_key_changed(&mut self, change: &Change, now: BootInstant) {
        self.are_told_of_changes();
        self.changes.plan_pass(change, false);
        self.plan_verification(now);
    }

    /// Starts checks of the holds of these locks, whose keys another client has changed.
    pub(crate) fn keys_changed(&mut self, names: &[Arc<Name>], now: BootInstant, due: &mut Due<'_>) {
        let (shared, own): (Vec<_>, Vec<_>) = names.iter().partition(|name| name.kind().is_shared());
        let mut changed: Vec<_> = own.into_iter().filter_map(|name| self.believed_holder(name)).collect();
        if !shared.is_empty() {
            // One pass for all, because a shared lock does not know its holds.
            let shared: HashSet<_> = shared.into_iter().map(Arc::as_ptr).collect();
            changed.extend(
                self.indices_of(|hold| hold.is_believed() && shared.contains(&Arc::as_ptr(&hold.name))),
            );
        }
        for index in changed {
            let Some(hold) = self.get_mut(index) else { continue };
            hold.look(now);
            if hold.renewing.is_due(now) {
                self.ask(index, now, due);
            }
            self.schedule(index);
        }
    }

    /// Returns true if there are holds to verify, and room for the requests. The number is limited, because other requests would
    /// queue behind them.
    pub(super) fn may_verify(&self) -> bool {
        let any = self.changes.pass.is_some() || self.changes.next.is_some();
        any && self.renewals.len() < SCRIPTS
    }

    /// Makes the watchdog verify holds at once, if there are any to verify.
    pub(super) fn plan_verification(&mut self, now: BootInstant) {
        if self.may_verify() {
            self.alarms.plan(now);
        }
    }

    /// Renews or verifies a slice of the holds that the changes concern.
    pub(super) fn verify_some(&mut self, now: BootInstant, due: &mut Due<'_>) {
        if !self.may_verify() {
            return;
        }
        let Some(pass) = self.changes.pass.take().or_else(|| self.changes.next.take()) else { return };
        let end = (self.changes.cursor + SLICE).min(self.holds.capacity());
        for index in self.changes.cursor..end {
            let Some(hold) = self.holds.get_mut(index) else { continue };
            let held = hold.state == State::Held && hold.guards > 0;
            let releasing = pass.is_replaced && hold.releasing.is_under_way() && self.released.is_some();
            if !(held || releasing) || !pass.change.concerns(hold.name.key().as_bytes()) {
                continue;
            }
            if releasing {
                // The reply may come from either server, so another release follows.
                hold.releasing.outdate();
            }
            if held {
                hold.renewing.doubt();
                // A look would leave the lease as it is. In a grace, a hold that is not extended soon may be lost.
                hold.renewing.take_only_looks();
                self.ask(HoldIndex::try_from(index).unwrap_or(HoldIndex::MAX), now, due);
            }
        }
        if end < self.holds.capacity() {
            (self.changes.pass, self.changes.cursor) = (Some(pass), end);
            return;
        }
        self.changes.cursor = 0;
        // Not earlier, because releases that the old server confirmed may have arrived during the pass.
        if let Some(released) = self.released.as_mut().filter(|_| pass.is_replaced) {
            released.suspect(pass.change);
        }
    }

    /// Remembers the reply of the server with the number `node`, if it confirmed the last release of this hold. A server that
    /// does not know the release may replace that server.
    #[inline(never)] // It is not on a single server's way.
    pub(super) fn remember_release(&mut self, index: HoldIndex, node: u32, now: BootInstant) {
        let Some(released) = &mut self.released else { return };
        // A repeated release that found no hold may still be news to the next server that takes over.
        let Some(hold) = self.holds.get(index as usize).filter(|hold| hold.wanted() == 0) else { return };
        released.remember(node, &hold.name, hold.owner, now);
        if !std::mem::replace(&mut released.will_forget, true) {
            self.alarms.at(now + KEPT, Event::Forget);
        }
    }

    /// Drops the releases that are old enough, and schedules the next drop.
    pub(super) fn forget_releases(&mut self, now: BootInstant) {
        let Some(released) = &mut self.released else { return };
        let next = released.forget(now);
        released.will_forget = next.is_some();
        if let Some(next) = next {
            self.alarms.at(next, Event::Forget);
        }
    }

    /// Returns true if there are releases to send again, and room for them.
    pub(super) fn may_repeat(&self) -> bool {
        self.released.as_ref().is_some_and(|released| released.may_repeat())
    }

    /// Repeats a slice of the releases that the changes concern. Each becomes a hold of its own that has only this request.
    /// If its owner returns, it waits for the request like for any other.
    pub(super) fn repeat_some(&mut self, now: BootInstant, due: &mut Due<'_>) {
        let mut looks = SLICE;
        while let Some(release) = self.released.as_mut().and_then(|released| released.next(&mut looks)) {
            let Release { name, owner, .. } = release;
            if self.is_back(&name, owner) {
                self.end_repetition();
                continue;
            }
            let index = self.insert(&name, owner, true, Lease::DEFAULT, now);
            if let Some(hold) = self.get_mut(index) {
                (hold.state, hold.expired_by) = (State::GivenBack, Lease::DEFAULT.expired_by(now));
            }
            due.effects.request_all(self.reconcile(index));
        }
    }

    /// Ends a repeated release. Its hold has ended, or has become an ordinary hold.
    pub(super) fn end_repetition(&mut self) {
        if let Some(released) = &mut self.released {
            released.ended();
        }
        if self.may_repeat() {
            self.alarms.plan(self.alarms.at_once());
        }
    }
}

/// Number of holds of whose keys the server tells. A server takes 5 us to remember a key and to forget it, more than a renewal takes. So
/// without this limit, a process with 200 000 locks would be renewed late (seen on Redis 7.0).
pub(super) const MOST_TOLD: u32 = 10_000;
/// Number of holds that a slice checks before other tasks may use the table.
const SLICE: usize = 1000;
/// Number of renewal scripts under way above which a failover adds no more.
const SCRIPTS: usize = 64;
