//! This process's memberships: one for each key of its fleet. Pure.
//!
//! A single server has one key of the fleet, and each shard of a cluster some of 16 keys. Each key has its own roster and grace. A lock can be
//! acquired when all keys on its server permit that, and this process is entered by all keys of the fleet.

use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use wheellock_client::layer::ConnectionId;

use super::Hold;
use super::gate::{Gate, GatePlace};
use super::membership::{Found, Membership, Reclaim, Refresh, Refreshed, Trust};
use crate::base::clock::BootInstant;
use crate::base::fleet::FleetHealth;
use crate::base::fleet_key::FleetKey;
use crate::base::fleet_terms::Terms;
use crate::wait::name::Name;

/// The memberships of this process.
pub(super) struct Memberships {
    terms: Terms,
    all: Box<[Membership]>,
    keys: Box<[Arc<FleetKey>]>,
    /// Number of the server of each key, as far as is known.
    nodes: Box<[u32]>,
    node_of: NodeOf,
    gate: Gate,
}

/// Returns the number of the server that serves a key.
pub(crate) type NodeOf = Box<dyn Fn(&str) -> u32 + Send + Sync>;

impl Memberships {
    pub(super) fn new(terms: Terms, keys: Box<[Arc<FleetKey>]>, node_of: NodeOf, now: BootInstant) -> Self {
        let all = keys.iter().map(|_| Membership::new(terms, now)).collect();
        let nodes = keys.iter().map(|_| u32::MAX).collect();
        Self { terms, all, keys, nodes, node_of, gate: Gate::default() }
    }

    pub(super) fn terms(&self) -> &Terms {
        &self.terms
    }

    fn get(&self, number: usize) -> Option<&Membership> {
        self.all.get(number)
    }

    /// Returns the memberships whose last refresh found the server of this connection.
    fn on(&self, connection: ConnectionId) -> impl Iterator<Item = &Membership> {
        self.all.iter().filter(move |membership| membership.is_on(connection))
    }

    /// Returns the memberships by the keys on a server, with their numbers. A key may be there that no refresh has found there yet.
    fn at(&self, node: impl FnOnce() -> u32) -> impl Iterator<Item = (usize, &Membership)> {
        // A single server has all keys.
        let node = (self.all.len() > 1).then(node);
        let all = self.all.iter().zip(&self.nodes).enumerate();
        all.filter(move |(_, (_, at))| node.is_none_or(|node| node == **at))
            .map(|(number, (it, _))| (number, it))
    }

    /// Returns the memberships by the keys on the server of a lock, with their numbers.
    fn of(&self, name: &Name) -> impl Iterator<Item = (usize, &Membership)> {
        self.at(|| (self.node_of)(name.key()))
    }

    /// Returns true if all servers of each shard know this process. A hold moves with its slot, and the next server of a slot has to know
    /// the holder.
    fn is_entered(&self) -> bool {
        self.all.iter().all(Membership::is_entered)
    }

    /// Records that another server may be behind the connection of each key for which `concerns` returns true.
    pub(super) fn are_replaced(&mut self, concerns: impl Fn(&[u8]) -> bool, now: BootInstant) {
        for ((membership, key), node) in self.all.iter_mut().zip(&self.keys).zip(&mut self.nodes) {
            if concerns(key.fleet.as_bytes()) {
                membership.is_replaced(now);
                // All keys of a shard leave it together. Otherwise the first of them would open the new server.
                *node = (self.node_of)(&key.fleet);
            }
        }
    }

    /// Handles the reply to a refresh: see [`Membership::refreshed`].
    pub(super) fn refreshed(
        &mut self,
        number: usize,
        reply: &Refreshed,
        behind: Option<(ConnectionId, String)>,
        now: BootInstant,
    ) -> Found {
        if let (Some(node), Some((connection, _))) = (self.nodes.get_mut(number), &behind) {
            *node = connection.node();
        }
        let found = self.all.get_mut(number).map(|it| it.refreshed(reply, behind, now));
        match found.unwrap_or(Found::NothingNew) {
            // The first key of a shard that met this server has had all holds written.
            Found::OtherServer if self.companions(number).next().is_some() => Found::SameServer,
            found => found,
        }
    }

