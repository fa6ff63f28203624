//! The owner of each slot, merged from the nodes' views.
//!
//! A view may be older than other views. This module is pure: it does not send requests and does not read a clock.
//!
//! A primary claims its slots under its *config epoch*. A failover or an import moves slots to a node, under an epoch
//! above all epochs that the node knows. So of two claims to a slot, the claim with the higher epoch is the newer,
//! however late it arrives.
//!
//! Epochs may not decide, and an administrator may bypass them. No entry is therefore permanent. A MOVED reply is
//! believed at once. A node that cannot be reached loses the epochs of its claims, so that any other claim wins.

use std::collections::{HashMap, HashSet};
use std::iter;

use slab::Slab;

use super::nodes::Node;
use crate::base::address::Address;
use crate::base::slots::SLOTS;

/// The known state of a cluster. In a new map, no slot has an owner.
#[derive(Clone)]
pub(crate) struct SlotMap {
    nodes: Slab<Known>,
    /// By slot, the key of its owner in `nodes`, or `u16::MAX` without an owner. Separate from the epochs, because every call reads this
    /// list.
    owners: Box<[u16]>,
    /// By slot, the epoch of the owner's claim. Zero if the owner did not claim the slot, or its claim is no longer
    /// believed.
    epochs: Box<[u64]>,
}

#[derive(Clone)]
struct Known {
    id: String,
    address: Address,
    /// The second address of a node with a host name. A MOVED reply may contain either address; the server decides.
    alias: Option<Address>,
    is_primary: bool,
    is_failed: bool,
    is_unreachable: bool,
}

const NO_OWNER: u16 = u16::MAX;

impl SlotMap {
    /// Merges the view of the node at `asked`. An empty host in the view means the host of `asked`. Returns all primaries
    /// that are not down, with or without slots.
    ///
    /// A view without any known node comes from another cluster. Either the whole cluster was recreated, or only the
    /// queried node was. Such a view is valid for the addresses in it, and the former nodes at those addresses are
    /// forgotten. It replaces the whole map once no other owner of a slot can be reached.
    pub(crate) fn merge_view(&mut self, view: &[Node], asked: &Address) -> Vec<Address> {
        let view = resolved(view, asked);
        // An empty view proves nothing, but `admits` would take it for the view of a recreated cluster.
        if !view.is_empty() && self.admits(&view, asked) {
            self.merge(&view);
        }
        self.primaries()
    }

    /// Returns the address that serves `slot`.
    pub(crate) fn owner(&self, slot: u16) -> Option<&Address> {
        let key = self.owners.get(usize::from(slot))?;
        Some(&self.nodes.get(usize::from(*key))?.address)
    }

    /// Follows a MOVED reply. The reply is about the present and is therefore believed, but only for nodes of this
    /// cluster. This limits the targets that a hostile or confused server can name. Returns false if `to` is unknown,
    /// and the map then needs a refresh.
    ///
    /// The slot keeps its epoch, so a view of the same age may correct an outdated reply.
    pub(crate) fn moved(&mut self, slot: u16, to: &Address) -> bool {
        // The map may list a failed node and a living node at one address. The reply means the living one.
        let named = self.nodes.iter().filter(|(_, node)| node.is_at(to));
        let key = named.min_by_key(|(_, node)| node.is_failed).and_then(|(key, _)| u16::try_from(key).ok());
        match (key, self.owners.get_mut(usize::from(slot))) {
            (Some(key), Some(owner)) => {
                *owner = key;
                true
            }
            _ => false,
        }
    }

    /// Marks the node at `address` as unreachable. It keeps its slots until another node claims them under any epoch.
    pub(crate) fn unreachable(&mut self, address: &Address) {
        for (_, node) in self.nodes.iter_mut().filter(|(_, node)| node.is_at(address)) {
            node.is_unreachable = true;
        }
        for (owner, epoch) in self.owners.iter().zip(&mut self.epochs) {
            if self.nodes.get(usize::from(*owner)).is_some_and(|node| node.is_unreachable) {
                *epoch = 0;
            }
        }
    }

    /// Returns the address under which the map keeps the node at `address`. A node may have two addresses. Returns
    /// `None` for an unknown node.
    pub(crate) fn known_as(&self, address: &Address) -> Option<&Address> {
        let at = self.nodes.iter().find(|(_, node)| node.is_at(address));
        at.map(|(_, node)| &node.address)
    }

