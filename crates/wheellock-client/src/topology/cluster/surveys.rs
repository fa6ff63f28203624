//! How a cluster is asked for its nodes: whom, when, and how long each may take. What their answers mean is for the cluster.

use std::pin::Pin;
use std::sync::Weak;
use std::task::Poll;
use std::time::{Duration, Instant};

use wheellock_resp::{Command, Value};
use wheellock_wheel::Timer;

use super::Cluster;
use crate::address::Address;
use crate::config::{Hooks, Servers};
use crate::connection::Shared;
use crate::error::{Error, ErrorKind, Outcome};
use crate::handshake::Role;
use crate::link::Link;
use crate::locator::Locator;
use crate::topology::nodes::{self, Node};

impl Cluster {
    /// Asks one node after the other until one answers, and takes its answer.
    async fn ask_around(&self) {
        let (mut last_error, mut refused) = (None::<Error>, true);
        for address in self.whom_to_ask() {
            match self.ask(&address).await {
                Ok(view) => {
                    let mut survey = self.survey();
                    (survey.last_error, survey.refused) = (None, false);
                    drop(survey);
                    self.learn(&view, &address);
                    return;
                }
                Err(error) => {
                    refused &= error.is_refusal();
                    // Who refuses us has more to say than who says nothing.
                    if error.is_refusal() || !last_error.as_ref().is_some_and(Error::is_refusal) {
                        last_error = Some(error);
                    }
                }
            }
            if self.is_closed() {
                return;
            }
        }
        if let Some(error) = last_error {
            let mut survey = self.survey();
            (survey.last_error, survey.refused) = (Some(error), refused);
            drop(survey);
            self.tell_watchers();
        }
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

    async fn ask(&self, address: &Address) -> Result<Vec<Node>, Error> {
        let connected = self.map().nodes.get(address).filter(|node| node.is_lively()).cloned();
        let link = match connected {
            Some(node) => Link::to(&node),
            None => {
                // Any node will do, so this one must not keep us for long. If none did, they may all need the time; nodes that
                // are known connect by themselves.
                let alone = self.map().nodes.is_empty();
                let is_patient = alone && self.survey().last_error.is_some();
                let mut config = self.config.clone();
                config.servers = Servers::One(address.clone());
                if !is_patient {
                    config.connect_timeout = config.connect_timeout.min(PATIENCE);
                }
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
        let view = nodes::parse(text).map_err(|malformed| {
            let server = address.to_string();
            let detail = format!("CLUSTER NODES was answered with nonsense: {}", malformed.0);
            Error::new(ErrorKind::Protocol, Outcome::Rejected, "asking for the nodes", &server, detail)
        })?;
        if self.survey().sharded.is_none() {
            let sharded = knows_sharded_pubsub(&link, deadline).await?;
            self.survey().sharded.get_or_insert(sharded);
        }
        Ok(self.reachable(view))
    }

    /// When to ask around again.
    fn pause(&self) -> Duration {
        let map = self.map();
        let covered = map.owners.iter().all(Option::is_some);
        let lively = map.serving.iter().all(|node| node.is_lively());
        drop(map);
        let now = self.config.timer.now();
        let mut survey = self.survey();
        if covered && lively && survey.last_error.is_none() {
            survey.in_trouble_since = None;
            return INTERVAL;
        }
        let since = *survey.in_trouble_since.get_or_insert(now);
        if now.saturating_duration_since(since) < TROUBLE { HURRIED_INTERVAL } else { TROUBLED_INTERVAL }
    }
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
            let mut survey = cluster.survey();
            if survey.closed.is_some() {
                return Poll::Ready(true);
            }
            survey.surveyor = Some(cx.waker().clone());
            let soon = asked_at + HURRIED_INTERVAL;
            // Asked for by many at once it is still done once, and not more often than in a hurry.
            if std::mem::take(&mut survey.wanted) && sleep.deadline() > soon {
                sleep.reset(soon);
            }
            drop(survey);
            Pin::new(&mut sleep).poll(cx).map(|()| false)
        });
        if closed.await {
            return;
        }
    }
}

/// Time between two surveys while all is well, as in Redisson (`scanInterval`).
const INTERVAL: Duration = Duration::from_secs(5);
/// Time between two surveys while something is wrong: half of the time within which a new primary is to be used.
const HURRIED_INTERVAL: Duration = Duration::from_millis(50);
/// What has been wrong for this long needs more than our attention,
const TROUBLE: Duration = Duration::from_secs(10);
/// and is looked at less often.
const TROUBLED_INTERVAL: Duration = Duration::from_millis(500);
/// How long a node may take to answer, or at first to be connected, before another one is asked.
const PATIENCE: Duration = Duration::from_millis(500);
