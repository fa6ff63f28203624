//! This process's memberships: one for each key of its fleet. Pure.
//!
//! A single server has one key of the fleet. In a cluster each shard has some of them. A shard's keys tell of its failovers together: a
//! request is as good as the worst of them says.

use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use wheellock_client::Change;
use wheellock_client::layer::ConnectionId;

use super::Hold;
use super::membership::{Membership, Reclaim, Refresh, Refreshed, Trust};
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
    node_of: NodeOf,
    /// Tasks that wait until locks can be acquired.
    gate: Vec<Waker>,
}

/// Returns the number of the server that serves a lock.
pub(crate) type NodeOf = Box<dyn Fn(&Name) -> u32 + Send + Sync>;

impl Memberships {
    pub(super) fn new(terms: Terms, keys: Box<[Arc<FleetKey>]>, node_of: NodeOf, now: BootInstant) -> Self {
        let all = keys.iter().map(|_| Membership::new(terms, now)).collect();
        Self { terms, all, keys, node_of, gate: Vec::new() }
    }

    pub(super) fn terms(&self) -> &Terms {
        &self.terms
    }

    fn get(&self, number: usize) -> Option<&Membership> {
        self.all.get(number)
    }

    /// Returns the memberships on the server of this connection.
    fn on(&self, connection: ConnectionId) -> impl Iterator<Item = &Membership> {
        self.all.iter().filter(move |membership| membership.is_on(connection))
    }

    /// Returns the memberships on the server that serves a lock, with their numbers.
    fn of(&self, name: &Name) -> impl Iterator<Item = (usize, &Membership)> {
        let node = (self.all.len() > 1).then(|| (self.node_of)(name));
        let is_there = move |membership: &Membership| node.is_none_or(|node| membership.node() == Some(node));
        self.all.iter().enumerate().filter(move |(_, membership)| is_there(membership))
    }

    /// Returns true if all servers of each shard know this process. A hold moves with its slot, and the next server of a slot has to know
    /// the holder.
    fn is_entered(&self) -> bool {
        self.all.iter().all(Membership::is_entered)
    }

    /// Records that other servers may be behind the connections of these keys.
    pub(super) fn are_replaced(&mut self, change: &Change, now: BootInstant) {
        for (membership, key) in self.all.iter_mut().zip(&self.keys) {
            if change.concerns(key.fleet.as_bytes()) {
                membership.is_replaced(now);
            }
        }
    }

    /// Handles the reply to a refresh: see [`Membership::refreshed`]. Returns true if all holds have to be written.
    pub(super) fn refreshed(
        &mut self,
        number: usize,
        reply: &Refreshed,
        behind: Option<(ConnectionId, String)>,
        now: BootInstant,
    ) -> bool {
        let is_other = self.all.get_mut(number).is_some_and(|it| it.refreshed(reply, behind, now));
        // The first key of a shard that met this server has had all holds written.
        is_other && self.companions(number).next().is_none()
    }

    /// Returns the other memberships whose last refresh found the same server.
    fn companions(&self, number: usize) -> impl Iterator<Item = &Membership> {
        let incarnation = self.get(number).map_or("", Membership::incarnation);
        let others = self.all.iter().enumerate().filter(move |(other, _)| *other != number);
        others.map(|(_, it)| it).filter(move |it| it.incarnation() == incarnation)
    }

    /// Records acknowledgements: see [`Membership::acknowledged`]. Returns true if holds can be written from now on.
    pub(super) fn acknowledged(&mut self, number: usize, sent: BootInstant, replicas: u32) -> bool {
        let is_first = self.all.get_mut(number).is_some_and(|it| it.acknowledged(sent, replicas));
        is_first && !self.companions(number).any(Membership::has_counted)
    }

    /// Returns what the next refresh says.
    pub(super) fn next_refresh(&self, number: usize, all_written: bool) -> Option<Refresh> {
        self.get(number).map(|membership| membership.next_refresh(all_written))
    }

    /// Returns the number of replicas that are to acknowledge a refresh.
    pub(super) fn wanted_replicas(&self, number: usize) -> u32 {
        self.get(number).map_or(0, Membership::wanted_replicas)
    }

    /// Returns the pause before the next refresh.
    pub(super) fn pause(&self, number: usize, now: BootInstant) -> Duration {
        self.get(number).map_or(Duration::MAX, |membership| membership.pause(now))
    }

    /// Returns true if this lock may be acquired now.
    pub(super) fn may_acquire(&self, name: &Name, now: BootInstant) -> bool {
        self.is_entered() && all_of(self.of(name), |(_, membership)| membership.may_acquire(now))
    }

    /// Returns true if this lock may be acquired now. Stores the waker if not.
    pub(super) fn pass(&mut self, name: &Name, now: BootInstant, waker: &Waker) -> bool {
        let may_acquire = self.may_acquire(name, now);
        if !may_acquire && !self.gate.iter().any(|known| known.will_wake(waker)) {
            self.gate.push(waker.clone());
        }
        may_acquire
    }

    /// Returns the tasks that wait until locks can be acquired, if some can be acquired now.
    pub(super) fn open_gate(&mut self, now: BootInstant) -> Vec<Waker> {
        let mut any = false;
        for membership in &mut self.all {
            any |= membership.note_ready(now);
        }
        if any && self.is_entered() { std::mem::take(&mut self.gate) } else { Vec::new() }
    }

    /// Returns true if a grant counts that this connection replied, to a request that was sent at `sent`.
    pub(super) fn believes_grant(
        &self,
        connection: Option<ConnectionId>,
        sent: BootInstant,
        now: BootInstant,
    ) -> bool {
        let believes = |it: &Membership| it.believes_grant(sent, now);
        self.is_entered() && connection.is_some_and(|connection| all_of(self.on(connection), believes))
    }

    /// Returns the meaning of a reply of this connection about a hold, to a request that was sent at `sent`.
    pub(super) fn trust(&self, connection: ConnectionId, hold: &Hold, sent: BootInstant) -> Trust {
        // A reply of the old server must not extend a hold ("answers of the old connection are taken").
        self.on(connection).map(|it| it.trust(hold, sent)).min().unwrap_or(Trust::None)
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

    /// Returns the reclaim of this hold. Returns `None` if no refresh counts on its server yet.
    pub(super) fn reclaim(&self, hold: &Hold) -> Option<Reclaim> {
        let is_full = all_of(self.of(&hold.name), |(_, membership)| membership.may_renew(hold));
        let mut counted = self.of(&hold.name);
        counted.find_map(|(number, it)| Some(Reclaim { number, ..it.reclaim(hold, is_full)? }))
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
const UNKNOWN: &str = "this process does not know the present server yet";
