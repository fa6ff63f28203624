//! A primary with replicas, and nobody to watch them: failover is done by hand.

use anyhow::{Context, Result};

use super::{
    Settings, ask, check_linked, check_primary, must, revive_all, settle, settle_streams, start_all, up,
};
use crate::server::RedisServer;

/// A primary and its replicas. A server keeps its place in [`servers`](Self::servers), whatever its role.
#[derive(Debug)]
pub struct Replicas {
    servers: Vec<RedisServer>,
    primary: usize,
    settings: Settings,
}

impl Replicas {
    /// Starts a primary and so many replicas, and waits until all are linked and hear what it writes.
    ///
    /// # Panics
    ///
    /// If they do not start; the message says why.
    #[must_use]
    pub fn start(replicas: usize, settings: &Settings) -> Self {
        must("cannot start replicas", Self::try_start(replicas, settings))
    }

    /// As [`start`](Self::start), for tools that report errors instead of panicking.
    ///
    /// # Errors
    ///
    /// They do not start, or do not find each other.
    pub fn try_start(replicas: usize, settings: &Settings) -> Result<Self> {
        let servers = start_servers(replicas, settings)?;
        Ok(Self { servers, primary: 0, settings: settings.clone() })
    }

    /// `redis://[user:password@]host:port,host:port...` with the addresses of all, or `rediss:`
    #[must_use]
    pub fn url(&self) -> String {
        self.settings.url("redis", &self.servers)
    }

    /// All servers. The first one was the first primary.
    #[must_use]
    pub fn servers(&self) -> &[RedisServer] {
        &self.servers
    }

    /// All servers, to kill and restart them. They keep their role over a restart.
    pub fn servers_mut(&mut self) -> &mut [RedisServer] {
        &mut self.servers
    }

    /// The server that was promoted last.
    #[must_use]
    pub fn primary(&self) -> &RedisServer {
        &self.servers[self.primary]
    }

    /// Its place.
    #[must_use]
    pub fn primary_index(&self) -> usize {
        self.primary
    }

    /// All others.
    pub fn replicas(&self) -> impl Iterator<Item = &RedisServer> {
        self.servers.iter().enumerate().filter(|(index, _)| *index != self.primary).map(|(_, server)| server)
    }

    /// Makes a server the primary, and all others that are up follow it; returns when they are linked. One that is not up
    /// learns nothing of it before [`heal`](Self::heal).
    ///
    /// # Panics
    ///
    /// If a server refuses, or the links do not come up.
    pub fn promote(&mut self, index: usize) {
        self.primary = index;
        must("cannot promote", self.follow_primary());
    }

    /// Restarts and resumes whatever is down, and has all follow the primary; returns when they are linked.
    ///
    /// # Panics
    ///
    /// As [`promote`](Self::promote).
    pub fn heal(&mut self) {
        revive_all(&mut self.servers);
        must("cannot heal", self.follow_primary());
    }

    fn follow_primary(&self) -> Result<()> {
        let primary = self.primary();
        if check_primary(primary).is_err() {
            turn(primary, ["NO", "ONE"])?;
        }
        let addr = primary.addr();
        for (index, replica) in up(&self.servers) {
            if index != self.primary {
                turn(replica, [&addr.ip().to_string(), &addr.port().to_string()])?;
            }
        }
        settle_replication(&self.servers, self.primary)
    }
}

/// Has a server play another role from now on, restarts included.
fn turn(server: &RedisServer, follow: [&str; 2]) -> Result<()> {
    ask(server, &["REPLICAOF", follow[0], follow[1]])?;
    ask(server, &["CONFIG", "REWRITE"])?;
    Ok(())
}

/// A primary, which is the first, and replicas that are linked to it.
pub(super) fn start_servers(replicas: usize, settings: &Settings) -> Result<Vec<RedisServer>> {
    let mut servers = start_all([settings.server(&[])])?;
    let addr = servers.first().context("one was started")?.addr();
    let follow = [("replicaof", format!("{} {}", addr.ip(), addr.port()))];
    let follow = follow.each_ref().map(|(name, value)| (*name, value.as_str()));
    servers.extend(start_all((0..replicas).map(|_| settings.server(&follow)))?);
    settle_replication(&servers, 0)?;
    Ok(servers)
}

fn settle_replication(servers: &[RedisServer], primary: usize) -> Result<()> {
    settle(|| check_replication(servers, primary))?;
    settle_streams([(&servers[primary], up(servers).count() - 1)])
}

/// Fails unless all servers that are up play their roles.
pub(super) fn check_replication(servers: &[RedisServer], primary: usize) -> Result<()> {
    let addr = servers[primary].addr();
    up(servers).try_for_each(|(index, server)| {
        if index == primary { check_primary(server) } else { check_linked(server, addr) }
    })
}
