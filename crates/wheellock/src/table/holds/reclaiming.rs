//! The table's part in a fleet: when holds are written into a new server, and which replies count.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use wheellock_client::Change;
use wheellock_client::layer::ConnectionId;

use super::membership::{Found, Reclaim, Refresh, Refreshed, Trust};
use super::memberships::{Memberships, NodeOf};
use super::{Effects, GatePlace, GrantReply, Hold, HoldIndex, Holds, Renewal, RenewalReply, Renewed};
use crate::base::clock::BootInstant;
use crate::base::fleet::FleetHealth;
use crate::base::fleet_key::FleetKey;
use crate::base::fleet_terms::Terms;
use crate::wait::families::UNCLASSIFIED;
use crate::wait::name::Name;

impl Holds {
    /// Joins a fleet whose locks survive a failover.
    pub(crate) fn join_fleet(
        &mut self,
        terms: Terms,
        keys: Box<[Arc<FleetKey>]>,
        node_of: NodeOf,
        now: BootInstant,
    ) {
        self.memberships = Some(Box::new(Memberships::new(terms, keys, node_of, now)));
    }

    /// Returns true if this lock may be acquired now, or never again after a shutdown. Otherwise the task waits at the gate.
    #[inline]
    pub(crate) fn may_acquire(
        &mut self,
        name: &Name,
        now: BootInstant,
        place: &mut Option<GatePlace>,
        waker: &Waker,
    ) -> bool {
        // Otherwise an acquire that waits for the end of a failover would wait for ever.
        self.shut || self.memberships.as_mut().is_none_or(|it| it.pass(name, now, place, waker))
    }

    /// Removes a task from the gate that does not wait any more.
    pub(crate) fn leave_gate(&mut self, place: &GatePlace) -> Option<Waker> {
        self.memberships.as_mut()?.leave_gate(place)
    }

    /// Returns why this lock cannot be acquired now, if that is because of the fleet.
    pub(crate) fn obstacle(&self, name: &Name, now: BootInstant) -> Option<String> {
        self.memberships.as_ref()?.obstacle(name, now)
    }

    /// Returns the state of this process in its fleet, for operators.
    pub(crate) fn fleet_health(&self, now: BootInstant) -> Option<FleetHealth> {
        self.memberships.as_ref().map(|memberships| memberships.health(now))
    }

    /// Counts a refresh that the server or enough of its replicas did not confirm.
    pub(crate) fn refresh_failed(&mut self, number: usize) {
        self.tallies.of(UNCLASSIFIED).failed_refreshes += 1;
        if let Some(memberships) = &mut self.memberships {
            memberships.refresh_failed(number);
        }
    }

    /// Returns true if a grant counts that this connection replied, to a request that was sent at `sent`.
    #[inline]
    pub(crate) fn believes_grant(
        &mut self,
        connection: Option<ConnectionId>,
        sent: BootInstant,
        now: BootInstant,
    ) -> bool {
        let Some(memberships) = &mut self.memberships else { return true };
        let believes = memberships.believes_grant(connection, sent, now);
        if !believes {
            memberships.disbelieve(connection, now);
        }
        believes
    }

    /// Returns true if a reply of this connection may end a hold of this process. In a grace the server may not know the hold yet.
    pub(crate) fn may_end_holds(&self, connection: Option<ConnectionId>) -> bool {
        let may_end = |memberships: &Memberships| connection.is_some_and(|it| memberships.may_end_holds(it));
        self.memberships.as_deref().is_none_or(may_end)
    }

    /// Returns true if a reply of this connection may end this hold. A server that has taken over may not know a hold that is not written
    /// there, even after its grace.
    pub(crate) fn may_end_hold(&self, index: HoldIndex, connection: ConnectionId) -> bool {
        let is_written = self.holds.get(index as usize).is_none_or(|hold| hold.renewing.is_written());
        is_written && self.may_end_holds(Some(connection))
    }