    /// Returns the other memberships whose last refresh found the same server.
    fn companions(&self, number: usize) -> impl Iterator<Item = &Membership> {
        let server = self.get(number).map_or("", Membership::server);
        let others = self.all.iter().enumerate().filter(move |(other, _)| *other != number);
        others.map(|(_, it)| it).filter(move |it| it.server() == server)
    }

    /// Records acknowledgements: see [`Membership::acknowledged`]. Returns true if its server can extend holds from now on.
    pub(super) fn acknowledged(
        &mut self,
        number: usize,
        (sent, now): (BootInstant, BootInstant),
        replicas: u32,
    ) -> bool {
        let can_extend = self.all.get_mut(number).is_some_and(|it| it.acknowledged((sent, now), replicas));
        can_extend && self.companions(number).all(Membership::can_extend)
    }

    /// Returns true if the last refresh of this key did not find the server of this connection.
    pub(super) fn is_elsewhere(&self, number: usize, connection: Option<ConnectionId>) -> bool {
        self.get(number).is_some_and(|membership| membership.is_elsewhere(connection))
    }

    /// Returns true if the grace of the server of this key is not over.
    pub(super) fn is_in_grace(&self, number: usize) -> bool {
        self.get(number).is_some_and(|membership| !membership.is_grace_over())
    }

    /// Returns what the next refresh says.
    pub(super) fn next_refresh(&self, number: usize, all_written: bool) -> Option<Refresh> {
        self.get(number).map(|membership| membership.next_refresh(all_written))
    }

    /// Returns the number of replicas that are to acknowledge a refresh, and the time that they have.
    pub(super) fn wanted_replicas(&self, number: usize, now: BootInstant) -> (u32, Duration) {
        self.get(number).map_or((0, Duration::ZERO), |membership| membership.wanted_replicas(now))
    }

    /// Returns the pause before the next refresh.
    pub(super) fn pause(&self, number: usize, now: BootInstant) -> Duration {
        self.get(number).map_or(Duration::MAX, |membership| membership.pause(now))
    }

    /// Returns true if this lock may be acquired now.
    pub(super) fn may_acquire(&self, name: &Name, now: BootInstant) -> bool {
        // Each acquire asks this, and a single server needs no search.
        if let [only] = &*self.all {
            return only.may_acquire(now);
        }
        self.is_entered() && all_of(self.of(name), |(_, membership)| membership.may_acquire(now))
    }

    /// Returns true if this lock may be acquired now. Otherwise the task waits at the gate.
    #[inline]
    pub(super) fn pass(
        &mut self,
        name: &Name,
        now: BootInstant,
        place: &mut Option<GatePlace>,
        waker: &Waker,
    ) -> bool {
        let may_acquire = self.may_acquire(name, now);
        if !may_acquire {
            self.gate.wait(place, waker);
        }
        may_acquire
    }

    /// Removes a task that does not wait any more.
    pub(super) fn leave_gate(&mut self, place: &GatePlace) -> Option<Waker> {
        self.gate.leave(place)
    }

    /// Returns the tasks that wait until locks can be acquired, if some can be acquired now.
    pub(super) fn open_gate(&mut self, now: BootInstant) -> Vec<Waker> {
        let mut any = false;
        for membership in &mut self.all {
            any |= membership.note_ready(now);
        }
        if any && self.is_entered() { self.gate.open() } else { Vec::new() }
    }

    /// Returns true if a grant counts that this connection replied, to a request that was sent at `sent`.
    #[inline]
    pub(super) fn believes_grant(
        &self,
        connection: Option<ConnectionId>,
        sent: BootInstant,
        now: BootInstant,
    ) -> bool {
        let Some(connection) = connection else { return false };
        let believes = |it: &Membership| it.is_on(connection) && it.believes_grant(sent, now);
        if let [only] = &*self.all {
            return believes(only);
        }
        self.is_entered() && all_of(self.at(|| connection.node()), |(_, membership)| believes(membership))
    }

