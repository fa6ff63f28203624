//! The way from a key to the connection that serves it.
//!
//! This module hides whether there is one server or a cluster. It does not know a protocol.

use std::borrow::Cow;
use std::sync::Arc;

use wheellock_resp::Arg;

use crate::base::connection_id::ConnectionId;
use crate::base::error::{Error, ErrorKind, Outcome};
use crate::base::retry::Retry;
use crate::config::{Config, Servers};
use crate::connection::link::Link;
use crate::connection::locator::Locator;
use crate::connection::{ConnectionState, Server, Shared};
use crate::protocol::handshake::Role;
use crate::protocol::request::Request;
use crate::topology::cluster::{self, Cluster};
use crate::topology::sentinels;

/// The target of a client's calls.
#[derive(Clone)]
pub(crate) enum Route {
    /// One server for every call. It may be found anew at every connect.
    One(Link),
    /// A cluster. Each call goes to the node that serves its key.
    Cluster(cluster::Handle),
}

impl Route {
    /// Starts to connect. Must be called within a runtime.
    pub(crate) fn open(config: Config) -> Self {
        let config = config.within_reach();
        let locator = match &config.servers {
            Servers::One(address) => Locator::At(address.clone()),
            Servers::Replicated(addresses) => Locator::Among(addresses.clone()),
            Servers::Sentinel(sentinels) => {
                let sentinels = sentinels.clone();
                return Self::One(sentinels::start(config, &sentinels));
            }
            Servers::Cluster(seeds) => {
                let seeds = seeds.clone();
                return Self::Cluster(Cluster::start(config, seeds));
            }
        };
        let shared = Shared::new(config, Role::Primary, 0, Box::new(|_| {}));
        Self::One(Link::start(shared, locator))
    }

    /// Waits until the server or the cluster is ready.
    pub(crate) async fn ready(&self) -> Result<(), Error> {
        match self {
            Self::One(link) => link.ready().await,
            Self::Cluster(cluster) => cluster.ready().await,
        }
    }

    /// Returns the server for a request. The boolean says whether ASKING must precede the request.
    #[inline]
    pub(crate) fn server(&self, request: &Request<'_>, retry: &Retry) -> Result<(Server<'_>, bool), Error> {
        match self {
            Self::One(link) => Ok((Server::Borrowed(link), false)),
            Self::Cluster(cluster) => Self::node(cluster, request, retry),
        }
    }

    fn node<'a>(
        cluster: &'a Cluster,
        request: &Request<'_>,
        retry: &Retry,
    ) -> Result<(Server<'a>, bool), Error> {
        if let Some(node) = retry.asking().and_then(|address| cluster.node_at(address)) {
            return Ok((Server::Owned(node), true));
        }
        let key = request.key().map(|key| match key {
            Arg::Bytes(key) => Cow::Borrowed(key),
            Arg::Int(key) => key.to_string().into_bytes().into(),
            Arg::Uint(key) => key.to_string().into_bytes().into(),
        });
        cluster.node_for(key.as_deref()).map(|node| (Server::Owned(node), false))
    }

    /// Returns the server that serves `key` now.
    pub(crate) fn server_for(&self, key: &[u8]) -> Result<Server<'_>, Error> {
        match self {
            Self::One(link) => Ok(Server::Borrowed(link)),
            Self::Cluster(cluster) => cluster.node_for(Some(key)).map(Server::Owned),
        }
    }

    /// Returns the server of `connection`, if it is still used.
    pub(crate) fn server_of(&self, connection: ConnectionId) -> Option<Server<'_>> {
        match self {
            Self::One(link) => (link.node == connection.node).then_some(Server::Borrowed(link)),
            Self::Cluster(cluster) => {
                let mut nodes = cluster.nodes().into_iter();
                nodes.find(|node| node.node == connection.node).map(Server::Owned)
            }
        }
    }

    /// Returns the server of `connection`. If that server is not used any more, returns a substitute for messages.
    pub(crate) fn server_that_was(&self, connection: ConnectionId) -> Server<'_> {
        self.server_of(connection).unwrap_or_else(|| match self {
            Self::One(link) => Server::Borrowed(link),
            Self::Cluster(cluster) => Server::Owned(cluster.unassigned()),
        })
    }

    /// Returns every server in use.
    pub(crate) fn servers(&self) -> Vec<Arc<Shared>> {
        match self {
            Self::One(link) => vec![Arc::clone(link)],
            Self::Cluster(cluster) => cluster.nodes(),
        }
    }

    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self, Self::Cluster(_))
    }

    /// Returns the number of the node that serves `key` now. Returns 0 if there is only one server.
    pub(crate) fn node_of(&self, key: &[u8]) -> u32 {
        match self {
            Self::One(_) => 0,
            Self::Cluster(cluster) => cluster.node_for(Some(key)).map_or(u32::MAX, |node| node.node),
        }
    }

    /// Returns the error of a call that was not made.
    #[cold]
    pub(crate) fn error(&self, kind: ErrorKind, operation: &str, detail: &str) -> Error {
        Error::new(kind, Outcome::NotSent, operation, &self.address(), detail.to_owned())
    }

    /// Returns the servers' addresses for messages.
    pub(crate) fn address(&self) -> Arc<str> {
        match self {
            Self::One(link) => link.server(),
            Self::Cluster(cluster) => cluster.config.servers.to_string().into(),
        }
    }

    pub(crate) fn config(&self) -> &Config {
        match self {
            Self::One(link) => &link.config,
            Self::Cluster(cluster) => &cluster.config,
        }
    }

    pub(crate) fn state(&self) -> ConnectionState {
        match self {
            Self::One(link) => link.lock().connection_state(),
            Self::Cluster(cluster) => cluster.state(),
        }
    }

    /// Closes every connection. Queued calls are still sent.
    pub(crate) fn begin_closing(&self) {
        match self {
            Self::One(link) => link.begin_closing(),
            Self::Cluster(cluster) => cluster.close(),
        }
    }
}