    /// Keeps the fencing token of a grant, because a new server may not know it. Returns the token for the guard.
    #[inline]
    pub(crate) fn keep_token(
        &mut self,
        index: HoldIndex,
        token: Option<NonZeroU64>,
        reply: GrantReply,
    ) -> Option<NonZeroU64> {
        // Most kinds have no token.
        let token = token?;
        let hold = self.holds.get_mut(index as usize).filter(|_| self.memberships.is_some());
        let Some(hold) = hold else { return Some(token) };
        let is_inner = hold.guards > 1 && reply == GrantReply::Again;
        let kept = &mut hold.rare.get_or_insert_default().token;
        // A grant that its process did not count may have raised the counter since. The guards of one hold have one token.
        let token = kept.filter(|_| is_inner).unwrap_or(token);
        *kept = Some(token);
        Some(token)
    }

    /// Returns what the next refresh of the fleet's key with this number says, and the fleet's numbers.
    pub(crate) fn next_refresh(&self, number: usize, now: BootInstant) -> Option<(Refresh, Terms)> {
        let memberships = self.memberships.as_ref()?;
        // Outside of a grace, no holds have to be written, and a look at all of them would be for nothing.
        let all_written =
            memberships.is_in_grace(number) && !self.holds.iter().any(|(_, hold)| is_missing(hold, now));
        Some((memberships.next_refresh(number, all_written)?, *memberships.terms()))
    }

    /// Handles the reply to a refresh: see [`Memberships::refreshed`]. Returns the number of replicas that are to acknowledge it, and
    /// the time that they have.
    pub(crate) fn refreshed(
        &mut self,
        number: usize,
        reply: &Refreshed,
        behind: Option<(ConnectionId, String)>,
        now: BootInstant,
        effects: &mut Effects,
    ) -> (u32, Duration) {
        let Some(memberships) = &mut self.memberships else { return (0, Duration::ZERO) };
        let node = behind.as_ref().map(|(connection, _)| connection.node());
        let found = memberships.refreshed(number, reply, behind, now);
        effects.wake(memberships.open_gate(now));
        let wanted = memberships.wanted_replicas(number, now);
        if found == Found::OtherServer {
            // Otherwise a clock that is ahead would count as a jump, and shorten leases that the reclaims write anew.
            node.into_iter().for_each(|node| self.server_clocks.forget(node));
            // Other kinds of holds are checked as after any failover.
            let writes = |hold: &&mut Hold| hold.name.kind().reclaim.is_some();
            self.holds
                .iter_mut()
                .map(|(_, hold)| hold)
                .filter(writes)
                .for_each(|hold| hold.renewing.must_write());
            // A server that is promoted again has older data and the same run id, so the client does not report another server.
            self.releases_may_be_lost(&Change::everywhere(), now);
        }
        // A connection that broke may have left some holds unwritten.
        if found > Found::NothingNew && self.holds.iter().any(|(_, hold)| is_missing(hold, now)) {
            self.verify_everywhere(now);
        }
        wanted
    }

    /// Records that this many replicas have acknowledged the last refresh, which was sent at `sent`.
    pub(crate) fn refresh_acknowledged(
        &mut self,
        number: usize,
        sent: BootInstant,
        replicas: u32,
        now: BootInstant,
        effects: &mut Effects,
    ) {
        let Some(memberships) = &mut self.memberships else { return };
        if replicas < memberships.terms().majority() {
            self.tallies.of(UNCLASSIFIED).failed_refreshes += 1;
        }
        let can_extend = memberships.acknowledged(number, (sent, now), replicas);
        effects.wake(memberships.open_gate(now));
        if can_extend {
            // Earlier renewals extended no hold, and another failover may come before the next beat.
            self.verify_everywhere(now);
        }
    }

    fn verify_everywhere(&mut self, now: BootInstant) {
        self.changes.plan_pass(&Change::everywhere(), false);
        self.plan_verification(now);
    }

    /// Returns true if the last refresh of this key did not find the server of this connection.
    pub(crate) fn is_elsewhere(&self, number: usize, connection: Option<ConnectionId>) -> bool {
        self.memberships.as_ref().is_some_and(|memberships| memberships.is_elsewhere(number, connection))
    }

    /// Wakes the tasks that wait until locks can be acquired, if some can be acquired now.
    pub(crate) fn open_gate(&mut self, now: BootInstant, effects: &mut Effects) {
        if let Some(memberships) = &mut self.memberships {
            effects.wake(memberships.open_gate(now));
        }
    }

