//! The connections to the Sentinels, and the queries for the primary.
//!
//! This module starts the connection to the primary. It does not keep the replies; `finder` does.
//!
//! Each task queries its Sentinel about once a second, and at once after an announcement. While the primary is in
//! doubt, it queries several times as often for a while. No call waits for this module.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::Duration;

use wheellock_resp::Command;

use crate::base::address::Address;
use crate::base::error::{Error, ErrorKind, Outcome};
use crate::config::{Config, Sentinels, Servers};
use crate::connection::Shared;
use crate::connection::finder::{Finder, HURRIED_INTERVAL};
use crate::connection::link::Link;
use crate::connection::listener::{Event, Listener};
use crate::connection::listening::Listening;
use crate::connection::locator::Locator;
use crate::protocol::discovery::{Answer, parse_master, parse_promoted};
use crate::protocol::handshake::Role;

/// Starts to connect to the primary that the Sentinels name, and starts one task per Sentinel. Must be called within
/// a runtime.
pub(crate) fn start(config: Config, sentinels: &Sentinels) -> Link {
    let finder = Arc::new(Finder::new(sentinels));
    let of_sentinels: Vec<Config> =
        sentinels.addresses.iter().map(|address| of_sentinel(sentinels, &config, address)).collect();
    let shared = Shared::new(config, Role::Primary, 0, listener(&finder));
    let link = Link::start(shared, Locator::Named(Arc::clone(&finder)));
    for ((number, address), config) in sentinels.addresses.iter().enumerate().zip(of_sentinels) {
        let sentinel = Shared::new(config, Role::Sentinel, 0, Box::new(|_| {}));
        let sentinel = Link::start(sentinel, Locator::At(address.clone()));
        let (finder, shared) = (Arc::downgrade(&finder), Arc::downgrade(&link));
        tokio::spawn(SentinelTask { finder, shared, number, sentinel }.run());
    }
    link
}

/// Returns the listener of the connection to the primary. It notifies the finder.
fn listener(finder: &Arc<Finder>) -> Listener {
    let finder = Arc::clone(finder);
    Box::new(move |event| match event {
        Event::Up { .. } => finder.connected(true),
        Event::Down => finder.connected(false),
        Event::Closed => {
            finder.connected(false);
            finder.close();
        }
        Event::Silent => finder.query_now(),
        // Only the nodes of a cluster redirect, and only they serve some keys.
        Event::Redirected { .. } | Event::AnyKeyChanged => {}
    })
}

/// Returns the configuration for a Sentinel. A Sentinel has its own credentials and TLS. Other settings come from the
/// servers' configuration.
fn of_sentinel(sentinels: &Sentinels, of_servers: &Config, address: &Address) -> Config {
    let mut config = Config::with(Servers::One(address.clone()));
    config.username.clone_from(&sentinels.username);
    config.password.clone_from(&sentinels.password);
    config.tls.clone_from(&sentinels.tls);
    config.client_name.clone_from(&of_servers.client_name);
    config.connect_timeout = of_servers.connect_timeout;
    config.response_timeout = patience(of_servers.response_timeout);
    config.heartbeat = of_servers.heartbeat;
    config.reconnect = RECONNECT;
    config.limits = of_servers.limits;
    config.random = of_servers.random;
    config.resolver = of_servers.resolver.clone();
    config.timer = of_servers.timer.clone();
    config
}

/// The task that queries one Sentinel until the finder is no longer needed.
struct SentinelTask {
    finder: Weak<Finder>,
    /// The connection to the primary.
    shared: Weak<Shared>,
    number: usize,
    sentinel: Link,
}

