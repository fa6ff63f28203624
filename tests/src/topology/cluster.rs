//! A cluster of masters and replicas, with movable slots.
//!
//! A move can also stop halfway.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::view::View;
use super::{
    Settings, ask, check_linked, check_primary, field, must, revive_all, settle, settle_streams, start_all,
    up,
};
use crate::cli::Reply;
use crate::server::RedisServer;

/// The nodes of a cluster. A node keeps its index in [`nodes`](Self::nodes), whatever its role. At first, the masters come first and have
/// equal numbers of slots. Their replicas follow in turns (with three masters, node 3 follows node 0).
///
/// A replica takes over from a dead or paused master about 2 s later. Replicas follow only their own master's slots.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<RedisServer>,
    /// The nodes' ids within the cluster.
    ids: Vec<String>,
    /// Ids of nodes that were replaced.
    forgotten: Vec<(usize, String)>,
    promotions: Mutex<Promotions>,
    settings: Settings,
}

impl Cluster {
    /// Starts `masters` masters with `replicas_each` replicas each, and waits until all nodes agree.
    ///
    /// # Panics
    ///
    /// If the nodes do not start; the message says why.
    #[must_use]
    pub fn start(masters: usize, replicas_each: usize, settings: &Settings) -> Self {
        must("cannot start a cluster", Self::try_start(masters, replicas_each, settings))
    }

    /// Starts a cluster like [`start`](Self::start), for tools that report errors instead of panicking.
    ///
    /// # Errors
    ///
    /// The nodes do not start, or do not find each other.
    pub fn try_start(masters: usize, replicas_each: usize, settings: &Settings) -> Result<Self> {
        let tls = if settings.tls.is_some() { "yes" } else { "no" };
        let own = [DIRECTIVES, &[("tls-cluster", tls)]].concat();
        let nodes = start_all((0..masters * (1 + replicas_each)).map(|_| settings.server(&own).cluster()))?;
        let ids = nodes.iter().map(my_id).collect::<Result<_>>()?;
        let promotions = Mutex::new(Promotions { masters: (0..masters).collect(), ..Promotions::default() });
        let cluster = Self { nodes, ids, forgotten: Vec::new(), promotions, settings: settings.clone() };
        cluster.create(masters)?;
        cluster.settle(|| Ok(()))?;
        Ok(cluster)
    }

    /// `redis+cluster://[user:password@]host:port,host:port...` with the addresses of all nodes, or `rediss+cluster:`
    #[must_use]
    pub fn url(&self) -> String {
        self.settings.url("redis+cluster", &self.nodes)
    }

    /// Returns all nodes.
    #[must_use]
    pub fn nodes(&self) -> &[RedisServer] {
        &self.nodes
    }

    /// Returns all nodes, to kill and restart them.
    pub fn nodes_mut(&mut self) -> &mut [RedisServer] {
        &mut self.nodes
    }

    /// Returns the slot of a key, according to a node.
    ///
    /// # Panics
    ///
    /// If no node is up.
    #[must_use]
    pub fn slot_of(&self, key: &str) -> u16 {
        let slot = ask(self.any(), &["CLUSTER", "KEYSLOT", key]).map(|slot| slot.to_string());
        must("CLUSTER KEYSLOT", slot.and_then(|slot| Ok(slot.parse()?)))
    }

    /// Returns the index of the node that owns a slot. If several nodes claim the slot, the latest claim counts.
    ///
    /// # Panics
    ///
    /// If the slot does not have an owner, or a node does not reply.
    #[must_use]
    pub fn owner_of(&self, slot: u16) -> usize {
        must("who owns the slot?", self.owner(slot))
    }

    /// Returns the index of the node that owns a key's slot.
    ///
    /// # Panics
    ///
    /// As [`owner_of`](Self::owner_of).
    #[must_use]
    pub fn owner_of_key(&self, key: &str) -> usize {
        self.owner_of(self.slot_of(key))
    }

