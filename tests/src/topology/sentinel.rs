//! A primary, two replicas, and three Sentinels for automatic failover.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::replicas::{check_replication, start_servers};
use super::{
    Settings, ask, check_primary, check_streams, index_of, must, revive_all, settle, start_all, up, with_args,
};
use crate::cli::Reply;
use crate::server::{Builder, RedisServer};

/// The name under which the Sentinels watch the primary.
pub const SERVICE: &str = "mymaster";

/// Three servers and three Sentinels with a quorum of two. A server keeps its index in [`servers`](Self::servers), whatever its role.
///
/// A replica takes over from a dead or paused primary about 1.5 s later. The servers keep their roles over restarts.
#[derive(Debug)]
pub struct SentinelSet {
    servers: Vec<RedisServer>,
    sentinels: Vec<RedisServer>,
    settings: Settings,
}

impl SentinelSet {
    /// Starts all servers, and waits until every Sentinel knows all other Sentinels and both replicas.
    ///
    /// # Panics
    ///
    /// If the servers do not start; the message says why.
    #[must_use]
    pub fn start(settings: &Settings) -> Self {
        must("cannot start Sentinels", Self::try_start(settings))
    }

    /// Starts the set like [`start`](Self::start), for tools that report errors instead of panicking.
    ///
    /// # Errors
    ///
    /// The servers do not start, or do not find each other.
    pub fn try_start(settings: &Settings) -> Result<Self> {
        let servers = start_servers(REPLICAS, settings)?;
        let primary = servers.first().context("one was started")?.addr();
        let sentinels =
            start_all((0..SENTINELS).map(|number| settings.placed(number, sentinel(settings, primary))))?;
        let set = Self { servers, sentinels, settings: settings.clone() };
        set.settle()?;
        Ok(set)
    }

    /// `redis+sentinel://[user:password@]host:port,host:port.../mymaster` with the addresses of the Sentinels, or
    /// `rediss+sentinel:`. User and password are those for the servers.
    #[must_use]
    pub fn url(&self) -> String {
        format!("{}/{SERVICE}", self.settings.url("redis+sentinel", &self.sentinels))
    }

    /// Returns the watched servers. The first server was the first primary.
    #[must_use]
    pub fn servers(&self) -> &[RedisServer] {
        &self.servers
    }

    /// Returns the servers, to kill and restart them.
    pub fn servers_mut(&mut self) -> &mut [RedisServer] {
        &mut self.servers
    }

    /// Returns the Sentinels.
    #[must_use]
    pub fn sentinels(&self) -> &[RedisServer] {
        &self.sentinels
    }

    /// Returns the Sentinels, to kill and restart them.
    pub fn sentinels_mut(&mut self) -> &mut [RedisServer] {
        &mut self.sentinels
    }

    /// Returns the index of the primary that the Sentinels name. If they differ, the running Sentinel with the latest configuration counts.
    ///
    /// # Panics
    ///
    /// If no Sentinel replies.
    #[must_use]
    pub fn primary_index(&self) -> usize {
        must("who is the primary?", self.named_primary())
    }

    /// Returns the server that the Sentinels name.
    ///
    /// # Panics
    ///
    /// As [`primary_index`](Self::primary_index).
    #[must_use]
    pub fn primary(&self) -> &RedisServer {
        &self.servers[self.primary_index()]
    }

    /// Waits until a Sentinel names a server other than `than`, and that server reports that it is a primary. Returns its index. The other
    /// Sentinels may not know the new primary yet. Orders a failover if the Sentinels have given theirs up.
    ///
    /// # Panics
    ///
    /// If that takes longer than a minute.
    #[must_use]
    pub fn wait_for_new_primary(&self, than: SocketAddr) -> usize {
        let began = Instant::now();
        let named = || {
            let named = self.new_primary(than);
            if named.is_err() && began.elapsed() > GIVEN_UP {
                let (_, sentinel) = up(&self.sentinels).next().context("no Sentinel is up")?;
                return self.fail_over(sentinel, than);
            }
            named
        };
        must("no new primary", settle(named))
    }