impl SentinelTask {
    async fn run(self) {
        let mut news: Vec<Listening> =
            NEWS.iter().map(|channel| Listening::new(&self.sentinel, channel.as_bytes(), false)).collect();
        loop {
            let Some(finder) = self.finder.upgrade() else { return };
            // Read the number before the query. A request during the query then differs from it, and another query
            // follows. The reply under way may be older than the request.
            let query_requests = finder.query_requests();
            let answer = self.query(&finder).await;
            finder.received(self.number, answer);
            let shared = self.shared.upgrade();
            if let Some(shared) = shared.as_ref().filter(|shared| !finder.allows(|at| shared.is_at(at))) {
                shared.poison(ErrorKind::ConnectionLost, "the Sentinels name another primary now");
            }
            let is_responsive = shared.is_some_and(|shared| shared.is_responsive());
            let Config { timer, random, .. } = &self.sentinel.config;
            let interval = finder.interval(timer.now(), is_responsive);
            let hurried = interval == HURRIED_INTERVAL;
            let mut sleep = timer.sleep(spread(interval, random()));
            let closed = std::future::poll_fn(|cx| {
                // This task holds one reference. If it is the last one, the connection to the primary is gone.
                let Some(query_requests_now) = finder.wait(cx).filter(|_| Arc::strong_count(&finder) > 1)
                else {
                    return Poll::Ready(true);
                };
                // At the hurried interval the next query follows soon anyway. If requests ended that pause, too, repeated
                // requests would cause queries without a pause.
                let hurried = query_requests_now != query_requests && !hurried;
                let announced = news.iter_mut().any(|news| news.poll_changes(cx).is_ready());
                if hurried || announced || Pin::new(&mut sleep).poll(cx).is_ready() {
                    return Poll::Ready(false);
                }
                Poll::Pending
            });
            if closed.await {
                return;
            }
        }
    }

    async fn query(&self, finder: &Finder) -> Result<Answer, Error> {
        let deadline = self.sentinel.config.timer.now() + self.sentinel.config.response_timeout;
        let ask = async |subcommand: &str| {
            let question = Command::new("SENTINEL").arg(subcommand).arg(finder.service());
            self.sentinel.call(&question, deadline).await
        };
        // The requests leave in the order in which they are polled. REPLICAS before MASTER is the order in which the
        // replies cannot contradict each other.
        let mut replicas = pin!(ask("REPLICAS"));
        let queued = std::future::poll_fn(|cx| Poll::Ready(replicas.as_mut().poll(cx))).await;
        let master = ask("MASTER").await?;
        let replicas = if let Poll::Ready(reply) = queued { reply? } else { replicas.await? };
        let mut answer = parse_master(&master).map_err(|malformed| self.nonsense(malformed.0))?;
        answer.promoted = parse_promoted(&replicas).map_err(|malformed| self.nonsense(malformed.0))?;
        answer.address = self.translated(answer.address)?;
        answer.promoted = answer.promoted.map(|address| self.translated(address)).transpose()?;
        Ok(answer)
    }

    fn translated(&self, address: Address) -> Result<Address, Error> {
        match self.shared.upgrade() {
            None => Ok(address),
            Some(shared) => {
                shared.config.translated(address).map_err(|why| self.nonsense(&format!("it names {why}")))
            }
        }
    }

    fn nonsense(&self, why: &str) -> Error {
        let server = self.sentinel.server();
        Error::new(ErrorKind::Protocol, Outcome::Rejected, "asking a Sentinel", &server, why.to_owned())
    }
}

/// Returns how long a Sentinel may take to reply, for servers with this `response_timeout`. A Sentinel gets less time
/// than a server, because other Sentinels know the same. A client that is far from the servers is usually far from
/// the Sentinels too.
fn patience(response_timeout: Duration) -> Duration {
    PATIENCE.max(response_timeout / 6)
}

/// Returns `interval` with up to a quarter added or subtracted. Without the spread, clients that started together
/// would query together forever. `random` is uniform over all of `u64`.
fn spread(interval: Duration, random: u64) -> Duration {
    let width = u64::try_from((interval / 2).as_nanos()).unwrap_or(u64::MAX);
    interval - interval / 4 + Duration::from_nanos(random % width.max(1))
}

/// The announcements of a Sentinel when a primary fails, has a successor, or was replaced.
const NEWS: [&str; 3] = ["+odown", "+selected-slave", "+switch-master"];
/// Minimum time that a Sentinel gets to reply. It is also the time for the default response timeout.
const PATIENCE: Duration = Duration::from_millis(500);
/// Pauses between attempts to connect to a Sentinel. They are longer than those for a server, because other Sentinels
/// know the same.
const RECONNECT: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

#[cfg(test)]
mod tests;