    /// Returns the indices of a master's replicas, according to a node.
    ///
    /// # Panics
    ///
    /// If no node replies.
    #[must_use]
    pub fn replicas_of(&self, master: usize) -> Vec<usize> {
        let view = must("CLUSTER NODES", View::of(self.any()));
        let follows = |id: &String| {
            view.nodes.get(id).is_some_and(|known| known.master.as_ref() == Some(&self.ids[master]))
        };
        (0..self.ids.len()).filter(|index| follows(&self.ids[*index])).collect()
    }

    /// Moves a slot with all its keys to another master, while clients use it. Returns when all running nodes know the move.
    ///
    /// # Panics
    ///
    /// If a node rejects a command.
    pub fn move_slot(&self, slot: u16, to: usize) {
        self.begin_move(slot, to);
        while self.migrate_keys(slot, to, BATCH) > 0 {}
        self.finish_move(slot, to);
        let heard = || {
            let heard =
                |(_, node)| Ok(View::of(node)?.owner_of(slot).map(|(id, _)| id) == Some(&self.ids[to]));
            let all = up(&self.nodes).map(heard).collect::<Result<Vec<bool>>>()?;
            ensure!(!all.contains(&false), "not all have heard of slot {slot}'s move");
            // All nodes must know the highest epoch first. Otherwise a node may take the next slot over with an epoch that other nodes
            // outbid. Then each of two nodes says that the other owns the slot (seen on Redis 7.0).
            let epochs = |node: &RedisServer| {
                let view = View::of(node)?;
                Ok(self.ids.iter().map(|id| view.nodes.get(id).map(|known| known.epoch)).collect::<Vec<_>>())
            };
            let epochs = up(&self.nodes).map(|(_, node)| epochs(node)).collect::<Result<BTreeSet<_>>>()?;
            ensure!(epochs.len() == 1, "not all have heard of the epochs after slot {slot}'s move");
            Ok(())
        };
        must("a moved slot", settle(heard));
    }

    /// Announces a move to both sides. From now on, the owner replies ASK for keys that it does not have.
    ///
    /// # Panics
    ///
    /// If a node rejects a command.
    pub fn begin_move(&self, slot: u16, to: usize) {
        must("begin of a move", self.owner(slot).and_then(|from| self.begin(slot, from, to)));
    }

    /// Moves at most `at_most` keys of a slot whose move has begun. Returns the number of keys that it found.
    ///
    /// # Panics
    ///
    /// If a node rejects a command.
    pub fn migrate_keys(&self, slot: u16, to: usize, at_most: usize) -> usize {
        must("MIGRATE", self.migrate(slot, to, at_most))
    }

    /// Moves this key of a slot whose move has begun.
    ///
    /// # Panics
    ///
    /// If a node rejects a command.
    pub fn migrate_key(&self, key: &str, to: usize) {
        let move_it = || self.migrate_these(self.owner_of_key(key), to, vec![key.into()]);
        must("MIGRATE", move_it());
    }

    /// Announces the slot's new owner to all masters, the new owner first. Keys that remain on the old owner are lost.
    ///
    /// # Panics
    ///
    /// If a node rejects a command.
    pub fn finish_move(&self, slot: u16, to: usize) {
        must("end of a move", self.hand_over(slot, to));
    }

    /// Cancels a move that has begun without migrating any key.
    ///
    /// # Panics
    ///
    /// If a node rejects a command.
    pub fn cancel_move(&self, slot: u16, to: usize) {
        for index in [self.owner_of(slot), to] {
            must("a move called off", self.set_slot(index, slot, &["STABLE"]));
        }
    }

    /// Makes a replica take over from its master, in agreement with the master. Returns when all nodes agree.
    ///
    /// # Panics
    ///
    /// If the node is not a replica, or the nodes do not agree.
    pub fn failover(&self, replica: usize) {
        let order = || ask(&self.nodes[replica], &["CLUSTER", "FAILOVER"]);
        must("CLUSTER FAILOVER", order());
        let mut ordered = Instant::now();
        let took_over = || {
            // A replica drops the order after five seconds (`CLUSTER_MF_TIMEOUT` in cluster.c of Redis 7.0).
            if ordered.elapsed() > FAILOVER_ORDER && check_primary(&self.nodes[replica]).is_err() {
                order()?;
                ordered = Instant::now();
            }
            let view = View::of(&self.nodes[replica])?;
            let node = view.nodes.get(&self.ids[replica]).context("it does not know itself")?;
            ensure!(node.is("master"), "{} is no master", self.nodes[replica].addr());
            Ok(())
        };
        must("failover", self.settle(took_over));
    }