    /// Handles a grant that does not count. If no refresh has found the server of its connection, no lock can be acquired there before the
    /// next refresh. Otherwise each such grant would be given back, and requested again at once.
    pub(super) fn disbelieve(&mut self, connection: Option<ConnectionId>, now: BootInstant) {
        let Some(connection) = connection else { return };
        let is_single = self.all.len() == 1;
        for (membership, node) in self.all.iter_mut().zip(&self.nodes) {
            if (is_single || *node == connection.node()) && !membership.is_on(connection) {
                membership.is_replaced(now);
            }
        }
    }

    /// Records that a refresh of this key has failed, so that the next one follows soon.
    pub(super) fn refresh_failed(&mut self, number: usize) {
        if let Some(membership) = self.all.get_mut(number) {
            membership.refresh_failed();
        }
    }

    /// Returns all tasks that wait until locks can be acquired, because no lock will be acquired any more.
    pub(super) fn shut_down(&mut self) -> Vec<Waker> {
        self.gate.open()
    }

    /// Returns the meaning of a reply of this connection about a hold, to a request that was sent at `sent`.
    pub(super) fn trust(&self, connection: ConnectionId, hold: &Hold, sent: BootInstant) -> Trust {
        // A reply of the old server must not extend a hold ("answers of the old connection are taken").
        self.on(connection).map(|it| it.trust(hold, sent)).min().unwrap_or(Trust::None)
    }

    /// Returns true if a refresh has found the server of this connection.
    pub(super) fn knows(&self, connection: ConnectionId) -> bool {
        self.on(connection).next().is_some()
    }

    /// Returns true if the replies of this connection may end a hold. In a grace, other holders are old copies ("reclaim yields to an
    /// old copy").
    pub(super) fn may_end_holds(&self, connection: ConnectionId) -> bool {
        all_of(self.on(connection), Membership::is_grace_over)
    }

    /// Returns the fleet's key and the incarnation of its present server, which a reclaim names.
    pub(super) fn target(&self, number: usize) -> (&str, &str) {
        let key = self.keys.get(number).map_or("", |key| &*key.fleet);
        (key, self.get(number).map_or("", Membership::incarnation))
    }

    /// Returns the reclaim of this hold. Returns `None` if no refresh has found its server yet.
    pub(super) fn reclaim(&self, hold: &Hold) -> Option<Reclaim> {
        // The first key that a refresh has found on the new server is enough, because a hold has little time.
        let found = || self.of(&hold.name).filter(|(_, membership)| membership.is_connected());
        let is_full = all_of(found(), |(_, membership)| membership.may_renew(hold));
        found().find_map(|(number, it)| Some(Reclaim { number, ..it.reclaim(hold, is_full)? }))
    }

    /// Returns the state of this process for operators.
    pub(super) fn health(&self, now: BootInstant) -> FleetHealth {
        let mut health = FleetHealth { is_in_grace: false, grace_ends_in: None, obstacle: None };
        for membership in &self.all {
            let one = membership.health(now);
            health.is_in_grace |= one.is_in_grace;
            health.grace_ends_in = health.grace_ends_in.max(one.grace_ends_in);
            health.obstacle = health.obstacle.or(one.obstacle);
        }
        health
    }

    /// Returns why this lock cannot be acquired now.
    pub(super) fn obstacle(&self, name: &Name, now: BootInstant) -> Option<String> {
        if self.may_acquire(name, now) {
            return None;
        }
        let not_entered = self.all.iter().find(|membership| !membership.is_entered());
        let here = self.of(name).find_map(|(_, membership)| membership.obstacle(now));
        here.or_else(|| not_entered?.obstacle(now)).or_else(|| Some(UNKNOWN.to_owned()))
    }
}

/// Returns true if there are memberships, and each is so.
fn all_of<T>(mut memberships: impl Iterator<Item = T>, mut is_so: impl FnMut(T) -> bool) -> bool {
    let first = memberships.next();
    first.is_some_and(&mut is_so) && memberships.all(is_so)
}

/// The obstacle of a lock whose server has no membership.
const UNKNOWN: &str = "no refresh has found a key of the fleet on the server of this lock";

#[cfg(test)]
mod tests;
