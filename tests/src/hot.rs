//! A process with a hot lock, and contenders beside it.
//!
//! The tasks of the hot process always want the lock. Each contender takes the lock again and again, in its own way.
//!
//! Counts the turns of a contender. Does not judge the count: tests, campaigns and benches do.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use wheellock::client::{Client, Command};
use wheellock::{Attempt, Backoff, Error, Guard, Lock, LockManager};

use crate::server::RedisServer;

/// The longest pause of a contender that tries ten times a second.
pub const TEN_HERTZ: Duration = Duration::from_millis(100);

/// The kind of a hot lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// `lock`.
    Plain,
    /// `simple_lock`.
    Simple,
    /// The write side of a `read_write_lock`.
    Write,
    /// `fair_lock`.
    Fair,
    /// `fenced_lock`.
    Fenced,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 5] = [Self::Plain, Self::Simple, Self::Write, Self::Fair, Self::Fenced];

    /// Returns the lock of this kind.
    pub fn lock(self, locks: &LockManager, name: &str) -> Lock {
        match self {
            Self::Plain => locks.lock(name),
            Self::Simple => locks.simple_lock(name),
            Self::Write => locks.read_write_lock(name).write(),
            Self::Fair => locks.fair_lock(name),
            Self::Fenced => locks.fenced_lock(name).as_lock().clone(),
        }
    }

    /// Returns the contenders that can run beside a hot lock of this kind.
    #[must_use]
    pub fn contenders(self) -> Vec<Contender> {
        use Contender::{Backoff, Deaf, Foreign, Listener, Mute, Reader, Try, TryHere, TryRead};
        match self {
            Self::Plain => Contender::OF_PLAIN.to_vec(),
            Self::Simple => vec![Listener, Backoff, Try, Deaf, Mute, TryHere, Foreign],
            Self::Write => vec![Listener, Backoff, Try, Deaf, Mute, TryHere, Reader, TryRead],
            // `try_acquire` of a fair lock does not queue and cannot overtake a waiter, so it has no turn while waiters are queued.
            Self::Fair => vec![Listener, Backoff, Deaf, Mute],
            Self::Fenced => vec![Listener, Backoff, Try, Deaf, Mute, TryHere],
        }
    }
}

/// A way to contend for a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Contender {
    /// Another process that is subscribed, with one task.
    Listener,
    /// `spin_lock`.
    Spin,
    /// `with_backoff`, 20 times a second.
    Backoff,
    /// `try_acquire` ten times a second.
    Try,
    /// A user without permission for the lock's channel.
    Deaf,
    /// A user without `+publish`.
    Mute,
    /// A fair lock of the same name.
    Fair,
    /// A fair lock of the same name, from the hot process' own manager.
    FairHere,
    /// A fenced lock of the same name.
    Fenced,
    /// A fenced lock of the same name, from the hot process' own manager.
    FencedHere,
    /// `try_acquire` of the hot process' own manager, ten times a second.
    TryHere,
    /// Another library that tries ten times a second, and leaves no mark on the server.
    Foreign,
    /// A reader that is subscribed.
    Reader,
    /// `try_acquire` of a reader ten times a second.
    TryRead,
}

impl Contender {
    /// All contenders for a plain lock.
    pub const OF_PLAIN: [Self; 12] = [
        Self::Listener,
        Self::Spin,
        Self::Backoff,
        Self::Try,
        Self::Deaf,
        Self::Mute,
        Self::Fair,
        Self::FairHere,
        Self::Fenced,
        Self::FencedHere,
        Self::TryHere,
        Self::Foreign,
    ];

    /// Returns the longest time that the contender may wait for a turn, on a machine that is not busy.
    #[must_use]
    pub fn patience(self) -> Duration {
        Duration::from_secs(if self == Self::Foreign { 5 } else { 1 })
    }
}

impl fmt::Display for Contender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Listener => "listener, one task",
            Self::Spin => "spin_lock",
            Self::Backoff => "with_backoff",
            Self::Try => "try_acquire at 10 Hz",
            Self::Deaf => "user without the channel",
            Self::Mute => "user without +publish",
            Self::Fair => "fair lock",
            Self::FairHere => "fair lock of the same manager",
            Self::Fenced => "fenced lock",
            Self::FencedHere => "fenced lock of the same manager",
            Self::TryHere => "try_acquire of the same manager",
            Self::Foreign => "another library at 10 Hz",
            Self::Reader => "reader, one task",
            Self::TryRead => "reader's try_acquire at 10 Hz",
        })
    }
}

/// The tasks of a process or of a contender, and their count of turns.
#[derive(Debug)]
pub struct Working {
    over: Arc<AtomicBool>,
    /// Turns so far.
    pub turns: Arc<AtomicU64>,
    tasks: JoinSet<Result<(), Error>>,
}

impl Working {
    fn new() -> Self {
        Self { over: Arc::default(), turns: Arc::default(), tasks: JoinSet::new() }
    }

    /// Returns the number of turns so far.
    #[must_use]
    pub fn had(&self) -> u64 {
        self.turns.load(Ordering::Relaxed)
    }

    /// Waits until the tasks have had `turns` turns, but not longer than `within`. Returns true if they have.
    pub async fn reaches(&self, turns: u64, within: Duration) -> bool {
        let deadline = tokio::time::Instant::now() + within;
        while self.had() < turns && tokio::time::Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        self.had() >= turns
    }