    /// Returns every node that is not down, as targets of queries. Unreachable nodes come last.
    pub(crate) fn replicas_too(&self) -> impl Iterator<Item = &Address> {
        let live = |unreachable: bool| {
            let wanted = move |node: &&Known| !node.is_failed && node.is_unreachable == unreachable;
            self.nodes.iter().map(|(_, node)| node).filter(wanted).map(|node| &node.address)
        };
        live(false).chain(live(true))
    }

    fn primaries(&self) -> Vec<Address> {
        let held = self.held();
        let mut listed = HashSet::new();
        // A MOVED reply may name a replica that was just promoted. It owns slots before any view calls it a primary.
        let primary = |&(key, node): &(usize, &Known)| node.is_primary || held.epoch(key).is_some();
        let live = self.nodes.iter().filter(|(_, node)| !node.is_failed).filter(primary);
        live.map(|(_, node)| &node.address).filter(|&address| listed.insert(address)).cloned().collect()
    }

    fn held(&self) -> Held {
        let mut held = Held(vec![None; self.nodes.capacity()]);
        for (&owner, &epoch) in self.owners.iter().zip(&self.epochs) {
            if let Some(highest) = held.0.get_mut(usize::from(owner)) {
                *highest = Some(epoch).max(*highest);
            }
        }
        held
    }

    /// Returns true if the view is believed. Clears the map if the view is from a cluster that replaces this one.
    fn admits(&mut self, view: &[Node], asked: &Address) -> bool {
        let ids: HashSet<&str> = view.iter().map(|node| node.id.as_str()).collect();
        if self.nodes.is_empty() || self.nodes.iter().any(|(_, node)| ids.contains(node.id.as_str())) {
            return true;
        }
        let taken: HashSet<&Address> =
            view.iter().flat_map(|node| iter::once(&node.address).chain(&node.alias)).collect();
        self.forget(|node| {
            node.is_at(asked)
                || taken.contains(&node.address)
                || node.alias.as_ref().is_some_and(|alias| taken.contains(alias))
        });
        let held = self.held();
        // A single node that was reset must not erase the map of a cluster that still serves.
        if self.nodes.iter().any(|(key, node)| held.epoch(key).is_some() && node.is_alive()) {
            return false;
        }
        *self = Self::default();
        true
    }

    fn merge(&mut self, view: &[Node]) {
        let keys = self.keys_of(view);
        self.merge_claims(view, &keys);
        self.merge_nodes(view, &keys);
        let held = self.held();
        let seen: HashSet<u16> = keys.into_iter().flatten().collect();
        // An owner that the view does not list stays, because the view may be older than its claim.
        self.nodes.retain(|key, _| {
            held.epoch(key).is_some() || u16::try_from(key).is_ok_and(|key| seen.contains(&key))
        });
    }

    /// Returns the key in `nodes` of each node in the view. Inserts new nodes.
    fn keys_of(&mut self, view: &[Node]) -> Vec<Option<u16>> {
        let mut by_id: HashMap<String, usize> =
            self.nodes.iter().map(|(key, node)| (node.id.clone(), key)).collect();
        let mut key_of = |node: &Node| {
            let key = *by_id.entry(node.id.clone()).or_insert_with(|| self.nodes.insert(Known::new(node)));
            // This key marks slots without an owner, so no node may have it.
            u16::try_from(key).ok().filter(|&key| key != NO_OWNER)
        };
        view.iter().map(&mut key_of).collect()
    }

    fn merge_claims(&mut self, view: &[Node], keys: &[Option<u16>]) {
        let mut by_key: Vec<Option<&Node>> = vec![None; self.nodes.capacity()];
        for (key, node) in keys.iter().zip(view) {
            if let Some(listed) = key.and_then(|key| by_key.get_mut(usize::from(key))) {
                *listed = Some(node);
            }
        }
        for ((owner, epoch), claim) in self.owners.iter_mut().zip(&mut self.epochs).zip(claims(view)) {
            let claim = claim.and_then(|index| Some(((*keys.get(index)?)?, view.get(index)?.epoch)));
            // The view's statement about the owner counts only if it is as new as the claim that it would undo.
            let owner_now =
                by_key.get(usize::from(*owner)).copied().flatten().filter(|node| node.epoch >= *epoch);
            let is_deposed =
                owner_now.is_some_and(|node| node.epoch > *epoch || !node.is_primary || node.is_failed);
            match claim {
                // A claim of the same age wins, so that a view corrects an outdated MOVED reply.
                Some((claimant, claimed)) if claimed >= *epoch || is_deposed => {
                    (*owner, *epoch) = (claimant, claimed);
                }
                // The view lists the owner without this slot, so the owner has given the slot up.
                None if owner_now.is_some() => (*owner, *epoch) = (NO_OWNER, 0),
                _ => {}
            }
        }
    }

