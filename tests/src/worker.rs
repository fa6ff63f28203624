//! Worker processes that take and release a lock on command.
//!
//! Tests use them to show properties between processes with real processes.
//!
//! The parent writes a request per line to the worker's stdin, and reads an answer per line from the worker's stdout. A worker ends when
//! its stdin closes, so it cannot outlive its parent.

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tokio::sync::mpsc as async_mpsc;
use tokio::task::JoinSet;
use wheellock::{
    CountDownLatch, Error, Guard, Lock, LockManager, Permit, PermitSemaphore, Permits, Semaphore,
};

use crate::poll::eventually;

/// The parent's end of a worker process; dropping it kills the process.
#[derive(Debug)]
pub struct Worker {
    child: Child,
    requests: ChildStdin,
    answers: mpsc::Receiver<String>,
}

impl Worker {
    /// Starts a process whose `main` calls [`serve`] with the arguments appended here. These are the URL, the name, and the watchdog's
    /// lease in milliseconds. The name is that of a lock, as [`of_kind`] reads it. It may also name a semaphore after `semaphore@` or
    /// `permits@`, or a latch after `latch@`.
    ///
    /// # Errors
    ///
    /// The process cannot be started.
    pub fn spawn(mut program: Command, url: &str, lock: &str, lease: Duration) -> Result<Self> {
        let mut child = program
            .args([url, lock, &lease.as_millis().to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {program:?}"))?;
        let requests = child.stdin.take().context("the worker has no stdin")?;
        let output = child.stdout.take().context("the worker has no stdout")?;
        let (sender, answers) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(Self { child, requests, answers })
    }

    /// Sends a request without waiting for its answer.
    ///
    /// # Errors
    ///
    /// The worker is gone.
    pub fn request(&mut self, request: &Request<'_>) -> Result<()> {
        writeln!(self.requests, "{}", request.to_line()).context("the worker is gone")
    }

    /// Waits for the next answer, at most [`ANSWER_TIMEOUT`].
    ///
    /// # Errors
    ///
    /// The answer is late, the worker died, or the worker reports an error of the lock layer.
    pub fn answer(&mut self) -> Result<Answer> {
        let line = self.answers.recv_timeout(ANSWER_TIMEOUT).context("no answer from the worker")?;
        Answer::parse(&line)
    }

    /// Sends a request and waits for its answer.
    ///
    /// # Errors
    ///
    /// Errors of [`request`](Self::request) and [`answer`](Self::answer).
    pub fn ask(&mut self, request: &Request<'_>) -> Result<Answer> {
        self.request(request)?;
        self.answer()
    }

    /// Kills the worker with SIGKILL, so that it cannot clean up. Returns when the worker is gone.
    ///
    /// # Errors
    ///
    /// Errors of `kill(2)` and `wait(2)`.
    pub fn kill(mut self) -> io::Result<()> {
        self.child.kill()?;
        self.child.wait().map(drop)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // An error says that the process is already gone.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A request to a worker.
#[derive(Clone, Copy, Debug)]
pub enum Request<'a> {
    /// Acquire the lock without a time limit, and keep it. Answer: `Acquired`.
    Acquire,
    /// Acquire the lock within this time. Answer: `Acquired` or `GaveUp`.
    TryAcquireFor(Duration),
    /// Release the hold. Answer: `Released` or `AlreadyLost`.
    Release,
    /// Repeat this many times: acquire, read the number in the file, add one, write it back, release. Answer: `Done`.
    Increment(u32, &'a Path),
    /// Do the same without the lock, to show that the lock matters.
    IncrementUnlocked(u32, &'a Path),
    /// Make this many tasks wait for the latch. Answer: `Waiting`, when all of them wait.
    Await(u32),
    /// Join these tasks. Answer: `Open`.
    Join,
    /// Count the latch down. Answer: `Done`.
    CountDown,
}

impl Request<'_> {
    fn to_line(self) -> String {
        match self {
            Self::Acquire => "acquire".into(),
            Self::TryAcquireFor(wait) => format!("try {}", wait.as_millis()),
            Self::Release => "release".into(),
            Self::Increment(times, file) => format!("increment {times} {}", file.display()),
            Self::IncrementUnlocked(times, file) => format!("unlocked {times} {}", file.display()),
            Self::Await(tasks) => format!("await {tasks}"),
            Self::Join => "join".into(),
            Self::CountDown => "count-down".into(),
        }
    }
}

/// A worker's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The end of the request.
    pub what: Outcome,
    /// The return of the worker's call, on the clock of [`monotonic`], which all processes share.
    pub at: Duration,
}

/// The end of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The worker holds the lock now.
    Acquired,
    /// The wait timed out before the lock was free.
    GaveUp,
    /// The worker released the hold.
    Released,
    /// The hold was already lost.
    AlreadyLost,
    /// The increments, or other work, are done.
    Done,
    /// All tasks wait for the latch.
    Waiting,
    /// The latch is open, and all tasks have continued.
    Open,
}

impl Answer {
    fn to_line(self) -> String {
        format!("{} {:?}", self.at.as_nanos(), self.what)
    }

    fn parse(line: &str) -> Result<Self> {
        let (at, what) = line.split_once(' ').with_context(|| format!("not an answer: {line:?}"))?;
        let at = Duration::from_nanos(at.parse().with_context(|| format!("not an answer: {line:?}"))?);
        let outcomes = [
            Outcome::Acquired,
            Outcome::GaveUp,
            Outcome::Released,
            Outcome::AlreadyLost,
            Outcome::Done,
            Outcome::Waiting,
            Outcome::Open,
        ];
        match outcomes.into_iter().find(|outcome| format!("{outcome:?}") == what) {
            Some(what) => Ok(Self { what, at }),
            None => bail!("the worker reports: {what}"),
        }
    }
}

/// Reads `CLOCK_MONOTONIC`, the only clock whose readings the processes of a machine can compare.
#[must_use]
pub fn monotonic() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or_default())
}