    fn work<F>(&mut self, hold: Duration, acquire: impl Fn() -> F + Send + 'static)
    where
        F: Future<Output = Result<Option<Guard>, Error>> + Send + 'static,
    {
        let (over, turns) = (Arc::clone(&self.over), Arc::clone(&self.turns));
        self.tasks.spawn(async move {
            while !over.load(Ordering::Relaxed) {
                let Some(guard) = acquire().await? else { continue };
                turns.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(hold).await;
                guard.release().await?;
            }
            Ok(())
        });
    }

    /// Drops the tasks in the middle of their work.
    pub async fn abort(mut self) {
        self.tasks.shutdown().await;
    }

    /// Ends the tasks. Returns the number of their turns.
    ///
    /// # Errors
    ///
    /// The error of a task that failed.
    pub async fn end(mut self) -> Result<u64, Error> {
        self.over.store(true, Ordering::Relaxed);
        let deadline = tokio::time::Instant::now() + Duration::from_secs(2);
        while let Ok(Some(ended)) = tokio::time::timeout_at(deadline, self.tasks.join_next()).await {
            ended.expect("it does not panic")?;
        }
        Ok(self.had())
    }
}

/// Starts `tasks` tasks of one process, which take the lock again and again and hold it for `hold` each time.
#[must_use]
pub fn hot(lock: &Lock, tasks: usize, hold: Duration) -> Working {
    let mut working = Working::new();
    for _ in 0..tasks {
        let lock = lock.clone();
        working.work(hold, move || {
            let lock = lock.clone();
            async move { lock.acquire().await.map(Some) }
        });
    }
    working
}

/// Starts a contender for the lock `name` of this kind, beside the hot process of the manager `here`. The server needs a TCP port.
///
/// # Errors
///
/// If the contender cannot connect.
///
/// # Panics
///
/// If the server refuses the contender's user.
pub async fn beside(
    contender: Contender,
    kind: Kind,
    server: &RedisServer,
    here: &LockManager,
    name: &str,
    hold: Duration,
) -> Result<Working, Error> {
    let mut working = Working::new();
    let there = match contender {
        Contender::Deaf => user(server, "deaf", &["resetchannels"]).await?,
        Contender::Mute => user(server, "mute", &["allchannels", "-publish"]).await?,
        _ => LockManager::connect(&server.tcp_url()).await?,
    };
    let pause = match contender {
        Contender::Try | Contender::TryHere | Contender::TryRead | Contender::Foreign => TEN_HERTZ,
        _ => Duration::ZERO,
    };
    let lock = match contender {
        Contender::Listener | Contender::Try | Contender::Deaf | Contender::Mute => kind.lock(&there, name),
        Contender::TryHere => kind.lock(here, name),
        Contender::Spin => there.spin_lock(name),
        Contender::Backoff => {
            kind.lock(&there, name).with_backoff(Backoff::Constant(Duration::from_millis(50)))
        }
        Contender::Fair => there.fair_lock(name),
        Contender::FairHere => here.fair_lock(name),
        Contender::Fenced => there.fenced_lock(name).as_lock().clone(),
        Contender::FencedHere => here.fenced_lock(name).as_lock().clone(),
        Contender::Reader | Contender::TryRead => there.read_write_lock(name).read(),
        Contender::Foreign => {
            foreign(&mut working, kind, there.client().clone(), name, hold);
            return Ok(working);
        }
    };
    working.work(hold, move || {
        let (lock, _manager) = (lock.clone(), there.clone());
        async move {
            if pause.is_zero() {
                return lock.acquire().await.map(Some);
            }
            tokio::time::sleep(pause).await;
            lock.try_acquire().await.map(Attempt::acquired)
        }
    });
    Ok(working)
}

/// Takes and frees the lock as another library does, without a message to subscribers.
fn foreign(working: &mut Working, kind: Kind, client: Client, name: &str, hold: Duration) {
    const OWNER: &str = "a1b2c3d4-0000-4000-8000-000000000000:1";
    const TRY: &str = "if redis.call('exists', KEYS[1]) == 0 then redis.call('hset', KEYS[1], ARGV[1], '1') \
                       redis.call('pexpire', KEYS[1], '30000') return 1 end return 0";
    let (over, turns, name) = (Arc::clone(&working.over), Arc::clone(&working.turns), name.to_owned());
    working.tasks.spawn(async move {
        let (try_lock, unlock) = if kind == Kind::Simple {
            let set = Command::new("SET").arg(&*name).arg(OWNER).arg("NX").arg("PX").arg("30000");
            (set, Command::new("DEL").arg(&*name))
        } else {
            let eval = Command::new("EVAL").arg(TRY).arg("1").arg(&*name).arg(OWNER);
            (eval, Command::new("HDEL").arg(&*name).arg(OWNER))
        };
        while !over.load(Ordering::Relaxed) {
            tokio::time::sleep(TEN_HERTZ).await;
            let reply = client.call(&try_lock).await.expect("the foreign contender takes the lock");
            if reply.as_i64() == Some(1) || reply.as_str() == Some("OK") {
                turns.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(hold).await;
                client.call(&unlock).await.expect("the foreign contender frees the lock");
            }
        }
        Ok(())
    });
}

async fn user(server: &RedisServer, name: &str, rules: &[&str]) -> Result<LockManager, Error> {
    let set = [&["ACL", "SETUSER", name, "reset", "on", ">secret", "+@all", "allkeys"][..], rules].concat();
    assert_eq!(server.cli(&set), "OK");
    let url = server.tcp_url().replace("redis://", &format!("redis://{name}:secret@"));
    LockManager::connect(&url).await
}
