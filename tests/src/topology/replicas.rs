//! A primary with replicas, without Sentinels.
//!
//! The test itself does the failover.

use anyhow::{Context, Result};

use super::{
    Settings, ask, check_linked, check_primary, must, revive_all, settle, settle_streams, start_all, up,
};
use crate::server::RedisServer;

/// A primary and its replicas. A server keeps its index in [`servers`](Self::servers), whatever its role.
#[derive(Debug)]
pub struct Replicas {
    servers: Vec<RedisServer>,
    primary: usize,
    settings: Settings,
}

impl Replicas {
    /// Starts a primary and `replicas` replicas, and waits until all are linked and receive its writes.
    ///
    /// # Panics
    ///
    /// If the servers do not start; the message says why.
    #[must_use]
    pub fn start(replicas: usize, settings: &Settings) -> Self {
        must("cannot start replicas", Self::try_start(replicas, settings))
    }

    /// Starts the servers like [`start`](Self::start), for tools that report errors instead of panicking.
    ///
    /// # Errors
    ///
    /// The servers do not start, or do not find each other.
    pub fn try_start(replicas: usize, settings: &Settings) -> Result<Self> {
        let servers = start_servers(replicas, settings)?;
        Ok(Self { servers, primary: 0, settings: settings.clone() })
    }

    /// `redis://[user:password@]host:port,host:port...` with all addresses, or `rediss:`
    #[must_use]
    pub fn url(&self) -> String {
        self.settings.url("redis", &self.servers)
    }

    /// Returns all servers. The first server was the first primary.
    #[must_use]
    pub fn servers(&self) -> &[RedisServer] {
        &self.servers
    }

    /// Returns all servers, to kill and restart them. The servers keep their roles over a restart.
    pub fn servers_mut(&mut self) -> &mut [RedisServer] {
        &mut self.servers
    }

    /// Returns the server that was promoted last.
    #[must_use]
    pub fn primary(&self) -> &RedisServer {
        &self.servers[self.primary]
    }

    /// Returns the primary's index.
    #[must_use]
    pub fn primary_index(&self) -> usize {
        self.primary
    }

    /// Returns all other servers.
    pub fn replicas(&self) -> impl Iterator<Item = &RedisServer> {
        self.servers.iter().enumerate().filter(|(index, _)| *index != self.primary).map(|(_, server)| server)
    }

    /// Makes a server the primary, and makes all other running servers follow it. Returns when they are linked. A server that is down
    /// learns the new primary in [`heal`](Self::heal).
    ///
    /// # Panics
    ///
    /// If a server rejects a command, or the links do not come up.
    pub fn promote(&mut self, index: usize) {
        self.primary = index;
        must("cannot promote", self.follow_primary());
    }

    /// Restarts and resumes all servers that are down, and makes all replicas follow the primary. Returns when they are linked.
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

/// Gives a server another role, which also survives restarts.
fn turn(server: &RedisServer, follow: [&str; 2]) -> Result<()> {
    ask(server, &["REPLICAOF", follow[0], follow[1]])?;
    ask(server, &["CONFIG", "REWRITE"])?;
    Ok(())
}

/// Starts a primary, which comes first, and linked replicas.
pub(super) fn start_servers(replicas: usize, settings: &Settings) -> Result<Vec<RedisServer>> {
    let mut servers = start_all([settings.placed(0, settings.server(&[]))])?;
    let addr = servers.first().context("one was started")?.addr();
    let follow = [("replicaof", format!("{} {}", addr.ip(), addr.port()))];
    let follow = follow.each_ref().map(|(name, value)| (*name, value.as_str()));
    let replica = |number| settings.placed(number, settings.server(&follow));
    servers.extend(start_all((1..=replicas).map(replica))?);
    settle_replication(&servers, 0)?;
    Ok(servers)
}

fn settle_replication(servers: &[RedisServer], primary: usize) -> Result<()> {
    settle(|| check_replication(servers, primary))?;
    settle_streams([(&servers[primary], up(servers).count() - 1)])
}

/// Fails unless all running servers have their roles.
pub(super) fn check_replication(servers: &[RedisServer], primary: usize) -> Result<()> {
    let addr = servers[primary].addr();
    up(servers).try_for_each(|(index, server)| {
        if index == primary { check_primary(server) } else { check_linked(server, addr) }
    })
}