    /// Waits until all running nodes report a healthy cluster, agree on roles and slots, and replicas receive their masters' writes. A
    /// replica must have taken over from each dead master.
    ///
    /// # Panics
    ///
    /// If that takes longer than a minute.
    pub fn wait_ok(&self) {
        must("the cluster is not well", self.settle(|| Ok(())));
    }

    /// Kills a node, and starts a clean node at the same address. The clean node and the others do not know each other until
    /// [`heal`](Self::heal).
    ///
    /// Until then, the node's replicas keep their data and do not take over. Otherwise the result would depend on the clean node's start.
    /// While the address is dead, they would elect one of themselves. When the clean node is up, they would copy its empty data.
    ///
    /// # Panics
    ///
    /// If the node does not start.
    pub fn replace(&mut self, index: usize) {
        for replica in self.replicas_of(index) {
            must("a replica that waits", self.wait_for_word(replica));
        }
        self.nodes[index].restart_clean();
        let new = must("CLUSTER MYID", my_id(&self.nodes[index]));
        let old = std::mem::replace(&mut self.ids[index], new);
        self.forgotten.push((index, old));
    }

    /// Restarts and resumes all nodes that are down. Adds replaced nodes again, as replicas of their successors. Finishes moves that have
    /// begun. Waits until all nodes agree.
    ///
    /// # Panics
    ///
    /// If that takes longer than a minute, or if a master without replicas was replaced.
    pub fn heal(&mut self) {
        revive_all(&mut self.nodes);
        let unfinished = must("unfinished moves", self.unfinished_moves());
        for (index, old) in std::mem::take(&mut self.forgotten) {
            must("a replaced node", self.take_in(index, &old));
        }
        for (slot, to) in unfinished {
            must("an unfinished move", settle(|| self.complete(slot, to)));
        }
        self.wait_ok();
    }

    fn any(&self) -> &RedisServer {
        up(&self.nodes).next().map(|(_, node)| node).expect("a node is up")
    }

    fn index_of(&self, id: &str) -> Result<usize> {
        self.ids.iter().position(|known| known == id).with_context(|| format!("{id} is none of ours"))
    }

    fn owner(&self, slot: u16) -> Result<usize> {
        let mut latest: Option<(u64, usize)> = None;
        for (_, node) in up(&self.nodes) {
            let view = View::of(node)?;
            if let Some((id, known)) = view.owner_of(slot)
                && latest.is_none_or(|(epoch, _)| known.epoch > epoch)
            {
                latest = Some((known.epoch, self.index_of(id)?));
            }
        }
        Ok(latest.with_context(|| format!("nobody owns slot {slot}"))?.1)
    }

    /// Sets the cluster up as `redis-cli --cluster create` does.
    fn create(&self, masters: usize) -> Result<()> {
        for (index, node) in self.nodes.iter().enumerate() {
            ask(node, &["CLUSTER", "SET-CONFIG-EPOCH", &(index + 1).to_string()])?;
            if index < masters {
                let [first, end] = [index, index + 1].map(|index| index * SLOTS / masters);
                ask(node, &["CLUSTER", "ADDSLOTSRANGE", &first.to_string(), &(end - 1).to_string()])?;
            }
            // Introduced to all earlier nodes, so that it does not wait for gossip.
            for other in &self.nodes[..index] {
                meet(node, other)?;
            }
        }
        for (index, node) in self.nodes.iter().enumerate().skip(masters) {
            self.replicate(node, &self.ids[index % masters])?;
        }
        Ok(())
    }

    /// Makes a node follow a master as soon as the node knows the master.
    fn replicate(&self, node: &RedisServer, master: &str) -> Result<()> {
        settle(|| ask(node, &["CLUSTER", "REPLICATE", master]))?;
        Ok(())
    }

