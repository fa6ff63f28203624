//! Redisson's scheme over bare sockets, without client logic.
//!
//! A task sends the scripts on its own socket, and a message on the lock's channel lets one waiter of this manager retry. This is the floor
//! for latency and commands. Leases are not renewed.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Mutex as AsyncMutex, Semaphore};
use wheellock_client::Script;

use crate::contenders::{LEASE, Lock, Manager, Polling};

pub(crate) struct ByHand {
    shared: Arc<Shared>,
}

struct Shared {
    address: String,
    acquire: Script,
    release: Script,
    next_owner: AtomicU64,
    manager: u64,
    news: AsyncMutex<OwnedWriteHalf>,
    entries: Mutex<HashMap<String, Arc<Entry>>>,
}

/// A channel to which this manager is subscribed.
struct Entry {
    /// One permit per message, as in Redisson's `RedissonLockEntry`.
    latch: Semaphore,
    subscribed: Semaphore,
    asked: AsyncMutex<bool>,
}

impl Manager for ByHand {
    type Lock = HandLock;

    async fn connect(url: &str, _: Polling) -> Result<Self> {
        static MANAGERS: AtomicU64 = AtomicU64::new(0);
        let address = url.strip_prefix("redis://").context("not a TCP address")?.to_owned();
        let stream = TcpStream::connect(&address).await?;
        stream.set_nodelay(true)?;
        let (read, news) = stream.into_split();
        let shared = Arc::new(Shared {
            address,
            acquire: Script::new(ACQUIRE, 1, 3),
            release: Script::new(RELEASE, 1, 4),
            next_owner: AtomicU64::new(0),
            manager: MANAGERS.fetch_add(1, Ordering::Relaxed),
            news: AsyncMutex::new(news),
            entries: Mutex::default(),
        });
        tokio::spawn(listen(read, Arc::clone(&shared)));
        let mut socket = Socket::connect(&shared.address).await?;
        for script in [&shared.acquire, &shared.release] {
            socket.send(&["SCRIPT", "LOAD", script.text()]).await?;
            socket.line().await?;
            socket.line().await?;
        }
        Ok(Self { shared })
    }

    fn lock(&self, name: &str) -> HandLock {
        HandLock::new(&self.shared, name)
    }
}

/// A lock with a socket of its own.
pub(crate) struct HandLock {
    shared: Arc<Shared>,
    name: String,
    channel: String,
    socket: Arc<AsyncMutex<Option<Socket>>>,
}

/// A clone is for a different task, so it gets its own socket.
impl Clone for HandLock {
    fn clone(&self) -> Self {
        Self::new(&self.shared, &self.name)
    }
}

pub(crate) struct HandGuard {
    shared: Arc<Shared>,
    socket: Arc<AsyncMutex<Option<Socket>>>,
    name: String,
    channel: String,
    owner: String,
}

impl HandLock {
    fn new(shared: &Arc<Shared>, name: &str) -> Self {
        Self {
            shared: Arc::clone(shared),
            name: name.to_owned(),
            channel: format!("redisson_lock__channel:{{{name}}}"),
            socket: Arc::default(),
        }
    }

    /// Tries to acquire the lock. Returns the remaining lease of a different holder, or `None` if the lock is now acquired.
    async fn attempt(&self, owner: &str) -> Result<Option<Duration>> {
        let mut socket = self.socket.lock().await;
        let socket = match &mut *socket {
            Some(socket) => socket,
            none => none.insert(Socket::connect(&self.shared.address).await?),
        };
        let lease = LEASE.as_millis().to_string();
        socket.send(&["EVALSHA", self.shared.acquire.sha(), "1", &self.name, &lease, owner, "1"]).await?;
        Ok(socket.integer().await?.map(|millis| Duration::from_millis(millis.unsigned_abs())))
    }

    /// Subscribes this manager to the lock's releases, if it is not subscribed yet.
    async fn subscribe(&self) -> Result<Arc<Entry>> {
        let entry = {
            let mut entries = self.shared.entries.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(entries.entry(self.channel.clone()).or_insert_with(|| {
                Arc::new(Entry {
                    latch: Semaphore::new(0),
                    subscribed: Semaphore::new(0),
                    asked: AsyncMutex::new(false),
                })
            }))
        };
        let mut asked = entry.asked.lock().await;
        if !*asked {
            let mut out = Vec::new();
            encode(&mut out, &["SUBSCRIBE", &self.channel]);
            self.shared.news.lock().await.write_all(&out).await?;
            // The permit is never returned: one confirmation, one first subscriber.
            entry.subscribed.acquire().await?.forget();
            *asked = true;
        }
        drop(asked);
        Ok(entry)
    }
}

