//! Contenders: the same commands through different clients.
//!
//! They are the bare socket, this project's client, and other clients. This module has the setup of each.

use std::future::Future;

use anyhow::{Result, ensure};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use wheellock_client::{Arg, Client, Command, Config, Script, Value};
use wheellock_tests::RedisServer;

use crate::rig::Session;

/// The client operations of one task.
pub(crate) trait Caller: Send + 'static {
    /// Gets 16 bytes. Returns true if the reply was right.
    fn get(&mut self) -> impl Future<Output = bool> + Send;

    /// Acquires and releases this session's own lock.
    fn pair(&mut self) -> impl Future<Output = bool> + Send;

    /// Gets a megabyte.
    fn big(&mut self) -> impl Future<Output = bool> + Send {
        async { false }
    }

    /// Returns the number of GETs or pairs per call.
    fn units(&self) -> u64 {
        1
    }
}

/// A session that repeats GETs.
pub(crate) struct Gets<C>(pub(crate) C);

impl<C: Caller> Session for Gets<C> {
    async fn once(&mut self) -> bool {
        self.0.get().await
    }

    fn units(&self) -> u64 {
        self.0.units()
    }
}

/// A session that repeats pairs.
pub(crate) struct Pairs<C>(pub(crate) C);

impl<C: Caller> Session for Pairs<C> {
    async fn once(&mut self) -> bool {
        self.0.pair().await
    }

    fn units(&self) -> u64 {
        self.0.units()
    }
}

/// A server that has the data and the scripts.
pub(crate) struct Target {
    pub(crate) server: RedisServer,
    pub(crate) acquire_sha: String,
    pub(crate) release_sha: String,
}

impl Target {
    pub(crate) fn start() -> Result<Self> {
        // The server's own defaults, without its work besides serving.
        let server = RedisServer::builder().tcp().try_start()?;
        ensure!(server.cli(&["SET", KEY, VALUE]) == "OK", "SET failed");
        ensure!(server.cli(&["SET", BIG_KEY, &"x".repeat(BIG)]) == "OK", "SET failed");
        let acquire_sha = server.cli(&["SCRIPT", "LOAD", ACQUIRE]);
        let release_sha = server.cli(&["SCRIPT", "LOAD", RELEASE]);
        Ok(Self { server, acquire_sha, release_sha })
    }
}

/// The parameters of one session's lock.
#[derive(Clone)]
pub(crate) struct Names {
    pub(crate) key: String,
    pub(crate) channel: String,
    pub(crate) owner: String,
}

impl Names {
    pub(crate) fn new(index: usize) -> Self {
        let key = format!("orders:{index}");
        Self {
            channel: format!("redisson_lock__channel:{{{key}}}"),
            owner: format!("3f1c4b52-9a30-4b1e-8a3d-0242ac120002:{index}"),
            key,
        }
    }
}

/// The harness's own cost: instead of waiting for a reply, a task moves to the back of the queue.
pub(crate) struct NoOp;

impl Caller for NoOp {
    async fn get(&mut self) -> bool {
        tokio::task::yield_now().await;
        true
    }

    async fn pair(&mut self) -> bool {
        tokio::task::yield_now().await;
        tokio::task::yield_now().await;
        true
    }
}

/// The same bytes over the bare socket: write, read, compare. A batch sends `batch` commands in one write and then reads all their replies.
/// This is the least work per command of any client, without separate callers.
pub(crate) struct Raw {
    stream: TcpStream,
    buf: Vec<u8>,
    batch: usize,
    get: Exchange,
    acquire: Exchange,
    release: Exchange,
}

struct Exchange {
    request: Vec<u8>,
    reply: Vec<u8>,
}

impl Exchange {
    /// Creates an exchange: `commands` in one write, each answered with `reply`.
    fn new<'a>(commands: impl Iterator<Item = Vec<&'a str>>, reply: &str) -> Self {
        let (mut request, mut replies) = (Vec::new(), Vec::new());
        for command in commands {
            request.extend_from_slice(format!("*{}\r\n", command.len()).as_bytes());
            for arg in command {
                request.extend_from_slice(format!("${}\r\n{arg}\r\n", arg.len()).as_bytes());
            }
            replies.extend_from_slice(reply.as_bytes());
        }
        Self { request, reply: replies }
    }
}

