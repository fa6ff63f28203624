//! The queries for a cluster's nodes: targets, order and timeouts.
//!
//! This module does not apply the replies; the cluster does.

use std::future::Future;
use std::pin::Pin;
use std::sync::{MutexGuard, Weak};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use wheellock_resp::{Command, Value};
use wheellock_wheel::Timer;

use super::{Cluster, Refresh};
use crate::base::address::Address;
use crate::base::error::{Error, ErrorKind};
use crate::base::pace::Pace;
use crate::config::Servers;
use crate::connection::Shared;
use crate::connection::link::Link;
use crate::connection::locator::Locator;
use crate::protocol::handshake::Role;
use crate::topology::endpoints::Endpoints;
use crate::topology::nodes::{self, Node};

impl Cluster {
    /// Queries nodes until one replies, and merges its view.
    async fn query_nodes(&self) {
        let targets = self.nodes_to_query();
        let mut failures = Failures::default();
        // Known nodes connect by themselves. Without a known node, a query has to wait for the first connection.
        let is_alone = self.map().nodes.is_empty();
        let answer = if is_alone {
            self.query_all(&targets, &mut failures).await
        } else {
            self.query_in_turn(&targets, &mut failures).await
        };
        if let Some((address, view)) = answer {
            let mut refresh = self.refresh();
            (refresh.last_error, refresh.refused, refresh.failed_rounds) = (None, false, 0);
            drop(refresh);
            self.learn(&view, address);
        } else if let Some(error) = failures.worst.filter(|_| !self.is_closed()) {
            // Watchers of a closed cluster have received its final state, so they get no further error.
            let mut refresh = self.refresh();
            (refresh.last_error, refresh.refused) = (Some(error), failures.are_refusals);
            refresh.failed_rounds = refresh.failed_rounds.saturating_add(1);
            drop(refresh);
            self.wake_watchers();
        }
    }