    /// Returns the pause before the next refresh.
    pub(crate) fn pause_before_refresh(&self, number: usize, now: BootInstant) -> Duration {
        self.memberships.as_ref().map_or(Duration::MAX, |memberships| memberships.pause(number, now))
    }

    /// Returns the fleet's key and the incarnation of its server, which this reclaim names.
    pub(crate) fn target(&self, reclaim: &Reclaim) -> (&str, &str) {
        self.memberships.as_ref().map_or(("", ""), |memberships| memberships.target(reclaim.number))
    }

    /// Plans to write this hold into the new server later, because no refresh has found that server yet.
    pub(super) fn plan_reclaim(&mut self, index: HoldIndex, now: BootInstant) {
        if let Some(hold) = self.get_mut(index) {
            hold.renewing.plan(now + hold.lease.retry_after());
            self.schedule(index);
        }
    }

    /// Returns what a reply of this connection to a renewal means in a fleet. The renewal was sent at `sent`.
    pub(crate) fn believed(
        &mut self,
        renewal: u32,
        reply: RenewalReply,
        connection: ConnectionId,
    ) -> RenewalReply {
        let Some(memberships) = &self.memberships else { return reply };
        let Some(script) = self.renewals.get_mut(renewal as usize) else { return reply };
        if !memberships.knows(connection) {
            // Its clock is not the clock of the server before.
            script.unknown_server();
        }
        let (mut locks, sent) = (Vec::with_capacity(reply.locks.len()), script.sent());
        for (place, renewal) in script.group().iter().enumerate() {
            let how = reply.lock(place);
            let Some(hold) = renewal.hold_in(&mut self.holds) else {
                locks.push(how);
                continue;
            };
            let was_written = hold.renewing.is_written();
            locks.push(memberships.meaning(how, renewal, hold, (connection, sent)));
            if renewal.reclaim.is_some() && !was_written && hold.renewing.is_written() {
                self.tallies.of(hold.name.family()).reclaimed += 1;
            }
        }
        RenewalReply { locks, ..reply }
    }
}

/// Returns true if the new server does not have this hold yet.
fn is_missing(hold: &Hold, now: BootInstant) -> bool {
    hold.is_believed() && !hold.renewing.is_written() && hold.is_valid(now)
}

impl Memberships {
    /// Returns the meaning of a reply about one hold. Records that the hold is written.
    fn meaning(
        &self,
        how: Renewed,
        renewal: &Renewal,
        hold: &mut Hold,
        (connection, sent): (ConnectionId, BootInstant),
    ) -> Renewed {
        let trust = self.trust(connection, hold, sent);
        let is_full = renewal.reclaim.is_none_or(|reclaim| reclaim.is_full);
        match (how, trust) {
            // The server may not know the hold because of the failover.
            (Renewed::NotOwner, _)
                if renewal.reclaim.is_some()
                    || !hold.renewing.is_written()
                    || !self.may_end_holds(connection) =>
            {
                Renewed::Failed
            }
            (_, Trust::None) => Renewed::Failed,
            // Until the hold ends here, no process would be granted a lock.
            (Renewed::NoPlace, _) => Renewed::NotOwner,
            (Renewed::Extended, trust) => {
                // An acquire that the server executed before its grace may have left the hold there, and a renewal finds it. Without
                // a reclaim, a fenced lock's counter would stay too low.
                if renewal.reclaim.is_some() {
                    hold.renewing.written();
                }
                match trust {
                    Trust::Full if is_full => how,
                    // Operators have to know of missing replicas, because the hold ends with its lease.
                    Trust::NoExtension if self.may_end_holds(connection) => Renewed::NotAcknowledged,
                    _ => Renewed::StillHeld { left: Duration::MAX },
                }
            }
            // Until the hold is written there, a new server may have an older lease. A reclaim replaces that lease.
            (Renewed::StillHeld { .. }, _) if !hold.renewing.is_written() => {
                Renewed::StillHeld { left: Duration::MAX }
            }
            (how, Trust::Full | Trust::NoExtension) => how,
        }
    }
}
