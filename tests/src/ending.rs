//! Programs that end while they hold locks: every way to end, in real processes, so that what is left behind is seen by
//! somebody who lives on.
//!
//! An [`Ending`] says which program it is; it travels to the process as its arguments, and [`serve`] is its `main`.

use std::fmt::Debug;
use std::future::pending;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tokio::runtime::{Builder, Runtime};
use wheellock::client::TlsConfig;
use wheellock::{Guard, Leftover, LockManager, LockManagerBuilder, blocking};

/// One kind of program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ending {
    /// What serves the connection.
    pub api: Api,
    /// Where the guards live.
    pub guards: Guards,
    /// How the program ends.
    pub end: End,
    /// How many locks it holds then.
    pub locks: usize,
}

/// What serves the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Api {
    /// A runtime with two worker threads.
    MultiThread,
    /// A runtime in the main thread.
    CurrentThread,
    /// The background thread of the blocking API, which ends with the process.
    Blocking,
}

/// Where the guards live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guards {
    /// In `main`.
    InMain,
    /// Each in a task or a thread of its own.
    Spawned,
    /// In `main`, and dropped after the runtime.
    AfterRuntime,
    /// In `main`, and their manager is never dropped.
    OfStatic,
}

/// How the program ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// `main` returns. Threads have been joined by then, because nothing runs in those that have not.
    Return,
    /// `main` panics; so do threads, which it has joined by then.
    Panic,
    /// `main` shuts the manager down, and then ends the process while all guards live on.
    Shutdown,
}

const APIS: [Api; 3] = [Api::MultiThread, Api::CurrentThread, Api::Blocking];
const GUARDS: [Guards; 4] = [Guards::InMain, Guards::Spawned, Guards::AfterRuntime, Guards::OfStatic];
const ENDS: [End; 3] = [End::Return, End::Panic, End::Shutdown];

impl Ending {
    /// Every kind of program that holds so many locks and is to leave none.
    pub fn all(locks: usize) -> impl Iterator<Item = Self> {
        let kinds = APIS.into_iter().flat_map(|api| GUARDS.map(|guards| (api, guards)));
        let kinds = kinds.flat_map(move |(api, guards)| ENDS.map(|end| Self { api, guards, end, locks }));
        kinds.filter(Self::is_promised)
    }

    /// Whether such a program is to leave nothing.
    fn is_promised(&self) -> bool {
        match (self.guards, self.api, self.end) {
            // A shutdown needs the runtime, and the blocking API's is nobody's to drop.
            (Guards::AfterRuntime, api, end) => api != Api::Blocking && end != End::Shutdown,
            // Neither a runtime nor a manager is dropped, so nobody waits: the guide says so.
            (Guards::OfStatic, Api::Blocking, end) => end == End::Shutdown,
            _ => true,
        }
    }

    /// The command that runs such a program: `program` with arguments. It speaks TLS if `trusted` names an authority.
    #[must_use]
    pub fn command(&self, program: &str, url: &str, trusted: Option<&Path>, prefix: &str) -> Command {
        let mut command = Command::new(program);
        command.args([format!("{:?}", self.api), format!("{:?}", self.guards), format!("{:?}", self.end)]);
        command.args([&self.locks.to_string(), url, prefix]).args(trusted);
        command
    }

    fn parse([api, guards, end, locks]: [&String; 4]) -> Result<Self> {
        let (api, guards, end) = (named(&APIS, api)?, named(&GUARDS, guards)?, named(&ENDS, end)?);
        Ok(Self { api, guards, end, locks: locks.parse()? })
    }
}

fn named<T: Debug + Copy>(all: &[T], name: &str) -> Result<T> {
    let found = all.iter().find(|known| format!("{known:?}") == name);
    found.copied().with_context(|| format!("no such thing: {name}"))
}

/// The names of the locks that a program with this prefix holds.
pub fn names(prefix: &str, locks: usize) -> impl Iterator<Item = String> + use<> {
    let prefix = prefix.to_owned();
    (0..locks).map(move |number| format!("{prefix}:{number}"))
}

/// The program's `main`: takes its locks, says so, and ends.
///
/// # Errors
///
/// Bad arguments, no connection, or a lock that is not free.
pub fn serve(arguments: &[String]) -> Result<()> {
    let [api, guards, end, locks, url, prefix, trusted @ ..] = arguments else { bail!("too few arguments") };
    let program = Program {
        kind: Ending::parse([api, guards, end, locks])?,
        url,
        prefix,
        trusted: trusted.first().map(String::as_str),
    };
    // Half of these programs panic, and nobody wants to read why.
    std::panic::set_hook(Box::new(|_| {}));
    match program.kind.api {
        Api::MultiThread => program.run(Builder::new_multi_thread().worker_threads(2).enable_all().build()?),
        Api::CurrentThread => program.run(Builder::new_current_thread().enable_all().build()?),
        Api::Blocking => program.run_blocking(),
    }
}