/// Connects a manager with this watchdog lease.
///
/// # Errors
///
/// Errors of connecting.
pub async fn connect(url: &str, lease: Duration) -> Result<LockManager> {
    Ok(LockManager::builder(url).watchdog_lease(lease).connect().await?)
}

/// Returns the lock `name`. The name may begin with its kind: `read@`, `write@`, `fenced@`, `fair@`, `spin@` or `simple@`.
pub fn of_kind(locks: &LockManager, name: &str) -> Lock {
    match name.split_once('@') {
        Some(("read", name)) => locks.read_write_lock(name).read(),
        Some(("write", name)) => locks.read_write_lock(name).write(),
        Some(("fenced", name)) => locks.fenced_lock(name).as_lock().clone(),
        Some(("spin", name)) => locks.spin_lock(name),
        Some(("fair", name)) => locks.fair_lock(name),
        Some(("simple", name)) => locks.simple_lock(name),
        _ => locks.lock(name),
    }
}

/// Runs the worker's `main`: answers requests until stdin closes.
///
/// # Errors
///
/// Bad arguments, or no connection.
pub fn serve(arguments: &[String]) -> Result<()> {
    let [url, name, lease] = arguments else { bail!("expected: <url> <lock> <lease in ms>") };
    let lease = Duration::from_millis(lease.parse()?);
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
        let locks = connect(url, lease).await?;
        let wanted = Wanted::of_kind(&locks, name);
        let mut session = Session { locks, wanted, held: None, waiting: JoinSet::new() };
        let mut requests = requests_from_stdin();
        while let Some(line) = requests.recv().await {
            let answered = match session.answer(&line).await {
                Ok(what) => Answer { what, at: monotonic() }.to_line(),
                Err(error) => format!("0 {error:#}"),
            };
            println!("{answered}");
        }
        Ok(())
    })
}

/// The object that a worker uses.
enum Wanted {
    Lock(Lock),
    /// Two permits at a time.
    Semaphore(Semaphore),
    Permit(PermitSemaphore),
    Latch(CountDownLatch),
}

/// The worker's hold.
enum Held {
    Lock(Guard),
    Permits(Permits),
    Permit(Permit),
}

impl Wanted {
    /// Reads the kind as [`of_kind`] does. Also accepts `semaphore@`, `permits@` or `latch@` before the name.
    fn of_kind(locks: &LockManager, name: &str) -> Self {
        match name.split_once('@') {
            Some(("semaphore", name)) => Self::Semaphore(locks.semaphore(name)),
            Some(("permits", name)) => Self::Permit(locks.permit_semaphore(name)),
            Some(("latch", name)) => Self::Latch(locks.count_down_latch(name)),
            _ => Self::Lock(of_kind(locks, name)),
        }
    }