impl Lock for HandLock {
    type Guard = HandGuard;

    async fn acquire(&self) -> Result<HandGuard> {
        let number = self.shared.next_owner.fetch_add(1, Ordering::Relaxed);
        let owner = format!("3f1c4b52-9a30-4b1e-8a3d-{:012}:{number}", self.shared.manager);
        if self.attempt(&owner).await?.is_some() {
            let entry = self.subscribe().await?;
            while let Some(left) = self.attempt(&owner).await? {
                if let Ok(permit) = tokio::time::timeout(left, entry.latch.acquire()).await {
                    permit?.forget();
                }
            }
        }
        Ok(HandGuard {
            shared: Arc::clone(&self.shared),
            socket: Arc::clone(&self.socket),
            name: self.name.clone(),
            channel: self.channel.clone(),
            owner,
        })
    }

    async fn release(guard: HandGuard) -> Result<()> {
        let HandGuard { shared, socket, name, channel, owner } = guard;
        let mut socket = socket.lock().await;
        let socket = socket.as_mut().context("released before it was acquired")?;
        socket.send(&["EVALSHA", shared.release.sha(), "1", &name, &channel, &owner, "0", "PUBLISH"]).await?;
        ensure!(socket.integer().await?.is_some_and(|given_back| given_back > 0), "the lock was lost");
        Ok(())
    }
}

/// Adds a permit per message, until the connection ends.
async fn listen(read: OwnedReadHalf, shared: Arc<Shared>) -> Result<()> {
    let mut read = BufReader::new(read);
    loop {
        // *3, then kind, channel, and payload or count.
        let mut parts = Vec::new();
        ensure!(line(&mut read).await?.starts_with('*'), "not a message");
        for _ in 0..3 {
            let head = line(&mut read).await?;
            parts.push(match head.strip_prefix('$') {
                Some(len) => {
                    let mut bulk = vec![0; len.parse::<usize>()? + 2];
                    read.read_exact(&mut bulk).await?;
                    bulk.truncate(bulk.len() - 2);
                    String::from_utf8(bulk)?
                }
                None => head,
            });
        }
        let [kind, channel, _] = parts.as_slice() else { bail!("not a message") };
        let entries = shared.entries.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = entries.get(channel) {
            let semaphore = if kind == "message" { &entry.latch } else { &entry.subscribed };
            semaphore.add_permits(1);
        }
    }
}

/// A bare connection.
struct Socket {
    read: BufReader<OwnedReadHalf>,
    write: OwnedWriteHalf,
    out: Vec<u8>,
}

impl Socket {
    async fn connect(address: &str) -> Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let (read, write) = stream.into_split();
        Ok(Self { read: BufReader::new(read), write, out: Vec::new() })
    }

    async fn send(&mut self, args: &[&str]) -> Result<()> {
        self.out.clear();
        encode(&mut self.out, args);
        Ok(self.write.write_all(&self.out).await?)
    }

    async fn line(&mut self) -> Result<String> {
        line(&mut self.read).await
    }

    /// Reads an integer, or a null of RESP2.
    async fn integer(&mut self) -> Result<Option<i64>> {
        let line = self.line().await?;
        if line == "$-1" {
            return Ok(None);
        }
        Ok(Some(line.strip_prefix(':').with_context(|| format!("unexpected reply {line:?}"))?.parse()?))
    }
}

async fn line(read: &mut BufReader<OwnedReadHalf>) -> Result<String> {
    let mut line = String::new();
    ensure!(read.read_line(&mut line).await? > 0, "the server closed the connection");
    line.truncate(line.trim_end().len());
    Ok(line)
}

fn encode(out: &mut Vec<u8>, args: &[&str]) {
    out.extend_from_slice(format!("*{}\r\n", args.len()).as_bytes());
    for arg in args {
        out.extend_from_slice(format!("${}\r\n{arg}\r\n", arg.len()).as_bytes());
    }
}

const ACQUIRE: &str = include_str!("../../../../crates/wheellock/src/scripts/acquire.lua");
const RELEASE: &str = include_str!("../../../../crates/wheellock/src/scripts/release.lua");
