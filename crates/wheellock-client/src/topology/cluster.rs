//! The connections of a cluster's primaries and the slot map.
//!
//! This module does not query the nodes (`refresh` does), parse their replies (`nodes` does) or merge them
//! (`slot_map` does).
//!
//! The map changes when a node redirects a call, and after each refresh of the nodes. A refresh runs every few seconds,
//! at once after a fault, and many times a second while the fault lasts.

mod refresh;
mod suspects;

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};
use std::task::{Poll, Waker};
use std::time::Instant;

use super::nodes::Node;
use super::slot_map::SlotMap;
use crate::base::address::Address;
use crate::base::error::{CONNECT, Error, ErrorKind, Outcome};
use crate::base::pace::Pace;
use crate::base::panics::wake_all;
use crate::base::patience::Patience;
use crate::base::redirect;
use crate::base::slots::{SLOTS, SlotSet, slot_of};
use crate::base::waiting::{Changes, OnLeave};
use crate::config::{Change, ChangedKeys, Config, Servers, ShardedPubSub};
use crate::connection::driver;
use crate::connection::link::VERDICT_GRACE;
use crate::connection::listener::{Event, Listener};
use crate::connection::locator::Locator;
use crate::connection::{ConnectionState, Phase, Shared};
use crate::protocol::handshake::Role;
use suspects::Suspects;

pub(crate) struct Cluster {
    pub(crate) config: Config,
    me: Weak<Self>,
    seeds: Vec<Address>,
    /// A server without a connection. Subscriptions wait here while no node serves their slot.
    unassigned: Arc<Shared>,
    map: RwLock<Map>,
    refresh: Mutex<Refresh>,
}

#[derive(Default)]
struct Map {
    slots: SlotMap,
    nodes: HashMap<Address, Arc<Shared>>,
    /// The node that serves each slot. A lookup does not have to hash an address.
    owners: Vec<Option<Arc<Shared>>>,
    /// The number of the node that last served each slot, even if no node serves it now.
    served: Vec<Option<u32>>,
    /// The nodes that serve at least one slot.
    serving: Vec<Arc<Shared>>,
    /// The slots whose owner was taken from a redirection since the last refresh.
    redirected: SlotSet,
    next_node: u32,
}

struct Refresh {
    /// A caller has requested a refresh of the map.
    wanted: bool,
    refresher: Option<Waker>,
    /// The changes of the nodes' connections and of the map.
    changes: Changes,
    /// True if messages use sharded pub/sub. `None` until a node has reported its support.
    sharded: Option<bool>,
    last_error: Option<Error>,
    /// Every node queried in the last round refuses this client.
    refused: bool,
    /// Number of rounds without a reply since the last round with one.
    failed_rounds: u8,
    closed: Option<Error>,
    pace: Pace,
    suspects: Suspects,
    /// The position at which the next round starts.
    turn: usize,
}

/// A handle to a cluster. The connections end when the last handle is dropped.
#[derive(Clone)]
pub(crate) struct Handle(Arc<CloseOnDrop>);