    /// Queries one node after the other.
    async fn query_in_turn<'a>(
        &self,
        targets: &'a [Address],
        failures: &mut Failures,
    ) -> Option<(&'a Address, Vec<Node>)> {
        for address in targets {
            // Any node will do, so one slow node must not delay the refresh.
            match self.query(address, self.config.connect_timeout.min(PATIENCE)).await {
                Ok(view) => return Some((address, view)),
                Err(error) => failures.add(error),
            }
            if self.is_closed() {
                return None;
            }
        }
        None
    }

    /// Queries all nodes at once, each with the full connect timeout. After one node has failed, silent nodes must
    /// not delay its retry. The round then ends after a patience that doubles with every failed round.
    async fn query_all<'a>(
        &self,
        targets: &'a [Address],
        failures: &mut Failures,
    ) -> Option<(&'a Address, Vec<Node>)> {
        let doublings = self.refresh().failed_rounds.min(DOUBLINGS);
        let timer = &self.config.timer;
        let mut patience = timer.sleep_until(timer.now() + PATIENCE * (1 << doublings));
        let query = |address| (address, Box::pin(self.query(address, self.config.connect_timeout)));
        let mut under_way: Vec<_> = targets.iter().map(query).collect();
        std::future::poll_fn(|cx| {
            // With an unlimited connect timeout, only this waker ends the round when the client closes.
            if self.store_refresher(cx.waker()).is_none() {
                return Poll::Ready(None);
            }
            let mut place = 0;
            while let Some((address, query)) = under_way.get_mut(place) {
                match query.as_mut().poll(cx) {
                    Poll::Ready(Ok(view)) => return Poll::Ready(Some((*address, view))),
                    Poll::Ready(Err(error)) => {
                        failures.add(error);
                        drop(under_way.remove(place));
                    }
                    Poll::Pending => place += 1,
                }
            }
            if under_way.is_empty() {
                return Poll::Ready(None);
            }
            if failures.worst.is_none() || Pin::new(&mut patience).poll(cx).is_pending() {
                return Poll::Pending;
            }
            // A node that is still silent may accept this client, so the round is not a refusal by all nodes.
            failures.are_refusals = false;
            Poll::Ready(None)
        })
        .await
    }

    /// Stores the refresher's waker and returns the state of the refreshes. Returns `None` after the cluster is closed.
    fn store_refresher(&self, waker: &Waker) -> Option<MutexGuard<'_, Refresh>> {
        let mut refresh = self.refresh();
        if refresh.closed.is_some() {
            return None;
        }
        refresh.refresher = Some(waker.clone());
        Some(refresh)
    }

    /// Returns the nodes to query. Responsive nodes come first, and each round begins with the next of them. All
    /// other known nodes follow.
    fn nodes_to_query(&self) -> Vec<Address> {
        let map = self.map();
        let mut responsive = Vec::new();
        let mut others = Vec::new();
        for (address, node) in &map.nodes {
            if node.is_responsive() {
                responsive.push((node.node, address.clone()));
            } else {
                others.push(address.clone());
            }
        }
        others.extend(map.slots.replicas_too().cloned());
        others.extend(self.seeds.iter().cloned());
        drop(map);
        responsive.sort_unstable_by_key(|(node, _)| *node);
        let turn = {
            let mut refresh = self.refresh();
            refresh.turn = refresh.turn.wrapping_add(1);
            refresh.turn
        };
        let first = turn.checked_rem(responsive.len()).unwrap_or(0);
        responsive.rotate_left(first);
        let mut targets: Vec<Address> = responsive.into_iter().map(|(_, address)| address).collect();
        for address in others {
            if !targets.contains(&address) {
                targets.push(address);
            }
        }
        targets
    }

    async fn query(&self, address: &Address, connect_timeout: Duration) -> Result<Vec<Node>, Error> {
        let connected = self.map().nodes.get(address).filter(|node| node.is_responsive()).cloned();
        let link = match connected {
            Some(node) => Link::to(&node),
            None => {
                let mut config = self.config.clone();
                config.servers = Servers::One(address.clone());
                config.connect_timeout = connect_timeout;
                let shared = Shared::new(config, Role::AnyNode, 0, Box::new(|_| {}));
                let link = Link::start(shared, Locator::At(address.clone()));
                link.ready().await?;
                link
            }
        };
        let deadline = self.config.timer.now() + PATIENCE;
        let reply = link.call(&Command::new("CLUSTER").arg("NODES"), deadline).await?;
        let text = reply.as_bytes().unwrap_or_default();
        let by_name = self.config.is_encrypted();
        let mut view = nodes::parse(text, by_name).map_err(|malformed| {
            useless(address, &format!("CLUSTER NODES was answered with nonsense: {}", malformed.0))
        })?;
        endpoints(&link, deadline).await?.apply(&mut view, by_name);
        // A wrong guess would publish where no other client listens. An error therefore fails the query before any
        // node is used.
        if self.refresh().sharded.is_none() {
            let sharded = knows_sharded_pubsub(&link, deadline).await?;
            // Several queries run at once while no node is known, and the first result stays.
            self.refresh().sharded.get_or_insert(sharded);
        }
        let named = view.iter().map(|node| node.address.to_string()).collect::<Vec<_>>().join(", ");
        let view = self.reachable(view);
        match (view.is_empty(), &*named) {
            (false, _) => Ok(view),
            (true, "") => {
                let with = if by_name { "with" } else { "without" };
                let detail = format!("CLUSTER NODES names no node that serves connections {with} TLS");
                Err(useless(address, &detail))
            }
            (true, _) => Err(useless(
                address,
                &format!("`Config::translate` forbids every node that it names: {named}"),
            )),
        }
    }

    /// Returns the pause before the next refresh.
    fn pause(&self) -> Duration {
        let map = self.map();
        let covered = map.owners.iter().all(Option::is_some);
        let responsive = map.serving.iter().all(|node| node.is_responsive());
        let missing: Vec<_> =
            map.nodes.iter().filter(|(_, node)| !node.is_responsive()).map(|(at, _)| at.clone()).collect();
        drop(map);
        let now = self.config.timer.now();
        let mut refresh = self.refresh();
        for address in &missing {
            refresh.suspect(address, now);
        }
        refresh.suspects.forget_old(now);
        let is_well = covered && responsive && refresh.last_error.is_none();
        refresh.pace.pause(is_well, now)
    }
}

/// The errors of nodes that were queried without success.
struct Failures {
    /// The error to report. A refusal has priority over silence, because it says more.
    worst: Option<Error>,
    are_refusals: bool,
}

impl Default for Failures {
    fn default() -> Self {
        Self { worst: None, are_refusals: true }
    }
}

impl Failures {
    fn add(&mut self, error: Error) {
        self.are_refusals &= error.is_refusal();
        if error.is_refusal() || !self.worst.as_ref().is_some_and(Error::is_refusal) {
            self.worst = Some(error);
        }
    }
}

