//! How a cluster is asked for its nodes: whom, when, and how long each may take. What their answers mean is for the cluster.

use std::future::Future;
use std::pin::Pin;
use std::sync::{MutexGuard, Weak};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use wheellock_resp::{Command, Value};
use wheellock_wheel::Timer;

use super::{Cluster, Survey};
use crate::base::address::Address;
use crate::base::error::{Error, ErrorKind};
use crate::config::{Hooks, Servers};
use crate::connection::Shared;
use crate::connection::link::Link;
use crate::connection::locator::Locator;
use crate::protocol::handshake::Role;
use crate::topology::endpoints::Endpoints;
use crate::topology::nodes::{self, Node};
use crate::topology::pace::Pace;

impl Cluster {
    /// Asks until one answers, and takes its answer.
    async fn ask_around(&self) {
        let whom = self.whom_to_ask();
        let mut failures = Failures::default();
        // Nodes that are known connect by themselves, and while there are none the first one is waited for.
        let is_alone = self.map().nodes.is_empty();
        let answer = if is_alone {
            self.ask_at_once(&whom, &mut failures).await
        } else {
            self.ask_in_turn(&whom, &mut failures).await
        };
        if let Some((address, view)) = answer {
            let mut survey = self.survey();
            (survey.last_error, survey.refused, survey.failed_rounds) = (None, false, 0);
            drop(survey);
            self.learn(&view, address);
        } else if let Some(error) = failures.worst.filter(|_| !self.is_closed()) {
            let mut survey = self.survey();
            (survey.last_error, survey.refused) = (Some(error), failures.are_refusals);
            survey.failed_rounds = survey.failed_rounds.saturating_add(1);
            drop(survey);
            self.tell_watchers();
        }
    }

