//! Which address owns each slot, merged from what nodes said, any of which may be behind the others. Pure: sends nothing
//! and does not know what time it is.
//!
//! A primary claims its slots under its *config epoch*. A node that takes slots over, by a failover or by importing them,
//! does so under an epoch above all that it knows of, so of two claims to a slot the one with the higher epoch is the newer,
//! however late it is heard. Where that does not decide, or where an administrator went around it, nothing here is for
//! ever: a node that says MOVED is believed at once, and one that cannot be reached loses the epochs of its claims, so that
//! any other claim wins.

use std::collections::{HashMap, HashSet};
use std::fmt;

use slab::Slab;

use super::nodes::Node;
use crate::base::address::Address;
use crate::base::endpoint::address;
use crate::base::slots::{SLOTS, SlotSet};

/// What is known of a cluster. Starts empty: nobody owns a slot.
#[derive(Clone)]
pub(crate) struct SlotMap {
    nodes: Slab<Known>,
    /// By slot, the key of its owner in `nodes`, or `NOBODY`. Apart from the epochs, because every call looks here.
    owners: Box<[u16]>,
    /// By slot, the epoch under which its owner claimed it; zero if it did not, or is not to be believed any more.
    epochs: Box<[u64]>,
}

/// What changed by [`SlotMap::learn`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Learnt {
    /// Slots whose owner has another address than before, nobody being one too.
    pub(crate) moved: SlotSet,
    /// All primaries that are not down, whether they own slots or may get some.
    pub(crate) primaries: Vec<Address>,
}

#[derive(Clone)]
struct Known {
    id: String,
    address: Address,
    /// By its IP address if `address` has its host name, and the other way round: which one MOVED has is the server's choice.
    alias: Option<Address>,
    is_primary: bool,
    is_failed: bool,
    is_unreachable: bool,
}

const NOBODY: u16 = u16::MAX;

impl SlotMap {
    /// Merges what the node at `asked` said. An empty host in it means the host of `asked`.
    ///
    /// A view that names none of the nodes known so far is of another cluster: the whole one was made anew, or only the one
    /// that was asked was. It speaks for the addresses in it, whose former nodes are forgotten, and replaces everything once
    /// no other owner of a slot is left that can be reached.
    pub(crate) fn learn(&mut self, view: &[Node], asked: &Address) -> Learnt {
        let before = self.clone();
        let view = View::new(view, asked);
        if !view.nodes.is_empty() && self.admits(&view, asked) {
            self.merge(&view);
        }
        Learnt { moved: self.difference(&before), primaries: self.primaries() }
    }

    /// The address to send a call about `slot` to.
    pub(crate) fn owner(&self, slot: u16) -> Option<&Address> {
        let key = self.owners.get(usize::from(slot))?;
        Some(&self.nodes.get(usize::from(*key))?.address)
    }

