//! The servers that keep the workers' locks.

use anyhow::{Result, bail};

use super::fleet::SEPARATOR;
use super::plans::Plan;
use crate::RedisServer;
use crate::network::Network;
use crate::topology::{Cluster, SentinelSet, Settings};

/// The arrangement of a campaign's servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Topology {
    One,
    /// A primary with replicas, and Sentinels that promote one of the replicas when the primary fails.
    Watched,
    /// As `Watched`. Each server is at a site of its own, with a Sentinel and workers. Further workers are at a fourth site.
    Split,
    /// Five independent servers.
    Quorum,
    /// Three primaries with a replica each.
    Cluster,
}

/// The running servers.
pub(super) enum Servers {
    One(RedisServer),
    /// The servers of a set, and the index of the primary.
    Watched(SentinelSet, usize),
    Quorum(Vec<RedisServer>),
    Cluster(Cluster),
}

impl Servers {
    /// Starts the servers of a plan. `environment` is for a single server.
    pub(super) fn start(
        plan: &Plan,
        tcp: bool,
        environment: &[(&str, String)],
        network: Option<&Network>,
    ) -> Result<Self> {
        let single = || {
            let mut builder = RedisServer::builder().arg("enable-debug-command", "local");
            for (name, value) in plan.server {
                builder = builder.arg(name, value);
            }
            if tcp {
                builder = builder.tcp();
            }
            for (name, value) in environment {
                builder = builder.env(name, value);
            }
            builder.try_start()
        };
        let settings = || {
            let settings = Settings::default().sites(network.map_or(&[], Network::sites));
            plan.server.iter().fold(settings, |all, (name, value)| all.arg(name, value))
        };
        Ok(match plan.topology {
            Topology::One => Self::One(single()?),
            Topology::Watched | Topology::Split => Self::Watched(SentinelSet::try_start(&settings())?, 0),
            Topology::Quorum => Self::Quorum((0..MEMBERS).map(|_| single()).collect::<Result<_>>()?),
            Topology::Cluster => Self::Cluster(Cluster::try_start(PRIMARIES, 1, &settings())?),
        })
    }

    pub(super) fn url(&self) -> String {
        match self {
            Self::One(server) => server.url(),
            Self::Watched(set, _) => set.url(),
            Self::Quorum(servers) => {
                let urls: Vec<String> = servers.iter().map(RedisServer::url).collect();
                urls.join(&SEPARATOR.to_string())
            }
            Self::Cluster(cluster) => cluster.url(),
        }
    }

    /// Returns the servers that may keep locks. The first of them is [`serving`](Self::serving).
    pub(super) fn all(&self) -> &[RedisServer] {
        match self {
            Self::One(server) => std::slice::from_ref(server),
            Self::Watched(set, primary) => std::slice::from_ref(&set.servers()[*primary]),
            Self::Quorum(servers) => servers,
            Self::Cluster(cluster) => cluster.nodes(),
        }
    }

    /// Returns the serving server, or the first of several.
    pub(super) fn serving(&self) -> &RedisServer {
        &self.all()[0]
    }

    pub(super) fn server_mut(&mut self, place: usize) -> &mut RedisServer {
        match self {
            Self::One(server) => server,
            Self::Watched(set, primary) => &mut set.servers_mut()[*primary],
            Self::Quorum(servers) => &mut servers[place],
            Self::Cluster(cluster) => &mut cluster.nodes_mut()[place],
        }
    }

    /// Returns the servers behind Sentinels, and the index of the primary.
    pub(super) fn watched(&mut self) -> Result<(&mut SentinelSet, &mut usize)> {
        let Self::Watched(set, primary) = self else { bail!("no Sentinel watches the server") };
        Ok((set, primary))
    }

    pub(super) fn cluster(&self) -> Result<&Cluster> {
        let Self::Cluster(cluster) = self else { bail!("this campaign has no cluster") };
        Ok(cluster)
    }
}

/// The sites of [`Topology::Split`]. The last site is for workers only.
pub(super) const SITES: u8 = 4;
const MEMBERS: usize = 5;
const PRIMARIES: usize = 3;