/// Returns the endpoints that the cluster prefers. If the server rejects the request, the nodes keep their addresses.
async fn endpoints(link: &Link, deadline: Instant) -> Result<Endpoints, Error> {
    match link.call(&Command::new("CLUSTER").arg("SLOTS"), deadline).await {
        Ok(reply) => Ok(Endpoints::parse(&reply)),
        Err(error) if error.code().is_some() => Ok(Endpoints::default()),
        Err(error) => Err(error),
    }
}

/// Returns the error of a reply that names no usable node.
fn useless(address: &Address, detail: &str) -> Error {
    Error::step(ErrorKind::Protocol, "use the nodes of", &address.to_string(), detail.to_owned())
}

/// Returns true if the cluster has sharded pub/sub. Redisson's rule: a node must know `PUBSUB SHARDNUMSUB`
/// (`ClusterConnectionManager`). Without the permission to query, the version decides (Redis 7.0). The result holds
/// for the client's whole life, so a temporary error is not a result.
async fn knows_sharded_pubsub(link: &Link, deadline: Instant) -> Result<bool, Error> {
    match link.call(&Command::new("PUBSUB").arg("SHARDNUMSUB"), deadline).await {
        Ok(reply) => Ok(matches!(reply, Value::Array(_))),
        Err(error) if error.kind() == ErrorKind::Permission => {
            let version =
                link.lock().server.as_ref().map(|(info, _)| info.version.clone()).unwrap_or_default();
            let major = version.split('.').next().and_then(|major| major.parse::<u32>().ok());
            Ok(major.is_some_and(|major| major >= 7))
        }
        // Every version's wording of an unknown subcommand has this code.
        Err(error) if error.code() == Some("ERR") => Ok(false),
        Err(error) => Err(error),
    }
}

/// The task that refreshes the map. When it is dropped, refreshes end. The nodes end by themselves with the same
/// runtime.
pub(super) struct Refresher(pub(super) Weak<Cluster>);

impl Drop for Refresher {
    fn drop(&mut self) {
        if let Some(cluster) = self.0.upgrade() {
            cluster.end("the client's runtime was shut down");
        }
    }
}

/// Refreshes the map until the cluster's last handle is dropped.
pub(super) async fn refresh_map(refresher: Refresher, timer: Timer) {
    let cluster = &refresher.0;
    loop {
        let Some(strong) = cluster.upgrade() else { return };
        strong.query_nodes().await;
        let pause = strong.pause();
        let asked_at = timer.now();
        // The pause must not keep a cluster whose last handle is gone.
        drop(strong);
        let mut sleep = timer.sleep_until(asked_at + pause);
        let closed = std::future::poll_fn(|cx| {
            let Some(cluster) = cluster.upgrade() else { return Poll::Ready(true) };
            let Some(mut refresh) = cluster.store_refresher(cx.waker()) else { return Poll::Ready(true) };
            // Many requests cause one refresh, and refreshes are at least `HURRIED_INTERVAL` apart. While a fault
            // lasts, waiting callers request refreshes all the time, so requests must not shorten a slowed pause. A
            // fault of another node resets the pace, and then a request shortens the pause.
            if std::mem::take(&mut refresh.wanted) && refresh.pace.is_hurried(timer.now()) {
                sleep.reset(asked_at + HURRIED_INTERVAL);
            }
            drop(refresh);
            Pin::new(&mut sleep).poll(cx).map(|()| false)
        });
        if closed.await {
            return;
        }
    }
}

/// Returns the pace of refreshes. Refreshes are hurried for ten seconds after the last new fault.
pub(super) fn pace() -> Pace {
    Pace::new(INTERVAL, HURRIED_INTERVAL, TROUBLED_INTERVAL)
}

/// Interval of refreshes while all is well, as in Redisson (`scanInterval`).
const INTERVAL: Duration = Duration::from_secs(5);
/// Interval of refreshes after a fault. It is half of the time within which a new primary is to be used.
const HURRIED_INTERVAL: Duration = Duration::from_millis(50);
/// Interval of refreshes while a fault has lasted for long and no new fault follows.
const TROUBLED_INTERVAL: Duration = Duration::from_millis(500);
/// How long a node may take to connect or to reply before the next node is queried.
const PATIENCE: Duration = Duration::from_millis(500);
/// Maximum number of doublings of `PATIENCE` while no node is known. A slow node may then be the only one.
const DOUBLINGS: u8 = 3;