    /// Follows a MOVED reply, which is about now and therefore believed, but only about nodes of this cluster: what a hostile
    /// or confused server may name is bounded by that. `false`: nothing is known of `to`, and the map needs a refresh.
    ///
    /// The slot keeps its epoch, so any view that is as new may correct a reply that was behind.
    pub(crate) fn moved(&mut self, slot: u16, to: &Address) -> bool {
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

    /// The node at `address` cannot be reached: it keeps its slots until anybody else claims them, under whatever epoch.
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

    /// The address by which a node is known here, of the two that it may have; `None` if no node of this cluster is there.
    pub(crate) fn known_as(&self, address: &Address) -> Option<&Address> {
        let at = self.nodes.iter().find(|(_, node)| node.is_at(address));
        at.map(|(_, node)| &node.address)
    }

    /// Whether every slot has an owner.
    pub(crate) fn is_covered(&self) -> bool {
        self.owners.iter().all(|&owner| owner != NOBODY)
    }

    /// Every node that is not down, for asking: those that could not be reached come last.
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

    /// The slots whose owner has another address in `before`.
    fn difference(&self, before: &Self) -> SlotSet {
        let mut different = SlotSet::default();
        let mut compared = None;
        for (slot, pair) in (0..SLOTS).zip(before.owners.iter().zip(&self.owners)) {
            // Neighbours mostly have the same owner.
            let differs = match compared {
                Some((same, differs)) if same == pair => differs,
                _ => before.owner(slot) != self.owner(slot),
            };
            compared = Some((pair, differs));
            if differs {
                different.insert(slot);
            }
        }
        different
    }

    /// Whether to believe the view; makes room for it if it is of a cluster in this one's place.
    fn admits(&mut self, view: &View<'_>, asked: &Address) -> bool {
        let ids: HashSet<&str> = view.nodes.iter().map(|seen| seen.node.id.as_str()).collect();
        if self.nodes.is_empty() || self.nodes.iter().any(|(_, node)| ids.contains(node.id.as_str())) {
            return true;
        }
        let taken: HashSet<&Address> =
            view.nodes.iter().flat_map(|seen| [Some(&seen.address), seen.alias.as_ref()]).flatten().collect();
        self.forget(|node| {
            node.is_at(asked)
                || taken.contains(&node.address)
                || node.alias.as_ref().is_some_and(|alias| taken.contains(alias))
        });
        let held = self.held();
        if self.nodes.iter().any(|(key, node)| held.epoch(key).is_some() && node.is_alive()) {
            return false;
        }
        *self = Self::default();
        true
    }

    fn merge(&mut self, view: &View<'_>) {
        let keys = self.keys_of(view);
        self.merge_claims(view, &keys);
        self.merge_nodes(view, &keys);
        let held = self.held();
        let seen: HashSet<u16> = keys.into_iter().flatten().collect();
        self.nodes.retain(|key, _| {
            held.epoch(key).is_some() || u16::try_from(key).is_ok_and(|key| seen.contains(&key))
        });
    }

    /// By node of the view, its key in `nodes`, where it is put if it is new.
    fn keys_of(&mut self, view: &View<'_>) -> Vec<Option<u16>> {
        let mut by_id: HashMap<String, usize> =
            self.nodes.iter().map(|(key, node)| (node.id.clone(), key)).collect();
        let mut key_of = |seen: &Seen<'_>| {
            let key = *by_id.entry(seen.node.id.clone()).or_insert_with(|| self.nodes.insert(seen.known()));
            u16::try_from(key).ok().filter(|&key| key != NOBODY)
        };
        view.nodes.iter().map(&mut key_of).collect()
    }

    fn merge_claims(&mut self, view: &View<'_>, keys: &[Option<u16>]) {
        let claims = view.claims();
        let mut by_key: Vec<Option<&Node>> = vec![None; self.nodes.capacity()];
        for (key, seen) in keys.iter().zip(&view.nodes) {
            if let Some(node) = key.and_then(|key| by_key.get_mut(usize::from(key))) {
                *node = Some(seen.node);
            }
        }
        for ((owner, epoch), claim) in self.owners.iter_mut().zip(&mut self.epochs).zip(claims) {
            let claim =
                claim.and_then(|index| Some(((*keys.get(index)?)?, view.nodes.get(index)?.node.epoch)));
            // What the view says of the owner counts only if it is as new as the claim it would undo.
            let owner_now =
                by_key.get(usize::from(*owner)).copied().flatten().filter(|node| node.epoch >= *epoch);
            let is_deposed =
                owner_now.is_some_and(|node| node.epoch > *epoch || !node.is_primary || node.is_failed);
            match claim {
                Some((claimant, claimed)) if claimed >= *epoch || is_deposed => {
                    (*owner, *epoch) = (claimant, claimed);
                }
                None if owner_now.is_some() => (*owner, *epoch) = (NOBODY, 0),
                _ => {}
            }
        }
    }