impl Raw {
    pub(crate) async fn connect(target: &Target, batch: usize) -> Result<Self> {
        let mut stream = TcpStream::connect(target.server.addr()).await?;
        stream.set_nodelay(true)?;
        stream.write_all(b"HELLO 3\r\nPING\r\n").await?;
        let mut buf = vec![0; 64 << 10];
        let mut greeting = Vec::new();
        while !greeting.ends_with(b"+PONG\r\n") {
            let read = stream.read(&mut buf).await?;
            ensure!(read > 0, "the server closed the connection");
            greeting.extend_from_slice(buf.get(..read).unwrap_or_default());
        }
        let names: Vec<Names> = (0..batch).map(Names::new).collect();
        let (acquire_sha, release_sha) = (target.acquire_sha.as_str(), target.release_sha.as_str());
        let acquire = |n| {
            let Names { key, owner, .. }: &Names = n;
            vec!["EVALSHA", acquire_sha, "1", key, "30000", owner, "1"]
        };
        let release = |n| {
            let Names { key, channel, owner }: &Names = n;
            vec!["EVALSHA", release_sha, "1", key, channel, owner, "0", "PUBLISH"]
        };
        Ok(Self {
            stream,
            buf,
            batch,
            get: Exchange::new(
                (0..batch).map(|_| vec!["GET", KEY]),
                &format!("${}\r\n{VALUE}\r\n", VALUE.len()),
            ),
            acquire: Exchange::new(names.iter().map(acquire), "_\r\n"),
            release: Exchange::new(names.iter().map(release), ":1\r\n"),
        })
    }
}

async fn exchange(stream: &mut TcpStream, buf: &mut [u8], exchange: &Exchange) -> bool {
    if stream.write_all(&exchange.request).await.is_err() {
        return false;
    }
    let mut rest = exchange.reply.as_slice();
    while !rest.is_empty() {
        let Ok(read @ 1..) = stream.read(buf).await else { return false };
        match buf.get(..read).and_then(|got| rest.strip_prefix(got)) {
            Some(more) => rest = more,
            None => return false,
        }
    }
    true
}

impl Caller for Raw {
    async fn get(&mut self) -> bool {
        exchange(&mut self.stream, &mut self.buf, &self.get).await
    }

    async fn pair(&mut self) -> bool {
        exchange(&mut self.stream, &mut self.buf, &self.acquire).await
            && exchange(&mut self.stream, &mut self.buf, &self.release).await
    }

    async fn big(&mut self) -> bool {
        let request = Exchange::new([vec!["GET", BIG_KEY]].into_iter(), "");
        if self.stream.write_all(&request.request).await.is_err() {
            return false;
        }
        let mut left = format!("${BIG}\r\n\r\n").len() + BIG;
        while left > 0 {
            let Ok(read @ 1..) = self.stream.read(&mut self.buf).await else { return false };
            left = left.saturating_sub(read);
        }
        true
    }

    fn units(&self) -> u64 {
        self.batch as u64
    }
}

/// This project's client with its defaults: deadlines, health checks and statistics included.
pub(crate) struct Wheellock {
    client: Client,
    acquire: &'static Script,
    release: &'static Script,
    names: Names,
}

impl Wheellock {
    pub(crate) async fn connect(target: &Target, sessions: usize) -> Result<Vec<Self>> {
        let config: Config = target.server.tcp_url().parse()?;
        let client = Client::connect(config).await?;
        // Leak the scripts: an application would have them as statics.
        let acquire: &_ = Box::leak(Box::new(Script::new(ACQUIRE, 1, 3)));
        let release: &_ = Box::leak(Box::new(Script::new(RELEASE, 1, 4)));
        ensure!(
            acquire.sha() == target.acquire_sha && release.sha() == target.release_sha,
            "not the same scripts"
        );
        let session = |index| Self { client: client.clone(), acquire, release, names: Names::new(index) };
        Ok((0..sessions).map(session).collect())
    }
}

impl Caller for Wheellock {
    async fn get(&mut self) -> bool {
        let reply = self.client.call(&Command::new("GET").arg(KEY)).await;
        reply.is_ok_and(|reply| reply.as_bytes() == Some(VALUE.as_bytes()))
    }

    async fn pair(&mut self) -> bool {
        let Names { key, channel, owner } = &self.names;
        let params: [Arg<'_>; 4] = [key.into(), LEASE.into(), owner.into(), 1.into()];
        let acquired = self.client.eval(self.acquire, &params).await;
        let params: [Arg<'_>; 5] = [key.into(), channel.into(), owner.into(), 0.into(), "PUBLISH".into()];
        let released = self.client.eval(self.release, &params).await;
        matches!(acquired, Ok(Value::Null)) && matches!(released, Ok(Value::Integer(1)))
    }

    async fn big(&mut self) -> bool {
        let reply = self.client.call(&Command::new("GET").arg(BIG_KEY)).await;
        reply.is_ok_and(|reply| reply.as_bytes().map(<[u8]>::len) == Some(BIG))
    }
}

pub(crate) const KEY: &str = "k";
/// 16 bytes.
pub(crate) const VALUE: &str = "0123456789abcdef";
pub(crate) const BIG_KEY: &str = "big";
pub(crate) const BIG: usize = 1 << 20;
/// Milliseconds; the default of Redisson's watchdog.
pub(crate) const LEASE: i64 = 30_000;

pub(crate) const ACQUIRE: &str = include_str!("../../../../crates/wheellock/src/scripts/acquire.lua");
pub(crate) const RELEASE: &str = include_str!("../../../../crates/wheellock/src/scripts/release.lua");
