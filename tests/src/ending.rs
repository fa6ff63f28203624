//! Programs that end while they hold locks.
//!
//! The programs end in every possible way, as real processes, so that a surviving process sees the locks that they leave.
//!
//! An [`Ending`] describes a program. The process gets it as arguments, and [`serve`] is the process' `main`.

use std::fmt::Debug;
use std::future::pending;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tokio::runtime::{Builder, Runtime};
use wheellock::client::TlsConfig;
use wheellock::{Attempt, Guard, Leftover, LockManager, LockManagerBuilder, blocking};

/// A kind of program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ending {
    /// The part that serves the connection.
    pub api: Api,
    /// Where the guards live.
    pub guards: Guards,
    /// How the program ends.
    pub end: End,
    /// The number of locks that the program holds when it ends.
    pub locks: usize,
}

/// The part that serves the connection.
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
    /// `main` returns. It has joined all threads, because a thread that is not joined runs no destructors.
    Return,
    /// `main` panics. Its threads panic too, and `main` has joined them.
    Panic,
    /// `main` shuts the manager down, and then ends the process while all guards are alive.
    Shutdown,
}

const APIS: [Api; 3] = [Api::MultiThread, Api::CurrentThread, Api::Blocking];
const GUARDS: [Guards; 4] = [Guards::InMain, Guards::Spawned, Guards::AfterRuntime, Guards::OfStatic];
const ENDS: [End; 3] = [End::Return, End::Panic, End::Shutdown];

impl Ending {
    /// Returns every kind of program that holds `locks` locks and has to leave none of them.
    pub fn all(locks: usize) -> impl Iterator<Item = Self> {
        let kinds = APIS.into_iter().flat_map(|api| GUARDS.map(|guards| (api, guards)));
        let kinds = kinds.flat_map(move |(api, guards)| ENDS.map(|end| Self { api, guards, end, locks }));
        kinds.filter(Self::is_promised)
    }

    /// Returns true if the library promises that such a program leaves no lock.
    fn is_promised(&self) -> bool {
        match (self.guards, self.api, self.end) {
            // A shutdown needs the runtime. A program cannot drop the runtime of the blocking API.
            (Guards::AfterRuntime, api, end) => api != Api::Blocking && end != End::Shutdown,
            // The program drops neither a runtime nor a manager, so it does not wait for its releases. The guide says so.
            (Guards::OfStatic, Api::Blocking, end) => end == End::Shutdown,
            _ => true,
        }
    }

    /// Returns the command that runs such a program: `program` with arguments. The program speaks TLS if `trusted` names an authority.
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

/// Returns the names of the locks that a program with this prefix holds.
pub fn names(prefix: &str, locks: usize) -> impl Iterator<Item = String> + use<> {
    let prefix = prefix.to_owned();
    (0..locks).map(move |number| format!("{prefix}:{number}"))
}

/// Runs the program's `main`: takes the locks, prints [`HELD`], and ends.
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
    // Half of these programs panic on purpose; their messages would only be noise.
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
            guards.push(locks.lock(&name).try_acquire().await?.acquired().context("it is held")?);
        }
        Ok(guards)
    }

    /// Moves each guard into a task that never ends by itself. Returns no guard to the caller.
    async fn spawn(&self, locks: &LockManager) -> Result<Vec<Guard>> {
        let (taken, mut all) = tokio::sync::mpsc::channel(self.kind.locks);
        for name in names(self.prefix, self.kind.locks) {
            let (lock, taken) = (locks.lock(&name), taken.clone());
            tokio::spawn(async move {
                let guard = lock.try_acquire().await;
                let _told = taken.send(matches!(guard, Ok(Attempt::Acquired(_)))).await;
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
        let _guards = taken.map(|taken| taken?.or_held()).collect::<Result<Vec<_>, _>>()?;
        self.end(|| locks.shutdown(PATIENCE));
        Ok(())
    }

    /// Moves each guard into a thread that ends on a signal.
    fn run_threads(&self, locks: &blocking::LockManager) -> Result<()> {
        let (taken, all) = mpsc::channel();
        let threads = names(self.prefix, self.kind.locks).map(|name| {
            let (go, gone) = mpsc::channel::<()>();
            let (lock, taken, end) = (locks.lock(&name), taken.clone(), self.kind.end);
            let thread = std::thread::spawn(move || {
                let guard = lock.try_acquire();
                let _told = taken.send(matches!(guard, Ok(Attempt::Acquired(_))));
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

    /// Prints the line that the parent waits for, and ends the program.
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

/// The line that a program prints when it holds all its locks.
pub const HELD: &str = "held";

/// A shutdown that takes longer is too slow.
const PATIENCE: Duration = Duration::from_secs(10);