    /// Stops a replica from taking over, and from following another node at its master's address.
    fn wait_for_word(&self, replica: usize) -> Result<()> {
        let node = &self.nodes[replica];
        ask(node, &["CONFIG", "SET", "cluster-replica-no-failover", "yes"])?;
        ask(node, &["CONFIG", "SET", "masterauth", "nobody's"])?;
        Ok(())
    }

    /// Ends [`wait_for_word`](Self::wait_for_word).
    fn wait_no_longer(&self, replica: usize) -> Result<()> {
        let node = &self.nodes[replica];
        ask(node, &["CONFIG", "SET", "masterauth", self.settings.password.as_deref().unwrap_or_default()])?;
        ask(node, &["CONFIG", "SET", "cluster-replica-no-failover", "no"])?;
        Ok(())
    }

    fn take_in(&self, index: usize, old: &str) -> Result<()> {
        let new = &self.nodes[index];
        let (_, witness) = up(&self.nodes).find(|(witness, _)| *witness != index).context("it is alone")?;
        let before = View::of(witness)?;
        let known = before.nodes.get(old).context("nobody knew it")?;
        let master = if let Some(master) = &known.master {
            master
        } else {
            let replicas = before.nodes.iter().filter(|(_, known)| known.master.as_deref() == Some(old));
            let replicas: Vec<_> = replicas.map(|(id, _)| id).collect();
            let heir = *replicas.first().context("it was a master without replicas")?;
            // The other nodes met an unknown node at this address and removed the address. They do not mark the old master as failed, so no
            // replica takes over by itself.
            ask(&self.nodes[self.index_of(heir)?], &["CLUSTER", "FAILOVER", "TAKEOVER"])?;
            for replica in replicas {
                self.wait_no_longer(self.index_of(replica)?)?;
            }
            heir
        };
        settle(|| {
            let view = View::of(witness)?;
            let taken_over = view.nodes.get(master).is_some_and(|known| !known.slots.is_empty());
            ensure!(taken_over, "not everybody has heard who took over from {}", new.addr());
            Ok(())
        })?;
        for (other, node) in up(&self.nodes) {
            if other != index {
                settle(|| ask(node, &["CLUSTER", "FORGET", old]))?;
                meet(new, node)?;
            }
        }
        self.replicate(new, master)
    }

    fn set_slot(&self, index: usize, slot: u16, rest: &[&str]) -> Result<()> {
        let slot = slot.to_string();
        let command: Vec<&str> =
            ["CLUSTER", "SETSLOT", &slot].into_iter().chain(rest.iter().copied()).collect();
        ask(&self.nodes[index], &command)?;
        Ok(())
    }

    fn begin(&self, slot: u16, from: usize, to: usize) -> Result<()> {
        self.set_slot(to, slot, &["IMPORTING", &self.ids[from]])?;
        self.set_slot(from, slot, &["MIGRATING", &self.ids[to]])
    }

    fn migrate(&self, slot: u16, to: usize, at_most: usize) -> Result<usize> {
        let from = self.owner(slot)?;
        let count = at_most.to_string();
        let found = ask(&self.nodes[from], &["CLUSTER", "GETKEYSINSLOT", &slot.to_string(), &count])?;
        let Reply::Array(found) = found else { bail!("GETKEYSINSLOT said {found}") };
        let mut keys = Vec::new();
        for key in found {
            let Reply::Bulk(key) = key else { bail!("GETKEYSINSLOT named {key}") };
            keys.push(key);
        }
        self.migrate_these(from, to, keys)
    }

    fn migrate_these(&self, from: usize, to: usize, keys: Vec<Vec<u8>>) -> Result<usize> {
        let found = keys.len();
        if keys.is_empty() {
            return Ok(0);
        }
        let target = self.nodes[to].addr();
        let mut command: Vec<Vec<u8>> =
            ["MIGRATE", &target.ip().to_string(), &target.port().to_string(), "", "0", MIGRATE_MILLIS]
                .map(Vec::from)
                .into();
        if let Some(password) = &self.settings.password {
            command.extend(["AUTH", password].map(Vec::from));
        }
        command.push("KEYS".into());
        command.extend(keys);
        ask(&self.nodes[from], &command)?;
        Ok(found)
    }