    /// Asks one node after the other.
    async fn ask_in_turn<'a>(
        &self,
        whom: &'a [Address],
        failures: &mut Failures,
    ) -> Option<(&'a Address, Vec<Node>)> {
        for address in whom {
            // Any node will do, so this one must not keep us for long.
            match self.ask(address, self.config.connect_timeout.min(PATIENCE)).await {
                Ok(view) => return Some((address, view)),
                Err(error) => failures.add(error),
            }
            if self.is_closed() {
                return None;
            }
        }
        None
    }

    /// Asks all, and gives each the time that a connection may take. If one fails, those that are silent must not keep it from being
    /// asked again: they are given up then, later with every round.
    async fn ask_at_once<'a>(
        &self,
        whom: &'a [Address],
        failures: &mut Failures,
    ) -> Option<(&'a Address, Vec<Node>)> {
        let doublings = self.survey().failed_rounds.min(DOUBLINGS);
        let timer = &self.config.timer;
        let mut patience = timer.sleep_until(timer.now() + PATIENCE * (1 << doublings));
        let ask = |address| (address, Box::pin(self.ask(address, self.config.connect_timeout)));
        let mut under_way: Vec<_> = whom.iter().map(ask).collect();
        std::future::poll_fn(|cx| {
            if self.leave_surveyor(cx.waker()).is_none() {
                return Poll::Ready(None);
            }
            let mut place = 0;
            while let Some((address, ask)) = under_way.get_mut(place) {
                match ask.as_mut().poll(cx) {
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
            failures.are_refusals = false;
            Poll::Ready(None)
        })
        .await
    }

    /// Leaves the waker of who asks around. `None` if that is over.
    fn leave_surveyor(&self, waker: &Waker) -> Option<MutexGuard<'_, Survey>> {
        let mut survey = self.survey();
        if survey.closed.is_some() {
            return None;
        }
        survey.surveyor = Some(waker.clone());
        Some(survey)
    }

    /// Connected nodes that answer first, each round another one in front; then whoever else is known.
    fn whom_to_ask(&self) -> Vec<Address> {
        let map = self.map();
        let mut lively = Vec::new();
        let mut others = Vec::new();
        for (address, node) in &map.nodes {
            if node.is_lively() {
                lively.push((node.node, address.clone()));
            } else {
                others.push(address.clone());
            }
        }
        others.extend(map.slots.replicas_too().cloned());
        others.extend(self.seeds.iter().cloned());
        drop(map);
        lively.sort_unstable_by_key(|(node, _)| *node);
        let turn = {
            let mut survey = self.survey();
            survey.turn = survey.turn.wrapping_add(1);
            survey.turn
        };
        let first = turn.checked_rem(lively.len()).unwrap_or(0);
        lively.rotate_left(first);
        let mut asked: Vec<Address> = lively.into_iter().map(|(_, address)| address).collect();
        for address in others {
            if !asked.contains(&address) {
                asked.push(address);
            }
        }
        asked
    }

    async fn ask(&self, address: &Address, connect_timeout: Duration) -> Result<Vec<Node>, Error> {
        let connected = self.map().nodes.get(address).filter(|node| node.is_lively()).cloned();
        let link = match connected {
            Some(node) => Link::to(&node),
            None => {
                let mut config = self.config.clone();
                config.servers = Servers::One(address.clone());
                config.connect_timeout = connect_timeout;
                config.scripts.clear();
                (config.on_change, config.hooks) = (None, Hooks::default());
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
        if self.survey().sharded.is_none() {
            let sharded = knows_sharded_pubsub(&link, deadline).await?;
            self.survey().sharded.get_or_insert(sharded);
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

    /// When to ask around again.
    fn pause(&self) -> Duration {
        let map = self.map();
        let covered = map.owners.iter().all(Option::is_some);
        let lively = map.serving.iter().all(|node| node.is_lively());
        let missing: Vec<_> =
            map.nodes.iter().filter(|(_, node)| !node.is_lively()).map(|(at, _)| at.clone()).collect();
        drop(map);
        let now = self.config.timer.now();
        let mut survey = self.survey();
        for address in &missing {
            survey.suspect(address, now);
        }
        survey.suspects.forget_old(now);
        let is_well = covered && lively && survey.last_error.is_none();
        survey.pace.pause(is_well, now)
    }
}

/// What became of those who were asked in vain.
struct Failures {
    /// Who refuses us has more to say than who says nothing.
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

/// Returns the endpoints that the cluster prefers. A server that refuses to tell leaves the nodes their addresses.
async fn endpoints(link: &Link, deadline: Instant) -> Result<Endpoints, Error> {
    match link.call(&Command::new("CLUSTER").arg("SLOTS"), deadline).await {
        Ok(reply) => Ok(Endpoints::parse(&reply)),
        Err(error) if error.code().is_some() => Ok(Endpoints::default()),
        Err(error) => Err(error),
    }
}

/// The error of an answer that names no usable node.
fn useless(address: &Address, detail: &str) -> Error {
    Error::step(ErrorKind::Protocol, "use the nodes of", &address.to_string(), detail.to_owned())
}

/// Redisson's rule: sharded pub/sub is used if a node knows `PUBSUB SHARDNUMSUB` (`ClusterConnectionManager`). Where the
/// user may not ask, the version tells (Redis 7.0). An answer counts for the client's whole life, so an error that may pass is none.
async fn knows_sharded_pubsub(link: &Link, deadline: Instant) -> Result<bool, Error> {
    match link.call(&Command::new("PUBSUB").arg("SHARDNUMSUB"), deadline).await {
        Ok(reply) => Ok(matches!(reply, Value::Array(_))),
        Err(error) if error.kind() == ErrorKind::Permission => {
            let version = link.lock().info.as_ref().map(|info| info.version.clone()).unwrap_or_default();
            let major = version.split('.').next().and_then(|major| major.parse::<u32>().ok());
            Ok(major.is_some_and(|major| major >= 7))
        }
        // It does not know the question, in whatever words.
        Err(error) if error.code() == Some("ERR") => Ok(false),
        Err(error) => Err(error),
    }
}

/// Who keeps the map fresh. Once it is gone nobody does: the nodes end with the same runtime, each by itself.
pub(super) struct Surveyor(pub(super) Weak<Cluster>);

impl Drop for Surveyor {
    fn drop(&mut self) {
        if let Some(cluster) = self.0.upgrade() {
            cluster.end("the client's runtime was shut down");
        }
    }
}

/// Keeps the map fresh until the cluster's last handle is gone.
pub(super) async fn keep_the_map(surveyor: Surveyor, timer: Timer) {
    let cluster = &surveyor.0;
    loop {
        let Some(strong) = cluster.upgrade() else { return };
        strong.ask_around().await;
        let pause = strong.pause();
        let asked_at = timer.now();
        drop(strong);
        let mut sleep = timer.sleep_until(asked_at + pause);
        let closed = std::future::poll_fn(|cx| {
            let Some(cluster) = cluster.upgrade() else { return Poll::Ready(true) };
            let Some(mut survey) = cluster.leave_surveyor(cx.waker()) else { return Poll::Ready(true) };
            // Asked for by many at once it is still done once, and not more often than in a hurry. While something is wrong whoever
            // waits for it asks all the time, and the pause is as short as it is to be; unless it was longer, and another node is in
            // trouble now.
            if std::mem::take(&mut survey.wanted) && survey.pace.is_hurried(timer.now()) {
                sleep.reset(asked_at + HURRIED_INTERVAL);
            }
            drop(survey);
            Pin::new(&mut sleep).poll(cx).map(|()| false)
        });
        if closed.await {
            return;
        }
    }
}

/// How often is asked. What is wrong is looked into in a hurry for ten seconds from when something was heard last that was news.
pub(super) fn pace() -> Pace {
    Pace::new(INTERVAL, HURRIED_INTERVAL, TROUBLED_INTERVAL)
}

/// Time between two surveys while all is well, as in Redisson (`scanInterval`).
const INTERVAL: Duration = Duration::from_secs(5);
/// Time between two surveys while something is wrong: half of the time within which a new primary is to be used.
const HURRIED_INTERVAL: Duration = Duration::from_millis(50);
/// Time between two surveys while something has been wrong for long, and nothing else is.
const TROUBLED_INTERVAL: Duration = Duration::from_millis(500);
/// How long a node may take to answer, or to be connected, before another one is asked.
const PATIENCE: Duration = Duration::from_millis(500);
/// How often that is doubled while no node is known: then one that is slow may be the only one.
const DOUBLINGS: u8 = 3;