struct CloseOnDrop(Arc<Cluster>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Deref for Handle {
    type Target = Arc<Cluster>;

    fn deref(&self) -> &Arc<Cluster> {
        &self.0.0
    }
}

impl Cluster {
    /// Starts to connect. Must be called within a runtime.
    pub(crate) fn start(config: Config, seeds: Vec<Address>) -> Handle {
        let slots = usize::from(SLOTS);
        let map = Map { owners: vec![None; slots], served: vec![None; slots], ..Map::default() };
        let refresh = Refresh {
            wanted: false,
            refresher: None,
            changes: Changes::default(),
            sharded: match config.sharded_pubsub {
                ShardedPubSub::Auto => None,
                ShardedPubSub::On => Some(true),
                ShardedPubSub::Off => Some(false),
            },
            last_error: None,
            refused: false,
            failed_rounds: 0,
            closed: None,
            pace: refresh::pace(),
            suspects: Suspects::default(),
            turn: 0,
        };
        let timer = config.timer.clone();
        let unassigned = Arc::new(Shared::new(config.clone(), Role::Node, u32::MAX, Box::new(|_| {})));
        let cluster = Arc::new_cyclic(|me| Self {
            config,
            unassigned,
            me: me.clone(),
            seeds,
            map: RwLock::new(map),
            refresh: Mutex::new(refresh),
        });
        // The guard is created here, because a runtime that ends also drops tasks that were never polled.
        tokio::spawn(refresh::refresh_map(refresh::Refresher(Arc::downgrade(&cluster)), timer));
        Handle(Arc::new(CloseOnDrop(cluster)))
    }

    fn map(&self) -> RwLockReadGuard<'_, Map> {
        self.map.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn map_mut(&self) -> RwLockWriteGuard<'_, Map> {
        self.map.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn refresh(&self) -> MutexGuard<'_, Refresh> {
        self.refresh.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the node that serves `key`, or any node if there is no key.
    pub(crate) fn node_for(&self, key: Option<&[u8]>) -> Result<Arc<Shared>, Error> {
        let map = self.map();
        let node = match key {
            Some(key) => map.owners.get(usize::from(slot_of(key))).cloned().flatten(),
            None => {
                let ready = |node: &&Arc<Shared>| node.is_ready();
                map.nodes.values().find(ready).or_else(|| map.nodes.values().next()).cloned()
            }
        };
        drop(map);
        node.ok_or_else(|| self.unserved(key))
    }

    /// Returns the node that the cluster names `address`, if the client is connected to it.
    pub(crate) fn node_at(&self, address: &Address) -> Option<Arc<Shared>> {
        let address = self.config.translated(address.clone()).ok()?;
        let map = self.map();
        map.slots.known_as(&address).and_then(|address| map.nodes.get(address)).cloned()
    }

    /// Returns a server that never gets a connection.
    pub(crate) fn unassigned(&self) -> Arc<Shared> {
        Arc::clone(&self.unassigned)
    }

    fn unserved(&self, key: Option<&[u8]>) -> Error {
        let refresh = self.refresh();
        if let Some(closed) = &refresh.closed {
            return closed.clone();
        }
        let why =
            refresh.last_error.as_ref().map(|error| format!("; {}", error.detail())).unwrap_or_default();
        drop(refresh);
        // The caller polls again soon and needs the owner before the next regular refresh.
        self.request_refresh();
        let slot = key.map_or("no node is known".to_owned(), |key| {
            format!("no node is known to serve slot {}", slot_of(key))
        });
        self.error(ErrorKind::NotReady, &format!("{slot}{why}"))
    }

    fn error(&self, kind: ErrorKind, detail: &str) -> Error {
        let server = self.config.servers.to_string();
        Error::new(kind, Outcome::NotSent, "finding a node", &server, detail.to_owned())
    }

    /// Returns every primary.
    pub(crate) fn nodes(&self) -> Vec<Arc<Shared>> {
        let mut nodes: Vec<_> = self.map().nodes.values().cloned().collect();
        nodes.sort_by_key(|node| node.node);
        nodes
    }

    /// Returns the numbers of the primaries that serve at least one slot.
    pub(crate) fn serving_nodes(&self) -> Vec<u32> {
        self.map().serving.iter().map(|node| node.node).collect()
    }

    /// Returns true if messages use sharded pub/sub.
    pub(crate) fn is_sharded(&self) -> bool {
        self.refresh().sharded == Some(true)
    }

    /// Returns the state of the connections to all needed nodes.
    pub(crate) fn state(&self) -> ConnectionState {
        let refresh = self.refresh();
        if let Some(closed) = &refresh.closed {
            return ConnectionState::Closed(closed.clone());
        }
        let (connections, mut last_error) = (refresh.changes.count(), refresh.last_error.clone());
        let refused = last_error.clone().filter(|_| refresh.refused);
        // The order of locks is map, then refresh, because `is_closed` locks the refresh under the map.
        drop(refresh);
        let map = self.map();
        let covered = map.owners.iter().all(Option::is_some);
        let nodes = map.serving.clone();
        drop(map);
        let mut ready = covered && !nodes.is_empty();
        for node in nodes {
            let state = node.lock();
            match &state.phase {
                Phase::Ready(_) => {}
                Phase::Refused(error) => return ConnectionState::Refused(error.clone()),
                Phase::Connecting(last) => (ready, last_error) = (false, last.clone().or(last_error)),
                Phase::Closed { cause, .. } => (ready, last_error) = (false, Some(cause.clone())),
            }
        }
        if ready {
            ConnectionState::Ready { connection: connections }
        } else if let Some(refused) = refused {
            ConnectionState::Refused(refused)
        } else {
            ConnectionState::Connecting { last_error }
        }
    }

    /// Waits until the cluster is ready. The nodes may be in a failover, so they get the whole connect timeout. After
    /// that, one connected node suffices, and a cluster that lacks a node serves the keys of the others.
    pub(crate) async fn ready(&self) -> Result<(), Error> {
        let timer = &self.config.timer;
        let mut patience = Patience::new(timer, self.config.connect_timeout);
        if let Some(verdict) = patience.wait_for(self.verdict(false)).await {
            return verdict;
        }
        if self.map().nodes.values().any(|node| node.is_ready()) {
            return Ok(());
        }
        // The first attempts have the same timeout and began a moment later. Their errors name the stage that took
        // too long.
        let last = Patience::new(timer, VERDICT_GRACE).wait_for(self.verdict(true)).await;
        last.unwrap_or_else(|| {
            let server = self.config.servers.to_string();
            Err(Error::step(ErrorKind::Connect, CONNECT, &server, "no answer in time".to_owned()))
        })
    }

    /// Waits until the cluster is ready or refuses the client. With `failure_counts`, a failed attempt also ends the
    /// wait.
    async fn verdict(&self, failure_counts: bool) -> Result<(), Error> {
        loop {
            // Read the counter before the state, so that no change is missed.
            let seen = self.changes();
            match self.state() {
                ConnectionState::Ready { .. } => return Ok(()),
                ConnectionState::Refused(error) | ConnectionState::Closed(error) => return Err(error),
                ConnectionState::Connecting { last_error: Some(last) } if failure_counts => return Err(last),
                ConnectionState::Connecting { .. } => {}
            }
            self.changed(seen).await;
        }
    }

    /// Waits until the number of changes differs from `seen`. Returns that number.
    pub(crate) async fn changed(&self, seen: u64) -> u64 {
        let watcher = self.refresh().changes.new_waiter();
        let _leaves = OnLeave(|| self.refresh().changes.forget(watcher));
        std::future::poll_fn(|cx| {
            let changes = &mut self.refresh().changes;
            if changes.count() != seen {
                return Poll::Ready(changes.count());
            }
            changes.wait(watcher, cx.waker());
            Poll::Pending
        })
        .await
    }

    pub(crate) fn changes(&self) -> u64 {
        self.refresh().changes.count()
    }

    /// Requests a refresh of the map.
    fn request_refresh(&self) {
        let mut refresh = self.refresh();
        refresh.wanted = true;
        let refresher = refresh.refresher.take();
        drop(refresh);
        wake_all(refresher);
    }

    /// Returns the listener of a node's connection.
    fn listener(&self, node: u32) -> Listener {
        // A strong handle would keep the cluster and this connection alive, because the cluster owns the connection.
        let me = self.me.clone();
        Box::new(move |event| {
            if let Some(cluster) = me.upgrade() {
                cluster.on_event(node, event);
            }
        })
    }

    fn on_event(&self, node: u32, event: Event<'_>) {
        if matches!(event, Event::Down | Event::Silent | Event::Redirected { .. }) {
            self.suspect(node);
        }
        match event {
            Event::Up { replaced } => {
                if replaced {
                    // A different process replies at the node's address.
                    self.notify_of_change(&self.slots_of(node));
                }
                self.wake_watchers();
            }
            Event::Down | Event::Closed => {
                self.wake_watchers();
                self.request_refresh();
            }
            Event::Silent => self.request_refresh(),
            Event::AnyKeyChanged => {
                self.config.report_changed_keys(&ChangedKeys::Any(Change::of(self.slots_of(node))));
            }
            Event::Redirected { reply, host } => self.redirected(reply, host),
        }
    }

    /// Marks a node as suspect after a fault of the node or of its entry in the map. Ignores a node that has left the
    /// cluster.
    fn suspect(&self, node: u32) {
        let map = self.map();
        let at = map.nodes.iter().find(|(_, known)| known.node == node).map(|(at, _)| at.clone());
        drop(map);
        if let Some(address) = at {
            self.refresh().suspect(&address, self.config.timer.now());
        }
    }

    fn wake_watchers(&self) {
        let mut watchers = Vec::new();
        self.refresh().changes.advance(&mut watchers);
        wake_all(watchers);
    }

    fn slots_of(&self, node: u32) -> SlotSet {
        let mut slots = SlotSet::default();
        for (slot, owner) in (0..).zip(&self.map().owners) {
            if owner.as_ref().is_some_and(|owner| owner.node == node) {
                slots.insert(slot);
            }
        }
        slots
    }

    fn notify_of_change(&self, slots: &SlotSet) {
        if !slots.is_empty() {
            self.config.notify(&Change::of(slots.clone()));
        }
    }

    /// Follows a redirection. `host` is the host at which the redirecting node was reached, for redirections that
    /// name no host.
    fn redirected(&self, text: &[u8], host: Option<String>) {
        let target = redirect::target(text, || host).and_then(|address| self.config.translated(address).ok());
        if let (Some(address), Some(Ok(to))) = (target, redirect::parse(text)) {
            let mut map = self.map_mut();
            if self.is_closed() {
                return;
            }
            let mut changed = SlotSet::default();
            // Two nodes may redirect to each other while they disagree. Follow one redirection per slot at once and
            // the next only after a refresh. Otherwise callers would be sent in a circle at full speed.
            if !map.redirected.contains(to.slot)
                && map.slots.moved(to.slot, &address)
                && let Some(address) = map.slots.owner(to.slot).cloned()
            {
                let node = self.node(&mut map, &address, "a node that redirected a call".to_owned());
                if let Some(owner) = map.owners.get_mut(usize::from(to.slot)) {
                    *owner = Some(node);
                }
                map.redirected.insert(to.slot);
                changed = map.settle();
            }
            drop(map);
            if !changed.is_empty() {
                self.wake_watchers();
                self.notify_of_change(&changed);
            }
        }
        self.request_refresh();
    }

    /// Translates the addresses of a view's nodes. Drops nodes whose addresses are forbidden.
    ///
    /// A translator may know a node by its name or by its IP address. An address that the translator changes
    /// therefore has priority over an address that it returns unchanged. Otherwise the cluster's preferred address is
    /// used.
    fn reachable(&self, view: Vec<Node>) -> Vec<Node> {
        if self.config.translate.is_none() {
            return view;
        }
        let reach = |mut node: Node| {
            let address = self.config.translated(node.address.clone()).ok();
            let alias = node.alias.clone().and_then(|alias| self.config.translated(alias).ok());
            let is_unchanged = address.as_ref().is_none_or(|address| *address == node.address);
            let is_alias_mapped = alias.is_some() && alias != node.alias;
            let (address, alias) =
                if is_unchanged && is_alias_mapped { (alias, address) } else { (address, alias) };
            node.address = address?;
            node.alias = alias;
            matches!(node.address, Address::Tcp { .. }).then_some(node)
        };
        view.into_iter().filter_map(reach).collect()
    }

    /// Returns the connection to the node at `address`, and opens it if there is none. Must be called within a
    /// runtime, and only while the cluster is not closed. `named_by` is the server that named the address.
    fn node(&self, map: &mut Map, address: &Address, named_by: String) -> Arc<Shared> {
        if let Some(node) = map.nodes.get(address) {
            return Arc::clone(node);
        }
        let mut config = self.config.clone();
        config.servers = Servers::One(address.clone());
        let node = Arc::new(Shared::new(config, Role::Node, map.next_node, self.listener(map.next_node)));
        // The driver subscribes on its first connection, so it must know the command by then.
        node.lock().pipeline.sharded = self.is_sharded();
        map.next_node = map.next_node.wrapping_add(1);
        driver::start(&node, Locator::Node { address: address.clone(), named_by });
        map.nodes.insert(address.clone(), Arc::clone(&node));
        node
    }

    /// Closes the cluster, after `close` or when the last handle is dropped.
    pub(crate) fn close(&self) {
        self.unassigned.begin_closing();
        // The mark precedes the list of nodes. Otherwise a late reply could add a node that no task ends.
        self.end("the client was closed");
        for node in self.nodes() {
            node.begin_closing();
        }
        // The wake-up makes the refresher find the mark and end.
        self.request_refresh();
    }

    /// Marks the cluster as closed. No node is connected after that.
    fn end(&self, why: &str) {
        let closed = self.error(ErrorKind::Closed, why);
        let mut refresh = self.refresh();
        // Watchers receive one final state, with the first reason.
        if refresh.closed.is_some() {
            return;
        }
        refresh.closed = Some(closed);
        drop(refresh);
        // This server has no task that would end it.
        self.unassigned.end();
        self.wake_watchers();
    }

    /// Returns true if no node may be connected any more. The caller must hold the map's lock. [`close`](Self::close)
    /// sets this mark first and then ends the nodes in the map.
    fn is_closed(&self) -> bool {
        self.refresh().closed.is_some()
    }

    /// Merges a node's view of the cluster.
    fn learn(&self, view: &[Node], asked: &Address) {
        let mut map = self.map_mut();
        if self.is_closed() {
            return;
        }
        // This precedes the merge, so that any claim in this view wins over that of an unreachable owner.
        let unreachable: Vec<_> =
            map.nodes.iter().filter(|(_, node)| node.cannot_be_reached()).map(|(at, _)| at.clone()).collect();
        for address in unreachable {
            map.slots.unreachable(&address);
        }
        let primaries = map.slots.merge_view(view, asked);
        // The user may have closed one of `Client::nodes`.
        map.nodes.retain(|_, node| !node.is_closed());
        // Primaries without slots are connected, too. An ASK may name one that is importing its first slot.
        for address in &primaries {
            self.node(&mut map, address, asked.to_string());
        }
        let is_gone = |address: &Address, _: &mut Arc<Shared>| !primaries.contains(address);
        let gone: Vec<_> = map.nodes.extract_if(is_gone).map(|(_, node)| node).collect();
        let owner = |slot| map.slots.owner(slot).and_then(|address| map.nodes.get(address)).cloned();
        let owners = (0..SLOTS).map(owner).collect();
        let before = std::mem::replace(&mut map.owners, owners);
        map.redirected = SlotSet::default();
        let changed = map.settle();
        let mut left = HashMap::new();
        for (before, after) in before.iter().zip(&map.owners) {
            let Some(before) = before else { continue };
            if after.as_ref().is_none_or(|after| after.node != before.node) {
                left.insert(before.node, Arc::clone(before));
            }
        }
        let unheard: Vec<_> =
            map.nodes.values().map(|node| (Arc::clone(node), map.refused_to(node))).collect();
        // The sink of detached calls looks up nodes in this map, and would wait for its lock for ever.
        drop(map);
        for node in gone {
            // Retiring a node already ends its calls, so it needs no rerouting.
            left.remove(&node.node);
            node.retire("it is no primary of the cluster any more");
        }
        // Subscriptions without a node wait at `unassigned`, and a new owner may serve them.
        for node in left.into_values().chain([self.unassigned()]) {
            node.reroute("another node serves the slot now");
        }
        for (node, channels) in unheard.iter().filter(|(_, channels)| !channels.is_empty()) {
            node.resubscribe(channels);
        }
        self.wake_watchers();
        self.notify_of_change(&changed);
    }
}

impl Refresh {
    /// Marks the node at `address` as suspect. If it was not suspect before, the refreshes speed up as if all other
    /// nodes were well.
    fn suspect(&mut self, address: &Address, now: Instant) {
        if self.suspects.add(address, now) {
            self.pace.begin_anew();
        }
    }
}

impl Map {
    /// Returns the channels that a node has refused although it serves their slots. Other refused channels belong to
    /// other nodes. Their subscribers switch to those nodes at their next check.
    fn refused_to(&self, node: &Arc<Shared>) -> Vec<Arc<[u8]>> {
        let mut refused = node.refused_channels();
        refused.retain(|channel| {
            let owner = self.owners.get(usize::from(slot_of(channel)));
            owner.and_then(Option::as_ref).is_some_and(|owner| Arc::ptr_eq(owner, node))
        });
        refused
    }

    /// Adopts the present owners. Returns the slots that another node serves than the last one that served them.
    fn settle(&mut self) -> SlotSet {
        let mut changed = SlotSet::default();
        for ((slot, owner), served) in (0..).zip(&self.owners).zip(&mut self.served) {
            // A slot that returns to its last node after a gap has not changed.
            let Some(owner) = owner else { continue };
            if served.replace(owner.node).is_some_and(|before| before != owner.node) {
                changed.insert(slot);
            }
        }
        let mut numbers: Vec<u32> = self.owners.iter().flatten().map(|owner| owner.node).collect();
        numbers.sort_unstable();
        numbers.dedup();
        let serves = |node: &&Arc<Shared>| numbers.binary_search(&node.node).is_ok();
        self.serving = self.nodes.values().filter(serves).cloned().collect();
        changed
    }
}
