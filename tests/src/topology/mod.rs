//! Topologies of private servers.
//!
//! A topology is a primary with replicas, a set with Sentinels, or a cluster.
//!
//! A topology starts within seconds, on its own loopback ports, and ends with its owner. The module provides the common parts: settings,
//! commands to single servers, and bounded waits until all servers agree. Needs Redis 7 or Valkey.

mod cluster;
mod replicas;
mod sentinel;
mod view;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

pub use cluster::Cluster;
pub use replicas::Replicas;
pub use sentinel::{SERVICE, SentinelSet};

use crate::certificates::{Authority, Identity, leaf};
use crate::cli::Reply;
use crate::network::Site;
use crate::percent::encode;
use crate::server::{Builder, RedisServer};

/// The common settings of a topology's servers. The default is plain text, without a password and without persistence.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    args: Vec<(String, String)>,
    sentinel_args: Vec<(String, String)>,
    user: Option<(String, String)>,
    password: Option<String>,
    sentinel_password: Option<String>,
    tls: Option<Arc<Encryption>>,
    sites: Vec<Site>,
}

#[derive(Debug)]
struct Encryption {
    authority: Authority,
    identity: Identity,
}

impl Settings {
    /// Adds a directive to the configuration of every server, but not of Sentinels. The directive overrides the topology's own.
    #[must_use]
    pub fn arg(mut self, name: &str, value: &str) -> Self {
        self.args.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Adds a directive to the configuration of every Sentinel: `.sentinel_arg("sentinel", "auth-user mymaster watch")`.
    #[must_use]
    pub fn sentinel_arg(mut self, name: &str, value: &str) -> Self {
        self.sentinel_args.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sets the password of the servers' default user. Replicas and Sentinels use it, too. It must not contain spaces or quotes.
    #[must_use]
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self
    }

    /// Sets a password for the Sentinels. They also use it among each other. It must not contain spaces or quotes.
    #[must_use]
    pub fn sentinel_password(mut self, password: &str) -> Self {
        self.sentinel_password = Some(password.to_owned());
        self
    }

    /// Makes an ACL user on every server. The topology's URL names this user.
    #[must_use]
    pub fn user(mut self, name: &str, password: &str, rules: &str) -> Self {
        self.user = Some((name.to_owned(), password.to_owned()));
        self.arg("user", &format!("{name} on >{password} {rules}"))
    }

    /// Makes all servers and clients use TLS. The certificate is for `127.0.0.1` and `localhost`, from a new authority. Clients do not need
    /// certificates.
    #[must_use]
    pub fn tls(mut self) -> Self {
        let authority = Authority::new("a private topology");
        let identity = authority.issue(&leaf(&["127.0.0.1", "localhost"]));
        self.tls = Some(Arc::new(Encryption { authority, identity }));
        self
    }

    /// Distributes the servers and the Sentinels over these sites, in this order. Each site has one of both at most. Not for clusters.
    #[must_use]
    pub fn sites(mut self, sites: &[Site]) -> Self {
        self.sites = sites.to_vec();
        self
    }

    /// Puts a server at the site with this number, if the servers have sites.
    fn placed(&self, number: usize, builder: Builder) -> Builder {
        match self.sites.get(number) {
            Some(site) => builder.at(site),
            None => builder,
        }
    }

    /// Returns the authority that signed the servers' certificate; `None` without TLS.
    #[must_use]
    pub fn authority(&self) -> Option<&Authority> {
        self.tls.as_ref().map(|tls| &tls.authority)
    }

    /// Returns a server with these settings and with the topology's own directives.
    fn server(&self, own: &[(&str, &str)]) -> Builder {
        let builder = self.encrypted(RedisServer::builder().tcp().config_file());
        // By default, a primary waits 5 s for more replicas before it begins to feed the first one.
        let builder = builder.arg("repl-diskless-sync-delay", "0");
        let mut builder = own.iter().fold(builder, |builder, (name, value)| builder.arg(name, value));
        if let Some(password) = &self.password {
            builder = builder.arg("requirepass", password).arg("masterauth", password);
        }
        with_args(builder, &self.args)
    }

    fn encrypted(&self, builder: Builder) -> Builder {
        match &self.tls {
            Some(tls) => builder.tls(&tls.identity, tls.authority.pem()).arg("tls-replication", "yes"),
            None => builder,
        }
    }

    /// Builds the URL: `scheme` with or without TLS, the client's user, and the addresses of `servers`.
    fn url(&self, scheme: &str, servers: &[RedisServer]) -> String {
        let scheme =
            if self.tls.is_some() { scheme.replacen("redis", "rediss", 1) } else { scheme.to_owned() };
        let userinfo = match (&self.user, &self.password) {
            (Some((name, password)), _) => format!("{}:{}@", encode(name), encode(password)),
            (None, Some(password)) => format!(":{}@", encode(password)),
            (None, None) => String::new(),
        };
        let addresses: Vec<_> = servers.iter().map(|server| server.addr().to_string()).collect();
        format!("{scheme}://{userinfo}{}", addresses.join(","))
    }
}

fn with_args(builder: Builder, args: &[(String, String)]) -> Builder {
    args.iter().fold(builder, |builder, (name, value)| builder.arg(name, value))
}

/// Starts servers in parallel, in the order of the builders.
fn start_all(builders: impl IntoIterator<Item = Builder>) -> Result<Vec<RedisServer>> {
    std::thread::scope(|scope| {
        let starting: Vec<_> =
            builders.into_iter().map(|builder| scope.spawn(|| builder.try_start())).collect();
        starting
            .into_iter()
            .map(|started| started.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}

fn revive_all(servers: &mut [RedisServer]) {
    servers.iter_mut().for_each(RedisServer::revive);
}

/// Returns the running servers with their indices.
fn up(servers: &[RedisServer]) -> impl Iterator<Item = (usize, &RedisServer)> {
    servers.iter().enumerate().filter(|(_, server)| server.is_up())
}

fn index_of(servers: &[RedisServer], addr: SocketAddr) -> Result<usize> {
    let index = servers.iter().position(|server| server.addr() == addr);
    index.with_context(|| format!("{addr} is none of ours"))
}

/// Runs a command. Returns an error for an error reply.
fn ask<A: AsRef<[u8]>>(server: &RedisServer, command: &[A]) -> Result<Reply> {
    let reply = server.connect()?.query(command)?;
    if let Reply::Error(refused) = &reply {
        let words: Vec<_> = command.iter().map(|word| String::from_utf8_lossy(word.as_ref())).collect();
        bail!("{} said to {}: {refused}", server.addr(), words.join(" "));
    }
    Ok(reply)
}

/// Returns a field of INFO or CLUSTER INFO.
fn field<'a>(info: &'a str, name: &str) -> Result<&'a str> {
    let mut values = info.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    values.next().with_context(|| format!("no field {name} in {info:?}"))
}

/// Fails unless `server` is a replica that is linked to `primary`.
fn check_linked(server: &RedisServer, primary: SocketAddr) -> Result<()> {
    let info = ask(server, &["INFO", "replication"])?.to_string();
    ensure!(field(&info, "role")? == "slave", "{} is no replica", server.addr());
    let followed = format!("{}:{}", field(&info, "master_host")?, field(&info, "master_port")?);
    ensure!(followed == primary.to_string(), "{} follows {followed}, not {primary}", server.addr());
    let status = field(&info, "master_link_status")?;
    ensure!(status == "up", "the link of {} is {status}", server.addr());
    Ok(())
}

/// Waits until this number of replicas of each primary acknowledges new writes.
///
/// A link that is up is not enough. After a diskless full sync, Redis 7.0 reports the link as up at once. It streams only after the
/// replica's first acknowledgement, which the replica sends every second (`repl_start_cmd_stream_on_ack` in replication.c). Until then,
/// writes are lost with the primary.
fn settle_streams<'a>(primaries: impl IntoIterator<Item = (&'a RedisServer, usize)>) -> Result<()> {
    primaries.into_iter().try_for_each(|(primary, replicas)| settle(|| check_streams(primary, replicas)))
}