    async fn acquire(&self) -> Result<Held> {
        Ok(match self {
            Self::Lock(lock) => Held::Lock(lock.acquire().await?),
            Self::Semaphore(semaphore) => Held::Permits(semaphore.acquire(2).await?),
            Self::Permit(semaphore) => Held::Permit(semaphore.acquire().await?),
            Self::Latch(_) => bail!("a latch is not held"),
        })
    }

    async fn try_acquire_for(&self, wait: Duration) -> Result<Option<Held>> {
        Ok(match self {
            Self::Lock(lock) => lock.try_acquire_for(wait).await?.map(Held::Lock).acquired(),
            Self::Semaphore(semaphore) => {
                semaphore.try_acquire_for(2, wait).await?.map(Held::Permits).acquired()
            }
            Self::Permit(semaphore) => semaphore.try_acquire_for(wait).await?.map(Held::Permit).acquired(),
            Self::Latch(_) => bail!("a latch is not held"),
        })
    }
}

impl Held {
    async fn release(self) -> Result<(), Error> {
        match self {
            Self::Lock(guard) => guard.release().await,
            Self::Permits(permits) => permits.release().await,
            Self::Permit(permit) => permit.release().await,
        }
    }
}

/// The state of a worker.
struct Session {
    locks: LockManager,
    wanted: Wanted,
    held: Option<Held>,
    waiting: JoinSet<Result<(), Error>>,
}

impl Session {
    async fn answer(&mut self, line: &str) -> Result<Outcome> {
        let mut words = line.splitn(3, ' ');
        let mut word = || words.next().unwrap_or_default();
        match word() {
            "acquire" => {
                ensure!(self.held.is_none(), "the lock is held already");
                self.held = Some(self.wanted.acquire().await?);
                Ok(Outcome::Acquired)
            }
            "try" => {
                ensure!(self.held.is_none(), "the lock is held already");
                self.held = self.wanted.try_acquire_for(Duration::from_millis(word().parse()?)).await?;
                Ok(if self.held.is_some() { Outcome::Acquired } else { Outcome::GaveUp })
            }
            "release" => match self.held.take().context("nothing is held")?.release().await {
                Ok(()) => Ok(Outcome::Released),
                Err(Error::Lost { .. }) => Ok(Outcome::AlreadyLost),
                Err(error) => Err(error.into()),
            },
            "increment" => {
                let (times, file) = (word().parse()?, Path::new(word()));
                for _ in 0..times {
                    let guard = self.wanted.acquire().await?;
                    increment(file)?;
                    guard.release().await?;
                }
                Ok(Outcome::Done)
            }
            "unlocked" => {
                let (times, file) = (word().parse()?, Path::new(word()));
                for _ in 0..times {
                    // A reader may find the file empty, just truncated by another writer. That is a lost update, too.
                    let _ = increment(file);
                }
                Ok(Outcome::Done)
            }
            "await" => {
                let Wanted::Latch(latch) = &self.wanted else { bail!("only a latch is waited for") };
                let tasks: u32 = word().parse()?;
                for _ in 0..tasks {
                    let latch = latch.clone();
                    self.waiting.spawn(async move { latch.wait().await });
                }
                let all_wait = async || self.locks.metrics().waiting == u64::from(tasks);
                ensure!(eventually(ANSWER_TIMEOUT, all_wait).await, "not all of them wait");
                Ok(Outcome::Waiting)
            }
            "count-down" => {
                let Wanted::Latch(latch) = &self.wanted else { bail!("only a latch is counted down") };
                latch.count_down().await?;
                Ok(Outcome::Done)
            }
            "join" => {
                while let Some(gone_on) = self.waiting.join_next().await {
                    gone_on??;
                }
                Ok(Outcome::Open)
            }
            other => bail!("no such request: {other}"),
        }
    }
}

/// Reads, adds one and writes, in three separate steps on purpose.
fn increment(file: &Path) -> Result<()> {
    let number: u64 = fs::read_to_string(file)?.trim().parse()?;
    fs::write(file, (number + 1).to_string()).context("cannot write the counter")
}

/// Sends the lines of stdin. Ends the process when the parent closes stdin, even in the middle of other work.
fn requests_from_stdin() -> async_mpsc::UnboundedReceiver<String> {
    let (sender, receiver) = async_mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in io::stdin().lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
        std::process::exit(0);
    });
    receiver
}

/// Longer than any single request takes, so that a hang becomes an error.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