struct Program<'a> {
    kind: Ending,
    url: &'a str,
    prefix: &'a str,
    trusted: Option<&'a str>,
}

impl Program<'_> {
    fn builder(&self) -> Result<LockManagerBuilder> {
        let mut builder = LockManager::builder(self.url);
        if let Some(file) = self.trusted {
            let trusted = TlsConfig::new().trust_pem(&std::fs::read(file)?).build()?;
            builder = builder.configure(|config| config.tls = Some(trusted));
        }
        Ok(builder)
    }

    fn run(&self, runtime: Runtime) -> Result<()> {
        if self.kind.guards == Guards::AfterRuntime {
            let (guards, locks) = runtime.block_on(async {
                let locks = self.builder()?.connect().await?;
                anyhow::Ok((self.take(&locks).await?, locks))
            })?;
            drop((runtime, locks));
            self.end(|| unreachable!("it would have to wait"));
            drop(guards);
            return Ok(());
        }
        runtime.block_on(async {
            let locks = self.builder()?.connect().await?;
            if self.kind.guards == Guards::OfStatic {
                std::mem::forget(locks.clone());
            }
            let _guards = match self.kind.guards {
                Guards::Spawned => self.spawn(&locks).await?,
                _ => self.take(&locks).await?,
            };
            let left =
                if self.kind.end == End::Shutdown { Some(locks.shutdown(PATIENCE).await) } else { None };
            self.end(|| left.expect("it was shut down"));
            Ok(())
        })
    }

    async fn take(&self, locks: &LockManager) -> Result<Vec<Guard>> {
        let mut guards = Vec::new();
        for name in names(self.prefix, self.kind.locks) {
            guards.push(locks.lock(&name).try_acquire().await?.context("it is held")?);
        }
        Ok(guards)
    }

    /// Each guard in a task that never ends by itself; none is left for the caller.
    async fn spawn(&self, locks: &LockManager) -> Result<Vec<Guard>> {
        let (taken, mut all) = tokio::sync::mpsc::channel(self.kind.locks);
        for name in names(self.prefix, self.kind.locks) {
            let (lock, taken) = (locks.lock(&name), taken.clone());
            tokio::spawn(async move {
                let guard = lock.try_acquire().await;
                let _told = taken.send(matches!(guard, Ok(Some(_)))).await;
                pending::<()>().await;
                drop(guard);
            });
        }
        for _ in 0..self.kind.locks {
            ensure!(all.recv().await == Some(true), "a lock is not free");
        }
        Ok(Vec::new())
    }

    fn run_blocking(&self) -> Result<()> {
        let locks = self.builder()?.connect_blocking()?;
        if self.kind.guards == Guards::OfStatic {
            std::mem::forget(locks.clone());
        }
        if self.kind.guards == Guards::Spawned {
            return self.run_threads(&locks);
        }
        let taken = names(self.prefix, self.kind.locks).map(|name| locks.lock(&name).try_acquire());
        let _guards = taken.collect::<Result<Option<Vec<_>>, _>>()?.context("a lock is not free")?;
        self.end(|| locks.shutdown(PATIENCE));
        Ok(())
    }

    /// Each guard in a thread that ends when it is told to.
    fn run_threads(&self, locks: &blocking::LockManager) -> Result<()> {
        let (taken, all) = mpsc::channel();
        let threads = names(self.prefix, self.kind.locks).map(|name| {
            let (go, gone) = mpsc::channel::<()>();
            let (lock, taken, end) = (locks.lock(&name), taken.clone(), self.kind.end);
            let thread = std::thread::spawn(move || {
                let guard = lock.try_acquire();
                let _told = taken.send(matches!(guard, Ok(Some(_))));
                let _never = gone.recv();
                assert!(end != End::Panic, "the thread's end");
            });
            (thread, go)
        });
        let (threads, go): (Vec<_>, Vec<_>) = threads.collect();
        ensure!(all.iter().take(self.kind.locks).all(|taken| taken), "a lock is not free");
        if self.kind.end != End::Shutdown {
            drop(go);
            for thread in threads {
                let _panicked = thread.join();
            }
        }
        self.end(|| locks.shutdown(PATIENCE));
        Ok(())
    }

    /// What the parent waits for, and the end.
    fn end(&self, shutdown: impl FnOnce() -> Leftover) {
        match self.kind.end {
            End::Return => println!("{HELD}"),
            End::Panic => {
                println!("{HELD}");
                panic!("the program's end");
            }
            End::Shutdown => {
                let left = shutdown();
                println!("{}", if left.is_empty() { HELD.to_owned() } else { left.to_string() });
                std::process::exit(0);
            }
        }
    }
}

/// What a program prints when it has held everything.
pub const HELD: &str = "held";

/// A shutdown that needs this long is too slow.
const PATIENCE: Duration = Duration::from_secs(10);