    /// Updates the address, role and reachability of the view's nodes. Skips a node if its epoch in the view is lower
    /// than the epoch of one of its known slots.
    fn merge_nodes(&mut self, view: &[Node], keys: &[Option<u16>]) {
        let held = self.held();
        for (key, node) in keys.iter().zip(view) {
            let Some(key) = key.map(usize::from) else { continue };
            let is_behind = held.epoch(key).is_some_and(|epoch| node.epoch < epoch);
            if let Some(known) = self.nodes.get_mut(key).filter(|_| !is_behind) {
                *known = known.updated(Known::new(node));
            }
        }
    }

    fn forget(&mut self, which: impl Fn(&Known) -> bool) {
        self.nodes.retain(|_, node| !which(node));
        for (owner, epoch) in self.owners.iter_mut().zip(&mut self.epochs) {
            if !self.nodes.contains(usize::from(*owner)) {
                (*owner, *epoch) = (NO_OWNER, 0);
            }
        }
    }
}

impl Default for SlotMap {
    fn default() -> Self {
        let slots = usize::from(SLOTS);
        Self { nodes: Slab::new(), owners: vec![NO_OWNER; slots].into(), epochs: vec![0; slots].into() }
    }
}

impl Known {
    fn new(node: &Node) -> Self {
        Self {
            id: node.id.clone(),
            address: node.address.clone(),
            alias: node.alias.clone(),
            is_primary: node.is_primary,
            is_failed: node.is_failed,
            is_unreachable: false,
        }
    }

    fn is_at(&self, address: &Address) -> bool {
        self.address == *address || self.alias.as_ref() == Some(address)
    }

    /// Returns the node's new state, and keeps the known address if the node still has it. Nodes may prefer different
    /// addresses while an operator changes the preference. Each change of address would cost a new connection.
    fn updated(&self, mut now: Self) -> Self {
        // A node that cannot be reached at its known address may be reached at the other one.
        if !self.is_unreachable && now.alias.as_ref() == Some(&self.address) {
            now.alias = Some(std::mem::replace(&mut now.address, self.address.clone()));
        }
        now
    }

    fn is_alive(&self) -> bool {
        !self.is_failed && !self.is_unreachable
    }
}

/// By key, the highest epoch under which a node owns a slot.
struct Held(Vec<Option<u64>>);

impl Held {
    fn epoch(&self, key: usize) -> Option<u64> {
        self.0.get(key).copied().flatten()
    }
}

/// Returns a view in which each node is listed once, and has the host of `asked` in place of an empty host.
fn resolved(view: &[Node], asked: &Address) -> Vec<Node> {
    let asked_host = match asked {
        Address::Tcp { host, .. } => host,
        Address::Unix(_) => "localhost",
    };
    let mut ids = HashSet::new();
    // A node that is listed twice would own slots that it has lost.
    let mut view: Vec<Node> = view.iter().filter(|node| ids.insert(node.id.as_str())).cloned().collect();
    for address in view.iter_mut().flat_map(|node| iter::once(&mut node.address).chain(&mut node.alias)) {
        if let Address::Tcp { host, .. } = address
            && host.is_empty()
        {
            asked_host.clone_into(host);
        }
    }
    view
}

/// Returns, by slot, the index in `view` of the primary that claims it. Of two claims, the one with the higher epoch
/// wins.
fn claims(view: &[Node]) -> Vec<Option<usize>> {
    let mut claims: Vec<Option<usize>> = vec![None; usize::from(SLOTS)];
    for (index, claimant) in view.iter().enumerate().filter(|(_, node)| node.is_primary) {
        for slot in claimant.slots.iter().cloned().flatten() {
            let Some(claim) = claims.get_mut(usize::from(slot)) else { break };
            let other = claim.and_then(|index| view.get(index));
            if other.is_none_or(|other| other.epoch < claimant.epoch) {
                *claim = Some(index);
            }
        }
    }
    claims
}

#[cfg(test)]
mod tests;