    fn hand_over(&self, slot: u16, to: usize) -> Result<()> {
        let from = self.owner(slot)?;
        let new = ["NODE", self.ids[to].as_str()];
        self.set_slot(to, slot, &new)?;
        if from != to {
            self.set_slot(from, slot, &new)?;
        }
        for (index, node) in up(&self.nodes) {
            let view = View::of(node)?;
            let is_master = view.nodes.get(&self.ids[index]).is_some_and(|node| node.is("master"));
            if is_master && ![from, to].contains(&index) {
                self.set_slot(index, slot, &new)?;
            }
        }
        Ok(())
    }

    /// Returns unfinished moves: slots and their targets. A failover may have erased the move on either side.
    fn unfinished_moves(&self) -> Result<BTreeSet<(u16, usize)>> {
        let mut moves = BTreeSet::new();
        for (index, node) in up(&self.nodes) {
            let view = View::of(node)?;
            moves.extend(view.importing.iter().map(|slot| (*slot, index)));
            for (slot, to) in &view.migrating {
                // An unknown target was replaced, and its keys are gone.
                moves.extend(self.index_of(to).ok().map(|to| (*slot, to)));
            }
        }
        Ok(moves)
    }

    /// Finishes a move, whatever happened to both sides since its begin. While a node imports the slot, it ignores nodes that claim another
    /// owner.
    fn complete(&self, slot: u16, to: usize) -> Result<()> {
        let view = View::of(&self.nodes[to])?;
        let own = view.nodes.get(&self.ids[to]).context("it does not know itself")?;
        let to = own.master.as_ref().map_or(Ok(to), |master| self.index_of(master))?;
        self.set_slot(to, slot, &["STABLE"])?;
        let from = self.owner(slot)?;
        if from == to {
            return Ok(());
        }
        let believed = View::of(&self.nodes[to])?.owner_of(slot).map(|(id, _)| id.clone());
        ensure!(
            believed.as_ref() == Some(&self.ids[from]),
            "slot {slot} belongs to {believed:?} for node {to}"
        );
        self.begin(slot, from, to)?;
        while self.migrate(slot, to, BATCH)? > 0 {}
        self.hand_over(slot, to)
    }

    /// Waits until all nodes agree and the condition `and` holds.
    fn settle(&self, mut and: impl FnMut() -> Result<()>) -> Result<()> {
        let masters = settle(|| {
            and()?;
            self.agreed_masters()
        })?;
        let followed = masters.iter().filter(|(_, replicas)| **replicas > 0);
        settle_streams(followed.map(|(master, replicas)| (&self.nodes[*master], *replicas)))?;
        let masters = masters.into_keys().collect();
        let mut promotions = self.promotions.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(rest) = promotions.note(masters, Instant::now()) {
            std::thread::sleep(rest);
        }
        Ok(())
    }