fn check_streams(primary: &RedisServer, replicas: usize) -> Result<()> {
    let mut cli = primary.connect()?;
    let mut write = |command: &[&str]| match cli.query(command)? {
        // Another node owns the slot.
        Reply::Error(moved) if moved.starts_with("MOVED") || moved.starts_with("ASK") => Ok(None),
        Reply::Error(refused) => bail!("{} said to {}: {refused}", primary.addr(), command[0]),
        reply => Ok(Some(reply.to_string())),
    };
    for number in 0..KEYS_TRIED {
        let key = format!("settling:{number}");
        if write(&["SET", &key, "1"])?.is_some() {
            write(&["DEL", &key])?;
            let acks = write(&["WAIT", &replicas.to_string(), WAIT_MILLIS])?.unwrap_or_default();
            ensure!(acks.parse::<usize>()? >= replicas, "{} streams to {acks} of {replicas}", primary.addr());
            return Ok(());
        }
    }
    // The server does not have slots, or has very few.
    Ok(())
}

/// Fails unless `server` reports that it is a primary.
fn check_primary(server: &RedisServer) -> Result<()> {
    let info = ask(server, &["INFO", "replication"])?.to_string();
    ensure!(field(&info, "role")? == "master", "{} is no primary", server.addr());
    Ok(())
}

/// Repeats `check` until it passes. If it never passes, returns its last error.
fn settle<T>(mut check: impl FnMut() -> Result<T>) -> Result<T> {
    let deadline = Instant::now() + SETTLE_TIMEOUT;
    loop {
        match check() {
            Ok(passed) => return Ok(passed),
            Err(error) if Instant::now() >= deadline => {
                return Err(error.context(format!("not settled after {SETTLE_TIMEOUT:?}")));
            }
            Err(_) => std::thread::sleep(SETTLE_INTERVAL),
        }
    }
}

/// Panics if a step failed that the test cannot do without.
fn must<T>(what: &str, done: Result<T>) -> T {
    done.unwrap_or_else(|error| panic!("{what}: {error:#}"))
}

/// The slowest wait, a failover on a busy machine, takes some seconds.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(60);
/// With a hundred keys, a node with a twentieth of the slots owns at least one key, almost certainly.
const KEYS_TRIED: usize = 100;
const WAIT_MILLIS: &str = "3000";
/// A check of a whole topology costs about a millisecond, and the servers need the processor, too.
const SETTLE_INTERVAL: Duration = Duration::from_millis(5);