    fn new_primary(&self, than: SocketAddr) -> Result<usize> {
        for (_, sentinel) in up(&self.sentinels) {
            let named = ask(sentinel, &["SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE])?;
            let named: SocketAddr = named.to_string().replace('\n', ":").parse()?;
            if named != than {
                let index = index_of(&self.servers, named)?;
                check_primary(&self.servers[index])?;
                return Ok(index);
            }
        }
        bail!("all Sentinels name {than}")
    }

    /// Makes the Sentinels replace a healthy primary. Returns the new primary's index when all servers and Sentinels agree.
    ///
    /// # Panics
    ///
    /// If the Sentinels refuse, or do not agree.
    pub fn failover(&self) -> usize {
        let old = self.primary().addr();
        let (_, sentinel) = up(&self.sentinels).next().expect("a Sentinel is up");
        let index = must("SENTINEL FAILOVER", settle(|| self.fail_over(sentinel, old)));
        self.wait_settled();
        index
    }

    /// Orders a failover, unless the Sentinel is busy with a failover. A Sentinel gives a failover up if the replica is not a primary
    /// within the failover timeout, and does not retry. On a busy machine, these two seconds do pass (seen on Redis 7.0,
    /// `-failover-abort-slave-timeout`).
    fn fail_over(&self, sentinel: &RedisServer, old: SocketAddr) -> Result<usize> {
        let watched = Watched::of(sentinel, "MASTER")?.remove(0);
        if watched.addr()? != old {
            return self.new_primary(old);
        }
        if !watched.get("flags").split(',').any(|flag| flag == "failover_in_progress") {
            // The Sentinel refuses while it is busy with other work.
            ask(sentinel, &["SENTINEL", "FAILOVER", SERVICE])?;
        }
        bail!("{} still names {old}", sentinel.addr())
    }

    /// Restarts and resumes all servers that are down, and waits until all agree. All Sentinels name one primary; all other servers are
    /// linked replicas that receive its writes. No Sentinel suspects a server.
    ///
    /// # Panics
    ///
    /// If that takes longer than a minute.
    pub fn heal(&mut self) {
        revive_all(&mut self.servers);
        revive_all(&mut self.sentinels);
        self.wait_settled();
    }

    /// Waits like [`heal`](Self::heal), but ignores servers that are down.
    ///
    /// # Panics
    ///
    /// As [`heal`](Self::heal).
    pub fn wait_settled(&self) {
        must("the Sentinels do not settle", self.settle());
    }

    fn settle(&self) -> Result<()> {
        // A failover that had already begun may end between the checks.
        settle(|| {
            let primary = self.check()?;
            check_streams(&self.servers[primary], up(&self.servers).count() - 1)
        })
    }

    fn named_primary(&self) -> Result<usize> {
        let mut latest: Option<(u64, SocketAddr)> = None;
        for (_, sentinel) in up(&self.sentinels) {
            let named = Watched::of(sentinel, "MASTER")?.remove(0);
            let named = (named.number("config-epoch")?, named.addr()?);
            if latest.is_none_or(|latest| named.0 > latest.0) {
                latest = Some(named);
            }
        }
        index_of(&self.servers, latest.context("no Sentinel is up")?.1)
    }

    /// Fails unless all agree on one primary. Returns its index.
    fn check(&self) -> Result<usize> {
        let primary = self.named_primary()?;
        check_replication(&self.servers, primary)?;
        let addr = self.servers[primary].addr();
        let (mut epoch, sentinels_up) = (None, up(&self.sentinels).count());
        for (_, sentinel) in up(&self.sentinels) {
            let named = Watched::of(sentinel, "MASTER")?.remove(0);
            ensure!(named.addr()? == addr, "{} names {}", sentinel.addr(), named.addr()?);
            named.ensure("flags", "master")?;
            let epoch = epoch.get_or_insert_with(|| named.get("config-epoch").to_owned());
            named.ensure("config-epoch", epoch)?;

            let replicas = Watched::of(sentinel, "REPLICAS")?;
            let well = |watched: &&Watched, flags| watched.ensure("flags", flags).is_ok();
            let replicas = replicas.iter().filter(|replica| {
                well(replica, "slave")
                    && replica.ensure("master-link-status", "ok").is_ok()
                    && replica.ensure("master-port", &addr.port().to_string()).is_ok()
            });
            let (known, wanted) = (replicas.count(), up(&self.servers).count() - 1);
            ensure!(known >= wanted, "{} knows {known} of {wanted} replicas", sentinel.addr());

            let others = Watched::of(sentinel, "SENTINELS")?;
            let known = others.iter().filter(|other| well(other, "sentinel")).count();
            ensure!(known + 1 >= sentinels_up, "{} knows {known} other Sentinels", sentinel.addr());
            ask(sentinel, &["SENTINEL", "CKQUORUM", SERVICE])?;
        }
        Ok(primary)
    }
}

fn sentinel(settings: &Settings, primary: SocketAddr) -> Builder {
    let mut builder = settings.encrypted(RedisServer::builder().sentinel());
    let mut directive = |text: String| builder = std::mem::take(&mut builder).arg("sentinel", &text);
    directive(format!("monitor {SERVICE} {} {} {QUORUM}", primary.ip(), primary.port()));
    directive(format!("down-after-milliseconds {SERVICE} 500"));
    directive(format!("failover-timeout {SERVICE} 2000"));
    directive(format!("parallel-syncs {SERVICE} {REPLICAS}"));
    if let Some(password) = &settings.password {
        directive(format!("auth-pass {SERVICE} {password}"));
    }
    if let Some(password) = &settings.sentinel_password {
        directive(format!("sentinel-pass {password}"));
        builder = builder.arg("requirepass", password);
    }
    with_args(builder, &settings.sentinel_args).first_command(PERIODS)
}

/// Sentinel's default periods suit networks, and make a failover take half a minute. These periods make it fast. A replica's last INFO is
/// valid for five ping periods, and must stay valid until the next INFO. With a period of 50 ms, no replica would be eligible. A Sentinel
/// that was paused waits for the end of the tilt period.
const PERIODS: &[&str] = &[
    "SENTINEL",
    "DEBUG",
    "info-period",
    "500",
    "ask-period",
    "100",
    "publish-period",
    "200",
    "ping-period",
    "250",
    "tilt-period",
    "1000",
];
/// Time after which Sentinels have given a failover up. They do so on a machine that is busy for seconds.
const GIVEN_UP: Duration = Duration::from_secs(20);
const REPLICAS: usize = 2;
const SENTINELS: usize = 3;
const QUORUM: usize = 2;

/// A Sentinel's record of a watched server.
struct Watched(HashMap<String, String>);

impl Watched {
    /// Reads the records: a single record for `MASTER`, any number for `REPLICAS` and `SENTINELS`.
    fn of(sentinel: &RedisServer, what: &str) -> Result<Vec<Self>> {
        let reply = ask(sentinel, &["SENTINEL", what, SERVICE])?;
        let Reply::Array(elements) = reply else { bail!("SENTINEL {what} is {reply}") };
        if what == "MASTER" {
            return Ok(vec![Self::parse(&elements)]);
        }
        let record = |element: &Reply| match element {
            Reply::Array(fields) => Ok(Self::parse(fields)),
            other => bail!("SENTINEL {what} has {other}"),
        };
        elements.iter().map(record).collect()
    }

    fn parse(fields: &[Reply]) -> Self {
        let pairs = fields.chunks_exact(2);
        Self(pairs.map(|pair| (pair[0].to_string(), pair[1].to_string())).collect())
    }

    fn get(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }

    fn number(&self, name: &str) -> Result<u64> {
        self.get(name).parse().with_context(|| format!("{name} is {:?}", self.get(name)))
    }

    fn addr(&self) -> Result<SocketAddr> {
        Ok(format!("{}:{}", self.get("ip"), self.get("port")).parse()?)
    }

    fn ensure(&self, name: &str, value: &str) -> Result<()> {
        ensure!(self.get(name) == value, "{name} of {} is {:?}", self.addr()?, self.get(name));
        Ok(())
    }
}