    /// Returns the masters with their numbers of replicas, if all running nodes agree on roles and slots.
    fn agreed_masters(&self) -> Result<BTreeMap<usize, usize>> {
        let mut masters = BTreeMap::new();
        let (mut agreed, mut masters_of) = (None, vec![None; self.nodes.len()]);
        for (index, node) in up(&self.nodes) {
            let (addr, view) = (node.addr(), View::of(node)?);
            for (other, at) in up(&self.nodes) {
                let known = view.nodes.get(&self.ids[other]);
                if known.is_none() && !self.forgotten.iter().any(|(index, _)| *index == other) {
                    // Nodes give up a handshake that takes longer than the node timeout, and do not begin another by themselves.
                    meet(node, at)?;
                }
                let known = known.with_context(|| format!("{addr} does not know node {other}"))?;
                ensure!(known.is_well(), "{addr} says of node {other}: {known:?}");
                let master = masters_of[other].get_or_insert_with(|| known.master.clone());
                ensure!(*master == known.master, "{addr} disagrees about the role of node {other}");
            }
            // Checked behind the introductions: a node whose handshake was given up keeps the state at "fail" until it is introduced again.
            let info = ask(node, &["CLUSTER", "INFO"])?.to_string();
            let state = field(&info, "cluster_state")?;
            ensure!(state == "ok", "the cluster's state is {state} for {addr}");

            let owners = view.owners();
            for (_, owner) in owners.values() {
                ensure!(self.nodes[self.index_of(owner)?].is_up(), "{addr} knows of slots of a dead node");
            }
            let same = *agreed.get_or_insert_with(|| owners.clone()) == owners;
            ensure!(same, "{addr} disagrees about the slots");

            let own = view.nodes.get(&self.ids[index]).context("it does not know itself")?;
            match &own.master {
                Some(master) => {
                    let master = self.index_of(master)?;
                    check_linked(node, self.nodes[master].addr())?;
                    *masters.entry(master).or_insert(0) += 1;
                }
                None => {
                    check_primary(node)?;
                    masters.entry(index).or_insert(0);
                }
            }
        }
        Ok(masters)
    }
}

/// The times of promotions. A node counts votes for twice the node timeout and at least 2 s, even after its election. If it becomes a
/// replica again and its master fails within that time, it declares itself the winner without an election. The other nodes do not accept
/// it, and no other replica is left. So the slots stay down (seen with Redis 7.0.15; redis/redis#8752, fixed in Valkey). Nodes do not
/// report the end of that time, so only waiting helps.
#[derive(Debug, Default)]
struct Promotions {
    masters: BTreeSet<usize>,
    seen: BTreeMap<usize, Instant>,
}

impl Promotions {
    /// Records the masters at `now`. Returns how long to wait before the next failover.
    fn note(&mut self, masters: BTreeSet<usize>, now: Instant) -> Option<Duration> {
        self.seen.extend(masters.difference(&self.masters).map(|promoted| (*promoted, now)));
        let demoted = self.seen.iter().filter(|(index, _)| !masters.contains(index));
        let last = demoted.map(|(_, promoted)| *promoted).max();
        self.masters = masters;
        (last? + ELECTION).checked_duration_since(now)
    }
}

fn my_id(node: &RedisServer) -> Result<String> {
    Ok(ask(node, &["CLUSTER", "MYID"])?.to_string())
}

fn meet(node: &RedisServer, other: &RedisServer) -> Result<()> {
    let (addr, bus_port) = (other.addr(), other.bus_port().to_string());
    ask(node, &["CLUSTER", "MEET", &addr.ip().to_string(), &addr.port().to_string(), &bus_port])?;
    Ok(())
}

/// Failover takes only seconds. A replica may take over however late its data is. It stays with its master when the master does not have
/// slots any more.
const DIRECTIVES: &[(&str, &str)] = &[
    ("cluster-node-timeout", "1000"),
    ("cluster-replica-validity-factor", "0"),
    ("cluster-allow-replica-migration", "no"),
];
/// The time within which a replica obeys an order to take over.
const FAILOVER_ORDER: Duration = Duration::from_secs(6);
/// The time of an election with the node timeout above.
const ELECTION: Duration = Duration::from_secs(2);
const SLOTS: usize = 16_384;
/// The number of keys per MIGRATE that redis-cli uses by default.
const BATCH: usize = 10;
const MIGRATE_MILLIS: &str = "5000";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reversed_promotion_gets_grace_period() {
        let start = Instant::now();
        let after = |millis| start + Duration::from_millis(millis);
        let mut promotions = Promotions { masters: [0, 1].into(), ..Promotions::default() };
        assert_eq!(promotions.note([0, 1].into(), start), None);
        assert_eq!(promotions.note([1, 2].into(), after(100)), None, "2 is a master still");
        assert_eq!(promotions.note([0, 1].into(), after(600)), Some(Duration::from_millis(1500)));
        assert_eq!(promotions.note([0, 1].into(), after(2200)), None);
        assert_eq!(
            promotions.note([1, 2].into(), after(2500)),
            Some(Duration::from_millis(100)),
            "0, this time"
        );
    }
}