    /// Takes over where nodes are, what they are, and that they are seen at all, unless the view is older than what a node is
    /// known to own.
    fn merge_nodes(&mut self, view: &View<'_>, keys: &[Option<u16>]) {
        let held = self.held();
        for (key, seen) in keys.iter().zip(&view.nodes) {
            let Some(key) = key.map(usize::from) else { continue };
            let is_behind = held.epoch(key).is_some_and(|epoch| seen.node.epoch < epoch);
            if let Some(known) = self.nodes.get_mut(key).filter(|_| !is_behind) {
                *known = known.updated(seen.known());
            }
        }
    }

    fn forget(&mut self, which: impl Fn(&Known) -> bool) {
        self.nodes.retain(|_, node| !which(node));
        for (owner, epoch) in self.owners.iter_mut().zip(&mut self.epochs) {
            if !self.nodes.contains(usize::from(*owner)) {
                (*owner, *epoch) = (NOBODY, 0);
            }
        }
    }
}

impl Default for SlotMap {
    fn default() -> Self {
        let slots = usize::from(SLOTS);
        Self { nodes: Slab::new(), owners: vec![NOBODY; slots].into(), epochs: vec![0; slots].into() }
    }
}

/// By owner, its slots.
impl fmt::Debug for SlotMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let owned_by = |key: usize| {
            let mut slots = SlotSet::default();
            let owned = (0..SLOTS).zip(&self.owners).filter(|(_, owner)| usize::from(**owner) == key);
            owned.for_each(|(slot, _)| slots.insert(slot));
            slots
        };
        f.debug_map()
            .entries(self.nodes.iter().map(|(key, node)| (node.address.to_string(), owned_by(key))))
            .finish()
    }
}

impl Known {
    fn is_at(&self, address: &Address) -> bool {
        self.address == *address || self.alias.as_ref() == Some(address)
    }

    /// Returns what a node says now, at the address that is known already if the node still has it. Nodes may prefer different
    /// addresses while an operator changes the preference, and a change of address costs a connection.
    fn updated(&self, mut now: Self) -> Self {
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

/// What one node said, with addresses in place of hosts and ports.
struct View<'a> {
    nodes: Vec<Seen<'a>>,
}

struct Seen<'a> {
    node: &'a Node,
    address: Address,
    alias: Option<Address>,
}

impl<'a> View<'a> {
    fn new(nodes: &'a [Node], asked: &Address) -> Self {
        let asked_host = match asked {
            Address::Tcp { host, .. } => host,
            Address::Unix(_) => "localhost",
        };
        let mut ids = HashSet::new();
        // A node named twice would own what it has lost.
        let distinct = nodes.iter().filter(|node| ids.insert(node.id.as_str()));
        let with_host = |named: &Address| match named {
            Address::Tcp { host, port } if host.is_empty() => address(asked_host, *port),
            named => named.clone(),
        };
        let seen = distinct.map(|node| Seen {
            node,
            address: with_host(&node.address),
            alias: node.alias.as_ref().map(with_host),
        });
        Self { nodes: seen.collect() }
    }

    /// By slot, the place in `nodes` of the primary that claims it; should there be two, that of the higher epoch.
    fn claims(&self) -> Vec<Option<usize>> {
        let mut claims: Vec<Option<usize>> = vec![None; usize::from(SLOTS)];
        for (index, claimant) in self.nodes.iter().enumerate().filter(|(_, seen)| seen.node.is_primary) {
            for slot in claimant.node.slots.iter().cloned().flatten() {
                let Some(claim) = claims.get_mut(usize::from(slot)) else { break };
                let other = claim.and_then(|index| self.nodes.get(index));
                if other.is_none_or(|other| other.node.epoch < claimant.node.epoch) {
                    *claim = Some(index);
                }
            }
        }
        claims
    }
}

impl Seen<'_> {
    fn known(&self) -> Known {
        Known {
            id: self.node.id.clone(),
            address: self.address.clone(),
            alias: self.alias.clone(),
            is_primary: self.node.is_primary,
            is_failed: self.node.is_failed,
            is_unreachable: false,
        }
    }
}

#[cfg(test)]
mod tests;
